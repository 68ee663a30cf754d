//! Policies at work on a pool: what there is is read, what is due is done.
//!
//! A round that finds nothing due reads one property of each dataset. Snapshots are listed only for datasets with a policy, and only when
//! something is due or a policy changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use engine::property::{Source, Value};
use engine::{
    DatasetFilter, DatasetInfo, DatasetKind, EngineError, IMMUTABLE_PROPERTY, PoolHandle,
    PropertyQuery, Refusal, SnapshotRequest, time_text,
};
use jiff::Timestamp;

use super::hooks::{FAILED_HOOKS_PROPERTY, HookFailure, Hooks};
use super::{
    CLASSES_PROPERTY, DatasetState, PROPERTY, PolicySource, SnapshotGroup, SnapshotState, plan,
};

/// Snapshots destroyed in one request: what one txg takes in a moment.
const DESTROYED_AT_ONCE: usize = 200;

/// How far the clock may be behind the highest time that was seen before that is told.
const CLOCK_BEHIND_SECONDS: u64 = 300;

/// How long what hooks froze waits for its snapshot.
const FROZEN_MAX: Duration = Duration::from_secs(10);

/// The policies of a pool, as the last round found them, and when something is due again.
#[derive(Debug, Default)]
pub struct PoolPolicies {
    /// Name, policy and source of each dataset that has one.
    seen: Vec<(String, String, PolicySource)>,
    /// When the next snapshot is due; `None` before the first round, and where none ever is.
    next: Option<Timestamp>,
    /// What could not be done, by dataset: tried again in each round, told once.
    problems: BTreeMap<String, String>,
}

/// What a round did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Full names of snapshots that were taken.
    pub taken: Vec<String>,
    /// Full names of snapshots that were destroyed.
    pub destroyed: Vec<String>,
    /// What could not be done and was not told by an earlier round: the dataset, and why.
    pub problems: Vec<(String, String)>,
    /// Datasets of which a problem told earlier is gone.
    pub solved: Vec<String>,
    /// Hooks that failed. The snapshots were taken all the same.
    pub hook_failures: Vec<HookFailure>,
}

impl PoolPolicies {
    /// Does what is due at `now`, with `hooks` around the snapshots whose policies name some. Snapshots that were taken are on stable
    /// storage when this returns.
    ///
    /// # Errors
    /// The pool cannot be read. What is refused for single datasets is in the answer.
    pub async fn round(
        &mut self,
        pool: &PoolHandle,
        hooks: &Hooks,
        now: Timestamp,
    ) -> Result<Round, EngineError> {
        if pool.readonly() {
            return Ok(Round::default());
        }
        let seen = policies(pool, pool.name()).await?;
        let is_due = self.next.is_none_or(|next| next <= now);
        if seen == self.seen && (seen.is_empty() || !is_due) {
            return Ok(Round::default());
        }
        let mut round = Round::default();
        let mut problems = BTreeMap::new();
        let todo = plan(&states(pool, &seen).await?, now);
        problems.extend(todo.problems);
        if let Some(why) = clock_set_back(pool).await? {
            problems.insert(pool.name().to_owned(), why);
        }
        let mut is_renamed = false;
        for mut group in todo.take {
            is_renamed |= !group.renames.is_empty();
            rename(pool, &mut group, &mut problems).await;
            take(pool, hooks, group, &mut round, &mut problems).await?;
        }
        let expired = match round.taken.is_empty() && !is_renamed {
            true => todo.destroy,
            // Names mean others by now.
            false => plan(&states(pool, &seen).await?, now).destroy,
        };
        destroy(pool, expired, &mut round, &mut problems).await?;
        self.next = todo.next;
        self.seen = seen;
        self.tell(problems, &mut round);
        Ok(round)
    }

    /// Puts into the answer what is new among the problems, and what is gone.
    fn tell(&mut self, problems: BTreeMap<String, String>, round: &mut Round) {
        let is_new =
            |(dataset, why): &(&String, &String)| self.problems.get(*dataset) != Some(*why);
        round.problems = problems
            .iter()
            .filter(is_new)
            .map(|(dataset, why)| (dataset.clone(), why.clone()))
            .collect();
        let is_gone = |dataset: &&String| !problems.contains_key(*dataset);
        round.solved = self.problems.keys().filter(is_gone).cloned().collect();
        // What failed is tried again in the next round, whatever is due.
        if !problems.is_empty() {
            self.next = None;
        }
        self.problems = problems;
    }
}

