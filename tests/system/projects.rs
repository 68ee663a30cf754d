//! Goal: projects can be given to files and directories, are passed on to what is made there, counted and limited. Method: `zfs project` with and
//! without a daemon, on mounts, by `chattr -p`, beside quotas; zdb compares what is counted with what is there.

use tests::oracle;

use crate::cli::Place;
use crate::snapdir::can_mount;

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

#[test]
fn mounts_have_flags_and_projects_of_files() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let check = |line: &str, expect: &str| {
        assert_eq!(place.run(&format!("exec 2>&1; {line}")), expect, "{line}");
    };
    check(
        "truncate -s 256M disk && zpool create -O mountpoint=$PWD/m -O compression=off tank $PWD/disk && zfs mount -a; \
         mkdir m/d m/e; echo a > m/d/f; lsattr -p m/d; lsattr m/d; lsattr -d m/d | tr -d -",
        "    0 ---------------------- m/d/f\n---------------------- m/d/f\n m/d\n",
    );
    // A directory gives its project to what is made in it, and takes nothing of another one but a copy.
    check(
        "chattr -p 7 m/d && chattr +P m/d && chattr -p 7 m/d/f && echo b > m/d/g && mkdir m/d/sub && lsattr -p m/d | tr -d - | LC_ALL=C sort; \
         lsattr -pd m/d | tr -d -; zfs project -d m/d; zfs project m/d/g",
        "    7  m/d/f\n    7  m/d/g\n    7 P m/d/sub\n    7 P m/d\n    7 P m/d\n    7 - m/d/g\n",
    );
    check(
        "echo c > m/e/h; ln m/e/h m/d/h; python3 -c 'import os; os.rename(\"m/e/h\", \"m/d/h\")' 2>&1 | grep -o 'Errno 18'; \
         mv m/e/h m/d/h; lsattr -p m/d/h | tr -d -; cat m/d/h; ls m/e",
        "ln: failed to create hard link 'm/d/h' => 'm/e/h': Invalid cross-device link\nErrno 18\n    7  m/d/h\nc\n",
    );
    check(
        "zfs set projectquota@7=2M tank; zpool sync tank; head -c 4000000 /dev/zero > m/d/more; zpool sync tank; echo x > m/d/n; \
         echo y > m/e/n && cat m/e/n; rm m/d/more; zfs set projectquota@7=none tank",
        "head: error writing 'standard output': Disk quota exceeded\nsh: 1: cannot create m/d/n: Disk quota exceeded\ny\n",
    );
    check(
        "zfs project -C -r m/d; lsattr -pd m/d m/d/f | tr -d -",
        "    0  m/d\n    0  m/d/f\n",
    );
    // Flags that OpenZFS has not are refused.
    check(
        "chattr +c m/d/f; chattr +id m/d/f && lsattr m/d/f | tr -d -; echo no >> m/d/f; rm -f m/d/f; chmod 600 m/d/f; \
         chattr -i m/d/f && echo yes >> m/d/f && cat m/d/f",
        "chattr: Operation not supported while setting flags on m/d/f\nid m/d/f\nsh: 1: cannot create m/d/f: Operation not permitted\n\
         rm: cannot remove 'm/d/f': Operation not permitted\nchmod: changing permissions of 'm/d/f': Operation not permitted\na\nyes\n",
    );
    check(
        "chattr +a m/d/g; echo no > m/d/g; echo yes >> m/d/g && cat m/d/g; rm -f m/d/g; chattr +p x m/d/g 2>/dev/null; chattr -a m/d/g; rm m/d/g",
        "sh: 1: cannot create m/d/g: Operation not permitted\nb\nyes\nrm: cannot remove 'm/d/g': Operation not permitted\n",
    );
    // Another user may change neither what is not theirs nor what only root may.
    check(
        "chmod 777 m m/d; touch m/d/own; chown 1000 m/d/own; for f in f own; do for flag in +d +i; do \
         setpriv --reuid 1000 --clear-groups chattr $flag m/d/$f >/dev/null 2>&1; echo $?; done; done; lsattr m/d/own | tr -d -",
        "1\n1\n0\n1\nd m/d/own\n",
    );
    // What was set is on disk, also by way of the log.
    check("chattr +P m/e; chattr -p 9 m/e; sync m/e", "");
    place.kill();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let check = |line: &str, expect: &str| {
        assert_eq!(place.run(&format!("exec 2>&1; {line}")), expect, "{line}");
    };
    check(
        "zfs mount -a; lsattr -pd m/e m/d/own | tr -d -",
        "    9 P m/e\n    0 d m/d/own\n",
    );
    check(
        "truncate -s 128M old.disk && zpool create -o feature@project_quota=disabled -O mountpoint=$PWD/old old $PWD/old.disk && zfs mount -a; \
         touch old/f; chattr -p 3 old/f; mkdir old/d; chattr +P old/d; chattr +d old/f && lsattr old/f | tr -d -",
        "chattr: Operation not supported while setting project on old/f\nchattr: Operation not supported while setting flags on old/d\nd old/f\n",
    );
    place.stop();
}
