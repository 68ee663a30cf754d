//! What one seed does: a pool, a server that goes down and comes back, and clients at work; judged all the while.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{
    CreateDataset, CreateMode, Cred, Ending, Engine, FileId, FsError, FsHandle, ImportPolicy,
    IoBuf, PoolSpec, SetAttr, Stability, VdevSpec,
};
use nfs::{
    ClientCall, ClientCalls, ClientRecord, Export, Resolver, Server, ServerConfig, Versions,
};
use runtime::mailbox::Receiver;
use runtime::{Handle, join_all, mailbox, timeout};
use world::{DiskModel, Ended, Faults, Image, Rng, World};

use super::client::{Actor, CELL_STEP, Client};
use super::model::{FILES, Judged, Model, SHARED_CELLS, name_of};
use super::network::{CutOff, Network, ToClient, Weather};
use super::steps::{Habit, patience_ns};
use crate::campaign::scenario::{boot, uncut};

const DISK: &str = "/sim/disk";
const DISK_BYTES: u64 = 128 << 20;
/// Room for all cells.
const FILE_BYTES: usize = 8192;
const SECOND_NS: u64 = 1_000_000_000;

/// What a seed stands for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    pub lease_seconds: u32,
    /// How often the server goes down.
    pub cuts: u64,
    habit: Habit,
    weather: Weather,
    delegations: bool,
    /// The machine itself reads and writes the files, too.
    local: bool,
    /// What is wrong on purpose, so that the judge has to see it.
    flaw: Option<Flaw>,
}

/// What can be wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// The disk says that it has written what it has not.
    LyingFlush,
    /// The server's clock runs at three times the speed: leases end early.
    FastClock,
    /// The record of clients is lost with each restart.
    NoRecord,
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.text)
    }
}

/// What came of a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub judged: Judged,
    pub cuts: u64,
    /// Virtual time.
    pub seconds: u64,
}

impl Plan {
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x4e46_5334);
        Self {
            seed,
            clients: rng.index(4) + 2,
            lease_seconds: u32::try_from(rng.between(8, 40)).expect("small"),
            cuts: rng.below(4),
            habit: *rng.choose(&[Habit::Mixed, Habit::Locks, Habit::Caches]),
            weather: Weather {
                latency_us: *rng.choose(&[200, 2_000, 40_000]),
                lost: *rng.choose(&[0, 2_000, 20_000]),
                twice: *rng.choose(&[0, 20_000, 100_000]),
            },
            delegations: rng.below(6) > 0,
            local: rng.below(3) == 0,
            flaw: None,
        }
    }

    /// As [`Self::of_seed`], with something wrong.
    #[must_use]
    pub fn with_flaw(seed: u64, flaw: Flaw) -> Self {
        let plan = Self::of_seed(seed);
        Self {
            cuts: plan.cuts.max(1),
            flaw: Some(flaw),
            ..plan
        }
    }

    fn lease_ns(&self) -> u64 {
        u64::from(self.lease_seconds) * SECOND_NS
    }
}

/// A file of the machine that survives its restarts.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<u8>>>);

impl ClientRecord for Record {
    fn read(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn write(&self, record: &[u8]) -> std::io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = record.to_vec();
        Ok(())
    }
}

/// Names of hosts, and calls of NLM: there are none.
struct Absent;

impl Resolver for Absent {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn names(&self, _address: IpAddr) -> Vec<String> {
        Vec::new()
    }
}

impl ClientCalls for Absent {
    fn send(&self, call: ClientCall) -> Result<(), Box<ClientCall>> {
        Err(Box::new(call))
    }
}

/// What outlives the server's restarts.
struct Story {
    plan: Plan,
    rng: Rng,
    record: Record,
    model: Rc<RefCell<Model>>,
    cut_off: Rc<RefCell<Vec<CutOff>>>,
    clients: Vec<Rc<RefCell<Client>>>,
}

