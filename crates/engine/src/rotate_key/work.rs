//! The steps of a rotation, each of which can be made again after an interruption.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dsl::stream::{ReceiveTarget, SendResume, unpack_token};
use dsl::{DatasetInfo, DslError, KeyRotationPlan, ListSpec};
use ondisk::ObjectId;

use super::KeyRotationStage;
use crate::pool_mailbox::PoolContext;
use crate::property::{Kinds, Property, Setting};
use crate::receive::SnapshotCopy;
use crate::rotations::Progress;
use crate::{CreateDataset, DestroyOptions, EngineError};

/// The file system that holds a copy: this, and the guid of the dataset.
const HOLDER: &str = "rotate-key-";
/// The copy in it.
const COPY: &str = "copy";
/// Short-lived snapshots: this, and a number.
const SHORT_LIVED: &str = "sanbox-rotate-key-";
/// Of the holder: the stage, and the object of the dataset's directory.
const STATE_PROPERTY: &str = "org.sanbox:rotate-key";
/// What keeps the holder and the copy from acting; by name, as typed.
const PASSIVE: &[(&str, &str)] = &[
    ("mountpoint", "none"),
    ("canmount", "off"),
    ("sharenfs", "off"),
    ("sharesmb", "off"),
    ("readonly", "on"),
    ("encryption", "off"),
    ("org.sanbox:policy", "off"),
    ("org.sanbox:trash", "off"),
];
/// What may be left to be copied while the dataset pauses: well below a second's work.
const LEFT_BYTES: u64 = 16 << 20;
/// Increments after which the dataset pauses in any case: it is written as fast as it can be copied.
const INCREMENTS_MAX: u32 = 24;
/// Attempts of the exchange: snapshots that are taken or destroyed meanwhile prevent it.
const EXCHANGES_MAX: u32 = 16;
/// How often something may have another name than a moment before.
const MISSED_MAX: u32 = 64;
/// Room above what the dataset takes that the copy must find: metadata, and what is written meanwhile.
const ROOM_BYTES: u64 = 8 << 20;

/// What was tried in one run of a rotation.
#[derive(Default)]
struct Tried {
    increments: u32,
    exchanges: u32,
    missed: u32,
}

/// A rotation as it is found in the pool.
pub(super) struct Work {
    context: Rc<PoolContext>,
    /// Full name of the holder.
    holder: String,
    guid: u64,
    directory: ObjectId,
    stage: KeyRotationStage,
    total: u64,
}

fn refused(why: impl Into<String>) -> EngineError {
    EngineError::Dataset(why.into())
}

fn short(snapshot: &str) -> &str {
    snapshot.split_once('@').map_or("", |(_, short)| short)
}

fn is_short_lived(snapshot: &DatasetInfo) -> bool {
    number_of(&snapshot.name).is_some()
}

/// The number of a short-lived snapshot.
fn number_of(snapshot: &str) -> Option<u64> {
    short(snapshot).strip_prefix(SHORT_LIVED)?.parse().ok()
}

fn state_text(stage: KeyRotationStage, directory: ObjectId) -> String {
    let stage = match stage {
        KeyRotationStage::Copying => "copying",
        KeyRotationStage::Exchanged => "exchanged",
    };
    format!("{stage} {directory}")
}

fn state_of(text: &str) -> Option<(KeyRotationStage, ObjectId)> {
    let (stage, directory) = text.split_once(' ')?;
    let stage = match stage {
        "copying" => KeyRotationStage::Copying,
        "exchanged" => KeyRotationStage::Exchanged,
        _ => return None,
    };
    Some((stage, ObjectId(directory.parse().ok()?)))
}

impl Work {
    /// The rotations of a pool.
    pub(super) async fn found(context: &Rc<PoolContext>) -> Result<Vec<Self>, EngineError> {
        let hierarchy = context.pool.hierarchy();
        let root = hierarchy.pool_name();
        let spec = ListSpec {
            depth: Some(1),
            kinds: Kinds::FILESYSTEM,
        };
        let mut found = Vec::new();
        for name in hierarchy.names(&root, spec).await? {
            let guid = name
                .strip_prefix(&format!("{root}/{HOLDER}"))
                .and_then(|guid| u64::from_str_radix(guid, 16).ok());
            let Some(guid) = guid else { continue };
            let wanted = [STATE_PROPERTY.to_owned()];
            let stored = hierarchy.properties_named(&name, &wanted).await?;
            let entry = stored.properties.first();
            let Some((stage, directory)) = entry
                .and_then(|entry| entry.value.text())
                .and_then(state_of)
            else {
                continue;
            };
            found.push(Self {
                context: Rc::clone(context),
                holder: name,
                guid,
                directory,
                stage,
                total: 0,
            });
        }
        Ok(found)
    }

