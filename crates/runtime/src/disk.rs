//! Disks: block devices and plain files, addressed in bytes.
//!
//! Guarantees: buffers are owned by the operation; a completed [`Disk::write`] is readable at once and durable after
//! the next completed [`Disk::flush`], one by [`Disk::write_through`] at once; operations in flight at the same time have no order among themselves.
//! Does not know labels, pools or redundancy.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::buf::{IoBuf, IoBufMut};
use crate::combine::timeout;
use crate::disk_types::{DiskAction, DiskError, DiskInfo, DiskKind, DiskMode};
use crate::driver::{DiskId, DiskOp, Outcome};
use crate::executor::Handle;
use crate::time::Instant;

/// An open disk. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Disk {
    open: Rc<OpenDisk>,
}

struct OpenDisk {
    handle: Handle,
    id: DiskId,
    info: DiskInfo,
    /// As it is known now: at first that of `info`.
    size_bytes: Cell<u64>,
    mode: DiskMode,
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        self.handle.close_disk(self.id);
    }
}

/// How long a disk may take to be opened: some begin to spin then.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

impl Handle {
    /// Opens a disk or plain file.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `NotADisk`, `Busy` (another read-write open exists), `Io`.
    pub async fn open_disk(&self, path: &Path, mode: DiskMode) -> Result<Disk, DiskError> {
        Disk::open(self.clone(), path, mode).await
    }

    /// Lists the plain files and block devices in `dir` (symbolic links followed), sorted by path. Files too small
    /// to be disks are included.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `Io`.
    pub async fn list_disks(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        match self
            .disk_op(
                "disk list",
                DiskOp::List {
                    dir: dir.to_owned(),
                },
            )
            .await
        {
            Outcome::Listed(result) => result,
            _ => unreachable!("drivers answer a list with Listed"),
        }
    }
}

impl Disk {
    pub(crate) async fn open(
        handle: Handle,
        path: &Path,
        mode: DiskMode,
    ) -> Result<Self, DiskError> {
        let op = DiskOp::Open {
            path: path.to_owned(),
            mode,
        };
        let opening = handle.disk_op("disk open", op);
        let Some(outcome) = timeout(&handle, OPEN_TIMEOUT, opening).await else {
            let path = path.to_owned();
            let limit = OPEN_TIMEOUT;
            return Err(DiskError::NoAnswer { path, limit });
        };
        match outcome {
            Outcome::Opened(result) => {
                let (id, info) = result?;
                Ok(Self {
                    open: Rc::new(OpenDisk {
                        handle,
                        id,
                        size_bytes: Cell::new(info.size_bytes),
                        info,
                        mode,
                    }),
                })
            }
            _ => unreachable!("drivers answer an open with Opened"),
        }
    }

    /// Returns what was learned when the disk was opened.
    #[must_use]
    pub fn info(&self) -> &DiskInfo {
        &self.open.info
    }

