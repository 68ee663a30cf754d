//! Text negotiation: discovery of targets. RFC 7143 sections 11.10 and 11.11, and appendix C.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::{FullFeature, reason};
use crate::keys::{self, Terms};
use crate::pdu::{Draft, FINAL, NO_TAG, Pdu, opcode};
use crate::spec::{PORTAL_GROUP, Portal, check_name};
use crate::wire::{Next, PendingText};

impl FullFeature {
    fn pending_text(&self) -> MutexGuard<'_, PendingText> {
        self.wire
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn text(self: &Arc<Self>, pdu: &Pdu) -> Next {
        let continues = pdu.flags() & 0x40 != 0;
        let ttt = pdu.ttt();
        let pending = {
            let mut text = self.pending_text();
            if text.asked.len() + pdu.data.len() > 64 << 10 {
                drop(text);
                return self.protocol_error(pdu);
            }
            match text.answer.take() {
                Some((tag, rest)) if tag == ttt => Some(rest),
                _ => {
                    text.asked.extend_from_slice(&pdu.data.bytes());
                    None
                }
            }
        };
        let text = match pending {
            Some(rest) => rest,
            None if continues => Vec::new(),
            None => {
                let asked = std::mem::take(&mut self.pending_text().asked);
                let Some(pairs) = keys::parse(&asked) else {
                    return self.protocol_error(pdu);
                };
                match self.answer_text(&pairs) {
                    Some(text) => text,
                    None => {
                        self.reject(reason::PROTOCOL, pdu);
                        return Next::Continue;
                    }
                }
            }
        };
        self.send_text(pdu.itt(), text);
        Next::Continue
    }

    fn send_text(&self, itt: u32, mut text: Vec<u8>) {
        let max = self.wire.max_send();
        if text.len() <= max {
            let draft = Draft::new(opcode::TEXT_RESPONSE, FINAL, itt)
                .word(20, NO_TAG)
                .data(text);
            self.send(draft);
            return;
        }
        let rest = text.split_off(max);
        let tag = self.wire.tag();
        self.pending_text().answer = Some((tag, rest));
        let draft = Draft::new(opcode::TEXT_RESPONSE, 0x40, itt)
            .word(20, tag)
            .data(text);
        self.send(draft);
    }

    /// The answer to a text; `None` when it asks for targets in words that mean nothing.
    fn answer_text(&self, pairs: &[(String, String)]) -> Option<Vec<u8>> {
        let mut text = String::new();
        for (key, value) in pairs {
            let start = key.get(.."SendTargets".len()).unwrap_or_default();
            if key != "SendTargets" && start.eq_ignore_ascii_case("SendTargets") {
                return None;
            }
            if key != "SendTargets" {
                // Operational keys may not be negotiated anew, but for the one that is declared.
                if key != "MaxRecvDataSegmentLength" {
                    keys::push(&mut text, key, "Reject");
                    continue;
                }
                let mut terms = Terms::default();
                if terms.settle(key, value, false) == keys::Reply::Silent {
                    self.wire.set_max_send(terms.max_send);
                }
                continue;
            }
            let own = self
                .session
                .target
                .as_ref()
                .map(|target| target.name.clone());
            let wanted = match (value.as_str(), own) {
                // A normal session sees its own target only. RFC 7143 appendix C has no "All" there; initiators that ask for it
                // all the same (libiscsi's suite wants an answer) are told no more.
                ("All" | "", Some(own)) => Some(own),
                ("All", None) => None,
                ("", None) => {
                    keys::push(&mut text, key, "Reject");
                    continue;
                }
                (name, _) if check_name(name).is_err() => return None,
                (name, _) => Some(name.to_owned()),
            };
            let initiator = &self.session.nexus.port.initiator;
            for target in self.registry.targets() {
                let asked = wanted.as_ref().is_none_or(|name| *name == target.name);
                if !asked || !target.admits(initiator, self.wire.peer.ip()) {
                    continue;
                }
                keys::push(&mut text, "TargetName", &target.name);
                let mut portals = target.spec().portals;
                if portals.is_empty() {
                    portals.push(Portal {
                        address: self.wire.local,
                        group: PORTAL_GROUP,
                    });
                }
                for portal in portals {
                    let address = format!("{},{}", portal.address, portal.group);
                    keys::push(&mut text, "TargetAddress", &address);
                }
            }
        }
        Some(text.into_bytes())
    }
}
