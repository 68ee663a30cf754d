//! Why a run of a job did not do all that it was to do.

/// Something that a person has to decide: trying again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The source is not there.
    #[error(
        "the source '{dataset}' does not exist{}; what was sent of it is kept",
        renamed.as_ref().map(|name| format!(" any more: it is called '{name}' now, and 'sanbox replication create' makes a job with that name"))
            .unwrap_or_default()
    )]
    SourceGone {
        /// Name in the job.
        dataset: String,
        /// What it is called now, as far as it was found.
        renamed: Option<String>,
    },
    /// The dataset that the target lies in is not there.
    #[error(
        "the target '{target}' cannot be made: there is no '{parent}' ('zfs create -p {parent}' makes it)"
    )]
    NoParent {
        /// Target.
        target: String,
        /// The one above it.
        parent: String,
    },
    /// The dataset above is not at the target, and this run does not make it.
    #[error("'{target}' cannot be made: '{above}' is not there yet")]
    NoneAbove {
        /// Target.
        target: String,
        /// The one above it.
        above: String,
    },
    /// Another job has the target.
    #[error("'{target}' is the target of the job '{job}'; two jobs cannot send to one dataset")]
    OtherJob {
        /// Target.
        target: String,
        /// The other job.
        job: String,
    },
    /// The target exists, and no job made it.
    #[error(
        "'{target}' exists and was not made by this job: 'sanbox replication adopt' takes it as the target if it has a snapshot in common \
         with the source; else rename or destroy it"
    )]
    NotAdopted {
        /// Target.
        target: String,
    },
    /// Source and target have no point in common.
    #[error(
        "'{target}' has no snapshot in common with '{dataset}', so nothing can be added to it: rename or destroy it, and all is sent anew"
    )]
    NothingInCommon {
        /// Source.
        dataset: String,
        /// Target.
        target: String,
    },
    /// The target has snapshots that the source does not have, after the newest common one.
    #[error(
        "'{target}' went its own way after @{since}: it has {} that the source does not have ({}); \
         'sanbox replication {by} --rollback' gives that up",
        count(newer.len()), newer.join(", ")
    )]
    Diverged {
        /// Target.
        target: String,
        /// The newest snapshot in common.
        since: String,
        /// Names of the snapshots, at most a few.
        newer: Vec<String>,
        /// The command that gives them up.
        by: &'static str,
    },
    /// The target was written to.
    #[error(
        "'{target}' was written to after @{since} ({bytes} bytes); 'sanbox replication {by} --rollback' gives that up"
    )]
    Written {
        /// Target.
        target: String,
        /// The newest snapshot in common.
        since: String,
        /// How much.
        bytes: u64,
        /// The command that gives it up.
        by: &'static str,
    },
    /// The target has another snapshot with the name of one that is to be sent.
    #[error(
        "'{target}@{snapshot}' exists and is not the source's snapshot of this name: rename or destroy it"
    )]
    NameTaken {
        /// Target.
        target: String,
        /// Name.
        snapshot: String,
    },
    /// The target is in use.
    #[error(
        "'{target}' is in use in place of the source ('sanbox replication failback {job}' turns that round)"
    )]
    FailedOver {
        /// Target.
        target: String,
        /// The job.
        job: String,
    },
    /// The source was put in use again in place of its copy.
    #[error(
        "'{target}' is not in use any more: its source was put in use again ('sanbox replication adopt {job} --rollback' makes it the copy again)"
    )]
    Superseded {
        /// Target.
        target: String,
        /// The job.
        job: String,
    },
    /// Of the datasets of a job some are turned round, and of others the source is in use.
    #[error(
        "'{dataset}' is in use, and not its copy: what was written to it would be given up. A takeover of the copy that was cut off is given again \
         first; or 'sanbox replication takeover {root}' where the source is puts all of it in use"
    )]
    PartlyTurned {
        /// Source.
        dataset: String,
        /// The one that it lies in, from which the job sends.
        root: String,
    },
    /// The source was renamed, and the target has its copy under the old name.
    #[error(
        "'{dataset}' was renamed: 'zfs rename {old} {new}' at the target lets its copy go on; else all would be sent anew"
    )]
    Renamed {
        /// Source as it is called now.
        dataset: String,
        /// Its copy.
        old: String,
        /// What the copy is to be called.
        new: String,
    },
}

impl Refusal {
    /// Whether the target is not the job's, or not now.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(
            self,
            Self::OtherJob { .. }
                | Self::NotAdopted { .. }
                | Self::NothingInCommon { .. }
                | Self::FailedOver { .. }
        )
    }
}

fn count(number: usize) -> String {
    match number {
        1 => "a snapshot".to_owned(),
        more => format!("{more} snapshots"),
    }
}

/// Why a run ended before its end, or a dataset was left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicationError {
    /// A side gives no answer.
    #[error("{place} cannot be reached: {why}")]
    Unreachable {
        /// Pool or host.
        place: String,
        /// Why.
        why: String,
    },
    /// The target has no room.
    #[error("there is no space left for '{target}'")]
    OutOfSpace {
        /// Target.
        target: String,
    },
    /// A person has to decide.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What arrived of a stream is not what was sent.
    #[error("what arrived of '{what}' is not what was sent: it was given up, and is sent anew")]
    Damaged {
        /// The snapshot, or the dataset that it was for.
        what: String,
    },
    /// The other appliance does not allow it.
    #[error("peer '{peer}' does not allow it: {what}")]
    Denied {
        /// Name of the peer.
        peer: String,
        /// What, and what to do.
        what: String,
    },
    /// Something else was refused by a side.
    #[error("{0}")]
    Failed(String),
    /// The run was cancelled, or its time was over. What was sent of the stream under way is kept.
    #[error("cancelled")]
    Cancelled,
}

impl ReplicationError {
    /// Whether the other datasets of the job would meet the same.
    #[must_use]
    pub fn ends_run(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::OutOfSpace { .. } | Self::Cancelled
        )
    }

    /// Returns a word for the kind of cause, which stays the same while numbers and names in the text change.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::OutOfSpace { .. } => "out of space",
            Self::Damaged { .. } => "damaged",
            Self::Denied { .. } => "denied",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused(refusal) => match refusal {
                Refusal::SourceGone { .. } => "source gone",
                Refusal::NoParent { .. } | Refusal::NoneAbove { .. } => "no parent",
                Refusal::OtherJob { .. } => "other job",
                Refusal::NotAdopted { .. } | Refusal::NothingInCommon { .. } => "foreign target",
                Refusal::Diverged { .. } | Refusal::Written { .. } => "diverged",
                Refusal::NameTaken { .. } => "name taken",
                Refusal::Renamed { .. } => "renamed",
                Refusal::FailedOver { .. } => "failed over",
                Refusal::Superseded { .. } => "superseded",
                Refusal::PartlyTurned { .. } => "partly turned",
            },
        }
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(
            self,
            Self::Refused(_) | Self::Denied { .. } | Self::Cancelled
        )
    }
}
