//! `zpool get` and `zpool set`.

use engine::PoolHandle;
use engine::pool_property::{PROPERTIES, PropertyEntry};
use serde_json::{Map, Value, json};

use super::vdev_properties::{Vdevs, set_of_vdev, vdev_property, vdevs_asked_for};
use super::{open_pool, subjects};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{Column, table};
use crate::cli::{Exit, Outcome, Session, json as forms};

options! {
    GetOption {
        Json = both('j', "json", None, "print JSON"),
        JsonInt = long("json-int", None, "with -j, numbers as numbers"),
        JsonPoolKeyGuid = long("json-pool-key-guid", None, "with -j, pools by guid"),
        Scripted = short('H', "no heading, tabs between the columns"),
        Exact = short('p', "exact numbers"),
        Fields(String) = valued('o', "all|field[,...]", "these columns: name, property, value, source"),
    }
}

/// The declaration of `zpool get`.
pub(super) const GET: Command = Command {
    name: "get",
    summary: "show properties of pools",
    usage: "\tget [-Hp] [-j [--json-int, --json-pool-key-guid]] ...\n\
         \t    [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool> ...\n\
         \tget [-Hp] [-j [--json-int]] [-o \"all\" | field[,...]] ...\n\
         \t    <\"all\" | property[,...]> <pool> [all-vdevs | root | <vdev> ...]\n",
    flags: GetOption::FLAGS,
    words: &[Word::Property, Word::Pool, Word::Device],
    lists_properties: true,
    examples: &[
        ("zpool get all tank", "every property of a pool"),
        (
            "zpool get -Hp -o value free tank",
            "one number, for a script",
        ),
        (
            "zpool get allocating,comment tank all-vdevs",
            "properties of each vdev",
        ),
    ],
    ..Command::NEW
};

/// The declaration of `zpool set`.
pub(super) const SET: Command = Command {
    name: "set",
    summary: "set a property of a pool",
    usage: "\tset <property=value> <pool>\n\
         \tset <vdev_property=value> <pool> <vdev>\n",
    says_missing: false,
    words: &[Word::Setting, Word::Pool, Word::Device],
    lists_properties: true,
    examples: &[
        (
            "zpool set comment='shelf 2' tank",
            "a note that travels with the pool",
        ),
        (
            "zpool set allocating=off tank mirror-1",
            "no new blocks on a vdev that is to be removed",
        ),
        (
            "zpool set io_n=20 tank root",
            "20 failed reads or writes take a device out, not 10",
        ),
    ],
    ..Command::NEW
};

const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

