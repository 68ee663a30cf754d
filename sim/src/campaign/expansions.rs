//! An administrator that attaches one device after the other to a raidz while clients work.
//!
//! Sectors move between all devices meanwhile. What a power cut leaves must import and go on where it was, and what was acknowledged is there,
//! also while as many devices as there is parity are away.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::{EngineError, PoolError, PoolHandle};
use runtime::Handle;
use world::Rng;

use super::devices::is_used;

/// How long it is waited at most before the next look, in microseconds.
const PAUSE_MICROS: u64 = 900_000;

/// How many expansions there were.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Expansions {
    pub begun: u64,
    /// Seen to have ended, at least.
    pub ended: u64,
}

impl Expansions {
    /// Both counts together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            begun: self.begun + other.begun,
            ended: self.ended + other.ended,
        }
    }
}

/// Attaches devices until none of `disks` is left, or it has looked often enough.
///
/// # Errors
/// An answer that nothing explains.
pub async fn work(
    pool: PoolHandle,
    handle: Handle,
    mut rng: Rng,
    disks: Vec<PathBuf>,
    counted: Rc<Cell<Expansions>>,
) -> Result<(), String> {
    let mut was_running = false;
    for _ in 0..rng.between(4, 16) {
        handle
            .sleep(Duration::from_micros(rng.below(PAUSE_MICROS)))
            .await;
        let status = pool.status().await.map_err(|error| error.to_string())?;
        let is_running = status.expansion.is_some_and(|expansion| expansion.running);
        let mut counts = counted.get();
        counts.ended += u64::from(was_running && !is_running);
        counted.set(counts);
        was_running = is_running;
        if is_running && rng.below(4) > 0 {
            continue;
        }
        let free = disks.iter().find(|disk| !is_used(&status, disk));
        let raidz = status.root.children.iter().find(|top| top.kind == "raidz");
        let (Some(disk), Some(raidz)) = (free, raidz) else {
            return Ok(());
        };
        match pool.attach(raidz.guid, disk, false, false).await {
            Ok(_) => {
                counts.begun += 1;
                counted.set(counts);
                was_running = true;
            }
            // One runs; a device is missing or lacks something.
            Err(EngineError::Pool(PoolError::InUse(_) | PoolError::Invalid(_))) => {}
            Err(error) => return Err(format!("attach to a raidz: {error}")),
        }
    }
    Ok(())
}
