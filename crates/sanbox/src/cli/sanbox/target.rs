//! `sanbox target`: iSCSI targets, the initiators that may log in to them, and the volumes they show.

use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetFilter, PoolHandle, PropertyQuery};
use manage::targets::{
    LUN_MAX, Login, Mapping, MappingScope, Portal, Target, Targets, is_group_name, mappings_text,
    parse_address, parse_mappings,
};

use super::{Arguments, print_table};
use crate::cli::{Exit, Outcome, Session, dataset_clause};
use crate::serve::iscsi::{MAP_PROPERTY, check_target_name};

/// Length of CHAP secrets that initiators accept. RFC 7143 section 9.2.1 wants 96 bits at least.
const SECRET_BYTES_MIN: usize = 12;
const SECRET_BYTES_MAX: usize = 255;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create", name] => create(session, args, name).await,
        ["delete", name] => delete(session, name).await,
        ["list"] => list(session, args).await,
        ["show"] => show_all(session).await,
        ["show", name] => show(session, name).await,
        ["map", name, volume] => map(session, args, name, volume).await,
        ["unmap", name, volume] => unmap(session, name, volume).await,
        ["chap", name] => chap(session, args, name).await,
        ["allow", name, initiators @ ..] => allow(session, name, initiators).await,
        ["portal", name, portals @ ..] => portal(session, name, portals).await,
        ["redirect", name, address] => redirect(session, name, address).await,
        ["discovery"] => discovery(session, args).await,
        ["group", name, initiators @ ..] => group(session, name, initiators).await,
        ["groups"] => groups(session, args),
        ["sessions"] => sessions(session, args),
        [] => Err(session.misuse("missing command")),
        _ => Err(session.misuse("wrong arguments")),
    }
}

pub(super) fn read(session: &Session) -> Result<Targets, Exit> {
    session
        .appliance
        .state()
        .read_targets()
        .map_err(|error| session.fail(error.to_string()))
}

pub(super) async fn write(session: &Session, targets: &Targets) -> Outcome {
    let written = session.appliance.state().write_targets(targets);
    written.map_err(|error| session.fail(error.to_string()))?;
    session.appliance.datasets_changed().await;
    Ok(())
}

fn missing(session: &Session, name: &str) -> Exit {
    session.fail(format!(
        "no such target '{name}'; 'sanbox target create' makes it"
    ))
}

async fn create(session: &Session, args: &Arguments, name: &str) -> Outcome {
    if let Err(why) = check_target_name(name) {
        return Err(session.fail(format!("cannot create target '{name}': {why}")));
    }
    let mut targets = read(session)?;
    if targets.find(name).is_some() {
        return Err(session.fail(format!("cannot create target '{name}': it exists")));
    }
    targets.put(Target {
        name: name.to_owned(),
        alias: args.long("alias").unwrap_or_default().to_owned(),
        ..Target::default()
    });
    write(session, &targets).await
}

async fn delete(session: &Session, name: &str) -> Outcome {
    let mut targets = read(session)?;
    let mapped = mapped(session).await;
    if mapped
        .iter()
        .any(|(_, mapping)| mapping.scope == MappingScope::Target(name.to_owned()))
    {
        return Err(session.fail(format!(
            "cannot delete target '{name}': it shows volumes; 'sanbox target unmap' takes them away"
        )));
    }
    if !targets.remove(name) {
        return Err(missing(session, name));
    }
    write(session, &targets).await
}

/// All mappings of volumes in the pools that are known.
pub(super) async fn mapped(session: &Session) -> Vec<(String, Mapping)> {
    let mut found = Vec::new();
    for known in session.appliance.pools().await {
        if let crate::appliance::KnownPool::Open(pool) = known {
            let volumes = volumes(&pool).await;
            for (name, mappings) in volumes {
                found.extend(mappings.into_iter().map(|mapping| (name.clone(), mapping)));
            }
        }
    }
    found
}

async fn volumes(pool: &PoolHandle) -> Vec<(String, Vec<Mapping>)> {
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Volume],
    };
    let query = PropertyQuery::Named(vec![MAP_PROPERTY.to_owned()]);
    let datasets = pool.datasets(&filter, &query).await.unwrap_or_default();
    let of = |info: engine::DatasetInfo| {
        let property = info.property(MAP_PROPERTY)?;
        let text = match (&property.source, &property.value) {
            (Source::Local | Source::Received, Value::Text(text)) => text.clone(),
            _ => return None,
        };
        Some((info.name, parse_mappings(&text)))
    };
    datasets.into_iter().filter_map(of).collect()
}