/// Returns name, policy and source of each dataset below `root`, itself included, that has a policy.
///
/// # Errors
/// There is no such dataset, or it cannot be read.
pub async fn policies(
    pool: &PoolHandle,
    root: &str,
) -> Result<Vec<(String, String, PolicySource)>, EngineError> {
    // A policy may be inherited from above `root`, and only the whole chain says whether it was received there.
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let query = PropertyQuery::Named(vec![PROPERTY.to_owned()]);
    let datasets = pool.datasets(&filter, &query).await?;
    let mut found: Vec<(String, String, PolicySource)> = Vec::new();
    for info in datasets {
        let Some((text, source)) = user_property(&info, PROPERTY) else {
            continue;
        };
        let source = match source {
            Source::Received => PolicySource::Received,
            Source::Inherited(from) => {
                let above = found.iter().find(|(name, ..)| name == from);
                match above {
                    Some((.., PolicySource::Received)) => PolicySource::Received,
                    _ => PolicySource::Inherited(from.clone()),
                }
            }
            _ => PolicySource::Local,
        };
        let text = text.to_owned();
        found.push((info.name, text, source));
    }
    let below = format!("{root}/");
    found.retain(|(name, ..)| name == root || name.starts_with(&below));
    Ok(found)
}

/// Returns the state of the datasets named, with their snapshots; those that are gone meanwhile are left out.
///
/// # Errors
/// They cannot be read.
pub async fn states(
    pool: &PoolHandle,
    policies: &[(String, String, PolicySource)],
) -> Result<Vec<DatasetState>, EngineError> {
    let mut states = Vec::with_capacity(policies.len());
    for (name, policy, source) in policies {
        let (written, snapshots) = match written_and_snapshots(pool, name).await {
            Err(EngineError::DatasetNotFound(_)) => continue,
            found => found?,
        };
        states.push(DatasetState {
            name: name.clone(),
            policy: policy.clone(),
            source: source.clone(),
            written_bytes: written.unwrap_or(u64::MAX),
            snapshots,
        });
    }
    Ok(states)
}

/// Returns the state of one dataset; its policy is `off` where it has none.
///
/// # Errors
/// There is no such dataset, or it cannot be read.
pub async fn state(pool: &PoolHandle, dataset: &str) -> Result<DatasetState, EngineError> {
    let found = policies(pool, dataset).await?;
    let own = found.into_iter().find(|(name, ..)| name == dataset);
    let own = own.unwrap_or_else(|| (dataset.to_owned(), "off".to_owned(), PolicySource::Local));
    let state = states(pool, &[own]).await?.pop();
    state.ok_or_else(|| EngineError::DatasetNotFound(dataset.to_owned()))
}

/// Returns the bytes written since the newest snapshot, as far as they are known, and the snapshots: the answer to one question.
async fn written_and_snapshots(
    pool: &PoolHandle,
    dataset: &str,
) -> Result<(Option<u64>, Vec<SnapshotState>), EngineError> {
    let filter = DatasetFilter {
        root: dataset.to_owned(),
        depth: Some(1),
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
        ],
    };
    let names = [
        CLASSES_PROPERTY,
        "creation",
        "userrefs",
        "clones",
        "written",
        IMMUTABLE_PROPERTY,
    ];
    let query = PropertyQuery::Named(names.map(str::to_owned).to_vec());
    let listed = pool.datasets(&filter, &query).await?;
    let written = listed.iter().find(|info| info.name == dataset);
    let written = written
        .and_then(|info| info.property("written"))
        .and_then(|property| property.value.number());
    let own = format!("{dataset}@");
    let state = |info: DatasetInfo| {
        let name = info.name.strip_prefix(&own)?.to_owned();
        // Inherited from the dataset it would mark every snapshot of it.
        let classes = user_property(&info, CLASSES_PROPERTY)
            .filter(|(_, source)| matches!(source, Source::Local | Source::Received))
            .map(|(text, _)| text.split(',').map(str::to_owned).collect());
        let number = |name: &str| {
            info.property(name)
                .and_then(|property| property.value.number())
        };
        let has_clones = match info.property("clones").map(|property| &property.value) {
            Some(Value::Text(clones)) => !clones.is_empty(),
            _ => false,
        };
        let immutable_until = user_property(&info, IMMUTABLE_PROPERTY)
            .filter(|(_, source)| matches!(source, Source::Local | Source::Received))
            .and_then(|(text, _)| text.parse().ok());
        let seconds = i64::try_from(number("creation").unwrap_or(0)).unwrap_or(i64::MAX);
        Some(SnapshotState {
            name,
            creation: Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX),
            create_txg: info.create_txg,
            classes,
            immutable_until,
            holds: number("userrefs").unwrap_or(0),
            has_clones,
        })
    };
    Ok((written, listed.into_iter().filter_map(state).collect()))
}

fn user_property<'a>(info: &'a DatasetInfo, name: &str) -> Option<(&'a str, &'a Source)> {
    let property = info.property(name)?;
    match &property.value {
        Value::Text(text) if property.source != Source::None => Some((text, &property.source)),
        _ => None,
    }
}

/// Gives snapshots the names that they get before others take theirs. A dataset of which that is refused is left out of the group.
async fn rename(
    pool: &PoolHandle,
    group: &mut SnapshotGroup,
    problems: &mut BTreeMap<String, String>,
) {
    for (from, to) in &group.renames {
        let Err(error) = pool.rename_snapshot(from, to, false).await else {
            continue;
        };
        group.names.retain(|name| name != from);
        let dataset = from.split('@').next().unwrap_or(from);
        let why = format!("cannot rename '{from}' for the next snapshot: {error}");
        problems.insert(dataset.to_owned(), why);
    }
}

