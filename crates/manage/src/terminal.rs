//! A terminal on which a secret is typed: without echo, until the command ends.
//!
//! The interrupt key does not kill the process, which would leave the terminal without echo: it ends the line, and who reads the
//! line calls [`interrupted`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr,
};

/// What the interrupt key sends.
const INTERRUPT: u8 = 3;
/// Exit code of a process that was interrupted, as a shell reports it.
const INTERRUPTED: i32 = 130;

/// Standard input as it was before its echo was turned off.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard input without echo. It has its echo again when this is dropped.
#[derive(Debug)]
pub struct SilentTerminal(());

impl SilentTerminal {
    /// Turns the echo of standard input off; `None` when it is no terminal.
    #[must_use]
    pub fn begin() -> Option<Self> {
        let stdin = std::io::stdin();
        let usual = tcgetattr(&stdin).ok()?;
        let mut silent = usual.clone();
        silent.local_modes.remove(
            LocalModes::ECHO
                | LocalModes::ECHOE
                | LocalModes::ECHOK
                | LocalModes::ECHONL
                | LocalModes::ISIG,
        );
        silent.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(&stdin, OptionalActions::Flush, &silent).ok()?;
        *before() = Some(usual);
        Some(Self(()))
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(usual) = before().take() {
        // A terminal that went away needs nothing.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &usual);
    }
}

/// Ends the process if what was read from a silent terminal has the interrupt key in it.
pub fn end_if_interrupted(read: &[u8]) {
    if read.contains(&INTERRUPT) && before().is_some() {
        restore();
        std::process::exit(INTERRUPTED);
    }
}

/// Whether standard output is a terminal.
#[must_use]
pub fn shows_output() -> bool {
    isatty(std::io::stdout())
}

/// Whether standard input is a terminal.
#[must_use]
pub fn is_terminal() -> bool {
    isatty(std::io::stdin())
}
