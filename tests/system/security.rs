//! What protects the console on the wire, as a client sees it; and that each test that docs/security.md names exists. The client is curl.

use std::process::Command;

use serde_json::json;

use crate::cli::Place;
use crate::console::{PASSWORD, browser, serve_with, setup_token};

/// What a request to the console was answered, head and body; the words of curl where there was no answer.
fn curl(place: &Place, port: u16, options: &[&str], path: &str) -> String {
    let output = Command::new("curl")
        .args(["-sS", "-i", "--max-time", "60", "--cacert"])
        .arg(place.path("state/console-cert.pem"))
        .args(options)
        .arg(format!("https://localhost:{port}{path}"))
        .output()
        .expect("curl runs");
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    said
}

/// A daemon whose owner is 'ann'.
fn set_up(place: &mut Place) -> u16 {
    let port = serve_with(place, &[]);
    let owner = json!({"token": setup_token(place), "name": "ann", "password": PASSWORD});
    let (status, said) = browser(place, port).ask("POST", "/api/v1/setup", Some(&owner));
    assert_eq!(status, 201, "{said}");
    port
}

#[test]
fn old_versions_of_tls_are_refused() {
    let mut place = Place::new();
    let port = serve_with(&mut place, &[]);
    for version in ["1.0", "1.1"] {
        // A client that would take them: the server says no.
        let old = [
            "--tlsv1.0",
            "--ciphers",
            "DEFAULT@SECLEVEL=0",
            "--tls-max",
            version,
        ];
        let said = curl(&place, port, &old, "/healthz");
        let refused = said.starts_with("curl: (35)") && said.contains("alert");
        assert!(refused, "TLS {version}: {said}");
    }
    for version in ["1.2", "1.3"] {
        let only = format!("--tlsv{version}");
        let said = curl(&place, port, &[&only, "--tls-max", version], "/healthz");
        assert!(said.contains(" 200"), "TLS {version}: {said}");
    }
    place.stop();
}

#[test]
fn sessions_are_new_at_each_log_in_and_over_after_it() {
    let mut place = Place::new();
    let port = set_up(&mut place);
    let credentials = json!({"name": "ann", "password": PASSWORD}).to_string();
    let planted =
        "cookie: __Host-sanbox=0000000000000000000000000000000000000000000000000000000000000000";
    let log_in = |more: &[&str]| {
        let json = ["-H", "content-type: application/json", "-d", &credentials];
        let said = curl(&place, port, &[&json[..], more].concat(), "/api/v1/session");
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = line.unwrap_or_else(|| panic!("no cookie: {said}"));
        let csrf = said.split("\"csrf\":\"").nth(1).expect("a value");
        let csrf = csrf.split('"').next().unwrap_or_default();
        (
            cookie.split(';').next().unwrap_or_default().to_owned(),
            csrf.to_owned(),
        )
    };
    let (first, csrf) = log_in(&["-H", planted]);
    let (second, _) = log_in(&["-H", &format!("cookie: {first}")]);
    assert_ne!(first, second);
    assert!(
        first.starts_with(
            planted
                .trim_start_matches("cookie: ")
                .split('=')
                .next()
                .unwrap_or_default()
        ),
        "{first}"
    );
    let who = |header: &str| curl(&place, port, &["-H", header], "/api/v1/session");
    assert!(who(planted).contains(" 401"));
    for cookie in [&first, &second] {
        assert!(who(&format!("cookie: {cookie}")).contains("\"ann\""));
    }
    let shown = [
        "-X",
        "DELETE",
        "-H",
        &format!("cookie: {first}"),
        "-H",
        &format!("x-sanbox-csrf: {csrf}"),
    ];
    assert!(curl(&place, port, &shown, "/api/v1/session").contains(" 204"));
    assert!(who(&format!("cookie: {first}")).contains(" 401"));
    assert!(who(&format!("cookie: {second}")).contains("\"ann\""));
    place.stop();
}

#[test]
fn requests_are_bounded_in_bytes_and_time() {
    let mut place = Place::new();
    let port = set_up(&mut place);
    std::fs::write(place.path("large"), vec![b' '; 1 << 20]).expect("written");
    let large = format!("@{}", place.path("large").display());
    let json = ["-H", "content-type: application/json", "--data-binary"];
    let said = curl(
        &place,
        port,
        &[&json[..], &[large.as_str()]].concat(),
        "/api/v1/session",
    );
    assert!(said.contains(" 413"), "{said}");
    // A body that does not come is waited for 20 s, and no longer.
    let slow = [
        "-H",
        "content-type: application/json",
        "-H",
        "content-length: 100",
        "-d",
        "{",
        "--http1.1",
    ];
    let began = std::time::Instant::now();
    let said = curl(&place, port, &slow, "/api/v1/session");
    assert!(said.contains(" 408") || said.contains("curl: (5"), "{said}");
    assert!(began.elapsed().as_secs() < 55, "{said}");
    // Nothing is for pages of other origins.
    let origin = ["-H", "origin: https://elsewhere.example", "-X", "OPTIONS"];
    let said = curl(&place, port, &origin, "/api/v1/session").to_lowercase();
    assert!(!said.contains("access-control-"), "{said}");
    place.stop();
}

/// docs/security.md names tests that exist.
#[test]
fn the_tests_of_the_checklist_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/security.md")).expect("there");
    let mut count = 0;
    for named in text.split('`').skip(1).step_by(2) {
        let Some((file, test)) = named.split_once("::").filter(|_| named.contains(".rs::")) else {
            continue;
        };
        let source = std::fs::read_to_string(root.join(file));
        let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "no test {named}");
        count += 1;
    }
    assert!(count > 40, "{count}");
}
