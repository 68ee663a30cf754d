//! A session: one initiator port at one target, over one or more connections. RFC 7143 sections 4.2.2 and 7.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::Reply as Answer;

use crate::keys::Terms;
use crate::pdu::{Draft, FINAL, NO_TAG, Pdu, opcode};
use crate::scsi::Nexus;
use crate::target::Target;
use crate::task::Task;
use crate::task_table::{COMMANDS_MAX, TaskTable};
use crate::wire::Wire;

/// A session in full feature phase.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) nexus: Arc<Nexus>,
    /// The handle that initiators know it by.
    pub(crate) tsih: u16,
    /// `None` for discovery.
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) terms: Terms,
    /// Its tasks under way; the target aborts them for other sessions.
    pub(crate) tasks: Arc<TaskTable>,
    state: Mutex<SessionState>,
    /// Held while commands are taken in their order.
    pub(crate) order: Mutex<()>,
}

/// What is known of a number whose turn has not come.
#[derive(Debug)]
enum EarlyCommand {
    /// A command that waits.
    Arrived(Arc<Wire>, Pdu),
    /// A command that was aborted before it came.
    Void,
}

#[derive(Debug)]
struct SessionState {
    exp_cmd_sn: u32,
    /// Commands that came before their turn, by number.
    early: BTreeMap<u32, EarlyCommand>,
    connections: BTreeMap<u16, Arc<Wire>>,
}

impl Session {
    pub(crate) fn new(
        nexus: Nexus,
        tsih: u16,
        target: Option<Arc<Target>>,
        terms: Terms,
        cmd_sn: u32,
    ) -> Self {
        Self {
            nexus: Arc::new(nexus),
            tsih,
            target,
            terms,
            tasks: Arc::default(),
            state: Mutex::new(SessionState {
                exp_cmd_sn: cmd_sn,
                early: BTreeMap::new(),
                connections: BTreeMap::new(),
            }),
            order: Mutex::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next command number expected, and the greatest allowed.
    pub(crate) fn window(&self) -> (u32, u32) {
        let exp = self.state().exp_cmd_sn;
        (exp, exp.wrapping_add(self.tasks.room()).wrapping_sub(1))
    }

    /// Takes the next command in order: this one if it is its turn. One that is early waits, one outside of the window is dropped.
    /// Called again with `None` it gives those that have waited.
    pub(crate) fn next(&self, arrived: Option<(&Arc<Wire>, Pdu)>) -> Option<(Arc<Wire>, Pdu)> {
        let mut state = self.state();
        if let Some((wire, pdu)) = arrived {
            let ahead = pdu.cmd_sn().wrapping_sub(state.exp_cmd_sn);
            if ahead == 0 {
                state.exp_cmd_sn = state.exp_cmd_sn.wrapping_add(1);
                return Some((wire.clone(), pdu));
            }
            if ahead < self.tasks.room() {
                state
                    .early
                    .entry(pdu.cmd_sn())
                    .or_insert_with(|| EarlyCommand::Arrived(wire.clone(), pdu));
            }
        }
        loop {
            let now = state.exp_cmd_sn;
            let waiting = state.early.remove(&now)?;
            state.exp_cmd_sn = now.wrapping_add(1);
            if let EarlyCommand::Arrived(wire, pdu) = waiting {
                return Some((wire, pdu));
            }
        }
    }

    /// Takes a number for received though its command has not come: it was aborted. Returns whether the number was to come, before
    /// `before`. RFC 7143 section 11.6.1, ABORT TASK.
    pub(crate) fn void(&self, number: u32, before: u32) -> bool {
        let mut state = self.state();
        let ahead = number.wrapping_sub(state.exp_cmd_sn);
        let asked = before.wrapping_sub(state.exp_cmd_sn);
        if ahead >= asked || ahead >= COMMANDS_MAX {
            return false;
        }
        state.early.insert(number, EarlyCommand::Void);
        true
    }

    /// Aborts tasks; returns the ends that are still to come.
    pub(crate) fn abort(&self, which: impl Fn(&Task) -> bool) -> Vec<Answer<()>> {
        self.tasks.abort(which)
    }

    /// Adds a connection; returns the one of the same number that it replaces.
    pub(crate) fn connect(&self, cid: u16, wire: &Arc<Wire>) -> Option<Arc<Wire>> {
        self.state().connections.insert(cid, wire.clone())
    }

    pub(crate) fn connection(&self, cid: u16) -> Option<Arc<Wire>> {
        self.state().connections.get(&cid).cloned()
    }

    /// Asks the initiator to log out within `seconds`. RFC 7143 section 11.9.1.
    pub(crate) fn ask_logout(&self, seconds: u16) {
        for connection in self.connections() {
            let draft = Draft::new(opcode::ASYNC, FINAL, NO_TAG)
                .byte(36, 1)
                .word(40, u32::from(seconds));
            connection.send(draft, || self.window());
        }
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Wire>> {
        self.state().connections.values().cloned().collect()
    }

    /// A connection has gone: its tasks go with it. Returns whether it was the last.
    pub(crate) fn disconnect(&self, wire: &Arc<Wire>) -> bool {
        drop(self.abort(|task| Arc::ptr_eq(&task.wire, wire)));
        let mut state = self.state();
        state
            .connections
            .retain(|_, known| !Arc::ptr_eq(known, wire));
        state.early.retain(
            |_, early| !matches!(early, EarlyCommand::Arrived(from, _) if Arc::ptr_eq(from, wire)),
        );
        state.connections.is_empty()
    }
}
