//! Block pointers: 128 bytes that say where a block is, how it is stored and how to verify it.
//!
//! ```text
//! word 0,1  DVA 0        word 6  properties        word b    fill count
//! word 2,3  DVA 1        word 9  physical birth    word c..f checksum
//! word 4,5  DVA 2        word a  logical birth     (7, 8 are zero)
//! ```
//! An embedded pointer carries up to 112 bytes of (compressed) data in all words but 6 and a.
//! OpenZFS: include/sys/spa.h, blkptr_t. The sixteen raw words are kept, so that decoding and encoding again gives the
//! same bytes whatever they were.

use std::fmt;

use crate::bytes::{low8, low32, need, put_u32, put_u64, u32_at, u64_at};
use crate::{
    ChecksumKind, Compression, DecodeError, MAX_BLOCK_SIZE, ObjectType, Result, SECTOR, Txg,
};

/// Words of an embedded pointer that carry payload, in payload order.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

const EMBEDDED: u64 = 1 << 39;
const CRYPT: u64 = 1 << 61;
const DEDUP: u64 = 1 << 62;
const LITTLE_ENDIAN: u64 = 1 << 63;

/// One copy's place: which top-level vdev, where in its address space, how much it takes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Dva {
    /// Id of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in the vdev's allocatable space (0 is device byte 4 MiB on a single disk).
    pub offset: u64,
    /// Allocated bytes, with parity and padding; 0 for an absent DVA.
    pub asize: u64,
    /// The place holds a gang header instead of the data.
    pub gang: bool,
}

impl Dva {
    /// No copy.
    pub const ABSENT: Self = Self {
        vdev: 0,
        offset: 0,
        asize: 0,
        gang: false,
    };

    /// True when a copy is described (its allocated size is not zero).
    #[must_use]
    pub const fn is_present(&self) -> bool {
        self.asize != 0
    }

    /// Decodes the two words of a DVA.
    #[must_use]
    pub const fn from_words(w0: u64, w1: u64) -> Self {
        Self {
            vdev: ((w0 >> 32) & 0xff_ffff) as u32,
            offset: (w1 & !(1 << 63)).wrapping_shl(9),
            asize: (w0 & 0xff_ffff) << 9,
            gang: w1 >> 63 == 1,
        }
    }

    /// Encodes the two words. Offset and size are rounded down to sectors.
    #[must_use]
    pub const fn to_words(self) -> (u64, u64) {
        let w0 = ((self.asize >> 9) & 0xff_ffff) | ((self.vdev as u64 & 0xff_ffff) << 32);
        let w1 = (self.offset >> 9) | ((self.gang as u64) << 63);
        (w0, w1)
    }
}

/// What an embedded block pointer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddedKind {
    Data,
    Reserved,
    /// The block was redacted from a received stream.
    Redacted,
    Unknown(u8),
}

/// Everything needed to build the pointer of a stored block; see [`BlockPointer::new`].
#[derive(Debug, Clone, Copy)]
pub struct NewBlock {
    /// Copies; absent ones last.
    pub dvas: [Dva; 3],
    /// Logical bytes, a multiple of 512.
    pub lsize: u64,
    /// Stored bytes, a multiple of 512.
    pub psize: u64,
    pub compression: Compression,
    pub checksum_kind: ChecksumKind,
    pub object_type: ObjectType,
    pub level: u8,
    pub birth: Txg,
    /// Number of non-hole leaf blocks below (or allocated dnodes); 1 for data.
    pub fill: u64,
    pub checksum: [u64; 4],
}

/// What an encrypted block carries for a reader with the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CryptParams {
    /// From it and the dataset's master key the block's key is derived.
    pub salt: [u8; 8],
    pub iv: [u8; 12],
}

/// A block pointer, as its sixteen words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPointer {
    words: [u64; 16],
}

