//! The project's automation, in the project's language. `cargo xtask` lists the commands.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command line tool")]

mod circles;
mod glossary;
mod ratchet;
mod test;
mod tidy;

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test    build every test once and run them, several binaries at a time (cargo xtask test --help)
  tidy    check the repository's own rules: layers, banned names, headers, file sizes, documents, and what may only get
          better (--lists: every long function, bare type name, wide line, and circle of files)
";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (Some(command.as_str()), rest),
        None => (None, &[][..]),
    };
    match command {
        Some("test") => test::run(&root()?, rest),
        Some("tidy") => tidy::run(&root()?, rest.iter().any(|word| word == "--lists")),
        Some("--help" | "-h" | "help") | None => {
            eprint!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("unknown command '{other}'\n{USAGE}"),
    }
}

/// The repository's root: the parent of this package's folder.
fn root() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .context("locate the repository root")
}
