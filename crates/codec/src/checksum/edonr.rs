//! Edon-R 512 as the format salts it: the state is first fed H(salt) and H(H(salt)).
//!
//! The quasigroup operation is written with rows of word indexes, as the definition gives them.

type Vector = [u64; 8];

const LEFT: [[usize; 5]; 8] = [
    [0, 1, 2, 4, 7],
    [0, 1, 3, 4, 7],
    [0, 1, 4, 6, 7],
    [2, 3, 5, 6, 7],
    [1, 2, 3, 5, 6],
    [0, 2, 3, 4, 5],
    [0, 1, 5, 6, 7],
    [2, 3, 4, 5, 6],
];
const LEFT_ROTATION: [u32; 8] = [0, 5, 15, 22, 31, 40, 50, 59];
const RIGHT: [[usize; 5]; 8] = [
    [0, 1, 2, 5, 7],
    [0, 1, 3, 4, 6],
    [0, 1, 2, 3, 5],
    [2, 3, 4, 6, 7],
    [0, 1, 3, 4, 5],
    [2, 4, 5, 6, 7],
    [1, 2, 5, 6, 7],
    [0, 3, 4, 6, 7],
];
const RIGHT_ROTATION: [u32; 8] = [0, 10, 19, 29, 36, 44, 48, 55];
const OUT_LEFT: [[usize; 3]; 8] = [
    [0, 1, 4],
    [0, 4, 7],
    [1, 6, 7],
    [2, 3, 4],
    [0, 1, 7],
    [3, 5, 6],
    [2, 5, 6],
    [2, 3, 5],
];
const OUT_RIGHT: [[usize; 3]; 8] = [
    [0, 1, 5],
    [2, 6, 7],
    [0, 1, 3],
    [0, 3, 4],
    [1, 2, 5],
    [3, 4, 6],
    [2, 5, 7],
    [4, 6, 7],
];

const BLOCK: usize = 128;
const DIGEST: usize = 64;

/// The checksum of `data` under the pool's salt: the first 256 bits of the digest as little-endian words.
pub(super) fn salted(salt: &[u8; 32], data: &[u8]) -> [u64; 4] {
    let h = digest(&[], salt);
    let hh = digest(&[], &h);
    let mut prefix = [0; BLOCK];
    prefix[..DIGEST].copy_from_slice(&h);
    prefix[DIGEST..].copy_from_slice(&hh);
    super::words_le(&digest(&prefix, data))
}

/// Edon-R 512 of `prefix` (nothing or whole blocks) followed by `data`.
fn digest(prefix: &[u8], data: &[u8]) -> [u8; DIGEST] {
    let mut state = ChainingState::new();
    for block in prefix.chunks_exact(BLOCK) {
        state.absorb(block);
    }
    let blocks = data.chunks_exact(BLOCK);
    let tail = blocks.remainder();
    blocks.for_each(|b| state.absorb(b));

    let bits = 8 * (prefix.len() as u64 + data.len() as u64);
    let mut last = [0; 2 * BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    last[tail.len()] = 0x80;
    let end = if tail.len() + 9 <= BLOCK {
        BLOCK
    } else {
        2 * BLOCK
    };
    last[end - 8..end].copy_from_slice(&bits.to_le_bytes());
    last[..end]
        .chunks_exact(BLOCK)
        .for_each(|b| state.absorb(b));
    state.output()
}

struct ChainingState {
    p0: Vector,
    p1: Vector,
}

impl ChainingState {
    fn new() -> Self {
        // The bytes 0x80, 0x81, ... 0xff as big-endian words.
        let word =
            |i: u64| 0x8081_8283_8485_8687u64.wrapping_add(i.wrapping_mul(0x0808_0808_0808_0808));
        let mut state = Self {
            p0: [0; 8],
            p1: [0; 8],
        };
        for (i, (a, b)) in (0..).zip(state.p0.iter_mut().zip(&mut state.p1)) {
            *a = word(i);
            *b = word(i + 8);
        }
        state
    }

    fn absorb(&mut self, block: &[u8]) {
        let (mut m0, mut m1) = ([0; 8], [0; 8]);
        let (low, high) = block.split_at(BLOCK / 2);
        for (w, c) in m0
            .iter_mut()
            .zip(low.chunks_exact(8))
            .chain(m1.iter_mut().zip(high.chunks_exact(8)))
        {
            *w = super::word_le(c);
        }
        let mut a = multiply(&reversed(&m1), &m0);
        let mut b = multiply(&a, &m1);
        a = multiply(&self.p1, &a);
        b = multiply(&a, &b);
        a = multiply(&a, &self.p0);
        b = multiply(&b, &a);
        a = multiply(&reversed(&m0), &a);
        b = multiply(&a, &b);
        for i in 0..8 {
            self.p0[i] ^= m1[i] ^ a[i];
            self.p1[i] ^= m0[i] ^ b[i];
        }
    }

    fn output(&self) -> [u8; DIGEST] {
        let mut out = [0; DIGEST];
        for (c, w) in out.chunks_exact_mut(8).zip(self.p1) {
            c.copy_from_slice(&w.to_le_bytes());
        }
        out
    }
}

fn reversed(v: &Vector) -> Vector {
    let mut r = *v;
    r.reverse();
    r
}

/// The quasigroup operation.
#[inline]
fn multiply(x: &Vector, y: &Vector) -> Vector {
    let mix = |v: &Vector, rows: &[[usize; 5]; 8], rotations: &[u32; 8], constant: u64| {
        let mut out = [0; 8];
        for i in 0..8 {
            let start = if i == 0 { constant } else { 0 };
            out[i] = rows[i]
                .iter()
                .fold(start, |sum, j| sum.wrapping_add(v[*j]))
                .rotate_left(rotations[i]);
        }
        out
    };
    let s: Vector = mix(x, &LEFT, &LEFT_ROTATION, 0xaaaa_aaaa_aaaa_aaaa);
    let t: Vector = mix(y, &RIGHT, &RIGHT_ROTATION, 0x5555_5555_5555_5555);
    let mut out = [0; 8];
    for i in 0..8 {
        let [a, b, c] = OUT_LEFT[i];
        let [d, e, f] = OUT_RIGHT[i];
        out[i] = (s[a] ^ s[b] ^ s[c]).wrapping_add(t[d] ^ t[e] ^ t[f]);
    }
    out
}
