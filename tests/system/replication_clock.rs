//! Replication and policies with a clock that is in 1970 for a while, as after a start with an empty battery (libfaketime).

use crate::cli::{Place, wait_for};
use crate::replication::{POOLS, check, judged};
use crate::stream_faults::SERVE;

/// Long ago; timers go on as they are.
const IN_1970: [(&str, &str); 3] = [
    ("FAKETIME", "@1970-01-03 00:00:00"),
    ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    (
        "LD_PRELOAD",
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    ),
];

/// Snapshots of a dataset, oldest first by the transaction group.
fn snapshots(place: &Place, dataset: &str) -> Vec<String> {
    let list = place.run(&format!(
        "zfs list -Ht snapshot -o name -s createtxg {dataset}"
    ));
    let names = list.lines().filter_map(|name| name.split_once('@'));
    names.map(|(_, snapshot)| snapshot.to_owned()).collect()
}

/// Waits until both sides have the same snapshots, of which `count` are the policy's; returns those.
fn equal(place: &Place, count: usize) -> Vec<String> {
    wait_for("the copy has the same snapshots", || {
        let sides = ["tank/vm", "back/vm"].map(|side| snapshots(place, side));
        let mut kept = sides[0].clone();
        kept.retain(|name| name.starts_with("auto-"));
        match sides[0] == sides[1] && kept.len() == count {
            true => Ok(kept),
            false => Err(format!("{sides:?}\n{}", place.log())),
        }
    })
}

#[test]
fn a_clock_in_1970_loses_nothing_and_does_not_run_amok() {
    if !std::path::Path::new(IN_1970[2].1).exists() {
        return tests::skip("a clock in 1970", "faketime is not installed");
    }
    let mut place = Place::new();
    check(&place, POOLS, "");
    check(
        &place,
        "sanbox policy set tank/vm 'daily=7 immutable=1d' && seq 9 9000 > f && sanbox put f tank/vm:/f && \
         sanbox replication create vm --from tank/vm --to back/vm --take --every 1s",
        "",
    );
    place.serve(&SERVE);
    let first = equal(&place, 1);
    place.stop();

    for (name, value) in IN_1970 {
        place.set(name, value);
    }
    place.serve(&SERVE);
    // One snapshot more, of the day that it seems to be; the one before is neither too old nor from the future.
    let both = equal(&place, 2);
    assert_eq!(both[0], first[0]);
    assert!(both[1].starts_with("auto-1970"), "{both:?}");
    assert!(
        place.log().contains("the clock was set back"),
        "{}",
        place.log()
    );
    check(&place, "sanbox put f tank/vm:/g", "");
    let sent = place.run("sanbox replication run vm");
    assert!(!sent.contains("cannot"), "{sent}");
    let destroyed = place.run(&format!("zfs destroy tank/vm@{}", first[0]));
    assert!(destroyed.contains("is immutable until 20"), "{destroyed}");
    assert_eq!(equal(&place, 2), both);
    place.stop();

    // Right again: nothing of what was made meanwhile is in the way.
    place.unset_all();
    place.serve(&SERVE);
    check(&place, "sanbox put f tank/vm:/h", "");
    let sent = place.run("sanbox replication run vm");
    assert!(!sent.contains("cannot"), "{sent}");
    let now = equal(&place, 2);
    assert_eq!(now, both, "{}", place.log());
    check(
        &place,
        "sanbox ls back/vm:/ | awk '{print $NF}' | sort | tr '\\n' ' '",
        "f g h \n",
    );
    judged(&place);
}
