//! The statistics of a pool: the cache, the logs, and where the time of requests went.
//!
//! Every wait in the engine has a name. A request's future is wrapped by one that looks at that name whenever the request
//! waits, and adds the time until it goes on to the phase the name belongs to. A request that never waits costs a count.
//!
//! Does not know how any of it is shown.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use arc::{CacheDeviceStats, CacheStats, L2Stats, L2Tuning};
use dmu::TxgCounters;
use dsl::Traffic;
use runtime::{Handle, Instant};
use zil::ZilStats;

/// Clients told apart in one dataset; the requests of more are counted together.
const CLIENTS_MAX: usize = 256;

/// The client that made a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// Commands and mounts of this machine.
    Local,
    /// A host, and the protocol by which it comes.
    Address(&'static str, IpAddr),
    /// A protocol that does not say whose requests it carries.
    Protocol(&'static str),
    /// Clients beyond those told apart.
    Others,
}

impl Client {
    /// Returns the protocol, as commands and metrics name it.
    #[must_use]
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Address(protocol, _) | Self::Protocol(protocol) => protocol,
            Self::Others => "others",
        }
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Address(_, address) => write!(f, "{address}"),
            Self::Protocol(name) => f.write_str(name),
            Self::Others => f.write_str("others"),
        }
    }
}

/// What a request can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// A place in the queue of a device.
    Queue,
    /// A block that another request is reading into the cache.
    Cache,
    /// The intent log: its blocks written and flushed.
    Log,
    /// A device to make durable what it took.
    Flush,
    /// Dirty data to fall below its limit: the write throttle.
    Throttle,
    /// A txg to reach the devices.
    Txg,
    /// A device, reading or writing.
    Device,
    /// A lock that another request holds.
    Lock,
    /// Compression, checksums and the like on other cores.
    Compute,
    /// Anything else.
    Other,
}

/// All phases, in the order of [`RequestTimes::waited_ns`].
pub const PHASES: [Phase; 10] = [
    Phase::Queue,
    Phase::Cache,
    Phase::Log,
    Phase::Flush,
    Phase::Throttle,
    Phase::Txg,
    Phase::Device,
    Phase::Lock,
    Phase::Compute,
    Phase::Other,
];

impl Phase {
    /// Returns its name as commands and metrics show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Cache => "cache",
            Self::Log => "log",
            Self::Flush => "flush",
            Self::Throttle => "throttle",
            Self::Txg => "txg",
            Self::Device => "device",
            Self::Lock => "lock",
            Self::Compute => "compute",
            Self::Other => "other",
        }
    }

    /// The phase that a wait of this name belongs to.
    fn of(wait: &str) -> Self {
        match wait {
            "a place in a device queue" => Self::Queue,
            "a block another task is reading" => Self::Cache,
            "records to reach the intent log" => Self::Log,
            "disk flush" | "another flush of this vdev" => Self::Flush,
            "room for dirty data" | "sleep" => Self::Throttle,
            "a transaction group to sync"
            | "the syncing txg"
            | "transactions of the quiescing txg" => Self::Txg,
            "disk read" | "disk write" | "disk discard" => Self::Device,
            "a range of bytes"
            | "another operation on the same object"
            | "the names of datasets"
            | "renames between directories"
            | "attribute layouts"
            | "the lock" => Self::Lock,
            "compute job" => Self::Compute,
            _ => Self::Other,
        }
    }
}

/// Buckets of the time that requests waited: bucket i counts from 2^i to 2^(i+1) microseconds, the last all above.
pub const WAIT_BUCKETS: usize = 24;

/// Requests of one client at one dataset, and where their time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// Requests answered.
    pub requests: u64,
    /// Of those, such as had to wait for anything at all.
    pub waited: u64,
    /// Time waited, by phase, in nanoseconds.
    pub waited_ns: [u64; PHASES.len()],
    /// Requests that had to wait, by how long they did.
    pub latency: [u64; WAIT_BUCKETS],
}

