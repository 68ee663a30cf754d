//! Random operations on a file system and on a plain tree in memory: both must say the same, before and after syncing
//! and reopening.

use std::collections::{BTreeMap, BTreeSet};

use runtime::IoBuf;
use world::Rng;
use zpl::{
    Attr, CreateMode, Cred, DeviceNumber, FileId, FileType, Fs, FsError, ListLimit, RootProps,
    SetAttr, Stability, XattrMode,
};

use crate::rig::{self, Rig};

const FILE_MAX: u64 = 1 << 20;

#[derive(Debug, Clone)]
struct Node {
    file_type: FileType,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u64,
    data: Vec<u8>,
    target: Vec<u8>,
    rdev: DeviceNumber,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    children: BTreeMap<Vec<u8>, usize>,
    parent: usize,
    id: Option<FileId>,
    held: u64,
}

struct Model {
    nodes: BTreeMap<usize, Node>,
    next: usize,
}

impl Model {
    fn new(root: FileId) -> Self {
        let node = Node {
            file_type: FileType::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            data: Vec::new(),
            target: Vec::new(),
            rdev: DeviceNumber::default(),
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            parent: 0,
            id: Some(root),
            held: 0,
        };
        Self {
            nodes: BTreeMap::from([(0, node)]),
            next: 1,
        }
    }

    fn node(&self, n: usize) -> &Node {
        &self.nodes[&n]
    }

    fn node_mut(&mut self, n: usize) -> &mut Node {
        self.nodes.get_mut(&n).expect("a node of the model")
    }

    fn id(&self, n: usize) -> FileId {
        self.node(n).id.expect("made with its id")
    }

    fn dirs(&self) -> Vec<usize> {
        self.named()
            .into_iter()
            .filter(|n| self.node(*n).file_type == FileType::Directory)
            .collect()
    }

    /// Nodes reachable by name.
    fn named(&self) -> BTreeSet<usize> {
        let mut seen = BTreeSet::from([0]);
        let mut todo = vec![0];
        while let Some(n) = todo.pop() {
            for &child in self.node(n).children.values() {
                if seen.insert(child) {
                    todo.push(child);
                }
            }
        }
        seen
    }

    fn files(&self) -> Vec<usize> {
        self.nodes
            .iter()
            .filter(|(_, n)| n.file_type == FileType::Regular)
            .map(|(&i, _)| i)
            .collect()
    }

    fn add(&mut self, dir: usize, name: &[u8], node: Node) {
        let n = self.next;
        self.next += 1;
        if node.file_type == FileType::Directory {
            self.node_mut(dir).links += 1;
        }
        self.nodes.insert(n, node);
        self.node_mut(dir).children.insert(name.to_vec(), n);
    }

    fn is_below(&self, mut n: usize, above: usize) -> bool {
        loop {
            if n == above {
                return true;
            }
            if n == 0 {
                return false;
            }
            n = self.node(n).parent;
        }
    }

    /// Takes one name of a node away.
    fn unname(&mut self, dir: usize, name: &[u8]) {
        let child = self.node_mut(dir).children.remove(name).expect("checked");
        let is_dir = self.node(child).file_type == FileType::Directory;
        if is_dir {
            self.node_mut(dir).links -= 1;
            self.node_mut(child).links = 0;
        } else {
            self.node_mut(child).links -= 1;
        }
        if self.node(child).links == 0 && self.node(child).held == 0 {
            self.nodes.remove(&child);
        }
    }
}

pub(crate) fn all_entries(limit: usize) -> ListLimit {
    ListLimit {
        entries: limit,
        bytes: usize::MAX,
        entry_overhead_bytes: 0,
        attrs: true,
    }
}

fn name(rng: &mut Rng) -> Vec<u8> {
    let n = rng.below(24);
    match rng.below(12) {
        0 => format!("{n}-{}", "long".repeat(20)).into_bytes(),
        1 => format!("{}{n}", "x".repeat(200)).into_bytes(),
        _ => format!("n{n}").into_bytes(),
    }
}

