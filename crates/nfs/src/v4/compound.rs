//! COMPOUND: the operations of a request, one after the other until one fails (RFC 7530, section 16.2; RFC 8881, section 16.2).

use super::attribute;
use super::bitmap::Bitmap;
use super::operation::{Numbered, Operation, PATH_BYTES_MAX, StateId, number};
use super::pseudo::NodeId;
use super::reply::ReplyBuilder;
use super::state::{ClientId, OwnerId, Replay, SlotUse};
use super::status::Status;
use crate::call_counts::ClientCounters;
use crate::connection::{CallOrigin, ClientConnection, Peer};
use crate::handle::FileHandle;
use crate::limits::{ENVELOPE_BYTES, OPERATIONS_MAX, REPLY_BYTES_MAX};
use crate::outcome::Reply;
use crate::rpc::Credential;
use crate::server::{Caller, Server};
use crate::xdr::{self, Malformed, Reader, Writer};
use std::sync::Arc;

/// Longest tag taken, and given back, in bytes.
const TAG_BYTES_MAX: usize = 1024;
/// What an answer has besides data, for each operation: attributes without lists, handles, state ids; rounded up.
const RESULT_BYTES: usize = 768;

/// What an operation works on.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are files, and there are two in a request"
)]
#[derive(Clone)]
pub(super) enum Target {
    /// A directory of the pseudo file system.
    Pseudo(NodeId),
    /// A file, and what the caller is to its file system.
    File(FileTarget),
}

/// A file, and what the caller is to its file system.
#[derive(Clone)]
pub(super) struct FileTarget {
    pub(super) handle: FileHandle,
    pub(super) caller: Caller,
}

/// Why an operation did not do what it was asked: a status, and for some operations a result that goes with it.
pub(super) enum Failure {
    Status(Status),
    /// A status, and the result behind it.
    With(Status, Vec<u8>),
    /// The answer is there already: of the repeat of an owner's request.
    Repeated(Replay),
}

impl<T: Into<Status>> From<T> for Failure {
    fn from(status: T) -> Self {
        Self::Status(status.into())
    }
}

/// The end of an operation. Its result is written by then, behind the status OK.
pub(super) type Done = Result<(), Failure>;

/// A COMPOUND while it runs.
pub(super) struct Compound<'a> {
    pub(super) server: &'a Server,
    pub(super) peer: Peer,
    /// By which the client can be called back.
    pub(super) connection: Option<&'a Arc<ClientConnection>>,
    counters: &'a ClientCounters,
    pub(super) credential: &'a Credential,
    pub(super) minor: u32,
    pub(super) record_bytes: usize,
    pub(super) operations: u32,
    pub(super) reply: ReplyBuilder,
    pub(super) current: Option<Target>,
    pub(super) saved: Option<Target>,
    /// The current and the saved state id (RFC 8881, section 16.2.3.1.2).
    pub(super) state: Option<StateId>,
    pub(super) saved_state: Option<StateId>,
    /// What comes behind the operation needs no flavour that the current file's share takes.
    pub(super) any_flavour: bool,
    /// The slot in use, from SEQUENCE on.
    pub(super) slot: Option<SlotUse>,
    /// The owner that the operation is a request of, and the request's number (minor version 0).
    pub(super) sequenced: Option<(OwnerId, u32)>,
    /// Number of the second operation, which a repeat that was not kept is answered with.
    pub(super) second: Option<u32>,
    /// The answer of the same request, if it is a repeat.
    pub(super) repeated: Option<Vec<u8>>,
}

/// The head of a COMPOUND.
struct Head<'a> {
    tag: &'a [u8],
    minor: u32,
    operations: u32,
}

impl<'a> Head<'a> {
    fn read(r: &mut Reader<'a>) -> xdr::Result<Self> {
        Ok(Self {
            tag: r.opaque(TAG_BYTES_MAX)?,
            minor: r.u32()?,
            operations: r.u32()?,
        })
    }
}

/// Reads the operations of a request, one more than there may be at most; none follows one that does not parse.
fn operations<'a>(r: &mut Reader<'a>, head: &Head<'_>) -> Vec<Numbered<'a>> {
    let mut operations = Vec::new();
    for _ in 0..head.operations.min(OPERATIONS_MAX) {
        let operation = Numbered::decode(r, head.minor);
        let last = operation.operation.is_err();
        operations.push(operation);
        if last {
            break;
        }
    }
    operations
}

