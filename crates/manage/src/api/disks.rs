//! Calls about disks and files that pools can be made of, and what a pool of them would be.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::{AllocationBias, DraidSpec, PoolStatus, TopShape, VdevStatus};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Api, Body, Problem, Shared};
use crate::commands;

/// Disks that a plan may name.
const PLANNED_DISKS_MAX: usize = 1000;
/// Bytes a second that a resilver is reckoned to write: a rotating disk in long runs, and others.
const ROTATING_RATE: u64 = 150_000_000;
const OTHER_RATE: u64 = 450_000_000;
/// Children of a raidz beyond which a resilver takes long and small blocks waste much.
const RAIDZ_WIDTH_ADVISED: usize = 12;
/// Size of a disk from which on a raidz1 is likely to meet an unreadable sector while it is without redundancy.
const RAIDZ1_DISK_BYTES_ADVISED: u64 = 2_000_000_000_000;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A block device.
    Disk,
    /// A file in one of the directories that the appliance was given for such.
    File,
}

/// A block device of the machine, or a file that may be used as one.
#[derive(Clone, Debug)]
pub struct Device {
    /// The path that commands should name it by: one that stays when disks are plugged in elsewhere, if there is one.
    pub path: String,
    /// All paths known of it and of its partitions.
    pub names: Vec<String>,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes.
    pub size_bytes: u64,
    /// As its maker calls it.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Whether it rotates, where that is known.
    pub rotational: Option<bool>,
    /// Bytes of a physical sector.
    pub sector_bytes: u32,
    /// What the machine uses it for, such as `is mounted at /`.
    pub used_by_machine: Option<String>,
}

/// What a device was found to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// Nothing that is known.
    Free,
    /// Something, as `zpool create` says it behind the device's name.
    Held(String),
    /// It cannot be read, with the reason.
    Unreadable(String),
    /// It did not answer in time.
    Unanswered,
}

/// A disk.
#[derive(Serialize, ToSchema)]
pub(super) struct DiskView {
    /// The path that commands name it by.
    path: String,
    /// What it is; none of a member of a pool that is not among the machine's disks.
    kind: Option<DeviceKind>,
    /// Bytes.
    size_bytes: Option<u64>,
    model: Option<String>,
    serial: Option<String>,
    /// Whether it rotates, where that is known.
    rotational: Option<bool>,
    /// Nothing is known to use it: a pool may be made of it.
    free: bool,
    /// Why it is not free, in words that follow its name.
    held: Option<String>,
    /// It did not answer in time: it may hang.
    unanswered: bool,
    /// Its place in a pool that is open.
    member: Option<MemberView>,
}

/// A disk's place in a pool.
#[derive(Clone, Serialize, ToSchema)]
pub(super) struct MemberView {
    /// Name of the pool.
    pool: String,
    /// The top-level vdev it belongs to; itself when it is one.
    vdev: String,
    /// `data`, `special`, `dedup`, `log`, `cache` or `spare`.
    role: &'static str,
    /// Unique number of the device, as text.
    guid: String,
    /// State, as `zpool status` says it.
    health: &'static str,
    /// What follows in the line of `zpool status`.
    note: Option<String>,
    read_errors: u64,
    write_errors: u64,
    checksum_errors: u64,
    /// Operations that took more than 30 seconds.
    slow_ios: u64,
    /// Being brought up to date.
    resilvering: bool,
    #[serde(skip)]
    path: String,
}

/// The disks of the machine.
#[derive(Serialize, ToSchema)]
pub(super) struct DiskList {
    disks: Vec<DiskView>,
    /// Pools that did not answer: which disks are theirs is not known.
    unanswered: Vec<String>,
}

impl MemberView {
    fn of(pool: &str, top: &VdevStatus, role: &'static str, leaf: &VdevStatus) -> Self {
        Self {
            pool: pool.to_owned(),
            vdev: top.name.clone(),
            role,
            guid: leaf.guid.to_string(),
            health: leaf.health.as_str(),
            note: leaf.note.clone(),
            read_errors: leaf.read_errors,
            write_errors: leaf.write_errors,
            checksum_errors: leaf.checksum_errors,
            slow_ios: leaf.slow_ios,
            resilvering: leaf.resilvering,
            path: leaf
                .path
                .as_deref()
                .unwrap_or(FilePath::new(""))
                .to_string_lossy()
                .into_owned(),
        }
    }
}

