//! Pools whose newest state is damaged go back to an older one when asked, lose what came after it and no more, and go on
//! from there.

use pool::{Pool, PoolError, Rewind};
use world::World;

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

const LABEL: u64 = 256 << 10;

/// Runs some txgs; returns the pool's content after each, by txg.
fn groups(world: &World) -> Vec<(u64, Recorder)> {
    let mut rng = world.rng();
    run(world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let mut recorder = Recorder::default();
        let mut known = Vec::new();
        for _ in 0..8 {
            for _ in 0..6 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
            }
            let txg = pool.sync().await.expect("sync");
            known.push((txg.0, recorder.clone()));
        }
        drop(dataset);
        // As a crash leaves it: the newest state is the last txg's.
        pool.abandon();
        known
    })
}

/// Overwrites all copies of the meta-objset's root of the txgs from `txg` on.
fn damage_from(world: &World, txg: u64) {
    let mut places = Vec::new();
    let image = world.durable_images()[&path(0)].clone();
    let mut label = vec![0; usize::try_from(LABEL).expect("small")];
    image.read(0, &mut label);
    for slot in label[128 << 10..]
        .chunks(4096)
        .flat_map(|page| page.chunks(1024))
    {
        if let Ok(uberblock) = ondisk::Uberblock::decode(slot)
            && uberblock.txg.0 >= txg
        {
            places.extend(uberblock.rootbp.copies().map(|dva| dva.offset));
        }
    }
    assert!(!places.is_empty(), "uberblocks were found");
    for offset in places {
        world.damage(path(0), (4 << 20) + offset, &[0x5a; 512]);
    }
}

async fn import_with(handle: &runtime::Handle, rewind: Option<Rewind>) -> Result<Pool, PoolError> {
    let found = find(handle, 1).await;
    let policy = pool::ImportPolicy { rewind, ..policy() };
    Pool::import(handle, &found[0], policy).await
}

#[test]
fn a_damaged_newest_state_gives_way_to_the_one_before() {
    let world = world(171, 1, 96 * MIB);
    let known = groups(&world);
    let (newest, _) = known[known.len() - 1].clone();
    let (before, expected) = known[known.len() - 2].clone();
    damage_from(&world, before + 1);
    run(&world, async |handle| {
        let refused = import_with(&handle, None).await.err().expect("damaged");
        assert!(refused.is_damage(), "{refused}");
        let pool = import_with(&handle, Some(Rewind::default())).await;
        let pool = pool.expect("goes back");
        let rewound = pool.rewound().expect("it says so");
        assert!(rewound.txg >= before && rewound.txg < newest, "{rewound:?}");
        compare(&root(&pool).await, &expected.now, "one txg back").await;
        let txg = pool.sync().await.expect("sync");
        assert!(
            txg.0 > newest,
            "{txg} would lose against the damaged states"
        );
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after going back");
    run(&world, async |handle| {
        let pool = import_with(&handle, None).await.expect("imports by itself");
        assert_eq!(pool.rewound(), None);
        compare(&root(&pool).await, &expected.now, "and again").await;
        pool.export().await.expect("export");
    });
}

#[test]
fn an_exact_group_is_found_and_too_far_is_refused() {
    let world = world(172, 1, 96 * MIB);
    let known = groups(&world);
    let (old, expected) = known[2].clone();
    let (first_bad, _) = known[3].clone();
    run(&world, async |handle| {
        // Nothing is damaged: an older state is looked at without writing.
        let found = find(&handle, 1).await;
        let policy = pool::ImportPolicy {
            readonly: true,
            rewind: Some(Rewind {
                extreme: true,
                txg: Some(old),
            }),
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], policy)
            .await
            .expect("opens");
        assert_eq!(pool.rewound().map(|rewound| rewound.txg), Some(old));
        compare(&root(&pool).await, &expected.now, "an older state").await;
        pool.export().await.expect("close");
    });
    damage_from(&world, first_bad);
    run(&world, async |handle| {
        let refused = import_with(&handle, Some(Rewind::default())).await;
        assert!(refused.is_err(), "more than two txgs back needs -X");
        let extreme = Rewind {
            extreme: true,
            txg: None,
        };
        let pool = import_with(&handle, Some(extreme)).await.expect("extreme");
        assert!(pool.rewound().expect("back").txg < first_bad);
        compare(&root(&pool).await, &expected.now, "far back").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after going back far");
}
