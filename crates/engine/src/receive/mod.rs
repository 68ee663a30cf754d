//! Streams that are received: their bytes come from any thread, and are applied on the pool's.
//!
//! ```text
//!   bytes -> input -> package: the head, renames and destroys of -R, each stream in it
//!                  -> destination: what one stream is received into, its properties, its records
//! ```
//! What is refused, and with which words, is as OpenZFS's library has it: scripts match them.
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_receive_impl.

mod copy;
mod destination;
mod encryption;
mod heal;
mod input;
mod package;
mod properties;
mod replication;
mod rights;
mod roots;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use dsl::stream::{StreamKind, StreamRecord};
use dsl::{NewKey, PlannedKey, Subject};
use ondisk::stream::stream_feature;
use runtime::mailbox::{Receiver, Sender, mailbox};
use runtime::reply::Reply;

pub(crate) use self::copy::SnapshotCopy;
use self::input::{Input, InputError};
use self::package::Package;
pub use self::properties::PropertyOverrides;
use crate::delegation::on;
use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, Invalidation, PoolHandle};

/// Chunks between the reader and the pool.
const CHUNKS_MAX: usize = 4;

/// Where a stream goes, and how.
#[derive(Clone, Debug, Default)]
pub struct ReceiveRequest {
    /// Full name of the dataset, or of the snapshot that is to be.
    pub target: String,
    /// Every element of the sender's name but the pool's is added to the target (`-d`).
    pub without_pool: bool,
    /// The last element of the sender's name is added to the target (`-e`).
    pub last_element: bool,
    /// What changed since the snapshot that the stream counts from is given up (`-F`).
    pub force: bool,
    /// What was received stays when the receive is interrupted (`-s`).
    pub resumable: bool,
    /// Nothing is changed (`-n`).
    pub dry_run: bool,
    /// Lost blocks of the snapshot, which is there, are healed from the stream (`-c`).
    pub heal: bool,
    /// What is new is not mounted (`-u`): that is the caller's to do.
    pub unmounted: bool,
    /// Holds of the sender are not taken over (`-h`).
    pub without_holds: bool,
    /// The stream is of the dataset that is named and of no other, and not of a clone: what a sender says can reach no other dataset here.
    pub single: bool,
    /// Full name of the snapshot that the new dataset is a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// `-o` and `-x`.
    pub overrides: PropertyOverrides,
    /// The key that `-o keyformat=` and what goes with it ask for, or why it could not be read.
    pub key: Option<Result<NewKey, String>>,
}

/// What there is to say of a receive under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveNote {
    /// Told with `-v`.
    Progress(String),
    /// Told always: it was received, but not all of it.
    Warning(String),
}

/// A receive under way: the bytes of a stream, or of a package of streams, go in. Dropped before [`ReceiveStream::finish`], the stream
/// that is under way is given up.
pub struct ReceiveStream {
    chunks: Sender<Vec<u8>>,
    demands: Receiver<usize>,
    notes: Arc<Mutex<Vec<ReceiveNote>>>,
    answer: Reply<Received>,
}

/// What was received when the stream ended, or was refused.
#[derive(Debug)]
pub struct Received {
    /// Full names of the datasets that are new.
    pub new: Vec<String>,
    /// Full names of the datasets whose contents a whole stream took the place of (`-F`).
    pub replaced: Vec<String>,
    /// What there is to say since [`ReceiveStream::take_notes`].
    pub notes: Vec<ReceiveNote>,
    /// Whether all was received.
    pub result: Result<(), EngineError>,
}

impl std::fmt::Debug for ReceiveStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReceiveStream")
    }
}

impl ReceiveStream {
    /// Waits until bytes are missing, and returns how many; `None` once it is known that the stream is received, and as many as there are
    /// can be handed on, and when no more are taken ([`ReceiveStream::is_over`]). One that hands on no more than this reads nothing of a
    /// stream that is refused but its head.
    pub async fn demand(&mut self) -> Option<usize> {
        self.demands.receive().await
    }

    /// Whether no more bytes are taken; [`ReceiveStream::finish`] says why.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.chunks.is_closed()
    }

    /// Hands the next bytes on; false when no more are taken, and [`ReceiveStream::finish`] says why.
    pub async fn write(&self, bytes: Vec<u8>) -> bool {
        self.chunks.send(bytes).await.is_ok()
    }

    /// Returns what there is to say since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<ReceiveNote> {
        take(&self.notes)
    }

    /// Waits for the end, after the last bytes: what was received whole is on disk when this returns, and stays.
    pub async fn finish(self) -> Received {
        drop(self.chunks);
        let mut received = self.answer.await.unwrap_or(Received {
            new: Vec::new(),
            replaced: Vec::new(),
            notes: Vec::new(),
            result: Err(EngineError::PoolClosed),
        });
        received.notes = take(&self.notes);
        received
    }
}

