//! One stream: what it is received into, with which properties, and its records.
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_receive_one; module/zfs/zfs_ioctl.c, zfs_ioc_recv_impl.

use dsl::stream::{Begin, NvList, ReceiveTarget, Receiver, StreamRecord};
use dsl::{DslError, ListSpec, ReceivedChange};
use ondisk::stream::{ByteOrder, begin_flags, stream_feature};
use runtime::Instant;

use super::input::InputError;
use super::package::Package;
use super::properties::{NewEncryption, applies, is_delayed, is_of_keys, settings_of, stored_name};
use super::{ReceiveRequest, Work, refused, unreadable};
use crate::EngineError;
use crate::property::{DatasetKind, Kinds, Property, Setting, nice_bytes};

/// The dataset in the name of a snapshot.
pub(super) fn dataset_of(snapshot: &[u8]) -> String {
    let name = String::from_utf8_lossy(snapshot);
    name.split('@').next().unwrap_or_default().to_owned()
}

impl ReceiveRequest {
    /// Name of the snapshot that a stream becomes; `sent_as` is the first dataset of its package.
    pub(super) fn destination(&self, sent_as: &str, to_name: &[u8]) -> Result<String, EngineError> {
        let sent = String::from_utf8_lossy(to_name);
        let target = &self.target;
        let names_snapshot = target.contains('@');
        let added = if self.last_element || self.without_pool {
            let letter = if self.last_element { 'e' } else { 'd' };
            if names_snapshot {
                let why = format!("invalid argument - snapshot not allowed with -{letter}");
                return Err(refused(&why));
            }
            let from = match (self.last_element, sent_as.rfind('/')) {
                (true, Some(at)) => Some(at),
                // The last element is the pool's name.
                (true, None) => return Ok(format!("{target}/{sent}")),
                (false, _) => sent.find(['/', '@']),
            };
            from.and_then(|at| sent.get(at..)).unwrap_or_default()
        } else if names_snapshot {
            ""
        } else {
            sent.strip_prefix(sent_as).unwrap_or_default()
        };
        Ok(format!("{target}{added}"))
    }
}

/// A stream whose destination is known.
pub(super) struct Destination<'a> {
    pub(super) begin: &'a Begin,
    /// Full name of the dataset, and name of the snapshot.
    pub(super) dataset: String,
    snapshot: String,
    pub(super) kind: DatasetKind,
    /// Snapshot that it is a clone of.
    pub(super) origin: Option<String>,
    /// The beginning of a refusal.
    heading: &'static str,
    /// It makes a dataset, or replaces all of one.
    wants_new: bool,
    pub(super) existed: bool,
    /// The dataset has the rest of an interrupted receive.
    has_token: bool,
}

impl Destination<'_> {
    pub(super) fn refused(&self, why: impl std::fmt::Display) -> EngineError {
        EngineError::Receive(format!("{}: {why}", self.heading))
    }

    /// The blocks come encrypted.
    pub(super) fn is_raw(&self) -> bool {
        self.begin.features & stream_feature::RAW != 0
    }

    /// It is a whole stream that is not resumed: it makes a dataset that counts from nothing here.
    pub(super) fn makes_dataset(&self) -> bool {
        self.wants_new && self.origin.is_none()
    }

    pub(super) fn full(&self) -> String {
        format!("{}@{}", self.dataset, self.snapshot)
    }
}

/// What happened to the records of a stream.
enum Applied {
    Whole,
    Refused(DslError),
    Unreadable(InputError),
}

