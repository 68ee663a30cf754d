//! Send streams. Those made by OpenZFS are looked into by `zstream dump`: the same text as OpenZFS's own command gives, record by
//! record. Those we make of a pool of OpenZFS are the ones that OpenZFS made of it, byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::golden::Golden;
use tests::{root, skip};

use crate::cli::{Place, program};

/// Unpacks the golden streams into a directory that goes away with the value.
pub(crate) fn unpack() -> (TempDir, Vec<PathBuf>) {
    let directory = TempDir::new().expect("make a directory for the streams");
    let packed = root().join("tests/golden/streams/s-send");
    let mut streams = Vec::new();
    for entry in fs::read_dir(packed).expect("list the golden streams") {
        let packed = entry.expect("list the golden streams").path();
        let name = packed.file_stem().expect("a packed stream has a name");
        let stream = directory.path().join(name);
        let status = Command::new("zstd")
            .arg("-dqo")
            .args([&stream, &packed])
            .status()
            .expect("run zstd");
        assert!(status.success(), "zstd could not unpack {packed:?}");
        streams.push(stream);
    }
    streams.sort();
    assert!(streams.len() >= 20, "{} golden streams", streams.len());
    (directory, streams)
}

fn ours(letters: &str, stream: &Path) -> Output {
    Command::new(program())
        .args(["zstream", "dump"])
        .args(Some(letters).filter(|l| !l.is_empty()))
        .arg(stream)
        .output()
        .expect("run the program")
}

/// The first line that differs, as a message.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    let (ours, theirs) = (
        String::from_utf8_lossy(ours),
        String::from_utf8_lossy(theirs),
    );
    let mut pairs = ours.lines().zip(theirs.lines()).enumerate();
    pairs
        .find(|(_, (a, b))| a != b)
        .map(|(at, (a, b))| format!("line {}: '{a}' for '{b}'", at + 1))
        .or_else(|| (ours.len() != theirs.len()).then(|| "one ends earlier".to_owned()))
}

#[test]
fn every_golden_stream_reads_as_openzfs_reads_it() {
    if Command::new("zstream").output().is_err() {
        return skip("streams", "zstream is not installed");
    }
    let (_directory, streams) = unpack();
    for stream in &streams {
        for letters in ["", "-vv", "-d"] {
            let theirs = Command::new("zstream")
                .args(["dump"])
                .args(Some(letters).filter(|l| !l.is_empty()))
                .arg(stream)
                .output()
                .expect("run zstream");
            let ours = ours(letters, stream);
            // One of them ends in the middle, as its name says: OpenZFS counts bytes that did not come, and does not fail.
            let whole = !stream.ends_with("resume-first.zfs");
            assert_eq!(ours.status.success(), whole, "{}", stream.display());
            let differs = difference(&ours.stdout, &theirs.stdout).filter(|_| whole);
            if let Some(difference) = differs {
                panic!("{} {letters}: {difference}", stream.display());
            }
        }
    }
}

#[test]
fn a_damaged_stream_ends_with_a_message() {
    let (directory, streams) = unpack();
    let whole = fs::read(&streams[0]).expect("read a stream");
    let check = |name: &str, bytes: &[u8], message: &str| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).expect("write a stream");
        let output = ours("", &path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim_end(), message, "{name}");
        assert_eq!(output.status.code(), Some(1), "{name}");
    };
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    check("flipped", &flipped, "invalid checksum");
    check(
        "short",
        &whole[..whole.len() - 312],
        "the stream is cut short",
    );
    check("shorter", &whole[..1000], "the stream is cut short");
    check("none", &[0; 1000], "Invalid stream (bad magic number)");
}

