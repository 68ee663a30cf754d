//! Goal: clients go on with a copy in the place of its source, by the NFS handles and SCSI identifiers that they have. Method: libnfs holds a file
//! open meanwhile, and libiscsi asks a unit what it is before and after; zdb judges the pools.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tests::{free_port, skip};

use crate::cli::{Place, wait_for};
use crate::rpc::Client;

const IQN: &str = "iqn.2026-11.org.sanbox:failover";

#[track_caller]
fn check(place: &Place, line: &str, expected: &str) {
    let said = place.run(line);
    assert_eq!(said, expected, "{line}\n{}", place.log());
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Whether a source is fenced, and read-only.
const IS_FENCED: &str = "zfs get -Ho value org.sanbox:fenced,readonly tank/vm/one";
/// The same of its copy.
const IS_COPY_FENCED: &str = "zfs get -Ho value org.sanbox:fenced,readonly back/vm/one";

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
    serve(&mut place, nfs, iscsi, free_port());
    check(
        &place,
        "sanbox replication create vm --from tank/vm --to back/vm -r && sanbox replication pause vm",
        "",
    );
    place.run("sanbox replication run vm");
    let held = HeldFile::open(nfs, "/tank/vm/one", "/f");
    let root = Client::new(address(nfs)).mount("/tank/vm/one");
    let file = Client::new(address(nfs)).lookup(&root, "f");
    // Where the file lies, as both versions of NFS tell it.
    let lies_in = |file: &[u8]| {
        let mut client = Client::new(address(nfs));
        (client.fsid(file), client.fsid4(file))
    };
    let file_system = lies_in(&file);
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
    assert_eq!(lies_in(&file), file_system);
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

    // The source is back: it is fenced, and the copy goes on in its place.
    let identity = place.run("zfs get -Ho value org.sanbox:identity back/vm/one");
    check(&place, "zpool import -d $PWD tank", "");
    check(&place, &format!("{guid} tank/vm/one"), &identity);
    check(&place, IS_FENCED, "1:vm\non\n");
    let read = Client::new(address(nfs)).read(&file, 0, 9);
    assert_eq!(read.as_deref(), Ok(&b"as it was"[..]));
    let own = Client::new(address(nfs)).mount("/back/vm/one");
    assert_eq!(own, root);
    assert_eq!(inquiry(&place, iscsi, 0), before);
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
    assert_eq!(lies_in(&file), file_system);
    place.stop();
    check(&place, "zpool export tank && zpool export back", "");
    if oracle::has_zdb() {
        for pool in ["tank", "back"] {
            oracle::zdb_clean(&place.path("work"), pool).expect("zdb finds nothing");
        }
    }
}

