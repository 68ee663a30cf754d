//! Bookmarks: creation txgs of snapshots, from which increments can be sent after the snapshots
//! were destroyed.
//!
//! The zapified object of a head names the ZAP of its bookmarks. The long form also stores the space
//! referenced by the snapshot and how much of it was freed before the next one; those sums follow
//! every change of the snapshot chain, and need their keys in deadlists. OpenZFS:
//! module/zfs/dsl_bookmark.c.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec, ZapValue};
use ondisk::bookmark::{BookmarkPhys, bookmark_flags};
use ondisk::dsl::{DslDatasetPhys, zapified_keys};
use ondisk::redaction::RedactionHeader;
use ondisk::{ObjectId, ObjectType};

use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::namecheck::{self, split};
use crate::object_directory::NORMALIZE_TOUPPER;
use crate::property::DatasetKind;
use crate::space::Sizes;
use crate::sync_task::EachName;

/// What was referenced by the snapshot of a bookmark.
pub(crate) fn referenced(bookmark: &BookmarkPhys) -> Sizes {
    Sizes::from_words(bookmark.referenced)
}

/// How much of the referenced space was freed before the next snapshot.
pub(crate) fn freed_before_next(bookmark: &BookmarkPhys) -> Sizes {
    Sizes::from_words(bookmark.freed_before_next)
}

/// What a bookmark is made from.
pub(crate) enum BookmarkSource {
    Snapshot(Rc<DatasetState>),
    Bookmark(BookmarkPhys),
}

/// A bookmark to be made of a snapshot or of another bookmark.
pub(crate) struct NewBookmark {
    pub(crate) name: String,
    pub(crate) source: String,
}

impl AsRef<str> for NewBookmark {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// Makes bookmarks.
pub(crate) struct CreateBookmarks(pub(crate) Vec<NewBookmark>);

impl EachName for CreateBookmarks {
    type Item = NewBookmark;
    type Checked = BookmarkSource;

    fn name(&self) -> &'static str {
        "bookmark"
    }

    fn items(&self) -> &[NewBookmark] {
        &self.0
    }

    async fn check_one(
        &self,
        pool: &Rc<DslPool>,
        new: &NewBookmark,
    ) -> Result<Option<BookmarkSource>> {
        pool.check_bookmark(&new.name, &new.source).await.map(Some)
    }

    async fn apply_one(
        &self,
        pool: &Rc<DslPool>,
        new: &NewBookmark,
        source: BookmarkSource,
        tx: &Tx,
    ) -> Result<()> {
        pool.create_bookmark(&new.name, source, None, tx).await
    }
}

/// Destroys bookmarks.
pub(crate) struct DestroyBookmarks(pub(crate) Vec<String>);

impl EachName for DestroyBookmarks {
    type Item = String;
    type Checked = BookmarkPhys;

    fn name(&self) -> &'static str {
        "destroy bookmarks"
    }

    fn items(&self) -> &[String] {
        &self.0
    }

    async fn check_one(&self, pool: &Rc<DslPool>, name: &String) -> Result<Option<BookmarkPhys>> {
        pool.check_destroy_bookmark(name).await
    }

    async fn apply_one(
        &self,
        pool: &Rc<DslPool>,
        name: &String,
        _: BookmarkPhys,
        tx: &Tx,
    ) -> Result<()> {
        pool.destroy_bookmark(name, tx).await
    }
}

impl DslPool {
    /// The bookmarks of a head with space words, oldest first.
    async fn bookmarks_with_space(&self, head: ObjectId) -> Result<Vec<(String, BookmarkPhys)>> {
        // Without the feature no bookmark has them, which spares a look at every dataset.
        if !self.features.is_active("bookmark_written") {
            return Ok(Vec::new());
        }
        let mut all = self.stored_bookmarks(head).await?;
        all.retain(|(_, bookmark)| bookmark.has_space());
        Ok(all)
    }

    /// The bookmarks of a head, oldest first.
    pub(crate) async fn stored_bookmarks(
        &self,
        head: ObjectId,
    ) -> Result<Vec<(String, BookmarkPhys)>> {
        let Some(map) = self.bookmarks_of(head).await? else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for entry in zap::entries(&self.mos, map).await? {
            let (Ok(name), ZapValue::U64(words)) = (String::from_utf8(entry.name), entry.value)
            else {
                return Err(DslError::corrupt("bookmarks", map));
            };
            all.push((name, BookmarkPhys::decode(&words)));
        }
        all.sort_by(|(a, x), (b, y)| x.creation_txg.cmp(&y.creation_txg).then(a.cmp(b)));
        Ok(all)
    }

