//! Which connections of a server are let in: how many at once, how many of one client, and which one ends so that another can begin.
//!
//! A connection is idle while it has no work under way ([`ConnectionPermit::begin_work`]): no call (NFS), no login yet (iSCSI), no
//! request (HTTPS). Only idle connections are ended for others; the one that has been silent longest goes first, so that a client that
//! opens many and says nothing ends its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// What a server admits. The default admits every connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionLimits {
    /// Connections at once.
    pub(super) connections_max: usize,
    /// Connections of one client address at once.
    pub(super) client_max: usize,
    /// Idle connections at once: one more ends the one that has been silent longest.
    pub(super) idle_max: usize,
    /// A connection beyond `connections_max` ends an idle one, where there is one, instead of being refused.
    pub(super) replaces_idle: bool,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self {
            connections_max: usize::MAX,
            client_max: usize::MAX,
            idle_max: usize::MAX,
            replaces_idle: false,
        }
    }
}

/// The connections of a server.
pub(super) struct Admission {
    limits: AdmissionLimits,
    began: Instant,
    admitted: Mutex<Admitted>,
}

#[derive(Default)]
struct Admitted {
    next: u64,
    connections: BTreeMap<u64, Arc<ConnectionState>>,
}

/// A connection, as the admission of others sees it.
struct ConnectionState {
    client: Option<IpAddr>,
    /// When it last had a request, in milliseconds since the admission began.
    last_request_ms: AtomicU64,
    work_under_way: AtomicUsize,
    evicted: Notify,
}

impl ConnectionState {
    fn is_idle(&self) -> bool {
        self.work_under_way.load(Ordering::Relaxed) == 0
    }
}

impl Admitted {
    /// Ends the idle connection that has been silent longest. Returns false when none is idle. The connection's task ends as soon as it
    /// runs, so that for a moment there may be more tasks than admitted connections.
    fn evict_idle(&mut self) -> bool {
        let silent = self
            .connections
            .iter()
            .filter(|(_, state)| state.is_idle())
            .min_by_key(|(_, state)| state.last_request_ms.load(Ordering::Relaxed))
            .map(|(number, _)| *number);
        let evicted = silent.and_then(|number| self.connections.remove(&number));
        if let Some(state) = &evicted {
            state.evicted.notify_one();
        }
        evicted.is_some()
    }
}

impl Admission {
    pub(super) fn new(limits: AdmissionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            began: Instant::now(),
            admitted: Mutex::default(),
        })
    }

    /// Lets a connection in; `None` when it is to be closed, and its client tries again later.
    pub(super) fn admit(self: &Arc<Self>, client: Option<IpAddr>) -> Option<ConnectionPermit> {
        let limits = &self.limits;
        let mut admitted = self.admitted();
        if limits.client_max < limits.connections_max {
            let known = admitted.connections.values();
            if known.filter(|state| state.client == client).count() >= limits.client_max {
                return None;
            }
        }
        if admitted.connections.len() >= limits.connections_max
            && !(limits.replaces_idle && admitted.evict_idle())
        {
            return None;
        }
        if limits.idle_max < limits.connections_max {
            let idle = admitted
                .connections
                .values()
                .filter(|state| state.is_idle());
            if idle.count() >= limits.idle_max {
                admitted.evict_idle();
            }
        }
        let number = admitted.next;
        admitted.next += 1;
        let state = Arc::new(ConnectionState {
            client,
            last_request_ms: AtomicU64::new(self.now_ms()),
            work_under_way: AtomicUsize::new(0),
            evicted: Notify::new(),
        });
        admitted.connections.insert(number, state.clone());
        assert!(admitted.connections.len() <= limits.connections_max);
        Some(ConnectionPermit {
            admission: self.clone(),
            number,
            state,
        })
    }

    fn admitted(&self) -> MutexGuard<'_, Admitted> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The right of a connection to be there, until it is dropped.
pub(super) struct ConnectionPermit {
    admission: Arc<Admission>,
    number: u64,
    state: Arc<ConnectionState>,
}

impl ConnectionPermit {
    /// Waits until the connection has to end for another; it reads no further request then.
    pub(super) async fn evicted(&self) {
        self.state.evicted.notified().await;
    }

