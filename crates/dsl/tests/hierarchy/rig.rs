//! A hierarchy with a meta-objset, a block store whose space maps live in memory, and a loop that syncs transaction groups.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use dmu::{AllocSpec, Objset, ObjsetOptions, Services, Tx, TxgClock, TxgOptions, zap};
use dsl::property::{self, BLOCK_MAX, DatasetKind, Property, SetContext, Setting, Value};
use dsl::{
    DatasetProperties, DslError, Estimate, Hierarchy, HierarchyOptions, ListSpec, NewDataset,
    NewHierarchy, Refusals,
};
use ondisk::{BlockPointer, ObjectId, ObjectType, ObjsetType, Txg};
use runtime::{Handle, JoinHandle};
use vdev::{LeafSpec, OpenMode, TopSpec, Tree, TreeSpec, TreeTuning};
use world::{DiskModel, Ended, World};
use zio::{BlockStore, MetaSource, StoreOptions, ZioError};

const DISK: &str = "/disk";
const DISK_BYTES: u64 = 256 << 20;

/// The object that `write` writes to in every dataset, made with the dataset.
const DATA: ObjectId = ObjectId(8);
const BLOCK: u32 = 128 << 10;

/// What pools have by default and these tests use.
const FEATURES: [&str; 13] = [
    "async_destroy",
    "empty_bpobj",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "enabled_txg",
    "lz4_compress",
    "large_blocks",
    "filesystem_limits",
    "bookmarks",
    "bookmark_v2",
    "bookmark_written",
    "redaction_bookmarks",
];

/// No space map is ever stored: every metaslab is new.
struct NoSpaceMaps;

