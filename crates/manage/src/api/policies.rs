//! Calls about snapshot policies: which datasets have one, and what one would take and destroy.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use engine::EngineError;
use futures_util::future::join_all;
use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::datasets::{pool_of, within_key};
use super::{Problem, Shared};
use crate::accounts::SessionUser;
use crate::policy::{
    self, DatasetState, HookView, NextSnapshot, Policy, PolicyOverview, PolicySource, SnapshotWhy,
    WhyError,
};

/// Days that a preview looks ahead when none are given, and at most.
const DAYS: u16 = 30;
const DAYS_MAX: u16 = 3660;
/// Entries of each list of a preview.
const LISTED_MAX: usize = 1000;

/// A dataset that has a policy.
#[derive(Serialize, ToSchema)]
pub(super) struct PolicyView {
    dataset: String,
    /// The policy: `hourly=24 daily=7`, for instance.
    policy: String,
    /// `local`, `inherited` or `received`; one that was received is not in force.
    source: &'static str,
    /// Where it is set, when it is inherited.
    inherited_from: Option<String>,
    /// Snapshots that a policy took.
    taken: u64,
    /// When the newest of them was taken, seconds since 1970.
    newest: Option<i64>,
    /// When the next is taken, seconds since 1970; none when none is.
    next: Option<i64>,
    /// Why the policy cannot be read.
    error: Option<String>,
}

/// The policies of all pools.
#[derive(Serialize, ToSchema)]
pub(super) struct PolicyList {
    policies: Vec<PolicyView>,
    /// The hooks that policies can name, with their last runs.
    hooks: Vec<HookView>,
    /// Pools that did not answer in time.
    unanswered: Vec<String>,
}

/// What is to be foreseen.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PreviewQuery {
    /// The dataset.
    dataset: String,
    /// The policy; that of the dataset without it.
    policy: Option<String>,
    /// Days ahead, 1 to 3660 (30).
    days: Option<u16>,
}

/// Which snapshots are to be explained.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhyQuery {
    /// The dataset.
    dataset: String,
    /// The snapshot, without the dataset's name; all of the dataset without it.
    snapshot: Option<String>,
}

/// What keeps a snapshot.
#[derive(Serialize, ToSchema)]
pub(super) struct SnapshotWhyView {
    /// The snapshot, without the dataset's name.
    snapshot: String,
    /// Whether the policy leaves it alone.
    kept: bool,
    /// Why, in a sentence.
    why: String,
    /// When the policy lets it go at the earliest, seconds since 1970.
    leaves: Option<i64>,
    /// The time before which it is not destroyed, seconds since 1970.
    immutable_until: Option<i64>,
    /// Tags of its holds.
    holds: Vec<String>,
    /// Clones that stand on it.
    clones: Vec<String>,
    /// Bookmarks of it.
    bookmarks: Vec<String>,
}

/// What keeps the snapshots of a dataset.
#[derive(Serialize, ToSchema)]
pub(super) struct SnapshotWhyList {
    /// In the order in which they were taken; the newest 1000.
    snapshots: Vec<SnapshotWhyView>,
}

/// A snapshot that would be destroyed.
#[derive(Serialize, ToSchema)]
pub(super) struct GoingSnapshot {
    name: String,
    /// Why, in a sentence.
    why: String,
}

/// A snapshot that will exist.
#[derive(Serialize, ToSchema)]
pub(super) struct ExpectedSnapshot {
    /// Seconds since 1970.
    time: i64,
    /// The classes that keep it.
    classes: Vec<String>,
}

