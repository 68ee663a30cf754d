//! SMB: what Samba's own client and conformance suites see of a dataset with `sharesmb`, and that Samba lives and dies with the daemon.

use std::path::PathBuf;

use tests::{free_port, skip};

use crate::cli::{Place, wait_for};

/// What this needs that a machine may not have: root, FUSE, Samba, its client and its suites.
fn missing() -> Option<&'static str> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let has = |program: &str| {
        let found = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        found
            .iter()
            .any(|bin| PathBuf::from(bin).join(program).exists())
    };
    if !is_root {
        Some("only root mounts for Samba")
    } else if !PathBuf::from("/dev/fuse").exists() {
        Some("there is no FUSE")
    } else if !(has("smbd") && has("smbclient") && has("smbtorture")) {
        Some("samba, smbclient or samba-testsuite is not installed")
    } else {
        None
    }
}

/// A daemon that shares `tank/share` to the machine's users `root` and `games`.
struct Shared {
    place: Place,
    port: u16,
    metrics: u16,
}

impl Shared {
    fn new() -> Self {
        let place = Place::new();
        let made = place.run(
            "truncate -s 512M a && zpool create -O mountpoint=none -O xattr=sa -O acltype=posix tank $PWD/a && \
             zfs create -o sharesmb=on tank/share && echo pw1 | sanbox smb passwd root && echo pw2 > f && \
             sanbox smb passwd --password-file f games && rm f",
        );
        assert_eq!(made, "");
        let (port, metrics) = (free_port(), free_port());
        let mut shared = Self {
            place,
            port,
            metrics,
        };
        shared.serve();
        shared
    }

    fn serve(&mut self) {
        let (port, metrics) = (self.port.to_string(), self.metrics.to_string());
        let others = ["--nfs-port", "0", "--iscsi-port", "0", "--https-port", "0"];
        let mut flags = vec!["--smb-port", &port, "--listen", "127.0.0.1"];
        flags.extend(["--metrics-port", &metrics]);
        flags.extend(others);
        self.place.serve(&flags);
        self.wait_for("SMB is served", 1);
    }

    /// Waits until the log has a line so many times.
    fn wait_for(&self, line: &str, times: usize) {
        wait_for(line, || {
            let log = self.place.log();
            let is_there = log.matches(line).count() >= times;
            is_there.then_some(()).ok_or(log)
        });
    }

    /// What smbclient says to commands at a share.
    fn client(&self, login: &str, share: &str, commands: &str) -> String {
        let port = self.port;
        self.place.run(&format!(
            "smbclient -s /dev/null -U {login} -p {port} //127.0.0.1/{share} -c '{commands}' 2>&1"
        ))
    }

    /// Requests for the shared dataset that were answered so far.
    fn requests(&self) -> u64 {
        let port = self.metrics;
        let page = self
            .place
            .run(&format!("curl -s http://127.0.0.1:{port}/metrics"));
        let lines = page
            .lines()
            .filter_map(|line| line.strip_prefix("sanbox_requests_total{dataset=\"tank/share\","));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }

    /// The processes of this daemon's Samba. (The brackets keep the shell that looks from being one of them.)
    fn samba(&self) -> Vec<String> {
        let state = self.place.path("state/smb/smb.conf");
        let found = self.place.run(&format!(
            "pgrep -f -- '[s]mbd --foreground -s {}'",
            state.display()
        ));
        found
            .lines()
            .filter(|line| line.parse::<u32>().is_ok())
            .map(str::to_owned)
            .collect()
    }

    fn wait_until_gone(&self) {
        wait_for("the end of Samba", || {
            let left = self.samba();
            let seen = || format!("{left:?}");
            left.is_empty().then_some(()).ok_or_else(seen)
        });
    }
}