/// What `-n` of each command that turns a job round says, and that nothing is changed by it.
#[test]
fn what_turning_a_job_round_would_do_is_said_before() {
    let place = Place::new();
    check(
        &place,
        "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create -p tank/vm/one && \
         printf 'as it was' > f && sanbox put f tank/vm/one:/f && zfs snapshot -r tank/vm@s1 && \
         sanbox replication create vm --from tank/vm --to back/vm -r --take && sanbox replication run vm",
        "sent back/vm@s1\nsent back/vm/one@s1\n",
    );
    let both = "zfs get -r -Ho name,value -s local readonly,org.sanbox:identity,org.sanbox:fenced tank back; zfs list -Ho name -r -t all tank back";
    let before = place.run(both);
    check(
        &place,
        "sanbox replication failover vm -n",
        "tank/vm to back/vm: has all there is\n\
         tank/vm/one to back/vm/one: has all there is\n\
         tank/vm would be read-only, and neither shared nor mapped\n\
         tank/vm/one would be read-only, and neither shared nor mapped\n\
         back/vm would be writable, and act in place of its source\n\
         back/vm/one would be writable, and act in place of its source\n",
    );
    check(
        &place,
        "sanbox replication test vm -n",
        "back/vm-test would be made, a writable clone of back/vm@s1\n\
         back/vm-test/one would be made, a writable clone of back/vm/one@s1\n",
    );
    let refused = place.run("sanbox replication failback vm -n");
    assert!(refused.contains("is not turned round"), "{refused}");
    // A command that cannot say what it would do does not do it either.
    let refused = place.run("sanbox replication pause vm -n");
    assert!(refused.contains("'pause' takes no -n"), "{refused}");
    assert_eq!(place.run(both), before);

    place.run("sanbox replication failover vm");
    check(
        &place,
        "sanbox put f back/vm/one:/g && zfs snapshot back/vm/one@there",
        "",
    );
    let foretold = place.run("sanbox replication failback vm -n");
    assert!(
        foretold.contains("back/vm/one to tank/vm/one: what came after @s1 would be sent: 1 snapshots, and 0B written since\n")
            && foretold.ends_with("\ntank/vm/one would be writable, and back/vm/one its read-only copy\n"),
        "{foretold}"
    );
    // Written to by hand, as if it had not been told in time.
    check(
        &place,
        "zfs set readonly=off tank/vm/one && sanbox put f tank/vm/one:/late && zfs snapshot tank/vm/one@late",
        "",
    );
    let before = place.run(both);
    let refused = place.run("sanbox replication failback vm -n");
    assert!(
        refused.contains("would be refused: 'tank/vm/one' went its own way after @s1")
            && refused.contains("'sanbox replication failback --rollback' gives that up"),
        "{refused}"
    );
    let foretold = place.run("sanbox replication failback vm -n --rollback");
    assert!(
        foretold.contains("tank/vm/one would go back to @s1, and lose @late\n"),
        "{foretold}"
    );
    check(
        &place,
        "sanbox replication takeover tank/vm -n",
        "tank/vm would be writable, and its copy would be fenced\n\
         tank/vm/one would be writable, and its copy would be fenced\n",
    );
    assert_eq!(place.run(both), before);
}

/// What the source had of `readonly` by itself is there again after each way back, and a copy has it in its place.
#[test]
fn a_source_that_is_read_only_by_itself_stays_so() {
    let place = Place::new();
    check(
        &place,
        "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create -p tank/vm/one && \
         zfs create tank/vm/two && zfs set readonly=on tank/vm/one && zfs snapshot -r tank/vm@s1 && \
         sanbox replication create vm --from tank/vm --to back/vm -r --take && sanbox replication run vm",
        "sent back/vm@s1\nsent back/vm/one@s1\nsent back/vm/two@s1\n",
    );
    let at_source = "zfs get -Ho value,source readonly,org.sanbox:readonly tank/vm/one tank/vm/two";
    let as_it_was = "on\tlocal\n-\t-\noff\tdefault\n-\t-\n";
    let at_copy = "zfs get -Ho value readonly back/vm/one back/vm/two";
    let there = "seq 9 > g && sanbox put g back/vm/two:/g && rm g";
    for turn in ["failback vm", "takeover tank/vm", "failback vm --rollback"] {
        check(&place, at_source, as_it_was);
        // Nothing is fenced where the source is gone.
        let is_gone = turn == "failback vm --rollback";
        if is_gone {
            check(&place, "zpool export tank", "");
        }
        place.run("sanbox replication failover vm");
        check(&place, at_copy, "on\noff\n");
        check(&place, there, "");
        if is_gone {
            check(&place, "zpool import -d $PWD tank", "");
        }
        let turned = place.run(&format!("sanbox replication {turn}"));
        check(&place, at_source, as_it_was);
        if turn == "takeover tank/vm" {
            assert!(
                turned.contains("tank/vm/one is in use, and read-only as before\n"),
                "{turned}"
            );
            // The copy is fenced as soon as a run meets it.
            place.run("sanbox replication run vm");
            let adopted = place.run("sanbox replication adopt vm --rollback");
            assert!(adopted.contains("adopted back/vm/two\n"), "{adopted}");
            check(&place, at_source, as_it_was);
        }
        check(&place, at_copy, "on\non\n");
    }
}

