//! What one seed does: a pool on modelled disks, clients at work, power cuts, and the judgement after each.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use engine::{
    CreateDataset, Cred, Ending, Engine, HostIdentity, ImportPolicy, PoolHandle, PoolSpec, SetAttr,
    Tuning, VdevSpec,
};
use runtime::{Handle, join_all};
use world::{DiskModel, Ended, Faults, Rng, World};

use super::datasets::{self, Counts, DatasetHistory, Habits};
use super::devices::{self, Habit, Removals};
use super::expansions::{self, Expansions};
use super::healing;
use super::history::{History, Order, judge};
use super::host::{Machine, SimHost};
use super::model::{Style, Tree, Visible};
use super::volume::{self, VolumeHistory};
use super::walk::walk;
use super::workload::{Client, Histories};

pub(super) const POOL: &str = "tank";
pub(super) const DIR: &str = "/sim";
/// What the engine has by default.
const GROUP_AGE: Duration = Duration::from_secs(5);

/// How a seed's pool is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    Single,
    Stripe,
    Mirror,
    TwoMirrors,
    /// Three, five or six disks with one, two or three rows of parity.
    Raidz1,
    Raidz2,
    Raidz3,
    /// Any number of equal mirrors (`parity` 0; one disk is one), raidz, or draids with so many columns of data and so many
    /// distributed spares.
    Grid {
        tops: u8,
        disks: u8,
        parity: u8,
        data: Option<u8>,
        spares: u8,
    },
}

impl Layout {
    /// Returns how many of its disks a raidz may lose, 0 for the others.
    fn parity(self) -> usize {
        match self {
            Self::Single | Self::Stripe | Self::Mirror | Self::TwoMirrors => 0,
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
            Self::Grid { parity, .. } => usize::from(parity),
        }
    }
}

/// What besides power cuts may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    None,
    /// Delays on all disks.
    Slow,
    /// One side of each mirror is bad, or as many disks of a raidz as there is parity.
    OneBadSide,
    /// One side of the first mirror, or as many disks of a raidz as there is parity, are pulled out in the middle of the
    /// work.
    OneSideVanishes,
    /// Every flush lies: must be noticed (the canary).
    LyingFlush,
    /// Writes and flushes of one side of each mirror, or of as many disks of a raidz as there is parity, fail now and
    /// then.
    OneFailingSide,
    /// The same disks stop answering for a while in the middle of the work.
    OneSideSticks,
    /// Writes and flushes of log devices fail now and then; they can be read.
    LogsFail,
}

/// Devices for intent logs alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logs {
    /// Logs are among the data.
    InPool,
    One,
    Stripe,
    Mirror,
}

impl Logs {
    fn disks(self) -> usize {
        match self {
            Self::InPool => 0,
            Self::One => 1,
            Self::Stripe | Self::Mirror => 2,
        }
    }
}

/// Everything about a seed that is decided before it runs.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub layout: Layout,
    pub trouble: Trouble,
    pub rounds: u32,
    pub clients: usize,
    pub operations: u64,
    pub disk_bytes: u64,
    pub sector_bytes: u32,
    pub settings: Vec<(String, String)>,
    pub styles: Vec<Style>,
    /// Datasets are created, renamed and destroyed meanwhile.
    pub with_datasets: bool,
    /// How many of those operations in a boot.
    pub dataset_operations: u32,
    /// What else is done with them.
    pub habits: Habits,
    /// Power may go while the pool is created.
    pub cut_at_create: bool,
    /// Two more disks: one for metadata and small blocks, one for intent logs. They must survive what a single disk
    /// must.
    pub with_classes: bool,
    /// A block volume is written to meanwhile.
    pub with_volume: bool,
    /// Further disks, for intent logs.
    pub logs: Logs,
    /// How old a transaction group gets.
    pub group_age: Duration,
    /// One more disk, a cache device from the start, which may rot or fail.
    pub with_cache: bool,
    /// Devices are added and removed meanwhile: four disks more.
    pub with_devices: bool,
    /// The administrator mostly has vdevs with data leave, which takes many small steps.
    pub with_removals: bool,
    /// The administrator attaches devices to the raidz: five disks more.
    pub with_expansions: bool,
    /// What owners use is counted by files and by projects only after an upgrade of the pool, while clients work.
    pub counts_later: bool,
    /// New tables of deduplicated blocks have the fast form.
    pub fast_dedup: bool,
    /// Even small tables of that form are written through logs.
    pub dedup_logs: bool,
}

/// Adds `logbias=throughput` to every third seed. Drawn apart, so that all other choices of a seed stay what they were.
pub(crate) fn draw_logbias(settings: &mut Vec<(String, String)>, seed: u64) {
    if Rng::new(seed ^ 0x004c_4f47_4249_4153).below(3) == 0 {
        settings.push(("logbias".to_owned(), "throughput".to_owned()));
    }
}

