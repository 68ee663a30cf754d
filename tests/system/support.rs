//! The archive of `sanbox support`: tar reads it, all parts are in it, no secret is, and a disk that hangs keeps it from no reader.

use crate::cli::Place;
use crate::console::{PASSWORD, owner, serve_with};

#[test]
fn the_archive_has_all_parts_and_no_secret() {
    let mut place = Place::new();
    let made = place.run("truncate -s 256M a && zpool create -O mountpoint=none tank $PWD/a && zfs create tank/plans");
    assert_eq!(made, "");
    let port = serve_with(&mut place, &[]);
    let ann = owner(&place, port);
    assert_eq!(ann.ask("GET", "/api/v1/support", None).0, 404);
    let secret = "a secret of sixteen";
    place.run(&format!(
        "sanbox target create iqn.2026-01.org.example:t; sanbox target chap iqn.2026-01.org.example:t --user host --secret '{secret}'; \
         sanbox user key create ci --role owner > key"
    ));
    let said = place.run("sanbox support");
    assert!(
        said.contains("support.tar") && said.contains("no secrets"),
        "{said}"
    );
    let listed = place.run("tar tf $SANBOX_STATE/support.tar | sed s,sanbox-support/,, | sort | xargs; stat -c %a $SANBOX_STATE/support.tar");
    for part in [
        "settings.toml",
        "machine.txt",
        "doctor.txt",
        "zpool-status.txt",
        "zfs-list.txt",
        "jobs.txt",
        "targets.txt",
        "zpool-history.txt",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert!(listed.ends_with("\n600\n"), "{listed}");
    let inside = place.run(&format!(
        "mkdir x && tar xf $SANBOX_STATE/support.tar -C x && grep -l 'tank/plans' x/*/zfs-list.txt | wc -l; \
         grep -rlF -e '{secret}' -e '{PASSWORD}' -f key x | wc -l; \
         grep -L 'exit code 0' x/*/*.txt | xargs -n 1 basename"
    ));
    assert_eq!(inside, "1\n0\nmachine.txt\n");
    // What is downloaded is the file.
    let fetched = place.run(&format!(
        "curl -sS --cacert $SANBOX_STATE/console-cert.pem -b ../cookies -o got.tar https://localhost:{port}/api/v1/support && \
         cmp got.tar $SANBOX_STATE/support.tar && echo same"
    ));
    assert_eq!(fetched, "same\n");
    let made = &ann.get("/api/v1/settings")["support_made"];
    assert!(
        made.as_u64().is_some_and(|time| time > 1_700_000_000),
        "{made}"
    );
    place.stop();
}
