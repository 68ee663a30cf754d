//! The declarations of the commands that show what the appliance does, and what is wrong.

use super::super::command::Command;
use super::super::flag::{long, short, valued};

pub(super) const ARCSTAT: Command = Command {
    name: "arcstat",
    summary: "show what the caches do",
    operands: "[INTERVAL [COUNT]]",
    flags: &[
        short('a', "all columns"),
        short('x', "the columns about lists and ghosts"),
        short('p', "exact numbers, no heading"),
        short('v', "say what the columns are"),
        valued('f', "FIELD,...", "these columns"),
        valued('s', "TEXT", "between columns, instead of two spaces"),
    ],
    text: &[
        "The columns are those of OpenZFS's arcstat, for the caches of all pools together. The first line counts since the \
         pools were opened, each further one says how many in a second of the interval.",
        "pused and pwaste tell of blocks read ahead; x0.5%, x2% and x4% estimate the hit rate of a cache of half, twice and \
         four times the size from a sample of the reads.",
    ],
    examples: &[
        ("sanbox arcstat 1", "hits and misses, every second"),
        (
            "sanbox arcstat -f time,hit%,x0.5%,x2%,x4%,size 5",
            "whether more memory would help",
        ),
    ],
    ..Command::NEW
};

pub(super) const ZILSTAT: Command = Command {
    name: "zilstat",
    summary: "show what the intent logs do",
    operands: "[COUNT]",
    flags: &[
        short('a', "each dataset for itself"),
        short('g', "all datasets together, as without an option"),
        short(
            'w',
            "say in words what the log devices do, and why one is idle",
        ),
        short('v', "say what the columns are"),
        valued('d', "DATASET,...", "each of these for itself"),
        valued('p', "POOL", "each dataset of this pool"),
        valued('f', "FIELD,...", "these columns"),
        valued('s', "TEXT", "between columns, instead of two spaces"),
        valued('i', "SECONDS", "again and again, how many in a second"),
    ],
    text: &[
        "The columns are those of OpenZFS's zilstat. cc is commits (fsync, synchronous writes, COMMIT), cwc the batches they \
         were written in: commits that wait at the same time share one. ic is records written to the log; of those, writes are \
         idc with their data (idb bytes) and iic with a pointer to their block (iib bytes). imnc and imsc are log blocks on the \
         devices of the data and on log devices, imnw and imsw the bytes written to them. cec and csc count commits that waited \
         for a transaction group since a device failed the log, or there was no room for it.",
    ],
    examples: &[
        ("sanbox zilstat -a -i 1", "every second, by dataset"),
        (
            "sanbox zilstat -f cc,cwc,imsc,tes%",
            "how many commits share a write, and how full log blocks are",
        ),
        ("sanbox zilstat -w", "why the log device is idle, in words"),
    ],
    ..Command::NEW
};

pub(super) const NFSSTAT: Command = Command {
    name: "nfsstat",
    summary: "show what clients of NFS ask for",
    operands: "[INTERVAL [COUNT]]",
    flags: &[
        long("client", Some("ADDRESS"), "only this client"),
        long(
            "csv",
            None,
            "rows of time (seconds since 1970), client, version, operation and calls",
        ),
        short('H', "without headings, columns between tabs"),
        short('j', "as JSON"),
    ],
    text: &[
        "For each client: by which versions it came, calls (a COMPOUND is one), bytes of calls and answers, and what it has mounted, \
         as far as it said (version 3 only). Then the procedures of version 3 and the operations of version 4, the most \
         frequent first. Then the requests to each dataset: how many of them had to wait, and how long one waited on average; 'sanbox \
         top' and 'sanbox why' say for what.",
        "All is counted since the daemon was started; with an interval, what was asked in it, in a second.",
    ],
    examples: &[
        ("sanbox nfsstat 1", "who does what, every second"),
        (
            "sanbox nfsstat --csv --client 192.0.2.7 60 >> nfs.csv",
            "one client, for a spreadsheet",
        ),
    ],
    ..Command::NEW
};