/// The members of a pool that have paths.
fn members(status: &PoolStatus) -> Vec<MemberView> {
    fn leaves<'a>(vdev: &'a VdevStatus, found: &mut Vec<&'a VdevStatus>) {
        if vdev.children.is_empty() {
            found.push(vdev);
        }
        vdev.children.iter().for_each(|child| leaves(child, found));
    }
    let role = |top: &VdevStatus| match top.bias {
        _ if top.is_log => "log",
        AllocationBias::Special => "special",
        AllocationBias::Dedup => "dedup",
        _ => "data",
    };
    let tops = status.root.children.iter().map(|top| (top, role(top)));
    let caches = status.caches.iter().map(|top| (top, "cache"));
    let spares = status.spares.iter().map(|top| (top, "spare"));
    let mut all = Vec::new();
    for (top, role) in tops.chain(caches).chain(spares) {
        let mut found = Vec::new();
        leaves(top, &mut found);
        let with_path = found.into_iter().filter(|leaf| leaf.path.is_some());
        all.extend(with_path.map(|leaf| MemberView::of(&status.name, top, role, leaf)));
    }
    all
}

/// Lists the disks of the machine and the files that serve as such, with the pools they belong to. One that hangs is named as such and
/// holds up no other.
#[utoipa::path(get, path = "/api/v1/disks", responses((status = 200, body = DiskList), (status = 503, body = Problem)))]
pub(super) async fn list_disks(State(api): Shared) -> Result<Json<DiskList>, Problem> {
    let devices = api.devices().await?;
    let mut unanswered = Vec::new();
    let mut members_by_path: BTreeMap<String, MemberView> = BTreeMap::new();
    let pools = api.backend.open_pools();
    let statuses = join_all(pools.iter().map(|pool| api.asking.status(pool)));
    for (pool, status) in pools.iter().zip(statuses.await) {
        let Some(status) = status else {
            unanswered.push(pool.name().to_owned());
            continue;
        };
        for member in members(&status) {
            // A spare at work is there twice; what it does counts more than that it waits.
            if member.role != "spare" || !members_by_path.contains_key(&member.path) {
                members_by_path.insert(member.path.clone(), member);
            }
        }
    }
    let mut disks = Vec::new();
    let mut unknown = Vec::new();
    for device in devices {
        let path = device
            .names
            .iter()
            .find(|name| members_by_path.contains_key(*name));
        let member = path.cloned().and_then(|path| members_by_path.remove(&path));
        if member.is_none() && device.used_by_machine.is_none() {
            unknown.push(device.path.clone());
        }
        disks.push(view(device, member));
    }
    let contents = api.backend.contents(unknown.clone()).await;
    for (path, content) in unknown.iter().zip(contents) {
        let Some(disk) = disks.iter_mut().find(|disk| disk.path == *path) else {
            continue;
        };
        match content {
            DeviceContent::Free => disk.free = true,
            DeviceContent::Held(what) => disk.held = Some(what),
            DeviceContent::Unreadable(why) => disk.held = Some(format!("cannot be read: {why}")),
            DeviceContent::Unanswered => disk.unanswered = true,
        }
    }
    // Members that are not among the machine's disks: files elsewhere, and devices that are gone.
    for member in members_by_path.into_values() {
        disks.push(DiskView {
            path: member.path.clone(),
            kind: None,
            size_bytes: None,
            model: None,
            serial: None,
            rotational: None,
            free: false,
            held: None,
            unanswered: false,
            member: Some(member),
        });
    }
    Ok(Json(DiskList { disks, unanswered }))
}

fn view(device: Device, member: Option<MemberView>) -> DiskView {
    DiskView {
        path: device.path,
        kind: Some(device.kind),
        size_bytes: Some(device.size_bytes),
        model: device.model,
        serial: device.serial,
        rotational: device.rotational,
        free: false,
        held: device.used_by_machine,
        unanswered: false,
        member,
    }
}

/// What a vdev is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    Data,
    Special,
    Dedup,
    Log,
    Cache,
    Spare,
}

