//! Command descriptor blocks: which commands there are, what each does, and how much data it wants. SPC-4 and SBC-3.

use super::sense::{Sense, asc};
use crate::bytes::Field as _;

/// Longest transfer of one command, in bytes: what the block limits page says.
pub(crate) const TRANSFER_BYTES_MAX: u64 = 8 << 20;
/// Longest parameter list of one command, in bytes.
const PARAMETER_BYTES_MAX: u64 = 64 << 10;

/// Operation codes.
pub(crate) mod op {
    pub(crate) const TEST_UNIT_READY: u8 = 0x00;
    pub(crate) const REQUEST_SENSE: u8 = 0x03;
    pub(crate) const READ_6: u8 = 0x08;
    pub(crate) const WRITE_6: u8 = 0x0a;
    pub(crate) const INQUIRY: u8 = 0x12;
    pub(crate) const MODE_SELECT_6: u8 = 0x15;
    pub(crate) const RESERVE_6: u8 = 0x16;
    pub(crate) const RELEASE_6: u8 = 0x17;
    pub(crate) const MODE_SENSE_6: u8 = 0x1a;
    pub(crate) const START_STOP_UNIT: u8 = 0x1b;
    pub(crate) const PREVENT_ALLOW: u8 = 0x1e;
    pub(crate) const READ_CAPACITY_10: u8 = 0x25;
    pub(crate) const READ_10: u8 = 0x28;
    pub(crate) const WRITE_10: u8 = 0x2a;
    pub(crate) const WRITE_VERIFY_10: u8 = 0x2e;
    pub(crate) const VERIFY_10: u8 = 0x2f;
    pub(crate) const PREFETCH_10: u8 = 0x34;
    pub(crate) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(crate) const READ_DEFECT_10: u8 = 0x37;
    pub(crate) const WRITE_SAME_10: u8 = 0x41;
    pub(crate) const UNMAP: u8 = 0x42;
    pub(crate) const SANITIZE: u8 = 0x48;
    pub(crate) const LOG_SENSE: u8 = 0x4d;
    pub(crate) const MODE_SELECT_10: u8 = 0x55;
    pub(crate) const RESERVE_10: u8 = 0x56;
    pub(crate) const RELEASE_10: u8 = 0x57;
    pub(crate) const MODE_SENSE_10: u8 = 0x5a;
    pub(crate) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(crate) const THIRD_PARTY_COPY_OUT: u8 = 0x83;
    pub(crate) const THIRD_PARTY_COPY_IN: u8 = 0x84;
    pub(crate) const READ_16: u8 = 0x88;
    pub(crate) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(crate) const WRITE_16: u8 = 0x8a;
    pub(crate) const ORWRITE: u8 = 0x8b;
    pub(crate) const WRITE_VERIFY_16: u8 = 0x8e;
    pub(crate) const VERIFY_16: u8 = 0x8f;
    pub(crate) const PREFETCH_16: u8 = 0x90;
    pub(crate) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(crate) const WRITE_SAME_16: u8 = 0x93;
    pub(crate) const WRITE_ATOMIC: u8 = 0x9c;
    pub(crate) const SERVICE_IN_16: u8 = 0x9e;
    pub(crate) const REPORT_LUNS: u8 = 0xa0;
    pub(crate) const MAINTENANCE_IN: u8 = 0xa3;
    pub(crate) const MAINTENANCE_OUT: u8 = 0xa4;
    pub(crate) const READ_12: u8 = 0xa8;
    pub(crate) const WRITE_12: u8 = 0xaa;
    pub(crate) const WRITE_VERIFY_12: u8 = 0xae;
    pub(crate) const VERIFY_12: u8 = 0xaf;
    pub(crate) const READ_DEFECT_12: u8 = 0xb7;
}

/// A command block: 16 bytes hold every command known here.
pub(crate) type Cdb = [u8; 16];

