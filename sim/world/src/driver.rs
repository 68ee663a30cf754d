//! The simulated driver: virtual time, the schedule by seed, and the disks of a [`World`](crate::World).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use runtime::{
    Completion, ComputeJob, DiskAction, DiskError, DiskId, DiskInfo, DiskKind, DiskMode, DiskOp,
    Driver, Instant, IoBufMut, Outcome, Timestamp, Token, Unpark, Waited,
};

use crate::Probe;
use crate::audit::EventHash;
use crate::disk::{Presence, SECTOR, SimDisk};
use crate::rng::Rng;

const EIO: i32 = 5;

/// 2026-01-01 00:00:00 UTC: where the simulated wall clock begins.
const WALL_CLOCK_START: i64 = 1_767_225_600;

/// How runnable tasks are chosen; by seed, because bugs hide in different orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Any of them.
    Random,
    /// First come, first served, as on the host.
    Fifo,
    /// The newest first.
    Lifo,
    /// Mostly the oldest, now and then any.
    MostlyFifo,
}

/// When power goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    At(Instant),
    /// When this many more writes have been submitted (to any disk).
    AfterWrites(u64),
    /// When this many more flushes have been submitted: before the last of them does anything.
    AtFlush(u64),
}

/// Everything of a world that survives a restart, and what does not.
pub(crate) struct State {
    pub(crate) disks: BTreeMap<PathBuf, SimDisk>,
    pub(crate) now: Instant,
    /// Seconds by which the wall clock is ahead of the time that passed.
    pub(crate) clock_error: i64,
    pub(crate) hash: EventHash,
    pub(crate) schedule: Schedule,
    pub(crate) cut: Option<Cut>,
    pub(crate) halted: bool,
    /// Counts boots; operations of earlier boots are void.
    pub(crate) boot: u64,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) schedule_rng: Rng,
    pub(crate) time_rng: Rng,
    pub(crate) fault_rng: Rng,
    pub(crate) cut_rng: Rng,
    pub(crate) engine_rng: Rng,
    opens: Vec<Option<Open>>,
    events: BTreeMap<(Instant, u64), Event>,
    /// Operations on stuck disks.
    stuck: Vec<(PathBuf, Event)>,
    sequence: u64,
    pub(crate) counts: Counts,
    /// Called when so many more writes and flushes have been submitted.
    pub(crate) probe: Option<(u64, Probe)>,
}

/// What happened in a world so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub polls: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub latent_errors: u64,
    pub bit_rots: u64,
    pub misdirected_writes: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    pub cuts: u64,
}

struct Open {
    path: PathBuf,
    mode: DiskMode,
    generation: u64,
}

struct Event {
    token: Token,
    action: Action,
}

