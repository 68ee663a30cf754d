//! What the service knows between calls: exports, decisions about clients, answers given, mounts. Calls are answered above it, in
//! `dispatch`.

use crate::call_counts::{CallCounts, ClientCounts};
use crate::client_call::{ClientCall, ClientCalls, Purpose};
use crate::connection::{Peer, TransportSecurity};
use crate::exports::{Access, Flavours, GrammarError, Resolver, Rules};
use crate::handle::{FileHandle, HandleRefusal};
use crate::mounts::Mounts;
use crate::nlm::hosts::Hosts;
use crate::reply_cache::ReplyCache;
use crate::rpc::Credential;
use crate::rpcsec_gss::KerberosAcceptor;
use crate::rpcsec_gss::contexts::ContextTable;
use crate::v4::DelegationCounts;
use crate::v4::pseudo::PseudoTree;
use crate::v4::state::{StateTable, StateTableConfig};
use engine::{Client, Cred, DelegationRecall, FileLocks, FsHandle, ReclaimGrace, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// How long a decision about a client is kept, in nanoseconds: name servers are slow, and access lists change seldom.
const ACCESS_AGE_MAX_NS: u64 = 60_000_000_000;
/// Decisions kept.
const CACHED_ACCESS_MAX: usize = 4096;
/// Clients remembered that asked for a version of NFS that is not served.
const REFUSED_VERSIONS_MAX: usize = 256;

/// One share, as its dataset's properties say.
#[derive(Debug, Clone)]
pub struct Export {
    /// What MOUNT calls it: an absolute path, without a slash at its end.
    pub path: String,
    /// The file system.
    pub fs: FsHandle,
    /// The dataset's name, for messages.
    pub dataset: String,
    /// The guid of the dataset that this one stands in for: handles that clients have of that one lead here, unless that one is exported, too.
    pub identity: Option<u64>,
    /// The value of `sharenfs`.
    pub sharenfs: String,
    /// Nothing may be written, whatever `sharenfs` says.
    pub readonly: bool,
}

/// What the server is told once.
pub struct ServerConfig {
    /// The TCP port that serves NFS and MOUNT, for the port mapper's answers.
    pub nfs_port: u16,
    /// When the server is started, in nanoseconds since the epoch: different after each start, so that clients know that unstable
    /// writes may be lost (RFC 1813, section 3.3.7).
    pub boot_verifier: u64,
    /// Random numbers, others after each start: what clients are given to name their state by cannot be guessed.
    pub secret: [u64; 2],
    /// Keeps which clients of NFSv4 have state.
    pub record: Box<dyn ClientRecord>,
    /// Turns names in access lists into addresses.
    pub resolver: Box<dyn Resolver>,
    /// What is served of NFS.
    pub versions: Versions,
    /// The locks of all files, which other protocols share.
    pub locks: Arc<FileLocks>,
    /// The engine's: where clients may reclaim delegations after a restart, told before the pools are opened.
    pub reclaims: Arc<ReclaimGrace>,
    /// Carries calls to clients.
    pub client_calls: Box<dyn ClientCalls>,
    /// What this machine calls itself: clients of NLM are told a restart under it.
    pub host_name: String,
    /// Takes the proofs of clients that use Kerberos; `None` takes none.
    pub kerberos: Option<Arc<dyn KerberosAcceptor>>,
}

/// Keeps the record of NFSv4's clients that may reclaim their state after a restart, in one piece.
pub trait ClientRecord: Send + Sync {
    /// Returns what was written last; nothing where there is no record, or none that can be read.
    fn read(&self) -> Vec<u8>;

    /// Replaces the record; it is stable when this returns. It may wait for a disk: clients that come or go are few.
    ///
    /// # Errors
    /// Those of writing. It is tried again with the next call.
    fn write(&self, record: &[u8]) -> std::io::Result<()>;
}

/// What is served of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Version 3.
    pub v3: bool,
    /// Which of version 4's minor versions 0, 1 and 2.
    pub v4_minors: [bool; 3],
    /// How long a client of version 4 that says nothing keeps what it has open and locked, in seconds.
    pub lease_seconds: u32,
    /// Clients of minor version 1 and above are given delegations.
    pub delegations: bool,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            v3: true,
            v4_minors: [true; 3],
            // As Linux's server.
            lease_seconds: 90,
            delegations: true,
        }
    }
}

