//! Changes blocks of a pool and computes every checksum above them anew, up to the uberblock: a pool made to harm.
//!
//! The changed blocks get new places at the end of the disk, uncompressed, so that anything fits. Knows pools of one top-level
//! vdev, a disk or a mirror.

use codec::{checksum, compress};
use ondisk::{
    BlockPointer, ChecksumKind, Compression, DnodePhys, Dva, NvList, ObjectType, Uberblock, bytes,
    label,
};
use world::{Image, Rng};

/// Bytes at the end of a disk that new blocks are put into.
const SCRATCH_BYTES: u64 = 24 << 20;
/// In a dataset's bonus, where the pointer to its objects is.
const DATASET_ROOT: usize = 128;
/// Numbers that are the edge of something.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x1ff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 48,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// A block on the way from the uberblock down.
struct Step {
    bp: BlockPointer,
    content: Vec<u8>,
    /// Where in the block above its pointer is.
    at: usize,
}

/// A pool under the knife.
pub(super) struct Patient {
    pub(super) images: Vec<Image>,
    ashift: u64,
    uberblock: Uberblock,
    free: u64,
}

impl Patient {
    /// Takes the disks of an exported pool; `None` when there is no uberblock.
    pub(super) fn open(images: Vec<Image>) -> Option<Self> {
        let first = images.first()?;
        let mut text = vec![0; label::NVLIST.1];
        first.read(label::NVLIST.0, &mut text);
        let config = NvList::decode(&text).ok()?;
        let ashift = config.list("vdev_tree")?.u64("ashift")?;
        let mut ring = vec![0; label::RING.1];
        first.read(label::RING.0, &mut ring);
        let uberblock = ring
            .chunks(label::uberblock_slot_size(ashift))
            .filter_map(|slot| Uberblock::decode(slot).ok())
            .max_by(Uberblock::cmp_currency)?;
        let end = label::usable_size(first.size()).checked_sub(label::DATA_START)?;
        Some(Self {
            ashift,
            uberblock,
            free: end.checked_sub(SCRATCH_BYTES)? & !0xffff,
            images,
        })
    }

    /// Does harm somewhere, and says where.
    pub(super) fn harm(&mut self, rng: &mut Rng) -> String {
        match rng.below(24) {
            0 => self.harm_label(rng),
            1 => self.harm_uberblock(rng),
            _ => self.harm_block(rng),
        }
    }

    /// Changes a number or a byte of the configuration in all labels.
    fn harm_label(&mut self, rng: &mut Rng) -> String {
        let at = rng.below(3000);
        let change = rng.next_u64();
        let wide = rng.coin();
        let edge = *rng.choose(&EDGES);
        for image in &mut self.images {
            for which in 0..label::LABEL_COUNT {
                let Some(base) = label::label_offset(image.size(), which) else {
                    continue;
                };
                let place = base + label::NVLIST.0;
                let mut block = vec![0; label::NVLIST.1];
                image.read(place, &mut block);
                let index = bytes::index(at);
                if wide {
                    // XDR: numbers are big-endian and aligned to four.
                    let index = index & !3;
                    block[index..index + 8].copy_from_slice(&edge.to_be_bytes());
                } else {
                    block[index] ^= u8::try_from(change & 0xff).expect("eight bits") | 1;
                }
                label::set_checksum(&mut block, label::label_verifier(place), checksum::sha256);
                image.write(place, &block);
            }
        }
        format!("label byte {at}")
    }

    fn harm_uberblock(&mut self, rng: &mut Rng) -> String {
        let mut text = vec![0; Uberblock::SIZE];
        self.uberblock.encode(&mut text);
        // Not the magic number: it would be no uberblock.
        let word = 1 + rng.index(Uberblock::SIZE / 8 - 1);
        let edge = *rng.choose(&EDGES);
        let old = u64_at(&text, word * 8);
        let new = if rng.coin() {
            edge
        } else {
            old ^ (1 << rng.below(64))
        };
        text[word * 8..word * 8 + 8].copy_from_slice(&new.to_le_bytes());
        self.checksum_uberblocks(&text);
        if let Ok(changed) = Uberblock::decode(&text) {
            self.uberblock = changed;
        }
        format!("uberblock word {word}")
    }

