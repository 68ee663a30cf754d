//! Redaction: `zfs redact`, streams without what it lists, and what becomes of them. OpenZFS's own code makes the same lists and streams
//! of the same pools; `zdb` judges what is on the disks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use tests::free_port;
use tests::golden::Golden;
use tests::oracle;

use crate::cli::Place;
use crate::histories::Dice;
use crate::rpc::{Client, MOUNT, Xdr};
use crate::streams::{named, sums, unpack};

/// The list of a bookmark, as OpenZFS's code reads it: object, first block, number of blocks, bytes of a block.
fn list(pool: &str, image: &Path, bookmark: &str) -> Vec<String> {
    let operation = format!("redacted:{bookmark}");
    let said = oracle::refpool_does(pool, &[image.to_owned()], &[operation]);
    let said = said.expect("OpenZFS reads the list");
    let is_entry = |line: &&str| line.split(' ').count() == 4 && !line.contains(':');
    said.lines().filter(is_entry).map(str::to_owned).collect()
}

/// Lets OpenZFS's code redact a snapshot in a copy of an image, and returns its list.
fn their_list(pool: &str, image: &Path, snapshot: &str, by: &str) -> Vec<String> {
    let copy = image.with_extension("theirs");
    std::fs::copy(image, &copy).expect("copy the image");
    let redact = format!("redact:{snapshot}=theirs/{by}");
    let said = oracle::refpool_does(pool, std::slice::from_ref(&copy), &[redact]);
    said.expect("OpenZFS redacts");
    let head = snapshot.split('@').next().expect("a snapshot's name");
    let found = list(pool, &copy, &format!("{head}#theirs"));
    std::fs::remove_file(copy).expect("remove the copy");
    found
}

/// The golden pool: the list is the one that OpenZFS makes of it, and bookmark and list go away together.
#[test]
fn a_list_of_the_golden_pool_is_that_of_openzfs() {
    if oracle::refpool().is_none() || !oracle::has_zdb() {
        return;
    }
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let image = golden.images()[0].clone();
    let theirs = their_list("s-send", &image, "s-send/fs@a", "s-send/redacted@x");
    let place = Place::new();
    let directory = golden.directory().display();
    let made = place.run(&format!(
        "zpool import -d {directory} -N s-send && zfs redact s-send/fs@a book s-send/redacted@x && \
         zfs get -Ho value redact_snaps s-send/fs#book && zfs get -Hpo value guid s-send/redacted@x && \
         zpool get -Ho value feature@redaction_bookmarks,feature@redaction_list_spill s-send && zpool export s-send"
    ));
    let expect = "546568970625076615\n546568970625076615\nactive\nenabled\n";
    assert_eq!(made, expect);
    let ours = list("s-send", &image, "s-send/fs#book");
    assert!(ours.len() > 70, "{ours:?}");
    assert_eq!(ours, theirs);
    oracle::zdb_clean(golden.directory(), "s-send").expect("zdb finds nothing wrong");
    let gone = place.run(&format!(
        "zpool import -d {directory} -N s-send && zfs rename s-send/fs s-send/moved && \
         zfs get -Ho value redact_snaps s-send/moved#book && zfs destroy s-send/moved#book && \
         zpool get -Ho value feature@redaction_bookmarks s-send; zpool export s-send"
    ));
    assert_eq!(gone, "546568970625076615\nenabled\n");
    oracle::zdb_clean(golden.directory(), "s-send").expect("zdb finds nothing wrong");
}

