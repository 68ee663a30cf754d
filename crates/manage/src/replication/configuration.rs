//! The jobs of an appliance: `replication.toml` in the state directory, a `[[replication]]` for each. Keys that are not known are refused.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Compression, TestSchedule, Window};
use crate::peer::is_within;
use crate::policy::Policy;
use crate::state::replace_file;
use crate::trash::CONTAINER_PATH;

/// Jobs of an appliance, at most.
const JOBS_MAX: usize = 1000;
/// Bytes of a job's name, at most: it is part of the names of snapshots, bookmarks and holds.
const NAME_BYTES_MAX: usize = 40;
/// The first line of the file.
const HEAD: &str =
    "# Written by 'sanbox replication': what is added by hand stays, comments do not.\n";

/// Why a job cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not hold jobs.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// A job of this name exists.
    #[error("there is a job '{0}' already")]
    Exists(String),
    /// No job has this name.
    #[error("there is no job '{0}' ('sanbox replication list' shows those there are)")]
    Unknown(String),
    /// A setting of a job has no meaning.
    #[error("{0}")]
    Setting(String),
}

/// Where a side of a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A dataset of a pool of this appliance.
    Local(String),
    /// A dataset of another host, reached by ssh.
    Ssh {
        /// What ssh is given: `HOST` or `USER@HOST`.
        host: String,
        /// The dataset there.
        dataset: String,
    },
    /// A dataset of another appliance, reached by the protocol of its own.
    Peer {
        /// Name of the peer.
        peer: String,
        /// The dataset there.
        dataset: String,
    },
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The source's dataset, behind `HOST:` where it is another host's, or behind `peer://NAME/`.
    pub from: String,
    /// The target's dataset, likewise.
    pub to: String,
    /// The command that is run in place of `ssh`, its words separated by spaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ssh: String,
    /// Datasets below go along.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
    /// Full names of datasets of the source that are left out, with those below; `*` stands for any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Names of snapshots that are sent, `*` for any text; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub select: Vec<String>,
    /// Only the newest snapshot is sent, not those between.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newest_only: bool,
    /// The job takes a snapshot of its own where something was written, and keeps the newest that both sides have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take: bool,
    /// What is written is sent within seconds, with snapshots of the job's own as [`Job::take`] has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous: bool,
    /// How often is looked for something to send: `30s`, `5m`, `1h`, `1d`. Empty: `5m`. A continuous job looks at both sides as often
    /// though nothing was written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub every: String,
    /// Blocks go as they are stored, encrypted ones without their key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
    /// Properties stay here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_properties: bool,
    /// Properties set at the target's datasets when they are made: `NAME=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Properties that come along and are not put in force at the target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_in_force: Vec<String>,
    /// Bytes a second at most, such as `20M`. Empty: no limit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bandwidth: String,
    /// How streams to or from a peer are compressed on their way: `off`, `auto`, or `zstd-1` to `zstd-19`. Empty: `auto`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compress: String,
    /// Hours of the day in which the daemon may send, such as `22:00-06:00` by the machine's clock. Empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub window: String,
    /// What the target keeps, as a policy such as `daily=30 monthly=12`. Empty: everything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub keep: String,
    /// When the restore of the copy is tested, such as `weekly weekday=sun at=03:00`. Empty: never by itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub test_schedule: String,
    /// The target is in use in place of the source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed_over: bool,
    /// Nothing is done until the job is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// It brings back what was written at a target that is in use; no job that is kept.
    #[serde(skip)]
    pub reversed: bool,
}

/// Between the runs of a continuous job.
const CONTINUOUS_PAUSE: Duration = Duration::from_millis(500);
/// How often a job looks where nothing is said.
pub(super) const EVERY_DEFAULT: Duration = Duration::from_secs(300);

