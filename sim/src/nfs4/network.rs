//! The network between clients and the server: messages take time, come twice, late or never, and clients are cut off. It sees all
//! requests and answers, and judges what the server makes of repeats.
//!
//! A request that came by a slot and was run has one answer: the same request is answered with it or is told to wait while it runs, and
//! a request that the slot has left behind is refused (RFC 8881, section 2.10.6.1).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nfs::{ClientConnection, Server, TransportSecurity};
use runtime::mailbox::{Receiver, Sender};
use runtime::{Handle, mailbox, timeout};
use world::Rng;

use super::model::Model;
use super::wire::{self, Answer, SlotNumber, status};

/// How long a client waits for an answer before it connects anew and repeats the request.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// Callbacks that are on their way at once.
const CALLBACKS_MAX: usize = 256;

/// A call of the server to a client.
pub(super) struct ToClient {
    pub(super) client: usize,
    /// Which of its connections it came by.
    connection: u64,
    pub(super) message: Vec<u8>,
}

/// How messages fare; of a seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The longest time that a message takes.
    pub(super) latency_us: u64,
    /// Messages of a million that are lost, and that come twice.
    pub(super) lost: u32,
    pub(super) twice: u32,
}

/// Cuts that outlive the server's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CutOff {
    /// Until when nothing gets from the client to the server, and from the server to the client.
    pub(super) to_server_ns: u64,
    pub(super) to_client_ns: u64,
}

/// What the server made of a slot.
#[derive(Default)]
struct SlotView {
    /// The newest request that came.
    begun: u32,
    /// The newest request that was answered, and its answer behind the transaction id.
    newest: u32,
    answer: Vec<u8>,
    /// When that was answered first, in nanoseconds.
    ran_at: u64,
    /// Requests under way.
    running: usize,
}

enum SlotVerdict {
    /// It was run, or refused as it has to be.
    Run,
    /// It was answered as before.
    Repeat,
    Wrong(&'static str),
}

impl SlotView {
    fn judge(
        &mut self,
        now: u64,
        slot: SlotNumber,
        answered: &Answer,
        behind: &[u8],
    ) -> SlotVerdict {
        self.running -= 1;
        let second = answered.results.get(1);
        let uncached = second.is_some_and(|second| second.1 == status::RETRY_UNCACHED);
        match answered.sequence_status() {
            Some(status::OK) if slot.sequence < self.newest => {
                SlotVerdict::Wrong("a request was answered that its slot has left behind")
            }
            Some(status::OK) if slot.sequence == self.newest => {
                match uncached || self.answer == behind {
                    true => SlotVerdict::Repeat,
                    false => SlotVerdict::Wrong("a repeated request was answered otherwise"),
                }
            }
            Some(status::OK) => {
                self.newest = slot.sequence;
                self.ran_at = now;
                self.answer = behind.to_vec();
                SlotVerdict::Run
            }
            Some(status::DELAY) if self.running == 0 => {
                SlotVerdict::Wrong("a request is said to run, and none does")
            }
            Some(status::SEQUENCE_MISORDERED) if slot.sequence >= self.begun => {
                SlotVerdict::Wrong("the newest request of a slot is refused")
            }
            Some(status::DELAY | status::SEQUENCE_MISORDERED | status::BAD_SESSION) => {
                SlotVerdict::Run
            }
            _ => SlotVerdict::Wrong("SEQUENCE has a status that is not expected"),
        }
    }
}

struct State {
    rng: Rng,
    connections: Vec<(u64, Arc<ClientConnection>)>,
    slots: BTreeMap<([u8; 16], u32), SlotView>,
    next_xid: u32,
}

/// The network of one boot of the server. Clones share it.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) handle: Handle,
    server: Server,
    weather: Weather,
    model: Rc<RefCell<Model>>,
    cut_off: Rc<RefCell<Vec<CutOff>>>,
    state: Rc<RefCell<State>>,
    callbacks: Sender<ToClient>,
}

