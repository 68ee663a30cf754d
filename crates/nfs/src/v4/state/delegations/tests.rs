//! A delegation's life as one client sees it, from a session with a back channel to its end.

use super::super::clients::Principal;
use super::super::{SessionId, StateTableConfig};
use super::*;
use crate::connection::{ClientConnection, TransportSecurity};
use crate::v4::operation::{CallbackCredential, CallbackProgram, ChannelLimits, CreateSession};
use crate::xdr::{Reader, Writer};
use engine::FileId;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SECOND: u64 = 1_000_000_000;
const LEASE: u64 = 90 * SECOND;
/// The change number of files as they are delegated.
const CHANGE: u64 = 77;
const TO_READ: ShareMode = ShareMode { access: 1, deny: 0 };
const TO_WRITE: ShareMode = ShareMode { access: 2, deny: 0 };

fn file(object: u64) -> FileHandle {
    let generation = 1;
    FileHandle {
        dataset: 9,
        identity: 9,
        snapshot: None,
        file: FileId { object, generation },
    }
}

/// A client with a session, and what it was sent.
struct TestClient {
    id: ClientId,
    session: SessionId,
    connection: Option<Arc<ClientConnection>>,
    calls: Arc<Mutex<Vec<Vec<u8>>>>,
    given_back: Arc<AtomicUsize>,
}

fn table() -> StateTable {
    StateTable::new(&StateTableConfig {
        boot_verifier: 7,
        lease_seconds: 90,
        secret: [3, 4],
        record: &[],
        locks: Arc::default(),
        reclaims: Arc::default(),
    })
}

fn limits() -> ChannelLimits {
    ChannelLimits {
        request_bytes: 4096,
        response_bytes: 4096,
        cached_bytes: 0,
        operations: 8,
        requests: 4,
    }
}

fn create(client: ClientId, requests: u32) -> CreateSession {
    CreateSession {
        client,
        sequence: 1,
        flags: 2,
        fore: limits(),
        back: ChannelLimits {
            requests,
            ..limits()
        },
        program: Some(CallbackProgram {
            number: 0x4000_0000,
            credential: CallbackCredential::None,
        }),
    }
}

impl TestClient {
    fn new(table: &mut StateTable, name: &[u8]) -> Self {
        Self::with_back_slots(table, name, limits().requests)
    }

    /// A client that takes so many calls at once.
    fn with_back_slots(table: &mut StateTable, name: &[u8], requests: u32) -> Self {
        let calls: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let sent = Arc::clone(&calls);
        let connection = ClientConnection::new(TransportSecurity::Plain, move |message| {
            sent.lock().expect("no panic").push(message);
            true
        });
        let principal = Principal::User(0);
        let exchanged = table.exchange_id(name, [1; 8], principal.clone(), false);
        let id = exchanged.expect("a new client").client;
        let create = create(id, requests);
        let created = table.create_session(&create, principal, Some(&connection), 1);
        let created = created.expect("a session");
        let session = created.get(..16).and_then(|id| id.try_into().ok());
        assert_eq!(
            created.get(20..24),
            Some(&[0, 0, 0, 2][..]),
            "the back channel is taken"
        );
        Self {
            id,
            session: session.expect("16 bytes"),
            connection: Some(connection),
            calls,
            given_back: Arc::default(),
        }
    }

    fn request(&self, object: u64, delegation_type: DelegationType) -> DelegationRequest {
        let given_back = Arc::clone(&self.given_back);
        DelegationRequest {
            client: self.id,
            file: file(object),
            delegation_type,
            opened: (1000, 2),
            minor: 1,
            give_back: GiveBack(Arc::new(move || {
                given_back.fetch_add(1, Ordering::Relaxed);
            })),
        }
    }

    fn delegate(&self, table: &mut StateTable, object: u64) -> Option<StateId> {
        let begun = table.begin_delegation(self.request(object, DelegationType::Read))?;
        table.end_delegation(begun.key, Some(CHANGE))
    }

    fn delegate_to_write(&self, table: &mut StateTable, object: u64) -> Option<StateId> {
        let begun = table.begin_delegation(self.request(object, DelegationType::Write))?;
        table.end_delegation(begun.key, Some(CHANGE))
    }

