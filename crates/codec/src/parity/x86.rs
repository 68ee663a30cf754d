//! The inner loops with AVX2, and with AVX-512 and the Galois field instructions.
//!
//! Guarantees: the callers in `mod.rs` choose a form only when the processor has it; each safe function here checks
//! lengths before any pointer is made. Tails shorter than a step are left to the portable twin.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256,
    _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::{Term, field, portable};

/// Returns the length of rows and columns after checking that they agree.
fn common_len(data: &[&[u8]], rows: &[&mut [u8]]) -> usize {
    let len = rows[0].len();
    assert!(
        rows.iter().all(|row| row.len() == len)
            && data.iter().all(|c| c.is_empty() || c.len() == len),
        "columns and rows of one length"
    );
    len
}

pub(super) fn generate_avx2(data: &[&[u8]], rows: &mut [&mut [u8]]) {
    let len = common_len(data, rows);
    // SAFETY: the form was chosen because the processor has AVX2; all columns and rows have the same length, or are
    // empty columns.
    let done = unsafe {
        match rows.len() {
            1 => rows_avx2::<1, 4>(data, rows, len),
            2 => rows_avx2::<2, 4>(data, rows, len),
            _ => rows_avx2::<3, 2>(data, rows, len),
        }
    };
    portable::generate(data, rows, done);
}

/// Works on `V` vectors of every column at a time; returns the bytes done.
///
/// # Safety
/// AVX2; every row and every column that is not empty has `len` bytes; there are at least `ROWS` rows.
#[target_feature(enable = "avx2")]
unsafe fn rows_avx2<const ROWS: usize, const V: usize>(
    data: &[&[u8]],
    rows: &mut [&mut [u8]],
    len: usize,
) -> usize {
    let zero = _mm256_setzero_si256();
    let reduction = _mm256_set1_epi8(0x1d);
    let double = |x: __m256i| {
        let high = _mm256_cmpgt_epi8(zero, x);
        _mm256_xor_si256(_mm256_add_epi8(x, x), _mm256_and_si256(high, reduction))
    };
    let step = 32 * V;
    let mut at = 0;
    while at + step <= len {
        let mut sums = [[zero; V]; ROWS];
        for column in data {
            for v in 0..V {
                let word = if column.is_empty() {
                    zero
                } else {
                    // SAFETY: `at + step <= len`, the column's length.
                    unsafe { _mm256_loadu_si256(column.as_ptr().add(at + 32 * v).cast()) }
                };
                for (row, sums) in sums.iter_mut().enumerate() {
                    for _ in 0..row {
                        sums[v] = double(sums[v]);
                    }
                    sums[v] = _mm256_xor_si256(sums[v], word);
                }
            }
        }
        for (row, sums) in rows.iter_mut().zip(&sums) {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: `at + step <= len`, the row's length.
                unsafe { _mm256_storeu_si256(row.as_mut_ptr().add(at + 32 * v).cast(), *sum) };
            }
        }
        at += step;
    }
    at
}

pub(super) fn generate_gfni(data: &[&[u8]], rows: &mut [&mut [u8]]) {
    let len = common_len(data, rows);
    // SAFETY: the form was chosen because the processor has AVX-512F, AVX-512BW and GFNI; all columns and rows have the
    // same length, or are empty columns.
    let done = unsafe {
        match rows.len() {
            1 => rows_gfni::<1>(data, rows, len),
            2 => rows_gfni::<2>(data, rows, len),
            _ => rows_gfni::<3>(data, rows, len),
        }
    };
    portable::generate(data, rows, done);
}

/// Works on 256 bytes of every column at a time; returns the bytes done.
///
/// # Safety
/// AVX-512F, AVX-512BW, GFNI; lengths as for [`rows_avx2`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn rows_gfni<const ROWS: usize>(
    data: &[&[u8]],
    rows: &mut [&mut [u8]],
    len: usize,
) -> usize {
    const V: usize = 4;
    let zero = _mm512_setzero_si512();
    let by = [1, 2, 4].map(|factor| _mm512_set1_epi64(bit_matrix(factor)));
    let step = 64 * V;
    let mut at = 0;
    while at + step <= len {
        let mut sums = [[zero; V]; ROWS];
        for column in data {
            for v in 0..V {
                let word = if column.is_empty() {
                    zero
                } else {
                    // SAFETY: `at + step <= len`, the column's length.
                    unsafe { _mm512_loadu_si512(column.as_ptr().add(at + 64 * v).cast()) }
                };
                for (row, sums) in sums.iter_mut().enumerate() {
                    let sum = if row == 0 {
                        sums[v]
                    } else {
                        _mm512_gf2p8affine_epi64_epi8::<0>(sums[v], by[row])
                    };
                    sums[v] = _mm512_xor_si512(sum, word);
                }
            }
        }
        for (row, sums) in rows.iter_mut().zip(&sums) {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: `at + step <= len`, the row's length.
                unsafe { _mm512_storeu_si512(row.as_mut_ptr().add(at + 64 * v).cast(), *sum) };
            }
        }
        at += step;
    }
    at
}

/// Multiplication by each factor (zero's is all zeros) as the bit matrix the affine instruction takes: byte 7-i holds the bits of
/// the operand that make up bit i of the product.
static BIT_MATRICES: [u64; 256] = {
    let mut matrices = [0; 256];
    let mut factor = 1_u8;
    while factor != 0 {
        let mut at = 0;
        while at < 64 {
            let (out, bit) = (at / 8, at % 8);
            if (field::multiply(factor, 1 << bit) >> out) & 1 == 1 {
                matrices[factor as usize] |= 1 << (8 * (7 - out) + bit);
            }
            at += 1;
        }
        factor = factor.wrapping_add(1);
    }
    matrices
};

