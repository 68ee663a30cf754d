//! A directory as the other side of a job: the streams lie in files of a disk that is carried to where the target is, and are received there.
//!
//! ```text
//!   at the source:  job -> run -> stream files, manifest.toml
//!   at the target:  manifest.toml, stream files -> run -> pool;  what it has then -> received.toml
//! ```
//! Both ways it is [`run`] that decides what is sent: by what the manifest has, and by what `received.toml` says that the target has, where
//! the disk came back. Streams are cut into parts that a FAT file system holds, and each part is checked before any of it is received.
//! A stream is told in the directory once it is whole and on the disk, so the next export goes on behind what an interruption left.

mod manifest;
mod parts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::DatasetKind;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use jiff::Timestamp;

use self::manifest::{
    Guid, MANIFEST, Manifest, RECEIVED, Received, ReceivedDataset, StoredStream, VERSION, append,
    failed, file_number, read_toml, write_toml,
};
use self::parts::{PartReader, PartWriter, remove_part};
use super::run::{foresee, reset, run};
use super::{
    ByteStream, Endpoint, Job, Mark, Point, Progress, Reached, ReceiveSpec, ReplicaDataset,
    ReplicationError, Report, StreamFrom, StreamSpec, TreePlan,
};

fn point(name: &str, guid: Guid, create_txg: u64) -> Point {
    Point {
        name: name.to_owned(),
        guid: guid.0,
        create_txg,
        holds: 0,
        creation: 0,
    }
}

/// An answer that is known at once.
fn known<'a, T: Send + 'a>(answer: Result<T, ReplicationError>) -> Reached<'a, T> {
    futures_util::future::ready(answer).boxed()
}

fn holds_streams_only<'a, T: Send + 'a>() -> Reached<'a, T> {
    let why = "a directory holds streams only".to_owned();
    known(Err(ReplicationError::Failed(why)))
}

/// Writes what the target does not have into a directory: `sanbox-JOB` below the one that is named. It is what [`import`] takes. Blocks the
/// thread while it writes. Returns the directory, and what the run did.
///
/// # Errors
/// As [`run`]; the directory cannot be written, or holds another job's streams. The streams that are whole stay, and are not written again.
pub async fn export(
    job: &Job,
    source: &dyn Endpoint,
    directory: &Path,
    progress: &Arc<Progress>,
    now: Timestamp,
) -> Result<(PathBuf, Report), ReplicationError> {
    let directory = directory.join(format!("sanbox-{}", job.name));
    fs::create_dir_all(&directory).map_err(|error| failed(&directory, error))?;
    let target = StreamDirectory::as_target(directory.clone(), job)?;
    let report = run(job, source, &target, progress, now).await?;
    target.contents().manifest.write(&directory)?;
    Ok((directory, report))
}

/// Says what [`export`] would write now; nothing is written, nor a directory made.
///
/// # Errors
/// As [`export`].
pub async fn foresee_export(
    job: &Job,
    source: &dyn Endpoint,
    directory: &Path,
) -> Result<TreePlan, ReplicationError> {
    let directory = directory.join(format!("sanbox-{}", job.name));
    let target = StreamDirectory::as_it_is(directory, job)?;
    foresee(job, source, &target).await
}

/// Receives what [`export`] wrote, below `to` or what the job has for its target, and writes what the target has then beside it. Blocks the
/// thread while it reads. Returns the job, and what the run did.
///
/// # Errors
/// As [`run`]; the directory is not what [`export`] wrote, or is damaged: what came before the damage is received.
pub async fn import(
    directory: &Path,
    to: Option<&str>,
    target: &dyn Endpoint,
    progress: &Arc<Progress>,
    now: Timestamp,
) -> Result<(Job, Report), ReplicationError> {
    let (source, job) = StreamDirectory::as_source(directory, to)?;
    // The rest of a stream that came another way cannot be taken out of a whole one.
    reset(&job, target).await?;
    let report = run(&job, &source, target, progress, now).await?;
    let listed = target.list(job.target_root()).await?.unwrap_or_default();
    let received = Received {
        dataset: listed
            .iter()
            .filter_map(|dataset| received_of(&job, dataset))
            .collect(),
    };
    write_toml(directory, RECEIVED, &received)?;
    Ok((job, report))
}

