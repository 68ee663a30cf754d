//! Mounts and what is set or done about them: what `canmount` takes along, what is on disk once a file system is unmounted, and
//! attributes that follow a property at once.

use std::time::{Duration, Instant};

use crate::cli::Place;
use crate::snapdir::can_mount;

fn pool(place: &Place) {
    let made = place.run(
        "truncate -s 128M a && zpool create -O mountpoint=$PWD/m tank $PWD/a && zfs create tank/b && zfs create tank/b/c && \
         zfs create -o mountpoint=$PWD/e tank/e && zfs mount -a && zfs mount | wc -l",
    );
    assert_eq!(made, "4\n");
}

#[test]
fn a_file_system_that_may_not_be_mounted_leaves_from_below_others() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    pool(&place);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check("echo x > m/b/c/f; zfs set canmount=off tank", "");
    check(
        "zfs mount | cut -d' ' -f1 | sort; cat m/b/c/f",
        "tank/b\ntank/b/c\ntank/e\nx\n",
    );
    // One that is busy keeps all where they are.
    check(
        "cd m/b/c; zfs set canmount=off tank/b 2>&1 | grep -c 'cannot unmount'; cd ../../..; zfs mount | wc -l; \
         zfs get -H -o value canmount tank/b; cat m/b/c/f",
        "1\n3\non\nx\n",
    );
    // Of one that is not mounted nothing moves.
    check("cd m/b/c; zfs set canmount=off tank", "");
    check("zfs unmount -a; zfs mount", "");
    place.stop();
}

#[test]
fn what_lies_below_another_mount_stays_when_that_goes() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    pool(&place);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "echo below > e/f; zfs unmount tank/b/c; zfs set mountpoint=$PWD/e tank/b/c; zfs mount -O tank/b/c; echo above > e/g; ls e",
        "g\n",
    );
    for way in ["zfs unmount tank/b/c", "umount e"] {
        check(
            &format!("{way}; sleep 0.3; ls e; zfs mount tank/b/c; ls e"),
            "f\ng\n",
        );
    }
    // One that is in use stays for who uses it, and the other comes back.
    check(
        "(cd e; zfs unmount -f tank/b/c; cat g); ls e; zfs mount tank/b/c; cat e/g",
        "above\nf\nabove\n",
    );
    // The one below cannot be reached.
    check(
        "zfs unmount tank/e 2>&1; cat e/g; zfs unmount tank/b/c && zfs unmount tank/e && ls e",
        "cannot unmount 'DIR/e': pool or dataset is busy\nabove\n",
    );
    check("zfs unmount -a; zfs mount", "");
    place.stop();
}

#[test]
fn what_was_written_is_on_disk_when_a_file_system_is_unmounted() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    pool(&place);
    assert_eq!(place.run("echo one > e/f; zfs unmount tank/e"), "");
    place.kill();
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(place.run("sanbox cat tank/e:/f"), "one\n");
    assert_eq!(
        place.run("zfs mount -a; echo two > e/f; echo three > m/b/f; zfs unmount -a"),
        ""
    );
    place.kill();
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(
        place.run("sanbox cat tank/e:/f; sanbox cat tank/b:/f"),
        "two\nthree\n"
    );
    place.stop();
}

#[test]
fn the_links_of_a_root_follow_snapdir_at_once() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    pool(&place);
    for _ in 0..3 {
        let links = place.run(
            "stat -c %h e m/b/c; zfs set snapdir=visible tank; stat -c %h e m/b/c; zfs set snapdir=hidden tank/e; stat -c %h e m/b/c; \
             zfs inherit snapdir tank/e; stat -c %h e; zfs inherit snapdir tank; stat -c %h e m/b/c",
        );
        assert_eq!(links, "2\n2\n3\n3\n2\n3\n3\n2\n2\n");
    }
    assert_eq!(place.run("zfs unmount -a"), "");
    place.stop();
}

#[test]
fn many_mounts_take_little_memory_and_end_together() {
    const MOUNTS: u64 = 60;
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0", "--mount", "--memory", "256M"]);
    let resident_mib = |place: &Place| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", place.pid()));
        let status = status.expect("the daemon runs");
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.expect("a resident size") / 1024
    };
    let made = place.run("truncate -s 512M a && zpool create -O mountpoint=$PWD/m tank $PWD/a");
    assert_eq!(made, "");
    // The first ones take what all of them share, and a mount that ends gives back what the next one may take.
    assert_eq!(
        place.run("for i in 1 2 3; do zfs create tank/x$i; zfs destroy tank/x$i; done"),
        ""
    );
    let before = resident_mib(&place);
    let line = format!(
        "for i in $(seq {MOUNTS}); do zfs create tank/d$i && dd if=/dev/zero of=m/d$i/f bs=128k count=1 status=none; done; \
         zfs mount | wc -l"
    );
    assert_eq!(place.run(&line), format!("{}\n", MOUNTS + 1));
    let taken = resident_mib(&place) - before;
    // Six threads each: their stacks, and of their buffers for requests what was used.
    assert!(taken < 3 * MOUNTS, "{taken} MiB by {MOUNTS} mounts");
    let began = Instant::now();
    place.stop();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?} for all mounts");
}

/// What a change of content by others than root takes from a program: set-id bits; and capabilities whoever changes it, or its owner. Each
/// through the mount whose kernel has cached it.
#[test]
fn changes_of_a_program_take_its_privileges() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    pool(&place);
    let ways = tests::root().join("tests/system/privileges.py");
    let ways = ways.display();
    let kept = "write 0 0o6777 []\nwrite 65534 0o777 []\ntruncate 0 0o6777 []\ntruncate 65534 0o777 []\nopen 0 0o6777 []\n\
                open 65534 0o777 []\nfallocate 0 0o6777 []\nfallocate 65534 0o777 []\nchown 0o777 []\n";
    for place_of_list in ["sa", "dir"] {
        let line =
            format!("zfs set xattr={place_of_list} tank/e; rm -rf e/*; python3 {ways} $PWD/e");
        assert_eq!(place.run(&line), kept, "xattr={place_of_list}");
    }
    place.stop();
}
