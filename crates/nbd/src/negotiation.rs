//! The negotiation: the greeting, then options until an export is chosen.
//!
//! ```text
//! greeting sent -> Flags -> Header -> Data  -> Header ... -> Over
//!                                  -> Skip  ->
//! ```

use crate::exports::{Export, Exports};
use crate::request::PAYLOAD_BYTES_MAX;
use crate::wire::{self, BASE_ALLOCATION_ID, Reader, handshake, info, option, reply, transmission};

/// Bytes of an option's data.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Options a client may send before it chooses an export.
const OPTIONS_MAX: usize = 10_000;
/// Bytes of an option's header: magic, code, length.
const OPTION_HEADER_BYTES: usize = 16;
/// Handshake flags that we offer.
const OFFERED: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
/// The only metadata context.
const BASE_ALLOCATION: &str = "base:allocation";

/// Bytes that the protocol does not allow: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not NBD: {0}")]
pub struct ProtocolError(&'static str);

/// What was agreed on.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    no_zeroes: bool,
    pub(crate) structured: bool,
    /// The export for which `base:allocation` was selected.
    allocation_of: Option<String>,
}

impl Terms {
    pub(crate) fn has_allocation(&self) -> bool {
        self.allocation_of.is_some()
    }

    /// Keeps what was selected for the export that is chosen in the end, and for no other.
    fn choose(&mut self, name: &str) {
        self.allocation_of = self.allocation_of.take().filter(|chosen| chosen == name);
    }
}

/// What a negotiation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// So many bytes, which go to [`Negotiation::receive`]; 0 is a message without data.
    Bytes(usize),
    /// So many bytes, which are thrown away; `receive` gets none.
    Skip(u64),
}

/// What comes of bytes received.
#[derive(Debug)]
pub enum Step<V> {
    /// The bytes are sent, and the negotiation goes on.
    Continue(Vec<u8>),
    /// The bytes are sent, and the connection ends.
    End(Vec<u8>),
    /// The bytes are sent, and requests for the export follow.
    Chosen(Vec<u8>, Export<V>, Terms),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Flags,
    Header,
    Data { code: u32, len: usize },
    Skip { code: u32, len: u32 },
    Over,
}

/// A connection before its export is chosen.
#[derive(Debug)]
pub struct Negotiation {
    phase: Phase,
    options: usize,
    terms: Terms,
}

impl Negotiation {
    /// Begins one. Returns the greeting, which is sent first.
    #[must_use]
    pub fn begin() -> (Self, Vec<u8>) {
        let mut greeting = Vec::with_capacity(18);
        greeting.extend_from_slice(&wire::MAGIC.to_be_bytes());
        greeting.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        greeting.extend_from_slice(&OFFERED.to_be_bytes());
        let negotiation = Self {
            phase: Phase::Flags,
            options: 0,
            terms: Terms::default(),
        };
        (negotiation, greeting)
    }

    /// Returns what it waits for.
    #[must_use]
    pub fn need(&self) -> Need {
        match self.phase {
            Phase::Flags => Need::Bytes(4),
            Phase::Header => Need::Bytes(OPTION_HEADER_BYTES),
            Phase::Data { len, .. } => Need::Bytes(len),
            Phase::Skip { len, .. } => Need::Skip(u64::from(len)),
            Phase::Over => Need::Bytes(0),
        }
    }

