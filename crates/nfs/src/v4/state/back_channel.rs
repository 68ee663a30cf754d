//! The back channels of sessions (RFC 8881, section 2.10.3.1): by them clients are asked to give delegations back (section 20.2), and
//! what a file is like that they write (section 20.1).
//!
//! One call of a session is under way at once, in slot 0. A call that is not answered is sent again, as it was, when the connection
//! is another one or [`ANSWER_NS`] have gone; the client then answers it from its slot. Attributes that no request waits for any more
//! are not asked for again: the call behind them takes their place, and is sent again if the client answers it with what its slot has.

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

/// A call that was sent and not answered.
#[derive(Debug)]
struct CallUnderWay {
    xid: u32,
    request: ClientRequest,
    sent_ns: u64,
    by: Weak<ClientConnection>,
}

/// The back channel of a session.
#[derive(Debug)]
pub(super) struct BackChannel {
    program: CallbackProgram,
    minor: u32,
    connections: Vec<Weak<ClientConnection>>,
    /// The last call that was answered.
    sequence: u32,
    under_way: Option<CallUnderWay>,
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
    pub(super) fn new(program: CallbackProgram, minor: u32) -> Self {
        Self {
            program,
            minor,
            connections: Vec::new(),
            sequence: 0,
            under_way: None,
        }
    }

    /// Returns what a call under way asks for, as the session ends.
    pub(super) fn unanswered(self) -> Option<ClientRequest> {
        self.under_way.map(|call| call.request)
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

    fn message(&self, xid: u32, session: &SessionId, request: &CallbackArguments) -> Vec<u8> {
        let credential = match &self.program.credential {
            CallbackCredential::None => None,
            CallbackCredential::Sys(body) => Some(body.as_slice()),
        };
        // RFC 8881, section 20: version 1 of the program, procedure 1 is CB_COMPOUND.
        let mut w = rpc::call_as(xid, [self.program.number, 1, 1], credential);
        // No tag, the minor version, no identification, two operations.
        w.u32(0).u32(self.minor).u32(0).u32(2);
        w.u32(CB_SEQUENCE).opaque_fixed(session);
        // The slot, the highest one in use, not to be kept, no calls referred to.
        w.u32(self.sequence.wrapping_add(1))
            .u32(0)
            .u32(0)
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

/// Reads the answer to a call.
fn answer(message: &[u8]) -> XdrResult<CallbackAnswer> {
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
    // Session, sequence, slot, and the highest slots.
    r.opaque_fixed(16)?;
    for _ in 0..4 {
        r.u32()?;
    }
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

    /// Sends a client what it is to be told, as far as its sessions have no call under way.
    pub(super) fn call_back(&mut self, client: ClientId) {
        let sessions = match self.clients.get(&client) {
            Some(client) if !client.requests.is_empty() => client.back_sessions.clone(),
            _ => return,
        };
        for id in sessions {
            self.call_back_by(client, &id);
        }
    }

    fn call_back_by(&mut self, client_id: ClientId, id: &SessionId) {
        let xid = u32::try_from(self.next_number() & 0xffff_ffff).unwrap_or(0);
        let now_ns = self.now_ns;
        let (Some(client), Some(session)) =
            (self.clients.get_mut(&client_id), self.sessions.get_mut(id))
        else {
            return;
        };
        let Some(back) = session
            .back
            .as_mut()
            .filter(|back| back.under_way.is_none())
        else {
            return;
        };
        let Some(connection) = back.connection() else {
            return;
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
            if connection.send(back.message(xid, id, &arguments)) {
                back.under_way = Some(CallUnderWay {
                    xid,
                    request,
                    sent_ns: now_ns,
                    by: Arc::downgrade(&connection),
                });
                self.calls_back.insert(xid, *id);
                self.note_called(request);
            } else {
                client.requests.push_front(request);
            }
            return;
        }
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
        let ours = |call: &CallUnderWay| {
            call.xid == xid && std::ptr::eq(call.by.as_ptr(), &raw const **connection)
        };
        if !back.under_way.as_ref().is_some_and(ours) {
            return;
        }
        self.calls_back.remove(&xid);
        let Some(call) = back.under_way.take() else {
            return;
        };
        let answered = answer(message).unwrap_or(CallbackAnswer::Failed);
        if !matches!(answered, CallbackAnswer::Failed) {
            // One that was misordered had been answered before, and its answer was lost.
            back.sequence = back.sequence.wrapping_add(1);
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

    /// Gives up calls that are not answered, and sends what was to be sent again.
    pub(super) fn advance_back_channels(&mut self) {
        let now_ns = self.now_ns;
        let unanswered: Vec<(u32, SessionId)> = self
            .calls_back
            .iter()
            .map(|(xid, id)| (*xid, *id))
            .collect();
        for (xid, id) in unanswered {
            let back = self
                .sessions
                .get_mut(&id)
                .and_then(|session| Some((session.client, session.back.as_mut()?)));
            let Some((client, back)) = back else {
                self.calls_back.remove(&xid);
                continue;
            };
            let over = |call: &mut CallUnderWay| {
                call.by.strong_count() == 0 || now_ns.saturating_sub(call.sent_ns) > ANSWER_NS
            };
            if let Some(call) = back.under_way.take_if(over) {
                self.calls_back.remove(&xid);
                if let Some(client) = self.clients.get_mut(&client) {
                    client.requests.push_front(call.request);
                }
            }
        }
        for client in self.clients_to_call() {
            self.call_back(client);
        }
    }
}
