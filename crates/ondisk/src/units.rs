//! Newtypes of the numbers that must not be confused with each other.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<u64> for $name {
            fn from(value: u64) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

unit!(/// Transaction group number.
    Txg);
unit!(/// Object number within an objset.
    ObjectId);
unit!(/// Random identity of a pool, vdev or dataset.
    Guid);

impl Txg {
    /// The next transaction group.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
