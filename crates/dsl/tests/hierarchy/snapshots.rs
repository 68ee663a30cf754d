//! Snapshots, holds and rolling back.

use std::time::Duration;

use crate::rig::{check, run};

#[test]
fn all_snapshots_of_a_command_are_taken_or_none() {
    check(&[
        ("create p/a", ""),
        ("create p/b", ""),
        ("snapshot p/a@1", ""),
        ("snapshot p/a@1 p/b@1", "p/a@1: dataset already exists"),
        ("list p/b", "p/b"),
        (
            "snapshot p/b@1 p/missing@1",
            "p/missing@1: dataset does not exist",
        ),
        ("list p/b", "p/b"),
        ("snapshot p/a@2 p/b@2", ""),
        ("list p", "p p/a p/a@1 p/a@2 p/b p/b@2"),
    ]);
}

#[test]
fn snapshots_of_a_command_are_of_one_moment() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("create p/b", ""),
            ("snapshot p/a@1 p/b@1", ""),
        ])
        .await;
        let txg = async |name: &str| rig.hierarchy.info(name).await.expect("is there").create_txg;
        assert_eq!(txg("p/a@1").await, txg("p/b@1").await);
    });
}

#[test]
fn a_held_snapshot_stays() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("hold keep p/a@1", ""),
        (
            "hold keep p/a@1",
            "p/a@1: tag already exists on this dataset",
        ),
        ("hold also p/a@1", ""),
        ("holds p/a@1", "also keep"),
        ("get userrefs p/a@1", "2 -"),
        ("destroy-snapshots p/a@1", "p/a@1: dataset is busy"),
        (
            "release nothing p/a@1",
            "p/a@1: no such tag on this dataset",
        ),
        ("release keep p/a@1", ""),
        ("destroy-snapshots p/a@1", "p/a@1: dataset is busy"),
        ("release also p/a@1", ""),
        ("destroy-snapshots p/a@1", ""),
        ("list p/a", "p/a"),
    ]);
}

#[test]
fn a_deferred_destruction_waits_for_the_last_hold_and_clone() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1 p@1", ""),
        ("hold keep p/a@1", ""),
        ("clone p/a@1 p/c", ""),
        ("destroy-deferred p/a@1", ""),
        ("get defer_destroy p/a@1", "on -"),
        ("release keep p/a@1", ""),
        ("list p/a", "p/a p/a@1"),
        ("destroy p/c", ""),
        ("list p/a", "p/a"),
        // Without a reason to wait it is destroyed at once.
        ("destroy-deferred p@1", ""),
        ("list p", "p p/a"),
    ]);
}

/// The simulated wall clock begins at 2026-01-01 00:00:00.
#[test]
fn an_immutable_snapshot_stays_until_its_time() {
    const UNTIL: &str =
        "snapshot is immutable until 2026-01-01T02:00:00Z: nobody destroys or releases it before";
    const LONGER: &str =
        "snapshot is immutable until 2026-01-01T02:00:00Z: that can be prolonged, not shortened";
    run(|mut rig| async move {
        let until = format!("p/a@1: {UNTIL}");
        rig.check(&[
            ("create p/a", ""),
            ("snapshot p/a@1", ""),
            ("snapshot p/a@2", ""),
            (
                "set p/a org.sanbox:immutable-until=2026-01-01T02:00:00Z",
                "org.sanbox:immutable-until is a property of snapshots",
            ),
            (
                "set p/a@1 org.sanbox:immutable-until=tomorrow",
                "org.sanbox:immutable-until is a time of the form 2027-01-31T00:00:00Z (UTC)",
            ),
            (
                "set p/a@1 org.sanbox:immutable-until=2026-01-01T01:00:00Z",
                "",
            ),
            (
                "set p/a@1 org.sanbox:immutable-until=2026-01-01T02:00:00Z",
                "",
            ),
            ("holds p/a@1", "org.sanbox:immutable"),
            (
                "set p/a@1 org.sanbox:immutable-until=2026-01-01T01:59:59Z",
                LONGER,
            ),
            ("inherit org.sanbox:immutable-until p/a@1", LONGER),
            (
                "set p org.sanbox:time-seen=1",
                "org.sanbox:time-seen is not set by hand",
            ),
            (
                "inherit org.sanbox:time-seen p",
                "org.sanbox:time-seen is not set by hand",
            ),
            ("destroy p/a", "filesystem has children"),
        ])
        .await;
        for _ in 0..2 {
            assert_eq!(rig.answer("destroy-snapshots p/a@1").await, until);
            assert_eq!(rig.answer("destroy-deferred p/a@1").await, until);
            assert_eq!(rig.answer("destroy-snapshots p/a@2 p/a@1").await, until);
            assert_eq!(
                rig.answer("release org.sanbox:immutable p/a@1").await,
                until
            );
            rig.reopen().await;
        }
        // Elsewhere and under another name it is the same snapshot.
        rig.check(&[
            ("clone p/a@2 p/c", ""),
            ("promote p/c", ""),
            ("rename p/c@1 p/c@0", ""),
        ])
        .await;
        let until = format!("p/c@0: {UNTIL}");
        assert_eq!(rig.answer("destroy-snapshots p/c@0").await, until);
        let refused = rig.hierarchy.check_nothing_immutable().await;
        assert_eq!(
            refused.map_err(|error| error.to_string()),
            Err("snapshot 'p/c@0' is immutable until 2026-01-01T02:00:00Z".to_owned())
        );
        rig.pause(Duration::from_secs(7200)).await;
        assert!(rig.hierarchy.check_nothing_immutable().await.is_ok());
        // Its hold is in nobody's way any more.
        rig.check(&[
            ("holds p/c@0", "org.sanbox:immutable"),
            ("destroy-snapshots p/c@0", ""),
            ("list p/c", "p/c p/c@2"),
        ])
        .await;
    });
}

