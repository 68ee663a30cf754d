//! Whether the next block of an object is compressed, by what became of those before: films and archives of files do not become
//! smaller, and trying takes half of what writing them costs.
//!
//! Guarantees: of blocks that could be compressed, at most [`SKIPPED_MAX`] in a row are not tried; one that became smaller ends it.

use std::cell::Cell;

use ondisk::{BlockPointer, Compression};
use zio::WriteProps;

/// Blocks in a row that did not become smaller before the first one is not tried.
const IN_VAIN_MIN: u32 = 16;
/// Most blocks in a row that are not tried.
const SKIPPED_MAX: u32 = 15;
/// More of them in a row say nothing more.
const IN_VAIN_MAX: u32 = IN_VAIN_MIN + SKIPPED_MAX - 1;

/// What became of the blocks of one object that were written last.
#[derive(Debug, Default)]
pub(crate) struct Compressibility {
    /// Blocks in a row that did not become smaller, up to [`IN_VAIN_MAX`].
    in_vain: Cell<u32>,
    /// Blocks since the last one that was tried.
    skipped: Cell<u32>,
}

impl Compressibility {
    /// Says in `props` whether compressing a block is tried. Returns whether it is, so that what becomes of it is to be noted.
    pub(crate) fn decide(&self, props: &mut WriteProps) -> bool {
        // Equal blocks have to become equal, whichever came before them.
        let needs_one_form = props.dedup.is_some() || props.unless_equal.is_some();
        if props.compression == Compression::OFF || needs_one_form {
            return false;
        }
        let skipped = self.skipped.get();
        let skips_max = (self.in_vain.get() + 1).saturating_sub(IN_VAIN_MIN);
        props.skips_compression = skipped < skips_max;
        let since_tried = if props.skips_compression {
            skipped + 1
        } else {
            0
        };
        self.skipped.set(since_tried);
        !props.skips_compression
    }

    /// Notes what a block became that was tried.
    pub(crate) fn note(&self, written: &BlockPointer) {
        if written.is_hole() {
            return;
        }
        let is_smaller = written.is_embedded() || written.compression() != Compression::OFF;
        self.in_vain.set(match is_smaller {
            true => 0,
            false => (self.in_vain.get() + 1).min(IN_VAIN_MAX),
        });
    }
}

#[cfg(test)]
mod tests {
    use ondisk::{ChecksumKind, Dva, NewBlock, ObjectId, ObjectType, Txg};
    use zio::Dedup;

    use super::*;
    use crate::tree::{BlockWrite, props_of};
    use crate::types::WritePolicy;

    fn props() -> WriteProps {
        let what = BlockWrite {
            object: ObjectId(1),
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 0,
            block: 0,
            fill: 1,
            is_spill: false,
            compression: Compression::LZ4,
        };
        let policy = WritePolicy::dataset();
        props_of(&policy, 1, 1, &what, &BlockPointer::HOLE, None)
    }

    /// What a block became that is stored with this compression.
    fn written(compression: Compression) -> BlockPointer {
        if compression == Compression::OFF {
            return stored();
        }
        let kind = ObjectType::PLAIN_FILE_CONTENTS;
        BlockPointer::embedded(&[1], 4096, compression, kind, 0, Txg(1)).expect("a pointer")
    }

    /// A block that is stored as it is.
    fn stored() -> BlockPointer {
        let place = Dva {
            vdev: 0,
            offset: 1 << 20,
            asize: 4096,
            gang: false,
        };
        BlockPointer::new(&NewBlock {
            dvas: [place, Dva::default(), Dva::default()],
            lsize: 4096,
            psize: 4096,
            compression: Compression::OFF,
            checksum_kind: ChecksumKind::FLETCHER4,
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 0,
            birth: Txg(1),
            fill: 1,
            checksum: [1; 4],
        })
    }

    /// Writes blocks that are `compression` where they are tried; returns which were.
    fn write(object: &Compressibility, count: usize, compression: Compression) -> Vec<bool> {
        let tried = |_| {
            let mut props = props();
            let is_tried = object.decide(&mut props);
            assert!(props.skips_compression != is_tried, "one or the other");
            if is_tried {
                object.note(&written(compression));
            }
            is_tried
        };
        (0..count).map(tried).collect()
    }

    #[test]
    fn what_never_becomes_smaller_is_tried_ever_less_often() {
        let object = Compressibility::default();
        let tried = write(&object, 2_000, Compression::OFF);
        assert!(tried[..16].iter().all(|&tried| tried) && !tried[16]);
        let late = &tried[1_000..];
        assert!(late.iter().filter(|&&tried| tried).count() <= 1_000 / 15);
        let longest = late.split(|&tried| tried).map(<[bool]>::len).max();
        assert_eq!(longest, Some(15));
    }

    #[test]
    fn answers_that_come_late_change_nothing_of_how_often_it_is_tried() {
        let object = Compressibility::default();
        let mut tried = Vec::new();
        for block in 0..2_000 {
            tried.push(object.decide(&mut props()));
            if block % 32 == 31 {
                let answers = tried[block - 31..].iter().filter(|&&tried| tried);
                answers.for_each(|_| object.note(&stored()));
            }
        }
        let longest = tried.split(|&tried| tried).map(<[bool]>::len).max();
        assert_eq!(longest, Some(15));
    }

    #[test]
    fn one_block_that_becomes_smaller_ends_it() {
        let object = Compressibility::default();
        write(&object, 500, Compression::OFF);
        let tried = write(&object, 40, Compression::LZ4);
        let first = tried
            .iter()
            .position(|&tried| tried)
            .expect("within fifteen");
        assert!(first <= 15 && tried[first..].iter().all(|&tried| tried));
    }

    #[test]
    fn holes_say_nothing_and_equal_blocks_have_one_form() {
        let object = Compressibility::default();
        for _ in 0..100 {
            object.note(&BlockPointer::HOLE);
        }
        assert!(
            write(&object, 16, Compression::OFF)
                .iter()
                .all(|&tried| tried)
        );
        let one_form = [
            WriteProps {
                dedup: Some(Dedup::Trust),
                ..props()
            },
            WriteProps {
                unless_equal: Some(stored()),
                ..props()
            },
            WriteProps {
                compression: Compression::OFF,
                ..props()
            },
        ];
        for mut props in one_form {
            assert!(!object.decide(&mut props) && !props.skips_compression);
        }
        assert!(!object.decide(&mut props()), "the seventeenth is not tried");
    }
}
