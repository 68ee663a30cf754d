//! The fault campaign: for each layout, disks that vanish and return, rot, lie, get stuck, fail or die, during work,
//! scrub, resilver, replacement and power cuts.
//!
//! Troubles never go beyond the redundancy: [`admin`] keeps account of which places of which vdev are in trouble, and a
//! place counts as sound again only after what it missed was resilvered and what may have rotted was scrubbed. So no
//! operation may fail, no byte be wrong, and at the end, when all disks are well, the pool must be healthy, a second
//! scrub must find nothing, and the checker must be content. Some seeds then go on [`beyond`] the redundancy: the damage must
//! be named exactly, and everything else must read.

pub mod admin;
pub mod beyond;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use engine::{Cred, Ending, Engine};
use runtime::{Handle, join_all};
use world::{DiskModel, Ended, Rng, World};

use self::admin::Ward;
use super::history::{History, Order, judge};
use super::judge;
use super::model::{Style, Tree, Visible};
use super::scenario::{self, DIR, Failure, Layout, Outcome, POOL, Plan};
use super::workload::{Client, Histories};

/// Longest a boot's work may take: beyond, something waits that nothing will wake.
const WORK_MAX: Duration = Duration::from_secs(6 * 3600);

/// Everything about a fault seed that is decided before it runs.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Clients, disks and settings.
    pub base: Plan,
    /// Power may go.
    pub cuts: bool,
    /// At the end more is damaged than redundancy covers.
    pub beyond: bool,
    /// Disks are replaced by sequential resilvers where that is possible, and draids have a distributed spare.
    pub sequential: bool,
}

/// The layouts of the campaign: top-level vdevs, disks of each, parity (0: mirrors).
const SHAPES: [(u8, u8, u8); 12] = [
    (1, 1, 0),
    (1, 2, 0),
    (1, 3, 0),
    (1, 4, 0),
    (2, 2, 0),
    (2, 3, 0),
    (1, 3, 1),
    (1, 5, 1),
    (1, 5, 2),
    (1, 6, 2),
    (1, 7, 3),
    (2, 3, 1),
];

/// As [`SHAPES`], with columns of data: draids.
const SPREADS: [(u8, u8, u8, Option<u8>); 4] = [
    (1, 5, 1, Some(2)),
    (1, 7, 2, Some(3)),
    (1, 6, 1, Some(3)),
    (1, 8, 3, Some(2)),
];

impl FaultPlan {
    /// Draws the plan of a seed. The layouts take turns, so that any run of twelve seeds has them all.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0046_4155_4c54);
        let turn = usize::try_from(seed % SHAPES.len() as u64).expect("small");
        let (tops, disks, parity) = SHAPES[turn];
        // Every fourth round is one of draids.
        let spread =
            (seed / SHAPES.len() as u64 % 4 == 3 && disks > 1).then_some(turn % SPREADS.len());
        let (tops, disks, parity, data) = match spread {
            Some(turn) => SPREADS[turn],
            None => (tops, disks, parity, None),
        };
        // And of those, every fourth.
        let sequential = seed / (4 * SHAPES.len() as u64) % 4 == 3;
        let is_single = disks == 1;
        let mut settings = vec![
            // Values of attributes lie with their file: damage then has one name.
            ("xattr".to_owned(), "sa".to_owned()),
            ("atime".to_owned(), "off".to_owned()),
        ];
        let copies = if is_single {
            *rng.choose(&["2", "3"])
        } else {
            *rng.choose(&["1", "1", "1", "2"])
        };
        settings.push(("copies".to_owned(), copies.to_owned()));
        for (name, values) in [
            ("compression", &["lz4", "off", "zstd"][..]),
            ("recordsize", &["128K", "4K", "16K", "512", "1M"][..]),
            ("checksum", &["on", "sha256"][..]),
        ] {
            if rng.coin() {
                settings.push((name.to_owned(), (*rng.choose(values)).to_owned()));
            }
        }
        let clients = rng.index(2) + 1;
        let styles = (0..clients)
            .map(|_| *rng.choose(&[Style::Mixed, Style::Rewrite, Style::Names]))
            .collect();
        Self {
            base: Plan {
                layout: Layout::Grid {
                    tops,
                    disks,
                    parity,
                    data,
                    spares: u8::from(sequential && data.is_some()),
                },
                rounds: u32::try_from(rng.between(1, 3)).expect("small"),
                clients,
                operations: rng.between(40, 250),
                disk_bytes: match data {
                    None => *rng.choose(&[64, 96, 128]) << 20,
                    // A part of each disk of a draid is kept free.
                    Some(_) => *rng.choose(&[96, 128, 160]) << 20,
                },
                sector_bytes: *rng.choose(&[512, 512, 4096]),
                settings,
                styles,
                ..Plan::plain(seed)
            },
            cuts: rng.below(3) != 0,
            beyond: rng.below(3) == 0,
            sequential,
        }
    }
}

