//! What owners use, counted as objects change and completed afterwards, against a model of the objects.

use std::collections::BTreeMap;

use ondisk::{BlockPointer, ObjectId, ObjectType, ObjsetType, Txg, objset_flags};
use runtime::Handle;

use super::driver::Random;
use super::rig::{Rig, options, run};
use crate::{AllocSpec, Objset, ObjsetOptions, Owner, Tx, TxWeight};

const ALL: u64 = objset_flags::USER_ACCOUNTING_COMPLETE
    | objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE
    | objset_flags::PROJECT_QUOTA_COMPLETE;

/// Both flags of a dnode that is counted.
const COUNTED: u8 =
    ondisk::dnode_flags::USERUSED_ACCOUNTED | ondisk::dnode_flags::USEROBJUSED_ACCOUNTED;

/// Objects, each with the numbers of its user, group and project.
type Owners = BTreeMap<ObjectId, [u8; 3]>;

fn owner_of(_: ObjectType, bonus: &[u8]) -> Option<Owner> {
    let id = |at: usize| bonus.get(at).copied().map(u64::from);
    Some(Owner {
        uid: id(0)?,
        gid: id(1)?,
        project: id(2)?,
    })
}

fn counted(create_flags: u64) -> ObjsetOptions {
    ObjsetOptions {
        owner_of: Some(owner_of),
        create_flags,
        ..options()
    }
}

/// Makes, changes and frees some objects.
async fn change(os: &Objset, owners: &mut Owners, random: &mut Random, count: u64, tx: &Tx) {
    for _ in 0..count {
        let ids = [random.below(5), random.below(4), random.below(3)].map(|n| n.to_le_bytes()[0]);
        let at = random.below(owners.len().max(1) as u64);
        let some = owners
            .keys()
            .nth(usize::try_from(at).expect("small"))
            .copied();
        match (random.below(5), some) {
            (0, Some(object)) => {
                os.free_object(object, tx).await.expect("frees");
                owners.remove(&object);
            }
            (1, Some(object)) => {
                let set = os.set_bonus(object, ObjectType::SA, &ids, tx).await;
                set.expect("chowns");
                owners.insert(object, ids);
            }
            (2, Some(object)) => {
                let written = os.write(object, random.below(60_000), &[9; 700], tx).await;
                written.expect("writes");
            }
            _ => {
                let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS)
                    .block_size(1024)
                    .bonus(ObjectType::SA, 3);
                let object = os.allocate(spec, tx).await.expect("allocates");
                let set = os.set_bonus(object, ObjectType::SA, &ids, tx).await;
                set.expect("owns");
                owners.insert(object, ids);
            }
        }
    }
}

/// Compares the counts with those of the objects whose dnodes say that they are counted; the counts of `which` kinds.
async fn compare(os: &Objset, owners: &Owners, kinds: std::ops::Range<usize>, what: &str) {
    let mut want: BTreeMap<(usize, u64), (u64, u64)> = BTreeMap::new();
    for (object, ids) in owners {
        let info = os.object_info(*object).await.expect("described");
        if os.flags() & ALL == ALL {
            assert_eq!(info.flags & COUNTED, COUNTED, "{what}: {object} is counted");
        }
        for (which, id) in ids.iter().enumerate() {
            let entry = want.entry((which, u64::from(*id))).or_default();
            if info.flags & ondisk::dnode_flags::USERUSED_ACCOUNTED != 0 {
                entry.0 += 512 + info.used_bytes;
            }
            if info.flags & ondisk::dnode_flags::USEROBJUSED_ACCOUNTED != 0 {
                entry.1 += 1;
            }
        }
    }
    for which in kinds {
        for id in 0..6 {
            let want = want.get(&(which, id)).copied().unwrap_or((0, 0));
            let have = os.usage(which, id).await.expect("readable");
            assert_eq!(have, want, "{what}: usage ZAP {which}, id {id}");
        }
    }
}

#[test]
fn usage_follows_owners_sizes_and_frees() {
    run(1, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, counted(ALL))
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        assert_eq!(os.flags(), ALL);
        let mut random = Random(1);
        let mut owners = Owners::new();
        for _ in 0..20 {
            let tx = begin(&rig).await;
            change(&os, &mut owners, &mut random, 30, &tx).await;
            drop(tx);
            rig.sync().await.expect("syncs");
            compare(&os, &owners, 0..3, "all").await;
        }
    });
}

