//! The credentials of the peer of a local socket.
//!
//! Guarantees: the answer is about the process as it was when it connected, whatever it has become since; nothing is looked
//! up by process number. Does not know what the groups mean.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Most supplementary groups of a process (Linux: `NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups of the process that connected to a local socket (`SO_PEERGROUPS`, unix(7)).
///
/// # Errors
/// Of the system call; `InvalidData` for more groups than there can be.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut room = 64;
    loop {
        let mut groups = vec![0_u32; room];
        let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice()))
            .map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the buffer has `bytes` bytes that may be written, any bytes are valid numbers, and both pointers live
        // through the call, which keeps none of them.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result == 0 {
            groups.truncate(usize::try_from(bytes).unwrap_or(0) / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) {
            return Err(error);
        }
        // Too many for the buffer.
        if room >= GROUPS_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        room *= 4;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn our_own_groups() {
        let (near, _far) = UnixStream::pair().expect("a pair of sockets");
        let mut found = peer_groups(near.as_fd()).expect("groups");
        let status = std::fs::read_to_string("/proc/self/status").expect("our status");
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let mut expected: Vec<u32> = line
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|group| group.parse().ok())
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
