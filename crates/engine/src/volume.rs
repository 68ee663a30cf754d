//! Block volumes, callable from any thread, and how the pool's thread makes and resizes them.

use std::future::Future;

use dmu::Rewritten;
use dsl::DslError;
use zvol::{Redundancy, Volume, VolumeError, VolumeResult};

use crate::invalidation::Watch;
use crate::pool_mailbox::{PoolContext, PoolMailbox, Request};
use crate::property::{DatasetKind, Property, PropertyError, Setting, Value, nice_bytes};
use crate::statistics::Client;
use crate::{Allocation, EngineError, IoBuf, Stability};

/// A volume: a dataset of a pool, opened on the pool's thread at the first use.
///
/// The handle names the dataset by its object number and guid, so that it survives renames. After the dataset was destroyed
/// every call answers [`VolumeError::Gone`]; while its pool is not imported, [`VolumeError::Busy`] (try again later).
#[derive(Clone, Debug)]
pub struct VolumeHandle {
    mailbox: PoolMailbox,
    pool: u64,
    dataset: u64,
    guid: u64,
    client: Client,
}

/// What is known of a volume now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Full name of the dataset.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Unit of allocation in bytes.
    pub block_size: u64,
    /// Changes are refused.
    pub read_only: bool,
    /// Bytes reachable from it.
    pub referenced: u64,
    /// Bytes that may still be written before quota or pool refuse.
    pub available: u64,
}

/// What a volume will be created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlan {
    /// Size in bytes, a multiple of the block size.
    pub size: u64,
    /// Block size in bytes.
    pub block_size: u64,
    /// Reservation in bytes, unless the volume is sparse or was given one.
    pub reservation: Option<u64>,
}

impl VolumeHandle {
    pub(crate) fn new(mailbox: PoolMailbox, pool: u64, dataset: u64, guid: u64) -> Self {
        Self {
            mailbox,
            pool,
            dataset,
            guid,
            client: Client::Local,
        }
    }

    /// Returns a handle whose requests are counted as this client's.
    #[must_use]
    pub fn for_client(&self, client: Client) -> Self {
        Self {
            client,
            ..self.clone()
        }
    }

