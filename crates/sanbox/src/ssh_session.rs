//! `sanbox ssh-session [USER]`: what sshd runs for a key of a user of the appliance, whatever the other host asks for.
//!
//! The line that was asked for is taken apart ([`manage::ssh_command`]) and given to no shell. Each command of it is this program again, which
//! asks the daemon; the daemon grants what the user may do. Without a daemon nothing is done.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use manage::control::ON_BEHALF;
use manage::ssh_command::{Condition, Destination, SshAction, SshStep, parse};

/// The variable by which sshd tells what was asked for (sshd_config(5), ForceCommand).
const ASKED: &str = "SSH_ORIGINAL_COMMAND";
/// Exit code of what is refused: not ssh's own 255.
const REFUSED: u8 = 126;

/// Runs what the other host asked for; `user` is the one whose key it showed, where the account does not say that.
pub(crate) fn main(state: &Path, user: Option<&str>) -> ExitCode {
    let asked = std::env::var(ASKED).unwrap_or_default();
    let steps = match parse(&asked) {
        Ok(steps) => steps,
        Err(why) => {
            eprintln!("sanbox: {why}");
            return ExitCode::from(REFUSED);
        }
    };
    let mut code = 0;
    for step in steps {
        let is_wanted = match step.condition {
            Condition::Always => true,
            Condition::IfDone => code == 0,
            Condition::IfFailed => code != 0,
        };
        if !is_wanted {
            continue;
        }
        match &step.action {
            SshAction::Exit(given) => return ExitCode::from(*given),
            SshAction::Fail(given) => code = *given,
            SshAction::Say(text) => code = say(text, step.output),
            SshAction::Run { tool, arguments } => code = run(state, user, tool, arguments, &step),
        }
    }
    ExitCode::from(code)
}

fn say(text: &str, to: Destination) -> u8 {
    if to == Destination::Dropped {
        return 0;
    }
    let mut out = std::io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    u8::from(written.is_err())
}

fn run(state: &Path, user: Option<&str>, tool: &str, arguments: &[String], step: &SshStep) -> u8 {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("sanbox: {error}");
            return 1;
        }
    };
    let mut command = Command::new(own);
    command
        .arg0(tool)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SANBOX_STATE", state)
        // Empty: the user of the machine; the daemon alone does it all the same.
        .env(ON_BEHALF, user.unwrap_or_default());
    match step.output {
        Destination::Dropped => drop(command.stdout(Stdio::null())),
        Destination::Kept | Destination::WithOutput => {}
    }
    match step.messages {
        Destination::Kept => {}
        Destination::Dropped => drop(command.stderr(Stdio::null())),
        Destination::WithOutput => match duplicated(step.output) {
            Ok(output) => drop(command.stderr(output)),
            Err(error) => eprintln!("sanbox: {error}"),
        },
    }
    match command.status() {
        Ok(status) => status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
        Err(error) => {
            eprintln!("sanbox: {error}");
            1
        }
    }
}

/// Where output goes, once more.
fn duplicated(output: Destination) -> std::io::Result<Stdio> {
    use std::os::fd::AsFd as _;
    match output {
        Destination::Dropped => Ok(Stdio::null()),
        _ => Ok(std::io::stdout().as_fd().try_clone_to_owned()?.into()),
    }
}
