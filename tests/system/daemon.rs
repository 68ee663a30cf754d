//! The daemon as a process: readiness, one per state directory, killed and restarted, and bad
//! clients on its sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use tests::free_port;

use crate::cli::Place;

fn pool(place: &Place) {
    let made = place.run(
        "truncate -s 128M a b && zpool create tank mirror $PWD/a $PWD/b && zfs create -o sharenfs=on tank/fs",
    );
    assert_eq!(made, "");
}

/// What was acknowledged is there after `kill -9`, and the pool is whole for OpenZFS.
#[test]
fn a_killed_daemon_loses_nothing_acknowledged() {
    let mut place = Place::new();
    pool(&place);
    for round in 0..3 {
        place.serve(&["--nfs-port", "0"]);
        assert_eq!(
            place.run(&format!(
                "head -c 300000 /dev/urandom > f{round}; sanbox put f{round} tank/fs:/"
            )),
            ""
        );
        place.kill();
        for earlier in 0..=round {
            let same = place.run(&format!(
                "sanbox cat tank/fs:/f{earlier} | cmp - f{earlier}"
            ));
            assert_eq!(same, "", "round {round}, file {earlier}");
        }
    }
    assert_eq!(place.run("zpool export tank"), "");
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}

#[test]
fn one_daemon_per_state_directory() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let refused = place.run("sanbox serve --nfs-port 0");
    assert!(refused.contains("is in use by process"), "{refused}");
    assert!(refused.ends_with("[1]\n"), "{refused}");
    place.stop();
}

#[test]
fn mistakes_in_the_configuration_are_named() {
    let place = Place::new();
    let refused = place.run(
        "mkdir -p $SANBOX_STATE; echo 'nfs.prot = 3' > $SANBOX_STATE/sanbox.toml; sanbox serve",
    );
    assert!(refused.contains("prot"), "{refused}");
    let refused = place.run("rm $SANBOX_STATE/sanbox.toml; sanbox serve --nfs-port many");
    assert!(refused.contains("not a port"), "{refused}");
}

#[test]
fn the_service_manager_is_told() {
    let mut place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(120)))
        .expect("a time limit");
    let said = || {
        let mut buffer = [0; 100];
        let len = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    // The daemon's directory is beside it.
    place.set("NOTIFY_SOCKET", "../notify");
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(said(), "READY=1");
    place.stop();
    assert_eq!(said(), "STOPPING=1");
    assert!(
        place.log().contains("INFO sanbox: ended"),
        "{}",
        place.log()
    );
}

/// Idle, half-open and nonsensical connections neither stop the daemon nor cost it memory.
#[test]
fn bad_clients_do_no_harm() {
    let mut place = Place::new();
    pool(&place);
    let port = free_port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
    let address = format!("127.0.0.1:{port}");
    let connect = || TcpStream::connect(&address).expect("a connection");
    let idle: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    let half: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect();
            // A record of 1 MiB of which nothing comes.
            stream
                .write_all(&[0x80, 0x10, 0, 0, 1, 2, 3])
                .expect("sent");
            stream
        })
        .collect();
    for bytes in [
        &[0xff; 64][..],
        // A record longer than any call.
        &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        // Fragments without end.
        &[0; 4000],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let mut stream = connect();
        let _ = stream.write_all(bytes);
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a time limit");
        let mut answer = Vec::new();
        // Closed, or silent; never an answer that makes sense of it.
        let _ = stream.read_to_end(&mut answer);
    }
    // NFS NULL still answers: xid 7, call, RPC 2, program 100003, version 3, procedure 0, no auth.
    let mut stream = connect();
    let words: [u32; 11] = [0x8000_0028, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    stream.write_all(&call).expect("sent");
    let mut answer = [0; 28];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..12], [0x80, 0, 0, 24, 0, 0, 0, 7, 0, 0, 0, 1]);
    // And the control socket survives nonsense.
    for bytes in [&b"R\0\0\0\x05hello"[..], b"Z\xff\xff\xff\xff", b""] {
        let mut stream = UnixStream::connect(place.path("state/control.sock")).expect("connects");
        stream.write_all(bytes).expect("sent");
    }
    assert_eq!(place.run("zfs list -H -o name"), "tank\ntank/fs\n");
    drop((idle, half));
    place.stop();
}
