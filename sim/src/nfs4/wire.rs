//! NFSv4.1 as a client speaks it (RFC 5531, RFC 8881): requests as bytes, and what their answers say. Written from the RFCs, apart from
//! the server's own coding, so that one mistake is not made on both sides.

use std::fmt;

/// Operation numbers (RFC 8881, section 18).
pub mod op {
    pub const CLOSE: u32 = 4;
    pub const COMMIT: u32 = 5;
    pub const DELEGRETURN: u32 = 8;
    pub const GETATTR: u32 = 9;
    pub const GETFH: u32 = 10;
    pub const LOCK: u32 = 12;
    pub const LOCKT: u32 = 13;
    pub const LOCKU: u32 = 14;
    pub const LOOKUP: u32 = 15;
    pub const OPEN: u32 = 18;
    pub const OPEN_DOWNGRADE: u32 = 21;
    pub const PUTFH: u32 = 22;
    pub const PUTROOTFH: u32 = 24;
    pub const READ: u32 = 25;
    pub const REMOVE: u32 = 28;
    pub const WRITE: u32 = 38;
    pub const BIND_CONN_TO_SESSION: u32 = 41;
    pub const EXCHANGE_ID: u32 = 42;
    pub const CREATE_SESSION: u32 = 43;
    pub const FREE_STATEID: u32 = 45;
    pub const SEQUENCE: u32 = 53;
    pub const TEST_STATEID: u32 = 55;
    pub const RECLAIM_COMPLETE: u32 = 58;
}

/// Statuses that are told apart (RFC 8881, section 15).
pub mod status {
    pub const OK: u32 = 0;
    pub const NO_ENTRY: u32 = 2;
    pub const EXISTS: u32 = 17;
    pub const DELAY: u32 = 10008;
    pub const DENIED: u32 = 10010;
    pub const LOCKED: u32 = 10012;
    pub const GRACE: u32 = 10013;
    pub const SHARE_DENIED: u32 = 10015;
    pub const STALE_CLIENT_ID: u32 = 10022;
    pub const OLD_STATE_ID: u32 = 10024;
    pub const BAD_STATE_ID: u32 = 10025;
    pub const NO_GRACE: u32 = 10033;
    pub const RECLAIM_BAD: u32 = 10034;
    pub const RECLAIM_CONFLICT: u32 = 10035;
    pub const OPEN_MODE: u32 = 10038;
    pub const BAD_SESSION: u32 = 10052;
    pub const COMPLETE_ALREADY: u32 = 10054;
    pub const SEQUENCE_MISORDERED: u32 = 10063;
    pub const RETRY_UNCACHED: u32 = 10068;
    pub const REVOKED: u32 = 10087;
}

/// READ and WRITE as share modes have them.
pub const READ: u32 = 1;
pub const WRITE: u32 = 2;

const PROGRAM: u32 = 100_003;
/// The program that clients are called by: any number of theirs.
const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// A state id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateId {
    pub sequence: u32,
    pub other: [u8; 12],
}

/// What OPEN opens.
#[derive(Clone, Debug)]
pub enum Claim {
    /// A name in the current directory; made, and refused if it is there, where `create`.
    Name { name: String, create: bool },
    /// The current file, which the client had open before the server was restarted, and the delegation it had: 0, 1 or 2.
    Previous(u32),
    /// The current file.
    File,
    /// The current file, which the client has delegated.
    Delegated(StateId),
}

/// Bytes in XDR.
#[derive(Clone, Default)]
pub struct Words(Vec<u8>);

impl Words {
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("short"))
            .fixed(bytes)
    }

    fn state(&mut self, id: &StateId) -> &mut Self {
        self.u32(id.sequence).fixed(&id.other)
    }

    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The slot of a session that a request is sent by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SlotNumber {
    pub session: [u8; 16],
    pub slot: u32,
    pub sequence: u32,
}

