//! Redaction lists: made with a bookmark, lengthened txg by txg, destroyed with the bookmark.
//!
//! A list that is in use is held in memory, and its bookmark cannot be destroyed until the hold is dropped.
//!
//! OpenZFS: module/zfs/dsl_bookmark.c, dsl_bookmark_create_sync_impl_snap and dsl_redaction_list_traverse.

use dmu::{AllocSpec, Tx};
use ondisk::redaction::{HEADER_BYTES, RedactedBlocks, RedactionHeader};
use ondisk::{BONUS_MAX_SMALL, OLD_MAX_BLOCK_SIZE, ObjectId, ObjectType};

use crate::dsl_pool::DslPool;
use crate::error::{DslError, RedactionError, Result};

/// Bytes of a data block of a list.
const BLOCK_BYTES: u32 = 128 << 10;
const _: () = assert!(BLOCK_BYTES as u64 == OLD_MAX_BLOCK_SIZE);
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u64 = RedactedBlocks::SIZE as u64;
/// Entries of a data block: so many are written in one txg.
pub(crate) const ENTRIES_OF_BLOCK: usize = BLOCK_BYTES as usize / RedactedBlocks::SIZE;
/// Guids that fit a spill block.
const SNAPSHOTS_MAX: usize = (BLOCK_BYTES as usize - HEADER_BYTES) / 8;
/// Guids that fit the bonus.
const SNAPSHOTS_IN_BONUS: usize = (BONUS_MAX_SMALL - HEADER_BYTES) / 8;
const _: () = assert!(SNAPSHOTS_IN_BONUS == 36);

impl DslPool {
    /// The header of a list.
    pub(crate) async fn list_header(&self, list: ObjectId) -> Result<RedactionHeader> {
        let info = self.mos.object_info(list).await?;
        if info.object_type != ObjectType::UINT64_METADATA {
            return Err(DslError::corrupt("redaction list", list));
        }
        let decoded = match self.mos.spill(list).await? {
            Some(spill) => RedactionHeader::decode(&spill),
            None => RedactionHeader::decode(&self.mos.bonus(list).await?.bytes),
        };
        decoded.map_err(|source| DslError::Decode {
            what: "redaction list",
            object: list,
            source,
        })
    }

    /// The header of a list whose entries are to be read or lengthened.
    ///
    /// # Errors
    /// `Corrupt` where it counts more entries than the list has room for: a txg that is to write behind them could not be written.
    pub(crate) async fn header_of_entries(&self, list: ObjectId) -> Result<RedactionHeader> {
        let header = self.list_header(list).await?;
        let info = self.mos.object_info(list).await?;
        let blocks = info.max_block_id.saturating_add(1);
        let room = blocks.saturating_mul(u64::from(info.block_size)) / ENTRY_BYTES;
        if header.entries > room {
            return Err(DslError::corrupt("redaction list", list));
        }
        Ok(header)
    }

    /// Whether the pool can have a list of so many redaction snapshots.
    pub(crate) fn check_new_list(&self, snapshots: usize) -> Result<()> {
        if !self.features.is_enabled("redaction_bookmarks") {
            return Err(RedactionError::NotEnabled.into());
        }
        let most = if self.features.is_enabled("redaction_list_spill") {
            SNAPSHOTS_MAX
        } else {
            SNAPSHOTS_IN_BONUS
        };
        if snapshots > most {
            return Err(RedactionError::TooManySnapshots.into());
        }
        Ok(())
    }

    /// Makes a list without entries. Syncing context.
    pub(crate) async fn create_list(&self, header: &RedactionHeader, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "a list is made in syncing context");
        let kind = ObjectType::UINT64_METADATA;
        let len = header.encode().len();
        let has_spill = len > BONUS_MAX_SMALL;
        let bonus = len.min(BONUS_MAX_SMALL);
        let spec = AllocSpec::new(kind)
            .block_size(BLOCK_BYTES)
            .bonus(kind, u16::try_from(bonus).expect("at most 320"));
        let list = self.mos.allocate(spec, tx).await?;
        self.features.incr("redaction_bookmarks", tx).await?;
        if has_spill {
            // With the full bonus the dnode got one block pointer: further ones would lie where the spill pointer stands.
            self.mos.set_bonus(list, kind, &[], tx).await?;
            self.features.incr("redaction_list_spill", tx).await?;
        }
        self.put_list_header(list, header, has_spill, tx).await?;
        Ok(list)
    }

    async fn put_list_header(
        &self,
        list: ObjectId,
        header: &RedactionHeader,
        in_spill: bool,
        tx: &Tx,
    ) -> Result<()> {
        let mut bytes = header.encode();
        if in_spill {
            bytes.resize(bytes.len().next_multiple_of(512), 0);
            self.mos.set_spill(list, Some(&bytes), tx).await?;
        } else {
            let kind = ObjectType::UINT64_METADATA;
            self.mos.set_bonus(list, kind, &bytes, tx).await?;
        }
        Ok(())
    }

    /// Writes entries behind those that a list has, and how far it has come. Syncing context.
    pub(crate) async fn append_to_list(
        &self,
        list: ObjectId,
        entries: &[RedactedBlocks],
        (last_object, last_block): (u64, u64),
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a list grows in syncing context");
        let mut header = self.list_header(list).await?;
        if !entries.is_empty() {
            let bytes: Vec<u8> = entries.iter().flat_map(RedactedBlocks::encode).collect();
            let offset = header
                .entries
                .checked_mul(ENTRY_BYTES)
                .ok_or_else(|| DslError::corrupt("redaction list", list))?;
            self.mos.write(list, offset, &bytes, tx).await?;
        }
        header.entries += entries.len() as u64;
        (header.last_object, header.last_block) = (last_object, last_block);
        let in_spill = self.mos.spill(list).await?.is_some();
        self.put_list_header(list, &header, in_spill, tx).await
    }

    /// Destroys a list with its bookmark. Syncing context.
    pub(crate) async fn destroy_list(&self, list: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a list is destroyed in syncing context");
        if self.mos.spill(list).await?.is_some() {
            self.features.decr("redaction_list_spill", tx).await?;
        }
        self.mos.free_object(list, tx).await?;
        self.features.decr("redaction_bookmarks", tx).await
    }
}
