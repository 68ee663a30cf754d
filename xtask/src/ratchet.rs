//! What may only get better: assertions, long functions, invented words, types that do not say what they are of.
//!
//! The rule. A `..._MAX` below is what the repository had when it was written here, a `..._MIN` likewise; a worse count is a finding.
//! A change that makes a count better writes the new count here in the same commit (`cargo xtask tidy` prints the counts, `--lists`
//! what they are made of): down for `MAX`, up for `MIN`, never the other way. A number that has become too easy (`SLACK_MAX`) is a
//! finding, too, so that what was gained cannot be lost again unseen. When two changes lower one number at once, the merged one is
//! what tidy counts then. Counted is what ships: not tests, not examples; wide lines are counted everywhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Assertions that stay on in release, in tenths a thousand lines, that a crate has at least.
const ASSERTIONS_MIN: &[(&str, usize)] = &[
    ("dmu", 50),
    ("dsl", 60),
    ("pool", 70),
    ("vdev", 70),
    ("zil", 70),
    ("zio", 50),
];

/// A function with more lines than this, from its `fn` to its brace, is long.
const FUNCTION_LINES_MAX: usize = 70;

/// Long functions of all crates, at most.
const LONG_FUNCTIONS_MAX: usize = 58;

/// Names that say nothing when they are the whole name of a type.
const BARE: &[&str] = &["Inner", "Kind", "Place", "State", "Thing"];

/// Types with a bare name, at most.
const BARE_TYPES_MAX: usize = 0;

/// Columns of a line, comments and texts included.
const COLUMNS_MAX: usize = 150;

/// Wider lines of all sources, at most.
const WIDE_LINES_MAX: usize = 19;

/// Words of stories about persons: a comment names the subject (a task, a client, a process), the condition and the consequence.
const PERSONS: &[&str] = &[
    "anybody", "anyone", "nobody", "somebody", "someone", "whoever",
];

/// Comments of what ships with such a word, at most.
const PERSONS_MAX: usize = 0;

/// How far a count may be below its number above before the number must follow.
const SLACK_MAX: usize = 10;

/// Words that were invented here and are gone, with the word of the field. Identifiers are compared as wholes and by their parts
/// between underscores.
const INVENTED: &[(&str, &str)] = &[
    ("Arrival", "pending write"),
    ("Crowd", "commit batcher"),
    ("Desk", "wake queue"),
    ("Door", "export scope"),
    ("Errand", "job"),
    ("Flight", "in-flight read"),
    ("Happened", "invalidation"),
    ("Lookaside", "attribute cache"),
    ("Seal", "stored crypt"),
    ("Sealed", "encrypted"),
    ("Sealer", "encryptor"),
    ("Telling", "writer of the cache"),
    ("come_back", "on_unpark"),
    ("leave_word", "defer_wake"),
    ("live_on", "enter daemon"),
    ("lives_on", "is daemon"),
    ("breathe", "yield_every"),
    ("dictionary", "ZAP"),
    ("errand", "job"),
    ("errands", "jobs"),
    ("forgive", "clear lost flush"),
    ("kill_all", "free_all"),
    ("kill_subtree", "free_subtree"),
    ("lookaside", "attribute cache"),
    ("patiently", "spin then park"),
    ("put_away", "admin offline"),
    ("sealed", "encrypted"),
    ("sealer", "encryptor"),
];

/// What is counted in one crate.
#[derive(Default)]
struct Crate {
    lines: usize,
    assertions: usize,
}

/// The counts so far. Files are added one by one.
#[derive(Default)]
pub(crate) struct Ratchet {
    crates: BTreeMap<String, Crate>,
    long: Vec<String>,
    bare: Vec<String>,
    wide: Vec<String>,
    persons: Vec<String>,
}

impl Ratchet {
    /// Adds a source file; `shown` is its path from the repository's root. Invented words are findings at once.
    pub(crate) fn add(&mut self, shown: &str, text: &str, findings: &mut Vec<String>) {
        // The lists above hold the words.
        if !shown.starts_with("xtask/") {
            invented(shown, text, INVENTED, findings);
        }
        let wide = |line: &(usize, &str)| line.1.len() > COLUMNS_MAX;
        let wide = text.lines().enumerate().filter(wide);
        self.wide
            .extend(wide.map(|(index, line)| format!("{shown}:{}: {}", index + 1, line.len())));
        let Some((folder, path)) = shown
            .strip_prefix("crates/")
            .and_then(|s| s.split_once('/'))
        else {
            return;
        };
        let is_test = path.ends_with("/tests.rs") || path.ends_with("_tests.rs");
        let ships = path.starts_with("src/") && !is_test;
        if !ships || path.contains("/tests/") {
            return;
        }
        let lines: Vec<&str> = text
            .lines()
            .take_while(|line| *line != "#[cfg(test)]")
            .collect();
        let counted = self.crates.entry(folder.to_owned()).or_default();
        counted.lines += lines.len();
        counted.assertions += lines.iter().filter(|line| is_assertion(line)).count();
        for (number, name, length) in functions(&lines) {
            if length > FUNCTION_LINES_MAX {
                self.long
                    .push(format!("{shown}:{number}: {name}, {length} lines"));
            }
        }
        for (index, line) in lines.iter().enumerate() {
            if let Some(word) = person(line) {
                self.persons.push(format!("{shown}:{}: {word}", index + 1));
            }
            if let Some(name) = declared_type(line)
                && BARE.contains(&name)
            {
                self.bare.push(format!("{shown}:{}: {name}", index + 1));
            }
        }
    }

