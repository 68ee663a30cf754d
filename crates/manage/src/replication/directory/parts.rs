//! The files of a stream: parts of at most [`PART_BYTES`], each with a digest.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::super::ReplicationError;
use super::manifest::{Part, failed, file_number, unwritable};

/// Bytes of a part: FAT32 holds files below 4 GiB.
const PART_BYTES: u64 = 1 << 30;
/// Bytes that are read at a time.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The files of one stream, as it is written.
pub(super) struct PartWriter<'a> {
    pub(super) directory: &'a Path,
    pub(super) number: u64,
    pub(super) parts: Vec<Part>,
    pub(super) open: Option<(File, Part, blake3::Hasher)>,
}

pub(super) fn file_name(stream: u64, part: usize) -> String {
    format!("stream-{stream:06}.{part:03}")
}

pub(super) fn remove_part(directory: &Path, file: &str) {
    // What cannot be removed takes room, and is not looked at any more.
    if file_number(file).is_some() {
        let _ = fs::remove_file(directory.join(file));
    }
}

impl PartWriter<'_> {
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ReplicationError> {
        while !bytes.is_empty() {
            if self.open.is_none() {
                let file = file_name(self.number, self.parts.len());
                let path = self.directory.join(&file);
                let created = File::create(&path);
                let created = created.map_err(|error| unwritable(self.directory, &path, &error))?;
                let part = Part {
                    file,
                    bytes: 0,
                    digest: String::new(),
                };
                self.open = Some((created, part, blake3::Hasher::new()));
            }
            let (file, part, digest) = self.open.as_mut().expect("just opened");
            let room = usize::try_from(PART_BYTES - part.bytes).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            file.write_all(now).map_err(|error| {
                unwritable(self.directory, &self.directory.join(&part.file), &error)
            })?;
            digest.update(now);
            part.bytes += now.len() as u64;
            if part.bytes == PART_BYTES {
                self.end()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Ends the part that is open; it is on the disk when this returns.
    pub(super) fn end(&mut self) -> Result<(), ReplicationError> {
        let Some((file, mut part, digest)) = self.open.take() else {
            return Ok(());
        };
        part.digest = digest.finalize().to_hex().to_string();
        let path = self.directory.join(&part.file);
        self.parts.push(part);
        file.sync_all()
            .map_err(|error| unwritable(self.directory, &path, &error))
    }

    pub(super) fn remove(&mut self) {
        let open = self.open.take().map(|(_, part, _)| part);
        for part in self.parts.iter().chain(&open) {
            remove_part(self.directory, &part.file);
        }
    }
}
/// The files of one stream, as it is read.
pub(super) struct PartReader {
    pub(super) parts: std::vec::IntoIter<(PathBuf, Part)>,
    /// A part that was checked, and how much of it is left.
    pub(super) open: Option<(File, u64)>,
    pub(super) what: String,
}

impl PartReader {
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, ReplicationError> {
        loop {
            if let Some((file, left)) = &mut self.open {
                let wanted = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(CHUNK_BYTES);
                if wanted > 0 {
                    let mut chunk = vec![0; wanted];
                    let read = file.read_exact(&mut chunk);
                    read.map_err(|error| {
                        ReplicationError::Failed(format!("{}: {error}", self.what))
                    })?;
                    *left -= wanted as u64;
                    return Ok(Some(chunk));
                }
            }
            let Some((path, part)) = self.parts.next() else {
                return Ok(None);
            };
            self.open = Some((open_checked(&path, &part, &self.what)?, part.bytes));
        }
    }
}

/// Opens a part of a stream all of whose bytes are those that were written.
pub(super) fn open_checked(path: &Path, part: &Part, what: &str) -> Result<File, ReplicationError> {
    let opened = || File::open(path).map_err(|error| failed(path, error));
    let mut digest = blake3::Hasher::new();
    let mut file = opened()?.take(part.bytes);
    let read = io::copy(&mut file, &mut digest).map_err(|error| failed(path, error))?;
    let is_same = digest.finalize().to_hex().as_str() == part.digest;
    if read != part.bytes || !is_same {
        return Err(failed(
            path,
            format!("damaged: '{what}' cannot be received, export it again"),
        ));
    }
    opened()
}
