//! A pool of one objset without a pool: services over memory, and a loop that syncs.

use std::collections::BTreeMap;

use ondisk::{BlockPointer, ObjsetType, Txg};
use runtime::{Handle, Runtime};

use super::driver::SeedDriver;
use super::memory::{Live, MemoryStore};
use crate::{
    DmuError, Objset, ObjsetOptions, Services, Traversal, TraverseOptions, TxWeight, TxgClock,
    TxgOptions, WritePolicy,
};

pub(crate) struct Rig {
    pub(crate) services: Services,
    pub(crate) store: MemoryStore,
    pub(crate) os: Objset,
    pub(crate) ledger: Live,
}

/// Runs a test body on a seeded runtime.
pub(crate) fn run<F: Future>(seed: u64, body: impl FnOnce(Handle) -> F) -> F::Output {
    let runtime = Runtime::new(Box::new(SeedDriver::new(seed)));
    let handle = runtime.handle();
    runtime.block_on(body(handle))
}

pub(crate) fn options() -> ObjsetOptions {
    let policy = WritePolicy {
        copies: 1,
        metadata_copies: 1,
        indirect_copies: 1,
        ..WritePolicy::dataset()
    };
    ObjsetOptions {
        policy,
        ..ObjsetOptions::dataset(7)
    }
}

impl Rig {
    pub(crate) async fn new(
        handle: &Handle,
        kind: ObjsetType,
        options: ObjsetOptions,
    ) -> Result<Self, DmuError> {
        let store = MemoryStore::new(handle.clone());
        let clock = TxgClock::new(handle.clone(), Txg(4), TxgOptions::default());
        let services = Services::in_memory(handle.clone(), clock, store.clone());
        let tx = services.clock.begin(TxWeight::default()).await?;
        let os = Objset::create(&services, kind, options, &tx);
        drop(tx);
        let ledger = Live::new(&store);
        Ok(Self {
            services,
            store,
            os,
            ledger,
        })
    }

    /// Syncs the open txg in one pass.
    pub(crate) async fn sync(&mut self) -> Result<BlockPointer, DmuError> {
        let txg = self.services.clock.quiesce_next().await;
        self.ledger.count_references(txg);
        let root = self.os.sync(txg, 1, &mut self.ledger).await?;
        self.services.clock.synced(txg);
        self.ledger.synced();
        self.check(root).await?;
        Ok(root)
    }

    /// Opens the root again, apart from the objset that wrote it.
    pub(crate) async fn reopened(&self, root: BlockPointer) -> Result<Objset, DmuError> {
        Objset::open(
            &self.services,
            root,
            ObjsetOptions {
                read_only: true,
                ..options()
            },
        )
        .await
    }

    /// Everything reachable is live and nothing else; fill counts and used bytes add up.
    pub(crate) async fn check(&self, root: BlockPointer) -> Result<(), DmuError> {
        check_tree(&self.services, root, &self.ledger).await
    }
}

pub(crate) async fn check_tree(
    services: &Services,
    root: BlockPointer,
    ledger: &Live,
) -> Result<(), DmuError> {
    let mut reachable: BTreeMap<u64, (BlockPointer, u64)> = BTreeMap::new();
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let mut traversal = Traversal::new(services, root, TraverseOptions::default());
    let mut leaves = 0;
    while let Some(item) = traversal.next().await? {
        let key = item.bp.dvas()[0].offset / 512;
        reachable.entry(key).or_insert((item.bp, 0)).1 += 1;
        if item.level >= 0 {
            *used.entry(item.object.0).or_default() += item.bp.asize();
        }
        if item.level == -2 {
            *used.entry(item.object.0).or_default() += item.bp.asize();
        }
        if item.level == 0 && item.object.0 == 0 {
            leaves += item.bp.fill();
        }
    }
    // Blocks rewritten in place have another checksum than when they were born.
    let places = |blocks: &BTreeMap<u64, (BlockPointer, u64)>| {
        blocks
            .iter()
            .map(|(&k, (bp, references))| (k, bp.psize(), *references))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        places(&reachable),
        places(&ledger.live),
        "born minus killed is what is reachable"
    );
    let os = Objset::open(
        services,
        root,
        ObjsetOptions {
            read_only: true,
            ..options()
        },
    )
    .await?;
    let mut objects = 0;
    let mut at = ondisk::ObjectId(0);
    while let Some(object) = os.next_object(at).await? {
        at = object;
        objects += 1;
        let info = os.object_info(object).await?;
        assert_eq!(
            info.used_bytes,
            used.get(&object.0).copied().unwrap_or(0),
            "used bytes of {object}"
        );
    }
    assert_eq!(root.fill(), objects, "fill of the root counts objects");
    assert_eq!(leaves, objects);
    Ok(())
}