/// An export with its rules parsed.
pub(crate) struct ServedExport {
    pub(crate) export: Export,
    pub(crate) rules: Rules,
    /// What handles have for the dataset.
    pub(crate) identity: u64,
    /// Names in its root directory that lead to other shares, and their guids.
    pub(crate) nested: Vec<(Vec<u8>, u64)>,
}

/// The exports, by the guids of their datasets.
#[derive(Default)]
pub(crate) struct Exports {
    served: BTreeMap<u64, Arc<ServedExport>>,
    /// The datasets that stand in for others, by the guids of those.
    identities: BTreeMap<u64, u64>,
}

impl Deref for Exports {
    type Target = BTreeMap<u64, Arc<ServedExport>>;

    fn deref(&self) -> &Self::Target {
        &self.served
    }
}

impl Exports {
    /// Reads a handle, or `None` when it is none of ours.
    fn read_handle(&self, bytes: &[u8]) -> Option<FileHandle> {
        let mut handle = FileHandle::decode(bytes)?;
        if let Some(dataset) = self.identities.get(&handle.identity) {
            handle.dataset = *dataset;
        }
        Some(handle)
    }
}

/// Returns which dataset acts as which other: none as one that is there itself, and one at most as each. `asked` are datasets, and the ones
/// that they are to act as.
fn identities(asked: &[(u64, Option<u64>)]) -> BTreeMap<u64, u64> {
    let present: BTreeSet<u64> = asked.iter().map(|(own, _)| *own).collect();
    let mut found = BTreeMap::new();
    for (own, identity) in asked {
        if let Some(identity) = identity.filter(|identity| !present.contains(identity)) {
            found.entry(identity).or_insert(*own);
        }
    }
    found
}

type CachedAccess = (u64, Option<Access>);

struct ServerState {
    nfs_port: u16,
    boot_verifier: u64,
    resolver: Box<dyn Resolver>,
    now_ns: AtomicU64,
    exports: RwLock<Arc<Exports>>,
    /// The tree over the exports, and how often they were replaced.
    pseudo: RwLock<(Arc<PseudoTree>, u64)>,
    versions: Versions,
    v4_state: Mutex<StateTable>,
    locks: Arc<FileLocks>,
    /// Never taken while `v4_state` is held: the other way round it is.
    nlm: Mutex<Hosts>,
    client_calls: Box<dyn ClientCalls>,
    host_name: String,
    kerberos: Option<Arc<dyn KerberosAcceptor>>,
    contexts: Mutex<ContextTable>,
    /// Held while the record is written: an older one never replaces a newer one.
    record: Mutex<Box<dyn ClientRecord>>,
    /// The pools are being opened: what is not shared may be shared in a moment.
    starting: AtomicBool,
    access_cache: Mutex<BTreeMap<(u64, IpAddr, bool, TransportSecurity), CachedAccess>>,
    replies: Mutex<ReplyCache>,
    call_counts: CallCounts,
    mounts: Mutex<Mounts>,
    /// Clients that asked for a version that is not served, and whether that was reported.
    refused_versions: Mutex<BTreeMap<(IpAddr, u32), bool>>,
}

/// The NFS service. Clones share everything; calls run concurrently.
#[derive(Clone)]
pub struct Server {
    shared: Arc<ServerState>,
}

/// The caller of a request, and its rights on one export.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) fs: FsHandle,
    pub(crate) cred: Cred,
    pub(crate) write: bool,
    /// The share takes the flavour of the call. If not, it is called as the anonymous user, for what says which flavours it takes, and for
    /// locks by NLM.
    pub(crate) flavour_taken: bool,
}