fn bit_matrix(factor: u8) -> i64 {
    BIT_MATRICES[usize::from(factor)].cast_signed()
}

/// The products of each factor with all low halves of a byte, and with all high ones.
static NIBBLES: [[[u8; 16]; 2]; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut factor = 1_u8;
    while factor != 0 {
        let mut x = 0_u8;
        while x < 16 {
            tables[factor as usize][0][x as usize] = field::multiply(factor, x);
            tables[factor as usize][1][x as usize] = field::multiply(factor, x << 4);
            x += 1;
        }
        factor = factor.wrapping_add(1);
    }
    tables
};

/// Returns the length of terms and results after checking that they agree.
fn combined_len(terms: &[Term], out: &[&mut [u8]]) -> usize {
    let len = out[0].len();
    assert!(
        out.iter().all(|column| column.len() == len)
            && terms.iter().all(|term| term.bytes.len() == len),
        "terms and results of one length"
    );
    len
}

pub(super) fn combine_avx2(terms: &[Term], out: &mut [&mut [u8]]) {
    let len = combined_len(terms, out);
    // SAFETY: the form was chosen because the processor has AVX2; all terms and results have the same length.
    let done = unsafe {
        match out.len() {
            1 => sums_avx2::<1>(terms, out, len),
            2 => sums_avx2::<2>(terms, out, len),
            _ => sums_avx2::<3>(terms, out, len),
        }
    };
    portable::combine(terms, out, done);
}

/// Products by the low and high half of each byte, looked up, 64 bytes of every term at a time; returns the bytes done.
///
/// # Safety
/// AVX2; every term and every result has `len` bytes; there are at least `OUT` results.
#[target_feature(enable = "avx2")]
unsafe fn sums_avx2<const OUT: usize>(terms: &[Term], out: &mut [&mut [u8]], len: usize) -> usize {
    const V: usize = 2;
    let zero = _mm256_setzero_si256();
    let mask = _mm256_set1_epi8(0x0f);
    let table = |bytes: &[u8; 16]| {
        // SAFETY: the table has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
    };
    let step = 32 * V;
    let mut at = 0;
    while at + step <= len {
        let mut sums = [[zero; V]; OUT];
        for term in terms {
            let mut halves = [[zero; 2]; V];
            for (v, halves) in halves.iter_mut().enumerate() {
                // SAFETY: `at + step <= len`, the term's length.
                let word: __m256i =
                    unsafe { _mm256_loadu_si256(term.bytes.as_ptr().add(at + 32 * v).cast()) };
                *halves = [
                    _mm256_and_si256(word, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(word), mask),
                ];
            }
            for (sums, &factor) in sums.iter_mut().zip(&term.factors) {
                let [low, high] = &NIBBLES[usize::from(factor)];
                let (low, high) = (table(low), table(high));
                for (sum, halves) in sums.iter_mut().zip(&halves) {
                    let product = _mm256_xor_si256(
                        _mm256_shuffle_epi8(low, halves[0]),
                        _mm256_shuffle_epi8(high, halves[1]),
                    );
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
        }
        for (column, sums) in out.iter_mut().zip(&sums) {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: `at + step <= len`, the result's length.
                unsafe { _mm256_storeu_si256(column.as_mut_ptr().add(at + 32 * v).cast(), *sum) };
            }
        }
        at += step;
    }
    at
}

pub(super) fn combine_gfni(terms: &[Term], out: &mut [&mut [u8]]) {
    let len = combined_len(terms, out);
    // SAFETY: the form was chosen because the processor has AVX-512F, AVX-512BW and GFNI; all terms and results have the
    // same length.
    let done = unsafe {
        match out.len() {
            1 => sums_gfni::<1>(terms, out, len),
            2 => sums_gfni::<2>(terms, out, len),
            _ => sums_gfni::<3>(terms, out, len),
        }
    };
    portable::combine(terms, out, done);
}

/// Works on 256 bytes of every term at a time; returns the bytes done.
///
/// # Safety
/// AVX-512F, AVX-512BW, GFNI; lengths as for [`sums_avx2`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn sums_gfni<const OUT: usize>(terms: &[Term], out: &mut [&mut [u8]], len: usize) -> usize {
    const V: usize = 4;
    let step = 64 * V;
    let mut at = 0;
    while at + step <= len {
        let mut sums = [[_mm512_setzero_si512(); V]; OUT];
        for term in terms {
            let by: [__m512i; OUT] =
                std::array::from_fn(|place| _mm512_set1_epi64(bit_matrix(term.factors[place])));
            for v in 0..V {
                // SAFETY: `at + step <= len`, the term's length.
                let word: __m512i =
                    unsafe { _mm512_loadu_si512(term.bytes.as_ptr().add(at + 64 * v).cast()) };
                for (sums, by) in sums.iter_mut().zip(&by) {
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(word, *by);
                    sums[v] = _mm512_xor_si512(sums[v], product);
                }
            }
        }
        for (column, sums) in out.iter_mut().zip(&sums) {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: `at + step <= len`, the result's length.
                unsafe { _mm512_storeu_si512(column.as_mut_ptr().add(at + 64 * v).cast(), *sum) };
            }
        }
        at += step;
    }
    at
}
