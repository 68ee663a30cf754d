//! Reading: copies, verification, decompression, gangs, repair of bad copies.

use std::borrow::Cow;
use std::sync::Arc;

use ondisk::{BlockPointer, Compression, Dva, label};
use runtime::{IoBuf, IoBufMut};
use vdev::{IoClass, Location, QuickCheck, Suspect, VdevError};

use crate::checks::{
    self, GANG_CHILDREN, GANG_DEPTH_MAX, GANG_HEADER_BYTES, decompressed, padded, sha256, to_usize,
};
use crate::crypt::Decryptor;
use crate::error::corrupt;
use crate::faults::{FaultOfRead, rejecting};
use crate::types::{Expect, Forms, GangPart};
use crate::{BlockKeys, BlockStore, Bookmark, CorruptReason, ReadProps, ZioError};

/// What a check makes of the right bytes: the stored bytes (for repairing other copies) and the logical ones, or why there are
/// none.
type Verified = (IoBuf, Result<IoBuf, CorruptReason>);

/// In which form a block is wanted.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// As it is used; one that is encrypted is opened with these keys.
    Logical(Option<&'a BlockKeys>),
    /// As it is stored: its checksum is verified, and nothing else is done with it.
    Stored,
}

impl BlockStore {
    /// Returns a block from bytes that may be its stored ones (psize long, perhaps with more behind them): `None` when they are
    /// not. Holes, embedded blocks and what [`BlockStore::read`] refuses have none.
    pub async fn verify(
        &self,
        bp: &BlockPointer,
        bytes: IoBuf,
        keys: Option<&BlockKeys>,
    ) -> Option<Forms> {
        let is_closed = bp.is_wholly_encrypted() && keys.is_none();
        if bp.is_hole() || bp.is_embedded() || is_closed {
            return None;
        }
        checks::check_stored(bp).ok()?;
        if (bytes.len() as u64) < bp.psize() {
            return None;
        }
        let check = self.checker(bp, Form::Logical(keys));
        let (stored, logical) = self.offload(bytes.len(), move || check(&bytes)).await?;
        Some(Forms::of(bp, stored, logical.ok()?))
    }

    /// Returns the logical bytes of a block whose stored bytes were verified before; `None` when they do not decompress, or
    /// these are not the keys they were encrypted with.
    pub async fn open_stored(
        &self,
        bp: &BlockPointer,
        stored: IoBuf,
        keys: Option<&BlockKeys>,
    ) -> Option<IoBuf> {
        let decryptor = decryptor(bp, keys);
        let bp = *bp;
        let len = to_usize(bp.lsize());
        let open = move || opened(&bp, decryptor.as_ref(), &stored).ok();
        self.offload(len, open).await
    }