impl Server {
    /// Returns a server without exports.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        let state = StateTable::new(&StateTableConfig {
            boot_verifier: config.boot_verifier,
            lease_seconds: config.versions.lease_seconds,
            secret: config.secret,
            record: &config.record.read(),
            locks: Arc::clone(&config.locks),
            reclaims: config.reclaims,
        });
        Self {
            shared: Arc::new(ServerState {
                nfs_port: config.nfs_port,
                boot_verifier: config.boot_verifier,
                resolver: config.resolver,
                now_ns: AtomicU64::new(0),
                exports: RwLock::default(),
                pseudo: RwLock::new((Arc::new(PseudoTree::new(std::iter::empty())), 1)),
                versions: config.versions,
                v4_state: Mutex::new(state),
                locks: config.locks,
                nlm: Mutex::default(),
                client_calls: config.client_calls,
                host_name: config.host_name,
                kerberos: config.kerberos,
                contexts: Mutex::default(),
                record: Mutex::new(config.record),
                starting: AtomicBool::new(true),
                access_cache: Mutex::default(),
                replies: Mutex::default(),
                call_counts: CallCounts::default(),
                mounts: Mutex::default(),
                refused_versions: Mutex::default(),
            }),
        }
    }

    /// Replaces the exports. Handles of an export that is gone answer STALE, and work again should it come back.
    ///
    /// Exports whose `sharenfs` is not understood are left out and returned with the reason.
    pub fn set_exports(&self, exports: Vec<Export>) -> Vec<(Export, GrammarError)> {
        let asked: Vec<_> = exports
            .iter()
            .map(|export| (export.fs.guid(), export.identity))
            .collect();
        let identities = identities(&asked);
        let mut served = BTreeMap::new();
        let mut refused = Vec::new();
        let paths = exports
            .iter()
            .map(|export| (export.fs.guid(), export.path.as_str()));
        let mut nested = nested_names(paths);
        for export in exports {
            match Rules::parse(&export.sharenfs) {
                Ok(rules) => {
                    let guid = export.fs.guid();
                    let nested = nested.remove(&guid).unwrap_or_default();
                    let acts = export.identity;
                    let acts = acts.filter(|other| identities.get(other) == Some(&guid));
                    let share = ServedExport {
                        export,
                        rules,
                        identity: acts.unwrap_or(guid),
                        nested,
                    };
                    served.insert(guid, Arc::new(share));
                }
                Err(error) => refused.push((export, error)),
            }
        }
        let shares = served
            .iter()
            .map(|(guid, share)| (*guid, share.export.path.as_str()));
        let tree = Arc::new(PseudoTree::new(shares));
        *self
            .shared
            .exports
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(Exports { served, identities });
        let mut pseudo = self
            .shared
            .pseudo
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *pseudo = (tree, pseudo.1 + 1);
        drop(pseudo);
        lock(&self.shared.access_cache).clear();
        // What is no longer shared cannot be given back.
        let shared = self.exports();
        self.v4().revoke_unshared(|guid| shared.contains_key(&guid));
        refused
    }

    /// Takes the time, see [`Server::tick`].
    pub(crate) fn set_now(&self, now_ns: u64) {
        self.shared.now_ns.store(now_ns, Ordering::Relaxed);
        self.v4().tick(now_ns);
    }

    /// Notes that the pools are open, see [`Server::pools_are_open`].
    pub(crate) fn end_start(&self) {
        self.shared.starting.store(false, Ordering::Relaxed);
        self.v4().begin_grace();
    }

    /// Returns, while NFSv4's clients reclaim what they had before the restart, how many have not said that they are done.
    #[must_use]
    pub fn reclaiming_clients(&self) -> Option<usize> {
        self.v4().grace()
    }

    /// Sees to it that the record of clients is stored as it is now. If that fails, clients go on, and it is tried again.
    pub(crate) fn store_record(&self) {
        if self.v4().is_record_stored() {
            return;
        }
        let record = lock(&self.shared.record);
        let Some((version, bytes)) = self.v4().unstored_record() else {
            return;
        };
        if record.write(&bytes).is_ok() {
            self.v4().record_stored(version);
        }
    }

    /// What NFSv4's clients have with the server.
    pub(crate) fn v4(&self) -> MutexGuard<'_, StateTable> {
        lock(&self.shared.v4_state)
    }

    /// The locks of all files.
    pub(crate) fn locks(&self) -> &FileLocks {
        &self.shared.locks
    }

    /// The clients of NLM.
    pub(crate) fn nlm(&self) -> MutexGuard<'_, Hosts> {
        lock(&self.shared.nlm)
    }

    /// What takes the proofs of clients that use Kerberos, where that is offered.
    pub(crate) fn kerberos(&self) -> Option<Arc<dyn KerberosAcceptor>> {
        self.shared.kerberos.clone()
    }

    /// Returns whether clients may use Kerberos.
    #[must_use]
    pub fn offers_kerberos(&self) -> bool {
        self.shared.kerberos.is_some()
    }

    /// The contexts of clients that use Kerberos.
    pub(crate) fn contexts(&self) -> MutexGuard<'_, ContextTable> {
        lock(&self.shared.contexts)
    }

    /// Returns how many contexts clients that use Kerberos have.
    #[must_use]
    pub fn kerberos_contexts(&self) -> usize {
        self.contexts().len()
    }

    pub(crate) fn host_name(&self) -> &str {
        &self.shared.host_name
    }

    /// Calls a client.
    pub(crate) fn call_client(&self, call: ClientCall) {
        if let Err(call) = self.shared.client_calls.send(call) {
            self.answered(&call, None);
        }
    }

    /// Takes a client's answer to a call, an RPC message, or that there was none in all tries.
    pub fn answered(&self, call: &ClientCall, answer: Option<&[u8]>) {
        let accepted = answer.is_some_and(|answer| call.is_accepted(answer));
        if let (false, Purpose::Granted { file, owner, range }) = (accepted, &call.purpose) {
            // The client does not want the lock any more, or is gone.
            let _no_room = self.shared.locks.unlock(*file, *owner, *range);
        }
    }

    /// The pseudo file system over the exports.
    pub(crate) fn pseudo(&self) -> Arc<PseudoTree> {
        let pseudo = self.shared.pseudo.read();
        Arc::clone(&pseudo.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Grows with every change of the exports.
    pub(crate) fn exports_version(&self) -> u64 {
        let pseudo = self.shared.pseudo.read();
        let version = pseudo.unwrap_or_else(PoisonError::into_inner).1;
        self.shared.boot_verifier.wrapping_add(version)
    }

    pub(crate) fn serves_minor(&self, minor: u32) -> bool {
        let minors = self
            .shared
            .versions
            .v4_minors
            .get(usize::try_from(minor).unwrap_or(usize::MAX));
        minors.copied().unwrap_or(false)
    }

    /// Whether NFS version 3 is served.
    pub(crate) fn serves_v3(&self) -> bool {
        self.shared.versions.v3
    }

    /// Whether any minor version of NFS version 4 is served.
    pub(crate) fn serves_v4(&self) -> bool {
        self.shared.versions.v4_minors.contains(&true)
    }

    /// At which clients reach this server.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.shared.resolver.own_addresses()
    }

    pub(crate) fn lease_seconds(&self) -> u32 {
        self.shared.versions.lease_seconds
    }

    /// When the server was started.
    pub(crate) fn started(&self) -> Timestamp {
        let (second, verifier) = (1_000_000_000, self.shared.boot_verifier);
        Timestamp {
            seconds: i64::try_from(verifier / second).unwrap_or(i64::MAX),
            nanoseconds: u32::try_from(verifier % second).unwrap_or(0),
        }
    }

    /// Whether files are delegated to clients.
    pub(crate) fn delegates(&self) -> bool {
        self.shared.versions.delegations
    }

    /// Returns how many files are delegated to clients of NFSv4, and what became of those that were.
    #[must_use]
    pub fn delegations(&self) -> DelegationCounts {
        self.v4().delegation_counts()
    }

    /// Returns what has a file recalled from a client.
    pub(crate) fn delegation_recall(&self) -> DelegationRecall {
        let shared = Arc::downgrade(&self.shared);
        Arc::new(move |file, client, why| {
            if let Some(shared) = shared.upgrade() {
                lock(&shared.v4_state).recall_file(file, client, why);
            }
        })
    }

    /// What names this server among others (RFC 8881, section 2.10.4): no other has it, and it is
    /// the same after a restart, else clients would not reclaim.
    pub(crate) fn scope(&self) -> Vec<u8> {
        format!("sanbox-{:x}", self.v4().identity()).into_bytes()
    }

    /// Lets go of files that NFSv4's clients have no longer open.
    pub(crate) async fn release_closed(&self) {
        let released = self.v4().take_released();
        for (fs, file) in released {
            // A file system that is gone holds nothing.
            let _gone = fs.release(file).await;
        }
    }

    /// Returns the clients that asked for a version of NFS that is not served, and which, each once.
    #[must_use]
    pub fn take_refused_versions(&self) -> Vec<(IpAddr, u32)> {
        let mut refused = lock(&self.shared.refused_versions);
        let fresh = refused.iter_mut().filter(|(_, reported)| !**reported);
        fresh
            .map(|(client, reported)| {
                *reported = true;
                *client
            })
            .collect()
    }

    pub(crate) fn note_refused_version(&self, client: IpAddr, version: u32) {
        let mut refused = lock(&self.shared.refused_versions);
        if refused.len() >= REFUSED_VERSIONS_MAX {
            // Reported again then: rather that than memory without a bound.
            refused.clear();
        }
        refused.entry((client, version)).or_insert(false);
    }

    pub(crate) fn resolver(&self) -> &dyn Resolver {
        &*self.shared.resolver
    }

    pub(crate) fn nfs_port(&self) -> u16 {
        self.shared.nfs_port
    }

    pub(crate) fn replies(&self) -> MutexGuard<'_, ReplyCache> {
        lock(&self.shared.replies)
    }

    /// Returns what each client has asked for since the service was started, by address.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientCounts> {
        self.shared.call_counts.read()
    }

    pub(crate) fn call_counts(&self) -> &CallCounts {
        &self.shared.call_counts
    }

    /// Returns which client has said that it mounted what (RFC 1813, appendix I): those of version 3 only.
    #[must_use]
    pub fn mounted(&self) -> Vec<(IpAddr, String)> {
        self.mounts().entries.iter().cloned().collect()
    }

    pub(crate) fn boot_verifier(&self) -> u64 {
        self.shared.boot_verifier
    }

    pub(crate) fn mounts(&self) -> MutexGuard<'_, Mounts> {
        lock(&self.shared.mounts)
    }

    pub(crate) fn exports(&self) -> Arc<Exports> {
        Arc::clone(
            &self
                .shared
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.now_ns.load(Ordering::Relaxed)
    }

    /// Reads a handle, or `None` when it is none of ours.
    pub(crate) fn read_handle(&self, bytes: &[u8]) -> Option<FileHandle> {
        self.exports().read_handle(bytes)
    }

    /// Decides what the client may do on an export.
    pub(crate) fn access_of(&self, guid: u64, served: &ServedExport, peer: Peer) -> Option<Access> {
        let client = peer.ip().to_canonical();
        let from_reserved = peer.port() < 1024;
        let (now, key) = (self.now_ns(), (guid, client, from_reserved, peer.security));
        if let Some((until, access)) = lock(&self.shared.access_cache).get(&key)
            && now < *until
        {
            return *access;
        }
        // Not under the lock: this may ask a name server.
        let access =
            served
                .rules
                .access(client, peer.port(), peer.security, &*self.shared.resolver);
        let mut access_cache = lock(&self.shared.access_cache);
        if access_cache.len() >= CACHED_ACCESS_MAX {
            access_cache.clear();
        }
        access_cache.insert(key, (now.saturating_add(ACCESS_AGE_MAX_NS), access));
        access
    }

    /// Returns the flavours that calls of a client may have on a file; `None` when it is shared no more, or not with the client.
    pub(crate) fn flavours(&self, handle: &FileHandle, peer: Peer) -> Option<Flavours> {
        let exports = self.exports();
        let served = exports.get(&handle.dataset)?;
        let access = self.access_of(handle.dataset, served, peer)?;
        Some(access.flavours)
    }

    /// Finds the file system of a handle, and what the caller is there.
    pub(crate) fn admit(
        &self,
        handle: &[u8],
        peer: Peer,
        credential: &Credential,
    ) -> Result<(FileHandle, Caller), HandleRefusal> {
        let admitted = self.admit_by_any_flavour(handle, peer, credential)?;
        match admitted.1.flavour_taken {
            true => Ok(admitted),
            false => Err(HandleRefusal::Forbidden),
        }
    }

    /// As [`Self::admit`], of a caller whose flavour the share need not take.
    pub(crate) fn admit_by_any_flavour(
        &self,
        handle: &[u8],
        peer: Peer,
        credential: &Credential,
    ) -> Result<(FileHandle, Caller), HandleRefusal> {
        let exports = self.exports();
        let handle = exports
            .read_handle(handle)
            .ok_or(HandleRefusal::BadHandle)?;
        let absent = || match self.shared.starting.load(Ordering::Relaxed) {
            true => HandleRefusal::NotYet,
            false => HandleRefusal::Stale,
        };
        let served = exports.get(&handle.dataset).ok_or_else(absent)?;
        let access = self
            .access_of(handle.dataset, served, peer)
            .ok_or(HandleRefusal::Forbidden)?;
        let flavour_taken = access.flavours.allow(peer.flavour);
        let ids = match credential {
            Credential::Sys { uid, gid, groups } => Some((*uid, *gid, groups)),
            Credential::Kerberos { user, .. } => {
                let ids = user.ids.as_ref();
                ids.map(|ids| (ids.uid, ids.gid, &ids.groups))
            }
            _ => None,
        };
        let (uid, gid, groups) = match ids.filter(|_| flavour_taken) {
            Some((uid, gid, groups)) => access.squashed(uid, gid, groups),
            None => (access.anonymous_uid, access.anonymous_gid, Vec::new()),
        };
        let fs = match handle.snapshot {
            None => served.export.fs.clone(),
            Some(snapshot) => served.export.fs.snapshot(snapshot.object, snapshot.guid),
        };
        let caller = Caller {
            // RFC 1813, section 4.8: changes of names and attributes are answered when they are on stable storage.
            fs: fs
                .for_client(Client::Address("nfs", peer.ip()))
                .answering_when_stable(),
            cred: Cred {
                uid,
                gid,
                groups,
                opened: false,
                holder: 0,
            },
            write: access.write && !served.export.readonly,
            flavour_taken,
        };
        Ok((handle, caller))
    }
}