/// What `zfs send` of OpenZFS wrote and the arguments it was given, from the manifest's list: those that we send too.
const SENT: [(&str, &str); 20] = [
    ("full", "s-send/fs@a"),
    ("full-L-e-c", "-L -e -c s-send/fs@a"),
    ("incr-a-b", "-i @a s-send/fs@b"),
    ("incr-a-b-Lec", "-L -e -c -i @a s-send/fs@b"),
    ("incr-b-c", "-i @b s-send/fs@c"),
    ("incr-I-a-c", "-I @a s-send/fs@c"),
    ("incr-bookmark-a-c", "-i s-send/fs#a s-send/fs@c"),
    ("big-split", "s-send/big@a"),
    ("big-L", "-L s-send/big@a"),
    ("big-Lc", "-L -c s-send/big@a"),
    ("big-Lc-incr", "-L -c -i @a s-send/big@b"),
    ("dnode", "s-send/dn@a"),
    ("vol-full", "s-send/vol@a"),
    ("vol-incr-c", "-c -i @a s-send/vol@b"),
    ("raw-plain", "-w s-send/big@a"),
    // Without the key, which is not loaded.
    ("raw-enc-full", "-w s-send/enc@a"),
    ("raw-enc-incr", "-w -i @a s-send/enc@b"),
    ("clone-origin", "-i s-send/top/kid@r1 s-send/top/clone@r2"),
    ("full-props", "-p s-send/fs@a"),
    (
        "resume-rest",
        "-t 1-ba5b74a0e-d8-789c636064000310a500c4ec50360710e72765a52697303094419460caa7a515a79630c001489e0d493ea9b224b518482f98cd8e557f497e7a69660a0303a7b0d5ae8dfb7f306a20c97382e5f312735319188a758b53f352f4d38a1d12e1e6703320dc9d9c9f5b50945a5c9c9f8d700b00491f1ac6",
    ),
];

/// Packages of several datasets, whose lists OpenZFS orders by hash values.
const PACKAGES: [(&str, &str); 4] = [
    ("R-top-r1", "-R s-send/top@r1"),
    ("R-top-r2", "-R s-send/top@r2"),
    ("R-incr", "-R -I @r1 s-send/top@r2"),
    ("holds-props-R", "-R -h -p s-send/top@r2"),
];

/// What depends on the order, and a property that was set on the volume after the streams were made, with the sizes that follow.
const NOT_COMPARED: [&str; 6] = [
    "checksum",
    "snapdev = 0x1",
    "payloadlen",
    "DRR_BEGIN records",
    "payload size",
    "stream length",
];

/// The lines of a dump in order of their text.
fn dumped(stream: &Path) -> Vec<String> {
    let dump = ours("-v", stream);
    assert!(dump.status.success(), "{}", stream.display());
    let text = String::from_utf8_lossy(&dump.stdout).into_owned();
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !NOT_COMPARED.iter().any(|text| line.contains(text)))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn packages_say_what_those_of_openzfs_say() {
    let (_directory, streams) = unpack();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send",
        golden.directory().display()
    );
    assert_eq!(place.run(&import), "");
    for (name, arguments) in PACKAGES {
        let sent = place.run(&format!("zfs send {arguments} > sent"));
        assert_eq!(sent, "", "zfs send {arguments}");
        let ours = dumped(&place.path("work").join("sent"));
        let theirs = dumped(Path::new(&named(&streams, name)));
        assert!(theirs.len() > 100, "{name}: {} lines", theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            assert_eq!(a, b, "{name}: zfs send {arguments}");
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
    }
    let told = place.run("zfs send -nvP -R -I @r1 s-send/top@r2 | cut -f 1-3 | sort; zfs send -R -s -nP s-send@none; zfs send -R -nP -X s-send/top/kid,s-send/top/v s-send/top@r1 | cut -f 1,2");
    assert!(
        told.contains("incremental\tr1\ts-send/top/kid@r2\n"),
        "{told}"
    );
    assert!(told.contains("full\ts-send/top@r1\nsize\t"), "{told}");
    assert!(told.contains("full\ts-send/top/clone@r2\t"), "{told}");
    assert!(
        told.contains("! cannot open 's-send@none': dataset does not exist\n"),
        "{told}"
    );
}

