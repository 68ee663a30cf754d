//! `sanbox-ask`: `zpool` and `zfs` for where a daemon runs, through links of these names.
//!
//! It hands the command to the daemon and knows nothing else, so that it starts in a fraction of the time the program itself takes
//! (whose 30,000 relocations alone take longer than a snapshot's command may). What is not for a daemon goes to the program `sanbox`
//! that lies beside it, which then takes this process's place.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use manage::state::StateDirectory;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let own = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let tool = own.to_string_lossy();
    let tool = tool.rsplit('/').next().unwrap_or_default();
    match asked(tool, &words) {
        Some(Ok(code)) => return ExitCode::from(code),
        Some(Err(message)) => {
            eprintln!("sanbox: {message}");
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let program = std::env::current_exe()
        .map(|own| own.with_file_name("sanbox"))
        .unwrap_or_else(|_| PathBuf::from("sanbox"));
    // Returns only when it fails.
    let error = Command::new(&program).arg0(&own).args(&words).exec();
    eprintln!("sanbox: {}: {error}", program.display());
    ExitCode::FAILURE
}

/// Has the daemon do the work; `None` when none runs or the command is not for one.
fn asked(tool: &str, words: &[OsString]) -> Option<Result<u8, String>> {
    if !matches!(tool, "zpool" | "zfs") {
        return None;
    }
    let lossy = |word: &OsString| word.to_string_lossy().into_owned();
    let arguments: Vec<String> = words.iter().map(lossy).collect();
    // Help and versions are told without a daemon; the program knows them.
    let first = arguments.first()?;
    if first.starts_with('-')
        || matches!(first.as_str(), "help" | "version")
        || arguments.iter().any(|word| word == "--help")
    {
        return None;
    }
    let state = std::env::var_os("SANBOX_STATE").map_or_else(
        || StateDirectory::default_path(rustix::process::geteuid().is_root()),
        PathBuf::from,
    );
    let socket = StateDirectory::unopened(&state).socket();
    // A command that may have begun is not begun again.
    manage::control::run(&socket, tool, &arguments)
        .map_err(|error| format!("asking the daemon at {}: {error}", socket.display()))
        .transpose()
}
