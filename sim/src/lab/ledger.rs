//! The ledger: what the lab has run so far, in `sim/ledger.toml`, so that the count grows over many runs.
//!
//! A list of runs, each a range of seeds with what came of it. A run's entry is written again while it goes on; older
//! entries are never changed. Totals are sums over the entries, shown by `lab ledger` and written as comments on top.

use std::fmt::Write as _;
use std::path::Path;

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// What was run: a commit, or whatever names the state of the engine.
    pub engine: String,
    /// First seed, and how many.
    pub start: u64,
    pub seeds: u64,
    pub operations: u64,
    pub cuts: u64,
    pub nested: u64,
    pub lost_logs: u64,
    pub checked: u64,
    /// Wall clock of the run, and the CPU time of its processes, in seconds.
    pub seconds: u64,
    pub cpu_seconds: u64,
    /// Seeds with a violation.
    pub violations: Vec<u64>,
}

impl Run {
    fn text(&self) -> String {
        let mut text = String::from("[[run]]\n");
        let _ = writeln!(text, "engine = \"{}\"", self.engine);
        for (name, value) in [
            ("start", self.start),
            ("seeds", self.seeds),
            ("operations", self.operations),
            ("cuts", self.cuts),
            ("nested", self.nested),
            ("lost_logs", self.lost_logs),
            ("checked", self.checked),
            ("seconds", self.seconds),
            ("cpu_seconds", self.cpu_seconds),
            ("cuts_per_hour", per_hour(self.cuts, self.seconds)),
            ("cuts_per_cpu_hour", per_hour(self.cuts, self.cpu_seconds)),
        ] {
            let _ = writeln!(text, "{name} = {value}");
        }
        let _ = writeln!(text, "violations = {:?}", self.violations);
        text
    }
}

/// Returns how many in an hour.
#[must_use]
pub fn per_hour(count: u64, seconds: u64) -> u64 {
    (count * 3600).checked_div(seconds).unwrap_or(0)
}

/// Sums over a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub runs: u64,
    pub seeds: u64,
    pub cuts: u64,
    pub seconds: u64,
    pub cpu_seconds: u64,
    /// Seeds with a violation.
    pub violations: u64,
    /// The first seed that has not been run.
    pub next_seed: u64,
}

/// Reads the sums of a ledger's text; lines it does not know are passed over.
#[must_use]
pub fn totals(text: &str) -> Totals {
    let mut totals = Totals::default();
    let mut start = 0;
    for line in text.lines() {
        if line.trim() == "[[run]]" {
            totals.runs += 1;
        }
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        let number = value.parse::<u64>().unwrap_or(0);
        match name {
            "start" => start = number,
            "seeds" => {
                totals.seeds += number;
                totals.next_seed = totals.next_seed.max(start + number);
            }
            "cuts" => totals.cuts += number,
            "seconds" => totals.seconds += number,
            "cpu_seconds" => totals.cpu_seconds += number,
            "violations" => {
                let list = value.trim_matches(['[', ']']);
                totals.violations += list
                    .split(',')
                    .filter(|seed| !seed.trim().is_empty())
                    .count() as u64;
            }
            _ => {}
        }
    }
    totals
}

const HEAD: &str = "# The crash lab's ledger (sim/src/lab): runs of `sanbox lab crash --ledger sim/ledger.toml`.\n\
                    # A violation is a seed that lost something acknowledged, suspended, or left a pool that is not sound.\n";

/// The entries of a ledger's text, without its head.
fn entries(text: &str) -> &str {
    text.find("[[run]]").map_or("", |at| &text[at..])
}

/// Writes the ledger with `run` after what was there `before`.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, before: &str, run: &Run) -> std::io::Result<()> {
    let mut all = entries(before).trim_end().to_owned();
    if !all.is_empty() {
        all.push_str("\n\n");
    }
    all.push_str(&run.text());
    let sum = totals(&all);
    let text = format!(
        "{HEAD}# Together: {} seeds, {} power cuts, {} an hour of CPU, {} seeds with violations.\n\n{all}",
        sum.seeds,
        sum.cuts,
        per_hour(sum.cuts, sum.cpu_seconds),
        sum.violations
    );
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_grows_and_adds_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ledger.toml");
        let run = Run {
            engine: "abc".to_owned(),
            start: 5,
            seeds: 10,
            cuts: 1000,
            seconds: 20,
            cpu_seconds: 40,
            ..Run::default()
        };
        write(&path, "", &run).expect("written");
        let before = std::fs::read_to_string(&path).expect("read");
        let more = Run {
            start: 15,
            violations: vec![16, 17],
            ..run
        };
        write(&path, &before, &more).expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        let sum = totals(&text);
        assert_eq!((sum.runs, sum.seeds, sum.cuts), (2, 20, 2000));
        assert_eq!((sum.violations, sum.next_seed), (2, 25));
        assert!(text.contains("90000 an hour of CPU"), "{text}");
    }
}
