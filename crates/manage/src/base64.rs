//! Bytes as letters (RFC 4648).

/// Returns bytes in the alphabet of RFC 4648, 4.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| {
            word << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let value = word >> (18 - 6 * digit) & 63;
            match digit <= group.len() {
                true => text.push(char::from(DIGITS[value as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

/// Returns bytes in the alphabet for addresses and names of files, without padding (RFC 4648, 5).
#[must_use]
pub fn base64_url(bytes: &[u8]) -> String {
    let text = base64(bytes).replace('+', "-").replace('/', "_");
    text.trim_end_matches('=').to_owned()
}

/// Returns the bytes of what [`base64_url`] makes; `None` of anything else.
#[must_use]
pub fn from_base64_url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    // What is left over is less than a letter, and nothing.
    (bits < 6 && held == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        // RFC 4648, 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_alphabet_of_addresses_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 0..all.len() {
            let text = base64_url(&all[..length]);
            assert!(!text.contains(['+', '/', '=']), "{text}");
            assert_eq!(from_base64_url(&text).as_deref(), Some(&all[..length]));
        }
        // RFC 7636, appendix B.
        let octets = [3, 236, 255, 224, 193];
        assert_eq!(base64_url(&octets), "A-z_4ME");
        for bad in ["A", "Zg==", "Zh", "Z g", "Zm9v\u{e9}"] {
            assert_eq!(from_base64_url(bad), None, "{bad}");
        }
    }
}
