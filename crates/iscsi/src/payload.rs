//! The data of PDUs and commands, in the buffers it was read into.

use std::borrow::Cow;

use runtime::{IoBuf, IoBufMut};

/// Data in pieces, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Payload(Vec<IoBuf>);

impl Payload {
    pub(crate) fn new(mut pieces: Vec<IoBuf>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        Self(pieces)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_pieces(self) -> Vec<IoBuf> {
        self.0
    }

    /// Adds up to `room` bytes of `more`, without a copy.
    pub(crate) fn append(&mut self, more: &Self, mut room: usize) {
        for piece in &more.0 {
            let kept = piece.len().min(room);
            if kept == 0 {
                return;
            }
            self.0.push(piece.slice(0..kept));
            room -= kept;
        }
    }

    /// The CRC32C of all of it.
    pub(crate) fn crc32c(&self) -> u32 {
        let pieces = self.0.iter();
        pieces.fold(0, |sum, piece| crc32c::crc32c_append(sum, piece))
    }

    /// All of it as bytes.
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        match self.0.as_slice() {
            [] => Cow::Borrowed(&[]),
            [one] => Cow::Borrowed(one),
            _ => Cow::Owned(self.whole().to_vec()),
        }
    }

    /// All of it in one buffer; a copy if it is in several.
    pub(crate) fn whole(&self) -> IoBuf {
        match self.0.as_slice() {
            [] => IoBuf::empty(),
            [one] => one.clone(),
            several => {
                let mut whole = IoBufMut::scratch(self.len());
                let mut at = 0;
                for piece in several {
                    let end = at + piece.len();
                    if let Some(part) = whole.get_mut(at..end) {
                        part.copy_from_slice(piece);
                    }
                    at = end;
                }
                whole.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_sequence_of_bytes() {
        let piece = |bytes: &[u8]| IoBuf::copy_from(bytes);
        let first = Payload::new(vec![piece(b"abc"), IoBuf::empty(), piece(b"de")]);
        let mut all = Payload::default();
        assert!(all.is_empty() && all.bytes().is_empty() && all.whole().is_empty());
        all.append(&first, 4);
        all.append(&first, 0);
        assert_eq!(all.len(), 4);
        assert_eq!(*all.bytes(), *b"abcd");
        assert_eq!(&all.whole()[..], b"abcd");
        all.append(&first, 100);
        assert_eq!(*all.bytes(), *b"abcdabcde");
        assert_eq!(all.into_pieces().len(), 4);
    }
}
