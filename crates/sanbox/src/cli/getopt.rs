//! Options the way the C library's `getopt_long` reads them, because scripts lean on its corners:
//! clustered letters (`-Hpo name`), values glued or apart (`-oname`, `-o name`), options after
//! operands, `--` as the end, long options with `=` or abbreviated to a unique prefix.
//!
//! The caller asks for one option at a time, so that the order of options is kept and a command
//! stops at its first mistake as OpenZFS's commands do. What follows the options is in `operands`.

use super::flag::Flag;

/// One option as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// Which of the options declared.
    pub(crate) index: usize,
    /// Its value, when it takes one.
    pub(crate) value: Option<String>,
}

/// Why the command line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OptError {
    /// A letter the command does not have.
    Invalid(char),
    /// A long option the command does not have, or an ambiguous abbreviation; as given.
    InvalidLong(String),
    /// The option needs a value.
    Missing(char),
    /// The long option, which has no letter, needs a value.
    MissingLong(&'static str),
}

impl OptError {
    /// The error as a command tells it whose getopt string does not begin with a colon: a missing value makes the option invalid.
    pub(crate) fn without_missing(self) -> Self {
        match self {
            Self::Missing(letter) => Self::Invalid(letter),
            other => other,
        }
    }
}

impl std::fmt::Display for OptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invalid(letter) => write!(f, "invalid option '{letter}'"),
            Self::InvalidLong(name) => write!(f, "invalid option '{name}'"),
            Self::Missing(letter) => write!(f, "missing argument for '{letter}' option"),
            Self::MissingLong(name) => write!(f, "missing argument for '{name}' option"),
        }
    }
}

/// Reads options from a list of arguments (without the command's own name).
#[derive(Debug)]
pub(crate) struct Getopt<'a> {
    flags: &'a [Flag],
    arguments: std::collections::VecDeque<&'a str>,
    cluster: &'a str,
    operands: Vec<String>,
    ended: bool,
    /// The first operand ends the options.
    posix: bool,
}

impl<'a> Getopt<'a> {
    /// Prepares to read the options declared.
    pub(crate) fn new(arguments: &'a [String], flags: &'a [Flag]) -> Self {
        Self {
            flags,
            arguments: arguments.iter().map(String::as_str).collect(),
            cluster: "",
            operands: Vec::new(),
            ended: false,
            posix: false,
        }
    }

    /// The first operand ends the options, as the C library does with `POSIXLY_CORRECT` set.
    pub(crate) fn ending_at_operands(mut self) -> Self {
        self.posix = true;
        self
    }

    /// Returns the next option, or `None` when only operands are left.
    pub(crate) fn next(&mut self) -> Result<Option<Given>, OptError> {
        loop {
            if let Some(letter) = self.cluster.chars().next() {
                self.cluster = &self.cluster[letter.len_utf8()..];
                return self.letter(letter).map(Some);
            }
            let Some(argument) = self.arguments.pop_front() else {
                return Ok(None);
            };
            if self.ended || argument == "-" || !argument.starts_with('-') {
                self.operands.push(argument.to_owned());
                self.ended |= self.posix;
            } else if argument == "--" {
                self.ended = true;
            } else if let Some(long) = argument.strip_prefix("--") {
                return self.long(long).map(Some);
            } else {
                self.cluster = &argument[1..];
            }
        }
    }

    /// Returns the operands, in order. To be called after `next` returned `None`.
    pub(crate) fn operands(self) -> Vec<String> {
        self.operands
    }

    fn letter(&mut self, letter: char) -> Result<Given, OptError> {
        let mut flags = self.flags.iter();
        let Some(index) = flags.position(|flag| flag.short == Some(letter)) else {
            return Err(OptError::Invalid(letter));
        };
        if self.flags[index].value.is_none() {
            return Ok(Given { index, value: None });
        }
        let value = if self.cluster.is_empty() {
            self.arguments
                .pop_front()
                .ok_or(OptError::Missing(letter))?
        } else {
            std::mem::take(&mut self.cluster)
        };
        Ok(Given {
            index,
            value: Some(value.to_owned()),
        })
    }

