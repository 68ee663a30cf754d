//! `sanbox target`: iSCSI targets, who may log in to them, and which volumes they show.

use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetFilter, PoolHandle, PropertyQuery};
use manage::targets::{LUN_MAX, Login, Mapping, Target, Targets, mappings_text, parse_mappings};

use super::Given;
use crate::cli::{Exit, Outcome, Session, dataset_clause};
use crate::serve::iscsi::{MAP_PROPERTY, check_target_name};

/// Length of CHAP secrets that initiators accept. RFC 7143 section 9.2.1 wants 96 bits at least.
const SECRET_BYTES_MIN: usize = 12;
const SECRET_BYTES_MAX: usize = 255;

pub(super) async fn run(session: &Session, given: &Given) -> Outcome {
    let words: Vec<&str> = given.operands.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create", name] => create(session, given, name).await,
        ["delete", name] => delete(session, name).await,
        ["list"] => list(session).await,
        ["show", name] => show(session, name).await,
        ["map", name, volume] => map(session, given, name, volume).await,
        ["unmap", name, volume] => unmap(session, name, volume).await,
        ["chap", name] => chap(session, given, name).await,
        ["allow", name, initiators @ ..] => allow(session, name, initiators).await,
        ["sessions"] => sessions(session),
        [] => Err(session.misuse("missing command")),
        _ => Err(session.misuse("wrong arguments")),
    }
}

fn read(session: &Session) -> Result<Targets, Exit> {
    session
        .appliance
        .state()
        .read_targets()
        .map_err(|error| session.fail(error.to_string()))
}

async fn write(session: &Session, targets: &Targets) -> Outcome {
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

async fn create(session: &Session, given: &Given, name: &str) -> Outcome {
    if let Err(why) = check_target_name(name) {
        return Err(session.fail(format!("cannot create target '{name}': {why}")));
    }
    let mut targets = read(session)?;
    if targets.find(name).is_some() {
        return Err(session.fail(format!("cannot create target '{name}': it exists")));
    }
    targets.put(Target {
        name: name.to_owned(),
        alias: given.long("alias").unwrap_or_default().to_owned(),
        ..Target::default()
    });
    write(session, &targets).await
}

async fn delete(session: &Session, name: &str) -> Outcome {
    let mut targets = read(session)?;
    let mapped = mapped(session).await;
    if mapped.iter().any(|(_, mapping)| mapping.target == name) {
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
async fn mapped(session: &Session) -> Vec<(String, Mapping)> {
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

async fn list(session: &Session) -> Outcome {
    let targets = read(session)?;
    let mapped = mapped(session).await;
    for target in &targets.targets {
        let count = mapped
            .iter()
            .filter(|(_, mapping)| mapping.target == target.name)
            .count();
        session.out.line(format!("{}\t{count}", target.name));
    }
    Ok(())
}

async fn show(session: &Session, name: &str) -> Outcome {
    let targets = read(session)?;
    let target = targets.find(name).ok_or_else(|| missing(session, name))?;
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
    let mut luns: Vec<(u16, String)> = mapped(session)
        .await
        .into_iter()
        .filter(|(_, mapping)| mapping.target == name)
        .map(|(volume, mapping)| (mapping.lun, volume))
        .collect();
    luns.sort();
    for (lun, volume) in luns {
        session.out.line(format!("lun\t{lun}\t{volume}"));
    }
    Ok(())
}

async fn volume_of(session: &Session, volume: &str) -> Result<(PoolHandle, Vec<Mapping>), Exit> {
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

async fn store(
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

async fn map(session: &Session, given: &Given, name: &str, volume: &str) -> Outcome {
    let targets = read(session)?;
    if targets.find(name).is_none() {
        return Err(missing(session, name));
    }
    let (pool, mut mappings) = volume_of(session, volume).await?;
    let all = mapped(session).await;
    let taken = |lun: u16| {
        all.iter()
            .find(|(_, mapping)| mapping.target == name && mapping.lun == lun)
    };
    if let Some(mapping) = mappings.iter().find(|mapping| mapping.target == name) {
        return Err(session.fail(format!(
            "cannot map '{volume}': it is LUN {} of '{name}' already",
            mapping.lun
        )));
    }
    let lun = match given.long("lun") {
        Some(text) => match text.parse::<u16>() {
            Ok(lun) if lun <= LUN_MAX => lun,
            _ => {
                return Err(session.fail(format!("--lun {text}: a number from 0 to {LUN_MAX}")));
            }
        },
        None => (0..=LUN_MAX)
            .find(|lun| taken(*lun).is_none())
            .ok_or_else(|| session.fail("all numbers are taken"))?,
    };
    if let Some((other, _)) = taken(lun) {
        return Err(session.fail(format!(
            "cannot map '{volume}': LUN {lun} of '{name}' is '{other}'"
        )));
    }
    mappings.push(Mapping {
        target: name.to_owned(),
        lun,
    });
    store(session, &pool, volume, &mappings).await
}

async fn unmap(session: &Session, name: &str, volume: &str) -> Outcome {
    let (pool, mut mappings) = volume_of(session, volume).await?;
    let before = mappings.len();
    mappings.retain(|mapping| mapping.target != name);
    if mappings.len() == before {
        return Err(session.fail(format!("'{volume}' is not shown by '{name}'")));
    }
    store(session, &pool, volume, &mappings).await
}

/// A user and a secret from options: the secret itself, or a file whose first line it is.
fn login(session: &Session, given: &Given, prefix: &str) -> Result<Option<Login>, Exit> {
    let option = |name: &str| given.long(&format!("{prefix}{name}"));
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

async fn chap(session: &Session, given: &Given, name: &str) -> Outcome {
    let mut targets = read(session)?;
    let chap = login(session, given, "")?;
    let mutual = login(session, given, "mutual-")?;
    let target = targets
        .find_mut(name)
        .ok_or_else(|| missing(session, name))?;
    if given.has_long("off") {
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

fn sessions(session: &Session) -> Outcome {
    for info in session.appliance.iscsi_sessions() {
        let peers: Vec<String> = info.peers.iter().map(ToString::to_string).collect();
        session.out.line(format!(
            "{}\t{}\t{}",
            info.target,
            info.initiator,
            peers.join(",")
        ));
    }
    Ok(())
}
