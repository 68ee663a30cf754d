//! Calls about what is served to other machines: shares by NFS, volumes by iSCSI.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::property::{DatasetKind, Source, Value};
use engine::{Client, DatasetFilter, PoolHandle, PropertyQuery};
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Api, Problem, Shared};
use crate::targets::{MAP_PROPERTY, Mapping, Target, Targets, parse_mappings};

/// A dataset that its property `sharenfs` shares.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Share {
    /// The dataset.
    pub dataset: String,
    /// What clients mount.
    pub path: String,
    /// The value of `sharenfs`.
    pub options: String,
    /// Writing is refused, whatever the options say.
    pub readonly: bool,
    /// Why it is not shared.
    pub error: Option<String>,
}

/// A session of an iSCSI initiator.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct InitiatorSession {
    /// The target.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// Addresses of its connections.
    pub addresses: Vec<String>,
}

/// Ports of the services, 0 for one that is off.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct Ports {
    /// NFS and MOUNT.
    pub nfs: u16,
    /// iSCSI.
    pub iscsi: u16,
}

/// What is shared by NFS.
#[derive(Serialize, ToSchema)]
pub(super) struct ShareList {
    /// TCP port of NFS and MOUNT; 0 when NFS is off.
    port: u16,
    /// Versions that are served.
    versions: Vec<u32>,
    shares: Vec<ShareView>,
}

/// A share with those who use it.
#[derive(Serialize, ToSchema)]
pub(super) struct ShareView {
    #[serde(flatten)]
    share: Share,
    clients: Vec<ShareClient>,
}

/// A host that has made requests to a share since its dataset was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ShareClient {
    /// Address.
    address: String,
    /// Requests so far.
    requests: u64,
}

/// Lists the shares by NFS and their clients.
#[utoipa::path(get, path = "/api/v1/shares", responses((status = 200, body = ShareList)))]
pub(super) async fn list_shares(State(api): Shared) -> Json<ShareList> {
    let mut clients: BTreeMap<String, Vec<ShareClient>> = BTreeMap::new();
    let pools = api.backend.open_pools();
    let statistics = pools.iter().map(|pool| {
        api.asking
            .glance(pool, |pool| async move { pool.statistics().await })
    });
    for dataset in join_all(statistics)
        .await
        .into_iter()
        .flatten()
        .flat_map(|seen| seen.datasets)
    {
        let hosts = dataset.requests.iter().filter_map(|(client, times)| {
            let Client::Address(_, address) = client else {
                return None;
            };
            Some(ShareClient {
                address: address.to_canonical().to_string(),
                requests: times.requests,
            })
        });
        clients.entry(dataset.name).or_default().extend(hosts);
    }
    let view = |share: Share| ShareView {
        clients: clients.get(&share.dataset).cloned().unwrap_or_default(),
        share,
    };
    Json(ShareList {
        port: api.backend.ports().nfs,
        versions: vec![3],
        shares: api.backend.shares().into_iter().map(view).collect(),
    })
}

/// What is served by iSCSI.
#[derive(Serialize, ToSchema)]
pub(super) struct TargetList {
    /// TCP port; 0 when iSCSI is off.
    port: u16,
    targets: Vec<TargetView>,
    /// Volumes, mapped or not.
    volumes: Vec<VolumeView>,
    /// Groups of initiators and their members.
    initiator_groups: BTreeMap<String, Vec<String>>,
    sessions: Vec<InitiatorSession>,
    /// Pools that did not answer, and whose volumes are missing here.
    unanswered: Vec<String>,
}

/// A target. Secrets are not told.
#[derive(Serialize, ToSchema)]
pub(super) struct TargetView {
    /// iSCSI name.
    name: String,
    /// For people.
    alias: String,
    /// Names, addresses and networks of the initiators that may log in; none means all.
    initiators: Vec<String>,
    /// The user that initiators must show by CHAP.
    chap_user: Option<String>,
    /// The user that is shown to initiators.
    mutual_user: Option<String>,
    /// Where it is reached, if not everywhere.
    portals: Vec<String>,
    /// Its logical units, by number.
    luns: Vec<LunView>,
}

/// A logical unit.
#[derive(Serialize, ToSchema)]
pub(super) struct LunView {
    /// Number.
    lun: u16,
    /// Volume.
    volume: String,
    /// Bytes.
    size_bytes: u64,
    /// The group of initiators that sees it; none means all that may log in.
    seen_by: Option<String>,
}

