//! Who is told, beside those whom the unit tests have: a receiver of SNMP traps that others wrote.

use std::path::Path;
use std::process::{Command, Stdio};

use tests::free_port;

use crate::cli::{Place, wait_for};

const SNMPTRAPD: &str = "/usr/sbin/snmptrapd";

fn daemon() -> Place {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/fs");
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--https-port", "0"]);
    place
}

/// Net-SNMP's receiver understands the traps of an alert that is tried, opened and over.
#[test]
fn traps_are_what_a_receiver_of_snmp_understands() {
    if !Path::new(SNMPTRAPD).exists() {
        eprintln!("SKIPPED: {SNMPTRAPD} is not there (Debian: snmptrapd)");
        return;
    }
    let mut place = daemon();
    let port = free_port();
    let log = place.path("traps");
    let file = std::fs::File::create(&log).expect("a file");
    // Without MIBs names are numbers; the others are told as they are.
    let mut receiver = Command::new(SNMPTRAPD)
        .args([
            "-f",
            "-Lo",
            "-On",
            "-m",
            "",
            "-C",
            "--disableAuthorization=yes",
        ])
        .arg(format!("udp:127.0.0.1:{port}"))
        .env("SNMP_PERSISTENT_DIR", place.path("snmp"))
        .stdout(Stdio::from(file))
        .stderr(Stdio::null())
        .spawn()
        .expect("begins");
    let traps = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_for("the receiver", || {
        traps()
            .contains("NET-SNMP version")
            .then_some(())
            .ok_or_else(traps)
    });
    let added = place.run(&format!(
        "sanbox alert channel add snmp 127.0.0.1:{port} --community storage && sanbox alert channel list -H && \
         sanbox alert test 'snmp 127.0.0.1:{port}' >/dev/null"
    ));
    assert_eq!(added, format!("snmp 127.0.0.1:{port}\tinfo\n"));
    let row = ".1.3.6.1.2.1.192.1.2.1";
    let wait_trap = |event: &str| {
        wait_for(event, || {
            let traps = traps();
            let found = traps
                .lines()
                .find(|line| line.contains(&format!("\"{event}\"")));
            found.map(str::to_owned).ok_or(traps)
        })
    };
    let test = wait_trap("test");
    for said in [
        ".1.3.6.1.6.3.1.1.4.1.0 = OID: .1.3.6.1.2.1.192.0.1",
        &format!("{row}.2.1 = INTEGER: 3"),
        &format!("{row}.3.1 = INTEGER: 5"),
        &format!("{row}.4.1 = Gauge32: 1"),
        &format!("{row}.7.1 = STRING: \"sanbox\""),
        &format!("{row}.10.1 = Gauge32: 0"),
        "Nothing has happened.",
    ] {
        assert!(test.contains(said), "{said}: {test}");
    }
    // A pool that loses its device, and has it again.
    let offline = place.run("truncate -s 256M b && zpool attach tank $PWD/a $PWD/b && zpool wait -t resilver tank && zpool offline tank $PWD/b");
    assert_eq!(offline, "");
    let opened = wait_trap("alert");
    assert!(
        opened.contains(&format!("{row}.3.2 = INTEGER: 4")),
        "{opened}"
    );
    assert!(opened.contains("tank"), "{opened}");
    assert_eq!(place.run("zpool online tank $PWD/b"), "");
    let over = wait_trap("cleared");
    assert!(over.contains("Over:"), "{over}");
    receiver.kill().expect("ends");
    receiver.wait().expect("ended");
    place.stop();
}