thread_local! {
    /// The disk with a new pool, for seeds to begin with.
    static NEW_POOL: RefCell<Option<Image>> = const { RefCell::new(None) };
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// Returns a disk with a pool of files whose cells are zero.
fn new_pool() -> Result<Image, String> {
    if let Some(image) = NEW_POOL.with(|image| image.borrow().clone()) {
        return Ok(image);
    }
    let world = World::new(0);
    world.add_disk(DISK, DiskModel::new(DISK_BYTES));
    let made = boot(
        &world,
        || {},
        |_, engine| async move {
            let spec = PoolSpec {
                name: "tank".to_owned(),
                vdevs: vec![VdevSpec::Single(PathBuf::from(DISK))],
                ..PoolSpec::default()
            };
            let pool = engine.create_pool(spec, &[]).await.map_err(text)?;
            let request = CreateDataset {
                name: "tank/fs".to_owned(),
                properties: vec![("recordsize".to_owned(), "1K".to_owned())],
                ..CreateDataset::default()
            };
            pool.create_dataset(request).await.map_err(text)?;
            let fs = pool.open_fs("tank/fs").await.map_err(text)?;
            let (root, cred) = (fs.root().await.map_err(text)?.id, Cred::root());
            let set = SetAttr {
                mode: Some(0o666),
                ..SetAttr::default()
            };
            for file in 0..FILES {
                let name = format!("file{file}");
                let made = fs.create(root, name.as_bytes(), CreateMode::Guarded, &set, &cred);
                let id = made.await.map_err(text)?.file.id;
                let zeros = IoBuf::copy_from(&[0; FILE_BYTES]);
                let written = fs.write(id, 0, zeros, Stability::FileSync, &cred).await;
                written.map_err(text)?;
            }
            drop((fs, pool));
            let ending = Ending::Export { command: None };
            engine.end_pool("tank", ending).await.map_err(text)
        },
    );
    uncut(made)?;
    let image = world
        .images()
        .remove(&PathBuf::from(DISK))
        .expect("it is there");
    NEW_POOL.with(|kept| *kept.borrow_mut() = Some(image.clone()));
    Ok(image)
}

async fn import(engine: &Engine) -> Result<FsHandle, String> {
    let discovery = engine
        .discover(vec![PathBuf::from("/sim")])
        .await
        .map_err(text)?;
    let found = discovery.pools.into_iter().next();
    let candidate = found.ok_or_else(|| format!("no pool: {:?}", discovery.rejected))?;
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    let pool = engine.import(candidate, policy).await.map_err(text)?;
    pool.open_fs("tank/fs").await.map_err(text)
}

/// Runs a seed in its world.
///
/// # Errors
/// What the server did that it must not.
pub fn run(plan: &Plan, world: &World) -> Result<Outcome, Failure> {
    run_and_tell(plan, world, false)
}

/// As [`run`]; tells on standard error what happens where `trace` says so.
pub(super) fn run_and_tell(plan: &Plan, world: &World, trace: bool) -> Result<Outcome, Failure> {
    let seed = plan.seed;
    let failed = |text| Failure { seed, text };
    let image = new_pool().map_err(failed)?;
    let faults = Faults {
        lying_flush: plan.flaw == Some(Flaw::LyingFlush),
        ..Faults::default()
    };
    world.add_disk_with(DISK, DiskModel::new(DISK_BYTES).with_faults(faults), image);
    let mut rng = world.rng();
    let clients = (0..plan.clients).map(|_| Rc::new(RefCell::new(Client::new(rng.fork()))));
    let mut story = Story {
        plan: *plan,
        clients: clients.collect(),
        record: Record::default(),
        model: Rc::new(RefCell::new(Model::new(plan.clients, plan.lease_ns()))),
        cut_off: Rc::new(RefCell::new(vec![CutOff::default(); plan.clients])),
        rng,
    };
    story.model.borrow_mut().trace = trace;
    for boot in 0..=plan.cuts {
        story
            .serve(world, boot, boot == plan.cuts)
            .map_err(failed)?;
    }
    story.look(world).map_err(failed)?;
    let judged = story.model.borrow().judged;
    Ok(Outcome {
        judged,
        cuts: world.counts().cuts,
        seconds: world.now().as_nanos() / SECOND_NS,
    })
}

impl Story {
    /// Runs the server until the power goes, or the clients are done.
    fn serve(&mut self, world: &World, number: u64, ends: bool) -> Result<(), String> {
        let plan = self.plan;
        let lease_ns = plan.lease_ns();
        let work_ns = self.rng.between(SECOND_NS, 4 * lease_ns);
        let down_ns = match (number, self.rng.below(4)) {
            (0, _) => 0,
            (_, 0) => self.rng.below(2 * lease_ns),
            _ => self.rng.below(4 * SECOND_NS),
        };
        let cut = match (ends, self.rng.below(3)) {
            (true, _) => None,
            (false, 0) => Some(Err(self.rng.between(1, 400))),
            (false, _) => Some(Ok(Duration::from_nanos(down_ns + work_ns))),
        };
        let rng = self.rng.fork();
        let story = &*self;
        let prepare = || match cut {
            Some(Ok(after)) => world.plan_cut_after(after),
            Some(Err(writes)) => world.plan_cut_at_write(writes),
            None => {}
        };
        let ended = boot(world, prepare, |handle, engine| async move {
            handle.sleep(Duration::from_nanos(down_ns)).await;
            let served = Served {
                story,
                number,
                until: handle.now().as_nanos() + work_ns,
                ends,
            };
            served.run(handle, engine, rng).await
        });
        match ended {
            Ended::Done(result) => {
                result?;
                if !ends {
                    world.power_cut();
                }
            }
            Ended::PowerCut => {}
        }
        let mut model = self.model.borrow_mut();
        model.note(world.now().as_nanos(), || format!("boot {number} is over"));
        if let Some(violation) = model.violation() {
            return Err(violation.to_owned());
        }
        if !ends {
            model.power_cut(world.now().as_nanos());
        }
        if plan.flaw == Some(Flaw::NoRecord) {
            let forgotten = self.record.write(&[]);
            forgotten.map_err(text)?;
        }
        Ok(())
    }

    /// Cuts the power once more, and looks at all cells and names.
    fn look(&self, world: &World) -> Result<(), String> {
        world.power_cut();
        let now = world.now().as_nanos();
        self.model.borrow_mut().power_cut(now);
        let (model, clients) = (self.model.clone(), self.plan.clients);
        let ended = boot(
            world,
            || {},
            |handle, engine| async move {
                let fs = import(&engine).await?;
                let (root, cred) = (fs.root().await.map_err(text)?.id, Cred::root());
                for file in 0..FILES {
                    let id = fs
                        .lookup(root, format!("file{file}").as_bytes(), &cred)
                        .await;
                    let id = id.map_err(text)?.id;
                    let cells = model.borrow().cells();
                    for cell in 0..cells {
                        let value = read_cell(&fs, id, cell).await.map_err(text)?;
                        let now = handle.now().as_nanos();
                        model.borrow_mut().read(now, None, file, cell, value, now);
                    }
                }
                for client in 0..clients {
                    let names = model.borrow().names(client).to_vec();
                    for (number, there) in names.iter().enumerate() {
                        let name = name_of(client, number);
                        let found = fs.lookup(root, name.as_bytes(), &cred).await.is_ok();
                        if there.is_some_and(|there| there != found) {
                            let text = format!("{name}: there {there:?}, found {found}");
                            model.borrow_mut().fail(handle.now().as_nanos(), &text);
                        }
                    }
                }
                drop(fs);
                let ending = Ending::Export { command: None };
                engine.end_pool("tank", ending).await.map_err(text)
            },
        );
        uncut(ended)?;
        match self.model.borrow().violation() {
            Some(violation) => Err(violation.to_owned()),
            None => Ok(()),
        }
    }
}

async fn read_cell(fs: &FsHandle, id: FileId, cell: usize) -> Result<u64, FsError> {
    let data = fs
        .read(id, cell as u64 * CELL_STEP, 8, &Cred::root())
        .await?;
    let bytes: Vec<u8> = data
        .pieces
        .iter()
        .flat_map(|piece| piece.to_vec())
        .collect();
    let bytes = bytes.try_into().map_err(|_| FsError::Io)?;
    Ok(u64::from_be_bytes(bytes))
}

/// One boot of the server.
struct Served<'a> {
    story: &'a Story,
    number: u64,
    until: u64,
    ends: bool,
}