struct Run {
    rig: Rig,
    model: Model,
    rng: Rng,
    root: Cred,
}

impl Run {
    fn fs(&self) -> Fs {
        self.rig.fs.clone()
    }

    fn any_dir(&mut self) -> usize {
        let dirs = self.model.dirs();
        dirs[self.rng.index(dirs.len())]
    }

    /// Usually an existing name of the directory.
    fn some_name(&mut self, dir: usize) -> Vec<u8> {
        let names: Vec<Vec<u8>> = self.model.node(dir).children.keys().cloned().collect();
        if names.is_empty() || self.rng.chance(250_000) {
            name(&mut self.rng)
        } else {
            names[self.rng.index(names.len())].clone()
        }
    }

    fn check_result<T: std::fmt::Debug>(
        &self,
        what: &str,
        got: &Result<T, FsError>,
        want: Result<(), FsError>,
    ) {
        match (got, want) {
            (Ok(_), Ok(())) => {}
            (Err(got), Err(want)) if *got == want => {}
            _ => panic!("{what}: got {got:?}, want {want:?}"),
        }
    }

    async fn make(&mut self) {
        let dir = self.any_dir();
        let name = name(&mut self.rng);
        let kind = self.rng.below(10);
        let mode = u32::try_from(self.rng.below(0o1000)).expect("small");
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let exists = self.model.node(dir).children.contains_key(&name);
        let want = if exists { Err(FsError::Exists) } else { Ok(()) };
        let dir_id = self.model.id(dir);
        let fs = self.fs();
        let (mut target, mut rdev) = (Vec::new(), DeviceNumber::default());
        let (file_type, result) = match kind {
            0..=2 => (
                FileType::Directory,
                fs.mkdir(dir_id, &name, &set, &self.root).await,
            ),
            3 => {
                target = vec![b't'; self.rng.index(400) + 1];
                (
                    FileType::Symlink,
                    fs.symlink(dir_id, &name, &target, &set, &self.root).await,
                )
            }
            4 => {
                rdev = DeviceNumber {
                    major: 7,
                    minor: u32::try_from(self.rng.below(1 << 20)).expect("small"),
                };
                let result = fs
                    .mknod(dir_id, &name, FileType::Block, rdev, &set, &self.root)
                    .await;
                (FileType::Block, result)
            }
            5 => {
                let result = fs
                    .mknod(dir_id, &name, FileType::Socket, rdev, &set, &self.root)
                    .await;
                (FileType::Socket, result)
            }
            _ => (
                FileType::Regular,
                fs.create(dir_id, &name, CreateMode::Guarded, &set, &self.root)
                    .await,
            ),
        };
        self.check_result("make", &result, want);
        let Ok(made) = result else { return };
        assert_eq!(made.file.file_type, file_type);
        let is_dir = file_type == FileType::Directory;
        let node = Node {
            file_type,
            mode: if file_type == FileType::Symlink {
                0o777
            } else {
                mode
            },
            uid: 0,
            gid: 0,
            links: if is_dir { 2 } else { 1 },
            data: Vec::new(),
            target,
            rdev,
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            parent: dir,
            id: Some(made.file.id),
            held: 0,
        };
        self.model.add(dir, &name, node);
        self.check_attr(dir, &made.dir.after);
    }

    async fn take(&mut self) {
        let dir = self.any_dir();
        let name = self.some_name(dir);
        let fs = self.fs();
        let dir_id = self.model.id(dir);
        let child = self.model.node(dir).children.get(&name).copied();
        let is_dir = child.is_some_and(|c| self.model.node(c).file_type == FileType::Directory);
        let full = child.is_some_and(|c| !self.model.node(c).children.is_empty());
        let as_dir = self.rng.chance(if is_dir { 900_000 } else { 100_000 });
        let want = match (child, as_dir, is_dir) {
            (None, _, _) => Err(FsError::NotFound),
            (_, true, false) => Err(FsError::NotDirectory),
            (_, false, true) => Err(FsError::IsDirectory),
            (_, true, true) if full => Err(FsError::NotEmpty),
            _ => Ok(()),
        };
        let result = if as_dir {
            fs.rmdir(dir_id, &name, &self.root).await
        } else {
            fs.remove(dir_id, &name, &self.root).await
        };
        self.check_result("take", &result, want);
        if let Ok(change) = result {
            self.model.unname(dir, &name);
            self.check_attr(dir, &change.after);
        }
    }

