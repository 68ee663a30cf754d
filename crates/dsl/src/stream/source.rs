//! What a stream is of and counts from: names to snapshots, and whether one comes before the other.

use std::rc::Rc;

use dmu::Objset;
use ondisk::{ObjectId, Txg};

use super::list_reader::ListReader;
use super::send::{SendFrom, SendOptions, SendResume, Sender};
use super::send_source::{SendRedaction, SendSource};
use crate::dataset::Dataset;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, RedactionError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck::split;
use crate::types::SavedReceive;

impl Hierarchy {
    /// Begins the stream of a snapshot: as a whole, or from an earlier snapshot or bookmark of its dataset or of one it is a clone
    /// of. With `resume`, what comes before that place is left out. The snapshot cannot be destroyed until the sender is dropped.
    /// A file system or volume whose objects are not open is sent as it is now; nothing opens it until the sender is dropped.
    /// With the option `saved` it is a file system or volume: what an interrupted receive into it left is sent. `redact` is the name,
    /// without the dataset's, of a redaction bookmark of the snapshot: the blocks it lists are left out.
    ///
    /// # Errors
    /// `NotFound`; `Busy` for a file system or volume that is in use; `NotResumable` where no receive left anything, `Busy` while one goes on;
    /// `NotEarlier` when `from` does not come before it; `KeyNotLoaded`; errors of
    /// reading.
    pub async fn send(
        &self,
        snapshot: &str,
        from: Option<&str>,
        options: SendOptions,
        resume: Option<SendResume>,
        redact: Option<&str>,
    ) -> Result<Sender> {
        let (source, from) = {
            let pool = self.pool();
            let _names = pool.config.read().await;
            let (found, saved) = if options.saved {
                let (found, saved) = pool.saved_receive(snapshot).await?;
                (found, Some(saved))
            } else {
                (pool.find(snapshot).await?, None)
            };
            let raw = options.raw && pool.key_object(&found.dir).await?.is_some();
            let is_head = found.snapshot.is_none() && saved.is_none();
            let (dataset, ownership) = if is_head {
                let (dataset, ownership) = pool.own_head(found).await?;
                (dataset, Some(ownership))
            } else if raw {
                (pool.hold_dataset(found).await?, None)
            } else {
                (pool.open_dataset(found).await?, None)
            };
            let mut redaction = SendRedaction {
                received_by: pool.redacted_by(dataset.state()).await?,
                ..SendRedaction::default()
            };
            if let Some(bookmark) = redact {
                let list = pool.list_of_snapshot(&dataset, snapshot, bookmark).await?;
                redaction.list = Some(list);
            }
            let from = match from {
                Some(from) => {
                    let mut counted = pool.send_from(&dataset, from, &mut redaction).await?;
                    if saved.is_some() {
                        // The part lies in a hidden clone; the whole will not be one.
                        counted.is_clone = split(from).head != snapshot;
                    }
                    Some(counted)
                }
                None => None,
            };
            let mut source = if raw {
                let ivset = from.map_or(0, |from| from.ivset_guid);
                pool.raw_source(dataset, ivset).await?
            } else {
                let objset = match &ownership {
                    Some(_) => pool.open_owned(&dataset).await?,
                    None => dataset.objset(),
                };
                SendSource {
                    objset,
                    snapshot: dataset,
                    ownership: None,
                    keys: None,
                    saved: None,
                    redaction: SendRedaction::default(),
                }
            };
            (source.saved, source.redaction) = (saved, redaction);
            source.ownership = ownership;
            (source, from)
        };
        Sender::new(source, from, options, resume).await
    }
}

impl DslPool {
    /// The objects of a head that does not change.
    async fn open_owned(self: &Rc<Self>, dataset: &Dataset) -> Result<Objset> {
        let state = dataset.state();
        let keys = self.block_keys(&state.dir()).await?;
        self.open_stored(state.object, state.phys().bp, keys.as_ref())
            .await
    }

    /// What an interrupted receive into a dataset left, and the snapshot that it is a part of.
    async fn saved_receive(self: &Rc<Self>, name: &str) -> Result<(Found, SavedReceive)> {
        let missing = || DslError::NotResumable { name: name.into() };
        let (part, object) = self.unfinished_receive(name).await?.ok_or_else(missing)?;
        let saved = self.saved_snapshot(object).await?.ok_or_else(missing)?;
        let (found, _) = self.idle_dataset(name, &part).await?;
        Ok((found, saved))
    }

