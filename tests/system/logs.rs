//! Goal: the daemon's log says when, how grave, and where from; what a start found; who asked for what is not served.
//! Method: a daemon is set up, asked, told, killed and started again, and its standard error is read.

use std::io::Write as _;
use std::process::Command;

use tests::free_port;

use crate::cli::{Place, wait_for};
use crate::rpc::{Client, Xdr, marked, message};

/// Waits until the log has a line that holds all of `words`; returns it.
fn logged(place: &Place, words: &[&str]) -> String {
    wait_for(&format!("a line with {words:?}"), || {
        let log = place.log();
        let mut lines = log.lines();
        let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
        found.map(str::to_owned).ok_or_else(|| log.clone())
    })
}

fn configure(place: &Place, text: &str) {
    std::fs::create_dir_all(place.path("state")).expect("a directory");
    std::fs::write(place.path("state/sanbox.toml"), text).expect("a configuration");
}

fn hang_up(place: &Place) {
    let told = Command::new("kill")
        .arg("-HUP")
        .arg(place.pid().to_string())
        .status();
    assert!(told.expect("kill runs").success());
}

#[test]
fn lines_have_time_level_and_module() {
    let mut place = Place::new();
    configure(&place, "[log]\nlevel = 'warn,sanbox=info'\n");
    let port = free_port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
    let ready = logged(&place, &["sanbox: ready"]);
    let (time, rest) = ready.split_once(' ').expect("a time");
    assert!(
        time.len() == 27 && time.ends_with('Z') && time.contains('T'),
        "{ready}"
    );
    assert_eq!(rest.trim_start(), "INFO sanbox: ready");

    // Levels change while it runs.
    assert_eq!(place.run("sanbox log"), "warn,sanbox=info\n");
    assert_eq!(
        place.run("sanbox log nfs=debug,control=debug; sanbox log"),
        "warn,control=debug,nfs=debug,sanbox=info\n"
    );
    logged(
        &place,
        &["DEBUG control: sanbox log by ", "(0)", "exit code 0"],
    );
    assert!(
        place
            .run("sanbox log loud")
            .starts_with("! 'loud' is not a level"),
        "a level is checked"
    );
    assert!(
        place
            .run("sanbox log afp=info")
            .starts_with("! 'afp' is not a module"),
        "a module is checked"
    );
    assert_eq!(place.run("sanbox log control=info"), "");
    // A client that speaks NFSv2 is told which versions there are, and so is the log, once.
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut client = Client::new(address);
    for xid in 1..4 {
        let call = marked(&message(xid, (100_003, 2), 0, &Xdr::default()));
        client.stream.write_all(&call).expect("sent");
        let answer = client.receive().expect("an answer");
        // Accepted, of a program whose versions 3 and 4 are there: RFC 5531, section 9.
        assert_eq!(answer[20..], [0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
    }
    logged(&place, &["WARN nfs: 127.0.0.1 asked for NFSv2"]);
    drop(client);
    logged(&place, &["DEBUG nfs: 127.0.0.1:", "is connected"]);
    logged(&place, &["DEBUG nfs: 127.0.0.1:", "is disconnected"]);

    // The configuration is read again; a mistake changes nothing.
    configure(
        &place,
        "[log]\nlevel = 'debug'\n[nfs]\nport = 1\n[tuning]\nl2arc_write_max = '32M'\n",
    );
    hang_up(&place);
    logged(
        &place,
        &["INFO sanbox: SIGHUP: the configuration was read again"],
    );
    logged(
        &place,
        &["WARN sanbox: changes of [nfs] take effect at the next start"],
    );
    assert_eq!(
        place.run("sanbox log; sanbox tune -H | grep l2arc_write_max"),
        "debug\nl2arc_write_max\t33554432\n"
    );
    configure(&place, "[log]\nlevel = 'quiet'\n");
    hang_up(&place);
    logged(
        &place,
        &[
            "ERROR sanbox: SIGHUP: [log] level: 'quiet' is not a level",
            "nothing is changed",
        ],
    );
    assert_eq!(place.run("sanbox log"), "debug\n");
    assert_eq!(
        place.log().matches("asked for NFSv2").count(),
        1,
        "{}",
        place.log()
    );
    configure(&place, "");
    place.stop();
    let log = place.log();
    assert!(
        log.contains("INFO sanbox: ending on SIGTERM") && log.ends_with("INFO sanbox: ended\n"),
        "{log}"
    );
    assert!(!log.contains("did not end in order"), "{log}");
}

#[test]
fn a_start_after_a_kill_says_what_it_replayed() {
    let mut place = Place::new();
    let port = free_port().to_string();
    let flags = ["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"];
    place.run("truncate -s 256M a && zpool create tank $PWD/a && zfs create tank/fs && zfs set sharenfs=rw,root=127.0.0.1 tank/fs");
    place.serve(&flags);
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut client = Client::new(address);
    let root = client.mount("/tank/fs");
    // Whatever txg ends meanwhile: some of these are in the log alone.
    for number in 0..40 {
        let file = client.create(&root, &format!("f{number}"));
        assert_eq!(client.write(&file, 0, &[7; 4096], 2), 0);
    }
    place.kill();
    drop(client);
    place.serve(&[&flags[..], &["--log-format", "json"]].concat());
    let unclean = logged(&place, &["the last run did not end in order"]);
    assert!(
        unclean.contains("\"level\":\"WARN\"") && unclean.starts_with('{'),
        "{unclean}"
    );
    // A log is replayed when its dataset is first needed.
    Client::new(address).mount("/tank/fs");
    let replayed = logged(
        &place,
        &["intent log of tank/fs: ", " records replayed in "],
    );
    assert!(
        replayed.ends_with('}') && replayed.contains("\"target\":\"sanbox\""),
        "{replayed}"
    );
    place.stop();
    place.serve(&flags);
    Client::new(address).mount("/tank/fs");
    let log = place.log();
    assert!(
        !log.contains("did not end in order") && !log.contains("replayed in"),
        "{log}"
    );
}

#[test]
fn a_level_that_is_none_starts_nothing() {
    let place = Place::new();
    assert_eq!(
        place.run("sanbox serve --log-level loud"),
        "! sanbox: log level: 'loud' is not a level (off, error, warn, info, debug or trace)\n[1]\n"
    );
    assert_eq!(
        place.run("sanbox serve --log-format xml"),
        "! sanbox: --log-format xml: neither text nor json\n[1]\n"
    );
    assert!(place.run("sanbox log").contains("no daemon runs"));
}