fn connection(client: usize, number: u64, callbacks: &Sender<ToClient>) -> Arc<ClientConnection> {
    let callbacks = callbacks.clone();
    ClientConnection::new(TransportSecurity::Plain, move |message| {
        let call = ToClient {
            client,
            connection: number,
            message,
        };
        callbacks.try_send(call).is_ok()
    })
}

impl Network {
    /// Connects all clients; returns where the server's calls come out.
    pub(super) fn new(
        handle: &Handle,
        server: &Server,
        weather: Weather,
        model: &Rc<RefCell<Model>>,
        cut_off: &Rc<RefCell<Vec<CutOff>>>,
        rng: Rng,
    ) -> (Self, Receiver<ToClient>) {
        let (callbacks, received) = mailbox(CALLBACKS_MAX);
        let clients = cut_off.borrow().len();
        let connections = (0..clients)
            .map(|client| (0, connection(client, 0, &callbacks)))
            .collect();
        let state = State {
            rng,
            connections,
            slots: BTreeMap::new(),
            next_xid: 1,
        };
        let network = Self {
            handle: handle.clone(),
            server: server.clone(),
            weather,
            model: model.clone(),
            cut_off: cut_off.clone(),
            state: Rc::new(RefCell::new(state)),
            callbacks,
        };
        (network, received)
    }

    pub(super) fn now(&self) -> u64 {
        self.handle.now().as_nanos()
    }

    fn fail(&self, text: &str) {
        self.model.borrow_mut().fail(self.now(), text);
    }

    pub(super) fn xid(&self) -> u32 {
        let mut state = self.state.borrow_mut();
        state.next_xid += 1;
        state.next_xid
    }

    /// Waits as long as a message takes; false if it is lost.
    async fn carry(&self, client: usize, to_server: bool) -> bool {
        let (micros, lost) = {
            let rng = &mut self.state.borrow_mut().rng;
            let micros = rng.between(30, self.weather.latency_us);
            (micros, rng.chance(self.weather.lost))
        };
        self.handle.sleep(Duration::from_micros(micros)).await;
        let cut = self.cut_off.borrow()[client];
        let until = if to_server {
            cut.to_server_ns
        } else {
            cut.to_client_ns
        };
        !lost && until <= self.now()
    }

    /// Replaces the connection of a client: what the server sends by the old one is lost.
    pub(super) fn reconnect(&self, client: usize) {
        let mut state = self.state.borrow_mut();
        let number = state.connections[client].0 + 1;
        state.connections[client] = (number, connection(client, number, &self.callbacks));
    }

    /// Sends a request until it is answered; returns the answer, and whether the client connected anew meanwhile.
    pub(super) async fn call(
        &self,
        client: usize,
        message: Vec<u8>,
        slot: Option<SlotNumber>,
    ) -> (Vec<u8>, bool) {
        let mut anew = false;
        loop {
            let (sender, answer) = mailbox(4);
            let twice = self.state.borrow_mut().rng.chance(self.weather.twice);
            // The mailbox stays open where the message is lost.
            self.deliver(client, message.clone(), slot, Some(sender.clone()), 0);
            if twice {
                let late = self.state.borrow_mut().rng.below(6_000_000);
                self.deliver(client, message.clone(), slot, None, late);
            }
            let mut answer = answer;
            let waited = timeout(&self.handle, ANSWER_WAIT, answer.receive()).await;
            drop(sender);
            if let Some(Some(reply)) = waited {
                return (reply, anew);
            }
            // RFC 8881, section 2.10.6.2: a request is repeated by another connection.
            self.reconnect(client);
            let until = self.now() + 1_000_000_000;
            self.model.borrow_mut().disturbed(client, until);
            anew = true;
        }
    }

    /// Brings a request to the server, and its answer back.
    fn deliver(
        &self,
        client: usize,
        message: Vec<u8>,
        slot: Option<SlotNumber>,
        answer: Option<Sender<Vec<u8>>>,
        late_us: u64,
    ) {
        let network = self.clone();
        let connection = self.state.borrow().connections[client].1.clone();
        drop(self.handle.spawn("a message", async move {
            network.handle.sleep(Duration::from_micros(late_us)).await;
            if !network.carry(client, true).await {
                return;
            }
            let reply = network.serve(client, &connection, message, slot).await;
            if network.carry(client, false).await
                && let (Some(reply), Some(answer)) = (reply, answer)
            {
                drop(answer.try_send(reply));
            }
        }));
    }

