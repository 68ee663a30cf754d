//! Sets of features by name (the pool property `compatibility`): files that list what some other system understands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use engine::supported_features;

// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_load_compat (places, size, words)
const PLACES: &[&str] = &["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
const BYTES_MAX: u64 = 16 << 10;

/// The features that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    /// All there are.
    All,
    /// Those named, and no others.
    Only(BTreeSet<String>),
}

impl Requested {
    /// Returns the set that the property's value means: `off`, `legacy`, or names of files, of which each must list a feature.
    ///
    /// # Errors
    /// What OpenZFS says of files that are not there or not lists.
    pub(super) fn of(compatibility: &str) -> Result<Self, String> {
        match compatibility {
            "" | "off" | "-" => return Ok(Self::All),
            "legacy" => return Ok(Self::Only(BTreeSet::new())),
            _ => {}
        }
        let mut common: Option<BTreeSet<String>> = None;
        let (mut unreadable, mut unknown) = (String::new(), String::new());
        for name in compatibility.split(',').filter(|name| !name.is_empty()) {
            let found = PLACES.iter().find_map(|place| {
                let text = read(&Path::new(place).join(name))?;
                // Those of the system may be newer than this program.
                Some((text, *place == PLACES[0]))
            });
            let Some((text, local)) = found else {
                unreadable.push_str(&format!("{name} "));
                continue;
            };
            let mut listed = BTreeSet::new();
            for line in text.lines() {
                let line = line.split('#').next().unwrap_or("");
                for word in line.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
                    if local && !is_feature(word) {
                        unknown.push_str(&format!("{word:.32} "));
                    }
                    listed.insert(word.to_owned());
                }
            }
            common = Some(match common {
                None => listed,
                Some(before) => before.intersection(&listed).cloned().collect(),
            });
        }
        if !unreadable.is_empty() {
            return Err(format!(
                "could not read/parse feature file(s): {unreadable}"
            ));
        }
        if !unknown.is_empty() {
            return Err(format!(
                "invalid feature name(s) in local compatibility files: {unknown}"
            ));
        }
        match common {
            Some(features) => Ok(Self::Only(features)),
            None => Err("no valid compatibility files specified".to_owned()),
        }
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(features) => features.contains(feature),
        }
    }
}

fn read(path: &Path) -> Option<String> {
    let bytes = fs::metadata(path).ok()?.len();
    if bytes == 0 || bytes > BYTES_MAX {
        return None;
    }
    fs::read_to_string(path)
        .ok()
        .filter(|text| text.ends_with('\n'))
}

/// Whether some version of OpenZFS has a feature of this name.
fn is_feature(name: &str) -> bool {
    engine::Feature::by_name(name).is_some()
}

/// Returns the features that this version writes and that are asked for, in the order of listings.
pub(super) fn wanted(requested: &Requested) -> impl Iterator<Item = &'static str> {
    supported_features()
        .map(|feature| feature.name)
        .filter(|name| requested.has(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_sets() {
        assert_eq!(Requested::of("off"), Ok(Requested::All));
        assert!(!Requested::of("legacy").unwrap().has("lz4_compress"));
        assert!(wanted(&Requested::All).any(|name| name == "lz4_compress"));
        assert_eq!(
            Requested::of("no-such-system,nor-this"),
            Err("could not read/parse feature file(s): no-such-system nor-this ".to_owned())
        );
        assert_eq!(
            Requested::of(","),
            Err("no valid compatibility files specified".to_owned())
        );
    }
}
