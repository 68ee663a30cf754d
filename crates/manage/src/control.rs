//! The control socket: how a command reaches the running appliance, and its words come back.
//!
//! A client connects to a socket in the state directory that only its owner may open, and sends
//! one request: the command line and where it was given. Frames of output come back, and last the
//! exit code. Closing the connection ends the command. A frame is a kind (one byte), a length (four
//! bytes, big-endian) and that many bytes. With the request may come a descriptor, on which the command's stream goes ([`Descriptor`]).

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::descriptor;
#[cfg(doc)]
use crate::descriptor::Descriptor;
use crate::terminal::{self, SilentTerminal};

/// Largest frame taken; senders split what is longer.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Bytes before a frame's payload.
const HEADER_BYTES: usize = 5;
/// Bytes of a payload that are received without a copy; longer ones are sent apart from their header.
const KEY_BYTES: usize = 4096;
/// Bytes of input in a frame.
const INPUT_BYTES: usize = 256 << 10;

/// The environment variable that says in the name of which user of the appliance a command is given: rights of that user alone are used, and
/// only a daemon does it. Empty: of the user of this machine who gives it.
pub const ON_BEHALF: &str = "SANBOX_ON_BEHALF_OF";

/// A command as its user gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `zpool`, `zfs` or `sanbox`.
    pub tool: String,
    /// What follows the tool's name.
    pub arguments: Vec<String>,
    /// Working directory.
    pub directory: PathBuf,
    /// Environment variables that commands look at.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// User who gave it.
    #[serde(default)]
    pub uid: u32,
    /// Frames of input follow: the command reads them.
    #[serde(default)]
    pub input: bool,
    /// They follow as they are wanted ([`Frame::Demand`]).
    #[serde(default)]
    pub on_demand: bool,
    /// The input is a terminal, whose user can be asked; of `zfs send`, the output is one.
    #[serde(default)]
    pub terminal: bool,
    /// [`ON_BEHALF`].
    #[serde(default)]
    pub on_behalf: Option<String>,
}

/// What goes over the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Client to appliance: the command.
    Request(Request),
    /// Client to appliance: bytes of standard input; none at its end.
    In(Vec<u8>),
    /// Appliance to client: so many bytes of standard input are wanted next; 0: all there are, from now on. Only where the request says so.
    Demand(u32),
    /// Appliance to client: the descriptor that came with the request is used for standard input; nothing may be read from it there.
    TakenOver,
    /// Bytes for standard output.
    Out(Vec<u8>),
    /// Bytes for standard error.
    Err(Vec<u8>),
    /// What the process that asked is to be called from now on.
    Title(Vec<u8>),
    /// The end.
    Exit(u8),
}

impl Frame {
    /// Sends the frame.
    ///
    /// # Errors
    /// The other side has gone.
    pub async fn send(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let (kind, payload) = match self {
            Self::Request(request) => {
                let bytes = serde_json::to_vec(request).map_err(io::Error::other)?;
                return write_frames(to, b'R', &bytes).await;
            }
            Self::Demand(wanted) => {
                return write_frames(to, b'D', &wanted.to_be_bytes()).await;
            }
            Self::TakenOver => (b'S', &[][..]),
            Self::In(bytes) => (b'I', &bytes[..]),
            Self::Out(bytes) => (b'O', &bytes[..]),
            Self::Err(bytes) => (b'E', &bytes[..]),
            Self::Title(title) => (b'T', &title[..]),
            Self::Exit(code) => (b'X', std::slice::from_ref(code)),
        };
        write_frames(to, kind, payload).await
    }