async fn list(session: &Session, args: &Arguments) -> Outcome {
    let targets = read(session)?;
    let mapped = mapped(session).await;
    let row = |target: &Target| {
        let shown = mapped
            .iter()
            .filter(|(_, mapping)| targets.covers(&mapping.scope, &target.name));
        vec![target.name.clone(), shown.count().to_string()]
    };
    let rows: Vec<Vec<String>> = targets.targets.iter().map(row).collect();
    print_table(session, args, &["NAME", "LUNS"], &rows);
    Ok(())
}

async fn show_all(session: &Session) -> Outcome {
    let targets = read(session)?;
    let mapped = mapped(session).await;
    for (index, target) in targets.targets.iter().enumerate() {
        if index > 0 {
            session.out.line("");
        }
        describe(session, &targets, target, &mapped);
    }
    Ok(())
}

async fn show(session: &Session, name: &str) -> Outcome {
    let targets = read(session)?;
    let target = targets.find(name).ok_or_else(|| missing(session, name))?;
    describe(session, &targets, target, &mapped(session).await);
    Ok(())
}

/// Prints what a target is and shows, a line each: a word, a tab, its value.
fn describe(session: &Session, targets: &Targets, target: &Target, mapped: &[(String, Mapping)]) {
    let line = |key: &str, value: &str| session.out.line(format!("{key}\t{value}"));
    line("name", &target.name);
    if !target.alias.is_empty() {
        line("alias", &target.alias);
    }
    let user = |login: &Option<Login>| match login {
        Some(login) => login.user.clone(),
        None => "-".to_owned(),
    };
    line("chap", &user(&target.chap));
    line("mutual", &user(&target.mutual));
    let allowed = if target.initiators.is_empty() {
        "all".to_owned()
    } else {
        target.initiators.join(",")
    };
    line("allow", &allowed);
    for portal in &target.portals {
        line("portal", &portal.to_string());
    }
    if let Some(address) = target.redirect {
        line("redirect", &address.to_string());
    }
    let mut luns: Vec<(u16, &str, Option<&str>)> = mapped
        .iter()
        .filter(|(_, mapping)| targets.covers(&mapping.scope, &target.name))
        .map(|(volume, mapping)| (mapping.lun, volume.as_str(), mapping.seen_by.as_deref()))
        .collect();
    luns.sort_unstable();
    for (lun, volume, seen_by) in luns {
        let seen_by = seen_by.map(|group| format!("\t{group}"));
        line(
            "lun",
            &format!("{lun}\t{volume}{}", seen_by.unwrap_or_default()),
        );
    }
}

pub(super) async fn volume_of(
    session: &Session,
    volume: &str,
) -> Result<(PoolHandle, Vec<Mapping>), Exit> {
    let failed = |error: engine::EngineError| {
        session.fail(format!("cannot map '{volume}': {}", dataset_clause(&error)))
    };
    let pool = session.appliance.pool_of(volume).await.map_err(failed)?;
    let query = PropertyQuery::Named(vec![MAP_PROPERTY.to_owned()]);
    let info = pool.dataset(volume, &query).await.map_err(failed)?;
    if info.kind != DatasetKind::Volume {
        return Err(session.fail(format!("cannot map '{volume}': it is no volume")));
    }
    let text = info
        .property(MAP_PROPERTY)
        .filter(|property| matches!(property.source, Source::Local | Source::Received))
        .and_then(|property| property.value.text().map(str::to_owned));
    Ok((pool, parse_mappings(&text.unwrap_or_default())))
}

pub(super) async fn store(
    session: &Session,
    pool: &PoolHandle,
    volume: &str,
    mappings: &[Mapping],
) -> Outcome {
    let stored = if mappings.is_empty() {
        pool.inherit(volume, MAP_PROPERTY, false).await
    } else {
        let setting = (MAP_PROPERTY.to_owned(), mappings_text(mappings));
        pool.set_dataset_properties(volume, &[setting]).await
    };
    stored.map_err(|error| session.fail(format!("cannot map '{volume}': {error}")))?;
    session.record(pool).await;
    session.appliance.datasets_changed().await;
    Ok(())
}

