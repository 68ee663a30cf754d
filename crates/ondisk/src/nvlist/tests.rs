//! Round trips, sizes, and hostile bytes. Real labels are checked in `tests/`.

use super::*;

fn everything() -> NvList {
    let inner = NvList::new().with("k", 7u64).with("s", "text");
    let mut l = NvList::new();
    l.insert_flag("flag");
    l.insert("byte", NvValue::Byte(200));
    l.insert("i8", NvValue::I8(-3));
    l.insert("u8", NvValue::U8(250));
    l.insert("i16", NvValue::I16(-300));
    l.insert("u16", NvValue::U16(65_000));
    l.insert("i32", -5i32);
    l.insert("u32", 4_000_000_000u32);
    l.insert("i64", i64::MIN);
    l.insert("u64", u64::MAX);
    l.insert("hr", NvValue::HrTime(-1));
    l.insert("double", NvValue::Double(1.5f64.to_bits()));
    l.insert("bool", true);
    l.insert("str", "");
    l.insert("bytes", NvValue::ByteArray(vec![1, 2, 3, 4, 5]));
    l.insert("i8s", NvValue::I8Array(vec![-1, 1]));
    l.insert("u8s", NvValue::U8Array(vec![9; 3]));
    l.insert("i16s", NvValue::I16Array(vec![-1, 1, 2]));
    l.insert("u16s", NvValue::U16Array(vec![1]));
    l.insert("i32s", NvValue::I32Array(vec![-1]));
    l.insert("u32s", NvValue::U32Array(vec![]));
    l.insert("i64s", NvValue::I64Array(vec![-1, 5]));
    l.insert("u64s", vec![1u64, 2, 3]);
    l.insert("bools", NvValue::BoolArray(vec![true, false]));
    l.insert(
        "strs",
        NvValue::StrArray(vec![b"a".to_vec(), vec![], b"ccc".to_vec()]),
    );
    l.insert("list", inner.clone());
    l.insert(
        "lists",
        vec![
            inner.clone(),
            NvList::new(),
            inner.with("deep", vec![NvList::new()]),
        ],
    );
    l
}

#[test]
fn both_encodings_round_trip_every_type() {
    let l = everything();
    assert_eq!(NvList::decode(&l.encode_xdr()).unwrap(), l);
    assert_eq!(NvList::decode(&l.encode_native()).unwrap(), l);
    let mut long = l.encode_xdr();
    let len = long.len();
    long.extend_from_slice(&[0xee; 100]);
    assert_eq!(NvList::decode_prefix(&long).unwrap(), (l, len));
}

#[test]
fn every_truncation_is_an_error() {
    for packed in [everything().encode_xdr(), everything().encode_native()] {
        for len in 0..packed.len() {
            assert!(
                NvList::decode(&packed[..len]).is_err(),
                "{len} of {}",
                packed.len()
            );
        }
    }
}

#[test]
fn xdr_bytes_of_one_pair() {
    let packed = NvList::new().with("txg", 4u64).encode_xdr();
    let want = [
        1, 1, 0, 0, // XDR, little-endian host
        0, 0, 0, 0, 0, 0, 0, 1, // version 0, unique names
        0, 0, 0, 32, 0, 0, 0, 32, // encoded and native size
        0, 0, 0, 3, b't', b'x', b'g', 0, 0, 0, 0, 8, 0, 0, 0, 1, // name, u64, one
        0, 0, 0, 0, 0, 0, 0, 4, //
        0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(packed, want);
}

#[test]
fn deep_nesting_is_refused_not_recursed() {
    let mut l = NvList::new();
    for _ in 0..200 {
        l = NvList::new().with("n", l);
    }
    assert!(NvList::decode(&l.encode_xdr()).is_err());
    assert!(NvList::decode(&l.encode_native()).is_err());
}

#[test]
fn insert_replaces_in_place() {
    let mut l = NvList::new().with("a", 1u64).with("b", 2u64);
    l.insert("a", "x");
    assert_eq!(l.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        (l.str("a"), l.u64("a"), l.u64("b")),
        (Some("x"), None, Some(2))
    );
    assert!(l.remove("a").is_some() && !l.has("a"));
}