    /// Begins to watch the volume: [`crate::Invalidation::Everything`] comes when a rollback or a receive took the place of its contents,
    /// nothing for single writes.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.mailbox.watches().add(self.guid).0
    }

    /// Returns the dataset's guid, which no other dataset of any pool shares.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Returns the guid of the pool.
    #[must_use]
    pub fn pool(&self) -> u64 {
        self.pool
    }

    async fn call<T, F, Answer>(&self, work: F) -> VolumeResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Volume) -> Answer + Send + 'static,
        Answer: Future<Output = VolumeResult<T>> + 'static,
    {
        let (dataset, guid, client) = (self.dataset, self.guid, self.client);
        let answer = self
            .mailbox
            .run(move |context| async move {
                let lease = match context.dataset_in_use(dataset, guid).await {
                    Ok(lease) => lease,
                    Err(error) => return Ok(Err(as_volume_error(&error))),
                };
                match lease.volume() {
                    Ok(volume) => {
                        let work = work(volume.clone());
                        Ok(lease.timed(&context.handle, client, work).await)
                    }
                    Err(error) => Ok(Err(error)),
                }
            })
            .await;
        answer.unwrap_or_else(|error| Err(as_volume_error(&error)))
    }

    /// Returns what is known of the volume.
    ///
    /// # Errors
    /// [`VolumeError::Gone`], [`VolumeError::Busy`]; [`VolumeError::NotSupported`] when the dataset is no volume.
    pub fn info(&self) -> Request<'_, VolumeResult<VolumeInfo>> {
        Box::pin(async move {
            self.call(|volume| async move {
                let space = volume.dataset().space();
                Ok(VolumeInfo {
                    name: volume.dataset().name(),
                    size: volume.size(),
                    block_size: volume.block_size(),
                    read_only: volume.is_read_only(),
                    referenced: space.referenced,
                    available: space.available,
                })
            })
            .await
        })
    }

    /// Reads bytes; the pieces are shared with the cache and together cover exactly the range.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`]; [`VolumeError::Io`] when no good copy of a block is left.
    pub fn read(&self, offset: u64, len: usize) -> Request<'_, VolumeResult<Vec<IoBuf>>> {
        Box::pin(async move {
            self.call(move |volume| async move { volume.read(offset, len).await })
                .await
        })
    }

    /// Writes bytes, and answers when `stability` is reached.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`], [`VolumeError::ReadOnly`], [`VolumeError::NoSpace`], [`VolumeError::Io`].
    pub fn write(
        &self,
        offset: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Request<'_, VolumeResult<()>> {
        self.write_pieces(offset, vec![data], stability)
    }

    /// As [`write`](Self::write), of data in pieces that follow each other. Those that are whole blocks of the volume are kept
    /// without a copy.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_pieces(
        &self,
        offset: u64,
        pieces: Vec<IoBuf>,
        stability: Stability,
    ) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            let stability = lowered(stability);
            self.call(
                move |volume| async move { volume.write_pieces(offset, pieces, stability).await },
            )
            .await
        })
    }

    /// Writes bytes so that readers and power cuts leave all of them or none; on stable storage when it returns. At most
    /// [`VOLUME_CHUNK_BYTES`](crate::VOLUME_CHUNK_BYTES).
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_atomic(&self, offset: u64, data: IoBuf) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            self.call(move |volume| async move { volume.write_atomic(offset, data).await })
                .await
        })
    }

    /// Writes bytes if those there equal `expected`, atomically.
    ///
    /// # Errors
    /// [`VolumeError::Miscompare`]; those of [`write`](Self::write).
    pub fn compare_and_write(
        &self,
        offset: u64,
        expected: IoBuf,
        data: IoBuf,
        stability: Stability,
    ) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            let stability = lowered(stability);
            self.call(move |volume| async move {
                volume
                    .compare_and_write(offset, &expected, data, stability)
                    .await
            })
            .await
        })
    }

    /// Makes a range read as zeros; whole blocks give their space back.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn zero(
        &self,
        offset: u64,
        len: u64,
        stability: Stability,
    ) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            let stability = lowered(stability);
            self.call(move |volume| async move { volume.zero(offset, len, stability).await })
                .await
        })
    }

    /// Gives back the space of the whole blocks within a range; the rest keeps its bytes.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn discard(
        &self,
        offset: u64,
        len: u64,
        stability: Stability,
    ) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            let stability = lowered(stability);
            self.call(move |volume| async move { volume.discard(offset, len, stability).await })
                .await
        })
    }

    /// Brings everything written so far onto stable storage.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&self) -> Request<'_, VolumeResult<()>> {
        Box::pin(async move {
            self.call(|volume| async move { volume.flush().await })
                .await
        })
    }

    /// Writes blocks anew as they are, at most 1 MiB or one longer block, from the first at or after `offset` that is no hole; says
    /// where to go on. Durable with the transaction group; until then the blocks of before are.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn rewrite(&self, offset: u64, len: u64) -> Request<'_, VolumeResult<Rewritten>> {
        Box::pin(async move {
            self.call(move |volume| async move { volume.rewrite(offset, len).await })
                .await
        })
    }

    /// Tells where data and holes are, from `offset` on, at most `len` bytes and `max` stretches.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`], those of reading.
    pub fn allocation(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Request<'_, VolumeResult<Vec<Allocation>>> {
        Box::pin(async move {
            self.call(move |volume| async move { volume.allocation(offset, len, max).await })
                .await
        })
    }

    /// Copies a range of a volume of the same pool into this one, without a byte leaving the pool's thread.
    ///
    /// # Errors
    /// [`VolumeError::NotSupported`] for a volume of another pool; those of reading and writing.
    pub fn copy_from<'a>(
        &'a self,
        source: &'a Self,
        from: u64,
        to: u64,
        len: u64,
        stability: Stability,
    ) -> Request<'a, VolumeResult<()>> {
        Box::pin(async move {
            if self.pool != source.pool {
                return Err(VolumeError::NotSupported);
            }
            let stability = lowered(stability);
            let (ours, theirs) = ((self.dataset, self.guid), (source.dataset, source.guid));
            let answer = self
                .mailbox
                .run(move |context| async move {
                    let leases = async {
                        let ours = context.dataset_in_use(ours.0, ours.1).await?;
                        let theirs = context.dataset_in_use(theirs.0, theirs.1).await?;
                        Ok::<_, EngineError>((ours, theirs))
                    };
                    let (ours, theirs) = match leases.await {
                        Ok(leases) => leases,
                        Err(error) => return Ok(Err(as_volume_error(&error))),
                    };
                    let (target, source) = match (ours.volume(), theirs.volume()) {
                        (Ok(target), Ok(source)) => (target, source),
                        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
                    };
                    Ok(target.copy_from(source, from, to, len, stability).await)
                })
                .await;
            answer.unwrap_or_else(|error| Err(as_volume_error(&error)))
        })
    }
}

