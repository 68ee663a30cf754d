//! Reading blocks through their pointers: every copy, every mirror half, verified.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use codec::{checksum, compress};
use ondisk::{BlockPointer, ChecksumKind, Compression, Dva, ObjectType, bytes, label};

use super::Options;
use super::claims::Claims;
use super::devices::{Disk, Top};
use super::expansion::Reflow;
use super::image::Image;
use super::moved::{Half, Moved};
use super::report::{Kind, Report};

/// Where a block belongs, for findings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bookmark {
    pub(super) objset: u64,
    pub(super) object: u64,
    pub(super) level: u8,
    pub(super) block: u64,
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<objset {} object {} level {} block {}>",
            self.objset, self.object, self.level, self.block
        )
    }
}

/// A copy that did not verify; excused later when the leaf is known to have missed that txg.
struct BadCopy {
    vdev: u32,
    leaf: u64,
    birth: u64,
    /// When it came to this vdev from one that was removed.
    moved: Option<u64>,
    text: String,
}

/// Identity of stored bytes.
type Key = (u32, u64, u64, u64);

/// All state of a check.
pub(super) struct Checker<'a> {
    pub(super) options: Options,
    pub(super) disks: Vec<Disk<'a>>,
    pub(super) tops: BTreeMap<u32, Top>,
    /// Tables of vdevs that were removed or are being emptied.
    pub(super) moved: BTreeMap<u32, Moved>,
    /// How far an expansion of a raidz is.
    pub(super) reflow: Reflow,
    pub(super) pool_guid: u64,
    pub(super) salt: [u8; 32],
    /// The synced txg.
    pub(super) txg: u64,
    pub(super) claims: Claims,
    pub(super) report: Report,
    cache: BTreeMap<Key, Rc<Vec<u8>>>,
    verified: BTreeSet<Key>,
    bad_copies: Vec<BadCopy>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(images: &[&'a dyn Image], options: Options) -> Self {
        Self {
            options,
            disks: images.iter().map(|i| Disk::read(*i)).collect(),
            tops: BTreeMap::new(),
            moved: BTreeMap::new(),
            reflow: Reflow::default(),
            pool_guid: 0,
            salt: [0; 32],
            txg: 0,
            claims: Claims::default(),
            report: Report::default(),
            cache: BTreeMap::new(),
            verified: BTreeSet::new(),
            bad_copies: Vec::new(),
        }
    }

    /// Forgets what was read, and could not be.
    pub(super) fn forget_blocks(&mut self) {
        self.cache.clear();
        self.verified.clear();
        self.bad_copies.clear();
    }

    /// Bytes of pool space a pointer accounts for.
    pub(super) fn dsize(&self, bp: &BlockPointer) -> u64 {
        bp.copies()
            .map(|d| {
                let ratio = self.tops.get(&d.vdev).map_or(512, Top::deflate);
                d.asize / 512 * ratio
            })
            .sum()
    }

    /// Reads a block and returns its logical bytes; `None` when it cannot be read (reported) or is opaque. Metadata is
    /// kept for the next time.
    pub(super) fn load(&mut self, bp: &BlockPointer, at: Bookmark) -> Option<Rc<Vec<u8>>> {
        if bp.is_hole() || bp.is_redacted() {
            return None;
        }
        if bp.is_embedded() {
            return self.unpack(bp, bp.embedded_payload(), at).map(Rc::new);
        }
        let key = key_of(bp);
        if let Some(known) = self.cache.get(&key) {
            return Some(Rc::clone(known));
        }
        let stored = self.fetch(bp, at, 0);
        self.verified.insert(key);
        let data = Rc::new(self.unpack(bp, stored?, at)?);
        self.cache.insert(key, Rc::clone(&data));
        Some(data)
    }

    /// Verifies a block of file data once, without keeping it.
    pub(super) fn verify(&mut self, bp: &BlockPointer, at: Bookmark) {
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        if bp.is_embedded() {
            self.unpack(bp, bp.embedded_payload(), at);
        } else if self.verified.insert(key_of(bp))
            && let Some(stored) = self.fetch(bp, at, 0)
        {
            self.unpack(bp, stored, at);
        }
    }

    /// Decompresses; `None` for encrypted contents or when they are corrupt (reported).
    fn unpack(&mut self, bp: &BlockPointer, stored: Vec<u8>, at: Bookmark) -> Option<Vec<u8>> {
        if is_opaque(bp) {
            return None;
        }
        let lsize = bytes::index(bp.lsize());
        let algorithm = match bp.compression() {
            Compression::OFF if stored.len() == lsize => return Some(stored),
            Compression::LZJB => compress::Algorithm::Lzjb,
            Compression::ZLE => compress::Algorithm::Zle,
            Compression::LZ4 => compress::Algorithm::Lz4,
            Compression::ZSTD => compress::Algorithm::Zstd(0),
            other => match other.gzip_level() {
                Some(level) => compress::Algorithm::Gzip(level),
                None => {
                    self.report.error(
                        Kind::BlockPointer,
                        format!("{at}: compression and sizes contradict: {bp}"),
                    );
                    return None;
                }
            },
        };
        match compress::decompress(algorithm, &stored, lsize) {
            Ok(data) => Some(data),
            Err(e) => {
                self.report
                    .error(Kind::Unreadable, format!("{at}: {e}: {bp}"));
                None
            }
        }
    }

    /// Reads and verifies all copies; returns the stored bytes of a good one.
    fn fetch(&mut self, bp: &BlockPointer, at: Bookmark, depth: u32) -> Option<Vec<u8>> {
        self.report.blocks += 1;
        let mut good: Option<Vec<u8>> = None;
        let mut copies = 0;
        for dva in bp.copies() {
            copies += 1;
            if dva.gang {
                good = self.gang(bp, dva, at, depth).or(good);
                continue;
            }
            let psize = bytes::index(bp.psize());
            if let Some(stripe) = self.stripe(dva, psize, bp.physical_birth().0) {
                let (found, bad) = stripe.solve(&|data| self.checksum_matches(bp, data));
                self.report.copies += stripe.count();
                let what = format!("{at}: offset {:#x}: {bp}", dva.offset);
                self.note_columns(bp, dva.vdev, found.is_some(), bad, &what);
                good = found.or(good);
                continue;
            }
            let halves = self.halves(dva, psize);
            self.report.copies += halves.count();
            let (found, bad) = halves.solve(&|data| {
                // Equal to a verified copy is verified.
                good.as_ref().is_some_and(|good| *good == data) || self.checksum_matches(bp, data)
            });
            let what = format!("offset {:#x}: checksum differs: {bp}", dva.offset);
            self.note_halves(bp, &bad, at, &what);
            good = found.or(good);
        }
        if good.is_none() {
            let what = if copies == 0 {
                "no copies"
            } else {
                "no good copy"
            };
            self.report
                .error(Kind::Unreadable, format!("{at}: {what}: {bp}"));
        }
        good
    }

    /// Remembers the leaves that hold wrong columns of a block; without a right block, that one copy is bad.
    fn note_columns(
        &mut self,
        bp: &BlockPointer,
        vdev: u32,
        found: bool,
        bad: Vec<u64>,
        what: &str,
    ) {
        let birth = bp.physical_birth().0;
        let leaves = if found { bad } else { vec![0] };
        for leaf in leaves {
            let text = format!("leaf {leaf}: column differs: {what}");
            self.bad_copies.push(BadCopy {
                vdev,
                leaf,
                birth,
                moved: None,
                text,
            });
        }
    }

    /// Remembers the leaves that hold something wrong of a block.
    fn note_halves(&mut self, bp: &BlockPointer, bad: &[&Half], at: Bookmark, what: &str) {
        for half in bad {
            self.bad_copies.push(BadCopy {
                vdev: half.vdev,
                leaf: half.leaf,
                birth: bp.physical_birth().0,
                moved: half.moved,
                text: format!("{at}: leaf {} {what}", half.leaf),
            });
        }
    }

    fn gang(&mut self, bp: &BlockPointer, dva: Dva, at: Bookmark, depth: u32) -> Option<Vec<u8>> {
        if depth > 8 {
            self.report.error(
                Kind::BlockPointer,
                format!("{at}: gang blocks nest too deep"),
            );
            return None;
        }
        let first = bp.dvas()[0];
        let verifier = label::gang_verifier(first.vdev, first.offset, bp.physical_birth().0);
        let mut header = None;
        if let Some(stripe) = self.stripe(dva, 512, bp.physical_birth().0) {
            // The checksum covers the header's 512 bytes only.
            let (found, bad) =
                stripe.solve(&|data| label::verify(data, verifier, checksum::sha256));
            self.report.copies += stripe.count();
            let what = format!("{at}: offset {:#x}: gang header", dva.offset);
            self.note_columns(bp, dva.vdev, found.is_some(), bad, &what);
            header = found;
        }
        if self
            .tops
            .get(&dva.vdev)
            .is_none_or(|top| top.raidz.is_none())
        {
            let halves = self.halves(dva, 512);
            self.report.copies += halves.count();
            let (found, bad) =
                halves.solve(&|data| label::verify(data, verifier, checksum::sha256));
            let what = format!("offset {:#x}: gang header: checksum differs", dva.offset);
            self.note_halves(bp, &bad, at, &what);
            header = found.or(header);
        }
        let header = header?;
        let mut whole = Vec::new();
        for child in BlockPointer::decode_all(header.get(..3 * BlockPointer::SIZE)?) {
            if !child.is_hole() {
                self.claims.gang_child(bp, &child);
                whole.extend_from_slice(&self.fetch(&child, at, depth + 1)?);
            }
        }
        if whole.len() as u64 != bp.psize() || !self.checksum_matches(bp, &whole) {
            self.report.error(
                Kind::Checksum,
                format!("{at}: gang block: checksum of the whole differs"),
            );
            return None;
        }
        Some(whole)
    }

    pub(super) fn checksum_matches(&self, bp: &BlockPointer, data: &[u8]) -> bool {
        use checksum::Algorithm as A;
        let algorithm = match bp.checksum_kind() {
            ChecksumKind::OFF | ChecksumKind::NOPARITY => return true,
            ChecksumKind::FLETCHER2 => A::Fletcher2,
            ChecksumKind::FLETCHER4 => A::Fletcher4,
            ChecksumKind::SHA256 => A::Sha256,
            ChecksumKind::SHA512 => A::Sha512,
            ChecksumKind::SKEIN => A::Skein,
            ChecksumKind::EDONR => A::Edonr,
            ChecksumKind::BLAKE3 => A::Blake3,
            _ => return false,
        };
        let sum = checksum::compute(algorithm, &self.salt, data);
        if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET {
            // The other two words hold the authentication code.
            let [a, b, c, d] = sum;
            let weak = matches!(algorithm, A::Fletcher2 | A::Fletcher4 | A::Edonr);
            let short = if weak { [a ^ c, b ^ d] } else { [a, b] };
            return bp.checksum()[..2] == short;
        }
        sum == bp.checksum()
    }

    /// Reports the copies that did not verify, unless their leaf is known to have missed the write.
    pub(super) fn judge_bad_copies(&mut self) {
        for bad in std::mem::take(&mut self.bad_copies) {
            let leaf = self
                .tops
                .get(&bad.vdev)
                .and_then(|t| t.leaves.iter().find(|l| l.guid == bad.leaf));
            let excused = leaf.is_some_and(|l| {
                l.missed.iter().any(|(from, to)| {
                    let missed = *from..*to;
                    missed.contains(&bad.birth) || bad.moved.is_some_and(|t| missed.contains(&t))
                })
            });
            if excused {
                self.report.note(
                    Kind::Checksum,
                    format!("{} (missed by the leaf, to be resilvered)", bad.text),
                );
            } else {
                self.report.error(Kind::Checksum, bad.text);
            }
        }
    }
}

fn key_of(bp: &BlockPointer) -> Key {
    let dva = bp.dvas()[0];
    (
        dva.vdev,
        dva.offset,
        bp.physical_birth().0,
        bp.checksum()[0],
    )
}

/// True when the contents are encrypted (dnode blocks keep all but their bonus in the clear).
fn is_opaque(bp: &BlockPointer) -> bool {
    bp.uses_crypt()
        && bp.level() == 0
        && bp.object_type().is_encrypted()
        && bp.object_type() != ObjectType::DNODE
}
