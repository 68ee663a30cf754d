//! Random writes, punches, truncates, allocations and frees in overlapping transaction groups, against plain byte vectors.
//!
//! Each txg has its own model; a change in txg T is made in the models of T and everything newer. When T has synced, its root
//! is opened apart and must show exactly T's model; the objset itself always shows the newest.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{ObjectId, ObjectType, ObjsetType, Txg};

use super::driver::Random;
use super::memory::Live;
use super::rig::{Rig, check_tree, options, run};
use crate::{AllocSpec, Cloneable, DmuError, Objset, ObjsetOptions, Tx, TxWeight};

const OBJECT_BYTES: u64 = 96 << 10;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Object {
    bytes: Vec<u8>,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    slots: u8,
}

type Model = BTreeMap<ObjectId, Object>;

struct World {
    os: Objset,
    models: Rc<RefCell<BTreeMap<Txg, Model>>>,
    random: Random,
}

impl World {
    fn models_from(&self, txg: Txg, mut change: impl FnMut(&mut Model)) {
        let open = self.os.services().clock.open_txg();
        let mut models = self.models.borrow_mut();
        let mut last = None;
        for t in txg.0..=open.0 {
            if !models.contains_key(&Txg(t)) {
                let before: Model = models
                    .range(..Txg(t))
                    .next_back()
                    .map(|(_, m)| m.clone())
                    .unwrap_or_default();
                models.insert(Txg(t), before);
            }
            last = Some(t);
        }
        for t in txg.0..=last.unwrap_or(txg.0) {
            change(models.get_mut(&Txg(t)).expect("made above"));
        }
    }

    fn newest(&self) -> Model {
        self.models
            .borrow()
            .values()
            .next_back()
            .cloned()
            .unwrap_or_default()
    }

    fn at(&self, txg: Txg) -> Model {
        self.models
            .borrow()
            .range(..=txg)
            .next_back()
            .map(|(_, m)| m.clone())
            .unwrap_or_default()
    }

    /// An object that exists in `txg` and in the newest version.
    fn some_object(&mut self, txg: Txg) -> Option<ObjectId> {
        let newest = self.newest();
        let there: Vec<ObjectId> = self
            .at(txg)
            .keys()
            .copied()
            .filter(|id| newest.contains_key(id))
            .collect();
        if there.is_empty() {
            return None;
        }
        let at = usize::try_from(self.random.below(there.len() as u64)).expect("small");
        Some(there[at])
    }