fn lowered(stability: Stability) -> zvol::Stability {
    match stability {
        Stability::Unstable => zvol::Stability::Unstable,
        Stability::DataSync | Stability::FileSync => zvol::Stability::Stable,
    }
}

fn as_volume_error(error: &EngineError) -> VolumeError {
    match error {
        EngineError::Volume(error) => *error,
        EngineError::DatasetNotFound(_) => VolumeError::Gone,
        EngineError::WrongKind(_) => VolumeError::NotSupported,
        EngineError::KeyNotLoaded(_) => VolumeError::KeyNotLoaded,
        EngineError::PoolClosed | EngineError::Busy(_) => VolumeError::Busy,
        _ => VolumeError::Io,
    }
}

/// Size and block size of a volume to be created, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeShape {
    size: u64,
    block_size: u32,
}

impl VolumeShape {
    /// Returns what fills the new dataset.
    pub(crate) fn filler(
        self,
    ) -> impl AsyncFnOnce(&dmu::Objset, &dmu::Tx, &[Setting]) -> dsl::Result<()> + 'static {
        async move |objset: &dmu::Objset, tx: &dmu::Tx, _: &[Setting]| {
            zvol::create(objset, tx, self.size, self.block_size)
                .await
                .map_err(|error| DslError::Init(error.to_string()))
        }
    }
}

/// A change of a volume's size, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize {
    pub(crate) old: u64,
    pub(crate) size: u64,
}

pub(crate) fn number(settings: &[Setting], wanted: Property) -> Option<u64> {
    settings.iter().find_map(|setting| match setting {
        Setting::Native(property, Value::Number(number)) if *property == wanted => Some(*number),
        _ => None,
    })
}

/// Replaces `refreservation=auto`, which is stored as the greatest number.
fn resolve_auto(settings: &mut [Setting], auto: u64) {
    for setting in settings {
        if let Setting::Native(Property::RefReservation, value) = setting
            && *value == Value::Number(u64::MAX)
        {
            *value = Value::Number(auto);
        }
    }
}

impl PoolContext {
    /// The layouts of the pool's top-level vdevs.
    fn redundancy(&self) -> Vec<Redundancy> {
        let status = self.pool.status();
        let tops = status.root.children.iter().filter(|top| !top.is_log);
        tops.map(|top| Redundancy {
            ashift: u32::try_from(top.ashift).unwrap_or(12).clamp(9, 16),
            parity: top
                .name
                .strip_prefix("raidz")
                .and_then(|rest| rest.get(..1)?.parse().ok())
                .unwrap_or(0),
            width: top.children.len() as u64,
        })
        .collect()
    }

    pub(crate) async fn plan_volume(
        &self,
        size: u64,
        sparse: bool,
        typed: &[(String, String)],
    ) -> Result<VolumePlan, EngineError> {
        let settings = self.settings(typed, DatasetKind::Volume, true)?;
        let vdevs = self.redundancy();
        let block_size = number(&settings, Property::VolBlockSize)
            .unwrap_or_else(|| zvol::block_size_for(&vdevs));
        let copies = number(&settings, Property::Copies).unwrap_or(1);
        let size = size
            .checked_next_multiple_of(block_size)
            .ok_or(VolumeError::BadSize)?;
        let given = number(&settings, Property::RefReservation).is_some();
        let reservation =
            (!sparse && !given).then(|| zvol::reservation_for(size, block_size, copies, &vdevs));
        Ok(VolumePlan {
            size,
            block_size,
            reservation,
        })
    }

