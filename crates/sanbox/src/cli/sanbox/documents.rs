//! Completion scripts and manual pages, made from the declarations.

use engine::{pool_property, property};

use super::Arguments;
use crate::cli::command::{Command, Flag, Table, Word, entries};
use crate::cli::declare::{COMMANDS, GLOBAL};
use crate::cli::{Outcome, Session, zfs, zpool};

/// The tools with commands of OpenZFS's grammar.
const TOOLS: [(&str, Table); 2] = [("zpool", zpool::TABLE), ("zfs", zfs::TABLE)];

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

/// Every command with the tool it belongs to, and the words before its arguments.
fn commands() -> impl Iterator<Item = (&'static str, &'static Command)> {
    let of_tools = TOOLS
        .into_iter()
        .flat_map(|(tool, table)| entries(table).map(move |entry| (tool, entry.command)));
    of_tools.chain(COMMANDS.iter().map(|command| ("sanbox", command)))
}

fn names<'a>(commands: impl Iterator<Item = &'a Command>) -> String {
    let words = commands.flat_map(|command| std::iter::once(&command.name).chain(command.aliases));
    let words: Vec<&str> = words
        .copied()
        .filter(|name| !name.starts_with('-'))
        .collect();
    words.join(" ")
}

fn names_of(table: Table) -> String {
    names(entries(table).map(|entry| entry.command))
}

/// The ways an option is written.
fn spellings(flag: &Flag) -> impl Iterator<Item = String> {
    let short = flag.short.map(|short| format!("-{short}"));
    let long = flag.long.map(|long| format!("--{long}"));
    short.into_iter().chain(long)
}

/// Names of properties of a tool's objects that a command with such an operand takes.
fn properties(tool: &str, settable: bool) -> String {
    let names: Vec<&str> = match tool {
        "zpool" => pool_property::PROPERTIES
            .iter()
            .filter(|row| row.settable || !settable)
            .map(|row| row.name)
            .collect(),
        _ => property::PROPERTIES
            .iter()
            .filter(|row| row.visible)
            .filter(|row| row.attribute != property::Attribute::ReadOnly || !settable)
            .map(|row| row.name)
            .collect(),
    };
    names.join(" ")
}

/// What the value of an option names, as its name in the usage tells.
fn value_word(value: &str) -> Option<Word> {
    match value {
        "property=value" | "file-system-property=value" => Some(Word::Setting),
        "property" | "property[,...]" => Some(Word::Property),
        "dir" | "cachefile" | "root" | "altroot" | "mountpoint" | "DIR" | "FILE" => {
            Some(Word::Device)
        }
        _ => None,
    }
}

fn word_name(word: Word) -> &'static str {
    match word {
        Word::Pool => "pool",
        Word::Dataset => "dataset",
        Word::Snapshot => "snapshot",
        Word::Property => "property",
        Word::Setting => "setting",
        Word::Device => "file",
        Word::Text => "text",
    }
}

/// How a shell finds what it offers for a word.
const BASH_WORDS: &str = r#"_sanbox_offer() {
    local tool=$1 kind=$2 word=$3 part
    case $kind in
    pool) COMPREPLY=($(compgen -W "$(sanbox zpool list -H -o name 2>/dev/null)" -- "$word")) ;;
    dataset) part=filesystem,volume; case $word in *@*) part=snapshot;; esac
        COMPREPLY=($(compgen -W "$(sanbox zfs list -H -o name -t $part 2>/dev/null)" -- "$word")) ;;
    snapshot) COMPREPLY=($(compgen -W "$(sanbox zfs list -H -o name -t filesystem,volume,snapshot 2>/dev/null)" -- "$word")) ;;
    property) COMPREPLY=($(compgen -W "${_sanbox_properties[$tool]}" -- "$word")) ;;
    setting) COMPREPLY=($(compgen -S = -W "${_sanbox_settings[$tool]}" -- "$word")); compopt -o nospace 2>/dev/null ;;
    file) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}
_sanbox() {
    local tool=${COMP_WORDS[0]##*/} at=1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command entry
    local options=() values=() operands=()
    COMPREPLY=()
    if [ "$tool" = sanbox ]; then
        while [ $at -lt $COMP_CWORD ]; do
            case ${COMP_WORDS[at]} in --state) at=$((at+2));; -*) at=$((at+1));; *) break;; esac
        done
        if [ $at -lt $COMP_CWORD ]; then
            case ${COMP_WORDS[at]} in zpool|zfs) tool=${COMP_WORDS[at]}; at=$((at+1));; esac
        fi
    fi
    if [ $at -ge $COMP_CWORD ]; then
        COMPREPLY=($(compgen -W "${_sanbox_commands[$tool]}" -- "$word")); return
    fi
    command=${COMP_WORDS[at]}
    case "$tool $command" in
"#;

