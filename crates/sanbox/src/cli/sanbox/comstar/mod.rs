//! COMSTAR's commands, as far as scripts and plug-ins call them: `stmfadm` and `sbdadm` for logical units, views and groups, `itadm`
//! for targets. They work on the same mappings, targets and properties as `sanbox target`.
//!
//! A logical unit is a volume with an identifier of its own (the property `org.sanbox:lu.guid`); it is registered while
//! `org.sanbox:lu` is `on`. Deleting it leaves the identifier, so that importing it again gives back the same unit. What is printed
//! follows illumos in layout, because scripts read it.

mod group;
mod target;
mod unit;
mod view;

use super::Arguments;
use crate::cli::{Outcome, Session};
use group::{change_group, change_members, list_groups, list_ports};
use unit::{
    create_unit, delete_units, import_unit, list_table, list_units, modify_unit, switch_unit,
};
use view::{add_view, list_view, remove_view};

/// `stmfadm` and `sbdadm`.
pub(super) async fn units(session: &Session, tool: &str, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let Some((command, rest)) = words.split_first() else {
        return Err(session.misuse(format!("{tool}: missing subcommand")));
    };
    match (*command, rest) {
        ("create-lu", [file]) => create_unit(session, args, file, tool).await,
        ("import-lu", [file]) => import_unit(session, file, tool).await,
        ("modify-lu", [unit]) => modify_unit(session, args, unit).await,
        ("delete-lu", [_, ..]) => delete_units(session, args, rest).await,
        ("list-lu", _) if tool == "sbdadm" => list_table(session).await,
        ("list-lu", _) => list_units(session, args, rest).await,
        ("online-lu", [unit]) => switch_unit(session, unit, true).await,
        ("offline-lu", [unit]) => switch_unit(session, unit, false).await,
        _ if tool == "sbdadm" => {
            Err(session.misuse(format!("sbdadm: unknown subcommand '{command}'")))
        }
        ("add-view", [unit]) => add_view(session, args, unit).await,
        ("list-view", entries) => list_view(session, args, entries).await,
        ("remove-view", entries) => remove_view(session, args, entries).await,
        ("create-hg" | "create-tg" | "delete-hg" | "delete-tg", [name]) => {
            change_group(session, command, name).await
        }
        ("add-hg-member" | "add-tg-member" | "remove-hg-member" | "remove-tg-member", [_, ..]) => {
            change_members(session, args, command, rest).await
        }
        ("list-hg" | "list-tg", names) => list_groups(session, args, command, names),
        ("list-target", names) => list_ports(session, args, names),
        ("list-state", []) => {
            session.out.line("Operational Status: online");
            session.out.line("Config Status     : initialized");
            Ok(())
        }
        ("online-target" | "offline-target", _) => Err(session.fail(format!(
            "stmfadm: {command}: targets are online while they exist; 'sanbox target' manages them"
        ))),
        _ => Err(session.misuse(format!("stmfadm: unknown subcommand '{command}'"))),
    }
}

/// `itadm`.
pub(super) async fn targets(session: &Session, args: &Arguments) -> Outcome {
    target::run(session, args).await
}
