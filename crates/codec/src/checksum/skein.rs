//! Skein-512 with 256 bits of output, keyed: "The Skein Hash Function Family", version 1.3.

const ROTATIONS: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];
const KEY_PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;
const BLOCK: usize = 64;
const ROUNDS: usize = 72;

/// Types of UBI invocations.
const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4;
const TYPE_MESSAGE: u64 = 48;
const TYPE_OUTPUT: u64 = 63;

/// Skein-MAC of `data` under `key`: 256 bits as little-endian words.
pub(super) fn mac_512_256(key: &[u8; 32], data: &[u8]) -> [u64; 4] {
    let mut state = ubi([0; 8], key, TYPE_KEY);
    // Schema "SHA3", version 1, 256 bits of output, no tree.
    let mut config = [0; 32];
    config[..8].copy_from_slice(&0x0001_3341_4853u64.to_le_bytes());
    config[8..16].copy_from_slice(&256u64.to_le_bytes());
    state = ubi(state, &config, TYPE_CONFIG);
    state = ubi(state, data, TYPE_MESSAGE);
    state = ubi(state, &[0; 8], TYPE_OUTPUT);
    [state[0], state[1], state[2], state[3]]
}

fn ubi(mut state: [u64; 8], message: &[u8], kind: u64) -> [u64; 8] {
    let mut position = 0u64;
    let mut rest = message;
    let mut first = true;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(BLOCK));
        let mut padded = [0; BLOCK];
        padded[..piece.len()].copy_from_slice(piece);
        let mut block = [0; 8];
        for (w, c) in block.iter_mut().zip(padded.chunks_exact(8)) {
            *w = super::word_le(c);
        }
        position += piece.len() as u64;
        let last = after.is_empty();
        let tweak = [
            position,
            kind << 56 | u64::from(first) << 62 | u64::from(last) << 63,
        ];
        state = threefish(&state, tweak, &block);
        for (s, w) in state.iter_mut().zip(block) {
            *s ^= w;
        }
        if last {
            return state;
        }
        first = false;
        rest = after;
    }
}

fn threefish(key: &[u64; 8], tweak: [u64; 2], block: &[u64; 8]) -> [u64; 8] {
    let mut k = [0; 9];
    k[..8].copy_from_slice(key);
    k[8] = key.iter().fold(KEY_PARITY, |x, w| x ^ w);
    let t = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let mut v = *block;
    for s in 0..ROUNDS / 4 {
        inject(&mut v, &k, &t, s);
        for r in 0..4 {
            let rotations = &ROTATIONS[(s % 2) * 4 + r];
            for (j, rotation) in rotations.iter().enumerate() {
                v[2 * j] = v[2 * j].wrapping_add(v[2 * j + 1]);
                v[2 * j + 1] = v[2 * j + 1].rotate_left(*rotation) ^ v[2 * j];
            }
            v = [v[2], v[1], v[4], v[7], v[6], v[5], v[0], v[3]];
        }
    }
    inject(&mut v, &k, &t, ROUNDS / 4);
    v
}

/// Adds the subkey of step `s`.
fn inject(v: &mut [u64; 8], k: &[u64; 9], t: &[u64; 3], s: usize) {
    for (i, w) in v.iter_mut().enumerate() {
        *w = w.wrapping_add(k[(s + i) % 9]);
    }
    v[5] = v[5].wrapping_add(t[s % 3]);
    v[6] = v[6].wrapping_add(t[(s + 1) % 3]);
    v[7] = v[7].wrapping_add(s as u64);
}
