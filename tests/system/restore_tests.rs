//! Tests of restores: a copy is read to its last byte by schedule, damage of it is named and an alert, and no clone is left, whatever happens.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use crate::cli::{Place, wait_for};
use crate::replication::{POOLS, check};

/// A tree whose files are found in a disk by their bytes, and a volume.
fn filled() -> Place {
    let place = Place::new();
    check(&place, POOLS, "");
    check(
        &place,
        "zfs set compression=off tank && zfs set compression=off back && yes 'the first of them' | head -c 300000 >f && \
         yes 'another that is damaged' | head -c 300000 >g && sanbox put f tank/vm:/kept && sanbox put g tank/vm/one:/lost && \
         ln -s kept link && sanbox put link tank/vm:/link && zfs snapshot -r tank/vm@s1 && \
         sanbox replication create vm --from tank/vm --to back/vm -r -X tank/vm/tmp && sanbox replication run vm >sent",
        "",
    );
    place
}

/// Where a disk holds a text, once in each block of 4 KiB.
fn places_of(place: &Place, disk: &str, text: &[u8]) -> Vec<u64> {
    let bytes = fs::read(place.path("work").join(disk)).expect("a disk");
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(next) = bytes[at..]
        .windows(text.len())
        .position(|part| part == text)
    {
        found.push((at + next) as u64);
        at += next + 4096;
    }
    assert!(!found.is_empty(), "the disk holds the text");
    found
}

/// Overwrites a byte of a disk in these places, while its pool is exported.
fn overwrite(place: &Place, disk: &str, at: &[u64], byte: u8) {
    check(place, "zpool export back", "");
    let path = place.path("work").join(disk);
    let file = OpenOptions::new().write(true).open(path).expect("a disk");
    for offset in at {
        file.write_all_at(&[byte], *offset).expect("written");
    }
    check(place, "zpool import -d $PWD/b back", "");
}

/// What the file has that is damaged.
const DAMAGED: &[u8] = b"another that is damaged";

#[test]
fn a_damaged_copy_is_named_by_the_test_of_a_restore() {
    let place = filled();
    check(
        &place,
        "sanbox replication test-restore vm -n",
        "back/vm@s1 would be cloned as back/vm-restore-test and read\n\
         back/vm/disk@s1 would be cloned as back/vm-restore-test and read\n\
         back/vm/one@s1 would be cloned as back/vm-restore-test and read\n",
    );
    let told = place.run("sanbox replication test-restore vm; echo $?");
    assert!(told.contains(": 3 datasets, 2 files, 586K in "), "{told}");
    assert!(told.contains(" s: all as at the source\n"), "{told}");
    assert!(
        told.contains("  back/vm@s1: 1 files, 2 others, 293K: as at the source\n"),
        "{told}"
    );
    assert!(told.ends_with("\n0\n"), "{told}");
    // Replication goes on, with what the source has since; then the source loses what it was compared with.
    check(
        &place,
        "sanbox put g tank/vm:/more && zfs snapshot -r tank/vm@s2 && sanbox replication run vm >sent && zfs destroy tank/vm/one@s2",
        "",
    );
    let told = place.run("sanbox replication test-restore vm");
    assert!(
        told.contains("all can be read, 2 datasets are as at the source"),
        "{told}"
    );
    assert!(
        told.contains("back/vm/one@s2: 1 files, 1 others, 293K: not compared: the source does not have this snapshot any more\n"),
        "{told}"
    );

    overwrite(&place, "b", &places_of(&place, "b", DAMAGED), b'#');
    let told = place.run("sanbox replication test-restore vm; echo $?");
    assert!(told.ends_with("\n1\n"), "{told}");
    for failed in [
        "\n  back/vm@s2: 2 files, 2 others, 293K: 1 FAILED\n    /more: bytes from 0 on cannot be read: input/output error\n",
        "\n  back/vm/one@s2: 1 files, 1 others, 0B: 1 FAILED\n    /lost: bytes from 0 on cannot be read: input/output error\n",
    ] {
        assert!(told.contains(failed), "{told}");
    }
    assert!(
        place
            .run("zfs list -H back/vm-restore-test 2>&1")
            .contains("does not exist")
    );

    let refused = place.run(
        "sanbox replication create w --from tank/vm --to root@there:vault/vm --test-schedule daily",
    );
    assert!(refused.contains("is on another host"), "{refused}");
    let refused = place.run("sanbox replication change vm --test-schedule daily=3");
    assert!(
        refused.contains("'daily=3' is no schedule of tests"),
        "{refused}"
    );
}

