//! Reading ZAPs whole, checking their structure on the way.

use std::collections::BTreeMap;

use ondisk::bytes;
use ondisk::zap::{self, BlockKind, FatHeader, Leaf, micro, zap_flags};

use super::blocks::Checker;
use super::objset::Tree;
use super::report::Kind;

/// A ZAP.
#[derive(Debug, Default)]
pub(super) struct Zap {
    /// By name (without NUL); integer keys as big-endian bytes.
    pub(super) entries: BTreeMap<Vec<u8>, Value>,
    pub(super) norm_flags: u64,
}

/// A value: its integers and their size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) int_size: u8,
    pub(super) ints: Vec<u64>,
}

impl Zap {
    /// The single integer under a name.
    pub(super) fn u64(&self, name: &str) -> Option<u64> {
        match self.entries.get(name.as_bytes())?.ints.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The bytes under a name.
    pub(super) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let value = self
            .entries
            .get(name.as_bytes())
            .filter(|v| v.int_size == 1)?;
        Some(value.ints.iter().map(|i| bytes::low8(*i)).collect())
    }

    /// Names (lossily) with single integers.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.entries
            .iter()
            .filter_map(|(k, v)| Some((String::from_utf8_lossy(k).into_owned(), *v.ints.first()?)))
    }
}

