//! Proves the checker: pools that OpenZFS made are clean, and each of a list of wounds is found for what it is.
//!
//! Where zdb is installed it judges the wounds it can see too, so that the two agree.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests may panic"
)]

mod removed;
mod surgeon;

use checker::{Image, Kind, Options, Report};
use ondisk::bytes::{put_u64, u64_at};
use ondisk::dsl::DslDatasetPhys;
use ondisk::zap::micro;
use ondisk::{DnodePhys, ObjectType, sa, znode};
use surgeon::{Surgeon, device_byte};
use tempfile::TempDir;

fn check(pool: &Surgeon, options: Options) -> Report {
    let images: Vec<&dyn Image> = pool.disks.iter().map(|d| d as &dyn Image).collect();
    checker::check(&images, options)
}

/// What zdb thinks: whether it is content; `None`, said aloud, where it is not installed and not required.
fn zdb_is_content(pool: &Surgeon) -> Option<bool> {
    if !oracle::has_zdb() {
        return None;
    }
    let dir = TempDir::new().unwrap();
    pool.save(dir.path());
    let out = oracle::zdb()
        .args(["-e", "-p"])
        .arg(dir.path())
        .args(["-bcc", "-Y", &pool.name])
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let complaint = [
        "leaked",
        "mismatch",
        "checksum error",
        "Got error",
        "got error",
        "!=",
        "ERROR",
    ];
    Some(out.status.success() && !complaint.iter().any(|c| text.contains(c)))
}

#[test]
#[ignore = "long: each golden pool; those that are written to are checked in the tests of programs"]
fn pools_made_by_openzfs_are_clean() {
    let pools = [
        "a-single",
        "b-mirror2",
        "c-raidz1-3",
        "d-raidz2-6",
        "e-raidz3-5",
        "f-compress",
        "g-checksum",
        "h-snapshots",
        "i-zvols",
        "j1-dedup-legacy",
        "k-special",
        "m-encrypted",
        "n1-ashift9",
        "n2-ashift12",
        "n3-ashift-auto-4kn",
        "n4-ashift14-raidz",
        "o-features",
        "p1-degraded-raidz2",
        "q-raidz-expanded",
        "r-stripe-indirect",
        "s-send",
    ];
    for name in pools {
        let report = check(&Surgeon::unpack(name), Options::default());
        assert!(report.is_clean(), "{name}: {report}");
        assert_eq!(report.allocated_bytes, report.reached_bytes);
    }
    let crashed = check(&Surgeon::unpack("l1-zil-inpool"), Options { crashed: true });
    assert!(crashed.is_clean(), "{crashed}");
}

#[test]
fn a_damaged_mirror_half_is_found_and_nothing_else() {
    let report = check(&Surgeon::unpack("p2-corrupt-mirror"), Options::default());
    assert!(report.errors().count() > 10);
    assert!(
        report.errors().all(|f| f.kind == Kind::Checksum),
        "{report}"
    );
    let missing = Surgeon::unpack("n2-ashift12").disks.swap_remove(1);
    let report = checker::check(&[&missing as &dyn Image], Options::default());
    assert!(report.is_clean(), "a mirror half alone: {report}");
}

#[test]
fn damaged_columns_of_a_raidz_are_found_and_nothing_else() {
    let report = check(&Surgeon::unpack("p3-corrupt-raidz1"), Options::default());
    assert!(report.errors().count() > 0);
    assert!(
        report.errors().all(|f| f.kind == Kind::Checksum),
        "{report}"
    );
    let mut without_two = Surgeon::unpack("d-raidz2-6");
    without_two.disks.drain(1..3);
    let report = check(&without_two, Options::default());
    assert!(report.is_clean(), "four of six: {report}");
}

#[test]
fn damage_of_what_an_expansion_moved_is_found_and_nothing_else() {
    let pool = Surgeon::unpack("q-raidz-expanded");
    let report = check(&pool, Options::default());
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.allocated_bytes, report.reached_bytes);
    for missing in 0..pool.disks.len() {
        let mut without_one = Surgeon::unpack("q-raidz-expanded");
        without_one.disks.remove(missing);
        let report = check(&without_one, Options::default());
        assert!(report.is_clean(), "without {missing}: {report}");
        let mut damaged = Surgeon::unpack("q-raidz-expanded");
        let moved = device_byte(1 << 20)..device_byte(16 << 20);
        for byte in &mut damaged.disks[missing][moved] {
            *byte ^= 1;
        }
        let report = check(&damaged, Options::default());
        assert!(report.has(Kind::Checksum), "{missing}: {report}");
        assert!(
            report.errors().all(|f| f.kind == Kind::Checksum),
            "{report}"
        );
    }
}

