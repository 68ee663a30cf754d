//! A stream on a descriptor that another process opened: standard output of `zfs send`, standard input of `zfs receive`, which the
//! command gives to the appliance with its request (SCM_RIGHTS, unix(7)). The stream does not go through the command's process then.
//!
//! The open file is the client's, too: its flags are left alone. A pipe is opened anew, without blocking; a regular file or a device
//! blocks the thread that calls. Sockets are not taken: they cannot be opened anew.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, open};
use rustix::io::{read, retry_on_intr};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};

/// What a pipe should hold: with the usual 64 KiB both of its ends sleep and wake for each of them.
const PIPE_BYTES: usize = 1 << 20;
/// Bytes of a pipe that are read at once.
const PIPE_READ_BYTES: usize = 128 << 10;

/// What is done with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes are read from it.
    In,
    /// Bytes are written to it.
    Out,
}

/// A descriptor of another process's, to read from or to write to.
#[derive(Debug)]
pub struct Descriptor(OpenFile);

/// How it is used.
#[derive(Debug)]
enum OpenFile {
    PipeIn(Receiver),
    PipeOut(Sender),
    File(File),
}

impl Descriptor {
    /// Takes a descriptor; pipes alone, unless `any` kind of file may be used. Called in a runtime, whose reactor waits for it.
    ///
    /// # Errors
    /// It was not opened for this direction, is a directory or another kind of file than is taken, or cannot be waited for.
    pub fn new(given: OwnedFd, direction: Direction, any: bool) -> io::Result<Self> {
        let flags = fcntl_getfl(&given)? & OFlags::ACCMODE;
        let opposite = match direction {
            Direction::In => OFlags::WRONLY,
            Direction::Out => OFlags::RDONLY,
        };
        // What a user of fewer rights opened for the other direction is not to be opened anew for this one.
        if flags == opposite || fcntl_getfl(&given)?.contains(OFlags::PATH) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(Self(
            match FileType::from_raw_mode(fstat(&given)?.st_mode) {
                FileType::Fifo => {
                    let reopened = reopen(&given, direction)?;
                    match direction {
                        Direction::In => OpenFile::PipeIn(Receiver::from_owned_fd(reopened)?),
                        Direction::Out => OpenFile::PipeOut(Sender::from_owned_fd(reopened)?),
                    }
                }
                FileType::RegularFile | FileType::CharacterDevice | FileType::BlockDevice
                    if any =>
                {
                    OpenFile::File(given.into())
                }
                _ => return Err(ErrorKind::InvalidInput.into()),
            },
        ))
    }

    /// Writes all of it, part by part. Dropped before it ends, it has written some of it.
    ///
    /// # Errors
    /// Of writing: the pipe has no reader any more, the file system is full. [`ErrorKind::Unsupported`] of what is read from.
    pub async fn write_all(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        // What is empty is no part of a write, which would return 0.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let written = match &mut self.0 {
                OpenFile::PipeOut(pipe) => pipe.write_vectored(rest).await,
                OpenFile::File(file) => file.write_vectored(rest),
                OpenFile::PipeIn(_) => return Err(ErrorKind::Unsupported.into()),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is, at most `wanted` bytes; none at the end.
    ///
    /// # Errors
    /// Of reading. [`ErrorKind::Unsupported`] of what is written to.
    pub async fn read(&mut self, wanted: usize) -> io::Result<Vec<u8>> {
        // Filled without being zeroed first, which took a tenth of the CPU time of a receive. No more is reserved than is wanted: the rest
        // may be another program's.
        let mut bytes = Vec::new();
        match &mut self.0 {
            OpenFile::PipeIn(pipe) => {
                bytes.reserve_exact(wanted.min(PIPE_READ_BYTES));
                pipe.read_buf(&mut bytes).await?;
            }
            OpenFile::File(file) => {
                bytes.reserve_exact(wanted);
                retry_on_intr(|| read(&*file, spare_capacity(&mut bytes)))?;
            }
            OpenFile::PipeOut(_) => return Err(ErrorKind::Unsupported.into()),
        }
        Ok(bytes)
    }
}

/// Opens a pipe once more, without blocking, so that the open file of the other process stays as it is (proc(5), `/proc/PID/fd`).
fn reopen(pipe: &OwnedFd, direction: Direction) -> io::Result<OwnedFd> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", pipe.as_raw_fd()));
    let access = match direction {
        Direction::In => OFlags::RDONLY,
        Direction::Out => OFlags::WRONLY,
    };
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reopened = open(path, flags, Mode::empty())?;
    if fcntl_getpipe_size(&reopened)? < PIPE_BYTES {
        // There may be no more room for the pipes of a user (pipe(7), pipe-user-pages-soft): it stays as it is.
        let _ = fcntl_setpipe_size(&reopened, PIPE_BYTES);
    }
    Ok(reopened)
}

