//! Blocks that are stored in their pointers: opened, and the last few kept open.
//!
//! The cache above knows blocks by their place, and these have none; without memory of its own every look into such a block
//! would decompress it, 128 KiB for each 4 KiB read of a small file in a large record.

use std::cell::RefCell;

use ondisk::BlockPointer;
use runtime::IoBuf;

use crate::checks::decompressed;
use crate::error::corrupt;
use crate::{Bookmark, CorruptReason, ZioError};

/// Blocks kept open, at most.
const KEPT_MAX: usize = 16;
/// The largest block kept open, in bytes.
const KEPT_BLOCK_MAX: usize = 128 << 10;
const _: () = assert!(KEPT_MAX > 0);

/// The embedded blocks opened last, the newest at the end.
#[derive(Default)]
pub(crate) struct Embedded(RefCell<Vec<(BlockPointer, IoBuf)>>);

impl Embedded {
    /// Returns the logical bytes of an embedded block.
    ///
    /// # Errors
    /// [`ZioError::Redacted`]; [`ZioError::Corrupt`] when the pointer is no sound one, or its bytes do not decompress.
    pub(crate) fn read(&self, bp: &BlockPointer, bookmark: Bookmark) -> Result<IoBuf, ZioError> {
        let mut kept = self.0.borrow_mut();
        if let Some(at) = kept.iter().rposition(|(known, _)| known == bp) {
            let found = kept.remove(at);
            let data = found.1.clone();
            kept.push(found);
            return Ok(data);
        }
        let data = open(bp, bookmark)?;
        if data.len() <= KEPT_BLOCK_MAX {
            if kept.len() == KEPT_MAX {
                kept.remove(0);
            }
            kept.push((*bp, data.clone()));
        }
        Ok(data)
    }
}

fn open(bp: &BlockPointer, bookmark: Bookmark) -> Result<IoBuf, ZioError> {
    if bp.is_redacted() {
        return Err(ZioError::Redacted { bookmark });
    }
    bp.check()
        .map_err(|error| corrupt(bp, bookmark, CorruptReason::Pointer(error.what)))?;
    decompressed(bp, &IoBuf::from(bp.embedded_payload()))
        .ok_or_else(|| corrupt(bp, bookmark, CorruptReason::Decompress))
}

#[cfg(test)]
mod tests {
    use codec::compress::{Algorithm, compress};
    use ondisk::{Compression, ObjectType, Txg};

    use super::*;

    const MARK: Bookmark = Bookmark {
        objset: 0,
        object: 1,
        level: 0,
        block: 0,
    };

    fn pointer(byte: u8) -> BlockPointer {
        let bytes = vec![byte; 16 << 10];
        let payload =
            compress(Algorithm::Lz4, &bytes, BlockPointer::EMBEDDED_MAX).expect("is small");
        let kind = ObjectType::PLAIN_FILE_CONTENTS;
        let lsize = bytes.len() as u64;
        BlockPointer::embedded(&payload, lsize, Compression::LZ4, kind, 0, Txg(4)).expect("fits")
    }

    #[test]
    fn the_last_blocks_stay_open_and_the_oldest_go() {
        let store = Embedded::default();
        let read = |byte: u8| store.read(&pointer(byte), MARK).expect("is sound");
        let first = read(0);
        assert!(first.iter().all(|&byte| byte == 0) && first.len() == 16 << 10);
        for byte in 1..16 {
            assert_eq!(read(byte)[0], byte);
        }
        // Used again, so the second one is the oldest now.
        assert_eq!(read(0).as_ptr(), first.as_ptr());
        let second = read(1).as_ptr();
        read(0);
        for byte in 2..17 {
            read(byte);
        }
        assert_eq!(store.0.borrow().len(), KEPT_MAX);
        assert!(
            store
                .0
                .borrow()
                .iter()
                .all(|(_, data)| data.as_ptr() != second)
        );
    }
}
