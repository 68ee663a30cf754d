//! What `COMMAND --help` says: the usage, the options of our own commands, and examples to copy.
//!
//! Asking for help needs neither the state directory nor a daemon, goes to standard output and is no mistake (exit
//! code 0), while a command line that cannot be understood gets its usage on standard error as from OpenZFS.

use super::declare::{COMMANDS, spelled};
use super::usage::{Entry, ZFS, ZPOOL};

/// A command line to copy, and what it does.
type Example = (&'static str, &'static str);

/// Examples by tool and command.
const EXAMPLES: &[(&str, &str, &[Example])] = &[
    (
        "zpool",
        "create",
        &[
            (
                "zpool create tank mirror /dev/sdb /dev/sdc",
                "a pool that survives the loss of one disk",
            ),
            (
                "zpool create tank raidz2 /dev/sd[b-g]",
                "six disks, any two of which may fail",
            ),
            (
                "zpool create -n tank mirror a b mirror c d",
                "show what would be made, and make nothing",
            ),
            (
                "zpool create tank mirror a b special mirror c d log mirror e f",
                "metadata on two fast disks, synchronous writes logged on two others",
            ),
            (
                "zpool create -o ashift=12 -O compression=zstd tank /srv/disk0",
                "a pool on a plain file, for 4 KiB sectors, with zstd for every dataset",
            ),
        ],
    ),
    (
        "zpool",
        "add",
        &[
            (
                "zpool add -n tank mirror sde sdf",
                "show the pool as it would be with two more disks, and change nothing",
            ),
            (
                "zpool add tank log mirror nvme0n1 nvme1n1",
                "synchronous writes are logged on two fast disks from now on",
            ),
            (
                "zpool add tank spare sdx",
                "a hot spare, which takes over by itself when a disk fails",
            ),
            (
                "zpool add tank special mirror nvme0n1 nvme1n1",
                "new metadata goes to two fast disks",
            ),
        ],
    ),
    (
        "zpool",
        "remove",
        &[
            (
                "zpool remove tank nvme0n1",
                "take a log vdev, a cache device or a spare that is not in use out of the pool",
            ),
            (
                "zpool remove -n tank mirror-1",
                "say how much memory it would take for good to remember where the blocks of a vdev went",
            ),
            (
                "zpool remove -w tank mirror-1",
                "copy all that a vdev holds to the others, and wait until its disks are free",
            ),
            (
                "zpool remove -s tank",
                "leave the vdev in the pool that is being evacuated",
            ),
            (
                "zpool remove tank mirror-3",
                "a log of two disks, by its name in zpool status",
            ),
        ],
    ),
    (
        "zpool",
        "split",
        &[
            (
                "zpool split -n tank copy",
                "show which halves of the mirrors would become the pool copy",
            ),
            (
                "zpool split tank copy",
                "make them a pool of its own, ready to be imported anywhere",
            ),
        ],
    ),
    (
        "zpool",
        "checkpoint",
        &[
            (
                "zpool checkpoint tank",
                "keep the state of the whole pool, for an import to go back to",
            ),
            (
                "zpool import --rewind-to-checkpoint tank",
                "go back to it; everything since is gone",
            ),
            (
                "zpool checkpoint -d -w tank",
                "give it up, and wait until its space is free",
            ),
        ],
    ),
    (
        "zpool",
        "trim",
        &[
            (
                "zpool trim tank",
                "tell the devices what is free; files below the pool become smaller",
            ),
            (
                "zpool trim -r 200M -w tank sda",
                "one device, at most 200 MiB a second, and wait until it is done",
            ),
            ("zpool wait -t trim tank", "wait until all devices are done"),
        ],
    ),
    (
        "zpool",
        "initialize",
        &[(
            "zpool initialize tank",
            "write all free space once, for devices that are slow at the first write to a place",
        )],
    ),
    (
        "zpool",
        "events",
        &[
            (
                "zpool events -f",
                "show what happens to pools and devices, and go on",
            ),
            (
                "zpool events -v tank",
                "what happened to the pool tank lately, with all that is known of it",
            ),
        ],
    ),
    (
        "zpool",
        "labelclear",
        &[(
            "zpool labelclear -f /dev/sdz",
            "remove the label of an exported pool from a disk that is to be used for something else",
        )],
    ),
    (
        "zpool",
        "reguid",
        &[(
            "zpool reguid tank",
            "a new guid, so that the pool and a copy of its disks can be told apart",
        )],
    ),
    (
        "zpool",
        "import",
        &[
            (
                "zpool import -d /srv/disks",
                "say which pools the directory's disks hold",
            ),
            ("zpool import -d /srv/disks tank", "import one of them"),
            (
                "zpool import -o readonly=on -d /srv/disks tank rescue",
                "look into a pool without writing to it, under another name",
            ),
            (
                "zpool import -m -d /srv/disks tank",
                "import a pool whose log devices are gone: what only they held is lost",
            ),
            (
                "zpool import -Fn -d /srv/disks tank",
                "say how far back a pool would have to go whose newest state is damaged; without -n it goes back",
            ),
            (
                "zpool import -T 1234 -o readonly=on -d /srv/disks tank",
                "look at the pool as it was at a transaction group that its labels still know",
            ),
        ],
    ),
    (
        "zpool",
        "export",
        &[(
            "zpool export tank",
            "write everything out and let go of the disks, ready for another machine",
        )],
    ),
    (
        "zpool",
        "scrub",
        &[
            (
                "zpool scrub tank",
                "read every copy of everything, repair what is bad",
            ),
            (
                "zpool scrub -p tank",
                "pause it; 'zpool scrub tank' goes on",
            ),
        ],
    ),
    (
        "zpool",
        "replace",
        &[
            (
                "zpool replace tank sdb sdh",
                "a new disk in place of an old or missing one",
            ),
            (
                "zpool replace -w tank sdb sdh",
                "and wait until it has everything",
            ),
            (
                "zpool replace tank sdb spare1",
                "a hot spare of the pool stands in for sdb; zpool detach ends it",
            ),
        ],
    ),
    (
        "zpool",
        "attach",
        &[(
            "zpool attach tank sda sdi",
            "one more copy of what sda holds: a single disk becomes a mirror",
        )],
    ),
    (
        "zpool",
        "offline",
        &[(
            "zpool offline tank sdb",
            "take a disk out of service; with -t until the next import",
        )],
    ),
    (
        "zpool",
        "online",
        &[(
            "zpool online tank sdb",
            "put it back and give it what it missed; with -e use all of it, if it has become larger",
        )],
    ),
    (
        "zpool",
        "destroy",
        &[(
            "zpool destroy tank",
            "give up the pool; until its disks are reused, zpool import -D brings it back",
        )],
    ),
    (
        "zpool",
        "list",
        &[
            ("zpool list", "size, use and health of all pools"),
            (
                "zpool list -Hp -o name,size,free,health",
                "for a script: tabs, exact bytes",
            ),
            ("zpool list -v tank", "each device too"),
        ],
    ),
    (
        "zpool",
        "status",
        &[
            ("zpool status -x", "only pools that need attention"),
            (
                "zpool status -v tank",
                "every device with its errors, and damaged files by name",
            ),
            ("zpool status -j", "the same as JSON"),
        ],
    ),
    (
        "zpool",
        "iostat",
        &[
            ("zpool iostat 5", "operations and bytes every five seconds"),
            ("zpool iostat -v tank 1 10", "by device, ten times"),
        ],
    ),
    (
        "zpool",
        "get",
        &[
            ("zpool get all tank", "every property of a pool"),
            (
                "zpool get -Hp -o value free tank",
                "one number, for a script",
            ),
        ],
    ),
    (
        "zpool",
        "set",
        &[(
            "zpool set comment='shelf 2' tank",
            "a note that travels with the pool",
        )],
    ),
    (
        "zpool",
        "history",
        &[("zpool history -il tank", "every change, with who made it")],
    ),
    (
        "zfs",
        "create",
        &[
            ("zfs create tank/home", "a file system"),
            (
                "zfs create -p -o compression=zstd -o recordsize=1M tank/media/films",
                "with its parents and properties",
            ),
        ],
    ),
    (
        "zfs",
        "destroy",
        &[
            ("zfs destroy tank/old", "a file system and its contents"),
            (
                "zfs destroy -nvr tank/old",
                "show what that would destroy, with everything below it",
            ),
            (
                "zfs destroy -nv tank/home@monday%friday",
                "show what destroying a run of snapshots would free",
            ),
        ],
    ),
    (
        "zfs",
        "snapshot",
        &[
            ("zfs snapshot tank/home@monday", "freeze what is there now"),
            (
                "zfs snapshot -r tank@before-upgrade",
                "everything below too, at one moment",
            ),
        ],
    ),
    (
        "zfs",
        "rollback",
        &[(
            "zfs rollback tank/home@monday",
            "give up everything written since; newer snapshots must go first (-r)",
        )],
    ),
    (
        "zfs",
        "clone",
        &[(
            "zfs clone tank/home@monday tank/trial",
            "a writable copy that takes no space yet",
        )],
    ),
    (
        "zfs",
        "promote",
        &[(
            "zfs promote tank/trial",
            "let the copy own the snapshots, so that the original can be destroyed",
        )],
    ),
    (
        "zfs",
        "hold",
        &[(
            "zfs hold keep tank/home@monday",
            "nobody destroys it until zfs release keep tank/home@monday",
        )],
    ),
    (
        "zfs",
        "list",
        &[
            ("zfs list", "all datasets with their space"),
            (
                "zfs list -o name,used,compressratio,sharenfs -S used",
                "the largest first",
            ),
            ("zfs list -Hp -r -d 1 tank", "for a script: one level"),
        ],
    ),
    (
        "zfs",
        "get",
        &[
            ("zfs get all tank/home", "every property"),
            (
                "zfs get -r -s local compression tank",
                "where it was set by hand",
            ),
        ],
    ),
    (
        "zfs",
        "set",
        &[
            (
                "zfs set quota=100G tank/home",
                "a limit with everything below",
            ),
            (
                "zfs set sharenfs='rw=@192.0.2.0/24,no_root_squash' tank/vms",
                "share it over NFS with one network",
            ),
        ],
    ),
    (
        "zfs",
        "inherit",
        &[(
            "zfs inherit -r compression tank/home",
            "back to what the parent says, everywhere below",
        )],
    ),
    (
        "zfs",
        "rename",
        &[(
            "zfs rename tank/home tank/people",
            "snapshots and children move along",
        )],
    ),
    (
        "zfs",
        "share",
        &[(
            "zfs share -a",
            "share everything whose sharenfs property says so",
        )],
    ),
    (
        "zfs",
        "mount",
        &[
            ("zfs mount", "what is mounted"),
            (
                "zfs mount tank/home",
                "at its mount point on this machine, by FUSE",
            ),
        ],
    ),
    (
        "sanbox",
        "serve",
        &[
            (
                "sanbox serve",
                "the appliance with the pools it knows, ^C ends it",
            ),
            (
                "sanbox --state /srv/sanbox serve --listen 192.0.2.7 --memory 8G",
                "another place for its state, one address, 8 GiB of memory for everything",
            ),
        ],
    ),
    (
        "sanbox",
        "arcstat",
        &[
            ("sanbox arcstat 1", "hits and misses, every second"),
            (
                "sanbox arcstat -f time,hit%,x0.5%,x2%,x4%,size 5",
                "whether more memory would help",
            ),
        ],
    ),
    (
        "sanbox",
        "zilstat",
        &[
            ("sanbox zilstat -a -i 1", "every second, by dataset"),
            (
                "sanbox zilstat -f cc,cwc,imsc,tes%",
                "how many commits share a write, and how full log blocks are",
            ),
            ("sanbox zilstat -w", "why the log device is idle, in words"),
        ],
    ),
    (
        "sanbox",
        "sums",
        &[(
            "sanbox sums -r tank/fs@monday",
            "what the snapshot holds, to compare with its copy elsewhere",
        )],
    ),
    (
        "sanbox",
        "top",
        &[
            ("sanbox top", "until ^C"),
            ("sanbox top -b -I 5", "five seconds, as text"),
        ],
    ),
    (
        "sanbox",
        "lab",
        &[
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
    ),
    (
        "sanbox",
        "tune",
        &[
            ("sanbox tune", "all limits, their values and effects"),
            (
                "sanbox tune zfs_arc_max=4G l2arc_write_max=64M",
                "smaller caches, faster cache devices, from now on",
            ),
        ],
    ),
    (
        "sanbox",
        "ls",
        &[("sanbox ls -l tank/home:/anna", "no mount needed")],
    ),
    (
        "sanbox",
        "cat",
        &[("sanbox cat tank/home:/anna/notes.txt", "to the terminal")],
    ),
    (
        "sanbox",
        "get",
        &[
            (
                "sanbox get tank/home:/anna/notes.txt .",
                "one file into this directory",
            ),
            (
                "sanbox get -r tank/home:/anna /srv/copy",
                "a directory with everything in it",
            ),
        ],
    ),
    (
        "sanbox",
        "put",
        &[(
            "sanbox put -r ./photos tank/photos:/2026",
            "durable when the command ends",
        )],
    ),
    (
        "sanbox",
        "rm",
        &[(
            "sanbox rm -r tank/home:/anna/tmp",
            "a directory and everything in it",
        )],
    ),
    (
        "sanbox",
        "mkdir",
        &[(
            "sanbox mkdir -p -m 0750 tank/home:/anna/letters/2026",
            "with its parents",
        )],
    ),
    (
        "sanbox",
        "mount",
        &[("sanbox mount tank/home /mnt", "until it is unmounted")],
    ),
    (
        "sanbox",
        "user",
        &[
            ("sanbox user add ann --role operator", "asks for a password"),
            (
                "sanbox user key create backup --role operator --expires 90d",
                "prints a key for scripts",
            ),
        ],
    ),
    (
        "sanbox",
        "job",
        &[("sanbox job show 17", "what became of it, and its output")],
    ),
    (
        "sanbox",
        "doctor",
        &[("sanbox doctor", "what is wrong, and what to do about it")],
    ),
    (
        "sanbox",
        "completion",
        &[(
            "sanbox completion bash >/etc/bash_completion.d/sanbox",
            "for sanbox, zpool and zfs",
        )],
    ),
    (
        "sanbox",
        "man",
        &[("sanbox man /usr/local/share/man/man8", "then: man sanbox")],
    ),
];

/// The examples of a command; none for most of those that speak for themselves.
pub(crate) fn examples(tool: &str, command: &str) -> &'static [Example] {
    EXAMPLES
        .iter()
        .find(|(of, name, _)| *of == tool && *name == command)
        .map_or(&[], |(_, _, examples)| examples)
}

