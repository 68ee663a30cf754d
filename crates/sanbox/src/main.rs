//! The program: `sanbox`, and through links `zpool`, `zfs`, `zstream`, `zinject`, `mount.zfs`, `stmfadm`, `sbdadm` and `itadm`.
//!
//! A command goes to the daemon of its state directory when one runs; otherwise this process takes
//! the directory's lock and does the same work itself. Either way the same functions run. The ends of a pipe
//! (`zfs send | zfs receive`) need the pools at one time: a process started for them opens the pools, and ends with them.

#![forbid(unsafe_code)]

mod acme;
mod appliance;
mod certified;
mod cli;
mod follow;
mod logging;
mod memory;
mod menu;
mod names;
mod otel;
mod paths;
mod peers;
mod redacted;
mod replication;
mod restore_tests;
mod serve;
mod ssh_session;
mod terminal;
mod tuning;
mod undelegated;
mod undo;
mod web_client;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use engine::Engine;
use manage::state::{StateDirectory, StateLock};
use tokio::signal::unix::{SignalKind, signal};

use appliance::Appliance;
use cli::input::Input;
use cli::out::Out;
use cli::{Caller, Session};

/// How long to wait for another process that has the lock and no socket (a command at work).
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let own = words.next().unwrap_or_default();
    let own = own.rsplit('/').next().unwrap_or_default().to_owned();
    let arguments: Vec<String> = words.collect();
    match arguments.as_slice() {
        [word, process] if word == serve::fuse::guard::COMMAND => {
            return serve::fuse::guard::main(process);
        }
        [word, directory, rest @ ..] if word == serve::smb::COMMAND => {
            return serve::smb::main(directory, !rest.is_empty());
        }
        _ => {}
    }
    // It needs neither a daemon nor a state directory.
    if own == "zstream" {
        return cli::zstream::main(&arguments);
    }
    let invocation = match invocation(own, arguments) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    if let Some(text) = cli::help::asked_for(&invocation.tool, &invocation.arguments) {
        cli_print(&text);
        return ExitCode::SUCCESS;
    }
    if invocation.tool == "sanbox"
        && let Some((command, rest)) = invocation.arguments.split_first()
    {
        match command.as_str() {
            "lab" => return become_lab(rest),
            "zstream" => return cli::zstream::main(rest),
            "console" if rest.is_empty() => return menu::run(invocation.state.as_deref()),
            "ssh-session" if rest.len() <= 1 => {
                let user = rest.first().map(String::as_str);
                return ssh_session::main(&invocation.state_path(), user);
            }
            _ => {}
        }
    }
    let hidden = match invocation.tool.as_str() {
        "sanbox" => terminal::HiddenInput::ask(&invocation.arguments),
        _ => None,
    };
    if let Some(outcome) = invocation.ask_daemon() {
        drop(hidden);
        return exit_of(outcome);
    }
    // What follows would be done with all rights of this process.
    if std::env::var_os(manage::control::ON_BEHALF).is_some() {
        eprintln!("sanbox: no daemon runs that could grant this");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("sanbox: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(invocation.run());
    drop(hidden);
    let code = exit_of(ended);
    // Shutting it down would wait for calls that may never end; the process's end does not.
    std::mem::forget(runtime);
    code
}

/// What is to be run, by the name that the program was called by; or how the process ends at once.
fn invocation(own: String, arguments: Vec<String>) -> Result<Invocation, ExitCode> {
    let state = std::env::var_os("SANBOX_STATE").map(PathBuf::from);
    match own.as_str() {
        "zpool" | "zfs" => Ok(Invocation {
            tool: own,
            arguments,
            state,
        }),
        // COMSTAR's commands are among our own, and so are two of OpenZFS's.
        "stmfadm" | "sbdadm" | "itadm" | "zinject" | "mount.zfs" => Ok(Invocation {
            tool: "sanbox".to_owned(),
            arguments: std::iter::once(own).chain(arguments).collect(),
            state,
        }),
        _ => match Invocation::read(arguments, state) {
            Ok(Some(invocation)) => Ok(invocation),
            Ok(None) => Err(ExitCode::SUCCESS),
            Err(message) => {
                eprintln!("sanbox: {message}");
                eprint!("{}", cli::declare::help());
                Err(ExitCode::from(2))
            }
        },
    }
}

fn exit_of(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sanbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the program `sanbox-lab` beside this one; returns only when that fails. The simulator is not part of the appliance.
fn become_lab(arguments: &[String]) -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(own) => {
            let program = own.with_file_name("sanbox-lab");
            let error = std::process::Command::new(&program).args(arguments).exec();
            anyhow::Error::new(error).context(format!("cannot run {}", program.display()))
        }
        Err(error) => anyhow::Error::new(error).context("cannot find this program"),
    };
    eprintln!("sanbox lab: {error:#}; it is installed beside sanbox");
    ExitCode::FAILURE
}

