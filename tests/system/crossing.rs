//! A client that mounts a share finds the shares below it: by name, in listings, with their own file system ids and
//! access lists, whether or not the share above has a directory of that name.

use std::net::SocketAddr;

use tests::free_port;

use crate::cli::Place;
use crate::rpc::{Client, LOOKUP, NFS, READDIRPLUS, Xdr};

#[test]
fn shares_below_a_share() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create -O mountpoint=/tank -O sharenfs=rw,no_root_squash tank $PWD/a && \
         zfs create tank/one && zfs create tank/two && zfs create -o sharenfs=ro=10.9.9.9 tank/closed && \
         zfs create tank/one/deep && sanbox mkdir tank:/one && sanbox mkdir tank:/plain && \
         echo inside > f && sanbox put f tank/one:/f && sanbox put f tank/two:/f",
    );
    assert_eq!(made, "");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let port = address.port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
    let mut client = Client::new(address);
    let root = client.mount("/tank");
    let lookup = |client: &mut Client, dir: &[u8], name: &str| {
        let arguments = Xdr::default().opaque(dir).opaque(name.as_bytes());
        let answer = client.call(NFS, LOOKUP, &arguments);
        (answer.word(0) == 0).then(|| answer.bytes()[8..8 + answer.word(1) as usize].to_vec())
    };
    let above = client.fsid(&root);
    for name in ["one", "two"] {
        let dir = lookup(&mut client, &root, name).expect("a share below");
        assert_eq!(dir, client.mount(&format!("/tank/{name}")));
        assert_ne!(client.fsid(&dir), above, "{name}");
        let file = lookup(&mut client, &dir, "f").expect("its file");
        assert_eq!(client.read(&file, 0, 100), Ok(b"inside\n".to_vec()));
        // Names lead down from a share's root only.
        assert_eq!(lookup(&mut client, &dir, "two"), None);
    }
    let one = lookup(&mut client, &root, "one").expect("a share below");
    assert!(lookup(&mut client, &one, "deep").is_some());
    let plain = lookup(&mut client, &root, "plain").expect("a directory");
    assert_eq!(client.fsid(&plain), above);
    assert_eq!(lookup(&mut client, &plain, "one"), None);
    // Whose list the client is not on, is not there.
    assert_eq!(lookup(&mut client, &root, "closed"), None);

    for room in [32_768, 420] {
        let (mut names, mut cookie, mut end) = (Vec::new(), 0, false);
        while !end {
            let arguments = Xdr::default().opaque(&root).hyper(cookie).hyper(0);
            let answer = client.call(NFS, READDIRPLUS, &arguments.words(&[room, room]));
            assert_eq!(answer.word(0), 0);
            // Status, attributes of the directory, verifier.
            let mut at = 1 + 22 + 2;
            while answer.word(at) == 1 {
                let length = answer.word(at + 3) as usize;
                let begin = (at + 4) * 4;
                let name = String::from_utf8_lossy(&answer.bytes()[begin..begin + length]);
                at += 4 + length.div_ceil(4);
                cookie = u64::from(answer.word(at)) << 32 | u64::from(answer.word(at + 1));
                assert_eq!(answer.word(at + 2), 1, "attributes of {name}");
                // RFC 1813, fattr3: the file system is behind eleven words.
                let fsid = u64::from(answer.word(at + 14)) << 32 | u64::from(answer.word(at + 15));
                let here = fsid == above;
                let below = ["one", "two"].contains(&&*name);
                assert_eq!(here, !below, "file system of {name}");
                names.push(name.into_owned());
                at += 2 + 22 + 1 + 1 + 7;
            }
            end = answer.word(at + 1) == 1;
        }
        names.sort();
        assert_eq!(names, [".", "..", "one", "plain", "two"], "room {room}");
    }
    place.stop();
}
