//! COMSTAR's commands, as far as scripts and plug-ins call them: `stmfadm` and `sbdadm` for logical units, views and groups, `itadm`
//! for targets. They work on the same mappings, targets and properties as `sanbox target`.
//!
//! A logical unit is a volume with an identifier of its own (the property `org.sanbox:lu.guid`); it is registered while
//! `org.sanbox:lu` is `on`. Deleting it leaves the identifier, so that importing it again gives back the same unit. What is printed
//! follows illumos in layout, because scripts read it.

use engine::property::{DatasetKind, Source, Value, parse_number};
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};
use manage::targets::{Mapping, MappingScope, Portal, Target, Targets, is_group_name};

use super::Arguments;
use super::target::{mapped, read, show_at, store, volume_of, warn_in_use, write};
use crate::cli::{Exit, Outcome, Session, setting};
use crate::serve::iscsi::{GUID_PROPERTY, check_target_name, naa};

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
struct Unit {
    pool: PoolHandle,
    volume: String,
    guid: String,
    registered: bool,
    bytes: u64,
    read_only: bool,
    cached: bool,
    block: u64,
    alias: Option<String>,
}

impl Unit {
    fn path(&self) -> String {
        format!("{DEVICES}{}", self.volume)
    }
}

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

// --- logical units ---

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

async fn find_unit(session: &Session, guid: &str) -> Result<Unit, Exit> {
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

async fn create_unit(session: &Session, args: &Arguments, file: &str, tool: &str) -> Outcome {
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

async fn import_unit(session: &Session, file: &str, tool: &str) -> Outcome {
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

async fn modify_unit(session: &Session, args: &Arguments, name: &str) -> Outcome {
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

async fn delete_units(session: &Session, args: &Arguments, guids: &[&str]) -> Outcome {
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

async fn switch_unit(session: &Session, guid: &str, online: bool) -> Outcome {
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

async fn list_table(session: &Session) -> Outcome {
    let units = registered(session).await;
    session.out.line("");
    session.out.line(format!("Found {} LU(s)", units.len()));
    session.out.line("");
    table(session, &units);
    Ok(())
}

async fn list_units(session: &Session, args: &Arguments, guids: &[&str]) -> Outcome {
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

// --- views ---

async fn add_view(session: &Session, args: &Arguments, guid: &str) -> Outcome {
    let unit = find_unit(session, guid).await?;
    let targets = read(session)?;
    let scope = match args.value('t') {
        Some(group) if targets.target_groups.contains_key(group) => {
            MappingScope::Group(group.to_owned())
        }
        Some(group) => {
            return Err(session.fail(format!("stmfadm: {group}: target group not found")));
        }
        None => MappingScope::All,
    };
    let seen_by = args.value('h').map(str::to_owned);
    if let Some(group) = &seen_by
        && !targets.initiator_groups.contains_key(group)
    {
        return Err(session.fail(format!("stmfadm: {group}: host group not found")));
    }
    let lun = match args.value('n') {
        None => None,
        Some(text) => match text.parse() {
            Ok(lun) if lun <= manage::targets::LUN_MAX => Some(lun),
            _ => return Err(session.fail(format!("stmfadm: {text}: invalid LUN"))),
        },
    };
    show_at(session, &targets, &unit.volume, scope, seen_by, lun)
        .await
        .map(|_| ())
}

async fn views_of(session: &Session, args: &Arguments) -> Result<(Unit, Vec<Mapping>), Exit> {
    let Some(guid) = args.value('l') else {
        return Err(session.misuse("stmfadm: -l GUID is needed"));
    };
    let unit = find_unit(session, guid).await?;
    let (_, mappings) = volume_of(session, &unit.volume).await?;
    Ok((unit, mappings))
}

fn entries(session: &Session, words: &[&str], count: usize) -> Result<Vec<usize>, Exit> {
    let parse = |word: &&str| match word.parse::<usize>() {
        Ok(entry) if entry < count => Ok(entry),
        _ => Err(session.fail(format!("stmfadm: {word}: view entry not found"))),
    };
    words.iter().map(parse).collect()
}

async fn list_view(session: &Session, args: &Arguments, words: &[&str]) -> Outcome {
    let (unit, mappings) = views_of(session, args).await?;
    if mappings.is_empty() {
        return Err(session.fail(format!(
            "stmfadm: {}: no views found",
            unit.guid.to_ascii_uppercase()
        )));
    }
    let wanted = entries(session, words, mappings.len())?;
    for (number, mapping) in mappings.iter().enumerate() {
        if !wanted.is_empty() && !wanted.contains(&number) {
            continue;
        }
        let scope = match &mapping.scope {
            MappingScope::All => "All".to_owned(),
            MappingScope::Group(group) => group.clone(),
            MappingScope::Target(name) => name.clone(),
        };
        session.out.line(format!("View Entry: {number}"));
        let line = |name: &str, value: &str| session.out.line(format!("    {name:<12} : {value}"));
        line("Host group", mapping.seen_by.as_deref().unwrap_or("All"));
        line("Target Group", &scope);
        line("LUN", &mapping.lun.to_string());
    }
    Ok(())
}

async fn remove_view(session: &Session, args: &Arguments, words: &[&str]) -> Outcome {
    let (unit, mappings) = views_of(session, args).await?;
    let gone = if args.has('a') {
        (0..mappings.len()).collect()
    } else if words.is_empty() {
        return Err(session.misuse("stmfadm: which entry, or -a for all"));
    } else {
        entries(session, words, mappings.len())?
    };
    warn_in_use(session, &unit.pool, &unit.volume).await;
    let left: Vec<Mapping> = mappings
        .into_iter()
        .enumerate()
        .filter(|(number, _)| !gone.contains(number))
        .map(|(_, mapping)| mapping)
        .collect();
    store(session, &unit.pool, &unit.volume, &left).await
}

// --- groups ---

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

async fn change_group(session: &Session, command: &str, name: &str) -> Outcome {
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

async fn change_members(
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

fn list_groups(session: &Session, args: &Arguments, command: &str, names: &[&str]) -> Outcome {
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

fn list_ports(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
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

// --- itadm ---

/// `itadm`.
pub(super) async fn targets(session: &Session, args: &Arguments) -> Outcome {
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
