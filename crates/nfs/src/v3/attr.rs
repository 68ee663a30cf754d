//! Attributes on the wire: `fattr3`, `sattr3`, and weak cache consistency data (RFC 1813, section 2.6).

use crate::file_type::file_type_number;
use crate::handle::FileHandle;
use crate::xdr::{Malformed, Reader, Result, Writer};
use engine::{Attr, Change, SetAttr, SetTime, Timestamp, WccAttr};

const DONT_CHANGE: u32 = 0;
const SET_TO_SERVER_TIME: u32 = 1;
const SET_TO_CLIENT_TIME: u32 = 2;

/// Writes a time. Its seconds are unsigned 32-bit on the wire: times before 1970 and after 2106 wrap there.
fn time(w: &mut Writer, time: Timestamp) {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "nfstime3 has 32 bits"
    )]
    let seconds = time.seconds as u32;
    w.u32(seconds).u32(time.nanoseconds);
}

pub(super) fn read_time(r: &mut Reader<'_>) -> Result<Timestamp> {
    let (seconds, nanoseconds) = (i64::from(r.u32()?), r.u32()?);
    if nanoseconds >= 1_000_000_000 {
        return Err(Malformed {
            what: "nanoseconds",
        });
    }
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Writes `fattr3`, 84 bytes, of a file of the file system of `of`.
pub(super) fn fattr(w: &mut Writer, of: &FileHandle, attr: &Attr) {
    w.u32(file_type_number(attr.file_type)).u32(attr.mode);
    w.u32(u32::try_from(attr.links).unwrap_or(u32::MAX))
        .u32(attr.uid)
        .u32(attr.gid);
    w.u64(attr.size)
        .u64(attr.used)
        .u32(attr.rdev.major)
        .u32(attr.rdev.minor);
    w.u64(of.fsid()).u64(attr.id.object);
    for t in [attr.atime, attr.mtime, attr.ctime] {
        time(w, t);
    }
}

/// Writes `post_op_attr`.
pub(super) fn post_op(w: &mut Writer, of: &FileHandle, attr: Option<&Attr>) {
    w.bool(attr.is_some());
    if let Some(attr) = attr {
        fattr(w, of, attr);
    }
}

/// Writes `wcc_data`: the file before and after, so that a client sees whether it was changed by another.
pub(super) fn wcc(w: &mut Writer, of: &FileHandle, change: &Change) {
    let WccAttr { size, mtime, ctime } = change.before;
    w.bool(true).u64(size);
    time(w, mtime);
    time(w, ctime);
    post_op(w, of, Some(&change.after));
}

/// Writes `wcc_data` of a file that was not changed: nothing before, what is there now.
pub(super) fn wcc_unchanged(w: &mut Writer, of: &FileHandle, attr: Option<&Attr>) {
    w.bool(false);
    post_op(w, of, attr);
}

/// Reads `sattr3`.
pub(super) fn sattr(r: &mut Reader<'_>) -> Result<SetAttr> {
    let mode = r.option(Reader::u32)?.map(|mode| mode & 0o7777);
    let (uid, gid) = (r.option(Reader::u32)?, r.option(Reader::u32)?);
    let size = r.option(Reader::u64)?;
    let mut set_time = || -> Result<Option<SetTime>> {
        match r.u32()? {
            DONT_CHANGE => Ok(None),
            SET_TO_SERVER_TIME => Ok(Some(SetTime::Server)),
            SET_TO_CLIENT_TIME => Ok(Some(SetTime::Client(read_time(r)?))),
            _ => Err(Malformed { what: "time_how" }),
        }
    };
    let (atime, mtime) = (set_time()?, set_time()?);
    Ok(SetAttr {
        mode,
        uid,
        gid,
        size,
        atime,
        mtime,
        ..SetAttr::default()
    })
}
