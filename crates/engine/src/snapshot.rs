//! Snapshots, clones, bookmarks and holds as callers see them, and how the pool's thread serves them.

use std::collections::BTreeSet;

use crate::delegation::{above, creation, on, on_origin, with_below};
use crate::invalidation::Invalidation;
use crate::pool_mailbox::{PoolContext, Request};
use crate::property::{DatasetKind, Kinds, Property};
use crate::volume::number;
use crate::{EngineError, PoolHandle, PropertyQuery};

/// A name that was refused. When a request returns one, nothing of it was done.
#[derive(Debug)]
pub struct Refusal {
    /// The name.
    pub name: String,
    /// Why.
    pub error: EngineError,
}

/// Snapshots to be taken at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SnapshotRequest {
    /// Full names.
    pub names: Vec<String>,
    /// Also of all datasets below (`-r`).
    pub recursive: bool,
    /// User properties, as typed.
    pub properties: Vec<(String, String)>,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The snapshot.
    pub snapshot: String,
    /// Its tag.
    pub tag: String,
    /// When it was made, in seconds since 1970.
    pub time: u64,
}

fn refusals(refused: dsl::Refusals) -> Vec<Refusal> {
    refused
        .into_iter()
        .map(|(name, error)| Refusal {
            name,
            error: error.into(),
        })
        .collect()
}

impl PoolContext {
    /// The snapshots named, and those of the same names of all datasets below.
    async fn with_below(
        &self,
        names: &[String],
        existing: bool,
    ) -> Result<Vec<String>, EngineError> {
        let hierarchy = self.pool.hierarchy();
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for name in names {
            let Some((dataset, snapshot)) = name.split_once('@') else {
                all.push(name.clone());
                continue;
            };
            let spec = dsl::ListSpec {
                depth: None,
                kinds: Kinds::FILESYSTEM.union(Kinds::VOLUME),
            };
            for head in hierarchy.names(dataset, spec).await? {
                let name = format!("{head}@{snapshot}");
                if seen.insert(name.clone()) && (!existing || hierarchy.info(&name).await.is_ok()) {
                    all.push(name);
                }
            }
        }
        Ok(all)
    }

    pub(crate) async fn snapshot(
        &self,
        request: SnapshotRequest,
    ) -> Result<Vec<Refusal>, EngineError> {
        self.writable()?;
        let settings = self.settings(&request.properties, DatasetKind::Snapshot, false)?;
        let names = if request.recursive {
            self.with_below(&request.names, false).await?
        } else {
            request.names
        };
        let refused = self.pool.hierarchy().snapshot(&names, &settings).await?;
        Ok(refusals(refused))
    }

    pub(crate) async fn destroy_snapshots(
        &self,
        names: &[String],
        defer: bool,
    ) -> Result<Vec<Refusal>, EngineError> {
        self.writable()?;
        let hierarchy = self.pool.hierarchy();
        let found = hierarchy.existing(names).await?;
        let objects: Vec<u64> = found.into_iter().map(|object| object.0).collect();
        // As OpenZFS, whose snapshots are mounted then: what has open files stays. Files used over NFS become stale.
        if !defer && objects.iter().any(|object| self.is_held(*object)) {
            let mut held = Vec::new();
            for name in names {
                let busy = match hierarchy.info(name).await {
                    Ok(info) => self.is_held(info.object.0),
                    Err(error) if error.is_not_found() => false,
                    Err(error) => return Err(error.into()),
                };
                if busy {
                    held.push(Refusal {
                        name: name.clone(),
                        error: EngineError::Busy(name.clone()),
                    });
                }
            }
            return Ok(held);
        }
        self.without_all(&objects, async {
            Ok(refusals(hierarchy.destroy_snapshots(names, defer).await?))
        })
        .await
    }

