//! Changing the tree while it is in use: leaves taken out and back, attached and detached.
//!
//! Guarantees: what a leaf alone can give is never taken away (see [`Tree::is_required`]); the configuration and the
//! open leaves change together, between two awaits.
//! Does not know what a new leaf lacks (the pool records that) and writes nothing to it but what the pool asks for.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ondisk::Guid;
use runtime::DiskKind;

use crate::create::fresh_guid;
use crate::leaf::{Leaf, check_sectors, check_size, open_disk};
use crate::tree::{Top, least_asize_of};
use crate::{AllocationBias, ErrorLimits, Health, OpenMode, Tree, VdevConfig, VdevError, VdevKind};

/// How a new leaf joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// One more copy beside the others.
    Mirror,
    /// In place of the target, which goes when the new one has everything.
    Replace,
    /// For as long as the target is away.
    Spare,
}

impl Tree {
    /// Returns the guid of the interior vdev or root that a vdev lies below; `None` for unknown guids.
    #[must_use]
    pub fn parent_of(&self, guid: Guid) -> Option<Guid> {
        fn find(vdev: &VdevConfig, guid: Guid) -> Option<Guid> {
            if vdev.children.iter().any(|child| child.guid == guid) {
                return Some(vdev.guid);
            }
            vdev.children.iter().find_map(|child| find(child, guid))
        }
        let config = self.config();
        if config.tops.iter().any(|top| top.guid == guid) {
            return Some(config.guid);
        }
        config.tops.iter().find_map(|top| find(top, guid))
    }

    /// Whether some block may be readable only with this leaf's help: it must not be taken away.
    #[must_use]
    pub fn is_required(&self, guid: Guid) -> bool {
        let leaf = self.0.leaves.borrow().get(&guid).cloned();
        let Some(leaf) = leaf else { return false };
        let Some(top) = self.top(leaf.top) else {
            return false;
        };
        if !leaf.is_usable() {
            return false;
        }
        if self.0.faults.requires(guid) {
            return true;
        }
        let without = top
            .slots
            .iter()
            .filter(|slot| {
                !slot.leaves().iter().any(|other| {
                    other.guid != guid && other.is_usable() && !other.writes.is_stale()
                })
            })
            .count();
        without > top.spare_slots()
    }

    /// Returns the log vdev that cannot be read any more without this leaf, if there is one.
    #[must_use]
    pub fn log_that_requires(&self, guid: Guid) -> Option<u32> {
        let top = self.leaf(guid).ok()?.top;
        (self.is_log(top) && self.is_required(guid)).then_some(top)
    }

