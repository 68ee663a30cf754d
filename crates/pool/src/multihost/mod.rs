//! Protection of pools that several hosts can reach (`multihost=on`): a heartbeat in the labels while the pool is in use,
//! a check for one before an import, and the end of all writing when the heartbeat fails.
//!
//! ```text
//! last slot of a ring:  the newest uberblock, with a newer time or sequence, once an interval on every leaf in turn
//! import:               the newest uberblock must not change for longer than its writer may go without a heartbeat
//! ```
//! Guarantees: after [`MultihostTuning::fail_intervals`] without a heartbeat that landed nothing is written to any leaf of
//! the pool any more, and a host that imports waits twice as long. Does not protect from hosts that import in the same moment.
// OpenZFS: module/zfs/mmp.c; module/zfs/spa.c, spa_activity_check_required, spa_activity_check_duration, spa_activity_check

mod state;

use std::rc::{Rc, Weak};
use std::time::Duration;

use ondisk::{Guid, Uberblock};
use runtime::{Handle, Instant};
use vdev::Tree;

pub(crate) use self::state::MultihostState;
use self::state::nanoseconds;
use crate::PoolError;
use crate::discover::Candidate;
use crate::pool::ImportedPool;
use crate::spec::{HostIdentity, ImportPolicy, MultihostTuning};
use crate::status::PoolState;

/// How often the labels are read during an activity check.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// No activity check is shorter.
const ACTIVITY_CHECK_MIN: Duration = Duration::from_secs(1);
/// An activity check takes so many times what the other host may go without a heartbeat.
// OpenZFS: include/sys/mmp.h, MMP_IMPORT_SAFETY_FACTOR
const SAFETY_FACTOR: u32 = 2;
/// Shares of the new value in the average of the time between heartbeats.
const AVERAGE_OVER: u64 = 128;
const _: () = assert!(AVERAGE_OVER > 0 && SAFETY_FACTOR > 1);

impl ImportedPool {
    /// Whether the property `multihost` is on.
    pub(crate) fn is_multihost(&self) -> bool {
        self.properties.is_on("multihost")
    }

    /// Begins with heartbeats if the property is on and there are none yet. Called before anything is written, and when
    /// the property has changed.
    pub(crate) fn start_heartbeats(self: &Rc<Self>) {
        let state = &self.multihost;
        if !self.is_multihost() {
            // The task sees it, too.
            self.tree().write_until(None);
            state.last.set(None);
            state.stop.notify_all();
            return;
        }
        let task = state.task.borrow();
        let runs = task.as_ref().is_some_and(|task| !task.is_finished());
        drop(task);
        if runs || self.session.readonly || self.lifecycle.is_closed() {
            return;
        }
        state.delay.set(nanoseconds(state.tuning.interval()));
        self.extend_lease(self.handle().now());
        let task = send_heartbeats(Rc::downgrade(self), self.handle().clone());
        let task = self.handle().spawn("heartbeat", task);
        state.task.replace(Some(task));
    }

