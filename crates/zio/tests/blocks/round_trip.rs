//! Blocks written are read back, whatever their size, compression, checksum and number of copies; damage is found and
//! mended; a full pool says so and works on.

use std::path::Path;

use ondisk::{BlockPointer, ChecksumKind, Compression, Dva, ObjectType, Txg};
use runtime::IoBuf;
use zio::{CorruptReason, WriteProps, ZioError};

use crate::world::{READ, World, damage, noise, peek, run, text, write_props};

const MIB: u64 = 1 << 20;

#[test]
fn every_size_compression_and_checksum_comes_back() {
    run(|handle| async move {
        let mut world = World::new(&handle, &[1, 2], 256 * MIB, 12).await;
        let compressions = [
            Compression::OFF,
            Compression::LZJB,
            Compression::gzip(1),
            Compression::gzip(9),
            Compression::ZLE,
            Compression::LZ4,
            Compression::ZSTD,
        ];
        let checksums = [
            ChecksumKind::OFF,
            ChecksumKind::FLETCHER2,
            ChecksumKind::FLETCHER4,
            ChecksumKind::SHA256,
            ChecksumKind::SHA512,
            ChecksumKind::SKEIN,
            ChecksumKind::EDONR,
            ChecksumKind::BLAKE3,
        ];
        let mut written = Vec::new();
        for (index, size) in [512, 4096, 12_800, 128 << 10, 1 << 20]
            .into_iter()
            .enumerate()
        {
            for compression in compressions {
                for checksum in checksums {
                    let data = if index % 2 == 0 {
                        text(size, index)
                    } else {
                        noise(size, 7)
                    };
                    let copies = u8::try_from(index % 3 + 1).expect("small");
                    let props = WriteProps {
                        compression,
                        checksum,
                        copies,
                        ..write_props()
                    };
                    let bp = world.write(10, &data, &props).await;
                    assert_eq!(bp.copies().count(), usize::from(copies));
                    assert_eq!((bp.lsize(), bp.birth()), (size as u64, Txg(10)));
                    assert_eq!(bp.checksum_kind(), checksum);
                    written.push((bp, data));
                }
            }
        }
        let large = text(16 << 20, 3);
        written.push((world.write(10, &large, &write_props()).await, large));
        for (bp, data) in &written {
            assert!(world.read(bp).await == *data, "{bp}");
        }
        world.store.tree().flush().await.expect("flushes");
        world.reopen_read_only().await;
        for (bp, data) in &written {
            assert!(world.read(bp).await == *data, "after reopening: {bp}");
        }
        assert_eq!(world.store.stats().corrupt, 0);
    });
}

#[test]
fn compression_pays_or_is_left_out() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 12).await;
        let bp = world.write(10, &noise(128 << 10, 1), &write_props()).await;
        assert_eq!(
            (bp.compression(), bp.psize()),
            (Compression::OFF, 128 << 10)
        );
        let bp = world.write(10, &text(128 << 10, 1), &write_props()).await;
        assert_eq!((bp.compression(), bp.psize()), (Compression::LZ4, 4096));
        // Less than an eighth saved: 100 KiB of noise, the rest zeros, minus one allocation unit too few.
        let mut data = noise(120 << 10, 1);
        data.resize(128 << 10, 0);
        let bp = world.write(10, &data, &write_props()).await;
        assert_eq!(bp.compression(), Compression::OFF);
        // One sector cannot shrink, only be embedded.
        let small = text(4096, 1);
        let bp = world.write(10, &small, &write_props()).await;
        assert_eq!((bp.compression(), bp.psize()), (Compression::OFF, 4096));
        let embedding = WriteProps {
            allow_embedded: true,
            ..write_props()
        };
        let bp = world.write(10, &small, &embedding).await;
        assert!(bp.is_embedded() && world.store.dsize(&bp) == 0);
        assert_eq!(world.read(&bp).await, small);
        for object_type in [ObjectType::DNODE, ObjectType::OBJSET] {
            let bp = world
                .write(
                    10,
                    &small,
                    &WriteProps {
                        object_type,
                        ..embedding
                    },
                )
                .await;
            assert!(!bp.is_embedded());
        }
    });
}

