//! Goal: cache devices (L2ARC) in OpenZFS's format, for whole pools. Method: a daemon fills one through reads of a real pool, zdb
//! reads the label, the header and the log blocks of it, and after an export and an import reads are answered by it.

use std::time::Duration;

use tests::oracle;

use crate::cli::Place;

/// What zdb says of a device's label, header and log.
fn zdb_device(device: &std::path::Path) -> Option<String> {
    if !oracle::has_zdb() {
        return None;
    }
    let output = oracle::zdb()
        .arg("-lll")
        .arg(device)
        .output()
        .expect("zdb runs");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A number behind a word in a text.
fn number(text: &str, word: &str) -> u64 {
    let rest = text.split_once(word).expect("the word is there").1;
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect("a number behind it")
}

/// Reads part by part until the cache device holds most of them, at most a minute. Devices are fed every second from what is
/// about to leave memory: all parts read in less than that would be the same last one each time.
fn fill(place: &Place) -> u64 {
    let mut held = 0;
    for round in 0..60 {
        let part = round % 10;
        let read = format!("sanbox cat tank/fs:/f.{part} | cmp - f.{part}");
        assert_eq!(place.run(&read), "");
        std::thread::sleep(Duration::from_secs(1));
        let shown = place.run("sanbox arcstat -p -f l2asize | tail -1");
        held = shown.trim().parse().expect("a number");
        if held > 24 << 20 {
            break;
        }
    }
    held
}

fn log_blocks_are_good(text: &str) {
    assert!(text.contains("state: 4"), "{text}");
    assert!(text.contains("L2ARC device header"), "{text}");
    assert!(number(text, "log_blk_count:") > 0, "{text}");
    assert!(text.contains("0 with invalid cksum"), "{text}");
}

#[test]
fn a_cache_device_is_filled_by_reads_and_answers_after_an_import() {
    let mut place = Place::new();
    let flags = ["--nfs-port", "0"];
    place.serve(&flags);
    let made = place.run(
        "truncate -s 512M a; truncate -s 256M c; zpool create tank $PWD/a cache $PWD/c && \
         zfs set compression=off recordsize=16K tank && zfs create tank/fs && head -c 40000000 /dev/urandom > f && \
         split -n 10 -d -a 1 f f. && for part in f.?; do sanbox put $part tank/fs:/; done; zpool sync tank; \
         sanbox tune zfs_arc_max=8M l2arc_noprefetch=0",
    );
    assert_eq!(made, "");
    let held = fill(&place);
    assert!(held > 24 << 20, "{held} bytes of 40 MB went to the device");
    assert_eq!(place.run("zpool export tank"), "");
    place.stop();
    let device = place.path("work/c");
    if let Some(text) = zdb_device(&device) {
        log_blocks_are_good(&text);
        oracle::zdb_clean(std::path::Path::new(&place.work()), "tank").expect("zdb");
    }
    // Found again: reads of what is not in memory come from the device.
    place.serve(&flags);
    assert_eq!(place.run("zpool import -d $PWD tank"), "");
    assert_eq!(
        place.run("for part in f.?; do sanbox cat tank/fs:/$part | cmp - $part; done"),
        ""
    );
    let found = place.run("sanbox arcstat -p -f l2hits,l2asize | tail -1");
    let found: Vec<u64> = found
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    assert!(found[0] > 100 && found[1] > 12 << 20, "{found:?}");
    let shown = place.run("zpool list -vHp tank | tail -1 | cut -f 2,4,11; zpool iostat -vHp tank | tail -1 | cut -f 2");
    assert!(shown.contains("ONLINE"), "{shown}");
    // Of a dataset that wants nothing there, nothing comes.
    let made = place.run(
        "zfs create -o secondarycache=none tank/never && sanbox put f tank/never:/ && zpool sync tank; \
         sanbox tune zfs_arc_max=8M l2arc_noprefetch=0; zfs destroy tank/fs && zpool sync tank",
    );
    assert_eq!(made, "");
    let before = written(&place);
    for _ in 0..4 {
        assert_eq!(place.run("sanbox cat tank/never:/f | cmp - f"), "");
        std::thread::sleep(Duration::from_secs(1));
    }
    let grown = written(&place) - before;
    // Metadata of the pool itself goes there.
    assert!(grown < 4 << 20, "{grown} bytes written for nothing");
    // It leaves, and nobody misses it.
    let left = place.run(
        "zpool remove tank $PWD/c && zpool status tank | grep -c cache; sanbox cat tank/never:/f | cmp - f",
    );
    assert_eq!(left, "0\n");
    place.stop();
}

/// Bytes written to the pool's cache device.
fn written(place: &Place) -> u64 {
    let text = place.run("sanbox arcstat -p -f l2wbytes | tail -1");
    text.trim().parse().expect("a number")
}
