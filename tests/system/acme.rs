//! Certificates from an authority (RFC 8555): Debian's `pebble`, with the names of `pebble-challtestsrv`, which lead to loopback addresses.
//! openssl and curl see what the console shows.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tests::{free_port, skip};

use crate::cli::{Ended, Place, wait_for};
use crate::console::{owner, serve_with};
use crate::login::{certificates, said};

/// Ports of the authority and of its names.
struct Ports {
    /// ACME.
    acme: u16,
    /// Its root certificates.
    roots: u16,
    /// Where it comes to for `http-01`.
    http: u16,
    /// DNS.
    dns: u16,
    /// What DNS answers.
    names: u16,
}

impl Ports {
    fn new() -> Self {
        let [acme, roots, http, dns, names] = [(); 5].map(|()| free_port());
        Self {
            acme,
            roots,
            http,
            dns,
            names,
        }
    }

    fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.acme)
    }

    /// Starts the authority, which comes to `tls` for `tls-alpn-01`. It refuses so many of a hundred nonces.
    fn authority(&self, at: &Path, tls: u16, refused: &str) -> Ended {
        let configuration = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.acme),
            "managementListenAddress": format!("127.0.0.1:{}", self.roots),
            "certificate": at.join("server.pem"),
            "privateKey": at.join("server.key"),
            "httpPort": self.http,
            "tlsPort": tls,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
        }});
        std::fs::write(at.join("pebble.json"), configuration.to_string()).expect("written");
        let log = std::fs::File::create(at.join("pebble.log")).expect("made");
        let mut command = Command::new("pebble");
        command
            .arg("-config")
            .arg(at.join("pebble.json"))
            .args(["-dnsserver", &format!("127.0.0.1:{}", self.dns)])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .env("PEBBLE_WFE_NONCEREJECT", refused)
            .stdout(log.try_clone().expect("another"))
            .stderr(log);
        let authority = Ended(command.spawn().expect("pebble runs"));
        for port in [self.acme, self.roots] {
            wait_for("pebble", || {
                std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())
            });
        }
        authority
    }

    /// Starts what answers for all names with 127.0.0.1, until told otherwise.
    fn names(&self) -> Ended {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new("pebble-challtestsrv");
        command
            .args(["-defaultIPv6", "", "-http01", "", "-https01", ""])
            .args(["-tlsalpn01", "", "-dns01", &at(self.dns)])
            .args(["-management", &at(self.names)])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let names = Ended(command.spawn().expect("it runs"));
        wait_for("names", || {
            std::net::TcpStream::connect(("127.0.0.1", self.names))
                .map_err(|error| error.to_string())
        });
        names
    }

    /// Has a name lead to an address.
    fn lead(&self, name: &str, address: &str) {
        let body = serde_json::json!({"host": name, "addresses": [address]}).to_string();
        let url = format!("http://127.0.0.1:{}/add-a", self.names);
        said(Command::new("curl").args(["-sSf", "-d", &body, &url]));
    }

    /// Keeps the authority's root certificate beside the others.
    fn fetch_root(&self, at: &Path) {
        let url = format!("https://localhost:{}/roots/0", self.roots);
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "--cacert"]).arg(at.join("ca.pem"));
        said(curl.arg("-o").arg(at.join("root.pem")).arg(url));
    }
}

/// What openssl, which trusts the root of the authority alone, finds at the console.
fn shown(at: &Path, port: u16, name: &str) -> Result<String, String> {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{port} -servername {name} -verify_hostname {name} -verify_return_error -CAfile root.pem \
         < /dev/null > seen 2>&1 && openssl x509 -in seen -noout -serial"
    );
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &script]).current_dir(at).output();
    let output = output.expect("a shell");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(std::fs::read_to_string(at.join("seen")).unwrap_or_default()),
    }
}

/// A place, the authority's certificates and its ports; none where it is not installed.
fn prepared() -> Option<(Place, std::path::PathBuf, Ports)> {
    if !Path::new("/usr/bin/pebble").exists() {
        skip("certificates by ACME", "pebble is not installed");
        return None;
    }
    let place = Place::new();
    let at = place.path("authority");
    std::fs::create_dir_all(&at).expect("made");
    certificates(&at);
    Some((place, at, Ports::new()))
}

fn order(ports: &Ports, name: &str, more: &str) -> String {
    format!(
        "sanbox certificate acme {name} --directory {} --ca-file ../authority/ca.pem --http-port {} --agree {more}",
        ports.directory(),
        ports.http
    )
}

const LOOPBACK: &[&str] = &["--listen", "127.0.0.1"];

