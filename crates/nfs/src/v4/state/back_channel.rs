//! The back channels of sessions (RFC 8881, section 2.10.3.1): by them clients are asked to give delegations back (section 20.2), and
//! what a file is like that they write (section 20.1).
//!
//! Each slot that the client offers has one call under way at most, so that one that is not answered holds back no other one. It is sent
//! again, as it was, when the connection is another one or [`ANSWER_NS`] have gone: the client then answers it from its slot. Nothing
//! else is sent in the slot before, for the client would take that for the same call.

use super::clients::ClientRequest;
use super::{ClientId, SessionId, StateEntry, StateKind, StateTable};
use crate::connection::ClientConnection;
use crate::rpc;
use crate::v4::attribute::number;
use crate::v4::bitmap::Bitmap;
use crate::v4::operation::{CallbackCredential, CallbackProgram};
use crate::v4::status::Status;
use crate::xdr::{Reader, Result as XdrResult};
use std::sync::{Arc, Weak};

/// How long an answer is waited for: 10 s.
const ANSWER_NS: u64 = 10_000_000_000;
/// Connections of a session that calls may be sent by; Linux has up to 16.
const CONNECTIONS_MAX: usize = 16;
/// Calls of one session under way at once; Linux offers 16 slots.
const SLOTS_MAX: u32 = 16;
/// Attributes that a client answers with, in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 1024;
/// Operations of CB_COMPOUND (RFC 8881, section 20).
const CB_GETATTR: u32 = 3;
const CB_RECALL: u32 = 4;
const CB_SEQUENCE: u32 = 11;
/// Statuses that a client answers with.
const OK: u32 = 0;
const BAD_HANDLE: u32 = 10001;
const DELAY: u32 = 10008;
const BAD_STATE_ID: u32 = 10025;
const SEQUENCE_MISORDERED: u32 = 10063;

/// A file as the client has it that writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriterAttributes {
    /// What `change` was as the file was delegated; another value if the client has written what it did not send yet.
    pub(crate) change: u64,
    /// Bytes.
    pub(crate) size: u64,
}

/// A call that is not answered.
#[derive(Debug)]
struct CallUnderWay {
    request: ClientRequest,
    /// The call; its transaction id is another one each time that it is sent.
    message: Vec<u8>,
    /// `None` until it is sent again.
    sent: Option<SentCall>,
}

#[derive(Debug)]
struct SentCall {
    xid: u32,
    sent_ns: u64,
    by: Weak<ClientConnection>,
}

/// A slot of a back channel.
#[derive(Debug, Default)]
struct BackSlot {
    /// The last call that was answered.
    sequence: u32,
    under_way: Option<CallUnderWay>,
}

/// The back channel of a session.
#[derive(Debug)]
pub(super) struct BackChannel {
    program: CallbackProgram,
    minor: u32,
    connections: Vec<Weak<ClientConnection>>,
    slots: Vec<BackSlot>,
    /// How many of them the client wants to be used.
    wanted_slots: usize,
}

/// What a client answered.
enum CallbackAnswer {
    Recalled,
    Attributes(WriterAttributes),
    Again,
    Misordered,
    Failed,
}

impl BackChannel {
    /// Returns the back channel of a session whose client takes so many calls at once.
    pub(super) fn new(program: CallbackProgram, minor: u32, requests: u32) -> Self {
        let slots: Vec<BackSlot> = (0..requests.clamp(1, SLOTS_MAX))
            .map(|_| BackSlot::default())
            .collect();
        Self {
            program,
            minor,
            connections: Vec::new(),
            wanted_slots: slots.len(),
            slots,
        }
    }

    /// Returns what the calls under way ask for, as the session ends.
    pub(super) fn unanswered(self) -> impl Iterator<Item = ClientRequest> {
        let calls = self.slots.into_iter().filter_map(|slot| slot.under_way);
        calls.map(|call| call.request)
    }

    /// Returns the first slot without a call.
    fn free_slot(&self) -> Option<usize> {
        let mut usable = self.slots.iter().take(self.wanted_slots);
        usable.position(|slot| slot.under_way.is_none())
    }

    /// Finds the slot whose call has a transaction id.
    fn slot_of(&mut self, xid: u32) -> Option<&mut BackSlot> {
        let has = |slot: &&mut BackSlot| {
            let call = slot.under_way.as_ref();
            call.and_then(|call| call.sent.as_ref())
                .is_some_and(|sent| sent.xid == xid)
        };
        self.slots.iter_mut().find(has)
    }

