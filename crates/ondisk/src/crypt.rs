//! Encrypted datasets: the stored keys, and which bytes of blocks are encrypted and which only authenticated.
//!
//! Guarantees: what is authenticated stays the same when a block moves to another place, changes its checksum function, or is
//! sent to another pool. What it does not know: ciphers and keys (`codec::crypt`).
//! OpenZFS: include/sys/dsl_crypt.h, module/os/linux/zfs/zio_crypt.c; docs/format/12-encryption.md.

use std::ops::Range;

use crate::bytes::{need, put_u8, put_u64, slice_at, u8_at, u16_at, u64_at};
use crate::zil::{LOG_ECK, LOG_USED, LogRecord, SLIM_HEADER};
use crate::zil_record::record_kind;
use crate::{BlockPointer, DNODE_MIN_SIZE, DecodeError, ObjectType, Result, dnode_flags};

/// Bytes of a dnode before its block pointers.
const CORE: usize = 64;
/// Bytes that stand for a block pointer in what is authenticated.
const BP_AUTH_SIZE: usize = 32;

/// Names of the entries of a key object.
pub mod key_entries {
    pub const SUITE: &str = "DSL_CRYPTO_SUITE";
    pub const GUID: &str = "DSL_CRYPTO_GUID";
    pub const IV: &str = "DSL_CRYPTO_IV";
    pub const MAC: &str = "DSL_CRYPTO_MAC";
    pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
    pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
    pub const ROOT_DIR: &str = "DSL_CRYPTO_ROOT_DDOBJ";
    pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
    pub const VERSION: &str = "DSL_CRYPTO_VERSION";
    pub const KEY_FORMAT: &str = "keyformat";
    pub const PBKDF2_SALT: &str = "pbkdf2salt";
    pub const PBKDF2_ITERS: &str = "pbkdf2iters";
    /// All of them.
    pub const ALL: [&str; 12] = [
        SUITE,
        GUID,
        IV,
        MAC,
        MASTER_KEY,
        HMAC_KEY,
        ROOT_DIR,
        REFCOUNT,
        VERSION,
        KEY_FORMAT,
        PBKDF2_SALT,
        PBKDF2_ITERS,
    ];
}

/// A key object: the keys of a dataset, wrapped, and how the wrapping key is made from what a user gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPhys {
    /// Number of the cipher, as in the property `encryption`.
    pub suite: u64,
    /// Identity of the keys, which stays when they are wrapped anew.
    pub guid: u64,
    /// IV of the wrapping.
    pub iv: [u8; 12],
    /// MAC of the wrapping.
    pub mac: [u8; 16],
    /// The wrapped master key; zeros behind shorter ones.
    pub master_key: [u8; 32],
    /// The wrapped HMAC key.
    pub hmac_key: [u8; 64],
    /// Directory object of the encryption root, whose wrapping key it is.
    pub root_dir: u64,
    /// Directories that use this object: clones share their origin's.
    pub refcount: u64,
    /// 1; datasets of version 0 authenticate other bytes.
    pub version: u64,
    /// 1 raw, 2 hex, 3 passphrase.
    pub key_format: u64,
    /// Salt of a passphrase, else 0.
    pub pbkdf2_salt: u64,
    /// Iterations of a passphrase, else 0.
    pub pbkdf2_iters: u64,
}

impl KeyPhys {
    /// Decodes the entries of a key object. `number` looks up an entry that is one 64-bit integer, `bytes` one of single bytes.
    ///
    /// # Errors
    /// When an entry is missing or has another length. The version may be missing (it is 0 then), and so may what only the
    /// encryption root has.
    pub fn from_entries<'a>(
        number: impl Fn(&str) -> Option<u64>,
        bytes: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Self> {
        fn sized<const N: usize>(found: Option<&[u8]>) -> Result<[u8; N]> {
            found
                .and_then(|bytes| bytes.try_into().ok())
                .ok_or(DecodeError::new("bytes of an encryption key", 0))
        }
        let required = |name| number(name).ok_or(DecodeError::new("entry of an encryption key", 0));
        Ok(Self {
            suite: required(key_entries::SUITE)?,
            guid: required(key_entries::GUID)?,
            iv: sized(bytes(key_entries::IV))?,
            mac: sized(bytes(key_entries::MAC))?,
            master_key: sized(bytes(key_entries::MASTER_KEY))?,
            hmac_key: sized(bytes(key_entries::HMAC_KEY))?,
            root_dir: required(key_entries::ROOT_DIR)?,
            refcount: number(key_entries::REFCOUNT).unwrap_or(0),
            version: number(key_entries::VERSION).unwrap_or(0),
            key_format: number(key_entries::KEY_FORMAT).unwrap_or(0),
            pbkdf2_salt: number(key_entries::PBKDF2_SALT).unwrap_or(0),
            pbkdf2_iters: number(key_entries::PBKDF2_ITERS).unwrap_or(0),
        })
    }