    pub(crate) async fn clone_snapshot(
        &self,
        snapshot: &str,
        name: &str,
        properties: &[(String, String)],
        parents: bool,
        creator: u32,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let hierarchy = self.pool.hierarchy();
        let origin = hierarchy.info(snapshot).await?;
        let mut settings = self.settings(properties, origin.head_kind, true)?;
        if number(&settings, Property::RefReservation) == Some(u64::MAX) {
            // `auto`: a clone has the size of its snapshot.
            self.volume_settings(snapshot, &mut settings).await?;
        }
        if parents {
            self.create_parents(name, creator).await?;
        }
        hierarchy
            .clone_snapshot(snapshot, name, settings, creator)
            .await?;
        Ok(())
    }

    pub(crate) async fn promote(&self, name: &str) -> Result<(), EngineError> {
        self.writable()?;
        self.pool.hierarchy().promote(name).await?;
        self.reload_properties().await
    }

    pub(crate) async fn rollback(
        &self,
        name: &str,
        target: Option<&str>,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let hierarchy = self.pool.hierarchy();
        let object = hierarchy.info(name).await?.object.0;
        let work = async { Ok(hierarchy.rollback(name, target).await?) };
        self.without(object, work).await
    }

    pub(crate) async fn holds(
        &self,
        names: &[String],
        recursive: bool,
    ) -> Result<Vec<Hold>, EngineError> {
        let hierarchy = self.pool.hierarchy();
        let names = if recursive {
            self.with_below(names, true).await?
        } else {
            names.to_vec()
        };
        let mut holds = Vec::new();
        for snapshot in names {
            for (tag, time) in hierarchy.holds(&snapshot).await? {
                holds.push(Hold {
                    snapshot: snapshot.clone(),
                    tag,
                    time,
                });
            }
        }
        Ok(holds)
    }
}

