//! Reservations: persistent ones of every type, and RESERVE(6) with its like. SPC-4 section 5.13; SPC-2 section 5.5.1.
//!
//! Registrations belong to initiator ports by name, so they outlive sessions; with APTPL they outlive us.

use std::sync::Arc;

use super::cdb::{service, service_action};
use super::lun::LunState;
use super::nexus::{Nexus, Port};
use super::registrations::{REGISTRATIONS_MAX, Registration, ReservationType};
use super::sense::{Sense, asc, status};
use super::{Cdb, Command, CommandClass, Executed, LogicalUnit, Reply, op};
use crate::bytes::{Field as _, index, len16, len32, put};

/// Service actions of PERSISTENT RESERVE IN. SPC-4 section 6.15.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReserveIn {
    ReadKeys,
    ReadReservation,
    ReportCapabilities,
    ReadFullStatus,
}

impl ReserveIn {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            service::READ_KEYS => Self::ReadKeys,
            service::READ_RESERVATION => Self::ReadReservation,
            service::REPORT_CAPABILITIES => Self::ReportCapabilities,
            service::READ_FULL_STATUS => Self::ReadFullStatus,
            _ => return None,
        })
    }
}

/// Service actions of PERSISTENT RESERVE OUT. SPC-4 section 6.16.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReserveOut {
    Register,
    Reserve(ReservationType),
    Release(ReservationType),
    Clear,
    Preempt(ReservationType),
    PreemptAndAbort(ReservationType),
    RegisterAndIgnoreExistingKey,
    RegisterAndMove,
}

impl ReserveOut {
    /// Reads the service action, with scope and type where it has them.
    fn decode(cdb: &Cdb) -> Result<Self, Sense> {
        let reservation = || match (cdb[2] >> 4, ReservationType::from_code(cdb[2] & 0x0f)) {
            // The scope is always the whole unit.
            (0, Some(reservation)) => Ok(reservation),
            _ => Err(Sense::cdb(2)),
        };
        Ok(match service_action(cdb) {
            service::REGISTER => Self::Register,
            service::RESERVE => Self::Reserve(reservation()?),
            service::RELEASE => Self::Release(reservation()?),
            service::CLEAR => Self::Clear,
            service::PREEMPT => Self::Preempt(reservation()?),
            service::PREEMPT_AND_ABORT => Self::PreemptAndAbort(reservation()?),
            service::REGISTER_AND_IGNORE_EXISTING_KEY => Self::RegisterAndIgnoreExistingKey,
            service::REGISTER_AND_MOVE => Self::RegisterAndMove,
            _ => return Err(Sense::cdb(1)),
        })
    }
}

impl LogicalUnit {
    /// Whether reservations of others forbid a command.
    pub(super) fn conflicts(&self, nexus: &Nexus, cdb: &Cdb, class: CommandClass) -> bool {
        let state = self.state();
        if state.reserved_by.is_some_and(|holder| holder != nexus.id) {
            // SPC-2 table 10: little is allowed beside RESERVE(6).
            let free = class == CommandClass::Free
                || matches!(cdb[0], op::RELEASE_6 | op::RELEASE_10)
                || (cdb[0] == op::PREVENT_ALLOW && cdb[4] & 3 == 0);
            if !free {
                return true;
            }
        }
        let class = match cdb[0] {
            // SPC-4 table 66: these are always allowed, or only what their own text says.
            op::LOG_SENSE => CommandClass::Status,
            op::MAINTENANCE_OUT => CommandClass::Write,
            op::START_STOP_UNIT if cdb[4] & 1 != 0 && cdb[4] >> 4 == 0 => CommandClass::Status,
            _ => class,
        };
        state.reservations.refuses(&nexus.port, class)
    }

    /// RESERVE(6) and (10): the whole unit for this session. SPC-2 section 7.21.
    pub(super) fn reserve_unit(&self, command: &Command) -> Reply {
        let mut state = self.state();
        // SPC-4 section 5.13.3: no mixing, except by a registered initiator where it changes nothing.
        if !state.reservations.registrations.is_empty() {
            let registered = state.reservations.find(&command.nexus.port).is_some();
            if registered {
                return Reply::good();
            }
            return Reply::status(status::RESERVATION_CONFLICT);
        }
        match state.reserved_by {
            Some(holder) if holder != command.nexus.id => {
                Reply::status(status::RESERVATION_CONFLICT)
            }
            _ => {
                state.reserved_by = Some(command.nexus.id);
                Reply::good()
            }
        }
    }

