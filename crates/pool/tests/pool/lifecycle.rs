//! Create, export, import, destroy; properties and history; refusals.

use std::time::Duration;

use pool::{Health, HistoryEvent, ImportPolicy, Pool, PoolError, PoolState, VdevSpec, discover};

use crate::support::*;

#[test]
fn a_new_pool_is_clean_in_the_eyes_of_zdb() {
    for (name, disks, vdevs) in [
        ("single", 1, single()),
        ("mirror", 2, mirror()),
        (
            "two mirrors and a single",
            5,
            vec![
                VdevSpec::Mirror(vec![path(0), path(1)]),
                VdevSpec::Mirror(vec![path(2), path(3)]),
                VdevSpec::Single(path(4)),
            ],
        ),
    ] {
        let world = world(1, disks, 128 * MIB);
        run(&world, async |handle| {
            let pool = create(&handle, vdevs).await;
            assert_eq!(pool.status().health, Health::Online);
            pool.export().await.expect("export");
        });
        zdb_clean(&world, name);
    }
}

#[test]
fn openzfs_imports_a_new_pool_and_we_import_it_back() {
    let world = world(2, 2, 128 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        pool.export().await.expect("export");
    });
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = world.dump(dir.path()).expect("dump");
    if !refpool_run(
        dir.path(),
        "ds",
        &files,
        &["--", "tank/made", "scrub:tank", "fill:tank/made=500000"],
    ) {
        return;
    }
    zdb_clean_dir(dir.path(), "after OpenZFS wrote to it");
    let again = world_of_files(3, &files);
    run(&again, async |handle| {
        let pool = import(&handle, 2).await;
        pool.hierarchy()
            .dataset("tank/made")
            .await
            .expect("OpenZFS's dataset");
        pool.sync().await.expect("sync");
        pool.export().await.expect("export");
    });
    zdb_clean(&again, "imported back");
}

#[test]
fn export_and_import_keep_identity_properties_and_history() {
    let world = world(4, 1, 128 * MIB);
    let guid = run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        pool.set_property("comment", "first light")
            .await
            .expect("set");
        pool.set_property("failmode", "continue")
            .await
            .expect("set");
        pool.set_property("org.example:owner", "me")
            .await
            .expect("set");
        assert!(matches!(
            pool.set_property("size", "1").await,
            Err(PoolError::Invalid(_))
        ));
        pool.log_command("zfs set compression=off tank", 0);
        pool.export().await.expect("export");
        pool.guid()
    });
    run(&world, async |handle| {
        let found = find(&handle, 1).await;
        assert_eq!(found[0].guid, guid);
        assert_eq!(found[0].state, PoolState::Exported);
        assert_eq!(found[0].comment.as_deref(), Some("first light"));
        let renamed = ImportPolicy {
            new_name: Some("bank".into()),
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], renamed)
            .await
            .expect("import");
        assert_eq!(pool.name(), "bank");
        for (name, value) in [
            ("comment", "first light"),
            ("failmode", "continue"),
            ("org.example:owner", "me"),
            ("health", "ONLINE"),
        ] {
            assert_eq!(
                pool.property(name).await.expect("property").exact(),
                value,
                "{name}"
            );
        }
        let history = pool.history().await.expect("history");
        let commands: Vec<&str> = history
            .iter()
            .filter_map(|record| match &record.event {
                HistoryEvent::Command(command) => Some(command.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(
            commands,
            ["zpool create tank", "zfs set compression=off tank"]
        );
        pool.export().await.expect("export");
    });
    run(&world, async |handle| {
        let found = find(&handle, 1).await;
        assert_eq!(found[0].name, "bank");
        let pool = Pool::import(&handle, &found[0], policy())
            .await
            .expect("import");
        pool.destroy().await.expect("destroy");
    });
    run(&world, async |handle| {
        let found = find(&handle, 1).await;
        assert_eq!(found[0].state, PoolState::Destroyed);
        let refused = Pool::import(&handle, &found[0], policy()).await;
        assert!(matches!(refused, Err(PoolError::Destroyed)));
        let recover = ImportPolicy {
            destroyed: true,
            ..policy()
        };
        Pool::import(&handle, &found[0], recover)
            .await
            .expect("recover")
            .export()
            .await
            .expect("export");
    });
}

#[test]
fn a_pool_of_another_host_needs_force() {
    let world = world(5, 1, 128 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        pool.abandon();
    });
    world.power_cut();
    run(&world, async |handle| {
        let found = find(&handle, 1).await;
        assert_eq!(found[0].state, PoolState::Active);
        let mut elsewhere = policy();
        elsewhere.host.hostid = 99;
        let refused = Pool::import(&handle, &found[0], elsewhere.clone()).await;
        let Err(error @ PoolError::ForeignHost { .. }) = refused else {
            panic!("not refused")
        };
        assert!(
            error.to_string().contains("use 'zpool import -f'"),
            "{error}"
        );
        elsewhere.force = true;
        Pool::import(&handle, &found[0], elsewhere)
            .await
            .expect("forced")
            .export()
            .await
            .expect("export");
    });
    zdb_clean(&world, "taken over");
}

