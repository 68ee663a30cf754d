#!/usr/bin/env python3
"""Makes golden pools of versions before features, with their manifests (tests/golden/README.md says what these hold).

    golden_old.py OUT NAME VERSION ZPL LAYOUT IMAGES [-- COMMAND...]

OUT is where NAME.tar.zst and NAME.json.zst go; LAYOUT is single, mirror, raidz or raidz2 of IMAGES devices. The pool is made by
the zpool and zfs in the PATH: those of zfs-fuse 0.7 (versions 1 to 23; its daemon must run), or those of a kernel with
OpenZFS (versions up to 28, `-d`; DEVICES in the environment then names the devices, whose images the caller packs: the manifest
is written to OUT and nothing is packed).
"""
import hashlib, json, os, random, stat, subprocess, sys

out, name, version, zpl, layout, count = sys.argv[1:7]
version, zpl, count = int(version), int(zpl), int(count)
devices = os.environ.get("DEVICES", "").split()
mount = os.environ.get("MOUNTS", "/tmp/golden-old") + "/" + name
commands = []


def run(*words):
    commands.append(" ".join(words))
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)


def fill(top, seed):
    rnd = random.Random(seed)
    put(f"{top}/empty", b"")
    put(f"{top}/small", b"hello\n")
    put(f"{top}/odd", rnd.randbytes(1000))
    put(f"{top}/text", b"".join(b"line %d of a compressible text\n" % i for i in range(6000)))
    with open(f"{top}/sparse", "wb") as file:
        for at, data in ((3 << 20, b"middle"), (9 << 20, b"end")):
            file.seek(at)
            file.write(data)
        file.truncate(12 << 20)
    os.makedirs(f"{top}/d/e/f")
    put(f"{top}/d/e/f/deep", b"deep")
    os.mkdir(f"{top}/many")
    for i in range(120):
        put(f"{top}/many/a file of many in one directory, number {i:04d}", b"%d" % i)
    os.symlink("small", f"{top}/short")
    os.symlink("x" * 300, f"{top}/long")
    os.link(f"{top}/odd", f"{top}/d/odd-link")
    os.mkfifo(f"{top}/fifo")
    put(f"{top}/mode", b"1")
    os.chmod(f"{top}/mode", 0o4751)
    os.chown(f"{top}/mode", 1234, 5678)
    put(f"{top}/d/uni-\u00e9\u4e2d", b"u")
    os.utime(f"{top}/small", ns=(10**18, 11 * 10**17 + 5000))
    for i in range(3):
        os.mkdir(f"{top}/d/sub{i}")


def change(top, seed):
    rnd = random.Random(seed)
    with open(f"{top}/text", "r+b") as file:
        file.seek(140000)
        file.write(rnd.randbytes(3000))
    os.rename(f"{top}/odd", f"{top}/d/renamed")
    os.remove(f"{top}/empty")
    for i in range(0, 120, 3):
        os.remove(f"{top}/many/a file of many in one directory, number {i:04d}")
    put(f"{top}/new{seed}", rnd.randbytes(3000))


def entry(top, path, below):
    full = f"{top}/{path}" if path else top
    st = os.lstat(full)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}
    kind = kinds[stat.S_IFMT(st.st_mode)]
    one = {"path": path, "type": kind, "mode": f"{stat.S_IMODE(st.st_mode):04o}", "uid": st.st_uid, "gid": st.st_gid,
           "mtime_ns": st.st_mtime_ns, "nlink": st.st_nlink, "obj": st.st_ino}
    if not devices:
        # The file system in userland shows seconds, and number 1 for every root.
        one["mtime"] = one.pop("mtime_ns") // 10**9
        if not path:
            one["obj"] = None
    if kind == "file":
        with open(full, "rb") as file:
            one.update(size=st.st_size, sha256=hashlib.sha256(file.read()).hexdigest())
    if kind == "symlink":
        one["target"] = os.readlink(full)
    return one


def tree(top, below):
    entries = [entry(top, "", below)]
    for place, dirs, files in os.walk(top):
        if place == top:
            dirs[:] = [d for d in dirs if d not in below and d != ".zfs"]
        for item in dirs + files:
            entries.append(entry(top, os.path.relpath(f"{place}/{item}", top), below))
        dirs[:] = [d for d in dirs if not os.path.islink(f"{place}/{d}")]
    return {"entries": sorted(entries, key=lambda e: e["path"].encode())}


trees = {}


def below(dataset):
    listed = run("zfs", "list", "-H", "-r", "-o", "name", "-t", "filesystem", dataset).split()
    commands.pop()
    return {d[len(dataset) + 1:].split("/")[0] for d in listed if d != dataset}


def top_of(dataset):
    return mount + dataset[len(name):]


def record(dataset, as_name=None):
    os.sync()
    trees[as_name or dataset] = tree(top_of(dataset), below(dataset))


