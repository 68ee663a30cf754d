//! Writing: holes, compression, embedding, checksum, allocation, copies, rewriting in place, gangs.

use ondisk::{
    BlockPointer, ChecksumKind, Compression, Dva, MAX_BLOCK_SIZE, NewBlock, ObjectType, Txg, label,
};
use runtime::sync::Permit;
use runtime::{ALIGNMENT, IoBuf, IoBufMut};
use vdev::{AllocationBias, IoClass, Location, VdevError};

use crate::alloc::{AllocCursor, AllocStep, Placement, Request, Sizes};
use crate::checks::{
    self, GANG_CHILDREN, GANG_DEPTH_MAX, GANG_HEADER_BYTES, padded, sha256, to_usize, zero_padded,
};
use crate::crypt::{Encrypted, Encryptor};
use crate::packing::{Packed, is_zero, is_zero_chunk, pack};
use crate::pending_writes::THROTTLE_UNIT;
use crate::write_behind::PlacedBlock;
use crate::{
    BlockStore, Bookmark, CorruptReason, Protection, StoredCrypt, StoredForm, WriteProps, ZioError,
};

/// Unit of stored sizes.
const SECTOR: usize = 512;
const _: () = assert!(
    (GANG_CHILDREN * BlockPointer::SIZE + label::ECK_SIZE) as u64 <= GANG_HEADER_BYTES,
    "the children and the checksum of a gang fit its header"
);

/// A block ready to be placed.
enum Prepared {
    /// All zeros.
    Hole,
    /// Small enough to live in its pointer.
    Embedded(Vec<u8>),
    /// To be stored: the bytes are exactly psize long.
    Stored(PreparedBlock),
    /// It cannot be encrypted.
    NotEncryptable(&'static str),
}

/// The bytes of a block as they are stored, and what its pointer says of them.
pub(crate) struct PreparedBlock {
    encrypted: Encrypted,
    compression: Compression,
    pub(crate) checksum: [u64; 4],
    /// Bytes before compression.
    lsize: u64,
    /// It is of an encrypted dataset.
    is_protected: bool,
}

/// The part of a write that only needs the bytes; runs on the compute pool for large blocks.
struct PrepareJob {
    compression: Option<codec::compress::Algorithm>,
    kind: Compression,
    /// Zeros become a hole also where nothing is compressed.
    finds_holes: bool,
    checksum: codec::checksum::Algorithm,
    salt: [u8; 32],
    embed: bool,
    sizes: Sizes,
    encryptor: Option<Encryptor>,
}

impl BlockStore {
    pub(crate) async fn write_block(
        &self,
        txg: Txg,
        data: IoBuf,
        form: Option<StoredForm>,
        props: &WriteProps,
        protection: &Protection,
        later: bool,
    ) -> Result<(BlockPointer, Option<IoBuf>), ZioError> {
        let lsize = data.len() as u64;
        if lsize == 0 || lsize > MAX_BLOCK_SIZE || !lsize.is_multiple_of(512) {
            return Err(ZioError::BadSize { size: lsize });
        }
        let came_encrypted = form.as_ref().is_some_and(|form| form.crypt.is_some());
        let props = &WriteProps {
            dedup: props.dedup.filter(|_| !came_encrypted),
            ..*props
        };
        let job = self.job(props, protection)?;
        let encrypts = job.encryptor.as_ref().is_some_and(Encryptor::encrypts);
        let units = to_usize(lsize.div_ceil(THROTTLE_UNIT));
        let room = self.write_throttle().acquire(units).await;
        // The work is in the bytes that are not zero, of which an indirect block mostly has few.
        let work = match props.level {
            0 => data.len(),
            _ => bytes_in_use(&data),
        };
        let logical = data.clone();
        let prepared = self.offload(work, move || job.prepare(data, form)).await;
        let stored = match prepared {
            Prepared::Hole => return Ok((self.hole(txg, lsize, props), None)),
            Prepared::Embedded(payload) => {
                return Ok((self.embed(txg, &payload, lsize, props)?, None));
            }
            Prepared::Stored(stored) => stored,
            Prepared::NotEncryptable(what) => {
                return Err(ZioError::Corrupt {
                    bookmark: props.bookmark,
                    pointer: Box::default(),
                    reason: CorruptReason::Pointer(what),
                });
            }
        };
        let psize = stored.encrypted.bytes.len() as u64;
        assert!(
            psize > 0 && psize <= lsize,
            "a block of {lsize} bytes is not stored as {psize}"
        );
        let unchanged = props.unless_equal;
        let unchanged = unchanged.filter(|old| self.is_unchanged(old, &stored, props));
        let room = (later, room);
        let bp = if let Some(old) = unchanged {
            self.count(|stats| stats.unchanged += 1);
            old
        } else if props.dedup.is_some() {
            let writing = self.write_deduplicated(txg, &logical, &stored, props, protection, room);
            Box::pin(writing).await?
        } else {
            let dvas = self.store_prepared(txg, &stored, props, room).await?;
            pointer_of(txg, &stored, props, &dvas)
        };
        let is_other = stored.compression != Compression::OFF || encrypts;
        Ok((bp, is_other.then_some(stored.encrypted.bytes)))
    }