fn take(notes: &Mutex<Vec<ReceiveNote>>) -> Vec<ReceiveNote> {
    std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner))
}

impl PoolHandle {
    /// Begins to receive.
    ///
    /// # Errors
    /// [`EngineError::Permission`]; [`EngineError::PoolClosed`].
    pub fn receive(
        &self,
        request: ReceiveRequest,
    ) -> Request<'_, Result<ReceiveStream, EngineError>> {
        Box::pin(async move {
            let (chunks, input) = mailbox(CHUNKS_MAX);
            let (demanding, demands) = mailbox(1);
            let (sender, answer) = runtime::reply();
            let creator = self.creator();
            let caller = self.caller.clone();
            let notes = Arc::<Mutex<Vec<ReceiveNote>>>::default();
            let told = Arc::clone(&notes);
            let watches = Arc::clone(self.mailbox.watches());
            // What it needs is checked as soon as it is known what is received.
            self.query(move |context| async move {
                let handle = context.handle.clone();
                let task = async move {
                    let mut work = Work {
                        context,
                        request,
                        creator,
                        caller,
                        input: Input::new(input, demanding),
                        notes: told,
                        new: Vec::new(),
                        replaced: Vec::new(),
                        top: None,
                        received_raw: false,
                        changed: BTreeSet::new(),
                    };
                    let result = work.run().await;
                    // Done here, so that it is done too when the caller is gone.
                    for guid in &work.changed {
                        let everything = [Invalidation::Everything];
                        watches.notify(Some(*guid), 0, &everything).await;
                    }
                    watches.notify(None, 0, &[Invalidation::Snapshots]).await;
                    sender.send(Received {
                        new: work.new,
                        replaced: work.replaced,
                        notes: Vec::new(),
                        result,
                    });
                };
                drop(handle.spawn("receive", task));
                Ok(())
            })
            .await?;
            Ok(ReceiveStream {
                chunks,
                demands,
                notes,
                answer,
            })
        })
    }

    /// Returns the key of its own that properties of a receive (`-o`, as typed) ask for; `None` when they ask for none, or do not go
    /// together: the receive says then what is wrong.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn plan_received_key<'a>(
        &'a self,
        typed: &'a [(String, String)],
    ) -> Request<'a, Result<Option<PlannedKey>, EngineError>> {
        Box::pin(async move {
            let of_keys = typed
                .iter()
                .filter(|(name, _)| properties::is_of_keys(name));
            let typed: Vec<_> = of_keys.cloned().collect();
            if typed.is_empty() {
                return Ok(None);
            }
            self.query(move |context| async move {
                let settings =
                    context.settings(&typed, dsl::property::DatasetKind::Filesystem, true);
                let hierarchy = context.pool.hierarchy();
                let planned = settings
                    .ok()
                    .map(|settings| hierarchy.plan_own_key(&settings));
                Ok(planned.and_then(Result::ok).flatten())
            })
            .await
        })
    }

    /// Destroys what an interrupted receive left (`zfs receive -A`).
    ///
    /// # Errors
    /// [`EngineError::NothingToResume`]; [`EngineError::DatasetNotFound`]; [`EngineError::Busy`] while it is received.
    pub fn abort_receive<'a>(&'a self, dataset: &'a str) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            // OpenZFS: zfs_secpolicy_destroy
            let needs = vec![on(&dataset, &["destroy", "mount"])];
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                let hierarchy = context.pool.hierarchy();
                let Some((name, object)) = hierarchy.interrupted_receive(&dataset).await? else {
                    return Err(EngineError::NothingToResume(dataset));
                };
                let destroy = async { Ok(hierarchy.destroy(&name).await?) };
                context.without(object.0, destroy).await
            })
            .await
        })
    }
}

/// A receive on the pool's thread.
struct Work {
    context: Rc<PoolContext>,
    request: ReceiveRequest,
    creator: u32,
    /// The user in whose name it is, if not root's.
    caller: Option<Arc<Subject>>,
    input: Input,
    notes: Arc<Mutex<Vec<ReceiveNote>>>,
    /// Datasets that were made.
    new: Vec<String>,
    /// Datasets whose contents a whole stream took the place of.
    replaced: Vec<String>,
    /// The dataset that the first stream is received into.
    top: Option<String>,
    /// A raw stream was received.
    received_raw: bool,
    /// Guids of the datasets whose contents may be others now.
    changed: BTreeSet<u64>,
}

