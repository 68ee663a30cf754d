//! The declarations of our own commands.

use super::command::Command;
use super::config_command::{CONFIG, CONSOLE};
use super::flag::{Flag, both, long, short, valued};
use super::replication_command::REPLICATION;

/// Options before the command's name.
pub(crate) const GLOBAL: &[Flag] = &[
    long(
        "state",
        Some("DIR"),
        "state directory: pool cache, configuration and control socket (also SANBOX_STATE)",
    ),
    both('V', "version", None, "print the version"),
    both('h', "help", None, "print this help"),
];

const PATHS: &str = "A place in a dataset is written DATASET:/PATH, and in a snapshot DATASET@SNAP:/PATH. \
                     Nothing needs to be mounted.";

const COMSTAR_FLAGS: &[Flag] = &[
    both(
        'p',
        "lu-prop",
        Some("NAME=VALUE"),
        "create-lu, modify-lu: guid, wcd, wp, blk, alias",
    ),
    both(
        's',
        "size",
        Some("SIZE"),
        "create-lu, modify-lu: size of the unit",
    ),
    both(
        'f',
        "force",
        None,
        "proceed though initiators use it; the operand of modify-lu is a file",
    ),
    both('k', "keep-views", None, "delete-lu: keep the views"),
    both(
        'l',
        "lu-name",
        Some("GUID"),
        "list-view, remove-view: the unit",
    ),
    both('a', "all", None, "remove-view: all of them"),
    both(
        'n',
        "lun",
        Some("N"),
        "add-view: logical unit number (the lowest that is free)",
    ),
    both(
        't',
        "target-group",
        Some("NAME"),
        "add-view: targets that show it (all)",
    ),
    both(
        'h',
        "host-group",
        Some("NAME"),
        "add-view: initiators that see it (all)",
    ),
    both(
        'g',
        "group-name",
        Some("NAME"),
        "add-hg-member and its like: the group",
    ),
    both('v', "verbose", None, "lists: everything that is known"),
];

const ITADM_FLAGS: &[Flag] = &[
    both(
        'n',
        "node-name",
        Some("IQN"),
        "create-target, modify-target: name",
    ),
    both(
        'l',
        "alias",
        Some("TEXT"),
        "create-target, modify-target: what initiators show to people",
    ),
    both(
        'a',
        "auth-method",
        Some("METHOD"),
        "create-target, modify-target: none or chap",
    ),
    both(
        'u',
        "chap-user",
        Some("NAME"),
        "create-target, modify-target: who the target says it is",
    ),
    both(
        't',
        "tpg",
        Some("NAME,..."),
        "create-target, modify-target: portal groups, or 'default'",
    ),
    both('f', "force", None, "delete-target: though it is in use"),
    both('v', "verbose", None, "lists: everything that is known"),
];