/// Says what [`import`] would receive now.
///
/// # Errors
/// As [`import`].
pub async fn foresee_import(
    directory: &Path,
    to: Option<&str>,
    target: &dyn Endpoint,
) -> Result<TreePlan, ReplicationError> {
    let (source, job) = StreamDirectory::as_source(directory, to)?;
    foresee(&job, &source, target).await
}

/// Returns the directory of streams that is meant: this one, or the only one that an export made in it.
///
/// # Errors
/// There are none, or several.
pub fn find_streams(directory: &Path) -> Result<PathBuf, ReplicationError> {
    if directory.join(MANIFEST).exists() {
        return Ok(directory.to_owned());
    }
    let entries = fs::read_dir(directory).map_err(|error| failed(directory, error))?;
    let has_manifest = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sanbox-") && path.join(MANIFEST).exists()
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = paths.filter(has_manifest).collect();
    found.sort();
    match found.as_slice() {
        [] => Err(failed(
            directory,
            "holds nothing that 'sanbox replication export' wrote",
        )),
        [one] => Ok(one.clone()),
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            let why = format!("holds streams of several jobs: {}", names.join(", "));
            Err(failed(directory, why))
        }
    }
}

/// Returns the job that a directory's streams are of, with the target that is given or that it has.
///
/// # Errors
/// The directory is not what [`export`] wrote.
pub fn job_of(directory: &Path, to: Option<&str>) -> Result<Job, ReplicationError> {
    StreamDirectory::as_source(directory, to).map(|(_, job)| job)
}

fn received_of(job: &Job, dataset: &ReplicaDataset) -> Option<ReceivedDataset> {
    let mark = dataset.mark.as_ref().filter(|mark| mark.job == job.name)?;
    let below = dataset.name.strip_prefix(job.target_root())?;
    let snapshots = dataset.snapshots.iter();
    Some(ReceivedDataset {
        source_guid: Guid(mark.source_guid),
        volume: dataset.kind == DatasetKind::Volume,
        below: below.to_owned(),
        snapshot: snapshots
            .map(|point| (Guid(point.guid), point.name.clone()))
            .collect(),
    })
}

/// What the directory is to the job.
#[derive(Clone, Copy, Debug)]
enum Role {
    Source,
    Target,
}

/// A directory of streams.
struct StreamDirectory {
    path: PathBuf,
    role: Role,
    contents: Mutex<Contents>,
}

struct Contents {
    manifest: Manifest,
    received: Received,
    /// Number of the next stream's files.
    next: u64,
    /// Where the streams are in the manifest, by dataset and snapshot of the source.
    places: BTreeMap<(String, String), usize>,
    /// The newest state of each dataset of the target, once all that is here is received.
    newest: BTreeMap<String, Guid>,
}

impl Contents {
    fn new(manifest: Manifest, received: Received) -> Self {
        let number = |stream: &StoredStream| {
            let file = stream.part.first().map(|part| part.file.as_str());
            file.and_then(file_number).unwrap_or(0)
        };
        let last = manifest.stream.iter().map(number).max();
        let mut contents = Self {
            manifest,
            received,
            next: last.map_or(1, |last| last + 1),
            places: BTreeMap::new(),
            newest: BTreeMap::new(),
        };
        contents.index();
        contents
    }

    /// Guids of the snapshots that the target had after the last import.
    fn received_guids(&self) -> BTreeSet<Guid> {
        let datasets = self.received.dataset.iter();
        datasets
            .flat_map(|dataset| dataset.snapshot.iter().map(|(guid, _)| *guid))
            .collect()
    }

