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

impl TestClient {
    fn new(table: &mut StateTable, name: &[u8]) -> Self {
        let calls: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let sent = Arc::clone(&calls);
        let connection = ClientConnection::new(TransportSecurity::Plain, move |message| {
            sent.lock().expect("no panic").push(message);
            true
        });
        let principal = Principal(Some(0));
        let exchanged = table.exchange_id(name, [1; 8], principal, false);
        let id = exchanged.expect("a new client").client;
        let create = CreateSession {
            client: id,
            sequence: 1,
            flags: 2,
            fore: limits(),
            back: limits(),
            program: Some(CallbackProgram {
                number: 0x4000_0000,
                credential: CallbackCredential::None,
            }),
        };
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

    fn delegate(&self, table: &mut StateTable, object: u64) -> Option<StateId> {
        let given_back = Arc::clone(&self.given_back);
        let key = table.begin_delegation(DelegationRequest {
            client: self.id,
            file: file(object),
            minor: 1,
            give_back: GiveBack(Arc::new(move || {
                given_back.fetch_add(1, Ordering::Relaxed);
            })),
        })?;
        table.end_delegation(key, true)
    }

    fn taken(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.calls.lock().expect("no panic"))
    }

    fn answer(&self, table: &mut StateTable, call: &[u8], recall: u32) {
        let xid = Reader::new(call).u32().expect("a call");
        let mut w = crate::rpc::success(xid, 128);
        w.u32(recall).u32(0).u32(2).u32(11).u32(0);
        w.opaque_fixed(&self.session).u32(1).u32(0).u32(0).u32(0);
        w.u32(4).u32(recall);
        let connection = self.connection.as_ref().expect("connected");
        table.called_back(connection, w.as_bytes());
    }

    fn given_back(&self) -> usize {
        self.given_back.load(Ordering::Relaxed)
    }
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
    let own = table.check_delegations(&file(1), Some(two.id), ShareMode { access: 1, deny: 0 });
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
    table.tick(LEASE + SECOND);
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
fn a_client_that_is_gone_or_cannot_be_called_keeps_nothing() {
    let mut table = table();
    let mut one = TestClient::new(&mut table, b"one");
    assert!(one.delegate(&mut table, 1).is_some() && one.delegate(&mut table, 2).is_some());
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
    let given_back = Arc::clone(&one.given_back);
    let key = table.begin_delegation(DelegationRequest {
        client: one.id,
        file: file(1),
        minor: 1,
        give_back: GiveBack(Arc::new(move || {
            given_back.fetch_add(1, Ordering::Relaxed);
        })),
    });
    assert_eq!(
        table.check_delegations(&file(1), None, TO_WRITE),
        Err(Status::Delay)
    );
    assert_eq!(table.end_delegation(key.expect("begun"), true), None);
    assert_eq!(one.given_back(), 1);
    assert_eq!(table.check_delegations(&file(1), None, TO_WRITE), Ok(()));
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
