//! Faults that an administrator injects into the I/O of devices, to rehearse failures (`zinject -d`).
//!
//! Guarantees: without a fault, an I/O costs one test of a flag; faults are asked for in one place, where a leaf hands its I/O to the
//! device, and what they make fail is counted and reported by the leaf as a failure of the device is. Chance comes from
//! the runtime, so that a simulation can be repeated.
//! Does not know which block an I/O is for: faults of blocks are injected above, in `zio`.
// OpenZFS: man/man8/zinject.8; module/zfs/zio_inject.c (which I/O a record matches, what its error does)

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ondisk::{Guid, label};
use runtime::{Disk, DiskAction, DiskError, Handle, Instant, IoBuf};

use crate::{LEAF_DATA_START, VdevError};

/// Most faults injected into one tree at a time: each I/O asks all of them.
pub const FAULTS_MAX: usize = 256;
/// Most lanes of all delays of a tree together.
pub const LANES_MAX: usize = 1 << 16;
/// `EIO`: what a device answers that fails.
pub(crate) const EIO: i32 = 5;

/// What an injected fault makes of an I/O, by the names of `zinject -e`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedError {
    /// It is done, and reported as failed; the device can be opened again.
    Io,
    /// It is done, and reported as failed; the device cannot be opened again.
    NoDevice,
    /// The bytes are taken for wrong ones. Of blocks only.
    Checksum,
    /// The bytes are taken for ones that do not decompress. Of blocks only.
    Decompress,
    /// The bytes are taken for ones that do not authenticate. Of blocks only.
    Decrypt,
    /// The device is taken for one that alone has some data: it cannot be taken out of service.
    Dtl,
    /// One bit of what was read is flipped.
    Corrupt,
    /// It is not done, and reported as done.
    Noop,
}

/// The I/O a fault is injected into, by the names of `zinject -T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedIo {
    /// None.
    Null,
    /// Reads of blocks.
    Read,
    /// Writes of blocks.
    Write,
    /// Frees of blocks: none of it reaches a device.
    Free,
    /// Claims of blocks of an intent log: none of it reaches a device.
    Claim,
    /// Flushes of the device's cache.
    Flush,
    /// Discards of free space.
    Trim,
    /// All of these.
    All,
    /// What is asked of a device that failed, to find out whether it is still there.
    Probe,
}

impl InjectedIo {
    fn contains(self, other: Self) -> bool {
        self == other || self == Self::All && other != Self::Probe
    }
}

/// How often a fault is injected where it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency(u32);

impl Frequency {
    /// Each time.
    pub const ALWAYS: Self = Self(u32::MAX);

    /// Makes it of a percentage, 0.0001 to 100; `None` for another number.
    #[must_use]
    pub fn from_percent(percent: f64) -> Option<Self> {
        let of_all = percent / 100.0 * f64::from(u32::MAX);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float turns into the nearest integer of the range"
        )]
        (0.0001..=100.0)
            .contains(&percent)
            .then_some(Self(of_all as u32))
    }

    /// Returns it as a percentage.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / f64::from(u32::MAX) * 100.0
    }

    /// Whether the fault is injected, by a random number.
    #[must_use]
    pub fn includes(self, random: u64) -> bool {
        self == Self::ALWAYS || random >> 32 < u64::from(self.0)
    }
}

/// A part of the four labels of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelArea {
    /// The first 8 KiB.
    Pad1,
    /// The second: the boot environment.
    Pad2,
    /// The configuration.
    Nvlist,
    /// The ring of uberblocks.
    Uberblocks,
}

impl LabelArea {
    /// Its bytes, from the start of a label.
    fn bytes(self) -> Range<u64> {
        let (start, len) = match self {
            Self::Pad1 => (0, label::BOOT_ENV.0),
            Self::Pad2 => (label::BOOT_ENV.0, label::BOOT_ENV.1 as u64),
            Self::Nvlist => (label::NVLIST.0, label::NVLIST.1 as u64),
            Self::Uberblocks => (label::RING.0, label::RING.1 as u64),
        };
        start..start + len
    }

