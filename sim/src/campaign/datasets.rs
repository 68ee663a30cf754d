//! An administrator that creates, renames, changes and destroys datasets while clients work, and takes snapshots of them, clones,
//! promotes, rolls back and destroys those. Some of them are volumes.
//!
//! These operations are on stable storage when they return, so after a cut the datasets are what was acknowledged, or
//! that and the operation under way. The model knows names, origins, and a print of the contents where these are
//! certain: of every snapshot since it was taken, and of a dataset between synchronous writes to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::{
    CreateDataset, CreateMode, Cred, DatasetFilter, DatasetKind, DestroyOptions, EngineError,
    FsError, IoBuf, PoolHandle, PropertyQuery, Refusal, SetAttr, SnapshotRequest, Stability,
    VolumeError,
};
use runtime::Handle;
use world::Rng;

use super::encryption::{self, Key, Opened};
use super::model::{Node, Visible, pattern};
use super::walk;

/// Where the datasets of this task live. Clients work in it too.
pub(super) const ROOT: &str = "tank/fs";

/// What is known of a dataset or snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thing {
    /// A print of its contents; `None` when they are not certain.
    pub(super) print: Option<u64>,
    /// The snapshot it was cloned from.
    pub(super) origin: Option<String>,
    /// The txg it was made in, 0 when that is not known yet.
    pub(super) created: u64,
    /// A volume, or a snapshot of one.
    pub(super) volume: bool,
    /// What opens it, if it is encrypted.
    pub(super) key: Option<Key>,
}

/// Datasets and snapshots by full name.
pub type Names = BTreeMap<String, Thing>;

/// What was acknowledged, and what may be.
#[derive(Clone, Debug)]
pub struct DatasetHistory {
    acknowledged: Names,
    under_way: Option<Names>,
    pub(super) counts: Counts,
}

/// What was done besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Rotations of keys that were begun.
    pub rotations: u64,
    /// What was done while one was under way.
    pub meanwhile: u64,
    /// Blocks that were damaged on all disks, and came back from a stream.
    pub healed: u64,
}

impl Default for DatasetHistory {
    fn default() -> Self {
        Self::new()
    }
}

impl DatasetHistory {
    #[must_use]
    pub fn new() -> Self {
        Self {
            acknowledged: Names::from([(ROOT.to_owned(), Thing::default())]),
            under_way: None,
            counts: Counts::default(),
        }
    }

    /// What was acknowledged.
    pub(super) fn names(&self) -> &Names {
        &self.acknowledged
    }

    pub(super) fn thing_mut(&mut self, name: &str) -> Option<&mut Thing> {
        self.acknowledged.get_mut(name)
    }

    fn end(&mut self) {
        self.acknowledged = self.under_way.take().expect("one has begun");
    }

    /// Judges what was found, and goes on from there.
    ///
    /// # Errors
    /// When it is neither what was acknowledged nor that with the operation under way.
    pub fn judge(&mut self, found: Names) -> Result<(), String> {
        let under_way = self.under_way.as_ref();
        if !fits(&self.acknowledged, &found) && !under_way.is_some_and(|next| fits(next, &found)) {
            return Err(format!(
                "datasets {found:?}, acknowledged {:?}, under way {:?}",
                self.acknowledged, self.under_way
            ));
        }
        self.acknowledged = found;
        self.under_way = None;
        Ok(())
    }
}

/// Whether what was found is what the model says, where it is certain.
fn fits(model: &Names, found: &Names) -> bool {
    model.len() == found.len()
        && model
            .iter()
            .zip(found)
            .all(|((name, thing), (other, there))| {
                name == other
                    && thing.origin == there.origin
                    && thing.volume == there.volume
                    && encryption::same_secret(thing.key, there.key)
                    && thing.print.is_none_or(|print| Some(print) == there.print)
            })
}