    /// RELEASE(6) and (10): of others it does nothing, successfully.
    pub(super) fn release_unit(&self, command: &Command) -> Reply {
        let mut state = self.state();
        if !state.reservations.registrations.is_empty() {
            let registered = state.reservations.find(&command.nexus.port).is_some();
            if !registered {
                return Reply::status(status::RESERVATION_CONFLICT);
            }
            return Reply::good();
        }
        if state.reserved_by == Some(command.nexus.id) {
            state.reserved_by = None;
        }
        Reply::good()
    }

    pub(super) fn persistent_reserve_in(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let allocated = usize::from(cdb.u16_at(7));
        let action = ReserveIn::from_code(service_action(cdb)).ok_or_else(|| Sense::cdb(1))?;
        let state = self.state();
        let reservations = &state.reservations;
        let mut bytes = reservations.generation.to_be_bytes().to_vec();
        match action {
            ReserveIn::ReadKeys => {
                let len = len32(reservations.registrations.len() * 8);
                bytes.extend_from_slice(&len.to_be_bytes());
                for registration in &reservations.registrations {
                    bytes.extend_from_slice(&registration.key.to_be_bytes());
                }
            }
            ReserveIn::ReadReservation => match &reservations.held {
                None => bytes.extend_from_slice(&[0; 4]),
                Some((held, holder)) => {
                    let key = holder
                        .as_ref()
                        .filter(|_| !held.is_all_registrants())
                        .and_then(|port| reservations.find(port))
                        .map_or(0, |registration| registration.key);
                    bytes.extend_from_slice(&16_u32.to_be_bytes());
                    bytes.extend_from_slice(&key.to_be_bytes());
                    bytes.extend_from_slice(&[0, 0, 0, 0, 0, *held as u8, 0, 0]);
                }
            },
            // All types; APTPL, and specifying initiator ports not; for all target ports not.
            ReserveIn::ReportCapabilities => {
                let aptpl = u8::from(reservations.through_power_loss);
                // PTPL_C and ATP_C not, CRH; TMV and what it covers.
                bytes = vec![0, 8, 0x11, 0x80 | 0x10 | aptpl, 0xea, 0x01, 0, 0];
            }
            ReserveIn::ReadFullStatus => {
                let mut list = Vec::new();
                for registration in &reservations.registrations {
                    let id = transport_id(&registration.port);
                    let holds = reservations.is_holder(&registration.port);
                    let code = reservations
                        .held
                        .as_ref()
                        .map_or(0, |(held, _)| *held as u8);
                    list.extend_from_slice(&registration.key.to_be_bytes());
                    list.extend_from_slice(&[0; 4]);
                    list.extend_from_slice(&[u8::from(holds), if holds { code } else { 0 }]);
                    list.extend_from_slice(&[0; 4]);
                    list.extend_from_slice(&registration.port.group.to_be_bytes());
                    list.extend_from_slice(&len32(id.len()).to_be_bytes());
                    list.extend_from_slice(&id);
                }
                bytes.extend_from_slice(&len32(list.len()).to_be_bytes());
                bytes.extend_from_slice(&list);
            }
        }
        Ok(Reply::data(bytes, allocated))
    }

    pub(super) async fn persistent_reserve_out(self: &Arc<Self>, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let list = &command.data.bytes();
        let expected = if service_action(cdb) == service::REGISTER_AND_MOVE {
            list.len() >= 24
        } else {
            list.len() == 24
        };
        if !expected || index(cdb.u32_at(5)) != list.len() {
            return Err(Sense::illegal(asc::PARAMETER_LENGTH));
        }
        // SPC-4 section 5.13.3: not beside RESERVE(6).
        {
            let state = self.state();
            if state.reserved_by.is_some() {
                return Ok(Reply::status(status::RESERVATION_CONFLICT));
            }
        }
        let (reply, store) = {
            let before = self.state().reservations.clone();
            let reply = self.change(command)?;
            let state = self.state();
            let changed = state.reservations != before;
            let lasting = state.reservations.through_power_loss || before.through_power_loss;
            let text = state
                .reservations
                .through_power_loss
                .then(|| state.reservations.text());
            let store = (changed && lasting && reply.status == status::GOOD).then_some(text);
            (reply, store)
        };
        if let Some(text) = store {
            let name = self.state().name.clone();
            let guid = self.volume.guid();
            let stored = self.environment.store_reservations(&name, guid, text).await;
            if !stored {
                // The change holds until we end; that it does not last must not be hidden.
                return Err(Sense::new(super::sense::key::HARDWARE_ERROR, asc::INTERNAL));
            }
        }
        Ok(reply)
    }