/// A client writes while its file system is failed over, and goes on with the copy by the handle that it has: nothing that was acknowledged is
/// lost, also of what came between the first run and the fence.
#[test]
fn what_is_written_while_a_job_fails_over_is_in_the_copy() {
    let mut place = Place::new();
    check(
        &place,
        "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create -p tank/vm/one && \
         zfs set sharenfs=rw,no_root_squash tank/vm/one && zfs snapshot -r tank/vm@s1",
        "",
    );
    let nfs = free_port();
    serve(&mut place, nfs, 0, 0);
    check(
        &place,
        "sanbox replication create vm --from tank/vm --to back/vm -r --take && sanbox replication pause vm",
        "",
    );
    place.run("sanbox replication run vm");
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut writer = Client::new(address(nfs));
    let root = writer.mount("/tank/vm/one");
    let file = writer.create(&root, "f");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                // Stable; refused while neither is in use, and then given again.
                match writer.write(&file, next * 8, &next.to_be_bytes(), 2) {
                    0 => next += 1,
                    _ => std::thread::sleep(Duration::from_millis(5)),
                }
                acknowledged.store(next, Ordering::Relaxed);
            }
        });
        let count = || acknowledged.load(Ordering::Relaxed);
        let more_than = |least| match count() {
            count if count > least => Ok(()),
            count => Err(format!("{count} writes")),
        };
        wait_for("writes at the source", || more_than(20));
        let turned = place.run("sanbox replication failover vm");
        assert!(turned.contains("back/vm/one is writable\n"), "{turned}");
        let before = count();
        wait_for("writes at the copy", || more_than(before + 20));
        stop.store(true, Ordering::Relaxed);
    });
    check(&place, "zfs get -Ho value readonly back/vm/one", "off\n");
    check(&place, "sanbox get back/vm/one:/f f", "");
    let bytes = std::fs::read(place.path("work").join("f")).expect("the file");
    let written: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_be_bytes(chunk.try_into().expect("eight bytes")))
        .collect();
    let count = acknowledged.load(Ordering::Relaxed);
    assert!(
        written.len() as u64 >= count,
        "{} of {count}",
        written.len()
    );
    assert!(written.iter().copied().eq(0..written.len() as u64));
    place.stop();
}

/// Two appliances, of which the first sends to the second; the first has a share and a unit.
struct Pair {
    here: Place,
    there: Place,
    /// Where the second answers peers.
    peers: u16,
}

impl Pair {
    fn new(nfs: u16, iscsi: u16) -> Self {
        let (here, there) = (Place::new(), Place::on_host("0000beef"));
        check(
            &here,
            &format!(
                "truncate -s 256M a && zpool create tank $PWD/a && zfs create -p tank/vm/one && zfs create -V 8M -s tank/vm/disk && \
                 zfs set sharenfs=rw,no_root_squash tank/vm/one && printf 'as it was' > f && sanbox put f tank/vm/one:/f && \
                 sanbox target create {IQN} && sanbox target map {IQN} tank/vm/disk && zfs snapshot -r tank/vm@s1"
            ),
            "",
        );
        check(
            &there,
            &format!(
                "truncate -s 256M b && zpool create back $PWD/b && sanbox target create {IQN}"
            ),
            "",
        );
        let peers = free_port();
        let mut pair = Self { here, there, peers };
        serve(&mut pair.here, nfs, iscsi, 0);
        serve(&mut pair.there, 0, 0, peers);
        let told = pair
            .there
            .run("sanbox peer invite box --datasets back/vm --push --failover");
        let line = told.lines().find(|line| line.contains("sanbox peer add"));
        let code = line.and_then(|line| line.split(' ').next_back());
        let code = code.unwrap_or_else(|| panic!("{told}"));
        check(
            &pair.here,
            &format!("sanbox peer add vault 127.0.0.1:{peers} {code}"),
            "'vault' knows this appliance as 'box', which sends to back/vm, and puts in use what it sent there\n",
        );
        check(
            &pair.here,
            "sanbox replication create vm --from tank/vm --to peer://vault/back/vm -r --take && sanbox replication pause vm && \
             sanbox replication run vm",
            "sent back/vm@s1\nsent back/vm/disk@s1\nsent back/vm/one@s1\n",
        );
        pair
    }

    /// Ends both; OpenZFS finds both pools in order.
    fn judged(mut self) {
        self.here.stop();
        self.there.stop();
        for (place, pool) in [(&self.here, "tank"), (&self.there, "back")] {
            check(place, &format!("zpool export {pool}"), "");
            if oracle::has_zdb() {
                oracle::zdb_clean(&place.path("work"), pool).expect("zdb finds nothing");
            }
        }
    }

