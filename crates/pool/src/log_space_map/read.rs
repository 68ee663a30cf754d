//! Reads the logs of a pool at its import.

use std::collections::BTreeMap;
use std::ops::Range;

use dmu::{Objset, zap};
use ondisk::ObjectId;
use ondisk::bytes::index;
use range_tree::Mismatch;
use vdev::{TopInfo, TreeConfig};

use super::{DIRECTORY_KEY, Log, LogSpaceMaps, SHIFT, TXGS_KEY};
use crate::objects::DIRECTORY;
use crate::{PoolError, space_map};

/// Reads the logs of a pool; of one that has none, what a pool without logs knows.
///
/// # Errors
/// `Corrupt` for entries outside their vdev or that contradict each other; errors of reading.
pub(crate) async fn read(
    mos: &Objset,
    tops: &[TopInfo],
    config: &TreeConfig,
) -> Result<LogSpaceMaps, PoolError> {
    let mut found = LogSpaceMaps::default();
    let Some(directory) = zap::lookup_u64(mos, DIRECTORY, DIRECTORY_KEY).await? else {
        return Ok(found);
    };
    let directory = ObjectId(directory);
    found.directory = Some(directory);
    for top in tops {
        let zap_top = config.tops.get(top.id as usize).and_then(|v| v.zap_top);
        if let Some(zap_top) = zap_top.filter(|&object| object != 0).map(ObjectId)
            && let Some(list) = zap::lookup_u64(mos, zap_top, TXGS_KEY).await?
        {
            let list = ObjectId(list);
            found.set_list(top.id, list);
            let bytes = mos.read(list, 0, index(8 * top.metaslab_count)).await?;
            for (metaslab, since) in (0..).zip(ondisk::bytes::u64s(&bytes)) {
                if since != 0 {
                    found.note_flushed((top.id, metaslab), since);
                }
            }
        }
    }
    let tops: BTreeMap<u32, &TopInfo> = tops.iter().map(|top| (top.id, top)).collect();
    for (txg, object) in listed_logs(mos, directory).await? {
        let header = space_map::header(mos, object).await?;
        space_map::for_each(mos, object, &header, |entry| {
            let bad = || PoolError::Corrupt(format!("log space map {object} of txg {txg}"));
            let id = entry.vdev.ok_or_else(bad)?;
            let Some(top) = tops.get(&id) else {
                // A vdev that was removed meanwhile has nothing here any more.
                found.flush_all = true;
                return Ok(());
            };
            let (metaslab, range) = place(top, &entry).ok_or_else(bad)?;
            let key = (id, metaslab);
            match found.since(key) {
                // Older changes are in the metaslab's own map.
                Some(since) if txg < since => return Ok(()),
                Some(_) => {}
                None => found.note_flushed(key, txg),
            }
            found
                .apply(key, entry.kind, &range)
                .map_err(|Mismatch| bad())
        })
        .await?;
        found.put_log(txg, Log { object, header });
    }
    Ok(found)
}

/// The metaslab of an entry and its bytes; `None` when it is not within one metaslab of the vdev, on whole sectors.
fn place(top: &TopInfo, entry: &space_map::Run) -> Option<(u32, Range<u64>)> {
    let limit = top.metaslab_count << top.metaslab_shift >> SHIFT;
    if entry.offset > limit || entry.run > limit - entry.offset {
        return None;
    }
    let range = entry.offset << SHIFT..(entry.offset + entry.run) << SHIFT;
    let unit = (1 << top.ashift) - 1;
    let metaslab = range.start >> top.metaslab_shift;
    let within = (range.end - 1) >> top.metaslab_shift == metaslab;
    let whole = (range.start | range.end) & unit == 0;
    (within && whole)
        .then(|| u32::try_from(metaslab).ok())
        .flatten()
        .map(|metaslab| (metaslab, range))
}

/// The logs that the list names, by their txgs, oldest first.
async fn listed_logs(mos: &Objset, logs_zap: ObjectId) -> Result<Vec<(u64, ObjectId)>, PoolError> {
    let mut logs = Vec::new();
    for entry in zap::entries(mos, logs_zap).await? {
        let name = std::str::from_utf8(&entry.name).ok();
        let txg = name.and_then(|name| u64::from_str_radix(name, 16).ok());
        match (txg, &entry.value) {
            (Some(txg), zap::ZapValue::U64(object)) if object.len() == 1 => {
                logs.push((txg, ObjectId(object[0])));
            }
            _ => return Err(PoolError::Corrupt("the list of log space maps".into())),
        }
    }
    logs.sort_unstable();
    Ok(logs)
}