    fn index(&mut self) {
        let streams = self.manifest.stream.iter().enumerate();
        let name = |stream: &StoredStream| (stream.source.clone(), stream.snapshot.clone());
        self.places = streams.map(|(at, stream)| (name(stream), at)).collect();
    }

    fn stream(&self, dataset: &str, snapshot: &str) -> Option<&StoredStream> {
        let name = (dataset.to_owned(), snapshot.to_owned());
        self.places.get(&name).map(|at| &self.manifest.stream[*at])
    }
}

impl StreamDirectory {
    /// Opens a directory that is written to, or would be. What it holds that was received stays.
    fn as_it_is(directory: PathBuf, job: &Job) -> Result<Self, ReplicationError> {
        let manifest = match Manifest::read(&directory)? {
            None => Manifest {
                version: VERSION,
                job: job.clone(),
                stream: Vec::new(),
            },
            Some(manifest) if manifest.job.from != job.from => {
                let other = &manifest.job.from;
                let why = format!("holds streams of '{other}': remove the directory to begin anew");
                return Err(failed(&directory, why));
            }
            Some(manifest) => Manifest {
                job: job.clone(),
                ..manifest
            },
        };
        let received: Received = read_toml(&directory.join(RECEIVED))?.unwrap_or_default();
        Ok(Self {
            contents: Mutex::new(Contents::new(manifest, received)),
            role: Role::Target,
            path: directory,
        })
    }

    /// Opens a directory to write to, and destroys those of its streams that were received.
    fn as_target(directory: PathBuf, job: &Job) -> Result<Self, ReplicationError> {
        let opened = Self::as_it_is(directory, job)?;
        opened.remove_received()?;
        let newest = |dataset: ReplicaDataset| {
            let guid = dataset.snapshots.last()?.guid;
            Some((dataset.name, Guid(guid)))
        };
        let newest = opened.at_target().into_iter().filter_map(newest).collect();
        opened.contents().newest = newest;
        Ok(opened)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_received(&self) -> Result<(), ReplicationError> {
        let mut contents = self.contents();
        let has = contents.received_guids();
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut contents.manifest.stream)
            .into_iter()
            .partition(|stream| has.contains(&stream.guid));
        contents.manifest.stream = kept;
        contents.index();
        contents.manifest.write(&self.path)?;
        for part in gone.iter().flat_map(|stream| &stream.part) {
            remove_part(&self.path, &part.file);
        }
        Ok(())
    }

    /// What the target has once all that is here is received.
    fn at_target(&self) -> Vec<ReplicaDataset> {
        let contents = self.contents();
        let job = &contents.manifest.job;
        let mut datasets: BTreeMap<String, ReplicaDataset> = BTreeMap::new();
        let mut order = 0;
        let mut add = |name: String, source: Guid, kind, guid: Guid, snapshot: &str| {
            order += 1;
            let fresh = || {
                let mut dataset = ReplicaDataset::new(name.clone(), 0, kind);
                dataset.mark = Some(Mark {
                    job: job.name.clone(),
                    source_guid: source.0,
                    adopted_txg: 0,
                });
                dataset
            };
            let dataset = datasets.entry(name.clone()).or_insert_with(fresh);
            dataset.snapshots.push(point(snapshot, guid, order));
        };
        for dataset in &contents.received.dataset {
            let kind = manifest::kind(dataset.volume);
            for (guid, snapshot) in &dataset.snapshot {
                let name = format!("{}{}", job.target_root(), dataset.below);
                add(name, dataset.source_guid, kind, *guid, snapshot);
            }
        }
        // The directory may hold still what was received from it.
        let received = contents.received_guids();
        let waiting = contents.manifest.stream.iter();
        for stream in waiting.filter(|stream| !received.contains(&stream.guid)) {
            let name = job.target_of(&stream.source);
            let kind = stream.kind();
            add(
                name,
                stream.source_guid,
                kind,
                stream.guid,
                &stream.snapshot,
            );
        }
        datasets.into_values().collect()
    }

