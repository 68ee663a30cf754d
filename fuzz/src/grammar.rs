//! What administrators write: shares, properties, command lines, the configuration file.
//!
//! Bytes that are no UTF-8 are replaced, as the program does with its arguments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use engine::property::{self, DatasetKind, SetContext};
use manage::config::Config;
use nfs::Resolver;
use nfs::exports::Rules;

// The same source as the program's, which is no library.
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../../crates/sanbox/src/cli/flag.rs"]
mod flag;
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../../crates/sanbox/src/cli/getopt.rs"]
mod getopt;
use flag::{Flag, both, long, short, valued};
use getopt::{Getopt, OptError};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));

/// Every name leads to one address and back, so that lists of names are followed to their end.
struct OneHost;

impl Resolver for OneHost {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        vec![CLIENT]
    }

    fn names(&self, _address: IpAddr) -> Vec<String> {
        vec!["esx1.lab.example".to_owned(), "a".repeat(40)]
    }
}

/// A value of `sharenfs`.
pub(crate) fn share(data: &[u8]) {
    let Ok(rules) = Rules::parse(&String::from_utf8_lossy(data)) else {
        return;
    };
    for client in [CLIENT, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        for port in [700, 40_000] {
            if let Some(access) =
                rules.access(client, port, nfs::TransportSecurity::Plain, &OneHost)
            {
                let (uid, _, groups) = access.squashed(0, 0, &[0, 1]);
                assert!(uid == 0 || groups.is_empty());
            }
        }
    }
    // A list may name nobody, as `rw=` does.
    assert!(rules.is_restricted() || rules.groups().is_empty());
}

/// `NAME=VALUE`, as `zfs set` and `zfs create -o` take it. The first byte chooses what it is set on.
pub(crate) fn setting(data: &[u8]) {
    let Some((what, text)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    std::hint::black_box(property::parse_number(&text).is_ok());
    let (name, value) = text.split_once('=').unwrap_or((&text, ""));
    let kinds = [
        DatasetKind::Filesystem,
        DatasetKind::Volume,
        DatasetKind::Snapshot,
    ];
    let context = SetContext {
        kind: kinds[usize::from(*what) % kinds.len()],
        creating: what & 0x10 != 0,
        block_max: if what & 0x20 == 0 {
            128 << 10
        } else {
            16 << 20
        },
    };
    match property::parse_setting(name, value, context) {
        Ok(setting) => assert!(!setting.name().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// `sanbox.toml`.
pub(crate) fn config(data: &[u8]) {
    if let Ok(config) = Config::parse(&String::from_utf8_lossy(data)) {
        assert!(config.memory_bytes().is_ok());
    }
}

/// A command line: the first byte chooses the options there are, newlines end the arguments.
pub(crate) fn options(data: &[u8]) {
    const MANY: &[Flag] = &[
        short('H', ""),
        short('p', ""),
        valued('o', "LIST", ""),
        valued('d', "DEPTH", ""),
        valued('\u{e9}', "VALUE", ""),
        both('j', "json", None, ""),
        both('r', "rate", Some("RATE"), ""),
        long("json-int", None, ""),
        long("limit", Some("N"), ""),
    ];
    const SETS: &[&[Flag]] = &[MANY, &[], &[valued('a', "VALUE", "")]];
    let Some((which, text)) = data.split_first() else {
        return;
    };
    let flags = SETS[usize::from(*which) % SETS.len()];
    let text = String::from_utf8_lossy(text);
    let arguments: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let mut options = Getopt::new(&arguments, flags);
    if usize::from(*which) / SETS.len() % 2 == 1 {
        options = options.ending_at_operands();
    }
    // Every option takes at least a letter away.
    for _ in 0..=text.len() {
        match options.next() {
            Ok(Some(given)) => {
                assert_eq!(flags[given.index].value.is_some(), given.value.is_some());
                assert!(given.value.is_none_or(|value| text.contains(&value)));
            }
            Ok(None) => {
                assert!(options.operands().iter().all(|o| arguments.contains(o)));
                return;
            }
            Err(OptError::Invalid(letter)) => assert!(text.contains(letter)),
            Err(OptError::InvalidLong(given)) => assert!(text.contains(&given)),
            Err(OptError::Missing(letter)) => {
                assert!(flags.iter().any(|flag| flag.short == Some(letter)));
            }
            Err(OptError::MissingLong(name)) => {
                assert!(flags.iter().any(|flag| flag.long == Some(name)));
            }
        }
    }
    panic!("options without end");
}
