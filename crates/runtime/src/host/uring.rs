//! The driver on io_uring: one ring per engine thread, direct I/O, registered files and buffers.
//!
//! Submissions gather until the executor looks ([`Driver::wait`]) and go to the kernel in one call. Sleep and
//! completions are one call too: the ring polls the eventfd with which other threads call.
//!
//! Transfers that are neighbours on a disk and wait at the same time go to the kernel as one (a [`Convoy`]): a device
//! does one of 1 MiB in less time, and with less of ours, than eight of 128 KiB.
//!
//! What must hold for soundness: a buffer given to the kernel stays alive and untouched until its completion. Buffers
//! are owned by [`Flight`] entries, which are removed only on completion; dropping the driver waits for all of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;

use super::file::{OpenFile, aligned_copy};
use super::parker::Inbox;
use super::patience::{Patience, look};
use super::pool::Pool;
use super::threads::{FileTable, Finished, admit, run_blocking, run_compute};
use super::{HostConfig, clock};
use crate::arena::{self, Arena, arena};
use crate::buf::{IoBuf, IoBufMut};
use crate::disk::DiskAction;
use crate::driver::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Outcome, Token, Unpark, Waited,
};
use crate::slab::Slab;
use crate::time::{Instant, Timestamp};

/// Places for registered files: two for each of the first 128 disks. Later ones are used by descriptor.
const FILE_PLACES: u32 = 256;

/// Arena chunks that may be registered: 256 are 512 MiB. Buffers elsewhere are used by address.
const BUFFER_PLACES: u32 = 256;

/// `user_data` of the poll on the eventfd; all others are indices of flights or, with [`CONVOY`], of convoys.
const CALL: u64 = u64::MAX;
/// See [`CALL`].
const CONVOY: u64 = 1 << 63;

/// The most bytes that go as one: what devices take without cutting it up again.
const CONVOY_BYTES_MAX: usize = 1 << 20;
/// The most transfers that go as one.
const CONVOY_MEMBERS_MAX: usize = 64;
/// Waits for the only operation under way, none broken into, after which nobody else is expected to call: four writes with
/// their flushes.
const QUIET_WAITS_MIN: u8 = 8;
/// How far into the backlog a transfer's neighbour is looked for.
const CONVOY_LOOK: usize = 64;

/// The io_uring driver.
pub struct Uring {
    ring: IoUring,
    files: FileTable,
    has_fixed_files: bool,
    /// By chunk: registered with this ring.
    chunks: Vec<bool>,
    may_register_chunks: bool,
    flights: Slab<Flight>,
    convoys: Slab<Convoy>,
    /// Flights not yet in the submission queue.
    backlog: VecDeque<usize>,
    in_kernel: usize,
    in_kernel_max: usize,
    /// Flights by disk, and whether the disk is to be closed after its last one: until then its places must not
    /// be given to another disk.
    usage: Vec<(usize, bool)>,
    poll_is_armed: bool,
    inbox: Arc<Inbox<Finished>>,
    /// With calls from other threads, while no operation is under way.
    patience: Patience,
    /// With the only operation under way.
    disk_patience: Patience,
    /// Waits in a row for the only operation under way that no call broke into.
    quiet_waits: u8,
    pool: Pool,
}

struct Flight {
    token: Token,
    disk: DiskId,
    file: Arc<OpenFile>,
    offset: u64,
    /// Bytes already transferred by a short operation.
    done: usize,
    /// Was in a convoy that did not arrive whole: the next try is its own.
    alone: bool,
    through: Through,
    cargo: Cargo,
}

/// Whether a flight is a write that becomes a flush when it has arrived. In one (`RWF_DSYNC`) the kernel would do both with less
/// CPU, but the flush then waits for the very CPU where the write ended: 13 ms where others compute, instead of 0.2 ms.
#[derive(Clone, Copy)]
enum Through {
    No,
    Yes,
    /// It is a flush now.
    Arrived(Instant),
}

/// Flights that the kernel carries as one transfer.
struct Convoy {
    /// In order of their places on the disk, without gaps.
    members: Vec<usize>,
    /// Where their bytes are. The kernel has read this when the submission is done.
    places: Vec<libc::iovec>,
    len: usize,
}