    fn taken(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.calls.lock().expect("no panic"))
    }

    fn answer(&self, table: &mut StateTable, call: &[u8], recall: u32) {
        self.answer_with(table, call, recall, |w| {
            w.u32(4).u32(recall);
        });
    }

    fn answer_with(
        &self,
        table: &mut StateTable,
        call: &[u8],
        status: u32,
        result: impl FnOnce(&mut Writer),
    ) {
        let xid = Reader::new(call).u32().expect("a call");
        let mut w = crate::rpc::success(xid, 128);
        w.u32(status).u32(0).u32(2).u32(11).u32(0);
        w.opaque_fixed(&self.session).u32(1).u32(0).u32(3).u32(3);
        result(&mut w);
        let connection = self.connection.as_ref().expect("connected");
        table.called_back(connection, w.as_bytes());
    }

    /// Answers CB_GETATTR with attributes, of which the first two are asked for.
    fn tell(&self, table: &mut StateTable, call: &[u8], numbers: &[u32], values: &[u64]) {
        self.answer_with(table, call, 0, |w| {
            w.u32(3).u32(0);
            crate::v4::bitmap::Bitmap::of(numbers).write(w);
            let mut all = Writer::default();
            for value in values {
                all.u64(*value);
            }
            w.opaque(all.as_bytes());
        });
    }

    fn given_back(&self) -> usize {
        self.given_back.load(Ordering::Relaxed)
    }
}

fn nth<T>(all: &[T], index: usize) -> &T {
    all.get(index).expect("as many")
}

/// The slot that a call is in, and the highest one in use.
fn slots(call: &[u8]) -> (u32, u32) {
    let mut r = Reader::new(call);
    r.opaque_fixed(15 * 4 + 16 + 4).expect("the head");
    (r.u32().expect("a slot"), r.u32().expect("the highest"))
}

/// The slot's sequence and the state id that a call names.
fn recalled(call: &[u8]) -> (u32, StateId) {
    let mut r = Reader::new(call);
    // The envelope without credentials, no tag, minor version, identification, two operations.
    let words = |r: &mut Reader<'_>, count: usize| -> Vec<u32> {
        (0..count).map(|_| r.u32().expect("a word")).collect()
    };
    let head = words(&mut r, 15);
    assert_eq!(head.get(3..6), Some(&[0x4000_0000, 1, 1][..]));
    assert_eq!(head.get(10..), Some(&[0, 1, 0, 2, 11][..]));
    r.opaque_fixed(16).expect("the session");
    let sequence = words(&mut r, 5);
    assert_eq!(words(&mut r, 1), [4]);
    let (state, other) = (words(&mut r, 1), r.opaque_fixed(12).expect("a state id"));
    let id = StateId {
        sequence: *state.first().expect("one"),
        other: other.try_into().expect("12 bytes"),
    };
    (*sequence.first().expect("five"), id)
}

#[test]
fn an_open_to_write_waits_until_the_file_is_given_back() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let two = TestClient::new(&mut table, b"two");
    let held = one.delegate(&mut table, 1).expect("delegated");
    assert!(two.delegate(&mut table, 1).is_some(), "several may read");
    assert!(one.delegate(&mut table, 1).is_none(), "it has it");
    let own = table.check_delegations(&file(1), Some(two.id), TO_READ);
    assert_eq!(
        (own, one.taken().len()),
        (Ok(()), 0),
        "reading is no conflict"
    );
    let write = |table: &mut StateTable| table.check_delegations(&file(1), Some(two.id), TO_WRITE);
    assert_eq!(write(&mut table), Err(Status::Delay));
    let calls = one.taken();
    assert_eq!(recalled(calls.first().expect("a call")), (1, held));
    assert_eq!(
        (calls.len(), two.taken().len()),
        (1, 0),
        "its own is spared"
    );
    one.answer(&mut table, calls.first().expect("a call"), 0);
    assert_eq!(write(&mut table), Err(Status::Delay));
    assert!(one.taken().is_empty(), "called once");
    assert_eq!(
        table.return_delegation(&held, &file(1), Some(one.id), 1),
        Ok(())
    );
    assert_eq!((write(&mut table), one.given_back()), (Ok(()), 1));
    assert!(one.delegate(&mut table, 1).is_none(), "not so soon again");
    table.tick(31 * SECOND);
    assert!(one.delegate(&mut table, 1).is_some());
    assert_eq!(
        table.return_delegation(&held, &file(1), Some(one.id), 1),
        Err(Status::BadStateId)
    );
}

