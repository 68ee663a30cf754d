//! NLM version 4, the locks of NFSv3 (RFC 1813, appendix II; X/Open XNFS, chapter 10), in the table of locks that all protocols share.
//!
//! A client's process is the owner: it is known by the client's address and name, and the number that the client gives the process. A
//! lock that is waited for is granted by a call to the client, and is given up if the client does not take it. A client is recorded
//! before it gets its first lock; after a restart those that are recorded, and no others, reclaim what they had (`nsm`).

pub(crate) mod hosts;
mod wire;

pub(crate) use wire::decode_name;

use crate::client_call::{ClientCall, Purpose, arguments};
use crate::connection::Peer;
use crate::handle::{FileHandle, HandleRefusal};
use crate::monitored::MonitoredHost;
use crate::outcome::Outcome;
use crate::rpc::{self, Call, Refusal};
use crate::server::{Caller, Server};
use crate::v4::Status;
use crate::v4::state::ShareMode;
use crate::xdr::{Malformed, Reader, Writer};
use engine::{
    FileType, FsError, FsHandle, HeldLock, LockMode, LockOutcome, LockOwner, LockRefusal,
};
use hosts::{MayWait, WaitedLock};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::{LockCall, ShareCall, Stat, encode_holder};

/// Program number of NLM.
pub(crate) const PROGRAM: u32 = 100_021;
/// The version that goes with NFSv3.
pub(crate) const VERSION: u32 = 4;

const TEST: u32 = 1;
const LOCK: u32 = 2;
const CANCEL: u32 = 3;
const UNLOCK: u32 = 4;
const GRANTED: u32 = 5;
const TEST_MSG: u32 = 6;
const UNLOCK_MSG: u32 = 9;
const GRANTED_MSG: u32 = 10;
const GRANTED_RES: u32 = 15;
const SHARE: u32 = 20;
const UNSHARE: u32 = 21;
const NM_LOCK: u32 = 22;
const FREE_ALL: u32 = 23;
/// From a procedure that is answered to its message, and from there to the message that carries the answer.
const TO_MSG: u32 = 5;

/// Returns whether a call must not run twice: an UNLOCK that comes again must not end a lock that was taken since.
#[must_use]
pub(crate) fn runs_once(procedure: u32) -> bool {
    matches!(procedure, LOCK..=UNLOCK | 7..=UNLOCK_MSG | SHARE..=NM_LOCK)
}

/// Who calls.
#[derive(Clone, Copy)]
struct Connection {
    peer: Peer,
    local: IpAddr,
}

