//! `sanbox console`: a menu in text for a machine whose keyboard and screen are all there is. Each choice runs commands of this program, and shows
//! them as they would be typed.

use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use manage::commands;
use manage::config::Config;
use manage::state::StateDirectory;

const CHOICES: &str = "\n\
    1) State of the pools and alerts\n\
    2) Addresses of this machine and of the console in the browser\n\
    3) Give a user a new password\n\
    4) Shares\n\
    5) Share a file system by NFS\n\
    6) Shell\n\
    q) Quit\n";
/// Longest answer that is taken.
const ANSWER_BYTES_MAX: usize = 4096;

/// Shows the menu until its user quits, or input ends.
pub(crate) fn run(state: Option<&Path>) -> ExitCode {
    let menu = Menu {
        state: state.map(Path::to_owned),
    };
    println_all("sanbox: choose a number and press Enter.");
    loop {
        print_all(CHOICES);
        let Some(choice) = ask("> ") else {
            return ExitCode::SUCCESS;
        };
        match choice.as_str() {
            "1" => menu.status(),
            "2" => menu.addresses(),
            "3" => menu.password(),
            "4" => menu.shares(),
            "5" => menu.share(),
            "6" => menu.shell(),
            "q" | "Q" => return ExitCode::SUCCESS,
            "" => {}
            other => println_all(&format!("'{}' is no choice.", shown(other))),
        }
    }
}

struct Menu {
    state: Option<PathBuf>,
}

impl Menu {
    fn status(&self) {
        self.give("zpool", &["list"]);
        self.give("zpool", &["status", "-x"]);
        self.give("sanbox", &["alert", "list"]);
    }

    fn addresses(&self) {
        let directory = match &self.state {
            Some(state) => state.clone(),
            None => StateDirectory::default_path(rustix::process::geteuid().is_root()),
        };
        match Config::read(&directory.join("sanbox.toml")) {
            Ok(config) => println_all(&console_address(&config)),
            Err(error) => println_all(&error.to_string()),
        }
        let pem = std::fs::read(directory.join("console-cert.pem")).ok();
        if let Some(fingerprint) = pem
            .as_deref()
            .and_then(crate::serve::management::fingerprint_of)
        {
            println_all(&format!(
                "Its certificate has the SHA-256 fingerprint {fingerprint}"
            ));
        }
        // Without the program there is nothing to be told.
        let _ = Command::new("ip").args(["-brief", "address"]).status();
    }

    fn password(&self) {
        if let Some(name) = ask("User: ").filter(|name| !name.is_empty()) {
            self.give("sanbox", &["user", "passwd", "--", &name]);
        }
    }

    fn shares(&self) {
        let local = "filesystem,volume";
        let properties = "sharenfs,sharesmb";
        self.give(
            "zfs",
            &[
                "get",
                "-t",
                local,
                "-s",
                "local,received",
                "-o",
                "name,property,value",
                properties,
            ],
        );
        self.give("sanbox", &["target", "list"]);
    }

    fn share(&self) {
        self.give("zfs", &["list", "-t", "filesystem", "-o", "name,sharenfs"]);
        let Some(dataset) = ask("File system: ").filter(|name| !name.is_empty()) else {
            return;
        };
        let Some(hosts) = ask("Hosts and networks, with spaces between (empty: nobody): ") else {
            return;
        };
        self.give("zfs", &["set", &sharenfs(&hosts), &dataset]);
    }

    fn shell(&self) {
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        if let Err(error) = Command::new(&shell).status() {
            println_all(&format!("{}: {error}", shell.to_string_lossy()));
        }
    }

    /// Runs a command of this program at this terminal, with the line that does the same in a shell above it.
    fn give(&self, tool: &str, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        println_all(&format!("\n$ {}", shown(&commands::line(tool, &words))));
        let Ok(program) = std::env::current_exe() else {
            println_all("this program is not found any more");
            return;
        };
        let mut command = Command::new(program);
        if let Some(state) = &self.state {
            command.arg("--state").arg(state);
        }
        if tool != "sanbox" {
            command.arg(tool);
        }
        match command.args(&words).status() {
            Ok(status) if status.success() => {}
            Ok(status) => println_all(&format!("({status})")),
            Err(error) => println_all(&error.to_string()),
        }
    }
}

/// Where browsers find the console.
fn console_address(config: &Config) -> String {
    let port = config.console.port;
    if port == 0 {
        return "The console is off: port under [console] of sanbox.toml is 0.".to_owned();
    }
    match config.listen.first() {
        None => format!(
            "The console is at https://localhost:{port}/ for this machine alone; listen in sanbox.toml opens it to others."
        ),
        Some(address) if address.is_unspecified() => {
            format!("The console is at https://ADDRESS:{port}/ with each of these addresses:")
        }
        Some(address) => format!(
            "The console is at https://{}/",
            std::net::SocketAddr::new(*address, port)
        ),
    }
}

/// The setting that shares with hosts and networks, or with none.
fn sharenfs(hosts: &str) -> String {
    let host = |host: &str| match host.contains('/') {
        // sharenfs separates by colons, which addresses of IPv6 have, too.
        true if host.contains(':') => {
            let (address, bits) = host.split_once('/').unwrap_or((host, "128"));
            format!("@[{address}]/{bits}")
        }
        true => format!("@{host}"),
        false if host.contains(':') => format!("@[{host}]/128"),
        false => host.to_owned(),
    };
    let hosts: Vec<String> = hosts.split_whitespace().map(host).collect();
    match hosts.is_empty() {
        true => "sharenfs=off".to_owned(),
        false => format!("sharenfs=rw={}", hosts.join(":")),
    }
}

/// Asks a question; `None` at the end of input.
fn ask(question: &str) -> Option<String> {
    print_all(question);
    let mut line = Vec::new();
    let mut input = io::stdin().lock();
    let mut limited = io::Read::take(&mut input, ANSWER_BYTES_MAX as u64);
    let read = limited.read_until(b'\n', &mut line).ok()?;
    (read > 0).then(|| String::from_utf8_lossy(&line).trim().to_owned())
}

/// A text of which the terminal shows every character, and obeys none.
fn shown(text: &str) -> String {
    text.chars()
        .map(|character| match character.is_control() {
            true => character.escape_default().to_string(),
            false => character.to_string(),
        })
        .collect()
}

fn print_all(text: &str) {
    let mut out = io::stdout().lock();
    // A terminal that went away ends the menu at its next question.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn println_all(text: &str) {
    print_all(&format!("{text}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_settings_and_nothing_that_a_terminal_obeys() {
        for (hosts, setting) in [
            ("", "sharenfs=off"),
            ("esx1 10.0.0.0/24", "sharenfs=rw=esx1:@10.0.0.0/24"),
            (
                "fd00::/16 fd00::5",
                "sharenfs=rw=@[fd00::]/16:@[fd00::5]/128",
            ),
        ] {
            assert_eq!(sharenfs(hosts), setting);
        }
        assert_eq!(shown("a\x1b[2J\u{e9}"), "a\\u{1b}[2J\u{e9}");
        let mut config = Config::default();
        assert!(console_address(&config).contains("localhost:8443"));
        config.console.port = 0;
        assert!(console_address(&config).contains("off"));
    }
}
