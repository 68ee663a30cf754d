//! Pools written by OpenZFS: every block reachable from the newest uberblock must verify and decompress, and where the
//! layout is not supported yet, the refusal names it.

use std::path::{Path, PathBuf};
use std::process::Command;

use ondisk::{BlockPointer, DnodePhys, OBJSET_SIZE, ObjectType, ObjsetPhys};
use runtime::Handle;
use vdev::labels::LabelSet;
use vdev::{OpenMode, Tree, TreeConfig, TreeTuning, VdevConfig, VdevError};
use zio::{BlockStore, StoreOptions, ZioError};

use crate::world::{READ, run};

/// Offset of the block pointer in a dataset's bonus buffer. OpenZFS: include/sys/dsl_dataset.h, dsl_dataset_phys_t.
const DATASET_POINTER: usize = 128;

struct Pool {
    store: BlockStore,
    root: BlockPointer,
    _directory: tempfile::TempDir,
}

/// Unpacks and opens a pool; `None` (said aloud) when the tools are not there.
async fn open(handle: &Handle, name: &str, mode: OpenMode) -> Option<Result<Pool, VdevError>> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(format!("{name}.tar.zst"));
    let directory = tempfile::tempdir().expect("a directory");
    let unpacked = Command::new("tar")
        .args(["--sparse", "--zstd", "-xf"])
        .arg(&archive)
        .arg("-C")
        .arg(directory.path())
        .status();
    if !unpacked.is_ok_and(|status| status.success()) {
        eprintln!("NOT TESTED: {name}: tar or zstd is missing");
        return None;
    }
    Some(open_directory(handle, directory, mode).await)
}

/// Opens the pool whose images are in a directory.
async fn open_directory(
    handle: &Handle,
    directory: tempfile::TempDir,
    mode: OpenMode,
) -> Result<Pool, VdevError> {
    let mut images: Vec<PathBuf> = std::fs::read_dir(directory.path())
        .expect("lists")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    images.sort();
    let mut tops: Vec<VdevConfig> = Vec::new();
    let mut guid = 0;
    let mut places = Vec::new();
    for image in &images {
        let disk = handle
            .open_disk(image, runtime::DiskMode::ReadOnly)
            .await
            .expect("opens");
        let labels = LabelSet::read(&disk).await.expect("reads");
        let Some(config) = labels.best_config() else {
            continue;
        };
        places.push((config.u64("guid").expect("a guid"), image.clone()));
        // Spares and cache devices are no part of the tree.
        let Some(tree) = config.list("vdev_tree") else {
            continue;
        };
        guid = config.u64("pool_guid").expect("a pool guid");
        let top = VdevConfig::from_nvlist(tree).expect("a vdev");
        if tops.iter().all(|other| other.guid != top.guid) {
            tops.push(top);
        }
        let holes = config.u64s("hole_array").unwrap_or(&[]);
        for &hole in holes {
            if tops.iter().all(|other| other.id != hole) {
                tops.push(VdevConfig::new(
                    vdev::VdevKind::Hole,
                    hole,
                    ondisk::Guid(hole + 1),
                ));
            }
        }
    }
    tops.sort_by_key(|top| top.id);
    for top in &mut tops {
        let own = if top.kind.is_leaf() {
            vec![&mut *top]
        } else {
            top.children.iter_mut().collect()
        };
        for leaf in own {
            leaf.open_path = places
                .iter()
                .find(|(guid, _)| *guid == leaf.guid.0)
                .map(|(_, path)| path.clone());
            leaf.path = None;
        }
    }
    let config = TreeConfig {
        guid: ondisk::Guid(guid),
        create_txg: 0,
        extra: ondisk::NvList::new(),
        tops,
    };
    let tree = Tree::open(handle, &config, mode, TreeTuning::default(), false).await?;
    let best = tree
        .best_uberblock(None)
        .await
        .expect("reads")
        .expect("an uberblock");
    let store = BlockStore::new(handle, tree, StoreOptions::default());
    Ok(Pool {
        store,
        root: best.rootbp,
        _directory: directory,
    })
}

#[derive(Default, Debug)]
struct Seen {
    blocks: u64,
    encrypted: u64,
    errors: Vec<String>,
    datasets: Vec<BlockPointer>,
    pointers: Vec<BlockPointer>,
    salt: Option<[u8; 32]>,
}

impl Pool {
    /// Reads everything below an objset's block pointer.
    async fn walk_objset(&self, bp: &BlockPointer, seen: &mut Seen) {
        if bp.is_hole() {
            return;
        }
        let Some(bytes) = self.read(bp, seen).await else {
            return;
        };
        let objset = ObjsetPhys::decode(&bytes).expect("an objset");
        assert!(bytes.len() >= OBJSET_SIZE / 4);
        let dnodes = [
            Some(objset.meta_dnode),
            Some(objset.user_used),
            Some(objset.group_used),
            Some(objset.project_used),
        ];
        for dnode in dnodes.into_iter().flatten() {
            self.walk_dnode(&dnode, seen).await;
        }
    }

