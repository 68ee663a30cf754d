//! The service: takes one RPC record, finds the program, the export and the credentials, and answers.

use crate::exports::{Access, GrammarError, Resolver, Rules};
use crate::handle::FileHandle;
use crate::record::Record;
use crate::reply_cache::{Admission, Key, ReplyCache, digest};
use crate::rpc::{self, AuthProblem, Call, Credential, Refusal};
use crate::xdr::{Malformed, Reader, Writer};
use crate::{mount, nested, portmap, v3};
use engine::{Client, Cred, FsHandle, IoBuf};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The longest record the server takes, in bytes: the largest WRITE and its envelope.
pub const RECORD_BYTES_MAX: usize = v3::TRANSFER_BYTES_MAX + 64 * 1024;

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
    /// The value of `sharenfs`.
    pub sharenfs: String,
    /// Nothing may be written, whatever `sharenfs` says.
    pub readonly: bool,
}

/// What the server is told once.
pub struct ServerConfig {
    /// The TCP port that serves NFS and MOUNT, for the port mapper's answers.
    pub nfs_port: u16,
    /// Different after each start, so that clients know that unstable writes may be lost (RFC 1813, section 3.3.7).
    pub boot_verifier: u64,
    /// Turns names in access lists into addresses.
    pub resolver: Box<dyn Resolver>,
}

/// One piece of a reply.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Bytes made for this reply.
    Owned(Vec<u8>),
    /// Bytes shared with the engine's cache.
    Shared(IoBuf),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// An RPC reply without its record mark, in the pieces it lies in.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
}

impl Reply {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.as_ref().len()).sum()
    }

    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn to_vec(&self) -> Vec<u8> {
        self.pieces
            .iter()
            .flat_map(|piece| piece.as_ref())
            .copied()
            .collect()
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            pieces: vec![Piece::Owned(bytes)],
        }
    }
}

/// An export with its rules parsed.
pub(crate) struct ServedExport {
    pub(crate) export: Export,
    pub(crate) rules: Rules,
    /// Names in its root directory that lead to other shares, and their guids.
    pub(crate) nested: Vec<(Vec<u8>, u64)>,
}

type CachedAccess = (u64, Option<Access>);

struct ServerState {
    nfs_port: u16,
    boot_verifier: u64,
    resolver: Box<dyn Resolver>,
    now_ns: AtomicU64,
    exports: RwLock<Arc<BTreeMap<u64, Arc<ServedExport>>>>,
    access_cache: Mutex<BTreeMap<(u64, IpAddr, bool), CachedAccess>>,
    replies: Mutex<ReplyCache>,
    mounts: Mutex<mount::Mounts>,
    /// Clients that asked for a version that is not served, and whether that was reported.
    refused_versions: Mutex<BTreeMap<(IpAddr, u32), bool>>,
}

/// The NFS service. Clones share everything; calls run concurrently.
#[derive(Clone)]
pub struct Server {
    shared: Arc<ServerState>,
}

/// The caller of a request, and its rights on one export.
pub(crate) struct Caller {
    pub(crate) fs: FsHandle,
    pub(crate) cred: Cred,
    pub(crate) write: bool,
}

/// Why a file handle is of no use to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleRefusal {
    /// It is not one of ours.
    BadHandle,
    /// Its dataset is not shared (any more).
    Stale,
    /// The client is on no list.
    Forbidden,
}

/// What a procedure makes: a reply, or an answer instead of one.
pub(crate) enum Outcome {
    Reply(Reply),
    Refused(Refusal),
    Denied(AuthProblem),
}

impl From<Malformed> for Outcome {
    fn from(_: Malformed) -> Self {
        Self::Refused(Refusal::GarbageArguments)
    }
}

impl From<Writer> for Outcome {
    fn from(writer: Writer) -> Self {
        Self::Reply(writer.into_bytes().into())
    }
}

