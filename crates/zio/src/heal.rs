//! Healing one block of which no copy is good, with bytes that come from elsewhere: of a stream, say.
//!
//! Guarantees: nothing is written but bytes that have the checksum of the block's pointer, and they are written where the block is. The
//! pointer stays as it is, and so does everything above it.
//! What it does not know: where the bytes come from, and whether another block of the same contents is damaged too.
// OpenZFS: module/zfs/dmu_recv.c, do_corrective_recv

use codec::compress::Algorithm;
use ondisk::{BlockPointer, Compression};
use runtime::IoBuf;
use vdev::Location;

use crate::checks::{self, padded, to_usize};
use crate::types::GangPart;
use crate::{BlockKeys, BlockStore, ReadProps, ZioError};

/// Levels of zstd that a block may have been compressed with.
const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=19;

/// Bytes that may be those of a block.
#[derive(Clone, Debug)]
pub enum Replacement {
    /// The logical ones: the block is compressed and encrypted anew, as its pointer says.
    Logical(IoBuf),
    /// Compressed, and not encrypted; with the logical ones, should the block be stored in another form.
    Compressed {
        /// The stored bytes, which may lack the padding.
        stored: IoBuf,
        /// How they are compressed.
        compression: Compression,
        /// What they decompress to.
        logical: IoBuf,
    },
    /// As they are stored: encrypted, if the block is.
    Stored(IoBuf),
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Healing {
    /// There was a good copy; the bad ones are written anew.
    Whole,
    /// It was lost, and is there again.
    Healed,
    /// It is lost, and the bytes were not its own.
    OtherBytes,
    /// It is lost: its pointer does not lead to its places, or no device took the bytes.
    Lost,
}

impl BlockStore {
    /// Makes a block whole of which no copy is good, if the bytes given are its own. `keys` are those of its dataset, where the bytes
    /// have to be encrypted. Durable after the next flush.
    ///
    /// # Errors
    /// As [`BlockStore::scrub`].
    pub async fn heal(
        &self,
        bp: &BlockPointer,
        with: Replacement,
        props: ReadProps,
        keys: Option<&BlockKeys>,
    ) -> Result<Healing, ZioError> {
        if !self.scrub(bp, props).await?.lost {
            return Ok(Healing::Whole);
        }
        let Some(stored) = self.own_bytes(bp, with, keys).await else {
            return Ok(Healing::OtherBytes);
        };
        assert!(
            stored.len() as u64 == bp.psize(),
            "a block is healed with as many bytes as it has"
        );
        if self.overwrite_lost(bp, &stored, props).await.is_none() {
            return Ok(Healing::Lost);
        }
        let again = self.scrub(bp, props).await?;
        Ok(match again.lost {
            true => Healing::Lost,
            false => Healing::Healed,
        })
    }

    /// The stored bytes of a block, if those given are, or become, its own.
    async fn own_bytes(
        &self,
        bp: &BlockPointer,
        with: Replacement,
        keys: Option<&BlockKeys>,
    ) -> Option<IoBuf> {
        let (first, logical) = match with {
            Replacement::Stored(bytes) => {
                return self.checked(bp, bytes).await;
            }
            Replacement::Compressed {
                stored,
                compression,
                logical,
            } => {
                let same = compression == bp.compression();
                (same.then_some(stored), logical)
            }
            Replacement::Logical(logical) => (None, logical),
        };
        let size = to_usize(bp.psize());
        let fitting = first.filter(|stored| stored.len() <= size);
        if let Some(stored) = fitting
            && let Some(found) = self.encrypted_and_checked(bp, &stored, keys).await
        {
            return Some(found);
        }
        if logical.len() as u64 != bp.lsize() {
            return None;
        }
        for algorithm in algorithms(bp) {
            let data = logical.clone();
            let packed = match algorithm {
                None => Some(data),
                Some(algorithm) => {
                    let compress = move || codec::compress::compress(algorithm, &data, size);
                    let packed = self.offload(logical.len(), compress).await;
                    packed.map(|packed| IoBuf::copy_from(&packed))
                }
            };
            let packed = packed.filter(|packed| packed.len() <= size);
            if let Some(packed) = packed
                && let Some(found) = self.encrypted_and_checked(bp, &packed, keys).await
            {
                return Some(found);
            }
        }
        None
    }

    /// Pads compressed bytes, encrypts them as the block was, and checks them.
    async fn encrypted_and_checked(
        &self,
        bp: &BlockPointer,
        packed: &IoBuf,
        keys: Option<&BlockKeys>,
    ) -> Option<IoBuf> {
        let stored = padded(packed, bp.psize());
        let stored = match keys {
            Some(keys) if bp.is_wholly_encrypted() => keys.encrypt_again(bp, stored)?,
            _ => stored,
        };
        self.checked(bp, stored).await
    }

    async fn checked(&self, bp: &BlockPointer, stored: IoBuf) -> Option<IoBuf> {
        let stored = (stored.len() as u64 == bp.psize()).then_some(stored)?;
        let check = self.stored_check(bp);
        let bytes = stored.clone();
        self.offload(stored.len(), move || check.judge(&bytes))
            .await?;
        Some(stored)
    }

    /// Writes the stored bytes over all places of a block; `None` when its places cannot be found.
    async fn overwrite_lost(
        &self,
        bp: &BlockPointer,
        stored: &IoBuf,
        props: ReadProps,
    ) -> Option<()> {
        if !bp.is_gang() {
            return self.overwrite_copies(bp, stored).await;
        }
        let mut pieces = Vec::new();
        let walked = self
            .gang_pieces(bp, props.bookmark, props.class, 0, &mut |part, child| {
                if part == GangPart::Piece {
                    pieces.push(*child);
                }
            })
            .await;
        walked.ok()?;
        let mut from = 0;
        for piece in pieces {
            let end = from + to_usize(piece.psize());
            let bytes = (end <= stored.len()).then(|| stored.slice(from..end))?;
            let bytes = self.checked(&piece, bytes).await?;
            self.overwrite_copies(&piece, &bytes).await?;
            from = end;
        }
        (from == stored.len()).then_some(())
    }

    async fn overwrite_copies(&self, bp: &BlockPointer, stored: &IoBuf) -> Option<()> {
        for dva in bp.copies() {
            let size = checks::check_dva(self.tree(), &dva, bp.psize()).ok()?;
            let at = Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size,
                born: bp.physical_birth(),
            };
            let suspect = self.tree().suspect(at);
            suspect.repair(&padded(stored, size)).await;
        }
        Some(())
    }
}

/// How the bytes of a block may have been compressed: its pointer does not tell the level of zstd.
fn algorithms(bp: &BlockPointer) -> Vec<Option<Algorithm>> {
    let with = |level| checks::compression_algorithm(bp.compression(), level).ok();
    match bp.compression() {
        Compression::ZSTD => {
            let usual = std::iter::once(3);
            let others = ZSTD_LEVELS.filter(|level| *level != 3);
            usual.chain(others).filter_map(with).collect()
        }
        _ => with(0).into_iter().collect(),
    }
}