/// Whatever the wall clock is set to while the pool is open, and back to 1970 over a restart: the snapshot stays for the time that passes.
/// What passed while the pool was closed is not known, and the clock is believed.
#[test]
fn a_clock_that_is_set_makes_no_immutable_snapshot_go() {
    const HOUR: u64 = 3600;
    const TEN_YEARS: i64 = 10 * 365 * 86_400;
    const TO_1970: i64 = -1_767_225_600;
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("snapshot p/a@1", ""),
            (
                "set p/a@1 org.sanbox:immutable-until=2026-01-02T00:00:00Z",
                "",
            ),
        ])
        .await;
        let check_stays = async |rig: &super::rig::Rig, what: &str| {
            for line in [
                "destroy-snapshots p/a@1",
                "destroy-deferred p/a@1",
                "release org.sanbox:immutable p/a@1",
                "inherit org.sanbox:immutable-until p/a@1",
                "set p/a@1 org.sanbox:immutable-until=2026-01-01T00:00:01Z",
            ] {
                let said = rig.answer(line).await;
                assert!(
                    said.contains("immutable until 2026-01-02"),
                    "{what}: {said}"
                );
            }
        };
        for (error, what) in [
            (TEN_YEARS, "ten years ahead"),
            (0, "right"),
            (TO_1970, "1970"),
            (TEN_YEARS, "from 1970 ten years ahead"),
            (2 * 86_400, "two days ahead"),
        ] {
            rig.set_clock_error(error);
            check_stays(&rig, what).await;
            rig.pause(std::time::Duration::from_secs(HOUR)).await;
            check_stays(&rig, what).await;
        }
        // Closed with a clock that is ahead, and opened with one of 1970.
        rig.set_clock_error(TO_1970);
        rig.reopen().await;
        check_stays(&rig, "opened in 1970").await;
        rig.set_clock_error(TEN_YEARS);
        check_stays(&rig, "set ahead then").await;
        // A clock that was always right: the time has passed.
        rig.set_clock_error(0);
        rig.reopen().await;
        rig.pause(std::time::Duration::from_secs(12 * HOUR)).await;
        check_stays(&rig, "17 hours later").await;
        rig.pause(std::time::Duration::from_secs(8 * HOUR)).await;
        rig.check(&[("destroy-snapshots p/a@1", ""), ("list p/a", "p/a")])
            .await;
    });
}

#[test]
fn all_snapshots_of_a_command_are_destroyed_or_none() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("snapshot p/a@2", ""),
        ("hold keep p/a@2", ""),
        ("destroy-snapshots p/a@1 p/a@2", "p/a@2: dataset is busy"),
        ("list p/a", "p/a p/a@1 p/a@2"),
        // What does not exist is no reason.
        ("destroy-snapshots p/a@1 p/a@missing", ""),
        ("list p/a", "p/a p/a@2"),
    ]);
}

#[test]
fn a_dataset_is_rolled_back_to_its_newest_snapshot() {
    check(&[
        ("create p/a", ""),
        ("rollback p/a", "no snapshot to roll back to"),
        ("write p/a 2", ""),
        ("snapshot p/a@1", ""),
        ("write p/a 8", ""),
        ("mib used p/a", "10"),
        ("rollback p/a", ""),
        ("mib used p/a", "2"),
        ("mib referenced p/a", "2"),
        ("mib used p/a@1", "0"),
    ]);
}

#[test]
fn only_the_newest_snapshot_can_be_rolled_back_to() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("snapshot p/a@1", ""),
            ("snapshot p/a@2", ""),
        ])
        .await;
        let roll_back = async |target: &str| {
            let done = rig.hierarchy.rollback("p/a", Some(target)).await;
            done.err().map(|error| error.to_string())
        };
        let refused = roll_back("p/a@1").await;
        assert_eq!(
            refused.as_deref(),
            Some("more recent snapshots or bookmarks exist")
        );
        assert_eq!(roll_back("p/a@2").await, None);
    });
}

#[test]
fn a_snapshot_reads_as_the_dataset_was() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("write p/a 1", ""),
            ("snapshot p/a@1", ""),
        ])
        .await;
        let read = async |name: &str| {
            let dataset = rig.hierarchy.dataset(name).await.expect("opens");
            let object = ondisk::ObjectId(8);
            let bytes = dataset.objset().read(object, 0, 1 << 20).await;
            bytes.expect("reads").to_vec()
        };
        let before = read("p/a").await;
        rig.check(&[("write p/a 1", "")]).await;
        assert_ne!(read("p/a").await, before);
        assert_eq!(read("p/a@1").await, before);
        let snapshot = rig.hierarchy.dataset("p/a@1").await.expect("opens");
        assert!(snapshot.is_read_only());
        let refused = snapshot.begin(dsl::Estimate::bytes(1)).await;
        assert!(matches!(refused, Err(dsl::DslError::ReadOnly)));
    });
}
