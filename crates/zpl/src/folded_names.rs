//! The hashes of the names of directories in upper case: whether a directory may have a name without regard to case.
//!
//! Bounded: the directory that was asked about longest ago makes room.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use crate::FileId;

/// Names of all directories, some 16 to 32 bytes each, and directories.
pub(crate) const NAMES_MAX: usize = 1 << 18;
const DIRECTORIES_MAX: usize = 64;
/// What names are hashed with: any number but 0.
const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hashes of one directory's names, with how many names have each.
#[derive(Debug, Default)]
pub(crate) struct FoldedDirectory {
    hashes: BTreeMap<u64, u32>,
    names: usize,
}

impl FoldedDirectory {
    pub(crate) fn add(&mut self, folded: &[u8]) {
        *self.hashes.entry(hash(folded)).or_default() += 1;
        self.names += 1;
    }

    pub(crate) fn remove(&mut self, folded: &[u8]) {
        let hash = hash(folded);
        if let Some(count) = self.hashes.get_mut(&hash) {
            *count -= 1;
            self.names -= 1;
            if *count == 0 {
                self.hashes.remove(&hash);
            }
        }
    }
}

/// See the module: the directory that was asked about last is the last one.
#[derive(Debug, Default)]
pub(crate) struct FoldedNames(RefCell<VecDeque<(FileId, FoldedDirectory)>>);

impl FoldedNames {
    /// Takes note of a change of a directory, if it is known; of one that failed half-way, what it left is not.
    pub(crate) fn note(&self, dir: FileId, done: bool, change: impl FnOnce(&mut FoldedDirectory)) {
        if !done {
            return self.forget(dir);
        }
        let mut directories = self.0.borrow_mut();
        if let Some((_, known)) = directories.iter_mut().rev().find(|(id, _)| *id == dir) {
            change(known);
        }
    }

    /// Returns whether a directory may have a name; `None` of a directory that is not known.
    pub(crate) fn may_have(&self, dir: FileId, folded: &[u8]) -> Option<bool> {
        let mut directories = self.0.borrow_mut();
        let at = directories.iter().rposition(|(id, _)| *id == dir)?;
        let known = directories.remove(at)?;
        let has = known.1.hashes.contains_key(&hash(folded));
        directories.push_back(known);
        Some(has)
    }

    pub(crate) fn forget(&self, dir: FileId) {
        self.0.borrow_mut().retain(|(id, _)| *id != dir);
    }

    pub(crate) fn put(&self, dir: FileId, names: FoldedDirectory) {
        self.forget(dir);
        let mut directories = self.0.borrow_mut();
        directories.push_back((dir, names));
        let total = |all: &VecDeque<(FileId, FoldedDirectory)>| {
            all.iter().map(|(_, known)| known.names).sum::<usize>()
        };
        while directories.len() > DIRECTORIES_MAX || total(&directories) > NAMES_MAX {
            directories.pop_front();
        }
    }
}

fn hash(folded: &[u8]) -> u64 {
    ondisk::zap::hash(SALT, folded, 0)
}
