//! ZAPs against a `BTreeMap`: conversion, growth, removal, cursors, overlapping txgs, reopening.

use std::collections::BTreeMap;

use ondisk::{ObjectId, ObjectType, ObjsetType};

use super::driver::Random;
use super::rig::{Rig, options, run};
use crate::zap::{self, ZapSpec, ZapValue};
use crate::{DmuError, Objset, TxWeight};

const DIRECTORY: ObjectType = ObjectType::DIRECTORY_CONTENTS;

type Model = BTreeMap<Vec<u8>, ZapValue>;

async fn compare(os: &Objset, object: ObjectId, model: &Model) {
    assert_eq!(
        zap::count(os, object).await.expect("counts"),
        model.len() as u64
    );
    for page in [1, 7, 1000] {
        if page == 1 && model.len() > 500 {
            continue;
        }
        let mut seen = Model::new();
        let mut cookie = 0;
        loop {
            let entries = zap::cursor(os, object, cookie, page).await.expect("lists");
            let Some(last) = entries.last() else { break };
            assert!(last.next_cookie >= 1 << 28);
            cookie = last.next_cookie;
            for entry in entries {
                assert!(
                    seen.insert(entry.name, entry.value).is_none(),
                    "listed once"
                );
            }
        }
        assert!(
            seen == *model,
            "the cursor lists exactly what is there, {} of {}",
            seen.len(),
            model.len()
        );
    }
    for (name, value) in model {
        assert_eq!(
            zap::lookup(os, object, name)
                .await
                .expect("looks up")
                .as_ref(),
            Some(value)
        );
    }
    assert_eq!(
        zap::lookup(os, object, "not there")
            .await
            .expect("looks up"),
        None
    );
}

fn name(random: &mut Random, space: u64) -> Vec<u8> {
    let n = random.below(space);
    // Some names are too long for a micro ZAP.
    let width = if n.is_multiple_of(97) {
        60 + usize::try_from(n % 100).expect("small")
    } else {
        3
    };
    format!("n{n:0width$}").into_bytes()
}

fn value(random: &mut Random, plain: bool) -> ZapValue {
    match if plain { 0 } else { random.below(12) } {
        1 => ZapValue::U8(vec![7; usize::try_from(random.below(300)).expect("small")]),
        2 => ZapValue::U16(vec![1, 2, 3]),
        3 => ZapValue::U32(vec![5; 9]),
        4 => ZapValue::U64(vec![9; usize::try_from(random.below(40)).expect("small")]),
        _ => ZapValue::from(random.next()),
    }
}

fn scenario(seed: u64, space: u64, steps: u64, plain: bool) {
    run(seed, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let mut random = Random(seed);
        let tx = rig
            .services
            .clock
            .begin(TxWeight::default())
            .await
            .expect("open");
        let object = zap::create(&os, &ZapSpec::new(DIRECTORY), &tx)
            .await
            .expect("creates");
        drop(tx);
        let mut model = Model::new();
        // What the older txg of two overlapping ones must hold.
        for step in 0..steps {
            let older = rig
                .services
                .clock
                .begin(TxWeight::default())
                .await
                .expect("open");
            let mut quiesced = None;
            let overlap = random.below(200) == 0;
            let newer = if overlap {
                let clock = rig.services.clock.clone();
                quiesced = Some(handle.spawn("quiesce", async move { clock.quiesce_next().await }));
                while rig.services.clock.open_txg() == older.txg() {
                    handle.yield_now().await;
                }
                Some(
                    rig.services
                        .clock
                        .begin(TxWeight::default())
                        .await
                        .expect("open"),
                )
            } else {
                None
            };
            let mut in_older = model.clone();
            for turn in 0..if overlap { 40 } else { 1 } {
                let in_newer = overlap && turn % 2 == 0;
                let tx = if in_newer {
                    newer.as_ref().expect("overlaps")
                } else {
                    &older
                };
                let name = if plain {
                    format!("n{}", random.below(space)).into_bytes()
                } else {
                    name(&mut random, space)
                };
                if random.below(5) < 2 && !model.is_empty() {
                    let result = zap::remove(&os, object, &name, tx).await;
                    if model.remove(&name).is_none() {
                        // The newest version decides; then nothing is done in the older one either.
                        assert!(matches!(result, Err(DmuError::ZapNoEntry { .. })));
                        continue;
                    }
                    result.expect("was there");
                    if !in_newer {
                        in_older.remove(&name);
                    }
                    continue;
                }
                let value = value(&mut random, plain);
                if random.below(2) == 0 {
                    let result = zap::add(&os, object, &name, &value, tx).await;
                    if model.contains_key(&name) {
                        assert!(matches!(result, Err(DmuError::ZapEntryExists { .. })));
                        continue;
                    }
                    result.expect("adds");
                } else {
                    zap::update(&os, object, &name, &value, tx)
                        .await
                        .expect("updates");
                }
                model.insert(name.clone(), value.clone());
                if !in_newer {
                    in_older.insert(name, value);
                }
            }
            drop(older);
            if let Some(task) = quiesced {
                let txg = task.await;
                let root = os.sync(txg, 1, &mut rig.ledger).await.expect("syncs");
                rig.services.clock.synced(txg);
                rig.ledger.synced();
                let apart = rig.reopened(root).await.expect("opens");
                compare(&apart, object, &in_older).await;
                drop(newer);
            } else if random.below(300) == 0 || step + 1 == steps {
                let root = rig.sync().await.expect("syncs");
                let apart = rig.reopened(root).await.expect("opens");
                compare(&apart, object, &model).await;
            }
        }
        compare(&os, object, &model).await;
    });
}

