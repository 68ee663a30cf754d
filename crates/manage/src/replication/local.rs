//! A side in a pool of this appliance.

use std::collections::BTreeMap;

use engine::property::{Property, Source, Value};
use engine::stream::{SendOptions, SendResume, StreamChunk, package_end, unpack_token};
use engine::{
    DatasetFilter, DatasetInfo, DatasetKind, DestroyOptions, EngineError, PoolHandle,
    PropertyOverrides, PropertyQuery, ReceiveRequest, Refusal, SendPackageRequest, SendRequest,
    SnapshotRequest,
};
use futures_util::{FutureExt as _, StreamExt as _, stream};

use super::fence::acts_as;
use super::identity::{identity_of_source, own_identity, readonly_of};
use super::upkeep::full_name;
use super::{
    ByteStream, Endpoint, FENCED_PROPERTY, Fence, IDENTITY_PROPERTY, Interrupted,
    KEPT_READONLY_PROPERTY, MARK_PROPERTY, Point, Reached, ReceiveSpec, ReplicaDataset,
    ReplicationError, StreamSpec, Switchover, fence_of, take_over,
};

/// Names in one request: what one txg takes in a moment.
const AT_ONCE: usize = 200;

/// See the module.
#[derive(Clone, Debug)]
pub struct LocalEndpoint {
    pool: PoolHandle,
}

impl LocalEndpoint {
    /// Returns the side that lies in this pool.
    #[must_use]
    pub fn new(pool: PoolHandle) -> Self {
        Self { pool }
    }

    /// An error as a run sees it.
    fn error(&self, what: &str, error: &EngineError) -> ReplicationError {
        match error {
            EngineError::PoolNotFound(_) | EngineError::PoolClosed => {
                ReplicationError::Unreachable {
                    place: format!("pool '{}'", self.pool.name()),
                    why: error.to_string(),
                }
            }
            EngineError::OutOfSpace => ReplicationError::OutOfSpace {
                target: self.pool.name().to_owned(),
            },
            EngineError::Receive(text) if text.ends_with("out of space") => {
                ReplicationError::OutOfSpace {
                    target: self.pool.name().to_owned(),
                }
            }
            EngineError::Receive(text) => ReplicationError::Failed(text.clone()),
            EngineError::KeyNotLoaded(name) => ReplicationError::Failed(format!(
                "{what}: {error} ('zfs load-key {name}' loads it)"
            )),
            other => ReplicationError::Failed(format!("{what}: {other}")),
        }
    }

    /// What was refused of a request, but for what is of no consequence.
    fn refused(
        &self,
        what: &str,
        refusals: Vec<Refusal>,
        is_harmless: impl Fn(&EngineError) -> bool,
    ) -> Result<(), ReplicationError> {
        let worst = refusals
            .into_iter()
            .find(|refusal| !is_harmless(&refusal.error));
        worst.map_or(Ok(()), |Refusal { name, error }| {
            Err(self.error(&format!("{what} '{name}'"), &error))
        })
    }

