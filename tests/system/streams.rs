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
fn unpack() -> (TempDir, Vec<PathBuf>) {
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
            if let Some(difference) = difference(&ours.stdout, &theirs.stdout) {
                panic!("{} {letters}: {difference}", stream.display());
            }
            // One of them ends in the middle, as its name says.
            let whole = !stream.ends_with("resume-first.zfs");
            assert_eq!(ours.status.success(), whole, "{}", stream.display());
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
const SENT: [(&str, &str); 16] = [
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
    ("clone-origin", "-i s-send/top/kid@r1 s-send/top/clone@r2"),
];

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
        let packed = if name.starts_with("incr-I") {
            3 * 312
        } else {
            0
        };
        let length = fs::metadata(theirs).expect("a golden stream").len() - packed;
        assert_eq!(
            told,
            format!("size\t{length}\n"),
            "zfs send -nP {arguments}"
        );
    }
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
            "-i '#none' tank/a@2",
            "warning: cannot send 'tank/a@2': incremental source (tank/a#none) does not exist",
        ),
        (
            "-I tank/b@1 tank/a@2",
            "incremental source must be in same filesystem",
        ),
    ] {
        let shown = place.run(&format!("zfs send {arguments} > out; echo $?; wc -c < out"));
        assert_eq!(shown, format!("1\n0\n! {expect}\n"), "zfs send {arguments}");
    }
    // A snapshot that is being sent stays; once its reader has gone, it can be destroyed.
    let shown = place.run(
        "zfs send -nv -i @1 tank/a@2 | head -n 1 | sed 's/size is .*/size is/'; zfs send tank/a@1 | head -c 100 | wc -c; \
         zfs destroy tank/a@1 && zfs list -Ho name -t snapshot",
    );
    let expect = "send from tank/a@1 to tank/a@2 estimated size is\n100\ntank/a@2\ntank/b@1\n";
    assert_eq!(shown, expect);
}
