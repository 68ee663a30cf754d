//! A session: one initiator port at one target, over one or more connections. RFC 7143 sections 4.2.2 and 7.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::Reply as Answer;

use crate::connection::ConnectionCore;
use crate::keys::Terms;
use crate::pdu::Pdu;
use crate::scsi::Nexus;
use crate::target::Target;
use crate::task::Task;

/// Commands of a session under way at once.
pub(crate) const COMMANDS_MAX: u32 = 128;
/// Immediate commands beyond those.
const IMMEDIATE_MAX: usize = 32;

/// A session in full feature phase.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) nexus: Arc<Nexus>,
    /// The handle that initiators know it by.
    pub(crate) tsih: u16,
    /// `None` for discovery.
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) terms: Terms,
    state: Mutex<SessionState>,
    /// Held while commands are taken in their order.
    pub(crate) order: Mutex<()>,
}

/// What is known of a number whose turn has not come.
#[derive(Debug)]
enum EarlyCommand {
    /// A command that waits.
    Arrived(Arc<ConnectionCore>, Pdu),
    /// A command that was aborted before it came.
    Void,
}

#[derive(Debug)]
struct SessionState {
    exp_cmd_sn: u32,
    /// Commands that came before their turn, by number.
    early: BTreeMap<u32, EarlyCommand>,
    connections: BTreeMap<u16, Arc<ConnectionCore>>,
    tasks: BTreeMap<u32, Arc<Task>>,
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
            state: Mutex::new(SessionState {
                exp_cmd_sn: cmd_sn,
                early: BTreeMap::new(),
                connections: BTreeMap::new(),
                tasks: BTreeMap::new(),
            }),
            order: Mutex::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next command number expected, and the greatest allowed.
    pub(crate) fn window(&self) -> (u32, u32) {
        let state = self.state();
        let busy = u32::try_from(state.tasks.len())
            .unwrap_or(COMMANDS_MAX)
            .min(COMMANDS_MAX);
        let exp = state.exp_cmd_sn;
        (exp, exp.wrapping_add(COMMANDS_MAX - busy).wrapping_sub(1))
    }

    /// Takes the next command in order: this one if it is its turn. One that is early waits, one outside of the window is dropped.
    /// Called again with `None` it gives those that have waited.
    pub(crate) fn next(
        &self,
        arrived: Option<(&Arc<ConnectionCore>, Pdu)>,
    ) -> Option<(Arc<ConnectionCore>, Pdu)> {
        let mut state = self.state();
        if let Some((connection, pdu)) = arrived {
            let ahead = pdu.cmd_sn().wrapping_sub(state.exp_cmd_sn);
            if ahead == 0 {
                state.exp_cmd_sn = state.exp_cmd_sn.wrapping_add(1);
                return Some((connection.clone(), pdu));
            }
            let busy = u32::try_from(state.tasks.len())
                .unwrap_or(COMMANDS_MAX)
                .min(COMMANDS_MAX);
            if ahead < COMMANDS_MAX - busy {
                state
                    .early
                    .entry(pdu.cmd_sn())
                    .or_insert_with(|| EarlyCommand::Arrived(connection.clone(), pdu));
            }
        }
        loop {
            let now = state.exp_cmd_sn;
            let waiting = state.early.remove(&now)?;
            state.exp_cmd_sn = now.wrapping_add(1);
            if let EarlyCommand::Arrived(connection, pdu) = waiting {
                return Some((connection, pdu));
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

    /// Adds a task. Refused when its tag is in use, or too many run.
    pub(crate) fn add(&self, task: &Arc<Task>) -> bool {
        let mut state = self.state();
        let limit = usize::try_from(COMMANDS_MAX).unwrap_or(0) + IMMEDIATE_MAX;
        if state.tasks.len() >= limit || state.tasks.contains_key(&task.itt) {
            return false;
        }
        state.tasks.insert(task.itt, task.clone());
        true
    }

    pub(crate) fn task(&self, itt: u32) -> Option<Arc<Task>> {
        self.state().tasks.get(&itt).cloned()
    }

    /// Takes a task out of the table, if it still is that one.
    pub(crate) fn remove(&self, task: &Arc<Task>) {
        let mut state = self.state();
        if state
            .tasks
            .get(&task.itt)
            .is_some_and(|found| Arc::ptr_eq(found, task))
        {
            state.tasks.remove(&task.itt);
        }
    }

    /// Aborts tasks; returns the ends that are still to come.
    pub(crate) fn abort(&self, which: impl Fn(&Task) -> bool) -> Vec<Answer<()>> {
        let aborted: Vec<Arc<Task>> = {
            let mut state = self.state();
            let tags: Vec<u32> = state
                .tasks
                .values()
                .filter(|task| which(task))
                .map(|task| task.itt)
                .collect();
            tags.iter()
                .filter_map(|itt| state.tasks.remove(itt))
                .collect()
        };
        aborted.iter().filter_map(|task| task.abort()).collect()
    }

    /// Adds a connection; returns the one of the same number that it replaces.
    pub(crate) fn connect(
        &self,
        cid: u16,
        connection: &Arc<ConnectionCore>,
    ) -> Option<Arc<ConnectionCore>> {
        self.state().connections.insert(cid, connection.clone())
    }

    pub(crate) fn connection(&self, cid: u16) -> Option<Arc<ConnectionCore>> {
        self.state().connections.get(&cid).cloned()
    }

    pub(crate) fn connections(&self) -> Vec<Arc<ConnectionCore>> {
        self.state().connections.values().cloned().collect()
    }

    /// A connection has gone: its tasks go with it. Returns whether it was the last.
    pub(crate) fn disconnect(&self, cid: u16, connection: &Arc<ConnectionCore>) -> bool {
        drop(self.abort(|task| Arc::ptr_eq(&task.connection, connection)));
        let mut state = self.state();
        if state
            .connections
            .get(&cid)
            .is_some_and(|found| Arc::ptr_eq(found, connection))
        {
            state.connections.remove(&cid);
        }
        state.early.retain(
            |_, early| !matches!(early, EarlyCommand::Arrived(from, _) if Arc::ptr_eq(from, connection)),
        );
        state.connections.is_empty()
    }
}