    /// Whether a block that is stored already is what a prepared one would become. One on a vdev that was removed is not kept: what is
    /// written anew needs no table of where it went.
    // OpenZFS: module/zfs/zio.c, zio_nop_write
    fn is_unchanged(&self, old: &BlockPointer, new: &PreparedBlock, props: &WriteProps) -> bool {
        let bytes = &new.encrypted.bytes;
        let same_form = !old.is_hole()
            && !old.is_embedded()
            && !old.is_dedup()
            && !old.uses_crypt()
            && !new.is_protected
            && old.is_little_endian()
            && old.object_type() == props.object_type
            && old.lsize() == new.lsize
            && old.psize() == bytes.len() as u64
            && old.compression() == new.compression
            && old.copies().count() == usize::from(props.copies);
        same_form
            && props.checksum.is_cryptographic()
            && old.checksum_kind() == props.checksum
            && old.checksum() == new.checksum
            && !old.copies().any(|dva| self.tree().is_removed(dva.vdev))
    }

    /// Gives the bytes of a prepared block to the devices; returns their places.
    pub(crate) async fn store_prepared(
        &self,
        txg: Txg,
        prepared: &PreparedBlock,
        props: &WriteProps,
        room: (bool, Permit),
    ) -> Result<Vec<Dva>, ZioError> {
        let bytes = &prepared.encrypted.bytes;
        let psize = bytes.len() as u64;
        let dvas = match props.rewrite.filter(|old| may_overwrite(old, txg, psize)) {
            Some(old) => self.overwrite(txg, &old, bytes, props, room).await?,
            None => {
                let encrypts = prepared.encrypted.params.is_some();
                let piece = self.piece(txg, bytes, props, encrypts)?;
                self.write_anew(&piece, bytes, props, room).await?
            }
        };
        self.count(|stats| {
            stats.writes += 1;
            stats.written_logical_bytes += prepared.lsize;
            stats.written_physical_bytes += psize;
        });
        Ok(dvas)
    }

    fn hole(&self, txg: Txg, lsize: u64, props: &WriteProps) -> BlockPointer {
        self.count(|stats| stats.holes += 1);
        match props.hole_birth {
            true => BlockPointer::hole(lsize, props.object_type, props.level, txg),
            false => BlockPointer::HOLE,
        }
    }

    /// The pointer that holds a block's bytes itself.
    fn embed(
        &self,
        txg: Txg,
        payload: &[u8],
        lsize: u64,
        props: &WriteProps,
    ) -> Result<BlockPointer, ZioError> {
        self.count(|stats| stats.embedded += 1);
        let (kind, level) = (props.object_type, props.level);
        BlockPointer::embedded(payload, lsize, props.compression, kind, level, txg)
            .ok_or(ZioError::BadSize { size: lsize })
    }

    /// Writes a block where its version of the same txg is. With `later` it returns before the devices have it; `room` is held
    /// until then.
    async fn overwrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        bytes: &IoBuf,
        props: &WriteProps,
        (later, room): (bool, Permit),
    ) -> Result<Vec<Dva>, ZioError> {
        assert!(
            old.birth() == txg,
            "a block of another txg is not overwritten"
        );
        self.count(|stats| stats.rewrites += 1);
        let dvas: Vec<Dva> = old.copies().collect();
        if later {
            self.write_placed(txg, &dvas, bytes, props, room);
        } else {
            self.wait_pending_write(old).await;
            self.write_copies(txg, &dvas, bytes, props.class, props.bookmark)
                .await?;
            drop(room);
        }
        Ok(dvas)
    }