/// What owners use is counted by these.
const COUNTING_FEATURES: [&str; 2] = ["userobj_accounting", "project_quota"];

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x504c_414e);
        let layout = *rng.choose(&[
            Layout::Single,
            Layout::Single,
            Layout::Stripe,
            Layout::Mirror,
            Layout::Mirror,
            Layout::TwoMirrors,
        ]);
        // Drawn from another source, so that the other seeds stay as they are.
        let mut other = Rng::new(seed ^ 0x5241_4944);
        let layout = match other.below(9) {
            0 => Layout::Raidz1,
            1 => Layout::Raidz2,
            2 => Layout::Raidz3,
            _ => layout,
        };
        let trouble = match (layout, rng.below(10)) {
            (_, 0) => Trouble::Slow,
            (Layout::Single | Layout::Stripe, _) => Trouble::None,
            (_, 1..=3) => Trouble::OneBadSide,
            (_, 4) => Trouble::OneSideVanishes,
            _ => Trouble::None,
        };
        let choices: [(&str, &[&str]); 6] = [
            (
                "compression",
                &["lz4", "off", "zstd", "gzip-1", "lzjb", "zle"],
            ),
            ("recordsize", &["128K", "4K", "16K", "64K", "512", "1M"]),
            ("checksum", &["on", "sha256"]),
            ("xattr", &["sa", "on"]),
            ("copies", &["1", "1", "1", "2"]),
            ("atime", &["off", "on"]),
        ];
        let mut settings = Vec::new();
        for (name, values) in choices {
            if rng.coin() {
                settings.push((name.to_owned(), (*rng.choose(values)).to_owned()));
            }
        }
        let fills = rng.below(25) == 0;
        let clients = rng.index(3) + 1;
        let styles: Vec<Style> = (0..clients)
            .map(|_| {
                if fills {
                    Style::Fill
                } else {
                    *rng.choose(&[Style::Mixed, Style::Mixed, Style::Names, Style::Rewrite])
                }
            })
            .collect();
        if fills {
            // 64 MiB are full after some hundred writes.
            settings.retain(|(name, _)| name != "copies");
        }
        // Drawn apart, so that all other choices of a seed stay what they were.
        let mut class_rng = Rng::new(seed ^ 0x434c_4153);
        let with_classes = class_rng.below(4) == 0;
        if with_classes && !fills && class_rng.coin() {
            let small = *class_rng.choose(&["4K", "32K", "128K"]);
            settings.push(("special_small_blocks".to_owned(), small.to_owned()));
        }
        draw_logbias(&mut settings, seed);
        Self {
            seed,
            layout,
            trouble,
            rounds: u32::try_from(rng.between(1, 3)).expect("small"),
            clients,
            operations: if fills { 300 } else { rng.between(10, 80) },
            disk_bytes: if fills {
                64 << 20
            } else {
                *rng.choose(&[64, 96, 256]) << 20
            },
            sector_bytes: *rng.choose(&[512, 512, 4096]),
            settings,
            styles,
            with_datasets: rng.below(3) == 0,
            dataset_operations: 16,
            habits: Habits::default(),
            cut_at_create: rng.below(8) == 0,
            with_classes,
            with_volume: rng.below(3) == 0 && !fills,
            logs: Logs::InPool,
            group_age: GROUP_AGE,
            with_cache: false,
            with_devices: false,
            with_removals: false,
            with_expansions: false,
            counts_later: false,
            fast_dedup: false,
            dedup_logs: false,
        }
    }

    /// One client on one disk, and nothing goes wrong but the power. Regressions change what their story needs, so that
    /// they stay what they are when plans learn new things.
    #[must_use]
    pub fn plain(seed: u64) -> Self {
        Self {
            seed,
            layout: Layout::Single,
            trouble: Trouble::None,
            rounds: 1,
            clients: 1,
            operations: 80,
            disk_bytes: 64 << 20,
            sector_bytes: 512,
            settings: Vec::new(),
            styles: vec![Style::Mixed],
            with_datasets: false,
            dataset_operations: 16,
            habits: Habits::default(),
            cut_at_create: false,
            with_classes: false,
            with_volume: false,
            logs: Logs::InPool,
            group_age: GROUP_AGE,
            with_cache: false,
            with_devices: false,
            with_removals: false,
            with_expansions: false,
            counts_later: false,
            fast_dedup: false,
            dedup_logs: false,
        }
    }

    /// A long history of datasets, snapshots, clones and volumes, beside one client's little work.
    #[must_use]
    pub fn history(seed: u64) -> Self {
        let plan = Self::of_seed(seed);
        Self {
            trouble: Trouble::None,
            rounds: plan.rounds.max(2),
            clients: 1,
            styles: vec![Style::Mixed],
            operations: plan.operations.min(12),
            with_datasets: true,
            dataset_operations: 40,
            cut_at_create: false,
            with_volume: seed.is_multiple_of(3),
            ..plan
        }
    }

    /// As [`Plan::history`], and snapshots are sent, received, and redacted.
    #[must_use]
    pub fn replicas(seed: u64) -> Self {
        Self {
            habits: Habits {
                replicas: true,
                redaction: true,
                encryption: false,
                healing: false,
            },
            ..Self::history(seed)
        }
    }

    /// As [`Plan::replicas`] without redaction; datasets are encrypted, and streams received correctively.
    #[must_use]
    pub fn encryption(seed: u64) -> Self {
        Self {
            habits: Habits {
                replicas: true,
                redaction: false,
                encryption: true,
                healing: true,
            },
            ..Self::history(seed)
        }
    }

    /// As [`Plan::replicas`] and [`Plan::encryption`] together.
    #[must_use]
    pub fn encrypted_replicas(seed: u64) -> Self {
        Self {
            habits: Habits {
                replicas: true,
                redaction: true,
                encryption: true,
                healing: true,
            },
            ..Self::history(seed)
        }
    }

    /// The pool's devices are changed meanwhile. (Full pools have no room for that.)
    #[must_use]
    pub fn devices(seed: u64) -> Self {
        let plan = Self::of_seed(seed);
        let fills = plan.styles.contains(&Style::Fill);
        Self {
            with_devices: !fills,
            ..plan
        }
    }

    /// Vdevs that hold data join the pool and leave it all the time.
    #[must_use]
    pub fn removals(seed: u64) -> Self {
        let plan = Self::of_seed(seed);
        let fits = plan.layout.parity() == 0 && !plan.styles.contains(&Style::Fill);
        let plan = match fits {
            true => plan,
            // No vdev leaves a pool with raidz, and none a full one.
            false => Self {
                layout: Layout::Stripe,
                trouble: Trouble::None,
                styles: vec![Style::Mixed; plan.clients],
                disk_bytes: 96 << 20,
                ..plan
            },
        };
        Self {
            rounds: plan.rounds.max(2),
            operations: plan.operations.clamp(40, 80),
            with_devices: true,
            with_removals: true,
            ..plan
        }
    }

    /// Older pools learn to count more of what owners use.
    #[must_use]
    pub fn upgrades(seed: u64) -> Self {
        let plan = Self::of_seed(seed);
        Self {
            rounds: plan.rounds.max(2),
            counts_later: true,
            ..plan
        }
    }

    /// Features that the pool is made without.
    fn features_missing(&self) -> impl Iterator<Item = &'static str> {
        let fast_dedup = (!self.fast_dedup).then_some("fast_dedup");
        let counting = COUNTING_FEATURES.iter().filter(|_| self.counts_later);
        fast_dedup.into_iter().chain(counting.copied())
    }

    /// A raidz of a few devices gets more of them. Sectors are moved as the devices give them, since what belongs together lies in
    /// different blocks: a side that gives wrong bytes is not among the troubles.
    #[must_use]
    pub fn expansions(seed: u64) -> Self {
        let plan = Self::of_seed(seed);
        let mut rng = Rng::new(seed ^ 0x4558_5041);
        let parity = u8::try_from(rng.between(1, 3)).expect("small");
        let more = u8::try_from(rng.between(1, 3)).expect("small");
        let trouble = *rng.choose(&[
            Trouble::None,
            Trouble::None,
            Trouble::Slow,
            Trouble::OneSideVanishes,
            Trouble::OneFailingSide,
            Trouble::OneSideSticks,
        ]);
        let styles = plan.styles.iter().map(|style| match style {
            Style::Fill => Style::Mixed,
            other => *other,
        });
        Self {
            layout: Layout::Grid {
                tops: 1,
                disks: parity + more,
                parity,
                data: None,
                spares: 0,
            },
            trouble,
            rounds: plan.rounds.max(2),
            operations: plan.operations.clamp(40, 120),
            styles: styles.collect(),
            disk_bytes: plan.disk_bytes.max(96 << 20),
            with_expansions: true,
            ..plan
        }
    }

    /// The same with files that are cloned all the time.
    #[must_use]
    pub fn with_clones(self) -> Self {
        Self {
            rounds: self.rounds.max(2),
            operations: self.operations.clamp(40, 120),
            styles: vec![Style::Clone; self.clients],
            ..self
        }
    }

    /// The same with deduplication, and files that are written with the same few contents all the time.
    #[must_use]
    pub fn with_dedup(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0x4445_4455);
        let apart = ["recordsize", "dedup", "compression"];
        self.settings
            .retain(|(name, _)| !apart.contains(&name.as_str()));
        let dedup = *rng.choose(&["on", "on", "verify", "sha512", "skein", "edonr,verify"]);
        for (name, value) in [
            ("dedup", dedup),
            ("recordsize", *rng.choose(&["4K", "8K", "16K", "128K"])),
            ("compression", *rng.choose(&["lz4", "off"])),
        ] {
            self.settings.push((name.to_owned(), value.to_owned()));
        }
        Self {
            rounds: self.rounds.max(2),
            operations: self.operations.clamp(40, 120),
            styles: vec![Style::Repeat; self.clients],
            fast_dedup: rng.below(3) > 0,
            dedup_logs: rng.coin(),
            ..self
        }
    }

    /// The plan that must fail: flushes lie, and power cuts lose what was not flushed. A single cut may come where all that was
    /// written had reached the disks by itself.
    #[must_use]
    pub fn canary(seed: u64) -> Self {
        Self {
            trouble: Trouble::LyingFlush,
            rounds: 6,
            ..Self::of_seed(seed)
        }
    }

    /// All disks: those of ordinary vdevs, then one for metadata and one for logs.
    pub(crate) fn disks(&self) -> Vec<PathBuf> {
        let classes = if self.with_classes { 2 } else { 0 };
        let count = self.ordinary_disks() + classes + self.logs.disks();
        (0..count)
            .map(|number| Path::new(DIR).join(format!("d{number}")))
            .collect()
    }

    /// Disks that are no part of the pool when it is created, and may join it later.
    fn extra_disks(&self) -> Vec<PathBuf> {
        let count = match (self.with_expansions, self.with_devices) {
            (true, _) => 5,
            (false, true) => 4,
            (false, false) => 0,
        };
        (0..count)
            .map(|number| Path::new(DIR).join(format!("e{number}")))
            .collect()
    }

    /// Disks that are cache devices, or may become that.
    fn cache_disks(&self) -> Vec<PathBuf> {
        let count = usize::from(self.with_devices || self.with_cache);
        (0..count)
            .map(|number| Path::new(DIR).join(format!("c{number}")))
            .collect()
    }

    /// The disks of the machine, in the pool or not.
    pub(crate) fn all_disks(&self) -> Vec<PathBuf> {
        let mut disks = self.disks();
        disks.extend(self.extra_disks());
        disks.extend(self.cache_disks());
        disks
    }

    /// Disks that may join the pool or leave it: where devices change, logs too are removed.
    pub(crate) fn mobile_disks(&self) -> Vec<PathBuf> {
        let staying = self.ordinary_disks() + usize::from(self.with_classes);
        let logs = self.disks().into_iter().skip(staying);
        let logs = logs.filter(|_| self.with_devices);
        logs.chain(self.extra_disks())
            .chain(self.cache_disks())
            .collect()
    }

    fn ordinary_disks(&self) -> usize {
        match self.layout {
            Layout::Single => 1,
            Layout::Stripe | Layout::Mirror => 2,
            Layout::TwoMirrors => 4,
            Layout::Raidz1 => 3,
            Layout::Raidz2 => 5,
            Layout::Raidz3 => 6,
            Layout::Grid { tops, disks, .. } => usize::from(tops) * usize::from(disks),
        }
    }

    /// Vdevs for metadata and for logs.
    fn class_vdevs(&self) -> (Vec<VdevSpec>, Vec<VdevSpec>) {
        let mut extra = self.disks().split_off(self.ordinary_disks()).into_iter();
        let mut next = || extra.next().map(VdevSpec::Single).into_iter().collect();
        let (mut special, mut logs): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        if self.with_classes {
            special = next();
            logs = next();
        }
        let rest = self.log_disks();
        match self.logs {
            Logs::InPool => {}
            Logs::One | Logs::Stripe => logs.extend(rest.into_iter().map(VdevSpec::Single)),
            Logs::Mirror => logs.push(VdevSpec::Mirror(rest)),
        }
        (special, logs)
    }

    /// The disks of [`Plan::logs`].
    pub(crate) fn log_disks(&self) -> Vec<PathBuf> {
        let mut disks = self.disks();
        disks.split_off(disks.len() - self.logs.disks())
    }

    fn vdevs(&self) -> Vec<VdevSpec> {
        let mut disks = self.disks();
        disks.truncate(self.ordinary_disks());
        match self.layout {
            Layout::Single | Layout::Stripe => disks.into_iter().map(VdevSpec::Single).collect(),
            Layout::Mirror | Layout::TwoMirrors => disks
                .chunks(2)
                .map(|pair| VdevSpec::Mirror(pair.to_vec()))
                .collect(),
            Layout::Raidz1 | Layout::Raidz2 | Layout::Raidz3 => vec![VdevSpec::Raidz {
                parity: u8::try_from(self.layout.parity()).expect("small"),
                paths: disks,
            }],
            Layout::Grid {
                disks: width,
                parity,
                data: Some(data),
                spares,
                ..
            } => disks
                .chunks(usize::from(width))
                .map(|paths| VdevSpec::Draid {
                    parity,
                    data: data.into(),
                    spares: spares.into(),
                    paths: paths.to_vec(),
                })
                .collect(),
            Layout::Grid {
                disks: width,
                parity,
                ..
            } => disks
                .chunks(usize::from(width))
                .map(|paths| match (paths, parity) {
                    ([only], _) => VdevSpec::Single(only.clone()),
                    (_, 0) => VdevSpec::Mirror(paths.to_vec()),
                    _ => VdevSpec::Raidz {
                        parity,
                        paths: paths.to_vec(),
                    },
                })
                .collect(),
        }
    }

    /// The disks that are bad, or vanish, in this seed's trouble: as many as may.
    fn victims(&self) -> Vec<PathBuf> {
        let mut disks = self.disks();
        disks.truncate(self.ordinary_disks());
        match (self.layout.parity(), self.trouble) {
            (0, Trouble::OneBadSide) => disks.into_iter().skip(1).step_by(2).collect(),
            (0, _) => disks.into_iter().skip(1).take(1).collect(),
            // Which ones depends on the seed.
            (parity, _) => {
                let from = usize::try_from(self.seed % 3).expect("small");
                disks.rotate_left(from);
                disks.truncate(parity);
                disks
            }
        }
    }
}

