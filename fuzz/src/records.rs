//! Structures inside blocks that verified, but which any writer may have made.

use engine::stream::{ByteOrder, NvList, RECORD_SIZE, StreamReader, StreamRecord};
use ondisk::bookmark::BookmarkPhys;
use ondisk::bptree::{BptreeEntryPhys, BptreePhys};
use ondisk::dsl::{BpobjPhys, DeadlistPhys, DslDatasetPhys, DslDirPhys};
use ondisk::redaction::{RedactedBlocks, RedactionHeader};
use ondisk::space_map::{SpaceMapEntry, SpaceMapHeader};
use ondisk::zil::{LogBlock, ZilHeader};
use ondisk::zil_record::{CloneRange, record_kind as kind};
use ondisk::{BlockPointer, DnodePhys, ObjsetPhys, sa as attributes};

pub(crate) fn dnode(data: &[u8]) {
    let (starts, taken) = (ondisk::dnode_starts(data), ondisk::dnode_slots(data));
    assert_eq!(starts & !taken, 0, "a dnode takes the slot it starts in");
    if let Ok(dn) = DnodePhys::decode(data) {
        let mut again = vec![0; dn.size()];
        dn.encode(&mut again);
        assert_eq!(DnodePhys::decode(&again).as_ref(), Ok(&dn));
        for block in [0, 1, dn.max_block_id, u64::MAX] {
            std::hint::black_box(dn.top_pointer_index(block));
        }
        std::hint::black_box((
            dn.used_bytes(),
            dn.addressable_blocks(),
            dn.bonus_max(),
            dn.data_block_size(),
        ));
    }
}

pub(crate) fn objset(data: &[u8]) {
    if let Ok(os) = ObjsetPhys::decode(data) {
        assert_eq!(ObjsetPhys::decode(&os.encode()), Ok(os));
    }
}

/// What of encrypted blocks is authenticated, and key objects: entries are pieces of the input.
pub(crate) fn crypt(data: &[u8]) {
    use ondisk::crypt::{
        KeyPhys, PartialAuth, indirect_auth, objset_local_auth, objset_portable_auth,
    };
    if let Ok(auth) = PartialAuth::of_dnodes(data) {
        let mut end = 0;
        for range in &auth.encrypted {
            assert!(end <= range.start && range.end <= data.len());
            end = range.end;
        }
    }
    let pointers = data.len() / BlockPointer::SIZE;
    assert_eq!(indirect_auth(data).len(), pointers * 32);
    std::hint::black_box((
        objset_portable_auth(data).is_ok(),
        objset_local_auth(data).is_ok(),
    ));
    let number = |name: &str| data.get(name.len()).map(|byte| u64::from(*byte));
    let bytes = |name: &str| {
        let len = usize::from(*data.get(name.len())?);
        data.get(..len)
    };
    if let Ok(key) = KeyPhys::from_entries(number, bytes) {
        assert_eq!(
            key.numbers().map(|(name, _)| number(name)),
            key.numbers().map(|(_, value)| Some(value))
        );
    }
}

pub(crate) fn dsl(data: &[u8]) {
    if let Ok(dir) = DslDirPhys::decode(data) {
        assert_eq!(DslDirPhys::decode(&dir.encode()), Ok(dir));
    }
    if let Ok(dataset) = DslDatasetPhys::decode(data) {
        assert_eq!(DslDatasetPhys::decode(&dataset.encode()), Ok(dataset));
    }
    std::hint::black_box((
        BpobjPhys::decode(data).is_ok(),
        DeadlistPhys::decode(data).is_ok(),
    ));
}

pub(crate) fn bptree(data: &[u8]) {
    if let Ok(header) = BptreePhys::decode(data) {
        assert_eq!(BptreePhys::decode(&header.encode()), Ok(header));
    }
    if let Ok(entry) = BptreeEntryPhys::decode(data) {
        assert_eq!(BptreeEntryPhys::decode(&entry.encode()), Ok(entry));
    }
}

