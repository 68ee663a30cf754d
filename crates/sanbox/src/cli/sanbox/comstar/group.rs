//! Groups of initiators and of targets, and the target ports.

use manage::targets::{MappingScope, Targets, is_group_name};

use super::super::Arguments;
use super::super::target::{mapped, read, write};
use crate::cli::{Outcome, Session};

/// The groups that a command means: of hosts (`-hg`), or of targets.
fn groups_of<'a>(
    targets: &'a mut Targets,
    command: &str,
) -> &'a mut std::collections::BTreeMap<String, Vec<String>> {
    if command.contains("hg") {
        &mut targets.initiator_groups
    } else {
        &mut targets.target_groups
    }
}

/// The name without the prefix that says it is an iSCSI one.
fn member_name(word: &str) -> &str {
    word.strip_prefix("iscsi.").unwrap_or(word)
}

pub(super) async fn change_group(session: &Session, command: &str, name: &str) -> Outcome {
    if !is_group_name(name) {
        return Err(session.fail(format!("stmfadm: {name}: invalid name")));
    }
    let mut targets = read(session)?;
    let views = mapped(session).await;
    let used = views.iter().find(|(_, mapping)| {
        if command.contains("hg") {
            mapping.seen_by.as_deref() == Some(name)
        } else {
            mapping.scope == MappingScope::Group(name.to_owned())
        }
    });
    let groups = groups_of(&mut targets, command);
    if command.starts_with("create") {
        if groups.contains_key(name) {
            return Err(session.fail(format!("stmfadm: {name}: already exists")));
        }
        groups.insert(name.to_owned(), Vec::new());
    } else {
        if used.is_some() {
            return Err(session.fail(format!("stmfadm: {name}: group is in use by a view")));
        }
        if groups.remove(name).is_none() {
            return Err(session.fail(format!("stmfadm: {name}: not found")));
        }
    }
    write(session, &targets).await
}

pub(super) async fn change_members(
    session: &Session,
    args: &Arguments,
    command: &str,
    members: &[&str],
) -> Outcome {
    let Some(name) = args.value('g') else {
        return Err(session.misuse("stmfadm: -g GROUP is needed"));
    };
    let mut targets = read(session)?;
    let groups = groups_of(&mut targets, command);
    let Some(group) = groups.get_mut(name) else {
        return Err(session.fail(format!("stmfadm: {name}: not found")));
    };
    for member in members.iter().map(|word| member_name(word)) {
        let place = group.iter().position(|known| known == member);
        match (command.starts_with("add"), place) {
            (true, None) => group.push(member.to_owned()),
            (true, Some(_)) => {
                return Err(session.fail(format!("stmfadm: {member}: already exists")));
            }
            (false, Some(at)) => drop(group.remove(at)),
            (false, None) => return Err(session.fail(format!("stmfadm: {member}: not found"))),
        }
    }
    write(session, &targets).await
}

pub(super) fn list_groups(
    session: &Session,
    args: &Arguments,
    command: &str,
    names: &[&str],
) -> Outcome {
    let mut targets = read(session)?;
    let kind = if command.contains("hg") {
        "Host"
    } else {
        "Target"
    };
    let groups = groups_of(&mut targets, command);
    for name in names {
        if !groups.contains_key(*name) {
            return Err(session.fail(format!("stmfadm: {name}: not found")));
        }
    }
    for (name, members) in groups {
        if !names.is_empty() && !names.contains(&name.as_str()) {
            continue;
        }
        session.out.line(format!("{kind} Group: {name}"));
        if args.has('v') {
            for member in members {
                session.out.line(format!("        Member: {member}"));
            }
        }
    }
    Ok(())
}

pub(super) fn list_ports(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
    let targets = read(session)?;
    for name in names {
        if targets.find(name).is_none() {
            return Err(session.fail(format!("stmfadm: {name}: not found")));
        }
    }
    let sessions = session.appliance.iscsi_sessions();
    for target in &targets.targets {
        if !names.is_empty() && !names.contains(&target.name.as_str()) {
            continue;
        }
        session.out.line(format!("Target: {}", target.name));
        if !args.has('v') {
            continue;
        }
        let own: Vec<_> = sessions
            .iter()
            .filter(|one| one.target == target.name)
            .collect();
        let line = |name: &str, value: &str| session.out.line(format!("    {name:<18}: {value}"));
        line("Operational Status", "Online");
        line("Provider Name", "iscsit");
        line(
            "Alias",
            if target.alias.is_empty() {
                "-"
            } else {
                &target.alias
            },
        );
        line("Protocol", "iSCSI");
        line("Sessions", &own.len().to_string());
        for one in own {
            session
                .out
                .line(format!("        Initiator: {}", one.initiator));
        }
    }
    Ok(())
}
