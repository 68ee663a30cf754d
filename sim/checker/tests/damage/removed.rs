//! Wounds of a pool from which OpenZFS removed a vdev: its table, what is noted beside it, and what lies where it points.

use checker::Kind;
use ondisk::bytes::{put_u64, u64_at};
use ondisk::{DnodePhys, NvList};

use crate::surgeon::Surgeon;
use crate::{bonus_at, feature_object, set_micro, wound_pool};

/// Bytes of an entry of the table, and of the births.
const ENTRY: usize = 24;
const BIRTH: usize = 16;
/// A sector of the pool, in the units of the table.
const SECTOR: u64 = 8;

fn wound(what: &str, kinds: &[Kind], seen_by_zdb: Option<bool>, cut: impl FnOnce(&mut Surgeon)) {
    wound_pool("r-stripe-indirect", what, kinds, seen_by_zdb, |pool| {
        pool.read_tables();
        cut(pool);
    });
}

/// The vdev that was removed, as the configuration has it.
fn removed(pool: &Surgeon) -> NvList {
    let config = pool.config();
    let tops = config.list("vdev_tree").unwrap().lists("children").unwrap();
    let mut removed = tops
        .iter()
        .filter(|top| top.str("type") == Some("indirect"));
    removed.next().expect("a removed vdev").clone()
}

/// Changes the newest removal's words in the object directory.
fn set_state(pool: &mut Surgeon, word: usize, value: u64) {
    pool.mos(1, 1, &mut |_, data| {
        let mut leaf = ondisk::zap::Leaf::open(std::mem::take(data)).unwrap();
        for entry in leaf.entries().unwrap() {
            if leaf.name(&entry, 1).unwrap() == b"com.delphix:removing\0" {
                let mut words = leaf.value(&entry).unwrap();
                words[8 * word..8 * word + 8].copy_from_slice(&value.to_be_bytes());
                leaf.set_value(&entry, 8, &words).unwrap();
            }
        }
        *data = leaf.into_inner();
    });
}

/// The object a key of the removed vdev's configuration names, and how many entries its table has.
fn table(pool: &Surgeon, key: &str, count_at: usize) -> (u64, DnodePhys, usize) {
    let object = removed(pool).u64(key).expect("an object");
    let dnode = pool.object(object);
    let count = usize::try_from(u64_at(&dnode.bonus, count_at)).unwrap();
    assert!(count > 0);
    (object, dnode, count)
}

fn mapping(pool: &Surgeon) -> (u64, DnodePhys, usize) {
    table(pool, "com.delphix:indirect_object", 16)
}

fn births(pool: &Surgeon) -> (u64, DnodePhys, usize) {
    table(pool, "com.delphix:indirect_births", 0)
}

/// The longest entry: something refers to what it is about.
fn longest(data: &[u8], count: usize) -> usize {
    let len = |entry: &usize| u64_at(data, entry * ENTRY + 8) & 0xff_ffff;
    (0..count).max_by_key(len).expect("an entry") * ENTRY
}

#[test]
fn tables_that_lead_to_wrong_places() {
    let found = [
        Kind::Unreadable,
        Kind::Checksum,
        Kind::Unallocated,
        Kind::Leak,
        Kind::Double,
        Kind::BlockPointer,
        Kind::Directory,
        Kind::Linkage,
    ];
    wound("a place one sector off", &found, Some(true), |p| {
        let (object, _, count) = mapping(p);
        p.mos(object, 0, &mut |_, data| {
            let at = longest(data, count) + 16;
            let place = u64_at(data, at);
            put_u64(data, at, place + SECTOR);
        });
    });
    wound("a place on another vdev", &found, Some(true), |p| {
        let (object, _, count) = mapping(p);
        p.mos(object, 0, &mut |_, data| {
            let at = longest(data, count) + 8;
            let word = u64_at(data, at);
            put_u64(data, at, word ^ 2 << 32);
        });
    });
    // Without its table nothing of the vdev can be told.
    let damaged = [
        Kind::Config,
        Kind::BlockPointer,
        Kind::Unreadable,
        Kind::Leak,
        Kind::Feature,
        Kind::MosLeak,
    ];
    wound("entries that overlap", &damaged, None, |p| {
        let (object, _, _) = mapping(p);
        p.mos(object, 0, &mut |_, data| {
            let source = u64_at(data, 0);
            put_u64(data, ENTRY, source);
        });
    });
}

