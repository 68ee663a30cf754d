//! Goal: volumes served by iSCSI satisfy other people's initiators. Method: a daemon with targets made by `sanbox target`, and against it
//! libiscsi's tools and its conformance suite; CHAP in both directions; reservations that outlive a kill; zdb judges the pool.

use std::process::Command;

use tests::free_port;

use crate::cli::{Place, wait_for};

const IQN: &str = "iqn.2026-11.org.sanbox:test";

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--help").output().is_ok();
    if !found {
        tests::skip("an iSCSI client", &format!("{tool} is not installed"));
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
    let script = tests::root().join("tests/interop/iscsi-suite.sh");
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

/// Tests that fail by mistakes of their own, with the reason.
const EXCUSED: &[(&str, &str, &str)] = &[
    (
        "512e",
        "GetLBAStatus.UnmapSingle",
        "asks for block i+1 and wants an answer that begins at i+8: right only where both are the same",
    ),
    (
        "",
        "iSCSITMF.AbortTaskSimpleAsync",
        "counts on a queue that newer libraries send from at once (fails so against every target)",
    ),
];

fn is_excused(sectors: &str, name: &str) -> bool {
    EXCUSED
        .iter()
        .any(|(where_, test, _)| *test == name && (where_.is_empty() || *where_ == sectors))
}

/// The suite over two portals with CHAP on a thin LUN, for one kind of block.
fn suite_passes(sectors: &str) {
    if !has("iscsi-test-cu") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let (port, second) = (free_port(), free_port());
    let made = place.run(&format!(
        "zfs set org.sanbox:lun.sector={sectors} tank/v && \
         sanbox target chap {IQN} --user me --secret initiators-know && \
         sanbox target portal {IQN} 127.0.0.1:{port} 127.0.0.1:{second}"
    ));
    assert_eq!(made, "");
    serve(&mut place, port);
    let url = |port: u16| format!("iscsi://me%initiators-know@127.0.0.1:{port}/{IQN}/0");
    let found = suite(&place, &url(port), &url(second), "ALL");
    let count = |verdict: &str| found.iter().filter(|(v, ..)| v == verdict).count();
    eprintln!(
        "{sectors}: {} passed, {} failed, {} skipped",
        count("PASS"),
        count("FAIL"),
        count("SKIP")
    );
    let bad: Vec<_> = found
        .iter()
        .filter(|(verdict, name, _)| verdict == "FAIL" && !is_excused(sectors, name))
        .collect();
    assert!(bad.is_empty(), "{sectors}: {bad:#?}");
    assert!(count("PASS") >= 200, "{sectors}: {found:#?}");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}

#[test]
fn libiscsi_s_suite_passes() {
    suite_passes("512n");
}

#[test]
#[ignore = "long: the suite again on emulated sectors"]
fn libiscsi_s_suite_passes_on_emulated_sectors() {
    suite_passes("512e");
}

#[test]
#[ignore = "long: the suite again on sectors of 4 KiB"]
fn libiscsi_s_suite_passes_on_large_sectors() {
    suite_passes("4kn");
}

#[test]
fn targets_are_managed_and_guarded() {
    if !has("iscsi-ls") || !has("iscsi-inq") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let shown = place.run("sanbox target list; sanbox target list -H; sanbox target show");
    assert_eq!(
        shown,
        format!(
            "NAME{:width$}LUNS\n{IQN}  2\n{IQN}\t2\nname\t{IQN}\nchap\t-\nmutual\t-\nallow\tall\nlun\t0\ttank/v\nlun\t7\ttank/w\n",
            "",
            width = IQN.len() + 2 - "NAME".len(),
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
        tests::skip("qemu-img over iSCSI", "this qemu-img has no iscsi driver");
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
    let script = tests::root().join("tests/interop/iscsi-initiator.py");
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

/// The daemon with the pool of [`pool`], for the initiator that makes its PDUs itself, and its port; `None` where that
/// cannot run.
fn served() -> Option<(Place, u16)> {
    if !has("python3") {
        return None;
    }
    let mut place = Place::new();
    pool(&place);
    let port = free_port();
    serve(&mut place, port);
    Some((place, port))
}

/// Runs cases of the initiator that makes its PDUs itself.
fn raw(place: &Place, port: u16, case: &str) {
    let script = tests::root().join("tests/interop/iscsi-raw.py");
    let said = place.run(&format!(
        "python3 {} {port} {IQN} {case} 2>&1",
        script.display()
    ));
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(last, "good", "{case}: {said}\n{}", place.log());
    eprintln!("{case}: {said}");
}

#[test]
fn sessions_tasks_and_recovery() {
    let Some((mut place, port)) = served() else {
        return;
    };
    for case in ["mcs", "attributes", "recovery", "ipv6"] {
        raw(&place, port, case);
    }
    // GET LBA STATUS where a logical block is an eighth of a physical one.
    assert_eq!(place.run("zfs set org.sanbox:lun.sector=512e tank/v"), "");
    raw(&place, port, "status");
    place.stop();
}

#[test]
fn portals_discovery_and_redirection() {
    if !has("python3") {
        return;
    }
    let mut place = Place::new();
    pool(&place);
    let (port, second) = (free_port(), free_port());
    serve(&mut place, port);
    let made = place.run(&format!(
        "sanbox target portal {IQN} 127.0.0.1:{port} 127.0.0.1:{second},2 && \
         sanbox target discovery --user finder --secret who-looks-for-it && sanbox target show {IQN} | grep portal"
    ));
    assert_eq!(
        made,
        format!("portal\t127.0.0.1:{port},1\nportal\t127.0.0.1:{second},2\n")
    );
    raw(&place, port, &format!("portals {second}"));
    raw(
        &place,
        port,
        &format!("discovery finder who-looks-for-it 127.0.0.1:{port},1 127.0.0.1:{second},2"),
    );
    let moved = format!("sanbox target redirect {IQN} 127.0.0.1:{second}");
    assert_eq!(place.run(&moved), "");
    raw(&place, port, &format!("redirect 127.0.0.1:{second}"));
    assert_eq!(place.run(&format!("sanbox target redirect {IQN} off")), "");
    raw(&place, port, "ipv6 2>/dev/null || echo good");
    for (line, says) in [
        ("sanbox target portal $T host", "is no ADDRESS"),
        ("sanbox target redirect $T x", "is no ADDRESS"),
        ("sanbox target discovery", "--user or --off"),
    ] {
        let said = place.run(&line.replace("$T", IQN));
        assert!(said.contains(says), "{line}: {said}");
    }
    place.stop();
}

#[test]
fn the_end_is_announced() {
    let Some((mut place, port)) = served() else {
        return;
    };
    let script = tests::root().join("tests/interop/iscsi-raw.py");
    let initiator = place
        .command("python3")
        .arg(script)
        .args([&port.to_string(), IQN, "logout"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    wait_for("a session", || {
        let sessions = place.run("sanbox target sessions");
        sessions.contains(IQN).then_some(()).ok_or(sessions)
    });
    place.stop();
    let output = initiator.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\ngood\n");
}

#[test]
fn a_pool_that_gets_full_is_told_of() {
    if !has("python3") {
        return;
    }
    let mut place = Place::new();
    let made = place.run(&format!(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create -s -V 400M tank/v && \
         zfs set org.sanbox:lun.threshold=40 tank/v && sanbox target create {IQN} && sanbox target map {IQN} tank/v"
    ));
    assert_eq!(made, "");
    let port = free_port();
    serve(&mut place, port);
    raw(&place, port, "threshold");
    place.stop();
}

#[test]
fn initiators_see_what_is_for_them() {
    let Some((mut place, port)) = served() else {
        return;
    };
    let made = place.run(&format!(
        "zfs create -s -V 16M tank/x; zfs create -s -V 16M tank/y; zfs create -s -V 16M tank/z
         sanbox target unmap {IQN} tank/w
         sanbox target group one iqn.2026-11.org.example:h1; sanbox target group two iqn.2026-11.org.example:h2
         sanbox target map {IQN} tank/x --lun 5 --for one; sanbox target map {IQN} tank/y --lun 5 --for two
         sanbox target map all tank/z --lun 6 --for one
         sanbox target map {IQN} tank/w --lun 5 --for one; sanbox target group one; sanbox target groups -H"
    ));
    assert_eq!(
        made,
        format!(
            "one\tiqn.2026-11.org.example:h1\ntwo\tiqn.2026-11.org.example:h2\n\
             ! cannot map 'tank/w': LUN 5 of '{IQN}' is 'tank/x'\n\
             ! cannot delete group 'one': it sees 'tank/x'\n"
        ),
        "{}",
        place.log()
    );
    raw(&place, port, "masks");
    place.stop();
}

/// Slow logins, thousands of sessions, guessed secrets.
#[test]
fn crowds_and_dawdlers() {
    let Some((mut place, port)) = served() else {
        return;
    };
    raw(&place, port, "loris");
    raw(&place, port, "crowd 1900");
    let status = std::fs::read_to_string(format!("/proc/{}/status", place.pid()));
    let status = status.expect("the daemon runs");
    let resident = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = resident
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|kib| kib.parse().ok())
        .expect("a resident size");
    assert!(kib < 900 << 10, "{kib} KiB");
    let secret = place.run(&format!(
        "sanbox target chap {IQN} --user me --secret initiators-know"
    ));
    assert_eq!(secret, "");
    raw(&place, port, "chap me initiators-know");
    place.stop();
}

/// What Proxmox's ZFS-over-iSCSI plug-in runs, and what it looks for in the output (`LunCmd/Comstar.pm`).
#[test]
fn comstar_s_commands() {
    let mut place = Place::new();
    for tool in ["stmfadm", "sbdadm", "itadm"] {
        std::os::unix::fs::symlink(crate::cli::program(), place.path("bin").join(tool))
            .expect("a link");
    }
    let made = place.run(
        "truncate -s 512M a && zpool create tank $PWD/a && itadm create-target -n iqn.2026-11.org.example:pve",
    );
    assert_eq!(
        made,
        "Target iqn.2026-11.org.example:pve successfully created\n"
    );
    let port = free_port();
    serve(&mut place, port);
    let guid = "600144f0123456789abcdef012345678";
    let device = "/dev/zvol/rdsk/tank/vm-100-disk-0";
    let lun_of = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("LUN"))?;
        let (name, number) = line.split_once(':')?;
        (name.trim() == "LUN").then(|| number.trim().to_owned())
    };
    let run = |line: &str| {
        let said = place.run(line);
        eprintln!("$ {line}\n{said}");
        said
    };
    run("zfs create -s -b 8k -V 32M tank/vm-100-disk-0; zfs create -V 16M tank/other");
    assert!(
        run(&format!(
            "stmfadm create-lu -p wcd=false -p guid={guid} {device}"
        ))
        .contains("created")
    );
    assert!(run(&format!("stmfadm create-lu {device}")).contains("file already in use"));
    let listed = run("sbdadm list-lu");
    let found = listed
        .lines()
        .find(|line| line.ends_with(device))
        .expect("listed");
    let words: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(words, [guid, "33554432", device]);
    assert_eq!(run(&format!("stmfadm add-view {guid}")), "");
    assert_eq!(
        lun_of(&run(&format!("stmfadm list-view -l {guid}"))).as_deref(),
        Some("0")
    );
    run("sbdadm create-lu /dev/zvol/rdsk/tank/other");
    let other = run("sbdadm list-lu | awk '/other/{print $1}'");
    let other = other.trim().to_owned();
    assert!(other.len() == 32, "{other}");
    run(&format!(
        "stmfadm create-hg hosts; stmfadm add-hg-member -g hosts iqn.2007-10.com.github:nobody; stmfadm add-view --host-group hosts {other}"
    ));
    assert_eq!(
        lun_of(&run(&format!("stmfadm list-view -l {other}"))).as_deref(),
        Some("1")
    );
    // Larger, as Proxmox does it: the volume first, then the unit.
    assert_eq!(
        run(&format!(
            "zfs set volsize=48M tank/vm-100-disk-0; stmfadm modify-lu -s 49152K {guid}"
        )),
        ""
    );
    assert!(run("sbdadm list-lu").contains("50331648"));
    if has("iscsi-inq") {
        let url = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.org.example:pve/0");
        // It prints the identifier's bytes as they are.
        let page = run(&format!(
            "iscsi-inq -e 1 -c 131 {url} | od -An -v -tx1 | tr -d ' \\n'"
        ));
        assert!(page.contains(guid), "{page}");
        let seen = run(&format!("iscsi-ls -s iscsi://127.0.0.1:{port}"));
        assert!(seen.contains("Lun:0") && !seen.contains("Lun:1"), "{seen}");
    }
    // A rollback: away, back, and shown again under the same identifier.
    run(&format!(
        "zfs snapshot tank/vm-100-disk-0@a; stmfadm delete-lu {guid}; zfs rollback tank/vm-100-disk-0@a"
    ));
    assert!(run(&format!("stmfadm list-view -l {guid}")).contains("not found"));
    assert!(run(&format!("stmfadm import-lu {device}")).contains("imported"));
    run(&format!("stmfadm add-view {guid}"));
    assert_eq!(
        lun_of(&run(&format!("stmfadm list-view -l {guid}"))).as_deref(),
        Some("0")
    );
    let verbose = run(
        "stmfadm list-lu -v; stmfadm list-hg -v; stmfadm list-target -v; itadm list-target -v; stmfadm list-state",
    );
    for part in [
        &format!("LU Name: {}", guid.to_uppercase()),
        "Writeback Cache        : Enabled",
        "Host Group: hosts",
        "Target: iqn.2026-11.org.example:pve",
    ] {
        assert!(verbose.contains(part), "{part}");
    }
    assert_eq!(
        run(&format!(
            "stmfadm remove-view -l {other} -a; stmfadm delete-hg hosts; stmfadm delete-lu {guid} {other}"
        )),
        ""
    );
    assert_eq!(run("sanbox stmfadm list-lu"), "");
    assert!(run("stmfadm fly").contains("unknown subcommand"));
    place.stop();
}
