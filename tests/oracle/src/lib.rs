//! Judges we did not write: `zdb`, OpenZFS's own code in userland (`refpool`), and the pools that OpenZFS made ([`golden`]).
//!
//! Nothing here knows the engine. A test whose judge is not installed says so ([`skip`]) and, when `SANBOX_REQUIRE_ORACLES` is set
//! (as in CI), fails instead of passing quietly.

#![forbid(unsafe_code)]

pub mod golden;

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the repository's root.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("tests/oracle has two parents").to_path_buf()
}

/// Says aloud that `what` is not tested here, and why.
///
/// # Panics
/// When `SANBOX_REQUIRE_ORACLES` is set: there, everything must be installed.
pub fn skip(what: &str, why: &str) {
    assert!(
        std::env::var_os("SANBOX_REQUIRE_ORACLES").is_none(),
        "{what}: {why}, and SANBOX_REQUIRE_ORACLES is set"
    );
    eprintln!("SKIPPED {what}: {why}");
}

/// Returns whether `zdb` is installed (`tests/oracles/install`); where it is not, the caller's place is skipped aloud.
///
/// # Panics
/// As [`skip`].
#[must_use]
#[track_caller]
pub fn has_zdb() -> bool {
    let found = Command::new("zdb").arg("-h").output().is_ok();
    if !found {
        skip_caller("zdb is not installed");
    }
    found
}

#[track_caller]
fn skip_caller(why: &str) {
    let caller = std::panic::Location::caller();
    skip(&format!("{}:{}", caller.file(), caller.line()), why);
}

/// Returns the command `zdb`, which ends as soon as it has its verdict (`tests/probes/zdb_leaves.c`) where a C compiler is there.
#[must_use]
pub fn zdb() -> Command {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let preloaded = BUILT.get_or_init(|| compile("zdb_leaves", &["-shared", "-fPIC"], &[]));
    let mut command = Command::new("zdb");
    if let Some(preloaded) = preloaded {
        command.env("LD_PRELOAD", preloaded);
    }
    command
}

/// Asks `zdb` about an exported or crashed pool whose images lie in `directory`: every checksum, every reference
/// count, all space accounted for (`-bcc`), then every object of every dataset (`-dddd`).
///
/// # Errors
/// What `zdb` complained about.
pub fn zdb_clean(directory: &Path, pool: &str) -> Result<()> {
    zdb_clean_but(directory, pool, &|_| false).map(drop)
}

/// As [`zdb_clean`], but for objects of the pool's own that `zdb` calls leaked and `known` recognises by the line: `zdb` does not
/// know who refers to some kinds. Returns everything that was said of objects.
///
/// # Errors
/// What `zdb` complained about.
pub fn zdb_clean_but(directory: &Path, pool: &str, known: &dyn Fn(&str) -> bool) -> Result<String> {
    // Both at once: half of what zdb takes for a small pool is its start and its end.
    let mut runs = vec!["-bccdddd"];
    let mut said = String::new();
    while let Some(flags) = runs.pop() {
        let output = zdb()
            .args(["-e", "-p"])
            .arg(directory)
            .args([flags, pool])
            .output()
            .context("run zdb")?;
        let (out, err) = text(&output);
        let leaked = |line: &&str| line.starts_with("MOS object ") && line.ends_with(" leaked");
        let mut lines = out.lines().filter(leaked).peekable();
        let excused = lines.peek().is_some() && lines.all(known);
        ensure!(
            output.status.success() || (excused && output.status.code() == Some(2)),
            "zdb {flags} {pool}: {}\n{}\n{}",
            output.status,
            tail(&out),
            tail(&err)
        );
        for bad in [
            "leaked space",
            "block traversal size",
            "Error counts",
            "refcount mismatch",
        ] {
            ensure!(
                !out.contains(bad) && !err.contains(bad),
                "zdb {flags} {pool} says '{bad}':\n{}\n{}",
                tail(&out),
                tail(&err)
            );
        }
        if !output.status.success() {
            // After a complaint about objects zdb does not look at the blocks.
            runs.push("-bcc");
        } else {
            ensure!(
                out.contains("No leaks (block sum matches space maps exactly)"),
                "zdb {flags} {pool} did not account for all space:\n{}\n{}",
                tail(&out),
                tail(&err)
            );
        }
        said.push_str(&out);
    }
    Ok(said)
}

/// Lets OpenZFS's own code import a pool and do `operations` (see `tests/probes/refpool.c`); returns what it printed.
///
/// # Errors
/// When `refpool` is not there, or an operation fails.
pub fn refpool_does(pool: &str, images: &[PathBuf], operations: &[String]) -> Result<String> {
    Ok(run_refpool(pool, images, operations)?.0)
}