    async fn link(&mut self) {
        let from = self.any_dir();
        let name_of = self.some_name(from);
        let Some(&file) = self.model.node(from).children.get(&name_of) else {
            return;
        };
        let dir = self.any_dir();
        let name = name(&mut self.rng);
        let is_dir = self.model.node(file).file_type == FileType::Directory;
        let want = if is_dir {
            Err(FsError::NotPermitted)
        } else if self.model.node(dir).children.contains_key(&name) {
            Err(FsError::Exists)
        } else {
            Ok(())
        };
        let result = self
            .fs()
            .link(self.model.id(file), self.model.id(dir), &name, &self.root)
            .await;
        self.check_result("link", &result, want);
        if result.is_ok() {
            self.model.node_mut(file).links += 1;
            self.model.node_mut(dir).children.insert(name, file);
        }
    }

    async fn rename(&mut self) {
        let from = self.any_dir();
        let to = self.any_dir();
        let from_name = self.some_name(from);
        let to_name = self.some_name(to);
        let source = self.model.node(from).children.get(&from_name).copied();
        let target = self.model.node(to).children.get(&to_name).copied();
        let is_dir = |n: usize| self.model.node(n).file_type == FileType::Directory;
        let want = match (source, target) {
            (None, _) => Err(FsError::NotFound),
            (Some(s), _) if is_dir(s) && from != to && self.model.is_below(to, s) => {
                Err(FsError::Invalid)
            }
            (Some(s), Some(t)) if s == t => Ok(()),
            (Some(s), Some(t)) if is_dir(s) && !is_dir(t) => Err(FsError::NotDirectory),
            (Some(s), Some(t)) if !is_dir(s) && is_dir(t) => Err(FsError::IsDirectory),
            (Some(s), Some(t)) if is_dir(s) && !self.model.node(t).children.is_empty() => {
                Err(FsError::NotEmpty)
            }
            _ => Ok(()),
        };
        let (from_id, to_id) = (self.model.id(from), self.model.id(to));
        let result = self
            .fs()
            .rename(from_id, &from_name, to_id, &to_name, &self.root)
            .await;
        self.check_result("rename", &result, want);
        let Ok(renamed) = result else { return };
        let source = source.expect("it was renamed");
        if target != Some(source) {
            if target.is_some() {
                self.model.unname(to, &to_name);
            }
            self.model.node_mut(from).children.remove(&from_name);
            self.model.node_mut(to).children.insert(to_name, source);
            if self.model.node(source).file_type == FileType::Directory {
                self.model.node_mut(from).links -= 1;
                self.model.node_mut(to).links += 1;
                self.model.node_mut(source).parent = to;
            }
        }
        self.check_attr(from, &renamed.from.after);
        self.check_attr(to, &renamed.to.after);
    }

    fn any_file(&mut self) -> Option<usize> {
        let files = self.model.files();
        if files.is_empty() {
            None
        } else {
            Some(files[self.rng.index(files.len())])
        }
    }