    fn harm_block(&mut self, rng: &mut Rng) -> String {
        let root = self.uberblock.rootbp;
        let Some(content) = self.read(&root) else {
            return "the root cannot be read".to_owned();
        };
        let mut path = vec![Step {
            bp: root,
            content,
            at: 0,
        }];
        let stop_one_in = 6 + rng.below(20);
        while rng.below(stop_one_in) != 0 {
            let last = path.last().expect("never empty");
            let children = pointers(&last.bp, &last.content);
            if children.is_empty() {
                break;
            }
            let at = *rng.choose(&children);
            let Ok(bp) = BlockPointer::decode(&last.content[at..]) else {
                break;
            };
            let Some(content) = self.read(&bp) else {
                break;
            };
            path.push(Step { bp, content, at });
        }
        let above: Vec<BlockPointer> = path.iter().map(|step| step.bp).collect();
        let last = path.last_mut().expect("never empty");
        let what = injure(&last.bp, &mut last.content, &above, rng);
        let text = format!(
            "{what} in {} level {}",
            last.bp.object_type(),
            last.bp.level()
        );
        // Up again: each block gets a new place, each pointer above it a new checksum.
        while let Some(step) = path.pop() {
            let new = self.write(&step.bp, &step.content);
            match path.last_mut() {
                Some(parent) => new.encode_into(&mut parent.content[step.at..]),
                None => self.uberblock.rootbp = new,
            }
        }
        let mut ub = vec![0; Uberblock::SIZE];
        self.uberblock.encode(&mut ub);
        self.checksum_uberblocks(&ub);
        text
    }

    /// The logical bytes of a block, when they can be had.
    fn read(&self, bp: &BlockPointer) -> Option<Vec<u8>> {
        if bp.is_hole() || bp.is_redacted() || bp.check().is_err() {
            return None;
        }
        let stored = if bp.is_embedded() {
            bp.embedded_payload()
        } else {
            let dva = bp.dvas()[0];
            if dva.gang || dva.vdev != 0 {
                return None;
            }
            let at = dva.offset.checked_add(label::DATA_START)?;
            let image = self.images.first()?;
            if at.checked_add(bp.psize())? > image.size() {
                return None;
            }
            let mut stored = vec![0; bytes::index(bp.psize())];
            image.read(at, &mut stored);
            stored
        };
        match bp.compression() {
            Compression::OFF => Some(stored),
            Compression::LZ4 => {
                compress::decompress(compress::Algorithm::Lz4, &stored, bytes::index(bp.lsize()))
                    .ok()
            }
            _ => None,
        }
    }

    /// Stores a block at a new place; the pointer to it.
    fn write(&mut self, bp: &BlockPointer, content: &[u8]) -> BlockPointer {
        let offset = self.free;
        let sector = 1 << self.ashift;
        let stored = bytes::index((content.len() as u64).next_multiple_of(sector));
        let mut data = content.to_vec();
        data.resize(stored, 0);
        self.free += stored as u64;
        for image in &mut self.images {
            if offset + label::DATA_START + stored as u64 <= image.size() - label::END_RESERVED {
                image.write(offset + label::DATA_START, &data);
            }
        }
        let mut new;
        if bp.is_embedded() {
            // What was embedded becomes an ordinary block, little-endian.
            let mut words = *BlockPointer::HOLE.words();
            words[6] = 1 << 63;
            new = BlockPointer::from_words(words);
            new.set_object_type(bp.object_type());
            new.set_level(bp.level());
            new.set_birth(bp.birth());
            new.set_fill(1);
        } else {
            // Level, type and births stay.
            let mut words = *bp.words();
            words[0..6].fill(0);
            new = BlockPointer::from_words(words);
        }
        new.set_dva(
            0,
            Dva {
                vdev: 0,
                offset,
                asize: stored as u64,
                ..Dva::ABSENT
            },
        );
        let sectors = (content.len() as u64).next_multiple_of(512);
        new.set_lsize(sectors);
        new.set_psize(sectors);
        data.truncate(bytes::index(sectors));
        new.set_compression(Compression::OFF);
        let sum = if bp.checksum_kind() == ChecksumKind::SHA256 {
            checksum::sha256(&data)
        } else {
            new.set_checksum_kind(ChecksumKind::FLETCHER4);
            checksum::fletcher4(&data)
        };
        new.set_checksum(sum);
        new
    }

    /// Puts an uberblock where the newest one is.
    fn checksum_uberblocks(&mut self, text: &[u8]) {
        let size = label::uberblock_slot_size(self.ashift);
        let slots = label::uberblock_slots(self.ashift) as u64;
        let txg = self.uberblock.txg;
        for image in &mut self.images {
            for which in 0..label::LABEL_COUNT {
                let Some(base) = label::label_offset(image.size(), which) else {
                    continue;
                };
                for slot in 0..slots {
                    let at = base + label::RING.0 + slot * size as u64;
                    let mut block = vec![0; size];
                    image.read(at, &mut block);
                    if Uberblock::decode(&block).is_ok_and(|found| found.txg == txg) {
                        block[..text.len()].copy_from_slice(text);
                        label::set_checksum(
                            &mut block,
                            label::label_verifier(at),
                            checksum::sha256,
                        );
                        image.write(at, &block);
                    }
                }
            }
        }
    }
}