enum Action {
    Finish(Outcome),
    Read {
        path: PathBuf,
        generation: u64,
        offset: u64,
        buf: IoBufMut,
    },
    Write {
        path: PathBuf,
        generation: u64,
        sequence: u64,
        offset: u64,
        len: u64,
        /// It goes through, with a flush of so many nanoseconds.
        through: Option<u64>,
        fails: Option<DiskAction>,
    },
    Flush {
        path: PathBuf,
        generation: u64,
        covered: Vec<u64>,
        fails: bool,
    },
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut schedule_rng = rng.fork();
        let schedules = [
            Schedule::Random,
            Schedule::Random,
            Schedule::Fifo,
            Schedule::Lifo,
            Schedule::MostlyFifo,
        ];
        let schedule = *schedule_rng.choose(&schedules);
        Self {
            disks: BTreeMap::new(),
            now: Instant::from_nanos(1_000_000_000),
            hash: EventHash::default(),
            schedule,
            cut: None,
            halted: false,
            boot: 0,
            trace: None,
            schedule_rng,
            time_rng: rng.fork(),
            fault_rng: rng.fork(),
            cut_rng: rng.fork(),
            engine_rng: rng.fork(),
            opens: Vec::new(),
            events: BTreeMap::new(),
            stuck: Vec::new(),
            sequence: 0,
            counts: Counts::default(),
            probe: None,
            clock_error: 0,
        }
    }

    /// The probe, when it is its turn after this operation.
    fn due_probe(&mut self, is_change: bool) -> Option<Probe> {
        let (left, probe) = self.probe.as_mut()?;
        if !is_change || self.halted {
            return None;
        }
        *left = left.saturating_sub(1);
        (*left == 0).then(|| probe.clone())
    }

    /// Records an event: in the hash always, in the trace when there is one.
    fn record(&mut self, numbers: &[u64], text: impl FnOnce() -> String) {
        for &number in numbers {
            self.hash.add(number);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {}", self.now, text()));
        }
    }

    fn schedule_event(&mut self, after: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after, self.sequence), event);
    }

    pub(crate) fn clear_boot(&mut self) {
        self.opens.clear();
        self.events.clear();
        self.stuck.clear();
        self.cut = None;
        self.halted = false;
        self.probe = None;
        self.boot += 1;
    }

    /// A disk answers again: its stuck operations end soon.
    pub(crate) fn unstick(&mut self, path: &Path) {
        let (freed, kept) = std::mem::take(&mut self.stuck)
            .into_iter()
            .partition(|(stuck, _)| stuck == path);
        self.stuck = kept;
        let freed: Vec<(PathBuf, Event)> = freed;
        for (_, event) in freed {
            let after = self.latency(0);
            self.schedule_event(after, event);
        }
    }

    /// Some tens of microseconds to set an operation going, 1 to 2 GB/s of transfer, now and then a straggler.
    fn latency(&mut self, bytes: u64) -> Duration {
        let rng = &mut self.time_rng;
        let mut nanoseconds = rng.between(20_000, 150_000) + bytes / 2 + rng.below(bytes / 2 + 1);
        if rng.chance(20_000) {
            nanoseconds += rng.below(5_000_000);
        }
        Duration::from_nanos(nanoseconds)
    }

    fn open(&mut self, path: &Path, mode: DiskMode) -> Result<(DiskId, DiskInfo), DiskError> {
        let owned = || path.to_owned();
        let disk = match self.disks.get_mut(path) {
            Some(disk) if disk.presence != Presence::Vanished => disk,
            _ => return Err(DiskError::NotFound { path: owned() }),
        };
        if mode == DiskMode::ReadWrite {
            if disk.writers > 0 {
                return Err(DiskError::Busy { path: owned() });
            }
            disk.writers += 1;
        }
        let model = &disk.model;
        let info = DiskInfo {
            path: owned(),
            size_bytes: model.size_bytes,
            logical_sector_bytes: model.logical_sector_bytes,
            physical_sector_bytes: model.physical_sector_bytes,
            kind: if model.block_device {
                DiskKind::Block
            } else {
                DiskKind::File
            },
        };
        let open = Open {
            path: owned(),
            mode,
            generation: disk.generation,
        };
        // Ids are not reused within a boot: a late operation of a closed disk must not hit another one.
        self.opens.push(Some(open));
        let id = u32::try_from(self.opens.len() - 1).expect("fewer opens than that");
        Ok((DiskId(id), info))
    }

    fn submit(&mut self, op: DiskOp, token: Token) {
        let (disk, kind) = match &op {
            DiskOp::Open { path, mode } => {
                let result = self.open(path, *mode);
                self.record(&[1, u64::from(result.is_ok())], || {
                    format!("open {} {mode:?}", path.display())
                });
                let after = self.latency(0);
                return self.schedule_event(
                    after,
                    Event {
                        token,
                        action: Action::Finish(Outcome::Opened(result)),
                    },
                );
            }
            DiskOp::List { dir } => {
                let paths = self
                    .disks
                    .values()
                    .filter(|disk| {
                        disk.presence != Presence::Vanished && disk.path.parent() == Some(dir)
                    })
                    .map(|disk| disk.path.clone())
                    .collect();
                self.record(&[2], || format!("list {}", dir.display()));
                let after = self.latency(0);
                let outcome = Outcome::Listed(Ok(paths));
                return self.schedule_event(
                    after,
                    Event {
                        token,
                        action: Action::Finish(outcome),
                    },
                );
            }
            DiskOp::Read { disk, .. } => (*disk, 3),
            DiskOp::Write { disk, .. } => (*disk, 4),
            DiskOp::Flush { disk } => (*disk, 5),
            DiskOp::Discard { disk, .. } => (*disk, 6),
        };
        let open = self
            .opens
            .get(disk.0 as usize)
            .and_then(Option::as_ref)
            .expect("used only while open");
        let (path, generation) = (open.path.clone(), open.generation);
        let sim = self.disks.get(&path).expect("open disks exist");
        let faults = sim.model.faults.clone();
        let size = sim.model.size_bytes;
        let unit = u64::from(sim.model.physical_sector_bytes).max(SECTOR);
        let presence = sim.presence;
        let is_dead = presence == Presence::Vanished || sim.generation != generation;
        self.sequence += 1;
        let sequence = self.sequence;
        let (mut action, bytes) = match op {
            DiskOp::Read { offset, buf, .. } => {
                let len = buf.len() as u64;
                self.counts.reads += 1;
                self.record(&[kind, disk.0.into(), offset, len], || {
                    format!("read {} {offset}+{len}", path.display())
                });
                (
                    Action::Read {
                        path: path.clone(),
                        generation,
                        offset,
                        buf,
                    },
                    len,
                )
            }
            DiskOp::Write {
                offset,
                data,
                through,
                ..
            } => {
                let len = data.len() as u64;
                self.counts.writes += 1;
                self.hash.add_bytes(&data);
                self.record(&[kind, disk.0.into(), offset, len], || {
                    format!("write {} {offset}+{len}", path.display())
                });
                let mut fails = None;
                if !is_dead {
                    let mut landing = offset;
                    let mut data = data;
                    let rng = &mut self.fault_rng;
                    if rng.chance(faults.misdirected_write) {
                        landing = rng.below((size - len) / unit + 1) * unit;
                        self.counts.misdirected_writes += 1;
                    }
                    if rng.chance(faults.bit_rot) && len > 0 {
                        let mut rotten = data.to_mut();
                        let place = rng.index(rotten.len());
                        rotten[place] ^= 1 << rng.below(8);
                        data = rotten.freeze();
                        self.counts.bit_rots += 1;
                    }
                    if rng.chance(faults.write_error) {
                        fails = Some(DiskAction::Write);
                        self.counts.write_errors += 1;
                    } else if through && rng.chance(faults.flush_error) {
                        fails = Some(DiskAction::Flush);
                        self.counts.flush_errors += 1;
                    }
                    let sim = self.disks.get_mut(&path).expect("open disks exist");
                    sim.begin_write(sequence, landing, data);
                }
                (
                    Action::Write {
                        path: path.clone(),
                        generation,
                        sequence,
                        offset,
                        len,
                        through: through.then_some(0),
                        fails,
                    },
                    len,
                )
            }
            DiskOp::Discard { offset, len, .. } => {
                self.record(&[kind, disk.0.into(), offset, len], || {
                    format!("discard {} {offset}+{len}", path.display())
                });
                if !is_dead {
                    let sim = self.disks.get_mut(&path).expect("open disks exist");
                    sim.begin_discard(sequence, offset, len);
                }
                (
                    Action::Write {
                        path: path.clone(),
                        generation,
                        sequence,
                        offset,
                        len,
                        through: None,
                        fails: None,
                    },
                    0,
                )
            }
            DiskOp::Flush { .. } => {
                self.counts.flushes += 1;
                self.record(&[kind, disk.0.into()], || {
                    format!("flush {}", path.display())
                });
                let fails = self.fault_rng.chance(faults.flush_error);
                self.counts.flush_errors += u64::from(fails);
                let covered = if fails || faults.lying_flush {
                    Vec::new()
                } else {
                    self.disks.get(&path).expect("open disks exist").flushable()
                };
                (
                    Action::Flush {
                        path: path.clone(),
                        generation,
                        covered,
                        fails,
                    },
                    0,
                )
            }
            DiskOp::Open { .. } | DiskOp::List { .. } => unreachable!("handled above"),
        };
        match (&action, &mut self.cut) {
            (Action::Write { .. }, Some(Cut::AfterWrites(left)))
            | (
                Action::Flush { .. }
                | Action::Write {
                    through: Some(_), ..
                },
                Some(Cut::AtFlush(left)),
            ) => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.halted = true;
                }
            }
            _ => {}
        }
        let mut after = self.latency(bytes);
        if let Action::Flush { .. }
        | Action::Write {
            through: Some(_), ..
        } = action
        {
            let flush = self.time_rng.between(50_000, 2_000_000);
            after += Duration::from_nanos(flush);
            if let Action::Write { through, .. } = &mut action {
                *through = Some(flush);
            }
        }
        if self.time_rng.chance(faults.slow) {
            after += faults.slow_by;
        }
        let event = Event { token, action };
        if presence == Presence::Stuck {
            self.stuck.push((path, event));
        } else {
            self.schedule_event(after, event);
        }
    }

    fn finish(&mut self, action: Action) -> Outcome {
        match action {
            Action::Finish(outcome) => outcome,
            Action::Read {
                path,
                generation,
                offset,
                mut buf,
            } => {
                let len = buf.len() as u64;
                let sim = self.disks.get_mut(&path).expect("disks are never removed");
                if sim.presence == Presence::Vanished || sim.generation != generation {
                    return Outcome::Read(Err(DiskError::Gone { path }));
                }
                if len > 0 && self.fault_rng.chance(sim.model.faults.latent_error) {
                    sim.add_latent(offset + self.fault_rng.below(len));
                    self.counts.latent_errors += 1;
                }
                if len > 0 && sim.latent_in(offset, len) {
                    let action = DiskAction::Read;
                    return Outcome::Read(Err(DiskError::Io {
                        path,
                        action,
                        offset,
                        len,
                        errno: EIO,
                    }));
                }
                sim.current().read(offset, &mut buf);
                Outcome::Read(Ok(buf))
            }
            Action::Write {
                path,
                generation,
                sequence,
                offset,
                len,
                through,
                fails,
            } => {
                let now = self.now.as_nanos();
                let outcome = |result: Result<(), DiskError>| match through {
                    Some(flush) => {
                        let arrived = Instant::from_nanos(now.saturating_sub(flush));
                        Outcome::Through(result.map(|()| arrived))
                    }
                    None => Outcome::Done(result),
                };
                let sim = self.disks.get_mut(&path).expect("disks are never removed");
                if sim.presence == Presence::Vanished || sim.generation != generation {
                    return outcome(Err(DiskError::Gone { path }));
                }
                if let Some(action) = fails {
                    match action {
                        // Taken, and as volatile as any write.
                        DiskAction::Flush => sim.complete_write(sequence),
                        _ => sim.fail_write(sequence, &mut self.fault_rng),
                    }
                    return outcome(Err(DiskError::Io {
                        path,
                        action,
                        offset,
                        len,
                        errno: EIO,
                    }));
                }
                if through.is_some() && !sim.model.faults.lying_flush {
                    sim.complete_through(sequence);
                } else {
                    sim.complete_write(sequence);
                }
                outcome(Ok(()))
            }
            Action::Flush {
                path,
                generation,
                covered,
                fails,
            } => {
                let sim = self.disks.get_mut(&path).expect("disks are never removed");
                if sim.presence == Presence::Vanished || sim.generation != generation {
                    return Outcome::Done(Err(DiskError::Gone { path }));
                }
                if fails {
                    let action = DiskAction::Flush;
                    return Outcome::Done(Err(DiskError::Io {
                        path,
                        action,
                        offset: 0,
                        len: 0,
                        errno: EIO,
                    }));
                }
                sim.complete_flush(&covered);
                Outcome::Done(Ok(()))
            }
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        if self.halted {
            return Waited::Halted;
        }
        let next = self.events.first_key_value().map(|((at, _), _)| *at);
        let target = match (next, until) {
            (Some(next), Some(until)) => next.min(until),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => match self.cut {
                Some(Cut::At(at)) => at,
                _ => return Waited::Stalled,
            },
        };
        let target = target.max(self.now);
        if let Some(Cut::At(at)) = self.cut
            && at <= target
        {
            self.now = self.now.max(at);
            self.halted = true;
            return Waited::Halted;
        }
        self.now = target;
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let Event { token, action } = entry.remove();
            let outcome = self.finish(action);
            let kind = match &outcome {
                Outcome::Opened(result) => u64::from(result.is_ok()),
                Outcome::Listed(result) => u64::from(result.is_ok()),
                Outcome::Read(result) => u64::from(result.is_ok()),
                Outcome::Done(result) => u64::from(result.is_ok()),
                Outcome::Through(result) => u64::from(result.is_ok()),
                Outcome::Computed => 1,
            };
            let now = self.now.as_nanos();
            self.record(&[7, kind, now, token.0 as u64], || {
                format!("completed {} ok={kind}", token.0)
            });
            done.push(Completion { token, outcome });
        }
        Waited::Progress
    }
}