    async fn listed(&self, root: &str) -> Result<Option<Vec<ReplicaDataset>>, EngineError> {
        let filter = |kinds: &[DatasetKind]| DatasetFilter {
            root: root.to_owned(),
            depth: None,
            kinds: kinds.to_vec(),
        };
        let names = [
            "written",
            "receive_resume_token",
            MARK_PROPERTY,
            IDENTITY_PROPERTY,
            FENCED_PROPERTY,
            KEPT_READONLY_PROPERTY,
            "readonly",
        ]
        .map(str::to_owned);
        let heads = filter(&[DatasetKind::Filesystem, DatasetKind::Volume]);
        let heads = match self
            .pool
            .datasets(&heads, &PropertyQuery::Named(names.to_vec()))
            .await
        {
            Err(EngineError::DatasetNotFound(_)) => return Ok(None),
            listed => listed?,
        };
        let mut datasets: Vec<ReplicaDataset> = heads.into_iter().map(dataset_of).collect();
        let places: BTreeMap<String, usize> = datasets
            .iter()
            .enumerate()
            .map(|(at, dataset)| (dataset.name.clone(), at))
            .collect();
        let points = filter(&[DatasetKind::Snapshot, DatasetKind::Bookmark]);
        let wanted = PropertyQuery::Named(vec!["userrefs".to_owned(), "creation".to_owned()]);
        for info in self.pool.datasets(&points, &wanted).await? {
            let Some(split) = info.name.find(['@', '#']) else {
                continue;
            };
            let (head, name) = (&info.name[..split], &info.name[split + 1..]);
            // One that was made since the first list is of the next run.
            let Some(at) = places.get(head).copied() else {
                continue;
            };
            let number = |name: &str| {
                info.property(name)
                    .and_then(|property| property.value.number())
            };
            let point = Point {
                name: name.to_owned(),
                guid: info.guid,
                create_txg: info.create_txg,
                holds: number("userrefs").unwrap_or(0),
                creation: number("creation")
                    .and_then(|seconds| i64::try_from(seconds).ok())
                    .unwrap_or(0),
            };
            match info.kind {
                DatasetKind::Bookmark => datasets[at].bookmarks.push(point),
                _ => datasets[at].snapshots.push(point),
            }
        }
        datasets.iter_mut().for_each(ReplicaDataset::sort);
        Ok(Some(datasets))
    }

    fn send_request(spec: &StreamSpec) -> Result<SendRequest, ReplicationError> {
        let mut options = SendOptions {
            large_blocks: true,
            embedded: true,
            compressed: true,
            raw: spec.raw,
            ..SendOptions::default()
        };
        let mut resume = None;
        if let Some(token) = &spec.token {
            let unreadable = |why: String| {
                ReplicationError::Failed(format!("cannot resume '{}': {why}", spec.dataset))
            };
            let list = unpack_token(token).map_err(|error| unreadable(error.to_string()))?;
            let (Some(object), Some(offset)) = (list.u64("object"), list.u64("offset")) else {
                return Err(unreadable("the token is damaged".to_owned()));
            };
            resume = Some(SendResume { object, offset });
            // What the stream was begun with, it goes on with.
            options.large_blocks = list.has("largeblockok");
            options.embedded = list.has("embedok");
            options.compressed = list.has("compressok");
            options.raw = list.has("rawok");
        }
        Ok(SendRequest {
            snapshot: format!("{}@{}", spec.dataset, spec.snapshot),
            from: spec
                .from
                .as_ref()
                .map(|from| full_name(&spec.dataset, from)),
            options,
            resume,
            redact: None,
        })
    }

    async fn begin(&self, spec: StreamSpec) -> Result<ByteStream, ReplicationError> {
        let request = Self::send_request(&spec)?;
        let what = format!("cannot send '{}'", request.snapshot);
        let mut head = Vec::new();
        if spec.properties && request.resume.is_none() {
            let package = SendPackageRequest {
                snapshot: request.snapshot.clone(),
                properties: true,
                single: true,
                options: request.options,
                ..SendPackageRequest::default()
            };
            let planned = self.pool.plan_send(package).await;
            let planned = planned.map_err(|error| self.error(&what, &error))?;
            // A target would hold the data of an encrypted dataset in the clear, which the job does not say.
            if planned.incomplete {
                return Err(ReplicationError::Failed(format!(
                    "{} ('--raw' sends it as it is stored, '--no-properties' decrypted)",
                    planned.warnings.join("; ")
                )));
            }
            head = planned.head;
        }
        let sending = self
            .pool
            .send(request)
            .await
            .map_err(|error| self.error(&what, &error))?;
        let end = if head.is_empty() {
            Vec::new()
        } else {
            package_end()
        };
        let own = self.clone();
        let body = stream::unfold(Some(sending), move |sending| {
            let (own, what) = (own.clone(), what.clone());
            async move {
                let mut sending = sending?;
                match sending.next_chunk().await {
                    Ok(None) => None,
                    Ok(Some(chunk)) => Some((Ok(chunk), Some(sending))),
                    Err(error) => Some((Err(own.error(&what, &error)), None)),
                }
            }
        });
        let part = |bytes: Vec<u8>| {
            let chunk = (!bytes.is_empty()).then(|| Ok(StreamChunk::from(bytes)));
            stream::iter(chunk)
        };
        // After an error the end would make a whole package of a part.
        let whole = part(head).chain(body).chain(part(end));
        let until_error = whole.scan(false, |failed, chunk| {
            let over = *failed;
            *failed = chunk.is_err();
            futures_util::future::ready((!over).then_some(chunk))
        });
        Ok(until_error.boxed())
    }