pub(super) const TOP: Command = Command {
    name: "top",
    summary: "watch devices, caches and requests live",
    operands: "",
    flags: &[
        short(
            'b',
            "no terminal control; one screen, or as many as -n says",
        ),
        valued('I', "SECONDS", "between screens (1)"),
        valued('n', "COUNT", "end after so many screens"),
    ],
    text: &[
        "Devices are shown as FreeBSD's gstat shows them: operations in the queue, a second, kilobytes, milliseconds each. \
         Below, for each dataset and client: requests, how many had to wait, how long, and for what: queue and device (the \
         disks), cache (a block another request was reading), log, flush, throttle (too much dirty data), txg, lock, compute.",
    ],
    examples: &[
        ("sanbox top", "until ^C"),
        ("sanbox top -b -I 5", "five seconds, as text"),
    ],
    ..Command::NEW
};

pub(super) const ALERT: Command = Command {
    name: "alert",
    summary: "what is wrong, what it means for the data, and what to do",
    operands: "list | mute ID | acknowledge ID | reopen ID | test [CHANNEL] | checks | channel list | \
               channel add mail TO,... | channel add webhook URL | channel add syslog HOST:PORT | channel add snmp HOST:PORT | channel remove NAME",
    flags: &[
        short('a', "list: also those that are over"),
        short('H', "list, checks: without headings, columns between tabs"),
        long(
            "for",
            Some("TIME"),
            "mute: for so long, such as 8h (until it is over)",
        ),
        long(
            "severity",
            Some("LEAST"),
            "channel add: only what is info, warning or critical, or worse (info)",
        ),
        long(
            "server",
            Some("HOST:PORT"),
            "channel add mail: the mail server",
        ),
        long("from", Some("ADDRESS"), "channel add mail: the sender"),
        long(
            "tls",
            Some("HOW"),
            "channel add mail: starttls, tls or none (starttls)",
        ),
        long("user", Some("NAME"), "channel add mail: who logs in there"),
        long(
            "form",
            Some("FORM"),
            "channel add webhook: json, slack, teams or ntfy (json)",
        ),
        long(
            "community",
            Some("NAME"),
            "channel add snmp: the community that the receiver asks for (public)",
        ),
        long(
            "password",
            None,
            "channel add: ask for the password, or the token of a web service; it is kept in the state directory",
        ),
        long(
            "password-file",
            Some("FILE"),
            "channel add: a file whose first line it is, read each time",
        ),
        long(
            "ca-file",
            Some("FILE"),
            "channel add: certificates to trust in place of the machine's",
        ),
    ],
    text: &[
        "The daemon checks pools, disks, capacity and its forecast, scrubs, jobs, the certificate, the clock, memory and the state \
         directory. There is one alert for a cause, however often it shows. mute ends telling people of one: sanbox alert mute 3 --for 8h.",
        "People are told by mail, web services, syslog and SNMP (traps of version 2c, as SYSLOG-MSG-MIB has them). channel add and \
         channel remove change [alerts] in sanbox.toml, and the daemon follows at once. \
         sanbox alert test tries them out; checks shows when each check ran last, and how the channels do.",
    ],
    examples: &[
        ("sanbox alert list", "what is wrong, and what to do"),
        ("sanbox alert mute 3 --for 8h", "nobody is told of it today"),
        (
            "sanbox alert channel add mail anna@example.org --server mail.example.org:587 --from nas@example.org --user nas --password",
            "Anna is written to; the password is asked for",
        ),
        (
            "sanbox alert channel add webhook https://ntfy.sh/TOPIC --form ntfy --severity warning",
            "telephones ring",
        ),
        (
            "sanbox alert channel add snmp 192.0.2.20:162 --community storage",
            "a trap for each alert, and one when it is over",
        ),
    ],
    ..Command::NEW
};

