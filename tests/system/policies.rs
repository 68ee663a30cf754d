//! Snapshot policies as an administrator meets them: set in a shell, carried out by the daemon, explained, and never run amok, however
//! often the daemon is killed.

use crate::cli::{Place, wait_for};

fn snapshots(place: &Place) -> Vec<String> {
    let listed = place.run("zfs list -Ht snapshot -o name");
    let names = listed.lines().filter(|line| line.contains('@'));
    names.map(str::to_owned).collect()
}

#[track_caller]
fn wait_until(place: &Place, is_so: impl Fn(&[String]) -> bool) {
    wait_for("snapshots", || {
        let list = snapshots(place);
        let seen = || format!("{list:?}");
        is_so(&list).then_some(()).ok_or_else(seen)
    });
}

fn restart(place: &mut Place) {
    place.kill();
    place.serve(&["--nfs-port", "0"]);
}

#[test]
fn a_policy_takes_one_snapshot_a_period_however_often_the_daemon_is_killed() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create -p tank/vm/one && zfs create tank/vm/off && \
         zfs create tank/other",
    );
    assert_eq!(made, "");
    assert_eq!(
        place.run(
            "sanbox policy set tank/vm 'yearly=2 monthly=3' && sanbox policy set tank/vm/off off"
        ),
        ""
    );
    place.serve(&["--nfs-port", "0"]);
    // A list shows a snapshot as soon as its txg is being written, as OpenZFS's does: a daemon that is killed then may lose it, and the
    // next one takes it.
    for _ in 0..2 {
        wait_until(&place, |list| list.len() == 2);
        restart(&mut place);
    }
    wait_until(&place, |list| list.len() == 2);
    assert_eq!(place.run("zpool sync tank"), "");
    // One for each dataset with the policy, all of one moment and one name.
    let taken = snapshots(&place);
    assert_eq!(taken.len(), 2, "{taken:?}");
    assert_eq!(
        taken[0].split('@').nth(1),
        taken[1].split('@').nth(1),
        "{taken:?}"
    );
    // From here on a restart takes nothing of them back, and its first round, which ends with a snapshot of a new dataset, adds nothing.
    for number in 0..2 {
        place.kill();
        let new = format!("tank/new{number}");
        let made = format!("zfs create {new} && sanbox policy set {new} yearly=1");
        assert_eq!(place.run(&made), "");
        place.serve(&["--nfs-port", "0"]);
        assert!(place.run("sanbox policy show").contains("tank/vm/one"));
        let new = format!("{new}@");
        wait_until(&place, |list| {
            list.iter().any(|name| name.starts_with(&new))
        });
        let mut left = snapshots(&place);
        left.retain(|name| name.starts_with("tank/vm"));
        assert_eq!(left, taken);
    }
    let txgs = place.run("zfs get -Hpo value createtxg -t snapshot -r tank/vm");
    let txgs: Vec<&str> = txgs.lines().collect();
    assert!(txgs.len() == 2 && txgs[0] == txgs[1], "{txgs:?}");

    let why = place.run(&format!("sanbox snapshots why -H {}", taken[0]));
    let kept = format!(
        "{}\tkept: number 1 of the newest 3 monthly, until ",
        taken[0]
    );
    assert!(why.starts_with(&kept), "{why}");
    let shown = place.run("sanbox policy show -H tank/vm");
    assert!(
        shown.contains("inherited from tank/vm\tmonthly=3 yearly=2"),
        "{shown}"
    );

    // Snapshots of others are never destroyed; those of a class that left the policy go, held ones when they are released.
    assert_eq!(place.run("zfs snapshot tank/vm@mine"), "");
    let held = taken
        .iter()
        .find(|name| name.starts_with("tank/vm@"))
        .expect("of tank/vm")
        .clone();
    assert_eq!(place.run(&format!("zfs hold keep {held}")), "");
    assert_eq!(
        place.run("sanbox policy set tank/vm 'cron=\"0 0 1 1 *\" keep=1'"),
        ""
    );
    // A start looks at once.
    restart(&mut place);
    wait_until(&place, |list| !list.contains(&taken[1]));
    let why = place.run(&format!("sanbox snapshots why -H {held}"));
    assert!(why.contains("kept: it is held"), "{why}");
    assert_eq!(place.run(&format!("zfs release keep {held}")), "");
    restart(&mut place);
    wait_until(&place, |list| !list.contains(&held));
    assert!(snapshots(&place).contains(&"tank/vm@mine".to_owned()));
    place.stop();
}