    /// Takes a leaf out of service; the last one of a log vdev only when that is empty. What it misses from now on is returned by [`Tree::take_missed_writes`].
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`]; [`VdevError::Required`] when data would be out of reach.
    pub async fn take_offline(&self, guid: Guid) -> Result<(), VdevError> {
        let leaf = self.leaf_to_take_out(guid).await?;
        leaf.take_offline();
        assert!(!leaf.is_usable(), "a device that is offline takes nothing");
        Ok(())
    }

    /// As [`Tree::take_offline`], but the leaf is faulted, until its errors are cleared or it is brought online.
    ///
    /// # Errors
    /// As [`Tree::take_offline`].
    pub async fn take_faulted(&self, guid: Guid) -> Result<(), VdevError> {
        let leaf = self.leaf_to_take_out(guid).await?;
        leaf.take_faulted();
        assert!(!leaf.is_usable(), "a device that is faulted takes nothing");
        Ok(())
    }

    /// Returns a leaf that the administrator may take out of service, after a flush of what it took.
    async fn leaf_to_take_out(&self, guid: Guid) -> Result<Rc<Leaf>, VdevError> {
        let leaf = self.leaf(guid)?;
        if self.is_required(guid) && !self.is_log(leaf.top) {
            return Err(VdevError::Required);
        }
        if leaf.is_usable() && leaf.writes.is_dirty() {
            // Of a failure the leaf takes note itself.
            let timeout = self.top(leaf.top).and_then(|top| self.timeout(&top));
            drop(leaf.flush(timeout).await);
        }
        Ok(leaf)
    }

    /// Puts a leaf back into service and returns its health. What it missed it still lacks.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`].
    pub async fn bring_online(&self, guid: Guid) -> Result<Health, VdevError> {
        let leaf = self.leaf(guid)?;
        self.update_config(guid, |vdev| {
            vdev.offline = false;
            vdev.faulted = false;
            vdev.removed = false;
        });
        leaf.allow_reopen();
        leaf.lift_fault();
        self.reopen_leaf(&leaf).await;
        Ok(leaf.health())
    }

    /// Sets how many errors of a device are too many; those that were counted before count.
    pub fn limit_errors(&self, leaf: Guid, limits: ErrorLimits) {
        if let Ok(leaf) = self.leaf(leaf) {
            leaf.limit_errors(limits);
        }
    }

    /// Takes leaves out that have failed too often and are not needed, marks those degraded that gave wrong bytes, or were slow, too
    /// often. Returns the leaves whose health changed.
    #[must_use]
    pub fn diagnose(&self) -> Vec<Guid> {
        let mut changed = Vec::new();
        for leaf in self.all_leaves() {
            let (io_errors, wrong_or_slow) = leaf.take_diagnosis();
            if !leaf.is_usable() || !(io_errors || wrong_or_slow) {
                continue;
            }
            let health = leaf.health();
            if io_errors && !self.is_required(leaf.guid) {
                leaf.fault("too many errors");
            } else if health != Health::Degraded {
                leaf.degrade("too many errors");
            }
            if leaf.health() != health {
                changed.push(leaf.guid);
            }
        }
        changed
    }

    /// Looks at a device that is to join a vdev. Returns what is to be known of it, without a guid, and the least bytes of its data area.
    ///
    /// # Errors
    /// It cannot be opened, is too small, or needs larger sectors.
    pub(crate) async fn measure_joining(
        &self,
        top: &Top,
        path: &Path,
    ) -> Result<(VdevConfig, u64), VdevError> {
        let disk = open_disk(&self.0.handle, path, self.0.mode).await?;
        let least = least_asize_of(&top.layout, top.asize.get());
        check_size(&disk, least)?;
        check_sectors(&disk, top.ashift)?;
        let kind = match disk.info().kind {
            DiskKind::File => VdevKind::File,
            DiskKind::Block => VdevKind::Disk,
        };
        let mut config = VdevConfig::new(kind, 0, Guid(0));
        config.path = Some(path.to_string_lossy().into_owned());
        if config.kind == VdevKind::Disk {
            config.extra.insert("whole_disk", 0_u64);
        }
        Ok((config, least))
    }

    /// Opens a device that joins a vdev, with a data area of `least` bytes or more.
    ///
    /// # Errors
    /// [`VdevError::Join`] when it is not usable.
    pub(crate) async fn open_joining(
        &self,
        top: &Top,
        config: &VdevConfig,
        least: u64,
    ) -> Result<Rc<Leaf>, VdevError> {
        let leaf = Rc::new(self.new_leaf(config, top.id));
        let pool = self.0.config.borrow().guid;
        let mode = self.0.mode;
        leaf.open(config, mode, pool, top.ashift, least, true).await;
        if leaf.is_usable() {
            Ok(leaf)
        } else {
            Err(VdevError::Join {
                what: "the device could not be opened",
            })
        }
    }

    /// Opens the device at `path` and joins it to the leaf `target`. It takes every write from now on and is read last.
    /// A spare keeps the guid by which it is known. Returns the guid. Nothing is written: the caller prepares its labels and says what it lacks.
    ///
    /// # Errors
    /// [`VdevError::Join`] where the shape forbids it; the device cannot be opened, is too small, or needs larger sectors.
    pub async fn join(
        &self,
        target: Guid,
        path: &Path,
        how: Join,
        known: Option<Guid>,
    ) -> Result<Guid, VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let old = self.leaf(target)?;
        let top = self
            .top(old.top)
            .ok_or(VdevError::NoSuchLeaf { guid: target })?;
        self.check_join(target, how)?;
        let (mut config, least) = self.measure_joining(&top, path).await?;
        config.guid = known.unwrap_or_else(|| fresh_guid(&self.0.handle));
        let leaf = self.open_joining(&top, &config, least).await?;
        // The shape may have changed while the device was opened.
        if let Err(error) = self.check_join(target, how) {
            leaf.close();
            return Err(error);
        }
        leaf.writes.mark_stale();
        assert!(
            leaf.writes.is_stale(),
            "a device that joins has nothing yet"
        );
        let guid = leaf.guid;
        if how == Join::Spare {
            config.extra.insert("is_spare", 1_u64);
        }
        self.insert_config(target, config, how);
        let slot = top.slot_of(target);
        slot.ok_or(VdevError::NoSuchLeaf { guid: target })?
            .add(Rc::clone(&leaf));
        self.0.leaves.borrow_mut().insert(guid, leaf);
        Ok(guid)
    }

    /// Has a distributed spare stand in for the leaf `target`. Returns its guid. The caller says what it lacks.
    ///
    /// # Errors
    /// [`VdevError::Join`] where the shape forbids it, or the spare is of another draid.
    // OpenZFS: module/zfs/spa.c, spa_vdev_attach; lib/libzfs/libzfs_pool.c, zpool_vdev_attach (words)
    pub fn join_distributed(&self, target: Guid, spare: &VdevConfig) -> Result<Guid, VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let old = self.leaf(target)?;
        let gone = VdevError::NoSuchLeaf { guid: target };
        let top = self.top(old.top).ok_or(gone)?;
        self.check_join(target, Join::Spare)?;
        let home = {
            let config = self.0.config.borrow();
            config.tops.get(old.top as usize).map(|top| top.guid.0)
        };
        if spare.extra.u64("top_guid") != home || old.spare.is_some() {
            return Err(VdevError::Join {
                what: "dRAID spares can only replace child devices in their parent's dRAID vdev",
            });
        }
        let mut config = spare.clone();
        (config.id, config.ashift, config.create_txg) = (0, 0, 0);
        config.extra.insert("is_spare", 1_u64);
        let leaf = Rc::new(self.new_leaf(&config, old.top));
        leaf.start_spare();
        leaf.writes.mark_stale();
        self.insert_config(target, config, Join::Spare);
        let slot = top.slot_of(target);
        slot.ok_or(VdevError::NoSuchLeaf { guid: target })?
            .add(Rc::clone(&leaf));
        self.0
            .leaves
            .borrow_mut()
            .insert(leaf.guid, Rc::clone(&leaf));
        Ok(leaf.guid)
    }

    /// Takes a leaf out of its mirror, replacing or spare vdev for good; of two children the other takes its parent's
    /// place. Returns its configuration.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`]; [`VdevError::Join`] where there is nothing it could be detached from;
    /// [`VdevError::Required`].
    pub fn detach(&self, guid: Guid) -> Result<VdevConfig, VdevError> {
        let leaf = self.leaf(guid)?;
        let top = self.top(leaf.top).ok_or(VdevError::NoSuchLeaf { guid })?;
        let parent = self.parent_of(guid);
        let pairs =
            |vdev: &VdevConfig| matches!(vdev.kind, VdevKind::Mirror) || is_temporary(&vdev.kind);
        let fits = {
            let mut config = self.0.config.borrow_mut();
            parent
                .and_then(|parent| config.find_mut(parent))
                .is_some_and(|vdev| pairs(vdev) && vdev.children.len() > 1)
        };
        if !fits {
            return Err(VdevError::Join {
                what: "only applicable to mirror and replacing vdevs",
            });
        }
        let is_spare = {
            let mut config = self.0.config.borrow_mut();
            config.find_mut(guid).is_some_and(|vdev| vdev.is_spare())
        };
        // A spare may go as soon as the pool can be read without it: what it stands in for is no worse off than before.
        let others_stale = !is_spare
            && top.slot_of(guid).is_none_or(|slot| {
                !slot.leaves().iter().any(|other| {
                    other.guid != guid && other.is_usable() && !other.writes.is_stale()
                })
            });
        if self.is_required(guid) || (others_stale && leaf.is_usable() && !leaf.writes.is_stale()) {
            return Err(VdevError::Required);
        }
        let removed = {
            let mut config = self.0.config.borrow_mut();
            let top_id = usize::try_from(leaf.top).expect("a vdev id fits");
            let top_config = config
                .tops
                .get_mut(top_id)
                .ok_or(VdevError::NoSuchLeaf { guid })?;
            let removed = remove_child(top_config, guid);
            collapse(top_config, true);
            removed
        };
        if let Some(slot) = top.slot_of(guid) {
            slot.remove(guid);
        }
        let known = self.0.leaves.borrow_mut().remove(&guid);
        assert!(known.is_some(), "a device is detached once");
        leaf.close();
        removed.ok_or(VdevError::NoSuchLeaf { guid })
    }

    /// Returns the replacing vdevs whose new leaf has everything: (old leaf, new leaf).
    #[must_use]
    pub fn replaced(&self) -> Vec<(Guid, Guid)> {
        let mut pairs = self.pairs_of(&VdevKind::Replacing, |old, new| old.guid != new.guid);
        let leaves = self.0.leaves.borrow();
        pairs.retain(|(_, new)| {
            leaves
                .get(new)
                .is_some_and(|leaf| leaf.is_usable() && !leaf.writes.is_stale())
        });
        pairs
    }

    /// Returns the first and the last child of every vdev of a kind, wherever it stands, if they fit.
    fn pairs_of(
        &self,
        kind: &VdevKind,
        fit: fn(&VdevConfig, &VdevConfig) -> bool,
    ) -> Vec<(Guid, Guid)> {
        let config = self.0.config.borrow();
        let mut pairs = Vec::new();
        let mut open: Vec<&VdevConfig> = config.tops.iter().rev().collect();
        while let Some(vdev) = open.pop() {
            if vdev.kind == *kind
                && let (Some(first), Some(last)) = (vdev.children.first(), vdev.children.last())
                && fit(first, last)
            {
                pairs.push((first.guid, last.guid));
            }
            open.extend(vdev.children.iter().rev());
        }
        pairs
    }

    /// Returns the leaves that a spare should stand in for: out of order (not out of service by will), of an ordinary
    /// top-level vdev that still works, and without a spare or a successor yet.
    // OpenZFS: cmd/zed/agents/zfs_retire.c
    #[must_use]
    pub fn in_need_of_spares(&self) -> Vec<Guid> {
        let config = self.0.config.borrow();
        let tops = self.0.tops.borrow();
        let leaves = self.0.leaves.borrow();
        let mut found = Vec::new();
        for (vdev, top) in config.tops.iter().zip(tops.iter()) {
            let Some(top) = top else { continue };
            let works = top.closed_slots().len() <= top.spare_slots();
            if vdev.allocation_bias() != AllocationBias::None || top.is_removed() || !works {
                continue;
            }
            let children = vdev.children.iter().filter(|child| child.kind.is_device());
            let broken = children.filter(|child| {
                leaves.get(&child.guid).is_some_and(|leaf| {
                    matches!(
                        leaf.health(),
                        Health::Faulted | Health::Removed | Health::Unavailable | Health::Degraded
                    )
                })
            });
            found.extend(broken.map(|child| child.guid));
        }
        found
    }

    /// Returns the spares that are no longer needed: what they stand in for came back by itself, or was replaced, and has
    /// everything.
    // OpenZFS: module/zfs/spa.c, spa_vdev_resilver_done_hunt (vdev_unspare)
    #[must_use]
    pub fn spares_to_return(&self) -> Vec<Guid> {
        let mut pairs = self.pairs_of(&VdevKind::Spare, |first, last| {
            first.extra.u64("unspare") == Some(1) && last.is_spare()
        });
        let leaves = self.0.leaves.borrow();
        let whole = |guid: &Guid| {
            leaves
                .get(guid)
                .is_some_and(|leaf| leaf.health() == Health::Online && !leaf.writes.is_stale())
        };
        pairs.retain(|(first, _)| whole(first));
        pairs.into_iter().map(|(_, spare)| spare).collect()
    }

    /// Notes that the device a spare stands in for is back to stay: the spare is returned when it has everything.
    pub(crate) fn note_return(&self, guid: Guid) {
        fn find(vdev: &mut VdevConfig, guid: Guid) {
            if vdev.kind == VdevKind::Spare
                && let Some(first) = vdev.children.first_mut()
                && first.guid == guid
            {
                first.extra.insert("unspare", 1_u64);
            }
            for child in &mut vdev.children {
                find(child, guid);
            }
        }
        for top in &mut self.0.config.borrow_mut().tops {
            find(top, guid);
        }
    }

    pub(crate) fn leaf(&self, guid: Guid) -> Result<Rc<Leaf>, VdevError> {
        let leaf = self.0.leaves.borrow().get(&guid).cloned();
        leaf.ok_or(VdevError::NoSuchLeaf { guid })
    }

    fn check_join(&self, target: Guid, how: Join) -> Result<(), VdevError> {
        let parent = self.parent_of(target);
        let mut config = self.0.config.borrow_mut();
        let root = config.guid;
        let kind = parent
            .filter(|parent| *parent != root)
            .and_then(|parent| config.find_mut(parent))
            .map(|vdev| vdev.kind.clone());
        let refuse = |what| Err(VdevError::Join { what });
        let is_spare = config.find_mut(target).is_some_and(|vdev| vdev.is_spare());
        match (how, kind) {
            // The device that a spare stands in for gets its successor.
            (Join::Replace, Some(VdevKind::Spare)) if !is_spare => Ok(()),
            (_, Some(kind)) if is_temporary(&kind) => refuse(
                "already in replacing/spare config; wait for completion or use 'zpool detach'",
            ),
            (Join::Mirror, None | Some(VdevKind::Mirror)) => Ok(()),
            (Join::Mirror, Some(_)) => refuse("can only attach to mirrors and top-level disks"),
            (Join::Replace | Join::Spare, _) => Ok(()),
        }
    }

    fn insert_config(&self, target: Guid, mut new: VdevConfig, how: Join) {
        let wrap = match how {
            Join::Mirror => VdevKind::Mirror,
            Join::Replace => VdevKind::Replacing,
            Join::Spare => VdevKind::Spare,
        };
        let fresh = fresh_guid(&self.0.handle);
        let mut config = self.0.config.borrow_mut();
        for top in &mut config.tops {
            if top.guid == target {
                let mut interior = VdevConfig::new(wrap, top.id, fresh);
                interior.create_txg = top.create_txg;
                let mut old = std::mem::replace(top, interior);
                move_top_fields(&mut old, top);
                old.id = 0;
                rename_same_path(&mut old, &new);
                new.id = 1;
                top.children = vec![old, new];
                return;
            }
            if insert_below(top, target, &mut new, &wrap, fresh) {
                return;
            }
        }
    }
}