    /// Whether a block is where its pointer says, for callers that do not know whether it was ever written. A block that
    /// is not there is not reported as damaged.
    ///
    /// # Errors
    /// When that cannot be known: [`ZioError::Device`], [`ZioError::ForeignByteOrder`]. Encrypted blocks are checked without
    /// their key.
    pub async fn is_whole(&self, bp: &BlockPointer, class: IoClass) -> Result<bool, ZioError> {
        let bookmark = Bookmark::default();
        let props = ReadProps { class, bookmark };
        match self
            .read_checked(bp, props, Expect::MaybeWritten, Form::Logical(None))
            .await
        {
            Ok(_) => Ok(true),
            Err(ZioError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the stored bytes of a block, exactly psize, which may be compressed or encrypted: what raw and compressed streams carry.
    ///
    /// # Errors
    /// As [`BlockStore::read`], but for [`ZioError::Encrypted`].
    pub async fn read_stored(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
    ) -> Result<IoBuf, ZioError> {
        let forms = self.read_written(bp, props, Form::Stored).await?;
        Ok(forms.stored.unwrap_or(forms.logical))
    }

    pub(crate) async fn read_block(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        keys: Option<&BlockKeys>,
    ) -> Result<Forms, ZioError> {
        if bp.is_wholly_encrypted() && keys.is_none() && bp.is_little_endian() {
            return Err(ZioError::Encrypted {
                bookmark: props.bookmark,
            });
        }
        self.read_written(bp, props, Form::Logical(keys)).await
    }

    async fn read_written(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        form: Form<'_>,
    ) -> Result<Forms, ZioError> {
        let result = self.read_checked(bp, props, Expect::Written, form).await;
        if let Err(ZioError::Corrupt { .. } | ZioError::Device { .. }) = &result {
            self.note_damaged(bp, props);
        }
        result
    }

    async fn read_checked(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        expect: Expect,
        form: Form<'_>,
    ) -> Result<Forms, ZioError> {
        let bookmark = props.bookmark;
        let corrupt = |reason| corrupt(bp, bookmark, reason);
        if bp.is_embedded() {
            return self.embedded().read(bp, bookmark).map(Forms::plain);
        }
        if bp.is_hole() {
            let lsize = bp.lsize();
            if lsize > ondisk::MAX_BLOCK_SIZE {
                return Err(corrupt(CorruptReason::Pointer(
                    "logical size of block pointer",
                )));
            }
            return Ok(Forms::plain(IoBuf::zeroed(to_usize(lsize))));
        }
        if !bp.is_little_endian() && bp.uses_crypt() {
            return Err(ZioError::ForeignByteOrder { bookmark });
        }
        checks::check_stored(bp).map_err(|what| corrupt(CorruptReason::Pointer(what)))?;
        self.wait_pending_write(bp).await;
        self.count(|stats| stats.reads += 1);
        let result = if bp.is_gang() {
            Box::pin(self.read_gang_block(bp, props, expect, form)).await
        } else {
            self.read_copies(bp, props, expect, form).await
        };
        if expect == Expect::Written && matches!(result, Err(ZioError::Corrupt { .. })) {
            self.count(|stats| stats.corrupt += 1);
        }
        result
    }

    /// Reads a block that is not a gang, from the first copy that verifies.
    async fn read_copies(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        expect: Expect,
        form: Form<'_>,
    ) -> Result<Forms, ZioError> {
        let check = self.checker(bp, form);
        let is_stored_so = bp.compression() == Compression::OFF && !bp.uses_crypt();
        let only_sums = is_stored_so || matches!(form, Form::Stored);
        let check: vdev::Check<Verified> = match only_sums && checks::is_sum_of_words(bp) {
            true => Arc::new(QuickCheck(check)),
            false => Arc::new(check),
        };
        let mut bad: Vec<(Suspect, u64)> = Vec::new();
        let mut failure = None;
        for (copy, dva) in bp.copies().enumerate() {
            let size = match checks::check_dva(self.tree(), &dva, bp.psize()) {
                Ok(size) if !dva.gang => size,
                Ok(_) => continue,
                Err(what) => {
                    failure.get_or_insert(corrupt(
                        bp,
                        props.bookmark,
                        CorruptReason::Pointer(what),
                    ));
                    continue;
                }
            };
            let at = Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size,
                born: bp.physical_birth(),
            };
            let fault = self.fault_of(bp, props.bookmark, copy, expect);
            let check = Arc::clone(&check);
            let read = self.read_copy(at, props.class, check, expect, fault.as_ref());
            match read.await {
                Ok((stored, logical)) => {
                    for (suspect, size) in &bad {
                        suspect.repair(&padded(&stored, *size)).await;
                    }
                    let spoiled = fault.and_then(|fault| fault.spoils());
                    return spoiled
                        .map_or(logical, Err)
                        .map(|logical| Forms::of(bp, stored, logical))
                        .map_err(|reason| corrupt(bp, props.bookmark, reason));
                }
                Err(error) => {
                    let rejected = matches!(error, VdevError::Rejected { .. });
                    bad.push((self.tree().suspect(at), size));
                    // Wrong bytes outrank a device that is away: the block is known to be damaged. But where it was perhaps
                    // never written, the device that is away may have it.
                    if failure.is_none() || rejected == (expect == Expect::Written) {
                        failure = Some(device_error(bp, props.bookmark, error));
                    }
                }
            }
        }
        Err(failure
            .unwrap_or_else(|| corrupt(bp, props.bookmark, CorruptReason::Pointer("no place"))))
    }

    /// Reads one copy of a block, with what is injected into that.
    async fn read_copy(
        &self,
        at: Location,
        class: IoClass,
        check: vdev::Check<Verified>,
        expect: Expect,
        fault: Option<&FaultOfRead>,
    ) -> Result<Verified, VdevError> {
        if fault.is_some_and(FaultOfRead::fails) {
            return Err(self.tree().fail_read(at));
        }
        let check = rejecting(fault, check);
        match expect {
            Expect::Written => self.tree().read_with(at, class, check).await,
            Expect::MaybeWritten => {
                let found = self.tree().read_speculative(at, class, check).await;
                let none = VdevError::Rejected {
                    vdev: at.vdev,
                    offset: at.offset,
                    size: at.size,
                };
                found.and_then(|found| found.ok_or(none))
            }
        }
    }

    /// Returns the check of a block's stored bytes.
    fn checker(
        &self,
        bp: &BlockPointer,
        form: Form<'_>,
    ) -> impl Fn(&IoBuf) -> Option<Verified> + Send + Sync + 'static {
        let salt = self.salt();
        let decryptor = match form {
            Form::Logical(keys) => Some(decryptor(bp, keys)),
            Form::Stored => None,
        };
        let bp = *bp;
        move |bytes: &IoBuf| {
            let psize = to_usize(bp.psize());
            let stored = bytes.slice(0..psize.min(bytes.len()));
            if !checks::sum_agrees(&bp, &salt, &stored)? {
                return None;
            }
            let logical = match &decryptor {
                Some(decryptor) => opened(&bp, decryptor.as_ref(), &stored),
                None => Ok(stored.clone()),
            };
            Some((stored, logical))
        }
    }

    /// Reads a block that is scattered over a tree of gang headers.
    async fn read_gang_block(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        expect: Expect,
        form: Form<'_>,
    ) -> Result<Forms, ZioError> {
        let mut whole = IoBufMut::zeroed(to_usize(bp.psize()));
        let mut filled = 0;
        let mut pieces = Vec::new();
        self.gang_pieces(bp, props.bookmark, props.class, 0, &mut |part, child| {
            if part == GangPart::Piece {
                pieces.push(*child);
            }
        })
        .await?;
        for piece in pieces {
            let bytes = self
                .read_copies(&piece, props, expect, Form::Logical(None))
                .await?
                .logical;
            let end = filled + bytes.len();
            if end > whole.len() {
                return Err(corrupt(
                    bp,
                    props.bookmark,
                    CorruptReason::Gang("too many bytes"),
                ));
            }
            whole[filled..end].copy_from_slice(&bytes);
            filled = end;
        }
        if filled != whole.len() {
            return Err(corrupt(
                bp,
                props.bookmark,
                CorruptReason::Gang("too few bytes"),
            ));
        }
        let check = self.checker(bp, form);
        let whole = whole.freeze();
        match self.offload(whole.len(), move || check(&whole)).await {
            Some((stored, logical)) => logical
                .map(|logical| Forms::of(bp, stored, logical))
                .map_err(|reason| corrupt(bp, props.bookmark, reason)),
            None => Err(corrupt(bp, props.bookmark, CorruptReason::Checksum)),
        }
    }

    /// Walks the gang tree of `bp` in order and calls `visit` for every piece and every gang header below `bp`.
    pub(crate) async fn gang_pieces(
        &self,
        bp: &BlockPointer,
        bookmark: Bookmark,
        class: IoClass,
        depth: u32,
        visit: &mut dyn FnMut(GangPart, &BlockPointer),
    ) -> Result<(), ZioError> {
        let fail = |what| corrupt(bp, bookmark, CorruptReason::Gang(what));
        if depth >= GANG_DEPTH_MAX {
            return Err(fail("nested too deep"));
        }
        let children = self.read_gang_header(bp, bookmark, class).await?;
        let mut sum = 0_u64;
        for child in children.iter().filter(|child| !child.is_hole()) {
            let is_foreign = child.is_little_endian() != bp.is_little_endian();
            if child.is_embedded() || child.uses_crypt() || is_foreign {
                return Err(fail("a child of an impossible kind"));
            }
            checks::check_stored(child).map_err(fail)?;
            if child.lsize() != child.psize() || child.level() != 0 {
                return Err(fail("a child that is not plain"));
            }
            // Children must add up to their parent: this also bounds the whole walk by the size of the block.
            sum += child.psize();
            if sum > bp.psize() {
                return Err(fail("children larger than their parent"));
            }
            if child.is_gang() {
                visit(GangPart::Header, child);
                Box::pin(self.gang_pieces(child, bookmark, class, depth + 1, visit)).await?;
            } else {
                visit(GangPart::Piece, child);
            }
        }
        if sum == bp.psize() {
            Ok(())
        } else {
            Err(fail("children smaller than their parent"))
        }
    }

    async fn read_gang_header(
        &self,
        bp: &BlockPointer,
        bookmark: Bookmark,
        class: IoClass,
    ) -> Result<[BlockPointer; GANG_CHILDREN], ZioError> {
        // All copies carry the checksum of the first one's place.
        let first = bp.dvas()[0];
        let verifier = label::gang_verifier(first.vdev, first.offset, bp.physical_birth().0);
        let check: vdev::Check<IoBuf> = Arc::new(move |bytes: &IoBuf| {
            let header = bytes.slice(0..to_usize(GANG_HEADER_BYTES).min(bytes.len()));
            label::verify(&header, verifier, sha256).then_some(header)
        });
        let mut bad: Vec<(Suspect, u64)> = Vec::new();
        let mut failure = None;
        for dva in bp.copies().filter(|dva: &Dva| dva.gang) {
            let size = match checks::check_dva(self.tree(), &dva, bp.psize()) {
                Ok(size) => size,
                Err(what) => {
                    failure.get_or_insert(corrupt(bp, bookmark, CorruptReason::Pointer(what)));
                    continue;
                }
            };
            let at = Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size,
                born: bp.physical_birth(),
            };
            match self.tree().read_with(at, class, Arc::clone(&check)).await {
                Ok(header) => {
                    for (suspect, size) in &bad {
                        suspect.repair(&padded(&header, *size)).await;
                    }
                    let mut header = Cow::Borrowed(&header[..]);
                    if !bp.is_little_endian() {
                        ondisk::byteswap::words(header.to_mut(), 8);
                    }
                    let mut children = BlockPointer::decode_all(&header);
                    return Ok(std::array::from_fn(|_| children.next().unwrap_or_default()));
                }
                Err(error) => {
                    bad.push((self.tree().suspect(at), size));
                    failure = Some(match error {
                        VdevError::Rejected { .. } => {
                            corrupt(bp, bookmark, CorruptReason::Gang("checksum of the header"))
                        }
                        source => ZioError::Device { bookmark, source },
                    });
                }
            }
        }
        Err(failure.unwrap_or_else(|| corrupt(bp, bookmark, CorruptReason::Gang("no header"))))
    }
}