    async fn store(
        &self,
        spec: &ReceiveSpec,
        mut bytes: ByteStream,
    ) -> Result<(), ReplicationError> {
        let sent = spec.sent.clone().expect("a run says what it sends");
        let (number, newest) = {
            let mut contents = self.contents();
            contents.next += 1;
            let newest = contents.newest.get(&spec.dataset).copied();
            (contents.next - 1, newest)
        };
        let mut writer = PartWriter {
            directory: &self.path,
            number,
            parts: Vec::new(),
            open: None,
        };
        while let Some(chunk) = bytes.next().await {
            let written = match chunk {
                Ok(chunk) => chunk.parts().try_for_each(|part| writer.write(part)),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                writer.remove();
                return Err(error);
            }
        }
        let part = match writer.end() {
            Ok(()) => writer.parts,
            Err(error) => {
                writer.remove();
                return Err(error);
            }
        };
        let stream = StoredStream {
            source: sent.source,
            source_guid: Guid(sent.source_guid),
            volume: sent.kind == DatasetKind::Volume,
            snapshot: sent.snapshot,
            guid: Guid(sent.guid),
            from: newest,
            part,
        };
        append(&self.path, &stream)?;
        let mut contents = self.contents();
        contents.newest.insert(spec.dataset.clone(), stream.guid);
        contents.manifest.stream.push(stream);
        Ok(())
    }

    /// Opens a directory to read from.
    fn as_source(directory: &Path, to: Option<&str>) -> Result<(Self, Job), ReplicationError> {
        let path = directory.join(MANIFEST);
        let Some(manifest) = Manifest::read(directory)? else {
            let why = "there is none: this is no directory that 'sanbox replication export' made";
            return Err(failed(&path, why));
        };
        let job = Job {
            name: manifest.job.name.clone(),
            from: manifest.job.source_root().to_owned(),
            to: to.unwrap_or(manifest.job.target_root()).to_owned(),
            recursive: true,
            set: manifest.job.set.clone(),
            not_in_force: manifest.job.not_in_force.clone(),
            without_properties: manifest.job.without_properties,
            keep: manifest.job.keep.clone(),
            ..Job::default()
        };
        // A place that is a copy of itself is one only where both lie in one pool, which they do not.
        let apart = Job {
            from: format!("source:{}", job.from),
            ..job.clone()
        };
        apart.check().map_err(|error| failed(&path, error))?;
        let source = Self {
            path: directory.to_owned(),
            role: Role::Source,
            contents: Mutex::new(Contents::new(manifest, Received::default())),
        };
        Ok((source, job))
    }

    /// The datasets as the streams have them; a bookmark stands for what the first stream of each counts from.
    fn at_source(&self) -> Vec<ReplicaDataset> {
        let contents = self.contents();
        let mut datasets: BTreeMap<&str, ReplicaDataset> = BTreeMap::new();
        for (order, stream) in (1..).zip(&contents.manifest.stream) {
            let fresh =
                || ReplicaDataset::new(stream.source.clone(), stream.source_guid.0, stream.kind());
            let dataset = datasets.entry(&stream.source).or_insert_with(fresh);
            if dataset.snapshots.is_empty()
                && let Some(from) = stream.from
            {
                dataset.bookmarks.push(point(&String::from(from), from, 0));
            }
            dataset
                .snapshots
                .push(point(&stream.snapshot, stream.guid, order));
        }
        datasets.into_values().collect()
    }

