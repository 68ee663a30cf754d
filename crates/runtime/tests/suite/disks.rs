//! Disks on files.

use std::path::Path;

use std::time::Duration;

use runtime::{DiskError, DiskKind, DiskMode, IoBuf, Runtime, join_all, timeout};

use super::on_all;

fn with_file(size: u64, check: impl Fn(&Runtime, &Path)) {
    on_all(|runtime| {
        // In the build directory, because /tmp may be a tmpfs without direct I/O.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let path = dir.path().join("disk.img");
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(size))
            .expect("a file");
        check(runtime, &path);
    });
}

#[test]
fn bytes_written_are_read_back_at_every_alignment() {
    with_file(1 << 20, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let disk = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("opens");
            assert_eq!(disk.info().size_bytes, 1 << 20);
            assert_eq!(disk.info().kind, DiskKind::File);
            for (offset, len) in [
                (0, 4096),
                (8192, 131_072),
                (512, 512),
                (300_001, 7),
                (1 << 19, 0),
            ] {
                let data: Vec<u8> = (0..len).map(|n: u32| n.to_le_bytes()[0] ^ 0x5a).collect();
                disk.write(offset, IoBuf::from(data.clone()))
                    .await
                    .expect("writes");
                disk.flush().await.expect("flushes");
                assert_eq!(
                    &*disk.read(offset, data.len()).await.expect("reads"),
                    &*data
                );
                // A slice at an odd address must do as well.
                let mut shifted = vec![0];
                shifted.extend_from_slice(&data);
                let shifted = IoBuf::from(shifted);
                disk.write(offset, shifted.slice(1..shifted.len()))
                    .await
                    .expect("writes");
                assert_eq!(
                    &*disk.read(offset, data.len()).await.expect("reads"),
                    &*data
                );
            }
            disk.discard(8192, 131_072).await.expect("discards");
            assert!(
                disk.read(8192, 131_072)
                    .await
                    .expect("reads")
                    .iter()
                    .all(|&byte| byte == 0)
            );
        });
    });
}

#[test]
fn writes_that_go_through_arrive_beside_others() {
    with_file(4 << 20, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let disk = handle.open_disk(path, DiskMode::ReadWrite).await;
            let disk = disk.expect("opens");
            // Neighbours of one size, every other one going through; and one at an odd place.
            let page = |number: u8| IoBuf::from(vec![number; 8192]);
            let writes = (0..32_u8).map(|number| {
                let (disk, place) = (&disk, u64::from(number) * 8192);
                async move {
                    match number % 2 {
                        0 => disk.write_through(place, page(number)).await.map(|_| ()),
                        _ => disk.write(place, page(number)).await,
                    }
                }
            });
            for result in join_all(writes).await {
                result.expect("writes");
            }
            let odd = IoBuf::from(vec![77; 1001]);
            let began = handle.now();
            let through = disk.write_through(300_001, odd.clone()).await;
            let arrived = through.expect("writes");
            assert!(began < arrived && arrived < handle.now());
            let nothing = disk.write_through(0, IoBuf::empty()).await;
            nothing.expect("writes nothing");
            for number in 0..32_u8 {
                let read = disk.read(u64::from(number) * 8192, 8192).await;
                assert_eq!(&*read.expect("reads"), &*page(number));
            }
            assert_eq!(&*disk.read(300_001, 1001).await.expect("reads"), &*odd);
            let end = disk.write_through(4 << 20, page(1)).await;
            assert!(matches!(end, Err(DiskError::OutOfRange { .. })));
        });
    });
}

#[test]
fn many_operations_in_flight_all_come_back() {
    with_file(8 << 20, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let disk = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("opens");
            let writes = (0..2000_u32).map(|n| {
                let disk = disk.clone();
                handle.spawn("writer", async move {
                    disk.write(
                        u64::from(n) * 4096,
                        IoBuf::copy_from(&n.to_le_bytes().repeat(1024)),
                    )
                    .await
                })
            });
            assert!(
                join_all(writes.collect::<Vec<_>>())
                    .await
                    .iter()
                    .all(Result::is_ok)
            );
            let reads = (0..2000_u32).map(|n| {
                let disk = disk.clone();
                handle.spawn("reader", async move {
                    disk.read(u64::from(n) * 4096, 4096).await
                })
            });
            for (n, read) in (0_u32..).zip(join_all(reads.collect::<Vec<_>>()).await) {
                assert_eq!(&*read.expect("reads"), &*n.to_le_bytes().repeat(1024));
            }
        });
        assert_eq!(handle.stats().outstanding, 0);
    });
}

