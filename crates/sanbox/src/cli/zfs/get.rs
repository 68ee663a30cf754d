//! `zfs get`.

use engine::property::{self, DatasetKind, Property, Source};
use engine::{DatasetInfo, PropertyQuery};
use serde_json::{Map, Value};

use super::list::width_of;
use super::{
    ALL_KINDS, Selection, dataset_json, depth, kinds, name_order, property_names, select, text_of,
    text_of_property, userspace,
};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::table;
use crate::cli::zpool::get::{Widths, get_fields};
use crate::cli::{Exit, Outcome, Session, json as forms};

options! {
    GetOption {
        Recursive = short('r', "of what lies below, too"),
        Scripted = short('H', "no headings, tabs between the columns"),
        Exact = short('p', "exact numbers"),
        Json = both('j', "json", None, "print JSON"),
        JsonInt = long("json-int", None, "with -j, numbers as numbers"),
        Depth(String) = valued('d', "max", "so many levels below"),
        Fields(String) = valued('o', "all|field[,...]", "these columns: name, property, value, received, source"),
        Types(String) = valued('t', "type[,...]", "of these types: filesystem, volume, snapshot, bookmark, all"),
        Sources(String) = valued('s', "source[,...]", "from these: local, default, inherited, received, temporary, none"),
    }
}

/// The declaration of `zfs get`.
pub(super) const GET: Command = Command {
    name: "get",
    summary: "show properties",
    usage: "\tget [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n\
         \t    [-t type[,...]] [-s source[,...]]\n\
         \t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...\n",
    flags: GetOption::FLAGS,
    words: &[Word::Property, Word::Dataset],
    lists_properties: true,
    examples: &[
        ("zfs get all tank/home", "every property"),
        (
            "zfs get -r -s local compression tank",
            "where it was set by hand",
        ),
    ],
    ..Command::NEW
};

const FIELDS: [&str; 5] = ["name", "property", "value", "received", "source"];

