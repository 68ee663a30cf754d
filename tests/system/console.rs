//! The REST API over TLS: the setup link of a new appliance, log-in, and lists of what is there. The client is curl.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::free_port;

use crate::cli::Place;

const PASSWORD: &str = "correct horse battery";

/// A client that knows the certificate, and keeps cookies in a file.
struct Browser<'a> {
    place: &'a Place,
    port: u16,
    csrf: String,
}

impl Browser<'_> {
    /// Returns status and body; asserts that the connection was good.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--max-time",
            "20",
            "-w",
            "\n%{http_code}",
            "-X",
            method,
        ])
        .arg("--cacert")
        .arg(self.place.path("state/console-cert.pem"))
        .arg("-b")
        .arg(self.place.path("cookies"))
        .arg("-c")
        .arg(self.place.path("cookies"))
        .args(["-H", &format!("x-sanbox-csrf: {}", self.csrf)])
        .arg(format!("https://localhost:{}{path}", self.port));
        if let Some(body) = body {
            curl.args([
                "-H",
                "content-type: application/json",
                "-d",
                &body.to_string(),
            ]);
        }
        let output = curl.output().expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let failure = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{path}: {failure}{text}");
        let (body, status) = text.rsplit_once('\n').expect("a status");
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        (status.parse().expect("a number"), body)
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

/// Starts a daemon with a console; returns its port.
fn serve(place: &mut Place) -> u16 {
    let port = free_port();
    place.serve(&[
        "--nfs-port",
        "0",
        "--iscsi-port",
        "0",
        "--metrics-port",
        "0",
        "--https-port",
        &port.to_string(),
    ]);
    for _ in 0..500 {
        if place.log().contains("fingerprint") {
            return port;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no console: {}", place.log());
}

fn setup_token(place: &Place) -> String {
    let log = place.log();
    let behind = log.split("/setup#").nth(1).expect("a setup link");
    behind.chars().take_while(char::is_ascii_hexdigit).collect()
}

fn browser(place: &Place, port: u16) -> Browser<'_> {
    Browser {
        place,
        port,
        csrf: String::new(),
    }
}

#[test]
fn a_new_appliance_is_set_up_and_looked_at_over_tls() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 128M a b && zpool create tank mirror $PWD/a $PWD/b && zfs create tank/fs && zfs create -V 8M tank/vol
         for i in 1 2 3 4 5; do zfs snapshot tank/fs@s$i; done",
    );
    assert_eq!(made, "");
    let port = serve(&mut place);
    let token = setup_token(&place);
    assert_eq!(token.len(), 64);
    {
        let mut browser = browser(&place, port);
        assert_eq!(browser.get("/api/v1/setup")["needed"], true);
        assert_eq!(browser.get("/api/v1/openapi.json")["openapi"], "3.1.0");
        assert_eq!(browser.ask("GET", "/api/v1/pools", None).0, 401);
        let owner = json!({"token": token, "name": "ann", "password": PASSWORD});
        let (status, session) = browser.ask("POST", "/api/v1/setup", Some(&owner));
        assert_eq!(status, 201, "{session}");
        browser.csrf = session["csrf"].as_str().expect("a value").to_owned();
        let pools = browser.get("/api/v1/pools");
        assert_eq!(pools[0]["name"], "tank");
        assert_eq!(pools[0]["health"], "ONLINE");
        let pool = browser.get("/api/v1/pools/tank");
        assert_eq!(
            pool["root"]["children"][0]["children"]
                .as_array()
                .map(Vec::len),
            Some(2)
        );
        let datasets = browser.get("/api/v1/datasets?limit=2");
        let names: Vec<&Value> = (0..2).map(|at| &datasets["datasets"][at]["name"]).collect();
        assert_eq!(names, ["tank", "tank/fs"]);
        let rest = browser.get(&format!(
            "/api/v1/datasets?cursor={}",
            datasets["next"].as_str().expect("more")
        ));
        assert_eq!(rest["datasets"][0]["name"], "tank/vol");
        assert_eq!(rest["next"], Value::Null);
        let whole = browser.get("/api/v1/datasets/tank%2Ffs");
        let compression = whole["properties"].as_array().expect("properties").iter();
        let compression = compression
            .clone()
            .find(|known| known["name"] == "compression");
        assert_eq!(compression.expect("there")["source"], "default");
        pages_of_snapshots(&browser);
        commands_are_jobs(&browser);
        assert_eq!(browser.ask("DELETE", "/api/v1/session", None).0, 204);
        assert_eq!(browser.ask("GET", "/api/v1/session", None).0, 401);
        let again = browser.ask("POST", "/api/v1/setup", Some(&owner));
        assert_eq!(again.0, 403);
    }
    place.stop();
    let certificate = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    let port = serve(&mut place);
    assert!(!place.log().contains("/setup#"), "{}", place.log());
    let same = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    assert_eq!(certificate, same);
    let known = json!({"name": "ann", "password": PASSWORD});
    let (status, session) = browser(&place, port).ask("POST", "/api/v1/session", Some(&known));
    assert_eq!((status, &session["role"]), (201, &json!("owner")));
    place.stop();
}

