//! Redacted datasets: the guids of the snapshots that a dataset was received redacted by.
//!
//! They are the value of a per-dataset feature, which snapshots and clones take over. OpenZFS: module/zfs/dsl_dataset.c,
//! dsl_dataset_activate_redaction.

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::feature::Feature;
use ondisk::{ObjectId, ObjectType};

use crate::dataset_state::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};

/// The feature's short name.
pub(crate) const REDACTED: &str = "redacted_datasets";

fn feature() -> &'static Feature {
    Feature::by_name(REDACTED).expect("a feature of the table")
}

impl DatasetState {
    /// Whether it was received redacted.
    pub(crate) fn is_redacted(&self) -> bool {
        self.features.borrow().contains(REDACTED)
    }
}

impl DslPool {
    /// The guids of the snapshots that a dataset was redacted by; `None` of one that is not redacted.
    pub(crate) async fn redacted_by(&self, state: &DatasetState) -> Result<Option<Vec<u64>>> {
        if state.is_redacted() {
            self.stored_redaction(state.object).await
        } else {
            Ok(None)
        }
    }

    /// As [`DslPool::redacted_by`], for a dataset that need not be loaded.
    pub(crate) async fn stored_redaction(&self, dataset: ObjectId) -> Result<Option<Vec<u64>>> {
        let info = self.mos.object_info(dataset).await?;
        if info.object_type != ObjectType::ZAP_METADATA {
            return Ok(None);
        }
        match zap::lookup(&self.mos, dataset, feature().guid).await? {
            None => Ok(None),
            Some(ZapValue::U64(guids)) => Ok(Some(guids)),
            Some(_) => Err(DslError::corrupt("redaction snapshots", dataset)),
        }
    }

    /// Makes a dataset one that was redacted by these snapshots, or by none. Syncing context.
    pub(crate) async fn set_redacted_by(
        &self,
        state: &DatasetState,
        guids: Option<Vec<u64>>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "features are counted in syncing context");
        let was_redacted = state.is_redacted();
        if let Some(guids) = guids {
            if !was_redacted {
                self.features.incr(REDACTED, tx).await?;
                self.zapify(state.object, tx).await?;
            }
            let value = ZapValue::U64(guids);
            zap::update(&self.mos, state.object, feature().guid, &value, tx).await?;
            state.features.borrow_mut().insert(REDACTED);
        } else if was_redacted {
            self.deactivate(state, REDACTED, tx).await?;
        }
        Ok(())
    }

    /// Counts for a dataset the features of another that it has not yet. Syncing context.
    pub(crate) async fn activate_features_of(
        &self,
        from: &DatasetState,
        state: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "features are counted in syncing context");
        let features = from.features.borrow().clone();
        for feature in features {
            if feature == REDACTED {
                let guids = self.redacted_by(from).await?;
                self.set_redacted_by(state, guids, tx).await?;
            } else {
                self.activate(state, feature, tx).await?;
            }
        }
        Ok(())
    }
}