#[test]
fn what_is_not_given_back_is_revoked_and_its_client_is_told() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate(&mut table, 1).expect("delegated");
    table.recall_file(file(1).locked(), one.id, Recalled::ForChange);
    assert_eq!(one.taken().len(), 1);
    for second in [30, 60, 89] {
        table.renew_quietly(one.id);
        table.tick(second * SECOND);
        assert_eq!(one.given_back(), 0);
    }
    table.renew_quietly(one.id);
    table.tick(LEASE + 3 * SECOND);
    assert_eq!((one.given_back(), table.sequence_flags(one.id)), (1, 0x40));
    assert_eq!(table.test_state(&held, one.id), Status::DelegationRevoked);
    let read = table.check_access(&held, &file(1), 1, Some(one.id), 1);
    assert_eq!(read, Err(Status::DelegationRevoked));
    assert_eq!(table.free_state(&held, one.id), Ok(()));
    assert_eq!(
        (
            table.test_state(&held, one.id),
            table.sequence_flags(one.id)
        ),
        (Status::BadStateId, 0)
    );
    let counts = table.delegation_counts();
    assert_eq!(
        (counts.held, counts.given, counts.recalled, counts.revoked),
        (0, 1, 1, 1)
    );
}

/// A write that hangs must not be made after others were given the file.
#[test]
fn a_client_whose_write_is_under_way_keeps_what_allowed_it() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate_to_write(&mut table, 1).expect("delegated");
    let other = one.delegate(&mut table, 2).expect("delegated");
    let write = table.change_by(&held, 1).expect("a client");
    table.recall_file(file(1).locked(), one.id, Recalled::ForChange);
    let open = |table: &mut StateTable| table.check_delegations(&file(2), None, TO_WRITE);
    for second in [1, 60, 100, 200] {
        table.tick(second * SECOND);
        assert_eq!(open(&mut table), Err(Status::Delay), "{second} s");
        assert_eq!(one.given_back(), 0, "{second} s");
    }
    // Another incarnation of the client waits, too.
    let principal = Principal::User(0);
    let exchanged = table.exchange_id(b"one", [2; 8], principal.clone(), false);
    let again = create(exchanged.expect("another incarnation").client, 4);
    let created = table.create_session(&again, principal.clone(), None, 1);
    assert_eq!(created, Err(Status::Delay));
    drop(write);
    table.tick(201 * SECOND);
    assert_eq!((open(&mut table), one.given_back()), (Ok(()), 2));
    assert_eq!(table.test_state(&other, one.id), Status::DelegationRevoked);
    assert!(table.create_session(&again, principal, None, 1).is_ok());
}

#[test]
fn calls_are_repeated_until_they_are_answered() {
    let mut table = table();
    let mut one = TestClient::new(&mut table, b"one");
    let held = one.delegate(&mut table, 1).expect("delegated");
    table.recall_file(file(1).locked(), one.id, Recalled::ForChange);
    let calls = one.taken();
    // The client does not know it yet.
    one.answer(&mut table, calls.first().expect("a call"), 10025);
    table.tick(SECOND);
    let calls = one.taken();
    assert_eq!(recalled(calls.first().expect("again")), (2, held));
    // Not answered: as it was, after a while.
    table.tick(5 * SECOND);
    assert!(one.taken().is_empty());
    table.tick(12 * SECOND);
    assert_eq!(recalled(one.taken().first().expect("again")), (2, held));
    // The connection is gone: the client is told, and called when it has another one.
    let other = TestClient::new(&mut table, b"other");
    one.connection = None;
    table.tick(13 * SECOND);
    assert_eq!((table.sequence_flags(one.id), one.taken().len()), (1, 0));
    let connection = other.connection.as_ref().expect("connected");
    assert_eq!(table.bind_back_channel(&one.session, connection), Ok(()));
    assert_eq!(recalled(other.taken().first().expect("again")), (2, held));
    assert_eq!(table.sequence_flags(one.id), 0);
    assert!(one.delegate(&mut table, 2).is_some());
}

