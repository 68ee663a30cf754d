//! `zstream redup`: a stream that `zfs send -D` of OpenZFS before 2.1 made, with its blocks in place of the records that refer to them.
//!
//! What differs: checksums of what is read are verified, and a reference to nothing is refused. Streams without such records come out
//! as OpenZFS's command writes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write};

use engine::stream::{
    ByteOrder, RECORD_SIZE, StreamError, StreamReader, StreamRecord, StreamSum,
    put_record_checksum, stream_feature,
};

use super::records::{ReadError, next_record, pieces};

/// What is known of a block that came: where its record stands in the file.
type Blocks = BTreeMap<(u64, u64, u64), u64>;

/// What was rewritten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Converted {
    pub(super) records: u64,
    pub(super) references: u64,
    /// Of the table of blocks.
    pub(super) memory_bytes: u64,
}

/// Writes the stream in `file` to `out`, each record that refers to a block replaced by the block.
///
/// # Errors
/// [`ReadError`]; what was written until then is of no use.
pub(super) fn redup(mut file: File, out: &mut dyn Write) -> Result<Converted, ReadError> {
    let mut input = BufReader::with_capacity(1 << 20, file.try_clone()?);
    let mut reader = StreamReader::default();
    let mut sum = StreamSum::default();
    let mut blocks = Blocks::new();
    let mut converted = Converted::default();
    let mut offset = 0;
    while let Some(mut bytes) = next_record(&mut input)? {
        let record = read_record(&mut reader, &bytes)?;
        converted.records += 1;
        let length = RECORD_SIZE as u64 + record.payload_len();
        match &record {
            StreamRecord::Begin(begin) => {
                let mut begin = begin.clone();
                begin.features &= !(stream_feature::DEDUP | stream_feature::DEDUP_PROPS);
                bytes = StreamRecord::Begin(begin).encode();
                sum.add_record(&mut bytes, true);
            }
            StreamRecord::End { checksum, to_guid } => {
                // The END of a package has no checksum.
                let checksum = if *checksum == [0; 4] {
                    *checksum
                } else {
                    sum.sums()
                };
                let to_guid = *to_guid;
                bytes = StreamRecord::End { checksum, to_guid }.encode();
                sum.add_record(&mut bytes, false);
            }
            StreamRecord::WriteByRef(reference) => {
                converted.references += 1;
                let earlier = (
                    reference.ref_guid,
                    reference.ref_object,
                    reference.ref_offset,
                );
                let at = *blocks.get(&earlier).ok_or(ReadError::NoSuchBlock)?;
                let target = (reference.to_guid, reference.object, reference.offset);
                let place = input.stream_position()?;
                file.seek(SeekFrom::Start(at))?;
                copy_block(&mut file, out, &mut sum, target)?;
                input.seek(SeekFrom::Start(place))?;
                offset += length;
                continue;
            }
            _ => {
                if let StreamRecord::Write(write) = &record {
                    blocks.insert((write.to_guid, write.object, write.offset), offset);
                }
                put_record_checksum(&mut bytes, [0; 4]);
                sum.add_record(&mut bytes, false);
            }
        }
        out.write_all(&bytes)?;
        pieces(&mut input, &mut reader, |piece| {
            sum.payload(piece);
            out.write_all(piece)
        })?;
        if matches!(record, StreamRecord::End { .. }) {
            // A package ends with two of them, the last with a checksum of its own.
            sum = StreamSum::default();
        }
        offset += length;
    }
    converted.memory_bytes = blocks.len() as u64 * (size_of::<(u64, u64, u64)>() + 8) as u64;
    Ok(converted)
}

fn read_record(
    reader: &mut StreamReader,
    bytes: &[u8; RECORD_SIZE],
) -> Result<StreamRecord, ReadError> {
    let record = reader.record(bytes).map_err(|error| match error {
        StreamError::NotAStream => ReadError::NotAStream,
        StreamError::Checksum { .. } => ReadError::Checksum,
        StreamError::Malformed(_) => ReadError::Malformed(error),
    })?;
    if reader.order() == Some(ByteOrder::Big) {
        return Err(ReadError::ForeignByteOrder);
    }
    Ok(record)
}

/// Writes the WRITE that stands at the file's position once more, as a block of another snapshot, object and offset. The block was
/// verified when it came.
fn copy_block(
    file: &mut File,
    out: &mut dyn Write,
    sum: &mut StreamSum,
    (to_guid, object, offset): (u64, u64, u64),
) -> Result<(), ReadError> {
    let mut input = BufReader::new(file);
    let bytes = next_record(&mut input)?.ok_or(ReadError::CutShort)?;
    let decoded = StreamRecord::decode(&bytes, ByteOrder::Little);
    let Ok(StreamRecord::Write(mut write)) = decoded else {
        return Err(ReadError::NoSuchBlock);
    };
    (write.to_guid, write.object, write.offset) = (to_guid, object, offset);
    let record = StreamRecord::Write(write);
    let mut bytes = record.encode();
    sum.add_record(&mut bytes, false);
    out.write_all(&bytes)?;
    let mut left = record.payload_len();
    let mut piece = [0; 16 << 10];
    while left > 0 {
        let len = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        input.read_exact(&mut piece[..len]).map_err(cut_short)?;
        sum.payload(&piece[..len]);
        out.write_all(&piece[..len])?;
        left -= len as u64;
    }
    Ok(())
}

fn cut_short(error: io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        ReadError::CutShort
    } else {
        error.into()
    }
}