#[test]
fn restores_are_tested_by_schedule_and_an_interrupted_test_leaves_no_clone() {
    let mut place = filled();
    place.serve(&["--nfs-port", "0"]);
    check(
        &place,
        "sanbox replication reports vm | grep -c 'was tested'",
        "1\n",
    );
    // What a test that was interrupted leaves.
    check(
        &place,
        "zfs clone -o org.sanbox:replication=vm:0000000000000000 back/vm@s1 back/vm-restore-test",
        "",
    );
    let mark = place.run(
        "sanbox replication test vm >clones; zfs get -Ho value org.sanbox:replication back/vm-test; \
         sanbox replication test vm --end >ended",
    );
    let marked = place.run("zfs get -Ho value org.sanbox:replication back/vm-restore-test");
    assert_eq!(mark, marked, "the marks of clones");
    place.kill();
    place.serve(&["--nfs-port", "0"]);
    wait_for("the clone is gone", || {
        let listed = place.run("zfs list -H back/vm-restore-test 2>&1");
        if listed.contains("does not exist") {
            Ok(())
        } else {
            Err(listed)
        }
    });

    check(
        &place,
        "sanbox replication change vm --test-schedule 'yearly at=03:00'",
        "",
    );
    let report = wait_for("the first test is done", || {
        let told = place.run("sanbox replication reports vm -j");
        if told.contains("\"failure\": null") {
            Ok(told)
        } else {
            Err(told)
        }
    });
    for part in [
        "\"dataset\": \"back/vm/one\"",
        "\"files\": 1",
        "\"bytes\": 300000",
        "\"not_compared\": null",
    ] {
        assert!(report.contains(part), "{report}");
    }
    let shown = place.run("sanbox replication show vm");
    assert!(
        shown.contains("all as at the source\n") && shown.contains("next test  "),
        "{shown}"
    );
    // It is not due again, after a restart either.
    place.stop();
    place.serve(&["--nfs-port", "0"]);
    wait_for("the job has run", || {
        let listed = place.run("sanbox replication list -H");
        if listed.contains("complete") {
            Ok(())
        } else {
            Err(listed)
        }
    });
    check(
        &place,
        "sanbox replication reports vm | grep -c ' datasets, '",
        "1\n",
    );

    // Damage is an alert, which a test that is passed ends.
    let damaged = places_of(&place, "b", DAMAGED);
    overwrite(&place, "b", &damaged, b'#');
    let told = place.run("sanbox replication test-restore vm");
    assert!(
        told.contains("back/vm/one:/lost: bytes from 0 on cannot be read"),
        "{told}"
    );
    let alerts = wait_for("the alert", || {
        let listed = place.run("sanbox alert list");
        if listed.contains("restore") {
            Ok(listed)
        } else {
            Err(listed)
        }
    });
    assert!(alerts.contains("back/vm/one:/lost"), "{alerts}");
    overwrite(&place, "b", &damaged, DAMAGED[0]);
    let told = place.run("sanbox replication test-restore vm");
    assert!(told.contains("all as at the source"), "{told}");
    wait_for("the alert is over", || {
        let listed = place.run("sanbox alert list");
        if listed.contains("restore") {
            Err(listed)
        } else {
            Ok(())
        }
    });
    place.stop();
}
