//! Structural check of a leaf: every chunk in exactly one place, every entry where its hash says.

use super::leaf::{ARRAY, ARRAY_BYTES, ENTRY, FREE, HEADER, Leaf, NONE};
use crate::bytes::{u8_at, u16_at};
use crate::{DecodeError, Result};

impl<B: AsRef<[u8]>> Leaf<B> {
    /// Checks all invariants of the leaf's structure: free list and counts, chains, hash placement, order and
    /// uniqueness of differentiators, array lengths. Whether hashes match names needs the ZAP's salt and is the
    /// caller's to check.
    ///
    /// # Errors
    /// [`DecodeError`] naming the first broken invariant.
    pub fn check(&self, name_int_size: u8) -> Result<()> {
        let bad = |what, at| Err(DecodeError::new(what, at));
        let mut seen = vec![false; self.chunk_count()];
        let mut claim = |chunk| claim(&mut seen, chunk);
        let mut entries = 0;
        for bucket in 0..self.heads() {
            let mut next = self.head(bucket);
            let mut last_cd = 0;
            while next != NONE {
                claim(next)?;
                let e = self.entry_in(next)?;
                if self.bucket(e.hash) != bucket {
                    return bad("zap leaf entry in the wrong chain", HEADER + 2 * bucket);
                }
                if !self.covers(e.hash) {
                    return bad(
                        "zap leaf entry outside the leaf's prefix",
                        HEADER + 2 * bucket,
                    );
                }
                if self.is_sorted_by_cd() && e.cd < last_cd {
                    return bad("zap leaf chain order", HEADER + 2 * bucket);
                }
                last_cd = e.cd;
                let name_len = usize::from(e.name_ints) * usize::from(name_int_size);
                self.check_array(e.name_chunk, name_len, &mut claim)?;
                self.check_array(e.value_chunk, e.value_bytes(), &mut claim)?;
                entries += 1;
                next = e.next;
            }
        }
        if entries != self.entry_count() {
            return bad("zap leaf entry count", 30);
        }
        let mut free = 0;
        let mut next = self.free_head();
        while free < self.free_chunks() {
            claim(next)?;
            let c = self.chunk(next)?;
            if u8_at(c, 0) != FREE {
                return bad("zap leaf free chunk", usize::from(next));
            }
            next = u16_at(c, 22);
            free += 1;
        }
        // OpenZFS leaves the end of an exhausted list unspecified, so the list must only be long enough.
        if let Some(lost) = seen.iter().position(|s| !s) {
            return bad("zap leaf chunk, lost", lost);
        }
        let all = self.entries()?;
        let same = all
            .windows(2)
            .any(|w| matches!(w, [a, b] if (a.hash, a.cd) == (b.hash, b.cd)));
        if same {
            bad("zap leaf differentiator, not unique", usize::from(ENTRY))
        } else {
            Ok(())
        }
    }

    /// Checks the chain of chunks that holds `len` bytes, and claims them.
    fn check_array(
        &self,
        first: u16,
        len: usize,
        claim: &mut impl FnMut(u16) -> Result<()>,
    ) -> Result<()> {
        let mut array = first;
        for _ in 0..len.div_ceil(ARRAY_BYTES) {
            claim(array)?;
            let c = self.chunk(array)?;
            if u8_at(c, 0) != ARRAY {
                return Err(DecodeError::new("zap leaf array chunk", usize::from(array)));
            }
            array = u16_at(c, 22);
        }
        if array != NONE {
            let what = "zap leaf array, longer than its length";
            return Err(DecodeError::new(what, usize::from(array)));
        }
        Ok(())
    }
}

/// Notes that a chunk has its place, of which it may have only one.
fn claim(seen: &mut [bool], chunk: u16) -> Result<()> {
    match seen.get_mut(usize::from(chunk)) {
        Some(seen) if !*seen => {
            *seen = true;
            Ok(())
        }
        _ => Err(DecodeError::new(
            "zap leaf chunk, used twice or out of range",
            usize::from(chunk),
        )),
    }
}