    /// The list of a redaction bookmark of a snapshot.
    async fn list_of_snapshot(
        self: &Rc<Self>,
        dataset: &Dataset,
        snapshot: &str,
        bookmark: &str,
    ) -> Result<ListReader> {
        let head = dataset.head_object();
        let all = self.stored_bookmarks(head).await?;
        let found = all.into_iter().find(|(known, _)| known == bookmark);
        let Some((_, found)) = found else {
            let name = format!("{}#{bookmark}", split(snapshot).head);
            return Err(DslError::NotFound { name });
        };
        if found.redaction_obj == 0 {
            return Err(RedactionError::NotRedactionBookmark.into());
        }
        if found.guid != dataset.guid().0 {
            return Err(RedactionError::OtherSnapshot.into());
        }
        self.read_list(ObjectId(found.redaction_obj), (0, 0)).await
    }

    async fn send_from(
        self: &Rc<Self>,
        to: &Dataset,
        from: &str,
        redaction: &mut SendRedaction,
    ) -> Result<SendFrom> {
        let dir = to.state().dir();
        let parts = split(from);
        let (from_dir, source) = if let Some(short) = parts.bookmark {
            let missing = || DslError::NotFound { name: from.into() };
            let from_dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
            let head = ObjectId(from_dir.phys().head_dataset_obj);
            let bookmarks = self.stored_bookmarks(head).await?;
            let (_, bookmark) = bookmarks
                .into_iter()
                .find(|(name, _)| name == short)
                .ok_or_else(missing)?;
            let source = SendFrom {
                guid: bookmark.guid,
                creation_txg: Txg(bookmark.creation_txg),
                is_clone: from_dir.object != dir.object,
                ivset_guid: bookmark.ivset_guid,
            };
            if bookmark.redaction_obj != 0 {
                let list = ObjectId(bookmark.redaction_obj);
                redaction.from_list = Some(self.read_list(list, (0, 0)).await?);
                // What an earlier stream of the same snapshot left out can be brought later.
                if bookmark.guid == to.guid().0 {
                    return Ok(source);
                }
            }
            (from_dir, source)
        } else {
            let found = self.find(from).await?;
            if found.snapshot.is_none() {
                return Err(DslError::WrongKind { name: from.into() });
            }
            let state = self.load_dataset(found.dataset, found.snapshot).await?;
            redaction.from_received_by = self.redacted_by(&state).await?;
            let source = SendFrom {
                guid: state.phys().guid,
                creation_txg: Txg(state.phys().creation_txg),
                is_clone: found.dir.object != dir.object,
                ivset_guid: self.ivset_guid(state.object).await?,
            };
            (found.dir, source)
        };
        // A head was made before its snapshots, and comes after all of them.
        let to_txg = match &*to.state().snapshot.borrow() {
            Some(_) => to.create_txg(),
            None => Txg(u64::MAX),
        };
        if self
            .is_earlier(&from_dir, source.creation_txg, dir, to_txg)
            .await?
        {
            Ok(source)
        } else {
            Err(DslError::NotEarlier { name: from.into() })
        }
    }

    /// Whether what was made of a directory in `from_txg` comes before what `dir` held in `to_txg`: in the same directory, or in
    /// one that it descends from by clones.
    pub(crate) async fn is_earlier(
        self: &Rc<Self>,
        from_dir: &Rc<DslDir>,
        from_txg: Txg,
        mut dir: Rc<DslDir>,
        to_txg: Txg,
    ) -> Result<bool> {
        if from_dir.object == dir.object {
            return Ok(from_txg < to_txg);
        }
        loop {
            let origin = ObjectId(dir.phys().origin_obj);
            if origin == ObjectId(0) {
                return Ok(false);
            }
            let origin = self.load_dataset(origin, None).await?;
            dir = origin.dir();
            if dir.object == from_dir.object {
                return Ok(from_txg.0 <= origin.phys().creation_txg);
            }
        }
    }
}
