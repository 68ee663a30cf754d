//! Replicas that the campaign's administrator makes of datasets: snapshots are sent, and received under another name, whole, one from
//! another, and in two parts.
//!
//! A receive shows all of a snapshot or nothing of it: after a cut the replica has what it had, or the snapshot too. What a receive
//! that was interrupted on purpose left stays hidden until the rest comes, or is given up at the next boot.

use engine::stream::{SendOptions, SendResume, unpack_token};
use engine::{DestroyOptions, EngineError, PoolHandle, PropertyQuery, ReceiveRequest, SendRequest};

use super::datasets::{
    DatasetAdmin, Thing, accepted, head_of, is_full, is_snapshot, line, print, text,
};

/// How names of redacted copies begin.
pub(super) const COPY: &str = "tank/fs/x";
/// Bytes of a stream that are handed over at once.
const CHUNK_BYTES: usize = 100_000;

impl DatasetAdmin {
    /// Gives up what receives of an earlier boot left.
    pub(super) async fn abort_receives(&mut self) -> Result<(), String> {
        let names = self.names();
        for name in names.keys().filter(|name| !is_snapshot(name)) {
            match self.pool.abort_receive(name).await {
                Ok(()) | Err(EngineError::NothingToResume(_)) => {}
                Err(error) => return Err(text(error)),
            }
        }
        Ok(())
    }

    /// Redacts a snapshot by one of a clone of it, receives what is left, and destroys the copy again.
    pub(super) async fn redact(&mut self) -> Result<(), String> {
        let names = self.names();
        let of_clone = |name: &str| is_snapshot(name) && names[head_of(name)].origin.is_some();
        let Some(by) = self.pick(&names, of_clone) else {
            return Ok(());
        };
        let snapshot = names[head_of(&by)]
            .origin
            .clone()
            .expect("it is of a clone");
        let bookmark = self.fresh("b");
        match self.pool.redact(&snapshot, &bookmark, &[by]).await {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(()),
            Err(error) => return Err(text(error)),
        }
        let target = self.fresh(COPY);
        let copy = Thing {
            volume: names[&snapshot].volume,
            ..Thing::default()
        };
        let short = snapshot
            .strip_prefix(head_of(&snapshot))
            .unwrap_or_default();
        let mut next = names;
        next.insert(format!("{target}{short}"), copy.clone());
        next.insert(target.clone(), copy.clone());
        self.begin(next);
        let list = format!("{}#{bookmark}", head_of(&snapshot));
        let request = SendRequest {
            snapshot,
            redact: Some(bookmark),
            ..SendRequest::default()
        };
        let received = transfer(&self.pool, &request, &target).await;
        if self.end(received)? {
            // What was left out reads as zeros; the rest is there.
            print(&self.pool, &target, copy.volume).await?;
            self.destroy_copies().await?;
        }
        if self.rng.coin() {
            let gone = self.pool.destroy_bookmarks(&[list]).await;
            gone.and_then(accepted).map_err(text)?;
        }
        Ok(())
    }

    /// Destroys redacted copies, also those of an earlier boot.
    pub(super) async fn destroy_copies(&mut self) -> Result<(), String> {
        // A snapshot's name comes behind that of its dataset, and has to go first.
        for name in self
            .names()
            .keys()
            .rev()
            .filter(|name| name.starts_with(COPY))
        {
            let mut next = self.names();
            next.remove(name);
            self.begin(next);
            let gone = if is_snapshot(name) {
                let doomed = [name.clone()];
                self.pool
                    .destroy_snapshots(&doomed, false)
                    .await
                    .and_then(accepted)
            } else {
                let options = DestroyOptions::default();
                self.pool.destroy_dataset(name, options).await
            };
            self.end(gone)?;
        }
        Ok(())
    }

    /// Sends a snapshot, perhaps after the one before it, and receives it into a new dataset.
    pub(super) async fn replicate(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(last) = self.pick(&names, is_snapshot) else {
            return Ok(());
        };
        let line = line(&names, head_of(&last));
        let at = line
            .iter()
            .position(|name| *name == last)
            .expect("in its line");
        let base = (at > 0).then(|| line[at - 1].clone());
        let target = self.fresh("tank/fs/r");
        if names.contains_key(&target) {
            return Ok(());
        }
        let key = names[&last].key;
        let options = SendOptions {
            raw: key.is_some() && self.rng.coin(),
            compressed: self.rng.coin(),
            large_blocks: self.rng.coin(),
            embedded: self.rng.coin(),
            ..SendOptions::default()
        };
        if let Some(base) = &base
            && !self.receive(base, None, &target, options).await?
        {
            return Ok(());
        }
        let base = base.as_deref();
        self.receive(&last, base, &target, options).await.map(drop)
    }

