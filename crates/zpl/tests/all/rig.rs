//! A file system on one modelled disk, without datasets or a pool around it: an objset, a block store whose space maps
//! live in memory, and a loop that syncs transaction groups.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dmu::{Ledger, Objset, ObjsetOptions, Owner, Services, TxgClock, TxgOptions};
use ondisk::{BlockPointer, ObjectType, ObjsetType, Txg};
use runtime::{Handle, JoinHandle};
use vdev::{LeafSpec, OpenMode, TopSpec, Tree, TreeSpec, TreeTuning};
use world::{DiskModel, Ended, World};
use zio::{BlockStore, MetaSource, StoreOptions, ZioError};
use zpl::{AttrCache, Fs, FsOptions, RootProps, create_root};

const DISK: &str = "/disk";

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

#[derive(Default)]
struct Blocks {
    killed: Vec<BlockPointer>,
}

impl Ledger for Blocks {
    fn block_born(&mut self, _bp: &BlockPointer) {}

    fn block_freed(&mut self, bp: &BlockPointer) {
        self.killed.push(*bp);
    }
}

struct Shared {
    services: RefCell<Services>,
    store: BlockStore,
    os: RefCell<Objset>,
    root: Cell<BlockPointer>,
    stop: Cell<bool>,
}

pub(crate) struct Rig {
    shared: Rc<Shared>,
    sync_loop: Option<JoinHandle<()>>,
    pub(crate) fs: Fs,
    /// What was attr_cache of the files since it was opened.
    pub(crate) attr_cache: Arc<AttrCache>,
}

/// Number of the file system in [`Rig::attr_cache`].
pub(crate) const FS: u64 = 7;

/// Finds the owner at the fixed offsets behind the header, as accounting does (format/09 section 4).
fn owner_of(bonus_type: ObjectType, bonus: &[u8]) -> Option<Owner> {
    if bonus_type != ObjectType::SA {
        return None;
    }
    let header = usize::from(u16::from_le_bytes([bonus[4], bonus[5]]) >> 10) * 8;
    let word = |at: usize| {
        u64::from_le_bytes(
            bonus[header + at..header + at + 8]
                .try_into()
                .expect("8 bytes"),
        )
    };
    let project = if word(48) & 0x8000_0000_0000 != 0 {
        word(128)
    } else {
        0
    };
    Some(Owner {
        uid: word(24),
        gid: word(32),
        project,
    })
}

fn options() -> ObjsetOptions {
    ObjsetOptions {
        owner_of: Some(owner_of),
        create_flags: 7,
        ..ObjsetOptions::dataset(54)
    }
}

/// Runs `main` in a world of its own, decided by `seed`.
pub(crate) fn run<F: Future<Output = ()>>(
    seed: u64,
    props: RootProps,
    main: impl FnOnce(Handle, Rig) -> F,
) {
    let world = World::new(seed);
    world.add_disk(DISK, DiskModel::new(512 << 20));
    let ended = world.run(|handle| async move {
        let rig = Rig::new(&handle, props).await;
        main(handle, rig).await;
    });
    assert!(matches!(ended, Ended::Done(())));
}

impl Rig {
    async fn new(handle: &Handle, props: RootProps) -> Self {
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
        let tree = Tree::open(
            handle,
            &config,
            OpenMode::ReadWrite,
            TreeTuning::default(),
            true,
        )
        .await
        .expect("the disk opens");
        let store = BlockStore::new(handle, tree, StoreOptions::default());
        store.activate(Rc::new(NoSpaceMaps), &[]);
        let cache = arc::Cache::new(handle, store.clone(), arc::CacheTuning::default());
        let clock = TxgClock::new(handle.clone(), Txg(4), TxgOptions::default());
        let services = Services::new(handle.clone(), cache, store.clone(), clock.clone());
        let txg = clock.quiesce_next().await;
        let tx = clock.syncing_tx(txg);
        let os = Objset::create(&services, ObjsetType::ZFS, options(), &tx);
        create_root(&os, &tx, &props)
            .await
            .expect("an empty file system");
        drop(tx);
        let shared = Rc::new(Shared {
            services: RefCell::new(services),
            store,
            os: RefCell::new(os.clone()),
            root: Cell::new(os.root()),
            stop: Cell::new(false),
        });
        sync(&shared, txg).await;
        let sync_loop = Some(start(handle, &shared));
        let (fs, attr_cache) = open(os, &clock).await;
        Self {
            shared,
            sync_loop,
            fs,
            attr_cache,
        }
    }

    /// Closes the file system, syncs, forgets everything in memory, and opens it again from disk.
    pub(crate) async fn reopen(&mut self) {
        self.close().await;
        let handle = self.shared.services.borrow().handle.clone();
        let last = self.shared.services.borrow().clock.last_synced();
        let clock = TxgClock::new(handle.clone(), Txg(last.0 + 1), TxgOptions::default());
        let cache = arc::Cache::new(
            &handle,
            self.shared.store.clone(),
            arc::CacheTuning::default(),
        );
        let services = Services::new(
            handle.clone(),
            cache,
            self.shared.store.clone(),
            clock.clone(),
        );
        let os = Objset::open(&services, self.shared.root.get(), options())
            .await
            .expect("opens");
        *self.shared.services.borrow_mut() = services;
        *self.shared.os.borrow_mut() = os.clone();
        self.shared.stop.set(false);
        self.sync_loop = Some(start(&handle, &self.shared));
        (self.fs, self.attr_cache) = open(os, &clock).await;
    }

    pub(crate) async fn close(&mut self) {
        self.fs.close().await.expect("closes");
        let clock = self.shared.services.borrow().clock.clone();
        clock.sync_all().await.expect("syncs");
        self.shared.stop.set(true);
        clock.kick();
        if let Some(task) = self.sync_loop.take() {
            task.await;
        }
    }

    /// Number of objects in the objset on disk.
    pub(crate) fn objects(&self) -> u64 {
        self.shared.os.borrow().object_count()
    }
}

async fn open(os: Objset, clock: &TxgClock) -> (Fs, Arc<AttrCache>) {
    let attr_cache = Arc::new(AttrCache::new(clock.last_synced_atomic()));
    let options = FsOptions {
        attr_cache: Some((attr_cache.clone(), FS)),
        delegations: Some((Arc::default(), FS)),
        ..FsOptions::default()
    };
    let fs = Fs::open_objset(os, options).await.expect("opens");
    (fs, attr_cache)
}

fn start(handle: &Handle, shared: &Rc<Shared>) -> JoinHandle<()> {
    let shared = Rc::clone(shared);
    handle.spawn("sync loop", async move {
        let clock = shared.services.borrow().clock.clone();
        loop {
            clock.wait_for_work(Duration::from_millis(500)).await;
            if shared.stop.get() {
                return;
            }
            let txg = clock.quiesce_next().await;
            sync(&shared, txg).await;
        }
    })
}

async fn sync(shared: &Shared, txg: Txg) {
    let os = shared.os.borrow().clone();
    let clock = shared.services.borrow().clock.clone();
    let mut pass = 1;
    while os.is_dirty(txg) {
        let mut blocks = Blocks::default();
        let root = os.sync(txg, pass, &mut blocks).await.expect("syncs");
        shared.root.set(root);
        for bp in &blocks.killed {
            shared.store.free(txg, bp).await.expect("frees");
        }
        pass += 1;
        assert!(pass < 10, "an objset does not dirty itself for ever");
    }
    drop(shared.store.take_changes(txg));
    shared.store.txg_synced(txg);
    clock.synced(txg);
}