/// Neighbours may go to the device as one transfer: those that can be read are, whatever becomes of the others.
#[test]
fn of_neighbours_only_those_fail_that_cannot_be_read() {
    const LEN: u64 = 64 << 10;
    with_file(64 * LEN, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let disk = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("opens");
            let len = usize::try_from(LEN).expect("small");
            // Two streams, each in order, that wait at the same time.
            let order = (0..32_u8).flat_map(|n| [n, n + 32]);
            let writes = order.clone().map(|n| {
                let disk = disk.clone();
                let write = async move {
                    disk.write(u64::from(n) * LEN, IoBuf::copy_from(&vec![n; len]))
                        .await
                };
                handle.spawn("writer", write)
            });
            let written = join_all(writes.collect::<Vec<_>>()).await;
            assert!(written.iter().all(Result::is_ok));
            let file = std::fs::File::options()
                .write(true)
                .open(path)
                .expect("opens");
            file.set_len(45 * LEN).expect("is cut");
            let reads = order.map(|n| {
                let disk = disk.clone();
                let read = async move { (n, disk.read(u64::from(n) * LEN, len).await) };
                handle.spawn("reader", read)
            });
            for (n, read) in join_all(reads.collect::<Vec<_>>()).await {
                match read {
                    Ok(data) => assert!(n < 45 && data.iter().all(|&byte| byte == n)),
                    Err(error) => assert!(n >= 45 && matches!(error, DiskError::Io { .. })),
                }
            }
        });
        assert_eq!(handle.stats().outstanding, 0);
    });
}

#[test]
fn mistakes_are_typed_errors() {
    with_file(65_536, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let missing = path.with_file_name("missing");
            let error = handle
                .open_disk(&missing, DiskMode::ReadOnly)
                .await
                .expect_err("is missing");
            assert_eq!(error, DiskError::NotFound { path: missing });
            let dir = path.parent().expect("has one");
            let error = handle
                .open_disk(dir, DiskMode::ReadOnly)
                .await
                .expect_err("is a directory");
            assert_eq!(
                error,
                DiskError::NotADisk {
                    path: dir.to_owned()
                }
            );

            let disk = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("opens");
            let error = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect_err("is open");
            assert_eq!(
                error,
                DiskError::Busy {
                    path: path.to_owned()
                }
            );
            assert!(matches!(
                disk.read(65_536, 1).await,
                Err(DiskError::OutOfRange { .. })
            ));
            assert!(matches!(
                disk.read(u64::MAX, 1).await,
                Err(DiskError::OutOfRange { .. })
            ));
            let reader = handle
                .open_disk(path, DiskMode::ReadOnly)
                .await
                .expect("opens for reading");
            assert!(matches!(
                reader.write(0, IoBuf::zeroed(512)).await,
                Err(DiskError::ReadOnly { .. })
            ));
            drop(disk);
            handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("is free again");
            let other = runtime.handle().list_disks(dir).await.expect("lists");
            assert_eq!(other, [path.to_owned()]);
        });
    });
}

/// Random overlapping-free operations against a vector, with futures abandoned and disks closed and opened while
/// operations are in flight: an abandoned write may be there or not, everything else must be exact.
#[test]
fn a_file_behaves_like_a_vector() {
    const BLOCK: usize = 8192;
    const BLOCKS: usize = 64;
    with_file((BLOCK * BLOCKS) as u64, |runtime, path| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let mut model: Vec<Option<u8>> = vec![Some(0); BLOCKS];
            let mut random = 42_u64;
            let mut disk = handle
                .open_disk(path, DiskMode::ReadWrite)
                .await
                .expect("opens");
            for step in 0..400_u32 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let draw = usize::try_from(random >> 40).expect("24 bits");
                let (block, fill) = (draw % BLOCKS, step.to_le_bytes()[0]);
                let offset = (block * BLOCK) as u64;
                // Odd sizes and addresses use the page cache, even ones direct I/O.
                let backing = IoBuf::copy_from(&vec![fill; BLOCK + 1]);
                let data = backing.slice(draw % 2..BLOCK + draw % 2);
                match draw % 7 {
                    0 => {
                        let write = disk.write(offset, data);
                        let finished = timeout(&handle, Duration::from_micros(10), write).await;
                        if finished.is_none() {
                            model[block] = None;
                        } else {
                            model[block] = Some(fill);
                        }
                    }
                    1 => {
                        drop(disk);
                        // The old descriptor is closed when its last operation ends, so it may be busy for a moment.
                        disk = loop {
                            match handle.open_disk(path, DiskMode::ReadWrite).await {
                                Ok(disk) => break disk,
                                Err(DiskError::Busy { .. }) => {
                                    handle.sleep(Duration::from_millis(1)).await;
                                }
                                Err(error) => panic!("{error}"),
                            }
                        };
                    }
                    2 => disk.flush().await.expect("flushes"),
                    3 | 4 => {
                        disk.write(offset, data).await.expect("writes");
                        model[block] = Some(fill);
                    }
                    _ => {
                        let bytes = disk.read(offset, BLOCK).await.expect("reads");
                        if let Some(fill) = model[block] {
                            assert!(
                                bytes.iter().all(|&byte| byte == fill),
                                "step {step}, block {block}"
                            );
                        }
                    }
                }
            }
        });
    });
}
