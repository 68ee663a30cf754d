//! Sessions (RFC 8881, section 2.10): slots, each with the answer to its last request, so that a request repeated is not run twice.

use super::back_channel::BackChannel;
use super::{ClientId, Principal, SessionId, StateTable, scrambled};
use crate::connection::ClientConnection;
use crate::limits::{OPERATIONS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::v4::operation::{ChannelLimits, CreateSession, Sequence};
use crate::v4::status::Status;
use crate::xdr::Writer;
use std::sync::Arc;

/// Requests of one session under way at once. Linux asks for 64.
const SLOTS_MAX: u32 = 64;
/// The longest answer that is kept. Answers of what must not run twice are a few hundred bytes long.
const CACHED_BYTES_MAX: u32 = 2048;
/// What all sessions may keep of answers together.
const ALL_CACHED_BYTES_MAX: usize = 128 << 20;
/// CREATE_SESSION4_FLAG_CONN_BACK_CHAN.
const BACK_CHANNEL: u32 = 2;
/// Sessions of one client. Linux has one, and one more while it replaces it.
const CLIENT_SESSIONS_MAX: usize = 64;
/// The smallest request and answer that a channel must have room for, in bytes: SEQUENCE with its envelope.
const CHANNEL_BYTES_MIN: u32 = 180;

/// What a slot has of its last request.
#[derive(Debug)]
enum SlotReply {
    /// Nothing was asked yet.
    Unused,
    /// It is under way.
    Running,
    /// Its answer.
    Kept(Vec<u8>),
    /// It ended, and its answer was too long to keep.
    NotKept,
}

#[derive(Debug)]
struct Slot {
    sequence: u32,
    reply: SlotReply,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: ClientId,
    limits: ChannelLimits,
    slots: Vec<Slot>,
    /// How its client is called, if it can be.
    pub(super) back: Option<BackChannel>,
}

/// A slot that is in use by a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotUse {
    pub(crate) session: SessionId,
    pub(crate) client: ClientId,
    pub(crate) slot: u32,
    pub(crate) highest_slot: u32,
    /// What SEQUENCE tells the client of its state.
    pub(crate) flags: u32,
    /// The longest answer, and the longest that is kept, in bytes.
    pub(crate) response_bytes: usize,
    pub(crate) cached_bytes: usize,
    /// The client asked for the answer to be kept.
    pub(crate) cache: bool,
}

/// What SEQUENCE leads to.
#[derive(Debug)]
pub(crate) enum SequenceOutcome {
    /// A new request.
    Run(SlotUse),
    /// The answer of the same request, whole.
    Repeat(Vec<u8>),
    /// A repeated request whose answer was not kept.
    RepeatNotKept(SlotUse),
}

impl StateTable {
    /// CREATE_SESSION (RFC 8881, section 18.36.4): returns the result's bytes, which a repeated request gets again.
    pub(crate) fn create_session(
        &mut self,
        asked: &CreateSession,
        principal: Principal,
        connection: Option<&Arc<ClientConnection>>,
        minor: u32,
    ) -> Result<Vec<u8>, Status> {
        let id = asked.client;
        let client = self.clients.get_mut(&id).ok_or(Status::StaleClientId)?;
        if client.create_sequence == 0 {
            // A client of minor version 0.
            return Err(Status::StaleClientId);
        }
        if !client.confirmed && client.principal != principal {
            return Err(Status::ClientIdInUse);
        }
        if asked.sequence.wrapping_add(1) == client.create_sequence {
            return client.created.clone().ok_or(Status::SequenceMisordered);
        }
        if asked.sequence != client.create_sequence {
            return Err(Status::SequenceMisordered);
        }
        if asked.flags & !0x7 != 0 {
            return Err(Status::Invalid);
        }
        let too_small = |channel: &ChannelLimits| {
            channel.request_bytes < CHANNEL_BYTES_MIN
                || channel.response_bytes < CHANNEL_BYTES_MIN
                || channel.operations < 2
                || channel.requests == 0
        };
        if too_small(&asked.fore) || too_small(&asked.back) {
            return Err(Status::TooSmall);
        }
        if client.sessions >= CLIENT_SESSIONS_MAX {
            return Err(Status::Delay);
        }
        self.check_earlier(id)?;
        let client = self.clients.get_mut(&id).ok_or(Status::StaleClientId)?;
        client.renew();
        client.sessions += 1;
        client.create_sequence = client.create_sequence.wrapping_add(1).max(1);
        self.confirm(id);
        let fore = self.granted(&asked.fore);
        let back = asked
            .program
            .clone()
            .map(|program| BackChannel::new(program, minor, asked.back.requests));
        let session = self.add_session(id, fore, back);
        let mut flags = 0;
        if let (true, Some(connection)) = (asked.flags & BACK_CHANNEL != 0, connection)
            && self.bind_back_channel(&session, connection).is_ok()
        {
            flags = BACK_CHANNEL;
        }
        let result = created(&session, asked, flags, &fore);
        if let Some(client) = self.clients.get_mut(&id) {
            client.created = Some(result.clone());
        }
        Ok(result)
    }

