//! Replication between two appliances by their own protocol, as their administrators meet it: paired by a code, jobs in both directions, either
//! daemon killed at any moment, rights that hold, and OpenZFS as the judge of what is left.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tests::free_port;

use crate::cli::{Place, wait_for};

#[track_caller]
fn check(place: &Place, line: &str, expected: &str) {
    assert_eq!(place.run(line), expected, "{line}");
}

/// The objects of a snapshot, which are the same wherever it was received.
fn sums(place: &Place, snapshot: &str) -> String {
    let sums = place.run(&format!("sanbox sums {snapshot}"));
    assert!(sums.lines().count() > 3, "{sums}");
    sums.replace(snapshot, "")
}

#[track_caller]
fn wait_until(place: &Place, what: &str, is_so: impl Fn() -> bool) {
    wait_for(what, || is_so().then_some(()).ok_or_else(|| place.log()));
}

/// Two appliances with a pool and a daemon each; the second can be reached at the port.
struct Appliances {
    here: Place,
    there: Place,
    port: String,
}

impl Appliances {
    fn new() -> Self {
        let (here, there) = (Place::new(), Place::on_host("0000beef"));
        check(
            &here,
            "truncate -s 256M a && zpool create tank $PWD/a && zfs create -p tank/vm/one && zfs create -V 8M -s tank/vm/disk",
            "",
        );
        check(
            &there,
            "truncate -s 256M b && zpool create back $PWD/b && zfs create back/x && zfs create back/x/y && zfs create back/private",
            "",
        );
        let port = free_port().to_string();
        let mut both = Self { here, there, port };
        both.serve_here();
        both.serve_there();
        both
    }

    fn serve_here(&mut self) {
        self.here.serve(&[
            "--nfs-port",
            "0",
            "--https-port",
            "0",
            "--replication-port",
            "0",
        ]);
    }

    fn serve_there(&mut self) {
        let port = self.port.clone();
        self.there.serve(&[
            "--nfs-port",
            "0",
            "--https-port",
            "0",
            "--listen",
            "127.0.0.1",
            "--replication-port",
            &port,
        ]);
    }

