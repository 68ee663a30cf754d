//! Encryption of blocks: what becomes of a block of an encrypted dataset on its way to the devices, and back.
//!
//! ```text
//!   indirect block     in the clear; its MAC is the SHA-512 of the MACs below it
//!   objset block       in the clear; two MACs inside it
//!   block of dnodes    bonus buffers encrypted, the rest authenticated
//!   encrypted type     encrypted after compression
//!   log block          bodies of records encrypted, pointers in them and headers authenticated
//!   any other type     in the clear; HMAC of the stored bytes
//! ```
//! Guarantees: bytes are returned only if their MAC belongs to them under the dataset's keys; an IV is drawn at random for each
//! block written, and a salt for at most [`SALT_USES_MAX`] of them, so that no IV meets the same key twice.
//! What it does not know: datasets, wrapping keys, where the keys come from.
// OpenZFS: module/os/linux/zfs/zio_crypt.c; module/zfs/zio.c, zio_encrypt and zio_decrypt

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::{Cipher, DatasetKeys, IV_LEN, MAC_LEN, SALT_LEN, sha512};
use ondisk::crypt::{
    OBJSET_LOCAL_MAC, OBJSET_PORTABLE_MAC, PartialAuth, indirect_auth, objset_local_auth,
    objset_portable_auth,
};
use ondisk::zil::LogBlock;
use ondisk::{BlockPointer, CryptParams, ObjectType};
use runtime::{Handle, IoBuf};

use crate::error::corrupt;
use crate::{Bookmark, CorruptReason, ZioError};

/// Blocks written with one salt.
// OpenZFS: module/os/linux/zfs/zio_crypt.c, ZFS_KEY_MAX_SALT_USES_DEFAULT
const SALT_USES_MAX: u64 = 400_000_000;
/// Ciphers kept; a dataset has a salt for each time its key was loaded and written with.
const CIPHERS_MAX: usize = 64;

/// The keys of a dataset, at work on its blocks. Clones share them; the keys leave the memory with the last clone, and the
/// last job under way that uses them.
#[derive(Clone)]
pub struct BlockKeys(Rc<SharedKeys>);

struct SharedKeys {
    handle: Handle,
    keys: Arc<DatasetKeys>,
    /// Ciphers by salt, the one used last at the end.
    ciphers: RefCell<Vec<([u8; SALT_LEN], Arc<Cipher>)>>,
    /// The salt of blocks being written, and how many more it is for.
    salt: Cell<([u8; SALT_LEN], u64)>,
}

impl BlockKeys {
    /// Whether these are the same keys, as a clone has those of its origin: what one encrypted, the other decrypts.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.keys, &other.0.keys) || self.0.keys.is_same(&other.0.keys)
    }
}

impl std::fmt::Debug for BlockKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlockKeys").field(&self.0.keys).finish()
    }
}

/// How the blocks of a dataset are protected when they are written.
#[derive(Debug, Clone, Default)]
pub enum Protection {
    /// They are in the clear.
    #[default]
    None,
    /// They are encrypted, or authenticated, with these keys.
    Keys(BlockKeys),
    /// They come encrypted, as a raw stream brings them: each block that has a MAC of the dataset's keys is stored as it came
    /// ([`StoredForm::crypt`](crate::StoredForm)), and the sums above them, which need no key, are made here.
    Raw,
}

impl Protection {
    /// The keys, if blocks are protected by keys at hand.
    #[must_use]
    pub fn keys(&self) -> Option<&BlockKeys> {
        match self {
            Self::Keys(keys) => Some(keys),
            Self::None | Self::Raw => None,
        }
    }

    /// What encrypts or authenticates a block of this type and level before it is stored; `None` when it is in the clear.
    /// Equal blocks are stored as equal bytes if they are to be `shared`.
    pub(crate) fn encryptor(
        &self,
        object_type: ObjectType,
        level: u8,
        shared: bool,
    ) -> Option<Encryptor> {
        match self {
            Self::None => None,
            Self::Keys(keys) => Some(keys.encryptor(object_type, level, shared)),
            Self::Raw => Some(Encryptor {
                treatment: Treatment::of(object_type, level),
                own: None,
            }),
        }
    }
}

/// What a block's pointer carries that was encrypted or authenticated elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCrypt {
    /// Salt and IV; of no use for a kind that is only authenticated.
    pub params: CryptParams,
    /// The MAC over the stored bytes.
    pub mac: [u8; MAC_LEN],
}

impl BlockKeys {
    /// Puts the keys of a dataset to work. Randomness of salts and IVs is the handle's.
    #[must_use]
    pub fn new(handle: &Handle, keys: DatasetKeys) -> Self {
        Self(Rc::new(SharedKeys {
            handle: handle.clone(),
            keys: Arc::new(keys),
            ciphers: RefCell::default(),
            salt: Cell::new(([0; SALT_LEN], 0)),
        }))
    }

