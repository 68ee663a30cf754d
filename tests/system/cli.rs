//! Command transcripts: `tests/cli/*.txt` hold command lines and exactly what they print. Each
//! transcript runs twice, once with every command in a process of its own and once with a daemon
//! doing the work, and must read the same.
//!
//! A line that begins with `$ ` is run by a shell, in an empty directory that output calls `DIR`;
//! `zpool`, `zfs` and `sanbox` are the program. What follows is standard output, then standard error
//! (lines marked `! `), then the exit code unless it is 0 (`[1]`). `<*>` stands for any text within
//! a line. Lines that begin with `#` are remarks. `SANBOX_BLESS=1` writes what was printed into the
//! files, for review.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ceiling::Ceiling;

/// The program under test, built beside this test.
pub(crate) fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("SANBOX") {
        return path.into();
    }
    let own = std::env::current_exe().expect("a test knows its own path");
    let directory = own
        .parent()
        .and_then(Path::parent)
        .expect("target/PROFILE/deps/test");
    let program = directory.join("sanbox");
    assert!(
        program.exists(),
        "{} is not built: cargo build -p sanbox",
        program.display()
    );
    program
}

/// A state directory, links named like the tools, and a place for disks.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    daemon: Option<Child>,
    /// What the daemon may take, where that is looked at.
    ceiling: Option<Ceiling>,
    /// The identifier of the host that it stands for; `None`: that of the machine.
    hostid: Option<&'static str>,
    /// Further environment of the program.
    environment: Vec<(&'static str, &'static str)>,
}

/// How long a loaded machine may take for what a test waits for.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Looks again and again until `look` finds what it looks for, and returns that. The test fails with what was seen last instead when that
/// takes too long.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(began.elapsed() < WAIT_MAX, "{what}: {seen}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        // Always as long, so that tables with paths in them come out alike everywhere.
        let directory = tempfile::Builder::new()
            .prefix("sanbox-")
            .tempdir_in("/tmp")
            .expect("a temporary directory");
        let place = Self {
            directory,
            daemon: None,
            ceiling: None,
            hostid: None,
            environment: Vec::new(),
        };
        for sub in ["bin", "work"] {
            fs::create_dir(place.path(sub)).expect("an empty directory");
        }
        // As the guide has them installed.
        let ask = program().with_file_name("sanbox-ask");
        let short = if ask.exists() { ask } else { program() };
        let long = program();
        let tools = [("zpool", &short), ("zfs", &short), ("sanbox", &long)];
        for (tool, target) in tools.into_iter().chain([("zinject", &long)]) {
            std::os::unix::fs::symlink(target, place.path("bin").join(tool)).expect("a link");
        }
        place
    }

    /// A place on another host.
    pub(crate) fn on_host(hostid: &'static str) -> Self {
        let mut place = Self::new();
        place.hostid = Some(hostid);
        place
    }

    /// Sets a variable of the program's environment.
    pub(crate) fn set(&mut self, name: &'static str, value: &'static str) {
        self.environment.push((name, value));
    }

    /// Forgets all variables that were set.
    pub(crate) fn unset_all(&mut self) {
        self.environment.clear();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where commands run.
    pub(crate) fn work(&self) -> String {
        self.path("work").to_string_lossy().into_owned()
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        self.at_home(Command::new(program))
    }

    /// Gives a command this place's directory and environment.
    fn at_home(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.path("work"))
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("SANBOX_STATE", self.path("state"))
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null());
        if let Some(hostid) = self.hostid {
            command.env("ZFS_HOSTID", hostid);
        }
        command
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn serve(&mut self, flags: &[&str]) {
        let log = self.path("log");
        let file = fs::File::create(&log).expect("a log");
        let program = self.path("bin/sanbox").to_string_lossy().into_owned();
        let ceiling = Ceiling::asked().filter(|_| !flags.contains(&"--memory"));
        let mut command = self.at_home(match &ceiling {
            Some(ceiling) => ceiling.serve(&program),
            None => {
                let mut command = Command::new(&program);
                command.arg("serve");
                command
            }
        });
        self.ceiling = ceiling;
        command.args(flags).stdout(Stdio::null()).stderr(file);
        self.daemon = Some(command.spawn().expect("the daemon starts"));
        // As text, or as JSON.
        let ready = ["sanbox: ready", "\"message\":\"ready\""];
        wait_for("the daemon is ready", || {
            let log = self.log();
            let is_ready = ready.iter().any(|line| log.contains(line));
            is_ready.then_some(()).ok_or(log)
        });
    }

    /// The daemon's process.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a running daemon").id()
    }

    /// What the daemon said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Hands the daemon over to a test that ends it in its own way.
    pub(crate) fn take_daemon(&mut self) -> Option<Child> {
        self.daemon.take()
    }

    /// Kills the daemon as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let verdict = self.judge(daemon.id());
            daemon.kill().expect("a running daemon");
            daemon.wait().expect("its end");
            self.ceiling = None;
            if !std::thread::panicking() {
                assert_eq!(verdict, Ok(()));
            }
        }
    }

    fn judge(&self, daemon: u32) -> Result<(), String> {
        self.ceiling
            .as_ref()
            .map_or(Ok(()), |ceiling| ceiling.judge(daemon))
    }

    /// Ends the daemon as a service manager would; it must end well.
    pub(crate) fn stop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let verdict = self.judge(daemon.id());
        let told = Command::new("kill")
            .arg(daemon.id().to_string())
            .status()
            .expect("kill runs");
        assert!(told.success());
        let status = daemon.wait().expect("its end");
        assert!(
            status.success(),
            "the daemon ended with {status}: {}",
            self.log()
        );
        self.ceiling = None;
        assert_eq!(verdict, Ok(()));
    }

    /// Runs a shell line; returns the first line of what [`run`](Self::run) does.
    pub(crate) fn first_line(&self, line: &str) -> String {
        let text = self.run(line);
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Runs a shell line; returns standard output, standard error and exit code as a transcript
    /// shows them.
    pub(crate) fn run(&self, line: &str) -> String {
        let output = self
            .command("sh")
            .args(["-c", line])
            .output()
            .expect("a shell");
        let work = self.work();
        let plain = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&work, "DIR");
        let mut text = plain(&output.stdout);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        for line in plain(&output.stderr).lines() {
            text.push_str(&format!("! {line}\n"));
        }
        match output.status.code() {
            Some(0) => {}
            Some(code) => text.push_str(&format!("[{code}]\n")),
            None => text.push_str("[killed]\n"),
        }
        text
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process that is ended when dropped.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One command of a transcript.
struct Step {
    remarks: String,
    command: String,
    expected: String,
}

fn read(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut remarks = String::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                remarks: std::mem::take(&mut remarks),
                command: command.to_owned(),
                expected: String::new(),
            });
        } else if line.starts_with('#') {
            remarks.push_str(line);
            remarks.push('\n');
        } else if let Some(step) = steps.last_mut() {
            step.expected.push_str(line);
            step.expected.push('\n');
        }
    }
    steps
}

