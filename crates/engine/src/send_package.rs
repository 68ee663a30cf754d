//! Packages of streams: which snapshots of which datasets are sent, in which order, and what stands at the head of the package.
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, gather_nvlist (the list) and dump_filesystems (the order).

use std::collections::{BTreeMap, BTreeSet};

use dsl::ListSpec;
use dsl::stream::{NvList, SendOptions, package_begin};

use crate::pool_mailbox::{PoolContext, Request};
use crate::property::{Kinds, Property, Source, Value};
use crate::{EngineError, PoolHandle, SendRequest};

/// What a package is to contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendPackageRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Name of the snapshot that the package counts from, without the dataset's.
    pub from: Option<String>,
    /// The package counts from the snapshot that the dataset is a clone of.
    pub from_origin: bool,
    /// Datasets below go along (`-R`).
    pub recursive: bool,
    /// All snapshots in between go along (`-I`, and `-R` of everything).
    pub all_between: bool,
    /// Properties go along (`-p`).
    pub properties: bool,
    /// Received properties go along, as they came (`-b`).
    pub received_only: bool,
    /// Holds go along (`-h`).
    pub holds: bool,
    /// Datasets without the snapshot are left out (`-s`).
    pub skip_missing: bool,
    /// Full names of datasets that are left out, with those below (`-X`).
    pub excluded: Vec<String>,
    /// It is one stream, not all that a dataset has: nothing before it is needed.
    pub single: bool,
    /// What the streams may contain.
    pub options: SendOptions,
}

/// What a package is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendPlan {
    /// The records that open the package.
    pub head: Vec<u8>,
    /// Its streams, in order.
    pub streams: Vec<SendRequest>,
    /// What is not as asked for, and is told.
    pub warnings: Vec<String>,
    /// Something asked for is not there: the command fails in the end.
    pub incomplete: bool,
}

impl PoolHandle {
    /// Returns what a package of streams is made of.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`]; of reading.
    pub fn plan_send(
        &self,
        request: SendPackageRequest,
    ) -> Request<'_, Result<SendPlan, EngineError>> {
        Box::pin(async move {
            // Each of its streams needs a permission; what is told here is names, properties and holds.
            self.query(move |context| async move {
                let datasets = context.sent_datasets(&request).await?;
                Ok(plan(&request, datasets))
            })
            .await
        })
    }
}

/// A dataset of a package.
struct Sent {
    name: String,
    guid: u64,
    create_txg: u64,
    origin: Option<Origin>,
    properties: NvList,
    /// Of an encrypted one: whether its keys are wrapped by a key of its own.
    is_encryption_root: Option<bool>,
    /// The oldest first.
    snapshots: Vec<SentSnapshot>,
}

struct Origin {
    name: String,
    guid: u64,
}

struct SentSnapshot {
    short: String,
    guid: u64,
    txg: u64,
    properties: NvList,
    holds: NvList,
}

impl Sent {
    fn snapshot(&self, short: &str) -> Option<&SentSnapshot> {
        self.snapshots.iter().find(|found| found.short == short)
    }
}

