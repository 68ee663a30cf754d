//! NFS with Kerberos (RFC 2203), judged by MIT's KDC and library (`tests/interop/kdc.sh`, `tests/interop/nfs-kerberos.py`): files by each flavour,
//! whose they are, and what is refused.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::{free_port, skip};

use crate::cli::Place;

/// A realm with a KDC of its own, which ends with the test.
struct Realm {
    kdc_pid: u32,
}

impl Realm {
    /// Starts it in the place's directory, whose environment uses it from now on. Without MIT's programs there is none.
    fn start(place: &mut Place) -> Option<Self> {
        let installed = Path::new("/usr/sbin/krb5kdc").exists()
            && Path::new("/usr/bin/kinit").exists()
            && Path::new("/usr/lib/python3/dist-packages/gssapi").exists();
        if !installed {
            skip(
                "Kerberos",
                "krb5-kdc, krb5-admin-server, krb5-user or python3-gssapi is not installed",
            );
            return None;
        }
        place.set("KRB5_CONFIG", "krb5.conf");
        let script = tests::root().join("tests/interop/kdc.sh");
        let made = place.run(&format!("{} {} 2>&1", script.display(), free_port()));
        let pid = fs::read_to_string(place.path("work/kdc.pid"));
        let pid = pid.ok().and_then(|pid| pid.trim().parse().ok());
        let realm = Self {
            kdc_pid: pid.unwrap_or_else(|| panic!("no KDC: {made}")),
        };
        assert_eq!(made, "");
        Some(realm)
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let ended = Command::new("kill").arg(self.kdc_pid.to_string()).status();
        assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Starts the appliance and returns the port of NFS.
fn serve(place: &mut Place) -> String {
    let [port, console] = [free_port().to_string(), free_port().to_string()];
    let ports = ["--nfs-port", &*port, "--https-port", &*console];
    let flags = ["--listen", "127.0.0.1", "--no-portmap"];
    place.serve(&[&ports[..], &flags[..]].concat());
    port
}

const SHARES: [&str; 4] = ["share", "krb5", "krb5p", "root"];

/// A pool with a share for each of what is tried, which everybody may write in; and the port.
fn served(place: &mut Place, settings: &str) -> String {
    let made = place.run(&format!(
        "mkdir -p $SANBOX_STATE; printf \"{settings}\" > $SANBOX_STATE/sanbox.toml; \
         truncate -s 256M disk && zpool create -O mountpoint=$PWD/m -O sharenfs=rw,no_root_squash tank $PWD/disk && \
         for share in {}; do zfs create tank/$share || exit 1; done",
        SHARES.join(" ")
    ));
    assert_eq!(made, "");
    let port = serve(place);
    let opened = place.run(&format!(
        "{} {port} open {} 2>&1",
        judge(),
        SHARES.map(|share| format!("$PWD/m/{share}")).join(" ")
    ));
    assert_eq!(opened, "");
    port
}

fn judge() -> String {
    let script = tests::root().join("tests/interop/nfs-kerberos.py");
    format!("/usr/bin/python3 {}", script.display())
}

const EXPECTED: &str = "\
krb5: written and read; the file is 1:1's
krb5i: written and read; the file is 1:1's
krb5p: written and read; the file is 1:1's
root is 65534:65534 0:0
stranger is 65534:65534 65534:65534
client is 65534:65534 65534:65534
MOUNT: (1, 390003, 390004, 390005) (390003,) (390005, 390004)
SECINFO: sys:krb5:krb5i:krb5p krb5 krb5p:krb5i
krb5: sys 13/10016/10016/0, krb5 0/0/0/2, krb5i 13/10016/10016/0, krb5p 13/10016/10016/0
krb5p: sys 13/10016/10016/0, krb5 13/10016/10016/0, krb5i 0/0/0/2, krb5p 0/0/0/2
confirmed by another: 10017 by itself: 0
krb5, damaged header, body, number, encryption: denied: 1 13, 0, 0, 0; then 0
krb5i, damaged header, body, number, encryption: denied: 1 13, 4, 4, 0; then 0
krb5p, damaged header, body, number, encryption: denied: 1 13, 4, 4, 4; then 0
number 5001: 0
5001 again: nothing
the lowest of the window: 0
below it: nothing
above all: denied: 1 14
afterwards: 0
GUARDED CREATE, repeated: 0 0 0 0 17 17 17 17
destroyed: 0 denied: 1 13
another's handle: denied: 1 13
no handle: denied: 1 13
continued: denied: 1 13
a procedure of files: denied: 1 1
tokens refused: all
600 contexts: denied: 1 13 0 0
a ticket of some seconds: 0
ended: denied: 1 13; others: 0
";

#[test]
fn nfs_by_kerberos_is_as_sure_as_its_flavour_says() {
    let mut place = Place::new();
    let Some(_realm) = Realm::start(&mut place) else {
        return;
    };
    let port = served(&mut place, "[nfs]\\nkerberos_keytab = '$PWD/nfs.keytab'\\n");
    let shared = place.run(
        "zfs set sharenfs=rw,sec=sys:krb5:krb5i:krb5p tank/share && zfs set sharenfs=rw,sec=krb5 tank/krb5 && \
         zfs set sharenfs='*(rw,sec=krb5p:krb5i)' tank/krb5p && zfs set sharenfs=rw,no_root_squash,sec=krb5:sys tank/root",
    );
    assert_eq!(shared, "");
    let paths = SHARES.map(|share| format!("$PWD/m/{share}")).join(" ");
    let found = place.run(&format!("{} {port} {paths} 2>&1", judge()));
    assert_eq!(found, EXPECTED);
    let log = place.log();
    assert!(log.contains("clients may use Kerberos"), "{log}");
    assert!(log.contains("proof by Kerberos is refused"), "{log}");
}

#[test]
fn shares_that_want_kerberos_without_it_say_so_and_others_go_on() {
    let mut place = Place::new();
    let Some(_realm) = Realm::start(&mut place) else {
        return;
    };
    served(&mut place, "");
    let shared = place.run(
        "zfs set sharenfs=rw,sec=krb5 tank/krb5; zfs set sharenfs=rw,sec=krb5:sys tank/root; zfs set compression=on tank/root",
    );
    assert_eq!(shared, "");
    let log = place.log();
    for share in ["krb5", "root"] {
        let told = format!("'tank/{share}': clients cannot use Kerberos");
        assert_eq!(log.matches(&told).count(), 1, "{log}");
    }
    assert!(!log.contains("'tank/share': clients cannot"), "{log}");
    place.stop();

    // A keytab that is not there yet: said, and taken when it is.
    let late = place.run(
        "printf \"[nfs]\\nkerberos_keytab = '$PWD/late.keytab'\\n\" > $SANBOX_STATE/sanbox.toml; \
         zfs set sharenfs=rw,no_root_squash tank/krb5",
    );
    assert_eq!(late, "");
    let port = serve(&mut place);
    let log = place.log();
    assert!(
        log.contains("no client can use Kerberos until there is a key of nfs/HOST"),
        "{log}"
    );
    let probe = format!("{} {port} probe 2>&1 | tail -n 1", judge());
    let refused = place.run(&probe);
    assert!(refused.contains("major 0x"), "{refused}");
    place.run("cp nfs.keytab late.keytab");
    assert_eq!(place.run(&probe), "a context\n");
}
