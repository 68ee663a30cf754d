//! Encrypted datasets are created and their keys changed by the commands, with a daemon that holds the keys. The words are those of
//! OpenZFS's commands; what must be refused is refused, and leaves everything as it was.

use crate::cli::Place;

fn place() -> Place {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run("truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk");
    assert_eq!(made, "");
    for (name, length) in [("raw", 32), ("other", 32), ("short", 31), ("long", 33)] {
        place.run(&format!("head -c {length} /dev/urandom >{name}.key"));
    }
    place
}

fn check(place: &Place, line: &str, expect: &str) {
    assert_eq!(place.run(line), expect, "{line}");
}

#[test]
fn encrypted_datasets_are_created_by_the_commands() {
    let place = place();
    let check = |line: &str, expect: &str| check(&place, line, expect);
    let refused = |options: &str, why: &str| {
        let line = format!("printf 'a passphrase\\n' | zfs create {options} tank/x");
        check(&line, &format!("! cannot create 'tank/x': {why}\n[1]\n"));
        let line = "zfs list -H -o name tank/x";
        check(
            line,
            "! cannot open 'tank/x': dataset does not exist\n[1]\n",
        );
    };
    refused(
        "-o encryption=on",
        "Keyformat required for new encryption root.",
    );
    refused(
        "-o encryption=on -o keylocation=prompt",
        "Keyformat required for new encryption root.",
    );
    let off = "Encryption must be turned on to set encryption properties.";
    refused("-o keyformat=raw", off);
    refused("-o encryption=off -o keyformat=raw", off);
    refused("-o keylocation=prompt", off);
    refused("-o pbkdf2iters=200000", off);
    refused(
        "-o encryption=on -o keyformat=passphrase -o pbkdf2iters=99999",
        "minimum pbkdf2 iterations is 100000",
    );
    refused(
        "-o encryption=on -o keyformat=raw -o pbkdf2iters=200000 -o keylocation=file://$PWD/raw.key",
        "Cannot specify pbkdf2iters with a non-passphrase keyformat.",
    );
    refused(
        "-o encryption=on -o keyformat=raw -o keylocation=file://$PWD/short.key",
        "Raw key too short (expected 32).",
    );
    refused(
        "-o encryption=on -o keyformat=raw -o keylocation=file://$PWD/long.key",
        "Raw key too long (expected 32).",
    );
    refused(
        "-o encryption=on -o keyformat=hex -o keylocation=file://$PWD/raw.key",
        "Hex key too short (expected 64).",
    );
    refused(
        "-o encryption=on -o keyformat=raw -o keylocation=file://$PWD/none.key",
        "Failed to open key material file: No such file or directory",
    );
    refused(
        "-o encryption=on -o keyformat=raw -o keylocation=none",
        "Invalid keylocation",
    );
    let short = "printf 'short\\n' | zfs create -o encryption=on -o keyformat=passphrase tank/x";
    check(
        short,
        "! cannot create 'tank/x': Passphrase too short (min 8).\n[1]\n",
    );

    check(
        "printf 'a passphrase\\n' | zfs create -o encryption=on -o keyformat=passphrase tank/x",
        "",
    );
    check(
        "zfs get -Hp -o property,value,source encryption,keyformat,keylocation,pbkdf2iters,encryptionroot,keystatus tank/x",
        "encryption\taes-256-gcm\t-\nkeyformat\tpassphrase\t-\nkeylocation\tprompt\tlocal\n\
         pbkdf2iters\t350000\t-\nencryptionroot\ttank/x\t-\nkeystatus\tavailable\t-\n",
    );
    check("zpool get -H -o value feature@encryption tank", "active\n");
    check(
        "zfs create tank/x/child && zfs create -o encryption=off tank/x/plain",
        "",
    );
    check(
        "zfs create -V 8M -o encryption=aes-128-ccm tank/x/volume",
        "",
    );
    check(
        "zfs list -rH -o name,encryption,encryptionroot tank/x",
        "tank/x\taes-256-gcm\ttank/x\ntank/x/child\taes-256-gcm\ttank/x\ntank/x/plain\toff\t-\n\
         tank/x/volume\taes-128-ccm\ttank/x\n",
    );
    check(
        "zfs set keylocation=file:///k tank/x/child",
        "! cannot set property for 'tank/x/child': keylocation may only be set on encryption roots\n[1]\n",
    );
    check(
        "zfs set keylocation=none tank/x",
        "! cannot set property for 'tank/x': keylocation must not be 'none' for encrypted datasets\n[1]\n",
    );
    check(
        "zfs set keylocation=prompt tank",
        "! cannot set property for 'tank': keylocation must be 'none' for unencrypted datasets\n[1]\n",
    );
    check("zfs snapshot tank/x/child@a", "");
    check(
        "zfs clone -o encryption=on tank/x/child@a tank/x/clone",
        "! cannot create 'tank/x/clone': Encryption properties must inherit from origin dataset.\n[1]\n",
    );
    check(
        "zfs rename tank/x/child tank/child",
        "! cannot rename to 'tank/child': cannot move encrypted child outside of its encryption root\n[1]\n",
    );
    check("zfs unload-key tank/x", "");
    check(
        "zfs create tank/x/late",
        "! cannot create 'tank/x/late': encryption root's key is not loaded or provided\n[1]\n",
    );
    check("printf 'a passphrase\\n' | zfs load-key tank/x", "");
    check("zfs destroy -r tank/x", "");
    check("zpool get -H -o value feature@encryption tank", "enabled\n");
}