pub(super) async fn call(
    server: &Server,
    from: CallOrigin<'_>,
    credential: &Credential,
    mut arguments: Reader<'_>,
    record_bytes: usize,
) -> Result<Reply, Malformed> {
    let head = Head::read(&mut arguments)?;
    let mut compound = Compound {
        server,
        peer: from.peer,
        connection: from.connection,
        counters: from.counters,
        credential,
        minor: head.minor,
        record_bytes,
        operations: head.operations,
        reply: ReplyBuilder::new(head.tag),
        current: None,
        saved: None,
        state: None,
        saved_state: None,
        any_flavour: false,
        slot: None,
        sequenced: None,
        second: None,
        repeated: None,
    };
    if !server.serves_minor(head.minor) {
        return Ok(compound.reply.finish(Status::MinorVersionMismatch));
    }
    from.counters.note_compound(head.minor);
    let operations = operations(&mut arguments, &head);
    compound.second = operations.get(1).map(|second| second.number);
    if head.minor == 0 && head.operations > OPERATIONS_MAX {
        return Ok(compound.reply.finish(Status::Resource));
    }
    let slot = SlotGuard(server, None);
    Ok(compound.run(operations, slot).await)
}

/// Returns whether the operation that makes a file the current one must succeed with a flavour that its share does not take, when this one
/// follows, as when none does (RFC 8881, section 2.6.3.1.1).
fn needs_no_flavour(next: u32) -> bool {
    matches!(
        next,
        number::PUTFH
            | number::PUTPUBFH
            | number::PUTROOTFH
            | number::RESTOREFH
            | number::LOOKUP
            | number::SECINFO
            | number::SECINFO_NO_NAME
    )
}

/// Frees the slot of a request that ends without an answer: a repeat is not run again.
struct SlotGuard<'a>(&'a Server, Option<SlotUse>);

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if let Some(slot) = &self.1 {
            self.0.v4().finish(slot, None);
        }
    }
}