    /// The keys, to be wrapped anew.
    #[must_use]
    pub fn dataset_keys(&self) -> &DatasetKeys {
        &self.0.keys
    }

    /// Whether these are the only handle to the keys: no open objset, and no log, uses them.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Writes the two MACs of an objset block into it.
    ///
    /// # Panics
    /// When the block is shorter than an objset.
    pub fn authenticate_objset(&self, block: &mut [u8]) {
        let (portable, local) = objset_macs(&self.0.keys, block)
            .expect("an objset block that is written has its full length");
        block[OBJSET_PORTABLE_MAC].copy_from_slice(&portable);
        block[OBJSET_LOCAL_MAC].copy_from_slice(&local);
    }

    /// Encrypts the records of a slim log block in place, under the salt and IV of its pointer, and returns the MAC. Its header
    /// is complete but for the checksum.
    ///
    /// # Errors
    /// When its records leave it.
    pub fn encrypt_log(
        &self,
        bp: &BlockPointer,
        block: &mut [u8],
    ) -> Result<[u8; MAC_LEN], ZioError> {
        let params = bp.crypt_params();
        let encrypted = PartialAuth::of_log(block).ok().and_then(|auth| {
            let mut bodies = auth.gather(block);
            let mac = self
                .cipher(params.salt)
                .encrypt(&params.iv, &auth.aad, &mut bodies)
                .ok()?;
            auth.scatter(&bodies, block);
            Some(mac)
        });
        encrypted.ok_or_else(|| {
            let reason = CorruptReason::Pointer("records that leave their log block");
            corrupt(bp, Bookmark::default(), reason)
        })
    }

    /// Decrypts the records of a slim log block in place; `false` when they are not authentic.
    #[must_use]
    pub fn decrypt_log(&self, bp: &BlockPointer, block: &mut [u8]) -> bool {
        let params = bp.crypt_params();
        let opened = PartialAuth::of_log(block).ok().and_then(|auth| {
            let mut bodies = auth.gather(block);
            let (cipher, mac) = (self.cipher(params.salt), LogBlock::mac(block));
            cipher
                .decrypt(&params.iv, &auth.aad, &mut bodies, &mac)
                .ok()?;
            auth.scatter(&bodies, block);
            Some(())
        });
        opened.is_some()
    }

    /// The cipher of the blocks with this salt.
    fn cipher(&self, salt: [u8; SALT_LEN]) -> Arc<Cipher> {
        let mut ciphers = self.0.ciphers.borrow_mut();
        let at = ciphers.iter().rposition(|(known, _)| *known == salt);
        let found = match at {
            Some(at) if at + 1 == ciphers.len() => return Arc::clone(&ciphers[at].1),
            Some(at) => ciphers.remove(at),
            None => (salt, Arc::new(self.0.keys.block_cipher(salt))),
        };
        if ciphers.len() == CIPHERS_MAX {
            ciphers.remove(0);
        }
        let cipher = Arc::clone(&found.1);
        ciphers.push(found);
        cipher
    }

    /// Salt and IV for a block that is about to be written.
    pub(crate) fn new_params(&self) -> CryptParams {
        let (mut salt, mut left) = self.0.salt.get();
        if left == 0 {
            self.0.handle.fill_random(&mut salt);
            left = SALT_USES_MAX;
        }
        self.0.salt.set((salt, left - 1));
        let mut iv = [0; IV_LEN];
        self.0.handle.fill_random(&mut iv);
        CryptParams { salt, iv }
    }

    /// What opens a stored block.
    pub(crate) fn decryptor(&self, bp: &BlockPointer) -> Decryptor {
        let treatment = Treatment::of(bp.object_type(), bp.level());
        let params = bp.crypt_params();
        Decryptor {
            treatment,
            mac: bp.mac(),
            iv: params.iv,
            cipher: treatment.encrypts().then(|| self.cipher(params.salt)),
            keys: Arc::clone(&self.0.keys),
        }
    }

    /// The stored bytes of a block that had the same bytes before, under the salt and IV of its pointer; `None` when its MAC says that
    /// they were others, and for blocks of dnodes and pointers.
    pub(crate) fn encrypt_again(&self, bp: &BlockPointer, packed: IoBuf) -> Option<IoBuf> {
        let treatment = Treatment::of(bp.object_type(), bp.level());
        match treatment {
            Treatment::Indirect | Treatment::Objset | Treatment::Dnodes => None,
            Treatment::Authenticated => {
                (plain_mac(&self.0.keys, &packed) == bp.mac()).then_some(packed)
            }
            Treatment::Encrypted => {
                let params = bp.crypt_params();
                let mut data = packed.to_mut();
                let mac = self
                    .cipher(params.salt)
                    .encrypt(&params.iv, &[], &mut data)
                    .ok()?;
                // Other bytes under the same IV must not leave this function.
                (mac == bp.mac()).then(|| data.freeze())
            }
        }
    }