/// Whether a line is as expected, `<*>` standing for anything.
fn fits(expected: &str, actual: &str) -> bool {
    let mut parts = expected.split("<*>");
    let Some(mut rest) = actual.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

fn same(expected: &str, actual: &str) -> bool {
    let (mut left, mut right) = (expected.lines(), actual.lines());
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(left), Some(right)) if fits(left, right) => {}
            _ => return false,
        }
    }
}

/// Runs a transcript; returns what differed, and the transcript as it should be written.
fn play(name: &str, steps: &[Step], place: &Place) -> (Vec<String>, String) {
    let mut differences = Vec::new();
    let mut written = String::new();
    for step in steps {
        let actual = place.run(&step.command);
        written.push_str(&step.remarks);
        written.push_str(&format!("$ {}\n", step.command));
        if same(&step.expected, &actual) {
            written.push_str(&step.expected);
        } else {
            written.push_str(&actual);
            differences.push(format!(
                "{name}: $ {}\n--- expected\n{}--- printed\n{actual}",
                step.command, step.expected
            ));
        }
    }
    (differences, written)
}

fn check(name: &str) {
    let file = tests::root().join("tests/cli").join(format!("{name}.txt"));
    let text = fs::read_to_string(&file).expect("a transcript");
    let steps = read(&text);
    assert!(!steps.is_empty(), "{name} has commands");
    let place = Place::new();
    let (differences, written) = play(name, &steps, &place);
    if std::env::var_os("SANBOX_BLESS").is_some() {
        fs::write(&file, written).expect("the transcript is written");
        return;
    }
    assert!(
        differences.is_empty(),
        "without a daemon\n{}",
        differences.join("\n")
    );
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let (differences, _) = play(name, &steps, &place);
    assert!(
        differences.is_empty(),
        "with a daemon\n{}\n{}",
        differences.join("\n"),
        place.log()
    );
    place.stop();
}

macro_rules! transcripts {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn no_transcript_is_forgotten() {
            let known = [$(stringify!($name)),*];
            for entry in fs::read_dir(tests::root().join("tests/cli")).expect("a directory") {
                let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
                let stem = name.strip_suffix(".txt").unwrap_or(&name);
                assert!(known.contains(&stem), "{name} is run by no test");
            }
        }
    };
}

transcripts! {
    usage pools removal draid checkpoint events expansion freespace growth spares reshape rebuild datasets properties files
    import snapshots volumes scrub upgrade damage history programs zinject
}

/// The short way to the daemon says, exits and fails as the long one, and is not taken twice.
#[test]
fn the_short_way_is_the_same() {
    let ask = program().with_file_name("sanbox-ask");
    assert!(ask.exists(), "{} is not built", ask.display());
    let mut place = Place::new();
    let long = |line: &str| {
        format!(
            "mkdir -p long && ln -sf ../../bin/sanbox long/zfs && ln -sf ../../bin/sanbox long/zpool && PATH=$PWD/long:$PATH && {line}"
        )
    };
    let lines = [
        "zpool list -o name,size",
        "zfs",
        "zfs version",
        "zfs help get | head -n 3",
        "zfs get --help | head -n 3",
        "zfs list nope",
        "zpool nonsense 2>&1 | head -n 2",
        "zfs get -H -o value name tank",
        "zpool list -H -o name",
        "cd / && zfs list -H -o name tank",
    ];
    let made = place.run("truncate -s 128M a && zpool create tank $PWD/a");
    assert_eq!(made, "");
    for serving in [false, true] {
        if serving {
            place.serve(&["--nfs-port", "0"]);
        }
        for line in lines {
            assert_eq!(place.run(line), place.run(&long(line)), "{line}");
        }
    }
    // Whoever reads has gone.
    let said = place.run("zfs get all tank | head -n 1 >one; wc -l <one");
    assert_eq!(said.trim(), "1");
    place.stop();
}

#[test]
fn wildcards() {
    for (expected, actual, verdict) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a<*>", "abc", true),
        ("<*>c", "abc", true),
        ("a<*>c<*>e", "abcde", true),
        ("a<*>x", "abc", false),
        ("<*>", "", true),
    ] {
        assert_eq!(fits(expected, actual), verdict, "{expected} {actual}");
    }
}