/// The newest first; a page goes on where the one before ended, also when that snapshot is gone.
fn pages_of_snapshots(browser: &Browser<'_>) {
    let page = |query: &str| browser.get(&format!("/api/v1/snapshots?dataset=tank/fs&{query}"));
    let names = |page: &Value| -> Vec<String> {
        let snapshots = page["snapshots"].as_array().expect("snapshots").iter();
        let name = |snapshot: &Value| snapshot["name"].as_str().map(str::to_owned);
        snapshots.filter_map(name).collect()
    };
    let first = page("limit=2");
    assert_eq!(names(&first), ["s5", "s4"]);
    assert_eq!(first["total"], 5);
    let cursor = first["next"].as_str().expect("more").to_owned();
    assert_eq!(
        names(&page(&format!("limit=2&cursor={cursor}"))),
        ["s3", "s2"]
    );
    assert_eq!(browser.place.run("zfs destroy tank/fs@s4"), "");
    let rest = page(&format!("cursor={cursor}"));
    assert_eq!(names(&rest), ["s3", "s2", "s1"]);
    assert_eq!(rest["next"], Value::Null);
    assert_eq!(names(&page("filter=3")), ["s3"]);
    let (status, _) = browser.ask("GET", "/api/v1/snapshots?dataset=tank/none", None);
    assert_eq!(status, 404);
}

/// A command over the API does what it does in a shell, and a shell's change is in the same log.
fn commands_are_jobs(browser: &Browser<'_>) {
    let give = |words: &[&str]| {
        let command = json!({"tool": "zfs", "arguments": words});
        let (status, job) = browser.ask("POST", "/api/v1/commands", Some(&command));
        assert_eq!(status, 202, "{job}");
        let output = format!("/api/v1/jobs/{}/output?wait=10&offset=0", job["id"]);
        let ended = |output: &Value| output["job"]["state"] != "running";
        let mut said = browser.get(&output);
        while !ended(&said) {
            said = browser.get(&output);
        }
        said
    };
    let made = give(&["snapshot", "tank/fs@console"]);
    assert_eq!(made["job"]["state"], "done");
    let again = give(&["snapshot", "tank/fs@console"]);
    assert_eq!(
        (&again["job"]["state"], &again["job"]["exit"]),
        (&json!("failed"), &json!(1))
    );
    let text = again["text"].as_str().expect("text");
    assert!(text.contains("dataset already exists"), "{text}");
    assert_eq!(browser.place.run("zfs destroy tank/fs@console"), "");
    let jobs = browser.get("/api/v1/jobs?filter=destroy");
    let newest = &jobs["jobs"][0];
    assert_eq!(newest["command"], "zfs destroy tank/fs@console");
    assert_eq!(
        (&newest["origin"], &newest["state"]),
        (&json!("shell"), &json!("done"))
    );
}

/// A database that is none is kept aside, and the appliance serves.
#[test]
fn a_damaged_database_of_users_stops_nothing() {
    let mut place = Place::new();
    assert_eq!(
        place.run("mkdir -p $SANBOX_STATE && yes damage | head -c 9999 > $SANBOX_STATE/state.db"),
        ""
    );
    serve(&mut place);
    assert!(
        place.log().contains("was damaged and is kept as"),
        "{}",
        place.log()
    );
    assert_eq!(setup_token(&place).len(), 64);
    assert!(place.run("ls $SANBOX_STATE").contains("state.db.damaged-"));
    place.stop();
}

