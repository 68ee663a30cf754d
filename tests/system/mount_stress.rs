//! Mounts under load: commands that stat, make and unmount directories which lie on the daemon's own FUSE mounts, many at once,
//! with snapshots, renames and destructions, and a daemon that is killed in the middle of it.
//!
//! Everything is bounded in time. At the end there is no process and no mount left, whatever the state the daemon was killed in.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::cli::Place;
use crate::snapdir::can_mount;

/// No command of this test takes longer on a machine that is not stuck.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a killed process may take to be gone.
const DEATH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the commands run before the daemon is killed, one duration a round.
const LOADS: [Duration; 3] = [
    Duration::from_millis(700),
    Duration::from_millis(2100),
    Duration::from_millis(3400),
];

/// What runs at the same time, each again and again. The daemon's death ends all of it.
const WORKERS: [&str; 8] = [
    "zfs set compression=off tank/fs; zfs set atime=off tank/fs; zfs set compression=on tank/fs",
    "zfs create tank/fs/a; zfs create tank/fs/a/b; echo x > m/fs/a/b/f; zfs destroy -r tank/fs/a",
    "zfs create tank/c; zfs rename tank/c tank/d; zfs rename tank/d tank/fs/d; zfs destroy tank/fs/d",
    "zfs snapshot tank/fs@one; ls m/fs/.zfs/snapshot/one; zfs rename tank/fs@one tank/fs@two; zfs destroy tank/fs@two",
    "mkdir m/fs/.zfs/snapshot/three; cat m/fs/.zfs/snapshot/three/f; rmdir m/fs/.zfs/snapshot/three",
    "mkdir -p m/fs/x/y; touch m/fs/x/y/z; mv m/fs/x m/fs/w; ls -lR m; rm -r m/fs/w",
    "zfs create -o mountpoint=$PWD/m/fs/deep/er tank/e; zfs set mountpoint=$PWD/m/e tank/e; zfs unmount tank/e; zfs destroy tank/e",
    "zfs list -r tank; zpool status tank; zfs mount; df m/fs",
];

/// Starts a shell line in a process group of its own.
fn start(place: &Place, line: &str) -> Child {
    place
        .command("sh")
        .args(["-c", line])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell")
}

