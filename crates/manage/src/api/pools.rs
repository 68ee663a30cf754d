//! Calls about pools, and the program's version.

use axum::Json;
use axum::extract::{Path, State};
use engine::{AllocationBias, PoolStatus, ScanStatus, VdevStatus};
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Problem, Shared};

/// The program.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    /// Its name.
    name: &'static str,
    /// Its version.
    version: &'static str,
    /// The version of this API.
    api: u32,
}

/// A pool, for a list.
#[derive(Serialize, ToSchema)]
pub(super) struct PoolEntry {
    /// Name.
    name: String,
    /// Unique number, as text: it has more digits than a number of JavaScript.
    guid: Option<String>,
    /// As `zpool list` says it; `CLOSED` when it is known and not open, `UNKNOWN` when it did not answer.
    health: String,
    /// What is the matter, when there are no numbers.
    note: Option<String>,
    /// Numbers, when it answered.
    numbers: Option<PoolNumbers>,
}

/// Space and traffic of a pool.
#[derive(Serialize, ToSchema)]
pub(super) struct PoolNumbers {
    /// Bytes.
    size_bytes: u64,
    /// Bytes.
    allocated_bytes: u64,
    /// Fragmentation of the free space.
    fragmentation_percent: Option<u64>,
    /// Known damaged files and objects.
    data_errors: u64,
    /// Imported read-only.
    readonly: bool,
    /// Nanoseconds since the pool was opened: what the totals cover.
    open_nanoseconds: u64,
    /// Totals.
    io: IoView,
}

/// Operations and bytes since the pool was opened.
#[derive(Serialize, ToSchema)]
pub(super) struct IoView {
    read_ops: u64,
    write_ops: u64,
    read_bytes: u64,
    write_bytes: u64,
}

/// A pool with its vdevs.
#[derive(Serialize, ToSchema)]
pub(super) struct PoolView {
    #[serde(flatten)]
    pool: PoolEntry,
    /// Last or running scrub or resilver.
    scan: Option<ScanView>,
    /// The tree of vdevs.
    root: VdevView,
    /// Cache devices.
    caches: Vec<VdevView>,
    /// Hot spares.
    spares: Vec<VdevView>,
}

/// A scrub or resilver.
#[derive(Serialize, ToSchema)]
pub(super) struct ScanView {
    /// Resilver rather than scrub.
    resilver: bool,
    /// Under way.
    running: bool,
    /// It was cancelled.
    cancelled: bool,
    /// It is paused.
    paused: bool,
    /// Seconds since 1970.
    start_time: u64,
    /// Seconds since 1970; 0 while it runs.
    end_time: u64,
    /// Bytes to look at.
    to_examine_bytes: u64,
    /// Bytes done.
    issued_bytes: u64,
    /// Bytes repaired or resilvered.
    processed_bytes: u64,
    /// Blocks that could not be repaired.
    errors: u64,
}

/// A vdev.
#[derive(Serialize, ToSchema)]
#[schema(no_recursion)]
#[allow(
    clippy::use_self,
    reason = "the schema of a child is named by this word"
)]
pub(super) struct VdevView {
    /// As `zpool status` prints it.
    name: String,
    /// `disk`, `file`, `mirror`, ...
    kind: String,
    /// Unique number, as text.
    guid: String,
    /// Path of a leaf.
    path: Option<String>,
    /// State.
    health: &'static str,
    /// What follows in the line of `zpool status`.
    note: Option<String>,
    /// `log`, `special` or `dedup`, when it is for these blocks only.
    class: Option<&'static str>,
    read_errors: u64,
    write_errors: u64,
    checksum_errors: u64,
    /// Operations that took more than 30 seconds.
    slow_ios: u64,
    /// Bytes; of top-level vdevs and the root.
    size_bytes: u64,
    /// Bytes; of top-level vdevs and the root.
    allocated_bytes: u64,
    /// Being brought up to date.
    resilvering: bool,
    /// Being evacuated.
    removing: bool,
    io: IoView,
    children: Vec<VdevView>,
}