    /// Begins a rotation, or finds the one that was begun.
    pub(super) async fn begin(
        context: &Rc<PoolContext>,
        dataset: &str,
    ) -> Result<Self, EngineError> {
        let hierarchy = context.pool.hierarchy();
        let plan = hierarchy.plan_key_rotation(dataset).await?;
        let root = hierarchy.pool_name();
        if dataset.starts_with(&format!("{root}/{HOLDER}")) {
            return Err(refused("it is the copy of a rotation"));
        }
        let mut work = Self {
            context: Rc::clone(context),
            holder: format!("{root}/{HOLDER}{:016x}", plan.guid.0),
            guid: plan.guid.0,
            directory: plan.directory,
            stage: KeyRotationStage::Copying,
            total: plan.used,
        };
        let found = Self::found(context).await?;
        if let Some(found) = found.into_iter().find(|found| found.guid == work.guid) {
            work.stage = found.stage;
            return Ok(work);
        }
        let needed = plan.used.saturating_add(ROOM_BYTES);
        if needed > plan.available {
            let available = plan.available;
            return Err(refused(format!(
                "the copy needs {needed} bytes, and the pool has {available}"
            )));
        }
        let typed = PASSIVE.iter().map(|(name, value)| (*name, *value));
        let state = state_text(work.stage, work.directory);
        let typed = typed.chain([(STATE_PROPERTY, state.as_str())]);
        let request = CreateDataset {
            name: work.holder.clone(),
            properties: typed
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            ..CreateDataset::default()
        };
        context.create_dataset(request, 0).await?;
        Ok(work)
    }