/// The stream that OpenZFS made of the golden pool, byte for byte; and one from the bookmark, which brings what was left out.
#[test]
fn redacted_streams_are_those_of_openzfs() {
    let (_directory, streams) = unpack();
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let made = place.run(&format!(
        "zpool import -d {} -N s-send && zfs redact s-send/fs@a book s-send/redacted@x && \
         zfs send --redact book s-send/fs@a > sent; cmp sent {theirs} && zfs send -nP -d '#book' s-send/fs@a | tail -1 && stat -c %s {theirs}; \
         zfs bookmark s-send/fs#book s-send/fs#plain; zfs get -Ho value redact_snaps s-send/fs#plain; \
         zfs send -d plain s-send/fs@a; zfs send -d none s-send/fs@a; zfs send -d book s-send/fs@b; zfs send -d book s-send/fs; \
         zfs send -w -d book s-send/fs@a; zfs send -R -d book s-send/fs@a",
        golden.directory().display(),
        theirs = named(&streams, "redacted"),
    ));
    let expect = "size\t6397888\n6397888\n-\n\
        ! warning: cannot send 's-send/fs@a': not a redaction bookmark\n\
        ! cannot open 's-send/fs#none': dataset does not exist\n\
        ! warning: cannot send 's-send/fs@b': the redaction bookmark was not made of this snapshot\n\
        ! warning: cannot send 's-send/fs': cannot do a redacted send to a filesystem\n\
        ! Error: raw sends may not be redacted.\n\
        ! Error: multiple snapshots cannot be sent redacted.\n[1]\n";
    assert_eq!(made, expect);
}

/// Single blocks of a file are listed all, also where another file comes behind it.
#[test]
fn every_changed_range_of_a_file_is_listed() {
    if !Path::new("/dev/fuse").exists() {
        return tests::skip("redact blocks", "this machine has no /dev/fuse");
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let listed = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=$PWD/m tank $PWD/disk && zfs create tank/a && \
         head -c 2M /dev/urandom > m/a/f && head -c 2M /dev/urandom > m/a/g && zfs snapshot tank/a@s && zfs clone tank/a@s tank/b && \
         for n in 0 2 4 15; do head -c 128K /dev/urandom | dd of=m/b/f bs=128K count=1 seek=$n conv=notrunc iflag=fullblock status=none; done && \
         zfs snapshot tank/b@1 && rm m/b/g && zfs snapshot tank/b@2 && \
         zfs redact tank/a@s one tank/b@1 && zfs redact tank/a@s two tank/b@1 tank/b@2 && zfs redact tank/a@s three tank/b@2 && \
         for book in one two three; do zfs send --redact $book tank/a@s | sanbox zstream dump -v | grep -o '^REDACT .*'; done; zpool export tank",
    );
    let single = "REDACT object = 37 offset = 0 length = 131072\n\
                  REDACT object = 37 offset = 262144 length = 131072\n\
                  REDACT object = 37 offset = 524288 length = 131072\n\
                  REDACT object = 37 offset = 1966080 length = 131072\n";
    let deleted = "REDACT object = 38 offset = 0 length = 2097152\n";
    assert_eq!(listed, format!("{single}{single}{single}{deleted}"));
}

/// Bytes of a block of the files that are changed at random.
const BLOCK: u64 = 16 << 10;

/// Object and block.
type Blocks = BTreeSet<(u64, u64)>;

fn random_blocks(dice: &mut Dice, count: u64) -> Vec<u8> {
    (0..count * BLOCK / 8)
        .flat_map(|_| dice.next().to_le_bytes())
        .collect()
}

/// Changes the files of a clone at random; returns the blocks of the origin, by object, that it does not have any more.
fn change_files(dice: &mut Dice, directory: &Path, files: &[(u64, u64)]) -> Blocks {
    let mut changed = Blocks::new();
    for (number, (object, count)) in files.iter().enumerate() {
        let path = directory.join(format!("f{number}"));
        let file = File::options().write(true).open(&path).expect("a file");
        match dice.below(8) {
            0 => {
                fs::remove_file(&path).expect("remove a file");
                changed.extend((0..*count).map(|block| (*object, block)));
            }
            1 => {
                let left = dice.next() % count;
                file.set_len(left * BLOCK).expect("shorten a file");
                changed.extend((left..*count).map(|block| (*object, block)));
            }
            2 => {}
            _ => {
                for _ in 0..=dice.next() % count {
                    let block = dice.next() % count;
                    let bytes = random_blocks(dice, 1);
                    file.write_all_at(&bytes, block * BLOCK)
                        .expect("write a block");
                    changed.insert((*object, block));
                }
            }
        }
    }
    changed
}

