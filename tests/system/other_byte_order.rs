//! Streams of big-endian senders (SPARC, POWER): golden streams, rewritten as such a machine writes them. What we receive is what
//! OpenZFS's own code receives. (Its `zstream dump` compares the checksums of such a stream without swapping them, and gives up.)

use std::collections::BTreeMap;
use std::fs;

use codec::compress::{Algorithm, decompress_into};
use ondisk::sa::{self, ATTRIBUTES, SaByteswap};
use ondisk::stream::{ByteOrder, CHECKSUM_OFFSET, RECORD_SIZE, StreamRecord, WriteEmbedded};
use ondisk::{Compression, ObjectType};
use tests::golden::Golden;
use tests::oracle;
use tests::skip;

use crate::cli::Place;
use crate::streams::{named, sums, unpack};

type Layouts = BTreeMap<u16, Vec<u16>>;

/// The running checksum of a big-endian sender.
#[derive(Default)]
struct Fletcher4([u64; 4]);

impl Fletcher4 {
    fn add(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(4) {
            let word = u32::from_be_bytes(word.try_into().expect("four bytes"));
            let mut carried = u64::from(word);
            for sum in &mut self.0 {
                *sum = sum.wrapping_add(carried);
                carried = *sum;
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

fn reverse(bytes: &mut [u8], at: usize, len: usize, size: usize) {
    for word in bytes[at..at + len].chunks_exact_mut(size) {
        word.reverse();
    }
}

/// A record, without its checksum. OpenZFS: include/sys/zfs_ioctl.h, dmu_replay_record.
fn foreign_record(record: &StreamRecord, bytes: &mut [u8]) {
    reverse(bytes, 0, 8, 4);
    let (words, halves): (&[usize], &[usize]) = match record {
        StreamRecord::Begin(_) => (&[8, 16, 24, 40, 48], &[32, 36]),
        StreamRecord::Object(_) => (&[8, 40, 56], &[16, 20, 24, 28, 36]),
        StreamRecord::FreeObjects { .. } => (&[8, 16, 24], &[]),
        StreamRecord::Write(_) => (&[8, 24, 32, 40, 88, 96], &[16]),
        StreamRecord::Free(_) => (&[8, 16, 24, 32], &[]),
        StreamRecord::End { .. } => (&[40], &[]),
        StreamRecord::Spill(_) => (&[8, 16, 24, 40], &[84]),
        StreamRecord::WriteEmbedded(_) => (&[8, 16, 24, 32], &[48, 52]),
        other => panic!("no plain stream has {other:?}"),
    };
    for &at in words {
        reverse(bytes, at, 8, 8);
    }
    for &at in halves {
        reverse(bytes, at, 4, 4);
    }
}

fn foreign_payload(kind: ObjectType, bytes: &mut [u8], layouts: &Layouts) {
    let len = bytes.len();
    match kind {
        ObjectType::SA => foreign_attributes(bytes, layouts),
        ObjectType::PLAIN_FILE_CONTENTS | ObjectType::ZVOL => {}
        ObjectType::MASTER_NODE
        | ObjectType::DIRECTORY_CONTENTS
        | ObjectType::UNLINKED_SET
        | ObjectType::SA_MASTER_NODE
        | ObjectType::SA_ATTR_REGISTRATION
        | ObjectType::SA_ATTR_LAYOUTS
        | ObjectType::ZVOL_PROP => foreign_zap(bytes),
        _ if len == 0 => {}
        other => panic!("no golden stream has {other:?}"),
    }
}

fn foreign_attributes(bytes: &mut [u8], layouts: &Layouts) {
    if bytes.is_empty() {
        return;
    }
    let header = sa::SaHeader::decode(bytes).expect("attributes of a golden stream");
    let size = header.size;
    let length = |number: u16| Some(ATTRIBUTES[usize::from(number)].length);
    let found = sa::attributes(bytes, &layouts[&header.layout], length);
    let found: Vec<_> = found
        .and_then(Iterator::collect)
        .expect("attributes of a golden stream");
    for (number, range) in found {
        let value = &mut bytes[range];
        match ATTRIBUTES[usize::from(number)].byteswap {
            SaByteswap::U64 => reverse(value, 0, value.len(), 8),
            SaByteswap::Acl => foreign_acl(value),
            _ => {}
        }
    }
    reverse(bytes, 0, 4, 4);
    reverse(bytes, 4, size - 4, 2);
}

/// OpenZFS: include/sys/zfs_acl.h, zfs_ace_hdr_t, zfs_ace_t.
fn foreign_acl(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= bytes.len() {
        let flags = u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]);
        // Entries of the owner, the owning group and everyone name nobody.
        let has_who = !matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        reverse(bytes, at, 4, 2);
        reverse(bytes, at + 4, 4, 4);
        at += 8;
        if has_who {
            reverse(bytes, at, 8, 8);
            at += 8;
        }
    }
}

/// OpenZFS: include/sys/zap_impl.h, mzap_phys_t; zap_leaf.h, zap_leaf_phys_t.
fn foreign_zap(bytes: &mut [u8]) {
    const MICRO: u64 = (1 << 63) + 3;
    const LEAF: u64 = 1 << 63;
    let len = bytes.len();
    match u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) {
        MICRO => {
            reverse(bytes, 0, 24, 8);
            for at in (64..len).step_by(64) {
                reverse(bytes, at, 8, 8);
                reverse(bytes, at + 8, 4, 4);
            }
        }
        LEAF => {
            let chunks = 48 + 2 * (len / 32);
            for at in (chunks..=len - 24).step_by(24) {
                if bytes[at] == 252 {
                    reverse(bytes, at + 2, 10, 2);
                    reverse(bytes, at + 12, 4, 4);
                    reverse(bytes, at + 16, 8, 8);
                } else {
                    reverse(bytes, at + 22, 2, 2);
                }
            }
            reverse(bytes, 0, 24, 8);
            reverse(bytes, 24, 4, 4);
            reverse(bytes, 28, 8, 2);
            reverse(bytes, 48, chunks - 48, 2);
        }
        _ => reverse(bytes, 0, len, 8),
    }
}

/// An embedded block of a big-endian sender, which compressed nothing.
fn foreign_embedded(
    record: &WriteEmbedded,
    payload: &[u8],
    kind: ObjectType,
    layouts: &Layouts,
) -> Vec<u8> {
    assert_eq!(
        Compression(record.compression),
        Compression::LZ4,
        "of the golden pool"
    );
    let mut block = vec![0; record.logical_size as usize];
    let stored = &payload[..record.physical_size as usize];
    decompress_into(Algorithm::Lz4, stored, &mut block).expect("a block of the golden pool");
    if record.offset == 0u64.wrapping_sub(2).wrapping_mul(record.length) {
        foreign_attributes(&mut block, layouts);
    } else {
        foreign_payload(kind, &mut block, layouts);
    }
    block
}

/// A plain stream of a little-endian sender as a big-endian one would have sent it.
fn foreign(stream: &[u8], layouts: &Layouts) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sum = Fletcher4::default();
    let mut kinds = BTreeMap::new();
    let mut rest = stream;
    while let Some((head, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let record = StreamRecord::decode(head, ByteOrder::Little).expect("a golden stream");
        let len = usize::try_from(record.payload_len()).expect("a payload");
        let (payload, behind) = behind.split_at(len);
        rest = behind;
        let mut head = *head;
        let mut payload = payload.to_vec();
        match &record {
            StreamRecord::Object(object) => {
                let kind = u8::try_from(object.object_type).expect("a type");
                kinds.insert(object.object, ObjectType(kind));
            }
            StreamRecord::WriteEmbedded(embedded) => {
                let kind = kinds[&embedded.object];
                payload = foreign_embedded(embedded, &payload, kind, layouts);
                head[40] = Compression::OFF.0;
                head[52..56].copy_from_slice(&embedded.logical_size.to_le_bytes());
            }
            _ => {}
        }
        foreign_record(&record, &mut head);
        if matches!(record, StreamRecord::Begin(_)) {
            assert!(payload.is_empty(), "a plain stream");
            sum = Fletcher4::default();
            sum.add(&head);
        } else {
            if matches!(record, StreamRecord::End { .. }) {
                head[8..40].copy_from_slice(&sum.bytes());
            }
            sum.add(&head[..CHECKSUM_OFFSET]);
            head[CHECKSUM_OFFSET..].copy_from_slice(&sum.bytes());
            sum.add(&head[CHECKSUM_OFFSET..]);
        }
        out.extend(head);
        match record.payload_type() {
            // No sender says of plain spill blocks what they are.
            Some(_) if matches!(record, StreamRecord::Spill(_)) => {
                foreign_attributes(&mut payload, layouts);
            }
            Some(kind) => foreign_payload(kind, &mut payload, layouts),
            None => {}
        }
        sum.add(&payload);
        out.extend(payload);
    }
    out
}

/// The layouts of attributes of a dataset, as zdb prints them.
fn layouts(place: &Place, golden: &Golden, dataset: &str) -> Layouts {
    let shown = place.run(&format!(
        "zdb -e -p {} -dddd {dataset} | grep -E '^[[:space:]]+[0-9]+ = \\[ '",
        golden.directory().display()
    ));
    let lines = shown.lines().map(|line| {
        let (number, list) = line.split_once(" = [").expect("a layout");
        let numbers = list.trim_end_matches(']').split_whitespace();
        let numbers = numbers.map(|number| number.parse().expect("a number"));
        (number.trim().parse().expect("a number"), numbers.collect())
    });
    lines.collect()
}

/// What a snapshot's files are, their attributes and the contents of all but the largest. Attributes that the disk
/// of the test has no room for are left out.
fn contents(place: &Place, dataset: &str) -> String {
    place.run(&format!(
        "rm -rf out && sanbox get -r {dataset}:/ out >/dev/null 2>&1; cd out && find . -printf '%p %y %m %s %l %T@\\n' | sort && \
         find . -type f -size -64M -exec sha256sum {{}} + | sort && getfattr -dRh -m - . 2>&1 | sort; cd .. && rm -rf out"
    ))
}

#[test]
fn streams_of_big_endian_senders_are_received() {
    if oracle::refpool().is_none() || !oracle::has_zdb() {
        return skip(
            "streams of the other byte order",
            "refpool or zdb is missing",
        );
    }
    let (_directory, streams) = unpack();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let work = place.path("work");
    let made = place.run(
        "truncate -s 512M ours theirs && zpool create -O mountpoint=none tank $PWD/ours && zpool create -O mountpoint=none other $PWD/theirs && \
         zpool export other",
    );
    assert_eq!(made, "");
    let fs = layouts(&place, &golden, "s-send/fs@a");
    let dn = layouts(&place, &golden, "s-send/dn@a");
    let mut operations = Vec::new();
    let cases = [
        ("full", "fs@a", &fs),
        ("incr-a-b", "fs@b", &fs),
        ("dnode", "dn@a", &dn),
        ("vol-full", "vol@a", &fs),
    ];
    // OpenZFS's own receive of embedded spill blocks makes objects too large of them.
    let embedded = ("full-L-e-c", "lec@a", &fs);
    for (name, target, layouts) in cases.into_iter().chain([embedded]) {
        let bytes = fs::read(named(&streams, name)).expect("a golden stream");
        let file = work.join(name);
        fs::write(&file, foreign(&bytes, layouts)).expect("write a stream");
        let dataset = target.split('@').next().expect("a name");
        let received = place.run(&format!("zfs receive -u tank/{dataset} < {name}"));
        assert_eq!(received, "", "{name}");
        if name != embedded.0 {
            operations.push(format!("take:other/{target}={}", file.display()));
        }
    }
    let images = [work.join("theirs")];
    oracle::refpool_does("other", &images, &operations).expect("OpenZFS receives them");
    assert_eq!(place.run("zpool import -d $PWD other"), "");
    for snapshot in ["fs@a", "fs@b", "dn@a", "vol@a"] {
        let ours = sums(&place, &format!("tank/{snapshot}"));
        let theirs = sums(&place, &format!("other/{snapshot}"));
        assert!(ours.lines().count() > 1, "{snapshot}: {ours}");
        assert!(ours == theirs, "{snapshot} differs");
    }
    // Read, the files are those of the little-endian stream: attributes stay in the sender's order on disk.
    let native = named(&streams, "full");
    assert_eq!(
        place.run(&format!("zfs receive -u tank/native < {native}")),
        ""
    );
    let expect = contents(&place, "tank/native@a");
    assert!(expect.lines().count() > 20, "{expect}");
    for name in ["tank/fs@a", "tank/lec@a", "other/fs@a"] {
        assert!(contents(&place, name) == expect, "files of {name}");
    }
    assert_eq!(
        place.run("zfs get -Hpo value userused@0,userobjused@0 tank/fs@a"),
        place.run("zfs get -Hpo value userused@0,userobjused@0 tank/native@a")
    );
    assert_eq!(place.run("zpool export tank other"), "");
    oracle::zdb_clean(&work, "tank").expect("zdb finds nothing wrong");
}
