//! `zfs receive`: makes snapshots of the streams on standard input.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, zfs_do_receive (options, words).

use engine::property::{Attribute, Property, is_user_property};
use engine::{EngineError, PoolHandle, ReceiveNote, ReceiveRequest};

use super::keys::{self, KeyInput};
use crate::appliance::{is_delegated, mount_query};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};
use crate::follow;
use crate::redacted::is_redacted;

options! {
    ReceiveOption {
        Set(String) = valued('o', "PROPERTY=VALUE", "set it, whatever the stream says; origin=SNAPSHOT: the clone's origin"),
        Exclude(String) = valued('x', "PROPERTY", "leave it as it is here, whatever the stream says"),
        WithoutPool = short('d', "append the name that was sent, without its pool, to that of the file system"),
        LastElement = short('e', "append the last element of the name that was sent"),
        WithoutHolds = short('h', "without the holds of the stream"),
        Unmount = short('M', "unmount what is in the way; nothing is"),
        DryRun = short('n', "receive nothing; with -v, print what would be"),
        NoMount = short('u', "do not mount what is received"),
        Verbose = short('v', "print what is received, and how fast"),
        Force = short('F', "roll back to the newest snapshot first; of a replication stream, destroy what it lacks"),
        Resumable = short('s', "keep what was received when the stream breaks off: receive_resume_token"),
        Abort = short('A', "destroy what such a receive has kept"),
        Heal = short('c', "heal lost blocks of the snapshot, which exists, with a stream of it"),
    }
}

/// The declaration of `zfs receive`.
pub(super) const RECEIVE: Command = Command {
    name: "receive",
    aliases: &["recv"],
    summary: "make snapshots of a stream",
    usage: "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n\
         \t    <filesystem|volume|snapshot>\n\
         \treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n\
         \t    [-d | -e] <filesystem>\n\
         \treceive -A <filesystem|volume>\n",
    flags: ReceiveOption::FLAGS,
    words: &[Word::Dataset],
    ..Command::NEW
};

#[derive(Default)]
struct Options {
    request: ReceiveRequest,
    verbose: bool,
    abort: bool,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |session, option| {
        take(session, option, &mut options)
    })?;
    let target = match operands.as_slice() {
        [] => return Err(session.misuse("missing snapshot argument")),
        [target] => target,
        _ => return Err(session.misuse("too many arguments")),
    };
    if options.abort {
        return abort(session, target, &options).await;
    }
    options.request.target.clone_from(target);
    receive(session, &options).await
}

fn take(session: &Session, option: ReceiveOption, options: &mut Options) -> Outcome {
    let request = &mut options.request;
    match option {
        ReceiveOption::Force => request.force = true,
        ReceiveOption::Resumable => request.resumable = true,
        ReceiveOption::DryRun => request.dry_run = true,
        ReceiveOption::WithoutHolds => request.without_holds = true,
        ReceiveOption::Verbose => options.verbose = true,
        ReceiveOption::NoMount => request.unmounted = true,
        ReceiveOption::Abort => options.abort = true,
        ReceiveOption::WithoutPool if request.last_element => return Err(exclusive(session)),
        ReceiveOption::WithoutPool => request.without_pool = true,
        ReceiveOption::LastElement if request.without_pool => return Err(exclusive(session)),
        ReceiveOption::LastElement => request.last_element = true,
        ReceiveOption::Set(setting) => {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(session.misuse("missing '=' for property=value argument"));
            };
            check_once(session, options, name)?;
            check_property(session, name)?;
            if name == Property::Origin.name() {
                options.request.origin = Some(value.to_owned());
            } else {
                let set = &mut options.request.overrides.set;
                set.push((name.to_owned(), value.to_owned()));
            }
        }
        ReceiveOption::Exclude(name) => {
            if name.contains('=') {
                return Err(session.misuse("invalid property name"));
            }
            check_once(session, options, &name)?;
            check_property(session, &name)?;
            options.request.overrides.excluded.push(name);
        }
        // Mounts are never in the way: what is open is read anew.
        ReceiveOption::Unmount => {}
        ReceiveOption::Heal => request.heal = true,
    }
    Ok(())
}

fn exclusive(session: &Session) -> Exit {
    session.misuse("invalid option combination: -d and -e are mutually exclusive")
}

fn check_once(session: &Session, options: &Options, name: &str) -> Outcome {
    let overrides = &options.request.overrides;
    let known = overrides.excluded.iter().any(|known| known == name)
        || overrides.set.iter().any(|(known, _)| known == name);
    if known {
        return Err(session.misuse(format!("property '{name}' specified multiple times")));
    }
    Ok(())
}

