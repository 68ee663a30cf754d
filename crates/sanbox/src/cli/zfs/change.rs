//! `zfs set` and `zfs inherit`.

use engine::property::{self, Attribute, DatasetKind, Property};
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};

use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};
use crate::follow::{self, Affected, Change};

options! {
    SetOption {
        Unmounted = short('u', "do not mount, unmount or share because of it"),
    }
}

/// The declaration of `zfs set`.
pub(super) const SET: Command = Command {
    name: "set",
    summary: "set properties",
    usage: "\tset [-u] <property=value> ... <filesystem|volume|snapshot> ...\n",
    flags: SetOption::FLAGS,
    says_missing: false,
    words: &[Word::Setting, Word::Dataset],
    lists_properties: true,
    examples: &[
        (
            "zfs set quota=100G tank/home",
            "a limit with everything below",
        ),
        (
            "zfs set sharenfs='rw=@192.0.2.0/24,no_root_squash' tank/vms",
            "share it over NFS with one network",
        ),
    ],
    ..Command::NEW
};

options! {
    InheritOption {
        Recursive = short('r', "of what lies below, too"),
        Received = short('S', "to the received value, if there is one"),
    }
}

/// The declaration of `zfs inherit`.
pub(super) const INHERIT: Command = Command {
    name: "inherit",
    summary: "let properties come from the parent again",
    usage: "\tinherit [-rS] <property> <filesystem|volume|snapshot> ...\n",
    flags: InheritOption::FLAGS,
    says_missing: false,
    words: &[Word::Property, Word::Dataset],
    lists_properties: true,
    examples: &[(
        "zfs inherit -r compression tank/home",
        "back to what the parent says, everywhere below",
    )],
    ..Command::NEW
};

