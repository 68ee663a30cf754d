//! Ranges of blocks in the order of a stream, and redaction lists laid over them.
//!
//! ```text
//!   blocks to leave out (list of the bookmark that is redacted by) -+
//!   what the snapshot changed -------------------------------------+-> ranges that do not overlap
//!   blocks to bring after all (list of the bookmark counted from) --+
//! ```
//!
//! Where ranges overlap, the upper one in the picture counts; what both lists have is left out, because the receiver has not got it
//! either. OpenZFS: module/zfs/dmu_send.c, find_next_range.

use dmu::DNODES_OF_BLOCK;
use ondisk::{BlockPointer, DnodePhys};
use runtime::IoBuf;

use super::list_reader::ListReader;
use crate::error::Result;

/// Blocks of an object, from the first to before the end; of object 0, blocks of the table of dnodes.
pub(super) struct SendRange {
    pub(super) object: u64,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) content: RangeContent,
}

/// What a range stands for.
pub(super) enum RangeContent {
    /// A block of the table of dnodes of a raw stream.
    Table(BlockPointer),
    /// A dnode; of a raw stream with the bonus area as it is stored.
    Dnode {
        dnode: Box<DnodePhys>,
        raw_bonus: Option<IoBuf>,
    },
    Hole,
    Block(BlockPointer),
    Spill(BlockPointer),
    /// Blocks of so many bytes that are left out.
    Redacted {
        block_bytes: u64,
    },
    /// Blocks that the receiver has not got, and may get now, changed or not.
    Restored,
}

impl RangeContent {
    /// The same for a part of a range; `None` of what is one block.
    const fn of_part(&self) -> Option<Self> {
        match self {
            Self::Hole => Some(Self::Hole),
            Self::Restored => Some(Self::Restored),
            Self::Redacted { block_bytes } => Some(Self::Redacted {
                block_bytes: *block_bytes,
            }),
            _ => None,
        }
    }
}

impl SendRange {
    /// The place in a stream: by object, dnodes before what they point to.
    const fn place(&self) -> (u64, u8, u64) {
        let rank = match self.content {
            RangeContent::Table(_) => 0,
            RangeContent::Dnode { .. } => 1,
            _ => 2,
        };
        if self.object == 0 {
            (self.first.saturating_mul(DNODES_OF_BLOCK), rank, 0)
        } else {
            (self.object, rank, self.first)
        }
    }
}

/// Numbers of the three sources, the one that counts most first.
const REDACTED: usize = 0;
pub(super) const CHANGED: usize = 1;
const RESTORED: usize = 2;

/// The range at hand of each source that has one.
pub(super) type Fronts = [Option<SendRange>; 3];

/// Redaction lists that are laid over what a snapshot changed.
pub(super) struct RedactionLists {
    /// The blocks to leave out.
    pub(super) redacted: Option<ListReader>,
    /// The blocks to bring after all.
    pub(super) restored: Option<ListReader>,
}

impl RedactionLists {
    /// Begins at an object and block.
    pub(super) fn skip_to(&mut self, from: (u64, u64)) {
        let lists = [&mut self.redacted, &mut self.restored];
        for list in lists.into_iter().flatten() {
            list.skip_to(from);
        }
    }

    /// The next range of one of the lists.
    pub(super) async fn next(&mut self, source: usize) -> Result<Option<SendRange>> {
        let list = if source == REDACTED {
            &mut self.redacted
        } else {
            &mut self.restored
        };
        let Some(list) = list else {
            return Ok(None);
        };
        Ok(list.next().await?.map(|blocks| SendRange {
            object: blocks.object,
            first: blocks.block,
            end: blocks.block + blocks.count(),
            content: if source == REDACTED {
                RangeContent::Redacted {
                    block_bytes: blocks.block_bytes(),
                }
            } else {
                RangeContent::Restored
            },
        }))
    }
}

