//! Reading a copy to its last byte, beside what it is a copy of.
//!
//! Both trees are walked at once, with a list of directories to do and not by recursion. What cannot be read or differs is taken down and the
//! next thing is read. What cannot be read at the source is no failure of the copy: it is compared as far as that goes.

use std::collections::BTreeMap;
use std::iter::Peekable;

use engine::{Attr, FileId, FileType, IoBuf, VolumeHandle};

use super::super::ReplicationError;
use super::files::{Child, Content, Files};
use super::{RestoreProgress, RestoredDataset};

/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// A volume's content is asked for without a number.
const VOLUME: FileId = FileId {
    object: 0,
    generation: 0,
};

/// A dataset that is being read.
pub(super) struct Reading<'a> {
    /// What was found of it.
    pub(super) tested: &'a mut RestoredDataset,
    /// Counts for those who watch, and says when to end.
    pub(super) progress: &'a RestoreProgress,
}

/// A directory to be read.
struct Directory {
    path: Vec<u8>,
    copy: FileId,
    source: Option<FileId>,
}

/// A file with several names is read once: by its number at the copy, the one at the source.
type Linked = BTreeMap<FileId, Option<FileId>>;

impl Reading<'_> {
    /// Returns what is read beside the copy; where it cannot be opened, why is taken down.
    pub(super) fn beside<T, E: std::fmt::Display>(
        &mut self,
        opened: Option<Result<T, E>>,
    ) -> Option<T> {
        match opened? {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.not_compared(&error.to_string());
                None
            }
        }
    }

    fn not_compared(&mut self, why: &str) {
        let why = format!("the source's snapshot cannot be read: {why}");
        self.tested.not_compared.get_or_insert(why);
    }

    fn check_cancelled(&self) -> Result<(), ReplicationError> {
        match self.progress.is_cancelled() {
            true => Err(ReplicationError::Cancelled),
            false => Ok(()),
        }
    }

    /// Reads a volume.
    pub(super) async fn volume(
        &mut self,
        copy: &VolumeHandle,
        source: Option<&VolumeHandle>,
    ) -> Result<(), ReplicationError> {
        let size = match copy.info().await {
            Ok(info) => info.size,
            Err(error) => {
                self.tested.fail(b"", &error.to_string());
                return Ok(());
            }
        };
        let original = match source {
            Some(source) => match source.info().await {
                Ok(info) => Some((source, info.size)),
                Err(error) => {
                    self.not_compared(&error.to_string());
                    None
                }
            },
            None => None,
        };
        if original.is_some_and(|(_, original)| original != size) {
            self.tested.fail(b"", "its size is not the source's");
        }
        let source = original.map(|(source, _)| (source as &dyn Content, VOLUME));
        self.content(b"", (copy, VOLUME), source, size).await
    }

    /// Reads a tree of files.
    pub(super) async fn tree(
        &mut self,
        copy: &dyn Files,
        source: Option<&dyn Files>,
    ) -> Result<(), ReplicationError> {
        let root = match copy.root().await {
            Ok(root) => root,
            Err(error) => {
                self.tested.fail(b"", &error);
                return Ok(());
            }
        };
        let original = match source {
            Some(source) => match source.root().await {
                Ok(root) => Some(root),
                Err(error) => {
                    self.not_compared(&error);
                    None
                }
            },
            None => None,
        };
        let mut linked = Linked::new();
        let sides = (copy, source);
        self.object(sides, b"/", &root, original.as_ref(), &mut linked)
            .await?;
        let mut directories = vec![Directory {
            path: Vec::new(),
            copy: root.id,
            source: original.map(|root| root.id),
        }];
        while let Some(directory) = directories.pop() {
            self.directory(sides, &directory, &mut linked, &mut directories)
                .await?;
        }
        Ok(())
    }

    async fn directory(
        &mut self,
        (copy, source): (&dyn Files, Option<&dyn Files>),
        directory: &Directory,
        linked: &mut Linked,
        below: &mut Vec<Directory>,
    ) -> Result<(), ReplicationError> {
        let children = match copy.children(directory.copy).await {
            Ok(children) => children,
            Err(error) => {
                let path = [&directory.path[..], b"/"].concat();
                self.tested
                    .fail(&path, &format!("its names cannot be read: {error}"));
                return Ok(());
            }
        };
        let originals = match (source, directory.source) {
            (Some(source), Some(id)) => match source.children(id).await {
                Ok(originals) => Some(originals),
                Err(error) => {
                    self.not_compared(&error);
                    None
                }
            },
            _ => None,
        };
        let is_compared = originals.is_some();
        let mut originals = originals.unwrap_or_default().into_iter().peekable();
        for (name, attr) in children {
            self.check_cancelled()?;
            let path = [&directory.path[..], b"/", &name].concat();
            self.missing(&mut originals, &directory.path, Some(&name));
            let original = originals.next_if(|(known, _)| *known == name);
            if is_compared && original.is_none() {
                self.tested.fail(&path, "the source does not have it");
            }
            let original = original
                .and_then(|(_, original)| original.map_err(|error| self.not_compared(&error)).ok());
            let attr = match attr {
                Ok(attr) => attr,
                Err(error) => {
                    self.tested.fail(&path, &error);
                    continue;
                }
            };
            self.object((copy, source), &path, &attr, original.as_ref(), linked)
                .await?;
            if attr.file_type == FileType::Directory {
                let original = original.filter(|one| one.file_type == FileType::Directory);
                below.push(Directory {
                    path,
                    copy: attr.id,
                    source: original.map(|one| one.id),
                });
            }
        }
        self.missing(&mut originals, &directory.path, None);
        Ok(())
    }

    /// Takes down what the source has before a name, or to the end, and the copy does not.
    fn missing(
        &mut self,
        originals: &mut Peekable<impl Iterator<Item = Child>>,
        directory: &[u8],
        before: Option<&[u8]>,
    ) {
        let is_before =
            |(name, _): &(Vec<u8>, _)| before.is_none_or(|before| name.as_slice() < before);
        while let Some((name, _)) = originals.next_if(is_before) {
            let path = [directory, b"/", &name].concat();
            self.tested.fail(&path, "it is missing: the source has it");
        }
    }

    /// Reads all that a file has but the names in a directory.
    async fn object(
        &mut self,
        (copy, source): (&dyn Files, Option<&dyn Files>),
        path: &[u8],
        attr: &Attr,
        original: Option<&Attr>,
        linked: &mut Linked,
    ) -> Result<(), ReplicationError> {
        let is_regular = attr.file_type == FileType::Regular;
        match is_regular {
            true => self.tested.files += 1,
            false => self.tested.others += 1,
        }
        self.progress.add_file();
        let beside = source.zip(original).map(|(source, one)| (source, one.id));
        if attr.links > 1 && attr.file_type != FileType::Directory {
            let id = original.map(|one| one.id);
            match linked.insert(attr.id, id) {
                Some(known) if known == id => return Ok(()),
                Some(_) => self
                    .tested
                    .fail(path, "its names are of other files at the source"),
                None => {}
            }
        }
        if let Some(difference) = original.and_then(|one| difference(attr, one)) {
            self.tested.fail(path, &difference);
        }
        let attributes = copy.attributes(attr.id).await;
        let expected = match beside {
            Some((source, id)) => Some(source.attributes(id).await),
            None => None,
        };
        self.compare(path, "extended attributes", attributes, expected);
        match attr.file_type {
            FileType::Symlink => {
                let target = copy.link(attr.id).await;
                let expected = match beside {
                    Some((source, id)) => Some(source.link(id).await),
                    None => None,
                };
                self.compare(path, "target", target, expected);
                Ok(())
            }
            FileType::Regular => {
                // What has another length differs already.
                let beside = beside.filter(|_| original.is_some_and(|one| one.size == attr.size));
                let source = beside.map(|(source, id)| (source as &dyn Content, id));
                self.content(path, (copy, attr.id), source, attr.size).await
            }
            _ => Ok(()),
        }
    }

    fn compare<T: PartialEq>(
        &mut self,
        path: &[u8],
        what: &str,
        found: Result<T, String>,
        expected: Option<Result<T, String>>,
    ) {
        match (found, expected) {
            (Err(error), _) => self
                .tested
                .fail(path, &format!("its {what} cannot be read: {error}")),
            (Ok(_), Some(Err(error))) => self.not_compared(&error),
            (Ok(found), Some(Ok(expected))) if found != expected => {
                let why = format!("its {what} differs from the source's");
                self.tested.fail(path, &why);
            }
            _ => {}
        }
    }

    /// Reads the data of a file or volume, without the holes that both sides have. A file that cannot be read, or differs, in many places is one
    /// failure, which names the first of them.
    async fn content(
        &mut self,
        path: &[u8],
        (copy, id): (&dyn Content, FileId),
        source: Option<(&dyn Content, FileId)>,
        size: u64,
    ) -> Result<(), ReplicationError> {
        let (mut at, mut failure, mut source) = (0, None, source);
        while at < size {
            self.check_cancelled()?;
            let first = match copy.data_from(id, at, size).await {
                Ok(first) => first,
                Err(error) => {
                    failure.get_or_insert((at, format!("cannot be read: {error}")));
                    break;
                }
            };
            let other = match source {
                Some((original, id)) => original.data_from(id, at, size).await,
                None => Ok(None),
            };
            let other = other.unwrap_or_else(|error| {
                self.not_compared(&error);
                source = None;
                None
            });
            let Some(start) = first.into_iter().chain(other).min() else {
                break;
            };
            // Chunks end where others do, so that each block is read once.
            let end = (start / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let len = usize::try_from(end.min(size) - start).unwrap_or(0);
            let beside = async {
                match source {
                    Some((source, id)) => Some(source.read(id, start, len).await),
                    None => None,
                }
            };
            let (read, expected) =
                futures_util::future::join(copy.read(id, start, len), beside).await;
            match (read, expected) {
                (Err(error), _) => {
                    failure.get_or_insert((start, format!("cannot be read: {error}")));
                }
                (Ok(read), expected) => {
                    let bytes = read.iter().map(|piece| piece.len() as u64).sum();
                    self.tested.bytes += bytes;
                    self.progress.add_bytes(bytes);
                    match expected {
                        Some(Err(error)) => self.not_compared(&error),
                        Some(Ok(expected)) if !is_equal(&read, &expected) => {
                            failure.get_or_insert((start, "differ from the source's".to_owned()));
                        }
                        _ => {}
                    }
                }
            }
            at = start + len as u64;
        }
        if let Some((at, why)) = failure {
            self.tested.fail(path, &format!("bytes from {at} on {why}"));
        }
        Ok(())
    }
}

