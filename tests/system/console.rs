//! The REST API over TLS: the setup link of a new appliance, log-in, and lists of what is there. The client is curl.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::free_port;

use crate::cli::{Place, wait_for};

pub(crate) const PASSWORD: &str = "correct horse battery";

/// A client that knows the certificate, and keeps cookies in a file.
pub(crate) struct Browser<'a> {
    place: &'a Place,
    port: u16,
    pub(crate) csrf: String,
}

impl Browser<'_> {
    /// Returns status and body; asserts that the connection was good.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_with(method, path, body, &[])
    }

    /// As [`Self::ask`], with more headers.
    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[&str],
    ) -> (u16, Value) {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--max-time",
            "120",
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
        for header in headers {
            curl.args(["-H", header]);
        }
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

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

/// Starts a daemon with a console; returns its port.
fn serve(place: &mut Place) -> u16 {
    serve_with(place, &[])
}

/// As [`serve`], with more flags.
pub(crate) fn serve_with(place: &mut Place, flags: &[&str]) -> u16 {
    serve_at(place, free_port(), flags)
}

/// As [`serve_with`], at this port.
pub(crate) fn serve_at(place: &mut Place, port: u16, flags: &[&str]) -> u16 {
    let port_text = port.to_string();
    let own = [
        "--nfs-port",
        "0",
        "--iscsi-port",
        "0",
        "--metrics-port",
        "0",
        "--https-port",
        &port_text,
    ];
    place.serve(&[&own, flags].concat());
    wait_for("the console", || {
        let log = place.log();
        log.contains("fingerprint").then_some(port).ok_or(log)
    })
}

pub(crate) fn setup_token(place: &Place) -> String {
    let log = place.log();
    let behind = log.split("/setup#").nth(1).expect("a setup link");
    behind.chars().take_while(char::is_ascii_hexdigit).collect()
}

pub(crate) fn browser(place: &Place, port: u16) -> Browser<'_> {
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
    a_certificate_is_replaced(&place, port, &known);
    place.stop();
}

/// What is no certificate changes nothing; another one is in use without a restart.
fn a_certificate_is_replaced(place: &Place, port: u16, known: &Value) {
    let said = |words: &str| {
        wait_for(words, || {
            let log = place.log();
            log.contains(words).then_some(()).ok_or(log)
        });
    };
    let [certificate, key] =
        ["console-cert.pem", "console-key.pem"].map(|name| place.path(&format!("state/{name}")));
    let before = std::fs::read(&certificate).expect("there");
    std::fs::write(&certificate, "half of a file").expect("written");
    said("the certificate before stays in use");
    std::fs::write(&certificate, &before).expect("written");
    let (status, _) = browser(place, port).ask("POST", "/api/v1/session", Some(known));
    assert_eq!(status, 201);
    for path in [&certificate, &key] {
        std::fs::remove_file(path).expect("removed");
    }
    said("another certificate is in use");
    let made = std::fs::read(&certificate).expect("made anew");
    assert_ne!(made, before);
    let (status, _) = browser(place, port).ask("POST", "/api/v1/session", Some(known));
    assert_eq!(status, 201);
    // Lost where none can be stored: clients keep the one that they know.
    let in_the_way = place.path("state/console-cert.new");
    std::fs::create_dir(&in_the_way).expect("made");
    std::fs::remove_file(&certificate).expect("removed");
    // Longer than it takes until the files are looked at again.
    std::thread::sleep(Duration::from_secs(7));
    let changes = place.log().matches("another certificate is in use").count();
    assert_eq!(changes, 1, "{}", place.log());
    std::fs::remove_dir(&in_the_way).expect("removed");
    std::fs::write(&certificate, &made).expect("written");
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

/// Sets up the first owner, and begins a session.
pub(crate) fn owner(place: &Place, port: u16) -> Browser<'_> {
    let mut browser = browser(place, port);
    let owner = json!({"token": setup_token(place), "name": "ann", "password": PASSWORD});
    let (status, session) = browser.ask("POST", "/api/v1/setup", Some(&owner));
    assert_eq!(status, 201, "{session}");
    browser.csrf = session["csrf"].as_str().expect("a value").to_owned();
    browser
}