    /// As [`BlockStore::overwrite`], to new places.
    async fn write_anew(
        &self,
        piece: &PieceProps,
        bytes: &IoBuf,
        props: &WriteProps,
        (later, room): (bool, Permit),
    ) -> Result<Vec<Dva>, ZioError> {
        let dvas = if later {
            self.place(piece, bytes, piece.copies).await?
        } else {
            self.write_contiguous(piece, bytes, piece.copies).await?
        };
        match dvas {
            Some(dvas) if later => {
                self.write_placed(piece.txg, &dvas, bytes, props, room);
                Ok(dvas)
            }
            Some(dvas) => Ok(dvas),
            None => Box::pin(self.place_gang(piece, bytes)).await,
        }
    }

    fn job(&self, props: &WriteProps, protection: &Protection) -> Result<PrepareJob, ZioError> {
        let checksum = checks::checksum_algorithm(props.checksum).ok_or(ZioError::Unsupported {
            what: "checksum",
            number: props.checksum.0,
        })?;
        let compression = checks::compression_algorithm(props.compression, props.zstd_level)
            .map_err(|()| ZioError::Unsupported {
                what: "compression",
                number: props.compression.0,
            })?;
        let is_shared = props.dedup.is_some();
        let encryptor = protection.encryptor(props.object_type, props.level, is_shared);
        let compression =
            compression.filter(|_| encryptor.as_ref().is_none_or(Encryptor::may_compress));
        let embed = props.allow_embedded
            && encryptor.is_none()
            && props.dedup.is_none()
            && props.level == 0
            && props.object_type != ObjectType::DNODE
            && props.object_type != ObjectType::OBJSET;
        let skips = props.skips_compression && compression.is_some();
        let finds_holes = skips || encryptor.as_ref().is_some_and(Encryptor::finds_holes);
        Ok(PrepareJob {
            compression: compression.filter(|_| !skips),
            kind: props.compression,
            finds_holes,
            checksum,
            salt: self.salt(),
            embed,
            sizes: self.sizes()?,
            encryptor,
        })
    }

    fn write_placed(
        &self,
        txg: Txg,
        dvas: &[Dva],
        bytes: &IoBuf,
        props: &WriteProps,
        room: Permit,
    ) {
        self.begin_write_behind(PlacedBlock {
            txg,
            dvas: dvas.to_vec(),
            bytes: bytes.clone(),
            class: props.class,
            bookmark: props.bookmark,
            room,
        });
    }

    /// What all pieces of a block have in common.
    fn piece(
        &self,
        txg: Txg,
        bytes: &IoBuf,
        props: &WriteProps,
        encrypts: bool,
    ) -> Result<PieceProps, ZioError> {
        let metadata = props.level > 0 || props.object_type.is_metadata();
        let kind = if props.object_type == ObjectType::DDT_ZAP {
            Placement::Dedup
        } else if metadata {
            Placement::Metadata
        } else if props.object_type == ObjectType::PLAIN_FILE_CONTENTS
            && bytes.len() as u64 <= props.special_small_bytes
        {
            Placement::SmallFile
        } else {
            Placement::Data
        };
        // The third place of an encrypted block's pointer is taken by salt and IV.
        let copies_max = if encrypts { 2 } else { 3 };
        Ok(PieceProps {
            txg,
            copies: props.copies.clamp(1, copies_max),
            copies_max,
            cursor: if metadata {
                AllocCursor::Metadata
            } else {
                AllocCursor::Data
            },
            class: self.with_allocator(|allocator| allocator.preferred(kind))?,
            checksum: props.checksum,
            io_class: props.class,
            bookmark: props.bookmark,
        })
    }

    /// Boxed where it is called: rare, and half the size of the future of every write otherwise.
    async fn place_gang(&self, piece: &PieceProps, bytes: &IoBuf) -> Result<Vec<Dva>, ZioError> {
        let dvas = self.write_gang(piece, bytes, 0).await?;
        self.count(|stats| stats.gangs += 1);
        Ok(dvas)
    }

    /// Finds places for bytes in one piece; `None` when there is no room for that.
    async fn place(
        &self,
        piece: &PieceProps,
        bytes: &IoBuf,
        copies: u8,
    ) -> Result<Option<Vec<Dva>>, ZioError> {
        let psize = bytes.len() as u64;
        if psize > self.gang_above_bytes() {
            return Ok(None);
        }
        let request = Request {
            txg: piece.txg,
            psize,
            copies,
            cursor: piece.cursor,
            class: piece.class,
            only_class: false,
            dvas: Vec::new(),
        };
        self.allocate(request).await
    }