impl From<&VdevStatus> for VdevView {
    fn from(vdev: &VdevStatus) -> Self {
        let class = match vdev.bias {
            _ if vdev.is_log => Some("log"),
            AllocationBias::Special => Some("special"),
            AllocationBias::Dedup => Some("dedup"),
            _ => None,
        };
        Self {
            name: vdev.name.clone(),
            kind: vdev.kind.clone(),
            guid: vdev.guid.to_string(),
            path: vdev
                .path
                .as_ref()
                .map(|path| path.to_string_lossy().into_owned()),
            health: vdev.health.as_str(),
            note: vdev.note.clone(),
            class,
            read_errors: vdev.read_errors,
            write_errors: vdev.write_errors,
            checksum_errors: vdev.checksum_errors,
            slow_ios: vdev.slow_ios,
            size_bytes: vdev.size_bytes,
            allocated_bytes: vdev.allocated_bytes,
            resilvering: vdev.resilvering,
            removing: vdev.removing,
            io: IoView::from(vdev),
            children: vdev.children.iter().map(Self::from).collect(),
        }
    }
}

impl From<&VdevStatus> for IoView {
    fn from(vdev: &VdevStatus) -> Self {
        Self {
            read_ops: vdev.io.read_ops,
            write_ops: vdev.io.write_ops,
            read_bytes: vdev.io.read_bytes,
            write_bytes: vdev.io.write_bytes,
        }
    }
}

impl From<&ScanStatus> for ScanView {
    fn from(scan: &ScanStatus) -> Self {
        Self {
            resilver: scan.resilver,
            running: scan.running,
            cancelled: scan.cancelled,
            paused: scan.paused_since != 0,
            start_time: scan.start_time,
            end_time: scan.end_time,
            to_examine_bytes: scan.to_examine_bytes,
            issued_bytes: scan.issued_bytes,
            processed_bytes: scan.processed_bytes,
            errors: scan.errors,
        }
    }
}

impl From<&PoolStatus> for PoolEntry {
    fn from(status: &PoolStatus) -> Self {
        Self {
            name: status.name.clone(),
            guid: Some(status.guid.to_string()),
            health: status.health.as_str().to_owned(),
            note: None,
            numbers: Some(PoolNumbers {
                size_bytes: status.root.size_bytes,
                allocated_bytes: status.root.allocated_bytes,
                fragmentation_percent: status.root.fragmentation_percent,
                data_errors: status.data_errors,
                readonly: status.readonly,
                open_nanoseconds: status.open_nanoseconds,
                io: IoView::from(&status.root),
            }),
        }
    }
}

/// The program's version.
#[utoipa::path(get, path = "/api/v1/version", responses((status = 200, body = Version)))]
pub(super) async fn version() -> Json<Version> {
    Json(Version {
        name: "sanbox",
        version: env!("CARGO_PKG_VERSION"),
        api: 1,
    })
}

/// Lists the pools. One that does not answer holds up no other.
#[utoipa::path(get, path = "/api/v1/pools", responses((status = 200, body = Vec<PoolEntry>)))]
pub(super) async fn list_pools(State(api): Shared) -> Json<Vec<PoolEntry>> {
    let open = api.backend.open_pools();
    let entry = async |pool: &engine::PoolHandle| match api.asking.status(pool).await {
        Some(status) => PoolEntry::from(&status),
        None => PoolEntry {
            name: pool.name().to_owned(),
            guid: Some(pool.guid().to_string()),
            health: "UNKNOWN".to_owned(),
            note: Some("the pool does not answer: one of its disks may hang".to_owned()),
            numbers: None,
        },
    };
    let mut pools = join_all(open.iter().map(entry)).await;
    pools.extend(
        api.backend
            .closed_pools()
            .into_iter()
            .map(|name| PoolEntry {
                note: Some(format!("not open: 'zpool status {name}' says why")),
                name,
                guid: None,
                health: "CLOSED".to_owned(),
                numbers: None,
            }),
    );
    pools.sort_by(|left, right| left.name.cmp(&right.name));
    Json(pools)
}

/// A pool with its vdevs.
#[utoipa::path(get, path = "/api/v1/pools/{name}", params(("name" = String, Path)),
    responses((status = 200, body = PoolView), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn show_pool(
    State(api): Shared,
    Path(name): Path<String>,
) -> Result<Json<PoolView>, Problem> {
    let pool = api.pool(&name)?;
    let status = api.asking.status(&pool).await;
    let status = status.ok_or_else(|| Problem::silent(&name, &[]))?;
    Ok(Json(PoolView {
        pool: PoolEntry::from(&status),
        scan: status.scan.as_ref().map(ScanView::from),
        root: VdevView::from(&status.root),
        caches: status.caches.iter().map(VdevView::from).collect(),
        spares: status.spares.iter().map(VdevView::from).collect(),
    }))
}
