//! Causes of slowness, planted in a simulated machine: from what its pool tells of itself the right one is named.
//!
//! Time is virtual, and every disk operation takes some milliseconds, so that a minute of load is few operations. Causes that are
//! not here (a small cache, the dedup table, the network) have tests of their signs beside the rules (`manage::history::why`).

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use engine::{
    Client, CreateDataset, CreateMode, Cred, Ending, Engine, FileId, FsHandle, IoBuf, PoolHandle,
    PoolSpec, SetAttr, Stability, Tuning, VdevSpec,
};
use manage::history::why::explain;
use manage::history::{Cause, Explanation, Observation, Span, pool_span};
use runtime::{Handle, JoinHandle};
use sim::campaign::host::{Machine, SimHost};
use world::{DiskModel, Ended, Faults, World};

const DATA: [&str; 2] = ["/d/a", "/d/b"];
const LOG: &str = "/d/log";
const MIB: u64 = 1 << 20;
const ANN: &str = "192.0.2.1";
const EVE: &str = "192.0.2.66";

/// A machine with a mirror, and a log device if wanted.
struct Planted {
    world: World,
    with_log: bool,
    tuning: Tuning,
    properties: Vec<(String, String)>,
}

/// What the load has to work with.
struct Load {
    handle: Handle,
    pool: PoolHandle,
    fs: FsHandle,
    root: FileId,
}

fn takes(milliseconds: u64) -> Faults {
    Faults {
        slow: 1_000_000,
        slow_by: Duration::from_millis(milliseconds),
        ..Faults::default()
    }
}

impl Planted {
    fn new(with_log: bool) -> Self {
        let world = World::new(22);
        for path in DATA {
            world.add_disk(path, DiskModel::new(160 * MIB));
        }
        world.add_disk(LOG, DiskModel::new(80 * MIB));
        Self {
            world,
            with_log,
            tuning: Tuning::default(),
            properties: Vec::new(),
        }
    }

    fn all_take(&self, milliseconds: u64) {
        for path in DATA.iter().chain([&LOG]) {
            self.world.set_faults(path, takes(milliseconds));
        }
    }

    /// Makes the pool, prepares, and explains what the load of `seconds` was like for `client`.
    fn explained(
        &self,
        client: &str,
        prepare: impl AsyncFnOnce(&Load),
        load: impl AsyncFnOnce(&Load),
    ) -> Explanation {
        let machine = self.world.boot();
        let entered = Machine::enter(&machine.handle());
        let engine = Engine::new(SimHost);
        let spec = PoolSpec {
            name: "tank".to_owned(),
            vdevs: vec![VdevSpec::Mirror(DATA.map(PathBuf::from).to_vec())],
            logs: match self.with_log {
                true => vec![VdevSpec::Single(PathBuf::from(LOG))],
                false => Vec::new(),
            },
            tuning: self.tuning.clone(),
            ..PoolSpec::default()
        };
        let ended = self.world.run_on(&machine, |handle| async {
            let pool = engine
                .create_pool(spec, &self.properties)
                .await
                .expect("a pool");
            let request = CreateDataset {
                name: "tank/fs".to_owned(),
                ..CreateDataset::default()
            };
            pool.create_dataset(request).await.expect("a file system");
            let fs = pool.open_fs("tank/fs").await.expect("opens");
            let root = fs.root().await.expect("a root").id;
            let with = Load {
                handle,
                pool,
                fs,
                root,
            };
            prepare(&with).await;
            let before = observe(&with.pool).await;
            let began = with.handle.now();
            load(&with).await;
            let now = observe(&with.pool).await;
            let took = with.handle.now().as_nanos() - began.as_nanos();
            let window = Span {
                seconds: (took / 1_000_000_000).max(1),
                pools: vec![pool_span(&before, &now)],
                ..Span::default()
            };
            drop(with);
            // A pool whose log is gone cannot be exported; nothing of it is needed any more.
            engine
                .end_pool("tank", Ending::Abandon)
                .await
                .expect("let go");
            explain(&window, &Span::default(), Some(client), None)
        });
        drop((engine, entered, machine));
        match ended {
            Ended::Done(explanation) => explanation,
            Ended::PowerCut => panic!("no power cut was planned"),
        }
    }
}

async fn observe(pool: &PoolHandle) -> Observation {
    let dedup = pool.properties().await.expect("properties");
    let ratio = dedup.iter().find(|entry| entry.name == "dedupratio");
    let number = |value: &engine::pool_property::PropertyValue| match value {
        engine::pool_property::PropertyValue::Number(ratio) => *ratio,
        _ => 0,
    };
    Observation {
        status: pool.status().await.expect("a status"),
        seen: pool.statistics().await.expect("statistics"),
        dedup: ratio.is_some_and(|entry| number(&entry.value) > 100),
    }
}

impl Load {
    fn of(&self, client: &str) -> FsHandle {
        let address: IpAddr = client.parse().expect("an address");
        self.fs.for_client(Client::Address("nfs", address))
    }

    async fn file(&self, name: &str) -> FileId {
        let set = SetAttr {
            mode: Some(0o644),
            ..SetAttr::default()
        };
        let cred = Cred::root();
        let name = name.as_bytes();
        let made = self
            .fs
            .create(self.root, name, CreateMode::Unchecked, &set, &cred);
        made.await.expect("a file").file.id
    }