async fn map(session: &Session, args: &Arguments, name: &str, volume: &str) -> Outcome {
    let targets = read(session)?;
    let Ok(scope) = name.parse::<MappingScope>();
    match &scope {
        MappingScope::Target(name) if targets.find(name).is_none() => {
            return Err(missing(session, name));
        }
        MappingScope::Group(group) if !targets.target_groups.contains_key(group) => {
            return Err(session.fail(format!("there is no group of targets '{group}'")));
        }
        _ => {}
    }
    let seen_by = args.long("for").map(str::to_owned);
    if let Some(group) = &seen_by
        && !targets.initiator_groups.contains_key(group)
    {
        return Err(session.fail(format!(
            "there is no group of initiators '{group}'; 'sanbox target group' makes it"
        )));
    }
    let lun = match args.long("lun") {
        Some(text) => match text.parse::<u16>() {
            Ok(lun) if lun <= LUN_MAX => Some(lun),
            _ => {
                return Err(session.fail(format!("--lun {text}: a number from 0 to {LUN_MAX}")));
            }
        },
        None => None,
    };
    show_at(session, &targets, volume, scope, seen_by, lun)
        .await
        .map(|_| ())
}

/// Maps a volume, at the lowest free number if none is wanted. Returns the number.
pub(super) async fn show_at(
    session: &Session,
    targets: &Targets,
    volume: &str,
    scope: MappingScope,
    seen_by: Option<String>,
    lun: Option<u16>,
) -> Result<u16, Exit> {
    let (pool, mut mappings) = volume_of(session, volume).await?;
    let known = mappings
        .iter()
        .find(|mapping| mapping.scope == scope && mapping.seen_by == seen_by);
    if let Some(mapping) = known {
        return Err(session.fail(format!(
            "cannot map '{volume}': it is LUN {} of '{scope}' already",
            mapping.lun
        )));
    }
    let all = mapped(session).await;
    let at = |lun: u16| Mapping {
        scope: scope.clone(),
        lun,
        seen_by: seen_by.clone(),
    };
    let taken = |lun: u16| {
        let wanted = at(lun);
        all.iter()
            .find(|(_, mapping)| targets.conflict(mapping, &wanted))
    };
    let lun = match lun {
        Some(lun) => lun,
        None => (0..=LUN_MAX)
            .find(|lun| taken(*lun).is_none())
            .ok_or_else(|| session.fail("all numbers are taken"))?,
    };
    if let Some((other, _)) = taken(lun) {
        return Err(session.fail(format!(
            "cannot map '{volume}': LUN {lun} of '{scope}' is '{other}'"
        )));
    }
    mappings.push(at(lun));
    store(session, &pool, volume, &mappings).await?;
    Ok(lun)
}

/// Warns when initiators can reach a volume that is about to go from them.
pub(super) async fn warn_in_use(session: &Session, pool: &PoolHandle, volume: &str) {
    if let Ok(info) = pool.dataset(volume, &PropertyQuery::None).await {
        let users = session.appliance.volume_users(info.guid);
        if users > 0 {
            let plural = if users == 1 { "" } else { "s" };
            session.out.error(format!(
                "warning: '{volume}' is in use by {users} iSCSI session{plural}"
            ));
        }
    }
}

async fn unmap(session: &Session, name: &str, volume: &str) -> Outcome {
    let (pool, mut mappings) = volume_of(session, volume).await?;
    let before = mappings.len();
    let Ok(scope) = name.parse::<MappingScope>();
    mappings.retain(|mapping| mapping.scope != scope);
    if mappings.len() == before {
        return Err(session.fail(format!("'{volume}' is not shown by '{name}'")));
    }
    warn_in_use(session, &pool, volume).await;
    store(session, &pool, volume, &mappings).await
}

/// A user and a secret from options: the secret itself, or a file whose first line it is.
fn login(session: &Session, args: &Arguments, prefix: &str) -> Result<Option<Login>, Exit> {
    let option = |name: &str| args.long(&format!("{prefix}{name}"));
    let Some(user) = option("user") else {
        return Ok(None);
    };
    let secret = match (option("secret"), option("secret-file")) {
        (Some(secret), None) => secret.to_owned(),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(session.path(path))
                .map_err(|error| session.fail(format!("{path}: {error}")))?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        _ => {
            return Err(session.misuse(format!(
                "--{prefix}user needs --{prefix}secret or --{prefix}secret-file"
            )));
        }
    };
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Err(session.fail(format!(
            "a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} characters"
        )));
    }
    Ok(Some(Login {
        user: user.to_owned(),
        secret,
    }))
}

