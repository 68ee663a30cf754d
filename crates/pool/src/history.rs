//! The pool's history: a ring of packed lists in one object of the meta-objset, in which the
//! record of the pool's creation is kept for ever.
//!
//! Records are written in syncing context.  The ring never grows beyond the size fixed at its
//! creation; the oldest records give way, whole ones at a time.
// OpenZFS: include/sys/spa_impl.h (spa_history_phys_t), module/zfs/spa_history.c (ring rules)

use dmu::{AllocSpec, Objset, Tx};
use ondisk::bytes::{index, len64};
use ondisk::history::{HistoryPhys, RECORD_HEADER, keys, packed_len};
use ondisk::{NvList, ObjectId, ObjectType};

use crate::status::{HistoryEvent, HistoryRecord};
use crate::{HostIdentity, PoolError};

const BLOCK_SIZE: u32 = 128 << 10;
const BONUS_LEN: u16 = 40;
/// Longest record believed when reading: a command line is at most 128 KiB.
const RECORD_MAX: u64 = 1 << 20;
/// Most bytes of history returned by one listing: the largest ring.
const RING_MAX: u64 = 1 << 30;
const RING_MIN: u64 = 128 << 10;
const _: () = assert!(RING_MIN >= BLOCK_SIZE as u64);
const _: () = assert!(RING_MIN < RING_MAX && RECORD_MAX <= RING_MAX);
const _: () = assert!(HistoryPhys::SIZE == BONUS_LEN as usize);

/// Decodes the bonus of the history object; `None` when the ring it describes cannot be.
fn decode(bonus: &[u8]) -> Option<HistoryPhys> {
    let offsets = HistoryPhys::decode(bonus).ok()?;
    let sound = offsets.pool_create_len < offsets.phys_max_off
        && offsets.phys_max_off <= RING_MAX
        && offsets.pool_create_len <= offsets.bof
        && offsets.bof <= offsets.eof
        && offsets.eof - offsets.bof <= offsets.phys_max_off - offsets.pool_create_len;
    sound.then_some(offsets)
}

/// Makes what was written so far the part that is kept for ever: the record of the creation. Too late once the ring has
/// wrapped, or is mostly full: a pool that was made without a command has no such part.
fn keep_creation(offsets: &mut HistoryPhys) {
    if offsets.pool_create_len == 0 && offsets.bof == 0 && offsets.eof <= offsets.phys_max_off / 2 {
        offsets.pool_create_len = offsets.eof;
        offsets.bof = offsets.eof;
    }
}

/// The byte in the object of a logical offset in the ring.
fn physical(offsets: &HistoryPhys, logical: u64) -> u64 {
    assert!(
        logical >= offsets.pool_create_len,
        "offset {logical} lies in the ring, which begins at {}",
        offsets.pool_create_len
    );
    offsets.physical(logical).expect("the ring has room")
}

/// Creates the history object of a pool of `pool_bytes`.
pub(crate) async fn create(mos: &Objset, pool_bytes: u64, tx: &Tx) -> Result<ObjectId, PoolError> {
    assert!(tx.is_syncing(), "create happens in syncing context");
    let spec = AllocSpec::new(ObjectType::SPA_HISTORY)
        .block_size(BLOCK_SIZE)
        .bonus(ObjectType::SPA_HISTORY_OFFSETS, BONUS_LEN);
    let object = mos.allocate(spec, tx).await?;
    let offsets = HistoryPhys {
        phys_max_off: (pool_bytes / 1000).clamp(RING_MIN, RING_MAX),
        ..HistoryPhys::default()
    };
    store(mos, object, &offsets, tx).await?;
    Ok(object)
}

/// Makes the list of a command record.
pub(crate) fn command_record(command: &str, user: u64, time: u64, host: &HostIdentity) -> NvList {
    NvList::new()
        .with(keys::COMMAND, command)
        .with(keys::ZONE, "linux")
        .with(keys::WHO, user)
        .with(keys::TIME, time)
        .with(keys::HOST, host.hostname.as_str())
}

/// The text of the events `create`, `open` and `import`: which software on which machine.
// OpenZFS: module/zfs/spa_history.c, spa_history_log_version
pub(crate) fn version_text(pool_version: u64, host: &HostIdentity) -> String {
    let machine = format!("{} {}", host.hostname, host.kernel);
    format!(
        "pool version {pool_version}; software version sanbox-{}; uts {}",
        env!("CARGO_PKG_VERSION"),
        machine.trim_end()
    )
}

