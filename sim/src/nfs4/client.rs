//! A client: its session, what it knows of its files, how it asks, and how it gets back what it had after the server was restarted.
//!
//! What a client holds is kept in the [`Model`]; here are the names that the server gave to it, and what the client has not got to stable
//! storage. All of it outlives the server's restarts. Two slots are in use: one by the client's work, one to give delegations back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use runtime::mailbox::Sender;
use world::Rng;

use super::model::{FILES, Model, SHARED_CELLS};
use super::network::{CutOff, Network};
use super::wire::{
    Answer, Body, Claim, LockArguments, Locker, READ, Request, SlotNumber, StateId, WRITE, op,
    status,
};

/// Bytes from one cell to the next.
pub(super) const CELL_STEP: u64 = 512;
/// Slots that a session has.
const SLOTS: u32 = 2;
/// Slots of a back channel, at most.
const BACK_SLOTS_MAX: u32 = 3;
/// The slots of a client's work, and of giving back.
pub(super) const WORK: usize = 0;
pub(super) const GIVE_BACK: usize = 1;
/// How often a client asks again that is told to, half a second apart, before that is taken for a failure: longer than any lease.
const ASKS_MAX: u32 = 400;
/// OPEN4_SHARE_ACCESS_WANT_NO_DELEG.
pub(super) const WANT_NONE: u32 = 0x400;
/// SEQ4_STATUS_RECALLABLE_STATE_REVOKED.
const REVOKED: u32 = 0x40;

/// The session is gone: the server was restarted, or the client has lost what it had.
#[derive(Debug)]
pub(super) struct Gone;

pub(super) type Asked<T> = Result<T, Gone>;

/// An answer, when its request was sent first, and when it was run.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) sent: u64,
    ran: u64,
}

/// A delegation as its client knows it.
#[derive(Clone, Debug)]
pub(super) struct DelegationOfClient {
    pub(super) id: StateId,
    /// What the file was like as it was delegated.
    change: u64,
    size: u64,
    /// What was written in the cache, and what was read into it, by cell.
    pub(super) dirty: BTreeMap<usize, u64>,
    pub(super) clean: BTreeMap<usize, u64>,
    /// The server wants it back.
    pub(super) recalled: bool,
}

/// An answer that is not stable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncommitted {
    pub(super) cell: usize,
    pub(super) value: u64,
    pub(super) verifier: u64,
}

/// What a client knows of a file.
#[derive(Default)]
pub(super) struct FileOfClient {
    pub(super) handle: Vec<u8>,
    pub(super) open: Option<StateId>,
    pub(super) lock: Option<StateId>,
    pub(super) delegation: Option<DelegationOfClient>,
    pub(super) uncommitted: Vec<Uncommitted>,
    /// A request is under way that changes what is known of the file.
    busy: bool,
}

/// See the module.
pub(super) struct Client {
    pub(super) rng: Rng,
    /// Its name stays, its verifier changes with each restart.
    verifier: u64,
    /// The number that the server gave it, and what CREATE_SESSION has to say next.
    id: Option<(u64, u32)>,
    session: Option<[u8; 16]>,
    /// The boot of the server that the session is of.
    session_boot: u64,
    sequences: [u32; SLOTS as usize],
    /// The connection is the session's, for calls back, too.
    bound: bool,
    /// It has not said yet that it reclaims nothing more.
    reclaiming: bool,
    /// Some delegation was revoked.
    revoked: bool,
    pub(super) dir: Vec<u8>,
    pub(super) files: Vec<FileOfClient>,
    /// The last callback of each slot that was answered, and the answer behind its transaction id.
    callbacks: Vec<(u32, Vec<u8>)>,
}

impl Client {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            verifier: 1,
            id: None,
            session: None,
            session_boot: 0,
            sequences: [0; SLOTS as usize],
            bound: false,
            reclaiming: false,
            revoked: false,
            dir: Vec::new(),
            files: (0..FILES).map(|_| FileOfClient::default()).collect(),
            callbacks: Vec::new(),
        }
    }

    /// Returns the number that the server gave the client, 0 without one.
    pub(super) fn id(&self) -> u64 {
        self.id.map_or(0, |(id, _)| id)
    }
}

