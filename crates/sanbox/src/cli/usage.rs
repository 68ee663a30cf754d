//! The usage texts of `zpool` and `zfs`, whole, in OpenZFS 2.3's order and wording.
//!
//! Tools probe these texts for what a system can do (zrepl looks for `receive_resume_token`, for
//! instance), so commands that are not implemented yet are listed too; running one says so.

/// A command of `zpool` or `zfs`: its name and its usage lines; `None` is an empty line between
/// groups.
pub(crate) type Entry = Option<(&'static str, &'static str)>;

/// Commands of `zpool`.
pub(crate) const ZPOOL: &[Entry] = &[
    Some(("version", "\tversion [-j]\n")),
    None,
    Some((
        "create",
        "\tcreate [-fnd] [-o property=value] ... \n\
         \t    [-O file-system-property=value] ... \n\
         \t    [-m mountpoint] [-R root] <pool> <vdev> ...\n",
    )),
    Some(("destroy", "\tdestroy [-f] <pool>\n")),
    None,
    Some((
        "add",
        "\tadd [-afgLnP] [-o property=value] <pool> <vdev> ...\n",
    )),
    Some(("remove", "\tremove [-npsw] <pool> <device> ...\n")),
    None,
    Some(("labelclear", "\tlabelclear [-f] <vdev>\n")),
    None,
    Some(("checkpoint", "\tcheckpoint [-d [-w]] <pool> ...\n")),
    Some((
        "prefetch",
        "\tprefetch -t <type> [<type opts>] <pool>\n\
         \t    -t ddt <pool>\n",
    )),
    None,
    Some((
        "list",
        "\tlist [-gHLpPv] [-o property[,...]] [-j [--json-int, --json-pool-key-guid]] ...\n\
         \t    [-T d|u] [pool] [interval [count]]\n",
    )),
    Some((
        "iostat",
        "\tiostat [[[-c [script1,script2,...][-lq]]|[-rw]] [-T d | u] [-ghHLpPvy]\n\
         \t    [[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]\n",
    )),
    Some((
        "status",
        "\tstatus [--power] [-j [--json-int, --json-flat-vdevs, ...\n\
         \t    --json-pool-key-guid]] [-c [script1,script2,...]] [-dDegiLpPstvx] ...\n\
         \t    [-T d|u] [pool] [interval [count]]\n",
    )),
    None,
    Some(("online", "\tonline [--power][-e] <pool> <device> ...\n")),
    Some((
        "offline",
        "\toffline [--power]|[[-f][-t]] <pool> <device> ...\n",
    )),
    Some(("clear", "\tclear [[--power]|[-nF]] <pool> [device]\n")),
    Some(("reopen", "\treopen [-n] <pool>\n")),
    None,
    Some((
        "attach",
        "\tattach [-fsw] [-o property=value] <pool> <device> <new-device>\n",
    )),
    Some(("detach", "\tdetach <pool> <device>\n")),
    Some((
        "replace",
        "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n",
    )),
    Some((
        "split",
        "\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n\
         \t    [-o property=value] <pool> <newpool> [<device> ...]\n",
    )),
    None,
    Some((
        "initialize",
        "\tinitialize [-c | -s | -u] [-w] <pool> [<device> ...]\n",
    )),
    Some(("resilver", "\tresilver <pool> ...\n")),
    Some(("scrub", "\tscrub [-e | -s | -p | -C] [-w] <pool> ...\n")),
    Some((
        "trim",
        "\ttrim [-dw] [-r <rate>] [-c | -s] <pool> [<device> ...]\n",
    )),
    None,
    Some((
        "import",
        "\timport [-d dir] [-D]\n\
         \timport [-o mntopts] [-o property=value] ... \n\
         \t    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]] -a\n\
         \timport [-o mntopts] [-o property=value] ... \n\
         \t    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]]\n\
         \t    [--rewind-to-checkpoint] <pool | id> [newpool]\n",
    )),
    Some(("export", "\texport [-af] <pool> ...\n")),
    Some((
        "upgrade",
        "\tupgrade\n\
         \tupgrade -v\n\
         \tupgrade [-V version] <-a | pool ...>\n",
    )),
    Some(("reguid", "\treguid [-g guid] <pool>\n")),
    None,
    Some(("history", "\thistory [-il] [<pool>] ...\n")),
    Some(("events", "\tevents [-vHf [pool] | -c]\n")),
    None,
    Some((
        "get",
        "\tget [-Hp] [-j [--json-int, --json-pool-key-guid]] ...\n\
         \t    [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool> ...\n",
    )),
    Some((
        "set",
        "\tset <property=value> <pool>\n\
         \tset <vdev_property=value> <pool> <vdev>\n",
    )),
    Some(("sync", "\tsync [pool] ...\n")),
    None,
    Some((
        "wait",
        "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n",
    )),
    None,
    Some(("ddtprune", "\tddtprune -d|-p <amount> <pool>\n")),
];

