//! A stream from its bytes, without any input or output of its own: the caller brings a record, then its payload in pieces, then the
//! next record.

use codec::checksum::RunningFletcher4;
use ondisk::stream::{ByteOrder, CHECKSUM_OFFSET, RECORD_SIZE, StreamRecord};
use ondisk::stream::{byte_order, record_checksum};
use ondisk::{DecodeError, ObjectType, byteswap};

/// Why a stream cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It does not begin with a BEGIN record.
    #[error("bad magic number")]
    NotAStream,
    /// A record is not one of the format.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    /// What was read is not what was sent.
    #[error("checksum mismatch")]
    Checksum {
        /// Of what was read.
        computed: [u64; 4],
        /// As sent.
        stored: [u64; 4],
    },
}

/// Reads the records of a stream, one substream or package after the other.
///
/// ```text
///   record -> payload of the length the record says, in any pieces -> record -> ...
/// ```
#[derive(Debug, Default)]
pub struct StreamReader {
    order: Option<ByteOrder>,
    /// Over everything since the last BEGIN.
    sum: RunningFletcher4,
    /// Bytes of the last record's payload that were not brought yet.
    payload_left: u64,
    /// What the last record's payload is swapped as.
    payload_type: Option<ObjectType>,
    /// Checksums are neither computed nor compared.
    unverified: bool,
}

impl StreamReader {
    /// Returns a reader that takes every checksum for good, to look into a stream that is known to be damaged.
    #[must_use]
    pub fn unverified() -> Self {
        Self {
            unverified: true,
            ..Self::default()
        }
    }

    /// Byte order of the stream; `None` before its first record.
    #[must_use]
    pub fn order(&self) -> Option<ByteOrder> {
        self.order
    }

    /// The running checksum.
    #[must_use]
    pub fn checksum(&self) -> [u64; 4] {
        self.sum.sums()
    }

    /// Bytes of payload that [`Self::payload`] is to be given before the next record.
    #[must_use]
    pub fn payload_left(&self) -> u64 {
        self.payload_left
    }

    /// Reads a record. A stored checksum of zero is not compared: the last records of packages have none.
    ///
    /// # Errors
    /// [`StreamError`]; the reader is of no use then.
    ///
    /// # Panics
    /// When the payload of the record before was not brought as a whole.
    pub fn record(&mut self, bytes: &[u8; RECORD_SIZE]) -> Result<StreamRecord, StreamError> {
        assert!(
            self.payload_left == 0,
            "a record was read with {} bytes of payload before it",
            self.payload_left
        );
        let order = match self.order {
            Some(order) => order,
            None => *self
                .order
                .insert(byte_order(bytes).ok_or(StreamError::NotAStream)?),
        };
        let record = StreamRecord::decode(bytes, order)?;
        let (body, checksum) = bytes.split_at(CHECKSUM_OFFSET);
        if matches!(record, StreamRecord::Begin(_)) {
            self.sum = RunningFletcher4::default();
            self.update(bytes);
        } else {
            let before = self.checksum();
            self.update(body);
            self.compare(record_checksum(bytes, order), self.checksum())?;
            self.update(checksum);
            if let StreamRecord::End { checksum, .. } = &record {
                self.compare(*checksum, before)?;
                // The END of a package may have a checksum, which starts from zero: `zstream redup` writes one.
                self.sum = RunningFletcher4::default();
            }
        }
        self.payload_left = record.payload_len();
        self.payload_type = match order {
            ByteOrder::Little => None,
            ByteOrder::Big => record.payload_type(),
        };
        Ok(record)
    }

    /// Takes the next bytes of the last record's payload.
    ///
    /// # Panics
    /// When there are more than the record has left, or their number is not a multiple of four and they do not end it.
    pub fn payload(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u64;
        assert!(
            len <= self.payload_left,
            "{len} bytes of payload where {} are left",
            self.payload_left
        );
        self.payload_left -= len;
        self.update(bytes);
    }

    /// Swaps the whole payload of the last record, after [`Self::payload`], if the stream's byte order is not the one of blocks here.
    pub fn make_native(&self, payload: &mut [u8]) {
        if let Some(kind) = self.payload_type {
            byteswap::swap_as(kind, payload);
        }
    }

    fn compare(&self, stored: [u64; 4], computed: [u64; 4]) -> Result<(), StreamError> {
        if self.unverified || stored == [0; 4] || stored == computed {
            return Ok(());
        }
        Err(StreamError::Checksum { computed, stored })
    }

    /// Bytes behind the last whole word are not summed, as in OpenZFS.
    fn update(&mut self, bytes: &[u8]) {
        if self.unverified {
            return;
        }
        let words = &bytes[..bytes.len() - bytes.len() % 4];
        match self.order {
            Some(ByteOrder::Big) => self.sum.update_swapped(words),
            _ => self.sum.update(words),
        }
    }
}
