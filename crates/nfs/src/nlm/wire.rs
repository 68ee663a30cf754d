//! What NLM version 4 says: arguments and results (XNFS, chapter 10; RFC 1813, appendix II has the 64-bit forms).

use crate::xdr::{Malformed, Reader, Result, Writer};
use engine::{ByteRange, HeldLock, LockMode, LockOwner};

/// Bytes of a name, a cookie, an owner (XNFS: LM_MAXSTRLEN, MAXNETOBJ_SZ).
const OBJECT_BYTES_MAX: usize = 1024;
/// Bytes of a file handle (RFC 1813, NFS3_FHSIZE).
const HANDLE_BYTES_MAX: usize = 64;

/// RFC 1813, appendix II: nlm4_stats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Stat {
    Granted = 0,
    Denied = 1,
    DeniedNoLocks = 2,
    Blocked = 3,
    DeniedGracePeriod = 4,
    Deadlock = 5,
    ReadOnly = 6,
    Stale = 7,
    TooBig = 8,
    Failed = 9,
}

/// nlm4_lock: which lock of whom.
#[derive(Debug, Clone)]
pub(super) struct Lock<'a> {
    pub(super) caller: &'a [u8],
    pub(super) handle: &'a [u8],
    pub(super) owner: &'a [u8],
    pub(super) process: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl<'a> Lock<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self> {
        Ok(Self {
            caller: reader.opaque(OBJECT_BYTES_MAX)?,
            handle: reader.opaque(HANDLE_BYTES_MAX)?,
            owner: reader.opaque(OBJECT_BYTES_MAX)?,
            process: reader.u32()?,
            offset: reader.u64()?,
            length: reader.u64()?,
        })
    }

    /// Writes it as the client sent it: a client finds what it waits for by this.
    pub(super) fn encode(&self, w: &mut Writer) {
        w.opaque(self.caller)
            .opaque(self.handle)
            .opaque(self.owner)
            .u32(self.process)
            .u64(self.offset)
            .u64(self.length);
    }

    /// Returns the bytes that are locked: length 0 is "to the end".
    ///
    /// # Errors
    /// [`Stat::TooBig`]: the end is no offset.
    pub(super) fn range(&self) -> std::result::Result<ByteRange, Stat> {
        let last = match self.length {
            0 => u64::MAX,
            length => self.offset.checked_add(length - 1).ok_or(Stat::TooBig)?,
        };
        ByteRange::new(self.offset, last).ok_or(Stat::TooBig)
    }
}

/// Arguments of TEST, LOCK, CANCEL, UNLOCK and NM_LOCK; what a procedure does not have is false.
#[derive(Debug, Clone)]
pub(super) struct LockCall<'a> {
    pub(super) cookie: &'a [u8],
    /// The client waits if need be.
    pub(super) block: bool,
    pub(super) exclusive: bool,
    pub(super) lock: Lock<'a>,
    /// It was held before the server's restart.
    pub(super) reclaim: bool,
}

impl<'a> LockCall<'a> {
    pub(super) fn decode_test(reader: &mut Reader<'a>) -> Result<Self> {
        let (cookie, exclusive) = (reader.opaque(OBJECT_BYTES_MAX)?, reader.bool()?);
        Ok(Self {
            cookie,
            block: false,
            exclusive,
            lock: Lock::decode(reader)?,
            reclaim: false,
        })
    }

    pub(super) fn decode_lock(reader: &mut Reader<'a>) -> Result<Self> {
        let call = Self::decode_cancel(reader)?;
        let reclaim = reader.bool()?;
        let _state = reader.u32()?;
        Ok(Self { reclaim, ..call })
    }

    pub(super) fn decode_cancel(reader: &mut Reader<'a>) -> Result<Self> {
        let cookie = reader.opaque(OBJECT_BYTES_MAX)?;
        let (block, exclusive) = (reader.bool()?, reader.bool()?);
        Ok(Self {
            cookie,
            block,
            exclusive,
            lock: Lock::decode(reader)?,
            reclaim: false,
        })
    }

    pub(super) fn decode_unlock(reader: &mut Reader<'a>) -> Result<Self> {
        Ok(Self {
            cookie: reader.opaque(OBJECT_BYTES_MAX)?,
            block: false,
            exclusive: false,
            lock: Lock::decode(reader)?,
            reclaim: false,
        })
    }

    pub(super) fn mode(&self) -> LockMode {
        if self.exclusive {
            LockMode::Exclusive
        } else {
            LockMode::Shared
        }
    }
}

/// Arguments of SHARE and UNSHARE.
#[derive(Debug, Clone)]
pub(super) struct ShareCall<'a> {
    pub(super) cookie: &'a [u8],
    pub(super) caller: &'a [u8],
    pub(super) handle: &'a [u8],
    pub(super) owner: &'a [u8],
    /// Bits 1 (reading) and 2 (writing): what is denied others (fsh4_mode), and what is done (fsh4_access).
    pub(super) deny: u32,
    pub(super) access: u32,
    pub(super) reclaim: bool,
}

impl<'a> ShareCall<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self> {
        let call = Self {
            cookie: reader.opaque(OBJECT_BYTES_MAX)?,
            caller: reader.opaque(OBJECT_BYTES_MAX)?,
            handle: reader.opaque(HANDLE_BYTES_MAX)?,
            owner: reader.opaque(OBJECT_BYTES_MAX)?,
            deny: reader.u32()?,
            access: reader.u32()?,
            reclaim: reader.bool()?,
        };
        if call.deny > 3 || call.access > 3 {
            return Err(Malformed { what: "share mode" });
        }
        Ok(call)
    }
}

/// Reads the name of who was restarted (NLM's FREE_ALL, NSM's NOTIFY); its state number is behind it.
pub(crate) fn decode_name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let name = reader.opaque(OBJECT_BYTES_MAX)?;
    let _state = reader.u32()?;
    Ok(name)
}

/// Writes an `nlm4_holder`. What other protocols hold has no process that the client would know.
pub(super) fn encode_holder(held: &HeldLock<LockOwner>, w: &mut Writer) {
    let process = match held.owner {
        LockOwner::Nlm { process, .. } => process,
        LockOwner::Nfs4(_) | LockOwner::Mount { .. } => 0,
    };
    let length = match held.range.last() {
        u64::MAX => 0,
        last => last - held.range.first() + 1,
    };
    w.bool(held.mode == LockMode::Exclusive)
        .u32(process)
        .opaque(b"")
        .u64(held.range.first())
        .u64(length);
}
