//! What `zinject` needs of the appliance as a whole: the numbers of faults, which count up over all pools, and delays of imports and
//! exports, which are for pools that are not there yet or not for long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most delays of imports and exports.
const DELAYS_MAX: usize = 256;

/// What is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delayed {
    Import,
    Export,
}

/// A delay of the next import or export of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolDelay {
    pub(crate) id: u64,
    pub(crate) pool: String,
    pub(crate) seconds: u64,
    pub(crate) of: Delayed,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    numbers: AtomicU64,
    delays: Mutex<Vec<PoolDelay>>,
}

impl Faults {
    /// Returns the number of the next fault, 1 for the first.
    pub(crate) fn next_id(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn delays_now(&self) -> MutexGuard<'_, Vec<PoolDelay>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays the next import or export of a pool; returns the number, or why not.
    pub(crate) fn delay(&self, pool: &str, of: Delayed, seconds: u64) -> Result<u64, &'static str> {
        let mut delays = self.delays_now();
        if delays
            .iter()
            .any(|delay| delay.pool == pool && delay.of == of)
        {
            return Err("a handler already exists");
        }
        if delays.len() >= DELAYS_MAX {
            return Err("there are too many handlers; end some with 'zinject -c'");
        }
        let id = self.next_id();
        delays.push(PoolDelay {
            id,
            pool: pool.to_owned(),
            seconds,
            of,
        });
        Ok(id)
    }

    /// Returns the delays, oldest first.
    pub(crate) fn delays(&self) -> Vec<PoolDelay> {
        self.delays_now().clone()
    }

    /// Ends a delay; returns whether there was one of that number.
    pub(crate) fn clear(&self, id: u64) -> bool {
        let mut delays = self.delays_now();
        let before = delays.len();
        delays.retain(|delay| delay.id != id);
        delays.len() < before
    }

    /// Waits until the import or export of a pool, which took so long already, has been delayed as it is to be. Each delay is for one.
    pub(super) async fn wait(&self, pool: &str, of: Delayed, elapsed: Duration) {
        let seconds = {
            let mut delays = self.delays_now();
            let found = delays
                .iter()
                .position(|delay| delay.pool == pool && delay.of == of);
            found.map(|index| delays.remove(index).seconds)
        };
        if let Some(seconds) = seconds {
            let delay = Duration::from_secs(seconds).saturating_sub(elapsed);
            tokio::time::sleep(delay).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_delay_is_for_one_import_of_one_pool() {
        let faults = Faults::default();
        let first = faults.next_id();
        assert_eq!(first, 1);
        let second = faults.delay("tank", Delayed::Import, 0).expect("the first");
        assert_eq!(second, 2);
        let again = faults.delay("tank", Delayed::Import, 5);
        assert_eq!(again, Err("a handler already exists"));
        let third = faults.delay("tank", Delayed::Export, 5).expect("another");
        let soon = Duration::ZERO;
        faults.wait("other", Delayed::Import, soon).await;
        assert_eq!(faults.delays().len(), 2);
        faults.wait("tank", Delayed::Import, soon).await;
        assert_eq!(faults.delays().len(), 1);
        assert!(!faults.clear(second) && faults.clear(third));
        assert!(faults.delays().is_empty());
    }
}