/// Says in what the attributes of a copy differ from those of its source.
fn difference(copy: &Attr, source: &Attr) -> Option<String> {
    let is_directory = copy.file_type == FileType::Directory;
    let pairs = [
        ("type", copy.file_type == source.file_type),
        ("mode", copy.mode == source.mode),
        ("owner", (copy.uid, copy.gid) == (source.uid, source.gid)),
        ("size", is_directory || copy.size == source.size),
        ("device number", copy.rdev == source.rdev),
        ("time of change", copy.mtime == source.mtime),
        ("project", copy.project == source.project),
    ];
    let names: Vec<&str> = pairs
        .into_iter()
        .filter(|(_, is_equal)| !is_equal)
        .map(|(name, _)| name)
        .collect();
    (!names.is_empty()).then(|| format!("its {} differs from the source's", names.join(", its ")))
}

/// Whether pieces hold the same bytes, wherever they are split.
fn is_equal(one: &[IoBuf], other: &[IoBuf]) -> bool {
    let (mut one, mut other) = (one.iter(), other.iter());
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        while left.is_empty() {
            match one.next() {
                Some(piece) => left = piece,
                None => return right.is_empty() && other.all(|piece| piece.is_empty()),
            }
        }
        while right.is_empty() {
            match other.next() {
                Some(piece) => right = piece,
                None => return false,
            }
        }
        let len = left.len().min(right.len());
        if left[..len] != right[..len] {
            return false;
        }
        (left, right) = (&left[len..], &right[len..]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::Answer;
    use super::*;
    use engine::{DeviceNumber, Timestamp};
    use futures_util::FutureExt as _;

    /// A directory with files, by name: attributes and content. Content that begins with '!' cannot be read.
    struct Tree(Vec<(&'static str, Attr, Vec<u8>)>);

    fn attr(object: u64, file_type: FileType, size: u64) -> Attr {
        let time = Timestamp {
            seconds: 1,
            nanoseconds: 0,
        };
        Attr {
            id: FileId {
                object,
                generation: 0,
            },
            file_type,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size,
            used: 0,
            rdev: DeviceNumber { major: 0, minor: 0 },
            block_size: 512,
            fsid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            change: 0,
            flags: 0,
            project: 0,
            parent: 0,
        }
    }

    fn tree(files: &[(&'static str, &str)]) -> Tree {
        let file = |(at, (name, content)): (usize, &(&'static str, &str))| {
            let attr = attr(at as u64 + 1, FileType::Regular, content.len() as u64);
            (*name, attr, content.as_bytes().to_vec())
        };
        Tree(files.iter().enumerate().map(file).collect())
    }

    fn now<'a, T: Send + 'a>(answer: Result<T, String>) -> Answer<'a, T> {
        futures_util::future::ready(answer).boxed()
    }

    impl Tree {
        fn content_of(&self, id: FileId) -> &[u8] {
            let found = self.0.iter().find(|(_, attr, _)| attr.id == id);
            &found.expect("a file").2
        }
    }

    impl Content for Tree {
        fn data_from(&self, _id: FileId, offset: u64, size: u64) -> Answer<'_, Option<u64>> {
            now(Ok((offset < size).then_some(offset)))
        }

        fn read(&self, id: FileId, offset: u64, len: usize) -> Answer<'_, Vec<IoBuf>> {
            let content = self.content_of(id);
            if content.starts_with(b"!") {
                return now(Err("input/output error".to_owned()));
            }
            let start = usize::try_from(offset).expect("small");
            now(Ok(vec![IoBuf::from(content[start..start + len].to_vec())]))
        }
    }

    impl Files for Tree {
        fn root(&self) -> Answer<'_, Attr> {
            now(Ok(attr(1000, FileType::Directory, 2)))
        }

        fn children(&self, _directory: FileId) -> Answer<'_, Vec<Child>> {
            let entry = |(name, attr, _): &(&str, Attr, Vec<u8>)| {
                let found = match name.starts_with('?') {
                    true => Err("bad dnode".to_owned()),
                    false => Ok(attr.clone()),
                };
                (name.as_bytes().to_vec(), found)
            };
            now(Ok(self.0.iter().map(entry).collect()))
        }

        fn link(&self, _id: FileId) -> Answer<'_, Vec<u8>> {
            now(Ok(Vec::new()))
        }

        fn attributes(&self, _id: FileId) -> Answer<'_, Vec<(Vec<u8>, Vec<u8>)>> {
            now(Ok(Vec::new()))
        }
    }

    /// What reading a copy finds: each failure in a line.
    fn found(copy: &Tree, source: Option<&Tree>) -> (RestoredDataset, String) {
        let progress = RestoreProgress::default();
        let mut tested = RestoredDataset::new("back/a");
        let mut reading = Reading {
            tested: &mut tested,
            progress: &progress,
        };
        let source = source.map(|source| source as &dyn Files);
        let read = reading.tree(copy, source).now_or_never();
        read.expect("nothing waits").expect("not cancelled");
        let lines = tested.failures.iter();
        let lines = lines.map(|failure| format!("{}: {}\n", failure.path, failure.why));
        let lines = lines.collect();
        (tested, lines)
    }

    #[test]
    fn a_copy_is_held_against_its_source() {
        let source = tree(&[("a", "one"), ("b", "two"), ("d", "four")]);
        let (tested, failures) = found(&source, Some(&source));
        assert_eq!(failures, "");
        assert_eq!((tested.files, tested.others, tested.bytes), (3, 1, 10));
        assert_eq!(tested.not_compared, None);
        // One with other bytes, one that is missing, one too many.
        let mut copy = tree(&[("a", "0ne"), ("c", "x"), ("d", "four")]);
        let (tested, failures) = found(&copy, Some(&source));
        assert_eq!(
            failures,
            "/a: bytes from 0 on differ from the source's\n/b: it is missing: the source has it\n/c: the source does not have it\n"
        );
        assert_eq!(tested.failed, 3);
        copy.0[0].1.mode = 0o600;
        let (_, failures) = found(&copy, Some(&source));
        assert!(
            failures.starts_with("/a: its mode differs from the source's\n/a: bytes"),
            "{failures}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_read() {
        let copy = tree(&[("?a", ""), ("b", "!"), ("c", "three")]);
        let (tested, failures) = found(&copy, None);
        assert_eq!(
            failures,
            "/?a: bad dnode\n/b: bytes from 0 on cannot be read: input/output error\n"
        );
        assert_eq!((tested.files, tested.bytes), (2, 5));
        // What the source cannot give is no failure of the copy, and said.
        let (copy, source) = (tree(&[("a", "one")]), tree(&[("a", "!ne")]));
        let (tested, failures) = found(&copy, Some(&source));
        assert_eq!(failures, "");
        assert_eq!(
            tested.not_compared.as_deref(),
            Some("the source's snapshot cannot be read: input/output error")
        );
    }

    #[test]
    fn bytes_are_the_same_wherever_they_are_split() {
        let pieces = |texts: &[&str]| -> Vec<IoBuf> {
            let piece = |text: &&str| IoBuf::from(text.as_bytes().to_vec());
            texts.iter().map(piece).collect()
        };
        let one = pieces(&["ab", "", "cde"]);
        assert!(is_equal(&one, &pieces(&["a", "bcd", "e"])));
        assert!(!is_equal(&one, &pieces(&["abcd"])));
        assert!(!is_equal(&one, &pieces(&["abcdef"])));
        assert!(!is_equal(&one, &pieces(&["abcdx"])));
    }
}