    /// Both sides have the same after another run.
    fn check_equal(&self, name: &str) {
        check(&self.here, &format!("zfs snapshot -r tank/vm@{name}"), "");
        let sent = self.here.run("sanbox replication run vm");
        assert!(
            sent.contains(&format!("sent back/vm/one@{name}\n")),
            "{sent}"
        );
        for dataset in ["vm", "vm/one"] {
            let source = sums(&self.here, &format!("tank/{dataset}@{name}"));
            let copy = sums(&self.there, &format!("back/{dataset}@{name}"));
            assert_eq!(source, copy, "{dataset}");
        }
    }
}

fn serve(place: &mut Place, nfs: u16, iscsi: u16, peers: u16) {
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
        "--replication-port",
        &peers.to_string(),
    ]);
}

/// The objects of a snapshot, which are the same wherever it was received.
fn sums(place: &Place, snapshot: &str) -> String {
    let sums = place.run(&format!("sanbox sums {snapshot}"));
    assert!(sums.lines().count() > 3, "{sums}");
    sums.replace(snapshot, "")
}

/// The machine of the source dies in the middle of writes; its copy at a peer is put in use there, at its address, and gives back what was
/// written when the source is there again.
#[test]
fn a_peer_stands_in_for_an_appliance_that_was_killed() {
    let (nfs, iscsi) = (free_port(), free_port());
    let mut pair = Pair::new(nfs, iscsi);
    let root = Client::new(address(nfs)).mount("/tank/vm/one");
    let file = Client::new(address(nfs)).lookup(&root, "f");
    let held = HeldFile::open(nfs, "/tank/vm/one", "/f");
    let before = inquiry(&pair.here, iscsi, 0);
    check(
        &pair.there,
        &format!("sanbox target map {IQN} back/vm/disk"),
        "",
    );

    // Acknowledged, and in the intent log alone.
    let mut writer = Client::new(address(nfs));
    let late = writer.create(&root, "late");
    assert_eq!(writer.write(&late, 0, b"never sent", 2), 0);
    drop(writer);
    pair.here.kill();
    pair.there.stop();
    serve(&mut pair.there, nfs, iscsi, pair.peers);
    if let Some(hidden) = inquiry(&pair.there, iscsi, 0) {
        assert!(!hidden.contains("SANBOX"), "{hidden}");
    }
    let foreign = pair.there.run("sanbox replication takeover back");
    assert!(
        foreign.contains("'back' is no copy that a job sent"),
        "{foreign}"
    );
    let turned = pair.there.run("sanbox replication takeover back/vm");
    assert_eq!(turned.matches(" is writable\n").count(), 3, "{turned}");
    check(
        &pair.there,
        "zfs set sharenfs=rw,no_root_squash back/vm/one",
        "",
    );
    assert_eq!(inquiry(&pair.there, iscsi, 0), before);
    let read = Client::new(address(nfs)).read(&file, 0, 100);
    assert_eq!(read.as_deref(), Ok(&b"as it was"[..]));
    if let Some(held) = held {
        assert_eq!(held.go_on(), "as it was\n");
    }
    check(
        &pair.there,
        "seq 9 > g && sanbox put g back/vm/one:/g && zfs create back/vm/new && sanbox put g back/vm/new:/n",
        "",
    );

    // The source is back, elsewhere: it is fenced before anything is served, and its job leaves the copy alone.
    let (nfs, iscsi) = (free_port(), free_port());
    serve(&mut pair.here, nfs, iscsi, 0);
    check(&pair.here, IS_FENCED, "1:vm\non\n");
    check(
        &pair.here,
        "sanbox share list 2> /dev/null | grep -c tank/vm",
        "0\n[1]\n",
    );
    if let Some(hidden) = inquiry(&pair.here, iscsi, 0) {
        assert!(!hidden.contains("SANBOX"), "{hidden}");
    }
    let told = wait_for("an alert", || {
        let told = pair.here.run("sanbox alert list");
        match told.contains("'tank/vm/one' is fenced") {
            true => Ok(told),
            false => Err(told),
        }
    });
    assert!(told.contains("sanbox replication failback vm"), "{told}");
    let refused = pair.here.run("sanbox replication run vm");
    assert!(
        refused.contains("'back/vm/one' is in use in place of the source ('sanbox replication failback vm' turns that round)"),
        "{refused}"
    );
    let adopted = pair.here.run("sanbox replication adopt vm --rollback");
    assert!(
        adopted.contains("is in use in place of the source"),
        "{adopted}"
    );
    check(&pair.there, "sanbox cat back/vm/one:/g | tail -n 1", "9\n");
    let diverged = pair.here.run("sanbox replication failback vm");
    assert!(
        diverged.contains("'tank/vm/one' was written to after @s1"),
        "{diverged}"
    );
    // What was refused left no mark.
    check(
        &pair.here,
        "zfs get -Ho value org.sanbox:replication tank/vm/one tank/vm/disk",
        "-\n-\n",
    );
    let sent = pair.here.run("sanbox replication failback vm --rollback");
    assert!(
        sent.contains("sent tank/vm/one@replica-vm-")
            && sent.contains("sent tank/vm/new@replica-vm-"),
        "{sent}"
    );
    assert!(!sent.contains("[1]"), "{sent}");
    check(
        &pair.here,
        "sanbox cat tank/vm/one:/g | tail -n 1; sanbox cat tank/vm/new:/n | tail -n 1; sanbox cat tank/vm/one:/late > /dev/null 2>&1 || echo gone",
        "9\n9\ngone\n",
    );
    check(
        &pair.there,
        "zfs get -Ho value org.sanbox:identity,readonly back/vm/one && zfs get -Ho value readonly back/vm/new",
        "-\non\non\n",
    );
    check(&pair.here, IS_FENCED, "-\noff\n");
    assert_eq!(inquiry(&pair.here, iscsi, 0), before);
    assert!(Client::new(address(nfs)).read(&file, 0, 9).is_ok());
    pair.check_equal("s2");
    pair.judged();
}