/// Makes the list of an internal record.
pub(crate) fn internal_record(
    name: &str,
    dataset: Option<(&str, u64)>,
    text: &str,
    txg: u64,
    time: u64,
    host: &HostIdentity,
) -> NvList {
    let mut list = NvList::new();
    if let Some((dataset, id)) = dataset {
        list.insert(keys::DATASET_NAME, dataset);
        list.insert(keys::DATASET_ID, id);
    }
    list.with(keys::INTERNAL_STR, text)
        .with(keys::INTERNAL_NAME, name)
        .with(keys::TXG, txg)
        .with(keys::TIME, time)
        .with(keys::HOST, host.hostname.as_str())
}

/// Appends a record. What is there stays as it is when it is damaged: no pool is worth less for want of its history.
pub(crate) async fn append(
    mos: &Objset,
    object: ObjectId,
    record: &NvList,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "append happens in syncing context");
    let Some(mut offsets) = decode(&mos.bonus(object).await?.bytes) else {
        return Ok(());
    };
    let bytes = ondisk::history::encode_record(record);
    let len = len64(bytes.len());
    if len >= offsets.phys_max_off - offsets.pool_create_len {
        // A record larger than the whole ring is not kept.
        return Ok(());
    }
    while offsets.phys_max_off - offsets.pool_create_len - (offsets.eof - offsets.bof) <= len {
        let head = read_ring(mos, object, &offsets, offsets.bof, RECORD_HEADER).await?;
        let old = packed_len(&head).saturating_add(RECORD_HEADER);
        if old > offsets.eof - offsets.bof {
            return Ok(());
        }
        offsets.bof += old;
        offsets.records_lost += 1;
    }
    let at = physical(&offsets, offsets.eof);
    let first = index((offsets.phys_max_off - at).min(len));
    mos.write(object, at, &bytes[..first], tx).await?;
    if first < bytes.len() {
        mos.write(object, offsets.pool_create_len, &bytes[first..], tx)
            .await?;
    }
    offsets.eof += len;
    if record.has(keys::COMMAND) {
        keep_creation(&mut offsets);
    }
    store(mos, object, &offsets, tx).await
}

/// Returns all records, oldest first.  A damaged record ends the listing.
pub(crate) async fn list(mos: &Objset, object: ObjectId) -> Result<Vec<HistoryRecord>, PoolError> {
    let offsets = read_offsets(mos, object).await?;
    let mut records = Vec::new();
    let mut at = 0;
    while at < offsets.pool_create_len {
        let Some((record, len)) = parse_at(mos, object, None, at, offsets.pool_create_len).await?
        else {
            break;
        };
        records.extend(record);
        at += len;
    }
    let mut at = offsets.bof;
    while at < offsets.eof {
        let Some((record, len)) = parse_at(mos, object, Some(&offsets), at, offsets.eof).await?
        else {
            break;
        };
        records.extend(record);
        at += len;
    }
    Ok(records)
}

/// Parses the record at `at`; `ring` is `None` in the part before the ring.
async fn parse_at(
    mos: &Objset,
    object: ObjectId,
    ring: Option<&HistoryPhys>,
    at: u64,
    end: u64,
) -> Result<Option<(Option<HistoryRecord>, u64)>, PoolError> {
    let read = async |from: u64, len: u64| match ring {
        Some(offsets) => read_ring(mos, object, offsets, from, len).await,
        None => Ok(mos.read(object, from, index(len)).await?.to_vec()),
    };
    if end - at < RECORD_HEADER {
        return Ok(None);
    }
    let len = packed_len(&read(at, RECORD_HEADER).await?);
    if len > RECORD_MAX || len > end - at - RECORD_HEADER {
        return Ok(None);
    }
    let packed = read(at + RECORD_HEADER, len).await?;
    let record = NvList::decode(&packed).ok().map(|list| interpret(&list));
    Ok(Some((record, len + RECORD_HEADER)))
}

