//! Deduplication: a block that equals one that is stored already becomes a reference to it.
//!
//! ```text
//!   bytes -> compressed, encrypted, checksum -> is there an equal one?  yes: its places, one more reference
//!                                                                       no:  written, noted with one reference
//!                                                                       it cannot be shared: written as any other
//! ```
//! Guarantees: of equal blocks that one txg writes at the same time one is stored, for they take turns; a block that was
//! compared and differs, or cannot be read, is not referred to.
//! What it does not know: where references are counted ([`MetaSource`](crate::MetaSource)).
// OpenZFS: module/zfs/zio.c, zio_ddt_write

use ondisk::{BlockPointer, Txg};
use runtime::IoBuf;
use runtime::sync::Permit;

use crate::alloc::Sharing;
use crate::checks;
use crate::store::BlockStore;
use crate::types::Dedup;
use crate::write::{PreparedBlock, pointer_of};
use crate::{Protection, ReadProps, WriteProps, ZioError};

impl BlockStore {
    /// Stores a prepared block, or refers to an equal one. `data` are the logical bytes, compared where that is asked for.
    pub(crate) async fn write_deduplicated(
        &self,
        txg: Txg,
        data: &IoBuf,
        prepared: &PreparedBlock,
        props: &WriteProps,
        protection: &Protection,
        room: (bool, Permit),
    ) -> Result<BlockPointer, ZioError> {
        let checksum = &prepared.checksum;
        let turn = self.dedup_turns().of(checksum).lock().await;
        let mut wanted = pointer_of(txg, prepared, props, &[]);
        wanted.set_dedup(true);
        let sharing = self.source()?.share(&wanted, props.copies).await?;
        if let Sharing::Shared(dvas, born) = sharing {
            for (index, dva) in dvas.into_iter().enumerate() {
                // The third place of an encrypted block's pointer is taken by salt and IV.
                if dva.is_present() {
                    wanted.set_dva(index, dva);
                }
            }
            wanted.set_physical_birth(born);
            let is_possible = born.0 != 0 && born <= txg && self.check_places(&wanted).is_ok();
            if is_possible && self.is_equal(data, &wanted, props, protection).await {
                self.count(|stats| stats.deduplicated += 1);
                return Ok(wanted);
            }
            self.source()?.release(&wanted, self.dsize(&wanted)).await?;
        }
        let dvas = self.store_prepared(txg, prepared, props, room).await?;
        let mut bp = pointer_of(txg, prepared, props, &dvas);
        if sharing == Sharing::New {
            let is_noted = self.source()?.note_written(&bp, props.copies);
            bp.set_dedup(is_noted);
        }
        drop(turn);
        Ok(bp)
    }

    /// Checks that a table names places that there are: it came from a device.
    fn check_places(&self, shared: &BlockPointer) -> Result<(), &'static str> {
        checks::check_stored(shared)?;
        for dva in shared.copies() {
            checks::check_dva(self.tree(), &dva, shared.psize())?;
        }
        Ok(())
    }

    /// Whether a stored block has these bytes, as far as `props` want to know.
    async fn is_equal(
        &self,
        data: &IoBuf,
        stored: &BlockPointer,
        props: &WriteProps,
        protection: &Protection,
    ) -> bool {
        if props.dedup == Some(Dedup::Trust) {
            return true;
        }
        let reading = ReadProps {
            class: props.class,
            bookmark: props.bookmark,
        };
        let found = self.read_forms(stored, reading, protection.keys()).await;
        found.is_ok_and(|forms| forms.logical[..] == data[..])
    }
}
