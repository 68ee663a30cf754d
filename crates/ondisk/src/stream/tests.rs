//! Every record is encoded and decoded again, in both byte orders; damaged ones are refused.

use super::*;

const CRYPT: CryptParams = CryptParams {
    salt: [1; 8],
    iv: [2; 12],
    mac: [3; 16],
};
const EXTENT: ObjectExtent = ObjectExtent {
    object: 7,
    offset: 512,
    length: TO_THE_END,
    to_guid: 99,
};

fn begin() -> Begin {
    Begin {
        kind: StreamKind::Compound,
        features: stream_feature::SA_SPILL | stream_feature::LARGE_MICROZAP,
        creation_time: 1_795_197_422,
        objset_type: 2,
        flags: begin_flags::FREE_RECORDS | begin_flags::SPILL_BLOCK,
        to_guid: 99,
        from_guid: 98,
        to_name: b"tank/fs@a".to_vec(),
        payload_len: 524,
    }
}

fn object() -> Object {
    Object {
        object: 7,
        object_type: 19,
        bonus_type: 44,
        block_size: 131_072,
        bonus_len: 169,
        checksum: 7,
        compression: 15,
        dnode_slots: 2,
        flags: record_flags::SPILL,
        raw_bonus_len: 0,
        to_guid: 99,
        indirect_shift: 17,
        levels: 2,
        block_pointers: 1,
        max_block_id: 40,
    }
}

fn write() -> Write {
    Write {
        object: 7,
        object_type: 19,
        offset: 131_072,
        logical_size: 131_072,
        to_guid: 99,
        checksum: 8,
        flags: record_flags::CHECKSUM_CAN_DEDUP,
        compression: 15,
        key_checksum: [1, 2, 3, 4],
        key_prop: 5,
        compressed_size: 4096,
        crypt: CRYPT,
    }
}

fn spill() -> Spill {
    Spill {
        object: 7,
        length: 6144,
        to_guid: 99,
        flags: 0,
        compression: 0,
        compressed_size: 0,
        crypt: CRYPT,
        object_type: 44,
    }
}

/// Every kind of record, with the bytes of its payload.
fn records() -> Vec<(StreamRecord, u64)> {
    let raw = Object {
        raw_bonus_len: 320,
        ..object()
    };
    let plain = Write {
        compression: 0,
        compressed_size: 0,
        ..write()
    };
    vec![
        (StreamRecord::Begin(begin()), 524),
        (StreamRecord::Object(object()), 176),
        (StreamRecord::Object(raw), 320),
        (
            StreamRecord::FreeObjects {
                first_object: 8,
                count: TO_THE_END,
                to_guid: 99,
            },
            0,
        ),
        (StreamRecord::Write(write()), 4096),
        (StreamRecord::Write(plain), 131_072),
        (StreamRecord::Free(EXTENT), 0),
        (
            StreamRecord::End {
                checksum: [4, 3, 2, 1],
                to_guid: 99,
            },
            0,
        ),
        (
            StreamRecord::WriteByRef(WriteByRef {
                object: 7,
                offset: 1,
                length: 2,
                to_guid: 99,
                ref_guid: 3,
                ref_object: 4,
                ref_offset: 5,
                checksum: 6,
                flags: 7,
                key_checksum: [8, 9, 10, 11],
                key_prop: 12,
            }),
            0,
        ),
        (StreamRecord::Spill(spill()), 6144),
        (
            StreamRecord::WriteEmbedded(WriteEmbedded {
                object: 7,
                offset: 0,
                length: 512,
                to_guid: 99,
                compression: 15,
                embedded_kind: 0,
                logical_size: 512,
                physical_size: 17,
            }),
            24,
        ),
        (
            StreamRecord::ObjectRange(ObjectRange {
                first_object: 32,
                slots: 32,
                to_guid: 99,
                crypt: CRYPT,
                flags: record_flags::RAW_BYTESWAP,
            }),
            0,
        ),
        (StreamRecord::Redact(EXTENT), 0),
    ]
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    for (record, payload) in records() {
        let bytes = record.encode();
        let decoded = StreamRecord::decode(&bytes, ByteOrder::Little);
        assert_eq!(decoded.as_ref(), Ok(&record));
        assert_eq!(record.payload_len(), payload, "{record:?}");
        assert_eq!(record.to_guid(), 99, "{record:?}");
    }
}

/// A stream of a big-endian sender: its BEGIN says so, and its words are read so.
#[test]
fn both_byte_orders_are_read() {
    let little = StreamRecord::Begin(begin()).encode();
    assert_eq!(byte_order(&little), Some(ByteOrder::Little));
    let mut big = [0; RECORD_SIZE];
    bytes::put_bytes(&mut big, 4, &524u32.to_be_bytes());
    for (at, word) in [
        (8, MAGIC),
        (16, begin().features << 2 | 2),
        (24, 1_795_197_422),
    ] {
        bytes::put_bytes(&mut big, at, &u64::to_be_bytes(word));
    }
    bytes::put_bytes(&mut big, 32, &2u32.to_be_bytes());
    bytes::put_bytes(&mut big, 36, &12u32.to_be_bytes());
    bytes::put_bytes(&mut big, 40, &99u64.to_be_bytes());
    bytes::put_bytes(&mut big, 48, &98u64.to_be_bytes());
    bytes::put_bytes(&mut big, 56, b"tank/fs@a");
    assert_eq!(byte_order(&big), Some(ByteOrder::Big));
    assert_eq!(
        StreamRecord::decode(&big, ByteOrder::Big),
        Ok(StreamRecord::Begin(begin()))
    );
    assert_eq!(byte_order(&[0; RECORD_SIZE]), None);
}

#[test]
fn what_no_sender_writes_is_refused() {
    let check = |at: usize, bytes: &[u8], record: StreamRecord, what: &str| {
        let mut encoded = record.encode();
        bytes::put_bytes(&mut encoded, at, bytes);
        let error = StreamRecord::decode(&encoded, ByteOrder::Little).unwrap_err();
        assert_eq!(error.what, what);
    };
    check(0, &[11], StreamRecord::Free(EXTENT), "stream record type");
    check(8, &[0], StreamRecord::Begin(begin()), "stream magic");
    check(16, &[0], StreamRecord::Begin(begin()), "stream header type");
    check(
        56,
        &[b'x'; NAME_SIZE],
        StreamRecord::Begin(begin()),
        "stream name",
    );
    check(
        16,
        &[0xff; 8],
        StreamRecord::Spill(spill()),
        "stream record payload length",
    );
}

#[test]
fn the_checksum_stands_at_the_end() {
    let mut record = StreamRecord::Free(EXTENT).encode();
    put_record_checksum(&mut record, [1, 2, 3, 4]);
    assert_eq!(record_checksum(&record, ByteOrder::Little), [1, 2, 3, 4]);
    assert_eq!(
        record_checksum(&record, ByteOrder::Big)[0],
        1u64.swap_bytes()
    );
    assert_eq!(
        StreamRecord::decode(&record, ByteOrder::Little),
        Ok(StreamRecord::Free(EXTENT))
    );
}