impl MetaSource for NoSpaceMaps {
    fn load_space_map(
        &self,
        _vdev: u32,
        _metaslab: u32,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, ZioError>> + '_>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

pub(crate) struct Rig {
    world: World,
    handle: Handle,
    services: Services,
    store: BlockStore,
    root: Rc<Cell<BlockPointer>>,
    stop: Rc<Cell<bool>>,
    sync_loop: RefCell<Option<JoinHandle<()>>>,
    pub(crate) hierarchy: Hierarchy,
}

/// Runs `main` in a world of its own on the hierarchy of a new pool called `p`.
pub(crate) fn run<F: Future<Output = ()>>(main: impl FnOnce(Rig) -> F) {
    let world = World::new(1);
    world.add_disk(DISK, DiskModel::new(DISK_BYTES));
    let own = world.clone();
    let ended = world.run(|handle| async move {
        let rig = Rig::new(own, &handle).await;
        main(rig).await;
    });
    assert!(matches!(ended, Ended::Done(())));
}

/// Runs the lines of a script one after the other, each beside its answer: nothing where it was done.
pub(crate) fn check(script: &'static [(&'static str, &'static str)]) {
    run(|rig| async move { rig.check(script).await });
}

fn options() -> HierarchyOptions {
    HierarchyOptions {
        pool_name: "p".to_owned(),
        read_only: false,
        version: ondisk::SPA_VERSION_FEATURES,
    }
}

/// Fills a new dataset: the master node, which is read for the properties that are fixed at creation, and an object for data.
async fn init(os: &Objset, tx: &Tx, settings: &[Setting]) -> dsl::Result<()> {
    let spec = zap::ZapSpec::new(ObjectType::MASTER_NODE);
    zap::create_at(os, ObjectId(1), &spec, tx).await?;
    zap::add_u64(os, ObjectId(1), "VERSION", 5, tx).await?;
    for setting in settings {
        if let Setting::Native(Property::CaseSensitivity, Value::Number(case)) = setting {
            zap::add_u64(os, ObjectId(1), "casesensitivity", *case, tx).await?;
        }
    }
    let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(BLOCK);
    os.allocate_at(DATA, spec, tx).await?;
    Ok(())
}

impl Rig {
    async fn new(world: World, handle: &Handle) -> Self {
        let spec = TreeSpec {
            tops: vec![TopSpec {
                parity: 0,
                draid: None,
                leaves: vec![LeafSpec {
                    path: PathBuf::from(DISK),
                }],
                bias: vdev::AllocationBias::None,
                ashift: Some(12),
            }],
        };
        let (config, _) = vdev::plan(handle, &spec).await.expect("the disk is fit");
        let mode = OpenMode::ReadWrite;
        let tree = Tree::open(handle, &config, mode, TreeTuning::default(), true)
            .await
            .expect("the disk opens");
        let store = BlockStore::new(handle, tree, StoreOptions::default());
        store.activate(Rc::new(NoSpaceMaps), &[]);
        let services = services(handle, &store, Txg(4));
        let txg = services.clock.quiesce_next().await;
        let tx = services.clock.syncing_tx(txg);
        let kind = ObjsetType::META;
        let mos = Objset::create(&services, kind, ObjsetOptions::meta_objset(), &tx);
        let new = NewHierarchy {
            version: ondisk::SPA_VERSION_FEATURES,
            features: FEATURES
                .iter()
                .map(|name| ondisk::feature::Feature::by_name(name).expect("a feature"))
                .collect(),
            settings: Vec::new(),
            key: None,
        };
        let hierarchy = Hierarchy::create(&mos, options(), new, init, &tx)
            .await
            .expect("a new hierarchy");
        drop(tx);
        let root = Rc::new(Cell::new(mos.root()));
        sync(&hierarchy, &services, &store, &root, txg).await;
        let rig = Self {
            world,
            handle: handle.clone(),
            services,
            store,
            root,
            stop: Rc::default(),
            sync_loop: RefCell::default(),
            hierarchy,
        };
        rig.start();
        rig
    }

    fn start(&self) {
        let (hierarchy, services) = (self.hierarchy.clone(), self.services.clone());
        let (store, root, stop) = (self.store.clone(), self.root.clone(), self.stop.clone());
        stop.set(false);
        let task = self.handle.spawn("sync loop", async move {
            loop {
                let clock = &services.clock;
                clock.wait_for_work(Duration::from_millis(500)).await;
                if stop.get() {
                    return;
                }
                let txg = clock.quiesce_next().await;
                sync(&hierarchy, &services, &store, &root, txg).await;
            }
        });
        *self.sync_loop.borrow_mut() = Some(task);
    }

    /// Syncs, forgets everything in memory, and opens the hierarchy again from disk.
    pub(crate) async fn reopen(&mut self) {
        self.reopen_changed(async |_, _| {}).await;
    }

    /// As [`Rig::reopen`], with the meta-objset changed behind the hierarchy's back.
    pub(crate) async fn reopen_changed(&mut self, change: impl AsyncFnOnce(&Objset, &Tx)) {
        let clock = self.services.clock.clone();
        clock.sync_all().await.expect("syncs");
        self.stop.set(true);
        clock.kick();
        let task = self.sync_loop.borrow_mut().take();
        task.expect("it runs").await;
        let last = clock.last_synced();
        self.services = services(&self.handle, &self.store, Txg(last.0 + 1));
        let meta = ObjsetOptions::meta_objset();
        let mos = Objset::open(&self.services, self.root.get(), meta).await;
        let mos = mos.expect("the meta-objset opens");
        self.hierarchy = Hierarchy::open(&mos, options()).await.expect("opens");
        let txg = self.services.clock.quiesce_next().await;
        change(&mos, &self.services.clock.syncing_tx(txg)).await;
        let (services, store) = (&self.services, &self.store);
        sync(&self.hierarchy, services, store, &self.root, txg).await;
        self.start();
    }

    /// Sets the wall clock ahead of the time that passed, or back.
    pub(crate) fn set_clock_error(&self, seconds: i64) {
        self.world.set_clock_error(seconds);
    }

    /// Lets time pass.
    pub(crate) async fn pause(&self, time: Duration) {
        self.handle.sleep(time).await;
    }

    /// As the function of the same name.
    pub(crate) async fn check(&self, script: &[(&str, &str)]) {
        for (line, expect) in script {
            let answer = self.answer(line).await;
            assert_eq!(answer, *expect, "{line}");
        }
    }

    /// Runs a line and returns what it says; words are set apart by spaces.
    pub(crate) async fn answer(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let hierarchy = &self.hierarchy;
        let done = match words[..] {
            ["create", name, ref settings @ ..] => {
                self.create(name, DatasetKind::Filesystem, settings).await
            }
            ["volume", name, ref settings @ ..] => {
                self.create(name, DatasetKind::Volume, settings).await
            }
            ["destroy", name] => hierarchy.destroy(name).await,
            ["rename", from, to] => hierarchy.rename(from, to, false).await,
            ["rename-r", from, to] => hierarchy.rename(from, to, true).await,
            ["set", name, ref settings @ ..] => self.set(name, settings).await,
            ["inherit", property, name] => hierarchy.inherit_property(name, property, false).await,
            ["clone", snapshot, name] => hierarchy.clone_snapshot(snapshot, name, vec![], 0).await,
            ["promote", name] => hierarchy.promote(name).await,
            ["rollback", name] => hierarchy.rollback(name, None).await,
            ["write", name, mib] => self.write(name, number(mib)).await,
            ["write-unsynced", name, mib] => self.write_unsynced(name, number(mib)).await,
            ["truncate", name] => self.truncate(name).await,
            ["snapshot", ref names @ ..] => {
                return refusals(hierarchy.snapshot(&owned(names), &[]).await);
            }
            ["destroy-snapshots", ref names @ ..] => {
                return refusals(hierarchy.destroy_snapshots(&owned(names), false).await);
            }
            ["destroy-deferred", ref names @ ..] => {
                return refusals(hierarchy.destroy_snapshots(&owned(names), true).await);
            }
            ["hold", tag, ref names @ ..] => {
                return refusals(hierarchy.hold(&owned(names), tag).await);
            }
            ["release", tag, ref names @ ..] => {
                return refusals(hierarchy.release(&owned(names), tag).await);
            }
            ["bookmark", source, name] => {
                let pair = (name.to_owned(), source.to_owned());
                return refusals(hierarchy.create_bookmarks(&[pair]).await);
            }
            ["destroy-bookmarks", ref names @ ..] => {
                return refusals(hierarchy.destroy_bookmarks(&owned(names)).await);
            }
            ["holds", name] => return text(hierarchy.holds(name).await, |holds| tags(&holds)),
            ["written", since, name] => {
                return text(hierarchy.written_since(name, since).await, mib_of);
            }
            ["would-free", first, last] => {
                return text(hierarchy.would_free(first, last).await, mib_of);
            }
            ["get", property, name] => {
                let wanted = [property.to_owned()];
                let found = hierarchy.properties_named(name, &wanted).await;
                return text(found, |found| shown(&found, property));
            }
            ["mib", property, name] => {
                let wanted = [property.to_owned()];
                let found = hierarchy.properties_named(name, &wanted).await;
                return text(found, |found| mib_of(bytes(&found, property)));
            }
            ["list", name] => {
                let all = ListSpec {
                    depth: None,
                    kinds: dsl::property::Kinds::ALL,
                };
                return text(hierarchy.list(name, all).await, |found| {
                    let names = found.into_iter().map(|info| info.name);
                    names.collect::<Vec<_>>().join(" ")
                });
            }
            _ => panic!("no such line: {line}"),
        };
        text(done, |()| String::new())
    }

    async fn create(&self, name: &str, kind: DatasetKind, words: &[&str]) -> dsl::Result<()> {
        let new = NewDataset {
            name: name.to_owned(),
            kind,
            settings: parsed(kind, true, words)?,
            creator: 0,
            key: None,
        };
        self.hierarchy.create_dataset(new, init).await
    }

    async fn set(&self, name: &str, words: &[&str]) -> dsl::Result<()> {
        let kind = match self.hierarchy.info(name).await {
            Ok(info) => info.kind,
            Err(error) => return Err(error),
        };
        let settings = parsed(kind, false, words)?;
        self.hierarchy.set_properties(name, settings).await
    }

    /// As [`Rig::write_unsynced`], and waits until they are on disk.
    async fn write(&self, name: &str, mib: u64) -> dsl::Result<()> {
        self.write_unsynced(name, mib).await?;
        Ok(self.services.clock.sync_all().await?)
    }

    /// Writes so many MiB of incompressible bytes at the start of the dataset's data.
    async fn write_unsynced(&self, name: &str, mib: u64) -> dsl::Result<()> {
        let dataset = self.hierarchy.dataset(name).await?;
        let mut block = vec![0; BLOCK as usize];
        for number in 0..(mib << 20) / u64::from(BLOCK) {
            self.handle.fill_random(&mut block);
            let estimate = Estimate::blocks(1, u64::from(BLOCK), 0);
            let tx = dataset.begin(estimate).await?;
            let offset = number * u64::from(BLOCK);
            dataset.objset().write(DATA, offset, &block, &tx).await?;
        }
        Ok(())
    }

    async fn truncate(&self, name: &str) -> dsl::Result<()> {
        let dataset = self.hierarchy.dataset(name).await?;
        let tx = dataset.begin(Estimate::freeing(1 << 20)).await?;
        dataset.objset().free_range(DATA, 0, u64::MAX, &tx).await?;
        drop(tx);
        // What is freed in one txg is given back with the next ones.
        for _ in 0..3 {
            self.services.clock.sync_all().await?;
        }
        Ok(())
    }
}

fn services(handle: &Handle, store: &BlockStore, txg: Txg) -> Services {
    let cache = arc::Cache::new(handle, store.clone(), arc::CacheTuning::default());
    let clock = TxgClock::new(handle.clone(), txg, TxgOptions::default());
    Services::new(handle.clone(), cache, store.clone(), clock)
}

async fn sync(
    hierarchy: &Hierarchy,
    services: &Services,
    store: &BlockStore,
    root: &Cell<BlockPointer>,
    txg: Txg,
) {
    let mut pass = 1;
    while pass == 1 || hierarchy.is_dirty(txg) {
        root.set(hierarchy.sync(txg, pass).await.expect("syncs"));
        pass += 1;
        assert!(pass < 16, "a hierarchy does not dirty itself for ever");
    }
    store.wait_writes().await.expect("the disk is sound");
    drop(store.take_changes(txg));
    store.txg_synced(txg);
    hierarchy.synced(txg);
    services.clock.synced(txg);
}

fn parsed(kind: DatasetKind, creating: bool, words: &[&str]) -> dsl::Result<Vec<Setting>> {
    let context = SetContext {
        kind,
        creating,
        block_max: BLOCK_MAX,
    };
    let mut settings = Vec::new();
    for word in words {
        let (name, value) = word.split_once('=').expect("NAME=VALUE");
        settings.push(property::parse_setting(name, value, context)?);
    }
    Ok(settings)
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn text<T>(result: dsl::Result<T>, say: impl FnOnce(T) -> String) -> String {
    result.map_or_else(|error: DslError| error.to_string(), say)
}

fn refusals(result: dsl::Result<Refusals>) -> String {
    text(result, |refused| {
        let texts = refused.iter().map(|(name, why)| format!("{name}: {why}"));
        texts.collect::<Vec<_>>().join("; ")
    })
}

fn tags(holds: &[(String, u64)]) -> String {
    let tags = holds.iter().map(|(tag, _)| tag.as_str());
    tags.collect::<Vec<_>>().join(" ")
}

/// Whole MiB: what metadata takes is not said.
fn mib_of(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn bytes(found: &DatasetProperties, name: &str) -> u64 {
    let entry = found.properties.iter().find(|entry| entry.name == name);
    let value = entry.and_then(|entry| entry.value.number());
    value.expect("a number")
}

/// Value and source, as `zfs get -Hpo value,source`.
fn shown(found: &DatasetProperties, name: &str) -> String {
    let entry = found.properties.iter().find(|entry| entry.name == name);
    entry.map_or_else(
        || "not there".to_owned(),
        |entry| format!("{} {}", entry.display(true), entry.source),
    )
}
