//! Send streams made by OpenZFS, looked into by `zstream dump`: the same text as OpenZFS's own command gives, record by record.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::{root, skip};

use crate::cli::program;

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