/// Puts `new` beside `target` somewhere below `vdev`; false if the target is not there.
fn insert_below(
    vdev: &mut VdevConfig,
    target: Guid,
    new: &mut VdevConfig,
    wrap: &VdevKind,
    fresh: Guid,
) -> bool {
    let Some(at) = vdev.children.iter().position(|child| child.guid == target) else {
        return vdev
            .children
            .iter_mut()
            .any(|child| insert_below(child, target, new, wrap, fresh));
    };
    let placeholder = VdevConfig::new(VdevKind::Missing, 0, Guid(0));
    let mut new = std::mem::replace(new, placeholder);
    if *wrap == VdevKind::Mirror {
        new.id = vdev.children.len() as u64;
        vdev.children.push(new);
        return true;
    }
    let mut interior = VdevConfig::new(wrap.clone(), at as u64, fresh);
    let placeholder = VdevConfig::new(VdevKind::Missing, 0, Guid(0));
    let mut old = std::mem::replace(&mut vdev.children[at], placeholder);
    interior.create_txg = old.create_txg;
    old.id = 0;
    rename_same_path(&mut old, &new);
    new.id = 1;
    if vdev.kind == VdevKind::Spare {
        // When the successor has everything, the spare has done its duty.
        new.extra.insert("unspare", 1_u64);
    }
    interior.children = vec![old, new];
    vdev.children[at] = interior;
    true
}