/// What this process was started to do.
struct Invocation {
    /// `zpool`, `zfs`, or `sanbox` for a command of our own.
    tool: String,
    arguments: Vec<String>,
    state: Option<PathBuf>,
}

impl Invocation {
    /// Reads the options before the command; `None` when all was said.
    fn read(arguments: Vec<String>, mut state: Option<PathBuf>) -> Result<Option<Self>, String> {
        let mut words = arguments.into_iter();
        loop {
            let Some(word) = words.next() else {
                return Err("missing command".to_owned());
            };
            match word.as_str() {
                "--state" => match words.next() {
                    Some(path) => state = Some(PathBuf::from(path)),
                    None => return Err("--state needs a directory".to_owned()),
                },
                "-h" | "--help" | "help" => {
                    let asked: Vec<String> = std::iter::once(word).chain(words).collect();
                    let text = cli::help::asked_for("sanbox", &asked);
                    cli_print(&text.unwrap_or_else(cli::declare::help));
                    return Ok(None);
                }
                "-V" | "--version" | "version" => {
                    cli_print(&format!("sanbox {}\n", env!("CARGO_PKG_VERSION")));
                    return Ok(None);
                }
                "zpool" | "zfs" => {
                    return Ok(Some(Self {
                        tool: word,
                        arguments: words.collect(),
                        state,
                    }));
                }
                _ if word.starts_with("--state=") => {
                    state = Some(PathBuf::from(&word["--state=".len()..]));
                }
                _ if word.starts_with('-') => return Err(format!("unknown option '{word}'")),
                _ => {
                    let mut arguments = vec![word];
                    arguments.extend(words);
                    return Ok(Some(Self {
                        tool: "sanbox".to_owned(),
                        arguments,
                        state,
                    }));
                }
            }
        }
    }

    fn state_path(&self) -> PathBuf {
        self.state
            .clone()
            .unwrap_or_else(|| StateDirectory::default_path(rustix::process::geteuid().is_root()))
    }

    fn is_daemon(&self) -> bool {
        self.tool == "sanbox" && self.arguments.first().is_some_and(|name| name == "serve")
    }

    fn is_worker(&self) -> bool {
        self.tool == "sanbox" && self.arguments.first().is_some_and(|name| name == WORKER)
    }

    /// Has the daemon do the work if one runs, on this thread alone: threads and a runtime to come and go are most of what a
    /// short command takes. `None` when the work is for this process.
    fn ask_daemon(&self) -> Option<anyhow::Result<u8>> {
        if self.needs_nothing() || self.is_daemon() || self.is_worker() {
            return None;
        }
        // What goes wrong here goes wrong again where it is reported.
        let state = StateDirectory::open(&self.state_path()).ok()?;
        self.ask(&state).transpose()
    }

