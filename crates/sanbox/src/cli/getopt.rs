//! Options the way the C library's `getopt_long` reads them, because scripts lean on its corners:
//! clustered letters (`-Hpo name`), values glued or apart (`-oname`, `-o name`), options after
//! operands, `--` as the end, long options with `=` or abbreviated to a unique prefix.
//!
//! The caller asks for one option at a time, so that the order of options is kept and a command
//! stops at its first mistake as OpenZFS's commands do. What follows the options is in `operands`.

/// A long option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long {
    /// Name without dashes.
    pub(crate) name: &'static str,
    /// Whether it takes a value.
    pub(crate) value: bool,
}

/// One option as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opt {
    /// A letter, with its value when it takes one.
    Short(char, Option<String>),
    /// A long option, by its full name.
    Long(&'static str, Option<String>),
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
    /// The long option needs a value.
    MissingLong(&'static str),
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
    letters: &'a str,
    longs: &'a [Long],
    arguments: std::collections::VecDeque<&'a str>,
    cluster: &'a str,
    operands: Vec<String>,
    ended: bool,
    /// The first operand ends the options.
    posix: bool,
}

impl<'a> Getopt<'a> {
    /// Prepares to read. `letters` is as in C: a letter followed by `:` takes a value.
    pub(crate) fn new(arguments: &'a [String], letters: &'a str, longs: &'a [Long]) -> Self {
        Self {
            letters,
            longs,
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
    pub(crate) fn next(&mut self) -> Result<Option<Opt>, OptError> {
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

    fn letter(&mut self, letter: char) -> Result<Opt, OptError> {
        let place = if letter == ':' {
            None
        } else {
            self.letters.find(letter)
        };
        let Some(place) = place else {
            return Err(OptError::Invalid(letter));
        };
        if !self.letters[place + letter.len_utf8()..].starts_with(':') {
            return Ok(Opt::Short(letter, None));
        }
        let value = if self.cluster.is_empty() {
            self.arguments
                .pop_front()
                .ok_or(OptError::Missing(letter))?
        } else {
            std::mem::take(&mut self.cluster)
        };
        Ok(Opt::Short(letter, Some(value.to_owned())))
    }

    fn long(&mut self, given: &'a str) -> Result<Opt, OptError> {
        let (name, glued) = match given.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (given, None),
        };
        let exact = self.longs.iter().find(|long| long.name == name);
        let mut abbreviated = self.longs.iter().filter(|long| long.name.starts_with(name));
        let found = exact.or_else(|| match (abbreviated.next(), abbreviated.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        });
        let Some(found) = found else {
            return Err(OptError::InvalidLong(format!("--{given}")));
        };
        match (found.value, glued) {
            (false, Some(_)) => Err(OptError::InvalidLong(format!("--{given}"))),
            (false, None) => Ok(Opt::Long(found.name, None)),
            (true, Some(value)) => Ok(Opt::Long(found.name, Some(value.to_owned()))),
            (true, None) => match self.arguments.pop_front() {
                Some(value) => Ok(Opt::Long(found.name, Some(value.to_owned()))),
                None => Err(OptError::MissingLong(found.name)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, letters: &'static str, expect: &str) {
        const LONGS: &[Long] = &[
            Long {
                name: "json",
                value: false,
            },
            Long {
                name: "json-int",
                value: false,
            },
            Long {
                name: "json-pool-key-guid",
                value: false,
            },
            Long {
                name: "limit",
                value: true,
            },
        ];
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut options = Getopt::new(&arguments, letters, LONGS);
        let mut seen = Vec::new();
        let outcome = loop {
            match options.next() {
                Ok(Some(Opt::Short(letter, value))) => seen.push(match value {
                    Some(value) => format!("{letter}={value}"),
                    None => letter.to_string(),
                }),
                Ok(Some(Opt::Long(name, value))) => seen.push(match value {
                    Some(value) => format!("{name}={value}"),
                    None => name.to_owned(),
                }),
                Ok(None) => break format!("| {}", options.operands().join(" ")),
                Err(error) => break format!("{error:?}"),
            }
        };
        seen.push(outcome);
        assert_eq!(seen.join(" ").trim_end(), expect, "line: {line}");
    }

    #[test]
    fn reads_what_scripts_write() {
        check("-Hpo name tank", "Hpo:", "H p o=name | tank");
        check("-Hponame tank", "Hpo:", "H p o=name | tank");
        check("tank -H -d1 other", "Hd:", "H d=1 | tank other");
        check("-H -- -p", "Hp", "H | -p");
        check("-", "H", "| -");
        check("--json-int -j", "j", "json-int j |");
        check("--json-p", "", "json-pool-key-guid |");
        check("--json", "", "json |");
        check("--limit=3 --limit 4", "", "limit=3 limit=4 |");
    }

    #[test]
    fn stops_at_the_first_mistake() {
        check("-Hz tank", "H", "H Invalid('z')");
        check("-o", "o:", "Missing('o')");
        check("-:", "o:", "Invalid(':')");
        check("--nope", "", "InvalidLong(\"--nope\")");
        check("--json-", "", "InvalidLong(\"--json-\")");
        check("--limit", "", "MissingLong(\"limit\")");
    }
}
