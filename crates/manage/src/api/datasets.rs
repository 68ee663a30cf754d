//! Calls about datasets and snapshots: lists in pages.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, header};
use axum::{Extension, Json};
use engine::property::{Source, Value};
use engine::{
    DatasetInfo, DatasetPage as EnginePage, DatasetProperty, PoolHandle, PropertyQuery,
    SnapshotPosition,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::{Api, Problem, Shared};
use crate::accounts::SessionUser;
use crate::replication::FENCED_PROPERTY;

/// Entries of a page when none are asked for.
const PAGE: usize = 200;
/// Entries of a page at most.
const PAGE_MAX: usize = 1000;
/// What a list shows of each dataset.
const LISTED: &[&str] = &[
    "used",
    "available",
    "referenced",
    "mountpoint",
    "volsize",
    "origin",
    "sharenfs",
    "compressratio",
    FENCED_PROPERTY,
];

/// Which part of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DatasetPage {
    /// Only this dataset and those below it.
    root: Option<String>,
    /// Only names that contain this.
    filter: Option<String>,
    /// Entries, at most 1000 (200).
    limit: Option<usize>,
    /// Where a page before ended: its `next`.
    cursor: Option<String>,
}

/// Which part of a dataset's snapshots.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// The dataset.
    dataset: String,
    /// Only names (behind the `@`) that contain this.
    filter: Option<String>,
    /// Entries, at most 1000 (200).
    limit: Option<usize>,
    /// Where a page before ended: its `next`.
    cursor: Option<String>,
}

/// A page of datasets, in the order of their names.
#[derive(Serialize, ToSchema)]
pub(super) struct DatasetList {
    datasets: Vec<DatasetView>,
    /// Where the next page begins; none at the end. A page may be empty and have a next one, where few names match the filter.
    next: Option<String>,
    /// Datasets on this page, and one more where it is known that there are: those behind it are not counted, which would read them all.
    total: usize,
    /// Pools that did not answer, and whose datasets are missing here.
    unanswered: Vec<String>,
}

/// A dataset.
#[derive(Serialize, ToSchema)]
pub(super) struct DatasetView {
    /// Name.
    name: String,
    /// `filesystem`, `volume`, `snapshot` or `bookmark`.
    kind: &'static str,
    /// Unique number, as text.
    guid: String,
    /// Properties in the order of `zfs get`.
    properties: Vec<PropertyView>,
}

/// A property.
#[derive(Serialize, ToSchema)]
pub(super) struct PropertyView {
    /// Name.
    name: String,
    /// A number of bytes, seconds or things, or a word.
    value: PropertyValue,
    /// As `zfs get` says it: `local`, `default`, `inherited from ...`, `received`, `temporary`, `-`.
    source: String,
    /// The dataset it is inherited from.
    inherited_from: Option<String>,
}

/// A value.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum PropertyValue {
    /// A number.
    Number(u64),
    /// A word.
    Text(String),
}

/// A page of snapshots, the newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct SnapshotList {
    snapshots: Vec<SnapshotView>,
    /// Where the next page begins; none at the end. A page may be empty and have a next one, where few names match the filter.
    next: Option<String>,
    /// Snapshots of the dataset.
    total: u64,
}

/// A snapshot.
#[derive(Serialize, ToSchema)]
pub(super) struct SnapshotView {
    /// Name, behind the `@`.
    name: String,
    /// Unique number, as text.
    guid: String,
    /// Seconds since 1970.
    creation: u64,
    /// Transaction group.
    create_txg: u64,
    /// Bytes that only it refers to.
    used_bytes: u64,
    /// Bytes that it refers to.
    referenced_bytes: u64,
}

impl From<&DatasetInfo> for DatasetView {
    fn from(info: &DatasetInfo) -> Self {
        Self {
            name: info.name.clone(),
            kind: info.kind.as_str(),
            guid: info.guid.to_string(),
            properties: info.properties.iter().map(PropertyView::from).collect(),
        }
    }
}

