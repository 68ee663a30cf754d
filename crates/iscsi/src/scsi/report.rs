//! REPORT LUNS, supported operation codes, target port groups. SPC-4 sections 6.33, 6.35, 6.36, 6.37.

use std::sync::Arc;

use super::cdb::{COMMANDS, Supported, service, service_action};
use super::sense::{Sense, asc};
use super::{Cdb, Command, Executed, LogicalUnit, Reply};
use crate::bytes::{Field as _, index, len16, len32, put};

/// Supported task management functions, as bits of byte 0. SPC-4 section 6.38.
mod function {
    pub(super) const ABORT_TASK: u8 = 0x80;
    pub(super) const ABORT_TASK_SET: u8 = 0x40;
    pub(super) const CLEAR_TASK_SET: u8 = 0x10;
    pub(super) const LOGICAL_UNIT_RESET: u8 = 0x08;
    pub(super) const TARGET_RESET: u8 = 0x02;
}

/// The task management functions that there are.
const TASK_MANAGEMENT: u8 = function::ABORT_TASK
    | function::ABORT_TASK_SET
    | function::CLEAR_TASK_SET
    | function::LOGICAL_UNIT_RESET
    | function::TARGET_RESET;

/// Asymmetric access states. SPC-4 section 6.37.
mod access {
    pub(super) const ACTIVE_OPTIMIZED: u8 = 0;
    pub(super) const ACTIVE_NON_OPTIMIZED: u8 = 1;
    pub(super) const STANDBY: u8 = 2;
    pub(super) const UNAVAILABLE: u8 = 3;
}

/// The access states that can be set, as bits.
const STATES: u8 = 1 << access::ACTIVE_OPTIMIZED
    | 1 << access::ACTIVE_NON_OPTIMIZED
    | 1 << access::STANDBY
    | 1 << access::UNAVAILABLE;

/// SELECT REPORT of REPORT LUNS. SPC-4 section 6.33.
mod select_report {
    pub(super) const ADDRESSED: u8 = 0x00;
    pub(super) const WELL_KNOWN: u8 = 0x01;
    pub(super) const ALL: u8 = 0x02;
}

/// REPORTING OPTIONS of REPORT SUPPORTED OPERATION CODES. SPC-4 section 6.35.
mod reporting {
    pub(super) const ALL: u8 = 0;
    pub(super) const OPERATION_CODE: u8 = 1;
    pub(super) const SERVICE_ACTION: u8 = 2;
    pub(super) const EITHER: u8 = 3;
}

/// The name of a target port. RFC 7143 section 4.4.1; padded as SPC-4 wants strings.
pub(super) fn port_identifier(target: &str, group: u16) -> Vec<u8> {
    let mut name = format!("{target},t,0x{group:04x}").into_bytes();
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    name
}

/// A logical unit number as eight bytes. SAM-5 section 4.7.
fn lun_bytes(number: u16) -> [u8; 8] {
    let mut bytes = [0; 8];
    if number < 256 {
        put(&mut bytes, 1, &[u8::try_from(number).unwrap_or(0)]);
    } else {
        put(&mut bytes, 0, &(0x4000 | number).to_be_bytes());
    }
    bytes
}

/// The list of REPORT LUNS.
fn luns_list(numbers: &[u16]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for number in numbers {
        bytes.extend_from_slice(&lun_bytes(*number));
    }
    let len = len32(bytes.len() - 8);
    put(&mut bytes, 0, &len.to_be_bytes());
    bytes
}

pub(super) fn report_luns(command: &Command) -> Executed {
    let cdb = &command.cdb;
    let allocated = index(cdb.u32_at(6));
    let numbers = match cdb[2] {
        select_report::ADDRESSED | select_report::ALL => command.target.lun_numbers(&command.nexus),
        select_report::WELL_KNOWN => Vec::new(),
        _ => return Err(Sense::cdb(2)),
    };
    if allocated < 16 {
        return Err(Sense::cdb(6));
    }
    Ok(Reply::data(luns_list(&numbers), allocated))
}

impl LogicalUnit {
    pub(super) fn maintenance_in(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        match service_action(cdb) {
            service::REPORT_TARGET_PORT_GROUPS => Ok(self.target_port_groups(command)),
            service::REPORT_SUPPORTED_OPERATION_CODES => supported_opcodes(cdb),
            _ => {
                let mut bytes = vec![TASK_MANAGEMENT, 0, 0, 0];
                if cdb[2] & 0x80 != 0 {
                    bytes.resize(16, 0);
                    put(&mut bytes, 3, &[12]);
                }
                Ok(Reply::data(bytes, index(cdb.u32_at(6))))
            }
        }
    }