    /// Receives a frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// The connection broke, or what came is not a frame.
    pub async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_BYTES];
        match from.read_exact(&mut header).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        Self::receive_payload(header, from).await.map(Some)
    }

    async fn receive_payload(
        header: [u8; HEADER_BYTES],
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Self> {
        let (kind, length) = read_header(header)?;
        // It grows as bytes come: a length alone costs nothing. Keys, which are short, must leave no copy where it grew.
        let mut payload = Vec::with_capacity(length.min(KEY_BYTES));
        if from.take(length as u64).read_to_end(&mut payload).await? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::read(kind, payload)
    }

    fn read(kind: u8, payload: Vec<u8>) -> io::Result<Self> {
        Ok(match (kind, payload.as_slice()) {
            (b'R', bytes) => Self::Request(
                serde_json::from_slice(bytes)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            ),
            (b'I', _) => Self::In(payload),
            (b'O', _) => Self::Out(payload),
            (b'E', _) => Self::Err(payload),
            (b'T', _) => Self::Title(payload),
            (b'S', []) => Self::TakenOver,
            (b'X', [code]) => Self::Exit(*code),
            (b'D', &[a, b, c, d]) => Self::Demand(u32::from_be_bytes([a, b, c, d])),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown frame")),
        })
    }
}

/// Receives the request that opens a connection, and the descriptor that came with it; `None` at the end of the connection.
///
/// # Errors
/// The connection broke, or what came is no request.
pub async fn receive_request(
    stream: &mut UnixStream,
) -> io::Result<Option<(Request, Option<OwnedFd>)>> {
    let mut header = [0; HEADER_BYTES];
    let (mut filled, mut given) = (0, None);
    while filled < HEADER_BYTES {
        let receive = || receive_with_descriptor(stream.as_fd(), &mut header[filled..], &mut given);
        match stream.async_io(Interest::READABLE, receive).await? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => filled += bytes,
        }
    }
    match Frame::receive_payload(header, stream).await? {
        Frame::Request(request) => Ok(Some((request, given))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no request")),
    }
}

/// Reads bytes, and keeps a descriptor that came with them; the system closes those for which there is no room.
fn receive_with_descriptor(
    from: BorrowedFd<'_>,
    bytes: &mut [u8],
    given: &mut Option<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(from, &mut parts, &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            *given = descriptors.last().or(given.take());
        }
    }
    Ok(received.bytes)
}

/// Writes bytes, and with the first of them a descriptor.
fn send_with_descriptor(
    to: &mut std::os::unix::net::UnixStream,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    let has_room = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(has_room, "there is room for one descriptor");
    let parts = [IoSlice::new(bytes)];
    let sent = rustix::net::sendmsg(&*to, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    to.write_all(&bytes[sent..])
}

/// Calls this process by another name in lists of processes; Linux keeps its first 15 bytes (proc(5), `/proc/PID/comm`). A process that
/// cannot keeps its name.
pub fn set_title(title: &[u8]) {
    let _ = std::fs::write("/proc/self/comm", title);
}

/// The environment variables that travel to the appliance.
pub const ENVIRONMENT: &[&str] = &[
    "ZPOOL_IMPORT_PATH",
    "ZPOOL_VDEV_NAME_GUID",
    "ZPOOL_VDEV_NAME_PATH",
    "ZFS_COLOR",
    "POSIXLY_CORRECT",
    "SSL_CA_CERT_FILE",
    "SSL_CA_CERT_PATH",
    "SSL_CLIENT_CERT_FILE",
    "SSL_CLIENT_KEY_FILE",
];

/// Returns those of [`ENVIRONMENT`] that this process has.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    ENVIRONMENT
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}

/// Whether a command reads standard input.
#[must_use]
pub fn reads_input(tool: &str, arguments: &[String]) -> bool {
    let command = arguments.first().map_or("", String::as_str);
    match tool {
        "zfs" if matches!(command, "program" | "receive" | "recv") => true,
        "sanbox" => asks_password(arguments),
        _ => asks_for_keys(tool, arguments),
    }
}

/// Whether a command reads no more of its input than it asked for: what sends a stream that is refused learns of it by its broken pipe.
#[must_use]
pub fn reads_on_demand(tool: &str, arguments: &[String]) -> bool {
    let command = arguments.first().map_or("", String::as_str);
    tool == "zfs" && matches!(command, "receive" | "recv")
}