#[test]
fn zeros_become_holes_unless_compression_is_off() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 9).await;
        let zeros = vec![0; 8192];
        assert!(world.write(10, &zeros, &write_props()).await.is_zero());
        let bp = world
            .write(
                10,
                &zeros,
                &WriteProps {
                    hole_birth: true,
                    ..write_props()
                },
            )
            .await;
        assert!(bp.is_hole() && bp.birth() == Txg(10) && bp.lsize() == 8192);
        assert_eq!(world.read(&bp).await, zeros);
        let off = WriteProps {
            compression: Compression::OFF,
            ..write_props()
        };
        let bp = world.write(10, &zeros, &off).await;
        assert!(!bp.is_hole());
        assert_eq!(world.read(&bp).await, zeros);
    });
}

#[test]
fn what_is_not_tried_is_stored_as_it_is_and_zeros_become_holes() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 9).await;
        let untried = WriteProps {
            skips_compression: true,
            ..write_props()
        };
        let text = vec![b'a'; 8192];
        let bp = world.write(10, &text, &untried).await;
        assert!(bp.compression() == Compression::OFF && bp.psize() == 8192);
        assert_eq!(world.read(&bp).await, text);
        assert!(world.write(10, &[0; 8192], &untried).await.is_zero());
    });
}

#[test]
fn a_block_of_this_txg_is_overwritten_in_place_and_no_other() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 12).await;
        let first = world.write(10, &noise(8192, 1), &write_props()).await;
        let again = WriteProps {
            rewrite: Some(first),
            ..write_props()
        };
        let second = world.write(10, &noise(8192, 2), &again).await;
        assert_eq!(first.dvas(), second.dvas());
        assert_eq!(world.read(&second).await, noise(8192, 2));
        assert!(matches!(
            world.store.read(&first, READ).await,
            Err(ZioError::Corrupt {
                reason: CorruptReason::Checksum,
                ..
            })
        ));
        // Another txg, or another size: never.
        let again = WriteProps {
            rewrite: Some(second),
            ..write_props()
        };
        assert_ne!(
            world.write(11, &noise(8192, 3), &again).await.dvas(),
            second.dvas()
        );
        assert_ne!(
            world.write(10, &noise(4096, 3), &again).await.dvas(),
            second.dvas()
        );
        assert_eq!(world.read(&second).await, noise(8192, 2));
    });
}

/// OpenZFS's nopwrite: what is there already is not written again, if that can be told from the checksum.
#[test]
fn equal_bytes_are_not_written_again() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 128 * MIB, 12).await;
        let data = noise(8192, 1);
        for checksum in [
            ChecksumKind::SHA256,
            ChecksumKind::SHA512,
            ChecksumKind::SKEIN,
            ChecksumKind::EDONR,
            ChecksumKind::BLAKE3,
            ChecksumKind::FLETCHER4,
        ] {
            let props = WriteProps {
                checksum,
                ..write_props()
            };
            let old = world.write(10, &data, &props).await;
            let again = WriteProps {
                unless_equal: Some(old),
                ..props
            };
            let kept = world.write(11, &data, &again).await;
            assert_eq!(kept == old, checksum.is_cryptographic(), "{checksum:?}");
            let other = world.write(11, &noise(8192, 2), &again).await;
            assert_ne!(other.dvas(), old.dvas());
            for other in [
                WriteProps { copies: 2, ..again },
                WriteProps {
                    checksum: ChecksumKind::FLETCHER4,
                    ..again
                },
                WriteProps {
                    unless_equal: Some(BlockPointer::HOLE),
                    ..again
                },
            ] {
                let written = world.write(11, &data, &other).await;
                assert_ne!(written.dvas(), old.dvas(), "{other:?}");
                assert_eq!(world.read(&written).await, data);
            }
            // The same bytes, stored in another form.
            let text = vec![7; 8192];
            let old = world.write(12, &text, &props).await;
            let plain = WriteProps {
                compression: Compression::OFF,
                unless_equal: Some(old),
                ..props
            };
            assert_ne!(world.write(13, &text, &plain).await.dvas(), old.dvas());
        }
    });
}

