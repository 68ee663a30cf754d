//! Fletcher sums, with vector forms of fletcher4.
//!
//! Fletcher4 runs four dependent sums over 32-bit words. The vector forms give each lane every N-th word, let it run its
//! own four sums, and put the lanes together at the end: with `r` the number of words from one to the end, the sums
//! weigh a word by 1, r, r(r+1)/2 and r(r+1)(r+2)/6; a lane `j` of `N` sees its word as `s` from its own end, and
//! `r = N s - j`, so each total is a fixed combination of the lanes' sums ([`combine`]).

/// Sums of the lanes: `[sum][lane]`.
type Lanes<const N: usize> = [[u64; N]; 4];

/// Fletcher2 over pairs of 64-bit words; a tail of less than 16 bytes does not count.
#[must_use]
pub fn fletcher2(data: &[u8]) -> [u64; 4] {
    let [mut a0, mut a1, mut b0, mut b1] = [0u64; 4];
    for pair in data.chunks_exact(16) {
        let (x, y) = pair.split_at(8);
        a0 = a0.wrapping_add(super::word_le(x));
        a1 = a1.wrapping_add(super::word_le(y));
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    [a0, a1, b0, b1]
}

/// Fletcher4 over 32-bit words, with the widest vectors the processor has; a tail of less than 4 bytes does not count.
#[must_use]
pub fn fletcher4(data: &[u8]) -> [u64; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        // Below this the set-up and the combination cost more than they save.
        if data.len() >= 256 {
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has AVX-512F, the only requirement of the function.
                return unsafe { x86::fletcher4_avx512(data) };
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2, the only requirement of the function.
                return unsafe { x86::fletcher4_avx2(data) };
            }
        }
    }
    fletcher4_portable(data)
}

/// Fletcher4 over data that comes in pieces, as send streams need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunningFletcher4 {
    sums: [u64; 4],
}

impl RunningFletcher4 {
    /// Returns the sums so far.
    #[must_use]
    pub const fn sums(&self) -> [u64; 4] {
        self.sums
    }

    /// Goes on with `data`, whose length is a multiple of 4 bytes.
    ///
    /// # Panics
    /// On any other length: the words of the sum would not be those of the whole.
    pub fn update(&mut self, data: &[u8]) {
        self.update_known(fletcher4(data), data.len());
    }

    /// Goes on with data whose own [`fletcher4`] and length in bytes are known, as those of a stored block are.
    ///
    /// # Panics
    /// On a length that is no multiple of 4.
    pub fn update_known(&mut self, sums: [u64; 4], len: usize) {
        assert!(
            len.is_multiple_of(4),
            "a running fletcher4 sum goes on with {len} bytes"
        );
        self.append(sums, (len / 4) as u64);
    }

    /// Goes on with `data` of a writer of the other byte order; like [`Self::update`] otherwise.
    ///
    /// # Panics
    /// As [`Self::update`].
    pub fn update_swapped(&mut self, data: &[u8]) {
        for piece in data.chunks(4096) {
            let swapped: Vec<u8> = piece
                .chunks_exact(4)
                .flat_map(|w| word32(w).to_be_bytes())
                .collect();
            assert!(
                swapped.len() == piece.len(),
                "a running fletcher4 sum goes on with {} bytes",
                data.len()
            );
            self.update(&swapped);
        }
    }

    /// The sums of `words` more words, computed from zero, put behind the sums so far: each earlier word is seen `words` times more
    /// by the second sum, and by the next ones as often as there are pairs and triples of the later words.
    fn append(&mut self, later: [u64; 4], words: u64) {
        // Products of up to three consecutive numbers, divided before they can wrap.
        let n = u128::from(words);
        let low = |v: u128| u64::try_from(v & u128::from(u64::MAX)).expect("64 bits are left");
        let pairs = low(n * (n + 1) / 2);
        let triples = low(n * (n + 1) * (n + 2) / 6);
        let [a, b, c, d] = self.sums;
        let times = u64::wrapping_mul;
        self.sums = [
            a.wrapping_add(later[0]),
            b.wrapping_add(times(words, a)).wrapping_add(later[1]),
            c.wrapping_add(times(words, b))
                .wrapping_add(times(pairs, a))
                .wrapping_add(later[2]),
            d.wrapping_add(times(words, c))
                .wrapping_add(times(pairs, b))
                .wrapping_add(times(triples, a))
                .wrapping_add(later[3]),
        ];
    }
}