    /// Places and writes bytes in one piece; `None` when there is no room for that.
    async fn write_contiguous(
        &self,
        piece: &PieceProps,
        bytes: &IoBuf,
        copies: u8,
    ) -> Result<Option<Vec<Dva>>, ZioError> {
        let Some(dvas) = self.place(piece, bytes, copies).await? else {
            return Ok(None);
        };
        if let Err(error) = self
            .write_copies(piece.txg, &dvas, bytes, piece.io_class, piece.bookmark)
            .await
        {
            // The place may hold anything now; it goes through the same quarantine as any freed space.
            self.free_dvas(piece.txg, &dvas);
            return Err(error);
        }
        Ok(Some(dvas))
    }

    /// Finds places for a block. `None` when the pool has no room.
    pub(crate) async fn allocate(
        &self,
        mut request: Request,
    ) -> Result<Option<Vec<Dva>>, ZioError> {
        loop {
            match self.with_allocator(|allocator| allocator.step(&mut request))? {
                AllocStep::Done => return Ok(Some(request.dvas)),
                AllocStep::Full => {
                    self.with_allocator(|allocator| allocator.undo(&mut request))?;
                    return Ok(None);
                }
                // A space map that cannot be read takes its metaslab out; there may be room elsewhere.
                AllocStep::Load { vdev, metaslab } => {
                    drop(self.load_metaslab(vdev, metaslab).await);
                }
            }
        }
    }

