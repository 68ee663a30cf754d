//! `zpool trim` and `zpool initialize`.

use engine::{LeafActivity, LeafActivityRequest, PoolHandle, VdevStatus};

use super::activity::{is_leaf_active, vdev_guid, wait_for};
use super::open_pool;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};

options! {
    InitializeOption {
        Cancel = both('c', "cancel", None, "cancel it"),
        Suspend = both('s', "suspend", None, "pause it"),
        Uninit = both('u', "uninit", None, "forget that it was done"),
        Wait = both('w', "wait", None, "wait until it is done"),
    }
}

/// The declaration of `zpool initialize`.
pub(super) const INITIALIZE: Command = Command {
    name: "initialize",
    summary: "write all free space once",
    usage: "\tinitialize [-c | -s | -u] [-w] <pool> [<device> ...]\n",
    flags: InitializeOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[(
        "zpool initialize tank",
        "write all free space once, for devices that are slow at the first write to a place",
    )],
    ..Command::NEW
};

options! {
    TrimOption {
        Cancel = both('c', "cancel", None, "cancel it"),
        Secure = both('d', "secure", None, "have the devices erase what is free"),
        Rate(String) = both('r', "rate", Some("rate"), "bytes a second at most, for each device"),
        Suspend = both('s', "suspend", None, "pause it"),
        Wait = both('w', "wait", None, "wait until it is done"),
    }
}

/// The declaration of `zpool trim`.
pub(super) const TRIM: Command = Command {
    name: "trim",
    summary: "tell devices what is free",
    usage: "\ttrim [-dw] [-r <rate>] [-c | -s] <pool> [<device> ...]\n",
    flags: TrimOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[
        (
            "zpool trim tank",
            "tell the devices what is free; files below the pool become smaller",
        ),
        (
            "zpool trim -r 200M -w tank sda",
            "one device, at most 200 MiB a second, and wait until it is done",
        ),
        ("zpool wait -t trim tank", "wait until all devices are done"),
    ],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_trim; lib/libzfs/libzfs_pool.c, zpool_trim (words)
pub(super) async fn trim(session: &Session, arguments: &[String]) -> Outcome {
    let (mut request, mut rate, mut wait) = (None, None, false);
    let operands = session.read_options(arguments, |session, option| {
        match option {
            TrimOption::Cancel => {
                if !matches!(request, None | Some(LeafActivityRequest::Cancel)) {
                    return Err(session.misuse("-c cannot be combined with other options"));
                }
                request = Some(LeafActivityRequest::Cancel);
            }
            TrimOption::Suspend => {
                if !matches!(request, None | Some(LeafActivityRequest::Suspend)) {
                    return Err(session.misuse("-s cannot be combined with other options"));
                }
                request = Some(LeafActivityRequest::Suspend);
            }
            TrimOption::Rate(text) => {
                if request.is_some() {
                    let what = "-r cannot be combined with the -c or -s options";
                    return Err(session.misuse(what));
                }
                let Ok(bytes) = engine::property::parse_number(&text) else {
                    let what = format!("invalid value for rate: bad numeric value '{text}'");
                    return Err(session.misuse(what));
                };
                rate = Some(bytes);
            }
            TrimOption::Secure => {
                return Err(
                    session.fail("cannot trim: trim operations are not supported by this device")
                );
            }
            TrimOption::Wait => wait = true,
        }
        Ok(())
    })?;
    if operands.is_empty() {
        return Err(session.misuse("missing pool name argument"));
    }
    if wait && request.is_some() {
        return Err(session.misuse("-w cannot be used with -c or -s"));
    }
    let request = request.unwrap_or(LeafActivityRequest::Start { rate });
    apply(session, &operands, LeafActivity::Trim, request, wait).await
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_initialize; lib/libzfs/libzfs_pool.c, zpool_initialize_one (words)
pub(super) async fn initialize(session: &Session, arguments: &[String]) -> Outcome {
    let (mut request, mut wait) = (None, false);
    let operands = session.read_options(arguments, |session, option| {
        let (asked, letter) = match option {
            InitializeOption::Cancel => (LeafActivityRequest::Cancel, 'c'),
            InitializeOption::Suspend => (LeafActivityRequest::Suspend, 's'),
            InitializeOption::Uninit => (LeafActivityRequest::Uninit, 'u'),
            InitializeOption::Wait => {
                wait = true;
                return Ok(());
            }
        };
        if request.is_some_and(|before| before != asked) {
            let what = format!("-{letter} cannot be combined with other options");
            return Err(session.misuse(what));
        }
        request = Some(asked);
        Ok(())
    })?;
    if operands.is_empty() {
        return Err(session.misuse("missing pool name argument"));
    }
    if wait && request.is_some() {
        return Err(session.misuse("-w cannot be used with -c, -s or -u"));
    }
    let request = request.unwrap_or(LeafActivityRequest::Start { rate: None });
    apply(session, &operands, LeafActivity::Initialize, request, wait).await
}

async fn apply(
    session: &Session,
    operands: &[String],
    what: LeafActivity,
    request: LeafActivityRequest,
    wait: bool,
) -> Outcome {
    let (name, words) = operands.split_first().ok_or(Exit(2))?;
    let pool = open_pool(session, name).await?;
    let verb = match what {
        LeafActivity::Trim => "trim",
        LeafActivity::Initialize => "initialize",
    };
    let mut leaves = Vec::new();
    let (mut failed, mut changed) = (false, false);
    if words.is_empty() {
        let status = pool.status().await.map_err(|_| Exit(1))?;
        collect(&status.root, &mut leaves);
    }
    for word in words {
        match vdev_guid(&pool, word).await? {
            Some(guid) => leaves.push((word.clone(), guid)),
            None => {
                let text = format!("cannot {verb} '{word}': no such device in pool");
                session.out.error(text);
                failed = true;
            }
        }
    }
    if failed {
        return Err(Exit(1));
    }
    for (word, guid) in leaves {
        match pool.request_leaf_activity(what, guid, request).await {
            Ok(()) => changed = true,
            Err(error) => {
                session
                    .out
                    .error(format!("cannot {verb} '{word}': {error}"));
                failed = true;
            }
        }
    }
    if changed {
        session.record(&pool).await;
    }
    // Without a daemon the work ends with this process.
    let starts = matches!(request, LeafActivityRequest::Start { .. });
    if starts && (wait || !session.appliance.is_daemon()) {
        finish(session, &pool, what).await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn finish(session: &Session, pool: &PoolHandle, what: LeafActivity) -> Outcome {
    wait_for(session, pool, |status| is_leaf_active(status, what)).await
}

/// All leaves that are open, by name.
fn collect(vdev: &VdevStatus, into: &mut Vec<(String, u64)>) {
    if vdev.children.is_empty() && vdev.health == engine::Health::Online {
        into.push((vdev.name.clone(), vdev.guid));
    }
    for child in &vdev.children {
        collect(child, into);
    }
}
