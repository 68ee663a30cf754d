//! Records to a stream, with the running checksum.

use codec::checksum::RunningFletcher4;
use ondisk::NvList;
use ondisk::stream::put_record_checksum;
use ondisk::stream::{
    Begin, CHECKSUM_OFFSET, ObjectExtent, RECORD_SIZE, StreamKind, StreamRecord, TO_THE_END,
};
use runtime::IoBuf;

use super::chunk::StreamChunk;

/// The running checksum of a stream that is written, in little-endian order.
#[derive(Debug, Default)]
pub struct StreamSum(RunningFletcher4);

impl StreamSum {
    /// Returns the checksum of everything since the last BEGIN.
    #[must_use]
    pub fn sums(&self) -> [u64; 4] {
        self.0.sums()
    }

    /// Puts the checksum into an encoded record, in which nothing may be changed afterwards. A BEGIN has none, and starts it anew.
    pub fn add_record(&mut self, bytes: &mut [u8; RECORD_SIZE], is_begin: bool) {
        if is_begin {
            self.0 = RunningFletcher4::default();
            self.0.update(bytes);
        } else {
            self.0.update(&bytes[..CHECKSUM_OFFSET]);
            put_record_checksum(bytes, self.0.sums());
            self.0.update(&bytes[CHECKSUM_OFFSET..]);
        }
    }

    /// Adds bytes of the payload of the last record: a multiple of four, but for the last ones.
    pub fn payload(&mut self, bytes: &[u8]) {
        // Bytes behind the last whole word are not summed, as in OpenZFS.
        self.0.update(&bytes[..bytes.len() - bytes.len() % 4]);
    }

    /// As [`Self::payload`], with the Fletcher4 of the bytes, whose number is a multiple of four.
    pub(super) fn known_payload(&mut self, sums: [u64; 4], len: usize) {
        self.0.update_known(sums, len);
    }
}

/// Writes records and payloads into a buffer, which its owner empties. Adjacent frees become one record.
#[derive(Debug, Default)]
pub(super) struct StreamWriter {
    chunk: StreamChunk,
    sum: StreamSum,
    /// A FREE, FREEOBJECTS or REDACT that the next record may still lengthen.
    pending: Option<StreamRecord>,
}

impl StreamWriter {
    /// Bytes that were not taken yet.
    pub(super) fn len(&self) -> usize {
        self.chunk.len()
    }

    /// Takes what was written; what may still be lengthened stays.
    pub(super) fn take(&mut self) -> StreamChunk {
        // What comes next is alike, mostly: it is not copied to grow.
        let next = self.chunk.next();
        std::mem::replace(&mut self.chunk, next)
    }

    /// Writes a record and its payload, padded with zeros to the length that the record says.
    ///
    /// # Panics
    /// When the payload is longer than the record says.
    pub(super) fn put(&mut self, record: &StreamRecord, payload: &[u8]) {
        self.flush();
        self.put_now(record, payload);
    }

