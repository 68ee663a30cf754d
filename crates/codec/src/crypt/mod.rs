//! Encryption of datasets: authenticated ciphers, the derivation of keys, and the wrapping of a dataset's keys.
//!
//! ```text
//! passphrase --PBKDF2--> wrapping key --AEAD--> master key --HKDF(salt)--> key of a block --AEAD--> block
//!                                        \----> HMAC key ----------------> MACs of objsets and of plain blocks
//! ```
//! Guarantees: keys live in memory that is zeroed when dropped, and neither swapped nor dumped where the system allows that
//! ([`secret`]); no type that holds one prints it; a buffer that failed its authentication is zeroed before the error is returned.
//! What it does not know: block pointers, which bytes of a block are encrypted, where salts and IVs come from. OpenZFS:
//! module/os/linux/zfs/zio_crypt.c, include/sys/zio_crypt.h.

mod aead;
mod keys;
pub mod secret;
#[cfg(test)]
mod tests;

pub use aead::Cipher;
pub use keys::{DatasetKeys, ENCRYPTED_WRAPPING_KEY_LEN, Mac512, WrappedKeys, WrappingKey, sha512};

/// Bytes of an initialisation vector.
pub const IV_LEN: usize = 12;
/// Bytes of the authentication code of an AEAD.
pub const MAC_LEN: usize = 16;
/// Bytes of the salt from which the key of a block is derived.
pub const SALT_LEN: usize = 8;
/// Bytes of a wrapping key, whatever the suite.
pub const WRAPPING_KEY_LEN: usize = 32;
/// Bytes in which a master key is stored; shorter keys are followed by zeros.
pub const MASTER_KEY_LEN_MAX: usize = 32;
/// Bytes of a dataset's HMAC key.
pub const HMAC_KEY_LEN: usize = 64;

/// Why something could not be encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    /// The authentication code does not belong to these bytes under this key: a wrong key, or changed bytes.
    #[error("authentication failed")]
    Forged,
    /// More bytes than the mode of operation can encrypt under one IV (CCM with 12-byte IVs: 16 MiB less one byte).
    #[error("{0} bytes are too many for the cipher")]
    TooLong(usize),
    /// A key of the wrong length or with characters that are no digits.
    #[error("malformed key")]
    MalformedKey,
    /// The iterations of PBKDF2 are zero or beyond 32 bits.
    #[error("{0} iterations of the key derivation are out of range")]
    Iterations(u64),
    /// There is no memory for a key.
    #[error("no memory for a key")]
    Memory(#[from] secret::MapError),
}

/// Mode of operation of AES.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Ccm,
    Gcm,
}

/// A cipher as datasets name it: key length and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    Aes128Ccm,
    Aes192Ccm,
    Aes256Ccm,
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
}

impl Suite {
    /// The suite with this number on disk (`DSL_CRYPTO_SUITE`, and the property `encryption`), if there is one.
    // OpenZFS: include/sys/zio.h, enum zio_encrypt
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            3 => Self::Aes128Ccm,
            4 => Self::Aes192Ccm,
            5 => Self::Aes256Ccm,
            6 => Self::Aes128Gcm,
            7 => Self::Aes192Gcm,
            8 => Self::Aes256Gcm,
            _ => return None,
        })
    }

    /// Its number on disk.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Aes128Ccm => 3,
            Self::Aes192Ccm => 4,
            Self::Aes256Ccm => 5,
            Self::Aes128Gcm => 6,
            Self::Aes192Gcm => 7,
            Self::Aes256Gcm => 8,
        }
    }

    /// Bytes of the master key and of the keys derived from it.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    #[must_use]
    pub const fn mode(self) -> Mode {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Mode::Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Mode::Gcm,
        }
    }
}
