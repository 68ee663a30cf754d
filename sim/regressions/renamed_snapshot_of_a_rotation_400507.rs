//! Seed 400507 of the campaign with encryption: a snapshot that was renamed just before a rotation of keys exchanged the dataset for its
//! copy had its old name again afterwards. The copy follows renames before the exchange, and the exchange compared guids alone; now it
//! compares names, too, and is tried again.

use sim::campaign::scenario::Plan;

#[test]
fn a_snapshot_renamed_at_the_end_of_a_rotation_keeps_its_name() {
    crate::run_judged(&Plan::encryption(400_507)).unwrap_or_else(|failure| panic!("{failure}"));
}