/// Runs a plan in a world of its seed. With a directory, zdb judges the end as well.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(plan: &FaultPlan, world: &World, zdb: Option<&Path>) -> Result<Outcome, Failure> {
    let base = &plan.base;
    let fail = |round: u32, text: String| Failure {
        seed: base.seed,
        round,
        text,
    };
    for path in base.disks() {
        world.add_disk(path, model(base));
    }
    let mut rng = Rng::new(base.seed ^ 0x574f_524b);
    let mut outcome = Outcome::default();
    match scenario::create(base, world, || {}) {
        Ended::Done(result) => result.map_err(|text| fail(0, format!("create: {text}")))?,
        Ended::PowerCut => unreachable!("none was planned"),
    }
    let ward = Rc::new(RefCell::new(Ward::new(plan, world.clone(), rng.fork())));
    let mut trees = vec![Tree::empty(0o755).visible(); base.clients];
    for round in 1..=base.rounds {
        ward.borrow_mut().before_boot();
        let (histories, cut) =
            work(plan, world, &mut rng, &trees, &ward).map_err(|text| fail(round, text))?;
        outcome.operations += histories.iter().map(|h| h.len() as u64).sum::<u64>();
        outcome.cuts += u32::from(cut);
        ward.borrow_mut().after_boot(cut);
        if cut {
            judge_images(&ward.borrow(), world, true)
                .map_err(|text| fail(round, format!("after the cut: {text}")))?;
        }
        let (found, _, _) = scenario::look(base, world)
            .map_err(|text| fail(round, format!("import after the cut: {text}")))?;
        judge(&histories, &found).map_err(|text| fail(round, text))?;
        judge_images(&ward.borrow(), world, false)
            .map_err(|text| fail(round, format!("after export: {text}")))?;
        trees = found;
    }
    let last = base.rounds + 1;
    settle(base, world, &ward).map_err(|text| fail(last, format!("settling: {text}")))?;
    let (found, _, _) = scenario::look(base, world).map_err(|text| fail(last, text))?;
    if found != trees {
        return Err(fail(
            last,
            "files changed while disks were repaired".to_owned(),
        ));
    }
    judge_images(&ward.borrow(), world, false)
        .map_err(|text| fail(last, format!("at the end: {text}")))?;
    if let Some(dir) = zdb {
        by_zdb(&ward.borrow(), world, dir).map_err(|text| fail(last, text))?;
    }
    if plan.beyond {
        beyond::run(base, world, &mut rng, &ward, &trees)
            .map_err(|text| fail(last + 1, format!("beyond redundancy: {text}")))?;
        judge_images(&ward.borrow(), world, false)
            .map_err(|text| fail(last + 1, format!("after the damage was removed: {text}")))?;
    }
    let hash = world.event_hash();
    outcome.events = hash.events();
    outcome.hash = hash.value();
    outcome.virtual_time = world.now() - runtime::Instant::ORIGIN;
    Ok(outcome)
}

/// A disk of the plan, for new ones too.
fn model(plan: &Plan) -> DiskModel {
    DiskModel::new(plan.disk_bytes).with_sectors(plan.sector_bytes, plan.sector_bytes)
}

fn judge_images(ward: &Ward, world: &World, crashed: bool) -> Result<(), String> {
    use checker::Kind;
    let excused = |kind: Kind| {
        ward.in_trouble()
            && matches!(
                kind,
                Kind::Checksum | Kind::Label | Kind::Uberblock | Kind::Config
            )
    };
    judge::by_checker_of(world, crashed, &ward.strangers(), &excused)
}

fn by_zdb(ward: &Ward, world: &World, dir: &Path) -> Result<(), String> {
    judge::by_zdb_of(world, dir, &ward.strangers())
}