    /// Has the second invite the first; returns the code.
    fn invite(&self, how: &str) -> String {
        let told = self.there.run(&format!("sanbox peer invite {how}"));
        let line = told.lines().find(|line| line.contains("sanbox peer add"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(line.contains(&format!("127.0.0.1:{}", self.port)), "{told}");
        line.split(' ').next_back().expect("a code").to_owned()
    }

    fn add(&self, name: &str, code: &str) -> String {
        let port = &self.port;
        self.here
            .run(&format!("sanbox peer add {name} 127.0.0.1:{port} {code}"))
    }

    /// Ends both; OpenZFS finds both pools in order.
    fn judged(mut self) {
        self.here.stop();
        self.there.stop();
        for (place, pool) in [(&self.here, "tank"), (&self.there, "back")] {
            check(place, &format!("zpool export {pool}"), "");
            if oracle::has_zdb() {
                oracle::zdb_clean(&place.path("work"), pool).expect("zdb finds nothing");
            }
        }
    }
}

#[test]
fn appliances_are_paired_by_a_code_and_reach_what_they_were_invited_to() {
    let both = Appliances::new();
    let (here, there) = (&both.here, &both.there);
    check(
        here,
        "sanbox peer invite --datasets tank/vm --push",
        "! no peer is answered: [replication] port is 0 in sanbox.toml\n[1]\n",
    );
    let misuse = there.run("sanbox peer invite --datasets back");
    assert!(misuse.contains("--push (it sends there)"), "{misuse}");
    // Nothing listens before the first invitation.
    let refused = both.add("vault", "0000-0000-0000-0000-0000-0000");
    assert!(refused.contains("Connection refused"), "{refused}");

    let code = both.invite("box --datasets back/vm --push");
    let last = if code.ends_with('0') { '1' } else { '0' };
    let wrong = format!("{}{last}", &code[..code.len() - 1]);
    let refused = both.add("vault", &wrong);
    assert!(refused.contains("the code is not good"), "{refused}");
    check(here, "sanbox peer list -H", "");
    assert_eq!(
        both.add("vault", &code.to_lowercase()),
        "'vault' knows this appliance as 'box', which sends to back/vm\n"
    );
    check(there, "sanbox peer list -H", "box\t-\tpush\tback/vm\n");
    let again = both.add("other", &code);
    assert!(again.contains("[1]"), "{again}");
    let shown = here.run("sanbox peer show vault");
    assert!(shown.contains("does nothing here"), "{shown}");

    // What it may, and what not.
    check(
        here,
        "seq 9 > f && sanbox put f tank/vm/one:/f && zfs set mountpoint=/nowhere sharenfs=on tank/vm && zfs snapshot -r tank/vm@s1",
        "",
    );
    check(
        here,
        "sanbox replication create vm --from tank/vm --to peer://vault/back/vm -r && sanbox replication pause vm",
        "",
    );
    let sent = here.run("sanbox replication run vm");
    assert_eq!(
        sent,
        "sent back/vm@s1\nsent back/vm/disk@s1\nsent back/vm/one@s1\n"
    );
    assert_eq!(sums(here, "tank/vm/one@s1"), sums(there, "back/vm/one@s1"));
    check(
        there,
        "zfs get -Ho value,source sharenfs,readonly,canmount back/vm && zfs get -Ho value mountpoint back/vm",
        "off\tdefault\non\tlocal\nnoauto\tlocal\n/back/vm\n",
    );
    for (job, why) in [
        (
            "--from tank/vm --to peer://vault/back/private",
            "peer 'vault' does not allow it: 'back/private' is none of the datasets",
        ),
        (
            "--from peer://vault/back/vm --to tank/copy",
            "it was not invited with --pull",
        ),
        (
            "--from tank/vm --to peer://vault/back/vm/new -o mountpoint=/etc",
            "mountpoint of 'back/vm/new' is changed where that is",
        ),
        (
            "--from tank/vm --to peer://nobody/back/vm",
            "there is no peer 'nobody'",
        ),
    ] {
        let refused = here.run(&format!(
            "sanbox replication create j {job} && sanbox replication pause j && sanbox replication run j; sanbox replication remove j > out"
        ));
        assert!(refused.contains(why), "{job}: {refused}");
    }
    let failover = here.run("sanbox replication failover vm");
    assert!(
        failover.contains("it was not invited with --failover"),
        "{failover}"
    );

    // What connects and says nothing, or nonsense, is in the way of none.
    let address = format!("127.0.0.1:{}", both.port);
    let mut silent: Vec<_> = (0..60)
        .filter_map(|_| TcpStream::connect(&address).ok())
        .collect();
    for (at, stream) in silent.iter_mut().enumerate().filter(|(at, _)| at % 2 == 0) {
        let _ = stream.write_all(&[u8::try_from(at).expect("small"); 300]);
    }
    let compress = |how: &str, shown: &str| {
        let shown = format!("compress   {shown}\n");
        let change = format!("sanbox replication change vm --compress '{how}'");
        check(
            here,
            &format!("{change} && sanbox replication show vm | grep ^compress"),
            &shown,
        );
    };
    compress("off", "off");
    compress("", "zstd-1, what becomes smaller by it");
    compress("zstd-9", "zstd-9, what becomes smaller by it");
    check(here, "zfs snapshot tank/vm@s2", "");
    check(here, "sanbox replication run vm", "sent back/vm@s2\n");
    drop(silent);

    // Removed: cut off, with words.
    let in_use = here.run("sanbox peer remove vault");
    assert!(in_use.contains("in use by the job 'vm'"), "{in_use}");
    check(
        there,
        "sanbox peer rename box office && sanbox peer remove office",
        "",
    );
    let cut = here.run("sanbox replication run vm");
    assert!(cut.contains("peer 'vault' cannot be reached"), "{cut}");
    both.judged();
}

/// Who answers with another certificate is not the peer, and who comes with another one is none; paired anew, the job goes on.
#[test]
fn an_appliance_that_was_set_up_anew_is_paired_anew() {
    let mut both = Appliances::new();
    let code = both.invite("box --datasets back --push");
    assert!(both.add("vault", &code).contains("sends to back"));
    check(
        &both.here,
        "zfs snapshot tank/vm@s1 && sanbox replication create vm --from tank/vm --to peer://vault/back/vm && \
         sanbox replication pause vm && sanbox replication run vm",
        "sent back/vm@s1\n",
    );
    both.there.stop();
    let identity = both.there.path("state/replication-identity.pem");
    let before = std::fs::read(&identity).expect("an identity");
    std::fs::remove_file(&identity).expect("removed");
    both.serve_there();
    let other = both.here.run("sanbox replication run vm");
    assert!(
        other.contains("has another certificate than the peer that was paired"),
        "{other}"
    );
    both.there.stop();
    std::fs::write(&identity, before).expect("written");
    both.serve_there();
    check(&both.here, "sanbox replication run vm", "");

    both.here.stop();
    std::fs::remove_file(both.here.path("state/replication-identity.pem")).expect("removed");
    both.serve_here();
    let unknown = both.here.run("sanbox replication run vm");
    assert!(
        unknown.contains("it does not know this appliance"),
        "{unknown}"
    );
    check(&both.there, "sanbox peer remove box", "");
    let code = both.invite("box --datasets back --push");
    assert!(both.add("vault", &code).contains("sends to back"));
    check(
        &both.here,
        "zfs snapshot tank/vm@s2 && sanbox replication run vm && sanbox config export | grep -c 'name = .vault'",
        "sent back/vm@s2\n1\n",
    );
    both.judged();
}

/// Jobs in both directions while either daemon is killed again and again: in the end both trees are equal, a stream that was cut off was gone
/// on with, and OpenZFS finds nothing.
#[test]
fn two_appliances_that_are_killed_by_turns_have_equal_trees_in_the_end() {
    let mut both = Appliances::new();
    let code = both.invite("box --datasets back --push --pull");
    let added = both.add("vault", &code);
    assert!(added.contains("sends to and takes from back"), "{added}");
    check(
        &both.here,
        "head -c 5000000 /dev/urandom > f && sanbox put f tank/vm/one:/big && \
         sanbox replication create push --from tank/vm --to peer://vault/back/vm -r --every 1s --take --bandwidth 3M && \
         sanbox replication create pull --from peer://vault/back/x --to tank/x -r --every 1s --bandwidth 3M",
        "",
    );
    let mut was_resumable = false;
    for round in 0..10_u64 {
        let put = |pool: &str| {
            format!("head -c 900000 /dev/urandom > f && sanbox put f {pool}:/f{round}")
        };
        check(&both.here, &put("tank/vm/one"), "");
        check(
            &both.there,
            &format!("{} && zfs snapshot -r back/x@s{round}", put("back/x/y")),
            "",
        );
        sleep(Duration::from_millis(100 + 170 * round % 900));
        let token = |place: &Place, name: &str| {
            place
                .run(&format!("zfs get -Ho value receive_resume_token {name}"))
                .contains("1-")
        };
        if round % 2 == 0 {
            both.here.kill();
            // Its own pool is open there: asked without a daemon.
            was_resumable |= token(&both.here, "tank/x/y");
            both.serve_here();
        } else {
            both.there.kill();
            was_resumable |= token(&both.there, "back/vm/one");
            both.serve_there();
        }
    }
    assert!(was_resumable);
    let newest = || {
        let listed = both
            .here
            .run("zfs list -Ht snapshot -o name -s createtxg -d 1 tank/vm/one | tail -n 1");
        listed.trim().trim_start_matches("tank/vm/one").to_owned()
    };
    wait_until(&both.here, "both jobs are complete", || {
        let list = both.here.run("sanbox replication list -H");
        let is_there = |place: &Place, name: &str| {
            place.run(&format!("zfs list -H -o name {name}")) == format!("{name}\n")
        };
        // Once nothing is written beyond it, the newest snapshot stays the newest.
        list.matches("\tcomplete").count() == 2
            && both.here.run("zfs get -Hpo value written tank/vm/one") == "0\n"
            && is_there(&both.here, "tank/x/y@s9")
            && is_there(&both.there, &format!("back/vm/one{}", newest()))
    });
    let last = newest();
    assert_eq!(
        sums(&both.here, &format!("tank/vm/one{last}")),
        sums(&both.there, &format!("back/vm/one{last}"))
    );
    for name in ["x/y@s0", "x/y@s9", "x@s5"] {
        assert_eq!(
            sums(&both.there, &format!("back/{name}")),
            sums(&both.here, &format!("tank/{name}")),
            "{name}"
        );
    }
    both.judged();
}

/// The copy that is taken from a peer stands in for it while that is down, and what was written meanwhile goes back there, as differences: all of
/// it with the rights of a peer.
#[test]
fn a_copy_stands_in_for_its_peer_and_what_was_written_goes_back_there() {
    let mut both = Appliances::new();
    let code = both.invite("box --datasets back/x --push --pull");
    assert!(
        both.add("vault", &code)
            .contains("sends to and takes from back/x")
    );
    check(
        &both.there,
        "seq 9 > f && sanbox put f back/x/y:/f && zfs set sharenfs=ro back/x && zfs snapshot -r back/x@s1",
        "",
    );
    check(
        &both.here,
        "sanbox replication create x --from peer://vault/back/x --to tank/x -r --every 1h",
        "",
    );
    wait_until(&both.here, "the first run", || {
        both.here
            .run("sanbox replication list -H")
            .contains("\tcomplete")
    });
    check(&both.there, "seq 99 > f && sanbox put f back/x/y:/lost", "");
    both.there.kill();
    let turned = both.here.run("sanbox replication failover x");
    assert!(
        turned.contains("what was written since the last run is not in the copy"),
        "{turned}"
    );
    assert_eq!(turned.matches(" is writable\n").count(), 2, "{turned}");
    check(
        &both.here,
        "seq 7 > f && sanbox put f tank/x/y:/here && zfs create tank/x/new && sanbox put f tank/x/new:/g",
        "",
    );
    let unreachable = both.here.run("sanbox replication failback x --rollback");
    assert!(
        unreachable.contains("peer 'vault' cannot be reached"),
        "{unreachable}"
    );
    both.serve_there();
    // What the peer has that was never in the copy is given up only when that is said.
    let diverged = both.here.run("sanbox replication failback x");
    assert!(
        diverged.contains("'back/x/y' was written to after @s1"),
        "{diverged}"
    );
    let sent = both.here.run("sanbox replication failback x --rollback");
    assert!(
        sent.contains("sent back/x/y@replica-x-")
            && sent.contains("sent back/x/new@replica-x-")
            && !sent.contains("[1]"),
        "{sent}"
    );
    check(
        &both.there,
        "sanbox cat back/x/y:/here | tail -n 1 && sanbox cat back/x/new:/g | tail -n 1; sanbox cat back/x/y:/lost >/dev/null 2>&1 || echo gone; \
         zfs get -Ho value,source readonly,org.sanbox:replication back/x back/x/y back/x/new",
        "7\n7\ngone\noff\tdefault\n-\t-\noff\tdefault\n-\t-\noff\tdefault\n-\t-\n",
    );
    check(
        &both.here,
        "zfs get -Ho value readonly,canmount tank/x/new tank/x",
        "on\nnoauto\non\nnoauto\n",
    );
    // And on as before.
    check(
        &both.there,
        "sanbox put f back/x/new:/h && zfs snapshot -r back/x@s2",
        "",
    );
    let sent = both.here.run("sanbox replication run x");
    assert_eq!(sent.matches("@s2\n").count(), 3, "{sent}");
    assert_eq!(
        sums(&both.there, "back/x/new@s2"),
        sums(&both.here, "tank/x/new@s2")
    );
    both.judged();
}

/// What is written is at the peer some seconds later, and is taken from there some seconds later; while nothing is written nothing is done.
#[test]
fn continuous_jobs_follow_pools_over_the_wire_in_both_directions() {
    let both = Appliances::new();
    let (here, there) = (&both.here, &both.there);
    let code = both.invite("box --datasets back --push --pull");
    assert!(both.add("vault", &code).contains("sends to and takes from"));
    check(
        here,
        "sanbox replication create push --from tank/vm --to peer://vault/back/vm -r --continuous && \
         sanbox replication create pull --from peer://vault/back/x --to tank/x -r --continuous",
        "",
    );
    for round in 0..3 {
        let put = format!("head -c 2000000 /dev/urandom > f{round} && sanbox put f{round}");
        check(here, &format!("{put} tank/vm/one:/f{round}"), "");
        check(there, &format!("{put} back/x/y:/f{round}"), "");
        let written = Instant::now();
        let same = |from: &Place, to: &Place, dataset: &str| {
            to.run(&format!(
                "sanbox get {dataset}:/f{round} copy >/dev/null 2>&1 && cmp {}/f{round} copy && rm copy && echo same; rm -f copy",
                from.work()
            )) == "same\n"
        };
        wait_until(here, "the files at the other sides", || {
            same(here, there, "back/vm/one") && same(there, here, "tank/x/y")
        });
        assert!(written.elapsed() < Duration::from_secs(30));
    }
    wait_until(here, "runs that are complete", || {
        here.run("sanbox replication list -H")
            .matches("complete")
            .count()
            == 2
    });
    // Both pools stand still, and the copy is known to be of now.
    sleep(Duration::from_secs(3));
    let state = |place: &Place, pool: &str| {
        place.run(&format!(
            "zfs list -Hpt all -o name,createtxg,written -r {pool}"
        ))
    };
    let as_of = || {
        let shown = here.run("sanbox replication show pull");
        let line = shown.lines().find(|line| line.starts_with("as of"));
        line.expect("known").to_owned()
    };
    let (before, known) = ((state(here, "tank"), state(there, "back")), as_of());
    sleep(Duration::from_secs(4));
    assert_eq!((state(here, "tank"), state(there, "back")), before);
    assert!(as_of() > known, "{known}");
    both.judged();
}

/// Either side is killed in the middle of runs, and both have the same afterwards: three rounds of what `tests/interop/kill-replication.sh` does
/// 200 times with 100 datasets.
#[test]
fn either_side_is_killed_in_the_middle_of_runs() {
    let place = Place::new();
    let script = tests::root().join("tests/interop/kill-replication.py");
    let said = place.run(&format!(
        "python3 {} --work $PWD --sanbox $(command -v sanbox) --rounds 3 --datasets 16 --look 3",
        script.display()
    ));
    assert!(
        said.starts_with("3 rounds, 16 datasets: ") && said.contains("looks 1"),
        "{said}"
    );
    if oracle::has_zdb() {
        for (side, pool) in [("source", "tank"), ("target", "back")] {
            let disks = place.path("work").join(side).join("disks");
            oracle::zdb_clean(&disks, pool).expect("zdb finds nothing");
        }
    }
}