    async fn step(&mut self, tx: &Tx) -> Result<(), DmuError> {
        let txg = tx.txg();
        match self.random.below(19) {
            16..19 => self.clone_some(tx).await?,
            0 | 1 => {
                let slots = [1, 1, 2, 5][usize::try_from(self.random.below(4)).expect("small")];
                let bonus_len = u16::try_from(self.random.below(300)).expect("small");
                let multi = self.random.below(4) != 0;
                let size = if multi {
                    512 << self.random.below(3)
                } else {
                    512 * (1 + self.random.below(9))
                };
                let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS)
                    .block_size(u32::try_from(size).expect("small"))
                    .indirect_shift(12)
                    .bonus(ObjectType::SA, bonus_len)
                    .slots(slots);
                let object = self.os.allocate(spec, tx).await?;
                if trace(object) {
                    eprintln!("{txg} allocate {object} {size}");
                }
                let new = Object {
                    bytes: vec![0; usize::try_from(OBJECT_BYTES).expect("small")],
                    bonus: vec![0; usize::from(bonus_len)],
                    spill: None,
                    slots,
                };
                self.models_from(txg, |m| {
                    assert!(
                        m.insert(object, new.clone()).is_none(),
                        "a new object's number was free"
                    );
                });
            }
            2 => {
                if let Some(object) = self.some_object(txg) {
                    if trace(object) {
                        eprintln!("{txg} free {object}");
                    }
                    self.os.free_object(object, tx).await?;
                    self.models_from(txg, |m| drop(m.remove(&object)));
                }
            }
            3 => {
                if let Some(object) = self.some_object(txg) {
                    let size = 512 << self.random.below(4);
                    let before = self.os.object_info(object).await?.block_size;
                    if trace(object) {
                        eprintln!("{txg} size {object} {size}");
                    }
                    match self.os.set_block_size(object, size, tx).await {
                        Ok(()) if before == size => {}
                        Ok(()) => {
                            // Bytes behind a shrunk block are gone.
                            self.models_from(txg, |m| {
                                let o = m.get_mut(&object).expect("exists");
                                o.bytes[size as usize..].fill(0);
                            });
                        }
                        Err(DmuError::Invalid { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            4 => {
                if let Some(object) = self.some_object(txg) {
                    let max = self.os.object_info(object).await?.bonus_len_max;
                    let len = self.random.below(u64::from(max) + 1);
                    let bytes: Vec<u8> = (0..len)
                        .map(|_| self.random.next().to_le_bytes()[0])
                        .collect();
                    match self.os.set_bonus(object, ObjectType::SA, &bytes, tx).await {
                        Ok(()) => self.models_from(txg, |m| {
                            m.get_mut(&object).expect("exists").bonus = bytes.clone();
                        }),
                        // It fits the newest version, but not this one beside its spill block.
                        Err(DmuError::TooLarge { .. }) if self.at(txg)[&object].spill.is_some() => {
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            5 => {
                if let Some(object) = self.some_object(txg) {
                    let spill = (self.random.below(3) != 0).then(|| {
                        let byte = self.random.next().to_le_bytes()[0] | 1;
                        vec![
                            byte;
                            usize::try_from(512 * (1 + self.random.below(4))).expect("small")
                        ]
                    });
                    match self.os.set_spill(object, spill.as_deref(), tx).await {
                        Ok(()) => self.models_from(txg, |m| {
                            m.get_mut(&object).expect("exists").spill = spill.clone();
                        }),
                        Err(DmuError::TooLarge { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            6..=8 => {
                if let Some(object) = self.some_object(txg) {
                    let offset = self.random.below(OBJECT_BYTES);
                    let len = match self.random.below(3) {
                        0 => u64::MAX,
                        1 => self.random.below(3000),
                        _ => self.random.below(OBJECT_BYTES),
                    };
                    if trace(object) {
                        eprintln!("{txg} free {object} {offset}+{len}");
                    }
                    self.os.free_range(object, offset, len, tx).await?;
                    let end = offset.saturating_add(len).min(OBJECT_BYTES);
                    let range = usize::try_from(offset).expect("small")
                        ..usize::try_from(end).expect("small");
                    self.models_from(txg, |m| {
                        m.get_mut(&object).expect("exists").bytes[range.clone()].fill(0);
                    });
                }
            }
            _ => {
                if let Some(object) = self.some_object(txg) {
                    let info = self.os.object_info(object).await?;
                    let size = u64::from(info.block_size);
                    let limit = if size.is_power_of_two() {
                        OBJECT_BYTES
                    } else {
                        size
                    };
                    let offset = self.random.below(limit);
                    let (offset, len) = match self.random.below(4) {
                        0 => (offset / size * size, size.min(limit - offset / size * size)),
                        1 => (offset, (1 + self.random.below(60)).min(limit - offset)),
                        _ => (offset, (1 + self.random.below(6000)).min(limit - offset)),
                    };
                    let byte = if self.random.below(6) == 0 {
                        0
                    } else {
                        self.random.next().to_le_bytes()[0]
                    };
                    let data: Vec<u8> = (0..len)
                        .map(|i| {
                            if byte == 0 {
                                0
                            } else {
                                byte ^ i.to_le_bytes()[0]
                            }
                        })
                        .collect();
                    if trace(object) {
                        eprintln!("{txg} write {object} {offset}+{len} block {size}");
                    }
                    if self.random.below(2) == 0 {
                        self.os.write(object, offset, &data, tx).await?;
                    } else {
                        self.os
                            .write_buf(object, offset, runtime::IoBuf::copy_from(&data), tx)
                            .await?;
                    }
                    let from = usize::try_from(offset).expect("small");
                    self.models_from(txg, |m| {
                        m.get_mut(&object).expect("exists").bytes[from..from + data.len()]
                            .copy_from_slice(&data);
                    });
                }
            }
        }
        Ok(())
    }

    /// Clones a range of an object, if it is on disk, into another one or another place of the same.
    async fn clone_some(&mut self, tx: &Tx) -> Result<(), DmuError> {
        let txg = tx.txg();
        let (Some(from), Some(to)) = (self.some_object(txg), self.some_object(txg)) else {
            return Ok(());
        };
        let size = u64::from(self.os.object_info(from).await?.block_size);
        if u64::from(self.os.object_info(to).await?.block_size) != size {
            return Ok(());
        }
        let blocks = OBJECT_BYTES / size;
        let near = self.random.below(OBJECT_BYTES);
        let Some(near) = self.os.next_data(from, near).await? else {
            return Ok(());
        };
        let count = 1 + self.random.below(3.min(blocks));
        let source = (near / size).min(blocks - count);
        let target = self.random.below(blocks - count + 1);
        let Cloneable::Blocks(pointers) = self.os.cloneable(from, source, count).await? else {
            return Ok(());
        };
        if trace(to) || trace(from) {
            eprintln!("{txg} clone {from} {source}+{count} to {to} {target} block {size}");
        }
        match self.os.clone_blocks(to, target, &pointers, tx).await {
            Ok(()) => {}
            Err(DmuError::Invalid { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        let range = |first: u64| {
            let at = |block: u64| usize::try_from(block * size).expect("small");
            at(first)..at(first + count)
        };
        let bytes = self.newest()[&from].bytes[range(source)].to_vec();
        self.models_from(txg, |m| {
            m.get_mut(&to).expect("exists").bytes[range(target)].copy_from_slice(&bytes);
        });
        Ok(())
    }

    async fn compare_some(&mut self) -> Result<(), DmuError> {
        let newest = self.newest();
        let Some(object) = self.some_object(Txg(u64::MAX - 1)) else {
            return Ok(());
        };
        let offset = self.random.below(OBJECT_BYTES);
        let len = self.random.below(OBJECT_BYTES - offset);
        let (from, len) = (
            usize::try_from(offset).expect("small"),
            usize::try_from(len).expect("small"),
        );
        let got = self.os.read(object, offset, len).await?;
        assert_eq!(
            first_difference(&got, &newest[&object].bytes[from..from + len]),
            None,
            "object {object}"
        );
        Ok(())
    }
}

/// Set DMU_TRACE to an object number to see what is done to it.
fn trace(object: ObjectId) -> bool {
    std::env::var("DMU_TRACE").is_ok_and(|v| v == object.to_string())
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<(usize, u8, u8)> {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .position(|(x, y)| x != y)
        .map(|at| (at, a[at], b[at]))
}

async fn compare(os: &Objset, model: &Model, what: &str) -> Result<(), DmuError> {
    let mut at = ObjectId(0);
    let mut found = Vec::new();
    while let Some(object) = os.next_object(at).await? {
        found.push(object);
        at = object;
    }
    assert_eq!(
        found,
        model.keys().copied().collect::<Vec<_>>(),
        "objects, {what}"
    );
    for (&object, want) in model {
        let got = os.read(object, 0, want.bytes.len()).await?;
        assert_eq!(
            first_difference(&got, &want.bytes),
            None,
            "object {object}, {what}"
        );
        assert_eq!(
            &os.bonus(object).await?.bytes[..],
            &want.bonus[..],
            "bonus of {object}, {what}"
        );
        assert_eq!(
            os.spill(object).await?.as_deref(),
            want.spill.as_deref(),
            "spill of {object}, {what}"
        );
        assert_eq!(os.object_info(object).await?.slots, want.slots);
        // Holes are inside zeros, and data lies where the model has some.
        let mut position = 0;
        while let Some(data) = os.next_data(object, position).await? {
            if data >= OBJECT_BYTES {
                break;
            }
            let gap =
                usize::try_from(position).expect("small")..usize::try_from(data).expect("small");
            assert!(
                want.bytes[gap].iter().all(|&b| b == 0),
                "a hole reads as zeros"
            );
            position = os.next_hole(object, data).await?;
            assert!(position > data);
            if position >= OBJECT_BYTES {
                break;
            }
        }
        if position < OBJECT_BYTES {
            assert!(
                want.bytes[usize::try_from(position).expect("small")..]
                    .iter()
                    .all(|&b| b == 0)
            );
        }
    }
    Ok(())
}

fn scenario(seed: u64, steps: u64) {
    run(seed, |handle| async move {
        let Rig {
            services,
            store,
            os,
            ledger,
        } = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let ledger = Rc::new(RefCell::new(Some(ledger)));
        let models = Rc::new(RefCell::new(BTreeMap::new()));
        let mut world = World {
            os: os.clone(),
            models: Rc::clone(&models),
            random: Random(seed ^ 0xabcd),
        };
        let mut sync_task: Option<runtime::JoinHandle<()>> = None;
        let mut held: Option<Tx> = None;
        for _ in 0..steps {
            let tx = services
                .clock
                .begin(TxWeight::unthrottled())
                .await
                .expect("open");
            world.step(&tx).await.expect("a step");
            if let Some(old) = &held {
                match world.step(old).await {
                    Ok(())
                    | Err(DmuError::Invalid {
                        what: "the block size was changed in a newer transaction group",
                    }) => {}
                    Err(error) => panic!("a step in the older txg: {error}"),
                }
            }
            if world.random.below(5) == 0 && held.is_none() {
                held = Some(tx);
            } else {
                drop(tx);
            }
            if world.random.below(4) == 0 {
                world.compare_some().await.expect("readable");
            }
            if world.random.below(6) == 0 {
                held = None;
            }
            if world.random.below(8) == 0 {
                if let Some(task) = sync_task.take() {
                    held = None;
                    task.await;
                }
                let (services, os, ledger, models) = (
                    services.clone(),
                    os.clone(),
                    Rc::clone(&ledger),
                    Rc::clone(&models),
                );
                sync_task = Some(handle.spawn("sync", async move {
                    let txg = services.clock.quiesce_next().await;
                    let mut live: Live = ledger.borrow_mut().take().expect("one sync at a time");
                    live.count_references(txg);
                    let root = os.sync(txg, 1, &mut live).await.expect("synced");
                    let model = models
                        .borrow()
                        .range(..=txg)
                        .next_back()
                        .map(|(_, m)| Model::clone(m))
                        .unwrap_or_default();
                    let apart = Objset::open(
                        &services,
                        root,
                        ObjsetOptions {
                            read_only: true,
                            ..options()
                        },
                    )
                    .await
                    .expect("opens");
                    compare(&apart, &model, &format!("on disk, txg {txg}"))
                        .await
                        .expect("readable");
                    check_tree(&services, root, &live)
                        .await
                        .expect("a sound tree");
                    live.synced();
                    *ledger.borrow_mut() = Some(live);
                    services.clock.synced(txg);
                }));
            }
        }
        drop(held);
        if let Some(task) = sync_task {
            task.await;
        }
        compare(&os, &world.newest(), "newest")
            .await
            .expect("readable");
        assert!(store.bytes() > 0);
    });
}

#[test]
fn random_operations_in_overlapping_groups() {
    for seed in 0..40 {
        eprintln!("seed {seed}");
        scenario(seed, 250);
    }
}