impl RequestTimes {
    /// Returns all time waited, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.waited_ns.iter().sum()
    }

    /// Adds other requests.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.waited += other.waited;
        for (mine, theirs) in self.waited_ns.iter_mut().zip(&other.waited_ns) {
            *mine += theirs;
        }
        for (mine, theirs) in self.latency.iter_mut().zip(&other.latency) {
            *mine += theirs;
        }
    }

    /// Counts a request that waited, by phase.
    fn add_waits(&mut self, waits: &[u64; PHASES.len()]) {
        self.waited += 1;
        for (sum, wait) in self.waited_ns.iter_mut().zip(waits) {
            *sum += wait;
        }
        let microseconds = waits.iter().sum::<u64>() / 1000;
        let bucket = (63 - (microseconds | 1).leading_zeros()) as usize;
        self.latency[bucket.min(WAIT_BUCKETS - 1)] += 1;
    }
}

/// An intent log of an earlier session that was replayed when its dataset was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The dataset's name.
    pub dataset: String,
    /// Records that took effect.
    pub records: u64,
    /// How long that took.
    pub took: Duration,
}

/// Most replays that are kept until they are asked for.
const REPLAYS_MAX: usize = 1024;

/// Replays that were not asked for yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replays(Arc<Mutex<Vec<Replay>>>);

impl Replays {
    /// Remembers what the log of a dataset that was just opened had held, if anything.
    pub(crate) fn note(&self, dataset: &dsl::Dataset) {
        let stats = dataset.log().map(|log| log.stats()).unwrap_or_default();
        let mut replays = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stats.replayed > 0 && replays.len() < REPLAYS_MAX {
            replays.push(Replay {
                dataset: dataset.name(),
                records: stats.replayed,
                took: Duration::from_nanos(stats.replay_ns),
            });
        }
    }

    pub(crate) fn take(&self) -> Vec<Replay> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What an open dataset has seen since it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetStatistics {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u64,
    /// Its intent log.
    pub log: ZilStats,
    /// What was read and written.
    pub traffic: Traffic,
    /// Its requests, by client.
    pub requests: Vec<(Client, RequestTimes)>,
}

/// What a pool counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// The cache.
    pub cache: CacheStats,
    /// All cache devices together.
    pub l2: L2Stats,
    /// Each cache device.
    pub devices: Vec<CacheDeviceStats>,
    /// How cache devices are fed.
    pub l2_tuning: L2Tuning,
    /// Open datasets.
    pub datasets: Vec<DatasetStatistics>,
    /// Bytes changed in memory and not on the devices yet.
    pub dirty_bytes: u64,
    /// Most such bytes before writers wait.
    pub dirty_bytes_max: u64,
    /// The open and the last synced transaction group.
    pub open_txg: u64,
    /// See `open_txg`.
    pub synced_txg: u64,
    /// Transactions, and those that the throttle held up.
    pub transactions: TxgCounters,
}

/// Limits to be changed while a pool is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TuningChange {
    /// Limit of the cache, in bytes.
    pub cache_bytes: Option<usize>,
    /// The cache is to stay below this for now, in bytes, because memory is short; a later higher value lets it grow again.
    pub pressed_bytes: Option<usize>,
    /// How cache devices are fed.
    pub l2: Option<L2Tuning>,
    /// Whether evacuations of vdevs stand still.
    pub removal_paused: Option<bool>,
}

/// Where the time of the requests to one dataset went. Clones count together.
#[derive(Clone, Default)]
pub(crate) struct RequestStatistics(Arc<Mutex<Vec<(Client, RequestTimes)>>>);

