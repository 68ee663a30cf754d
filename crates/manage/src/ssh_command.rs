//! What a host that logs in by a user's SSH key may have done: the commands that replication needs, taken apart here and given to no shell.
//!
//! A line is commands of `zfs` and `zpool` with `;`, `&&` and `||` between them. What replication tools look at beside is answered: `echo`,
//! `exit`, `true`, `command -v` and `ps`. Whether the user may do what a command says is decided where it runs.

/// Characters of a line.
const LINE_CHARACTERS_MAX: usize = 128 << 10;

/// Commands of `zfs` that are let through.
const ZFS: &[&str] = &[
    "bookmark", "destroy", "get", "hold", "holds", "inherit", "list", "receive", "recv", "release",
    "rename", "rollback", "send", "set", "snap", "snapshot", "version",
];
/// Commands of `zpool` that are let through.
const ZPOOL: &[&str] = &["get", "list", "version"];

/// When a command of a line is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// Behind one that succeeded (`&&`).
    IfDone,
    /// Behind one that failed (`||`).
    IfFailed,
}

/// Where output or messages of a command go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the host.
    Kept,
    /// Nowhere: `/dev/null`.
    Dropped,
    /// Messages: where output goes (`2>&1`).
    WithOutput,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshAction {
    /// A command of this program.
    Run {
        /// `zfs` or `zpool`.
        tool: String,
        /// What follows.
        arguments: Vec<String>,
    },
    /// A text is written.
    Say(String),
    /// The line ends with this code.
    Exit(u8),
    /// It fails with this code.
    Fail(u8),
}

/// A command of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshStep {
    /// When it is run.
    pub condition: Condition,
    /// What is run.
    pub action: SshAction,
    /// Standard output.
    pub output: Destination,
    /// Standard error.
    pub messages: Destination,
}

/// A word, or what stands between words.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Between(Condition),
    /// A redirection, such as `2>` with what is behind it.
    Redirection(Destination, bool),
}

/// Takes a line apart.
///
/// # Errors
/// What in it is not let through, in words.
pub fn parse(line: &str) -> Result<Vec<SshStep>, String> {
    if line.len() > LINE_CHARACTERS_MAX {
        return Err("the command is too long".to_owned());
    }
    let mut steps = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let (mut output, mut messages) = (Destination::Kept, Destination::Kept);
    let mut condition = Condition::Always;
    let mut end = |words: &mut Vec<String>, condition, output, messages| {
        let words = std::mem::take(words);
        if words.is_empty() {
            return Ok(());
        }
        steps.push(SshStep {
            condition,
            action: action(words)?,
            output,
            messages,
        });
        Ok::<(), String>(())
    };
    for token in tokens(line)? {
        match token {
            Token::Word(word) => words.push(word),
            Token::Redirection(destination, true) => messages = destination,
            Token::Redirection(destination, false) => output = destination,
            Token::Between(next) => {
                end(&mut words, condition, output, messages)?;
                condition = next;
                (output, messages) = (Destination::Kept, Destination::Kept);
            }
        }
    }
    end(&mut words, condition, output, messages)?;
    match steps.is_empty() {
        true => Err("there is no shell: only commands of replication are let through".to_owned()),
        false => Ok(steps),
    }
}

/// Splits a line as a shell does, as far as replication tools need it.
fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        Some('\'') => break,
                        Some(letter) => word.push(letter),
                        None => return Err("a quote is not closed".to_owned()),
                    }
                }
            }
            '"' => quoted(&mut letters, word.get_or_insert_default())?,
            '\\' => match letters.next() {
                Some(letter) => word.get_or_insert_default().push(letter),
                None => return Err("the line ends with '\\'".to_owned()),
            },
            ' ' | '\t' => tokens.extend(word.take().map(Token::Word)),
            ';' | '\n' => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::Between(Condition::Always));
            }
            '&' | '|' if letters.peek() == Some(&letter) => {
                letters.next();
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::Between(match letter {
                    '&' => Condition::IfDone,
                    _ => Condition::IfFailed,
                }));
            }
            '|' => {
                return Err(
                    "pipes are not let through: nothing compresses or buffers on this side (syncoid --compress=none)"
                        .to_owned(),
                );
            }
            '>' => {
                let from = word.take();
                let is_messages = from.as_deref() == Some("2");
                if !is_messages && !matches!(from.as_deref(), None | Some("1")) {
                    tokens.extend(from.map(Token::Word));
                }
                let destination = redirected(&mut letters, is_messages)?;
                tokens.push(Token::Redirection(destination, is_messages));
            }
            '&' | '<' | '`' | '$' | '(' | ')' | '{' | '}' | '*' | '?' | '[' | '~' | '!' | '#'
                if !(letter == '#' && word.is_some()) =>
            {
                return Err(format!("'{letter}' is not let through: there is no shell"));
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    tokens.extend(word.map(Token::Word));
    Ok(tokens)
}

