//! The settings of an appliance as one file: what is set for it, for its users, targets and jobs of replication, and on datasets what shares
//! them, maps them or takes their snapshots.
//!
//! Guarantees: no secret of a user or an initiator is in it. What a file does not name stays as it is when the file is imported, so that an
//! import destroys nothing; an import of what was exported changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::accounts::Role;
use crate::config::Config;
use crate::peer::Peer;
use crate::replication::Job;
use crate::targets::{Login, Portal, Target, Targets};

/// The version of such files that this program writes, and reads.
pub const VERSION: u32 = 1;
/// Properties of datasets that belong to the settings of an appliance, where they are set on the dataset itself.
pub const PROPERTIES: &[&str] = &[
    "org.sanbox:lun",
    "org.sanbox:nbd",
    "org.sanbox:policy",
    "sharenfs",
    "sharesmb",
];
/// The first lines of a file.
const HEAD: &str = "# Settings of a sanbox appliance, as 'sanbox config export' writes them. Passwords, keys and secrets are not in it.\n";

/// A user, without what lets in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedUser {
    /// Name.
    pub name: String,
    /// `owner`, `operator` or `viewer`.
    pub role: String,
}

/// A group of users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportedGroup {
    /// Name.
    pub name: String,
    /// Its number.
    pub number: u32,
    /// `owner`, `operator` or `viewer`; empty for none.
    pub role: String,
    /// Names of users.
    pub members: Vec<String>,
}

impl ExportedGroup {
    /// Returns the role that members have at least.
    ///
    /// # Errors
    /// It is none, in words.
    pub fn role(&self) -> Result<Option<Role>, String> {
        let role = &self.role;
        match role.as_str() {
            "" => Ok(None),
            _ => Role::from_name(role)
                .map(Some)
                .ok_or_else(|| format!("'{role}' is none of owner, operator and viewer")),
        }
    }

    /// Whether it has the name, the role and the members of another.
    fn is_as(&self, other: &Self) -> bool {
        (&self.name, &self.role, &self.members) == (&other.name, &other.role, &other.members)
    }
}

/// A target, without secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportedTarget {
    /// iSCSI name.
    pub name: String,
    /// For people.
    pub alias: String,
    /// Initiators that may log in; none means all.
    pub initiators: Vec<String>,
    /// Who initiators must say they are; empty when nothing is asked.
    pub chap_user: String,
    /// Who the target says it is; empty when it proves nothing.
    pub mutual_user: String,
    /// Addresses that discovery tells.
    pub portals: Vec<Portal>,
    /// Where initiators are sent instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<SocketAddr>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exported {
    /// [`VERSION`].
    pub version: u32,
    /// Who initiators must say they are to discover targets; empty when nothing is asked.
    #[serde(default)]
    pub discovery_user: String,
    /// `sanbox.toml`, and the limits that are in force under `tuning`.
    #[serde(default)]
    pub config: Config,
    /// Groups of initiators.
    #[serde(default)]
    pub initiator_groups: BTreeMap<String, Vec<String>>,
    /// Groups of targets.
    #[serde(default)]
    pub target_groups: BTreeMap<String, Vec<String>>,
    /// Groups of portals.
    #[serde(default)]
    pub portal_groups: BTreeMap<String, Vec<Portal>>,
    /// Properties of datasets, by dataset.
    #[serde(default)]
    pub datasets: BTreeMap<String, BTreeMap<String, String>>,
    /// Users of the console and the API.
    #[serde(default)]
    pub users: Vec<ExportedUser>,
    /// Groups of users.
    #[serde(default)]
    pub groups: Vec<ExportedGroup>,
    /// iSCSI targets.
    #[serde(default)]
    pub targets: Vec<ExportedTarget>,
    /// Jobs of replication.
    #[serde(default)]
    pub replication: Vec<Job>,
    /// Other appliances, by their certificates. The key of this one is not in the file: with another key it is to be paired anew.
    #[serde(default)]
    pub peers: Vec<Peer>,
}

