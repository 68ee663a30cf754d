//! What a stranger's disk shows first: labels, lists, uberblocks, block pointers.

use ondisk::{BlockPointer, NvList, Uberblock, label};

pub(crate) fn nvlist(data: &[u8]) {
    if let Ok((list, used)) = NvList::decode_prefix(data) {
        assert!(used <= data.len());
        // What was understood can be written and understood again.
        let again = NvList::decode(&list.encode_xdr()).expect("an encoded list decodes");
        assert_eq!(again, list);
        let again = NvList::decode(&list.encode_native());
        // Native strings end at a NUL, which XDR strings may contain.
        std::hint::black_box(again.is_ok());
    }
}

pub(crate) fn label(data: &[u8]) {
    let toy = |b: &[u8]| [b.len() as u64, 0, 0, 0];
    std::hint::black_box(label::verify(data, label::label_verifier(7), toy));
    let mut block = data.to_vec();
    label::set_checksum(&mut block, label::label_verifier(7), toy);
    if data.len() >= label::ECK_SIZE {
        assert!(label::verify(&block, label::label_verifier(7), toy));
    }
    let start = usize::try_from(label::NVLIST.0).expect("16 KiB");
    if let Some(list) = data.get(start..) {
        nvlist(list);
    }
    for slot in data.chunks(1024) {
        uberblock(slot);
    }
}

pub(crate) fn uberblock(data: &[u8]) {
    if let Ok(ub) = Uberblock::decode(data) {
        block_pointer(&ub.rootbp.encode());
        let mut slot = vec![0; 1024];
        ub.encode(&mut slot);
        assert_eq!(Uberblock::decode(&slot), Ok(ub));
        std::hint::black_box((
            ub.mmp_sequence(),
            ub.cmp_currency(&ub),
            ub.raidz_reflow.offset(),
        ));
    }
}

pub(crate) fn block_pointer(data: &[u8]) {
    for bp in BlockPointer::decode_all(data) {
        assert_eq!(BlockPointer::decode(&bp.encode()), Ok(bp));
        let text = bp.to_string();
        let sizes = (bp.lsize(), bp.psize(), bp.asize(), bp.fill());
        let sums = (bp.accounted_compressed(), bp.accounted_uncompressed());
        let payload = bp.embedded_payload();
        assert!(payload.len() <= 128);
        if bp.check().is_ok() && !bp.is_hole() {
            assert!(bp.lsize() <= ondisk::MAX_BLOCK_SIZE);
            assert!(bp.is_embedded() || bp.psize() <= ondisk::MAX_BLOCK_SIZE);
        }
        std::hint::black_box((
            text,
            sizes,
            sums,
            ondisk::dsl::bpobj_entry(&bp),
            bp.copies().count(),
        ));
    }
}
