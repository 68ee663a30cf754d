//! Sets of attribute numbers on the wire (`bitmap4`).

use crate::xdr::{Malformed, Reader, Result, Writer};

/// Words taken from the wire at most; attributes are known in the first three, and pynfs asks for attribute 1000.
const WORDS_MAX: u32 = 64;

/// A set of attributes, by their numbers. Numbers above 127 are no attribute's; whether there were any is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bitmap {
    bits: u128,
    beyond: bool,
}

impl Bitmap {
    /// Returns the set of the given numbers, all below 128.
    pub(crate) const fn of(numbers: &[u32]) -> Self {
        let mut bits = 0;
        let mut rest = numbers;
        while let [number, more @ ..] = rest {
            bits |= 1 << *number;
            rest = more;
        }
        Self {
            bits,
            beyond: false,
        }
    }

    /// Reads a set.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        let count = r.u32()?;
        if count > WORDS_MAX {
            return Err(Malformed { what: "bitmap" });
        }
        let mut set = Self::default();
        for index in 0..count {
            let word = r.u32()?;
            if index < 4 {
                set.bits |= u128::from(word) << (32 * index);
            } else {
                set.beyond |= word != 0;
            }
        }
        Ok(set)
    }

    /// Writes the set in as few words as it needs.
    pub(crate) fn write(self, w: &mut Writer) {
        let words = (128 - self.bits.leading_zeros()).div_ceil(32);
        w.u32(words);
        for index in 0..words {
            let word = (self.bits >> (32 * index)) & u128::from(u32::MAX);
            w.u32(u32::try_from(word).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn contains(self, number: u32) -> bool {
        number < 128 && self.bits & (1 << number) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.bits == 0 && !self.beyond
    }

    pub(crate) const fn union(self, other: Self) -> Self {
        Self {
            bits: self.bits | other.bits,
            beyond: self.beyond || other.beyond,
        }
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        Self {
            bits: self.bits & other.bits,
            beyond: self.beyond && other.beyond,
        }
    }

    /// Whether all of this set is in the other.
    pub(crate) fn is_subset(self, other: Self) -> bool {
        self.bits & !other.bits == 0 && (!self.beyond || other.beyond)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            bits: self.bits & !other.bits,
            beyond: self.beyond && !other.beyond,
        }
    }

    /// Returns the numbers in the set, ascending.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        let mut rest = self.bits;
        std::iter::from_fn(move || {
            let number = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (number < 128).then_some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_in_the_words_it_needs_and_reads_back() {
        let check = |numbers: &[u32], words: &[u32]| {
            let mut w = Writer::default();
            let set = Bitmap::of(numbers);
            set.write(&mut w);
            let bytes = w.into_bytes();
            let mut r = Reader::new(&bytes);
            let written: Vec<u32> = (0..bytes.len() / 4).filter_map(|_| r.u32().ok()).collect();
            assert_eq!(written.get(1..), Some(words), "{numbers:?}");
            assert_eq!(Bitmap::read(&mut Reader::new(&bytes)), Ok(set));
            assert_eq!(set.numbers().collect::<Vec<_>>(), numbers);
        };
        check(&[], &[]);
        check(&[0, 31], &[0x8000_0001]);
        check(&[1, 33], &[2, 2]);
        check(&[82], &[0, 0, 1 << 18]);
        check(&[127], &[0, 0, 0, 1 << 31]);
    }

    #[test]
    fn numbers_that_no_attribute_has_are_noticed() {
        let read = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            Bitmap::read(&mut Reader::new(&bytes))
        };
        let beyond = read(&[5, 0, 0, 0, 0, 1]).expect("five words");
        assert!(!beyond.is_empty() && !beyond.is_subset(Bitmap::of(&[1])));
        assert!(read(&[65; 66]).is_err());
        assert!(read(&[2, 0]).is_err());
    }
}
