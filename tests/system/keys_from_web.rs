//! Keys behind `https://` and `http://`. The servers are Python's, their certificates OpenSSL's; the words are those of OpenZFS's
//! commands.

use std::process::{Child, Stdio};

use crate::cli::Place;

const SERVER: &str = include_str!("key_server.py");
/// An authority with the certificates of a server and of a client, and one that a server made for itself as OpenZFS's test suite
/// does: it names no host but in its subject.
const CERTIFICATES: &str = r"
    ec='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2'
    openssl req -x509 $ec -keyout ca.pem.key -out ca.pem -subj /CN=authority
    for who in server client; do
      openssl req $ec -keyout $who.pem.key -out $who.csr -subj /CN=$who -addext subjectAltName=DNS:localhost,IP:127.0.0.1
      openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.pem.key -out $who.pem -days 2 -copy_extensions copy
    done
    openssl req -x509 $ec -keyout own.pem.key -out own.pem -subj /CN=localhost
    mkdir trusted && cp ca.pem trusted/1.pem && echo nothing >trusted/README
";

/// A server of the place's directory, ended when dropped.
struct Server(Child, String);

impl Server {
    fn start(place: &Place, name: &str, arguments: &[&str]) -> Self {
        let script = place.path("key_server.py");
        std::fs::write(&script, SERVER).expect("a script");
        let child = place
            .command("python3")
            .arg(script)
            .arg(name)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3");
        let line = format!("while ! [ -s {name} ]; do sleep 0.05; done; cat {name}");
        let port = place.run(&line).trim().to_owned();
        Self(child, port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn keys_are_fetched_from_web_servers() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run("truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk");
    assert_eq!(made, "");
    let made = place.run(&format!("( {CERTIFICATES} ) >made 2>&1 || cat made"));
    assert_eq!(made, "");
    place.run(
        "head -c 32 /dev/urandom >raw.key; echo a passphrase >pass.key; \
         od -An -v -tx1 raw.key | tr -d ' \n' >hex.key",
    );
    let server = Server::start(&place, "port", &["server.pem", "server.pem.key"]);
    let own = Server::start(&place, "port.own", &["own.pem", "own.pem.key"]);
    let strict = ["server.pem", "server.pem.key", "ca.pem"];
    let strict = Server::start(&place, "port.strict", &strict);
    let plain = Server::start(&place, "port.plain", &[]);
    let at = format!("https://localhost:{}", server.1);
    let ca = "SSL_CA_CERT_FILE=ca.pem";
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    let create = |environment: &str, format: &str, place: &str, name: &str| {
        format!(
            "{environment} zfs create -o encryption=on -o keyformat={format} -o keylocation={place} tank/{name}"
        )
    };
    let quick = "passphrase -o pbkdf2iters=100000";
    check(&create(ca, quick, &format!("{at}/pass.key"), "pass"), "");
    check(&create(ca, "hex", &format!("{at}/hex.key"), "hex"), "");
    let directory = "SSL_CA_CERT_PATH=trusted";
    check(
        &create(directory, "raw", &format!("{at}/raw.key?x=y"), "raw"),
        "",
    );
    check("zfs unload-key -a", "3 / 3 key(s) successfully unloaded\n");
    check(
        &format!("{ca} zfs load-key -a"),
        "3 / 3 key(s) successfully loaded\n",
    );
    // The place is a property like another.
    check(&format!("zfs set keylocation={at}/moved tank/pass"), "");
    for where_to in ["moved", "chunked", "pass.key"] {
        let line = format!("{ca} zfs load-key -n -L {at}/{where_to} tank/pass");
        check(&line, "1 / 1 key(s) successfully verified\n");
    }
    let plain = format!("http://127.0.0.1:{}/pass.key", plain.1);
    check(
        &format!("zfs load-key -n -L {plain} tank/pass"),
        "1 / 1 key(s) successfully verified\n",
    );
    // A certificate that a server made for itself, and one that a client shows.
    let own = format!("https://localhost:{}/pass.key", own.1);
    let line = format!(
        "SSL_CA_CERT_FILE=own.pem zfs change-key -o pbkdf2iters=100000 -o keylocation={own} tank/pass"
    );
    check(&line, "");
    let strict = format!("https://localhost:{}/pass.key", strict.1);
    let line = format!(
        "{ca} SSL_CLIENT_CERT_FILE=client.pem SSL_CLIENT_KEY_FILE=client.pem.key zfs load-key -n -L {strict} tank/pass"
    );
    check(&line, "1 / 1 key(s) successfully verified\n");

    let refused = |environment: &str, from: &str, why: &str| {
        let line = format!("{environment} zfs load-key -n -L {from} tank/pass");
        let said = place.run(&line);
        let expect = format!("! Key load error: {why}");
        assert!(said.contains(&expect), "{line}: {said}");
    };
    let missing = format!("{at}/none.key");
    refused(ca, &missing, &format!("Couldn't GET {missing}: 404"));
    refused(
        ca,
        &format!("{at}/raw.key"),
        "Incorrect key provided for 'tank/pass'.",
    );
    for (environment, from) in [
        ("", at.clone() + "/pass.key"),
        ("SSL_CA_CERT_FILE=own.pem", at.clone() + "/pass.key"),
        ("SSL_CA_CERT_FILE=none.pem", at.clone() + "/pass.key"),
        (ca, own),
        (ca, strict),
        (ca, at.clone() + "/down"),
        (ca, at.clone() + "/circle"),
        (ca, at.clone() + "/endless"),
        (ca, at + "/cut"),
        (ca, "https://localhost:1/pass.key".to_owned()),
        (ca, plain.replace("http:", "https:")),
    ] {
        refused(
            environment,
            &from,
            &format!("Failed to connect to {from}: "),
        );
    }
    let line = create(ca, quick, &missing, "x");
    check(
        &line,
        &format!("! cannot create 'tank/x': Couldn't GET {missing}: 404\n[1]\n"),
    );
    check("zfs get -H -o value keystatus tank/pass", "available\n");
    assert!(!place.log().contains("a passphrase"), "a key is in the log");
}
