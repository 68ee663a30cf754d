//! ZAP blocks: read, and also changed in place, since a writer trusts what it read.

use ondisk::zap::{self, FatHeader, InsertError, Leaf, MicroZap, NewEntry, micro as entries};

pub(crate) fn micro(data: &[u8]) {
    if let Ok(zap) = MicroZap::decode(data) {
        assert!(zap.entries.iter().all(|(n, _, _)| !n.is_empty()));
        for (name, _, _) in &zap.entries {
            for norm in [0, zap.norm_flags] {
                std::hint::black_box(zap::hash(zap.salt, &zap::normalize(name, norm), 0));
            }
        }
    }
    let mut block = data.to_vec();
    if let Some(slot) = entries::free_slot(&block) {
        entries::put(&mut block, slot, b"name", 7, 0);
        assert_eq!(entries::entry(&block, slot).map(|e| e.value), Some(7));
        entries::clear(&mut block, slot);
    }
}

pub(crate) fn fat(data: &[u8]) {
    if let Ok(header) = FatHeader::decode(data) {
        for hash in [0, 1 << 63, u64::MAX] {
            let i = header.table_index(hash);
            std::hint::black_box(FatHeader::embedded_entry(data, i));
        }
        let mut again = data.to_vec();
        header.encode_into(&mut again);
        assert_eq!(again, data);
    }
}

/// The first byte chooses the size of the leaf, the second what is done to it.
pub(crate) fn leaf(data: &[u8]) {
    let [size, what, rest @ ..] = data else {
        return;
    };
    let mut block = rest.to_vec();
    block.resize(512 << (size % 6), 0);
    let Ok(mut leaf) = Leaf::open(block) else {
        return;
    };
    let key_size = if what & 1 == 0 { 1 } else { 8 };
    let mut sound = leaf.check(key_size).is_ok();
    let Ok(all) = leaf.entries() else {
        assert!(!sound);
        return;
    };
    for e in &all {
        let name = leaf.name(e, key_size);
        let value = leaf.value(e);
        assert!(!sound || name.is_ok() && value.is_ok());
    }
    for hash in [0, u64::MAX, all.first().map_or(5, |e| e.hash)] {
        let cd = leaf.free_cd(hash).unwrap_or(0);
        let new = NewEntry {
            hash,
            cd,
            name: b"fuzz\0",
            name_int_size: 1,
            value_int_size: 8,
            value: &[1; 8],
        };
        match leaf.insert(&new) {
            Ok(e) if sound && leaf.covers(hash) => {
                assert!(key_size != 1 || leaf.check(1).is_ok());
                assert!(
                    leaf.set_value(&e, 1, &[9; 30])
                        .is_ok_and(|e| leaf.remove(&e).is_ok())
                        || leaf.free_chunks() < 2
                );
            }
            // An entry outside the leaf's prefix: the caller's mistake, but no panic may follow.
            Ok(_) => sound = false,
            Err(InsertError::Full | InsertError::Corrupt(_)) => {}
        }
    }
    for e in all.iter().take(20) {
        let removed = leaf.remove(e);
        assert!(!sound || removed.is_ok());
    }
    std::hint::black_box(leaf.split(key_size).is_ok());
}
