//! The driver on io_uring: one ring per engine thread, direct I/O, registered files and buffers.
//!
//! Submissions gather until the executor looks ([`Driver::wait`]) and go to the kernel in one call. Sleep and
//! completions are one call too: the ring polls the eventfd with which other threads wake the engine.
//!
//! Transfers that are adjacent on a disk and wait at the same time go to the kernel as one vectored transfer ([`MergedOp`]): a device
//! does one of 1 MiB in less time, and with less of ours, than eight of 128 KiB.
//!
//! What must hold for soundness: a buffer given to the kernel stays alive and untouched until its completion. Buffers
//! are owned by [`InFlightOp`] entries, which are removed only on completion; dropping the driver waits for all of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;

use super::file::{OpenFile, aligned_copy};
use super::parker::Inbox;
use super::pool::Pool;
use super::spin::{DISK_SPIN_MAX, SpinPlan, SpinPolicy, spin};
use super::threads::{FileTable, Finished, completion_of, run_blocking, run_compute};
use super::{HostConfig, clock};
use crate::arena::{self, Arena, arena};
use crate::buf::{IoBuf, IoBufMut};
use crate::disk_types::DiskAction;
use crate::driver::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Outcome, Sleeper, Token, Unpark, Waited,
};
use crate::slab::Slab;
use crate::time::{Instant, Timestamp};

/// Entries of the ring's table of registered files: two for each of the first 128 disks. Later ones are used by descriptor.
const FIXED_FILES: u32 = 256;

/// Arena chunks that may be registered: 256 are 512 MiB. Buffers elsewhere are used by address.
const FIXED_BUFFERS: u32 = 256;

/// `user_data` of the poll on the eventfd; all others are indices of operations or, with [`MERGED`], of merged ones.
const WAKE_UP: u64 = u64::MAX;
/// See [`WAKE_UP`].
const MERGED: u64 = 1 << 63;

/// The most bytes that go as one: what devices take without cutting it up again.
const MERGED_BYTES_MAX: usize = 1 << 20;
/// The most transfers that go as one.
const MERGED_OPS_MAX: usize = 64;
/// Uninterrupted waits for the only operation under way, after which no wake-up by another thread is expected: four writes with
/// their flushes.
const QUIET_WAITS_MIN: u8 = 8;
/// The longest flush after a write that the thread waits for itself, and short ones in a row after which it does. What a flash disk takes.
const FLUSH_HERE_MAX: Duration = Duration::from_micros(500);
/// See [`FLUSH_HERE_MAX`].
const SHORT_FLUSHES_MIN: u8 = 8;
/// How far into the backlog an adjacent transfer is looked for.
const MERGE_SCAN_MAX: usize = 64;

/// The io_uring driver.
pub struct Uring {
    /// Only its own thread uses it, which has it to itself while it sleeps.
    ring: Rc<RefCell<Ring>>,
    files: FileTable,
    has_fixed_files: bool,
    /// By chunk: registered with this ring.
    chunks: Vec<bool>,
    may_register_chunks: bool,
    ops: Slab<InFlightOp>,
    merged: Slab<MergedOp>,
    /// Operations not yet in the submission queue.
    backlog: VecDeque<usize>,
    in_kernel: usize,
    in_kernel_max: usize,
    /// Operations in op by disk, and whether the disk is to be closed after its last one: until then its table entries must not
    /// be given to another disk.
    usage: Vec<(usize, bool)>,
    /// Disks that other threads closed while this one slept.
    closing: Vec<DiskId>,
    poll_is_armed: bool,
    inbox: Arc<Inbox<Finished>>,
    /// When the wait under way began, and how many operations the kernel had then.
    waiting: Option<(Instant, usize)>,
    /// For wake-ups by other threads, while no operation is under way.
    wake_spin: SpinPolicy,
    /// For the completion of the only operation under way.
    disk_spin: SpinPolicy,
    /// Waits in a row for the only operation under way that no wake-up interrupted.
    quiet_waits: u8,
    /// Flushes after writes in a row that took no longer than [`FLUSH_HERE_MAX`].
    short_flushes: u8,
    pool: Pool,
}