    /// Returns the size in bytes: as it was when the disk was opened, or when it was measured again.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.open.size_bytes.get()
    }

    /// Looks how large the disk is now and returns it. Growth counts from here on; a disk that has become smaller keeps its
    /// size here, and fails where it ends.
    ///
    /// # Errors
    /// When the disk cannot be found at its path any more.
    pub async fn measure(&self) -> Result<u64, DiskError> {
        let path = &self.open.info.path;
        let again = Self::open(self.open.handle.clone(), path, DiskMode::ReadOnly).await?;
        let size = self.open.size_bytes.get().max(again.info().size_bytes);
        self.open.size_bytes.set(size);
        Ok(size)
    }

    /// Returns how the disk was opened.
    #[must_use]
    pub fn mode(&self) -> DiskMode {
        self.open.mode
    }

    /// Reads `len` bytes at byte `offset`; short reads do not happen.
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`, `Gone` or `Io` (for instance a latent sector error).
    pub async fn read(&self, offset: u64, len: usize) -> Result<IoBuf, DiskError> {
        self.check(DiskAction::Read, offset, len as u64)?;
        let op = DiskOp::Read {
            disk: self.open.id,
            offset,
            buf: IoBufMut::scratch(len),
        };
        match self.open.handle.disk_op("disk read", op).await {
            Outcome::Read(result) => {
                let buf = result?;
                assert_eq!(buf.len(), len, "the driver returns whole reads");
                Ok(buf.freeze())
            }
            _ => unreachable!("drivers answer a read with Read"),
        }
    }

    /// As [`Disk::read`], of a disk that may never answer.
    ///
    /// # Errors
    /// As [`Disk::read`]; `NoAnswer` after `limit`.
    pub async fn read_within(
        &self,
        offset: u64,
        len: usize,
        limit: Duration,
    ) -> Result<IoBuf, DiskError> {
        let read = timeout(&self.open.handle, limit, self.read(offset, len)).await;
        read.unwrap_or_else(|| {
            let path = self.open.info.path.clone();
            Err(DiskError::NoAnswer { path, limit })
        })
    }

    /// Writes `data` at byte `offset`. Durable after the next completed [`Disk::flush`], not before.
    ///
    /// # Errors
    /// `ReadOnly`, `OutOfRange`, `Misaligned`, `Gone` or `Io`. After an error the range holds old, new or mixed
    /// bytes.
    pub async fn write(&self, offset: u64, data: IoBuf) -> Result<(), DiskError> {
        let op = self.write_op(offset, data, false)?;
        self.done("disk write", op).await
    }

    /// Writes `data` at byte `offset`, durably: done is on stable storage. It says nothing of other writes. Returns when the
    /// device had the bytes: what it took from then on was spent on making them durable.
    ///
    /// # Errors
    /// As [`Disk::write`]; `Io` with [`DiskAction::Flush`] when the bytes were taken and could not be made durable, which
    /// says as much as a failed [`Disk::flush`].
    pub async fn write_through(&self, offset: u64, data: IoBuf) -> Result<Instant, DiskError> {
        let op = self.write_op(offset, data, true)?;
        match self.open.handle.disk_op("disk write", op).await {
            Outcome::Through(result) => result,
            _ => unreachable!("drivers answer writes that go through with Through"),
        }
    }

    fn write_op(&self, offset: u64, data: IoBuf, through: bool) -> Result<DiskOp, DiskError> {
        self.check_writable()?;
        self.check(DiskAction::Write, offset, data.len() as u64)?;
        Ok(DiskOp::Write {
            disk: self.open.id,
            offset,
            data,
            through,
        })
    }

    /// Makes every write that completed before this call durable.
    ///
    /// # Errors
    /// `Gone` or `Io`; then nothing is known about the durability of any write since the last good flush.
    pub async fn flush(&self) -> Result<(), DiskError> {
        if self.open.mode == DiskMode::ReadOnly {
            return Ok(());
        }
        self.done("disk flush", DiskOp::Flush { disk: self.open.id })
            .await
    }

    /// Tells the device that the range is not needed; its content is undefined afterwards.
    ///
    /// # Errors
    /// As [`Disk::write`], and `Io` with `EOPNOTSUPP` where the device cannot.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.check_writable()?;
        self.check(DiskAction::Discard, offset, len)?;
        self.done(
            "disk discard",
            DiskOp::Discard {
                disk: self.open.id,
                offset,
                len,
            },
        )
        .await
    }

    async fn done(&self, wait: &'static str, op: DiskOp) -> Result<(), DiskError> {
        match self.open.handle.disk_op(wait, op).await {
            Outcome::Done(result) => result,
            _ => unreachable!("drivers answer writes, flushes and discards with Done"),
        }
    }

    fn check_writable(&self) -> Result<(), DiskError> {
        match self.open.mode {
            DiskMode::ReadWrite => Ok(()),
            DiskMode::ReadOnly => Err(DiskError::ReadOnly {
                path: self.open.info.path.clone(),
            }),
        }
    }

    fn check(&self, action: DiskAction, offset: u64, len: u64) -> Result<(), DiskError> {
        let info = &self.open.info;
        if offset
            .checked_add(len)
            .is_none_or(|end| end > self.size_bytes())
        {
            let size = self.size_bytes();
            return Err(DiskError::OutOfRange {
                path: info.path.clone(),
                action,
                offset,
                len,
                size,
            });
        }
        let sector = u64::from(info.logical_sector_bytes);
        if info.kind == DiskKind::Block
            && (!offset.is_multiple_of(sector) || !len.is_multiple_of(sector))
        {
            let alignment = info.logical_sector_bytes;
            return Err(DiskError::Misaligned {
                path: info.path.clone(),
                action,
                offset,
                len,
                alignment,
            });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({})", self.open.info.path.display())
    }
}