    /// What encrypts or authenticates a block of this type and level before it is stored.
    pub(crate) fn encryptor(&self, object_type: ObjectType, level: u8, shared: bool) -> Encryptor {
        let treatment = Treatment::of(object_type, level);
        let encryption = treatment.encrypts().then(|| match shared {
            true => Encryption::OfContents,
            false => {
                let params = self.new_params();
                Encryption::Random(params, self.cipher(params.salt))
            }
        });
        Encryptor {
            treatment,
            own: Some(OwnKeys {
                encryption,
                keys: Arc::clone(&self.0.keys),
            }),
        }
    }
}

/// How a block is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Indirect,
    Objset,
    Authenticated,
    Dnodes,
    Encrypted,
}

impl Treatment {
    fn of(object_type: ObjectType, level: u8) -> Self {
        match object_type {
            _ if level > 0 => Self::Indirect,
            ObjectType::OBJSET => Self::Objset,
            ObjectType::DNODE => Self::Dnodes,
            other if other.is_encrypted() => Self::Encrypted,
            _ => Self::Authenticated,
        }
    }

    fn encrypts(self) -> bool {
        matches!(self, Self::Dnodes | Self::Encrypted)
    }
}

/// Opens one stored block, on any thread.
pub(crate) struct Decryptor {
    treatment: Treatment,
    mac: [u8; MAC_LEN],
    iv: [u8; IV_LEN],
    cipher: Option<Arc<Cipher>>,
    keys: Arc<DatasetKeys>,
}

impl Decryptor {
    /// The bytes before encryption, if the MAC over the stored ones is right.
    pub(crate) fn authenticated(&self, stored: &IoBuf) -> Option<IoBuf> {
        match self.treatment {
            Treatment::Indirect | Treatment::Objset => Some(stored.clone()),
            Treatment::Authenticated => {
                (plain_mac(&self.keys, stored) == self.mac).then(|| stored.clone())
            }
            Treatment::Encrypted => {
                let mut data = stored.to_mut();
                let cipher = self.cipher.as_ref()?;
                cipher.decrypt(&self.iv, &[], &mut data, &self.mac).ok()?;
                Some(data.freeze())
            }
            Treatment::Dnodes => {
                let auth = PartialAuth::of_dnodes(stored).ok()?;
                let mut bonuses = auth.gather(stored);
                let cipher = self.cipher.as_ref()?;
                cipher
                    .decrypt(&self.iv, &auth.aad, &mut bonuses, &self.mac)
                    .ok()?;
                let mut block = stored.to_mut();
                auth.scatter(&bonuses, &mut block);
                Some(block.freeze())
            }
        }
    }

    /// Whether a MAC that is over the logical bytes is right.
    pub(crate) fn agrees(&self, logical: &[u8]) -> bool {
        match self.treatment {
            Treatment::Indirect => indirect_mac(logical) == self.mac,
            Treatment::Objset => {
                objset_macs(&self.keys, logical).is_some_and(|(portable, local)| {
                    logical.get(OBJSET_PORTABLE_MAC) == Some(portable.as_slice())
                        && logical.get(OBJSET_LOCAL_MAC) == Some(local.as_slice())
                })
            }
            _ => true,
        }
    }
}

/// Encrypts or authenticates one block, on any thread.
pub(crate) struct Encryptor {
    treatment: Treatment,
    /// `None` when the blocks come encrypted.
    own: Option<OwnKeys>,
}

/// What blocks are encrypted and authenticated with here.
struct OwnKeys {
    encryption: Option<Encryption>,
    keys: Arc<DatasetKeys>,
}

/// Where salt and IV of a block come from.
enum Encryption {
    /// They were drawn.
    Random(CryptParams, Arc<Cipher>),
    /// From the HMAC of the bytes that are encrypted, so that equal ones under the same keys stay equal. Other bytes have
    /// others.
    // OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_generate_iv_salt_dedup
    OfContents,
}

impl Encryption {
    fn for_bytes(&self, keys: &DatasetKeys, bytes: &[u8]) -> (CryptParams, Arc<Cipher>) {
        match self {
            Self::Random(params, cipher) => (*params, Arc::clone(cipher)),
            Self::OfContents => {
                let digest = keys.hmac([bytes]);
                let (mut salt, mut iv) = ([0; SALT_LEN], [0; IV_LEN]);
                salt.copy_from_slice(&digest[..SALT_LEN]);
                iv.copy_from_slice(&digest[SALT_LEN..SALT_LEN + IV_LEN]);
                let cipher = Arc::new(keys.block_cipher(salt));
                (CryptParams { salt, iv }, cipher)
            }
        }
    }
}