fn signal_group(child: &Child, signal: &str) {
    let _ = std::process::Command::new("kill")
        .args([signal, "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status();
}

/// Waits for a child; false when it does not end in time.
fn ends(child: &mut Child, within: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < within {
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Runs commands one after another; they must end in time, and well.
fn run(place: &mut Place, lines: &[&str]) {
    for line in lines {
        let mut child = start(place, line);
        if !ends(&mut child, COMMAND_TIMEOUT) {
            signal_group(&child, "-KILL");
            kill(place);
            panic!("'{line}' hangs: {}", place.log());
        }
        let status = child.wait().expect("a child");
        assert!(status.success(), "'{line}': {status}: {}", place.log());
    }
}

/// Kills the daemon, which must die. Where it does not, its connections are aborted, so that the machine is left as it was found.
fn kill(place: &mut Place) {
    let mut daemon = place.take_daemon().expect("a running daemon");
    daemon.kill().expect("a running daemon");
    if ends(&mut daemon, DEATH_TIMEOUT) {
        return;
    }
    place.run(
        "mkdir -p ../ctl && mount -t fusectl none ../ctl && for c in ../ctl/*/abort; do echo 1 > $c; done; umount ../ctl",
    );
    let after = ends(&mut daemon, DEATH_TIMEOUT);
    panic!("the daemon outlived kill -9; dead after its connections were aborted: {after}");
}

/// The mounts and processes that name a place's directory, once those that are on their way out have gone.
fn left(place: &Place) -> String {
    let own = place.path("").to_string_lossy().into_owned();
    let own = own.trim_end_matches('/');
    let began = Instant::now();
    loop {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mut found: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(own))
            .map(str::to_owned)
            .collect();
        for process in std::fs::read_dir("/proc").expect("processes").flatten() {
            let directory = process.path();
            let environment = std::fs::read(directory.join("environ")).unwrap_or_default();
            if String::from_utf8_lossy(&environment).contains(own) {
                let command = std::fs::read_to_string(directory.join("cmdline"));
                found.push(command.unwrap_or_default().replace('\0', " "));
            }
        }
        if found.is_empty() || began.elapsed() > DEATH_TIMEOUT {
            return found.join("\n");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn pool(place: &Place) {
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=$PWD/m tank $PWD/disk && zfs create tank/fs",
    );
    assert_eq!(made, "");
}

/// The least number of threads that answer: one that waited for itself would wait for ever.
const ONE_WORKER: (&str, &str) = ("TOKIO_WORKER_THREADS", "1");

/// What OpenZFS's `history_004_pos` does as soon as its daemon is there.
#[test]
fn properties_are_set_and_datasets_made_below_a_fresh_mount() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.set(ONE_WORKER.0, ONE_WORKER.1);
    pool(&place);
    for round in 0..2 {
        place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
        run(
            &mut place,
            &[
                "zfs set compression=off tank/fs",
                "zfs set atime=off tank/fs",
                "zfs create tank/f1",
                "zfs create tank/f2",
                "zfs create tank/f3",
                "touch m/f1/x m/f2/x m/f3/x && sync m/f1/x m/f2/x m/f3/x",
            ],
        );
        if round % 2 == 0 {
            kill(&mut place);
            // A daemon that mounts nothing clears what is left all the same.
            place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
            let work = place.work();
            assert!(!mounts.contains(&work), "{mounts}");
        }
        place.stop();
        place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
        run(
            &mut place,
            &[
                "test -e m/f1/x && test -e m/f2/x",
                "zfs destroy tank/f1; zfs destroy tank/f2; zfs destroy tank/f3",
            ],
        );
        place.stop();
        assert_eq!(left(&place), "", "round {round}");
    }
}

#[test]
fn a_daemon_killed_under_load_dies_and_leaves_nothing() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.set(ONE_WORKER.0, ONE_WORKER.1);
    pool(&place);
    for (round, load) in LOADS.into_iter().enumerate() {
        place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
        run(&mut place, &["echo x > m/fs/f && sync m/fs/f"]);
        let mut workers: Vec<Child> = WORKERS
            .iter()
            .map(|line| {
                start(
                    &place,
                    &format!("while test -S ../state/control.sock; do {line}; done"),
                )
            })
            .collect();
        std::thread::sleep(load);
        kill(&mut place);
        for worker in &mut workers {
            signal_group(worker, "-KILL");
            assert!(
                ends(worker, DEATH_TIMEOUT),
                "round {round}: a command hangs"
            );
        }
        // The next daemon clears what is left, and everything works.
        place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
        run(
            &mut place,
            &[
                "grep -q x m/fs/f",
                "for d in $(zfs list -H -o name -r tank | tac); do case $d in tank|tank/fs) ;; *) zfs destroy -r $d || exit 1;; esac; done",
                "zfs list -H -o name -t snapshot -r tank | while read s; do zfs destroy $s || exit 1; done",
                "rm -rf m/fs/x m/fs/w",
            ],
        );
        place.stop();
        assert_eq!(left(&place), "", "round {round}");
    }
}

/// A mount point below that of a dataset with a later name: mounted in the order of names, the later would hide it, and then it could
/// neither be seen nor unmounted.
#[test]
fn file_systems_are_mounted_in_the_order_of_their_mount_points() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    pool(&place);
    assert_eq!(
        place.run("zfs create -o mountpoint=$PWD/m/fs/deep/er tank/e"),
        ""
    );
    for file in ["x", "y"] {
        place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
        let touch = format!("touch m/fs/deep/er/{file} && test -e m/fs/deep/er/x");
        run(&mut place, &[&touch]);
        place.stop();
    }
    place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
    run(
        &mut place,
        &["zfs destroy tank/e && ! test -e m/fs/deep/er/x"],
    );
    // A mount that another one hides is refused, and nothing hangs.
    run(
        &mut place,
        &[
            "zfs create -o mountpoint=$PWD/m/fs/in tank/in && mkdir -p over && mount --bind over m/fs",
            "! zfs unmount tank/in && umount m/fs && zfs unmount tank/in",
        ],
    );
    place.stop();
    assert_eq!(left(&place), "");
}

/// As OpenZFS does: a directory that was made because of a dataset's name goes, one that an administrator chose stays.
#[test]
fn an_export_removes_the_empty_directories_of_its_mounts() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--mount", "--nfs-port", "0", "--iscsi-port", "0"]);
    run(
        &mut place,
        &[
            "truncate -s 256M a && zpool create -R $PWD/alt tank $PWD/a && zfs create tank/fs",
            "zfs create -o mountpoint=/chosen tank/own && touch alt/tank/fs/x alt/chosen/x",
            "zpool export tank",
            "test -d alt/chosen && ! test -e alt/tank",
            "zpool import -R $PWD/alt -d $PWD tank && test -e alt/tank/fs/x && test -e alt/chosen/x",
            "zpool destroy tank && ! test -e alt/tank",
        ],
    );
    place.stop();
    assert_eq!(left(&place), "");
}