#[test]
fn a_moved_stretch_that_was_written_elsewhere() {
    let kinds = [Kind::Unreadable, Kind::Checksum];
    wound("a copy beside its place", &kinds, Some(true), |p| {
        let (_, dnode, count) = mapping(p);
        let data = p.data(&dnode, 0).unwrap();
        let entry = longest(&data, count);
        let (word, place) = (u64_at(&data, entry + 8), u64_at(&data, entry + 16) << 9);
        let at = crate::device_byte(place);
        let len = usize::try_from((word & 0xff_ffff) << 9).unwrap();
        let vdev = u32::try_from(word >> 32).unwrap();
        let disk = p.disk_of(vdev);
        p.disks[disk].copy_within(at..at + len - 4096, at + 4096);
    });
}

#[test]
fn births_that_are_missing_or_impossible() {
    wound("no birth", &[Kind::Config], None, |p| {
        let (object, _, count) = births(p);
        p.mos_dnode(object, &mut |dnode| {
            let at = bonus_at(dnode);
            put_u64(dnode, at, count as u64 - 1);
        });
    });
    wound("a birth to come", &[Kind::Config], None, |p| {
        let (object, _, count) = births(p);
        p.mos(object, 0, &mut |_, data| {
            put_u64(data, (count - 1) * BIRTH + 8, 1_000_000);
        });
    });
    wound("a birth that ends early", &[Kind::Config], None, |p| {
        let (object, _, count) = births(p);
        p.mos(object, 0, &mut |_, data| {
            let at = (count - 1) * BIRTH;
            let end = u64_at(data, at);
            put_u64(data, at, end - 4096);
        });
    });
}

#[test]
fn notes_of_what_is_obsolete() {
    wound("a count", &[Kind::SpaceMap], Some(true), |p| {
        let (_, dnode, _) = mapping(p);
        let counts = u64_at(&dnode.bonus, 24);
        p.mos(counts, 0, &mut |_, data| {
            let four = u32::from_le_bytes(data[..4].try_into().unwrap());
            data[..4].copy_from_slice(&(four + 4096).to_le_bytes());
        });
    });
    wound(
        "the space map forgotten",
        &[Kind::SpaceMap],
        Some(true),
        |p| {
            let zap = removed(p).u64("com.delphix:vdev_zap_top").unwrap();
            let data = p.data(&p.object(zap), 0).unwrap();
            let entry = ondisk::zap::micro::entries(&data)
                .find(|entry| entry.name == b"com.delphix:indirect_obsolete_sm")
                .expect("a space map");
            p.mos_dnode(entry.value, &mut |dnode| {
                let at = bonus_at(dnode);
                // Its length; the histogram is not looked at.
                put_u64(dnode, at + 8, 0);
            });
        },
    );
    wound(
        "the count of a feature",
        &[Kind::Feature],
        Some(true),
        |p| {
            let object = feature_object(p, "features_for_write");
            p.mos(object, 0, &mut |_, data| {
                set_micro(data, "com.delphix:obsolete_counts", |n| n - 1);
            });
        },
    );
    wound("the count of removals", &[Kind::Feature], Some(true), |p| {
        let object = feature_object(p, "features_for_read");
        p.mos(object, 0, &mut |_, data| {
            set_micro(data, "com.delphix:device_removal", |n| n + 1);
        });
    });
}

#[test]
fn what_the_directory_says_of_removals() {
    wound("no table is led to", &[Kind::Config], None, |p| {
        set_state(p, 2, u64::MAX);
    });
    wound("another vdev is led to", &[Kind::Config], None, |p| {
        set_state(p, 2, 0);
    });
    wound(
        "less was copied than there was",
        &[Kind::Config],
        None,
        |p| {
            set_state(p, 6, 4096);
        },
    );
}