impl Work {
    /// Receives one stream, whose BEGIN was read.
    pub(super) async fn stream(
        &mut self,
        begin: Begin,
        sent_as: &str,
        package: Option<&Package>,
    ) -> Result<(), EngineError> {
        let began = self.context.handle.now();
        // The snapshot that a clone counts from is looked for by its guid, in the whole pool.
        if self.request.single && begin.flags & begin_flags::CLONE != 0 {
            return Err(refused(
                "a stream of one dataset is expected, not of a clone",
            ));
        }
        let to = self.destination_of(&begin, sent_as, package).await?;
        if self.request.single && to.dataset != self.request.target {
            return Err(refused("a stream of one dataset is expected"));
        }
        self.check_rights(&to).await?;
        if self.request.heal {
            return self.heal(&to, began).await;
        }
        self.check_destination(&to).await?;
        let recursive = package.is_some_and(|package| package.recursive);
        self.check_overrides(&to, recursive)?;
        self.announce(&to);
        let is_top = self.top.as_ref().is_none_or(|top| *top == to.dataset);
        self.top.get_or_insert_with(|| to.dataset.clone());
        let properties = self.changes_of(&to, package, is_top).await?;
        let encryption = self.encryption_of(&to, package, is_top).await?;
        let list = self.input.list().await.map_err(unreadable)?;
        if self.request.dry_run {
            self.input.accept();
            return self.input.skip().await.map_err(unreadable);
        }
        self.check_byte_order(&to)?;
        let received = self.receive_into(&to, &list, encryption, properties);
        if !received.await? {
            return Ok(());
        }
        self.finish_package_parts(&to, package).await;
        if !to.existed {
            self.new.push(to.dataset.clone());
        } else if to.wants_new {
            self.replaced.push(to.dataset.clone());
        }
        self.received_raw |= to.is_raw();
        self.tell_rate(began);
        Ok(())
    }

    /// Says what is received into what.
    pub(super) fn announce(&self, to: &Destination<'_>) {
        let verb = match self.request.dry_run {
            true => "would receive",
            false => "receiving",
        };
        let corrective = if self.request.heal { "corrective " } else { "" };
        let kind = match to.begin.from_guid {
            0 => "full",
            _ => "incremental",
        };
        let sent = String::from_utf8_lossy(&to.begin.to_name);
        let full = to.full();
        self.progress(format!(
            "{verb} {corrective}{kind} stream of {sent} into {full}"
        ));
    }

    pub(super) fn check_byte_order(&self, to: &Destination<'_>) -> Result<(), EngineError> {
        match self.input.reader().order() {
            Some(ByteOrder::Big) if to.is_raw() => {
                Err(to.refused("raw streams of the other byte order are not supported"))
            }
            _ => Ok(()),
        }
    }