impl Served<'_> {
    async fn run(&self, handle: Handle, engine: Engine, mut rng: Rng) -> Result<(), String> {
        let fs = import(&engine).await?;
        let server = self.server(&handle, (&engine, &fs), &mut rng);
        let story = self.story;
        story.model.borrow_mut().serves(handle.now().as_nanos());
        let done = Rc::new(Cell::new(false));
        let clock = Clock {
            handle: handle.clone(),
            server: server.clone(),
            done: done.clone(),
            speed: if story.plan.flaw == Some(Flaw::FastClock) {
                3
            } else {
                1
            },
        };
        drop(handle.spawn("the clock", clock.tick(rng.fork())));
        let (network, calls) = Network::new(
            &handle,
            &server,
            story.plan.weather,
            &story.model,
            &story.cut_off,
            rng.fork(),
        );
        let mut actors = Vec::new();
        let mut working = Vec::new();
        for (number, client) in story.clients.iter().enumerate() {
            let (recalls, recalled) = mailbox(64);
            let actor = Actor {
                number,
                client: client.clone(),
                network: network.clone(),
                model: story.model.clone(),
                cut_off: story.cut_off.clone(),
                boot: self.number,
                recalls,
            };
            drop(handle.spawn("giving back", actor.clone().give_back_recalled(recalled)));
            let (habit, lease_ns) = (story.plan.habit, story.plan.lease_ns());
            let work = actor.clone().work(habit, self.until, lease_ns, self.ends);
            working.push(handle.spawn("a client", work));
            actors.push(actor);
        }
        drop(handle.spawn("callbacks", answer_calls(handle.clone(), calls, actors)));
        if story.plan.local {
            let local = Local {
                fs: fs.clone(),
                handle: handle.clone(),
                model: story.model.clone(),
                clients: story.plan.clients,
            };
            working.push(handle.spawn("the machine itself", local.work(rng.fork(), self.until)));
        }
        let left = self.until.saturating_sub(handle.now().as_nanos());
        let longest = Duration::from_nanos(left + patience_ns(story.plan.lease_ns()));
        if timeout(&handle, longest, join_all(working)).await.is_none() {
            let mut model = story.model.borrow_mut();
            model.fail(handle.now().as_nanos(), "the clients do not come to an end");
        }
        done.set(true);
        Ok(())
    }

    fn server(&self, handle: &Handle, (engine, fs): (&Engine, &FsHandle), rng: &mut Rng) -> Server {
        let wall = handle.wall_clock();
        let seconds = u64::try_from(wall.seconds).expect("after 1970");
        let server = Server::new(ServerConfig {
            nfs_port: 2049,
            boot_verifier: seconds * SECOND_NS + u64::from(wall.nanoseconds),
            secret: [rng.next_u64(), rng.next_u64()],
            record: Box::new(self.story.record.clone()),
            resolver: Box::new(Absent),
            versions: Versions {
                lease_seconds: self.story.plan.lease_seconds,
                delegations: self.story.plan.delegations,
                ..Versions::default()
            },
            locks: Arc::default(),
            reclaims: engine.reclaim_grace().clone(),
            client_calls: Box::new(Absent),
            host_name: "simulated".to_owned(),
            kerberos: None,
        });
        server.tick(handle.now().as_nanos());
        let refused = server.set_exports(vec![Export {
            path: "/tank/fs".to_owned(),
            fs: fs.clone(),
            dataset: "tank/fs".to_owned(),
            identity: None,
            sharenfs: "*(rw,no_root_squash)".to_owned(),
            readonly: false,
        }]);
        assert!(refused.is_empty(), "{refused:?}");
        server.pools_are_open();
        server
    }
}

