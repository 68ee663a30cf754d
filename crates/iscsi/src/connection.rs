//! One TCP connection: from its login to full feature phase, PDU by PDU. RFC 7143 sections 4 and 11.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bytes::Field as _;
use crate::full_feature::FullFeature;
use crate::login::{Asking, Login};
use crate::pdu::{BHS_BYTES, Pdu, Rest, Shape, Violation, opcode};
use crate::registry::Registry;
use crate::scsi;
use crate::wire::{Next, Wire};

/// Data from this size on is read into pieces that are blocks of the volume.
const APART_BYTES: usize = 4 << 10;
/// The least size of a piece: less is copied as fast as it is handled.
const PIECE_BYTES_MIN: u64 = 16 << 10;

/// A connection, for the owner of its socket.
#[derive(Debug)]
pub struct Connection {
    registry: Arc<Registry>,
    wire: Arc<Wire>,
    phase: Mutex<Phase>,
}

/// What a connection is at.
#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    Full(Arc<FullFeature>),
    Ended,
}

impl Connection {
    pub(crate) fn new(registry: Arc<Registry>, wire: Arc<Wire>) -> Self {
        Self {
            registry,
            wire,
            phase: Mutex::new(Phase::Login(Box::new(Login::new()))),
        }
    }

    /// Returns what follows a header, and into which pieces data for a volume is best read.
    ///
    /// # Errors
    /// [`Violation::TooLong`]: what follows means nothing.
    pub fn shape(&self, bhs: &[u8; BHS_BYTES]) -> Result<Shape, Violation> {
        let mut shape = self.wire.framing().shape(bhs)?;
        if shape.data >= APART_BYTES
            && let Some((first, each)) = self.pieces(bhs)
        {
            (shape.first, shape.each) = (first.min(shape.data), each);
        }
        Ok(shape)
    }

    /// Takes a PDU: its header and everything after it, as long as [`Connection::shape`] says.
    pub fn receive(&self, bhs: [u8; BHS_BYTES], rest: Rest) -> Next {
        match Pdu::read(bhs, rest, self.wire.framing()) {
            Ok(pdu) => self.take(pdu),
            // The bytes that follow mean nothing any more.
            Err(_) => self.end(),
        }
    }

    /// Nothing has come for a while: asks whether the initiator is still there.
    pub fn ping(&self) {
        if let Some(full) = self.full_feature() {
            full.ping();
        }
    }

    /// Whether the login is complete.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        self.full_feature().is_some()
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What takes requests, from the end of the login to that of the connection.
    fn full_feature(&self) -> Option<Arc<FullFeature>> {
        match &*self.phase() {
            Phase::Full(full) if !self.wire.is_closed() => Some(full.clone()),
            _ => None,
        }
    }

    /// The first and each further length of the pieces in which the data after a header is kept without a copy: up to the end of
    /// a block of the volume that is written, and blocks. `None` when the data is for no volume.
    fn pieces(&self, bhs: &[u8; BHS_BYTES]) -> Option<(usize, usize)> {
        let full = self.full_feature()?;
        let session = &full.session;
        let (unit, cdb, offset) = match bhs[0] & 0x3f {
            opcode::DATA_OUT => {
                let task = session.tasks.get(bhs.u32_at(16))?;
                (task.unit.clone()?, task.cdb, u64::from(bhs.u32_at(40)))
            }
            opcode::COMMAND => {
                let mut cdb = [0; 16];
                crate::bytes::put(&mut cdb, 0, bhs.part(32, 16));
                let target = session.target.as_ref()?;
                (target.unit(bhs.u64_at(8), &session.nexus)?, cdb, 0)
            }
            _ => return None,
        };
        let start = scsi::write_start(&cdb, unit.block())?.checked_add(offset)?;
        let each = unit.volume_block().max(PIECE_BYTES_MIN);
        let first = each - start % each;
        Some((usize::try_from(first).ok()?, usize::try_from(each).ok()?))
    }

    fn take(&self, pdu: Pdu) -> Next {
        // The server may have ended the session meanwhile.
        if self.wire.is_closed() {
            return Next::End;
        }
        let full = match &*self.phase() {
            Phase::Full(full) => Some(full.clone()),
            Phase::Login(_) | Phase::Ended => None,
        };
        if let Some(full) = full {
            return if pdu.damaged {
                full.damaged(&pdu)
            } else {
                full.receive(pdu)
            };
        }
        let phase = std::mem::replace(&mut *self.phase(), Phase::Ended);
        match phase {
            Phase::Login(login) if !pdu.damaged => self.log_in(login, &pdu),
            _ => self.end(),
        }
    }

    fn log_in(&self, mut login: Box<Login>, pdu: &Pdu) -> Next {
        let asking = Asking {
            registry: &self.registry,
            wire: &self.wire,
        };
        let Some(outcome) = login.receive(&asking, pdu) else {
            return self.end();
        };
        let Some((session, terms)) = outcome.session else {
            self.wire.send_login(outcome.answer, pdu.cmd_sn());
            if outcome.ends {
                return self.end();
            }
            *self.phase() = Phase::Login(login);
            return Next::Continue;
        };
        let window = session.window();
        let full = FullFeature::new(self.registry.clone(), session, self.wire.clone());
        *self.phase() = Phase::Full(Arc::new(full));
        if self.wire.complete_login(outcome.answer, window, &terms) {
            Next::Continue
        } else {
            self.end()
        }
    }

    fn end(&self) -> Next {
        let phase = std::mem::replace(&mut *self.phase(), Phase::Ended);
        if let Phase::Full(full) = phase {
            return full.end();
        }
        self.wire.close();
        Next::End
    }
}

impl Drop for Connection {
    /// The socket is gone: so are the connection's tasks, and the session with its last connection.
    fn drop(&mut self) {
        self.end();
    }
}
