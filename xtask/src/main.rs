//! The project's automation, in the project's language. `cargo xtask` lists the commands.

#![forbid(unsafe_code)]

mod tidy;

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy    check the repository's own rules: layers, banned names, headers, file sizes, documents
";

fn main() -> Result<()> {
    let command = std::env::args().nth(1);
    match command.as_deref() {
        Some("tidy") => tidy::run(&root()?),
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
