//! `zpool trim` and `zpool initialize`.

use engine::{
    LeafActivity, LeafActivityRequest, LeafActivityState, PoolHandle, PoolStatus, VdevStatus,
};

use super::open_pool;
use super::scan::{vdev_guid, wait_for};
use crate::cli::getopt::{Long, Opt};
use crate::cli::{Exit, Outcome, Session};

const fn flag(name: &'static str) -> Long {
    Long { name, value: false }
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_trim; lib/libzfs/libzfs_pool.c, zpool_trim (words)
pub(super) async fn trim(session: &Session, arguments: &[String]) -> Outcome {
    const LONGS: &[Long] = &[
        flag("cancel"),
        flag("secure"),
        Long {
            name: "rate",
            value: true,
        },
        flag("suspend"),
        flag("wait"),
    ];
    let (mut request, mut rate, mut wait) = (None, None, false);
    let operands = session.options(arguments, "cdr:sw", LONGS, |session, option| {
        match option {
            Opt::Short('c', _) | Opt::Long("cancel", _) => {
                if !matches!(request, None | Some(LeafActivityRequest::Cancel)) {
                    return Err(session.misuse("-c cannot be combined with other options"));
                }
                request = Some(LeafActivityRequest::Cancel);
            }
            Opt::Short('s', _) | Opt::Long("suspend", _) => {
                if !matches!(request, None | Some(LeafActivityRequest::Suspend)) {
                    return Err(session.misuse("-s cannot be combined with other options"));
                }
                request = Some(LeafActivityRequest::Suspend);
            }
            Opt::Short('r', Some(text)) | Opt::Long("rate", Some(text)) => {
                if request.is_some() {
                    let what = "-r cannot be combined with the -c or -s options";
                    return Err(session.misuse(what));
                }
                match engine::property::parse_number(&text) {
                    Ok(bytes) => rate = Some(bytes),
                    Err(_) => {
                        let what = format!("invalid value for rate: bad numeric value '{text}'");
                        return Err(session.misuse(what));
                    }
                }
            }
            Opt::Short('d', _) | Opt::Long("secure", _) => {
                return Err(
                    session.fail("cannot trim: trim operations are not supported by this device")
                );
            }
            Opt::Short('w', _) | Opt::Long("wait", _) => wait = true,
            _ => {}
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
    const LONGS: &[Long] = &[
        flag("cancel"),
        flag("suspend"),
        flag("uninit"),
        flag("wait"),
    ];
    let (mut request, mut wait) = (None, false);
    let operands = session.options(arguments, "csuw", LONGS, |session, option| {
        let (asked, letter) = match option {
            Opt::Short('c', _) | Opt::Long("cancel", _) => (LeafActivityRequest::Cancel, 'c'),
            Opt::Short('s', _) | Opt::Long("suspend", _) => (LeafActivityRequest::Suspend, 's'),
            Opt::Short('u', _) | Opt::Long("uninit", _) => (LeafActivityRequest::Uninit, 'u'),
            _ => {
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
    if starts && (wait || !session.appliance.lives_on()) {
        finish(session, &pool, what).await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn finish(session: &Session, pool: &PoolHandle, what: LeafActivity) -> Outcome {
    wait_for(session, pool, |status| is_active(status, what)).await
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

/// Whether such work is under way anywhere.
pub(super) fn is_active(status: &PoolStatus, what: LeafActivity) -> bool {
    fn any(vdev: &VdevStatus, what: LeafActivity) -> bool {
        let work = match what {
            LeafActivity::Trim => &vdev.trim,
            LeafActivity::Initialize => &vdev.initialize,
        };
        work.state == LeafActivityState::Active
            || vdev.children.iter().any(|child| any(child, what))
    }
    any(&status.root, what)
}