/// Fletcher4 without processor-specific code: the twin the vector forms are tested against.
#[must_use]
pub fn fletcher4_portable(data: &[u8]) -> [u64; 4] {
    const N: usize = 4;
    let mut lanes: Lanes<N> = [[0; N]; 4];
    let (groups, tail) = data.split_at(data.len() - data.len() % (4 * N));
    for group in groups.chunks_exact(4 * N) {
        for (j, w) in group.chunks_exact(4).enumerate() {
            let w = u64::from(word32(w));
            lanes[0][j] = lanes[0][j].wrapping_add(w);
            lanes[1][j] = lanes[1][j].wrapping_add(lanes[0][j]);
            lanes[2][j] = lanes[2][j].wrapping_add(lanes[1][j]);
            lanes[3][j] = lanes[3][j].wrapping_add(lanes[2][j]);
        }
    }
    scalar(combine(&lanes), tail)
}

fn word32(chunk: &[u8]) -> u32 {
    u32::from_le_bytes(chunk.try_into().expect("a chunk of four bytes"))
}

/// Continues the sums word by word.
fn scalar(sums: [u64; 4], data: &[u8]) -> [u64; 4] {
    let [mut a, mut b, mut c, mut d] = sums;
    for w in data.chunks_exact(4) {
        a = a.wrapping_add(u64::from(word32(w)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

/// Puts the lanes' sums together; `N` is even. The coefficients are those of the module comment, expanded.
fn combine<const N: usize>(lanes: &Lanes<N>) -> [u64; 4] {
    let n = N as i64;
    let mut out = [0u64; 4];
    for (j, jj) in (0..n).enumerate() {
        let [a, b, c, d] = [lanes[0][j], lanes[1][j], lanes[2][j], lanes[3][j]];
        let term = |coefficient: i64, sum: u64| coefficient.cast_unsigned().wrapping_mul(sum);
        let add = |total: &mut u64, terms: &[u64]| {
            for t in terms {
                *total = total.wrapping_add(*t);
            }
        };
        add(&mut out[0], &[a]);
        add(&mut out[1], &[term(n, b), term(-jj, a)]);
        add(
            &mut out[2],
            &[
                term(n * n, c),
                term(-(n * (n - 1 + 2 * jj)) / 2, b),
                term(jj * (jj - 1) / 2, a),
            ],
        );
        let db = (n * n * n - 3 * n * n * (1 - jj) + 3 * n * jj * jj - 6 * n * jj + 2 * n) / 6;
        add(
            &mut out[3],
            &[
                term(n * n * n, d),
                term(-(n * n * (n - 1 + jj)), c),
                term(db, b),
                term(-(jj * (jj - 1) * (jj - 2)) / 6, a),
            ],
        );
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The vector forms: one 32-bit word per 64-bit lane.

    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi64, _mm256_cvtepu32_epi64,
        _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256, _mm512_add_epi64,
        _mm512_cvtepu32_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    };

    use super::{Lanes, combine, scalar};

    #[target_feature(enable = "avx2")]
    pub(super) fn fletcher4_avx2(data: &[u8]) -> [u64; 4] {
        const N: usize = 4;
        let mut sums = [_mm256_setzero_si256(); 4];
        let (groups, tail) = data.split_at(data.len() - data.len() % (4 * N));
        for group in groups.chunks_exact(4 * N) {
            // SAFETY: a group is 16 bytes, which is what is read; the load needs no alignment.
            let w = unsafe { _mm_loadu_si128(group.as_ptr().cast::<__m128i>()) };
            sums[0] = _mm256_add_epi64(sums[0], _mm256_cvtepu32_epi64(w));
            sums[1] = _mm256_add_epi64(sums[1], sums[0]);
            sums[2] = _mm256_add_epi64(sums[2], sums[1]);
            sums[3] = _mm256_add_epi64(sums[3], sums[2]);
        }
        let mut lanes: Lanes<N> = [[0; N]; 4];
        for (lane, sum) in lanes.iter_mut().zip(sums) {
            // SAFETY: a row of lanes is 32 bytes, which is what is written; the store needs no alignment.
            unsafe { _mm256_storeu_si256(lane.as_mut_ptr().cast::<__m256i>(), sum) };
        }
        scalar(combine(&lanes), tail)
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn fletcher4_avx512(data: &[u8]) -> [u64; 4] {
        const N: usize = 8;
        let mut sums = [_mm512_setzero_si512(); 4];
        let (groups, tail) = data.split_at(data.len() - data.len() % (4 * N));
        for group in groups.chunks_exact(4 * N) {
            // SAFETY: a group is 32 bytes, which is what is read; the load needs no alignment.
            let w = unsafe { _mm256_loadu_si256(group.as_ptr().cast::<__m256i>()) };
            sums[0] = _mm512_add_epi64(sums[0], _mm512_cvtepu32_epi64(w));
            sums[1] = _mm512_add_epi64(sums[1], sums[0]);
            sums[2] = _mm512_add_epi64(sums[2], sums[1]);
            sums[3] = _mm512_add_epi64(sums[3], sums[2]);
        }
        let mut lanes: Lanes<N> = [[0; N]; 4];
        for (lane, sum) in lanes.iter_mut().zip(sums) {
            // SAFETY: a row of lanes is 64 bytes, which is what is written; the store needs no alignment.
            unsafe { _mm512_storeu_si512(lane.as_mut_ptr().cast::<__m512i>(), sum) };
        }
        scalar(combine(&lanes), tail)
    }

    #[cfg(test)]
    #[test]
    fn vectors_agree_with_the_portable_twin() {
        let data: Vec<u8> = (0..20_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for len in (0..700).chain([4096, 16_384, 19_996, 20_000]) {
            for start in [0, 1, 3] {
                let part = &data[start..start + len.min(data.len() - start)];
                let want = super::fletcher4_portable(part);
                assert_eq!(scalar([0; 4], part), want, "scalar, {} bytes", part.len());
                if std::arch::is_x86_feature_detected!("avx2") {
                    assert_eq!(
                        // SAFETY: the feature was just detected.
                        unsafe { fletcher4_avx2(part) },
                        want,
                        "avx2, {} bytes",
                        part.len()
                    );
                }
                if std::arch::is_x86_feature_detected!("avx512f") {
                    assert_eq!(
                        // SAFETY: the feature was just detected.
                        unsafe { fletcher4_avx512(part) },
                        want,
                        "avx512, {} bytes",
                        part.len()
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RunningFletcher4, fletcher4};

    #[test]
    fn pieces_sum_to_what_the_whole_does() {
        let data: Vec<u8> = (0..10_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for piece in [4, 280, 312, 4096, 10_000] {
            let mut running = RunningFletcher4::default();
            data.chunks(piece).for_each(|p| running.update(p));
            assert_eq!(running.sums(), fletcher4(&data), "pieces of {piece}");
            let mut known = RunningFletcher4::default();
            for piece in data.chunks(piece) {
                known.update_known(fletcher4(piece), piece.len());
            }
            assert_eq!(known, running);
        }
    }

    #[test]
    fn the_other_byte_order_sums_to_the_same() {
        let data: Vec<u8> = (0..=255).cycle().take(9000).collect();
        let swapped: Vec<u8> = data
            .chunks_exact(4)
            .flat_map(|w| [w[3], w[2], w[1], w[0]])
            .collect();
        let mut running = RunningFletcher4::default();
        running.update_swapped(&swapped);
        assert_eq!(running.sums(), fletcher4(&data));
    }
}