    async fn take_in(
        &self,
        spec: ReceiveSpec,
        mut stream: ByteStream,
    ) -> Result<(), ReplicationError> {
        let what = format!("cannot receive into '{}'", spec.dataset);
        let request = ReceiveRequest {
            target: spec.dataset,
            resumable: true,
            without_holds: true,
            single: true,
            overrides: PropertyOverrides {
                set: spec.set,
                excluded: spec.excluded,
            },
            ..ReceiveRequest::default()
        };
        let receiving = self
            .pool
            .receive(request)
            .await
            .map_err(|error| self.error(&what, &error))?;
        let mut broken = None;
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => {
                    if !receiving.write(chunk.into_vec()).await {
                        break;
                    }
                }
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        let received = receiving.finish().await;
        match (broken, received.result) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(()),
            (None, Err(error)) => Err(self.error(&what, &error)),
        }
    }

    /// Carries out a request about many names, part by part.
    async fn each_part<T: Clone, F>(
        &self,
        all: Vec<T>,
        what: &str,
        is_harmless: impl Fn(&EngineError) -> bool,
        request: impl Fn(Vec<T>) -> F,
    ) -> Result<(), ReplicationError>
    where
        F: Future<Output = Result<Vec<Refusal>, EngineError>>,
    {
        for part in all.chunks(AT_ONCE) {
            let mut rest = part.to_vec();
            let refusals = request(rest.clone())
                .await
                .map_err(|error| self.error(what, &error))?;
            if refusals.is_empty() {
                continue;
            }
            self.refused(what, refusals, &is_harmless)?;
            // A part with a refused name was not done at all: its names one by one.
            for one in rest.drain(..) {
                let refusals = request(vec![one])
                    .await
                    .map_err(|error| self.error(what, &error))?;
                self.refused(what, refusals, &is_harmless)?;
            }
        }
        Ok(())
    }
}

fn dataset_of(info: DatasetInfo) -> ReplicaDataset {
    let text = |name: &str| {
        let property = info.property(name)?;
        match &property.value {
            Value::Text(text) if !text.is_empty() && text != "-" => {
                Some((text.clone(), &property.source))
            }
            _ => None,
        }
    };
    let interrupted = text("receive_resume_token").and_then(|(token, _)| {
        let list = unpack_token(&token).ok()?;
        Some(Interrupted {
            from_guid: list.u64("fromguid").filter(|guid| *guid != 0),
            to_guid: list.u64("toguid")?,
            token,
        })
    });
    // Inherited from the dataset above, it is not this one's.
    let mark = text(MARK_PROPERTY).filter(|(_, source)| **source == Source::Local);
    let mark = mark.and_then(|(text, _)| text.parse().ok());
    let written = info
        .properties
        .iter()
        .find(|property| property.native == Some(Property::Written));
    let written_bytes = written
        .and_then(|property| property.value.number())
        .unwrap_or(0);
    ReplicaDataset {
        interrupted,
        mark,
        identity: own_identity(&info),
        fence: fence_of(&info),
        readonly: readonly_of(&info),
        source_identity: identity_of_source(&info),
        written_bytes,
        ..ReplicaDataset::new(info.name.clone(), info.guid, info.kind)
    }
}

fn is_gone(error: &EngineError) -> bool {
    matches!(error, EngineError::DatasetNotFound(_))
}