/// It is not destroyed before its time: every way to do so is tried, on the original and on its copy.
#[test]
fn an_immutable_snapshot_stays() {
    let mut place = Place::new();
    let made = "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create tank/home && \
                zfs snapshot tank/home@old && zfs snapshot tank/home@keep && zfs snapshot tank/home@new";
    assert_eq!(place.run(made), "");
    let said = place.run("sanbox immutable --for 30d tank/home@keep");
    let until = said
        .trim()
        .strip_prefix("tank/home@keep: nobody destroys it before ");
    let until = until.unwrap_or_else(|| panic!("{said}")).to_owned();
    let words = format!("snapshot is immutable until {until}");
    for line in [
        "zfs destroy tank/home@keep",
        "zfs destroy -d tank/home@keep",
        "zfs destroy tank/home@old%new",
        "zfs destroy -r tank/home",
        "zfs destroy -R tank/home",
        "zfs rollback -r tank/home@old",
        "zfs rollback -R tank/home@old",
        "zfs release org.sanbox:immutable tank/home@keep",
        "zfs set org.sanbox:immutable-until=2026-01-01T00:00:00Z tank/home@keep",
        "zfs inherit org.sanbox:immutable-until tank/home@keep",
        "sanbox immutable --for 1h tank/home@keep",
        "zpool destroy tank",
        "zpool destroy -f tank",
    ] {
        let refused = place.run(line);
        let is_refused = refused.contains(&format!("immutable until {until}"));
        assert!(is_refused, "{line}: {refused}");
        assert!(
            snapshots(&place).contains(&"tank/home@keep".to_owned()),
            "{line}"
        );
    }
    // A program gets a number, as of a snapshot that is held: EBUSY.
    let script = "echo 'return zfs.sync.destroy(\"tank/home@keep\")' > p && zfs program -j tank p";
    assert_eq!(place.run(script), "{\"return\":16}\n");
    // The copy is as immutable.
    assert_eq!(
        place.run("sanbox replication create h --from tank/home --to back/home"),
        ""
    );
    let sent = place.run("sanbox replication run h");
    assert!(sent.contains("back/home@keep"), "{sent}");
    assert!(
        place
            .run("zfs holds -H back/home@keep")
            .contains("org.sanbox:immutable")
    );
    let refused = place.run("zfs destroy back/home@keep");
    assert!(refused.contains(&words), "{refused}");
    // Nor does a stream of another dataset take its place.
    let forced = "zfs create tank/other && zfs snapshot tank/other@x && zfs send tank/other@x | zfs receive -F back/home";
    assert!(place.run(forced).contains("[1]"));
    assert!(snapshots(&place).contains(&"back/home@keep".to_owned()));
    let why = place.run("sanbox snapshots why -H tank/home@keep");
    let expected = format!(
        "tank/home@keep\tkept: no policy took it, so none destroys it; immutable until {until}; holds: org.sanbox:immutable"
    );
    assert!(
        why.starts_with(&expected) && why.contains("bookmarks: #replica-h-"),
        "{why}"
    );
    let json = place.run("sanbox snapshots why -j tank/home@keep");
    assert!(
        json.contains("\"holds\":[\"org.sanbox:immutable\"]"),
        "{json}"
    );

    // A policy gives it to what it takes, and its retention leaves that alone.
    assert_eq!(
        place.run("zfs create tank/vm && sanbox policy set tank/vm 'yearly=1 immutable=7d'"),
        ""
    );
    place.serve(&["--nfs-port", "0"]);
    wait_until(&place, |list| {
        list.iter().any(|name| name.starts_with("tank/vm@"))
    });
    let taken = place.run("zfs list -Ho name -t snapshot tank/vm");
    let refused = place.run(&format!("zfs destroy {taken}"));
    assert!(refused.contains("immutable until"), "{refused}");
    assert_eq!(place.run("sanbox policy set tank/vm hourly=1"), "");
    let why = place.run(&format!("sanbox snapshots why -H {taken}"));
    assert!(why.contains("kept: it is immutable until"), "{why}");
    place.stop();
    // OpenZFS finds nothing wrong with it.
    assert_eq!(place.run("zpool export tank && zpool export back"), "");
    if oracle::has_zdb() {
        for pool in ["tank", "back"] {
            oracle::zdb_clean(&place.path("work"), pool).expect("zdb finds nothing");
        }
    }
}