const BASH_END: &str = r#"    esac
    for entry in "${values[@]}"; do
        if [ "${entry%%:*}" = "$before" ]; then
            _sanbox_offer $tool ${entry#*:} "$word"; return
        fi
    done
    case $word in -*) COMPREPLY=($(compgen -W "${options[*]}" -- "$word")); return;; esac
    # The operand's place: options, their values, and what follows an equals sign do not count.
    local count=0 skip=0
    at=$((at+1))
    while [ $at -lt $COMP_CWORD ]; do
        entry=${COMP_WORDS[at]}
        if [ $skip = 1 ]; then skip=0
        elif [ "$entry" = = ]; then skip=1
        else
            case $entry in
            -*) case " ${values[*]} " in *" $entry:"*) skip=1;; esac ;;
            *) count=$((count+1)) ;;
            esac
        fi
        at=$((at+1))
    done
    [ "$before" = = ] && return
    if [ $count -ge ${#operands[@]} ]; then count=$((${#operands[@]}-1)); fi
    if [ $count -ge 0 ]; then _sanbox_offer $tool ${operands[count]} "$word"; fi
}
complete -F _sanbox sanbox zpool zfs
"#;

fn bash() -> String {
    let own = names(COMMANDS.iter());
    let mut text = format!(
        "declare -A _sanbox_commands=(\n    [sanbox]=\"{own} --state\"\n    [zpool]=\"{}\"\n    [zfs]=\"{}\"\n)\n",
        names_of(zpool::TABLE),
        names_of(zfs::TABLE)
    );
    for (name, settable) in [("properties", false), ("settings", true)] {
        text.push_str(&format!(
            "declare -A _sanbox_{name}=(\n    [zpool]=\"{}\"\n    [zfs]=\"{}\"\n)\n",
            properties("zpool", settable),
            properties("zfs", settable)
        ));
    }
    text.push_str(BASH_WORDS);
    for (tool, command) in commands() {
        text.push_str(&bash_case(tool, command));
    }
    text.push_str(BASH_END);
    text
}

/// The options of a command, those of them that take values, and its operands.
fn bash_case(tool: &str, command: &Command) -> String {
    let called: Vec<String> = std::iter::once(&command.name)
        .chain(command.aliases)
        .map(|name| format!("\"{tool} {name}\""))
        .collect();
    let options: Vec<String> = command.flags.iter().flat_map(spellings).collect();
    let valued = command
        .flags
        .iter()
        .filter_map(|flag| Some((flag, flag.value?)));
    let values: Vec<String> = valued
        .flat_map(|(flag, value)| {
            let word = word_name(value_word(value).unwrap_or(Word::Text));
            spellings(flag).map(move |option| format!("{option}:{word}"))
        })
        .collect();
    let operands: Vec<&str> = match command.words {
        // Our own commands take paths of this machine, if anything that a shell knows.
        [] if tool == "sanbox" => vec!["file"],
        words => words.iter().copied().map(word_name).collect(),
    };
    format!(
        "    {}) options=({}) values=({}) operands=({}) ;;\n",
        called.join("|"),
        options.join(" "),
        values.join(" "),
        operands.join(" ")
    )
}

fn fish() -> String {
    let mut text = String::new();
    for (tool, table) in TOOLS {
        text.push_str(&format!(
            "complete -c sanbox -n '__fish_seen_subcommand_from {tool}' -f -a '{}'\n",
            names_of(table)
        ));
    }
    for (tool, command) in commands() {
        let quoted = |words: &str| words.replace('\'', "");
        text.push_str(&format!(
            "complete -c {tool} -f -n __fish_use_subcommand -a '{}' -d '{}'\n",
            names(std::iter::once(command)),
            quoted(command.summary)
        ));
        let here = format!(
            "complete -c {tool} -n '__fish_seen_subcommand_from {}'",
            names(std::iter::once(command))
        );
        for flag in command.flags {
            text.push_str(&here);
            if let Some(short) = flag.short {
                text.push_str(&format!(" -s {short}"));
            }
            if let Some(long) = flag.long {
                text.push_str(&format!(" -l {long}"));
            }
            if let Some(value) = flag.value {
                let word = value_word(value).unwrap_or(Word::Text);
                text.push_str(&format!(" -r{}", fish_offer(tool, word)));
            }
            text.push_str(&format!(" -d '{}'\n", quoted(flag.help)));
        }
        let mut words: Vec<Word> = Vec::new();
        for word in command.words {
            if !words.contains(word) {
                words.push(*word);
                text.push_str(&format!("{here}{}\n", fish_offer(tool, *word)));
            }
        }
    }
    text
}

fn fish_offer(tool: &str, word: Word) -> String {
    match word {
        Word::Pool => " -f -a '(sanbox zpool list -H -o name)'".to_owned(),
        Word::Dataset => " -f -a '(sanbox zfs list -H -o name)'".to_owned(),
        Word::Snapshot => " -f -a '(sanbox zfs list -H -o name -t snapshot)'".to_owned(),
        Word::Property => format!(" -f -a '{}'", properties(tool, false)),
        Word::Setting => format!(" -f -a '{}='", properties(tool, true).replace(' ', "= ")),
        Word::Device => " -F".to_owned(),
        Word::Text => " -f".to_owned(),
    }
}

pub(super) fn man(session: &Session, args: &Arguments) -> Outcome {
    let [directory] = args.operands.as_slice() else {
        return Err(session.misuse("missing directory argument"));
    };
    let directory = session.path(directory);
    let mut pages = vec![("sanbox.8".to_owned(), overview())];
    pages.extend(commands().map(|(tool, command)| {
        let name = page_name(tool, command);
        (format!("{name}.8"), page(&name, command))
    }));
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
            escape(&flag.spelled()),
            escape(flag.help)
        ));
    }
    text.push_str(
        ".SH EXIT STATUS\n0 good, 1 an error, 2 a command line that cannot be understood.\n",
    );
    text
}