/// How long the first demand is waited for. An appliance of a version that makes none gets all of the input then.
const FIRST_DEMAND_MAX: Duration = Duration::from_secs(10);

/// What a command asked for of its input, for the thread that reads it.
pub struct InputDemands {
    /// `None`: everything is wanted.
    receiver: Option<mpsc::Receiver<u32>>,
    is_first: bool,
}

impl InputDemands {
    /// Everything is wanted.
    pub const ALL: Self = Self {
        receiver: None,
        is_first: true,
    };

    /// What comes through the channel: numbers of bytes, or 0 for all.
    #[must_use]
    pub fn channel() -> (mpsc::Sender<u32>, Self) {
        let (sender, receiver) = mpsc::channel();
        let receiver = Some(receiver);
        (
            sender,
            Self {
                receiver,
                ..Self::ALL
            },
        )
    }

    /// Blocks until bytes are wanted, and returns how many, `max` at most; `None` when none will be. Where none are within ten seconds,
    /// everything is from then on.
    pub fn wait(&mut self, max: usize) -> Option<usize> {
        let Some(receiver) = &self.receiver else {
            return Some(max);
        };
        let wanted = match std::mem::take(&mut self.is_first) {
            true => match receiver.recv_timeout(FIRST_DEMAND_MAX) {
                Err(mpsc::RecvTimeoutError::Timeout) => 0,
                wanted => wanted.ok()?,
            },
            false => receiver.recv().ok()?,
        };
        if wanted == 0 {
            self.receiver = None;
            return Some(max);
        }
        Some(max.min(wanted as usize))
    }
}

/// The file that takes the place of a command's standard input, if one does: the text of a program is read where the command is given.
#[must_use]
pub fn input_file<'a>(tool: &str, arguments: &'a [String]) -> Option<&'a str> {
    let (command, words) = arguments.split_first()?;
    if tool != "zfs" || command != "program" {
        return None;
    }
    let mut operands = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word.strip_prefix('-') {
            Some("-") => {
                operands.extend(words.by_ref());
                break;
            }
            Some(letters) if letters.starts_with('-') => {}
            Some(letters) if !letters.is_empty() => {
                // The limits take a value, which may be the next word.
                if letters
                    .find(['t', 'm'])
                    .is_some_and(|at| at + 1 == letters.len())
                {
                    words.next();
                }
            }
            _ => operands.push(word),
        }
    }
    operands.get(1).copied().filter(|file| *file != "-")
}

/// Opens the input of a command; the message says why it cannot be read.
///
/// # Errors
/// The file of [`input_file`] cannot be opened.
pub fn open_input(tool: &str, arguments: &[String]) -> Result<Box<dyn Read + Send>, String> {
    let Some(file) = input_file(tool, arguments) else {
        if reads_on_demand(tool, arguments)
            && let Ok(input) = io::stdin().as_fd().try_clone_to_owned()
        {
            // Rust's own standard input reads ahead.
            return Ok(Box::new(std::fs::File::from(input)));
        }
        return Ok(Box::new(io::stdin()));
    };
    match std::fs::File::open(file) {
        Ok(opened) => Ok(Box::new(opened)),
        Err(error) => {
            let why = error.to_string();
            let words = why.split(" (os error").next().unwrap_or(&why);
            Err(format!("cannot open '{file}': {words}"))
        }
    }
}

/// Whether a command of our own reads a password from standard input: no file and no other way is given.
#[must_use]
pub fn asks_password(arguments: &[String]) -> bool {
    let words: Vec<_> = arguments.iter().take(2).map(String::as_str).collect();
    if words == ["alert", "channel"] {
        return arguments.iter().any(|word| word == "--password");
    }
    // Without a user a domain is left without asking it.
    let names_user = || arguments.iter().any(|word| word.starts_with("--user"));
    let asks = matches!(
        words[..],
        ["user", "add" | "passwd"] | ["smb", "passwd" | "join"]
    ) || words == ["smb", "leave"] && names_user();
    asks && !arguments
        .iter()
        .any(|word| word.starts_with("--password-file") || word == "--no-password")
}