impl Role {
    /// The order and the words of `zpool create`.
    const ALL: [(Self, &'static str); 6] = [
        (Self::Data, ""),
        (Self::Special, "special"),
        (Self::Dedup, "dedup"),
        (Self::Log, "log"),
        (Self::Cache, "cache"),
        (Self::Spare, "spare"),
    ];

    fn bias(self) -> AllocationBias {
        match self {
            Self::Special => AllocationBias::Special,
            Self::Dedup => AllocationBias::Dedup,
            Self::Log => AllocationBias::Log,
            Self::Data | Self::Cache | Self::Spare => AllocationBias::None,
        }
    }
}

/// How a vdev lays blocks out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum VdevLayout {
    /// Each disk is a vdev of its own, without redundancy.
    Single,
    Mirror,
    Raidz1,
    Raidz2,
    Raidz3,
    Draid1,
    Draid2,
    Draid3,
}

impl VdevLayout {
    fn parity(self) -> u8 {
        match self {
            Self::Single | Self::Mirror => 0,
            Self::Raidz1 | Self::Draid1 => 1,
            Self::Raidz2 | Self::Draid2 => 2,
            Self::Raidz3 | Self::Draid3 => 3,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Mirror => "mirror",
            _ if self.is_draid() => "draid",
            _ => "raidz",
        }
    }

    fn is_draid(self) -> bool {
        matches!(self, Self::Draid1 | Self::Draid2 | Self::Draid3)
    }
}

/// A vdev of a pool to be.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VdevRequest {
    role: Role,
    layout: VdevLayout,
    /// Paths, as the list of disks gives them.
    disks: Vec<String>,
    /// Disks with data in each stripe of a draid (8, or fewer where there are fewer disks).
    data: Option<u32>,
    /// Distributed spares of a draid (0).
    spares: Option<u32>,
}

/// A pool to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanRequest {
    /// Name of the pool.
    name: String,
    /// Vdevs, in the order they will have.
    vdevs: Vec<VdevRequest>,
}

/// What a pool would be.
#[derive(Serialize, ToSchema)]
pub(super) struct PlanView {
    /// The words behind `zpool` that make it.
    arguments: Vec<String>,
    /// `-f` is among them: without it, `zpool create` refuses vdevs of different redundancy, and disks of different sizes or kinds.
    forced: bool,
    /// The same as a line for a shell.
    command: String,
    /// SIZE of `zpool list`: parity included.
    size_bytes: u64,
    /// What its datasets can hold together: USED and AVAIL of `zfs list`.
    usable_bytes: u64,
    /// Kept back so that a full pool can still be worked on.
    slop_bytes: u64,
    /// Bytes of all disks that hold data, metadata or tables.
    raw_bytes: u64,
    vdevs: Vec<PlannedVdev>,
    warnings: Vec<PlanWarning>,
}

/// A vdev of the plan, in the order asked for.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(super) struct PlannedVdev {
    /// Bytes that it adds to the pool's usable ones, before what the pool keeps back; of a log what it offers.
    usable_bytes: u64,
    /// Disks of it that may fail at a time without loss.
    may_fail: u32,
    /// Bytes of larger disks that stay unused.
    unused_bytes: u64,
    /// log2 of the sector size.
    ashift: u8,
    /// Seconds until the redundancy is whole again after a disk of the full vdev was replaced, at 150 MB/s of a rotating disk and
    /// 450 MB/s of another; of a draid with spares, until a distributed spare has taken over.
    rebuild_seconds: u64,
}

/// Something to think about before the pool is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct PlanWarning {
    code: WarningCode,
    /// The vdev it is about.
    vdev: Option<usize>,
}

/// Which warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WarningCode {
    /// A disk that fails takes the pool with it.
    NoRedundancy,
    /// Less redundant than the vdevs with data, and as necessary.
    LessRedundant,
    /// Vdevs with data of different kinds.
    MixedLayouts,
    /// Disks and files in one pool.
    MixedKinds,
    /// Disks of different sizes: what the larger ones have more is not used.
    MixedSizes,
    /// More disks in one raidz than advised.
    WideRaidz,
    /// Large rotating disks with a single parity.
    LargeRaidz1,
    /// Without a mirror, a log device that fails together with the machine loses the last seconds of synchronous writes.
    SingleLog,
}