#[test]
fn a_call_that_is_not_answered_holds_back_no_other_one() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held: Vec<StateId> = (1..=6)
        .map(|object| one.delegate(&mut table, object).expect("delegated"))
        .collect();
    for object in 1..=6 {
        table.recall_file(file(object).locked(), one.id, Recalled::ForChange);
    }
    let calls = one.taken();
    let sent: Vec<_> = calls
        .iter()
        .map(|call| (slots(call), recalled(call)))
        .collect();
    let expected: Vec<_> = (0..4)
        .zip(&held)
        .map(|(slot, id)| ((slot, slot), (1, *id)))
        .collect();
    assert_eq!(sent, expected, "as many as the client takes");
    // The second is answered: its slot is free for the fifth.
    one.answer(&mut table, nth(&calls, 1).as_slice(), 0);
    let fifth = one.taken().pop().expect("a call");
    assert_eq!(
        (slots(&fifth), recalled(&fifth)),
        ((1, 3), (2, *nth(&held, 4)))
    );
    // Those that are not answered are sent again as they were, but for the transaction's id, and nothing else in their slots.
    table.renew_quietly(one.id);
    table.tick(12 * SECOND);
    let again = one.taken();
    let without_id = |call: &Vec<u8>| call.get(4..).map(<[u8]>::to_vec);
    let unanswered = [nth(&calls, 0), &fifth, nth(&calls, 2), nth(&calls, 3)];
    assert!(
        again
            .iter()
            .map(without_id)
            .eq(unanswered.into_iter().map(without_id))
    );
    // The client answers what it was first sent: too late, there is another one under way.
    one.answer(&mut table, nth(&calls, 0).as_slice(), 0);
    assert!(one.taken().is_empty());
    one.answer(&mut table, nth(&again, 0).as_slice(), 0);
    let sixth = one.taken().pop().expect("a call");
    assert_eq!(
        (slots(&sixth), recalled(&sixth)),
        ((0, 3), (2, *nth(&held, 5)))
    );
}

#[test]
fn a_client_of_one_slot_is_called_once_at_a_time() {
    let mut table = table();
    let one = TestClient::with_back_slots(&mut table, b"one", 1);
    for object in 1..=2 {
        assert!(one.delegate(&mut table, object).is_some());
        table.recall_file(file(object).locked(), one.id, Recalled::ForChange);
    }
    let call = one.taken().pop().expect("a call");
    table.tick(12 * SECOND);
    let again = one.taken();
    assert_eq!(again.len(), 1, "the same, and nothing else");
    assert_eq!(recalled(nth(&again, 0).as_slice()), recalled(&call));
    one.answer(&mut table, nth(&again, 0).as_slice(), 0);
    assert_eq!(recalled(nth(&one.taken(), 0).as_slice()).0, 2);
}

#[test]
fn a_client_that_is_gone_or_cannot_be_called_keeps_nothing() {
    let mut table = table();
    let mut one = TestClient::new(&mut table, b"one");
    assert!(one.delegate(&mut table, 1).is_some() && one.delegate(&mut table, 2).is_some());
    table.tick(0);
    table.tick(LEASE + SECOND);
    assert_eq!(one.given_back(), 0, "nobody asks for them");
    assert_eq!(table.check_delegations(&file(1), None, TO_WRITE), Ok(()));
    assert_eq!((one.given_back(), one.taken().len()), (1, 0));
    table.remove_client(one.id);
    assert_eq!((one.given_back(), table.delegation_counts().held), (2, 0));
    assert!(table.states.is_empty() && table.files.is_empty() && table.recalled.is_empty());
    one = TestClient::new(&mut table, b"one");
    one.connection = None;
    assert!(one.delegate(&mut table, 1).is_none(), "it cannot be called");
}

#[test]
fn what_is_no_longer_shared_is_revoked() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate(&mut table, 1).expect("delegated");
    table.revoke_unshared(|guid| guid == 9);
    assert_eq!(
        (one.given_back(), table.test_state(&held, one.id)),
        (0, Status::Ok)
    );
    table.revoke_unshared(|guid| guid != 9);
    assert_eq!(one.given_back(), 1);
    assert_eq!(table.test_state(&held, one.id), Status::DelegationRevoked);
}

#[test]
fn a_recall_that_overtakes_the_answer_of_an_open_ends_the_delegation() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let begun = table.begin_delegation(one.request(1, DelegationType::Read));
    assert_eq!(
        table.check_delegations(&file(1), None, TO_WRITE),
        Err(Status::Delay)
    );
    let key = begun.expect("begun").key;
    assert_eq!(table.end_delegation(key, Some(CHANGE)), None);
    assert_eq!(one.given_back(), 1);
    assert_eq!(table.check_delegations(&file(1), None, TO_WRITE), Ok(()));
}