/// Lets the clients work, and troubles come and go, until the power goes or the clients are done.
fn work(
    plan: &FaultPlan,
    world: &World,
    rng: &mut Rng,
    before: &[Visible],
    ward: &Rc<RefCell<Ward>>,
) -> Result<(Vec<History>, bool), String> {
    let base = &plan.base;
    let first: Vec<History> = before
        .iter()
        .enumerate()
        .map(|(client, visible)| History::new(client, scenario::dataset(client), Tree::of(visible)))
        .collect();
    let histories: Histories = Rc::new(RefCell::new(first));
    let mut client_rngs: Vec<Rng> = (0..base.clients).map(|_| rng.fork()).collect();
    let cut = plan.cuts && rng.below(4) != 0;
    let prepare = |rng: &mut Rng| match rng.below(3) {
        _ if !cut => {}
        0 => world.plan_cut_at_write(rng.between(1, 4000)),
        1 => world.plan_cut_at_flush(rng.between(1, 150)),
        _ => world.plan_cut_after(Duration::from_millis(rng.between(5, 60_000))),
    };
    let kept = histories.clone();
    let ended = scenario::boot(
        world,
        || prepare(rng),
        |handle, engine| async move {
            let pool = scenario::import(base, &engine)
                .await
                .map_err(|error| format!("import: {error}"))?;
            let order = Rc::new(Order::default());
            let done = Rc::new(Cell::new(false));
            let mut tasks = Vec::new();
            for (number, rng) in client_rngs.drain(..).enumerate() {
                let text = |error: engine::FsError| error.to_string();
                let fs = pool
                    .open_fs(scenario::dataset(number))
                    .await
                    .map_err(|error| error.to_string())?;
                let top = fs.root().await.map_err(text)?.id;
                let name = scenario::client_dir(number);
                let root = fs
                    .lookup(top, name.as_bytes(), &Cred::root())
                    .await
                    .map_err(text)?
                    .id;
                let client = Client {
                    number,
                    pool: pool.clone(),
                    fs,
                    root,
                    histories: histories.clone(),
                    order: order.clone(),
                    rng,
                    style: base.styles[number],
                    clones: Rc::default(),
                };
                tasks.push(handle.spawn("client", client.work(handle.clone(), base.operations)));
            }
            let watch = admin::work(pool.clone(), handle.clone(), ward.clone(), done.clone());
            let watch = handle.spawn("admin", watch);
            let ended = runtime::timeout(&handle, WORK_MAX, join_all(tasks)).await;
            let endless =
                |whose| format!("the {whose} work does not end\n{}", handle.stall_report());
            let results = ended.ok_or_else(|| endless("clients'"))?;
            for result in results {
                result?;
            }
            done.set(true);
            let ended = runtime::timeout(&handle, WORK_MAX, watch).await;
            ended.ok_or_else(|| endless("administrator's"))??;
            drop(pool);
            let ending = Ending::Export { command: None };
            engine
                .end_pool(POOL, ending)
                .await
                .map_err(|error| format!("export: {error}"))?;
            for history in histories.borrow_mut().iter_mut() {
                history.note_all_stable();
            }
            Ok::<(), String>(())
        },
    );
    let was_cut = match ended {
        Ended::Done(result) => {
            result?;
            false
        }
        Ended::PowerCut => true,
    };
    Ok((kept.take(), was_cut))
}

/// Mends every disk and lets the pool become healthy.
fn settle(plan: &Plan, world: &World, ward: &Rc<RefCell<Ward>>) -> Result<(), String> {
    ward.borrow_mut().before_boot();
    ward.borrow_mut().end_all_causes();
    in_pool(plan, world, |pool, handle, _| {
        let ward = ward.clone();
        async move { admin::make_whole(&pool, &handle, &ward, plan).await }
    })
}

/// Imports the pool, runs `main`, and exports it.
fn in_pool<F, Main>(base: &Plan, world: &World, main: Main) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
    Main: FnOnce(engine::PoolHandle, Handle, Engine) -> F,
{
    let ended = scenario::boot(
        world,
        || {},
        |handle, engine| async move {
            let pool = scenario::import(base, &engine)
                .await
                .map_err(|error| format!("import: {error}"))?;
            let work = main(pool, handle.clone(), engine.clone());
            let ended = runtime::timeout(&handle, WORK_MAX, work).await;
            ended.ok_or_else(|| "it does not end".to_owned())??;
            let ending = Ending::Export { command: None };
            engine
                .end_pool(POOL, ending)
                .await
                .map_err(|error| format!("export: {error}"))
        },
    );
    scenario::uncut(ended)
}

/// The place of a disk that joins later.
fn fresh_path(number: usize) -> PathBuf {
    Path::new(DIR).join(format!("n{number}"))
}

/// Disks that are in the world but no longer in the pool.
type Strangers = BTreeSet<PathBuf>;