    async fn run(self) -> anyhow::Result<u8> {
        let path = self.state_path();
        let engine = Engine::new(engine::Threads::default());
        if self.needs_nothing() {
            let appliance = Appliance::detached(engine, &path);
            return Ok(self.session(appliance).run(&self).await);
        }
        let state = StateDirectory::open(&path)?;
        if self.is_worker() {
            logging::start_plain();
            work_for_commands(engine, state).await?;
            return Ok(0);
        }
        if self.is_daemon() {
            let config = serve::settings(&state, &self.arguments[1..])?;
            let levels = logging::Levels::default()
                .with(&config.log.level)
                .map_err(|why| anyhow::anyhow!("log level: {why}"))?;
            logging::start(levels, config.log.format);
            let lock = lock_for_daemon(&state).await?;
            let appliance = Appliance::new(engine, state, config)?;
            serve::run(appliance, lock).await?;
            return Ok(0);
        }
        logging::start_plain();
        if self.moves_a_stream() {
            return self.reach_worker(&state).await;
        }
        let lock = match self.reach(&state).await? {
            Route::Done(code) => return Ok(code),
            Route::Locked(lock) => lock,
        };
        let config = manage::config::Config::read(&state.config())?;
        let appliance = Appliance::new(engine, state, config)?;
        let holds_mount =
            self.tool == "sanbox" && self.arguments.first().is_some_and(|n| n == "mount");
        let control = if holds_mount || self.follows_events() {
            // It stays: other commands of the state directory come through it meanwhile.
            let listener = manage::control::listen(&appliance.state().socket())?;
            Some(tokio::spawn(serve::control::serve(
                Some(listener),
                appliance.clone(),
            )))
        } else {
            None
        };
        let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        let session = self.session(appliance.clone());
        let code = tokio::select! {
            code = session.run(&self) => code,
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        if let Some(control) = control {
            control.abort();
            let _ = std::fs::remove_file(appliance.state().socket());
        }
        let closed = appliance.close().await;
        drop(lock);
        match closed {
            Ok(()) => Ok(code),
            Err(error) => bail!("the last changes could not be written out: {error}"),
        }
    }

    /// Whether the command shows what others do, until it is ended.
    fn follows_events(&self) -> bool {
        let mut words = self.arguments.iter();
        self.tool == "zpool"
            && words.next().is_some_and(|name| name == "events")
            && words.any(|word| word.starts_with('-') && word.contains('f'))
    }

    /// Whether the command is one end of a pipe whose other end may be another command here: then a process of its own opens the pools,
    /// and both work there. It must be neither of them, for each waits for the end of the other.
    fn moves_a_stream(&self) -> bool {
        let first = self.arguments.first().map_or("", String::as_str);
        self.tool == "zfs" && matches!(first, "send" | "receive" | "recv")
    }

    /// Whether the command touches neither pools nor the state directory.
    fn needs_nothing(&self) -> bool {
        let first = self.arguments.first().map_or("", String::as_str);
        match self.tool.as_str() {
            "sanbox" => matches!(first, "completion" | "man"),
            _ => matches!(
                first,
                "" | "version" | "-V" | "--version" | "help" | "--help" | "-?"
            ),
        }
    }

    fn session(&self, appliance: Arc<Appliance>) -> PreparedCommand {
        let caller = Caller {
            directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            environment: manage::control::environment(),
            uid: rustix::process::getuid().as_raw(),
            terminal: manage::control::uses_terminal(&self.tool, &self.arguments),
        };
        let reads = manage::control::reads_input(&self.tool, &self.arguments);
        let opened = reads.then(|| manage::control::open_input(&self.tool, &self.arguments));
        // A file that cannot be opened was reported when a daemon was looked for.
        let on_demand = manage::control::reads_on_demand(&self.tool, &self.arguments);
        let input = opened.and_then(Result::ok);
        let input = input.map(|input| Input::read(input, on_demand));
        PreparedCommand(Session::new(
            appliance,
            Out::process(),
            caller,
            &self.tool,
            &self.arguments,
            input,
        ))
    }

    /// Has the daemon do the work, or takes the lock to do it here.
    async fn reach(&self, state: &StateDirectory) -> anyhow::Result<Route> {
        let began = Instant::now();
        loop {
            // Blocking is right: this process has nothing else to do yet.
            if let Some(code) = self.ask(state)? {
                return Ok(Route::Done(code));
            }
            if let Some(lock) = state.try_lock()? {
                return Ok(Route::Locked(lock));
            }
            if began.elapsed() > LOCK_TIMEOUT {
                bail!(in_use(state));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Has a process that works for commands do the work, and starts one when there is none. Never does the work here: the other end
    /// of the pipe would wait for the pools, and this one for the other end.
    async fn reach_worker(&self, state: &StateDirectory) -> anyhow::Result<u8> {
        let began = Instant::now();
        loop {
            if let Some(code) = self.ask(state)? {
                return Ok(code);
            }
            if began.elapsed() > LOCK_TIMEOUT {
                bail!(in_use(state));
            }
            start_worker(state)?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Has the daemon of `state` do the work; `None` when none runs.
    fn ask(&self, state: &StateDirectory) -> anyhow::Result<Option<u8>> {
        let socket = state.socket();
        manage::control::run(&socket, &self.tool, &self.arguments)
            .with_context(|| format!("asking the daemon at {}", socket.display()))
    }
}

/// Where a command runs.
enum Route {
    /// The daemon did the work; its exit code.
    Done(u8),
    /// The pools are ours to open.
    Locked(StateLock),
}

/// A command with its session, ready to run.
struct PreparedCommand(Session);

impl PreparedCommand {
    async fn run(self, invocation: &Invocation) -> u8 {
        cli::run(self.0, &invocation.tool, &invocation.arguments)
            .await
            .0
    }
}

/// The word for a process that works for commands, and ends when none is left.
const WORKER: &str = "work-for-commands";

/// Where such a process says what goes wrong, in the state directory.
const WORKER_LOG: &str = "worker.log";

/// Starts a process that opens the pools, unless another one has the lock, and waits until it answers or has ended. Fails with its
/// words.
fn start_worker(state: &StateDirectory) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let Some(lock) = state.try_lock()? else {
        return Ok(());
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let log = state.path().join(WORKER_LOG);
    // A file: a pipe would have no reader when this process has ended.
    let said =
        std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    drop(lock);
    let mut worker = std::process::Command::new(program)
        .arg("--state")
        .arg(state.path())
        .arg(WORKER)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(said)
        // An interrupt of the commands is told by their connections.
        .process_group(0)
        .spawn()
        .context("cannot start a process that opens the pools")?;
    // It answers, or has ended: with success when another process took the lock first, or it has served others.
    loop {
        if let Some(status) = worker.try_wait()? {
            if status.success() {
                return Ok(());
            }
            let words = std::fs::read_to_string(&log).unwrap_or_default();
            let words = words.trim();
            match words.strip_prefix("sanbox: ").unwrap_or(words) {
                "" => bail!("the process that opens the pools ended with {status}"),
                words => bail!(words.to_owned()),
            }
        }
        if state.socket().exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens the pools and works for commands until none is left.
async fn work_for_commands(engine: Engine, state: StateDirectory) -> anyhow::Result<()> {
    let Some(mut lock) = state.try_lock()? else {
        return Ok(());
    };
    lock.mark_worker();
    let config = manage::config::Config::read(&state.config())?;
    let appliance = Appliance::new(engine, state, config)?;
    let socket = appliance.state().socket();
    let listener = manage::control::listen(&socket)?;
    serve::control::serve_while_used(listener, socket, appliance.clone()).await;
    let closed = appliance.close().await;
    drop(lock);
    Ok(closed?)
}

fn cli_print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn in_use(state: &StateDirectory) -> String {
    let holder = state.lock_holder();
    let holder = holder.map_or_else(String::new, |pid| format!(" by process {pid}"));
    format!(
        "the state directory {} is in use{holder}",
        state.path().display()
    )
}

/// Takes the lock for a daemon: a command at work is waited for, and so is a process that works for commands; another daemon is not.
async fn lock_for_daemon(state: &StateDirectory) -> anyhow::Result<StateLock> {
    let began = Instant::now();
    loop {
        if let Some(lock) = state.try_lock()? {
            return Ok(lock);
        }
        let running = manage::control::connect(&state.socket())
            .await
            .ok()
            .flatten()
            .is_some();
        if (running && !state.is_held_by_worker()) || began.elapsed() > LOCK_TIMEOUT {
            bail!(in_use(state));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
