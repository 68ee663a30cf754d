//! Samba's processes: how they are started, told things, and ended.
//!
//! They run in namespaces of their own, for two reasons. Of mounts: the datasets are mounted in the state directory, which is
//! its owner's alone, while `smbd` reaches files as the user who logged in; only in its own namespace do they appear at a
//! directory that users may pass through, so that no other user of this machine gets another way to them. Of processes: `smbd`
//! starts others that leave its process group; all of them end with the first process of their namespace.
//!
//! That first process is this program again. It ends when its standard input does, so with the daemon however that ends.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use manage::samba::configuration::{CONFIGURATION, LOCKS, LOCKS_AT, LOG};
use manage::samba::domain;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::sync::oneshot;

use crate::{names, paths};

/// The word that makes the program the first process of Samba's namespace; the service's directory follows.
pub(crate) const COMMAND: &str = "samba-in";
/// Where `smbd` finds the datasets, in its own namespace.
pub(super) const SHARES: &str = "/run/sanbox";
/// Where they are mounted, in the service's directory.
pub(super) const MOUNTS: &str = "mounts";
/// The groups of the machine and those of the appliance, in the service's directory; `smbd` finds them where the machine's are.
const GROUPS: &str = "group";
/// Where that is.
const GROUPS_AT: &str = "/etc/group";
/// What follows the service's directory where `winbindd` runs beside `smbd`.
const WITH_WINBIND: &str = "winbind";
/// Where `winbindd` is asked, in the service's directory, and where those who ask look for it.
const WINBIND: &str = "winbindd";
const WINBIND_AT: &str = "/run/samba/winbindd";
/// What says where users and groups are looked up, in the service's directory, and where it is looked for.
const NAME_SERVICES: &str = "nsswitch.conf";
const NAME_SERVICES_AT: &str = "/etc/nsswitch.conf";
/// How long a domain controller may take to answer whether it is there.
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// How long `smbd` may take to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the daemon waits for that, and for the rest to go.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);
/// Bytes at the end of Samba's log that are looked at when it ended by itself.
const LOG_TAIL_BYTES: usize = 4096;

/// Samba, while it runs.
pub(super) struct Process {
    directory: PathBuf,
    pid: Pid,
    /// Closing it ends the processes.
    input: Option<ChildStdin>,
    /// Taken once they have ended.
    ended: Option<oneshot::Receiver<String>>,
}

impl Process {
    /// Starts `smbd` with the configuration in the service's directory, of a member of a domain with `winbindd`.
    ///
    /// # Errors
    /// The processes cannot be started.
    pub(super) async fn start(directory: &Path, is_member: bool) -> Result<Self, String> {
        let at = directory.to_owned();
        let spawn = move || -> std::io::Result<_> {
            // Our own program by the process, not by its path: it may have been replaced meanwhile.
            let own = format!("/proc/{}/exe", std::process::id());
            let said = std::fs::File::create(at.join("log/start.log"))?;
            Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "--kill-child=KILL"])
                .args(["--propagation", "slave", &own, COMMAND])
                .arg(&at)
                .args(is_member.then_some(WITH_WINBIND))
                .current_dir("/")
                // ^C at a terminal is not for it, and what Samba sends to its group not for the daemon.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(said.try_clone()?)
                .stderr(said)
                .spawn()
        };
        let mut child = paths::call(directory, spawn)
            .await?
            .map_err(|error| format!("unshare(1): {error}"))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("the process has no number")?;
        let input = child.stdin.take();
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("samba".to_owned())
            .spawn(move || {
                let how = match child.wait() {
                    Ok(status) => match (status.code(), status.signal()) {
                        (Some(code), _) => format!("ended with status {code}"),
                        (None, Some(signal)) => format!("was ended by signal {signal}"),
                        (None, None) => "ended".to_owned(),
                    },
                    Err(error) => error.to_string(),
                };
                let _ = tell.send(how);
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            directory: directory.to_owned(),
            pid,
            input,
            ended: Some(ended),
        })
    }

    /// Waits until the processes have ended; says how they did.
    pub(super) async fn ended(&mut self) -> String {
        let how = match &mut self.ended {
            Some(ended) => ended.await,
            None => return "ended".to_owned(),
        };
        self.ended = None;
        how.unwrap_or_else(|_| "ended".to_owned())
    }

    /// Ends the processes: open connections break.
    pub(super) async fn stop(mut self) {
        drop(self.input.take());
        if tokio::time::timeout(STOP_TIMEOUT, self.ended())
            .await
            .is_err()
        {
            // It has not been waited for, so the number is still its own.
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = tokio::time::timeout(STOP_TIMEOUT, self.ended()).await;
        }
    }

    /// What is needed to run Samba's programs beside it.
    pub(super) fn tools(&self) -> Tools {
        Tools {
            directory: self.directory.clone(),
            pid: self.pid,
        }
    }
}

