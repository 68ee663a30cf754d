//! One open file or block device, with blocking operations; and the directory scan.
//!
//! A disk has up to two descriptors: one with `O_DIRECT` for requests that are aligned as the file system wants, and
//! one through the page cache for the others (512-byte writes on a file system that wants 4096, and file systems
//! without `O_DIRECT`). Linux keeps the two coherent: a direct read first writes back, a direct write invalidates.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::buf::{ALIGNMENT, IoBufMut};
use crate::disk_types::{DiskAction, DiskError, DiskInfo, DiskKind, DiskMode};

pub(crate) struct OpenFile {
    info: DiskInfo,
    buffered: File,
    direct: Option<Direct>,
    /// A transfer is carried out while it is submitted: see [`blocks_submitters`].
    blocks_submitters: bool,
}

struct Direct {
    file: File,
    /// Offsets, lengths and addresses must be multiples of it.
    alignment: usize,
}

fn flags(value: OFlags) -> i32 {
    i32::try_from(value.bits()).expect("open flags fit")
}

fn options(mode: DiskMode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(mode == DiskMode::ReadWrite);
    options
}

fn open_error(path: &Path, action: DiskAction, error: &io::Error) -> DiskError {
    let path = path.to_owned();
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT | Errno::NOTDIR => DiskError::NotFound { path },
        Errno::ACCESS | Errno::PERM => DiskError::Permission { path },
        Errno::BUSY | Errno::WOULDBLOCK => DiskError::Busy { path },
        Errno::NODEV | Errno::NXIO => DiskError::Gone { path },
        Errno::ROFS => DiskError::ReadOnly { path },
        _ => DiskError::Io {
            path,
            action,
            offset: 0,
            len: 0,
            errno,
        },
    }
}

/// The unit in which a file is written without reading first: the file system's block, in bytes.
fn file_sector(block: u64) -> u32 {
    let unit = if block.is_power_of_two() {
        block.clamp(512, 4096)
    } else {
        4096
    };
    u32::try_from(unit).expect("clamped")
}

impl OpenFile {
    pub(crate) fn open(path: &Path, mode: DiskMode) -> Result<Self, DiskError> {
        let failed = |error: &io::Error| open_error(path, DiskAction::Open, error);
        let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
        let kind = if metadata.file_type().is_file() {
            DiskKind::File
        } else if metadata.file_type().is_block_device() {
            DiskKind::Block
        } else {
            return Err(DiskError::NotADisk {
                path: path.to_owned(),
            });
        };
        let exclusive = kind == DiskKind::Block && mode == DiskMode::ReadWrite;
        let extra = if exclusive {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let buffered = options(mode)
            .custom_flags(flags(OFlags::CLOEXEC | extra))
            .open(path)
            .map_err(|error| failed(&error))?;
        if mode == DiskMode::ReadWrite {
            rustix::fs::flock(&buffered, FlockOperation::NonBlockingLockExclusive)
                .map_err(|errno| failed(&errno.into()))?;
        }
        let (size_bytes, logical, physical) = match kind {
            DiskKind::File => (metadata.len(), 512, file_sector(metadata.blksize())),
            DiskKind::Block => {
                let size = rustix::fs::seek(&buffered, rustix::fs::SeekFrom::End(0))
                    .map_err(|errno| failed(&errno.into()))?;
                let logical = rustix::fs::ioctl_blksszget(&buffered).unwrap_or(512);
                let physical = rustix::fs::ioctl_blkpbszget(&buffered).unwrap_or(logical);
                (size, logical, physical.max(logical))
            }
        };
        let info = DiskInfo {
            path: path.to_owned(),
            size_bytes,
            logical_sector_bytes: logical,
            physical_sector_bytes: physical,
            kind,
        };
        let direct = options(mode)
            .custom_flags(flags(OFlags::CLOEXEC | OFlags::DIRECT))
            .open(path)
            .ok()
            .and_then(|file| {
                Some(Direct {
                    alignment: direct_alignment(&file, size_bytes)?,
                    file,
                })
            });
        let blocks_submitters = kind == DiskKind::File && blocks_submitters(&buffered);
        Ok(Self {
            info,
            buffered,
            direct,
            blocks_submitters,
        })
    }

    /// Whether a transfer has to be handed to a thread of the kernel, so that its submission does not wait for the file system.
    pub(crate) fn blocks_submitters(&self) -> bool {
        self.blocks_submitters
    }

    pub(crate) fn info(&self) -> &DiskInfo {
        &self.info
    }

    /// The descriptor for a request of this shape.
    fn file_for(&self, offset: u64, bytes: &[u8]) -> &File {
        self.direct_for(offset, bytes.as_ptr() as usize, bytes.len())
            .unwrap_or(&self.buffered)
    }

    /// The direct descriptor, when the request is aligned for it.
    pub(crate) fn direct_for(&self, offset: u64, address: usize, len: usize) -> Option<&File> {
        let direct = self.direct.as_ref()?;
        let mask = direct.alignment - 1;
        let aligned = offset & (mask as u64) == 0 && address & mask == 0 && len & mask == 0;
        aligned.then_some(&direct.file)
    }

    pub(crate) fn buffered_fd(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    pub(crate) fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.direct.as_ref()?.file.as_fd())
    }

