//! A disk that takes requests and never answers: every page of the API answers within a second all the same, other pools go on, and the disk is
//! named. The disk is a file in a mount whose daemon is stopped by SIGSTOP, so that requests hang in the kernel as they do on hardware.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Place;
use crate::console::{Browser, PASSWORD, browser, serve_with, setup_token};
use crate::snapdir::can_mount;

/// How long a call may take on a machine with nothing else to do; on a slow one, [`SLOWER`] times as long as the slowest did before.
const ANSWER_MAX: Duration = Duration::from_secs(1);
const SLOWER: u32 = 4;
/// How often a page that took too long is asked for again: other work of the machine may have held it up, but not each time.
const TRIES: usize = 5;
/// How long it may take until there is an alert.
const ALERT_TIMEOUT: Duration = Duration::from_secs(180);

/// Continues the daemon of the disk however the test ends: nothing that waits for it could be ended otherwise.
struct Stopped(String);

impl Stopped {
    fn new(place: &Place) -> Self {
        let pid = place.pid().to_string();
        signal("-STOP", &pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(name: &str, pid: &str) {
    let sent = Command::new("kill").args([name, pid]).status();
    assert!(sent.expect("kill runs").success());
}

/// The pages of the console: what each asks for first.
const PAGES: &[&str] = &[
    "/api/v1/session",
    "/api/v1/users",
    "/api/v1/keys",
    "/api/v1/audit",
    "/api/v1/alerts",
    "/api/v1/checks",
    "/api/v1/trash",
    "/api/v1/policies",
    "/api/v1/policies/preview?dataset=hung/fs&policy=daily=7",
    "/api/v1/policies/preview?dataset=fine/fs&policy=daily=7",
    "/api/v1/replications",
    "/api/v1/replications/job",
    "/api/v1/history",
    "/api/v1/history/why",
    "/api/v1/version",
    "/api/v1/pools",
    "/api/v1/pools/hung",
    "/api/v1/pools/fine",
    "/api/v1/disks",
    "/api/v1/datasets",
    "/api/v1/datasets?root=hung",
    "/api/v1/datasets/hung%2Ffs",
    "/api/v1/datasets/hung%2Fcold",
    "/api/v1/datasets/fine%2Ffs",
    "/api/v1/snapshots?dataset=hung/fs",
    "/api/v1/snapshots?dataset=hung/cold",
    "/api/v1/snapshots?dataset=fine/fs",
    "/api/v1/files?dataset=hung/fs",
    "/api/v1/files?dataset=hung/cold",
    "/api/v1/files?dataset=fine/fs",
    "/api/v1/smb",
    "/api/v1/jobs",
    "/api/v1/shares",
    "/api/v1/targets",
    "/healthz",
];

/// How long the slowest of all pages takes.
fn slowest_page(browser: &Browser<'_>) -> Duration {
    let took = |path: &&str| {
        let began = Instant::now();
        browser.ask("GET", path, None);
        began.elapsed()
    };
    PAGES.iter().map(took).max().unwrap_or_default()
}

/// Asks for each page; returns those that took longer than `limit`, or said something else than an answer or that the pool does not
/// answer.
fn slow_pages(browser: &Browser<'_>, limit: Duration) -> Vec<String> {
    let mut slow = Vec::new();
    for path in PAGES {
        let tries = (0..TRIES).map(|_| {
            let began = Instant::now();
            let (status, body) = browser.ask("GET", path, None);
            let took = began.elapsed();
            let is_answer = status == 200 || status == 503 && path.contains("hung");
            (took > limit || !is_answer)
                .then(|| format!("{path}: {status} after {took:?}: {}", body["detail"]))
        });
        // The last of them, if each was wrong.
        let wrong: Option<Vec<String>> = tries.collect();
        slow.extend(wrong.and_then(|mut wrong| wrong.pop()));
    }
    slow
}

/// The alert about the pool that hangs.
fn alert(browser: &Browser<'_>) -> Option<Value> {
    let began = Instant::now();
    while began.elapsed() < ALERT_TIMEOUT {
        let alerts = browser.get("/api/v1/alerts");
        let found = alerts.as_array().into_iter().flatten();
        let mut found = found.filter(|alert| alert["key"] == "pool/hung/silent");
        if let Some(alert) = found.next() {
            return Some(alert.clone());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    None
}

#[test]
fn a_disk_that_never_answers_hangs_no_page_and_is_named() {
    let mut shelf = Place::new();
    if !can_mount(&shelf) {
        return;
    }
    let made = shelf
        .run("truncate -s 512M disk && zpool create -O mountpoint=$PWD/m shelf $PWD/disk && sync");
    assert_eq!(made, "");
    shelf.serve(&[
        "--nfs-port",
        "0",
        "--iscsi-port",
        "0",
        "--metrics-port",
        "0",
        "--https-port",
        "0",
    ]);
    assert_eq!(shelf.run("zfs mount shelf"), "");
    let disk = format!("{}/m/hangs", shelf.work());
    let mut place = Place::new();
    let made = place.run(&format!(
        "truncate -s 128M {disk} good && zpool create hung {disk} && zpool create fine $PWD/good && \
         for pool in hung fine; do zfs create $pool/fs && zfs create $pool/cold && zfs snapshot -r $pool@one; done && \
         sanbox replication create job --from hung/fs --to fine/copy --every 1s"
    ));
    assert_eq!(made, "");
    let port = serve_with(&mut place, &[]);
    let token = setup_token(&place);
    {
        let mut browser = browser(&place, port);
        let owner = json!({"token": token, "name": "ann", "password": PASSWORD});
        let (status, session) = browser.ask("POST", "/api/v1/setup", Some(&owner));
        assert_eq!(status, 201, "{session}");
        browser.csrf = session["csrf"].as_str().expect("a value").to_owned();
        let limit = ANSWER_MAX.max(SLOWER * slowest_page(&browser));
        assert_eq!(slow_pages(&browser, limit), Vec::<String>::new(), "before");
        let stopped = Stopped::new(&shelf);
        // What is written waits for the disk, and so does whoever asks for what it holds.
        let mut waiting: Vec<_> = [
            "zfs snapshot hung/fs@two",
            "zfs create hung/new",
            "zpool sync hung",
        ]
        .iter()
        .map(|line| {
            let mut shell = place.command("sh");
            shell.args(["-c", line]).stdout(Stdio::null());
            shell.stderr(Stdio::null()).spawn().expect("a shell")
        })
        .collect();
        std::thread::sleep(Duration::from_secs(2));
        let first = slow_pages(&browser, limit);
        let alert = alert(&browser);
        let later = slow_pages(&browser, limit);
        let began = Instant::now();
        assert_eq!(place.run("zfs snapshot fine/fs@two"), "");
        let other = began.elapsed();
        drop(stopped);
        for waits in &mut waiting {
            assert!(waits.wait().expect("a child").success());
        }
        assert_eq!(first, Vec::<String>::new(), "at first");
        assert_eq!(later, Vec::<String>::new(), "later");
        assert!(other < 5 * limit, "another pool waits: {other:?}");
        let alert = alert.expect("an alert");
        let text = alert.to_string();
        assert!(text.contains(&disk), "the disk is not named: {text}");
        assert_eq!(
            slow_pages(&browser, limit),
            Vec::<String>::new(),
            "afterwards"
        );
    }
    place.stop();
    shelf.stop();
}
