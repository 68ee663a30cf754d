//! What a directory of streams says of itself: the streams that it holds, and what the target had after the last import.
//!
//! The manifest is written whole when an export begins and ends. The streams between are added to a list beside it, a line each, so that a
//! million of them do not cost a million manifests; a line that a power cut left unfinished is none.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use engine::DatasetKind;
use serde::{Deserialize, Serialize};

use super::super::{Job, ReplicationError};
use crate::state::replace_file;

/// Bytes of a manifest, at most: some 400 of each stream.
pub(super) const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// The version of what is written here.
pub(super) const VERSION: u32 = 1;
pub(super) const MANIFEST: &str = "manifest.toml";
/// Streams that came since the manifest was written: JSON, one a line.
pub(super) const ADDED: &str = "added.jsonl";
pub(super) const RECEIVED: &str = "received.toml";

/// A number of 64 bits as 16 hexadecimal digits: TOML has no unsigned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Guid(pub(super) u64);

impl From<Guid> for String {
    fn from(guid: Guid) -> Self {
        format!("{:016x}", guid.0)
    }
}

impl TryFrom<String> for Guid {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

/// What a directory holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) version: u32,
    pub(super) job: Job,
    #[serde(default)]
    pub(super) stream: Vec<StoredStream>,
}

/// A stream in the order in which it is to be received.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredStream {
    /// The source's dataset.
    pub(super) source: String,
    pub(super) source_guid: Guid,
    pub(super) volume: bool,
    /// Name of the snapshot, without the dataset's.
    pub(super) snapshot: String,
    pub(super) guid: Guid,
    /// What the stream counts from; none for a full one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<Guid>,
    pub(super) part: Vec<Part>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    pub(super) file: String,
    pub(super) bytes: u64,
    /// BLAKE3 of its bytes, in hexadecimal digits.
    pub(super) digest: String,
}

impl StoredStream {
    pub(super) fn kind(&self) -> DatasetKind {
        kind(self.volume)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.part.iter().map(|part| part.bytes).sum()
    }
}

pub(super) fn kind(volume: bool) -> DatasetKind {
    match volume {
        true => DatasetKind::Volume,
        false => DatasetKind::Filesystem,
    }
}

impl Manifest {
    /// Reads what a directory says of itself; `None` where it says nothing. It is not trusted: neither the names of files nor those of datasets.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, ReplicationError> {
        let path = directory.join(MANIFEST);
        let Some(mut manifest) = read_toml::<Self>(&path)? else {
            return Ok(None);
        };
        manifest.add(directory)?;
        if manifest.version != VERSION {
            return Err(failed(&path, "written by another version of this program"));
        }
        let root = manifest.job.source_root();
        let below = format!("{root}/");
        for stream in &manifest.stream {
            if stream.source != root && !stream.source.starts_with(&below) {
                let why = format!("'{}' is not below '{root}'", stream.source);
                return Err(failed(&path, why));
            }
            let mut parts = stream.part.iter();
            if let Some(part) = parts.find(|part| file_number(&part.file).is_none()) {
                let why = format!("'{}' is no name of a stream's file", part.file);
                return Err(failed(&path, why));
            }
        }
        Ok(Some(manifest))
    }

    /// Takes in what the list beside the manifest has. What the manifest was written with already is there twice after a power cut.
    fn add(&mut self, directory: &Path) -> Result<(), ReplicationError> {
        let path = directory.join(ADDED);
        let text = read_text(&path)?.unwrap_or_default();
        let name = |stream: &StoredStream| (stream.source.clone(), stream.guid);
        let mut known: BTreeSet<_> = match text.is_empty() {
            true => return Ok(()),
            false => self.stream.iter().map(name).collect(),
        };
        // What stands behind the last end of a line was never finished.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let parsed = serde_json::from_str(line);
            let stream: StoredStream = parsed.map_err(|error| failed(&path, error))?;
            if known.insert(name(&stream)) {
                self.stream.push(stream);
            }
        }
        Ok(())
    }

    /// Writes all of it; the list beside it is empty then.
    pub(super) fn write(&self, directory: &Path) -> Result<(), ReplicationError> {
        write_toml(directory, MANIFEST, self)?;
        let path = directory.join(ADDED);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, error)),
            _ => Ok(()),
        }
    }
}

/// Adds a stream to the list beside the manifest; it is on the disk when this returns.
pub(super) fn append(directory: &Path, stream: &StoredStream) -> Result<(), ReplicationError> {
    let path = directory.join(ADDED);
    let mut line = serde_json::to_vec(stream).map_err(|error| failed(&path, error))?;
    line.push(b'\n');
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(&line).and_then(|()| file.sync_all());
        if written.is_err() {
            // Half of a line would be the begin of the next one.
            file.set_len(before)?;
        }
        written?;
        match before {
            0 => File::open(directory)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(|error| unwritable(directory, &path, &error))
}

/// What the target had after the last import.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Received {
    #[serde(default)]
    pub(super) dataset: Vec<ReceivedDataset>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceivedDataset {
    pub(super) source_guid: Guid,
    pub(super) volume: bool,
    /// Path below the target of the job; empty for that itself.
    pub(super) below: String,
    /// Guids and names of its snapshots, the oldest first.
    pub(super) snapshot: Vec<(Guid, String)>,
}

/// The number of the stream in the name of one of its files.
pub(super) fn file_number(file: &str) -> Option<u64> {
    let (number, part) = file.strip_prefix("stream-")?.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = is_number(number) && is_number(part);
    // Below 2^32, so that the next one is a number, too.
    let number = is_name.then(|| number.parse::<u32>().ok())??;
    Some(u64::from(number))
}

pub(super) fn failed(path: &Path, error: impl std::fmt::Display) -> ReplicationError {
    ReplicationError::Failed(format!("{}: {error}", path.display()))
}

/// An error of writing there.
pub(super) fn unwritable(directory: &Path, path: &Path, error: &io::Error) -> ReplicationError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ReplicationError::OutOfSpace {
            target: directory.display().to_string(),
        },
        _ => failed(path, error),
    }
}

/// Reads a file of TOML; `None` when it is not there.
pub(super) fn read_toml<T: for<'a> Deserialize<'a>>(
    path: &Path,
) -> Result<Option<T>, ReplicationError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let parsed = toml::from_str(&text);
    parsed.map(Some).map_err(|error| failed(path, error))
}

/// Reads a file of at most [`MANIFEST_BYTES_MAX`]; `None` when it is not there.
fn read_text(path: &Path) -> Result<Option<String>, ReplicationError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| failed(path, error))?,
    };
    let mut text = String::new();
    let read = file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| failed(path, error))?;
    Ok(Some(text))
}

pub(super) fn write_toml(
    directory: &Path,
    name: &str,
    value: &impl Serialize,
) -> Result<(), ReplicationError> {
    let path = directory.join(name);
    let text = toml::to_string(value).map_err(|error| failed(&path, error))?;
    replace_file(&path, text.as_bytes()).map_err(|error| unwritable(directory, &path, &error))
}