fn device_error(bp: &BlockPointer, bookmark: Bookmark, error: VdevError) -> ZioError {
    match error {
        VdevError::Rejected { .. } => corrupt(bp, bookmark, CorruptReason::Checksum),
        VdevError::OutOfRange { .. } => corrupt(
            bp,
            bookmark,
            CorruptReason::Pointer("offset of block pointer"),
        ),
        source => ZioError::Device { bookmark, source },
    }
}

/// What opens the blocks of an encrypted dataset, whose keys are given.
fn decryptor(bp: &BlockPointer, keys: Option<&BlockKeys>) -> Option<Decryptor> {
    keys.filter(|_| bp.uses_crypt())
        .map(|keys| keys.decryptor(bp))
}

/// Returns the logical bytes of stored ones that passed their checksum.
fn opened(
    bp: &BlockPointer,
    decryptor: Option<&Decryptor>,
    stored: &IoBuf,
) -> Result<IoBuf, CorruptReason> {
    match decryptor {
        Some(decryptor) => {
            let forged = CorruptReason::Authentication;
            let plain = decryptor.authenticated(stored).ok_or(forged)?;
            let logical = decompressed(bp, &plain).ok_or(CorruptReason::Decompress)?;
            match decryptor.agrees(&logical) {
                true => Ok(logical),
                false => Err(forged),
            }
        }
        // Whether it is whole is all that can be asked of it.
        None if bp.is_wholly_encrypted() => Ok(stored.clone()),
        None => decompressed(bp, stored).ok_or(CorruptReason::Decompress),
    }
}
