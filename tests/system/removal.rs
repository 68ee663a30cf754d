//! Goal: a vdev that holds data leaves a pool whatever happens meanwhile. Method: the program as people use it, with a daemon
//! that is stopped, exported under and killed in mid-evacuation; zdb and OpenZFS's own code judge every stage.

use std::path::{Path, PathBuf};

use tests::oracle;

use crate::cli::Place;

const SERVE: [&str; 2] = ["--nfs-port", "0"];

fn clean(place: &Place, what: &str) {
    if oracle::has_zdb() {
        oracle::zdb_clean(Path::new(&place.work()), "tank")
            .unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
}

fn files(place: &Place, names: &[&str]) -> Vec<PathBuf> {
    let work = PathBuf::from(place.work());
    names.iter().map(|name| work.join(name)).collect()
}

/// A pool of two mirrors with files, a snapshot, and changes since.
fn make(place: &Place) {
    let made = place.run(
        "truncate -s 320M a b c d; zpool create tank mirror $PWD/a $PWD/b mirror $PWD/c $PWD/d && \
         zfs create -o recordsize=16K tank/fs && head -c 30000000 /dev/urandom > f && split -n 30 -d -a 2 f f. && \
         for part in f.??; do sanbox put $part tank/fs:/; done; zpool sync tank && zfs snapshot tank/fs@s && \
         for n in 00 07 13; do sanbox rm tank/fs:/f.$n; done",
    );
    assert_eq!(made, "");
}

fn compare(place: &Place) {
    let differ = place.run(
        "for part in f.0[1-6] f.1[4-9] f.2?; do sanbox cat tank/fs:/$part | cmp - $part; done",
    );
    assert_eq!(differ, "");
}

#[test]
fn a_mirror_leaves_in_spite_of_exports_and_kills() {
    let mut place = Place::new();
    place.serve(&SERVE);
    make(&place);
    // It stands still after its first txg.
    let begun = place.run(
        "sanbox tune zfs_removal_suspend_progress=1; zpool remove tank mirror-1 && zpool status tank | grep -A1 remove: | \
         sed 's/since .*/since DATE/; s/[0-9.]*[KM]* copied out of [0-9.]*M at .*/SIZE copied/'; zpool status tank | grep -c '(removing)'; \
         zpool remove tank mirror-0; zpool checkpoint tank; zpool get -H -o value feature@device_removal tank",
    );
    assert_eq!(
        begun,
        "remove: Evacuation of mirror-1 in progress since DATE\n\tSIZE copied\n1\nactive\n\
         ! cannot remove mirror-0: Pool busy; removal may already be in progress\n\
         ! cannot checkpoint 'tank': device removal in progress\n"
    );
    assert_eq!(place.run("sanbox rm tank/fs:/f.08; zpool export tank"), "");
    clean(&place, "just begun");
    let canceled = place.run(
        "zpool import -d $PWD tank; zpool remove -s tank; zpool status tank | grep remove: | sed 's/ on .*/ on DATE/'; \
         zpool remove -s tank",
    );
    assert_eq!(
        canceled,
        "remove: Removal of mirror-1 canceled on DATE\n! cannot cancel removal: there is no active removal\n[1]\n"
    );
    compare(&place);
    assert_eq!(place.run("zpool export tank"), "");
    clean(&place, "given up");
    assert_eq!(
        place.run("zpool import -d $PWD tank; zpool remove tank mirror-1"),
        ""
    );
    // Killed while it copies.
    assert_eq!(
        place.run("sanbox rm tank/fs:/f.09; sanbox tune zfs_removal_suspend_progress=0"),
        ""
    );
    place.kill();
    clean(&place, "killed");
    place.serve(&SERVE);
    assert_eq!(place.run("zpool wait -t remove tank"), "");
    let ended = place.run(
        "zpool status tank | grep -c 'memory used for removed device mappings'; zpool scrub -w tank; zpool status tank | grep -c 'with 0 errors'; \
         zpool labelclear $PWD/c 2>&1 | head -1",
    );
    assert!(ended.starts_with("1\n1\n"), "{ended}");
    compare(&place);
    assert_eq!(place.run("zpool export tank"), "");
    clean(&place, "gone");
    let all = files(&place, &["a", "b", "c", "d"]);
    if oracle::refpool().is_some() {
        // What was moved is freed by OpenZFS, and what that leaves is freed here.
        let operations = ["destroy:tank/fs@s", "waitfree:tank", "scrub:tank"].map(str::to_owned);
        oracle::refpool_does("tank", &all, &operations).expect("OpenZFS frees what was moved");
        clean(&place, "freed from by OpenZFS");
    }
    let freed = place.run("zpool import -d $PWD tank && zfs destroy -r tank/fs && zpool wait -t free tank; zpool export tank");
    assert_eq!(freed, "");
    clean(&place, "all is freed");
}
