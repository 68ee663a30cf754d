//! What `zpool get` and `zpool set` ask of vdevs.

use engine::pool_property::VDEV_PROPERTIES;
use engine::{PoolHandle, PoolStatus, VdevStatus};

use super::iostat::find_vdev;
use super::{NameStyle, open_pool};
use crate::cli::{Exit, Outcome, Session};

/// The root vdev, as these commands call it.
const ROOT: &str = "root-0";

/// Vdevs of a pool: the names they are shown by, and their guids.
pub(super) type Vdevs = Vec<(String, u64)>;

/// Reads the operands of `zpool get`: a pool and vdevs of it, or `None` when all are pools.
pub(super) async fn vdevs_asked_for(
    session: &Session,
    names: &[String],
) -> Result<Option<(PoolHandle, Vdevs)>, Exit> {
    let [name, words @ ..] = names else {
        return Ok(None);
    };
    let mut all_pools = true;
    for word in words {
        all_pools &= session.appliance.known_pool(word).await.is_some();
    }
    if all_pools || session.appliance.known_pool(name).await.is_none() {
        return Ok(None);
    }
    let pool = open_pool(session, name).await?;
    let status = pool.status().await.unwrap_or_default();
    let mut vdevs = Vec::new();
    if let [all] = words
        && all == "all-vdevs"
    {
        add_all(&status.root, &mut vdevs);
        for cache in &status.caches {
            add_all(cache, &mut vdevs);
        }
        return Ok(Some((pool, vdevs)));
    }
    for word in words {
        let Some(found) = find(&status, word) else {
            return Err(session.misuse(format!(
                "Expected a list of vdevs in \"{name}\", but got:\n\t{word}\n"
            )));
        };
        vdevs.push(found);
    }
    Ok(Some((pool, vdevs)))
}

fn add_all(vdev: &VdevStatus, vdevs: &mut Vdevs) {
    vdevs.push((shown_name(vdev), vdev.guid));
    for child in &vdev.children {
        add_all(child, vdevs);
    }
}

fn shown_name(vdev: &VdevStatus) -> String {
    match vdev.kind.as_str() {
        "root" => ROOT.to_owned(),
        _ => NameStyle::default().name(vdev),
    }
}

fn find(status: &PoolStatus, word: &str) -> Option<(String, u64)> {
    if word == "root" || word == ROOT {
        return Some((ROOT.to_owned(), status.root.guid));
    }
    let guid = find_vdev(status, word, NameStyle::default())?;
    Some((word.to_owned(), guid))
}

/// Returns the name of a vdev property that a word asks for.
pub(super) fn vdev_property(word: &str) -> Option<String> {
    let is_known = VDEV_PROPERTIES.iter().any(|row| row.name == word);
    (is_known || word == "name" || word.contains(':')).then(|| word.to_owned())
}

/// `zpool set PROPERTY=VALUE POOL VDEV`.
pub(super) async fn set_of_vdev(
    session: &Session,
    pool: &PoolHandle,
    word: &str,
    (property, value): (&str, &str),
) -> Outcome {
    let name = pool.name();
    let status = pool.status().await.unwrap_or_default();
    let Some((shown, guid)) = find(&status, word) else {
        return Err(session.fail(format!(
            "cannot find '{word}' in '{name}': device not in pool"
        )));
    };
    match pool.set_vdev_property(guid, property, value).await {
        Ok(()) => {
            session.record(pool).await;
            Ok(())
        }
        Err(error) => Err(session.fail(format!(
            "cannot set property {property} for {shown} on {name}: {error}"
        ))),
    }
}