def snapshot(dataset, short):
    record(dataset, f"{dataset}@{short}")
    run("zfs", "snapshot", f"{dataset}@{short}")


def main():
    images = []
    if not devices:
        os.makedirs(f"{out}/{name}.d", exist_ok=True)
        for i in range(count):
            path = f"{out}/{name}.d/d{i}.img"
            with open(path, "wb") as file:
                file.truncate(64 << 20)
            images.append(path)
    group = [] if layout == "single" else [layout]
    options = ["-o", f"version={version}", "-O", f"version={zpl}", "-m", mount]
    run("zpool", "create", *(["-f"] if devices else []), *options, name, *group, *(devices or images))
    fill(mount, 1)
    sets = [("lzjb", ["-o", "compression=lzjb", "-o", "recordsize=4k", "-o", "checksum=sha256"]), ("fs", [])]
    if version >= 5:
        sets.append(("gzip", ["-o", "compression=gzip-9"]))
    if version >= 2:
        sets.append(("copies", ["-o", "copies=2"]))
    if zpl > 1:
        sets.append(("zpl1", ["-o", "version=1"]))
    for short, wanted in sets:
        run("zfs", "create", *wanted, f"{name}/{short}")
        fill(f"{mount}/{short}", len(short))
    snapshot(name, "s1")
    snapshot(f"{name}/fs", "s1")
    snapshot(f"{name}/lzjb", "s1")
    change(f"{mount}/fs", 1)
    snapshot(f"{name}/fs", "s2")
    run("zfs", "clone", f"{name}/fs@s1", f"{name}/clone")
    change(f"{mount}/clone", 2)
    snapshot(f"{name}/clone", "c1")
    os.remove(f"{mount}/fs/text")
    os.remove(f"{mount}/clone/sparse")
    snapshot(f"{name}/fs", "s3")
    put(f"{mount}/fs/late", b"late\n")
    if version >= 18:
        run("zfs", "hold", "keep", f"{name}/fs@s2")
    if version >= 15 and zpl >= 4:
        run("zfs", "set", "userquota@1234=10M", f"{name}/fs")
    run("zfs", "set", "quota=40M", f"{name}/fs")
    if version >= 5:
        run("zfs", "set", "golden:property=value", f"{name}/fs")
    shown = [c for c in commands]
    for dataset in run("zfs", "list", "-H", "-r", "-o", "name", "-t", "filesystem", name).split():
        record(dataset)
    get, kinds = {}, {}
    for line in run("zfs", "get", "-rHp", "-o", "name,property,value,source", "all", name).splitlines():
        dataset, prop, value, source = line.split("\t")
        get.setdefault(dataset, {})[prop] = [value, source]
    guids = {}
    for dataset in get:
        guid = get[dataset].get("guid")
        guids[dataset] = guid[0] if guid else None
    zget = {}
    for line in run("zpool", "get", "all", name).splitlines()[1:]:
        words = line.split()
        zget[words[1]] = [words[2], words[3]]
    run("zpool", "export", name)
    guids = {d: guids[d] or guid_by_zdb(d, images) for d in guids}
    manifest = {
        "zpool_create": shown[0], "commands": shown[1:], "state": "exported",
        "images": [{"file": f"d{i}.img", "device_in_vm": d} for i, d in enumerate(devices or images)],
        "datasets": {d: {"type": "snapshot" if "@" in d else "filesystem", "guid": guids[d], "tree": trees[d]} for d in get},
        "zfs_get": get, "zpool_get": zget,
    }
    with open(f"{out}/{name}.json", "w") as file:
        json.dump(manifest, file, indent=1, sort_keys=True)
    subprocess.run(["zstd", "-q", "-19", "-f", "--rm", f"{out}/{name}.json"], check=True)
    if not devices:
        files = [os.path.basename(i) for i in images]
        pack = f"tar --sparse -C {out}/{name}.d -cf - {' '.join(files)} | zstd -q --ultra -22 --long=27 -f -o {out}/{name}.tar.zst"
        subprocess.run(pack, shell=True, check=True)


def guid_by_zdb(dataset, images):
    """The guid of a dataset of which `zfs get` shows none."""
    where = os.path.dirname(images[0]) if images else os.environ["ZDB_DIR"]
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    def zdb(*words):
        done = subprocess.run(["/usr/sbin/zdb", "-e", "-p", where, *words], capture_output=True, text=True, env=env)
        return done.stdout

    number = zdb("-d", dataset).split(f"Dataset {dataset} [")[1].split(", ID ")[1].split(",")[0]
    for line in zdb("-dddd", name, number).splitlines():
        if "guid = " in line and "fsid" not in line:
            return line.split("guid = ")[1].split()[0]
    sys.exit(f"zdb tells no guid of {dataset}")


main()
