#!/bin/bash
# A full pool, through FUSE and through NFS (libnfs's tools): writing ends in "no space", what was acknowledged before is
# there byte for byte, deleting works on the full pool and gives the space back, and then writing works again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || skip "needs root and /dev/fuse"
command -v nfs-cp >/dev/null || skip "nfs-cp (Debian: libnfs-utils) is not installed"
truncate -s 192M "$w/disks/d0"
zpool create -O mountpoint="$w/mnt" -O sharenfs=rw,no_root_squash -O compression=off tank "$w/disks/d0"
serve --mount
head -c 3000000 /dev/urandom >"$w/piece"
url="nfs://127.0.0.1$w/mnt"; options="nfsport=$port&mountport=$port&version=3"
sum=$(sha256sum <"$w/piece")
free() { zfs get -Hp -o value available tank; }
# fill HOW PREFIX: writes pieces until one is refused; kept ones are listed in $w/kept
fill() {
  local n=0
  while [ $n -lt 200 ]; do
    if [ "$1" = fuse ]; then
      # dd says when fsync fails; cp would not ask.
      dd if="$w/piece" of="$w/mnt/$2$n" bs=128k conv=fsync 2>"$w/err" || break
    else
      nfs-cp "$w/piece" "$url/$2$n?$options" >"$w/err" 2>&1 || break
    fi
    echo "$2$n" >>"$w/kept"; n=$((n + 1))
  done
  [ $n -lt 200 ] || fail "the pool never filled ($1)"
  [ $n -gt 20 ] || fail "$1: full after $n pieces: $(cat "$w/err")"
  # nfs-cp does not always say why: then a local writer must be told the same thing.
  if [ "$1" = nfs ] && ! grep -q NOSPC "$w/err"; then
    ! dd if="$w/piece" of="$w/mnt/asked" bs=128k conv=fsync 2>"$w/err" || fail "nfs was refused, fuse was not"
    rm -f "$w/mnt/asked"
  fi
  grep -qiE 'no space|NOSPC|ENOSPC' "$w/err" || fail "$1: refused with: $(cat "$w/err")"
  echo "interop full: $1: $n pieces of 3 MB, then: $(grep -iE 'no space|NOSPC' "$w/err" | head -1 | grep -oiE 'no space left on device|[a-z0-9_]*NOSPC[a-z]*' | head -1)"
}
check() {
  local piece
  while read -r piece; do
    [ "$(sha256sum <"$w/mnt/$piece")" = "$sum" ] || fail "$piece, which was acknowledged, differs"
  done <"$w/kept"
}
for how in fuse nfs; do
  : >"$w/kept"
  before=$(free)
  fill $how "$how."
  check
  [ "$(zpool list -H -o health tank)" = ONLINE ] || fail "the pool is not online when full"
  # Small changes of a full pool: refused or done, never half.
  for n in $(seq 50); do { echo small >"$w/mnt/small.$n"; } 2>/dev/null || break; done
  # The server killed while the pool is full: what was acknowledged is there afterwards.
  kill -9 $pid; wait $pid 2>/dev/null || true; pid=
  umount -l "$w/mnt" 2>/dev/null || true
  : >"$w/log"; serve --mount
  check
  rm "$w/mnt/$how.0" || fail "deleting on a full pool"
  find "$w/mnt" -type f -delete || fail "deleting on a full pool"
  sync -f "$w/mnt"; zpool sync tank
  for _ in $(seq 50); do [ "$(free)" -gt $((before * 9 / 10)) ] && break; zpool sync tank; done
  [ "$(free)" -gt $((before * 9 / 10)) ] || fail "deleting gave back $(free) of $before bytes"
  echo "interop full: $how: all kept pieces equal after kill -9, everything deleted, $(free) of $before bytes free again"
done
# And again, by overwriting in place on the full pool: copy on write needs room only for a moment.
: >"$w/kept"; fill fuse again.
for _ in 1 2 3; do
  dd if="$w/piece" of="$w/mnt/again.0" bs=128k conv=notrunc,fsync 2>"$w/err" || grep -qi 'no space' "$w/err" || fail "overwriting: $(cat "$w/err")"
done
while read -r piece; do [ "$piece" = again.0 ] || echo "$piece"; done <"$w/kept" >"$w/kept.rest"; mv "$w/kept.rest" "$w/kept"; check
find "$w/mnt" -type f -delete
# Freed space can be used again when the transaction groups of the deletion are on disk.
zpool sync tank; zpool sync tank
cp "$w/piece" "$w/mnt/last" && cmp "$w/piece" "$w/mnt/last" || fail "writing after deleting"
stop
judge tank
echo "interop full: zdb clean"
