//! SCSI commands: their data on the way in, their execution, and their answers. RFC 7143 sections 11.3, 11.4, 11.7 and 11.8.

use std::cmp::Ordering;
use std::sync::Arc;

use runtime::IoBuf;

use super::FullFeature;
use crate::bytes::{Field as _, index, len16, len32, put};
use crate::pdu::{Draft, FINAL, Held, NO_TAG, Pdu, opcode};
use crate::scsi::sense::{Sense, asc, key, status};
use crate::scsi::{self, Attribute, Command, Reply};
use crate::task::{Incoming, Step, Task};
use crate::wire::Next;

impl FullFeature {
    pub(super) fn command(self: &Arc<Self>, pdu: &Pdu) -> Next {
        let flags = pdu.flags();
        let (last, reads, writes) = (flags & FINAL != 0, flags & 0x40 != 0, flags & 0x20 != 0);
        let Some(target) = &self.session.target else {
            // A discovery session takes no commands.
            return self.protocol_error(pdu);
        };
        let mut cdb = [0; 16];
        put(&mut cdb, 0, pdu.bhs.part(32, 16));
        let unit = target.unit(pdu.lun(), &self.session.nexus);
        let expected = index(pdu.bhs.u32_at(20));
        let block = unit.as_ref().map_or(512, |unit| unit.block());
        let wants = scsi::data_out_bytes(&cdb, block);
        let needed = wants.unwrap_or(0);
        // A command that wants too much is answered by what it is, without its data.
        let wanted = if writes && unit.is_some() {
            usize::try_from(needed).unwrap_or(0).min(expected)
        } else {
            0
        };
        let room = if writes {
            wanted
        } else {
            expected.min(usize::try_from(scsi::TRANSFER_BYTES_MAX).unwrap_or(0))
        };
        let memory = self.registry.memory.reserve(room);
        let full = memory.is_none();
        let task = Arc::new(Task::new(
            pdu.itt(),
            pdu.lun(),
            cdb,
            unit,
            self.wire.clone(),
            expected,
            needed,
            reads,
            memory,
        ));
        if !self.session.tasks.add(&task) {
            return self.protocol_error(pdu);
        }
        let unsolicited = !pdu.data.is_empty() || !last;
        if unsolicited && (!writes || pdu.data.len() > expected) {
            return self.protocol_error(pdu);
        }
        if !pdu.data.is_empty() && !self.session.terms.immediate_data
            || !last && self.session.terms.initial_r2t
        {
            return self.protocol_error(pdu);
        }
        if full {
            self.answer(&task, Reply::status(status::TASK_SET_FULL));
            return Next::Continue;
        }
        // SAM-5 section 8.6. Untagged is as simple; there is never an ACA that a command could be for.
        let attribute = match flags & 7 {
            0 | 1 => Attribute::Simple,
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            _ => {
                self.answer(&task, Sense::illegal(asc::MESSAGE).into());
                return Next::Continue;
            }
        };
        if let Some(unit) = &task.unit {
            task.set_entry(unit.task_set.enter(attribute));
        }
        if reads && writes {
            self.answer(&task, Sense::cdb(0).into());
            return Next::Continue;
        }
        if task.unit.is_none() {
            // Whatever data may come for it is not waited for.
            self.run(task);
            return Next::Continue;
        }
        // What compares or repeats its data must get exactly as much as it says.
        let inexact = writes && scsi::is_exact(&cdb) && task.expected as u64 != needed;
        if inexact {
            self.answer(&task, Sense::cdb(0).into());
            return Next::Continue;
        }
        if let Err(sense) = wants {
            self.answer(&task, sense.into());
            return Next::Continue;
        }
        if !writes || wanted == 0 && last {
            self.run(task);
            return Next::Continue;
        }
        let mut incoming = Incoming::new(wanted, self.session.terms.first_burst.min(expected));
        let step = incoming.take(0, &pdu.data, last);
        task.expect(incoming);
        self.proceed(&task, step, pdu)
    }

    pub(super) fn data_out(self: &Arc<Self>, pdu: &Pdu) -> Next {
        let Some(task) = self.session.tasks.get(pdu.itt()) else {
            // Of a task that was aborted or answered before its data came.
            return Next::Continue;
        };
        let step = task.with_data(|incoming| {
            let ttt_fits = incoming.ttt == pdu.ttt();
            if !ttt_fits || pdu.bhs.u32_at(36) != incoming.data_sn {
                return Step::Wrong;
            }
            incoming.data_sn = incoming.data_sn.wrapping_add(1);
            let offset = index(pdu.bhs.u32_at(40));
            incoming.take(offset, &pdu.data, pdu.flags() & FINAL != 0)
        });
        match step {
            Some(Step::Wrong) => {
                // Recovery level 0 asks for nothing again: the command fails. RFC 7143 section 7.9.
                let sense = Sense::new(key::ABORTED_COMMAND, asc::PROTOCOL_SERVICE);
                self.answer(&task, sense.into());
                Next::Continue
            }
            Some(step) => self.proceed(&task, step, pdu),
            None => Next::Continue,
        }
    }

    fn proceed(self: &Arc<Self>, task: &Arc<Task>, step: Step, pdu: &Pdu) -> Next {
        match step {
            Step::More => Next::Continue,
            Step::Complete => {
                self.run(task.clone());
                Next::Continue
            }
            Step::Ask => {
                self.ask(task);
                Next::Continue
            }
            Step::Wrong => self.protocol_error(pdu),
        }
    }