    /// Returns what of a channel's limits is granted: within ours, and within what there is room for.
    fn granted(&self, asked: &ChannelLimits) -> ChannelLimits {
        let cached_bytes = asked.cached_bytes.min(CACHED_BYTES_MAX);
        let room = ALL_CACHED_BYTES_MAX.saturating_sub(self.cached_bytes) / 2048;
        let room = u32::try_from(room).unwrap_or(u32::MAX).max(1);
        ChannelLimits {
            request_bytes: asked.request_bytes.min(REQUEST_BYTES_MAX),
            response_bytes: asked.response_bytes.min(REPLY_BYTES_MAX),
            cached_bytes,
            operations: asked.operations.min(OPERATIONS_MAX),
            requests: asked.requests.min(SLOTS_MAX).min(room),
        }
    }

    fn add_session(
        &mut self,
        client: ClientId,
        limits: ChannelLimits,
        back: Option<BackChannel>,
    ) -> SessionId {
        let mut session = [0; 16];
        let number = self.next_number();
        // Two starts of the server make different ones, and those of others cannot be guessed.
        let secret = scrambled(self.secret, number | (1 << 63));
        let head = secret ^ (u64::from(self.boot) << 32);
        let bytes = head.to_be_bytes().into_iter().chain(number.to_be_bytes());
        for (to, from) in session.iter_mut().zip(bytes) {
            *to = from;
        }
        let slot = || Slot {
            sequence: 0,
            reply: SlotReply::Unused,
        };
        let slots: Vec<Slot> = (0..limits.requests).map(|_| slot()).collect();
        self.cached_bytes += reserved(&limits);
        let created = Session {
            client,
            limits,
            slots,
            back,
        };
        self.sessions.insert(session, created);
        session
    }