    fn change(&self, command: &Command) -> Executed {
        let list = &command.data.bytes();
        let (key, new_key) = (list.u64_at(0), list.u64_at(8));
        let mut guard = self.state();
        let state = &mut *guard;
        let action = ReserveOut::decode(&command.cdb)?;
        let registered = state.reservations.find(&command.nexus.port).map(|r| r.key);
        match action {
            ReserveOut::Register => self.register(state, command, Some(key)),
            ReserveOut::RegisterAndIgnoreExistingKey => self.register(state, command, None),
            _ if registered != Some(key) => Ok(Reply::status(status::RESERVATION_CONFLICT)),
            ReserveOut::Reserve(wanted) => Ok(reserve(state, command, wanted)),
            ReserveOut::Release(wanted) => self.release(state, command, wanted),
            ReserveOut::Clear => {
                self.notify_registrants(state, asc::RESERVATIONS_PREEMPTED, command.nexus.id);
                state.reservations.registrations.clear();
                state.reservations.held = None;
                state.reservations.generation = state.reservations.generation.wrapping_add(1);
                Ok(Reply::good())
            }
            ReserveOut::Preempt(wanted) => self.preempt(state, command, wanted, new_key, false),
            ReserveOut::PreemptAndAbort(wanted) => {
                self.preempt(state, command, wanted, new_key, true)
            }
            ReserveOut::RegisterAndMove => self.register_and_move(state, command),
        }
    }

    /// REGISTER, with the key that is registered so far (0: none), and REGISTER AND IGNORE EXISTING KEY.
    fn register(&self, state: &mut LunState, command: &Command, expected: Option<u64>) -> Executed {
        let port = &command.nexus.port;
        let list = &command.data.bytes();
        let (new_key, flags) = (list.u64_at(8), list.u8_at(20));
        // SPEC_I_PT and ALL_TG_PT are not supported.
        if flags & 0x0c != 0 {
            return Err(Sense::parameter(20));
        }
        let registered = state.reservations.find(port).map_or(0, |r| r.key);
        if expected.is_some_and(|expected| expected != registered) {
            return Ok(Reply::status(status::RESERVATION_CONFLICT));
        }
        let reservations = &mut state.reservations;
        if new_key == 0 {
            if reservations.find(port).is_some()
                && let Some(ended) = reservations.remove(port)
                && ended.is_registrants_only()
            {
                self.notify_registrants(state, asc::RESERVATIONS_RELEASED, command.nexus.id);
            }
        } else if let Some(found) = reservations
            .registrations
            .iter_mut()
            .find(|r| r.port == *port)
        {
            found.key = new_key;
        } else {
            if reservations.registrations.len() >= REGISTRATIONS_MAX {
                return Err(Sense::illegal(asc::NO_REGISTRATIONS));
            }
            reservations.registrations.push(Registration {
                port: port.clone(),
                key: new_key,
            });
        }
        state.reservations.through_power_loss = flags & 1 != 0;
        state.reservations.generation = state.reservations.generation.wrapping_add(1);
        Ok(Reply::good())
    }

    fn release(
        &self,
        state: &mut LunState,
        command: &Command,
        wanted: ReservationType,
    ) -> Executed {
        if let Some((held, _)) = state.reservations.held.clone()
            && state.reservations.is_holder(&command.nexus.port)
        {
            if held != wanted {
                return Err(Sense::illegal(asc::INVALID_RELEASE));
            }
            state.reservations.held = None;
            if held.is_registrants_only() || held.is_all_registrants() {
                self.notify_registrants(state, asc::RESERVATIONS_RELEASED, command.nexus.id);
            }
        }
        Ok(Reply::good())
    }

    fn preempt(
        &self,
        state: &mut LunState,
        command: &Command,
        wanted: ReservationType,
        victim: u64,
        abort: bool,
    ) -> Executed {
        let port = &command.nexus.port;
        let reservations = &mut state.reservations;
        let all_held = matches!(&reservations.held, Some((held, _)) if held.is_all_registrants());
        let holder_key = match &reservations.held {
            Some((held, Some(holder))) if !held.is_all_registrants() => {
                reservations.find(holder).map(|r| r.key)
            }
            _ => None,
        };
        let everyone = all_held && victim == 0;
        if victim == 0 && !everyone {
            return Err(Sense::parameter(8));
        }
        let hit = |r: &Registration| everyone || r.key == victim;
        let takes_over = everyone || holder_key == Some(victim);
        if !everyone && !reservations.registrations.iter().any(hit) {
            return Ok(Reply::status(status::RESERVATION_CONFLICT));
        }
        let removed: Vec<Port> = reservations
            .registrations
            .iter()
            .filter(|r| hit(r) && r.port != *port)
            .map(|r| r.port.clone())
            .collect();
        reservations
            .registrations
            .retain(|r| r.port == *port || !hit(r));
        let type_before = reservations.held.as_ref().map(|(held, _)| *held);
        if takes_over || (all_held && !everyone && reservations.registrations.is_empty()) {
            let holder = (!wanted.is_all_registrants()).then(|| port.clone());
            reservations.held = Some((wanted, holder));
        }
        reservations.generation = reservations.generation.wrapping_add(1);
        let type_after = reservations.held.as_ref().map(|(held, _)| *held);
        let changed = takes_over && type_before != type_after;
        for (nexus, other) in state.ports() {
            if removed.contains(&other) {
                state.add_attention(nexus, asc::REGISTRATIONS_PREEMPTED);
                if abort {
                    command.target.abort_tasks(nexus, self);
                }
            } else if changed
                && nexus != command.nexus.id
                && state.reservations.find(&other).is_some()
            {
                state.add_attention(nexus, asc::RESERVATIONS_RELEASED);
            }
        }
        Ok(Reply::good())
    }