impl Connection {
    fn client(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}

/// Answers a call.
pub(crate) async fn call(
    server: &Server,
    peer: Peer,
    local: SocketAddr,
    call: &Call,
    mut reader: Reader<'_>,
) -> Outcome {
    let local = local.ip().to_canonical();
    let at = Connection { peer, local };
    let mut w = rpc::success(call.xid, 128);
    let done = match call.procedure {
        0 => Ok(()),
        TEST..=UNLOCK | NM_LOCK => {
            let answer = locking(server, at, call, call.procedure, &mut reader).await;
            answer.map(|answer| {
                w.bytes(&answer);
            })
        }
        TEST_MSG..=UNLOCK_MSG => {
            let procedure = call.procedure - TO_MSG;
            let answer = locking(server, at, call, procedure, &mut reader).await;
            answer.map(|answer| answer_by_call(server, at, call.procedure + TO_MSG, answer))
        }
        // This server locks nothing at others: nothing is granted to it.
        GRANTED => LockCall::decode_test(&mut reader).map(|granted| {
            w.opaque(granted.cookie).u32(Stat::Denied as u32);
        }),
        GRANTED_MSG..=GRANTED_RES => Ok(()),
        SHARE | UNSHARE => sharing(server, at, call, &mut reader, &mut w).await,
        FREE_ALL => wire::decode_name(&mut reader).map(|name| free_host(server, peer, name)),
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    };
    match done {
        Ok(()) => w.into(),
        Err(malformed) => malformed.into(),
    }
}

fn answer_by_call(server: &Server, at: Connection, procedure: u32, arguments: Vec<u8>) {
    server.call_client(ClientCall {
        to: at.client(),
        from: at.local,
        program: PROGRAM,
        version: VERSION,
        procedure,
        arguments,
        purpose: Purpose::Answer,
    });
}

/// Runs TEST, LOCK, CANCEL, UNLOCK or NM_LOCK, and returns the result's bytes.
async fn locking(
    server: &Server,
    at: Connection,
    call: &Call,
    procedure: u32,
    reader: &mut Reader<'_>,
) -> Result<Vec<u8>, Malformed> {
    let asked = match procedure {
        TEST => LockCall::decode_test(reader)?,
        CANCEL => LockCall::decode_cancel(reader)?,
        UNLOCK => LockCall::decode_unlock(reader)?,
        _ => LockCall::decode_lock(reader)?,
    };
    let answer = match procedure {
        TEST => test(server, at, call, &asked).await,
        CANCEL => Err(cancel(server, at, &asked)),
        UNLOCK => Err(unlock(server, at, &asked)),
        LOCK => Err(match lock(server, at, call, &asked, asked.block).await {
            Ok(stat) | Err(stat) => stat,
        }),
        _ => Err(match lock(server, at, call, &asked, false).await {
            Ok(stat) | Err(stat) => stat,
        }),
    };
    Ok(arguments(|w| {
        w.opaque(asked.cookie);
        match answer {
            Ok(held) => {
                w.u32(Stat::Denied as u32);
                encode_holder(&held, w);
            }
            Err(stat) => {
                w.u32(stat as u32);
            }
        }
    }))
}

/// Finds the file of a handle that the client may use, and checks that it can be locked.
async fn file(
    server: &Server,
    at: Connection,
    call: &Call,
    handle: &[u8],
) -> Result<(FileHandle, Caller), Stat> {
    // Clients lock by AUTH_SYS whatever the flavour is that they use for files, and servers take that (exports(5), `sec`, is not about NLM).
    let admitted = server.admit_by_any_flavour(handle, at.peer, &call.credential);
    let (handle, caller) = admitted.map_err(|refusal| match refusal {
        HandleRefusal::BadHandle | HandleRefusal::Stale => Stat::Stale,
        // The client asks again.
        HandleRefusal::NotYet => Stat::DeniedGracePeriod,
        HandleRefusal::Forbidden => Stat::Failed,
    })?;
    let attr = caller.fs.getattr(handle.file).await;
    match attr {
        Ok(attr) if attr.file_type == FileType::Regular => Ok((handle, caller)),
        Err(FsError::Stale | FsError::NotFound) => Err(Stat::Stale),
        _ => Err(Stat::Failed),
    }
}

/// TEST: the lock in the way, or the status.
async fn test(
    server: &Server,
    at: Connection,
    call: &Call,
    asked: &LockCall<'_>,
) -> Result<HeldLock<LockOwner>, Stat> {
    let (handle, caller) = file(server, at, call, asked.lock.handle).await?;
    let range = asked.lock.range()?;
    let undelegated = undelegated(&caller.fs, &handle, asked.exclusive);
    if !undelegated || server.reclaiming_clients().is_some() {
        return Err(Stat::DeniedGracePeriod);
    }
    let host = server.nlm().known(at.client(), asked.lock.caller);
    let owner = LockOwner::Nlm {
        // No client has the number 0.
        host: host.unwrap_or(0),
        process: asked.lock.process,
    };
    let locks = server.locks();
    let held = locks.conflict(handle.locked(), owner, range, asked.mode());
    held.ok_or(Stat::Granted)
}

/// LOCK and NM_LOCK.
async fn lock(
    server: &Server,
    at: Connection,
    call: &Call,
    asked: &LockCall<'_>,
    block: bool,
) -> Result<Stat, Stat> {
    let (handle, caller) = file(server, at, call, asked.lock.handle).await?;
    let range = asked.lock.range()?;
    if asked.exclusive && !caller.write {
        return Err(Stat::ReadOnly);
    }
    check_grace(server, at, asked.lock.caller, asked.reclaim)?;
    // Clients that have the file delegated lock it in their own caches. The client is told to ask again; what it has locked by then is
    // locked again.
    let granted = || match undelegated(&caller.fs, &handle, asked.exclusive) {
        true => Stat::Granted,
        false => Stat::DeniedGracePeriod,
    };
    // They hand over what they have locked, as they give the file back: nothing is to be in the way.
    if !asked.reclaim && granted() != Stat::Granted {
        return Err(Stat::DeniedGracePeriod);
    }
    let host = record(server, at, asked.lock.caller)?;
    let waited = WaitedLock {
        process: asked.lock.process,
        file: handle.locked(),
        range,
    };
    let owner = LockOwner::Nlm {
        host,
        process: asked.lock.process,
    };
    let may_wait = match block && !asked.reclaim {
        true => server.nlm().may_wait(host, &waited),
        false => MayWait::No,
    };
    match may_wait {
        MayWait::Waits => return Ok(Stat::Blocked),
        MayWait::No => {
            let locked = server.locks().lock(waited.file, owner, range, asked.mode());
            return locked.map(|()| granted()).map_err(status);
        }
        MayWait::Yes => {}
    }
    let is_granted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_granted);
    let (grant, calls) = (granted_call(at, asked, waited, owner), server.clone());
    let when_granted = move || {
        told.store(true, Ordering::Release);
        calls.call_client(grant);
    };
    let outcome =
        server
            .locks()
            .lock_or_wait(waited.file, owner, range, asked.mode(), when_granted);
    match outcome.map_err(status)? {
        LockOutcome::Locked => Ok(granted()),
        LockOutcome::Waiting(wait) => {
            server.nlm().waits(host, waited, wait, is_granted);
            Ok(Stat::Blocked)
        }
    }
}

