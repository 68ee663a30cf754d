//! What a peer may ask for: each name that comes over the wire is read strictly and lies in a dataset that the peer reaches, and each change is
//! one that jobs make. All of it is decided here, before anything is asked of a pool, but for what only the pool knows: by which job a snapshot
//! or a clone was made ([`Allowed`]).

use std::collections::BTreeSet;

use engine::property::{Attribute, PROPERTIES};
use engine::stream::unpack_token;
use engine::{DatasetKind, namecheck};

use super::definition::Peer;
use super::message::{Request, WireFrom, WireReceive, WireStream};
use crate::replication::{
    FENCED_PROPERTY, IDENTITY_PROPERTY, KEPT_READONLY_PROPERTY, MARK_PROPERTY, Mark, is_tag,
    tag_of_bookmark, tag_of_snapshot,
};

/// Names in a request, at most.
pub const NAMES_MAX: usize = 20_000;
/// Properties in a request, at most.
const PROPERTIES_MAX: usize = 500;
/// Bytes of a property's value, at most.
// OpenZFS: include/sys/fs/zfs.h, ZAP_MAXVALUELEN
const VALUE_BYTES_MAX: usize = 8192;
/// Native properties that a peer sets, or that come in force with a stream: they say how data is stored and how much of it there may be. All
/// others act on this machine (mount points, shares, devices), or let files act.
const STORED: &[&str] = &[
    "aclinherit",
    "aclmode",
    "acltype",
    "atime",
    "checksum",
    "compression",
    "copies",
    "dedup",
    "direct",
    "dnodesize",
    "filesystem_limit",
    "logbias",
    "longname",
    "prefetch",
    "primarycache",
    "quota",
    "readonly",
    "recordsize",
    "redundant_metadata",
    "refquota",
    "refreservation",
    "relatime",
    "reservation",
    "secondarycache",
    "snapdir",
    "snapshot_limit",
    "special_small_blocks",
    "sync",
    "version",
    "volsize",
    "volthreading",
    "xattr",
];
/// Begins the user properties that act on this appliance.
const OF_APPLIANCE: &str = "org.sanbox:";
/// Those of them that may come with a stream and are not put in force.
const OF_APPLIANCE_KNOWN: &[&str] = &[
    "org.sanbox:immutable",
    "org.sanbox:lu",
    "org.sanbox:lun",
    "org.sanbox:nbd",
    "org.sanbox:policy",
];

/// A request that is allowed as far as its words tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The pool that it is about.
    pub pool: String,
    /// Snapshots, by dataset and name, that have to be ones that a job sent.
    pub sent: Vec<(String, String)>,
    /// A dataset whose content changes: it must not be in use in place of its source.
    pub changed: Option<String>,
    /// A dataset that has to be a clone of a test.
    pub test_clone: Option<String>,
}

/// Checks a request of a peer.
///
/// # Errors
/// What is not allowed, in words.
pub fn check(peer: &Peer, request: &Request) -> Result<Allowed, String> {
    let mut asked = Asked {
        peer,
        pools: BTreeSet::new(),
        allowed: Allowed::default(),
    };
    asked.rights(request)?;
    asked.names(request)?;
    let mut pools = asked.pools.into_iter();
    match (pools.next(), pools.next()) {
        (Some(pool), None) => Ok(Allowed {
            pool,
            ..asked.allowed
        }),
        (None, _) => Err("nothing is named".to_owned()),
        _ => Err("one request is about one pool".to_owned()),
    }
}

/// Returns the properties that a stream may bring and that are not put in force, beside those that the request names.
#[must_use]
pub fn excluded(into: &WireReceive) -> Vec<String> {
    let acts = PROPERTIES.iter().filter(|known| {
        let is_set = matches!(known.attribute, Attribute::Default | Attribute::Inherit);
        is_set && !STORED.contains(&known.name)
    });
    let names = acts
        .map(|known| known.name)
        .chain(OF_APPLIANCE_KNOWN.iter().copied());
    let mut all: BTreeSet<String> = names.map(str::to_owned).collect();
    all.extend(into.excluded.iter().cloned());
    all.retain(|name| into.set.iter().all(|(set, _)| set != name));
    all.into_iter().collect()
}

/// A request that is looked at.
struct Asked<'a> {
    peer: &'a Peer,
    pools: BTreeSet<String>,
    allowed: Allowed,
}