/// A client in one boot of the server. Clones are the same client.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) number: usize,
    pub(super) client: Rc<RefCell<Client>>,
    pub(super) network: Network,
    pub(super) model: Rc<RefCell<Model>>,
    pub(super) cut_off: Rc<RefCell<Vec<CutOff>>>,
    /// Which boot of the server this is.
    pub(super) boot: u64,
    /// Files to give back.
    pub(super) recalls: Sender<usize>,
}

/// A file in use by one request; it is free when this is dropped.
pub(super) struct FileUse {
    client: Rc<RefCell<Client>>,
    verifier: u64,
    file: usize,
}

impl Drop for FileUse {
    fn drop(&mut self) {
        let mut client = self.client.borrow_mut();
        if client.verifier == self.verifier {
            client.files[self.file].busy = false;
        }
    }
}

impl Actor {
    pub(super) fn now(&self) -> u64 {
        self.network.now()
    }

    pub(super) async fn sleep_ms(&self, milliseconds: u64) {
        let handle = &self.network.handle;
        handle.sleep(Duration::from_millis(milliseconds)).await;
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.client.borrow_mut().rng.below(bound)
    }

    pub(super) fn fail(&self, text: &str) {
        let text = format!("client {}: {text}", self.number);
        self.model.borrow_mut().fail(self.now(), &text);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.model.borrow().violation().is_some()
    }

    pub(super) async fn use_file(&self, file: usize) -> FileUse {
        while self.client.borrow().files[file].busy {
            self.sleep_ms(15).await;
        }
        let mut client = self.client.borrow_mut();
        client.files[file].busy = true;
        FileUse {
            client: self.client.clone(),
            verifier: client.verifier,
            file,
        }
    }

    /// Waits before the client asks again; fails when it did so too often.
    pub(super) async fn before_asking_again(&self, asks: &mut u32, what: &str) {
        *asks += 1;
        if *asks == ASKS_MAX {
            self.fail(&format!("is told to ask again for ever: {what}"));
        }
        let milliseconds = 300 + self.below(400);
        self.sleep_ms(milliseconds).await;
    }

    /// Asks by a slot of the session.
    pub(super) async fn ask(&self, slot: usize, request: &Request, keep: bool) -> Asked<Answered> {
        let number = {
            let client = self.client.borrow();
            SlotNumber {
                session: client.session.ok_or(Gone)?,
                slot: u32::try_from(slot).expect("few"),
                sequence: client.sequences[slot] + 1,
            }
        };
        let sent = self.now();
        let message = request.message(self.network.xid(), Some(number), keep);
        loop {
            let (reply, anew) = self
                .network
                .call(self.number, message.clone(), Some(number))
                .await;
            if let Some(answer) = self.answered(slot, number, &reply, anew, sent)? {
                let ran = self.network.ran_at(number);
                return Ok(Answered { answer, sent, ran });
            }
            self.sleep_ms(200).await;
        }
    }

    /// Takes the answer to a request; `None` if it is to be repeated.
    fn answered(
        &self,
        slot: usize,
        number: SlotNumber,
        reply: &[u8],
        anew: bool,
        sent: u64,
    ) -> Asked<Option<Answer>> {
        let mut client = self.client.borrow_mut();
        client.bound &= !anew;
        if client.session != Some(number.session) {
            return Err(Gone);
        }
        let answer = super::wire::answer(reply).map_err(|_| Gone)?;
        match answer.sequence_status() {
            Some(status::OK) => {
                client.sequences[slot] = number.sequence;
                if let Some(Body::Flags(flags)) = answer.body(op::SEQUENCE) {
                    client.revoked = flags & REVOKED != 0;
                }
                if !client.reclaiming {
                    self.model.borrow_mut().renewed(self.number, sent);
                }
                Ok(Some(answer))
            }
            Some(status::DELAY) => Ok(None),
            other => {
                drop(client);
                self.session_is_gone(other);
                Err(Gone)
            }
        }
    }

    fn session_is_gone(&self, said: Option<u32>) {
        let mut client = self.client.borrow_mut();
        client.session = None;
        let same_boot = client.session_boot == self.boot;
        drop(client);
        if said != Some(status::BAD_SESSION) {
            self.fail(&format!("its session is refused with {said:?}"));
        } else if same_boot && self.model.borrow().is_valid(self.number, self.now()) {
            self.fail("the server does not know its session, and its lease runs");
        }
    }

