//! What is shared by NFS: the datasets of the open pools whose `sharenfs` says so.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::DatasetInfo;
use engine::property::{DatasetKind, Value};

use manage::api::Share;
use manage::replication::{FENCED_PROPERTY, IDENTITY_PROPERTY, fence_of, identity_of};
use nfs::exports::Rules;

use super::fuse::Mounts;

use super::nfs::Listeners;
use crate::appliance::context::Context;
use crate::appliance::followed::{FollowedDatasets, ServedPool};
use crate::logging::NFS;
use crate::redacted::is_redacted;

/// Value of the property `keystatus` of a dataset whose key is not loaded.
const KEY_UNAVAILABLE: u64 = 1;
/// Why no client can use Kerberos.
const WITHOUT_KERBEROS: &str = "clients cannot use Kerberos, which sec= asks for: kerberos_keytab under [nfs] is not set, or not usable";

/// The clients of NFS.
pub(crate) struct NfsClients {
    /// What each has asked for.
    pub(crate) counts: Vec<nfs::ClientCounts>,
    /// Which has said that it mounted what: of version 3 only.
    pub(crate) mounted: Vec<(IpAddr, String)>,
}

/// The shares of a daemon.
pub(crate) struct Shares {
    /// The file systems whose `sharenfs` is not off.
    datasets: FollowedDatasets,
    server: nfs::Server,
    listeners: Listeners,
    /// Withdrawn by `zfs unshare`, by guid.
    withdrawn: Mutex<BTreeSet<u64>>,
    /// What is mounted: a dataset that was received redacted is shared while it is.
    mounts: Arc<Mounts>,
    /// Pools on their way out.
    leaving: Mutex<BTreeSet<String>>,
    /// One refresh at a time.
    refreshing: tokio::sync::Mutex<()>,
    /// What the last refresh found, in the order of the datasets.
    found: Mutex<Vec<Share>>,
    /// Datasets whose shares want Kerberos where that is not offered, of which the log has told.
    without_kerberos: Mutex<BTreeSet<String>>,
}

impl Shares {
    pub(crate) fn new(server: nfs::Server, listeners: Listeners, mounts: Arc<Mounts>) -> Self {
        let properties = [
            "sharenfs",
            "mountpoint",
            "readonly",
            "keystatus",
            "redacted",
            IDENTITY_PROPERTY,
            FENCED_PROPERTY,
        ];
        let kinds = [DatasetKind::Filesystem];
        Self {
            datasets: FollowedDatasets::new(&kinds, &properties, |info| sharenfs(info).is_some()),
            server,
            listeners,
            withdrawn: Mutex::default(),
            mounts,
            leaving: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
            found: Mutex::default(),
            without_kerberos: Mutex::default(),
        }
    }