/// What a policy does.
#[derive(Serialize, ToSchema)]
pub(super) struct PolicyPreview {
    /// The policy, in its usual form.
    policy: String,
    /// Now, seconds since 1970.
    now: i64,
    /// The moment that is foreseen, seconds since 1970.
    then: i64,
    /// Snapshots that exist.
    existing: u64,
    /// How many of them would be destroyed at once.
    going: u64,
    /// Those, the oldest first; at most 1000.
    going_snapshots: Vec<GoingSnapshot>,
    /// Snapshots of the policy at that moment, if the appliance runs all the time.
    expected: u64,
    /// Those, the newest 1000.
    expected_snapshots: Vec<ExpectedSnapshot>,
}

fn view(state: &DatasetState, now: Timestamp) -> PolicyView {
    let overview = PolicyOverview::of(state, now);
    let (source, inherited_from) = match &state.source {
        PolicySource::Local => ("local", None),
        PolicySource::Inherited(from) => ("inherited", Some(from.clone())),
        PolicySource::Received => ("received", None),
    };
    let (next, error) = match overview.next {
        NextSnapshot::NotHere | NextSnapshot::Never => (None, None),
        NextSnapshot::Now => (Some(now.as_second()), None),
        NextSnapshot::At(next) => (Some(next.as_second()), None),
        NextSnapshot::Unreadable(error) => (None, Some(error.to_string())),
    };
    PolicyView {
        dataset: state.name.clone(),
        policy: state.policy.clone(),
        source,
        inherited_from,
        taken: overview.taken as u64,
        newest: overview.newest.map(Timestamp::as_second),
        next,
        error,
    }
}

/// Lists the datasets that have a policy.
#[utoipa::path(get, path = "/api/v1/policies", responses((status = 200, body = PolicyList)))]
pub(super) async fn list_policies(State(api): Shared) -> Json<PolicyList> {
    let now = Timestamp::now();
    let pools = api.backend.open_pools();
    let asked = pools.iter().map(|pool| async {
        let states = api.asking.ask(pool, pool.name(), async |pool| {
            let found = policy::policies(&pool, pool.name()).await?;
            policy::states(&pool, &found).await
        });
        (pool.name().to_owned(), states.await)
    });
    let mut list = PolicyList {
        policies: Vec::new(),
        hooks: api.backend.hooks().views(),
        unanswered: Vec::new(),
    };
    for (pool, states) in join_all(asked).await {
        match states {
            Ok(states) => list
                .policies
                .extend(states.iter().map(|state| view(state, now))),
            Err(_) => list.unanswered.push(pool),
        }
    }
    Json(list)
}

/// Says what keeps each snapshot of a dataset, or one of them, and until when.
#[utoipa::path(get, path = "/api/v1/snapshots/why", params(WhyQuery),
    responses((status = 200, body = SnapshotWhyList), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn why_snapshots(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    asked: Result<Query<WhyQuery>, QueryRejection>,
) -> Result<Json<SnapshotWhyList>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    within_key(&user, &asked.dataset)?;
    let pool = api.pool(pool_of(&asked.dataset))?;
    let (dataset, snapshot) = (asked.dataset.clone(), asked.snapshot.clone());
    let found = api
        .asking
        .ask(&pool, &asked.dataset, async move |pool| match policy::why(
            &pool,
            &dataset,
            snapshot.as_deref(),
            Timestamp::now(),
        )
        .await
        {
            Ok(found) => Ok(Ok(found)),
            Err(WhyError::Policy(error)) => Ok(Err(error)),
            Err(WhyError::Engine(error)) => Err(error),
        });
    let found = found.await?.map_err(|error| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("bad policy: {error}"),
        )
    })?;
    if let (Some(snapshot), true) = (&asked.snapshot, found.is_empty()) {
        let name = format!("{}@{snapshot}", asked.dataset);
        return Err(Problem::of_engine(
            &name,
            &EngineError::DatasetNotFound(name.clone()),
        ));
    }
    let skipped = found.len().saturating_sub(LISTED_MAX);
    let view = |why: SnapshotWhy| SnapshotWhyView {
        kept: why.decision.is_kept(),
        why: why.decision.reason.to_string(),
        snapshot: why.decision.snapshot,
        leaves: why.leaves.map(Timestamp::as_second),
        immutable_until: why.immutable_until.map(Timestamp::as_second),
        holds: why.holds,
        clones: why.clones,
        bookmarks: why.bookmarks,
    };
    Ok(Json(SnapshotWhyList {
        snapshots: found.into_iter().skip(skipped).map(view).collect(),
    }))
}

