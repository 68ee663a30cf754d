//! Keys of encrypted datasets across power cuts: datasets are created, cloned, promoted and destroyed, and their keys changed, until
//! the power goes. After the next import each dataset that was acknowledged is there, below the encryption root it had, and the key
//! of that root, the old one or the one it was being changed to, opens everything: none is left that no key opens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use dmu::AllocSpec;
use dsl::property::{DatasetKind, Kinds, Property, Setting, Value};
use dsl::{DslError, Estimate, Hierarchy, KeyChange, KeyFormat, ListSpec, NewDataset, NewKey};
use ondisk::{ObjectId, ObjectType};
use pool::Pool;
use world::{Ended, Rng};

use crate::support::*;

/// Seeds of the test; more were run when it was written.
const SEEDS: u64 = 60;
/// Bytes of the object that each dataset gets.
const CONTENT: usize = 20_000;

/// An encrypted dataset: its encryption root, and its object once that is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    root: String,
    object: Option<ObjectId>,
    is_clone: bool,
}

/// Datasets by name, and the keys of encryption roots by number.
#[derive(Clone, Debug, Default)]
struct Model {
    things: BTreeMap<String, Thing>,
    keys: BTreeMap<String, u8>,
}

/// What was acknowledged, and what the operation under way makes of it.
#[derive(Default)]
struct Known {
    acknowledged: Model,
    under_way: Option<Model>,
    serial: u8,
}

fn key(number: u8) -> WrappingKey {
    WrappingKey::from_raw(&[number; 32]).expect("32 bytes")
}

fn new_key(number: u8) -> NewKey {
    NewKey {
        format: KeyFormat::Raw,
        key: Arc::new(key(number)),
    }
}

fn content() -> Vec<u8> {
    let mut data = vec![0; CONTENT];
    Rng::new(5).fill(&mut data);
    data
}

struct Admin {
    pool: Pool,
    hierarchy: Hierarchy,
    known: Rc<RefCell<Known>>,
    rng: Rng,
}

impl Admin {
    fn model(&self) -> Model {
        self.known.borrow().acknowledged.clone()
    }

    /// A number that was not used yet.
    fn number(&self) -> u8 {
        let mut known = self.known.borrow_mut();
        known.serial = known.serial.checked_add(1).expect("few operations");
        known.serial
    }

    fn pick(&mut self, wanted: impl Fn(&str, &Thing) -> bool) -> Option<String> {
        let model = self.model();
        let fitting = model
            .things
            .iter()
            .filter(|(name, thing)| wanted(name, thing));
        let names: Vec<String> = fitting.map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then(|| self.rng.choose(&names).clone())
    }

    fn begin(&self, next: Model) {
        self.known.borrow_mut().under_way = Some(next);
    }

    fn end(&self) {
        let mut known = self.known.borrow_mut();
        known.acknowledged = known.under_way.take().expect("one has begun");
    }

    async fn step(&mut self) {
        match self.rng.below(10) {
            0..=2 => self.create().await,
            3..=5 => self.change_key().await,
            6 => self.inherit().await,
            7 => self.clone_one().await,
            8 => self.promote().await,
            _ => self.destroy().await,
        }
    }

    async fn create(&mut self) {
        let number = self.number();
        let parent = self.pick(|name, thing| !thing.is_clone && name.matches('/').count() < 3);
        let own = parent.is_none() || self.rng.below(3) == 0;
        let parent = parent.unwrap_or_else(|| "tank".to_owned());
        let name = format!("{parent}/d{number}");
        let mut next = self.model();
        let root = match next.things.get(&parent) {
            Some(above) if !own => above.root.clone(),
            _ => name.clone(),
        };
        if own {
            next.keys.insert(name.clone(), number);
        }
        let thing = Thing {
            root,
            object: None,
            is_clone: false,
        };
        next.things.insert(name.clone(), thing);
        let native = |property, number| Setting::Native(property, Value::Number(number));
        let mut settings = Vec::new();
        if own {
            settings.push(native(Property::Encryption, 3 + self.rng.below(6)));
            settings.push(native(Property::KeyFormat, 1));
        }
        let new = NewDataset {
            name: name.clone(),
            kind: DatasetKind::Filesystem,
            settings,
            creator: 0,
            key: own.then(|| new_key(number)),
        };
        self.begin(next);
        let made = self.hierarchy.create_dataset(new, empty_root).await;
        made.expect("create");
        self.end();
        let dataset = self.hierarchy.dataset(&name).await.expect("open");
        let tx = dataset
            .begin(Estimate::bytes(1 << 20))
            .await
            .expect("begin");
        let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(4096);
        let object = dataset
            .objset()
            .allocate(spec, &tx)
            .await
            .expect("allocate");
        let written = dataset.objset().write(object, 0, &content(), &tx).await;
        written.expect("write");
        drop(tx);
        self.pool.sync().await.expect("sync");
        let mut known = self.known.borrow_mut();
        let thing = known.acknowledged.things.get_mut(&name).expect("made");
        thing.object = Some(object);
    }

