//! The rules of the house as a test. Each rule says in its message what to do instead.
//!
//! What is checked: the layers (arrows go down), names banned in the engine, file headers, `unsafe`, file sizes
//! (ratchets, so that a large file can only shrink), circles of files inside a crate, ASCII sources, crates named in ARCHITECTURE.md, and paths or
//! names that belong to a machine rather than to the project.

use crate::circles::{CIRCLES_MAX, Circles};
use crate::glossary;
use crate::ratchet::Ratchet;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Edges between crates of one layer that are allowed: `(crate, may use)`. They run left to right in the layer picture.
const SAME_LAYER: &[(&str, &str)] = &[
    ("zio", "vdev"),
    ("arc", "vdev"),
    ("arc", "zio"),
    ("zil", "dmu"),
    ("dsl", "dmu"),
    ("dsl", "zil"),
];

/// Crates of layers 1 to 5: they see the world only through `runtime`.
const ENGINE_LAYER_MAX: i64 = 5;

/// Names an engine crate may not use, and what to use instead. Those of the standard library are in clippy.toml.
const ENGINE_BANS: &[(&str, &str)] = &[
    ("tokio::", "the runtime crate's tasks, timers and mailboxes"),
    ("getrandom", "Handle::random_u64"),
    ("serde::", "plain data; the outermost crates convert"),
];

/// What the lib.rs of an engine crate denies.
const ENGINE_LINTS: &str = "deny(clippy::disallowed_methods, clippy::disallowed_types)";

/// Files above this many lines need an entry in `LARGE`.
const LINES_MAX: usize = 1500;

/// Large files with the reason, and the size they may not grow beyond.
const LARGE: &[(&str, usize, &str)] = &[];

/// Fragments that belong to a machine or a service, never to the project. In pieces, so that this file has none of them.
const FOREIGN: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("deb.deb", "ian.org"),
    concat!("crates.", "io/api"),
    concat!("registry.", "npmjs"),
    concat!("pypi", ".org"),
];

struct Package {
    folder: PathBuf,
    name: String,
    layer: Option<i64>,
    dependencies: Vec<String>,
}

/// Checks every rule. With `lists` it prints every long function, bare type, wide line, and circle of files.
///
/// # Errors
/// All findings, one per line, when any rule is broken.
pub(crate) fn run(root: &Path, lists: bool) -> Result<()> {
    let mut findings = Vec::new();
    let packages = packages(root)?;
    layers(&packages, &mut findings);
    let architecture =
        fs::read_to_string(root.join("ARCHITECTURE.md")).context("read ARCHITECTURE.md")?;
    for package in packages.iter().filter(|p| p.layer.is_some()) {
        let folder = package
            .folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        if !architecture.contains(&format!("`{folder}`")) {
            findings.push(format!(
                "ARCHITECTURE.md: does not name the crate `{folder}`"
            ));
        }
    }
    let mut files = 0;
    let mut ratchet = Ratchet::default();
    let mut circles = Circles::default();
    let mut lower_case = String::new();
    for file in sources(root)? {
        files += 1;
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let shown = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .display()
            .to_string();
        source(&shown, &text, layer_of(&file, &packages), &mut findings);
        ratchet.add(&shown, &text, &mut findings);
        circles.add(&shown, &text);
        if shown.starts_with("crates/") {
            lower_case.push_str(&text.to_lowercase());
        }
    }
    if files == 0 {
        bail!("tidy found no source file: it looked in the wrong place");
    }
    let words = root.join("docs/glossary.md");
    let words = fs::read_to_string(words).context("read docs/glossary.md")?;
    glossary::check(&words, &lower_case, &mut findings);
    ratchet.judge(&mut findings);
    circles.judge(CIRCLES_MAX, &mut findings);
    if lists {
        println!("{}\n{}", ratchet.lists(), circles.lists());
    }
    if findings.is_empty() {
        eprintln!(
            "tidy: {files} source files, {} packages, no finding\ntidy: {}",
            packages.len(),
            ratchet.numbers()
        );
        return Ok(());
    }
    bail!("{}\ntidy: {} findings", findings.join("\n"), findings.len())
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let mut folders: Vec<PathBuf> = fs::read_dir(root.join("crates"))
        .context("list crates")?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<_>>()?;
    folders.extend(
        ["sim", "tests", "xtask", "lab"]
            .iter()
            .map(|f| root.join(f)),
    );
    folders.extend(["sim/world", "sim/checker", "tests/oracle"].map(|f| root.join(f)));
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        let manifest = folder.join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let text = fs::read_to_string(&manifest)
            .with_context(|| format!("read {}", manifest.display()))?;
        let table: toml::Table = text
            .parse()
            .with_context(|| format!("parse {}", manifest.display()))?;
        let package = table
            .get("package")
            .context("a manifest without [package]")?;
        found.push(Package {
            name: package
                .get("name")
                .and_then(|n| n.as_str())
                .context("a package without a name")?
                .to_owned(),
            layer: package
                .get("metadata")
                .and_then(|m| m.get("sanbox"))
                .and_then(|m| m.get("layer"))
                .and_then(toml::Value::as_integer),
            dependencies: table
                .get("dependencies")
                .and_then(|d| d.as_table())
                .map(|d| d.keys().cloned().collect())
                .unwrap_or_default(),
            folder,
        });
    }
    Ok(found)
}

