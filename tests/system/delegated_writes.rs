//! Files that a client of NFSv4.1 has delegated to write, at the real server: others wait until it has given them back, and one call that it
//! does not answer holds back no other.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use sim::nfs4::wire::{
    Answer, Body, Callback, CallbackRequest, Claim, Request, SlotNumber, StateId, answer, callback,
    callback_answer, op, status,
};
use tests::free_port;

use crate::cli::Place;
use crate::rpc::{self, marked};

/// NFS3ERR_JUKEBOX: the client asks again.
const LATER: u32 = 10008;
const READ_AND_WRITE: u32 = 3;

/// A client with a session, which is called by its one connection.
pub(crate) struct Delegated {
    pub(crate) connection: rpc::Client,
    pub(crate) id: u64,
    pub(crate) session: Option<[u8; 16]>,
    /// What names the server.
    pub(crate) server: Vec<u8>,
    sequence: u32,
    xid: u32,
    /// Calls of the server that came while answers were waited for.
    pub(crate) calls: Vec<Callback>,
}

impl Delegated {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self::named(address, "delegated")
    }

    /// A connection of a client that the server has not met.
    pub(crate) fn unknown(address: SocketAddr) -> Self {
        Self {
            connection: rpc::Client::new(address),
            id: 0,
            session: None,
            server: Vec::new(),
            sequence: 0,
            xid: 7,
            calls: Vec::new(),
        }
    }

    fn named(address: SocketAddr, name: &str) -> Self {
        let mut client = Self::unknown(address);
        let answer = client.ask(&Request::exchange_id(name, 1));
        let Some(Body::Client {
            id,
            sequence,
            server,
        }) = answer.body(op::EXCHANGE_ID)
        else {
            panic!("{answer:?}");
        };
        (client.id, client.server) = (*id, server.clone());
        let answer = client.ask(&Request::create_session(*id, *sequence, 1, 4));
        let Some(Body::Session(session)) = answer.body(op::CREATE_SESSION) else {
            panic!("{answer:?}");
        };
        client.session = Some(*session);
        client
    }

    /// Receives a message: the answer to what was asked, or else a call.
    fn receive(&mut self) -> Option<Answer> {
        let message = self.connection.receive().expect("a message");
        match callback(&message) {
            Ok(call) => {
                self.calls.push(call);
                None
            }
            Err(_) => Some(answer(&message).expect("an answer")),
        }
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        self.xid += 1;
        self.sequence += u32::from(self.session.is_some());
        let slot = self.session.map(|session| SlotNumber {
            session,
            slot: 0,
            sequence: self.sequence,
        });
        let message = marked(&request.message(self.xid, slot, false));
        self.connection.stream.write_all(&message).expect("sent");
        loop {
            if let Some(answer) = self.receive() {
                return answer;
            }
        }
    }

    /// Asks until it is not to ask again.
    pub(crate) fn ask_until(&mut self, request: &Request) -> Answer {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.ask(request);
            let again = matches!(answer.status, status::DELAY | status::GRACE);
            if !again || Instant::now() > until {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a file and has it delegated to write; returns its handle and the delegation.
    pub(crate) fn make(&mut self, dir: &[&str], name: &str) -> (Vec<u8>, StateId) {
        let (name, create) = (name.to_owned(), true);
        let open = Request::of_path(dir).open(
            self.id,
            READ_AND_WRITE,
            0,
            &Claim::Name {
                name: name.clone(),
                create,
            },
        );
        let answer = self.ask_until(&open);
        let Some(Body::Open {
            delegation: Some((true, delegation)),
            ..
        }) = answer.body(op::OPEN)
        else {
            panic!("{answer:?}");
        };
        let path: Vec<&str> = dir.iter().copied().chain([name.as_str()]).collect();
        let found = self.ask(&Request::of_path(&path));
        let Some(Body::Handle(handle)) = found.body(op::GETFH) else {
            panic!("{found:?}");
        };
        (handle.clone(), *delegation)
    }

    /// Waits for calls until there are so many.
    pub(crate) fn called(&mut self, count: usize) -> Vec<StateId> {
        while self.calls.len() < count {
            assert!(self.receive().is_none(), "nothing was asked");
        }
        let recalled = self.calls.iter().map(|call| match call.asks {
            CallbackRequest::Recall(id) => id,
            CallbackRequest::Attributes(_) => panic!("it was asked for no attributes"),
        });
        recalled.collect()
    }

    pub(crate) fn answer_call(&mut self, call: &Callback) {
        let told = callback_answer(call, status::OK, status::OK, None);
        self.connection
            .stream
            .write_all(&marked(&told))
            .expect("sent");
    }

    /// Writes what it has in its cache, and gives the file back.
    pub(crate) fn give_back(&mut self, handle: &[u8], delegation: &StateId, cached: &[u8]) {
        let write = Request::of(handle)
            .write(delegation, 0, true, cached)
            .give_back(delegation);
        assert_eq!(self.ask(&write).status, status::OK);
    }
}

fn served() -> (Place, SocketAddr) {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M a && zpool create -O mountpoint=/tank tank $PWD/a && zfs set sharenfs=rw,no_root_squash,insecure tank");
    assert_eq!(made, "");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    serve(&mut place, address);
    (place, address)
}

fn serve(place: &mut Place, address: SocketAddr) {
    let port = address.port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
}

/// Writes by NFSv3 in another thread until it is not to ask again; returns how often it was.
fn write_elsewhere(address: SocketAddr, file: &[u8]) -> std::thread::JoinHandle<(u32, usize)> {
    let file = file.to_vec();
    std::thread::spawn(move || {
        let mut other = rpc::Client::new(address);
        let mut again = 0;
        loop {
            match other.write(&file, 0, b"other", 2) {
                LATER if again < 600 => again += 1,
                status => return (status, again),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    })
}

#[test]
fn others_wait_for_what_a_client_writes_in_its_cache() {
    let (place, address) = served();
    let mut one = Delegated::new(address);
    let complete = one.ask(&Request::reclaim_complete());
    assert_eq!(complete.status, status::OK);
    let files: Vec<_> = ["f", "g"].map(|name| one.make(&["tank"], name)).to_vec();
    let mut reader = rpc::Client::new(address);
    let root = reader.mount("/tank");
    let others: Vec<_> = ["f", "g"].map(|name| reader.lookup(&root, name)).to_vec();
    let writers: Vec<_> = others
        .iter()
        .map(|file| write_elsewhere(address, file))
        .collect();
    // Both are asked for though neither call is answered.
    let mut recalled = one.called(2);
    let mut held: Vec<StateId> = files.iter().map(|(_, id)| *id).collect();
    recalled.sort_by_key(|id| id.other);
    held.sort_by_key(|id| id.other);
    assert_eq!(recalled, held);
    let slots: Vec<u32> = one.calls.iter().map(|call| call.slot).collect();
    assert!(slots == [0, 1] || slots == [1, 0], "{slots:?}");
    for call in std::mem::take(&mut one.calls) {
        one.answer_call(&call);
    }
    for (handle, delegation) in &files {
        one.give_back(handle, delegation, b"cached and more");
    }
    for writer in writers {
        assert_eq!(writer.join().expect("no panic").0, 0);
    }
    for file in &others {
        assert_eq!(
            reader.read(file, 0, 100).as_deref(),
            Ok(&b"otherd and more"[..])
        );
    }
    drop(place);
}

#[test]
fn after_a_restart_others_wait_for_what_may_be_reclaimed() {
    let (mut place, address) = served();
    let mut one = Delegated::new(address);
    let mut two = Delegated::named(address, "another");
    for client in [&mut one, &mut two] {
        let complete = client.ask(&Request::reclaim_complete());
        assert_eq!(complete.status, status::OK);
    }
    let (handle, _) = one.make(&["tank"], "f");
    let mut reader = rpc::Client::new(address);
    let root = reader.mount("/tank");
    let other = reader.lookup(&root, "f");
    place.kill();
    serve(&mut place, address);
    let writer = write_elsewhere(address, &other);
    let mut one = Delegated::new(address);
    let mut two = Delegated::named(address, "another");
    let complete = two.ask(&Request::reclaim_complete());
    assert_eq!(complete.status, status::OK);
    let gone = two.ask(&Request::of_path(&["tank"]).remove("f"));
    assert_eq!(gone.status, status::GRACE);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!writer.is_finished());
    let reclaim = Claim::Previous(2);
    let answer = one.ask(&Request::of(&handle).open(one.id, READ_AND_WRITE, 0, &reclaim));
    let Some(Body::Open {
        delegation: Some((true, delegation)),
        ..
    }) = answer.body(op::OPEN)
    else {
        panic!("{answer:?}");
    };
    // It was asked for, and is given back in time.
    assert_eq!(one.called(1), [*delegation]);
    let call = one.calls.remove(0);
    one.answer_call(&call);
    one.give_back(&handle, delegation, b"cached and more");
    std::thread::sleep(Duration::from_secs(1));
    assert!(!writer.is_finished(), "there may be others");
    let complete = one.ask(&Request::reclaim_complete());
    assert_eq!(complete.status, status::OK);
    let (written, again) = writer.join().expect("no panic");
    assert!(written == 0 && again > 10, "{written} after {again}");
    let mut reader = rpc::Client::new(address);
    assert_eq!(
        reader.read(&other, 0, 100).as_deref(),
        Ok(&b"otherd and more"[..])
    );
    drop(place);
}
