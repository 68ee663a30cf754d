//! Goal: what an administrator meets first is right: what is said at a terminal, what the history keeps, what `rpcinfo` lists, which
//! directories are left behind, what an end waits for.
//! Method: the programs run at a pseudo-terminal (script(1)), beside zdb and rpcinfo, and with mounts.

use tests::golden::Golden;
use tests::{oracle, skip};

use crate::cli::{Place, wait_for};
use crate::snapdir::can_mount;

/// What is said once at a terminal, without a daemon.
const NOTE: &str = "note: nothing is mounted or shared until 'sanbox serve' or 'sanbox mount' runs";

/// Runs a command at a terminal; returns what the terminal showed.
fn at_terminal(place: &Place, command: &str) -> String {
    place
        .run(&format!("script -qec '{command}' /dev/null"))
        .replace('\r', "")
}

#[test]
fn a_terminal_is_told_that_nothing_is_mounted_and_a_script_is_not() {
    let mut place = Place::new();
    place.run("truncate -s 128M a b");
    assert_eq!(
        at_terminal(&place, "zpool create tank $PWD/a"),
        format!("{NOTE}\n")
    );
    assert_eq!(
        at_terminal(&place, "zfs create tank/fs"),
        format!("{NOTE}\n")
    );
    assert_eq!(
        place.run("zfs create tank/quiet; zpool create lake $PWD/b"),
        ""
    );
    // What is printed is what a program reads: the note goes to standard error.
    assert_eq!(at_terminal(&place, "zfs create tank/other 2>/dev/null"), "");
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(at_terminal(&place, "zfs create tank/served"), "");
    place.stop();
}

/// The records of a pool's history, internal ones too, without what only one of two programs prints: empty lines, and how
/// long a request took.
fn records(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with("History"));
    let plain = |line: &str| match line.split_once(" (") {
        Some((time, rest)) if !time.contains(' ') => {
            let rest = rest.split_once("ms) ").map_or(rest, |(_, rest)| rest);
            format!("{time} {rest}")
        }
        _ => line.to_owned(),
    };
    lines
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(plain)
        .collect()
}

