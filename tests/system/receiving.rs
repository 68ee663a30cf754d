//! `zfs receive` with its options: packages of several datasets with their properties, clones, receives that were interrupted. The
//! streams are those that OpenZFS made; `zdb` and OpenZFS's `zstream` judge what became of them.

use std::fs;

use tests::golden::Golden;
use tests::oracle;

use crate::cli::Place;
use crate::streams::{named, sums, unpack};

/// A place with an empty pool `tank`, and the pool that the golden streams were made of, read only.
fn pools() -> (Place, Golden) {
    let golden = Golden::unpack("s-send").expect("unpack the golden pool");
    let place = Place::new();
    let import = format!(
        "zpool import -d {} -o readonly=on -N s-send && truncate -s 512M disk && \
         zpool create -O mountpoint=none tank $PWD/disk",
        golden.directory().display()
    );
    assert_eq!(place.run(&import), "");
    (place, golden)
}

fn judged(place: &Place) {
    assert_eq!(place.run("zpool export tank"), "");
    let images = [place.path("work").join("disk")];
    if oracle::refpool().is_some() {
        oracle::accounts_agree(&images).expect("the accounts are right");
    }
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

/// What is below a dataset, with what a clone is of, under the names of the sender.
fn tree(place: &Place, top: &str) -> String {
    let listed = place.run(&format!(
        "zfs list -Hpo name,guid -t snapshot -r {top} | sort; \
         zfs list -Hpo name,origin -t filesystem,volume -r {top} | sort"
    ));
    listed.replace(top, "TOP")
}

const TOP: &str = "s-send/top";

#[test]
fn packages_are_received_with_properties_and_clones() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let stream = |name: &str| named(&streams, name);
    let first = place.run(&format!(
        "zfs receive -v -u tank/top < {} | sed 's/received .*/received/'; \
         zfs get -Hpo name,property,value,received,source compression,org.example:p,quota tank/top tank/top/kid",
        stream("R-top-r1")
    ));
    let expect = "receiving full stream of s-send/top@r1 into tank/top@r1\nreceived\n\
                  receiving full stream of s-send/top/kid@r1 into tank/top/kid@r1\nreceived\n\
                  receiving full stream of s-send/top/v@r1 into tank/top/v@r1\nreceived\n\
                  tank/top\tcompression\tgzip\tgzip\treceived\n\
                  tank/top\torg.example:p\t1\t1\treceived\n\
                  tank/top\tquota\t0\t-\tdefault\n\
                  tank/top/kid\tcompression\tgzip\t-\tinherited from tank/top\n\
                  tank/top/kid\torg.example:p\t1\t-\tinherited from tank/top\n\
                  tank/top/kid\tquota\t52428800\t52428800\tlocal\n";
    assert_eq!(first, expect);
    let second = place.run(&format!("zfs receive -u tank/top < {}", stream("R-incr")));
    assert_eq!(second, "");
    // In one piece, and under other names.
    let whole = place.run(&format!(
        "zfs create tank/d && zfs create tank/e && zfs receive -d -u tank/d < {0} && zfs receive -e -u tank/e < {0}",
        stream("R-top-r2")
    ));
    assert_eq!(whole, "");
    let expect = tree(&place, TOP);
    for top in ["tank/top", "tank/d/top", "tank/e/top"] {
        let ours = tree(&place, top);
        if top == "tank/top" {
            assert_eq!(ours, expect, "{top}");
        }
        for below in ["@r2", "/kid@r2", "/late@r2", "/clone@r2", "/v@r2"] {
            assert_eq!(
                sums(&place, &format!("{top}{below}")),
                sums(&place, &format!("{TOP}{below}")),
                "{top}{below}"
            );
        }
    }
    // Once more: what is there already is passed over, but for datasets that the stream would make.
    let again = place.run(&format!(
        "zfs receive -v -u tank/top < {} | grep -c ignoring",
        stream("R-incr")
    ));
    assert_eq!(
        again,
        "3\n! cannot receive new filesystem stream: destination 'tank/top/late' exists\n! must specify -F to overwrite it\n"
    );
    judged(&place);
}

#[test]
fn renames_destroys_and_promotions_follow_a_replication_stream() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let stream = |name: &str| named(&streams, name);
    let made = place.run(&format!("zfs receive -u tank/top < {}", stream("R-top-r1")));
    assert_eq!(made, "");
    // What happened here in between: renamed, added, promoted.
    let changed = place.run(
        "zfs rename tank/top/kid tank/top/child && zfs rename tank/top/v@r1 tank/top/v@old && \
         zfs create tank/top/extra && zfs snapshot tank/top@mine && zfs snapshot tank/top/extra@mine",
    );
    assert_eq!(changed, "");
    let received = place.run(&format!(
        "zfs receive -v -F -u tank/top < {} | grep -v '^receiv'",
        stream("R-incr")
    ));
    for line in [
        "attempting rename tank/top/child to tank/top/kid\nsuccess\n",
        "attempting rename tank/top/v@old to tank/top/v@r1\nsuccess\n",
        "attempting destroy tank/top@mine\nsuccess\n",
        "attempting destroy tank/top/extra@mine\nsuccess\n",
        "attempting destroy tank/top/extra\nsuccess\n",
        "found clone origin tank/top/kid@r1\n",
    ] {
        assert!(received.contains(line), "{line} in {received}");
    }
    assert_eq!(tree(&place, "tank/top"), tree(&place, TOP));
    judged(&place);
}

