//! `zpool list`.

use engine::pool_property::{PROPERTIES, PropertyEntry, PropertyKind};
use engine::{PoolStatus, VdevStatus};
use serde_json::{Map, Value, json};

use super::{NameStyle, Stamp, Subject, has_space, repeat, sections, status_width, subjects};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{Column, nice_number, table};
use crate::cli::{Exit, Outcome, Session, json as forms};

options! {
    ListOption {
        Guid = short('g', "show devices by guid"),
        Json = both('j', "json", None, "print JSON"),
        JsonInt = long("json-int", None, "with -j, numbers as numbers"),
        JsonPoolKeyGuid = long("json-pool-key-guid", None, "with -j, pools by guid"),
        Scripted = short('H', "no headings, tabs between the columns"),
        RealPath = short('L', "show devices by the path that links lead to"),
        Columns(String) = valued('o', "property[,...]", "these columns"),
        Exact = short('p', "exact numbers"),
        FullPath = short('P', "show devices by their whole path"),
        Stamp(String) = valued('T', "d|u", "print the time before each round, as a date or in seconds since 1970"),
        Verbose = short('v', "devices, too"),
    }
}

/// The declaration of `zpool list`.
pub(super) const LIST: Command = Command {
    name: "list",
    summary: "list pools with their size, use and health",
    usage: "\tlist [-gHLpPv] [-o property[,...]] [-j [--json-int, --json-pool-key-guid]] ...\n\
         \t    [-T d|u] [pool] [interval [count]]\n",
    flags: ListOption::FLAGS,
    words: &[Word::Pool],
    lists_properties: true,
    examples: &[
        ("zpool list", "size, use and health of all pools"),
        (
            "zpool list -Hp -o name,size,free,health",
            "for a script: tabs, exact bytes",
        ),
        ("zpool list -v tank", "each device too"),
    ],
    ..Command::NEW
};

const COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,\
                       dedupratio,health,altroot";

#[derive(Clone, Copy, Default)]
struct Options {
    exact: bool,
    scripted: bool,
    verbose: bool,
    json: bool,
    integers: bool,
    by_guid: bool,
    style: NameStyle,
}