/// One line of output.
struct Row {
    property: String,
    value: String,
    received: String,
    source: String,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut fields: Vec<&'static str> = vec!["name", "property", "value", "source"];
    let (mut scripted, mut literal, mut as_json, mut integers) = (false, false, false, false);
    let mut recursive = false;
    let mut limit: Option<u32> = None;
    let mut wanted: Option<Vec<DatasetKind>> = None;
    let mut sources: Option<Vec<&'static str>> = None;
    let operands = session.read_options(arguments, |session, option| {
        match option {
            GetOption::Json => as_json = true,
            GetOption::JsonInt => {
                integers = true;
                literal = true;
            }
            GetOption::Scripted => scripted = true,
            GetOption::Exact => literal = true,
            GetOption::Recursive => recursive = true,
            GetOption::Depth(text) => limit = Some(depth(session, &text)?),
            GetOption::Fields(list) => fields = get_fields(session, &list, &FIELDS)?,
            GetOption::Sources(list) => sources = Some(sources_of(session, &list)?),
            GetOption::Types(list) => wanted = Some(kinds(session, &list)?),
        }
        Ok(())
    })?;
    let Some((list, names)) = operands.split_first() else {
        return Err(session.misuse("missing property argument"));
    };
    if integers && !as_json {
        return Err(session.misuse("'--json-int' only works with '-j' option"));
    }
    let wanted_names = if list == "all" {
        None
    } else {
        Some(property_names(session, list)?)
    };
    let query = match &wanted_names {
        None => PropertyQuery::All,
        Some(names) => {
            PropertyQuery::Named(names.iter().map(|name| userspace::numbered(name)).collect())
        }
    };
    let only_one_deep = !names.is_empty()
        && !names.iter().any(|name| name.contains(['@', '#']))
        && matches!(
            wanted.as_deref(),
            Some([DatasetKind::Snapshot | DatasetKind::Bookmark])
        );
    let depth = match (recursive, limit) {
        (_, Some(limit)) => Some(limit),
        (true, None) => None,
        // Asked for snapshots of a file system, its own are meant.
        (false, None) if only_one_deep => Some(1),
        (false, None) => Some(0),
    };
    let default_kinds = if names.is_empty() {
        vec![DatasetKind::Filesystem, DatasetKind::Volume]
    } else {
        ALL_KINDS.to_vec()
    };
    let selection = Selection {
        names,
        depth,
        kinds: wanted.unwrap_or(default_kinds),
        limited: limit.is_some(),
        list_snapshots: false,
    };
    let (mut found, failed) = select(session, &selection, &query).await;
    found.sort_by(name_order);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut datasets = Map::new();
    let mut widths = widths(wanted_names.as_deref());
    for info in &found {
        let lines = lines(info, wanted_names.as_deref(), literal);
        widths.name = widths.name.max(info.name.chars().count());
        for row in &lines {
            // What is not shown for its source counts, too.
            widths.property = widths.property.max(row.property.len());
            widths.value = widths.value.max(row.value.chars().count());
            widths.received = widths.received.max(row.received.chars().count());
        }
        let lines: Vec<Row> = lines
            .into_iter()
            .filter(|row| matches_source(row, sources.as_deref()))
            .collect();
        if as_json && !lines.is_empty() {
            let mut object = dataset_json(info, integers);
            let properties = lines.iter().map(|row| {
                (
                    row.property.clone(),
                    forms::property(&row.value, &row.source, integers),
                )
            });
            object["properties"] = Value::Object(properties.collect());
            datasets.insert(info.name.clone(), object);
        }
        for row in lines {
            rows.push(
                fields
                    .iter()
                    .map(|field| match *field {
                        "name" => info.name.clone(),
                        "property" => row.property.clone(),
                        "value" => row.value.clone(),
                        "received" => row.received.clone(),
                        _ => row.source.clone(),
                    })
                    .collect(),
            );
        }
    }
    if as_json {
        session
            .out
            .line(forms::envelope("zfs get", "datasets", datasets));
    } else if !rows.is_empty() {
        session
            .out
            .text(table(&widths.columns(&fields), &rows, scripted));
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// The widths that the properties asked for need by themselves; `None` is all.
fn widths(wanted: Option<&[String]>) -> Widths {
    let mut widths = Widths::default();
    let mut take = |name: &str, value: usize| {
        widths.property = widths.property.max(name.len());
        widths.value = widths.value.max(value);
    };
    match wanted {
        None => {
            for row in property::PROPERTIES.iter().filter(|row| row.visible) {
                take(row.name, width_of(row.property));
            }
        }
        Some(names) => {
            for name in names {
                let native = Property::from_name(name);
                take(name, native.map_or(name.len(), width_of));
            }
        }
    }
    widths
}

fn lines(info: &DatasetInfo, wanted: Option<&[String]>, literal: bool) -> Vec<Row> {
    let row = |property: &engine::DatasetProperty| Row {
        property: property.name.clone(),
        value: text_of_property(property, literal),
        received: property.received.as_ref().map_or_else(
            || "-".to_owned(),
            |value| text_of(property.native, value, literal),
        ),
        source: property.source.to_string(),
    };
    let Some(wanted) = wanted else {
        return info.properties.iter().map(row).collect();
    };
    wanted
        .iter()
        .map(
            |name| match (name.as_str(), info.property(&userspace::numbered(name))) {
                (_, Some(property)) => Row {
                    property: name.clone(),
                    ..row(property)
                },
                ("name", None) => Row {
                    property: "name".to_owned(),
                    value: info.name.clone(),
                    received: "-".to_owned(),
                    source: Source::None.to_string(),
                },
                (_, None) => Row {
                    property: name.clone(),
                    value: "-".to_owned(),
                    received: set_aside(info, name).unwrap_or("-").to_owned(),
                    source: "-".to_owned(),
                },
            },
        )
        .collect()
}

/// What a stream brought for a user property that was excluded, or is inherited from where it is not set.
fn set_aside<'a>(info: &'a DatasetInfo, name: &str) -> Option<&'a str> {
    let found = info.set_aside.iter().find(|(known, _)| known == name);
    found.and_then(|(_, value)| value.text())
}

fn matches_source(row: &Row, sources: Option<&[&'static str]>) -> bool {
    let Some(sources) = sources else { return true };
    sources.iter().any(|source| match *source {
        "none" => row.source == "-",
        "inherited" => row.source.starts_with("inherited"),
        other => row.source == other,
    })
}

/// Reads the `-s` of `get`.
fn sources_of(session: &Session, list: &str) -> Result<Vec<&'static str>, Exit> {
    const KNOWN: [&str; 6] = [
        "local",
        "default",
        "inherited",
        "received",
        "temporary",
        "none",
    ];
    let known = |word: &str| KNOWN.into_iter().find(|known| *known == word);
    list.split(',')
        .map(|word| known(word).ok_or_else(|| session.misuse(format!("invalid source '{word}'"))))
        .collect()
}
