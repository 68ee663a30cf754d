//! What FUSE and the engine call the same things: kinds of files, device numbers, times, errors, callers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::{Cred, DeviceNumber, FileType, FsError, Timestamp};
use fuser::{Errno, Request};

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

/// The kernel's 32-bit form of a device number: 12 bits of the major, 20 of the minor.
pub(super) fn device_out(number: DeviceNumber) -> u32 {
    (number.minor & 0xff) | ((number.major & 0xfff) << 8) | ((number.minor & 0xfff00) << 12)
}

pub(super) fn device_in(number: u32) -> DeviceNumber {
    DeviceNumber {
        major: (number >> 8) & 0xfff,
        minor: (number & 0xff) | ((number >> 12) & 0xfff00),
    }
}

pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanoseconds,
    }
}

pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Timestamp {
                    seconds: -whole,
                    nanoseconds: 0,
                },
                part => Timestamp {
                    seconds: -whole - 1,
                    nanoseconds: 1_000_000_000 - part,
                },
            }
        }
    }
}

pub(super) fn errno(error: FsError) -> Errno {
    Errno::from_i32(error.errno())
}

/// The caller of a request, for what is not for the kernel to decide.
pub(super) fn caller(req: &Request) -> Cred {
    let status = std::fs::read_to_string(format!("/proc/{}/status", req.pid())).unwrap_or_default();
    let groups = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .unwrap_or_default();
    Cred {
        uid: req.uid(),
        gid: req.gid(),
        groups: groups
            .split_whitespace()
            .filter_map(|group| group.parse().ok())
            .collect(),
        opened: false,
        holder: 0,
    }
}

pub(super) fn root() -> Cred {
    Cred {
        opened: true,
        ..Cred::root()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_keep_their_bits() {
        for (major, minor) in [(0, 0), (8, 1), (1, 3), (259, 0x12345), (0xfff, 0xfffff)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(device_in(device_out(number)), number);
        }
    }

    #[test]
    fn times_go_both_ways() {
        for (seconds, nanoseconds) in [(0, 0), (1, 5), (-1, 999_999_999), (-2, 0), (1 << 33, 7)] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