    async fn change_key(&mut self) {
        let Some(name) = self.pick(|_, thing| !thing.is_clone) else {
            return;
        };
        let number = self.number();
        let mut next = self.model();
        let old = next.things[&name].root.clone();
        reroot(&mut next, &name, &old, &name);
        next.keys.insert(name.clone(), number);
        self.begin(next);
        let change = KeyChange::New {
            key: new_key(number),
            location: Some("prompt".to_owned()),
        };
        let changed = self.hierarchy.change_key(&name, change).await;
        changed.expect("change the key");
        self.end();
    }

    async fn inherit(&mut self) {
        let model = self.model();
        let parent_of = |name: &str| name.rsplit_once('/').map(|(parent, _)| parent.to_owned());
        let has_parent =
            |name: &str| parent_of(name).is_some_and(|parent| model.things.contains_key(&parent));
        let wanted =
            |name: &str, thing: &Thing| !thing.is_clone && thing.root == name && has_parent(name);
        let Some(name) = self.pick(wanted) else {
            return;
        };
        let mut next = model.clone();
        let above = parent_of(&name).expect("a parent");
        let root = next.things[&above].root.clone();
        if root == name {
            // The parent is a clone of it.
            return;
        }
        reroot(&mut next, &name, &name, &root);
        next.keys.remove(&name);
        self.begin(next);
        let changed = self.hierarchy.change_key(&name, KeyChange::Inherit).await;
        changed.expect("inherit the key");
        self.end();
    }

    /// Clones lie beside all others, and have no children: what a key is changed for is below a dataset in the tree of names.
    async fn clone_one(&mut self) {
        let Some(name) = self.pick(|_, thing| !thing.is_clone && thing.object.is_some()) else {
            return;
        };
        let number = self.number();
        let snapshot = format!("{name}@s{number}");
        let taken = self
            .hierarchy
            .snapshot(std::slice::from_ref(&snapshot), &[])
            .await;
        assert!(taken.expect("snapshot").is_empty());
        let clone = format!("tank/c{number}");
        let mut next = self.model();
        let thing = Thing {
            is_clone: true,
            ..next.things[&name].clone()
        };
        next.things.insert(clone.clone(), thing);
        self.begin(next);
        let made = self
            .hierarchy
            .clone_snapshot(&snapshot, &clone, Vec::new(), 0);
        made.await.expect("clone");
        self.end();
    }

    /// Exchanges a clone with its origin, and back again.
    async fn promote(&mut self) {
        let Some(clone) = self.pick(|name, thing| thing.is_clone && name.starts_with("tank/c"))
        else {
            return;
        };
        let info = self
            .hierarchy
            .properties_named(&clone, &["origin".to_owned()])
            .await;
        let origin = info.expect("look").properties.remove(0);
        let origin = origin.value.text().expect("a clone").to_owned();
        let (origin, short) = origin.split_once('@').expect("a snapshot");
        let mut next = self.model();
        let root = next.things[origin].root.clone();
        if root != origin {
            // It would have to lie below the same root.
            let refused = self.hierarchy.promote(&clone).await;
            assert!(
                matches!(refused, Err(DslError::PromoteOutsideRoot)),
                "{refused:?}"
            );
            return;
        }
        for thing in next
            .things
            .values_mut()
            .filter(|thing| !thing.is_clone && thing.root == *origin)
        {
            thing.root.clone_from(&clone);
        }
        let number = next.keys.remove(origin).expect("a root has a key");
        next.keys.insert(clone.clone(), number);
        let promoted = next.things.get_mut(&clone).expect("known");
        (promoted.is_clone, promoted.root) = (false, clone.clone());
        next.things.get_mut(origin).expect("known").is_clone = true;
        self.begin(next);
        self.hierarchy.promote(&clone).await.expect("promote");
        self.end();
        // Names stay what they say: the clone is one again, and snapshots are where they were.
        let mut next = self.model();
        for thing in next.things.values_mut().filter(|thing| thing.root == clone) {
            thing.root = origin.to_owned();
        }
        let number = next.keys.remove(&clone).expect("a root has a key");
        next.keys.insert(origin.to_owned(), number);
        next.things.get_mut(&clone).expect("known").is_clone = true;
        let restored = next.things.get_mut(origin).expect("known");
        (restored.is_clone, restored.root) = (false, origin.to_owned());
        self.begin(next);
        self.hierarchy.promote(origin).await.expect("promote back");
        self.end();
        assert!(
            self.hierarchy
                .info(&format!("{origin}@{short}"))
                .await
                .is_ok()
        );
    }