/// Tells the server the time, about once a second.
struct Clock {
    handle: Handle,
    server: Server,
    done: Rc<Cell<bool>>,
    speed: u64,
}

impl Clock {
    async fn tick(self, mut rng: Rng) {
        while !self.done.get() {
            let micros = rng.between(900_000, 1_400_000);
            self.handle.sleep(Duration::from_micros(micros)).await;
            self.server.tick(self.handle.now().as_nanos() * self.speed);
        }
    }
}

/// Brings the server's calls to the clients.
async fn answer_calls(handle: Handle, mut calls: Receiver<ToClient>, actors: Vec<Actor>) {
    while let Some(call) = calls.receive().await {
        let actor = actors[call.client].clone();
        actor.is_called(&call.message);
        drop(handle.spawn("a call back", async move {
            if actor.network.carry_callback(&call).await
                && let Some(answer) = actor.called_back(&call.message)
            {
                actor.network.answer_callback(&call, answer).await;
            }
        }));
    }
}

/// Whoever works with the files on the machine itself.
struct Local {
    fs: FsHandle,
    handle: Handle,
    model: Rc<RefCell<Model>>,
    clients: usize,
}

impl Local {
    fn now(&self) -> u64 {
        self.handle.now().as_nanos()
    }

    async fn work(self, mut rng: Rng, until: u64) {
        let mut files = Vec::new();
        let cred = Cred::root();
        let Ok(root) = self.fs.root().await else {
            return self.fail("there is no root");
        };
        for file in 0..FILES {
            let name = format!("file{file}");
            match self.fs.lookup(root.id, name.as_bytes(), &cred).await {
                Ok(attr) => files.push(attr.id),
                Err(error) => return self.fail(&format!("{name}: {error}")),
            }
        }
        let mut refusals = 0;
        while self.now() < until && self.model.borrow().violation().is_none() {
            let pause = Duration::from_millis(rng.below(2500));
            self.handle.sleep(pause).await;
            let file = rng.index(FILES);
            let done = match rng.below(3) {
                0 => self.write(file, files[file], rng.coin()).await,
                _ => {
                    let cell = rng.index(SHARED_CELLS + self.clients + 1);
                    self.read(file, files[file], cell).await
                }
            };
            refusals = match done {
                Ok(()) => 0,
                Err(FsError::Delegated) => refusals + 1,
                Err(error) => return self.fail(&format!("file {file}: {error}")),
            };
            if refusals == 500 {
                self.fail("finds files delegated for ever");
            }
        }
    }

