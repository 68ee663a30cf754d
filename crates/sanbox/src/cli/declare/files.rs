//! The declarations of the commands on files of a dataset, which need no mount.

use super::super::command::Command;
use super::super::flag::{long, short, valued};

const PATHS: &str = "A place in a dataset is written DATASET:/PATH, and in a snapshot DATASET@SNAP:/PATH. \
                     Nothing needs to be mounted.";

pub(super) const LS: Command = Command {
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
};

pub(super) const ACCESS: Command = Command {
    name: "access",
    summary: "tell why a user may or may not read, write, run or delete a file",
    operands: "USER DATASET[@SNAP]:/PATH | USER PATH",
    flags: &[
        short('H', "without headings and notes, columns between tabs"),
        long("json", None, "as JSON"),
    ],
    text: &[
        PATHS,
        "USER is a user of this machine, with all of its groups, or a number. Each answer names what decides: the bits of the mode, the \
         entry of the POSIX or NFSv4 list, a flag of the file, a directory on the way that may not be passed, the sticky bit, or \
         readonly and exec of the dataset. Of directories, read is to list, write is to change names in it, execute is to pass.",
        "A mount of this machine asks the mode besides an NFSv4 list, as OpenZFS on Linux does: where that refuses, the answer is 'not in a \
         mount'.",
        "What a share refuses besides (ro, users, root_squash) is told below. By NFS the groups are those that the client sends.",
    ],
    examples: &[
        (
            "sanbox access anna tank/home:/ben/notes.txt",
            "what anna may do with the file, and why",
        ),
        (
            "sanbox access 1001 /tank/home/ben --json",
            "for programs, by number and by a path in a mounted dataset",
        ),
    ],
    ..Command::NEW
};

pub(super) const CAT: Command = Command {
    name: "cat",
    summary: "write files of a dataset to standard output",
    operands: "DATASET[@SNAP]:/PATH ...",
    flags: &[],
    text: &[PATHS],
    examples: &[("sanbox cat tank/home:/anna/notes.txt", "to the terminal")],
    ..Command::NEW
};

pub(super) const GET: Command = Command {
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
        "A file that cannot be read whole is named and left out; what is at DEST under its name stays.",
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
};

pub(super) const PUT: Command = Command {
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
};

pub(super) const RESTORE: Command = Command {
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
};

pub(super) const RM: Command = Command {
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
};

pub(super) const MKDIR: Command = Command {
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
};

pub(super) const MOUNT: Command = Command {
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
};

pub(super) const MOUNT_HELPER: Command = Command {
    name: "mount.zfs",
    summary: "what mount(8) calls for file systems of type zfs",
    operands: "DATASET DIR",
    flags: &[
        valued('o', "OPTIONS", "mount options, with commas between"),
        short('s', "leave out options that are not known"),
        short('f', "check everything, and mount nothing"),
        short('n', "no entry in /etc/mtab (there never is one)"),
        short('v', "say what is mounted where, and how"),
    ],
    text: &[
        "As a link /sbin/mount.zfs to this program it lets 'mount -t zfs tank/www /srv/www' and lines of /etc/fstab mount file systems \
         with mountpoint=legacy, and snapshots, by the daemon that runs; 'umount /srv/www' unmounts them. The zfsutils-linux package \
         has a file of that name, for pools of the kernel module: where both are wanted, give the link another name, and mount with that.",
        "A second mount of a dataset shows the first one at another place. The exit codes are those of mount(8): 1 for a wrong call, 2 for \
         a fault of the system, 32 when it cannot be mounted.",
    ],
    examples: &[
        (
            "sanbox mount.zfs -o ro tank/www /srv/www",
            "what 'mount -t zfs -o ro tank/www /srv/www' does with the link",
        ),
        ("sanbox mount.zfs tank/www@monday /mnt", "a snapshot"),
    ],
    ..Command::NEW
};

pub(super) const ACL: Command = Command {
    name: "acl",
    summary: "show and set modes, owners and access control lists of files",
    operands: "show PATH | set PATH LIST | clear PATH | mode PATH MODE | owner PATH [UID][:GID]",
    flags: &[
        short('n', "change nothing: show what is there"),
        long("json", None, "show: as JSON"),
    ],
    text: &[
        PATHS,
        "LIST is a list as the dataset's acltype takes it, entries with commas between. NFSv4 (acltype=nfsv4), as nfs4_acl(5) has it: \
         TYPE:FLAGS:WHO:RIGHTS, where TYPE is A (allow) or D (deny), WHO is OWNER@, GROUP@, EVERYONE@, a user's number or with the flag g a \
         group's, FLAGS f and d are for new files and directories below, n for one level alone, i for those alone; RIGHTS are r read or list, w \
         write or make files, a append or make directories, d delete, D delete what is in it, x execute or pass, t T attributes, n N extended \
         attributes, c C the list, o the owner, y. POSIX (acltype=posix), as acl(5) has it: u::rwx,u:1001:r-x,g::r-x,g:100:r--,m::rwx,o::---, and \
         d: before entries that new files in a directory get; a mask that is needed and not given is made.",
        "set gives a file this list and no other, clear the one of its mode. The mode follows the list and the list the mode, as aclmode says. \
         'sanbox access' tells what a user may do then, and why.",
    ],
    examples: &[
        ("sanbox acl show tank/home:/anna", "mode, owner and list"),
        (
            "sanbox acl set tank/home:/anna A:fd:OWNER@:rwaDdxtTnNcCoy,A:fdg:100:rxtncy",
            "the owner everything, group 100 reads, below too",
        ),
        (
            "sanbox acl set tank/data:/plans u::rwx,u:1001:r-x,g::r-x,o::---",
            "one user more than the mode can name",
        ),
    ],
    ..Command::NEW
};
