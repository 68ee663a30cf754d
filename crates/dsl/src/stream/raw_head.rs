//! What the BEGIN of a raw stream says of keys and of the object set, and its way into a dataset that is received.
//!
//! The keys come wrapped, and are stored as they come: the sender's wrapping key opens them. Until the key is loaded
//! nothing here can tell whether a MAC is right; the first reader with the key does.
//! OpenZFS: module/zfs/dsl_crypt.c, dsl_crypto_recv_raw_objset_check, dsl_crypto_recv_raw_key_check and what follows them.

use std::rc::Rc;

use codec::crypt::{DatasetKeys, Suite};
use dmu::zap;
use dmu::{Objset, ObjsetOptions, TableShape, Tx};
use ondisk::crypt::{KeyPhys, key_entries};
use ondisk::dsl::zapified_keys;
use ondisk::zil::ZilHeader;
use ondisk::{ChecksumKind, Compression, DnodePhys, ObjectId, ObjsetType, objset_flags};
use zio::Protection;

use super::NvList;
use super::malformed;
use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::property::{DatasetKind, Value};
use crate::write_policy::write_policy;

/// Levels of a tree. OpenZFS: include/sys/dnode.h, DN_MAX_LEVELS
const LEVELS_MAX: u64 = 12;
/// Sizes of indirect blocks, as powers of two. OpenZFS: include/sys/dnode.h, DN_MIN_INDBLKSHIFT and DN_MAX_INDBLKSHIFT
const INDIRECT_SHIFTS: std::ops::RangeInclusive<u64> = 12..=17;
/// Bytes of a block of dnodes, and block pointers of their table.
const TABLE_BLOCK: u64 = 16 << 10;
const TABLE_POINTERS: u64 = 3;
/// Blocks of dnodes that object numbers reach.
const TABLE_BLOCKS_MAX: u64 = 1 << 43;

/// The keys of a raw stream, and the shape of its object set.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawHead {
    /// The keys of the dataset, wrapped; the encryption root is not known yet.
    pub(super) key: KeyPhys,
    table: TableShape,
    portable_mac: [u8; 32],
    /// Identities of the sets of IVs of the snapshot that is sent, and of the one that the stream counts from; 0 where the sender
    /// knows none.
    pub(super) to_ivset: u64,
    from_ivset: u64,
}

impl RawHead {
    /// Reads the list behind the BEGIN of a raw stream.
    ///
    /// # Errors
    /// `Stream` when an entry is missing or impossible; `ForeignCrypto` for a suite that is not known; `FeatureDisabled` for what
    /// only later versions of OpenZFS make.
    pub(super) fn decode(list: &NvList) -> Result<Self> {
        let list = list.list("crypt_keydata");
        let list = list.ok_or_else(|| malformed("raw stream without keys"))?;
        let key = key_of(list)?;
        let number = |name: &str| {
            let found = list.u64(name);
            found.ok_or_else(|| malformed("table of dnodes of a raw stream"))
        };
        let later = || DslError::FeatureDisabled {
            feature: "encryption",
        };
        let levels = number("mdn_nlevels")?;
        let max_block_id = number("mdn_maxblkid")?;
        let (checksum, compression) = (number("mdn_checksum")?, number("mdn_compress")?);
        if levels == 0 || levels > LEVELS_MAX || max_block_id >= TABLE_BLOCKS_MAX {
            return Err(malformed("table of dnodes of a raw stream"));
        }
        let indirect_shift = number("mdn_indblkshift")?;
        if number("mdn_blksz")? != TABLE_BLOCK
            || number("mdn_nblkptr")? != TABLE_POINTERS
            || !INDIRECT_SHIFTS.contains(&indirect_shift)
        {
            return Err(later());
        }
        let small = |number: u64| {
            u8::try_from(number).map_err(|_| malformed("table of dnodes of a raw stream"))
        };
        let mac = list
            .bytes("portable_mac")
            .and_then(|mac| mac.try_into().ok());
        Ok(Self {
            key,
            table: TableShape {
                levels: small(levels)?,
                indirect_shift: small(indirect_shift)?,
                checksum: ChecksumKind(small(checksum)?),
                compression: Compression(small(compression)?),
                max_block_id,
            },
            portable_mac: mac.ok_or_else(|| malformed("MAC of a raw stream"))?,
            to_ivset: list.u64("to_ivset_guid").unwrap_or(0),
            from_ivset: list.u64("from_ivset_guid").unwrap_or(0),
        })
    }
}

/// The wrapped keys of a raw stream.
fn key_of(list: &NvList) -> Result<KeyPhys> {
    let number = |name: &str| match name {
        key_entries::ROOT_DIR => Some(0),
        key_entries::REFCOUNT => Some(1),
        name => list.u64(name),
    };
    let key = KeyPhys::from_entries(number, |name| list.bytes(name));
    let key = key.map_err(|_| malformed("keys of a raw stream"))?;
    if Suite::from_number(key.suite).is_none() {
        return Err(match key.suite {
            0..=2 => malformed("keys of a raw stream"),
            _ => DslError::ForeignCrypto,
        });
    }
    if key.version != DatasetKeys::VERSION {
        return Err(DslError::FeatureDisabled {
            feature: "encryption",
        });
    }
    let is_passphrase = key.key_format == 3;
    if !(1..=3).contains(&key.key_format)
        || is_passphrase == (key.pbkdf2_iters == 0)
        || is_passphrase == (key.pbkdf2_salt == 0)
    {
        return Err(malformed("format of the key of a raw stream"));
    }
    Ok(key)
}

