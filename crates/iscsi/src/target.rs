//! Targets: names, initiators that may log in, and the units they show.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::Reply as Answer;

use crate::scsi::sense::asc;
use crate::scsi::{LogicalUnit, Nexus};
use crate::spec::{PORTAL_GROUP, TargetSpec};
use crate::task::Task;
use crate::task_table::TaskTable;

/// A target that can be logged in to.
pub(crate) struct Target {
    pub(crate) name: String,
    state: Mutex<TargetState>,
}

/// A unit, and the initiators that see it.
#[derive(Clone)]
pub(crate) struct MappedUnit {
    pub(crate) unit: Arc<LogicalUnit>,
    /// Names and addresses of initiators; none is all.
    pub(crate) initiators: Vec<String>,
}

impl MappedUnit {
    fn is_for(&self, initiator: &str, peer: IpAddr) -> bool {
        self.initiators.is_empty()
            || self
                .initiators
                .iter()
                .any(|entry| matches(entry, initiator, peer))
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.unit, &other.unit) && self.initiators == other.initiators
    }
}

/// Units by their numbers; of several with one number an initiator sees the first that is for it.
pub(crate) type Units = BTreeMap<u16, Vec<MappedUnit>>;

/// A session of the target: what it may ask for, and what it has under way.
#[derive(Clone)]
struct AttachedSession {
    nexus: Arc<Nexus>,
    tasks: Arc<TaskTable>,
}

struct TargetState {
    spec: TargetSpec,
    units: Units,
    sessions: BTreeMap<u64, AttachedSession>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({})", self.name)
    }
}