    async fn walk_dnode(&self, dnode: &DnodePhys, seen: &mut Seen) {
        if dnode.is_free() {
            return;
        }
        if dnode.bonus_type == ObjectType::DSL_DATASET && dnode.bonus.len() >= DATASET_POINTER + 128
        {
            let bp = BlockPointer::decode(&dnode.bonus[DATASET_POINTER..]).expect("long enough");
            seen.datasets.push(bp);
        }
        let mut stack: Vec<BlockPointer> = dnode.block_pointers.clone();
        stack.extend(dnode.spill);
        while let Some(bp) = stack.pop() {
            if bp.is_hole() {
                continue;
            }
            let Some(bytes) = self.read(&bp, seen).await else {
                continue;
            };
            if bp.level() > 0 {
                stack.extend(BlockPointer::decode_all(&bytes));
            } else if bp.object_type() == ObjectType::DNODE {
                let mut at = 0;
                while at + 512 <= bytes.len() {
                    let Ok(dnode) = DnodePhys::decode(&bytes[at..]) else {
                        break;
                    };
                    at += 512 * dnode.slots().max(1);
                    Box::pin(self.walk_dnode(&dnode, seen)).await;
                }
            } else if bp.object_type() == ObjectType::OBJECT_DIRECTORY && seen.salt.is_none() {
                seen.salt = salt_in(&bytes);
            }
        }
    }

    async fn read(&self, bp: &BlockPointer, seen: &mut Seen) -> Option<runtime::IoBuf> {
        seen.blocks += 1;
        seen.pointers.push(*bp);
        match self.store.read(bp, READ).await {
            Ok(bytes) => {
                assert_eq!(bytes.len() as u64, bp.lsize());
                Some(bytes)
            }
            Err(ZioError::Encrypted { .. }) => {
                seen.encrypted += 1;
                None
            }
            Err(error) => {
                seen.errors.push(format!("{error}: {bp}"));
                None
            }
        }
    }
}

/// Finds the checksum salt in a block of the object directory: in a leaf of a fat ZAP its 32 bytes lie in the leaf's array chunks behind the
/// chunks of its name. Each array chunk is a type byte, 21 bytes of content and a link.
fn salt_in(zap: &[u8]) -> Option<[u8; 32]> {
    if zap.get(..8)? != (1_u64 << 63).to_le_bytes() {
        return None;
    }
    let chunk = |index: usize, base: usize| zap.get(base + 24 * index..base + 24 * (index + 1));
    // Leaf header 48 bytes, hash table two bytes per 32 bytes of block.
    let base = 48 + zap.len() / 16;
    let text = |mut index: usize, len: usize| {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let piece = chunk(index, base)?;
            bytes.extend_from_slice(&piece[1..22]);
            index = usize::from(u16::from_le_bytes([piece[22], piece[23]]));
        }
        bytes.truncate(len);
        Some(bytes)
    };
    for index in 0..600 {
        let entry = chunk(index, base)?;
        if entry[0] != 252 {
            continue;
        }
        let word = |at: usize| usize::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
        let name = text(word(4), word(6))?;
        if name == b"org.illumos:checksum_salt\0" {
            return text(word(8), 32)?.try_into().ok();
        }
    }
    None
}

impl Pool {
    /// Reads every block of the meta-objset and of all datasets and snapshots.
    async fn walk(&self, name: &str) -> Seen {
        let mut seen = Seen::default();
        self.walk_objset(&self.root, &mut seen).await;
        assert!(
            seen.errors.is_empty(),
            "meta-objset of {name}: {:#?}",
            seen.errors
        );
        if let Some(salt) = seen.salt {
            self.store.set_salt(salt);
        }
        let mut objsets = std::mem::take(&mut seen.datasets);
        while let Some(bp) = objsets.pop() {
            self.walk_objset(&bp, &mut seen).await;
        }
        assert!(seen.errors.is_empty(), "{name}: {:#?}", seen.errors);
        assert!(seen.blocks > 100, "{name}: only {} blocks", seen.blocks);
        assert_eq!(seen.encrypted > 0, name.contains("encrypted"));
        seen
    }
}

fn walk(name: &'static str) {
    run(move |handle| async move {
        let Some(pool) = open(&handle, name, OpenMode::ReadOnly).await else {
            return;
        };
        let pool = pool.expect("opens");
        pool.walk(name).await;
        assert_eq!(
            pool.store.tree().status().stats.checksum_errors,
            0,
            "{name}"
        );
    });
}

#[test]
fn a_single_disk() {
    walk("a-single");
}

#[test]
fn a_mirror() {
    walk("b-mirror2");
}

#[test]
fn every_compression() {
    walk("f-compress");
}

