//! Raw streams: encrypted datasets sent and received as they are stored, without their keys.
//!
//! The BEGIN of such a stream brings the wrapped keys and what the MAC of the object set covers; each record of a block brings the
//! block's salt, IV and MAC. OpenZFS: module/zfs/dsl_crypt.c, dsl_crypto_populate_key_nvlist.

use std::ops::Range;
use std::rc::Rc;

use ondisk::crypt::key_entries;
use ondisk::dsl::zapified_keys;
use ondisk::stream::CryptParams;
use ondisk::{BlockPointer, DnodePhys, ObjectId, ObjectType};

use super::NvList;
use super::send_source::{SendRedaction, SendSource};
use crate::dataset::Dataset;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};

/// Bytes of a dnode before its block pointers, and of each of its slots.
const CORE_BYTES: usize = 64;
const SLOT_BYTES: usize = 512;

/// Where the bonus area of a dnode lies, from the dnode's first byte: to its end, or to the pointer of its spill block.
// OpenZFS: include/sys/dnode.h, DN_MAX_BONUS_LEN
pub(super) fn bonus_area(dnode: &DnodePhys) -> Range<usize> {
    let start = CORE_BYTES + dnode.block_pointers.len() * BlockPointer::SIZE;
    let spill = usize::from(dnode.spill.is_some()) * BlockPointer::SIZE;
    start..(SLOT_BYTES * dnode.slots() - spill).max(start)
}

/// What a record says of an encrypted block. Blocks that are authenticated alone have neither salt nor IV.
// OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_decode_params_bp
pub(super) fn params_of(bp: &BlockPointer) -> CryptParams {
    let mut params = CryptParams {
        mac: bp.mac(),
        ..CryptParams::default()
    };
    if bp.level() == 0 && bp.object_type().is_encrypted() {
        let ondisk::CryptParams { salt, iv } = bp.crypt_params();
        (params.salt, params.iv) = (salt, iv);
    }
    params
}

impl DslPool {
    /// The identity of the set of IVs of a snapshot's blocks; 0 where there is none.
    pub(crate) async fn ivset_guid(&self, snapshot: ObjectId) -> Result<u64> {
        // Snapshots without further entries are no ZAP.
        if self.mos.object_info(snapshot).await?.object_type != ObjectType::ZAP_METADATA {
            return Ok(0);
        }
        let guid = dmu::zap::lookup_u64(&self.mos, snapshot, zapified_keys::IVSET_GUID);
        Ok(guid.await?.unwrap_or(0))
    }

    /// What a raw stream is made of: a snapshot whose blocks are read without keys.
    pub(super) async fn raw_source(
        self: &Rc<Self>,
        snapshot: Dataset,
        from_ivset: u64,
    ) -> Result<SendSource> {
        let keys = self.raw_keys(&snapshot, from_ivset).await?;
        let state = snapshot.state();
        let objset = self
            .open_stored(state.object, state.phys().bp, None)
            .await?;
        Ok(SendSource {
            snapshot,
            ownership: None,
            objset,
            keys: Some(keys),
            saved: None,
            redaction: SendRedaction::default(),
        })
    }

    async fn raw_keys(self: &Rc<Self>, snapshot: &Dataset, from_ivset: u64) -> Result<NvList> {
        let state = snapshot.state();
        let dir = state.dir();
        let object = self.key_object(&dir).await?;
        let object = object.ok_or_else(|| DslError::NotEncrypted {
            name: snapshot.name(),
        })?;
        let key = self.read_key(object).await?;
        if key.version != codec::crypt::DatasetKeys::VERSION {
            return Err(DslError::Unsupported {
                what: "this version of encryption",
            });
        }
        // Only the key object of the encryption root has the parameters of the wrapping key for certain.
        let root = self.dir(ObjectId(key.root_dir)).await?;
        let of_root = self.key_object(&root).await?;
        let of_root = of_root.ok_or_else(|| DslError::corrupt("encryption root", root.object))?;
        let wrapping = self.read_key(of_root).await?;
        let phys = self.objset_phys_of(state.object, &state.phys().bp).await?;
        let table = &phys.meta_dnode;
        let pointers = table.block_pointers.len() as u64;
        let ivset = self.ivset_guid(state.object).await?;
        Ok(NvList::new()
            .with(key_entries::SUITE, key.suite)
            .with(key_entries::GUID, key.guid)
            .with(key_entries::VERSION, key.version)
            .with(key_entries::MASTER_KEY, bytes(&key.master_key))
            .with(key_entries::HMAC_KEY, bytes(&key.hmac_key))
            .with(key_entries::IV, bytes(&key.iv))
            .with(key_entries::MAC, bytes(&key.mac))
            .with("portable_mac", bytes(&phys.portable_mac))
            .with(key_entries::KEY_FORMAT, wrapping.key_format)
            .with(key_entries::PBKDF2_ITERS, wrapping.pbkdf2_iters)
            .with(key_entries::PBKDF2_SALT, wrapping.pbkdf2_salt)
            .with("mdn_checksum", u64::from(table.checksum.0))
            .with("mdn_compress", u64::from(table.compression.0))
            .with("mdn_nlevels", u64::from(table.levels))
            .with("mdn_blksz", table.data_block_size())
            .with("mdn_indblkshift", u64::from(table.indirect_shift))
            .with("mdn_nblkptr", pointers)
            .with("mdn_maxblkid", table.max_block_id)
            .with("to_ivset_guid", ivset)
            .with("from_ivset_guid", from_ivset))
    }
}

fn bytes(bytes: &[u8]) -> super::NvValue {
    super::NvValue::U8Array(bytes.to_vec())
}
