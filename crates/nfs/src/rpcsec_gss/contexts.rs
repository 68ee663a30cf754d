//! The contexts of all clients, by their handles: bounded in number, each until its ticket ends or it is not used any more.
//!
//! A client whose context is gone is told so, and makes another one.

use super::mechanism::{KerberosUser, SecurityContext};
use super::window::SequenceWindow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts kept: some 6 KiB each.
const CONTEXTS_MAX: usize = 4096;
/// Contexts kept of one principal: one for each machine that a user works at, and kind of protection.
const PRINCIPAL_CONTEXTS_MAX: usize = 512;
/// How long a context is kept that is not used, in nanoseconds: an hour, as an idle connection.
const IDLE_NS: u64 = 3600 * 1_000_000_000;

/// A context whose client has proved who it is.
pub(crate) struct EstablishedContext {
    pub(crate) keys: Box<dyn SecurityContext>,
    pub(crate) user: Arc<KerberosUser>,
    window: Mutex<SequenceWindow>,
}

impl EstablishedContext {
    pub(crate) fn new(keys: Box<dyn SecurityContext>, user: KerberosUser) -> Self {
        Self {
            keys,
            user: Arc::new(user),
            window: Mutex::default(),
        }
    }

    /// Takes note of a call's number; false when the call is to be dropped.
    pub(crate) fn admit(&self, sequence: u32) -> bool {
        // Bits, which are whole after each change.
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.admit(sequence)
    }
}

struct ContextEntry {
    context: Arc<EstablishedContext>,
    expires_ns: u64,
    used_ns: u64,
    /// Orders uses within one tick of the time.
    used: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ContextTable {
    entries: BTreeMap<u64, ContextEntry>,
    next: u64,
    uses: u64,
}

impl ContextTable {
    /// Adds a context, and returns its number. Where there is no room, the one goes that was not used for longest: of the same principal, if
    /// that one has many.
    pub(crate) fn add(
        &mut self,
        context: EstablishedContext,
        now_ns: u64,
        lifetime_seconds: Option<u32>,
    ) -> u64 {
        let principal = &context.user.principal;
        let own = |entry: &&ContextEntry| entry.context.user.principal == *principal;
        if self.entries.values().filter(own).count() >= PRINCIPAL_CONTEXTS_MAX {
            self.remove_oldest(|entry| entry.context.user.principal == *principal);
        } else if self.entries.len() >= CONTEXTS_MAX {
            self.remove_oldest(|_| true);
        }
        let lifetime_ns = lifetime_seconds.map(|seconds| u64::from(seconds) * 1_000_000_000);
        let expires_ns = lifetime_ns.map_or(u64::MAX, |lifetime| now_ns.saturating_add(lifetime));
        self.next += 1;
        self.uses += 1;
        let entry = ContextEntry {
            context: Arc::new(context),
            expires_ns,
            used_ns: now_ns,
            used: self.uses,
        };
        self.entries.insert(self.next, entry);
        assert!(
            self.entries.len() <= CONTEXTS_MAX,
            "more contexts than there may be"
        );
        self.next
    }

    fn remove_oldest(&mut self, of: impl Fn(&ContextEntry) -> bool) {
        let all = self.entries.iter().filter(|(_, entry)| of(entry));
        let oldest = all.min_by_key(|(_, entry)| entry.used);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.entries.remove(&number);
        }
    }

    /// Returns a context that is in use.
    pub(crate) fn find(&mut self, number: u64, now_ns: u64) -> Option<Arc<EstablishedContext>> {
        self.uses += 1;
        let entry = self.entries.get_mut(&number)?;
        if entry.expires_ns <= now_ns {
            self.entries.remove(&number);
            return None;
        }
        (entry.used_ns, entry.used) = (now_ns, self.uses);
        Some(Arc::clone(&entry.context))
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.entries.remove(&number);
    }

    /// Removes contexts whose ticket has ended, and those that are not used.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        self.entries.retain(|_, entry| {
            entry.expires_ns > now_ns && now_ns.saturating_sub(entry.used_ns) < IDLE_NS
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoKeys;

    impl SecurityContext for NoKeys {
        fn mic(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }

        fn verify_mic(&self, _: &[u8], _: &[u8]) -> bool {
            false
        }

        fn wrap(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }

        fn unwrap(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }

    fn context(principal: String) -> EstablishedContext {
        let ids = None;
        EstablishedContext::new(Box::new(NoKeys), KerberosUser { principal, ids })
    }

    #[test]
    fn contexts_are_bounded_in_all_and_of_each_principal() {
        let mut table = ContextTable::default();
        let kept = table.add(context("quiet".to_owned()), 0, None);
        for number in 0..10_000 {
            assert!(table.find(kept, 0).is_some(), "after {number}");
            table.add(context("busy".to_owned()), 0, None);
        }
        assert_eq!(table.len(), PRINCIPAL_CONTEXTS_MAX + 1);
        for number in 0..10_000 {
            assert!(table.find(kept, 0).is_some(), "after {number}");
            table.add(context(format!("user{}", number % 100)), 0, None);
        }
        assert_eq!(table.len(), CONTEXTS_MAX);
    }

    #[test]
    fn contexts_end_with_their_ticket_and_when_they_are_not_used() {
        let (mut table, second) = (ContextTable::default(), 1_000_000_000);
        let short = table.add(context("a".to_owned()), second, Some(10));
        let long = table.add(context("a".to_owned()), second, None);
        assert!(table.find(short, 10 * second).is_some());
        assert!(table.find(short, 11 * second).is_none());
        assert_eq!(table.len(), 1);
        assert!(table.find(long, 12 * second).is_some());
        table.tick(12 * second + IDLE_NS - 1);
        assert_eq!(table.len(), 1);
        table.tick(12 * second + IDLE_NS);
        assert_eq!(table.len(), 0);
        table.remove(long);
    }
}
