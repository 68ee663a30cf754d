//! Sync tasks: applied whole or not at all, in the order they came in, and seen by none before they are on disk.

use dsl::DslError;

use crate::rig::run;

#[test]
fn a_task_that_is_refused_changes_nothing_and_the_next_goes_on() {
    run(|rig| async move {
        let refused: Result<(), _> = rig
            .hierarchy
            .submit("test", async |_, _| Err(DslError::NoSpace))
            .await;
        assert!(matches!(refused, Err(DslError::NoSpace)));
        rig.check(&[("create p/a", ""), ("list p", "p p/a")]).await;
    });
}

#[test]
fn a_task_returns_when_its_txg_is_on_disk() {
    run(|mut rig| async move {
        rig.check(&[("create p/a", "")]).await;
        let clock = rig.hierarchy.mos().services().clock.clone();
        let txg = rig
            .hierarchy
            .submit("test", async |_, tx| Ok(tx.txg()))
            .await
            .expect("runs");
        assert!(clock.last_synced() >= txg);
        rig.reopen().await;
        rig.check(&[("list p", "p p/a")]).await;
    });
}

#[test]
fn changes_are_events_for_the_history_in_their_order() {
    run(|rig| async move {
        drop(rig.hierarchy.take_events());
        rig.check(&[
            ("create p/a", ""),
            ("set p/a atime=off", ""),
            ("snapshot p/a@1", ""),
            ("destroy p/missing", "dataset does not exist"),
            ("rename p/a p/b", ""),
        ])
        .await;
        let events = rig.hierarchy.take_events();
        let names: Vec<&str> = events.iter().map(|event| event.name).collect();
        assert_eq!(names, ["create", "set", "snapshot", "rename"]);
        assert!(events.is_sorted_by_key(|event| event.txg));
        assert!(events[0].dataset == "p/a" && events[0].object.0 != 0);
        assert!(rig.hierarchy.take_events().is_empty());
    });
}

#[test]
fn of_many_at_once_for_one_name_one_is_done() {
    run(|rig| async move {
        rig.check(&[("create p/x", "")]).await;
        let handle = rig.hierarchy.mos().services().handle.clone();
        let snapshots = [1, 2].map(|_| {
            let hierarchy = rig.hierarchy.clone();
            handle.spawn("snapshot", async move {
                hierarchy.snapshot(&["p/x@1".to_owned()], &[]).await
            })
        });
        let hierarchy = rig.hierarchy.clone();
        let renamed = handle.spawn("rename", async move {
            hierarchy.rename("p/x", "p/y", false).await
        });
        let mut done = 0;
        for taken in snapshots {
            done += u32::from(taken.await.expect("no error of the pool").is_empty());
        }
        renamed.await.expect("renamed");
        assert_eq!(done, 1);
        rig.check(&[("list p", "p p/y p/y@1")]).await;
    });
}