    async fn destroy(&mut self) {
        let Some(name) = self.pick(|name, thing| thing.is_clone && name.starts_with("tank/c"))
        else {
            return;
        };
        let mut next = self.model();
        next.things.remove(&name);
        self.begin(next);
        self.hierarchy.destroy(&name).await.expect("destroy");
        self.end();
    }
}

/// Gives a dataset and what lies below it another root, as far as they had the same one. Clones have that of their origin.
fn reroot(model: &mut Model, name: &str, old: &str, new: &str) {
    let below = format!("{name}/");
    for (other, thing) in &mut model.things {
        if thing.root == old && !thing.is_clone && (other == name || other.starts_with(&below)) {
            thing.root = new.to_owned();
        }
    }
}

/// What is found, with the encryption roots; clones have that of their origin.
async fn found(hierarchy: &Hierarchy) -> BTreeMap<String, String> {
    let spec = ListSpec {
        depth: None,
        kinds: Kinds::DATASET,
    };
    let mut all = BTreeMap::new();
    for info in hierarchy.list("tank", spec).await.expect("list") {
        if info.kind == DatasetKind::Snapshot {
            continue;
        }
        if let Some(key) = hierarchy.key_info(&info.name).await.expect("a key") {
            assert!(!key.loaded, "{} has a key before one is loaded", info.name);
            all.insert(info.name, key.root);
        }
    }
    all
}

/// Whether a model is what was found: datasets and roots, and the keys that open them.
async fn fits(hierarchy: &Hierarchy, model: &Model, found: &BTreeMap<String, String>) -> bool {
    let same = model.things.len() == found.len()
        && model.things.iter().all(|(name, thing)| {
            found
                .get(name)
                .is_some_and(|root| thing.is_clone || *root == thing.root)
        });
    if !same {
        return false;
    }
    for (root, number) in &model.keys {
        if hierarchy.load_key(root, key(*number), true).await.is_err() {
            return false;
        }
    }
    true
}

async fn everything_opens(hierarchy: &Hierarchy, model: &Model, what: &str) {
    for (root, number) in &model.keys {
        let wrong = hierarchy.load_key(root, key(255), false).await;
        assert!(
            matches!(wrong, Err(DslError::WrongKey { .. })),
            "{what}: {root}: {wrong:?}"
        );
        let loaded = hierarchy.load_key(root, key(*number), false).await;
        loaded.unwrap_or_else(|error| panic!("{what}: {root}: {error}"));
    }
    for (name, thing) in &model.things {
        let dataset = hierarchy.dataset(name).await;
        let dataset = dataset.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        if let Some(object) = thing.object {
            let read = dataset.objset().read(object, 0, CONTENT).await;
            let read = read.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(
                read[..] == content()[..],
                "{what}: {name} has other contents"
            );
        }
    }
}

fn one_seed(seed: u64) {
    let world = world(9_000 + seed, 1, 128 * MIB);
    make_exported(&world, single());
    let known = Rc::new(RefCell::new(Known::default()));
    for round in 0..2 {
        let what = format!("seed {seed}, round {round}");
        let runtime = world.boot();
        let mut rng = Rng::new(seed * 2 + round);
        world.plan_cut_at_write(rng.below(900) + 20);
        let shared = known.clone();
        let ended = world.run_on(&runtime, async move |handle| {
            let pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy().clone();
            let model = shared.borrow().acknowledged.clone();
            for (root, number) in &model.keys {
                hierarchy
                    .load_key(root, key(*number), false)
                    .await
                    .expect("load");
            }
            let mut admin = Admin {
                pool,
                hierarchy,
                known: shared,
                rng,
            };
            for _ in 0..40 {
                admin.step().await;
            }
        });
        drop(runtime);
        if matches!(ended, Ended::Done(())) {
            world.power_cut();
        }
        run(&world, async |handle| {
            let pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy();
            let there = found(hierarchy).await;
            let (acknowledged, under_way) = {
                let known = known.borrow();
                (known.acknowledged.clone(), known.under_way.clone())
            };
            let model = match under_way {
                _ if fits(hierarchy, &acknowledged, &there).await => acknowledged,
                Some(next) if fits(hierarchy, &next, &there).await => next,
                other => panic!("{what}: {there:?} is neither {acknowledged:?} nor {other:?}"),
            };
            everything_opens(hierarchy, &model, &what).await;
            {
                let mut known = known.borrow_mut();
                (known.acknowledged, known.under_way) = (model, None);
            }
            pool.export().await.expect("export");
        });
        if seed.is_multiple_of(20) {
            zdb_clean(&world, &what);
        }
    }
}

#[test]
fn a_key_is_the_old_one_or_the_new_one() {
    for seed in 0..SEEDS {
        one_seed(seed);
    }
}
