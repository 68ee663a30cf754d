//! What is answered where it is asked, without the pool's thread: what files were last seen to be like.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use zpl::Lookaside;

use crate::observe::{Client, Tally};

/// One pool's.
pub(crate) struct Front {
    pub(crate) files: Arc<Lookaside>,
    /// Of the open datasets, by guid.
    tallies: Mutex<BTreeMap<u64, Tally>>,
}

impl Front {
    pub(crate) fn new(synced: Arc<AtomicU64>) -> Self {
        Self {
            files: Arc::new(Lookaside::new(synced)),
            tallies: Mutex::default(),
        }
    }

    fn tallies<T>(&self, look: impl FnOnce(&mut BTreeMap<u64, Tally>) -> T) -> T {
        // Entries are whole: a panic elsewhere leaves none half made.
        look(&mut self.tallies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A dataset is open, whose requests are counted there.
    pub(crate) fn opened(&self, guid: u64, tally: &Tally) {
        self.tallies(|tallies| tallies.insert(guid, tally.clone()));
    }

    /// A dataset is closed: nothing is answered of it any more.
    pub(crate) fn closed(&self, guid: u64) {
        self.files.forget();
        self.tallies(|tallies| tallies.remove(&guid));
    }

    /// Looks for an answer to a client's request to a dataset, and counts the request if there is one.
    pub(crate) fn answer<T>(
        &self,
        guid: u64,
        client: Client,
        look: impl FnOnce(&Lookaside) -> Option<T>,
    ) -> Option<T> {
        let answer = look(&self.files)?;
        self.tallies(|tallies| {
            if let Some(tally) = tallies.get(&guid) {
                tally.answered_at_once(client);
            }
        });
        Some(answer)
    }
}
