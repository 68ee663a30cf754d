//! Log-in by an OpenID Connect provider: Debian's `glewlwyd` (tests/oracles/openid), over TLS with a certificate of its own authority.
//! curl plays the browser, at the appliance and at the provider.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tests::{free_port, skip};

use crate::cli::{Place, wait_for};
use crate::console::{PASSWORD, owner, serve_at};
use crate::login::{certificates, said};

/// A provider that runs; ended when dropped.
struct Provider {
    child: Child,
    port: u16,
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the provider; `clock` is how far its clock is off.
fn provider(at: &Path, port: u16, callback: &str, clock: &[&str]) -> Provider {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracles/openid");
    let output = std::fs::File::create(at.join("said")).expect("made");
    let mut command = Command::new(script);
    command
        .arg(at)
        .arg(port.to_string())
        .arg(callback)
        .args(clock)
        .stdout(Stdio::null())
        .stderr(output);
    let child = command.spawn().expect("it runs");
    let provider = Provider { child, port };
    wait_for("the provider", || {
        let connected = std::net::TcpStream::connect(("localhost", port));
        match at.join("ready").exists() && connected.is_ok() {
            true => Ok(()),
            false => Err(std::fs::read_to_string(at.join("said")).unwrap_or_default()),
        }
    });
    provider
}

/// What an answer was: its status, where it leads, its body.
struct Answer {
    status: u16,
    location: String,
    body: Value,
}

/// A browser with its own cookies, which trusts the appliance and the provider.
struct Visitor {
    at: PathBuf,
    name: &'static str,
    console: u16,
    provider: u16,
}

impl Visitor {
    fn ask(&self, options: &[&str], url: &str) -> Answer {
        let cookies = self.at.join(format!("cookies-{}", self.name));
        let body = self.at.join("body");
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "60", "--cacert"])
            .arg(self.at.join("trusted.pem"))
            .args(["-w", "%{http_code} %{redirect_url}", "-b"])
            .arg(&cookies)
            .arg("-c")
            .arg(&cookies)
            .arg("-o")
            .arg(&body)
            .args(options)
            .arg(url)
            .output()
            .expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let failure = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{url}: {failure}");
        let (status, location) = text.split_once(' ').expect("both");
        Answer {
            status: status.parse().expect("a number"),
            location: location.to_owned(),
            body: serde_json::from_slice(&std::fs::read(body).unwrap_or_default())
                .unwrap_or(Value::Null),
        }
    }

    fn api(&self, path: &str) -> Answer {
        self.ask(&[], &format!("https://localhost:{}{path}", self.console))
    }

    /// Begins a log-in at the appliance; returns where it leads.
    fn begin(&self) -> String {
        let begun = self.api("/api/v1/login/oidc");
        assert_eq!(begun.status, 303, "{}", begun.body);
        begun.location
    }

    /// Logs in at the provider, as its page does; returns where it sends the browser back to.
    fn at_provider(&self, address: &str) -> String {
        let name = self.name;
        let user = json!({"username": name, "password": format!("{name}s password")});
        let url = format!("https://localhost:{}/api/auth", self.provider);
        let user = [
            "-H",
            "content-type: application/json",
            "-d",
            &user.to_string(),
        ];
        assert_eq!(self.ask(&user, &url).status, 200);
        let sent = self.ask(&[], &format!("{address}&g_continue"));
        assert_eq!(sent.status, 302, "{}", sent.body);
        assert!(sent.location.contains("code="), "{}", sent.location);
        sent.location
    }

    /// The whole of it; returns the answer to the code.
    fn log_in(&self) -> Answer {
        let back = self.at_provider(&self.begin());
        self.ask(&[], &back)
    }
}

/// The value of a field of an address.
fn field<'a>(address: &'a str, name: &str) -> &'a str {
    let behind = address.split(&format!("{name}=")).nth(1);
    behind.unwrap_or_default().split('&').next().expect("one")
}

/// An address without one of its fields.
fn without(address: &str, name: &str) -> String {
    let value = field(address, name);
    assert!(!value.is_empty(), "{name}: {address}");
    address.replace(&format!("&{name}={value}"), "")
}

/// The address that leads back from the provider, as if it answered the log-in that has begun with the first one.
fn with_state_of(begun: &str, back: &str) -> String {
    back.replace(field(back, "state"), field(begun, "state"))
}

fn configure(place: &Place, at: &Path, console: u16, provider: u16, trusted: &str) {
    let dir = at.display();
    std::fs::create_dir_all(place.path("state")).expect("made");
    std::fs::write(at.join("secret"), "secret-of-the-box\n").expect("written");
    let text = format!(
        "[login.oidc]\nissuer = 'https://localhost:{provider}/api/oidc'\nname = 'Example'\nclient_id = 'box'\n\
         client_secret_file = '{dir}/secret'\nconsole_url = 'https://localhost:{console}'\nca_file = '{dir}/{trusted}'\n\
         [login.oidc.roles]\noperator = ['storage']\n"
    );
    std::fs::write(place.path("state/sanbox.toml"), text).expect("written");
}