/// Takes a group in one txg, between its hooks; a name that is refused is left out, and the others are tried again.
async fn take(
    pool: &PoolHandle,
    hooks: &Hooks,
    group: SnapshotGroup,
    round: &mut Round,
    problems: &mut BTreeMap<String, String>,
) -> Result<(), EngineError> {
    let (frozen, failures) = hooks.freeze(&group.hooks, &group.names).await;
    let mut properties = vec![(CLASSES_PROPERTY.to_owned(), group.classes)];
    if !failures.is_empty() {
        let failed: BTreeSet<&str> = failures.iter().map(|(hook, _)| hook.as_str()).collect();
        let failed = Vec::from_iter(failed).join(",");
        properties.push((FAILED_HOOKS_PROPERTY.to_owned(), failed));
    }
    if group.immutable_hours > 0 {
        let until = immutable_until(pool, group.immutable_hours).await?;
        properties.push((IMMUTABLE_PROPERTY.to_owned(), until));
    }
    round.hook_failures.extend(failures);
    let (unthawed, is_late) = {
        let mut taking = pin!(take_frozen(pool, group.names, properties, round, problems));
        let taken = tokio::time::timeout(FROZEN_MAX, &mut taking).await;
        // A pool that does not answer must not hold a database up for as long: then the snapshot comes after the thaw, and is not what
        // was frozen.
        let unthawed = frozen.thaw().await;
        let is_late = taken.is_err();
        match taken {
            Ok(taken) => taken?,
            Err(_) => taking.await?,
        }
        (unthawed, is_late)
    };
    if is_late && !group.hooks.is_empty() {
        let why = format!("the pool took longer than {} s", FROZEN_MAX.as_secs());
        hooks.note_failure(&group.hooks, &why);
        round.hook_failures.push((group.hooks.join(","), why));
    }
    round.hook_failures.extend(unthawed);
    Ok(())
}

/// Returns the end of so many hours, counted from the clock, or from the highest time that was seen where the clock was set back: it must not
/// make a new snapshot immutable for less.
///
/// # Errors
/// The pool cannot be read.
pub async fn immutable_until(pool: &PoolHandle, hours: u32) -> Result<String, EngineError> {
    let (_, seen) = pool.counted_time().await?;
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    Ok(time_text(now.max(seen) + u64::from(hours) * 3600))
}

/// Says that the clock is behind the highest time that was seen, if it is.
async fn clock_set_back(pool: &PoolHandle) -> Result<Option<String>, EngineError> {
    let (counted, seen) = pool.counted_time().await?;
    let is_behind = counted.saturating_add(CLOCK_BEHIND_SECONDS) < seen;
    Ok(is_behind.then(|| {
        format!(
            "the clock was set back: before {} it was {} already; immutable snapshots stay for as much longer",
            time_text(counted),
            time_text(seen)
        )
    }))
}

async fn take_frozen(
    pool: &PoolHandle,
    mut names: Vec<String>,
    properties: Vec<(String, String)>,
    round: &mut Round,
    problems: &mut BTreeMap<String, String>,
) -> Result<(), EngineError> {
    while !names.is_empty() {
        let request = SnapshotRequest {
            names: names.clone(),
            recursive: false,
            properties: properties.clone(),
        };
        let refusals = pool.snapshot(request).await?;
        if refusals.is_empty() {
            round.taken.append(&mut names);
        }
        without(&mut names, &refusals, "cannot take a snapshot", problems);
    }
    Ok(())
}

/// Destroys snapshots, the oldest first; a name that is refused is left out, and the others are tried again.
async fn destroy(
    pool: &PoolHandle,
    names: Vec<String>,
    round: &mut Round,
    problems: &mut BTreeMap<String, String>,
) -> Result<(), EngineError> {
    for batch in names.chunks(DESTROYED_AT_ONCE) {
        let mut names = batch.to_vec();
        while !names.is_empty() {
            let refusals = pool.destroy_snapshots(&names, false).await?;
            if refusals.is_empty() {
                round.destroyed.append(&mut names);
            }
            without(
                &mut names,
                &refusals,
                "cannot destroy an old snapshot",
                problems,
            );
        }
    }
    Ok(())
}

/// Takes refused names out of a list and notes why. A refusal of a name that is not in the list ends the list, so that a caller which tries
/// again comes to an end.
fn without(
    names: &mut Vec<String>,
    refusals: &[Refusal],
    what: impl fmt::Display,
    problems: &mut BTreeMap<String, String>,
) {
    let before = names.len();
    for Refusal { name, error } in refusals {
        names.retain(|kept| kept != name);
        let dataset = name.split('@').next().unwrap_or(name);
        problems.insert(dataset.to_owned(), format!("{what} ({name}): {error}"));
    }
    if names.len() == before {
        names.clear();
    }
}