/// The ring, and the sleep for its completions.
struct Ring {
    io_uring: IoUring,
    inbox: Arc<Inbox<Finished>>,
    /// How to sleep: first like that, then until this time.
    spin: Option<SpinPlan>,
    until: Option<Instant>,
}

struct InFlightOp {
    token: Token,
    disk: DiskId,
    file: Arc<OpenFile>,
    offset: u64,
    /// Bytes already transferred by a short operation.
    done: usize,
    /// Was in a merged transfer that was short or failed: the next try is its own.
    alone: bool,
    through: WriteThrough,
    transfer: Transfer,
}

/// Whether an operation is a write that is followed by a flush when the device has it. In one (`RWF_DSYNC`) the kernel would do both with less
/// CPU, but the flush then waits for the very CPU where the write ended: 13 ms where others compute, instead of 0.2 ms.
#[derive(Clone, Copy)]
enum WriteThrough {
    No,
    Yes,
    /// It is a flush now.
    Flushing(Instant),
}

/// Operations that are one vectored transfer for the kernel.
struct MergedOp {
    /// In order of their offsets on the disk, without gaps.
    ops: Vec<usize>,
    /// Their buffers. The kernel has read this when the submission is done.
    iovecs: Vec<libc::iovec>,
    len: usize,
}

enum Transfer {
    Read(IoBufMut),
    Write(Bytes),
    Flush,
}

/// What a write holds: the caller's buffer, or an aligned copy of it.
enum Bytes {
    Shared(IoBuf),
    Copy(IoBufMut),
}

impl Bytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(buf) => buf,
            Self::Copy(buf) => buf,
        }
    }
}