/// Lists the datasets from the root on, with their snapshots and contents.
///
/// # Errors
/// A sentence.
pub async fn list(pool: &PoolHandle) -> Result<Names, String> {
    let filter = DatasetFilter {
        root: ROOT.to_owned(),
        depth: None,
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
        ],
    };
    let query = PropertyQuery::Named(vec!["origin".to_owned(), "volsize".to_owned()]);
    let found = pool
        .datasets(&filter, &query)
        .await
        .map_err(|error| error.to_string())?;
    let mut names = Names::new();
    let mut opened = Opened::default();
    for info in found {
        // Of a rotation that was cut off: they go with it.
        if info.name.contains(encryption::SHORT_LIVED) {
            continue;
        }
        let key = opened.key_of(pool, head_of(&info.name)).await?;
        let origin = info
            .property("origin")
            .and_then(|property| property.value.text())
            .map(str::to_owned);
        let size = info
            .property("volsize")
            .and_then(|size| size.value.number());
        let volume = size.is_some_and(|bytes| bytes > 0);
        let print = if info.name == ROOT {
            None
        } else {
            Some(print(pool, &info.name, volume).await?)
        };
        let thing = Thing {
            print,
            origin,
            created: info.create_txg,
            volume,
            key,
        };
        names.insert(info.name, thing);
    }
    Ok(names)
}

/// Reads a dataset whole and returns a number that tells its contents from others.
pub(super) async fn print(pool: &PoolHandle, name: &str, volume: bool) -> Result<u64, String> {
    if volume {
        let text = |error: VolumeError| format!("read {name}: {error}");
        let open = pool.open_volume(name).await;
        let volume = open.map_err(|error| format!("open {name}: {error}"))?;
        let size = volume.info().await.map_err(text)?.size;
        let len = usize::try_from(size).expect("small");
        let pieces = volume.read(0, len).await.map_err(text)?;
        return Ok(hash_of(pieces.iter().map(|piece| &**piece)));
    }
    let text = |error: FsError| format!("read {name}: {error}");
    let fs = pool
        .open_fs(name)
        .await
        .map_err(|error| format!("open {name}: {error}"))?;
    let root = fs.root().await.map_err(text)?.id;
    let tree = walk::walk(&fs, root).await.map_err(text)?;
    Ok(print_of(&tree))
}

fn print_of(tree: &Visible) -> u64 {
    let parts = tree.iter().flat_map(|(path, node)| {
        let content: &[u8] = match node {
            Node::File(file) => &file.content,
            Node::Symlink { target } => target,
            Node::Dir { .. } => b"/",
        };
        [path.as_bytes(), &[0xff], content, &[0xff]]
    });
    hash_of(parts)
}

/// The first 64 bits of a hash over all parts, wherever they are divided: enough to tell a mistake.
fn hash_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
}

/// DatasetAdmin at work.
pub(super) struct DatasetAdmin {
    pub(super) pool: PoolHandle,
    pub(super) handle: Handle,
    pub(super) history: Rc<RefCell<DatasetHistory>>,
    pub(super) rng: Rng,
    pub(super) habits: Habits,
    /// The key of a dataset is rotated, or may be.
    pub(super) rotating: bool,
}

/// What the administrator does besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Makes replicas.
    pub replicas: bool,
    /// Redacts snapshots by those of clones.
    pub redaction: bool,
    /// Encrypts some of the datasets.
    pub encryption: bool,
    /// Receives streams correctively.
    pub healing: bool,
}

/// Works until some operations are done.
///
/// # Errors
/// A sentence, when the engine refuses something valid.
pub async fn work(
    pool: PoolHandle,
    history: Rc<RefCell<DatasetHistory>>,
    handle: Handle,
    rng: Rng,
    operations: u32,
    habits: Habits,
) -> Result<(), String> {
    let mut admin = DatasetAdmin {
        pool,
        handle: handle.clone(),
        history,
        rng,
        habits,
        rotating: false,
    };
    if habits.encryption {
        encryption::load_all(&admin.pool, &admin.names()).await?;
        admin.end_rotations().await?;
    }
    if habits.replicas {
        admin.abort_receives().await?;
    }
    if habits.redaction {
        admin.destroy_copies().await?;
    }
    for _ in 0..operations {
        admin.step().await?;
        let pause = Duration::from_micros(admin.rng.below(400_000));
        handle.sleep(pause).await;
    }
    Ok(())
}

