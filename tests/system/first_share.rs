//! Who may write to a new share: the commands that the console's dialog gives, and clients of libnfs that write as users with numbers.

use tests::{free_port, skip};

use crate::cli::Place;

/// Whether a client that is this user and group makes a file in a share.
fn writes(place: &Place, port: u16, share: &str, user: u32) -> bool {
    let url = format!(
        "nfs://127.0.0.1/tank/{share}/by-{user}?nfsport={port}&mountport={port}&version=3&uid={user}&gid={user}"
    );
    let said = place.run(&format!("nfs-cp sent '{url}' >/dev/null 2>&1"));
    assert!(said.is_empty() || said.starts_with('['), "{said}");
    said.is_empty()
}

#[test]
fn a_new_share_is_written_to_by_those_who_were_chosen() {
    let mut place = Place::new();
    if !place.run("command -v nfs-cp >/dev/null").is_empty() {
        skip("writing to a new share", "libnfs-utils is not installed");
        return;
    }
    let made = place.run("truncate -s 128M a && zpool create tank $PWD/a && echo sent > sent");
    assert_eq!(made, "");
    let port = free_port();
    let ports = ["--nfs-port", &port.to_string(), "--https-port", "0"].map(str::to_owned);
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let others = [
        "--listen",
        "127.0.0.1",
        "--no-portmap",
        "--iscsi-port",
        "0",
        "--metrics-port",
        "0",
    ];
    place.serve(&[&ports[..], &others].concat());
    for (share, command, writers) in [
        // Root of the clients is nobody, and nobody else owns the directory.
        ("alone", "true", [false, false, false]),
        ("all", "sanbox acl mode tank/all:/ 777", [true, true, true]),
        (
            "one",
            "sanbox acl owner tank/one:/ 1000:1000",
            [false, true, false],
        ),
    ] {
        let create = format!("zfs create -o sharenfs=rw tank/{share} && {command}");
        assert_eq!(place.run(&create), "");
        let found = [0, 1000, 1001].map(|user| writes(&place, port, share, user));
        assert_eq!(found, writers, "{share}");
    }
    place.stop();
}