    /// Lists what is to be shared, with the reason where something is not.
    pub(crate) fn list(&self) -> Vec<Share> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }

    pub(crate) fn clients(&self) -> NfsClients {
        NfsClients {
            counts: self.server.clients(),
            mounted: self.server.mounted(),
        }
    }

    fn withdrawn(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.withdrawn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the sockets; calls under way are answered as far as the process lives.
    pub(crate) async fn close(&self) {
        self.listeners.close().await;
    }

    /// Withdraws a share until it is restored.
    pub(crate) fn withdraw(&self, guid: u64) {
        self.withdrawn().insert(guid);
    }

    /// Restores a withdrawn share, or all.
    pub(crate) fn restore(&self, guid: Option<u64>) {
        match guid {
            Some(guid) => {
                self.withdrawn().remove(&guid);
            }
            None => self.withdrawn().clear(),
        }
    }

    /// Withdraws the shares of a pool that is about to go. The next refresh, which finds it gone or
    /// still there, ends this.
    pub(crate) async fn withdraw_pool(&self, context: &Context, pool: &str) {
        self.leaving().insert(pool.to_owned());
        self.refresh(context).await;
        self.leaving().remove(pool);
    }

    /// Why a dataset is not shared now, whatever its properties ask for.
    fn why_not(&self, info: &DatasetInfo) -> Option<&'static str> {
        let status = info.property("keystatus").map(|property| &property.value);
        if status == Some(&Value::Number(KEY_UNAVAILABLE)) {
            Some("encryption key not loaded")
        } else if is_redacted(info) && self.mounts.mounted(info.guid).is_none() {
            Some("received redacted, and not mounted")
        } else if fence_of(info).is_some() {
            Some("another is in use in place of it")
        } else {
            None
        }
    }

    /// Makes the shares those that the datasets' properties ask for.
    pub(crate) async fn refresh(&self, context: &Context) {
        let _one = self.refreshing.lock().await;
        let mut exports: Vec<nfs::Export> = Vec::new();
        let mut paths = BTreeSet::new();
        for ServedPool { pool, datasets } in self.datasets.read(context).await {
            if self.leaving().contains(pool.name()) {
                continue;
            }
            for info in datasets {
                let Some(sharenfs) = sharenfs(&info) else {
                    continue;
                };
                if self.withdrawn().contains(&info.guid) {
                    continue;
                }
                if let Some(why) = self.why_not(&info) {
                    tracing::info!(target: NFS, "'{}' is not shared: {why}", info.name);
                    continue;
                }
                let readonly = info
                    .property("readonly")
                    .is_some_and(|property| property.value == Value::Number(1));
                exports.push(nfs::Export {
                    path: path(&info, &mut paths),
                    fs: pool.fs_by_number(info.object, info.guid),
                    dataset: info.name.clone(),
                    identity: identity_of(&info),
                    sharenfs,
                    readonly: readonly || pool.readonly(),
                });
            }
        }
        let any = !exports.is_empty();
        let mut found: Vec<Share> = exports.iter().map(share).collect();
        self.note_without_kerberos(&mut found);
        for (export, error) in self.server.set_exports(exports) {
            for refused in found.iter_mut().filter(|s| s.dataset == export.dataset) {
                refused.error = Some(error.to_string());
            }
            tracing::warn!(target: NFS, "'{}' is not shared: {error}", export.dataset);
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        self.listeners.follow(&self.server, any).await;
    }
}

impl Shares {
    /// Says of shares that want Kerberos where that is not offered: in the log once, and in the list where no client can use them.
    fn note_without_kerberos(&self, found: &mut [Share]) {
        if self.server.offers_kerberos() {
            return;
        }
        let noted = self.without_kerberos.lock();
        let mut noted = noted.unwrap_or_else(PoisonError::into_inner);
        for share in found {
            let Some(rules) = Rules::parse(&share.options)
                .ok()
                .filter(Rules::has_kerberos)
            else {
                continue;
            };
            if rules.has_kerberos_only() {
                share.error = Some(WITHOUT_KERBEROS.to_owned());
            }
            if noted.insert(share.dataset.clone()) {
                tracing::warn!(target: NFS, "'{}': {WITHOUT_KERBEROS}", share.dataset);
            }
        }
    }
}

fn share(export: &nfs::Export) -> Share {
    Share {
        dataset: export.dataset.clone(),
        path: export.path.clone(),
        options: export.sharenfs.clone(),
        readonly: export.readonly,
        error: None,
    }
}

/// How a dataset is to be shared, if at all.
fn sharenfs(info: &DatasetInfo) -> Option<String> {
    text(info, "sharenfs").filter(|value| value != "off")
}

fn text(info: &DatasetInfo, name: &str) -> Option<String> {
    info.property(name)?.value.text().map(str::to_owned)
}

/// What clients mount: the mount point, or the dataset's name where there is none or another share
/// has it already. `taken` are those of the shares before it.
fn path(info: &DatasetInfo, taken: &mut BTreeSet<String>) -> String {
    let point = text(info, "mountpoint").filter(|point| point.starts_with('/'));
    let point = point.map(|point| match point.trim_end_matches('/') {
        "" => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    });
    let path = match point {
        Some(point) if !taken.contains(&point) => point,
        _ => format!("/{}", info.name),
    };
    taken.insert(path.clone());
    path
}