    /// The entries that are one 64-bit integer.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, u64); 8] {
        [
            (key_entries::SUITE, self.suite),
            (key_entries::GUID, self.guid),
            (key_entries::ROOT_DIR, self.root_dir),
            (key_entries::REFCOUNT, self.refcount),
            (key_entries::VERSION, self.version),
            (key_entries::KEY_FORMAT, self.key_format),
            (key_entries::PBKDF2_SALT, self.pbkdf2_salt),
            (key_entries::PBKDF2_ITERS, self.pbkdf2_iters),
        ]
    }

    /// The entries that are single bytes.
    #[must_use]
    pub fn byte_arrays(&self) -> [(&'static str, &[u8]); 4] {
        [
            (key_entries::IV, &self.iv),
            (key_entries::MAC, &self.mac),
            (key_entries::MASTER_KEY, &self.master_key),
            (key_entries::HMAC_KEY, &self.hmac_key),
        ]
    }
}

/// What stands for a block pointer in what is authenticated: the properties that stay when the block is stored otherwise, and
/// its MAC.
// OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_bp_auth_init (version 1 of keys)
#[must_use]
pub fn bp_auth(bp: &BlockPointer) -> [u8; BP_AUTH_SIZE] {
    const CHECKSUM_BITS: u64 = 0xff << 40;
    const DEDUP_BIT: u64 = 1 << 62;
    const BYTE_ORDER_BIT: u64 = 1 << 63;
    const COMPRESSION_BITS: u64 = 0x7f << 32;
    const PSIZE_BITS: u64 = 0xffff << 16;
    let [.., mac0, mac1] = *bp.words();
    let prop = if bp.is_hole() {
        0
    } else {
        let [_, _, _, _, _, _, prop, ..] = *bp.words();
        let moves = if bp.level() == 0 {
            0
        } else {
            BYTE_ORDER_BIT | COMPRESSION_BITS | PSIZE_BITS
        };
        prop & !(CHECKSUM_BITS | DEDUP_BIT | moves)
    };
    let mut out = [0; BP_AUTH_SIZE];
    put_u64(&mut out, 0, prop);
    put_u64(&mut out, 8, mac0);
    put_u64(&mut out, 16, mac1);
    out
}

/// What an indirect block is authenticated by: its pointers, in order. SHA-512 of it is the block's MAC.
#[must_use]
pub fn indirect_auth(block: &[u8]) -> Vec<u8> {
    BlockPointer::decode_all(block)
        .flat_map(|bp| bp_auth(&bp))
        .collect()
}

/// Appends what of a dnode is authenticated apart from its bonus buffer.
fn push_dnode_auth(dnode: &[u8], out: &mut Vec<u8>) {
    let pointers = usize::from(u8_at(dnode, 3));
    let flags = u8_at(dnode, 7) & dnode_flags::SPILL_BLKPTR;
    let at = out.len();
    out.extend_from_slice(slice_at(dnode, 0, CORE));
    if let Some(core) = out.get_mut(at..) {
        put_u8(core, 7, flags);
        // Space used differs between pools.
        put_u64(core, 24, 0);
    }
    let mut push = |offset| {
        if let Ok(bp) = BlockPointer::decode(slice_at(dnode, offset, BlockPointer::SIZE)) {
            out.extend_from_slice(&bp_auth(&bp));
        }
    };
    (0..pointers).for_each(|i| push(CORE + i * BlockPointer::SIZE));
    if flags != 0 {
        push(dnode.len() - BlockPointer::SIZE);
    }
}

/// How a block is protected of which only parts are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialAuth {
    /// Authenticated and in the clear.
    pub aad: Vec<u8>,
    /// Ranges of the block that are encrypted, as if they followed one another.
    pub encrypted: Vec<Range<usize>>,
}