impl PoolContext {
    /// The datasets from the one of the snapshot down, parents first.
    async fn sent_datasets(&self, request: &SendPackageRequest) -> Result<Vec<Sent>, EngineError> {
        let (top, _) = split(&request.snapshot);
        let spec = ListSpec {
            depth: if request.recursive { None } else { Some(1) },
            kinds: Kinds::DATASET.union(Kinds::SNAPSHOT),
        };
        let hierarchy = self.pool.hierarchy();
        let listed = hierarchy.list_properties(top, spec, None).await?;
        let mut all: Vec<Sent> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut snapshots = Vec::new();
        for found in listed {
            let properties = sent_properties(&found.properties, request.received_only);
            let info = found.info;
            if let Some((dataset, short)) = info.name.split_once('@') {
                let mut snapshot = SentSnapshot {
                    short: short.to_owned(),
                    guid: info.guid.0,
                    txg: info.create_txg.0,
                    properties,
                    holds: NvList::new(),
                };
                if request.holds {
                    for (tag, time) in hierarchy.holds(&info.name).await? {
                        snapshot.holds.insert(tag, time);
                    }
                }
                snapshots.push((dataset.to_owned(), snapshot));
                continue;
            }
            if !request.recursive && info.name != top {
                continue;
            }
            let origin = found.properties.iter().find_map(|entry| {
                let text = entry.value.text().filter(|text| !text.is_empty());
                text.filter(|_| entry.property == Some(Property::Origin))
            });
            let origin = match origin {
                Some(name) => Some(Origin {
                    name: name.to_owned(),
                    guid: hierarchy.info(name).await?.guid.0,
                }),
                None => None,
            };
            let key = hierarchy.key_info(&info.name).await?;
            places.insert(info.name.clone(), all.len());
            all.push(Sent {
                is_encryption_root: key.map(|key| key.root == info.name),
                name: info.name,
                guid: info.guid.0,
                create_txg: info.create_txg.0,
                origin,
                properties,
                snapshots: Vec::new(),
            });
        }
        for (dataset, snapshot) in snapshots {
            if let Some(place) = places.get(&dataset) {
                all[*place].snapshots.push(snapshot);
            }
        }
        for sent in &mut all {
            sent.snapshots.sort_by_key(|snapshot| snapshot.txg);
        }
        Ok(all)
    }
}

fn split(snapshot: &str) -> (&str, &str) {
    snapshot.split_once('@').unwrap_or((snapshot, ""))
}

/// What goes along of a dataset's properties: what was set or received there.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, send_iterate_prop
fn sent_properties(properties: &[dsl::PropertyEntry], received_only: bool) -> NvList {
    let mut list = NvList::new();
    for entry in properties {
        if let Some(native) = entry.property
            && (native.read_only() || matches!(native, Property::VolSize | Property::Version))
        {
            continue;
        }
        let value = if received_only {
            entry.received.as_ref()
        } else {
            let own = matches!(entry.source, Source::Local | Source::Received);
            own.then_some(&entry.value)
        };
        match value {
            Some(Value::Number(number)) => list.insert(&entry.name, *number),
            Some(Value::Text(text)) => list.insert(&entry.name, text.as_str()),
            None => {}
        }
    }
    list
}

/// A package in the making.
struct Planner<'a> {
    request: &'a SendPackageRequest,
    to: &'a str,
    /// Places of the datasets that are sent, with the guid of the parent's snapshot that each counts from.
    chosen: Vec<(usize, u64)>,
    plan: SendPlan,
}

fn plan(request: &SendPackageRequest, datasets: Vec<Sent>) -> SendPlan {
    let (_, to) = split(&request.snapshot);
    let mut planner = Planner {
        request,
        to,
        chosen: Vec::new(),
        plan: SendPlan::default(),
    };
    planner.choose(&datasets);
    planner.check_encrypted(&datasets);
    planner.plan.head = planner.head(&datasets);
    planner.order(&datasets);
    planner.plan
}

