//! Files that keep the key of an encryption root outside of its pool (`zfs key export` and `import`).
//!
//! ```text
//! sanbox wrapped key 1
//! dataset tank/secret
//! guid 1234567890                    of the dataset
//! keyguid 9876543210                 of its keys, which outlives renames and raw streams
//! exported 1790000000                seconds since 1970
//! kdf argon2id 65536 3 1 SALT        memory in KiB, passes, lanes; the salt in hexadecimal digits
//! key IV ENCRYPTED                      AES-256-GCM; the key of the file is argon2id of its passphrase
//! ```
//! What is encrypted is the *wrapping key* of the encryption root: 32 bytes that open it, and all that inherits from it, until the key is
//! changed. The lines above it are authenticated with it. Guarantees: a file from elsewhere costs no more memory and time than
//! [`MEMORY_KIB_MAX`] and [`PASSES_MAX`] say, whatever it holds.

use std::fmt::Write as _;

use argon2::{Algorithm, Argon2, Params, Version};
use engine::{EncryptedKey, WrappingKey};
use zeroize::Zeroizing;

use crate::secret::{hex, random};

/// Bytes that a file may have.
pub const FILE_BYTES_MAX: usize = 4096;
/// Cost of the passphrase of a new file.
// RFC 9106, section 4: "t=3 iterations, p=4 lanes, m=2^(16) (64 MiB of RAM)"; one lane, since lanes are computed one after the other here.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 1;
/// Cost that is taken from a file, at most.
pub const MEMORY_KIB_MAX: u32 = 256 << 10;
/// As [`MEMORY_KIB_MAX`], of passes.
pub const PASSES_MAX: u32 = 10;
/// As [`MEMORY_KIB_MAX`], of lanes.
const LANES_MAX: u32 = 4;

const TITLE: &str = "sanbox wrapped key 1";

/// Why a file gives no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// It is no such file, or it was changed so that it cannot be read.
    #[error("this is no file of 'zfs key export', or it is damaged: {0}")]
    Malformed(&'static str),
    /// The passphrase is another, or what the file says was changed.
    #[error("the passphrase is not that of the file, or the file was changed")]
    Forged,
    /// There is no memory, or there are no random bytes.
    #[error("{0}")]
    System(String),
}

/// What identifies the key in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOwner {
    /// Name of the encryption root when the file was written.
    pub dataset: String,
    /// Its guid.
    pub guid: u64,
    /// That of its keys.
    pub key_guid: u64,
    /// When the file was written, in seconds since 1970.
    pub exported: u64,
}

/// The head of a file: all that is authenticated with the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFileHead {
    owner: KeyOwner,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: [u8; 16],
    iv: [u8; 12],
}

impl KeyFileHead {
    /// Begins a new file.
    ///
    /// # Errors
    /// `System`.
    pub fn new(owner: KeyOwner) -> Result<Self, KeyFileError> {
        let system = |error: std::io::Error| KeyFileError::System(error.to_string());
        Ok(Self {
            owner,
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            lanes: LANES,
            salt: random().map_err(system)?,
            iv: random().map_err(system)?,
        })
    }

