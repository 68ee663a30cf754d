//! Labels and the uberblock ring on a device; refusing devices that are in use, too small or of another pool.

use ondisk::nvlist::NvList;
use ondisk::{BlockPointer, Txg, Uberblock};
use runtime::{DiskError, DiskMode, Handle};
use vdev::labels::{self, LabelSet, LabelState};
use vdev::{
    ConfigTarget, DiskUse, Health, LeafSpec, OpenMode, TopSpec, Tree, TreeConfig, TreeSpec,
    TreeTuning, VdevError, disk_use, plan,
};
use world::{DiskModel, Ended, World};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn spec(paths: &[&str], ashift: Option<u8>) -> TreeSpec {
    let leaves = paths
        .iter()
        .map(|path| LeafSpec { path: path.into() })
        .collect();
    TreeSpec {
        tops: vec![TopSpec {
            parity: 0,
            draid: None,
            leaves,
            bias: vdev::AllocationBias::None,
            ashift,
        }],
    }
}

pub(crate) fn done<T>(ended: Ended<T>) -> T {
    match ended {
        Ended::Done(value) => value,
        Ended::PowerCut => panic!("the power was not cut"),
    }
}

/// Makes a pool's labels on every leaf: what `pool` does, without a pool.
pub(crate) async fn make(handle: &Handle, paths: &[&str], ashift: u8) -> (TreeConfig, Tree) {
    make_spec(handle, &spec(paths, Some(ashift))).await
}

/// Like [`make`], for any tree.
pub(crate) async fn make_spec(handle: &Handle, spec: &TreeSpec) -> (TreeConfig, Tree) {
    let (config, conflicts) = plan(handle, spec).await.expect("a plan");
    assert!(conflicts.is_empty());
    let tree = Tree::open(
        handle,
        &config,
        OpenMode::ReadWrite,
        TreeTuning::default(),
        true,
    )
    .await
    .expect("opens");
    for leaf in tree.leaves() {
        tree.init_labels(leaf.guid).await.expect("prepares");
        let label = NvList::new()
            .with("version", 5000_u64)
            .with("name", "tank")
            .with("state", 0_u64)
            .with("txg", 7_u64)
            .with("pool_guid", config.guid.0)
            .with("guid", leaf.guid.0)
            .with(
                "vdev_tree",
                config.tops[0].to_nvlist(ConfigTarget::Label, true),
            );
        let packed = label.encode_xdr();
        for which in [0, 2, 1, 3] {
            tree.write_label(leaf.guid, which, &packed)
                .await
                .expect("writes");
        }
        tree.flush_leaf(leaf.guid).await.expect("flushes");
    }
    (config, tree)
}

#[test]
fn labels_and_uberblocks_are_found_again() {
    let world = World::new(1);
    // An odd size: labels 2 and 3 are placed by whole labels.
    world.add_disk("/d0", DiskModel::new(100 * MIB + 12_345 * 512));
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/d0"], 12).await;
        let leaf = config.tops[0].guid;
        for txg in 4..60 {
            let uberblock = Uberblock::new(Txg(txg), tree.guid_sum(), txg, BlockPointer::HOLE);
            tree.write_uberblock(leaf, &uberblock)
                .await
                .expect("writes");
        }
        tree.flush().await.expect("flushes");
        let set = tree.read_labels(leaf).await.expect("reads");
        assert!(
            set.labels
                .iter()
                .all(|label| matches!(label, LabelState::Valid(_)))
        );
        assert_eq!(
            set.best_config().and_then(|config| config.str("name")),
            Some("tank")
        );
        assert_eq!(set.uberblocks.len(), 4 * 32);
        assert_eq!(set.best_uberblock(None).map(|u| u.txg), Some(Txg(59)));
        assert_eq!(
            set.best_uberblock(Some(Txg(30))).map(|u| u.txg),
            Some(Txg(30))
        );
        assert_eq!(
            set.best_uberblock(Some(Txg(20))).map(|u| u.txg),
            None,
            "overwritten by then"
        );
        let best = tree.best_uberblock(None).await.expect("reads");
        assert_eq!(
            best.map(|uberblock| uberblock.guid_sum),
            Some(config.guid_sum())
        );
        tree.close();
        let disk = handle
            .open_disk("/d0".as_ref(), DiskMode::ReadWrite)
            .await
            .expect("opens");
        labels::clear(&disk).await.expect("clears");
        let set = LabelSet::read(&disk).await.expect("reads");
        assert!(
            set.labels
                .iter()
                .all(|label| matches!(label, LabelState::Empty))
        );
        assert!(set.uberblocks.is_empty());
    }));
}

#[test]
fn damaged_labels_do_not_hide_good_ones() {
    let world = World::new(2);
    world.add_disk("/d0", DiskModel::new(100 * MIB));
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/d0"], 9).await;
        inner.rot("/d0", 16 << 10, 64);
        inner.add_latent_error("/d0", 100 * MIB - 200 * 1024);
        inner.damage("/d0", (256 << 10) + (128 << 10), &[0xff; 4096]);
        let set = tree.read_labels(config.tops[0].guid).await.expect("reads");
        assert!(matches!(set.labels[0], LabelState::Bad));
        assert!(matches!(set.labels[1], LabelState::Valid(_)));
        assert!(matches!(set.labels[2], LabelState::Valid(_)));
        assert!(matches!(set.labels[3], LabelState::Unreadable));
        assert!(set.best_config().is_some());
    }));
}

