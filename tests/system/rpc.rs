//! A small NFS client of our own, for tests that send what no real client would.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) const NFS: (u32, u32) = (100_003, 3);
pub(crate) const NFS4: (u32, u32) = (100_003, 4);
pub(crate) const MOUNT: (u32, u32) = (100_005, 3);

/// Procedures of NFS (RFC 1813, section 3) that the tests name.
pub(crate) const GETATTR: u32 = 1;
pub(crate) const LOOKUP: u32 = 3;
pub(crate) const READ: u32 = 6;
pub(crate) const WRITE: u32 = 7;
pub(crate) const CREATE: u32 = 8;
pub(crate) const MKDIR: u32 = 9;
pub(crate) const READDIRPLUS: u32 = 17;

/// Builds XDR.
#[derive(Clone, Default)]
pub(crate) struct Xdr(pub(crate) Vec<u8>);

impl Xdr {
    pub(crate) fn words(mut self, words: &[u32]) -> Self {
        self.0.extend(words.iter().flat_map(|w| w.to_be_bytes()));
        self
    }

    pub(crate) fn hyper(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn opaque(self, bytes: &[u8]) -> Self {
        let mut with = self.words(&[u32::try_from(bytes.len()).expect("short")]);
        with.0.extend(bytes);
        let padded = with.0.len().next_multiple_of(4);
        with.0.resize(padded, 0);
        with
    }
}

/// A call without its record mark, with root's AUTH_SYS credential.
pub(crate) fn message(xid: u32, program: (u32, u32), procedure: u32, arguments: &Xdr) -> Vec<u8> {
    let call = Xdr::default().words(&[xid, 0, 2, program.0, program.1, procedure]);
    // Stamp, an empty name, uid 0, gid 0, no groups; then the empty verifier.
    let mut call = call.words(&[1, 20, 0, 0, 0, 0, 0, 0, 0]).0;
    call.extend(&arguments.0);
    call
}

/// Puts a record mark before a message.
pub(crate) fn marked(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short") | 0x8000_0000;
    [&length.to_be_bytes(), message].concat()
}

/// An answer's words after the envelope: status first.
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    pub(crate) fn word(&self, index: usize) -> u32 {
        let bytes = self.0.get(index * 4..index * 4 + 4);
        u32::from_be_bytes(bytes.expect("a longer answer").try_into().expect("four"))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    xid: u32,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a time limit");
        stream
            .set_write_timeout(Some(Duration::from_secs(30)))
            .expect("a time limit");
        // As real clients do: the same call under the same number again would be a repeat, and get the first answer.
        static CLIENTS: AtomicU32 = AtomicU32::new(1);
        let xid = CLIENTS.fetch_add(1, Ordering::Relaxed) << 12;
        Self { stream, xid }
    }

    /// Receives a record of one fragment.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes(header);
        assert!(length >> 31 == 1, "answers are one fragment");
        let mut record = vec![0; (length & 0x7fff_ffff) as usize];
        self.stream.read_exact(&mut record)?;
        Ok(record)
    }

    /// Calls and waits for the answer; panics when the RPC itself is not accepted.
    pub(crate) fn call(&mut self, program: (u32, u32), procedure: u32, arguments: &Xdr) -> Answer {
        self.xid += 1;
        let call = message(self.xid, program, procedure, arguments);
        self.stream.write_all(&marked(&call)).expect("sent");
        let record = self.receive().expect("an answer");
        let accepted = Xdr::default().words(&[self.xid, 1, 0, 0, 0, 0]).0;
        assert_eq!(record[..24], accepted[..], "procedure {procedure}");
        Answer(record[24..].to_vec())
    }

    /// Mounts a path; returns the handle of its root.
    pub(crate) fn mount(&mut self, path: &str) -> Vec<u8> {
        let answer = self.call(MOUNT, 1, &Xdr::default().opaque(path.as_bytes()));
        assert_eq!(answer.word(0), 0, "mounting {path}");
        let length = answer.word(1) as usize;
        answer.bytes()[8..8 + length].to_vec()
    }

    /// Returns the id of the file system that a file lies in.
    pub(crate) fn fsid(&mut self, file: &[u8]) -> u64 {
        let answer = self.call(NFS, GETATTR, &Xdr::default().opaque(file));
        assert_eq!(answer.word(0), 0, "attributes");
        // RFC 1813, fattr3: behind the status and eleven words.
        u64::from(answer.word(12)) << 32 | u64::from(answer.word(13))
    }

    /// The same as NFSv4.0 tells it: its major half.
    pub(crate) fn fsid4(&mut self, file: &[u8]) -> u64 {
        // No tag; PUTFH and GETATTR of `fsid` (RFC 7530, section 5.6: attribute 8).
        let compound = Xdr::default().words(&[0, 0, 2, 22]).opaque(file);
        let answer = self.call(NFS4, 1, &compound.words(&[9, 1, 1 << 8]));
        assert_eq!(answer.word(0), 0, "PUTFH, GETATTR");
        let told: Vec<u32> = (5..9).map(|index| answer.word(index)).collect();
        assert_eq!(told, [9, 0, 1, 1 << 8], "GETATTR");
        u64::from(answer.word(10)) << 32 | u64::from(answer.word(11))
    }

    /// Looks up a name; returns the file's handle.
    pub(crate) fn lookup(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        let arguments = Xdr::default().opaque(dir).opaque(name.as_bytes());
        let answer = self.call(NFS, LOOKUP, &arguments);
        assert_eq!(answer.word(0), 0, "looking up {name}");
        let length = answer.word(1) as usize;
        answer.bytes()[8..8 + length].to_vec()
    }

    /// Makes a file; returns its handle.
    pub(crate) fn create(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        let arguments = Xdr::default().opaque(dir).opaque(name.as_bytes());
        // Unchecked; mode 0644; owner, group, size and times left alone.
        let arguments = arguments.words(&[0, 1, 0o644, 0, 0, 0, 0, 0]);
        let answer = self.call(NFS, CREATE, &arguments);
        assert_eq!((answer.word(0), answer.word(1)), (0, 1), "creating {name}");
        let length = answer.word(2) as usize;
        answer.bytes()[12..12 + length].to_vec()
    }

    /// Writes; returns the status.
    pub(crate) fn write(&mut self, file: &[u8], offset: u64, data: &[u8], stable: u32) -> u32 {
        let count = u32::try_from(data.len()).expect("short");
        let arguments = Xdr::default().opaque(file).hyper(offset);
        let arguments = arguments.words(&[count, stable]).opaque(data);
        self.call(NFS, WRITE, &arguments).word(0)
    }

    /// Reads; returns the data.
    pub(crate) fn read(&mut self, file: &[u8], offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let arguments = Xdr::default().opaque(file).hyper(offset).words(&[count]);
        let answer = self.call(NFS, READ, &arguments);
        if answer.word(0) != 0 {
            return Err(answer.word(0));
        }
        // Status, attributes (22 words), count, end of file, length.
        assert_eq!(answer.word(1), 1);
        let length = answer.word(25) as usize;
        assert_eq!(answer.word(23) as usize, length);
        Ok(answer.bytes()[104..104 + length].to_vec())
    }
}
