//! Bytes of a stream on their way out: records in buffers of their own, and long blocks as they lie in memory, so that they are not copied.

use runtime::IoBuf;

/// Blocks of at least so many bytes are not copied. Below, a copy costs less than one more part of a write.
const OWN_PART_BYTES: usize = 16 << 10;

/// About 1 MiB of a stream, in parts that follow each other.
#[derive(Debug, Default)]
pub struct StreamChunk {
    parts: Vec<IoBuf>,
    /// What follows the parts.
    tail: Vec<u8>,
    len: usize,
}

impl StreamChunk {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the parts, of which none is empty.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.parts.iter().map(|part| &part[..]);
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        parts.chain(tail)
    }

    /// Returns the parts, of which none is empty, to be kept.
    pub fn into_parts(self) -> impl Iterator<Item = IoBuf> {
        let tail = (!self.tail.is_empty()).then(|| IoBuf::from(self.tail));
        self.parts.into_iter().chain(tail)
    }

    /// Returns the bytes in one piece; they are copied where there are blocks among them.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        if self.parts.is_empty() {
            return self.tail;
        }
        let mut whole = Vec::with_capacity(self.len);
        for part in self.parts() {
            whole.extend_from_slice(part);
        }
        whole
    }

    /// Returns an empty one with room for as many short records as this one has at its end.
    pub(super) fn next(&self) -> Self {
        Self {
            tail: Vec::with_capacity(self.tail.len()),
            ..Self::default()
        }
    }

    /// Adds bytes, which are copied.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Adds zeros.
    pub(super) fn push_zeros(&mut self, count: usize) {
        self.tail.resize(self.tail.len() + count, 0);
        self.len += count;
    }

    /// Adds a block.
    pub(super) fn push_block(&mut self, block: &IoBuf) {
        if block.len() < OWN_PART_BYTES {
            return self.push(block);
        }
        if !self.tail.is_empty() {
            self.parts.push(IoBuf::from(std::mem::take(&mut self.tail)));
        }
        self.parts.push(block.clone());
        self.len += block.len();
    }
}

impl From<Vec<u8>> for StreamChunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            parts: Vec::new(),
            len: bytes.len(),
            tail: bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_long_blocks_are_not_copied() {
        let mut chunk = StreamChunk::default();
        assert!(chunk.is_empty() && chunk.parts().next().is_none());
        let short = IoBuf::from(vec![2; OWN_PART_BYTES - 1]);
        let long = IoBuf::from(vec![3; OWN_PART_BYTES]);
        chunk.push(&[1; 10]);
        chunk.push_block(&short);
        chunk.push_block(&long);
        chunk.push_block(&long);
        chunk.push_zeros(3);
        let lens: Vec<usize> = chunk.parts().map(<[u8]>::len).collect();
        let expect = [10 + short.len(), long.len(), long.len(), 3];
        assert_eq!(lens, expect);
        assert!(chunk.parts().any(|part| std::ptr::eq(part, &long[..])));
        assert_eq!(chunk.len(), expect.iter().sum::<usize>());
        let whole = chunk.into_vec();
        let expect = [&[1; 10], &short[..], &long, &long, &[0; 3]].concat();
        assert!(whole == expect);
        let mut chunk = StreamChunk::from(vec![1; 10]);
        chunk.push_block(&long);
        let parts: Vec<IoBuf> = chunk.into_parts().collect();
        assert!(parts[0][..] == [1; 10] && parts[1].is_same(&long) && parts.len() == 2);
    }
}