/// Commands of `zfs`.
pub(crate) const ZFS: &[Entry] = &[
    Some(("version", "\tversion [-j]\n")),
    None,
    Some((
        "create",
        "\tcreate [-Pnpuv] [-o property=value] ... <filesystem>\n\
         \tcreate [-Pnpsv] [-b blocksize] [-o property=value] ... -V <size> <volume>\n",
    )),
    Some((
        "destroy",
        "\tdestroy [-fnpRrv] <filesystem|volume>\n\
         \tdestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]\n\
         \tdestroy <filesystem|volume>#<bookmark>\n",
    )),
    None,
    Some((
        "snapshot",
        "\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...\n",
    )),
    Some(("rollback", "\trollback [-rRf] <snapshot>\n")),
    Some((
        "clone",
        "\tclone [-p] [-o property=value] ... <snapshot> <filesystem|volume>\n",
    )),
    Some(("promote", "\tpromote <clone-filesystem>\n")),
    Some((
        "rename",
        "\trename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n\
         \trename -p [-f] <filesystem|volume> <filesystem|volume>\n\
         \trename -u [-f] <filesystem> <filesystem>\n\
         \trename -r <snapshot> <snapshot>\n",
    )),
    Some(("bookmark", "\tbookmark <snapshot|bookmark> <newbookmark>\n")),
    Some((
        "program",
        "\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\
         \t    <pool> <program file> [lua args...]\n",
    )),
    None,
    Some((
        "list",
        "\tlist [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n\
         \t    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...\n",
    )),
    None,
    Some((
        "set",
        "\tset [-u] <property=value> ... <filesystem|volume|snapshot> ...\n",
    )),
    Some((
        "get",
        "\tget [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n\
         \t    [-t type[,...]] [-s source[,...]]\n\
         \t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...\n",
    )),
    Some((
        "inherit",
        "\tinherit [-rS] <property> <filesystem|volume|snapshot> ...\n",
    )),
    Some((
        "upgrade",
        "\tupgrade [-v]\n\
         \tupgrade [-r] [-V version] <-a | filesystem ...>\n",
    )),
    None,
    Some((
        "userspace",
        "\tuserspace [-Hinp] [-o field[,...]] [-s field] ...\n\
         \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
    )),
    Some((
        "groupspace",
        "\tgroupspace [-Hinp] [-o field[,...]] [-s field] ...\n\
         \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
    )),
    Some((
        "projectspace",
        "\tprojectspace [-Hp] [-o field[,...]] [-s field] ... \n\
         \t    [-S field] ... <filesystem|snapshot|path>\n",
    )),
    None,
    Some((
        "project",
        "\tproject [-d|-r] <directory|file ...>\n\
         \tproject -c [-0] [-d|-r] [-p id] <directory|file ...>\n\
         \tproject -C [-k] [-r] <directory ...>\n\
         \tproject [-p id] [-r] [-s] <directory ...>\n",
    )),
    None,
    Some((
        "mount",
        "\tmount [-j]\n\
         \tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>\n",
    )),
    Some(("unmount", "\tunmount [-fu] <-a | filesystem|mountpoint>\n")),
    Some(("share", "\tshare [-l] <-a [nfs|smb] | filesystem>\n")),
    Some((
        "unshare",
        "\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n",
    )),
    None,
    Some((
        "send",
        "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n\
         \t     [-R [-X dataset[,dataset]...]]     <snapshot>\n\
         \tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\
         \tsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\n\
         \tsend [-nVvPe] -t <receive_resume_token>\n\
         \tsend [-PnVv] --saved filesystem\n",
    )),
    Some((
        "receive",
        "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n\
         \t    <filesystem|volume|snapshot>\n\
         \treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n\
         \t    [-d | -e] <filesystem>\n\
         \treceive -A <filesystem|volume>\n",
    )),
    None,
    Some((
        "allow",
        "\tallow <filesystem|volume>\n\
         \tallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n\
         \t    <filesystem|volume>\n\
         \tallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\n\
         \tallow -c <perm|@setname>[,...] <filesystem|volume>\n\
         \tallow -s @setname <perm|@setname>[,...] <filesystem|volume>\n",
    )),
    None,
    Some((
        "unallow",
        "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n\
         \t    [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>\n",
    )),
    None,
    Some(("hold", "\thold [-r] <tag> <snapshot> ...\n")),
    Some(("holds", "\tholds [-rHp] <snapshot> ...\n")),
    Some(("release", "\trelease [-r] <tag> <snapshot> ...\n")),
    Some(("diff", "\tdiff [-FHth] <snapshot> [snapshot|filesystem]\n")),
    Some((
        "load-key",
        "\tload-key [-rn] [-L <keylocation>] <-a | filesystem|volume>\n",
    )),
    Some(("unload-key", "\tunload-key [-r] <-a | filesystem|volume>\n")),
    Some((
        "change-key",
        "\tchange-key [-l] [-o keyformat=<value>]\n\
         \t    [-o keylocation=<value>] [-o pbkdf2iters=<value>]\n\
         \t    <filesystem|volume>\n\
         \tchange-key -i [-l] <filesystem|volume>\n",
    )),
    Some((
        "redact",
        "\tredact <snapshot> <bookmark> <redaction_snapshot> ...\n",
    )),
    Some(("wait", "\twait [-t <activity>] <filesystem>\n")),
    Some(("zone", "\tzone <nsfile> <filesystem>\n")),
    Some(("unzone", "\tunzone <nsfile> <filesystem>\n")),
];
