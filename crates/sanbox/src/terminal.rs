//! Passwords that are typed: the terminal does not show them.

use manage::terminal::SilentTerminal;

/// A terminal that does not show what is typed, until this is dropped.
pub(crate) struct HiddenInput {
    _silent: SilentTerminal,
}

impl HiddenInput {
    /// Asks for a password at the terminal, if standard input is one; the command reads the answer.
    pub(crate) fn ask(arguments: &[String]) -> Option<Self> {
        if !manage::control::asks_password(arguments) {
            return None;
        }
        let silent = SilentTerminal::begin()?;
        eprint!("Password: ");
        Some(Self { _silent: silent })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        eprintln!();
    }
}