#[test]
fn files_users_and_shares_of_samba() {
    if let Some(why) = missing() {
        return skip("shares by SMB", why);
    }
    let shared = Shared::new();
    let place = &shared.place;
    let root = |commands: &str| shared.client("root%pw1", "tank_share", commands);
    // Who gets in.
    let list = |login: &str| {
        let port = shared.port;
        place.run(&format!(
            "smbclient -s /dev/null -g -p {port} -L 127.0.0.1 {login} 2>&1"
        ))
    };
    assert!(
        list("-U root%pw1").contains("Disk|tank_share|"),
        "{}",
        list("-U root%pw1")
    );
    assert!(list("-U root%wrong").contains("LOGON_FAILURE"));
    assert!(list("-N").contains("ACCESS_DENIED"));
    assert!(
        shared
            .client("%", "tank_share", "ls")
            .contains("ACCESS_DENIED")
    );
    // Bytes, both ways.
    let put = place.run("head -c 3000000 /dev/urandom > big");
    assert_eq!(put, "");
    assert!(root("mkdir d; cd d; put big big").contains("putting file big"));
    assert_eq!(place.run("sanbox cat tank/share:/d/big | cmp - big"), "");
    assert_eq!(place.run("sanbox put big tank/share:/other"), "");
    assert!(root("get other back").contains("getting file"));
    assert_eq!(place.run("cmp big back"), "");
    // Users are the machine's: this one may read what root made, and not write.
    let games = |commands: &str| shared.client("games%pw2", "tank_share", commands);
    assert!(games("get d/big again").contains("getting file"));
    assert!(
        games("put big no").contains("ACCESS_DENIED"),
        "{}",
        games("put big no")
    );
    // What clients do is told.
    let status = place.run(&format!(
        "mkfifo keys; smbclient -s /dev/null -U root%pw1 -p {} //127.0.0.1/tank_share >/dev/null 2>&1 <keys & \
         exec 3>keys; echo 'open other' >&3; \
         for i in $(seq 1000); do sanbox smb status -H | grep -q other && break; done; sanbox smb status -H; exec 3>&-; wait",
        shared.port
    ));
    assert!(
        status.starts_with("tank_share\ttank/share\trw\t-\nroot\t127.0.0.1\tSMB3_11\t"),
        "{status}"
    );
    assert!(
        status.contains("\ttank_share\ntank/share:/other\t0\tRW\n"),
        "{status}"
    );
    // Shares follow properties.
    assert_eq!(place.run("zfs set sharesmb=name=Work,ro tank/share"), "");
    let written = shared.client("root%pw1", "work", "put big new");
    assert!(written.contains("NT_STATUS_"), "{written}");
    assert!(place.run("sanbox ls tank/share:/new").contains("! "));
    assert!(root("ls").contains("BAD_NETWORK_NAME"));
    let refused = place.run("zfs set sharesmb=name=a/b tank/share");
    assert!(
        refused.contains("'sharesmb' cannot be set to invalid options"),
        "{refused}"
    );
    assert_eq!(place.run("zfs create -o sharesmb=name=work tank/twin"), "");
    shared.wait_for(
        "'tank/twin' is not shared: 'tank/share' is shared as 'work' already",
        1,
    );
    assert_eq!(
        place.run("zfs destroy tank/twin && zfs inherit sharesmb tank/share && sanbox smb status"),
        "nothing is shared by SMB, so Samba does not run\nSHARE  DATASET  ACCESS  GUESTS\nUSER  CLIENT  PROTOCOL  SIGNED  ENCRYPTED  SHARES\nFILE  UID  ACCESS\n"
    );
    shared.wait_until_gone();
}

/// Names are found whatever their case, also those that were made by another way and those that are too long for Samba to ask for.
#[test]
fn names_are_found_whatever_their_case() {
    if let Some(why) = missing() {
        return skip("names without regard to case by SMB", why);
    }
    let shared = Shared::new();
    let place = &shared.place;
    let made = place.run("zfs create -o casesensitivity=insensitive -o sharesmb=on tank/any");
    assert_eq!(made, "");
    for share in ["tank_share", "tank_any"] {
        let dataset = share.replace('_', "/");
        let root = |commands: &str| shared.client("root%pw1", share, commands);
        let get = |name: &str| {
            let told = root(&format!("get \"dir/{name}\" got"));
            match told.contains("NT_STATUS") {
                true => told,
                false => place.run("cat got && rm got"),
            }
        };
        assert_eq!(place.run("echo one > one && echo two > two"), "");
        root("mkdir dir; put one \"dir/Alpha Gr\u{fc}n.txt\"");
        assert_eq!(get("Alpha Gr\u{fc}n.txt"), "one\n");
        assert_eq!(get("ALPHA gR\u{dc}N.TXT"), "one\n");
        // A pattern has no case, either, and the name is told as it is stored.
        let listed = root("ls dir/alpha*");
        assert!(listed.contains("Alpha Gr\u{fc}n.txt"), "{share}: {listed}");
        // In place of it, not beside it.
        root("put two \"dir/alpha gr\u{fc}n.TXT\"");
        assert_eq!(get("Alpha Gr\u{fc}n.txt"), "two\n");
        for length in [227, 228, 254] {
            let name = "N".repeat(length);
            let told = root(&format!("put one dir/{name}"));
            assert!(!told.contains("NT_STATUS"), "{share} {length}: {told}");
            assert_eq!(get(&name.to_lowercase()), "one\n", "{share} {length}");
        }
        // Made, renamed and removed by another way.
        let changed = place.run(&format!("sanbox put two {dataset}:/dir/Other"));
        assert_eq!(changed, "");
        assert_eq!(get("OTHER"), "two\n");
        let removed = place.run(&format!("sanbox rm {dataset}:/dir/Other"));
        assert_eq!(removed, "");
        if share == "tank_share" {
            let gone = get("OTHER");
            assert!(gone.contains("NOT_FOUND"), "{gone}");
        } else {
            // Another spelling of a name is in the kernel's cache for up to a second.
            wait_for("the end of another spelling", || {
                let gone = get("OTHER");
                gone.contains("NOT_FOUND").then_some(()).ok_or(gone)
            });
        }
        let listed = root("ls dir/*");
        let files = listed
            .lines()
            .filter(|line| line.contains("  A  ") || line.contains("  N  "));
        assert_eq!(files.count(), 4, "{share}: {listed}");
    }
}