/// What the plan of a pool says of its size is what `zpool list` and `zfs list` say of the pool that its command makes: the former to
/// the byte, the latter within 1 %.
#[test]
fn the_plan_of_a_pool_is_what_the_pool_becomes() {
    let mut place = Place::new();
    let made = place.run(
        "mkdir disks && for n in 0 1 2 3 4 5 6 7; do truncate -s 3G disks/d$n; done
         truncate -s 2500M disks/small && truncate -s 200M disks/log",
    );
    assert_eq!(made, "");
    let directory = place.path("work/disks");
    let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let port = serve_with(&mut place, &["--devices", &directory.to_string_lossy()]);
    let browser = owner(&place, port);
    let vdev = |role: &str, layout: &str, disks: &[&str]| {
        let disks: Vec<_> = disks.iter().map(|name| at(name)).collect();
        json!({"role": role, "layout": layout, "disks": disks})
    };
    let all = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];
    let mut draid = vdev("data", "draid1", &all);
    (draid["data"], draid["spares"]) = (json!(3), json!(1));
    for vdevs in [
        vec![vdev("data", "single", &["d0", "d1"])],
        vec![
            vdev("data", "mirror", &["d0", "d1"]),
            vdev("data", "mirror", &["d2", "d3"]),
            vdev("log", "single", &["log"]),
        ],
        vec![
            vdev("data", "raidz1", &["d0", "d1", "d2"]),
            vdev("spare", "single", &["d3"]),
        ],
        vec![vdev("data", "raidz2", &all[..6])],
        vec![vdev("data", "raidz3", &all)],
        vec![vdev("data", "mirror", &["d0", "small"])],
        vec![
            vdev("data", "mirror", &["d0", "d1"]),
            vdev("special", "mirror", &["d2", "d3"]),
        ],
        vec![draid],
    ] {
        let request = json!({"name": "tank", "vdevs": vdevs});
        let (status, plan) = browser.ask("POST", "/api/v1/pools/plan", Some(&request));
        assert_eq!(status, 200, "{plan}");
        let command = plan["command"].as_str().expect("a line");
        assert_eq!(place.run(command), "", "{command}");
        let numbers = place.run("zpool list -Hpo size tank; zfs list -Hpo used,available tank");
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        assert_eq!(plan["size_bytes"], numbers[0], "{command}");
        let usable = plan["usable_bytes"].as_u64().expect("a number");
        let offered = numbers[1] + numbers[2];
        assert!(
            usable.abs_diff(offered) * 100 <= offered,
            "{command}: planned {usable}, has {offered}"
        );
        disks_of_the_pool(&browser, &at("d0"), &at("d7"), command);
        assert_eq!(place.run("zpool destroy tank"), "");
    }
    let text = json!({"name": "tank", "vdevs": [vdev("data", "single", &["../../etc/passwd"])]});
    assert_eq!(
        browser.ask("POST", "/api/v1/pools/plan", Some(&text)).0,
        422
    );
    drop(browser);
    place.stop();
}

/// A disk of the pool is its member and not free; one that is not, is free, since destroyed pools keep no disk.
fn disks_of_the_pool(browser: &Browser<'_>, member: &str, other: &str, command: &str) {
    let list = browser.get("/api/v1/disks");
    let disks = list["disks"].as_array().expect("disks");
    let disk = |path: &str| {
        let mut disks = disks.iter();
        disks.find(|disk| disk["path"] == path).expect("listed")
    };
    let own = disk(member);
    assert_eq!(
        (&own["member"]["pool"], &own["free"]),
        (&json!("tank"), &json!(false)),
        "{command}"
    );
    if !command.contains(other) {
        assert_eq!(disk(other)["free"], true, "{command}: {}", disk(other));
    }
}

