//! Pools that go by another name here than on their disks.

use crate::cli::Place;

#[test]
fn a_pool_is_made_by_another_name_than_it_has_on_disk() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 96M a b && zpool create -O mountpoint=none tank $PWD/a && zfs create tank/old && \
         zpool create -t new -O mountpoint=none tank $PWD/b && zpool list -H -o name,cachefile && zfs create new/fs && zfs list -H -o name",
        "new\tnone\ntank\t-\nnew\nnew/fs\ntank\ntank/old\n",
    );
    // The disks say the name it is to have elsewhere.
    check(
        "truncate -s 96M c && zpool sync new && zdb -l $PWD/b | grep -c \"name: 'tank'\"; zpool create -t new other $PWD/c 2>&1",
        "1\ncannot create 'new': pool already exists\n[1]\n",
    );
    check(
        "zpool create -t a/b other $PWD/c 2>&1; zpool create -t mirror other $PWD/c 2>&1",
        "cannot create 'a/b': invalid character '/' in temporary name\nuse 'zfs create' to create a dataset\n\
         cannot create 'mirror': pool name is reserved\n[1]\n",
    );
    check(
        "zpool export new && zpool export tank && zpool import -d $PWD/b tank && zfs list -H -o name",
        "tank\ntank/fs\n",
    );
    // Once it is imported without -t, an export and import keep that.
    check(
        "zpool export tank && zpool import -d $PWD/b -t tank brief && zpool list -H -o name && zpool export brief && \
         zdb -e -p $PWD/b -C tank | grep -c \"name: 'tank'\"",
        "brief\n1\n",
    );
    place.stop();
}