/// Reads up to the end of double quotes. Nothing is put in for names.
fn quoted(
    letters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    word: &mut String,
) -> Result<(), String> {
    loop {
        match letters.next() {
            Some('"') => return Ok(()),
            Some('\\') => match letters.next() {
                Some(letter) if "\\\"$`".contains(letter) => word.push(letter),
                Some(letter) => word.extend(['\\', letter]),
                None => return Err("a quote is not closed".to_owned()),
            },
            Some(letter @ ('$' | '`')) => {
                return Err(format!("'{letter}' is not let through: there is no shell"));
            }
            Some(letter) => word.push(letter),
            None => return Err("a quote is not closed".to_owned()),
        }
    }
}

/// Reads where a redirection leads.
fn redirected(
    letters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    is_messages: bool,
) -> Result<Destination, String> {
    let mut to = String::new();
    while letters.next_if_eq(&' ').is_some() {}
    while let Some(letter) = letters.next_if(|letter| !" \t;\n|".contains(*letter)) {
        to.push(letter);
    }
    match to.as_str() {
        "/dev/null" => Ok(Destination::Dropped),
        "&1" if is_messages => Ok(Destination::WithOutput),
        _ => Err(format!("writing to '{to}' is not let through")),
    }
}

/// What a command's words stand for.
fn action(words: Vec<String>) -> Result<SshAction, String> {
    let given: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, arguments) = given.split_first().expect("a word");
    let tool = program.rsplit('/').next().unwrap_or_default();
    match (tool, arguments) {
        ("true" | ":", _) => Ok(SshAction::Say(String::new())),
        ("echo", ["-n", words @ ..]) => Ok(SshAction::Say(words.join(" "))),
        ("echo", words) => Ok(SshAction::Say(format!("{}\n", words.join(" ")))),
        ("exit", []) => Ok(SshAction::Exit(0)),
        ("exit", [code]) => {
            let code = code.parse().map_err(|_| format!("exit '{code}'"))?;
            Ok(SshAction::Exit(code))
        }
        // Which programs there are: none to compress or buffer with.
        ("command", ["-v", name]) => Ok(match name.rsplit('/').next() {
            Some("zfs" | "zpool") => SshAction::Say(format!("{name}\n")),
            _ => SshAction::Fail(1),
        }),
        // Who receives already: of others nothing is told.
        ("ps", _) => Ok(SshAction::Say(String::new())),
        ("zfs" | "zpool", arguments) => {
            check(tool, arguments)?;
            Ok(SshAction::Run {
                tool: tool.to_owned(),
                arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            })
        }
        _ => Err(format!(
            "'{program}' is not let through: only zfs and zpool are, for replication"
        )),
    }
}

/// Whether a command is one of those that replication needs.
fn check(tool: &str, arguments: &[&str]) -> Result<(), String> {
    let (command, rest) = arguments.split_first().unwrap_or((&"", &[]));
    let known = if tool == "zfs" { ZFS } else { ZPOOL };
    let refuse = |why: &str| Err(format!("'{tool} {command}' is not let through: {why}"));
    if !known.contains(command) {
        return refuse("replication does not need it");
    }
    let operands = || rest.iter().filter(|word| !word.starts_with('-'));
    match *command {
        "destroy" if !operands().all(|name| name.contains(['@', '#'])) => {
            refuse("only snapshots and bookmarks are destroyed")
        }
        "rename" if !operands().all(|name| name.contains('@')) => {
            refuse("only snapshots are renamed")
        }
        // Clones are datasets.
        "destroy" | "rollback" if rest.iter().any(|word| has_letter(word, 'R')) => {
            refuse("-R destroys clones")
        }
        "set" => {
            let mut settings = operands().filter_map(|word| word.split_once('='));
            match settings.all(|(name, _)| name.contains(':') || name == "readonly") {
                true => Ok(()),
                false => refuse("only user properties and readonly are set"),
            }
        }
        "inherit" => match operands().next() {
            Some(name) if name.contains(':') || *name == "readonly" => Ok(()),
            _ => refuse("only user properties and readonly are inherited"),
        },
        // A file of this machine would be read.
        "receive" | "recv" if rest.iter().any(|word| word.contains("keylocation=")) => {
            refuse("keys are chosen here")
        }
        _ => Ok(()),
    }
}