/// Service actions of operation codes that have several. SPC-4 sections 6.15, 6.16, 6.18 and 6.33 to 6.38; SBC-3 for the medium.
pub(super) mod service {
    pub(crate) const SANITIZE_OVERWRITE: u8 = 0x01;
    pub(crate) const SANITIZE_BLOCK_ERASE: u8 = 0x02;
    pub(crate) const SANITIZE_EXIT_FAILURE_MODE: u8 = 0x1f;

    pub(crate) const READ_KEYS: u8 = 0x00;
    pub(crate) const READ_RESERVATION: u8 = 0x01;
    pub(crate) const REPORT_CAPABILITIES: u8 = 0x02;
    pub(crate) const READ_FULL_STATUS: u8 = 0x03;

    pub(crate) const REGISTER: u8 = 0x00;
    pub(crate) const RESERVE: u8 = 0x01;
    pub(crate) const RELEASE: u8 = 0x02;
    pub(crate) const CLEAR: u8 = 0x03;
    pub(crate) const PREEMPT: u8 = 0x04;
    pub(crate) const PREEMPT_AND_ABORT: u8 = 0x05;
    pub(crate) const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 0x06;
    pub(crate) const REGISTER_AND_MOVE: u8 = 0x07;

    pub(crate) const EXTENDED_COPY_LID1: u8 = 0x00;
    pub(crate) const POPULATE_TOKEN: u8 = 0x10;
    pub(crate) const WRITE_USING_TOKEN: u8 = 0x11;

    pub(crate) const RECEIVE_COPY_STATUS_LID1: u8 = 0x00;
    pub(crate) const RECEIVE_COPY_OPERATING_PARAMETERS: u8 = 0x03;
    pub(crate) const RECEIVE_ROD_TOKEN_INFORMATION: u8 = 0x07;

    pub(crate) const READ_CAPACITY_16: u8 = 0x10;
    pub(crate) const GET_LBA_STATUS: u8 = 0x12;

    pub(crate) const REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
    pub(crate) const REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
    pub(crate) const REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS: u8 = 0x0d;
    pub(crate) const SET_TARGET_PORT_GROUPS: u8 = 0x0a;
}

/// The service action of a command that has one: the low five bits of byte 1.
pub(super) fn service_action(cdb: &Cdb) -> u8 {
    cdb[1] & 0x1f
}

/// What a command does, as reservations and write protection see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// Always allowed.
    Free,
    /// Allowed beside persistent reservations, not beside those of SPC-2.
    Status,
    /// Reads the medium or settings.
    Read,
    /// Changes them.
    Write,
    /// Decides for itself (PERSISTENT RESERVE OUT, RESERVE, RELEASE).
    Reserve,
}

/// A command that is supported, for the checks and for REPORT SUPPORTED OPERATION CODES.
pub(super) struct Supported {
    pub(super) op: u8,
    /// Service action, in the low five bits of byte 1 (of byte 8 and 9 for none here).
    pub(super) action: Option<u8>,
    pub(super) kind: CommandClass,
    /// Which bits of the CDB mean something.
    pub(super) usage: &'static [u8],
}

const fn known(op: u8, kind: CommandClass, usage: &'static [u8]) -> Supported {
    Supported {
        op,
        action: None,
        kind,
        usage,
    }
}

/// A service action of PERSISTENT RESERVE OUT: all use the same fields.
const fn reserve_out(service: u8) -> Supported {
    action(
        op::PERSISTENT_RESERVE_OUT,
        service,
        CommandClass::Reserve,
        &[0x5f, 0x1f, X, 0, 0, X, X, X, X, C],
    )
}

const fn action(op: u8, action: u8, kind: CommandClass, usage: &'static [u8]) -> Supported {
    Supported {
        op,
        action: Some(action),
        kind,
        usage,
    }
}

const X: u8 = 0xff;
const C: u8 = 0x07;