    /// Ends the heartbeats of a pool that is closed.
    pub(crate) async fn end_heartbeats(&self) {
        self.multihost.stop.notify_all();
        let task = self.multihost.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Adds to the uberblock of a txg what other hosts are to know.
    pub(crate) fn mark_multihost(&self, uberblock: &mut Uberblock) {
        if self.is_multihost() {
            uberblock.set_heartbeat(&self.multihost.heartbeat(0));
        }
    }

    /// Takes note of a write to the labels, begun at `began`, that shows other hosts that the pool is in use.
    pub(crate) fn note_heartbeat(&self, began: Instant) {
        if !self.is_multihost() {
            return;
        }
        let state = &self.multihost;
        let now = self.handle().now();
        let since = state.last.get().unwrap_or(began);
        let delay = now.as_nanos().saturating_sub(since.as_nanos());
        if delay >= state.delay.get() {
            // A long pause counts at once: others have to wait for it.
            state.delay.set(delay);
        } else {
            let leaves = self.tree().leaves().len().max(1) as u64;
            let least = nanoseconds(state.tuning.interval()) / leaves;
            let average = (delay + state.delay.get() * (AVERAGE_OVER - 1)) / AVERAGE_OVER;
            state.delay.set(average.max(least));
        }
        self.extend_lease(began);
    }

    fn extend_lease(&self, began: Instant) {
        let state = &self.multihost;
        let last = state.last.get().map_or(began, |last| last.max(began));
        state.last.set(Some(last));
        if let Some(fail_timeout) = state.fail_timeout() {
            self.tree().write_until(Some(last + fail_timeout));
        }
    }

    /// Whether the pool is surely still this host's.
    ///
    /// # Errors
    /// `Suspended` when no heartbeat landed for too long; nothing may be written then.
    pub(crate) fn check_lease(&self) -> Result<(), PoolError> {
        let state = &self.multihost;
        let late = match (self.is_multihost(), state.last.get(), state.fail_timeout()) {
            (true, Some(last), Some(fail_timeout)) => self.handle().now() > last + fail_timeout,
            _ => false,
        };
        if late && !state.lost.replace(true) {
            self.fail(
                "multihost heartbeats failed or were delayed for too long",
                false,
            );
            self.lifecycle.notify();
        }
        if state.lost.get() {
            return Err(PoolError::Suspended);
        }
        Ok(())
    }

    /// Writes a heartbeat to the next leaf, without waiting for it.
    fn send_heartbeat(self: &Rc<Self>) {
        let state = &self.multihost;
        let leaves = self.tree().leaves();
        let mut usable: Vec<Guid> = leaves
            .iter()
            .filter(|leaf| leaf.psize != 0 && !state.pending.borrow().contains(&leaf.guid))
            .filter(|leaf| matches!(leaf.health, vdev::Health::Online | vdev::Health::Degraded))
            .map(|leaf| leaf.guid)
            .collect();
        usable.sort_unstable();
        let next = usable.iter().find(|guid| **guid > state.leaf.get());
        let Some(&leaf) = next.or(usable.first()) else {
            return;
        };
        state.leaf.set(leaf);
        let now = self.unix_time();
        // With every second numbers begin anew: else those after a wrap would seem older.
        if state.timestamp.replace(now) == now {
            state.sequence.set(state.sequence.get().saturating_add(1));
        } else {
            state.sequence.set(1);
        }
        let mut uberblock = self.sync.last_uberblock();
        uberblock.timestamp = now;
        uberblock.set_heartbeat(&state.heartbeat(state.sequence.get()));
        state.pending.borrow_mut().insert(leaf);
        let (tree, pool) = (self.tree().clone(), Rc::downgrade(self));
        let began = self.handle().now();
        let label = u8::try_from(self.handle().random_u64() % 4).expect("below 4");
        drop(self.handle().spawn("heartbeat write", async move {
            let written = tree.write_heartbeat(leaf, label, &uberblock).await;
            let Some(imported) = pool.upgrade() else {
                return;
            };
            imported.multihost.pending.borrow_mut().remove(&leaf);
            // A failure shows by the time that passes.
            if written.is_ok() {
                imported.note_heartbeat(began);
            }
        }));
    }
}

/// Sends heartbeats, to every leaf once an interval, until the pool is closed, lost, or no longer multihost.
async fn send_heartbeats(pool: Weak<ImportedPool>, handle: Handle) {
    loop {
        let (pause, stop) = {
            let Some(imported) = pool.upgrade() else {
                return;
            };
            let over = imported.lifecycle.is_stopped() || !imported.is_multihost();
            if over || imported.check_lease().is_err() {
                return;
            }
            imported.send_heartbeat();
            let leaves = u32::try_from(imported.tree().leaves().len().max(1)).unwrap_or(u32::MAX);
            let pause = imported.multihost.tuning.interval() / leaves;
            (pause, imported.multihost.stop.wait())
        };
        runtime::select(handle.sleep(pause), stop).await;
    }
}

/// Whether another host may have a pool whose newest uberblock is this.
fn needs_activity_check(candidate: &Candidate, host: &HostIdentity, newest: &Uberblock) -> bool {
    candidate.state == PoolState::Active
        && candidate.hostid != host.hostid
        && (!newest.mmp_valid || newest.mmp_delay != 0)
}

/// Refuses a pool that another host has, or may have and `-f` was not given. Waits as long as it takes to know: about
/// twenty seconds for a pool with `multihost=on` that its last user did not export.
///
/// # Errors
/// `ActiveElsewhere`, `NoHostId`, `ForeignHost`.
pub(crate) async fn check_activity(
    handle: &Handle,
    tree: &Tree,
    candidate: &Candidate,
    policy: &ImportPolicy,
    newest: &Uberblock,
) -> Result<(), PoolError> {
    let foreign = candidate.state == PoolState::Active
        && candidate.hostid != 0
        && candidate.hostid != policy.host.hostid;
    let refused = || PoolError::ForeignHost {
        hostname: candidate.hostname.clone(),
        hostid: candidate.hostid,
        last_access: crate::date::date(candidate.timestamp),
    };
    // Software without heartbeats wrote it: there is nothing better to be found out.
    if foreign && !policy.force && !newest.is_multihost() {
        return Err(refused());
    }
    if needs_activity_check(candidate, &policy.host, newest) {
        if newest.is_multihost() && policy.host.hostid == 0 {
            return Err(PoolError::NoHostId);
        }
        if is_active(handle, tree, newest, &policy.tuning.multihost).await? {
            return Err(PoolError::ActiveElsewhere {
                hostname: candidate.hostname.clone(),
                hostid: candidate.hostid,
                forced: policy.force,
            });
        }
    }
    if foreign && !policy.force {
        return Err(refused());
    }
    Ok(())
}

/// Watches the labels of a pool for changes made by another host.
async fn is_active(
    handle: &Handle,
    tree: &Tree,
    seen: &Uberblock,
    tuning: &MultihostTuning,
) -> Result<bool, PoolError> {
    let wait = activity_check_duration(seen, tuning);
    // Hosts that import at the same time do not do so at the same moment.
    let extra = wait * u32::try_from(handle.random_u64() % 250).expect("below 250") / 1000;
    let end = handle.now() + wait + extra;
    let currency = |uberblock: &Uberblock| {
        let Uberblock { txg, timestamp, .. } = *uberblock;
        (txg, timestamp, uberblock.mmp_sequence())
    };
    while handle.now() < end {
        let now = tree.best_uberblock(None).await?;
        if now.is_none_or(|now| currency(&now) != currency(seen)) {
            return Ok(true);
        }
        handle.sleep(POLL_INTERVAL).await;
    }
    Ok(false)
}

/// How long the labels must stay as they are for a pool to be unused.
fn activity_check_duration(seen: &Uberblock, tuning: &MultihostTuning) -> Duration {
    let intervals = u32::from(tuning.import_intervals.max(1));
    let own = ACTIVITY_CHECK_MIN.max(tuning.interval() * intervals);
    let delay = Duration::from_nanos(seen.mmp_delay);
    match (seen.mmp_interval(), seen.mmp_fail_intervals()) {
        // Its user stops writing by itself after so long.
        (Some(interval), Some(fails)) if fails != 0 => interval * u32::from(fails) * SAFETY_FACTOR,
        (Some(interval), Some(_)) => own.max(interval.saturating_add(delay) * intervals),
        _ if seen.mmp_valid => own.max(tuning.interval().saturating_add(delay) * intervals),
        _ => own,
    }
}

/// Whether a pool that was found is in use by another host right now, as far as heartbeats tell. Nothing is written. At once
/// for pools in question, after the time an import would take for others.
///
/// # Errors
/// Its devices cannot be opened.
pub async fn is_in_use_elsewhere(
    handle: &Handle,
    candidate: &Candidate,
    host: &HostIdentity,
    tuning: &MultihostTuning,
) -> Result<bool, PoolError> {
    if !candidate.multihost || candidate.state != PoolState::Active {
        return Ok(false);
    }
    let tree = crate::import::open::open_known(handle, candidate).await?;
    let found = async {
        let Some(newest) = tree.best_uberblock(None).await? else {
            return Ok(false);
        };
        if !needs_activity_check(candidate, host, &newest) {
            return Ok(false);
        }
        is_active(handle, &tree, &newest, tuning).await
    };
    let found = found.await;
    tree.close();
    found
}

#[cfg(test)]
mod tests {
    use ondisk::{BlockPointer, Heartbeat, Txg};

    use super::*;

    #[test]
    fn the_look_is_as_long_as_what_is_known_of_the_writer_demands() {
        let tuning = MultihostTuning::default();
        let seconds = |uberblock: &Uberblock| activity_check_duration(uberblock, &tuning).as_secs();
        let mut seen = Uberblock::new(Txg(5), 1, 1, BlockPointer::HOLE);
        let mut heartbeat = Heartbeat {
            delay_nanoseconds: 3_000_000_000,
            interval_ms: 2000,
            fail_intervals: 10,
            sequence: 7,
        };
        seen.set_heartbeat(&heartbeat);
        assert_eq!(seconds(&seen), 40);
        heartbeat.fail_intervals = 0;
        seen.set_heartbeat(&heartbeat);
        assert_eq!(seconds(&seen), 100);
        // OpenZFS 0.7 said nothing of its settings.
        seen.mmp_config = 0;
        assert_eq!(seconds(&seen), 80);
        seen.mmp_valid = false;
        assert_eq!(seconds(&seen), 20);
    }
}
