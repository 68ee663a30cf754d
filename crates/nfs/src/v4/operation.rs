//! The operations of a COMPOUND as they come (RFC 7531, RFC 5662, RFC 7863, RFC 8276): decoded, nothing decided.
//!
//! Data is borrowed from the record. Every length is checked before anything is done with it; lists are bounded.

use super::bitmap::Bitmap;
use crate::xdr::{Malformed, Reader, Result, Writer};
use engine::Timestamp;

/// RFC 7530, section 2.1: NFS4_OPAQUE_LIMIT.
const OPAQUE_BYTES_MAX: usize = 1024;
/// RFC 7530, section 2.1: NFS4_FHSIZE.
pub(crate) const HANDLE_BYTES_MAX: usize = 128;
/// Longest name taken from the wire; the file system has its own, shorter limit and error.
const NAME_BYTES_MAX: usize = 4096;
/// Longest target of a symbolic link taken from the wire.
pub(crate) const PATH_BYTES_MAX: usize = 65536;
/// Attributes of one file, ACL included.
const ATTRIBUTE_BYTES_MAX: usize = 256 * 1024;
/// Longest data of a WRITE.
pub(crate) const DATA_BYTES_MAX: usize = crate::limits::TRANSFER_BYTES_MAX;
/// State ids that one TEST_STATEID asks for.
const STATE_IDS_MAX: u32 = 256;
/// Addresses of the server that a COPY is from.
const SERVERS_MAX: u32 = 32;
/// Security parameters and algorithms that are read, and not used.
const PARAMETERS_MAX: u32 = 32;
/// RFC 5531, appendix A.
const GROUPS_MAX: u32 = 16;

/// Operation numbers.
pub(crate) mod number {
    pub(crate) const ACCESS: u32 = 3;
    pub(crate) const CLOSE: u32 = 4;
    pub(crate) const COMMIT: u32 = 5;
    pub(crate) const CREATE: u32 = 6;
    pub(crate) const DELEGRETURN: u32 = 8;
    pub(crate) const GETATTR: u32 = 9;
    pub(crate) const GETFH: u32 = 10;
    pub(crate) const LINK: u32 = 11;
    pub(crate) const LOCK: u32 = 12;
    pub(crate) const LOCKT: u32 = 13;
    pub(crate) const LOCKU: u32 = 14;
    pub(crate) const LOOKUP: u32 = 15;
    pub(crate) const LOOKUPP: u32 = 16;
    pub(crate) const NVERIFY: u32 = 17;
    pub(crate) const OPEN: u32 = 18;
    pub(crate) const OPEN_CONFIRM: u32 = 20;
    pub(crate) const OPEN_DOWNGRADE: u32 = 21;
    pub(crate) const PUTFH: u32 = 22;
    pub(crate) const PUTPUBFH: u32 = 23;
    pub(crate) const PUTROOTFH: u32 = 24;
    pub(crate) const READ: u32 = 25;
    pub(crate) const READDIR: u32 = 26;
    pub(crate) const READLINK: u32 = 27;
    pub(crate) const REMOVE: u32 = 28;
    pub(crate) const RENAME: u32 = 29;
    pub(crate) const RENEW: u32 = 30;
    pub(crate) const RESTOREFH: u32 = 31;
    pub(crate) const SAVEFH: u32 = 32;
    pub(crate) const SECINFO: u32 = 33;
    pub(crate) const SETATTR: u32 = 34;
    pub(crate) const SETCLIENTID: u32 = 35;
    pub(crate) const SETCLIENTID_CONFIRM: u32 = 36;
    pub(crate) const VERIFY: u32 = 37;
    pub(crate) const WRITE: u32 = 38;
    pub(crate) const RELEASE_LOCKOWNER: u32 = 39;
    pub(crate) const BACKCHANNEL_CTL: u32 = 40;
    pub(crate) const BIND_CONN_TO_SESSION: u32 = 41;
    pub(crate) const EXCHANGE_ID: u32 = 42;
    pub(crate) const CREATE_SESSION: u32 = 43;
    pub(crate) const DESTROY_SESSION: u32 = 44;
    pub(crate) const FREE_STATEID: u32 = 45;
    pub(crate) const SECINFO_NO_NAME: u32 = 52;
    pub(crate) const SEQUENCE: u32 = 53;
    pub(crate) const TEST_STATEID: u32 = 55;
    pub(crate) const DESTROY_CLIENTID: u32 = 57;
    pub(crate) const RECLAIM_COMPLETE: u32 = 58;
    pub(crate) const ALLOCATE: u32 = 59;
    pub(crate) const COPY: u32 = 60;
    pub(crate) const DEALLOCATE: u32 = 62;
    pub(crate) const IO_ADVISE: u32 = 63;
    pub(crate) const READ_PLUS: u32 = 68;
    pub(crate) const SEEK: u32 = 69;
    pub(crate) const CLONE: u32 = 71;
    pub(crate) const GETXATTR: u32 = 72;
    pub(crate) const SETXATTR: u32 = 73;
    pub(crate) const LISTXATTRS: u32 = 74;
    pub(crate) const REMOVEXATTR: u32 = 75;
    pub(crate) const ILLEGAL: u32 = 10044;
}

