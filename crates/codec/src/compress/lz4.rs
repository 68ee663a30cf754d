//! LZ4: a big-endian length, then one raw block.

use std::cell::RefCell;

use lz4_flex::block::{self, CompressTable};

const PREFIX: usize = 4;
/// Shortest match.
const MATCH_MIN: usize = 4;
/// A block that shrank to less than one byte in so many may be worth a look for runs.
const RUNS_ONE_IN: usize = 2;

thread_local! {
    /// Kept, so that a block costs no allocation.
    static TABLE: RefCell<CompressTable> = RefCell::new(CompressTable::large());
}

/// The room that [`compress`] wants for `len` bytes: the worst case.
pub(super) fn room(len: usize) -> usize {
    PREFIX + block::get_maximum_output_size(len)
}

pub(super) fn compress(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let (prefix, data) = out.split_first_chunk_mut::<PREFIX>()?;
    let len = TABLE
        .with_borrow_mut(|table| block::compress_into_with_table(src, data, table))
        .ok()?;
    *prefix = u32::try_from(len).ok()?.to_be_bytes();
    Some(PREFIX + len)
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let (prefix, rest) = src.split_first_chunk::<PREFIX>().ok_or("ends early")?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).map_err(|_| "length")?;
    let data = rest.get(..len).ok_or("length beyond the block")?;
    let is_run = data.len().saturating_mul(RUNS_ONE_IN) < out.len() && has_long_match(data);
    let written = match is_run {
        true => decompress_runs(data, out),
        false => block::decompress_into(data, out).ok(),
    };
    match written {
        Some(n) if n == out.len() => Ok(()),
        Some(_) => Err("less data than its size"),
        None => Err("not an lz4 block"),
    }
}

/// Whether a block seems to have a match of thousands of bytes: the length of one goes on for as long as bytes are 255.
fn has_long_match(data: &[u8]) -> bool {
    let (words, _) = data.as_chunks::<8>();
    words.contains(&[255; 8])
}

/// Decompresses a raw block with long runs: the library copies a match that overlaps itself byte by byte, and takes 118 us
/// for an indirect block of 128 KiB with three pointers, this 1.2 us; where matches are short, it takes two to four times
/// as long as the library. Returns the bytes written; `None` when it is no such block, or has more data than fit.
// LZ4 block format description 1.6: sequences of a token, literals, a little-endian offset and the rest of the length.
fn decompress_runs(mut src: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut at = 0_usize;
    loop {
        let token = *src.split_off_first()?;
        let literals = length(token >> 4, &mut src)?;
        let literals = src.split_off(..literals)?;
        let end = at.checked_add(literals.len())?;
        out.get_mut(at..end)?.copy_from_slice(literals);
        at = end;
        if src.is_empty() {
            // The last sequence is literals only.
            return Some(at);
        }
        let offset = usize::from(u16::from_le_bytes(*src.split_off(..2)?.first_chunk()?));
        let len = length(token & 0xf, &mut src)?.checked_add(MATCH_MIN)?;
        let start = at.checked_sub(offset).filter(|_| offset != 0)?;
        let end = at.checked_add(len).filter(|&end| end <= out.len())?;
        while at < end {
            // What repeats with the offset's period doubles with every copy.
            let count = (at - start).min(end - at);
            out.copy_within(start..start + count, at);
            at += count;
        }
    }
}

/// Reads a length that begins with four bits of a token and goes on for as long as bytes are 255.
fn length(first: u8, src: &mut &[u8]) -> Option<usize> {
    let mut len = usize::from(first);
    if first == 15 {
        loop {
            let more = *src.split_off_first()?;
            len = len.checked_add(usize::from(more))?;
            if more != 255 {
                break;
            }
        }
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs of patterns, with a few other bytes between them.
    fn runs() -> impl Strategy<Value = Vec<u8>> {
        let run = (prop::collection::vec(any::<u8>(), 1..9), 1_usize..3_000);
        prop::collection::vec(run, 1..12).prop_map(|runs| {
            runs.into_iter()
                .flat_map(|(pattern, count)| {
                    let len = count.max(pattern.len());
                    pattern.into_iter().cycle().take(len)
                })
                .collect()
        })
    }

    #[test]
    fn indirect_blocks_have_long_matches_and_text_has_not() {
        let mut indirect = vec![0; 128 << 10];
        for (index, byte) in indirect[..400].iter_mut().enumerate() {
            *byte = u8::try_from(index * 37 % 251).expect("below 251");
        }
        assert!(has_long_match(&block::compress(&indirect)));
        let text: String = (0..5_000).map(|line| format!("line {line}\n")).collect();
        assert!(!has_long_match(&block::compress(text.as_bytes())));
    }

    proptest! {
        #[test]
        fn runs_come_back(data in runs()) {
            let packed = block::compress(&data);
            let mut out = vec![0; data.len()];
            prop_assert_eq!(decompress_runs(&packed, &mut out), Some(data.len()));
            prop_assert_eq!(out, data);
        }

        #[test]
        fn damaged_blocks_are_as_the_library_says(data in runs(), at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut packed = block::compress(&data);
            let index = at.index(packed.len());
            packed[index] ^= flip;
            let (mut ours, mut theirs) = (vec![0; data.len()], vec![0; data.len()]);
            let written = decompress_runs(&packed, &mut ours);
            // The library also refuses blocks that end too near to a match; what both accept is the same.
            if let Ok(len) = block::decompress_into(&packed, &mut theirs) {
                prop_assert_eq!(written, Some(len));
                prop_assert_eq!(&ours[..len], &theirs[..len]);
            }
        }

        #[test]
        fn nonsense_is_refused_or_fits(packed in prop::collection::vec(any::<u8>(), 0..200), len in 0_usize..5_000) {
            let mut out = vec![0; len];
            if let Some(written) = decompress_runs(&packed, &mut out) {
                prop_assert!(written <= len);
            }
        }
    }
}