/// A block as it is stored, and what its pointer carries for it.
pub(crate) struct Encrypted {
    pub(crate) bytes: IoBuf,
    pub(crate) params: Option<CryptParams>,
    pub(crate) mac: Option<[u8; MAC_LEN]>,
}

impl Encryptor {
    /// Whether a block of zeros becomes a hole though nothing is compressed.
    // OpenZFS: module/zfs/dmu.c, dmu_write_policy (ZIO_COMPRESS_EMPTY)
    pub(crate) fn finds_holes(&self) -> bool {
        self.treatment == Treatment::Dnodes
    }

    /// Whether blocks of this kind may be compressed.
    pub(crate) fn may_compress(&self) -> bool {
        !matches!(self.treatment, Treatment::Dnodes | Treatment::Objset)
    }

    /// Whether the stored bytes are others than the block's.
    pub(crate) fn encrypts(&self) -> bool {
        self.treatment.encrypts()
    }

    /// Takes the logical bytes and those to be stored, compressed and padded; and salt, IV and MAC of a block that comes encrypted.
    ///
    /// # Errors
    /// When there are more bytes than the cipher can take, dnodes that leave their block, or no MAC where one must come.
    pub(crate) fn encrypt(
        &self,
        logical: &[u8],
        stored: IoBuf,
        given: Option<StoredCrypt>,
    ) -> Result<Encrypted, &'static str> {
        if let Some(StoredCrypt { params, mac }) = given {
            return Ok(Encrypted {
                bytes: stored,
                params: self.encrypts().then_some(params),
                mac: Some(mac),
            });
        }
        match (self.treatment, &self.own) {
            (Treatment::Indirect, _) => Ok(Encrypted {
                bytes: stored,
                params: None,
                mac: Some(indirect_mac(logical)),
            }),
            (Treatment::Objset, _) => Ok(Encrypted {
                bytes: stored,
                params: None,
                mac: None,
            }),
            (_, None) => Err("a block that comes encrypted without its MAC"),
            (treatment, Some(own)) => own.encrypt(treatment, stored),
        }
    }
}

impl OwnKeys {
    fn encrypt(&self, treatment: Treatment, stored: IoBuf) -> Result<Encrypted, &'static str> {
        let encryption = self.encryption.as_ref();
        let encryption = encryption.map(|from| from.for_bytes(&self.keys, &stored));
        let encrypted = |bytes, mac| Encrypted {
            bytes,
            params: encryption.as_ref().map(|(params, _)| *params),
            mac: Some(mac),
        };
        let too_long = |_| "a block too long for its cipher";
        Ok(match (treatment, &encryption) {
            (Treatment::Dnodes, Some((params, cipher))) => {
                let auth =
                    PartialAuth::of_dnodes(&stored).map_err(|_| "dnodes that leave their block")?;
                let mut bonuses = auth.gather(&stored);
                let mac = cipher
                    .encrypt(&params.iv, &auth.aad, &mut bonuses)
                    .map_err(too_long)?;
                let mut block = stored.to_mut();
                auth.scatter(&bonuses, &mut block);
                encrypted(block.freeze(), mac)
            }
            (Treatment::Encrypted, Some((params, cipher))) => {
                let mut data = stored.to_mut();
                let mac = cipher
                    .encrypt(&params.iv, &[], &mut data)
                    .map_err(too_long)?;
                encrypted(data.freeze(), mac)
            }
            (_, _) => {
                let mac = plain_mac(&self.keys, &stored);
                encrypted(stored, mac)
            }
        })
    }
}

/// The MAC of a block that is stored in the clear.
fn plain_mac(keys: &DatasetKeys, stored: &[u8]) -> [u8; MAC_LEN] {
    truncated(&keys.hmac([stored]))
}

fn indirect_mac(block: &[u8]) -> [u8; MAC_LEN] {
    truncated(&sha512([indirect_auth(block).as_slice()]))
}

/// The portable and the local MAC of an objset block; `None` when it is too short.
fn objset_macs(keys: &DatasetKeys, block: &[u8]) -> Option<([u8; 32], [u8; 32])> {
    let portable = objset_portable_auth(block).ok()?;
    let local = objset_local_auth(block).ok()?;
    let mac = |auth: &[u8]| truncated(&keys.hmac([auth]));
    Some((mac(&portable), local.map_or([0; 32], |local| mac(&local))))
}

fn truncated<const N: usize>(mac: &[u8; 64]) -> [u8; N] {
    std::array::from_fn(|at| mac[at])
}