#[test]
fn options_say_where_and_with_what() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let stream = |name: &str| named(&streams, name);
    let check = |line: String, expect: &str| assert_eq!(place.run(&line), expect, "{line}");
    let (full, props) = (stream("full"), stream("full-props"));
    check(
        format!("zfs receive -nv tank/fs < {full}; zfs list -Ho name"),
        "would receive full stream of s-send/fs@a into tank/fs@a\ns-send\ns-send/big\ns-send/dn\ns-send/enc\n\
         s-send/fs\ns-send/left-partial\ns-send/redacted\ns-send/top\ns-send/top/clone\ns-send/top/kid\n\
         s-send/top/late\ns-send/top/v\ns-send/vol\ntank\n",
    );
    check(
        format!(
            "zfs receive -u -o atime=off -o m:mine=here -x compression tank/fs@z < {props}; \
             zfs get -Hpo property,value,received,source compression,atime,m:mine tank/fs; zfs list -Ho name -t snapshot -r tank/fs"
        ),
        "compression\ton\t-\tdefault\natime\toff\t-\tlocal\nm:mine\there\t-\tlocal\ntank/fs@z\n",
    );
    // A dataset without snapshots is overwritten with -F only; what is below it stays.
    check(
        format!(
            "zfs create tank/old && zfs create tank/old/below && printf x > x && sanbox put x tank/old:/x; \
             zfs receive -u tank/old < {full}; zfs receive -F -u tank/old < {full} && sanbox ls tank/old:/ | grep -c '^x$'; \
             zfs list -Ho name -t all -r tank/old"
        ),
        "0\ntank/old\ntank/old@a\ntank/old/below\n\
         ! cannot receive new filesystem stream: destination 'tank/old' exists\n! must specify -F to overwrite it\n",
    );
    assert_eq!(sums(&place, "tank/old@a"), sums(&place, "s-send/fs@a"));
    // A whole stream as a clone: what it shares with the origin is not written again by name of another dataset.
    check(
        format!(
            "zfs receive -u -o origin=tank/old@a tank/copy@b < {full}; zfs get -Hpo value origin tank/copy"
        ),
        "tank/old@a\n",
    );
    assert_eq!(sums(&place, "tank/copy@b"), sums(&place, "s-send/fs@a"));
    // With -F, an older snapshot may be what the stream counts from; those after it go.
    check(
        format!(
            "zfs snapshot tank/old@later; printf y > y; sanbox put y tank/old:/y; zfs snapshot tank/old@last; \
             zfs destroy -R tank/copy; zfs receive -u tank/old < {0}; zfs receive -F -u tank/old < {0}; zfs list -Ho name -t snapshot -r tank/old",
            stream("incr-a-b")
        ),
        "tank/old@a\ntank/old@b\n\
         ! cannot receive incremental stream: destination tank/old has been modified\n! since most recent snapshot\n",
    );
    assert_eq!(sums(&place, "tank/old@b"), sums(&place, "s-send/fs@b"));
    judged(&place);
}

#[test]
fn refusals_are_those_of_openzfs() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let full = named(&streams, "full");
    let incremental = named(&streams, "incr-a-b");
    let package = named(&streams, "R-top-r1");
    let made = place.run(&format!("zfs receive -u tank/fs < {full}"));
    assert_eq!(made, "");
    for (arguments, stream, expect) in [
        (
            "-d tank/none",
            &full,
            "cannot receive: specified fs (tank/none) does not exist",
        ),
        (
            "-d tank/fs@x",
            &full,
            "cannot receive: specified fs (tank/fs@x) does not exist",
        ),
        (
            "-d tank/fs@a",
            &full,
            "cannot receive: invalid argument - snapshot not allowed with -d",
        ),
        (
            "tank/top@x",
            &package,
            "cannot receive: cannot specify snapshot name for multi-snapshot stream",
        ),
        (
            "-o origin=tank/fs@none tank/x",
            &incremental,
            "cannot receive: specified origin fs (tank/fs@none) does not exist",
        ),
        (
            "-o volsize=1G tank/x",
            &full,
            "cannot receive: cannot receive: invalid property 'volsize'",
        ),
        (
            "-o volblocksize=8K tank/x",
            &full,
            "cannot receive: cannot receive: invalid property 'volblocksize'",
        ),
        (
            "-F tank/fs",
            &full,
            "cannot receive new filesystem stream: destination has snapshots (eg. tank/fs@a)\nmust destroy them to overwrite it",
        ),
        (
            "tank/none/x",
            &full,
            "cannot open 'tank/none': dataset does not exist\n\
             cannot receive new filesystem stream: unable to restore to destination",
        ),
        (
            "-A tank/fs",
            &full,
            "'tank/fs' does not have any resumable receive state to abort",
        ),
        (
            "tank/x",
            &named(&streams, "clone-origin"),
            "cannot receive: local origin for clone tank/x@r2 does not exist",
        ),
    ] {
        let shown = place.run(&format!("zfs receive {arguments} < {stream}"));
        let expect = expect.replace('\n', "\n! ");
        assert_eq!(
            shown,
            format!("! {expect}\n[1]\n"),
            "zfs receive {arguments}"
        );
    }
    let left = place.run("zfs list -Ho name -t all -r tank");
    assert_eq!(left, "tank\ntank/fs\ntank/fs@a\n");
}