/// What help these words ask for, if they ask for any: `COMMAND ... --help` before any `--`, or `help COMMAND`.
pub(crate) fn asked_for(tool: &str, arguments: &[String]) -> Option<String> {
    let (first, rest) = arguments.split_first()?;
    let name = match rest {
        [name] if first == "help" => name,
        _ if rest
            .iter()
            .take_while(|word| *word != "--")
            .any(|word| word == "--help") =>
        {
            first
        }
        _ => return None,
    };
    match tool {
        "zpool" => of_table(tool, ZPOOL, name),
        "zfs" => of_table(tool, ZFS, name),
        _ => of_own(name),
    }
}

fn of_table(tool: &str, table: &[Entry], name: &str) -> Option<String> {
    let (_, usage) = table.iter().flatten().find(|(known, _)| *known == name)?;
    let mut text = format!("usage:\n{usage}");
    append_examples(&mut text, tool, name);
    text.push_str(&format!(
        "\nGrammar, output and exit codes are those of OpenZFS 2.3: {tool}-{name}(8).\n"
    ));
    Some(text)
}

fn of_own(name: &str) -> Option<String> {
    let command = COMMANDS.iter().find(|command| command.name == name)?;
    let mut text = format!("usage:\n{}\n{}\n", command.usage(), command.summary);
    for paragraph in command.text {
        text.push_str(&format!("\n{}\n", wrapped(paragraph, 78)));
    }
    if !command.flags.is_empty() {
        text.push_str("\noptions:\n");
        for flag in command.flags {
            text.push_str(&format!("  {:<18} {}\n", spelled(flag), flag.help));
        }
    }
    append_examples(&mut text, "sanbox", name);
    Some(text)
}