    /// Whether bytes of a device of `psize` bytes are part of it, in any label.
    fn touches(self, psize: u64, io: &Range<u64>) -> bool {
        let area = self.bytes();
        (0..label::LABEL_COUNT)
            .filter_map(|which| label::label_offset(psize, which))
            .any(|label| io.start < label + area.end && label + area.start < io.end)
    }
}

/// What is done to the I/O of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEffect {
    /// I/O outside of the labels, and opening.
    Error(InjectedError),
    /// Reads and writes of part of the labels fail.
    LabelError(LabelArea, InjectedError),
    /// Reads and writes take at least so long, as many at a time as there are lanes.
    Delay {
        /// How long.
        latency: Duration,
        /// How many at a time.
        lanes: u16,
    },
}

/// A fault to be injected into the I/O of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFault {
    /// The leaf.
    pub leaf: Guid,
    /// What happens.
    pub effect: DeviceEffect,
    /// To which I/O.
    pub io: InjectedIo,
    /// How often.
    pub frequency: Frequency,
    /// I/O that fails is tried once more, and then goes well.
    pub fail_fast: bool,
}

/// A fault that is injected, with how often it could have been, and was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedDeviceFault {
    /// Its number.
    pub id: u64,
    /// The fault.
    pub fault: DeviceFault,
    /// I/Os it is for.
    pub matched: u64,
    /// I/Os it was injected into.
    pub injected: u64,
}

/// The faults of a tree. Clones share them.
#[derive(Clone)]
pub(crate) struct DeviceFaults(Rc<Registry>);

struct Registry {
    handle: Handle,
    /// Whether there is any.
    any: Cell<bool>,
    faults: RefCell<Vec<Entry>>,
}

struct Entry {
    status: InjectedDeviceFault,
    /// When each lane of a delay is free.
    lanes: Vec<Instant>,
    next_lane: usize,
}

/// What is injected into one I/O.
pub(crate) struct Injection {
    handle: Handle,
    until: Option<Instant>,
    outcome: Option<Outcome>,
    fail_fast: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Fail,
    Skip,
    /// Flips a bit, which this number chooses.
    Flip(u64),
}

impl DeviceFaults {
    pub(crate) fn new(handle: &Handle) -> Self {
        Self(Rc::new(Registry {
            handle: handle.clone(),
            any: Cell::new(false),
            faults: RefCell::default(),
        }))
    }

    /// See [`crate::Tree::inject_fault`].
    pub(crate) fn add(&self, id: u64, fault: DeviceFault) -> Result<(), VdevError> {
        let registry = &self.0;
        let mut faults = registry.faults.borrow_mut();
        let lanes = match fault.effect {
            DeviceEffect::Delay { latency, lanes } => {
                if latency.is_zero() || lanes == 0 {
                    return Err(VdevError::BadConfig {
                        what: "a delay without latency or lanes",
                    });
                }
                vec![registry.handle.now(); usize::from(lanes)]
            }
            _ => Vec::new(),
        };
        let taken: usize = faults.iter().map(|entry| entry.lanes.len()).sum();
        if faults.len() >= FAULTS_MAX || taken + lanes.len() > LANES_MAX {
            return Err(VdevError::TooManyFaults);
        }
        assert!(
            faults.iter().all(|entry| entry.status.id != id),
            "the fault {id} is injected once"
        );
        assert!(
            matches!(fault.effect, DeviceEffect::Delay { .. }) != lanes.is_empty(),
            "delays have lanes, and nothing else has"
        );
        faults.push(Entry {
            status: InjectedDeviceFault {
                id,
                fault,
                matched: 0,
                injected: 0,
            },
            lanes,
            next_lane: 0,
        });
        registry.any.set(true);
        Ok(())
    }

    pub(crate) fn remove(&self, id: u64) -> bool {
        let registry = &self.0;
        let mut faults = registry.faults.borrow_mut();
        let before = faults.len();
        faults.retain(|entry| entry.status.id != id);
        registry.any.set(!faults.is_empty());
        faults.len() < before
    }