/// Whether a command may ask for the key of a dataset.
#[must_use]
pub fn asks_for_keys(tool: &str, arguments: &[String]) -> bool {
    let command = arguments.first().map_or("", String::as_str);
    let has_flag = |letter| {
        let mut words = arguments.iter().skip(1);
        words.any(|word| {
            word.strip_prefix('-')
                .is_some_and(|letters| !letters.starts_with('-') && letters.contains(letter))
        })
    };
    match (tool, command) {
        ("zfs", "key" | "load-key") => true,
        // An inherited key is not asked for; `-l` may ask for the present one.
        ("zfs", "change-key") => !has_flag('i') || has_flag('l'),
        ("zfs" | "zpool", "create") => {
            let says = |what| arguments.iter().any(|word| word.contains(what));
            says("keyformat=") && !says("keylocation=file:") && !says("keylocation=http")
        }
        ("zfs", "mount" | "share") | ("zpool", "import") => has_flag('l'),
        _ => false,
    }
}

/// Whether a command's keys would come from a terminal, or its stream come from one or go to one.
#[must_use]
pub fn uses_terminal(tool: &str, arguments: &[String]) -> bool {
    match (tool, arguments.first().map_or("", String::as_str)) {
        ("zfs", "send") => terminal::shows_output(),
        ("zfs", "receive" | "recv") => terminal::is_terminal(),
        _ => asks_for_keys(tool, arguments) && terminal::is_terminal(),
    }
}

/// Has the appliance at `socket` run a command of this process's user, with this process's input and output; `None` when no
/// appliance listens. Returns the exit code. See [`ask`].
///
/// # Errors
/// As [`ask`].
pub fn run(socket: &Path, tool: &str, arguments: &[String]) -> io::Result<Option<u8>> {
    let request = Request {
        tool: tool.to_owned(),
        arguments: arguments.to_vec(),
        directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        environment: environment(),
        uid: rustix::process::getuid().as_raw(),
        input: reads_input(tool, arguments),
        on_demand: reads_on_demand(tool, arguments),
        terminal: uses_terminal(tool, arguments),
        on_behalf: std::env::var(ON_BEHALF).ok(),
    };
    // What is typed there is a key.
    let is_typed = request.terminal && asks_for_keys(tool, arguments);
    let _silent = is_typed.then(SilentTerminal::begin);
    let input = match request
        .input
        .then(|| open_input(tool, arguments))
        .transpose()
    {
        Ok(input) => input,
        Err(why) => {
            eprintln!("{why}");
            return Ok(Some(1));
        }
    };
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    // Without a descriptor the stream goes over the connection.
    let taken_over = descriptor::taken_over(tool, arguments);
    let taken_over = taken_over.and_then(|direction| descriptor::standard(direction).ok());
    let stream = taken_over.as_ref().map(|stream| stream.as_fd());
    let answer = ask_with(socket, &request, (input, stream), &mut out, &mut err)?;
    Ok(answer.map(|answer| match answer {
        Answer::Exit(code) => code,
        // As with SIGPIPE.
        Answer::OutputClosed => 141,
    }))
}

/// What became of a command that a running appliance was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done; its exit code.
    Exit(u8),
    /// The reader of our output has closed it.
    OutputClosed,
}

