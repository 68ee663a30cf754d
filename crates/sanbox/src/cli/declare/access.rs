//! The declarations of the commands on users, their keys, and jobs.

use super::super::command::Command;
use super::super::flag::{long, short, valued};

pub(super) const USER: Command = Command {
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
};

pub(super) const GROUP: Command = Command {
    name: "group",
    summary: "groups of users, for roles, for what is delegated, and for files",
    operands: "add NAME | list | role NAME ROLE | delete NAME | join NAME USER... | leave NAME USER",
    flags: &[
        short('H', "list: without headings, columns between tabs"),
        long(
            "role",
            Some("ROLE"),
            "add: the role that members have at least: owner, operator, viewer or none (none)",
        ),
        long(
            "number",
            Some("NUMBER"),
            "add: its number, 1000 or more (that of the machine's group of this name, or the next free one from 70000)",
        ),
    ],
    text: &[
        "Members have the role of the group, where their own is lower. What 'zfs allow -g NAME' delegates to a group its members may do, at \
             the console and with the machine's user of the same name: a viewer who is in it changes those datasets, and no others.",
        "Files know a group by its number. Commands show and take its name: 'zfs groupspace', groupquota@NAME. By SMB the machine's users \
             who are named in a group are in it, and valid-users=@NAME of a share lets them in; NFS clients send numbers, and need the group on \
             their side. A group with the name of one of the machine has its number.",
        "delete takes nothing back that was allowed to the group: 'zfs unallow -g NUMBER' does.",
    ],
    examples: &[
        (
            "sanbox group add studio",
            "sanbox group join studio ann ben; zfs allow -g studio snapshot,rollback tank/films",
        ),
        ("sanbox group add admins --role owner", "members are owners"),
    ],
    ..Command::NEW
};

pub(super) const SSH_KEYS: Command = Command {
    name: "ssh-keys",
    summary: "the SSH keys of users: by them other hosts replicate in their name",
    operands: "list [USER] | add USER FILE.pub | add USER KIND KEY [COMMENT] | remove ID | setup",
    flags: &[short('H', "list: without headings, columns between tabs")],
    text: &[
        "The way in is the machine's sshd. setup prints the lines for its configuration: for each log-in sshd asks 'sanbox \
         authorized-keys' which keys \
         there are, so that one that is removed lets nobody in from then on. Whoever logs in by one has no shell and no forwarding, and is given the \
         commands of zfs that replication needs: send, receive, list, get, snapshot, hold, release, bookmark, rollback, destroy of snapshots and \
         bookmarks, set of user properties. Pipes, other programs and everything else of a shell are refused.",
        "What may be done is the user's. An operator sends everything, an owner receives anywhere; others do what 'zfs allow' gives \
         them: send; receive, \
         create and mount, rollback for 'receive -F', and each property that comes with a stream. Log in as the user of the machine that the \
         daemon runs as (the key says which user of the appliance it is), or, with 'users' under [control], as the user of the same name.",
        "A job of replication here has its own key by --ssh: sanbox replication create ... --ssh 'ssh -i /root/vault-key'.",
    ],
    examples: &[
        (
            "sanbox ssh-keys add backup /tmp/vault.pub",
            "who has that key replicates as the user backup",
        ),
        (
            "sanbox ssh-keys setup > /etc/ssh/sshd_config.d/sanbox.conf",
            "then check it by 'sshd -t', and reload sshd",
        ),
        (
            "sanbox ssh-keys list",
            "fingerprints as 'ssh-keygen -l' shows them",
        ),
    ],
    ..Command::NEW
};

pub(super) const AUTHORIZED_KEYS: Command = Command {
    name: "authorized-keys",
    summary: "what sshd asks for: the keys by which users log in",
    operands: "USER",
    text: &[
        "Prints lines of authorized_keys, for AuthorizedKeysCommand of sshd_config ('sanbox ssh-keys setup'). USER is the user of \
         the machine who logs in: \
         for the one that the daemon runs as, the keys of all users of the appliance; for another, those of the user of this name.",
    ],
    ..Command::NEW
};

pub(super) const SSH_SESSION: Command = Command {
    name: "ssh-session",
    summary: "what sshd runs for such a key: lets the commands of replication through",
    operands: "[USER]",
    text: &[
        "Takes apart what SSH_ORIGINAL_COMMAND asks for, and has the daemon do it with the rights of USER; without USER, with those \
         of the user of the \
         machine who logged in.",
    ],
    ..Command::NEW
};

pub(super) const JOB: Command = Command {
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
};

pub(super) const UNDO: Command = Command {
    name: "undo",
    summary: "take back what a job changed",
    operands: "ID",
    flags: &[short('n', "only say what would be run")],
    text: &[
        "Jobs are what the console, the API and shells changed: sanbox job list. Properties get the values that they had, and are inherited again \
             where they were; what was made or renamed is destroyed or renamed back; what was destroyed comes out of the trash, where it is there; \
             limits and levels of the log are set as before. What was undone can be done again, by undoing the job that undid it.",
        "It is refused where anything was changed since: another value, a file in the new file system, another dataset of the name. A snapshot \
             is destroyed with what only it holds, which -n tells. \
             A clone that was mounted and written to at once is left alone. What was written, \
             rolled back, or destroyed without a trash does not come back.",
    ],
    examples: &[
        ("sanbox undo -n 17", "the commands that would be run"),
        ("sanbox undo 17", "run them"),
    ],
    ..Command::NEW
};