    async fn write(&mut self) {
        let Some(file) = self.any_file() else { return };
        let size = self.model.node(file).data.len() as u64;
        let offset = match self.rng.below(4) {
            0 => size,
            1 => self.rng.below(FILE_MAX),
            _ => self.rng.below(size.max(1)),
        };
        let most = match self.rng.below(4) {
            0 => 300_000,
            1 => 8192,
            _ => 700,
        };
        let len = usize::try_from(self.rng.below(most) + 1).expect("small");
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        if self.rng.chance(200_000) {
            bytes.fill(0);
        }
        let stability = if self.rng.chance(20_000) {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        let id = self.model.id(file);
        let data = IoBuf::from(bytes.clone());
        let written = self
            .fs()
            .write(id, offset, data, stability, &self.root)
            .await
            .expect("writes");
        assert_eq!(written.count, len as u64);
        assert!(written.stability >= stability);
        let offset = usize::try_from(offset).expect("small");
        let node = self.model.node_mut(file);
        if node.data.len() < offset + len {
            node.data.resize(offset + len, 0);
        }
        node.data[offset..offset + len].copy_from_slice(&bytes);
        self.check_attr(file, &written.change.after);
    }

    async fn resize(&mut self) {
        let Some(file) = self.any_file() else { return };
        let size = self.model.node(file).data.len() as u64;
        let new = if self.rng.coin() {
            self.rng.below(FILE_MAX)
        } else {
            self.rng.below(size + 1)
        };
        let id = self.model.id(file);
        let set = SetAttr {
            size: Some(new),
            ..SetAttr::default()
        };
        let change = self
            .fs()
            .setattr(id, &set, None, &self.root)
            .await
            .expect("resizes");
        self.model
            .node_mut(file)
            .data
            .resize(usize::try_from(new).expect("small"), 0);
        self.check_attr(file, &change.after);
    }

    async fn punch(&mut self) {
        let Some(file) = self.any_file() else { return };
        let size = self.model.node(file).data.len() as u64;
        let offset = self.rng.below(size + 1);
        let len = self.rng.below(300_000) + 1;
        let id = self.model.id(file);
        self.fs()
            .punch(id, offset, len, &self.root)
            .await
            .expect("punches");
        let end = usize::try_from((offset + len).min(size)).expect("small");
        let offset = usize::try_from(offset).expect("small");
        self.model.node_mut(file).data[offset.min(end)..end].fill(0);
    }

    async fn set_mode(&mut self) {
        let named: Vec<usize> = self.model.named().into_iter().collect();
        let n = named[self.rng.index(named.len())];
        let mode = u32::try_from(self.rng.below(0o10000)).expect("small");
        let uid = u32::try_from(self.rng.below(5)).expect("small");
        let set = SetAttr {
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(uid),
            ..SetAttr::default()
        };
        let change = self
            .fs()
            .setattr(self.model.id(n), &set, None, &self.root)
            .await
            .expect("sets");
        let node = self.model.node_mut(n);
        (node.mode, node.uid, node.gid) = (mode, uid, uid);
        self.check_attr(n, &change.after);
        // New files in set-gid directories would take the group: not what this test is about.
        if self.model.node(n).file_type == FileType::Directory && mode & 0o2000 != 0 {
            let set = SetAttr {
                mode: Some(mode & !0o2000),
                ..SetAttr::default()
            };
            self.fs()
                .setattr(self.model.id(n), &set, None, &self.root)
                .await
                .expect("sets");
            self.model.node_mut(n).mode = mode & !0o2000;
        }
    }

    async fn xattr(&mut self) {
        let nodes: Vec<usize> = self
            .model
            .named()
            .into_iter()
            .filter(|&n| {
                matches!(
                    self.model.node(n).file_type,
                    FileType::Regular | FileType::Directory
                )
            })
            // The root's hidden directory would stay to the end.
            .filter(|&n| n != 0)
            .collect();
        if nodes.is_empty() {
            return;
        }
        let n = nodes[self.rng.index(nodes.len())];
        let name = format!("user.a{}", self.rng.below(6)).into_bytes();
        let id = self.model.id(n);
        if self.rng.chance(300_000) {
            let result = self.fs().remove_xattr(id, &name, &self.root).await;
            let there = self.model.node_mut(n).xattrs.remove(&name).is_some();
            self.check_result(
                "remove_xattr",
                &result,
                if there {
                    Ok(())
                } else {
                    Err(FsError::NoAttribute)
                },
            );
            return;
        }
        let most = match self.rng.below(8) {
            0 => 60_000,
            1 => 5000,
            _ => 60,
        };
        let mut value = vec![0; self.rng.index(most)];
        self.rng.fill(&mut value);
        self.fs()
            .set_xattr(id, &name, &value, XattrMode::Any, &self.root)
            .await
            .expect("sets");
        self.model.node_mut(n).xattrs.insert(name, value);
    }

    async fn hold(&mut self) {
        let Some(file) = self.any_file() else { return };
        let id = self.model.id(file);
        if self.model.node(file).held == 0 || self.rng.coin() {
            self.fs().hold(id).await.expect("there");
            self.model.node_mut(file).held += 1;
        } else {
            self.fs().release(id);
            let node = self.model.node_mut(file);
            node.held -= 1;
            if node.held == 0 && node.links == 0 {
                self.model.nodes.remove(&file);
            }
        }
    }

    fn check_attr(&self, n: usize, attr: &Attr) {
        let node = self.model.node(n);
        assert_eq!(attr.file_type, node.file_type);
        assert_eq!(
            (attr.mode, attr.uid, attr.gid),
            (node.mode, node.uid, node.gid),
            "{n}: {node:?}"
        );
        assert_eq!(attr.links, node.links, "links of {n}");
        assert_eq!(attr.rdev, node.rdev);
        let size = match node.file_type {
            FileType::Directory => node.children.len() as u64 + 2,
            FileType::Symlink => node.target.len() as u64,
            _ => node.data.len() as u64,
        };
        assert_eq!(attr.size, size, "size of {n}");
        if node.file_type == FileType::Directory && node.links > 0 {
            assert_eq!(attr.parent, self.model.id(node.parent).object);
        }
    }

    async fn check_file(&self, n: usize) {
        let fs = self.fs();
        let node = self.model.node(n);
        let id = self.model.id(n);
        self.check_attr(n, &fs.getattr(id).await.expect("there"));
        match node.file_type {
            FileType::Regular => {
                let read = fs
                    .read(id, 0, node.data.len() + 10, &self.root)
                    .await
                    .expect("reads");
                assert!(read.eof);
                let got = read.to_vec();
                if got != node.data {
                    let at = got.iter().zip(&node.data).position(|(a, b)| a != b);
                    panic!(
                        "content of {n} differs at {at:?}, {} and {} bytes",
                        got.len(),
                        node.data.len()
                    );
                }
            }
            FileType::Symlink => assert_eq!(fs.readlink(id).await.expect("reads"), node.target),
            _ => {}
        }
        let xattrs = fs.xattrs(id, &self.root).await.expect("lists");
        let names: Vec<&Vec<u8>> = xattrs.iter().map(|x| &x.name).collect();
        assert_eq!(names, node.xattrs.keys().collect::<Vec<_>>());
        for (name, value) in &node.xattrs {
            assert_eq!(&fs.xattr(id, name, &self.root).await.expect("reads"), value);
        }
    }

    async fn check_all(&self) {
        let fs = self.fs();
        for &n in self.model.nodes.keys() {
            self.check_file(n).await;
            let node = self.model.node(n);
            if node.file_type != FileType::Directory {
                continue;
            }
            let mut cookie = 0;
            let mut found = BTreeMap::new();
            loop {
                let listing = fs
                    .readdir(self.model.id(n), cookie, all_entries(7), &self.root)
                    .await
                    .expect("lists");
                for entry in &listing.entries {
                    assert!(entry.cookie > cookie, "cookies grow");
                    cookie = entry.cookie;
                    let attr = entry.attr.as_ref().expect("asked for");
                    // Directory entries of version 1 have no type.
                    let shown = entry.file_type.unwrap_or(attr.file_type);
                    assert_eq!(attr.file_type, shown);
                    assert!(
                        found.insert(entry.name.clone(), attr.id).is_none(),
                        "each name once"
                    );
                }
                if listing.eof {
                    break;
                }
            }
            assert_eq!(found.remove(&b"."[..]), Some(self.model.id(n)));
            assert_eq!(found.remove(&b".."[..]), Some(self.model.id(node.parent)));
            let want: BTreeMap<Vec<u8>, FileId> = node
                .children
                .iter()
                .map(|(name, &c)| (name.clone(), self.model.id(c)))
                .collect();
            assert_eq!(found, want);
            for (name, id) in want {
                assert_eq!(
                    fs.lookup(self.model.id(n), &name, &self.root)
                        .await
                        .expect("found")
                        .id,
                    id
                );
            }
        }
    }

    async fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.make().await,
            20..30 => self.take().await,
            30..36 => self.link().await,
            36..48 => self.rename().await,
            48..72 => self.write().await,
            72..78 => self.resize().await,
            78..82 => self.punch().await,
            82..86 => self.set_mode().await,
            86..94 => self.xattr().await,
            _ => self.hold().await,
        }
    }

    /// Reopening ends all holds: files without names are gone then.
    async fn reopen(&mut self) {
        self.rig.reopen().await;
        self.rig.fs.wait_unlinked_drained().await.expect("open");
        for node in self.model.nodes.values_mut() {
            node.held = 0;
        }
        self.model.nodes.retain(|_, node| node.links > 0);
    }
}

