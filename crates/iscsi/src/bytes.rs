//! Reading and writing big-endian numbers at places in bytes, without panics: what is not there reads as zero.

/// Big-endian numbers at offsets. Past the end everything is zero: callers check lengths first where it matters.
pub(crate) trait Field {
    fn u8_at(&self, at: usize) -> u8;
    fn u16_at(&self, at: usize) -> u16;
    fn u24_at(&self, at: usize) -> u32;
    fn u32_at(&self, at: usize) -> u32;
    fn u64_at(&self, at: usize) -> u64;
    /// The bytes from `at`, `len` of them or as many as there are.
    fn part(&self, at: usize, len: usize) -> &[u8];
}

impl Field for [u8] {
    fn u8_at(&self, at: usize) -> u8 {
        self.get(at).copied().unwrap_or(0)
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from(self.u8_at(at)) << 8 | u16::from(self.u8_at(at + 1))
    }

    fn u24_at(&self, at: usize) -> u32 {
        u32::from(self.u8_at(at)) << 16 | u32::from(self.u16_at(at + 1))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) << 16 | u32::from(self.u16_at(at + 2))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }

    fn part(&self, at: usize, len: usize) -> &[u8] {
        let rest = self.get(at..).unwrap_or_default();
        rest.get(..len).unwrap_or(rest)
    }
}

/// Puts bytes at an offset; what does not fit is left out.
pub(crate) fn put(target: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = target.get_mut(at..) {
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
    }
}

/// The low 24 bits of a length, big-endian.
pub(crate) fn be24(value: usize) -> [u8; 3] {
    let [_, a, b, c] = u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
    [a, b, c]
}

/// A length as 32 bits, at most.
pub(crate) fn len32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A length as 16 bits, at most.
pub(crate) fn len16(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// A 32-bit length as an index.
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