impl Uring {
    /// Makes a ring.
    ///
    /// # Errors
    /// When the kernel has no io_uring, forbids it, or lacks something needed (timed waits: Linux 5.11).
    pub fn new(config: &HostConfig) -> io::Result<Self> {
        let entries = config.ring_entries.clamp(8, 4096).next_power_of_two();
        // Linux 6.1 runs completions only when we look, which saves interrupts; older kernels take the plain ring.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .build(entries)
            .or_else(|_| IoUring::builder().setup_clamp().build(entries))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(Errno::NOSYS.into());
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::PollAdd::CODE,
        ];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(Errno::NOSYS.into());
        }
        let has_fixed_files = ring.submitter().register_files_sparse(FIXED_FILES).is_ok();
        let may_register_chunks = arena().is_some()
            && ring
                .submitter()
                .register_buffers_sparse(FIXED_BUFFERS)
                .is_ok();
        let inbox = Arc::new(Inbox::new());
        Ok(Self {
            in_kernel_max: ring.params().sq_entries() as usize,
            ring: Rc::new(RefCell::new(Ring {
                io_uring: ring,
                inbox: inbox.clone(),
                spin: None,
                until: None,
            })),
            files: FileTable::default(),
            has_fixed_files,
            chunks: vec![false; FIXED_BUFFERS as usize],
            may_register_chunks,
            ops: Slab::new(),
            merged: Slab::new(),
            backlog: VecDeque::new(),
            in_kernel: 0,
            usage: Vec::new(),
            closing: Vec::new(),
            poll_is_armed: false,
            inbox,
            waiting: None,
            wake_spin: SpinPolicy::up_to(DISK_SPIN_MAX),
            disk_spin: SpinPolicy::up_to(DISK_SPIN_MAX),
            quiet_waits: 0,
            short_flushes: 0,
            // Only for opening, listing and discarding.
            pool: Pool::new("disk", 2),
        })
    }

    /// Returns the registered-buffer index of the chunk that holds the buffer, registering it at first use.
    fn buffer_index(&mut self, address: usize, len: usize) -> Option<u16> {
        let arena = arena()?;
        let number = arena.chunk_of(address)?;
        let known = *self.chunks.get(number)?;
        if len == 0 || arena.chunk_of(address + len - 1) != Some(number) {
            return None;
        }
        if !known {
            if !self.may_register_chunks || !Arena::may_pin(number) {
                return None;
            }
            let base = arena.pin(number);
            let iovec = libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(base),
                iov_len: arena::CHUNK,
            };
            let index = u32::try_from(number).expect("below the number of registered buffers");
            // SAFETY: the chunk is mapped for the life of the process and pinned, so it keeps its pages.
            let registered = unsafe {
                self.ring
                    .borrow()
                    .io_uring
                    .submitter()
                    .register_buffers_update(index, &[iovec], None)
            };
            if registered.is_err() {
                // The limit on locked memory is reached; what is registered stays useful.
                self.may_register_chunks = false;
                return None;
            }
            self.chunks[number] = true;
        }
        u16::try_from(number).ok()
    }

    /// Returns the registered-file index of a disk: that of its direct descriptor is odd.
    fn file_index(&self, disk: DiskId, direct: bool) -> Option<Fixed> {
        let index = disk.0.checked_mul(2)? + u32::from(direct);
        (self.has_fixed_files && index < FIXED_FILES).then_some(Fixed(index))
    }

    fn register_file(&self, disk: DiskId, file: Option<&OpenFile>) {
        for direct in [false, true] {
            if let Some(Fixed(index)) = self.file_index(disk, direct) {
                let fd = match file {
                    Some(file) if direct => file.direct_fd().map_or(-1, |fd| fd.as_raw_fd()),
                    Some(file) => file.buffered_fd().as_raw_fd(),
                    None => -1,
                };
                // Cannot fail for an index within the table and a descriptor that is open.
                self.ring
                    .borrow()
                    .io_uring
                    .submitter()
                    .register_files_update(index, &[fd])
                    .expect("registering an open file");
            }
        }
    }

    /// Makes the submission entry of what is left of an operation.
    fn entry(&mut self, index: usize) -> squeue::Entry {
        let op = self
            .ops
            .get_mut(index)
            .expect("an operation in the backlog");
        let (disk, offset, done) = (op.disk, op.offset + op.done as u64, op.done);
        let (address, len, is_read) = match &mut op.transfer {
            Transfer::Read(buf) => (buf[done..].as_mut_ptr(), buf.len() - done, true),
            Transfer::Write(data) => {
                let bytes = &data.bytes()[done..];
                (bytes.as_ptr().cast_mut(), bytes.len(), false)
            }
            Transfer::Flush => (std::ptr::null_mut(), 0, false),
        };
        let is_flush = matches!(op.transfer, Transfer::Flush);
        let direct = op
            .file
            .direct_for(offset, address as usize, len)
            .filter(|_| !is_flush)
            .map(|file| file.as_raw_fd());
        let raw_fd = direct.unwrap_or_else(|| op.file.buffered_fd().as_raw_fd());
        let flags = submission_flags(&op.file);
        let fixed = self.file_index(disk, direct.is_some());
        let len_u32 = u32::try_from(len).expect("operations are below 4 GiB");
        let entry = if is_flush {
            match fixed {
                Some(fixed) => opcode::Fsync::new(fixed)
                    .flags(FsyncFlags::DATASYNC)
                    .build(),
                None => opcode::Fsync::new(io_uring::types::Fd(raw_fd))
                    .flags(FsyncFlags::DATASYNC)
                    .build(),
            }
        } else {
            let buffer = self.buffer_index(address as usize, len);
            let fd = io_uring::types::Fd(raw_fd);
            match (is_read, buffer, fixed) {
                (true, Some(buf), Some(fixed)) => {
                    opcode::ReadFixed::new(fixed, address, len_u32, buf)
                        .offset(offset)
                        .build()
                }
                (true, Some(buf), None) => opcode::ReadFixed::new(fd, address, len_u32, buf)
                    .offset(offset)
                    .build(),
                (true, None, Some(fixed)) => opcode::Read::new(fixed, address, len_u32)
                    .offset(offset)
                    .build(),
                (true, None, None) => opcode::Read::new(fd, address, len_u32)
                    .offset(offset)
                    .build(),
                (false, Some(buf), Some(fixed)) => {
                    opcode::WriteFixed::new(fixed, address, len_u32, buf)
                        .offset(offset)
                        .build()
                }
                (false, Some(buf), None) => opcode::WriteFixed::new(fd, address, len_u32, buf)
                    .offset(offset)
                    .build(),
                (false, None, Some(fixed)) => opcode::Write::new(fixed, address, len_u32)
                    .offset(offset)
                    .build(),
                (false, None, None) => opcode::Write::new(fd, address, len_u32)
                    .offset(offset)
                    .build(),
            }
        };
        entry.flags(flags).user_data(index as u64)
    }

    /// Moves the backlog into the submission queue as far as it fits.
    fn fill_queue(&mut self) {
        while self.in_kernel < self.in_kernel_max
            && let Some(index) = self.backlog.pop_front()
        {
            let entry = match self.merge(index) {
                Some(merged) => self.merged_entry(merged),
                None => self.entry(index),
            };
            // SAFETY: the entry points into the operation's own buffer (or the merged transfer's list of such, or a descriptor its
            // `file` keeps open), and operation and merged transfer are kept until the completion is seen.
            let pushed = unsafe { self.ring.borrow_mut().io_uring.submission().push(&entry) };
            if pushed.is_err() {
                match entry.get_user_data() {
                    merged if merged & MERGED != 0 => self.split(merged, false),
                    _ => self.backlog.push_front(index),
                }
                return;
            }
            self.in_kernel += 1;
        }
    }

    /// Returns disk, direction (whether it reads), start and end of an operation that may be merged: direct transfers
    /// only, of which nothing has been done.
    fn mergeable(&self, index: usize) -> Option<(DiskId, bool, u64, u64)> {
        let op = self.ops.get(index)?;
        let (address, len, is_read) = match &op.transfer {
            Transfer::Read(buf) => (buf.as_ptr(), buf.len(), true),
            Transfer::Write(data) => (data.bytes().as_ptr(), data.bytes().len(), false),
            Transfer::Flush => return None,
        };
        let may = !op.alone
            && op.done == 0
            && len < MERGED_BYTES_MAX
            && op
                .file
                .direct_for(op.offset, address as usize, len)
                .is_some();
        may.then_some((op.disk, is_read, op.offset, op.offset + len as u64))
    }

    /// Takes the operations out of the backlog that continue this one, and merges them if there are any.
    fn merge(&mut self, index: usize) -> Option<usize> {
        if self.backlog.is_empty() {
            return None;
        }
        let (disk, is_read, start, mut end) = self.mergeable(index)?;
        let mut ops = vec![index];
        while ops.len() < MERGED_OPS_MAX {
            let room = start + MERGED_BYTES_MAX as u64;
            let near = self.backlog.iter().take(MERGE_SCAN_MAX).enumerate();
            let next = near.filter_map(|(at, &other)| match self.mergeable(other) {
                Some((on, reads, from, to))
                    if (on, reads, from) == (disk, is_read, end) && to <= room =>
                {
                    Some((at, other, to))
                }
                _ => None,
            });
            let Some((at, next, to)) = { next }.next() else {
                break;
            };
            self.backlog.remove(at);
            ops.push(next);
            end = to;
        }
        if ops.len() == 1 {
            return None;
        }
        let iovecs = ops
            .iter()
            .filter_map(|&op| {
                let (start, len) = match &mut self.ops.get_mut(op)?.transfer {
                    Transfer::Read(buf) => (buf.as_mut_ptr(), buf.len()),
                    Transfer::Write(data) => {
                        let bytes = data.bytes();
                        (bytes.as_ptr().cast_mut(), bytes.len())
                    }
                    Transfer::Flush => return None,
                };
                Some(libc::iovec {
                    iov_base: start.cast(),
                    iov_len: len,
                })
            })
            .collect::<Vec<_>>();
        let len = iovecs.iter().map(|iovec| iovec.iov_len).sum();
        Some(self.merged.insert(MergedOp { ops, iovecs, len }))
    }

    /// Makes the submission entry of a merged transfer.
    fn merged_entry(&mut self, merged: usize) -> squeue::Entry {
        let MergedOp { ops, iovecs, .. } = self.merged.get_mut(merged).expect("just assembled");
        let count = u32::try_from(iovecs.len()).expect("few operations");
        let (first, iovecs) = (ops[0], iovecs.as_ptr());
        let op = self.ops.get(first).expect("a merged operation");
        let (disk, offset) = (op.disk, op.offset);
        let reads = matches!(op.transfer, Transfer::Read(_));
        let fd = op
            .file
            .direct_fd()
            .expect("merged transfers are direct")
            .as_raw_fd();
        let (fd, flags) = (io_uring::types::Fd(fd), submission_flags(&op.file));
        let entry = match (reads, self.file_index(disk, true)) {
            (true, Some(fixed)) => opcode::Readv::new(fixed, iovecs, count)
                .offset(offset)
                .build(),
            (true, None) => opcode::Readv::new(fd, iovecs, count).offset(offset).build(),
            (false, Some(fixed)) => opcode::Writev::new(fixed, iovecs, count)
                .offset(offset)
                .build(),
            (false, None) => opcode::Writev::new(fd, iovecs, count)
                .offset(offset)
                .build(),
        };
        entry.flags(flags).user_data(MERGED | merged as u64)
    }

    /// Puts the operations of a merged transfer back into the backlog: each to go on its own, if the transfer was `short`.
    fn split(&mut self, merged: u64, short: bool) {
        let index = usize::try_from(merged & !MERGED).expect("an index we gave");
        let merged = self
            .merged
            .remove(index)
            .expect("a merged transfer in the kernel");
        for index in merged.ops.into_iter().rev() {
            if let Some(op) = self.ops.get_mut(index) {
                op.alone = short;
            }
            self.backlog.push_front(index);
        }
    }

    /// Deals with the completion of a merged transfer. One that was short or failed says nothing about its operations.
    fn complete_merged(&mut self, merged: u64, result: i32, done: &mut Vec<Completion>) {
        let index = usize::try_from(merged & !MERGED).expect("an index we gave");
        let len = self.merged.get(index).map_or(0, |merged| merged.len);
        if usize::try_from(result).ok() != Some(len) {
            return self.split(merged, true);
        }
        let merged = self
            .merged
            .remove(index)
            .expect("a merged transfer in the kernel");
        for (op, iovec) in merged.ops.into_iter().zip(merged.iovecs) {
            let count = i32::try_from(iovec.iov_len).expect("a merged transfer is small");
            self.complete(op, count, done);
        }
    }

    fn arm_poll(&mut self) {
        if self.poll_is_armed {
            return;
        }
        let fd = io_uring::types::Fd(self.inbox.parker.event().as_raw_fd());
        // Multishot and never read: each write to the eventfd is one completion.
        let events = u32::try_from(libc::POLLIN).expect("a small flag");
        let entry = opcode::PollAdd::new(fd, events)
            .multi(true)
            .build()
            .user_data(WAKE_UP);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: refers to no memory; the descriptor lives as long as the ring.
        self.poll_is_armed = unsafe { ring.io_uring.submission().push(&entry) }.is_ok();
    }

    /// Returns how to spin for a wake-up or the completion of the only operation under way, where that has been worth it.
    /// Where other threads send requests meanwhile they have use for the processor: spinning cost 32 writers a third of their rate.
    fn spin_plan(&self, now: Instant) -> Option<SpinPlan> {
        let policy = match self.in_kernel {
            0 => &self.wake_spin,
            1 if self.quiet_waits >= QUIET_WAITS_MIN => &self.disk_spin,
            _ => return None,
        };
        policy.plan(now)
    }

    /// Records a wait that began with `in_kernel` operations under way: its duration, and whether another thread ended it.
    fn record_wait(&mut self, in_kernel: usize, took: Duration, was_notified: bool) {
        if in_kernel == 0 {
            return self.wake_spin.record_wait(took);
        }
        self.quiet_waits = if in_kernel == 1 && !was_notified {
            self.disk_spin.record_wait(took);
            self.quiet_waits.saturating_add(1)
        } else {
            0
        };
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        loop {
            let entry = self.ring.borrow_mut().io_uring.completion().next();
            let Some(entry) = entry else {
                break;
            };
            if entry.user_data() == WAKE_UP {
                self.poll_is_armed = io_uring::cqueue::more(entry.flags());
                continue;
            }
            self.in_kernel -= 1;
            let (data, result) = (entry.user_data(), entry.result());
            if data & MERGED != 0 {
                self.complete_merged(data, result, done);
            } else {
                let index = usize::try_from(data).expect("an index we gave");
                self.complete(index, result, done);
            }
        }
        let files = &mut self.files;
        let mut opened = Vec::new();
        for finished in self.inbox.take() {
            let completion = completion_of(files, finished);
            if let Outcome::Opened(Ok((id, _))) = &completion.outcome {
                opened.push(*id);
            }
            done.push(completion);
        }
        for id in opened {
            let index = id.0 as usize;
            if self.usage.len() <= index {
                self.usage.resize(index + 1, (0, false));
            }
            self.usage[index] = (0, false);
            self.register_file(id, Some(&self.files.file(id)));
        }
    }

    /// Flushes after a write on this thread, where nothing else is under way or expected and flushes have been short. The kernel gives those
    /// of a ring to a worker thread, whose processor sleeps then and has to be woken: half as long again, for three times the CPU
    /// (docs/measurements/2026-12-01-turns.md). A disk that hangs is met by the write before it, most likely, for which the thread does
    /// not wait.
    fn flush_here(&mut self, done: &mut Vec<Completion>) {
        let is_quiet = self.in_kernel == 0
            && self.quiet_waits >= QUIET_WAITS_MIN
            && self.short_flushes >= SHORT_FLUSHES_MIN
            && !self.inbox.parker.is_notified();
        let [index] = *self.backlog.make_contiguous() else {
            return;
        };
        let Some(op) = self.ops.get(index).filter(|_| is_quiet) else {
            return;
        };
        if !matches!(op.through, WriteThrough::Flushing(_)) {
            return;
        }
        let flushed = rustix::fs::fdatasync(op.file.buffered_fd());
        self.backlog.clear();
        let result = flushed.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        self.complete(index, result, done);
        if self.inbox.parker.is_notified() {
            self.quiet_waits = 0;
        }
    }

    /// Deals with the result of one kernel operation: done, to be continued, or failed.
    fn complete(&mut self, index: usize, result: i32, done: &mut Vec<Completion>) {
        let op = self
            .ops
            .get_mut(index)
            .expect("completions are for operations in op");
        let (action, len) = match &op.transfer {
            Transfer::Read(buf) => (DiskAction::Read, buf.len()),
            Transfer::Write(data) => (DiskAction::Write, data.bytes().len()),
            Transfer::Flush => (DiskAction::Flush, 0),
        };
        let error = match usize::try_from(result) {
            // The file was truncated under us.
            Ok(0) if op.done < len => Some(Errno::IO),
            Ok(count) => {
                op.done += count;
                if op.done < len {
                    self.backlog.push_front(index);
                    return;
                }
                None
            }
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::INTR | Errno::AGAIN => {
                    self.backlog.push_front(index);
                    return;
                }
                errno => Some(errno),
            },
        };
        if error.is_none() && matches!(op.through, WriteThrough::Yes) {
            op.through = WriteThrough::Flushing(clock::now());
            (op.transfer, op.done) = (Transfer::Flush, 0);
            self.backlog.push_front(index);
            return;
        }
        let op = self.ops.remove(index).expect("just seen");
        if let WriteThrough::Flushing(since) = op.through {
            self.short_flushes = match clock::now().since(since) <= FLUSH_HERE_MAX {
                true => self.short_flushes.saturating_add(1),
                false => 0,
            };
        }
        let (count, is_closing) = &mut self.usage[op.disk.0 as usize];
        *count -= 1;
        if *count == 0 && *is_closing {
            self.close_now(op.disk);
        }
        let error = error.map(|errno| op.file.error(action, op.offset, len, errno));
        let outcome = match op.transfer {
            Transfer::Read(buf) => Outcome::Read(error.map_or(Ok(buf), Err)),
            Transfer::Write(_) | Transfer::Flush => match (op.through, error) {
                (WriteThrough::No, error) => Outcome::Done(error.map_or(Ok(()), Err)),
                (_, Some(error)) => Outcome::Through(Err(error)),
                (WriteThrough::Flushing(at), None) => Outcome::Through(Ok(at)),
                (WriteThrough::Yes, None) => unreachable!("it went on as a flush"),
            },
        };
        done.push(Completion {
            token: op.token,
            outcome,
        });
    }

    fn close_now(&mut self, disk: DiskId) {
        if self.ring.try_borrow().is_err() {
            self.closing.push(disk);
            return;
        }
        self.register_file(disk, None);
        self.files.remove(disk);
    }

    fn start(
        &mut self,
        token: Token,
        disk: DiskId,
        offset: u64,
        transfer: Transfer,
        through: WriteThrough,
    ) {
        let file = self.files.file(disk);
        self.usage[disk.0 as usize].0 += 1;
        let index = self.ops.insert(InFlightOp {
            token,
            disk,
            file,
            offset,
            done: 0,
            alone: false,
            through,
            transfer,
        });
        self.backlog.push_back(index);
    }
}