fn run(seed: u64, steps: usize, props: RootProps) {
    // Attribute tables came with version 5, and tables of them with their first use.
    let objects = if props.version < 5 { 3 } else { 6 };
    rig::run(seed, props, move |_, rig| async move {
        let model = Model::new(rig.fs.root());
        let mut run = Run {
            rig,
            model,
            rng: Rng::new(seed),
            root: Cred::root(),
        };
        for step in 0..steps {
            run.step().await;
            match run.rng.below(400) {
                0 => run.reopen().await,
                1 | 2 => run.rig.fs.sync().await.expect("syncs"),
                3 => run.check_all().await,
                _ => {}
            }
            let _ = step;
        }
        run.check_all().await;
        run.reopen().await;
        run.check_all().await;
        // Everything removed is free again: the objects left are the fixed ones.
        let root = run.model.id(0);
        remove_tree(&run.rig.fs, root).await;
        run.rig.reopen().await;
        run.rig.fs.wait_unlinked_drained().await.expect("open");
        run.rig.fs.sync().await.expect("syncs");
        assert_eq!(
            run.rig.objects(),
            objects,
            "master node, attribute tables, unlinked set, root"
        );
        run.rig.close().await;
    });
}

async fn remove_tree(fs: &Fs, dir: FileId) {
    let root = Cred::root();
    loop {
        let listing = fs
            .readdir(dir, 2, all_entries(100), &root)
            .await
            .expect("lists");
        for entry in &listing.entries {
            let attr = entry.attr.as_ref().expect("asked for");
            // Directory entries of version 1 have no type.
            if attr.file_type == FileType::Directory {
                let id = attr.id;
                Box::pin(remove_tree(fs, id)).await;
                fs.rmdir(dir, &entry.name, &root).await.expect("empty");
            } else {
                fs.remove(dir, &entry.name, &root).await.expect("removes");
            }
        }
        if listing.eof && listing.entries.is_empty() {
            return;
        }
    }
}

#[test]
fn random_work_agrees_with_the_model() {
    let seeds = std::env::var("ZPL_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6);
    let first = std::env::var("ZPL_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    for seed in first..first + seeds {
        eprintln!("seed {seed}");
        run(seed, 1500, RootProps::default());
    }
}

#[test]
fn old_versions_agree_with_the_model() {
    for version in 1..5 {
        let props = RootProps {
            version,
            project_quota: false,
            ..RootProps::default()
        };
        run(20 + version, 1500, props);
    }
}