    /// As [`put`](Self::put), with a payload that is not copied where it is long and needs no zeros behind it, and of which the Fletcher4
    /// may be known.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    pub(super) fn put_block(
        &mut self,
        record: &StreamRecord,
        payload: &IoBuf,
        sums: Option<[u64; 4]>,
    ) {
        if payload_len(record) != payload.len() {
            return self.put(record, payload);
        }
        self.flush();
        self.put_record(record);
        self.chunk.push_block(payload);
        match sums {
            Some(sums) => self.sum.known_payload(sums, payload.len()),
            None => self.sum.payload(payload),
        }
    }

    /// Writes what waited to be lengthened.
    pub(super) fn flush(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.put_now(&pending, &[]);
        }
    }

    /// Writes an END with the checksum so far in it.
    pub(super) fn end(&mut self, to_guid: u64) {
        self.flush();
        let checksum = self.sum.sums();
        self.put_now(&StreamRecord::End { checksum, to_guid }, &[]);
    }

    /// Frees `length` bytes of an object, or all from `offset` on ([`TO_THE_END`]).
    pub(super) fn free(&mut self, extent: ObjectExtent) {
        let ObjectExtent {
            object,
            offset,
            length,
            ..
        } = extent;
        if let Some(StreamRecord::Free(last)) = &mut self.pending
            && last.object == object
            && last.offset.checked_add(last.length) == Some(offset)
        {
            last.length = if length == TO_THE_END || offset.checked_add(length).is_none() {
                TO_THE_END
            } else {
                last.length + length
            };
            return;
        }
        let beyond = offset.checked_add(length).is_none();
        let length = if beyond { TO_THE_END } else { length };
        let record = StreamRecord::Free(ObjectExtent { length, ..extent });
        self.flush();
        if extent.length == TO_THE_END {
            // OpenZFS lengthens no such record.
            self.put_now(&record, &[]);
        } else {
            self.pending = Some(record);
        }
    }

    /// Leaves out bytes of an object.
    pub(super) fn redact(&mut self, extent: ObjectExtent) {
        if let Some(StreamRecord::Redact(last)) = &mut self.pending
            && last.object == extent.object
            && last.offset.checked_add(last.length) == Some(extent.offset)
        {
            last.length += extent.length;
            return;
        }
        self.flush();
        self.pending = Some(StreamRecord::Redact(extent));
    }

    /// Frees `count` objects.
    pub(super) fn free_objects(&mut self, first_object: u64, count: u64, to_guid: u64) {
        if let Some(StreamRecord::FreeObjects {
            first_object: first,
            count: known,
            ..
        }) = &mut self.pending
            && *first + *known == first_object
        {
            *known += count;
            return;
        }
        self.flush();
        self.pending = Some(StreamRecord::FreeObjects {
            first_object,
            count,
            to_guid,
        });
    }

    fn put_record(&mut self, record: &StreamRecord) {
        let mut bytes = record.encode();
        self.sum
            .add_record(&mut bytes, matches!(record, StreamRecord::Begin(_)));
        self.chunk.push(&bytes);
    }

    fn put_now(&mut self, record: &StreamRecord, payload: &[u8]) {
        self.put_record(record);
        let len = payload_len(record);
        assert!(
            payload.len() <= len,
            "a payload of {} bytes where the record says {len}",
            payload.len()
        );
        self.chunk.push(payload);
        self.chunk.push_zeros(len - payload.len());
        match payload.len() == len {
            true => self.sum.payload(payload),
            false => self.sum.payload(&padded(payload, len)),
        }
    }
}

fn payload_len(record: &StreamRecord) -> usize {
    usize::try_from(record.payload_len()).expect("payloads are at most 16 MiB")
}

fn padded(payload: &[u8], len: usize) -> Vec<u8> {
    let mut padded = payload.to_vec();
    padded.resize(len, 0);
    padded
}

/// Returns the records that open a package of streams: a BEGIN with the list of what is in it, which `zfs send -I` leaves empty, and
/// its END.
///
/// # Panics
/// When the name has more than 255 bytes, or the list 4 GiB.
#[must_use]
pub fn package_begin(to_name: &str, features: u64, list: &NvList) -> Vec<u8> {
    let list = if list.is_empty() {
        Vec::new()
    } else {
        list.encode_xdr()
    };
    let begin = Begin {
        kind: StreamKind::Compound,
        features,
        creation_time: 0,
        objset_type: 0,
        flags: 0,
        to_guid: 0,
        from_guid: 0,
        to_name: to_name.as_bytes().to_vec(),
        payload_len: u32::try_from(list.len()).expect("a list of names fits"),
    };
    let begin = StreamRecord::Begin(begin).encode();
    let mut sum = RunningFletcher4::default();
    sum.update(&begin);
    sum.update(&list);
    let end = StreamRecord::End {
        checksum: sum.sums(),
        to_guid: 0,
    };
    // The ENDs of a package carry no running checksum. OpenZFS: lib/libzfs/libzfs_sendrecv.c, send_prelim_records.
    [&begin[..], &list, &end.encode()].concat()
}

/// Returns the record that closes a package of streams.
#[must_use]
pub fn package_end() -> Vec<u8> {
    let end = StreamRecord::End {
        checksum: [0; 4],
        to_guid: 0,
    };
    end.encode().to_vec()
}
