//! Keys of encrypted datasets by the commands, with a daemon that holds them. The pool is one that OpenZFS encrypted; the words are
//! those of its commands.

use tests::free_port;
use tests::golden::Golden;

use crate::cli::Place;

/// The golden pool in a daemon, which has read it and no key.
fn place(golden: &Golden) -> Place {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let directory = golden.directory().display();
    let import = format!(
        "zpool import -N -o readonly=on -d {directory} {}",
        golden.name
    );
    assert_eq!(place.run(&import), "");
    place
}

fn statuses(place: &Place) -> String {
    place.run("zfs get -rHp -t filesystem,volume -o name,value keystatus m-encrypted")
}

#[test]
fn keys_are_loaded_by_every_way_and_unloaded() {
    let golden = Golden::unpack("m-encrypted").expect("unpack the golden pool");
    let place = place(&golden);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    let cat = "sanbox ls m-encrypted/pass:/ >/dev/null && echo read";
    assert!(
        place.run(cat).contains("encryption key not loaded"),
        "{}",
        place.run(cat)
    );
    let raw = golden.manifest["keys"]["m-encrypted/pass/raw"]["hex_raw"].clone();
    let raw = raw.as_str().expect("a raw key");
    check(
        &format!("printf '{raw}' | sed 's/../\\\\x&/g' | xargs -0 printf >raw.key; wc -c <raw.key"),
        "32\n",
    );
    check(
        "printf 'wrong secret\\n' | zfs load-key m-encrypted/pass",
        "! Key load error: Incorrect key provided for 'm-encrypted/pass'.\n[255]\n",
    );
    check(
        "printf 'open sesame 123\\n' | zfs load-key -n m-encrypted/pass",
        "1 / 1 key(s) successfully verified\n",
    );
    check(
        "printf 'open sesame 123\\n' | zfs load-key m-encrypted/pass",
        "",
    );
    check(
        "printf 'open sesame 123\\n' | zfs load-key m-encrypted/pass",
        "! Key load error: Key already loaded for 'm-encrypted/pass'.\n[255]\n",
    );
    check(
        "zfs load-key m-encrypted/pass/inherits </dev/null",
        "! Key load error: Keys must be loaded for encryption root of 'm-encrypted/pass/inherits' (m-encrypted/pass).\n[255]\n",
    );
    check(
        "zfs load-key m-encrypted",
        "! Key load error: 'm-encrypted' is not encrypted.\n[255]\n",
    );
    check(cat, "read\n");
    check(
        "head -c 31 raw.key >short.key; zfs load-key -L file://$PWD/short.key m-encrypted/pass/raw",
        "! Key load error: Raw key too short (expected 32).\n[255]\n",
    );
    check(
        "zfs load-key -L file://$PWD/none.key m-encrypted/pass/raw",
        "! Key load error: Failed to open key material file: No such file or directory\n[255]\n",
    );
    check(
        "zfs load-key -L ftp://localhost/key m-encrypted/pass/raw",
        "! Key load error: URI scheme is not supported\n[255]\n",
    );
    check(
        "zfs load-key -L file://$PWD/raw.key m-encrypted/pass/raw",
        "",
    );
    // In the order of names, each from its own line.
    let hex = golden.manifest["keys"]["m-encrypted/hex"]["value"].clone();
    let hex = hex.as_str().expect("a hexadecimal key");
    check(
        &format!("printf 'another pass\\n{hex}\\n' | zfs load-key -a"),
        "2 / 2 key(s) successfully loaded\n",
    );
    assert!(
        !statuses(&place).contains("unavailable"),
        "{}",
        statuses(&place)
    );
    check(
        "zfs unload-key -r m-encrypted",
        "4 / 4 key(s) successfully unloaded\n",
    );
    assert!(
        !statuses(&place).contains("\tavailable"),
        "{}",
        statuses(&place)
    );
    check(
        "zfs unload-key m-encrypted/hex",
        "! Key unload error: Key already unloaded for 'm-encrypted/hex'.\n[255]\n",
    );
    assert!(
        place.run(cat).contains("encryption key not loaded"),
        "{}",
        place.run(cat)
    );
    check(
        "zfs mount m-encrypted/hex",
        "! cannot mount 'm-encrypted/hex': encryption key not loaded\n[1]\n",
    );
    // Neither a key nor what a user typed is in the log.
    for secret in ["sesame", "another pass", hex, "wrong secret"] {
        assert!(!place.log().contains(secret), "{secret} is in the log");
    }
}

/// `zfs share -l` asks for the keys of what it shares, and `zfs unmount -u` unloads those of encryption roots.
#[test]
fn keys_come_with_shares_and_go_with_mounts() {
    let golden = Golden::unpack("m-encrypted").expect("unpack the golden pool");
    let mut place = Place::new();
    let port = free_port();
    place.serve(&[
        "--nfs-port",
        &port.to_string(),
        "--listen",
        "127.0.0.1",
        "--no-portmap",
    ]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    let directory = golden.directory().display();
    check(
        &format!(
            "zpool import -N -d {directory} m-encrypted; zfs set mountpoint=$PWD/enc m-encrypted/pass; \
             zfs set sharenfs=on m-encrypted/pass; zfs set sharenfs=off m-encrypted/pass/raw"
        ),
        "",
    );
    let status = "zfs get -H -o value keystatus m-encrypted/hex m-encrypted/pass";
    check(status, "unavailable\nunavailable\n");
    check(
        "printf 'wrong secret\n' | zfs share -l m-encrypted/pass",
        "! Key load error: Incorrect key provided for 'm-encrypted/pass'.\n[255]\n",
    );
    // One key is asked for: of what is shared, and not of the rest.
    check(
        "printf 'open sesame 123\n' | zfs share -l m-encrypted/pass",
        "",
    );
    check(status, "unavailable\navailable\n");
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    let shared = format!("{}/enc", place.work());
    crate::rpc::Client::new(address).mount(&shared);
    check("zfs unload-key m-encrypted/pass", "");
    check("printf 'open sesame 123\n' | zfs share -al", "");
    check(status, "unavailable\navailable\n");
    crate::rpc::Client::new(address).mount(&shared);
    if !crate::snapdir::can_mount(&place) {
        return;
    }
    check(
        "zfs mount m-encrypted/pass; zfs unmount m-encrypted/pass",
        "",
    );
    check(status, "unavailable\navailable\n");
    check(
        "zfs mount m-encrypted/pass; zfs unmount -u m-encrypted/pass",
        "",
    );
    check(status, "unavailable\nunavailable\n");
    check(
        "printf 'open sesame 123\n' | zfs mount -l m-encrypted/pass; zfs unmount -au",
        "",
    );
    check(status, "unavailable\nunavailable\n");
    place.stop();
}

#[test]
fn options_of_keys_are_checked_in_the_words_of_openzfs() {
    let place = Place::new();
    let first = |line: &str| place.first_line(line);
    assert_eq!(
        first("zfs load-key"),
        "! Missing dataset argument or -a option"
    );
    assert_eq!(
        first("zfs load-key -a tank"),
        "! Cannot specify dataset with -a option"
    );
    assert_eq!(
        first("zfs load-key -r -L file:///k tank"),
        "! alternate keylocation may only be 'prompt' with -r or -a"
    );
    assert_eq!(first("zfs unload-key -n tank"), "! invalid option 'n'");
}