/// The operations of a COMPOUND.
#[derive(Clone, Default)]
pub struct Request {
    words: Words,
    count: u32,
}

impl Request {
    fn op(&mut self, number: u32) -> &mut Words {
        self.count += 1;
        self.words.u32(number)
    }

    /// Begins with a file.
    #[must_use]
    pub fn of(handle: &[u8]) -> Self {
        let mut request = Self::default();
        request.op(op::PUTFH).opaque(handle);
        request
    }

    /// Begins with a file below the root.
    #[must_use]
    pub fn of_path(path: &[&str]) -> Self {
        let mut request = Self::default();
        request.op(op::PUTROOTFH);
        for name in path {
            request.op(op::LOOKUP).opaque(name.as_bytes());
        }
        request.op(op::GETFH);
        request
    }

    #[must_use]
    pub fn open(mut self, client: u64, access: u32, deny: u32, claim: &Claim) -> Self {
        let create = matches!(claim, Claim::Name { create: true, .. });
        let w = self.op(op::OPEN);
        w.u32(0)
            .u32(access)
            .u32(deny)
            .u64(client)
            .opaque(b"opens")
            .u32(u32::from(create));
        if create {
            // GUARDED4, without attributes.
            w.u32(1).u32(0).u32(0);
        }
        match claim {
            Claim::Name { name, .. } => w.u32(0).opaque(name.as_bytes()),
            Claim::Previous(delegation) => w.u32(1).u32(*delegation),
            Claim::File => w.u32(4),
            Claim::Delegated(id) => w.u32(5).state(id),
        };
        self
    }

    #[must_use]
    pub fn downgrade(mut self, id: &StateId, access: u32, deny: u32) -> Self {
        self.op(op::OPEN_DOWNGRADE)
            .state(id)
            .u32(0)
            .u32(access)
            .u32(deny);
        self
    }

    #[must_use]
    pub fn close(mut self, id: &StateId) -> Self {
        self.op(op::CLOSE).u32(0).state(id);
        self
    }

    /// Asks for `change` and the size.
    #[must_use]
    pub fn attributes(mut self) -> Self {
        self.op(op::GETATTR).u32(1).u32(ATTRIBUTES);
        self
    }

    /// Asks for `fs_locations`.
    #[must_use]
    pub fn locations(mut self) -> Self {
        self.op(op::GETATTR).u32(1).u32(LOCATIONS);
        self
    }

    /// A lock of `owner` under an open, or under the lock state that it has.
    #[must_use]
    pub fn lock(mut self, lock: &LockArguments) -> Self {
        let w = self.op(op::LOCK);
        w.u32(lock.mode())
            .u32(u32::from(lock.reclaim))
            .u64(lock.offset)
            .u64(lock.length);
        match lock.locker {
            Locker::Open { open, client } => {
                w.u32(1).u32(0).state(&open).u32(0);
                w.u64(client).opaque(b"locks");
            }
            Locker::Known(id) => {
                w.u32(0).state(&id).u32(0);
            }
        }
        self
    }

    #[must_use]
    pub fn lock_test(mut self, client: u64, lock: &LockArguments) -> Self {
        self.op(op::LOCKT)
            .u32(lock.mode())
            .u64(lock.offset)
            .u64(lock.length)
            .u64(client)
            .opaque(b"locks");
        self
    }

    #[must_use]
    pub fn unlock(mut self, id: &StateId, offset: u64, length: u64) -> Self {
        self.op(op::LOCKU)
            .u32(2)
            .u32(0)
            .state(id)
            .u64(offset)
            .u64(length);
        self
    }

    #[must_use]
    pub fn read(mut self, id: &StateId, offset: u64, count: u32) -> Self {
        self.op(op::READ).state(id).u64(offset).u32(count);
        self
    }