impl BlockPointer {
    /// Encoded bytes.
    pub const SIZE: usize = 128;
    /// log2 of [`Self::SIZE`].
    pub const SHIFT: u32 = 7;
    /// Most bytes an embedded pointer can carry.
    pub const EMBEDDED_MAX: usize = 112;
    /// A hole that was never written: all zero.
    pub const HOLE: Self = Self { words: [0; 16] };

    /// Builds the pointer of a stored block (little-endian, not embedded, physical birth unset).
    #[must_use]
    pub fn new(b: &NewBlock) -> Self {
        let mut bp = Self::HOLE;
        bp.words[6] = LITTLE_ENDIAN;
        for (i, dva) in b.dvas.iter().enumerate() {
            bp.set_dva(i, *dva);
        }
        bp.set_lsize(b.lsize);
        bp.set_psize(b.psize);
        bp.set_compression(b.compression);
        bp.set_checksum_kind(b.checksum_kind);
        bp.set_object_type(b.object_type);
        bp.set_level(b.level);
        bp.set_birth(b.birth);
        bp.set_fill(b.fill);
        bp.set_checksum(b.checksum);
        bp
    }

    /// Builds a hole that remembers its size, type, level and birth (as the `hole_birth` feature wants).
    #[must_use]
    pub fn hole(lsize: u64, object_type: ObjectType, level: u8, birth: Txg) -> Self {
        let mut bp = Self::HOLE;
        bp.set_lsize(lsize);
        bp.set_object_type(object_type);
        bp.set_level(level);
        bp.set_birth(birth);
        bp
    }

    /// Builds an embedded pointer around `payload` (the compressed bytes), or `None` when the payload is empty or
    /// longer than 112 bytes or `lsize` is out of range.
    #[must_use]
    pub fn embedded(
        payload: &[u8],
        lsize: u64,
        compression: Compression,
        object_type: ObjectType,
        level: u8,
        birth: Txg,
    ) -> Option<Self> {
        if payload.is_empty() || payload.len() > Self::EMBEDDED_MAX || lsize == 0 || lsize > 1 << 25
        {
            return None;
        }
        let mut padded = [0; Self::EMBEDDED_MAX];
        padded.get_mut(..payload.len())?.copy_from_slice(payload);
        let mut bp = Self::HOLE;
        for (slot, chunk) in PAYLOAD_WORDS.iter().zip(padded.chunks_exact(8)) {
            bp.set_word(*slot, u64_at(chunk, 0));
        }
        bp.words[6] = LITTLE_ENDIAN | EMBEDDED | (lsize - 1) | ((payload.len() as u64 - 1) << 25);
        bp.set_compression(compression);
        bp.set_object_type(object_type);
        bp.set_level(level);
        bp.set_birth(birth);
        Some(bp)
    }

