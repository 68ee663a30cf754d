//! Blocks that come compressed, as a stream of `zfs send -c` brings them, and are stored as they came.
//!
//! The block is written like any other, so that it can be read and changed before its txg syncs; the compressed form is kept beside it,
//! and is what the sync stores if the block is still the same then.

use ondisk::ObjectId;
use runtime::IoBuf;
use zio::StoredForm;

use crate::error::Result;
use crate::objset::Objset;
use crate::tree::{BlockWrite, SyncContext};
use crate::txg::Tx;

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
            let bytes = form.bytes.len() as u64;
            let mut forms = self.0.stored_forms.borrow_mut();
            let of_txg = forms.entry(tx.txg()).or_default();
            of_txg.insert((object, offset / size), (data, form));
            tx.add_dirty(bytes);
        }
        Ok(())
    }
}

impl SyncContext {
    /// The compressed form of a block that was written with these bytes.
    pub(crate) fn take_stored_form(&self, what: &BlockWrite, data: &IoBuf) -> Option<StoredForm> {
        if what.level != 0 || what.is_spill {
            return None;
        }
        let mut forms = self.stored_forms.borrow_mut();
        let (bytes, form) = forms.remove(&(what.object, what.block))?;
        bytes.is_same(data).then_some(form)
    }
}
