//! iSCSI targets of an appliance: names, portals, the initiators that may log in, and secrets. Which volumes they show is a property of the volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

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

/// Where a target is reached: an address, and the portal group it belongs to. Written `ADDRESS:PORT,GROUP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group: u16,
}

/// What a portal without a port means.
pub const ISCSI_PORT: u16 = 3260;

/// A text that is no portal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no ADDRESS[:PORT][,GROUP] (an IPv6 address with a port stands in brackets)")]
pub struct NotAPortal(pub String);

/// Reads `ADDRESS[:PORT]`.
#[must_use]
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse().ok().or_else(|| {
        let address: IpAddr = bare.parse().ok()?;
        Some(SocketAddr::new(address, ISCSI_PORT))
    })
}

impl FromStr for Portal {
    type Err = NotAPortal;

    fn from_str(text: &str) -> Result<Self, NotAPortal> {
        let (address, group) = match text.split_once(',') {
            Some((address, group)) => (address, group.parse().ok().filter(|group| *group > 0)),
            None => (text, Some(1)),
        };
        match (parse_address(address), group) {
            (Some(address), Some(group)) => Ok(Self { address, group }),
            _ => Err(NotAPortal(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Portal {
    type Error = NotAPortal;

    fn try_from(text: String) -> Result<Self, NotAPortal> {
        text.parse()
    }
}

impl From<Portal> for String {
    fn from(portal: Portal) -> Self {
        portal.to_string()
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.address, self.group)
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
    /// Names (perhaps with `*` at the end), addresses and networks of initiators that may log in; none means all.
    pub initiators: Vec<String>,
    /// What initiators must know.
    pub chap: Option<Login>,
    /// What we prove to initiators.
    pub mutual: Option<Login>,
    /// Addresses it is reached at and tells in discovery; none is the one that was reached.
    pub portals: Vec<Portal>,
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
    /// Groups of initiators, by name: what mappings may be limited to.
    pub initiator_groups: BTreeMap<String, Vec<String>>,
    /// Groups of targets, by name: what volumes may be mapped to.
    pub target_groups: BTreeMap<String, Vec<String>>,
    /// Groups of portals, by name: what targets may be given.
    pub portal_groups: BTreeMap<String, Vec<Portal>>,
}

/// Checks the name of a group.
#[must_use]
pub fn is_group_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !name.is_empty() && name.len() <= 223 && name.chars().all(allowed) && name != "all"
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

/// The targets that a mapping is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappingScope {
    /// All there are.
    All,
    /// Those of a group.
    Group(String),
    /// One, by its name.
    Target(String),
}

/// Where a volume is shown: targets, a number in them, and the initiators that see it there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// Which targets.
    pub scope: MappingScope,
    /// Logical unit number.
    pub lun: u16,
    /// The group of initiators that sees it; `None` means all that may log in.
    pub seen_by: Option<String>,
}

impl Targets {
    /// Whether a mapping is for a target.
    #[must_use]
    pub fn covers(&self, scope: &MappingScope, target: &str) -> bool {
        match scope {
            MappingScope::All => true,
            MappingScope::Target(name) => name == target,
            MappingScope::Group(group) => self
                .target_groups
                .get(group)
                .is_some_and(|members| members.iter().any(|member| member == target)),
        }
    }

    /// Whether two mappings of one number would meet: in some target, before some initiator.
    #[must_use]
    pub fn conflict(&self, one: &Mapping, other: &Mapping) -> bool {
        let same_group =
            one.seen_by.is_none() || other.seen_by.is_none() || one.seen_by == other.seen_by;
        let shared = match (&one.scope, &other.scope) {
            (MappingScope::All, _) | (_, MappingScope::All) => true,
            (a, b) if a == b => true,
            (a, b) => self
                .targets
                .iter()
                .any(|target| self.covers(a, &target.name) && self.covers(b, &target.name)),
        };
        one.lun == other.lun && same_group && shared
    }

    /// The initiators that a mapping is for; `None` when its group does not exist: no initiator sees it.
    #[must_use]
    pub fn seen_by(&self, mapping: &Mapping) -> Option<Vec<String>> {
        match &mapping.seen_by {
            None => Some(Vec::new()),
            Some(group) => self
                .initiator_groups
                .get(group)
                .filter(|members| !members.is_empty())
                .cloned(),
        }
    }
}

impl fmt::Display for MappingScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Group(group) => write!(f, "@{group}"),
            Self::Target(name) => f.write_str(name),
        }
    }
}

