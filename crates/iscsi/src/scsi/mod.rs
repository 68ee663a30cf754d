//! SCSI commands on a logical unit. SPC-4 and SBC-3.
//!
//! [`LogicalUnit::execute`] carries out one command with all its data and returns its status. What must hold before any command
//! (unit attentions, reservations, access states) is checked here, in the order SPC-4 wants it; the commands themselves are in the
//! modules below, by subject, and what they share below those: the unit and its state (`lun`), what it keeps (`registrations`, `tokens`,
//! `copy_results`, `task_set`), the commands and their data (`cdb`, `command`).

mod block;
mod cdb;
mod command;
mod copy;
mod copy_results;
mod extent;
mod inquiry;
mod lun;
mod mode;
mod nexus;
mod provision;
mod registrations;
mod report;
mod reserve;
pub(crate) mod sense;
mod task_set;
mod threshold;
mod token;
mod tokens;

pub(crate) use block::write_start;
pub(crate) use cdb::{CommandClass, TRANSFER_BYTES_MAX, data_out_bytes, is_exact};
pub(crate) use command::{Command, Reply};
pub(crate) use lun::LogicalUnit;
pub(crate) use nexus::{Nexus, Port};
pub(crate) use task_set::{Attribute, TaskSetEntry};

use std::sync::Arc;

use crate::bytes::Field as _;
use cdb::{Cdb, find, op, service, service_action};
use command::Executed;
use sense::{Sense, asc, key, status};

impl LogicalUnit {
    /// Carries out a command.
    pub(crate) async fn execute(self: &Arc<Self>, command: Command) -> Reply {
        let cdb = &command.cdb;
        if !self.may_proceed_with_attention(cdb[0])
            && let Some(attention) = self.take_attention(command.nexus.id)
        {
            return Sense::new(key::UNIT_ATTENTION, attention).into();
        }
        let supported = match find(cdb) {
            Ok(supported) => supported,
            Err(sense) => return sense.into(),
        };
        // NACA is not supported. SAM-5 section 5.2.
        let control = supported.usage.len().saturating_sub(1);
        if cdb.u8_at(control) & 0x04 != 0 {
            return Sense::cdb(crate::bytes::len16(control)).into();
        }
        if let Some(refusal) = self.access_refusal(cdb, supported.kind) {
            return refusal.into();
        }
        if self.conflicts(&command.nexus, cdb, supported.kind) {
            return Reply::status(status::RESERVATION_CONFLICT);
        }
        // Reads and writes are nearly all there is; the others' state would make every command's task large.
        let outcome = match cdb[0] {
            op::READ_10 | op::READ_16 => self.read(cdb).await,
            op::WRITE_10 | op::WRITE_16 => self.write(&command).await,
            _ => Box::pin(self.dispatch(&command)).await,
        };
        if supported.kind == CommandClass::Write && self.is_to_be_watched(&command) {
            Box::pin(self.watch_space()).await;
        }
        outcome.unwrap_or_else(Reply::from)
    }

    /// INQUIRY, REPORT LUNS and REQUEST SENSE work in spite of a unit attention, and keep it. SPC-4 section 5.14.
    fn may_proceed_with_attention(&self, op: u8) -> bool {
        matches!(op, op::INQUIRY | op::REPORT_LUNS | op::REQUEST_SENSE)
    }

