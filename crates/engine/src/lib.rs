//! The one interface of the engine: handles that may be cloned and sent to any thread, behind which one
//! thread per pool runs everything that touches the pool.
//!
//! A request is a closure carried through a bounded mailbox to the pool's thread, run there as a
//! task among others, and answered through a one-shot reply. Requests and answers are plain data.
//! An accepted request runs to its end even when the asker has gone away. Types of this crate know
//! no sockets, no JSON and no command line.
//!
//! Errors keep the causes apart that callers must tell apart: [`FsError`] for files (each has its
//! errno), [`EngineError`] for pools and datasets (each text is the clause that OpenZFS's commands
//! print after `cannot ...: `).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod control_dir;
mod dataset;
mod delegated;
mod delegation;
mod engine;
mod error;
mod estimate;
mod fast_path;
mod faults;
mod file_target;
mod fs;
mod invalidation;
mod keys;
mod objects;
mod operations;
mod pool_handle;
mod pool_mailbox;
mod program;
mod receive;
mod rotate_key;
mod rotations;
mod send;
mod send_package;
mod snapshot;
mod statistics;
mod volume;

pub use control_dir::{Found, Searched};
pub use dataset::{
    CreateDataset, DatasetFilter, DatasetInfo, DatasetPage, DatasetProperty, DestroyOptions,
    PropertyQuery,
};
pub use dsl::{
    IMMUTABLE_PROPERTY, IMMUTABLE_TAG, ImmutableError, RedactionError, parse_time, time_text,
};
pub use engine::{Engine, Host, PoolBody, Threads};
pub use error::EngineError;
pub use faults::BlocksOfFile;
pub use file_target::{
    CONTROL_NAME, CONTROL_ROOT, CONTROL_SHADOW, CONTROL_SHARES, CONTROL_SNAPSHOTS, is_control,
    is_unopened,
};
pub use fs::{CloneOf, FsHandle};
pub use objects::ObjectSum;
pub use pool_handle::{PoolHandle, PoolOpening};
pub use pool_mailbox::{Ending, Request};
pub use program::{
    ProgramAnswer, ProgramCall, ProgramCalls, ProgramChange, ProgramItem, ProgramList,
    ProgramQueue, ProgramRefusal, ProgramRun, program_calls,
};
pub use receive::{PropertyOverrides, ReceiveNote, ReceiveRequest, ReceiveStream, Received};
pub use rotate_key::{KeyRotation, KeyRotationNeeds, KeyRotationStage};
pub use send::{SendRequest, SendStream};
pub use send_package::{SendPackageRequest, SendPlan};
pub use snapshot::{Hold, Refusal, SnapshotRequest};
pub use statistics::{
    Client, DatasetStatistics, PHASES, Phase, PoolStatistics, Replay, RequestTimes, TuningChange,
    WAIT_BUCKETS,
};
pub use volume::{VolumeHandle, VolumeInfo, VolumePlan};

pub use invalidation::{Invalidation, InvalidationEvent, Watch};

pub use dsl::namecheck;
pub use dsl::property;
pub use dsl::property::DatasetKind;
pub use dsl::stream;
pub use dsl::{
    DatasetChanges, GrantChange, Grants, KeyChange, KeyFormat, KeyInfo, NewKey, PlannedKey,
    SnapshotEntry, SnapshotPage, SnapshotPosition, Subject, Traffic, Usage, UsageOf,
};
pub use ondisk::feature::Feature;
pub use ondisk::pool_version;
pub use ondisk::{Guid, ObjectType};
/// The form of events.
pub use ondisk::{NvList, NvValue};
pub use pool::{
    AddSpec, AllocationBias, Candidate, Capacity, CheckpointStatus, CompressionEstimate,
    CompressionFigures, DedupEstimate, DedupFigures, DedupStatistics, DeviceAction, DeviceLabel,
    Discovery, DraidSpec, EstimateProgress, EventLog, ExpansionStatus, Fault, FeatureBase, Health,
    HistoryEvent, HistoryRecord, HostIdentity, ImportPolicy, InjectedFault, IoTotals, LeafActivity,
    LeafActivityRequest, LeafActivityState, LeafActivityStatus, MultihostTuning, PoolError,
    PoolProperty, PoolSpec, PoolState, PoolStatus, Prune, RebuildState, RebuildStatus,
    RebuildTuning, RemovalStage, RemovalStatus, RemovalTuning, Rewind, Rewound, ScanRefusal,
    ScanStatus, SplitSpec, StatusReason, TopShape, Trial, Tuning, VdevSpec, VdevStatus, ashift_for,
    cache_file_devices, cache_file_with, capacity, supported_features,
};
/// Pool properties: their table and the forms of their values.
pub mod pool_property {
    pub use pool::{
        PROPERTIES, PoolProperty, PropertyEntry, PropertyInfo, PropertyKind, PropertySource,
        PropertyValue, VDEV_PROPERTIES, parse_index,
    };
}
pub use codec::crypt::secret::may_be_swapped as keys_may_be_swapped;
pub use codec::crypt::{CryptError, WrappingKey};
pub use keys::EncryptedKey;

pub use arc::{ByPurpose, CacheDeviceStats, CacheStats, L2Stats, L2Tuning, WhatIf as CacheWhatIf};
pub use dmu::{Rewritten, TxgCounters};
pub use runtime::host::{SpinPolicy, block_thread_on as block_on, spin_then_park, spin_thread_on};
pub use runtime::reply::{Reply, ReplySender, reply};
pub use runtime::{IoBuf, IoBufMut, join_all, wake_after_turn};
pub use vdev::{ClassStats, IoClass, LatencyHistogram, VdevStats, note as vdev_note};
pub use vdev::{DeviceEffect, DeviceFault, Frequency, InjectedError, InjectedIo, LabelArea};
pub use zil::{LogBlocks, ZilStats};
pub use zio::{DataFault, FaultyBlocks};
pub use zpl::{
    Access, AccessReason, AccessVerdict, Attr, ByteRange, CaseSensitivity, Change, CreateMode,
    Cred, DelegatedAccess, Delegation, DelegationRecall, DeviceNumber, DirEntry, FileId, FileLocks,
    FileType, FlagsChange, FsError, FsResult, FsStat, HeldLock, Holder, ListLimit, Listing,
    LockMode, LockOutcome, LockOwner, LockRefusal, LockWait, LockedFile, Made, ReadData, Recalled,
    ReclaimGrace, Renamed, Right, SeekTarget, SetAttr, SetTime, Stability, StoredXattr, Timestamp,
    WccAttr, Written, XattrMode, flags,
};
pub use zvol::{Allocation, CHUNK_BYTES as VOLUME_CHUNK_BYTES, VolumeError, VolumeResult};
