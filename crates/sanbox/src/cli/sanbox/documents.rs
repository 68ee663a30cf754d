//! Completion scripts and manual pages, made from the declarations.

use super::Arguments;
use crate::cli::declare::{COMMANDS, Command, GLOBAL, spelled};
use crate::cli::help::examples;
use crate::cli::usage::{Entry, ZFS, ZPOOL};
use crate::cli::{Outcome, Session};

pub(super) fn completion(session: &Session, args: &Arguments) -> Outcome {
    let text = match args.operands.as_slice() {
        [shell] if shell == "bash" => bash(),
        [shell] if shell == "zsh" => {
            format!(
                "#compdef sanbox zpool zfs\nautoload -U +X bashcompinit && bashcompinit\n{}",
                bash()
            )
        }
        [shell] if shell == "fish" => fish(),
        _ => return Err(session.misuse("expected one of bash, zsh, fish")),
    };
    session.out.text(text);
    Ok(())
}

fn names(table: &[Entry]) -> String {
    let mut names: Vec<&str> = table.iter().flatten().map(|(name, _)| *name).collect();
    names.dedup();
    names.join(" ")
}

fn bash() -> String {
    let own: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    let mut text = String::from(
        "_sanbox() {\n    local tool=${COMP_WORDS[0]##*/} at=1 word=${COMP_WORDS[COMP_CWORD]}\n\
         \x20   if [ \"$tool\" = sanbox ]; then\n\
         \x20       while [ $at -lt $COMP_CWORD ]; do\n\
         \x20           case ${COMP_WORDS[at]} in --state) at=$((at+2));; -*) at=$((at+1));; *) break;; esac\n\
         \x20       done\n\
         \x20       if [ $at -ge $COMP_CWORD ]; then\n",
    );
    text.push_str(&format!(
        "            COMPREPLY=($(compgen -W \"{} --state\" -- \"$word\")); return\n        fi\n",
        own.join(" ")
    ));
    text.push_str("        tool=${COMP_WORDS[at]}; at=$((at+1))\n    fi\n    case $tool in\n");
    for (tool, table) in [("zpool", ZPOOL), ("zfs", ZFS)] {
        text.push_str(&format!(
            "    {tool})\n        if [ $COMP_CWORD -le $at ]; then\n            COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return\n        fi ;;\n",
            names(table)
        ));
    }
    for command in COMMANDS {
        let flags: Vec<String> = command
            .flags
            .iter()
            .flat_map(|flag| {
                [
                    flag.short.map(|short| format!("-{short}")),
                    flag.long.map(|long| format!("--{long}")),
                ]
            })
            .flatten()
            .collect();
        if !flags.is_empty() {
            text.push_str(&format!(
                "    {})\n        case $word in -*) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return;; esac ;;\n",
                command.name,
                flags.join(" ")
            ));
        }
    }
    text.push_str(
        "    esac\n    case $tool in\n\
         \x20   zpool) COMPREPLY=($(compgen -W \"$(zpool list -H -o name 2>/dev/null)\" -- \"$word\")) ;;\n\
         \x20   zfs) COMPREPLY=($(compgen -W \"$(zfs list -H -o name 2>/dev/null)\" -- \"$word\")) ;;\n\
         \x20   *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n\
         \x20   esac\n}\ncomplete -o default -F _sanbox sanbox zpool zfs\n",
    );
    text
}

fn fish() -> String {
    let mut text = String::new();
    for command in COMMANDS {
        text.push_str(&format!(
            "complete -c sanbox -n __fish_use_subcommand -a {} -d '{}'\n",
            command.name,
            command.summary.replace('\'', "")
        ));
        for flag in command.flags {
            text.push_str(&format!(
                "complete -c sanbox -n '__fish_seen_subcommand_from {}'",
                command.name
            ));
            if let Some(short) = flag.short {
                text.push_str(&format!(" -s {short}"));
            }
            if let Some(long) = flag.long {
                text.push_str(&format!(" -l {long}"));
            }
            text.push_str(&format!(" -d '{}'\n", flag.help.replace('\'', "")));
        }
    }
    for (tool, table) in [("zpool", ZPOOL), ("zfs", ZFS)] {
        text.push_str(&format!(
            "complete -c {tool} -n __fish_use_subcommand -a '{0}'\ncomplete -c sanbox -n '__fish_seen_subcommand_from {tool}' -a '{0}'\n",
            names(table)
        ));
    }
    text
}