    /// Asks without a session.
    async fn ask_plainly(&self, request: &Request) -> Answer {
        let message = request.message(self.network.xid(), None, false);
        let (reply, anew) = self.network.call(self.number, message, None).await;
        self.client.borrow_mut().bound &= !anew;
        match super::wire::answer(&reply) {
            Ok(answer) => answer,
            Err(unreadable) => {
                self.fail(&unreadable.to_string());
                Answer {
                    status: status::DELAY,
                    results: Vec::new(),
                }
            }
        }
    }

    /// Sees to it that the client has a session, and what it had before.
    pub(super) async fn establish(&self) -> Asked<()> {
        if self.client.borrow().session.is_none() {
            self.begin_session().await?;
        }
        if self.client.borrow().reclaiming {
            self.reclaim().await?;
        }
        if !self.client.borrow().bound {
            self.bind().await?;
        }
        if self.client.borrow().dir.is_empty() {
            self.find_files().await?;
        }
        if self.client.borrow().revoked {
            self.free_revoked().await?;
        }
        Ok(())
    }

    async fn begin_session(&self) -> Asked<()> {
        if self.client.borrow().id.is_none() {
            let verifier = self.client.borrow().verifier;
            let name = format!("client {}", self.number);
            let answer = self
                .ask_plainly(&Request::exchange_id(&name, verifier))
                .await;
            let Some(Body::Client { id, sequence, .. }) = answer.body(op::EXCHANGE_ID).cloned()
            else {
                self.sleep_ms(500).await;
                return Err(Gone);
            };
            let mut client = self.client.borrow_mut();
            client.id = Some((id, sequence));
            client.reclaiming = true;
        }
        let (id, sequence) = self.client.borrow().id.ok_or(Gone)?;
        let back_slots = self
            .client
            .borrow_mut()
            .rng
            .between(1, u64::from(BACK_SLOTS_MAX));
        let back_slots = u32::try_from(back_slots).expect("a few");
        let answer = self
            .ask_plainly(&Request::create_session(id, sequence, SLOTS, back_slots))
            .await;
        let mut client = self.client.borrow_mut();
        match answer.body(op::CREATE_SESSION) {
            Some(Body::Session(session)) => {
                client.session = Some(*session);
                client.session_boot = self.boot;
                client.sequences = [0; SLOTS as usize];
                client.callbacks = vec![(0, Vec::new()); back_slots as usize];
                client.bound = true;
                client.id = Some((id, sequence + 1));
                Ok(())
            }
            _ => {
                // The server was restarted, or forgot the client.
                client.id = None;
                Err(Gone)
            }
        }
    }

    async fn bind(&self) -> Asked<()> {
        let session = self.client.borrow().session.ok_or(Gone)?;
        self.client.borrow_mut().bound = true;
        let answer = self.ask_plainly(&Request::bind(&session)).await;
        if answer.status == status::BAD_SESSION {
            self.session_is_gone(Some(answer.status));
            return Err(Gone);
        }
        Ok(())
    }

    async fn find_files(&self) -> Asked<()> {
        let mut paths = vec![vec!["tank", "fs"]];
        let names: Vec<String> = (0..FILES).map(|file| format!("file{file}")).collect();
        paths.extend(names.iter().map(|name| vec!["tank", "fs", name]));
        let mut handles = Vec::new();
        for path in &paths {
            let asked = self.ask(WORK, &Request::of_path(path), true).await?;
            match asked.answer.body(op::GETFH) {
                Some(Body::Handle(handle)) => handles.push(handle.clone()),
                _ => self.fail(&format!("finds no {path:?}: {}", asked.answer.status)),
            }
        }
        let mut client = self.client.borrow_mut();
        for (file, handle) in client.files.iter_mut().zip(handles.drain(1..)) {
            file.handle = handle;
        }
        client.dir = handles.remove(0);
        Ok(())
    }

    /// Reclaims what the client holds, and forgets what it may not reclaim.
    async fn reclaim(&self) -> Asked<()> {
        for file in 0..FILES {
            self.reclaim_file(file).await?;
        }
        let mut asks = 0;
        loop {
            let asked = self.ask(WORK, &Request::reclaim_complete(), true).await?;
            match asked.answer.status {
                status::OK | status::COMPLETE_ALREADY => {
                    self.client.borrow_mut().reclaiming = false;
                    let mut model = self.model.borrow_mut();
                    model.reclaim_ended(self.number);
                    model.renewed(self.number, asked.sent);
                    return Ok(());
                }
                status::DELAY => self.before_asking_again(&mut asks, "to be done").await,
                other => {
                    self.fail(&format!("RECLAIM_COMPLETE is refused with {other}"));
                    return Err(Gone);
                }
            }
        }
    }

