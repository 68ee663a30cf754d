//! Goal: a pool that several hosts can reach is in use by one of them at a time. Method: programs that stand for different
//! hosts on the same files, OpenZFS's own code among them; zdb reads the heartbeats.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tests::oracle;

use crate::cli::{Place, wait_for};

const HOSTS: [&str; 3] = ["0xaaaa1111", "0xbbbb2222", "0xcccc3333"];

/// What zdb says of the slots for heartbeats of a device.
fn heartbeat(image: &PathBuf) -> Option<String> {
    let output = oracle::zdb().arg("-luuuu").arg(image).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let parts: Vec<&str> = text.split("Uberblock[").collect();
    let beats = parts.iter().filter(|part| part.contains("mmp_seq = "));
    let beats: Vec<_> = beats.filter(|part| !part.contains("mmp_seq = 0")).collect();
    beats.first().map(|part| (**part).to_owned())
}

fn signal(place: &Place, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &place.pid().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

/// OpenZFS's own code on a third host, with the pool of `files`.
fn by_openzfs(files: &[PathBuf], operations: &[&str]) -> Option<Command> {
    let mut command = Command::new(oracle::refpool()?);
    command.env("ZFS_HOSTID", HOSTS[2]).arg("ds").arg("tank");
    command.args(files).arg("--").args(operations);
    Some(command)
}

#[test]
fn one_host_at_a_time() {
    let mut here = Place::on_host(HOSTS[0]);
    let there = Place::on_host(HOSTS[1]);
    here.serve(&["--nfs-port", "0"]);
    let work = here.work();
    let files: Vec<PathBuf> = ["a", "b"]
        .map(|name| PathBuf::from(&work).join(name))
        .into();
    let made = here.run(
        "truncate -s 128M a b; zpool create -o multihost=on tank mirror $PWD/a $PWD/b && zpool get -H -o value multihost tank",
    );
    assert_eq!(made, "on\n");
    std::thread::sleep(Duration::from_secs(5));
    if oracle::has_zdb() {
        for file in &files {
            let beat = heartbeat(file).expect("a heartbeat");
            for part in [
                "mmp_magic = 00000000a11cea11",
                "mmp_write = 1000",
                "mmp_fail = 10",
                "mmp_valid = 7",
            ] {
                assert!(beat.contains(part), "{part}: {beat}");
            }
            assert!(!beat.contains("mmp_delay = 0\n"), "{beat}");
        }
    }

    // Another host is refused, also with -f, and soon.
    let began = Instant::now();
    let host = hostname();
    let listed = there.run(&format!("zpool import -d {work}"));
    for part in [
        " state: UNAVAIL",
        "status: The pool is currently imported by another system.",
        &format!(
            "action: The pool must be exported from {host} (hostid=aaaa1111)\n\tbefore it can be safely imported."
        ),
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let export = "! Export the pool on the other system, then run 'zpool import'.\n[1]\n";
    assert_eq!(
        there.run(&format!("zpool import -d {work} tank")),
        format!(
            "! cannot import 'tank': pool is imported on {host} (hostid: 0xaaaa1111)\n{export}"
        )
    );
    assert_eq!(
        there.run(&format!("zpool import -f -d {work} tank")),
        format!(
            "! cannot import 'tank': pool is imported on host '{host}' (hostid=aaaa1111).\n{export}"
        )
    );
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    if let Some(mut command) = by_openzfs(&files, &[]) {
        let output = command.output().expect("refpool runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("ds tank: Remote I/O error"), "{said}");
    }

    // The first host stands still for longer than it may: it writes no more, whoever has the pool meanwhile.
    signal(&here, "-STOP");
    match by_openzfs(&files, &["tank/theirs"]) {
        // It waits until it is sure, and has the pool then.
        Some(mut command) => {
            let output = command.output().expect("refpool runs");
            assert!(output.status.success(), "{output:?}");
        }
        None => std::thread::sleep(Duration::from_secs(12)),
    }
    signal(&here, "-CONT");
    let status = wait_for("the pool is suspended", || {
        let status = here.run("zpool status tank | head -6");
        let is_suspended = status.contains("SUSPENDED");
        if is_suspended {
            Ok(status)
        } else {
            Err(status)
        }
    });
    assert!(
        status.contains(" state: SUSPENDED")
            && status
                .contains("The pool is suspended because multihost writes failed or were delayed;"),
        "{status}"
    );
    here.kill();

    // OpenZFS has it: we see its heartbeats.
    if let Some(mut command) = by_openzfs(&files, &["multihost:tank=6"]) {
        let mut running = command.stdout(Stdio::null()).spawn().expect("refpool runs");
        std::thread::sleep(Duration::from_secs(3));
        let began = Instant::now();
        let refused = there.run(&format!("zpool import -f -d {work} tank"));
        assert!(refused.contains("pool is imported on host '"), "{refused}");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            began.elapsed()
        );
        assert!(running.wait().expect("its end").success());
    }
    assert_eq!(
        there.run(&format!(
            "zpool import -f -d {work} tank; zpool list -H -o name,health; zpool export tank"
        )),
        "tank\tONLINE\n"
    );
    if oracle::has_zdb() {
        oracle::zdb_clean(PathBuf::from(&work).as_path(), "tank").expect("zdb");
    }
}

fn hostname() -> String {
    let output = Command::new("uname")
        .arg("-n")
        .output()
        .expect("uname runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_changed_host_id_hides_no_pool_of_this_system() {
    let here = Place::on_host(HOSTS[0]);
    let there = Place::on_host(HOSTS[1]);
    let work = here.work();
    here.run("truncate -s 128M a; zpool create tank $PWD/a; zfs create tank/fs");
    let changed = format!("export ZFS_HOSTID={};", HOSTS[1]);
    let note = "sanbox: the host id changed from aaaa1111 to bbbb2222; 'tank' is opened, because this system used it last\n";
    let listed = here.run(&format!("{changed} zfs list -H -o name 2>&1"));
    assert_eq!(listed, format!("{note}tank\ntank/fs\n"));
    // Once is enough: the labels and the state directory have the new one now.
    let listed = here.run(&format!("{changed} zfs list -H -o name 2>&1"));
    assert_eq!(listed, "tank\ntank/fs\n");
    // A pool that another host took over in the meantime is not taken back.
    assert_eq!(
        here.run(&format!("{changed} zpool get -H -o value health tank")),
        "ONLINE\n"
    );
    let elsewhere = format!("export ZFS_HOSTID={};", HOSTS[2]);
    there.run(&format!("{elsewhere} zpool import -f -d {work} tank"));
    let refused = here.run(&format!("{changed} zpool status tank 2>&1"));
    assert!(
        refused.contains("The pool was last accessed by another system."),
        "{refused}"
    );
    assert!(refused.contains("zpool import -f tank"), "{refused}");
}