/// Checks that no client of NFSv4 locks a file in its own cache in a way that a lock conflicts with, and has those that may give it back.
fn undelegated(fs: &FsHandle, handle: &FileHandle, exclusive: bool) -> bool {
    let free = match (handle.snapshot, exclusive) {
        (Some(_), _) => Ok(()),
        (None, true) => fs.check_delegations(handle.file, 0),
        (None, false) => fs.check_written_elsewhere(handle.file, 0),
    };
    free.is_ok()
}

fn status(refusal: LockRefusal) -> Stat {
    match refusal {
        LockRefusal::Held(_) => Stat::Denied,
        LockRefusal::TooMany => Stat::DeniedNoLocks,
        LockRefusal::Deadlock => Stat::Deadlock,
    }
}

/// Returns the call that tells a client that it holds what it waits for.
fn granted_call(
    at: Connection,
    asked: &LockCall<'_>,
    waited: WaitedLock,
    owner: LockOwner,
) -> ClientCall {
    let arguments = arguments(|w| {
        w.opaque(asked.cookie)
            .bool(asked.mode() == LockMode::Exclusive);
        asked.lock.encode(w);
    });
    ClientCall {
        to: at.client(),
        from: at.local,
        program: PROGRAM,
        version: VERSION,
        procedure: GRANTED,
        arguments,
        purpose: Purpose::Granted {
            file: waited.file,
            owner,
            range: waited.range,
        },
    }
}

/// Checks that this is the time for a lock: what was held before a restart first, and what is new afterwards.
fn check_grace(server: &Server, at: Connection, name: &[u8], reclaim: bool) -> Result<(), Stat> {
    let mut state = server.v4();
    if reclaim {
        let may = state.may_host_reclaim(at.client(), name);
        return may.then_some(()).ok_or(Stat::Denied);
    }
    match state.grace() {
        Some(_) => Err(Stat::DeniedGracePeriod),
        None => Ok(()),
    }
}

/// Returns the client's number, once it is recorded: that is stable before it holds anything.
fn record(server: &Server, at: Connection, name: &[u8]) -> Result<u32, Stat> {
    let (client, now_ns) = (at.client(), server.now_ns());
    let number = server.nlm().number(client, name, now_ns);
    let number = number.ok_or(Stat::DeniedNoLocks)?;
    let host = MonitoredHost {
        address: client,
        name: name.to_vec(),
        local: at.local,
    };
    if !server.nlm().is_monitored(&host) {
        let recorded = server.v4().record_host(&host);
        recorded.map_err(|_| Stat::DeniedNoLocks)?;
        server.nlm().set_monitored(&host);
        server.store_record();
    }
    Ok(number)
}

/// CANCEL: a wait ends. One that was granted meanwhile is denied: the client unlocks it.
fn cancel(server: &Server, at: Connection, asked: &LockCall<'_>) -> Stat {
    let Some((host, waited)) = known(server, at, asked) else {
        return Stat::Denied;
    };
    let wait = server.nlm().take_wait(host, &waited);
    match wait {
        Some(wait) if server.locks().cancel(wait) => Stat::Granted,
        _ => Stat::Denied,
    }
}

