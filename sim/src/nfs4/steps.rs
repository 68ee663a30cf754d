//! What a client does: one step after the other, chosen by the seed, until the server goes down or the time is over.

use runtime::mailbox::Receiver;

use super::client::{Actor, Answered, Asked, CELL_STEP, GIVE_BACK, Uncommitted, WANT_NONE, WORK};
use super::model::{FILES, SHARED_CELLS, name_of};
use super::wire::{Body, Claim, READ, Request, StateId, WRITE, op, status};

/// What a client does more of than others; of its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
    /// Of everything.
    Mixed,
    /// Locks, and reading and writing under them.
    Locks,
    /// Delegations, and reading and writing in the cache.
    Caches,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Actor {
    /// Works until a time; then, where this is the end, gives everything back.
    pub(super) async fn work(self, habit: Habit, until: u64, lease_ns: u64, ends: bool) {
        while !self.has_failed() {
            if self.now() >= until {
                if !ends || self.finish().await.is_ok() {
                    return;
                }
                continue;
            }
            if self.establish().await.is_ok() {
                let _gone = self.step(habit, lease_ns).await;
            }
        }
    }

    async fn finish(&self) -> Asked<()> {
        self.establish().await?;
        for file in 0..FILES {
            self.give_back(WORK, file).await?;
            if self.client.borrow().files[file].open.is_some() {
                self.commit(file).await?;
                self.close(file).await?;
            }
        }
        Ok(())
    }

    /// Gives back what is recalled, as long as there is a server.
    pub(super) async fn give_back_recalled(self, mut recalls: Receiver<usize>) {
        while let Some(file) = recalls.receive().await {
            let pause = self.below(300);
            self.sleep_ms(pause).await;
            let is_recalled = {
                let client = self.client.borrow();
                let held = &client.files[file].delegation;
                held.as_ref().is_some_and(|held| held.recalled)
            };
            if is_recalled && !self.has_failed() {
                let _gone = self.give_back(GIVE_BACK, file).await;
            }
        }
    }

    async fn step(&self, habit: Habit, lease_ns: u64) -> Asked<()> {
        let pause = match self.below(100) {
            0..90 => self.below(120),
            90..98 => self.below(2000),
            _ => lease_ns / 2_000_000 + self.below(lease_ns / 4_000_000),
        };
        self.sleep_ms(pause).await;
        match self.below(400) {
            0..4 => {
                self.be_cut_off(lease_ns).await;
                return Ok(());
            }
            4 | 5 => {
                self.restart();
                return Ok(());
            }
            _ => {}
        }
        let file = usize::try_from(self.below(FILES as u64)).expect("few");
        let weights: [u64; 9] = match habit {
            // Open, close, lock, unlock, write, read, commit, names, give back.
            Habit::Mixed => [14, 8, 12, 8, 22, 18, 6, 6, 4],
            Habit::Locks => [10, 4, 24, 16, 26, 16, 4, 0, 0],
            Habit::Caches => [18, 10, 2, 1, 34, 30, 2, 0, 3],
        };
        let mut drawn = self.below(weights.iter().sum());
        let mut kind = 0;
        while drawn >= weights[kind] {
            drawn -= weights[kind];
            kind += 1;
        }
        match kind {
            0 => self.open(file, habit).await,
            1 if self.below(3) == 0 => self.downgrade(file).await,
            1 => self.close_politely(file).await,
            2 => self.lock(file).await,
            3 => self.unlock(file).await,
            4 => self.write(file).await,
            5 => self.read(file).await,
            6 => self.commit(file).await,
            7 => self.name().await,
            _ => self.give_back(WORK, file).await,
        }
    }

    /// Nothing gets through for a while, in one direction or both; the client goes on, or does nothing meanwhile.
    async fn be_cut_off(&self, lease_ns: u64) {
        let ns = match self.below(3) {
            0 => self.below(lease_ns / 2),
            1 => self.below(lease_ns * 2),
            _ => lease_ns + self.below(lease_ns * 2),
        };
        let until = self.now() + ns;
        let kind = self.below(4);
        {
            let mut cut_off = self.cut_off.borrow_mut();
            let cut = &mut cut_off[self.number];
            if kind != 1 {
                cut.to_server_ns = until;
            }
            if kind != 2 {
                cut.to_client_ns = until;
            }
        }
        self.model.borrow_mut().disturbed(self.number, until);
        if self.below(2) == 0 {
            self.sleep_ms(ns / 1_000_000).await;
        }
    }

    /// Checks that a state was changed once by the request that answered `id`.
    fn check_sequence(&self, before: Option<StateId>, id: StateId, what: &str) {
        let expect = before.map_or(1, |before| before.sequence + 1);
        let same = before.is_none_or(|before| before.other == id.other);
        if !same || id.sequence != expect {
            self.fail(&format!(
                "{what} changed a state otherwise than once: {before:?}, then {id:?}"
            ));
        }
    }

    /// A request about a state was refused in a way that it cannot be while the session is there.
    fn refused(&self, what: &str, file: usize, asked: &Answered) {
        let results = asked.answer.results.iter();
        let all: Vec<_> = results.map(|result| (result.0, result.1)).collect();
        self.fail(&format!("{what} of file {file} is refused: {all:?}"));
    }

    async fn open(&self, file: usize, habit: Habit) -> Asked<()> {
        let access = match habit {
            Habit::Mixed => 1 + u32::try_from(self.below(3)).expect("small"),
            _ => [READ | WRITE, READ | WRITE, READ][usize::try_from(self.below(3)).expect("small")],
        };
        let deny = match (habit, self.below(10)) {
            (Habit::Mixed, 0) => READ | WRITE,
            (Habit::Mixed, 1 | 2) | (Habit::Locks, 0) => WRITE,
            (Habit::Mixed, 3) => READ,
            _ => 0,
        };
        let wants = if self.below(5) == 0 { WANT_NONE } else { 0 };
        let by_name = self.below(2) == 0;
        let mut asks = 0;
        loop {
            let in_use = self.use_file(file).await;
            let (request, before) = {
                let client = self.client.borrow();
                let of = &client.files[file];
                let held = of.delegation.as_ref().filter(|held| !held.recalled);
                let (begin, claim) = match held {
                    Some(held) if deny == 0 => (Request::of(&of.handle), Claim::Delegated(held.id)),
                    _ if by_name => {
                        let name = format!("file{file}");
                        let create = false;
                        (Request::of(&client.dir), Claim::Name { name, create })
                    }
                    _ => (Request::of(&of.handle), Claim::File),
                };
                let request = begin.open(client.id(), access | wants, deny, &claim);
                (request.attributes(), of.open)
            };
            let asked = self.ask(WORK, &request, true).await?;
            let Some(Body::Open { state, delegation }) = asked.answer.body(op::OPEN).cloned()
            else {
                drop(in_use);
                match asked.answer.status {
                    status::DELAY | status::GRACE => {
                        self.before_asking_again(&mut asks, "to open").await;
                        continue;
                    }
                    status::SHARE_DENIED | status::BAD_STATE_ID | status::REVOKED => {}
                    _ => self.refused("OPEN", file, &asked),
                }
                return Ok(());
            };
            self.check_sequence(before, state, "OPEN");
            self.client.borrow_mut().files[file].open = Some(state);
            let mut model = self.model.borrow_mut();
            let share = (access, deny);
            model.opened(self.now(), self.number, file, share, asked.sent);
            drop(model);
            if let Some((write, id)) = delegation {
                // One that the client had it lost without its knowledge.
                self.drop_delegation(file);
                self.delegated(file, write, id, &asked, None);
            }
            return Ok(());
        }
    }

    async fn downgrade(&self, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        let Some(open) = self.client.borrow().files[file].open else {
            return Ok(());
        };
        let Some((access, deny)) = self.model.borrow().share(self.number, file) else {
            return Ok(());
        };
        let kept = if self.below(2) == 0 { WRITE } else { 0 };
        let less = (access & READ, deny & kept);
        let locks = self.model.borrow().locks(self.number, file);
        if less.0 == 0 || locks.contains(&2) {
            return Ok(());
        }
        self.model.borrow_mut().downgrading(self.number, file, less);
        let request = Request::of(&self.handle(file)).downgrade(&open, less.0, less.1);
        let asked = self.ask(WORK, &request, true).await?;
        match asked.answer.state(op::OPEN_DOWNGRADE) {
            Some(id) => {
                self.check_sequence(Some(open), id, "OPEN_DOWNGRADE");
                self.client.borrow_mut().files[file].open = Some(id);
            }
            // It was not opened with just that.
            None if asked.answer.status == 22 => {
                let mut model = self.model.borrow_mut();
                model.downgrading(self.number, file, (access, deny));
            }
            None => self.refused("OPEN_DOWNGRADE", file, &asked),
        }
        Ok(())
    }

    async fn close_politely(&self, file: usize) -> Asked<()> {
        if self.below(10) > 0 {
            self.commit(file).await?;
        }
        self.close(file).await
    }

    async fn close(&self, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        let open = {
            let mut client = self.client.borrow_mut();
            let of = &mut client.files[file];
            of.uncommitted.clear();
            of.lock = None;
            of.open.take()
        };
        let Some(open) = open else {
            return Ok(());
        };
        self.model.borrow_mut().closing(self.number, file);
        let request = Request::of(&self.handle(file)).close(&open);
        let asked = self.ask(WORK, &request, true).await?;
        if asked.answer.status != status::OK {
            self.refused("CLOSE", file, &asked);
        }
        Ok(())
    }

    fn some_cells(&self) -> std::ops::Range<usize> {
        let from = self.below(SHARED_CELLS as u64);
        let count = 1 + self.below(3).min(self.below(SHARED_CELLS as u64 - from));
        let from = usize::try_from(from).expect("small");
        from..from + usize::try_from(count).expect("small")
    }

    async fn lock(&self, file: usize) -> Asked<()> {
        let Some((access, _)) = self.model.borrow().share(self.number, file) else {
            return Ok(());
        };
        let exclusive = match access {
            READ => false,
            WRITE => true,
            _ => self.below(3) > 0,
        };
        let cells = self.some_cells();
        if self.below(8) == 0 {
            let arguments = self.lock_arguments(file, &cells, exclusive, false);
            let id = self.client.borrow().id();
            let request = Request::of(&self.handle(file)).lock_test(id, &arguments);
            return self.ask(WORK, &request, true).await.map(drop);
        }
        let mut asks = 0;
        loop {
            let in_use = self.use_file(file).await;
            let before = self.client.borrow().files[file].lock;
            let arguments = self.lock_arguments(file, &cells, exclusive, false);
            let request = Request::of(&self.handle(file)).lock(&arguments);
            let locks = self
                .model
                .borrow_mut()
                .locking(self.number, file, &cells, exclusive);
            let asked = self.ask(WORK, &request, true).await?;
            if let Some(id) = asked.answer.state(op::LOCK) {
                self.check_sequence(before, id, "LOCK");
                self.client.borrow_mut().files[file].lock = Some(id);
                let (now, sent) = (self.now(), asked.sent);
                let mut model = self.model.borrow_mut();
                model.used(now, self.number, file, sent, super::model::LOCK);
                model.locked(now, self.number, file, &cells, exclusive);
                return Ok(());
            }
            drop(in_use);
            self.model
                .borrow_mut()
                .refused_lock(self.number, file, locks);
            match asked.answer.status {
                status::DELAY | status::GRACE => {
                    self.before_asking_again(&mut asks, "to lock").await;
                }
                status::DENIED => return Ok(()),
                _ => {
                    self.refused("LOCK", file, &asked);
                    return Ok(());
                }
            }
        }
    }

    async fn unlock(&self, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        let Some(lock) = self.client.borrow().files[file].lock else {
            return Ok(());
        };
        let cells = match self.below(3) {
            0 => 0..SHARED_CELLS,
            _ => self.some_cells(),
        };
        self.model.borrow_mut().unlocking(self.number, file, &cells);
        let (offset, length) = (
            cells.start as u64 * CELL_STEP,
            cells.len() as u64 * CELL_STEP,
        );
        let request = Request::of(&self.handle(file)).unlock(&lock, offset, length);
        let asked = self.ask(WORK, &request, true).await?;
        match asked.answer.state(op::LOCKU) {
            Some(id) => {
                self.check_sequence(Some(lock), id, "LOCKU");
                self.client.borrow_mut().files[file].lock = Some(id);
            }
            None => self.refused("LOCKU", file, &asked),
        }
        Ok(())
    }

    /// Returns the state id to read (1) or write (2) by, and whether it is a delegation's.
    fn state_for(&self, file: usize, access: u32) -> Option<(StateId, bool)> {
        let client = self.client.borrow();
        let of = &client.files[file];
        let share = self.model.borrow().share(self.number, file);
        if share.is_some_and(|share| share.0 & access != 0) {
            return of.lock.or(of.open).map(|id| (id, false));
        }
        let kind = self.model.borrow().delegation(self.number, file)?;
        let held = of.delegation.as_ref().filter(|_| kind || access == READ)?;
        Some((held.id, true))
    }

    async fn write(&self, file: usize) -> Asked<()> {
        let own = SHARED_CELLS + self.number;
        let may = |cell: &usize| self.model.borrow().may_write(self.number, file, *cell);
        let cells: Vec<usize> = (0..SHARED_CELLS).chain([own]).filter(may).collect();
        if cells.is_empty() {
            return Ok(());
        }
        let cell = cells[usize::try_from(self.below(cells.len() as u64)).expect("few")];
        let in_use = self.use_file(file).await;
        let Some((id, delegated)) = self.state_for(file, WRITE).filter(|_| may(&cell)) else {
            return Ok(());
        };
        let value = self.model.borrow_mut().value();
        if self.below(3) > 0 && self.write_in_cache(file, cell, value) {
            return Ok(());
        }
        if let Some(held) = &mut self.client.borrow_mut().files[file].delegation {
            held.dirty.remove(&cell);
            held.clean.remove(&cell);
        }
        let stable = self.below(2) == 0;
        let (status, verifier) = self
            .write_cell(WORK, file, cell, (value, stable), id)
            .await?;
        match status {
            status::OK => {
                let mut client = self.client.borrow_mut();
                let of = &mut client.files[file];
                if let Some(held) = &mut of.delegation {
                    held.clean.insert(cell, value);
                }
                of.uncommitted.retain(|other| other.cell != cell);
                of.uncommitted.extend(verifier.map(|verifier| Uncommitted {
                    cell,
                    value,
                    verifier,
                }));
            }
            status::DELAY | status::GRACE => {}
            _ if delegated => {
                self.drop_delegation(file);
                self.free(WORK, &id).await?;
            }
            _ => self.fail(&format!("WRITE of file {file} is refused with {status}")),
        }
        drop(in_use);
        Ok(())
    }

    /// Writes in the cache, where the client may.
    fn write_in_cache(&self, file: usize, cell: usize, value: u64) -> bool {
        let mut model = self.model.borrow_mut();
        let now = self.now();
        let may = model.delegation(self.number, file) == Some(true);
        if !may || !model.is_valid(self.number, now) {
            return false;
        }
        let mut client = self.client.borrow_mut();
        let of = &mut client.files[file];
        let Some(held) = of.delegation.as_mut().filter(|held| !held.recalled) else {
            return false;
        };
        held.dirty.insert(cell, value);
        of.uncommitted.retain(|other| other.cell != cell);
        model.cached_write(now, self.number, file, cell, value);
        true
    }

    async fn read(&self, file: usize) -> Asked<()> {
        let cells = self.model.borrow().cells() as u64;
        let cell = usize::try_from(self.below(cells)).expect("few");
        if self.below(2) == 0 && self.read_in_cache(file, cell) {
            return Ok(());
        }
        let in_use = self.use_file(file).await;
        let state = match self.below(12) {
            0 => Some((StateId::default(), false)),
            _ => self.state_for(file, READ),
        };
        let Some((id, delegated)) = state else {
            return Ok(());
        };
        let cached = {
            let client = self.client.borrow();
            let held = client.files[file].delegation.as_ref();
            held.filter(|held| !held.recalled).map(|held| held.id)
        };
        let request = Request::of(&self.handle(file)).read(&id, cell as u64 * CELL_STEP, 8);
        let asked = self.ask(WORK, &request, false).await?;
        let Some(Body::Data(data)) = asked.answer.body(op::READ) else {
            match asked.answer.status {
                status::DELAY | status::GRACE | status::LOCKED | status::RETRY_UNCACHED => {}
                _ if delegated => {
                    self.drop_delegation(file);
                    self.free(WORK, &id).await?;
                }
                _ => self.refused("READ", file, &asked),
            }
            return Ok(());
        };
        let Ok(bytes) = <[u8; 8]>::try_from(data.as_slice()) else {
            self.fail(&format!("READ of file {file} is short: {data:?}"));
            return Ok(());
        };
        let (value, now) = (u64::from_be_bytes(bytes), self.now());
        let mut model = self.model.borrow_mut();
        model.read(now, Some(self.number), file, cell, value, asked.sent);
        if id != StateId::default() {
            model.used(now, self.number, file, asked.sent, "a read");
        }
        let mut client = self.client.borrow_mut();
        if let Some(held) = &mut client.files[file].delegation
            && cached == Some(held.id)
        {
            held.clean.insert(cell, value);
        }
        drop(client);
        drop(in_use);
        Ok(())
    }

    /// Reads in the cache, where the client has it there.
    fn read_in_cache(&self, file: usize, cell: usize) -> bool {
        let client = self.client.borrow();
        let Some(held) = &client.files[file].delegation else {
            return false;
        };
        let found = held.dirty.get(&cell).or_else(|| held.clean.get(&cell));
        let Some(value) = found.filter(|_| !held.recalled) else {
            return false;
        };
        let mut model = self.model.borrow_mut();
        model.cached_read(self.now(), self.number, file, cell, *value);
        true
    }

    async fn commit(&self, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        if self.client.borrow().files[file].uncommitted.is_empty() {
            return Ok(());
        }
        let request = Request::of(&self.handle(file)).commit();
        let asked = self.ask(WORK, &request, true).await?;
        let Some(Body::Committed(verifier)) = asked.answer.body(op::COMMIT) else {
            self.refused("COMMIT", file, &asked);
            return Ok(());
        };
        let mut client = self.client.borrow_mut();
        let uncommitted = std::mem::take(&mut client.files[file].uncommitted);
        let mut others = uncommitted.iter().filter(|one| one.verifier != *verifier);
        if let Some(other) = others.next() {
            self.fail(&format!(
                "the verifier changed and the server was not restarted: {other:?}, {verifier}"
            ));
        }
        self.model.borrow_mut().committed(file, asked.sent);
        Ok(())
    }

    /// Makes a name, or removes one.
    async fn name(&self) -> Asked<()> {
        let known = self.model.borrow().names(self.number).to_vec();
        let there: Vec<usize> = (0..known.len())
            .filter(|name| known[*name] == Some(true))
            .collect();
        if there.len() > 4 || (!there.is_empty() && self.below(2) == 0) {
            let name = there[usize::try_from(self.below(there.len() as u64)).expect("few")];
            return self.remove(name).await;
        }
        let number = self.model.borrow_mut().making(self.number);
        let mut asks = 0;
        loop {
            let request = {
                let client = self.client.borrow();
                let claim = Claim::Name {
                    name: name_of(self.number, number),
                    create: true,
                };
                // The current state id: of the open before.
                let opened = StateId {
                    sequence: 1,
                    other: [0; 12],
                };
                Request::of(&client.dir)
                    .open(client.id(), READ | WANT_NONE, 0, &claim)
                    .close(&opened)
            };
            let asked = self.ask(WORK, &request, true).await?;
            match asked.answer.status {
                status::OK => {
                    self.model.borrow_mut().named(self.number, number, true);
                    return Ok(());
                }
                status::DELAY | status::GRACE => {
                    self.before_asking_again(&mut asks, "to make a name").await;
                }
                status::EXISTS => {
                    self.fail("a file was made twice");
                    return Ok(());
                }
                _ => {
                    self.refused("OPEN with a name", FILES, &asked);
                    return Ok(());
                }
            }
        }
    }

    async fn remove(&self, number: usize) -> Asked<()> {
        self.model.borrow_mut().name_unknown(self.number, number);
        let dir = self.client.borrow().dir.clone();
        let request = Request::of(&dir).remove(&name_of(self.number, number));
        let asked = self.ask(WORK, &request, true).await?;
        match asked.answer.status {
            status::OK => self.model.borrow_mut().named(self.number, number, false),
            status::DELAY | status::GRACE => {
                self.model.borrow_mut().named(self.number, number, true);
            }
            status::NO_ENTRY => self.fail("a file was removed twice, or lost"),
            _ => self.refused("REMOVE", FILES, &asked),
        }
        Ok(())
    }

    /// Writes what is in the cache of a file, and gives its delegation back.
    async fn give_back(&self, slot: usize, file: usize) -> Asked<()> {
        let _use = self.use_file(file).await;
        let held = self.client.borrow().files[file].delegation.clone();
        let Some(held) = held else {
            return Ok(());
        };
        let mut asks = 0;
        while let Some((cell, value)) = self.first_dirty(file) {
            let stable = self.below(3) > 0;
            let written = (value, stable);
            let (status, verifier) = self.write_cell(slot, file, cell, written, held.id).await?;
            match status {
                status::OK => {
                    let mut client = self.client.borrow_mut();
                    let of = &mut client.files[file];
                    if let Some(held) = &mut of.delegation {
                        held.dirty.remove(&cell);
                    }
                    of.uncommitted.retain(|other| other.cell != cell);
                    of.uncommitted.extend(verifier.map(|verifier| Uncommitted {
                        cell,
                        value,
                        verifier,
                    }));
                }
                status::DELAY | status::GRACE => {
                    self.before_asking_again(&mut asks, "to give back").await;
                }
                _ => {
                    self.drop_delegation(file);
                    return self.free(slot, &held.id).await;
                }
            }
        }
        self.drop_delegation(file);
        let request = Request::of(&self.handle(file)).give_back(&held.id);
        let asked = self.ask(slot, &request, true).await?;
        match asked.answer.status {
            status::REVOKED => self.free(slot, &held.id).await,
            _ => Ok(()),
        }
    }

    fn first_dirty(&self, file: usize) -> Option<(usize, u64)> {
        let client = self.client.borrow();
        let held = client.files[file].delegation.as_ref()?;
        held.dirty
            .first_key_value()
            .map(|(cell, value)| (*cell, *value))
    }
}

/// Waits this long for the clients to end, once their time is over.
pub(super) fn patience_ns(lease_ns: u64) -> u64 {
    30 * lease_ns + 100 * SECOND_NS
}
