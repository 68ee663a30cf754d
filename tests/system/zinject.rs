//! Failures that are rehearsed: what is injected into a pool in use is counted, made up for and healed as the real failure is, and not one
//! wrong byte is read.

use std::time::{Duration, Instant};

use crate::cli::{Place, wait_for};
use crate::snapdir::can_mount;

/// A pool of a layout with a file of 8 MiB in it, which is beside the pool, too.
fn serve(layout: &str) -> Place {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run(&format!(
        "truncate -s 128M d0 d1 d2 && zpool create -O compression=off tank {layout} \
         && head -c 8M /dev/urandom >f && sanbox put f tank:/f && zpool sync tank"
    ));
    assert_eq!(made, "");
    place
}

/// Reads the file from the devices, and compares it.
fn read(place: &Place) -> String {
    place.run("zinject -a && rm -f g && sanbox get tank:/f g && cmp f g")
}

/// The counters of a device: reads, writes, checksums.
fn counters(place: &Place, device: &str) -> [u64; 3] {
    let line = format!("zpool status -p tank | awk '$1 ~ \"/{device}$\" {{ print $3, $4, $5 }}'");
    let text = place.run(&line);
    let numbers = text.split_whitespace().map(|n| n.parse().expect("a count"));
    numbers.collect::<Vec<_>>().try_into().expect("three")
}

fn health(place: &Place, device: &str) -> String {
    let line = format!("zpool status tank | awk '$1 ~ \"/{device}$\" {{ print $2 }}'");
    place.run(&line).trim().to_owned()
}

/// Waits until all devices hold everything again: a resilver begins some time after the command that led to it.
fn wait_until_whole(place: &Place) {
    wait_for("the pool is whole", || {
        let status = place.run("zpool status tank");
        let is_whole = ["resilver in progress", "outdated", "DEGRADED"]
            .iter()
            .all(|words| !status.contains(words));
        if is_whole { Ok(()) } else { Err(status) }
    });
}

