//! Datasets on one modelled disk, without a pool, files or volumes above or around them: lines of a script, each beside its answer.
//! Answers are what OpenZFS documents and prints: zfs(8), zfsprops(7), lib/libzfs/libzfs_dataset.c (texts).

mod bookmarks;
mod changes;
mod clones;
mod names;
mod programs;
mod properties;
mod redaction;
mod rig;
mod snapshots;
mod space;
mod tasks;