/// Runs `refpool` and returns what it printed on standard output and standard error.
fn run_refpool(pool: &str, images: &[PathBuf], operations: &[String]) -> Result<(String, String)> {
    let program = built_refpool().context("refpool is not built")?;
    let output = Command::new(program)
        .arg("ds")
        .arg(pool)
        .args(images)
        .arg("--")
        .args(operations)
        .output()
        .context("run refpool")?;
    let (out, err) = text(&output);
    ensure!(
        output.status.success(),
        "refpool on {pool}: {}\n{}\n{}",
        output.status,
        tail(&out),
        tail(&err)
    );
    Ok((out, err))
}

/// Returns how many gang blocks `zdb` counts in an exported pool whose images lie in `directory`.
///
/// # Errors
/// When `zdb` does not say.
pub fn zdb_gangs(directory: &Path, pool: &str) -> Result<u64> {
    let output = zdb()
        .args(["-e", "-p"])
        .arg(directory)
        .args(["-b", pool])
        .output()
        .context("run zdb")?;
    let (out, _) = text(&output);
    let line = out.lines().find(|line| line.contains("ganged count:"));
    let count = line.and_then(|line| line.split_whitespace().last());
    count
        .and_then(|count| count.parse().ok())
        .context("zdb counts no gangs")
}

/// Returns the program that runs OpenZFS's own code on pools in userland, built from `tests/probes/refpool.c`, or
/// `None` where its libraries or a C compiler are missing: the caller's place is skipped aloud then.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn refpool() -> Option<&'static Path> {
    let built = built_refpool();
    if built.is_none() {
        skip_caller("refpool is not built");
    }
    built
}

fn built_refpool() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            compile(
                "refpool",
                &[],
                &["-l:libzpool.so.6", "-l:libnvpair.so.3", "-l:libz.so.1"],
            )
        })
        .as_deref()
}

/// Returns what OpenZFS's own code unpacks from a resume token.
///
/// # Errors
/// It does not take it for one.
pub fn refpool_token(token: &str) -> Result<String> {
    let program = built_refpool().context("refpool is not built")?;
    let output = Command::new(program)
        .args(["token", token])
        .output()
        .context("run refpool")?;
    anyhow::ensure!(
        output.status.success(),
        "refpool refuses the token {token}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compiles a program of `tests/probes`; `None` where that cannot be done.
fn compile(name: &str, flags: &[&str], libraries: &[&str]) -> Option<PathBuf> {
    // Several test binaries may build it at a time: each for itself, and it appears as a whole.
    let folder = root().join("target");
    std::fs::create_dir_all(&folder).ok()?;
    let target = folder.join(name);
    let own = folder.join(format!("{name}.{}", std::process::id()));
    let output = Command::new("cc")
        .args(["-O1", "-w"])
        .args(flags)
        .arg("-o")
        .arg(&own)
        .arg(root().join(format!("tests/probes/{name}.c")))
        .args(libraries)
        .output()
        .ok()?;
    output.status.success().then_some(())?;
    std::fs::rename(own, &target).ok()?;
    Some(target)
}

/// Lets OpenZFS's own code import the pool read-write, sync, scrub it and export it.
///
/// # Errors
/// When `refpool` is not there, does not import the pool, or the scrub finds an error.
pub fn refpool_scrub(pool: &str, images: &[PathBuf]) -> Result<()> {
    let (out, err) = run_refpool(pool, images, &[format!("scrub:{pool}")])?;
    ensure!(
        out.contains("0 errors") || err.contains("0 errors"),
        "refpool scrubbed {pool} and did not say '0 errors':\n{}\n{}",
        tail(&out),
        tail(&err)
    );
    Ok(())
}

/// Compares the accounts of every dataset and directory of an exported pool with sums over its blocks, made by an
/// independent reader (`tests/probes/zprobe.py`). `images` are top-level vdevs of one disk each. Says so when Python is
/// not there.
///
/// # Errors
/// Where a recorded number differs from its sum.
pub fn accounts_agree(images: &[PathBuf]) -> Result<()> {
    let output = Command::new("python3")
        .arg(root().join("tests/probes/zprobe.py"))
        .arg("acct")
        .args(images.iter().map(|image| format!("0:{}", image.display())))
        .output();
    let Ok(output) = output else {
        skip("accounts by an independent reader", "python3 is not there");
        return Ok(());
    };
    let (out, err) = text(&output);
    let wrong: Vec<&str> = out.lines().filter(|line| !line.ends_with(" ok")).collect();
    ensure!(
        output.status.success() && wrong.is_empty() && !out.is_empty(),
        "zprobe.py acct: {}\n{}\n{}",
        output.status,
        wrong.join("\n"),
        tail(&err)
    );
    Ok(())
}

fn text(output: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The last lines of a long output: where the verdict is.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