/// The operation that a call makes behind CB_SEQUENCE, and the file that it names.
fn asked_for(call: &[u8]) -> (u32, Vec<u8>) {
    let mut r = Reader::new(call);
    r.opaque_fixed(15 * 4 + 16 + 5 * 4).expect("the head");
    let operation = r.u32().expect("an operation");
    let handle = match operation {
        3 => r.opaque(128).expect("a handle").to_vec(),
        _ => Vec::new(),
    };
    (operation, handle)
}

fn answered(answer: Reply<Option<WriterAttributes>>) -> Option<Option<WriterAttributes>> {
    use std::future::Future as _;
    use std::task::{Context, Poll, Waker};
    let mut answer = std::pin::pin!(answer);
    match answer
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(answer) => Some(answer.ok().flatten()),
        Poll::Pending => None,
    }
}

fn ask(table: &mut StateTable, holder: &TestClient) -> Reply<Option<WriterAttributes>> {
    match table.ask_attributes(&file(1), holder.id) {
        AskedAttributes::Asked { change, answer } => {
            assert_eq!(change, CHANGE);
            answer
        }
        AskedAttributes::NotDelegated => panic!("it is delegated"),
        AskedAttributes::Later => panic!("it is not being given back"),
    }
}

#[test]
fn who_writes_a_file_is_alone() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let two = TestClient::new(&mut table, b"two");
    let held = one.delegate_to_write(&mut table, 1).expect("delegated");
    assert!(two.delegate(&mut table, 1).is_none(), "one writes it");
    assert!(two.delegate_to_write(&mut table, 1).is_none());
    assert!(two.delegate(&mut table, 2).is_some());
    assert!(
        one.delegate_to_write(&mut table, 2).is_none(),
        "two reads it"
    );
    // The user that opened it to write may write, whatever the mode says; who reads is checked.
    let may = |table: &mut StateTable, access| {
        table.check_access(&held, &file(1), access, Some(one.id), 1)
    };
    assert_eq!(may(&mut table, 2), Ok(Some(1000)));
    assert_eq!(may(&mut table, 1), Ok(None));
    let own = table.check_delegations(&file(1), Some(one.id), TO_WRITE);
    assert_eq!((own, one.taken().len()), (Ok(()), 0));
    // An open to read is enough to have it recalled; until it is given back the client writes what it has.
    let read = |table: &mut StateTable| table.check_delegations(&file(1), Some(two.id), TO_READ);
    assert_eq!(read(&mut table), Err(Status::Delay));
    let calls = one.taken();
    assert_eq!(recalled(calls.first().expect("a call")), (1, held));
    assert_eq!(may(&mut table, 2), Ok(Some(1000)));
    let given_back = table.return_delegation(&held, &file(1), Some(one.id), 1);
    assert_eq!((given_back, read(&mut table)), (Ok(()), Ok(())));
    assert_eq!(may(&mut table, 2), Err(Status::BadStateId));
}

#[test]
fn a_file_that_is_locked_by_others_is_not_delegated_to_be_written() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let range = engine::ByteRange::new(0, 9).expect("a range");
    let shared = engine::LockMode::Shared;
    let process = engine::LockOwner::Nlm {
        host: 1,
        process: 1,
    };
    let locked = table.locks.lock(file(1).locked(), process, range, shared);
    assert_eq!(locked, Ok(()));
    assert!(one.delegate_to_write(&mut table, 1).is_none());
    assert!(one.delegate(&mut table, 1).is_some(), "all may read");
}

#[test]
fn a_client_tells_what_it_writes_and_gives_back_what_it_does_not_tell() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate_to_write(&mut table, 1).expect("delegated");
    let (first, second) = (ask(&mut table, &one), ask(&mut table, &one));
    let calls = one.taken();
    let call = calls.first().expect("a call");
    assert_eq!((calls.len(), asked_for(call)), (1, (3, file(1).encode())));
    // Times besides, by RFC 9754, are not asked for.
    one.tell(&mut table, call, &[3, 4, 84], &[CHANGE + 1, 5, 0]);
    let told = WriterAttributes {
        change: CHANGE + 1,
        size: 5,
    };
    for answer in [first, second] {
        assert_eq!(answered(answer), Some(Some(told)));
    }
    assert_eq!(table.test_state(&held, one.id), Status::Ok);
    // What does not say what was asked for.
    let answer = ask(&mut table, &one);
    let calls = one.taken();
    one.tell(&mut table, calls.first().expect("a call"), &[4], &[5]);
    assert_eq!(answered(answer), Some(None));
    let calls = one.taken();
    assert_eq!(recalled(calls.first().expect("a call")).1, held);
    let later = table.ask_attributes(&file(1), one.id);
    assert!(matches!(later, AskedAttributes::Later));
}

