//! Blocks that OpenZFS 2.3.2 wrote, with the checksums of their block pointers.
//!
//! Method: stored bytes were cut out of pools made by the kernel module, one per function; the digests of the contents
//! come from an independent reader.

#![allow(clippy::indexing_slicing, reason = "tests may panic")]

use std::path::Path;

use codec::checksum::{self, Algorithm as Sum};
use codec::compress::{self, Algorithm as Zip};

fn read(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/real")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One file in the pool, stored by three recipes: mixed text, the same by lz4, and mostly zeros.
const TEXT: &str = "29e5dab0e79a04392ab2729903e2efcdc4b7a224319c50b5a6bea98b9881418f";
const OTHER_TEXT: &str = "7192835b3de5bbf90300cd88fe9db36f9ce89a2fa6adc924bb9acbaee078d8bb";
const ZEROS: &str = "77886ddd9f05bc8faacd7957db26d33b0407feca38ee546b4b873af73529c85e";

#[test]
fn decompresses_what_openzfs_compressed() {
    let cases: [(&str, Zip, usize, &str, u64); 13] = [
        ("lzjb", Zip::Lzjb, 9216, TEXT, 0x0000_00db_32bb_ff9d),
        ("gzip-1", Zip::Gzip(1), 9216, TEXT, 0x0000_010f_f6a4_7782),
        ("gzip-6", Zip::Gzip(6), 9216, TEXT, 0x0000_00ef_6064_b775),
        ("gzip-9", Zip::Gzip(9), 9216, TEXT, 0x0000_00ef_6064_f575),
        ("zle", Zip::Zle, 131_072, ZEROS, 0x0000_011a_9cc9_2a90),
        ("lz4", Zip::Lz4, 9216, OTHER_TEXT, 0x0000_000f_83b1_5787),
        ("zstd-1", Zip::Zstd(1), 9216, TEXT, 0x0000_010a_fa05_c080),
        ("zstd-3", Zip::Zstd(3), 9216, TEXT, 0x0000_00fb_42b8_1c36),
        ("zstd-10", Zip::Zstd(10), 9216, TEXT, 0x0000_00e0_dad3_d009),
        ("zstd-19", Zip::Zstd(19), 9216, TEXT, 0x0000_00cd_5e24_3ec2),
        (
            "zstd-103",
            Zip::Zstd(103),
            9216,
            TEXT,
            0x0000_0101_4490_3e32,
        ),
        (
            "zstd-121",
            Zip::Zstd(121),
            9216,
            OTHER_TEXT,
            0x0000_0027_f2da_e376,
        ),
        (
            "zstd-123",
            Zip::Zstd(123),
            131_072,
            ZEROS,
            0x0000_0072_6d8d_a707,
        ),
    ];
    for (name, alg, lsize, digest, first_word) in cases {
        let stored = read(&format!("{name}.bin"));
        assert_eq!(
            checksum::fletcher4(&stored)[0],
            first_word,
            "{name}: stored bytes"
        );
        let data =
            compress::decompress(alg, &stored, lsize).unwrap_or_else(|e| panic!("{name}: {e}"));
        let sum: String = checksum::sha256(&data)
            .iter()
            .map(|w| format!("{w:016x}"))
            .collect();
        assert_eq!(sum, digest, "{name}: contents");
        // What we make of the same contents is as small, give or take a little.
        let again = compress::compress(alg, &data, stored.len() + 512);
        assert!(
            again.is_some_and(|a| compress::decompress(alg, &a, lsize).is_ok_and(|d| d == data)),
            "{name}"
        );
    }
}

#[test]
fn sums_are_those_in_block_pointers() {
    let block = read("plain.bin");
    let salt: [u8; 32] = read("salt.bin").try_into().expect("32 bytes of salt");
    let cases = [
        (
            Sum::Fletcher2,
            [
                0xc543_f5b4_7fb2_1abd,
                0xffa6_d5b5_02e3_d4cb,
                0x759f_2977_6fd8_533c,
                0x4c74_6246_2de0_cacf,
            ],
        ),
        (
            Sum::Fletcher4,
            [
                0x0000_000c_4780_baed,
                0x0000_0581_b532_84bf,
                0x0001_4039_6ba9_a040,
                0x0031_1ecd_54fa_92f3,
            ],
        ),
        (
            Sum::Sha256,
            [
                0x7ce4_82dc_f4e5_86f4,
                0x3aaf_6e94_7361_91d9,
                0x0199_79c5_32cb_ff0e,
                0x16b9_c82b_f543_990e,
            ],
        ),
        (
            Sum::Sha512,
            [
                0xa41a_dccb_be2a_993c,
                0x901c_b67a_e183_5f6c,
                0x33e5_a7bb_30ec_525b,
                0x5a2b_efef_37af_2f21,
            ],
        ),
        (
            Sum::Skein,
            [
                0x1890_bcbc_cb81_89f1,
                0xea37_5278_c68a_82cc,
                0x620c_1d2a_30b6_703b,
                0x5093_b925_a760_65e3,
            ],
        ),
        (
            Sum::Edonr,
            [
                0xc976_061f_190b_6860,
                0x3b0d_b917_c9b6_5250,
                0x3a7c_5d9c_91c3_5767,
                0xc444_fcab_46fe_8af7,
            ],
        ),
        (
            Sum::Blake3,
            [
                0x131b_d6d1_83c8_99cb,
                0xca87_4bb5_c16c_4478,
                0xd715_cf39_efbf_2d4f,
                0x8a4d_d4e4_732f_0a24,
            ],
        ),
    ];
    for (alg, want) in cases {
        assert_eq!(checksum::compute(alg, &salt, &block), want, "{alg:?}");
    }
}
