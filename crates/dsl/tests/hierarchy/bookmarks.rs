//! Bookmarks.

use crate::rig::{check, run};

#[test]
fn a_bookmark_is_of_a_snapshot_or_bookmark_of_its_dataset() {
    check(&[
        ("create p/a", ""),
        ("create p/b", ""),
        ("snapshot p/a@1", ""),
        ("bookmark p/a@1 p/a#1", ""),
        ("bookmark p/a@1 p/a#1", "p/a#1: dataset already exists"),
        ("bookmark p/a#1 p/a#2", ""),
        (
            "bookmark p/a@missing p/a#3",
            "p/a#3: dataset does not exist",
        ),
        (
            "bookmark p/a@1 p/b#1",
            "p/b#1: source is not an ancestor of the new bookmark's dataset",
        ),
        ("list p", "p p/a p/a@1 p/a#1 p/a#2 p/b"),
    ]);
}

#[test]
fn a_bookmark_outlives_its_snapshot_and_keeps_no_space() {
    check(&[
        ("create p/a", ""),
        ("write p/a 4", ""),
        ("snapshot p/a@1", ""),
        ("bookmark p/a@1 p/a#1", ""),
        ("write p/a 4", ""),
        ("destroy-snapshots p/a@1", ""),
        ("mib used p/a", "4"),
        ("written p/a#1 p/a", "4"),
        ("destroy-bookmarks p/a#1 p/a#missing", ""),
        ("list p/a", "p/a"),
    ]);
}

#[test]
fn a_clones_bookmark_may_be_of_its_origins_line() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("snapshot p/a@2", ""),
        ("clone p/a@1 p/c", ""),
        ("bookmark p/a@1 p/c#1", ""),
        (
            "bookmark p/a@2 p/c#2",
            "p/c#2: source is not an ancestor of the new bookmark's dataset",
        ),
    ]);
}

#[test]
fn bookmarks_have_the_guid_and_txg_of_their_snapshot_after_the_next_import() {
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("snapshot p/a@1", ""),
            ("bookmark p/a@1 p/a#1", ""),
        ])
        .await;
        let snapshot = rig.hierarchy.info("p/a@1").await.expect("is there");
        rig.reopen().await;
        let bookmark = rig.hierarchy.info("p/a#1").await.expect("is there");
        assert_eq!(bookmark.guid, snapshot.guid);
        assert_eq!(bookmark.create_txg, snapshot.create_txg);
        rig.check(&[("rename p/a p/b", ""), ("list p", "p p/b p/b@1 p/b#1")])
            .await;
    });
}