/// What came of a seed that went well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub operations: u64,
    pub cuts: u32,
    pub events: u64,
    pub hash: u64,
    pub virtual_time: Duration,
    pub removals: Removals,
    pub expansions: Expansions,
    /// Files that were cloned, or parts of them.
    pub clones: u64,
    /// What was done with datasets.
    pub counts: Counts,
}

/// What is wrong with a seed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub round: u32,
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} round {}: {}", self.seed, self.round, self.text)
    }
}

/// Called with the world after each cut, before the next boot, and at the end: `(world, crashed)`.
pub type Judge<'a> = &'a dyn Fn(&World, bool) -> Result<(), String>;

/// Runs a plan in a world of its seed.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(plan: &Plan, world: &World, judge_images: Judge<'_>) -> Result<Outcome, Failure> {
    let fail = |round: u32, text: String| Failure {
        seed: plan.seed,
        round,
        text,
    };
    for path in plan.all_disks() {
        let model =
            DiskModel::new(plan.disk_bytes).with_sectors(plan.sector_bytes, plan.sector_bytes);
        world.add_disk(path, model);
    }
    let mut rng = world.rng();
    let mut outcome = Outcome::default();
    if plan.cut_at_create {
        let count = rng.between(1, 400);
        let created = create(plan, world, || world.plan_cut_at_write(count));
        // The pool is there whole, or not at all: then its disks are free to be used.
        if !matches!(created, Ended::Done(_)) {
            outcome.cuts += 1;
            forget(plan, world)
                .map_err(|text| fail(0, format!("after a cut at creation: {text}")))?;
        } else {
            forget(plan, world).map_err(|text| fail(0, format!("destroy: {text}")))?;
        }
    }
    match create(plan, world, || {}) {
        Ended::Done(result) => result.map_err(|text| fail(0, format!("create: {text}")))?,
        Ended::PowerCut => unreachable!("none was planned"),
    }
    set_faults(plan, world);
    let mut trees = vec![Tree::empty(0o755).visible(); plan.clients];
    let names = Rc::new(RefCell::new(DatasetHistory::new()));
    let blocks = Rc::new(RefCell::new(VolumeHistory::default()));
    for round in 1..=plan.rounds {
        let worked = work(plan, world, &mut rng, &trees, &names, &blocks, None)
            .map_err(|text| fail(round, text))?;
        let (histories, cut) = (worked.histories, worked.was_cut);
        outcome.removals = outcome.removals.and(worked.removals);
        outcome.expansions = outcome.expansions.and(worked.expansions);
        outcome.clones += worked.clones;
        outcome.operations += histories
            .iter()
            .map(|history| history.len() as u64)
            .sum::<u64>();
        outcome.cuts += u32::from(cut);
        if cut {
            judge_images(world, true)
                .map_err(|text| fail(round, format!("after the cut: {text}")))?;
        }
        let (found, datasets, bytes) = look(plan, world)
            .map_err(|text| fail(round, format!("import after the cut: {text}")))?;
        for (index, visible) in found.iter().enumerate() {
            world.audit(visible.len() as u64 + index as u64);
        }
        names
            .borrow_mut()
            .judge(datasets)
            .map_err(|text| fail(round, text))?;
        if let Some(bytes) = bytes {
            let judged = blocks.borrow_mut().judge(bytes);
            judged.map_err(|text| fail(round, text))?;
        }
        judge(&histories, &found).map_err(|text| fail(round, text))?;
        judge_images(world, false).map_err(|text| fail(round, format!("after export: {text}")))?;
        trees = found;
    }
    if plan.habits.healing {
        // Drawn apart, so that all other choices of a seed stay what they were.
        let mut rng = Rng::new(plan.seed ^ 0x4845_414c);
        let failed = |text| fail(plan.rounds, format!("healing: {text}"));
        let (healed, cuts) = healing::run(plan, world, &mut rng, &names).map_err(failed)?;
        names.borrow_mut().counts.healed += healed;
        outcome.cuts += cuts;
        if healed > 0 {
            let (_, datasets, _) = look(plan, world).map_err(failed)?;
            names.borrow_mut().judge(datasets).map_err(failed)?;
            judge_images(world, false).map_err(failed)?;
        }
    }
    outcome.counts = names.borrow().counts;
    let hash = world.event_hash();
    outcome.events = hash.events();
    outcome.hash = hash.value();
    outcome.virtual_time = world.now() - runtime::Instant::ORIGIN;
    Ok(outcome)
}