    fn forget(&self, file: usize) {
        let mut client = self.client.borrow_mut();
        let handle = std::mem::take(&mut client.files[file].handle);
        client.files[file] = FileOfClient {
            handle,
            busy: client.files[file].busy,
            ..FileOfClient::default()
        };
        self.model.borrow_mut().lost(self.now(), self.number, file);
    }

    async fn reclaim_file(&self, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        let delegated = self.model.borrow().delegation(self.number, file).is_some();
        let mut opened = delegated && self.reclaim_open(file, true).await?;
        if delegated && !opened {
            // It may have been revoked before: what was open otherwise may be reclaimed.
            self.drop_delegation(file);
        }
        if !opened && self.model.borrow().share(self.number, file).is_some() {
            opened = self.reclaim_open(file, false).await?;
        }
        if !opened {
            self.forget(file);
            return Ok(());
        }
        self.reclaim_locks(file).await?;
        self.write_again(file).await
    }

    /// Reclaims what a client has open, and has delegated where it asks for that; returns whether the server let it.
    async fn reclaim_open(&self, file: usize, with_delegation: bool) -> Asked<bool> {
        let held = self.model.borrow().delegation(self.number, file);
        let delegation = held.filter(|_| with_delegation);
        let by_delegation = if delegation == Some(true) {
            WRITE
        } else {
            READ
        };
        let share = self.model.borrow().share(self.number, file);
        let (access, deny) = share.unwrap_or((by_delegation, 0));
        let kind = delegation.map_or(0, |write| if write { 2 } else { 1 });
        let mut asks = 0;
        let asked = loop {
            let request = {
                let client = self.client.borrow();
                let claim = Claim::Previous(kind);
                Request::of(&client.files[file].handle)
                    .open(client.id(), access, deny, &claim)
                    .attributes()
            };
            let asked = self.ask(WORK, &request, true).await?;
            if asked.answer.status != status::DELAY {
                break asked;
            }
            self.before_asking_again(&mut asks, "to reclaim").await;
        };
        let now = self.now();
        let Some(Body::Open { state, delegation }) = asked.answer.body(op::OPEN).cloned() else {
            if kind == 0 {
                let status = asked.answer.status;
                let mut model = self.model.borrow_mut();
                model.refused_reclaim(now, self.number, file, "an open", status);
            }
            return Ok(false);
        };
        {
            let mut model = self.model.borrow_mut();
            model.reclaimed(now, self.number, file, asked.ran, "a reclaimed open");
            model.opened(now, self.number, file, (access, deny), asked.sent);
        }
        let kept = {
            let mut client = self.client.borrow_mut();
            let of = &mut client.files[file];
            of.open = Some(state);
            of.lock = None;
            of.delegation.take()
        };
        match delegation {
            Some((write, id)) => self.delegated(file, write, id, &asked, kept),
            None => self.drop_delegation(file),
        }
        Ok(true)
    }

    /// Notes a delegation that was given, or given again: what is in the cache is kept then.
    pub(super) fn delegated(
        &self,
        file: usize,
        write: bool,
        id: StateId,
        asked: &Answered,
        kept: Option<DelegationOfClient>,
    ) {
        let attributes = asked.answer.body(op::GETATTR);
        let Some(Body::Attributes { change, size }) = attributes.cloned() else {
            self.fail("a file was delegated whose attributes are not told");
            return;
        };
        let (dirty, clean) = kept.map_or_else(Default::default, |kept| (kept.dirty, kept.clean));
        let mut client = self.client.borrow_mut();
        client.files[file].delegation = Some(DelegationOfClient {
            id,
            change,
            size,
            dirty,
            clean,
            recalled: false,
        });
        let mut model = self.model.borrow_mut();
        model.delegated(self.now(), self.number, file, write, asked.sent);
    }

