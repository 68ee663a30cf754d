//! The duplicate request cache: a client that repeats a call, because the answer got lost, gets the first answer again.
//!
//! A repeated CREATE or REMOVE must not run twice (RFC 1813, section 4.9). The cache is bounded in entries and bytes; the
//! oldest answers go first. It does not outlive the server: after a restart, a repeated REMOVE may answer "no such file".

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Answers kept. Linux's server keeps a few thousand as well; a client has at most some hundred calls under way.
const ENTRIES_MAX: usize = 8192;
/// How long an answer is kept, in nanoseconds: longer than a client waits before it asks again (60 s over TCP).
const AGE_MAX_NS: u64 = 180_000_000_000;

/// What makes two calls the same: client, transaction id, procedure, and the bytes of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Address without its port: a client comes back from another one.
    pub(crate) client: IpAddr,
    /// Transaction id.
    pub(crate) xid: u32,
    /// Procedure.
    pub(crate) procedure: u32,
    /// Length and checksum of the record.
    pub(crate) digest: (usize, u64),
}

/// What to do with a call.
pub(crate) enum Admission {
    /// It is new: run it and hand the answer to [`RunningCall::finish`].
    Run(RunningCall),
    /// It ran, or is running: wait for its answer. `None` when it ended without one.
    Repeat(RepeatedReply),
}

/// The answer of a call, once it has ended, and the repeats that wait for it.
#[derive(Default)]
struct CachedReply {
    outcome: Option<Option<Vec<u8>>>,
    wakers: Vec<Waker>,
}

type SharedReply = Arc<Mutex<CachedReply>>;

/// The answers of recent calls that must not run twice.
#[derive(Default)]
pub(crate) struct ReplyCache {
    entries: BTreeMap<Key, SharedReply>,
    order: VecDeque<(u64, Key)>,
}

impl ReplyCache {
    /// Looks a call up, and takes note of it if it is new.
    pub(crate) fn admit(&mut self, key: Key, now_ns: u64) -> Admission {
        self.expire(now_ns);
        if let Some(reply) = self.entries.get(&key) {
            return Admission::Repeat(RepeatedReply {
                reply: Arc::clone(reply),
            });
        }
        let reply = SharedReply::default();
        self.entries.insert(key, Arc::clone(&reply));
        self.order.push_back((now_ns, key));
        Admission::Run(RunningCall { reply })
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some((born, key)) = self.order.front().copied() {
            let old = now_ns.saturating_sub(born) > AGE_MAX_NS;
            if !old && self.order.len() < ENTRIES_MAX {
                break;
            }
            self.order.pop_front();
            self.entries.remove(&key);
        }
    }
}

/// A call that runs now. Dropping it unfinished lets repeats of it go without an answer.
pub(crate) struct RunningCall {
    reply: SharedReply,
}

impl RunningCall {
    /// Keeps the answer for repeats.
    pub(crate) fn finish(self, reply: &[u8]) {
        settle(&self.reply, Some(reply.to_vec()));
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        settle(&self.reply, None);
    }
}

fn settle(reply: &SharedReply, outcome: Option<Vec<u8>>) {
    let mut reply = reply.lock().unwrap_or_else(PoisonError::into_inner);
    if reply.outcome.is_none() {
        reply.outcome = Some(outcome);
    }
    for waker in reply.wakers.drain(..) {
        waker.wake();
    }
}

/// The answer of an earlier call with the same key.
pub(crate) struct RepeatedReply {
    reply: SharedReply,
}

impl Future for RepeatedReply {
    type Output = Option<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = &reply.outcome {
            return Poll::Ready(outcome.clone());
        }
        reply.wakers.push(context.waker().clone());
        Poll::Pending
    }
}

/// Returns the length and an FNV-1a checksum of the first bytes of a record's parts: enough to tell a repeat from a reused id.
#[must_use]
pub(crate) fn digest(parts: [&[u8]; 2]) -> (usize, u64) {
    let sum = parts
        .iter()
        .flat_map(|part| part.iter().take(512))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    (parts.iter().map(|part| part.len()).sum(), sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(xid: u32) -> Key {
        Key {
            client: IpAddr::from([10, 0, 0, 1]),
            xid,
            procedure: 12,
            digest: digest([b"remove", b"x"]),
        }
    }

    fn poll(answer: &mut RepeatedReply) -> Poll<Option<Vec<u8>>> {
        Pin::new(answer).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_repeat_waits_for_the_first_answer() {
        let mut cache = ReplyCache::default();
        let Admission::Run(running) = cache.admit(key(1), 0) else {
            panic!("a new call runs")
        };
        let Admission::Repeat(mut answer) = cache.admit(key(1), 1) else {
            panic!("a repeat")
        };
        assert_eq!(poll(&mut answer), Poll::Pending);
        running.finish(b"done");
        assert_eq!(poll(&mut answer), Poll::Ready(Some(b"done".to_vec())));
        assert!(matches!(cache.admit(key(2), 2), Admission::Run(_)));
    }

    #[test]
    fn the_cache_is_bounded_in_entries_and_time() {
        let mut cache = ReplyCache::default();
        for xid in 0..20_000 {
            drop(cache.admit(key(xid), 0));
        }
        assert!(cache.entries.len() <= ENTRIES_MAX && cache.order.len() <= ENTRIES_MAX);
        drop(cache.admit(key(1), AGE_MAX_NS + 1));
        assert_eq!(cache.entries.len(), 1);
    }
}
