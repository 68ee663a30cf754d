//! Blocks that come compressed, or encrypted as well, as streams of `zfs send -c` and `-w` bring them, and are stored as they came.
//!
//! The block is written like any other, so that it can be read and changed before its txg syncs; the form that came is kept beside it,
//! and is what the sync stores if the block is still the same then. Of a block that came encrypted the bytes are not known: zeros
//! stand for them until the sync, and nothing may read it before.
//!
//! A block of dnodes of a raw stream is put together here, from dnodes with encrypted bonus buffers; its salt, IV and MAC come
//! for the block. Whenever the block is written again without new ones, those of its last version stay: the MAC is right only when all
//! that the stream says of the block has been received.

use std::rc::Rc;

use ondisk::{BlockPointer, Compression, ObjectId, ObjectType};
use runtime::IoBuf;
use zio::{StoredCrypt, StoredForm};

use crate::dnode::{Base, SLOTS};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::tree::{BlockWrite, SyncContext};
use crate::txg::Tx;
use crate::types::{EncryptedDnode, TableShape};

/// Number of a spill block among the blocks of its object.
pub(crate) const SPILL_BLOCK: u64 = u64::MAX;

impl Objset {
    /// Writes a buffer at an offset, and remembers the compressed form of the same bytes: it is what is stored where the buffer is
    /// exactly one block. The caller has expanded the form, and knows that it is one of these bytes.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_stored(
        &self,
        object: ObjectId,
        offset: u64,
        data: IoBuf,
        form: StoredForm,
        tx: &Tx,
    ) -> Result<()> {
        let size = u64::from(self.object_info(object).await?.block_size);
        self.write_buf(object, offset, data.clone(), tx).await?;
        if data.len() as u64 == size && offset.is_multiple_of(size) {
            self.keep_form(object, offset / size, data, form, tx);
        }
        Ok(())
    }
}

impl Objset {
    /// Writes a whole block that came encrypted: the form with its salt, IV and MAC is stored as it is. `size` is the block's logical size.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_encrypted(
        &self,
        object: ObjectId,
        offset: u64,
        size: u32,
        form: StoredForm,
        tx: &Tx,
    ) -> Result<()> {
        assert!(form.crypt.is_some(), "an encrypted block has its MAC");
        let data = IoBuf::zeroed(size as usize);
        self.write_stored(object, offset, data, form, tx).await
    }

    /// As [`Objset::write_encrypted`], for an object's spill block.
    ///
    /// # Errors
    /// As `set_spill`.
    pub async fn set_spill_encrypted(
        &self,
        object: ObjectId,
        size: u32,
        form: StoredForm,
        tx: &Tx,
    ) -> Result<()> {
        assert!(form.crypt.is_some(), "an encrypted block has its MAC");
        let data = IoBuf::zeroed(size as usize);
        self.set_spill_buf(object, Some(data.clone()), tx).await?;
        self.keep_form(object, SPILL_BLOCK, data, form, tx);
        Ok(())
    }

    /// Gives salt, IV and MAC of the block of dnodes with this object, which is written in the txg.
    pub fn set_dnodes_crypt(&self, object: ObjectId, crypt: StoredCrypt, tx: &Tx) {
        let mut crypts = self.0.dnode_crypts.borrow_mut();
        let of_txg = crypts.entry(tx.txg()).or_default();
        of_txg.insert(object.0 / SLOTS, crypt);
    }

    /// Gives an object the shape that a raw stream says it has. Its blocks behind the last one must be free.
    ///
    /// # Errors
    /// `NoSuchObject`; `Invalid` for a shape that the blocks it has do not allow.
    pub async fn set_encrypted_dnode(
        &self,
        object: ObjectId,
        encrypted: &EncryptedDnode<'_>,
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let at = self.dirty_layer(&dnode, tx);
        let mut state = dnode.state.borrow_mut();
        let kept = !state.layers.iter().any(|layer| layer.reset) && !state.base.core.is_free();
        let base = &state.base;
        let has_tree = base.levels > 1 && base.core.indirect_shift != encrypted.indirect_shift;
        if kept
            && (has_tree
                || base.levels > encrypted.levels
                || base.core.pointers > encrypted.pointers)
        {
            return Err(DmuError::Invalid {
                what: "an object with blocks keeps the shape of their tree",
            });
        }
        let area: Rc<[u8]> = Rc::from(encrypted.bonus_area);
        for layer in &mut state.layers[at..] {
            if layer.core.is_free() {
                continue;
            }
            let last = layer.last_block().unwrap_or(0);
            layer.core.checksum = encrypted.checksum;
            layer.core.compression = encrypted.compression;
            layer.core.indirect_shift = encrypted.indirect_shift;
            layer.core.levels_min = encrypted.levels;
            layer.core.pointers = encrypted.pointers;
            layer.core.max_block_id = encrypted.max_block_id.max(last);
            layer.core.encrypted_bonus = Some(Rc::clone(&area));
        }
        Ok(())
    }

    /// Gives the table of dnodes what a raw stream says of it, in syncing context: no sync of this objset may be under way.
    ///
    /// # Errors
    /// `Invalid` for a shape other than the one the table has.
    ///
    /// # Panics
    /// Outside syncing context.
    pub fn set_table_shape(&self, shape: &TableShape, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing() && !self.0.syncing.get(),
            "the table of dnodes changes its shape between syncs"
        );
        let mut state = self.0.meta.state.borrow_mut();
        let mut base = Base::clone(&state.base);
        if (base.levels, base.core.indirect_shift) != (shape.levels, shape.indirect_shift) {
            return Err(DmuError::Invalid {
                what: "the table of dnodes keeps its shape",
            });
        }
        base.core.checksum = shape.checksum;
        base.core.compression = shape.compression;
        base.core.max_block_id = base.core.max_block_id.max(shape.max_block_id);
        state.base = Rc::new(base);
        drop(state);
        self.mark_dirty(tx);
        Ok(())
    }

    fn keep_form(&self, object: ObjectId, block: u64, data: IoBuf, form: StoredForm, tx: &Tx) {
        let bytes = form.bytes.len() as u64;
        let mut forms = self.0.stored_forms.borrow_mut();
        let of_txg = forms.entry(tx.txg()).or_default();
        of_txg.insert((object, block), (data, form));
        tx.add_dirty(bytes);
    }
}

impl SyncContext {
    /// The form in which a block is stored that was written with these bytes in place of `old`, if one came for it.
    pub(crate) fn take_stored_form(
        &self,
        what: &BlockWrite,
        data: &IoBuf,
        old: &BlockPointer,
    ) -> Option<StoredForm> {
        if what.level != 0 {
            return None;
        }
        if what.object_type == ObjectType::DNODE && self.services.is_raw() {
            let given = self.dnode_crypts.borrow_mut().remove(&what.block);
            return Some(StoredForm {
                bytes: data.clone(),
                compression: Compression::OFF,
                crypt: Some(given.unwrap_or(StoredCrypt {
                    params: old.crypt_params(),
                    mac: old.mac(),
                })),
            });
        }
        let mut forms = self.stored_forms.borrow_mut();
        let (bytes, form) = forms.remove(&(what.object, what.block))?;
        bytes.is_same(data).then_some(form)
    }
}