impl FromStr for MappingScope {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match (text, text.strip_prefix('@')) {
            ("*" | "all", _) => Self::All,
            (_, Some(group)) => Self::Group(group.to_owned()),
            (name, None) => Self::Target(name.to_owned()),
        })
    }
}

/// The property of a volume that says where it is shown.
pub const MAP_PROPERTY: &str = "org.sanbox:lun";

/// Greatest logical unit number: what flat addressing holds.
pub const LUN_MAX: u16 = 0x3fff;

/// Reads the property that maps a volume: `TARGET/NUMBER`, or `TARGET/NUMBER@INITIATORS` for the initiators of a group; the target is a
/// name, `@GROUP`, or `*` for all. Several are separated by commas. What is malformed is left out.
#[must_use]
pub fn parse_mappings(text: &str) -> Vec<Mapping> {
    let parse = |part: &str| {
        let (target, rest) = part.trim().rsplit_once('/')?;
        let (lun, seen_by) = match rest.split_once('@') {
            Some((lun, group)) => (lun, Some(group.to_owned())),
            None => (rest, None),
        };
        let lun = lun.parse().ok().filter(|lun| *lun <= LUN_MAX)?;
        let Ok(scope) = target.parse();
        Some(Mapping {
            scope,
            lun,
            seen_by,
        })
    };
    text.split(',').filter_map(parse).collect()
}

/// Writes the property that maps a volume.
#[must_use]
pub fn mappings_text(mappings: &[Mapping]) -> String {
    let parts: Vec<String> = mappings
        .iter()
        .map(|mapping| match &mapping.seen_by {
            Some(group) => format!("{}/{}@{group}", mapping.scope, mapping.lun),
            None => format!("{}/{}", mapping.scope, mapping.lun),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_read_and_written() {
        for (text, expect) in [
            ("10.0.0.1", "10.0.0.1:3260,1"),
            ("10.0.0.1:860,2", "10.0.0.1:860,2"),
            ("[fd00::1]:3260", "[fd00::1]:3260,1"),
            ("fd00::1,7", "[fd00::1]:3260,7"),
        ] {
            assert_eq!(
                text.parse::<Portal>().map(String::from).as_deref(),
                Ok(expect)
            );
        }
        for bad in ["", "host", "10.0.0.1,0", "10.0.0.1:x", "10.0.0.1,70000"] {
            assert!(bad.parse::<Portal>().is_err(), "{bad}");
        }
    }

    #[test]
    fn mappings_are_read_and_written() {
        let text =
            "iqn.2026-11.org.example:a/0,iqn.2026-11.org.example:b/300@hosts,*/7,@front/8@hosts";
        let mappings = parse_mappings(text);
        assert_eq!(mappings.len(), 4);
        assert_eq!(mappings_text(&mappings), text);
        let mut targets = Targets::default();
        for name in ["iqn.2026-11.org.example:a", "iqn.2026-11.org.example:b"] {
            targets.put(Target {
                name: name.to_owned(),
                ..Target::default()
            });
        }
        let members = vec!["iqn.2026-11.org.example:b".to_owned()];
        targets.target_groups.insert("front".to_owned(), members);
        let meet = |one: &str, other: &str| {
            let (one, other) = (parse_mappings(one), parse_mappings(other));
            one.iter()
                .any(|a| other.iter().any(|b| targets.conflict(a, b)))
        };
        assert!(meet("*/1", "iqn.2026-11.org.example:a/1"));
        assert!(meet("@front/1", "iqn.2026-11.org.example:b/1"));
        assert!(!meet("@front/1", "iqn.2026-11.org.example:a/1"));
        assert!(!meet("*/1@x", "*/1@y"));
        assert!(meet("*/1@x", "*/1"));
        assert!(!meet("*/1", "*/2"));
        for bad in ["", "iqn.x", "iqn.x/", "iqn.x/99999", "iqn.x/-1"] {
            assert!(parse_mappings(bad).is_empty(), "{bad}");
        }
    }
}