/// Wounds a pool, and expects findings of `kinds` only (at least one of the first). `seen_by_zdb`: whether zdb sees it.
fn wound(what: &str, kinds: &[Kind], seen_by_zdb: Option<bool>, cut: impl FnOnce(&mut Surgeon)) {
    wound_pool("n2-ashift12", what, kinds, seen_by_zdb, cut);
}

fn wound_pool(
    name: &str,
    what: &str,
    kinds: &[Kind],
    seen_by_zdb: Option<bool>,
    cut: impl FnOnce(&mut Surgeon),
) {
    let mut pool = Surgeon::unpack(name);
    cut(&mut pool);
    let report = check(&pool, Options::default());
    assert!(report.has(kinds[0]), "{what}: not found: {report}");
    assert!(
        report.errors().all(|f| kinds.contains(&f.kind)),
        "{what}: other findings: {report}"
    );
    if let (Some(seen), Some(content)) = (seen_by_zdb, zdb_is_content(&pool)) {
        assert_eq!(content, !seen, "{what}: zdb");
    }
}

/// Dataset objects of the pool's file systems (not `$ORIGIN`).
fn head(pool: &Surgeon) -> (u64, DslDatasetPhys) {
    pool.dnodes(&pool.rootbp())
        .into_iter()
        .filter(|(_, d)| d.bonus_type == ObjectType::DSL_DATASET)
        .map(|(n, d)| (n, DslDatasetPhys::decode(&d.bonus).unwrap()))
        .find(|(_, p)| !p.bp.is_hole())
        .expect("a dataset")
}

fn bonus_at(dnode: &[u8]) -> usize {
    64 + 128 * DnodePhys::decode(dnode).unwrap().block_pointers.len()
}

/// A microzap of the object directory's kind: changes the value of a key.
fn set_micro(data: &mut [u8], key: &str, change: impl Fn(u64) -> u64) {
    let e = micro::entries(data)
        .find(|e| e.name == key.as_bytes())
        .expect("the key is there");
    let (slot, value) = (e.slot, e.value);
    micro::set_value(data, slot, change(value));
}

#[test]
fn a_flipped_bit_in_one_copy() {
    wound("bit in the newest objset", &[Kind::Checksum], None, |p| {
        let at = device_byte(p.rootbp().dvas()[1].offset);
        p.disks[0][at + 5] ^= 4;
    });
    wound(
        "file block on both halves",
        &[Kind::Unreadable, Kind::Checksum],
        Some(true),
        |p| {
            let (_, phys) = head(p);
            let files = p.dnodes(&phys.bp);
            let bp = files
                .iter()
                .filter(|(_, d)| d.object_type == ObjectType::PLAIN_FILE_CONTENTS && d.levels == 1)
                .map(|(_, d)| d.block_pointers[0])
                .find(|bp| !bp.is_hole() && !bp.is_embedded())
                .unwrap();
            for disk in &mut p.disks {
                disk[device_byte(bp.dvas()[0].offset)] ^= 1;
            }
        },
    );
}

#[test]
fn space_maps() {
    let edit = |what: &str, kinds: &[Kind], change: &dyn Fn(&mut [u8])| {
        wound(what, kinds, Some(true), |p| {
            let (object, dn) = p
                .dnodes(&p.rootbp())
                .into_iter()
                .find(|(_, d)| d.object_type == ObjectType::SPACE_MAP && u64_at(&d.bonus, 8) > 64)
                .expect("a used space map");
            assert!(dn.max_block_id == 0);
            p.mos(object, 0, &mut |_, data| change(data));
        });
    };
    // The first one-word allocation gets longer, or becomes a note.
    let first = |data: &[u8]| {
        (0..data.len())
            .step_by(8)
            .find(|at| u64_at(data, *at) >> 63 == 0 && u64_at(data, *at) >> 15 & 1 == 0)
            .unwrap()
    };
    let kinds = [Kind::SpaceMap, Kind::Unallocated, Kind::Leak, Kind::Double];
    edit("allocation forgotten", &kinds, &|data| {
        let at = first(data);
        put_u64(data, at, 2 << 62);
    });
}