    /// Writes the same bytes to every place. Every place must take them: the caller's redundancy counts on it.
    pub(crate) async fn write_copies(
        &self,
        txg: Txg,
        dvas: &[Dva],
        bytes: &IoBuf,
        class: IoClass,
        bookmark: Bookmark,
    ) -> Result<(), ZioError> {
        assert!(
            (1..=3).contains(&dvas.len()),
            "a block has one to three copies"
        );
        let psize = bytes.len() as u64;
        let fail = |source| ZioError::Device { bookmark, source };
        let mut writes = Vec::with_capacity(dvas.len());
        for dva in dvas {
            let size = self.tree().io_size(dva.vdev, psize).map_err(fail)?;
            let at = Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size,
                born: txg,
            };
            writes.push((at, padded(bytes, size)));
        }
        if let [(at, bytes)] = writes.as_slice() {
            return self.write_dva(*at, bytes, class).await.map_err(fail);
        }
        let writes = writes
            .iter()
            .map(|(at, bytes)| self.write_dva(*at, bytes, class));
        let results = runtime::join_all(writes).await;
        results.into_iter().collect::<Result<(), _>>().map_err(fail)
    }

    /// Writes one place; when no device takes it, the pool decides whether to try again.
    async fn write_dva(
        &self,
        at: Location,
        bytes: &IoBuf,
        class: IoClass,
    ) -> Result<(), VdevError> {
        loop {
            let Err(error) = self.tree().write(at, bytes.clone(), class).await else {
                return Ok(());
            };
            let device = matches!(
                error,
                VdevError::Device { .. } | VdevError::Unavailable { .. }
            );
            match self.failure_gate() {
                Some(gate) if device && gate(error.clone()).await => {}
                _ => return Err(error),
            }
        }
    }

    /// Writes bytes as a tree of gang headers and pieces. On failure everything placed is given back.
    async fn write_gang(
        &self,
        piece: &PieceProps,
        bytes: &IoBuf,
        depth: u32,
    ) -> Result<Vec<Dva>, ZioError> {
        let full = ZioError::NoSpace {
            asize: bytes.len() as u64,
        };
        let sizes = self.sizes()?;
        if depth >= GANG_DEPTH_MAX || bytes.len() as u64 <= sizes.least {
            return Err(full);
        }
        // One more copy of the header than of the data: losing it loses everything below.
        let copies = (piece.copies + 1).min(piece.copies_max);
        let request = Request {
            txg: piece.txg,
            psize: GANG_HEADER_BYTES,
            copies,
            cursor: AllocCursor::Metadata,
            class: piece.class,
            only_class: false,
            dvas: Vec::new(),
        };
        let Some(mut headers) = self.allocate(request).await? else {
            return Err(full);
        };
        // Every copy of a child is counted with a copy of the header, so there must be no more of them.
        let limited = PieceProps {
            copies: piece.copies.min(u8::try_from(headers.len()).unwrap_or(1)),
            ..*piece
        };
        let children = match self
            .write_gang_children(&limited, bytes, sizes, depth)
            .await
        {
            Ok(children) => children,
            Err(error) => {
                self.free_dvas(piece.txg, &headers);
                return Err(error);
            }
        };
        let block = gang_header(&headers[0], piece.txg, &children);
        if let Err(error) = self
            .write_copies(piece.txg, &headers, &block, piece.io_class, piece.bookmark)
            .await
        {
            self.free_dvas(piece.txg, &headers);
            for child in &children {
                self.free_tree(piece.txg, child).await;
            }
            return Err(error);
        }
        // A gang's allocated size counts its header and everything below, copy by copy.
        for (index, header) in headers.iter_mut().enumerate() {
            header.gang = true;
            header.asize += children
                .iter()
                .map(|child| child.dvas()[index].asize)
                .sum::<u64>();
        }
        Ok(headers)
    }

    async fn write_gang_children(
        &self,
        piece: &PieceProps,
        bytes: &IoBuf,
        sizes: Sizes,
        depth: u32,
    ) -> Result<Vec<BlockPointer>, ZioError> {
        let mut children = Vec::with_capacity(GANG_CHILDREN);
        let mut from = 0;
        for index in 0..GANG_CHILDREN {
            let left = bytes.len() - from;
            if left == 0 {
                break;
            }
            let share = sizes
                .round_up(left.div_ceil(GANG_CHILDREN - index))
                .min(left);
            let part = bytes.slice(from..from + share);
            match self.write_gang_child(piece, part, depth).await {
                Ok(child) => children.push(child),
                Err(error) => {
                    for child in &children {
                        self.free_tree(piece.txg, child).await;
                    }
                    return Err(error);
                }
            }
            from += share;
        }
        assert!(from == bytes.len(), "the children of a gang hold the block");
        Ok(children)
    }

    async fn write_gang_child(
        &self,
        piece: &PieceProps,
        part: IoBuf,
        depth: u32,
    ) -> Result<BlockPointer, ZioError> {
        let size = part.len() as u64;
        let dvas = match self.write_contiguous(piece, &part, piece.copies).await? {
            Some(dvas) => dvas,
            None => Box::pin(self.write_gang(piece, &part, depth + 1)).await?,
        };
        let algorithm =
            checks::checksum_algorithm(piece.checksum).ok_or(ZioError::Unsupported {
                what: "checksum",
                number: piece.checksum.0,
            })?;
        let salt = self.salt();
        let checksum = codec::checksum::compute(algorithm, &salt, &part);
        Ok(BlockPointer::new(&NewBlock {
            dvas: three(&dvas),
            lsize: size,
            psize: size,
            compression: Compression::OFF,
            checksum_kind: piece.checksum,
            object_type: ObjectType::NONE,
            level: 0,
            birth: piece.txg,
            fill: 1,
            checksum,
        }))
    }

    /// Frees a piece of a gang that was not finished. Trouble only leaks space of a txg that cannot commit.
    async fn free_tree(&self, txg: Txg, bp: &BlockPointer) {
        drop(self.free_block(txg, bp, Bookmark::default()).await);
    }

    fn free_dvas(&self, txg: Txg, dvas: &[Dva]) {
        for dva in dvas {
            let range = dva.offset..dva.offset + dva.asize;
            let freed = self.with_allocator(|allocator| allocator.free(txg, dva.vdev, &range));
            debug_assert!(
                matches!(freed, Ok(Ok(()))),
                "these places were just allocated"
            );
        }
    }
}

/// What all pieces of one block share.
#[derive(Clone, Copy)]
struct PieceProps {
    txg: Txg,
    copies: u8,
    /// Most places that the pointer of the block has room for.
    copies_max: u8,
    cursor: AllocCursor,
    class: AllocationBias,
    checksum: ChecksumKind,
    io_class: IoClass,
    bookmark: Bookmark,
}

impl PrepareJob {
    fn prepare(self, data: IoBuf, form: Option<StoredForm>) -> Prepared {
        if let Some(form) = form {
            return self.stored_as(&data, &form);
        }
        let Some(algorithm) = self.compression else {
            if self.finds_holes && is_zero(&data) {
                return Prepared::Hole;
            }
            return self.stored(&data, data.clone(), Compression::OFF, None);
        };
        match pack(algorithm, self.sizes, self.embed, &data) {
            Packed::Hole => Prepared::Hole,
            Packed::Embedded(payload) => Prepared::Embedded(payload),
            Packed::Stored(bytes) => self.stored(&data, bytes, self.kind, None),
            Packed::AsIs => self.stored(&data, data.clone(), Compression::OFF, None),
        }
    }

