//! Clients and sessions: EXCHANGE_ID to RECLAIM_COMPLETE (RFC 8881, section 18), and SETCLIENTID (RFC 7530, section 16.33).

use super::compound::{Compound, Done, Failure};
use super::operation::{
    CallbackProgram, CreateSession, ExchangeId, Sequence, SetClientId, StateId, StateProtection,
};
use super::reply::ReplyBuilder;
use super::state::{Principal, SequenceOutcome};
use super::status::Status;

/// Flags of EXCHANGE_ID that a client may send (RFC 8881, section 18.35.1), and those that are looked at.
const FLAGS_KNOWN: u32 = 0x0007_0103 | UPDATE;
const UPDATE: u32 = 0x4000_0000;
const CONFIRMED: u32 = 0x8000_0000;
/// EXCHGID4_FLAG_USE_NON_PNFS.
const USE_NON_PNFS: u32 = 0x0001_0000;

impl Compound<'_> {
    fn principal(&self) -> Principal {
        self.credential.into()
    }

    pub(super) fn sequence(&mut self, sequence: &Sequence) -> Done {
        let outcome = self
            .server
            .v4()
            .sequence(sequence, self.record_bytes, self.operations)?;
        let slot = match outcome {
            SequenceOutcome::Repeat(reply) => {
                self.repeated = Some(reply);
                return Ok(());
            }
            SequenceOutcome::Run(slot) => {
                self.slot = Some(slot);
                slot
            }
            SequenceOutcome::RepeatNotKept(slot) => slot,
        };
        let again = self.slot.is_none();
        self.w()
            .opaque_fixed(&slot.session)
            .u32(sequence.sequence)
            .u32(slot.slot)
            .u32(slot.highest_slot)
            .u32(slot.highest_slot)
            .u32(slot.flags);
        if again {
            self.answer_not_kept();
        }
        Ok(())
    }

    /// Ends a repeated request whose answer was not kept: with an error of the operation behind SEQUENCE.
    fn answer_not_kept(&mut self) {
        let mut status = Status::Ok;
        if let Some(second) = self.second {
            status = Status::RetryUncachedReply;
            self.reply.begin(second);
            self.w().u32(status as u32);
        }
        let reply = std::mem::replace(&mut self.reply, ReplyBuilder::new(&[]));
        self.repeated = Some(reply.finish(status).to_vec());
    }

    pub(super) fn exchange_id(&mut self, exchange: &ExchangeId<'_>) -> Done {
        if exchange.flags & !FLAGS_KNOWN != 0 {
            return Err(Status::Invalid.into());
        }
        if exchange.protection != StateProtection::None {
            // They need RPCSEC_GSS.
            return Err(Status::NotSupported.into());
        }
        let exchanged = self.server.v4().exchange_id(
            exchange.owner,
            exchange.verifier,
            self.principal(),
            exchange.flags & UPDATE != 0,
        )?;
        let confirmed = if exchanged.confirmed { CONFIRMED } else { 0 };
        let scope = self.server.scope();
        self.w()
            .u64(exchanged.client)
            .u32(exchanged.sequence)
            .u32(USE_NON_PNFS | confirmed)
            // No state protection.
            .u32(0)
            // server_owner: minor and major id; server_scope; no implementation id.
            .u64(0)
            .opaque(&scope)
            .opaque(&scope)
            .u32(0);
        Ok(())
    }

    pub(super) fn create_session(&mut self, create: &CreateSession) -> Done {
        let (principal, connection) = (self.principal(), self.connection);
        let mut state = self.server.v4();
        let result = state.create_session(create, principal, connection, self.minor)?;
        drop(state);
        self.w().opaque_fixed(&result);
        Ok(())
    }

    pub(super) fn destroy_session(&mut self, session: &[u8; 16]) -> Done {
        Ok(self.server.v4().destroy_session(session)?)
    }

    pub(super) fn bind_connection(&mut self, session: &[u8; 16], direction: u32) -> Done {
        let mut state = self.server.v4();
        state.client_of(session)?;
        let mut bind = || match self.connection {
            Some(connection) => state.bind_back_channel(session, connection).is_ok(),
            None => false,
        };
        // RFC 8881, section 18.34: CDFC4_FORE, _BACK, _FORE_OR_BOTH, _BACK_OR_BOTH. Any connection carries requests.
        let bound = match direction {
            1 => 1,
            2 => {
                bind();
                2
            }
            3 | 7 if bind() => 3,
            3 | 7 => 1,
            _ => return Err(Status::BadXdr.into()),
        };
        drop(state);
        self.w().opaque_fixed(session).u32(bound).bool(false);
        Ok(())
    }

    pub(super) fn set_back_channel(&mut self, program: Option<CallbackProgram>) -> Done {
        let session = self.slot.map(|slot| slot.session);
        let session = session.ok_or(Status::OperationNotInSession)?;
        // RFC 8881, section 18.33.3: what the server can call by none of is an error.
        let program = program.ok_or(Status::NoEntry)?;
        Ok(self.server.v4().set_back_channel(&session, program)?)
    }

    pub(super) fn return_delegation(&mut self, id: &StateId) -> Done {
        let file = self.file(Status::Invalid)?;
        let id = self.state_id(id)?;
        let client = self.session_client();
        let mut state = self.server.v4();
        Ok(state.return_delegation(&id, &file.handle, client, self.minor)?)
    }

    pub(super) fn destroy_client(&mut self, client: u64) -> Done {
        Ok(self.server.v4().destroy_client(client)?)
    }

    pub(super) fn reclaim_complete(&mut self, one_fs: bool) -> Done {
        let client = self.session_client().ok_or(Status::OperationNotInSession)?;
        if one_fs {
            // RFC 8881, section 18.51.3: of a file system that moved here. None does.
            self.target()?;
            return Ok(());
        }
        Ok(self.server.v4().reclaim_complete(client)?)
    }

    pub(super) fn test_states(&mut self, ids: &[StateId]) -> Done {
        let client = self.session_client().ok_or(Status::OperationNotInSession)?;
        let statuses: Vec<Status> = {
            let state = self.server.v4();
            ids.iter().map(|id| state.test_state(id, client)).collect()
        };
        let w = self.w();
        w.u32(u32::try_from(statuses.len()).map_err(|_| Status::ServerFault)?);
        for status in statuses {
            w.u32(status as u32);
        }
        Ok(())
    }

    pub(super) fn free_state(&mut self, id: &StateId) -> Done {
        let client = self.session_client().ok_or(Status::OperationNotInSession)?;
        let id = self.state_id(id)?;
        Ok(self.server.v4().free_state(&id, client)?)
    }

    pub(super) fn set_client_id(&mut self, set: &SetClientId<'_>) -> Done {
        let principal = self.principal();
        let set = self
            .server
            .v4()
            .set_client_id(set.name, set.verifier, principal);
        let (client, confirm) = set.map_err(|status| match status {
            // The address of the other client goes with it: it is not told.
            Status::ClientIdInUse => Failure::With(status, vec![0; 8]),
            other => other.into(),
        })?;
        self.w().u64(client).u64(confirm);
        Ok(())
    }

    pub(super) fn confirm_client_id(&mut self, client: u64, confirm: u64) -> Done {
        let principal = self.principal();
        Ok(self
            .server
            .v4()
            .confirm_client_id(client, confirm, principal)?)
    }
}
