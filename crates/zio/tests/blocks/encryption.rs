//! Blocks of encrypted datasets: what is written with keys is read with the same keys and no others, is checked and mended without
//! any, and what was changed or moved is an error though its checksum is right.

use codec::crypt::{DatasetKeys, Suite};
use ondisk::{BlockPointer, ChecksumKind, Compression, DnodePhys, ObjectType, Txg};
use runtime::{Handle, IoBuf};
use zio::{BlockKeys, CorruptReason, Protection, StoredCrypt, StoredForm, WriteProps, ZioError};

use crate::world::{READ, World, damage, noise, run, text, write_props};

const MIB: u64 = 1 << 20;

fn keys(handle: &Handle, suite: Suite, seed: u8) -> BlockKeys {
    let keys = DatasetKeys::generate(suite, 1, |bytes| bytes.fill(seed)).expect("memory");
    BlockKeys::new(handle, keys)
}

async fn write(world: &World, data: &[u8], props: &WriteProps, keys: &BlockKeys) -> BlockPointer {
    let data = IoBuf::copy_from(data);
    let protection = Protection::Keys(keys.clone());
    let written = world.store.write_forms(Txg(10), data, props, &protection);
    written.await.expect("writes").0
}

async fn read(
    world: &World,
    bp: &BlockPointer,
    keys: Option<&BlockKeys>,
) -> Result<IoBuf, ZioError> {
    let read = world.store.read_forms(bp, READ, keys).await;
    read.map(|forms| forms.logical)
}

fn is_forged(result: &Result<IoBuf, ZioError>) -> bool {
    let reason = CorruptReason::Authentication;
    matches!(result, Err(ZioError::Corrupt { reason: found, .. }) if *found == reason)
}

/// Blocks of each kind that datasets have, with the size they have there.
fn kinds() -> Vec<(ObjectType, u8, Vec<u8>)> {
    let mut dnodes = vec![0; 16 << 10];
    let dnode = DnodePhys {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        indirect_shift: 17,
        levels: 1,
        bonus_type: ObjectType::SA,
        data_block_sectors: 1,
        block_pointers: vec![BlockPointer::HOLE],
        bonus: vec![7; 100],
        ..DnodePhys::default()
    };
    dnode.encode(&mut dnodes[..512]);
    dnode.encode(&mut dnodes[2048..2560]);
    let mut pointers = vec![0; 128 << 10];
    for (at, place) in pointers
        .chunks_exact_mut(BlockPointer::SIZE)
        .enumerate()
        .take(9)
    {
        let birth = Txg(at as u64 + 1);
        BlockPointer::hole(4096, ObjectType::SA, 0, birth).encode_into(place);
    }
    vec![
        (ObjectType::PLAIN_FILE_CONTENTS, 0, text(128 << 10, 1)),
        (ObjectType::PLAIN_FILE_CONTENTS, 0, noise(12_800, 2)),
        (ObjectType::DIRECTORY_CONTENTS, 0, text(1024, 3)),
        (ObjectType::ZVOL_PROP, 0, text(1024, 4)),
        (ObjectType::DNODE, 0, dnodes),
        (ObjectType::DNODE, 1, pointers),
    ]
}

#[test]
fn every_kind_comes_back_with_its_keys_alone() {
    run(|handle| async move {
        let world = World::new(&handle, &[1, 2], 256 * MIB, 12).await;
        for suite in (3..=8).map(|number| Suite::from_number(number).expect("a suite")) {
            let (own, other) = (keys(&handle, suite, 1), keys(&handle, suite, 2));
            for checksum in [
                ChecksumKind::FLETCHER4,
                ChecksumKind::SHA256,
                ChecksumKind::EDONR,
            ] {
                for (object_type, level, data) in kinds() {
                    let props = WriteProps {
                        object_type,
                        level,
                        checksum,
                        copies: 3,
                        allow_embedded: true,
                        ..write_props()
                    };
                    let what = format!("{suite:?} {checksum:?} {object_type} level {level}");
                    let bp = write(&world, &data, &props, &own).await;
                    let encrypts = level == 0 && object_type.is_encrypted();
                    assert_eq!(bp.copies().count(), if encrypts { 2 } else { 3 }, "{what}");
                    assert!(bp.uses_crypt() && !bp.is_embedded(), "{what}");
                    assert_eq!(bp.fill(), 1, "{what}");
                    let back = read(&world, &bp, Some(&own)).await;
                    assert_eq!(back.as_deref().expect(&what), data, "{what}");
                    // An indirect block is authenticated by a sum without a key.
                    let foreign = read(&world, &bp, Some(&other)).await;
                    assert_eq!(is_forged(&foreign), level == 0, "{what}");
                    let keyless = read(&world, &bp, None).await;
                    match keyless {
                        Err(ZioError::Encrypted { .. }) => {
                            assert!(bp.is_wholly_encrypted(), "{what}");
                        }
                        Ok(bytes) => {
                            let is_hidden = object_type == ObjectType::DNODE && level == 0;
                            assert_eq!(bytes[..] == data[..], !is_hidden, "{what}");
                        }
                        Err(error) => panic!("{what}: {error}"),
                    }
                    let scrubbed = world.store.scrub(&bp, READ).await.expect("scrubs");
                    assert!(!scrubbed.lost && scrubbed.bad_copies == 0, "{what}");
                }
            }
        }
    });
}