#[test]
fn streams_are_those_of_openzfs_byte_for_byte() {
    let (_directory, streams) = unpack();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send",
        golden.directory().display()
    );
    assert_eq!(place.run(&import), "");
    for (name, arguments) in SENT {
        let theirs = streams
            .iter()
            .find(|path| path.ends_with(format!("{name}.zfs")));
        let theirs = theirs.expect("a golden stream of that name");
        let compared = place.run(&format!(
            "zfs send {arguments} > sent; cmp sent {}",
            theirs.display()
        ));
        assert_eq!(compared, "", "{name}: zfs send {arguments}");
        let told = place.run(&format!("zfs send -nP {arguments} | tail -n 1"));
        // What a package has besides its streams.
        let packed = match name {
            "full-props" => 3 * 312 + 524,
            _ if name.starts_with("incr-I") => 3 * 312,
            _ => 0,
        };
        let length = fs::metadata(theirs).expect("a golden stream").len() - packed;
        assert_eq!(
            told,
            format!("size\t{length}\n"),
            "zfs send -nP {arguments}"
        );
    }
}

/// An encrypted dataset goes raw, without its key; with its properties, in no other way.
#[test]
fn encrypted_datasets_are_sent_raw_without_their_key() {
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send; zfs get -Ho value keystatus s-send/enc",
        golden.directory().display()
    );
    assert_eq!(place.run(&import), "unavailable\n");
    for arguments in ["-p s-send/enc@b", "-R s-send/enc@b"] {
        let shown = place.run(&format!("zfs send {arguments} | wc -c"));
        assert_eq!(
            shown,
            "0\n! cannot send s-send/enc@b: encrypted dataset s-send/enc may not be sent with properties without the raw flag\n\
             ! warning: cannot send 's-send/enc@b': backup failed\n",
            "zfs send {arguments}"
        );
    }
    let shown = place.run("zfs send s-send/enc@b | wc -c");
    assert_eq!(
        shown,
        "0\n! warning: cannot send 's-send/enc@b': encryption key not loaded\n"
    );
    let package = place.run(
        "zfs send -w -R s-send/enc@b > sent; sanbox zstream dump sent | grep -c 'is_encroot\\|toguid = [^0]'",
    );
    assert_eq!(package, "3\n");
}

/// Streams that cannot be made: the words that scripts know, on standard error, with exit code 1, and nothing on standard output.
#[test]
fn what_cannot_be_sent_is_refused() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create tank $PWD/disk && zfs create tank/a && zfs create tank/b && \
         zfs snapshot tank/a@1 && zfs snapshot tank/a@2 && zfs snapshot tank/b@1",
    );
    assert_eq!(made, "");
    for (arguments, expect) in [
        (
            "tank/a@none",
            "cannot open 'tank/a@none': dataset does not exist",
        ),
        (
            "-i @none tank/a@2",
            "cannot open 'tank/a@none': dataset does not exist",
        ),
        (
            "-i @2 tank/a@1",
            "warning: cannot send 'tank/a@1': not an earlier snapshot from the same fs",
        ),
        (
            "-i tank/b@1 tank/a@2",
            "warning: cannot send 'tank/a@2': not an earlier snapshot from the same fs",
        ),
        (
            "-p tank/a",
            "Error: Unsupported flag with filesystem or bookmark.",
        ),
        (
            "-i '#none' tank/a@2",
            "warning: cannot send 'tank/a@2': incremental source (tank/a#none) does not exist",
        ),
    ] {
        let shown = place.run(&format!("zfs send {arguments} > out; echo $?; wc -c < out"));
        assert_eq!(shown, format!("1\n0\n! {expect}\n"), "zfs send {arguments}");
    }
    let misused = place.run("zfs send -I tank/b@1 tank/a@2 2>&1 > out | sed -n 1,2p");
    assert_eq!(
        misused,
        "incremental source must be in same filesystem\nusage:\n"
    );
    let at_terminal = place.run(
        "script -qec 'zfs send tank/a@1' /dev/null | tr -d '\\r'; script -qec 'zfs receive tank/x' /dev/null | tr -d '\\r'; \
         script -qec 'zfs send -nP tank/a@1' /dev/null | tr -d '\\r' | cut -f 1",
    );
    assert_eq!(
        at_terminal,
        "Error: Stream can not be written to a terminal.\nYou must redirect standard output.\n\
         Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.\nfull\nsize\n"
    );
    // A snapshot that is being sent stays; once its reader has gone, it can be destroyed.
    let shown = place.run(
        "zfs send -nv -i @1 tank/a@2 | head -n 1 | sed 's/size is .*/size is/'; zfs send tank/a@1 | head -c 100 | wc -c; \
         zfs destroy tank/a@1 && zfs list -Ho name -t snapshot",
    );
    let expect = "send from tank/a@1 to tank/a@2 estimated size is\n100\ntank/a@2\ntank/b@1\n";
    assert_eq!(shown, expect);
}

