//! Goal: pools that OpenZFS was cut off in when it had listed a new child of a raidz and not yet begun to expand it are opened, which
//! OpenZFS itself does not. Method: its own code dies before that txg.

use std::path::{Path, PathBuf};
use std::process::Command;

use pool::{ImportPolicy, Pool, PoolError, Rewind};

use crate::support::*;

/// Runs OpenZFS's code; false when it is not there.
fn openzfs(dir: &Path, args: &[&str], files: &[PathBuf], operations: &[String]) -> bool {
    let Some(program) = refpool() else {
        return false;
    };
    let mut command = Command::new(program);
    command.current_dir(dir).args(args).args(files);
    let output = command.args(operations).output().expect("refpool runs");
    assert!(output.status.success(), "refpool {args:?}: {output:?}");
    true
}

#[test]
fn a_child_listed_before_the_expansion_begins_does_not_count() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let files: Vec<PathBuf> = (0..4)
        .map(|disk| dir.path().join(format!("d{disk}")))
        .collect();
    for file in &files {
        let file = std::fs::File::create(file).expect("create a disk");
        file.set_len(128 * MIB).expect("size");
    }
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let (old, new) = (&files[..3], files[3].display());
    if !openzfs(dir.path(), &["create", POOL, "raidz1"], old, &[]) {
        return;
    }
    let fill = words("-- tank/a fill:tank/a=3000000 tank/b");
    openzfs(dir.path(), &["ds", POOL], old, &fill);
    let before = world_of_files(1, old);
    let txg_before = run(&before, async |handle| find(&handle, 3).await[0].txg);
    let expand = format!("-- expand:tank={},{new},0", files[0].display());
    openzfs(dir.path(), &["ds", POOL], old, &words(&expand));

    let world = world_of_files(2, &files);
    run(&world, async |handle| {
        let found = find(&handle, 4).await;
        assert!(found[0].txg > txg_before);
        let forced = ImportPolicy {
            force: true,
            ..policy()
        };
        let refused = Pool::import(&handle, &found[0], forced.clone()).await;
        match refused.map(|_| ()) {
            Err(PoolError::UnsupportedForWrite { features }) => {
                assert!(features[0].starts_with("org.openzfs:raidz_expansion"));
            }
            other => panic!("imported for writing: {other:?}"),
        }
        let read_only = ImportPolicy {
            readonly: true,
            rewind: Some(Rewind::default()),
            ..forced
        };
        let pool = Pool::import(&handle, &found[0], read_only.clone())
            .await
            .expect("import for reading");
        for name in ["tank/a", "tank/b"] {
            pool.hierarchy().dataset(name).await.expect("a dataset");
        }
        pool.export().await.expect("export");

        // The labels of a txg, the state of one in which the child is not listed.
        let earlier = ImportPolicy {
            rewind: Some(Rewind {
                txg: Some(txg_before),
                ..Rewind::default()
            }),
            ..read_only
        };
        let pool = Pool::import(&handle, &found[0], earlier)
            .await
            .expect("import an earlier state");
        assert_eq!(pool.status().root.children[0].children.len(), 3);
        pool.export().await.expect("export");
    });
}