/// A refusal before it is known what is received.
fn refused(why: &str) -> EngineError {
    EngineError::Receive(format!("cannot receive: {why}"))
}

/// Why the head of a stream cannot be read.
fn unreadable(error: InputError) -> EngineError {
    refused(match error {
        InputError::Truncated => "failed to read from stream",
        InputError::Checksum => "incorrect header checksum",
        InputError::NotAStream => "invalid stream (bad magic number)",
        InputError::Malformed => "invalid backup stream",
    })
}

impl Work {
    fn progress(&self, text: String) {
        self.note(ReceiveNote::Progress(text));
    }

    fn warn(&self, text: String) {
        self.note(ReceiveNote::Warning(text));
    }

    fn note(&self, note: ReceiveNote) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note);
    }

    async fn run(&mut self) -> Result<(), EngineError> {
        self.context.writable()?;
        self.check_request().await?;
        let record = self.input.record().await.map_err(unreadable)?;
        let record = record.ok_or_else(|| unreadable(InputError::Truncated))?;
        let StreamRecord::Begin(begin) = record else {
            return Err(unreadable(InputError::NotAStream));
        };
        check_begin(&begin)?;
        if begin.kind == StreamKind::Substream {
            let sent_as = destination::dataset_of(&begin.to_name);
            return self.stream(begin, &sent_as, None).await;
        }
        self.package(begin).await
    }

    /// A package: its head, then stream after stream, up to an END of its own.
    async fn package(&mut self, begin: dsl::stream::Begin) -> Result<(), EngineError> {
        let list = self.input.list().await.map_err(unreadable)?;
        let package = Package::of(&list);
        if package.recursive && self.request.single {
            return Err(refused("a stream of one dataset is expected"));
        }
        if package.recursive && self.request.target.contains('@') {
            return Err(refused(
                "cannot specify snapshot name for multi-snapshot stream",
            ));
        }
        match self.input.record().await.map_err(unreadable)? {
            Some(StreamRecord::End { .. }) => {}
            _ => return Err(unreadable(InputError::Malformed)),
        }
        let sent_as = destination::dataset_of(&begin.to_name);
        let top = self.request.destination(&sent_as, &begin.to_name)?;
        let top = destination::dataset_of(top.as_bytes());
        let replicates = package.recursive && package.from_snapshot.is_some() && !self.request.heal;
        let mut clean = true;
        if replicates {
            clean = self.replicate(&top, &package).await?;
        }
        loop {
            match self.input.record().await.map_err(unreadable)? {
                Some(StreamRecord::Begin(begin)) => {
                    check_begin(&begin)?;
                    self.stream(begin, &sent_as, Some(&package)).await?;
                }
                Some(StreamRecord::End { .. }) => break,
                Some(_) => return Err(unreadable(InputError::NotAStream)),
                None => return Err(unreadable(InputError::Truncated)),
            }
        }
        // With what was received, renames that had to wait can be made.
        if replicates {
            clean = self.replicate(&top, &package).await?;
        }
        if self.received_raw {
            self.follow_roots(&top, &package).await?;
        }
        if clean {
            Ok(())
        } else {
            Err(EngineError::ReceivedPartly)
        }
    }

    /// What can be refused before a byte is read.
    async fn check_request(&self) -> Result<(), EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        let request = &self.request;
        if (request.without_pool || request.last_element)
            && hierarchy.info(&request.target).await.is_err()
        {
            let why = format!("specified fs ({}) does not exist", request.target);
            return Err(refused(&why));
        }
        if let Some(origin) = &request.origin
            && hierarchy.info(origin).await.is_err()
        {
            let why = format!("specified origin fs ({origin}) does not exist");
            return Err(refused(&why));
        }
        Ok(())
    }
}

/// Refuses what no stream may be.
fn check_begin(begin: &dsl::stream::Begin) -> Result<(), EngineError> {
    let features = begin.features;
    if features & stream_feature::DEDUP != 0 {
        return Err(refused(
            "stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'",
        ));
    }
    let unknown = features & !stream_feature::KNOWN;
    if unknown != 0 {
        return Err(refused(&format!(
            "stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})"
        )));
    }
    if !begin.to_name.contains(&b'@') {
        return Err(refused("invalid stream (bad snapshot name)"));
    }
    Ok(())
}