/// Has the appliance at `socket` run a command and passes on what it says as it comes; `None` when no appliance listens.
/// Blocks the thread: a short command takes less time than a runtime takes to start.
///
/// # Errors
/// The socket is there and may not be used, or the appliance ended before the command did.
pub fn ask(
    socket: &Path,
    request: &Request,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Option<Answer>> {
    let input: Option<Box<dyn Read + Send>> = request.input.then(|| Box::new(io::stdin()) as _);
    ask_with(socket, request, (input, None), out, err)
}

/// Connects to the appliance at `socket` and sends it the request; `None` when no appliance listens.
fn request_to(
    socket: &Path,
    request: &Request,
    taken_over: Option<BorrowedFd<'_>>,
) -> io::Result<Option<std::os::unix::net::UnixStream>> {
    let (_directory, path) = short(socket)?;
    let mut stream = match std::os::unix::net::UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if is_unserved(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let payload = serde_json::to_vec(request).map_err(io::Error::other)?;
    let frame = frame_bytes(b'R', &payload)?;
    match taken_over {
        Some(descriptor) => send_with_descriptor(&mut stream, &frame, descriptor)?,
        None => stream.write_all(&frame)?,
    }
    Ok(Some(stream))
}

/// As [`ask`], with this input, and a descriptor that the appliance may use in the place of input or output.
fn ask_with(
    socket: &Path,
    request: &Request,
    (input, taken_over): (Option<Box<dyn Read + Send>>, Option<BorrowedFd<'_>>),
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Option<Answer>> {
    let Some(mut stream) = request_to(socket, request, taken_over)? else {
        return Ok(None);
    };
    let (mut demanding, mut demands) = (None, InputDemands::ALL);
    if request.on_demand {
        let (sender, receiver) = InputDemands::channel();
        (demanding, demands) = (Some(sender), receiver);
    }
    if let Some(input) = input {
        let to = stream.try_clone()?;
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || send_input(input, demands, to))?;
    }
    loop {
        let mut header = [0; HEADER_BYTES];
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(io::Error::new(
                    error.kind(),
                    "the daemon ended before it answered",
                ));
            }
            Err(error) => return Err(error),
        }
        let (kind, length) = read_header(header)?;
        let mut payload = Vec::new();
        if (&stream).take(length as u64).read_to_end(&mut payload)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let written = match Frame::read(kind, payload)? {
            Frame::Out(bytes) => out.write_all(&bytes).and_then(|()| out.flush()),
            Frame::Err(bytes) => err.write_all(&bytes),
            Frame::Title(title) => {
                set_title(&title);
                Ok(())
            }
            Frame::Exit(code) => return Ok(Some(Answer::Exit(code))),
            Frame::TakenOver => {
                // The thread that reads ends without a demand.
                demanding = None;
                Ok(())
            }
            Frame::Demand(wanted) => {
                // The thread may have ended with the input.
                let _ = demanding.as_ref().map(|thread| thread.send(wanted));
                Ok(())
            }
            Frame::Request(_) | Frame::In(_) => Ok(()),
        };
        if written.is_err() {
            return Ok(Some(Answer::OutputClosed));
        }
    }
}

/// Hands input on as it is wanted, until it ends, or the command takes no more.
fn send_input(
    mut input: Box<dyn Read + Send>,
    mut demands: InputDemands,
    mut to: std::os::unix::net::UnixStream,
) {
    let mut bytes = vec![0; INPUT_BYTES];
    while let Some(wanted) = demands.wait(INPUT_BYTES) {
        let len = loop {
            match input.read(&mut bytes[..wanted]) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The command sees a stream that ends too early.
                Err(_) => break 0,
            }
        };
        terminal::end_if_interrupted(&bytes[..len]);
        let Ok(frame) = frame_bytes(b'I', &bytes[..len]) else {
            return;
        };
        if to.write_all(&frame).is_err() || len == 0 {
            return;
        }
    }
}

fn is_unserved(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Returns a frame's kind and the length of its payload.
fn read_header([kind, length @ ..]: [u8; HEADER_BYTES]) -> io::Result<(u8, usize)> {
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "oversized frame",
        ));
    }
    Ok((kind, length))
}

/// Returns what stands before a frame's payload.
fn header_of(kind: u8, payload: &[u8]) -> io::Result<[u8; HEADER_BYTES]> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok([kind, a, b, c, d])
}

fn frame_bytes(kind: u8, payload: &[u8]) -> io::Result<Vec<u8>> {
    Ok([&header_of(kind, payload)?, payload].concat())
}