    pub(super) fn guid(&self) -> u64 {
        self.guid
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn stage(&self) -> KeyRotationStage {
        self.stage
    }

    fn hierarchy(&self) -> &dsl::Hierarchy {
        self.context.pool.hierarchy()
    }

    fn copy(&self) -> String {
        format!("{}/{COPY}", self.holder)
    }

    /// The name of the dataset now; none when it is gone.
    pub(super) async fn dataset(&self) -> Result<Option<String>, EngineError> {
        let found = self.hierarchy().dataset_of_directory(self.directory);
        let found = found.await?.filter(|(_, guid)| guid.0 == self.guid);
        Ok(found.map(|(name, _)| name))
    }

    /// Whether it can be gone on with: nothing is to be copied any more, or the keys for it are loaded.
    pub(super) async fn is_ready(&self) -> Result<bool, EngineError> {
        let Some(dataset) = self.dataset().await? else {
            return Ok(true);
        };
        if self.stage == KeyRotationStage::Exchanged {
            return Ok(true);
        }
        let info = self.hierarchy().key_info(&dataset).await?;
        Ok(info.is_none_or(|info| info.loaded))
    }

    /// Works until the dataset has the new key and nothing is left of the rotation, or until it is stopped.
    pub(super) async fn run(self, progress: &Progress) -> Result<(), EngineError> {
        if self.stage == KeyRotationStage::Copying && self.dataset().await?.is_some() {
            let exchanged = Box::pin(self.copy_and_exchange(progress)).await;
            if !matches!(exchanged, Ok(true)) {
                // Its key stays no longer than that of the dataset. It is no matter when there is no copy yet.
                let _ = self.hierarchy().unload_key(&self.copy()).await;
                return exchanged.map(|_| ());
            }
        }
        let mut missed = 0;
        loop {
            match Box::pin(self.clean()).await {
                // As in copying: what was just found has another name.
                Err(EngineError::DatasetNotFound(_)) if missed < MISSED_MAX => missed += 1,
                other => return other,
            }
        }
    }

    async fn copy_and_exchange(&self, progress: &Progress) -> Result<bool, EngineError> {
        let mut tried = Tried::default();
        loop {
            let gone = || EngineError::DatasetNotFound(String::new());
            let name = self.dataset().await?.ok_or_else(gone)?;
            match Box::pin(self.turn(&name, &mut tried, progress)).await {
                Ok(None) => {}
                Ok(Some(exchanged)) => return Ok(exchanged),
                // It was renamed meanwhile, or one of its snapshots was.
                Err(EngineError::DatasetNotFound(_)) if tried.missed < MISSED_MAX => {
                    tried.missed += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies what there is, and exchanges both if little is left: whether that was done, `Some(false)` when it was stopped. None where
    /// another turn is needed.
    async fn turn(
        &self,
        name: &str,
        tried: &mut Tried,
        progress: &Progress,
    ) -> Result<Option<bool>, EngineError> {
        let plan = self.hierarchy().plan_key_rotation(name).await?;
        progress.set_total(plan.used);
        self.share_key(name).await?;
        if !Box::pin(self.catch_up(name, &plan, progress)).await? {
            return Ok(Some(false));
        }
        let newest = self.take_snapshot(name).await?;
        if !Box::pin(self.catch_up(name, &plan, progress)).await? {
            return Ok(Some(false));
        }
        self.destroy_short_lived(name, Some(&newest)).await?;
        tried.increments += 1;
        let left = self.hierarchy().written_since(name, &newest).await?;
        if left > LEFT_BYTES && tried.increments < INCREMENTS_MAX {
            return Ok(None);
        }
        tried.exchanges += 1;
        match Box::pin(self.exchange(name, &plan, progress)).await? {
            Ok(done) => Ok(Some(done)),
            Err(error) if tried.exchanges >= EXCHANGES_MAX => Err(error.into()),
            // A snapshot came or went, or what is open is just being closed.
            Err(DslError::Modified { .. } | DslError::Busy { .. } | DslError::NotFound { .. }) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Copies the rest while the dataset pauses, and has both exchange what they hold.
    async fn exchange(
        &self,
        name: &str,
        plan: &KeyRotationPlan,
        progress: &Progress,
    ) -> Result<Result<bool, DslError>, EngineError> {
        let state = state_text(KeyRotationStage::Exchanged, self.directory);
        let mark = vec![Setting::User(STATE_PROPERTY.to_owned(), state)];
        let mark = (self.holder.clone(), mark);
        let work = async {
            self.take_snapshot(name).await?;
            if !Box::pin(self.catch_up(name, plan, progress)).await? {
                return Ok(Ok(false));
            }
            let copy = self.copy();
            let exchanged = self.hierarchy().exchange_with_copy(name, &copy, mark);
            Ok(Box::pin(exchanged).await.map(|()| true))
        };
        self.context.while_paused(plan.object.0, work).await
    }

    /// Loads the key of the copy, if it is there; one whose key is wrapped by what was the wrapping key once is of no use.
    async fn share_key(&self, name: &str) -> Result<(), EngineError> {
        let copy = self.copy();
        if self.hierarchy().info(&copy).await.is_err() {
            return Ok(());
        }
        match self.hierarchy().share_wrapping_key(name, &copy).await {
            Err(DslError::WrongKey { .. }) => self.destroy_copy().await,
            other => Ok(other?),
        }
    }

    /// The snapshots of the copy, oldest first; none when it is not there.
    async fn copied_snapshots(&self) -> Result<Vec<DatasetInfo>, EngineError> {
        match self.snapshots(&self.copy()).await {
            Err(EngineError::DatasetNotFound(_)) => Ok(Vec::new()),
            other => other,
        }
    }

    /// The snapshots of a dataset, oldest first.
    async fn snapshots(&self, dataset: &str) -> Result<Vec<DatasetInfo>, EngineError> {
        let spec = ListSpec {
            depth: Some(1),
            kinds: Kinds::SNAPSHOT,
        };
        let own = format!("{dataset}@");
        let mut found = self.hierarchy().list(dataset, spec).await?;
        found.retain(|info| info.name.starts_with(&own));
        found.sort_by_key(|info| info.create_txg);
        Ok(found)
    }

    /// Copies all snapshots that the copy has not; false when it was stopped.
    async fn catch_up(
        &self,
        name: &str,
        plan: &KeyRotationPlan,
        progress: &Progress,
    ) -> Result<bool, EngineError> {
        loop {
            if !progress.goes_on(0) {
                return Ok(false);
            }
            let ours = self.snapshots(name).await?;
            if let Some(token) = self.resume_token().await? {
                let going_on = match resumption(&token, &ours) {
                    Some(place) => self.copy_one(place, plan, progress).await,
                    None => Err(refused("its snapshot is gone")),
                };
                match going_on {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error @ (EngineError::OutOfSpace | EngineError::KeyNotLoaded(_))) => {
                        return Err(error);
                    }
                    // What does not go on is copied anew; what stands in the way of that, too, is told then.
                    Err(_) => self.destroy_interrupted().await?,
                }
                continue;
            }
            let theirs = self.copied_snapshots().await?;
            if !self.follow(&ours, &theirs).await? {
                self.destroy_copy().await?;
                continue;
            }
            let known: BTreeSet<u64> = theirs.iter().map(|info| info.guid.0).collect();
            let done = ours.iter().rposition(|info| known.contains(&info.guid.0));
            let missing = done.map_or(0, |done| done + 1);
            let Some(next) = ours.get(missing) else {
                return Ok(true);
            };
            let from = done.and_then(|done| ours.get(done));
            let request = (next.name.clone(), from.map(|info| info.name.clone()), None);
            if !self.copy_one(request, plan, progress).await? {
                return Ok(false);
            }
        }
    }

    /// Has the copy follow snapshots that were destroyed and renamed; false when it lacks one that it should have, or has none of them: it
    /// is of no use then.
    async fn follow(
        &self,
        ours: &[DatasetInfo],
        theirs: &[DatasetInfo],
    ) -> Result<bool, EngineError> {
        let guids: BTreeSet<u64> = theirs.iter().map(|info| info.guid.0).collect();
        let newest = ours.iter().rposition(|info| guids.contains(&info.guid.0));
        let Some(newest) = newest else {
            // A whole stream takes the place of no encrypted dataset.
            return Ok(self.hierarchy().info(&self.copy()).await.is_err());
        };
        if ours
            .iter()
            .take(newest)
            .any(|info| !guids.contains(&info.guid.0))
        {
            return Ok(false);
        }
        let copy = self.copy();
        let own: BTreeMap<u64, &DatasetInfo> =
            ours.iter().map(|info| (info.guid.0, info)).collect();
        let mut gone = Vec::new();
        let mut renamed = Vec::new();
        for info in theirs {
            match own.get(&info.guid.0) {
                None => gone.push(info.name.clone()),
                Some(own) if short(&own.name) != short(&info.name) => {
                    renamed.push((info, format!("{copy}@{}", short(&own.name))));
                }
                Some(_) => {}
            }
        }
        self.destroy_snapshots(&gone).await?;
        // By names of their own, because one may have got the name of another.
        let between = |info: &DatasetInfo| format!("{copy}@{SHORT_LIVED}{:016x}", info.guid.0);
        for (info, _) in &renamed {
            let name = between(info);
            self.hierarchy().rename(&info.name, &name, false).await?;
        }
        for (info, to) in &renamed {
            let name = between(info);
            self.hierarchy().rename(&name, to, false).await?;
        }
        Ok(true)
    }

    /// Copies a snapshot; false when it was stopped.
    async fn copy_one(
        &self,
        (snapshot, from, resume): (String, Option<String>, Option<SendResume>),
        plan: &KeyRotationPlan,
        progress: &Progress,
    ) -> Result<bool, EngineError> {
        let copy = self.copy();
        let is_new = self.hierarchy().info(&copy).await.is_err();
        let target = ReceiveTarget {
            snapshot: short(&snapshot).to_owned(),
            force: true,
            resumable: true,
            settings: if is_new {
                plan.settings.clone()
            } else {
                Vec::new()
            },
            key: is_new.then(|| plan.key.clone()),
            dataset: copy,
            ..ReceiveTarget::default()
        };
        let copy = SnapshotCopy {
            snapshot,
            from,
            resume,
            target,
        };
        let goes_on = |bytes| progress.goes_on(bytes);
        Box::pin(self.context.copy_snapshot(copy, &goes_on)).await
    }

    /// How far an interrupted copy of a snapshot came.
    async fn resume_token(&self) -> Result<Option<String>, EngineError> {
        let copy = self.copy();
        let wanted = [Property::ReceiveResumeToken.name().to_owned()];
        let found = match self.hierarchy().properties_named(&copy, &wanted).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let token = found.properties.first();
        let token = token.and_then(|entry| entry.value.text());
        Ok(token.filter(|token| !token.is_empty()).map(str::to_owned))
    }

    /// Takes a short-lived snapshot; returns its full name.
    async fn take_snapshot(&self, name: &str) -> Result<String, EngineError> {
        let ours = self.snapshots(name).await?;
        let last = ours.iter().filter_map(|info| number_of(&info.name)).max();
        let number = last.unwrap_or(0) + 1;
        let full = format!("{name}@{SHORT_LIVED}{number}");
        let names = std::slice::from_ref(&full);
        let refused = self.hierarchy().snapshot(names, &[]).await?;
        match refused.into_iter().next() {
            Some((_, error)) => Err(error.into()),
            None => Ok(full),
        }
    }

    /// Destroys the short-lived snapshots of the dataset but one, and of the copy those that go with them.
    async fn destroy_short_lived(&self, name: &str, but: Option<&str>) -> Result<(), EngineError> {
        let ours = self.snapshots(name).await?;
        let old = ours.iter().filter(|info| is_short_lived(info));
        let old: Vec<&DatasetInfo> = old.filter(|info| Some(info.name.as_str()) != but).collect();
        let names: Vec<String> = old.iter().map(|info| info.name.clone()).collect();
        self.destroy_snapshots(&names).await?;
        let mut theirs = self.copied_snapshots().await?;
        theirs.retain(|info| old.iter().any(|own| own.guid == info.guid));
        let names: Vec<String> = theirs.into_iter().map(|info| info.name).collect();
        self.destroy_snapshots(&names).await
    }

    async fn destroy_snapshots(&self, names: &[String]) -> Result<(), EngineError> {
        if names.is_empty() {
            return Ok(());
        }
        let refused = Box::pin(self.context.destroy_snapshots(names, false)).await?;
        match refused.into_iter().next() {
            Some(refusal) => Err(refused_name(&refusal.name, &refusal.error)),
            None => Ok(()),
        }
    }

    /// Destroys what an interrupted copy of a snapshot left.
    async fn destroy_interrupted(&self) -> Result<(), EngineError> {
        let copy = self.copy();
        match self.hierarchy().interrupted_receive(&copy).await {
            Ok(Some((name, _))) => Ok(self.hierarchy().destroy(&name).await?),
            Ok(None) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn destroy_copy(&self) -> Result<(), EngineError> {
        self.destroy_interrupted().await?;
        let copy = self.copy();
        let names = self.copied_snapshots().await?;
        let names: Vec<String> = names.into_iter().map(|info| info.name).collect();
        self.destroy_snapshots(&names).await?;
        match self.hierarchy().info(&copy).await {
            Ok(_) => {
                let options = DestroyOptions::default();
                Box::pin(self.context.destroy_dataset(&copy, options)).await
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Destroys all that belongs to the rotation; the dataset stays as it is, with its old key or with the new one.
    pub(super) async fn clean(&self) -> Result<(), EngineError> {
        if let Some(name) = self.dataset().await? {
            let ours = self.snapshots(&name).await?;
            let ours = ours.into_iter().filter(is_short_lived);
            let names: Vec<String> = ours.map(|info| info.name).collect();
            self.destroy_snapshots(&names).await?;
        }
        self.destroy_copy().await?;
        let options = DestroyOptions::default();
        Box::pin(self.context.destroy_dataset(&self.holder, options)).await
    }
}

/// Where an interrupted copy goes on: the snapshot, the one that it counts from, and the place. None when one of them is gone.
fn resumption(
    token: &str,
    ours: &[DatasetInfo],
) -> Option<(String, Option<String>, Option<SendResume>)> {
    let list = unpack_token(token).ok()?;
    let named = |guid: u64| {
        let found = ours.iter().find(|info| info.guid.0 == guid);
        found.map(|info| info.name.clone())
    };
    let snapshot = named(list.u64("toguid")?)?;
    let from = match list.u64("fromguid").unwrap_or(0) {
        0 => None,
        guid => Some(named(guid)?),
    };
    let place = SendResume {
        object: list.u64("object")?,
        offset: list.u64("offset")?,
    };
    Some((snapshot, from, Some(place)))
}

fn refused_name(name: &str, error: &EngineError) -> EngineError {
    refused(format!("cannot destroy '{name}': {error}"))
}
