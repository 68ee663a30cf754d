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

use super::{field, portable};

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
    let by = [1, 2, 4].map(|factor| _mm512_set1_epi64(bit_matrix(factor).cast_signed()));
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

/// Returns multiplication by `factor` as the bit matrix the affine instruction takes: byte 7-i holds the bits of the
/// operand that make up bit i of the product.
fn bit_matrix(factor: u8) -> u64 {
    let mut matrix = 0_u64;
    for out in 0..8 {
        for bit in 0..8 {
            if field::multiply(factor, 1 << bit) >> out & 1 == 1 {
                matrix |= 1 << (8 * (7 - out) + bit);
            }
        }
    }
    matrix
}

pub(super) fn multiply_add_avx2(target: &mut [u8], source: &[u8], factor: u8) {
    assert_eq!(target.len(), source.len(), "buffers of one length");
    if factor == 0 {
        return;
    }
    // SAFETY: the form was chosen because the processor has AVX2; both buffers have the same length.
    let done = unsafe { products_avx2(target, source, factor) };
    portable::multiply_add(&mut target[done..], &source[done..], factor);
}

/// Products by the low and high half of each byte, looked up; returns the bytes done.
///
/// # Safety
/// AVX2; both buffers have the same length.
#[target_feature(enable = "avx2")]
unsafe fn products_avx2(target: &mut [u8], source: &[u8], factor: u8) -> usize {
    let nibble = |shift: u32| -> [u8; 16] {
        std::array::from_fn(|x| {
            let x = u8::try_from(x).expect("an index of 16");
            field::multiply(factor, x << shift)
        })
    };
    let (low, high) = (nibble(0), nibble(4));
    // SAFETY: both tables have 16 bytes.
    let (low, high) = unsafe {
        (
            _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast())),
            _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast())),
        )
    };
    let mask = _mm256_set1_epi8(0x0f);
    let mut at = 0;
    while at + 32 <= source.len() {
        // SAFETY: `at + 32` is within the source.
        let word: __m256i = unsafe { _mm256_loadu_si256(source.as_ptr().add(at).cast()) };
        let product = _mm256_xor_si256(
            _mm256_shuffle_epi8(low, _mm256_and_si256(word, mask)),
            _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16::<4>(word), mask)),
        );
        // SAFETY: `at + 32` is within the target, which is as long as the source.
        unsafe {
            let place = target.as_mut_ptr().add(at).cast::<__m256i>();
            let sum = _mm256_xor_si256(_mm256_loadu_si256(place), product);
            _mm256_storeu_si256(place, sum);
        }
        at += 32;
    }
    at
}

pub(super) fn multiply_add_gfni(target: &mut [u8], source: &[u8], factor: u8) {
    assert_eq!(target.len(), source.len(), "buffers of one length");
    if factor == 0 {
        return;
    }
    // SAFETY: the form was chosen because the processor has AVX-512F, AVX-512BW and GFNI; both buffers have the same
    // length.
    let done = unsafe { products_gfni(target, source, factor) };
    portable::multiply_add(&mut target[done..], &source[done..], factor);
}

/// Returns the bytes done.
///
/// # Safety
/// AVX-512F, AVX-512BW, GFNI; both buffers have the same length.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn products_gfni(target: &mut [u8], source: &[u8], factor: u8) -> usize {
    let matrix = _mm512_set1_epi64(bit_matrix(factor).cast_signed());
    let mut at = 0;
    while at + 64 <= source.len() {
        // SAFETY: `at + 64` is within the source and within the target, which is as long.
        unsafe {
            let word: __m512i = _mm512_loadu_si512(source.as_ptr().add(at).cast());
            let product = _mm512_gf2p8affine_epi64_epi8::<0>(word, matrix);
            let place = target.as_mut_ptr().add(at).cast::<__m512i>();
            let sum = _mm512_xor_si512(_mm512_loadu_si512(place), product);
            _mm512_storeu_si512(place, sum);
        }
        at += 64;
    }
    at
}