pub(super) fn text(error: EngineError) -> String {
    format!("datasets: {error}")
}

pub(super) fn is_full(error: &EngineError) -> bool {
    error.to_string().contains("space")
}

/// Whether something is refused because a snapshot is being copied, or the dataset has one that is short-lived.
fn is_for_a_rotation(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Busy(_) | EngineError::NotNewest(_) | EngineError::HasChildren { .. }
    )
}

/// The first refusal as an error.
pub(super) fn accepted(refused: Vec<Refusal>) -> Result<(), EngineError> {
    match refused.into_iter().next() {
        None => Ok(()),
        Some(refusal) => Err(refusal.error),
    }
}

pub(super) fn is_snapshot(name: &str) -> bool {
    name.contains('@')
}

pub(super) fn head_of(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// Snapshots of a dataset, oldest first.
pub(super) fn line(names: &Names, head: &str) -> Vec<String> {
    let mut line: Vec<(u64, String)> = names
        .iter()
        .filter(|(name, _)| is_snapshot(name) && head_of(name) == head)
        .map(|(name, thing)| (thing.created, name.clone()))
        .collect();
    line.sort();
    line.into_iter().map(|(_, name)| name).collect()
}

/// The names as they are when some are changed, in origins too.
fn renamed(names: &Names, change: impl Fn(&str) -> String) -> Names {
    names
        .iter()
        .map(|(name, thing)| {
            let origin = thing.origin.as_deref().map(&change);
            let thing = Thing {
                origin,
                ..thing.clone()
            };
            (change(name), thing)
        })
        .collect()
}

impl DatasetAdmin {
    pub(super) fn names(&self) -> Names {
        self.history.borrow().acknowledged.clone()
    }

    pub(super) fn pick(&mut self, names: &Names, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let fitting: Vec<&String> = names.keys().filter(|name| wanted(name)).collect();
        (!fitting.is_empty()).then(|| (*self.rng.choose(&fitting)).clone())
    }

    pub(super) fn fresh(&mut self, prefix: &str) -> String {
        format!("{prefix}{}", self.rng.below(100_000))
    }

    /// Says what an operation will make of the names.
    pub(super) fn begin(&self, next: Names) {
        self.history.borrow_mut().under_way = Some(next);
    }

    /// The operation has ended: well, or refused for lack of space.
    pub(super) fn end(&self, outcome: Result<(), EngineError>) -> Result<bool, String> {
        let mut history = self.history.borrow_mut();
        match outcome {
            Ok(()) => {
                history.end();
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                history.under_way = None;
                Ok(false)
            }
            Err(error) if self.rotating && is_for_a_rotation(&error) => {
                history.under_way = None;
                Ok(false)
            }
            Err(error) => Err(text(error)),
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        if self.habits.replicas && self.rng.below(3) == 0 {
            return self.replicate().await;
        }
        if self.habits.redaction && self.rng.below(6) == 0 {
            return self.redact().await;
        }
        if self.habits.healing && self.rng.below(6) == 0 {
            return self.heal().await;
        }
        if self.habits.encryption && self.rng.below(4) == 0 {
            return self.use_keys().await;
        }
        match self.rng.below(16) {
            0..=2 => self.create().await,
            3 => self.rewrite().await,
            4..=6 => self.snapshot().await,
            7 | 8 => self.destroy_snapshots().await,
            9 => self.clone_one().await,
            10 => self.promote().await,
            11 => self.rollback().await,
            12 => self.destroy().await,
            13 => self.rename().await,
            14 => self.rename_snapshot().await,
            _ => self.set().await,
        }
    }

    async fn create(&mut self) -> Result<(), String> {
        let names = self.names();
        let parent = self
            .pick(&names, |name| !is_snapshot(name) && !names[name].volume)
            .filter(|name| name.matches('/').count() < 5)
            .unwrap_or_else(|| ROOT.to_owned());
        let volume = self.rng.below(4) == 0;
        let name = self.fresh(&format!("{parent}/{}", if volume { "v" } else { "d" }));
        let (key, own_key, encryption) = self.draw_key(&names, &parent);
        let mut next = names;
        let thing = Thing {
            volume,
            key,
            ..Thing::default()
        };
        if next.insert(name.clone(), thing).is_some() {
            return Ok(());
        }
        self.begin(next);
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut properties = if volume {
            let mut properties = vec![
                own("volsize", "512K"),
                own(
                    "volblocksize",
                    self.rng.choose::<&str>(&["4K", "16K", "128K"]),
                ),
            ];
            if self.rng.coin() {
                properties.push(own("refreservation", "700K"));
            }
            properties
        } else {
            vec![own(
                "recordsize",
                self.rng.choose::<&str>(&["4K", "128K", "1M"]),
            )]
        };
        properties.extend(encryption);
        let request = CreateDataset {
            name: name.clone(),
            volume,
            properties,
            key: own_key,
            ..CreateDataset::default()
        };
        let made = self.pool.create_dataset(request).await;
        if self.end(made)? {
            self.fill(&name).await?;
        }
        Ok(())
    }

    /// Writes a file of a dataset, synchronously, and notes the contents as certain.
    pub(super) async fn fill(&mut self, name: &str) -> Result<(), String> {
        let note = |admin: &Self, print: Option<u64>| {
            let mut history = admin.history.borrow_mut();
            if let Some(thing) = history.acknowledged.get_mut(name) {
                thing.print = print;
            }
        };
        note(self, None);
        if self.names()[name].volume {
            if self.fill_volume(name).await? {
                let print = print(&self.pool, name, true).await?;
                note(self, Some(print));
            }
            return Ok(());
        }
        let cred = Cred::root();
        let failed = |error: FsError| format!("datasets: {name}: {error}");
        let fs = self.pool.open_fs(name).await.map_err(text)?;
        let root = fs.root().await.map_err(failed)?.id;
        let file = match fs.lookup(root, b"content", &cred).await {
            Ok(attr) => attr.id,
            Err(_) => {
                let mode = CreateMode::Guarded;
                let set = SetAttr::default();
                match fs.create(root, b"content", mode, &set, &cred).await {
                    Ok(made) => made.file.id,
                    Err(FsError::NoSpace) => return Ok(()),
                    Err(error) => return Err(failed(error)),
                }
            }
        };
        let offset = self.rng.below(200_000);
        let data = pattern(self.rng.next_u64(), self.rng.between(1, 300_000));
        let data = IoBuf::from(data);
        match fs
            .write(file, offset, data, Stability::FileSync, &cred)
            .await
        {
            Ok(_) => {}
            Err(FsError::NoSpace) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
        fs.sync().await.map_err(failed)?;
        let print = print(&self.pool, name, false).await?;
        note(self, Some(print));
        Ok(())
    }

    /// Writes to, zeroes or discards a part of a volume, and makes it stable; false when there is no space.
    async fn fill_volume(&mut self, name: &str) -> Result<bool, String> {
        let failed = |error: VolumeError| format!("datasets: {name}: {error}");
        let volume = self.pool.open_volume(name).await.map_err(text)?;
        let size = volume.info().await.map_err(failed)?.size;
        let offset = self.rng.below(size) & !511;
        let len = (self.rng.between(1, 400) * 512).min(size - offset);
        let stability = *self.rng.choose(&[Stability::FileSync, Stability::Unstable]);
        let done = match self.rng.below(6) {
            0 => volume.zero(offset, len, stability).await,
            1 => volume.discard(offset, len, stability).await,
            _ => {
                let data = IoBuf::from(pattern(self.rng.next_u64(), len));
                volume.write(offset, data, stability).await
            }
        };
        match done {
            Ok(()) => volume.flush().await.map_err(failed).map(|()| true),
            Err(VolumeError::NoSpace) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    async fn rewrite(&mut self) -> Result<(), String> {
        let names = self.names();
        match self.pick(&names, |name| !is_snapshot(name) && name != ROOT) {
            Some(name) => self.fill(&name).await,
            None => Ok(()),
        }
    }

    pub(super) async fn snapshot(&mut self) -> Result<(), String> {
        let names = self.names();
        let short = self.fresh("s");
        let mut heads: Vec<String> = names
            .keys()
            .filter(|name| !is_snapshot(name))
            .cloned()
            .collect();
        if self.rng.coin() {
            heads = vec![(*self.rng.choose(&heads)).clone()];
        }
        let mut next = names.clone();
        for head in &heads {
            let thing = Thing {
                print: names[head].print,
                volume: names[head].volume,
                key: names[head].key,
                ..Thing::default()
            };
            if next.insert(format!("{head}@{short}"), thing).is_some() {
                // The name is taken.
                return Ok(());
            }
        }
        self.begin(next);
        let request = SnapshotRequest {
            names: heads.iter().map(|head| format!("{head}@{short}")).collect(),
            ..SnapshotRequest::default()
        };
        let taken = self.pool.snapshot(request).await.and_then(accepted);
        if !self.end(taken)? {
            return Ok(());
        }
        for head in heads {
            let name = format!("{head}@{short}");
            let info = self.pool.dataset(&name, &PropertyQuery::None).await;
            let created = info.map_err(text)?.create_txg;
            let found = print(&self.pool, &name, names[&head].volume).await?;
            let mut history = self.history.borrow_mut();
            let thing = history.acknowledged.get_mut(&name).expect("taken just now");
            if thing.print.is_some_and(|print| print != found) {
                return Err(format!(
                    "datasets: {name} differs from what it was taken of"
                ));
            }
            thing.print = Some(found);
            thing.created = created;
        }
        Ok(())
    }

    pub(super) async fn destroy_snapshots(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(name) = self.pick(&names, is_snapshot) else {
            return Ok(());
        };
        let line = line(&names, head_of(&name));
        let from = line.iter().position(|n| *n == name).expect("in its line");
        let count = 1 + usize::try_from(self.rng.below(3)).expect("small");
        let doomed: Vec<String> = line[from..].iter().take(count).cloned().collect();
        let mut next = names;
        next.retain(|name, _| !doomed.contains(name));
        let cloned = next
            .values()
            .any(|thing| thing.origin.as_ref().is_some_and(|o| doomed.contains(o)));
        if cloned {
            return Ok(());
        }
        self.begin(next);
        let gone = self.pool.destroy_snapshots(&doomed, false).await;
        self.end(gone.and_then(accepted)).map(drop)
    }

    async fn clone_one(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(origin) = self.pick(&names, is_snapshot) else {
            return Ok(());
        };
        let name = self.fresh("tank/fs/c");
        let mut next = names.clone();
        let thing = Thing {
            print: names[&origin].print,
            origin: Some(origin.clone()),
            created: 0,
            volume: names[&origin].volume,
            key: names[&origin].key,
        };
        if next.insert(name.clone(), thing).is_some() {
            return Ok(());
        }
        self.begin(next);
        let made = self.pool.clone_snapshot(&origin, &name, &[], false).await;
        self.end(made).map(drop)
    }

    async fn promote(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(clone) = self.pick(&names, |name| names[name].origin.is_some()) else {
            return Ok(());
        };
        let origin = names[&clone].origin.clone().expect("it is a clone");
        let old = head_of(&origin).to_owned();
        if !self.may_move(&old, &names[&old]).await? {
            // The clone lies outside of its encryption root.
            return Ok(());
        }
        let line = line(&names, &old);
        let count = line.iter().position(|n| *n == origin).expect("in its line") + 1;
        let moved = &line[..count];
        let to = |name: &str| {
            if moved.iter().any(|m| m == name) {
                name.replacen(&old, &clone, 1)
            } else {
                name.to_owned()
            }
        };
        let mut next = renamed(&names, to);
        if next.len() != names.len() {
            // Two snapshots would have one name.
            return Ok(());
        }
        let above = next[&old].origin.clone();
        next.get_mut(&clone).expect("known").origin = above;
        next.get_mut(&old).expect("known").origin = Some(to(&origin));
        self.begin(next);
        let done = self.pool.promote(&clone).await;
        self.end(done).map(drop)
    }

    pub(super) async fn rollback(&mut self) -> Result<(), String> {
        let names = self.names();
        // Not where clients work.
        let Some(head) = self.pick(&names, |name| !is_snapshot(name) && name != ROOT) else {
            return Ok(());
        };
        let newest = line(&names, &head).pop();
        let Some(target) = newest.or_else(|| names[&head].origin.clone()) else {
            return Ok(());
        };
        let mut next = names.clone();
        // A rotation takes snapshots of its own, of which one may be the newest.
        let print = names[&target].print.filter(|_| !self.rotating);
        next.get_mut(&head).expect("known").print = print;
        self.begin(next);
        let done = self.pool.rollback(&head, None).await;
        self.end(done).map(drop)
    }

    pub(super) async fn destroy(&mut self) -> Result<(), String> {
        let names = self.names();
        let leaf = |name: &str| {
            !is_snapshot(name)
                && name != ROOT
                && !names.keys().any(|other| {
                    other
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.starts_with(['/', '@']))
                })
        };
        let Some(name) = self.pick(&names, leaf) else {
            return Ok(());
        };
        let mut next = names.clone();
        next.remove(&name);
        self.begin(next);
        let options = DestroyOptions::default();
        let gone = self.pool.destroy_dataset(&name, options).await;
        self.end(gone).map(drop)
    }

    pub(super) async fn rename(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(from) = self.pick(&names, |name| !is_snapshot(name) && name != ROOT) else {
            return Ok(());
        };
        let to = self.fresh("tank/fs/d");
        if names.contains_key(&to) || !self.may_move(&from, &names[&from]).await? {
            return Ok(());
        }
        let change = |name: &str| match name.strip_prefix(&from) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '@']) => format!("{to}{rest}"),
            _ => name.to_owned(),
        };
        self.begin(renamed(&names, change));
        let done = self.pool.rename_dataset(&from, &to, false).await;
        self.end(done).map(drop)
    }

    pub(super) async fn rename_snapshot(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(from) = self.pick(&names, is_snapshot) else {
            return Ok(());
        };
        let to = self.fresh(&format!("{}@r", head_of(&from)));
        if names.contains_key(&to) {
            return Ok(());
        }
        let change = |name: &str| {
            if name == from {
                to.clone()
            } else {
                name.to_owned()
            }
        };
        self.begin(renamed(&names, change));
        let done = self.pool.rename_snapshot(&from, &to, false).await;
        self.end(done).map(drop)
    }

    async fn set(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(name) = self.pick(&names, |name| !is_snapshot(name) && name != ROOT) else {
            return Ok(());
        };
        let settings = [
            ("compression", "lz4"),
            ("compression", "off"),
            ("compression", "zstd"),
            ("compression", "gzip-1"),
            ("refreservation", "1M"),
            ("refreservation", "none"),
            ("reservation", "2M"),
            ("reservation", "none"),
        ];
        let (property, value) = *self.rng.choose(&settings);
        if names[&name].volume && property == "refreservation" && value == "1M" {
            // More than a volume can use.
            return Ok(());
        }
        let settings = [(property.to_owned(), value.to_owned())];
        match self.pool.set_dataset_properties(&name, &settings).await {
            Ok(()) => Ok(()),
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(text(error)),
        }
    }
}