async fn chap(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let mut targets = read(session)?;
    let chap = login(session, args, "")?;
    let mutual = login(session, args, "mutual-")?;
    let target = targets
        .find_mut(name)
        .ok_or_else(|| missing(session, name))?;
    if args.has_long("off") {
        (target.chap, target.mutual) = (None, None);
    } else {
        if chap.is_none() && mutual.is_none() {
            return Err(session.misuse("--user, --mutual-user or --off is needed"));
        }
        if let (Some(a), Some(b)) = (&chap, &mutual)
            && a.secret == b.secret
        {
            return Err(session.fail("the two secrets must differ"));
        }
        target.chap = chap.or_else(|| target.chap.take());
        target.mutual = mutual.or_else(|| target.mutual.take());
    }
    write(session, &targets).await
}

async fn allow(session: &Session, name: &str, initiators: &[&str]) -> Outcome {
    let mut targets = read(session)?;
    let target = targets
        .find_mut(name)
        .ok_or_else(|| missing(session, name))?;
    target.initiators = match initiators {
        ["all"] | [] => Vec::new(),
        list => list.iter().map(|entry| (*entry).to_owned()).collect(),
    };
    write(session, &targets).await
}

async fn portal(session: &Session, name: &str, portals: &[&str]) -> Outcome {
    let mut targets = read(session)?;
    let target = targets
        .find_mut(name)
        .ok_or_else(|| missing(session, name))?;
    let mut wanted = Vec::new();
    for text in portals.iter().filter(|text| **text != "any") {
        let portal: Portal = text
            .parse()
            .map_err(|error: manage::targets::NotAPortal| session.fail(error.to_string()))?;
        if wanted
            .iter()
            .any(|known: &Portal| known.address == portal.address)
        {
            return Err(session.fail(format!("'{text}' is there twice")));
        }
        wanted.push(portal);
    }
    target.portals = wanted;
    write(session, &targets).await
}

async fn redirect(session: &Session, name: &str, address: &str) -> Outcome {
    let mut targets = read(session)?;
    let target = targets
        .find_mut(name)
        .ok_or_else(|| missing(session, name))?;
    target.redirect = match address {
        "off" => None,
        text => Some(
            parse_address(text)
                .ok_or_else(|| session.fail(format!("'{text}' is no ADDRESS[:PORT]")))?,
        ),
    };
    write(session, &targets).await
}

async fn discovery(session: &Session, args: &Arguments) -> Outcome {
    let mut targets = read(session)?;
    let chap = login(session, args, "")?;
    if chap.is_none() && !args.has_long("off") {
        return Err(session.misuse("--user or --off is needed"));
    }
    targets.discovery = chap;
    write(session, &targets).await
}

/// Makes a group of initiators; without members it goes.
async fn group(session: &Session, name: &str, initiators: &[&str]) -> Outcome {
    if !is_group_name(name) {
        return Err(session.fail(format!(
            "'{name}': the name of a group has letters, digits, and - _ . : only"
        )));
    }
    let mut targets = read(session)?;
    if initiators.is_empty() {
        let used = mapped(session).await;
        if let Some((volume, _)) = used
            .iter()
            .find(|(_, mapping)| mapping.seen_by.as_deref() == Some(name))
        {
            return Err(session.fail(format!("cannot delete group '{name}': it sees '{volume}'")));
        }
        if targets.initiator_groups.remove(name).is_none() {
            return Err(session.fail(format!("there is no group of initiators '{name}'")));
        }
    } else {
        let members = initiators.iter().map(|entry| (*entry).to_owned()).collect();
        targets.initiator_groups.insert(name.to_owned(), members);
    }
    write(session, &targets).await
}

fn groups(session: &Session, args: &Arguments) -> Outcome {
    let targets = read(session)?;
    let groups = targets.initiator_groups.iter();
    let rows: Vec<Vec<String>> = groups
        .map(|(name, members)| vec![name.clone(), members.join(",")])
        .collect();
    print_table(session, args, &["NAME", "INITIATORS"], &rows);
    Ok(())
}

fn sessions(session: &Session, args: &Arguments) -> Outcome {
    let sessions = session.appliance.iscsi_sessions().into_iter();
    let rows: Vec<Vec<String>> = sessions
        .map(|info| {
            let peers: Vec<String> = info.peers.iter().map(ToString::to_string).collect();
            vec![info.target, info.initiator, peers.join(",")]
        })
        .collect();
    print_table(session, args, &["TARGET", "INITIATOR", "ADDRESSES"], &rows);
    Ok(())
}
