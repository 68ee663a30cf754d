//! The pool property `bootfs` does not outlive the dataset it names.

use crate::cli::Place;

#[test]
fn a_destroyed_dataset_is_not_booted_from() {
    let place = Place::new();
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 128M a && zpool create tank $PWD/a && zfs create tank/a && zfs create tank/b && \
         zpool set bootfs=tank/a tank && zpool get -H -o value,source bootfs tank",
        "tank/a\tlocal\n",
    );
    check(
        "zfs destroy tank/b && zpool get -H -o value bootfs tank",
        "tank/a\n",
    );
    check(
        "zfs destroy tank/a && zpool get -H -o value,source bootfs tank",
        "-\tdefault\n",
    );
    check(
        "zpool export tank && zpool import -d $PWD tank && zfs create tank/a && \
         zpool get -H -o value,source bootfs tank",
        "-\tdefault\n",
    );
    check("zpool export tank", "");
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}
