#!/bin/bash
# Tests of OpenZFS's own suite (Debian: zfs-test; not included here) run against our zpool and zfs: the appliance serves with FUSE
# mounts, three loop devices of 4 GiB are the disks, and what the suite finds beside our commands is only zdb, as a reader.
#
# In place of the module's parameters (/sys/module/zfs/parameters) the suite finds, in a mount namespace of its own, those that make no
# difference here: what they allow is always allowed, or what they change is not what a test that sets them looks at.
#
#   zts.sh [GROUP | GROUP/TEST]...      default: the lines of zts.list
#   env ZTS      the suite's folder (default /usr/share/zfs)
#       OUT      where the results stay: zts.tsv and a log of each test (default: thrown away)
#       LIMIT_S  limit per test (default 120)
#       PASSES   how many have to pass (default: what zts.list says; 0 when tests are named)
#
# Setup and cleanup of a group run once around its tests; a failing setup fails them. Status 4 or 5 of a test means skipped.
# After a test that failed or left pools the group's setup is made anew, so that it cannot fail the ones that follow.
set -euo pipefail
[ "$(id -u)" != 0 ] || [ -n "${ZTS_PRIVATE:-}" ] || ZTS_PRIVATE=1 exec unshare -m "$BASH" "$0" "$@"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "needs root (loop devices, mounts)"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
Z=${ZTS:-/usr/share/zfs}
[ -d "$Z/zfs-tests" ] || skip "zfs-test is not installed"
# Without rsync the suite takes any two directories for equal.
for tool in ksh rsync xxh128sum; do command -v $tool >/dev/null || skip "$tool is not installed (tests/oracles/install admin)"; done
out=${OUT:-$w/out}; mkdir -p "$out/logs"; out=$(cd "$out" && pwd)

