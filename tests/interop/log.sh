#!/bin/bash
# A pool that sanbox left as a crash would, with acknowledged changes in its intent logs only: the real kernel module
# imports it, replays the logs, and finds exactly what sanbox finds after its own replay of a copy: with the logs in the
# pool, on striped log devices, and on mirrored ones.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
w=$(mktemp -d); trap 'rm -rf "$w"' EXIT
mkdir "$w/share"
for kind in a_log_of_ours a_log_of_ours_on_striped_devices a_log_of_ours_on_mirrored_devices; do
    mkdir "$w/share/$kind"
    (cd "$root" && SANBOX_CRASHED_POOL=$w/share/$kind cargo test -q -p tests --test system -- --exact "intent_log::$kind") >"$w/made" 2>&1 || { tail -40 "$w/made"; exit 1; }
    [ -s "$w/share/$kind/expect" ] || { echo "interop log: no crashed pool was made by $kind" >&2; exit 1; }
done
cat >"$w/share/list.py" <<'P'
import hashlib, os, stat, sys
lines = []
def describe(name, path, full):
    s = os.lstat(full)
    what = ""
    if stat.S_ISREG(s.st_mode):
        what = "%d %s" % (s.st_size, hashlib.sha256(open(full, "rb").read()).hexdigest())
    elif stat.S_ISLNK(s.st_mode):
        what = os.readlink(full)
    attributes = sorted("%s=%s" % (n, hashlib.sha256(os.getxattr(full, n, follow_symlinks=False)).hexdigest())
                        for n in os.listxattr(full, follow_symlinks=False))
    lines.append("%s/%s %o %d %d %d %s [%s]" % (name, path, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, what, " ".join(attributes)))
for name in ("fs", "dirs", "direct"):
    top = "/crash/" + name
    describe(name, "", top)
    for base, dirs, files in os.walk(top):
        for entry in dirs + files:
            full = os.path.join(base, entry)
            describe(name, os.path.relpath(full, top), full)
print("\n".join(sorted(lines)))
P
cat >"$w/guest" <<'G'
set -eu
for kind in a_log_of_ours a_log_of_ours_on_striped_devices a_log_of_ours_on_mirrored_devices; do
mkdir /tmp/disks; cp --sparse=always /share/$kind/*.img /tmp/disks/
zpool import -f -d /tmp/disks crash
python3 /share/list.py >/tmp/found
diff /share/$kind/expect /tmp/found
zpool scrub -w crash
zpool status -v crash
zpool status crash | grep -q 'errors: No known data errors'
zpool export crash
rm -r /tmp/disks
echo "$kind: $(wc -l </tmp/found) files"
done
dmesg | grep -i 'replay\|read log block' && exit 1
echo LOG-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --share "$w/share" --timeout 1800 >"$w/out" 2>"$w/err" || { tail -n 40 "$w/out" "$w/err"; exit 1; }
grep -q LOG-OK "$w/out" || { tail -n 40 "$w/out" "$w/err"; exit 1; }
grep ' files$' "$w/out"
echo "interop log: the module replayed all three pools as sanbox did"
