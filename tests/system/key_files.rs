//! Files of `zfs key export`: what they open, and what is refused. The judge of the file's form is Python's own AES-GCM, where it is there.

use crate::cli::Place;

#[test]
fn a_file_opens_what_its_passphrase_lost() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    let refused = |line: &str, expect: &str| {
        let said = place.run(line);
        assert!(
            said.contains(expect) && said.ends_with("[1]\n"),
            "{line}: {said}"
        );
    };
    check(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && echo file phrase >phrase && echo first phrase >first",
        "",
    );
    let create = "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000";
    check(
        &format!("{create} tank/a <first && {create} tank/b <first && zfs create tank/a/below"),
        "",
    );
    check(
        "zfs key export tank/a a.key <phrase | sed 's#.*/a.key#a.key#'; stat -c %a a.key; wc -l <a.key; grep -c first a.key; true",
        "a.key opens 'tank/a' and what inherits its key, until 'zfs change-key tank/a': then export it anew\n600\n7\n0\n",
    );
    refused("zfs key export tank/a a.key <phrase", "a.key: File exists");
    refused(
        "echo short | zfs key export tank/a b.key",
        "Passphrase too short (min 8).",
    );
    refused(
        "zfs key export tank/a/below b.key <phrase",
        "has the key of its encryption root 'tank/a': name that",
    );
    refused(
        "zfs key export tank b.key <phrase",
        "'tank' is not encrypted",
    );
    refused(
        "zfs key import tank/a a.key <phrase",
        "cannot import the key of 'tank/a': it is loaded",
    );
    check("zfs unload-key -a", "2 / 2 key(s) successfully unloaded\n");
    refused("zfs key export tank/a b.key <phrase", "it is not loaded");
    refused(
        "zfs key import tank/a a.key <first",
        "the passphrase is not that of the file, or the file was changed",
    );
    refused(
        "zfs key import tank/b a.key <phrase",
        "a.key holds the key of another dataset ('tank/a')",
    );
    refused(
        "sed '/^guid /{s/[1-9]$/0/;t;s/0$/1/}' a.key >c.key; zfs key import tank/a c.key <phrase",
        "the file was changed",
    );
    refused(
        "zfs key import tank/a disk <phrase",
        "this is no file of 'zfs key export'",
    );
    check(
        "zfs key import -n tank/a a.key <phrase | sed 's#.*/a.key#a.key#'",
        "a.key opens 'tank/a'\n",
    );
    check("zfs get -H -o value keystatus tank/a", "unavailable\n");
    // The dataset has another name now, and the passphrase is lost.
    check(
        "zfs rename tank/a tank/c && zfs key import tank/c a.key <phrase >said && grep -c 'is loaded' said",
        "1\n",
    );
    check(
        "zfs get -rH -t filesystem -o name,value keystatus tank/c",
        "tank/c\tavailable\ntank/c/below\tavailable\n",
    );
    check(
        "echo next phrase | zfs change-key -o pbkdf2iters=100000 tank/c && zfs unload-key tank/c",
        "",
    );
    refused(
        "zfs key import tank/c a.key <phrase",
        "it was changed after the file was written, which opens nothing any more",
    );
    check("echo next phrase | zfs load-key tank/c", "");
    assert_eq!(
        place.first_line("zfs key"),
        "! Missing 'export' or 'import'"
    );
    for secret in ["file phrase", "first phrase"] {
        assert!(!place.log().contains(secret), "{secret} is in the log");
    }
}

/// The key in a file is what the lines say: argon2id and AES-256-GCM by other libraries give the raw key of the dataset.
#[test]
fn another_program_opens_the_file() {
    let mut place = Place::new();
    let has = "/usr/bin/python3 -c 'import argon2, cryptography' && echo yes";
    if place.run(has) != "yes\n" {
        tests::skip(
            "files of keys opened by Python",
            "python3-argon2 or python3-cryptography is not installed",
        );
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    let made = place.run(
        "truncate -s 128M disk && zpool create -O mountpoint=none tank $PWD/disk && head -c 32 /dev/urandom >raw.key && \
         zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/raw.key tank/a && echo file phrase >phrase && \
         zfs key export tank/a a.key <phrase >said",
    );
    assert_eq!(made, "");
    let program = "
import argon2.low_level as a
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
about, _, key = open(\"a.key\").read().rpartition(\"key \")
iv, encrypted = map(bytes.fromhex, key.split())
_, _, memory, passes, lanes, salt = about.splitlines()[-1].split()
outer = a.hash_secret_raw(b\"file phrase\", bytes.fromhex(salt), int(passes), int(memory), int(lanes), 32, a.Type.ID)
assert AESGCM(outer).decrypt(iv, encrypted, about.encode()) == open(\"raw.key\", \"rb\").read()
print(\"opened\")
";
    assert_eq!(
        place.run(&format!("/usr/bin/python3 -c '{program}'")),
        "opened\n"
    );
}