/// A file system or volume is sent as it is, without a snapshot: the bytes of OpenZFS.
#[test]
fn heads_are_sent() {
    if tests::oracle::refpool().is_none() {
        return skip("heads that are sent", "refpool is missing");
    }
    let (_directory, streams) = unpack();
    let volume = named(&streams, "vol-full");
    let place = Place::new();
    let made = place.run(&format!(
        "truncate -s 256M disk && zpool create -O mountpoint=none -O compression=off tank $PWD/disk && zfs create tank/a && \
         zfs receive tank/v < {volume} && zfs destroy tank/v@a && mkdir files && seq 1 40000 > files/x && ln -s x files/l && \
         sanbox put -r files tank/a:/ && \
         zfs snapshot tank/a@1 && seq 5 60000 > files/x && echo new > files/y && sanbox put -r files tank/a:/",
    ));
    assert_eq!(made, "");
    let sent = place.run(
        "zfs send tank/a > a && zfs send -i @1 tank/a > a-i && zfs send tank/v > v && zfs send -nvP tank/a | cut -f 1 && \
         zfs receive tank/b < a && zfs list -Ho name -t snapshot -r tank/b && zpool export tank",
    );
    assert_eq!(sent, "full\nsize\ntank/b@--head--\n");
    let work = place.path("work");
    let to = |name: &str| work.join(name).display().to_string();
    let operations = [
        format!("send:tank/a={}", to("their-a")),
        format!("rsend:tank/a={},tank/a@1,", to("their-a-i")),
        format!("send:tank/v={}", to("their-v")),
    ];
    let done = tests::oracle::refpool_does("tank", &[work.join("disk")], &operations);
    done.expect("OpenZFS sends them");
    let same = place
        .run("for s in a a-i v; do cmp $s their-$s && wc -c < $s; done | grep -c '[0-9]\\{5\\}'");
    assert_eq!(same, "3\n");
}

/// What is mounted or shared is not sent as it is; what was, is.
#[test]
fn a_file_system_is_sent_once_it_is_unmounted() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return skip("a mount that ends", "this machine has no /dev/fuse");
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let shown = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=$PWD/m tank $PWD/disk && zfs create tank/a && seq 9 50000 > m/a/f && \
         zfs send tank/a > sent; zfs unmount tank/a && zfs set sharenfs=on tank/a && sanbox cat tank/a:/f | wc -l; zfs send tank/a > sent; \
         zfs set sharenfs=off tank/a && zfs send tank/a > sent && zfs receive -u tank/b < sent && sanbox cat tank/b:/f | wc -l; \
         head -c 150000 sent | zfs receive -s -u tank/c 2>/dev/null; zfs send -t $(zfs get -Ho value receive_resume_token tank/c) > rest && \
         zfs receive -s -u tank/c < rest && sanbox cat tank/c:/f | wc -l; zfs mount tank/a && wc -l < m/a/f; \
         zfs destroy tank/a && ls m",
    );
    let busy = "! warning: cannot send 'tank/a': target is busy; if a filesystem, it must not be mounted\n";
    assert_eq!(shown, format!("49992\n49992\n49992\n49992\n{busy}{busy}"));
}

