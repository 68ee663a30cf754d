#!/bin/bash
# Builds OpenZFS's own code in userland (libzpool), to be measured beside the engine, from Debian's source package:
#   tests/bench/openzfs.sh DIRECTORY      -> DIRECTORY/openzfs_bench       (five minutes on two cores)
# It is given its best figures: no DEBUG (its own build forces that for libzpool), writes of file vdevs not cut in two (an aid of ztest),
# and with BENCH_ODIRECT in the environment file vdevs opened O_DIRECT, as libzpool does for block devices.
# Needs deb-src lines for zfs-linux 2.3, dpkg-dev, gcc, make, and the -dev packages of zlib1g, uuid, libblkid, libssl, libtirpc, libaio, libattr1, libelf.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); out=$(readlink -m "$1"); mkdir -p "$out/zfs"; cd "$out"
compgen -G 'zfs-linux_*.orig.tar.*' >/dev/null || apt-get source --download-only "zfs-linux${ZFS_VERSION:+=$ZFS_VERSION}"
cd zfs; [ -e configure ] || tar xf ../zfs-linux_*.orig.tar.?z --strip-components=1
[ -e Makefile ] || CFLAGS="-O2 -g -fno-omit-frame-pointer" ./configure --with-config=user --disable-pyzfs --disable-pam --disable-systemd \
  --disable-sysvinit --disable-nls --disable-shared --enable-static >../configure.log 2>&1
sed -i 's/rand() % sectors/0/' lib/libzpool/kernel.c
sed -i 's/if (!(flags & O_CREAT) && S_ISBLK(st.st_mode))/if (!(flags \& O_CREAT) \&\& (S_ISBLK(st.st_mode) || getenv("BENCH_ODIRECT")))/' lib/libzpool/kernel.c
make -j"$(nproc)" LIBZPOOL_CPPFLAGS="-DNDEBUG -UDEBUG" libzpool.la libzfs_core.la >../make.log 2>&1 || { tail -20 ../make.log >&2; exit 1; }
gcc -DHAVE_CONFIG_H -include ./zfs_config.h -Iinclude -Imodule/icp/include -Ilib/libspl/include -Ilib/libspl/include/os/linux \
  -Ilib/libzpool/include -D_GNU_SOURCE -D_REENTRANT -D_FILE_OFFSET_BITS=64 -D_LARGEFILE64_SOURCE -DNDEBUG -UDEBUG -std=gnu99 -O2 -g \
  -fno-omit-frame-pointer -fno-strict-aliasing -w -o "$out/openzfs_bench" "$here/openzfs_bench.c" \
  -Wl,--start-group .libs/lib{zpool,icp,unicode,nvpair,zstd,zutil,spl,spl_assert,avl,tpool,efi,zfs_core}.a -Wl,--end-group \
  $(sed -n 's/^LIBBLKID_LIBS = //p;s/^LIBUUID_LIBS = //p;s/^LIBCRYPTO_LIBS = //p;s/^LIBTIRPC_LIBS = //p;s/^ZLIB_LIBS = //p;s/^LIBUDEV_LIBS = //p' Makefile) \
  -lpthread -ldl -lm -lrt
echo "$out/openzfs_bench"