    fn open_stream(&self, spec: &StreamSpec) -> Result<ByteStream, ReplicationError> {
        let what = format!("{}@{}", spec.dataset, spec.snapshot);
        let contents = self.contents();
        let stream = contents.stream(&spec.dataset, &spec.snapshot);
        let stream = stream.ok_or_else(|| failed(&self.path, format!("'{what}' is not there")))?;
        let from = match &spec.from {
            None => None,
            Some(StreamFrom::Bookmark(name)) => Guid::try_from(name.clone()).ok(),
            Some(StreamFrom::Snapshot(name)) => {
                contents.stream(&spec.dataset, name).map(|known| known.guid)
            }
        };
        if from != stream.from {
            let why = format!("'{what}' does not count from what the target has: export again");
            return Err(failed(&self.path, why));
        }
        let mut parts = Vec::new();
        for part in &stream.part {
            parts.push((self.path.join(&part.file), part.clone()));
        }
        let reader = PartReader {
            parts: parts.into_iter(),
            open: None,
            what,
        };
        let bytes = stream::unfold(Some(reader), async |reader| {
            let mut reader = reader?;
            match reader.next() {
                Ok(None) => None,
                Ok(Some(chunk)) => Some((Ok(chunk.into()), Some(reader))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(bytes.boxed())
    }
}

impl Endpoint for StreamDirectory {
    fn list<'a>(&'a self, _root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        let listed = match self.role {
            Role::Target => self.at_target(),
            Role::Source => self.at_source(),
        };
        known(Ok((!listed.is_empty()).then_some(listed)))
    }

    fn write_out(&self) -> Reached<'_, ()> {
        known(Ok(()))
    }

    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        known(Ok(None))
    }

    fn exists<'a>(&'a self, _dataset: &'a str) -> Reached<'a, bool> {
        known(Ok(true))
    }

    fn find<'a>(&'a self, _dataset: &'a str, _guid: u64) -> Reached<'a, Option<String>> {
        known(Ok(None))
    }

    fn snapshot(&self, _names: Vec<String>) -> Reached<'_, ()> {
        holds_streams_only()
    }

    fn size(&self, spec: StreamSpec) -> Reached<'_, Option<u64>> {
        let contents = self.contents();
        known(Ok(contents
            .stream(&spec.dataset, &spec.snapshot)
            .map(StoredStream::bytes)))
    }

    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        known(self.open_stream(&spec))
    }

    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()> {
        async move { self.store(&spec, stream).await }.boxed()
    }

    // A stream is here whole or not at all.
    fn discard_interrupted<'a>(&'a self, _dataset: &'a str) -> Reached<'a, ()> {
        known(Ok(()))
    }

    // Streams stay until an export finds them received. What a source keeps for increments it keeps itself, and what a target keeps the
    // import sees to.
    fn bookmark(&self, _pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        known(Ok(()))
    }

    fn destroy_bookmarks(&self, _names: Vec<String>) -> Reached<'_, ()> {
        known(Ok(()))
    }

    fn destroy_snapshots(&self, _names: Vec<String>) -> Reached<'_, ()> {
        known(Ok(()))
    }

    // Streams are found by the names that their snapshots had.
    fn rename_snapshot<'a>(
        &'a self,
        _dataset: &'a str,
        from: &'a str,
        _to: &'a str,
    ) -> Reached<'a, ()> {
        known(Err(ReplicationError::Failed(format!(
            "the disk has another snapshot '@{from}' of before: it is imported first"
        ))))
    }

    fn hold<'a>(&'a self, _names: Vec<String>, _tag: &'a str) -> Reached<'a, ()> {
        known(Ok(()))
    }

    fn release<'a>(&'a self, _names: Vec<String>, _tag: &'a str) -> Reached<'a, ()> {
        known(Ok(()))
    }

    fn set<'a>(&'a self, _dataset: &'a str, _name: &'a str, _value: &'a str) -> Reached<'a, ()> {
        holds_streams_only()
    }

    fn rollback<'a>(
        &'a self,
        _dataset: &'a str,
        _snapshot: &'a str,
        _newer: Vec<String>,
    ) -> Reached<'a, ()> {
        holds_streams_only()
    }
}