impl Server {
    /// Returns a server without exports.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self {
            shared: Arc::new(ServerState {
                nfs_port: config.nfs_port,
                boot_verifier: config.boot_verifier,
                resolver: config.resolver,
                now_ns: AtomicU64::new(0),
                exports: RwLock::default(),
                access_cache: Mutex::default(),
                replies: Mutex::default(),
                mounts: Mutex::default(),
                refused_versions: Mutex::default(),
            }),
        }
    }

    /// Replaces the exports. Handles of an export that is gone answer STALE, and work again should it come back.
    ///
    /// Exports whose `sharenfs` is not understood are left out and returned with the reason.
    pub fn set_exports(&self, exports: Vec<Export>) -> Vec<(Export, GrammarError)> {
        let mut served = BTreeMap::new();
        let mut refused = Vec::new();
        let paths = exports
            .iter()
            .map(|export| (export.fs.guid(), export.path.as_str()));
        let mut nested = nested::nested_names(paths);
        for export in exports {
            match Rules::parse(&export.sharenfs) {
                Ok(rules) => {
                    let guid = export.fs.guid();
                    let nested = nested.remove(&guid).unwrap_or_default();
                    let share = ServedExport {
                        export,
                        rules,
                        nested,
                    };
                    served.insert(guid, Arc::new(share));
                }
                Err(error) => refused.push((export, error)),
            }
        }
        *self
            .shared
            .exports
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(served);
        lock(&self.shared.access_cache).clear();
        refused
    }

    /// Tells the time, in nanoseconds from any fixed start; about once a second is enough.
    pub fn tick(&self, now_ns: u64) {
        self.shared.now_ns.store(now_ns, Ordering::Relaxed);
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

    fn note_refused_version(&self, client: IpAddr, version: u32) {
        let mut refused = lock(&self.shared.refused_versions);
        if refused.len() >= REFUSED_VERSIONS_MAX {
            // Reported again then: rather that than memory without a bound.
            refused.clear();
        }
        refused.entry((client, version)).or_insert(false);
    }

    /// Answers one RPC message that came from `peer`. `None` says nothing: the message is no call.
    ///
    /// What the reply says is stable is stable. The same call repeated (same client, transaction id and bytes) gets the
    /// first answer again, if running it twice would do harm.
    pub async fn call(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        mut record: Record,
    ) -> Option<Reply> {
        let data = record.data.take();
        let call = match &record.call {
            Ok(call) => call,
            Err(rejected) => return rpc::reject(rejected).map(Reply::from),
        };
        let arguments = record.arguments();
        if call.program == v3::PROGRAM && v3::runs_once(call.procedure) {
            let client = peer.ip().to_canonical();
            let key = Key {
                client,
                xid: call.xid,
                procedure: call.procedure,
                digest: digest(&record.head),
            };
            let admission = lock(&self.shared.replies).admit(key, self.now_ns());
            match admission {
                Admission::Repeat(answer) => return answer.await.map(Reply::from),
                Admission::Run(running) => {
                    let reply = self.dispatch(peer, local, call, arguments, data).await;
                    running.finish(&reply.to_vec());
                    return Some(reply);
                }
            }
        }
        Some(self.dispatch(peer, local, call, arguments, data).await)
    }

    async fn dispatch(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        call: &Call,
        arguments: Reader<'_>,
        data: Option<IoBuf>,
    ) -> Reply {
        let mismatch = |low, high| Outcome::Refused(Refusal::ProgramMismatch { low, high });
        let outcome = match (call.program, call.version) {
            // RFC 5531, section 9: a flavour that is not taken is answered before the procedure is looked at.
            (v3::PROGRAM, v3::VERSION) if matches!(call.credential, Credential::Other(_)) => {
                Outcome::Denied(AuthProblem::TooWeak)
            }
            (v3::PROGRAM, v3::VERSION) => v3::call(self, peer, call, arguments, data).await,
            (v3::PROGRAM, version) => {
                self.note_refused_version(peer.ip(), version);
                mismatch(v3::VERSION, v3::VERSION)
            }
            (mount::PROGRAM, 1 | 3) => mount::call(self, peer, call, arguments).await,
            (mount::PROGRAM, _) => mismatch(1, 3),
            (portmap::PROGRAM, 2..=4) => {
                portmap::call(self.shared.nfs_port, local, call, arguments)
            }
            (portmap::PROGRAM, _) => mismatch(2, 4),
            _ => Outcome::Refused(Refusal::ProgramUnavailable),
        };
        match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Refused(why) => rpc::refuse(call.xid, why).into(),
            Outcome::Denied(problem) => rpc::deny(call.xid, problem).into(),
        }
    }

    pub(crate) fn boot_verifier(&self) -> u64 {
        self.shared.boot_verifier
    }

    pub(crate) fn mounts(&self) -> MutexGuard<'_, mount::Mounts> {
        lock(&self.shared.mounts)
    }

    pub(crate) fn exports(&self) -> Arc<BTreeMap<u64, Arc<ServedExport>>> {
        Arc::clone(
            &self
                .shared
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn now_ns(&self) -> u64 {
        self.shared.now_ns.load(Ordering::Relaxed)
    }

    /// Decides what the client may do on an export.
    pub(crate) fn access_of(
        &self,
        guid: u64,
        served: &ServedExport,
        peer: SocketAddr,
    ) -> Option<Access> {
        let client = peer.ip().to_canonical();
        let (now, key) = (self.now_ns(), (guid, client, peer.port() < 1024));
        if let Some((until, access)) = lock(&self.shared.access_cache).get(&key)
            && now < *until
        {
            return *access;
        }
        // Not under the lock: this may ask a name server.
        let access = served
            .rules
            .access(client, peer.port(), &*self.shared.resolver);
        let mut access_cache = lock(&self.shared.access_cache);
        if access_cache.len() >= CACHED_ACCESS_MAX {
            access_cache.clear();
        }
        access_cache.insert(key, (now.saturating_add(ACCESS_AGE_MAX_NS), access));
        access
    }

    /// Finds the file system of a handle, and what the caller is there.
    pub(crate) fn admit(
        &self,
        handle: &[u8],
        peer: SocketAddr,
        credential: &Credential,
    ) -> Result<(FileHandle, Caller), HandleRefusal> {
        let handle = FileHandle::decode(handle).ok_or(HandleRefusal::BadHandle)?;
        let exports = self.exports();
        let served = exports.get(&handle.dataset).ok_or(HandleRefusal::Stale)?;
        let access = self
            .access_of(handle.dataset, served, peer)
            .ok_or(HandleRefusal::Forbidden)?;
        let (uid, gid, groups) = match credential {
            Credential::Sys { uid, gid, groups } => access.squashed(*uid, *gid, groups),
            _ => (access.anonymous_uid, access.anonymous_gid, Vec::new()),
        };
        let fs = match handle.snapshot {
            None => served.export.fs.clone(),
            Some(snapshot) => served.export.fs.snapshot(snapshot.object, snapshot.guid),
        };
        let caller = Caller {
            // RFC 1813, section 4.8: changes of names and attributes are answered when they are on stable storage.
            fs: fs
                .for_client(Client::Address(peer.ip()))
                .answering_when_stable(),
            cred: Cred {
                uid,
                gid,
                groups,
                opened: false,
            },
            write: access.write && !served.export.readonly,
        };
        Ok((handle, caller))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere cannot leave these maps half-changed in a way that matters: each holds whole entries.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
