//! The two grammars of `sharenfs`, parsed into one form.

use super::error::GrammarError;
use super::flavour::Flavours;
use super::hosts::HostList;
use super::{Access, NOBODY, Rule, Rules, Squash, Transports};

/// Options that change nothing here: what they ask for is always so, or means nothing to this server.
const ACCEPTED: &[&str] = &[
    "sync",
    "wdelay",
    "no_wdelay",
    "subtree_check",
    "no_subtree_check",
    "nosub",
    "sub",
    "crossmnt",
    "nohide",
    "hide",
    "insecure",
    "insecure_locks",
    "secure_locks",
    "no_auth_nlm",
    "auth_nlm",
    "nosuid",
    "suid",
    "public",
    "log",
    "acl",
    "no_acl",
    "mountpoint",
    "aclok",
    "noaclfab",
    "pnfs",
    "no_pnfs",
    "security_label",
    "mp",
];
/// Options with a value that change nothing here.
const ACCEPTED_VALUED: &[&str] = &[
    "fsid",
    "log",
    "index",
    "refer",
    "replicas",
    "mp",
    "mountpoint",
];

struct Options {
    access: Access,
    has_flavours: bool,
    transports: Transports,
    roots: HostList,
    secure_port: bool,
    /// `rw` and `ro`, bare or with a list, in the order written.
    grants: Vec<(bool, Option<HostList>)>,
}

impl Options {
    fn set_flavours(&mut self, list: &str) -> Result<(), GrammarError> {
        if std::mem::replace(&mut self.has_flavours, true) {
            return Err(GrammarError::FlavoursTwice);
        }
        self.access.flavours = Flavours::parse(list)?;
        Ok(())
    }
}

pub(super) fn parse(value: &str) -> Result<Rules, GrammarError> {
    let value = value.trim();
    if value.is_empty() {
        return Err(GrammarError::Empty);
    }
    if value.contains('(') {
        linux(value)
    } else {
        solaris(value)
    }
}

fn solaris(value: &str) -> Result<Rules, GrammarError> {
    let options = options(if value == "on" { "rw" } else { value })?;
    let mut rules = Vec::new();
    // A list names its clients; a bare word is for all other clients. Without either, all may write.
    for (write, clients) in options
        .grants
        .iter()
        .filter(|(_, clients)| clients.is_some())
    {
        let clients = clients.clone().unwrap_or_default();
        rules.push(Rule {
            clients,
            transports: options.transports,
            access: Access {
                write: *write,
                ..options.access
            },
        });
    }
    let bare = options
        .grants
        .iter()
        .rev()
        .find(|(_, clients)| clients.is_none());
    if let Some(write) = bare
        .map(|(write, _)| *write)
        .or(rules.is_empty().then_some(true))
    {
        rules.push(Rule {
            clients: HostList::all(),
            transports: options.transports,
            access: Access {
                write,
                ..options.access
            },
        });
    }
    Ok(Rules {
        rules,
        roots: options.roots,
        secure_port: options.secure_port,
    })
}

fn linux(value: &str) -> Result<Rules, GrammarError> {
    let mut rules = Vec::new();
    let mut secure_port = false;
    for word in value.split_whitespace() {
        let bad = || GrammarError::Client {
            client: word.to_owned(),
        };
        let (client, rest) = word.split_once('(').ok_or_else(bad)?;
        let options = options(rest.strip_suffix(')').ok_or_else(bad)?)?;
        let clients = if client.is_empty() {
            HostList::all()
        } else {
            HostList::single(client)?
        };
        // exports(5): read-only unless `rw` is there.
        let write = options.grants.last().is_some_and(|(write, _)| *write);
        secure_port |= options.secure_port;
        rules.push(Rule {
            clients,
            transports: options.transports,
            access: Access {
                write,
                ..options.access
            },
        });
    }
    Ok(Rules {
        rules,
        roots: HostList::default(),
        secure_port,
    })
}

fn options(text: &str) -> Result<Options, GrammarError> {
    let mut parsed = Options {
        access: Access {
            write: true,
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            flavours: Flavours::default(),
        },
        has_flavours: false,
        transports: Transports::ALL,
        roots: HostList::default(),
        secure_port: false,
        grants: Vec::new(),
    };
    for option in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let unknown = || GrammarError::Option {
            option: option.to_owned(),
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let id = || {
            value
                .and_then(|v| v.parse::<u32>().ok())
                .ok_or_else(unknown)
        };
        match (name, value) {
            ("rw" | "ro", None) => parsed.grants.push((name == "rw", None)),
            ("rw" | "ro", Some(hosts)) => {
                parsed
                    .grants
                    .push((name == "rw", Some(HostList::parse(hosts)?)));
            }
            ("root", Some(hosts)) => parsed.roots = HostList::parse(hosts)?,
            ("sec", Some(list)) => parsed.set_flavours(list)?,
            ("xprtsec", Some(ways)) => {
                parsed.transports = transports(ways).ok_or_else(unknown)?;
            }
            ("no_root_squash", None) => parsed.access.squash = Squash::None,
            ("root_squash" | "no_all_squash", None) => parsed.access.squash = Squash::Root,
            ("all_squash", None) => parsed.access.squash = Squash::All,
            ("anonuid", Some(_)) => parsed.access.anonymous_uid = id()?,
            ("anongid", Some(_)) => parsed.access.anonymous_gid = id()?,
            ("anon", Some(_)) => {
                parsed.access.anonymous_uid = id()?;
                parsed.access.anonymous_gid = parsed.access.anonymous_uid;
                // share_nfs(8): anonymous ids of 0 give root what it asks for.
                if parsed.access.anonymous_uid == 0 {
                    parsed.access.squash = Squash::None;
                }
            }
            ("secure", None) => parsed.secure_port = true,
            (name, None) if ACCEPTED.contains(&name) => {}
            (name, Some(_)) if ACCEPTED_VALUED.contains(&name) => {}
            _ => return Err(unknown()),
        }
    }
    Ok(parsed)
}

/// Reads the value of `xprtsec`: how connections may be protected, separated by colons.
fn transports(text: &str) -> Option<Transports> {
    let mut allowed = Transports {
        plain: false,
        tls: false,
        mutual_tls: false,
    };
    for way in text.split(':') {
        match way {
            "none" => allowed.plain = true,
            "tls" => allowed.tls = true,
            "mtls" => allowed.mutual_tls = true,
            _ => return None,
        }
    }
    Some(allowed)
}