/// Both are there: the job fails over to its peer, which was invited to that, and back.
#[test]
fn a_job_fails_over_to_its_peer_and_back() {
    let pair = Pair::new(0, 0);
    check(&pair.here, "seq 5 > g && sanbox put g tank/vm/one:/g", "");
    let turned = pair.here.run("sanbox replication failover vm");
    assert_eq!(
        turned,
        "back/vm is writable\nback/vm/disk is writable\nback/vm/one is writable\n"
    );
    check(&pair.here, IS_FENCED, "1:vm\non\n");
    let refused = pair.here.run("sanbox put g tank/vm/one:/h");
    assert!(refused.contains("[1]"), "{refused}");
    check(
        &pair.there,
        "sanbox cat back/vm/one:/g | tail -n 1 && seq 7 > h && sanbox put h back/vm/one:/h",
        "5\n",
    );
    let refused = pair.here.run("sanbox replication run vm");
    assert!(
        refused.contains("is in use in place of the source"),
        "{refused}"
    );
    let sent = pair.here.run("sanbox replication failback vm");
    assert!(sent.contains("sent tank/vm/one@replica-vm-"), "{sent}");
    check(&pair.here, "sanbox cat tank/vm/one:/h | tail -n 1", "7\n");
    pair.check_equal("s2");
    pair.judged();
}