/// The token of a receive that did not end, and its contents as OpenZFS's own code reads them (empty where it is not there).
fn token_contents(place: &Place, dataset: &str) -> (String, String) {
    let token = place.run(&format!(
        "zfs get -Hpo value receive_resume_token {dataset}"
    ));
    let token = token.trim().to_owned();
    if oracle::refpool().is_none() {
        return (token, String::new());
    }
    let contents = oracle::refpool_token(&token).expect("OpenZFS reads the token");
    // Ours prints what OpenZFS's code prints.
    let ours = place.run(&format!("sanbox zstream token {token}"));
    assert_eq!(ours, contents);
    (token, contents)
}

#[test]
fn an_interrupted_receive_goes_on_where_it_was() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let stream = |name: &str| named(&streams, name);
    // OpenZFS cut this stream, and sent the rest of it.
    let shown = place.run(&format!(
        "zfs receive -s tank/fs < {}",
        stream("resume-first")
    ));
    let (token, contents) = token_contents(&place, "tank/fs");
    let expect = format!(
        "! cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
         ! Partially received snapshot is saved.\n\
         ! A resuming stream can be generated on the sending system by running:\n\
         !     zfs send -t {token}\n[1]\n"
    );
    assert_eq!(shown, expect);
    if !contents.is_empty() {
        for line in [
            "object = 0x76",
            "offset = 0x0",
            "toguid = 0x1f8bfb1ba3a1309",
            "toname = s-send/fs@a",
            "compressok",
        ] {
            assert!(contents.contains(line), "{line} in {contents}");
        }
    }
    // Nobody gets hold of what is not whole: it would keep the rest out.
    let refused = place.run("sanbox ls tank/fs:/; zfs snapshot tank/fs@mine");
    assert_eq!(
        refused,
        "! tank/fs:/: device or resource busy\n! cannot create snapshot 'tank/fs@mine': dataset is busy\n[1]\n"
    );
    let refused = place.run(&format!("zfs receive -s tank/fs < {}", stream("full")));
    assert_eq!(
        refused,
        "! cannot receive new filesystem stream: destination 'tank/fs' exists\n! must specify -F to overwrite it\n[1]\n"
    );
    let received = place.run(&format!(
        "zfs receive -s tank/fs < {}; zfs get -Hpo value receive_resume_token tank/fs; zfs list -Ho name -t all -r tank/fs",
        stream("resume-rest")
    ));
    assert_eq!(received, "-\ntank/fs\ntank/fs@a\n");
    assert_eq!(sums(&place, "tank/fs@a"), sums(&place, "s-send/fs@a"));
    // Of an incremental stream, what came is beside the dataset.
    let incremental = fs::read(stream("incr-a-b")).expect("a golden stream");
    fs::write(
        place.path("work").join("cut"),
        &incremental[..incremental.len() / 2],
    )
    .expect("write a stream");
    let cut = place.run("zfs receive -s tank/fs < cut 2>&1 | grep -c 'zfs send -t 1-'; zfs list -Ho name -t all -r tank/fs");
    assert_eq!(cut, "1\ntank/fs\ntank/fs@a\n");
    let busy = place.run(&format!("zfs receive tank/fs < {}", stream("incr-a-b")));
    assert_eq!(
        busy,
        "! cannot receive incremental stream: destination tank/fs contains partially-complete state from \"zfs receive -s\".\n[1]\n"
    );
    // It stays over an export, until it is given up.
    let given_up = place.run(&format!(
        "zpool export tank && zpool import -d $PWD tank && zfs get -Hpo value receive_resume_token tank/fs | cut -c 1-2; \
         zfs receive -A tank/fs; zfs get -Hpo value receive_resume_token tank/fs; zfs receive tank/fs < {}; \
         zfs list -Ho name -t all -r tank/fs",
        stream("incr-a-b")
    ));
    assert_eq!(given_up, "1-\n-\ntank/fs\ntank/fs@a\ntank/fs@b\n");
    judged(&place);
}

/// File systems that are received count towards the limit above them, what increments are received into does not.
#[test]
fn file_systems_are_counted_as_they_are_received() {
    let (place, _golden) = pools();
    let counted = place.run(
        "zfs create tank/src; head -c 300000 /dev/urandom > f; zfs snapshot tank/src@a; sanbox put f tank/src:/f; zfs snapshot tank/src@b; \
         zfs create -o filesystem_limit=9 tank/limited; zfs create tank/limited/other; count='zfs get -Hpo value filesystem_count tank/limited'; \
         $count; zfs send tank/src@a | zfs receive -u tank/limited/new; $count; \
         zfs send -i @a tank/src@b > inc; head -c 100000 inc | zfs receive -su tank/limited/new 2>&1 | grep -c saved; $count; \
         zfs receive -A tank/limited/new; $count; zfs receive -u tank/limited/new < inc; $count; \
         zfs destroy -r tank/limited/new; $count",
    );
    assert_eq!(counted, "1\n2\n1\n2\n2\n2\n1\n");
    judged(&place);
}

