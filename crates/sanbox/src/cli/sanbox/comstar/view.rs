//! Views: mappings of logical units for groups of initiators and of targets.

use manage::targets::{Mapping, MappingScope};

use super::super::Arguments;
use super::super::target::{read, show_at, store, volume_of, warn_in_use};
use super::unit::{Unit, find_unit};
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn add_view(session: &Session, args: &Arguments, guid: &str) -> Outcome {
    let unit = find_unit(session, guid).await?;
    let targets = read(session)?;
    let scope = match args.value('t') {
        Some(group) if targets.target_groups.contains_key(group) => {
            MappingScope::Group(group.to_owned())
        }
        Some(group) => {
            return Err(session.fail(format!("stmfadm: {group}: target group not found")));
        }
        None => MappingScope::All,
    };
    let seen_by = args.value('h').map(str::to_owned);
    if let Some(group) = &seen_by
        && !targets.initiator_groups.contains_key(group)
    {
        return Err(session.fail(format!("stmfadm: {group}: host group not found")));
    }
    let lun = match args.value('n') {
        None => None,
        Some(text) => match text.parse() {
            Ok(lun) if lun <= manage::targets::LUN_MAX => Some(lun),
            _ => return Err(session.fail(format!("stmfadm: {text}: invalid LUN"))),
        },
    };
    show_at(session, &targets, &unit.volume, scope, seen_by, lun)
        .await
        .map(|_| ())
}

async fn views_of(session: &Session, args: &Arguments) -> Result<(Unit, Vec<Mapping>), Exit> {
    let Some(guid) = args.value('l') else {
        return Err(session.misuse("stmfadm: -l GUID is needed"));
    };
    let unit = find_unit(session, guid).await?;
    let (_, mappings) = volume_of(session, &unit.volume).await?;
    Ok((unit, mappings))
}

fn entries(session: &Session, words: &[&str], count: usize) -> Result<Vec<usize>, Exit> {
    let parse = |word: &&str| match word.parse::<usize>() {
        Ok(entry) if entry < count => Ok(entry),
        _ => Err(session.fail(format!("stmfadm: {word}: view entry not found"))),
    };
    words.iter().map(parse).collect()
}

pub(super) async fn list_view(session: &Session, args: &Arguments, words: &[&str]) -> Outcome {
    let (unit, mappings) = views_of(session, args).await?;
    if mappings.is_empty() {
        return Err(session.fail(format!(
            "stmfadm: {}: no views found",
            unit.guid.to_ascii_uppercase()
        )));
    }
    let wanted = entries(session, words, mappings.len())?;
    for (number, mapping) in mappings.iter().enumerate() {
        if !wanted.is_empty() && !wanted.contains(&number) {
            continue;
        }
        let scope = match &mapping.scope {
            MappingScope::All => "All".to_owned(),
            MappingScope::Group(group) => group.clone(),
            MappingScope::Target(name) => name.clone(),
        };
        session.out.line(format!("View Entry: {number}"));
        let line = |name: &str, value: &str| session.out.line(format!("    {name:<12} : {value}"));
        line("Host group", mapping.seen_by.as_deref().unwrap_or("All"));
        line("Target Group", &scope);
        line("LUN", &mapping.lun.to_string());
    }
    Ok(())
}

pub(super) async fn remove_view(session: &Session, args: &Arguments, words: &[&str]) -> Outcome {
    let (unit, mappings) = views_of(session, args).await?;
    let gone = if args.has('a') {
        (0..mappings.len()).collect()
    } else if words.is_empty() {
        return Err(session.misuse("stmfadm: which entry, or -a for all"));
    } else {
        entries(session, words, mappings.len())?
    };
    warn_in_use(session, &unit.pool, &unit.volume).await;
    let left: Vec<Mapping> = mappings
        .into_iter()
        .enumerate()
        .filter(|(number, _)| !gone.contains(number))
        .map(|(_, mapping)| mapping)
        .collect();
    store(session, &unit.pool, &unit.volume, &left).await
}