impl PartialAuth {
    /// The encrypted ranges of the block, one after the other.
    #[must_use]
    pub fn gather(&self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encrypted.iter().map(Range::len).sum());
        for range in &self.encrypted {
            out.extend_from_slice(slice_at(block, range.start, range.len()));
        }
        out
    }

    /// Puts bytes as [`Self::gather`] returns them back to where they belong.
    pub fn scatter(&self, bytes: &[u8], block: &mut [u8]) {
        let mut rest = bytes;
        for range in &self.encrypted {
            if let Some((part, behind)) = rest.split_at_checked(range.len())
                && let Some(place) = block.get_mut(range.clone())
            {
                place.copy_from_slice(part);
                rest = behind;
            }
        }
    }

    /// Takes a block of dnodes apart, which are all authenticated; some bonus buffers are encrypted.
    ///
    /// # Errors
    /// When a dnode leaves its block, or its pointers leave it.
    // OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_init_uios_dnode. Free slots are authenticated as well.
    pub fn of_dnodes(block: &[u8]) -> Result<Self> {
        let mut auth = Self {
            aad: Vec::with_capacity(block.len()),
            encrypted: Vec::new(),
        };
        let mut at = 0;
        while at < block.len() {
            let size = DNODE_MIN_SIZE * (1 + usize::from(u8_at(block, at + 12)));
            let dnode = slice_at(block, at, size);
            need(dnode, DNODE_MIN_SIZE, "dnode of an encrypted block")?;
            let has_spill = u8_at(dnode, 7) & dnode_flags::SPILL_BLKPTR != 0;
            let bonus = CORE + usize::from(u8_at(dnode, 3)) * BlockPointer::SIZE;
            let end = size - if has_spill { BlockPointer::SIZE } else { 0 };
            if bonus > end {
                return Err(DecodeError::new("pointers of an encrypted dnode", at + 3));
            }
            push_dnode_auth(dnode, &mut auth.aad);
            let in_use = ObjectType(u8_at(dnode, 0)) != ObjectType::NONE;
            if in_use && ObjectType(u8_at(dnode, 4)).is_encrypted() && u16_at(dnode, 10) != 0 {
                auth.encrypted.push(at + bonus..at + end);
            } else {
                auth.aad
                    .extend_from_slice(slice_at(dnode, bonus, end - bonus));
            }
            at += size;
        }
        Ok(auth)
    }
}

impl PartialAuth {
    /// Takes a slim log block apart: its header, the headers of records and the pointers in them are authenticated, the rest of
    /// the records encrypted.
    ///
    /// # Errors
    /// When the block is shorter than what it says to be used, or a record leaves that.
    // OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_init_uios_zil
    pub fn of_log(block: &[u8]) -> Result<Self> {
        need(block, SLIM_HEADER, "encrypted log block")?;
        let used = crate::bytes::index(u64_at(block, LOG_USED));
        if used < SLIM_HEADER || used > block.len() {
            return Err(DecodeError::new("bytes in use of a log block", LOG_USED));
        }
        let mut auth = Self {
            aad: slice_at(block, 0, LOG_ECK).to_vec(),
            encrypted: Vec::new(),
        };
        let mut at = SLIM_HEADER;
        while at < used {
            let header = slice_at(block, at, LogRecord::HEADER);
            let len = crate::bytes::index(u64_at(header, 8));
            if header.len() < LogRecord::HEADER || len < LogRecord::HEADER || len > used - at {
                return Err(DecodeError::new("record of an encrypted log block", at));
            }
            auth.aad.extend_from_slice(header);
            let clear = match u64_at(header, 0) {
                record_kind::WRITE => 64..LogRecord::WRITE_HEADER,
                record_kind::CLONE_RANGE => 64..len,
                _ => len..len,
            };
            if clear.end > len {
                return Err(DecodeError::new("record of an encrypted log block", at));
            }
            auth.aad
                .extend_from_slice(slice_at(block, at + clear.start, clear.len()));
            auth.encrypted
                .push(at + LogRecord::HEADER..at + clear.start);
            if clear.end < len {
                auth.encrypted.push(at + clear.end..at + len);
            }
            at += len;
        }
        Ok(auth)
    }
}

/// Where the portable MAC lies in an objset block.
pub const OBJSET_PORTABLE_MAC: Range<usize> = 720..752;
/// Where the local MAC lies in an objset block.
pub const OBJSET_LOCAL_MAC: Range<usize> = 752..784;