/// One boot of a world, as the executor's driver.
pub(crate) struct SimDriver {
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) boot: u64,
}

impl SimDriver {
    fn is_current(&self) -> bool {
        self.state.borrow().boot == self.boot
    }
}

struct NobodyCalls;

impl Unpark for NobodyCalls {
    fn unpark(&self) {}
}

impl Driver for SimDriver {
    fn now(&self) -> Instant {
        self.state.borrow().now
    }

    fn wall_clock(&self) -> Timestamp {
        let state = self.state.borrow();
        let nanoseconds = state.now.as_nanos();
        Timestamp {
            seconds: WALL_CLOCK_START
                + state.clock_error
                + i64::try_from(nanoseconds / 1_000_000_000).expect("a simulated lifetime"),
            nanoseconds: u32::try_from(nanoseconds % 1_000_000_000).expect("below a second"),
        }
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        self.state.borrow_mut().engine_rng.fill(bytes);
    }

    fn submit(&mut self, op: DiskOp, token: Token) {
        let is_change = matches!(
            op,
            DiskOp::Write { .. } | DiskOp::Flush { .. } | DiskOp::Discard { .. }
        );
        let probe = {
            let mut state = self.state.borrow_mut();
            // After the power cut nothing reaches a disk any more.
            if state.boot != self.boot || state.halted {
                return;
            }
            state.submit(op, token);
            state.due_probe(is_change)
        };
        if let Some(probe) = probe {
            let next = probe();
            if let Some((left, _)) = &mut self.state.borrow_mut().probe {
                *left = next.max(1);
            }
        }
    }

