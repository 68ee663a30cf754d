//! Disks that go and come while a daemon has the pool: what it does by itself.

use crate::cli::{Place, wait_for};

/// Runs a command until it prints `wanted`.
fn until(place: &Place, line: &str, wanted: &str) {
    wait_for(line, || {
        let printed = place.run(line);
        let seen = || format!("{printed}{}", place.log());
        (printed == wanted).then_some(()).ok_or_else(seen)
    });
}

/// A disk that is pulled is missed, and an empty one in its place takes over where `autoreplace` is on, and only there.
#[test]
fn an_empty_disk_takes_the_place_of_a_lost_one() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run(
        "truncate -s 96M a b c d; zpool create -o autoreplace=on tank mirror $PWD/a $PWD/b; \
         zpool create lake mirror $PWD/c $PWD/d; zfs create tank/fs; printf kept > f; sanbox put f tank/fs:/f",
    );
    assert_eq!(made, "");
    // What is open stays readable after it has lost its name: it has to be unreachable, and then another.
    let pulled = place.run(
        "zpool export tank; zpool export lake; rm b d; zpool import -d $PWD tank; zpool import -d $PWD lake; \
         zpool list -H -o health tank lake",
    );
    assert_eq!(pulled, "DEGRADED\nDEGRADED\n");
    place.run("truncate -s 96M b d");
    until(&place, "zpool list -H -o health tank", "ONLINE\n");
    until(&place, "zpool status tank | grep -c 'with 0 errors'", "1\n");
    let after = place.run(
        "zpool list -vHP tank | cut -f 2 | sed 1d; zpool list -H -o health lake; sanbox cat tank/fs:/f; echo; \
         zpool scrub -w tank; zpool status tank | grep -c 'No known data errors'; \
         zpool export tank; zpool export lake; rm a; zpool import -d $PWD tank; sanbox cat tank/fs:/f",
    );
    assert_eq!(after, "mirror-0\nDIR/a\nDIR/b\nDEGRADED\nkept\n1\nkept\n");
    place.stop();
}

/// Vdevs grow by themselves with `autoexpand`, when all their disks have: at the next look at the devices.
#[test]
fn a_pool_grows_with_its_disks() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let grown = place.run(
        "truncate -s 128M a b c; zpool create -o autoexpand=on tank mirror $PWD/a $PWD/b; zpool create lake $PWD/c; \
         zpool list -H -o size,expandsize tank lake; truncate -s 256M a c; zpool reopen tank; zpool reopen lake; \
         zpool list -H -o size,expandsize tank lake; truncate -s 256M b; zpool reopen tank; \
         zpool list -H -o size,expandsize tank; zpool export tank; truncate -s 384M a b; zpool import -d $PWD tank; \
         zpool list -H -o size,expandsize tank",
    );
    assert_eq!(
        grown,
        "112M\t-\n112M\t-\n112M\t-\n112M\t128M\n240M\t-\n368M\t-\n"
    );
    place.stop();
}
