//! `itadm`: targets and portal groups.

use manage::targets::{Portal, Target, Targets, is_group_name};

use super::super::Arguments;
use super::super::target::{read, write};
use crate::cli::{Outcome, Session};
use crate::serve::iscsi::check_target_name;

/// `itadm`.
pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create-target"] => create_target(session, args).await,
        ["modify-target", name] => modify_target(session, args, name).await,
        ["delete-target", names @ ..] if !names.is_empty() => {
            delete_targets(session, args, names).await
        }
        ["list-target", names @ ..] => list_targets(session, args, names),
        ["create-tpg", name, addresses @ ..] if !addresses.is_empty() => {
            create_portals(session, name, addresses).await
        }
        ["delete-tpg", name] => {
            let mut targets = read(session)?;
            if targets.portal_groups.remove(*name).is_none() {
                return Err(session.fail(format!("itadm: {name}: not found")));
            }
            write(session, &targets).await
        }
        ["list-tpg"] => {
            session
                .out
                .line(format!("{:<45}{}", "TARGET PORTAL GROUP", "PORTAL COUNT"));
            for (name, portals) in &read(session)?.portal_groups {
                session.out.line(format!("{name:<45}{}", portals.len()));
                if args.has('v') {
                    for portal in portals {
                        session.out.line(format!("    {}", portal.address));
                    }
                }
            }
            Ok(())
        }
        [] => Err(session.misuse("itadm: missing subcommand")),
        _ => Err(session.misuse("itadm: unknown subcommand, or wrong operands")),
    }
}

/// Gives a target what options say.
fn apply(session: &Session, args: &Arguments, targets: &Targets, target: &mut Target) -> Outcome {
    if let Some(alias) = args.value('l') {
        alias.clone_into(&mut target.alias);
    }
    match args.value('a') {
        None | Some("chap" | "default") => {}
        Some("none") => (target.chap, target.mutual) = (None, None),
        Some(other) => return Err(session.fail(format!("itadm: {other}: none or chap"))),
    }
    if let Some(names) = args.value('t') {
        let mut portals: Vec<Portal> = Vec::new();
        for name in names.split(',').filter(|name| *name != "default") {
            let Some(members) = targets.portal_groups.get(name) else {
                return Err(session.fail(format!("itadm: {name}: target portal group not found")));
            };
            portals.extend(members);
        }
        target.portals = portals;
    }
    Ok(())
}

async fn create_target(session: &Session, args: &Arguments) -> Outcome {
    let mut targets = read(session)?;
    let name = match args.value('n') {
        Some(name) => name.to_owned(),
        None => {
            let mut number = 0;
            loop {
                let name = format!("iqn.2026-11.org.sanbox:target{number}");
                if targets.find(&name).is_none() {
                    break name;
                }
                number += 1;
            }
        }
    };
    if let Err(why) = check_target_name(&name) {
        return Err(session.fail(format!("itadm: {name}: {why}")));
    }
    if targets.find(&name).is_some() {
        return Err(session.fail(format!("itadm: {name}: target already exists")));
    }
    let mut target = Target {
        name: name.clone(),
        ..Target::default()
    };
    apply(session, args, &targets, &mut target)?;
    if args.value('a') == Some("chap") {
        return Err(session.fail(format!(
            "itadm: secrets are given by 'sanbox target chap {name} --user NAME --secret-file FILE'"
        )));
    }
    targets.put(target);
    write(session, &targets).await?;
    session
        .out
        .line(format!("Target {name} successfully created"));
    Ok(())
}

async fn modify_target(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let mut targets = read(session)?;
    let Some(mut target) = targets.find(name).cloned() else {
        return Err(session.fail(format!("itadm: {name}: target not found")));
    };
    apply(session, args, &targets, &mut target)?;
    targets.put(target);
    write(session, &targets).await?;
    session
        .out
        .line(format!("Target {name} successfully modified"));
    Ok(())
}

async fn delete_targets(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
    let mut targets = read(session)?;
    let sessions = session.appliance.iscsi_sessions();
    for name in names {
        let busy = sessions.iter().any(|one| one.target == *name);
        if busy && !args.has('f') {
            return Err(session.fail(format!(
                "itadm: {name}: target is in use (-f ends its sessions)"
            )));
        }
        if !targets.remove(name) {
            return Err(session.fail(format!("itadm: {name}: target not found")));
        }
    }
    write(session, &targets).await
}

fn list_targets(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
    let targets = read(session)?;
    for name in names {
        if targets.find(name).is_none() {
            return Err(session.fail(format!("itadm: {name}: target not found")));
        }
    }
    let sessions = session.appliance.iscsi_sessions();
    session
        .out
        .line(format!("{:<61}{:<9}{}", "TARGET NAME", "STATE", "SESSIONS"));
    for target in &targets.targets {
        if !names.is_empty() && !names.contains(&target.name.as_str()) {
            continue;
        }
        let count = sessions
            .iter()
            .filter(|one| one.target == target.name)
            .count();
        session
            .out
            .line(format!("{:<61}{:<9}{count}", target.name, "online"));
        if args.has('v') {
            let line = |name: &str, value: &str| session.out.line(format!("\t{name:<20}\t{value}"));
            line(
                "alias:",
                if target.alias.is_empty() {
                    "-"
                } else {
                    &target.alias
                },
            );
            line(
                "auth:",
                if target.chap.is_some() {
                    "chap"
                } else {
                    "none"
                },
            );
            let user = target
                .mutual
                .as_ref()
                .map_or("-", |login| login.user.as_str());
            line("targetchapuser:", user);
            line(
                "targetchapsecret:",
                if target.mutual.is_some() {
                    "set"
                } else {
                    "unset"
                },
            );
            let portals: Vec<String> = target
                .portals
                .iter()
                .map(|portal| portal.address.to_string())
                .collect();
            line("portals:", if portals.is_empty() { "default" } else { "" });
            for portal in portals {
                session.out.line(format!("\t\t{portal}"));
            }
        }
    }
    Ok(())
}

async fn create_portals(session: &Session, name: &str, addresses: &[&str]) -> Outcome {
    if !is_group_name(name) {
        return Err(session.fail(format!("itadm: {name}: invalid name")));
    }
    let mut targets = read(session)?;
    if targets.portal_groups.contains_key(name) {
        return Err(session.fail(format!("itadm: {name}: already exists")));
    }
    let used: Vec<u16> = targets
        .portal_groups
        .values()
        .flatten()
        .map(|portal| portal.group)
        .collect();
    // Tag 1 is that of addresses without a group.
    let group = (2..u16::MAX).find(|tag| !used.contains(tag)).unwrap_or(2);
    let mut portals = Vec::new();
    for text in addresses.iter().flat_map(|text| text.split(',')) {
        let Some(address) = manage::targets::parse_address(text) else {
            return Err(session.fail(format!("itadm: {text}: not ADDRESS[:PORT]")));
        };
        portals.push(Portal { address, group });
    }
    targets.portal_groups.insert(name.to_owned(), portals);
    write(session, &targets).await
}
