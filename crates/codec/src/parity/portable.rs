//! The inner loops without processor-specific code: the twin the vector forms are tested against, and their tail.

use super::{Term, field};

/// Bytes worked on at a time: small enough that the running sums stay in registers or the nearest cache.
const LANES: usize = 64;

/// Writes the parity of columns that are as long as the rows, or empty, from byte `from` on.
pub(super) fn generate(data: &[&[u8]], rows: &mut [&mut [u8]], from: usize) {
    let len = rows[0].len();
    let mut at = from;
    while at < len {
        let n = (len - at).min(LANES);
        let mut sums = [[0_u64; LANES / 8]; 3];
        for column in data {
            let mut words = [0_u64; LANES / 8];
            if !column.is_empty() {
                load(&mut words, &column[at..at + n]);
            }
            for (row, sums) in sums.iter_mut().enumerate().take(rows.len()) {
                for (sum, word) in sums.iter_mut().zip(&words) {
                    for _ in 0..row {
                        *sum = double(*sum);
                    }
                    *sum ^= word;
                }
            }
        }
        for (row, sums) in rows.iter_mut().zip(&sums) {
            for (place, word) in row[at..at + n].chunks_mut(8).zip(sums) {
                place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
            }
        }
        at += n;
    }
}

/// Writes sums of products of the terms, which are as long as what is written, from byte `from` on.
pub(super) fn combine(terms: &[Term], out: &mut [&mut [u8]], from: usize) {
    for (place, target) in out.iter_mut().enumerate() {
        let target = &mut target[from..];
        target.fill(0);
        for term in terms {
            multiply_add(target, &term.bytes[from..], term.factors[place]);
        }
    }
}

/// Adds `factor` times `source` to `target`.
fn multiply_add(target: &mut [u8], source: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => {
            for (t, s) in target.iter_mut().zip(source) {
                *t ^= s;
            }
        }
        _ => {
            let table: [u8; 256] = std::array::from_fn(|x| {
                field::multiply(factor, u8::try_from(x).expect("an index of 256"))
            });
            for (t, s) in target.iter_mut().zip(source) {
                *t ^= table[usize::from(*s)];
            }
        }
    }
}

fn load(words: &mut [u64], bytes: &[u8]) {
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut full = [0; 8];
        full[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(full);
    }
}

/// Multiplies eight elements by two.
fn double(x: u64) -> u64 {
    let high = (x >> 7) & 0x0101_0101_0101_0101;
    ((x << 1) & 0xfefe_fefe_fefe_fefe) ^ (high * 0x1d)
}