pub(crate) fn set_faults(plan: &Plan, world: &World) {
    for path in plan.cache_disks() {
        // A cache device may give wrong bytes: no reader must notice.
        match plan.seed % 3 {
            0 => world.set_faults(path, Faults::one_bad_side()),
            1 => world.set_faults(path, Faults::failing()),
            _ => {}
        }
    }
    let victims = plan.victims();
    for path in plan.disks() {
        match plan.trouble {
            Trouble::None | Trouble::OneSideVanishes => {}
            Trouble::Slow => world.set_faults(path, Faults::slow_only()),
            Trouble::OneBadSide if victims.contains(&path) => {
                world.set_faults(path, Faults::one_bad_side());
            }
            Trouble::OneFailingSide if victims.contains(&path) => {
                world.set_faults(path, Faults::failing());
            }
            Trouble::LogsFail if plan.log_disks().contains(&path) => {
                world.set_faults(path, Faults::failing());
            }
            Trouble::OneBadSide
            | Trouble::OneFailingSide
            | Trouble::OneSideSticks
            | Trouble::LogsFail => {}
            Trouble::LyingFlush => world.set_faults(
                path,
                Faults {
                    lying_flush: true,
                    ..Faults::default()
                },
            ),
        }
    }
}

/// Boots a machine with an engine and runs `main` in it.
pub(crate) fn boot<T, F>(
    world: &World,
    prepare: impl FnOnce(),
    main: impl FnOnce(Handle, Engine) -> F,
) -> Ended<T>
where
    F: Future<Output = T>,
{
    let machine = world.boot();
    prepare();
    let handle = machine.handle();
    let entered = Machine::enter(&handle);
    let engine = Engine::new(SimHost);
    let own = engine.clone();
    let ended = world.run_on(&machine, |handle| main(handle, own));
    drop(engine);
    drop(entered);
    drop(machine);
    assert_eq!(
        handle.holders(),
        1,
        "something of the engine outlives its machine: a cycle that leaks a pool"
    );
    ended
}

