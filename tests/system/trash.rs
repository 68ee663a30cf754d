//! What is destroyed where the trash is on is kept, does nothing meanwhile, comes back as it was, and goes when it is due; checks are listed, run
//! and turned off.

use crate::cli::{Place, wait_for};

/// The entry of the trash that was called so.
fn entry(place: &Place, was: &str) -> String {
    let listed = place.run("sanbox trash list -H");
    let line = listed
        .lines()
        .find(|line| line.ends_with(&format!("\t{was}")));
    let line = line.unwrap_or_else(|| panic!("no '{was}': {listed}"));
    line.split('\t').next().unwrap_or_default().to_owned()
}

#[test]
fn what_is_destroyed_is_kept_and_comes_back_as_it_was() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create -p -o mountpoint=/srv/a -o sharenfs=rw tank/vm/a && \
         zfs create -V 8M tank/vm/a/disk && zfs set org.sanbox:lun=iqn.2026-01.x:y/3 tank/vm/a/disk && echo text > f && \
         sanbox put f tank/vm/a:/ && zfs snapshot tank/vm/a@s",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    // Off unless it is set.
    assert_eq!(
        place.run("zfs create tank/x; zfs destroy tank/x; sanbox trash list -H"),
        ""
    );
    assert_eq!(place.run("zfs set org.sanbox:trash=7d tank"), "");
    let said = place.run("zfs destroy -r tank/vm/a");
    assert!(said.contains("'tank/vm/a' is in the trash until"), "{said}");
    let kept = entry(&place, "tank/vm/a");
    let acting = format!(
        "zfs get -H -o value mountpoint,sharenfs {kept}; zfs get -H -o value org.sanbox:lun {kept}/disk"
    );
    assert_eq!(place.run(&acting), "none\noff\n-\n");
    assert!(place.run("zfs list -H -o name").contains(&kept));
    // A daemon that is killed finds it as it was.
    place.kill();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    assert_eq!(
        place.run(&format!("sanbox trash restore {kept}")),
        format!("{kept} is tank/vm/a again\n")
    );
    let back = "zfs get -H -o value,source mountpoint,sharenfs tank/vm/a; zfs get -H -o value org.sanbox:lun tank/vm/a/disk; \
                sanbox cat tank/vm/a:/f; zfs list -H -o name -t snapshot; zfs get -H -o value org.sanbox:trash-from tank/vm/a";
    assert_eq!(
        place.run(back),
        "/srv/a\tlocal\nrw\tlocal\niqn.2026-01.x:y/3\ntext\ntank/vm/a@s\n-\n"
    );
    assert_eq!(place.run("sanbox trash list -H"), "");
    place.stop();
}

#[test]
fn what_is_due_goes_as_a_job_and_what_cannot_be_kept_is_refused() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/a && zfs create tank/b && zfs snapshot tank/b@s && \
         zfs clone tank/b@s tank/clone && zfs set org.sanbox:trash=12h tank",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0"]);
    for (command, why) in [
        (
            "zfs destroy -R tank/b",
            "the trash does not take clones elsewhere, such as tank/clone",
        ),
        ("zfs destroy -r tank", "its trash is on"),
        (
            "zfs set org.sanbox:trash=soon tank/b; zfs destroy -R tank/b",
            "neither off nor 12h",
        ),
        (
            "sanbox trash restore tank/b",
            "'tank/b' is not in the trash",
        ),
        ("sanbox trash empty", "usage"),
    ] {
        let said = place.run(command);
        assert!(said.contains(why), "{command}: {said}");
    }
    assert!(
        place
            .run("zfs destroy -nv tank/a")
            .contains("would be kept in the trash until")
    );
    assert!(place.run("zfs destroy tank/a").contains("is in the trash"));
    let kept = entry(&place, "tank/a");
    // It was taken meanwhile.
    assert!(
        place
            .run(&format!("zfs create tank/a && sanbox trash restore {kept}"))
            .contains("exists")
    );
    assert_eq!(
        place.run(&format!(
            "zfs set org.sanbox:trash-until=2026-01-01T00:00:00Z {kept}"
        )),
        ""
    );
    wait_for("the trash", || {
        let left = place.run("sanbox trash list -H");
        left.is_empty().then_some(()).ok_or(left)
    });
    let jobs = place.run("sanbox job list");
    assert!(jobs.contains(&format!("zfs destroy -r {kept}")), "{jobs}");
    assert!(place.run("zfs destroy tank/a").contains("is in the trash"));
    let kept = entry(&place, "tank/a");
    assert!(
        place
            .run("sanbox trash empty -an")
            .contains(&format!("would destroy {kept}"))
    );
    assert_eq!(place.run("sanbox trash empty -a; sanbox trash list -H"), "");
    place.stop();
}

#[test]
fn checks_are_listed_run_and_turned_off() {
    let mut place = Place::new();
    assert_eq!(
        place.run("truncate -s 128M a && zpool create tank $PWD/a"),
        ""
    );
    let nobody = place.run("sanbox checks run clock");
    assert!(nobody.contains("no daemon runs"), "{nobody}");
    place.serve(&["--nfs-port", "0"]);
    let said = place.run("sanbox checks run clock");
    assert!(said.starts_with("clock: found 0, in "), "{said}");
    assert!(
        place
            .run("sanbox checks run nothing")
            .contains("there is no check 'nothing'")
    );
    assert_eq!(place.run("sanbox checks off clock"), "");
    let state = "sanbox checks list -H | cut -f1,2 | grep -E 'clock|config-backup|scrub'";
    assert_eq!(
        place.run(state),
        "clock\toff\nconfig-backup\toff\nscrub\ton\n"
    );
    // A check that is off is run when that is asked for.
    let backup = place.run("sanbox checks run config-backup");
    assert!(backup.starts_with("config-backup: found 1"), "{backup}");
    let exported = place.run("sanbox config export > file; sanbox checks run config-backup");
    assert!(exported.starts_with("config-backup: found 0"), "{exported}");
    assert_eq!(
        place.run("sanbox checks history config-backup -H | cut -f3,4"),
        "1\t0\n1\t1\n"
    );
    place.stop();
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(
        place.run(state),
        "clock\toff\nconfig-backup\toff\nscrub\ton\n"
    );
    place.stop();
}