#[test]
fn small_zaps() {
    for seed in 0..10 {
        scenario(seed, 60, 1500, true);
    }
}

#[test]
fn growing_zaps_with_all_kinds_of_values() {
    for seed in 0..6 {
        scenario(seed, 3000, 4000, false);
    }
}

#[test]
fn micro_zaps_that_pass_128_kib() {
    scenario(1, 9000, 9000, true);
}

/// Listing by cookie while entries come and go: whatever is there all the time is listed once.
#[test]
fn cursors_survive_changes() {
    run(3, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::default())
            .await
            .expect("open");
        let object = zap::create(&os, &ZapSpec::new(DIRECTORY), &tx)
            .await
            .expect("creates");
        for i in 0..1500 {
            zap::add_u64(&os, object, format!("stays{i}"), i, &tx)
                .await
                .expect("adds");
        }
        let mut cookie = 0;
        let mut seen = BTreeMap::new();
        let mut round = 0;
        loop {
            let entries = zap::cursor(&os, object, cookie, 13).await.expect("lists");
            let Some(last) = entries.last() else { break };
            cookie = last.next_cookie;
            for entry in &entries {
                assert_eq!(seen.insert(entry.name.clone(), ()), None, "listed once");
                if entry.name.starts_with(b"goes") {
                    zap::remove(&os, object, &entry.name, &tx)
                        .await
                        .expect("removes");
                }
            }
            // The additions make it fat and split leaves in the middle of the listing.
            for i in 0..10 {
                zap::add_u64(&os, object, format!("goes{round}-{i}"), 1, &tx)
                    .await
                    .expect("adds");
            }
            round += 1;
        }
        for i in 0..1500 {
            assert!(
                seen.contains_key(format!("stays{i}").as_bytes()),
                "stays{i} is listed"
            );
        }
        assert!(!zap::info(&os, object).await.expect("described").is_micro);
        drop(tx);
        rig.sync().await.expect("syncs");
    });
}

#[test]
fn a_large_zap_grows_its_table() {
    run(5, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::default())
            .await
            .expect("open");
        let object = zap::create(&os, &ZapSpec::new(DIRECTORY), &tx)
            .await
            .expect("creates");
        drop(tx);
        const ENTRIES: u64 = 300_000;
        let mut created = std::time::Duration::ZERO;
        for i in 0..ENTRIES {
            let tx = rig
                .services
                .clock
                .begin(TxWeight::unthrottled())
                .await
                .expect("open");
            let before = std::time::Instant::now();
            zap::add_u64(&os, object, format!("file-{i}"), i, &tx)
                .await
                .expect("adds");
            created += before.elapsed();
            drop(tx);
            if i % 50_000 == 49_999 {
                rig.sync().await.expect("syncs");
            }
        }
        eprintln!(
            "{ENTRIES} entries added, {:?} each",
            created / u32::try_from(ENTRIES).expect("small")
        );
        let root = rig.sync().await.expect("syncs");
        let apart = rig.reopened(root).await.expect("opens");
        let before = std::time::Instant::now();
        for i in 0..ENTRIES {
            assert_eq!(
                zap::lookup_u64(&apart, object, format!("file-{i}"))
                    .await
                    .expect("found"),
                Some(i)
            );
        }
        eprintln!(
            "looked up, {:?} each",
            before.elapsed() / u32::try_from(ENTRIES).expect("small")
        );
        assert_eq!(
            zap::entries(&apart, object).await.expect("lists").len() as u64,
            ENTRIES
        );
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        for i in (0..ENTRIES).step_by(2) {
            zap::remove(&os, object, format!("file-{i}"), &tx)
                .await
                .expect("removes");
        }
        drop(tx);
        assert_eq!(zap::count(&os, object).await.expect("counts"), ENTRIES / 2);
        rig.sync().await.expect("syncs");
    });
}

