//! Logical units: volumes that are registered, with their identifiers and settings.

use engine::property::{DatasetKind, Source, Value, parse_number};
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};

use super::super::Arguments;
use super::super::target::{mapped, store, volume_of, warn_in_use};
use crate::cli::{Exit, Outcome, Session, setting};
use crate::serve::iscsi::{GUID_PROPERTY, naa};

/// Whether a volume is a logical unit: `on`, or `offline`.
const UNIT_PROPERTY: &str = "org.sanbox:lu";
const CACHE_PROPERTY: &str = "org.sanbox:lun.cache";
const ALIAS_PROPERTY: &str = "org.sanbox:lu.alias";
const SECTOR_PROPERTY: &str = "org.sanbox:lun.sector";
/// Where scripts expect volumes.
const DEVICES: &str = "/dev/zvol/rdsk/";
/// What identifiers begin with that we make: the form that COMSTAR's tools make and match.
const GUID_PREFIX: &str = "600144f000000000";

/// A logical unit.
pub(super) struct Unit {
    pub(super) pool: PoolHandle,
    pub(super) volume: String,
    pub(super) guid: String,
    pub(super) registered: bool,
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    pub(super) cached: bool,
    pub(super) block: u64,
    pub(super) alias: Option<String>,
}

impl Unit {
    pub(super) fn path(&self) -> String {
        format!("{DEVICES}{}", self.volume)
    }
}

/// The volume that a path or name means.
fn volume_name(file: &str) -> &str {
    for prefix in [DEVICES, "/dev/zvol/dsk/", "/dev/zvol/"] {
        if let Some(name) = file.strip_prefix(prefix) {
            return name;
        }
    }
    file
}

