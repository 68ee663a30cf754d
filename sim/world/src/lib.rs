//! A simulated world for the engine: virtual time, the next task chosen by seed, and modelled disks.
//!
//! Everything that happens is a function of the seed. A failing run is repeated by its seed, and each seed can be run
//! twice to compare the event hashes ([`twice`]), which proves that nothing else has influence.
//!
//! # Which faults which layout must survive
//!
//! "Survives" means: the pool imports, every checker is content, everything acknowledged as durable is there, and what
//! cannot be read is an error, never wrong bytes.
//!
//! A *redundant vdev* is a mirror, raidz or draid of which no more disks are in trouble at a time than it may lose: all but one of a
//! mirror, as many as there is parity of the others (a distributed spare at work counts as the disk it stands for).
//!
//! | fault ([`Faults`], [`World`])                 | single disk                  | redundant vdev                  |
//! |-----------------------------------------------|------------------------------|---------------------------------|
//! | power cut, any [`CutModel`]                   | survives                     | survives, also on all its disks |
//! | power cut tearing label or uberblock writes   | survives (labels in pairs)   | survives                        |
//! | latent sector error, data                     | error for that block         | survives and repairs            |
//! | latent sector error, metadata                 | survives (ditto copies)      | survives and repairs            |
//! | bit rot, data                                 | error for that block         | survives and repairs            |
//! | bit rot, metadata                             | survives (ditto copies)      | survives and repairs            |
//! | misdirected write                             | as bit rot, in two places    | survives and repairs            |
//! | write error                                   | pool suspends, no loss of    | survives, degraded              |
//! |                                               | what was acknowledged        |                                 |
//! | flush error                                   | pool suspends                | survives, degraded              |
//! | slow disk                                     | survives, slowly             | survives, slowly                |
//! | stuck disk                                    | waits; goes on when unstuck  | waits, then degraded            |
//! | vanished disk                                 | pool suspends                | survives, degraded              |
//! | returning disk                                | goes on after clear          | resilvers what it missed        |
//! | lying flush and a power cut                   | lost; the checker says so    | only if on so many disks        |
//!
//! A *log device* is written always and read only by the import after a cut. Power cuts and torn blocks it survives like other disks.
//! Where a write or a flush of it fails, or it does not answer, the txg is written to the pool instead and nothing that was
//! acknowledged is lost. A block of the log that cannot be read after a cut refuses the import until it can be, or the log is given
//! up by name (`-F`, `-m`); a mirror of log devices survives one such device.
//!
//! A *cache device* may do all of this at any time: what it holds is checked like any block, and read from the pool where it is wrong.
//!
//! Faults on more disks than that are a single disk's business. Rates are per operation and independent, so a workload that enables
//! a damaging rate on some disks must leave the others of the vdev without.
//!
//! Does not know ZFS. See `sim` for workloads and checkers.

#![forbid(unsafe_code)]

mod audit;
mod disk;
mod driver;
mod faults;
mod image;
mod moment;
mod rng;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use runtime::{Handle, Instant, Runtime, Stopped};

pub use audit::EventHash;
pub use disk::{DiskModel, Presence};
pub use driver::{Counts, Schedule};
pub use faults::{CutModel, Faults};
pub use image::Image;
pub use moment::Moment;
pub use rng::Rng;

use disk::SimDisk;
use driver::{Cut, SimDriver, State};

/// Disks, time and fate. Clones are the same world; it outlives the runtimes that boot in it.
#[derive(Clone)]
pub struct World {
    state: Rc<RefCell<State>>,
}

/// Called in the middle of a boot; returns after how many writes and flushes it is called again.
pub type Probe = Rc<dyn Fn() -> u64>;

/// How a boot ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// The future ended.
    Done(T),
    /// Power went first.
    PowerCut,
}

