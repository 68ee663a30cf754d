//! Zero-length encoding: runs of zeros shrink to a byte, all else is copied.
//!
//! A byte below 64 announces that many literals plus one; a byte from 64 stands for 1 to 192 zeros.

const LITERALS_MAX: usize = 64;
const ZEROS_MAX: usize = 192;

pub(super) fn compress(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut pos, mut len) = (0, 0);
    while let Some(rest) = src.get(pos..).filter(|r| !r.is_empty()) {
        let zeros = rest.iter().take(ZEROS_MAX).take_while(|b| **b == 0).count();
        if zeros > 0 {
            *out.get_mut(len)? = u8::try_from(LITERALS_MAX + zeros - 1).expect("at most 255");
            len += 1;
            pos += zeros;
            continue;
        }
        let literals = literal_run(rest);
        *out.get_mut(len)? = u8::try_from(literals - 1).expect("at most 63");
        out.get_mut(len + 1..len + 1 + literals)?
            .copy_from_slice(&rest[..literals]);
        len += 1 + literals;
        pos += literals;
    }
    Some(len)
}

/// How many bytes to copy: up to the next two zeros, since a single one is cheaper copied.
fn literal_run(rest: &[u8]) -> usize {
    let limit = rest.len().min(LITERALS_MAX);
    (1..limit)
        .find(|&i| rest[i] == 0 && rest.get(i + 1).is_none_or(|b| *b == 0))
        .unwrap_or(limit)
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let (mut pos, mut len) = (0, 0);
    while len < out.len() {
        let code = usize::from(*src.get(pos).ok_or("ends early")?);
        pos += 1;
        let left = out.len() - len;
        if code < LITERALS_MAX {
            let count = (code + 1).min(left);
            let literals = src.get(pos..pos + count).ok_or("ends early")?;
            out[len..len + count].copy_from_slice(literals);
            pos += count;
            len += count;
        } else {
            let count = (code - LITERALS_MAX + 1).min(left);
            out[len..len + count].fill(0);
            len += count;
        }
    }
    Ok(())
}
