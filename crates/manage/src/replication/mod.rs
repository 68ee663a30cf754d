//! Replication: datasets of one pool, kept the same in another place.
//!
//! What a job has to do is computed from the snapshots and bookmarks of both sides each time it runs ([`plan`]): the newest point that both
//! have, and what the source has beyond it. No time of a last or next run is stored anywhere, so none can be stale; what is stored is the
//! configuration of the job, reports of what was, and a mark at the target's datasets that says of which source they are.
//!
//! Guarantees: a target that is gone costs nothing but attempts, at growing distances ([`Backoff`]); a job takes a snapshot of its own only
//! after the target answered, and not while an earlier one of its own is undelivered; nothing at the target is rolled back or destroyed
//! unasked but snapshots that the job itself took; a bookmark at the source lets increments go on when the source's snapshots are gone.

mod backoff;
mod behind;
mod compression;
mod configuration;
mod directory;
mod endpoint;
mod error;
mod failover;
mod fence;
mod foreseen;
mod identity;
mod listing;
mod local;
mod past_run;
mod plan;
mod progress;
mod registry;
mod release;
mod remote;
mod restore_test;
mod retention;
mod run;
#[cfg(test)]
mod simulation;
mod turn;
mod upkeep;
mod window;
mod words;

pub use backoff::Backoff;
pub use behind::RecoveryPoint;
pub use compression::Compression;
pub use configuration::{Job, JobError, Jobs, Location, is_tag, tag_of_bookmark, tag_of_snapshot};
pub use directory::{export, find_streams, foresee_export, foresee_import, import, job_of};
pub use endpoint::{
    ByteStream, Endpoint, Reached, ReceiveSpec, SentSnapshot, StreamSpec, Switchover,
};
pub use error::{Refusal, ReplicationError};
use failover::{
    adopt_fenced, fail_back, fail_over, is_in_force, is_taken_over, job_of_copy, stands_in,
};
pub use failover::{take_over, test, test_clones};
pub use fence::{FENCED_PROPERTY, Fence, fence_of, is_copy, lift_fences, settle_fences};
use fence::{fence_source, fenced_sources, reclaim};
pub use foreseen::{
    Adoption, AdoptionOutcome, foresee_adoption, foresee_fail_back, foresee_take_over, foresee_test,
};
pub use identity::{
    IDENTITY_PROPERTIES, IDENTITY_PROPERTY, Identity, KEPT_READONLY_PROPERTY, identity_of,
    is_waiting,
};
pub use listing::{Interrupted, Mark, Point, ReadonlySetting, ReplicaDataset};
pub use local::LocalEndpoint;
pub use past_run::{Ended, PastRun};
pub use plan::{DatasetPlan, Step, StreamFrom, TreePlan, Work, plan};
pub use progress::Progress;
pub use registry::{JobState, Replications};
pub use release::{Released, release_source, release_target};
pub use remote::RemoteEndpoint;
pub use restore_test::{
    RestoreFailure, RestoreProgress, RestoreReport, RestoreSlot, RestoreTests, RestoredDataset,
    TestSchedule, clone_name, destroy_leftover, foresee_test_restore, test_restore,
};
use run::adopt;
pub use run::{CommonState, Report, foresee, foresee_bytes, reset, run};
pub use turn::{
    JobHost, NotTurned, Takeover, TurnNote, adopt_job, fail_back_job, fail_over_job,
    found_by_failover, is_turned, met_in_use, reclaim_sources, takeover_of,
};
pub use window::Window;
pub use words::{LISTS, SWITCHES, TEXTS};

/// The user property of a target's dataset that holds its [`Mark`].
pub const MARK_PROPERTY: &str = "org.sanbox:replication";