    pub(crate) fn list(&self) -> Vec<InjectedDeviceFault> {
        let faults = self.0.faults.borrow();
        faults.iter().map(|entry| entry.status.clone()).collect()
    }

    fn is_empty(&self) -> bool {
        !self.0.any.get()
    }

    /// Decides what happens to an I/O of a leaf whose device has `psize` bytes, and takes its turn in a delay.
    pub(crate) fn begin(
        &self,
        leaf: Guid,
        psize: u64,
        io: InjectedIo,
        bytes: Range<u64>,
    ) -> Option<Injection> {
        if self.is_empty() {
            return None;
        }
        let mut injection = Injection {
            handle: self.0.handle.clone(),
            until: None,
            outcome: None,
            fail_fast: false,
        };
        let mut faults = self.0.faults.borrow_mut();
        for entry in faults.iter_mut() {
            let fault = &entry.status.fault;
            let has_outcome = injection.outcome.is_some();
            if fault.leaf != leaf || has_outcome || !fault.is_for(psize, io, &bytes) {
                continue;
            }
            entry.status.matched += 1;
            let random = self.0.handle.random_u64();
            if !fault.frequency.includes(random) {
                continue;
            }
            entry.status.injected += 1;
            injection.fail_fast = fault.fail_fast;
            injection.outcome = Some(match fault.effect {
                DeviceEffect::Error(InjectedError::Corrupt) => Outcome::Flip(random),
                DeviceEffect::Error(InjectedError::Noop) => Outcome::Skip,
                _ => Outcome::Fail,
            });
        }
        if matches!(io, InjectedIo::Read | InjectedIo::Write) {
            injection.until = self.delay(&mut faults, leaf, io);
        }
        (injection.outcome.is_some() || injection.until.is_some()).then_some(injection)
    }

    /// Takes the lane of a leaf's delays that is free first; returns when an I/O that begins now ends on it.
    fn delay(&self, faults: &mut [Entry], leaf: Guid, io: InjectedIo) -> Option<Instant> {
        let now = self.0.handle.now();
        let mut soonest: Option<(Instant, &mut Entry)> = None;
        for entry in faults {
            let fault = &entry.status.fault;
            let DeviceEffect::Delay { latency, .. } = fault.effect else {
                continue;
            };
            if fault.leaf != leaf || !fault.io.contains(io) {
                continue;
            }
            entry.status.matched += 1;
            if !fault.frequency.includes(self.0.handle.random_u64()) {
                continue;
            }
            // All lanes of a delay are alike: the one that was taken longest ago is free first.
            let end = now.max(entry.lanes[entry.next_lane]) + latency;
            if soonest.as_ref().is_none_or(|(other, _)| end < *other) {
                soonest = Some((end, entry));
            }
        }
        let (end, entry) = soonest?;
        assert!(
            end >= entry.lanes[entry.next_lane],
            "a lane is free again after it was taken"
        );
        entry.status.injected += 1;
        entry.lanes[entry.next_lane] = end;
        entry.next_lane = (entry.next_lane + 1) % entry.lanes.len();
        Some(end)
    }

    /// Whether the leaf is to be one that cannot be opened.
    pub(crate) fn refuses_open(&self, leaf: Guid) -> bool {
        self.is(leaf, InjectedError::NoDevice)
    }

    /// Whether the leaf is to be one that alone has some data.
    pub(crate) fn requires(&self, leaf: Guid) -> bool {
        self.is(leaf, InjectedError::Dtl)
    }

    fn is(&self, leaf: Guid, error: InjectedError) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut faults = self.0.faults.borrow_mut();
        let is_it = |fault: &DeviceFault| {
            fault.leaf == leaf && fault.effect == DeviceEffect::Error(error) && !fault.fail_fast
        };
        let found = faults
            .iter_mut()
            .find(|entry| is_it(&entry.status.fault))
            .map(|entry| &mut entry.status);
        let Some(status) = found else { return false };
        status.matched += 1;
        let injected = status.fault.frequency.includes(self.0.handle.random_u64());
        status.injected += u64::from(injected);
        injected
    }
}