    /// Decodes the first 128 bytes of `buf`.
    ///
    /// # Errors
    /// Only when `buf` is too short: any 128 bytes are some pointer. Use [`Self::check`] before trusting it.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "block pointer")?;
        let mut words = [0; 16];
        for (w, chunk) in words.iter_mut().zip(buf.chunks_exact(8)) {
            *w = u64_at(chunk, 0);
        }
        Ok(Self { words })
    }

    /// Decodes the pointers of an indirect block; a tail shorter than a pointer is ignored.
    pub fn decode_all(buf: &[u8]) -> impl Iterator<Item = Self> + '_ {
        buf.chunks_exact(Self::SIZE)
            .filter_map(|c| Self::decode(c).ok())
    }

    /// A pointer from its raw words.
    #[must_use]
    pub const fn from_words(words: [u64; 16]) -> Self {
        Self { words }
    }

    /// The raw words.
    #[must_use]
    pub const fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// Encodes to 128 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        self.encode_into(&mut out);
        out
    }

    /// Encodes into the first 128 bytes of `buf`.
    pub fn encode_into(&self, buf: &mut [u8]) {
        for (i, w) in self.words.iter().enumerate() {
            put_u64(buf, i * 8, *w);
        }
    }

    fn set_word(&mut self, i: usize, v: u64) {
        if let Some(w) = self.words.get_mut(i) {
            *w = v;
        }
    }

    fn prop(&self, shift: u32, bits: u32) -> u64 {
        (self.words[6] >> shift) & ((1 << bits) - 1)
    }

    fn set_prop(&mut self, shift: u32, bits: u32, v: u64) {
        let mask = ((1u64 << bits) - 1) << shift;
        self.words[6] = (self.words[6] & !mask) | ((v << shift) & mask);
    }

    /// True when the data is inside the pointer (or was redacted).
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        self.words[6] & EMBEDDED != 0
    }

    /// True when no block is stored: the data reads as zeros.
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// True when the pointer is all zero: a hole that was never born.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::HOLE
    }

    /// True when the block was redacted and cannot be read.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        self.embedded_kind() == Some(EmbeddedKind::Redacted)
    }

    /// True when the first copy is a gang header.
    #[must_use]
    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && self.words[1] >> 63 == 1
    }

    /// What an embedded pointer holds; `None` when it is not embedded.
    #[must_use]
    pub fn embedded_kind(&self) -> Option<EmbeddedKind> {
        self.is_embedded().then(|| match low8(self.prop(40, 8)) {
            0 => EmbeddedKind::Data,
            1 => EmbeddedKind::Reserved,
            2 => EmbeddedKind::Redacted,
            n => EmbeddedKind::Unknown(n),
        })
    }

    /// The stored (compressed) bytes of an embedded pointer; empty for others.
    #[must_use]
    pub fn embedded_payload(&self) -> Vec<u8> {
        if !self.is_embedded() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(Self::EMBEDDED_MAX);
        for i in PAYLOAD_WORDS {
            out.extend_from_slice(&self.words.get(i).copied().unwrap_or(0).to_le_bytes());
        }
        out.truncate(crate::bytes::index(self.psize()));
        out
    }

    /// Whether words 4 and 5 are salt and IV, and the upper half of word 11 the rest of the IV.
    // OpenZFS: include/sys/spa.h, BP_IS_ENCRYPTED
    fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// The three DVAs; all absent for embedded pointers, the third for encrypted blocks, which have salt and IV there.
    #[must_use]
    pub fn dvas(&self) -> [Dva; 3] {
        if self.is_embedded() {
            return [Dva::ABSENT; 3];
        }
        let w = &self.words;
        [
            Dva::from_words(w[0], w[1]),
            Dva::from_words(w[2], w[3]),
            if self.is_encrypted() {
                Dva::ABSENT
            } else {
                Dva::from_words(w[4], w[5])
            },
        ]
    }

    /// The DVAs that are present.
    pub fn copies(&self) -> impl Iterator<Item = Dva> + use<> {
        self.dvas().into_iter().filter(Dva::is_present)
    }

    /// Logical bytes.
    #[must_use]
    pub fn lsize(&self) -> u64 {
        if self.is_embedded() {
            self.prop(0, 25) + 1
        } else {
            (self.prop(0, 16) + 1) * SECTOR
        }
    }

    /// Stored bytes; of an embedded pointer, its payload bytes; meaningless for a hole.
    #[must_use]
    pub fn psize(&self) -> u64 {
        if self.is_embedded() {
            self.prop(25, 7) + 1
        } else {
            (self.prop(16, 16) + 1) * SECTOR
        }
    }

    /// Sum of the allocated bytes of all copies.
    #[must_use]
    pub fn asize(&self) -> u64 {
        self.copies().map(|d| d.asize).sum()
    }

    #[must_use]
    pub fn compression(&self) -> Compression {
        Compression(low8(self.prop(32, 7)))
    }

    /// The checksum function; `OFF` for embedded pointers, which carry none.
    #[must_use]
    pub fn checksum_kind(&self) -> ChecksumKind {
        if self.is_embedded() {
            ChecksumKind::OFF
        } else {
            ChecksumKind(low8(self.prop(40, 8)))
        }
    }

    #[must_use]
    pub fn object_type(&self) -> ObjectType {
        ObjectType(low8(self.prop(48, 8)))
    }

    /// 0 for data, above for indirect blocks.
    #[must_use]
    pub fn level(&self) -> u8 {
        low8(self.prop(56, 5))
    }

    /// True when words 4, 5, b and e, f carry encryption parameters.
    #[must_use]
    pub const fn uses_crypt(&self) -> bool {
        !self.is_embedded() && self.words[6] & CRYPT != 0
    }

    /// Returns whether the block's bytes say nothing without a key. Of an encrypted dataset, indirect blocks, the objset's
    /// block and some ZAPs are only authenticated; in blocks of dnodes all but the bonus buffers is in the clear.
    // OpenZFS: include/sys/spa.h, BP_IS_ENCRYPTED; module/os/linux/zfs/zio_crypt.c, zio_crypt_init_uios_dnode
    #[must_use]
    pub fn is_wholly_encrypted(&self) -> bool {
        let object_type = self.object_type();
        self.uses_crypt()
            && self.level() == 0
            && object_type != ObjectType::DNODE
            && object_type.is_encrypted()
    }

    /// Salt and IV with which a block of level 0 is encrypted; meaningless unless [`Self::uses_crypt`].
    // OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_decode_params_bp
    #[must_use]
    pub fn crypt_params(&self) -> CryptParams {
        let [_, _, _, _, salt, iv_low, .., fill, _, _, _, _] = self.words;
        let mut iv = [0; 12];
        put_u64(&mut iv, 0, iv_low);
        put_u32(&mut iv, 8, low32(fill >> 32));
        CryptParams {
            salt: salt.to_le_bytes(),
            iv,
        }
    }

    /// MAC of a block of an encrypted dataset, but for objset blocks, which hold theirs.
    #[must_use]
    pub fn mac(&self) -> [u8; 16] {
        let [.., low, high] = self.words;
        let mut mac = [0; 16];
        put_u64(&mut mac, 0, low);
        put_u64(&mut mac, 8, high);
        mac
    }

    #[must_use]
    pub const fn is_dedup(&self) -> bool {
        !self.is_embedded() && self.words[6] & DEDUP != 0
    }

    /// True when the block was written by a little-endian host.
    #[must_use]
    pub const fn is_little_endian(&self) -> bool {
        self.words[6] & LITTLE_ENDIAN != 0
    }

    /// Logical birth: when the block came into being at its place in the object; 0 for a hole that never was.
    #[must_use]
    pub const fn birth(&self) -> Txg {
        Txg(self.words[10])
    }

    /// Physical birth: when the bytes were written; the logical birth unless stored otherwise (dedup, clones).
    #[must_use]
    pub const fn physical_birth(&self) -> Txg {
        if !self.is_embedded() && self.words[9] != 0 {
            Txg(self.words[9])
        } else {
            Txg(self.words[10])
        }
    }

    /// Non-hole leaf blocks (or allocated dnodes) at and below this pointer.
    #[must_use]
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            self.words[11] & 0xffff_ffff
        } else {
            self.words[11]
        }
    }

    /// The four checksum words; zero for embedded pointers.
    #[must_use]
    pub const fn checksum(&self) -> [u64; 4] {
        if self.is_embedded() {
            return [0; 4];
        }
        [
            self.words[12],
            self.words[13],
            self.words[14],
            self.words[15],
        ]
    }

    /// Bytes this block counts as uncompressed in dataset accounting: `lsize` for file data, else `psize`
    /// (0 for embedded metadata).
    #[must_use]
    pub fn accounted_uncompressed(&self) -> u64 {
        if self.is_hole() || self.is_redacted() {
            0
        } else if self.level() == 0 && !self.object_type().is_metadata() {
            self.lsize()
        } else if self.is_embedded() {
            0
        } else {
            self.psize()
        }
    }

    /// Bytes this block counts as compressed in dataset accounting: `psize`; 0 for embedded pointers and holes.
    #[must_use]
    pub fn accounted_compressed(&self) -> u64 {
        if self.is_hole() || self.is_embedded() {
            0
        } else {
            self.psize()
        }
    }

    /// Sets copy `i` (0..3).
    pub fn set_dva(&mut self, i: usize, dva: Dva) {
        let (w0, w1) = dva.to_words();
        self.set_word(2 * i, w0);
        self.set_word(2 * i + 1, w1);
    }

    /// Sets the logical size of a pointer that is not embedded: bytes, a multiple of 512, at most 32 MiB.
    pub fn set_lsize(&mut self, bytes: u64) {
        debug_assert!(!self.is_embedded() && bytes.is_multiple_of(SECTOR) && bytes > 0);
        self.set_prop(0, 16, (bytes / SECTOR).wrapping_sub(1));
    }

    /// Sets the stored size of a pointer that is not embedded: bytes, a multiple of 512, at most 32 MiB.
    pub fn set_psize(&mut self, bytes: u64) {
        debug_assert!(!self.is_embedded() && bytes.is_multiple_of(SECTOR) && bytes > 0);
        self.set_prop(16, 16, (bytes / SECTOR).wrapping_sub(1));
    }

    pub fn set_compression(&mut self, c: Compression) {
        self.set_prop(32, 7, u64::from(c.0));
    }

    /// Sets the checksum function of a pointer that is not embedded.
    pub fn set_checksum_kind(&mut self, c: ChecksumKind) {
        debug_assert!(!self.is_embedded());
        self.set_prop(40, 8, u64::from(c.0));
    }

    pub fn set_object_type(&mut self, t: ObjectType) {
        self.set_prop(48, 8, u64::from(t.0));
    }

    pub fn set_level(&mut self, level: u8) {
        self.set_prop(56, 5, u64::from(level));
    }

    pub const fn set_birth(&mut self, txg: Txg) {
        self.words[10] = txg.0;
    }

    /// Sets the physical birth; stored as 0 when equal to the logical one, so set that first.
    pub const fn set_physical_birth(&mut self, txg: Txg) {
        self.words[9] = if txg.0 == self.words[10] { 0 } else { txg.0 };
    }

    pub fn set_fill(&mut self, fill: u64) {
        debug_assert!(!self.is_embedded());
        self.words[11] = fill;
    }

    pub fn set_checksum(&mut self, sum: [u64; 4]) {
        debug_assert!(!self.is_embedded());
        [
            self.words[12],
            self.words[13],
            self.words[14],
            self.words[15],
        ] = sum;
    }

    /// Makes it the pointer of a block of an encrypted dataset: salt and IV of one that is encrypted, and the MAC, which
    /// takes two words of the checksum. An objset block has neither. The other words are to be set before.
    // OpenZFS: module/os/linux/zfs/zio_crypt.c, zio_crypt_encode_params_bp and zio_crypt_encode_mac_bp
    pub fn set_crypt(&mut self, params: Option<CryptParams>, mac: Option<[u8; 16]>) {
        debug_assert!(!self.is_embedded());
        self.words[6] |= CRYPT;
        if let Some(CryptParams { salt, iv }) = params {
            self.words[4] = u64::from_le_bytes(salt);
            self.words[5] = u64_at(&iv, 0);
            self.words[11] = (self.words[11] & 0xffff_ffff) | u64::from(u32_at(&iv, 8)) << 32;
        }
        if let Some(mac) = mac {
            self.words[14] = u64_at(&mac, 0);
            self.words[15] = u64_at(&mac, 8);
        }
    }

    /// Sets or clears the dedup bit.
    pub const fn set_dedup(&mut self, on: bool) {
        self.words[6] = if on {
            self.words[6] | DEDUP
        } else {
            self.words[6] & !DEDUP
        };
    }

    /// True when both pointers name the same stored block (first DVA and physical birth).
    #[must_use]
    pub fn is_same_block(&self, other: &Self) -> bool {
        !self.is_embedded()
            && !other.is_embedded()
            && self.dvas() == other.dvas()
            && self.physical_birth() == other.physical_birth()
    }

    /// Checks everything that can be checked without the pool: defined numbers and possible sizes.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field, `offset` being its byte in the pointer.
    pub fn check(&self) -> Result<()> {
        let bad = |what, word: usize| Err(DecodeError::new(what, word * 8));
        if self.is_hole() {
            return Ok(());
        }
        if !self.object_type().is_valid() {
            return bad("object type of block pointer", 6);
        }
        if !self.compression().is_valid_in_block_pointer()
            || self.compression() == Compression::EMPTY
        {
            return bad("compression of block pointer", 6);
        }
        if self.lsize() > MAX_BLOCK_SIZE {
            return bad("logical size of block pointer", 6);
        }
        if self.is_embedded() {
            return match self.embedded_kind() {
                Some(EmbeddedKind::Data) if self.psize() > Self::EMBEDDED_MAX as u64 => {
                    bad("embedded size of block pointer", 6)
                }
                Some(EmbeddedKind::Data | EmbeddedKind::Redacted) => Ok(()),
                _ => bad("embedded type of block pointer", 6),
            };
        }
        if !self.checksum_kind().is_valid_in_block_pointer() {
            return bad("checksum function of block pointer", 6);
        }
        if self.psize() > MAX_BLOCK_SIZE {
            return bad("stored size of block pointer", 6);
        }
        Ok(())
    }
}