impl Checker<'_> {
    /// Reads the ZAP `object`; `None` when it does not exist or cannot be read. Faults are reported.
    pub(super) fn read_zap(&mut self, tree: &Tree, object: u64) -> Option<Zap> {
        let what = format!("objset {} object {object}", tree.id);
        let blocks = self.object_blocks(tree, object);
        let Some(first) = blocks.get(&0).cloned() else {
            self.report
                .error(Kind::Zap, format!("{what}: no first block of a ZAP"));
            return None;
        };
        match zap::block_kind(&first) {
            Some(BlockKind::Micro) => {
                if blocks.len() > 1 {
                    self.report.error(
                        Kind::Zap,
                        format!("{what}: a microzap of {} blocks", blocks.len()),
                    );
                }
                Some(self.read_micro(&first, &what))
            }
            Some(BlockKind::FatHeader) => self.read_fat(&blocks, &what),
            _ => {
                self.report.error(Kind::Zap, format!("{what}: not a ZAP"));
                None
            }
        }
    }

    fn read_micro(&mut self, block: &[u8], what: &str) -> Zap {
        let (salt, norm_flags) = micro::header(block).unwrap_or((0, 0));
        if salt == 0 {
            self.report.error(Kind::Zap, format!("{what}: salt is 0"));
        }
        let mut out = Zap {
            norm_flags,
            ..Zap::default()
        };
        let mut differentiators = BTreeMap::new();
        for e in micro::entries(block) {
            let name = String::from_utf8_lossy(e.name).into_owned();
            let hash = zap::hash(salt, &zap::normalize(e.name, norm_flags), 0);
            if differentiators.insert((hash, e.cd), ()).is_some() {
                self.report.error(
                    Kind::Zap,
                    format!("{what}: differentiator of {name:?} is not unique"),
                );
            }
            let value = Value {
                int_size: 8,
                ints: vec![e.value],
            };
            if out.entries.insert(e.name.to_vec(), value).is_some() {
                self.report
                    .error(Kind::Zap, format!("{what}: {name:?} is there twice"));
            }
        }
        out
    }

    fn read_fat(
        &mut self,
        blocks: &BTreeMap<u64, std::rc::Rc<Vec<u8>>>,
        what: &str,
    ) -> Option<Zap> {
        let first = blocks.get(&0)?;
        let header = match FatHeader::decode(first) {
            Ok(h) => h,
            Err(e) => {
                self.report.error(Kind::Zap, format!("{what}: {e}"));
                return None;
            }
        };
        let table = pointer_table(&header, blocks);
        let mut out = Zap {
            norm_flags: header.norm_flags,
            ..Zap::default()
        };
        let mut leaves: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (i, leaf) in (0u64..).zip(&table) {
            leaves
                .entry(*leaf)
                .and_modify(|r| r.1 = i)
                .or_insert((i, i));
        }
        let mut entries = 0;
        for (number, (from, to)) in &leaves {
            let Some(block) = blocks.get(number) else {
                self.report.error(
                    Kind::Zap,
                    format!("{what}: the table points to block {number}, a hole"),
                );
                continue;
            };
            match self.read_leaf(block, &header, &mut out, what) {
                Ok((count, prefix, prefix_len)) => {
                    entries += count;
                    let shift = header.pointer_table.shift;
                    let width = shift.saturating_sub(prefix_len);
                    let span = (prefix << width, ((prefix + 1) << width).wrapping_sub(1));
                    if prefix_len > shift || span != (*from, *to) {
                        let text = format!(
                            "{what}: leaf {number} covers {span:?}, the table has it at {from}..={to}"
                        );
                        self.report.error(Kind::Zap, text);
                    }
                }
                Err(e) => self
                    .report
                    .error(Kind::Zap, format!("{what}: leaf {number}: {e}")),
            }
            if *number >= header.free_block {
                self.report.error(
                    Kind::Zap,
                    format!("{what}: leaf {number} is beyond the last used block"),
                );
            }
        }
        if leaves.len() as u64 != header.leaf_count || entries != header.entry_count {
            let text = format!(
                "{what}: header says {} leaves and {} entries, there are {} and {entries}",
                header.leaf_count,
                header.entry_count,
                leaves.len()
            );
            self.report.error(Kind::Zap, text);
        }
        if header.salt == 0 {
            self.report.error(Kind::Zap, format!("{what}: salt is 0"));
        }
        Some(out)
    }

    /// Reads one leaf into `out`; returns its entries, prefix and prefix length.
    fn read_leaf(
        &mut self,
        block: &[u8],
        header: &FatHeader,
        out: &mut Zap,
        what: &str,
    ) -> ondisk::Result<(u64, u64, u64)> {
        let leaf = Leaf::open(block)?;
        let words = header.flags & zap_flags::UINT64_KEY != 0;
        let key_size = if words { 8 } else { 1 };
        leaf.check(key_size)?;
        let entries = leaf.entries()?;
        for e in &entries {
            let mut name = leaf.name(e, key_size)?;
            let hash = if words {
                let key: Vec<u64> = name
                    .chunks_exact(8)
                    .map(|c| bytes::u64_at(c, 0).swap_bytes())
                    .collect();
                zap::hash_words(header.salt, &key, header.flags)
            } else {
                if name.pop() != Some(0) {
                    self.report
                        .error(Kind::Zap, format!("{what}: a name does not end in NUL"));
                }
                zap::hash(
                    header.salt,
                    &zap::normalize(&name, header.norm_flags),
                    header.flags,
                )
            };
            if hash != e.hash {
                let text = format!(
                    "{what}: hash of {:?} is not right",
                    String::from_utf8_lossy(&name)
                );
                self.report.error(Kind::Zap, text);
            }
            let raw = leaf.value(e)?;
            let ints = raw
                .chunks_exact(usize::from(e.value_int_size))
                .map(big_endian)
                .collect();
            let shown = String::from_utf8_lossy(&name).into_owned();
            if out
                .entries
                .insert(
                    name,
                    Value {
                        int_size: e.value_int_size,
                        ints,
                    },
                )
                .is_some()
            {
                self.report
                    .error(Kind::Zap, format!("{what}: {shown:?} is there twice"));
            }
        }
        Ok((
            entries.len() as u64,
            leaf.prefix(),
            u64::from(leaf.prefix_len()),
        ))
    }
}

fn big_endian(chunk: &[u8]) -> u64 {
    chunk.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

fn pointer_table(header: &FatHeader, blocks: &BTreeMap<u64, std::rc::Rc<Vec<u8>>>) -> Vec<u64> {
    let table = &header.pointer_table;
    let entries = bytes::index(1 << table.shift.min(40));
    if table.blocks == 0 {
        let Some(first) = blocks.get(&0) else {
            return Vec::new();
        };
        return (0..entries as u64)
            .map(|i| FatHeader::embedded_entry(first, i))
            .collect();
    }
    let mut out = Vec::new();
    for number in table.block..table.block.saturating_add(table.blocks) {
        let Some(block) = blocks.get(&number) else {
            break;
        };
        out.extend(bytes::u64s(block));
        if out.len() >= entries {
            break;
        }
    }
    out.truncate(entries);
    out
}