impl DeviceFault {
    /// Whether it makes an I/O fail, as often as it is to.
    fn is_for(&self, psize: u64, io: InjectedIo, bytes: &Range<u64>) -> bool {
        let is_data = bytes.start >= LEAF_DATA_START
            && bytes.start < psize.saturating_sub(label::END_RESERVED);
        let anywhere = matches!(io, InjectedIo::Flush | InjectedIo::Probe);
        match self.effect {
            DeviceEffect::Error(error) => {
                (is_data || anywhere)
                    && self.io.contains(io)
                    && match error {
                        InjectedError::Io | InjectedError::NoDevice | InjectedError::Noop => true,
                        InjectedError::Corrupt => io == InjectedIo::Read,
                        _ => false,
                    }
            }
            DeviceEffect::LabelError(area, _) => {
                !is_data && !anywhere && self.io.contains(io) && area.touches(psize, bytes)
            }
            DeviceEffect::Delay { .. } => false,
        }
    }
}

impl Injection {
    /// Whether an I/O that failed may be tried again: an injected failure stands for one of the second try, unless it is to
    /// fail fast.
    pub(crate) fn allows_retry(&self) -> bool {
        self.outcome.is_none() || self.fail_fast
    }

    pub(crate) fn failure(disk: &Disk, action: DiskAction, bytes: &Range<u64>) -> DiskError {
        DiskError::Io {
            path: disk.info().path.clone(),
            action,
            offset: bytes.start,
            len: bytes.end - bytes.start,
            errno: EIO,
        }
    }
}

/// Does an I/O, and makes of its result what is injected into it. `skipped` is the result of one that is not done.
pub(crate) async fn run<T>(
    injection: Option<&Injection>,
    (disk, action, bytes): (&Disk, DiskAction, Range<u64>),
    io: impl Future<Output = Result<T, DiskError>>,
    skipped: impl FnOnce() -> T,
) -> Result<T, DiskError> {
    let Some(injection) = injection else {
        return io.await;
    };
    let result = match injection.outcome {
        Some(Outcome::Skip) => Ok(skipped()),
        _ => io.await,
    };
    if let Some(until) = injection.until {
        injection.handle.sleep_until(until).await;
    }
    match injection.outcome {
        Some(Outcome::Fail) => Err(Injection::failure(disk, action, &bytes)),
        _ => result,
    }
}

/// Does a read, and makes of its result what is injected into it.
pub(crate) async fn read(
    injection: Option<&Injection>,
    disk: &Disk,
    offset: u64,
    len: usize,
) -> Result<IoBuf, DiskError> {
    let bytes = offset..offset + len as u64;
    let io = disk.read(offset, len);
    let read = run(injection, (disk, DiskAction::Read, bytes), io, || {
        IoBuf::zeroed(len)
    });
    let buf = read.await?;
    match injection.and_then(|injection| injection.outcome) {
        Some(Outcome::Flip(random)) => Ok(flipped(&buf, random)),
        _ => Ok(buf),
    }
}