fn tuning(plan: &Plan) -> Tuning {
    let mut tuning = Tuning::default();
    tuning.txg.timeout = plan.group_age;
    if plan.dedup_logs {
        tuning.dedup.log_from_entries = 0;
        tuning.dedup.flush_entries_min = 3;
    }
    if plan.with_expansions {
        // Small steps make an expansion take many txgs.
        tuning.reflow.batch_bytes = 64 << 10 << (2 * (plan.seed % 4));
    }
    if plan.with_removals {
        // Short runs split blocks, and small batches make an evacuation take many txgs.
        let step = plan.seed % 3;
        tuning.removal.batch_bytes = 64 << 10 << (2 * step);
        tuning.removal.segment_bytes = 48 << 10 << step;
        tuning.removal.span_bytes = 8 << 10;
    }
    tuning
}

fn identity() -> HostIdentity {
    HostIdentity {
        hostid: 0x00ab_cdef,
        hostname: "simulated".to_owned(),
        kernel: String::new(),
    }
}

/// The result of a machine whose power was not to be cut.
pub(crate) fn uncut<T>(ended: Ended<Result<T, String>>) -> Result<T, String> {
    match ended {
        Ended::Done(result) => result,
        Ended::PowerCut => Err("no power cut was planned".to_owned()),
    }
}