impl RequestStatistics {
    fn clients(&self) -> MutexGuard<'_, Vec<(Client, RequestTimes)>> {
        // Only counts are in there.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn by_client(&self) -> Vec<(Client, RequestTimes)> {
        self.clients().clone()
    }

    /// Counts a request that was answered without any wait.
    pub(crate) fn count_immediate(&self, client: Client) {
        self.count(client, None);
    }

    /// Does the work of a request and counts it.
    pub(crate) fn timed<F: Future>(
        &self,
        handle: &Handle,
        client: Client,
        work: F,
    ) -> impl Future<Output = F::Output> {
        // In a box at once: every future around it would hold it twice, as what it was given and as what it waits for.
        let mut work = Box::pin(work);
        async move {
            let mut times = [0_u64; PHASES.len()];
            let mut paused: Option<(Instant, Phase)> = None;
            let mut waited = false;
            let output = poll_fn(|context| {
                if let Some((since, phase)) = paused.take() {
                    times[phase as usize] += nanoseconds(since, handle.now());
                }
                match work.as_mut().poll(context) {
                    Poll::Ready(output) => Poll::Ready(output),
                    Poll::Pending => {
                        waited = true;
                        paused = Some((handle.now(), Phase::of(runtime::noted_wait())));
                        Poll::Pending
                    }
                }
            })
            .await;
            self.count(client, waited.then_some(&times));
            output
        }
    }

    fn count(&self, client: Client, waits: Option<&[u64; PHASES.len()]>) {
        let mut clients = self.clients();
        let at = match clients.iter().position(|(known, _)| *known == client) {
            Some(at) => at,
            None => {
                let client = if clients.len() + 1 < CLIENTS_MAX {
                    client
                } else {
                    Client::Others
                };
                match clients.iter().position(|(known, _)| *known == client) {
                    Some(at) => at,
                    None => {
                        clients.push((client, RequestTimes::default()));
                        clients.len() - 1
                    }
                }
            }
        };
        let times = &mut clients[at].1;
        times.requests += 1;
        if let Some(waits) = waits {
            times.add_waits(waits);
        }
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_to_what_a_request_waited_for() {
        let world = world::World::new(1);
        let ended = world.run(|handle| async move {
            let requests = RequestStatistics::default();
            let sleeper = handle.clone();
            let work = async move {
                sleeper.sleep(Duration::from_millis(5)).await;
                7
            };
            assert_eq!(requests.timed(&handle, Client::Local, work).await, 7);
            let at_once = requests.timed(&handle, Client::Local, async { 8 });
            assert_eq!(at_once.await, 8);
            for last in 0..=255 {
                let client = Client::Address("nfs", IpAddr::from([10, 0, 1, last]));
                requests.timed(&handle, client, async {}).await;
            }
            // A wait with a deadline is for what it is for, not for its deadline.
            let disk = RequestStatistics::default();
            let read = handle.sleep(Duration::from_millis(5));
            let read = runtime::waiting_as("disk read", read);
            let read = runtime::timeout(&handle, Duration::from_secs(30), read);
            disk.timed(&handle, Client::Local, read).await;
            let (_, times) = disk.by_client()[0];
            assert_eq!(times.waited_ns[Phase::Device as usize], times.total_ns());
            let seen = requests.by_client();
            let (client, times) = seen[0];
            assert_eq!(
                (client, times.requests, times.waited),
                (Client::Local, 2, 1)
            );
            assert_eq!(times.waited_ns[Phase::Throttle as usize], times.total_ns());
            assert!(times.total_ns() >= 5_000_000);
            // 4,096 to 8,191 microseconds.
            assert_eq!(times.latency[12], 1);
            assert_eq!(times.latency.iter().sum::<u64>(), 1);
            assert_eq!((client.protocol(), seen[1].0.protocol()), ("local", "nfs"));
            assert_eq!(seen.len(), CLIENTS_MAX);
            let all: u64 = seen.iter().map(|(_, times)| times.requests).sum();
            assert_eq!(all, 258);
        });
        assert!(matches!(ended, world::Ended::Done(())));
    }
}