#[test]
fn a_device_tells_what_it_holds() {
    let world = World::new(3);
    for path in ["/free", "/pool", "/ext", "/gpt", "/small"] {
        let size = if path == "/small" { 63 * MIB } else { 64 * MIB };
        world.add_disk(path, DiskModel::new(size));
    }
    world.damage("/ext", 0x438, &[0x53, 0xef]);
    world.damage("/gpt", 512, b"EFI PART");
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/pool"], 12).await;
        tree.close();
        drop(tree);
        let found = |path: &'static str| {
            let handle = handle.clone();
            async move { disk_use(&handle, path.as_ref()).await.expect("opens") }
        };
        assert_eq!(found("/free").await, DiskUse::Free);
        assert!(matches!(found("/ext").await, DiskUse::Foreign { what } if what.contains("ext4")));
        assert!(matches!(found("/gpt").await, DiskUse::Foreign { what } if what.contains("GPT")));
        let expect = DiskUse::Pool {
            name: "tank".into(),
            state: 0,
            pool_guid: config.guid.0,
            guid: config.tops[0].guid.0,
        };
        assert_eq!(found("/pool").await, expect);
        let (_, conflicts) = plan(&handle, &spec(&["/free", "/pool", "/ext"], None))
            .await
            .expect("a plan");
        let paths: Vec<_> = conflicts
            .iter()
            .map(|conflict| conflict.path.clone())
            .collect();
        assert_eq!(paths, ["/pool", "/ext"].map(std::path::PathBuf::from));
        let refused = |paths: &'static [&'static str]| {
            let handle = handle.clone();
            async move {
                plan(&handle, &spec(paths, None))
                    .await
                    .expect_err("must be refused")
            }
        };
        assert!(matches!(
            refused(&["/small"]).await,
            VdevError::TooSmall { .. }
        ));
        assert!(matches!(
            refused(&["/free", "/free"]).await,
            VdevError::BadConfig { .. }
        ));
        assert!(matches!(refused(&["/none"]).await, VdevError::Open { .. }));
        assert!(matches!(refused(&[]).await, VdevError::BadConfig { .. }));
    }));
}

#[test]
fn sector_sizes_decide_ashift() {
    let world = World::new(4);
    for (path, logical, physical) in [
        ("/512", 512, 512),
        ("/512e", 512, 4096),
        ("/4kn", 4096, 4096),
        ("/odd", 512, 1 << 20),
    ] {
        let mut model = DiskModel::new(64 * MIB).with_sectors(logical, physical);
        model.block_device = true;
        world.add_disk(path, model);
    }
    done(world.run(|handle| async move {
        for (path, ashift) in [("/512", 9), ("/512e", 12), ("/4kn", 12), ("/odd", 14)] {
            let (config, _) = plan(&handle, &spec(&[path], None)).await.expect("a plan");
            assert_eq!(config.tops[0].ashift, ashift, "{path}");
        }
        let error = plan(&handle, &spec(&["/4kn"], Some(9)))
            .await
            .expect_err("must be refused");
        assert!(matches!(
            error,
            VdevError::SectorSize {
                needed: 12,
                have: 9,
                ..
            }
        ));
        assert!(plan(&handle, &spec(&["/512"], Some(17))).await.is_err());
    }));
}

#[test]
fn a_foreign_or_missing_device_is_not_used() {
    let world = World::new(5);
    for path in ["/a", "/b", "/c"] {
        world.add_disk(path, DiskModel::new(64 * MIB));
    }
    done(world.run(|handle| async move {
        let (mut config, tree) = make(&handle, &["/a", "/b"], 12).await;
        tree.close();
        drop(tree);
        // A foreign disk in place of /b, then nothing there at all, then both gone.
        for (b, a, health) in [
            ("/c", "/a", Some(Health::Degraded)),
            ("/none", "/a", Some(Health::Degraded)),
            ("/none", "/c", None),
        ] {
            config.tops[0].children[0].open_path = Some(a.into());
            config.tops[0].children[1].open_path = Some(b.into());
            let mode = OpenMode::ReadWrite;
            match Tree::open(&handle, &config, mode, TreeTuning::default(), false).await {
                Ok(tree) => {
                    assert_eq!(Some(tree.status().health), health);
                    assert_eq!(tree.leaves()[1].health, Health::Unavailable);
                    tree.close();
                }
                Err(error) => {
                    assert!(health.is_none(), "{error}");
                    assert!(matches!(error, VdevError::Unavailable { vdev: 0 }));
                }
            }
        }
    }));
}

/// Devices that another program is just closing can be used; one that is not given up is refused by name, in bounded time.
#[test]
fn a_busy_device_is_waited_for_but_not_for_ever() {
    let second = std::time::Duration::from_secs(1);
    let world = World::new(4);
    world.add_disk("/d0", DiskModel::new(64 * MIB));
    done(world.run(|handle| async move {
        let path = std::path::Path::new("/d0");
        let paths = spec(&["/d0"], None);
        let other = handle.open_disk(path, DiskMode::ReadWrite).await;
        let (other, clock) = (other.expect("opens"), handle.clone());
        let closing = handle.spawn("other", async move {
            clock.sleep(second).await;
            drop(other);
        });
        let began = handle.now();
        let (config, conflicts) = plan(&handle, &paths).await.expect("a plan");
        assert_eq!((config.tops.len(), conflicts.len()), (1, 0));
        let waited = handle.now() - began;
        assert!(
            waited >= second && waited < second + second / 10,
            "{waited:?}"
        );
        closing.await;

        let other = handle.open_disk(path, DiskMode::ReadWrite).await;
        let began = handle.now();
        let refused = plan(&handle, &paths).await;
        let waited = handle.now() - began;
        assert!(waited >= 2 * second && waited < 3 * second, "{waited:?}");
        match refused {
            Err(VdevError::Open { path, source }) => {
                assert_eq!(path.to_str(), Some("/d0"));
                assert!(matches!(source, DiskError::Busy { .. }), "{source}");
            }
            other => panic!("{other:?}"),
        }
        drop(other);
    }));
}