#[test]
fn a_client_that_is_silent_about_a_file_is_to_give_it_back_and_loses_it() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate_to_write(&mut table, 1).expect("delegated");
    let answer = ask(&mut table, &one);
    assert_eq!(one.taken().len(), 1);
    table.tick(3 * SECOND);
    assert_eq!(answered(answer), Some(None));
    // It is called at once, for it takes several calls, and a lease's time later it has lost the file.
    let calls = one.taken();
    assert_eq!(recalled(calls.first().expect("a call")).1, held);
    for second in 4..=LEASE / SECOND + 6 {
        table.renew_quietly(one.id);
        table.tick(second * SECOND);
    }
    assert_eq!(table.test_state(&held, one.id), Status::DelegationRevoked);
    let write = table.check_access(&held, &file(1), 2, Some(one.id), 1);
    assert_eq!(write, Err(Status::DelegationRevoked), "no second writer");
    assert!(!one.taken().is_empty() && table.asked.is_empty());
    // Nobody waits for a client that is gone.
    let two = TestClient::new(&mut table, b"two");
    assert!(two.delegate_to_write(&mut table, 2).is_some());
    table.tick(2 * LEASE);
    table.tick(4 * LEASE);
    let gone = table.ask_attributes(&file(2), two.id);
    assert!(matches!(gone, AskedAttributes::Later));
    assert_eq!(two.given_back(), 1);
}

#[test]
fn who_waits_for_a_file_is_told_when_it_was_given_back_or_takes_too_long() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let held = one.delegate_to_write(&mut table, 1).expect("delegated");
    assert!(table.wait_given_back(&file(1)).is_none(), "not called yet");
    table.recall_file(file(1).locked(), one.id, Recalled::ForChange);
    assert!(table.wait_given_back(&file(2)).is_none());
    let told = |wait: Reply<()>| {
        use std::future::Future as _;
        let mut wait = std::pin::pin!(wait);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match wait.as_mut().poll(&mut context) {
            std::task::Poll::Ready(told) => Some(told.is_ok()),
            std::task::Poll::Pending => None,
        }
    };
    let late = table.wait_given_back(&file(1)).expect("it is given back");
    table.tick(3 * SECOND);
    assert_eq!(told(late), Some(false));
    let waits: Vec<_> = (0..2 * WAITING_MAX)
        .filter_map(|_| table.wait_given_back(&file(1)))
        .collect();
    assert_eq!(waits.len(), WAITING_MAX);
    let given_back = table.return_delegation(&held, &file(1), Some(one.id), 1);
    assert_eq!(given_back, Ok(()));
    assert!(waits.into_iter().all(|wait| told(wait) == Some(true)));
    assert!(table.given_back.is_empty());
}

#[test]
fn answers_that_make_no_sense_are_harmless() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    assert!(one.delegate(&mut table, 1).is_some());
    table.recall_file(file(1).locked(), one.id, Recalled::ForChange);
    let call = one.taken().pop().expect("a call");
    let xid = Reader::new(&call).u32().expect("a call");
    let mut w = Writer::default();
    w.u32(xid)
        .u32(1)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(2)
        .u32(11)
        .u32(0);
    let connection = one.connection.as_ref().expect("connected");
    for cut in 0..w.len() {
        table.called_back(connection, w.as_bytes().get(..cut).expect("within"));
        table.tick(u64::try_from(cut).expect("small") * SECOND);
    }
    assert!(one.taken().len() > 1, "asked again");
}

#[test]
fn a_client_that_frees_nothing_is_given_no_more_than_it_may_have() {
    let mut table = table();
    let one = TestClient::new(&mut table, b"one");
    let mut given = 0;
    for object in 0..2 * super::CLIENT_DELEGATIONS_MAX as u64 {
        given += usize::from(one.delegate(&mut table, object).is_some());
        table.recall_file(file(object).locked(), one.id, Recalled::Replaced);
    }
    assert_eq!(given, super::CLIENT_DELEGATIONS_MAX);
    assert_eq!(table.states.len(), super::CLIENT_DELEGATIONS_MAX);
}
