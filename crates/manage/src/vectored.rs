//! Writes of bytes that lie in parts, without copying them together.

use std::io::{self, ErrorKind, IoSlice};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Writes all of the parts, one behind the other.
///
/// # Errors
/// Of writing; some of it may have been written.
pub(crate) async fn write_all_parts<W: AsyncWrite + Unpin>(
    to: &mut W,
    parts: &[&[u8]],
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    // What is empty is no part of a write, which would return 0.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match to.write_vectored(rest).await? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn parts_are_written_in_order_however_few_bytes_are_taken_at_once() {
        let parts: [&[u8]; 5] = [b"", b"abc", b"", b"de", b""];
        for room in 1..6 {
            let (mut near, mut far) = tokio::io::duplex(room);
            let writing = async move { write_all_parts(&mut near, &parts).await };
            let mut come = Vec::new();
            let (written, read) = tokio::join!(writing, far.read_to_end(&mut come));
            written.expect("written");
            assert_eq!((read.expect("read"), &come[..]), (5, &b"abcde"[..]));
        }
    }
}