impl From<&DatasetProperty> for PropertyView {
    fn from(property: &DatasetProperty) -> Self {
        let value = match &property.value {
            Value::Text(text) => PropertyValue::Text(text.clone()),
            Value::Number(number) => match property.native.and_then(|p| p.index_name(*number)) {
                Some(word) => PropertyValue::Text(word.to_owned()),
                None => PropertyValue::Number(*number),
            },
        };
        let inherited_from = match &property.source {
            Source::Inherited(from) => Some(from.clone()),
            _ => None,
        };
        Self {
            name: property.name.clone(),
            value,
            source: property.source.to_string(),
            inherited_from,
        }
    }
}

fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::bad_request(format!("limit is 1 to {PAGE_MAX}"))),
    }
}

pub(super) fn pool_of(dataset: &str) -> &str {
    &dataset[..dataset.find(['/', '@', '#']).unwrap_or(dataset.len())]
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let query = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    Ok(query.0)
}

/// Refuses a dataset that the key shown is not for.
pub(super) fn within_key(user: &SessionUser, dataset: &str) -> Result<(), Problem> {
    match user.reaches(dataset) {
        true => Ok(()),
        false => Err(Problem::beyond_key(&format!("'{dataset}'"))),
    }
}

/// Lists file systems and volumes. With a key for some datasets, `root` is one of them, or below.
#[utoipa::path(get, path = "/api/v1/datasets", params(DatasetPage),
    responses((status = 200, body = DatasetList), (status = 400, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list_datasets(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    asked: Result<Query<DatasetPage>, QueryRejection>,
) -> Result<Json<DatasetList>, Problem> {
    let asked = query(asked)?;
    within_key(&user, asked.root.as_deref().unwrap_or_default())?;
    let limit = page_size(asked.limit)?;
    let filter = asked.filter.unwrap_or_default();
    let mut pools = match &asked.root {
        Some(root) => vec![api.pool(pool_of(root))?],
        None => api.backend.open_pools(),
    };
    pools.sort_by(|left, right| left.name().cmp(right.name()));
    let mut list = DatasetList {
        datasets: Vec::new(),
        next: None,
        total: 0,
        unanswered: Vec::new(),
    };
    for pool in &pools {
        let root = asked.root.clone().unwrap_or_else(|| pool.name().to_owned());
        let about = root.clone();
        // Behind a pool whose part goes on, others are looked at to see that they answer, no more.
        let room = match list.next {
            Some(_) => 0,
            None => limit - list.datasets.len(),
        };
        let (filter, cursor) = (filter.clone(), asked.cursor.clone());
        let part = |pool: PoolHandle| async move {
            let listed = LISTED.iter().map(|name| (*name).to_owned()).collect();
            pool.dataset_page(&root, cursor.as_deref(), &filter, room, listed)
                .await
        };
        // One pool that hangs does not hold up the page of all.
        let page = match &asked.root {
            Some(_) => {
                let page = api.asking.ask(pool, &about, part);
                Some(page.await?)
            }
            None => api.asking.ask_of_many(pool, part).await,
        };
        match page {
            Some(page) => add_page(&mut list, &page, asked.cursor.as_deref()),
            None => list.unanswered.push(pool.name().to_owned()),
        }
    }
    Ok(Json(list))
}

/// Puts what a pool has of a page on it.
fn add_page(list: &mut DatasetList, page: &EnginePage, cursor: Option<&str>) {
    let views = page.datasets.iter().map(DatasetView::from);
    list.datasets.extend(views);
    if page.more && list.next.is_none() {
        let before = list.datasets.last().map(|last| last.name.clone());
        let last = page.last.clone().or(before);
        list.next = last.or_else(|| cursor.map(str::to_owned));
    }
    list.total = list.datasets.len() + usize::from(list.next.is_some());
}

/// A dataset with all its properties and where they come from. The slashes of its name are written `%2F`. The header `ETag` changes when
/// one of its settings does, and not with the data.
#[utoipa::path(get, path = "/api/v1/datasets/{name}", params(("name" = String, Path)),
    responses((status = 200, body = DatasetView), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn show_dataset(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
) -> Result<([(HeaderName, String); 1], Json<DatasetView>), Problem> {
    within_key(&user, &name)?;
    let info = whole(&api, &name).await?;
    Ok((
        [(header::ETAG, etag(&info))],
        Json(DatasetView::from(&info)),
    ))
}

async fn whole(api: &Api, name: &str) -> Result<DatasetInfo, Problem> {
    let pool = api.pool(pool_of(name))?;
    let dataset = name.to_owned();
    let info = api.asking.ask(&pool, name, |pool| async move {
        pool.dataset(&dataset, &PropertyQuery::All).await
    });
    info.await
}

/// Returns the tag that the settings of a dataset have now.
pub(super) async fn current_etag(
    api: &Api,
    user: &SessionUser,
    name: &str,
) -> Result<String, Problem> {
    within_key(user, name)?;
    Ok(etag(&whole(api, name).await?))
}

/// A tag of what was set, here and above; what the pool counts does not change it.
fn etag(info: &DatasetInfo) -> String {
    let mut hash = Sha256::new();
    hash.update(info.guid.to_le_bytes());
    for property in &info.properties {
        if matches!(property.source, Source::None) {
            continue;
        }
        let text = format!("{}={:?}\n", property.name, property.value);
        hash.update(text.as_bytes());
    }
    let digits: String = hash.finalize()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{digits}\"")
}

/// Lists the snapshots of a dataset, the newest first.
#[utoipa::path(get, path = "/api/v1/snapshots", params(SnapshotQuery),
    responses((status = 200, body = SnapshotList), (status = 400, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list_snapshots(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    asked: Result<Query<SnapshotQuery>, QueryRejection>,
) -> Result<Json<SnapshotList>, Problem> {
    let asked = query(asked)?;
    within_key(&user, &asked.dataset)?;
    let limit = page_size(asked.limit)?;
    let position = match &asked.cursor {
        Some(cursor) => Some(position(cursor)?),
        None => None,
    };
    let pool = api.pool(pool_of(&asked.dataset))?;
    let (dataset, filter) = (asked.dataset.clone(), asked.filter.unwrap_or_default());
    let page = api.asking.ask(&pool, &asked.dataset, |pool| async move {
        pool.snapshot_page(&dataset, position, &filter, limit).await
    });
    let page = page.await?;
    let view = |entry: engine::SnapshotEntry| SnapshotView {
        name: entry.name,
        guid: entry.guid.to_string(),
        creation: entry.creation_time,
        create_txg: entry.create_txg,
        used_bytes: entry.unique_bytes,
        referenced_bytes: entry.referenced_bytes,
    };
    Ok(Json(SnapshotList {
        snapshots: page.snapshots.into_iter().map(view).collect(),
        next: page
            .next
            .map(|next| format!("{}-{}", next.create_txg, next.object)),
        total: page.total,
    }))
}

fn position(cursor: &str) -> Result<SnapshotPosition, Problem> {
    let parts = cursor.split_once('-');
    let numbers = parts.and_then(|(txg, object)| Some((txg.parse().ok()?, object.parse().ok()?)));
    match numbers {
        Some((create_txg, object)) => Ok(SnapshotPosition { object, create_txg }),
        None => Err(Problem::bad_request("cursor is none that a page gave")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_follow_the_order_of_the_list() {
        let cursor = position("12-7").ok().map(|at| (at.create_txg, at.object));
        assert_eq!(cursor, Some((12, 7)));
        assert!(position("12").is_err() && position("x-7").is_err());
    }
}