pub(super) async fn get(session: &Session, arguments: &[String]) -> Outcome {
    let mut fields: Vec<&'static str> = FIELDS.to_vec();
    let (mut scripted, mut exact, mut as_json) = (false, false, false);
    let (mut integers, mut by_guid) = (false, false);
    let operands = session.read_options(arguments, |session, option| {
        match option {
            GetOption::Json => as_json = true,
            GetOption::Scripted => scripted = true,
            GetOption::Exact => exact = true,
            GetOption::Fields(list) => fields = get_fields(session, &list, &FIELDS)?,
            GetOption::JsonInt => {
                integers = true;
                exact = true;
            }
            GetOption::JsonPoolKeyGuid => by_guid = true,
        }
        Ok(())
    })?;
    if integers && !as_json {
        return Err(session.misuse("'--json-int' only works with '-j' option"));
    }
    if by_guid && !as_json {
        return Err(session.misuse("'json-pool-key-guid' only works with '-j' option"));
    }
    let Some((wanted, names)) = operands.split_first() else {
        return Err(session.misuse("missing property argument"));
    };
    let mut shown = Shown {
        fields,
        exact,
        integers,
        rows: Vec::new(),
        widths: Widths::default(),
    };
    if let Some((pool, vdevs)) = vdevs_asked_for(session, names).await? {
        let wanted = wanted_properties(session, wanted, vdev_property)?;
        let objects = shown
            .vdevs(session, &pool, &vdevs, wanted.as_deref())
            .await?;
        if as_json {
            let envelope = forms::envelope("zpool get", "vdevs", objects);
            session.out.line(envelope);
        } else {
            shown.print(session, scripted);
        }
        return Ok(());
    }
    let wanted = wanted_properties(session, wanted, pool_property)?;
    let (pools, mut failed) = subjects(session, names).await;
    let mut objects = Map::new();
    for pool in &pools {
        let Some(pool) = pool.open(session) else {
            failed = true;
            continue;
        };
        shown.widths.name = shown.widths.name.max(pool.name().len());
        let Ok(entries) = pool.properties().await else {
            continue;
        };
        let properties = shown.add(pool.name(), entries, wanted.as_deref());
        if as_json {
            let status = pool.status().await.unwrap_or_default();
            let text = |value: u64| forms::text(&value.to_string(), integers);
            let key = if by_guid {
                pool.guid().to_string()
            } else {
                pool.name().to_owned()
            };
            let object = json!({
                "name": pool.name(),
                "type": "POOL",
                "state": status.health.as_str(),
                "pool_guid": text(pool.guid()),
                "txg": text(status.txg),
                "spa_version": text(5000),
                "zpl_version": text(5),
                "properties": Value::Object(properties),
            });
            objects.insert(key, object);
        }
    }
    if as_json {
        session
            .out
            .line(forms::envelope("zpool get", "pools", objects));
    } else {
        shown.print(session, scripted);
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// What is shown of properties.
struct Shown {
    fields: Vec<&'static str>,
    exact: bool,
    integers: bool,
    rows: Vec<Vec<String>>,
    widths: Widths,
}

impl Shown {
    /// Adds those properties of something that are wanted, and returns them for JSON.
    fn add(
        &mut self,
        name: &str,
        entries: Vec<PropertyEntry>,
        wanted: Option<&[String]>,
    ) -> Map<String, Value> {
        let chosen = match wanted {
            None => entries,
            Some(wanted) => wanted
                .iter()
                .filter_map(|wanted| named(&entries, wanted, name))
                .collect(),
        };
        let mut properties = Map::new();
        for entry in &chosen {
            let value = if self.exact {
                entry.exact()
            } else {
                entry.display()
            };
            let source = entry.source.as_str();
            self.widths.property = self.widths.property.max(entry.name.len());
            self.widths.value = self.widths.value.max(width_of(&entry.name));
            properties.insert(
                entry.name.clone(),
                forms::property(&value, source, self.integers),
            );
            let fields = self.fields.iter().map(|field| match *field {
                "name" => name.to_owned(),
                "property" => entry.name.clone(),
                "value" => value.clone(),
                _ => source.to_owned(),
            });
            self.rows.push(fields.collect());
        }
        properties
    }

    /// Adds properties of vdevs, and returns them for JSON.
    async fn vdevs(
        &mut self,
        session: &Session,
        pool: &PoolHandle,
        vdevs: &Vdevs,
        wanted: Option<&[String]>,
    ) -> Result<Map<String, Value>, Exit> {
        let mut objects = Map::new();
        for (name, guid) in vdevs {
            self.widths.name = self.widths.name.max(name.len());
            let entries = pool.vdev_properties(*guid).await;
            let entries = entries.map_err(|error| {
                let pool = pool.name();
                session.fail(format!(
                    "cannot get properties of {name} in {pool}: {error}"
                ))
            })?;
            let properties = self.add(name, entries, wanted);
            objects.insert(
                name.clone(),
                json!({ "name": name, "guid": forms::text(&guid.to_string(), self.integers),
                    "properties": Value::Object(properties) }),
            );
        }
        Ok(objects)
    }

    fn print(&self, session: &Session, scripted: bool) {
        if !self.rows.is_empty() {
            let columns = self.widths.columns(&self.fields);
            session.out.text(table(&columns, &self.rows, scripted));
        }
    }
}

/// How wide the columns of `zpool get` and `zfs get` are: whatever may be in them, not what is.
#[derive(Default)]
pub(crate) struct Widths {
    pub(crate) name: usize,
    pub(crate) property: usize,
    pub(crate) value: usize,
    pub(crate) received: usize,
}

impl Widths {
    /// The columns of a table with these fields.
    // OpenZFS: lib/libzfs/libzfs_util.c, zprop_print_headers
    pub(crate) fn columns(&self, fields: &[&'static str]) -> Vec<Column> {
        let width = |field: &str| match field {
            "name" => self.name,
            "property" => self.property,
            "value" => self.value,
            "received" => self.received,
            // Room for "inherited from" and the longest name, though without the space between.
            _ if self.name > "NAME".len() => self.name + "inherited from".len(),
            _ => 0,
        };
        let columns = fields.iter().map(|field| Column {
            title: field.to_ascii_uppercase(),
            right: false,
            width_min: width(field),
        });
        columns.collect()
    }
}

/// The least width of a pool property's values. One that is no native one, as features are not, counts with its name.
fn width_of(name: &str) -> usize {
    let native = PROPERTIES.iter().find(|row| row.name == name);
    native.map_or(name.len(), |row| row.column.len().max(5))
}

/// Reads the `-o` of `get`.
pub(crate) fn get_fields(
    session: &Session,
    list: &str,
    known: &[&'static str],
) -> Result<Vec<&'static str>, Exit> {
    let mut fields = Vec::new();
    for word in list.split(',') {
        if word == "all" {
            if !fields.is_empty() {
                return Err(
                    session.misuse("\"all\" conflicts with specific fields given to -o option")
                );
            }
            fields = known.to_vec();
            continue;
        }
        let Some(field) = known.iter().find(|field| **field == word) else {
            return Err(session.misuse(format!("invalid column name '{word}'")));
        };
        if fields.len() == known.len() {
            return Err(session.misuse("too many fields given to -o option"));
        }
        fields.push(*field);
    }
    Ok(fields)
}

/// Reads a list of properties; `None` is all. `read` returns the name of the property that a word asks for.
fn wanted_properties(
    session: &Session,
    list: &str,
    read: fn(&str) -> Option<String>,
) -> Result<Option<Vec<String>>, Exit> {
    if list == "all" {
        return Ok(None);
    }
    let wanted = list.split(',').map(|name| {
        read(name)
            .ok_or_else(|| session.misuse(format!("bad property list: invalid property '{name}'")))
    });
    wanted.collect::<Result<_, _>>().map(Some)
}

/// Returns the name of a pool's property that a word asks for.
fn pool_property(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let native = PROPERTIES
        .iter()
        .find(|row| row.name == lower || row.column.eq_ignore_ascii_case(&lower));
    match native {
        Some(row) => Some(row.name.to_owned()),
        None if lower == "name" || word.contains('@') || word.contains(':') => {
            Some(word.to_owned())
        }
        None => None,
    }
}

fn named(entries: &[PropertyEntry], name: &str, pool: &str) -> Option<PropertyEntry> {
    use engine::pool_property::{PropertyKind, PropertySource, PropertyValue};
    if let Some(entry) = entries.iter().find(|entry| entry.name == name) {
        return Some(entry.clone());
    }
    let value = match name {
        "name" => PropertyValue::Text(pool.to_owned()),
        // Feature names also work by the guid's last part or the guid; unknown ones show nothing.
        _ if name.starts_with("feature@") || name.starts_with("unsupported@") => return None,
        _ => PropertyValue::Absent,
    };
    Some(PropertyEntry {
        name: name.to_owned(),
        kind: PropertyKind::Text,
        value,
        source: match name.contains(':') {
            true => PropertySource::Default,
            false => PropertySource::None,
        },
    })
}

pub(super) async fn set(session: &Session, arguments: &[String]) -> Outcome {
    if let Some(option) = arguments.first().and_then(|first| first.strip_prefix('-')) {
        let letter = option.chars().next().unwrap_or('-');
        return Err(session.misuse(format!("invalid option '{letter}'")));
    }
    let [setting, rest @ ..] = arguments else {
        return Err(session.misuse("missing property=value argument"));
    };
    let [name, more @ ..] = rest else {
        return Err(session.misuse("missing pool name"));
    };
    if more.len() > 1 {
        return Err(session.misuse("too many pool names"));
    }
    let Some((property, value)) = setting.split_once('=') else {
        return Err(session.misuse("missing value in property=value argument"));
    };
    if name.contains('/') {
        return Err(session.fail(format!("cannot open '{name}': is not a pool")));
    }
    let pool = open_pool(session, name).await?;
    if let Some(vdev) = more.first() {
        return set_of_vdev(session, &pool, vdev, (property, value)).await;
    }
    let set = if property == "cachefile" {
        session.appliance.set_cachefile(&pool, value).await
    } else {
        pool.set_property(property, value).await
    };
    match set {
        Ok(()) => {
            session.record(&pool).await;
            Ok(())
        }
        Err(error) => Err(session.fail(format!("cannot set property for '{name}': {error}"))),
    }
}