    async fn reclaim_locks(&self, file: usize) -> Asked<()> {
        let locks = self.model.borrow().locks(self.number, file);
        let mut from = 0;
        while from < SHARED_CELLS {
            let mode = locks[from];
            let alike = locks[from..].iter().take_while(|other| **other == mode);
            let cells = from..from + alike.count();
            from = cells.end;
            if mode == 0 {
                continue;
            }
            let mut asks = 0;
            let asked = loop {
                let arguments = self.lock_arguments(file, &cells, mode == 2, true);
                let request = Request::of(&self.handle(file)).lock(&arguments);
                let asked = self.ask(WORK, &request, true).await?;
                if asked.answer.status != status::DELAY {
                    break asked;
                }
                self.before_asking_again(&mut asks, "to reclaim a lock")
                    .await;
            };
            let now = self.now();
            let mut model = self.model.borrow_mut();
            match asked.answer.state(op::LOCK) {
                Some(id) => {
                    self.client.borrow_mut().files[file].lock = Some(id);
                    model.reclaimed(now, self.number, file, asked.ran, "a reclaimed lock");
                    model.locked(now, self.number, file, &cells, mode == 2);
                }
                None => {
                    let status = asked.answer.status;
                    model.refused_reclaim(now, self.number, file, super::model::LOCK, status);
                    model.unlocking(self.number, file, &cells);
                }
            }
        }
        Ok(())
    }

    /// Writes again what the server has answered, and may have lost as it was restarted, as far as the client may still write it.
    async fn write_again(&self, file: usize) -> Asked<()> {
        let lost = std::mem::take(&mut self.client.borrow_mut().files[file].uncommitted);
        for Uncommitted { cell, value, .. } in lost {
            let may = self.model.borrow().may_write(self.number, file, cell);
            let id = self.client.borrow().files[file].open;
            let writes = self.model.borrow().share(self.number, file);
            if let (true, Some(id)) = (may, id)
                && writes.is_some_and(|(access, _)| access & WRITE != 0)
            {
                self.write_cell(WORK, file, cell, (value, true), id).await?;
            }
        }
        Ok(())
    }

    pub(super) fn handle(&self, file: usize) -> Vec<u8> {
        self.client.borrow().files[file].handle.clone()
    }

    pub(super) fn lock_arguments(
        &self,
        file: usize,
        cells: &std::ops::Range<usize>,
        exclusive: bool,
        reclaim: bool,
    ) -> LockArguments {
        let client = self.client.borrow();
        let of = &client.files[file];
        let locker = match of.lock {
            Some(lock) => Locker::Known(lock),
            None => Locker::Open {
                open: of.open.unwrap_or_default(),
                client: client.id(),
            },
        };
        LockArguments {
            exclusive,
            reclaim,
            offset: cells.start as u64 * CELL_STEP,
            length: cells.len() as u64 * CELL_STEP,
            locker,
        }
    }

    /// Writes a cell by a state id; returns the status, and the verifier where it is not stable. `written` is a value, and whether it is
    /// to be stable.
    pub(super) async fn write_cell(
        &self,
        slot: usize,
        file: usize,
        cell: usize,
        written: (u64, bool),
        id: StateId,
    ) -> Asked<(u32, Option<u64>)> {
        let (value, stable) = written;
        let offset = cell as u64 * CELL_STEP;
        let request =
            Request::of(&self.handle(file)).write(&id, offset, stable, &value.to_be_bytes());
        self.model
            .borrow_mut()
            .writing(self.now(), file, cell, value);
        let asked = self.ask(slot, &request, true).await?;
        let now = self.now();
        let mut model = self.model.borrow_mut();
        match asked.answer.body(op::WRITE) {
            Some(Body::Written { stable, verifier }) => {
                let by = Some(self.number);
                model.wrote(now, by, file, cell, (value, *stable), asked.sent);
                model.used(now, self.number, file, asked.sent, "a write");
                Ok((status::OK, (!stable).then_some(*verifier)))
            }
            _ => {
                model.refused_write(now, file, cell, value);
                Ok((asked.answer.status, None))
            }
        }
    }

    /// Finds out which delegations were revoked, and frees them.
    async fn free_revoked(&self) -> Asked<()> {
        for file in 0..FILES {
            let _use = self.use_file(file).await;
            let delegation = self.client.borrow().files[file].delegation.clone();
            let Some(delegation) = delegation else {
                continue;
            };
            let request = Request::default().test_state(&delegation.id);
            let asked = self.ask(WORK, &request, true).await?;
            let Some(Body::Statuses(found)) = asked.answer.body(op::TEST_STATEID).cloned() else {
                continue;
            };
            if found == [status::OK] {
                continue;
            }
            self.drop_delegation(file);
            self.free(WORK, &delegation.id).await?;
        }
        Ok(())
    }

