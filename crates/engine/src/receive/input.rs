//! The bytes of a stream that is received, cut into records and payloads with their checksums verified.

use dsl::stream::{NvList, RECORD_SIZE, StreamError, StreamReader, StreamRecord};
use runtime::{ALIGNMENT, IoBuf, IoBufMut, mailbox};

/// Most bytes of the list of names and values behind a BEGIN.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Why no more can be read of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputError {
    /// It ends in the middle.
    Truncated,
    /// What was read is not what was sent.
    Checksum,
    /// It is no stream.
    NotAStream,
    /// It breaks a rule of the format.
    Malformed,
}

impl From<StreamError> for InputError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::NotAStream => Self::NotAStream,
            StreamError::Malformed(_) => Self::Malformed,
            StreamError::Checksum { .. } => Self::Checksum,
        }
    }
}

/// The bytes of a stream, cut into what is asked for.
pub(super) struct Input {
    // Goes before `demands`: when those end, it is known whether more is taken.
    chunks: mailbox::Receiver<Vec<u8>>,
    /// How many bytes are missing, as long as the stream is not accepted.
    demands: Option<mailbox::Sender<usize>>,
    chunk: Vec<u8>,
    at: usize,
    /// Bytes taken since the last BEGIN.
    taken: u64,
    reader: StreamReader,
}

impl Input {
    pub(super) fn new(chunks: mailbox::Receiver<Vec<u8>>, demands: mailbox::Sender<usize>) -> Self {
        Self {
            chunks,
            demands: Some(demands),
            chunk: Vec::new(),
            at: 0,
            taken: 0,
            reader: StreamReader::default(),
        }
    }

    /// From here on bytes may come as fast as they can: they will be wanted.
    pub(super) fn accept(&mut self) {
        self.demands = None;
    }

    /// Bytes taken since the last BEGIN, itself included.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn reader(&self) -> &StreamReader {
        &self.reader
    }

    /// Fills a buffer; returns the bytes that came, fewer only at the end.
    async fn fill(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.chunk.len() {
                if let Some(demands) = &self.demands {
                    // One that does not look at demands gets no second one.
                    let _ = demands.try_send(out.len() - filled);
                }
                match self.chunks.receive().await {
                    Some(chunk) => {
                        self.chunk = chunk;
                        self.at = 0;
                        continue;
                    }
                    None => break,
                }
            }
            let len = (self.chunk.len() - self.at).min(out.len() - filled);
            out[filled..filled + len].copy_from_slice(&self.chunk[self.at..self.at + len]);
            self.at += len;
            filled += len;
        }
        self.taken += filled as u64;
        filled
    }

    /// The next record; `None` at the end of the bytes.
    pub(super) async fn record(&mut self) -> Result<Option<StreamRecord>, InputError> {
        let mut bytes = [0; RECORD_SIZE];
        match self.fill(&mut bytes).await {
            0 => Ok(None),
            RECORD_SIZE => {
                let record = self.reader.record(&bytes)?;
                if matches!(record, StreamRecord::Begin(_)) {
                    self.taken = RECORD_SIZE as u64;
                }
                Ok(Some(record))
            }
            _ => Err(InputError::Truncated),
        }
    }

    fn payload_len(&self, max: u64) -> Result<usize, InputError> {
        let len = Some(self.reader.payload_left()).filter(|len| *len <= max);
        len.and_then(|len| usize::try_from(len).ok())
            .ok_or(InputError::Malformed)
    }

    /// The payload of the last record, of at most `max` bytes, in the byte order of blocks here.
    pub(super) async fn payload(&mut self, max: u64) -> Result<IoBuf, InputError> {
        let len = self.payload_len(max)?;
        if len < ALIGNMENT {
            // A buffer for the disks takes a page at least: the blocks of many small files, which wait for their txg, took eight times
            // their bytes (docs/measurements/2026-11-27-streams.md).
            let mut payload = vec![0; len];
            if self.fill(&mut payload).await < len {
                return Err(InputError::Truncated);
            }
            self.reader.payload(&payload);
            self.reader.make_native(&mut payload);
            return Ok(payload.into());
        }
        let mut payload = IoBufMut::scratch(len);
        if self.fill(&mut payload).await < len {
            return Err(InputError::Truncated);
        }
        self.reader.payload(&payload);
        self.reader.make_native(&mut payload);
        Ok(payload.freeze())
    }

    /// The list of names and values behind a BEGIN; an empty one where there is none.
    pub(super) async fn list(&mut self) -> Result<NvList, InputError> {
        let len = self.payload_len(LIST_BYTES_MAX)?;
        // It grows as bytes come: a length alone costs nothing.
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = bytes.len();
            bytes.resize(len.min(at + (1 << 20)), 0);
            if self.fill(&mut bytes[at..]).await < bytes.len() - at {
                return Err(InputError::Truncated);
            }
        }
        self.reader.payload(&bytes);
        if bytes.is_empty() {
            return Ok(NvList::default());
        }
        NvList::decode(&bytes).map_err(|_| InputError::Malformed)
    }

    /// Reads past the rest of a stream.
    pub(super) async fn skip(&mut self) -> Result<(), InputError> {
        loop {
            let record = self.record().await?.ok_or(InputError::Truncated)?;
            self.payload(ondisk::MAX_BLOCK_SIZE).await?;
            if matches!(record, StreamRecord::End { .. }) {
                return Ok(());
            }
        }
    }
}
