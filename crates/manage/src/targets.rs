//! iSCSI targets of an appliance: names, who may log in, and secrets. Which volumes they show is a property of the volumes.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A user and a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Name.
    pub user: String,
    /// Secret.
    pub secret: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// For people.
    pub alias: String,
    /// Names (perhaps with `*` at the end), addresses and networks of initiators that may log in; none is everybody.
    pub initiators: Vec<String>,
    /// What initiators must know.
    pub chap: Option<Login>,
    /// What we prove to initiators.
    pub mutual: Option<Login>,
    /// Addresses told in discovery; none is the one that was reached.
    pub portals: Vec<SocketAddr>,
    /// Where initiators are sent instead.
    pub redirect: Option<SocketAddr>,
}

/// All targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Targets {
    /// In the order of their names.
    pub targets: Vec<Target>,
    /// What initiators must know to discover targets.
    pub discovery: Option<Login>,
}

impl Targets {
    /// Returns a target.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// Returns a target, to be changed.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut Target> {
        self.targets.iter_mut().find(|target| target.name == name)
    }

    /// Adds or replaces a target.
    pub fn put(&mut self, target: Target) {
        self.targets.retain(|known| known.name != target.name);
        self.targets.push(target);
        self.targets.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Removes a target; returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.targets.len();
        self.targets.retain(|known| known.name != name);
        self.targets.len() != before
    }
}

/// Where a volume is shown: a target and a number in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// The target's name.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
}

/// Greatest logical unit number: what flat addressing holds.
pub const LUN_MAX: u16 = 0x3fff;

/// Reads the property that maps a volume: `IQN/NUMBER`, several separated by commas. What is malformed is left out.
#[must_use]
pub fn parse_mappings(text: &str) -> Vec<Mapping> {
    let parse = |part: &str| {
        let (target, lun) = part.trim().rsplit_once('/')?;
        let lun = lun.parse().ok().filter(|lun| *lun <= LUN_MAX)?;
        Some(Mapping {
            target: target.to_owned(),
            lun,
        })
    };
    text.split(',').filter_map(parse).collect()
}

/// Writes the property that maps a volume.
#[must_use]
pub fn mappings_text(mappings: &[Mapping]) -> String {
    let parts: Vec<String> = mappings
        .iter()
        .map(|mapping| format!("{}/{}", mapping.target, mapping.lun))
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_and_written() {
        let text = "iqn.2026-11.org.example:a/0,iqn.2026-11.org.example:b/300";
        let mappings = parse_mappings(text);
        assert_eq!(mappings.len(), 2);
        assert_eq!(mappings_text(&mappings), text);
        for bad in ["", "iqn.x", "iqn.x/", "iqn.x/99999", "iqn.x/-1"] {
            assert!(parse_mappings(bad).is_empty(), "{bad}");
        }
    }
}
