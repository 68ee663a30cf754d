//! The kernel's clocks and random numbers.

use std::sync::OnceLock;
use std::time::{Duration, Instant as KernelInstant, SystemTime, UNIX_EPOCH};

use crate::time::{Instant, Timestamp};

/// One origin for all engine threads of the process. Instants start at one second, so that "now minus a little"
/// needs no care.
static ORIGIN: OnceLock<KernelInstant> = OnceLock::new();

pub(crate) fn now() -> Instant {
    let nanoseconds = ORIGIN.get_or_init(KernelInstant::now).elapsed().as_nanos();
    Instant::from_nanos(1_000_000_000 + u64::try_from(nanoseconds).unwrap_or(u64::MAX >> 1))
}

pub(crate) fn wall_clock() -> Timestamp {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        // A clock before 1970: count down to the second, then up.
        Err(before) => {
            let before = before.duration();
            let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Timestamp {
                    seconds,
                    nanoseconds: 0,
                },
                nanoseconds => Timestamp {
                    seconds: seconds - 1,
                    nanoseconds: 1_000_000_000 - nanoseconds,
                },
            }
        }
    }
}

/// Processor time of this thread.
pub(crate) fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

pub(crate) fn fill_random(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())
            .expect("the kernel has random numbers");
        bytes = &mut bytes[filled..];
    }
}