#[test]
fn one_side_of_a_mirror_fails() {
    let mut place = serve("mirror $PWD/d0 $PWD/d1");
    let added = place.run("zinject -d $PWD/d0 -e io -T read tank | sed 's/vdev: .*/vdev: GUID/'");
    assert_eq!(
        added,
        "Added handler 1 with the following properties:\n  pool: tank\n  vdev: GUID\n"
    );
    assert_eq!(read(&place), "");
    let [reads, writes, checksums] = counters(&place, "d0");
    assert!(reads > 0, "failed reads are counted");
    assert_eq!((writes, checksums), (0, 0));
    assert_eq!(counters(&place, "d1"), [0, 0, 0]);
    let events = place.run("zpool events | grep -c ereport.fs.zfs.io");
    let events: u64 = events.trim().parse().expect("a count");
    assert!(events > 0, "failed reads are reported");
    let row = place.run("zinject | awk '$1 == 1 { print $2, $4, $5, $6, $7 == $8 }'");
    assert_eq!(row, "tank read io 100.0000% 1\n");

    // That many failures take the device out of service; without it the pool goes on, and afterwards it is as it was.
    place.run("zpool sync tank");
    wait_for("the device is faulted", || {
        place.run("echo more >>f && sanbox put f tank:/f && zpool sync tank");
        drop(read(&place));
        match health(&place, "d0").as_str() {
            "FAULTED" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    assert_eq!(place.run("zinject -c 1"), "removed handler 1\n");
    assert_eq!(place.run("zpool clear tank"), "");
    wait_until_whole(&place);
    assert_eq!(health(&place, "d0"), "ONLINE");
    assert_eq!(
        place.run("zpool scrub -w tank && zpool status -x"),
        "all pools are healthy\n"
    );
    assert_eq!(read(&place), "");
    place.stop();
}

#[test]
fn writes_that_one_side_loses_are_healed() {
    let mut place = serve("mirror $PWD/d0 $PWD/d1");
    place.run("zinject -d $PWD/d0 -e noop -T write tank");
    place.run("head -c 4M /dev/urandom >f; sanbox put f tank:/f; zpool sync tank; zinject -c all");
    assert_eq!(counters(&place, "d0"), [0, 0, 0], "nothing was noticed");
    place.run("zpool scrub -w tank");
    assert!(counters(&place, "d0")[2] > 0, "it holds other bytes");
    assert_eq!(counters(&place, "d1"), [0, 0, 0]);
    // Healed: the other side can go.
    place.run("zpool clear tank");
    assert_eq!(
        place.run("zpool scrub -w tank; zpool offline tank $PWD/d1"),
        ""
    );
    assert_eq!(read(&place), "");
    place.stop();
}

#[test]
fn a_device_of_a_raidz_flips_bits() {
    let mut place = serve("raidz $PWD/d0 $PWD/d1 $PWD/d2");
    place.run("zinject -d $PWD/d1 -e corrupt -T read -f 30 tank");
    assert_eq!(read(&place), "");
    let [reads, _, checksums] = counters(&place, "d1");
    assert!(checksums > 0 && reads == 0, "wrong bytes are counted");
    for other in ["d0", "d2"] {
        assert_eq!(counters(&place, other), [0, 0, 0], "{other}");
    }
    place.run("zinject -c all; zpool clear tank; zpool scrub -w tank");
    assert_eq!(place.run("zpool status -x"), "all pools are healthy\n");
    assert_eq!(read(&place), "");
    place.stop();
}

#[test]
fn a_scrub_shows_what_it_repairs() {
    let mut place = serve("mirror $PWD/d0 $PWD/d1");
    place.run("zinject -d $PWD/d0 -e io -T read tank; zinject -d $PWD/d0 -D 20:1 tank");
    place.run("zpool scrub tank");
    wait_for("the scrub repairs the device", || {
        match place
            .run("zpool status tank | grep -c '/d0 .*(repairing)'")
            .trim()
        {
            "1" => Ok(()),
            _ => Err(place.run("zpool status tank")),
        }
    });
    let said = place.run("zinject -c all; zpool wait -t scrub tank; zpool status tank");
    assert!(!said.contains("(repairing)"), "{said}");
    place.stop();
}

#[test]
fn a_device_is_slow() {
    let mut place = serve("$PWD/d0");
    place.run("zinject -d $PWD/d0 -D 40:1 -T read tank");
    let began = Instant::now();
    // 64 blocks, one at a time.
    assert_eq!(read(&place), "");
    assert!(began.elapsed() >= Duration::from_millis(64 * 40));
    let waits = place.run("zpool iostat -lHp tank | cut -f 10");
    let nanoseconds: u64 = waits.trim().parse().expect("a time");
    assert!(nanoseconds >= 10_000_000, "{nanoseconds} ns at the device");
    let row = place.run("zinject | awk '$1 == 1 { print $4, $5, $6 }'");
    assert_eq!(row, "40 1 100.0000%\n");
    place.run("zinject -c all");
    let began = Instant::now();
    assert_eq!(read(&place), "");
    assert!(began.elapsed() < Duration::from_millis(64 * 40));
    place.stop();
}

#[test]
fn blocks_of_a_file_are_damaged_for_a_while() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0", "--mount"]);
    place.run(
        "truncate -s 128M d0 && zpool create -m $PWD/mnt tank $PWD/d0 && head -c 1M /dev/urandom >f \
         && cp f mnt/f && sync mnt/f && zpool sync tank",
    );
    let first = "dd if=mnt/f bs=128k count=1 2>/dev/null | cmp -n 131072 - f";
    let last = "dd if=mnt/f bs=128k skip=7 2>/dev/null | cmp - f 0 917504";
    let added = place.run("zinject -am -t data -e checksum -r 896K,1M $PWD/mnt/f | tail -n 3");
    assert_eq!(added, " level: 0\n range: [7, 7]\n  dvas: 0x0\n");
    assert_eq!(place.run(first), "", "outside of the range");
    assert_ne!(place.run(last), "", "inside of it");
    assert!(counters(&place, "d0")[2] > 0);
    let said = place.run("zpool status -v tank | grep mnt");
    assert_eq!(said.trim(), "DIR/mnt/f");
    for error in ["io", "decompress", "checksum"] {
        let line = format!("zinject -c all; zinject -a -t data -e {error} $PWD/mnt/f; cmp f mnt/f");
        assert!(place.run(&line).contains("Input/output error"), "{error}");
    }
    assert!(counters(&place, "d0")[0] > 0, "'io' counts failed reads");
    // A scrub meets it, too; without it nothing is left.
    place.run("zpool clear tank; zpool scrub -w tank");
    assert!(place.run("zpool status tank").contains(" data errors, use"));
    place.run("zinject -c all; zpool scrub -w tank; zpool scrub -w tank; zpool clear tank");
    assert_eq!(
        place.run("zpool status -x; cmp f mnt/f"),
        "all pools are healthy\n"
    );
    // Its dnode, which a file system in use has in memory: a scrub reads it.
    place.run("zinject -a -t dnode $PWD/mnt/f; zpool scrub -w tank");
    assert!(counters(&place, "d0")[0] > 0);
    place.run("zinject -c all; zpool scrub -w tank; zpool scrub -w tank; zpool clear tank");
    assert_eq!(
        place.run("zpool status -x; cmp f mnt/f"),
        "all pools are healthy\n"
    );
    assert_eq!(
        place.run("zinject -t data /proc/version"),
        "! invalid path '/proc/version': not a ZFS filesystem\n[1]\n"
    );
    assert_eq!(
        place.run("zinject -t data $PWD/none"),
        "! cannot find mountpoint for 'DIR/none'\n[1]\n"
    );
    assert_eq!(place.run("zpool export tank"), "");
    place.stop();
}

#[test]
fn devices_are_taken_out_and_exports_delayed() {
    let mut place = serve("mirror $PWD/d0 $PWD/d1");
    assert_eq!(place.run("zinject -d $PWD/d1 -A fault tank"), "");
    assert_eq!(health(&place, "d1"), "FAULTED");
    // The other one is all there is now.
    assert_eq!(place.run("zinject -d $PWD/d0 -A fault tank"), "");
    assert_eq!(health(&place, "d0"), "DEGRADED");
    assert_eq!(read(&place), "");
    assert_eq!(place.run("zpool clear tank"), "");
    wait_until_whole(&place);
    assert_eq!(place.run("zpool status -x"), "all pools are healthy\n");
    assert_eq!(
        place.run(
            "zinject -d $PWD/d2 -A fault tank; zinject -d $PWD/d1 none; zinject -P import -s 1 tank"
        ),
        "! cannot find device 'DIR/d2' in pool 'tank'\n! cannot open 'none': no such pool\n\
         ! failed to add handler: pool already imported\n[1]\n"
    );

    // Faults end with the export; delays are for one.
    place.run("zinject -d $PWD/d1 -e io tank; zinject -q -P export -s 2 tank >id");
    assert_eq!(
        place.run("zinject | grep -A 2 COMMAND | tail -n 1 | awk '{ print $2, $3, $4 }'; cat id"),
        "tank 2 export\n2\n"
    );
    let began = Instant::now();
    assert_eq!(
        place.run("zpool export tank; zinject | head -n 1"),
        "No handlers registered.\n"
    );
    assert!(began.elapsed() >= Duration::from_secs(2));
    place.run("zinject -P import -s 2 tank");
    let began = Instant::now();
    assert_eq!(place.run("zpool import -d $PWD tank"), "");
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(read(&place), "");
    place.stop();
}

#[test]
fn faults_need_a_daemon() {
    let place = Place::new();
    place.run("truncate -s 128M d0; zpool create tank $PWD/d0");
    let said = place.run("zinject -d $PWD/d0 -e io tank");
    assert!(said.starts_with("! no daemon runs:") && said.ends_with("[1]\n"));
}
