//! Goal: volumes served by iSCSI satisfy other people's initiators. Method: a daemon with targets made by `sanbox target`, and against it
//! libiscsi's tools and its conformance suite; CHAP in both directions; reservations that outlive a kill; zdb judges the pool.

use std::process::Command;

use harness::free_port;

use crate::cli::Place;

const IQN: &str = "iqn.2026-11.org.sanbox:test";

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--help").output().is_ok();
    if !found {
        harness::skip("an iSCSI client", &format!("{tool} is not installed"));
    }
    found
}

fn pool(place: &Place) {
    let made = place.run(&format!(
        "truncate -s 1G a b && zpool create tank mirror $PWD/a $PWD/b && zfs create -s -V 400M tank/v && \
         zfs create -V 64M tank/w && sanbox target create {IQN} && sanbox target map {IQN} tank/v && \
         sanbox target map {IQN} tank/w --lun 7 && zfs set org.sanbox:lun.sector=512n tank/v"
    ));
    assert_eq!(made, "");
}

fn serve(place: &mut Place, port: u16) {
    place.serve(&[
        "--nfs-port",
        "0",
        "--nbd-port",
        "0",
        "--iscsi-port",
        &port.to_string(),
    ]);
}

/// What libiscsi's suite says, test by test: `PASS`, `FAIL` or `SKIP`, the name, and why.
fn suite(place: &Place, url: &str, second: &str, families: &str) -> Vec<(String, String, String)> {
    let script = harness::root().join("tests/interop/iscsi-suite.sh");
    let line = format!("{} '{url}' '{second}' {families}", script.display());
    let output = place.run(&line);
    let mut found = Vec::new();
    for line in output.lines() {
        let mut parts = line.splitn(3, '\t');
        if let (Some(verdict @ ("PASS" | "FAIL" | "SKIP")), Some(name)) =
            (parts.next(), parts.next())
        {
            let why = parts.next().unwrap_or_default();
            found.push((verdict.to_owned(), name.to_owned(), why.to_owned()));
        }
    }
    assert!(!found.is_empty(), "the suite said nothing:\n{output}");
    found
}

/// Tests of the Debian 12 suite (1.19) that fail or are skipped for reasons of their own.
fn is_excused(name: &str) -> bool {
    EXCUSED.contains(&name)
}

const EXCUSED: &[&str] = &[];