    #[must_use]
    pub fn write(mut self, id: &StateId, offset: u64, stable: bool, data: &[u8]) -> Self {
        self.op(op::WRITE)
            .state(id)
            .u64(offset)
            .u32(if stable { 2 } else { 0 })
            .opaque(data);
        self
    }

    /// COMMIT of the whole file.
    #[must_use]
    pub fn commit(mut self) -> Self {
        self.op(op::COMMIT).u64(0).u32(0);
        self
    }

    #[must_use]
    pub fn give_back(mut self, id: &StateId) -> Self {
        self.op(op::DELEGRETURN).state(id);
        self
    }

    #[must_use]
    pub fn remove(mut self, name: &str) -> Self {
        self.op(op::REMOVE).opaque(name.as_bytes());
        self
    }

    #[must_use]
    pub fn test_state(mut self, id: &StateId) -> Self {
        self.op(op::TEST_STATEID).u32(1).state(id);
        self
    }

    #[must_use]
    pub fn free_state(mut self, id: &StateId) -> Self {
        self.op(op::FREE_STATEID).state(id);
        self
    }

    #[must_use]
    pub fn reclaim_complete() -> Self {
        let mut request = Self::default();
        request.op(op::RECLAIM_COMPLETE).u32(0);
        request
    }

    #[must_use]
    pub fn exchange_id(name: &str, verifier: u64) -> Self {
        let mut request = Self::default();
        request
            .op(op::EXCHANGE_ID)
            .u64(verifier)
            .opaque(name.as_bytes())
            .u32(0)
            .u32(0)
            .u32(0);
        request
    }

    /// A session with so many slots, and a back channel by the connection that the request is sent by.
    #[must_use]
    pub fn create_session(client: u64, sequence: u32, slots: u32, back_slots: u32) -> Self {
        let mut request = Self::default();
        let w = request.op(op::CREATE_SESSION);
        w.u64(client).u32(sequence).u32(2);
        for requests in [slots, back_slots] {
            w.u32(0)
                .u32(1 << 20)
                .u32(1 << 20)
                .u32(2048)
                .u32(16)
                .u32(requests)
                .u32(0);
        }
        // One way to be called: without a credential.
        w.u32(CALLBACK_PROGRAM).u32(1).u32(0);
        request
    }

    /// Makes the connection that the request is sent by one of a session, in both directions.
    #[must_use]
    pub fn bind(session: &[u8; 16]) -> Self {
        let mut request = Self::default();
        request
            .op(op::BIND_CONN_TO_SESSION)
            .fixed(session)
            .u32(3)
            .u32(0);
        request
    }

    /// Returns the RPC message. `keep` asks for the answer to be kept in the slot.
    #[must_use]
    pub fn message(&self, xid: u32, slot: Option<SlotNumber>, keep: bool) -> Vec<u8> {
        let mut w = Words::default();
        w.u32(xid).u32(0).u32(2).u32(PROGRAM).u32(4).u32(1);
        // AUTH_SYS of root, and no verifier.
        let mut credential = Words::default();
        credential.u32(0).opaque(b"sim").u32(0).u32(0).u32(0);
        w.u32(1)
            .opaque(&credential.into_bytes())
            .u32(0)
            .opaque(b"")
            // No tag, minor version 1.
            .opaque(b"")
            .u32(1)
            .u32(self.count + u32::from(slot.is_some()));
        if let Some(slot) = slot {
            w.u32(op::SEQUENCE)
                .fixed(&slot.session)
                .u32(slot.sequence)
                .u32(slot.slot)
                .u32(slot.slot)
                .u32(u32::from(keep));
        }
        w.0.extend(&self.words.0);
        w.into_bytes()
    }
}

/// Who locks.
#[derive(Clone, Copy, Debug)]
pub enum Locker {
    Open { open: StateId, client: u64 },
    Known(StateId),
}

/// A lock.
#[derive(Clone, Copy, Debug)]
pub struct LockArguments {
    pub exclusive: bool,
    pub reclaim: bool,
    pub offset: u64,
    pub length: u64,
    pub locker: Locker,
}

