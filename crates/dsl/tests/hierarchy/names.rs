//! Names: what may be made, moved and destroyed, and what is said when it may not.

use crate::rig::{check, run};

#[test]
fn datasets_are_made_below_file_systems_that_exist() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("volume p/v volsize=8M", ""),
        ("create p/a", "dataset already exists"),
        ("volume p/a volsize=8M", "dataset already exists"),
        ("create p/missing/b", "parent does not exist"),
        ("create p/v/b", "parent is not a filesystem"),
        ("list p", "p p/a p/a/b p/v"),
        ("list p/missing", "dataset does not exist"),
        ("list q", "dataset does not exist"),
    ]);
}

#[test]
fn directories_of_the_pools_own_are_not_for_users() {
    check(&[
        ("list p/$MOS", "dataset does not exist"),
        ("list p/$FREE", "dataset does not exist"),
        ("list p/$ORIGIN", "dataset does not exist"),
        (
            "snapshot p/$ORIGIN@a",
            "p/$ORIGIN@a: invalid character '$' in name",
        ),
        ("destroy p/$MOS", "dataset does not exist"),
    ]);
}

#[test]
fn what_has_children_or_snapshots_is_not_destroyed() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("destroy p/a", "filesystem has children"),
        ("destroy p/a/b", ""),
        ("snapshot p/a@s", ""),
        ("destroy p/a", "filesystem has children"),
        ("destroy-snapshots p/a@s", ""),
        ("destroy p/a", ""),
        ("destroy p/a", "dataset does not exist"),
        ("list p", "p"),
    ]);
}

#[test]
fn an_open_dataset_is_busy() {
    run(|rig| async move {
        rig.check(&[("create p/a", ""), ("snapshot p/a@s", "")])
            .await;
        let open = rig.hierarchy.dataset("p/a@s").await.expect("opens");
        rig.check(&[("destroy-snapshots p/a@s", "p/a@s: dataset is busy")])
            .await;
        drop(open);
        let open = rig.hierarchy.dataset("p/a").await.expect("opens");
        rig.check(&[
            ("destroy-snapshots p/a@s", ""),
            ("destroy p/a", "dataset is busy"),
        ])
        .await;
        drop(open);
        rig.check(&[("destroy p/a", "")]).await;
    });
}

#[test]
fn what_is_below_moves_along_and_handles_stay_good() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("create p/a/b", ""),
            ("create p/c", ""),
            ("snapshot p/a/b@s", ""),
        ])
        .await;
        let open = rig.hierarchy.dataset("p/a/b").await.expect("opens");
        rig.check(&[
            ("rename p/a p/c/a", ""),
            ("list p", "p p/c p/c/a p/c/a/b p/c/a/b@s"),
        ])
        .await;
        assert_eq!(open.name(), "p/c/a/b");
    });
}

#[test]
fn a_dataset_is_renamed_within_its_pool_and_not_below_itself() {
    check(&[
        ("create p/a", ""),
        ("create p/b", ""),
        ("volume p/v volsize=8M", ""),
        ("snapshot p/a@s", ""),
        (
            "rename p/a p/a/x",
            "New dataset name cannot be a descendant of current dataset name",
        ),
        ("rename p/a p/b", "dataset already exists"),
        ("rename p/a p/v/x", "parent is not a filesystem"),
        ("rename p/a p/missing/x", "parent does not exist"),
        ("rename p/missing p/x", "dataset does not exist"),
        ("list p", "p p/a p/a@s p/b p/v"),
    ]);
}

#[test]
fn snapshots_of_one_name_are_renamed_together() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("create p/a/c", ""),
        ("snapshot p/a@s p/a/b@s p/a/b@t", ""),
        ("rename-r p/a@s p/a@r", ""),
        ("list p/a", "p/a p/a@r p/a/b p/a/b@r p/a/b@t p/a/c"),
        // One name that is taken below, and none is renamed.
        ("rename-r p/a@r p/a@t", "dataset already exists"),
        ("list p/a", "p/a p/a@r p/a/b p/a/b@r p/a/b@t p/a/c"),
    ]);
}

#[test]
fn names_are_what_they_were_after_the_next_import() {
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("create p/a/b", ""),
            ("snapshot p/a/b@s", ""),
            ("rename p/a p/z", ""),
            ("rename p/z/b@s p/z/b@t", ""),
        ])
        .await;
        rig.reopen().await;
        rig.check(&[("list p", "p p/z p/z/b p/z/b@t")]).await;
    });
}

#[test]
fn a_limit_counts_what_was_there_before_it() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("create p/a/b/c", ""),
        ("snapshot p/a@1 p/a/b@1 p/a/b/c@1", ""),
        ("get filesystem_count p/a", "none default"),
        ("set p/a filesystem_limit=3 snapshot_limit=4", ""),
        ("get filesystem_count p/a", "2 local"),
        ("get snapshot_count p/a", "3 local"),
        ("create p/a/d", ""),
        ("create p/a/e", "out of space"),
        ("snapshot p/a@2 p/a/b@2", "p/a: out of space"),
        ("snapshot p/a@2", ""),
    ]);
}

#[test]
fn limits_count_what_is_below() {
    check(&[
        ("create p/a filesystem_limit=2 snapshot_limit=1", ""),
        ("create p/a/b", ""),
        ("create p/a/b/c", ""),
        ("create p/a/d", "out of space"),
        ("snapshot p/a/b@1", ""),
        ("snapshot p/a/b/c@1", "p/a: out of space"),
        ("get filesystem_count p/a", "2 local"),
        ("get snapshot_count p/a", "1 local"),
        ("destroy p/a/b/c", ""),
        ("create p/a/d", ""),
        ("destroy-snapshots p/a/b@1", ""),
        ("snapshot p/a@1", ""),
    ]);
}