/// Says what a policy would destroy now, and which snapshots there will be.
#[utoipa::path(get, path = "/api/v1/policies/preview", params(PreviewQuery),
    responses((status = 200, body = PolicyPreview), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn preview_policy(
    State(api): Shared,
    asked: Result<Query<PreviewQuery>, QueryRejection>,
) -> Result<Json<PolicyPreview>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    let days = asked.days.unwrap_or(DAYS);
    if !(1..=DAYS_MAX).contains(&days) {
        return Err(Problem::bad_request(format!("days is 1 to {DAYS_MAX}")));
    }
    let parse = |line: &str| {
        line.parse::<Policy>().map_err(|error| {
            let detail = format!("bad policy: {error}");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        })
    };
    let given = asked.policy.as_deref().map(parse).transpose()?;
    let pool = api.pool(pool_of(&asked.dataset))?;
    let name = asked.dataset.clone();
    let state = api.asking.ask(&pool, &asked.dataset, async move |pool| {
        policy::state(&pool, &name).await
    });
    let state = state.await?;
    let policy = match given {
        Some(policy) => policy,
        None if state.source == PolicySource::Received => parse("off")?,
        None => parse(&state.policy)?,
    };
    let now = Timestamp::now();
    let then = now
        .checked_add((i64::from(days) * 24).hours())
        .map_err(|_| Problem::bad_request("the clock is too far ahead"))?;
    let preview = tokio::task::spawn_blocking(move || preview(&policy, &state, now, then));
    let preview = preview.await;
    Ok(Json(preview.map_err(|_| {
        Problem::of_engine(&asked.dataset, &EngineError::PoolClosed)
    })?))
}

fn preview(
    policy: &Policy,
    state: &DatasetState,
    now: Timestamp,
    then: Timestamp,
) -> PolicyPreview {
    let decisions = policy::decide(policy, &state.snapshots, now);
    let going: Vec<_> = decisions
        .iter()
        .filter(|decision| !decision.is_kept())
        .collect();
    let found = policy::forecast(policy, &state.snapshots, now, then);
    PolicyPreview {
        policy: policy.to_string(),
        now: now.as_second(),
        then: then.as_second(),
        existing: decisions.len() as u64,
        going: going.len() as u64,
        going_snapshots: going
            .iter()
            .take(LISTED_MAX)
            .map(|decision| GoingSnapshot {
                name: format!("{}@{}", state.name, decision.snapshot),
                why: decision.reason.to_string(),
            })
            .collect(),
        expected: found.len() as u64,
        expected_snapshots: found
            .iter()
            .rev()
            .take(LISTED_MAX)
            .map(|(time, classes)| ExpectedSnapshot {
                time: time.as_second(),
                classes: classes.clone(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_counts_more_than_it_lists() {
        let policy: Policy = "1min=5000".parse().expect("a policy");
        let now: Timestamp = "2026-11-25T00:00:00Z".parse().expect("a time");
        let then = now.checked_add(48.hours()).expect("a time");
        let state = DatasetState {
            name: "tank".to_owned(),
            policy: policy.to_string(),
            source: PolicySource::Local,
            written_bytes: 0,
            snapshots: Vec::new(),
        };
        let preview = preview(&policy, &state, now, then);
        assert_eq!(preview.expected, 48 * 60);
        assert_eq!(preview.expected_snapshots.len(), LISTED_MAX);
        assert_eq!(preview.expected_snapshots[0].time, then.as_second());
        assert_eq!((preview.existing, preview.going), (0, 0));
    }
}