impl LockArguments {
    fn mode(&self) -> u32 {
        if self.exclusive { 2 } else { 1 }
    }
}

/// `change` and `size`.
const ATTRIBUTES: u32 = 1 << 3 | 1 << 4;
/// `fs_locations`.
const LOCATIONS: u32 = 1 << 24;

/// What an operation answered besides its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    None,
    /// The flags of SEQUENCE.
    Flags(u32),
    Open {
        state: StateId,
        /// To read (false) or to write.
        delegation: Option<(bool, StateId)>,
    },
    State(StateId),
    Data(Vec<u8>),
    Written {
        stable: bool,
        verifier: u64,
    },
    Committed(u64),
    Handle(Vec<u8>),
    Attributes {
        change: u64,
        size: u64,
    },
    Client {
        id: u64,
        sequence: u32,
        /// What names the server: clients know by it that two addresses are one server's.
        server: Vec<u8>,
    },
    /// Where a file system is: its path, and the addresses of the server that has it.
    Locations {
        path: Vec<Vec<u8>>,
        addresses: Vec<Vec<u8>>,
    },
    Session([u8; 16]),
    Statuses(Vec<u32>),
}

/// The answer to a COMPOUND.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub status: u32,
    /// Number, status and body of each operation that was tried.
    pub results: Vec<(u32, u32, Body)>,
}

/// An answer that the RFCs do not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable(pub &'static str);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer that cannot be read: {}", self.0)
    }
}

impl Answer {
    /// Returns the status of SEQUENCE, if the answer has one.
    #[must_use]
    pub fn sequence_status(&self) -> Option<u32> {
        let (number, status, _) = self.results.first()?;
        (*number == op::SEQUENCE).then_some(*status)
    }

    /// Returns what an operation answered that went well.
    #[must_use]
    pub fn body(&self, number: u32) -> Option<&Body> {
        let of = |result: &&(u32, u32, Body)| result.0 == number && result.1 == status::OK;
        self.results.iter().find(of).map(|result| &result.2)
    }