impl Endpoint for LocalEndpoint {
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        async move {
            let listed = self.listed(root).await;
            listed.map_err(|error| self.error(&format!("cannot list '{root}'"), &error))
        }
        .boxed()
    }

    fn write_out(&self) -> Reached<'_, ()> {
        async move {
            let written = async {
                match self.pool.unchanged_since().await? {
                    Some(_) => Ok(()),
                    None => self.pool.sync().await,
                }
            };
            let what = format!("cannot write out '{}'", self.pool.name());
            written.await.map_err(|error| self.error(&what, &error))
        }
        .boxed()
    }

    fn replay_logs<'a>(&'a self, root: &'a str) -> Reached<'a, ()> {
        async move {
            let replayed = async {
                self.pool.replay_logs(root).await?;
                self.pool.sync().await
            };
            let what = format!("cannot replay the intent logs of '{root}'");
            replayed.await.map_err(|error| self.error(&what, &error))
        }
        .boxed()
    }

    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        async move {
            let since = self.pool.unchanged_since().await;
            let what = format!("cannot look at '{}'", self.pool.name());
            since.map_err(|error| self.error(&what, &error))
        }
        .boxed()
    }

    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move {
            match self.pool.dataset(dataset, &PropertyQuery::None).await {
                Ok(_) => Ok(true),
                Err(error) if is_gone(&error) => Ok(false),
                Err(error) => Err(self.error(&format!("cannot open '{dataset}'"), &error)),
            }
        }
        .boxed()
    }

    fn find<'a>(&'a self, _dataset: &'a str, guid: u64) -> Reached<'a, Option<String>> {
        async move {
            let filter = DatasetFilter {
                root: self.pool.name().to_owned(),
                depth: None,
                kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
            };
            let listed = self.pool.datasets(&filter, &PropertyQuery::None).await;
            let listed = listed.map_err(|error| self.error("cannot list datasets", &error))?;
            Ok(listed
                .into_iter()
                .find(|info| info.guid == guid)
                .map(|info| info.name))
        }
        .boxed()
    }

    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()> {
        async move {
            let request = SnapshotRequest {
                names,
                recursive: false,
                properties: Vec::new(),
            };
            let what = "cannot take a snapshot";
            let refusals = self
                .pool
                .snapshot(request)
                .await
                .map_err(|error| self.error(what, &error))?;
            self.refused(what, refusals, |_| false)
        }
        .boxed()
    }

    fn size(&self, spec: StreamSpec) -> Reached<'_, Option<u64>> {
        async move {
            let request = Self::send_request(&spec)?;
            let what = format!("cannot send '{}'", request.snapshot);
            match self.pool.send_size(request).await {
                Ok(bytes) => Ok(Some(bytes)),
                // Destroyed since it was listed: the stream will say so.
                Err(error) if is_gone(&error) => Ok(None),
                Err(error) => Err(self.error(&what, &error)),
            }
        }
        .boxed()
    }

    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        self.begin(spec).boxed()
    }

    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()> {
        self.take_in(spec, stream).boxed()
    }

    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        async move {
            match self.pool.abort_receive(dataset).await {
                Ok(()) | Err(EngineError::NothingToResume(_)) => Ok(()),
                Err(error) => Err(self.error(
                    &format!("cannot give up the receive into '{dataset}'"),
                    &error,
                )),
            }
        }
        .boxed()
    }

    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        async move {
            let is_harmless = |error: &EngineError| {
                is_gone(error) || matches!(error, EngineError::DatasetExists(_))
            };
            let request = |part: Vec<(String, String)>| async move {
                self.pool.create_bookmarks(&part).await
            };
            self.each_part(pairs, "cannot make the bookmark", is_harmless, request)
                .await
        }
        .boxed()
    }

    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()> {
        async move {
            let request =
                |part: Vec<String>| async move { self.pool.destroy_bookmarks(&part).await };
            self.each_part(names, "cannot destroy the bookmark", is_gone, request)
                .await
        }
        .boxed()
    }

    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()> {
        async move {
            let is_harmless = |error: &EngineError| {
                is_gone(error)
                    || matches!(
                        error,
                        EngineError::Busy(_)
                            | EngineError::HasClones(_)
                            | EngineError::Immutable(_)
                    )
            };
            let request =
                |part: Vec<String>| async move { self.pool.destroy_snapshots(&part, false).await };
            self.each_part(names, "cannot destroy the snapshot", is_harmless, request)
                .await
        }
        .boxed()
    }

    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()> {
        async move {
            let [from, to] = [from, to].map(|name| format!("{dataset}@{name}"));
            let done = self.pool.rename_snapshot(&from, &to, false).await;
            done.map_err(|error| self.error(&format!("cannot rename '{from}'"), &error))
        }
        .boxed()
    }

    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        async move {
            let is_harmless =
                |error: &EngineError| is_gone(error) || matches!(error, EngineError::TagExists(_));
            let request =
                |part: Vec<String>| async move { self.pool.hold(&part, tag, false).await };
            self.each_part(names, "cannot hold", is_harmless, request)
                .await
        }
        .boxed()
    }

    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        async move {
            let is_harmless =
                |error: &EngineError| is_gone(error) || matches!(error, EngineError::NoSuchTag(_));
            let request =
                |part: Vec<String>| async move { self.pool.release(&part, tag, false).await };
            self.each_part(names, "cannot release", is_harmless, request)
                .await
        }
        .boxed()
    }

    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()> {
        async move {
            let settings = [(name.to_owned(), value.to_owned())];
            let done = self.pool.set_dataset_properties(dataset, &settings).await;
            done.map_err(|error| self.error(&format!("cannot set {name} of '{dataset}'"), &error))
        }
        .boxed()
    }

    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        newer: Vec<String>,
    ) -> Reached<'a, ()> {
        async move {
            let what = format!("cannot roll back '{dataset}' to '@{snapshot}'");
            let full: Vec<String> = newer
                .iter()
                .rev()
                .map(|name| format!("{dataset}@{name}"))
                .collect();
            for part in full.chunks(AT_ONCE) {
                let done = self.pool.destroy_snapshots(part, false).await;
                let refusals = done.map_err(|error| self.error(&what, &error))?;
                self.refused(&what, refusals, is_gone)?;
            }
            let target = format!("{dataset}@{snapshot}");
            let done = self.pool.rollback(dataset, Some(&target)).await;
            done.map_err(|error| self.error(&what, &error))
        }
        .boxed()
    }
}