/// Writes a frame, or several where it is longer than one may be: only output is, and it may be cut anywhere.
async fn write_frames(
    to: &mut (impl AsyncWrite + Unpin),
    kind: u8,
    payload: &[u8],
) -> io::Result<()> {
    if payload.len() <= KEY_BYTES {
        return to.write_all(&frame_bytes(kind, payload)?).await;
    }
    // A second call costs less than a copy.
    for part in payload.chunks(FRAME_BYTES_MAX) {
        to.write_all(&header_of(kind, part)?).await?;
        to.write_all(part).await?;
    }
    Ok(())
}

/// Connects to the appliance that listens at `socket`; `None` when none does.
///
/// # Errors
/// The socket is there and may not be used.
pub async fn connect(socket: &Path) -> io::Result<Option<UnixStream>> {
    let (_directory, path) = short(socket)?;
    match UnixStream::connect(&path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if is_unserved(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Listens at `socket`, replacing what a killed appliance left there. The caller holds the state
/// directory's lock, so no other process listens.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (_directory, path) = short(socket)?;
    let listener = UnixListener::bind(path)?;
    // The directory keeps others out already; this holds where it was made by hand.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Lets all users of the machine connect to a socket that was made by [`listen`], and pass through its directory.
///
/// # Errors
/// Permissions cannot be changed.
pub fn open_to_users(socket: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
    let Some(directory) = socket.parent() else {
        return Ok(());
    };
    let mode = std::fs::metadata(directory)?.permissions().mode();
    std::fs::set_permissions(
        directory,
        std::fs::Permissions::from_mode(mode & 0o7777 | 0o011),
    )
}

/// A path to the socket that fits the 108 bytes of a socket address: long ones go through an open
/// directory, which must live while the path is used.
fn short(socket: &Path) -> io::Result<(Option<std::fs::File>, PathBuf)> {
    if socket.as_os_str().len() < 100 {
        return Ok((None, socket.to_owned()));
    }
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Ok((None, socket.to_owned()));
    };
    let directory = std::fs::File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((Some(directory), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_program_is_its_input() {
        let check = |line: &str, expect: Option<&str>| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(input_file("zfs", &words), expect, "{line}");
        };
        check("program tank a.lua", Some("a.lua"));
        check("program -n -t 100 -m 5 tank a.lua b c", Some("a.lua"));
        check("program -nt100 tank -j a.lua", Some("a.lua"));
        check("program -jt 100 tank a.lua", Some("a.lua"));
        check("program --json tank a.lua", Some("a.lua"));
        check("program -- tank -m", Some("-m"));
        check("program tank - a.lua", None);
        check("program tank", None);
        check("receive tank a.lua", None);
    }

    #[tokio::test]
    async fn frames_go_through() {
        let (mut here, mut there) = tokio::io::duplex(1 << 16);
        let frames = [
            Frame::Request(Request {
                tool: "zpool".to_owned(),
                arguments: vec!["list".to_owned(), "-H".to_owned()],
                directory: PathBuf::from("/"),
                environment: BTreeMap::new(),
                uid: 0,
                input: false,
                on_demand: false,
                terminal: false,
                on_behalf: None,
            }),
            Frame::Out(b"tank\n".to_vec()),
            Frame::Err(Vec::new()),
            Frame::Title(b"send 42%".to_vec()),
            Frame::Demand(312),
            Frame::TakenOver,
            Frame::Exit(2),
        ];
        for frame in &frames {
            frame.send(&mut here).await.expect("sends");
        }
        drop(here);
        for frame in &frames {
            assert_eq!(
                Frame::receive(&mut there).await.expect("receives").as_ref(),
                Some(frame)
            );
        }
        assert_eq!(Frame::receive(&mut there).await.expect("ends"), None);
    }

    #[test]
    fn input_is_read_as_it_is_wanted() {
        let mut all = InputDemands::ALL;
        assert_eq!(all.wait(100), Some(100));
        let (sender, mut demands) = InputDemands::channel();
        for (wanted, expect) in [(30, 30), (300, 100), (0, 100)] {
            sender.send(wanted).expect("it is read");
            assert_eq!(demands.wait(100), Some(expect));
        }
        drop(sender);
        assert_eq!(demands.wait(100), Some(100));
        let (sender, mut demands) = InputDemands::channel();
        drop(sender);
        assert_eq!(demands.wait(100), None);
    }

    #[tokio::test]
    async fn an_appliance_is_asked() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("control.sock");
        let request = Request {
            tool: "zfs".to_owned(),
            arguments: Vec::new(),
            directory: PathBuf::from("/"),
            environment: BTreeMap::new(),
            uid: 0,
            input: false,
            on_demand: false,
            terminal: false,
            on_behalf: None,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let unserved = ask(&socket, &request, &mut out, &mut err).expect("asks");
        assert_eq!(unserved, None);
        let listener = listen(&socket).expect("listens");
        let served = tokio::spawn({
            let request = request.clone();
            async move {
                for last in [Some(Frame::Exit(3)), None] {
                    let (mut stream, _) = listener.accept().await.expect("accepts");
                    let asked = Frame::receive(&mut stream).await.expect("receives");
                    assert_eq!(asked, Some(Frame::Request(request.clone())));
                    let said = [Frame::Out(vec![b'o'; 100_000]), Frame::Err(b"e".to_vec())];
                    for frame in said.into_iter().chain(last) {
                        frame.send(&mut stream).await.expect("sends");
                    }
                }
            }
        });
        let asked = tokio::task::spawn_blocking(move || {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let answer = ask(&socket, &request, &mut out, &mut err).expect("an answer");
            assert_eq!(answer, Some(Answer::Exit(3)));
            assert_eq!((out.len(), err.as_slice()), (100_000, &b"e"[..]));
            ask(&socket, &request, &mut out, &mut err).expect_err("it ended in between");
        });
        asked.await.expect("asks");
        served.await.expect("serves");
    }

    #[tokio::test]
    async fn a_descriptor_comes_with_the_request() {
        let request = Request {
            tool: "zfs".to_owned(),
            arguments: vec!["x".repeat(100_000)],
            directory: PathBuf::from("/"),
            environment: BTreeMap::new(),
            uid: 0,
            input: false,
            on_demand: false,
            terminal: false,
            on_behalf: None,
        };
        let payload = serde_json::to_vec(&request).expect("encodes");
        let frame = frame_bytes(b'R', &payload).expect("a frame");
        for has_descriptor in [true, false] {
            let (mut here, there) = std::os::unix::net::UnixStream::pair().expect("a pair");
            there.set_nonblocking(true).expect("sets");
            let mut there = UnixStream::from_std(there).expect("a socket");
            let file = tempfile::tempfile().expect("a file");
            let frame = frame.clone();
            let sending = std::thread::spawn(move || match has_descriptor {
                true => send_with_descriptor(&mut here, &frame, file.as_fd()),
                // Its parts come apart.
                false => frame.chunks(3).try_for_each(|part| here.write_all(part)),
            });
            let (asked, given) = receive_request(&mut there)
                .await
                .expect("receives")
                .expect("there is one");
            sending.join().expect("ends").expect("sends");
            assert_eq!((asked, given.is_some()), (request.clone(), has_descriptor));
            assert!(receive_request(&mut there).await.expect("ends").is_none());
        }
    }

    #[tokio::test]
    async fn nonsense_is_refused() {
        for bytes in [
            &b"Z\0\0\0\0"[..],
            b"X\0\0\0\x02ab",
            b"R\0\0\0\x02[]",
            b"O\xff\xff\xff\xff",
        ] {
            let mut input = bytes;
            assert!(Frame::receive(&mut input).await.is_err(), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn long_paths_work() {
        let directory = tempfile::tempdir().expect("a directory");
        let deep = directory.path().join("x".repeat(100));
        std::fs::create_dir(&deep).expect("makes");
        let socket = deep.join("control.sock");
        assert!(connect(&socket).await.expect("asks").is_none());
        let listener = listen(&socket).expect("listens");
        assert!(connect(&socket).await.expect("connects").is_some());
        drop(listener);
        assert!(connect(&socket).await.expect("asks").is_none());
        listen(&socket).expect("listens again");
    }
}
