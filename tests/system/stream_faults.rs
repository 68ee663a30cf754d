//! Receives that end badly: the daemon or the command is killed at many places, or the stream is one that no sender would make. The
//! dataset is as it was, or goes on by its token; `zdb` judges what is left.
//!
//! The hostile streams are golden ones, changed record by record, with checksums that are right again: what is behind the checksum is
//! what is tested.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use engine::stream::{ByteOrder, NvList, RECORD_SIZE, StreamRecord};
use ondisk::stream::{CHECKSUM_OFFSET, put_record_checksum};
use tests::golden::Golden;
use tests::oracle;

use crate::cli::Place;
use crate::streams::{named, sums, unpack};

pub(crate) const SERVE: [&str; 4] = ["--nfs-port", "0", "--iscsi-port", "0"];

/// A generator of numbers that repeats (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A receive that got the first bytes of a stream and waits for more.
pub(crate) fn waiting(place: &Place, arguments: &[&str], bytes: &[u8]) -> (Child, ChildStdin) {
    let mut receiver = place
        .command("zfs")
        .arg("receive")
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("zfs receive");
    let mut input = receiver.stdin.take().expect("a pipe");
    // One that ended before it took all broke the pipe: its status tells.
    let _ = input.write_all(bytes);
    (receiver, input)
}

pub(crate) fn token(place: &Place, dataset: &str) -> Option<String> {
    let shown = place.run(&format!(
        "zfs get -Hpo value receive_resume_token {dataset} 2> /dev/null"
    ));
    let token = shown.lines().next().unwrap_or_default();
    token.starts_with("1-").then(|| token.to_owned())
}

pub(crate) fn judged(place: &mut Place) {
    assert_eq!(place.run("zpool export tank"), "");
    place.stop();
    let images = [place.path("work").join("disk")];
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
    if oracle::refpool().is_some() {
        oracle::accounts_agree(&images).expect("the accounts are right");
    }
}

/// The daemon is killed again and again while it receives one stream, which goes on by its token each time, and so is the command.
#[test]
fn a_receive_goes_on_after_every_kill() {
    let mut place = Place::new();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send && truncate -s 512M disk && \
         zpool create -O mountpoint=none tank $PWD/disk",
        golden.directory().display()
    );
    place.serve(&SERVE);
    assert_eq!(place.run(&import), "");
    let mut numbers = Numbers(20);
    let send = |place: &Place, arguments: &str| {
        assert_eq!(place.run(&format!("zfs send {arguments} > stream")), "");
        fs::read(place.path("work").join("stream")).expect("a stream")
    };
    let (mut kills, mut resumed) = (0, 0);
    for (whole, snapshot) in [
        ("s-send/fs@a", "tank/fs@a"),
        ("-i @a s-send/fs@b", "tank/fs@b"),
        ("-c -i @b s-send/fs@c", "tank/fs@c"),
    ] {
        for round in 0..10 {
            let stream = match token(&place, "tank/fs") {
                Some(token) => {
                    resumed += 1;
                    send(&place, &format!("-t {token}"))
                }
                None => send(&place, whole),
            };
            let cut = numbers.below(stream.len() as u64);
            let cut = usize::try_from(cut).expect("it fits");
            let (mut receiver, input) = waiting(&place, &["-s", "-u", "tank/fs"], &stream[..cut]);
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(numbers.below(300)));
                assert_eq!(place.run("zpool sync tank"), "");
            }
            if round % 3 == 2 {
                // The command alone: the daemon notices, and keeps what it has.
                receiver.kill().expect("it is running");
                receiver.wait().expect("its end");
                drop(input);
                std::thread::sleep(Duration::from_millis(300));
            } else {
                place.kill();
                drop(input);
                receiver.wait().expect("its end");
                place.serve(&SERVE);
            }
            kills += 1;
            let listed = place.run("zfs list -Ho name -r -t all tank");
            assert!(
                !listed.contains('%') && !listed.contains(snapshot),
                "{listed}"
            );
        }
        let rest = match token(&place, "tank/fs") {
            Some(token) => format!("zfs send -t {token}"),
            None => format!("zfs send {whole}"),
        };
        let received = place.run(&format!("{rest} | zfs receive -s -u tank/fs"));
        assert_eq!(received, "", "{snapshot}");
        let source = snapshot.replace("tank", "s-send");
        assert_eq!(sums(&place, snapshot), sums(&place, &source), "{snapshot}");
    }
    assert_eq!(kills, 30);
    assert!(resumed >= 10, "{resumed} receives were resumed");
    judged(&mut place);
}

/// The records of a stream with their payloads.
pub(crate) type Records = Vec<(StreamRecord, Vec<u8>)>;