impl Switchover for LocalEndpoint {
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>> {
        take_over(self, root, job).boxed()
    }

    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move {
            let names = [IDENTITY_PROPERTY, FENCED_PROPERTY].map(str::to_owned);
            let query = PropertyQuery::Named(names.to_vec());
            match self.pool.dataset(dataset, &query).await {
                Ok(info) => Ok(dataset_of(info).is_in_use()),
                Err(error) if is_gone(&error) => Ok(false),
                Err(error) => Err(self.error(&format!("cannot open '{dataset}'"), &error)),
            }
        }
        .boxed()
    }

    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()> {
        async move {
            let known = self.list(dataset).await?.unwrap_or_default();
            if let Some(first) = known.first()
                && acts_as(first).generation >= fence.generation
            {
                return Err(ReplicationError::Failed(format!(
                    "'{dataset}' was put in use again meanwhile"
                )));
            }
            // One txg has both.
            let settings = [
                (FENCED_PROPERTY.to_owned(), fence.to_string()),
                ("readonly".to_owned(), "on".to_owned()),
            ];
            let done = self.pool.set_dataset_properties(dataset, &settings).await;
            done.map_err(|error| self.error(&format!("cannot fence '{dataset}'"), &error))
        }
        .boxed()
    }

    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, received: bool) -> Reached<'a, ()> {
        async move {
            let done = self.pool.inherit(dataset, name, received).await;
            done.map_err(|error| {
                self.error(&format!("cannot inherit {name} of '{dataset}'"), &error)
            })
        }
        .boxed()
    }

    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        mark: &'a str,
    ) -> Reached<'a, ()> {
        async move {
            let settings = [(MARK_PROPERTY.to_owned(), mark.to_owned())];
            let done = self
                .pool
                .clone_snapshot(snapshot, name, &settings, false)
                .await;
            done.map_err(|error| self.error(&format!("cannot make '{name}'"), &error))
        }
        .boxed()
    }

    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        async move {
            let done = self
                .pool
                .destroy_dataset(dataset, DestroyOptions { recursive: false })
                .await;
            done.map_err(|error| self.error(&format!("cannot destroy '{dataset}'"), &error))
        }
        .boxed()
    }
}