/// The names of the operations by number, as the RFCs have them, small; of those that are not served, too, for what is asked is
/// counted by them. The first three numbers are of none.
#[rustfmt::skip]
pub const OPERATIONS: [&str; 76] = [
    "-", "-", "-", "access", "close", "commit",
    "create", "delegpurge", "delegreturn", "getattr", "getfh", "link",
    "lock", "lockt", "locku", "lookup", "lookupp", "nverify",
    "open", "openattr", "open_confirm", "open_downgrade", "putfh", "putpubfh",
    "putrootfh", "read", "readdir", "readlink", "remove", "rename",
    "renew", "restorefh", "savefh", "secinfo", "setattr", "setclientid",
    "setclientid_confirm", "verify", "write", "release_lockowner", "backchannel_ctl", "bind_conn_to_session",
    "exchange_id", "create_session", "destroy_session", "free_stateid", "get_dir_delegation", "getdeviceinfo",
    "getdevicelist", "layoutcommit", "layoutget", "layoutreturn", "secinfo_no_name", "sequence",
    "set_ssv", "test_stateid", "want_delegation", "destroy_clientid", "reclaim_complete", "allocate",
    "copy", "copy_notify", "deallocate", "io_advise", "layouterror", "layoutstats",
    "offload_cancel", "offload_status", "read_plus", "seek", "write_same", "clone",
    "getxattr", "setxattr", "listxattrs", "removexattr",
];

use number as n;

/// A state id (RFC 7530, section 9.1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateId {
    pub(crate) sequence: u32,
    pub(crate) other: [u8; 12],
}

/// What COPY and CLONE make of the saved file's bytes in the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) source: StateId,
    pub(crate) target: StateId,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes; 0 means to the end of the source.
    pub(crate) count: u64,
}

/// Attributes to set or to compare with, as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawAttributes<'a> {
    pub(crate) bits: Bitmap,
    pub(crate) values: &'a [u8],
}

/// An owner of opens or locks: a client's id and a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawOwner<'a> {
    pub(crate) client: u64,
    pub(crate) name: &'a [u8],
}

/// What CREATE makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CreateType<'a> {
    Symlink(&'a [u8]),
    Device {
        file_type: u32,
        major: u32,
        minor: u32,
    },
    Other(u32),
}

