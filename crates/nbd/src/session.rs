//! The transmission phase: requests of a chosen export and their answers.

use engine::{IoBuf, Stability, VolumeError, VolumeHandle};

use crate::exports::Export;
use crate::negotiation::Terms;
use crate::request::{PAYLOAD_BYTES_MAX, Request};
use crate::wire::{self, BASE_ALLOCATION_ID, chunk, command, errno, flag, status};

/// Stretches in one answer about allocation.
const EXTENTS_MAX: usize = 1024;
/// Bytes read at a time for the command that loads a range into the cache.
const CACHE_STEP_BYTES: u64 = 1 << 20;

/// What requests need of their connection. Several may be under way at a time.
pub struct Session {
    volume: VolumeHandle,
    read_only: bool,
    structured: bool,
    allocation: bool,
}

/// The answer to a request: a header, and the bytes after it.
#[derive(Debug)]
pub struct Reply {
    /// What is sent first.
    pub header: Vec<u8>,
    /// What follows, without having been copied.
    pub pieces: Vec<IoBuf>,
}

/// What came of a request.
enum Done {
    Nothing,
    Data(Vec<IoBuf>),
    /// Lengths, and their bits of `base:allocation`.
    Status(Vec<(u32, u32)>),
}

impl Session {
    /// Begins the transmission phase of a connection that has chosen an export.
    #[must_use]
    pub fn new(export: Export<VolumeHandle>, terms: &Terms) -> Self {
        Self {
            volume: export.volume,
            read_only: export.read_only,
            structured: terms.structured,
            allocation: terms.has_allocation(),
        }
    }

    /// Does a request and returns its answer. `data` is what followed the header, [`Request::data_bytes`] long.
    ///
    /// A write with FUA is on stable storage when this returns; one without is with the next flush of any session of the volume.
    pub async fn answer(&self, request: Request, data: IoBuf) -> Reply {
        assert_eq!(Some(data.len()), request.data_bytes(), "a request's data");
        let done = self.run(request, data).await;
        let mut pieces = Vec::new();
        let cookie = request.cookie;
        let header = match done {
            Ok(Done::Nothing) if self.structured => wire::last_chunk(cookie, chunk::NONE, 0),
            Ok(Done::Nothing) => wire::simple_reply(cookie, 0),
            Ok(Done::Data(read)) => {
                pieces = read;
                if self.structured {
                    let length = request.length.saturating_add(8);
                    let mut header = wire::last_chunk(cookie, chunk::OFFSET_DATA, length);
                    header.extend_from_slice(&request.offset.to_be_bytes());
                    header
                } else {
                    wire::simple_reply(cookie, 0)
                }
            }
            Ok(Done::Status(extents)) => {
                let bytes = 4 + 8 * u32::try_from(extents.len()).unwrap_or(0);
                let mut header = wire::last_chunk(cookie, chunk::BLOCK_STATUS, bytes);
                header.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
                for (len, bits) in extents {
                    header.extend_from_slice(&len.to_be_bytes());
                    header.extend_from_slice(&bits.to_be_bytes());
                }
                header
            }
            Err(error) if self.structured => {
                let mut header = wire::last_chunk(cookie, chunk::ERROR, 6);
                header.extend_from_slice(&error.to_be_bytes());
                header.extend_from_slice(&0_u16.to_be_bytes());
                header
            }
            Err(error) => wire::simple_reply(cookie, error),
        };
        Reply { header, pieces }
    }

    async fn run(&self, request: Request, data: IoBuf) -> Result<Done, u32> {
        let volume = &self.volume;
        let (offset, len) = (request.offset, u64::from(request.length));
        let stability = if request.flags & flag::FUA != 0 {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        let changes = matches!(
            request.command,
            command::WRITE | command::TRIM | command::WRITE_ZEROES
        );
        if changes && self.read_only {
            return Err(errno::EPERM);
        }
        let done = match request.command {
            command::READ if request.length > PAYLOAD_BYTES_MAX => return Err(errno::EOVERFLOW),
            command::READ => {
                let len = usize::try_from(request.length).map_err(|_| errno::EOVERFLOW)?;
                return volume
                    .read(offset, len)
                    .await
                    .map(Done::Data)
                    .map_err(number);
            }
            command::WRITE => volume.write(offset, data, stability).await,
            command::FLUSH => volume.flush().await,
            command::TRIM => volume.discard(offset, len, stability).await,
            command::WRITE_ZEROES => volume.zero(offset, len, stability).await,
            command::CACHE => self.load(offset, len).await,
            command::BLOCK_STATUS if self.allocation && len > 0 => {
                return self.block_status(request).await.map_err(number);
            }
            command::BLOCK_STATUS => return Err(errno::EINVAL),
            _ => return Err(errno::ENOTSUP),
        };
        match done {
            Ok(()) => Ok(Done::Nothing),
            // A range past the end: reads are invalid, writes have no space, as the protocol wants it.
            Err(VolumeError::OutOfRange) if changes && request.command != command::TRIM => {
                Err(errno::ENOSPC)
            }
            Err(error) => Err(number(error)),
        }
    }

    /// Has a range in memory: reading it puts it there.
    async fn load(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let mut at = 0;
        while at < len {
            let step = (len - at).min(CACHE_STEP_BYTES);
            let bytes = usize::try_from(step).map_err(|_| VolumeError::OutOfRange)?;
            self.volume.read(offset + at, bytes).await?;
            at += step;
        }
        Ok(())
    }

    async fn block_status(&self, request: Request) -> Result<Done, VolumeError> {
        let count_max = if request.flags & flag::REQ_ONE != 0 {
            1
        } else {
            EXTENTS_MAX
        };
        let (offset, len) = (request.offset, u64::from(request.length));
        let map = self.volume.allocation(offset, len, count_max).await?;
        let extents = map.iter().map(|part| {
            let bits = if part.data {
                0
            } else {
                status::HOLE | status::ZERO
            };
            (u32::try_from(part.len).unwrap_or(u32::MAX), bits)
        });
        Ok(Done::Status(extents.collect()))
    }
}

fn number(error: VolumeError) -> u32 {
    match error {
        VolumeError::OutOfRange | VolumeError::BadSize | VolumeError::Miscompare(_) => {
            errno::EINVAL
        }
        VolumeError::Io | VolumeError::Corrupt(_) => errno::EIO,
        VolumeError::NoSpace => errno::ENOSPC,
        VolumeError::ReadOnly | VolumeError::KeyNotLoaded => errno::EPERM,
        VolumeError::Gone | VolumeError::Busy => errno::ESHUTDOWN,
        VolumeError::NotSupported => errno::ENOTSUP,
    }
}
