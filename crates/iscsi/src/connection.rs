//! One TCP connection: from its login to full feature phase, PDU by PDU. RFC 7143 sections 4 and 11.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::IoBuf;

use crate::bytes::{Field as _, index, len32};
use crate::environment::Transport;
use crate::keys::{self, Terms};
use crate::login::Login;
use crate::pdu::{
    BHS_BYTES, DATA_BYTES_MAX, Draft, FINAL, Framing, Held, NO_TAG, Pdu, Rest, Shape, Violation,
    opcode,
};
use crate::scsi::sense::{Sense, asc, key, status};
use crate::scsi::{self, Attribute, Command, Reply};
use crate::server::ServerCore;
use crate::session::Session;
use crate::target::{PORTAL_GROUP, Portal, Target};
use crate::task::{Incoming, Step, Task};

/// Reasons of rejects. RFC 7143 section 11.17.1.
mod reason {
    pub(super) const DATA_DIGEST: u8 = 0x02;
    pub(super) const PROTOCOL: u8 = 0x04;
    pub(super) const NOT_SUPPORTED: u8 = 0x05;
}

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

/// Data from this size on is read into pieces that are blocks of the volume.
const APART_BYTES: usize = 4 << 10;
/// The least size of a piece: less is copied as fast as it is handled.
const PIECE_BYTES_MIN: u64 = 16 << 10;

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next PDU may come.
    Continue,
    /// Nothing more is to be read; what was sent is still to be written.
    End,
}

/// A connection, for the owner of its socket.
#[derive(Debug)]
pub struct Connection(pub(crate) Arc<ConnectionCore>);

impl Connection {
    /// Returns what follows a header, and into which pieces data for a volume is best read.
    ///
    /// # Errors
    /// [`Violation::TooLong`]: what follows means nothing.
    pub fn shape(&self, bhs: &[u8; BHS_BYTES]) -> Result<Shape, Violation> {
        let mut shape = self.0.framing().shape(bhs)?;
        if shape.data >= APART_BYTES
            && let Some((first, each)) = self.0.pieces(bhs)
        {
            (shape.first, shape.each) = (first.min(shape.data), each);
        }
        Ok(shape)
    }

    /// Takes a PDU: its header and everything after it, as long as [`Connection::shape`] says.
    pub fn receive(&self, bhs: [u8; BHS_BYTES], rest: Rest) -> Next {
        match Pdu::read(bhs, rest, self.0.framing()) {
            Ok(pdu) => self.0.receive(pdu),
            // The bytes that follow mean nothing any more.
            Err(_) => self.0.violated(),
        }
    }

    /// Nothing has come for a while: asks whether the initiator is still there.
    pub fn ping(&self) {
        self.0.ping();
    }

    /// Whether the login is complete.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        matches!(self.0.state().phase, Phase::Full(_))
    }
}

impl Drop for Connection {
    /// The socket is gone: so are the connection's tasks, and the session with its last connection.
    fn drop(&mut self) {
        self.0.gone();
    }
}

/// What a connection is at.
#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    Full(Arc<Session>),
    Ended,
}

/// The connection as its session, its tasks and its socket share it.
pub(crate) struct ConnectionCore {
    pub(crate) server: Arc<ServerCore>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    transport: Arc<dyn Transport>,
    state: Mutex<ConnectionState>,
}

impl std::fmt::Debug for ConnectionCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionCore({})", self.peer)
    }
}

#[derive(Debug)]
struct ConnectionState {
    phase: Phase,
    framing: Framing,
    stat_sn: u32,
    cid: u16,
    /// Bytes of data the initiator takes in one PDU.
    max_send: usize,
    /// Text that did not fit, and the tag under which the rest is asked for.
    text: Option<(u32, Vec<u8>)>,
    /// Text of a request that is still to be continued.
    asked: Vec<u8>,
    next_ttt: u32,
}