#[test]
fn read_only_import_writes_nothing() {
    let world = world(6, 2, 128 * MIB);
    make_exported(&world, mirror());
    let before: Vec<u64> = world
        .images()
        .values()
        .map(world::Image::content_hash)
        .collect();
    run(&world, async |handle| {
        let found = find(&handle, 2).await;
        let policy = ImportPolicy {
            readonly: true,
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], policy.clone())
            .await
            .expect("import");
        assert!(pool.is_read_only());
        assert_eq!(
            pool.property("readonly").await.expect("property").exact(),
            "on"
        );
        pool.hierarchy().dataset(POOL).await.expect("root dataset");
        assert!(matches!(
            pool.set_property("comment", "x").await,
            Err(PoolError::ReadOnly)
        ));
        pool.export().await.expect("export");
        let pool = Pool::import(&handle, &found[0], policy)
            .await
            .expect("import again");
        pool.destroy()
            .await
            .expect("destroy what cannot be written");
        assert_eq!(find(&handle, 2).await[0].state, PoolState::Exported);
    });
    let after: Vec<u64> = world
        .images()
        .values()
        .map(world::Image::content_hash)
        .collect();
    assert_eq!(before, after);
}

#[test]
fn missing_halves_degrade_and_missing_vdevs_refuse() {
    let world = world(7, 3, 128 * MIB);
    run(&world, async |handle| {
        let vdevs = vec![
            VdevSpec::Mirror(vec![path(0), path(1)]),
            VdevSpec::Single(path(2)),
        ];
        create(&handle, vdevs).await.export().await.expect("export");
    });
    world.vanish(path(1));
    run(&world, async |handle| {
        let found = find(&handle, 3).await;
        assert_eq!(found[0].health, Health::Degraded);
        let pool = Pool::import(&handle, &found[0], policy())
            .await
            .expect("import");
        let status = pool.status();
        assert_eq!(status.health, Health::Degraded);
        assert_eq!(status.root.children[0].children[1].health, Health::Unavail);
        pool.set_property("comment", "written with one half")
            .await
            .expect("set");
        pool.export().await.expect("export");
    });
    world.vanish(path(2));
    run(&world, async |handle| {
        let found = find(&handle, 3).await;
        assert_eq!(found[0].health, Health::Unavail);
        let refused = Pool::import(&handle, &found[0], policy()).await;
        assert!(matches!(refused, Err(PoolError::MissingDevices { .. })));
    });
}

#[test]
fn a_disk_that_never_answers_is_imported_without() {
    let world = world(31, 2, 128 * MIB);
    make_exported(&world, mirror());
    world.stick(path(1));
    run(&world, async |handle| {
        let began = handle.now();
        let places = [path(0), path(1)];
        let found = discover(&handle, &places).await;
        assert_eq!(found.rejected.len(), 1, "{:?}", found.rejected);
        assert_eq!(found.rejected[0].0, path(1));
        let pool = Pool::import(&handle, &found.pools[0], policy()).await;
        let pool = pool.expect("import");
        let took = handle.now().since(began);
        assert!(took < Duration::from_secs(90), "{took:?}");
        assert_eq!(pool.status().health, Health::Degraded);
        let comment = pool.set_property("comment", "written with one half").await;
        comment.expect("set");
        pool.export().await.expect("export");
    });
    world.unstick(path(1));
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        handle.sleep(Duration::from_secs(60)).await;
        assert_eq!(pool.status().health, Health::Online);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "a disk that did not answer and came back");
}

#[test]
fn used_devices_are_refused() {
    let world = world(8, 1, 128 * MIB);
    run(&world, async |handle| {
        create(&handle, single())
            .await
            .export()
            .await
            .expect("export");
        let refused = Pool::create(&handle, spec(single()), empty_root).await;
        let Err(error @ PoolError::DeviceInUse { .. }) = refused else {
            panic!("not refused")
        };
        assert!(
            error
                .to_string()
                .contains("is part of exported pool 'tank'"),
            "{error}"
        );
    });
}
