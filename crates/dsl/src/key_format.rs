//! Wrapping keys as those above give them: the forms they have, and what is planned of one before it is there.

use std::sync::Arc;

use codec::crypt::WrappingKey;

/// How the wrapping key of an encryption root is made from what a user gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// Derived from a passphrase.
    Passphrase {
        /// Salt of the derivation.
        salt: u64,
        /// Its iterations.
        iterations: u64,
    },
}

impl KeyFormat {
    /// The format of this number on disk, and in the property `keyformat`.
    // OpenZFS: include/sys/fs/zfs.h, zfs_keyformat
    pub(crate) fn of(number: u64, salt: u64, iterations: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Raw,
            2 => Self::Hex,
            3 => Self::Passphrase { salt, iterations },
            _ => return None,
        })
    }

    /// Its number on disk, with salt and iterations (0 where there are none).
    pub(crate) fn numbers(self) -> (u64, u64, u64) {
        match self {
            Self::Raw => (1, 0, 0),
            Self::Hex => (2, 0, 0),
            Self::Passphrase { salt, iterations } => (3, salt, iterations),
        }
    }

    /// Whether keys of both are given in the same form.
    pub(crate) fn is_like(self, other: Self) -> bool {
        self.numbers().0 == other.numbers().0
    }
}

/// The wrapping key of a dataset that becomes an encryption root. It prints without its bytes.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// How it was made; salt and iterations are stored with it.
    pub format: KeyFormat,
    /// The key.
    pub key: Arc<WrappingKey>,
}

/// A wrapping key that the one who creates a dataset, or changes its key, has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedKey {
    /// How it is to be made; the salt was drawn for it.
    pub format: KeyFormat,
    /// Where it is, as in the property `keylocation`.
    pub location: String,
}
