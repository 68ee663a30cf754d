//! The files the kernel knows: which generation each inode number stands for, and how often it was looked up.

use engine::FileId;
use std::collections::BTreeMap;

/// The kernel's number of the root directory.
pub(super) const ROOT: u64 = 1;

#[derive(Debug, Clone, Copy)]
struct Node {
    generation: u64,
    lookups: u64,
}

/// Inode numbers in the kernel's hands. Bounded by the kernel's own cache: it tells when it forgets one.
#[derive(Debug)]
pub(super) struct Nodes {
    root: FileId,
    known: BTreeMap<u64, Node>,
}

impl Nodes {
    pub(super) fn new(root: FileId) -> Self {
        Self {
            root,
            known: BTreeMap::new(),
        }
    }

    /// Returns the inode number of a file.
    pub(super) fn number(&self, id: FileId) -> u64 {
        if id == self.root { ROOT } else { id.object }
    }

    /// Takes note that the kernel learned of a file once more; returns its inode number.
    pub(super) fn learn(&mut self, id: FileId) -> u64 {
        let number = self.number(id);
        if number != ROOT {
            let node = self.known.entry(number).or_insert(Node {
                generation: 0,
                lookups: 0,
            });
            // A reused number: the kernel drops the old inode when it sees the new generation, and forgets both.
            node.generation = id.generation;
            node.lookups += 1;
        }
        number
    }

    /// Takes note that the kernel forgot `count` of the lookups.
    pub(super) fn forget(&mut self, number: u64, count: u64) {
        if let Some(node) = self.known.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups == 0 {
                self.known.remove(&number);
            }
        }
    }

    /// Returns the file of an inode number, or `None` when the kernel should not know it.
    pub(super) fn id(&self, number: u64) -> Option<FileId> {
        if number == ROOT {
            return Some(self.root);
        }
        let node = self.known.get(&number)?;
        Some(FileId {
            object: number,
            generation: node.generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_number_stands_for_the_new_file_until_all_lookups_are_forgotten() {
        let id = |object, generation| FileId { object, generation };
        let mut nodes = Nodes::new(id(34, 4));
        assert_eq!(
            (nodes.learn(id(34, 4)), nodes.id(ROOT)),
            (ROOT, Some(id(34, 4)))
        );
        nodes.learn(id(7, 10));
        nodes.learn(id(7, 11));
        assert_eq!(nodes.id(7), Some(id(7, 11)));
        nodes.forget(7, 1);
        assert_eq!(nodes.id(7), Some(id(7, 11)));
        nodes.forget(7, 1);
        assert_eq!(nodes.id(7), None);
    }
}
