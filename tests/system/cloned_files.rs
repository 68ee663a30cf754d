//! Goal: files that are copied within a file system share their blocks, and nothing of that is seen but the space. Method: cp(1) and
//! `copy_file_range(2)` through a mount, beside plain copies in another directory; the daemon is killed; zdb and OpenZFS's own code
//! judge, which destroys the file system in the end.

use tests::oracle;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// Ranges within a file and between two, at the ends of blocks and not; what each call answers.
const RANGES: &str = r#"
import errno, os
block = 128 << 10
def copy(source, at, target, to, length):
    """As cp does it: with what is left until nothing is."""
    done = 0
    while done < length:
        n = os.copy_file_range(source, target, length - done, at + done, to + done)
        if n == 0:
            break
        done += n
    return done
def both(at, to, length, same):
    answers = []
    for directory in ("cloned", "plain"):
        source = os.open(f"m/{directory}/big", os.O_RDWR)
        target = source if same else os.open(f"m/{directory}/other", os.O_RDWR | os.O_CREAT)
        if directory == "cloned":
            try:
                answers.append(copy(source, at, target, to, length))
            except OSError as error:
                answers.append(errno.errorcode[error.errno])
        else:
            bytes = os.pread(source, length, at)
            answers.append(os.pwrite(target, bytes, to))
    return answers
# Not on disk yet when it is cloned.
for directory in ("cloned", "plain"):
    file = os.open(f"m/{directory}/big", os.O_RDWR)
    os.pwrite(file, b"new", 2 * block + 7)
for at, to, length, same in [
    (0, 0, 5 * block, False),
    (block, 7 * block, 2 * block, False),
    (block, 0, block + 1000, False),
    (100, 3 * block, 2 * block, False),
    (0, 30 * block, block, True),
    (4 * block, 100, 100, True),
    (100, 4 * block, 100, True),
    (23 << 20, 40 * block, 9 << 20, False),
    (24 << 20, 0, block, False),
]:
    cloned, plain = both(at, to, length, same)
    if cloned != plain:
        print(at, to, length, same, cloned, plain)
for at, to in [(0, 1), (block, 0)]:
    file = os.open("m/cloned/big", os.O_RDWR)
    try:
        print("overlap:", os.copy_file_range(file, file, 2 * block, at, to))
    except OSError as error:
        print("overlap:", errno.errorcode[error.errno])
"#;

#[test]
fn copies_within_a_mount_are_clones() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    let made = place.run(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create -o mountpoint=$PWD/m tank/fs",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    // cp takes a file for sparse that has no blocks on disk, and clones none then.
    let copied = place.run(
        "mkdir m/cloned m/plain; head -c 25165824 /dev/urandom > big; cp big m/cloned/big; cp big m/plain/big; zpool sync tank; \
         cp m/cloned/big m/cloned/two && zpool sync tank && cp m/cloned/two m/cloned/three && cmp big m/cloned/two && cmp big m/cloned/three; \
         for n in 1 511 512 4096 5000 131072 131073 400000; do head -c $n big > m/plain/s$n; head -c $n big > m/cloned/o$n; \
           cp m/cloned/o$n m/cloned/s$n; cmp m/cloned/s$n m/plain/s$n; rm m/cloned/o$n; done",
    );
    assert_eq!(copied, "");
    let saved = "zpool sync tank; zpool get -Hpo value bclonesaved tank";
    let bytes: u64 = place.run(saved).trim().parse().expect("a number");
    assert!(bytes >= 48 << 20, "{bytes} bytes are shared");
    std::fs::write(place.path("work").join("ranges.py"), RANGES).expect("a program");
    assert_eq!(
        place.run("python3 ranges.py"),
        "overlap: EINVAL\noverlap: EINVAL\n"
    );
    // A clone that is written to is a file of its own again, as far as it was written to.
    let changed = place.run(
        "cmp m/cloned/big m/plain/big; cmp m/cloned/other m/plain/other; \
         printf x | dd of=m/cloned/two bs=1 seek=1000000 conv=notrunc status=none; cmp big m/cloned/three; \
         cmp big m/cloned/two | grep -o '[0-9]*,' ; sync m/cloned/two",
    );
    assert_eq!(changed, "1000001,\n");
    // What was synced outlives a kill: the log has clones.
    let synced = place.run("cp m/cloned/three m/cloned/four && sync m/cloned/four");
    assert_eq!(synced, "");
    place.kill();
    place.run("fusermount3 -uqz m || umount -l m");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let there = place.run(
        "cmp big m/cloned/four; rm m/cloned/three m/cloned/big; cmp big m/cloned/four; zfs snapshot tank/fs@kept; \
         rm m/cloned/four m/cloned/two",
    );
    assert_eq!(there, "");
    place.stop();
    let directory = place.path("work");
    assert_eq!(place.run("zpool export tank"), "");
    oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing wrong");
    if oracle::refpool().is_none() {
        return tests::skip("clones and OpenZFS's own code", "refpool is not built");
    }
    let images = [directory.join("disk")];
    let operations = ["destroy:tank/fs@kept", "destroy:tank/fs"].map(str::to_owned);
    oracle::refpool_does("tank", &images, &operations).expect("OpenZFS frees the clones");
    oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing left");
}
