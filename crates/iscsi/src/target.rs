//! Targets: names, initiators that may log in, and the units they show.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::scsi::sense::asc;
use crate::scsi::{LogicalUnit, LunSpec, Nexus};
use crate::session::Session;

/// A user and a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Chap {
    /// Name.
    pub user: String,
    /// Secret.
    pub secret: String,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chap({})", self.user)
    }
}

/// An address at which a target is reached. Connections of one session may be spread over the portals of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group: u16,
}

/// Tag of the portal group that addresses belong to which no target names.
pub const PORTAL_GROUP: u16 = 1;

/// A target as it is to be.
#[derive(Clone, Debug)]
pub struct TargetSpec {
    /// iSCSI name.
    pub name: String,
    /// What initiators may show to people.
    pub alias: String,
    /// Addresses to be told in discovery; none means the one the initiator has reached.
    pub portals: Vec<Portal>,
    /// Names and addresses of initiators that may log in; none is all.
    pub initiators: Vec<String>,
    /// What initiators must know.
    pub chap: Option<Chap>,
    /// What we prove to initiators that ask.
    pub mutual: Option<Chap>,
    /// Where initiators are sent instead.
    pub redirect: Option<SocketAddr>,
    /// The units.
    pub luns: Vec<LunSpec>,
}

/// Checks an iSCSI name: RFC 7143 section 4.2.7, RFC 3721.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    if name.len() > 223 {
        return Err("an iSCSI name has at most 223 characters");
    }
    if let Some(rest) = name.strip_prefix("iqn.") {
        let bytes = rest.as_bytes();
        let date = bytes.len() > 8
            && bytes.iter().take(7).enumerate().all(|(i, b)| match i {
                4 => *b == b'-',
                _ => b.is_ascii_digit(),
            })
            && bytes.get(7) == Some(&b'.');
        if !date {
            return Err("an iqn name is iqn.YYYY-MM.DOMAIN:ANYTHING");
        }
    } else if let Some(hex) = name.strip_prefix("eui.") {
        if hex.len() != 16 || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("an eui name has 16 hexadecimal digits");
        }
        return Ok(());
    } else if let Some(hex) = name.strip_prefix("naa.") {
        if !matches!(hex.len(), 16 | 32) || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("an naa name has 16 or 32 hexadecimal digits");
        }
        return Ok(());
    } else {
        return Err("an iSCSI name begins with iqn., eui. or naa.");
    }
    if name.chars().all(allowed) {
        Ok(())
    } else {
        Err("an iqn name has lower-case letters, digits, and - . : only")
    }
}

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

struct TargetState {
    spec: TargetSpec,
    units: Units,
    sessions: BTreeMap<u64, Weak<Session>>,
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
            (before, sessions_of(&state))
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

    pub(crate) fn join(&self, session: &Arc<Session>) {
        let units = {
            let mut state = self.state();
            state
                .sessions
                .insert(session.nexus.id, Arc::downgrade(session));
            drop(state);
            self.units_for(&session.nexus)
        };
        for unit in units {
            unit.join(&session.nexus);
        }
    }

    pub(crate) fn leave(&self, nexus: u64) {
        self.state().sessions.remove(&nexus);
        for unit in self.units() {
            unit.leave(nexus);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        sessions_of(&self.state())
    }

    /// Aborts the tasks that a session has at a unit, without waiting: PREEMPT AND ABORT.
    pub(crate) fn abort_tasks(&self, nexus: u64, unit: &LogicalUnit) {
        let session = self.state().sessions.get(&nexus).and_then(Weak::upgrade);
        if let Some(session) = session {
            drop(session.abort(|task| {
                task.unit
                    .as_ref()
                    .is_some_and(|other| std::ptr::eq(&raw const **other, unit))
            }));
        }
    }
}

fn sessions_of(state: &TargetState) -> Vec<Arc<Session>> {
    state.sessions.values().filter_map(Weak::upgrade).collect()
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
    fn names_are_checked() {
        for good in [
            "iqn.2026-11.org.example:disk",
            "iqn.2026-11.org.example",
            "eui.0123456789abcdef",
        ] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "disk",
            "iqn.26-11.x:y",
            "iqn.2026-11.Org:x",
            "eui.12",
            "naa.xyz",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

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