pub(super) async fn set(session: &Session, arguments: &[String]) -> Outcome {
    let mut unmounted = false;
    let operands = session.read_options(arguments, |_, SetOption::Unmounted| {
        unmounted = true;
        Ok(())
    })?;
    if operands.is_empty() {
        return Err(session.misuse("missing arguments"));
    }
    let count = operands
        .iter()
        .take_while(|word| word.contains('='))
        .count();
    let (settings, datasets) = operands.split_at(count);
    if settings.is_empty() {
        return Err(session.misuse("missing property=value argument(s)"));
    }
    if datasets.is_empty() {
        return Err(session.misuse("missing dataset name(s)"));
    }
    if datasets.iter().any(|word| word.contains('=')) {
        return Err(session.misuse("invalid argument order"));
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for setting in settings {
        let Some((name, value)) = setting.split_once('=') else {
            continue;
        };
        if pairs.iter().any(|(known, _)| known == name) {
            return Err(session.misuse(format!("property '{name}' specified multiple times")));
        }
        pairs.push((super::userspace::numbered(name), value.to_owned()));
    }
    let mut failed = false;
    for name in datasets {
        let Ok((pool, _)) = open(session, name, &PropertyQuery::None).await else {
            failed = true;
            continue;
        };
        if let Some(reason) = crate::appliance::check_share_settings(&pairs) {
            session
                .out
                .error(format!("cannot set property for '{name}': {reason}"));
            failed = true;
            continue;
        }
        let change = change_of(&pairs).filter(|_| !unmounted);
        let affected = Affected::unmount(&session.appliance, &pool, name, change, false).await;
        let affected = match affected {
            Ok(affected) => affected,
            Err(why) => {
                session.out.error(why);
                failed = true;
                continue;
            }
        };
        let set = pool.set_dataset_properties(name, &pairs).await;
        let mounted = affected.mount_again(&session.appliance, &pool, name).await;
        if let Err(error) = &set {
            session
                .out
                .error(format!("cannot set property for '{name}': {error}"));
            failed = true;
            continue;
        }
        if pairs.iter().any(|(name, _)| is_mount_flag(name)) {
            follow::obey(&session.appliance, &pool, name).await.ok();
        }
        session.record(&pool).await;
        session.appliance.datasets_changed().await;
        if let Err(why) = mounted {
            session.out.error(why);
            session
                .out
                .error("property may be set but unable to remount filesystem");
            failed = true;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// What mounts have to follow of some settings.
fn change_of(pairs: &[(String, String)]) -> Option<Change> {
    if pairs.iter().any(|(name, _)| name == "mountpoint") {
        return Some(Change::Point);
    }
    let off = ("canmount".to_owned(), "off".to_owned());
    if pairs.contains(&off) {
        return Some(Change::Off);
    }
    let lists = pairs.iter().any(|(name, _)| name == "acltype");
    lists.then_some(Change::Lists)
}

/// Whether a property decides how a file system is mounted.
fn is_mount_flag(name: &str) -> bool {
    matches!(name, "readonly" | "rdonly" | "devices" | "setuid" | "exec")
}

/// The stored name of a property that can be inherited, or with `received` reverted to what was received.
fn inheritable(session: &Session, name: &str, received: bool) -> Result<String, Exit> {
    let Some(native) = Property::from_name(name) else {
        if property::is_user_property(name) {
            return Ok(name.to_owned());
        }
        return Err(session.misuse(format!("invalid property '{name}'")));
    };
    let (name, attribute) = (native.name(), native.descriptor().attribute);
    if attribute == Attribute::ReadOnly {
        return Err(session.fail(format!("{name} property is read-only")));
    }
    if attribute != Attribute::Inherit && !received {
        session
            .out
            .error(format!("'{name}' property cannot be inherited"));
        if matches!(
            native,
            Property::Quota | Property::Reservation | Property::RefQuota | Property::RefReservation
        ) {
            session
                .out
                .error(format!("use 'zfs set {name}=none' to clear"));
            session.out.error(format!(
                "use 'zfs inherit -S {name}' to revert to received value"
            ));
        }
        return Err(Exit(1));
    }
    if received && matches!(native, Property::VolSize | Property::Version) {
        return Err(session.fail(format!(
            "'{name}' property cannot be reverted to a received value"
        )));
    }
    Ok(name.to_owned())
}

/// A dataset and those below it, but for those that have no such property.
async fn all_with(pool: &PoolHandle, top: DatasetInfo, property: &str) -> Vec<String> {
    let applies = |kind| Property::from_name(property).is_none_or(|native| native.applies_to(kind));
    let filter = DatasetFilter {
        root: top.name.clone(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let mut found = vec![top];
    if let Ok(below) = pool.datasets(&filter, &PropertyQuery::None).await {
        found.extend(below.into_iter().skip(1));
    }
    found.retain(|info| applies(info.kind));
    found.into_iter().map(|info| info.name).collect()
}

pub(super) async fn inherit(session: &Session, arguments: &[String]) -> Outcome {
    let (mut recursive, mut received) = (false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            InheritOption::Recursive => recursive = true,
            InheritOption::Received => received = true,
        }
        Ok(())
    })?;
    let Some((name, datasets)) = operands.split_first() else {
        return Err(session.misuse("missing property argument"));
    };
    if datasets.is_empty() {
        return Err(session.misuse("missing dataset argument"));
    }
    let name = inheritable(session, name, received)?;
    let mut failed = false;
    for dataset in datasets {
        let Ok((pool, info)) = open(session, dataset, &PropertyQuery::None).await else {
            failed = true;
            continue;
        };
        let targets = match recursive {
            true => all_with(&pool, info, &name).await,
            false => vec![info.name],
        };
        let change = match (name.as_str(), recursive) {
            ("mountpoint", false) => Some(Change::Point),
            ("mountpoint", true) => Some(Change::Points),
            ("acltype", false) => Some(Change::Lists),
            ("acltype", true) => Some(Change::AllLists),
            _ => None,
        };
        let affected = Affected::unmount(&session.appliance, &pool, dataset, change, false);
        let affected = match affected.await {
            Ok(affected) => affected,
            Err(why) => {
                session.out.error(why);
                failed = true;
                continue;
            }
        };
        let mut changed = false;
        for target in targets {
            match pool.inherit(&target, &name, received).await {
                Ok(()) => changed = true,
                Err(error) => {
                    session
                        .out
                        .error(format!("cannot inherit {name} for '{target}': {error}"));
                    failed = true;
                }
            }
        }
        let mounted = affected.mount_again(&session.appliance, &pool, dataset);
        if let Err(why) = mounted.await {
            session.out.error(why);
            failed = true;
        }
        if changed {
            if is_mount_flag(&name) {
                follow::obey(&session.appliance, &pool, dataset).await.ok();
            }
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}
