//! The declaration of `sanbox replication`.

use super::super::command::Command;
use super::super::flag::{both, long, short};

pub(crate) const REPLICATION: Command = Command {
    name: "replication",
    summary: "keep datasets the same in another place",
    operands: "create NAME --from SIDE --to SIDE | change NAME | list | show NAME | run NAME | cancel NAME | pause NAME | \
               resume NAME | reset NAME | adopt NAME | failover NAME | failback NAME | takeover DATASET | test NAME | \
               test-restore NAME | reports NAME | remove NAME | export NAME DIRECTORY | import DIRECTORY",
    flags: &[
        long(
            "from",
            Some("SIDE"),
            "create: the source: DATASET, peer://PEER/DATASET or HOST:DATASET",
        ),
        long(
            "to",
            Some("SIDE"),
            "create: the target, which the first run makes; import: the dataset to receive into, in place of the job's",
        ),
        long(
            "ssh",
            Some("COMMAND"),
            "create, change: what to run in place of ssh, such as 'ssh -i /root/backup-key'",
        ),
        both(
            'r',
            "recursive",
            None,
            "create, change: datasets below go along",
        ),
        both(
            'X',
            "exclude",
            Some("DATASET"),
            "create, change: leave out a dataset of the source and those below (may be repeated; * for any text)",
        ),
        long(
            "select",
            Some("PATTERN"),
            "create, change: snapshots to send, such as 'auto-*' (may be repeated; all)",
        ),
        long(
            "newest-only",
            None,
            "create, change: send the newest snapshot, not those between",
        ),
        long(
            "take",
            None,
            "create, change: the job takes a snapshot of its own where something was written, and keeps only the newest",
        ),
        long(
            "continuous",
            None,
            "create, change: send what is written within seconds, with snapshots as of --take; the source is a pool of this machine or of a peer",
        ),
        long(
            "every",
            Some("TIME"),
            "create, change: how often to look for something to send: 30s, 5m, 1h (5m)",
        ),
        long(
            "bandwidth",
            Some("SIZE"),
            "create, change: bytes a second at most, such as 20M",
        ),
        long(
            "compress",
            Some("HOW"),
            "create, change: how streams from or to a peer are compressed: off, auto, or zstd-1 to zstd-19 (auto: zstd-1)",
        ),
        long(
            "window",
            Some("HH:MM-HH:MM"),
            "create, change: hours of the day in which the daemon sends",
        ),
        long(
            "keep",
            Some("POLICY"),
            "create, change: what the target keeps, such as 'daily=30 monthly=12' (everything)",
        ),
        long(
            "test-schedule",
            Some("SCHEDULE"),
            "create, change: when the restore of the copy is tested, such as 'weekly weekday=sun at=03:00' (never)",
        ),
        both(
            'w',
            "raw",
            None,
            "create, change: send blocks as they are stored, encrypted ones without their key",
        ),
        long(
            "no-properties",
            None,
            "create, change: properties stay here",
        ),
        both(
            'o',
            "set",
            Some("PROPERTY=VALUE"),
            "create, change: set a property of the target's new datasets (may be repeated)",
        ),
        both(
            'x',
            "not-in-force",
            Some("PROPERTY"),
            "create, change: a property comes along and is not put in force (may be repeated)",
        ),
        long(
            "off",
            Some("SETTING"),
            "change: turn off recursive, newest-only, take, continuous, raw or no-properties (may be repeated)",
        ),
        long(
            "rollback",
            None,
            "adopt, failback: give up what is newer at the other side than the newest snapshot in common",
        ),
        long("end", None, "test: destroy the clones"),
        long(
            "keep-holds",
            None,
            "remove: leave holds, bookmarks and snapshots of the job where they are",
        ),
        short(
            'n',
            "create, change, run, adopt, failover, failback, takeover, test, test-restore, remove, export, import: only say what would be done",
        ),
        short('j', "reports: as JSON"),
        short('H', "list: no headings, tabs between columns"),
    ],
    text: &[
        "A job sends the snapshots of a dataset that its target does not have, as increments of the newest that both have. The daemon looks as \
         often as the job says; 'run' does it now. Snapshots are taken by policies ('sanbox policy'), by hand, or by the job (--take): then \
         after the target has answered, and one at a time.",
        "What there is to do is computed from both sides each time: after an interruption, a restart or a month without the target, a run goes \
         on where the last one came to, in the middle of a stream too. A bookmark at the source keeps increments possible when a policy \
         destroys the snapshots there, and a hold keeps the newest common snapshot at the target.",
        "The target's datasets are read-only and not mounted by themselves; mountpoint, sharenfs, sharesmb, org.sanbox:nbd and policies come along \
         as received properties and are not in force there.",
        "--continuous: what is written is at the target some seconds later. The job follows the transaction groups of the source's pool and asks \
         neither side while nothing changes; of its own snapshots both sides keep one. 'show' says how far the target was behind.",
        "peer://PEER/DATASET is on another appliance with this program, by its own protocol: encrypted, resumed, checked from end to end, and \
         limited to what the peer was invited to ('sanbox peer'). What becomes smaller by that is compressed on its way; blocks that are compressed \
         or encrypted in the pool go as they are. --compress has it done better, for a slow link, or not at all.",
        "HOST:DATASET is on another host, with OpenZFS or this program, where the user that runs this one can log in by ssh without a password: \
         'root@backup:vault/vm' as the target pushes, as the source pulls. Nothing is installed there.",
        "A target that was written to, that another job has, or that has snapshots of its own after the newest common one is refused with \
         words, and never rolled back unasked: 'adopt --rollback' does it. 'adopt' alone takes a target that exists and has a snapshot in common.",
        "change: each option that is given replaces that setting, an empty value takes it away, and the next run, which begins at once, has it. \
         Source and target stay.",
        "pause and resume: the daemon leaves the job alone, or goes on. cancel: ends the run under way; what was sent is kept. reset: gives up \
         what an interrupted receive left at the target, and tries at once.",
        "remove: forgets the job. Its holds on both sides, its bookmarks and the snapshots that it took at the source are given up; the target \
         stays as it is. --keep-holds leaves them, so that a job of the same name goes on from there.",
        "--keep: of each class the first snapshot of each period stays at the target, so many of them, whatever the source has still. Only \
         snapshots that the job sent are destroyed, none that is held or cloned, and never the newest common one.",
        "failover: sends what is left if the source can be reached, then puts the target in use: it becomes writable, and the mount points and \
         shares that came along are in force. failback: brings what was written there back, as differences, and turns both round again; with \
         --rollback what the source has after the newest snapshot in common is given up. test: makes writable clones of the newest snapshots \
         beside the target (TARGET-test) while replication goes on; test --end destroys them.",
        "test-restore: says whether the copy could be restored. The newest snapshot of each dataset is cloned beside the target, one at a time, \
         for nobody to see; every file and volume of it is read, which verifies all checksums, and compared byte by byte with the same snapshot at \
         the source where that is a pool of this machine; the clone is destroyed. Replication goes on. What cannot be read or differs is named, \
         and is an alert until a test is passed.",
        "--test-schedule: the daemon does that by itself: hourly, daily, weekly, monthly or yearly, with at=HH:MM, weekday=DAY and zone=ZONE as in \
         policies, or cron=\"EXPRESSION\". The first test begins when the target has something, and one that was missed is made up for. 'reports' \
         prints what the tests found, the newest first; 'cancel' ends one. A target on another host is tested by a job there that pulls.",
        "A target that is in use acts as its source: NFS clients go on with the handles that they have, and LUNs keep serial numbers and \
         identifiers. Before, its volumes are shown to no initiator.",
        "takeover: puts a copy of this machine in use, with those below that the same job sent, where the appliance that has the source and the \
         job is gone. A run of the job is refused then; when that appliance is back, 'failback --rollback' there brings back what was written here. \
         A job to a peer fails over by itself where the peer was invited with --failover.",
        "Of a source and its copy one is in use: failover fences the source before the last of it is sent, and a source that comes back while its \
         copy is in use is fenced as soon as both sides of the job reach each other, where it can be before it is served. What is fenced is \
         read-only, neither shared nor mapped, and an alert. failback ends that; takeover of the source puts that one in use again, and fences the \
         copy, which 'adopt --rollback' makes a copy again.",
        "export: writes what the target does not have into DIRECTORY/sanbox-NAME, for a disk that is carried where a network is too slow, and \
         pauses the job; -n says what and about how much. import: receives it in a pool of the machine that it was brought to; then the job is \
         resumed, and goes on from there. The same disk, brought back, takes what is new since the import. Each file is \
         at most 1 GiB, and is checked before it is received.",
        "The jobs are in replication.toml of the state directory.",
    ],
    examples: &[
        (
            "sanbox replication create vm --from tank/vm --to backup/vm -r",
            "a dataset with all below it, on another pool",
        ),
        (
            "sanbox replication create off --from tank/vm --to root@backup:vault/vm -r --window 22:00-06:00 --keep 'daily=30 monthly=12'",
            "to another host at night, which keeps more than the source",
        ),
        (
            "sanbox replication create vm --from tank/vm --to peer://vault/backup/vm -r --continuous",
            "to another appliance that was paired as 'vault'",
        ),
        (
            "sanbox replication create vm --from tank/vm --to backup/vm -n",
            "what the first run would send",
        ),
        (
            "sanbox replication create db --from tank/db --to backup/db --continuous",
            "what is written to a database is at the target some seconds later; 'show' says how many",
        ),
        (
            "sanbox replication create db --from tank/db --to backup/db --take --every 1m",
            "where no policy takes snapshots",
        ),
        (
            "sanbox replication export vm /mnt/usb",
            "the first copy goes by a disk: 'sanbox replication import /mnt/usb' where the target is",
        ),
        (
            "sanbox replication show vm",
            "how far it is, what is missing at the target, and why",
        ),
        (
            "sanbox replication change vm --test-schedule 'weekly weekday=sun at=03:00 zone=Europe/Berlin'",
            "each Sunday the copy is read to the last byte; 'sanbox replication reports vm' says what was found",
        ),
        (
            "sanbox replication test-restore vm",
            "can the copy be restored? Exits 1 where not all of it can",
        ),
        (
            "sanbox replication takeover vault/office/vm",
            "the office is gone: its copy here is used in place of it",
        ),
        (
            "sanbox replication adopt vm --rollback",
            "the target goes back to the newest snapshot in common",
        ),
    ],
    ..Command::NEW
};
