//! Properties of vdevs: stored where OpenZFS stores them, obeyed, and inherited from the vdev above.

use crate::cli::{Place, wait_for};

#[test]
fn what_is_set_on_vdevs_is_stored_and_obeyed() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 128M d0 d1 d2 d3 && zpool create -O compression=off tank mirror $PWD/d0 $PWD/d1 \
         mirror $PWD/d2 $PWD/d3 && zpool set comment='shelf 2' tank mirror-0 && \
         zpool set org.example:bay=7 tank $PWD/d3 && zpool set allocating=off tank mirror-0",
        "",
    );
    check(
        "zpool set allocating=off tank mirror-1 2>&1",
        "cannot set property allocating for mirror-1 on tank: out of space: no other vdev of its kind takes new blocks\n[1]\n",
    );
    check(
        "zpool set guid=1 tank mirror-1 2>&1; zpool set comment=x tank d9 2>&1",
        "cannot set property guid for mirror-1 on tank: 'guid' is readonly\n\
         cannot find 'd9' in 'tank': device not in pool\n[1]\n",
    );
    check(
        "zpool export tank && zpool import -d $PWD tank && \
         zpool get -H -o name,property,value,source comment,allocating tank root mirror-0 && \
         zpool get -H -o value org.example:bay tank $PWD/d3",
        "root-0\tcomment\t-\tdefault\nroot-0\tallocating\ton\tdefault\n\
         mirror-0\tcomment\tshelf 2\tlocal\nmirror-0\tallocating\toff\tlocal\n7\n",
    );
    // A device goes by another of its paths, and by no other device's.
    check(
        "ln -s d0 link && zpool set path=$PWD/link tank $PWD/d0 && zpool get -H -o value path tank $PWD/link && \
         zpool set path=$PWD/d1 tank $PWD/link 2>&1; zpool set path=d1 tank $PWD/link 2>&1; \
         zpool set path=$PWD/no tank $PWD/link 2>&1 | cut -d: -f1,2; \
         zpool sync tank && zdb -l $PWD/d1 | grep -c \"path: '$PWD/link'\" && zpool set path=$PWD/d0 tank $PWD/link",
        "DIR/link\ncannot set property path for DIR/link on tank: the device at 'DIR/d1' is another one\n\
         cannot set property path for DIR/link on tank: 'd1' must be an absolute path\n\
         cannot set property path for DIR/link on tank: 'DIR/no'\n1\n",
    );
    // Only what each transaction group writes of the pool itself may be changed on a vdev that takes no new blocks: nothing is.
    let allocated = "zpool get -Hp -o value allocated tank mirror-0";
    let before = place.run(allocated).trim().parse::<u64>().expect("bytes");
    check(
        "head -c 8M /dev/urandom >f && sanbox put f tank:/f && zpool sync tank",
        "",
    );
    let after = place.run(allocated).trim().parse::<u64>().expect("bytes");
    assert!(after <= before, "{before} bytes, then {after}");

    // Ten failed reads take a device out, unless the root says otherwise.
    check(
        "zpool set io_n=9000 tank root && zinject -a && zinject -d $PWD/d2 -e io -T read tank >id && \
         sanbox get tank:/f g && cmp f g && zpool sync tank && sleep 1 && \
         zpool get -H -o value state tank $PWD/d2",
        "ONLINE\n",
    );
    let errors = place.run("zpool get -Hp -o value read_errors tank $PWD/d2");
    assert!(
        errors.trim().parse::<u64>().expect("a count") > 10,
        "{errors}"
    );
    check("zpool set io_n=2 tank mirror-1", "");
    wait_for("the device is taken out", || {
        let read = "zinject -a && sanbox get tank:/f g && cmp f g && zpool sync tank";
        assert_eq!(place.run(read), "");
        let state = place.run("zpool get -H -o value state tank $PWD/d2");
        if state == "FAULTED\n" {
            Ok(())
        } else {
            Err(state)
        }
    });
    check(
        "zinject -c all >id; zpool clear tank && zpool export tank",
        "",
    );
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
        let seen = place.run("zdb -e -p $PWD -dddd tank 2>id | grep -E '^\\s+(comment|org.example:bay|io_n|allocating) = ' | sort");
        let words: Vec<&str> = seen.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "allocating = 0 comment = shelf 2 io_n = 2 io_n = 9000 org.example:bay = 7"
        );
    }
}

#[test]
fn properties_stay_with_a_vdev_when_its_devices_change() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 128M d0 d1 c0 && zpool create tank $PWD/d0 cache $PWD/c0 && \
         zpool set comment=alone tank $PWD/d0 && zpool attach tank $PWD/d0 $PWD/d1",
        "",
    );
    let comments = "zpool get -H -o value comment tank mirror-0 $PWD/d0 $PWD/d1";
    check(comments, "alone\n-\n-\n");
    check(
        "zpool set comment=device tank $PWD/d0 && zpool wait -t resilver tank && zpool detach tank $PWD/d1 && \
         zpool get -H -o value comment tank $PWD/d0",
        "alone\n",
    );
    // A cache device has no place where properties could be stored.
    check(
        "zpool get -H -o value state tank $PWD/c0 && zpool get -H -o value comment tank all-vdevs && \
         zpool set comment=x tank $PWD/c0 2>&1 | sed \"s#$PWD/##\"",
        "ONLINE\n-\nalone\n-\ncannot set property comment for c0 on tank: property not supported for this vdev\n",
    );
    check(
        "zpool set org.zfsonlinux:allocation_bias=log tank root 2>&1",
        "cannot set property org.zfsonlinux:allocation_bias for root-0 on tank: \
         'org.zfsonlinux:allocation_bias' is readonly\n[1]\n",
    );
}