/// Writes the groups that `smbd` has, unless they are as they were: in place, since a mount follows the file and not its name.
///
/// # Errors
/// Of writing, in words.
pub(super) async fn write_groups(directory: &Path, before: &mut String) -> Result<(), String> {
    let (path, known) = (directory.join(GROUPS), before.clone());
    let write = move || -> std::io::Result<Option<String>> {
        let list = names::groups();
        if list == known {
            return Ok(None);
        }
        std::fs::write(&path, &list)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        Ok(Some(list))
    };
    let written = paths::call(directory, write).await?;
    let written = written.map_err(|error| format!("{GROUPS}: {error}"))?;
    if let Some(list) = written {
        *before = list;
    }
    Ok(())
}

/// Runs Samba's programs in the namespaces of its processes: they tell each other apart by process numbers.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    directory: PathBuf,
    pid: Pid,
}

impl Tools {
    /// Has `smbd` do something, as of smbcontrol(1).
    pub(super) async fn control(&self, words: &[&str]) -> Result<(), String> {
        let mut arguments = vec!["smbd"];
        arguments.extend(words);
        self.run(self.words("smbcontrol", &arguments))
            .await
            .map(drop)
    }

    /// Returns what `smbstatus` prints as JSON.
    pub(super) async fn status(&self) -> Result<String, String> {
        self.run(self.words("smbstatus", &["--json"])).await
    }

    /// Asks whether a controller of the domain answers.
    pub(super) async fn ping_domain(&self) -> Result<(), String> {
        let asked = self.run(vec!["wbinfo".into(), "--ping-dc".into()]);
        match tokio::time::timeout(PING_TIMEOUT, asked).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err("no domain controller answers".to_owned()),
        }
    }

    fn words(&self, program: &str, arguments: &[&str]) -> Vec<OsString> {
        let configuration = self.directory.join(CONFIGURATION);
        let mut words: Vec<OsString> = vec![program.into(), "-s".into(), configuration.into()];
        words.extend(arguments.iter().map(OsString::from));
        words
    }

    /// Runs a program of Samba's, the first of these words.
    async fn run(&self, words: Vec<OsString>) -> Result<String, String> {
        let program = PathBuf::from(&words[0]);
        let name = program.display().to_string();
        let outer = self.pid.as_raw_nonzero();
        let run = move || -> Result<String, String> {
            let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
            let children = children.map_err(|_| "Samba does not run".to_owned())?;
            let first = children.split_whitespace().next();
            let first = first.ok_or("Samba does not run")?;
            let output = Command::new("nsenter")
                .args(["--target", first, "--mount", "--pid", "--"])
                .args(&words)
                .stdin(Stdio::null())
                .output()
                .map_err(|error| format!("nsenter(1): {error}"))?;
            if output.status.success() {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            } else {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(format!("{name}: {}", said.trim()))
            }
        };
        paths::call(&program, run).await?
    }
}

