//! Log-in by an LDAP directory: Debian's `slapd`, over TLS with a certificate of its own authority.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tests::{free_port, skip};

use crate::cli::{Place, wait_for};
use crate::console::{PASSWORD, browser, serve_with, setup_token};

const CONFIGURATION: &str = "
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCACertificateFile DIR/ca.pem
TLSCertificateFile DIR/server.pem
TLSCertificateKeyFile DIR/server.key
pidfile DIR/pid
database mdb
suffix dc=example
rootdn cn=root,dc=example
rootpw rootsecret
directory DIR/data
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact=\"cn=reader,dc=example\" read by * none
";

const ENTRIES: &str = "dn: dc=example
objectClass: dcObject
objectClass: organization
o: example
dc: example

dn: cn=reader,dc=example
objectClass: person
cn: reader
sn: reader
userPassword: reader's password

dn: ou=people,dc=example
objectClass: organizationalUnit
ou: people

dn: uid=bob,ou=people,dc=example
objectClass: inetOrgPerson
uid: bob
cn: Bob
sn: Bob
userPassword: bob's password

dn: uid=eve,ou=people,dc=example
objectClass: inetOrgPerson
uid: eve
cn: Eve
sn: Eve
userPassword: eve's password

dn: uid=ann,ou=people,dc=example
objectClass: inetOrgPerson
uid: ann
cn: Another Ann
sn: Ann
userPassword: another ann's password

dn: cn=storage,dc=example
objectClass: groupOfNames
cn: storage
member: uid=bob,ou=people,dc=example
member: uid=ann,ou=people,dc=example
";

/// A directory that runs; ended when dropped.
struct Slapd(Child);

impl Drop for Slapd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn said(command: &mut Command) {
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}

/// An authority, and the certificate of a server that it vouches for.
pub(crate) fn certificates(at: &Path) {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr
        printf 'subjectAltName=DNS:localhost' > names
        openssl x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.pem";
    said(Command::new("sh").args(["-ec", script]).current_dir(at));
}

fn slapd(at: &Path, port: u16) -> Slapd {
    let configuration = CONFIGURATION.replace("DIR", &at.to_string_lossy());
    std::fs::create_dir_all(at.join("data")).expect("made");
    std::fs::write(at.join("slapd.conf"), configuration).expect("written");
    std::fs::write(at.join("entries"), ENTRIES).expect("written");
    let slapd = "/usr/sbin/slapd";
    if !at.join("data/data.mdb").exists() {
        let mut add = Command::new("/usr/sbin/slapadd");
        said(
            add.arg("-f")
                .arg(at.join("slapd.conf"))
                .arg("-l")
                .arg(at.join("entries")),
        );
    }
    let mut command = Command::new(slapd);
    command
        .arg("-f")
        .arg(at.join("slapd.conf"))
        .args(["-h", &format!("ldaps://localhost:{port}/"), "-d", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = Slapd(command.spawn().expect("slapd starts"));
    wait_for("slapd", || {
        std::net::TcpStream::connect(("localhost", port)).map_err(|error| error.to_string())
    });
    child
}

#[test]
fn a_directory_is_asked_over_tls() {
    if !Path::new("/usr/sbin/slapd").exists() {
        skip("log-in by LDAP", "slapd is not installed");
        return;
    }
    let mut place = Place::new();
    let at = place.path("ldap");
    std::fs::create_dir_all(&at).expect("made");
    certificates(&at);
    let ldap = free_port();
    let directory = slapd(&at, ldap);
    std::fs::write(at.join("secret"), "reader's password\n").expect("written");
    let configuration = |trusted: &str| {
        let dir = at.display();
        format!(
            "[login.ldap]\nurl = 'ldaps://localhost:{ldap}'\nca_file = '{dir}/{trusted}'\nbind_dn = 'cn=reader,dc=example'\n\
             bind_password_file = '{dir}/secret'\nbase = 'ou=people,dc=example'\ngroup_base = 'dc=example'\ntimeout_seconds = 3\n\
             [login.ldap.roles]\noperator = ['storage']\n"
        )
    };
    let file = place.path("state/sanbox.toml");
    std::fs::create_dir_all(place.path("state")).expect("made");
    std::fs::write(&file, configuration("ca.pem")).expect("written");
    let port = serve_with(&mut place, &[]);
    let token = setup_token(&place);
    let owner = json!({"token": token, "name": "ann", "password": PASSWORD});
    assert_eq!(
        browser(&place, port)
            .ask("POST", "/api/v1/setup", Some(&owner))
            .0,
        201
    );
    let log_in = |place: &Place, port: u16, name: &str, password: &str| {
        let body = json!({"name": name, "password": password});
        let (status, answer) = browser(place, port).ask("POST", "/api/v1/session", Some(&body));
        (status, answer)
    };
    let ways = browser(&place, port).get("/api/v1/login");
    assert_eq!(ways, json!({"ldap": true, "oidc": null}));
    for (name, password, status) in [
        ("bob", "bob's password", 201),
        ("bob", "eve's password", 401),
        // A bind without a password is one as nobody, which succeeds.
        ("bob", "", 401),
        ("nobody", "x", 401),
        // In no group that has a role here.
        ("eve", "eve's password", 403),
        // The owner is the appliance's: the directory's ann is another one.
        ("ann", PASSWORD, 201),
        ("ann", "another ann's password", 401),
    ] {
        let (known, answer) = log_in(&place, port, name, password);
        assert_eq!(known, status, "{name} {password:?}: {answer}");
        if name == "bob" && status == 201 {
            assert_eq!(answer["role"], "operator");
        }
        // The bounds of log-ins that fail.
        std::thread::sleep(Duration::from_millis(1100));
    }
    for crafted in ["*", "b*", "bob)(uid=*", "bob\\2a"] {
        let (status, answer) = log_in(&place, port, crafted, "bob's password");
        assert!(matches!(status, 401 | 429), "{crafted}: {answer}");
    }
    assert!(!place.log().contains("bob's password"));
    drop(directory);
    std::thread::sleep(Duration::from_secs(5));
    let (status, answer) = log_in(&place, port, "bob", "bob's password");
    assert_eq!(status, 503, "{answer}");
    let detail = answer["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains("password of the appliance itself"),
        "{detail}"
    );
    assert_eq!(
        log_in(&place, port, "ann", PASSWORD).0,
        201,
        "an owner gets in"
    );
    place.stop();
    // A server of another authority is shown no password.
    std::fs::write(&file, configuration("stranger.pem")).expect("written");
    let _directory = slapd(&at, ldap);
    let port = serve_with(&mut place, &[]);
    let (status, answer) = log_in(&place, port, "bob", "bob's password");
    assert_eq!(status, 503, "{answer}");
}