#[test]
fn every_checksum() {
    walk("g-checksum");
}

#[test]
fn snapshots_and_clones() {
    walk("h-snapshots");
}

#[test]
fn dedup() {
    walk("j1-dedup-legacy");
    walk("j2-dedup-fast");
}

#[test]
fn several_top_level_vdevs() {
    walk("k-special");
}

#[test]
fn encrypted_blocks_are_told_apart() {
    walk("m-encrypted");
}

#[test]
fn sector_sizes() {
    walk("n1-ashift9");
    walk("n2-ashift12");
    walk("n3-ashift-auto-4kn");
}

#[test]
fn large_blocks_and_dnodes() {
    walk("o-features");
}

#[test]
fn a_damaged_half_of_a_mirror() {
    run(|handle| async move {
        let name = "p2-corrupt-mirror";
        let Some(pool) = open(&handle, name, OpenMode::ReadWrite).await else {
            return;
        };
        let pool = pool.expect("opens");
        let seen = pool.walk(name).await;
        // Reading takes whichever half is good; a scrub finds every bad copy, mends it, and then finds none.
        let healed = pool.store.tree().status().stats.self_healed_bytes;
        for round in 0..2 {
            let mut sum = zio::ScrubOutcome::default();
            for bp in &seen.pointers {
                let one = pool.store.scrub(bp, READ).await.expect("scrubs");
                assert!(!one.lost && one.unrepaired_copies == 0, "{bp}: {one:?}");
                sum.bad_copies += one.bad_copies;
                sum.repaired_bytes += one.repaired_bytes;
            }
            if round == 0 {
                assert!(sum.repaired_bytes + healed > 0, "{sum:?} {healed}");
            } else {
                assert_eq!(sum, zio::ScrubOutcome::default());
            }
        }
    });
}

#[test]
fn layouts_of_later_are_refused_by_name() {
    run(|handle| async move {
        for (name, kind) in [("r-stripe-indirect", "indirect")] {
            let Some(opened) = open(&handle, name, OpenMode::ReadOnly).await else {
                return;
            };
            match opened {
                Err(VdevError::Unsupported { kind: found }) => assert_eq!(found, kind),
                // Labels do not carry the configuration of an indirect vdev; only the config object does.
                Err(VdevError::BadConfig { .. }) if kind == "indirect" => {}
                Err(error) => panic!("{name}: {error}"),
                Ok(_) => assert_eq!(kind, "indirect", "{name} must be refused"),
            }
        }
    });
}

/// Makes a draid with OpenZFS's own code in userland, fills several groups of it, and takes `lost` disks away.
fn draid(spec: &str, disks: usize, lost: &[usize]) -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().expect("a directory");
    let images: Vec<PathBuf> = (0..disks)
        .map(|i| directory.path().join(format!("d{i}")))
        .collect();
    for image in &images {
        let file = std::fs::File::create(image).expect("creates");
        file.set_len(160 << 20).expect("sizes");
    }
    let refpool = |arguments: &[&str], rest: &[&str]| {
        let mut command = Command::new("refpool");
        command.args(arguments).args(&images).args(rest);
        command
            .env("REFPOOL_OST", "4")
            .current_dir(directory.path());
        command.output().is_ok_and(|output| output.status.success())
    };
    let made = refpool(&["create", "tank", spec, "-a", "12", "-o", "all"], &[]);
    let fill = "fill:tank/a=30000000";
    let plain = "set:tank/a=compression/2";
    let filled = made && refpool(&["ds", "tank"], &["--", "tank/a", plain, fill, fill, fill]);
    if !filled {
        eprintln!("NOT TESTED: {spec}: refpool is missing or cannot make it");
        return None;
    }
    for &disk in lost {
        std::fs::remove_file(&images[disk]).expect("removes");
    }
    Some(directory)
}

/// Layout, number of disks, disks taken away.
const DRAIDS: [(&str, usize, &[usize]); 5] = [
    ("draid1:2:1", 6, &[]),
    ("draid1:2:1", 6, &[4]),
    ("draid2:3:1", 7, &[]),
    ("draid2:3:1", 7, &[0, 5]),
    ("draid3:4:0", 8, &[1, 2, 3]),
];

#[test]
fn draid_with_and_without_the_disks_it_may_lose() {
    for (spec, disks, lost) in DRAIDS {
        run(move |handle| async move {
            let Some(directory) = draid(spec, disks, lost) else {
                return;
            };
            let pool = open_directory(&handle, directory, OpenMode::ReadOnly)
                .await
                .expect("opens");
            let seen = pool.walk(spec).await;
            assert!(seen.blocks > 500, "{spec}: {} blocks", seen.blocks);
            let errors = pool.store.tree().status().stats.checksum_errors;
            assert_eq!(errors, 0, "{spec} without {lost:?}");
        });
    }
}
