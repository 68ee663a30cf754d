//! The states of a leaf: whether its device serves, and if it does not, why.
//!
//! ```text
//!                       too many wrong bytes
//!   Closed -- open --> Online <--------> Degraded      a failed flush, a failed probe, no answer: Faulted
//!      \                         cleared               a device that is gone: Removed
//!       +-- open --> CannotOpen, Faulted, Offline      the administrator, from every state: Offline
//! ```
//!
//! Any state is left by opening the device again, and by closing it. An operation that was under way while the leaf left
//! service, and fails afterwards, changes nothing but a fault into a removal: only a leaf whose device is away is looked for.
//! What of this lasts is in the configuration (`offline`, `faulted`, `removed`) and in the DTL (`leaf_writes`).
//! OpenZFS: include/sys/fs/zfs.h, vdev_state_t and vdev_aux_t.

use runtime::Instant;

use crate::Health;

/// The state of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeafState {
    /// Not opened yet, or closed.
    Closed,
    /// The device could not be opened, or is not the right one.
    CannotOpen { reason: String },
    /// Serves.
    Online,
    /// Serves, and gave wrong bytes too often.
    Degraded { reason: String },
    /// Out of service.
    Faulted {
        reason: String,
        /// It failed a flush: what it holds can be read as long as no other leaf has it.
        readable: bool,
    },
    /// The device was there and vanished.
    Removed,
    /// Taken out of service by the administrator.
    Offline,
}

impl LeafState {
    /// The state of a leaf whose device failed and cannot be read.
    pub(crate) fn faulted(reason: &str) -> Self {
        Self::Faulted {
            reason: reason.to_owned(),
            readable: false,
        }
    }

    /// Whether the leaf is read and written.
    pub(crate) fn is_in_service(&self) -> bool {
        matches!(self, Self::Online | Self::Degraded { .. })
    }

    /// Whether reading is worth a try.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_in_service() || matches!(self, Self::Faulted { readable: true, .. })
    }

    pub(crate) fn health(&self) -> Health {
        match self {
            Self::Closed | Self::CannotOpen { .. } => Health::Unavailable,
            Self::Online => Health::Online,
            Self::Degraded { .. } => Health::Degraded,
            Self::Faulted { .. } => Health::Faulted,
            Self::Removed => Health::Removed,
            Self::Offline => Health::Offline,
        }
    }

    /// Why, as `zpool status` words it.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::CannotOpen { reason }
            | Self::Degraded { reason }
            | Self::Faulted { reason, .. } => Some(reason),
            Self::Closed | Self::Online | Self::Removed | Self::Offline => None,
        }
    }

    /// Whether a failed operation takes the leaf into the state `to`.
    pub(crate) fn fails_into(&self, to: &Self) -> bool {
        match to {
            Self::Removed | Self::Faulted { .. } => {
                self.is_in_service() || matches!(self, Self::Faulted { .. })
            }
            _ => false,
        }
    }

    /// Whether there is a transition to the state `to`.
    pub(crate) fn can_become(&self, to: &Self) -> bool {
        match to {
            Self::Closed | Self::CannotOpen { .. } | Self::Online | Self::Offline => true,
            Self::Degraded { .. } => self.is_in_service(),
            // The configuration may say so when it is opened; then the device is not.
            Self::Faulted { readable, .. } => self.fails_into(to) || !readable,
            Self::Removed => self.fails_into(to),
        }
    }
}

/// Whether a device sits out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SitOut {
    /// It is read.
    #[default]
    No,
    /// It was found to be slow.
    Until(Instant),
    /// The administrator says so.
    Set,
}

impl SitOut {
    /// Whether it does at a moment.
    pub(crate) fn is_at(self, now: Instant) -> bool {
        match self {
            Self::No => false,
            Self::Until(end) => now < end,
            Self::Set => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(letter: char) -> LeafState {
        let reason = String::from("why");
        match letter {
            'c' => LeafState::Closed,
            'x' => LeafState::CannotOpen { reason },
            'o' => LeafState::Online,
            'd' => LeafState::Degraded { reason },
            'f' => LeafState::faulted(&reason),
            'r' => LeafState::Faulted {
                reason,
                readable: true,
            },
            'g' => LeafState::Removed,
            'a' => LeafState::Offline,
            _ => unreachable!("no state {letter}"),
        }
    }

    const ALL: &str = "cxodfrga";

    fn check(of: impl Fn(&LeafState, &LeafState) -> bool, to: char, from: &str) {
        let got: String = ALL
            .chars()
            .filter(|letter| of(&state(*letter), &state(to)))
            .collect();
        assert_eq!(got, from, "states that lead to {to}");
    }

    #[test]
    fn transitions() {
        for to in ['c', 'x', 'o', 'f', 'a'] {
            check(LeafState::can_become, to, ALL);
        }
        check(LeafState::can_become, 'd', "od");
        check(LeafState::can_become, 'r', "odfr");
        check(LeafState::can_become, 'g', "odfr");
    }

    #[test]
    fn failures_of_operations_under_way() {
        for to in ['f', 'r', 'g'] {
            check(LeafState::fails_into, to, "odfr");
        }
        for to in ['c', 'x', 'o', 'd', 'a'] {
            check(LeafState::fails_into, to, "");
        }
    }

    #[test]
    fn service_and_words() {
        for (letter, serves, readable, health) in [
            ('c', false, false, Health::Unavailable),
            ('x', false, false, Health::Unavailable),
            ('o', true, true, Health::Online),
            ('d', true, true, Health::Degraded),
            ('f', false, false, Health::Faulted),
            ('r', false, true, Health::Faulted),
            ('g', false, false, Health::Removed),
            ('a', false, false, Health::Offline),
        ] {
            let state = state(letter);
            assert_eq!(state.is_in_service(), serves, "{state:?}");
            assert_eq!(state.is_readable(), readable, "{state:?}");
            assert_eq!(state.health(), health, "{state:?}");
            let reason = matches!(letter, 'x' | 'd' | 'f' | 'r').then_some("why");
            assert_eq!(state.reason(), reason, "{state:?}");
        }
    }
}
