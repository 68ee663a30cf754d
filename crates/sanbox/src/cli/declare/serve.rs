//! The declarations of the daemon, of its log and limits, and of the two tools in OpenZFS's grammar.

use super::super::command::Command;
use super::super::flag::{long, short};

pub(super) const SERVE: Command = Command {
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
            "replication-port",
            Some("N"),
            "TCP port at which other appliances replicate, open while there are some that were invited; 0 is none (8444)",
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
};

pub(super) const ZPOOL: Command = Command {
    name: "zpool",
    summary: "manage pools, in OpenZFS's grammar",
    operands: "COMMAND ...",
    flags: &[],
    text: &[
        "Called through a link named zpool, the program is this command. See zpool(8) of OpenZFS 2.3.",
    ],
    ..Command::NEW
};

pub(super) const ZFS: Command = Command {
    name: "zfs",
    summary: "manage datasets, in OpenZFS's grammar",
    operands: "COMMAND ...",
    flags: &[],
    text: &[
        "Called through a link named zfs, the program is this command. See zfs(8) of OpenZFS 2.3.",
    ],
    ..Command::NEW
};

pub(super) const LOG: Command = Command {
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
};

pub(super) const TUNE: Command = Command {
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
};
