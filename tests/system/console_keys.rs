//! Keys of encrypted datasets over the API: what is typed there opens them, and is in no job, no log and no file of the appliance.

use serde_json::{Value, json};

use crate::cli::Place;
use crate::console::{Browser, PASSWORD, browser, owner, serve_with};

const FIRST: &str = "the first of two phrases";
const SECOND: &str = "the other of two phrases";

/// Gives a command with what it reads; returns its exit code and output.
fn give(browser: &Browser<'_>, words: &[&str], input: Option<&str>) -> (u64, String) {
    let mut command = json!({"tool": "zfs", "arguments": words});
    if let Some(input) = input {
        command["input"] = json!(format!("{input}\n"));
    }
    let (status, job) = browser.ask("POST", "/api/v1/commands", Some(&command));
    assert_eq!(status, 202, "{job}");
    loop {
        let output = browser.get(&format!("/api/v1/jobs/{}/output?wait=10", job["id"]));
        if output["job"]["state"] != "running" {
            let exit = output["job"]["exit"].as_u64().expect("an exit code");
            return (exit, output["text"].as_str().expect("text").to_owned());
        }
    }
}

fn key_status(browser: &Browser<'_>) -> Value {
    let whole = browser.get("/api/v1/datasets/tank%2Fa");
    let properties = whole["properties"].as_array().expect("properties").iter();
    let mut found = properties.filter(|known| known["name"] == "keystatus");
    found.next().expect("the status of the key")["value"].clone()
}

#[test]
fn keys_are_loaded_changed_and_unloaded_over_the_api() {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk");
    assert_eq!(made, "");
    let port = serve_with(&mut place, &[]);
    let ann = owner(&place, port);
    let done = (0, String::new());
    let create = [
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        "pbkdf2iters=100000",
        "tank/a",
    ];
    assert_eq!(give(&ann, &create, Some(FIRST)), done);
    assert_eq!(key_status(&ann), "available");
    assert_eq!(give(&ann, &["unload-key", "tank/a"], None), done);
    assert_eq!(key_status(&ann), "unavailable");
    let wrong = give(&ann, &["load-key", "tank/a"], Some(SECOND));
    let said = "Key load error: Incorrect key provided for 'tank/a'.\n";
    assert_eq!(wrong, (255, said.to_owned()));
    assert_eq!(give(&ann, &["load-key", "tank/a"], Some(FIRST)), done);
    assert_eq!(key_status(&ann), "available");
    let change = ["change-key", "-o", "pbkdf2iters=100000", "tank/a"];
    assert_eq!(give(&ann, &change, Some(SECOND)), done);
    // Both sides see the same: the shell loads what the console has set.
    let line = format!("zfs unload-key tank/a; echo '{FIRST}' | zfs load-key tank/a");
    assert!(place.run(&line).contains("Incorrect key"));
    assert_eq!(
        place.run(&format!("echo '{SECOND}' | zfs load-key -n tank/a")),
        "1 / 1 key(s) successfully verified\n"
    );

    let bob = json!({"name": "bob", "password": PASSWORD, "role": "operator"});
    assert_eq!(ann.ask("POST", "/api/v1/users", Some(&bob)).0, 201);
    let known = json!({"name": "bob", "password": PASSWORD});
    assert_eq!(ann.ask("DELETE", "/api/v1/session", None).0, 204);
    let mut bob = browser(&place, port);
    let (status, session) = bob.ask("POST", "/api/v1/session", Some(&known));
    assert_eq!(status, 201, "{session}");
    bob.csrf = session["csrf"].as_str().expect("a value").to_owned();
    assert_eq!(give(&bob, &["load-key", "tank/a"], Some(SECOND)), done);
    let refused = |words: &[&str], input: Option<&str>, expect: u16| {
        let command = json!({"tool": "zfs", "arguments": words, "input": input});
        let (status, problem) = bob.ask("POST", "/api/v1/commands", Some(&command));
        assert_eq!(status, expect, "{words:?}: {problem}");
    };
    refused(&["change-key", "tank/a"], Some(FIRST), 403);
    refused(
        &["load-key", "-L", "file:///etc/hostname", "tank/a"],
        None,
        403,
    );
    refused(
        &["set", "keylocation=file:///etc/hostname", "tank/a"],
        None,
        403,
    );
    refused(&["list"], Some(FIRST), 400);
    let jobs = bob.get("/api/v1/jobs?filter=load-key");
    let line = &jobs["jobs"][0]["command"];
    assert_eq!(line, "zfs load-key tank/a");
    // A command that read a key is not given again without it.
    let retry = format!("/api/v1/jobs/{}/retry", jobs["jobs"][0]["id"]);
    assert_eq!(bob.ask("POST", &retry, None).0, 409);
    place.stop();
    assert_eq!(place.run("zpool history tank | grep -c phrases; grep -rl 'of two phrases' $SANBOX_STATE ../log || echo none"), "0\nnone\n");
}