/// A device replaced by another at its own place keeps its path for the new one.
// OpenZFS: module/zfs/spa.c, spa_vdev_attach ("/old")
fn rename_same_path(old: &mut VdevConfig, new: &VdevConfig) {
    if old.path.is_some() && old.path == new.path {
        old.path = old.path.take().map(|path| path + "/old");
        old.open_path = old.path.as_ref().map(PathBuf::from);
    }
}

/// Moves what belongs to a top-level vdev from one configuration to another.
fn move_top_fields(from: &mut VdevConfig, to: &mut VdevConfig) {
    to.ashift = std::mem::take(&mut from.ashift);
    to.asize = std::mem::take(&mut from.asize);
    to.metaslab_array = std::mem::take(&mut from.metaslab_array);
    to.metaslab_shift = std::mem::take(&mut from.metaslab_shift);
    to.is_log = std::mem::take(&mut from.is_log);
    to.non_allocating = std::mem::take(&mut from.non_allocating);
    to.zap_top = from.zap_top.take();
    for key in [
        "removing",
        "com.delphix:indirect_object",
        "com.delphix:indirect_births",
    ] {
        if let Some(value) = from.extra.u64(key) {
            from.extra.remove(key);
            to.extra.insert(key, value);
        }
    }
    to.bias = std::mem::replace(&mut from.bias, AllocationBias::None);
}

