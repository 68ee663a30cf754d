//! Programs: many changes in one txg.

use dsl::{DslError, Hierarchy, ProgramChange, ProgramList, ProgramStep};
use ondisk::Txg;

use crate::rig::run;

fn destroy(name: &str) -> ProgramChange {
    ProgramChange::Destroy {
        name: name.into(),
        defer: false,
    }
}

fn snapshot(name: &str) -> ProgramChange {
    ProgramChange::Snapshot { name: name.into() }
}

async fn names(step: &ProgramStep<'_>, list: ProgramList, of: &str) -> Vec<String> {
    let (object, _) = step.find(of).await.expect("it exists");
    let (mut names, mut cookie) = (Vec::new(), 0);
    while let Some(item) = step
        .next(list, object, cookie)
        .await
        .expect("it can be read")
    {
        cookie = item.cookie;
        names.push(item.name);
    }
    names.sort();
    names
}

async fn create_txg(hierarchy: &Hierarchy, name: &str) -> Txg {
    hierarchy.info(name).await.expect("it exists").create_txg
}

#[test]
fn steps_see_those_before_them_and_are_one_txg() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("create p/a/b", ""),
            ("write p/a 4", ""),
            ("snapshot p/a@old", ""),
        ])
        .await;
        let program = async |step: &ProgramStep<'_>| {
            step.apply(snapshot("p/a@new")).await.expect("a snapshot");
            step.apply(snapshot("p/a/b@new")).await.expect("a snapshot");
            assert_eq!(
                names(step, ProgramList::Snapshots, "p/a").await,
                ["p/a@new", "p/a@old"]
            );
            assert_eq!(names(step, ProgramList::Children, "p").await, ["p/a"]);
            // One snapshot of a dataset in a txg.
            let again = step.apply(snapshot("p/a@third")).await;
            assert!(matches!(again, Err(DslError::Again)), "{again:?}");
            step.check(&destroy("p/a@old"))
                .await
                .expect("it can be destroyed");
            assert_eq!(names(step, ProgramList::Snapshots, "p/a").await.len(), 2);
            step.apply(destroy("p/a@old"))
                .await
                .expect("it can be destroyed");
            let rename = ProgramChange::RenameSnapshot {
                dataset: "p/a".into(),
                from: "new".into(),
                to: "named".into(),
            };
            step.apply(rename).await.expect("a new name");
            let refused = step.apply(destroy("p/a")).await;
            assert!(
                matches!(refused, Err(DslError::HasChildren { .. })),
                "{refused:?}"
            );
            assert_eq!(
                names(step, ProgramList::Snapshots, "p/a").await,
                ["p/a@named"]
            );
        };
        rig.hierarchy.run_program(program).await.expect("it runs");
        let txg = create_txg(&rig.hierarchy, "p/a@named").await;
        assert_eq!(create_txg(&rig.hierarchy, "p/a/b@new").await, txg);
        rig.check(&[("list p", "p p/a p/a@named p/a/b p/a/b@new")])
            .await;
    });
}

#[test]
fn promotions_and_destructions_in_a_txg() {
    run(|rig| async move {
        rig.check(&[
            ("create p/a", ""),
            ("write p/a 2", ""),
            ("snapshot p/a@1", ""),
            ("clone p/a@1 p/b", ""),
            ("snapshot p/b@2", ""),
            ("clone p/b@2 p/c", ""),
        ])
        .await;
        let program = async |step: &ProgramStep<'_>| {
            for _ in 0..2 {
                let promote = ProgramChange::Promote { name: "p/c".into() };
                step.apply(promote).await.expect("a clone");
            }
            step.apply(destroy("p/b"))
                .await
                .expect("it has nothing any more");
            step.apply(destroy("p/a"))
                .await
                .expect("it has nothing any more");
            assert_eq!(
                names(step, ProgramList::Snapshots, "p/c").await,
                ["p/c@1", "p/c@2"]
            );
        };
        rig.hierarchy.run_program(program).await.expect("it runs");
        rig.check(&[("list p", "p p/c p/c@1 p/c@2"), ("mib referenced p/c", "2")])
            .await;
    });
}

#[test]
fn a_program_that_looks_changes_nothing() {
    run(|rig| async move {
        rig.check(&[("create p/a", ""), ("snapshot p/a@1", "")])
            .await;
        let found = rig
            .hierarchy
            .look_with_program(async |step: &ProgramStep<'_>| {
                step.check(&snapshot("p/a@2"))
                    .await
                    .expect("it could be taken");
                step.check(&destroy("p/a@1"))
                    .await
                    .expect("it could be destroyed");
                names(step, ProgramList::Snapshots, "p/a").await
            })
            .await;
        assert_eq!(found, ["p/a@1"]);
        rig.check(&[("list p", "p p/a p/a@1")]).await;
    });
}