    /// A block in the form that was given; as it is where that saves nothing here. An encrypted form is kept to the byte: its MAC
    /// covers the padding too.
    fn stored_as(&self, data: &IoBuf, form: &StoredForm) -> Prepared {
        if form.crypt.is_some() {
            let psize = form.bytes.len();
            if psize == 0 || psize > data.len() || !psize.is_multiple_of(SECTOR) {
                return Prepared::NotEncryptable("an encrypted block of an impossible size");
            }
            return self.stored(data, form.bytes.clone(), form.compression, form.crypt);
        }
        let psize = self.sizes.round_up(form.bytes.len());
        if psize >= data.len() {
            return self.stored(data, data.clone(), Compression::OFF, None);
        }
        // Devices are given aligned memory; a slice of something larger would keep all of that in the cache.
        let is_whole = form.bytes.len() == psize && form.bytes.is_aligned_to(ALIGNMENT);
        let bytes = match is_whole && form.bytes.memory_bytes() <= 2 * psize {
            true => form.bytes.clone(),
            false => zero_padded(&form.bytes, psize),
        };
        self.stored(data, bytes, form.compression, None)
    }

    /// The block with these logical bytes, as `bytes`: encrypted or authenticated if it has to be, then with its checksum.
    fn stored(
        &self,
        logical: &[u8],
        bytes: IoBuf,
        compression: Compression,
        crypt: Option<StoredCrypt>,
    ) -> Prepared {
        let encrypted = match &self.encryptor {
            None => Ok(Encrypted {
                bytes,
                params: None,
                mac: None,
            }),
            Some(encryptor) => encryptor.encrypt(logical, bytes, crypt),
        };
        let encrypted = match encrypted {
            Ok(encrypted) => encrypted,
            Err(what) => return Prepared::NotEncryptable(what),
        };
        let mut checksum = codec::checksum::compute(self.checksum, &self.salt, &encrypted.bytes);
        if encrypted.mac.is_some() {
            checksum = checks::beside_mac(self.checksum, checksum);
        }
        Prepared::Stored(PreparedBlock {
            encrypted,
            compression,
            checksum,
            lsize: logical.len() as u64,
            is_protected: self.encryptor.is_some(),
        })
    }
}

/// The pointer of a prepared block at these places.
pub(crate) fn pointer_of(
    txg: Txg,
    prepared: &PreparedBlock,
    props: &WriteProps,
    dvas: &[Dva],
) -> BlockPointer {
    let Encrypted { bytes, params, mac } = &prepared.encrypted;
    let mut bp = BlockPointer::new(&NewBlock {
        dvas: three(dvas),
        lsize: prepared.lsize,
        psize: bytes.len() as u64,
        compression: prepared.compression,
        checksum_kind: props.checksum,
        object_type: props.object_type,
        level: props.level,
        birth: txg,
        fill: props.fill,
        checksum: prepared.checksum,
    });
    if prepared.is_protected {
        bp.set_crypt(*params, *mac);
    }
    bp
}

/// A block may be overwritten only if no synced uberblock can reach it: it was born in this very txg.
fn may_overwrite(old: &BlockPointer, txg: Txg, psize: u64) -> bool {
    !old.is_hole()
        && !old.is_embedded()
        && !old.is_gang()
        && !old.is_dedup()
        && old.birth() == txg
        && old.physical_birth() == txg
        && old.psize() == psize
}

/// The bytes of the chunks that are not all zero.
fn bytes_in_use(data: &[u8]) -> usize {
    let used = data.chunks(4096).filter(|chunk| !is_zero_chunk(chunk));
    used.map(<[u8]>::len).sum()
}

fn three(dvas: &[Dva]) -> [Dva; 3] {
    std::array::from_fn(|index| dvas.get(index).copied().unwrap_or(Dva::ABSENT))
}

/// The header of a gang that is placed at `header` first: pointers to its children.
fn gang_header(header: &Dva, txg: Txg, children: &[BlockPointer]) -> IoBuf {
    let mut block = IoBufMut::zeroed(to_usize(GANG_HEADER_BYTES));
    for (child, place) in children
        .iter()
        .zip(block.chunks_exact_mut(BlockPointer::SIZE))
    {
        child.encode_into(place);
    }
    let verifier = label::gang_verifier(header.vdev, header.offset, txg.0);
    label::set_checksum(&mut block, verifier, sha256);
    block.freeze()
}
