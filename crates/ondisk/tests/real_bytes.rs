//! Structures that OpenZFS 2.3.2 wrote, cut out of pools made by the kernel module: decoding and encoding again must give
//! the same bytes.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests may panic"
)]

use std::path::Path;

use ondisk::bytes::u64_at;
use ondisk::dsl::DslDatasetPhys;
use ondisk::space_map::{self, SpaceMapEntry, SpaceMapHeader, SpaceMapWriter, SpaceOp};
use ondisk::zap::{self, BlockKind, FatHeader, Leaf, NewEntry};
use ondisk::{DnodePhys, NvList, ObjectType, ObjsetPhys, ObjsetType, Txg, Uberblock, history, sa};

fn read(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/real")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn lists_encode_to_openzfs_bytes() {
    for name in [
        "label-mirror.nvlist",
        "label-special.nvlist",
        "config.nvlist",
    ] {
        let packed = read(name);
        let (list, used) = NvList::decode_prefix(&packed).unwrap();
        assert_eq!(list.encode_xdr(), packed[..used], "{name}");
        assert_eq!(list.u64("version"), Some(5000));
        assert_eq!(
            NvList::decode(&list.encode_native()).unwrap(),
            list,
            "{name}"
        );
    }
    let label = NvList::decode(&read("label-mirror.nvlist")).unwrap();
    assert_eq!(label.str("name"), Some("n2-ashift12"));
    let tree = label.list("vdev_tree").unwrap();
    assert_eq!(
        (tree.str("type"), tree.lists("children").unwrap().len()),
        (Some("mirror"), 2)
    );
}

#[test]
fn history_records_encode_to_openzfs_bytes() {
    let data = read("history.bin");
    let (first, used) = history::decode_record(&data).unwrap();
    assert_eq!(history::encode_record(&first), data[..used]);
    let (second, more) = history::decode_record(&data[used..]).unwrap();
    assert_eq!(history::encode_record(&second), data[used..used + more]);
    assert!(first.has(history::keys::TIME) && first.has(history::keys::HOST));
}

#[test]
fn an_uberblock() {
    let slot = read("uberblock.bin");
    let ub = Uberblock::decode(&slot).unwrap();
    let mut again = vec![0; slot.len()];
    ub.encode(&mut again);
    let body = slot.len() - ondisk::label::ECK_SIZE;
    assert_eq!(again[..body], slot[..body]);
    assert_eq!(
        (ub.txg, ub.rootbp.object_type(), ub.rootbp.copies().count()),
        (Txg(530), ObjectType::OBJSET, 3)
    );
    ub.rootbp.check().unwrap();
}

#[test]
fn an_objset_and_dnodes() {
    let block = read("objset-mos.bin");
    let objset = ObjsetPhys::decode(&block).unwrap();
    assert_eq!(objset.objset_type, ObjsetType::META);
    assert_eq!(objset.encode(), block);
    for name in ["dnode-dataset.bin", "dnode-file.bin"] {
        let bytes = read(name);
        let dn = DnodePhys::decode(&bytes).unwrap();
        let mut again = vec![0xff; dn.size()];
        dn.encode(&mut again);
        assert_eq!(again, bytes, "{name}");
    }
    let dataset = DnodePhys::decode(&read("dnode-dataset.bin")).unwrap();
    let phys = DslDatasetPhys::decode(&dataset.bonus).unwrap();
    assert_eq!(phys.encode(), dataset.bonus);
    let file = DnodePhys::decode(&read("dnode-file.bin")).unwrap();
    let header = sa::SaHeader::decode(&file.bonus).unwrap();
    assert_eq!((file.bonus_type, header.size), (ObjectType::SA, 8));
}

#[test]
fn a_space_map_written_again_has_the_same_words() {
    let data = read("space-map.bin");
    let header_bytes = read("space-map-header.bin");
    let header = SpaceMapHeader::decode(&header_bytes).unwrap();
    assert_eq!(header.encode(), header_bytes);
    let mut writer = SpaceMapWriter::new(0, 131_072, 12, 0, true);
    let mut sum = 0i64;
    let mut same_form = true;
    for e in space_map::entries(&data, 12, 0) {
        match e.unwrap() {
            SpaceMapEntry::Debug { op, pass, txg } => writer.debug(op, pass, txg),
            SpaceMapEntry::Range {
                op,
                start,
                len,
                vdev,
            } => {
                // OpenZFS writes some entries in two words at random.
                same_form &= vdev.is_none();
                sum += if op == SpaceOp::Alloc {
                    len.cast_signed()
                } else {
                    -len.cast_signed()
                };
                writer.range(op, start, len, vdev);
            }
        }
    }
    assert_eq!(sum, header.allocated);
    assert_eq!(writer.into_bytes(), data, "all one-word: {same_form}");
}

#[test]
fn a_directory_leaf_and_its_hashes() {
    let header_block = read("zap-header.bin");
    assert_eq!(zap::block_kind(&header_block), Some(BlockKind::FatHeader));
    let header = FatHeader::decode(&header_block).unwrap();
    let mut again = header_block.clone();
    header.encode_into(&mut again);
    assert_eq!(again, header_block);

    let leaf = Leaf::open(read("zap-leaf.bin")).unwrap();
    leaf.check(1).unwrap();
    let entries = leaf.entries().unwrap();
    assert!(entries.len() > 50);
    let mut rebuilt = Leaf::create(
        16384,
        leaf.prefix(),
        leaf.prefix_len().try_into().unwrap(),
        leaf.is_sorted_by_cd(),
    );
    for e in &entries {
        let name = leaf.name(e, 1).unwrap();
        let value = leaf.value(e).unwrap();
        assert_eq!(
            zap::hash(header.salt, &name[..name.len() - 1], header.flags),
            e.hash
        );
        assert!(leaf.covers(e.hash));
        assert_eq!(leaf.find(e.hash, &name, 1).unwrap().as_ref(), Some(e));
        let new = NewEntry {
            hash: e.hash,
            cd: rebuilt.free_cd(e.hash).unwrap(),
            name: &name,
            name_int_size: 1,
            value_int_size: e.value_int_size,
            value: &value,
        };
        assert_eq!(rebuilt.insert(&new).unwrap().cd, e.cd);
    }
    rebuilt.check(1).unwrap();
    assert_eq!(rebuilt.free_chunks(), leaf.free_chunks());
    assert!(u64_at(&leaf.into_inner(), 0) == 1 << 63);
}
