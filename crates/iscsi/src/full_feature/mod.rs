//! The full feature phase of a connection: requests in the order of their numbers, by kind. RFC 7143 sections 4.2.2 and 11.

mod command;
mod task_management;
mod text;

use std::sync::{Arc, PoisonError};

use crate::bytes::Field as _;
use crate::pdu::{Draft, FINAL, NO_TAG, Pdu, opcode};
use crate::registry::Registry;
use crate::session::Session;
use crate::wire::{Next, Wire};

/// Reasons of rejects. RFC 7143 section 11.17.1.
mod reason {
    pub(super) const DATA_DIGEST: u8 = 0x02;
    pub(super) const PROTOCOL: u8 = 0x04;
    pub(super) const NOT_SUPPORTED: u8 = 0x05;
}

/// A connection that is logged in: its server, its session, and where its answers go.
#[derive(Debug)]
pub(crate) struct FullFeature {
    registry: Arc<Registry>,
    pub(crate) session: Arc<Session>,
    wire: Arc<Wire>,
}

impl FullFeature {
    pub(crate) fn new(registry: Arc<Registry>, session: Arc<Session>, wire: Arc<Wire>) -> Self {
        Self {
            registry,
            session,
            wire,
        }
    }

    /// The same for another connection of the session, whose request waited for one of this.
    fn with_wire(&self, wire: Arc<Wire>) -> Arc<Self> {
        Arc::new(Self::new(self.registry.clone(), self.session.clone(), wire))
    }

    fn send(&self, draft: Draft) {
        self.wire.send(draft, || self.session.window());
    }

    /// Ends the connection: its tasks, and the session with its last connection.
    pub(crate) fn end(&self) -> Next {
        self.wire.close();
        if self.session.disconnect(&self.wire) {
            self.registry.end_session(&self.session);
        }
        Next::End
    }

    /// A PDU whose digest is wrong: the connection ends. RFC 7143 section 7.7.
    pub(crate) fn damaged(&self, pdu: &Pdu) -> Next {
        self.reject(reason::DATA_DIGEST, pdu);
        self.end()
    }

    /// Asks whether the initiator is still there.
    pub(crate) fn ping(&self) {
        let draft = Draft::new(opcode::NOP_IN, FINAL, NO_TAG)
            .word(20, self.wire.tag())
            .uncounted();
        self.send(draft);
    }

    fn reject(&self, why: u8, pdu: &Pdu) {
        let draft = Draft::new(opcode::REJECT, FINAL, NO_TAG)
            .byte(2, why)
            .data(pdu.bhs.to_vec());
        self.send(draft);
    }

    /// Breaks off because the initiator does not keep to the protocol.
    fn protocol_error(self: &Arc<Self>, pdu: &Pdu) -> Next {
        self.reject(reason::PROTOCOL, pdu);
        self.end()
    }

    /// Takes a PDU.
    pub(crate) fn receive(self: &Arc<Self>, pdu: Pdu) -> Next {
        match pdu.opcode() {
            opcode::DATA_OUT => self.data_out(&pdu),
            opcode::NOP_OUT if pdu.itt() == NO_TAG => Next::Continue,
            opcode::NOP_OUT
            | opcode::COMMAND
            | opcode::TASK_MANAGEMENT
            | opcode::TEXT
            | opcode::LOGOUT => self.in_order(pdu),
            opcode::SNACK => {
                self.reject(reason::NOT_SUPPORTED, &pdu);
                Next::Continue
            }
            _ => self.protocol_error(&pdu),
        }
    }

    /// Delivers requests in the order of their numbers; immediate ones at once.
    fn in_order(self: &Arc<Self>, pdu: Pdu) -> Next {
        let _order = self
            .session
            .order
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Next::Continue;
        let mut next = if pdu.immediate() {
            // It may have been an abort that others waited for.
            outcome = self.deliver(pdu);
            self.session.next(None)
        } else {
            self.session.next(Some((&self.wire, pdu)))
        };
        while let Some((wire, pdu)) = next {
            if Arc::ptr_eq(&wire, &self.wire) {
                if self.deliver(pdu) == Next::End {
                    outcome = Next::End;
                }
            } else {
                self.with_wire(wire).deliver(pdu);
            }
            next = self.session.next(None);
        }
        outcome
    }

    fn deliver(self: &Arc<Self>, pdu: Pdu) -> Next {
        match pdu.opcode() {
            opcode::COMMAND => self.command(&pdu),
            opcode::NOP_OUT => {
                let mut data = pdu.data.bytes().into_owned();
                data.truncate(self.wire.max_send());
                let draft = Draft::new(opcode::NOP_IN, FINAL, pdu.bhs.u32_at(16))
                    .word(20, NO_TAG)
                    .data(data);
                self.send(draft);
                Next::Continue
            }
            opcode::TASK_MANAGEMENT => self.task_management(&pdu),
            opcode::TEXT => self.text(&pdu),
            _ => self.logout(&pdu),
        }
    }

    fn logout(self: &Arc<Self>, pdu: &Pdu) -> Next {
        let reason = pdu.flags() & 0x7f;
        let cid = pdu.bhs.u16_at(20);
        let ours = self.wire.cid();
        let response = match reason {
            0 => 0,
            1 if self.session.connection(cid).is_some() => 0,
            1 => 1,
            // Removal for recovery is for higher recovery levels.
            _ => 2,
        };
        let draft = Draft::new(opcode::LOGOUT_RESPONSE, FINAL, pdu.itt())
            .byte(2, response)
            .word(
                40,
                u32::from(self.session.terms.time2wait) << 16
                    | u32::from(self.session.terms.time2retain),
            );
        self.send(draft);
        if response != 0 {
            return Next::Continue;
        }
        match reason {
            0 => {
                self.registry.end_session(&self.session);
                Next::End
            }
            _ if cid == ours => self.end(),
            _ => {
                if let Some(other) = self.session.connection(cid) {
                    other.close();
                    self.session.disconnect(&other);
                }
                Next::Continue
            }
        }
    }
}
