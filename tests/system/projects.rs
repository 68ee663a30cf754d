//! Goal: projects can be given to files and directories, are passed on to what is made there, counted and limited. Method: `zfs project` with and
//! without a daemon, beside quotas; zdb compares what is counted with what is there.

use tests::oracle;

use crate::cli::Place;

#[test]
fn projects_are_set_listed_checked_and_cleared() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none -O compression=off tank $PWD/disk && zfs create tank/fs && \
         head -c 1000000 /dev/urandom > f && sanbox mkdir tank/fs:/d && sanbox mkdir tank/fs:/d/e && sanbox put f tank/fs:/d/one && \
         sanbox put f tank/fs:/d/e/two && sanbox put f tank/fs:/three",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    assert_eq!(
        place.run(
            "zfs project tank/fs:/d | sort; zfs project -d tank/fs:/d; zfs project tank/fs:/three"
        ),
        "    0 - tank/fs:/d\n    0 - tank/fs:/d/e\n    0 - tank/fs:/d/one\n    0 - tank/fs:/d\n    0 - tank/fs:/three\n"
    );
    assert_eq!(
        place.run("zfs project -p 100 -rs tank/fs:/d; zpool sync tank"),
        ""
    );
    let listed = place.run(
        "sanbox put f tank/fs:/d/e/new; sanbox mkdir tank/fs:/d/dir; \
         zfs project -r tank/fs:/d | sort -k 3",
    );
    assert_eq!(
        listed,
        "  100 P tank/fs:/d\n  100 P tank/fs:/d/dir\n  100 P tank/fs:/d/e\n\
         \x20 100 - tank/fs:/d/e/new\n  100 P tank/fs:/d/e/two\n  100 P tank/fs:/d/one\n"
    );
    // Checked against the directory's own.
    let checked = place.run(
        "zfs project -p 7 tank/fs:/d/one; zfs project -c -r tank/fs:/d; \
         zfs project -c -0 tank/fs:/d | tr '\\0' '!'; zfs project -c -p 3 tank/fs:/three",
    );
    assert_eq!(
        checked,
        "tank/fs:/d/one - project ID is not set properly (7/100)\ntank/fs:/d/e/new - project inherit flag is not set\ntank/fs:/d/one!\
         tank/fs:/three - project ID is not set properly (0/3)\ntank/fs:/three - project inherit flag is not set\n"
    );
    let space = place.run("zpool sync tank; zfs projectspace -Hp -o name,used tank/fs");
    let used = |id: &str| {
        let line = space
            .lines()
            .find(|line| line.split('\t').next() == Some(id));
        line.and_then(|line| line.split('\t').nth(1)?.parse::<u64>().ok())
    };
    assert!(
        used("100").is_some_and(|bytes| bytes > 2_000_000),
        "{space}"
    );
    assert!(used("7").is_some_and(|bytes| bytes > 1_000_000), "{space}");
    let full = place.run(
        "zfs set projectquota@100=2M tank/fs; zpool sync tank; \
         sanbox put f tank/fs:/d/more; echo $?; sanbox put f tank/fs:/more; echo $?",
    );
    assert!(
        full.contains("disk quota exceeded") && full.starts_with("1\n0\n"),
        "{full}"
    );
    let cleared = place.run("zfs set projectquota@100=none tank/fs; zfs project -C -k -r tank/fs:/d; zfs project -d tank/fs:/d; \
         zfs project -C -r tank/fs:/d; zfs project -d tank/fs:/d");
    assert_eq!(cleared, "  100 - tank/fs:/d\n    0 - tank/fs:/d\n");
    let wrong = place.run(
        "zfs project; zfs project -k tank/fs:/d; zfs project -c -s tank/fs:/d; zfs project -p x tank/fs:/d; zfs project -p 4294967295 tank/fs:/d; \
         zfs project -r tank/fs:/three; zfs project tank/fs:/nothing; zfs project /nowhere",
    );
    for words in [
        "missing file or directory target(s)",
        "'-k' is only valid together with '-C'",
        "cannot specify '-C' '-c' '-s' together",
        "project ID must be less than 4294967295",
        "invalid project ID",
        "'-r' option on non-dir target tank/fs:/three",
        "failed to stat tank/fs:/nothing",
        "failed to stat /nowhere",
    ] {
        assert!(wrong.contains(words), "{words}: {wrong}");
    }
    place.stop();
    assert_eq!(
        place.run("zfs project -p 5 -rs tank/fs:/d && zpool export tank"),
        ""
    );
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    oracle::accounts_agree(&[place.path("work").join("disk")])
        .expect("each project has the space of its files");
}
