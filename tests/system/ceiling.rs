//! The memory that the daemons of these tests may take. With `SANBOX_TEST_MEMORY=512M` each of them gets `--memory 512M` (unless its
//! test says another ceiling) and runs, where this user may make one, in a memory control group of exactly that size; at its end
//! it must never have been above the ceiling, nor have lost a process to it. `SANBOX_TEST_PEAKS` names a file that gets a line for
//! each daemon. `tests/interop/ceiling.sh` runs the whole suite like this.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

static GROUPS: AtomicUsize = AtomicUsize::new(0);

/// What one daemon may take.
pub(crate) struct Ceiling {
    words: String,
    bytes: u64,
    group: Option<PathBuf>,
}

impl Ceiling {
    /// Returns the ceiling that daemons are to be given, if any.
    pub(crate) fn asked() -> Option<Self> {
        let words = std::env::var("SANBOX_TEST_MEMORY").ok()?;
        let (digits, shift) = match words.as_bytes().last() {
            Some(b'M') => (&words[..words.len() - 1], 20),
            Some(b'G') => (&words[..words.len() - 1], 30),
            _ => (words.as_str(), 0),
        };
        let number: u64 = digits.parse().expect("SANBOX_TEST_MEMORY is a size");
        let bytes = number << shift;
        let group = group(bytes);
        Some(Self {
            words,
            bytes,
            group,
        })
    }

    /// Returns `program serve`, to be run below the ceiling.
    pub(crate) fn serve(&self, program: &str) -> Command {
        let mut command = match &self.group {
            Some(group) => {
                let mut command = Command::new("sh");
                command
                    .args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""])
                    .arg(group)
                    .arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["serve", "--memory", &self.words]);
        command
    }

    /// Notes the most that the daemon has had, before it ends; says what was wrong with it.
    pub(crate) fn judge(&self, pid: u32) -> Result<(), String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let highest = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|kib| kib.parse::<u64>().ok())
            .map_or(0, |kib| kib << 10);
        let killed = self.group.as_deref().map_or(0, kills);
        if let Some(path) = std::env::var_os("SANBOX_TEST_PEAKS") {
            let thread = std::thread::current();
            let line = format!(
                "{} {} {} {} {killed}\n",
                thread.name().unwrap_or("-"),
                highest >> 20,
                self.bytes >> 20,
                if self.group.is_some() { "group" } else { "-" },
            );
            let file = fs::OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .expect("the peak is noted");
        }
        if killed > 0 {
            return Err(format!("{killed} killed by the limit of {}", self.words));
        }
        if highest > self.bytes {
            return Err(format!(
                "{} MiB were resident, above {}",
                highest >> 20,
                self.words
            ));
        }
        Ok(())
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            drop(fs::remove_dir(group));
        }
    }
}

/// A control group of the first or the second kind with this limit, where one can be made.
fn group(bytes: u64) -> Option<PathBuf> {
    let number = GROUPS.fetch_add(1, Ordering::Relaxed);
    let name = format!("sanbox-test-{}-{number}", std::process::id());
    for (place, limit) in [
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ] {
        let group = Path::new(place).join(&name);
        if fs::create_dir(&group).is_err() {
            continue;
        }
        let file = group.join(limit);
        if file.exists() && fs::write(&file, bytes.to_string()).is_ok() {
            return Some(group);
        }
        drop(fs::remove_dir(&group));
    }
    None
}

fn kills(group: &Path) -> u64 {
    ["memory.oom_control", "memory.events"]
        .into_iter()
        .filter_map(|file| fs::read_to_string(group.join(file)).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok())
                .collect::<Vec<_>>()
        })
        .sum()
}