impl Asked<'_> {
    /// Whether the peer may do such a thing at all.
    fn rights(&self, request: &Request) -> Result<(), String> {
        // What was written to a copy that is in use goes back.
        let Peer { push, failover, .. } = *self.peer;
        let pull = self.peer.pull || failover;
        let (may, right) = match request {
            Request::Pair { .. } => return Err("it is paired already".to_owned()),
            Request::List { .. }
            | Request::Exists { .. }
            | Request::DestroySnapshots { .. }
            | Request::Hold { .. }
            | Request::Release { .. } => (push || pull, "--push or --pull"),
            Request::TakeOver { .. } | Request::Fence { .. } => (failover, "--failover"),
            Request::WriteOut { .. }
            | Request::UnchangedSince { .. }
            | Request::Find { .. }
            | Request::Snapshot { .. }
            | Request::Size { .. }
            | Request::Send { .. }
            | Request::Bookmark { .. }
            | Request::DestroyBookmarks { .. } => (pull, "--pull"),
            Request::Receive { .. }
            | Request::DiscardInterrupted { .. }
            | Request::Set { .. }
            | Request::Rollback { .. }
            | Request::RenameSnapshot { .. }
            | Request::ReplayLogs { .. }
            | Request::Inherit { .. }
            | Request::CloneSnapshot { .. }
            | Request::Destroy { .. } => (push, "--push"),
        };
        match may {
            true => Ok(()),
            false => Err(format!(
                "it was not invited with {right} ('sanbox peer remove' and 'sanbox peer invite' there give other rights)"
            )),
        }
    }

    fn names(&mut self, request: &Request) -> Result<(), String> {
        match request {
            Request::Pair { .. } => Ok(()),
            Request::List { root }
            | Request::WriteOut { root }
            | Request::ReplayLogs { root }
            | Request::UnchangedSince { root } => self.dataset(root),
            Request::Exists { dataset } => self.dataset_or_above(dataset),
            Request::Find { dataset, .. } | Request::DiscardInterrupted { dataset } => {
                self.dataset(dataset)
            }
            Request::Snapshot { names } => self.each(names, |asked, name| asked.own_snapshot(name)),
            Request::Size { stream } | Request::Send { stream } => self.stream(stream),
            Request::Receive { into } => self.receive(into),
            Request::Bookmark { pairs } => self.each(pairs, Self::bookmark),
            Request::DestroyBookmarks { names } => {
                self.each(names, |asked, name| asked.own_bookmark(name))
            }
            Request::DestroySnapshots { names } => {
                self.each(names, |asked, name| asked.destroyed(name))
            }
            Request::Hold { names, tag } | Request::Release { names, tag } => {
                if !is_tag(tag) {
                    return Err(format!("'{}' is no tag of a job", shown(tag)));
                }
                self.each(names, |asked, name| {
                    asked.point(name, DatasetKind::Snapshot).map(|_| ())
                })
            }
            change => self.change(change),
        }
    }

    /// The names in a change of what jobs made.
    fn change(&mut self, request: &Request) -> Result<(), String> {
        match request {
            Request::Set {
                dataset,
                name,
                value,
            } => {
                self.dataset(dataset)?;
                settable(dataset, name, value)
            }
            Request::Rollback {
                dataset,
                snapshot,
                newer,
            } => {
                self.snapshot_of(dataset, snapshot)?;
                self.allowed.changed = Some(dataset.clone());
                let newer = newer.iter().take(NAMES_MAX + 1);
                newer
                    .enumerate()
                    .try_for_each(|(at, name)| match at < NAMES_MAX {
                        true => self.snapshot_of(dataset, name),
                        false => Err(too_many_names()),
                    })
            }
            Request::RenameSnapshot { dataset, from, to } => {
                self.snapshot_of(dataset, from)?;
                self.allowed.changed = Some(dataset.clone());
                self.snapshot_of(dataset, to)
            }
            Request::Inherit { dataset, name, .. } => {
                self.dataset(dataset)?;
                let of_failover = [IDENTITY_PROPERTY, FENCED_PROPERTY].contains(&name.as_str());
                let is_identity = of_failover && self.peer.failover;
                let is_plain = ["readonly", KEPT_READONLY_PROPERTY, MARK_PROPERTY];
                match is_plain.contains(&name.as_str()) || is_identity {
                    true => Ok(()),
                    false => Err(where_it_is(dataset, name)),
                }
            }
            Request::CloneSnapshot {
                snapshot,
                name,
                mark,
            } => {
                self.point(snapshot, DatasetKind::Snapshot)?;
                self.dataset(name)?;
                is_mark(mark)
            }
            Request::TakeOver { root, job } => {
                self.dataset(root)?;
                is_job(job)
            }
            Request::Fence { dataset, job, .. } => {
                self.dataset(dataset)?;
                is_job(job)
            }
            Request::Destroy { dataset } => {
                self.dataset(dataset)?;
                self.allowed.test_clone = Some(dataset.clone());
                Ok(())
            }
            _ => Err("it is unknown".to_owned()),
        }
    }

    fn each<T>(
        &mut self,
        all: &[T],
        mut check: impl FnMut(&mut Self, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        if all.is_empty() || all.len() > NAMES_MAX {
            return Err(too_many_names());
        }
        all.iter().try_for_each(|one| check(self, one))
    }

    /// A dataset that the peer reaches.
    fn dataset(&mut self, name: &str) -> Result<(), String> {
        well_formed(name, DatasetKind::Filesystem)?;
        self.within(name)
    }

    /// The same, or one that a root lies in: whether that exists is told.
    fn dataset_or_above(&mut self, name: &str) -> Result<(), String> {
        well_formed(name, DatasetKind::Filesystem)?;
        let is_above = |root: &String| super::definition::is_within(root, name);
        if self.peer.datasets.iter().any(is_above) {
            self.note_pool(name);
            return Ok(());
        }
        self.within(name)
    }

    fn within(&mut self, dataset: &str) -> Result<(), String> {
        if !self.peer.reaches(dataset) {
            return Err(format!(
                "'{dataset}' is none of the datasets that it was invited to"
            ));
        }
        self.note_pool(dataset);
        Ok(())
    }

    fn note_pool(&mut self, dataset: &str) {
        let pool = dataset.split('/').next().unwrap_or_default();
        self.pools.insert(pool.to_owned());
    }

    /// A snapshot or bookmark of a dataset that the peer reaches; returns the dataset and the name behind it.
    fn point(&mut self, full: &str, kind: DatasetKind) -> Result<(String, String), String> {
        well_formed(full, kind)?;
        let mark = if kind == DatasetKind::Bookmark {
            '#'
        } else {
            '@'
        };
        let split = full.split_once(mark);
        let (dataset, name) = split.ok_or_else(|| format!("'{full}' is no {}", word(kind)))?;
        self.dataset(dataset)?;
        Ok((dataset.to_owned(), name.to_owned()))
    }

    fn snapshot_of(&mut self, dataset: &str, snapshot: &str) -> Result<(), String> {
        let full = format!("{dataset}@{snapshot}");
        self.point(&full, DatasetKind::Snapshot).map(|_| ())
    }

    fn own_snapshot(&mut self, full: &str) -> Result<(), String> {
        let (_, name) = self.point(full, DatasetKind::Snapshot)?;
        match tag_of_snapshot(&name) {
            Some(_) => Ok(()),
            None => Err(format!("'{full}' is not named as snapshots of jobs are")),
        }
    }

    /// A bookmark of a job, and the snapshot of the same dataset that it is of.
    fn bookmark(&mut self, (bookmark, snapshot): &(String, String)) -> Result<(), String> {
        self.own_bookmark(bookmark)?;
        self.point(snapshot, DatasetKind::Snapshot)?;
        let head = |name: &str| name.split(['@', '#']).next().map(str::to_owned);
        match head(bookmark) == head(snapshot) {
            true => Ok(()),
            false => Err(format!("'{bookmark}' is no bookmark of '{snapshot}'")),
        }
    }

    fn own_bookmark(&mut self, full: &str) -> Result<(), String> {
        let (_, name) = self.point(full, DatasetKind::Bookmark)?;
        match tag_of_bookmark(&name) {
            Some(_) => Ok(()),
            None => Err(format!("'{full}' is not named as bookmarks of jobs are")),
        }
    }

    /// A snapshot that a job took, or that a job sent here.
    fn destroyed(&mut self, full: &str) -> Result<(), String> {
        let (dataset, name) = self.point(full, DatasetKind::Snapshot)?;
        if tag_of_snapshot(&name).is_some() {
            return Ok(());
        }
        if !self.peer.push {
            return Err(format!("'{full}' was taken by no job"));
        }
        self.allowed.sent.push((dataset, name));
        Ok(())
    }

    fn stream(&mut self, stream: &WireStream) -> Result<(), String> {
        let WireStream {
            dataset, snapshot, ..
        } = stream;
        self.snapshot_of(dataset, snapshot)?;
        match &stream.from {
            Some(WireFrom::Snapshot(name)) => self.snapshot_of(dataset, name)?,
            Some(WireFrom::Bookmark(name)) => {
                self.point(&format!("{dataset}#{name}"), DatasetKind::Bookmark)?;
            }
            None => {}
        }
        let Some(token) = &stream.token else {
            return Ok(());
        };
        let reset = "'sanbox replication reset' gives up what was interrupted";
        let token = unpack_token(token).map_err(|_| format!("the token is damaged; {reset}"))?;
        if token.str("toname") != Some(&format!("{dataset}@{snapshot}")) {
            return Err(format!(
                "the token is of another snapshot than '{dataset}@{snapshot}'; {reset}"
            ));
        }
        if token.has("rawok") != stream.raw {
            return Err(format!(
                "the token and the request differ in whether blocks go as they are stored; {reset}"
            ));
        }
        match token.iter().any(|(name, _)| name.starts_with(b"redact")) {
            true => Err(format!("the token is of a redacted stream; {reset}")),
            false => Ok(()),
        }
    }

    fn receive(&mut self, into: &WireReceive) -> Result<(), String> {
        self.dataset(&into.dataset)?;
        self.allowed.changed = Some(into.dataset.clone());
        if into.set.len() + into.excluded.len() > PROPERTIES_MAX {
            return Err(format!("at most {PROPERTIES_MAX} properties in a request"));
        }
        for name in &into.excluded {
            if name.len() > namecheck::NAME_BYTES_MAX {
                return Err(format!("'{}' is no property", shown(name)));
            }
        }
        let mut settings = into.set.iter();
        settings.try_for_each(|(name, value)| {
            let is_users = name.contains(':') && !name.starts_with(OF_APPLIANCE);
            let is_plain = is_users || STORED.contains(&name.as_str());
            if is_plain && name.len() <= namecheck::NAME_BYTES_MAX && value.len() <= VALUE_BYTES_MAX
            {
                return Ok(());
            }
            settable(&into.dataset, name, value)
        })
    }
}