impl Job {
    /// Checks all settings.
    ///
    /// # Errors
    /// Which has no meaning, and why.
    pub fn check(&self) -> Result<(), JobError> {
        let refuse = |why: String| Err(JobError::Setting(why));
        if !is_job_name(&self.name) {
            let name = &self.name;
            return refuse(format!(
                "'{name}' is no name of a job: letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}"
            ));
        }
        let (from, to) = (location(&self.from)?, location(&self.to)?);
        let within = |inner: &str, outer: &str| {
            inner == outer
                || inner
                    .strip_prefix(outer)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let (source, target) = (self.source_root(), self.target_root());
        let overlap = source == target
            || self.recursive && (within(target, source) || within(source, target));
        if split_host(&self.from).0 == split_host(&self.to).0 && overlap {
            return refuse(format!(
                "'{target}' cannot be a copy of '{source}': one lies in the other"
            ));
        }
        if self.continuous && matches!(from, Location::Ssh { .. }) {
            return refuse(
                "a continuous job follows a pool of this appliance or of a peer: where the source is, it is made to push"
                    .to_owned(),
            );
        }
        let is_of_peer = [&from, &to]
            .iter()
            .any(|side| matches!(side, Location::Peer { .. }));
        if !self.compress.is_empty() && !is_of_peer {
            return refuse(
                "compress is of jobs from or to a peer; ssh compresses by itself with --ssh 'ssh -C'"
                    .to_owned(),
            );
        }
        if matches!((&from, &to), (Location::Peer { .. }, Location::Peer { .. })) {
            return refuse(
                "one side is a pool of this appliance: between two peers, one of them has the job"
                    .to_owned(),
            );
        }
        self.interval()?;
        self.bandwidth_bytes()?;
        self.compression()?;
        self.window()?;
        self.keep_policy()?;
        if self.test_schedule()?.is_some() {
            self.check_testable()?;
        }
        for setting in &self.set {
            if !setting.contains('=') {
                return refuse(format!("'{setting}' is not PROPERTY=VALUE"));
            }
        }
        Ok(())
    }

    /// Returns where the source is.
    ///
    /// # Errors
    /// The text is no place.
    pub fn source(&self) -> Result<Location, JobError> {
        location(&self.from)
    }

    /// Returns where the target is.
    ///
    /// # Errors
    /// The text is no place.
    pub fn target(&self) -> Result<Location, JobError> {
        location(&self.to)
    }

    /// The root of the source, without its host.
    #[must_use]
    pub fn source_root(&self) -> &str {
        split_host(&self.from).1
    }

    /// The root of the target, without its host.
    #[must_use]
    pub fn target_root(&self) -> &str {
        split_host(&self.to).1
    }

    /// Returns how often the job looks for something to send.
    ///
    /// # Errors
    /// The setting is no duration.
    pub fn interval(&self) -> Result<Duration, JobError> {
        if self.every.is_empty() {
            return Ok(EVERY_DEFAULT);
        }
        let parsed = parse_duration(&self.every).filter(|every| *every >= Duration::from_secs(1));
        parsed.ok_or_else(|| {
            JobError::Setting(format!(
                "'{}' is no interval: a number and s, m, h or d, from 1s",
                self.every
            ))
        })
    }

    /// Whether the job takes snapshots of its own.
    #[must_use]
    pub fn takes_snapshots(&self) -> bool {
        self.take || self.continuous
    }

    /// Returns how long after a complete run the next one begins.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.continuous {
            true => CONTINUOUS_PAUSE,
            false => self.interval().unwrap_or(EVERY_DEFAULT),
        }
    }

    /// Returns how many bytes a second may be sent; `None` for no limit.
    ///
    /// # Errors
    /// The setting is no size.
    pub fn bandwidth_bytes(&self) -> Result<Option<u64>, JobError> {
        if self.bandwidth.is_empty() {
            return Ok(None);
        }
        let bytes = engine::property::parse_number(&self.bandwidth)
            .ok()
            .filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            JobError::Setting(format!("'{}' is no size (such as 20M)", self.bandwidth))
        })?;
        Ok(Some(bytes))
    }

    /// Returns how streams to or from a peer are compressed.
    ///
    /// # Errors
    /// The setting is no compression.
    pub fn compression(&self) -> Result<Compression, JobError> {
        if self.compress.is_empty() {
            return Ok(Compression::default());
        }
        let refuse = |()| {
            JobError::Setting(format!(
                "'{}' is no compression: off, auto, or zstd-1 to zstd-19",
                self.compress
            ))
        };
        self.compress.parse().map_err(refuse)
    }

    /// Returns the hours in which the daemon may send; `None` for all.
    ///
    /// # Errors
    /// The setting is no window.
    pub fn window(&self) -> Result<Option<Window>, JobError> {
        if self.window.is_empty() {
            return Ok(None);
        }
        let parsed = self.window.parse();
        let refuse = |()| {
            JobError::Setting(format!(
                "'{}' is no window (such as 22:00-06:00)",
                self.window
            ))
        };
        parsed.map(Some).map_err(refuse)
    }

    /// Returns when the restore of the copy is tested; `None` for never.
    ///
    /// # Errors
    /// The setting is no schedule.
    pub fn test_schedule(&self) -> Result<Option<TestSchedule>, JobError> {
        if self.test_schedule.is_empty() {
            return Ok(None);
        }
        let refuse = |why: String| {
            let text = &self.test_schedule;
            JobError::Setting(format!(
                "'{text}' is no schedule of tests (such as 'weekly weekday=sun at=03:00'): {why}"
            ))
        };
        self.test_schedule.parse().map(Some).map_err(refuse)
    }

    /// Checks that the copy can be read where this appliance is, and cloned beside the target.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_testable(&self) -> Result<(), JobError> {
        let to = &self.to;
        match location(to)? {
            Location::Local(dataset) if dataset.contains('/') => Ok(()),
            Location::Local(_) => Err(JobError::Setting(format!(
                "a test makes a clone beside the target, and '{to}' is a whole pool"
            ))),
            _ => Err(JobError::Setting(format!(
                "a test reads the copy where it is: '{to}' is on another host ('sanbox replication test' makes clones there)"
            ))),
        }
    }

    /// Returns what the target keeps; `None` for everything.
    ///
    /// # Errors
    /// The setting is no policy.
    pub fn keep_policy(&self) -> Result<Option<Policy>, JobError> {
        if self.keep.is_empty() {
            return Ok(None);
        }
        let parsed = self.keep.parse::<Policy>();
        let refuse = |error| JobError::Setting(format!("bad policy for the target: {error}"));
        Ok(Some(parsed.map_err(refuse)?).filter(|policy| !policy.is_off()))
    }

    /// Whether a dataset of the source belongs to the job. What lies in the trash of a pool does not.
    #[must_use]
    pub fn includes(&self, dataset: &str) -> bool {
        if dataset == self.source_root() {
            return true;
        }
        let is_excluded = |pattern: &String| {
            let mut at = Some(dataset);
            std::iter::from_fn(|| {
                let now = at?;
                at = now.rsplit_once('/').map(|(above, _)| above);
                Some(now)
            })
            .any(|name| matches(pattern, name))
        };
        let trash = format!("{}{CONTAINER_PATH}", self.source_root());
        let is_trash = !self.source_root().contains('/') && is_within(dataset, &trash);
        self.recursive && !is_trash && !self.exclude.iter().any(is_excluded)
    }

    /// Whether a snapshot is one to be sent.
    #[must_use]
    pub fn selects(&self, snapshot: &str) -> bool {
        self.select.is_empty()
            || self.is_own(snapshot)
            || self.select.iter().any(|pattern| matches(pattern, snapshot))
    }

    /// Returns the name of a dataset's copy.
    ///
    /// # Panics
    /// The dataset is not one of the source's.
    #[must_use]
    pub fn target_of(&self, dataset: &str) -> String {
        let below = dataset
            .strip_prefix(self.source_root())
            .expect("a dataset of the source");
        format!("{}{below}", self.target_root())
    }

    /// The tag of holds, and the begin of the names of snapshots and bookmarks.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("replica-{}", self.name)
    }

    /// Returns the name of a snapshot that the job takes.
    #[must_use]
    pub fn snapshot_name(&self, now: jiff::Timestamp) -> String {
        format!("{}-{}", self.tag(), now.strftime("%Y%m%dT%H%M%S.%3fZ"))
    }

    /// Whether a snapshot's name is one that the job gives to its own.
    #[must_use]
    pub fn is_own(&self, snapshot: &str) -> bool {
        tag_of_snapshot(snapshot) == Some(&self.tag())
    }

    /// Returns the name of the bookmark of a state that the target has.
    #[must_use]
    pub fn bookmark_name(&self, guid: u64) -> String {
        format!("{}-{guid:016x}", self.tag())
    }

    /// Whether a bookmark's name is one that the job gives.
    #[must_use]
    pub fn is_own_bookmark(&self, bookmark: &str) -> bool {
        tag_of_bookmark(bookmark) == Some(&self.tag())
    }
}