/// How OPEN treats a file that is not there, and one that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenHow<'a> {
    NoCreate,
    Unchecked(RawAttributes<'a>),
    Guarded(RawAttributes<'a>),
    Exclusive(u64, Option<RawAttributes<'a>>),
}

/// What OPEN opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenClaim<'a> {
    Name(&'a [u8]),
    Previous(u32),
    /// By a delegation: the name in the current directory, or the current file itself.
    DelegateCurrent(StateId, Option<&'a [u8]>),
    DelegatePrevious,
    Handle,
}

/// The arguments of OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open<'a> {
    pub(crate) sequence: u32,
    pub(crate) access: u32,
    pub(crate) deny: u32,
    pub(crate) owner: RawOwner<'a>,
    pub(crate) how: OpenHow<'a>,
    pub(crate) claim: OpenClaim<'a>,
}

/// Who locks: a lock owner for the first time with an open, or again by its state id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locker<'a> {
    New {
        open_sequence: u32,
        open: StateId,
        sequence: u32,
        owner: RawOwner<'a>,
    },
    Known {
        lock: StateId,
        sequence: u32,
    },
}

/// The arguments of LOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lock<'a> {
    pub(crate) mode: u32,
    pub(crate) reclaim: bool,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) locker: Locker<'a>,
}

/// How a client protects its state (RFC 8881, section 18.35.1, `state_protect_how4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateProtection {
    None,
    MachineCredential,
    SecretStateVerifier,
}

/// The part of a directory that READDIR asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) cookie: u64,
    pub(crate) verifier: u64,
    pub(crate) names_bytes: u32,
    pub(crate) reply_bytes: u32,
}

/// The arguments of EXCHANGE_ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExchangeId<'a> {
    pub(crate) verifier: [u8; 8],
    pub(crate) owner: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) protection: StateProtection,
}

/// Limits of one direction of a session (RFC 8881, section 18.36.1, `channel_attrs4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelLimits {
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
    pub(crate) cached_bytes: u32,
    pub(crate) operations: u32,
    pub(crate) requests: u32,
}

/// The arguments of CREATE_SESSION.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateSession {
    pub(crate) client: u64,
    pub(crate) sequence: u32,
    pub(crate) flags: u32,
    pub(crate) fore: ChannelLimits,
    pub(crate) back: ChannelLimits,
    /// How the client is called; `None` where it takes calls only in ways that this server does not know.
    pub(crate) program: Option<CallbackProgram>,
}

/// How a client is called (RFC 8881, section 18.36.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallbackProgram {
    pub(crate) number: u32,
    pub(crate) credential: CallbackCredential,
}

/// The credential that a client wants to be called with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallbackCredential {
    None,
    /// The body of AUTH_SYS.
    Sys(Vec<u8>),
}

/// The arguments of SEQUENCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) session: [u8; 16],
    pub(crate) sequence: u32,
    pub(crate) slot: u32,
    pub(crate) cache: bool,
}