/// A sender that cuts large blocks (without `-L`) goes on at the beginning of a block that was received in part.
#[test]
fn a_receive_that_ends_within_a_large_block_is_resumed() {
    let (place, _golden) = pools();
    let made = place.run(
        "head -c 6000000 /dev/urandom > f; zfs create -o recordsize=1M tank/src && sanbox put f tank/src:/f && \
         zfs snapshot tank/src@a && zfs send tank/src@a > sent",
    );
    assert_eq!(made, "");
    // Three places within a block and two more within each rest.
    for len in [1_700_000, 2_900_000, 3_400_000] {
        let token = "zfs get -Hpo value receive_resume_token tank/copy";
        let received = place.run(&format!(
            "head -c {len} sent | zfs receive -su tank/copy 2>&1 | grep -c 'snapshot is saved'; \
             for more in 700000 1500000; do zfs send -t $({token}) | head -c $more | \
               zfs receive -su tank/copy 2>&1 | grep -c 'snapshot is saved'; done; \
             zfs send -t $({token}) | zfs receive -su tank/copy && sanbox cat tank/copy:/f | cmp - f",
        ));
        assert_eq!(received, "1\n1\n1\n", "cut at {len}");
        assert_eq!(place.run("zfs destroy -r tank/copy"), "");
    }
    judged(&place);
}

/// What an interrupted receive left is sent on (`-S`), whole and incremental, to us and to OpenZFS's own code; the first sender's rest
/// completes it.
#[test]
fn what_a_receive_left_is_sent_on() {
    let (place, _golden) = pools();
    let made = place.run(
        "head -c 3000000 /dev/urandom > f; zfs create tank/src && sanbox put f tank/src:/f && zfs snapshot tank/src@a && \
         sanbox put f tank/src:/g && zfs snapshot tank/src@b && zfs send tank/src@a | zfs receive -u tank/inc && \
         zfs send tank/src@a | zfs receive -u tank/inc2 && \
         for t in full inc; do [ $t = full ] && from= || from='-i @a'; \
           zfs send $from tank/src@b | head -c 2000000 | zfs receive -su tank/$t 2>&1 | grep -c 'snapshot is saved'; done",
    );
    assert_eq!(made, "1\n1\n");
    let sent = place.run(
        "zfs send -nvP -S tank/full | grep -c -e toguid -e '^full'; zfs send -S tank/full > part; zfs send --saved tank/inc > inc; \
         zfs receive -su tank/full2 < part 2>&1 | grep -c 'snapshot is saved'; \
         zfs receive -su tank/inc2 < inc 2>&1 | grep -c 'snapshot is saved'; \
         sanbox zstream dump part 2>&1 | grep -c -e toname.=.tank/src@b -e 'END checksum' -e 'cut short'",
    );
    // The last: its name, and that it has no END.
    assert_eq!(sent, "2\n1\n1\n2\n");
    let object = |name: &str| token_contents(&place, name).1;
    if oracle::refpool().is_some() {
        // All of it arrived, and not more.
        let place_of = |name: &str| {
            let text = object(name);
            let line = text.lines().find(|line| line.contains("object = "));
            line.map(str::to_owned)
        };
        assert_eq!(place_of("tank/full2"), place_of("tank/full"));
        assert_eq!(place_of("tank/inc2"), place_of("tank/inc"));
    }
    let whole = place.run(
        "for d in full2 inc2; do zfs send -t $(zfs get -Hpo value receive_resume_token tank/$d) | zfs receive -su tank/$d; done",
    );
    assert_eq!(whole, "");
    for name in ["full2", "inc2"] {
        assert_eq!(
            sums(&place, &format!("tank/{name}@b")),
            sums(&place, "tank/src@b"),
            "{name}"
        );
    }
    let usage =
        |arguments: &str| place.run(&format!("zfs send {arguments} 2>&1 > out | head -n 1"));
    let incompatible = "incompatible flags combined with saved send flag\n";
    for (arguments, expect) in [
        ("-S -i @a tank/full", incompatible),
        ("-S -R tank/full", incompatible),
        ("-S -p tank/full", incompatible),
        ("-S -w tank/full", incompatible),
        (
            "-S tank/src@a",
            "saved send must specify the dataset with partially-received state\n",
        ),
        ("-S", "missing snapshot argument\n"),
        ("-S -t 1-0", "invalid flags combined with -t\n"),
        (
            "-S tank/src",
            "saved send failed: 'tank/src' has no partially-received state\n",
        ),
    ] {
        assert_eq!(usage(arguments), expect, "zfs send {arguments}");
    }
    openzfs_receives_what_was_left(&place);
    judged(&place);
}

fn openzfs_receives_what_was_left(place: &Place) {
    if oracle::refpool().is_none() {
        return;
    }
    let work = place.path("work");
    let made = place.run(
        "truncate -s 256M other && zpool create -O mountpoint=none other $PWD/other && zpool export other",
    );
    assert_eq!(made, "");
    let images = [work.join("other")];
    let take = |how: &str, file: &str| {
        let operation = format!("{how}:other/half@b={}", work.join(file).display());
        let said = oracle::refpool_does("other", &images, &[operation]);
        let said = said.expect("OpenZFS receives");
        assert!(!said.contains("error"), "{said}");
    };
    take("takes", "part");
    let rest = place.run(
        "zpool import -d $PWD other && zfs send -t $(zfs get -Hpo value receive_resume_token other/half) > rest && zpool export other",
    );
    assert_eq!(rest, "");
    take("take", "rest");
    assert_eq!(place.run("zpool import -d $PWD other"), "");
    assert_eq!(sums(place, "other/half@b"), sums(place, "tank/src@b"));
}