/// Whether a text is the name of a job.
fn is_job_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain)
}

/// Whether a text is the tag of a job, whichever.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    text.strip_prefix("replica-").is_some_and(is_job_name)
}

/// Returns the tag of the job that took a snapshot, as its name says; `None` when none did.
#[must_use]
pub fn tag_of_snapshot(snapshot: &str) -> Option<&str> {
    let (tag, stamp) = snapshot.rsplit_once('-')?;
    let form = stamp
        .bytes()
        .map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    (is_tag(tag) && form.eq("00000000T000000.000Z".bytes())).then_some(tag)
}

/// Returns the tag of the job that made a bookmark, as its name says; `None` when none did.
#[must_use]
pub fn tag_of_bookmark(bookmark: &str) -> Option<&str> {
    let (tag, guid) = bookmark.rsplit_once('-')?;
    let is_guid = guid.len() == 16 && guid.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_tag(tag) && is_guid).then_some(tag)
}

/// Begins the place of a dataset of a peer: `peer://NAME/DATASET`. No host of ssh has such a name.
const PEER: &str = "peer://";

/// Splits `HOST:DATASET`, or `peer://NAME/DATASET` into `peer://NAME` and `DATASET`; the host is empty where there is none. An IPv6 address
/// stands in brackets.
fn split_host(text: &str) -> (&str, &str) {
    if let Some(at) = text.strip_prefix(PEER).and_then(|rest| rest.find('/')) {
        let end = PEER.len() + at;
        return (&text[..end], &text[end + 1..]);
    }
    let end = match text.find("]:") {
        Some(at) if text.starts_with('[') || text.contains("@[") => Some(at + 1),
        _ => text.find(':'),
    };
    match end {
        Some(at) if !text[..at].contains('/') => (&text[..at], &text[at + 1..]),
        _ => ("", text),
    }
}

