//! Goal: `zpool clear` brings back a pool whose only device lost what it had taken and is there again, beside clients, and says what is wrong
//! where it cannot. Method: flushes and writes of the device fail by injection; files that were synced are compared before and after.

use tests::oracle;

use crate::cli::Place;

fn pool() -> Place {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && zfs create tank/fs && \
         head -c 3000000 /dev/urandom > one && head -c 2000000 /dev/urandom > two && sanbox put one tank/fs:/one && zpool sync tank",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    place
}

/// The pool works, and has what it should.
fn works(place: &mut Place) {
    let said = place.run(
        "rm -f back; sanbox get tank/fs:/one back && cmp one back; sanbox put two tank/fs:/three && zpool sync tank && \
         rm -f back && sanbox get tank/fs:/three back && cmp two back; zpool status -x tank",
    );
    assert_eq!(said, "pool 'tank' is healthy\n");
}

#[test]
fn a_device_that_lost_a_flush_is_used_again_after_clear() {
    let mut place = pool();
    for round in 0..2 {
        place.run("zinject -d $PWD/disk -e io -T flush tank; sanbox put two tank/fs:/two");
        // The command does not come back while the pool waits.
        place.run("timeout 20 zpool sync tank");
        let health = place.run("zpool get -Hpo value health tank");
        assert_eq!(health, "SUSPENDED\n", "round {round}");
        let cleared = place.run("zinject -c all; timeout 100 zpool clear tank; echo $?");
        assert!(cleared.contains("\n0\n"), "{cleared}");
        works(&mut place);
    }
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
}