/// The arguments of SETCLIENTID. The callback is not used: no delegation is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetClientId<'a> {
    pub(crate) verifier: [u8; 8],
    pub(crate) name: &'a [u8],
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Access(u32),
    Close {
        sequence: u32,
        state: StateId,
    },
    Commit {
        offset: u64,
        count: u32,
    },
    Create {
        what: CreateType<'a>,
        name: &'a [u8],
        attributes: RawAttributes<'a>,
    },
    DelegationReturn(StateId),
    GetAttributes(Bitmap),
    GetHandle,
    Link(&'a [u8]),
    Lock(Lock<'a>),
    LockTest {
        mode: u32,
        offset: u64,
        length: u64,
        owner: RawOwner<'a>,
    },
    Unlock {
        sequence: u32,
        state: StateId,
        offset: u64,
        length: u64,
    },
    Lookup(&'a [u8]),
    LookupParent,
    Verify {
        attributes: RawAttributes<'a>,
        same: bool,
    },
    Open(Open<'a>),
    OpenConfirm {
        state: StateId,
        sequence: u32,
    },
    OpenDowngrade {
        state: StateId,
        sequence: u32,
        access: u32,
        deny: u32,
    },
    PutHandle(&'a [u8]),
    PutRoot,
    Read {
        state: StateId,
        offset: u64,
        count: u32,
    },
    ReadDirectory {
        page: Page,
        bits: Bitmap,
    },
    ReadLink,
    Remove(&'a [u8]),
    Rename {
        from: &'a [u8],
        to: &'a [u8],
    },
    Renew(u64),
    RestoreHandle,
    SaveHandle,
    SecurityInfo(&'a [u8]),
    SetAttributes {
        state: StateId,
        attributes: RawAttributes<'a>,
    },
    SetClientId(SetClientId<'a>),
    SetClientIdConfirm {
        client: u64,
        confirm: u64,
    },
    Write {
        state: StateId,
        offset: u64,
        stable: u32,
        data: &'a [u8],
    },
    ReleaseLockOwner(RawOwner<'a>),
    BackChannelControl(Option<CallbackProgram>),
    BindConnection {
        session: [u8; 16],
        direction: u32,
    },
    ExchangeId(ExchangeId<'a>),
    CreateSession(CreateSession),
    DestroySession([u8; 16]),
    FreeStateId(StateId),
    SecurityInfoNoName {
        parent: bool,
    },
    Sequence(Sequence),
    TestStateIds(Vec<StateId>),
    DestroyClientId(u64),
    ReclaimComplete {
        one_fs: bool,
    },
    Allocate {
        state: StateId,
        offset: u64,
        length: u64,
    },
    Deallocate {
        state: StateId,
        offset: u64,
        length: u64,
    },
    Advise(StateId),
    ReadPlus {
        state: StateId,
        offset: u64,
        count: u32,
    },
    Seek {
        state: StateId,
        offset: u64,
        what: u32,
    },
    Copy {
        range: CopyRange,
        /// The source is a file of another server.
        from_server: bool,
    },
    Clone(CopyRange),
    GetXattr(&'a [u8]),
    SetXattr {
        option: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    ListXattrs {
        cookie: u64,
        bytes: u32,
    },
    RemoveXattr(&'a [u8]),
    /// Of the protocol, and not served; its arguments are not read.
    NotSupported,
    /// No operation of this minor version.
    Illegal,
}

/// An operation, or that its arguments do not parse; and its number, as the answer has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbered<'a> {
    pub(crate) number: u32,
    pub(crate) operation: Result<Operation<'a>>,
}

impl<'a> Numbered<'a> {
    /// Reads the next operation. After one that does not parse nothing else can be read.
    pub(crate) fn decode(r: &mut Reader<'a>, minor: u32) -> Self {
        let number = match r.u32() {
            Ok(number) => number,
            Err(malformed) => {
                return Self {
                    number: number::ILLEGAL,
                    operation: Err(malformed),
                };
            }
        };
        let operation = decode(r, number, minor);
        let illegal = operation == Ok(Operation::Illegal);
        Self {
            number: if illegal { number::ILLEGAL } else { number },
            operation,
        }
    }
}

/// Whether a minor version has an operation.
fn is_known(number: u32, minor: u32) -> bool {
    let only_minor_0 = matches!(
        number,
        n::OPEN_CONFIRM | n::RENEW | n::SETCLIENTID | n::SETCLIENTID_CONFIRM | n::RELEASE_LOCKOWNER
    );
    match minor {
        0 => (n::ACCESS..=n::RELEASE_LOCKOWNER).contains(&number),
        1 => (n::ACCESS..=n::RECLAIM_COMPLETE).contains(&number) && !only_minor_0,
        _ => (n::ACCESS..=n::REMOVEXATTR).contains(&number) && !only_minor_0,
    }
}

fn decode<'a>(r: &mut Reader<'a>, number: u32, minor: u32) -> Result<Operation<'a>> {
    if !is_known(number, minor) {
        // RFC 8881, section 17: operations of minor version 0 that were taken away are "mandatory to not implement".
        let removed = minor > 0 && is_known(number, 0);
        return Ok(if removed {
            Operation::NotSupported
        } else {
            Operation::Illegal
        });
    }
    match number {
        n::ACCESS..=n::LOOKUPP => files(r, number),
        n::NVERIFY..=n::RELEASE_LOCKOWNER => more_files(r, number),
        n::BACKCHANNEL_CTL..=n::RECLAIM_COMPLETE => sessions(r, number),
        _ => extensions(r, number),
    }
}

fn files<'a>(r: &mut Reader<'a>, number: u32) -> Result<Operation<'a>> {
    Ok(match number {
        n::ACCESS => Operation::Access(r.u32()?),
        n::CLOSE => Operation::Close {
            sequence: r.u32()?,
            state: state_id(r)?,
        },
        n::COMMIT => Operation::Commit {
            offset: r.u64()?,
            count: r.u32()?,
        },
        n::CREATE => Operation::Create {
            what: create_type(r)?,
            name: name(r)?,
            attributes: attributes(r)?,
        },
        n::DELEGRETURN => Operation::DelegationReturn(state_id(r)?),
        n::GETATTR => Operation::GetAttributes(Bitmap::read(r)?),
        n::GETFH => Operation::GetHandle,
        n::LINK => Operation::Link(name(r)?),
        n::LOCK => Operation::Lock(lock(r)?),
        n::LOCKT => Operation::LockTest {
            mode: r.u32()?,
            offset: r.u64()?,
            length: r.u64()?,
            owner: owner(r)?,
        },
        n::LOCKU => {
            r.u32()?;
            Operation::Unlock {
                sequence: r.u32()?,
                state: state_id(r)?,
                offset: r.u64()?,
                length: r.u64()?,
            }
        }
        n::LOOKUP => Operation::Lookup(name(r)?),
        n::LOOKUPP => Operation::LookupParent,
        _ => Operation::NotSupported,
    })
}

fn more_files<'a>(r: &mut Reader<'a>, number: u32) -> Result<Operation<'a>> {
    Ok(match number {
        n::NVERIFY | n::VERIFY => Operation::Verify {
            attributes: attributes(r)?,
            same: number == n::VERIFY,
        },
        n::OPEN => Operation::Open(open(r)?),
        n::OPEN_CONFIRM => Operation::OpenConfirm {
            state: state_id(r)?,
            sequence: r.u32()?,
        },
        n::OPEN_DOWNGRADE => Operation::OpenDowngrade {
            state: state_id(r)?,
            sequence: r.u32()?,
            access: r.u32()?,
            deny: r.u32()?,
        },
        n::PUTFH => Operation::PutHandle(r.opaque(HANDLE_BYTES_MAX)?),
        n::PUTPUBFH | n::PUTROOTFH => Operation::PutRoot,
        n::READ => Operation::Read {
            state: state_id(r)?,
            offset: r.u64()?,
            count: r.u32()?,
        },
        n::READDIR => Operation::ReadDirectory {
            page: Page {
                cookie: r.u64()?,
                verifier: r.u64()?,
                names_bytes: r.u32()?,
                reply_bytes: r.u32()?,
            },
            bits: Bitmap::read(r)?,
        },
        n::READLINK => Operation::ReadLink,
        n::REMOVE => Operation::Remove(name(r)?),
        n::RENAME => Operation::Rename {
            from: name(r)?,
            to: name(r)?,
        },
        n::RENEW => Operation::Renew(r.u64()?),
        n::RESTOREFH => Operation::RestoreHandle,
        n::SAVEFH => Operation::SaveHandle,
        n::SECINFO => Operation::SecurityInfo(name(r)?),
        n::SETATTR => Operation::SetAttributes {
            state: state_id(r)?,
            attributes: attributes(r)?,
        },
        n::SETCLIENTID => Operation::SetClientId(set_client_id(r)?),
        n::SETCLIENTID_CONFIRM => Operation::SetClientIdConfirm {
            client: r.u64()?,
            confirm: r.u64()?,
        },
        n::WRITE => Operation::Write {
            state: state_id(r)?,
            offset: r.u64()?,
            stable: r.u32()?,
            data: r.opaque(DATA_BYTES_MAX)?,
        },
        n::RELEASE_LOCKOWNER => Operation::ReleaseLockOwner(owner(r)?),
        _ => Operation::NotSupported,
    })
}

fn sessions<'a>(r: &mut Reader<'a>, number: u32) -> Result<Operation<'a>> {
    Ok(match number {
        n::BACKCHANNEL_CTL => Operation::BackChannelControl(callback_program(r)?),
        n::BIND_CONN_TO_SESSION => {
            let (session, direction) = (fixed(r)?, r.u32()?);
            r.bool()?;
            Operation::BindConnection { session, direction }
        }
        n::EXCHANGE_ID => Operation::ExchangeId(exchange_id(r)?),
        n::CREATE_SESSION => Operation::CreateSession(create_session(r)?),
        n::DESTROY_SESSION => Operation::DestroySession(fixed(r)?),
        n::FREE_STATEID => Operation::FreeStateId(state_id(r)?),
        n::SECINFO_NO_NAME => Operation::SecurityInfoNoName {
            parent: match r.u32()? {
                0 => false,
                1 => true,
                _ => {
                    return Err(Malformed {
                        what: "secinfo_style4",
                    });
                }
            },
        },
        n::SEQUENCE => {
            let (session, sequence, slot) = (fixed(r)?, r.u32()?, r.u32()?);
            // The highest slot in use: slots are few, and stay.
            r.u32()?;
            Operation::Sequence(Sequence {
                session,
                sequence,
                slot,
                cache: r.bool()?,
            })
        }
        n::TEST_STATEID => {
            let count = count(r, STATE_IDS_MAX)?;
            Operation::TestStateIds((0..count).map(|_| state_id(r)).collect::<Result<_>>()?)
        }
        n::DESTROY_CLIENTID => Operation::DestroyClientId(r.u64()?),
        n::RECLAIM_COMPLETE => Operation::ReclaimComplete { one_fs: r.bool()? },
        _ => Operation::NotSupported,
    })
}

fn extensions<'a>(r: &mut Reader<'a>, number: u32) -> Result<Operation<'a>> {
    Ok(match number {
        n::ALLOCATE => Operation::Allocate {
            state: state_id(r)?,
            offset: r.u64()?,
            length: r.u64()?,
        },
        n::DEALLOCATE => Operation::Deallocate {
            state: state_id(r)?,
            offset: r.u64()?,
            length: r.u64()?,
        },
        n::IO_ADVISE => {
            let state = state_id(r)?;
            r.u64()?;
            r.u64()?;
            Bitmap::read(r)?;
            Operation::Advise(state)
        }
        n::READ_PLUS => Operation::ReadPlus {
            state: state_id(r)?,
            offset: r.u64()?,
            count: r.u32()?,
        },
        n::SEEK => Operation::Seek {
            state: state_id(r)?,
            offset: r.u64()?,
            what: r.u32()?,
        },
        n::COPY => {
            let range = copy_range(r)?;
            // In order, and done when it is answered: all copies here are both.
            r.bool()?;
            r.bool()?;
            let servers = count(r, SERVERS_MAX)?;
            for _ in 0..servers {
                network_location(r)?;
            }
            Operation::Copy {
                range,
                from_server: servers > 0,
            }
        }
        n::CLONE => Operation::Clone(copy_range(r)?),
        n::GETXATTR => Operation::GetXattr(name(r)?),
        n::SETXATTR => Operation::SetXattr {
            option: r.u32()?,
            name: name(r)?,
            value: r.opaque(DATA_BYTES_MAX)?,
        },
        n::LISTXATTRS => Operation::ListXattrs {
            cookie: r.u64()?,
            bytes: r.u32()?,
        },
        n::REMOVEXATTR => Operation::RemoveXattr(name(r)?),
        _ => Operation::NotSupported,
    })
}

fn name<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    r.opaque(NAME_BYTES_MAX)
}