/// Every command we carry out. SPC-4 section 6.35: the usage map has the operation code, then a bit for each that is evaluated.
pub(super) const COMMANDS: &[Supported] = &[
    known(
        op::TEST_UNIT_READY,
        CommandClass::Status,
        &[0x00, 0, 0, 0, 0, C],
    ),
    known(
        op::REQUEST_SENSE,
        CommandClass::Free,
        &[0x03, 1, 0, 0, X, C],
    ),
    known(op::READ_6, CommandClass::Read, &[0x08, 0x1f, X, X, X, C]),
    known(op::WRITE_6, CommandClass::Write, &[0x0a, 0x1f, X, X, X, C]),
    known(op::INQUIRY, CommandClass::Free, &[0x12, 1, X, X, X, C]),
    known(
        op::MODE_SELECT_6,
        CommandClass::Write,
        &[0x15, 0x11, 0, 0, X, C],
    ),
    known(op::RESERVE_6, CommandClass::Reserve, &[0x16, 0, 0, 0, 0, C]),
    known(op::RELEASE_6, CommandClass::Reserve, &[0x17, 0, 0, 0, 0, C]),
    known(op::MODE_SENSE_6, CommandClass::Read, &[0x1a, 8, X, X, X, C]),
    known(
        op::START_STOP_UNIT,
        CommandClass::Write,
        &[0x1b, 1, 0, 0xf, 0xf7, C],
    ),
    known(
        op::PREVENT_ALLOW,
        CommandClass::Status,
        &[0x1e, 0, 0, 0, 3, C],
    ),
    known(
        op::READ_CAPACITY_10,
        CommandClass::Status,
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, C],
    ),
    known(
        op::READ_10,
        CommandClass::Read,
        &[0x28, 0x18, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::WRITE_10,
        CommandClass::Write,
        &[0x2a, 0x18, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::WRITE_VERIFY_10,
        CommandClass::Write,
        &[0x2e, 0x12, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::VERIFY_10,
        CommandClass::Read,
        &[0x2f, 0x16, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::PREFETCH_10,
        CommandClass::Read,
        &[0x34, 2, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::SYNCHRONIZE_CACHE_10,
        CommandClass::Write,
        &[0x35, 2, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::READ_DEFECT_10,
        CommandClass::Read,
        &[0x37, 0, 0x1f, 0, 0, 0, 0, X, X, C],
    ),
    known(
        op::WRITE_SAME_10,
        CommandClass::Write,
        &[0x41, 0x18, X, X, X, X, 0, X, X, C],
    ),
    known(
        op::UNMAP,
        CommandClass::Write,
        &[0x42, 0, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::SANITIZE,
        service::SANITIZE_OVERWRITE,
        CommandClass::Write,
        &[0x48, 0x9f, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::SANITIZE,
        service::SANITIZE_BLOCK_ERASE,
        CommandClass::Write,
        &[0x48, 0x9f, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::SANITIZE,
        service::SANITIZE_EXIT_FAILURE_MODE,
        CommandClass::Write,
        &[0x48, 0x9f, 0, 0, 0, 0, 0, X, X, C],
    ),
    known(
        op::LOG_SENSE,
        CommandClass::Read,
        &[0x4d, 0, X, X, 0, X, X, X, X, C],
    ),
    known(
        op::MODE_SELECT_10,
        CommandClass::Write,
        &[0x55, 0x11, 0, 0, 0, 0, 0, X, X, C],
    ),
    known(
        op::RESERVE_10,
        CommandClass::Reserve,
        &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, C],
    ),
    known(
        op::RELEASE_10,
        CommandClass::Reserve,
        &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, C],
    ),
    known(
        op::MODE_SENSE_10,
        CommandClass::Read,
        &[0x5a, 0x18, X, X, 0, 0, 0, X, X, C],
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        service::READ_KEYS,
        CommandClass::Status,
        &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        service::READ_RESERVATION,
        CommandClass::Status,
        &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        service::REPORT_CAPABILITIES,
        CommandClass::Status,
        &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, C],
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        service::READ_FULL_STATUS,
        CommandClass::Status,
        &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, C],
    ),
    reserve_out(service::REGISTER),
    reserve_out(service::RESERVE),
    reserve_out(service::RELEASE),
    reserve_out(service::CLEAR),
    reserve_out(service::PREEMPT),
    reserve_out(service::PREEMPT_AND_ABORT),
    reserve_out(service::REGISTER_AND_IGNORE_EXISTING_KEY),
    reserve_out(service::REGISTER_AND_MOVE),
    action(
        op::THIRD_PARTY_COPY_OUT,
        service::EXTENDED_COPY_LID1,
        CommandClass::Write,
        &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::THIRD_PARTY_COPY_OUT,
        service::POPULATE_TOKEN,
        CommandClass::Read,
        &[0x83, 0x1f, 0, 0, 0, 0, X, X, X, X, X, X, X, X, 0, C],
    ),
    action(
        op::THIRD_PARTY_COPY_OUT,
        service::WRITE_USING_TOKEN,
        CommandClass::Write,
        &[0x83, 0x1f, 0, 0, 0, 0, X, X, X, X, X, X, X, X, 0, C],
    ),
    action(
        op::THIRD_PARTY_COPY_IN,
        service::RECEIVE_COPY_STATUS_LID1,
        CommandClass::Status,
        &[0x84, 0x1f, X, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::THIRD_PARTY_COPY_IN,
        service::RECEIVE_COPY_OPERATING_PARAMETERS,
        CommandClass::Status,
        &[0x84, 0x1f, X, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::THIRD_PARTY_COPY_IN,
        service::RECEIVE_ROD_TOKEN_INFORMATION,
        CommandClass::Status,
        &[0x84, 0x1f, X, X, X, X, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    known(
        op::READ_16,
        CommandClass::Read,
        &[0x88, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::COMPARE_AND_WRITE,
        CommandClass::Write,
        &[0x89, 0x18, X, X, X, X, X, X, X, X, 0, 0, 0, X, 0, C],
    ),
    known(
        op::WRITE_16,
        CommandClass::Write,
        &[0x8a, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::ORWRITE,
        CommandClass::Write,
        &[0x8b, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::WRITE_VERIFY_16,
        CommandClass::Write,
        &[0x8e, 0x12, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::VERIFY_16,
        CommandClass::Read,
        &[0x8f, 0x16, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::PREFETCH_16,
        CommandClass::Read,
        &[0x90, 2, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::SYNCHRONIZE_CACHE_16,
        CommandClass::Write,
        &[0x91, 2, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::WRITE_SAME_16,
        CommandClass::Write,
        &[0x93, 0x19, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::WRITE_ATOMIC,
        CommandClass::Write,
        &[0x9c, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    action(
        op::SERVICE_IN_16,
        service::READ_CAPACITY_16,
        CommandClass::Status,
        &[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::SERVICE_IN_16,
        service::GET_LBA_STATUS,
        CommandClass::Read,
        &[0x9e, 0x1f, X, X, X, X, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::REPORT_LUNS,
        CommandClass::Free,
        &[0xa0, 0, X, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::MAINTENANCE_IN,
        service::REPORT_TARGET_PORT_GROUPS,
        CommandClass::Status,
        &[0xa3, X, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::MAINTENANCE_IN,
        service::REPORT_SUPPORTED_OPERATION_CODES,
        CommandClass::Status,
        &[0xa3, 0x1f, 0x87, X, X, X, X, X, X, X, 0, C],
    ),
    action(
        op::MAINTENANCE_IN,
        service::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS,
        CommandClass::Status,
        &[0xa3, 0x1f, 0x80, 0, 0, 0, X, X, X, X, 0, C],
    ),
    action(
        op::MAINTENANCE_OUT,
        service::SET_TARGET_PORT_GROUPS,
        CommandClass::Write,
        &[0xa4, 0x1f, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
    known(
        op::READ_12,
        CommandClass::Read,
        &[0xa8, 0x18, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::WRITE_12,
        CommandClass::Write,
        &[0xaa, 0x18, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::WRITE_VERIFY_12,
        CommandClass::Write,
        &[0xae, 0x12, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::VERIFY_12,
        CommandClass::Read,
        &[0xaf, 0x16, X, X, X, X, X, X, X, X, 0, C],
    ),
    known(
        op::READ_DEFECT_12,
        CommandClass::Read,
        &[0xb7, 0x1f, 0, 0, 0, 0, X, X, X, X, 0, C],
    ),
];

/// Finds a command. An unknown operation code and an unknown service action of a known one differ.
pub(super) fn find(cdb: &Cdb) -> Result<&'static Supported, Sense> {
    let wanted = service_action(cdb);
    let mut same = COMMANDS.iter().filter(|c| c.op == cdb[0]).peekable();
    if same.peek().is_none() {
        return Err(Sense::illegal(asc::OPCODE));
    }
    same.find(|c| c.action.is_none_or(|action| action == wanted))
        .ok_or_else(|| Sense::cdb(1))
}

/// Returns how many bytes a command wants from the initiator.
///
/// # Errors
/// It wants more than we take.
pub(crate) fn data_out_bytes(cdb: &Cdb, block: u64) -> Result<u64, Sense> {
    let blocks = |count: u32| u64::from(count) * block;
    let (bytes, is_parameter) = match cdb[0] {
        op::WRITE_6 if cdb[4] == 0 => (blocks(256), false),
        op::WRITE_6 => (blocks(u32::from(cdb[4])), false),
        op::WRITE_10 | op::WRITE_VERIFY_10 => (blocks(u32::from(cdb.u16_at(7))), false),
        op::WRITE_12 | op::WRITE_VERIFY_12 => (blocks(cdb.u32_at(6)), false),
        op::WRITE_16 | op::WRITE_VERIFY_16 | op::ORWRITE => (blocks(cdb.u32_at(10)), false),
        op::WRITE_ATOMIC => (blocks(u32::from(cdb.u16_at(12))), false),
        op::VERIFY_10 => (verify_bytes(cdb, u32::from(cdb.u16_at(7)), block), false),
        op::VERIFY_12 => (verify_bytes(cdb, cdb.u32_at(6), block), false),
        op::VERIFY_16 => (verify_bytes(cdb, cdb.u32_at(10), block), false),
        op::WRITE_SAME_10 => (block, false),
        op::WRITE_SAME_16 if cdb[1] & 1 == 0 => (block, false),
        op::COMPARE_AND_WRITE => (2 * blocks(u32::from(cdb[13])), false),
        op::UNMAP | op::MODE_SELECT_10 | op::SANITIZE => (u64::from(cdb.u16_at(7)), true),
        op::MODE_SELECT_6 => (u64::from(cdb[4]), true),
        op::PERSISTENT_RESERVE_OUT => (u64::from(cdb.u32_at(5)), true),
        op::THIRD_PARTY_COPY_OUT => (u64::from(cdb.u32_at(10)), true),
        op::MAINTENANCE_OUT => (u64::from(cdb.u32_at(6)), true),
        _ => (0, true),
    };
    if is_parameter && bytes > PARAMETER_BYTES_MAX {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    if bytes > 2 * TRANSFER_BYTES_MAX {
        return Err(Sense::cdb(0));
    }
    Ok(bytes)
}

/// Whether a command is invalid with any other amount of data than it says.
pub(crate) fn is_exact(cdb: &Cdb) -> bool {
    matches!(
        cdb[0],
        op::WRITE_SAME_10 | op::WRITE_SAME_16 | op::COMPARE_AND_WRITE
    )
}

/// What VERIFY compares with: all blocks, one block, or nothing.
fn verify_bytes(cdb: &Cdb, count: u32, block: u64) -> u64 {
    match cdb[1] >> 1 & 3 {
        1 => u64::from(count) * block,
        3 if count > 0 => block,
        _ => 0,
    }
}
