//! Task management functions: aborts and resets. RFC 7143 sections 11.5 and 11.6.

use std::sync::Arc;

use runtime::reply::Reply as Answer;

use super::FullFeature;
use crate::bytes::Field as _;
use crate::pdu::{Draft, FINAL, Pdu, opcode};
use crate::scsi::sense::asc;
use crate::target::Target;
use crate::wire::Next;

/// Functions of task management requests. RFC 7143 section 11.5.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskManagementFunction {
    AbortTask,
    AbortTaskSet,
    /// CLEAR ACA: there is never one.
    ClearAca,
    ClearTaskSet,
    LogicalUnitReset,
    TargetWarmReset,
    TargetColdReset,
    TaskReassign,
}

impl TaskManagementFunction {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            _ => return None,
        })
    }

    /// Whether it is about one logical unit, which must exist.
    fn is_of_unit(self) -> bool {
        matches!(
            self,
            Self::AbortTaskSet | Self::ClearAca | Self::ClearTaskSet | Self::LogicalUnitReset
        )
    }
}

/// Responses to task management requests. RFC 7143 section 11.6.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskManagementResponse {
    FunctionComplete = 0,
    TaskDoesNotExist = 1,
    LunDoesNotExist = 2,
    ReassignmentNotSupported = 4,
    FunctionNotSupported = 5,
}

impl FullFeature {
    pub(super) fn task_management(self: &Arc<Self>, pdu: &Pdu) -> Next {
        let itt = pdu.itt();
        let Some(target) = self.session.target.clone() else {
            return self.protocol_error(pdu);
        };
        match self.managed_tasks(&target, pdu) {
            Err(response) => self.send_managed(itt, response),
            Ok(waits) => {
                let connection = self.clone();
                self.wire.run(Box::pin(async move {
                    for wait in waits {
                        // Tasks at work end first: nothing of them happens after the answer.
                        let _ = wait.await;
                    }
                    connection.send_managed(itt, TaskManagementResponse::FunctionComplete);
                }));
            }
        }
        Next::Continue
    }

    /// Carries out a task management function. Returns the ends of tasks that its answer has to wait for, or the answer if that
    /// can go out at once.
    fn managed_tasks(
        &self,
        target: &Arc<Target>,
        pdu: &Pdu,
    ) -> Result<Vec<Answer<()>>, TaskManagementResponse> {
        let function = TaskManagementFunction::from_code(pdu.flags() & 0x7f);
        let lun = pdu.lun();
        let unit = target.unit(lun, &self.session.nexus);
        if function.is_some_and(TaskManagementFunction::is_of_unit) && unit.is_none() {
            return Err(TaskManagementResponse::LunDoesNotExist);
        }
        Ok(match function {
            Some(TaskManagementFunction::AbortTask) => {
                let referenced = pdu.bhs.u32_at(20);
                if self.session.tasks.get(referenced).is_none() {
                    // The command may arrive later, perhaps by another connection: then it is not executed.
                    let void = self.session.void(pdu.bhs.u32_at(32), pdu.cmd_sn());
                    return Err(if void {
                        TaskManagementResponse::FunctionComplete
                    } else {
                        TaskManagementResponse::TaskDoesNotExist
                    });
                }
                self.session.abort(|task| task.itt == referenced)
            }
            Some(TaskManagementFunction::AbortTaskSet) => {
                self.session.abort(|task| task.lun == lun)
            }
            // Of all sessions.
            Some(TaskManagementFunction::ClearTaskSet) => target.abort(|task| task.lun == lun),
            Some(TaskManagementFunction::LogicalUnitReset) => {
                let waits = target.abort(|task| task.lun == lun);
                if let Some(unit) = &unit {
                    unit.reset(asc::BUS_DEVICE_RESET);
                }
                waits
            }
            Some(
                TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset,
            ) => {
                let waits = target.abort(|_| true);
                for unit in target.units() {
                    unit.reset(asc::BUS_DEVICE_RESET);
                }
                waits
            }
            Some(TaskManagementFunction::TaskReassign) => {
                return Err(TaskManagementResponse::ReassignmentNotSupported);
            }
            Some(TaskManagementFunction::ClearAca) | None => {
                return Err(TaskManagementResponse::FunctionNotSupported);
            }
        })
    }

    fn send_managed(&self, itt: u32, response: TaskManagementResponse) {
        let draft =
            Draft::new(opcode::TASK_MANAGEMENT_RESPONSE, FINAL, itt).byte(2, response as u8);
        self.send(draft);
    }
}