/// Properties of the root file system of a new pool need features, as `zfs set` does. What is refused touches no device.
#[test]
fn properties_of_a_new_pool_need_its_features() {
    let place = Place::new();
    let check = |line: &str, expect: &str| check(&place, line, expect);
    check("truncate -s 128M disk", "");
    let encrypted = "-O encryption=on -O keyformat=passphrase -O keylocation=prompt";
    for (options, why) in [
        (
            format!("{encrypted} -o feature@lz4_compress=disabled -O compression=lz4"),
            "property 'compression' needs the feature 'lz4_compress', which is not enabled",
        ),
        (
            "-d -O recordsize=1M".to_owned(),
            "property 'recordsize' needs the feature 'large_blocks', which is not enabled",
        ),
        (
            "-n -d -O checksum=blake3".to_owned(),
            "property 'checksum' needs the feature 'blake3', which is not enabled",
        ),
        (format!("-d {encrypted}"), "Encryption feature not enabled."),
    ] {
        let line = format!("echo a passphrase | zpool create {options} tank $PWD/disk");
        check(&line, &format!("! cannot create 'tank': {why}\n[1]\n"));
    }
    check(
        "od -An -tx1 disk | sort -u | head -n 2",
        " 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n*\n",
    );
    check(
        "zpool create -d -O mountpoint=none -O compression=on tank $PWD/disk",
        "",
    );
}

#[test]
fn keys_are_changed_by_the_command() {
    let place = place();
    let check = |line: &str, expect: &str| check(&place, line, expect);
    let key_error = |line: &str, why: &str| {
        check(line, &format!("! Key change error: {why}\n[255]\n"));
    };
    let create = "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/raw.key";
    check(
        &format!("{create} tank/a && zfs create tank/a/b && zfs create tank/a/b/c"),
        "",
    );
    check("zfs create tank/plain", "");
    key_error("zfs change-key tank/plain", "Dataset not encrypted.");
    key_error("zfs change-key -i tank/a", "Parent must be encrypted.");
    key_error(
        "zfs change-key -i tank/a/b",
        "Key inheritting can only be performed on encryption roots.",
    );
    key_error(
        "zfs change-key tank/a/b",
        "Keyformat required for new encryption root.",
    );
    key_error(
        "zfs change-key -o compression=on tank/a",
        "Only keyformat, keylocation and pbkdf2iters may be set with this command.",
    );
    let first = |line: &str| place.first_line(line);
    assert_eq!(
        first("zfs change-key -i -o keyformat=raw tank/a"),
        "! Properties not allowed for inheriting"
    );
    assert_eq!(first("zfs change-key"), "! Missing dataset argument");
    assert_eq!(first("zfs change-key a b"), "! Too many arguments");

    // Another key for the same root: the old one is wrong afterwards, and so for all below.
    check(
        "zfs change-key -o keylocation=file://$PWD/other.key tank/a",
        "",
    );
    check("zfs unload-key tank/a", "");
    key_error(
        "zfs change-key -o keylocation=file://$PWD/raw.key tank/a",
        "Key must be loaded.",
    );
    check(
        "zfs load-key -L file://$PWD/raw.key tank/a",
        "! Key load error: Incorrect key provided for 'tank/a'.\n[255]\n",
    );
    check(
        "zfs load-key tank/a && zfs get -H -o value keystatus tank/a/b/c",
        "available\n",
    );

    // A root of its own below, with what it takes along; then the key of the parent again.
    check(
        "printf 'a passphrase\\n' | zfs change-key -o keyformat=passphrase -o pbkdf2iters=100000 tank/a/b",
        "",
    );
    let roots = "zfs get -rHp -t filesystem -o name,value encryptionroot tank/a";
    check(
        roots,
        "tank/a\ttank/a\ntank/a/b\ttank/a/b\ntank/a/b/c\ttank/a/b\n",
    );
    check(
        "zfs get -Hp -o value,source keylocation,keyformat,pbkdf2iters tank/a/b",
        "prompt\tlocal\npassphrase\t-\n100000\t-\n",
    );
    check(
        "zfs snapshot tank/a/b@s && zfs clone tank/a/b@s tank/a/clone",
        "",
    );
    key_error(
        "zfs change-key -i tank/a/clone",
        "Keys cannot be changed on clones.",
    );
    check("zfs unload-key tank/a/b", "");
    key_error("zfs change-key -i tank/a/b", "Key must be loaded.");
    // The old key is read first, then the new one.
    check(
        "printf 'a passphrase\\nanother phrase\\n' | zfs change-key -l tank/a/b",
        "",
    );
    check(
        "zfs unload-key tank/a/b && printf 'another phrase\\n' | zfs load-key tank/a/b",
        "",
    );
    check(
        "zfs unload-key -r tank/a",
        "2 / 2 key(s) successfully unloaded\n",
    );
    check("printf 'another phrase\\n' | zfs load-key tank/a/b", "");
    key_error("zfs change-key -i tank/a/b", "Parent key must be loaded.");
    check("zfs load-key tank/a && zfs change-key -i tank/a/b", "");
    check(
        roots,
        "tank/a\ttank/a\ntank/a/b\ttank/a\ntank/a/b/c\ttank/a\ntank/a/clone\ttank/a\n",
    );
    check(
        "zfs get -Hp -o value,source keylocation tank/a/b",
        "none\tdefault\n",
    );
    check(
        "zfs promote tank/a/clone && zfs get -H -o value keystatus tank/a/b",
        "available\n",
    );

    // Keys that were changed open after another import what was written before.
    check("zpool export tank && zpool import -N -d $PWD tank", "");
    check(
        "zfs load-key tank/a && zfs get -H -o value keystatus tank/a/clone",
        "available\n",
    );
    let read = "sanbox ls tank/a/b:/ >/dev/null && echo read";
    check(read, "read\n");
    for secret in ["passphrase\\n", "another phrase"] {
        assert!(!place.log().contains(secret), "{secret} is in the log");
    }
}
