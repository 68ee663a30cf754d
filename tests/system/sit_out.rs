//! Devices of a raidz that sit out: because they are told to, or because they are far slower than the others.

use crate::cli::{Place, wait_for};

/// A raidz of six files with data that the cache does not keep.
const MADE: &str = "for d in 0 1 2 3 4 5; do truncate -s 128M d$d; done; zpool create -O mountpoint=none -O \
 primarycache=metadata -O compression=off tank \
                    raidz1 $PWD/d0 $PWD/d1 $PWD/d2 $PWD/d3 $PWD/d4 $PWD/d5 && zfs create tank/fs && head -c 8M /dev/urandom >f && \
                    sanbox put f tank/fs:/f && zpool export tank && zpool import -d $PWD tank";

fn read_ops(place: &Place, device: &str) -> u64 {
    let ops = place.run(&format!(
        "zpool get -Hp -o value read_ops tank $PWD/{device}"
    ));
    ops.trim().parse().expect("a count")
}

#[test]
fn a_device_that_is_told_to_sit_out_is_not_read_but_written_and_scrubbed() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(MADE, "");
    check(
        "zpool get -H -o value sit_out tank $PWD/d1 && zpool set sit_out=on tank $PWD/d1 && zpool get -H -o value,source sit_out tank $PWD/d1",
        "off\non\t-\n",
    );
    let before = [read_ops(&place, "d1"), read_ops(&place, "d2")];
    check("sanbox get tank/fs:/f g && cmp f g", "");
    assert_eq!(read_ops(&place, "d1"), before[0], "it is not read");
    assert!(read_ops(&place, "d2") > before[1], "another one is read");
    // With one parity a second one cannot sit out, and a mirror has none to stand in.
    check(
        "zpool set sit_out=on tank $PWD/d2 2>&1; zpool set sit_out=on tank raidz1-0 2>&1",
        "cannot set property sit_out for DIR/d2 on tank: too many disks already sitting out\n\
         cannot set property sit_out for raidz1-0 on tank: property not supported for this vdev\n[1]\n",
    );
    check(
        "head -c 4M /dev/urandom >h && sanbox put h tank/fs:/h && zpool scrub -w tank && zpool status tank | grep -c \
         'scrub repaired 0B in .* with 0 errors'",
        "1\n",
    );
    assert!(read_ops(&place, "d1") > before[0], "a scrub reads it");
    // When another one fails, it is read.
    check(
        "zpool offline tank $PWD/d3 && sanbox get tank/fs:/h g && cmp h g && zpool online tank $PWD/d3 && zpool wait -t resilver tank",
        "",
    );
    check(
        "zpool set sit_out=off tank $PWD/d1 && zpool get -H -o value sit_out tank $PWD/d1 && zpool export tank && zdb \
         -e -p $PWD -bcc tank >/dev/null 2>&1 && echo clean",
        "off\nclean\n",
    );
    place.stop();
}

#[test]
fn a_device_that_is_far_slower_than_the_others_sits_out() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(MADE, "");
    check(
        "zpool get -H -o value,source autosit tank raidz1-0 && zpool set autosit=on tank $PWD/d1 2>&1; zpool set autosit=on tank raidz1-0 && \
         zpool export tank && zpool import -d $PWD tank && zpool get -H -o value,source autosit tank raidz1-0",
        "off\tdefault\ncannot set property autosit for DIR/d1 on tank: property not supported for this vdev\non\tlocal\n",
    );
    check("zinject -d $PWD/d4 -D 150:8 tank >id", "");
    wait_for("the slow device sits out", || {
        assert_eq!(place.run("sanbox get tank/fs:/f g && cmp f g"), "");
        let out = place.run("zpool get -H -o value sit_out tank $PWD/d4");
        if out == "on\n" { Ok(()) } else { Err(out) }
    });
    check(
        "zpool events -H | grep -c ereport.fs.zfs.sitout; zpool get -Hp -o value slow_ios tank $PWD/d4",
        "1\n1\n",
    );
    let before = read_ops(&place, "d4");
    check("sanbox get tank/fs:/f g && cmp f g", "");
    assert_eq!(read_ops(&place, "d4"), before, "it is not read");
    check(
        "zinject -c all >id; zpool clear tank $PWD/d4 && zpool get -H -o value sit_out tank $PWD/d4",
        "off\n",
    );
    place.stop();
}
