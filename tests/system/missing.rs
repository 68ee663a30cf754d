//! Goal: a pool whose disks are away is shown as such, nothing is advised that would destroy it, and it comes back with its disks.
//! Method: the disks of a pool move to another directory between two processes.

use crate::cli::Place;

/// Runs a command line and compares what it prints.
fn check(place: &Place, line: &str, expect: &str) {
    assert_eq!(place.run(line), expect, "$ {line}");
}

#[test]
fn a_pool_without_its_disks_waits_for_them() {
    let place = Place::new();
    check(
        &place,
        "mkdir shelf && truncate -s 128M shelf/a shelf/b shelf/log shelf/c && \
         zpool create far mirror $PWD/shelf/a $PWD/shelf/b log $PWD/shelf/log spare $PWD/shelf/c && mv shelf away",
        "",
    );
    let shown = place.run("zpool status far | sed 's/  *$//'");
    let expect = "  pool: far
 state: FAULTED
status: One or more devices could not be opened.  There are insufficient
\treplicas for the pool to continue functioning.
action: Attach the missing device and online it using 'zpool online'.
   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-3C
config:
";
    assert!(shown.starts_with(expect), "{shown}");
    let rows: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("\tNAME"))
        .take_while(|line| !line.is_empty())
        .collect();
    let rows: Vec<String> = rows
        .iter()
        .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        rows,
        [
            "NAME STATE READ WRITE CKSUM",
            "far UNAVAIL 0 0 0 insufficient replicas",
            "mirror-0 UNAVAIL 0 0 0 insufficient replicas",
            "DIR/shelf/a UNAVAIL 0 0 0 cannot open",
            "DIR/shelf/b UNAVAIL 0 0 0 cannot open",
            "logs",
            "DIR/shelf/log UNAVAIL 0 0 0 cannot open",
            "spares",
            "DIR/shelf/c UNAVAIL cannot open",
        ],
        "{shown}"
    );
    // Every command names the pool, and fails.
    for line in [
        "zfs list",
        "zfs list far",
        "zpool get size far",
        "zpool history",
        "zpool iostat",
    ] {
        let said = place.run(line);
        assert!(said.starts_with("! cannot open 'far': "), "{line}: {said}");
        assert!(said.ends_with("[1]\n"), "{line}: {said}");
    }
    check(&place, "zpool list -H -o name,health", "far\tFAULTED\n");
    check(
        &place,
        "zpool status -j far | grep -o 'ZFS-8000-..' | head -n 1",
        "ZFS-8000-3C\n",
    );
    // With one of them the pool is whole enough, but for its log: that has words of its own.
    check(&place, "mkdir shelf && mv away/a shelf", "");
    let shown = place.run("zpool status far");
    assert!(shown.contains("ZFS-8000-K4"), "{shown}");
    assert!(shown.contains("zpool import -m far"), "{shown}");
    assert!(
        shown.contains("mirror-0") && shown.contains("DEGRADED"),
        "{shown}"
    );
    check(
        &place,
        "mv away/* shelf; zpool online far $PWD/shelf/b; zpool status -x",
        "all pools are healthy\n",
    );
}

#[test]
fn disks_of_another_pool_are_named_as_such() {
    let place = Place::new();
    check(
        &place,
        "truncate -s 128M a b && zpool create tank $PWD/a && zpool create lake $PWD/b && zpool export lake && \
         mkdir aside && mv a aside && mv b a",
        "",
    );
    // Devices in use are waited for, for five seconds; one of another pool is not in use. Other work of the machine may hold up a
    // command, but not each time.
    let took = (0..5).map(|_| {
        let began = std::time::Instant::now();
        let shown = place.run("zpool status tank");
        assert!(shown.contains("ZFS-8000-3C"), "{shown}");
        assert!(shown.contains("part of pool 'lake'"), "{shown}");
        began.elapsed()
    });
    let took = took.min().expect("of several");
    assert!(took.as_secs() < 5, "{took:?}");
    check(&place, "mv a aside/b; truncate -s 128M a", "");
    let shown = place.run("zpool status tank");
    assert!(shown.contains("ZFS-8000-5E"), "{shown}");
    assert!(
        shown.contains("UNAVAIL      0     0     0  invalid label"),
        "{shown}"
    );
    assert!(!shown.contains("Destroy"), "{shown}");
    check(
        &place,
        "mv aside/a a; zpool status -x",
        "all pools are healthy\n",
    );
}

/// What OpenZFS says when the label of a half is gone, or another device lies under its name: others make up for it, and a device
/// that is there need not be attached.
// OpenZFS: lib/libzfs/libzfs_status.c, check_status; lib/libzfs/libzfs_pool.c, zpool_state_to_name
#[test]
fn devices_with_another_content_are_replaced() {
    let place = Place::new();
    check(
        &place,
        "truncate -s 128M a b c d && zpool create tank mirror $PWD/a $PWD/b mirror $PWD/c $PWD/d && zpool export tank && \
         zpool import -d $PWD tank && dd if=/dev/zero of=b bs=1M count=128 conv=notrunc 2>/dev/null",
        "",
    );
    let shown = place.run("zpool status tank");
    assert!(shown.contains(" state: DEGRADED"), "{shown}");
    assert!(shown.contains("ZFS-8000-4J"), "{shown}");
    assert!(
        shown.contains("Replace the device using 'zpool replace'."),
        "{shown}"
    );
    assert!(
        shown.contains("UNAVAIL      0     0     0  invalid label"),
        "{shown}"
    );
    check(
        &place,
        "truncate -s 128M x; zpool create lake $PWD/x && zpool export lake && mv x b",
        "",
    );
    let shown = place.run("zpool status tank");
    assert!(shown.contains("ZFS-8000-4J"), "{shown}");
    assert!(
        shown.contains("FAULTED      0     0     0  corrupted data"),
        "{shown}"
    );
    // A device that is away is another matter, and the graver one.
    check(&place, "mkdir away; mv d away", "");
    let shown = place.run("zpool status tank");
    assert!(shown.contains("ZFS-8000-2Q"), "{shown}");
    check(
        &place,
        "mv away/d d; zpool replace -f tank $PWD/b; zpool wait tank; zpool status -x",
        "all pools are healthy\n",
    );
}