#[test]
fn a_certificate_is_issued_and_renewed_while_clients_stay() {
    let Some((mut place, at, ports)) = prepared() else {
        return;
    };
    let _names = ports.names();
    let port = serve_with(&mut place, LOOPBACK);
    let authority = ports.authority(&at, port, "0");
    ports.fetch_root(&at);
    let refused = place.run(&order(&ports, "nas.example.test", "").replace("--agree", ""));
    assert!(
        refused.contains("--agree") && refused.ends_with("[1]\n"),
        "{refused}"
    );
    let client = stays_connected(&at, port);
    let said = place.run(&order(
        &ports,
        "nas.example.test",
        "--contact ann@example.org",
    ));
    let issued = "a certificate for nas.example.test was issued, valid until ";
    assert!(said.starts_with(issued), "{said}{}", place.log());
    let see = || wait_for("the certificate", || shown(&at, port, "nas.example.test"));
    let first = see();
    // The same once more orders nothing.
    let said = place.run(&order(&ports, "nas.example.test", ""));
    assert!(
        said.contains("next order     ") && !said.contains("issued"),
        "{said}"
    );
    assert!(!said.contains("failed"), "{said}");
    let said = place.run("sanbox certificate renew");
    assert!(said.starts_with(issued), "{said}");
    let second = wait_for("another one", || match see() {
        serial if serial == first => Err(serial),
        serial => Ok(serial),
    });
    // What was connected before both is served on.
    std::fs::write(at.join("go"), "").expect("written");
    let answers = client.wait_with_output().expect("it ends").stdout;
    let answers = String::from_utf8_lossy(&answers).into_owned();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    let modes =
        place.run("stat -c %a $SANBOX_STATE/acme-account.json $SANBOX_STATE/console-key.pem");
    assert_eq!(modes, "600\n600\n");
    let closed = std::net::TcpStream::connect(("127.0.0.1", ports.http));
    assert!(closed.is_err(), "the port of HTTP is open without need");
    by_tls(&place, &ports, &at, port);
    drop(authority);
    outlives_a_restart(place, &at, &ports);
    assert_ne!(first, second);
}

/// A client that asks twice over one connection: at once, and when it is told to.
fn stays_connected(at: &Path, port: u16) -> Child {
    let script = format!(
        "ask() {{ printf 'GET /api/v1/setup HTTP/1.1\\r\\nHost: x\\r\\n%s\\r\\n' \"$1\"; }}
         (ask; while [ ! -e go ]; do sleep 0.1; done; ask 'Connection: close\r\n'; sleep 1) |
             openssl s_client -quiet -connect 127.0.0.1:{port}"
    );
    let mut shell = Command::new("bash");
    let shell = shell.args(["-c", &script]).current_dir(at);
    let shell = shell.stdout(Stdio::piped()).stderr(Stdio::null());
    shell.spawn().expect("a shell")
}

/// The other proof, at the console's own port, for two names.
fn by_tls(place: &Place, ports: &Ports, at: &Path, port: u16) {
    let names = "two.example.test one.example.test";
    let said = place.run(&order(ports, names, "--challenge tls-alpn-01"));
    let issued = "a certificate for two.example.test, one.example.test was issued";
    assert!(said.starts_with(issued), "{said}{}", place.log());
    for name in ["one.example.test", "two.example.test"] {
        wait_for(name, || shown(at, port, name));
    }
    // No other client is shown the certificate of a challenge.
    let probe = format!(
        "openssl s_client -connect 127.0.0.1:{port} -servername one.example.test -alpn acme-tls/1 < /dev/null 2>&1 | grep -c 'BEGIN CERT'"
    );
    assert_eq!(place.run(&probe), "0\n[1]\n");
}

/// The certificate stays over a restart, nobody is asked for another one, and the settings are in the export.
fn outlives_a_restart(mut place: Place, at: &Path, ports: &Ports) {
    place.stop();
    let before = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    let port = serve_with(&mut place, LOOPBACK);
    wait_for("the certificate", || shown(at, port, "two.example.test"));
    let after = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    assert_eq!(before, after);
    let exported = place.run("sanbox config export");
    assert!(exported.contains(&ports.directory()), "{exported}");
    assert!(!exported.contains("key_pkcs8"), "{exported}");
    assert_eq!(place.run("sanbox certificate acme off"), "");
    let said = place.run("sanbox certificate");
    assert!(said.ends_with("acme           off\n"), "{said}");
    assert!(
        !place.log().contains("no certificate by ACME"),
        "{}",
        place.log()
    );
    place.stop();
}