    /// The option that a long name means: the one of that name, or the only one that begins so.
    fn named(&self, name: &str) -> Option<(usize, &'static str)> {
        let flags = self.flags.iter().enumerate();
        let longs = || {
            let flags = flags.clone();
            flags.filter_map(|(index, flag)| Some((index, flag.long?)))
        };
        let mut abbreviated = longs().filter(|(_, long)| long.starts_with(name));
        longs().find(|(_, long)| *long == name).or_else(|| {
            match (abbreviated.next(), abbreviated.next()) {
                (Some(only), None) => Some(only),
                _ => None,
            }
        })
    }

    fn long(&mut self, given: &'a str) -> Result<Given, OptError> {
        let (name, glued) = match given.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (given, None),
        };
        let Some((index, long)) = self.named(name) else {
            return Err(OptError::InvalidLong(format!("--{given}")));
        };
        let flag = self.flags[index];
        let value = match (flag.value.is_some(), glued) {
            (false, Some(_)) => return Err(OptError::InvalidLong(format!("--{given}"))),
            (false, None) => None,
            (true, Some(value)) => Some(value.to_owned()),
            (true, None) => match (self.arguments.pop_front(), flag.short) {
                (Some(value), _) => Some(value.to_owned()),
                (None, Some(letter)) => return Err(OptError::Missing(letter)),
                (None, None) => return Err(OptError::MissingLong(long)),
            },
        };
        Ok(Given { index, value })
    }
}

#[cfg(test)]
mod tests {
    use super::super::flag::{both, long, short, valued};
    use super::*;

    const FLAGS: &[Flag] = &[
        short('H', ""),
        short('p', ""),
        valued('o', "LIST", ""),
        valued('d', "DEPTH", ""),
        both('j', "json", None, ""),
        both('r', "rate", Some("RATE"), ""),
        long("json-int", None, ""),
        long("json-pool-key-guid", None, ""),
        long("limit", Some("N"), ""),
    ];

    fn check(line: &str, expect: &str) {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut options = Getopt::new(&arguments, FLAGS);
        let mut seen = Vec::new();
        let outcome = loop {
            match options.next() {
                Ok(Some(option)) => {
                    let flag = FLAGS[option.index];
                    let name = flag
                        .short
                        .map(String::from)
                        .unwrap_or(flag.long.unwrap_or_default().to_owned());
                    seen.push(match option.value {
                        Some(value) => format!("{name}={value}"),
                        None => name,
                    });
                }
                Ok(None) => break format!("| {}", options.operands().join(" ")),
                Err(error) => break error.to_string(),
            }
        };
        seen.push(outcome);
        assert_eq!(seen.join(" ").trim_end(), expect, "line: {line}");
    }

    #[test]
    fn reads_what_scripts_write() {
        check("-Hpo name tank", "H p o=name | tank");
        check("-Hponame tank", "H p o=name | tank");
        check("tank -H -d1 other", "H d=1 | tank other");
        check("-H -- -p", "H | -p");
        check("- x", "| - x");
        check("--json-int -j", "json-int j |");
        check("--json-p", "json-pool-key-guid |");
        check("--json", "j |");
        check("--limit=3 --limit 4 --rate 5", "limit=3 limit=4 r=5 |");
    }

    #[test]
    fn stops_at_the_first_mistake() {
        check("-Hz tank", "H invalid option 'z'");
        check("-o", "missing argument for 'o' option");
        check("-:", "invalid option ':'");
        check("--nope", "invalid option '--nope'");
        check("--json-", "invalid option '--json-'");
        check("--json=1", "invalid option '--json=1'");
        check("--limit", "missing argument for 'limit' option");
        check("--rate", "missing argument for 'r' option");
        let invalid = OptError::Missing('o').without_missing();
        assert_eq!(invalid.to_string(), "invalid option 'o'");
    }
}