/// What the portable MAC of an objset block covers: what is the same wherever the dataset is received.
///
/// # Errors
/// When the block is too short.
pub fn objset_portable_auth(block: &[u8]) -> Result<Vec<u8>> {
    need(block, 1024, "encrypted objset")?;
    let mut out = Vec::with_capacity(DNODE_MIN_SIZE);
    // The type in big-endian order, whatever the machine; then the portable flags, of which there are none.
    out.extend_from_slice(&u64_at(block, 704).to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    push_dnode_auth(slice_at(block, 0, DNODE_MIN_SIZE), &mut out);
    Ok(out)
}

/// What the local MAC of an objset block covers: accounting of space. `None` when there is none, and the MAC is zeros.
///
/// # Errors
/// When the block is too short.
pub fn objset_local_auth(block: &[u8]) -> Result<Option<Vec<u8>>> {
    need(block, 1024, "encrypted objset")?;
    let flags = u64_at(block, 712);
    let used = [1024, 1536, 2048]
        .map(|offset| slice_at(block, offset, DNODE_MIN_SIZE))
        .into_iter()
        .filter(|dnode| u8_at(dnode, 0) != 0);
    let mut out = flags.to_le_bytes().to_vec();
    let before = out.len();
    used.for_each(|dnode| push_dnode_auth(dnode, &mut out));
    let complete = flags & crate::objset_flags::USER_ACCOUNTING_COMPLETE != 0;
    Ok((complete && out.len() > before).then_some(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DnodePhys, Txg};

    fn key() -> KeyPhys {
        KeyPhys {
            suite: 8,
            guid: 77,
            iv: [1; 12],
            mac: [2; 16],
            master_key: [3; 32],
            hmac_key: [4; 64],
            root_dir: 131,
            refcount: 2,
            version: 1,
            key_format: 3,
            pbkdf2_salt: 5,
            pbkdf2_iters: 350_000,
        }
    }

    fn decode(key: &KeyPhys, without: &str) -> Result<KeyPhys> {
        let numbers = key.numbers();
        let arrays = key.byte_arrays();
        KeyPhys::from_entries(
            |name| {
                let found = numbers.iter().find(|(known, _)| *known == name);
                found.filter(|_| name != without).map(|found| found.1)
            },
            |name| {
                let found = arrays.iter().find(|(known, _)| *known == name);
                found.filter(|_| name != without).map(|found| found.1)
            },
        )
    }

    #[test]
    fn keys_encode_and_decode_to_themselves() {
        let key = key();
        assert_eq!(decode(&key, ""), Ok(key));
        for name in [key_entries::SUITE, key_entries::HMAC_KEY, key_entries::IV] {
            assert!(decode(&key, name).is_err(), "{name}");
        }
        let old = KeyPhys { version: 0, ..key };
        assert_eq!(decode(&key, key_entries::VERSION), Ok(old));
    }

    #[test]
    fn of_a_pointer_stays_what_another_pool_keeps() {
        let mut words = [0; 16];
        (words[0], words[1], words[14], words[15]) = (1, 2, 0xaa, 0xbb);
        let prop = |bits: u64| {
            let bp = BlockPointer::from_words(std::array::from_fn(|i| match i {
                6 => bits,
                _ => words[i],
            }));
            let auth = bp_auth(&bp);
            assert_eq!((u64_at(&auth, 8), u64_at(&auth, 16)), (0xaa, 0xbb));
            assert_eq!(u64_at(&auth, 24), 0);
            u64_at(&auth, 0)
        };
        assert_eq!(prop(!(0x1f << 56 | 1 << 39)), 0xa0ff_007f_ffff_ffff);
        assert_eq!(
            prop((1 << 63) | (1 << 61) | (1 << 56) | (7 << 32) | (9 << 16) | 255),
            (1 << 61) | (1 << 56) | 255
        );
        let hole = BlockPointer::hole(512, ObjectType::DNODE, 0, Txg(9));
        assert_eq!(bp_auth(&hole), [0; 32]);
    }

    /// A block with a file's dnode of two slots, a directory's of one, one whose bonus is in the clear, and four free slots.
    fn dnodes() -> Vec<u8> {
        let mut block = vec![0; 8 * DNODE_MIN_SIZE];
        let mut dnode = DnodePhys {
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            indirect_shift: 17,
            levels: 1,
            bonus_type: ObjectType::SA,
            data_block_sectors: 1,
            used: 4096,
            extra_slots: 1,
            block_pointers: vec![BlockPointer::HOLE],
            bonus: vec![7; 100],
            spill: Some(BlockPointer::HOLE),
            ..DnodePhys::default()
        };
        dnode.encode(&mut block);
        dnode.extra_slots = 0;
        dnode.spill = None;
        dnode.encode(&mut block[1024..]);
        dnode.bonus_type = ObjectType::DSL_DIR;
        dnode.encode(&mut block[1536..]);
        block
    }

    #[test]
    fn bonus_buffers_are_encrypted_to_the_end_of_their_dnode() {
        let mut block = dnodes();
        let auth = PartialAuth::of_dnodes(&block).unwrap();
        assert_eq!(auth.encrypted, [192..1024 - 128, 1024 + 192..1536]);
        // Cores and pointers (two of the first), a bonus in the clear, and free slots whole.
        let free = 4 * 512;
        assert_eq!(
            auth.aad.len(),
            (64 + 2 * 32) + 2 * (64 + 32) + (512 - 192) + free
        );
        // What is encrypted and what differs between pools is not authenticated in the clear.
        block[200] ^= 1;
        block[24] ^= 1;
        block[7] ^= dnode_flags::USED_BYTES;
        assert_eq!(PartialAuth::of_dnodes(&block).unwrap(), auth);
        block[1536 + 200] ^= 1;
        assert_ne!(PartialAuth::of_dnodes(&block).unwrap(), auth);
    }

    #[test]
    fn dnodes_that_leave_their_block_are_refused() {
        for (at, value) in [(1536 + 12, 9), (3, 9), (1024 + 3, 4)] {
            let mut block = dnodes();
            block[at] = value;
            assert!(PartialAuth::of_dnodes(&block).is_err(), "byte {at}");
        }
        assert!(PartialAuth::of_dnodes(&dnodes()[..700]).is_err());
    }

    #[test]
    fn bodies_of_records_are_encrypted_but_for_pointers() {
        let mut block = vec![0; 4096];
        let mut at = SLIM_HEADER;
        for (kind, len) in [
            (record_kind::CREATE, 104),
            (record_kind::WRITE, 192 + 40),
            (record_kind::WRITE, 192),
            (record_kind::CLONE_RANGE, 72 + 256),
        ] {
            LogRecord::put_header(&mut block[at..], kind, len, 5, 1);
            at += len;
        }
        put_u64(&mut block, LOG_USED, at as u64);
        let auth = PartialAuth::of_log(&block).unwrap();
        let (a, b, c, d) = (184, 184 + 104, 184 + 336, 184 + 528);
        let expect = [
            a + 32..a + 104,
            b + 32..b + 64,
            b + 192..b + 232,
            c + 32..c + 64,
            d + 32..d + 64,
        ];
        assert_eq!(auth.encrypted, expect);
        assert_eq!(auth.aad.len(), 144 + 4 * 32 + 2 * 128 + 8 + 256);
        for (at, value) in [
            (LOG_USED, 4097),
            (LOG_USED, 100),
            (a + 8, 4000),
            (b + 8, 190),
            (c + 8, 0),
        ] {
            let mut other = block.clone();
            put_u64(&mut other, at, value);
            assert!(PartialAuth::of_log(&other).is_err(), "{value} at {at}");
        }
        assert!(PartialAuth::of_log(&block[..180]).is_err());
    }

    #[test]
    fn an_objset_without_accounting_has_no_local_mac() {
        let mut block = vec![0; 4096];
        let slot = dnodes();
        block[..512].copy_from_slice(&slot[1024..1536]);
        block[704] = 2;
        let portable = objset_portable_auth(&block).unwrap();
        assert_eq!(
            portable[..16],
            [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(portable.len(), 16 + 64 + 32);
        assert_eq!(objset_local_auth(&block), Ok(None));
        block[712] = 1;
        assert_eq!(objset_local_auth(&block), Ok(None));
        block[1536..2048].copy_from_slice(&slot[1024..1536]);
        let local = objset_local_auth(&block).unwrap().unwrap();
        assert_eq!(local.len(), 8 + 64 + 32);
        block[712] = 0;
        assert_eq!(objset_local_auth(&block), Ok(None));
        assert!(objset_portable_auth(&block[..1000]).is_err());
    }
}