pub(super) fn man(session: &Session, args: &Arguments) -> Outcome {
    let [directory] = args.operands.as_slice() else {
        return Err(session.misuse("missing directory argument"));
    };
    let directory = session.path(directory);
    let mut pages = vec![("sanbox.8".to_owned(), overview())];
    pages.extend(
        COMMANDS
            .iter()
            .map(|command| (format!("sanbox-{}.8", command.name), page(command))),
    );
    let written = std::fs::create_dir_all(&directory).and_then(|()| {
        pages
            .iter()
            .try_for_each(|(name, text)| std::fs::write(directory.join(name), text))
    });
    written.map_err(|error| session.fail(format!("{}: {error}", directory.display())))
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with a dot or quote would be a request.
    text.lines()
        .map(|line| {
            if line.starts_with(['.', '\'']) {
                format!("\\&{line}")
            } else {
                line.to_owned()
            }
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn overview() -> String {
    let mut text = String::from(
        ".TH SANBOX 8\n.SH NAME\nsanbox \\- a storage appliance whose pools are ZFS pools\n.SH SYNOPSIS\n.B sanbox\n[\\-\\-state DIR] COMMAND ...\n.SH COMMANDS\n",
    );
    for command in COMMANDS {
        text.push_str(&format!(
            ".TP\n.B {}\n{}; see sanbox\\-{}(8)\n",
            command.name,
            escape(command.summary),
            command.name
        ));
    }
    text.push_str(".SH OPTIONS\n");
    for flag in GLOBAL {
        text.push_str(&format!(
            ".TP\n.B {}\n{}\n",
            escape(&spelled(flag)),
            escape(flag.help)
        ));
    }
    text.push_str(
        ".SH EXIT STATUS\n0 good, 1 an error, 2 a command line that cannot be understood.\n",
    );
    text
}

fn page(command: &Command) -> String {
    let mut text = format!(
        ".TH SANBOX\\-{} 8\n.SH NAME\nsanbox\\-{} \\- {}\n.SH SYNOPSIS\n.nf\n{}.fi\n",
        command.name.to_ascii_uppercase(),
        command.name,
        escape(command.summary),
        escape(command.usage().trim_start()) + "\n",
    );
    if !command.text.is_empty() {
        text.push_str(".SH DESCRIPTION\n");
        for paragraph in command.text {
            text.push_str(&format!("{}\n.PP\n", escape(paragraph)));
        }
    }
    let table = match command.name {
        "zpool" => Some(ZPOOL),
        "zfs" => Some(ZFS),
        _ => None,
    };
    if let Some(table) = table {
        text.push_str(".SH COMMANDS\n.nf\n");
        for entry in table {
            text.push_str(
                &entry.map_or_else(|| "\n".to_owned(), |(_, usage)| escape(usage) + "\n"),
            );
        }
        text.push_str(".fi\n");
    }
    if !command.flags.is_empty() {
        text.push_str(".SH OPTIONS\n");
        for flag in command.flags {
            text.push_str(&format!(
                ".TP\n.B {}\n{}\n",
                escape(&spelled(flag)),
                escape(flag.help)
            ));
        }
    }
    let examples = examples("sanbox", command.name);
    if !examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
        for (line, meaning) in examples {
            text.push_str(&format!(".TP\n.B {}\n{}\n", escape(line), escape(meaning)));
        }
    }
    text.push_str(".SH SEE ALSO\nsanbox(8)\n");
    text
}
