//! The checksum and compression numbers a block pointer carries.
//!
//! Newtypes instead of enums: an unknown number from disk stays itself and is refused where it would be used.

use std::fmt;

/// Number of a checksum function, as stored in block pointers and the `checksum` property.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChecksumKind(pub u8);

impl ChecksumKind {
    pub const INHERIT: Self = Self(0);
    pub const ON: Self = Self(1);
    pub const OFF: Self = Self(2);
    /// Embedded SHA-256 of label blocks.
    pub const LABEL: Self = Self(3);
    /// Embedded SHA-256 of gang headers.
    pub const GANG_HEADER: Self = Self(4);
    /// Embedded fletcher2 at the end of old intent log blocks.
    pub const ZILOG: Self = Self(5);
    pub const FLETCHER2: Self = Self(6);
    pub const FLETCHER4: Self = Self(7);
    pub const SHA256: Self = Self(8);
    /// Embedded fletcher4 in the header of intent log blocks.
    pub const ZILOG2: Self = Self(9);
    pub const NOPARITY: Self = Self(10);
    /// SHA-512/256.
    pub const SHA512: Self = Self(11);
    pub const SKEIN: Self = Self(12);
    pub const EDONR: Self = Self(13);
    pub const BLAKE3: Self = Self(14);

    const NAMES: [&'static str; 15] = [
        "inherit",
        "on",
        "off",
        "label",
        "gang_header",
        "zilog",
        "fletcher2",
        "fletcher4",
        "sha256",
        "zilog2",
        "noparity",
        "sha512",
        "skein",
        "edonr",
        "blake3",
    ];

    /// Whether two blocks with one checksum are taken for the same without comparing them (OpenZFS: `ZCHECKSUM_FLAG_NOPWRITE`).
    #[must_use]
    pub fn is_cryptographic(self) -> bool {
        matches!(
            self,
            Self::SHA256 | Self::SHA512 | Self::SKEIN | Self::EDONR | Self::BLAKE3
        )
    }

    /// True for a number the format defines and a block pointer may carry.
    #[must_use]
    pub const fn is_valid_in_block_pointer(self) -> bool {
        self.0 >= 2 && self.0 <= 14
    }

    /// OpenZFS's name of the function, as zdb prints it; `None` for an undefined number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMES.get(usize::from(self.0)).copied()
    }

    /// True for the functions that use the pool's checksum salt.
    #[must_use]
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::SKEIN | Self::EDONR | Self::BLAKE3)
    }

    /// True for checksums stored inside the block itself (labels, gang headers, intent log).
    #[must_use]
    pub const fn is_embedded(self) -> bool {
        matches!(
            self,
            Self::LABEL | Self::GANG_HEADER | Self::ZILOG | Self::ZILOG2
        )
    }
}

/// Number of a compression function, as stored in block pointers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Compression(pub u8);

impl Compression {
    pub const INHERIT: Self = Self(0);
    pub const ON: Self = Self(1);
    pub const OFF: Self = Self(2);
    pub const LZJB: Self = Self(3);
    pub const EMPTY: Self = Self(4);
    pub const GZIP_1: Self = Self(5);
    pub const GZIP_9: Self = Self(13);
    pub const ZLE: Self = Self(14);
    pub const LZ4: Self = Self(15);
    pub const ZSTD: Self = Self(16);

    const NAMES: [&'static str; 17] = [
        "inherit",
        "on",
        "uncompressed",
        "lzjb",
        "empty",
        "gzip-1",
        "gzip-2",
        "gzip-3",
        "gzip-4",
        "gzip-5",
        "gzip-6",
        "gzip-7",
        "gzip-8",
        "gzip-9",
        "zle",
        "lz4",
        "zstd",
    ];

    /// gzip of the given level, 1 to 9; other levels are clamped.
    #[must_use]
    pub fn gzip(level: u8) -> Self {
        Self(4 + level.clamp(1, 9))
    }

    /// The gzip level, when this is gzip.
    #[must_use]
    pub const fn gzip_level(self) -> Option<u8> {
        if self.0 >= 5 && self.0 <= 13 {
            Some(self.0 - 4)
        } else {
            None
        }
    }

    /// True for a number a block pointer may carry.
    #[must_use]
    pub const fn is_valid_in_block_pointer(self) -> bool {
        self.0 >= 2 && self.0 <= 16
    }

    /// OpenZFS's name, as zdb prints it; `None` for an undefined number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMES.get(usize::from(self.0)).copied()
    }
}

macro_rules! show {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown-{}", self.0),
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}({})", self.0)
            }
        }
    };
}

show!(ChecksumKind);
show!(Compression);