/// Returns what the smbd that is installed says of itself, asked by an option; `None` without one.
async fn smbd_says(option: &'static str) -> Option<String> {
    let ask = move || {
        Command::new("smbd")
            .arg(option)
            .stdin(Stdio::null())
            .output()
    };
    let output = paths::call(Path::new("smbd"), ask).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the version of the Samba that is installed; `None` without one.
pub(super) async fn version() -> Option<String> {
    let text = smbd_says("-V").await?;
    Some(text.trim().strip_prefix("Version ")?.to_owned())
}

/// Returns whether the Samba that is installed has a module of its VFS.
pub(super) async fn has_module(name: &str) -> bool {
    let text = smbd_says("-b").await.unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    let Some(directory) = lines.find_map(|line| line.strip_prefix("MODULESDIR: ")) else {
        return false;
    };
    let module = Path::new(directory).join(format!("vfs/{name}.so"));
    let looked_for = module.clone();
    let found = paths::call(&module, move || looked_for.exists()).await;
    found.unwrap_or(false)
}

/// Returns the last lines of what Samba said before it ended by itself.
pub(super) async fn last_words(directory: &Path) -> String {
    let files = [directory.join("log/start.log"), directory.join(LOG)];
    let read = move || {
        let mut lines: Vec<String> = Vec::new();
        for file in &files {
            let text = std::fs::read(file).unwrap_or_default();
            let tail = &text[text.len().saturating_sub(LOG_TAIL_BYTES)..];
            let text = String::from_utf8_lossy(tail).into_owned();
            // Lines that begin with a bracket say where in Samba's source the next one comes from.
            let said = text.lines().map(str::trim);
            lines.extend(
                said.filter(|line| !line.is_empty() && !line.starts_with('['))
                    .map(str::to_owned),
            );
        }
        let from = lines.len().saturating_sub(3);
        lines[from..].join("; ")
    };
    paths::call(directory, read).await.unwrap_or_default()
}

/// Runs the first process of Samba's namespaces until `smbd`, `winbindd` or the daemon has ended.
pub(crate) fn main(directory: &str, is_member: bool) -> ExitCode {
    match run(Path::new(directory), is_member) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn failed(what: &str, error: &std::io::Error) -> String {
    format!("{what}: {error}")
}

/// Starts a program of Samba's.
fn start(program: &str, flags: &[&str], directory: &Path) -> Result<Pid, String> {
    let child = Command::new(program)
        .args(flags)
        .arg("-s")
        .arg(directory.join(CONFIGURATION))
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| failed(program, &error))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| format!("{program} has no process number"))
}

/// Has the users and groups of the domain be found in this namespace, and starts `winbindd`, which knows them.
fn start_winbind(directory: &Path) -> Result<Pid, String> {
    let at = directory.join(WINBIND);
    std::fs::create_dir_all(&at).map_err(|error| failed(WINBIND, &error))?;
    // winbindd refuses a directory that others may write to, and those who ask have to reach it.
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&at, readable).map_err(|error| failed(WINBIND, &error))?;
    std::fs::create_dir_all(WINBIND_AT).map_err(|error| failed(WINBIND_AT, &error))?;
    rustix::mount::mount_bind(&at, WINBIND_AT)
        .map_err(|error| failed(WINBIND_AT, &error.into()))?;
    let machine = std::fs::read_to_string(NAME_SERVICES_AT);
    let machine = machine.map_err(|error| failed(NAME_SERVICES_AT, &error))?;
    let own = directory.join(NAME_SERVICES);
    std::fs::write(&own, domain::name_services(&machine))
        .map_err(|error| failed(NAME_SERVICES, &error))?;
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&own, readable).map_err(|error| failed(NAME_SERVICES, &error))?;
    rustix::mount::mount_bind(&own, NAME_SERVICES_AT)
        .map_err(|error| failed(NAME_SERVICES_AT, &error.into()))?;
    start(
        "winbindd",
        &["--foreground", "--no-process-group"],
        directory,
    )
}

fn run(directory: &Path, is_member: bool) -> Result<ExitCode, String> {
    // Outside of the namespace it lies in a directory that only root passes through.
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.join(LOCKS), readable)
        .map_err(|error| failed(LOCKS, &error))?;
    for (name, at) in [(MOUNTS, SHARES), (LOCKS, LOCKS_AT)] {
        std::fs::create_dir_all(at).map_err(|error| failed(at, &error))?;
        rustix::mount::mount_bind_recursive(directory.join(name), at)
            .map_err(|error| failed(at, &error.into()))?;
    }
    // A machine without this file has its groups elsewhere, and keeps them.
    if Path::new(GROUPS_AT).exists() {
        rustix::mount::mount_bind(directory.join(GROUPS), GROUPS_AT)
            .map_err(|error| failed(GROUPS_AT, &error.into()))?;
    }
    let winbind = match is_member {
        true => Some(start_winbind(directory)?),
        false => None,
    };
    let smbd = start("smbd", &["--foreground"], directory)?;
    std::thread::spawn(move || {
        let mut byte = [0];
        // Nothing comes: the other end is closed, by will or because the daemon is gone.
        let _ = std::io::stdin().lock().read(&mut byte);
        for process in [Some(smbd), winbind].into_iter().flatten() {
            let _ = kill_process(process, Signal::TERM);
        }
        std::thread::sleep(END_TIMEOUT);
        std::process::exit(0);
    });
    loop {
        // Processes whose parents ended are this one's to wait for.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == smbd => {
                let code = status.exit_status().unwrap_or(1);
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            // Users of the domain could not log in: both are started anew.
            Ok(Some((pid, _))) if Some(pid) == winbind => return Err("winbindd ended".to_owned()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("waiting for smbd", &error.into())),
        }
    }
}
