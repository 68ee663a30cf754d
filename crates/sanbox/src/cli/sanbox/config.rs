//! `sanbox config`: the settings of the appliance written as one file, compared with one, and taken from one.

use std::sync::Arc;

use engine::property::{Source, Value};
use engine::{DatasetFilter, DatasetKind, PropertyQuery};
use manage::accounts::{NewGroup, Role};
use manage::api::{Api, machine_groups};
use manage::config::Config;
use manage::database::seconds_since_epoch;
use manage::exported::{Change, Exported, ExportedGroup, ExportedUser, PROPERTIES, VERSION};

use super::Arguments;
use crate::appliance::KnownPool;
use crate::cli::{Exit, Outcome, Session, dataset_clause};
use crate::serve::management;
use crate::tuning::{TABLE, Tunables, show};

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    match words[..] {
        ["export"] => {
            let text = present(session, &api).await?.text();
            session.out.text(text.map_err(|why| session.fail(why))?);
            let database = api.accounts.database();
            database.note_time(management::EXPORTED, seconds_since_epoch());
            Ok(())
        }
        ["diff", file] => {
            let wanted = read(session, file)?;
            let lines = wanted.differences(&present(session, &api).await?);
            for line in &lines {
                session.out.line(line);
            }
            if lines.is_empty() {
                Ok(())
            } else {
                Err(Exit(1))
            }
        }
        ["import", file] => import(session, args, &api, file).await,
        _ => Err(session.usage_only()),
    }
}

/// The settings there are, as `config export` writes them.
pub(super) async fn text(session: &Session) -> Result<String, Exit> {
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    let text = present(session, &api).await?.text();
    text.map_err(|why| session.fail(why))
}

fn read(session: &Session, file: &str) -> Result<Exported, Exit> {
    if !session.may_read_files() {
        return Err(session.fail(format!("{file}: files are read for root alone")));
    }
    let path = session.path(file);
    let failed = |why: String| session.fail(format!("{file}: {why}"));
    let metadata = std::fs::metadata(&path).map_err(|error| failed(error.to_string()))?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(failed("too long for such a file".to_owned()));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    Exported::parse(&text).map_err(failed)
}

/// The settings there are.
async fn present(session: &Session, api: &Arc<Api>) -> Result<Exported, Exit> {
    let appliance = &session.appliance;
    let failed = |why: String| session.fail(why);
    let mut config =
        Config::read(&appliance.state().config()).map_err(|error| failed(error.to_string()))?;
    let (now, usual) = (appliance.tunables(), Tunables::default());
    for row in TABLE {
        let value = show(row, &now);
        if value != show(row, &usual) {
            config.tuning.insert(row.name.to_owned(), value.to_string());
        }
    }
    let user = |user: manage::accounts::UserEntry| ExportedUser {
        name: user.name,
        role: user.own_role.as_str().to_owned(),
    };
    let group = |group: manage::accounts::GroupEntry| ExportedGroup {
        name: group.name,
        number: group.number,
        role: group.role.map_or("", Role::as_str).to_owned(),
        members: group.members,
    };
    let jobs = appliance.replications().jobs();
    let peers = appliance.peers().book().peers();
    let targets = appliance.state().read_targets();
    let mut exported = Exported {
        version: VERSION,
        config,
        users: api.accounts.users().into_iter().map(user).collect(),
        groups: api.accounts.groups().into_iter().map(group).collect(),
        replication: jobs.map_err(|error| failed(error.to_string()))?.replication,
        peers: peers
            .map_err(|error| failed(error.to_string()))?
            .peer
            .clone(),
        ..Exported::default()
    };
    exported.put_targets(&targets.map_err(|error| failed(error.to_string()))?);
    for known in appliance.pools().await {
        match known {
            KnownPool::Open(pool) => properties(session, &pool, &mut exported).await?,
            KnownPool::Closed(cached, _) => session.out.error(format!(
                "pool '{}' is not open: the settings of its datasets are left out",
                cached.name
            )),
        }
    }
    Ok(exported)
}

/// Takes in what is set on the datasets of a pool themselves.
async fn properties(
    session: &Session,
    pool: &engine::PoolHandle,
    exported: &mut Exported,
) -> Outcome {
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let names = PROPERTIES.iter().map(|name| (*name).to_owned()).collect();
    let listed = pool.datasets(&filter, &PropertyQuery::Named(names)).await;
    let listed = listed.map_err(|error| {
        session.fail(format!(
            "cannot open '{}': {}",
            pool.name(),
            dataset_clause(&error)
        ))
    })?;
    for info in listed {
        for name in PROPERTIES {
            let Some(property) = info.property(name) else {
                continue;
            };
            if let (Value::Text(text), Source::Local) = (&property.value, &property.source) {
                let settings = exported.datasets.entry(info.name.clone()).or_default();
                settings.insert((*name).to_owned(), text.clone());
            }
        }
    }
    Ok(())
}