fn location(text: &str) -> Result<Location, JobError> {
    let (host, dataset) = split_host(text);
    let is_component = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || "_.".contains(c))
            && part.chars().all(allowed)
            && !matches!(part, "." | "..")
    };
    if dataset.is_empty() || !dataset.split('/').all(is_component) {
        return Err(JobError::Setting(format!("'{text}' is no dataset")));
    }
    if let Some(peer) = host.strip_prefix(PEER) {
        return match crate::peer::is_name(peer) {
            true => Ok(Location::Peer {
                peer: peer.to_owned(),
                dataset: dataset.to_owned(),
            }),
            false => Err(JobError::Setting(format!("'{peer}' is no name of a peer"))),
        };
    }
    if host.is_empty() {
        return match text.starts_with(':') {
            true => Err(JobError::Setting(format!("'{text}' is no dataset"))),
            false => Ok(Location::Local(dataset.to_owned())),
        };
    }
    // What begins with '-' would be an option of ssh.
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.@[]:%".contains(c);
    if host.starts_with('-') || !host.chars().all(is_host) {
        return Err(JobError::Setting(format!("'{host}' is no host")));
    }
    Ok(Location::Ssh {
        host: host.to_owned(),
        dataset: dataset.to_owned(),
    })
}

/// Reads a number with `s`, `m`, `h` or `d`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let split = text
        .len()
        .checked_sub(1)
        .filter(|at| text.is_char_boundary(*at))?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    let number: u32 = number.parse().ok()?;
    Some(Duration::from_secs(u64::from(number) * seconds))
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// All jobs of an appliance, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// The jobs.
    #[serde(default)]
    pub replication: Vec<Job>,
}

impl Jobs {
    fn path(state: &Path) -> PathBuf {
        state.join("replication.toml")
    }