/// Entries, their stored values, histograms, and logs.
pub(crate) fn ddt(data: &[u8]) {
    use ondisk::ddt::{DdtEntry, DdtHistogram, DdtLogHeader, DdtLogRecord};
    for flat in [false, true] {
        if let Ok(entry) = DdtEntry::decode(data, flat) {
            assert_eq!(
                DdtEntry::decode(&entry.encode(flat), flat).as_ref(),
                Ok(&entry)
            );
            std::hint::black_box(entry.references(flat));
        }
        let unzle = |packed: &[u8], len: usize| {
            codec::compress::decompress(codec::compress::Algorithm::Zle, packed, len).ok()
        };
        if let Ok(entry) = DdtEntry::unpack(data, flat, unzle) {
            let again = entry.pack(flat, |_, _| None);
            assert_eq!(DdtEntry::unpack(&again, flat, unzle), Ok(entry));
        }
        let mut rest = data;
        while let Ok(Some((record, len))) = DdtLogRecord::decode(rest, flat) {
            std::hint::black_box((record.key.sizes(), record.key.is_encrypted()));
            rest = &rest[len..];
        }
    }
    if let Ok(header) = DdtLogHeader::decode(data) {
        assert_eq!(DdtLogHeader::decode(&header.encode()), Ok(header));
    }
    std::hint::black_box(ondisk::ddt::DdtKey::from_be_bytes(data));
    let words: Vec<u64> = ondisk::bytes::u64s(data).collect();
    if let Some(mut histogram) = DdtHistogram::from_words(&words) {
        assert_eq!(histogram.to_words(), words);
        let sums = std::array::from_fn(|i| words[i]);
        histogram.change(&sums, true);
        histogram.change(&sums, false);
        assert_eq!(histogram.to_words(), words);
        std::hint::black_box(histogram.bytes());
    }
}

pub(crate) fn brt(data: &[u8]) {
    use ondisk::brt::{BrtVdevPhys, decode_counts, decode_entry, encode_counts, encode_entry};
    if let Ok(header) = BrtVdevPhys::decode(data) {
        assert_eq!(BrtVdevPhys::decode(&header.encode()), Ok(header));
    }
    let counts = decode_counts(data);
    assert_eq!(decode_counts(&encode_counts(&counts)), counts);
    if let Some(references) = decode_entry(data) {
        assert_eq!(encode_entry(references), data);
    }
}

/// The state of removals, and mappings of removed vdevs with their births.
pub(crate) fn removal(data: &[u8]) {
    use ondisk::removal::{IndirectBirthPhys, IndirectMappingEntryPhys, IndirectMappingPhys};
    let words: Vec<u64> = ondisk::bytes::u64s(data).collect();
    if let Ok(Some(phys)) = ondisk::removal::RemovalPhys::from_words(&words) {
        assert_eq!(phys.to_words(), words[..7]);
    }
    if let Ok(header) = IndirectMappingPhys::decode(data) {
        assert_eq!(IndirectMappingPhys::decode(&header.encode()), Ok(header));
    }
    for bytes in data.chunks(IndirectMappingEntryPhys::SIZE) {
        if let Ok(entry) = IndirectMappingEntryPhys::decode(bytes) {
            let again = IndirectMappingEntryPhys::decode(&entry.encode());
            assert_eq!(again, Ok(entry));
        }
    }
    if let Ok(birth) = IndirectBirthPhys::decode(data) {
        assert_eq!(IndirectBirthPhys::decode(&birth.encode()), Ok(birth));
    }
}

pub(crate) fn rebuild(data: &[u8]) {
    use ondisk::rebuild::RebuildPhys;
    let words: Vec<u64> = ondisk::bytes::u64s(data).collect();
    if let Some(phys) = RebuildPhys::from_words(&words) {
        assert_eq!(phys.to_words(), words[..RebuildPhys::WORDS]);
    }
}

/// The header of a cache device, and its log blocks: the first two bytes say how many entries one has.
pub(crate) fn l2arc(data: &[u8]) {
    use ondisk::l2arc::{Header, LogBlock};
    if let Ok(header) = Header::decode(data) {
        let again = header.encode(512, |_| [0; 4]);
        let again = Header::decode(&again).expect("what was encoded can be read");
        assert_eq!((again.start, again.end), (header.start, header.end));
        for pointer in &header.newest {
            std::hint::black_box(pointer.is_valid(&header, header.evict));
        }
    }
    if let Some((entries, block)) = data.split_at_checked(2) {
        let entries = usize::from(u16::from_le_bytes([entries[0], entries[1]]));
        if let Ok(block) = LogBlock::decode(block, entries) {
            let again = LogBlock::decode(&block.encode(), entries);
            assert_eq!(
                again.map(|again| again.entries.len()),
                Ok(block.entries.len())
            );
        }
    }
}