/// Something that an import changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `sanbox.toml`, which holds from the next start.
    Configuration,
    /// A limit, at once.
    Limit {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// A user without a password.
    NewUser(ExportedUser),
    /// The role of a user.
    Role(ExportedUser),
    /// A group of users that is not there, or has other members or another role. Numbers stay.
    Group(ExportedGroup),
    /// Targets, groups or what discovery asks for.
    Targets,
    /// A job that is not there.
    NewJob(Job),
    /// A job with other settings.
    Job(Job),
    /// A peer, new or with other settings.
    Peer(Peer),
    /// A property.
    Property {
        /// Dataset.
        dataset: String,
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => f.write_str("sanbox.toml is replaced, from the next start"),
            Self::Limit { name, value } => write!(f, "limit {name} = {value}"),
            Self::NewUser(user) => write!(
                f,
                "new user '{}' ({}), without a password",
                user.name, user.role
            ),
            Self::Role(user) => write!(f, "user '{}' becomes {}", user.name, user.role),
            Self::Group(group) => write!(f, "group '{}' and its members", group.name),
            Self::Targets => f.write_str("iSCSI targets and groups"),
            Self::NewJob(job) => write!(f, "new job of replication '{}'", job.name),
            Self::Job(job) => write!(f, "job of replication '{}'", job.name),
            Self::Peer(peer) => write!(f, "peer '{}'", peer.name),
            Self::Property {
                dataset,
                name,
                value,
            } => write!(f, "{dataset}: {name}={value}"),
        }
    }
}

impl Exported {
    /// Takes in the targets, without their secrets.
    pub fn put_targets(&mut self, targets: &Targets) {
        let user = |login: &Option<Login>| {
            let login = login.as_ref();
            login.map_or_else(String::new, |login| login.user.clone())
        };
        let target = |target: &Target| ExportedTarget {
            name: target.name.clone(),
            alias: target.alias.clone(),
            initiators: target.initiators.clone(),
            chap_user: user(&target.chap),
            mutual_user: user(&target.mutual),
            portals: target.portals.clone(),
            redirect: target.redirect,
        };
        self.discovery_user = user(&targets.discovery);
        self.targets = targets.targets.iter().map(target).collect();
        self.initiator_groups.clone_from(&targets.initiator_groups);
        self.target_groups.clone_from(&targets.target_groups);
        self.portal_groups.clone_from(&targets.portal_groups);
    }