/// Returns for each export, by guid, the names in its root that are nested exports, and their guids.
fn nested_names<'a>(
    shares: impl Iterator<Item = (u64, &'a str)> + Clone,
) -> BTreeMap<u64, Vec<(Vec<u8>, u64)>> {
    let by_path: BTreeMap<&str, u64> = shares
        .clone()
        .map(|(guid, path)| (path.trim_end_matches('/'), guid))
        .collect();
    let mut nested: BTreeMap<u64, Vec<(Vec<u8>, u64)>> = BTreeMap::new();
    for (guid, path) in shares {
        let Some((parent, name)) = path.trim_end_matches('/').rsplit_once('/') else {
            continue;
        };
        if let Some(above) = by_path.get(parent).filter(|above| **above != guid) {
            let names = nested.entry(*above).or_default();
            names.push((name.as_bytes().to_vec(), guid));
        }
    }
    nested
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere cannot leave these maps half-changed in a way that matters: each holds whole entries.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_acts_as_another_where_that_is_not_there() {
        let none = BTreeMap::new();
        assert_eq!(identities(&[(1, None), (2, Some(1))]), none);
        assert_eq!(identities(&[(1, Some(1))]), none);
        let first = identities(&[(2, Some(1)), (3, Some(1)), (4, None)]);
        assert_eq!(first, BTreeMap::from([(1, 2)]));
    }

    #[test]
    fn only_direct_children_lie_below() {
        let shares = [
            (1, "/tank"),
            (2, "/tank/a"),
            (3, "/tank/a/b"),
            (4, "/tank/x/y"),
            (5, "/"),
        ];
        let nested = nested_names(shares.into_iter());
        assert_eq!(nested.get(&1), Some(&vec![(b"a".to_vec(), 2)]));
        assert_eq!(nested.get(&2), Some(&vec![(b"b".to_vec(), 3)]));
        assert_eq!(nested.get(&5), Some(&vec![(b"tank".to_vec(), 1)]));
        assert_eq!(nested.len(), 3);
    }
}