    fn offload(&mut self, job: ComputeJob, token: Token) {
        job();
        let mut state = self.state.borrow_mut();
        let after = Duration::from_nanos(state.time_rng.between(5_000, 60_000));
        state.schedule_event(
            after,
            Event {
                token,
                action: Action::Finish(Outcome::Computed),
            },
        );
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        if !self.is_current() {
            return Waited::Halted;
        }
        self.state.borrow_mut().wait(until, done)
    }

    fn pick(&mut self, runnable: usize) -> usize {
        let state = &mut *self.state.borrow_mut();
        let rng = &mut state.schedule_rng;
        match state.schedule {
            Schedule::Random => rng.index(runnable),
            Schedule::Fifo => 0,
            Schedule::Lifo => runnable - 1,
            Schedule::MostlyFifo => {
                if rng.chance(100_000) {
                    rng.index(runnable)
                } else {
                    0
                }
            }
        }
    }

    fn note_poll(&mut self, task: u64, name: &'static str) {
        let state = &mut *self.state.borrow_mut();
        state.counts.polls += 1;
        // Work takes time, so that timers and completions fall between any two polls.
        state.now += Duration::from_nanos(state.time_rng.between(200, 3_000));
        let now = state.now.as_nanos();
        state.record(&[8, task, now], || format!("poll {task} {name}"));
    }

    fn close(&mut self, disk: DiskId) {
        let state = &mut *self.state.borrow_mut();
        if state.boot != self.boot {
            return;
        }
        let Some(open) = state.opens.get_mut(disk.0 as usize).and_then(Option::take) else {
            return;
        };
        if open.mode == DiskMode::ReadWrite
            && let Some(sim) = state.disks.get_mut(&open.path)
            && sim.generation == open.generation
        {
            sim.writers = sim.writers.saturating_sub(1);
        }
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(NobodyCalls)
    }

    fn name(&self) -> &'static str {
        "simulation"
    }
}