    /// Takes a file apart.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn parse(text: &[u8]) -> Result<(Self, EncryptedKey), KeyFileError> {
        use KeyFileError::Malformed;
        if text.len() > FILE_BYTES_MAX {
            return Err(Malformed("it is too long"));
        }
        let text = std::str::from_utf8(text).map_err(|_| Malformed("it is no text"))?;
        let mut lines = text.lines().map(str::trim_end);
        if lines.next() != Some(TITLE) {
            return Err(Malformed("it does not begin as one"));
        }
        let mut field = |name: &'static str| {
            let line = lines.next().unwrap_or_default();
            let value = line
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(' '));
            value.ok_or(Malformed(name))
        };
        let number = |text: &str, name| text.parse::<u64>().map_err(|_| Malformed(name));
        let owner = KeyOwner {
            dataset: field("dataset")?.to_owned(),
            guid: number(field("guid")?, "guid")?,
            key_guid: number(field("keyguid")?, "keyguid")?,
            exported: number(field("exported")?, "exported")?,
        };
        let kdf: Vec<&str> = field("kdf")?.split(' ').collect();
        let [name, memory, passes, lanes, salt] = kdf[..] else {
            return Err(Malformed("kdf"));
        };
        let cost = |text: &str, most: u32| {
            let cost = text.parse().ok().filter(|cost| (1..=most).contains(cost));
            cost.ok_or(Malformed("kdf"))
        };
        if name != "argon2id" {
            return Err(Malformed("kdf"));
        }
        let encrypted = field("key")?.split_once(' ');
        let (iv, encrypted) = encrypted.ok_or(Malformed("key"))?;
        let head = Self {
            owner,
            memory_kib: cost(memory, MEMORY_KIB_MAX)?,
            passes: cost(passes, PASSES_MAX)?,
            lanes: cost(lanes, LANES_MAX)?,
            salt: unhex(salt).ok_or(Malformed("kdf"))?,
            iv: unhex(iv).ok_or(Malformed("key"))?,
        };
        let encrypted = unhex(encrypted).ok_or(Malformed("key"))?;
        Ok((head, encrypted))
    }

    /// What is authenticated with the key: the lines above it.
    #[must_use]
    pub fn about(&self) -> Vec<u8> {
        let Self {
            owner,
            memory_kib,
            passes,
            lanes,
            salt,
            ..
        } = self;
        let text = format!(
            "{TITLE}\ndataset {}\nguid {}\nkeyguid {}\nexported {}\nkdf argon2id {memory_kib} {passes} {lanes} {}\n",
            owner.dataset,
            owner.guid,
            owner.key_guid,
            owner.exported,
            hex(salt)
        );
        text.into_bytes()
    }

    /// The IV of the encrypted key.
    #[must_use]
    pub fn iv(&self) -> [u8; 12] {
        self.iv
    }

    /// Whose key the file says it holds.
    #[must_use]
    pub fn owner(&self) -> &KeyOwner {
        &self.owner
    }

    /// Derives the key of the file from its passphrase; takes some tenths of a second and the memory that the file says.
    ///
    /// # Errors
    /// `System`, `Malformed`.
    pub fn outer_key(&self, passphrase: &[u8]) -> Result<WrappingKey, KeyFileError> {
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(32));
        let params = params.map_err(|_| KeyFileError::Malformed("kdf"))?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let mut key = Zeroizing::new([0; 32]);
        let derived = argon2.hash_password_into(passphrase, &self.salt, &mut *key);
        derived.map_err(|error| KeyFileError::System(error.to_string()))?;
        WrappingKey::from_raw(&*key).map_err(|error| KeyFileError::System(error.to_string()))
    }

    /// Opens the key in the file.
    ///
    /// # Errors
    /// `Forged`, `System`.
    pub fn open(
        &self,
        encrypted: &EncryptedKey,
        passphrase: &[u8],
    ) -> Result<WrappingKey, KeyFileError> {
        let outer = self.outer_key(passphrase)?;
        WrappingKey::decrypt_under(encrypted, &outer, self.iv, &self.about())
            .map_err(|_| KeyFileError::Forged)
    }

    /// The whole file.
    #[must_use]
    pub fn text(&self, encrypted: &EncryptedKey) -> String {
        let mut text = String::from_utf8_lossy(&self.about()).into_owned();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "key {} {}", hex(&self.iv), hex(encrypted));
        text
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (String, Vec<u8>) {
        let owner = KeyOwner {
            dataset: "tank/a b".to_owned(),
            guid: 7,
            key_guid: 8,
            exported: 9,
        };
        let mut head = KeyFileHead::new(owner).expect("random bytes");
        // Quick: the cost is no matter of this test.
        (head.memory_kib, head.passes) = (64, 1);
        let outer = head.outer_key(b"a passphrase").expect("a key");
        let key = WrappingKey::from_raw(&[5; 32]).expect("a key");
        let encrypted = key.encrypt_under(&outer, head.iv(), &head.about());
        (head.text(&encrypted.expect("encrypted")), vec![5; 32])
    }

    #[test]
    fn a_file_opens_with_its_passphrase_and_not_when_anything_is_changed() {
        let (text, _) = file();
        let open = |text: &str, passphrase: &[u8]| {
            let (head, encrypted) = KeyFileHead::parse(text.as_bytes())?;
            head.open(&encrypted, passphrase).map(|_| head)
        };
        let head = open(&text, b"a passphrase").expect("the same");
        assert_eq!(head.owner().dataset, "tank/a b");
        assert!(open(&text.replace('\n', "\r\n"), b"a passphrase").is_ok());
        assert_eq!(open(&text, b"another"), Err(KeyFileError::Forged));
        for (from, to) in [
            ("a b", "a c"),
            ("\nguid 7", "\nguid 6"),
            (" 64 1 1 ", " 65 1 1 "),
        ] {
            let changed = open(&text.replacen(from, to, 1), b"a passphrase");
            assert_eq!(changed, Err(KeyFileError::Forged), "{to}");
        }
        for (from, to) in [
            ("argon2id", "scrypt"),
            (" 64 1 1 ", " 4294967295 1 1 "),
            (" 64 1 1 ", " 64 0 1 "),
            ("\nkey ", "\nkey 0"),
            ("wrapped key 1", "wrapped key 2"),
        ] {
            let changed = open(&text.replacen(from, to, 1), b"a passphrase");
            assert!(
                matches!(changed, Err(KeyFileError::Malformed(_))),
                "{to}: {changed:?}"
            );
        }
        for end in 0..text.len() - 1 {
            assert!(
                KeyFileHead::parse(&text.as_bytes()[..end]).is_err(),
                "{end}"
            );
        }
        assert!(KeyFileHead::parse(&[0xff; 100]).is_err());
    }
}