#[test]
fn libiscsi_s_suite_passes() {
    if !has("iscsi-test-cu") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let port = free_port();
    serve(&mut place, port);
    let url = format!("iscsi://127.0.0.1:{port}/{IQN}/0");
    let found = suite(&place, &url, &url, "ALL");
    let count = |verdict: &str| found.iter().filter(|(v, ..)| v == verdict).count();
    eprintln!(
        "{} passed, {} failed, {} skipped",
        count("PASS"),
        count("FAIL"),
        count("SKIP")
    );
    let bad: Vec<_> = found
        .iter()
        .filter(|(verdict, name, _)| verdict == "FAIL" && !is_excused(name))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    if harness::oracle::has_zdb() {
        harness::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}

#[test]
fn targets_are_managed_and_guarded() {
    if !has("iscsi-ls") || !has("iscsi-inq") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let shown = place.run(&format!("sanbox target list; sanbox target show {IQN}"));
    assert_eq!(
        shown,
        format!(
            "{IQN}\t2\nname\t{IQN}\nchap\t-\nmutual\t-\nallow\tall\nlun\t0\ttank/v\nlun\t7\ttank/w\n"
        )
    );
    for (line, says) in [
        ("sanbox target create disk", "begins with iqn."),
        (
            "sanbox target map iqn.2026-11.org.sanbox:none tank/v",
            "no such target",
        ),
        ("sanbox target map $T tank/v", "is LUN 0 of"),
        ("sanbox target map $T tank", "no volume"),
        ("sanbox target delete $T", "shows volumes"),
        ("sanbox target chap $T --user u --secret short", "12 to 255"),
    ] {
        let said = place.run(&line.replace("$T", IQN));
        assert!(said.contains(says), "{line}: {said}");
    }
    let port = free_port();
    serve(&mut place, port);
    let listed = place.run(&format!("iscsi-ls -s iscsi://127.0.0.1:{port}"));
    assert!(
        listed.contains(IQN) && listed.contains("Lun:0") && listed.contains("Lun:7"),
        "{listed}"
    );
    let inquiry = place.run(&format!("iscsi-inq iscsi://127.0.0.1:{port}/{IQN}/0"));
    assert!(inquiry.contains("SANBOX"), "{inquiry}");
    // In use: not destroyed under the initiator. (Nobody is logged in now.)
    let secrets = place.run(&format!(
        "printf 'initiators-know\\n' > s; sanbox target chap {IQN} --user me --secret-file s"
    ));
    assert_eq!(secrets, "");
    let refused = place.run(&format!("iscsi-inq iscsi://127.0.0.1:{port}/{IQN}/0"));
    assert!(!refused.contains("SANBOX"), "{refused}");
    let good = place.run(&format!(
        "iscsi-inq iscsi://me%initiators-know@127.0.0.1:{port}/{IQN}/0"
    ));
    assert!(good.contains("SANBOX"), "{good}");
    let wrong = place.run(&format!(
        "iscsi-inq iscsi://me%initiators-kn0w@127.0.0.1:{port}/{IQN}/0"
    ));
    assert!(!wrong.contains("SANBOX"), "{wrong}");
    let both = place.run(&format!(
        "sanbox target chap {IQN} --mutual-user target --mutual-secret the-target-knows"
    ));
    assert_eq!(both, "");
    let url = format!(
        "iscsi://me%initiators-know@127.0.0.1:{port}/{IQN}/0?target_user=target&target_password="
    );
    let good = place.run(&format!("iscsi-inq '{url}the-target-knows'"));
    assert!(good.contains("SANBOX"), "{good}");
    let wrong = place.run(&format!("iscsi-inq '{url}the-target-kn0ws'"));
    assert!(!wrong.contains("SANBOX"), "{wrong}");
    assert_eq!(place.run(&format!("sanbox target chap {IQN} --off")), "");
    // Access lists.
    assert_eq!(
        place.run(&format!(
            "sanbox target allow {IQN} iqn.2007-10.com.github:nobody"
        )),
        ""
    );
    let refused = place.run(&format!("iscsi-inq iscsi://127.0.0.1:{port}/{IQN}/0"));
    assert!(!refused.contains("SANBOX"), "{refused}");
    assert_eq!(
        place.run(&format!("sanbox target allow {IQN} 127.0.0.0/8")),
        ""
    );
    let good = place.run(&format!("iscsi-inq iscsi://127.0.0.1:{port}/{IQN}/7"));
    assert!(good.contains("SANBOX"), "{good}");
    assert_eq!(
        place.run(&format!(
            "sanbox target unmap {IQN} tank/w && zfs destroy tank/w"
        )),
        ""
    );
    let gone = place.run(&format!("iscsi-ls -s iscsi://127.0.0.1:{port}"));
    assert!(!gone.contains("Lun:7"), "{gone}");
    place.stop();
}

#[test]
fn what_was_acknowledged_outlives_a_kill() {
    if !has("qemu-img") || !has("iscsi-inq") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let port = free_port();
    serve(&mut place, port);
    let url = format!("iscsi://127.0.0.1:{port}/{IQN}/7");
    let probe = place.run(&format!("qemu-img info {url}"));
    if probe.contains("Unknown") {
        harness::skip("qemu-img over iSCSI", "this qemu-img has no iscsi driver");
        place.stop();
        return;
    }
    // Without -t, qemu-img never asks for its writes to be made durable.
    let written = place.run(&format!(
        "head -c 50000000 /dev/urandom > f; truncate -s 64M f; qemu-img convert -t writeback -n -f raw -O raw f {url}"
    ));
    assert_eq!(written, "");
    place.kill();
    serve(&mut place, port);
    let same = place.run(&format!("qemu-img compare -f raw -F raw f {url}"));
    assert!(same.contains("identical"), "{same}");
    place.stop();
}

/// Digests, reservations through a loss of power, copies by token: said by an initiator of our own.
#[test]
fn reservations_and_flushed_data_outlive_a_kill() {
    if !has("python3") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let port = free_port();
    let script = harness::root().join("tests/interop/iscsi-initiator.py");
    let run = |place: &Place, phase: &str| {
        place.run(&format!(
            "python3 {} {port} {IQN} {phase}",
            script.display()
        ))
    };
    serve(&mut place, port);
    assert_eq!(run(&place, "before"), "good\n");
    place.kill();
    serve(&mut place, port);
    assert_eq!(run(&place, "after"), "good\n");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
}