    /// The alignment that makes a request eligible for direct I/O; `None` when there is no direct I/O.
    pub(crate) fn direct_alignment(&self) -> Option<usize> {
        Some(self.direct.as_ref()?.alignment)
    }

    pub(crate) fn error(
        &self,
        action: DiskAction,
        offset: u64,
        len: usize,
        errno: Errno,
    ) -> DiskError {
        let path = self.info.path.clone();
        match errno {
            Errno::NODEV | Errno::NXIO => DiskError::Gone { path },
            _ => DiskError::Io {
                path,
                action,
                offset,
                len: len as u64,
                errno: errno.raw_os_error(),
            },
        }
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let file = self.file_for(offset, buf);
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(file, &mut buf[done..], offset + done as u64) {
                // The file was truncated under us.
                Ok(0) => return Err(self.error(DiskAction::Read, offset, buf.len(), Errno::IO)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error(DiskAction::Read, offset, buf.len(), errno)),
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let bounce;
        let mut data = data;
        if let Some(alignment) = self.direct_alignment()
            && self.direct_for(offset, 0, data.len()).is_some()
            && !(data.as_ptr() as usize).is_multiple_of(alignment)
        {
            bounce = aligned_copy(data);
            data = &bounce;
        }
        let file = self.file_for(offset, data);
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(file, &data[done..], offset + done as u64) {
                Ok(0) => return Err(self.error(DiskAction::Write, offset, data.len(), Errno::IO)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error(DiskAction::Write, offset, data.len(), errno)),
            }
        }
        Ok(())
    }

    pub(crate) fn flush(&self) -> Result<(), DiskError> {
        loop {
            match rustix::fs::fdatasync(&self.buffered) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error(DiskAction::Flush, 0, 0, errno)),
            }
        }
    }

    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.buffered, flags, offset, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let (path, action) = (self.info.path.clone(), DiskAction::Discard);
                    return Err(DiskError::Io {
                        path,
                        action,
                        offset,
                        len,
                        errno: errno.raw_os_error(),
                    });
                }
            }
        }
    }
}

/// Returns an aligned copy for direct I/O.
pub(crate) fn aligned_copy(data: &[u8]) -> IoBufMut {
    let mut copy = IoBufMut::scratch(data.len());
    copy.copy_from_slice(data);
    copy
}

/// File systems whose server is another process or machine, by `f_type` (Linux: include/uapi/linux/magic.h): FUSE, NFS, CIFS, SMB2, 9P, Ceph,
/// AFS.
const REMOTE: &[u32] = &[
    0x6573_5546,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
];

/// Whether the file system of a file makes io_uring's submission of a write wait for its server, which a file system on a disk does not: it
/// says that it would wait, and a thread of the kernel takes over. A server that hangs would hang the engine's thread.
fn blocks_submitters(file: &File) -> bool {
    // The type is 32 bits wide, in a word of the machine.
    let kind = rustix::fs::fstatfs(file).map(|status| status.f_type & 0xffff_ffff);
    kind.is_ok_and(|kind| u32::try_from(kind).is_ok_and(|kind| REMOTE.contains(&kind)))
}

/// Finds by trying what `O_DIRECT` wants here; `None` when it does not work at all.
fn direct_alignment(file: &File, size: u64) -> Option<usize> {
    if size < ALIGNMENT as u64 {
        return None;
    }
    let mut buf = IoBufMut::zeroed(ALIGNMENT);
    // Offset and length odd by one small sector show whether that is enough; the address is aligned to it as well.
    [512, ALIGNMENT].into_iter().find(|&alignment| {
        let range = if alignment == 512 {
            512..1024
        } else {
            0..alignment
        };
        let offset = range.start as u64;
        rustix::io::pread(file, &mut buf[range], offset).is_ok_and(|count| count == alignment)
    })
}

/// Lists plain files and block devices, sorted.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let failed = |error: &io::Error| open_error(dir, DiskAction::List, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        // A dangling link or a file that has just gone is not a disk.
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        if metadata.is_file() || metadata.file_type().is_block_device() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