/// What a command's page is called: OpenZFS's own pages, where they are installed, stay beside ours.
fn page_name(tool: &str, command: &Command) -> String {
    match tool {
        "sanbox" => format!("sanbox-{}", command.name),
        _ => format!("sanbox-{tool}-{}", command.name),
    }
}

fn page(name: &str, command: &Command) -> String {
    let mut text = format!(
        ".TH {} 8\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n{}.fi\n",
        escape(&name.to_ascii_uppercase()),
        escape(name),
        escape(command.summary),
        escape(command.usage_text().trim_start()) + "\n",
    );
    if !command.text.is_empty() {
        text.push_str(".SH DESCRIPTION\n");
        for paragraph in command.text {
            text.push_str(&format!("{}\n.PP\n", escape(paragraph)));
        }
    }
    let tool = TOOLS.iter().find(|(tool, _)| *tool == command.name);
    if let Some((tool, table)) = tool {
        text.push_str(".SH COMMANDS\n");
        for entry in entries(table) {
            let page = page_name(tool, entry.command);
            text.push_str(&format!(
                ".TP\n.B {}\n{}; see {}(8)\n",
                escape(entry.command.name),
                escape(entry.command.summary),
                escape(&page)
            ));
        }
    }
    if !command.flags.is_empty() {
        text.push_str(".SH OPTIONS\n");
        for flag in command.flags {
            text.push_str(&format!(
                ".TP\n.B {}\n{}\n",
                escape(&flag.spelled()),
                escape(flag.help)
            ));
        }
    }
    if !command.examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
        for (line, meaning) in command.examples {
            text.push_str(&format!(".TP\n.B {}\n{}\n", escape(line), escape(meaning)));
        }
    }
    text.push_str(".SH SEE ALSO\nsanbox(8)\n");
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command as Process, Stdio};

    use super::*;

    /// What bash offers for the last word of a line.
    fn offered(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        // The commands that a completion asks answer like this here.
        let script = format!(
            "{}\nsanbox() {{ case \"$*\" in *snapshot*) echo tank/a@monday;; 'zpool list'*) echo tank;; *) echo tank; echo tank/a;; esac; }}\n\
             COMP_WORDS=({}); COMP_CWORD={}; _sanbox; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            bash(),
            words.join(" "),
            words.len() - 1
        );
        let mut shell = Process::new("bash")
            .args(["--norc", "--noprofile"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is part of every test machine");
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(script.as_bytes()).expect("bash reads");
        drop(input);
        let output = shell.wait_with_output().expect("bash ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn check(line: &str, expect: &[&str]) {
        assert_eq!(offered(line), expect, "{line}");
    }

    #[test]
    fn bash_completes_commands_options_and_names() {
        check("zpool ex", &["export"]);
        check("sanbox zpool ex", &["export"]);
        check("sanbox --state /x comp", &["completion"]);
        check("zfs umo", &["umount"]);
        check(
            "zpool list --json-",
            &["--json-int", "--json-pool-key-guid"],
        );
        check("zpool export ", &["tank"]);
        check("zfs destroy tank/", &["tank/a"]);
        check("zfs destroy tank/a@", &["tank/a@monday"]);
        check("zfs get recordsi", &["recordsize"]);
        check("zfs get recordsize ta", &["tank", "tank/a"]);
        check("zfs list -o recordsi", &["recordsize"]);
        check("zfs create -o recordsi", &["recordsize="]);
        check("zfs create -o recordsize = 4K ta", &["tank", "tank/a"]);
        check("zfs set recordsize = 4K ta", &["tank", "tank/a"]);
        check("zfs set usedb", &[""]);
        check("zpool set autotr", &["autotrim="]);
    }

    #[test]
    fn every_command_has_a_page_and_a_completion() {
        let (bash, fish) = (bash(), fish());
        for (tool, command) in commands() {
            let page = page(&page_name(tool, command), command);
            for flag in command.flags {
                for spelling in spellings(flag) {
                    assert!(page.contains(&escape(&spelling)), "{spelling}");
                    assert!(bash.contains(&spelling), "{spelling}");
                }
                assert!(page.contains(&escape(flag.help)), "{}", flag.help);
                assert!(fish.contains(&flag.help.replace('\'', "")), "{}", flag.help);
            }
        }
    }
}