fn local(info: &DatasetInfo, name: &str) -> Option<String> {
    let property = info.property(name)?;
    match (&property.source, &property.value) {
        (Source::Local | Source::Received, Value::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

async fn all_units(session: &Session) -> Vec<Unit> {
    let names = [
        UNIT_PROPERTY,
        GUID_PROPERTY,
        CACHE_PROPERTY,
        ALIAS_PROPERTY,
        SECTOR_PROPERTY,
        "volsize",
        "readonly",
    ];
    let query = PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let mut found = Vec::new();
    for known in session.appliance.pools().await {
        let crate::appliance::KnownPool::Open(pool) = known else {
            continue;
        };
        let filter = DatasetFilter {
            root: pool.name().to_owned(),
            depth: None,
            kinds: vec![DatasetKind::Volume],
        };
        for info in pool.datasets(&filter, &query).await.unwrap_or_default() {
            let Some(guid) = local(&info, GUID_PROPERTY) else {
                continue;
            };
            let number = |name: &str| {
                let property = info.property(name);
                property.and_then(|p| p.value.number()).unwrap_or(0)
            };
            let text = |name: &str| {
                let property = info.property(name);
                property.and_then(|p| p.value.text().map(str::to_owned))
            };
            found.push(Unit {
                pool: pool.clone(),
                guid: guid.to_ascii_lowercase(),
                registered: local(&info, UNIT_PROPERTY).as_deref() == Some("on"),
                bytes: number("volsize"),
                read_only: number("readonly") == 1,
                cached: text(CACHE_PROPERTY).as_deref() != Some("off"),
                block: match text(SECTOR_PROPERTY).as_deref() {
                    Some("4kn" | "4k" | "4096") => 4096,
                    _ => 512,
                },
                alias: local(&info, ALIAS_PROPERTY),
                volume: info.name,
            });
        }
    }
    found
}

async fn registered(session: &Session) -> Vec<Unit> {
    let mut units = all_units(session).await;
    units.retain(|unit| unit.registered);
    units
}

pub(super) async fn find_unit(session: &Session, guid: &str) -> Result<Unit, Exit> {
    let wanted = guid.to_ascii_lowercase();
    let mut units = registered(session).await;
    match units.iter().position(|unit| unit.guid == wanted) {
        Some(at) => Ok(units.swap_remove(at)),
        None => Err(session.fail(format!("stmfadm: {guid}: not found"))),
    }
}

async fn set(
    session: &Session,
    pool: &PoolHandle,
    volume: &str,
    settings: &[(String, String)],
) -> Outcome {
    let done = pool.set_dataset_properties(volume, settings).await;
    done.map_err(|error| session.fail(format!("stmfadm: {volume}: {error}")))
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

async fn created(session: &Session, volume: &str, tool: &str, verb: &str) -> Outcome {
    let units = registered(session).await;
    let Some(unit) = units.iter().find(|unit| unit.volume == volume) else {
        return Err(session.fail(format!("{tool}: {volume}: not found")));
    };
    if tool == "stmfadm" {
        session.out.line(format!(
            "Logical unit {verb}: {}",
            unit.guid.to_ascii_uppercase()
        ));
        return Ok(());
    }
    session.out.line("");
    session
        .out
        .line(format!("{} the following LU:", capital(verb)));
    session.out.line("");
    table(session, std::slice::from_ref(unit));
    Ok(())
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
        .unwrap_or_default()
}

/// The settings that `-p NAME=VALUE` options ask for.
fn unit_settings(session: &Session, args: &Arguments) -> Result<Vec<(String, String)>, Exit> {
    let mut settings = Vec::new();
    for text in args.all('p') {
        let Some((name, value)) = setting(text) else {
            return Err(session.misuse(format!("stmfadm: {text}: not NAME=VALUE")));
        };
        let truth = || match value.as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(session.fail(format!("stmfadm: {text}: true or false"))),
        };
        settings.push(match name.as_str() {
            "guid" => {
                if naa(&value).is_none() {
                    return Err(session.fail(format!(
                        "stmfadm: {value}: a GUID has 32 hexadecimal digits and begins with 6"
                    )));
                }
                pair(GUID_PROPERTY, &value.to_ascii_lowercase())
            }
            // Write cache disable.
            "wcd" => pair(CACHE_PROPERTY, if truth()? { "off" } else { "on" }),
            "wp" => pair("readonly", if truth()? { "on" } else { "off" }),
            "blk" => pair(
                SECTOR_PROPERTY,
                match value.as_str() {
                    "512" => "512e",
                    "4096" => "4kn",
                    _ => return Err(session.fail("stmfadm: a block has 512 or 4096 bytes")),
                },
            ),
            "alias" => pair(ALIAS_PROPERTY, &value),
            // They name things that only exist there, or that are fixed here.
            "serial" | "vid" | "pid" | "mgmt-url" | "meta" => continue,
            _ => return Err(session.fail(format!("stmfadm: unknown property '{name}'"))),
        });
    }
    Ok(settings)
}

fn size_of(session: &Session, args: &Arguments) -> Result<Option<u64>, Exit> {
    let Some(text) = args.value('s') else {
        return Ok(None);
    };
    match parse_number(text) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => Err(session.fail(format!("stmfadm: size {text}: {error}"))),
    }
}

pub(super) async fn create_unit(
    session: &Session,
    args: &Arguments,
    file: &str,
    tool: &str,
) -> Outcome {
    let volume = volume_name(file);
    let mut settings = unit_settings(session, args)?;
    let size = size_of(session, args)?;
    let (pool, _) = volume_of(session, volume).await?;
    let units = all_units(session).await;
    let own = units.iter().find(|unit| unit.volume == volume);
    if own.is_some_and(|unit| unit.registered) {
        return Err(session.fail(format!("{tool}: {file}: file already in use")));
    }
    let asked = settings
        .iter()
        .find(|(name, _)| name == GUID_PROPERTY)
        .map(|(_, guid)| guid.clone());
    let guid = match (asked, own) {
        (Some(guid), _) => guid,
        (None, Some(unit)) => unit.guid.clone(),
        (None, None) => {
            let info = pool.dataset(volume, &PropertyQuery::None).await;
            let info = info.map_err(|error| session.fail(format!("{tool}: {file}: {error}")))?;
            let guid = format!("{GUID_PREFIX}{:016x}", info.guid);
            settings.push(pair(GUID_PROPERTY, &guid));
            guid
        }
    };
    if units
        .iter()
        .any(|unit| unit.guid == guid && unit.volume != volume)
    {
        return Err(session.fail(format!("{tool}: {guid}: GUID already in use")));
    }
    if let Some(bytes) = size {
        settings.push(pair("volsize", &bytes.to_string()));
    }
    settings.push(pair(UNIT_PROPERTY, "on"));
    set(session, &pool, volume, &settings).await?;
    session.record(&pool).await;
    session.appliance.datasets_changed().await;
    created(session, volume, tool, "created").await
}

pub(super) async fn import_unit(session: &Session, file: &str, tool: &str) -> Outcome {
    let volume = volume_name(file);
    let units = all_units(session).await;
    let Some(unit) = units.iter().find(|unit| unit.volume == volume) else {
        return Err(session.fail(format!("{tool}: {file}: meta data not found")));
    };
    if unit.registered {
        return Err(session.fail(format!("{tool}: {file}: file already in use")));
    }
    set(session, &unit.pool, volume, &[pair(UNIT_PROPERTY, "on")]).await?;
    session.record(&unit.pool).await;
    session.appliance.datasets_changed().await;
    created(session, volume, tool, "imported").await
}

pub(super) async fn modify_unit(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let by_file = naa(&name.to_ascii_lowercase()).is_none();
    let unit = if by_file {
        let volume = volume_name(name);
        let units = registered(session).await;
        let found = units.into_iter().find(|unit| unit.volume == volume);
        found.ok_or_else(|| session.fail(format!("stmfadm: {name}: not found")))?
    } else {
        find_unit(session, name).await?
    };
    let mut settings = unit_settings(session, args)?;
    if settings.iter().any(|(name, _)| name == GUID_PROPERTY) {
        return Err(session.fail("stmfadm: guid: cannot be changed"));
    }
    match size_of(session, args)? {
        Some(bytes) if bytes < unit.bytes => {
            return Err(session.fail(format!(
                "stmfadm: {name}: smaller than now ({} bytes): 'zfs set volsize' cuts volumes",
                unit.bytes
            )));
        }
        // Proxmox makes the volume larger itself and says so here.
        Some(bytes) if bytes > unit.bytes => settings.push(pair("volsize", &bytes.to_string())),
        _ => {}
    }
    if !settings.is_empty() {
        set(session, &unit.pool, &unit.volume, &settings).await?;
        session.record(&unit.pool).await;
    }
    session.appliance.datasets_changed().await;
    Ok(())
}

pub(super) async fn delete_units(session: &Session, args: &Arguments, guids: &[&str]) -> Outcome {
    for guid in guids {
        let unit = find_unit(session, guid).await?;
        warn_in_use(session, &unit.pool, &unit.volume).await;
        set(
            session,
            &unit.pool,
            &unit.volume,
            &[pair(UNIT_PROPERTY, "off")],
        )
        .await?;
        if args.has('k') {
            session.record(&unit.pool).await;
            session.appliance.datasets_changed().await;
        } else {
            store(session, &unit.pool, &unit.volume, &[]).await?;
        }
    }
    Ok(())
}

pub(super) async fn switch_unit(session: &Session, guid: &str, online: bool) -> Outcome {
    let unit = find_unit(session, guid).await?;
    if online {
        return Ok(());
    }
    Err(session.fail(format!(
        "stmfadm: {}: units are online while they have views; 'stmfadm remove-view -l {guid} -a' hides it",
        unit.volume
    )))
}

fn table(session: &Session, units: &[Unit]) {
    session
        .out
        .line("              GUID                    DATA SIZE           SOURCE");
    session
        .out
        .line("--------------------------------  -------------------  ----------------");
    for unit in units {
        session.out.line(format!(
            "{}  {:<19}  {}",
            unit.guid,
            unit.bytes,
            unit.path()
        ));
    }
}

pub(super) async fn list_table(session: &Session) -> Outcome {
    let units = registered(session).await;
    session.out.line("");
    session.out.line(format!("Found {} LU(s)", units.len()));
    session.out.line("");
    table(session, &units);
    Ok(())
}

pub(super) async fn list_units(session: &Session, args: &Arguments, guids: &[&str]) -> Outcome {
    let units = registered(session).await;
    for guid in guids {
        if !units
            .iter()
            .any(|unit| unit.guid.eq_ignore_ascii_case(guid))
        {
            return Err(session.fail(format!("stmfadm: {guid}: not found")));
        }
    }
    let views = mapped(session).await;
    for unit in &units {
        let wanted = |guid: &&str| unit.guid.eq_ignore_ascii_case(guid);
        if !guids.is_empty() && !guids.iter().any(wanted) {
            continue;
        }
        session
            .out
            .line(format!("LU Name: {}", unit.guid.to_ascii_uppercase()));
        if !args.has('v') {
            continue;
        }
        let count = views
            .iter()
            .filter(|(volume, _)| *volume == unit.volume)
            .count();
        let on = |value: bool| if value { "Enabled" } else { "Disabled" };
        let line = |name: &str, value: &str| session.out.line(format!("    {name:<22} : {value}"));
        line("Operational Status", "Online");
        line("Provider Name", "sbd");
        line("Alias", unit.alias.as_deref().unwrap_or(&unit.path()));
        line("View Entry Count", &count.to_string());
        line("Data File", &unit.path());
        line("Meta File", "not set");
        line("Size", &unit.bytes.to_string());
        line("Block Size", &unit.block.to_string());
        line("Management URL", "not set");
        line("Vendor ID", "SANBOX  ");
        line("Product ID", "VOLUME          ");
        line("Serial Num", "not set");
        line("Write Protect", on(unit.read_only));
        line("Write Cache Mode Select", on(true));
        line("Writeback Cache", on(unit.cached));
        line("Access State", "Active");
    }
    Ok(())
}
