//! Snapshots whose newest one is named `-latest` (`naming=seed-latest`): the name moves on each day, at the copy, too, and none is sent or counted
//! twice (libfaketime).

use crate::cli::{Place, wait_for};
use crate::replication::{POOLS, check, judged};
use crate::stream_faults::SERVE;

const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Names and guids of a dataset's snapshots, the oldest first.
fn snapshots(place: &Place, dataset: &str) -> Vec<(String, String)> {
    let list = place.run(&format!(
        "zfs list -Ht snapshot -o name,guid -s createtxg {dataset}"
    ));
    let lines = list.lines().filter_map(|line| line.split_once('\t'));
    lines
        .filter_map(|(name, guid)| Some((name.split_once('@')?.1.to_owned(), guid.to_owned())))
        .collect()
}

fn names(snapshots: &[(String, String)]) -> Vec<&str> {
    snapshots.iter().map(|(name, _)| name.as_str()).collect()
}

/// Waits until a dataset has just these snapshots, and returns them.
fn wait_until(place: &Place, dataset: &str, expected: &[&str]) -> Vec<(String, String)> {
    wait_for("the snapshots of the day", || {
        let found = snapshots(place, dataset);
        match names(&found) == expected {
            true => Ok(found),
            false => Err(format!("{dataset}: {found:?}\n{}", place.log())),
        }
    })
}

/// Has the daemon run on a day of November, after another one was killed.
fn on(place: &mut Place, day: u32) {
    place.set(
        "FAKETIME",
        match day {
            21 => "@2026-11-21 12:00:00",
            22 => "@2026-11-22 12:00:00",
            23 => "@2026-11-23 12:00:00",
            24 => "@2026-11-24 12:00:00",
            25 => "@2026-11-25 12:00:00",
            _ => "@2026-11-26 12:00:00",
        },
    );
    place.serve(&SERVE);
    check(
        place,
        &format!("echo {day} >f && sanbox put f tank/vm:/f"),
        "",
    );
}

#[test]
fn the_name_of_the_newest_moves_on_and_the_copy_follows() {
    if !std::path::Path::new(PRELOAD).exists() {
        return tests::skip("days that pass", "faketime is not installed");
    }
    let mut place = Place::new();
    check(&place, POOLS, "");
    check(
        &place,
        "sanbox policy set tank/vm 'daily=2 naming=seed-latest' && sanbox replication create vm --from tank/vm --to back/vm --every 1s",
        "",
    );
    place.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    place.set("LD_PRELOAD", PRELOAD);
    let dated = |day: u32| format!("snap-daily-1-2026-11-{day}-1200");
    let latest = "snap-daily-1-latest";
    on(&mut place, 21);
    let first = wait_until(&place, "back/vm", &[latest]);
    place.kill();
    on(&mut place, 22);
    let second = wait_until(&place, "back/vm", &[&dated(21), latest]);
    assert_eq!(second[0].1, first[0].1, "the same snapshot by another name");
    assert_eq!(second, wait_until(&place, "tank/vm", &[&dated(21), latest]));
    // Killed between the two steps: the name is free, and is taken.
    place.kill();
    place.unset_all();
    let renamed = format!("zfs rename tank/vm@{latest} tank/vm@{}", dated(22));
    check(&place, &renamed, "");
    place.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    place.set("LD_PRELOAD", PRELOAD);
    on(&mut place, 23);
    let third = wait_until(&place, "back/vm", &[&dated(21), &dated(22), latest]);
    assert_eq!(third[1].1, second[1].1);
    // Two of the class stay at the source, each counted once.
    wait_until(&place, "tank/vm", &[&dated(22), latest]);
    check(&place, "sanbox replication pause vm", "");
    for day in [24, 25] {
        place.kill();
        on(&mut place, day);
        wait_until(&place, "tank/vm", &[&dated(day - 1), latest]);
    }
    // The source has what the copy calls the latest no more: a bookmark stands for it, and the copy names it by its time.
    check(&place, "sanbox replication resume vm", "");
    let gone = "snap-daily-1-2026-11-23-1200p0000";
    let copy = [&dated(21), &dated(22), gone, &dated(24), latest];
    let last = wait_until(&place, "back/vm", &copy);
    assert_eq!(last[2].1, third[2].1);
    let runs = place.run("sanbox replication show vm");
    assert!(
        !runs.contains("cannot") && runs.contains("has all there is"),
        "{runs}"
    );
    check(
        &place,
        "zfs holds -H back/vm@snap-daily-1-latest | cut -f2",
        "replica-vm\n",
    );
    place.unset_all();
    judged(&place);
}