/// Where pointers to other blocks are in a block.
fn pointers(bp: &BlockPointer, content: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    if bp.level() > 0 {
        found.extend((0..content.len() / BlockPointer::SIZE).map(|i| i * BlockPointer::SIZE));
    } else if bp.object_type() == ObjectType::OBJSET {
        for at in [0, 1024, 1536, 2048] {
            of_dnode(content, at, &mut found);
        }
    } else if bp.object_type() == ObjectType::DNODE {
        let mut at = 0;
        while at < content.len() {
            at += of_dnode(content, at, &mut found);
        }
    }
    found.retain(|at| {
        content
            .get(*at..)
            .and_then(|rest| BlockPointer::decode(rest).ok())
            .is_some_and(|bp| !bp.is_hole())
    });
    found
}

/// Adds the pointers of a dnode; its size.
fn of_dnode(content: &[u8], at: usize, found: &mut Vec<usize>) -> usize {
    let small = 512; // one slot
    let Some(Ok(dnode)) = content.get(at..).map(DnodePhys::decode) else {
        return small;
    };
    if dnode.is_free() {
        return small;
    }
    let count = dnode.block_pointers.len();
    found.extend((0..count).map(|i| at + 64 + i * BlockPointer::SIZE));
    if dnode.bonus_type == ObjectType::DSL_DATASET {
        // Datasets are the larger part of a pool, and one pointer of many.
        for _ in 0..8 {
            found.push(at + 64 + count * BlockPointer::SIZE + DATASET_ROOT);
        }
    }
    dnode.size()
}

/// Changes a block's content; says how.
fn injure(
    bp: &BlockPointer,
    content: &mut [u8],
    above: &[BlockPointer],
    rng: &mut Rng,
) -> &'static str {
    // Most blocks are mostly empty; harm is done where something is.
    let used = content
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(8, |last| last + 1);
    let used = used.next_multiple_of(8).min(content.len());
    let word = 8 * rng.index((used / 8).max(1));
    let edge = *rng.choose(&EDGES);
    let places = pointers(bp, content);
    match rng.below(10) {
        0 | 1 => {
            for _ in 0..=rng.below(8) {
                content[rng.index(used)] ^= 1 << rng.below(8);
            }
            "flipped bits"
        }
        2 | 3 => {
            content[word..word + 8].copy_from_slice(&edge.to_le_bytes());
            "an edge"
        }
        4 => {
            let short = u16::try_from(edge & 0xffff).expect("sixteen bits");
            let at = 2 * rng.index(used / 2);
            content[at..at + 2].copy_from_slice(&short.to_le_bytes());
            "a short edge"
        }
        5 => {
            let old = u64_at(content, word);
            let near = old.wrapping_add(rng.below(5)).wrapping_sub(2);
            content[word..word + 8].copy_from_slice(&near.to_le_bytes());
            "a near miss"
        }
        6 | 7 if !places.is_empty() => {
            let at = *rng.choose(&places);
            if rng.coin() {
                // A loop: a block that is its own ancestor.
                rng.choose(above).encode_into(&mut content[at..]);
                return "a loop";
            }
            let from = *rng.choose(&places);
            let mut other = BlockPointer::decode(&content[from..]).expect("it was one before");
            // The words of an embedded pointer are data; it only changes its place.
            let field = if other.is_embedded() { 8 } else { rng.below(9) };
            match field {
                0 => other.set_lsize((rng.below(1 << 16) + 1) << 9),
                1 => other.set_psize((rng.below(1 << 16) + 1) << 9),
                2 => other.set_level(u8::try_from(rng.below(32)).expect("small")),
                3 => {
                    other.set_object_type(ObjectType(u8::try_from(rng.below(128)).expect("small")));
                }
                4 => other.set_birth(ondisk::Txg(edge)),
                5 => other.set_fill(edge),
                6 => {
                    other
                        .set_compression(Compression(u8::try_from(rng.below(128)).expect("small")));
                }
                7 => {
                    let mut dva = other.dvas()[0];
                    dva.offset = edge & !0x1ff & ((1 << 63) - 1);
                    other.set_dva(0, dva);
                }
                _ => {}
            }
            other.encode_into(&mut content[at..]);
            "a changed pointer"
        }
        8 => {
            let len = (8 << rng.below(7)).min(content.len());
            let from = rng.index(content.len() - len + 1);
            let to = rng.index(content.len() - len + 1);
            content.copy_within(from..from + len, to);
            "a copied stretch"
        }
        _ => {
            let at = rng.index(used);
            let len = (1 << rng.below(9)).min(content.len() - at);
            if rng.coin() {
                content[at..at + len].fill(0);
                "zeros"
            } else {
                rng.fill(&mut content[at..at + len]);
                "noise"
            }
        }
    }
}

fn u64_at(content: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&content[at..at + 8]);
    u64::from_le_bytes(word)
}