    /// SEQUENCE: finds out whether a request is new. `request_bytes` and `operations` are its size.
    pub(crate) fn sequence(
        &mut self,
        asked: &Sequence,
        request_bytes: usize,
        operations: u32,
    ) -> Result<SequenceOutcome, Status> {
        let session = self
            .sessions
            .get_mut(&asked.session)
            .ok_or(Status::BadSession)?;
        let count = session.limits.requests;
        let index = usize::try_from(asked.slot).map_err(|_| Status::BadSlot)?;
        let slot = session.slots.get_mut(index).ok_or(Status::BadSlot)?;
        let limit = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let slot_use = SlotUse {
            session: asked.session,
            client: session.client,
            slot: asked.slot,
            highest_slot: count.saturating_sub(1),
            flags: 0,
            response_bytes: limit(session.limits.response_bytes),
            cached_bytes: limit(session.limits.cached_bytes),
            cache: asked.cache,
        };
        if matches!(slot.reply, SlotReply::Running) {
            // The repeat of a request that is under way, or a client that does not wait for its slot.
            return Err(if slot.sequence == asked.sequence {
                Status::Delay
            } else {
                Status::SequenceMisordered
            });
        }
        let mut outcome = if asked.sequence == slot.sequence.wrapping_add(1) {
            if request_bytes > limit(session.limits.request_bytes) {
                return Err(Status::RequestTooBig);
            }
            if operations > session.limits.operations {
                return Err(Status::TooManyOperations);
            }
            slot.sequence = asked.sequence;
            slot.reply = SlotReply::Running;
            SequenceOutcome::Run(slot_use)
        } else if asked.sequence == slot.sequence {
            match &slot.reply {
                SlotReply::Kept(reply) => SequenceOutcome::Repeat(reply.clone()),
                SlotReply::NotKept => SequenceOutcome::RepeatNotKept(slot_use),
                SlotReply::Unused | SlotReply::Running => return Err(Status::SequenceMisordered),
            }
        } else {
            return Err(Status::SequenceMisordered);
        };
        self.renew_quietly(slot_use.client);
        if let SequenceOutcome::Run(slot) | SequenceOutcome::RepeatNotKept(slot) = &mut outcome {
            slot.flags = self.sequence_flags(slot.client);
        }
        Ok(outcome)
    }

    /// Ends the request of a slot; its answer is kept if there is one.
    pub(crate) fn finish(&mut self, slot_use: &SlotUse, reply: Option<Vec<u8>>) {
        let session = self.sessions.get_mut(&slot_use.session);
        let index = usize::try_from(slot_use.slot).unwrap_or(usize::MAX);
        if let Some(slot) = session.and_then(|session| session.slots.get_mut(index)) {
            slot.reply = match reply {
                Some(reply) if reply.len() <= CACHED_BYTES_MAX as usize => SlotReply::Kept(reply),
                _ => SlotReply::NotKept,
            };
        }
    }

    /// Returns the client of a session.
    pub(crate) fn client_of(&self, session: &SessionId) -> Result<ClientId, Status> {
        let session = self.sessions.get(session).ok_or(Status::BadSession)?;
        Ok(session.client)
    }

    /// DESTROY_SESSION.
    pub(crate) fn destroy_session(&mut self, id: &SessionId) -> Result<(), Status> {
        let session = self.sessions.remove(id).ok_or(Status::BadSession)?;
        self.cached_bytes = self.cached_bytes.saturating_sub(reserved(&session.limits));
        if let Some(client) = self.clients.get_mut(&session.client) {
            client.sessions = client.sessions.saturating_sub(1);
            client.back_sessions.remove(id);
            let unanswered = session.back.into_iter().flat_map(BackChannel::unanswered);
            client.requests.extend(unanswered);
        }
        self.call_back(session.client);
        Ok(())
    }

    pub(super) fn remove_sessions_of(&mut self, client: ClientId) {
        let of_client = self.sessions.iter().filter(|(_, s)| s.client == client);
        let ids: Vec<SessionId> = of_client.map(|(id, _)| *id).collect();
        for id in ids {
            let _gone = self.destroy_session(&id);
        }
    }
}

/// The bytes that the answers of a session may take.
fn reserved(limits: &ChannelLimits) -> usize {
    // Short answers are kept whether or not the client asked for it.
    usize::try_from(limits.requests).unwrap_or(0) * CACHED_BYTES_MAX as usize
}

fn created(
    session: &SessionId,
    asked: &CreateSession,
    flags: u32,
    fore: &ChannelLimits,
) -> Vec<u8> {
    let mut w = Writer::with_capacity(96);
    // Replies do not survive a restart.
    w.opaque_fixed(session).u32(asked.sequence).u32(flags);
    for limits in [fore, &asked.back] {
        w.u32(0)
            .u32(limits.request_bytes)
            .u32(limits.response_bytes)
            .u32(limits.cached_bytes)
            .u32(limits.operations)
            .u32(limits.requests)
            .u32(0);
    }
    w.into_bytes()
}
