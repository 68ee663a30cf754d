//! Clones and the lists of their own blocks, judged from outside: what we keep OpenZFS's own code destroys by, and what it
//! keeps we do.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use tests::oracle::{accounts_agree, refpool_does, zdb_clean};

use crate::cli::Place;

fn judge(place: &Place, what: &str) {
    let image = PathBuf::from(place.work()).join("a");
    let judged = || -> Result<()> {
        let file = checker::FileImage::open(&image).context("open the disk")?;
        let report = checker::check(&[&file], checker::Options::default());
        ensure!(report.is_clean(), "{report:#?}");
        zdb_clean(&PathBuf::from(place.work()), "tank")?;
        accounts_agree(std::slice::from_ref(&image))
    };
    judged().unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// A pool with a file of 20 MB in small records, and a clone of it with small parts written anew in several txgs.
fn pool_with_clone(place: &Place) {
    let made = place.run(
        "truncate -s 256M a && zpool create -O recordsize=8K -O mountpoint=none tank $PWD/a && zfs create tank/fs && \
         head -c 20000000 /dev/urandom > big && sanbox put big tank/fs:/big && zfs snapshot tank/fs@s && zfs clone tank/fs@s tank/c && \
         for n in 1 2 3 4; do head -c 300000 /dev/urandom > part; sanbox put part tank/c:/part$n; sanbox put part tank/c:/same; \
         zpool sync tank; done && sanbox rm tank/c:/part2 && zfs snapshot tank/c@own && sanbox put part tank/c:/part3 && \
         zpool get -H -o value feature@livelist tank",
    );
    assert_eq!(made, "active\n");
}

#[test]
fn clones_keep_lists_that_openzfs_destroys_by() {
    let place = Place::new();
    pool_with_clone(&place);
    assert_eq!(place.run("zpool export tank"), "");
    judge(&place, "a clone written to");
    let said = place.run("zdb -e -p $PWD -dddd tank/c 2>&1 | grep -c 'Livelist' ");
    assert_eq!(said, "1\n", "zdb sees the list");
    let image = PathBuf::from(place.work()).join("a");
    let operations = ["destroy:tank/c@own", "destroy:tank/c", "waitfree:tank"];
    if tests::oracle::refpool().is_none() {
        return;
    }
    refpool_does(
        "tank",
        std::slice::from_ref(&image),
        &operations.map(str::to_owned),
    )
    .expect("OpenZFS destroys the clone");
    judge(&place, "after OpenZFS destroyed the clone");
    let after = place.run(
        "zpool import -d $PWD tank && zpool get -H -o value feature@livelist,freeing tank && sanbox get tank/fs:/big b && cmp big b",
    );
    assert_eq!(after, "enabled\n0\n");
}

#[test]
fn clones_are_destroyed_by_their_lists() {
    let place = Place::new();
    pool_with_clone(&place);
    let gone = place.run(
        "zfs destroy tank/c@own && zfs destroy tank/c && zpool wait -t free tank && zpool get -H -o value feature@livelist,freeing tank && \
         zpool export tank",
    );
    assert_eq!(gone, "enabled\n0\n");
    judge(&place, "after the clone was destroyed");
}

/// Promotion and rollback end a list; a clone that has little in common with its origin has none.
#[test]
fn lists_end_with_what_they_are_for() {
    let place = Place::new();
    pool_with_clone(&place);
    let said = place.run(
        "zfs rollback tank/c@own && zpool get -H -o value feature@livelist tank && zfs clone tank/fs@s tank/d && zfs clone tank/fs@s tank/e && \
         zpool get -H -o value feature@livelist tank && zfs promote tank/d && sanbox put part tank/e:/x && \
         zpool get -H -o value feature@livelist tank && sanbox put big tank/e:/y && zpool sync tank && \
         zpool get -H -o value feature@livelist tank && zpool export tank",
    );
    assert_eq!(said, "enabled\nactive\nactive\nenabled\n");
    judge(&place, "after promotion and rollback");
}

/// Clones that OpenZFS made, with the lists it kept.
#[test]
fn golden_clones_are_destroyed_by_their_lists() {
    let place = Place::new();
    let golden = tests::golden::Golden::unpack("h-snapshots").expect("unpacks");
    let directory = golden.directory().display().to_string();
    let gone = place.run(&format!(
        "zpool import -N -d {directory} h-snapshots && zpool get -H -o value feature@livelist h-snapshots && \
         zfs destroy h-snapshots/clone1 && zfs destroy -r h-snapshots/clone2 && zpool wait -t free h-snapshots && \
         zpool get -H -o value feature@livelist,freeing h-snapshots && zpool export h-snapshots",
    ));
    assert_eq!(gone, "active\nenabled\n0\n");
    zdb_clean(golden.directory(), "h-snapshots").expect("zdb finds nothing lost");
    accounts_agree(&golden.images()).expect("the accounts are right");
}
