//! Passwords that are typed: the terminal does not show them.

use std::io::IsTerminal as _;
use std::process::{Command, Stdio};

/// A terminal that does not show what is typed, until this is dropped.
pub(crate) struct HiddenInput;

impl HiddenInput {
    /// Asks for a password at the terminal, if standard input is one; the command reads the answer.
    pub(crate) fn ask(arguments: &[String]) -> Option<Self> {
        if !manage::control::asks_password(arguments) || !std::io::stdin().is_terminal() {
            return None;
        }
        stty("-echo");
        eprint!("Password: ");
        Some(Self)
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        stty("echo");
        eprintln!();
    }
}

/// Changes a setting of the terminal. Without the command what is typed is shown.
fn stty(setting: &str) {
    let _ = Command::new("stty")
        .arg(setting)
        .stdin(Stdio::inherit())
        .stderr(Stdio::null())
        .status();
}
