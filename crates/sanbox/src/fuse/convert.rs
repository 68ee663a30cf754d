//! Between FUSE's words and the engine's.

use engine::{Attr, Cred, DeviceNumber, FileType, FsError, SetTime, Timestamp};
use fuser::{Errno, FileAttr, INodeNo, Request, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns attributes as the kernel wants them, for the inode `number`.
pub(super) fn attributes(number: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: attr.size,
        blocks: attr.used.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: kind(attr.file_type),
        perm: u16::try_from(attr.mode & 0o7777).expect("twelve bits"),
        nlink: u32::try_from(attr.links).unwrap_or(u32::MAX),
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev),
        blksize: attr.block_size,
        flags: 0,
    }
}

pub(super) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Character => fuser::FileType::CharDevice,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Block => fuser::FileType::BlockDevice,
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
    }
}

pub(super) fn errno(error: FsError) -> Errno {
    Errno::from_i32(error.errno())
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|t| t.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(error) => {
            // Nanoseconds count upwards before 1970, too.
            let before = error.duration();
            let borrowed = u64::from(before.subsec_nanos() > 0);
            let seconds = i64::try_from(before.as_secs() + borrowed).unwrap_or(i64::MAX);
            Timestamp {
                seconds: -seconds,
                nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
            }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::SpecificTime(time) => SetTime::Client(timestamp(time)),
        TimeOrNow::Now => SetTime::Server,
    }
}

/// Linux's 32-bit device numbers: minor bits 0-7, major 12 bits, the rest of the minor (`new_encode_dev`).
fn encode_device(device: DeviceNumber) -> u32 {
    (device.minor & 0xff) | (device.major & 0xfff) << 8 | (device.minor & 0xf_ff00) << 12
}

pub(super) fn decode_device(device: u32) -> DeviceNumber {
    DeviceNumber {
        major: (device >> 8) & 0xfff,
        minor: (device & 0xff) | ((device >> 12) & 0xf_ff00),
    }
}

/// Returns who asks. FUSE tells user and group; the supplementary groups are read from the asking process.
pub(super) fn credentials(request: &Request) -> Cred {
    let (uid, gid) = (request.uid(), request.gid());
    let groups = if uid == 0 {
        Vec::new()
    } else {
        groups_of(request.pid())
    };
    Cred {
        uid,
        gid,
        groups,
        opened: false,
    }
}

fn groups_of(pid: u32) -> Vec<u32> {
    // A process that has gone meanwhile has no groups left that matter.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .unwrap_or_default();
    line.split_whitespace()
        .filter_map(|group| group.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive() {
        for (seconds, nanoseconds) in [(0, 0), (-1, 999_999_999), (-5, 0), (1_700_000_000, 1)] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }

    #[test]
    fn device_numbers_survive() {
        let device = DeviceNumber {
            major: 259,
            minor: 0x1_2345,
        };
        assert_eq!(decode_device(encode_device(device)), device);
    }
}