pub(crate) fn records(path: &str) -> Records {
    let bytes = fs::read(path).expect("a golden stream");
    let mut rest = &bytes[..];
    let mut records = Records::new();
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let record = StreamRecord::decode(record, ByteOrder::Little).expect("a golden record");
        let len = usize::try_from(record.payload_len()).expect("it fits");
        let (payload, behind) = behind.split_at(len);
        records.push((record, payload.to_vec()));
        rest = behind;
    }
    records
}

/// The running sum of a stream. docs/format/11-send-stream.md
#[derive(Default)]
struct Fletcher([u64; 4]);

impl Fletcher {
    fn update(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(4) {
            let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
            let [a, b, c, d] = &mut self.0;
            *a = a.wrapping_add(word.into());
            *b = b.wrapping_add(*a);
            *c = c.wrapping_add(*b);
            *d = d.wrapping_add(*c);
        }
    }
}

/// Writes a stream with checksums that are right; `damage` changes a record once it is encoded.
pub(crate) fn write(path: &Path, records: &Records, damage: Option<(usize, usize, u8)>) {
    let mut out = Vec::new();
    let mut sum = Fletcher::default();
    for (at, (record, payload)) in records.iter().enumerate() {
        let record = match record {
            StreamRecord::End { to_guid, .. } => StreamRecord::End {
                checksum: sum.0,
                to_guid: *to_guid,
            },
            other => other.clone(),
        };
        let mut bytes = record.encode();
        if let Some((_, byte, value)) = damage.filter(|(record, ..)| *record == at) {
            bytes[byte] ^= value;
        }
        if matches!(record, StreamRecord::Begin(_)) {
            sum = Fletcher::default();
            sum.update(&bytes);
        } else {
            sum.update(&bytes[..CHECKSUM_OFFSET]);
            put_record_checksum(&mut bytes, sum.0);
            sum.update(&bytes[CHECKSUM_OFFSET..]);
        }
        sum.update(payload);
        out.extend_from_slice(&bytes);
        out.extend_from_slice(payload);
    }
    fs::write(path, out).expect("write a stream");
}

/// Where the first record stands that a test looks for.
pub(crate) fn first(records: &Records, wanted: impl Fn(&StreamRecord) -> bool) -> usize {
    let found = records.iter().position(|(record, _)| wanted(record));
    found.expect("the stream has such a record")
}

/// Changes of a stream that no sender makes, by name.
fn hostile(good: &Records) -> Vec<(&'static str, Records)> {
    let object = first(
        good,
        |r| matches!(r, StreamRecord::Object(o) if o.object > 1),
    );
    let writing = first(
        good,
        |r| matches!(r, StreamRecord::Write(w) if w.object > 1),
    );
    let mut all = Vec::new();
    let mut of_object = |name, change: &dyn Fn(&mut engine::stream::Object)| {
        let mut records = good.clone();
        if let (StreamRecord::Object(object), _) = &mut records[object] {
            change(object);
        }
        all.push((name, records));
    };
    of_object("no block size", &|object| object.block_size = 0);
    of_object("an odd block size", &|object| object.block_size = 513);
    of_object("a large block", &|object| object.block_size = 32 << 20);
    of_object("object 0", &|object| object.object = 0);
    of_object("the last object", &|object| object.object = u64::MAX);
    of_object("an object far away", &|object| object.object = 1 << 48);
    of_object("many slots", &|object| object.dnode_slots = 33);
    of_object("slots that overlap a block's end", &|object| {
        object.dnode_slots = 31;
    });
    of_object("no type", &|object| object.object_type = 0);
    of_object("no such type", &|object| object.object_type = 300);
    of_object("another snapshot's object", &|object| object.to_guid ^= 1);
    let mut of_write = |name, change: &dyn Fn(&mut engine::stream::Write)| {
        let mut records = good.clone();
        if let (StreamRecord::Write(write), _) = &mut records[writing] {
            change(write);
        }
        all.push((name, records));
    };
    of_write("a block of no object", &|write| write.object = 77_777_777);
    of_write("a block beyond the end", &|write| {
        write.offset = u64::MAX - 4096;
    });
    of_write("a block between blocks", &|write| write.offset += 77);
    of_write("a block far behind", &|write| write.offset = 1 << 62);
    of_write("another snapshot's block", &|write| write.to_guid = 1);
    of_write("lz4 that is none", &|write| {
        write.compression = 15;
        write.compressed_size = write.logical_size;
    });
    of_write("no such compression", &|write| {
        write.compression = 99;
        write.compressed_size = write.logical_size;
    });
    let mut swapped = good.clone();
    let last = good.len()
        - 2
        - good
            .iter()
            .rev()
            .skip(1)
            .position(|(r, _)| matches!(r, StreamRecord::Write(_)))
            .expect("a write");
    swapped.swap(writing, last);
    all.push(("blocks out of order", swapped));
    let mut twice = good.clone();
    twice.insert(writing, good[0].clone());
    all.push(("a stream in a stream", twice));
    let mut raw = good.clone();
    raw.insert(
        writing,
        (
            StreamRecord::ObjectRange(engine::stream::ObjectRange {
                first_object: 0,
                slots: 32,
                to_guid: good[writing].0.to_guid(),
                crypt: engine::stream::CryptParams::default(),
                flags: 0,
            }),
            Vec::new(),
        ),
    );
    all.push(("a raw record", raw));
    let mut foreign = good.clone();
    if let (StreamRecord::Begin(begin), _) = &mut foreign[0] {
        begin.from_guid ^= 0xff;
    }
    all.push(("another dataset's changes", foreign));
    all
}

