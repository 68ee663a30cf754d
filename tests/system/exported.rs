//! `sanbox config`: the settings of an appliance go into a file and come out of it on a fresh one.

use crate::cli::Place;

const POOL: &str = "truncate -s 128M a && zpool create tank $PWD/a && zfs create tank/fs && zfs create -V 8M -s tank/vol";

/// Something of each kind of setting.
const SETTINGS: &str = "printf '[nfs]\\nport = 12049\\n[tuning]\\nl2arc_write_max = \"32M\"\\n' > $SANBOX_STATE/sanbox.toml &&
    echo 'correct horse battery' > pw && sanbox user add ann --role owner --password-file pw &&
    sanbox user add bob --role viewer --password-file pw &&
    sanbox target create iqn.2026-11.lan.box:vm && sanbox target allow iqn.2026-11.lan.box:vm 10.0.0.0/8 &&
    sanbox target chap --user esx --secret topsecretwords iqn.2026-11.lan.box:vm &&
    sanbox target group esx iqn.1998-01.com.vmware:esx1 && sanbox target map --for esx iqn.2026-11.lan.box:vm tank/vol &&
    sanbox policy set tank/fs 'daily=7 at=03:30' && zfs set sharenfs=rw=@10.0.0.0/8 tank/fs &&
    sanbox replication create off --from tank/fs --to root@backup:vault/fs --keep daily=30 && sanbox replication pause off";

#[test]
fn settings_go_to_a_fresh_appliance_and_back() {
    let place = Place::new();
    assert_eq!(place.run(&format!("{POOL} && {SETTINGS}")), "");
    let exported = place.run("sanbox config export");
    for part in [
        "port = 12049",
        "name = \"ann\"",
        "chap_user = \"esx\"",
        "\"org.sanbox:lun\" = \"iqn.2026-11.lan.box:vm/0@esx\"",
        "\"org.sanbox:policy\" = \"daily=7 at=03:30\"",
        "sharenfs = \"rw=@10.0.0.0/8\"",
        "to = \"root@backup:vault/fs\"",
    ] {
        assert!(exported.contains(part), "{part}: {exported}");
    }
    for secret in ["topsecret", "argon2", "correct horse"] {
        assert!(!exported.contains(secret), "{secret}: {exported}");
    }
    assert_eq!(
        place.run("sanbox config export > box.toml && sanbox config diff box.toml"),
        ""
    );
    assert_eq!(
        place.run("sanbox config import box.toml"),
        "",
        "nothing to change"
    );

    let fresh = Place::new();
    assert_eq!(fresh.run(POOL), "");
    std::fs::write(fresh.path("work/box.toml"), &exported).expect("written");
    let before = fresh.run("sanbox config export");
    let told = fresh.run("sanbox config import --dry-run box.toml");
    assert_eq!(told.matches("would change: ").count(), 9, "{told}");
    assert_eq!(
        fresh.run("sanbox config export"),
        before,
        "a dry run changes nothing"
    );
    let differs = fresh.run("sanbox config diff box.toml");
    assert!(
        differs.contains("+ users[bob].role = \"viewer\"") && differs.ends_with("[1]\n"),
        "{differs}"
    );
    let imported = fresh.run("sanbox config import box.toml");
    assert_eq!(imported.matches("changed: ").count(), 9, "{imported}");
    assert!(
        imported
            .contains("the secret of 'esx' for target iqn.2026-11.lan.box:vm is not in the file"),
        "{imported}"
    );
    assert_eq!(fresh.run("sanbox config export"), exported);
    assert_eq!(
        fresh.run("sanbox config diff box.toml && sanbox config import box.toml"),
        ""
    );
    // A target whose secret nobody knows lets nobody in, and a user without a password is one for keys alone.
    assert!(
        !fresh
            .run("cat $SANBOX_STATE/targets.json")
            .contains("\"secret\": \"\"")
    );
    assert!(fresh.run("sanbox user list").contains("keys"));
}

#[test]
fn files_that_are_none_are_refused_and_what_is_missing_is_named() {
    let place = Place::new();
    assert_eq!(place.run(POOL), "");
    for (file, why) in [
        ("version = 9", "version 9 of such a file"),
        ("version = 1\ncolour = 1", "colour"),
        (
            "version = 1\n[datasets.'tank/fs']\nquota = '1G'",
            "'quota' is no setting of an appliance",
        ),
        ("version = 1\n[config.smb]\nworkgroup = 'a b'", "workgroup"),
        ("nonsense", "expected"),
    ] {
        std::fs::write(place.path("work/bad.toml"), file).expect("written");
        let refused = place.run("sanbox config import bad.toml");
        assert!(
            refused.contains(why) && refused.ends_with("[1]\n"),
            "{file}: {refused}"
        );
    }
    assert!(
        place
            .run("sanbox config import nowhere.toml")
            .contains("No such file")
    );
    std::fs::write(
        place.path("work/far.toml"),
        "version = 1\n[datasets.'tank/gone']\nsharenfs = 'rw'\n[datasets.'tank/fs']\nsharenfs = 'ro'\n",
    )
    .expect("written");
    let done = place.run("sanbox config import far.toml");
    assert!(
        done.contains("cannot change: tank/gone: sharenfs=rw: dataset does not exist"),
        "{done}"
    );
    assert!(done.contains("changed: tank/fs: sharenfs=ro"), "{done}");
}