#[test]
fn the_history_of_openzfs_pools_is_what_zdb_prints() {
    if !oracle::has_zdb() {
        return;
    }
    // With requests and their arguments, a device that is missing, and an expansion.
    for name in [
        "h-snapshots",
        "o-features",
        "p1-degraded-raidz2",
        "q-raidz-expanded",
    ] {
        let golden = Golden::unpack(name).expect("a golden pool");
        let place = Place::new();
        let directory = golden.directory().display();
        let pool = &golden.name;
        place.run(&format!(
            "zpool import -f -o readonly=on -d {directory} {pool}"
        ));
        let ours = place.run(&format!("zpool history -i {pool}"));
        let theirs = place.run(&format!("zdb -h -e -p {directory} {pool} 2>/dev/null"));
        let (ours, theirs) = (records(&ours), records(&theirs));
        assert!(ours.len() > 5, "{name}: {ours:?}");
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn rpcinfo_lists_what_is_served() {
    let place = Place::new();
    if !place.run("command -v rpcinfo").contains("rpcinfo") {
        return skip(
            "rpcinfo",
            "it is not installed (tests/oracles/install clients)",
        );
    }
    if !place.run("unshare -n true").is_empty() {
        return skip(
            "rpcinfo",
            "no network namespace of its own, in which port 111 is free",
        );
    }
    place.run("truncate -s 128M a; zpool create tank $PWD/a; zfs create -o sharenfs=rw tank/fs");
    let said = place.run(
        "unshare -n sh -c 'ip link set lo up; sanbox serve --listen 127.0.0.1 --nbd-port 0 --https-port 0 2>log & \
         for try in $(seq 1200); do grep -qs ready log && break; sleep 0.1; done; \
         rpcinfo -p 127.0.0.1 | tr -s \" \"; rpcinfo -T tcp 127.0.0.1 nfs 3; rpcinfo -T tcp 127.0.0.1 nfs 4; \
         rpcinfo -T tcp 127.0.0.1 mountd 3; rpcinfo -T tcp 127.0.0.1 nlockmgr 4; rpcinfo -T udp 127.0.0.1 status 1; \
         kill $!; wait $!'",
    );
    let expect = " program vers proto port service
 100000 4 tcp 111 portmapper
 100000 3 tcp 111 portmapper
 100000 2 tcp 111 portmapper
 100003 3 tcp 2049 nfs
 100003 4 tcp 2049 nfs
 100005 3 tcp 2049 mountd
 100005 1 tcp 2049 mountd
 100021 4 tcp 2049 nlockmgr
 100021 4 udp 2049 nlockmgr
 100024 1 tcp 2049 status
 100024 1 udp 2049 status
program 100003 version 3 ready and waiting
program 100003 version 4 ready and waiting
program 100005 version 3 ready and waiting
program 100021 version 4 ready and waiting
program 100024 version 1 ready and waiting
";
    assert_eq!(said, expect);
}

/// Directories that were made for file systems go with the pool, if they are empty and their names follow from those of the
/// file systems.
// OpenZFS: lib/libzfs/libzfs_mount.c, remove_mountpoint
#[test]
fn empty_mount_directories_go_with_an_export() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.run(
        "truncate -s 128M a; mkdir root; zpool create -R $PWD/root tank $PWD/a; zfs create tank/one; zfs create tank/one/two; \
         zfs create -o mountpoint=/chosen tank/three",
    );
    place.serve(&["--nfs-port", "0", "--mount"]);
    let listed = "cd root && find . | sort";
    let mounted = place.run(listed);
    for directory in ["./tank/one/two", "./chosen"] {
        assert!(mounted.lines().any(|line| line == directory), "{mounted}");
    }
    // Below the mount, which hides it: it is there when the file system has gone.
    let kept = "zfs unmount -a 2>&1; touch root/tank/kept; zfs mount -a 2>&1";
    assert_eq!(place.run(kept), "");
    assert_eq!(place.run("zpool export tank"), "");
    assert_eq!(place.run(listed), ".\n./chosen\n./tank\n./tank/kept\n");
    // An import makes them again.
    assert_eq!(
        place.run("rm root/tank/kept; zpool import -R $PWD/root -d $PWD tank"),
        ""
    );
    assert_eq!(place.run(listed), mounted);
    assert_eq!(place.run("zpool destroy tank"), "");
    assert_eq!(place.run(listed), ".\n./chosen\n");
    place.stop();
}

/// With `-p` the datasets above are made, and mounted: what is written there is theirs.
// OpenZFS: lib/libzfs/libzfs_dataset.c, create_parents
#[test]
fn parents_that_are_made_are_mounted() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0", "--mount"]);
    let shown = place.run(
        "truncate -s 256M a; mkdir root; zpool create -R $PWD/root tank $PWD/a; zfs create -p tank/one/two/three; zfs unmount tank/one/two/three; \
         zfs create -p tank/one/two/three/four; zfs create -psV 8M tank/volumes/v; zfs snapshot tank/one/two@s; \
         zfs clone -p tank/one/two@s tank/x/y; zfs create tank/z; zfs rename -p tank/z tank/deep/er/z; zfs mount | cut -d ' ' -f 1 | sort",
    );
    let expect = "deep deep/er deep/er/z one one/two one/two/three/four volumes x x/y";
    let expect: Vec<String> = expect
        .split(' ')
        .map(|name| format!("tank/{name}"))
        .collect();
    assert_eq!(shown, format!("tank\n{}\n", expect.join("\n")));
    place.stop();
}