/// The stream of a command's process that the appliance takes over, if one is.
#[must_use]
pub fn taken_over(tool: &str, arguments: &[String]) -> Option<Direction> {
    match (tool, arguments.first().map_or("", String::as_str)) {
        ("zfs", "send") => Some(Direction::Out),
        ("zfs", "receive" | "recv") => Some(Direction::In),
        _ => None,
    }
}

/// The standard stream of this process for a direction.
///
/// # Errors
/// It is closed, or no descriptor is left.
pub fn standard(direction: Direction) -> io::Result<OwnedFd> {
    match direction {
        Direction::In => io::stdin().as_fd().try_clone_to_owned(),
        Direction::Out => io::stdout().as_fd().try_clone_to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::time::Duration;

    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        let (from, to) = io::pipe().expect("a pipe");
        (from.into(), to.into())
    }

    fn is_nonblocking(file: &OwnedFd) -> bool {
        fcntl_getfl(file).expect("flags").contains(OFlags::NONBLOCK)
    }

    #[tokio::test]
    async fn a_pipe_is_written_as_it_is_read_and_stays_as_it_was() {
        let (from, to) = pipe();
        let theirs = to.try_clone().expect("the client's");
        let mut descriptor = Descriptor::new(to, Direction::Out, false).expect("a pipe is taken");
        let bytes: Vec<u8> = (0..251).cycle().take(3 << 20).collect();
        // More than the pipe holds: it waits, and blocks nothing.
        let whole: [&[u8]; 1] = [&bytes];
        let late = tokio::time::timeout(Duration::from_millis(50), descriptor.write_all(&whole));
        late.await.expect_err("nobody reads");
        assert!(!is_nonblocking(&theirs) && !is_nonblocking(&from));
        drop(theirs);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(from).read_to_end(&mut all).expect("reads");
            all
        });
        descriptor.write_all(&whole).await.expect("it is read");
        drop(descriptor);
        let all = reader.join().expect("ends");
        assert!(all.len() > bytes.len() && all.ends_with(&bytes));
    }

    #[tokio::test]
    async fn a_pipe_without_a_reader_is_broken() {
        let (from, to) = pipe();
        let mut descriptor = Descriptor::new(to, Direction::Out, false).expect("a pipe is taken");
        drop(from);
        let error = descriptor.write_all(&[b"x"]).await.expect_err("broken");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn no_more_of_a_pipe_is_read_than_was_asked_for() {
        let (from, to) = pipe();
        let theirs = from.try_clone().expect("the client's");
        let mut descriptor = Descriptor::new(from, Direction::In, false).expect("a pipe is taken");
        let mut to = File::from(to);
        to.write_all(b"head and rest").expect("writes");
        let head = descriptor.read(4).await.expect("reads");
        drop(to);
        let mut rest = String::new();
        File::from(theirs).read_to_string(&mut rest).expect("reads");
        assert_eq!((&head[..], rest.as_str()), (&b"head"[..], " and rest"));
        assert!(descriptor.read(4).await.expect("its end").is_empty());
    }

    #[tokio::test]
    async fn files_work_for_those_who_may_give_them() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"before ").expect("writes");
        let given = || OwnedFd::from(file.try_clone().expect("a copy"));
        Descriptor::new(given(), Direction::Out, false).expect_err("pipes alone");
        let mut descriptor = Descriptor::new(given(), Direction::Out, true).expect("taken");
        descriptor.write_all(&[b"after"]).await.expect("writes");
        file.rewind().expect("its start");
        let mut all = String::new();
        file.read_to_string(&mut all).expect("reads");
        assert_eq!(all, "before after");
    }

    #[tokio::test]
    async fn what_was_opened_for_the_other_direction_is_refused() {
        let (from, to) = pipe();
        for (given, direction) in [(from, Direction::Out), (to, Direction::In)] {
            let error = Descriptor::new(given, direction, true).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        }
        let path = open("/dev/null", OFlags::PATH, Mode::empty()).expect("opens");
        Descriptor::new(path, Direction::In, true).expect_err("it is not open");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        Descriptor::new(socket.into(), Direction::In, true).expect_err("it cannot be opened anew");
        let directory = open("/", OFlags::RDONLY, Mode::empty()).expect("opens");
        Descriptor::new(directory, Direction::In, true).expect_err("it is no stream");
    }
}