/// All commands of our own.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "serve",
        summary: "run the appliance in the foreground",
        operands: "",
        flags: &[
            long(
                "listen",
                Some("ADDR"),
                "address to listen at (may be repeated); default: loopback, or everywhere once a share allows other hosts",
            ),
            long(
                "nfs-port",
                Some("N"),
                "TCP port of NFS and MOUNT; 0 turns NFS off (2049)",
            ),
            long(
                "iscsi-port",
                Some("N"),
                "TCP port of iSCSI, open while there are targets; 0 turns it off (3260)",
            ),
            long(
                "nbd-port",
                Some("N"),
                "TCP port of NBD, open while a volume's property org.sanbox:nbd is on or readonly; 0 is none (10809)",
            ),
            long(
                "smb-port",
                Some("N"),
                "TCP port of SMB, open while a dataset's property sharesmb says so; 0 is none (445)",
            ),
            long(
                "https-port",
                Some("N"),
                "TCP port of the console in the browser and of the REST API (HTTPS); 0 is none (8443)",
            ),
            long(
                "devices",
                Some("DIR"),
                "directory whose files the console offers as disks (may be repeated)",
            ),
            long(
                "memory",
                Some("SIZE"),
                "memory that the whole process stays below (half of the machine's or the container's)",
            ),
            long(
                "metrics-port",
                Some("N"),
                "port of this machine where Prometheus finds /metrics; 0 is none (9134)",
            ),
            long(
                "log-level",
                Some("LEVELS"),
                "which events are logged: LEVEL,MODULE=LEVEL,... (info); see sanbox log",
            ),
            long(
                "log-format",
                Some("text|json"),
                "how they are written (text)",
            ),
            long(
                "no-portmap",
                None,
                "neither answer at port 111 nor register with rpcbind",
            ),
            long(
                "mount",
                None,
                "mount file systems at their mount points (FUSE)",
            ),
        ],
        text: &[
            "Opens the pools that the state directory remembers as imported and serves those datasets whose sharenfs property says \
             so. Logs to standard error, prints the line 'sanbox: ready' and notifies systemd when it is up, and ends cleanly on \
             SIGTERM and SIGINT. A killed daemon loses nothing it acknowledged: start it again.",
            "Volumes are offered by NBD: all of them at the socket nbd.sock in the state directory, for its owner, and those whose \
             property org.sanbox:nbd is on or readonly at the TCP port (zfs set org.sanbox:nbd=on tank/vol; then \
             nbd://HOST/tank/vol).",
            "While it runs, zpool, zfs and sanbox commands of the same state directory are carried out by it, through a socket there.",
            "Settings come from sanbox.toml in the state directory, and flags override them. On SIGHUP the file is read again: \
             [log] level and [tuning] take effect at once, and the log names what waits for the next start.",
        ],
        examples: &[
            (
                "sanbox serve",
                "the appliance with the pools it knows, ^C ends it",
            ),
            (
                "sanbox --state /srv/sanbox serve --listen 192.0.2.7 --memory 8G",
                "another place for its state, one address, 8 GiB of memory for everything",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "zpool",
        summary: "manage pools, in OpenZFS's grammar",
        operands: "COMMAND ...",
        flags: &[],
        text: &[
            "Called through a link named zpool, the program is this command. See zpool(8) of OpenZFS 2.3.",
        ],
        ..Command::NEW
    },
    Command {
        name: "zfs",
        summary: "manage datasets, in OpenZFS's grammar",
        operands: "COMMAND ...",
        flags: &[],
        text: &[
            "Called through a link named zfs, the program is this command. See zfs(8) of OpenZFS 2.3.",
        ],
        ..Command::NEW
    },
    Command {
        name: "ls",
        summary: "list a directory of a dataset",
        operands: "DATASET[@SNAP]:/PATH ...",
        flags: &[
            short('a', "also names that begin with a dot"),
            short('l', "with type, mode, links, owner, size and time"),
            short('d', "directories themselves, not what is in them"),
            short('i', "with object numbers"),
        ],
        text: &[PATHS],
        examples: &[("sanbox ls -l tank/home:/anna", "no mount needed")],
        ..Command::NEW
    },
    Command {
        name: "cat",
        summary: "write files of a dataset to standard output",
        operands: "DATASET[@SNAP]:/PATH ...",
        flags: &[],
        text: &[PATHS],
        examples: &[("sanbox cat tank/home:/anna/notes.txt", "to the terminal")],
        ..Command::NEW
    },
    Command {
        name: "get",
        summary: "copy files, or a volume, out of a pool",
        operands: "DATASET[@SNAP]:/PATH DEST | VOLUME[@SNAP] DEST",
        flags: &[
            short('r', "directories, with everything in them"),
            short('v', "name each file"),
            long(
                "tar",
                None,
                "write a pax archive to DEST, or to standard output",
            ),
        ],
        text: &[
            PATHS,
            "With -r, types, modes, owners, times, hard links, symbolic links, holes, device nodes and extended attributes are \
             kept, as far as the user may set them; DEST becomes the copy of PATH. What DEST cannot hold is named, the rest is \
             copied, and the exit code is 1.",
            "With --tar everything is kept, whatever the destination's file system can hold: tar --xattrs --xattrs-include='*' -xf, \
             or bsdtar, restores it. Sockets, which archives do not have, are named.",
            "Of a volume the bytes are copied; holes stay holes.",
        ],
        examples: &[
            (
                "sanbox get tank/home:/anna/notes.txt .",
                "one file into this directory",
            ),
            (
                "sanbox get -r tank/home:/anna /srv/copy",
                "a directory with everything in it",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "put",
        summary: "copy files into a dataset",
        operands: "SOURCE DATASET:/PATH",
        flags: &[
            short('r', "directories, with everything in them"),
            short('v', "name each file"),
        ],
        text: &[
            PATHS,
            "With -r everything is kept as with get -r; PATH becomes the copy of SOURCE. The copy is on stable storage when the command ends.",
        ],
        examples: &[(
            "sanbox put -r ./photos tank/photos:/2026",
            "durable when the command ends",
        )],
        ..Command::NEW
    },
    Command {
        name: "restore",
        summary: "copy files out of a snapshot back into a file system",
        operands: "DATASET@SNAP:/PATH [DATASET:/PATH]",
        flags: &[
            short('f', "replace what is there"),
            short('v', "name each file"),
        ],
        text: &[
            PATHS,
            "Directories come with everything in them; owners, permissions, times, hard links, holes and extended attributes are \
             kept. Without a second place the files go where they were. What is there already is refused, or replaced with -f: a \
             file when its copy is complete, while a directory keeps what the snapshot does not have. The copy is on stable storage \
             when the command ends.",
        ],
        examples: &[
            (
                "sanbox restore tank/home@monday:/anna/letter.odt",
                "back to where it was, if nothing is there",
            ),
            (
                "sanbox restore tank/home@monday:/anna tank/home:/anna-monday",
                "a directory with everything in it, beside what is there now",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "rm",
        summary: "remove files of a dataset",
        operands: "DATASET:/PATH ...",
        flags: &[
            short('r', "directories, with everything in them"),
            short('f', "no complaint about what is not there"),
        ],
        text: &[PATHS],
        examples: &[(
            "sanbox rm -r tank/home:/anna/tmp",
            "a directory and everything in it",
        )],
        ..Command::NEW
    },
    Command {
        name: "mkdir",
        summary: "make directories in a dataset",
        operands: "DATASET:/PATH ...",
        flags: &[
            short('p', "with missing parents; no complaint when it exists"),
            valued('m', "MODE", "permissions, octal (0755)"),
        ],
        text: &[PATHS],
        examples: &[(
            "sanbox mkdir -p -m 0750 tank/home:/anna/letters/2026",
            "with its parents",
        )],
        ..Command::NEW
    },
    Command {
        name: "mount",
        summary: "mount a dataset on this machine (FUSE)",
        operands: "DATASET DIR",
        flags: &[short('r', "read-only")],
        text: &[
            "Without a running daemon the command stays in the foreground and holds the mount until it is unmounted or interrupted; \
             other commands of the same state directory work meanwhile.",
        ],
        examples: &[("sanbox mount tank/home /mnt", "until it is unmounted")],
        ..Command::NEW
    },
    Command {
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
    },
    Command {
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
    },
    Command {
        name: "sums",
        summary: "print a digest of each object of datasets",
        operands: "DATASET|SNAPSHOT ...",
        flags: &[short('r', "also what lies below, and all snapshots")],
        text: &[
            "One line for each object: dataset, number, type, bytes of a block, and a SHA-256 over the digests of its blocks and \
             its bonus, each with its place; a block of zeros counts as a hole. Equal lines mean equal content, whatever the \
             layout, compression or checksum of the pool: replicas can be compared without moving their data. Everything is read \
             and verified on the way.",
        ],
        examples: &[(
            "sanbox sums -r tank/fs@monday",
            "what the snapshot holds, to compare with its copy elsewhere",
        )],
        ..Command::NEW
    },
    Command {
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
    },
    Command {
        name: "zstream",
        summary: "look into a send stream",
        operands: "dump [-vCd] [FILE]",
        flags: &[
            short('v', "each record on a line; said twice, the same"),
            short('C', "do not verify checksums"),
            short('d', "the bytes of each payload too; implies -v"),
        ],
        text: &[
            "Prints what a stream holds in the words of OpenZFS's zstream, and fails where its checksums are wrong or it ends too \
             early. Without a file it reads standard input. A link named zstream to this program is the same command.",
        ],
        ..Command::NEW
    },
    Command {
        name: "lab",
        summary: "try power cuts in simulated machines",
        operands: "crash | ledger FILE",
        flags: &[
            long("seeds", Some("N"), "crash: how many seeds (100)"),
            long("start", Some("S"), "crash: the first seed (0)"),
            long("jobs", Some("J"), "crash: processes at a time (2)"),
            long(
                "minutes",
                Some("M"),
                "crash: go on with further seeds until so much time is over",
            ),
            long(
                "twice",
                None,
                "crash: run each seed again and compare, which shows that it can be repeated",
            ),
            long(
                "check-all",
                None,
                "crash: have the checker look for leaked and lost space after every cut, not after one in 24",
            ),
            long(
                "caches",
                None,
                "crash: give every pool a cache device, which may rot or fail",
            ),
            long(
                "ledger",
                Some("FILE"),
                "crash: add the run to a ledger, and begin with the first seed it does not have",
            ),
            long(
                "engine",
                Some("NAME"),
                "crash: what the ledger calls the state of the program",
            ),
            long("seed", Some("S"), "crash: one seed only, and tell more"),
            long("cut", Some("N"), "crash: with --seed, one of its cuts only"),
            long(
                "dump",
                Some("DIR"),
                "crash: with --seed, write the disks a violation left",
            ),
            long(
                "trace",
                Some("FILE"),
                "crash: with --cut, write the events of the import after it",
            ),
        ],
        text: &[
            "Each seed is a small machine of its own, with the engine of this program on modelled disks under virtual time: files, \
             datasets and volumes on every layout, with and without log devices, on good, slow and failing disks. The power is cut \
             at a hundred or more moments of its run; after each cut the pool is imported, and what is found is judged against \
             everything that had been acknowledged. No pool of this machine is touched.",
            "Exit status: 0 when nothing was lost, 1 for violations, 2 for bad usage. A ledger keeps what has been run: seeds, \
             cuts, cuts in an hour, and the seeds that showed a violation.",
        ],
        examples: &[
            (
                "sanbox lab crash --minutes 10",
                "power cuts for ten minutes, in two processes",
            ),
            (
                "sanbox lab crash --seed 112",
                "one seed with all its cuts, the first violation in full",
            ),
            (
                "sanbox lab ledger sim/ledger.toml",
                "add up what has been run so far",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "tune",
        summary: "show or change limits of caches and cache devices",
        operands: "[NAME=VALUE ...]",
        flags: &[short('H', "names and values only")],
        text: &[
            "Changes take effect at once in the running daemon and last until it ends; what is to hold at every start goes into the \
             section [tuning] of sanbox.toml.",
        ],
        examples: &[
            ("sanbox tune", "all limits, their values and effects"),
            (
                "sanbox tune zfs_arc_max=4G l2arc_write_max=64M",
                "smaller caches, faster cache devices, from now on",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "target",
        summary: "manage iSCSI targets and the volumes they show",
        operands: "create IQN | delete IQN | list | show [IQN] | map IQN VOLUME | unmap IQN VOLUME | chap IQN | allow IQN [INITIATOR ...] | portal IQN [ADDRESS[:PORT][,GROUP] ...] | redirect IQN ADDRESS[:PORT] | discovery | group NAME [INITIATOR ...] | groups | sessions",
        flags: &[
            short(
                'H',
                "list, groups, sessions: no headings, tabs between the cells",
            ),
            long(
                "alias",
                Some("TEXT"),
                "create: what initiators show to people",
            ),
            long(
                "lun",
                Some("N"),
                "map: logical unit number (the lowest that is free)",
            ),
            long(
                "for",
                Some("GROUP"),
                "map: only the initiators of this group see it",
            ),
            long(
                "user",
                Some("NAME"),
                "chap, discovery: who initiators must say they are",
            ),
            long(
                "secret",
                Some("TEXT"),
                "chap, discovery: what they must know, 12 characters or more",
            ),
            long(
                "secret-file",
                Some("FILE"),
                "chap, discovery: a file whose first line is the secret",
            ),
            long(
                "mutual-user",
                Some("NAME"),
                "chap: who the target says it is",
            ),
            long(
                "mutual-secret",
                Some("TEXT"),
                "chap: what the target proves to know",
            ),
            long(
                "mutual-secret-file",
                Some("FILE"),
                "chap: a file whose first line is that",
            ),
            long("off", None, "chap, discovery: anybody may log in"),
        ],
        text: &[
            "create: a target without volumes, that nobody outside can log in to yet: sanbox target create iqn.2026-11.lan.box:vm",
            "map: the volume becomes a logical unit of the target: sanbox target map --lun 1 iqn.2026-11.lan.box:vm tank/vm1; unmap \
             takes it away: sanbox target unmap iqn.2026-11.lan.box:vm tank/vm1",
            "allow: which initiators may log in, in place of those that might before: sanbox target allow iqn.2026-11.lan.box:vm \
             10.0.0.0/8 'iqn.1998-01.com.vmware:*'",
            "chap: the name and secret that initiators must give: sanbox target chap --user esx1 --secret-file /root/chap \
             iqn.2026-11.lan.box:vm; with --mutual-user and --mutual-secret-file the target proves itself, too; --off ends both. \
             discovery: the same for the list of targets: sanbox target discovery --off",
            "portal: the addresses that discovery tells: sanbox target portal iqn.2026-11.lan.box:vm 10.0.0.5 10.0.1.5:3261,2",
            "redirect: initiators are sent to another address: sanbox target redirect iqn.2026-11.lan.box:vm 10.0.0.6",
            "group: initiators under one name, for map --for; without members it is deleted: sanbox target group esx \
             iqn.1998-01.com.vmware:esx1 iqn.1998-01.com.vmware:esx2. groups: lists them: sanbox target groups",
            "list: names, and how many volumes each shows: sanbox target list. show: everything about one target or all: sanbox \
             target show. sessions: initiators that are logged in, and from where: sanbox target sessions",
            "delete: a target that shows no volumes: sanbox target delete iqn.2026-11.lan.box:vm",
            "Which volumes a target shows is a property of the volumes (org.sanbox:lun, as IQN/NUMBER), so it travels with import \
             and replication; names, secrets and access lists stay in the state directory. Changes take effect at once.",
            "Without secrets and access lists targets can be reached from this machine only; with them, from everywhere, unless \
             addresses were chosen with serve --listen. INITIATOR is an iSCSI name, a name with * at its end, an address or a \
             network (10.0.0.0/8); none, or 'all', is everybody.",
            "IQN may be 'all' in map and unmap: every target shows the volume then. With --for, several volumes can be the same LUN \
             to different initiators.",
            "Portals are what discovery tells, and are opened when they are addresses of this machine; portals with the same GROUP \
             (1) can share a session. redirect sends initiators that log in elsewhere to another address; 'off' ends that, as 'any' \
             does for portals.",
            "More properties of volumes: org.sanbox:lun.sector is 512n, 512e or 4kn; org.sanbox:lun.cache=off makes every write \
             safe before it is answered; org.sanbox:lun.threshold is the percentage of its possible space that a thin volume takes \
             when initiators are warned (90; 0 is never).",
        ],
        ..Command::NEW
    },
    Command {
        name: "stmfadm",
        summary: "logical units, views and groups in COMSTAR's words",
        operands: "create-lu FILE | import-lu FILE | modify-lu GUID | delete-lu GUID ... | list-lu [GUID ...] | add-view GUID | list-view [ENTRY ...] | remove-view [ENTRY ...] | create-hg NAME | delete-hg NAME | add-hg-member MEMBER ... | remove-hg-member MEMBER ... | list-hg [NAME ...] | create-tg NAME | ... | list-target [NAME ...] | online-lu GUID | offline-lu GUID | list-state",
        flags: COMSTAR_FLAGS,
        text: &[
            "For scripts and plug-ins that manage COMSTAR (also when the program is called stmfadm). A logical unit is a volume \
             that was registered by create-lu; FILE is /dev/zvol/rdsk/POOL/VOLUME or the volume's name. A view is a mapping as of \
             'sanbox target map'.",
        ],
        ..Command::NEW
    },
    Command {
        name: "sbdadm",
        summary: "logical units in the words of COMSTAR's block provider",
        operands: "create-lu FILE | import-lu FILE | modify-lu GUID | delete-lu GUID ... | list-lu",
        flags: COMSTAR_FLAGS,
        text: &[
            "As stmfadm, with the older forms of the commands (also when the program is called sbdadm).",
        ],
        ..Command::NEW
    },
    Command {
        name: "itadm",
        summary: "iSCSI targets and portal groups in COMSTAR's words",
        operands: "create-target | modify-target IQN | delete-target IQN ... | list-target [IQN ...] | create-tpg NAME ADDRESS ... | delete-tpg NAME | list-tpg",
        flags: ITADM_FLAGS,
        text: &["For scripts that manage COMSTAR (also when the program is called itadm)."],
        ..Command::NEW
    },
    Command {
        name: "log",
        summary: "show or change which events the daemon logs",
        operands: "[LEVELS]",
        flags: &[],
        text: &[
            "LEVELS is a level for everything (off, error, warn, info, debug, trace), levels of modules as MODULE=LEVEL, or several \
             with commas between. Modules are sanbox, console, control, devices, iscsi, mount, nbd, nfs, policy, replication and smb.",
            "sanbox log nfs=debug shows each connection of NFS clients from now on; sanbox log nfs=info ends that; sanbox log alone \
             shows the levels.",
            "A change lasts until the daemon ends; for every start, put level = 'LEVELS' under [log] in sanbox.toml.",
        ],
        ..Command::NEW
    },
    Command {
        name: "user",
        summary: "users of the console and the API, and the keys of scripts",
        operands: "add NAME | list | passwd NAME | role NAME ROLE | delete NAME | reset-totp NAME | key create NAME | key list [NAME] | \
             key revoke ID",
        flags: &[
            short(
                'H',
                "list, key list: without headings, columns between tabs",
            ),
            long(
                "role",
                Some("ROLE"),
                "add, key create: owner, operator or viewer (viewer; of a key its user's)",
            ),
            long(
                "password-file",
                Some("FILE"),
                "add, passwd: a file whose first line is the password",
            ),
            long("no-password", None, "add: a user who has keys only"),
            long(
                "expires",
                Some("TIME"),
                "key create: when it ends, such as 12h, 90d or 2027-06-30 (never)",
            ),
            long("name", Some("TEXT"), "key create: what it is for"),
            long(
                "dataset",
                Some("DATASET"),
                "key create: only for this dataset and those below it; may be given several times",
            ),
        ],
        text: &[
            "An owner may do everything, an operator changes datasets, snapshots and shares, a viewer looks. Passwords are asked for at \
                 the terminal, or are the first line of standard input: sanbox user add ann --role operator < file. A new password ends \
                 all sessions of its user.",
            "key create prints a key alone, which is shown once: curl -H \"Authorization: Bearer $(sanbox user key create backup --role \
                 operator --expires 90d)\" https://localhost:8443/api/v1/pools. A user who is not there is made, without a password. A key \
                 has at most the role of its user, and ends with the user.",
            "reset-totp takes away the second factor of a user who has lost it. role and delete leave at least one owner who can log in.",
        ],
        examples: &[
            ("sanbox user add ann --role operator", "asks for a password"),
            (
                "sanbox user key create backup --role operator --expires 90d",
                "prints a key for scripts",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "job",
        summary: "commands given over the API, and what shells changed",
        operands: "list | show ID | cancel ID",
        flags: &[
            short('H', "list: without headings, columns between tabs"),
            valued('n', "COUNT", "list: so many, the newest first (50)"),
        ],
        text: &[
            "show prints who gave the command, from where, what became of it, and the end of its output. cancel ends one that runs: sanbox \
                 job cancel 17. What it has changed until then stays.",
        ],
        examples: &[("sanbox job show 17", "what became of it, and its output")],
        ..Command::NEW
    },
    Command {
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
            "set: sanbox policy set tank/vm 'hourly=24 daily=7 at=02:00 zone=Europe/Berlin'",
            "preview: what a policy would destroy now and have left in 30 days: sanbox policy preview tank/vm 'hourly=48 daily=14'",
            "show: the policies, the newest snapshot of each, and when the next is due. clear: the dataset inherits its policy again.",
            "Only snapshots that a policy took are ever destroyed by one; held and cloned ones stay. After a pause, one snapshot is taken, \
             not one for each that was missed. A policy that came with 'zfs receive' is not in force until it is set here. The policy is \
             the property org.sanbox:policy.",
        ],
        ..Command::NEW
    },
    Command {
        name: "snapshots",
        summary: "say why snapshots are kept or will be destroyed",
        operands: "why DATASET[@SNAPSHOT]",
        flags: &[short('H', "no headings, tabs between columns")],
        text: &[
            "For one snapshot, or for all of a dataset: which class of the policy keeps it and at which place it stands in the class, or \
             what else keeps it.",
        ],
        ..Command::NEW
    },
    REPLICATION,
    CONFIG,
    CONSOLE,
    Command {
        name: "smb",
        summary: "users of SMB shares, and what clients do",
        operands: "passwd NAME | remove NAME | users | status",
        flags: &[
            short('H', "users, status: no headings, tabs between the cells"),
            short('j', "status: as JSON"),
            long(
                "password-file",
                Some("FILE"),
                "passwd: a file whose first line is the password (standard input)",
            ),
        ],
        text: &[
            "File systems are shared by their property: zfs set sharesmb=on tank/photos. SMB asks for a password of its own for \
             each user, who must be one of this machine.",
            "passwd: give a user a password for SMB, read from standard input: sanbox smb passwd anna < password. A user of the \
             machine that only stores files: useradd --no-create-home --shell /usr/sbin/nologin anna",
            "remove: the user cannot log in by SMB any more; clients that are connected stay until they end.",
            "users: who has a password. status: the shares, the clients that are connected, and the files they have open.",
        ],
        examples: &[
            (
                "sanbox smb passwd anna <password",
                "what SMB asks this user for",
            ),
            (
                "sanbox smb status",
                "who is connected, and which files are open",
            ),
        ],
        ..Command::NEW
    },
    Command {
        name: "alert",
        summary: "what is wrong, what it means for the data, and what to do",
        operands: "list | mute ID | acknowledge ID | reopen ID | test [CHANNEL] | checks",
        flags: &[
            short('a', "list: also those that are over"),
            short('H', "list, checks: without headings, columns between tabs"),
            long(
                "for",
                Some("TIME"),
                "mute: for so long, such as 8h (until it is over)",
            ),
        ],
        text: &[
            "The daemon checks pools, disks, capacity and its forecast, scrubs, jobs, the certificate, the clock, memory and the state \
             directory. There is one alert for a cause, however often it shows. mute ends telling people of one: sanbox alert mute 3 --for 8h.",
            "People are told by mail, web services and syslog, set under [alerts] in sanbox.toml. sanbox alert test tries them out; checks \
             shows when each check ran last, and how the channels do.",
        ],
        examples: &[
            ("sanbox alert list", "what is wrong, and what to do"),
            ("sanbox alert mute 3 --for 8h", "nobody is told of it today"),
        ],
        ..Command::NEW
    },
    Command {
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
    },
    Command {
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
    },
    Command {
        name: "completion",
        summary: "print a completion script",
        operands: "bash|zsh|fish",
        flags: &[],
        text: &[],
        examples: &[(
            "sanbox completion bash >/etc/bash_completion.d/sanbox",
            "for sanbox, zpool and zfs",
        )],
        ..Command::NEW
    },
    Command {
        name: "man",
        summary: "write the manual pages into a directory",
        operands: "DIR",
        flags: &[],
        text: &[],
        examples: &[("sanbox man /usr/local/share/man/man8", "then: man sanbox")],
        ..Command::NEW
    },
];

impl Command {
    /// The usage: OpenZFS's, or one that is made of the options and operands.
    pub(crate) fn usage_text(&self) -> String {
        if self.usage.is_empty() {
            self.own_usage()
        } else {
            self.usage.to_owned()
        }
    }

    /// The usage of a command of our own, in a line.
    fn own_usage(&self) -> String {
        let mut text = format!("\tsanbox {}", self.name);
        let plain: String = self
            .flags
            .iter()
            .filter(|flag| flag.value.is_none())
            .filter_map(|flag| flag.short)
            .collect();
        if !plain.is_empty() {
            text.push_str(&format!(" [-{plain}]"));
        }
        for flag in self.flags {
            match (flag.short, flag.long, flag.value) {
                (_, Some(name), Some(value)) => text.push_str(&format!(" [--{name} {value}]")),
                (_, Some(name), None) => text.push_str(&format!(" [--{name}]")),
                (Some(letter), None, Some(value)) => {
                    text.push_str(&format!(" [-{letter} {value}]"));
                }
                _ => {}
            }
        }
        if !self.operands.is_empty() {
            text.push_str(&format!(" {}", self.operands));
        }
        text.push('\n');
        text
    }
}

/// The whole help text.
pub(crate) fn help() -> String {
    let mut text = "usage: sanbox [--state DIR] COMMAND ...\n\nA storage appliance whose pools are ZFS pools.\n\n".to_owned();
    for command in COMMANDS {
        text.push_str(&format!("  {:<12} {}\n", command.name, command.summary));
    }
    text.push('\n');
    for flag in GLOBAL {
        text.push_str(&format!("  {:<18} {}\n", flag.spelled(), flag.help));
    }
    text.push_str("\nCalled through links named zpool and zfs, the program is these commands.\n");
    text
}
