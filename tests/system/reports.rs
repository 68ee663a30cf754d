//! Who is told, beside those whom the unit tests have: a receiver of SNMP traps that others wrote, a mail server that gets the report of the week.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tests::{free_port, skip};

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
        return skip("snmptrapd", "it is not there (Debian: snmptrapd)");
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

/// A mail server that takes one letter, and gives back what came.
fn mail_server() -> (u16, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut lines = BufReader::new(stream.try_clone().expect("a handle"));
        let mut said = String::new();
        let mut stream = stream;
        stream.write_all(b"220 ready\r\n").expect("sent");
        let mut in_data = false;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).expect("read") == 0 {
                return said;
            }
            let answer = match (in_data, line.trim_end()) {
                (true, ".") => {
                    in_data = false;
                    "250 taken\r\n"
                }
                (true, _) => {
                    said.push_str(&line);
                    continue;
                }
                (_, "DATA") => {
                    in_data = true;
                    "354 go on\r\n"
                }
                (_, "QUIT") => "221 bye\r\n",
                _ => "250 fine\r\n",
            };
            stream.write_all(answer.as_bytes()).expect("sent");
        }
    });
    (port, serving)
}

#[test]
fn the_week_is_told_in_words_and_by_mail_with_a_picture() {
    let mut place = daemon();
    let none = place.run("sanbox report schedule && sanbox report schedule weekly");
    assert_eq!(
        none,
        "off\n! cannot set the schedule: no mail is set up: 'sanbox alert channel add mail' does\n[1]\n"
    );
    // The history has its first points some seconds after the start.
    let told = wait_for("the pool in the report", || {
        sleep(Duration::from_millis(300));
        let told = place.run("sanbox report --daily");
        if told.contains("  tank: ") {
            Ok(told)
        } else {
            Err(told)
        }
    });
    assert!(told.contains("written: "), "{told}");
    let written = place.run(
        "sanbox report --to r.html && sanbox report --to r.svg && sanbox report --monthly --to r.txt && head -c 5 r.svg && grep -c '<svg' r.html && \
         grep -c 'tank: ' r.txt",
    );
    assert_eq!(written, "<svg 1\n1\n");
    let misuse = place.run("sanbox report --daily --monthly");
    assert!(misuse.contains("one of --daily"), "{misuse}");

    let (port, mail) = mail_server();
    let sent = place.run(&format!(
        "sanbox alert channel add mail ann@example.com --server 127.0.0.1:{port} --from box@example.com --tls none --severity critical && \
         sanbox report schedule weekly && sanbox report schedule && sanbox report --mail"
    ));
    assert_eq!(sent, "weekly\nsent to ann@example.com\n");
    let letter = mail.join().expect("a letter");
    std::fs::write(place.path("work/letter"), letter).expect("written");
    // Python's parser of mail is the judge.
    let judged = place.run(
        "python3 -c 'import email,sys\nm=email.message_from_file(open(\"letter\",newline=\"\"))\n\
         print(m[\"Subject\"].split(\":\")[1].split(\" to \")[0])\n\
         for p in m.get_payload(): print(p.get_content_type(), p.get_filename(), b\"tank\" in p.get_payload(decode=True))\n\
         import xml.etree.ElementTree as x; print(x.fromstring(m.get_payload()[1].get_payload(decode=True)).tag)'",
    );
    assert_eq!(
        judged,
        " report\ntext/plain None True\nimage/svg+xml report.svg True\n{http://www.w3.org/2000/svg}svg\n"
    );
    let kept = place.run(
        "grep -A1 'alerts.report' $SANBOX_STATE/sanbox.toml && sanbox report schedule off && \
         sanbox report schedule",
    );
    assert_eq!(kept, "[alerts.report]\nevery = \"weekly\"\noff\n");
    place.stop();
}
