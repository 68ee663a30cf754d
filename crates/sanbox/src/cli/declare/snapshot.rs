//! The declarations of the commands on policies of snapshots.

use super::super::command::Command;
use super::super::flag::{both, long, short};

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
        "at=HH:MM and weekday=sun say when days and weeks begin, zone=Europe/Berlin whose clock that is. naming=auto, sanoid, zrepl, \
         seed or seed-latest is how snapshots are named: with seed-latest the newest is snap-daily-1-latest, and gets its date when the next one is \
         taken; copies by replication follow. unchanged=skip takes none while nothing was written. take=no only destroys old ones, where \
         snapshots arrive by replication.",
        "immutable=30d: nobody destroys a new snapshot for so long (12h, 30d, 4w), whatever the policy becomes; see 'sanbox immutable'.",
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
    flags: &[
        short('H', "no headings, tabs between columns"),
        both(
            'j',
            "json",
            None,
            "print JSON; times are seconds since 1970",
        ),
    ],
    text: &[
        "For one snapshot, or for all of a dataset: which class of the policy keeps it, at which place it stands in the class and until when \
         at the earliest, or what else keeps it. Behind that, until when it is immutable, its holds, its clones, and its bookmarks, from \
         which increments go on when it is gone.",
    ],
    examples: &[
        ("sanbox snapshots why tank/home", "what keeps each snapshot"),
        (
            "sanbox snapshots why -j tank/home@monday",
            "of one, for programs",
        ),
    ],
    ..Command::NEW
};

pub(super) const IMMUTABLE: Command = Command {
    name: "immutable",
    summary: "keep everybody from destroying snapshots before a date",
    operands: "SNAPSHOT...",
    flags: &[
        long("for", Some("TIME"), "from now on: 12h, 30d or 4w"),
        long(
            "until",
            Some("DATE"),
            "YYYY-MM-DD or YYYY-MM-DDTHH:MM, within ten years",
        ),
    ],
    text: &[
        "Until then neither its owner nor root destroys the snapshot, with any command, rolls its dataset back over it, or destroys its dataset \
         or pool. The date can be prolonged, never shortened or taken away. A hold beside it keeps OpenZFS's commands from it, too, and \
         streams with properties bring it to copies. A policy with immutable=30d gives it to each new snapshot.",
        "A clock that is set back makes snapshots stay longer; one that is set forward while the pool is imported changes nothing. What is done to \
         the disks without this program is beyond it.",
    ],
    examples: &[
        ("sanbox immutable --for 30d tank/home@monday", "for 30 days"),
        (
            "sanbox immutable --until 2034-12-31 tank/books@year-end",
            "until a date",
        ),
    ],
    ..Command::NEW
};

pub(super) const TRASH: Command = Command {
    name: "trash",
    summary: "datasets that were destroyed and are kept for a while: list, restore, destroy for good",
    operands: "[list] | restore DATASET [NAME] | empty DATASET ... | empty -a",
    flags: &[
        short(
            'H',
            "list: without headings, columns between tabs, exact sizes",
        ),
        short('a', "empty: all of it, of all pools"),
        short('n', "empty: only say what would come free"),
    ],
    text: &[
        "Where the property org.sanbox:trash is a time (zfs set org.sanbox:trash=7d tank; 12h, 30d, 4w), 'zfs destroy' of a file system or \
         volume renames it \
         to POOL/.trash/TIME-NAME instead, with its snapshots and what is below it. There it is not mounted, shared or mapped, takes its \
         space as before, and is \
         shown by 'zfs list'; its properties org.sanbox:trash-from and org.sanbox:trash-until say what it was and until when it is kept. It \
         is inherited, and off \
         unless it is set. Snapshots are destroyed at once, and so is what channel programs, replication and 'zfs receive' destroy.",
        "The daemon destroys what is due, each as a job. restore brings a dataset back, with its mount point, shares and mappings; NAME \
         where its name was taken or what \
         was above it is gone. 'zfs destroy -r' of what is in the trash is for good.",
    ],
    examples: &[
        (
            "sanbox trash",
            "what is kept, what it would free, and until when",
        ),
        (
            "sanbox trash restore tank/.trash/20261128T070005Z-home",
            "tank/home as it was",
        ),
        ("sanbox trash empty -an", "what emptying it would free"),
    ],
    ..Command::NEW
};
