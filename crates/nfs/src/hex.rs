//! Names of clients in records: any bytes, as hexadecimal text.

use std::fmt::Write as _;

/// Longest name of a client in bytes (RFC 8881, NFS4_OPAQUE_LIMIT; NLM has the same, LM_MAXSTRLEN).
const NAME_BYTES_MAX: usize = 1024;

/// Appends bytes as text.
pub(crate) fn encode(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
}

/// Returns the bytes of a text, or `None` when it is not one of ours.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || text.len() > 2 * NAME_BYTES_MAX {
        return None;
    }
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = pairs.iter().map(|[high, low]| {
        let byte = digit(*high)? << 4 | digit(*low)?;
        u8::try_from(byte).ok()
    });
    bytes.collect()
}
