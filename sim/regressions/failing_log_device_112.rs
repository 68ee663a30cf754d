//! Seed 112 of the crash lab has two log devices whose writes and flushes fail now and then, and the pool suspended: each
//! transaction group flushes all devices, and a log vdev that had lost a flush counted as lost data. Nothing of a txg is on
//! a log vdev, and what the intent log had there is made durable by its txg: txgs now pass over a log vdev that
//! fails, new log blocks go elsewhere while it does, and come back to it when its devices are back.
//!
//! Then, as in seed 194 with mirrored logs, a cut ended in an I/O error: a flush of the labels failed between the claim of
//! a log and its replay, its devices went out of service, and the claimed blocks could not be read any more. A device that
//! has failed nothing but a flush is still read from when no other device has the bytes.

use sim::lab::{Options, plan_of_seed, run};

#[test]
#[ignore = "long: a seed that failed once, and takes long"]
fn mirrored_log_devices_fail_between_claim_and_replay() {
    let counts = run(&plan_of_seed(194), &Options::default());
    let counts = counts.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(counts.cuts > 20, "{counts:?}");
}

#[test]
#[ignore = "long: a seed that failed once, and takes long"]
fn a_failing_log_device_does_not_stop_the_pool() {
    let counts = run(&plan_of_seed(112), &Options::default());
    let counts = counts.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(counts.cuts > 20, "{counts:?}");
}
