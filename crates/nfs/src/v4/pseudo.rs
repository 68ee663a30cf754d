//! The pseudo file system (RFC 7530, section 7): one tree from `/` down to every share, made of directories that lead there.
//!
//! A node of the tree is the root of a share, or a directory that is not stored and holds nothing but the names on the way to
//! shares below it. Within a share, a name in its root directory that leads to other shares does so whatever is stored under
//! that name. Nodes are named by a number made of their path, so that handles stay good over restarts.

use std::collections::BTreeMap;

/// The number of a node.
pub(crate) type NodeId = u64;

/// A node of the tree.
#[derive(Debug, Default)]
pub(crate) struct PseudoNode {
    /// The node above; of `/` itself.
    pub(crate) parent: NodeId,
    /// Names in it, and the nodes they lead to.
    pub(crate) children: BTreeMap<Vec<u8>, NodeId>,
    /// The guid of the share whose root this is.
    pub(crate) export: Option<u64>,
}

/// The tree over all shares.
#[derive(Debug, Default)]
pub(crate) struct PseudoTree {
    nodes: BTreeMap<NodeId, PseudoNode>,
    by_export: BTreeMap<u64, NodeId>,
}

impl PseudoTree {
    /// Makes the tree of shares, each by its guid and path.
    pub(crate) fn new<'a>(shares: impl Iterator<Item = (u64, &'a str)>) -> Self {
        let mut tree = Self::default();
        tree.nodes.insert(Self::ROOT, PseudoNode::default());
        if let Some(root) = tree.nodes.get_mut(&Self::ROOT) {
            root.parent = Self::ROOT;
        }
        for (guid, path) in shares {
            let mut at = Self::ROOT;
            for name in path.split('/').filter(|name| !name.is_empty()) {
                let below = number(at, name.as_bytes());
                tree.nodes.entry(below).or_insert_with(|| PseudoNode {
                    parent: at,
                    ..PseudoNode::default()
                });
                if let Some(node) = tree.nodes.get_mut(&at) {
                    node.children.insert(name.as_bytes().to_vec(), below);
                }
                at = below;
            }
            if let Some(node) = tree.nodes.get_mut(&at) {
                node.export = Some(guid);
            }
            tree.by_export.insert(guid, at);
        }
        tree
    }

    /// The number of `/` (FNV-1a's start).
    pub(crate) const ROOT: NodeId = 0xcbf2_9ce4_8422_2325;

    /// Returns a node.
    pub(crate) fn node(&self, id: NodeId) -> Option<&PseudoNode> {
        self.nodes.get(&id)
    }

    /// Returns the node that is the root of a share.
    pub(crate) fn of_export(&self, guid: u64) -> Option<(NodeId, &PseudoNode)> {
        let id = self.by_export.get(&guid)?;
        Some((*id, self.nodes.get(id)?))
    }

    /// Returns whether a share at a node or below it is one that `allowed` says may be used.
    pub(crate) fn leads_to(&self, id: NodeId, allowed: &impl Fn(u64) -> bool) -> bool {
        let mut rest = vec![id];
        while let Some(id) = rest.pop() {
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            if node.export.is_some_and(allowed) {
                return true;
            }
            rest.extend(node.children.values());
        }
        false
    }
}

/// Continues FNV-1a from the number of the directory over a name.
fn number(above: NodeId, name: &[u8]) -> NodeId {
    std::iter::once(&b'/')
        .chain(name)
        .fold(above, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_reached_from_the_root_and_knows_the_way_up() {
        let shares = [(1, "/tank"), (2, "/tank/a"), (3, "/srv/x/y")];
        let tree = PseudoTree::new(shares.into_iter());
        let walk = |path: &[&str]| {
            let step =
                |at: NodeId, name: &&str| tree.node(at)?.children.get(name.as_bytes()).copied();
            path.iter().try_fold(PseudoTree::ROOT, step)
        };
        for (guid, path) in shares {
            let names: Vec<&str> = path.split('/').skip(1).collect();
            let found = walk(&names).expect(path);
            assert_eq!(tree.node(found).and_then(|n| n.export), Some(guid));
            let mut up = found;
            for _ in &names {
                up = tree.node(up).expect("a parent").parent;
            }
            assert_eq!(up, PseudoTree::ROOT);
        }
        assert_eq!(walk(&["srv"]).and_then(|id| tree.node(id)?.export), None);
        assert_eq!(walk(&["tank", "b"]), None);
        assert!(tree.leads_to(PseudoTree::ROOT, &|guid| guid == 3));
        let srv = walk(&["srv"]).expect("on the way");
        assert!(!tree.leads_to(srv, &|guid| guid == 2));
    }

    #[test]
    fn a_share_of_the_root_is_the_root() {
        let tree = PseudoTree::new([(7, "/")].into_iter());
        assert_eq!(tree.node(PseudoTree::ROOT).and_then(|n| n.export), Some(7));
    }
}