fn count(r: &mut Reader<'_>, limit: u32) -> Result<u32> {
    match r.u32()? {
        count if count <= limit => Ok(count),
        _ => Err(Malformed {
            what: "a list over its limit",
        }),
    }
}

fn fixed<const BYTES: usize>(r: &mut Reader<'_>) -> Result<[u8; BYTES]> {
    let bytes = r.opaque_fixed(BYTES)?;
    bytes.try_into().map_err(|_| Malformed {
        what: "opaque data",
    })
}

fn state_id(r: &mut Reader<'_>) -> Result<StateId> {
    Ok(StateId {
        sequence: r.u32()?,
        other: fixed(r)?,
    })
}

fn copy_range(r: &mut Reader<'_>) -> Result<CopyRange> {
    Ok(CopyRange {
        source: state_id(r)?,
        target: state_id(r)?,
        from: r.u64()?,
        to: r.u64()?,
        count: r.u64()?,
    })
}

/// Reads past `netloc4`.
fn network_location(r: &mut Reader<'_>) -> Result<()> {
    match r.u32()? {
        1 | 2 => r.opaque(OPAQUE_BYTES_MAX).map(|_| ()),
        3 => {
            r.opaque(OPAQUE_BYTES_MAX)?;
            r.opaque(OPAQUE_BYTES_MAX).map(|_| ())
        }
        _ => Err(Malformed {
            what: "netloc_type4",
        }),
    }
}