/// Destroys what a cut creation left, if it left a pool.
fn forget(plan: &Plan, world: &World) -> Result<(), String> {
    let ended = boot(
        world,
        || {},
        |_, engine| async move {
            let discovery = engine
                .discover(vec![PathBuf::from(DIR)])
                .await
                .map_err(|error| error.to_string())?;
            let whole = discovery.pools.into_iter().find(|candidate| {
                candidate.name == POOL
                    && candidate.devices.len() == plan.disks().len()
                    && matches!(
                        candidate.state,
                        engine::PoolState::Active | engine::PoolState::Exported
                    )
            });
            let Some(candidate) = whole else {
                return Ok(());
            };
            let policy = ImportPolicy {
                force: true,
                host: identity(),
                ..ImportPolicy::default()
            };
            engine
                .import(candidate, policy)
                .await
                .map_err(|error| format!("import: {error}"))?;
            let ending = Ending::Destroy { command: None };
            engine
                .end_pool(POOL, ending)
                .await
                .map_err(|error| format!("destroy: {error}"))
        },
    );
    uncut(ended)
}

pub(crate) fn create(
    plan: &Plan,
    world: &World,
    prepare: impl FnOnce(),
) -> Ended<Result<(), String>> {
    boot(world, prepare, |_, engine| async move {
        let (special, logs) = plan.class_vdevs();
        let spec = PoolSpec {
            name: POOL.to_owned(),
            vdevs: plan.vdevs(),
            special,
            logs,
            caches: match plan.with_cache {
                true => plan.cache_disks(),
                false => Vec::new(),
            },
            force: plan.cut_at_create,
            properties: plan
                .features_missing()
                .map(|name| (format!("feature@{name}"), "disabled".to_owned()))
                .collect(),
            host: identity(),
            ..PoolSpec::default()
        };
        let pool = engine
            .create_pool(spec, &plan.settings)
            .await
            .map_err(|error| error.to_string())?;
        let request = CreateDataset {
            name: format!("{POOL}/fs"),
            ..CreateDataset::default()
        };
        pool.create_dataset(request)
            .await
            .map_err(|error| error.to_string())?;
        if plan.with_volume {
            volume::create(&pool, plan.seed).await?;
        }
        for client in 0..plan.clients {
            let fs = pool
                .open_fs(dataset(client))
                .await
                .map_err(|error| error.to_string())?;
            let root = fs.root().await.map_err(|error| error.to_string())?.id;
            let set = SetAttr {
                mode: Some(0o755),
                ..SetAttr::default()
            };
            let name = client_dir(client);
            let made = fs.mkdir(root, name.as_bytes(), &set, &Cred::root()).await;
            made.map_err(|error| error.to_string())?;
        }
        drop(pool);
        let ending = Ending::Export { command: None };
        engine
            .end_pool(POOL, ending)
            .await
            .map_err(|error| format!("export: {error}"))
    })
}

/// Even clients work in the root dataset, odd ones in a child.
pub(super) fn dataset(client: usize) -> &'static str {
    if client.is_multiple_of(2) {
        POOL
    } else {
        "tank/fs"
    }
}

pub(super) fn client_dir(client: usize) -> String {
    format!("client{client}")
}

