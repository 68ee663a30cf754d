//! The keys of a dataset, the key that wraps them, and what is derived from them.

use std::num::NonZeroU32;

use aws_lc_rs::{digest, hkdf, hmac, pbkdf2};
use zeroize::Zeroizing;

use super::secret::Secret;
use super::{
    Cipher, CryptError, HMAC_KEY_LEN, IV_LEN, MAC_LEN, MASTER_KEY_LEN_MAX, Mode, SALT_LEN, Suite,
    WRAPPING_KEY_LEN,
};

/// HMAC-SHA512 of bytes; those stored are truncated to 16 or 32.
pub type Mac512 = [u8; 64];

/// The key a user gives, which encrypts the keys of datasets and nothing else. It prints without its bytes.
#[derive(Debug)]
pub struct WrappingKey(Secret);

impl WrappingKey {
    /// Takes the 32 bytes of a raw key.
    ///
    /// # Errors
    /// [`CryptError::MalformedKey`] for another length, [`CryptError::Memory`].
    pub fn from_raw(key: &[u8]) -> Result<Self, CryptError> {
        if key.len() != WRAPPING_KEY_LEN {
            return Err(CryptError::MalformedKey);
        }
        Ok(Self(Secret::filled(WRAPPING_KEY_LEN, |bytes| {
            bytes.copy_from_slice(key);
        })?))
    }

    /// Takes 64 hexadecimal digits, of either case.
    ///
    /// # Errors
    /// [`CryptError::MalformedKey`] for anything else, [`CryptError::Memory`].
    pub fn from_hex(digits: &[u8]) -> Result<Self, CryptError> {
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != WRAPPING_KEY_LEN || !rest.is_empty() {
            return Err(CryptError::MalformedKey);
        }
        let mut secret = Secret::zeroed(WRAPPING_KEY_LEN)?;
        for (byte, [high, low]) in secret.bytes_mut().iter_mut().zip(pairs) {
            let high = hex_digit(*high).ok_or(CryptError::MalformedKey)?;
            let low = hex_digit(*low).ok_or(CryptError::MalformedKey)?;
            *byte = high << 4 | low;
        }
        Ok(Self(secret))
    }

    /// Derives the key from a passphrase: PBKDF2 with HMAC-SHA1. It takes a third of a second for the usual 350,000 iterations.
    ///
    /// # Errors
    /// [`CryptError::Iterations`], [`CryptError::Memory`].
    // OpenZFS: lib/libzfs/libzfs_crypto.c, derive_key: the salt is the property's number as little-endian bytes.
    pub fn from_passphrase(
        passphrase: &[u8],
        salt: u64,
        iterations: u64,
    ) -> Result<Self, CryptError> {
        let count = u32::try_from(iterations)
            .ok()
            .and_then(NonZeroU32::new)
            .ok_or(CryptError::Iterations(iterations))?;
        Ok(Self(Secret::filled(WRAPPING_KEY_LEN, |bytes| {
            pbkdf2::derive(
                pbkdf2::PBKDF2_HMAC_SHA1,
                count,
                &salt.to_le_bytes(),
                passphrase,
                bytes,
            );
        })?))
    }
}

/// Bytes of a wrapping key that another one encrypts: the key, then the authentication code.
pub const ENCRYPTED_WRAPPING_KEY_LEN: usize = WRAPPING_KEY_LEN + MAC_LEN;

impl WrappingKey {
    /// Encrypts this key under another one with AES-256-GCM, to be kept outside of the pool; `about` is authenticated with it. `iv`
    /// must not have been used with the other key.
    ///
    /// # Errors
    /// [`CryptError::Memory`].
    pub fn encrypt_under(
        &self,
        outer: &Self,
        iv: [u8; IV_LEN],
        about: &[u8],
    ) -> Result<[u8; ENCRYPTED_WRAPPING_KEY_LEN], CryptError> {
        let cipher = Cipher::new(Mode::Gcm, outer.0.bytes())?;
        // Encrypted where it lies in memory for secrets.
        let mut copy = Secret::filled(WRAPPING_KEY_LEN, |bytes| {
            bytes.copy_from_slice(self.0.bytes());
        })?;
        let mac = cipher.encrypt(&iv, about, copy.bytes_mut())?;
        let mut encrypted = [0; ENCRYPTED_WRAPPING_KEY_LEN];
        let (key, code) = encrypted.split_at_mut(WRAPPING_KEY_LEN);
        key.copy_from_slice(copy.bytes());
        code.copy_from_slice(&mac);
        Ok(encrypted)
    }