    /// Says how much was received since `began`, and how fast.
    pub(super) fn tell_rate(&self, began: Instant) {
        let bytes = self.input.taken();
        let elapsed = self.context.handle.now().since(began);
        let seconds = elapsed.as_secs_f64().max(1e-9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rate that is shown with three digits"
        )]
        let rate = (bytes as f64 / seconds) as u64;
        self.progress(format!(
            "received {} stream in {seconds:.2} seconds ({}/sec)",
            nice_bytes(bytes),
            nice_bytes(rate)
        ));
    }

    /// Finds out what a stream is received into.
    async fn destination_of<'a>(
        &self,
        begin: &'a Begin,
        sent_as: &str,
        package: Option<&Package>,
    ) -> Result<Destination<'a>, EngineError> {
        let full = self.request.destination(sent_as, &begin.to_name)?;
        let kind = match ondisk::ObjsetType(u64::from(begin.objset_type)) {
            ondisk::ObjsetType::ZFS => DatasetKind::Filesystem,
            ondisk::ObjsetType::ZVOL => DatasetKind::Volume,
            other => return Err(refused(&format!("invalid record type: 0x{}", other.0))),
        };
        if let Err(error) = dsl::namecheck::check(&full, DatasetKind::Snapshot) {
            return Err(refused(&error.to_string()));
        }
        let (dataset, snapshot) = full.split_once('@').expect("the name was checked");
        let (mut dataset, snapshot) = (dataset.to_owned(), snapshot.to_owned());
        let origin = if let Some(origin) = &self.request.origin {
            self.progress(format!("using provided clone origin {origin}"));
            Some(origin.clone())
        } else if begin.flags & begin_flags::CLONE != 0 {
            let found = self.snapshot_by_guid(&dataset, begin.from_guid).await?;
            let Some(origin) = found else {
                let why = format!("local origin for clone {full} does not exist");
                return Err(refused(&why));
            };
            self.progress(format!("found clone origin {origin}"));
            Some(origin)
        } else {
            None
        };
        let resuming = begin.features & stream_feature::RESUMING != 0;
        let is_whole = begin.from_guid == 0 || origin.is_some();
        let wants_new = is_whole && !resuming;
        let heading = match (wants_new, resuming) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            (_, false) => "cannot receive incremental stream",
        };
        let exists = self.exists(&dataset).await;
        // What was renamed here is found by its snapshots.
        if wants_new && let Some((parent, name)) = dataset.rsplit_once('/') {
            let guid = package
                .and_then(|package| package.find(begin.to_guid))
                .map_or(0, |(sent, _)| sent.parent_from);
            if guid != 0
                && !self.exists(parent).await
                && let Some(found) = self.snapshot_by_guid(parent, guid).await?
            {
                dataset = format!("{}/{name}", dataset_of(found.as_bytes()));
            }
        } else if !wants_new && !exists && self.is_below(sent_as, begin) {
            let found = self.snapshot_by_guid(&dataset, begin.from_guid).await?;
            if let Some(found) = found {
                dataset = dataset_of(found.as_bytes());
            }
        }
        let (existed, has_token) = self.exists_with_token(&dataset).await;
        Ok(Destination {
            begin,
            dataset,
            snapshot,
            kind,
            origin,
            heading,
            wants_new,
            existed,
            has_token,
        })
    }

    /// Whether the place of a stream follows from the sender's name rather than from the command line.
    fn is_below(&self, sent_as: &str, begin: &Begin) -> bool {
        let rest = begin.to_name.get(sent_as.len()..).unwrap_or_default();
        let exact = rest.is_empty() || rest.starts_with(b"@");
        self.request.without_pool || self.request.last_element || !exact
    }

    pub(super) async fn exists(&self, name: &str) -> bool {
        self.context.pool.hierarchy().info(name).await.is_ok()
    }

    async fn exists_with_token(&self, dataset: &str) -> (bool, bool) {
        let wanted = [Property::ReceiveResumeToken.name().to_owned()];
        let hierarchy = self.context.pool.hierarchy();
        match hierarchy.properties_named(dataset, &wanted).await {
            Ok(found) => {
                let token = found.properties.first();
                let token = token.and_then(|entry| entry.value.text());
                (true, token.is_some_and(|token| !token.is_empty()))
            }
            Err(_) => (false, false),
        }
    }

    /// The snapshot of a guid: of the dataset named, of those below it, else of those around it.
    async fn snapshot_by_guid(&self, near: &str, guid: u64) -> Result<Option<String>, EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        let spec = ListSpec {
            depth: None,
            kinds: Kinds::SNAPSHOT,
        };
        let mut at = near;
        loop {
            match hierarchy.list(at, spec).await {
                Ok(found) => {
                    if let Some(found) = found.into_iter().find(|info| info.guid.0 == guid) {
                        return Ok(Some(found.name));
                    }
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
            match at.rsplit_once('/') {
                Some((parent, _)) => at = parent,
                None => return Ok(None),
            }
        }
    }

    /// Refuses what cannot be received there.
    async fn check_destination(&self, to: &Destination<'_>) -> Result<(), EngineError> {
        let name = &to.dataset;
        let hierarchy = self.context.pool.hierarchy();
        if !to.existed {
            let Some((parent, _)) = name.rsplit_once('/').filter(|_| to.wants_new) else {
                return Err(to.refused(format!("destination '{name}' does not exist")));
            };
            if self.request.without_pool && !self.request.last_element && !self.request.dry_run {
                self.context.create_parents(name, self.creator).await?;
            }
            return match hierarchy.info(parent).await {
                Ok(info) if info.kind == DatasetKind::Filesystem => Ok(()),
                Ok(_) => Err(to.refused(format!("parent '{parent}' is not a filesystem"))),
                Err(error) if error.is_not_found() && self.request.dry_run => Ok(()),
                Err(error) => Err(EngineError::Receive(format!(
                    "cannot open '{parent}': {error}\n{}: unable to restore to destination",
                    to.heading
                ))),
            };
        }
        let resumes_whole = to.begin.features & stream_feature::RESUMING != 0
            && (to.begin.from_guid == 0 || to.origin.is_some());
        if resumes_whole
            && !self.request.force
            && hierarchy
                .interrupted_receive(name)
                .await?
                .is_none_or(|(filled, _)| filled != *name)
        {
            return Err(to.refused(format!(
                "Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it"
            )));
        }
        let encrypted = hierarchy.key_info(name).await?.is_some();
        if !to.wants_new {
            return match to.is_raw() && !encrypted {
                true => Err(
                    to.refused("cannot perform raw receive on top of existing unencrypted dataset")
                ),
                false => Ok(()),
            };
        }
        if !self.request.force {
            return Err(to.refused(format!(
                "destination '{name}' exists\nmust specify -F to overwrite it"
            )));
        }
        self.check_overwritten(to).await?;
        if to.is_raw() || encrypted {
            return Err(to.refused(
                "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
                 unencrypted one with an encrypted one",
            ));
        }
        Ok(())
    }

    /// What `-F` overwrites with a whole stream has no snapshots, and is no clone.
    async fn check_overwritten(&self, to: &Destination<'_>) -> Result<(), EngineError> {
        let name = &to.dataset;
        let hierarchy = self.context.pool.hierarchy();
        let listed = |kinds| {
            let spec = ListSpec {
                depth: Some(1),
                kinds,
            };
            hierarchy.list(name, spec)
        };
        let own = format!("{name}@");
        let snapshots = listed(Kinds::SNAPSHOT).await?;
        if let Some(first) = snapshots.iter().find(|found| found.name.starts_with(&own)) {
            let first = &first.name;
            return Err(to.refused(format!(
                "destination has snapshots (eg. {first})\nmust destroy them to overwrite it"
            )));
        }
        if to.kind == DatasetKind::Volume {
            if !name.contains('/') {
                return Err(to.refused(format!(
                    "destination {name} is the root dataset\ncannot overwrite with a ZVOL"
                )));
            }
            let below = listed(Kinds::DATASET).await?;
            if let Some(child) = below.iter().find(|found| found.name != *name) {
                let child = &child.name;
                return Err(to.refused(format!(
                    "destination has children (eg. {child})\ncannot overwrite with a ZVOL"
                )));
            }
        }
        let wanted = [Property::Origin.name().to_owned()];
        let found = hierarchy.properties_named(name, &wanted).await?;
        let origin = found
            .properties
            .first()
            .and_then(|entry| entry.value.text());
        if origin.is_some_and(|origin| !origin.is_empty()) {
            return Err(to.refused(format!(
                "destination '{name}' is a clone\nmust destroy it to overwrite it"
            )));
        }
        Ok(())
    }

    /// The changes of properties that go with a stream: those it brings, and those of the command line.
    async fn changes_of(
        &self,
        to: &Destination<'_>,
        package: Option<&Package>,
        is_top: bool,
    ) -> Result<Changes, EngineError> {
        let sent = package.and_then(|package| package.find(to.begin.to_guid));
        let sent = sent.and_then(|(sent, _)| sent.properties.as_ref());
        let recursive = package.is_some_and(|package| package.recursive);
        let mut brought = sent.map(settings_of);
        let mut overridden = Vec::new();
        let stored = match to.existed {
            true => {
                let hierarchy = self.context.pool.hierarchy();
                hierarchy.stored_properties(&to.dataset).await?
            }
            false => dsl::StoredProperties::default(),
        };
        let excluded = self.request.overrides.excluded.iter();
        for name in excluded.filter(|name| !is_of_keys(name)) {
            if !applies(name, to.kind) {
                self.warn(format!(
                    "Warning: {}: property '{name}' does not apply to datasets of this type",
                    to.dataset
                ));
                continue;
            }
            let name = stored_name(name);
            // What is set here is in force whatever comes.
            if stored.local.contains_key(&name) {
                continue;
            }
            let inherits = Property::from_name(&name).is_none_or(Property::inheritable);
            match &mut brought {
                Some(brought) if !inherits => brought.retain(|setting| setting.name() != name),
                _ => overridden.push(ReceivedChange::Inherit(name)),
            }
        }
        let mut typed = Vec::new();
        let set = self.request.overrides.set.iter();
        for (name, value) in set.filter(|(name, _)| !is_of_keys(name)) {
            if !applies(name, to.kind) {
                if recursive {
                    continue;
                }
                return Err(to.refused(format!(
                    "property '{name}' does not apply to datasets of this type"
                )));
            }
            if is_top {
                typed.push((name.clone(), value.clone()));
            } else {
                // Below the first dataset, what is set there is inherited.
                overridden.push(ReceivedChange::Inherit(stored_name(name)));
            }
        }
        let settings = self.context.settings(&typed, to.kind, false);
        let settings = settings.map_err(|error| to.refused(error))?;
        overridden.extend(settings.into_iter().map(ReceivedChange::Set));
        let mut changes = Vec::new();
        let marks = brought.is_some();
        if let Some(brought) = brought {
            changes.extend(forgotten(&stored, &brought));
            changes.extend(brought.into_iter().map(ReceivedChange::Store));
        }
        changes.extend(overridden);
        let (late, early) = changes.into_iter().partition(is_delayed);
        Ok(Changes { early, late, marks })
    }

    fn target_of(&self, to: &Destination<'_>, encryption: NewEncryption) -> ReceiveTarget {
        ReceiveTarget {
            dataset: to.dataset.clone(),
            snapshot: to.snapshot.clone(),
            force: self.request.force,
            creator: self.creator,
            origin: to.origin.clone(),
            resumable: self.request.resumable,
            settings: encryption.settings,
            marks: false,
            key: encryption.key,
            order: self.input.reader().order().unwrap_or_default(),
        }
    }

    /// Receives the records, and makes the snapshot; false when the snapshot is there already, and was passed over.
    async fn receive_into(
        &mut self,
        to: &Destination<'_>,
        list: &NvList,
        encryption: NewEncryption,
        changes: Changes,
    ) -> Result<bool, EngineError> {
        let hierarchy = self.context.pool.hierarchy().clone();
        let mut target = self.target_of(to, encryption);
        let Changes {
            mut early,
            late,
            marks,
        } = changes;
        if !to.existed {
            target.settings.extend(take_first_settings(&mut early));
            target.marks = marks;
        }
        if let Ok(info) = hierarchy.info(&to.dataset).await {
            self.changed.insert(info.guid.0);
        }
        let mut receiver = match hierarchy.receive(target, to.begin.clone(), list).await {
            Ok(receiver) => receiver,
            Err(error @ (DslError::Exists { .. } | DslError::NotFound { .. }))
                if self.has_snapshot(to).await =>
            {
                drop(error);
                self.progress(format!("snap {} already exists; ignoring", to.full()));
                self.input.accept();
                self.input.skip().await.map_err(unreadable)?;
                return Ok(false);
            }
            Err(error) => return Err(self.refusal(to, error).await),
        };
        self.input.accept();
        let mut before = None;
        if !early.is_empty() || marks {
            if to.existed {
                before = hierarchy.stored_properties(&to.dataset).await.ok();
            }
            self.change_properties(to, early.clone(), marks).await;
        }
        let why = match self.apply(&mut receiver).await {
            Applied::Whole => self.finish(to, receiver).await.err(),
            Applied::Refused(error) => {
                receiver.abandon().await;
                Some(self.refusal(to, error).await)
            }
            Applied::Unreadable(error) => {
                let kept = receiver.abandon().await;
                Some(self.unreadable(to, error, kept).await)
            }
        };
        if let Some(why) = why {
            // The dataset is as it was, its properties too.
            if let Some(before) = before {
                let undo = undo(&before, &early);
                self.change_properties(to, undo, false).await;
            }
            return Err(why);
        }
        if !late.is_empty() {
            self.change_properties(to, late, false).await;
        }
        Ok(true)
    }

    async fn finish(&self, to: &Destination<'_>, receiver: Receiver) -> Result<(), EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        let done = if receiver.is_new() {
            receiver.finish().await
        } else {
            // The dataset must be closed while its contents change; requests open it anew.
            let object = match hierarchy.info(&to.dataset).await {
                Ok(info) => info.object.0,
                Err(error) => {
                    receiver.abandon().await;
                    return Err(self.refusal(to, error).await);
                }
            };
            let mut receiver = Some(receiver);
            let mut done = Ok(());
            let closed = self
                .context
                .without(object, async {
                    if let Some(receiver) = receiver.take() {
                        done = receiver.finish().await;
                    }
                    Ok(())
                })
                .await;
            // It could not be closed: what was received must not stay in the way.
            if let Some(receiver) = receiver {
                receiver.abandon().await;
            }
            closed?;
            done
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => Err(self.refusal(to, error).await),
        }
    }

    async fn apply(&mut self, receiver: &mut Receiver) -> Applied {
        loop {
            let record = match self.input.record().await {
                Ok(Some(record)) => record,
                Ok(None) => return Applied::Unreadable(InputError::Truncated),
                Err(error) => return Applied::Unreadable(error),
            };
            let payload = match self.input.payload(ondisk::MAX_BLOCK_SIZE).await {
                Ok(payload) => payload,
                Err(error) => return Applied::Unreadable(error),
            };
            if let Err(error) = receiver.record(&record, &payload).await {
                return Applied::Refused(error);
            }
            if matches!(record, StreamRecord::End { .. }) {
                return Applied::Whole;
            }
        }
    }

    /// Whether the snapshot that a stream would make is there.
    async fn has_snapshot(&self, to: &Destination<'_>) -> bool {
        let spec = ListSpec {
            depth: Some(1),
            kinds: Kinds::SNAPSHOT,
        };
        let hierarchy = self.context.pool.hierarchy();
        let own = format!("{}@", to.dataset);
        let found = hierarchy.list(&to.dataset, spec).await.unwrap_or_default();
        found
            .iter()
            .any(|info| info.guid.0 == to.begin.to_guid && info.name.starts_with(&own))
    }

    /// Changes properties; those that are refused are told, and the receive goes on.
    async fn change_properties(
        &self,
        to: &Destination<'_>,
        changes: Vec<ReceivedChange>,
        marks: bool,
    ) {
        let name = &to.dataset;
        let changes = self.permitted_changes(name, changes).await;
        let hierarchy = self.context.pool.hierarchy();
        match hierarchy.change_received(name, changes, marks).await {
            Ok(refused) => {
                for (property, error) in refused {
                    self.warn(format!(
                        "cannot receive {property} property on {name}: {error}"
                    ));
                }
            }
            Err(error) => self.warn(format!(
                "Warning: failed to receive properties on {name}: {error}"
            )),
        }
        if let Err(error) = self.context.reload_properties().await {
            self.warn(format!("Warning: {name}: {error}"));
        }
    }

    /// Those of changes that the user may make; the others are told, and the receive goes on.
    async fn permitted_changes(
        &self,
        name: &str,
        changes: Vec<ReceivedChange>,
    ) -> Vec<ReceivedChange> {
        let mut permitted = Vec::new();
        for change in changes {
            let property = change.name();
            if self.may_set(name, &property).await {
                permitted.push(change);
            } else {
                self.warn(format!(
                    "cannot receive {property} property on {name}: permission denied"
                ));
            }
        }
        permitted
    }

    /// What a package says of the snapshot itself: its user properties and holds.
    async fn finish_package_parts(&self, to: &Destination<'_>, package: Option<&Package>) {
        let sent = package.and_then(|package| package.find(to.begin.to_guid));
        let Some((sent, snapshot)) = sent else { return };
        let full = to.full();
        let hierarchy = self.context.pool.hierarchy();
        if let Some(properties) = sent.properties_of(snapshot) {
            self.receive_snapshot_properties(&full, properties).await;
        }
        if self.request.without_holds || !self.may(&full, &["hold"]).await {
            return;
        }
        for tag in sent.holds_of(snapshot) {
            let held = hierarchy.hold(std::slice::from_ref(&full), &tag).await;
            if let Err(error) = held {
                self.warn(format!("Warning: cannot hold '{full}' ({tag}): {error}"));
            }
        }
    }

    pub(super) async fn receive_snapshot_properties(&self, snapshot: &str, properties: &NvList) {
        let settings = settings_of(properties);
        if settings.is_empty() {
            return;
        }
        let changes = settings.into_iter().map(ReceivedChange::Store).collect();
        let changes = self.permitted_changes(snapshot, changes).await;
        let hierarchy = self.context.pool.hierarchy();
        match hierarchy.change_received(snapshot, changes, true).await {
            Ok(_) => {}
            Err(error) => self.warn(format!(
                "Warning: failed to receive properties on {snapshot}: {error}"
            )),
        }
    }

    /// Why the bytes of a stream came to no end.
    async fn unreadable(&self, to: &Destination<'_>, error: InputError, kept: bool) -> EngineError {
        let why = match error {
            InputError::Truncated => "incomplete stream",
            InputError::Checksum => "checksum mismatch",
            InputError::NotAStream | InputError::Malformed => "invalid backup stream",
        };
        let token = if kept {
            let wanted = [Property::ReceiveResumeToken.name().to_owned()];
            let hierarchy = self.context.pool.hierarchy();
            let found = hierarchy.properties_named(&to.dataset, &wanted).await.ok();
            found
                .and_then(|found| found.properties.into_iter().next())
                .and_then(|entry| entry.value.text().map(str::to_owned))
                .filter(|token| !token.is_empty())
        } else {
            None
        };
        match token {
            Some(token) => to.refused(format!(
                "checksum mismatch or incomplete stream.\n\
                 Partially received snapshot is saved.\n\
                 A resuming stream can be generated on the sending system by running:\n\
                 \u{20}   zfs send -t {token}"
            )),
            None => to.refused(why),
        }
    }

    /// Why a stream was refused, in OpenZFS's words.
    async fn refusal(&self, to: &Destination<'_>, error: DslError) -> EngineError {
        let name = &to.dataset;
        match error {
            DslError::NoSource { .. } => to.refused(format!(
                "most recent snapshot of {name} does not\nmatch incremental source"
            )),
            DslError::Modified { .. } => to.refused(format!(
                "destination {name} has been modified\nsince most recent snapshot"
            )),
            DslError::Exists { .. } => {
                let what = if to.existed { to.full() } else { name.clone() };
                EngineError::Receive(format!(
                    "cannot restore to {what}: destination already exists"
                ))
            }
            DslError::ResumeExists { .. } => EngineError::Receive(format!(
                "cannot resume recv {}: Resuming recv on existing dataset without force",
                to.full()
            )),
            DslError::Busy { .. } if to.has_token => to.refused(format!(
                "destination {name} contains partially-complete state from \"zfs receive -s\"."
            )),
            DslError::KeyNotLoaded { .. } | DslError::NoKey => {
                to.refused("inherited key must be loaded")
            }
            DslError::FeatureDisabled { .. } => {
                to.refused("pool must be upgraded to receive this stream.")
            }
            DslError::Quota { .. } => {
                to.refused(format!("destination {name} space quota exceeded."))
            }
            DslError::Redaction(_) if self.request.resumable => {
                to.refused("kernel modules must be upgraded to receive this stream.")
            }
            DslError::NotResumable { .. } | DslError::Redaction(_) | DslError::Stream(_) => {
                to.refused("invalid backup stream")
            }
            other => to.refused(other),
        }
    }
}