    fn connection(&self) -> Option<Arc<ClientConnection>> {
        self.connections.iter().rev().find_map(Weak::upgrade)
    }

    fn bind(&mut self, connection: &Arc<ClientConnection>) {
        self.connections.retain(|bound| {
            bound.strong_count() > 0 && !std::ptr::eq(bound.as_ptr(), &raw const **connection)
        });
        if self.connections.len() >= CONNECTIONS_MAX {
            self.connections.remove(0);
        }
        connection.call_back();
        self.connections.push(Arc::downgrade(connection));
    }

    fn message(&self, index: usize, session: &SessionId, request: &CallbackArguments) -> Vec<u8> {
        let slot = self.slots.get(index);
        let highest = self.slots.iter().rposition(|slot| slot.under_way.is_some());
        let number = |index: usize| u32::try_from(index).unwrap_or(0);
        let credential = match &self.program.credential {
            CallbackCredential::None => None,
            CallbackCredential::Sys(body) => Some(body.as_slice()),
        };
        // RFC 8881, section 20: version 1 of the program, procedure 1 is CB_COMPOUND.
        let mut w = rpc::call_as(0, [self.program.number, 1, 1], credential);
        // No tag, the minor version, no identification, two operations.
        w.u32(0).u32(self.minor).u32(0).u32(2);
        w.u32(CB_SEQUENCE).opaque_fixed(session);
        // The slot, the highest one in use, not to be kept, no calls referred to.
        w.u32(slot.map_or(0, |slot| slot.sequence).wrapping_add(1))
            .u32(number(index))
            .u32(number(highest.unwrap_or(0).max(index)))
            .u32(0)
            .u32(0);
        match request.request {
            ClientRequest::Recall(_) => {
                w.u32(CB_RECALL)
                    .u32(request.sequence)
                    .opaque_fixed(&request.other);
                // Of the whole file.
                w.bool(false).opaque(&request.handle);
            }
            ClientRequest::Attributes(_) => {
                w.u32(CB_GETATTR).opaque(&request.handle);
                Bitmap::of(&[number::CHANGE, number::SIZE]).write(&mut w);
            }
        }
        w.into_bytes()
    }
}

/// What a call says of a delegation.
struct CallbackArguments {
    request: ClientRequest,
    sequence: u32,
    other: [u8; 12],
    handle: Vec<u8>,
}

/// Reads the answer to a call; of one that the client took, how many slots it wants to be used, too.
fn answer(message: &[u8]) -> XdrResult<(CallbackAnswer, Option<u32>)> {
    let mut wanted_slots = None;
    let answer = answer_of(message, &mut wanted_slots)?;
    Ok((answer, wanted_slots))
}

fn answer_of(message: &[u8], wanted_slots: &mut Option<u32>) -> XdrResult<CallbackAnswer> {
    let Some(mut r) = rpc::result_of(message) else {
        return Ok(CallbackAnswer::Failed);
    };
    let all = r.u32()?;
    r.opaque(1024)?;
    let count = r.u32()?;
    if count == 0 {
        return Ok(if all == DELAY {
            CallbackAnswer::Again
        } else {
            CallbackAnswer::Failed
        });
    }
    let (number, status) = (r.u32()?, r.u32()?);
    match (number, status) {
        (CB_SEQUENCE, OK) => {}
        (CB_SEQUENCE, DELAY) => return Ok(CallbackAnswer::Failed),
        (CB_SEQUENCE, SEQUENCE_MISORDERED) => return Ok(CallbackAnswer::Misordered),
        _ => return Ok(CallbackAnswer::Failed),
    }
    // Session, sequence, slot, and the highest slots: the one that it has, and the one that it wants to be used.
    r.opaque_fixed(16)?;
    for _ in 0..3 {
        r.u32()?;
    }
    *wanted_slots = Some(r.u32()?.saturating_add(1));
    if count == 1 {
        return Ok(CallbackAnswer::Again);
    }
    let (number, status) = (r.u32()?, r.u32()?);
    Ok(match (number, status) {
        // One that the client does not know it may not know yet: the answer that gives it may be under way.
        (CB_RECALL, BAD_HANDLE | BAD_STATE_ID) => CallbackAnswer::Again,
        (CB_RECALL, OK) => CallbackAnswer::Recalled,
        (CB_GETATTR, OK) => {
            attributes(&mut r)?.map_or(CallbackAnswer::Again, CallbackAnswer::Attributes)
        }
        _ => CallbackAnswer::Again,
    })
}