impl DslPool {
    /// Checks a raw stream against the dataset that it continues: the same keys, and the set of IVs of the snapshot it counts from.
    pub(super) async fn check_raw_source(
        &self,
        from: &DatasetState,
        table: &DnodePhys,
        raw: &RawHead,
    ) -> Result<()> {
        self.check_raw_key(&from.dir(), raw).await?;
        if (table.levels, table.indirect_shift) != (raw.table.levels, raw.table.indirect_shift) {
            return Err(malformed("shape of the table of dnodes"));
        }
        let known = self.ivset_guid(from.object).await?;
        if known == 0 || raw.from_ivset == 0 {
            return Err(DslError::IvsetMissing);
        }
        if known != raw.from_ivset {
            return Err(DslError::IvsetMismatch);
        }
        Ok(())
    }

    /// Checks that the keys of a raw stream are those of a dataset.
    pub(super) async fn check_raw_key(&self, dir: &DslDir, raw: &RawHead) -> Result<()> {
        let Some(object) = self.key_object(dir).await? else {
            return Err(malformed("raw stream for a dataset that is not encrypted"));
        };
        if self.read_key(object).await?.guid != raw.key.guid {
            return Err(DslError::KeyMismatch);
        }
        Ok(())
    }

    /// Makes the keys and the empty object set of a new dataset that a raw stream fills: an encryption root, whose key is asked
    /// for. Syncing context.
    pub(super) async fn create_raw(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        kind: DatasetKind,
        raw: &RawHead,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let dir = state.dir();
        let key = KeyPhys {
            root_dir: dir.object.0,
            ..raw.key
        };
        self.add_key(&dir, &key, tx).await?;
        self.activate(state, "encryption", tx).await?;
        let prompt = Value::Text("prompt".to_owned());
        self.set_key_location(&dir, Some(prompt), tx).await?;
        let scope = self.scope(&dir, None).await?;
        let options = ObjsetOptions {
            policy: write_policy(&scope, &self.features),
            ..ObjsetOptions::dataset(state.object.0)
        };
        let objset_type = match kind {
            DatasetKind::Volume => ObjsetType::ZVOL,
            _ => ObjsetType::ZFS,
        };
        let services = self.services.protected(Protection::Raw);
        let objset = Objset::create_shaped(&services, objset_type, options, raw.table, tx);
        objset.set_portable_mac(raw.portable_mac, tx);
        state.set_objset(Some(objset));
        dir.kind.set(Some(kind));
        state.apply_scope(&scope, &self.features);
        Ok(())
    }

    /// Prepares a clone, which has its origin's contents, for the raw stream that changes them. Syncing context.
    pub(super) async fn prepare_raw_clone(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        raw: &RawHead,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        self.open_objset_raw(state).await?;
        let objset = state.objset().expect("it was opened just now");
        objset.set_table_shape(&raw.table, tx)?;
        objset.set_portable_mac(raw.portable_mac, tx);
        // As DslPool::clear_zil_header, without keys.
        objset.set_zil_header(ZilHeader::default(), tx);
        // Owners are not known without the key: what is counted by owner is counted anew when it is there.
        objset.set_flags(objset.flags() & !objset_flags::USER_ACCOUNTING_COMPLETE, tx);
        Ok(())
    }

    /// Gives the keys of a dataset the wrapping that a raw stream brought with them. Syncing context.
    pub(super) async fn rewrap_received(&self, dir: &DslDir, raw: &RawHead, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a receive ends in syncing context");
        let object = self.key_object(dir).await?;
        let object = object.ok_or_else(|| DslError::corrupt("encrypted dataset", dir.object))?;
        let stored = self.read_key(object).await?;
        let key = KeyPhys {
            root_dir: stored.root_dir,
            refcount: stored.refcount,
            ..raw.key
        };
        if key == stored {
            return Ok(());
        }
        // The wrapping key that is loaded opens it no more.
        self.keys.unload(ObjectId(stored.root_dir));
        self.changes.record(Concerned::All);
        self.write_key(object, &key, tx).await
    }

    /// Gives a snapshot that was received raw the sender's name for its set of IVs. Syncing context.
    pub(super) async fn take_ivset(
        &self,
        snapshot: ObjectId,
        raw: &RawHead,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive ends in syncing context");
        if raw.to_ivset == 0 {
            return Ok(());
        }
        self.zapify(snapshot, tx).await?;
        let key = zapified_keys::IVSET_GUID;
        zap::update_u64(&self.mos, snapshot, key, raw.to_ivset, tx).await?;
        Ok(())
    }
}
