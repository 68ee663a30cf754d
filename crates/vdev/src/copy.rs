//! Copying bytes from one top-level vdev to another when it is unknown which of several copies is the right one.
//!
//! Guarantees: what one device of the source has, one device of the target has afterwards, as far as the target has as many:
//! as long as some copy is good, some copy stays good. Not durable before [`Tree::flush`].
//! Does not know blocks or checksums.
// OpenZFS: module/zfs/vdev_removal.c, spa_vdev_copy_one_child

use runtime::{DiskError, IoBuf};

use crate::leaf::LeafError;
use crate::tree::out_of_range;
use crate::{IoClass, LEAF_DATA_START, Location, Tree, VdevError};

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;
const _: () = assert!(CHUNK.is_multiple_of(1 << crate::ASHIFT_MAX));

/// Why a copy was not made.
#[derive(Debug, Clone)]
pub enum CopyFailure {
    /// No device of the source could be read.
    Source(VdevError),
    /// No device of the target took the bytes.
    Target(VdevError),
}

impl Tree {
    /// Copies a range of a vdev (a single device, or a mirror) to another; `to` has the size of `from`, and is born in the
    /// txg that will refer to the copy.
    ///
    /// # Errors
    /// Which side failed, and how.
    pub async fn copy(&self, from: Location, to: Location) -> Result<(), CopyFailure> {
        assert_eq!(from.size, to.size, "a copy is as long as its source");
        let mut done = 0;
        while done < from.size {
            let size = CHUNK.min(from.size - done);
            let part = |at: Location| Location {
                offset: at.offset + done,
                size,
                ..at
            };
            let copies = self.copies(part(from)).await.map_err(CopyFailure::Source)?;
            let of = |device: usize| -> IoBuf { copies[device % copies.len()].clone() };
            let written = if copies.windows(2).all(|two| two[0] == two[1]) {
                self.write(part(to), of(0), IoClass::AsyncWrite).await
            } else {
                self.write_each(part(to), of, IoClass::AsyncWrite).await
            };
            written.map_err(CopyFailure::Target)?;
            done += size;
        }
        assert!(done == from.size, "a copy is whole");
        Ok(())
    }

    /// Returns the bytes of a range as each device has them that has all of them, one that cannot be read standing in for by the next.
    /// What a device missed would be lost for good.
    async fn copies(&self, at: Location) -> Result<Vec<IoBuf>, VdevError> {
        let top = self.top_for(at)?;
        if top.is_striped() || top.is_removed() {
            return Err(out_of_range(at));
        }
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let mut leaves = top.leaves();
        leaves.retain(|leaf| leaf.is_readable() && !leaf.writes.is_stale());
        let timeout = self.timeout(&top);
        let reads = leaves
            .iter()
            .map(|leaf| leaf.read(LEAF_DATA_START + at.offset, len, IoClass::Scrub, timeout));
        let results = runtime::join_all(reads).await;
        let mut failure: Option<DiskError> = None;
        let mut found: Vec<Option<IoBuf>> = Vec::new();
        for result in results {
            match result {
                Ok(bytes) => found.push(Some(bytes)),
                Err(error) => {
                    if let LeafError::Device(error) = error {
                        failure = Some(error);
                    }
                    found.push(None);
                }
            }
        }
        let next = |index: usize| {
            let order = found.iter().cycle().skip(index).take(found.len());
            order.flatten().next().cloned()
        };
        let copies: Option<Vec<IoBuf>> = (0..found.len()).map(next).collect();
        match (copies.filter(|copies| !copies.is_empty()), failure) {
            (Some(copies), _) => Ok(copies),
            (None, Some(source)) => Err(VdevError::Device {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
                source,
            }),
            (None, None) => Err(VdevError::Unavailable { vdev: at.vdev }),
        }
    }
}