/// Enables, after a while, the features that count what owners use: both, or one of them.
async fn upgrade(pool: PoolHandle, handle: Handle, mut rng: Rng) -> Result<(), String> {
    let wait = Duration::from_micros(rng.below(1_500_000));
    handle.sleep(wait).await;
    let from = rng.below(3);
    for name in COUNTING_FEATURES.iter().skip(usize::from(from == 0)) {
        let name = format!("feature@{name}");
        let set = pool.set_property(&name, "enabled").await;
        set.map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

pub(super) async fn import(plan: &Plan, engine: &Engine) -> Result<PoolHandle, String> {
    let discovery = engine
        .discover(vec![PathBuf::from(DIR)])
        .await
        .map_err(|error| error.to_string())?;
    let candidate = discovery
        .pools
        .into_iter()
        .find(|candidate| candidate.name == POOL)
        .ok_or_else(|| format!("the pool is not found; rejected: {:?}", discovery.rejected))?;
    let policy = ImportPolicy {
        force: true,
        host: identity(),
        tuning: tuning(plan),
        ..ImportPolicy::default()
    };
    engine
        .import(candidate, policy)
        .await
        .map_err(|error| error.to_string())
}

/// Returns the clients' directories, as found.
async fn look_at(plan: &Plan, pool: &PoolHandle) -> Result<Vec<Visible>, String> {
    let mut found = Vec::new();
    for client in 0..plan.clients {
        let text = |error: engine::FsError| format!("client {client}: {error}");
        let fs = pool
            .open_fs(dataset(client))
            .await
            .map_err(|error| error.to_string())?;
        let root = fs.root().await.map_err(text)?.id;
        let dir = fs
            .lookup(root, client_dir(client).as_bytes(), &Cred::root())
            .await
            .map_err(text)?;
        found.push(walk(&fs, dir.id).await.map_err(text)?);
    }
    Ok(found)
}

/// What a boot finds: the clients' directories, the datasets, the volume.
pub(crate) type Found = (Vec<Visible>, datasets::Names, Option<volume::Bytes>);

/// Imports, looks at everything, and exports.
pub(super) fn look(plan: &Plan, world: &World) -> Result<Found, String> {
    uncut(look_until(plan, world, || {}, true))
}

/// The same, when power may go meanwhile: `prepare` plans that. Without `export` the machine is switched off instead.
pub(crate) fn look_until(
    plan: &Plan,
    world: &World,
    prepare: impl FnOnce(),
    export: bool,
) -> Ended<Result<Found, String>> {
    boot(world, prepare, |_, engine| async move {
        let pool = import(plan, &engine).await?;
        let found = look_at(plan, &pool).await?;
        let names = datasets::list(&pool).await?;
        let bytes = match plan.with_volume {
            true => Some(volume::look(&pool).await?),
            false => None,
        };
        drop(pool);
        if export {
            let ending = Ending::Export { command: None };
            engine
                .end_pool(POOL, ending)
                .await
                .map_err(|error| format!("export: {error}"))?;
        }
        Ok((found, names, bytes))
    })
}

fn plan_cut(world: &World, rng: &mut Rng, kind: u64) {
    match kind {
        0 => world.plan_cut_at_write(rng.between(1, 1500)),
        1 => world.plan_cut_at_flush(rng.between(1, 40)),
        2 | 3 => world.plan_cut_after(Duration::from_micros(rng.between(5_000, 8_000_000))),
        _ => {}
    }
}

/// What came of a boot.
pub(crate) struct Worked {
    pub(crate) histories: Vec<History>,
    was_cut: bool,
    removals: Removals,
    expansions: Expansions,
    clones: u64,
}

/// Lets the clients work until the power goes (or they are done: then by seed a late cut or a clean export).
/// Returns their histories and whether power was cut. `watch` is told of the histories when the machine is on.
pub(crate) fn work(
    plan: &Plan,
    world: &World,
    rng: &mut Rng,
    before: &[Visible],
    names: &Rc<RefCell<DatasetHistory>>,
    blocks: &Rc<RefCell<VolumeHistory>>,
    watch: Option<&dyn Fn(&Histories)>,
) -> Result<Worked, String> {
    let first: Vec<History> = before
        .iter()
        .enumerate()
        .map(|(client, visible)| History::new(client, dataset(client), Tree::of(visible)))
        .collect();
    let histories: Histories = Rc::new(RefCell::new(first));
    let watched = histories.clone();
    let prepare = |rng: &mut Rng| match (watch, rng.below(5)) {
        (Some(watch), _) => watch(&watched),
        (None, kind) => plan_cut(world, rng, kind),
    };
    let ends_clean = rng.coin();
    let mut dataset_rng = rng.fork();
    let mut client_rngs: Vec<Rng> = (0..plan.clients).map(|_| rng.fork()).collect();
    let mut pull_rng = rng.fork();
    let mut volume_rng = rng.fork();
    let mut device_rng = Rng::new(volume_rng.clone().next_u64());
    let kept = histories.clone();
    let removals = Rc::new(Cell::new(Removals::default()));
    let counted = removals.clone();
    let expansions = Rc::new(Cell::new(Expansions::default()));
    let expanded = expansions.clone();
    let clones = Rc::new(Cell::new(0));
    let cloned = clones.clone();
    let ended = boot(
        world,
        || prepare(rng),
        |handle, engine| async move {
            let pool = import(plan, &engine)
                .await
                .map_err(|error| format!("import: {error}"))?;
            let order = Rc::new(Order::default());
            let mut tasks = Vec::new();
            for (number, rng) in client_rngs.drain(..).enumerate() {
                let fs = pool
                    .open_fs(dataset(number))
                    .await
                    .map_err(|error| error.to_string())?;
                let top = fs.root().await.map_err(|error| error.to_string())?.id;
                let dir = fs
                    .lookup(top, client_dir(number).as_bytes(), &Cred::root())
                    .await;
                let root = dir.map_err(|error| error.to_string())?.id;
                let (pool, histories, order) = (pool.clone(), histories.clone(), order.clone());
                let client = Client {
                    number,
                    pool,
                    fs,
                    root,
                    histories,
                    order,
                    rng,
                    style: plan.styles[number],
                    clones: cloned.clone(),
                };
                tasks.push(handle.spawn("client", client.work(handle.clone(), plan.operations)));
            }
            if plan.with_datasets {
                let (pool, names, handle) = (pool.clone(), names.clone(), handle.clone());
                let rng = dataset_rng.fork();
                let count = plan.dataset_operations;
                let habits = plan.habits;
                let work = datasets::work(pool, names, handle.clone(), rng, count, habits);
                tasks.push(handle.spawn("datasets", work));
            }
            if plan.with_volume {
                let (pool, blocks, handle) = (pool.clone(), blocks.clone(), handle.clone());
                let rng = volume_rng.fork();
                let work = volume::work(pool, blocks, handle.clone(), rng, plan.operations);
                tasks.push(handle.spawn("volume", work));
            }
            if plan.with_devices {
                let (pool, rng) = (pool.clone(), device_rng.fork());
                let (disks, caches) = (plan.extra_disks(), plan.cache_disks());
                let habit = match plan.with_removals {
                    true => Habit::MostlyRemove,
                    // No vdev leaves a pool with raidz.
                    false if plan.layout.parity() > 0 => Habit::Keep,
                    false => Habit::Remove,
                };
                let removals = counted.clone();
                let work = devices::work(pool, handle.clone(), rng, disks, caches, habit, removals);
                tasks.push(handle.spawn("devices", work));
            }
            if plan.with_expansions {
                let (pool, rng) = (pool.clone(), device_rng.fork());
                let (disks, counted) = (plan.extra_disks(), expanded.clone());
                let work = expansions::work(pool, handle.clone(), rng, disks, counted);
                tasks.push(handle.spawn("expansions", work));
            }
            if plan.counts_later {
                let (pool, rng) = (pool.clone(), device_rng.fork());
                tasks.push(handle.spawn("upgrade", upgrade(pool, handle.clone(), rng)));
            }
            if plan.trouble == Trouble::OneSideVanishes {
                for path in plan.victims() {
                    let (world, handle) = (world.clone(), handle.clone());
                    let after = Duration::from_micros(pull_rng.below(3_000_000));
                    drop(handle.clone().spawn("somebody pulling a disk", async move {
                        handle.sleep(after).await;
                        world.vanish(&path);
                    }));
                }
            }
            if plan.trouble == Trouble::OneSideSticks {
                for path in plan.victims() {
                    let (world, handle) = (world.clone(), handle.clone());
                    let after = Duration::from_micros(pull_rng.below(1_000_000));
                    let long = Duration::from_micros(pull_rng.between(1_000, 400_000));
                    drop(handle.clone().spawn("a disk that hangs", async move {
                        handle.sleep(after).await;
                        world.stick(&path);
                        handle.sleep(long).await;
                        world.unstick(&path);
                    }));
                }
            }
            for result in join_all(tasks).await {
                result?;
            }
            if plan.with_removals {
                let disks = plan.extra_disks();
                let rng = &mut device_rng;
                devices::fail_removal(&pool, &handle, world, rng, &disks, &counted).await?;
            }
            drop(pool);
            if ends_clean {
                let ending = Ending::Export { command: None };
                engine
                    .end_pool(POOL, ending)
                    .await
                    .map_err(|error| format!("export: {error}"))?;
                for history in histories.borrow_mut().iter_mut() {
                    history.note_all_stable();
                }
                blocks.borrow_mut().note_synced();
            }
            Ok::<(), String>(())
        },
    );
    let was_cut = match ended {
        Ended::Done(result) => {
            result?;
            if ends_clean {
                false
            } else {
                world.power_cut();
                true
            }
        }
        Ended::PowerCut => true,
    };
    if plan.trouble == Trouble::OneSideVanishes {
        for path in plan.victims() {
            world.bring_back(&path);
        }
    }
    if plan.trouble == Trouble::OneSideSticks {
        // What was to have it answer again went with the machine.
        for path in plan.victims() {
            world.unstick(&path);
        }
    }
    if plan.with_removals {
        for path in plan.extra_disks() {
            world.forget_latent_errors(&path);
        }
    }
    Ok(Worked {
        histories: kept.take(),
        was_cut,
        removals: removals.get(),
        expansions: expansions.get(),
        clones: clones.get(),
    })
}