    /// Asks for the next burst of a task's data.
    fn ask(&self, task: &Arc<Task>) {
        let ttt = self.wire.tag();
        let asked = task.with_data(|incoming| {
            let from = incoming.next;
            let len = self.session.terms.max_burst.min(incoming.wanted - from);
            incoming.burst_end = from + len;
            incoming.ttt = ttt;
            incoming.data_sn = 0;
            let number = incoming.r2t_sn;
            incoming.r2t_sn = number.wrapping_add(1);
            (from, len, number)
        });
        if let Some((from, len, number)) = asked {
            let draft = Draft::new(opcode::R2T, FINAL, task.itt)
                .lun(task.lun)
                .word(20, ttt)
                .word(36, number)
                .word(40, len32(from))
                .word(44, len32(len))
                .uncounted();
            self.send(draft);
        }
    }

    fn run(self: &Arc<Self>, task: Arc<Task>) {
        let Some(target) = self.session.target.clone() else {
            return;
        };
        let command = Command {
            cdb: task.cdb,
            data: task.take_data(),
            nexus: self.session.nexus.clone(),
            target,
        };
        let Some(unit) = task.unit.clone() else {
            self.answer(&task, scsi::execute_nowhere(&command));
            return;
        };
        let connection = self.clone();
        self.wire.run(Box::pin(async move {
            let mut entry = task.take_entry();
            if let Some(entry) = &mut entry {
                entry.started().await;
            }
            let reply = if task.is_aborted() {
                Reply::good()
            } else {
                unit.execute(command).await
            };
            connection.answer(&task, reply);
            // What waits for this command starts after its answer.
            drop(entry);
        }));
    }

    /// Answers a task, unless it was aborted.
    fn answer(&self, task: &Arc<Task>, reply: Reply) {
        self.session.tasks.remove(task);
        let entry = task.take_entry();
        if !task.end() {
            return;
        }
        let len: usize = reply.data.iter().map(|piece| piece.len()).sum();
        let sense = reply.sense.map(|sense| {
            let descriptor = task
                .unit
                .as_ref()
                .is_some_and(|unit| unit.descriptor_sense());
            sense.encode(descriptor)
        });
        // What the command had to move, against what the initiator expected.
        let moved = if task.needed > 0 && sense.is_none() {
            task.needed
        } else {
            len as u64
        };
        let expected = task.expected as u64;
        let (bit, residual) = match moved.cmp(&expected) {
            Ordering::Greater => (0x04, moved - expected),
            Ordering::Less => (0x02, expected - moved),
            Ordering::Equal => (0, 0),
        };
        let residual = u32::try_from(residual).unwrap_or(u32::MAX);
        let sends = len.min(task.expected);
        let mut sent_sn = 0;
        if sends > 0 && task.reads {
            let in_data = reply.status == status::GOOD && sense.is_none();
            sent_sn = self.data_in(task, reply.data, sends, in_data, bit, residual);
            if in_data {
                return;
            }
        }
        let mut data = Vec::new();
        if let Some(sense) = sense {
            data.extend_from_slice(&len16(sense.len()).to_be_bytes());
            data.extend_from_slice(&sense);
        }
        let draft = Draft::new(opcode::RESPONSE, FINAL | bit, task.itt)
            .byte(3, reply.status)
            .word(36, sent_sn)
            .word(44, residual)
            .data(data);
        self.send(draft);
        drop(entry);
    }

    /// Sends data; with `status`, good status rides on the last piece. Returns the number of PDUs.
    #[allow(clippy::too_many_arguments, reason = "the fields of the last PDU")]
    fn data_in(
        &self,
        task: &Arc<Task>,
        pieces: Vec<IoBuf>,
        total: usize,
        status: bool,
        bit: u8,
        residual: u32,
    ) -> u32 {
        let max = self.wire.max_send();
        let burst = self.session.terms.max_burst.max(512);
        let mut pieces = pieces.into_iter();
        let mut piece = pieces.next().unwrap_or_default();
        let (mut offset, mut number) = (0, 0_u32);
        while offset < total {
            // A sequence ends where a burst does.
            let burst_left = burst - offset % burst;
            let len = max.min(burst_left).min(total - offset);
            let mut part = Vec::new();
            let mut left = len;
            while left > 0 {
                if piece.is_empty() {
                    match pieces.next() {
                        Some(next) => piece = next,
                        None => break,
                    }
                    continue;
                }
                let take = left.min(piece.len());
                part.push(piece.slice(0..take));
                piece = piece.slice(take..piece.len());
                left -= take;
            }
            let last = offset + len >= total;
            let ends_burst = last || len == burst_left;
            let mut flags = if ends_burst { FINAL } else { 0 };
            if last && status {
                flags |= 0x01 | bit;
            }
            let mut draft = Draft::new(opcode::DATA_IN, flags, task.itt)
                .word(20, NO_TAG)
                .word(36, number)
                .word(40, len32(offset));
            draft.pieces = part;
            draft.held = task
                .memory
                .clone()
                .map(|memory| -> Arc<dyn Held> { memory });
            if last && status {
                draft = draft.word(44, residual);
            } else {
                draft = draft.uncounted();
            }
            self.send(draft);
            offset += len;
            number = number.wrapping_add(1);
        }
        number
    }
}