#[test]
fn policies_that_cannot_be_read_and_previews() {
    let mut place = Place::new();
    assert_eq!(
        place.run("truncate -s 256M a && zpool create tank $PWD/a"),
        ""
    );
    assert_eq!(
        place.run("sanbox policy set tank 'daily=7 hourly'"),
        "! bad policy: 'hourly' is not NAME=VALUE\n[1]\n"
    );
    assert_eq!(
        place.run("sanbox policy set tank/none daily=7"),
        "! cannot set the policy of 'tank/none': dataset does not exist\n[1]\n"
    );
    let shown = place.run("sanbox policy preview tank 'daily=7 hourly=24' --on 2090-01-01");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "policy of tank: hourly=24 daily=7", "{shown}");
    assert_eq!(
        lines[1], "now: 0 snapshots, 0 of them would be destroyed",
        "{shown}"
    );
    assert!(
        lines[2].starts_with("2090-01-01 00:00: 30 snapshots of the policy"),
        "{shown}"
    );
    assert!(
        lines[3].trim_start().starts_with("hourly       24  "),
        "{shown}"
    );
    // A policy that some other tool wrote wrongly destroys nothing, and says so.
    assert_eq!(place.run("zfs set org.sanbox:policy=often tank"), "");
    let shown = place.run("sanbox policy show");
    assert!(
        shown.contains("never: 'often' is not NAME=VALUE"),
        "{shown}"
    );
    assert_eq!(
        place.run("sanbox policy clear tank && sanbox policy show -H"),
        ""
    );
    place.stop();
}

/// Hooks run around the snapshot of their policy, in the daemon; one that fails marks the snapshot and does not prevent it.
#[test]
fn hooks_run_around_a_snapshot() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/db && zfs create tank/vm && mkdir -p ../state && \
         printf '[policies.hook.db]\nbefore = [\"/bin/sh\", \"-c\", \"echo $SANBOX_PHASE $SANBOX_SNAPSHOTS >> '$PWD'/hooks\"]\n\
         after = [\"/bin/sh\", \"-c\", \"echo $SANBOX_PHASE >> '$PWD'/hooks\"]\n\
         [policies.hook.vm]\nbefore = [\"/bin/false\"]\n' > ../state/sanbox.toml",
    );
    assert_eq!(made, "");
    let set = place.run(
        "sanbox policy set tank/db 'yearly=2 hook=db' && sanbox policy set tank/vm 'monthly=2 hook=vm'",
    );
    assert_eq!(set, "");
    place.serve(&["--nfs-port", "0"]);
    wait_until(&place, |list| list.len() == 2);
    let taken = snapshots(&place);
    let values = place.run(&format!(
        "zfs get -Ho value org.sanbox:hooks-failed {} {}",
        taken[0], taken[1]
    ));
    assert_eq!(values, "-\nvm\n");
    // The thaw comes after the snapshot.
    let expected = format!("before {}\nafter\n", taken[0]);
    wait_for("the hook after the snapshot", || {
        let hooks = place.run("cat hooks");
        (hooks == expected).then_some(()).ok_or(hooks)
    });
    place.stop();
}
