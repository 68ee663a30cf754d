//! A pool of plain files without anything above the block store: metaslabs start empty, space maps live in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use ondisk::{BlockPointer, ChecksumKind, Compression, ObjectType, Txg};
use runtime::host::{HostConfig, Threads};
use runtime::{Handle, IoBuf, Runtime};
use vdev::{
    AllocationBias, LeafSpec, OpenMode, TopSpec, Tree, TreeConfig, TreeSpec, TreeTuning, plan,
};
use zio::{
    BlockStore, Bookmark, IoClass, MetaSource, ReadProps, StoreOptions, WriteProps, ZioError,
};

pub(crate) const READ: ReadProps = ReadProps {
    class: IoClass::SyncRead,
    bookmark: Bookmark {
        objset: 0,
        object: 1,
        level: 0,
        block: 0,
    },
};

pub(crate) fn write_props() -> WriteProps {
    WriteProps {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        level: 0,
        compression: Compression::LZ4,
        skips_compression: false,
        zstd_level: 0,
        checksum: ChecksumKind::FLETCHER4,
        copies: 1,
        special_small_bytes: 0,
        allow_embedded: false,
        fill: 1,
        rewrite: None,
        unless_equal: None,
        dedup: None,
        hole_birth: false,
        class: IoClass::AsyncWrite,
        bookmark: Bookmark::default(),
    }
}

/// Runs a test on a runtime over the host's disks.
pub(crate) fn run<F: Future<Output = ()>>(test: impl FnOnce(Handle) -> F) {
    let runtime = Runtime::new(Box::new(Threads::new(&HostConfig::default())));
    runtime.block_on(test(runtime.handle()));
}

type FreeByMetaslab = BTreeMap<(u32, u32), Vec<Range<u64>>>;

/// Free space by (vdev, metaslab), kept by the test.
#[derive(Default)]
pub(crate) struct Maps {
    pub(crate) free: RefCell<FreeByMetaslab>,
    pub(crate) loads: Cell<u32>,
}

impl MetaSource for Maps {
    fn load_space_map(
        &self,
        vdev: u32,
        metaslab: u32,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, ZioError>> + '_>> {
        self.loads.set(self.loads.get() + 1);
        let found = self.free.borrow().get(&(vdev, metaslab)).cloned();
        Box::pin(async move {
            found.ok_or(ZioError::SpaceMap {
                vdev,
                metaslab,
                reason: "lost".into(),
            })
        })
    }
}

pub(crate) struct World {
    pub(crate) handle: Handle,
    pub(crate) config: TreeConfig,
    pub(crate) tree: Tree,
    pub(crate) store: BlockStore,
    pub(crate) files: Vec<PathBuf>,
    _directory: tempfile::TempDir,
}

impl World {
    /// Makes files of `size` bytes and a tree with one top-level vdev per entry of `tops` (its number of leaves).
    pub(crate) async fn new(handle: &Handle, tops: &[usize], size: u64, ashift: u8) -> Self {
        let plain: Vec<_> = tops.iter().map(|&t| (t, AllocationBias::None)).collect();
        Self::with_classes(handle, &plain, size, ashift).await
    }

    /// As [`World::new`], each top-level vdev with the blocks it is for.
    pub(crate) async fn with_classes(
        handle: &Handle,
        tops: &[(usize, AllocationBias)],
        size: u64,
        ashift: u8,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = Vec::new();
        let mut spec = TreeSpec { tops: Vec::new() };
        for (top, &(leaves, bias)) in tops.iter().enumerate() {
            let mut specs = Vec::new();
            for leaf in 0..leaves {
                let path = directory.path().join(format!("d{top}-{leaf}"));
                std::fs::File::create(&path)
                    .and_then(|f| f.set_len(size))
                    .expect("a file");
                specs.push(LeafSpec { path: path.clone() });
                files.push(path);
            }
            spec.tops.push(TopSpec {
                parity: 0,
                draid: None,
                leaves: specs,
                bias,
                ashift: Some(ashift),
            });
        }
        let (config, conflicts) = plan(handle, &spec).await.expect("a plan");
        assert!(conflicts.is_empty(), "{conflicts:?}");
        let tree = open(handle, &config, OpenMode::ReadWrite).await;
        let store = BlockStore::new(handle, tree.clone(), StoreOptions::default());
        store.activate(Rc::new(Maps::default()), &[]);
        Self {
            handle: handle.clone(),
            config,
            tree,
            store,
            files,
            _directory: directory,
        }
    }

    /// Closes the devices and opens them again for reading.
    pub(crate) async fn reopen_read_only(&mut self) {
        self.tree.close();
        self.tree = open(&self.handle, &self.config, OpenMode::ReadOnly).await;
        self.store = BlockStore::new(&self.handle, self.tree.clone(), StoreOptions::default());
    }

    pub(crate) async fn write(&self, txg: u64, data: &[u8], props: &WriteProps) -> BlockPointer {
        self.store
            .write(Txg(txg), IoBuf::copy_from(data), props)
            .await
            .expect("a write")
    }

    pub(crate) async fn read(&self, bp: &BlockPointer) -> Vec<u8> {
        self.store.read(bp, READ).await.expect("a read").to_vec()
    }
}

async fn open(handle: &Handle, config: &TreeConfig, mode: OpenMode) -> Tree {
    Tree::open(handle, config, mode, TreeTuning::default(), true)
        .await
        .expect("a tree")
}

/// Overwrites bytes of a device from outside.
pub(crate) fn damage(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("opens");
    file.write_all_at(bytes, offset).expect("writes");
    file.sync_all().expect("syncs");
}

/// Reads bytes of a device from outside.
pub(crate) fn peek(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = vec![0; len];
    std::fs::File::open(path)
        .and_then(|file| file.read_exact_at(&mut bytes, offset))
        .expect("reads");
    bytes
}

/// Bytes that no algorithm compresses.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes that compress well.
pub(crate) fn text(len: usize, seed: usize) -> Vec<u8> {
    let line = format!("line {seed} of a file that says the same thing again and again\n");
    line.bytes().cycle().take(len).collect()
}