    /// Writes a file whole, and has it on the disks.
    async fn fill(&self, name: &str, bytes: u64) {
        let file = self.file(name).await;
        for at in (0..bytes).step_by(128 << 10) {
            let data = noise(at, 128 << 10);
            self.fs
                .write(file, at, data, Stability::Unstable, &Cred::root())
                .await
                .expect("written");
        }
        self.pool.sync().await.expect("synced");
    }

    /// Runs `tasks` of one client that each write `count` times, of `len` bytes, somewhere in a file of their own.
    async fn write(&self, client: &str, tasks: u64, count: u64, len: usize, stability: Stability) {
        for task in self.writers(client, tasks, count, len, stability).await {
            task.await;
        }
    }

    async fn writers(
        &self,
        client: &str,
        tasks: u64,
        count: u64,
        len: usize,
        stability: Stability,
    ) -> Vec<JoinHandle<()>> {
        let mut running = Vec::new();
        for task in 0..tasks {
            let file = self.file(&format!("{client}-{task}")).await;
            let fs = self.of(client);
            running.push(self.handle.spawn("writer", async move {
                for round in 0..count {
                    let at = scattered(task, round) % 64 * len as u64;
                    let data = noise(round, len);
                    fs.write(file, at, data, stability, &Cred::root())
                        .await
                        .expect("written");
                }
            }));
        }
        running
    }
}

fn scattered(task: u64, round: u64) -> u64 {
    // SplitMix64: without the second step the numbers are spread evenly, as those of no client are.
    let mixed = (task << 32 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> IoBuf {
    let word = |at: u64| scattered(seed, at).to_le_bytes();
    let words = (0..len as u64 / 4).flat_map(|at| word(at)[..4].to_vec());
    IoBuf::copy_from(&words.collect::<Vec<u8>>())
}

fn named(explanation: &Explanation, cause: Cause, word: &str) {
    let found = explanation.findings.first().map(|finding| finding.cause);
    assert_eq!(found, Some(cause), "{explanation:#?}");
    let sentence = &explanation.sentence;
    assert!(sentence.contains(word), "{sentence}");
}

#[test]
fn a_slow_disk() {
    let machine = Planted::new(false);
    machine.world.set_faults(DATA[0], takes(4));
    machine.world.set_faults(DATA[1], takes(120));
    let explained = machine.explained(
        ANN,
        async |_| (),
        async |load| {
            load.write(ANN, 2, 30, 4096, Stability::FileSync).await;
        },
    );
    named(&explained, Cause::SlowDisk, "/d/b");
}

#[test]
fn synchronous_writes_without_a_log_device() {
    let machine = Planted::new(false);
    machine.all_take(8);
    let explained = machine.explained(
        ANN,
        async |_| (),
        async |load| {
            load.write(ANN, 2, 50, 4096, Stability::FileSync).await;
        },
    );
    named(&explained, Cause::SyncWithoutLog, "zpool add tank log");
}

#[test]
fn a_log_device_that_is_gone() {
    let machine = Planted::new(true);
    machine.all_take(8);
    let explained = machine.explained(
        ANN,
        async |load| {
            load.write(ANN, 1, 3, 4096, Stability::FileSync).await;
            machine.world.vanish(LOG);
            load.write(ANN, 1, 3, 4096, Stability::FileSync).await;
        },
        async |load| load.write(ANN, 2, 20, 4096, Stability::FileSync).await,
    );
    named(&explained, Cause::LogGone, "zpool status tank");
}

#[test]
fn a_full_pool() {
    let machine = Planted::new(false);
    let explained = machine.explained(
        ANN,
        async |load| {
            load.fill("large", 70 * MIB).await;
            machine.all_take(8);
        },
        async |load| load.write(ANN, 2, 30, 4096, Stability::FileSync).await,
    );
    named(&explained, Cause::FullPool, "% full");
}

#[test]
fn writers_that_are_faster_than_the_disks() {
    let mut machine = Planted::new(false);
    machine.tuning.txg.dirty_bytes_max = 8 * MIB;
    machine.tuning.txg.dirty_bytes_sync = 4 * MIB;
    machine.all_take(20);
    let explained = machine.explained(
        ANN,
        async |_| (),
        async |load| {
            load.write(ANN, 4, 200, 128 << 10, Stability::Unstable)
                .await;
        },
    );
    named(&explained, Cause::TxgThrottle, "held up");
}

#[test]
fn a_greedy_client() {
    let machine = Planted::new(false);
    machine.all_take(8);
    let explained = machine.explained(
        ANN,
        async |_| (),
        async |load| {
            let mut both = load
                .writers(EVE, 24, 20, 32 << 10, Stability::FileSync)
                .await;
            both.extend(load.writers(ANN, 1, 10, 4096, Stability::FileSync).await);
            for task in both {
                task.await;
            }
        },
    );
    named(&explained, Cause::GreedyClient, EVE);
}

#[test]
fn a_scrub() {
    let machine = Planted::new(false);
    let explained = machine.explained(
        ANN,
        async |load| {
            load.fill("large", 48 * MIB).await;
            machine.all_take(20);
            load.pool.start_scrub().await.expect("begun");
        },
        async |load| load.write(ANN, 1, 20, 16 << 10, Stability::FileSync).await,
    );
    named(&explained, Cause::Scrub, "zpool scrub -p tank");
}