#[test]
fn a_bad_half_of_a_mirror_is_mended_by_reading() {
    run(|handle| async move {
        let world = World::new(&handle, &[3], 128 * MIB, 12).await;
        let data = noise(64 << 10, 5);
        let bp = world.write(10, &data, &write_props()).await;
        let at = bp.dvas()[0].offset + vdev::LEAF_DATA_START;
        // The first block of a vdev is asked of the first leaf first.
        for _ in 0..3 {
            for leaf in [0, 1] {
                damage(&world.files[leaf], at + 8192, &[0xaa; 512]);
            }
            assert_eq!(world.read(&bp).await, data);
            for file in &world.files {
                assert!(peek(file, at, data.len()) == data, "{}", file.display());
            }
        }
        let stats = world.tree.status().children[0].stats.clone();
        assert_eq!(
            (stats.checksum_errors, stats.self_healed_bytes),
            (6, 6 * (64 << 10))
        );
        assert_eq!(stats.read_errors, 0);
    });
}

#[test]
fn a_bad_copy_is_mended_from_another() {
    run(|handle| async move {
        let world = World::new(&handle, &[1, 1], 128 * MIB, 12).await;
        let data = noise(4096, 5);
        let bp = world
            .write(
                10,
                &data,
                &WriteProps {
                    copies: 3,
                    ..write_props()
                },
            )
            .await;
        let dvas = bp.dvas();
        assert_ne!(dvas[0].vdev, dvas[1].vdev);
        let place = |dva: Dva| {
            (
                &world.files[dva.vdev as usize],
                dva.offset + vdev::LEAF_DATA_START,
            )
        };
        for bad in [dvas[0], dvas[1]] {
            let (file, at) = place(bad);
            damage(file, at, &[1; 4096]);
        }
        assert_eq!(world.read(&bp).await, data);
        for dva in dvas {
            let (file, at) = place(dva);
            assert_eq!(peek(file, at, 4096), data);
        }
        for dva in dvas {
            let (file, at) = place(dva);
            damage(file, at, &[2; 4096]);
        }
        let error = world
            .store
            .read(&bp, READ)
            .await
            .expect_err("all copies are bad");
        assert!(matches!(
            error,
            ZioError::Corrupt {
                reason: CorruptReason::Checksum,
                ..
            }
        ));
        assert_eq!(world.store.stats().corrupt, 1);
    });
}

#[test]
fn a_full_pool_says_so_and_takes_writes_after_frees() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 64 * MIB, 12).await;
        let size = world.store.space().size;
        let data = noise(1 << 20, 9);
        let mut blocks = Vec::new();
        let error = loop {
            match world
                .store
                .write(Txg(10), IoBuf::copy_from(&data), &write_props())
                .await
            {
                Ok(bp) => blocks.push(bp),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ZioError::NoSpace { .. }), "{error}");
        let space = world.store.space();
        assert!(space.free < MIB, "{space:?}");
        // The last blocks are gangs; all of them are intact.
        for bp in &blocks {
            assert!(world.read(bp).await == data, "{bp}");
        }
        drop(world.store.take_changes(Txg(10)));
        world.store.txg_synced(Txg(10));
        for bp in &blocks {
            world.store.free(Txg(11), bp).await.expect("frees");
            assert!(
                world.store.free(Txg(11), bp).await.is_err(),
                "freed twice: {bp}"
            );
        }
        assert_eq!(world.store.space().allocated, 0);
        for txg in [11, 12] {
            let write = world
                .store
                .write(Txg(txg), IoBuf::copy_from(&data), &write_props())
                .await;
            assert!(write.is_err(), "space was reused in txg {txg}");
            drop(world.store.take_changes(Txg(txg)));
            world.store.txg_synced(Txg(txg));
        }
        world.store.txg_synced(Txg(13));
        assert_eq!(world.store.space().free, size);
        world.write(14, &data, &write_props()).await;
    });
}