async fn import(session: &Session, args: &Arguments, api: &Arc<Api>, file: &str) -> Outcome {
    let wanted = read(session, file)?;
    let changes = wanted.changes(&present(session, api).await?);
    let mut failures = 0;
    for change in changes {
        if args.has_long("dry-run") {
            session.out.line(format!("would change: {change}"));
            continue;
        }
        match apply(session, api, &wanted, &change).await {
            Ok(()) => session.out.line(format!("changed: {change}")),
            Err(why) => {
                failures += 1;
                session.out.error(format!("cannot change: {change}: {why}"));
            }
        }
    }
    session.appliance.datasets_changed().await;
    // A process that ends now would leave the log of accounts unwritten.
    let _ = api.accounts.database().call(|_| Ok(())).await;
    if failures > 0 { Err(Exit(1)) } else { Ok(()) }
}

async fn apply(
    session: &Session,
    api: &Arc<Api>,
    wanted: &Exported,
    change: &Change,
) -> Result<(), String> {
    let appliance = &session.appliance;
    match change {
        Change::Configuration => {
            let written = appliance.state().write_config(&wanted.config_text()?);
            written.map_err(|error| error.to_string())
        }
        Change::Limit { name, value } => appliance.tune(name, value).await,
        Change::NewUser(user) => {
            let role = role(user)?;
            let now = seconds_since_epoch();
            let added = api.accounts.add_user(&user.name, None, role, now).await;
            added.map_err(|error| error.to_string())
        }
        Change::Role(user) => {
            let changed = api.accounts.change_role(&user.name, role(user)?).await;
            changed.map_err(|error| error.to_string())
        }
        Change::Group(group) => put_group(api, group).await,
        Change::Targets => put_targets(session, wanted),
        Change::NewJob(job) => {
            let added = appliance
                .replications()
                .change(|jobs| jobs.add(job.clone()));
            added.map_err(|error| error.to_string())
        }
        Change::Job(job) => {
            let replications = appliance.replications();
            let put = |known: &mut manage::replication::Job| known.clone_from(job);
            let changed = replications.change(|jobs| jobs.change(&job.name, put));
            changed.map_err(|error| error.to_string())
        }
        Change::Peer(peer) => {
            let put = |peers: &mut manage::peer::Peers| {
                peers.peer.retain(|known| known.name != peer.name);
                peers.add(peer.clone())
            };
            let changed = appliance.peers().book().change(put);
            changed.map_err(|error| error.to_string())
        }
        Change::Property {
            dataset,
            name,
            value,
        } => {
            let pool = appliance.pool_of(dataset).await;
            let pool = pool.map_err(|error| error.to_string())?;
            let setting = [(name.clone(), value.clone())];
            let set = pool.set_dataset_properties(dataset, &setting).await;
            set.map_err(|error| dataset_clause(&error).to_string())
        }
    }
}

/// Makes a group, or gives it the role and the members of the file.
async fn put_group(api: &Arc<Api>, group: &ExportedGroup) -> Result<(), String> {
    let said = |error: manage::accounts::AccountError| error.to_string();
    let (accounts, name, role) = (&api.accounts, group.name.as_str(), group.role()?);
    let known = accounts.groups();
    let known = known.into_iter().find(|known| known.name == name);
    if known.is_none() {
        let new = NewGroup {
            name: name.to_owned(),
            number: Some(group.number),
            role,
        };
        let machine = machine_groups().await;
        let added = accounts.add_group(new, &machine, seconds_since_epoch());
        added.await.map_err(said)?;
    }
    accounts.change_group_role(name, role).await.map_err(said)?;
    let before = known.map_or_else(Vec::new, |known| known.members);
    for member in before.iter().filter(|name| !group.members.contains(name)) {
        accounts.remove_member(name, member).await.map_err(said)?;
    }
    accounts
        .add_members(name, &group.members)
        .await
        .map_err(said)
}

fn role(user: &ExportedUser) -> Result<Role, String> {
    Role::from_name(&user.role).ok_or_else(|| format!("'{}' is no role", user.role))
}

fn put_targets(session: &Session, wanted: &Exported) -> Result<(), String> {
    let state = session.appliance.state();
    let mut targets = state.read_targets().map_err(|error| error.to_string())?;
    let random = manage::secret::random::<16>().map_err(|error| error.to_string())?;
    let unknown: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let without = wanted.targets_into(&mut targets, &unknown);
    state
        .write_targets(&targets)
        .map_err(|error| error.to_string())?;
    for secret in without {
        session.out.error(format!(
            "{secret} is not in the file: nobody logs in until 'sanbox target' gives it"
        ));
    }
    Ok(())
}
