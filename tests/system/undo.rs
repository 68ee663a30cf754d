//! `sanbox undo`: what it takes back is as `zfs get`, `zfs list` and the like said it was before, and it refuses what was changed since.

use serde_json::json;

use crate::cli::Place;
use crate::console::{PASSWORD, browser, owner, serve_with};

/// The number of the newest change.
fn newest(place: &Place) -> String {
    let listed = place.run("sanbox job list -H -n 1");
    listed.split('\t').next().unwrap_or_default().to_owned()
}

fn with_pool() -> Place {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create -O mountpoint=none -o comment=first tank $PWD/a && \
         zfs create -o compression=gzip-3 -o quota=32M tank/a && zfs create tank/a/b && zfs set x:y=1 tank/a && \
         zfs create -V 8M tank/v && zfs snapshot tank/a@s && sanbox target create iqn.2026-01.org.example:t",
    );
    assert_eq!(made, "");
    place
}

#[test]
fn each_kind_of_change_is_taken_back_and_done_again() {
    let mut place = with_pool();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let settings = "for of in a c a/b v; do zfs get -Hp -o name,property,value,source compression,quota,refquota,recordsize,canmount,sharenfs,\
                    snapdir,filesystem_limit,reservation,userquota@5,x:y,x:z,org.sanbox:policy,org.sanbox:lun tank/$of 2>/dev/null; done; \
                    zfs list -H -o name -t all | grep -v @auto-; zpool get -H -o value comment tank; sanbox tune -H; sanbox log";
    // A policy takes snapshots of its own when the daemon comes to it.
    for (command, again) in [
        ("zfs set compression=lz4 tank/a", true),
        (
            "zfs set compression=off recordsize=16K canmount=off tank/a/b",
            true,
        ),
        (
            "zfs set quota=none refquota=16M filesystem_limit=7 tank/a",
            true,
        ),
        ("zfs set quota=64M reservation=1M tank/a tank/a/b", true),
        (
            "zfs set sharenfs=rw=@192.0.2.0/24,no_root_squash snapdir=visible tank/a",
            true,
        ),
        ("zfs set userquota@5=1M tank/a", true),
        ("zfs set x:y=2 'x:z=with space' tank/a", true),
        ("zfs inherit compression tank/a", true),
        ("zfs inherit -r x:y tank", true),
        ("zfs rename tank/a tank/c", true),
        ("zfs rename tank/a@s t", true),
        ("zpool set comment=second tank", true),
        ("zpool set comment= tank", true),
        ("sanbox policy set tank/a 'hourly=24 daily=7'", true),
        (
            "sanbox target map iqn.2026-01.org.example:t tank/v --lun 3",
            true,
        ),
        ("sanbox tune l2arc_write_max=1M l2arc_noprefetch=0", true),
        ("sanbox log debug,nfs=trace", true),
        ("zfs create -o atime=off tank/new", false),
        ("zfs create -s -V 16M tank/volume", false),
        ("zfs clone -o quota=1M tank/a@s tank/clone", false),
        ("zfs snapshot tank/a@one tank/v@one", false),
        ("zfs snapshot -r tank@all", false),
    ] {
        let before = place.run(settings);
        assert_eq!(
            place.run(&format!("{command}; echo $?")),
            "0\n",
            "{command}"
        );
        let id = newest(&place);
        let after = place.run(settings);
        assert_ne!(after, before, "{command}");
        let said = place.run(&format!("sanbox undo -n {id}"));
        assert!(said.starts_with("would run: "), "{command}: {said}");
        assert_eq!(place.run(settings), after, "{command}");
        let said = place.run(&format!("sanbox undo {id}"));
        let undid = newest(&place);
        assert!(
            !said.contains('!') && !said.contains('['),
            "{command}: {said}"
        );
        let now = place.run(settings);
        let same = |text: &str| {
            text.replace("\tlocal", "")
                .replace("\tdefault", "")
                .replace(",nfs=info", "")
        };
        // A quota that was taken away by hand is as one that never was.
        assert_eq!(same(&now), same(&before), "{command}");
        let twice = place.run(&format!("sanbox undo {id}"));
        assert_eq!(
            twice,
            format!("! cannot undo job {id}: it was undone already\n[1]\n")
        );
        if again {
            let said = place.run(&format!("sanbox undo {undid}"));
            let redid = newest(&place);
            assert_eq!(
                same(&place.run(settings)),
                same(&after),
                "{command}: {said}"
            );
            place.run(&format!("sanbox undo {redid}"));
            assert_eq!(same(&place.run(settings)), same(&before), "{command}");
        } else {
            let said = place.run(&format!("sanbox undo {undid}"));
            assert!(said.contains("nothing that can be taken back"), "{said}");
        }
    }
    place.stop();
}