fn append_examples(text: &mut String, tool: &str, name: &str) {
    let examples = examples(tool, name);
    if examples.is_empty() {
        return;
    }
    text.push_str("\nexamples:\n");
    for (line, meaning) in examples {
        text.push_str(&format!("  {line}\n      {meaning}\n"));
    }
}

/// Breaks a paragraph into lines of at most `width` characters where its words allow.
fn wrapped(paragraph: &str, width: usize) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn every_example_belongs_to_a_command() {
        for (tool, name, examples) in EXAMPLES {
            let known = match *tool {
                "zpool" => ZPOOL.iter().flatten().any(|(known, _)| known == name),
                "zfs" => ZFS.iter().flatten().any(|(known, _)| known == name),
                _ => COMMANDS.iter().any(|command| command.name == *name),
            };
            assert!(known, "{tool} {name}");
            for (line, _) in *examples {
                assert!(line.starts_with(tool), "{line}");
                assert!(line.contains(name), "{line}");
            }
        }
    }

    #[test]
    fn our_own_commands_all_have_help() {
        for command in COMMANDS {
            let asked = asked_for("sanbox", &words(&format!("{} --help", command.name)));
            assert!(asked.is_some_and(|text| text.contains(command.summary)));
        }
    }

    #[test]
    fn help_is_asked_for_by_a_word_not_by_an_operand() {
        assert!(asked_for("zfs", &words("create -V 1G --help")).is_some());
        assert!(asked_for("zfs", &words("help create")).is_some());
        assert!(asked_for("zfs", &words("create -- --help")).is_none());
        assert!(asked_for("zfs", &words("create tank/help")).is_none());
        assert!(asked_for("zfs", &words("nonsense --help")).is_none());
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        assert_eq!(wrapped("one two  three", 7), "one two\nthree");
        assert_eq!(wrapped("immeasurable", 4), "immeasurable");
    }
}
