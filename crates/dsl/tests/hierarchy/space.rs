//! Space: what is charged to which dataset, and who may not go on when it is used up.

use crate::rig::{check, run};

#[test]
fn data_is_charged_to_the_dataset_and_those_above() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("write p/a/b 8", ""),
        ("mib used p/a/b", "8"),
        ("mib referenced p/a/b", "8"),
        ("mib used p/a", "8"),
        ("mib referenced p/a", "0"),
        ("mib usedbychildren p/a", "8"),
        ("mib usedbydataset p/a/b", "8"),
        ("truncate p/a/b", ""),
        ("mib used p/a", "0"),
    ]);
}

#[test]
fn what_only_snapshots_hold_is_charged_to_them() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("mib usedbysnapshots p/a", "0"),
        ("mib used p/a@1", "0"),
        ("write p/a 4", ""),
        ("mib usedbysnapshots p/a", "4"),
        ("mib used p/a@1", "4"),
        ("mib used p/a", "12"),
        ("snapshot p/a@2", ""),
        ("write p/a 2", ""),
        // The first 2 MiB of @2 are its alone; 4 MiB are @1's alone.
        ("mib used p/a@1", "4"),
        ("mib used p/a@2", "2"),
        ("written p/a@1 p/a", "4"),
        ("written p/a@1 p/a@2", "4"),
        ("would-free p/a@1 p/a@2", "6"),
        ("destroy-snapshots p/a@1", ""),
        ("mib used p/a", "10"),
        ("destroy-snapshots p/a@2", ""),
        ("mib used p/a", "8"),
    ]);
}

#[test]
fn blocks_shared_by_two_snapshots_are_the_last_ones_when_one_goes() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("snapshot p/a@2", ""),
        ("truncate p/a", ""),
        ("mib used p/a@1", "0"),
        ("mib used p/a@2", "0"),
        ("mib usedbysnapshots p/a", "8"),
        ("would-free p/a@1 p/a@2", "8"),
        ("destroy-snapshots p/a@2", ""),
        ("mib used p/a@1", "8"),
        ("destroy-snapshots p/a@1", ""),
        ("mib used p/a", "0"),
    ]);
}

#[test]
fn blocks_of_two_snapshots_are_the_later_ones_when_the_earlier_goes() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("write p/a 2", ""),
        ("snapshot p/a@2", ""),
        ("truncate p/a", ""),
        ("snapshot p/a@3", ""),
        // 6 of the first 8 MiB are of both; 2 are @1's alone, and the 2 written over them @2's.
        ("mib used p/a@1", "2"),
        ("mib used p/a@2", "2"),
        ("destroy-snapshots p/a@1", ""),
        ("mib used p/a@2", "8"),
        ("mib used p/a@3", "0"),
    ]);
}

#[test]
fn a_quota_ends_what_is_below_it_and_a_refquota_the_dataset_alone() {
    check(&[
        ("create p/a quota=16M", ""),
        ("create p/a/b refquota=6M", ""),
        ("write p/a/b 8", "out of space"),
        ("truncate p/a/b", ""),
        // Less what its first objects take.
        ("mib available p/a/b", "5"),
        ("mib available p/a", "15"),
        ("set p/a/b refquota=none", ""),
        ("mib available p/a/b", "15"),
        ("write p/a/b 8", ""),
        ("write p/a 12", "out of space"),
        ("truncate p/a", ""),
        ("set p/a quota=none", ""),
        ("write p/a 12", ""),
    ]);
}

#[test]
fn a_quota_is_not_set_below_what_is_used() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        (
            "set p/a quota=4M",
            "size is less than current used or reserved space",
        ),
        (
            "set p/a refquota=4M",
            "size is less than current used or reserved space",
        ),
        ("set p/a quota=9M", ""),
        (
            "set p/a reservation=1000G",
            "size is greater than available space",
        ),
    ]);
}

#[test]
fn a_reservation_is_taken_from_what_others_may_use() {
    check(&[
        ("create p/a", ""),
        ("create p/b", ""),
        ("set p/a reservation=32M", ""),
        ("mib used p", "32"),
        ("mib usedbychildren p", "32"),
        ("mib used p/a", "0"),
        ("write p/a 8", ""),
        // What is written is written into the reservation.
        ("mib used p", "32"),
        ("mib used p/a", "8"),
        ("set p/a reservation=none", ""),
        ("mib used p", "8"),
    ]);
}

#[test]
fn a_refreservation_is_there_again_after_a_snapshot() {
    check(&[
        ("create p/a refreservation=16M", ""),
        ("mib usedbyrefreservation p/a", "15"),
        ("write p/a 8", ""),
        ("mib usedbyrefreservation p/a", "7"),
        ("mib used p/a", "16"),
        ("snapshot p/a@1", ""),
        ("mib usedbyrefreservation p/a", "16"),
        ("mib used p/a", "24"),
        ("destroy-snapshots p/a@1", ""),
        ("mib used p/a", "16"),
    ]);
}

#[test]
fn a_snapshot_needs_room_beside_the_refreservation_and_not_for_what_is_on_its_way_as_well() {
    check(&[
        ("create p/a quota=25M refreservation=10M", ""),
        ("write-unsynced p/a 7", ""),
        ("snapshot p/a@1", ""),
        ("write-unsynced p/a 7", ""),
        ("snapshot p/a@2", ""),
        ("write-unsynced p/a 7", ""),
        ("snapshot p/a@3", "p/a@3: out of space"),
    ]);
}

#[test]
fn snapshots_taken_together_have_room_together() {
    check(&[
        ("create p/a quota=30M", ""),
        ("create p/a/b refreservation=10M", ""),
        ("create p/a/c refreservation=10M", ""),
        ("write p/a/b 7", ""),
        ("write p/a/c 7", ""),
        ("snapshot p/a/b@1 p/a/c@1", "p/a/c@1: out of space"),
        ("snapshot p/a/b@1", ""),
        ("snapshot p/a/c@1", "p/a/c@1: out of space"),
    ]);
}

#[test]
fn a_writer_that_does_not_wait_goes_hardly_beyond_a_quota() {
    check(&[
        ("create p/a quota=96M", ""),
        ("write-unsynced p/a 120", "out of space"),
        ("mib used p/a", "96"),
    ]);
}

#[test]
fn space_is_what_it_was_after_the_next_import() {
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("write p/a 8", ""),
            ("snapshot p/a@1", ""),
            ("write p/a 4", ""),
        ])
        .await;
        rig.reopen().await;
        rig.check(&[
            ("mib used p/a", "12"),
            ("mib used p/a@1", "4"),
            ("mib referenced p/a", "8"),
            ("destroy-snapshots p/a@1", ""),
            ("mib used p/a", "8"),
        ])
        .await;
    });
}

#[test]
fn a_destroyed_dataset_gives_its_space_back_in_the_background() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("write p/a 32", ""),
            ("mib used p", "32"),
            ("destroy p/a", ""),
            ("list p", "p"),
        ])
        .await;
        let mut txgs = 0;
        while rig.hierarchy.has_background_work() {
            rig.check(&[("set p org.example:next=txg", "")]).await;
            txgs += 1;
            assert!(txgs < 100, "destruction ends");
        }
        assert_eq!(rig.hierarchy.freeing_bytes(), 0);
        rig.check(&[("mib used p", "0")]).await;
    });
}