    /// Compares with what was reached before.
    pub(crate) fn judge(&self, findings: &mut Vec<String>) {
        for &(name, least) in ASSERTIONS_MIN {
            let density = self
                .crates
                .get(name)
                .map_or(0, Crate::assertions_a_thousand);
            if density < least {
                findings.push(format!(
                    "crates/{name}: {}.{} assertions in a thousand lines (at least {}.{})",
                    density / 10,
                    density % 10,
                    least / 10,
                    least % 10
                ));
            }
        }
        let lists = [
            ("functions above 70 lines", &self.long, LONG_FUNCTIONS_MAX),
            ("types with a bare name", &self.bare, BARE_TYPES_MAX),
            ("lines above 150 columns", &self.wide, WIDE_LINES_MAX),
            ("comments about persons", &self.persons, PERSONS_MAX),
        ];
        for (what, list, most) in lists {
            at_most(what, list, most, findings);
        }
    }

    /// Returns the numbers, for a line on the screen.
    pub(crate) fn numbers(&self) -> String {
        let mut text = format!(
            "{} functions above {FUNCTION_LINES_MAX} lines, {} types with a bare name, {} lines above {COLUMNS_MAX} columns, \
             {} comments about persons; \
             assertions in a thousand lines:",
            self.long.len(),
            self.bare.len(),
            self.wide.len(),
            self.persons.len()
        );
        for (name, counted) in &self.crates {
            let density = counted.assertions_a_thousand();
            write!(text, " {name} {}.{}", density / 10, density % 10).expect("a string takes all");
        }
        text
    }

    /// Returns every long function, bare type, wide line and comment about persons.
    pub(crate) fn lists(&self) -> String {
        [&self.long, &self.bare, &self.wide, &self.persons]
            .map(|list| list.join("\n"))
            .join("\n")
    }
}

impl Crate {
    /// Assertions in a thousand lines, in tenths.
    fn assertions_a_thousand(&self) -> usize {
        (self.assertions * 10_000)
            .checked_div(self.lines)
            .unwrap_or(0)
    }
}

/// Refuses a list that is longer than its number, and a number that its list has left far behind.
fn at_most(what: &str, list: &[String], most: usize, findings: &mut Vec<String>) {
    let count = list.len();
    if count > most {
        findings.push(format!(
            "{count} {what} (at most {most}):\n  {}",
            list.join("\n  ")
        ));
    }
    if count + SLACK_MAX < most {
        findings.push(format!(
            "{count} {what}: write {count} in place of {most} in xtask/src/ratchet.rs"
        ));
    }
}

/// Whether a line begins an assertion that stays on in release; those that the compiler checks count as well.
fn is_assertion(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("const _: () = ").unwrap_or(line);
    ["assert!(", "assert_eq!(", "assert_ne!("]
        .iter()
        .any(|start| line.starts_with(start))
}

/// The functions of a file as rustfmt writes them: line (from 1), name, and lines from `fn` to the closing brace.
fn functions(lines: &[&str]) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(name) = function_name(code) else {
            continue;
        };
        let indent = line.len() - code.len();
        let end = format!("{:indent$}}}", "");
        let rest = &lines[index..];
        // One without a body ends in a semicolon before any line closes at its indent.
        let close = rest.iter().position(|line| *line == end);
        let semicolon = rest.iter().position(|line| line.ends_with(';'));
        let opens = rest.iter().position(|line| line.ends_with('{'));
        if let (Some(close), Some(opens)) = (close, opens)
            && semicolon.is_none_or(|semicolon| opens <= semicolon)
        {
            found.push((index + 1, name.to_owned(), close + 1));
        }
    }
    found
}