    /// Checks size and block size of a volume to be created.
    pub(crate) async fn volume_shape(
        &self,
        settings: &mut [Setting],
    ) -> Result<VolumeShape, EngineError> {
        let refused = |why: &str| EngineError::Dataset(why.to_owned());
        let size =
            number(settings, Property::VolSize).ok_or_else(|| refused("missing volume size"))?;
        let block_size =
            number(settings, Property::VolBlockSize).unwrap_or(zvol::BLOCK_SIZE_DEFAULT);
        if size == 0 {
            return Err(refused("volume size cannot be zero"));
        }
        zvol::check_size(size, block_size)?;
        let copies = number(settings, Property::Copies).unwrap_or(1);
        let auto = zvol::reservation_for(size, block_size, copies, &self.redundancy());
        resolve_auto(settings, auto);
        Ok(VolumeShape {
            size,
            block_size: u32::try_from(block_size).map_err(|_| VolumeError::BadSize)?,
        })
    }

    /// Prepares settings of a volume that exists, or of a clone of the snapshot `dataset`: takes out a change of its size, and adds or
    /// replaces the reservation that goes with it. OpenZFS: lib/libzfs/libzfs_dataset.c, `zfs_add_synthetic_resv` and `zfs_fix_auto_resv`.
    pub(crate) async fn volume_settings(
        &self,
        dataset: &str,
        settings: &mut Vec<Setting>,
    ) -> Result<Option<Resize>, EngineError> {
        let wanted = number(settings, Property::VolSize);
        let auto = number(settings, Property::RefReservation) == Some(u64::MAX);
        if wanted.is_none() && !auto {
            return Ok(None);
        }
        let hierarchy = self.pool.hierarchy();
        let mut known = hierarchy.properties(dataset).await?.properties;
        if let Some((head, _)) = dataset.split_once('@') {
            // A snapshot has a size of its own, and the block size of its volume.
            known.extend(hierarchy.properties(head).await?.properties);
        }
        let now = |wanted: Property| {
            let entry = known.iter().find(|entry| entry.property == Some(wanted));
            entry.and_then(|entry| entry.value.number()).unwrap_or(0)
        };
        let (old, block_size) = (now(Property::VolSize), now(Property::VolBlockSize).max(512));
        let vdevs = self.redundancy();
        // The number of copies does not enter: the property may have changed since the blocks were written.
        let reservation = |size| zvol::reservation_for(size, block_size, 1, &vdevs);
        let size = wanted.unwrap_or(old);
        if !size.is_multiple_of(block_size) {
            return Err(PropertyError::VolumeMultiple {
                property: "volsize",
                block: nice_bytes(block_size),
            }
            .into());
        }
        if size == 0 {
            return Err(PropertyError::Zero("volsize".to_owned()).into());
        }
        zvol::check_size(size, block_size)?;
        resolve_auto(settings, reservation(size));
        settings.retain(|s| !matches!(s, Setting::Native(Property::VolSize, _)));
        let untouched = number(settings, Property::RefReservation).is_none();
        if wanted.is_some() && untouched && now(Property::RefReservation) == reservation(old) {
            let value = Value::Number(reservation(size));
            settings.push(Setting::Native(Property::RefReservation, value));
        }
        Ok(wanted.map(|size| Resize { old, size }))
    }

    pub(crate) async fn resize_volume(
        &self,
        info: &dsl::DatasetInfo,
        size: u64,
    ) -> Result<(), EngineError> {
        let lease = self.dataset_in_use(info.object.0, info.guid.0).await?;
        let resized = lease.volume()?.resize(size).await;
        // The size is stored in the volume, not with its properties.
        self.pool.hierarchy().property_changed(&info.name);
        Ok(resized?)
    }
}