/// Files are listed, sent, fetched and restored; no path leads out of its file system.
#[test]
fn files_are_reached_and_no_others() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/fs && zfs create tank/other
         ln -s /etc/passwd link && sanbox put link tank/fs:/link && mkdir -p dir && ln -s ../.. dir/up
         echo evil > 'dir/<img src=x onerror=alert(1)>' && sanbox put -r dir tank/fs:/dir",
    );
    assert_eq!(made, "");
    let port = serve(&mut place);
    let browser = owner(&place, port);
    let at = |dataset: &str, path: &str| format!("dataset={dataset}&path={path}");
    let content =
        |dataset: &str, path: &str| format!("/api/v1/files/content?{}", at(dataset, path));
    let put = |path: &str, text: &str| browser.ask("PUT", path, Some(&json!(text))).0;
    // The name is 'a b': a segment by itself, and then a value of a query.
    let file = content("tank/fs", "dir/a%2520b");
    assert_eq!(put(&file, "first"), 201);
    assert_eq!(put(&file, "second"), 409);
    assert_eq!(browser.get(&file), "first");
    assert_eq!(place.run("zfs snapshot tank/fs@then"), "");
    assert_eq!(put(&format!("{file}&replace=true"), "second"), 201);
    assert_eq!(browser.get(&file), "second");
    let then = content("tank/fs@then", "dir/a%2520b");
    assert_eq!(browser.get(&then), "first");
    assert_eq!(put(&content("tank/fs@then", "new"), "x"), 403);
    let list = browser.get(&format!("/api/v1/files?{}", at("tank/fs", "/dir")));
    let names: Vec<_> = list["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter_map(|file| file["name"].as_str())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.contains(&"<img src=x onerror=alert(1)>"), "{names:?}");
    for (path, status) in [
        ("link", 422),
        ("link/x", 422),
        ("dir/up/link", 422),
        ("..", 400),
        ("dir/../link", 400),
        ("%252e%252e/other", 400),
        ("dir%252F..%252Flink", 400),
        (".zfs/snapshot", 400),
        ("dir", 422),
        ("none", 404),
        ("dir/x%2500", 400),
    ] {
        let (answered, body) = browser.ask("GET", &content("tank/fs", path), None);
        assert_eq!(answered, status, "{path}: {body}");
    }
    assert_eq!(put(&content("tank/fs", "../x"), "x"), 400);
    assert_eq!(put(&content("tank/fs", "dir/up/x"), "x"), 422);
    assert_eq!(
        place.run("sanbox ls tank/fs:/ && sanbox ls tank/other:/"),
        "dir\nlink\n"
    );
    drop(browser);
    place.stop();
}

/// What is served to other machines is in the lists, with the reason where it is not served.
#[test]
fn shares_and_targets_are_listed() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create -o sharenfs=ro tank/fs
         zfs create -V 8M tank/vol && sanbox target create iqn.2026-11.org.example:a
         sanbox target map iqn.2026-11.org.example:a tank/vol --lun 3
         sanbox target chap iqn.2026-11.org.example:a --user me --secret verysecretword",
    );
    assert_eq!(made, "");
    let port = serve(&mut place);
    let browser = owner(&place, port);
    let targets = browser.get("/api/v1/targets");
    let target = &targets["targets"][0];
    assert_eq!(
        (&target["chap_user"], &target["luns"][0]["volume"]),
        (&json!("me"), &json!("tank/vol"))
    );
    assert_eq!(target["luns"][0]["lun"], 3);
    assert!(!targets.to_string().contains("verysecretword"));
    assert_eq!(
        targets["volumes"][0]["targets"][0],
        "iqn.2026-11.org.example:a"
    );
    let shares = browser.get("/api/v1/shares");
    assert_eq!(shares["shares"][0]["path"], "/tank/fs");
    assert_eq!(shares["shares"][0]["options"], "ro");
    drop(browser);
    place.stop();
}