impl Compound<'_> {
    async fn run(mut self, operations: Vec<Numbered<'_>>, mut guard: SlotGuard<'_>) -> Reply {
        let mut status = Status::Ok;
        let mut operations = operations.into_iter().enumerate().peekable();
        while let Some((index, Numbered { number, operation })) = operations.next() {
            let next = operations.peek().map(|(_, next)| next.number);
            self.any_flavour = next.is_none_or(needs_no_flavour);
            self.counters.note_operation(number);
            self.reply.begin(number);
            let ended = match operation {
                Ok(operation) => match self.check_position(index, number, &operation) {
                    Ok(()) => self.operation(operation).await,
                    Err(status) => Err(status.into()),
                },
                Err(malformed) => Err(malformed.into()),
            };
            if let Some(reply) = self.repeated.take() {
                return reply.into();
            }
            guard.1 = self.slot;
            status = self.end(number, ended);
            if status != Status::Ok {
                break;
            }
        }
        let slot = self.slot;
        let reply = self.reply.finish(status);
        if let Some(slot) = slot {
            guard.1 = None;
            let keep = reply.len() <= slot.cached_bytes.max(512);
            let kept = keep.then(|| reply.to_vec());
            guard.0.v4().finish(&slot, kept);
        }
        reply
    }

    /// Ends a result, and returns its status.
    fn end(&mut self, number: u32, ended: Done) -> Status {
        let mut status = match ended {
            Ok(()) => Status::Ok,
            Err(Failure::Status(status)) => {
                let w = self.reply.fail(number, status);
                if number == number::SETATTR {
                    // RFC 7530, section 16.32.2: what was set is told in any case.
                    Bitmap::default().write(w);
                }
                status
            }
            Err(Failure::With(status, body)) => {
                self.reply.fail(number, status).opaque_fixed(&body);
                status
            }
            Err(Failure::Repeated(replay)) => {
                self.sequenced = None;
                let status = if replay.number == number {
                    self.reply
                        .fail(number, replay.status)
                        .opaque_fixed(&replay.body);
                    replay.status
                } else {
                    self.reply.fail(number, Status::BadSequenceId);
                    Status::BadSequenceId
                };
                self.put_replayed(replay.handle.as_deref());
                status
            }
        };
        if let Some((owner, sequence)) = self.sequenced.take() {
            let replay = Replay {
                number,
                status,
                body: self.reply.body().to_vec(),
                handle: self.handle_bytes(),
            };
            self.server.v4().owner_answered(owner, sequence, replay);
        }
        if let Some(slot) = &self.slot {
            // RFC 8881, section 2.10.6.4; the envelope of a reply has 24 bytes.
            let length = self.reply.len() + 24;
            let too_long = if length > slot.response_bytes {
                Some(Status::ReplyTooBig)
            } else if slot.cache && length > slot.cached_bytes {
                Some(Status::ReplyTooBigToCache)
            } else {
                None
            };
            if let Some(too_long) = too_long {
                self.reply.fail(number, too_long);
                status = too_long;
            }
        } else if self.reply.len() > REPLY_BYTES_MAX as usize {
            self.reply.fail(number, Status::Resource);
            status = Status::Resource;
        }
        status
    }

    /// Checks that an operation may come where it comes (RFC 8881, sections 2.10.6.1 and 18.46.3).
    fn check_position(
        &self,
        index: usize,
        number: u32,
        operation: &Operation<'_>,
    ) -> Result<(), Status> {
        if self.minor == 0 || *operation == Operation::Illegal {
            return Ok(());
        }
        let alone = matches!(
            number,
            number::EXCHANGE_ID
                | number::CREATE_SESSION
                | number::DESTROY_SESSION
                | number::DESTROY_CLIENTID
                | number::BIND_CONN_TO_SESSION
        );
        match (index, number) {
            (0, number::SEQUENCE) => Ok(()),
            (0, _) if alone && self.operations > 1 => Err(Status::NotOnlyOperation),
            (0, _) if alone => Ok(()),
            (0, _) => Err(Status::OperationNotInSession),
            (_, number::SEQUENCE) => Err(Status::SequencePosition),
            (_, number::BIND_CONN_TO_SESSION) => Err(Status::NotOnlyOperation),
            _ => Ok(()),
        }
    }

    async fn operation(&mut self, operation: Operation<'_>) -> Done {
        self.reply.writer().u32(Status::Ok as u32);
        match operation {
            Operation::PutHandle(bytes) => self.put_handle(bytes),
            Operation::PutRoot => self.put_root().await,
            Operation::GetHandle => self.get_handle(),
            Operation::SaveHandle => self.save_handle(),
            Operation::RestoreHandle => self.restore_handle(),
            Operation::Lookup(name) => self.lookup(name).await,
            Operation::LookupParent => self.lookup_parent().await,
            Operation::Access(wanted) => self.access(wanted).await,
            Operation::GetAttributes(bits) => self.get_attributes(bits).await,
            Operation::Verify { attributes, same } => self.verify(&attributes, same).await,
            Operation::ReadLink => self.read_link().await,
            Operation::ReadDirectory { page, bits } => self.read_directory(&page, bits).await,
            Operation::Read {
                state,
                offset,
                count,
            } => self.read(&state, offset, count).await,
            Operation::Write {
                state,
                offset,
                stable,
                data,
            } => self.write(&state, offset, stable, data).await,
            Operation::Commit { offset, count } => self.commit(offset, count).await,
            Operation::SecurityInfo(name) => self.security_info(name).await,
            Operation::SecurityInfoNoName { parent } => self.security_info_no_name(parent).await,
            other => self.changing_operation(other).await,
        }
    }

    async fn changing_operation(&mut self, operation: Operation<'_>) -> Done {
        match operation {
            Operation::Create {
                what,
                name,
                attributes,
            } => self.create(&what, name, &attributes).await,
            Operation::Link(name) => self.link(name).await,
            Operation::Remove(name) => self.remove(name).await,
            Operation::Rename { from, to } => self.rename(from, to).await,
            Operation::SetAttributes { state, attributes } => {
                self.set_attributes(&state, &attributes).await
            }
            Operation::Open(open) => self.open(&open).await,
            Operation::OpenConfirm { state, sequence } => self.open_confirm(&state, sequence),
            Operation::OpenDowngrade {
                state,
                sequence,
                access,
                deny,
            } => self.open_downgrade(&state, sequence, access, deny),
            Operation::Close { sequence, state } => self.close(sequence, &state),
            Operation::Lock(lock) => self.lock(&lock).await,
            Operation::LockTest {
                mode,
                offset,
                length,
                owner,
            } => self.lock_test(mode, offset, length, &owner).await,
            Operation::Unlock {
                sequence,
                state,
                offset,
                length,
            } => self.unlock(sequence, &state, offset, length),
            Operation::Allocate { .. }
            | Operation::Deallocate { .. }
            | Operation::Advise(_)
            | Operation::ReadPlus { .. }
            | Operation::Seek { .. }
            | Operation::Copy { .. }
            | Operation::Clone(_)
            | Operation::GetXattr(_)
            | Operation::SetXattr { .. }
            | Operation::ListXattrs { .. }
            | Operation::RemoveXattr(_) => self.extended(operation).await,
            other => self.client_operation(other),
        }
    }

    fn client_operation(&mut self, operation: Operation<'_>) -> Done {
        match operation {
            Operation::Sequence(sequence) => self.sequence(&sequence),
            Operation::ExchangeId(exchange) => self.exchange_id(&exchange),
            Operation::CreateSession(create) => self.create_session(&create),
            Operation::DestroySession(session) => self.destroy_session(&session),
            Operation::BindConnection { session, direction } => {
                self.bind_connection(&session, direction)
            }
            Operation::DestroyClientId(client) => self.destroy_client(client),
            Operation::ReclaimComplete { one_fs } => self.reclaim_complete(one_fs),
            Operation::TestStateIds(ids) => self.test_states(&ids),
            Operation::FreeStateId(id) => self.free_state(&id),
            Operation::SetClientId(set) => self.set_client_id(&set),
            Operation::SetClientIdConfirm { client, confirm } => {
                self.confirm_client_id(client, confirm)
            }
            Operation::Renew(client) => Ok(self.server.v4().renew(client)?),
            Operation::ReleaseLockOwner(owner) => self.release_lock_owner(&owner),
            Operation::DelegationReturn(id) => self.return_delegation(&id),
            Operation::BackChannelControl(program) => self.set_back_channel(program),
            Operation::Illegal => Err(Status::IllegalOperation.into()),
            _ => Err(Status::NotSupported.into()),
        }
    }

    pub(super) fn w(&mut self) -> &mut Writer {
        self.reply.writer()
    }

    /// Returns the client of the session that the request is in (minor version 1 and above).
    pub(super) fn session_client(&self) -> Option<ClientId> {
        self.slot.map(|slot| slot.client)
    }

    /// Returns what operations on the current file handle work on.
    pub(super) fn target(&self) -> Result<&Target, Status> {
        self.current.as_ref().ok_or(Status::NoFileHandle)
    }

    /// Returns the current file, where a directory of the pseudo file system has the error `pseudo`.
    pub(super) fn file(&self, pseudo: Status) -> Result<FileTarget, Status> {
        match self.target()? {
            Target::File(file) => Ok(file.clone()),
            Target::Pseudo(_) => Err(pseudo),
        }
    }

    pub(super) fn lease_seconds(&self) -> u32 {
        self.server.lease_seconds()
    }
}

