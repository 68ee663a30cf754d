//! The records of a raw stream: objects, blocks and spill blocks that are stored as they come, encrypted.
//!
//! The MAC of a block of dnodes covers the dnodes in it to the last byte, and those of the blocks below it; so a dnode gets the very
//! shape that the stream says, and the MAC of its block comes with the first object of the block.
//! OpenZFS: module/zfs/dmu_recv.c, receive_object, receive_object_range.

use dmu::{AllocSpec, DNODES_OF_BLOCK, EncryptedDnode, ObjectInfo, Objset, Tx};
use ondisk::stream::{
    CryptParams, Object, ObjectExtent, ObjectRange, Spill, TO_THE_END, Write, record_flags,
};
use ondisk::{ChecksumKind, Compression, ObjectId};
use runtime::IoBuf;
use zio::{StoredCrypt, StoredForm};

use super::malformed;
use super::receive::{DnodeRange, METADATA_BYTES, Receiver, block_pointers, object_type, shape};
use crate::error::{DslError, Result};
use crate::types::Estimate;

/// Bytes of the largest spill block.
const SPILL_MAX: u64 = 128 << 10;
/// Levels of a tree. OpenZFS: include/sys/dnode.h, DN_MAX_LEVELS
const LEVELS_MAX: u8 = 12;
/// Objects end here, in bytes.
const OBJECT_END: u64 = 1 << 63;

impl Receiver {
    pub(super) fn is_raw(&self) -> bool {
        self.incoming.raw.is_some()
    }

    /// The block of dnodes that the next objects stand in.
    pub(super) fn object_range(&mut self, record: &ObjectRange) -> Result<()> {
        if record.slots != DNODES_OF_BLOCK || !record.first_object.is_multiple_of(DNODES_OF_BLOCK) {
            return Err(malformed("range of objects"));
        }
        check_order_of_bytes(record.flags)?;
        self.range = Some(DnodeRange {
            first: record.first_object,
            crypt: Some(crypt_of(&record.crypt)),
        });
        Ok(())
    }