/// A change given with `If-Match` is made only while the settings are those that were looked at.
#[test]
fn two_people_do_not_overwrite_each_other() {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/fs");
    assert_eq!(made, "");
    let port = serve(&mut place);
    let browser = owner(&place, port);
    let etag = || {
        let known = format!(
            "curl -s -D - -o /dev/null --cacert {} -b {} https://localhost:{port}/api/v1/datasets/tank%2Ffs",
            place.path("state/console-cert.pem").display(),
            place.path("cookies").display()
        );
        let head = place.run(&known);
        let line = head.lines().find_map(|line| line.strip_prefix("etag: "));
        line.expect("a tag").trim().to_owned()
    };
    let seen = etag();
    assert_eq!(place.run("printf x > f && sanbox put f tank/fs:/f"), "");
    assert_eq!(etag(), seen, "data is no setting");
    let set = |tag: &str, value: &str| {
        let words = json!({"tool": "zfs", "arguments": ["set", format!("quota={value}"), "tank/fs"], "about": "tank/fs"});
        browser
            .ask_with(
                "POST",
                "/api/v1/commands",
                Some(&words),
                &[&format!("if-match: {tag}")],
            )
            .0
    };
    assert_eq!(place.run("zfs set quota=100M tank"), "");
    assert_eq!(set(&seen, "50M"), 202);
    wait_for("the quota", || {
        let quota = place.run("zfs get -Ho value quota tank/fs");
        (quota == "50M\n").then_some(()).ok_or(quota)
    });
    assert_eq!(set(&seen, "60M"), 412);
    assert_eq!(set(&etag(), "60M"), 202);
    drop(browser);
    place.stop();
}

/// What comes in the clear is sent to HTTPS, and gets nothing else.
#[test]
fn plain_http_is_sent_to_https() {
    let mut place = Place::new();
    let port = serve(&mut place);
    let said = place.run(&format!(
        "curl -s -o /dev/null -w '%{{http_code}} %{{redirect_url}}' http://localhost:{port}/pools/tank"
    ));
    assert_eq!(said, format!("308 https://localhost:{port}/pools/tank\n"));
    place.stop();
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
    // An alert says so until the file is removed.
    let alerts = |wanted: bool| {
        wait_for("the check of the state directory", || {
            let said = place.run("sanbox checks run state-directory; sanbox alert list -H");
            match said.contains("state.db.damaged-") == wanted {
                true => Ok(()),
                false => Err(said),
            }
        });
    };
    alerts(true);
    assert_eq!(place.run("rm $SANBOX_STATE/state.db.damaged-*"), "");
    alerts(false);
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
    let job = wait_for("the end of the job", || {
        let job = place.run("sanbox job list -H -n 1 | cut -f1-3,5");
        if job.contains("running") {
            Err(job)
        } else {
            Ok(job)
        }
    });
    // The first was that a key was made.
    assert_eq!(job, "2\tdone\tci (key ci)\tzfs snapshot tank/ci@a\n");
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

/// What requests waited for is there while the daemon runs and after it, for the API and in a shell.
#[test]
fn the_history_says_why_and_outlives_the_daemon() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 128M a && zpool create tank $PWD/a && zfs create tank/fs && head -c 3M /dev/urandom > file",
    );
    assert_eq!(made, "");
    let port = serve(&mut place);
    let key = place.run("sanbox user key create ci 2>note");
    let requests = |place: &Place| -> u64 {
        let said = place.run("sanbox why -j --for 5m --dataset tank");
        let explained: Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        explained["requests"].as_u64().expect("a number")
    };
    let mut seen = 0;
    for round in 0..100 {
        assert_eq!(place.run(&format!("sanbox put file tank/fs:/f{round}")), "");
        seen = requests(&place);
        if seen > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(seen > 0, "{}", place.run("sanbox why"));
    let ask = |path: &str| {
        place.run(&format!(
            "curl -sS --max-time 20 --cacert $SANBOX_STATE/console-cert.pem -H 'Authorization: Bearer {}' 'https://localhost:{port}{path}'",
            key.trim()
        ))
    };
    let history: Value = serde_json::from_str(&ask("/api/v1/history?by=dataset")).expect("JSON");
    assert_eq!(history["series"][0]["key"], "tank/fs", "{history}");
    assert_eq!(history["unsaved"], Value::Null);
    let csv = ask("/api/v1/history?by=disk&format=csv&points=1");
    assert!(
        csv.starts_with("time,seconds,key,") && csv.contains("tank: "),
        "{csv}"
    );
    let why: Value =
        serde_json::from_str(&ask("/api/v1/history/why?client=192.0.2.9")).expect("JSON");
    assert_eq!(why["sentence"], "There were no requests of 192.0.2.9.");
    place.stop();
    assert!(requests(&place) >= seen);
    let words = place.run("sanbox why --at 10m; sanbox why --at noon 2>&1 | head -n 1");
    assert!(words.contains("There were no requests."), "{words}");
    assert!(words.contains("--at noon: a time such as 14:05"), "{words}");
}

