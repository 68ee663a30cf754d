//! Programs that run before and after a snapshot: a database is told to flush and to wait, virtual machines are quiesced.
//!
//! Which programs there are is written in `sanbox.toml`, which is root's alone; a policy only names them. So a user to whom a property of a
//! dataset was delegated can ask for a hook, and cannot make one.
//!
//! A hook decides nothing about the snapshot: where it fails or takes too long, the snapshot is taken all the same, is crash-consistent as
//! one without a hook is, and carries the name of the hook in [`FAILED_HOOKS_PROPERTY`]. What was begun by `before` is ended by `after` in
//! any case, also when `before` failed half-way or the round was given up.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, future, io};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal};
use serde::Serialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use utoipa::ToSchema;

use crate::config::Hook;
use crate::database::seconds_since_epoch;

/// The user property of a snapshot that names the hooks which failed when it was taken, separated by commas.
pub const FAILED_HOOKS_PROPERTY: &str = "org.sanbox:hooks-failed";

/// Names of snapshots that a hook is told: what fits into an environment beside everything else.
const NAMES_BYTES_MAX: usize = 64 << 10;

/// Bytes of a hook's error output that its failure quotes.
const QUOTED_BYTES_MAX: usize = 300;

/// The hooks of an appliance by name.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    defined: Arc<BTreeMap<String, Hook>>,
    runs: HookRuns,
}

/// A hook, and how it went when it was last asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct HookView {
    /// The name by which policies call it.
    pub name: String,
    /// Seconds that each of its programs may take.
    pub timeout_seconds: u64,
    /// When it last began, seconds since 1970; none since the daemon's start.
    pub ran: Option<u64>,
    /// Milliseconds that its programs took then, together.
    pub took_ms: u64,
    /// What failed then; none when nothing did. It quotes what the program wrote to its error output.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct HookRun {
    ran: Option<u64>,
    took: Duration,
    error: Option<String>,
}

/// The last run of each hook by its name; only of those that are defined.
#[derive(Clone, Debug, Default)]
struct HookRuns(Arc<Mutex<BTreeMap<String, HookRun>>>);

impl HookRuns {
    fn change(&self, name: &str, change: impl FnOnce(&mut HookRun)) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(runs.entry(name.to_owned()).or_default());
    }

    /// Takes the outcome of a program: that of `before` begins a run, that of `after` belongs to the one that was begun.
    fn note(&self, name: &str, phase: Phase, took: Duration, outcome: &Result<(), String>) {
        self.change(name, |run| {
            if let Phase::Before = phase {
                *run = HookRun {
                    ran: Some(seconds_since_epoch().saturating_sub(took.as_secs())),
                    ..HookRun::default()
                };
            }
            run.took += took;
            if let Err(why) = outcome {
                run.add_error(&format!("'{}': {why}", phase.name()));
            }
        });
    }
}

impl HookRun {
    fn add_error(&mut self, why: &str) {
        self.error = Some(match self.error.take() {
            Some(before) => format!("{before}; {why}"),
            None => why.to_owned(),
        });
    }
}

/// Hooks whose `before` was started: their `after` runs when this is thawed, or dropped.
#[derive(Debug)]
pub(super) struct Frozen {
    hooks: Vec<(String, Hook)>,
    snapshots: String,
    runs: HookRuns,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Before,
    After,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

impl Hook {
    fn line(&self, phase: Phase) -> &[String] {
        match phase {
            Phase::Before => &self.before,
            Phase::After => &self.after,
        }
    }
}

/// A hook that failed: its name, and why.
pub type HookFailure = (String, String);

impl Hooks {
    /// Returns the hooks that `sanbox.toml` defines.
    #[must_use]
    pub fn new(defined: BTreeMap<String, Hook>) -> Self {
        Self {
            defined: Arc::new(defined),
            runs: HookRuns::default(),
        }
    }

    /// Returns all hooks in the order of their names, with their last runs since the daemon's start.
    #[must_use]
    pub fn views(&self) -> Vec<HookView> {
        let runs = self.runs.0.lock().unwrap_or_else(PoisonError::into_inner);
        let view = |(name, hook): (&String, &Hook)| {
            let run = runs.get(name).cloned().unwrap_or_default();
            HookView {
                name: name.clone(),
                timeout_seconds: hook.timeout_seconds,
                ran: run.ran,
                took_ms: u64::try_from(run.took.as_millis()).unwrap_or(u64::MAX),
                error: run.error,
            }
        };
        self.defined.iter().map(view).collect()
    }