    /// An object of the very shape that the stream says.
    pub(super) async fn raw_object(&mut self, record: &Object, payload: &[u8]) -> Result<()> {
        let range = self.range.filter(|range| {
            let at = record.object.checked_sub(range.first);
            at.is_some_and(|at| at < DNODES_OF_BLOCK)
        });
        let range = range.ok_or_else(|| malformed("object outside its range"))?;
        let spec = shape(record)?.indirect_shift(record.indirect_shift);
        check_tree(record)?;
        let object = ObjectId(record.object);
        let objset = self.objset();
        let existing = match objset.object_info(object).await {
            Ok(info) if keeps_tree(&info, record, spec.slots) => Some(info),
            Ok(_) => None,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        if existing.is_none() {
            self.clear_slots(record.object, u64::from(spec.slots))
                .await?;
        }
        let bonus = payload
            .get(..record.bonus_len as usize)
            .ok_or_else(|| malformed("length of a bonus"))?;
        let tx = self.begin_tx(METADATA_BYTES).await?;
        let is_new = existing.is_none();
        match existing {
            Some(info) => reshape_raw(&objset, &info, &spec, record.max_block_id, &tx).await?,
            None => objset.allocate_at(object, spec, &tx).await?,
        }
        if record.dnode_slots > 1 {
            self.dataset().needs_feature("large_dnode");
        }
        if !is_new && record.flags & record_flags::SPILL == 0 {
            objset.set_spill(object, None, &tx).await?;
        }
        let bonus_type = object_type(record.bonus_type)?;
        objset.set_bonus(object, bonus_type, bonus, &tx).await?;
        let encrypted = EncryptedDnode {
            checksum: ChecksumKind(record.checksum),
            compression: Compression(record.compression),
            indirect_shift: record.indirect_shift,
            levels: record.levels,
            pointers: record.block_pointers,
            max_block_id: record.max_block_id,
            bonus_area: payload,
        };
        objset.set_encrypted_dnode(object, &encrypted, &tx).await?;
        if let Some(crypt) = range.crypt {
            objset.set_dnodes_crypt(object, crypt, &tx);
            self.range = Some(DnodeRange {
                crypt: None,
                ..range
            });
        }
        self.note_resume_point(record.object, 0, &tx);
        Ok(())
    }

    pub(super) async fn raw_write(&mut self, record: &Write, payload: &IoBuf) -> Result<()> {
        self.check_order(record.object, record.offset)?;
        let object = ObjectId(record.object);
        let info = self.objset().object_info(object).await?;
        let size = u64::from(info.block_size);
        if record.logical_size != size || !record.offset.is_multiple_of(size) {
            return Err(malformed("size of a raw block"));
        }
        if record.offset / size > info.max_block_id {
            return Err(malformed("raw block behind the end of its object"));
        }
        let form = form_of(
            record.compression,
            record.flags,
            &record.crypt,
            payload,
            size,
        )?;
        let estimate = Estimate::blocks(1, size, METADATA_BYTES + payload.len() as u64);
        let tx = self.dataset().begin(estimate).await?;
        if form.compression == Compression::ZSTD {
            self.dataset().needs_feature("zstd_compress");
        }
        self.objset()
            .write_encrypted(object, record.offset, info.block_size, form, &tx)
            .await?;
        self.note_resume_point(record.object, record.offset, &tx);
        Ok(())
    }

    pub(super) async fn raw_spill(&self, record: &Spill, payload: &IoBuf) -> Result<()> {
        let size = u32::try_from(record.length).ok();
        let size = size.filter(|_| record.length <= SPILL_MAX && record.length.is_multiple_of(512));
        let size = size.filter(|size| *size != 0);
        let size = size.ok_or_else(|| malformed("size of a raw spill block"))?;
        let form = form_of(
            record.compression,
            record.flags,
            &record.crypt,
            payload,
            record.length,
        )?;
        let tx = self.begin_tx(METADATA_BYTES + record.length).await?;
        self.objset()
            .set_spill_encrypted(ObjectId(record.object), size, form, &tx)
            .await?;
        Ok(())
    }

    /// Parts of blocks cannot be freed without the key that reads them.
    pub(super) async fn check_raw_free(&self, extent: &ObjectExtent) -> Result<()> {
        let info = self.objset().object_info(ObjectId(extent.object)).await?;
        let size = u64::from(info.block_size);
        let is_whole = extent.offset.is_multiple_of(size)
            && (extent.length == TO_THE_END || extent.length.is_multiple_of(size));
        if is_whole {
            Ok(())
        } else {
            Err(malformed("part of a raw block"))
        }
    }
}

/// Makes an existing object what the stream says; blocks that can stay do.
async fn reshape_raw(
    objset: &Objset,
    info: &ObjectInfo,
    spec: &AllocSpec,
    max_block_id: u64,
    tx: &Tx,
) -> Result<()> {
    let object = info.object;
    let stays = info.block_size == spec.block_size && info.indirect_shift == spec.indirect_shift;
    let behind = match max_block_id.checked_add(1).filter(|_| stays) {
        Some(blocks) => blocks.saturating_mul(u64::from(spec.block_size)),
        None => 0,
    };
    objset.free_range(object, behind, u64::MAX, tx).await?;
    if info.block_size != spec.block_size {
        objset.set_block_size(object, spec.block_size, tx).await?;
    }
    if info.object_type != spec.object_type {
        objset.set_object_type(object, spec.object_type, tx).await?;
    }
    Ok(())
}

/// Checks what a record says of an object's tree and of the room for its bonus.
fn check_tree(record: &Object) -> Result<()> {
    let slots = u32::from(record.dnode_slots.max(1));
    let room = (512 * slots).checked_sub(64 + 128 * u32::from(record.block_pointers));
    let end = record
        .max_block_id
        .checked_add(1)
        .and_then(|blocks| blocks.checked_mul(u64::from(record.block_size)));
    let is_possible = (12..=17).contains(&record.indirect_shift)
        && (1..=LEVELS_MAX).contains(&record.levels)
        && record.block_pointers == block_pointers(record)
        && room.is_some_and(|room| record.raw_bonus_len <= room && record.bonus_len <= room)
        && (record.raw_bonus_len >= record.bonus_len)
        && end.is_some_and(|end| end <= OBJECT_END);
    if !is_possible {
        return Err(malformed("shape of a raw object"));
    }
    Ok(())
}

/// Whether an object that is there can become that of a record with its tree; else it is made anew.
// OpenZFS: module/zfs/dmu_recv.c, receive_handle_existing_object
fn keeps_tree(info: &ObjectInfo, record: &Object, slots: u8) -> bool {
    info.slots == slots
        && info.levels <= record.levels
        && info.pointers <= record.block_pointers
        && (info.levels == 1 || info.indirect_shift == record.indirect_shift)
}

fn crypt_of(params: &CryptParams) -> StoredCrypt {
    StoredCrypt {
        params: ondisk::CryptParams {
            salt: params.salt,
            iv: params.iv,
        },
        mac: params.mac,
    }
}

/// Blocks of the other byte order are not written.
fn check_order_of_bytes(flags: u8) -> Result<()> {
    if flags & record_flags::RAW_BYTESWAP != 0 {
        return Err(DslError::Unsupported {
            what: "receiving raw blocks of the other byte order",
        });
    }
    Ok(())
}

/// A block as it is stored.
fn form_of(
    compression: u8,
    flags: u8,
    params: &CryptParams,
    payload: &IoBuf,
    logical_size: u64,
) -> Result<StoredForm> {
    check_order_of_bytes(flags)?;
    let compression = Compression(compression);
    let stored = payload.len() as u64;
    let is_known = (Compression::OFF.0..=Compression::ZSTD.0).contains(&compression.0);
    if !is_known || stored == 0 || !stored.is_multiple_of(512) || stored > logical_size {
        return Err(malformed("stored form of a raw block"));
    }
    Ok(StoredForm {
        bytes: payload.clone(),
        compression,
        crypt: Some(crypt_of(params)),
    })
}
