//! The console's files in the repository are what its sources build.

use std::path::Path;
use std::process::Command;

use tests::{root, skip};

fn npm(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("npm")
        .args(arguments)
        .current_dir(directory)
        .output();
    let output = output.expect("npm runs");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_name().to_str() {
            Some("node_modules" | "dist") => {}
            _ if entry.path().is_dir() => copy(&entry.path(), &target),
            _ => {
                std::fs::copy(entry.path(), target).expect("copies");
            }
        }
    }
}

#[test]
fn the_consoles_files_are_what_its_sources_build() {
    let subject = "the files of the console";
    if Command::new("npm").arg("--version").output().is_err() {
        return skip(subject, "npm is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (sources, web) = (root().join("web"), directory.path().join("web"));
    copy(&sources, &web);
    // Not an oracle that could be installed: the packages come over the network.
    if let Err(why) = npm(&web, &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]) {
        eprintln!(
            "SKIPPED {subject}: npm ci failed: {}",
            why.lines().last().unwrap_or_default()
        );
        return;
    }
    npm(&web, &["run", "check"]).expect("the sources are well typed");
    npm(&web, &["run", "build"]).expect("builds");
    let mut first_load = 0;
    let built: Vec<_> = std::fs::read_dir(web.join("dist"))
        .expect("lists")
        .collect();
    assert_eq!(built.len(), 4);
    for file in built {
        let file = file.expect("an entry");
        let kept = std::fs::read(sources.join("dist").join(file.file_name())).unwrap_or_default();
        let bytes = std::fs::read(file.path()).expect("reads");
        assert!(
            kept == bytes,
            "web/dist/{}: run 'npm run build' in web/",
            file.file_name().display()
        );
        let small = Command::new("gzip").arg("-c").arg(file.path()).output();
        first_load += small.expect("gzip runs").stdout.len();
    }
    // The promise is 150 KB, as it comes over the network.
    assert!(
        (50_000..150_000).contains(&first_load),
        "{first_load} bytes"
    );
}
