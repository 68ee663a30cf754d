//! Corrective receive: lost blocks of a snapshot that is there are written anew, in their places, from a stream of the same snapshot.
//!
//! ```text
//!   WRITE -> pointer of the block in the snapshot -> every copy read -> all of them bad: the block's own bytes made of the payload
//! ```
//! Nothing but the bytes of lost blocks changes: no pointer, no txg. Records other than WRITE heal nothing, as in OpenZFS; a stream that
//! counts from a snapshot heals what was born since. OpenZFS: module/zfs/dmu_recv.c, receive_process_write_record, do_corrective_recv.

use std::collections::BTreeSet;

use dmu::Objset;
use ondisk::stream::{Begin, StreamRecord, Write, stream_feature};
use ondisk::{Compression, MAX_BLOCK_SIZE, ObjectId};
use runtime::IoBuf;
use zio::{BlockKeys, Bookmark, Healing, IoClass, ReadProps, Replacement, ZioError};

use super::incoming::Incoming;
use super::receive::expand;
use super::{NvList, malformed};
use crate::dataset::Dataset;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;

/// A corrective receive under way. The snapshot cannot be destroyed while it exists.
pub struct Healer {
    /// Held, not used again.
    _snapshot: Dataset,
    objset: Objset,
    keys: Option<BlockKeys>,
    incoming: Incoming,
    /// Top-level vdevs that were written to.
    written: BTreeSet<u32>,
    healed: u64,
    /// Blocks that are lost still.
    unhealed: u64,
}

impl std::fmt::Debug for Healer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Healer")
            .field("healed", &self.healed)
            .field("unhealed", &self.unhealed)
            .finish_non_exhaustive()
    }
}

impl Hierarchy {
    /// Begins to heal a snapshot with the stream that `begin` opens; `list` is the payload of that record. For a raw stream the key of the
    /// snapshot is not needed.
    ///
    /// # Errors
    /// `NotFound`, `WrongKind` for what is no snapshot, `OtherSnapshot` when the stream is not of this one, `EmbeddedForEncrypted`,
    /// `KeyNotLoaded`; those of reading the BEGIN.
    pub async fn heal(&self, snapshot: &str, begin: Begin, list: &NvList) -> Result<Healer> {
        let incoming = Incoming::new(begin, list)?;
        let pool = self.pool();
        let _names = pool.config.read().await;
        let found = pool.find(snapshot).await?;
        if found.snapshot.is_none() {
            return Err(DslError::WrongKind {
                name: snapshot.into(),
            });
        }
        let dir = found.dir.clone();
        let is_encrypted = pool.key_object(&dir).await?.is_some();
        if is_encrypted && incoming.has(stream_feature::EMBED_DATA) {
            return Err(DslError::EmbeddedForEncrypted);
        }
        let keys = match incoming.raw {
            Some(_) => None,
            None => pool.block_keys(&dir).await?,
        };
        let snapshot = pool.hold_dataset(found).await?;
        let phys = snapshot.state().phys();
        if phys.guid != incoming.begin.to_guid {
            return Err(DslError::OtherSnapshot);
        }
        let object = snapshot.state().object;
        let objset = pool.open_stored(object, phys.bp, keys.as_ref()).await?;
        Ok(Healer {
            _snapshot: snapshot,
            objset,
            keys,
            incoming,
            written: BTreeSet::new(),
            healed: 0,
            unhealed: 0,
        })
    }
}

impl Healer {
    /// Heals the block of a record, if it is one and is lost. A block that this record cannot heal is counted, and told by
    /// [`Self::finish`].
    ///
    /// # Errors
    /// The record makes no sense; `OtherBlocks` when the snapshot's blocks are not those of the stream; of reading metadata.
    pub async fn record(&mut self, record: &StreamRecord, payload: &IoBuf) -> Result<()> {
        if record.to_guid() != self.incoming.begin.to_guid {
            return Err(malformed("guid of a record"));
        }
        match record {
            StreamRecord::Write(write) => self.write(write, payload).await,
            _ => Ok(()),
        }
    }

    async fn write(&mut self, record: &Write, payload: &IoBuf) -> Result<()> {
        let object = ObjectId(record.object);
        let (bp, block, size) = self.objset.stored_block(object, record.offset).await?;
        let is_one =
            record.logical_size == u64::from(size) && record.offset.is_multiple_of(u64::from(size));
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let store = self.objset.services().store();
        let props = ReadProps {
            class: IoClass::Scrub,
            bookmark: Bookmark {
                objset: self.objset.id(),
                object: object.0,
                level: 0,
                block,
            },
        };
        if !is_one {
            // A part of a block cannot make it whole; one that is whole needs none.
            return match store.scrub(&bp, props).await?.lost {
                true => Err(DslError::OtherBlocks),
                false => Ok(()),
            };
        }
        let with = self.replacement(record, payload)?;
        match store.heal(&bp, with, props, self.keys.as_ref()).await? {
            Healing::Whole => {}
            Healing::Healed => {
                self.healed += 1;
                self.written.extend(bp.copies().map(|dva| dva.vdev));
            }
            Healing::OtherBytes | Healing::Lost => self.unhealed += 1,
        }
        Ok(())
    }

    fn replacement(&self, record: &Write, payload: &IoBuf) -> Result<Replacement> {
        let bytes = payload.clone();
        if self.incoming.raw.is_some() {
            return Ok(Replacement::Stored(bytes));
        }
        if record.compression == 0 {
            return Ok(Replacement::Logical(bytes));
        }
        if record.logical_size > MAX_BLOCK_SIZE {
            return Err(malformed("logical size"));
        }
        let logical = expand(record.compression, payload, record.logical_size)?;
        Ok(Replacement::Compressed {
            stored: bytes,
            compression: Compression(record.compression),
            logical,
        })
    }

    /// Ends after the last record: what was healed is on stable storage. Returns how many blocks were.
    ///
    /// # Errors
    /// `NotHealed` when blocks of the stream are lost still; of the devices.
    pub async fn finish(self) -> Result<u64> {
        let tree = self.objset.services().store().tree().clone();
        for vdev in &self.written {
            let flushed = tree.flush_vdev(*vdev).await;
            let bookmark = Bookmark::default();
            flushed.map_err(|source| ZioError::Device { bookmark, source })?;
        }
        if self.unhealed > 0 {
            return Err(DslError::NotHealed);
        }
        Ok(self.healed)
    }
}