/// The hidden dataset that an interrupted receive left is not to be had by another name, by which its receive would not find it.
#[test]
fn what_a_receive_fills_is_not_renamed() {
    let (_directory, streams) = unpack();
    let (full, more) = (named(&streams, "full"), named(&streams, "incr-a-b"));
    let place = Place::new();
    let shown = place.run(&format!(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs receive tank/fs < {full} && \
         head -c 20000 {more} | zfs receive -s tank/fs 2>/dev/null; zfs rename tank/fs/%recv tank/x; zfs list -Ho name -r tank; \
         zfs get -Ho value receive_resume_token tank/fs | grep -c 1-"
    ));
    let expect = "tank\ntank/fs\n1\n! cannot rename to 'tank/x': invalid character '%' in name\n";
    assert_eq!(shown, expect);
}

pub(crate) fn named(streams: &[PathBuf], name: &str) -> String {
    let found = streams
        .iter()
        .find(|path| path.ends_with(format!("{name}.zfs")));
    found
        .expect("a golden stream of that name")
        .display()
        .to_string()
}

/// Digests of the objects of a dataset or snapshot, without its name.
pub(crate) fn sums(place: &Place, name: &str) -> String {
    place.run(&format!(
        "sanbox sums {name} | sed 's/^{}//'",
        name.replace('/', "\\/")
    ))
}

/// The streams that OpenZFS made, received in their order into an empty pool: each snapshot holds what it holds at the sender, and zdb
/// finds nothing wrong with the pool.
#[test]
fn golden_streams_are_received() {
    let (_directory, streams) = unpack();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send && truncate -s 512M disk && zpool create tank $PWD/disk",
        golden.directory().display()
    );
    assert_eq!(place.run(&import), "");
    let stream = |name: &str| named(&streams, name);
    // Stream, dataset, the snapshots that are there afterwards.
    for (name, dataset, from, snapshots) in [
        ("full", "tank/fs", "s-send/fs", "a"),
        ("incr-a-b", "tank/fs", "s-send/fs", "a b"),
        ("incr-b-c", "tank/fs", "s-send/fs", "a b c"),
        ("full-L-e-c", "tank/lec", "s-send/fs", "a"),
        ("incr-a-b-Lec", "tank/lec", "s-send/fs", "a b"),
        ("full", "tank/all", "s-send/fs", "a"),
        ("incr-I-a-c", "tank/all", "s-send/fs", "a b c"),
        ("full", "tank/mark", "s-send/fs", "a"),
        ("incr-bookmark-a-c", "tank/mark", "s-send/fs", "a c"),
        ("big-L", "tank/big", "s-send/big", "a"),
        ("big-Lc-incr", "tank/big", "s-send/big", "a b"),
        ("big-Lc", "tank/bigc", "s-send/big", "a"),
        ("raw-plain", "tank/raw", "s-send/big", "a"),
        ("dnode", "tank/dn", "s-send/dn", "a"),
        ("vol-full", "tank/vol", "s-send/vol", "a"),
        ("vol-incr-c", "tank/vol", "s-send/vol", "a b"),
        ("full-props", "tank/props", "s-send/fs", "a"),
    ] {
        let received = place.run(&format!("zfs receive -u {dataset} < {}", stream(name)));
        assert_eq!(received, "", "zfs receive of {name}");
        for snapshot in snapshots.split(' ') {
            let ours = sums(&place, &format!("{dataset}@{snapshot}"));
            let theirs = sums(&place, &format!("{from}@{snapshot}"));
            assert!(ours.lines().count() > 1, "{name}: {ours}");
            assert_eq!(ours, theirs, "{name}: {dataset}@{snapshot}");
            let guids = place.run(&format!(
                "zfs get -Hpo value guid,creation {dataset}@{snapshot} {from}@{snapshot} | sort | uniq -u"
            ));
            assert_eq!(
                guids, "",
                "{name}: guid and creation of {dataset}@{snapshot}"
            );
        }
    }
    assert_eq!(place.run("zpool export tank"), "");
    tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

