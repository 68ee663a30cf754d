//! AES-GCM and AES-CCM with 12-byte IVs and 16-byte MACs.
//!
//! GCM is AWS-LC's (with the processor's AES and carry-less multiplication); CCM, which only older datasets use, is RustCrypto's.

use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM};
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use ccm::Ccm;
use ccm::aead::{AeadInOut as _, KeyInit as _};
use ccm::consts::{U12, U16};

use super::{CryptError, IV_LEN, MAC_LEN, Mode};

/// Bytes that CCM can encrypt at once: with a 12-byte IV, 3 bytes are left for the length. RFC 3610, section 2.1.
const CCM_LEN_MAX: usize = (1 << 24) - 1;

/// A key, expanded for use. It prints as its mode.
///
/// An IV may be used once with a key to encrypt: with GCM a second use gives away both plaintexts' difference and the
/// authentication key. The caller draws IVs, and salts of keys, from randomness that no other run repeats.
pub struct Cipher(KeySchedule);

enum KeySchedule {
    Gcm(LessSafeKey),
    Ccm128(Box<Ccm<aes::Aes128, U16, U12>>),
    Ccm192(Box<Ccm<aes::Aes192, U16, U12>>),
    Ccm256(Box<Ccm<aes::Aes256, U16, U12>>),
}

impl Cipher {
    /// Expands a key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`CryptError::MalformedKey`] for any other length.
    pub fn new(mode: Mode, key: &[u8]) -> Result<Self, CryptError> {
        let malformed = |_| CryptError::MalformedKey;
        let schedule = match (mode, key.len()) {
            (Mode::Gcm, len) => {
                let algorithm = match len {
                    16 => &AES_128_GCM,
                    24 => &AES_192_GCM,
                    32 => &AES_256_GCM,
                    _ => return Err(CryptError::MalformedKey),
                };
                let key = UnboundKey::new(algorithm, key).map_err(|_| CryptError::MalformedKey)?;
                KeySchedule::Gcm(LessSafeKey::new(key))
            }
            (Mode::Ccm, 16) => {
                KeySchedule::Ccm128(Box::new(Ccm::new_from_slice(key).map_err(malformed)?))
            }
            (Mode::Ccm, 24) => {
                KeySchedule::Ccm192(Box::new(Ccm::new_from_slice(key).map_err(malformed)?))
            }
            (Mode::Ccm, 32) => {
                KeySchedule::Ccm256(Box::new(Ccm::new_from_slice(key).map_err(malformed)?))
            }
            (Mode::Ccm, _) => return Err(CryptError::MalformedKey),
        };
        Ok(Self(schedule))
    }

    /// Encrypts `data` in place and returns the MAC over it and `aad`. `iv` must not have been used with this key.
    ///
    /// # Errors
    /// [`CryptError::TooLong`]; `data` is unchanged then.
    pub fn encrypt(
        &self,
        iv: &[u8; IV_LEN],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; MAC_LEN], CryptError> {
        let len = data.len();
        self.check_len(len)?;
        let too_long = |_| CryptError::TooLong(len);
        let tag = match &self.0 {
            KeySchedule::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(*iv);
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), data)
                    .map_err(|_| CryptError::TooLong(len))?;
                return Ok(tag
                    .as_ref()
                    .try_into()
                    .expect("the tag of AES-GCM has 16 bytes"));
            }
            KeySchedule::Ccm128(key) => key.encrypt_inout_detached(iv.into(), aad, data.into()),
            KeySchedule::Ccm192(key) => key.encrypt_inout_detached(iv.into(), aad, data.into()),
            KeySchedule::Ccm256(key) => key.encrypt_inout_detached(iv.into(), aad, data.into()),
        };
        tag.map(Into::into).map_err(too_long)
    }

    /// Verifies `mac` over `data` and `aad`, and decrypts `data` in place.
    ///
    /// # Errors
    /// [`CryptError::Forged`] when the MAC is another; `data` is zeros then. [`CryptError::TooLong`].
    pub fn decrypt(
        &self,
        iv: &[u8; IV_LEN],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_LEN],
    ) -> Result<(), CryptError> {
        self.check_len(data.len())?;
        let opened = match &self.0 {
            KeySchedule::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(*iv);
                key.open_in_place_separate_tag(nonce, Aad::from(aad), mac, data)
                    .is_ok()
            }
            KeySchedule::Ccm128(key) => key
                .decrypt_inout_detached(iv.into(), aad, (&mut *data).into(), mac.into())
                .is_ok(),
            KeySchedule::Ccm192(key) => key
                .decrypt_inout_detached(iv.into(), aad, (&mut *data).into(), mac.into())
                .is_ok(),
            KeySchedule::Ccm256(key) => key
                .decrypt_inout_detached(iv.into(), aad, (&mut *data).into(), mac.into())
                .is_ok(),
        };
        if !opened {
            data.fill(0);
            return Err(CryptError::Forged);
        }
        Ok(())
    }

    fn check_len(&self, len: usize) -> Result<(), CryptError> {
        match self.0 {
            KeySchedule::Gcm(_) => Ok(()),
            _ if len > CCM_LEN_MAX => Err(CryptError::TooLong(len)),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            KeySchedule::Gcm(_) => "Cipher(GCM)",
            _ => "Cipher(CCM)",
        })
    }
}
