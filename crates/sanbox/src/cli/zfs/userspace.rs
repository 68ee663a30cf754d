//! `zfs userspace`, `groupspace` and `projectspace`.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, `zfs_do_userspace`.

use engine::property::DatasetKind;
use engine::{EngineError, PropertyQuery, Usage, UsageOf};

use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{Column, nice_bytes, nice_number, table};
use crate::cli::{Exit, Outcome, Session, dataset_clause};
use crate::names::{self, ids_of};

options! {
    UserspaceOption {
        Numeric = short('n', "numbers instead of names"),
        Scripted = short('H', "no headings, tabs between the columns"),
        Exact = short('p', "exact numbers"),
        Fields(String) = valued('o', "field[,...]", "these columns: type, name, used, quota, objused, objquota"),
        Ascending(String) = valued('s', "field", "sort by this, the smallest first"),
        Descending(String) = valued('S', "field", "sort by this, the largest first"),
        Types(String) = valued('t', "type[,...]", "these: posixuser, smbuser, posixgroup, smbgroup, all"),
        SidToPosix = short('i', "names of SIDs as names of this machine"),
    }
}

/// The declaration of `zfs userspace`.
pub(super) const USERSPACE: Command = Command {
    name: "userspace",
    summary: "show space and quotas of users",
    usage: "\tuserspace [-Hinp] [-o field[,...]] [-s field] ...\n\
         \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
    flags: UserspaceOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

/// The declaration of `zfs groupspace`.
pub(super) const GROUPSPACE: Command = Command {
    name: "groupspace",
    summary: "show space and quotas of groups",
    usage: "\tgroupspace [-Hinp] [-o field[,...]] [-s field] ...\n\
         \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
    flags: UserspaceOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

/// The declaration of `zfs projectspace`.
pub(super) const PROJECTSPACE: Command = Command {
    name: "projectspace",
    summary: "show space and quotas of projects",
    usage: "\tprojectspace [-Hp] [-o field[,...]] [-s field] ... \n\
         \t    [-S field] ... <filesystem|snapshot|path>\n",
    flags: UserspaceOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

/// One line of output.
struct Row {
    kind: &'static str,
    name: String,
    usage: Usage,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let command = session.command().name;
    let projects = command == "projectspace";
    let (mut numbers, mut scripted, mut literal) = (projects, false, false);
    let mut fields: Vec<usize> = (0..FIELDS.len()).collect();
    let mut order: Vec<(usize, bool)> = Vec::new();
    let mut of = match command {
        "groupspace" => vec![UsageOf::Groups],
        "projectspace" => vec![UsageOf::Projects],
        _ => vec![UsageOf::Users],
    };
    let operands = session.read_options(arguments, |session, option| {
        let index_of = |field: &str| FIELDS.iter().position(|known| *known == field);
        let sort_by = |field: &str, descending| match index_of(field) {
            Some(index) => Ok((index, descending)),
            None => Err(session.misuse(format!("invalid field '{field}'"))),
        };
        let wrong = |letter: char| session.misuse(format!("invalid option '{letter}'"));
        match option {
            UserspaceOption::Numeric if projects => return Err(wrong('n')),
            UserspaceOption::Types(_) if projects => return Err(wrong('t')),
            UserspaceOption::SidToPosix if projects => return Err(wrong('i')),
            UserspaceOption::Numeric => numbers = true,
            UserspaceOption::Scripted => scripted = true,
            UserspaceOption::Exact => literal = true,
            UserspaceOption::Fields(list) => {
                fields.clear();
                for word in list.split(',') {
                    let Some(index) = index_of(word) else {
                        session
                            .out
                            .error(format!("invalid type '{word}' for -o option"));
                        return Err(Exit(255));
                    };
                    fields.push(index);
                }
            }
            UserspaceOption::Ascending(field) => order.push(sort_by(&field, false)?),
            UserspaceOption::Descending(field) => order.push(sort_by(&field, true)?),
            UserspaceOption::Types(list) => {
                of.clear();
                for word in list.split(',') {
                    match word {
                        "posixuser" | "smbuser" => of.push(UsageOf::Users),
                        "posixgroup" | "smbgroup" => of.push(UsageOf::Groups),
                        "all" => of.extend([UsageOf::Users, UsageOf::Groups]),
                        _ => {
                            session
                                .out
                                .error(format!("invalid type '{word}' for -t option"));
                            return Err(Exit(255));
                        }
                    }
                }
                of.sort();
                of.dedup();
            }
            // There are no SIDs: all owners are users and groups of POSIX already.
            UserspaceOption::SidToPosix => {}
        }
        Ok(())
    })?;
    let name = match operands.as_slice() {
        [] => return Err(session.misuse("missing dataset name")),
        [name] => name,
        _ => return Err(session.misuse("too many arguments")),
    };
    let (pool, info) = open(session, name, &PropertyQuery::None).await?;
    let mut rows = Vec::new();
    for of in of {
        let usage = match pool.usage(name, of).await {
            Ok(usage) => usage,
            Err(EngineError::WrongKind(_)) => {
                return Err(
                    session.fail("operation is only applicable to filesystems and their snapshots")
                );
            }
            Err(error) => {
                let clause = dataset_clause(&error);
                return Err(session.fail(format!("cannot get used/quota for {name}: {clause}")));
            }
        };
        let names = match of {
            _ if numbers => None,
            UsageOf::Groups => Some(names::groups()),
            _ => Some(names::users()),
        };
        rows.extend(
            usage
                .into_iter()
                .map(|usage| row(of, usage, names.as_deref())),
        );
    }
    if info.kind == DatasetKind::Bookmark || rows.is_empty() {
        return Ok(());
    }
    sort(&mut rows, &order, numbers);
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            fields
                .iter()
                .map(|field| cell(row, *field, literal))
                .collect()
        })
        .collect();
    let columns: Vec<Column> = fields
        .iter()
        .map(|field| Column {
            title: FIELDS[*field].to_ascii_uppercase(),
            right: *field > 1,
            width_min: 0,
        })
        .collect();
    session.out.text(table(&columns, &cells, scripted));
    Ok(())
}

fn row(of: UsageOf, usage: Usage, names: Option<&str>) -> Row {
    // The upper half of a number names a domain of Windows identities.
    let posix = u32::try_from(usage.id).is_ok();
    let kind = match (of, posix) {
        (UsageOf::Users, true) => "POSIX User",
        (UsageOf::Users, false) => "SMB User",
        (UsageOf::Groups, true) => "POSIX Group",
        (UsageOf::Groups, false) => "SMB Group",
        (UsageOf::Projects, _) => "Project",
    };
    let name = names
        .and_then(|list| name_of(list, usage.id))
        .unwrap_or_else(|| usage.id.to_string());
    Row { kind, name, usage }
}

/// Finds the name of a number in the text of `/etc/passwd` or `/etc/group`.
pub(super) fn name_of(list: &str, id: u64) -> Option<String> {
    list.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1)?.parse::<u64>().ok() == Some(id)).then(|| name.to_owned())
    })
}