/// The bytes with one bit another.
fn flipped(buf: &IoBuf, random: u64) -> IoBuf {
    let bits = (buf.len() as u64).saturating_mul(8).max(1);
    let bit = random % bits;
    let mut changed = buf.to_mut();
    let at = usize::try_from(bit / 8).unwrap_or(usize::MAX);
    if let Some(byte) = changed.get_mut(at) {
        *byte ^= 1 << (bit % 8);
    }
    changed.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(effect: DeviceEffect, io: InjectedIo) -> DeviceFault {
        DeviceFault {
            leaf: Guid(1),
            effect,
            io,
            frequency: Frequency::ALWAYS,
            fail_fast: false,
        }
    }

    const PSIZE: u64 = 64 << 20;

    fn check(fault: &DeviceFault, io: InjectedIo, offset: u64, expect: bool) {
        let bytes = offset..offset + 512;
        assert_eq!(
            fault.is_for(PSIZE, io, &bytes),
            expect,
            "{fault:?} {io:?} at {offset:#x}"
        );
    }

    #[test]
    fn errors_spare_the_labels_and_know_their_kind_of_io() {
        let end = PSIZE - label::END_RESERVED;
        for error in [InjectedError::Io, InjectedError::NoDevice] {
            let all = fault(DeviceEffect::Error(error), InjectedIo::All);
            check(&all, InjectedIo::Read, LEAF_DATA_START, true);
            check(&all, InjectedIo::Trim, end - 512, true);
            check(&all, InjectedIo::Write, end, false);
            check(&all, InjectedIo::Write, LEAF_DATA_START - 512, false);
            check(&all, InjectedIo::Flush, 0, true);
            check(&all, InjectedIo::Probe, 0, false);
            let writes = fault(DeviceEffect::Error(error), InjectedIo::Write);
            check(&writes, InjectedIo::Read, LEAF_DATA_START, false);
            check(&writes, InjectedIo::Write, LEAF_DATA_START, true);
            let probes = fault(DeviceEffect::Error(error), InjectedIo::Probe);
            check(&probes, InjectedIo::Probe, 0, true);
            check(&probes, InjectedIo::Read, LEAF_DATA_START, false);
        }
        let corrupt = DeviceEffect::Error(InjectedError::Corrupt);
        let corrupt = fault(corrupt, InjectedIo::All);
        check(&corrupt, InjectedIo::Read, LEAF_DATA_START, true);
        check(&corrupt, InjectedIo::Write, LEAF_DATA_START, false);
        for of_blocks in [InjectedError::Decompress, InjectedError::Decrypt] {
            let none = fault(DeviceEffect::Error(of_blocks), InjectedIo::All);
            check(&none, InjectedIo::Read, LEAF_DATA_START, false);
        }
    }

    #[test]
    fn areas_of_labels() {
        let of = |area| {
            let effect = DeviceEffect::LabelError(area, InjectedError::Io);
            fault(effect, InjectedIo::Write)
        };
        let pad2 = of(LabelArea::Pad2);
        let uberblocks = of(LabelArea::Uberblocks);
        let nvlist = of(LabelArea::Nvlist);
        let pad1 = of(LabelArea::Pad1);
        for which in 0..label::LABEL_COUNT {
            let start = label::label_offset(PSIZE, which).expect("a label");
            check(&pad1, InjectedIo::Write, start, true);
            check(&pad1, InjectedIo::Write, start + (8 << 10), false);
            check(&pad2, InjectedIo::Write, start + (8 << 10), true);
            check(&pad2, InjectedIo::Write, start + (16 << 10), false);
            check(&nvlist, InjectedIo::Write, start + (16 << 10), true);
            check(&uberblocks, InjectedIo::Write, start + (128 << 10), true);
            let last = start + label::LABEL_SIZE - 512;
            check(&uberblocks, InjectedIo::Write, last, true);
            check(&uberblocks, InjectedIo::Read, last, false);
        }
        check(&uberblocks, InjectedIo::Write, LEAF_DATA_START, false);
    }

    #[test]
    fn frequencies() {
        assert_eq!(Frequency::from_percent(100.0), Some(Frequency::ALWAYS));
        for bad in [0.0, 0.00001, 100.1, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Frequency::from_percent(bad), None, "{bad}");
        }
        let half = Frequency::from_percent(50.0).expect("a percentage");
        assert!((half.percent() - 50.0).abs() < 0.001);
        assert!(half.includes(0) && !half.includes(u64::MAX));
        assert!(half.includes((1 << 62) - 1) && !half.includes(1 << 63));
        assert!(Frequency::ALWAYS.includes(u64::MAX));
    }

    #[test]
    fn one_bit_is_flipped() {
        let buf = IoBuf::zeroed(4096);
        for random in [0, 4095 * 8 + 7, 4096 * 8, u64::MAX] {
            let ones: u32 = flipped(&buf, random).iter().map(|b| b.count_ones()).sum();
            assert_eq!(ones, 1);
        }
    }
}