/// OpenZFS's own code receives what we send: whole, incremental, with blocks as they are stored, and a stream that it got half of and
/// that we go on with. (Not `-e`: OpenZFS's receivers lose an embedded spill block, as the manifest of the golden streams shows.)
#[test]
fn openzfs_receives_what_we_send() {
    if oracle::refpool().is_none() {
        return;
    }
    let (place, _golden) = pools();
    let work = place.path("work");
    let made = place.run(
        "truncate -s 512M other && zpool create -O mountpoint=none other $PWD/other && zpool export other",
    );
    assert_eq!(made, "");
    let sent = place.run(
        "zfs send s-send/fs@a > 1; zfs send -i @a s-send/fs@b > 2; zfs send -L -c s-send/fs@a > 3; \
         zfs send -L -c -i @a s-send/fs@b > 4; zfs send -L -c s-send/big@a > 5; zfs send s-send/vol@a > 6; \
         zfs send -c -i @a s-send/vol@b > 7; zfs send s-send/dn@a > 8; head -c 500000 3 > 9",
    );
    assert_eq!(sent, "");
    let images = [work.join("other")];
    let take = |operations: &[(&str, &str, &str)]| {
        let operations: Vec<String> = operations
            .iter()
            .map(|(how, name, file)| format!("{how}:other/{name}={}", work.join(file).display()))
            .collect();
        let said = oracle::refpool_does("other", &images, &operations).expect("OpenZFS receives");
        assert!(!said.contains("error"), "{said}");
    };
    take(&[
        ("take", "fs@a", "1"),
        ("take", "fs@b", "2"),
        ("take", "lec@a", "3"),
        ("take", "lec@b", "4"),
        ("take", "big@a", "5"),
        ("take", "vol@a", "6"),
        ("take", "vol@b", "7"),
        ("take", "dn@a", "8"),
        ("takes", "half@a", "9"),
    ]);
    // The other half: OpenZFS's token, our stream.
    let rest = place.run(
        "zpool import -d $PWD other && token=$(zfs get -Hpo value receive_resume_token other/half) && \
         zfs send -nvP -t $token | sed 's/bytes = .*/bytes/;s/size\t.*/size/;s/a\t.*/a/' && zfs send -t $token > 10 && zpool export other",
    );
    let expect = "resume token contents:\nnvlist version: 0\n\tobject = 0x2e1\n";
    assert!(rest.starts_with(&expect[..expect.len() - 6]), "{rest}");
    assert!(
        rest.ends_with("\tcompressok = 1\nfull\ts-send/fs@a\nsize\n"),
        "{rest}"
    );
    take(&[("take", "half@a", "10")]);
    assert_eq!(place.run("zpool import -d $PWD other"), "");
    for (theirs, ours) in [
        ("fs@a", "fs@a"),
        ("fs@b", "fs@b"),
        ("lec@a", "fs@a"),
        ("lec@b", "fs@b"),
        ("big@a", "big@a"),
        ("vol@a", "vol@a"),
        ("vol@b", "vol@b"),
        ("dn@a", "dn@a"),
        ("half@a", "fs@a"),
    ] {
        let theirs = sums(&place, &format!("other/{theirs}"));
        assert!(theirs.lines().count() > 1, "{ours}: {theirs}");
        assert_eq!(theirs, sums(&place, &format!("s-send/{ours}")), "{ours}");
    }
}

/// A stream with large blocks on top of one that had cut them: the parts of a file that it does not bring stay.
#[test]
fn large_blocks_come_on_top_of_cut_ones() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 512M disk && zpool create -O mountpoint=none -O recordsize=1M tank $PWD/disk && \
         zfs create tank/fs && head -c 5000000 /dev/urandom > f && sanbox put f tank/fs:/f && zfs snapshot tank/fs@1 && \
         printf changed | dd of=f bs=1 seek=3000000 conv=notrunc 2> /dev/null && sanbox put f tank/fs:/g && \
         zfs create tank/over && zfs send tank/fs@1 > 1 && zfs receive -u tank/copy < 1",
    );
    assert_eq!(made, "");
    // The file keeps its number and generation: it is written in place.
    let received = place.run(
        "sanbox put f tank/fs:/f && zfs snapshot tank/fs@2 && zfs send -L -i @1 tank/fs@2 > 2 && zfs receive -u tank/copy < 2; \
         sanbox get tank/copy@2:/f back && cmp f back && sanbox get tank/copy@2:/g back && cmp f back && echo same; \
         zfs send -i @1 tank/fs@2 > 3 && zfs receive -u tank/other < 3; zfs send tank/fs@1 > 1; zfs send -L tank/fs@1 > 4; \
         zfs receive -u tank/large < 4 && zfs receive -u tank/large < 3",
    );
    assert_eq!(
        received,
        "same\n! cannot receive incremental stream: destination 'tank/other' does not exist\n\
         ! cannot receive incremental stream: incremental send stream requires -L (--large-block), to match previous receive.\n[1]\n"
    );
    judged(&place);
}