want=("$@")
if [ $# = 0 ]; then
  mapfile -t want < <(grep -v '^#' "$here/zts.list")
  PASSES=${PASSES:-$(sed -n 's/^# passes: //p' "$here/zts.list")}
fi

# The suite replaces PATH by one folder of links to what it may use.
export STF_TOOLS=$Z/test-runner STF_SUITE=$Z/zfs-tests STF_PATH=$w/path FILEDIR=$w/work TMPDIR=$w/work HOME=/root
mkdir "$STF_PATH" "$FILEDIR"; chmod 755 "$w" "$STF_PATH" "$FILEDIR"
set +eu
. "$STF_SUITE/include/default.cfg"
link() { # link DIRECTORIES NAMES
  local name dir
  for name in $2; do
    [ -e "$STF_PATH/$name" ] || for dir in $1; do [ -f "$dir/$name" ] && { ln -s "$dir/$name" "$STF_PATH/$name"; break; }; done
  done
}
link "$w/bin" "zfs zinject"
# What is a parameter of the module and has its counterpart here is read at import.
cat >"$STF_PATH/zpool" <<END
#!/bin/bash
allow=zfs_allow_redacted_dataset_mount
[ "\$1" != import ] || "$w/bin/sanbox" tune \$allow="\$(cat /sys/module/zfs/parameters/\$allow)"
exec "$w/bin/zpool" "\$@"
END
link "/usr/sbin /sbin /usr/bin /bin" "raidz_test zgenhostid"
# OpenZFS's zstream asks its module about tokens.
printf '#!/bin/bash\n[ "$1" != token ] || exec "%s" zstream "$@"\nexec /usr/sbin/zstream "$@"\n' "$w/bin/sanbox" >"$STF_PATH/zstream"
# No cache file of OpenZFS's has our pools: zdb finds one by its devices, and reads what is on disk.
cat >"$STF_PATH/zdb" <<'END'
#!/bin/bash
found=()
for word; do
  name=${word%%[/@]*}
  [[ $word = [a-zA-Z]* ]] || continue
  devices=$(zpool list -vHP "$name" 2>/dev/null | grep -o '/[^[:space:]]*') || continue
  zpool sync "$name"
  for device in $devices; do found+=(-p "$device"); done
  break
done
exec /usr/sbin/zdb ${found:+-e} "${found[@]}" "$@"
END
chmod 755 "$STF_PATH/zdb" "$STF_PATH/zpool" "$STF_PATH/zstream"
# Mounts of other servers, which may end meanwhile: df fails then.
grep ' fuse' /proc/self/mounts | cut -d' ' -f2 | tac | xargs -r -n1 umount -l
mkdir "$w/module"; mount -t tmpfs module "$w/module"; mkdir "$w/module/upper" "$w/module/work"
if mount -t overlay module -o "lowerdir=/sys/module,upperdir=$w/module/upper,workdir=$w/module/work" /sys/module; then
  mkdir -p /sys/module/zfs/parameters
  for parameter in zfs_allow_redacted_dataset_mount zfs_zevent_len_max zfs_zevent_retain_max; do
    echo 0 >"/sys/module/zfs/parameters/$parameter"
  done
fi
# Tests that set an id of this host want none to be there before; what they write to /etc stays here.
mkdir "$w/module/etc" "$w/module/etc-work"
if mount -t overlay etc -o "lowerdir=/etc,upperdir=$w/module/etc,workdir=$w/module/etc-work" /etc; then rm -f /etc/hostid; fi
# mount(8) calls its helper by this path.
[ ! -e /sbin/mount.zfs ] || mount --bind "$w/bin/sanbox" /sbin/mount.zfs
ln -s "$w/bin/sanbox" "$STF_PATH/mount.zfs"
link "$STF_SUITE/bin" "$ZFSTEST_FILES"
link "/usr/local/bin /usr/bin /usr/sbin /bin /sbin" "$SYSTEM_FILES_COMMON $SYSTEM_FILES_LINUX"
ln -s /sbin/fsck.ext4 "$STF_PATH/fsck"; ln -s /sbin/mkfs.ext4 "$STF_PATH/newfs"

disks=()
unloop() { local disk; for disk in "${disks[@]}"; do losetup -d "/dev/$disk"; done; }
trap 'zpool export -a -f >/dev/null 2>&1; unloop; umount -l /sbin/mount.zfs /etc /sys/module "$w/module" 2>/dev/null; finish' EXIT
for i in 0 1 2; do
  truncate -s 4G "$FILEDIR/vdev$i"
  disk=$(losetup --show -f "$FILEDIR/vdev$i") || skip "no loop devices"
  disks+=("${disk#/dev/}")
done
export DISKS="${disks[*]}" KEEP=rpool __ZFS_POOL_EXCLUDE=rpool TESTFAIL_CALLBACKS= LOSETUP=/sbin/losetup
export ZFS_DBGMSG=$STF_SUITE/callbacks/zfs_dbgmsg.ksh ZFS_DMESG=$STF_SUITE/callbacks/zfs_dmesg.ksh
serve --mount

base=$STF_SUITE/tests/functional
run() { (cd "$(dirname "$1")" && PATH=$STF_PATH timeout -k 10 "${LIMIT_S:-120}" "$1") >"$2" 2>&1 </dev/null; }
script() { local end; for end in .ksh .sh .py; do [ -x "$1$end" ] && { echo "$1$end"; return 0; }; done; return 1; }
tests_of() { (cd "$base/$1" && find . -maxdepth 1 -name '*.ksh' -perm -u+x | sed 's#^\./##; s#\.ksh$##' | grep -vx -e setup -e cleanup | sort); }
declare -A tests; order=()
for what in "${want[@]}"; do
  if [ -d "$base/$what" ]; then group=$what list=$(tests_of "$what"); else group=${what%/*} list=${what##*/}; fi
  [ -n "${tests[$group]:-}" ] || order+=("$group")
  tests[$group]="${tests[$group]:-} $list"
done
: >"$out/zts.tsv"
for group in "${order[@]}"; do
  log=$out/logs/${group//\//_}
  ready=1; setup=$(script "$base/$group/setup") && { run "$setup" "$log.setup" || ready=0; }
  before=$(zpool list -H -o name)
  for name in ${tests[$group]}; do
    start=$SECONDS
    if [ $ready = 0 ]; then echo -e "FAIL\t$group/$name\t0\tsetup: $(grep -m1 -E 'ERROR|not found' "$log.setup" | cut -c1-160)"; continue; fi
    test=$(script "$base/$group/$name") || { echo -e "SKIP\t$group/$name\t0\tno such script"; continue; }
    run "$test" "$log.$name"; status=$?
    why=$(grep -m1 -E '^ERROR|not found' "$log.$name" | cut -c1-200)
    case $status in
    0) echo -e "PASS\t$group/$name\t$((SECONDS - start))\t" ;;
    4 | 5) echo -e "SKIP\t$group/$name\t$((SECONDS - start))\t$(grep -m1 -E 'UNSUPPORTED|UNTESTED|NOTE' "$log.$name" | cut -c1-160)" ;;
    *) echo -e "FAIL\t$group/$name\t$((SECONDS - start))\tstatus $status: $why" ;;
    esac
    kill -0 "$pid" 2>/dev/null || { echo "the server died in $group/$name" >&2; serve --mount; }
    case $status in 0 | 4 | 5) [ "$(zpool list -H -o name)" = "$before" ] && continue ;; esac
    # It failed, or the pools differ: back to what the group's setup made.
    cleanup=$(script "$base/$group/cleanup") && run "$cleanup" "$log.again"
    for pool in $(zpool list -H -o name); do zpool destroy -f "$pool"; done
    for disk in "${disks[@]}"; do wipefs -qa "/dev/$disk" >/dev/null 2>&1; done
    [ -z "$setup" ] || run "$setup" "$log.again" || echo "setup of $group failed after $name" >&2
  done >>"$out/zts.tsv"
  cleanup=$(script "$base/$group/cleanup") && run "$cleanup" "$log.cleanup"
  for pool in $(zpool list -H -o name); do zpool destroy -f "$pool"; done
done
count() { grep -c "^$1" "$out/zts.tsv"; }
grep -v ^PASS "$out/zts.tsv" | cut -c1-250
echo "interop zts: $(count PASS) passed, $(count FAIL) failed, $(count SKIP) skipped"
[ "$(count PASS)" -ge "${PASSES:-0}" ] || fail "fewer than $PASSES passed"
stop