    async fn store_bookmark(
        &self,
        head: ObjectId,
        name: &str,
        bookmark: &BookmarkPhys,
        tx: &Tx,
    ) -> Result<()> {
        let map = self
            .bookmarks_of(head)
            .await?
            .ok_or_else(|| DslError::corrupt("bookmarks", head))?;
        zap::update(&self.mos, map, name, &ZapValue::U64(bookmark.encode()), tx).await?;
        Ok(())
    }

    /// Checks a bookmark to be made of a snapshot or of another bookmark.
    pub(crate) async fn check_bookmark(
        self: &Rc<Self>,
        name: &str,
        source: &str,
    ) -> Result<BookmarkSource> {
        namecheck::check(name, DatasetKind::Bookmark)?;
        if !self.features.is_enabled("bookmarks") {
            return Err(DslError::FeatureDisabled {
                feature: "bookmarks",
            });
        }
        let parts = split(name);
        let missing = |name: &str| DslError::NotFound { name: name.into() };
        let dir = self
            .find_dir(parts.head)
            .await?
            .ok_or_else(|| missing(parts.head))?;
        let head = ObjectId(dir.phys().head_dataset_obj);
        let short = parts.bookmark.expect("the name was checked");
        if let Some(map) = self.bookmarks_of(head).await?
            && zap::lookup(&self.mos, map, short).await?.is_some()
        {
            return Err(DslError::Exists { name: name.into() });
        }
        let not_ancestor = || DslError::NotAncestor {
            name: source.into(),
        };
        let from = split(source);
        if let Some(short) = from.bookmark {
            let dir = self
                .find_dir(from.head)
                .await?
                .ok_or_else(|| missing(source))?;
            let source_head = ObjectId(dir.phys().head_dataset_obj);
            let all = self.stored_bookmarks(source_head).await?;
            let (_, bookmark) = all
                .into_iter()
                .find(|(known, _)| known == short)
                .ok_or_else(|| missing(source))?;
            let line = self.ancestry(head).await?;
            let dirs = |object: u64| {
                line.iter()
                    .any(|(dir, newest)| *dir == object && bookmark.creation_txg <= *newest)
            };
            if !dirs(dir.object.0) {
                return Err(not_ancestor());
            }
            return Ok(BookmarkSource::Bookmark(bookmark));
        }
        let found = self.find(source).await?;
        if found.snapshot.is_none() {
            return Err(DslError::WrongKind {
                name: source.into(),
            });
        }
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        let phys = state.phys();
        let line = self.ancestry(head).await?;
        let within =
            |(dir, newest): &(u64, u64)| *dir == phys.dir_obj && phys.creation_txg <= *newest;
        if !line.iter().any(within) {
            return Err(not_ancestor());
        }
        Ok(BookmarkSource::Snapshot(state))
    }

    /// The directories whose snapshots a head descends from, each with the newest creation txg that is an ancestor.
    async fn ancestry(self: &Rc<Self>, head: ObjectId) -> Result<Vec<(u64, u64)>> {
        let mut line = Vec::new();
        let mut newest = u64::MAX;
        let mut dir = self
            .dir(ObjectId(self.dataset_phys(head).await?.dir_obj))
            .await?;
        loop {
            line.push((dir.object.0, newest));
            let origin = ObjectId(dir.phys().origin_obj);
            if origin.0 == 0 || self.is_origin_snap(origin) {
                return Ok(line);
            }
            let phys = self.dataset_phys(origin).await?;
            newest = phys.creation_txg;
            dir = self.dir(ObjectId(phys.dir_obj)).await?;
        }
    }

    /// A bookmark of a snapshot as it is now.
    async fn bookmark_of_snapshot(
        self: &Rc<Self>,
        snapshot: &DslDatasetPhys,
        ivset_guid: u64,
    ) -> Result<BookmarkPhys> {
        let is_v2 =
            self.features.is_enabled("bookmark_written") && self.features.is_enabled("bookmark_v2");
        let mut bookmark = BookmarkPhys {
            guid: snapshot.guid,
            creation_txg: snapshot.creation_txg,
            creation_time: snapshot.creation_time,
            is_v2,
            ..BookmarkPhys::default()
        };
        if ivset_guid != 0 {
            // A raw stream from the bookmark needs it. OpenZFS: module/zfs/dsl_bookmark.c, dsl_bookmark_create_sync_impl_snap
            (bookmark.is_v2, bookmark.ivset_guid) = (true, ivset_guid);
        }
        if is_v2 {
            bookmark.flags = bookmark_flags::HAS_SPACE | bookmark_flags::SNAPSHOT_EXISTS;
            bookmark.referenced = [
                snapshot.referenced_bytes,
                snapshot.compressed_bytes,
                snapshot.uncompressed_bytes,
            ];
            let next = self
                .load_dataset(ObjectId(snapshot.next_snap_obj), None)
                .await?;
            bookmark.freed_before_next = self.deadlist_of(&next).await?.totals().words();
        }
        Ok(bookmark)
    }

