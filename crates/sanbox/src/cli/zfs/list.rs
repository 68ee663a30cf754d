//! `zfs list`.

use std::cmp::Ordering;

use engine::property::{DatasetKind, Property, PropertyType};
use engine::{DatasetInfo, PropertyQuery};
use serde_json::{Map, Value};

use super::{
    Selection, dataset_json, depth, kinds, name_order, property_name, property_names, select,
    shown, text_of_property,
};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{Column, table};
use crate::cli::{Exit, Outcome, Session, json as forms};

options! {
    ListOption {
        Json = both('j', "json", None, "print JSON"),
        JsonInt = long("json-int", None, "with -j, numbers as numbers"),
        Scripted = short('H', "no headings, tabs between the columns"),
        Exact = short('p', "exact numbers"),
        Recursive = short('r', "what lies below, too"),
        Depth(String) = valued('d', "max", "so many levels below"),
        Columns(String) = valued('o', "property[,...]", "these columns"),
        Ascending(String) = valued('s', "property", "sort by this, the smallest first"),
        Descending(String) = valued('S', "property", "sort by this, the largest first"),
        Types(String) = valued('t', "type[,...]", "these types: filesystem, volume, snapshot, bookmark, all"),
    }
}

/// The declaration of `zfs list`.
pub(super) const LIST: Command = Command {
    name: "list",
    summary: "list datasets with their space",
    usage: "\tlist [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n\
         \t    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...\n",
    flags: ListOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    lists_properties: true,
    examples: &[
        ("zfs list", "all datasets with their space"),
        (
            "zfs list -o name,used,compressratio,sharenfs -S used",
            "the largest first",
        ),
        ("zfs list -Hp -r -d 1 tank", "for a script: one level"),
    ],
    ..Command::NEW
};

const COLUMNS: &str = "name,used,available,referenced,mountpoint";
const SPACE_COLUMNS: &str =
    "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,usedbychildren";

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut scripted, mut literal, mut as_json, mut integers) = (false, false, false, false);
    let mut recursive = false;
    let mut limit: Option<u32> = None;
    let mut fields = COLUMNS.to_owned();
    let mut order: Vec<(String, bool)> = Vec::new();
    let mut wanted: Option<Vec<DatasetKind>> = None;
    let names = session.read_options(arguments, |session, option| {
        let mut sort_by = |name: &str, descending| match property_name(session, name) {
            Ok(name) => {
                order.push((name, descending));
                Ok(())
            }
            Err(_) => Err(Exit(2)),
        };
        match option {
            ListOption::Json => as_json = true,
            ListOption::JsonInt => {
                integers = true;
                literal = true;
            }
            ListOption::Scripted => scripted = true,
            ListOption::Exact => literal = true,
            ListOption::Recursive => recursive = true,
            ListOption::Depth(text) => limit = Some(depth(session, &text)?),
            ListOption::Columns(list) => fields = list,
            ListOption::Ascending(name) => sort_by(&name, false)?,
            ListOption::Descending(name) => sort_by(&name, true)?,
            ListOption::Types(list) => wanted = Some(kinds(session, &list)?),
        }
        Ok(())
    })?;
    if integers && !as_json {
        return Err(session.misuse("'--json-int' only works with '-j' option"));
    }
    let space = fields == "space";
    let columns = property_names(session, if space { SPACE_COLUMNS } else { &fields })?;
    let list_snapshots = wanted.is_none();
    let kinds = wanted.unwrap_or_else(|| vec![DatasetKind::Filesystem, DatasetKind::Volume]);
    let only_children = kinds
        .iter()
        .all(|kind| matches!(kind, DatasetKind::Snapshot | DatasetKind::Bookmark));
    let depth = match (recursive, limit) {
        (_, Some(limit)) => Some(limit),
        (true, None) => None,
        (false, None) if only_children => Some(1),
        (false, None) => Some(0),
    };
    let named_one = names.iter().any(|name| name.contains('@'));
    let selection = Selection {
        names: &names,
        depth: if named_one && only_children && limit.is_none() && !recursive {
            Some(0)
        } else {
            depth
        },
        kinds: if !names.is_empty() && depth == Some(0) && wanted_none(arguments) {
            // What is named is shown, whatever it is.
            super::ALL_KINDS.to_vec()
        } else {
            kinds
        },
        limited: limit.is_some(),
        list_snapshots,
    };
    let mut properties: Vec<String> = columns
        .iter()
        .map(|name| super::userspace::numbered(name))
        .collect();
    properties.extend(order.iter().map(|(name, _)| name.clone()));
    let (mut found, failed) = select(session, &selection, &PropertyQuery::Named(properties)).await;
    sort(&mut found, &order);
    if as_json {
        if !failed {
            let mut datasets = Map::new();
            for info in &found {
                let mut object = dataset_json(info, integers);
                let mut values = Map::new();
                for name in columns.iter().filter(|name| *name != "name") {
                    let (value, source) = shown(info, name, literal)
                        .unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
                    values.insert(name.clone(), forms::property(&value, &source, integers));
                }
                object["properties"] = Value::Object(values);
                datasets.insert(info.name.clone(), object);
            }
            session
                .out
                .line(forms::envelope("zfs list", "datasets", datasets));
        }
    } else if found.is_empty() {
        if !scripted && !failed {
            session.out.error("no datasets available");
        }
    } else {
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|info| {
                columns
                    .iter()
                    .map(|name| shown(info, name, literal).map_or_else(|| "-".to_owned(), |s| s.0))
                    .collect()
            })
            .collect();
        let shapes: Vec<Column> = columns.iter().map(|name| column(name)).collect();
        session.out.text(table(&shapes, &rows, scripted));
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