    /// Has the server answer a request, and judges the answer.
    async fn serve(
        &self,
        client: usize,
        connection: &Arc<ClientConnection>,
        message: Vec<u8>,
        slot: Option<SlotNumber>,
    ) -> Option<Vec<u8>> {
        if let Some(slot) = slot {
            self.view(slot, |view| {
                view.running += 1;
                view.begun = view.begun.max(slot.sequence);
            });
        }
        let peer = address(client);
        let local = SocketAddr::from(([192, 0, 2, 200], 2049));
        let reply = self
            .server
            .call_by(Some(connection), peer, local, message.into())
            .await;
        let reply = reply.map(|reply| {
            let pieces = reply.pieces.iter().map(|piece| piece.as_ref());
            pieces.collect::<Vec<_>>().concat()
        });
        if let (Some(slot), Some(reply)) = (slot, &reply) {
            self.judge_slot(slot, reply);
        }
        self.model.borrow().note(self.now(), || {
            let answer = reply.as_deref().map(wire::answer);
            format!("client {client}, {slot:?}: {answer:?}")
        });
        reply
    }

    fn view<T>(&self, slot: SlotNumber, look: impl FnOnce(&mut SlotView) -> T) -> T {
        let slots = &mut self.state.borrow_mut().slots;
        look(slots.entry((slot.session, slot.slot)).or_default())
    }

    /// When the newest request of a slot was run, in nanoseconds: what is answered again was run before.
    pub(super) fn ran_at(&self, slot: SlotNumber) -> u64 {
        self.view(slot, |view| view.ran_at)
    }

    fn judge_slot(&self, slot: SlotNumber, reply: &[u8]) {
        let answered = match wire::answer(reply) {
            Ok(answer) => answer,
            Err(unreadable) => return self.fail(&unreadable.to_string()),
        };
        let (now, behind) = (self.now(), reply.get(4..).unwrap_or_default());
        match self.view(slot, |view| view.judge(now, slot, &answered, behind)) {
            SlotVerdict::Run => {}
            SlotVerdict::Repeat => self.model.borrow_mut().judged.repeats += 1,
            SlotVerdict::Wrong(problem) => {
                let results = answered.results.iter();
                let all: Vec<_> = results.map(|result| (result.0, result.1)).collect();
                let (number, sequence) = (slot.slot, slot.sequence);
                self.fail(&format!(
                    "{problem}: slot {number}, request {sequence}: {all:?}"
                ));
            }
        }
    }

    /// Brings a call of the server to a client, by the connection that it was sent by; false if it is lost.
    pub(super) async fn carry_callback(&self, call: &ToClient) -> bool {
        self.model.borrow().note(self.now(), || {
            format!(
                "calls client {}: {:?}",
                call.client,
                wire::callback(&call.message)
            )
        });
        self.carry(call.client, false).await && self.is_connected(call)
    }

    fn is_connected(&self, call: &ToClient) -> bool {
        self.state.borrow().connections[call.client].0 == call.connection
    }

    /// Brings a client's answer to a call to the server.
    pub(super) async fn answer_callback(&self, call: &ToClient, answer: Vec<u8>) {
        let connection = self.state.borrow().connections[call.client].1.clone();
        if !self.is_connected(call) || !self.carry(call.client, true).await {
            return;
        }
        let local = SocketAddr::from(([192, 0, 2, 200], 2049));
        let peer = address(call.client);
        let reply = self
            .server
            .call_by(Some(&connection), peer, local, answer.into())
            .await;
        if reply.is_some() {
            self.fail("the answer to a callback was answered");
        }
    }
}

/// Returns where a client calls from.
fn address(client: usize) -> SocketAddr {
    let host = u8::try_from(client + 1).expect("few");
    SocketAddr::from(([192, 0, 2, host], 700))
}