#[test]
fn accounting_and_counts() {
    wound("referenced bytes", &[Kind::Accounting], None, |p| {
        let (object, phys) = head(p);
        p.mos_dnode(object, &mut |dn| {
            let at = bonus_at(dn);
            put_u64(dn, at + 72, phys.referenced_bytes + 4096);
        });
    });
    wound("unique bytes", &[Kind::Accounting], None, |p| {
        let (object, phys) = head(p);
        p.mos_dnode(object, &mut |dn| {
            let at = bonus_at(dn);
            put_u64(dn, at + 96, phys.unique_bytes - 512);
        });
    });
    wound("directory's used bytes", &[Kind::Accounting], None, |p| {
        let (_, phys) = head(p);
        p.mos_dnode(phys.dir_obj, &mut |dn| {
            let at = bonus_at(dn);
            let used = u64_at(dn, at + 40);
            put_u64(dn, at + 40, used + 4096);
        });
    });
    wound(
        "dnode's used bytes",
        &[Kind::Dnode, Kind::UserAccounting],
        None,
        |p| {
            let (dataset, _) = head(p);
            p.dataset_dnode(dataset, 34, &mut |dn| {
                let used = u64_at(dn, 24);
                put_u64(dn, 24, used + 512);
            });
        },
    );
    wound("fill of a dataset", &[Kind::Fill], None, |p| {
        let (object, phys) = head(p);
        p.mos_dnode(object, &mut |dn| {
            let mut bp = phys.bp;
            bp.set_fill(bp.fill() + 1);
            let at = bonus_at(dn);
            bp.encode_into(&mut dn[at + 128..]);
        });
    });
    wound("number of children", &[Kind::Linkage], None, |p| {
        let origin =
            |d: &DnodePhys| DslDatasetPhys::decode(&d.bonus).is_ok_and(|p| p.is_snapshot());
        let all = p.dnodes(&p.rootbp());
        let of_kind = |d: &DnodePhys| d.bonus_type == ObjectType::DSL_DATASET && origin(d);
        let (object, _) = all.into_iter().find(|(_, d)| of_kind(d)).expect("$ORIGIN");
        p.mos_dnode(object, &mut |dn| {
            let at = bonus_at(dn);
            put_u64(dn, at + 40, 7);
        });
    });
}

#[test]
fn files_and_directories() {
    let root = |p: &Surgeon| {
        let (dataset, phys) = head(p);
        let master = p
            .dnodes(&phys.bp)
            .into_iter()
            .find(|(n, _)| *n == 1)
            .unwrap()
            .1;
        let data = p.data(&master, 0).unwrap();
        let root = micro::entries(&data)
            .find(|e| e.name == b"ROOT")
            .unwrap()
            .value;
        (dataset, phys, root)
    };
    wound("link count of the root", &[Kind::LinkCount], None, |p| {
        let (dataset, _, root) = root(p);
        p.dataset_dnode(dataset, root, &mut |dn| {
            let at = bonus_at(dn) + 8 + sa::fixed_offset::LINKS;
            let links = u64_at(dn, at);
            put_u64(dn, at, links + 1);
        });
    });
    wound("owner of the root", &[Kind::UserAccounting], None, |p| {
        let (dataset, _, root) = root(p);
        p.dataset_dnode(dataset, root, &mut |dn| {
            let at = bonus_at(dn) + 8 + sa::fixed_offset::UID;
            put_u64(dn, at, 4242);
        });
    });
    wound(
        "entry that names nothing",
        &[Kind::Directory, Kind::LinkCount],
        None,
        |p| {
            let (dataset, phys, root) = root(p);
            let dn = p
                .dnodes(&phys.bp)
                .into_iter()
                .find(|(n, _)| *n == root)
                .unwrap()
                .1;
            let data = p.data(&dn, 0).unwrap();
            let victim = micro::entries(&data)
                .find(|e| {
                    u64::from(znode::DirEntryValue::decode(e.value).file_type)
                        == znode::mode::REGULAR >> 12
                })
                .expect("a file in the root")
                .slot;
            p.dataset(dataset, root, 0, &mut |_, data| {
                micro::set_value(
                    data,
                    victim,
                    znode::DirEntryValue {
                        file_type: 8,
                        object: 999_999,
                    }
                    .encode(),
                );
            });
        },
    );
    wound(
        "entry removed without its file",
        &[Kind::Directory, Kind::LinkCount],
        None,
        |p| {
            let (dataset, phys, root) = root(p);
            let dn = p
                .dnodes(&phys.bp)
                .into_iter()
                .find(|(n, _)| *n == root)
                .unwrap()
                .1;
            let data = p.data(&dn, 0).unwrap();
            let victim = micro::entries(&data).next().unwrap().slot;
            p.dataset(dataset, root, 0, &mut |_, data| micro::clear(data, victim));
        },
    );
}