/// Whether a request of minor version 0 has operations that must not run twice and that no owner's number tells apart.
pub(super) fn changes_without_session(mut arguments: Reader<'_>) -> bool {
    let Ok(head) = Head::read(&mut arguments) else {
        return false;
    };
    head.minor == 0
        && operations(&mut arguments, &head).iter().any(|operation| {
            matches!(
                operation.number,
                number::CREATE
                    | number::LINK
                    | number::REMOVE
                    | number::RENAME
                    | number::SETATTR
                    | number::SETCLIENTID
            )
        })
}

/// Returns the most bytes that an answer has, from what its operations ask for.
pub(super) fn answer_bytes_max(mut arguments: Reader<'_>) -> usize {
    let Ok(head) = Head::read(&mut arguments) else {
        return ENVELOPE_BYTES;
    };
    let size = |bytes: u32| {
        usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(REPLY_BYTES_MAX as usize)
    };
    let mut bytes = ENVELOPE_BYTES + head.tag.len();
    for Numbered { operation, .. } in operations(&mut arguments, &head) {
        bytes += RESULT_BYTES;
        bytes += match operation {
            Ok(Operation::Read { count, .. } | Operation::ReadPlus { count, .. }) => size(count),
            Ok(Operation::ReadDirectory { page, .. }) => size(page.reply_bytes),
            Ok(Operation::ListXattrs { bytes, .. }) => size(bytes),
            Ok(Operation::GetXattr(_)) => 1 << 16,
            // 1024 entries of 28 bytes, and one more list of them.
            Ok(Operation::GetAttributes(bits)) if attribute::tells_list(bits) => 1 << 16,
            Ok(Operation::ReadLink) => PATH_BYTES_MAX,
            Ok(Operation::TestStateIds(ids)) => ids.len() * 4,
            _ => 0,
        };
    }
    bytes.min(REPLY_BYTES_MAX as usize + ENVELOPE_BYTES)
}