/// Properties that cannot be received otherwise than they come.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_receive_checkprops
fn check_property(session: &Session, name: &str) -> Outcome {
    let allowed = match Property::from_name(name) {
        Some(Property::Origin | Property::Encryption | Property::KeyFormat) => true,
        Some(Property::KeyLocation | Property::Pbkdf2Iters) => true,
        Some(Property::Version | Property::VolSize) => false,
        Some(native) => native.descriptor().attribute != Attribute::ReadOnly && !native.set_once(),
        None => is_user_property(name),
    };
    if allowed {
        return Ok(());
    }
    Err(session.fail(format!(
        "cannot receive: cannot receive: invalid property '{name}'"
    )))
}

/// `-A`: what an interrupted receive left is destroyed.
async fn abort(session: &Session, dataset: &str, options: &Options) -> Outcome {
    let request = &options.request;
    if request.without_pool
        || request.last_element
        || request.dry_run
        || request.resumable
        || request.unmounted
    {
        return Err(session.misuse("invalid option"));
    }
    let missing = || session.fail(format!("cannot open '{dataset}': dataset does not exist"));
    let pool = session.appliance.pool_of(dataset).await;
    let pool = pool.map_err(|_| missing())?;
    match pool.abort_receive(dataset).await {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            Ok(())
        }
        Err(EngineError::DatasetNotFound(_)) => Err(missing()),
        Err(error @ EngineError::NothingToResume(_)) => Err(session.fail(error.to_string())),
        Err(error) => Err(session.fail(format!("cannot destroy '{dataset}': {error}"))),
    }
}

async fn receive(session: &Session, options: &Options) -> Outcome {
    if session.caller.terminal {
        return Err(session.fail(
            "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.",
        ));
    }
    let target = &options.request.target;
    let dataset = target.split('@').next().unwrap_or_default();
    let pool = session.appliance.pool_of(dataset).await;
    let pool =
        pool.map_err(|_| session.fail(format!("cannot open '{dataset}': dataset does not exist")))?;
    let Some(input) = &session.input else {
        return Err(session.fail("cannot receive: there is no input"));
    };
    let refused = |error: EngineError| match error {
        EngineError::Receive(message) => session.fail(message),
        other => session.fail(format!("cannot receive: {other}")),
    };
    let mut request = options.request.clone();
    let planned = pool.plan_received_key(&request.overrides.set).await;
    // Standard input is the stream: a key comes from elsewhere, or the receive is refused.
    if let Some(planned) = planned.map_err(refused)?
        && planned.location != "prompt"
    {
        // It would be read with the rights of the daemon.
        if is_delegated() {
            return Err(refused(EngineError::Permission));
        }
        let input = &mut KeyInput::new(session);
        request.key = Some(keys::new_key(session, input, &planned, None).await);
    }
    let stream = pool.receive(request).await;
    let mut stream = stream.map_err(refused)?;
    loop {
        // Of a stream that is refused no more than its head is read.
        let wanted = stream.demand().await;
        if wanted.is_none() && stream.is_over() {
            break;
        }
        let Some(chunk) = input.next_of(wanted).await else {
            break;
        };
        let more = stream.write(chunk).await;
        tell(session, options, &stream.take_notes());
        if !more {
            break;
        }
        session.out.flush().await?;
    }
    let received = stream.finish().await;
    tell(session, options, &received.notes);
    if !options.request.dry_run {
        session.record(&pool).await;
    }
    follow::received(&session.appliance, &pool).await;
    if !options.request.unmounted {
        let new = &received.new;
        session.appliance.mount_all_created(&pool, new).await;
    }
    for dataset in &received.replaced {
        unmount_redacted(session, &pool, dataset).await;
    }
    session.appliance.datasets_changed().await;
    match received.result {
        Ok(()) => Ok(()),
        // It was told what could not be done.
        Err(EngineError::ReceivedPartly) => Err(Exit(1)),
        Err(error) => Err(refused(error)),
    }
}

/// Unmounts a file system whose contents a redacted stream took the place of: mounted again it is only when that is asked for. One that
/// redacted increments come onto stays mounted.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_receive_one; lib/libzfs/libzfs_mount.c, zfs_is_mountable
async fn unmount_redacted(session: &Session, pool: &PoolHandle, dataset: &str) {
    let Ok(info) = pool.dataset(dataset, &mount_query()).await else {
        return;
    };
    let mounts = session.appliance.mounts();
    if is_redacted(&info)
        && mounts.mounted(info.guid).is_some()
        && let Err(why) = mounts.unmount_name(dataset, true).await
    {
        session
            .out
            .error(format!("cannot unmount '{dataset}': {why}"));
    }
}

fn tell(session: &Session, options: &Options, notes: &[ReceiveNote]) {
    for note in notes {
        match note {
            ReceiveNote::Progress(text) if options.verbose => session.out.line(text),
            ReceiveNote::Progress(_) => {}
            ReceiveNote::Warning(text) => session.out.error(text),
        }
    }
}