/// UNLOCK: granted whatever was held (XNFS, chapter 10), also in files that are not shared any more.
fn unlock(server: &Server, at: Connection, asked: &LockCall<'_>) -> Stat {
    let Some((host, waited)) = known(server, at, asked) else {
        return Stat::Granted;
    };
    let owner = LockOwner::Nlm {
        host,
        process: waited.process,
    };
    match server.locks().unlock(waited.file, owner, waited.range) {
        Ok(()) => Stat::Granted,
        Err(_) => Stat::DeniedNoLocks,
    }
}

/// Returns the number of a known client, and the lock that it names.
fn known(server: &Server, at: Connection, asked: &LockCall<'_>) -> Option<(u32, WaitedLock)> {
    let host = server.nlm().known(at.client(), asked.lock.caller)?;
    let handle = server.read_handle(asked.lock.handle)?;
    let waited = WaitedLock {
        process: asked.lock.process,
        file: handle.locked(),
        range: asked.lock.range().ok()?,
    };
    Some((host, waited))
}

/// SHARE and UNSHARE: the share modes of DOS, which exclude those of NFSv4's opens.
async fn sharing(
    server: &Server,
    at: Connection,
    call: &Call,
    reader: &mut Reader<'_>,
    w: &mut Writer,
) -> Result<(), Malformed> {
    let asked = ShareCall::decode(reader)?;
    let stat = match share(server, at, call, &asked).await {
        Ok(()) => Stat::Granted,
        Err(stat) => stat,
    };
    // The sequence number is not used (XNFS, chapter 10).
    w.opaque(asked.cookie).u32(stat as u32).u32(0);
    Ok(())
}

async fn share(
    server: &Server,
    at: Connection,
    call: &Call,
    asked: &ShareCall<'_>,
) -> Result<(), Stat> {
    if call.procedure == UNSHARE {
        let host = server.nlm().known(at.client(), asked.caller);
        if let (Some(host), Some(handle)) = (host, server.read_handle(asked.handle)) {
            let holder = (host, asked.owner.to_vec());
            server.v4().unshare_outside(&handle, &holder);
        }
        return Ok(());
    }
    let (handle, caller) = file(server, at, call, asked.handle).await?;
    if asked.access & 2 != 0 && !caller.write {
        return Err(Stat::ReadOnly);
    }
    check_grace(server, at, asked.caller, asked.reclaim)?;
    let holder = (record(server, at, asked.caller)?, asked.owner.to_vec());
    let mode = ShareMode {
        access: asked.access,
        deny: asked.deny,
    };
    let shared = server.v4().share_outside(&handle, holder, mode);
    shared.map_err(|status| match status {
        Status::Delay => Stat::DeniedGracePeriod,
        _ => Stat::Denied,
    })
}

/// Ends what a client holds that was restarted, or says that it locks nothing any more (FREE_ALL, NSM's NOTIFY).
///
/// A client speaks for its own address; for its name, whatever the address, only from a port that takes root to open.
pub(crate) fn free_host(server: &Server, peer: Peer, name: &[u8]) {
    let name = (peer.port() < 1024).then_some(name);
    let gone = server.nlm().remove(peer.ip().to_canonical(), name);
    free(server, gone);
}

/// Forgets clients that hold nothing.
pub(crate) fn forget_idle(server: &Server) {
    let now_ns = server.now_ns();
    let locks = server.locks();
    let is_held = |number| {
        let of_host = |owner| matches!(owner, LockOwner::Nlm { host, .. } if host == number);
        locks.is_any_held_by(of_host) || server.v4().has_outside_shares(number)
    };
    let gone = server.nlm().remove_idle(now_ns, is_held);
    free(server, gone);
}

fn free(server: &Server, gone: Vec<(u32, Option<MonitoredHost>)>) {
    for (number, recorded) in gone {
        server
            .locks()
            .release_where(|owner| matches!(owner, LockOwner::Nlm { host, .. } if host == number));
        let mut state = server.v4();
        state.unshare_host(number);
        if let Some(recorded) = recorded {
            state.unrecord_host(&recorded);
        }
    }
    server.store_record();
}