fn attributes<'a>(r: &mut Reader<'a>) -> Result<RawAttributes<'a>> {
    Ok(RawAttributes {
        bits: Bitmap::read(r)?,
        values: r.opaque(ATTRIBUTE_BYTES_MAX)?,
    })
}

fn owner<'a>(r: &mut Reader<'a>) -> Result<RawOwner<'a>> {
    Ok(RawOwner {
        client: r.u64()?,
        name: r.opaque(OPAQUE_BYTES_MAX)?,
    })
}

/// Reads `nfstime4`. Nanoseconds are not checked: that is an error of its own.
pub(crate) fn time(r: &mut Reader<'_>) -> Result<Timestamp> {
    Ok(Timestamp {
        seconds: r.u64()?.cast_signed(),
        nanoseconds: r.u32()?,
    })
}

fn create_type<'a>(r: &mut Reader<'a>) -> Result<CreateType<'a>> {
    Ok(match r.u32()? {
        5 => CreateType::Symlink(r.opaque(PATH_BYTES_MAX)?),
        file_type @ (3 | 4) => CreateType::Device {
            file_type,
            major: r.u32()?,
            minor: r.u32()?,
        },
        other => CreateType::Other(other),
    })
}

fn open<'a>(r: &mut Reader<'a>) -> Result<Open<'a>> {
    let (sequence, access, deny, owner) = (r.u32()?, r.u32()?, r.u32()?, owner(r)?);
    let how = match r.u32()? {
        0 => OpenHow::NoCreate,
        1 => match r.u32()? {
            0 => OpenHow::Unchecked(attributes(r)?),
            1 => OpenHow::Guarded(attributes(r)?),
            2 => OpenHow::Exclusive(r.u64()?, None),
            3 => OpenHow::Exclusive(r.u64()?, Some(attributes(r)?)),
            _ => {
                return Err(Malformed {
                    what: "createmode4",
                });
            }
        },
        _ => return Err(Malformed { what: "opentype4" }),
    };
    let claim = match r.u32()? {
        0 => OpenClaim::Name(name(r)?),
        1 => OpenClaim::Previous(r.u32()?),
        2 => OpenClaim::DelegateCurrent(state_id(r)?, Some(name(r)?)),
        3 => {
            name(r)?;
            OpenClaim::DelegatePrevious
        }
        4 => OpenClaim::Handle,
        5 => OpenClaim::DelegateCurrent(state_id(r)?, None),
        6 => OpenClaim::DelegatePrevious,
        _ => {
            return Err(Malformed {
                what: "open_claim_type4",
            });
        }
    };
    Ok(Open {
        sequence,
        access,
        deny,
        owner,
        how,
        claim,
    })
}