/// Codes of others, and codes that were used, begin no session.
fn codes_are_for_one_browser_and_once(visitor: impl Fn(&'static str) -> Visitor) {
    let [bob, eve] = ["bob", "eve"].map(&visitor);
    let back = bob.at_provider(&bob.begin());
    // In a browser that began nothing, and in one that began another log-in.
    assert_eq!(eve.ask(&[], &back).status, 403);
    let other = eve.begin();
    assert_ne!(field(&other, "state"), field(&back, "state"));
    assert_eq!(eve.ask(&[], &back).status, 403);
    // With that log-in's own state: the provider knows the code by another proof (RFC 7636, 4.6).
    let refused = eve.ask(&[], &with_state_of(&eve.begin(), &back));
    assert_eq!(refused.status, 401, "{}", refused.body);
    std::thread::sleep(Duration::from_millis(1100));
    // A code that was asked for without a challenge is bound to no proof: it is the nonce that tells.
    let plain = without(
        &without(&bob.begin(), "code_challenge"),
        "code_challenge_method",
    );
    let unbound = bob.at_provider(&plain);
    let refused = bob.ask(&[], &with_state_of(&bob.begin(), &unbound));
    assert_eq!(refused.status, 503, "{}", refused.body);
    // Used once, it is used.
    let back = bob.at_provider(&bob.begin());
    let jar = bob.at.join("cookies-bob");
    let before = std::fs::read(&jar).expect("there");
    assert_eq!(bob.ask(&[], &back).status, 200);
    std::fs::write(&jar, before).expect("written");
    let again = bob.ask(&[], &back);
    assert_eq!(again.status, 401, "{}", again.body);
}

#[test]
fn a_provider_is_asked_over_tls() {
    if ["glewlwyd", "faketime", "sqlite3"]
        .iter()
        .any(|tool| Command::new(tool).arg("--version").output().is_err())
    {
        skip("log-in by OpenID Connect", "glewlwyd is not installed");
        return;
    }
    let mut place = Place::new();
    let at = place.path("oidc");
    std::fs::create_dir_all(&at).expect("made");
    certificates(&at);
    let (console, port) = (free_port(), free_port());
    let callback = format!("https://localhost:{console}/api/v1/login/oidc/callback");
    let running = provider(&at, port, &callback, &[]);
    configure(&place, &at, console, port, "ca.pem");
    serve_at(&mut place, console, &[]);
    {
        let ann = owner(&place, console);
        let trusted = "cat ca.pem ../state/console-cert.pem > trusted.pem";
        said(Command::new("sh").args(["-ec", trusted]).current_dir(&at));
        let visitor = |name| Visitor {
            at: at.clone(),
            name,
            console,
            provider: running.port,
        };
        let bob = visitor("bob");
        let ways = bob.api("/api/v1/login").body;
        assert_eq!(ways, json!({"ldap": false, "oidc": "Example"}));
        let entered = bob.log_in();
        assert_eq!(entered.status, 200, "{}", entered.body);
        let session = bob.api("/api/v1/session").body;
        assert_eq!(
            (&session["name"], &session["role"]),
            (&json!("bob"), &json!("operator"))
        );
        // In no group that has a role here.
        assert_eq!(visitor("eve").log_in().status, 403);
        codes_are_for_one_browser_and_once(visitor);
        drop(running);
        // Of an hour ago: its tokens have ended.
        let _running = provider(&at, port, &callback, &["-1h"]);
        let late = bob.log_in();
        assert_eq!(late.status, 503, "{}", late.body);
        let said = ann.get("/api/v1/audit").to_string();
        for why in [
            "the ID token is of another log-in",
            "it does not know the code",
            "has expired",
        ] {
            assert!(said.contains(why), "{why}: {said}");
        }
    }
    place.stop();
    assert!(!place.log().contains("secret-of-the-box"));
    // A provider of another authority is shown no secret, and no browser is sent there.
    configure(&place, &at, console, port, "stranger.pem");
    let _running = provider(&at, port, &callback, &[]);
    serve_at(&mut place, console, &[]);
    let bob = Visitor {
        at,
        name: "bob",
        console,
        provider: port,
    };
    assert_eq!(bob.api("/api/v1/login/oidc").status, 503);
    let ann = json!({"name": "ann", "password": PASSWORD});
    let (status, _) =
        crate::console::browser(&place, console).ask("POST", "/api/v1/session", Some(&ann));
    assert_eq!(status, 201, "an owner gets in");
}