/// The blocks of files that records of a stream are about, as `zstream dump -v` shows them; `field` is the one with their length.
fn blocks_of(dump: &str, record: &str, field: &str, files: &[(u64, u64)]) -> Blocks {
    let mut blocks = Blocks::new();
    for line in dump.lines().filter(|line| line.starts_with(record)) {
        let value = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name} = "))?;
            rest.split(' ').next()?.parse::<u64>().ok()
        };
        let (object, offset) = (value("object"), value("offset").unwrap_or(0));
        let end = offset + value(field).unwrap_or(0);
        if let Some((object, count)) = files.iter().find(|(file, _)| Some(*file) == object) {
            let touched = offset / BLOCK..(end / BLOCK).min(*count);
            blocks.extend(touched.map(|block| (*object, block)));
        }
    }
    blocks
}

/// What all clones changed is left out of the stream, and nothing else: files that were changed, shortened and removed at random.
#[test]
fn what_all_clones_changed_is_left_out() {
    if !Path::new("/dev/fuse").exists() {
        return tests::skip("redact blocks", "this machine has no /dev/fuse");
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let made = place.run(
        "truncate -s 512M disk && zpool create -O recordsize=16k -O mountpoint=$PWD/m tank $PWD/disk",
    );
    assert_eq!(made, "");
    let root = place.path("work").join("m");
    for seed in 0..8 {
        let mut dice = Dice(seed);
        let dataset = format!("tank/a{seed}");
        assert_eq!(place.run(&format!("zfs create {dataset}")), "");
        let mut files = Vec::new();
        for number in 0..=dice.below(4) {
            let path = root.join(format!("a{seed}/f{number}"));
            let count = 2 + dice.next() % 120;
            fs::write(&path, random_blocks(&mut dice, count)).expect("a file");
            files.push((fs::metadata(&path).expect("a file").ino(), count));
        }
        assert_eq!(place.run(&format!("zfs snapshot {dataset}@s")), "");
        let mut common: Option<Blocks> = None;
        let mut snapshots = String::new();
        for clone in 0..=dice.below(3) {
            let name = format!("c{seed}.{clone}");
            let made = place.run(&format!("zfs clone {dataset}@s tank/{name}"));
            assert_eq!(made, "");
            let changed = change_files(&mut dice, &root.join(&name), &files);
            assert_eq!(place.run(&format!("zfs snapshot tank/{name}@s")), "");
            snapshots.push_str(&format!(" tank/{name}@s"));
            common = Some(match common {
                Some(common) => common.intersection(&changed).copied().collect(),
                None => changed,
            });
        }
        let dump = place.run(&format!(
            "zfs redact {dataset}@s book {snapshots} && zfs send --redact book {dataset}@s | sanbox zstream dump -v"
        ));
        let common = common.expect("a clone");
        let redacted = blocks_of(&dump, "REDACT", "length", &files);
        assert_eq!(redacted, common, "seed {seed}");
        let of_files = files
            .iter()
            .flat_map(|(object, count)| (0..*count).map(|block| (*object, block)));
        let rest: Blocks = of_files.filter(|block| !common.contains(block)).collect();
        let sent = blocks_of(&dump, "WRITE", "logical_size", &files);
        assert_eq!(sent, rest, "seed {seed}");
    }
    assert_eq!(place.run("zpool export tank"), "");
}

/// An increment from a redaction bookmark of the dataset that another is a clone of makes a clone where it is received, also of one that the
/// redaction did not go by.
#[test]
fn clones_are_received_from_a_bookmark() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk other && zpool create -O mountpoint=none tank $PWD/disk && zpool create -O mountpoint=none copy $PWD/other && \
         zfs create tank/a && head -c 1M /dev/urandom > f && sanbox put f tank/a:/f && sanbox put f tank/a:/g && zfs snapshot tank/a@s && \
         zfs clone tank/a@s tank/b && sanbox rm tank/b:/f && \
         zfs snapshot tank/b@s && zfs redact tank/a@s book tank/b@s && \
         zfs send --redact book tank/a@s | zfs receive -u copy/r && \
         zfs clone tank/a@s tank/c && sanbox rm tank/c:/g && zfs snapshot tank/c@s && \
         zfs send -i tank/a#book tank/c@s | zfs receive -u copy/d && \
         zfs get -Ho value origin copy/d && sanbox get copy/d:/f back && cmp f back; sanbox get copy/d:/g back; zpool export copy",
    );
    assert_eq!(made, "copy/r@s\n! copy/d:/g: no such file or directory\n");
    oracle::zdb_clean(&place.path("work"), "copy").expect("zdb finds nothing wrong");
}