fn function_name(code: &str) -> Option<&str> {
    let (before, rest) = code.split_once("fn ")?;
    let modifiers = [
        "pub",
        "pub(crate)",
        "pub(super)",
        "const",
        "async",
        "unsafe",
    ];
    let only_modifiers = before
        .split_whitespace()
        .all(|word| modifiers.contains(&word) || word.starts_with("pub(in"));
    let end = rest.find(|c: char| !is_word(c))?;
    (only_modifiers && end > 0).then(|| &rest[..end])
}

/// The name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !is_word(c)).filter(|w| !w.is_empty());
    let code = line.trim_start();
    let declares = ["pub ", "pub(", "struct ", "enum ", "trait ", "type "];
    if !declares.iter().any(|start| code.starts_with(start)) {
        return None;
    }
    words
        .by_ref()
        .take(4)
        .find(|word| ["struct", "enum", "trait", "type"].contains(word))?;
    words.next()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first word of [`PERSONS`] in the comment of a line.
fn person(line: &str) -> Option<&str> {
    let (_, comment) = line.split_once("//")?;
    let mut words = comment.split(|c: char| !is_word(c));
    words.find(|word| {
        PERSONS
            .iter()
            .any(|person| word.eq_ignore_ascii_case(person))
    })
}

/// Refuses invented words in identifiers and comments.
fn invented(shown: &str, text: &str, words: &[(&str, &str)], findings: &mut Vec<String>) {
    for (index, line) in text.lines().enumerate() {
        for token in line.split(|c: char| !is_word(c)) {
            let found = words
                .iter()
                .find(|(word, _)| token == *word || token.split('_').any(|part| part == *word));
            if let Some((word, instead)) = found {
                findings.push(format!(
                    "{shown}:{}: '{word}' was invented here; say {instead}",
                    index + 1
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_lengths() {
        let check = |text: &str, expect: &[(usize, &str, usize)]| {
            let lines: Vec<&str> = text.lines().collect();
            let found = functions(&lines);
            let found: Vec<_> = found.iter().map(|f| (f.0, f.1.as_str(), f.2)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("fn one() {\n    two();\n}\n", &[(1, "one", 3)]);
        check(
            "    pub(crate) async fn one(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n",
            &[(1, "one", 5)],
        );
        check(
            "trait A {\n    fn one(&self);\n    fn two(&self) {\n    }\n}\n",
            &[(3, "two", 2)],
        );
        check("// what fn one() does\n", &[]);
    }

    #[test]
    fn types_have_names() {
        let check =
            |line: &str, expect: Option<&str>| assert_eq!(declared_type(line), expect, "{line}");
        check("struct State {", Some("State"));
        check("pub(crate) enum Kind {", Some("Kind"));
        check("pub struct LunState<'a> {", Some("LunState"));
        check("    state: State,", None);
        check("/// a struct State", None);
    }

    #[test]
    fn invented_words_are_refused_in_identifiers_and_comments() {
        let check = |text: &str, expect: usize| {
            let mut findings = Vec::new();
            invented(
                "a.rs",
                text,
                &[("lane", "worker"), ("Lane", "Worker")],
                &mut findings,
            );
            assert_eq!(findings.len(), expect, "{text}");
        };
        check("// one lane", 1);
        check("fn next_lane(lane: Lane) {}", 3);
        check("planet, LaneKeeper, airplane", 0);
    }

    #[test]
    fn persons_are_counted_in_comments() {
        for (line, expect) in [
            ("/// Waits until nobody looks.", Some("nobody")),
            ("let x = 1; // Whoever holds it.", Some("Whoever")),
            ("let nobody = Subject::new();", None),
            ("// A task that somebodys has.", None),
        ] {
            assert_eq!(person(line), expect, "{line}");
        }
    }

    #[test]
    fn a_number_is_neither_passed_nor_left_behind() {
        let check = |count: usize, most: usize, expect: usize| {
            let list = vec!["a.rs:1: f".to_owned(); count];
            let mut findings = Vec::new();
            at_most("long functions", &list, most, &mut findings);
            assert_eq!(findings.len(), expect, "{count} of {most}");
        };
        check(0, 0, 0);
        check(1, 0, 1);
        check(20, 20, 0);
        check(21, 20, 1);
        check(10, 20, 0);
        check(9, 20, 1);
    }

    #[test]
    fn assertions_count_once_each() {
        let mut ratchet = Ratchet::default();
        let text = "//! x\nfn f() {\n    assert!(a);\n    debug_assert!(b);\n}\nconst _: () = assert!(C);\n\
                    #[cfg(test)]\nmod tests {\n    fn t() { assert!(d); }\n}\n";
        ratchet.add("crates/dmu/src/x.rs", text, &mut Vec::new());
        assert_eq!(ratchet.crates["dmu"].assertions, 2);
        assert_eq!(ratchet.crates["dmu"].lines, 6);
    }
}