    /// Takes what [`Self::need`] asked for.
    ///
    /// # Errors
    /// The client does not speak the protocol, or chose an export that is not there in the way that has no answer for it.
    ///
    /// # Panics
    /// When it is given another number of bytes than it needs, or anything after its end.
    pub async fn receive<E: Exports>(
        &mut self,
        bytes: &[u8],
        exports: &E,
    ) -> Result<Step<E::Volume>, ProtocolError> {
        let expected = match self.need() {
            Need::Bytes(count) => count,
            Need::Skip(_) => 0,
        };
        assert_eq!(
            bytes.len(),
            expected,
            "what was asked for: {:?}",
            self.phase
        );
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Flags => self.flags(bytes).map(Step::Continue),
            Phase::Header => self.header(bytes).map(Step::Continue),
            Phase::Data { code, .. } => {
                let step = self.option(code, bytes, exports).await?;
                if matches!(step, Step::Continue(_)) {
                    self.phase = Phase::Header;
                }
                Ok(step)
            }
            Phase::Skip { code, .. } => {
                self.phase = Phase::Header;
                Ok(answer(code, reply::ERR_TOO_BIG, b""))
            }
            Phase::Over => panic!("the negotiation is over"),
        }
    }

    fn flags(&mut self, bytes: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        let flags = Reader(bytes).u32().ok_or(ProtocolError("flags"))?;
        if flags & !u32::from(OFFERED) != 0 {
            return Err(ProtocolError("unknown flags"));
        }
        self.terms.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.phase = Phase::Header;
        Ok(Vec::new())
    }

    fn header(&mut self, bytes: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolError("too many options"));
        }
        let mut reader = Reader(bytes);
        let mut read = || Some((reader.u64()?, reader.u32()?, reader.u32()?));
        let (magic, code, len) = read().ok_or(ProtocolError("an option"))?;
        if magic != wire::OPTION_MAGIC {
            return Err(ProtocolError("an option"));
        }
        self.phase = match usize::try_from(len) {
            Ok(len) if len <= OPTION_BYTES_MAX => Phase::Data { code, len },
            _ if code == option::EXPORT_NAME => return Err(ProtocolError("an export's name")),
            _ => Phase::Skip { code, len },
        };
        Ok(Vec::new())
    }

    async fn option<E: Exports>(
        &mut self,
        code: u32,
        data: &[u8],
        exports: &E,
    ) -> Result<Step<E::Volume>, ProtocolError> {
        Ok(match code {
            option::EXPORT_NAME => self.export_name(data, exports).await?,
            option::ABORT => Step::End(wire::option_reply(code, reply::ACK, b"")),
            option::LIST if !data.is_empty() => {
                answer(code, reply::ERR_INVALID, b"LIST takes no data")
            }
            option::LIST => Step::Continue(list(code, &exports.names().await)),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.terms.structured = true;
                answer(code, reply::ACK, b"")
            }
            option::STRUCTURED_REPLY => {
                answer(code, reply::ERR_INVALID, b"STRUCTURED_REPLY takes no data")
            }
            option::INFO | option::GO => self.go(code, data, exports).await,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(code, data, exports).await
            }
            _ => answer(code, reply::ERR_UNSUPPORTED, b""),
        })
    }

    /// The option of before GO: without a reply of its own it can only succeed or end the connection.
    async fn export_name<E: Exports>(
        &mut self,
        data: &[u8],
        exports: &E,
    ) -> Result<Step<E::Volume>, ProtocolError> {
        let name = std::str::from_utf8(data).map_err(|_| ProtocolError("an export's name"))?;
        let export = exports.open(name).await;
        let export = export.ok_or(ProtocolError("an export that is not there"))?;
        let mut bytes = Vec::with_capacity(134);
        bytes.extend_from_slice(&export.size.to_be_bytes());
        bytes.extend_from_slice(&transmission_flags(&export, &self.terms).to_be_bytes());
        if !self.terms.no_zeroes {
            bytes.extend_from_slice(&[0; 124]);
        }
        self.terms.choose(name);
        Ok(Step::Chosen(bytes, export, self.terms.clone()))
    }

    async fn go<E: Exports>(&mut self, code: u32, data: &[u8], exports: &E) -> Step<E::Volume> {
        let Some((name, wanted)) = parse_go(data) else {
            return answer(code, reply::ERR_INVALID, b"malformed");
        };
        let Some(export) = exports.open(name).await else {
            return not_offered(code, name);
        };
        let mut bytes = Vec::new();
        let mut data = info::EXPORT.to_be_bytes().to_vec();
        data.extend_from_slice(&export.size.to_be_bytes());
        data.extend_from_slice(&transmission_flags(&export, &self.terms).to_be_bytes());
        bytes.extend(wire::option_reply(code, reply::INFO, &data));
        if wanted.contains(&info::NAME) {
            let mut data = info::NAME.to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            bytes.extend(wire::option_reply(code, reply::INFO, &data));
        }
        // Any alignment works, so a client that did not ask, and will not obey, may have it as well.
        let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [1, preferred_block(&export), PAYLOAD_BYTES_MAX] {
            data.extend_from_slice(&size.to_be_bytes());
        }
        bytes.extend(wire::option_reply(code, reply::INFO, &data));
        bytes.extend(wire::option_reply(code, reply::ACK, b""));
        if code != option::GO {
            return Step::Continue(bytes);
        }
        self.terms.choose(name);
        Step::Chosen(bytes, export, self.terms.clone())
    }

    async fn meta_context<E: Exports>(
        &mut self,
        code: u32,
        data: &[u8],
        exports: &E,
    ) -> Step<E::Volume> {
        let Some((name, queries)) = parse_meta_context(data) else {
            return answer(code, reply::ERR_INVALID, b"malformed");
        };
        let set = code == option::SET_META_CONTEXT;
        if set {
            self.terms.allocation_of = None;
            if !self.terms.structured {
                return answer(code, reply::ERR_INVALID, b"structured replies come first");
            }
        }
        if exports.open(name).await.is_none() {
            return not_offered(code, name);
        }
        let lists_all = !set && (queries.is_empty() || queries.contains(&"base:"));
        let mut bytes = Vec::new();
        if lists_all || queries.contains(&BASE_ALLOCATION) {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            let mut data = id.to_be_bytes().to_vec();
            data.extend_from_slice(BASE_ALLOCATION.as_bytes());
            bytes.extend(wire::option_reply(code, reply::META_CONTEXT, &data));
            if set {
                self.terms.allocation_of = Some(name.to_owned());
            }
        }
        bytes.extend(wire::option_reply(code, reply::ACK, b""));
        Step::Continue(bytes)
    }
}