impl ConnectionCore {
    pub(crate) fn new(
        server: Arc<ServerCore>,
        peer: SocketAddr,
        local: SocketAddr,
        transport: Arc<dyn Transport>,
    ) -> Self {
        Self {
            server,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            transport,
            state: Mutex::new(ConnectionState {
                phase: Phase::Login(Box::new(Login::new())),
                framing: Framing::login(),
                stat_sn: 1,
                cid: 0,
                max_send: 8192,
                text: None,
                asked: Vec::new(),
                next_ttt: 1,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn framing(&self) -> Framing {
        self.state().framing
    }

    /// The first and each further length of the pieces in which the data after a header is kept without a copy: up to the end of
    /// a block of the volume that is written, and blocks. `None` when the data is for no volume.
    fn pieces(&self, bhs: &[u8; BHS_BYTES]) -> Option<(usize, usize)> {
        let session = self.session()?;
        let (unit, cdb, offset) = match bhs[0] & 0x3f {
            opcode::DATA_OUT => {
                let task = session.task(bhs.u32_at(16))?;
                (task.unit.clone()?, task.cdb, u64::from(bhs.u32_at(40)))
            }
            opcode::COMMAND => {
                let mut cdb = [0; 16];
                crate::bytes::put(&mut cdb, 0, bhs.part(32, 16));
                let target = session.target.as_ref()?;
                (target.unit(bhs.u64_at(8), &session.nexus)?, cdb, 0)
            }
            _ => return None,
        };
        let start = scsi::write_start(&cdb, unit.block())?.checked_add(offset)?;
        let each = unit.volume_block().max(PIECE_BYTES_MIN);
        let first = each - start % each;
        Some((usize::try_from(first).ok()?, usize::try_from(each).ok()?))
    }

    fn session(&self) -> Option<Arc<Session>> {
        match &self.state().phase {
            Phase::Full(session) => Some(session.clone()),
            _ => None,
        }
    }

    fn max_send(&self) -> usize {
        self.state().max_send.max(512)
    }

    fn tag(&self) -> u32 {
        let mut state = self.state();
        state.next_ttt = match state.next_ttt.wrapping_add(1) {
            NO_TAG | 0 => 1,
            next => next,
        };
        state.next_ttt
    }

    /// Sends a PDU. Numbers are given here, so that they stand in the order of the wire.
    fn send(&self, draft: Draft) {
        let mut state = self.state();
        let (exp, max) = match &state.phase {
            Phase::Full(session) => session.window(),
            Phase::Login(_) => (0, 0),
            Phase::Ended => return,
        };
        self.send_locked(&mut state, draft, exp, max);
    }

    fn send_locked(&self, state: &mut ConnectionState, draft: Draft, exp: u32, max: u32) {
        let counts = draft.counts;
        let draft = draft.word(24, state.stat_sn).word(28, exp).word(32, max);
        if counts {
            state.stat_sn = state.stat_sn.wrapping_add(1);
        }
        self.transport.send(draft.seal(state.framing));
    }

    fn violated(self: &Arc<Self>) -> Next {
        self.end();
        Next::End
    }

    /// Ends the connection: its tasks, and the session with its last connection. The owner of the socket then drops it.
    pub(crate) fn end(self: &Arc<Self>) {
        self.transport.close();
        self.gone();
    }

    fn gone(self: &Arc<Self>) {
        let (session, cid) = {
            let mut state = self.state();
            let cid = state.cid;
            match std::mem::replace(&mut state.phase, Phase::Ended) {
                Phase::Full(session) => (Some(session), cid),
                _ => (None, cid),
            }
        };
        let Some(session) = session else { return };
        if session.disconnect(cid, self) {
            self.server.end_session(&session);
        }
    }

    fn ping(&self) {
        let tag = self.tag();
        let draft = Draft::new(opcode::NOP_IN, FINAL, NO_TAG)
            .word(20, tag)
            .uncounted();
        if self.session().is_some() {
            self.send(draft);
        }
    }

    /// Asks the initiator to log out.
    pub(crate) fn ask_logout(&self, seconds: u16) {
        if self.session().is_some() {
            let draft = Draft::new(opcode::ASYNC, FINAL, NO_TAG)
                .byte(36, 1)
                .word(40, u32::from(seconds));
            self.send(draft);
        }
    }

    fn receive(self: &Arc<Self>, pdu: Pdu) -> Next {
        enum At {
            Login(Box<Login>),
            Full(Arc<Session>),
        }
        let at = {
            let mut state = self.state();
            match std::mem::replace(&mut state.phase, Phase::Ended) {
                Phase::Login(login) => At::Login(login),
                Phase::Full(session) => {
                    state.phase = Phase::Full(session.clone());
                    At::Full(session)
                }
                Phase::Ended => return Next::End,
            }
        };
        match at {
            At::Login(login) => self.log_in(login, &pdu),
            At::Full(_) if pdu.damaged => {
                self.reject(reason::DATA_DIGEST, &pdu);
                self.end();
                Next::End
            }
            At::Full(session) => self.full_feature(&session, pdu),
        }
    }

    fn log_in(self: &Arc<Self>, mut login: Box<Login>, pdu: &Pdu) -> Next {
        let outcome = match login.receive(self, pdu) {
            Some(outcome) if !pdu.damaged => outcome,
            _ => {
                self.end();
                return Next::End;
            }
        };
        let mut state = self.state();
        let cmd_sn = pdu.cmd_sn();
        if let Some((session, terms)) = outcome.session {
            let (exp, max) = session.window();
            self.send_locked(&mut state, outcome.answer, exp, max);
            state.cid = login.cid;
            state.max_send = terms.max_send;
            // Digests begin with the first PDU after the login.
            state.framing = Framing {
                header_digest: terms.header_digest,
                data_digest: terms.data_digest,
                data_bytes_max: DATA_BYTES_MAX,
            };
            state.phase = Phase::Full(session);
            return Next::Continue;
        }
        self.send_locked(&mut state, outcome.answer, cmd_sn, cmd_sn);
        if outcome.ends {
            drop(state);
            self.end();
            return Next::End;
        }
        state.phase = Phase::Login(login);
        Next::Continue
    }

    fn reject(&self, why: u8, pdu: &Pdu) {
        let draft = Draft::new(opcode::REJECT, FINAL, NO_TAG)
            .byte(2, why)
            .data(pdu.bhs.to_vec());
        self.send(draft);
    }

    /// Breaks off because the initiator does not keep to the protocol.
    fn protocol_error(self: &Arc<Self>, pdu: &Pdu) -> Next {
        self.reject(reason::PROTOCOL, pdu);
        self.end();
        Next::End
    }

    fn full_feature(self: &Arc<Self>, session: &Arc<Session>, pdu: Pdu) -> Next {
        match pdu.opcode() {
            opcode::DATA_OUT => self.data_out(session, &pdu),
            opcode::NOP_OUT if pdu.itt() == NO_TAG => Next::Continue,
            opcode::NOP_OUT
            | opcode::COMMAND
            | opcode::TASK_MANAGEMENT
            | opcode::TEXT
            | opcode::LOGOUT => self.in_order(session, pdu),
            opcode::SNACK => {
                self.reject(reason::NOT_SUPPORTED, &pdu);
                Next::Continue
            }
            _ => self.protocol_error(&pdu),
        }
    }

    /// Delivers requests in the order of their numbers; immediate ones at once.
    fn in_order(self: &Arc<Self>, session: &Arc<Session>, pdu: Pdu) -> Next {
        let _order = session.order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Next::Continue;
        let mut next = if pdu.immediate() {
            // It may have been an abort that others waited for.
            outcome = self.deliver(session, pdu);
            session.next(None)
        } else {
            session.next(Some((self, pdu)))
        };
        while let Some((connection, pdu)) = next {
            let delivered = connection.deliver(session, pdu);
            if Arc::ptr_eq(&connection, self) && delivered == Next::End {
                outcome = Next::End;
            }
            next = session.next(None);
        }
        outcome
    }

    fn deliver(self: &Arc<Self>, session: &Arc<Session>, pdu: Pdu) -> Next {
        match pdu.opcode() {
            opcode::COMMAND => self.command(session, &pdu),
            opcode::NOP_OUT => {
                let mut data = pdu.data.bytes().into_owned();
                data.truncate(self.max_send());
                let draft = Draft::new(opcode::NOP_IN, FINAL, pdu.bhs.u32_at(16))
                    .word(20, NO_TAG)
                    .data(data);
                self.send(draft);
                Next::Continue
            }
            opcode::TASK_MANAGEMENT => self.task_management(session, &pdu),
            opcode::TEXT => self.text(session, &pdu),
            _ => self.logout(session, &pdu),
        }
    }

    // --- commands ---

    fn command(self: &Arc<Self>, session: &Arc<Session>, pdu: &Pdu) -> Next {
        let flags = pdu.flags();
        let (last, reads, writes) = (flags & FINAL != 0, flags & 0x40 != 0, flags & 0x20 != 0);
        let Some(target) = &session.target else {
            // A discovery session takes no commands.
            return self.protocol_error(pdu);
        };
        let mut cdb = [0; 16];
        crate::bytes::put(&mut cdb, 0, pdu.bhs.part(32, 16));
        let unit = target.unit(pdu.lun(), &session.nexus);
        let expected = index(pdu.bhs.u32_at(20));
        let block = unit.as_ref().map_or(512, |unit| unit.block());
        let wants = scsi::data_out_bytes(&cdb, block);
        let needed = wants.unwrap_or(0);
        // A command that wants too much is answered by what it is, without its data.
        let wanted = if writes && unit.is_some() {
            usize::try_from(needed).unwrap_or(0).min(expected)
        } else {
            0
        };
        let room = if writes {
            wanted
        } else {
            expected.min(usize::try_from(scsi::TRANSFER_BYTES_MAX).unwrap_or(0))
        };
        let memory = self.server.memory.reserve(room);
        let full = memory.is_none();
        let task = Arc::new(Task::new(
            pdu.itt(),
            pdu.lun(),
            cdb,
            unit,
            self.clone(),
            expected,
            needed,
            reads,
            memory,
        ));
        if !session.add(&task) {
            return self.protocol_error(pdu);
        }
        let unsolicited = !pdu.data.is_empty() || !last;
        if unsolicited && (!writes || pdu.data.len() > expected) {
            return self.protocol_error(pdu);
        }
        if !pdu.data.is_empty() && !session.terms.immediate_data
            || !last && session.terms.initial_r2t
        {
            return self.protocol_error(pdu);
        }
        if full {
            self.answer(session, &task, Reply::status(status::TASK_SET_FULL));
            return Next::Continue;
        }
        // SAM-5 section 8.6. Untagged is as simple; there is never an ACA that a command could be for.
        let attribute = match flags & 7 {
            0 | 1 => Attribute::Simple,
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            _ => {
                self.answer(session, &task, Sense::illegal(asc::MESSAGE).into());
                return Next::Continue;
            }
        };
        if let Some(unit) = &task.unit {
            task.set_entry(unit.task_set.enter(attribute));
        }
        if reads && writes {
            self.answer(session, &task, Sense::cdb(0).into());
            return Next::Continue;
        }
        if task.unit.is_none() {
            // Whatever data may come for it is not waited for.
            self.run(session, task);
            return Next::Continue;
        }
        // What compares or repeats its data must get exactly as much as it says.
        let inexact = writes && scsi::is_exact(&cdb) && task.expected as u64 != needed;
        if inexact {
            self.answer(session, &task, Sense::cdb(0).into());
            return Next::Continue;
        }
        if let Err(sense) = wants {
            self.answer(session, &task, sense.into());
            return Next::Continue;
        }
        if !writes || wanted == 0 && last {
            self.run(session, task);
            return Next::Continue;
        }
        let mut incoming = Incoming::new(wanted, session.terms.first_burst.min(expected));
        let step = incoming.take(0, &pdu.data, last);
        task.expect(incoming);
        self.proceed(session, &task, step, pdu)
    }

    fn data_out(self: &Arc<Self>, session: &Arc<Session>, pdu: &Pdu) -> Next {
        let Some(task) = session.task(pdu.itt()) else {
            // Of a task that was aborted or answered before its data came.
            return Next::Continue;
        };
        let step = task.with_data(|incoming| {
            let ttt_fits = incoming.ttt == pdu.ttt();
            if !ttt_fits || pdu.bhs.u32_at(36) != incoming.data_sn {
                return Step::Wrong;
            }
            incoming.data_sn = incoming.data_sn.wrapping_add(1);
            let offset = index(pdu.bhs.u32_at(40));
            incoming.take(offset, &pdu.data, pdu.flags() & FINAL != 0)
        });
        match step {
            Some(Step::Wrong) => {
                // Recovery level 0 asks for nothing again: the command fails. RFC 7143 section 7.9.
                let sense = Sense::new(key::ABORTED_COMMAND, asc::PROTOCOL_SERVICE);
                self.answer(session, &task, sense.into());
                Next::Continue
            }
            Some(step) => self.proceed(session, &task, step, pdu),
            None => Next::Continue,
        }
    }

    fn proceed(
        self: &Arc<Self>,
        session: &Arc<Session>,
        task: &Arc<Task>,
        step: Step,
        pdu: &Pdu,
    ) -> Next {
        match step {
            Step::More => Next::Continue,
            Step::Complete => {
                self.run(session, task.clone());
                Next::Continue
            }
            Step::Ask => {
                self.ask(session, task);
                Next::Continue
            }
            Step::Wrong => self.protocol_error(pdu),
        }
    }

    /// Asks for the next burst of a task's data.
    fn ask(&self, session: &Arc<Session>, task: &Arc<Task>) {
        let ttt = self.tag();
        let asked = task.with_data(|incoming| {
            let from = incoming.next;
            let len = session.terms.max_burst.min(incoming.wanted - from);
            incoming.burst_end = from + len;
            incoming.ttt = ttt;
            incoming.data_sn = 0;
            let number = incoming.r2t_sn;
            incoming.r2t_sn = number.wrapping_add(1);
            (from, len, number)
        });
        if let Some((from, len, number)) = asked {
            let draft = Draft::new(opcode::R2T, FINAL, task.itt)
                .lun(task.lun)
                .word(20, ttt)
                .word(36, number)
                .word(40, len32(from))
                .word(44, len32(len))
                .uncounted();
            self.send(draft);
        }
    }

    fn run(self: &Arc<Self>, session: &Arc<Session>, task: Arc<Task>) {
        let Some(target) = session.target.clone() else {
            return;
        };
        let command = Command {
            cdb: task.cdb,
            data: task.take_data(),
            nexus: session.nexus.clone(),
            target,
        };
        let Some(unit) = task.unit.clone() else {
            self.answer(session, &task, scsi::execute_nowhere(&command));
            return;
        };
        let (connection, session) = (self.clone(), session.clone());
        self.transport.run(Box::pin(async move {
            let mut entry = task.take_entry();
            if let Some(entry) = &mut entry {
                entry.started().await;
            }
            let reply = if task.is_aborted() {
                Reply::good()
            } else {
                unit.execute(command).await
            };
            connection.answer(&session, &task, reply);
            // What waits for this command starts after its answer.
            drop(entry);
        }));
    }

    /// Answers a task, unless it was aborted.
    fn answer(&self, session: &Arc<Session>, task: &Arc<Task>, reply: Reply) {
        session.remove(task);
        let entry = task.take_entry();
        if !task.end() {
            return;
        }
        let len: usize = reply.data.iter().map(|piece| piece.len()).sum();
        let sense = reply.sense.map(|sense| {
            let descriptor = task
                .unit
                .as_ref()
                .is_some_and(|unit| unit.descriptor_sense());
            sense.encode(descriptor)
        });
        // What the command had to move, against what the initiator expected.
        let moved = if task.needed > 0 && sense.is_none() {
            task.needed
        } else {
            len as u64
        };
        let expected = task.expected as u64;
        let (bit, residual) = match moved.cmp(&expected) {
            std::cmp::Ordering::Greater => (0x04, moved - expected),
            std::cmp::Ordering::Less => (0x02, expected - moved),
            std::cmp::Ordering::Equal => (0, 0),
        };
        let residual = u32::try_from(residual).unwrap_or(u32::MAX);
        let sends = len.min(task.expected);
        let mut sent_sn = 0;
        if sends > 0 && task.reads {
            let in_data = reply.status == status::GOOD && sense.is_none();
            sent_sn = self.data_in(session, task, reply.data, sends, in_data, bit, residual);
            if in_data {
                return;
            }
        }
        let mut data = Vec::new();
        if let Some(sense) = sense {
            data.extend_from_slice(&crate::bytes::len16(sense.len()).to_be_bytes());
            data.extend_from_slice(&sense);
        }
        let draft = Draft::new(opcode::RESPONSE, FINAL | bit, task.itt)
            .byte(3, reply.status)
            .word(36, sent_sn)
            .word(44, residual)
            .data(data);
        self.send(draft);
        drop(entry);
    }

    /// Sends data; with `status`, good status rides on the last piece. Returns the number of PDUs.
    #[allow(clippy::too_many_arguments, reason = "the fields of the last PDU")]
    fn data_in(
        &self,
        session: &Arc<Session>,
        task: &Arc<Task>,
        pieces: Vec<IoBuf>,
        total: usize,
        status: bool,
        bit: u8,
        residual: u32,
    ) -> u32 {
        let max = self.max_send();
        let burst = session.terms.max_burst.max(512);
        let mut pieces = pieces.into_iter();
        let mut piece = pieces.next().unwrap_or_default();
        let (mut offset, mut number) = (0, 0_u32);
        while offset < total {
            // A sequence ends where a burst does.
            let burst_left = burst - offset % burst;
            let len = max.min(burst_left).min(total - offset);
            let mut part = Vec::new();
            let mut left = len;
            while left > 0 {
                if piece.is_empty() {
                    match pieces.next() {
                        Some(next) => piece = next,
                        None => break,
                    }
                    continue;
                }
                let take = left.min(piece.len());
                part.push(piece.slice(0..take));
                piece = piece.slice(take..piece.len());
                left -= take;
            }
            let last = offset + len >= total;
            let ends_burst = last || len == burst_left;
            let mut flags = if ends_burst { FINAL } else { 0 };
            if last && status {
                flags |= 0x01 | bit;
            }
            let mut draft = Draft::new(opcode::DATA_IN, flags, task.itt)
                .word(20, NO_TAG)
                .word(36, number)
                .word(40, len32(offset));
            draft.pieces = part;
            draft.held = task
                .memory
                .clone()
                .map(|memory| -> Arc<dyn Held> { memory });
            if last && status {
                draft = draft.word(44, residual);
            } else {
                draft = draft.uncounted();
            }
            self.send(draft);
            offset += len;
            number = number.wrapping_add(1);
        }
        number
    }

    // --- task management ---

    fn task_management(self: &Arc<Self>, session: &Arc<Session>, pdu: &Pdu) -> Next {
        let itt = pdu.itt();
        let Some(target) = session.target.clone() else {
            return self.protocol_error(pdu);
        };
        match self.managed_tasks(session, &target, pdu) {
            Err(response) => self.send_managed(itt, response),
            Ok(waits) => {
                let connection = self.clone();
                self.transport.run(Box::pin(async move {
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
        session: &Arc<Session>,
        target: &Arc<Target>,
        pdu: &Pdu,
    ) -> Result<Vec<runtime::reply::Reply<()>>, TaskManagementResponse> {
        let function = TaskManagementFunction::from_code(pdu.flags() & 0x7f);
        let lun = pdu.lun();
        let unit = target.unit(lun, &session.nexus);
        if function.is_some_and(TaskManagementFunction::is_of_unit) && unit.is_none() {
            return Err(TaskManagementResponse::LunDoesNotExist);
        }
        let mut waits = Vec::new();
        match function {
            Some(TaskManagementFunction::AbortTask) => {
                let referenced = pdu.bhs.u32_at(20);
                if session.task(referenced).is_none() {
                    // The command may arrive later, perhaps by another connection: then it is not executed.
                    let void = session.void(pdu.bhs.u32_at(32), pdu.cmd_sn());
                    return Err(if void {
                        TaskManagementResponse::FunctionComplete
                    } else {
                        TaskManagementResponse::TaskDoesNotExist
                    });
                }
                waits = session.abort(|task| task.itt == referenced);
            }
            Some(TaskManagementFunction::AbortTaskSet) => {
                waits = session.abort(|task| task.lun == lun);
            }
            // Of all sessions.
            Some(TaskManagementFunction::ClearTaskSet) => {
                for other in target.sessions() {
                    waits.extend(other.abort(|task| task.lun == lun));
                }
            }
            Some(TaskManagementFunction::LogicalUnitReset) => {
                for other in target.sessions() {
                    waits.extend(other.abort(|task| task.lun == lun));
                }
                if let Some(unit) = &unit {
                    unit.reset(asc::BUS_DEVICE_RESET);
                }
            }
            Some(
                TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset,
            ) => {
                for other in target.sessions() {
                    waits.extend(other.abort(|_| true));
                }
                for unit in target.units() {
                    unit.reset(asc::BUS_DEVICE_RESET);
                }
            }
            Some(TaskManagementFunction::TaskReassign) => {
                return Err(TaskManagementResponse::ReassignmentNotSupported);
            }
            Some(TaskManagementFunction::ClearAca) | None => {
                return Err(TaskManagementResponse::FunctionNotSupported);
            }
        }
        Ok(waits)
    }

    fn send_managed(&self, itt: u32, response: TaskManagementResponse) {
        let draft =
            Draft::new(opcode::TASK_MANAGEMENT_RESPONSE, FINAL, itt).byte(2, response as u8);
        self.send(draft);
    }

    // --- text and logout ---

    fn text(self: &Arc<Self>, session: &Arc<Session>, pdu: &Pdu) -> Next {
        let continues = pdu.flags() & 0x40 != 0;
        let ttt = pdu.ttt();
        let pending = {
            let mut state = self.state();
            if state.asked.len() + pdu.data.len() > 64 << 10 {
                drop(state);
                return self.protocol_error(pdu);
            }
            match state.text.take() {
                Some((tag, rest)) if tag == ttt => Some(rest),
                _ => {
                    state.asked.extend_from_slice(&pdu.data.bytes());
                    None
                }
            }
        };
        let text = match pending {
            Some(rest) => rest,
            None if continues => Vec::new(),
            None => {
                let asked = std::mem::take(&mut self.state().asked);
                let Some(pairs) = keys::parse(&asked) else {
                    return self.protocol_error(pdu);
                };
                match self.answer_text(session, &pairs) {
                    Some(text) => text,
                    None => {
                        self.reject(reason::PROTOCOL, pdu);
                        return Next::Continue;
                    }
                }
            }
        };
        self.send_text(pdu.itt(), text);
        Next::Continue
    }

    fn send_text(&self, itt: u32, mut text: Vec<u8>) {
        let max = self.max_send();
        if text.len() <= max {
            let draft = Draft::new(opcode::TEXT_RESPONSE, FINAL, itt)
                .word(20, NO_TAG)
                .data(text);
            self.send(draft);
            return;
        }
        let rest = text.split_off(max);
        let tag = self.tag();
        self.state().text = Some((tag, rest));
        let draft = Draft::new(opcode::TEXT_RESPONSE, 0x40, itt)
            .word(20, tag)
            .data(text);
        self.send(draft);
    }

    /// The answer to a text; `None` when it asks for targets in words that mean nothing.
    fn answer_text(&self, session: &Arc<Session>, pairs: &[(String, String)]) -> Option<Vec<u8>> {
        let mut text = String::new();
        for (key, value) in pairs {
            let start = key.get(.."SendTargets".len()).unwrap_or_default();
            if key != "SendTargets" && start.eq_ignore_ascii_case("SendTargets") {
                return None;
            }
            if key != "SendTargets" {
                // Operational keys may not be negotiated anew, but for the one that is declared.
                if key != "MaxRecvDataSegmentLength" {
                    keys::push(&mut text, key, "Reject");
                    continue;
                }
                let mut terms = Terms::default();
                if terms.settle(key, value, false) == keys::Reply::Silent {
                    self.state().max_send = terms.max_send;
                }
                continue;
            }
            let own = session.target.as_ref().map(|target| target.name.clone());
            let wanted = match (value.as_str(), own) {
                // A normal session sees its own target only. RFC 7143 appendix C has no "All" there; initiators that ask for it
                // all the same (libiscsi's suite wants an answer) are told no more.
                ("All" | "", Some(own)) => Some(own),
                ("All", None) => None,
                ("", None) => {
                    keys::push(&mut text, key, "Reject");
                    continue;
                }
                (name, _) if crate::target::check_name(name).is_err() => return None,
                (name, _) => Some(name.to_owned()),
            };
            let initiator = &session.nexus.port.initiator;
            for target in self.server.targets() {
                let asked = wanted.as_ref().is_none_or(|name| *name == target.name);
                if !asked || !target.admits(initiator, self.peer.ip()) {
                    continue;
                }
                keys::push(&mut text, "TargetName", &target.name);
                let mut portals = target.spec().portals;
                if portals.is_empty() {
                    portals.push(Portal {
                        address: self.local,
                        group: PORTAL_GROUP,
                    });
                }
                for portal in portals {
                    let address = format!("{},{}", portal.address, portal.group);
                    keys::push(&mut text, "TargetAddress", &address);
                }
            }
        }
        Some(text.into_bytes())
    }

    fn logout(self: &Arc<Self>, session: &Arc<Session>, pdu: &Pdu) -> Next {
        let reason = pdu.flags() & 0x7f;
        let cid = pdu.bhs.u16_at(20);
        let ours = self.state().cid;
        let response = match reason {
            0 => 0,
            1 if session.connection(cid).is_some() => 0,
            1 => 1,
            // Removal for recovery is for higher recovery levels.
            _ => 2,
        };
        let draft = Draft::new(opcode::LOGOUT_RESPONSE, FINAL, pdu.itt())
            .byte(2, response)
            .word(
                40,
                u32::from(session.terms.time2wait) << 16 | u32::from(session.terms.time2retain),
            );
        self.send(draft);
        if response != 0 {
            return Next::Continue;
        }
        match reason {
            0 => {
                for other in session.connections() {
                    if !Arc::ptr_eq(&other, self) {
                        other.end();
                    }
                }
                self.server.end_session(session);
                self.end();
                Next::End
            }
            _ if cid == ours => {
                if session.disconnect(cid, self) {
                    self.server.end_session(session);
                }
                self.end();
                Next::End
            }
            _ => {
                if let Some(other) = session.connection(cid) {
                    session.disconnect(cid, &other);
                    other.end();
                }
                Next::Continue
            }
        }
    }
}
