#!/bin/bash
# Builds fio with its nfs and libiscsi engines, which Debian's package leaves out, from Debian's source package:
#   tests/bench/fio.sh PREFIX          needs deb-src lines, dpkg-dev, libnfs-dev, libiscsi-dev, libaio-dev, zlib1g-dev
set -euo pipefail
prefix=$(readlink -m "$1"); build=$(mktemp -d); trap 'rm -rf "$build"' EXIT
cd "$build"
apt-get source --download-only fio
tar xf fio_*.orig.tar.gz; cd fio-*/
./configure --prefix="$prefix" --enable-libnfs --enable-libiscsi >../log
make -j"$(nproc)" >>../log 2>&1 || { tail -20 ../log >&2; exit 1; }
make install >>../log
"$prefix/bin/fio" --enghelp | grep -E 'nfs|iscsi'
