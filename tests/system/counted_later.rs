//! Goal: after `zpool upgrade` a file system that is older than the counts by object and by project gets them, complete, in the background.
//! Method: a pool without features gets files of several users; after the upgrade the counts are those of what was made, and those that follow
//! from the objects as zdb lists them, also after OpenZFS's own code has written to the pool.

use std::collections::BTreeMap;

use tests::oracle;

use crate::cli::{Place, wait_for};

/// Counts of objects by user, as `zfs userspace` shows them.
fn objects(place: &Place, dataset: &str) -> String {
    let shown = place.run(&format!("zfs userspace -Hpn -o name,objused {dataset}"));
    shown.trim_end().replace('\n', " ")
}

/// What the object `number` of a listing by zdb says behind a word, as a number.
fn said(text: &str, word: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    words.nth(1)?.parse().ok()
}

/// Compares the counts of users in a file system of an exported pool with the objects that zdb lists: 512 bytes and what it has on disk for each.
fn compare_with_zdb(place: &Place, dataset: &str) {
    let listed = place.run(&format!("zdb -e -p $PWD -P -dddd {dataset}"));
    let mut want: BTreeMap<String, u64> = BTreeMap::new();
    let mut have: BTreeMap<String, u64> = BTreeMap::new();
    for object in listed.split("    Object  lvl").skip(1) {
        let head = object.lines().nth(1).unwrap_or_default();
        if head.split_whitespace().next() == Some("-1") {
            for line in object.lines() {
                if let Some((name, value)) = line.trim().split_once(" = ") {
                    have.insert(name.to_owned(), value.parse().expect("a number"));
                }
            }
        } else if let Some(uid) = said(object, "uid") {
            let dsize: u64 = head
                .split_whitespace()
                .nth(4)
                .and_then(|text| text.parse().ok())
                .unwrap_or_else(|| panic!("{head}"));
            assert!(object.contains("USEROBJUSED_ACCOUNTED"), "{object}");
            *want.entry(format!("{uid:x}")).or_default() += 512 + dsize;
            *want.entry(format!("obj-{uid:x}")).or_default() += 1;
        }
    }
    assert!(want.len() > 2, "{listed}");
    assert_eq!(have, want, "{dataset}");
}

#[test]
fn older_file_systems_are_counted_by_object_and_by_project() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -d -O mountpoint=none tank $PWD/disk && zfs create tank/fs && zfs create tank/late && \
         mkdir -p tree/d && for i in $(seq 300); do head -c $((i * 40)) /dev/urandom > tree/d/a$i; done && chown -R 1000:100 tree/d && \
         for i in $(seq 70); do echo $i > tree/b$i; done && chown 1001:100 tree/b* && sanbox put -r tree tank/fs:/ && \
         sanbox put -r tree tank/late:/ && zfs snapshot tank/fs@before",
    );
    assert_eq!(made, "");
    // 0 is the root directory's.
    assert_eq!(objects(&place, "tank/fs"), "0\t- 1000\t- 1001\t-");
    assert_eq!(place.run("zfs projectspace tank/fs"), "");
    let upgraded = place.run("zpool upgrade tank >/dev/null; zpool get -Hpo value feature@userobj_accounting,feature@project_quota tank");
    assert_eq!(upgraded, "enabled\nenabled\n");
    assert_eq!(objects(&place, "tank/fs"), "0\t- 1000\t- 1001\t-");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    // Something is written: that begins it.
    assert_eq!(place.run("echo x > new && sanbox put new tank/fs:/new"), "");
    let counted = wait_for("counts", || {
        let counted = objects(&place, "tank/fs");
        (!counted.contains('-'))
            .then_some(counted.clone())
            .ok_or(counted)
    });
    assert_eq!(counted, "0\t2 1000\t301 1001\t70");
    let projects = place.run("zpool sync tank; zfs projectspace -Hp -o name,objused tank/fs; \
         zfs userspace -Hp -o used tank/fs | awk '{ s += $1 } END { print s }'; \
         zfs projectspace -Hp -o used tank/fs; zfs get -Hpo value projectobjused@0,userobjused@1001 tank/fs");
    let lines: Vec<&str> = projects.lines().collect();
    assert_eq!(lines.len(), 5, "{projects}");
    assert_eq!((lines[0], lines[3], lines[4]), ("0\t373", "373", "70"));
    assert_eq!(lines[1], lines[2], "what all users use is in one project");
    assert_eq!(objects(&place, "tank/fs@before"), "0\t- 1000\t- 1001\t-");
    // A whole tree of older files goes to another project.
    let moved = place.run("zfs project -p 7 -rs tank/fs:/d; zpool sync tank; zfs projectspace -Hp -o name,objused tank/fs");
    assert_eq!(moved, "0\t72\n7\t301\n");
    // By hand, and complete on return.
    assert_eq!(place.run("zfs set version=current tank/late"), "");
    assert_eq!(objects(&place, "tank/late"), "0\t1 1000\t301 1001\t70");
    let states =
        place.run("zpool get -Hpo value feature@userobj_accounting,feature@project_quota tank");
    assert_eq!(states, "active\nactive\n");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    let directory = place.path("work");
    oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing");
    compare_with_zdb(&place, "tank/fs");
    compare_with_zdb(&place, "tank/late");
    if oracle::refpool().is_some() {
        let images = [directory.join("disk")];
        oracle::refpool_does("tank", &images, &["tank@theirs".to_owned()])
            .expect("OpenZFS writes the pool");
        oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing after OpenZFS");
        compare_with_zdb(&place, "tank/fs");
    }
}