impl PoolHandle {
    /// Takes snapshots at one moment: all of them, or none when one is refused. They are on stable
    /// storage when this returns.
    ///
    /// # Errors
    /// The pool is read-only, a property is refused; what is wrong with single names is returned.
    pub fn snapshot(
        &self,
        request: SnapshotRequest,
    ) -> Request<'_, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let mut needs = Vec::new();
            for name in &request.names {
                needs.push(with_below(above(name), request.recursive, &["snapshot"]));
                if !request.properties.is_empty() {
                    needs.push(with_below(above(name), request.recursive, &["userprop"]));
                }
            }
            self.run_permitted(needs, move |context| async move {
                context.snapshot(request).await
            })
            .await
        })
    }

    /// Destroys snapshots, all or none; names that do not exist are passed over. With `defer`,
    /// those held or cloned go later. Their space comes back in the background.
    ///
    /// # Errors
    /// The pool is read-only; what is wrong with single names is returned.
    pub fn destroy_snapshots<'a>(
        &'a self,
        names: &'a [String],
        defer: bool,
    ) -> Request<'a, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let needs = names.iter().map(|name| on(name, &["mount", "destroy"]));
            let needs = needs.collect();
            let names = names.to_vec();
            let done = self
                .run_permitted(needs, move |context| async move {
                    context.destroy_snapshots(&names, defer).await
                })
                .await;
            self.notify(None, Invalidation::Snapshots).await;
            done
        })
    }

    /// Makes a clone of a snapshot, with missing parents if wanted.
    ///
    /// # Errors
    /// The name is taken or has no parent, the snapshot does not exist, a property is refused.
    pub fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        properties: &'a [(String, String)],
        parents: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![
                on(snapshot, &["clone"]),
                creation(name, parents, properties),
            ];
            let creator = self.creator();
            let (snapshot, name) = (snapshot.to_owned(), name.to_owned());
            let properties = properties.to_vec();
            self.run_permitted(needs, move |context| async move {
                context
                    .clone_snapshot(&snapshot, &name, &properties, parents, creator)
                    .await
            })
            .await
        })
    }

    /// Exchanges a clone's place with its origin's.
    ///
    /// # Errors
    /// It is no clone, names of snapshots conflict, no space.
    pub fn promote<'a>(&'a self, name: &'a str) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![
                on(name, &["promote", "mount"]),
                on_origin(name, &["promote", "mount"]),
            ];
            let name = name.to_owned();
            let done = self
                .run_permitted(
                    needs,
                    move |context| async move { context.promote(&name).await },
                )
                .await;
            // Names of the origin's have become the clone's.
            self.notify(None, Invalidation::Snapshots).await;
            done
        })
    }

    /// Makes a dataset what its newest snapshot is, which must be `target` if given. Open files
    /// that the snapshot does not have are stale afterwards.
    ///
    /// # Errors
    /// There is no snapshot, or a newer one than `target`.
    pub fn rollback<'a>(
        &'a self,
        name: &'a str,
        target: Option<&'a str>,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![on(name, &["rollback"])];
            let guid = self.dataset(name, &PropertyQuery::None).await?.guid;
            let (name, target) = (name.to_owned(), target.map(str::to_owned));
            let done = self
                .run_permitted(needs, move |context| async move {
                    context.rollback(&name, target.as_deref()).await
                })
                .await;
            self.notify(Some(guid), Invalidation::Everything).await;
            done
        })
    }

    /// Notifies the watches of a dataset (`None`: of all).
    pub(crate) async fn notify(&self, guid: Option<u64>, invalidation: Invalidation) {
        self.mailbox
            .watches()
            .notify(guid, 0, &[invalidation])
            .await;
    }

    /// Renames a snapshot, and with `recursive` those of the same name of all datasets below.
    ///
    /// # Errors
    /// A new name is taken, or is of another dataset.
    pub fn rename_snapshot<'a>(
        &'a self,
        from: &'a str,
        to: &'a str,
        recursive: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![
                with_below(from, recursive, &["rename", "mount"]),
                with_below(above(to), recursive, &["create", "mount"]),
            ];
            let (from, to) = (from.to_owned(), to.to_owned());
            let done = self
                .run_permitted(needs, move |context| async move {
                    context.writable()?;
                    Ok(context
                        .pool
                        .hierarchy()
                        .rename(&from, &to, recursive)
                        .await?)
                })
                .await;
            self.notify(None, Invalidation::Snapshots).await;
            done
        })
    }

    /// Makes bookmarks, given as pairs of the new name and the snapshot or bookmark: all or none.
    ///
    /// # Errors
    /// The pool is read-only; what is wrong with single names is returned.
    pub fn create_bookmarks<'a>(
        &'a self,
        wanted: &'a [(String, String)],
    ) -> Request<'a, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let needs = wanted.iter().map(|(new, _)| on(above(new), &["bookmark"]));
            let needs = needs.collect();
            let wanted = wanted.to_vec();
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                let refused = context.pool.hierarchy().create_bookmarks(&wanted).await?;
                Ok(refusals(refused))
            })
            .await
        })
    }

    /// Makes a redaction bookmark of a snapshot: the list of its blocks that all `redaction_snapshots`, which descend from it, have
    /// changed. `bookmark` is its name without the dataset's. One that was interrupted goes on. The whole list is on disk when this
    /// returns.
    ///
    /// # Errors
    /// [`EngineError::Redaction`]; [`EngineError::DatasetNotFound`]; [`EngineError::DatasetExists`]; [`EngineError::KeyNotLoaded`]; the
    /// pool is read-only or lacks the feature; of reading.
    pub fn redact<'a>(
        &'a self,
        snapshot: &'a str,
        bookmark: &'a str,
        redaction_snapshots: &'a [String],
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let (snapshot, bookmark) = (snapshot.to_owned(), bookmark.to_owned());
            let by = redaction_snapshots.to_vec();
            self.run_as_root(move |context| async move {
                context.writable()?;
                let hierarchy = context.pool.hierarchy();
                Ok(hierarchy.redact(&snapshot, &bookmark, &by).await?)
            })
            .await
        })
    }

    /// Destroys bookmarks; names that do not exist are passed over.
    ///
    /// # Errors
    /// The pool is read-only; what is wrong with single names is returned.
    pub fn destroy_bookmarks<'a>(
        &'a self,
        names: &'a [String],
    ) -> Request<'a, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let needs = names
                .iter()
                .map(|name| on(above(name), &["mount", "destroy"]));
            let needs = needs.collect();
            let names = names.to_vec();
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                let refused = context.pool.hierarchy().destroy_bookmarks(&names).await?;
                Ok(refusals(refused))
            })
            .await
        })
    }

    /// Adds a hold to snapshots, and with `recursive` to those of the same names below: all or
    /// none.
    ///
    /// # Errors
    /// The pool is read-only; what is wrong with single names is returned.
    pub fn hold<'a>(
        &'a self,
        names: &'a [String],
        tag: &'a str,
        recursive: bool,
    ) -> Request<'a, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let needs = names
                .iter()
                .map(|name| with_below(above(name), recursive, &["hold"]));
            let needs = needs.collect();
            let (mut names, tag) = (names.to_vec(), tag.to_owned());
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                if recursive {
                    names = context.with_below(&names, true).await?;
                }
                Ok(refusals(context.pool.hierarchy().hold(&names, &tag).await?))
            })
            .await
        })
    }

    /// Removes the holds with a tag from snapshots, as [`Self::hold`] adds them.
    ///
    /// # Errors
    /// The pool is read-only; what is wrong with single names is returned.
    pub fn release<'a>(
        &'a self,
        names: &'a [String],
        tag: &'a str,
        recursive: bool,
    ) -> Request<'a, Result<Vec<Refusal>, EngineError>> {
        Box::pin(async move {
            let needs = names
                .iter()
                .map(|name| with_below(above(name), recursive, &["release"]));
            let needs = needs.collect();
            let (mut names, tag) = (names.to_vec(), tag.to_owned());
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                if recursive {
                    names = context.with_below(&names, true).await?;
                }
                Ok(refusals(
                    context.pool.hierarchy().release(&names, &tag).await?,
                ))
            })
            .await
        })
    }

    /// Returns the holds of snapshots, and with `recursive` of those of the same names below.
    ///
    /// # Errors
    /// One does not exist.
    pub fn holds<'a>(
        &'a self,
        names: &'a [String],
        recursive: bool,
    ) -> Request<'a, Result<Vec<Hold>, EngineError>> {
        Box::pin(async move {
            let names = names.to_vec();
            self.query(move |context| async move { context.holds(&names, recursive).await })
                .await
        })
    }

    /// Returns what users, groups or projects use of a file system or snapshot, as of the last sync.
    ///
    /// # Errors
    /// It does not exist, or is a volume.
    pub fn usage<'a>(
        &'a self,
        dataset: &'a str,
        of: dsl::UsageOf,
    ) -> Request<'a, Result<Vec<dsl::Usage>, EngineError>> {
        Box::pin(async move {
            let permission = match of {
                dsl::UsageOf::Users => "userused",
                dsl::UsageOf::Groups => "groupused",
                dsl::UsageOf::Projects => "projectused",
            };
            let needs = vec![on(dataset, &[permission])];
            let dataset = dataset.to_owned();
            self.run_permitted(needs, move |context| async move {
                Ok(context.pool.hierarchy().usage(&dataset, of).await?)
            })
            .await
        })
    }

    /// Succeeds when no snapshot of the pool is immutable any more.
    ///
    /// # Errors
    /// `Immutable`, with the name of one that is; the pool cannot be read.
    pub fn check_nothing_immutable(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.query(move |context| async move {
                Ok(context.pool.hierarchy().check_nothing_immutable().await?)
            })
            .await
        })
    }

    /// Returns the time that immutability of snapshots is measured by, and the highest one that was seen and stored before: seconds since
    /// 1970. The first below the second says that the clock was set back.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn counted_time(&self) -> Request<'_, Result<(u64, u64), EngineError>> {
        Box::pin(async move {
            self.query(
                move |context| async move { Ok(context.pool.hierarchy().counted_time().await?) },
            )
            .await
        })
    }

    /// Returns the bytes that destroying the snapshots of one dataset from `first` to `last` would
    /// free.
    ///
    /// # Errors
    /// They do not exist, or are not of one dataset in this order.
    pub fn would_free<'a>(
        &'a self,
        first: &'a str,
        last: &'a str,
    ) -> Request<'a, Result<u64, EngineError>> {
        Box::pin(async move {
            let (first, last) = (first.to_owned(), last.to_owned());
            self.query(move |context| async move {
                Ok(context.pool.hierarchy().would_free(&first, &last).await?)
            })
            .await
        })
    }
}