fn is_temporary(kind: &VdevKind) -> bool {
    matches!(kind, VdevKind::Replacing | VdevKind::Spare)
}

fn remove_child(vdev: &mut VdevConfig, guid: Guid) -> Option<VdevConfig> {
    if let Some(at) = vdev.children.iter().position(|child| child.guid == guid) {
        let removed = vdev.children.remove(at);
        for (id, child) in vdev.children.iter_mut().enumerate() {
            child.id = id as u64;
        }
        return Some(removed);
    }
    vdev.children
        .iter_mut()
        .find_map(|child| remove_child(child, guid))
}

/// Replaces mirrors, replacing and spare vdevs with one child by that child.
fn collapse(vdev: &mut VdevConfig, is_top: bool) {
    for child in &mut vdev.children {
        collapse(child, false);
    }
    let alone =
        vdev.children.len() == 1 && (vdev.kind == VdevKind::Mirror || is_temporary(&vdev.kind));
    if alone && let Some(mut child) = vdev.children.pop() {
        child.id = vdev.id;
        if vdev.kind == VdevKind::Spare {
            child.extra.remove("unspare");
        }
        // The new device stands in the old one's place, and under its path.
        if let Some(path) = &child.path
            && let Some(stripped) = path.strip_suffix("/old")
            && vdev.kind == VdevKind::Replacing
        {
            child.path = Some(stripped.to_owned());
            child.open_path = None;
        }
        if is_top {
            move_top_fields(vdev, &mut child);
        }
        *vdev = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64, path: &str) -> VdevConfig {
        let mut leaf = VdevConfig::new(VdevKind::File, 0, Guid(guid));
        leaf.path = Some(path.to_owned());
        leaf
    }

    #[test]
    fn a_child_alone_takes_its_parents_place() {
        let mut top = VdevConfig::new(VdevKind::Mirror, 3, Guid(9));
        (top.ashift, top.asize, top.zap_top) = (12, 1 << 28, Some(40));
        top.children = vec![leaf(1, "/a"), leaf(2, "/b")];
        assert!(remove_child(&mut top, Guid(1)).is_some());
        collapse(&mut top, true);
        assert_eq!((top.guid, top.id, top.ashift), (Guid(2), 3, 12));
        assert_eq!((top.zap_top, top.kind), (Some(40), VdevKind::File));
    }

    #[test]
    fn a_replacement_below_a_mirror_keeps_the_place() {
        let mut top = VdevConfig::new(VdevKind::Mirror, 0, Guid(9));
        top.children = vec![leaf(1, "/a"), leaf(2, "/b")];
        top.children[1].id = 1;
        let mut new = leaf(3, "/b");
        assert!(insert_below(
            &mut top,
            Guid(2),
            &mut new,
            &VdevKind::Replacing,
            Guid(7)
        ));
        let replacing = &top.children[1];
        assert_eq!((replacing.guid, replacing.id), (Guid(7), 1));
        assert_eq!(replacing.children[0].path.as_deref(), Some("/b/old"));
        assert!(remove_child(&mut top, Guid(2)).is_some());
        collapse(&mut top, true);
        assert_eq!(top.kind, VdevKind::Mirror);
        assert_eq!((top.children[1].guid, top.children[1].id), (Guid(3), 1));
        assert_eq!(top.children[1].path.as_deref(), Some("/b"));
    }
}