    fn register_and_move(&self, state: &mut LunState, command: &Command) -> Executed {
        let list = &command.data.bytes();
        let new_key = list.u64_at(8);
        let flags = list.u8_at(17);
        let id = list.part(24, index(list.u32_at(20)));
        let port = &command.nexus.port;
        let Some((held, _)) = state.reservations.held.clone() else {
            return Ok(Reply::status(status::RESERVATION_CONFLICT));
        };
        if held.is_all_registrants() || !state.reservations.is_holder(port) {
            return Ok(Reply::status(status::RESERVATION_CONFLICT));
        }
        if new_key == 0 {
            return Err(Sense::parameter(8));
        }
        // The relative target port that the new registration is for.
        let group = list.u16_at(18);
        let Some(target) = parse_transport_id(id, group) else {
            return Err(Sense::parameter(24));
        };
        if !command.target.groups().contains(&group) {
            return Err(Sense::parameter(18));
        }
        if target == *port {
            return Err(Sense::parameter(24));
        }
        state
            .reservations
            .registrations
            .retain(|r| r.port != target);
        state.reservations.registrations.push(Registration {
            port: target.clone(),
            key: new_key,
        });
        state.reservations.held = Some((held, Some(target)));
        if flags & 0x02 != 0 {
            // UNREG.
            state.reservations.registrations.retain(|r| r.port != *port);
        }
        state.reservations.through_power_loss = flags & 1 != 0;
        state.reservations.generation = state.reservations.generation.wrapping_add(1);
        Ok(Reply::good())
    }

    /// Tells the sessions of all registered ports but one's own.
    fn notify_registrants(&self, state: &mut LunState, what: super::sense::Asc, except: u64) {
        for (nexus, port) in state.ports() {
            if nexus != except && state.reservations.find(&port).is_some() {
                state.add_attention(nexus, what);
            }
        }
    }
}

/// RESERVE: takes the reservation if there is none; that of the same type again, by its holder, changes nothing.
fn reserve(state: &mut LunState, command: &Command, wanted: ReservationType) -> Reply {
    let port = &command.nexus.port;
    match &state.reservations.held {
        None => {
            let holder = (!wanted.is_all_registrants()).then(|| port.clone());
            state.reservations.held = Some((wanted, holder));
            Reply::good()
        }
        Some((held, _)) if *held == wanted && state.reservations.is_holder(port) => Reply::good(),
        Some(_) => Reply::status(status::RESERVATION_CONFLICT),
    }
}

/// An initiator port as SPC-4 section 7.6.4.6 writes it: name and session id.
fn transport_id(port: &Port) -> Vec<u8> {
    let mut name = port.to_string().into_bytes();
    name.push(0);
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let mut id = vec![0x45, 0];
    id.extend_from_slice(&len16(name.len()).to_be_bytes());
    id.extend_from_slice(&name);
    id
}

fn parse_transport_id(bytes: &[u8], group: u16) -> Option<Port> {
    if bytes.u8_at(0) != 0x45 {
        return None;
    }
    let text = bytes.part(4, usize::from(bytes.u16_at(2)));
    let text = text.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?;
    let (name, isid) = text.rsplit_once(",i,0x")?;
    let number = u64::from_str_radix(isid, 16).ok()?;
    let mut isid = [0; 6];
    let bytes = number.to_be_bytes();
    put(&mut isid, 0, bytes.part(2, 6));
    Some(Port {
        initiator: name.to_owned(),
        isid,
        group,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_ids_round_trip() {
        let parse = |bytes: &[u8]| parse_transport_id(bytes, 1);
        assert_eq!(
            parse(&transport_id(&Port::of_host(7))),
            Some(Port::of_host(7))
        );
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0x45, 0, 0xff, 0xff, 1, 2]), None);
    }
}