/// An option's only reply.
fn answer<V>(code: u32, kind: u32, data: &[u8]) -> Step<V> {
    Step::Continue(wire::option_reply(code, kind, data))
}

fn not_offered<V>(code: u32, name: &str) -> Step<V> {
    let text = format!("no volume '{name}' is offered here");
    answer(code, reply::ERR_UNKNOWN, text.as_bytes())
}

fn list(code: u32, names: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        let len = u32::try_from(name.len()).unwrap_or(0);
        let mut entry = len.to_be_bytes().to_vec();
        entry.extend_from_slice(name.as_bytes());
        bytes.extend(wire::option_reply(code, reply::SERVER, &entry));
    }
    bytes.extend(wire::option_reply(code, reply::ACK, b""));
    bytes
}

/// The name and the kinds of information of INFO and GO.
fn parse_go(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut reader = Reader(data);
    let name = reader.text()?;
    let count = usize::from(reader.u16()?);
    if reader.0.len() != count * 2 {
        return None;
    }
    let wanted = (0..count).map_while(|_| reader.u16()).collect();
    Some((name, wanted))
}

/// The name and the queries of LIST_META_CONTEXT and SET_META_CONTEXT.
fn parse_meta_context(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut reader = Reader(data);
    let name = reader.text()?;
    let count = reader.u32()?;
    // Each query takes four bytes at least, so the data bounds their number.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(reader.text()?);
    }
    reader.0.is_empty().then_some((name, queries))
}

fn preferred_block<V>(export: &Export<V>) -> u32 {
    u32::try_from(export.block_size)
        .unwrap_or(PAYLOAD_BYTES_MAX)
        .clamp(4096, PAYLOAD_BYTES_MAX)
}

/// What an export can do.
fn transmission_flags<V>(export: &Export<V>, terms: &Terms) -> u16 {
    let mut flags = transmission::HAS_FLAGS
        | transmission::FLUSH
        | transmission::FUA
        | transmission::MULTI_CONN
        | transmission::CACHE;
    if export.read_only || export.volume_read_only {
        flags |= transmission::READ_ONLY;
    } else {
        flags |= transmission::TRIM | transmission::WRITE_ZEROES | transmission::FAST_ZERO;
    }
    if terms.structured {
        flags |= transmission::DF;
    }
    flags
}

#[cfg(test)]
mod tests;