/// A disk that goes is one alert, which is told to a web service, muted, and over when the disk is back.
#[test]
fn a_disk_that_goes_is_one_alert_until_it_is_back() {
    let mut place = Place::new();
    let hook = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = hook.local_addr().expect("an address");
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let received = told.clone();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for stream in hook.incoming() {
            let Ok(mut stream) = stream else {
                return;
            };
            let mut request = String::new();
            let mut piece = [0; 4096];
            while let Ok(read) = stream.read(&mut piece) {
                request.push_str(&String::from_utf8_lossy(&piece[..read]));
                let body = request.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                if read == 0 || serde_json::from_str::<Value>(body).is_ok() {
                    break;
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            received.lock().expect("whole").push(request);
        }
    });
    let made = place.run(&format!(
        "truncate -s 128M a b && zpool create tank mirror $PWD/a $PWD/b
         printf '[[alerts.webhook]]\nurl = \"http://{at}/hook\"\n' > ../state/sanbox.toml"
    ));
    assert_eq!(made, "");
    serve(&mut place);
    let until = |what: &str, holds: &dyn Fn(&str) -> bool| {
        wait_for(what, || {
            let said = place.run("sanbox alert list -H -a");
            if holds(&said) {
                Ok(said)
            } else {
                Err(place.run("sanbox alert list -a; sanbox alert checks"))
            }
        })
    };
    let test = place.run("sanbox alert test");
    assert_eq!(test, format!("webhook {at}: sent\n"));
    assert_eq!(place.run("sanbox alert list"), "No alerts.\n");
    assert_eq!(place.run("zpool offline tank $PWD/b"), "");
    let opened = until("degraded", &|said| said.contains("DEGRADED"));
    assert_eq!(opened.lines().count(), 1, "{opened}");
    assert!(opened.starts_with("1\twarning\topen\t"), "{opened}");
    assert_eq!(
        place.run("sanbox alert acknowledge 1; sanbox alert mute 7"),
        "! there is no alert 7, or it is over\n[1]\n"
    );
    until("acknowledged", &|said| said.contains("\tacknowledged\t"));
    let event = |word: &str| {
        let told = told.lock().expect("whole");
        told.iter()
            .filter(|request| request.contains(&format!("\"event\":\"{word}\"")))
            .count()
    };
    // It is told by a task of its own, perhaps later than it is listed.
    until("told", &|_| event("opened") > 0);
    assert_eq!((event("test"), event("opened")), (1, 1));
    let checks = place.run("sanbox alert checks -H | cut -f1");
    assert_eq!(
        checks
            .lines()
            .filter(|line| !line.starts_with("webhook"))
            .count(),
        14,
        "{checks}"
    );
    place.stop();
    // The alert outlives the daemon.
    let kept = place.run("sanbox alert list -H 2>&1");
    assert!(kept.contains("\tacknowledged\t"), "{kept}");
}