fn sort(rows: &mut [Row], order: &[(usize, bool)], numbers: bool) {
    let compare = |a: &Row, b: &Row, field: usize| match field {
        0 => a.kind.cmp(b.kind).reverse(),
        1 if numbers => a.usage.id.cmp(&b.usage.id),
        1 => a.name.cmp(&b.name),
        2 => a.usage.used.cmp(&b.usage.used),
        3 => a.usage.quota.cmp(&b.usage.quota),
        4 => a.usage.objects.cmp(&b.usage.objects),
        _ => a.usage.object_quota.cmp(&b.usage.object_quota),
    };
    rows.sort_by(|a, b| {
        let asked = order.iter().map(|(field, reverse)| {
            let ordering = compare(a, b, *field);
            if *reverse {
                ordering.reverse()
            } else {
                ordering
            }
        });
        asked
            .chain([compare(a, b, 0), compare(a, b, 1)])
            .find(|ordering| ordering.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    });
}

fn cell(row: &Row, field: usize, literal: bool) -> String {
    let limit = |number: u64, nice: fn(u64) -> String| match (literal, number) {
        (true, _) => number.to_string(),
        (false, 0) => "none".to_owned(),
        (false, _) => nice(number),
    };
    match field {
        0 => row.kind.to_owned(),
        1 => row.name.clone(),
        2 if literal => row.usage.used.to_string(),
        2 => nice_bytes(row.usage.used),
        3 => limit(row.usage.quota, nice_bytes),
        4 => match row.usage.objects {
            None => "-".to_owned(),
            Some(count) if literal => count.to_string(),
            Some(count) => nice_number(count),
        },
        _ => limit(row.usage.object_quota, nice_number),
    }
}

/// A property of a user, group or project with the number for a name (`userquota@root` is
/// `userquota@0`); other names, and names unknown on this host, stay as they are.
pub(crate) fn numbered(property: &str) -> String {
    let Some((prefix, name)) = engine::property::split_user_space(property) else {
        return property.to_owned();
    };
    if name.bytes().all(|byte| byte.is_ascii_digit()) || prefix.starts_with("project") {
        return property.to_owned();
    }
    let list = match prefix.starts_with("group") {
        true => names::groups(),
        false => names::users(),
    };
    let found = ids_of(&list, name).next();
    found.map_or_else(|| property.to_owned(), |id| format!("{prefix}{id}"))
}

/// The value of such a property as shown.
pub(super) fn shown(property: &str, number: u64, literal: bool) -> Option<String> {
    let (prefix, _) = engine::property::split_user_space(property)?;
    Some(match (literal, number) {
        (true, _) => number.to_string(),
        (false, 0) if prefix.ends_with("quota@") => "none".to_owned(),
        (false, _) if prefix.contains("obj") => nice_number(number),
        (false, _) => nice_bytes(number),
    })
}