    fn target_port_groups(&self, command: &Command) -> Reply {
        let cdb = &command.cdb;
        let extended = cdb[1] >> 5 == 1;
        let ports = command.target.groups();
        let mut bytes = vec![0; 4];
        if extended {
            bytes.extend_from_slice(&[0x10, 0, 0, 0]);
        }
        let access = self.state().access;
        // One group, number 1, of all ports: they lead to the same cache. Its state was last changed by a command, or never.
        let count = u8::try_from(ports.len()).unwrap_or(u8::MAX);
        bytes.extend_from_slice(&[access, STATES, 0, 1, 0, 1, 0, count]);
        for port in ports.iter().take(usize::from(count)) {
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&port.to_be_bytes());
        }
        let len = len32(bytes.len() - 4);
        put(&mut bytes, 0, &len.to_be_bytes());
        Reply::data(bytes, index(cdb.u32_at(6)))
    }

    /// SET TARGET PORT GROUPS: an administrator or a cluster says how this path is to be used.
    pub(super) fn set_target_port_groups(self: &Arc<Self>, command: &Command) -> Executed {
        let list = &command.data.bytes();
        if service_action(&command.cdb) != service::SET_TARGET_PORT_GROUPS {
            return Err(Sense::cdb(1));
        }
        if list.is_empty() {
            return Ok(Reply::good());
        }
        if list.len() < 8 || !list.len().is_multiple_of(4) {
            return Err(Sense::illegal(asc::PARAMETER_LENGTH));
        }
        let mut wanted = None;
        for at in (4..list.len()).step_by(4) {
            let state = list.u8_at(at) & 0x0f;
            if state > access::UNAVAILABLE {
                return Err(Sense::parameter(at));
            }
            if list.u16_at(at + 2) != 1 {
                return Err(Sense::parameter(at + 2));
            }
            wanted = Some(state);
        }
        if let Some(wanted) = wanted {
            let mut state = self.state();
            if state.access != wanted {
                state.access = wanted;
                state.add_attention_to_all(asc::ALUA_CHANGED, Some(command.nexus.id));
            }
        }
        Ok(Reply::good())
    }
}

fn usage_of(supported: &Supported) -> Vec<u8> {
    let mut usage = supported.usage.to_vec();
    if let Some(action) = supported.action {
        // The service action itself stands in the map, as the operation code does.
        let rest = usage.u8_at(1) & 0xe0;
        put(&mut usage, 1, &[rest | action]);
    }
    usage
}

/// Timeouts are not known: the descriptor says so.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn supported_opcodes(cdb: &Cdb) -> Executed {
    let allocated = index(cdb.u32_at(6));
    let timeouts = cdb[2] & 0x80 != 0;
    let (wanted, action) = (cdb[3], cdb.u16_at(4));
    let of_op = || COMMANDS.iter().filter(|c| c.op == wanted);
    let one = |found: Option<&Supported>| {
        let mut bytes = match found {
            None => vec![0, 1, 0, 0],
            Some(supported) => {
                let usage = usage_of(supported);
                let mut bytes = vec![0, 3];
                bytes.extend_from_slice(&len16(usage.len()).to_be_bytes());
                bytes.extend_from_slice(&usage);
                bytes
            }
        };
        if timeouts && found.is_some() {
            let with = bytes.u8_at(1) | 0x80;
            put(&mut bytes, 1, &[with]);
            bytes.extend_from_slice(&NO_TIMEOUTS);
        }
        Ok(Reply::data(bytes, allocated))
    };
    let fits = |c: &&Supported| c.action.map(u16::from) == Some(action);
    match cdb[2] & 0x07 {
        reporting::ALL => {
            let mut bytes = vec![0; 4];
            for supported in COMMANDS {
                let [high, low] = u16::from(supported.action.unwrap_or(0)).to_be_bytes();
                let flags = u8::from(supported.action.is_some()) | if timeouts { 2 } else { 0 };
                let [len_high, len_low] = len16(supported.usage.len()).to_be_bytes();
                bytes.extend_from_slice(&[supported.op, 0, high, low, 0, flags, len_high, len_low]);
                if timeouts {
                    bytes.extend_from_slice(&NO_TIMEOUTS);
                }
            }
            let len = len32(bytes.len() - 4);
            put(&mut bytes, 0, &len.to_be_bytes());
            Ok(Reply::data(bytes, allocated))
        }
        reporting::OPERATION_CODE if of_op().any(|c| c.action.is_some()) => Err(Sense::cdb(2)),
        reporting::OPERATION_CODE => one(of_op().next()),
        reporting::SERVICE_ACTION if of_op().any(|c| c.action.is_none()) => Err(Sense::cdb(2)),
        reporting::SERVICE_ACTION => one(of_op().find(fits)),
        reporting::EITHER => one(of_op().find(|c| match c.action {
            None => action == 0,
            Some(own) => u16::from(own) == action,
        })),
        _ => Err(Sense::cdb(2)),
    }
}
