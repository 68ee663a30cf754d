//! Round trips, limits and hostile input. Blocks written by OpenZFS are read in `tests/`.
#![allow(clippy::cast_possible_truncation, reason = "test data")]

use super::*;

const ALL: [Algorithm; 17] = [
    Algorithm::Lzjb,
    Algorithm::Gzip(1),
    Algorithm::Gzip(6),
    Algorithm::Gzip(9),
    Algorithm::Zle,
    Algorithm::Lz4,
    Algorithm::Zstd(0),
    Algorithm::Zstd(1),
    Algorithm::Zstd(3),
    Algorithm::Zstd(10),
    Algorithm::Zstd(19),
    Algorithm::Zstd(103),
    Algorithm::Zstd(112),
    Algorithm::Zstd(113),
    Algorithm::Zstd(121),
    Algorithm::Zstd(122),
    Algorithm::Zstd(123),
];

/// A small generator with a fixed seed.
pub(super) fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed | 1;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn samples() -> Vec<Vec<u8>> {
    let mut next = noise(7);
    let mut sparse = vec![0; 131_072];
    for _ in 0..300 {
        let at = (next() % 131_072) as usize;
        sparse[at] = (next() >> 56) as u8;
    }
    let text: Vec<u8> = (0..9000)
        .flat_map(|i| format!("line {} of {}\n", i, i * i % 97).into_bytes())
        .collect();
    let mut zeros_end = vec![1; 4096];
    zeros_end[1000..].fill(0);
    vec![
        vec![0; 512],
        vec![0; 131_072],
        vec![7; 16_384],
        text[..16_384].to_vec(),
        text[..131_072].to_vec(),
        sparse,
        zeros_end,
        (0..1 << 20).map(|i| (i >> 8) as u8).collect(),
    ]
}

#[test]
fn everything_round_trips_within_its_limit() {
    for src in samples() {
        for alg in ALL {
            let Some(packed) = compress(alg, &src, src.len()) else {
                continue;
            };
            assert!(packed.len() <= src.len());
            assert_eq!(
                decompress(alg, &packed, src.len()).unwrap(),
                src,
                "{alg:?}, {} bytes",
                src.len()
            );
            let mut padded = packed.clone();
            padded.resize(packed.len() + 700, 0);
            assert_eq!(
                decompress(alg, &padded, src.len()).unwrap(),
                src,
                "{alg:?} with padding"
            );
            assert!(
                compress(alg, &src, packed.len()).is_some(),
                "{alg:?} exact fit"
            );
            if packed.len() > 1 {
                assert!(
                    compress(alg, &src, packed.len() - 1).is_none(),
                    "{alg:?} one byte less"
                );
                assert!(
                    decompress(alg, &packed[..packed.len() / 2], src.len()).is_err(),
                    "{alg:?} cut"
                );
            }
            assert!(
                decompress(alg, &packed, src.len() + 512).is_err(),
                "{alg:?} larger size"
            );
        }
    }
}

#[test]
fn what_compresses_does_compress() {
    let src = &samples()[4];
    for alg in ALL {
        if alg != Algorithm::Zle && !matches!(alg, Algorithm::Zstd(113..)) {
            assert!(compress(alg, src, src.len() * 3 / 4).is_some(), "{alg:?}");
        }
    }
    let mut next = noise(9);
    let random: Vec<u8> = (0..131_072).map(|_| (next() >> 56) as u8).collect();
    for alg in ALL {
        assert!(
            compress(alg, &random, random.len() * 7 / 8).is_none(),
            "{alg:?}"
        );
    }
}

#[test]
fn mutated_input_never_panics() {
    let mut next = noise(11);
    for src in samples().iter().filter(|s| s.len() <= 16_384) {
        for alg in ALL {
            let Some(packed) = compress(alg, src, src.len()) else {
                continue;
            };
            for _ in 0..60 {
                let mut bad = packed.clone();
                for _ in 0..1 + next() % 4 {
                    let at = (next() % bad.len() as u64) as usize;
                    bad[at] = (next() >> 56) as u8;
                }
                let _ = decompress(alg, &bad, src.len());
            }
        }
    }
}

#[test]
fn a_size_the_input_cannot_hold_is_refused_before_allocating() {
    for alg in ALL {
        assert!(decompress(alg, &[0; 16], 1 << 40).is_err());
        assert!(decompress(alg, &[], 512).is_err());
    }
}

#[test]
fn zstd_level_codes() {
    for code in [20, 100, 101, 102, 124, 255] {
        assert!(
            compress(Algorithm::Zstd(code), &[0; 4096], 4096).is_none(),
            "{code}"
        );
    }
    let packed = compress(Algorithm::Zstd(0), &[5; 4096], 4096).unwrap();
    assert_eq!(packed[4], 3);
}