/// What `zfs redact` refuses, in OpenZFS's words and with its exit codes.
#[test]
fn what_cannot_be_redacted_is_refused() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk other && zpool create tank $PWD/disk && zpool create -d -o feature@bookmarks=enabled old $PWD/other && \
         for pool in tank old; do zfs create $pool/a && zfs snapshot $pool/a@1 && zfs clone $pool/a@1 $pool/c && zfs snapshot $pool/c@1 && \
         zfs create $pool/b && zfs snapshot $pool/b@1; done",
    );
    assert_eq!(made, "");
    for (arguments, expect, code) in [
        (
            "tank/a@none b tank/c@1",
            "cannot open 'tank/a@none': dataset does not exist\n! provided snapshot tank/a@none does not exist",
            2,
        ),
        (
            "tank/a@1 b tank/c@2",
            "cannot open 'tank/c@2': dataset does not exist\n! provided snapshot tank/c@2 does not exist",
            2,
        ),
        (
            "tank/a@1 b tank/b@1",
            "redaction snapshot must be descendent of snapshot being redacted",
            22,
        ),
        (
            "tank/a@1 b tank/a@1",
            "redaction snapshot must be descendent of snapshot being redacted",
            22,
        ),
        (
            "tank/a@1 b tank/c",
            "redaction snapshot must be descendent of snapshot being redacted",
            22,
        ),
        (
            "tank/a@1 a#b tank/c@1",
            "redaction bookmark name must not contain '#'",
            22,
        ),
        (
            "tank/a@1 b c@1",
            "potentially invalid redaction snapshot; full dataset names required",
            18,
        ),
        (
            "tank/a@1 $(head -c 250 /dev/zero | tr '\\0' b) tank/c@1",
            "provided bookmark name cannot be used, final name would be too long",
            36,
        ),
        (
            "old/a@1 b old/c@1",
            "redaction bookmarks feature not enabled",
            95,
        ),
    ] {
        let said = place.run(&format!("zfs redact {arguments}"));
        assert_eq!(said, format!("! {expect}\n[{code}]\n"), "{arguments}");
    }
    let said = place.run(
        "zfs redact tank/a@1 b tank/c@1 && zfs redact tank/a@1 b tank/c@1; zfs bookmark tank/a@1 tank/a#p; \
         zfs redact tank/a@1 p tank/c@1",
    );
    let expect = "! specified redaction bookmark (b) provided already exists\n! specified redaction bookmark (p) provided already exists\n[17]\n";
    assert_eq!(said, expect);
    let said = place.run("zfs snapshot tank/c@2 && zfs redact tank/a@1 b tank/c@2");
    assert_eq!(
        said,
        "! attempted to resume redaction  with a mismatched redaction list\n[3]\n"
    );
}