/// Whichever of the two was put in use last goes on, and the other is fenced when it hears of that.
#[test]
fn of_a_source_and_its_copy_one_is_in_use() {
    let pair = Pair::new(0, 0);
    let writable = |roots: &str| {
        let each = ["vm", "vm/disk", "vm/one"].map(|name| format!("{roots}/{name} is writable\n"));
        each.join("")
    };
    let turned = pair.here.run("sanbox replication failover vm");
    assert_eq!(turned, writable("back"));
    check(&pair.there, "seq 3 > g && sanbox put g back/vm/one:/g", "");

    // The source goes on instead.
    check(
        &pair.here,
        "sanbox replication takeover -n tank/vm | tail -n 1",
        "tank/vm/one would be writable, and its copy would be fenced\n",
    );
    check(
        &pair.here,
        "sanbox replication takeover tank/vm",
        &writable("tank"),
    );
    check(&pair.here, "seq 5 > h && sanbox put h tank/vm/one:/h", "");
    pair.here.run("sanbox replication run vm");
    check(&pair.there, IS_COPY_FENCED, "2:vm\non\n");
    let refused = pair.there.run("sanbox put g back/vm/one:/late");
    assert!(refused.contains("[1]"), "{refused}");
    let diverged = pair.here.run("sanbox replication run vm");
    assert!(
        diverged.contains("'back/vm/one' was written to after"),
        "{diverged}"
    );

    // The copy, after all, and then the source again.
    let turned = pair.there.run("sanbox replication takeover back/vm");
    assert!(turned.starts_with(&writable("back")), "{turned}");
    pair.here.run("sanbox replication run vm");
    check(&pair.here, IS_FENCED, "3:vm\non\n");
    check(
        &pair.here,
        "sanbox replication takeover tank/vm",
        &writable("tank"),
    );
    pair.here.run("sanbox replication run vm");
    check(&pair.there, IS_COPY_FENCED, "4:vm\non\n");
    let adopted = pair.here.run("sanbox replication adopt vm --rollback");
    assert!(adopted.contains("adopted back/vm/one\n"), "{adopted}");
    let claims = "zfs get -rHo value -t filesystem,volume org.sanbox:fenced,org.sanbox:identity";
    for (place, root) in [(&pair.here, "tank/vm"), (&pair.there, "back/vm")] {
        check(place, &format!("{claims} {root} | sort -u"), "-\n");
    }
    pair.check_equal("s2");
    check(
        &pair.there,
        "sanbox cat back/vm/one:/h | tail -n 1; sanbox cat back/vm/one:/g > /dev/null 2>&1 || echo gone",
        "5\ngone\n",
    );
    pair.judged();
}

/// Two appliances, of which the second has the job and takes what the first invited it to, with these rights; and where the first answers peers.
fn pulled(rights: &str) -> (Place, Place, u16) {
    let (mut here, mut there) = (Place::new(), Place::on_host("0000beef"));
    check(
        &here,
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create -p tank/vm/one && zfs snapshot -r tank/vm@s1",
        "",
    );
    check(&there, "truncate -s 256M b && zpool create back $PWD/b", "");
    let peers = free_port();
    serve(&mut here, 0, 0, peers);
    serve(&mut there, 0, 0, 0);
    let told = here.run(&format!(
        "sanbox peer invite vault --datasets tank/vm {rights}"
    ));
    let line = told.lines().find(|line| line.contains("sanbox peer add"));
    let code = line.and_then(|line| line.split(' ').next_back());
    let code = code.unwrap_or_else(|| panic!("{told}"));
    there.run(&format!("sanbox peer add box 127.0.0.1:{peers} {code}"));
    check(
        &there,
        "sanbox replication create vm --from peer://box/tank/vm --to back/vm -r --take && sanbox replication run vm | grep -c @s1",
        "2\n",
    );
    (here, there, peers)
}

/// Both are in use until the job of the source runs; then the source is fenced, and what it has by itself is given up only when that is said.
#[test]
fn a_copy_is_put_in_use_while_its_source_is_alive() {
    let pair = Pair::new(0, 0);
    check(
        &pair.here,
        "sanbox replication pause vm && seq 5 > g && sanbox put g tank/vm/one:/here",
        "",
    );
    let turned = pair.there.run("sanbox replication takeover back/vm");
    assert!(
        turned.contains("back/vm/one is writable\n")
            && turned.contains("a source that is in use still goes on until its job reaches this appliance, and is fenced then"),
        "{turned}"
    );
    check(
        &pair.there,
        "seq 7 > h && sanbox put h back/vm/one:/there",
        "",
    );
    let refused = pair.here.run("sanbox replication failover vm");
    assert!(
        refused.contains("'back/vm/one' is in use in place of the source ('sanbox replication failback vm' turns that round)"),
        "{refused}"
    );
    check(&pair.here, IS_FENCED, "1:vm\non\n");
    let diverged = pair.here.run("sanbox replication failback vm");
    assert!(
        diverged.contains("'tank/vm/one' was written to after @s1")
            && diverged.contains("--rollback"),
        "{diverged}"
    );
    let sent = pair.here.run("sanbox replication failback vm --rollback");
    assert!(sent.contains("sent tank/vm/one@replica-vm-"), "{sent}");
    check(
        &pair.here,
        "sanbox cat tank/vm/one:/there | tail -n 1; sanbox cat tank/vm/one:/here > /dev/null 2>&1 || echo gone",
        "7\ngone\n",
    );
    pair.check_equal("s2");
    pair.judged();
}