/// Checks a property that a job sets by itself: those that keep a copy from acting, and the mark.
fn settable(dataset: &str, name: &str, value: &str) -> Result<(), String> {
    match (name, value) {
        (MARK_PROPERTY, mark) => is_mark(mark),
        ("readonly", "on")
        | (KEPT_READONLY_PROPERTY, "on" | "off")
        | ("canmount", "noauto" | "off")
        | ("sharenfs" | "sharesmb", "off")
        | ("mountpoint", "none") => Ok(()),
        _ => Err(where_it_is(dataset, name)),
    }
}

fn is_job(name: &str) -> Result<(), String> {
    match is_tag(&format!("replica-{name}")) {
        true => Ok(()),
        false => Err(format!("'{}' is no name of a job", shown(name))),
    }
}

fn is_mark(text: &str) -> Result<(), String> {
    match text.len() <= namecheck::NAME_BYTES_MAX && text.parse::<Mark>().is_ok() {
        true => Ok(()),
        false => Err(format!("'{}' is no mark of a job", shown(text))),
    }
}

fn where_it_is(dataset: &str, name: &str) -> String {
    format!(
        "{} of '{dataset}' is changed where that is: mount points, shares and the like act there ('zfs set' and 'zfs inherit')",
        shown(name)
    )
}

fn too_many_names() -> String {
    format!("1 to {NAMES_MAX} names in a request")
}

/// Checks the form of a name.
fn well_formed(name: &str, kind: DatasetKind) -> Result<(), String> {
    namecheck::check(name, kind)
        .map_err(|_| format!("'{}' is no name of a {}", shown(name), word(kind)))
}

fn word(kind: DatasetKind) -> &'static str {
    match kind {
        DatasetKind::Snapshot => "snapshot",
        DatasetKind::Bookmark => "bookmark",
        DatasetKind::Filesystem | DatasetKind::Volume => "dataset",
    }
}

/// What came over the wire, as far as it goes into a message.
fn shown(text: &str) -> String {
    let plain = text.chars().filter(|letter| !letter.is_control());
    plain.take(80).collect()
}
