//! `zpool upgrade`: pools of old versions, what others lack of the features that this version writes, and the change of both.

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

/// The version that means: look at the features.
const FEATURES: u64 = engine::pool_version::FEATURES;
/// The last version before features.
const LAST_NUMBERED: u64 = engine::pool_version::BEFORE_FEATURES;

const NUMBERED: &str = "\
The following legacy versions are also supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS version
 2   Ditto blocks (replicated metadata)
 3   Hot spares and double parity RAID-Z
 4   zpool history
 5   Compression using the gzip algorithm
 6   bootfs pool property
 7   Separate intent log devices
 8   Delegated administration
 9   refquota and refreservation properties
 10  Cache devices
 11  Improved scrub performance
 12  Snapshot properties
 13  snapused property
 14  passthrough-x aclinherit
 15  user/group space accounting
 16  stmf property support
 17  Triple-parity RAID-Z
 18  Snapshot user holds
 19  Log device removal
 20  Compression using zle (zero-length encoding)
 21  Deduplication
 22  Received properties
 23  Slim ZIL
 24  System attributes
 25  Improved scrub stats
 26  Improved snapshot deletion performance
 27  Improved snapshot creation performance
 28  Multiple vdev replacements

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.

";

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
    out.line("");
    out.text(NUMBERED);
}

/// Shows what could be enabled, pool by pool.
async fn list_lacking(session: &Session, pools: &[PoolHandle]) {
    let out = &session.out;
    let mut old = Vec::new();
    for pool in pools {
        let version = pool.version().await.unwrap_or(FEATURES);
        if version < FEATURES {
            old.push((version, pool.name()));
        }
    }
    if old.is_empty() {
        out.line("All pools are formatted using feature flags.\n");
    } else {
        list_old(session, &old);
    }
    let mut first = true;
    for pool in pools {
        if old.iter().any(|(_, name)| *name == pool.name()) {
            continue;
        }
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

fn list_old(session: &Session, old: &[(u64, &str)]) {
    let out = &session.out;
    out.line(
        "The following pools are formatted with legacy version numbers and can\n\
         be upgraded to use feature flags.  After being upgraded, these pools\n\
         will no longer be accessible by software that does not support feature\n\
         flags.\n\n\
         Note that setting a pool's 'compatibility' feature to 'legacy' will\n\
         inhibit upgrades.\n\n\
         VER  POOL\n---  ------------",
    );
    for (version, name) in old {
        out.line(format!("{version:2}   {name}"));
    }
    out.line("\nUse 'zpool upgrade -v' for a list of available legacy versions.");
}

/// Returns whether something went wrong.
async fn upgrade_all(session: &Session, pools: &[PoolHandle], version: u64) -> bool {
    let mut changed = false;
    for pool in pools {
        match upgrade(session, pool, version).await {
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
    let current = pool.version().await.unwrap_or(0);
    if current > version {
        session.out.line(format!(
            "Pool '{}' is already formatted using more current version '{current}'.\n",
            pool.name()
        ));
        return false;
    }
    if current == version && version != FEATURES {
        session.out.line(format!(
            "Pool '{}' is already formatted using version {version}.\n",
            pool.name()
        ));
        return false;
    }
    match upgrade(session, pool, version).await {
        Ok(0) => session.out.line(format!(
            "Pool '{}' already has all supported and requested features enabled.",
            pool.name()
        )),
        Ok(_) => {}
        Err(Exit(_)) => return true,
    }
    false
}

/// Makes the pool one of `version`, if it is older, and enables the features that it is to have then; returns how many changes
/// these were.
async fn upgrade(session: &Session, pool: &PoolHandle, version: u64) -> Result<usize, Exit> {
    let properties = pool.properties().await.unwrap_or_default();
    let compatibility = properties
        .iter()
        .find(|entry| entry.name == "compatibility")
        .map(|entry| &entry.value);
    let compatibility = match compatibility {
        Some(PropertyValue::Text(text)) => text.as_str(),
        _ => "off",
    };
    let old = pool.version().await.unwrap_or(version);
    let mut changes = 0;
    if old < version {
        if compatibility == "legacy" {
            return Err(session
                .fail("Upgrade not performed because 'compatibility' property set to 'legacy'."));
        }
        if let Err(error) = pool.upgrade(version).await {
            let name = pool.name();
            return Err(session.fail(format!("cannot upgrade '{name}': {error}")));
        }
        let to = match version {
            FEATURES => "feature flags".to_owned(),
            version => format!("version {version}"),
        };
        session.out.line(format!(
            "Successfully upgraded '{}' from version {old} to {to}.",
            pool.name()
        ));
        changes += 1;
    }
    if version == FEATURES {
        changes += enable(session, pool, compatibility).await?;
    }
    if changes > 0 {
        session.out.line("");
        session.record(pool).await;
    }
    Ok(changes)
}

/// Enables the features that the pool lacks and is to have; returns how many these were.
async fn enable(session: &Session, pool: &PoolHandle, compatibility: &str) -> Result<usize, Exit> {
    let properties = pool.properties().await.unwrap_or_default();
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