/// A crate may use anything on a lower line, and on its own line only what `SAME_LAYER` lists.
fn layers(packages: &[Package], findings: &mut Vec<String>) {
    let layers: BTreeMap<&str, i64> = packages
        .iter()
        .filter_map(|p| Some((p.name.as_str(), p.layer?)))
        .collect();
    for package in packages {
        let folder = package.folder.file_name().unwrap_or_default();
        if folder != package.name.as_str() {
            findings.push(format!(
                "{}: package and folder have one name (the folder is {})",
                package.name,
                folder.to_string_lossy()
            ));
        }
        if package
            .folder
            .parent()
            .is_some_and(|p| p.ends_with("crates"))
            && package.layer.is_none()
        {
            findings.push(format!(
                "{}: no [package.metadata.sanbox] layer",
                package.name
            ));
        }
        let Some(layer) = package.layer else { continue };
        for dependency in &package.dependencies {
            let Some(&below) = layers.get(dependency.as_str()) else {
                continue;
            };
            let user = package.name.as_str();
            let same = SAME_LAYER.contains(&(user, dependency.as_str()));
            if below > layer || (below == layer && !same) {
                findings.push(format!(
                    "{user} (layer {layer}) depends on {dependency} (layer {below}): arrows go down"
                ));
            }
        }
    }
}

fn layer_of(file: &Path, packages: &[Package]) -> Option<i64> {
    packages
        .iter()
        .find(|p| file.starts_with(&p.folder))
        .and_then(|p| p.layer)
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = ["crates", "sim", "tests", "xtask", "lab", "fuzz"]
        .iter()
        .map(|f| root.join(f))
        .collect();
    while let Some(folder) = open.pop() {
        if !folder.is_dir() || folder.file_name().is_some_and(|n| n == "target") {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn source(shown: &str, text: &str, layer: Option<i64>, findings: &mut Vec<String>) {
    if !text.starts_with("//!") {
        findings.push(format!(
            "{shown}: no `//!` header (what it is, guarantees, does not know)"
        ));
    }
    let lines = text.lines().count();
    let allowed = LARGE
        .iter()
        .find(|(file, _, _)| *file == shown)
        .map_or(LINES_MAX, |l| l.1);
    if lines > allowed {
        findings.push(format!(
            "{shown}: {lines} lines (at most {allowed}): who owns the state?"
        ));
    }
    let in_crates = shown.starts_with("crates/");
    let is_test =
        shown.contains("/tests/") || shown.ends_with("/tests.rs") || shown.contains("/examples/");
    let is_root = shown.ends_with("src/lib.rs") || shown.ends_with("src/main.rs");
    let may_be_unsafe = ["crates/codec/", "crates/gss/", "crates/runtime/"]
        .iter()
        .any(|c| shown.starts_with(c));
    if is_root && in_crates && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
        findings.push(format!("{shown}: no #![forbid(unsafe_code)]"));
    }
    let is_engine_root =
        shown.ends_with("src/lib.rs") && layer.is_some_and(|l| l <= ENGINE_LAYER_MAX);
    if is_engine_root && in_crates && !text.contains(ENGINE_LINTS) {
        findings.push(format!(
            "{shown}: an engine crate without {ENGINE_LINTS} (clippy.toml)"
        ));
    }
    let is_host = shown.starts_with("crates/runtime/src/host");
    let is_engine = in_crates && layer.is_some_and(|l| l <= ENGINE_LAYER_MAX);
    let mut in_tests = is_test;
    for (number, line) in text.lines().enumerate() {
        let at = number + 1;
        // Tests stand last in a file, and may use the real world.
        in_tests |= line == "#[cfg(test)]";
        if !line.is_ascii() {
            findings.push(format!("{shown}:{at}: not ASCII"));
        }
        for name in FOREIGN.iter().filter(|name| line.contains(**name)) {
            findings.push(format!(
                "{shown}:{at}: '{name}' belongs to a machine, not the project"
            ));
        }
        let code = line.split("//").next().unwrap_or_default();
        if is_engine && !is_host && !in_tests {
            for (name, instead) in ENGINE_BANS.iter().filter(|(name, _)| code.contains(name)) {
                findings.push(format!(
                    "{shown}:{at}: {name} in an engine crate; use {instead}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(shown: &str, text: &str, layer: Option<i64>) -> Vec<String> {
        let mut found = Vec::new();
        source(shown, text, layer, &mut found);
        found
    }

    #[test]
    fn a_clean_file_has_no_finding() {
        assert!(findings("crates/dmu/src/tx.rs", "//! Transactions.\n", Some(3)).is_empty());
    }

    #[test]
    fn clocks_are_banned_in_the_engine_only() {
        let text = "//! x\nfn f() { tokio::time::Instant::now(); }\n";
        assert_eq!(findings("crates/dmu/src/tx.rs", text, Some(3)).len(), 1);
        assert!(findings("crates/manage/src/x.rs", text, Some(6)).is_empty());
        assert!(findings("crates/runtime/src/host/clock.rs", text, Some(1)).is_empty());
        let root = "//! x\n#![forbid(unsafe_code)]\n";
        assert_eq!(findings("crates/dmu/src/lib.rs", root, Some(3)).len(), 1);
        assert!(findings("crates/nfs/src/lib.rs", root, Some(6)).is_empty());
        let denied = format!("{root}#![cfg_attr(not(test), {ENGINE_LINTS})]\n");
        assert!(findings("crates/dmu/src/lib.rs", &denied, Some(3)).is_empty());
    }

    #[test]
    fn arrows_go_down() {
        let package = |name: &str, layer, deps: &[&str]| Package {
            folder: Path::new("crates").join(name),
            name: name.to_owned(),
            layer: Some(layer),
            dependencies: deps.iter().map(|d| (*d).to_owned()).collect(),
        };
        let mut found = Vec::new();
        layers(
            &[package("zio", 2, &["vdev"]), package("vdev", 2, &[])],
            &mut found,
        );
        assert!(found.is_empty());
        layers(
            &[package("zio", 2, &[]), package("vdev", 2, &["zio"])],
            &mut found,
        );
        assert_eq!(found.len(), 1);
    }
}