/// Whether submissions of a file go to the kernel's worker threads at once, since it would do them in the call.
fn submission_flags(file: &OpenFile) -> squeue::Flags {
    if file.blocks_submitters() {
        squeue::Flags::ASYNC
    } else {
        squeue::Flags::empty()
    }
}

impl Ring {
    /// Gives the kernel what is queued, and waits for a completion when asked to.
    fn enter(&mut self, sleep_until: Option<Option<Instant>>) {
        let result = match sleep_until {
            None => self.io_uring.submit(),
            Some(None) => self.io_uring.submit_and_wait(1),
            Some(Some(until)) => {
                let limit = until.since(clock::now());
                let limit = Timespec::new()
                    .sec(limit.as_secs())
                    .nsec(limit.subsec_nanos());
                self.io_uring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        if let Err(error) = result {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            // A time-out, a signal, or a full completion queue that the caller is about to empty. Anything else means
            // that the ring itself is broken, and with it the engine.
            let is_passing = matches!(
                errno,
                Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY
            );
            assert!(is_passing, "io_uring_enter: {error}");
        }
    }

    /// Whether the ring has completions, or would have if the kernel were asked.
    fn has_completions(&mut self) -> bool {
        self.io_uring.submission().taskrun() || !self.io_uring.completion().is_empty()
    }

    /// Gives the kernel what is queued, and has it do what it has put off until asked.
    fn look(&mut self) {
        let queue = self.io_uring.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            drop(queue);
            self.enter(None);
        }
    }
}

impl Sleeper for Ring {
    fn spin(&mut self) {
        if let Some(plan) = self.spin {
            if !self.io_uring.submission().is_empty() {
                self.enter(None);
            }
            let inbox = self.inbox.clone();
            spin(plan.at_most(self.until), || {
                inbox.parker.is_notified() || self.has_completions()
            });
        }
    }

