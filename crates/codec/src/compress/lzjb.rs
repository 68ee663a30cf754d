//! LZJB: groups of eight items behind a byte that says which are matches.
//!
//! A literal is a byte. A match is two: length - 3 in six bits, distance in ten, copied from the output.

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
const TABLE_BITS: u32 = 10;

pub(super) fn compress(src: &[u8], out: &mut [u8]) -> Option<usize> {
    // Positions plus one of the last occurrence of each hash of three bytes.
    let mut table = [0u32; 1 << TABLE_BITS];
    let (mut pos, mut len) = (0, 0);
    while pos < src.len() {
        let control = len;
        *out.get_mut(control)? = 0;
        len += 1;
        for bit in 0..8 {
            if pos >= src.len() {
                break;
            }
            match find(src, pos, &mut table) {
                Some((length, distance)) => {
                    let code = ((length - MATCH_MIN) << 10 | distance).to_be_bytes();
                    let [.., high, low] = code;
                    *out.get_mut(len)? = high;
                    *out.get_mut(len + 1)? = low;
                    out[control] |= 1 << bit;
                    len += 2;
                    pos += length;
                }
                None => {
                    *out.get_mut(len)? = src[pos];
                    len += 1;
                    pos += 1;
                }
            }
        }
    }
    Some(len)
}

/// The match at `pos` with an earlier occurrence, as length and distance; remembers the position.
fn find(src: &[u8], pos: usize, table: &mut [u32; 1 << TABLE_BITS]) -> Option<(usize, usize)> {
    let &[a, b, c] = src.get(pos..pos + MATCH_MIN)? else {
        return None;
    };
    let key = u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c);
    let slot = (key.wrapping_mul(2_654_435_761) >> (32 - TABLE_BITS)) as usize;
    let candidate = table[slot] as usize;
    table[slot] = u32::try_from(pos + 1).ok()?;
    let start = candidate.checked_sub(1)?;
    let distance = pos - start;
    if distance == 0 || distance > DISTANCE_MAX {
        return None;
    }
    let longest = MATCH_MAX.min(src.len() - pos);
    let length = (0..longest)
        .take_while(|i| src[start + i] == src[pos + i])
        .count();
    (length >= MATCH_MIN).then_some((length, distance))
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let mut input = src.iter().copied();
    let mut next = || input.next().ok_or("ends early");
    let mut len = 0;
    let (mut control, mut left) = (0u8, 0);
    while len < out.len() {
        if left == 0 {
            control = next()?;
            left = 8;
        }
        if control & 1 == 0 {
            out[len] = next()?;
            len += 1;
        } else {
            let (high, low) = (usize::from(next()?), usize::from(next()?));
            let length = (high >> 2) + MATCH_MIN;
            let distance = (high << 8 | low) & DISTANCE_MAX;
            if distance == 0 || distance > len {
                return Err("match before the beginning");
            }
            // A match may run past the logical size; OpenZFS's encoder never lets it, so the rest is dropped as its
            // decoder does.
            for _ in 0..length.min(out.len() - len) {
                out[len] = out[len - distance];
                len += 1;
            }
        }
        control >>= 1;
        left -= 1;
    }
    Ok(())
}
