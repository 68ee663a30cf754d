//! Clones and promotion.

use crate::rig::{check, run};

#[test]
fn a_clone_starts_with_what_its_origin_has_and_takes_no_space() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("clone p/a@1 p/c", ""),
        ("get origin p/c", "p/a@1 -"),
        ("get clones p/a@1", "p/c -"),
        ("mib used p/c", "0"),
        ("mib referenced p/c", "8"),
        ("write p/c 2", ""),
        ("mib used p/c", "2"),
        ("mib referenced p/c", "8"),
        ("mib used p/a", "8"),
    ]);
}

#[test]
fn an_origin_stays_while_it_has_clones() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("clone p/a@1 p/c", ""),
        (
            "destroy-snapshots p/a@1",
            "p/a@1: snapshot has dependent clones",
        ),
        ("destroy p/c", ""),
        ("destroy-snapshots p/a@1", ""),
    ]);
}

#[test]
fn what_is_cloned_is_a_snapshot() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("clone p/a@missing p/c", "dataset does not exist"),
        ("clone p/a@1 p/a", "dataset already exists"),
        ("clone p/a@1 p/missing/c", "parent does not exist"),
        ("list p", "p p/a p/a@1"),
    ]);
}

#[test]
fn a_promotion_moves_snapshots_and_space() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("write p/a 4", ""),
        ("snapshot p/a@2", ""),
        ("clone p/a@1 p/c", ""),
        ("mib used p/a", "12"),
        ("promote p/c", ""),
        ("list p", "p p/a p/a@2 p/c p/c@1"),
        ("get origin p/a", "p/c@1 -"),
        ("get origin p/c", "not there"),
        // 4 MiB were written over in p/a: they are p/c@1's and p/c's now, with the other 4.
        ("mib used p/c", "8"),
        ("mib used p/a", "4"),
        ("mib used p", "12"),
        ("promote p/c", "not a cloned filesystem"),
        ("promote p/a", ""),
        ("list p", "p p/a p/a@1 p/a@2 p/c"),
        ("mib used p/a", "12"),
        ("mib used p/c", "0"),
    ]);
}

#[test]
fn a_promotion_moves_what_several_snapshots_hold() {
    check(&[
        ("create p/a", ""),
        ("write p/a 8", ""),
        ("snapshot p/a@1", ""),
        ("write p/a 4", ""),
        ("snapshot p/a@2", ""),
        ("write p/a 2", ""),
        ("snapshot p/a@3", ""),
        ("clone p/a@3 p/c", ""),
        ("write p/a 1", ""),
        // 8 of the dataset, 4 and 2 that snapshots hold, and 1 that only @3 and the clone have.
        ("mib used p/a", "15"),
        ("promote p/c", ""),
        ("mib usedbysnapshots p/c", "6"),
        ("mib used p/c", "14"),
        ("mib used p/a", "1"),
        ("mib used p", "15"),
    ]);
}

#[test]
fn a_promotion_does_not_bring_two_snapshots_of_one_name() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("clone p/a@1 p/c", ""),
        ("snapshot p/c@1", ""),
        ("promote p/c", "conflicting snapshot '1' from parent 'p/a'"),
        ("rename p/c@1 p/c@2", ""),
        ("promote p/c", ""),
        ("list p", "p p/a p/c p/c@1 p/c@2"),
    ]);
}

#[test]
fn the_clones_of_a_clone_follow_a_promotion() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@1", ""),
        ("clone p/a@1 p/c", ""),
        ("snapshot p/c@2", ""),
        ("clone p/c@2 p/d", ""),
        ("promote p/d", ""),
        ("get origin p/c", "p/d@2 -"),
        ("get origin p/d", "p/a@1 -"),
        ("promote p/d", ""),
        ("get origin p/a", "p/d@1 -"),
        ("get origin p/c", "p/d@2 -"),
        ("destroy p/a", ""),
        ("destroy p/c", ""),
        ("list p", "p p/d p/d@1 p/d@2"),
    ]);
}

#[test]
fn clones_are_what_they_were_after_the_next_import() {
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("write p/a 4", ""),
            ("snapshot p/a@1", ""),
            ("clone p/a@1 p/c", ""),
            ("promote p/c", ""),
        ])
        .await;
        rig.reopen().await;
        rig.check(&[
            ("get origin p/a", "p/c@1 -"),
            ("get clones p/c@1", "p/a -"),
            ("mib used p/c", "4"),
            ("destroy p/a", ""),
            ("destroy-snapshots p/c@1", ""),
        ])
        .await;
    });
}