pub(super) const REPORT: Command = Command {
    name: "report",
    summary: "how the week was: capacity, rates, errors and alerts, in words and as a picture",
    operands: "[schedule [off|daily|weekly|monthly]]",
    flags: &[
        long("daily", None, "of the last day"),
        long("weekly", None, "of the last week (where none is said)"),
        long("monthly", None, "of the last 30 days"),
        long(
            "to",
            Some("FILE"),
            "write it there: .html with the picture in it, .svg the picture alone, else the words",
        ),
        long(
            "mail",
            None,
            "send it to those whom the mail channels write to",
        ),
    ],
    text: &[
        "What is open, how each pool filled, in how many days it is full as it grew, what its disks carried, errors by disk, and the alerts that \
         were opened and are over. It is made of the history, which reaches back 30 days, and waits for no disk.",
        "schedule: shows or sets how often it is mailed, at six in the morning: each day, on Mondays or on the first of the month. \
         It is [alerts.report] in sanbox.toml ('to' names others than the mail channels do); off unless it is set.",
    ],
    examples: &[
        ("sanbox report", "the last seven days, in words"),
        (
            "sanbox report --monthly --to month.html",
            "a page with a picture",
        ),
        ("sanbox report schedule weekly", "by mail, on Mondays"),
    ],
    ..Command::NEW
};

pub(super) const CHECKS: Command = Command {
    name: "checks",
    summary: "the checks that find what alerts tell of: how they went; one is run at once, or turned off",
    operands: "[list] | run NAME | history NAME | on NAME | off NAME",
    flags: &[short(
        'H',
        "list, history: without headings, columns between tabs",
    )],
    text: &[
        "Each check runs at its interval while the daemon does. run has one run at once, one that is off too, and says what it found; \
         history shows its runs, \
         those that found the same, one after the other, in one line.",
        "off ends a check until it is turned on again, and its alerts are over. config-backup is off until it is turned on: it tells when \
         'sanbox config export' was not given for 30 days.",
    ],
    examples: &[
        (
            "sanbox checks",
            "what is looked at, when it was last, and what was found",
        ),
        ("sanbox checks run scrub", "whether a scrub is overdue, now"),
        (
            "sanbox checks off slow-disks",
            "no more alerts of slow disks",
        ),
    ],
    ..Command::NEW
};

pub(super) const WHY: Command = Command {
    name: "why",
    summary: "say why requests were slow",
    operands: "",
    flags: &[
        long(
            "at",
            Some("TIME"),
            "around this time: 14:05, '2026-11-25 14:05:30', or 10m (ago); without it the last minute",
        ),
        long("for", Some("TIME"), "how long a time to look at (60s)"),
        long("client", Some("ADDRESS"), "only requests of this client"),
        long(
            "dataset",
            Some("DATASET"),
            "only requests to this dataset and those below it",
        ),
        short('j', "as JSON"),
    ],
    text: &[
        "Names the cause: a slow or hung disk, a full pool, a log device that is gone, writers that are faster than the disks, a cache \
         that is too small, one client that takes most, synchronous writes without a log device, a scrub, a table of deduplicated \
         blocks that does not fit, the network. Behind it stands what requests waited for, as in 'sanbox top'.",
        "'sanbox serve' keeps each second for an hour, each 10 s for a day and each 5 min for 30 days, in history.db of the state directory.",
    ],
    examples: &[
        (
            "sanbox why --at 14:05",
            "what was slow around that time, and why",
        ),
        (
            "sanbox why --client 192.0.2.7 --for 10m",
            "the last ten minutes of one client",
        ),
    ],
    ..Command::NEW
};

pub(super) const DOCTOR: Command = Command {
    name: "doctor",
    summary: "look for trouble and say what to do",
    operands: "",
    flags: &[],
    text: &[
        "Checks the state directory, the daemon, the pools and their devices, the shares, and what this machine allows. Exits 1 \
         when something needs attention.",
    ],
    examples: &[("sanbox doctor", "what is wrong, and what to do about it")],
    ..Command::NEW
};

pub(super) const SUPPORT: Command = Command {
    name: "support",
    summary: "put what a helper wants to see into one archive",
    operands: "",
    text: &[
        "support.tar in the state directory takes the place of an earlier one: the output of the commands that show pools, datasets, shares, \
         targets, jobs, alerts, checks, caches and logs, the settings, and what the machine is. The console offers it for download under Settings.",
        "No content of files, no password, key or secret is in it. Names of datasets, hosts and users are: look through it before it is given away. \
         A command that does not answer within 20 s is told of as such.",
    ],
    examples: &[("sanbox support", "writes support.tar, and says where")],
    ..Command::NEW
};