impl fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// zdb's compact form, near enough to compare by eye.
impl fmt::Display for BlockPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() {
            return write!(
                f,
                "HOLE [L{} {}] size={:x}L birth={}L",
                self.level(),
                self.object_type(),
                self.lsize(),
                self.birth()
            );
        }
        if self.is_embedded() {
            return write!(
                f,
                "EMBEDDED [L{} {}] et={} {} size={:x}L/{:x}P birth={}L",
                self.level(),
                self.object_type(),
                self.prop(40, 8),
                self.compression(),
                self.lsize(),
                self.psize(),
                self.birth()
            );
        }
        for (i, dva) in self.copies().enumerate() {
            write!(
                f,
                "DVA[{i}]=<{}:{:x}:{:x}> ",
                dva.vdev, dva.offset, dva.asize
            )?;
        }
        let [a, b, c, d] = self.checksum();
        write!(
            f,
            "[L{} {}] {} {}{} size={:x}L/{:x}P birth={}L/{}P fill={} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}",
            self.level(),
            self.object_type(),
            self.checksum_kind(),
            self.compression(),
            if self.is_gang() { " gang" } else { "" },
            self.lsize(),
            self.psize(),
            self.birth(),
            self.physical_birth(),
            self.fill()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_decode_and_encode() {
        let mut bytes = [0u8; 128];
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = u8::try_from((i * 73 + 11) % 256).unwrap();
        }
        assert_eq!(BlockPointer::decode(&bytes).unwrap().encode(), bytes);
        assert!(BlockPointer::decode(&bytes[..127]).is_err());
    }

    #[test]
    fn built_fields_read_back() {
        let dva = Dva {
            vdev: 5,
            offset: 0x12_3456_7000,
            asize: 0x2_1000,
            gang: false,
        };
        let bp = BlockPointer::new(&NewBlock {
            dvas: [
                dva,
                Dva {
                    vdev: 1,
                    gang: true,
                    ..dva
                },
                Dva::ABSENT,
            ],
            lsize: 16 << 20,
            psize: 512,
            compression: Compression::ZSTD,
            checksum_kind: ChecksumKind::BLAKE3,
            object_type: ObjectType::ZAP_METADATA,
            level: 31,
            birth: Txg(77),
            fill: 9,
            checksum: [1, 2, 3, 4],
        });
        assert_eq!(
            bp.dvas(),
            [
                dva,
                Dva {
                    vdev: 1,
                    gang: true,
                    ..dva
                },
                Dva::ABSENT
            ]
        );
        assert_eq!(
            (bp.lsize(), bp.psize(), bp.level(), bp.fill()),
            (16 << 20, 512, 31, 9)
        );
        assert_eq!(bp.compression(), Compression::ZSTD);
        assert_eq!(bp.checksum_kind(), ChecksumKind::BLAKE3);
        assert_eq!(bp.object_type(), ObjectType::ZAP_METADATA);
        assert_eq!((bp.birth(), bp.physical_birth()), (Txg(77), Txg(77)));
        assert!(bp.is_little_endian() && !bp.is_hole() && !bp.is_embedded() && !bp.is_dedup());
        bp.check().unwrap();
    }

    #[test]
    fn embedded_payload_survives_even_with_zero_first_words() {
        for len in [1usize, 7, 8, 20, 48, 49, 72, 73, 111, 112] {
            let mut payload = vec![0u8; len];
            payload[len - 1] = 0xa5;
            let bp = BlockPointer::embedded(
                &payload,
                131_072,
                Compression::LZ4,
                ObjectType::PLAIN_FILE_CONTENTS,
                0,
                Txg(9),
            )
            .unwrap();
            assert!(bp.is_embedded() && !bp.is_hole());
            assert_eq!(bp.embedded_payload(), payload);
            assert_eq!(
                (bp.lsize(), bp.psize(), bp.birth(), bp.fill()),
                (131_072, len as u64, Txg(9), 1)
            );
            bp.check().unwrap();
        }
        assert!(
            BlockPointer::embedded(
                &[0; 113],
                512,
                Compression::LZ4,
                ObjectType::NONE,
                0,
                Txg(1)
            )
            .is_none()
        );
    }

    #[test]
    fn a_born_hole_keeps_only_size_type_level_and_birth() {
        let bp = BlockPointer::hole(131_072, ObjectType::PLAIN_FILE_CONTENTS, 1, Txg(5));
        assert!(bp.is_hole() && !bp.is_zero() && !bp.is_little_endian());
        assert_eq!((bp.lsize(), bp.level(), bp.birth()), (131_072, 1, Txg(5)));
        assert_eq!(
            BlockPointer::HOLE.to_string(),
            "HOLE [L0 unallocated] size=200L birth=0L"
        );
    }

    #[test]
    fn encryption_parameters_are_where_the_third_copy_would_be() {
        let bp = BlockPointer::from_words(std::array::from_fn(|i| match i {
            4 => 0x0807_0605_0403_0201,
            5 => 0x1817_1615_1413_1211,
            6 => 1 << 61 | u64::from(ObjectType::PLAIN_FILE_CONTENTS.0) << 48,
            11 => 0x2423_2221_0000_0003,
            14 => 0x3837_3635_3433_3231,
            15 => 0x4847_4645_4443_4241,
            _ => 0,
        }));
        let params = bp.crypt_params();
        assert_eq!(params.salt, [1, 2, 3, 4, 5, 6, 7, 8]);
        let iv = [
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
        ];
        assert_eq!(params.iv, iv);
        assert_eq!((bp.mac()[0], bp.mac()[15]), (0x31, 0x48));
        assert_eq!(bp.fill(), 3);
        assert_eq!(bp.dvas(), [Dva::ABSENT; 3]);
        let mut again = BlockPointer::from_words([0; 16]);
        again.set_object_type(ObjectType::PLAIN_FILE_CONTENTS);
        again.set_fill(3);
        again.set_crypt(Some(params), Some(bp.mac()));
        assert_eq!(again, bp);
    }
}