    /// Puts the targets of this file into those there are. A secret that is not known here is `unknown`, which no initiator can prove, until it is
    /// given; whose that is, is returned in words.
    #[must_use]
    pub fn targets_into(&self, targets: &mut Targets, unknown: &str) -> Vec<String> {
        let mut without = Vec::new();
        let mut login = |user: &str, known: Option<Login>, of: &str| {
            if user.is_empty() {
                return None;
            }
            Some(known.filter(|known| known.user == user).unwrap_or_else(|| {
                without.push(format!("the secret of '{user}' for {of}"));
                Login {
                    user: user.to_owned(),
                    secret: unknown.to_owned(),
                }
            }))
        };
        for target in &self.targets {
            let known = targets.find(&target.name).cloned().unwrap_or_default();
            let of = format!("target {}", target.name);
            let made = Target {
                name: target.name.clone(),
                alias: target.alias.clone(),
                initiators: target.initiators.clone(),
                chap: login(&target.chap_user, known.chap, &of),
                mutual: login(&target.mutual_user, known.mutual, &of),
                portals: target.portals.clone(),
                redirect: target.redirect,
            };
            targets.put(made);
        }
        if !self.discovery_user.is_empty() {
            let known = targets.discovery.take();
            targets.discovery = login(&self.discovery_user, known, "discovery");
        }
        let groups = &mut targets.initiator_groups;
        groups.extend(self.initiator_groups.clone());
        targets.target_groups.extend(self.target_groups.clone());
        targets.portal_groups.extend(self.portal_groups.clone());
        without
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Where and why it is none, or which version it is of.
    pub fn parse(text: &str) -> Result<Self, String> {
        let exported: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if exported.version != VERSION {
            return Err(format!(
                "version {} of such a file is not known to this program",
                exported.version
            ));
        }
        for user in &exported.users {
            if Role::from_name(&user.role).is_none() {
                return Err(format!(
                    "'{}' is none of owner, operator and viewer",
                    user.role
                ));
            }
        }
        for group in &exported.groups {
            group.role()?;
        }
        for job in &exported.replication {
            job.check()
                .map_err(|error| format!("job '{}': {error}", job.name))?;
        }
        for peer in &exported.peers {
            peer.check()
                .map_err(|error| format!("peer '{}': {error}", peer.name))?;
        }
        for (dataset, settings) in &exported.datasets {
            if let Some(name) = settings
                .keys()
                .find(|name| !PROPERTIES.contains(&name.as_str()))
            {
                return Err(format!("{dataset}: '{name}' is no setting of an appliance"));
            }
        }
        // What sanbox.toml may hold is checked where it is read.
        Config::parse(&exported.config_text()?)?;
        Ok(exported)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// A value has no form in TOML.
    pub fn text(&self) -> Result<String, String> {
        let text = toml::to_string(self).map_err(|error| error.to_string())?;
        Ok(format!("{HEAD}\n{text}"))
    }

    /// Returns the text of its `sanbox.toml`.
    ///
    /// # Errors
    /// A value has no form in TOML.
    pub fn config_text(&self) -> Result<String, String> {
        toml::to_string(&self.config).map_err(|error| error.to_string())
    }

    /// Returns what an import of `self` changes where things are as in `present`.
    #[must_use]
    pub fn changes(&self, present: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.config != present.config {
            changes.push(Change::Configuration);
        }
        for (name, value) in &self.config.tuning {
            if present.config.tuning.get(name) != Some(value) {
                changes.push(Change::Limit {
                    name: name.clone(),
                    value: value.clone(),
                });
            }
        }
        for user in &self.users {
            match present.users.iter().find(|known| known.name == user.name) {
                None => changes.push(Change::NewUser(user.clone())),
                Some(known) if known.role != user.role => changes.push(Change::Role(user.clone())),
                Some(_) => {}
            }
        }
        let news = |group: &&ExportedGroup| !present.groups.iter().any(|known| known.is_as(group));
        changes.extend(self.groups.iter().filter(news).cloned().map(Change::Group));
        let mut targets = Targets::default();
        let _ = present.targets_into(&mut targets, "");
        let before = targets.clone();
        let _ = self.targets_into(&mut targets, "");
        if targets != before {
            changes.push(Change::Targets);
        }
        for (dataset, settings) in &self.datasets {
            let known = present.datasets.get(dataset);
            for (name, value) in settings {
                if known.and_then(|known| known.get(name)) != Some(value) {
                    changes.push(Change::Property {
                        dataset: dataset.clone(),
                        name: name.clone(),
                        value: value.clone(),
                    });
                }
            }
        }
        let news = |peer: &&Peer| !present.peers.contains(peer);
        changes.extend(self.peers.iter().filter(news).cloned().map(Change::Peer));
        for job in &self.replication {
            let known = present
                .replication
                .iter()
                .find(|known| known.name == job.name);
            match known {
                None => changes.push(Change::NewJob(job.clone())),
                Some(known) if known != job => changes.push(Change::Job(job.clone())),
                Some(_) => {}
            }
        }
        changes
    }

    /// Returns the lines in which `self` differs from `present`: what is here alone with `-`, what is in the file alone with `+`.
    #[must_use]
    pub fn differences(&self, present: &Self) -> Vec<String> {
        let (mine, theirs) = (self.flat(), present.flat());
        let keys: std::collections::BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let mut lines = Vec::new();
        for key in keys {
            let (now, then) = (theirs.get(key), mine.get(key));
            if now != then {
                lines.extend(now.map(|value| format!("- {key} = {value}")));
                lines.extend(then.map(|value| format!("+ {key} = {value}")));
            }
        }
        lines
    }

    fn flat(&self) -> BTreeMap<String, String> {
        let mut flat = BTreeMap::new();
        if let Ok(value) = Value::try_from(self) {
            flatten(String::new(), &value, &mut flat);
        }
        flat
    }
}

/// Puts each value under its path; entries of a list are told by their names.
fn flatten(path: String, value: &Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| match path.is_empty() {
        true => key.to_owned(),
        false => format!("{path}.{key}"),
    };
    let name_of = |entry: &Value| Some(entry.get("name")?.as_str()?.to_owned());
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                flatten(below(key), value, into);
            }
        }
        Value::Array(entries) if entries.iter().any(|entry| name_of(entry).is_some()) => {
            for entry in entries {
                let name = name_of(entry).unwrap_or_default();
                flatten(format!("{path}[{name}]"), entry, into);
            }
        }
        value => {
            into.insert(path, value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Exported, Targets) {
        let login = |user: &str| {
            Some(Login {
                user: user.to_owned(),
                secret: "topsecretwords".to_owned(),
            })
        };
        let mut targets = Targets {
            discovery: login("finder"),
            ..Targets::default()
        };
        targets.put(Target {
            name: "iqn.x:vm".to_owned(),
            initiators: vec!["10.0.0.0/8".to_owned()],
            chap: login("esx"),
            ..Target::default()
        });
        let mut exported = Exported {
            version: VERSION,
            users: vec![ExportedUser {
                name: "ann".to_owned(),
                role: "owner".to_owned(),
            }],
            replication: vec![Job {
                name: "vm".to_owned(),
                from: "tank/vm".to_owned(),
                to: "back/vm".to_owned(),
                ..Job::default()
            }],
            ..Exported::default()
        };
        exported
            .config
            .tuning
            .insert("zfs_arc_max".to_owned(), "4".to_owned());
        exported.peers.push(Peer {
            name: "vault".to_owned(),
            certificate: crate::peer::Fingerprint::of(b"a certificate"),
            address: "vault:8444".to_owned(),
            datasets: Vec::new(),
            push: false,
            failover: false,
            pull: false,
        });
        let policy = (
            "org.sanbox:policy".to_owned(),
            "daily=7 \"q'uo\nte".to_owned(),
        );
        exported
            .datasets
            .insert("tank/a b".to_owned(), [policy].into());
        exported.put_targets(&targets);
        (exported, targets)
    }

    #[test]
    fn a_file_comes_back_without_secrets_and_changes_nothing_where_it_is_from() {
        let (exported, targets) = sample();
        let text = exported.text().expect("TOML");
        assert!(!text.contains("topsecret"), "{text}");
        let read = Exported::parse(&text).expect("parses");
        assert_eq!(read, exported);
        assert_eq!(read.changes(&exported), []);
        assert_eq!(read.differences(&exported), Vec::<String>::new());
        // A secret that is known stays; in place of one that is not, a random one is made.
        let mut known = targets.clone();
        assert_eq!(read.targets_into(&mut known, "x"), Vec::<String>::new());
        assert_eq!(known, targets);
        let mut fresh = Targets::default();
        assert_eq!(read.targets_into(&mut fresh, "random").len(), 2);
        let chap = fresh
            .find("iqn.x:vm")
            .and_then(|target| target.chap.clone());
        assert_eq!(chap.map(|chap| chap.secret), Some("random".to_owned()));
    }

    #[test]
    fn changes_are_told_and_mistakes_are_refused() {
        let (exported, _) = sample();
        let empty = Exported {
            version: VERSION,
            ..Exported::default()
        };
        assert_eq!(exported.changes(&empty).len(), 7);
        assert_eq!(empty.changes(&exported), [Change::Configuration]);
        let mut other = exported.clone();
        other.users[0].role = "viewer".to_owned();
        assert_eq!(
            other.differences(&exported),
            [
                "- users[ann].role = \"owner\"",
                "+ users[ann].role = \"viewer\""
            ]
        );
        let text = exported.text().expect("TOML");
        for (from, to, why) in [
            ("version = 1", "version = 2", "version 2"),
            ("role = \"owner\"", "role = \"king\"", "king"),
            ("from = \"tank/vm\"", "from = \"-x\"", "job 'vm'"),
            ("vault:8444", "vault", "peer 'vault'"),
            ("org.sanbox:policy", "quota", "no setting"),
            ("[config.nfs]", "[config.afp]", "afp"),
        ] {
            let error = Exported::parse(&text.replace(from, to)).expect_err(to);
            assert!(error.contains(why), "{to}: {error}");
        }
    }
}