/// One dataset of a tree is in use at the target: the job does not fail over beside it, and the rest of the tree is left as it was.
#[test]
fn a_tree_of_which_a_part_is_in_use_at_the_target_fails_over_there() {
    let pair = Pair::new(0, 0);
    let turned = pair.there.run("sanbox replication takeover back/vm/one");
    assert!(turned.starts_with("back/vm/one is writable\n"), "{turned}");
    let foretold = pair.here.run("sanbox replication failover vm -n");
    assert!(
        foretold.contains("tank/vm/one to back/vm/one: would be refused: 'back/vm/one' is in use in place of the source")
            && foretold.contains("nothing would be put in use before that is decided\n"),
        "{foretold}"
    );
    let refused = pair.here.run("sanbox replication failover vm");
    assert!(
        refused.contains("'back/vm/one' is in use in place of the source ('sanbox replication failback vm' turns that round)")
            && !refused.contains(" is writable"),
        "{refused}"
    );
    check(&pair.here, IS_FENCED, "1:vm\non\n");
    let state = "zfs get -Ho value org.sanbox:fenced,readonly";
    check(&pair.here, &format!("{state} tank/vm"), "-\noff\n");
    check(&pair.there, &format!("{state} back/vm"), "-\non\n");
    // The rest follows where the part is.
    let turned = pair.there.run("sanbox replication takeover back/vm");
    assert_eq!(turned.matches(" is writable\n").count(), 3, "{turned}");
    check(&pair.there, "seq 7 > h && sanbox put h back/vm/one:/h", "");
    let sent = pair.here.run("sanbox replication failback vm");
    assert!(sent.contains("sent tank/vm/one@replica-vm-"), "{sent}");
    check(&pair.here, "sanbox cat tank/vm/one:/h | tail -n 1", "7\n");
    pair.check_equal("s2");
    pair.judged();
}

/// The source's appliance invited to pull alone: it cannot be fenced from where the copy is.
#[test]
fn a_source_that_cannot_be_fenced_goes_on_and_that_is_said() {
    let (here, there, _) = pulled("--pull");
    let turned = there.run("sanbox replication failover vm");
    assert!(
        turned.contains(
            "'peer://box/tank/vm' goes on, and what is written there from now on is in no copy: "
        ) && turned.contains("peer 'box' does not allow it: it was not invited with --failover ("),
        "{turned}"
    );
    assert!(turned.contains("back/vm/one is writable\n"), "{turned}");
    check(&here, IS_FENCED, "-\noff\n");
    // Nothing is brought back to where nothing may be sent.
    let refused = there.run("sanbox replication failback vm");
    assert!(
        refused.contains("it was not invited with --push ('sanbox peer remove' and 'sanbox peer invite' there give other rights)"),
        "{refused}"
    );
    check(&there, "zfs get -Ho value readonly back/vm/one", "off\n");
}

/// The job is where the copy is: that one tells the source.
#[test]
fn a_copy_that_was_pulled_fences_its_source() {
    let (mut here, mut there, peers) = pulled("--pull --push --failover");
    here.kill();
    let turned = there.run("sanbox replication takeover back/vm");
    assert!(turned.contains("back/vm/one is writable\n"), "{turned}");
    serve(&mut here, 0, 0, peers);
    wait_for("a fence", || {
        let told = here.run(IS_FENCED);
        match told == "1:vm\non\n" {
            true => Ok(()),
            false => Err(told),
        }
    });
    let sent = there.run("sanbox replication failback vm");
    assert!(!sent.contains("[1]"), "{sent}");
    check(&here, IS_FENCED, "-\noff\n");
    here.stop();
    there.stop();
}