/// Two commands in one pipe without a daemon: both work in a process that is started for them.
#[test]
fn a_pipe_needs_no_daemon() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/a && \
         head -c 3000000 /dev/urandom > f && sanbox put f tank/a:/f && zfs snapshot tank/a@1",
    );
    assert_eq!(made, "");
    for (how, target) in [
        ("zfs send tank/a@1", "b"),
        ("zfs send -R tank/a@1 | cat", "c"),
    ] {
        let began = std::time::Instant::now();
        let piped = place.run(&format!(
            "{how} | zfs receive -u tank/{target} && zfs list -Ho name -r -t all tank/{target}"
        ));
        assert_eq!(piped, format!("tank/{target}\ntank/{target}@1\n"), "{how}");
        assert!(
            began.elapsed().as_secs() < 60,
            "{how}: {:?}",
            began.elapsed()
        );
        let same = sums(&place, &format!("tank/{target}@1"));
        assert_eq!(same, sums(&place, "tank/a@1"), "{how}");
    }
    // The end that fails says why, and the other one ends.
    let refused = place.run("zfs send tank/a@1 | zfs receive tank/b; zfs list -Ho name -r tank");
    assert_eq!(
        refused,
        "tank\ntank/a\ntank/b\ntank/c\n\
         ! cannot receive new filesystem stream: destination 'tank/b' exists\n! must specify -F to overwrite it\n"
    );
    judged(&place);
}

/// A daemon that starts while a stream is received without one waits for its end, as for any other command.
#[test]
fn a_daemon_waits_for_a_stream() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/a && zfs snapshot tank/a@1 && \
         zfs send tank/a@1 >stream; ((head -c 500 stream; sleep 3; tail -c +501 stream) | zfs receive -u tank/b >out 2>&1 &); \
         until test -S ../state/control.sock; do sleep 0.05; done",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0"]);
    assert_eq!(
        place.run("cat out; zfs list -Ho name -t snapshot tank/b"),
        "tank/b@1\n"
    );
    place.stop();
    judged(&place);
}

/// Blocks that come compressed are stored as they came, whatever the dataset's own compression is.
#[test]
fn compressed_blocks_stay_as_they_came() {
    let (_directory, streams) = unpack();
    let (place, _golden) = pools();
    let received = place.run(&format!(
        "zfs receive -u -o compression=off tank/kept < {} && zfs receive -u -o compression=off tank/plain < {} && \
         zfs receive -u -o compression=gzip-9 tank/volume < {} && zfs receive -u tank/volume < {}",
        named(&streams, "big-Lc"),
        named(&streams, "big-L"),
        named(&streams, "vol-full"),
        named(&streams, "vol-incr-c"),
    ));
    assert_eq!(received, "");
    let bytes = |name: &str| -> u64 {
        let shown = place.run(&format!("zfs get -Hpo value referenced {name}"));
        shown.trim().parse().expect("a number")
    };
    let (kept, plain) = (bytes("tank/kept"), bytes("tank/plain"));
    assert!(kept < 500_000 && plain > 3_000_000, "{kept} and {plain}");
    for (ours, theirs) in [
        ("tank/kept@a", "s-send/big@a"),
        ("tank/volume@b", "s-send/vol@b"),
    ] {
        assert_eq!(sums(&place, ours), sums(&place, theirs), "{ours}");
    }
    // Sent on, they are the same bytes.
    let again = place.run(&format!(
        "zfs send -L -c tank/kept@a > sent; sanbox zstream dump -v sent | grep ^WRITE | sed 's/checksum.*//' > ours; \
         sanbox zstream dump -v {} | grep ^WRITE | sed 's/checksum.*//' > theirs; cmp ours theirs; wc -l < ours",
        named(&streams, "big-Lc")
    ));
    assert_eq!(again, "11\n");
    judged(&place);
}

#[test]
fn holds_and_received_values_travel() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && \
         zfs create -p -o atime=off -o m:x=1 tank/a/b && zfs snapshot -r -o m:s=snap tank/a@1 && \
         zfs hold -r keep tank/a@1 && zfs send -R -h tank/a@1 > sent && zfs receive -u tank/copy < sent; \
         zfs holds -rH tank/copy@1 | cut -f 1,2; zfs get -Hpo value,source m:s tank/copy/b@1",
    );
    assert_eq!(
        made,
        "tank/copy@1\tkeep\ntank/copy/b@1\tkeep\nsnap\treceived\n"
    );
    // -b sends what came, not what was set here; -h of a receive leaves holds out.
    let again = place.run(
        "zfs set m:x=2 tank/copy/b && zfs send -b tank/copy/b@1 > sent && zfs receive -h -u tank/third < sent; \
         zfs get -Hpo value,received,source m:x tank/third; zfs holds -H tank/third@1; \
         zfs send -p tank/copy/b@1 > sent && zfs receive -u tank/fourth < sent; zfs get -Hpo value,received,source m:x tank/fourth",
    );
    assert_eq!(again, "1\t1\treceived\n2\t2\treceived\n");
    // What the next stream does not bring any more is forgotten; what it brings does not touch what is set here.
    let next = place.run(
        "zfs inherit m:x tank/copy/b; zfs set m:y=3 tank/copy/b; zfs snapshot tank/copy/b@2 && \
         zfs set m:y=here tank/fourth && zfs send -p -i @1 tank/copy/b@2 > sent && zfs receive -u tank/fourth < sent; \
         zfs get -Hpo property,value,received,source m:x,m:y tank/fourth",
    );
    assert_eq!(next, "m:x\t-\t-\t-\nm:y\there\t3\tlocal\n");
    // What -x keeps out of force is remembered as received.
    let excluded = place.run(
        "zfs set m:x=4 tank/copy/b; zfs snapshot tank/copy/b@3 && zfs send -p -i @2 tank/copy/b@3 > sent && \
         zfs receive -u -x m:x tank/fourth < sent; zfs get -Hpo value,received,source m:x tank/fourth; \
         zfs inherit -S m:x tank/fourth; zfs get -Hpo value,received,source m:x tank/fourth",
    );
    assert_eq!(excluded, "-\t4\t-\n4\t4\treceived\n");
    judged(&place);
}