enum Cargo {
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
        let has_fixed_files = ring.submitter().register_files_sparse(FILE_PLACES).is_ok();
        let may_register_chunks = arena().is_some()
            && ring
                .submitter()
                .register_buffers_sparse(BUFFER_PLACES)
                .is_ok();
        Ok(Self {
            in_kernel_max: ring.params().sq_entries() as usize,
            ring,
            files: FileTable::default(),
            has_fixed_files,
            chunks: vec![false; BUFFER_PLACES as usize],
            may_register_chunks,
            flights: Slab::new(),
            convoys: Slab::new(),
            backlog: VecDeque::new(),
            in_kernel: 0,
            usage: Vec::new(),
            poll_is_armed: false,
            inbox: Arc::new(Inbox::new()),
            patience: Patience::default(),
            disk_patience: Patience::default(),
            quiet_waits: 0,
            // Only for opening, listing and discarding.
            pool: Pool::new("disk", 2),
        })
    }

    /// The registered place of the chunk that holds the buffer, registering it at first use.
    fn chunk_place(&mut self, address: usize, len: usize) -> Option<u16> {
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
            let place = u32::try_from(number).expect("below the number of places");
            // SAFETY: the chunk is mapped for the life of the process and pinned, so it keeps its pages.
            let registered = unsafe {
                self.ring
                    .submitter()
                    .register_buffers_update(place, &[iovec], None)
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

    /// The registered place of a disk's file: direct ones at odd places.
    fn file_place(&self, disk: DiskId, direct: bool) -> Option<Fixed> {
        let place = disk.0.checked_mul(2)? + u32::from(direct);
        (self.has_fixed_files && place < FILE_PLACES).then_some(Fixed(place))
    }

    fn register_file(&self, disk: DiskId, file: Option<&OpenFile>) {
        for direct in [false, true] {
            if let Some(Fixed(place)) = self.file_place(disk, direct) {
                let fd = match file {
                    Some(file) if direct => file.direct_fd().map_or(-1, |fd| fd.as_raw_fd()),
                    Some(file) => file.buffered_fd().as_raw_fd(),
                    None => -1,
                };
                // Cannot fail for a place within the table and a descriptor that is open.
                self.ring
                    .submitter()
                    .register_files_update(place, &[fd])
                    .expect("registering an open file");
            }
        }
    }

    /// Describes the rest of a flight to the kernel.
    fn entry(&mut self, index: usize) -> squeue::Entry {
        let flight = self
            .flights
            .get_mut(index)
            .expect("a flight in the backlog");
        let (disk, offset, done) = (flight.disk, flight.offset + flight.done as u64, flight.done);
        let (address, len, is_read) = match &mut flight.cargo {
            Cargo::Read(buf) => (buf[done..].as_mut_ptr(), buf.len() - done, true),
            Cargo::Write(data) => {
                let bytes = &data.bytes()[done..];
                (bytes.as_ptr().cast_mut(), bytes.len(), false)
            }
            Cargo::Flush => (std::ptr::null_mut(), 0, false),
        };
        let is_flush = matches!(flight.cargo, Cargo::Flush);
        let direct = flight
            .file
            .direct_for(offset, address as usize, len)
            .filter(|_| !is_flush)
            .map(|file| file.as_raw_fd());
        let raw_fd = direct.unwrap_or_else(|| flight.file.buffered_fd().as_raw_fd());
        let fixed = self.file_place(disk, direct.is_some());
        let len_u32 = u32::try_from(len).expect("operations are below 4 GiB");
        let entry = if is_flush {
            match fixed {
                Some(place) => opcode::Fsync::new(place)
                    .flags(FsyncFlags::DATASYNC)
                    .build(),
                None => opcode::Fsync::new(io_uring::types::Fd(raw_fd))
                    .flags(FsyncFlags::DATASYNC)
                    .build(),
            }
        } else {
            let place = self.chunk_place(address as usize, len);
            let fd = io_uring::types::Fd(raw_fd);
            match (is_read, place, fixed) {
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
        entry.user_data(index as u64)
    }

    /// Moves the backlog into the submission queue as far as it fits.
    fn fill_queue(&mut self) {
        while self.in_kernel < self.in_kernel_max
            && let Some(index) = self.backlog.pop_front()
        {
            let entry = match self.assemble(index) {
                Some(convoy) => self.convoy_entry(convoy),
                None => self.entry(index),
            };
            // SAFETY: the entry points into the flight's own buffer (or the convoy's list of such, or a descriptor its
            // `file` keeps open), and flight and convoy are kept until the completion is seen.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                match entry.get_user_data() {
                    convoy if convoy & CONVOY != 0 => self.dissolve(convoy, false),
                    _ => self.backlog.push_front(index),
                }
                return;
            }
            self.in_kernel += 1;
        }
    }

    /// Where a flight that may go in a convoy begins and ends, on which disk, and whether it reads: direct transfers
    /// only, of which nothing has been done.
    fn stretch(&self, index: usize) -> Option<(DiskId, bool, u64, u64)> {
        let flight = self.flights.get(index)?;
        let (address, len, is_read) = match &flight.cargo {
            Cargo::Read(buf) => (buf.as_ptr(), buf.len(), true),
            Cargo::Write(data) => (data.bytes().as_ptr(), data.bytes().len(), false),
            Cargo::Flush => return None,
        };
        let may = !flight.alone
            && flight.done == 0
            && len < CONVOY_BYTES_MAX
            && flight
                .file
                .direct_for(flight.offset, address as usize, len)
                .is_some();
        may.then_some((
            flight.disk,
            is_read,
            flight.offset,
            flight.offset + len as u64,
        ))
    }

    /// Takes the flights out of the backlog that continue this one, and makes a convoy of them if there are any.
    fn assemble(&mut self, index: usize) -> Option<usize> {
        if self.backlog.is_empty() {
            return None;
        }
        let (disk, is_read, start, mut end) = self.stretch(index)?;
        let mut members = vec![index];
        while members.len() < CONVOY_MEMBERS_MAX {
            let room = start + CONVOY_BYTES_MAX as u64;
            let near = self.backlog.iter().take(CONVOY_LOOK).enumerate();
            let next = near.filter_map(|(at, &other)| match self.stretch(other) {
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
            members.push(next);
            end = to;
        }
        if members.len() == 1 {
            return None;
        }
        let places = members
            .iter()
            .filter_map(|&member| {
                let (start, len) = match &mut self.flights.get_mut(member)?.cargo {
                    Cargo::Read(buf) => (buf.as_mut_ptr(), buf.len()),
                    Cargo::Write(data) => {
                        let bytes = data.bytes();
                        (bytes.as_ptr().cast_mut(), bytes.len())
                    }
                    Cargo::Flush => return None,
                };
                Some(libc::iovec {
                    iov_base: start.cast(),
                    iov_len: len,
                })
            })
            .collect::<Vec<_>>();
        let len = places.iter().map(|place| place.iov_len).sum();
        Some(self.convoys.insert(Convoy {
            members,
            places,
            len,
        }))
    }

    /// Describes a convoy to the kernel.
    fn convoy_entry(&mut self, convoy: usize) -> squeue::Entry {
        let Convoy {
            members, places, ..
        } = self.convoys.get_mut(convoy).expect("just assembled");
        let count = u32::try_from(places.len()).expect("few members");
        let (first, places) = (members[0], places.as_ptr());
        let flight = self.flights.get(first).expect("a flight of a convoy");
        let (disk, offset) = (flight.disk, flight.offset);
        let reads = matches!(flight.cargo, Cargo::Read(_));
        let fd = flight
            .file
            .direct_fd()
            .expect("convoys are direct")
            .as_raw_fd();
        let fd = io_uring::types::Fd(fd);
        let entry = match (reads, self.file_place(disk, true)) {
            (true, Some(fixed)) => opcode::Readv::new(fixed, places, count)
                .offset(offset)
                .build(),
            (true, None) => opcode::Readv::new(fd, places, count).offset(offset).build(),
            (false, Some(fixed)) => opcode::Writev::new(fixed, places, count)
                .offset(offset)
                .build(),
            (false, None) => opcode::Writev::new(fd, places, count)
                .offset(offset)
                .build(),
        };
        entry.user_data(CONVOY | convoy as u64)
    }

    /// Ends a convoy whose flights go to the kernel again: each alone, if it was `broken` on its way.
    fn dissolve(&mut self, convoy: u64, broken: bool) {
        let index = usize::try_from(convoy & !CONVOY).expect("an index we gave");
        let convoy = self.convoys.remove(index).expect("a convoy under way");
        for member in convoy.members.into_iter().rev() {
            if let Some(flight) = self.flights.get_mut(member) {
                flight.alone = broken;
            }
            self.backlog.push_front(member);
        }
    }

    /// Deals with the end of a convoy. One that did not arrive whole says nothing about its members.
    fn land_convoy(&mut self, convoy: u64, result: i32, done: &mut Vec<Completion>) {
        let index = usize::try_from(convoy & !CONVOY).expect("an index we gave");
        let len = self.convoys.get(index).map_or(0, |convoy| convoy.len);
        if usize::try_from(result).ok() != Some(len) {
            return self.dissolve(convoy, true);
        }
        let convoy = self.convoys.remove(index).expect("a convoy under way");
        for (member, place) in convoy.members.into_iter().zip(convoy.places) {
            let count = i32::try_from(place.iov_len).expect("a convoy is small");
            self.land(member, count, done);
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
            .user_data(CALL);
        // SAFETY: refers to no memory; the descriptor lives as long as the ring.
        self.poll_is_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    /// Gives the kernel what is queued, and waits for a completion when asked to.
    fn enter(&mut self, sleep_until: Option<Option<Instant>>) {
        let result = match sleep_until {
            None => self.ring.submit(),
            Some(None) => self.ring.submit_and_wait(1),
            Some(Some(until)) => {
                let limit = until.since(clock::now());
                let limit = Timespec::new()
                    .sec(limit.as_secs())
                    .nsec(limit.subsec_nanos());
                self.ring
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

    /// Awaits a call, or the end of the only operation under way, for a moment without sleeping, where that has been worth it.
    /// Where others call meanwhile they have use for the processor: a look cost 32 writers a third of their rate.
    fn look(&mut self, now: Instant, until: Option<Instant>) {
        let patience = match self.in_kernel {
            0 => &self.patience,
            1 if self.quiet_waits >= QUIET_WAITS_MIN => &self.disk_patience,
            _ => return,
        };
        let Some(how) = patience.look(now) else {
            return;
        };
        if !self.ring.submission().is_empty() {
            self.enter(None);
        }
        let Self { ring, inbox, .. } = self;
        look(how.at_most(until), || {
            inbox.parker.is_called() || has_completions(ring)
        });
    }

    /// Takes note of a wait that began with so many operations under way: how long it was, and whether somebody called.
    fn waited(&mut self, in_kernel: usize, took: Duration, was_called: bool) {
        if in_kernel == 0 {
            return self.patience.waited(took);
        }
        self.quiet_waits = if in_kernel == 1 && !was_called {
            self.disk_patience.waited(took);
            self.quiet_waits.saturating_add(1)
        } else {
            0
        };
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                break;
            };
            if entry.user_data() == CALL {
                self.poll_is_armed = io_uring::cqueue::more(entry.flags());
                continue;
            }
            self.in_kernel -= 1;
            let (data, result) = (entry.user_data(), entry.result());
            if data & CONVOY != 0 {
                self.land_convoy(data, result, done);
            } else {
                let index = usize::try_from(data).expect("an index we gave");
                self.land(index, result, done);
            }
        }
        let files = &mut self.files;
        let mut opened = Vec::new();
        for finished in self.inbox.take() {
            let completion = admit(files, finished);
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

    /// Deals with the result of one kernel operation: done, to be continued, or failed.
    fn land(&mut self, index: usize, result: i32, done: &mut Vec<Completion>) {
        let flight = self
            .flights
            .get_mut(index)
            .expect("completions are for flights");
        let (action, len) = match &flight.cargo {
            Cargo::Read(buf) => (DiskAction::Read, buf.len()),
            Cargo::Write(data) => (DiskAction::Write, data.bytes().len()),
            Cargo::Flush => (DiskAction::Flush, 0),
        };
        let error = match usize::try_from(result) {
            // The file was truncated under us.
            Ok(0) if flight.done < len => Some(Errno::IO),
            Ok(count) => {
                flight.done += count;
                if flight.done < len {
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
        if error.is_none() && matches!(flight.through, Through::Yes) {
            flight.through = Through::Arrived(clock::now());
            (flight.cargo, flight.done) = (Cargo::Flush, 0);
            self.backlog.push_front(index);
            return;
        }
        let flight = self.flights.remove(index).expect("just seen");
        let (count, is_closing) = &mut self.usage[flight.disk.0 as usize];
        *count -= 1;
        if *count == 0 && *is_closing {
            self.close_now(flight.disk);
        }
        let error = error.map(|errno| flight.file.error(action, flight.offset, len, errno));
        let outcome = match flight.cargo {
            Cargo::Read(buf) => Outcome::Read(error.map_or(Ok(buf), Err)),
            Cargo::Write(_) | Cargo::Flush => match (flight.through, error) {
                (Through::No, error) => Outcome::Done(error.map_or(Ok(()), Err)),
                (_, Some(error)) => Outcome::Through(Err(error)),
                (Through::Arrived(at), None) => Outcome::Through(Ok(at)),
                (Through::Yes, None) => unreachable!("it went on as a flush"),
            },
        };
        done.push(Completion {
            token: flight.token,
            outcome,
        });
    }

    fn close_now(&mut self, disk: DiskId) {
        self.register_file(disk, None);
        self.files.remove(disk);
    }

    fn start(&mut self, token: Token, disk: DiskId, offset: u64, cargo: Cargo, through: Through) {
        let file = self.files.file(disk);
        self.usage[disk.0 as usize].0 += 1;
        let index = self.flights.insert(Flight {
            token,
            disk,
            file,
            offset,
            done: 0,
            alone: false,
            through,
            cargo,
        });
        self.backlog.push_back(index);
    }
}

/// Whether the ring has completions, or would have if the kernel were asked.
fn has_completions(ring: &mut IoUring) -> bool {
    ring.submission().taskrun() || !ring.completion().is_empty()
}

impl Driver for Uring {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn wall_clock(&self) -> Timestamp {
        clock::wall_clock()
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
                self.start(token, disk, offset, Cargo::Read(buf), Through::No);
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
                    true => Through::Yes,
                    false => Through::No,
                };
                self.start(token, disk, offset, Cargo::Write(data), through);
            }
            DiskOp::Flush { disk } => self.start(token, disk, 0, Cargo::Flush, Through::No),
            DiskOp::Open { .. } | DiskOp::List { .. } | DiskOp::Discard { .. } => {
                run_blocking(&self.pool, &self.files, &self.inbox, op, token);
            }
        }
    }

    fn offload(&mut self, job: ComputeJob, token: Token) {
        run_compute(&self.inbox, job, token);
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        self.arm_poll();
        self.fill_queue();
        let now = clock::now();
        let wants_sleep = until.is_none_or(|until| until > now);
        let in_kernel = self.in_kernel;
        if wants_sleep {
            self.look(now, until);
        }
        if wants_sleep
            && !has_completions(&mut self.ring)
            && self.poll_is_armed
            && self.inbox.parker.prepare()
        {
            self.enter(Some(until));
        } else {
            let queue = self.ring.submission();
            if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
                drop(queue);
                self.enter(None);
            }
        }
        let was_called = self.inbox.parker.is_called();
        self.inbox.parker.finish();
        if wants_sleep {
            self.waited(in_kernel, clock::now().since(now), was_called);
        }
        self.reap(done);
        // Continuations of short transfers, and what waited for room, go out before the next tasks run.
        if !self.backlog.is_empty() && self.in_kernel < self.in_kernel_max {
            self.fill_queue();
        }
        Waited::Progress
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
            self.enter(Some(None));
            self.reap(&mut done);
            self.backlog.clear();
        }
    }
}
