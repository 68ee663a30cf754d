//! What a connection is to its session and to its tasks: where its PDUs go out, what was negotiated for it, and its numbers.
//! RFC 7143 sections 4.2.2.2 (StatSN) and 11.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::environment::{Transport, Work};
use crate::pdu::{DATA_BYTES_MAX, Draft, Framing, NO_TAG};

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next PDU may come.
    Continue,
    /// Nothing more is to be read; what was sent is still to be written.
    End,
}

/// The outgoing side of a connection.
pub(crate) struct Wire {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    transport: Arc<dyn Transport>,
    state: Mutex<WireState>,
    /// Text requests and answers that go on over several PDUs.
    pub(crate) text: Mutex<PendingText>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({})", self.peer)
    }
}

/// How far the connection is: from its login to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WirePhase {
    Login,
    FullFeature,
    Closed,
}

#[derive(Debug)]
struct WireState {
    phase: WirePhase,
    framing: Framing,
    stat_sn: u32,
    cid: u16,
    /// Bytes of data the initiator takes in one PDU.
    max_send: usize,
    next_ttt: u32,
}

/// Text of one connection that is not complete.
#[derive(Debug, Default)]
pub(crate) struct PendingText {
    /// Of an answer: what did not fit, and the tag under which the rest is asked for.
    pub(crate) answer: Option<(u32, Vec<u8>)>,
    /// Of a request that is still to be continued.
    pub(crate) asked: Vec<u8>,
}

/// What holds from the end of a login on.
pub(crate) struct WireTerms {
    pub(crate) cid: u16,
    pub(crate) max_send: usize,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
}

impl Wire {
    pub(crate) fn new(peer: SocketAddr, local: SocketAddr, transport: Arc<dyn Transport>) -> Self {
        Self {
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            transport,
            state: Mutex::new(WireState {
                phase: WirePhase::Login,
                framing: Framing::login(),
                stat_sn: 1,
                cid: 0,
                max_send: 8192,
                next_ttt: 1,
            }),
            text: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How PDUs are framed now, in both directions.
    pub(crate) fn framing(&self) -> Framing {
        self.state().framing
    }

    /// The connection's number in its session.
    pub(crate) fn cid(&self) -> u16 {
        self.state().cid
    }

    /// Bytes of data that may be sent in one PDU.
    pub(crate) fn max_send(&self) -> usize {
        self.state().max_send.max(512)
    }

    /// The initiator takes more or less from now on.
    pub(crate) fn set_max_send(&self, bytes: usize) {
        self.state().max_send = bytes;
    }

    /// A target transfer tag that was not used lately.
    pub(crate) fn tag(&self) -> u32 {
        let mut state = self.state();
        state.next_ttt = match state.next_ttt.wrapping_add(1) {
            NO_TAG | 0 => 1,
            next => next,
        };
        state.next_ttt
    }

    /// Sends a PDU in full feature phase, with the session's window. Numbers are given here, so that they stand in the order of the
    /// wire. Nothing is sent before the login's end or after the connection's.
    pub(crate) fn send(&self, draft: Draft, window: impl FnOnce() -> (u32, u32)) {
        let mut state = self.state();
        if state.phase == WirePhase::FullFeature {
            self.number_and_send(&mut state, draft, window());
        }
    }

    /// Sends a login response that another request is to follow, or none.
    pub(crate) fn send_login(&self, draft: Draft, cmd_sn: u32) {
        let mut state = self.state();
        if state.phase == WirePhase::Login {
            self.number_and_send(&mut state, draft, (cmd_sn, cmd_sn));
        }
    }

    /// Sends the last login response; what was negotiated holds from the next PDU on. Returns whether the connection goes on: its
    /// session may have ended it meanwhile.
    pub(crate) fn complete_login(
        &self,
        draft: Draft,
        window: (u32, u32),
        terms: &WireTerms,
    ) -> bool {
        let mut state = self.state();
        if state.phase != WirePhase::Login {
            return false;
        }
        self.number_and_send(&mut state, draft, window);
        state.cid = terms.cid;
        state.max_send = terms.max_send;
        state.framing = Framing {
            header_digest: terms.header_digest,
            data_digest: terms.data_digest,
            data_bytes_max: DATA_BYTES_MAX,
        };
        state.phase = WirePhase::FullFeature;
        true
    }

    fn number_and_send(&self, state: &mut WireState, draft: Draft, (exp, max): (u32, u32)) {
        let counts = draft.counts;
        let draft = draft.word(24, state.stat_sn).word(28, exp).word(32, max);
        if counts {
            state.stat_sn = state.stat_sn.wrapping_add(1);
        }
        self.transport.send(draft.finish(state.framing));
    }

    /// Runs `work` beside everything else; to its end, even if the connection ends before.
    pub(crate) fn run(&self, work: Work) {
        self.transport.run(work);
    }

    /// Ends the connection once what was sent has been written: nothing more is sent or taken.
    pub(crate) fn close(&self) {
        self.state().phase = WirePhase::Closed;
        self.transport.close();
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().phase == WirePhase::Closed
    }
}