    async fn dispatch(self: &Arc<Self>, command: &Command) -> Executed {
        let cdb = &command.cdb;
        match cdb[0] {
            op::TEST_UNIT_READY => self.test_unit_ready().await,
            op::REQUEST_SENSE => Ok(self.request_sense(command)),
            op::INQUIRY => self.inquiry(command).await,
            op::MODE_SENSE_6 | op::MODE_SENSE_10 => self.mode_sense(cdb).await,
            op::MODE_SELECT_6 | op::MODE_SELECT_10 => self.mode_select(command).await,
            op::LOG_SENSE => self.log_sense(cdb).await,
            op::START_STOP_UNIT => self.start_stop(cdb).await,
            op::PREVENT_ALLOW => Ok(Reply::good()),
            op::READ_CAPACITY_10 => self.read_capacity_10().await,
            op::SERVICE_IN_16 => match service_action(cdb) {
                service::READ_CAPACITY_16 => self.read_capacity_16(cdb).await,
                _ => self.get_lba_status(cdb).await,
            },
            op::READ_6 | op::READ_10 | op::READ_12 | op::READ_16 => self.read(cdb).await,
            op::WRITE_6 | op::WRITE_10 | op::WRITE_12 | op::WRITE_16 => self.write(command).await,
            op::WRITE_ATOMIC => self.write_atomic(command).await,
            op::WRITE_VERIFY_10 | op::WRITE_VERIFY_12 | op::WRITE_VERIFY_16 => {
                self.write_verify(command).await
            }
            op::VERIFY_10 | op::VERIFY_12 | op::VERIFY_16 => self.verify(command).await,
            op::ORWRITE => self.or_write(command).await,
            op::COMPARE_AND_WRITE => self.compare_and_write(command).await,
            op::PREFETCH_10 | op::PREFETCH_16 => self.prefetch(cdb).await,
            op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => self.synchronize(cdb).await,
            op::READ_DEFECT_10 | op::READ_DEFECT_12 => Ok(self.read_defects(cdb)),
            op::WRITE_SAME_10 | op::WRITE_SAME_16 => self.write_same(command).await,
            op::UNMAP => self.unmap(command).await,
            op::SANITIZE => self.sanitize(command).await,
            op::RESERVE_6 | op::RESERVE_10 => Ok(self.reserve_unit(command)),
            op::RELEASE_6 | op::RELEASE_10 => Ok(self.release_unit(command)),
            op::PERSISTENT_RESERVE_IN => self.persistent_reserve_in(command),
            op::PERSISTENT_RESERVE_OUT => self.persistent_reserve_out(command).await,
            op::REPORT_LUNS => report::report_luns(command),
            op::MAINTENANCE_IN => self.maintenance_in(command),
            op::MAINTENANCE_OUT => self.set_target_port_groups(command),
            op::THIRD_PARTY_COPY_OUT => match service_action(cdb) {
                service::EXTENDED_COPY_LID1 => self.extended_copy(command).await,
                service::POPULATE_TOKEN => self.populate_token(command).await,
                _ => self.write_using_token(command).await,
            },
            op::THIRD_PARTY_COPY_IN => match service_action(cdb) {
                service::RECEIVE_ROD_TOKEN_INFORMATION => self.token_information(command),
                _ => self.receive_copy_results(command),
            },
            _ => Err(Sense::illegal(asc::OPCODE)),
        }
    }
}

/// Answers a command to a logical unit number that has none: what works there works. SPC-4 section 6.6.
pub(crate) fn execute_nowhere(command: &Command) -> Reply {
    let cdb = &command.cdb;
    let outcome = match cdb[0] {
        op::REPORT_LUNS => report::report_luns(command),
        op::INQUIRY if cdb[1] & 1 == 0 && cdb[2] == 0 => {
            // Qualifier 3: no device can be here.
            let mut bytes = vec![0; 36];
            crate::bytes::put(&mut bytes, 0, &[0x7f, 0, 6, 0x12, 31]);
            Ok(Reply::data(bytes, usize::from(cdb.u16_at(3))))
        }
        op::REQUEST_SENSE => {
            let sense = Sense::illegal(asc::NO_LUN).encode(cdb[1] & 1 != 0);
            Ok(Reply::data(sense, usize::from(cdb[4])))
        }
        _ => Err(Sense::illegal(asc::NO_LUN)),
    };
    outcome.unwrap_or_else(Reply::from)
}

/// Parses hostile parameter lists, for fuzzing.
pub fn fuzz_parameters(bytes: &[u8]) {
    let _ = copy::parse(bytes);
    let _ = provision::parse_unmap(bytes, 512);
    let _ = token::parse_populate(bytes);
    let _ = token::parse_write(bytes);
    let _ = registrations::Reservations::parse(&String::from_utf8_lossy(bytes));
    let _ = mode::parse_select(bytes, true);
    let _ = mode::parse_select(bytes, false);
}