    /// Decrypts what [`Self::encrypt_under`] made.
    ///
    /// # Errors
    /// [`CryptError::Forged`] for another key or changed bytes, [`CryptError::Memory`].
    pub fn decrypt_under(
        encrypted: &[u8; ENCRYPTED_WRAPPING_KEY_LEN],
        outer: &Self,
        iv: [u8; IV_LEN],
        about: &[u8],
    ) -> Result<Self, CryptError> {
        let cipher = Cipher::new(Mode::Gcm, outer.0.bytes())?;
        let (key, code) = encrypted.split_at(WRAPPING_KEY_LEN);
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(code);
        let mut opened = Secret::filled(WRAPPING_KEY_LEN, |bytes| bytes.copy_from_slice(key))?;
        cipher.decrypt(&iv, about, opened.bytes_mut(), &mac)?;
        Ok(Self(opened))
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// The keys of a dataset as they are stored: encrypted under a wrapping key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrappedKeys {
    pub suite: Suite,
    /// Identity of the keys, which stays when they are wrapped anew.
    pub guid: u64,
    /// Version of this form: 0 or 1.
    pub version: u64,
    pub iv: [u8; IV_LEN],
    pub mac: [u8; MAC_LEN],
    /// The first bytes, as many as the suite's keys have; zeros after them.
    pub master_key: [u8; MASTER_KEY_LEN_MAX],
    pub hmac_key: [u8; HMAC_KEY_LEN],
}

impl WrappedKeys {
    /// Decrypts the keys.
    ///
    /// # Errors
    /// [`CryptError::Forged`] when it is the wrong wrapping key, or the stored form was changed. [`CryptError::Memory`].
    pub fn unwrap_with(&self, wrapping_key: &WrappingKey) -> Result<DatasetKeys, CryptError> {
        let key_len = self.suite.key_len();
        let mut secret = Secret::zeroed(key_len + HMAC_KEY_LEN)?;
        let (master, hmac) = secret.bytes_mut().split_at_mut(key_len);
        master.copy_from_slice(self.master_key.split_at(key_len).0);
        hmac.copy_from_slice(&self.hmac_key);
        let aad = wrapping_aad(self.guid, self.suite, self.version);
        wrapping_cipher(self.suite, wrapping_key)?.decrypt(
            &self.iv,
            &aad,
            secret.bytes_mut(),
            &self.mac,
        )?;
        Ok(DatasetKeys {
            suite: self.suite,
            guid: self.guid,
            secret,
        })
    }
}

/// Wrapping keys have 32 bytes for every suite: it is AES-256 in the suite's mode that wraps.
// OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_key_wrap
fn wrapping_cipher(suite: Suite, wrapping_key: &WrappingKey) -> Result<Cipher, CryptError> {
    Cipher::new(suite.mode(), wrapping_key.0.bytes())
}

/// What is authenticated with wrapped keys: of version 0 their identity, later also suite and version.
fn wrapping_aad(guid: u64, suite: Suite, version: u64) -> Vec<u8> {
    let mut aad = guid.to_le_bytes().to_vec();
    if version > 0 {
        aad.extend(suite.number().to_le_bytes());
        aad.extend(version.to_le_bytes());
    }
    aad
}

/// The keys of a dataset, in the clear: from the master key those of blocks are derived, the other one makes MACs.
pub struct DatasetKeys {
    suite: Suite,
    guid: u64,
    /// The master key, then the HMAC key.
    secret: Secret,
}

impl DatasetKeys {
    /// The version that [`Self::wrap_with`] writes.
    // OpenZFS: include/sys/zio_crypt.h, ZIO_CRYPT_KEY_CURRENT_VERSION
    pub const VERSION: u64 = 1;

