//! The declarations of the commands on iSCSI targets, in our words and in COMSTAR's, and on SMB.

use super::super::command::Command;
use super::super::flag::{Flag, both, long, short};

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

pub(super) const TARGET: Command = Command {
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
};

pub(super) const STMFADM: Command = Command {
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
};

pub(super) const SBDADM: Command = Command {
    name: "sbdadm",
    summary: "logical units in the words of COMSTAR's block provider",
    operands: "create-lu FILE | import-lu FILE | modify-lu GUID | delete-lu GUID ... | list-lu",
    flags: COMSTAR_FLAGS,
    text: &[
        "As stmfadm, with the older forms of the commands (also when the program is called sbdadm).",
    ],
    ..Command::NEW
};

pub(super) const ITADM: Command = Command {
    name: "itadm",
    summary: "iSCSI targets and portal groups in COMSTAR's words",
    operands: "create-target | modify-target IQN | delete-target IQN ... | list-target [IQN ...] | create-tpg NAME ADDRESS ... | delete-tpg NAME | list-tpg",
    flags: ITADM_FLAGS,
    text: &["For scripts that manage COMSTAR (also when the program is called itadm)."],
    ..Command::NEW
};

pub(super) const SMB: Command = Command {
    name: "smb",
    summary: "users of SMB shares, and what clients do",
    operands: "passwd NAME | remove NAME | users | status | join | leave",
    flags: &[
        short('H', "users, status: no headings, tabs between the cells"),
        short('j', "status: as JSON"),
        long(
            "password-file",
            Some("FILE"),
            "passwd, join, leave: a file whose first line is the password (standard input)",
        ),
        long(
            "user",
            Some("NAME"),
            "join, leave: a user of the domain who may join machines",
        ),
    ],
    text: &[
        "File systems are shared by their property: zfs set sharesmb=on tank/photos. SMB asks for a password of its own for \
         each user, who must be one of this machine.",
        "passwd: give a user a password for SMB, read from standard input: sanbox smb passwd anna < password. A user of the \
         machine that only stores files: useradd --no-create-home --shell /usr/sbin/nologin anna",
        "remove: the user cannot log in by SMB any more; clients that are connected stay until they end.",
        "join: makes this machine a member of the domain of Active Directory that realm and workgroup under [smb] of sanbox.toml name, for which it \
         needs the domain's name servers and time. Its users log in by SMB as DOMAIN\\anna from then on; they have numbers in the range domain_ids, \
         the same on every appliance with the same range. Users of the machine go on as HOST\\anna. leave: ends that; without --user the \
         account of the machine stays in the domain.",
        "Shares that other hosts reach are announced by avahi, where it is installed: finders of macOS and Linux show them, and Time Machine those \
         with the option timemachine. [smb] avahi_services of sanbox.toml says where its files are; empty is no announcement.",
        "users: who has a password. status: the shares, whether they are announced, the clients that are connected, and the files they have open.",
    ],
    examples: &[
        (
            "sanbox smb passwd anna <password",
            "what SMB asks this user for",
        ),
        (
            "sanbox smb join --user Administrator --password-file /root/secret",
            "users of Active Directory log in; winbindd, which knows them, runs beside smbd",
        ),
        (
            "sanbox smb status",
            "who is connected, and which files are open",
        ),
    ],
    ..Command::NEW
};
