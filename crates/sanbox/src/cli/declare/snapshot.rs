//! The declarations of the commands on policies of snapshots.

use super::super::command::Command;
use super::super::flag::{long, short};

pub(super) const POLICY: Command = Command {
    name: "policy",
    summary: "take snapshots by a schedule, and keep so many of each class",
    operands: "set DATASET POLICY | clear DATASET | show [DATASET] | preview DATASET [POLICY]",
    flags: &[
        short('H', "no headings, tabs between columns"),
        long(
            "on",
            Some("DATE"),
            "of preview: what will exist then (default: in 30 days)",
        ),
    ],
    text: &[
        "A policy is a line such as 'hourly=24 daily=7 weekly=4': a snapshot each hour, of which 24 are kept, and so on; one snapshot \
         serves all classes that are due. Classes are Nmin (15min), hourly, daily, weekly, monthly, yearly, and cron=\"EXPRESSION\" \
         keep=N. Datasets below inherit it ('off' ends that), and datasets with the same policy are snapshotted at one moment.",
        "at=HH:MM and weekday=sun say when days and weeks begin, zone=Europe/Berlin whose clock that is. naming=auto, sanoid, zrepl or \
         seed is how snapshots are named. unchanged=skip takes none while nothing was written. take=no only destroys old ones, where \
         snapshots arrive by replication.",
        "hook=db runs, before and after each snapshot, the programs that sanbox.toml names under [policies.hook.db]; hook=db,vm those of \
         both. Where one fails, the snapshot is taken all the same and its property org.sanbox:hooks-failed says so.",
        "set: sanbox policy set tank/vm 'hourly=24 daily=7 at=02:00 zone=Europe/Berlin'",
        "preview: what a policy would destroy now and have left in 30 days: sanbox policy preview tank/vm 'hourly=48 daily=14'",
        "show: the policies, the newest snapshot of each, and when the next is due. clear: the dataset inherits its policy again.",
        "Only snapshots that a policy took are ever destroyed by one; held and cloned ones stay. After a pause, one snapshot is taken, \
         not one for each that was missed. A policy that came with 'zfs receive' is not in force until it is set here. The policy is \
         the property org.sanbox:policy.",
    ],
    ..Command::NEW
};

pub(super) const SNAPSHOTS: Command = Command {
    name: "snapshots",
    summary: "say why snapshots are kept or will be destroyed",
    operands: "why DATASET[@SNAPSHOT]",
    flags: &[short('H', "no headings, tabs between columns")],
    text: &[
        "For one snapshot, or for all of a dataset: which class of the policy keeps it and at which place it stands in the class, or \
         what else keeps it.",
    ],
    ..Command::NEW
};
