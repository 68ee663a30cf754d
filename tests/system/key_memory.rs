//! Keys in the memory of the daemon: while they are loaded they lie in pages that are neither swapped nor dumped, and when they are
//! unloaded they are found nowhere. The kernel says what memory holds, and which pages are of which kind.

use crate::cli::Place;

const SCRIPT: &str = include_str!("key_memory.py");
const PASSPHRASE: &str = "a passphrase of this test";

/// How often each of these is found in pages for secrets, and elsewhere.
fn find(place: &Place, needles: &[String]) -> Vec<(u64, u64)> {
    let line = format!(
        "printf '{}' | python3 ../key_memory.py {} find",
        needles.join("\\n"),
        place.pid()
    );
    let said = place.run(&line);
    let counts: Vec<(u64, u64)> = said
        .lines()
        .filter_map(|line| {
            let (secret, other) = line.split_once(' ')?;
            Some((secret.parse().ok()?, other.parse().ok()?))
        })
        .collect();
    assert_eq!(counts.len(), needles.len(), "{said}");
    counts
}

#[test]
fn an_unloaded_key_is_nowhere_in_memory() {
    let mut place = Place::new();
    std::fs::write(place.path("key_memory.py"), SCRIPT).expect("a script");
    place.serve(&["--nfs-port", "0"]);
    let pid = place.pid();
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && head -c 32 /dev/urandom >raw.key",
        "",
    );
    let encrypted = "-o encryption=on -o pbkdf2iters=100000 -o keyformat=passphrase";
    check(
        &format!("echo '{PASSPHRASE}' | zfs create {encrypted} tank/pass"),
        "",
    );
    let key = "-o keyformat=raw -o keylocation=file://$PWD/raw.key";
    check(
        &format!("zfs create -o encryption=on {key} -V 16M tank/raw"),
        "",
    );
    check(
        &format!(
            "zfs create -o encryption=aes-128-ccm {key} tank/ccm && zfs create tank/ccm/below"
        ),
        "",
    );
    // Loaded once more, so that both ways are looked at.
    check("zfs unload-key -a", "3 / 3 key(s) successfully unloaded\n");
    check(
        &format!("echo '{PASSPHRASE}' | zfs load-key -a"),
        "3 / 3 key(s) successfully loaded\n",
    );
    check(
        "for fs in pass ccm ccm/below; do sanbox ls tank/$fs:/ >/dev/null || echo $fs; done",
        "",
    );
    let secrets = place.run(&format!("python3 ../key_memory.py {pid} secrets"));
    if secrets.contains("Permission denied") {
        tests::skip(
            "the memory of the daemon",
            "the memory of another process may not be read",
        );
        return;
    }
    // Three wrapping keys, and the keys of the datasets that were read.
    let secrets: Vec<&str> = secrets.lines().collect();
    assert!(secrets.len() >= 6, "{} pages", secrets.len());
    let raw = place.run("od -An -v -tx1 raw.key | tr -d ' \n'");
    let is_there = secrets
        .iter()
        .any(|page| page.len() > 32 && raw.starts_with(page));
    assert!(is_there, "the raw key is not in such a page");
    // Any 16 bytes of a key count.
    let digits = secrets
        .iter()
        .flat_map(|page| page.as_bytes().chunks_exact(32));
    let mut secrets: Vec<String> = digits
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    let found = find(&place, &secrets);
    assert!(found.iter().all(|(secret, _)| *secret > 0), "{found:?}");
    let elsewhere = found.iter().filter(|(_, other)| *other > 0).count();
    assert_eq!(elsewhere, 0, "keys in other memory: {found:?}");

    check("zfs unload-key -a", "3 / 3 key(s) successfully unloaded\n");
    let passphrase = PASSPHRASE.bytes().map(|byte| format!("{byte:02x}"));
    secrets.push(passphrase.collect());
    let found = find(&place, &secrets);
    assert!(found.iter().all(|counts| *counts == (0, 0)), "{found:?}");
    // The search finds what is there.
    let name = "tank/pass".bytes().map(|byte| format!("{byte:02x}"));
    assert_ne!(find(&place, &[name.collect()]), [(0, 0)]);
}

/// Without the right to lock memory a key is loaded all the same, and that is said.
#[test]
fn keys_that_may_be_swapped_are_named() {
    let place = Place::new();
    let may = "setpriv --bounding-set=-ipc_lock true && echo yes";
    if place.run(may) != "yes\n" {
        tests::skip(
            "keys that may be swapped",
            "the right to lock memory cannot be taken away",
        );
        return;
    }
    let made = place.run("truncate -s 128M disk && zpool create -O mountpoint=none tank $PWD/disk && head -c 32 /dev/urandom >raw.key");
    assert_eq!(made, "");
    let create =
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/raw.key tank/a";
    let without = "ulimit -l 0; setpriv --bounding-set=-ipc_lock";
    let said = place.run(&format!("{without} {create}"));
    let warning = "! warning: the key may be swapped out: the limit on locked memory is too small";
    assert!(
        said.starts_with(warning) && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(place.run("zfs load-key tank/a"), "");
}