    fn sleep(&mut self) {
        if !self.has_completions() && self.inbox.parker.prepare() {
            self.enter(Some(self.until));
        } else {
            self.look();
        }
    }
}

impl Driver for Uring {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn wall_clock(&self) -> Timestamp {
        clock::wall_clock()
    }

    fn cpu_clock(&self) -> fn() -> Duration {
        clock::cpu
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        clock::fill_random(bytes);
    }

    fn submit(&mut self, op: DiskOp, token: Token) {
        match op {
            // Nothing to transfer is nothing to ask the kernel for.
            DiskOp::Read { buf, .. } if buf.is_empty() => {
                let outcome = Outcome::Read(Ok(buf));
                self.inbox.push(Finished::Op(Completion { token, outcome }));
            }
            DiskOp::Write { data, through, .. } if data.is_empty() => {
                let outcome = match through {
                    true => Outcome::Through(Ok(clock::now())),
                    false => Outcome::Done(Ok(())),
                };
                self.inbox.push(Finished::Op(Completion { token, outcome }));
            }
            DiskOp::Read { disk, offset, buf } => {
                self.start(token, disk, offset, Transfer::Read(buf), WriteThrough::No);
            }
            DiskOp::Write {
                disk,
                offset,
                data,
                through,
            } => {
                let file = self.files.file(disk);
                let must_copy = file.direct_alignment().is_some_and(|alignment| {
                    file.direct_for(offset, 0, data.len()).is_some()
                        && !data.is_aligned_to(alignment)
                });
                let data = if must_copy {
                    Bytes::Copy(aligned_copy(&data))
                } else {
                    Bytes::Shared(data)
                };
                let through = match through {
                    true => WriteThrough::Yes,
                    false => WriteThrough::No,
                };
                self.start(token, disk, offset, Transfer::Write(data), through);
            }
            DiskOp::Flush { disk } => self.start(token, disk, 0, Transfer::Flush, WriteThrough::No),
            DiskOp::Open { .. } | DiskOp::List { .. } | DiskOp::Discard { .. } => {
                run_blocking(&self.pool, &self.files, &self.inbox, op, token);
            }
        }
    }