#[test]
fn equal_blocks_are_stored_as_different_bytes() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 12).await;
        let keys = keys(&handle, Suite::Aes256Gcm, 1);
        let data = text(128 << 10, 1);
        let first = write(&world, &data, &write_props(), &keys).await;
        let second = write(&world, &data, &write_props(), &keys).await;
        assert_eq!(first.crypt_params().salt, second.crypt_params().salt);
        assert_ne!(first.crypt_params().iv, second.crypt_params().iv);
        assert_ne!(first.checksum(), second.checksum());
        assert_eq!(first.compression(), Compression::LZ4);
    });
}

#[test]
fn what_was_changed_or_moved_is_an_error_though_its_checksum_is_right() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 12).await;
        let keys = keys(&handle, Suite::Aes128Gcm, 1);
        for (object_type, level, data) in kinds() {
            let props = WriteProps {
                object_type,
                level,
                ..write_props()
            };
            let bp = write(&world, &data, &props, &keys).await;
            let mut mac = bp.mac();
            mac[3] ^= 1;
            let mut forged = bp;
            // The checksum covers the stored bytes and not the pointer.
            forged.set_crypt(None, Some(mac));
            assert!(is_forged(&read(&world, &forged, Some(&keys)).await));
            if level == 0 && object_type.is_encrypted() {
                let mut params = bp.crypt_params();
                params.iv[11] ^= 0x80;
                let mut forged = bp;
                forged.set_crypt(Some(params), None);
                assert!(is_forged(&read(&world, &forged, Some(&keys)).await));
            }
        }
    });
}

#[test]
fn damage_is_mended_without_keys_and_with_them() {
    run(|handle| async move {
        let world = World::new(&handle, &[2], 128 * MIB, 12).await;
        let keys = keys(&handle, Suite::Aes256Ccm, 1);
        let data = noise(64 << 10, 5);
        for with_keys in [true, false] {
            let bp = write(&world, &data, &write_props(), &keys).await;
            let at = bp.dvas()[0].offset + (4 << 20);
            damage(&world.files[0], at + 1000, &[0xaa; 512]);
            if with_keys {
                let back = read(&world, &bp, Some(&keys)).await;
                assert_eq!(back.expect("the other half has it")[..], data[..]);
            } else {
                let scrubbed = world.store.scrub(&bp, READ).await.expect("scrubs");
                assert_eq!((scrubbed.bad_copies, scrubbed.unrepaired_copies), (1, 0));
            }
            let scrubbed = world.store.scrub(&bp, READ).await.expect("scrubs");
            assert_eq!(scrubbed.bad_copies, 0);
        }
    });
}

#[test]
fn what_comes_encrypted_is_stored_as_it_came_and_opens_with_the_keys() {
    run(|handle| async move {
        // The second pool has larger sectors: the stored size is kept though it is no multiple of them.
        let from = World::new(&handle, &[1], 128 * MIB, 9).await;
        let to = World::new(&handle, &[1], 128 * MIB, 12).await;
        let keys = keys(&handle, Suite::Aes256Gcm, 1);
        for (object_type, level, data) in kinds() {
            let props = WriteProps {
                object_type,
                level,
                ..write_props()
            };
            let what = format!("{object_type} level {level}");
            let bp = write(&from, &data, &props, &keys).await;
            let stored = from.store.read_stored(&bp, READ).await.expect(&what);
            assert_eq!(stored.len() as u64, bp.psize(), "{what}");
            let sum = level > 0;
            let form = StoredForm {
                bytes: stored.clone(),
                compression: bp.compression(),
                crypt: Some(StoredCrypt {
                    params: bp.crypt_params(),
                    mac: bp.mac(),
                }),
            };
            let placeholder = match object_type {
                ObjectType::DNODE if level == 0 => stored,
                _ if sum => IoBuf::copy_from(&data),
                _ => IoBuf::zeroed(data.len()),
            };
            let write = to.store.write_behind(
                Txg(10),
                placeholder,
                (!sum).then_some(form),
                &props,
                &Protection::Raw,
            );
            let (there, _) = write.await.expect(&what);
            to.store.wait_writes().await.expect("written");
            assert_eq!(there.mac(), bp.mac(), "{what}");
            if !sum {
                assert_eq!(there.psize(), bp.psize(), "{what}");
            }
            let back = read(&to, &there, Some(&keys)).await;
            assert_eq!(back.as_deref().expect(&what), data, "{what}");
        }
    });
}

#[test]
fn what_comes_encrypted_without_its_mac_or_with_an_odd_size_is_not_stored() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 9).await;
        let crypt = StoredCrypt {
            params: BlockPointer::default().crypt_params(),
            mac: [1; 16],
        };
        for (len, crypt) in [
            (512, None),
            (700, Some(crypt)),
            (0, Some(crypt)),
            (8192, Some(crypt)),
        ] {
            let form = StoredForm {
                bytes: IoBuf::zeroed(len),
                compression: Compression::LZ4,
                crypt,
            };
            let props = write_props();
            let data = IoBuf::zeroed(4096);
            let write =
                world
                    .store
                    .write_behind(Txg(10), data, Some(form), &props, &Protection::Raw);
            assert!(write.await.is_err(), "{len} bytes");
        }
    });
}