fn has_letter(word: &str, letter: char) -> bool {
    word.starts_with('-') && !word.starts_with("--") && word.contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tool: &str, arguments: &[&str]) -> SshAction {
        SshAction::Run {
            tool: tool.to_owned(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    fn actions(line: &str) -> Vec<SshAction> {
        let steps = parse(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        steps.into_iter().map(|step| step.action).collect()
    }

    #[test]
    fn what_replication_says_is_let_through() {
        assert_eq!(
            actions(r"zfs send -Lec -i 'tank/a b#x' 'tank/a b@it'\''s'"),
            [run(
                "zfs",
                &["send", "-Lec", "-i", "tank/a b#x", "tank/a b@it's"]
            )]
        );
        // syncoid.
        assert_eq!(actions("echo -n"), [SshAction::Say(String::new())]);
        assert_eq!(actions("exit"), [SshAction::Exit(0)]);
        assert_eq!(actions("command -v mbuffer"), [SshAction::Fail(1)]);
        assert_eq!(actions("ps -Ao args="), [SshAction::Say(String::new())]);
        assert_eq!(
            actions(" zfs receive  -s -F 'back/a' 2>&1"),
            [run("zfs", &["receive", "-s", "-F", "back/a"])]
        );
        // Our own jobs.
        let steps =
            parse("zfs list -Hp tank/a && echo && zfs get all tank/a; exit 0").expect("fine");
        let conditions: Vec<Condition> = steps.iter().map(|step| step.condition).collect();
        use Condition::{Always, IfDone};
        assert_eq!(conditions, [Always, IfDone, IfDone, Always]);
        assert_eq!(steps[1].action, SshAction::Say("\n".to_owned()));
        let steps =
            parse("zpool get -H name tank 2>/dev/null || zfs version > /dev/null").expect("fine");
        assert_eq!(steps[0].messages, Destination::Dropped);
        assert_eq!(
            (steps[1].condition, steps[1].output),
            (Condition::IfFailed, Destination::Dropped)
        );
        assert_eq!(
            actions(r#"/usr/sbin/zfs set "org.x:y=a \"b\" c" tank"#),
            [run("zfs", &["set", "org.x:y=a \"b\" c", "tank"])]
        );
        assert_eq!(actions("zfs destroy tank/a#b; zfs destroy tank@c").len(), 2);
    }

    #[test]
    fn everything_else_is_refused() {
        for line in [
            "",
            "  ;; ",
            "sh",
            "zfs",
            "zfs destroy tank/a",
            "zfs destroy -r tank/a",
            "zfs destroy -R tank/a@s",
            "zfs destroy tank/a@s tank/b",
            "zfs set mountpoint=/etc tank",
            "zfs set org.x:y=1 sharenfs=on tank",
            "zfs inherit mountpoint tank",
            "zfs receive -o keylocation=file:///etc/shadow tank/a",
            "zfs program tank x",
            "zfs mount tank",
            "zpool export tank",
            "zpool destroy tank",
            "sanbox user list",
            "zfs send tank@a | lzop",
            "zfs send tank@a > /etc/passwd",
            "zfs send tank@a >> /dev/null",
            "zfs list $(reboot)",
            "zfs list `reboot`",
            "zfs list \"$(reboot)\"",
            "zfs list & reboot",
            "zfs list; reboot",
            "zfs list\nreboot",
            "zfs list && (reboot)",
            "zfs receive tank < /etc/shadow",
            "FOO=bar zfs list",
            "zfs list 'x",
            "zfs list \\",
            "../../bin/sh -c x",
            "command -V sh",
            "exit x",
            "zfs list *",
            "zfs list ~root",
            "zfs list # x",
        ] {
            let parsed = parse(line);
            assert!(parsed.is_err(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn no_line_panics_and_no_word_is_another_program() {
        let parts = [
            "zfs", " ", "list", "'", "\"", "\\", ";", "&", "|", ">", "2", "\n", "a@b", "$",
            "\u{e9}",
        ];
        let mut seed = 7_u64;
        for _ in 0..20_000 {
            let mut line = String::new();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                line.push_str(parts[usize::try_from(seed >> 40).unwrap_or(0) % parts.len()]);
            }
            for step in parse(&line).unwrap_or_default() {
                if let SshAction::Run { tool, arguments } = step.action {
                    assert_eq!(
                        (tool.as_str(), arguments[0].as_str()),
                        ("zfs", "list"),
                        "{line}"
                    );
                }
            }
        }
    }
}