    /// Notes that a request has come.
    pub(super) fn note_request(&self) {
        let now_ms = self.admission.now_ms();
        self.state.last_request_ms.store(now_ms, Ordering::Relaxed);
    }

    /// How long the connection has had no request.
    pub(super) fn silent_for(&self) -> Duration {
        let last_ms = self.state.last_request_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.admission.now_ms().saturating_sub(last_ms))
    }

    /// Keeps the connection from being idle until the result is dropped.
    pub(super) fn begin_work(&self) -> WorkUnderWay {
        self.state.work_under_way.fetch_add(1, Ordering::Relaxed);
        WorkUnderWay(self.state.clone())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admission.admitted().connections.remove(&self.number);
    }
}

/// Work of a connection under way, until it is dropped.
pub(super) struct WorkUnderWay(Arc<ConnectionState>);

impl Drop for WorkUnderWay {
    fn drop(&mut self) {
        let before = self.0.work_under_way.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "work that never began has ended");
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(last: u8) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)))
    }

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        let mut evicted = std::pin::pin!(permit.evicted());
        let waker = std::task::Waker::noop();
        let polled = evicted
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
        polled.is_ready()
    }

    #[test]
    fn a_full_server_refuses() {
        let admission = Admission::new(AdmissionLimits {
            connections_max: 2,
            ..AdmissionLimits::default()
        });
        let first = admission.admit(None);
        let second = admission.admit(None).expect("the second of two");
        assert!(admission.admit(None).is_none());
        assert!(!is_evicted(&second));
        drop(first);
        assert!(admission.admit(None).is_some());
    }

    #[test]
    fn one_client_does_not_take_every_connection() {
        let admission = Admission::new(AdmissionLimits {
            connections_max: 8,
            client_max: 2,
            ..AdmissionLimits::default()
        });
        let first: Vec<_> = (0..3).map(|_| admission.admit(client(1))).collect();
        assert_eq!(first.iter().flatten().count(), 2);
        let others: Vec<_> = (2..10).map(|last| admission.admit(client(last))).collect();
        assert_eq!(others.iter().flatten().count(), 6);
        drop(first);
        assert!(admission.admit(client(20)).is_some());
        assert_eq!(admission.admitted().connections.len(), 6);
    }

    #[test]
    fn the_connection_that_is_silent_longest_ends_for_another() {
        let admission = Admission::new(AdmissionLimits {
            connections_max: 3,
            replaces_idle: true,
            ..AdmissionLimits::default()
        });
        let mut permits: Vec<_> = (0..3).filter_map(|_| admission.admit(None)).collect();
        for (permit, last_ms) in permits.iter().zip([1, 3, 2]) {
            let last = &permit.state.last_request_ms;
            last.store(last_ms, Ordering::Relaxed);
        }
        let busy = permits[0].begin_work();
        permits.extend(admission.admit(None));
        let evicted: Vec<bool> = permits.iter().map(is_evicted).collect();
        assert_eq!(evicted, [false, false, true, false]);
        // All that are left are busy: the next is refused.
        let all: Vec<_> = permits.iter().map(ConnectionPermit::begin_work).collect();
        assert!(admission.admit(None).is_none());
        drop((busy, all, permits));
        assert!(admission.admitted().connections.is_empty());
    }

    #[test]
    fn a_request_ends_the_silence() {
        let admission = Admission::new(AdmissionLimits::default());
        let permit = admission.admit(None).expect("no limit");
        std::thread::sleep(Duration::from_millis(5));
        let silent = permit.silent_for();
        assert!(silent >= Duration::from_millis(4), "{silent:?}");
        permit.note_request();
        assert!(permit.silent_for() < silent);
    }

    #[test]
    fn idle_connections_are_bounded_apart() {
        let admission = Admission::new(AdmissionLimits {
            connections_max: 10,
            idle_max: 2,
            ..AdmissionLimits::default()
        });
        let logged_in = admission.admit(None).expect("the first");
        let _work = logged_in.begin_work();
        let waiting: Vec<_> = (0..3).filter_map(|_| admission.admit(None)).collect();
        assert_eq!(waiting.len(), 3);
        let evicted: Vec<bool> = waiting.iter().map(is_evicted).collect();
        assert_eq!(evicted, [true, false, false]);
        assert!(!is_evicted(&logged_in));
    }
}
