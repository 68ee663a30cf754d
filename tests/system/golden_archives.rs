//! Goal: the golden pools in the repository are what OpenZFS left, and the oracles judge them as we expect, so that
//! a later failure is ours.

use tests::golden::Golden;
use tests::oracle;

#[test]
fn zdb_finds_the_golden_mirror_clean() {
    if !oracle::has_zdb() {
        tests::skip(
            "zdb on a golden pool",
            "zdb is not installed (tests/oracles/install)",
        );
        return;
    }
    let golden = Golden::unpack("n2-ashift12").expect("unpack the golden pool");
    assert_eq!(golden.images().len(), 2);
    oracle::zdb_clean(golden.directory(), &golden.name).expect("a golden pool is clean");
}

#[test]
fn openzfs_in_userland_scrubs_the_golden_mirror() {
    if oracle::refpool().is_none() {
        return;
    }
    let golden = Golden::unpack("n2-ashift12").expect("unpack the golden pool");
    oracle::refpool_scrub(&golden.name, &golden.images()).expect("a golden pool scrubs clean");
}
