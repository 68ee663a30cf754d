//! Seed 7918 of the fault campaign: after a stretch of all disks of a draid was overwritten a dataset could not be opened,
//! though damage that small leaves one of two copies of all metadata elsewhere. It was the judge: the copies were 64 MiB
//! apart, which is one group of four columns, and neighbouring groups share a row of the disks, so that the stretch hit
//! both (at 0x78000 and 0x4078000 of the vdev). Of a draid the disks of one group in a row are damaged now.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_row_of_disks_has_two_groups() {
    let plan = FaultPlan::of_seed(7918);
    let outcome = faults::run(&plan, &World::new(7918), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
