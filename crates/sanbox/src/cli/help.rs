//! What `COMMAND --help` says: the usage, the options of our own commands, and examples to copy.
//!
//! Asking for help needs neither the state directory nor a daemon, goes to standard output and is no mistake (exit
//! code 0), while a command line that cannot be understood gets its usage on standard error as from OpenZFS.

use super::command::{Command, entries};
use super::declare::COMMANDS;
use super::{zfs, zpool};

/// The declaration of a command, by its name or another name of it.
pub(crate) fn command(tool: &str, name: &str) -> Option<&'static Command> {
    let table = match tool {
        "zpool" => zpool::TABLE,
        "zfs" => zfs::TABLE,
        _ => return COMMANDS.iter().find(|command| command.name == name),
    };
    let mut commands = entries(table).map(|entry| entry.command);
    commands.find(|command| command.is_called(name))
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
    Some(text_of(tool, command(tool, name)?))
}

/// The help of a command of our own.
pub(crate) fn text_of_own(command: &Command) -> String {
    text_of("sanbox", command)
}

fn text_of(tool: &str, command: &Command) -> String {
    let mut text = format!("usage:\n{}", command.usage_text());
    if command.usage.is_empty() {
        text.push_str(&format!("\n{}\n", command.summary));
    }
    for paragraph in command.text {
        text.push_str(&format!("\n{}\n", wrapped(paragraph, 78)));
    }
    if !command.flags.is_empty() {
        text.push_str("\noptions:\n");
        for flag in command.flags {
            text.push_str(&format!("  {:<18} {}\n", flag.spelled(), flag.help));
        }
    }
    if !command.examples.is_empty() {
        text.push_str("\nexamples:\n");
        for (line, meaning) in command.examples {
            text.push_str(&format!("  {line}\n      {meaning}\n"));
        }
    }
    if !command.usage.is_empty() {
        text.push_str(&format!(
            "\nGrammar, output and exit codes are those of OpenZFS 2.3: {tool}-{}(8).\n",
            command.name
        ));
    }
    text
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

    fn tools() -> Vec<(&'static str, Vec<&'static Command>)> {
        let of = |table| entries(table).map(|entry| entry.command).collect();
        vec![
            ("zpool", of(zpool::TABLE)),
            ("zfs", of(zfs::TABLE)),
            ("sanbox", COMMANDS.iter().collect()),
        ]
    }

    #[test]
    fn every_example_is_of_its_command() {
        for (tool, commands) in tools() {
            for command in commands {
                for (line, _) in command.examples {
                    assert!(line.starts_with(tool), "{line}");
                    assert!(line.contains(command.name), "{line}");
                }
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