/// Reads `fattr4`: the first two attributes, by their numbers, are those that were asked for; `None` where they are not there.
fn attributes(r: &mut Reader<'_>) -> XdrResult<Option<WriterAttributes>> {
    let bits = Bitmap::read(r)?;
    let mut values = Reader::new(r.opaque(ATTRIBUTE_BYTES_MAX)?);
    let first: Vec<u32> = bits.numbers().take(2).collect();
    if first != [number::CHANGE, number::SIZE] {
        return Ok(None);
    }
    let (change, size) = (values.u64()?, values.u64()?);
    Ok(Some(WriterAttributes { change, size }))
}

impl StateTable {
    /// Adds a connection to those by which a session's client is called.
    ///
    /// # Errors
    /// [`Status::Invalid`] of a session whose client cannot be called.
    pub(crate) fn bind_back_channel(
        &mut self,
        id: &SessionId,
        connection: &Arc<ClientConnection>,
    ) -> Result<(), Status> {
        let session = self.sessions.get_mut(id).ok_or(Status::BadSession)?;
        let back = session.back.as_mut().ok_or(Status::Invalid)?;
        back.bind(connection);
        let client_id = session.client;
        if let Some(client) = self.clients.get_mut(&client_id) {
            client.back_sessions.insert(*id);
        }
        self.call_back(client_id);
        Ok(())
    }

    /// BACKCHANNEL_CTL: how the client is called from now on.
    pub(crate) fn set_back_channel(
        &mut self,
        id: &SessionId,
        program: CallbackProgram,
    ) -> Result<(), Status> {
        let session = self.sessions.get_mut(id).ok_or(Status::BadSession)?;
        let back = session.back.as_mut().ok_or(Status::Invalid)?;
        back.program = program;
        Ok(())
    }

    /// Returns whether a client can be called.
    pub(super) fn can_be_called(&self, client: ClientId) -> bool {
        let sessions = self
            .clients
            .get(&client)
            .map(|client| &client.back_sessions);
        let mut backs = sessions
            .into_iter()
            .flatten()
            .filter_map(|id| self.sessions.get(id)?.back.as_ref());
        backs.any(|back| back.connection().is_some())
    }

    /// Sends a client what it is to be told, as far as its sessions have slots without a call; those that were not answered again.
    pub(super) fn call_back(&mut self, client: ClientId) {
        let sessions = match self.clients.get(&client) {
            Some(client) => client.back_sessions.clone(),
            None => return,
        };
        for id in sessions {
            self.repeat_calls(&id);
            while self.call_back_by(client, &id) {}
        }
    }

    /// Sends the calls of a session again that were not answered.
    fn repeat_calls(&mut self, id: &SessionId) {
        let Some(back) = self.back_channel(id) else {
            return;
        };
        let unsent = |slot: &BackSlot| {
            let call = slot.under_way.as_ref();
            call.is_some_and(|call| call.sent.is_none())
        };
        let slots: Vec<usize> = (0..)
            .zip(&back.slots)
            .filter_map(|(index, slot)| unsent(slot).then_some(index))
            .collect();
        for index in slots {
            if !self.send_call(id, index) {
                return;
            }
        }
    }

    fn back_channel(&mut self, id: &SessionId) -> Option<&mut BackChannel> {
        self.sessions.get_mut(id)?.back.as_mut()
    }

    /// Sends the call of a slot; `false` if it cannot be sent now.
    fn send_call(&mut self, id: &SessionId, index: usize) -> bool {
        let xid = u32::try_from(self.next_number() & 0xffff_ffff).unwrap_or(0);
        let now_ns = self.now_ns;
        let Some(back) = self.back_channel(id) else {
            return false;
        };
        let Some(connection) = back.connection() else {
            return false;
        };
        let call = back
            .slots
            .get_mut(index)
            .and_then(|slot| slot.under_way.as_mut());
        let Some(call) = call else {
            return false;
        };
        if let Some(head) = call.message.first_chunk_mut::<4>() {
            *head = xid.to_be_bytes();
        }
        if !connection.send(call.message.clone()) {
            return false;
        }
        call.sent = Some(SentCall {
            xid,
            sent_ns: now_ns,
            by: Arc::downgrade(&connection),
        });
        let request = call.request;
        self.calls_back.insert(xid, *id);
        self.note_called(request);
        true
    }

