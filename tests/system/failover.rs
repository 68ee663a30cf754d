//! Goal: clients go on with a copy in the place of its source, by the NFS handles and SCSI identifiers that they have. Method: libnfs holds a file
//! open meanwhile, and libiscsi asks a unit what it is before and after; zdb judges the pools.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tests::{free_port, skip};

use crate::cli::Place;
use crate::rpc::Client;

const IQN: &str = "iqn.2026-11.org.sanbox:failover";

#[track_caller]
fn check(place: &Place, line: &str, expected: &str) {
    assert_eq!(place.run(line), expected, "{line}");
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A file that libnfs holds open.
struct HeldFile {
    client: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl HeldFile {
    /// `None` where libnfs is not installed.
    fn open(port: u16, share: &str, file: &str) -> Option<Self> {
        let script = tests::root().join("tests/system/held_file.py");
        let loads = Command::new("python3")
            .args(["-c", "import ctypes; ctypes.CDLL('libnfs.so.13')"])
            .stderr(Stdio::null())
            .status();
        if !loads.is_ok_and(|status| status.success()) {
            skip("a file held by libnfs", "libnfs is not installed");
            return None;
        }
        let url = format!("nfs://127.0.0.1{share}?nfsport={port}&mountport={port}&version=3");
        let mut client = Command::new("python3")
            .arg(script)
            .args([&url, file])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let input = client.stdin.take().expect("its input");
        let output = BufReader::new(client.stdout.take().expect("its output"));
        let mut held = Self {
            client,
            input,
            output,
        };
        assert_eq!(held.line(), "open\n");
        Some(held)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line
    }

    /// Returns what the file holds by the handle that libnfs has, and writes " and on" behind it.
    fn go_on(mut self) -> String {
        self.input.write_all(b"\n").expect("it reads");
        let line = self.line();
        assert!(self.client.wait().expect("its end").success());
        line
    }
}

/// What a unit says of itself: standard data, serial number and identifiers.
fn inquiry(place: &Place, port: u16, lun: u16) -> Option<String> {
    if Command::new("iscsi-inq").arg("--help").output().is_err() {
        skip("a unit's identifiers", "iscsi-inq is not installed");
        return None;
    }
    let url = format!("iscsi://127.0.0.1:{port}/{IQN}/{lun}");
    let pages = ["", "-e 1 -c 0x80", "-e 1 -c 0x83"];
    Some(
        pages
            .map(|page| place.run(&format!("iscsi-inq {page} {url}")))
            .join(""),
    )
}

#[test]
fn clients_of_a_source_go_on_with_its_copy() {
    let mut place = Place::new();
    check(
        &place,
        &format!(
            "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create -p tank/vm/one && \
             zfs create -V 8M -s tank/vm/disk && zfs set sharenfs=rw,no_root_squash tank/vm/one && \
             printf 'as it was' > f && sanbox put f tank/vm/one:/f && sanbox target create {IQN} && \
             sanbox target map {IQN} tank/vm/disk && zfs snapshot -r tank/vm@s1"
        ),
        "",
    );
    let (nfs, iscsi) = (free_port(), free_port());
    place.serve(&[
        "--nfs-port",
        &nfs.to_string(),
        "--https-port",
        "0",
        "--no-portmap",
        "--listen",
        "127.0.0.1",
        "--iscsi-port",
        &iscsi.to_string(),
    ]);
    check(
        &place,
        "sanbox replication create vm --from tank/vm --to back/vm -r && sanbox replication pause vm",
        "",
    );
    place.run("sanbox replication run vm");
    let held = HeldFile::open(nfs, "/tank/vm/one", "/f");
    let root = Client::new(address(nfs)).mount("/tank/vm/one");
    let file = Client::new(address(nfs)).lookup(&root, "f");
    let before = inquiry(&place, iscsi, 0);
    // The copy is mapped, too, and shown to none.
    check(
        &place,
        &format!(
            "zfs get -Ho value,source org.sanbox:lun back/vm/disk && zfs set org.sanbox:lun={IQN}/5 back/vm/disk"
        ),
        &format!("{IQN}/0\treceived\n"),
    );
    if let Some(hidden) = inquiry(&place, iscsi, 5) {
        assert!(!hidden.contains("SANBOX"), "{hidden}");
    }
    check(&place, "zfs inherit -S org.sanbox:lun back/vm/disk", "");

    // The source's pool is gone.
    check(&place, "zpool export tank", "");
    let stale = Client::new(address(nfs)).read(&file, 0, 100);
    assert_eq!(stale, Err(70), "NFS3ERR_STALE");
    let turned = place.run("sanbox replication failover vm");
    assert_eq!(turned.matches(" is writable\n").count(), 3, "{turned}");
    let read = Client::new(address(nfs)).read(&file, 0, 100);
    assert_eq!(read.as_deref(), Ok(&b"as it was"[..]));
    if let Some(held) = held {
        assert_eq!(held.go_on(), "as it was\n");
        check(&place, "sanbox cat back/vm/one:/f", "as it was and on\n");
    }
    assert_eq!(inquiry(&place, iscsi, 0), before);
    let guid = "zfs get -Hpo value guid";
    check(
        &place,
        "zfs get -Ho source org.sanbox:identity back/vm back/vm/one back/vm/disk",
        "local\nlocal\nlocal\n",
    );

    // The source is back: its handles are its own again, and those of the copy are its own.
    let identity = place.run("zfs get -Ho value org.sanbox:identity back/vm/one");
    check(&place, "zpool import -d $PWD tank", "");
    check(&place, &format!("{guid} tank/vm/one"), &identity);
    let read = Client::new(address(nfs)).read(&file, 0, 100);
    assert_eq!(read.as_deref(), Ok(&b"as it was"[..]));
    let own = Client::new(address(nfs)).mount("/back/vm/one");
    assert_ne!(own, root);
    let refused = place.run("sanbox replication run vm");
    assert!(
        refused.contains("sanbox replication failback vm"),
        "{refused}"
    );

    // Turned back: the copy acts as itself, and waits.
    check(&place, "seq 9 > g && sanbox put g back/vm/one:/g", "");
    let sent = place.run("sanbox replication failback vm --rollback");
    assert!(sent.contains("sent tank/vm/one@replica-vm-"), "{sent}");
    check(
        &place,
        "zfs get -Ho value org.sanbox:identity back/vm back/vm/one back/vm/disk && sanbox cat tank/vm/one:/g | tail -n 1",
        "-\n-\n-\n9\n",
    );
    assert_eq!(inquiry(&place, iscsi, 0), before);
    let read = Client::new(address(nfs)).read(&file, 0, 9);
    assert_eq!(read.as_deref(), Ok(&b"as it was"[..]));
    place.stop();
    check(&place, "zpool export tank && zpool export back", "");
    if oracle::has_zdb() {
        for pool in ["tank", "back"] {
            oracle::zdb_clean(&place.path("work"), pool).expect("zdb finds nothing");
        }
    }
}
