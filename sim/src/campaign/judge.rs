//! Judges the disks of a world: by the independent checker, and for a sample by OpenZFS's zdb.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use world::{Image, Presence, World};

use super::scenario::{Plan, Trouble};
use checker::{Kind, Options};

struct WorldImage {
    path: PathBuf,
    image: Image,
}

impl checker::Image for WorldImage {
    fn size(&self) -> u64 {
        self.image.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let inside = offset
            .checked_add(buf.len() as u64)
            .is_some_and(|end| end <= self.image.size());
        if inside {
            self.image.read(offset, buf);
        }
        inside
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// What damaged copies are not held against the engine: those the plan's own troubles made.
fn is_excused(plan: &Plan, kind: Kind, one_is_away: bool) -> bool {
    if one_is_away && matches!(kind, Kind::Label | Kind::Uberblock | Kind::Config) {
        return true;
    }
    match plan.trouble {
        Trouble::OneBadSide => matches!(kind, Kind::Checksum | Kind::Label | Kind::Uberblock),
        // The side that was away or missed writes has old labels and old or missing blocks until it is resilvered.
        Trouble::OneSideVanishes
        | Trouble::OneFailingSide
        | Trouble::OneSideSticks
        | Trouble::LogsFail => {
            matches!(
                kind,
                Kind::Checksum | Kind::Label | Kind::Uberblock | Kind::Config
            )
        }
        Trouble::None | Trouble::Slow | Trouble::LyingFlush => false,
    }
}

/// Runs the checker on the durable images.
///
/// # Errors
/// The first findings.
pub fn by_checker(plan: &Plan, world: &World, crashed: bool) -> Result<(), String> {
    let one_is_away = world
        .disks()
        .iter()
        .any(|path| world.presence(path) == Presence::Vanished);
    by_checker_of(world, crashed, &outsiders(plan, world), &|kind| {
        is_excused(plan, kind, one_is_away)
    })
}

/// The disks that may join the pool or leave it, and are no part of its tree now: blank, spare, cache or gone.
pub fn outsiders(plan: &Plan, world: &World) -> BTreeSet<PathBuf> {
    let mobile = plan.mobile_disks();
    let images = world.durable_images().into_iter();
    images
        .filter(|(path, _)| mobile.contains(path))
        .map(|(path, image)| WorldImage { path, image })
        .filter(|image| !checker::is_in_a_tree(image))
        .map(|image| image.path)
        .collect()
}

/// Runs the checker on the durable images of all disks but some.
///
/// # Errors
/// The first findings that are not excused.
pub fn by_checker_of(
    world: &World,
    crashed: bool,
    without: &BTreeSet<PathBuf>,
    excused: &dyn Fn(Kind) -> bool,
) -> Result<(), String> {
    let images: Vec<WorldImage> = world
        .durable_images()
        .into_iter()
        .filter(|(path, _)| !without.contains(path))
        .map(|(path, image)| WorldImage { path, image })
        .collect();
    let images: Vec<&dyn checker::Image> = images
        .iter()
        .map(|image| image as &dyn checker::Image)
        .collect();
    let report = checker::check(&images, Options { crashed });
    let errors: Vec<String> = report
        .errors()
        .filter(|finding| !excused(finding.kind))
        .map(ToString::to_string)
        .collect();
    if errors.is_empty() {
        return Ok(());
    }
    let shown = errors
        .iter()
        .take(8)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n    ");
    Err(format!(
        "the checker has {} findings in txg {}:\n    {shown}",
        errors.len(),
        report.txg
    ))
}

/// Runs `zdb -bcc` on the durable images of all disks but some, written to a directory of their own.
///
/// # Errors
/// What zdb said, when it did not end with success.
pub fn by_zdb_of(world: &World, dir: &Path, without: &BTreeSet<PathBuf>) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(dir);
    world
        .dump(dir)
        .map_err(|error| format!("dump to {}: {error}", dir.display()))?;
    for name in without.iter().filter_map(|path| path.file_name()) {
        let _ = std::fs::remove_file(dir.join(name));
    }
    let output = Command::new("zdb")
        .args(["-e", "-p"])
        .arg(dir)
        .args(["-bcc", "tank"])
        .output()
        .map_err(|error| format!("start zdb: {error}"))?;
    if output.status.success() {
        let _ = std::fs::remove_dir_all(dir);
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let start = text
        .char_indices()
        .rev()
        .nth(1500)
        .map_or(0, |(index, _)| index);
    Err(format!(
        "zdb (disks kept in {}): {}: {}",
        dir.display(),
        output.status,
        &text[start..]
    ))
}