/// Takes the next range, which overlaps no later one; `None` where it is not sent. Sources whose range is used up are left without one.
///
/// # Panics
/// When no source has a range.
pub(super) fn take_next(fronts: &mut Fronts) -> Option<SendRange> {
    let places = fronts
        .each_ref()
        .map(|front| front.as_ref().map(SendRange::place));
    let at = (0..fronts.len())
        .filter(|source| places[*source].is_some())
        .min_by_key(|source| places[*source])
        .expect("a source has a range");
    let (object, end) = {
        let front = fronts[at].as_ref().expect("found just now");
        if matches!(front.content, RangeContent::Table(_)) {
            return fronts[at].take();
        }
        (front.object, front.end)
    };
    let is_here = |front: &SendRange| front.object == object;
    let begins_here = |fronts: &Fronts, source: usize| {
        places[source] == places[at] && fronts[source].as_ref().is_some_and(is_here)
    };
    // The first place where another range begins or ends.
    let mut change = end;
    for source in (0..fronts.len()).filter(|source| *source != at && object != 0) {
        if let Some(front) = fronts[source].as_ref().filter(|front| is_here(front)) {
            if !begins_here(fronts, source) && change > front.first {
                change = front.first;
            } else {
                change = change.min(front.end);
            }
        }
    }
    let in_both = begins_here(fronts, REDACTED) && begins_here(fronts, RESTORED);
    for source in (0..fronts.len()).filter(|source| *source != at) {
        if begins_here(fronts, source)
            && let Some(front) = &mut fronts[source]
        {
            front.first = change;
            if front.first >= front.end {
                fronts[source] = None;
            }
        }
    }
    let front = fronts[at].as_mut().expect("found above");
    let part = front.content.of_part().filter(|_| change < end);
    let range = match part {
        Some(content) => {
            let first = std::mem::replace(&mut front.first, change);
            SendRange {
                object,
                first,
                end: change,
                content,
            }
        }
        None => fronts[at].take().expect("found above"),
    };
    (!in_both).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(object: u64, first: u64, end: u64, letter: char) -> SendRange {
        let content = match letter {
            'r' => RangeContent::Redacted { block_bytes: 512 },
            'h' => RangeContent::Hole,
            'b' => RangeContent::Block(BlockPointer::HOLE),
            's' => RangeContent::Restored,
            _ => RangeContent::Dnode {
                dnode: Box::default(),
                raw_bonus: None,
            },
        };
        SendRange {
            object,
            first,
            end,
            content,
        }
    }

    fn letter(content: &RangeContent) -> char {
        match content {
            RangeContent::Redacted { .. } => 'r',
            RangeContent::Hole => 'h',
            RangeContent::Block(_) => 'b',
            RangeContent::Restored => 's',
            _ => 'd',
        }
    }

    /// Merges three lists of ranges and shows what comes out.
    fn check(sources: [&[(u64, u64, u64, char)]; 3], expect: &str) {
        let mut left = sources.map(|source| source.iter());
        let mut fronts: Fronts = [None, None, None];
        let mut shown = Vec::new();
        loop {
            for (front, source) in fronts.iter_mut().zip(&mut left) {
                if front.is_none() {
                    *front = source.next().map(|(o, f, e, l)| range(*o, *f, *e, *l));
                }
            }
            if fronts.iter().all(Option::is_none) {
                break;
            }
            if let Some(next) = take_next(&mut fronts) {
                let letter = letter(&next.content);
                shown.push(format!(
                    "{letter}{}:{}-{}",
                    next.object, next.first, next.end
                ));
            }
        }
        assert_eq!(shown.join(" "), expect);
    }

    #[test]
    fn lists_are_laid_over_what_changed() {
        let (none, dnode) = (&[][..], (5, 0, 0, 'd'));
        check(
            [none, &[dnode, (5, 0, 1, 'b'), (5, 1, 9, 'h')], none],
            "d5:0-0 b5:0-1 h5:1-9",
        );
        check(
            [
                &[(5, 0, 2, 'r')],
                &[dnode, (5, 0, 1, 'b'), (5, 1, 2, 'b'), (5, 2, 3, 'b')],
                none,
            ],
            "d5:0-0 r5:0-1 r5:1-2 b5:2-3",
        );
        // A hole is cut in three.
        check(
            [&[(5, 3, 5, 'r')], &[dnode, (5, 0, 9, 'h')], none],
            "d5:0-0 h5:0-3 r5:3-5 h5:5-9",
        );
        // What was left out comes, unless it changed or is left out again.
        check(
            [
                &[(5, 0, 2, 'r')],
                &[(5, 3, 4, 'b')],
                &[(5, 0, 6, 's'), (6, 0, 1, 's')],
            ],
            "s5:2-3 b5:3-4 s5:4-6 s6:0-1",
        );
        check([&[(7, 0, 1, 'r')], none, none], "r7:0-1");
        // Object 64 went with its block of the table.
        check(
            [none, &[(0, 2, 3, 'h')], &[(64, 0, 3, 's')]],
            "h0:2-3 s64:0-3",
        );
    }
}