fn interpret(list: &NvList) -> HistoryRecord {
    let text = |key: &str| list.str(key).map(str::to_owned);
    let event = if let Some(command) = text(keys::COMMAND) {
        HistoryEvent::Command(command)
    } else if let Some(name) = text(keys::INTERNAL_NAME) {
        let dataset =
            text(keys::DATASET_NAME).map(|ds| (ds, list.u64(keys::DATASET_ID).unwrap_or(0)));
        HistoryEvent::Internal {
            name,
            dataset,
            text: text(keys::INTERNAL_STR).unwrap_or_default(),
        }
    } else if let Some(event) = list.u64(keys::INTERNAL_EVENT) {
        let text = text(keys::INTERNAL_STR).unwrap_or_default();
        HistoryEvent::OldInternal { event, text }
    } else if let Some(name) = text(keys::IOCTL) {
        let details = request_details(list);
        HistoryEvent::Request { name, details }
    } else {
        HistoryEvent::Unknown(list.to_text(LIST_INDENT))
    };
    let elapsed_ns = list.i64(keys::ELAPSED_NS);
    let elapsed_ns = elapsed_ns.and_then(|elapsed| u64::try_from(elapsed).ok());
    HistoryRecord {
        time: list.u64(keys::TIME).unwrap_or(0),
        hostname: text(keys::HOST).unwrap_or_default(),
        zone: text(keys::ZONE),
        user: list.u64(keys::WHO),
        txg: list.u64(keys::TXG),
        elapsed_ms: elapsed_ns.map(|elapsed| elapsed / 1_000_000),
        event,
    }
}

/// Columns before the pairs of a list, and of one that is part of a record.
const LIST_INDENT: usize = 4;

/// The arguments of a request and its result.
// OpenZFS: cmd/zpool/zpool_main.c, print_history_records
fn request_details(record: &NvList) -> String {
    let mut text = String::new();
    for (title, key) in [("input", keys::INPUT), ("output", keys::OUTPUT)] {
        if let Some(list) = record.list(key) {
            text.push_str(&format!("    {title}:\n{}", list.to_text(2 * LIST_INDENT)));
        }
    }
    if let Some(bytes) = record.i64(keys::OUTPUT_SIZE) {
        let kib = bytes / 1024;
        text.push_str(&format!(
            "    output nvlist omitted; original size: {kib}KB\n"
        ));
    }
    if let Some(number) = record.i64(keys::ERRNO) {
        text.push_str(&format!("    errno: {number}\n"));
    }
    text
}

async fn read_ring(
    mos: &Objset,
    object: ObjectId,
    offsets: &HistoryPhys,
    logical: u64,
    len: u64,
) -> Result<Vec<u8>, PoolError> {
    let at = physical(offsets, logical);
    let first = (offsets.phys_max_off - at).min(len);
    let mut bytes = mos.read(object, at, index(first)).await?.to_vec();
    if first < len {
        bytes.extend_from_slice(
            &mos.read(object, offsets.pool_create_len, index(len - first))
                .await?,
        );
    }
    Ok(bytes)
}

async fn read_offsets(mos: &Objset, object: ObjectId) -> Result<HistoryPhys, PoolError> {
    let bonus = mos.bonus(object).await?;
    decode(&bonus.bytes).ok_or_else(|| PoolError::Corrupt("the pool history is damaged".into()))
}

async fn store(
    mos: &Objset,
    object: ObjectId,
    offsets: &HistoryPhys,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "store happens in syncing context");
    mos.set_bonus(
        object,
        ObjectType::SPA_HISTORY_OFFSETS,
        &offsets.encode(),
        tx,
    )
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps_behind_the_creation_record() {
        let offsets = HistoryPhys {
            pool_create_len: 100,
            phys_max_off: 1100,
            bof: 900,
            eof: 1500,
            records_lost: 3,
        };
        assert_eq!(decode(&offsets.encode()), Some(offsets));
        assert_eq!(physical(&offsets, 100), 100);
        assert_eq!(physical(&offsets, 1099), 1099);
        assert_eq!(physical(&offsets, 1100), 100);
    }

    #[test]
    fn a_ring_that_wrapped_keeps_no_creation_record() {
        // As ztest leaves a pool that no command created: the first command comes when the ring has long wrapped.
        let before = HistoryPhys {
            pool_create_len: 0,
            phys_max_off: 150_994,
            bof: 153_088,
            eof: 304_016,
            records_lost: 483,
        };
        let mut after = before;
        keep_creation(&mut after);
        assert_eq!(after, before);
        assert!(decode(&after.encode()).is_some());
        let mut first = HistoryPhys {
            phys_max_off: 150_994,
            eof: 300,
            ..HistoryPhys::default()
        };
        keep_creation(&mut first);
        assert_eq!((first.pool_create_len, first.bof), (300, 300));
    }

    #[test]
    fn impossible_offsets_are_refused() {
        let offsets = HistoryPhys {
            pool_create_len: 0,
            phys_max_off: 1100,
            bof: 900,
            eof: 5000,
            records_lost: 0,
        };
        assert_eq!(decode(&offsets.encode()), None);
    }
}