/// Linux caches access control lists, but not those of the root of a FUSE mount (from 6.18.42, 6.12.101 and 6.6.148 on): it asked for the
/// root's with each path that Samba looked up as a user, which was 23 of 59 requests for a file.
#[test]
fn the_list_of_a_shares_root_is_not_asked_for_with_each_path() {
    if let Some(why) = missing() {
        return skip("requests of Samba", why);
    }
    const PATHS: u64 = 500;
    let shared = Shared::new();
    let made = shared.place.run(
        "zfs set mountpoint=$PWD/m tank/share; zfs mount tank/share 2>/dev/null; chmod 777 m; mkdir m/d; zfs unmount tank/share",
    );
    assert_eq!(made, "");
    let guid: u64 = shared
        .place
        .run("zfs get -Hpo value guid tank/share")
        .trim()
        .parse()
        .expect("a guid");
    let samba = shared.samba();
    let process = samba.first().expect("smbd runs");
    let before = shared.requests();
    let found = shared.place.run(&format!(
        "nsenter -t {process} -m setpriv --reuid games --regid games --clear-groups sh -c \
         'for n in $(seq {PATHS}); do [ -d /run/sanbox/{guid:016x}/d ] && echo $n; done' | wc -l"
    ));
    assert_eq!(found.trim(), PATHS.to_string());
    let asked = shared.requests() - before;
    assert!(asked > 0, "requests are not counted");
    assert!(
        asked < PATHS / 2,
        "{asked} requests for one path {PATHS} times"
    );
}

#[test]
fn samba_lives_and_ends_with_the_daemon() {
    if let Some(why) = missing() {
        return skip("the life of Samba", why);
    }
    let mut shared = Shared::new();
    // smbclient reads commands of a pipe that come together one at a time, with the next as late as the end: one command each.
    let holding = |shared: &Shared| {
        shared.client("root%pw1", "tank_share", "put /etc/passwd f");
        let port = shared.port;
        let line = format!(
            "(echo 'open f'; sleep 20) | smbclient -s /dev/null -U root%pw1 -p {port} //127.0.0.1/tank_share"
        );
        let mut client = shared.place.command("sh");
        client.args(["-c", &line]);
        client
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let client = client.spawn().expect("a client");
        wait_for("an open file", || {
            let status = shared.place.run("sanbox smb status -H");
            status.contains("tank/share:/f").then_some(()).ok_or(status)
        });
        client
    };
    let end = |mut client: std::process::Child| {
        client.kill().expect("a client");
        client.wait().expect("its end");
    };
    // It ended by itself: it is started again, and that is said.
    let first = shared.samba();
    assert!(!first.is_empty());
    // Some of them end with others.
    shared.place.run(&format!("kill -9 {}", first.join(" ")));
    shared.wait_for("Samba ", 2);
    shared.wait_for("SMB is served", 2);
    assert!(
        shared
            .client("root%pw1", "tank_share", "ls")
            .contains("blocks available")
    );
    // A client with an open file does not hold up an export.
    let client = holding(&shared);
    assert_eq!(shared.place.run("zpool export tank"), "");
    end(client);
    shared.wait_until_gone();
    assert_eq!(shared.place.run("zpool import -d . tank"), "");
    shared.wait_for("SMB is served", 3);
    // Nor does one hold up the end of the daemon, by will or by force; nothing of it stays.
    let client = holding(&shared);
    shared.place.kill();
    end(client);
    shared.wait_until_gone();
    shared.serve();
    assert!(
        shared
            .client("root%pw1", "tank_share", "get f back")
            .contains("getting file")
    );
    let client = holding(&shared);
    shared.place.stop();
    end(client);
    shared.wait_until_gone();
    let state = shared.place.path("state");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&*state.to_string_lossy()), "{mounts}");
}

