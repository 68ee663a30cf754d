//! Corrective receive (`-c`): a stream heals lost blocks of the snapshot that it is of.
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_receive_one (order of the checks, words).

use dsl::DslError;
use dsl::stream::{Healer, StreamRecord};

use runtime::Instant;

use super::destination::Destination;
use super::input::InputError;
use super::{Work, unreadable};
use crate::EngineError;

impl Work {
    /// Heals a snapshot with one stream, whose BEGIN was read.
    pub(super) async fn heal(
        &mut self,
        to: &Destination<'_>,
        began: Instant,
    ) -> Result<(), EngineError> {
        let request = &self.request;
        if request.without_pool
            || request.last_element
            || request.force
            || request.resumable
            || request.unmounted
            || request.without_holds
        {
            return Err(to.refused("corrective recv can not be used when combined with this flag"));
        }
        let info = self.context.pool.hierarchy().info(&to.full()).await;
        match info {
            Ok(info) if info.guid.0 == to.begin.to_guid => {}
            Ok(_) => return Err(to.refused(DslError::OtherSnapshot)),
            Err(_) => {
                return Err(to.refused("corrective recv must specify an existing snapshot to heal"));
            }
        }
        self.announce(to);
        let list = self.input.list().await.map_err(unreadable)?;
        if self.request.dry_run {
            self.input.accept();
            return self.input.skip().await.map_err(unreadable);
        }
        self.check_byte_order(to)?;
        let hierarchy = self.context.pool.hierarchy().clone();
        let healer = hierarchy.heal(&to.full(), to.begin.clone(), &list).await;
        let mut healer = healer.map_err(|error| refusal(to, error))?;
        self.input.accept();
        self.heal_blocks(to, &mut healer).await?;
        let healed = healer.finish().await.map_err(|error| refusal(to, error));
        // What was known to be damaged is looked at again, whether all of it was healed or not. While a scan runs, that is the scan's.
        let _ = self.context.pool.scrub_errors().await;
        let healed = healed?;
        self.tell_rate(began);
        self.progress(format!("healed {healed} blocks"));
        Ok(())
    }

    async fn heal_blocks(
        &mut self,
        to: &Destination<'_>,
        healer: &mut Healer,
    ) -> Result<(), EngineError> {
        let lost = |error| match error {
            InputError::Truncated | InputError::Checksum => to.refused(DslError::NotHealed),
            InputError::NotAStream | InputError::Malformed => to.refused("invalid backup stream"),
        };
        loop {
            let record = self.input.record().await.map_err(lost)?;
            let record = record.ok_or_else(|| lost(InputError::Truncated))?;
            let payload = self.input.payload(ondisk::MAX_BLOCK_SIZE).await;
            let payload = payload.map_err(lost)?;
            let healed = healer.record(&record, &payload).await;
            healed.map_err(|error| refusal(to, error))?;
            if matches!(record, StreamRecord::End { .. }) {
                return Ok(());
            }
        }
    }
}

/// Why a snapshot cannot be healed, in OpenZFS's words.
fn refusal(to: &Destination<'_>, error: DslError) -> EngineError {
    match error {
        DslError::KeyNotLoaded { .. } => to
            .refused("key must be loaded to do a non-raw corrective recv on an encrypted dataset."),
        DslError::Stream(_) => to.refused("invalid backup stream"),
        other => to.refused(other),
    }
}