pub(crate) fn bookmark(data: &[u8]) {
    let words: Vec<u64> = ondisk::bytes::u64s(data).collect();
    let bookmark = BookmarkPhys::decode(&words);
    let encoded = bookmark.encode();
    assert_eq!(BookmarkPhys::decode(&encoded), bookmark);
    let shared = words.len().min(encoded.len());
    assert_eq!(words.get(..shared), encoded.get(..shared));
    // The list that a redaction bookmark names.
    if let Ok(header) = RedactionHeader::decode(data) {
        assert_eq!(RedactionHeader::decode(&header.encode()), Ok(header));
    }
    if let Ok(entry) = RedactedBlocks::decode(data) {
        assert_eq!(RedactedBlocks::decode(&entry.encode()), Ok(entry));
        std::hint::black_box((entry.count(), entry.block_bytes()));
    }
}

/// Keys of deadlists, and the lists of block pointers in them, with the entries of livelists.
pub(crate) fn deadlist(data: &[u8]) {
    use ondisk::dsl::{bpobj_entry, bpobj_num_freed, deadlist_key, freed_entry, livelist_entry};
    std::hint::black_box((deadlist_key(data), bpobj_num_freed(data)));
    for bp in BlockPointer::decode_all(data) {
        let entry = bpobj_entry(&bp);
        assert_eq!(bpobj_entry(&entry), entry);
        assert_eq!(livelist_entry(&freed_entry(&entry)), (entry, true));
    }
}

pub(crate) fn deleg(data: &[u8]) {
    if let Ok(key) = std::str::from_utf8(data)
        && ondisk::deleg::is_key(key)
    {
        assert!(key.len() < 128 && key.get(2..3) == Some("$"));
    }
}

pub(crate) fn file_owner(data: &[u8]) {
    for bonus_type in [ondisk::ObjectType::SA, ondisk::ObjectType::ZNODE] {
        std::hint::black_box(ondisk::file_owner::decode(bonus_type, data));
        std::hint::black_box(ondisk::file_owner::generation(bonus_type, data));
    }
    if let Ok(record) = ondisk::znode_phys::ZnodePhys::decode(data) {
        std::hint::black_box(record.acl.entries(record.acl.bytes));
        let again = record.encode();
        let again = ondisk::znode_phys::ZnodePhys::decode(&again);
        assert_eq!(again.map(|again| again.size), Ok(record.size));
    }
    // What a big-endian machine wrote.
    for kind in 0..54 {
        let mut block = data.to_vec();
        ondisk::byteswap::swap_block(ondisk::ObjectType(kind), 0, &mut block);
        assert_eq!(block.len(), data.len());
    }
}

pub(crate) fn sa(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let (layout, buf) = rest.split_at(rest.len().min(usize::from(*count % 32)));
    let layout: Vec<u16> = layout.iter().map(|b| u16::from(*b) % 24).collect();
    let length = |n: u16| attributes::ATTRIBUTES.get(usize::from(n)).map(|a| a.length);
    let all = |buf: &[u8]| -> ondisk::Result<Vec<_>> {
        attributes::attributes(buf, &layout, length)?.collect()
    };
    if let Ok(found) = all(buf) {
        for (_, range) in &found {
            assert!(range.end <= buf.len());
            std::hint::black_box(attributes::bytes_of(buf, range));
        }
        let parts = found
            .iter()
            .map(|(n, r)| (attributes::bytes_of(buf, r), length(*n) == Some(0)));
        if let Ok(built) = attributes::build(3, parts) {
            let again = all(&built).expect("what was built can be read");
            assert_eq!(again.len(), found.len());
        }
    }
}

pub(crate) fn acl(data: &[u8]) {
    if let Some((count, rest)) = data.split_first()
        && let Ok(aces) = ondisk::acl::decode(rest, usize::from(*count))
    {
        assert!(
            ondisk::acl::entries(rest)
                .take(aces.len())
                .eq(aces.iter().copied())
        );
        let again = ondisk::acl::encode(&aces);
        assert_eq!(rest.get(..again.len()), Some(again.as_slice()));
    }
    std::hint::black_box(ondisk::acl::decode(data, usize::MAX).is_ok());
}

pub(crate) fn posix_acl(data: &[u8]) {
    use ondisk::posix_acl;
    let version = posix_acl::version(data);
    if let Ok(entries) = posix_acl::entries(data) {
        let again = posix_acl::encode(&entries.collect::<Vec<_>>());
        assert_eq!(again[4..], data[4..]);
        assert_eq!(version == Ok(posix_acl::VERSION), again == data);
    }
}

pub(crate) fn space_map(data: &[u8]) {
    let shift = u32::from(data.first().copied().unwrap_or(9));
    for shift in [9, 12, shift] {
        for e in ondisk::space_map::entries(data, shift, 1 << 40) {
            if let Ok(SpaceMapEntry::Range { start, len, .. }) = e {
                assert!(start.checked_add(len).is_some() && len > 0);
            }
        }
    }
    if let Ok(h) = SpaceMapHeader::decode(data) {
        assert_eq!(SpaceMapHeader::decode(&h.encode()), Ok(h));
    }
}