/// Fills the pool and frees every other small block, so that nothing large fits in one piece.
async fn fragment(world: &World) {
    let mut small = Vec::new();
    let props = WriteProps {
        compression: Compression::OFF,
        ..write_props()
    };
    while let Ok(bp) = world
        .store
        .write(Txg(10), IoBuf::copy_from(&noise(16 << 10, 1)), &props)
        .await
    {
        small.push(bp);
    }
    for bp in small.iter().step_by(2) {
        world.store.free(Txg(10), bp).await.expect("frees");
    }
    for txg in 10..13 {
        drop(world.store.take_changes(Txg(txg)));
        world.store.txg_synced(Txg(txg));
    }
}

#[test]
fn gangs_are_written_read_and_freed_whole() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 64 * MIB, 12).await;
        fragment(&world).await;
        let before = world.store.space();
        for (size, copies) in [(128 << 10, 1), (1 << 20, 1), (64 << 10, 2)] {
            let data = noise(size, 77);
            let props = WriteProps {
                copies,
                ..write_props()
            };
            let bp = world.write(20, &data, &props).await;
            assert!(bp.is_gang(), "{bp}");
            assert_eq!(bp.copies().count(), usize::from(copies) + 1);
            assert_eq!(world.read(&bp).await, data);
            let used = world.store.space().allocated - before.allocated;
            assert_eq!(used, bp.copies().map(|dva| dva.asize).sum::<u64>(), "{bp}");
            world.store.free(Txg(20), &bp).await.expect("frees");
            assert_eq!(world.store.space().allocated, before.allocated);
        }
        assert!(world.store.stats().gangs >= 3);
    });
}

/// A pointer as a big-endian machine would have made it.
fn foreign(bp: &BlockPointer) -> BlockPointer {
    let mut bytes = bp.encode();
    bytes[6 * 8 + 7] &= 0x7f;
    BlockPointer::decode(&bytes).expect("a pointer")
}

/// Rewrites the headers of a gang that was written in txg 20 as a big-endian machine would have written them.
fn rewrite_foreign(file: &Path, bp: &BlockPointer) {
    let first = bp.dvas()[0];
    let mut header = peek(file, first.offset + vdev::LEAF_DATA_START, 512);
    let children: Vec<BlockPointer> = BlockPointer::decode_all(&header[..384]).collect();
    for (child, place) in children.iter().zip(header.chunks_exact_mut(128)) {
        if child.is_gang() {
            rewrite_foreign(file, child);
        }
        if !child.is_hole() {
            foreign(child).encode_into(place);
        }
    }
    let verifier = ondisk::label::gang_verifier(first.vdev, first.offset, 20);
    for (word, place) in verifier.iter().zip(header[480..].chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    ondisk::byteswap::words(&mut header, 8);
    let algorithm = codec::checksum::Algorithm::Sha256;
    let sum = codec::checksum::compute(algorithm, &[0; 32], &header);
    for (word, place) in sum.iter().zip(header[480..].chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    for dva in bp.copies() {
        damage(file, dva.offset + vdev::LEAF_DATA_START, &header);
    }
}

#[test]
fn gangs_of_big_endian_machines_are_read() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 64 * MIB, 12).await;
        fragment(&world).await;
        let data = noise(256 << 10, 3);
        let props = WriteProps {
            checksum: ChecksumKind::SHA256,
            ..write_props()
        };
        let bp = world.write(20, &data, &props).await;
        assert!(bp.is_gang(), "{bp}");
        rewrite_foreign(&world.files[0], &bp);
        let bp = foreign(&bp);
        assert_eq!(world.read(&bp).await, data);
        let before = world.store.space().allocated;
        world.store.free(Txg(20), &bp).await.expect("frees");
        let freed = before - world.store.space().allocated;
        assert_eq!(freed, bp.copies().map(|dva| dva.asize).sum::<u64>());
    });
}

