//! `sanbox group`: groups of users.

use std::sync::Arc;

use manage::accounts::{GroupEntry, NewGroup, Role};
use manage::api::{Api, machine_groups};
use manage::database::seconds_since_epoch;

use super::user::{done, parse_role};
use super::{Arguments, print_table};
use crate::cli::{Exit, Outcome, Session};
use crate::serve::management;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    match words[..] {
        ["add", name] => add(session, args, &api, name).await?,
        ["list"] => list(session, args, &api),
        ["role", name, role] => {
            let role = given_role(session, role)?;
            let changed = api.accounts.change_group_role(name, role).await;
            let role = role.map_or("none", Role::as_str);
            let event = format!("changed the role of group '{name}' to {role}");
            done(session, &api, changed, event)?;
        }
        ["delete", name] => {
            let removed = api.accounts.remove_group(name).await;
            done(session, &api, removed, format!("removed group '{name}'"))?;
        }
        ["join", name, ref users @ ..] if !users.is_empty() => {
            let users: Vec<String> = users.iter().map(|user| (*user).to_owned()).collect();
            let added = api.accounts.add_members(name, &users).await;
            let event = format!("added {} to group '{name}'", users.join(", "));
            done(session, &api, added, event)?;
        }
        ["leave", name, user] => {
            let removed = api.accounts.remove_member(name, user).await;
            let event = format!("took '{user}' out of group '{name}'");
            done(session, &api, removed, event)?;
        }
        _ => {
            return Err(session.misuse(
                "add NAME, list, role NAME ROLE, delete NAME, join NAME USER... or leave NAME USER",
            ));
        }
    }
    // A process that ends now would leave the log of accounts, and the list of groups, unwritten.
    api.accounts.database().settle().await;
    Ok(())
}

fn given_role(session: &Session, word: &str) -> Result<Option<Role>, Exit> {
    match word {
        "none" => Ok(None),
        word => parse_role(session, word).map(Some),
    }
}

async fn add(session: &Session, args: &Arguments, api: &Arc<Api>, name: &str) -> Outcome {
    let role = match args.long("role") {
        Some(word) => given_role(session, word)?,
        None => None,
    };
    let number = match args.long("number") {
        Some(word) => Some(
            word.parse()
                .map_err(|_| session.misuse(format!("--number {word} is no number")))?,
        ),
        None => None,
    };
    let new = NewGroup {
        name: name.to_owned(),
        number,
        role,
    };
    let machine = machine_groups().await;
    let now = seconds_since_epoch();
    let added = api.accounts.add_group(new, &machine, now).await;
    let event = format!("made group '{name}'");
    done(session, api, added.map(drop), event)
}

fn list(session: &Session, args: &Arguments, api: &Arc<Api>) {
    let row = |group: GroupEntry| {
        let members = match group.members.is_empty() {
            true => "-".to_owned(),
            false => group.members.join(","),
        };
        let role = group.role.map_or("-", Role::as_str).to_owned();
        vec![group.name, group.number.to_string(), role, members]
    };
    let rows: Vec<Vec<String>> = api.accounts.groups().into_iter().map(row).collect();
    print_table(session, args, &["NAME", "NUMBER", "ROLE", "MEMBERS"], &rows);
}