    fn fail(&self, text: &str) {
        let mut model = self.model.borrow_mut();
        model.fail(self.now(), &format!("the machine itself: {text}"));
    }

    async fn write(&self, file: usize, id: FileId, stable: bool) -> Result<(), FsError> {
        let cell = SHARED_CELLS + self.clients;
        let (sent, value) = (self.now(), self.model.borrow_mut().value());
        self.model.borrow_mut().writing(sent, file, cell, value);
        let stability = match stable {
            true => Stability::FileSync,
            false => Stability::Unstable,
        };
        let data = IoBuf::copy_from(&value.to_be_bytes());
        let cred = Cred::root();
        let at = cell as u64 * CELL_STEP;
        let written = self.fs.write(id, at, data, stability, &cred).await;
        let mut model = self.model.borrow_mut();
        match written {
            Ok(_) => {
                let now = self.now();
                model.wrote(now, None, file, cell, (value, stable), sent);
                Ok(())
            }
            Err(error) => {
                model.refused_write(self.now(), file, cell, value);
                Err(error)
            }
        }
    }

    async fn read(&self, file: usize, id: FileId, cell: usize) -> Result<(), FsError> {
        let sent = self.now();
        let value = read_cell(&self.fs, id, cell).await?;
        let mut model = self.model.borrow_mut();
        model.read(self.now(), None, file, cell, value, sent);
        Ok(())
    }
}
