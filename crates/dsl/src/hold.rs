//! Holds: tags that keep a snapshot from being destroyed.
//!
//! OpenZFS: module/zfs/dsl_userhold.c.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec, ZapValue};
use ondisk::dsl::dataset_flags;
use ondisk::{ObjectId, ObjectType, pool_version};

use crate::dataset_state::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::immutable::IMMUTABLE_TAG;
use crate::sync_task::EachName;

/// Bytes in a tag at most.
const TAG_MAX: usize = 256;

/// Adds a hold to snapshots.
pub(crate) struct Hold {
    pub(crate) names: Vec<String>,
    pub(crate) tag: String,
}

impl EachName for Hold {
    type Item = String;
    type Checked = Rc<DatasetState>;

    fn name(&self) -> &'static str {
        "hold"
    }

    fn items(&self) -> &[String] {
        &self.names
    }

    async fn check_one(
        &self,
        pool: &Rc<DslPool>,
        name: &String,
    ) -> Result<Option<Rc<DatasetState>>> {
        pool.check_hold(name, &self.tag).await.map(Some)
    }

    async fn apply_one(
        &self,
        pool: &Rc<DslPool>,
        _: &String,
        state: Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        pool.add_hold(&state, &self.tag, tx).await
    }
}

/// Removes a hold from snapshots.
pub(crate) struct Release {
    pub(crate) names: Vec<String>,
    pub(crate) tag: String,
}

impl EachName for Release {
    type Item = String;
    type Checked = Rc<DatasetState>;

    fn name(&self) -> &'static str {
        "release"
    }

    fn items(&self) -> &[String] {
        &self.names
    }

    async fn check_one(
        &self,
        pool: &Rc<DslPool>,
        name: &String,
    ) -> Result<Option<Rc<DatasetState>>> {
        pool.check_release(name, &self.tag).await.map(Some)
    }

    async fn apply_one(
        &self,
        pool: &Rc<DslPool>,
        _: &String,
        state: Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        pool.remove_hold(&state, &self.tag, tx).await
    }
}

impl DslPool {
    async fn snapshot_state(self: &Rc<Self>, name: &str) -> Result<Rc<DatasetState>> {
        let found = self.find(name).await?;
        if found.snapshot.is_none() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        self.load_dataset(found.dataset, found.snapshot).await
    }

    /// Whether a snapshot has a hold with this tag.
    pub(crate) async fn has_hold(&self, state: &DatasetState, tag: &str) -> Result<bool> {
        match state.phys().userrefs_obj {
            0 => Ok(false),
            map => Ok(zap::lookup(&self.mos, ObjectId(map), tag).await?.is_some()),
        }
    }

    pub(crate) async fn check_hold(
        self: &Rc<Self>,
        name: &str,
        tag: &str,
    ) -> Result<Rc<DatasetState>> {
        if !self.features.has_version(pool_version::USERREFS) {
            return Err(DslError::PoolVersionTooOld {
                what: "hold snapshots",
            });
        }
        if tag.len() > TAG_MAX {
            return Err(DslError::NameTooLong { name: tag.into() });
        }
        let state = self.snapshot_state(name).await?;
        if self.has_hold(&state, tag).await? {
            return Err(DslError::TagExists { name: name.into() });
        }
        Ok(state)
    }

    /// Adds a hold. Syncing context; the checks were made.
    pub(crate) async fn add_hold(
        self: &Rc<Self>,
        state: &DatasetState,
        tag: &str,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "add hold happens in syncing context");
        let mut map = ObjectId(state.phys().userrefs_obj);
        if map.0 == 0 {
            map = zap::create(&self.mos, &ZapSpec::new(ObjectType::USERREFS), tx).await?;
            state.change(|s| s.userrefs_obj = map.0);
        }
        zap::add_u64(&self.mos, map, tag, self.seconds(), tx).await?;
        let refs = zap::count(&self.mos, map).await?;
        let name = self.snapshot_name(state.object).await?;
        let text = format!("tag={tag} temp=0 refs={refs}");
        self.event("hold", &name, state.object, text, tx);
        Ok(())
    }

    pub(crate) async fn check_release(
        self: &Rc<Self>,
        name: &str,
        tag: &str,
    ) -> Result<Rc<DatasetState>> {
        let state = self.snapshot_state(name).await?;
        if !self.has_hold(&state, tag).await? {
            return Err(DslError::NoSuchTag { name: name.into() });
        }
        let phys = state.phys();
        if tag == IMMUTABLE_TAG {
            self.check_not_immutable(&phys).await?;
        }
        let last = self.user_refs(&phys).await? == 1 && phys.num_children == 1;
        if phys.flags & dataset_flags::DEFER_DESTROY != 0 && last && state.handles() != 0 {
            return Err(DslError::Busy { name: name.into() });
        }
        Ok(state)
    }

    /// Removes a hold; the last one of a snapshot to be destroyed takes it along. Syncing context;
    /// the checks were made.
    pub(crate) async fn remove_hold(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        tag: &str,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "remove hold happens in syncing context");
        let phys = state.phys();
        let map = ObjectId(phys.userrefs_obj);
        zap::remove(&self.mos, map, tag, tx).await?;
        let refs = zap::count(&self.mos, map).await?;
        let name = self.snapshot_name(state.object).await?;
        let text = format!("tag={tag} refs={refs}");
        self.event("release", &name, state.object, text, tx);
        if refs == 0 && phys.num_children == 1 && phys.flags & dataset_flags::DEFER_DESTROY != 0 {
            self.destroy_snapshot(state, false, tx).await?;
        }
        Ok(())
    }

    /// The holds of a snapshot: tag and seconds since 1970.
    pub(crate) async fn holds_of(self: &Rc<Self>, name: &str) -> Result<Vec<(String, u64)>> {
        let state = self.snapshot_state(name).await?;
        let mut holds = Vec::new();
        if state.phys().userrefs_obj != 0 {
            let map = ObjectId(state.phys().userrefs_obj);
            for entry in zap::entries(&self.mos, map).await? {
                let (Ok(tag), ZapValue::U64(value)) = (String::from_utf8(entry.name), entry.value)
                else {
                    return Err(DslError::corrupt("holds", map));
                };
                holds.push((tag, value.first().copied().unwrap_or(0)));
            }
        }
        holds.sort();
        Ok(holds)
    }
}