fn lock<'a>(r: &mut Reader<'a>) -> Result<Lock<'a>> {
    let (mode, reclaim, offset, length) = (r.u32()?, r.bool()?, r.u64()?, r.u64()?);
    let locker = if r.bool()? {
        Locker::New {
            open_sequence: r.u32()?,
            open: state_id(r)?,
            sequence: r.u32()?,
            owner: owner(r)?,
        }
    } else {
        Locker::Known {
            lock: state_id(r)?,
            sequence: r.u32()?,
        }
    };
    Ok(Lock {
        mode,
        reclaim,
        offset,
        length,
        locker,
    })
}

fn set_client_id<'a>(r: &mut Reader<'a>) -> Result<SetClientId<'a>> {
    let (verifier, name) = (fixed(r)?, r.opaque(OPAQUE_BYTES_MAX)?);
    r.u32()?;
    r.opaque(OPAQUE_BYTES_MAX)?;
    r.opaque(OPAQUE_BYTES_MAX)?;
    r.u32()?;
    Ok(SetClientId { verifier, name })
}

fn exchange_id<'a>(r: &mut Reader<'a>) -> Result<ExchangeId<'a>> {
    let (verifier, owner, flags) = (fixed(r)?, r.opaque(OPAQUE_BYTES_MAX)?, r.u32()?);
    let operations = |r: &mut Reader<'_>| -> Result<()> {
        Bitmap::read(r)?;
        Bitmap::read(r)?;
        Ok(())
    };
    let protection = match r.u32()? {
        0 => StateProtection::None,
        1 => {
            operations(r)?;
            StateProtection::MachineCredential
        }
        2 => {
            operations(r)?;
            for _algorithms in ["hash", "encryption"] {
                for _ in 0..count(r, PARAMETERS_MAX)? {
                    r.opaque(OPAQUE_BYTES_MAX)?;
                }
            }
            r.u64()?;
            StateProtection::SecretStateVerifier
        }
        _ => {
            return Err(Malformed {
                what: "state_protect_how4",
            });
        }
    };
    for _ in 0..count(r, 1)? {
        r.opaque(OPAQUE_BYTES_MAX)?;
        r.opaque(OPAQUE_BYTES_MAX)?;
        time(r)?;
    }
    Ok(ExchangeId {
        verifier,
        owner,
        flags,
        protection,
    })
}