impl Planner<'_> {
    /// Properties of encrypted datasets go with raw streams alone: a receiver would need new keys for others.
    // OpenZFS: lib/libzfs/libzfs_sendrecv.c, send_iterate_fs
    fn check_encrypted(&mut self, datasets: &[Sent]) {
        let mut chosen = self.chosen.iter().map(|(place, _)| &datasets[*place]);
        let found = chosen.find(|sent| sent.is_encryption_root.is_some());
        let Some(sent) = found.filter(|_| self.has_list() && !self.request.options.raw) else {
            return;
        };
        self.plan.warnings.push(format!(
            "cannot send {}: encrypted dataset {} may not be sent with properties without the raw flag",
            self.request.snapshot, sent.name
        ));
        self.plan.incomplete = true;
    }

    /// Chooses the datasets: those that have the snapshot.
    fn choose(&mut self, datasets: &[Sent]) {
        let request = self.request;
        // Of each chosen dataset by name: the guid that its children count from, and the txg of the snapshot sent.
        let mut known: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let mut left_out: BTreeSet<&str> = BTreeSet::new();
        for (place, sent) in datasets.iter().enumerate() {
            let parent = sent.name.rsplit_once('/').map(|(parent, _)| parent);
            let above = parent.and_then(|parent| known.get(parent)).copied();
            let below_left_out = parent.is_some_and(|parent| left_out.contains(parent));
            if below_left_out || request.excluded.contains(&sent.name) {
                left_out.insert(&sent.name);
                continue;
            }
            let Some(snapshot) = sent.snapshot(self.to) else {
                left_out.insert(&sent.name);
                // What is younger than the snapshot of its parent cannot have it.
                if above.is_some_and(|(_, txg)| sent.create_txg > txg) {
                    continue;
                }
                let (name, to) = (&sent.name, self.to);
                if request.skip_missing {
                    self.plan.warnings.push(format!(
                        "WARNING: skipping dataset {name} and its children: snapshot {to} does not exist"
                    ));
                } else {
                    let how = if request.recursive {
                        " recursively"
                    } else {
                        ""
                    };
                    self.plan.warnings.push(format!(
                        "cannot send {}{how}: snapshot {name}@{to} does not exist",
                        request.snapshot
                    ));
                    self.plan.incomplete = true;
                }
                continue;
            };
            let from = request.from.as_deref();
            let from = from.and_then(|from| sent.snapshot(from));
            let counted = from
                .filter(|from| from.txg <= snapshot.txg)
                .unwrap_or(snapshot);
            known.insert(&sent.name, (counted.guid, snapshot.txg));
            self.chosen.push((place, above.map_or(0, |(guid, _)| guid)));
        }
    }

    fn has_list(&self) -> bool {
        let request = self.request;
        let single = request.single && request.received_only;
        request.recursive || request.properties || request.holds || single
    }

    fn head(&self, datasets: &[Sent]) -> Vec<u8> {
        let request = self.request;
        let features = if request.holds {
            ondisk::stream::stream_feature::HOLDS
        } else {
            0
        };
        if !self.has_list() {
            return package_begin(&request.snapshot, features, &NvList::new());
        }
        let mut head = NvList::new();
        if let Some(from) = request.from.as_deref().filter(|_| !request.single) {
            head.insert("fromsnap", from);
        }
        head.insert("tosnap", self.to);
        if !request.recursive {
            head.insert_flag("not_recursive");
        }
        let mut all = NvList::new();
        for (place, parent_from) in &self.chosen {
            let sent = &datasets[*place];
            all.insert(format!("0x{:x}", sent.guid), self.entry(sent, *parent_from));
        }
        head.insert("fss", all);
        package_begin(&request.snapshot, features, &head)
    }

    /// What the list says of a dataset.
    fn entry(&self, sent: &Sent, parent_from: u64) -> NvList {
        let request = self.request;
        let mut entry = NvList::new()
            .with("name", sent.name.as_str())
            .with("parentfromsnap", parent_from);
        if let Some(origin) = &sent.origin {
            entry.insert("origin", origin.guid);
        }
        if sent.is_encryption_root == Some(true) {
            entry.insert_flag("is_encroot");
        }
        if request.properties || request.received_only || request.recursive {
            entry.insert("props", sent.properties.clone());
        }
        let (mut snaps, mut properties, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        let last = sent.snapshot(self.to).map_or(u64::MAX, |to| to.txg);
        let from = request.from.as_deref().and_then(|from| sent.snapshot(from));
        let first = from.map_or(0, |from| from.txg);
        for snapshot in sent.snapshots.iter().filter(|found| found.txg <= last) {
            let only_to = !request.recursive && !request.all_between;
            if only_to && snapshot.short != self.to {
                continue;
            }
            if !request.recursive && snapshot.txg < first {
                continue;
            }
            snaps.insert(&snapshot.short, snapshot.guid);
            if !request.recursive && request.all_between && snapshot.txg <= first {
                continue;
            }
            properties.insert(&snapshot.short, snapshot.properties.clone());
            if request.holds {
                holds.insert(&snapshot.short, snapshot.holds.clone());
            }
        }
        entry.insert("snaps", snaps);
        entry.insert("snapprops", properties);
        if request.holds {
            entry.insert("snapholds", holds);
        }
        entry
    }

    /// Puts the streams in order: what a dataset is below of, and what it is a clone of, comes before it.
    fn order(&mut self, datasets: &[Sent]) {
        let guids = |place: usize| datasets[place].snapshots.iter().map(|found| found.guid);
        let inside: BTreeSet<u64> = self
            .chosen
            .iter()
            .flat_map(|(place, _)| guids(*place))
            .collect();
        let origins: BTreeSet<u64> = self
            .chosen
            .iter()
            .filter_map(|(place, _)| datasets[*place].origin.as_ref().map(|origin| origin.guid))
            .collect();
        let mut sent: BTreeSet<u64> = BTreeSet::new();
        let mut waiting = std::mem::take(&mut self.chosen);
        loop {
            let before = waiting.len();
            waiting.retain(|(place, parent_from)| {
                let dataset = &datasets[*place];
                let origin = dataset.origin.as_ref().map_or(0, |origin| origin.guid);
                let waits =
                    |guid: u64| guid != 0 && inside.contains(&guid) && !sent.contains(&guid);
                if waits(*parent_from) || waits(origin) {
                    return true;
                }
                sent.extend(guids(*place));
                self.streams_of(dataset, &origins);
                false
            });
            if waiting.is_empty() || waiting.len() == before {
                break;
            }
        }
    }

    /// The streams of one dataset.
    // OpenZFS: lib/libzfs/libzfs_sendrecv.c, dump_filesystem and dump_snapshot
    fn streams_of(&mut self, sent: &Sent, origins: &BTreeSet<u64>) {
        let request = self.request;
        let from = request.from.as_deref();
        let has_from = from.is_some_and(|from| sent.snapshot(from).is_some());
        let mut seen_from = from.is_none() || (request.recursive && !has_from);
        let mut before: Option<String> = None;
        let mut seen_to = false;
        for snapshot in &sent.snapshots {
            let full = format!("{}@{}", sent.name, snapshot.short);
            if !seen_from && from == Some(snapshot.short.as_str()) {
                seen_from = true;
                before = Some(full);
                continue;
            }
            if seen_to || !seen_from {
                continue;
            }
            seen_to = snapshot.short == self.to;
            let wanted = seen_to
                || request.all_between
                || (request.recursive && origins.contains(&snapshot.guid));
            if !wanted {
                continue;
            }
            let from_origin = request.from_origin || request.recursive;
            let origin = sent.origin.as_ref().filter(|_| from_origin);
            let counted = before.take();
            let counted = counted.or_else(|| origin.map(|origin| origin.name.clone()));
            self.plan.streams.push(SendRequest {
                snapshot: full.clone(),
                from: counted,
                options: request.options,
                ..SendRequest::default()
            });
            before = Some(full);
        }
        let (name, to) = (&sent.name, self.to);
        let from = from.unwrap_or_default();
        let problem = if !seen_from {
            format!("incremental source ({name}@{from}) does not exist")
        } else if !seen_to {
            format!("incremental source ({name}@{from}) is not earlier than it")
        } else {
            return;
        };
        self.plan
            .warnings
            .push(format!("WARNING: could not send {name}@{to}:\n{problem}"));
        self.plan.incomplete = true;
    }
}