    /// Makes new keys. `random` fills a buffer with bytes that cannot be guessed.
    ///
    /// # Errors
    /// [`CryptError::Memory`].
    pub fn generate(
        suite: Suite,
        guid: u64,
        random: impl FnOnce(&mut [u8]),
    ) -> Result<Self, CryptError> {
        let secret = Secret::filled(suite.key_len() + HMAC_KEY_LEN, random)?;
        Ok(Self {
            suite,
            guid,
            secret,
        })
    }

    /// Whether these are the same keys, as a clone has those of its origin: what one encrypted, the other decrypts.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.suite == other.suite && self.secret.bytes() == other.secret.bytes()
    }

    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Identity of the keys.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Encrypts the keys to be stored. `iv` must not have been used with this wrapping key.
    ///
    /// # Errors
    /// [`CryptError`] of the cipher; with a wrapping key of this module there is none.
    pub fn wrap_with(
        &self,
        wrapping_key: &WrappingKey,
        iv: [u8; IV_LEN],
    ) -> Result<WrappedKeys, CryptError> {
        let mut data = Zeroizing::new(self.secret.bytes().to_vec());
        let aad = wrapping_aad(self.guid, self.suite, Self::VERSION);
        let mac = wrapping_cipher(self.suite, wrapping_key)?.encrypt(&iv, &aad, &mut data)?;
        let (master, hmac) = data.split_at(self.suite.key_len());
        let mut master_key = [0; MASTER_KEY_LEN_MAX];
        master_key
            .split_at_mut(master.len())
            .0
            .copy_from_slice(master);
        Ok(WrappedKeys {
            suite: self.suite,
            guid: self.guid,
            version: Self::VERSION,
            iv,
            mac,
            master_key,
            hmac_key: hmac
                .try_into()
                .expect("all but the master key is the HMAC key"),
        })
    }

    /// The cipher of the blocks that carry `salt`: its key is HKDF-SHA512 of the master key, with the salt as `info`.
    // OpenZFS: module/os/linux/zfs/hkdf.c: the salt of HKDF's own first step is empty.
    #[must_use]
    pub fn block_cipher(&self, salt: [u8; SALT_LEN]) -> Cipher {
        let extracted = hkdf::Salt::none(hkdf::HKDF_SHA512).extract(self.master_key());
        let mut key = Zeroizing::new([0; MASTER_KEY_LEN_MAX]);
        let key = key.split_at_mut(self.suite.key_len()).0;
        extracted
            .expand(&[&salt], KeyLen(key.len()))
            .and_then(|okm| okm.fill(key))
            .expect("HKDF-SHA512 gives up to 16,320 bytes");
        Cipher::new(self.suite.mode(), key).expect("a suite's keys have a length of AES")
    }

    /// HMAC-SHA512 of the concatenation of `parts` under the dataset's HMAC key.
    #[must_use]
    pub fn hmac<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Mac512 {
        let key = hmac::Key::new(hmac::HMAC_SHA512, self.hmac_key());
        let mut context = hmac::Context::with_key(&key);
        for part in parts {
            context.update(part);
        }
        context
            .sign()
            .as_ref()
            .try_into()
            .expect("HMAC-SHA512 has 64 bytes")
    }

    fn master_key(&self) -> &[u8] {
        self.secret.bytes().split_at(self.suite.key_len()).0
    }

    fn hmac_key(&self) -> &[u8] {
        self.secret.bytes().split_at(self.suite.key_len()).1
    }
}

impl std::fmt::Debug for DatasetKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatasetKeys")
            .field("suite", &self.suite)
            .field("guid", &self.guid)
            .finish_non_exhaustive()
    }
}

/// How many bytes HKDF is to give.
struct KeyLen(usize);

impl hkdf::KeyType for KeyLen {
    fn len(&self) -> usize {
        self.0
    }
}

/// SHA-512 of the concatenation of `parts`: what indirect blocks carry about the MACs below them.
#[must_use]
pub fn sha512<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 64] {
    let mut context = digest::Context::new(&digest::SHA512);
    for part in parts {
        context.update(part);
    }
    context
        .finish()
        .as_ref()
        .try_into()
        .expect("SHA-512 has 64 bytes")
}