/// The sender let one transaction exceed the quota of a file system: so does what receives it.
#[test]
fn a_quota_may_be_exceeded_by_a_transaction() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none -O compression=off tank $PWD/disk && \
         zfs create -o refquota=3M tank/a && zfs snapshot tank/a@1 && zfs send -p tank/a@1 | zfs receive -u tank/b && \
         zfs set refquota=none tank/a && head -c 5000000 /dev/urandom > f && sanbox put f tank/a:/f && zfs snapshot tank/a@2 && \
         zfs send -i @1 tank/a@2 > sent && zfs receive -u tank/b < sent; zfs get -Hpo value refquota tank/b; sanbox get tank/b:/f back && cmp f back",
    );
    assert_eq!(made, "3145728\n");
    judged(&place);
}

/// Of a stream that is refused only its first record is read: what sends it has a broken pipe. One that is not refused is read to its end.
#[test]
fn of_a_refused_stream_the_head_is_read() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/a && head -c 3M /dev/urandom > f && \
         sanbox put f tank/a:/f && zfs snapshot tank/a@1 && zfs send tank/a@1 > sent && zfs receive -u tank/b < sent",
    );
    assert_eq!(made, "");
    for serves in [false, true] {
        if serves {
            place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
        }
        let read = place.run(
            "{ zfs receive -u tank/b; cat > rest; } < sent; expr $(stat -c %s sent) - $(stat -c %s rest); \
             { zfs receive -u tank/c; wc -c; } < sent; zfs destroy -r tank/c; \
             { zfs send tank/a@1; echo $? >&2; } | zfs receive -u tank/b",
        );
        let expect = "312\n0\n\
             ! cannot receive new filesystem stream: destination 'tank/b' exists\n! must specify -F to overwrite it\n\
             ! cannot receive new filesystem stream: destination 'tank/b' exists\n! must specify -F to overwrite it\n! 141\n[1]\n";
        assert_eq!(read, expect, "with a daemon: {serves}");
    }
    judged(&place);
}

/// A whole stream in the place of a mounted file system: the mount shows it, with its own root directory.
#[test]
fn a_mount_shows_what_took_its_place() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return tests::skip("receive below a mount", "this machine has no /dev/fuse");
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let shown = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=$PWD/m tank $PWD/disk && zfs create tank/old && zfs create tank/new && \
         echo old > m/old/f && echo new > m/new/g && zfs snapshot tank/new@1 && zfs send tank/new@1 > sent && \
         zfs receive -F tank/old < sent; for n in $(seq 600); do cat m/old/g 2> /dev/null && break; sleep 0.1; done; \
         ls m/old; echo more > m/old/h && cat m/old/h",
    );
    assert_eq!(shown, "new\ng\nmore\n");
    judged(&place);
}

/// Snapshots of a volume have devices as long as `snapdev` says so, read-only, and go only when they are not in use.
#[test]
fn snapshots_of_a_volume_have_devices_where_they_are_to() {
    let has_loops = std::path::Path::new("/dev/loop-control").exists();
    if !std::path::Path::new("/dev/fuse").exists() || !has_loops {
        return tests::skip(
            "devices of snapshots",
            "this machine has no /dev/fuse or no loop devices",
        );
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    // Links to devices are the whole machine's: no other test has this pool.
    let pool = "snapshots-devices";
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        &format!(
            "truncate -s 256M disk && zpool create -O mountpoint=none {pool} $PWD/disk && zfs create -V 1M {pool}/a && zfs create {pool}/of && \
             zfs create -V 1M {pool}/of/b && cd /dev/zvol/{pool} && printf one | dd of=a conv=notrunc,fsync \
              status=none && zfs snapshot {pool}/a@1 && \
             printf two | dd of=a conv=notrunc,fsync status=none && ls; zfs set snapdev=visible {pool}; ls; head -c 3 a@1; head -c 3 a"
        ),
        "a\nof\na\na@1\nof\nonetwo\n",
    );
    // Those that come show up, and nothing can be written to them.
    check(
        &format!(
            "cd /dev/zvol/{pool}; zfs snapshot -r {pool}@2; ls * ; head -c 3 a@2; {{ printf x >a@2; }} 2>/dev/null || echo refused"
        ),
        "a\na@1\na@2\n\nof:\nb\nb@2\ntworefused\n",
    );
    // One that is in use stays: here by a file system that is mounted from it.
    check(
        &format!(
            "mkfs.ext4 -q -F /dev/zvol/{pool}/a 2>/dev/null; sync /dev/zvol/{pool}/a; zfs snapshot {pool}/a@3; mkdir \
             at; mount -o ro,noload /dev/zvol/{pool}/a@3 at && \
             zfs destroy {pool}/a@3 2>&1; zfs list -H -o name -t snapshot {pool}/a@3; umount at && zfs destroy {pool}/a@3 && ls /dev/zvol/{pool}"
        ),
        &format!(
            "cannot destroy snapshot {pool}/a@3: dataset is busy\n{pool}/a@3\na\na@1\na@2\nof\n"
        ),
    );
    check(
        &format!(
            "zfs set snapdev=hidden {pool}/a; ls /dev/zvol/{pool}; zfs destroy -r {pool}/of && ls /dev/zvol/{pool}; zpool export {pool}"
        ),
        "a\nof\na\n",
    );
}