/// What cannot be received: the dataset stays as it was, nothing is left of the attempt, and the words are OpenZFS's.
#[test]
fn what_cannot_be_received_changes_nothing() {
    let (directory, streams) = unpack();
    let place = Place::new();
    let full = named(&streams, "full");
    let incremental = named(&streams, "incr-a-b");
    let made = place.run(&format!(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs receive tank/fs < {full}"
    ));
    assert_eq!(made, "");
    let before = sums(&place, "tank/fs");
    let whole = fs::read(&incremental).expect("a golden stream");
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let incomplete = "cannot receive incremental stream: incomplete stream";
    for (name, bytes, expect) in [
        (
            "flipped",
            &flipped[..],
            "cannot receive incremental stream: checksum mismatch",
        ),
        ("cut", &whole[..whole.len() / 2], incomplete),
        ("unended", &whole[..whole.len() - 312], incomplete),
        ("short", &whole[..1000], incomplete),
        ("nothing", &[], "cannot receive: failed to read from stream"),
        (
            "zeros",
            &[0; 1000],
            "cannot receive: invalid stream (bad magic number)",
        ),
    ] {
        let path = directory.path().join(name);
        fs::write(&path, bytes).expect("write a stream");
        let shown = place.run(&format!(
            "zfs receive tank/fs < {} | cat; echo $?",
            path.display()
        ));
        assert!(shown.contains(&format!("! {expect}\n")), "{name}: {shown}");
        assert_eq!(sums(&place, "tank/fs"), before, "{name}");
        let left = place.run("zfs list -Ho name -t all -r tank");
        assert_eq!(left, "tank\ntank/fs\ntank/fs@a\n", "{name}");
    }
    for (prepare, arguments, stream, expect) in [
        (
            "true",
            "tank/fs",
            &full,
            "! cannot receive new filesystem stream: destination 'tank/fs' exists\n! must specify -F to overwrite it\n",
        ),
        (
            "true",
            "tank/none",
            &incremental,
            "! cannot receive incremental stream: destination 'tank/none' does not exist\n",
        ),
        (
            "zfs create tank/other && zfs snapshot tank/other@a",
            "tank/other",
            &incremental,
            "! cannot receive incremental stream: most recent snapshot of tank/other does not\n! match incremental source\n",
        ),
        (
            "printf x > x && sanbox put x tank/fs:/x",
            "tank/fs",
            &incremental,
            "! cannot receive incremental stream: destination tank/fs has been modified\n! since most recent snapshot\n",
        ),
    ] {
        let shown = place.run(&format!("{prepare}; zfs receive {arguments} < {stream}"));
        assert_eq!(shown, format!("{expect}[1]\n"), "zfs receive {arguments}");
    }
    // -F gives the change up.
    let forced = place.run(&format!(
        "zfs receive -F tank/fs < {incremental}; zfs list -Ho name -t all -r tank/fs; sanbox ls tank/fs:/ | grep -c '^x$'"
    ));
    assert_eq!(forced, "tank/fs\ntank/fs@a\ntank/fs@b\n0\n[1]\n");
    let exported = place.run("zpool export tank");
    assert_eq!(exported, "");
    tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

/// A daemon that is killed while it receives: the dataset is as it was, and what was half received is gone.
#[test]
fn a_receive_that_is_killed_leaves_nothing() {
    let (_directory, streams) = unpack();
    let mut place = Place::new();
    let (full, incremental) = (named(&streams, "full"), named(&streams, "incr-a-b"));
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let made = place.run(&format!(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs receive tank/fs < {full}"
    ));
    assert_eq!(made, "");
    let before = sums(&place, "tank/fs");
    for (target, stream, bytes) in [
        ("tank/fs", &incremental, 400_000),
        ("tank/new", &full, 5_000_000),
    ] {
        // The pipe stays open: the receive waits for what does not come.
        let line = format!("(head -c {bytes} {stream}; sleep 5) | zfs receive {target}");
        let mut receiver = place.command("sh");
        let receiver = receiver
            .args(["-c", &line])
            .stderr(std::process::Stdio::null());
        let mut receiver = receiver.spawn().expect("a shell");
        std::thread::sleep(std::time::Duration::from_secs(2));
        let listed = place.run("zpool sync tank; zfs list -Ho name -r tank");
        assert!(listed.contains("tank/fs\n"), "{listed}");
        assert!(!listed.contains('%'), "{listed}");
        place.kill();
        let status = receiver.wait().expect("a shell");
        assert!(!status.success(), "{target}");
        place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
        assert_eq!(sums(&place, "tank/fs"), before, "{target}");
        let left = place.run("zfs list -Ho name -t all -r tank");
        assert_eq!(left, "tank\ntank/fs\ntank/fs@a\n", "{target}");
    }
    let received = place.run(&format!(
        "zfs receive tank/fs < {incremental}; zfs list -Ho name -t all -r tank; zpool export tank"
    ));
    assert_eq!(received, "tank\ntank/fs\ntank/fs@a\ntank/fs@b\n");
    place.stop();
    tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

/// A stream of `zfs send -D`, which OpenZFS's suite brings, becomes what OpenZFS's own command makes of it, and is received; streams
/// without references come out likewise. One that refers to nothing is refused.
#[test]
fn references_of_old_streams_are_resolved() {
    let suite = Path::new("/usr/share/zfs/zfs-tests/tests/functional/rsend");
    if Command::new("zstream").output().is_err() || !suite.is_dir() {
        return skip("zstream redup", "zstream or zfs-test is not installed");
    }
    let (_directory, streams) = unpack();
    let place = Place::new();
    let made = place.run(&format!(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/in && \
         bzcat {0}/dedup.zsend.bz2 > dedup && tar xzf {0}/fs.tar.gz && sanbox zstream redup dedup > ours; zstream redup dedup > theirs; \
         cmp ours theirs && zfs receive -u -d tank/in < ours && mkdir back && \
         for part in fs fs/subfs; do sanbox get -r tank/in/$part:/ back/$part && rm -rf tar && mkdir tar && cp -a $part/. tar && \
         rm -rf tar/subfs back/$part/subfs && diff -r tar back/$part && echo same; done",
        suite.display()
    ));
    assert_eq!(made, "same\nsame\n");
    for name in ["full-L-e-c", "R-top-r1"] {
        let stream = named(&streams, name);
        let compared = place.run(&format!(
            "sanbox zstream redup {stream} > ours && zstream redup {stream} > theirs; cmp ours theirs && sanbox zstream dump ours > out && \
             zfs receive -u tank/{name} < theirs && echo same"
        ));
        assert_eq!(compared, "same\n", "{name}");
    }
    // What the second stream of the package refers to is in the first.
    let refused = place.run(
        "sanbox zstream redup -v dedup 2>&1 > ours | sed 's/, using.*//'; head -c 100000 dedup > part; sanbox zstream redup part > ours; \
         tail -c +$(($(grep -abo -m1 test/fs/subfs@snap dedup | tail -1 | cut -d: -f1) - 55)) dedup > part; sanbox zstream redup part > ours",
    );
    assert_eq!(
        refused,
        "converted stream with 152 total records, including 51 dedup records\n! the stream is cut short\n\
         ! a record of the stream stands for a block that did not come before it\n[1]\n"
    );
}