/// Many redaction snapshots: the header of the list is in a spill block. Datasets of all shapes, and a volume.
#[test]
#[ignore = "long: forty clones and their lists; short lists are tested beside it"]
fn lists_of_many_snapshots_are_those_of_openzfs() {
    if oracle::refpool().is_none() || !oracle::has_zdb() {
        return;
    }
    let place = Place::new();
    let made = place.run(
        "truncate -s 512M disk && zpool create -O mountpoint=none -O recordsize=16k -O compression=off tank $PWD/disk && \
         zpool set feature@redaction_list_spill=enabled tank && zfs create tank/a && mkdir tree && \
         for i in $(seq 40); do head -c ${i}1000 /dev/urandom > tree/f$i; done && head -c 3000000 /dev/urandom > tree/big && \
         sanbox put -r tree tank/a:/ && zfs snapshot tank/a@1 && \
         for i in $(seq 38); do zfs clone tank/a@1 tank/c$i && sanbox put tree/big tank/c$i:/f7 && sanbox put tree/f$i tank/c$i:/big && \
         sanbox rm tank/c$i:/f30 && sanbox rm tank/c$i:/f$((i % 3 + 10)) && zfs snapshot tank/c$i@1; done && \
         zpool export tank",
    );
    assert_eq!(made, "");
    let image = place.path("work").join("disk");
    let by: Vec<String> = (1..=38).map(|i| format!("tank/c{i}@1")).collect();
    for count in [2, 36, 38] {
        let by = &by[..count];
        let theirs = their_list("tank", &image, "tank/a@1", &by.join(","));
        let made = place.run(&format!(
            "zpool import -d $PWD tank && zfs redact tank/a@1 b{count} {} && zpool export tank",
            by.join(" ")
        ));
        assert_eq!(made, "");
        assert!(theirs.len() > 1, "{theirs:?}");
        assert_eq!(list("tank", &image, &format!("tank/a#b{count}")), theirs);
    }
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
    let gone = place.run(
        "zpool import -d $PWD tank && zpool get -Ho value feature@redaction_list_spill tank && zfs destroy tank/a#b38 && \
         zpool get -Ho value feature@redaction_list_spill tank; zpool export tank",
    );
    assert_eq!(gone, "active\nenabled\n");
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

/// A place with an empty pool `tank`, and the golden pool with a redaction bookmark.
fn redacted_pools() -> (Place, Golden) {
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let made = place.run(&format!(
        "zpool import -d {} -N s-send && zfs redact s-send/fs@a book s-send/redacted@x && truncate -s 512M disk && \
         zpool create -O mountpoint=none tank $PWD/disk",
        golden.directory().display()
    ));
    assert_eq!(made, "");
    (place, golden)
}

/// OpenZFS's stream and ours become the same as with OpenZFS's code, whole and interrupted; what was left out comes with a stream from
/// the bookmark. What would leave holes that are not known is refused.
#[test]
fn redacted_streams_are_received_as_by_openzfs() {
    if oracle::refpool().is_none() || !oracle::has_zdb() {
        return;
    }
    let (_directory, streams) = unpack();
    let (place, _golden) = redacted_pools();
    let made = place.run(&format!(
        "zfs receive tank/r < {} && zfs get -Hpo value redacted,redact_snaps tank/r && zfs get -Ho value redact_snaps tank/r@a && \
         zpool get -Ho value feature@redacted_datasets tank; zfs bookmark tank/r@a tank/r#a && zfs get -Ho value redact_snaps tank/r#a; \
         zfs redact tank/r@a b tank/r@a",
        named(&streams, "redacted")
    ));
    let guid = "546568970625076615";
    let expect = format!(
        "1\n{guid}\n{guid}\nactive\n{guid}\n! attempted to redact redacted dataset or with respect to redacted dataset\n[114]\n"
    );
    assert_eq!(made, expect);
    // Interrupted: the token finds the bookmark again.
    let made = place.run(
        "zfs send -d book s-send/fs@a > sent; head -c 3000000 sent | zfs receive -s tank/half 2> /dev/null; \
         token=$(zfs get -Hpo value receive_resume_token tank/half); zfs send -nvt $token | grep redact_snaps; \
         zfs send -t $token > rest; zfs receive -s tank/half < rest && zfs get -Hpo value redacted,redact_snaps tank/half",
    );
    assert_eq!(
        made,
        format!("\tredact_snaps = 0x795cd953b5bcd87\n1\n{guid}\n"),
        "resumed"
    );
    let work = place.path("work");
    let made = place.run(
        "zfs send -i '#book' s-send/fs@b > restored; zfs send -i @a s-send/fs@b > plain; zfs send -i s-send/fs@a s-send/redacted@x > clone; \
         truncate -s 512M other && zpool create -O mountpoint=none other $PWD/other && zpool export other",
    );
    assert_eq!(made, "");
    let take = |name: &str, file: &str| format!("take:other/{name}={}", work.join(file).display());
    let operations = [
        take("r@a", "sent"),
        take("half@a", "sent"),
        take("half@b", "restored"),
    ];
    let images = [work.join("other")];
    oracle::refpool_does("other", &images, &operations).expect("OpenZFS receives");
    assert_eq!(place.run("zpool import -d $PWD other"), "");
    let theirs = sums(&place, "other/r@a");
    assert!(theirs.lines().count() > 300, "{theirs}");
    assert_eq!(sums(&place, "tank/r@a"), theirs);
    assert_eq!(sums(&place, "tank/half@a"), theirs);
    assert_eq!(
        place.run("zfs get -Hpo value redacted,redact_snaps other/r other/half"),
        format!("0\n-\n1\n{guid}\n")
    );
    let made = place.run(
        "zfs receive tank/half < plain; zfs receive -s tank/half < plain; zfs receive tank/half < restored && \
         zfs get -Hpo value redacted tank/half && zfs get -Hpo value redacted tank/half@a; zfs receive tank/clone < clone && \
         zfs get -Hpo value redacted,origin tank/clone",
    );
    let expect = "0\n1\n0\ntank/r@a\n! cannot receive incremental stream: invalid backup stream\n\
        ! cannot receive incremental stream: kernel modules must be upgraded to receive this stream.\n";
    assert_eq!(made.replace("tank/half@a", "tank/r@a"), expect);
    let whole = sums(&place, "s-send/fs@b");
    assert_eq!(sums(&place, "tank/half@b"), whole);
    assert_eq!(sums(&place, "other/half@b"), whole);
    assert_eq!(
        sums(&place, "tank/clone@x"),
        sums(&place, "s-send/redacted@x")
    );
    let exported =
        place.run("zpool export tank && zpool export other && mkdir judged && mv disk judged");
    assert_eq!(exported, "");
    oracle::zdb_clean(&work.join("judged"), "tank").expect("zdb finds nothing wrong");
    let gone = place.run(
        "zpool import -d $PWD/judged tank && zfs rollback -r tank/half@a && zfs get -Hpo value redacted tank/half && \
         zfs destroy -R tank/half; zfs destroy -R tank/r; \
         zpool get -Ho value feature@redacted_datasets,feature@redaction_bookmarks tank && zpool export tank",
    );
    assert_eq!(gone, "1\nenabled\nenabled\n");
    oracle::zdb_clean(&work.join("judged"), "tank").expect("zdb finds nothing wrong");
}

/// A dataset that was received redacted is mounted by `zfs mount -f` alone.
#[test]
fn redacted_datasets_are_mounted_when_forced() {
    let (_directory, streams) = unpack();
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let made = place.run(&format!(
        "truncate -s 512M disk && zpool create -m $PWD/m tank $PWD/disk && zfs receive tank/r < {}; zfs mount | grep -c tank/r; zfs mount -a; \
         zfs mount | grep -c tank/r; zfs mount tank/r; zfs mount -f tank/r && ls m/r | grep -c .; zfs unmount tank/r; zfs mount -f -a; \
         zfs mount | grep -c tank/r; zpool export tank && zpool import -d $PWD tank && zfs mount | grep -c tank/r",
        named(&streams, "redacted")
    ));
    let expect = "0\n0\n15\n1\n0\n\
        ! cannot mount 'tank/r': Dataset is not complete, was created by receiving a redacted zfs send stream.\n[1]\n";
    assert_eq!(made, expect);
    place.stop();
}

/// A dataset that was received redacted is shared by NFS while it is mounted, and not otherwise. One that is mounted is unmounted when
/// such a stream takes the place of its contents.
#[test]
fn redacted_datasets_are_shared_while_they_are_mounted() {
    let (_directory, streams) = unpack();
    let mut place = Place::new();
    if !crate::snapdir::can_mount(&place) {
        return;
    }
    let port = free_port();
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    place.serve(&[
        "--nfs-port",
        &port.to_string(),
        "--listen",
        "127.0.0.1",
        "--no-portmap",
        "--iscsi-port",
        "0",
        "--mount",
    ]);
    let made = place.run(
        "truncate -s 512M disk && zpool create -m $PWD/m tank $PWD/disk && zfs create -o sharenfs=on tank/r && echo old > m/r/f",
    );
    assert_eq!(made, "");
    let status = |dataset: &str| {
        let path = format!("{}/m/{dataset}", place.work());
        let path = Xdr::default().opaque(path.as_bytes());
        Client::new(address).call(MOUNT, 1, &path).word(0)
    };
    assert_eq!(status("r"), 0, "a file system is shared");
    let received = place.run(&format!(
        "zfs receive -F tank/r < {}; zfs mount | grep -c tank/r; zfs share tank/r",
        named(&streams, "redacted")
    ));
    let why = "Dataset is not complete, was created by receiving a redacted zfs send stream.";
    assert_eq!(
        received,
        format!("0\n! cannot share 'tank/r': {why}\n[1]\n")
    );
    assert_ne!(status("r"), 0, "a redacted file system that is not mounted");
    assert_eq!(place.run("zfs mount -f tank/r; zfs share tank/r"), "");
    assert_eq!(status("r"), 0, "a redacted file system that is mounted");
    assert_eq!(place.run("zfs unmount tank/r"), "");
    assert_ne!(status("r"), 0, "a redacted file system that was unmounted");
    place.stop();
}

/// Increments with a redaction bookmark of their own: OpenZFS's stream byte for byte from a snapshot; from a redaction bookmark what both
/// receive is the same.
#[test]
fn redacted_increments_are_those_of_openzfs() {
    if oracle::refpool().is_none() {
        return;
    }
    let (place, golden) = redacted_pools();
    let made = place.run(
        "zfs clone s-send/fs@b s-send/c2 && sanbox rm s-send/c2:/random s-send/c2:/big-rep; zfs snapshot s-send/c2@x && \
         zfs redact s-send/fs@b book2 s-send/c2@x && zfs send -d book s-send/fs@a > 1; zfs send -i '#book' -d book2 s-send/fs@b > 2; \
         zfs send -i @a -d book2 s-send/fs@b > 3; zfs receive tank/a < 1 && zfs receive tank/a < 2; zpool export s-send; \
         truncate -s 512M other && zpool create -O mountpoint=none other $PWD/other && zpool export other",
    );
    assert_eq!(made, "");
    let file = |name: &str| place.path("work").join(name);
    let theirs = format!(
        "rsend:s-send/fs@b={},s-send/fs@a,book2",
        file("theirs").display()
    );
    oracle::refpool_does("s-send", &golden.images(), &[theirs]).expect("OpenZFS sends");
    assert_eq!(place.run("cmp 3 theirs"), "");
    let take = |name: &str, stream: &str| format!("take:other/{name}={}", file(stream).display());
    let operations = [take("a@a", "1"), take("a@b", "2")];
    oracle::refpool_does("other", &[file("other")], &operations).expect("OpenZFS receives");
    assert_eq!(place.run("zpool import -d $PWD other"), "");
    assert_eq!(sums(&place, "other/a@b"), sums(&place, "tank/a@b"));
}

/// A volume that was received redacted has a block device where that is allowed, and none elsewhere.
#[test]
fn a_redacted_volume_has_a_device_where_that_is_allowed() {
    let has_loops = std::path::Path::new("/dev/loop-control").exists();
    if !std::path::Path::new("/dev/fuse").exists() || !has_loops {
        return tests::skip(
            "devices of redacted volumes",
            "this machine has no /dev/fuse or no loop devices",
        );
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    // Links to devices are the whole machine's: no other test has this pool.
    let pool = "redacted-devices";
    let shown = place.run(&format!(
        "truncate -s 256M disk && zpool create -O mountpoint=none {pool} $PWD/disk && zfs create -V 1M {pool}/a && \
         cd /dev/zvol/{pool} && head -c 1M /dev/zero | tr '\\0' 1 > a && sync a && zfs snapshot {pool}/a@1 && \
         zfs clone {pool}/a@1 {pool}/b && printf 2 | dd of=b conv=notrunc,fsync status=none && zfs snapshot {pool}/b@1 && \
         zfs redact {pool}/a@1 book {pool}/b@1 && zfs send --redact book {pool}/a@1 | zfs receive {pool}/c && ls; \
         sanbox tune zfs_allow_redacted_dataset_mount=1 && ls && head -c 3 c && tail -c 3 c; \
         sanbox tune zfs_allow_redacted_dataset_mount=0 && ls; cd / && zpool export {pool}",
    ));
    assert_eq!(shown.replace('\0', "0"), "a\nb\na\nb\nc\n000111a\nb\n");
}