    /// Sends the next thing that a client is to be told by a session; `false` if there is none, or no slot.
    fn call_back_by(&mut self, client_id: ClientId, id: &SessionId) -> bool {
        let (Some(client), Some(session)) =
            (self.clients.get_mut(&client_id), self.sessions.get_mut(id))
        else {
            return false;
        };
        let Some(back) = session.back.as_mut() else {
            return false;
        };
        let (Some(index), Some(_)) = (back.free_slot(), back.connection()) else {
            return false;
        };
        while let Some(request) = client.requests.pop_front() {
            let key = request.key();
            let Some(StateEntry {
                file,
                sequence,
                kind: StateKind::Delegation(_),
                ..
            }) = self.states.get(&key)
            else {
                // Given back meanwhile.
                continue;
            };
            if matches!(request, ClientRequest::Attributes(_)) && !self.asked.contains_key(&key) {
                continue;
            }
            let arguments = CallbackArguments {
                request,
                sequence: *sequence,
                other: super::state_id_other(self.boot, self.secret, key),
                handle: file.encode(),
            };
            let message = back.message(index, id, &arguments);
            if let Some(slot) = back.slots.get_mut(index) {
                slot.under_way = Some(CallUnderWay {
                    request,
                    message,
                    sent: None,
                });
            }
            return self.send_call(id, index);
        }
        false
    }

    /// Takes the answer to a call, that came by a connection; what is none is ignored.
    pub(crate) fn called_back(&mut self, connection: &Arc<ClientConnection>, message: &[u8]) {
        let Ok(xid) = Reader::new(message).u32() else {
            return;
        };
        let Some(session) = self
            .calls_back
            .get(&xid)
            .and_then(|id| self.sessions.get_mut(id))
        else {
            return;
        };
        let client_id = session.client;
        let Some(back) = &mut session.back else {
            return;
        };
        let Some(slot) = back.slot_of(xid) else {
            return;
        };
        let by_this = |call: &mut CallUnderWay| {
            let by = call.sent.as_ref().map(|sent| sent.by.as_ptr());
            by.is_some_and(|by| std::ptr::eq(by, &raw const **connection))
        };
        let Some(mut call) = slot.under_way.take_if(by_this) else {
            return;
        };
        self.calls_back.remove(&xid);
        let (answered, wanted_slots) = answer(message).unwrap_or((CallbackAnswer::Failed, None));
        if matches!(answered, CallbackAnswer::Failed) {
            // As it was, with the next tick.
            call.sent = None;
            slot.under_way = Some(call);
            return;
        }
        // One that was misordered had been answered before, and its answer was lost.
        slot.sequence = slot.sequence.wrapping_add(1);
        if let Some(wanted) = wanted_slots {
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            back.wanted_slots = wanted.min(back.slots.len());
        }
        match (call.request, answered) {
            (ClientRequest::Recall(_), CallbackAnswer::Recalled) => {}
            (ClientRequest::Attributes(key), CallbackAnswer::Attributes(told)) => {
                self.attributes_told(key, Some(told));
            }
            // What it does not tell it is to give back.
            (ClientRequest::Attributes(key), CallbackAnswer::Again) => {
                self.attributes_told(key, None);
            }
            (request, _) => {
                // Again with the next tick.
                if let Some(client) = self.clients.get_mut(&client_id) {
                    client.requests.push_front(request);
                }
                return;
            }
        }
        self.call_back(client_id);
    }

    /// Gives up waiting for answers that do not come, and sends what was to be sent again.
    pub(super) fn advance_back_channels(&mut self) {
        let now_ns = self.now_ns;
        let unanswered: Vec<(u32, SessionId)> = self
            .calls_back
            .iter()
            .map(|(xid, id)| (*xid, *id))
            .collect();
        for (xid, id) in unanswered {
            let over = |sent: &mut SentCall| {
                sent.by.strong_count() == 0 || now_ns.saturating_sub(sent.sent_ns) > ANSWER_NS
            };
            let slot = self.back_channel(&id).and_then(|back| back.slot_of(xid));
            let waits = match slot.and_then(|slot| slot.under_way.as_mut()) {
                Some(call) => call.sent.take_if(over).is_none(),
                None => false,
            };
            if !waits {
                self.calls_back.remove(&xid);
            }
        }
        for client in self.clients_to_call() {
            self.call_back(client);
        }
    }
}
