//! Devices of a pool that was found, opened as far as its meta-objset, and the lists that the pool keeps there.

use arc::Cache;
use dmu::{Objset, ObjsetOptions, Services, TxgClock, zap};
use ondisk::bytes::{index, u64_at};
use ondisk::{NvList, ObjectId, Txg, Uberblock, pool_version};
use runtime::Handle;
use vdev::{OpenMode, Tree, TreeConfig, TreeTuning, VdevKind};
use zio::{BlockStore, StoreOptions};

use crate::PoolError;
use crate::discover::Candidate;
use crate::objects::DIRECTORY;
use crate::pool::OpenedMos;
use crate::spec::ImportPolicy;

/// Longest configuration believed.
const CONFIG_MAX: u64 = 64 << 20;

pub(crate) async fn newest(tree: &Tree) -> Result<Uberblock, PoolError> {
    tree.best_uberblock(None)
        .await?
        .ok_or_else(|| PoolError::Corrupt("no valid uberblock on any device".into()))
}

pub(crate) async fn open_mos(
    handle: &Handle,
    tree: &Tree,
    uberblock: &Uberblock,
    newest: Txg,
    policy: &ImportPolicy,
    read_only: bool,
) -> Result<OpenedMos, PoolError> {
    if !pool_version::is_known(uberblock.version) {
        return Err(PoolError::UnsupportedVersion(uberblock.version));
    }
    let options = StoreOptions {
        tuning: policy.tuning.blocks.clone(),
        ..StoreOptions::default()
    };
    tree.set_reflow(uberblock.raidz_reflow);
    let store = BlockStore::new(handle, tree.clone(), options);
    let cache = Cache::new(handle, store.clone(), policy.tuning.cache.clone());
    // Above the states that are left behind: their uberblocks must not win the next time.
    let first = newest.max(uberblock.txg).next();
    let clock = TxgClock::new(handle.clone(), first, policy.tuning.txg.clone());
    let services = Services::new(handle.clone(), cache.clone(), store.clone(), clock);
    let mut options = ObjsetOptions::meta_objset();
    options.read_only = read_only;
    let mos = Objset::open(&services, uberblock.rootbp, options).await?;
    Ok(OpenedMos {
        services,
        cache,
        store,
        mos,
    })
}

/// Reads the configuration the pool keeps in its meta-objset.
pub(crate) async fn read_config(mos: &Objset) -> Result<NvList, PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("the pool's configuration {what}"));
    let object = zap::lookup_u64(mos, DIRECTORY, "config")
        .await?
        .ok_or_else(|| bad("is missing"))?;
    read_packed(mos, ObjectId(object), "config").await
}

/// Reads a list that the pool keeps in an object of its own.
pub(crate) async fn read_packed(
    mos: &Objset,
    object: ObjectId,
    what: &str,
) -> Result<NvList, PoolError> {
    let bad = |why: &str| PoolError::Corrupt(format!("the pool's list '{what}' {why}"));
    let bonus = mos.bonus(object).await?;
    let len = u64_at(&bonus.bytes, 0);
    if len == 0 || len > CONFIG_MAX {
        return Err(bad("has an impossible length"));
    }
    let packed = mos.read(object, 0, index(len)).await?;
    NvList::decode(&packed).map_err(|error| bad(&format!("cannot be decoded: {error}")))
}

/// Opens the devices of a pool that was found, as its labels tell, for reading.
pub(crate) async fn open_known(handle: &Handle, candidate: &Candidate) -> Result<Tree, PoolError> {
    let (tree, tuning) = (known_tree(candidate), TreeTuning::default());
    Ok(Tree::open(handle, &tree, OpenMode::ReadOnly, tuning, false).await?)
}

/// The tree of the labels as far as it is known: a vdev of which no label was found is left out.
pub(super) fn known_tree(candidate: &Candidate) -> TreeConfig {
    let mut tree = candidate.tree.clone();
    for top in &mut tree.tops {
        if top.kind == VdevKind::Missing {
            top.kind = VdevKind::Hole;
        }
    }
    tree
}