#[test]
fn damaged_gang_headers_are_refused_not_followed() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 64 * MIB, 12).await;
        fragment(&world).await;
        let data = noise(256 << 10, 3);
        let bp = world.write(20, &data, &write_props()).await;
        let headers: Vec<u64> = bp
            .copies()
            .map(|dva| dva.offset + vdev::LEAF_DATA_START)
            .collect();
        let file = &world.files[0];
        let good = peek(file, headers[0], 512);
        damage(file, headers[0], &[0; 512]);
        assert_eq!(world.read(&bp).await, data, "the second header stands in");
        assert_eq!(peek(file, headers[0], 512), good, "and mends the first");
        let verifier = ondisk::label::gang_verifier(bp.dvas()[0].vdev, bp.dvas()[0].offset, 20);
        let sha = |bytes: &[u8]| {
            codec::checksum::compute(codec::checksum::Algorithm::Sha256, &[0; 32], bytes)
        };
        // A header with a right checksum that points at itself, or at children that do not add up.
        for kind in 0..3 {
            let mut header = good.clone();
            let mut child = match kind {
                0 => bp,
                _ => BlockPointer::decode(&good).expect("a pointer"),
            };
            if kind == 0 {
                child.set_compression(Compression::OFF);
                child.set_lsize(child.psize());
            } else if kind == 1 {
                child.set_psize(512);
                child.set_lsize(512);
            } else {
                child.set_psize(16 << 20);
                child.set_lsize(16 << 20);
            }
            child.encode_into(&mut header);
            if kind == 0 {
                header[128..384].fill(0);
            }
            ondisk::label::set_checksum(&mut header, verifier, sha);
            for at in &headers {
                damage(file, *at, &header);
            }
            let error = world
                .store
                .read(&bp, READ)
                .await
                .expect_err("must be refused");
            assert!(
                matches!(
                    error,
                    ZioError::Corrupt {
                        reason: CorruptReason::Gang(_),
                        ..
                    }
                ),
                "{error}"
            );
            assert!(world.store.free(Txg(21), &bp).await.is_err());
        }
    });
}

