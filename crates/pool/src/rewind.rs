//! Going back: which of the older states of a pool an import may try when the newest one is damaged.
//!
//! Every label keeps the uberblocks of the last txgs. Space freed by a txg is used again only two txgs later, so
//! the two states before the newest are whole as far as the devices are; older ones are tried on request, and believed
//! only when all their metadata can be read.
// OpenZFS: module/zfs/spa.c, spa_load_best and spa_load_verify (ranges)

use ondisk::Uberblock;
use vdev::Tree;

use crate::PoolError;

/// Txgs whose frees are not used again yet.
// OpenZFS: include/sys/txg.h, TXG_DEFER_SIZE
const TXG_DEFER_SIZE: u64 = 2;

/// A safe rewind looks at the metadata of so many txgs.
pub(crate) const VERIFIED_TXGS: u64 = TXG_DEFER_SIZE + 1;
const _: () = assert!(VERIFIED_TXGS > TXG_DEFER_SIZE);

/// How far back an import may go when the newest state is damaged (`-F`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewind {
    /// As far as there are uberblocks (`-X`), not only as far as is safe.
    pub extreme: bool,
    /// This txg or, if it cannot be had, an older one (`-T`).
    pub txg: Option<u64>,
}

/// What an import gave up to get a pool that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewound {
    /// The txg the pool is back at.
    pub txg: u64,
    /// When that was, seconds since 1970.
    pub time: u64,
    /// Seconds of changes that are gone.
    pub lost_seconds: u64,
}

/// The states of a pool that its labels know, newest first; without leave to go back, only the newest.
pub(crate) async fn states(
    tree: &Tree,
    rewind: Option<Rewind>,
) -> Result<Vec<Uberblock>, PoolError> {
    let mut found = match rewind {
        Some(_) => tree.uberblocks().await?,
        None => tree.best_uberblock(None).await?.into_iter().collect(),
    };
    found.sort_by(|a, b| b.cmp_currency(a));
    found.dedup_by_key(|uberblock| uberblock.txg);
    if found.is_empty() {
        let text = "no valid uberblock on any device".to_owned();
        return Err(PoolError::Corrupt(text));
    }
    Ok(found)
}

/// Returns the states to try, the best first.
pub(crate) fn choices(states: &[Uberblock], rewind: Option<Rewind>) -> Vec<Uberblock> {
    let Some(newest) = states.first() else {
        return Vec::new();
    };
    let Some(rewind) = rewind else {
        return vec![*newest];
    };
    let oldest = match rewind {
        Rewind {
            extreme: false,
            txg: None,
        } => newest.txg.0.saturating_sub(TXG_DEFER_SIZE),
        _ => 0,
    };
    let most = rewind.txg.unwrap_or(u64::MAX);
    let fits = |state: &&Uberblock| {
        (oldest..=most).contains(&state.txg.0)
            // The disks are laid out otherwise before the end of an expansion.
            && state.raidz_reflow == newest.raidz_reflow
    };
    states.iter().filter(fits).copied().collect()
}

/// What going back to `chosen` costs; `None` when it is the newest state.
pub(crate) fn rewound(chosen: &Uberblock, newest: &Uberblock) -> Option<Rewound> {
    (chosen.txg != newest.txg).then(|| Rewound {
        txg: chosen.txg.0,
        time: chosen.timestamp,
        lost_seconds: newest.timestamp.saturating_sub(chosen.timestamp),
    })
}

#[cfg(test)]
mod tests {
    use ondisk::{BlockPointer, Txg};

    use super::*;

    fn state(txg: u64) -> Uberblock {
        Uberblock::new(Txg(txg), 1, txg * 5, BlockPointer::from_words([0; 16]))
    }

    #[test]
    fn choices_stay_within_what_was_allowed() {
        let states: Vec<Uberblock> = (90..=100).rev().map(state).collect();
        let txgs = |rewind| -> Vec<u64> {
            let chosen = choices(&states, rewind);
            chosen.iter().map(|state| state.txg.0).collect()
        };
        assert_eq!(txgs(None), [100]);
        assert_eq!(txgs(Some(Rewind::default())), [100, 99, 98]);
        let extreme = Rewind {
            extreme: true,
            txg: None,
        };
        assert_eq!(txgs(Some(extreme)).len(), 11);
        let exact = Rewind {
            extreme: false,
            txg: Some(92),
        };
        assert_eq!(txgs(Some(exact)), [92, 91, 90]);
        let lost = rewound(&state(92), &state(100)).expect("back");
        assert_eq!((lost.txg, lost.lost_seconds), (92, 40));
        assert_eq!(rewound(&state(100), &state(100)), None);
    }
}
