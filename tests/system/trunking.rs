//! A session of NFSv4.1 over several addresses of the server (RFC 8881, section 2.10.5): they are one server, clients learn of all of them, and
//! connections to each carry the requests and the calls of one session.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sim::nfs4::wire::{Body, Request, op, status};
use tests::free_port;

use crate::cli::Place;
use crate::delegated_writes::Delegated;
use crate::rpc;

const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn locations(client: &mut Delegated, path: &[&str]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let answer = client.ask(&Request::of_path(path).locations());
    match answer.body(op::GETATTR) {
        Some(Body::Locations { path, addresses }) => (path.clone(), addresses.clone()),
        other => panic!("{other:?} of {answer:?}"),
    }
}

#[test]
fn a_session_is_spread_over_the_addresses_of_the_server() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create -O mountpoint=/tank tank $PWD/a && zfs create tank/deep && \
         zfs set sharenfs=rw,no_root_squash,insecure tank",
    );
    assert_eq!(made, "");
    let port = free_port();
    let (first, second) = (Ipv4Addr::LOCALHOST.to_string(), SECOND.to_string());
    place.serve(&[
        "--nfs-port",
        &port.to_string(),
        "--listen",
        &first,
        "--listen",
        &second,
        "--no-portmap",
    ]);
    let mut one = Delegated::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let complete = one.ask(&Request::reclaim_complete());
    assert_eq!(complete.status, status::OK);

    // What the server says of where it is.
    let everywhere = [first.into_bytes(), second.into_bytes()];
    assert_eq!(locations(&mut one, &[]), (Vec::new(), everywhere.to_vec()));
    let deep = vec![b"tank".to_vec(), b"deep".to_vec()];
    assert_eq!(
        locations(&mut one, &["tank", "deep"]),
        (deep, everywhere.to_vec())
    );

    // By its other address it is the same server, which knows the client.
    let other = SocketAddr::from((IpAddr::V4(SECOND), port));
    let mut two = Delegated::unknown(other);
    let known = two.ask(&Request::exchange_id("delegated", 1));
    let Some(Body::Client { id, server, .. }) = known.body(op::EXCHANGE_ID) else {
        panic!("{known:?}");
    };
    assert_eq!((*id, server), (one.id, &one.server));

    // A second connection of the session, which carries requests, answers from the slots, and calls.
    let session = one.session.expect("a session");
    let bound = two.ask(&Request::bind(&session));
    assert_eq!(bound.status, status::OK);
    let (handle, delegation) = one.make(&["tank"], "f");
    std::mem::swap(&mut one.connection, &mut two.connection);
    let found = one.ask(&Request::of_path(&["tank", "f"]));
    assert_eq!(found.body(op::GETFH), Some(&Body::Handle(handle.clone())));
    // The connection that the session began by goes: it goes on by the other one.
    drop(two);
    let writer = std::thread::spawn(move || {
        let mut reader = rpc::Client::new(other);
        let root = reader.mount("/tank");
        let file = reader.lookup(&root, "f");
        reader.write(&file, 0, b"other", 2)
    });
    assert_eq!(
        one.called(1),
        [delegation],
        "the call comes by what is left"
    );
    let call = one.calls.remove(0);
    one.answer_call(&call);
    one.give_back(&handle, &delegation, b"mine");
    let _tried = writer.join().expect("a thread");
    let answer = one.ask(&Request::of(&handle).attributes());
    assert_eq!(answer.status, status::OK);
}