#[test]
fn what_goes_wrong_is_told_and_the_certificate_stays() {
    let Some((mut place, at, ports)) = prepared() else {
        return;
    };
    let _names = ports.names();
    let port = serve_with(&mut place, LOOPBACK);
    let authority = ports.authority(&at, port, "0");
    let before = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    // Nothing is at the address of this name, and another server is at that of the other.
    ports.lead("nowhere.example.test", "127.0.0.3");
    ports.lead("other.example.test", "127.0.0.2");
    let http = ports.http.to_string();
    let mut other = Command::new("python3");
    other
        .args(["-m", "http.server", "--bind", "127.0.0.2", &http])
        .current_dir(&at)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _other = Ended(other.spawn().expect("python runs"));
    wait_for("the other server", || {
        std::net::TcpStream::connect(("127.0.0.2", ports.http)).map_err(|error| error.to_string())
    });
    for (name, fact, next) in [
        (
            "nowhere.example.test",
            "The authority does not reach port 80 of nowhere.example.test",
            "Port 80 of nowhere.example.test has to lead to port",
        ),
        (
            "other.example.test",
            "Something else than this appliance answers at port 80 of other.example.test",
            "forwarding",
        ),
    ] {
        let said = place.run(&order(&ports, name, ""));
        assert!(said.contains(fact) && said.contains(next), "{said}");
        assert!(
            said.contains("the one before stays") && said.ends_with("[1]\n"),
            "{said}"
        );
    }
    let told = wait_for("an alert", || {
        let told = place.run("sanbox alert list");
        told.contains("No certificate was issued")
            .then_some(told.clone())
            .ok_or(told)
    });
    assert!(
        told.contains("The certificate in use stays, and ends in 39"),
        "{told}"
    );
    // The port that it would listen at is taken.
    let taken = std::net::TcpListener::bind(("127.0.0.1", ports.http)).expect("free");
    let said = place.run(&order(&ports, "nas.example.test", ""));
    assert!(said.contains("cannot be listened at"), "{said}");
    drop(taken);
    drop(authority);
    let said = place.run(&order(&ports, "nas.example.test", ""));
    assert!(said.contains("The authority does not answer"), "{said}");
    // A stranger's certificate is not trusted.
    std::fs::copy(at.join("stranger.pem"), at.join("server.pem")).expect("copied");
    std::fs::copy(at.join("stranger.key"), at.join("server.key")).expect("copied");
    let stranger = ports.authority(&at, port, "0");
    let said = place.run("sanbox certificate renew");
    assert!(said.contains("The authority does not answer"), "{said}");
    drop(stranger);
    let after = std::fs::read(place.path("state/console-cert.pem")).expect("there");
    assert_eq!(before, after);
    told_over_the_api(&place, port);
    place.stop();
}

fn told_over_the_api(place: &Place, port: u16) {
    let ann = owner(place, port);
    let acme: Value = ann.get("/api/v1/settings")["acme"].clone();
    assert_eq!(acme["names"], serde_json::json!(["nas.example.test"]));
    let fact = acme["failure"]["fact"].as_str().unwrap_or_default();
    assert!(fact.contains("does not answer"), "{acme}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    assert!(
        acme["next"].as_u64() > now.ok().map(|now| now.as_secs()),
        "{acme}"
    );
}

/// An authority that refuses nonces (RFC 8555, 6.5), and one that has forgotten its accounts.
#[test]
fn refused_nonces_and_forgotten_accounts_are_lived_with() {
    let Some((mut place, at, ports)) = prepared() else {
        return;
    };
    let _names = ports.names();
    let port = serve_with(&mut place, LOOPBACK);
    let issued = |said: &str| said.starts_with("a certificate for nas.example.test was issued");
    let authority = ports.authority(&at, port, "0");
    let said = place.run(&order(&ports, "nas.example.test", ""));
    assert!(issued(&said), "{said}");
    let account = std::fs::read(place.path("state/acme-account.json")).expect("there");
    drop(authority);
    // A request is repeated twice: of those of an order hardly one is refused three times.
    let authority = ports.authority(&at, port, "20");
    let mut tried = Vec::new();
    while !tried.last().is_some_and(|said: &String| issued(said)) && tried.len() < 6 {
        tried.push(place.run("sanbox certificate renew"));
    }
    assert!(tried.last().is_some_and(|said| issued(said)), "{tried:?}");
    let log = std::fs::read_to_string(at.join("pebble.log")).expect("a log");
    assert!(log.contains("nonce"), "{log}");
    let another = std::fs::read(place.path("state/acme-account.json")).expect("there");
    assert_ne!(account, another);
    drop(authority);
    place.stop();
}