#[test]
fn features_and_the_directory() {
    // The features are in fat ZAPs or micro ones by their length; change the count in a micro one.
    wound("count of a feature", &[Kind::Feature], Some(true), |p| {
        let object = feature_object(p, "features_for_write");
        p.mos(object, 0, &mut |_, data| {
            set_micro(data, "com.delphix:spacemap_histogram", |n| n + 1);
        });
    });
}

/// The value of a key of the object directory, which is a fat ZAP.
fn feature_object(p: &Surgeon, key: &str) -> u64 {
    let directory = p
        .dnodes(&p.rootbp())
        .into_iter()
        .find(|(n, _)| *n == 1)
        .unwrap()
        .1;
    for block in 0..=directory.max_block_id {
        let Some(data) = p.data(&directory, block) else {
            continue;
        };
        if let Ok(leaf) = ondisk::zap::Leaf::open(data) {
            for e in leaf.entries().unwrap() {
                if leaf.name(&e, 1).unwrap() == format!("{key}\0").as_bytes() {
                    return u64::from_be_bytes(leaf.value(&e).unwrap().try_into().unwrap());
                }
            }
        }
    }
    panic!("{key} is not in the object directory");
}

#[test]
fn labels_and_uberblocks() {
    wound("label of one disk", &[Kind::Label], None, |p| {
        p.disks[1][20_000] ^= 1;
    });
    let mut pool = Surgeon::unpack("n2-ashift12");
    pool.disks[1][20_000] ^= 1;
    assert!(
        check(&pool, Options { crashed: true }).is_clean(),
        "one label may be torn by a crash"
    );
    for disk in &mut pool.disks {
        disk[..512 << 10].fill(0);
        let end = disk.len() - (512 << 10);
        disk[end..].fill(0);
    }
    assert!(check(&pool, Options::default()).has(Kind::Uberblock));
    assert!(checker::check(&[], Options::default()).has(Kind::Uberblock));
}

#[test]
fn deadlists() {
    let mut pool = Surgeon::unpack("h-snapshots");
    let list = pool
        .dnodes(&pool.rootbp())
        .into_iter()
        .find(|(_, d)| {
            d.object_type == ObjectType::BPOBJ && d.bonus.len() == 48 && u64_at(&d.bonus, 0) > 1
        })
        .expect("a list with pointers")
        .0;
    pool.mos_dnode(list, &mut |dn| {
        let at = bonus_at(dn);
        // Half of them: single ones may be embedded, which no sum shows.
        let n = u64_at(dn, at);
        put_u64(dn, at, n - n / 2);
    });
    let report = check(&pool, Options::default());
    assert!(
        report.has(Kind::Deadlist) && report.has(Kind::Bpobj),
        "{report}"
    );
    let pool_findings = [Kind::Deadlist, Kind::Bpobj];
    assert!(
        report.errors().all(|f| pool_findings.contains(&f.kind)),
        "{report}"
    );
}

#[test]
fn an_object_nobody_uses() {
    let mut pool = Surgeon::unpack("n2-ashift12");
    let (object, _) = pool.find(ObjectType::SPA_HISTORY);
    // Its number in the directory changes: one object is lost, one does not exist.
    let directory = pool
        .dnodes(&pool.rootbp())
        .into_iter()
        .find(|(n, _)| *n == 1)
        .unwrap()
        .1;
    for block in 1..=directory.max_block_id {
        pool.mos(1, block, &mut |_, data| {
            let Ok(mut leaf) = ondisk::zap::Leaf::open(std::mem::take(data)) else {
                return;
            };
            for e in leaf.entries().unwrap() {
                if leaf.name(&e, 1).unwrap() == b"history\0" {
                    leaf.set_value(&e, 8, &(object + 5000).to_be_bytes())
                        .unwrap();
                }
            }
            *data = leaf.into_inner();
        });
    }
    let report = check(&pool, Options::default());
    assert!(
        report.has(Kind::MosLeak) && report.has(Kind::Linkage),
        "{report}"
    );
    if let Some(content) = zdb_is_content(&pool) {
        assert!(!content);
    }
}