    /// Reads the jobs of a state directory.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(state: &Path) -> Result<Self, JobError> {
        let path = Self::path(state);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(JobError::Io { path, source }),
        };
        let invalid = |message: String| JobError::Invalid {
            path: path.clone(),
            message,
        };
        let jobs: Self = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if jobs.replication.len() > JOBS_MAX {
            return Err(invalid(format!("more than {JOBS_MAX} jobs")));
        }
        for (index, job) in jobs.replication.iter().enumerate() {
            job.check().map_err(|error| invalid(error.to_string()))?;
            if jobs.replication[..index]
                .iter()
                .any(|earlier| earlier.name == job.name)
            {
                return Err(invalid(format!("two jobs '{}'", job.name)));
            }
        }
        Ok(jobs)
    }

    /// Replaces the jobs of a state directory; after a power cut they are the old or the new ones.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state: &Path) -> Result<(), JobError> {
        let path = Self::path(state);
        let text = toml::to_string(self).map_err(|error| JobError::Invalid {
            path: path.clone(),
            message: error.to_string(),
        })?;
        let written = replace_file(&path, format!("{HEAD}\n{text}").as_bytes());
        written.map_err(|source| JobError::Io { path, source })
    }

    /// Returns a job.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn job(&self, name: &str) -> Result<&Job, JobError> {
        let found = self.replication.iter().find(|job| job.name == name);
        found.ok_or_else(|| JobError::Unknown(name.to_owned()))
    }

    /// Adds a job.
    ///
    /// # Errors
    /// A setting has no meaning, the name is taken, or another job has the same target.
    pub fn add(&mut self, job: Job) -> Result<(), JobError> {
        job.check()?;
        if self.job(&job.name).is_ok() {
            return Err(JobError::Exists(job.name));
        }
        if let Some(other) = self.replication.iter().find(|other| other.to == job.to) {
            return Err(JobError::Setting(format!(
                "'{}' is the target of the job '{}'; two jobs cannot send to one dataset",
                job.to, other.name
            )));
        }
        if self.replication.len() >= JOBS_MAX {
            return Err(JobError::Setting(format!(
                "there are {JOBS_MAX} jobs, which is the most"
            )));
        }
        self.replication.push(job);
        Ok(())
    }

    /// Changes a job.
    ///
    /// # Errors
    /// There is none of this name, or a setting has no meaning then.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Job)) -> Result<(), JobError> {
        let found = self.replication.iter_mut().find(|job| job.name == name);
        let job = found.ok_or_else(|| JobError::Unknown(name.to_owned()))?;
        change(job);
        job.check()
    }

    /// Removes a job.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<Job, JobError> {
        let at = self.replication.iter().position(|job| job.name == name);
        let at = at.ok_or_else(|| JobError::Unknown(name.to_owned()))?;
        Ok(self.replication.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, from: &str, to: &str) -> Job {
        Job {
            name: name.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            ..Job::default()
        }
    }

    #[test]
    fn jobs_are_kept_and_mistakes_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut jobs = Jobs::read(directory.path()).expect("none");
        let vm = Job {
            recursive: true,
            every: "90s".to_owned(),
            bandwidth: "20M".to_owned(),
            ..job("vm", "tank/vm", "back/vm")
        };
        jobs.add(vm.clone()).expect("added");
        assert!(jobs.add(vm).is_err());
        assert!(jobs.add(job("other", "tank/x", "back/vm")).is_err());
        jobs.write(directory.path()).expect("written");
        let read = Jobs::read(directory.path()).expect("read");
        assert_eq!(read, jobs);
        assert_eq!(
            read.replication[0].interval().expect("one"),
            Duration::from_secs(90)
        );
        assert_eq!(
            read.replication[0].bandwidth_bytes().expect("one"),
            Some(20 << 20)
        );
        let path = directory.path().join("replication.toml");
        fs::write(&path, "[[replication]]\nname = 'a'\nform = 'x'\n").expect("written");
        let error = Jobs::read(directory.path())
            .expect_err("refused")
            .to_string();
        assert!(error.contains("unknown field `form`"), "{error}");
        let refused = [
            job("a b", "tank/a", "back/a"),
            job("a", "tank/a", "tank/a"),
            job("a", "tank/a@x", "back/a"),
            Job {
                recursive: true,
                ..job("a", "tank", "tank/copy")
            },
            Job {
                every: "0s".to_owned(),
                ..job("a", "tank/a", "back/a")
            },
            Job {
                every: "5\u{e9}".to_owned(),
                ..job("a", "tank/a", "back/a")
            },
            Job {
                bandwidth: "fast".to_owned(),
                ..job("a", "tank/a", "back/a")
            },
            Job {
                compress: "gzip".to_owned(),
                ..job("a", "tank/a", "peer://b/back/a")
            },
            Job {
                test_schedule: "now and then".to_owned(),
                ..job("a", "tank/a", "back/a")
            },
            // Nothing lies beside a pool, and what is elsewhere is read there.
            Job {
                test_schedule: "daily".to_owned(),
                ..job("a", "tank/a", "back")
            },
            Job {
                test_schedule: "daily".to_owned(),
                ..job("a", "tank/a", "peer://b/back/a")
            },
            // No peer: nothing would be compressed.
            Job {
                compress: "zstd-3".to_owned(),
                ..job("a", "tank/a", "root@b:back/a")
            },
        ];
        for job in refused {
            assert!(job.check().is_err(), "{job:?}");
        }
        let squeezed = Job {
            compress: "zstd-3".to_owned(),
            ..job("a", "peer://b/back/a", "tank/a")
        };
        squeezed.check().expect("a job");
        assert_eq!(squeezed.compression().expect("one"), Compression::Zstd(3));
    }

    #[test]
    fn names_of_a_job_are_told_from_those_of_others() {
        let now = "2026-11-25T07:00:00.5Z".parse().expect("a time");
        let (one, other) = (job("a", "tank/a", "back/a"), job("a-b", "tank/a", "back/b"));
        assert_eq!(one.snapshot_name(now), "replica-a-20261125T070000.500Z");
        assert!(one.is_own(&one.snapshot_name(now)));
        assert!(!one.is_own(&other.snapshot_name(now)) && !other.is_own(&one.snapshot_name(now)));
        assert!(!one.is_own("replica-a-mine"));
        assert!(one.is_own_bookmark(&one.bookmark_name(7)));
        assert!(!one.is_own_bookmark(&other.bookmark_name(7)));
    }

    #[test]
    fn places() {
        let ssh = |host: &str, dataset: &str| Location::Ssh {
            host: host.to_owned(),
            dataset: dataset.to_owned(),
        };
        let peer = |peer: &str, dataset: &str| Location::Peer {
            peer: peer.to_owned(),
            dataset: dataset.to_owned(),
        };
        for (text, expected) in [
            ("tank/a", Some(Location::Local("tank/a".to_owned()))),
            ("tank/a:b", Some(Location::Local("tank/a:b".to_owned()))),
            ("backup:tank/a", Some(ssh("backup", "tank/a"))),
            ("anna@192.0.2.7:tank", Some(ssh("anna@192.0.2.7", "tank"))),
            ("[2001:db8::7]:tank/a", Some(ssh("[2001:db8::7]", "tank/a"))),
            ("-oProxyCommand=x:tank", None),
            ("a b:tank", None),
            (":tank", None),
            ("host:", None),
            ("tank//a", None),
            ("tank/-r", None),
            ("tank/a@b", None),
            ("host:tank/a;reboot", None),
            ("peer://vault/back/vm", Some(peer("vault", "back/vm"))),
            ("peer://vault/tank", Some(peer("vault", "tank"))),
            // Without the slashes it is a host of ssh.
            ("peer:vault/tank", Some(ssh("peer", "vault/tank"))),
            ("peer://vault", None),
            ("peer://vault/", None),
            ("peer:///tank", None),
            ("peer://-x/tank", None),
            ("peer://a b/tank", None),
            ("peer://vault/tank/../x", None),
        ] {
            assert_eq!(location(text).ok(), expected, "{text}");
        }
        // The same name on another host is no overlap.
        assert!(job("a", "tank/a", "backup:tank/a").check().is_ok());
        assert!(job("a", "backup:tank/a", "backup:tank/a").check().is_err());
        assert!(job("a", "tank/a", "peer://vault/tank/a").check().is_ok());
        assert!(
            job("a", "peer://b/tank/a", "peer://vault/x")
                .check()
                .is_err()
        );
        let continuous = Job {
            continuous: true,
            ..job("a", "peer://vault/tank/a", "tank/b")
        };
        assert!(continuous.check().is_ok());
        assert_eq!(continuous.source_root(), "tank/a");
    }

    #[test]
    fn the_trash_of_a_pool_is_not_sent_with_it() {
        let tree = |from: &str| Job {
            recursive: true,
            ..job("a", from, "back/copy")
        };
        for (from, dataset, expected) in [
            ("tank", "tank", true),
            ("tank", "tank/vm/.trash", true),
            ("tank", "tank/.trashed", true),
            ("tank", "tank/.trash", false),
            ("tank", "tank/.trash/20261128T070005Z-a/b", false),
            ("tank/.trash", "tank/.trash/20261128T070005Z-a", true),
            ("tank/vm", "tank/vm/.trash/x", true),
        ] {
            assert_eq!(tree(from).includes(dataset), expected, "{from} {dataset}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