/// Says what a pool would be: its size, what may fail, what to think about, and the command that makes it. Nothing is touched.
#[utoipa::path(post, path = "/api/v1/pools/plan", request_body = PlanRequest,
    responses((status = 200, body = PlanView), (status = 422, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn plan_pool(
    State(api): Shared,
    Body(request): Body<PlanRequest>,
) -> Result<Json<PlanView>, Problem> {
    let count: usize = request.vdevs.iter().map(|vdev| vdev.disks.len()).sum();
    if count > PLANNED_DISKS_MAX {
        let detail = format!("a plan has {PLANNED_DISKS_MAX} disks at most");
        return Err(unfit(detail));
    }
    let known = api.devices().await?;
    Ok(Json(plan(&request, &known)?))
}

impl Api {
    async fn devices(&self) -> Result<Vec<Device>, Problem> {
        let devices = self.backend.devices().await;
        devices.map_err(|why| Problem::new(StatusCode::SERVICE_UNAVAILABLE, why))
    }
}

fn unfit(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

fn plan(request: &PlanRequest, known: &[Device]) -> Result<PlanView, Problem> {
    let mut shapes = Vec::new();
    let mut vdevs = Vec::new();
    for vdev in &request.vdevs {
        let disks = disks_of(vdev, known)?;
        let (planned, made) = plan_vdev(vdev, &disks)?;
        vdevs.push(planned);
        shapes.extend(made.into_iter().map(|shape| (shape, vdev.role.bias())));
    }
    let capacity = match shapes.is_empty() {
        true => engine::Capacity::default(),
        false => engine::capacity(&shapes).map_err(|error| unfit(error.to_string()))?,
    };
    let forced = needs_force(&request.vdevs, &vdevs, known);
    let mut arguments = vec!["create".to_owned()];
    arguments.extend(forced.then(|| "-f".to_owned()));
    arguments.push(request.name.clone());
    for (role, word) in Role::ALL {
        let mut of_role = request.vdevs.iter().filter(|vdev| vdev.role == role);
        let mut next = of_role.next();
        if next.is_some() && !word.is_empty() {
            arguments.push(word.to_owned());
        }
        while let Some(vdev) = next {
            arguments.extend(word_of(vdev));
            arguments.extend(vdev.disks.iter().cloned());
            next = of_role.next();
        }
    }
    let all = request.vdevs.iter().flat_map(|vdev| &vdev.disks);
    let raw = all.filter_map(|path| known.iter().find(|device| device.path == *path));
    Ok(PlanView {
        command: commands::line("zpool", &arguments),
        arguments,
        forced,
        size_bytes: capacity.size_bytes,
        usable_bytes: capacity.usable_bytes,
        slop_bytes: capacity.slop_bytes,
        raw_bytes: raw.map(|device| device.size_bytes).sum(),
        warnings: warnings(&request.vdevs, &vdevs, known),
        vdevs,
    })
}

fn disks_of<'a>(vdev: &VdevRequest, known: &'a [Device]) -> Result<Vec<&'a Device>, Problem> {
    let find = |path: &String| {
        let mut devices = known.iter();
        devices
            .find(|device| device.path == *path)
            .ok_or_else(|| unfit(format!("'{path}' is not among the disks")))
    };
    let disks: Vec<_> = vdev.disks.iter().map(find).collect::<Result<_, _>>()?;
    let least = match vdev.layout {
        VdevLayout::Single => 1,
        VdevLayout::Mirror => 2,
        layout => usize::from(layout.parity()) + 1,
    };
    if disks.len() < least {
        let detail = format!("this layout needs {least} disks at least");
        return Err(unfit(detail));
    }
    Ok(disks)
}

/// The draid that a request means.
fn draid_of(vdev: &VdevRequest) -> Option<DraidSpec> {
    // OpenZFS: cmd/zpool/zpool_vdev.c, draid_config_by_type: 8 unless there are fewer children.
    const DATA_DEFAULT: u32 = 8;
    let children = u32::try_from(vdev.disks.len()).unwrap_or(u32::MAX);
    let spares = vdev.spares.unwrap_or(0);
    let rest = children
        .saturating_sub(spares)
        .saturating_sub(u32::from(vdev.layout.parity()));
    vdev.layout.is_draid().then(|| DraidSpec {
        data: vdev.data.unwrap_or(rest.min(DATA_DEFAULT)),
        spares,
    })
}

/// The word before the disks of a vdev.
fn word_of(vdev: &VdevRequest) -> Option<String> {
    let parity = vdev.layout.parity();
    Some(match (vdev.layout, draid_of(vdev)) {
        (VdevLayout::Single, _) => return None,
        (VdevLayout::Mirror, _) => "mirror".to_owned(),
        (_, Some(draid)) => {
            let (data, children, spares) = (draid.data, vdev.disks.len(), draid.spares);
            format!("draid{parity}:{data}d:{children}c:{spares}s")
        }
        _ => format!("raidz{parity}"),
    })
}

fn plan_vdev(
    vdev: &VdevRequest,
    disks: &[&Device],
) -> Result<(PlannedVdev, Vec<TopShape>), Problem> {
    let sizes: Vec<u64> = disks.iter().map(|disk| disk.size_bytes).collect();
    let least = sizes.iter().copied().min().unwrap_or(0);
    let shifts = disks
        .iter()
        .map(|disk| engine::ashift_for(disk.sector_bytes));
    let ashift = shifts.max().unwrap_or(0);
    let mut planned = PlannedVdev {
        ashift,
        ..PlannedVdev::default()
    };
    if matches!(vdev.role, Role::Cache | Role::Spare) {
        return match vdev.layout {
            VdevLayout::Single => Ok((planned, Vec::new())),
            _ => Err(unfit("cache devices and spares are single disks")),
        };
    }
    if vdev.role != Role::Data && vdev.layout.is_draid() {
        return Err(unfit("a draid is for data"));
    }
    if vdev.role == Role::Log && vdev.layout.parity() > 0 {
        return Err(unfit("a log device is a single disk or a mirror"));
    }
    let shape = |device_bytes| TopShape {
        device_bytes,
        parity: vdev.layout.parity(),
        draid: draid_of(vdev),
        ashift,
    };
    let shapes: Vec<TopShape> = match vdev.layout {
        VdevLayout::Single => sizes.iter().map(|size| shape(vec![*size])).collect(),
        _ => vec![shape(sizes.clone())],
    };
    for shape in &shapes {
        let space = shape.new_space().map_err(|error| unfit(error.to_string()));
        planned.usable_bytes += space?.deflated_bytes;
    }
    planned.may_fail = match vdev.layout {
        VdevLayout::Single => 0,
        VdevLayout::Mirror => u32::try_from(disks.len() - 1).unwrap_or(u32::MAX),
        layout => u32::from(layout.parity()),
    };
    if vdev.layout != VdevLayout::Single {
        planned.unused_bytes = sizes.iter().map(|size| size - least).sum();
        planned.rebuild_seconds = rebuild_seconds(vdev, disks, least);
    }
    Ok((planned, shapes))
}

fn rebuild_seconds(vdev: &VdevRequest, disks: &[&Device], bytes: u64) -> u64 {
    let rotates = disks.iter().any(|disk| disk.rotational == Some(true));
    let rate = if rotates { ROTATING_RATE } else { OTHER_RATE };
    let whole = bytes / rate;
    match draid_of(vdev) {
        // The others read a stripe for each block of the lost disk and write it, all of them at once.
        Some(draid) if draid.spares > 0 => {
            let width = u64::from(draid.data) + u64::from(vdev.layout.parity());
            let others = disks.len().saturating_sub(1).max(1) as u64;
            (whole * width).div_ceil(others)
        }
        _ => whole,
    }
}

/// Whether `zpool create` refuses the vdevs without `-f`: they can lose different numbers of disks, or one has disks that differ in size
/// or kind. What a disk holds is no matter of the plan.
// OpenZFS: cmd/zpool/zpool_vdev.c, get_replication (what is compared; logs are not)
fn needs_force(requests: &[VdevRequest], planned: &[PlannedVdev], known: &[Device]) -> bool {
    // ZPOOL_FUZZ
    const SIZES_DIFFER_BYTES: u64 = 16 << 20;
    let compared = |role| matches!(role, Role::Data | Role::Special | Role::Dedup);
    let pairs = requests.iter().zip(planned);
    let mut levels: Vec<_> = pairs
        .filter(|(vdev, _)| compared(vdev.role))
        .map(|(vdev, planned)| {
            let ways = match vdev.layout {
                VdevLayout::Single => 1,
                _ => vdev.disks.len(),
            };
            (vdev.layout.kind(), planned.may_fail, ways)
        })
        .collect();
    levels.dedup_by(|one, other| {
        let alike = one.0 != other.0 && one.1 == other.1 && one.1 > 0;
        one == other || alike
    });
    let uneven = |vdev: &VdevRequest| {
        let disks: Vec<&Device> = vdev
            .disks
            .iter()
            .filter_map(|path| known.iter().find(|device| device.path == *path))
            .collect();
        vdev.layout != VdevLayout::Single
            && disks.windows(2).any(|pair| {
                pair[0].kind != pair[1].kind
                    || pair[0].size_bytes.abs_diff(pair[1].size_bytes) > SIZES_DIFFER_BYTES
            })
    };
    let mut requests = requests.iter();
    levels.len() > 1 || requests.any(|vdev| compared(vdev.role) && uneven(vdev))
}

fn warnings(
    requests: &[VdevRequest],
    planned: &[PlannedVdev],
    known: &[Device],
) -> Vec<PlanWarning> {
    let mut found = Vec::new();
    let mut warn = |code, vdev| found.push(PlanWarning { code, vdev });
    let pairs = || requests.iter().zip(planned).enumerate();
    let data = || pairs().filter(|(_, (vdev, _))| vdev.role == Role::Data);
    let redundancy = data().map(|(_, (_, planned))| planned.may_fail).min();
    let layouts = data().map(|(_, (vdev, planned))| (vdev.layout, planned.may_fail));
    let mut layouts: Vec<_> = layouts.collect();
    layouts.dedup();
    if layouts.len() > 1 {
        warn(WarningCode::MixedLayouts, None);
    }
    let all = requests.iter().flat_map(|vdev| &vdev.disks);
    let mut kinds = all.filter_map(|path| known.iter().find(|device| device.path == *path));
    let first = kinds.next().map(|device| device.kind);
    if kinds.any(|device| Some(device.kind) != first) {
        warn(WarningCode::MixedKinds, None);
    }
    for (at, (vdev, planned)) in pairs() {
        let of = |path: &String| known.iter().find(|device| device.path == *path);
        let needed = matches!(vdev.role, Role::Data | Role::Special | Role::Dedup);
        if needed && planned.may_fail == 0 {
            warn(WarningCode::NoRedundancy, Some(at));
        } else if needed && redundancy.is_some_and(|least| planned.may_fail < least) {
            warn(WarningCode::LessRedundant, Some(at));
        }
        let all: u64 = vdev
            .disks
            .iter()
            .filter_map(of)
            .map(|disk| disk.size_bytes)
            .sum();
        // Disks of one size differ by a few sectors from maker to maker.
        if planned.unused_bytes > all / 100 {
            warn(WarningCode::MixedSizes, Some(at));
        }
        let is_raidz = vdev.layout.parity() > 0 && !vdev.layout.is_draid();
        if is_raidz && vdev.disks.len() > RAIDZ_WIDTH_ADVISED {
            warn(WarningCode::WideRaidz, Some(at));
        }
        let large = |disk: &Device| {
            disk.rotational == Some(true) && disk.size_bytes > RAIDZ1_DISK_BYTES_ADVISED
        };
        if vdev.layout == VdevLayout::Raidz1 && vdev.disks.iter().filter_map(of).any(large) {
            warn(WarningCode::LargeRaidz1, Some(at));
        }
        if vdev.role == Role::Log && planned.may_fail == 0 {
            warn(WarningCode::SingleLog, Some(at));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str, size_bytes: u64, rotational: bool) -> Device {
        Device {
            path: path.to_owned(),
            names: vec![path.to_owned()],
            kind: DeviceKind::Disk,
            size_bytes,
            model: None,
            serial: None,
            rotational: Some(rotational),
            sector_bytes: 4096,
            used_by_machine: None,
        }
    }

    fn vdev(role: Role, layout: VdevLayout, disks: &str) -> VdevRequest {
        VdevRequest {
            role,
            layout,
            disks: disks.chars().map(String::from).collect(),
            data: None,
            spares: None,
        }
    }

    fn planned(vdevs: Vec<VdevRequest>) -> Result<PlanView, Problem> {
        let known: Vec<Device> = "abcdefgh"
            .chars()
            .map(|name| device(&name.to_string(), 4_000_787_030_016, true))
            .chain(
                "xyz"
                    .chars()
                    .map(|n| device(&n.to_string(), 1 << 39, false)),
            )
            .collect();
        let name = "tank".to_owned();
        plan(&PlanRequest { name, vdevs }, &known)
    }

    #[test]
    fn the_command_has_every_vdev_behind_the_word_of_its_role() {
        let plan = planned(vec![
            vdev(Role::Spare, VdevLayout::Single, "h"),
            vdev(Role::Data, VdevLayout::Mirror, "ab"),
            vdev(Role::Log, VdevLayout::Single, "z"),
            vdev(Role::Data, VdevLayout::Mirror, "cd"),
            vdev(Role::Special, VdevLayout::Mirror, "xy"),
        ]);
        let plan = plan.expect("a plan");
        let line = "zpool create tank mirror a b mirror c d special mirror x y log z spare h";
        assert_eq!(plan.command, line);
        let codes: Vec<_> = plan.warnings.iter().map(|w| (w.code, w.vdev)).collect();
        assert_eq!(codes, [(WarningCode::SingleLog, Some(2))]);
        assert_eq!(plan.vdevs[1].may_fail, 1);
        assert_eq!(plan.raw_bytes, 5 * 4_000_787_030_016 + 3 * (1 << 39));
    }

    #[test]
    fn a_draid_names_its_numbers_and_is_rebuilt_by_all_disks() {
        let mut draid = vdev(Role::Data, VdevLayout::Draid1, "abcdefgh");
        (draid.data, draid.spares) = (Some(3), Some(1));
        let spread = planned(vec![draid]).expect("a plan");
        assert_eq!(spread.arguments[2], "draid1:3d:8c:1s");
        let raidz = planned(vec![vdev(Role::Data, VdevLayout::Raidz1, "abcdefgh")]);
        let raidz = raidz.expect("a plan");
        assert!(spread.vdevs[0].rebuild_seconds < raidz.vdevs[0].rebuild_seconds);
        let codes: Vec<_> = raidz.warnings.iter().map(|w| w.code).collect();
        assert_eq!(codes, [WarningCode::LargeRaidz1]);
    }

    #[test]
    fn what_to_think_about_is_said() {
        for (vdevs, expected) in [
            (
                vec![vdev(Role::Data, VdevLayout::Single, "ab")],
                vec![WarningCode::NoRedundancy],
            ),
            (
                vec![vdev(Role::Data, VdevLayout::Mirror, "ax")],
                vec![WarningCode::MixedSizes],
            ),
            (
                vec![
                    vdev(Role::Data, VdevLayout::Raidz2, "abcd"),
                    vdev(Role::Special, VdevLayout::Mirror, "xy"),
                ],
                vec![WarningCode::LessRedundant],
            ),
            (
                vec![
                    vdev(Role::Data, VdevLayout::Mirror, "ab"),
                    vdev(Role::Data, VdevLayout::Raidz2, "cdefg"),
                ],
                vec![WarningCode::MixedLayouts],
            ),
        ] {
            let plan = planned(vdevs).expect("a plan");
            let codes: Vec<_> = plan.warnings.iter().map(|w| w.code).collect();
            assert_eq!(codes, expected, "{}", plan.command);
        }
    }

    #[test]
    fn what_the_command_would_refuse_is_forced() {
        let data = |layout, disks| vdev(Role::Data, layout, disks);
        for (vdevs, forced) in [
            (vec![data(VdevLayout::Single, "abx")], false),
            (vec![data(VdevLayout::Mirror, "ax")], true),
            (
                vec![
                    data(VdevLayout::Mirror, "ab"),
                    data(VdevLayout::Mirror, "cde"),
                ],
                true,
            ),
            (
                vec![
                    data(VdevLayout::Raidz1, "abc"),
                    vdev(Role::Special, VdevLayout::Mirror, "xy"),
                ],
                false,
            ),
            (
                vec![
                    data(VdevLayout::Raidz2, "abcd"),
                    vdev(Role::Special, VdevLayout::Mirror, "xy"),
                ],
                true,
            ),
            (
                vec![
                    data(VdevLayout::Mirror, "ab"),
                    vdev(Role::Log, VdevLayout::Single, "z"),
                ],
                false,
            ),
        ] {
            let plan = planned(vdevs).expect("a plan");
            assert_eq!(plan.forced, forced, "{}", plan.command);
            assert_eq!(plan.arguments[1] == "-f", forced);
        }
    }

    #[test]
    fn shapes_that_no_pool_can_have_are_refused() {
        for vdevs in [
            vec![vdev(Role::Data, VdevLayout::Mirror, "a")],
            vec![vdev(Role::Data, VdevLayout::Raidz2, "ab")],
            vec![vdev(Role::Data, VdevLayout::Single, "q")],
            vec![vdev(Role::Log, VdevLayout::Raidz1, "abc")],
            vec![vdev(Role::Cache, VdevLayout::Mirror, "ab")],
        ] {
            let refused = planned(vdevs.clone()).err().map(|problem| problem.status);
            assert_eq!(refused, Some(422), "{vdevs:?}");
        }
    }
}