pub(crate) fn history(data: &[u8]) {
    let mut at = 0;
    while let Ok((_, used)) = ondisk::history::decode_record(&data[at..]) {
        at += used;
    }
    if let Ok(h) = ondisk::history::HistoryPhys::decode(data) {
        std::hint::black_box((h.physical(0), h.physical(u64::MAX)));
    }
}

/// The first 128 bytes are the pointer the block was read through.
pub(crate) fn zil_block(data: &[u8]) {
    let Ok(bp) = BlockPointer::decode(data) else {
        return;
    };
    let block = &data[BlockPointer::SIZE..];
    std::hint::black_box(ZilHeader::decode(block).is_ok());
    // A sum that always matches what is stored, so that the rest of the block is read.
    let at = if bp.checksum_kind() == ondisk::ChecksumKind::ZILOG2 {
        0
    } else {
        block.len().saturating_sub(184)
    };
    let stored: Vec<u64> =
        ondisk::bytes::u64s(ondisk::bytes::slice_at(block, at + 152, 32)).collect();
    let sum = <[u64; 4]>::try_from(stored).unwrap_or_default();
    if let Some(log) = LogBlock::open(block, &bp, |_| sum, |_| sum) {
        for record in log.iter() {
            std::hint::black_box((record.indirect_write(), record.body.len()));
            std::hint::black_box(CloneRange::decode(record.body).is_some());
        }
    }
}

/// The first byte is the kind of a record, the rest its body. What is read is written alike, but for bytes behind it.
pub(crate) fn zil_record(data: &[u8]) {
    use ondisk::zil_record as record;
    let Some((&first, body)) = data.split_first() else {
        return;
    };
    let written = match u64::from(first) {
        kind::REMOVE | kind::RMDIR => record::RemoveRecord::decode(body).map(|r| r.encode()),
        kind::LINK => record::LinkRecord::decode(body).map(|r| r.encode()),
        at @ (kind::RENAME | kind::RENAME_EXCHANGE) => {
            record::RenameRecord::decode(at, body).map(|r| r.encode())
        }
        kind::TRUNCATE | kind::WRITE2 => record::RangeRecord::decode(body).map(|r| r.encode()),
        kind::WRITE => record::WriteRecord::decode(body).map(|r| {
            let mut out = body.to_vec();
            r.put(&mut out);
            out
        }),
        // New objects, lists and optional attributes have parts that are not read.
        kind::RENAME_WHITEOUT => {
            std::hint::black_box(
                record::RenameRecord::decode(kind::RENAME_WHITEOUT, body).is_some(),
            );
            None
        }
        kind::SETATTR => {
            std::hint::black_box(record::SetattrRecord::decode(body).is_some());
            None
        }
        at @ (kind::ACL | kind::ACL_V0) => {
            std::hint::black_box(record::AclRecord::decode(at, body).is_some());
            None
        }
        kind::SETSAXATTR => record::SetSaXattrRecord::decode(body).map(|r| r.encode()),
        at => {
            std::hint::black_box(record::CreateRecord::decode(at, body).is_some());
            None
        }
    };
    if let Some(written) = written {
        assert!(
            body.starts_with(&written),
            "a record is written as it was read"
        );
    }
}

/// A whole stream, with its checksums taken for good: what stands behind them must be safe, too.
pub(crate) fn send_stream(data: &[u8]) {
    let mut reader = StreamReader::unverified();
    let mut rest = data;
    while let Some((bytes, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let Ok(record) = reader.record(bytes) else {
            return;
        };
        if !matches!(record, StreamRecord::Begin(_)) {
            assert!(
                record.payload_len() <= ondisk::MAX_BLOCK_SIZE,
                "{record:?} has a payload above the largest block"
            );
        }
        let again = StreamRecord::decode(&record.encode(), ByteOrder::Little);
        assert_eq!(again.as_ref(), Ok(&record));
        let here =
            usize::try_from(record.payload_len()).map_or(behind.len(), |n| n.min(behind.len()));
        let (payload, behind) = behind.split_at(here);
        if matches!(record, StreamRecord::Begin(_)) {
            std::hint::black_box(NvList::decode(payload).is_ok());
        }
        if record.payload_len() > here as u64 {
            return;
        }
        reader.payload(payload);
        rest = behind;
    }
}