#[test]
fn what_was_changed_since_is_left_alone() {
    let mut place = with_pool();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    for (command, meanwhile, why) in [
        (
            "zfs set compression=lz4 tank/a",
            "zfs set compression=zstd tank/a",
            "'compression' of 'tank/a' was changed since: it is 'zstd', and was 'lz4'",
        ),
        (
            "zfs create tank/empty",
            "touch f; sanbox put f tank/empty:/",
            "'tank/empty' was written to since",
        ),
        (
            "zfs create -V 8M tank/disk",
            "zfs snapshot tank/disk@x",
            "'tank/disk' has snapshots or datasets below it",
        ),
        (
            "zfs create tank/new",
            "echo text > f; sanbox put f tank/new:/",
            "'tank/new' was written to since",
        ),
        (
            "zfs clone tank/a@s tank/clone",
            "zfs snapshot tank/clone@x",
            "'tank/clone' has snapshots or datasets below it",
        ),
        (
            "zfs create tank/gone",
            "zfs destroy tank/gone",
            "'tank/gone' does not exist any more",
        ),
        (
            "zfs create tank/other",
            "zfs destroy tank/other; zfs create tank/other",
            "'tank/other' is another dataset now",
        ),
        (
            "zfs rename tank/a tank/c",
            "zfs create tank/a",
            "there is another 'tank/a' now",
        ),
        (
            "zfs snapshot -r tank@all",
            "zfs destroy tank/v@all; zfs snapshot tank/v@all",
            "'tank/v@all' was made at another time",
        ),
        (
            "sanbox tune l2arc_write_max=1M",
            "sanbox tune l2arc_write_max=2M",
            "it is 2097152, and was 1048576",
        ),
    ] {
        assert_eq!(place.run(command), "", "{command}");
        let id = newest(&place);
        place.run(meanwhile);
        let before =
            place.run("zfs list -H -t all -o name; zfs get -H compression tank/a; sanbox tune");
        let said = place.run(&format!("sanbox undo {id}"));
        assert!(
            said.contains(why) && said.ends_with("\n[1]\n"),
            "{command}: {said}"
        );
        let after =
            place.run("zfs list -H -t all -o name; zfs get -H compression tank/a; sanbox tune");
        assert_eq!(after, before, "{command}");
    }
    for (command, why) in [
        (
            "zfs set volsize=16M tank/v",
            "nothing that can be taken back",
        ),
        ("zfs destroy tank/v@all", "nothing that can be taken back"),
    ] {
        assert_eq!(place.run(command), "", "{command}");
        let said = place.run(&format!("sanbox undo {}", newest(&place)));
        assert!(said.contains(why), "{command}: {said}");
    }
    assert!(
        place
            .run("sanbox undo 9999")
            .contains("there is no job 9999")
    );
    assert!(
        place
            .run("sanbox undo x")
            .contains("'x' is no job's number")
    );
    place.stop();
}

#[test]
fn the_trash_gives_back_what_was_destroyed_and_a_restart_forgets_nothing() {
    let mut place = with_pool();
    let flags = ["--nfs-port", "0", "--iscsi-port", "0"];
    place.serve(&flags);
    let made = "zfs set org.sanbox:trash=7d tank; echo text > f; sanbox put f tank/a:/";
    assert_eq!(place.run(made), "");
    place.run("zfs destroy -r tank/a");
    let id = newest(&place);
    place.stop();
    place.serve(&flags);
    let said = place.run(&format!("sanbox undo {id}"));
    assert!(said.contains("is tank/a again"), "{said}");
    assert_eq!(
        place.run("sanbox cat tank/a:/f; zfs get -H -o value compression tank/a"),
        "text\ngzip-3\n"
    );
    place.stop();
}

/// Over the API it needs the role of what it does, and a role is not got by it.
#[test]
fn undoing_needs_the_role_of_what_is_done() {
    let mut place = with_pool();
    let port = serve_with(&mut place, &[]);
    let ann = owner(&place, port);
    place.run("zfs set mountpoint=/srv/a tank/a; zfs set mountpoint=/srv/x tank/a");
    let machine = newest(&place);
    place.run("zfs set compression=lz4 tank/a");
    let plain = newest(&place);
    let shown = ann.get(&format!("/api/v1/jobs/{plain}/undo"));
    assert_eq!(
        shown,
        json!({"commands": ["zfs set compression=gzip-3 tank/a"], "role": "operator"})
    );
    let bob = json!({"name": "bob", "password": PASSWORD, "role": "operator"});
    assert_eq!(ann.ask("POST", "/api/v1/users", Some(&bob)).0, 201);
    assert_eq!(ann.ask("DELETE", "/api/v1/session", None).0, 204);
    let mut bob = browser(&place, port);
    let known = json!({"name": "bob", "password": PASSWORD});
    let (status, session) = bob.ask("POST", "/api/v1/session", Some(&known));
    assert_eq!(status, 201, "{session}");
    bob.csrf = session["csrf"].as_str().expect("a value").to_owned();
    let undo = |id: &str| json!({"tool": "sanbox", "arguments": ["undo", id]});
    let (status, problem) = bob.ask("POST", "/api/v1/commands", Some(&undo(&machine)));
    assert_eq!(status, 403, "{problem}");
    let (status, job) = bob.ask("POST", "/api/v1/commands", Some(&undo(&plain)));
    assert_eq!(status, 202, "{job}");
    let output = bob.get(&format!("/api/v1/jobs/{}/output?wait=10", job["id"]));
    assert!(
        output["text"]
            .as_str()
            .is_some_and(|text| text.contains("zfs set compression=gzip-3")),
        "{output}"
    );
    crate::cli::wait_for("the end of the job", || {
        let job = bob.get(&format!("/api/v1/jobs/{plain}"));
        (job["undone"] == true).then_some(()).ok_or(job.to_string())
    });
    assert_eq!(
        place.run("zfs get -H -o value compression tank/a"),
        "gzip-3\n"
    );
    place.stop();
}