/// `overlay=off` wants an empty directory, unless `-O` is given.
// OpenZFS: lib/libzfs/libzfs_mount.c, zfs_mount_at
#[test]
fn a_directory_that_is_not_empty_is_mounted_over_as_overlay_says() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.run(
        "truncate -s 128M a; mkdir m; touch m/kept; zpool create -O mountpoint=none tank $PWD/a",
    );
    place.serve(&["--nfs-port", "0", "--mount"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "zfs create -o canmount=noauto -o mountpoint=$PWD/m tank/fs; zfs mount tank/fs; ls m; zfs unmount tank/fs",
        "",
    );
    check(
        "zfs set overlay=off tank/fs; zfs mount tank/fs; ls m",
        "kept\n! cannot mount 'tank/fs': directory 'DIR/m' is not empty\n",
    );
    check(
        "zfs mount -O tank/fs; ls m; zfs unmount tank/fs; ls m",
        "kept\n",
    );
    check(
        "rm m/kept; zfs mount tank/fs; zfs mount | grep -c tank/fs; zfs unmount tank/fs",
        "1\n",
    );
    place.stop();
}

/// `zpool sync -f` writes the labels though nothing has changed; without it they stay.
// OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_pool_sync
#[test]
fn a_forced_sync_writes_the_labels() {
    let mut place = Place::new();
    if !oracle::has_zdb() {
        return;
    }
    place.run("truncate -s 128M a; zpool create tank $PWD/a");
    place.serve(&["--nfs-port", "0"]);
    let label = || place.run("zdb -l a | grep '^    txg: '");
    place.run("zpool sync tank");
    let before = label();
    assert!(before.contains("txg: "), "{before}");
    place.run("zpool sync tank; zpool sync tank");
    assert_eq!(label(), before);
    place.run("zpool sync -f tank");
    assert_ne!(label(), before);
    place.stop();
}

/// An end that has to wait says for what: here for the file under a pool, which lies on the mount of a process that stands still.
#[test]
fn an_end_says_what_it_waits_for() {
    let (mut below, mut place) = (Place::new(), Place::new());
    if !can_mount(&below) {
        return;
    }
    below.run("truncate -s 512M a; mkdir m; zpool create -O mountpoint=$PWD/m base $PWD/a");
    below.serve(&["--nfs-port", "0", "--mount"]);
    let disk = format!("{}/m/disk", below.work());
    assert_eq!(
        place.run(&format!(
            "truncate -s 128M {disk}; zpool create tank {disk}"
        )),
        ""
    );
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(place.run("zfs create tank/fs"), "");
    signal(below.pid(), "-STOP");
    let pid = place.pid();
    signal(pid, "-TERM");
    let waits = "still waiting for mounts to be released and pools to be written out: 'tank' (";
    wait_for("the end is delayed", || {
        let log = place.log();
        log.contains(waits).then_some(()).ok_or(log)
    });
    signal(below.pid(), "-CONT");
    let daemon = place.take_daemon();
    let ended = daemon.expect("a daemon").wait().expect("its end");
    let log = place.log();
    assert!(
        ended.success() && log.ends_with("INFO sanbox: ended\n"),
        "{log}"
    );
    assert_eq!(place.run("zfs list -H -o name"), "tank\ntank/fs\n");
    below.stop();
}

fn signal(pid: u32, signal: &str) {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args([signal, &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// `zfs mount -R` takes several file systems, and mounts what lies below them, too.
#[test]
fn several_trees_are_mounted_by_one_command() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.run(
        "truncate -s 128M a; zpool create -O mountpoint=$PWD/m tank $PWD/a; zfs create -p tank/one/below; zfs create -p tank/two/below; \
         zfs create tank/three",
    );
    place.serve(&["--nfs-port", "0", "--mount"]);
    assert_eq!(
        place.run("zfs unmount -a; zfs mount -R tank/one tank/two; zfs mount | cut -d ' ' -f 1"),
        "tank/one\ntank/one/below\ntank/two\ntank/two/below\n"
    );
    let missing = place.run("zfs unmount -a; zfs mount -R tank/one tank/none; zfs mount");
    assert!(missing.contains("cannot open 'tank/none'"), "{missing}");
}