    /// Receives a stream of a snapshot correctively: nothing of it is lost, and nothing changes.
    pub(super) async fn heal(&mut self) -> Result<(), String> {
        let names = self.names();
        let Some(snapshot) = self.pick(&names, is_snapshot) else {
            return Ok(());
        };
        let thing = names[&snapshot].clone();
        let is_encrypted = thing.key.is_some();
        let request = SendRequest {
            snapshot: snapshot.clone(),
            options: SendOptions {
                raw: is_encrypted && self.rng.coin(),
                compressed: self.rng.coin(),
                large_blocks: true,
                embedded: !is_encrypted && self.rng.coin(),
                ..SendOptions::default()
            },
            ..SendRequest::default()
        };
        let bytes = bytes_of(&self.pool, &request).await.map_err(text)?;
        let request = ReceiveRequest {
            target: snapshot.clone(),
            heal: true,
            ..ReceiveRequest::default()
        };
        feed(&self.pool, &bytes, request).await.map_err(text)?;
        let found = print(&self.pool, &snapshot, thing.volume).await?;
        if thing.print.is_some_and(|print| print != found) {
            return Err(format!("datasets: {snapshot} differs after it was healed"));
        }
        Ok(())
    }

    /// Returns whether there was room for it.
    async fn receive(
        &mut self,
        snapshot: &str,
        from: Option<&str>,
        target: &str,
        options: SendOptions,
    ) -> Result<bool, String> {
        let names = self.names();
        let key = match (names.get(target), names[snapshot].key) {
            (Some(target), _) => target.key,
            (None, Some(key)) if options.raw => Some(self.raw_copy(key)),
            (None, _) => None,
        };
        let received = Thing {
            origin: None,
            created: 0,
            key,
            ..names[snapshot].clone()
        };
        let short = snapshot.strip_prefix(head_of(snapshot)).unwrap_or_default();
        let name = format!("{target}{short}");
        let mut next = names;
        next.insert(target.to_owned(), received.clone());
        next.insert(name.clone(), received.clone());
        self.begin(next);
        let request = SendRequest {
            snapshot: snapshot.to_owned(),
            from: from.map(str::to_owned),
            options,
            ..SendRequest::default()
        };
        // Only what comes on top of something stays hidden when it is interrupted.
        let parts = if from.is_some() && self.rng.coin() {
            self.receive_first_part(&request, target).await
        } else {
            Ok(request)
        };
        let outcome = match parts {
            Ok(request) => transfer(&self.pool, &request, target).await,
            Err(error) => Err(error),
        };
        if !self.end(outcome)? {
            return Ok(false);
        }
        if let (None, Some(key)) = (from, key) {
            self.load(target, key).await.map_err(text)?;
        }
        let info = self.pool.dataset(&name, &PropertyQuery::None).await;
        let created = info.map_err(text)?.create_txg;
        let found = print(&self.pool, &name, received.volume).await?;
        if received.print.is_some_and(|print| print != found) {
            return Err(format!("datasets: {name} differs from {snapshot}"));
        }
        let mut history = self.history.borrow_mut();
        let thing = history.thing_mut(&name).expect("received just now");
        (thing.print, thing.created) = (Some(found), created);
        Ok(true)
    }

    /// Hands over a part of a stream and ends there; returns the request for the rest.
    async fn receive_first_part(
        &mut self,
        request: &SendRequest,
        target: &str,
    ) -> Result<SendRequest, EngineError> {
        let whole = bytes_of(&self.pool, request).await?;
        let len = self.rng.below(whole.len() as u64);
        let part = &whole[..usize::try_from(len).expect("small")];
        match feed(&self.pool, part, into(target, true)).await {
            Ok(()) => panic!("{len} bytes of a stream were taken for all of it"),
            Err(error) if is_full(&error) => Err(error),
            Err(_) => self.rest_of(request, target).await,
        }
    }

    async fn rest_of(
        &self,
        request: &SendRequest,
        target: &str,
    ) -> Result<SendRequest, EngineError> {
        let key = "receive_resume_token";
        let query = PropertyQuery::Named(vec![key.to_owned()]);
        let info = self.pool.dataset(target, &query).await?;
        let token = info.property(key).and_then(|token| token.value.text());
        let list = token.and_then(|token| unpack_token(token).ok());
        let mut rest = request.clone();
        rest.resume = list.and_then(|list| {
            Some(SendResume {
                object: list.u64("object")?,
                offset: list.u64("offset")?,
            })
        });
        Ok(rest)
    }
}

async fn transfer(
    pool: &PoolHandle,
    request: &SendRequest,
    target: &str,
) -> Result<(), EngineError> {
    let bytes = bytes_of(pool, request).await?;
    feed(pool, &bytes, into(target, request.from.is_some())).await
}

pub(super) async fn bytes_of(
    pool: &PoolHandle,
    request: &SendRequest,
) -> Result<Vec<u8>, EngineError> {
    let mut stream = pool.send(request.clone()).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend(chunk);
    }
    Ok(bytes)
}

/// What is new and `resumable` would be seen unfinished, so that only increments are.
fn into(target: &str, resumable: bool) -> ReceiveRequest {
    ReceiveRequest {
        target: target.to_owned(),
        resumable,
        unmounted: true,
        ..ReceiveRequest::default()
    }
}

async fn feed(pool: &PoolHandle, bytes: &[u8], request: ReceiveRequest) -> Result<(), EngineError> {
    let receiving = pool.receive(request).await?;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        if !receiving.write(chunk.to_vec()).await {
            break;
        }
    }
    receiving.finish().await.result
}