#[test]
fn hostile_pointers_give_errors() {
    run(|handle| async move {
        let world = World::new(&handle, &[1], 64 * MIB, 12).await;
        let good = world.write(10, &noise(8192, 1), &write_props()).await;
        let place = good.dvas()[0];
        let with = |change: &dyn Fn(&mut BlockPointer)| {
            let mut bp = good;
            change(&mut bp);
            bp
        };
        let hostile = [
            with(&|bp| bp.set_dva(0, Dva { vdev: 9, ..place })),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        vdev: 0xff_ffff,
                        ..place
                    },
                );
            }),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        offset: 1 << 60,
                        ..place
                    },
                );
            }),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        offset: (1 << 63) - 512,
                        ..place
                    },
                );
            }),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        offset: place.offset + 512,
                        ..place
                    },
                );
            }),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        asize: 4096,
                        ..place
                    },
                );
            }),
            with(&|bp| {
                bp.set_dva(
                    0,
                    Dva {
                        gang: true,
                        ..place
                    },
                );
            }),
            with(&|bp| bp.set_lsize(32 << 20)),
            with(&|bp| bp.set_psize(32 << 20)),
            with(&|bp| bp.set_psize(16 << 20)),
            with(&|bp| bp.set_lsize(4096)),
            with(&|bp| bp.set_compression(Compression(4))),
            with(&|bp| bp.set_compression(Compression(99))),
            with(&|bp| bp.set_compression(Compression::LZ4)),
            with(&|bp| bp.set_checksum_kind(ChecksumKind(0))),
            with(&|bp| bp.set_checksum_kind(ChecksumKind::ZILOG2)),
            with(&|bp| bp.set_checksum_kind(ChecksumKind(200))),
            with(&|bp| bp.set_object_type(ObjectType(99))),
            with(&|bp| bp.set_checksum([1, 2, 3, 4])),
        ];
        for (index, bp) in hostile.iter().enumerate() {
            let error = world
                .store
                .read(bp, READ)
                .await
                .expect_err("must be refused");
            assert!(error.is_corruption(), "{index}: {error}");
        }
        assert!(!world.store.take_damaged().is_empty());
        // Only asked whether it is there: nothing is reported.
        for bp in &hostile {
            assert!(matches!(
                world.store.is_whole(bp, READ.class).await,
                Ok(false)
            ));
        }
        assert!(matches!(
            world.store.is_whole(&good, READ.class).await,
            Ok(true)
        ));
        assert!(!world.store.has_damaged());
        // Random words: anything but a panic.
        for seed in 0..3000 {
            let words: Vec<u64> = noise(128, seed)
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect();
            let mut words: [u64; 16] = words.try_into().expect("sixteen words");
            if seed % 2 == 0 {
                // Nearer to the truth: plausible properties and a small vdev id.
                words[6] = good.words()[6] ^ (words[6] & words[7] & words[8]);
                words[0] &= 0xff;
                words[1] >>= 44;
            }
            let bp = BlockPointer::from_words(words);
            drop(world.store.read(&bp, READ).await);
            drop(world.store.free(Txg(10), &bp).await);
            assert!(world.store.dsize(&bp) < 1 << 40);
        }
        assert_eq!(world.read(&good).await, noise(8192, 1));
        let words = *good.words();
        let big_endian = BlockPointer::from_words(std::array::from_fn(|index| {
            if index == 6 {
                words[6] & !(1 << 63)
            } else {
                words[index]
            }
        }));
        // Words of the other order add up to another sum.
        let error = world
            .store
            .read(&big_endian, READ)
            .await
            .expect_err("must be refused");
        assert!(matches!(error, ZioError::Corrupt { .. }));
        let encrypted = BlockPointer::from_words(std::array::from_fn(|index| {
            if index == 6 {
                words[6] | 1 << 61
            } else {
                words[index]
            }
        }));
        let error = world
            .store
            .read(&encrypted, READ)
            .await
            .expect_err("must be refused");
        assert!(matches!(error, ZioError::Encrypted { .. }));
    });
}

#[test]
fn a_mirror_works_on_without_a_half() {
    run(|handle| async move {
        let mut world = World::new(&handle, &[2], 128 * MIB, 12).await;
        let data = noise(128 << 10, 8);
        let bp = world.write(10, &data, &write_props()).await;
        world.tree.flush().await.expect("flushes");
        world.tree.close();
        std::fs::remove_file(&world.files[0]).expect("removes");
        let config = world.config.clone();
        let tree = vdev::Tree::open(
            &handle,
            &config,
            vdev::OpenMode::ReadWrite,
            vdev::TreeTuning::default(),
            true,
        )
        .await
        .expect("opens degraded");
        assert_eq!(tree.status().health, vdev::Health::Degraded);
        world.tree = tree.clone();
        world.store = zio::BlockStore::new(&handle, tree.clone(), zio::StoreOptions::default());
        world
            .store
            .activate(std::rc::Rc::new(crate::world::Maps::default()), &[]);
        assert_eq!(world.read(&bp).await, data);
        world.write(11, &noise(4096, 1), &write_props()).await;
        let missed = tree.take_missed_writes();
        assert_eq!(
            missed,
            [(
                config.tops[0].children[0].guid,
                std::iter::once(11..12).collect()
            )]
        );
        assert!(tree.take_missed_writes().is_empty());
        tree.flush().await.expect("one half is enough");
    });
}
