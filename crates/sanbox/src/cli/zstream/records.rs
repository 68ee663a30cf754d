//! Records and payloads of a stream, read from a file or a pipe, in bounded memory.

use std::io::{self, Read};

use engine::stream::{RECORD_SIZE, StreamError, StreamReader};

/// Bytes of payload read at once: memory does not grow with what a record claims.
const PIECE: usize = 64 << 10;

/// Why a stream was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("cannot read the stream: {0}")]
    Io(#[from] io::Error),
    #[error("Invalid stream (bad magic number)")]
    NotAStream,
    #[error("Invalid stream ({0})")]
    Malformed(StreamError),
    #[error("invalid checksum")]
    Checksum,
    #[error("the stream is cut short")]
    CutShort,
    #[error("the stream is of the other byte order")]
    ForeignByteOrder,
    #[error("a record of the stream stands for a block that did not come before it")]
    NoSuchBlock,
}

/// The next record; `None` at the end of the stream.
pub(super) fn next_record(input: &mut impl Read) -> Result<Option<[u8; RECORD_SIZE]>, ReadError> {
    let mut bytes = [0; RECORD_SIZE];
    let mut filled = 0;
    while filled < RECORD_SIZE {
        match input.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(ReadError::CutShort),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(bytes))
}

/// Reads the payload of a record in pieces.
pub(super) fn pieces(
    input: &mut impl Read,
    reader: &mut StreamReader,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ReadError> {
    let mut piece = vec![0; PIECE];
    while reader.payload_left() > 0 {
        let len = usize::try_from(reader.payload_left()).map_or(PIECE, |left| left.min(PIECE));
        let piece = &mut piece[..len];
        input.read_exact(piece).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                ReadError::CutShort
            } else {
                error.into()
            }
        })?;
        reader.payload(piece);
        take(piece)?;
    }
    Ok(())
}
