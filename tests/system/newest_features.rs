//! Goal: the features that OpenZFS 2.3 enables by default are enabled in new pools, are written as they say, and can be added to older pools.
//! Method: pools are made with and without them, used, upgraded one feature at a time, and judged by zdb, which compares counts of features and
//! accounts for the objects, and by OpenZFS's own code, which imports and writes them.

use tests::oracle;

use crate::cli::{Place, wait_for};

/// Those that 2.1 does not have, or that we did not enable before.
const NEWEST: &[&str] = &[
    "resilver_defer",
    "bookmark_written",
    "zilsaxattr",
    "head_errlog",
    "vdev_zaps_v2",
    "large_microzap",
];

fn judge(place: &mut Place) {
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    let directory = place.path("work");
    oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing");
    if oracle::refpool().is_some() {
        let images = [directory.join("disk")];
        oracle::refpool_does("tank", &images, &["tank@theirs".to_owned()])
            .expect("OpenZFS writes the pool");
        oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing after OpenZFS");
    }
    assert_eq!(
        place.run("zpool import -d $PWD/disk tank && (zfs destroy tank@theirs 2>/dev/null; zpool scrub -w tank && zpool status -x tank)"),
        "pool 'tank' is healthy\n"
    );
}

fn state(place: &Place, feature: &str) -> String {
    let line = format!("zpool get -Hpo value feature@{feature} tank");
    place.run(&line).trim().to_owned()
}

#[test]
fn new_pools_have_every_feature() {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zpool get -H all tank | grep feature@ | \
         grep disabled | wc -l",
    );
    assert_eq!(made, "0\n", "features that are not enabled");
    for (feature, active) in NEWEST
        .iter()
        .map(|name| (*name, matches!(*name, "head_errlog" | "vdev_zaps_v2")))
    {
        let wanted = if active { "active" } else { "enabled" };
        assert_eq!(state(&place, feature), wanted, "{feature}");
    }
    // A log activates zilsaxattr, a bookmark of a snapshot that is written to bookmark_written.
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let used = place.run(
        "zfs create -o sync=always tank/fs && head -c 300000 /dev/urandom > f && sanbox put f tank/fs:/f && zfs snapshot tank/fs@a && \
         zfs bookmark tank/fs@a tank/fs#a && zpool sync tank",
    );
    assert_eq!(used, "");
    assert_eq!(state(&place, "zilsaxattr"), "active");
    assert_eq!(state(&place, "bookmark_written"), "active");
    judge(&mut place);
    // Counts go down again.
    assert_eq!(
        place.run("zfs destroy tank/fs#a; zfs destroy -r tank/fs; zpool sync tank"),
        ""
    );
    assert_eq!(state(&place, "zilsaxattr"), "enabled");
    assert_eq!(state(&place, "bookmark_written"), "enabled");
    judge(&mut place);
}

#[test]
fn older_pools_get_each_feature_by_itself() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none tank $PWD/disk && \
         zfs create tank/fs && head -c 300000 /dev/urandom > f && sanbox put f tank/fs:/f && zfs snapshot tank/fs@a && \
         zpool get -H all tank | grep feature@ | grep disabled | wc -l; zpool set compatibility=off tank",
    );
    assert!(
        made.trim().parse::<u32>().is_ok_and(|count| count > 5),
        "{made}"
    );
    for feature in NEWEST {
        if state(&place, feature) == "disabled" {
            let set = place.run(&format!("zpool set feature@{feature}=enabled tank"));
            assert_eq!(set, "", "{feature}");
        }
        place.stop();
        assert_eq!(place.run("zpool export tank"), "");
        oracle::zdb_clean(&place.path("work"), "tank")
            .unwrap_or_else(|error| panic!("{feature}: {error}"));
        assert_eq!(place.run("zpool import -d $PWD/disk tank"), "");
    }
    assert_eq!(state(&place, "vdev_zaps_v2"), "active");
    let upgraded = place
        .run("zpool upgrade tank; zpool get -H all tank | grep feature@ | grep disabled | wc -l");
    assert!(upgraded.ends_with("\n0\n"), "{upgraded}");
    judge(&mut place);
}