    /// The client learns that it has a file no longer delegated: what it wrote in its cache is lost.
    pub(super) fn drop_delegation(&self, file: usize) {
        self.client.borrow_mut().files[file].delegation = None;
        let mut model = self.model.borrow_mut();
        model.returning(self.now(), self.number, file);
    }

    pub(super) async fn free(&self, slot: usize, id: &StateId) -> Asked<()> {
        let request = Request::default().free_state(id);
        self.ask(slot, &request, true).await.map(drop)
    }

    /// The client is switched off and on: it knows nothing any more.
    pub(super) fn restart(&self) {
        let mut client = self.client.borrow_mut();
        let (rng, verifier) = (client.rng.fork(), client.verifier);
        let dir = client.dir.clone();
        let handles: Vec<Vec<u8>> = client
            .files
            .iter()
            .map(|file| file.handle.clone())
            .collect();
        *client = Client::new(rng);
        client.verifier = verifier + 1;
        // Handles stay good.
        client.dir = dir;
        for (file, handle) in client.files.iter_mut().zip(handles) {
            file.handle = handle;
        }
        let mut model = self.model.borrow_mut();
        model.restarted(self.now(), self.number);
    }

    /// The server calls the client, which may not hear of it.
    pub(super) fn is_called(&self, message: &[u8]) {
        use super::wire::{Callback, CallbackRequest};
        let Ok(Callback {
            asks: CallbackRequest::Recall(id),
            ..
        }) = super::wire::callback(message)
        else {
            return;
        };
        let client = self.client.borrow();
        let wanted = |file: &FileOfClient| {
            let held = file.delegation.as_ref();
            held.is_some_and(|held| held.id.other == id.other)
        };
        if let Some(file) = client.files.iter().position(wanted) {
            let mut model = self.model.borrow_mut();
            model.recalled(self.now(), self.number, file);
        }
    }

    /// Answers a call of the server; `None` is not answered.
    pub(super) fn called_back(&self, message: &[u8]) -> Option<Vec<u8>> {
        let call = match super::wire::callback(message) {
            Ok(call) => call,
            Err(unreadable) => {
                self.fail(&unreadable.to_string());
                return None;
            }
        };
        let mut client = self.client.borrow_mut();
        if client.session != Some(call.session) {
            let refused = super::wire::callback_answer(&call, status::BAD_SESSION, 0, None);
            return Some(refused);
        }
        let slot = call.slot as usize;
        let Some((last, kept)) = client.callbacks.get(slot) else {
            self.fail("a callback in a slot that the client does not have");
            return None;
        };
        if call.sequence == *last {
            let mut again = call.xid.to_be_bytes().to_vec();
            again.extend(kept);
            return Some(again);
        }
        if call.sequence != last + 1 {
            let misordered = status::SEQUENCE_MISORDERED;
            return Some(super::wire::callback_answer(&call, misordered, 0, None));
        }
        let (result, attributes) = self.asked_back(&mut client, &call);
        let answer = super::wire::callback_answer(&call, status::OK, result, attributes);
        client.callbacks[slot] = (call.sequence, answer[4..].to_vec());
        Some(answer)
    }

    fn asked_back(
        &self,
        client: &mut Client,
        call: &super::wire::Callback,
    ) -> (u32, Option<(u64, u64)>) {
        use super::wire::CallbackRequest;
        let wanted = |file: &FileOfClient| match (&call.asks, &file.delegation) {
            (CallbackRequest::Recall(id), Some(held)) => held.id.other == id.other,
            (CallbackRequest::Attributes(handle), Some(_)) => file.handle == *handle,
            _ => false,
        };
        let Some(file) = client.files.iter().position(wanted) else {
            return (status::BAD_STATE_ID, None);
        };
        let Some(held) = &mut client.files[file].delegation else {
            return (status::BAD_STATE_ID, None);
        };
        match call.asks {
            CallbackRequest::Recall(_) => {
                held.recalled = true;
                let _full = self.recalls.try_send(file);
                (status::OK, None)
            }
            CallbackRequest::Attributes(_) => {
                let change = held.change + u64::from(!held.dirty.is_empty());
                (status::OK, Some((change, held.size)))
            }
        }
    }
}