    /// Makes a bookmark, with a redaction list where one was made for it or the snapshot was received redacted. Syncing context; the
    /// checks were made.
    pub(crate) async fn create_bookmark(
        self: &Rc<Self>,
        name: &str,
        source: BookmarkSource,
        list: Option<ObjectId>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "create bookmark happens in syncing context"
        );
        let parts = split(name);
        let missing = || DslError::NotFound { name: name.into() };
        let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
        let short = parts.bookmark.ok_or_else(missing)?;
        let head = ObjectId(dir.phys().head_dataset_obj);
        let (bookmark, of) = match source {
            BookmarkSource::Snapshot(state) => {
                let ivset_guid = self.ivset_guid(state.object).await?;
                let phys = state.phys();
                let mut bookmark = self.bookmark_of_snapshot(&phys, ivset_guid).await?;
                let list = match list {
                    Some(list) => Some(list),
                    None => self.list_of_redacted(&state, tx).await?,
                };
                if let Some(list) = list {
                    (bookmark.is_v2, bookmark.redaction_obj) = (true, list.0);
                }
                let list = bookmark.redaction_obj;
                let text = format!("target_snap={} redact_obj={list}", state.object);
                (bookmark, text)
            }
            BookmarkSource::Bookmark(mut bookmark) => {
                bookmark.redaction_obj = 0;
                bookmark.is_v2 &= bookmark.flags != 0 || bookmark.ivset_guid != 0;
                let text = format!("source_guid={}", bookmark.guid);
                (bookmark, text)
            }
        };
        if bookmark.has_space() {
            self.features.incr("bookmark_written", tx).await?;
        }
        self.add_bookmark(head, short, &bookmark, tx).await?;
        let creation = bookmark.creation_txg;
        let text = format!("name={short} creation_txg={creation} {of}");
        self.event("bookmark", parts.head, head, text, tx);
        Ok(())
    }

    async fn add_bookmark(
        &self,
        head: ObjectId,
        name: &str,
        bookmark: &BookmarkPhys,
        tx: &Tx,
    ) -> Result<()> {
        let map = match self.bookmarks_of(head).await? {
            Some(map) => map,
            None => {
                let spec = ZapSpec {
                    normalization: NORMALIZE_TOUPPER,
                    ..ZapSpec::new(ObjectType::ZAP_METADATA)
                };
                let map = zap::create(&self.mos, &spec, tx).await?;
                self.features.incr("bookmarks", tx).await?;
                self.zapify(head, tx).await?;
                zap::add_u64(&self.mos, head, zapified_keys::BOOKMARKS, map.0, tx).await?;
                map
            }
        };
        if bookmark.is_v2 {
            self.features.incr("bookmark_v2", tx).await?;
        }
        zap::add(&self.mos, map, name, &ZapValue::U64(bookmark.encode()), tx).await?;
        Ok(())
    }

    /// Checks that a bookmark can be destroyed; `None` when it does not exist.
    pub(crate) async fn check_destroy_bookmark(
        self: &Rc<Self>,
        name: &str,
    ) -> Result<Option<BookmarkPhys>> {
        let parts = split(name);
        let Some(short) = parts.bookmark else {
            return Err(DslError::WrongKind { name: name.into() });
        };
        let Some(dir) = self.find_dir(parts.head).await? else {
            return Ok(None);
        };
        let head = ObjectId(dir.phys().head_dataset_obj);
        let all = self.stored_bookmarks(head).await?;
        let found = all.into_iter().find(|(known, _)| known == short);
        let in_use = |list: u64| self.lists_in_use.contains(ObjectId(list));
        if found.as_ref().is_some_and(|(_, b)| in_use(b.redaction_obj)) {
            return Err(DslError::Busy { name: name.into() });
        }
        Ok(found.map(|(_, bookmark)| bookmark))
    }

    /// Destroys a bookmark. Syncing context; the checks were made.
    pub(crate) async fn destroy_bookmark(self: &Rc<Self>, name: &str, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "destroy bookmark happens in syncing context"
        );
        let parts = split(name);
        let missing = || DslError::NotFound { name: name.into() };
        let short = parts.bookmark.ok_or_else(missing)?;
        let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
        let head = ObjectId(dir.phys().head_dataset_obj);
        let mut all = self.stored_bookmarks(head).await?;
        let at = all
            .iter()
            .position(|(known, _)| known == short)
            .ok_or_else(missing)?;
        let (_, bookmark) = all.remove(at);
        self.release_bookmark(&bookmark, tx).await?;
        let txg = bookmark.creation_txg;
        let shared = all
            .iter()
            .any(|(_, other)| other.has_space() && other.creation_txg == txg);
        let state = self.load_dataset(head, None).await?;
        if bookmark.has_space()
            && bookmark.flags & bookmark_flags::SNAPSHOT_EXISTS == 0
            && !shared
            && txg < state.phys().prev_snap_txg
        {
            self.remove_clones_key(&dir, txg, tx).await?;
            let list = self.deadlist_of(&state).await?;
            list.remove_key(txg, &self.empty_bpobj, tx).await?;
        }
        let map = self.bookmarks_of(head).await?.ok_or_else(missing)?;
        zap::remove(&self.mos, map, short, tx).await?;
        if all.is_empty() {
            self.features.decr("bookmarks", tx).await?;
            zap::remove(&self.mos, head, zapified_keys::BOOKMARKS, tx).await?;
            self.mos.free_object(map, tx).await?;
        }
        let text = format!("name={short}");
        self.event("remove_bookmark", parts.head, head, text, tx);
        Ok(())
    }

    /// The list that a bookmark of a redacted snapshot gets: without entries, it names the snapshots that it was redacted by.
    async fn list_of_redacted(&self, state: &DatasetState, tx: &Tx) -> Result<Option<ObjectId>> {
        let Some(snapshots) = self.redacted_by(state).await? else {
            return Ok(None);
        };
        let header = RedactionHeader {
            last_object: u64::MAX,
            last_block: u64::MAX,
            entries: 0,
            snapshots,
        };
        self.create_list(&header, tx).await.map(Some)
    }

    /// Gives up what belongs to a bookmark that is destroyed.
    async fn release_bookmark(&self, bookmark: &BookmarkPhys, tx: &Tx) -> Result<()> {
        if bookmark.redaction_obj != 0 {
            self.destroy_list(ObjectId(bookmark.redaction_obj), tx)
                .await?;
        }
        if bookmark.is_v2 {
            self.features.decr("bookmark_v2", tx).await?;
        }
        if bookmark.has_space() {
            self.features.decr("bookmark_written", tx).await?;
        }
        Ok(())
    }

    /// Destroys the bookmarks of a head that is being destroyed. Syncing context.
    pub(crate) async fn destroy_all_bookmarks(&self, head: ObjectId, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "destroy all bookmarks happens in syncing context"
        );
        let Some(map) = self.bookmarks_of(head).await? else {
            return Ok(());
        };
        for (_, bookmark) in self.stored_bookmarks(head).await? {
            self.release_bookmark(&bookmark, tx).await?;
        }
        self.mos.free_object(map, tx).await?;
        self.features.decr("bookmarks", tx).await
    }

    /// Gives a head's new deadlist the keys its bookmarks since the previous snapshot need.
    pub(crate) async fn add_bookmark_keys(
        &self,
        head: &DatasetState,
        list: &Deadlist,
        tx: &Tx,
    ) -> Result<()> {
        let after = head.phys().prev_snap_txg;
        let mut last = 0;
        for (_, bookmark) in self.bookmarks_with_space(head.object).await? {
            let txg = bookmark.creation_txg;
            if txg > after && txg != last {
                list.add_key(txg, &self.empty_bpobj, tx).await?;
                last = txg;
            }
        }
        Ok(())
    }

    /// Updates the bookmarks at and before a snapshot that is being destroyed. Returns whether a
    /// bookmark still needs its key in deadlists.
    pub(crate) async fn bookmarks_snapshot_destroyed(
        self: &Rc<Self>,
        snapshot: &DatasetState,
        next: &DatasetState,
        head: &DatasetState,
        tx: &Tx,
    ) -> Result<bool> {
        let s = snapshot.phys();
        let mut keep_key = false;
        for (name, mut bookmark) in self.bookmarks_with_space(head.object).await? {
            let txg = bookmark.creation_txg;
            if txg < s.prev_snap_txg || txg > s.creation_txg {
                continue;
            }
            if txg == s.creation_txg {
                bookmark.flags &= !bookmark_flags::SNAPSHOT_EXISTS;
                keep_key = true;
            } else {
                let list = self.deadlist_of(next).await?;
                let mut freed = freed_before_next(&bookmark);
                freed.add(list.space_range(0, txg, &self.empty_bpobj).await?);
                bookmark.freed_before_next = freed.words();
            }
            self.store_bookmark(head.object, &name, &bookmark, tx)
                .await?;
        }
        Ok(keep_key)
    }

    /// Recomputes the sums of bookmarks at a snapshot whose next dataset changed.
    pub(crate) async fn bookmarks_next_changed(
        self: &Rc<Self>,
        head: ObjectId,
        snapshot: &DslDatasetPhys,
        tx: &Tx,
    ) -> Result<()> {
        for (name, old) in self.bookmarks_with_space(head).await? {
            if old.creation_txg == snapshot.creation_txg {
                let bookmark = self.bookmark_of_snapshot(snapshot, old.ivset_guid);
                let mut bookmark = bookmark.await?;
                bookmark.redaction_obj = old.redaction_obj;
                self.store_bookmark(head, &name, &bookmark, tx).await?;
            }
        }
        Ok(())
    }

    /// Makes a stored bookmark one of another snapshot with the same contents, whose next dataset is in place. Syncing context.
    pub(crate) async fn rebase_bookmark(
        self: &Rc<Self>,
        head: ObjectId,
        name: &str,
        old: BookmarkPhys,
        snapshot: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "rebase bookmark happens in syncing context"
        );
        let ivset_guid = match old.ivset_guid {
            0 => 0,
            _ => self.ivset_guid(snapshot.object).await?,
        };
        let phys = snapshot.phys();
        let mut bookmark = self.bookmark_of_snapshot(&phys, ivset_guid).await?;
        bookmark.redaction_obj = old.redaction_obj;
        // What is counted of a bookmark stays as it was counted.
        bookmark.is_v2 = old.is_v2;
        if !old.has_space() {
            bookmark.flags = old.flags;
            bookmark.referenced = old.referenced;
            bookmark.freed_before_next = old.freed_before_next;
        }
        self.store_bookmark(head, name, &bookmark, tx).await
    }

    /// Adds blocks freed in a head, given by birth txg, to the bookmarks at or after its last snapshot.
    pub(crate) async fn bookmarks_blocks_freed(
        &self,
        head: &DatasetState,
        freed_births: &[(u64, Sizes)],
        tx: &Tx,
    ) -> Result<()> {
        if freed_births.is_empty() {
            return Ok(());
        }
        let since = head.phys().prev_snap_txg;
        for (name, mut bookmark) in self.bookmarks_with_space(head.object).await? {
            let txg = bookmark.creation_txg;
            if txg < since {
                continue;
            }
            let mut freed = freed_before_next(&bookmark);
            for (birth, sizes) in freed_births.iter().filter(|(birth, _)| *birth <= txg) {
                debug_assert!(*birth <= txg, "filtered");
                freed.add(*sizes);
            }
            if freed != freed_before_next(&bookmark) {
                bookmark.freed_before_next = freed.words();
                self.store_bookmark(head.object, &name, &bookmark, tx)
                    .await?;
            }
        }
        Ok(())
    }

    /// Moves the bookmarks up to a snapshot from one head to another, as a promotion does.
    pub(crate) async fn move_bookmarks(
        &self,
        from: ObjectId,
        to: ObjectId,
        newest: u64,
        tx: &Tx,
    ) -> Result<()> {
        let all = self.stored_bookmarks(from).await?;
        let stay = all.iter().filter(|(_, b)| b.creation_txg > newest).count();
        let Some(map) = self.bookmarks_of(from).await? else {
            return Ok(());
        };
        for (name, bookmark) in all.iter().filter(|(_, b)| b.creation_txg <= newest) {
            zap::remove(&self.mos, map, name, tx).await?;
            if bookmark.is_v2 {
                // Counted again when it is added.
                self.features.decr("bookmark_v2", tx).await?;
            }
            self.add_bookmark(to, name, bookmark, tx).await?;
        }
        if stay == 0 {
            self.features.decr("bookmarks", tx).await?;
            zap::remove(&self.mos, from, zapified_keys::BOOKMARKS, tx).await?;
            self.mos.free_object(map, tx).await?;
        }
        Ok(())
    }
}