/// Changes of properties that go with a stream.
struct Changes {
    /// Made before the records come, so that they are written as the properties say.
    early: Vec<ReceivedChange>,
    /// Made when all is received.
    late: Vec<ReceivedChange>,
    /// The stream brings properties: the dataset is marked as one that received some.
    marks: bool,
}

/// What a stream brings takes the place of what was received before. A dataset that never received properties gives up what is set
/// on it, as in OpenZFS: it was received from the same sender, whose values they are.
fn forgotten(
    stored: &dsl::StoredProperties,
    brought: &[crate::property::Setting],
) -> Vec<ReceivedChange> {
    let comes = |name: &str| brought.iter().any(|setting| setting.name() == name);
    if stored.has_received {
        let gone = stored.received.keys().filter(|name| !comes(name));
        return gone.cloned().map(ReceivedChange::Forget).collect();
    }
    let local = stored.local.keys().cloned();
    local.map(ReceivedChange::Clear).collect()
}

/// The changes that take back those of a receive that failed.
fn undo(before: &dsl::StoredProperties, made: &[ReceivedChange]) -> Vec<ReceivedChange> {
    let mut changes = Vec::new();
    for change in made {
        let name = change.name();
        let local = before.local.get(&name);
        match change {
            ReceivedChange::Store(_) | ReceivedChange::Forget(_) => {
                changes.push(match before.received.get(&name) {
                    Some(value) => ReceivedChange::Store(setting_of(&name, value)),
                    None => ReceivedChange::Forget(name),
                });
            }
            ReceivedChange::Set(_) | ReceivedChange::Inherit(_) | ReceivedChange::Clear(_) => {
                changes.push(match local {
                    Some(value) => ReceivedChange::Set(setting_of(&name, value)),
                    None => ReceivedChange::Clear(name),
                });
            }
        }
    }
    changes
}