/// A volume.
#[derive(Serialize, ToSchema)]
pub(super) struct VolumeView {
    /// Name.
    name: String,
    /// Bytes.
    size_bytes: u64,
    /// Bytes it takes.
    used_bytes: u64,
    /// Targets that show it.
    targets: Vec<String>,
    #[serde(skip)]
    mappings: Vec<Mapping>,
}

/// Lists targets, their logical units and sessions, and the volumes there are.
#[utoipa::path(get, path = "/api/v1/targets", responses((status = 200, body = TargetList), (status = 503, body = Problem)))]
pub(super) async fn list_targets(State(api): Shared) -> Result<Json<TargetList>, Problem> {
    let failed = |why| Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    let targets = api.backend.targets().await.map_err(failed)?;
    let mut unanswered = Vec::new();
    let mut volumes = Vec::new();
    let pools = api.backend.open_pools();
    let found = pools
        .iter()
        .map(|pool| api.asking.ask_of_many(pool, volumes_of));
    for (pool, found) in pools.iter().zip(join_all(found).await) {
        match found {
            Some(found) => volumes.extend(found),
            None => unanswered.push(pool.name().to_owned()),
        }
    }
    for volume in &mut volumes {
        let shown = |target: &&Target| {
            let mut mappings = volume.mappings.iter();
            mappings.any(|mapping| targets.covers(&mapping.scope, &target.name))
        };
        let names = targets.targets.iter().filter(shown);
        volume.targets = names.map(|target| target.name.clone()).collect();
    }
    Ok(Json(TargetList {
        port: api.backend.ports().iscsi,
        targets: targets
            .targets
            .iter()
            .map(|target| view(&targets, target, &volumes))
            .collect(),
        initiator_groups: targets.initiator_groups.clone(),
        sessions: api.backend.initiator_sessions(),
        volumes,
        unanswered,
    }))
}

/// Returns what is set of targets, and which volumes they show.
pub(super) async fn settings_of_targets(api: &Api) -> Result<impl Serialize + use<>, Problem> {
    let failed = |why| Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    let targets = api.backend.targets().await.map_err(failed)?;
    let pools = api.backend.open_pools();
    let found = pools
        .iter()
        .map(|pool| api.asking.ask_of_many(pool, volumes_of));
    let mut mapped = Vec::new();
    for volume in join_all(found).await.into_iter().flatten().flatten() {
        for mapping in &volume.mappings {
            mapped.push((volume.name.clone(), format!("{mapping:?}")));
        }
    }
    Ok((targets, mapped))
}

fn view(targets: &Targets, target: &Target, volumes: &[VolumeView]) -> TargetView {
    let mut luns = Vec::new();
    for volume in volumes {
        let shown = volume.mappings.iter();
        let shown = shown.filter(|mapping| targets.covers(&mapping.scope, &target.name));
        luns.extend(shown.map(|mapping| LunView {
            lun: mapping.lun,
            volume: volume.name.clone(),
            size_bytes: volume.size_bytes,
            seen_by: mapping.seen_by.clone(),
        }));
    }
    luns.sort_by(|one, other| (one.lun, &one.volume).cmp(&(other.lun, &other.volume)));
    let user = |login: &Option<crate::targets::Login>| login.as_ref().map(|l| l.user.clone());
    TargetView {
        name: target.name.clone(),
        alias: target.alias.clone(),
        initiators: target.initiators.clone(),
        chap_user: user(&target.chap),
        mutual_user: user(&target.mutual),
        portals: target.portals.iter().map(ToString::to_string).collect(),
        luns,
    }
}

async fn volumes_of(pool: PoolHandle) -> Result<Vec<VolumeView>, engine::EngineError> {
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Volume],
    };
    let names = ["volsize", "used", MAP_PROPERTY];
    let query = PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let volume = |info: engine::DatasetInfo| {
        let number = |name| info.property(name).and_then(|p| p.value.number());
        let mapped = info.property(MAP_PROPERTY).and_then(|property| {
            match (&property.source, &property.value) {
                (Source::Local | Source::Received, Value::Text(text)) => Some(text.clone()),
                _ => None,
            }
        });
        VolumeView {
            size_bytes: number("volsize").unwrap_or(0),
            used_bytes: number("used").unwrap_or(0),
            mappings: parse_mappings(&mapped.unwrap_or_default()),
            targets: Vec::new(),
            name: info.name,
        }
    };
    let found = pool.datasets(&filter, &query).await?;
    Ok(found.into_iter().map(volume).collect())
}