#[test]
fn damage_is_told_of_for_snapshots_and_clones() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/fs && \
         head -c 300000 /dev/urandom > f && sanbox put f tank/fs:/f && sanbox put f tank/fs:/whole && zfs snapshot tank/fs@a && \
         zfs clone tank/fs@a tank/clone && zfs snapshot tank/clone@b && zfs clone tank/clone@b tank/second && zpool sync tank",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    // The first plain file.
    let object = place.run("sanbox sums tank/second | awk '$3 == 19 { print $2; exit }'");
    let object: u64 = object.trim().parse().expect("a number");
    let numbers = place.run("zfs get -Hpo value objsetid tank/second");
    let objset: u64 = numbers.trim().parse().expect("a number");
    place.run(&format!(
        "zinject -a -b {objset:x}:{object:x}:0:0 -e checksum tank; sanbox get tank/second:/f x"
    ));
    let told = place.run(
        "zinject -c all >/dev/null; zpool sync tank; zpool status -v tank | sed -n '/errors:/,$p'",
    );
    for holder in [
        "tank/second:/f",
        "tank/clone:/f",
        "tank/clone@b:/f",
        "tank/fs:/f",
        "tank/fs@a:/f",
    ] {
        assert!(told.contains(holder), "{holder}: {told}");
    }
    assert!(!told.contains("whole"), "{told}");
    // Written to a log of the head, it is there after a restart; what is overwritten is whole again there.
    place.kill();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let put = place.run("sanbox put f tank/fs:/f 2>&1; sanbox rm tank/clone:/f; zpool sync tank; zpool status -v tank | sed -n '/errors:/,$p'");
    assert!(
        put.contains("tank/second:/f")
            && put.contains("tank/fs@a:/f")
            && put.contains("tank/clone@b:/f"),
        "{put}"
    );
    assert!(!put.contains("tank/clone:/f"), "{put}");
    // Met in the second clone, it is of that one's log, which has the snapshots' damage after a promotion, and goes when it does.
    let second = errors_by_head(&place);
    assert_eq!(second.len(), 1, "{second:?}");
    assert_eq!(place.run("zfs promote tank/clone && zfs promote tank/second && zfs promote tank/clone && zpool sync tank"), "");
    let clone = errors_by_head(&place);
    assert_eq!(clone.len(), 1, "{clone:?}");
    assert_ne!(clone, second);
    assert_eq!(
        place.run("zfs promote tank/fs && zpool sync tank && zfs destroy tank/second"),
        ""
    );
    let fs = errors_by_head(&place);
    assert_eq!(fs.len(), 1, "{fs:?}");
    assert_ne!(fs, clone);
    assert_eq!(place.run("zpool status -v tank | grep -c fs@a:/f"), "1\n");
    assert_eq!(
        place.run("zfs destroy -r tank/clone; zfs destroy -r tank/fs && zpool sync tank"),
        ""
    );
    assert_eq!(errors_by_head(&place), Vec::<String>::new());
    assert_eq!(
        place.run("zpool status -x tank"),
        "pool 'tank' is healthy\n"
    );
    judge(&mut place);
}

#[test]
fn a_device_that_comes_during_a_resilver_waits_for_the_next() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 512M disk b c d && zpool create -O mountpoint=none -O compression=off tank $PWD/disk $PWD/b && \
         head -c 400000000 /dev/urandom > f && sanbox put f tank:/f && zpool sync tank",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    place.run("zinject -d $PWD/disk -D 10:1 -T read tank; zinject -d $PWD/b -D 10:1 -T read tank; zpool attach tank $PWD/disk $PWD/c");
    wait_for("a part of the resilver", || {
        let said = place.run("zpool status tank");
        let done = said
            .split("% done")
            .next()
            .and_then(|before| before.rsplit([' ', '\t', ',']).next())
            .and_then(|text| text.parse::<f64>().ok());
        done.filter(|done| *done > 15.0).ok_or(said)
    });
    assert_eq!(place.run("zpool attach tank $PWD/b $PWD/d"), "");
    let said = place.run("zpool status tank");
    assert!(said.contains("(awaiting resilver)"), "{said}");
    assert_eq!(state(&place, "resilver_defer"), "active");
    place.run("zinject -c all");
    // Between the two no resilver runs.
    wait_for("both resilvers", || {
        let said = place.run("zpool status tank");
        let all = !said.contains("resilvering)") && !said.contains("awaiting");
        all.then_some(()).ok_or(said)
    });
    assert_eq!(place.run("zpool sync tank"), "");
    assert_eq!(state(&place, "resilver_defer"), "enabled");
    let alone = place.run("zpool detach tank $PWD/disk && zpool detach tank $PWD/b && zpool scrub -w tank && rm -f g && \
         sanbox get tank:/f g && cmp f g; zpool status -x tank");
    assert_eq!(alone, "pool 'tank' is healthy\n");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    std::fs::remove_file(place.path("work").join("disk")).expect("removed");
    std::fs::remove_file(place.path("work").join("b")).expect("removed");
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
}

/// The heads that have a log of damage, as zdb reads the last log: objects in hexadecimal.
fn errors_by_head(place: &Place) -> Vec<String> {
    let said = place.run(
        "log=$(zdb -e -p $PWD -dddd tank 1 | awk '$1 == \"errlog_last\" { print $3 }'); \
         [ \"${log:-0}\" = 0 ] || zdb -e -p $PWD -dddd tank $log | sed -n '/microzap/,$p' | awk '$2 == \"=\" { print $1 }'",
    );
    said.lines().map(str::to_owned).collect()
}