/// The names that `allinfo` has for the previous versions of a file.
fn versions(told: &str) -> Vec<String> {
    let lines = told.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("@GMT-"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn previous_versions_are_the_snapshots() {
    if let Some(why) = missing() {
        return skip("previous versions", why);
    }
    let shared = Shared::new();
    let place = &shared.place;
    let root = |commands: &str| shared.client("root%pw1", "tank_share", commands);
    // Names of snapshots do not matter, and of two in one second there is one.
    let made = place.run(
        "echo one > f; sanbox mkdir tank/share:/d && sanbox put f tank/share:/d/f && zfs snapshot tank/share@before && \
         sleep 1.1 && echo two > f && sanbox put f tank/share:/d/f && zfs snapshot 'tank/share@a b' && sleep 1.1 && \
         echo three > f && sanbox put f tank/share:/d/f",
    );
    assert_eq!(made, "");
    let told = root("allinfo d/f");
    let seen = versions(&told);
    assert_eq!(seen.len(), 2, "{told}");
    assert!(seen[0] > seen[1], "the latest first: {seen:?}");
    let get = |version: &str| {
        let said = root(&format!("get {version}/d/f back"));
        assert!(said.contains("getting file"), "{said}");
        place.run("cat back")
    };
    assert_eq!(get(&seen[0]), "two\n");
    assert_eq!(get(&seen[1]), "one\n");
    assert!(root("get d/f back").contains("getting file"));
    assert_eq!(place.run("cat back"), "three\n");
    // Nothing of them can be changed.
    let refused = root(&format!("del {}/d/f", seen[1]));
    assert!(refused.contains("NT_STATUS_"), "{refused}");
    // One that is destroyed is gone at once, and a time without one has none.
    assert_eq!(place.run("zfs destroy tank/share@before"), "");
    assert_eq!(versions(&root("allinfo d/f")), seen[..1]);
    let gone = root(&format!("get {}/d/f back", seen[1]));
    assert!(gone.contains("NT_STATUS_OBJECT_"), "{gone}");
    // A suite of others judges them.
    let port = shared.port;
    for test in ["openroot", "write"] {
        let told = place.run(&format!(
            "smbtorture -s /dev/null -p {port} -U root%pw1 --option=torture:twrp_snapshot={} --option=torture:twrp_file=d/f \
             //127.0.0.1/tank_share smb2.twrp.{test} 2>&1",
            seen[0]
        ));
        assert!(told.contains("success: "), "{told}");
    }
    assert_eq!(place.run("zfs set snapdir=disabled tank/share"), "");
    assert!(versions(&root("allinfo d/f")).is_empty());
}

#[test]
fn suites_of_smbtorture() {
    if let Some(why) = missing() {
        return skip("smbtorture", why);
    }
    let shared = Shared::new();
    let opened = shared.place.run(
        "zfs set mountpoint=$PWD/m tank/share; zfs mount tank/share; chmod 777 m; zfs unmount tank/share",
    );
    assert_eq!(opened, "");
    // Of another user than root: what one client has open must be in the way of another one, whoever they are.
    for (user, suite, passed) in [
        ("root%pw1", "smb2.streams", 11),
        ("games%pw2", "smb2.durable-open", 20),
        ("games%pw2", "smb2.durable-v2-open", 14),
        ("games%pw2", "smb2.rename", 9),
        ("games%pw2", "smb2.sharemode", 3),
        ("games%pw2", "smb2.oplock.batch1", 1),
        ("games%pw2", "smb2.oplock.exclusive5", 1),
    ] {
        let port = shared.port;
        let told = shared.place.run(&format!(
            "smbtorture -s /dev/null -p {port} -U {user} //127.0.0.1/tank_share {suite} 2>&1"
        ));
        let count = told.matches("success: ").count();
        assert!(
            count >= passed,
            "{suite}: {count} passed, {passed} expected:\n{told}"
        );
    }
}
