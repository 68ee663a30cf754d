//! The stored bytes of blocks.

use codec::{checksum as sums, compress};

/// The first byte chooses the algorithm, the next two the logical size in 512-byte sectors.
pub(crate) fn decompress(data: &[u8]) {
    let [which, low, high, stored @ ..] = data else {
        return;
    };
    let algorithm = match which % 5 {
        0 => compress::Algorithm::Lzjb,
        1 => compress::Algorithm::Gzip(6),
        2 => compress::Algorithm::Zle,
        3 => compress::Algorithm::Lz4,
        _ => compress::Algorithm::Zstd(3),
    };
    let sectors = 1 + usize::from(u16::from_le_bytes([*low, *high])) % 2048;
    if let Ok(out) = compress::decompress(algorithm, stored, sectors * 512) {
        assert_eq!(out.len(), sectors * 512);
    }
}

pub(crate) fn checksum(data: &[u8]) {
    use sums::Algorithm as A;
    for alg in [
        A::Off,
        A::Fletcher2,
        A::Fletcher4,
        A::Sha256,
        A::Sha512,
        A::Skein,
        A::Edonr,
        A::Blake3,
    ] {
        std::hint::black_box(sums::compute(alg, &[7; 32], data));
    }
    assert_eq!(sums::fletcher4(data), sums::fletcher4_portable(data));
}