/// Users and keys from the shell: what a key may over TLS, with a daemon and without.
#[test]
fn keys_made_in_a_shell_open_the_api() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 128M a && zpool create tank $PWD/a && zfs create tank/ci && echo 'correct horse battery' |
         sanbox user add ann --role owner && sanbox user list -H | cut -f1-3",
    );
    assert_eq!(made, "ann\towner\tpassword\n");
    let without_daemon = place.run("sanbox user key create ann --expires 90d 2>&1");
    let port = serve(&mut place);
    // The owner was made in a shell: there is no link.
    assert!(!place.log().contains("/setup#"), "{}", place.log());
    let of_datasets =
        place.run("sanbox user key create ci --role operator --dataset tank/ci 2>note; cat note");
    let (key, note) = of_datasets.split_once('\n').expect("a key and a note");
    assert!(
        note.contains("'ci' is a new user with the role operator"),
        "{note}"
    );
    let ask = |key: &str, method: &str, path: &str, body: &str| {
        place.run(&format!(
            "curl -sS --max-time 20 --cacert $SANBOX_STATE/console-cert.pem -X {method} -H 'Authorization: Bearer {key}' \
             -H 'content-type: application/json' -d '{body}' -o answer -w '%{{http_code}}' 'https://localhost:{port}{path}'"
        ))
    };
    let command = r#"{"tool": "zfs", "arguments": ["snapshot", "tank/ci@a"]}"#;
    let beside = r#"{"tool": "zfs", "arguments": ["snapshot", "tank@a"]}"#;
    let owners = without_daemon.trim();
    for (key, method, path, body, status) in [
        (owners, "GET", "/api/v1/pools", "", "200\n"),
        (owners, "POST", "/api/v1/keys", r#"{"name": "x"}"#, "403\n"),
        (key, "GET", "/api/v1/pools", "", "403\n"),
        (key, "GET", "/api/v1/datasets?root=tank/ci", "", "200\n"),
        (key, "POST", "/api/v1/commands", beside, "403\n"),
        (key, "POST", "/api/v1/commands", command, "202\n"),
        ("sanbox_0", "GET", "/api/v1/pools", "", "401\n"),
    ] {
        assert_eq!(
            ask(key, method, path, body),
            status,
            "{method} {path}: {}",
            place.run("cat answer")
        );
    }
    let job = || place.run("sanbox job list -H -n 1 | cut -f1-3,5");
    while job().contains("running") {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The first was that a key was made.
    assert_eq!(job(), "2\tdone\tci (key ci)\tzfs snapshot tank/ci@a\n");
    let shown = place.run("sanbox job show 2 | head -n 3; sanbox job cancel 2; sanbox job show 9");
    assert_eq!(
        shown,
        "command\tzfs snapshot tank/ci@a\nstate\tdone\nuser\tci (key ci)\n! job 2 does not run: it is done\n! there is no job 9\n[1]\n"
    );
    // A new password ends sessions; the name of the new user is no way in.
    let passwords = place.run(
        "echo 'another long password' > p && sanbox user passwd --password-file p ann; sanbox user passwd ann --password-file /dev/null
         sanbox user delete ann; sanbox user role ann viewer; sanbox user role ci owner",
    );
    assert_eq!(
        passwords,
        "! a password has at least 12 characters and at most 256 bytes\n! 'ann' is the only owner\n! 'ann' is the only owner\n"
    );
    let credentials = |password: &str| json!({"name": "ann", "password": password}).to_string();
    assert_eq!(
        ask("", "POST", "/api/v1/session", &credentials(PASSWORD)),
        "401\n"
    );
    assert_eq!(
        ask(
            "",
            "POST",
            "/api/v1/session",
            &credentials("another long password")
        ),
        "201\n"
    );
    let revoked = place.run(
        "sanbox user key list -H | cut -f1-5; sanbox user key revoke 1; sanbox user delete ci",
    );
    assert_eq!(
        revoked,
        "1\tann\tann\towner\t-\n2\tci\tci\toperator\ttank/ci\n"
    );
    for key in [owners, key] {
        assert_eq!(
            ask(key, "GET", "/api/v1/datasets?root=tank/ci", ""),
            "401\n"
        );
    }
    place.stop();
}