fn channel_limits(r: &mut Reader<'_>) -> Result<ChannelLimits> {
    // Padding between header and data is of RDMA.
    r.u32()?;
    let limits = ChannelLimits {
        request_bytes: r.u32()?,
        response_bytes: r.u32()?,
        cached_bytes: r.u32()?,
        operations: r.u32()?,
        requests: r.u32()?,
    };
    for _ in 0..count(r, 1)? {
        r.u32()?;
    }
    Ok(limits)
}

fn create_session(r: &mut Reader<'_>) -> Result<CreateSession> {
    Ok(CreateSession {
        client: r.u64()?,
        sequence: r.u32()?,
        flags: r.u32()?,
        fore: channel_limits(r)?,
        back: channel_limits(r)?,
        program: callback_program(r)?,
    })
}

/// Reads a program number and `callback_sec_parms4<>`: the first that is not of RPCSEC_GSS counts.
fn callback_program(r: &mut Reader<'_>) -> Result<Option<CallbackProgram>> {
    let number = r.u32()?;
    let mut first = None;
    for _ in 0..count(r, PARAMETERS_MAX)? {
        match r.u32()? {
            0 => {
                first.get_or_insert(CallbackCredential::None);
            }
            1 => {
                let mut w = Writer::with_capacity(64);
                w.u32(r.u32()?).opaque(r.opaque(255)?).u64(r.u64()?);
                let groups = count(r, GROUPS_MAX)?;
                w.u32(groups);
                for _ in 0..groups {
                    w.u32(r.u32()?);
                }
                first.get_or_insert(CallbackCredential::Sys(w.into_bytes()));
            }
            6 => {
                r.u32()?;
                r.opaque(OPAQUE_BYTES_MAX)?;
                r.opaque(OPAQUE_BYTES_MAX)?;
            }
            _ => {
                return Err(Malformed {
                    what: "callback_sec_parms4",
                });
            }
        }
    }
    Ok(first.map(|credential| CallbackProgram { number, credential }))
}