/// Streams that no sender makes are refused, and the dataset is as it was.
#[test]
fn hostile_streams_change_nothing() {
    let (directory, streams) = unpack();
    let mut place = Place::new();
    place.serve(&SERVE);
    let full = named(&streams, "full");
    let made = place.run(&format!(
        "truncate -s 512M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs receive -u tank/fs < {full}"
    ));
    assert_eq!(made, "");
    let before = sums(&place, "tank/fs");
    let path = directory.path().join("hostile");
    let good = records(&named(&streams, "incr-a-b"));
    // As it is, it is received: what is refused below is refused for its change.
    write(&path, &good, None);
    let received = place.run(&format!(
        "zfs receive -u tank/fs < {0} && zfs rollback tank/fs@b && zfs destroy tank/fs@b; zfs rollback tank/fs@a",
        path.display()
    ));
    assert_eq!(received, "");
    for (name, stream) in hostile(&good) {
        write(&path, &stream, None);
        let shown = place.run(&format!("zfs receive -u tank/fs < {}", path.display()));
        assert!(
            shown.starts_with("! cannot receive incremental stream: ") && shown.ends_with("[1]\n"),
            "{name}: {shown}"
        );
        let left = place.run("zfs list -Ho name -t all -r tank");
        assert_eq!(left, "tank\ntank/fs\ntank/fs@a\n", "{name}: {shown}");
    }
    assert_eq!(sums(&place, "tank/fs"), before);
    judged(&mut place);
}

/// Single bytes of records are changed at random places: the stream is received or refused, and the daemon goes on.
#[test]
fn flipped_streams_harm_nobody() {
    const ROUNDS: usize = 60;
    let (directory, streams) = unpack();
    let mut place = Place::new();
    place.serve(&SERVE);
    let pid = place.pid();
    assert_eq!(
        place.run("truncate -s 1G disk && zpool create -O mountpoint=none tank $PWD/disk"),
        ""
    );
    let mut numbers = Numbers(11);
    let path = directory.path().join("flipped");
    let names = ["dnode", "big-Lc", "vol-full", "redacted", "raw-enc-incr"];
    let mut refused = 0;
    for round in 0..ROUNDS {
        let good = records(&named(&streams, names[round % names.len()]));
        let record = usize::try_from(numbers.below(good.len() as u64)).expect("it fits");
        let byte = usize::try_from(numbers.below(128)).expect("it fits");
        let value = 1 << numbers.below(8);
        write(&path, &good, Some((record, byte, value)));
        let shown = place.run(&format!(
            "zfs receive -u tank/new < {} > /dev/null; zfs list -Ho name tank/new > /dev/null 2>&1 && zfs destroy -r tank/new",
            path.display()
        ));
        assert!(!shown.contains("daemon"), "{round}: {shown}");
        refused += usize::from(shown.contains("! cannot receive"));
        assert_eq!(
            place.run("zfs list -Ho name -t all -r tank"),
            "tank\n",
            "{round}: {shown}"
        );
    }
    // What is flipped in data or in the place of a redacted block makes another sound stream.
    assert!(refused > ROUNDS / 4, "{refused} of {ROUNDS} were refused");
    assert_eq!(place.pid(), pid);
    assert!(!place.log().contains("panicked"), "{}", place.log());
    judged(&mut place);
}

#[test]
fn lists_of_streams_that_are_damaged_are_refused() {
    let (directory, streams) = unpack();
    let place = Place::new();
    assert_eq!(
        place.run("truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk"),
        ""
    );
    let path = directory.path().join("list");
    let good = records(&named(&streams, "R-top-r1"));
    assert!(NvList::decode(&good[0].1).is_ok(), "the package has a list");
    for (name, change) in [
        ("empty", 0..good[0].1.len()),
        ("cut", good[0].1.len() / 2..good[0].1.len()),
    ] {
        let mut records = good.clone();
        records[0].1[change].fill(0xff);
        write(&path, &records, None);
        let shown = place.run(&format!("zfs receive -u tank/x < {}", path.display()));
        assert!(shown.starts_with("! cannot receive: "), "{name}: {shown}");
        assert_eq!(place.run("zfs list -Ho name -r tank"), "tank\n", "{name}");
    }
}
