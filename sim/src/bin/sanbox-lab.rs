//! The crash lab's program, which `sanbox lab` becomes.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    sim::lab::command::main(&words)
}