/// A column: its property and how it looks.
struct ShownColumn {
    property: String,
    column: Column,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let mut columns = COLUMNS.to_owned();
    let mut stamp = Stamp::None;
    let mut operands = session.read_options(arguments, |session, option| {
        match option {
            ListOption::Guid => options.style.guid = true,
            ListOption::Json => options.json = true,
            ListOption::Scripted => options.scripted = true,
            ListOption::RealPath => options.style.real_path = true,
            ListOption::Columns(list) => columns = list,
            ListOption::Exact => options.exact = true,
            ListOption::FullPath => options.style.full_path = true,
            ListOption::Stamp(form) => stamp = Stamp::of(session, &form)?,
            ListOption::Verbose => options.verbose = true,
            ListOption::JsonInt => {
                options.integers = true;
                options.exact = true;
            }
            ListOption::JsonPoolKeyGuid => options.by_guid = true,
        }
        Ok(())
    })?;
    if options.integers && !options.json {
        return Err(session.misuse("'--json-int' only works with '-j' option"));
    }
    if options.by_guid && !options.json {
        return Err(session.misuse("'json-pool-key-guid' only works with '-j' option"));
    }
    let again = repeat(session, &mut operands)?;
    let columns = chosen(session, &columns)?;
    let mut rounds = 0;
    loop {
        let (pools, missing) = subjects(session, &operands).await;
        if pools.is_empty() && !options.json {
            if operands.is_empty() && !options.scripted {
                session.out.error("no pools available");
            }
        } else {
            stamp.print(session);
            print(session, &pools, &columns, options).await?;
        }
        rounds += 1;
        if missing {
            return Err(Exit(1));
        }
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

fn chosen(session: &Session, list: &str) -> Result<Vec<ShownColumn>, Exit> {
    let mut columns = Vec::new();
    for name in list.split(',') {
        let lower = name.to_ascii_lowercase();
        if lower == "name" {
            columns.push(ShownColumn {
                property: "name".to_owned(),
                column: Column {
                    title: "NAME".to_owned(),
                    right: false,
                    width_min: 0,
                },
            });
        } else if let Some(row) = PROPERTIES
            .iter()
            .find(|row| row.name == lower || row.column.eq_ignore_ascii_case(&lower))
        {
            let (right, width_min) = match row.kind {
                PropertyKind::Text if row.name == "health" => (true, 8),
                PropertyKind::Text => (false, 0),
                PropertyKind::Index(words) if row.name == "health" => (
                    true,
                    words.iter().map(|word| word.len()).fold(8, usize::max),
                ),
                PropertyKind::Index(words) => (
                    false,
                    words.iter().map(|word| word.len()).max().unwrap_or(0),
                ),
                _ => (true, 5),
            };
            let title = row.column.to_owned();
            columns.push(ShownColumn {
                property: row.name.to_owned(),
                column: Column {
                    title,
                    right,
                    width_min,
                },
            });
        } else if name.contains('@') || name.contains(':') {
            let title = name.to_ascii_uppercase();
            columns.push(ShownColumn {
                property: name.to_owned(),
                column: Column {
                    title,
                    right: false,
                    width_min: 0,
                },
            });
        } else {
            return Err(session.misuse(format!("bad property list: invalid property '{name}'")));
        }
    }
    Ok(columns)
}

/// Everything known of one pool.
struct PoolRow {
    name: String,
    status: Option<PoolStatus>,
    properties: Vec<PropertyEntry>,
    guid: u64,
    health: String,
}

impl PoolRow {
    fn value(&self, property: &str, exact: bool) -> String {
        match (
            property,
            self.properties.iter().find(|entry| entry.name == property),
        ) {
            ("name", _) => self.name.clone(),
            (_, Some(entry)) if exact => entry.exact(),
            (_, Some(entry)) => entry.display(),
            ("health", None) => self.health.clone(),
            ("guid", None) => self.guid.to_string(),
            _ => "-".to_owned(),
        }
    }

    fn source(&self, property: &str) -> &'static str {
        self.properties
            .iter()
            .find(|entry| entry.name == property)
            .map_or("-", |entry| entry.source.as_str())
    }
}

async fn look(subject: &Subject, verbose: bool) -> PoolRow {
    match subject {
        Subject::Open(pool) => {
            let status = if verbose {
                pool.status().await.ok()
            } else {
                None
            };
            let properties = pool.properties().await.unwrap_or_default();
            let name = pool.name().to_owned();
            PoolRow {
                name,
                status,
                properties,
                guid: pool.guid(),
                health: "UNAVAIL".to_owned(),
            }
        }
        Subject::Closed(cached, _) => PoolRow {
            name: cached.name.clone(),
            status: None,
            properties: Vec::new(),
            guid: cached.guid,
            health: super::status::STATE_CLOSED.to_owned(),
        },
    }
}

async fn print(
    session: &Session,
    pools: &[Subject],
    columns: &[ShownColumn],
    options: Options,
) -> Outcome {
    let mut found = Vec::new();
    for pool in pools {
        found.push(look(pool, options.verbose || options.json).await);
    }
    if options.json {
        let mut all = Map::new();
        for pool in &found {
            let key = if options.by_guid {
                pool.guid.to_string()
            } else {
                pool.name.clone()
            };
            all.insert(key, pool_json(pool, columns, options));
        }
        session
            .out
            .line(forms::envelope("zpool list", "pools", all));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|pool| {
            columns
                .iter()
                .map(|c| pool.value(&c.property, options.exact))
                .collect()
        })
        .collect();
    if !options.verbose {
        let shapes: Vec<Column> = columns.iter().map(|c| c.column.clone()).collect();
        session.out.text(table(&shapes, &rows, options.scripted));
        return Ok(());
    }
    // With -v the vdevs stand below their pool, in the name column, with the columns of the
    // default list whatever was chosen.
    let width = found
        .iter()
        .filter_map(|pool| pool.status.as_ref())
        .map(|status| status_width(status, options.style))
        .chain(found.iter().map(|pool| pool.name.len()))
        .fold(4, usize::max);
    let mut shapes: Vec<Column> = columns.iter().map(|c| c.column.clone()).collect();
    if let Some(first) = shapes.first_mut() {
        first.width_min = width;
    }
    let text = table(&shapes, &rows, options.scripted);
    let mut lines = text.split_inclusive('\n');
    if !options.scripted {
        session.out.text(lines.next().unwrap_or_default());
    }
    for (line, pool) in lines.zip(&found) {
        session.out.text(line);
        if let Some(status) = &pool.status {
            let mut parts = sections(&status.root);
            for (title, devices) in [("cache", &status.caches), ("spare", &status.spares)] {
                if !devices.is_empty() {
                    parts.push((Some(title), devices.iter().collect()));
                }
            }
            for (title, tops) in parts {
                if let Some(title) = title {
                    session.out.line(format!(
                        "{title:<width$}      -      -      -        -         -      -      -      -         -"
                    ));
                }
                for top in tops {
                    vdev_lines(session, top, 2, width, options);
                }
            }
        }
    }
    Ok(())
}

/// The columns of a vdev's line: title width as the pool's columns have them.
const VDEV_WIDTHS: [usize; 9] = [5, 5, 5, 7, 8, 5, 5, 5, 8];

fn vdev_values(vdev: &VdevStatus, exact: bool) -> [String; 9] {
    let top = has_space(vdev);
    let number = |value: u64| {
        if exact {
            value.to_string()
        } else {
            nice_number(value)
        }
    };
    let dash = || "-".to_owned();
    let when_top = |value: String| if top { value } else { dash() };
    let free = vdev.size_bytes.saturating_sub(vdev.allocated_bytes);
    let capacity = (vdev.allocated_bytes * 10000)
        .checked_div(vdev.size_bytes)
        .unwrap_or(0);
    #[allow(clippy::cast_precision_loss, reason = "at most 10000")]
    let percent = capacity as f64 / 100.0;
    let capacity = match (exact, capacity) {
        (true, _) => (capacity / 100).to_string(),
        (false, 0..1000) => format!("{percent:.2}%"),
        (false, 1000..10000) => format!("{percent:.1}%"),
        (false, _) => format!("{percent:3.0}%"),
    };
    let fragmentation = match (top, vdev.fragmentation_percent, exact) {
        (true, Some(percent), false) => format!("{percent}%"),
        (true, Some(percent), true) => percent.to_string(),
        _ => dash(),
    };
    [
        if vdev.size_bytes == 0 {
            dash()
        } else {
            number(vdev.size_bytes)
        },
        when_top(number(vdev.allocated_bytes)),
        when_top(number(free)),
        match vdev.checkpoint_bytes {
            0 => dash(),
            bytes => number(bytes),
        },
        match vdev.expandable_bytes {
            0 => dash(),
            bytes => number(bytes),
        },
        fragmentation,
        when_top(capacity),
        dash(),
        vdev.state_word().to_owned(),
    ]
}

fn vdev_lines(session: &Session, vdev: &VdevStatus, depth: usize, width: usize, options: Options) {
    let name = options.style.name(vdev);
    let values = vdev_values(vdev, options.exact);
    let mut line = String::new();
    if options.scripted {
        line.push('\t');
        line.push_str(&name);
        for value in &values {
            line.push('\t');
            line.push_str(value);
        }
    } else {
        line.push_str(&format!(
            "{:depth$}{name:<rest$}",
            "",
            rest = width.saturating_sub(depth)
        ));
        for (value, width) in values.iter().zip(VDEV_WIDTHS) {
            line.push_str(&format!("  {value:>width$}"));
        }
    }
    session.out.line(line);
    for child in &vdev.children {
        vdev_lines(session, child, depth + 2, width, options);
    }
}

fn pool_json(pool: &PoolRow, columns: &[ShownColumn], options: Options) -> Value {
    let mut properties = Map::new();
    for column in columns.iter().filter(|column| column.property != "name") {
        let value = pool.value(&column.property, options.exact);
        let source = pool.source(&column.property);
        properties.insert(
            column.property.clone(),
            forms::property(&value, source, options.integers),
        );
    }
    let text = |value: u64| forms::text(&value.to_string(), options.integers);
    let state = pool
        .status
        .as_ref()
        .map_or(pool.health.as_str(), |s| s.health.as_str());
    let mut object = json!({
        "name": pool.name,
        "type": "POOL",
        "state": state,
        "pool_guid": text(pool.guid),
        "txg": text(pool.status.as_ref().map_or(0, |status| status.txg)),
        "spa_version": text(5000),
        "zpl_version": text(5),
        "properties": properties,
    });
    if options.verbose
        && let Some(status) = &pool.status
    {
        object["vdevs"] = vdevs_json(&status.root.children, options);
    }
    object
}

fn vdevs_json(vdevs: &[VdevStatus], options: Options) -> Value {
    const NAMES: [&str; 9] = [
        "size",
        "allocated",
        "free",
        "checkpoint",
        "expandsize",
        "fragmentation",
        "capacity",
        "dedupratio",
        "health",
    ];
    let mut all = Map::new();
    for vdev in vdevs {
        let mut properties = Map::new();
        for (name, value) in NAMES.iter().zip(vdev_values(vdev, options.exact)) {
            properties.insert(
                (*name).to_owned(),
                forms::property(&value, "-", options.integers),
            );
        }
        let mut object = vdev_json(vdev, options.style, options.integers);
        object["properties"] = Value::Object(properties);
        if !vdev.children.is_empty() {
            object["vdevs"] = vdevs_json(&vdev.children, options);
        }
        all.insert(options.style.name(vdev), object);
    }
    Value::Object(all)
}

/// What every JSON form says of a vdev.
pub(super) fn vdev_json(vdev: &VdevStatus, style: NameStyle, integers: bool) -> Value {
    let mut object = json!({
        "name": style.name(vdev),
        "vdev_type": vdev.kind,
        "guid": forms::text(&vdev.guid.to_string(), integers),
    });
    if let Some(path) = &vdev.path {
        object["path"] = Value::from(path.to_string_lossy());
    }
    object["class"] = Value::from(vdev.bias.as_str().unwrap_or("normal"));
    object["state"] = Value::from(vdev.state_word());
    object
}