    /// Returns the state id that an operation answered.
    #[must_use]
    pub fn state(&self, number: u32) -> Option<StateId> {
        match self.body(number)? {
            Body::State(id) | Body::Open { state: id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// Reads XDR.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Unreadable> {
        let (bytes, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Unreadable("it ends early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Unreadable> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("four")))
    }

    pub fn u64(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    pub fn opaque(&mut self) -> Result<&'a [u8], Unreadable> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?;
        self.take(length.next_multiple_of(4) - length)?;
        Ok(bytes)
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        Ok(self.take(N)?.try_into().expect("as many"))
    }

    pub fn state(&mut self) -> Result<StateId, Unreadable> {
        Ok(StateId {
            sequence: self.u32()?,
            other: self.fixed()?,
        })
    }

    fn words(&mut self) -> Result<Vec<u32>, Unreadable> {
        let count = self.u32()?;
        (0..count.min(1024)).map(|_| self.u32()).collect()
    }
}

/// Reads an RPC reply with the results of a COMPOUND, all of it.
pub fn answer(reply: &[u8]) -> Result<Answer, Unreadable> {
    let mut r = Reader(reply);
    r.u32()?;
    // A reply that is accepted, by no verifier, and succeeded.
    if [r.u32()?, r.u32()?, r.u32()?] != [1, 0, 0] || !r.opaque()?.is_empty() || r.u32()? != 0 {
        return Err(Unreadable("the call was refused"));
    }
    let status = r.u32()?;
    r.opaque()?;
    let count = r.u32()?;
    let mut results = Vec::new();
    for _ in 0..count {
        let (number, status) = (r.u32()?, r.u32()?);
        let body = match status {
            status::OK => body(&mut r, number)?,
            status::DENIED if matches!(number, op::LOCK | op::LOCKT) => {
                let _range = (r.u64()?, r.u64()?, r.u32()?, r.u64()?, r.opaque()?);
                Body::None
            }
            _ => Body::None,
        };
        results.push((number, status, body));
    }
    if !r.0.is_empty() {
        return Err(Unreadable("bytes behind the results"));
    }
    if results.last().is_some_and(|last| last.1 != status) {
        return Err(Unreadable("the status is not that of the last operation"));
    }
    Ok(Answer { status, results })
}

fn body(r: &mut Reader<'_>, number: u32) -> Result<Body, Unreadable> {
    Ok(match number {
        op::SEQUENCE => {
            r.fixed::<16>()?;
            let _numbers = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
            Body::Flags(r.u32()?)
        }
        op::OPEN => open_body(r)?,
        op::CLOSE | op::OPEN_DOWNGRADE | op::LOCK | op::LOCKU => Body::State(r.state()?),
        op::READ => {
            r.u32()?;
            Body::Data(r.opaque()?.to_vec())
        }
        op::WRITE => {
            let (_count, stable) = (r.u32()?, r.u32()? != 0);
            let verifier = r.u64()?;
            Body::Written { stable, verifier }
        }
        op::COMMIT => Body::Committed(r.u64()?),
        op::GETFH => Body::Handle(r.opaque()?.to_vec()),
        op::GETATTR => {
            let asked = r.words()?;
            let mut values = Reader(r.opaque()?);
            match asked.as_slice() {
                [ATTRIBUTES] => Body::Attributes {
                    change: values.u64()?,
                    size: values.u64()?,
                },
                [LOCATIONS] => locations(&mut values)?,
                _ => return Err(Unreadable("attributes that were not asked for")),
            }
        }
        op::REMOVE => {
            let _change = (r.u32()?, r.u64()?, r.u64()?);
            Body::None
        }
        op::EXCHANGE_ID => {
            let (id, sequence, _flags) = (r.u64()?, r.u32()?, r.u32()?);
            if r.u32()? != 0 {
                return Err(Unreadable("a protection that was not asked for"));
            }
            let (_minor, owner) = (r.u64()?, r.opaque()?);
            let (scope, _implementations) = (r.opaque()?, r.u32()?);
            let server = [owner, scope].concat();
            Body::Client {
                id,
                sequence,
                server,
            }
        }
        op::CREATE_SESSION => {
            let session = r.fixed()?;
            // Number and flags, and the limits of two channels.
            r.take(8 + 2 * 28)?;
            Body::Session(session)
        }
        op::BIND_CONN_TO_SESSION => {
            r.take(16 + 8)?;
            Body::None
        }
        op::TEST_STATEID => Body::Statuses(r.words()?),
        _ => Body::None,
    })
}

/// Reads `fs_locations4` (RFC 8881, section 11.16).
fn locations(r: &mut Reader<'_>) -> Result<Body, Unreadable> {
    let path = names(r)?;
    let mut addresses = Vec::new();
    for _ in 0..r.u32()? {
        addresses.extend(names(r)?);
        if names(r)? != path {
            return Err(Unreadable("another path at another place"));
        }
    }
    Ok(Body::Locations { path, addresses })
}

fn names(r: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, Unreadable> {
    let count = r.u32()?;
    (0..count.min(1024))
        .map(|_| Ok(r.opaque()?.to_vec()))
        .collect()
}

fn open_body(r: &mut Reader<'_>) -> Result<Body, Unreadable> {
    let state = r.state()?;
    let _change = (r.u32()?, r.u64()?, r.u64()?, r.u32()?);
    r.words()?;
    let kind = r.u32()?;
    let delegation = match kind {
        0 => None,
        1 | 2 => {
            let id = r.state()?;
            r.u32()?;
            if kind == 2 {
                let _limit = (r.u32()?, r.u64()?);
            }
            let _permissions = (r.u32()?, r.u32()?, r.u32()?, r.opaque()?);
            Some((kind == 2, id))
        }
        3 => {
            // Why there is none; two of the reasons say whether there will be one.
            if matches!(r.u32()?, 1 | 2) {
                r.u32()?;
            }
            None
        }
        _ => return Err(Unreadable("a delegation of no kind")),
    };
    Ok(Body::Open { state, delegation })
}

/// A call of the server to its client: CB_SEQUENCE, and one operation behind it.
#[derive(Clone, Debug)]
pub struct Callback {
    pub xid: u32,
    pub session: [u8; 16],
    pub sequence: u32,
    pub slot: u32,
    pub asks: CallbackRequest,
}

/// What the server asks its client for.
#[derive(Clone, Debug)]
pub enum CallbackRequest {
    Recall(StateId),
    /// Of the file of this handle.
    Attributes(Vec<u8>),
}

const CB_GETATTR: u32 = 3;
const CB_RECALL: u32 = 4;
const CB_SEQUENCE: u32 = 11;

/// Reads a call of the server.
pub fn callback(message: &[u8]) -> Result<Callback, Unreadable> {
    let mut r = Reader(message);
    let xid = r.u32()?;
    if [r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?] != [0, 2, CALLBACK_PROGRAM, 1, 1] {
        return Err(Unreadable("a callback of another program"));
    }
    for _credential in ["of the call", "its verifier"] {
        r.u32()?;
        r.opaque()?;
    }
    r.opaque()?;
    if [r.u32()?, r.u32()?, r.u32()?, r.u32()?] != [1, 0, 2, CB_SEQUENCE] {
        return Err(Unreadable(
            "a callback without CB_SEQUENCE and one operation",
        ));
    }
    let (session, sequence, slot, highest) = (r.fixed()?, r.u32()?, r.u32()?, r.u32()?);
    // Not kept, and no calls that are referred to.
    if slot > highest || [r.u32()?, r.u32()?] != [0; 2] {
        return Err(Unreadable("a callback above the highest slot"));
    }
    let asks = match r.u32()? {
        CB_RECALL => {
            let id = r.state()?;
            r.u32()?;
            r.opaque()?;
            CallbackRequest::Recall(id)
        }
        CB_GETATTR => {
            let handle = r.opaque()?.to_vec();
            r.words()?;
            CallbackRequest::Attributes(handle)
        }
        _ => return Err(Unreadable("a callback for something else")),
    };
    Ok(Callback {
        xid,
        session,
        sequence,
        slot,
        asks,
    })
}

/// Returns the answer to a callback: what CB_SEQUENCE and the operation behind it end with, with `change` and the size where they were
/// asked for.
#[must_use]
pub fn callback_answer(
    call: &Callback,
    sequence: u32,
    result: u32,
    attributes: Option<(u64, u64)>,
) -> Vec<u8> {
    let mut w = Words::default();
    w.u32(call.xid).u32(1).u32(0).u32(0).opaque(b"").u32(0);
    let number = match call.asks {
        CallbackRequest::Recall(_) => CB_RECALL,
        CallbackRequest::Attributes(_) => CB_GETATTR,
    };
    if sequence != status::OK {
        w.u32(sequence).opaque(b"").u32(1);
        w.u32(CB_SEQUENCE).u32(sequence);
        return w.into_bytes();
    }
    w.u32(result).opaque(b"").u32(2);
    w.u32(CB_SEQUENCE).u32(status::OK).fixed(&call.session);
    // All slots may be used.
    w.u32(call.sequence)
        .u32(call.slot)
        .u32(u32::MAX - 1)
        .u32(u32::MAX - 1);
    w.u32(number).u32(result);
    if let (CB_GETATTR, status::OK, Some((change, size))) = (number, result, attributes) {
        w.u32(1).u32(1 << 3 | 1 << 4).u32(16).u64(change).u64(size);
    }
    w.into_bytes()
}
