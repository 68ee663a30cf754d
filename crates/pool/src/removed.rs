//! Removed top-level vdevs: reading the tables that say where their blocks are now.
//!
//! The newest removal's table lies on vdevs that are still there; an older one may lie on a vdev removed since, so the
//! tables are read newest first.
// OpenZFS: include/sys/vdev_indirect_mapping.h, include/sys/spa_impl.h (spa_removing_phys), and their entry points.

use dmu::{Objset, zap};
use ondisk::ObjectId;
use ondisk::bytes::{index, u64_at};
use vdev::{Moved, Tree, VdevKind};

use crate::PoolError;
use crate::pool::DIRECTORY;

/// Bytes of an entry: source, then the two words of a block address.
const ENTRY: usize = 24;
/// Entries read at a time.
const BATCH: u64 = 8192;
/// Most entries believed of one vdev (1.5 GiB of blocks of 128 KiB each need 12,288).
const ENTRIES_MAX: u64 = 1 << 24;
/// "No vdev".
const NONE: u64 = u64::MAX;

/// Tells the tree where the blocks of removed vdevs are.
pub(crate) async fn load_mappings(mos: &Objset, tree: &Tree) -> Result<(), PoolError> {
    let config = tree.config();
    if !config.tops.iter().any(|top| top.kind == VdevKind::Indirect) {
        return Ok(());
    }
    let bad = |what: &str| PoolError::Corrupt(format!("the removed vdevs' {what}"));
    let Some(zap::ZapValue::U64(state)) =
        zap::lookup(mos, DIRECTORY, "com.delphix:removing").await?
    else {
        return Err(bad("state is missing"));
    };
    // State, vdev being removed, vdev removed last, and times and sizes that do not matter here.
    let mut next = state
        .get(2)
        .copied()
        .ok_or_else(|| bad("state is too short"))?;
    for _ in 0..config.tops.len() {
        if next == NONE {
            return Ok(());
        }
        let top = usize::try_from(next)
            .ok()
            .and_then(|id| config.tops.get(id))
            .filter(|top| top.kind == VdevKind::Indirect)
            .ok_or_else(|| bad("order names a vdev that is not removed"))?;
        let object = top.extra.u64("com.delphix:indirect_object").unwrap_or(0);
        if object != 0 {
            let runs = read_table(mos, ObjectId(object)).await?;
            let id = u32::try_from(next).map_err(|_| bad("order"))?;
            tree.set_mapping(id, runs)?;
        }
        next = top
            .extra
            .u64("com.delphix:prev_indirect_vdev")
            .unwrap_or(NONE);
    }
    if next == NONE {
        Ok(())
    } else {
        Err(bad("order leads round in a circle"))
    }
}

async fn read_table(mos: &Objset, object: ObjectId) -> Result<Vec<Moved>, PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("the table of a removed vdev {what}"));
    let bonus = mos.bonus(object).await?;
    if bonus.bytes.len() < 24 {
        return Err(bad("has no header"));
    }
    let count = u64_at(&bonus.bytes, 16);
    if count > ENTRIES_MAX {
        return Err(bad("has an impossible length"));
    }
    let mut runs = Vec::new();
    let mut from = 0;
    while from < count {
        let batch = (count - from).min(BATCH);
        let len = index(batch) * ENTRY;
        let bytes = mos.read(object, from * ENTRY as u64, len).await?;
        for entry in bytes.chunks_exact(ENTRY) {
            let (source, place, offset) = (u64_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
            // Format page on block pointers, DVA: vdev in bits 32-55, size in the low 24, both words in units of 512.
            runs.push(Moved {
                from: (source & !(1 << 63))
                    .checked_mul(512)
                    .ok_or_else(|| bad("is damaged"))?,
                len: (place & 0xff_ffff) << 9,
                vdev: u32::try_from(place >> 32 & 0xff_ffff).unwrap_or(u32::MAX),
                offset: (offset & !(1 << 63))
                    .checked_mul(512)
                    .ok_or_else(|| bad("is damaged"))?,
            });
        }
        from += batch;
    }
    Ok(runs)
}