impl Target {
    pub(crate) fn new(mut spec: TargetSpec, units: Units) -> Self {
        spec.luns.clear();
        Self {
            name: spec.name.clone(),
            state: Mutex::new(TargetState {
                spec,
                units,
                sessions: BTreeMap::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, TargetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a changed specification; sessions are told of units that come and go.
    pub(crate) fn follow(&self, mut spec: TargetSpec, units: Units) {
        spec.luns.clear();
        let (changed, sessions) = {
            let mut state = self.state();
            state.spec = spec;
            let same = state.units.len() == units.len()
                && state.units.iter().zip(&units).all(|((a, x), (b, y))| {
                    a == b && x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.is_same(y))
                });
            let before = (!same).then(|| std::mem::replace(&mut state.units, units));
            (before, state.sessions.values().cloned().collect::<Vec<_>>())
        };
        let Some(before) = changed else { return };
        for session in sessions {
            let nexus = &session.nexus;
            let now = self.units_for(nexus);
            let gone = before.values().flatten().map(|shown| &shown.unit);
            for unit in gone.filter(|unit| !now.iter().any(|kept| Arc::ptr_eq(kept, unit))) {
                unit.leave(nexus.id);
            }
            for unit in now {
                unit.join(nexus);
                unit.add_attention(nexus.id, asc::LUNS_CHANGED);
            }
        }
    }

    /// The group of the portal that a connection came through.
    pub(crate) fn group_of(&self, local: SocketAddr) -> u16 {
        let state = self.state();
        let mut portals = state.spec.portals.iter();
        portals
            .find(|portal| portal.address == local)
            .map_or(PORTAL_GROUP, |portal| portal.group)
    }

    /// Tags of all portal groups, each once.
    pub(crate) fn groups(&self) -> Vec<u16> {
        let state = self.state();
        let mut groups: Vec<u16> = state
            .spec
            .portals
            .iter()
            .map(|portal| portal.group)
            .collect();
        if groups.is_empty() {
            groups.push(PORTAL_GROUP);
        }
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// What the target is to be now.
    pub(crate) fn spec(&self) -> TargetSpec {
        self.state().spec.clone()
    }

    /// Numbers of the units that an initiator sees.
    pub(crate) fn lun_numbers(&self, nexus: &Nexus) -> Vec<u16> {
        let state = self.state();
        let seen = state.units.iter().filter(|(_, shown)| {
            shown
                .iter()
                .any(|one| one.is_for(&nexus.port.initiator, nexus.peer))
        });
        seen.map(|(number, _)| *number).collect()
    }

    /// All units, for whichever initiators.
    pub(crate) fn units(&self) -> Vec<Arc<LogicalUnit>> {
        let state = self.state();
        let all = state.units.values().flatten();
        all.map(|shown| shown.unit.clone()).collect()
    }

    /// The units that an initiator sees.
    pub(crate) fn units_for(&self, nexus: &Nexus) -> Vec<Arc<LogicalUnit>> {
        let state = self.state();
        let seen = state.units.values().filter_map(|shown| {
            shown
                .iter()
                .find(|one| one.is_for(&nexus.port.initiator, nexus.peer))
        });
        seen.map(|shown| shown.unit.clone()).collect()
    }

    /// The unit of a logical unit number as it stands in a PDU, if the initiator sees it. SAM-5 section 4.7.
    pub(crate) fn unit(&self, lun: u64, nexus: &Nexus) -> Option<Arc<LogicalUnit>> {
        let [high, low, rest @ ..] = lun.to_be_bytes();
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let number = match high >> 6 {
            0 if high == 0 => u16::from(low),
            1 => u16::from(high & 0x3f) << 8 | u16::from(low),
            _ => return None,
        };
        let state = self.state();
        let mut shown = state.units.get(&number)?.iter();
        shown
            .find(|one| one.is_for(&nexus.port.initiator, nexus.peer))
            .map(|one| one.unit.clone())
    }

    /// Whether an initiator may log in.
    pub(crate) fn admits(&self, initiator: &str, peer: IpAddr) -> bool {
        let state = self.state();
        let list = &state.spec.initiators;
        list.is_empty() || list.iter().any(|entry| matches(entry, initiator, peer))
    }

    /// A session has begun: the units that it sees know it from now on.
    pub(crate) fn join(&self, nexus: &Arc<Nexus>, tasks: &Arc<TaskTable>) {
        let session = AttachedSession {
            nexus: nexus.clone(),
            tasks: tasks.clone(),
        };
        self.state().sessions.insert(nexus.id, session);
        for unit in self.units_for(nexus) {
            unit.join(nexus);
        }
    }

    /// A session has ended.
    pub(crate) fn leave(&self, nexus: u64) {
        self.state().sessions.remove(&nexus);
        for unit in self.units() {
            unit.leave(nexus);
        }
    }

    /// Aborts tasks of all sessions; returns the ends that are still to come.
    pub(crate) fn abort(&self, which: impl Fn(&Task) -> bool) -> Vec<Answer<()>> {
        let sessions: Vec<AttachedSession> = self.state().sessions.values().cloned().collect();
        let waits = sessions.iter().map(|session| session.tasks.abort(&which));
        waits.flatten().collect()
    }

    /// Aborts the tasks that a session has at a unit, without waiting: PREEMPT AND ABORT.
    pub(crate) fn abort_tasks(&self, nexus: u64, unit: &LogicalUnit) {
        let session = self.state().sessions.get(&nexus).cloned();
        if let Some(session) = session {
            drop(session.tasks.abort(|task| {
                task.unit
                    .as_ref()
                    .is_some_and(|other| std::ptr::eq(&raw const **other, unit))
            }));
        }
    }
}

/// Whether an entry of an access list fits: a name (perhaps with `*` at its end), an address, or a network.
fn matches(entry: &str, initiator: &str, peer: IpAddr) -> bool {
    if let Some(prefix) = entry.strip_suffix('*') {
        return initiator.starts_with(prefix);
    }
    if entry == initiator {
        return true;
    }
    let (address, bits) = match entry.split_once('/') {
        Some((address, bits)) => (address, bits.parse::<u32>().ok()),
        None => (entry, None),
    };
    let peer = peer.to_canonical();
    match (address.parse::<IpAddr>().map(|a| a.to_canonical()), peer) {
        (Ok(IpAddr::V4(network)), IpAddr::V4(peer)) => {
            let bits = bits.unwrap_or(32).min(32);
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            network.to_bits() & mask == peer.to_bits() & mask
        }
        (Ok(IpAddr::V6(network)), IpAddr::V6(peer)) => {
            let bits = bits.unwrap_or(128).min(128);
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            network.to_bits() & mask == peer.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_lists() {
        let peer: IpAddr = "10.1.2.3".parse().expect("an address");
        let check = |entry: &str| matches(entry, "iqn.2026-01.org.example:a", peer);
        for fits in [
            "iqn.2026-01.org.example:a",
            "iqn.2026-01.org.example:*",
            "10.1.2.3",
            "10.1.0.0/16",
            "0.0.0.0/0",
        ] {
            assert!(check(fits), "{fits}");
        }
        for other in [
            "iqn.2026-01.org.example:b",
            "10.1.2.4",
            "10.2.0.0/16",
            "::/0",
            "nonsense",
        ] {
            assert!(!check(other), "{other}");
        }
    }
}