#[test]
fn integer_keys_and_folded_names() {
    run(9, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::META, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::default())
            .await
            .expect("open");
        let words = ZapSpec {
            flags: 3,
            ..ZapSpec::new(ObjectType::DDT_ZAP)
        };
        let words = zap::create(&os, &words, &tx).await.expect("creates");
        for i in 0..2000_u64 {
            zap::add_u64_key(&os, words, &[i, i * i], &ZapValue::U64(vec![i, 1]), &tx)
                .await
                .expect("adds");
        }
        assert!(
            zap::add_u64(&os, words, "name", 1, &tx).await.is_err(),
            "it takes integer keys only"
        );
        for i in (0..2000_u64).step_by(3) {
            zap::remove_u64_key(&os, words, &[i, i * i], &tx)
                .await
                .expect("removes");
        }
        let folded = ZapSpec {
            normalization: 2,
            ..ZapSpec::new(ObjectType::DSL_DS_SNAP_MAP)
        };
        let folded = zap::create(&os, &folded, &tx).await.expect("creates");
        zap::add_u64(&os, folded, "Snap", 1, &tx)
            .await
            .expect("adds");
        zap::add_u64(&os, folded, "sNAP", 2, &tx)
            .await
            .expect("adds");
        zap::add_u64(&os, folded, "one", 3, &tx)
            .await
            .expect("adds");
        for round in 0..2 {
            assert_eq!(
                zap::lookup_u64(&os, folded, "Snap").await.expect("found"),
                Some(1)
            );
            assert_eq!(
                zap::lookup_u64(&os, folded, "SNAP")
                    .await
                    .expect("not exact"),
                None
            );
            let (value, stored, ambiguous) = zap::lookup_normalized(&os, folded, "ONE")
                .await
                .expect("looks up")
                .expect("found");
            assert_eq!(
                (value.as_u64(), stored.as_slice(), ambiguous),
                (Some(3), b"one".as_slice(), false)
            );
            let (_, _, ambiguous) = zap::lookup_normalized(&os, folded, "snap")
                .await
                .expect("looks up")
                .expect("found");
            assert!(ambiguous);
            if round == 0 {
                // Fat from here on.
                zap::add(&os, folded, "text", &ZapValue::from("value"), &tx)
                    .await
                    .expect("adds");
            }
        }
        drop(tx);
        let root = rig.sync().await.expect("syncs");
        let apart = rig.reopened(root).await.expect("opens");
        for i in 0..2000_u64 {
            let want = (!i.is_multiple_of(3)).then(|| ZapValue::U64(vec![i, 1]));
            assert_eq!(
                zap::lookup_u64_key(&apart, words, &[i, i * i])
                    .await
                    .expect("looks up"),
                want
            );
        }
    });
}

#[test]
fn counters() {
    run(11, |handle| async move {
        let rig = Rig::new(&handle, ObjsetType::META, options())
            .await
            .expect("a new objset");
        let os = &rig.os;
        let tx = rig
            .services
            .clock
            .begin(TxWeight::default())
            .await
            .expect("open");
        let object = zap::create(os, &ZapSpec::new(ObjectType::USERGROUP_USED), &tx)
            .await
            .expect("creates");
        for fat in [false, true] {
            if fat {
                zap::update(os, object, "text", &ZapValue::from("x"), &tx)
                    .await
                    .expect("becomes fat");
            }
            assert_eq!(
                zap::increment(os, object, "3e8", 500, &tx)
                    .await
                    .expect("counts"),
                500
            );
            assert_eq!(
                zap::increment(os, object, "3e8", -100, &tx)
                    .await
                    .expect("counts"),
                400
            );
            assert_eq!(
                zap::increment(os, object, "3e8", -400, &tx)
                    .await
                    .expect("counts"),
                0
            );
            assert_eq!(
                zap::lookup(os, object, "3e8").await.expect("looks up"),
                None,
                "zero is not stored"
            );
        }
    });
}

#[test]
fn a_zap_made_with_its_entries_is_the_one_they_are_added_to() {
    run(7, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let mut made = Vec::new();
        // None; one block of the smallest size, full and not; the largest; too many for one.
        for count in [0, 1, 7, 8, 300, 2047, 2048, 5000_u64] {
            let tx = rig.services.clock.begin(TxWeight::default());
            let tx = tx.await.expect("open");
            let entries: Vec<(String, u64)> = (0..count)
                .map(|n| (format!("{:x}", n * 1_000_003), n))
                .collect();
            let spec = ZapSpec::new(DIRECTORY);
            let object = zap::create_with(&os, &spec, &entries, &tx).await;
            let object = object.expect("creates");
            let is_micro = zap::info(&os, object).await.expect("is a ZAP").is_micro;
            assert_eq!(is_micro, count <= 2047, "{count}");
            let mut model: Model = entries
                .into_iter()
                .map(|(name, value)| (name.into_bytes(), ZapValue::from(value)))
                .collect();
            compare(&os, object, &model).await;
            for name in ["added", "and one more"] {
                zap::add_u64(&os, object, name, 1, &tx).await.expect("adds");
                model.insert(name.into(), ZapValue::from(1));
            }
            assert!(zap::add_u64(&os, object, "added", 2, &tx).await.is_err());
            made.push((object, model));
        }
        let root = rig.sync().await.expect("syncs");
        let os = rig.reopened(root).await.expect("opens");
        for (object, model) in &made {
            compare(&os, *object, model).await;
        }
        rig.check(root).await.expect("the tree is whole");
    });
}