async fn begin(rig: &Rig) -> Tx {
    let tx = rig.services.clock.begin(TxWeight::unthrottled()).await;
    tx.expect("open")
}

/// Writes a txg, while the next one is open already.
async fn sync_of(rig: &mut Rig, txg: Txg) -> BlockPointer {
    rig.ledger.count_references(txg);
    let root = rig.os.sync(txg, 1, &mut rig.ledger).await.expect("syncs");
    rig.services.clock.synced(txg);
    rig.ledger.synced();
    root
}

/// Goes over the objects of an objset in which only `begun` was counted, a block or a few in a txg, while objects come, change and go in that
/// txg and in the next one. Now and then the power is cut: the objset is opened anew, and the walk begins again. Half-way the counts are those
/// of the objects that say so, and in the end they are complete.
async fn walk(handle: &Handle, seed: u64, begun: u64) {
    let mut random = Random(seed);
    let mut rig = Rig::new(handle, ObjsetType::ZFS, counted(begun))
        .await
        .expect("a new objset");
    let mut owners = Owners::new();
    for _ in 0..1 + random.below(6) {
        let tx = begin(&rig).await;
        let os = rig.os.clone();
        change(&os, &mut owners, &mut random, 60, &tx).await;
        drop(tx);
        rig.sync().await.expect("syncs");
    }
    let mut cuts = random.below(3);
    let mut block = None;
    loop {
        let os = rig.os.clone();
        let what = format!("seed {seed}, begun with {begun}, {cuts} cuts to come");
        let older = begin(&rig).await;
        change(&os, &mut owners, &mut random, random_count(seed), &older).await;
        let quiesced = {
            let clock = rig.services.clock.clone();
            handle.spawn("quiesce", async move { clock.quiesce_next().await })
        };
        while rig.services.clock.open_txg() == older.txg() {
            handle.yield_now().await;
        }
        let newer = begin(&rig).await;
        change(&os, &mut owners, &mut random, 10, &newer).await;
        match block {
            None => {
                let flags = ALL & !begun;
                let at = os.begin_counting(flags, &older).await.expect("begins");
                block = Some(at);
            }
            Some(at) => {
                let mut at = at;
                for _ in 0..1 + random.below(2) {
                    if let Some(next) = os.next_to_count(at).await.expect("reads") {
                        os.count_block(next, &older).await.expect("counts");
                        at = next + 1;
                    } else {
                        os.end_counting(&older);
                    }
                }
                block = Some(at);
            }
        }
        change(&os, &mut owners, &mut random, 10, &newer).await;
        drop(older);
        sync_of(&mut rig, quiesced.await).await;
        drop(newer);
        let root = rig.sync().await.expect("syncs");
        if os.flags() & ALL == ALL {
            break;
        }
        if begun & objset_flags::USER_ACCOUNTING_COMPLETE != 0 {
            compare(&os, &owners, 0..2, &what).await;
        }
        if cuts > 0 && random.below(4) == 0 {
            cuts -= 1;
            block = None;
            let opened = Objset::open(&rig.services, root, counted(0)).await;
            rig.os = opened.expect("opens");
        }
    }
    compare(&rig.os, &owners, 0..3, &format!("seed {seed}: complete")).await;
    rig.os.forget_counting();
    for _ in 0..3 {
        let tx = begin(&rig).await;
        let os = rig.os.clone();
        change(&os, &mut owners, &mut random, 30, &tx).await;
        drop(tx);
        rig.sync().await.expect("syncs");
        compare(&os, &owners, 0..3, &format!("seed {seed}: afterwards")).await;
    }
}

/// So few or so many changes in a txg that the walk meets most objects as they were, or none.
fn random_count(seed: u64) -> u64 {
    [0, 5, 60][usize::try_from(seed % 3).expect("small")]
}

#[test]
fn counts_are_completed_while_objects_change() {
    let users = objset_flags::USER_ACCOUNTING_COMPLETE;
    let objects = objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE;
    for seed in 1..=20 {
        for begun in [
            0,
            users,
            users | objects,
            users | objset_flags::PROJECT_QUOTA_COMPLETE,
        ] {
            run(
                seed,
                |handle| async move { walk(&handle, seed, begun).await },
            );
        }
    }
}
