//! What an object is besides its data: description, bonus, spill block, type.

use std::rc::Rc;

use ondisk::{Compression, ObjectId, ObjectType};
use runtime::IoBuf;
use zio::IoClass;

use crate::dnode::{Core, NEWEST};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::txg::Tx;
use crate::types::{Bonus, ObjectInfo};

/// Largest spill block, in bytes.
const SPILL_MAX: usize = 128 << 10;
const _: () = assert!(SPILL_MAX <= crate::allocate::BLOCK_SIZE_MAX as usize);

impl Objset {
    /// Describes an object.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn object_info(&self, object: ObjectId) -> Result<ObjectInfo> {
        let dnode = self.dnode(object).await?;
        let state = dnode.state.borrow();
        let (core, base) = (state.core(NEWEST), &state.base);
        let is_new = state.layers.iter().any(|layer| layer.reset);
        let levels = if is_new { 1 } else { base.levels };
        Ok(ObjectInfo {
            object,
            object_type: core.object_type,
            bonus_type: core.bonus_type,
            bonus_len: u16::try_from(core.bonus.len()).expect("a bonus is at most 16 KiB"),
            bonus_len_max: u16::try_from(core.bonus_max(core.has_spill))
                .expect("a bonus is at most 16 KiB"),
            block_size: core.block_size,
            indirect_shift: core.indirect_shift,
            levels: levels.max(core.levels_min),
            pointers: core.pointers,
            max_block_id: core.max_block_id,
            used_bytes: base.used,
            fill_count: base.fill(),
            slots: core.slots(),
            has_spill: core.has_spill,
            flags: base.flags,
            dirty: !state.layers.is_empty(),
        })
    }

    /// The bonus buffer.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn bonus(&self, object: ObjectId) -> Result<Bonus> {
        let dnode = self.dnode(object).await?;
        Ok(dnode.with_core(NEWEST, |core| Bonus {
            bonus_type: core.bonus_type,
            bytes: Rc::clone(&core.bonus),
        }))
    }

    /// Replaces type, length and bytes of the bonus.
    ///
    /// # Errors
    /// `TooLarge` when it does not fit beside the block pointers (and the spill pointer, if there is one), in this txg or in a
    /// newer one.
    pub async fn set_bonus(
        &self,
        object: ObjectId,
        bonus_type: ObjectType,
        bytes: &[u8],
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let fits = |core: &Core| bytes.len() <= core.bonus_max(core.has_spill);
        if !dnode.holds_from(tx.txg(), fits) {
            return Err(DmuError::TooLarge {
                what: "the bonus does not fit the dnode",
            });
        }
        let at = self.dirty_layer(&dnode, tx);
        let bonus: Rc<[u8]> = Rc::from(bytes);
        for layer in &mut dnode.state.borrow_mut().layers[at..] {
            if !layer.core.is_free() {
                layer.core.bonus_type = bonus_type;
                layer.core.bonus = Rc::clone(&bonus);
            }
        }
        Ok(())
    }

    /// The spill block's bytes, if there is one.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn spill(&self, object: ObjectId) -> Result<Option<IoBuf>> {
        let dnode = self.dnode(object).await?;
        loop {
            let (base, generation) = {
                let state = dnode.state.borrow();
                if let Some(known) = state.peek_spill(NEWEST) {
                    return Ok(known);
                }
                (Rc::clone(&state.base), state.generation)
            };
            if !base.core.has_spill || base.spill.is_hole() {
                return Ok(None);
            }
            let read = self
                .read_block(&base.spill, object, 0, u64::MAX, IoClass::SyncRead)
                .await;
            if dnode.state.borrow().generation == generation {
                return Ok(Some(read?));
            }
        }
    }

    /// Replaces or removes the spill block. Its length must be a multiple of 512, 512 to 128 KiB.
    ///
    /// # Errors
    /// `Invalid`, `TooLarge` (also when the bonus leaves no room for the spill pointer, in this txg or in a newer one).
    pub async fn set_spill(&self, object: ObjectId, bytes: Option<&[u8]>, tx: &Tx) -> Result<()> {
        let data = bytes.map(IoBuf::copy_from);
        self.set_spill_buf(object, data, tx).await
    }

    /// As [`Objset::set_spill`], with a buffer that is kept as it is.
    pub(crate) async fn set_spill_buf(
        &self,
        object: ObjectId,
        data: Option<IoBuf>,
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        if let Some(bytes) = &data {
            if bytes.is_empty() || !bytes.len().is_multiple_of(512) {
                return Err(DmuError::Invalid {
                    what: "spill blocks are multiples of 512 bytes",
                });
            }
            if bytes.len() > SPILL_MAX {
                return Err(DmuError::TooLarge {
                    what: "spill blocks are at most 128 KiB",
                });
            }
            if !dnode.holds_from(tx.txg(), |core| core.bonus.len() <= core.bonus_max(true)) {
                return Err(DmuError::TooLarge {
                    what: "the bonus leaves no room for a spill pointer",
                });
            }
        } else if dnode.holds_from(tx.txg(), |core| !core.has_spill) {
            return Ok(());
        }
        let at = self.dirty_layer(&dnode, tx);
        for layer in &mut dnode.state.borrow_mut().layers[at..] {
            if !layer.core.is_free() {
                layer.core.has_spill = data.is_some();
                layer.spill = Some(data.clone());
            }
        }
        tx.add_dirty(data.map_or(0, |d| d.len() as u64));
        Ok(())
    }

    /// Changes the type of an object (zapification keeps data and bonus).
    ///
    /// # Errors
    /// `NoSuchObject`; `Invalid` for the type "none".
    pub async fn set_object_type(
        &self,
        object: ObjectId,
        object_type: ObjectType,
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        if object_type == ObjectType::NONE {
            return Err(DmuError::Invalid {
                what: "an object needs a type",
            });
        }
        let dnode = self.dnode(object).await?;
        let at = self.dirty_layer(&dnode, tx);
        for layer in &mut dnode.state.borrow_mut().layers[at..] {
            if !layer.core.is_free() {
                layer.core.object_type = object_type;
            }
        }
        Ok(())
    }

    /// Fixes the compression of an object's data (`dn_compress`).
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub async fn set_object_compression(
        &self,
        object: ObjectId,
        compression: Compression,
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let at = self.dirty_layer(&dnode, tx);
        for layer in &mut dnode.state.borrow_mut().layers[at..] {
            if !layer.core.is_free() {
                layer.core.compression = compression;
            }
        }
        Ok(())
    }

    /// Marks an object dirty without changing it, so that its accounting is brought up to date by the sync.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub async fn touch_object(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        self.dirty_layer(&dnode, tx);
        Ok(())
    }
}