/// A whole stream and an increment in the place of a volume's contents, and a rollback: its block device, which is held open, shows each.
#[test]
fn the_device_of_a_volume_shows_what_was_received() {
    let has_loops = std::path::Path::new("/dev/loop-control").exists();
    if !std::path::Path::new("/dev/fuse").exists() || !has_loops {
        return tests::skip(
            "receive into a volume",
            "this machine has no /dev/fuse or no loop devices",
        );
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    // Links to devices are the whole machine's: no other test has this pool.
    let pool = "receiving-device";
    let shown = place.run(&format!(
        "truncate -s 256M disk && zpool create -O mountpoint=none {pool} $PWD/disk && zfs create -V 1M {pool}/a && zfs create -V 1M {pool}/b && \
         cd /dev/zvol/{pool} && head -c 1M /dev/zero | tr '\\0' 1 > a && sync a && zfs snapshot {pool}/a@1 && \
         exec 3< b 4< b && head -c 3 <&3; \
         zfs send {pool}/a@1 | zfs receive -F {pool}/b && head -c 3 b && head -c 3 <&4; \
         head -c 1M /dev/zero | tr '\\0' 2 > a && sync a && zfs snapshot {pool}/a@2 && \
         zfs send -i @1 {pool}/a@2 | zfs receive {pool}/b && head -c 3 b; head -c 3 a; \
         zfs rollback -r {pool}/b@1 && head -c 3 b; exec 3<&- 4<&-; cd / && zpool export {pool}",
    ));
    assert_eq!(shown.replace('\0', "0"), "000111111222222111\n");
    assert!(!place.log().contains("may show"), "{}", place.log());
}

/// File systems that a receive destroys or renames are not mounted where they were.
#[test]
fn mounts_follow_renames_and_destroys_of_a_stream() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return tests::skip("receive below a mount", "this machine has no /dev/fuse");
    }
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let made = place.run(
        "truncate -s 256M disk other && zpool create -O mountpoint=$PWD/m tank $PWD/disk && zpool create -O mountpoint=$PWD/c copy $PWD/other && \
         zfs create -p tank/top/gone/below && zfs create tank/top/old && echo text > m/top/old/f && zfs snapshot -r tank/top@1 && \
         zfs send -R tank/top@1 > sent && zfs receive -d copy < sent && ls c/top && cat c/top/old/f; \
         zfs destroy -r tank/top/gone && zfs rename tank/top/old tank/top/new && zfs snapshot -r tank/top@2 && \
         zfs send -R -I @1 tank/top@2 > sent && zfs receive -dF copy < sent; zfs mount | grep -o 'copy[^ ]* ' ; cat c/top/new/f; \
         ls -A c/top/gone c/top/old 2>/dev/null; df c/top >/dev/null; zpool export copy",
    );
    assert_eq!(
        made,
        "gone\nold\ntext\ncopy \ncopy/top \ncopy/top/new \ntext\n"
    );
    judged(&place);
}

/// A tree with clones that is gone at the sender goes here too: what stands above the others is renamed first, until it can be destroyed.
#[test]
fn a_destroyed_tree_with_clones_is_destroyed() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 256M disk other && zpool create -O mountpoint=none tank $PWD/disk && zpool create -O mountpoint=none copy $PWD/other && \
         zfs create -p tank/fs/fs1 && zfs create -s -V 8M tank/vol && zfs snapshot -r tank@A && zfs clone tank@A tank/pclone && \
         zfs clone tank/fs/fs1@A tank/fs/fs1/fclone && zfs clone tank/vol@A tank/fs/vclone && zfs snapshot -r tank@final && \
         zfs send -R tank@final > sent && zfs receive -dF copy < sent && zfs list -Ho name -t all -r copy | wc -l; \
         zfs destroy -R tank/fs && zfs destroy -R tank/pclone && zfs destroy -R tank/vol && zfs snapshot -r tank@gone && \
         zfs send -R -I @final tank@gone > sent && zfs receive -dF copy < sent && zfs list -Ho name -t all -r copy; zpool export copy",
    );
    assert_eq!(made, "18\ncopy\ncopy@A\ncopy@final\ncopy@gone\n");
    judged(&place);
}
