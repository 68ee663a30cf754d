//! NFS by TLS (RFC 9289), judged by Python's TLS, which is OpenSSL (`tests/interop/nfs-tls.py`): shares that want it, and certificates of clients.

use tests::free_port;

use crate::cli::{Place, wait_for};

/// An authority with the certificate of a client, and one that a stranger made for itself.
const CERTIFICATES: &str = r"
    ec='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2'
    openssl req -x509 $ec -keyout ca.key -out ca.pem -subj /CN=authority
    openssl req $ec -keyout client.key -out client.csr -subj /CN=client -addext subjectAltName=DNS:client
    openssl x509 -req -in client.csr -CA ca.pem -CAkey ca.key -out client.pem -days 2 -copy_extensions copy
    openssl req -x509 $ec -keyout stranger.key -out stranger.pem -subj /CN=client
";

#[test]
fn nfs_is_protected_by_tls_where_shares_ask_for_it() {
    let mut place = Place::new();
    let made = place.run(&format!("( {CERTIFICATES} ) >made 2>&1 || cat made"));
    assert_eq!(made, "");
    let made = place.run(
        "mkdir -p $SANBOX_STATE; printf \"[nfs]\\ntls_clients = '$PWD/ca.pem'\\n\" > $SANBOX_STATE/sanbox.toml; \
         truncate -s 256M disk && zpool create -O mountpoint=$PWD/m -O sharenfs=rw,no_root_squash,xprtsec=tls tank $PWD/disk && \
         zfs create -o sharenfs='*(rw,xprtsec=mtls)' tank/mutual",
    );
    assert_eq!(made, "");
    let port = free_port().to_string();
    // At a port of its own, since another appliance may be at the usual one.
    let console = free_port().to_string();
    let flags = [
        "--https-port",
        &*console,
        "--nfs-port",
        &port,
        "--listen",
        "127.0.0.1",
        "--no-portmap",
    ];
    place.serve(&flags);
    wait_for("the certificate is there", || {
        let log = place.log();
        log.contains("fingerprint").then_some(()).ok_or(log)
    });
    let script = tests::root().join("tests/interop/nfs-tls.py");
    let judge = format!(
        "python3 {} {port} $PWD/m $PWD/m/mutual $SANBOX_STATE/console-cert.pem client.pem client.key stranger.pem stranger.key 2>&1",
        script.display()
    );
    let expect = "protocol: TLSv1.3 sunrpc\n\
                  file: written and read\n\
                  probe within TLS: (1, 1, 1)\n\
                  without TLS: denied denied\n\
                  TLS without a certificate: admitted denied\n\
                  TLS with a known certificate: admitted admitted\n\
                  TLS with a stranger's: refused\n\
                  plain text behind the probe: b''\n\
                  TLS 1.2: TLSV1_ALERT_PROTOCOL_VERSION\n\
                  no handshake: closed\n\
                  afterwards: admitted\n";
    assert_eq!(place.run(&judge), expect);

    // Authorities that cannot be read let nobody in, and the log says so.
    place.run("echo nothing > ca.pem");
    let refused = place.run(&format!("{judge} | tail -n 1"));
    assert!(refused.contains("rror"), "{refused}");
    assert!(place.log().contains("tls_clients"), "{}", place.log());

    // Not offered: asked for, it is refused as a flavour that is not known.
    place.stop();
    place.run(
        "printf '[nfs]\\ntls = false\\n' > $SANBOX_STATE/sanbox.toml; zfs set sharenfs=rw tank",
    );
    place.serve(&flags);
    let refused = place.run(&format!(
        "{judge} | grep -c 'AssertionError: 0000000100000001000000010000000100000001'"
    ));
    assert_eq!(refused, "1\n");
}