fn setting_of(name: &str, value: &crate::property::Value) -> crate::property::Setting {
    match Property::from_name(name) {
        Some(property) => Setting::Native(property, value.clone()),
        None => Setting::User(name.to_owned(), value.text().unwrap_or_default().to_owned()),
    }
}

/// Takes out of changes what is set that says whose a new dataset is, and what keeps it from acting: that is there as soon as the dataset,
/// since a receive that is cut off right then goes on without setting anything.
fn take_first_settings(changes: &mut Vec<ReceivedChange>) -> Vec<Setting> {
    let is_first = |change: &mut ReceivedChange| {
        matches!(
            change,
            ReceivedChange::Set(
                Setting::User(..) | Setting::Native(Property::ReadOnly | Property::CanMount, _)
            )
        )
    };
    let taken = changes.extract_if(.., is_first);
    let setting = |change| match change {
        ReceivedChange::Set(setting) => Some(setting),
        _ => None,
    };
    taken.filter_map(setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_command_line() {
        for (target, letter, sent_as, sent, expect) in [
            ("b/x", ' ', "tank/fs", "tank/fs@a", "b/x@a"),
            ("b/x", ' ', "tank/fs", "tank/fs/kid@a", "b/x/kid@a"),
            ("b/x@z", ' ', "tank/fs", "tank/fs@a", "b/x@z"),
            ("b/x", 'd', "tank/fs", "tank/fs@a", "b/x/fs@a"),
            ("b/x", 'd', "tank", "tank@a", "b/x@a"),
            ("b/x", 'd', "tank/fs/kid", "tank/fs/kid@a", "b/x/fs/kid@a"),
            ("b/x", 'e', "tank/fs/kid", "tank/fs/kid@a", "b/x/kid@a"),
            ("b/x", 'e', "tank/fs", "tank/fs/kid@a", "b/x/fs/kid@a"),
            ("b/x", 'e', "tank", "tank@a", "b/x/tank@a"),
        ] {
            let request = ReceiveRequest {
                target: target.to_owned(),
                without_pool: letter == 'd',
                last_element: letter == 'e',
                ..ReceiveRequest::default()
            };
            let name = request.destination(sent_as, sent.as_bytes());
            assert_eq!(
                name.expect("it can be received"),
                expect,
                "{target} -{letter} {sent}"
            );
        }
    }
}
