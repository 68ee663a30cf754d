//! The activities of a pool that commands wait for, and its devices by what users call them.

use std::time::Duration;

use engine::{
    EngineError, LeafActivity, LeafActivityState, PoolHandle, PoolStatus, RebuildState,
    RemovalStage, VdevStatus,
};

use crate::cli::{Exit, Outcome, Session};

/// How often a waiting command looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether an activity that `zpool wait` waits for is under way.
pub(super) fn is_active(status: &PoolStatus, activity: &str) -> bool {
    match activity {
        "discard" => is_discarding(status),
        "trim" => is_leaf_active(status, LeafActivity::Trim),
        "initialize" => is_leaf_active(status, LeafActivity::Initialize),
        "remove" => is_removing(status),
        "scrub" => is_scrubbing(status),
        "resilver" => is_resilvering(status),
        "raidz_expand" => is_expanding(status),
        "replace" => is_replacing(status),
        _ => false,
    }
}

/// Whether some leaf is being trimmed, or initialized.
pub(super) fn is_leaf_active(status: &PoolStatus, what: LeafActivity) -> bool {
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

/// Whether a device has not given its place to its successor yet: it does a moment after the resilver.
fn is_replacing(status: &PoolStatus) -> bool {
    fn is_within(vdev: &VdevStatus) -> bool {
        vdev.kind == "replacing" || vdev.children.iter().any(is_within)
    }
    is_within(&status.root)
}

/// Whether a device that joined the pool is not yet all it will be: it is being filled, or the one that it replaces is there.
pub(super) fn is_joining(status: &PoolStatus, replaces: bool) -> bool {
    is_resilvering(status) || (replaces && is_replacing(status))
}

/// Whether a checkpoint is being discarded.
pub(super) fn is_discarding(status: &PoolStatus) -> bool {
    status.checkpoint.is_some_and(|kept| kept.time.is_none())
}

/// Whether a vdev is being evacuated.
pub(super) fn is_removing(status: &PoolStatus) -> bool {
    status
        .removal
        .is_some_and(|removal| removal.stage == RemovalStage::Evacuating)
}

/// Whether a raidz is being expanded.
pub(super) fn is_expanding(status: &PoolStatus) -> bool {
    status.expansion.is_some_and(|expansion| expansion.running)
}

pub(super) fn is_scrubbing(status: &PoolStatus) -> bool {
    // A paused scrub is waited for, too: it may be resumed.
    status
        .scan
        .as_ref()
        .is_some_and(|scan| scan.running && !scan.resilver)
}

fn is_resilvering(status: &PoolStatus) -> bool {
    let sequentially = |top: &VdevStatus| {
        let rebuild = top.rebuild.as_ref();
        rebuild.is_some_and(|rebuild| rebuild.state == RebuildState::Active)
    };
    let healing = status.scan.as_ref();
    healing.is_some_and(|scan| scan.running && scan.resilver)
        || status.root.children.iter().any(sequentially)
}

/// Waits while `active`; a pool that is exported meanwhile is not waited for.
pub(super) async fn wait_for(
    session: &Session,
    pool: &PoolHandle,
    active: impl Fn(&PoolStatus) -> bool,
) -> Outcome {
    loop {
        match pool.status().await {
            Ok(status) if active(&status) => {}
            Ok(_) | Err(EngineError::PoolClosed) => return Ok(()),
            Err(error) => {
                return Err(session.fail(format!("failed to wait for '{}': {error}", pool.name())));
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Without a daemon a scan stops with this process: the command stays until it is over.
pub(super) async fn finish_here(session: &Session, pool: &PoolHandle) -> Outcome {
    if session.appliance.is_daemon() {
        return Ok(());
    }
    wait_for(session, pool, |status| {
        let scan = status.scan.as_ref();
        is_resilvering(status)
            || is_expanding(status)
            || scan.is_some_and(|scan| scan.running && scan.paused_since == 0)
    })
    .await
}

/// Finds a vdev by what the user calls it: path, last part of the path, name in the status, guid.
pub(crate) async fn vdev_guid(pool: &PoolHandle, word: &str) -> Result<Option<u64>, Exit> {
    fn find(vdev: &VdevStatus, word: &str) -> Option<u64> {
        let path = vdev.path.as_deref();
        let known = vdev.name == word
            || path.is_some_and(|path| {
                path.as_os_str() == word
                    || path
                        .strip_prefix("/dev")
                        .is_ok_and(|p| p.as_os_str() == word)
                    || std::fs::canonicalize(word).is_ok_and(|real| {
                        word.contains('/')
                            && std::fs::canonicalize(path).is_ok_and(|own| own == real)
                    })
            })
            || word.parse() == Ok(vdev.guid);
        if known {
            return Some(vdev.guid);
        }
        vdev.children.iter().find_map(|child| find(child, word))
    }
    let status = pool.status().await.map_err(|_| Exit(1))?;
    let all = status.root.children.iter();
    let all = all.chain(&status.spares).chain(&status.caches);
    Ok(all.into_iter().find_map(|vdev| find(vdev, word)))
}

#[cfg(test)]
mod tests {
    use engine::ScanStatus;

    use super::*;

    /// A pool of a mirror whose second half is of the kind, with a resilver that is on or over.
    fn status(half: &str, running: bool) -> PoolStatus {
        let vdev = |kind: &str, children: Vec<VdevStatus>| VdevStatus {
            kind: kind.to_owned(),
            children,
            ..VdevStatus::default()
        };
        let half = vdev(half, vec![vdev("file", vec![]), vdev("file", vec![])]);
        let mirror = vdev("mirror", vec![vdev("file", vec![]), half]);
        PoolStatus {
            root: vdev("root", vec![mirror]),
            scan: Some(ScanStatus {
                resilver: true,
                running,
                ..ScanStatus::default()
            }),
            ..PoolStatus::default()
        }
    }

    #[test]
    fn a_replacement_lasts_until_the_old_device_has_gone() {
        assert!(is_joining(&status("replacing", true), true));
        // The resilver is over, and the old device goes in one of the next txgs.
        assert!(is_joining(&status("replacing", false), true));
        assert!(!is_joining(&status("file", false), true));
    }

    #[test]
    fn a_device_that_is_attached_waits_for_no_replacement_of_others() {
        assert!(is_joining(&status("file", true), false));
        assert!(!is_joining(&status("replacing", false), false));
    }
}