fn wanted_none(arguments: &[String]) -> bool {
    !arguments
        .iter()
        .any(|argument| argument.starts_with('-') && argument.contains('t'))
}

fn column(name: &str) -> Column {
    let Some(native) = Property::from_name(name) else {
        return Column {
            title: name.to_ascii_uppercase(),
            right: false,
            width_min: 0,
        };
    };
    let row = native.descriptor();
    Column {
        title: row.column.to_owned(),
        right: row.right_align && native != Property::Name,
        width_min: width_of(native),
    }
}

/// The least width of a property's values in a table: its heading, and any value whose length has a bound.
// OpenZFS: module/zcommon/zprop_common.c, zprop_width
pub(super) fn width_of(native: Property) -> usize {
    let row = native.descriptor();
    let values = match row.value_type {
        PropertyType::Number => 5,
        PropertyType::Index => {
            let names = row.index.iter().map(|(name, _)| name.len());
            names.max().unwrap_or(0)
        }
        PropertyType::String => 0,
    };
    values.max(row.column.len())
}

fn sort(found: &mut [DatasetInfo], order: &[(String, bool)]) {
    found.sort_by(|left, right| {
        for (name, reverse) in order {
            let ordering = if name == "name" {
                left.name.cmp(&right.name)
            } else {
                match (left.property(name), right.property(name)) {
                    (None, None) => continue,
                    // Datasets without the property come last, whichever the direction.
                    (None, Some(_)) => return Ordering::Greater,
                    (Some(_), None) => return Ordering::Less,
                    (Some(left), Some(right)) => {
                        match left.native.map(|p| p.descriptor().value_type) {
                            // Words are compared as words, whatever their numbers.
                            Some(PropertyType::Index) => {
                                text_of_property(left, true).cmp(&text_of_property(right, true))
                            }
                            _ => left.value.cmp(&right.value),
                        }
                    }
                }
            };
            let ordering = if *reverse {
                ordering.reverse()
            } else {
                ordering
            };
            if ordering != Ordering::Equal {
                return ordering;
            }
        }
        name_order(left, right)
    });
}