impl World {
    /// Makes a world without disks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: Rc::new(RefCell::new(State::new(seed))),
        }
    }

    /// Adds a disk of zeros. It can be opened by `path`; paths need not exist on the host.
    ///
    /// # Panics
    /// When there is one already.
    pub fn add_disk(&self, path: impl Into<PathBuf>, model: DiskModel) {
        let image = Image::new(model.size_bytes);
        self.add_disk_with(path, model, image);
    }

    /// Adds a disk with content, for instance of another world or a file ([`Image::from_file`]).
    ///
    /// # Panics
    /// When there is one already, or the image has another size than the model.
    pub fn add_disk_with(&self, path: impl Into<PathBuf>, model: DiskModel, image: Image) {
        let path = path.into();
        let disk = SimDisk::new(path.clone(), model, image);
        let before = self.state.borrow_mut().disks.insert(path, disk);
        assert!(before.is_none(), "one disk per path");
    }

    /// Starts the machine: makes a runtime on these disks. There is one at a time; drop the previous one first (its
    /// operations no longer reach the disks anyhow; writes it left unanswered, on a stuck disk too, came to something by seed).
    #[must_use]
    pub fn boot(&self) -> Runtime {
        let boot = {
            let state = &mut *self.state.borrow_mut();
            state.clear_boot();
            for disk in state.disks.values_mut() {
                disk.settle(&mut state.cut_rng);
                disk.writers = 0;
            }
            state.boot
        };
        Runtime::new(Box::new(SimDriver {
            state: self.state.clone(),
            boot,
        }))
    }

    /// Boots, runs `main` to its end or to the power cut, and shuts the machine off. After a power cut the caches are
    /// resolved, so the next boot finds what survived. Ending without a power cut leaves caches as they are: call
    /// [`World::power_cut`] to lose them.
    ///
    /// # Panics
    /// When the engine stalls: no runnable task, no timer, nothing outstanding. The message says which task waits for what.
    pub fn run<T, F: Future<Output = T>>(&self, main: impl FnOnce(Handle) -> F) -> Ended<T> {
        let runtime = self.boot();
        self.run_on(&runtime, main)
    }

    /// As [`World::run`], in a boot that has been prepared (for instance by planning a power cut).
    ///
    /// # Panics
    /// When the engine stalls.
    pub fn run_on<T, F: Future<Output = T>>(
        &self,
        runtime: &Runtime,
        main: impl FnOnce(Handle) -> F,
    ) -> Ended<T> {
        let handle = runtime.handle();
        match runtime.run(async move { main(handle).await }) {
            Ok(output) => Ended::Done(output),
            Err(Stopped::Halted) => {
                self.power_cut();
                Ended::PowerCut
            }
            Err(stalled @ Stopped::Stalled(_)) => panic!("{stalled}"),
        }
    }

    /// Plans a power cut `after` this much time of the current boot.
    pub fn plan_cut_after(&self, after: Duration) {
        let mut state = self.state.borrow_mut();
        state.cut = Some(Cut::At(state.now + after));
    }

    /// Plans a power cut at the submission of the `count`-th write from now.
    pub fn plan_cut_at_write(&self, count: u64) {
        self.state.borrow_mut().cut = Some(Cut::AfterWrites(count.max(1)));
    }

    /// Plans a power cut at the submission of the `count`-th flush from now.
    pub fn plan_cut_at_flush(&self, count: u64) {
        self.state.borrow_mut().cut = Some(Cut::AtFlush(count.max(1)));
    }

    /// Has `probe` called when `count` more writes and flushes have been submitted in the current boot, and then again and
    /// again after as many as it says. It may look at the world ([`World::capture`]) but not change it.
    pub fn set_probe(&self, count: u64, probe: Probe) {
        self.state.borrow_mut().probe = Some((count.max(1), probe));
    }

    /// Cuts the power now, with a cut model chosen by seed (the same for all disks: they share the supply). The
    /// current boot stops at its next wait.
    pub fn power_cut(&self) {
        let models = [
            CutModel::LoseAll,
            CutModel::KeepAll,
            CutModel::Prefix,
            CutModel::Subset,
            CutModel::Subset,
        ];
        let model = *self.state.borrow_mut().cut_rng.choose(&models);
        self.power_cut_with(model);
    }

    /// Cuts the power now, with the given fate of unflushed writes.
    pub fn power_cut_with(&self, model: CutModel) {
        let state = &mut *self.state.borrow_mut();
        state.halted = true;
        state.counts.cuts += 1;
        for disk in state.disks.values_mut() {
            disk.cut(model, &mut state.cut_rng);
        }
    }

    /// Returns the images as they would survive a power cut now with [`CutModel::LoseAll`]. Cheap: chunks are shared.
    #[must_use]
    pub fn durable_images(&self) -> BTreeMap<PathBuf, Image> {
        let state = self.state.borrow();
        state
            .disks
            .iter()
            .map(|(path, disk)| (path.clone(), disk.durable().clone()))
            .collect()
    }

    /// Returns the images as reads see them now.
    #[must_use]
    pub fn images(&self) -> BTreeMap<PathBuf, Image> {
        let state = self.state.borrow();
        state
            .disks
            .iter()
            .map(|(path, disk)| (path.clone(), disk.current().clone()))
            .collect()
    }

    /// Writes the durable images as sparse files into `dir`, named as the last part of their paths, for other tools.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn dump(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir)?;
        let mut files = Vec::new();
        for (path, image) in self.durable_images() {
            let file = dir.join(path.file_name().unwrap_or_else(|| path.as_os_str()));
            image.to_file(&file)?;
            files.push(file);
        }
        Ok(files)
    }

    /// Changes the faults of a disk from now on.
    ///
    /// # Panics
    /// When there is no such disk (so all methods that take a path).
    pub fn set_faults(&self, path: impl AsRef<Path>, faults: Faults) {
        self.with_disk(path.as_ref(), |disk, _| disk.model.faults = faults);
    }

    /// Returns the paths of all disks, vanished ones too.
    #[must_use]
    pub fn disks(&self) -> Vec<PathBuf> {
        self.state.borrow().disks.keys().cloned().collect()
    }

    /// Makes the sector at `offset` unreadable until it is written.
    pub fn add_latent_error(&self, path: impl AsRef<Path>, offset: u64) {
        self.with_disk(path.as_ref(), |disk, _| disk.add_latent(offset));
    }

    /// Makes all sectors of a disk readable again, as when the fault was in a cable.
    pub fn forget_latent_errors(&self, path: impl AsRef<Path>) {
        self.with_disk(path.as_ref(), |disk, _| disk.forget_latent());
    }

    /// Returns whether some sector of a range cannot be read until it is written.
    #[must_use]
    pub fn has_latent_error(&self, path: impl AsRef<Path>, offset: u64, len: u64) -> bool {
        self.with_disk(path.as_ref(), |disk, _| disk.latent_in(offset, len))
    }

    /// Overwrites bytes behind the engine's back, durably.
    pub fn damage(&self, path: impl AsRef<Path>, offset: u64, data: &[u8]) {
        self.with_disk(path.as_ref(), |disk, _| disk.damage(offset, data));
    }

    /// Flips one random bit in the range.
    pub fn rot(&self, path: impl AsRef<Path>, offset: u64, len: u64) {
        self.with_disk(path.as_ref(), |disk, rng| {
            let place = offset + rng.below(len);
            let mut byte = [0];
            disk.current().read(place, &mut byte);
            disk.damage(place, &[byte[0] ^ (1 << rng.below(8))]);
        });
    }

    /// Returns the offsets of the parts of a disk, [`Image::PART`] bytes each, that were ever written.
    #[must_use]
    pub fn written(&self, path: impl AsRef<Path>) -> Vec<u64> {
        self.with_disk(path.as_ref(), |disk, _| disk.current().written())
    }

    /// Makes operations on the disk hang, those under way excepted.
    pub fn stick(&self, path: impl AsRef<Path>) {
        self.with_disk(path.as_ref(), |disk, _| disk.presence = Presence::Stuck);
    }

    /// Ends [`World::stick`]; hanging operations go on.
    pub fn unstick(&self, path: impl AsRef<Path>) {
        self.with_disk(path.as_ref(), |disk, _| disk.presence = Presence::Present);
        self.state.borrow_mut().unstick(path.as_ref());
    }

    /// Pulls the disk out. Operations fail as gone (hanging ones too); what was completed stays on it as far as its
    /// cache was written, by seed.
    pub fn vanish(&self, path: impl AsRef<Path>) {
        self.with_disk(path.as_ref(), |disk, rng| {
            disk.presence = Presence::Vanished;
            disk.cut(CutModel::Prefix, rng);
        });
        self.state.borrow_mut().unstick(path.as_ref());
    }

    /// Makes the disk larger, as a virtual disk is; opens notice when they measure it again.
    pub fn grow(&self, path: impl AsRef<Path>, size_bytes: u64) {
        self.with_disk(path.as_ref(), |disk, _| disk.grow(size_bytes));
    }

    /// Puts the disk back. Opens from before it vanished stay dead.
    pub fn bring_back(&self, path: impl AsRef<Path>) {
        self.with_disk(path.as_ref(), |disk, _| disk.presence = Presence::Present);
    }

    /// Returns whether the disk answers.
    #[must_use]
    pub fn presence(&self, path: impl AsRef<Path>) -> Presence {
        self.with_disk(path.as_ref(), |disk, _| disk.presence)
    }

    /// Returns the virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.state.borrow().now
    }

    /// Sets the wall clock ahead of the time that passed, or back, by so many seconds.
    pub fn set_clock_error(&self, seconds: i64) {
        self.state.borrow_mut().clock_error = seconds;
    }

    /// Chooses the schedule instead of the seed.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.state.borrow_mut().schedule = schedule;
    }

    /// Returns a random stream for a workload, forked from the world's seed.
    #[must_use]
    pub fn rng(&self) -> Rng {
        self.state.borrow_mut().engine_rng.fork()
    }

    /// Returns the hash of all events so far.
    #[must_use]
    pub fn event_hash(&self) -> EventHash {
        self.state.borrow().hash
    }

    /// Folds something of the workload (an answer it got) into the event hash.
    pub fn audit(&self, number: u64) {
        self.state.borrow_mut().hash.add(number);
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// Starts to keep every event as text, for debugging one seed.
    pub fn start_trace(&self) {
        self.state.borrow_mut().trace = Some(Vec::new());
    }

    /// Takes the trace since [`World::start_trace`].
    #[must_use]
    pub fn take_trace(&self) -> Vec<String> {
        self.state.borrow_mut().trace.take().unwrap_or_default()
    }

    fn with_disk<R>(&self, path: &Path, f: impl FnOnce(&mut SimDisk, &mut Rng) -> R) -> R {
        let state = &mut *self.state.borrow_mut();
        let disk = state
            .disks
            .get_mut(path)
            .unwrap_or_else(|| panic!("no disk {}", path.display()));
        f(disk, &mut state.fault_rng)
    }
}

/// A seed gave two different runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotDeterministic {
    pub seed: u64,
    pub first: EventHash,
    pub second: EventHash,
}

impl fmt::Display for NotDeterministic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} is not deterministic: {:016x} after {} events, then {:016x} after {}",
            self.seed,
            self.first.value(),
            self.first.events(),
            self.second.value(),
            self.second.events()
        )
    }
}

impl std::error::Error for NotDeterministic {}

/// Runs a scenario twice in worlds of the same seed and compares the event hashes; returns the second result.
///
/// # Errors
/// When the hashes differ.
pub fn twice<T>(seed: u64, scenario: impl Fn(&World) -> T) -> Result<T, NotDeterministic> {
    let world = World::new(seed);
    scenario(&world);
    let first = world.event_hash();
    let world = World::new(seed);
    let result = scenario(&world);
    let second = world.event_hash();
    if first == second {
        Ok(result)
    } else {
        Err(NotDeterministic {
            seed,
            first,
            second,
        })
    }
}