    /// Takes what failed around the last runs of the hooks named, other than a program of theirs.
    pub(super) fn note_failure(&self, names: &[String], why: &str) {
        for name in names {
            if self.defined.contains_key(name) {
                self.runs.change(name, |run| run.add_error(why));
            }
        }
    }

    /// Runs `before` of the hooks named, all at once, and waits until each has ended or its time is over.
    pub(super) async fn freeze(
        &self,
        names: &[String],
        snapshots: &[String],
    ) -> (Frozen, Vec<HookFailure>) {
        let mut frozen = Frozen {
            hooks: Vec::new(),
            snapshots: shortened(snapshots),
            runs: self.runs.clone(),
        };
        let mut failures = Vec::new();
        for name in names {
            match self.defined.get(name) {
                Some(hook) => frozen.hooks.push((name.clone(), hook.clone())),
                None => failures.push((name.clone(), "sanbox.toml has no such hook".to_owned())),
            }
        }
        let runs = &self.runs;
        failures.extend(run_all(&frozen.hooks, Phase::Before, &frozen.snapshots, runs).await);
        (frozen, failures)
    }
}

impl Frozen {
    /// Runs `after` of the hooks, and waits for them.
    pub(super) async fn thaw(mut self) -> Vec<HookFailure> {
        let hooks = std::mem::take(&mut self.hooks);
        let snapshots = std::mem::take(&mut self.snapshots);
        let runs = self.runs.clone();
        // A task of its own: it comes to its end where the caller is given up while it waits.
        let ended =
            tokio::spawn(async move { run_all(&hooks, Phase::After, &snapshots, &runs).await });
        ended.await.unwrap_or_default()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let hooks = std::mem::take(&mut self.hooks);
        if hooks.is_empty() {
            return;
        }
        let snapshots = std::mem::take(&mut self.snapshots);
        let runs = self.runs.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { run_all(&hooks, Phase::After, &snapshots, &runs).await });
        }
    }
}

/// Returns the names of snapshots in lines; where they are too many, the last line is `...`.
fn shortened(snapshots: &[String]) -> String {
    let mut text = String::new();
    for name in snapshots {
        if text.len() + name.len() > NAMES_BYTES_MAX {
            text.push_str("...\n");
            break;
        }
        text.push_str(name);
        text.push('\n');
    }
    text
}

async fn run_all(
    hooks: &[(String, Hook)],
    phase: Phase,
    snapshots: &str,
    runs: &HookRuns,
) -> Vec<HookFailure> {
    let running = hooks.iter().map(async |(name, hook)| {
        let began = Instant::now();
        let outcome = run(name, hook, phase, snapshots).await;
        runs.note(name, phase, began.elapsed(), &outcome);
        let why = outcome.err()?;
        Some((name.clone(), format!("'{}': {why}", phase.name())))
    });
    join_all(running).await.into_iter().flatten().collect()
}

/// Runs one phase of a hook to its end, or kills it and the processes it started when its time is over.
async fn run(name: &str, hook: &Hook, phase: Phase, snapshots: &str) -> Result<(), String> {
    let Some((program, arguments)) = hook.line(phase).split_first() else {
        return Ok(());
    };
    let path = PathBuf::from(program);
    let checked = tokio::task::spawn_blocking(move || check_owner(&path)).await;
    checked.unwrap_or_else(|error| Err(error.to_string()))?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("SANBOX_HOOK", name)
        .env("SANBOX_PHASE", phase.name())
        .env("SANBOX_SNAPSHOTS", snapshots)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok());
    let mut said = Vec::new();
    let limit = Duration::from_secs(hook.timeout_seconds);
    let ended = tokio::time::timeout(limit, wait_and_read(&mut child, &mut said)).await;
    let why = match ended {
        Ok(Ok(status)) if status.success() => return Ok(()),
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => {
            if let Some(pid) = group.and_then(Pid::from_raw) {
                // Gone meanwhile: nothing is left to be killed.
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            }
            format!(
                "it took longer than {} s, and was killed",
                hook.timeout_seconds
            )
        }
    };
    let said = String::from_utf8_lossy(&said);
    Err(match said.trim() {
        "" => format!("{program}: {why}"),
        said => format!("{program}: {why}: {}", said.escape_debug()),
    })
}

