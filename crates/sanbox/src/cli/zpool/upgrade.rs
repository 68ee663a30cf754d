//! `zpool upgrade`: what pools lack of the features that this version writes, and enabling them.

use engine::pool_property::{PropertyEntry, PropertyValue};
use engine::{PoolHandle, supported_features};

use super::compatibility::{Requested, wanted};
use super::{Subject, subjects, unavailable};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};

options! {
    UpgradeOption {
        All = short('a', "all pools"),
        List = short('v', "list the features that are known"),
        Version(String) = valued('V', "version", "to this version instead"),
    }
}

/// The declaration of `zpool upgrade`.
pub(super) const UPGRADE: Command = Command {
    name: "upgrade",
    summary: "enable features of newer versions",
    usage: "\tupgrade\n\
         \tupgrade -v\n\
         \tupgrade [-V version] <-a | pool ...>\n",
    flags: UpgradeOption::FLAGS,
    words: &[Word::Pool],
    ..Command::NEW
};

/// The version that means: look at the features. Pools of older ones are not imported.
// OpenZFS: include/sys/fs/zfs.h, SPA_VERSION_FEATURES
const FEATURES: u64 = 5000;
/// The last version before features.
const LAST_NUMBERED: u64 = 28;

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_upgrade (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut all, mut list, mut version) = (false, false, FEATURES);
    let names = session.read_options(arguments, |session, option| {
        match option {
            UpgradeOption::All => all = true,
            UpgradeOption::List => list = true,
            UpgradeOption::Version(text) => match text.parse() {
                Ok(number @ (1..=LAST_NUMBERED | FEATURES)) => version = number,
                _ => return Err(session.misuse(format!("invalid version '{text}'"))),
            },
        }
        Ok(())
    })?;
    if version != FEATURES && !all && names.is_empty() {
        return Err(session.misuse("-V option is incompatible with other arguments"));
    }
    if list && (all || !names.is_empty()) {
        return Err(session.misuse("-v option is incompatible with other arguments"));
    }
    if all && !names.is_empty() {
        return Err(session.misuse("-a option should not be used along with a pool name"));
    }
    session
        .out
        .line("This system supports ZFS pool feature flags.\n");
    if list {
        list_features(session);
        return Ok(());
    }
    let (pools, mut failed) = subjects(session, &names).await;
    let mut open = Vec::new();
    for subject in pools {
        match subject {
            Subject::Open(pool) => open.push(pool),
            Subject::Closed(cached, error) if !names.is_empty() => {
                session.out.error(unavailable(&cached.name, &error));
                failed = true;
            }
            Subject::Closed(..) => {}
        }
    }
    match (all, names.is_empty()) {
        (false, true) => list_lacking(session, &open).await,
        (true, _) => failed |= upgrade_all(session, &open, version).await,
        (false, false) => {
            for pool in &open {
                failed |= upgrade_one(session, pool, version).await;
            }
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

fn list_features(session: &Session) {
    let out = &session.out;
    out.line("The following features are supported:\n");
    out.line("FEAT DESCRIPTION");
    out.line("-".repeat(61));
    for feature in supported_features() {
        let kind = match feature.read_only_compatible {
            true => " (read-only compatible)",
            false => "",
        };
        out.line(format!("{:<37}{kind}", feature.name));
        out.line(format!("     {}", feature.description));
    }
    out.line("\nPools with numbered versions (before features) are not imported.\n");
}

/// Shows what could be enabled, pool by pool.
async fn list_lacking(session: &Session, pools: &[PoolHandle]) {
    let out = &session.out;
    out.line("All pools are formatted using feature flags.\n");
    let mut first = true;
    for pool in pools {
        let properties = pool.properties().await.unwrap_or_default();
        let lacking = lacking(&properties, &Requested::All);
        if lacking.is_empty() {
            continue;
        }
        if first {
            out.line(
                "\nSome supported features are not enabled on the following pools. Once a\n\
                 feature is enabled the pool may become incompatible with software\n\
                 that does not support the feature. See zpool-features(7) for details.\n\n\
                 Note that the pool 'compatibility' feature can be used to inhibit\n\
                 feature upgrades.\n",
            );
            out.line("POOL  FEATURE");
            out.line("---------------");
            first = false;
        }
        out.line(pool.name());
        for feature in lacking {
            out.line(format!("      {feature}"));
        }
    }
    out.line(match first {
        true => "Every feature flags pool has all supported and requested features enabled.",
        false => "",
    });
}

/// Returns whether something went wrong.
async fn upgrade_all(session: &Session, pools: &[PoolHandle], version: u64) -> bool {
    let mut changed = false;
    for pool in pools {
        match enable(session, pool, version).await {
            Ok(count) => changed |= count > 0,
            Err(Exit(_)) => return true,
        }
    }
    if !changed && version == FEATURES {
        session
            .out
            .line("All pools are already formatted using feature flags.\n");
        session.out.line(
            "Every feature flags pool already has all supported and requested features enabled.",
        );
    } else if !changed {
        session.out.line(format!(
            "All pools are already formatted with version {version} or higher."
        ));
    }
    false
}

/// Returns whether something went wrong.
async fn upgrade_one(session: &Session, pool: &PoolHandle, version: u64) -> bool {
    if version != FEATURES {
        session.out.line(format!(
            "Pool '{}' is already formatted using more current version '{FEATURES}'.\n",
            pool.name()
        ));
        return false;
    }
    match enable(session, pool, version).await {
        Ok(0) => session.out.line(format!(
            "Pool '{}' already has all supported and requested features enabled.",
            pool.name()
        )),
        Ok(_) => {}
        Err(Exit(_)) => return true,
    }
    false
}

/// Enables what the pool lacks and is to have; returns how many features these were.
async fn enable(session: &Session, pool: &PoolHandle, version: u64) -> Result<usize, Exit> {
    if version != FEATURES {
        return Ok(0);
    }
    let properties = pool.properties().await.unwrap_or_default();
    let compatibility = properties
        .iter()
        .find(|entry| entry.name == "compatibility")
        .map(|entry| &entry.value);
    let compatibility = match compatibility {
        Some(PropertyValue::Text(text)) => text.as_str(),
        _ => "off",
    };
    let requested =
        Requested::of(compatibility).map_err(|why| session.fail(format!("Error: {why}")))?;
    let lacking = lacking(&properties, &requested);
    for (index, feature) in lacking.iter().enumerate() {
        let property = format!("feature@{feature}");
        if let Err(error) = pool.set_property(&property, "enabled").await {
            return Err(session.fail(format!(
                "cannot set property for '{}': {error}",
                pool.name()
            )));
        }
        if index == 0 {
            session.out.line(format!(
                "Enabled the following features on '{}':",
                pool.name()
            ));
        }
        session.out.line(format!("  {feature}"));
    }
    if !lacking.is_empty() {
        session.out.line("");
        session.record(pool).await;
    }
    Ok(lacking.len())
}

/// Returns the features asked for that the pool has not enabled.
fn lacking(properties: &[PropertyEntry], requested: &Requested) -> Vec<&'static str> {
    wanted(requested)
        .filter(|feature| {
            properties.iter().any(|entry| {
                entry.name.strip_prefix("feature@") == Some(*feature)
                    && entry.value == PropertyValue::Text("disabled".into())
            })
        })
        .collect()
}