    fn offload(&mut self, job: ComputeJob, token: Token) {
        run_compute(&self.inbox, job, token);
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        match self.begin_wait(until) {
            Some(ring) => {
                let mut ring = ring.borrow_mut();
                ring.spin();
                ring.sleep();
            }
            None => self.ring.borrow_mut().look(),
        }
        self.end_wait(done)
    }

    fn sleeps_apart(&self) -> bool {
        true
    }

    fn begin_wait(&mut self, until: Option<Instant>) -> Option<Rc<RefCell<dyn Sleeper>>> {
        self.arm_poll();
        self.fill_queue();
        let now = clock::now();
        if until.is_some_and(|until| until <= now) {
            return None;
        }
        self.waiting = Some((now, self.in_kernel));
        if !self.poll_is_armed {
            return None;
        }
        let mut ring = self.ring.borrow_mut();
        ring.spin = self.spin_plan(now);
        ring.until = until;
        Some(self.ring.clone())
    }

    fn end_wait(&mut self, done: &mut Vec<Completion>) -> Waited {
        let was_notified = self.inbox.parker.is_notified();
        self.inbox.parker.finish();
        let waiting = self.waiting.take();
        if let Some((began, in_kernel)) = waiting {
            self.record_wait(in_kernel, clock::now().since(began), was_notified);
        }
        self.reap(done);
        for disk in std::mem::take(&mut self.closing) {
            self.close_now(disk);
        }
        if waiting.is_some() {
            self.flush_here(done);
        }
        // Continuations of short transfers, and what waited for room, go out before the next tasks run.
        if !self.backlog.is_empty() && self.in_kernel < self.in_kernel_max {
            self.fill_queue();
        }
        Waited::Progress
    }

    fn has_submissions(&self) -> bool {
        !self.backlog.is_empty() || !self.closing.is_empty()
    }

    fn close(&mut self, disk: DiskId) {
        match &mut self.usage[disk.0 as usize] {
            (0, _) => self.close_now(disk),
            (_, is_closing) => *is_closing = true,
        }
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.inbox.parker.clone()
    }

    fn name(&self) -> &'static str {
        "uring"
    }
}

impl Drop for Uring {
    /// The kernel may still write into buffers: they must not be freed before it has finished.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut done = Vec::new();
        while self.in_kernel > 0 {
            self.ring.borrow_mut().enter(Some(None));
            self.reap(&mut done);
            self.backlog.clear();
        }
    }
}