/// Waits for the end of a program, and keeps the first bytes of its error output. A process that it left behind may hold that open for ever:
/// what is said after the program's end is not waited for.
async fn wait_and_read(child: &mut Child, said: &mut Vec<u8>) -> io::Result<ExitStatus> {
    let mut stderr = child.stderr.take();
    let mut buffer = [0; 1024];
    loop {
        let read = async {
            match &mut stderr {
                Some(stderr) => stderr.read(&mut buffer).await.unwrap_or(0),
                None => future::pending().await,
            }
        };
        tokio::select! {
            biased;
            count = read => {
                let room = QUOTED_BYTES_MAX - said.len();
                said.extend_from_slice(&buffer[..count.min(room)]);
                if count == 0 {
                    stderr = None;
                }
            }
            status = child.wait() => return status,
        }
    }
}

/// Refuses a program that others than root and this daemon's user may write: they could run anything as this daemon.
fn check_owner(program: &Path) -> Result<(), String> {
    let refused = |why: &dyn fmt::Display| format!("{}: {why}", program.display());
    let meta = std::fs::metadata(program).map_err(|error| refused(&error))?;
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(refused(
            &"it belongs neither to root nor to the daemon's user",
        ));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(refused(&"others than its owner may write it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(before: &str, after: &str) -> Hook {
        let shell = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Hook {
            before: shell(before),
            after: shell(after),
            timeout_seconds: 20,
        }
    }

    fn hooks(defined: &[(&str, &Hook)]) -> Hooks {
        let named = |(name, hook): &(&str, &Hook)| ((*name).to_owned(), (*hook).clone());
        Hooks::new(defined.iter().map(named).collect())
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn what_was_begun_is_ended_however_it_went() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let log = log.display();
        let good = hook(
            &format!("echo \"$SANBOX_PHASE $SANBOX_HOOK $SANBOX_SNAPSHOTS\" >> {log}"),
            &format!("echo thawed >> {log}"),
        );
        let bad = hook(
            "echo no license >&2; exit 3",
            &format!("echo thawed bad >> {log}"),
        );
        let hooks = hooks(&[("good", &good), ("bad", &bad)]);
        let (frozen, failures) = hooks
            .freeze(
                &names(&["good", "bad", "none"]),
                &names(&["tank/a@1", "tank/b@1"]),
            )
            .await;
        let expected = [
            ("none", "sanbox.toml has no such hook"),
            ("bad", "'before': /bin/sh: exit status: 3: no license"),
        ];
        assert_eq!(
            failures,
            expected.map(|(name, why)| (name.to_owned(), why.to_owned()))
        );
        let text = std::fs::read_to_string(dir.path().join("log")).expect("written");
        assert_eq!(text, "before good tank/a@1\ntank/b@1\n\n");
        assert_eq!(frozen.thaw().await, []);
        let text = std::fs::read_to_string(dir.path().join("log")).expect("written");
        assert!(
            text.contains("thawed\n") && text.contains("thawed bad\n"),
            "{text}"
        );

        let views = hooks.views();
        let told: Vec<_> = views
            .iter()
            .map(|view| (view.name.as_str(), view.error.as_deref()))
            .collect();
        let why = "'before': /bin/sh: exit status: 3: no license";
        assert_eq!(told, [("bad", Some(why)), ("good", None)]);
        assert!(views.iter().all(|view| view.ran.is_some()));

        // A round that is given up between the two thaws as well.
        std::fs::remove_file(dir.path().join("log")).expect("removed");
        let (frozen, _) = hooks.freeze(&names(&["bad"]), &[]).await;
        drop(frozen);
        while !dir.path().join("log").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_hook_that_does_not_end_is_killed_with_what_it_started() {
        let mut slow = hook("sleep 1000 & echo $! >&2; wait", "true");
        slow.timeout_seconds = 1;
        let (frozen, failures) = hooks(&[("slow", &slow)])
            .freeze(&names(&["slow"]), &[])
            .await;
        let why = &failures[0].1;
        assert!(
            why.contains("it took longer than 1 s, and was killed: "),
            "{why}"
        );
        let pid: i32 = why
            .rsplit(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a process");
        let pid = Pid::from_raw(pid).expect("a process");
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(frozen.thaw().await, []);
    }

    #[tokio::test]
    async fn a_program_that_others_may_write_is_not_run() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("freeze");
        std::fs::write(&program, "#!/bin/sh\n").expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).expect("set");
        let open = Hook {
            before: vec![program.display().to_string()],
            ..Hook::default()
        };
        let (_frozen, failures) = hooks(&[("open", &open)])
            .freeze(&names(&["open"]), &[])
            .await;
        assert!(
            failures[0]
                .1
                .ends_with("others than its owner may write it"),
            "{failures:?}"
        );
    }
}
