//! Key hashing and name normalization.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization as _;

use super::{norm, zap_flags};

/// Reflected polynomial of the format's CRC-64 (ECMA-182).
const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

#[allow(
    clippy::indexing_slicing,
    reason = "a constant: a panic would be a compile error"
)]
const TABLE: [u64; 256] = {
    let mut table = [0u64; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 {
                (c >> 1) ^ POLYNOMIAL
            } else {
                c >> 1
            };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

fn step(h: u64, byte: u8) -> u64 {
    let i = usize::from(crate::bytes::low8(h) ^ byte);
    (h >> 8) ^ TABLE.get(i).copied().unwrap_or(0)
}

/// How many top bits of a hash count, by the ZAP's flags.
#[must_use]
pub const fn hash_bits(flags: u64) -> u32 {
    if flags & zap_flags::HASH64 != 0 {
        48
    } else {
        28
    }
}

const fn masked(h: u64, flags: u64) -> u64 {
    h & !((1 << (64 - hash_bits(flags))) - 1)
}

/// Hash of a string key, given normalized and without its NUL. `salt` must not be 0.
#[must_use]
pub fn hash(salt: u64, key: &[u8], flags: u64) -> u64 {
    masked(key.iter().fold(salt, |h, b| step(h, *b)), flags)
}

/// Hash of a key of 64-bit integers; with the pre-hashed flag its first integer is the hash.
#[must_use]
pub fn hash_words(salt: u64, key: &[u64], flags: u64) -> u64 {
    if flags & zap_flags::PRE_HASHED_KEY != 0 {
        return masked(key.first().copied().unwrap_or(0), flags);
    }
    let bytes = key.iter().flat_map(|w| w.to_le_bytes());
    masked(bytes.fold(salt, step), flags)
}

/// The form of a name that is hashed and compared under `norm_flags`: case first, then Unicode form. Names that are not
/// UTF-8 are taken as they are.
///
/// Characters that Unicode got after version 5.0, which OpenZFS's tables stop at, may differ in form from what OpenZFS
/// makes of them.
#[must_use]
pub fn normalize(name: &[u8], norm_flags: u64) -> Cow<'_, [u8]> {
    let form = norm_flags & (norm::NFC | norm::NFKC | norm::NFD | norm::NFKD);
    let case = norm_flags & (norm::TOUPPER | norm::TOLOWER);
    if name.is_ascii() {
        return match case {
            norm::TOUPPER => Cow::Owned(name.to_ascii_uppercase()),
            norm::TOLOWER => Cow::Owned(name.to_ascii_lowercase()),
            _ => Cow::Borrowed(name),
        };
    }
    if case == 0 && form == 0 {
        return Cow::Borrowed(name);
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Cow::Borrowed(name);
    };
    let folded = text.chars().map(|c| {
        if case == 0 {
            c
        } else {
            fold(c, case == norm::TOUPPER)
        }
    });
    // OpenZFS: module/unicode/u8_textprep.c: a form is a decomposition, canonical or by compatibility, and perhaps a
    // composition after it.
    let normalized: String = match form {
        norm::NFD => folded.nfd().collect(),
        norm::NFC => folded.nfc().collect(),
        norm::NFKD => folded.nfkd().collect(),
        norm::NFKC => folded.nfkc().collect(),
        _ => folded.collect(),
    };
    Cow::Owned(normalized.into_bytes())
}

/// Simple case mapping, as Unicode 5.0 had it: letters that got a case partner later stay as they are.
fn fold(c: char, upper: bool) -> char {
    let later = matches!(c,
        '\u{10d0}'..='\u{10ff}' | '\u{13a0}'..='\u{13ff}' | '\u{1c80}'..='\u{1cbf}' | '\u{1e9e}'
        | '\u{a640}'..='\u{a7ff}' | '\u{ab30}'..='\u{abbf}' | '\u{10500}'..='\u{1ffff}');
    if later {
        return c;
    }
    let single = |mut it: Box<dyn Iterator<Item = char>>| match (it.next(), it.next()) {
        (Some(one), None) => one,
        _ => c,
    };
    if upper {
        single(Box::new(c.to_uppercase()))
    } else {
        single(Box::new(c.to_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_table_is_the_ecma_one() {
        assert_eq!(TABLE[128], POLYNOMIAL);
        // CRC-64/XZ check value: initial and final complement, same polynomial and order.
        let crc = !b"123456789".iter().fold(!0, |h, b| step(h, *b));
        assert_eq!(crc, 0x995d_c9bb_df19_39fa);
    }

    #[test]
    fn case_is_folded_without_growing() {
        assert_eq!(normalize(b"aBc", norm::TOUPPER).as_ref(), b"ABC");
        assert_eq!(
            normalize("\u{e4}\u{df}".as_bytes(), norm::TOUPPER).as_ref(),
            "\u{c4}\u{df}".as_bytes()
        );
        assert_eq!(normalize(b"aBc", 0).as_ref(), b"aBc");
        let check = |name: &str, flags, expect: &str| {
            assert_eq!(
                normalize(name.as_bytes(), flags).as_ref(),
                expect.as_bytes(),
                "{name}"
            );
        };
        check("\u{e4}", norm::NFD, "a\u{308}");
        check("a\u{308}", norm::NFC, "\u{e4}");
        check("\u{fb01}", norm::NFC, "\u{fb01}");
        check("\u{fb01}", norm::NFKC, "fi");
        check("\u{fb01}\u{e4}", norm::NFKD, "fia\u{308}");
        check("caf\u{e9}", norm::NFD | norm::TOUPPER, "CAFE\u{301}");
        assert_eq!(normalize(b"\xff\xe4", norm::NFC).as_ref(), b"\xff\xe4");
    }
}
