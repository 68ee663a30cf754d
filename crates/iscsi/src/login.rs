//! The login phase: the initiator's name, whether it may log in, and what is negotiated. RFC 7143 section 6.

use std::sync::Arc;

use crate::bytes::Field as _;
use crate::chap::{self, Algorithm};
use crate::keys::{Reply, Terms, binary_value, parse, push};
use crate::pdu::{Draft, Pdu, opcode};
use crate::registry::Registry;
use crate::scsi::{Nexus, Port};
use crate::session::Session;
use crate::spec::{Chap, PORTAL_GROUP};
use crate::target::Target;
use crate::wire::{Wire, WireTerms};

/// Bytes of text gathered over several PDUs.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// PDUs of one login.
const ROUNDS_MAX: u32 = 64;

/// Status classes and details of login responses. RFC 7143 section 11.13.5.
mod status {
    pub(super) const SUCCESS: u16 = 0x0000;
    pub(super) const MOVED: u16 = 0x0101;
    pub(super) const INITIATOR_ERROR: u16 = 0x0200;
    pub(super) const AUTHENTICATION: u16 = 0x0201;
    pub(super) const AUTHORIZATION: u16 = 0x0202;
    pub(super) const NOT_FOUND: u16 = 0x0203;
    pub(super) const VERSION: u16 = 0x0205;
    pub(super) const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    pub(super) const MISSING_PARAMETER: u16 = 0x0207;
    pub(super) const CANNOT_INCLUDE: u16 = 0x0208;
    pub(super) const NO_SESSION: u16 = 0x020a;
    pub(super) const UNAVAILABLE: u16 = 0x0301;
    pub(super) const OUT_OF_RESOURCES: u16 = 0x0302;
}

/// Stages of a login.
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// How far authentication has come.
#[derive(Debug)]
enum Proof {
    /// Nothing was said about it yet.
    Unsaid,
    /// It is not wanted, or done.
    Done,
    /// CHAP was chosen; the initiator is to say its algorithms.
    Chosen,
    /// A challenge was sent.
    Challenged {
        algorithm: Algorithm,
        identifier: u8,
        challenge: Vec<u8>,
    },
}

/// A login under way.
#[derive(Debug)]
pub(crate) struct Login {
    rounds: u32,
    stage: u8,
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
    cmd_sn: u32,
    started: bool,
    text: Vec<u8>,
    initiator: Option<String>,
    target_name: Option<String>,
    discovery: bool,
    target: Option<Arc<Target>>,
    proof: Proof,
    declared: bool,
    announced: bool,
    terms: Terms,
}

/// The connection that logs in, and the server it logs in to.
pub(crate) struct Asking<'a> {
    pub(crate) registry: &'a Arc<Registry>,
    pub(crate) wire: &'a Arc<Wire>,
}

/// What a login PDU leads to.
pub(crate) struct Outcome {
    pub(crate) answer: Draft,
    /// The connection ends after the answer.
    pub(crate) ends: bool,
    /// The login is complete, with this session.
    pub(crate) session: Option<(Arc<Session>, WireTerms)>,
}

/// Why a login fails, as a status.
struct Refused(u16);

impl Login {
    pub(crate) fn new() -> Self {
        Self {
            rounds: 0,
            stage: SECURITY,
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            itt: 0,
            cmd_sn: 0,
            started: false,
            text: Vec::new(),
            initiator: None,
            target_name: None,
            discovery: false,
            target: None,
            proof: Proof::Unsaid,
            declared: false,
            announced: false,
            terms: Terms::default(),
        }
    }

    /// Takes a PDU; `None` when it is no login request, which ends the connection without an answer.
    pub(crate) fn receive(&mut self, asking: &Asking<'_>, pdu: &Pdu) -> Option<Outcome> {
        if pdu.opcode() != opcode::LOGIN {
            return None;
        }
        self.rounds += 1;
        let flags = pdu.flags();
        let (transit, continues) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let (current, next) = (flags >> 2 & 3, flags & 3);
        let mut answer = Response {
            itt: pdu.itt(),
            flags: current << 2,
            text: String::new(),
            status: status::SUCCESS,
            tsih: self.tsih,
        };
        let outcome = self.step(asking, pdu, transit, continues, current, next, &mut answer);
        let session = match outcome {
            Ok(session) => session,
            Err(Refused(why)) => {
                answer.status = why;
                answer.flags = flags & 0x8f;
                if why != status::MOVED {
                    answer.text.clear();
                }
                return Some(Outcome {
                    answer: answer.draft(self.isid),
                    ends: true,
                    session: None,
                });
            }
        };
        if let Some((session, _)) = &session {
            answer.tsih = session.tsih;
        }
        Some(Outcome {
            answer: answer.draft(self.isid),
            ends: false,
            session,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one header")]
    fn step(
        &mut self,
        asking: &Asking<'_>,
        pdu: &Pdu,
        transit: bool,
        continues: bool,
        current: u8,
        next: u8,
        answer: &mut Response,
    ) -> Result<Option<(Arc<Session>, WireTerms)>, Refused> {
        // Version-min above ours.
        if pdu.bhs[3] > 0 {
            return Err(Refused(status::VERSION));
        }
        if self.rounds > ROUNDS_MAX {
            return Err(Refused(status::INITIATOR_ERROR));
        }
        let mut isid = [0; 6];
        crate::bytes::put(&mut isid, 0, pdu.bhs.part(8, 6));
        let tsih = pdu.bhs.u16_at(14);
        if self.started {
            if isid != self.isid || tsih != self.tsih || pdu.itt() != self.itt {
                return Err(Refused(status::INITIATOR_ERROR));
            }
        } else {
            self.started = true;
            (self.isid, self.tsih, self.itt) = (isid, tsih, pdu.itt());
            self.cid = pdu.bhs.u16_at(20);
            self.cmd_sn = pdu.cmd_sn();
            self.stage = current;
        }
        if current != self.stage || current > OPERATIONAL || (transit && continues) {
            return Err(Refused(status::INITIATOR_ERROR));
        }
        if transit && (next <= current || next == 2) {
            return Err(Refused(status::INITIATOR_ERROR));
        }
        if self.text.len() + pdu.data.len() > TEXT_BYTES_MAX {
            return Err(Refused(status::OUT_OF_RESOURCES));
        }
        self.text.extend_from_slice(&pdu.data.bytes());
        if continues {
            return Ok(None);
        }
        let text = std::mem::take(&mut self.text);
        let pairs = parse(&text).ok_or(Refused(status::INITIATOR_ERROR))?;
        self.identify(asking, &pairs)?;
        self.announce(asking, answer);
        let discovery = self.discovery;
        if current == SECURITY {
            self.authenticate(asking, &pairs, answer)?;
        } else if !matches!(self.proof, Proof::Done) {
            if self.wants_proof(asking) {
                return Err(Refused(status::AUTHENTICATION));
            }
            self.proof = Proof::Done;
        }
        for (key, value) in &pairs {
            if is_identity(key) || is_security(key) {
                continue;
            }
            match self.terms.settle(key, value, discovery) {
                Reply::Value(value) => push(&mut answer.text, key, &value),
                Reply::Silent => {}
                Reply::NotUnderstood => push(&mut answer.text, key, "NotUnderstood"),
                Reply::Reject => push(&mut answer.text, key, "Reject"),
            }
        }
        if current == OPERATIONAL && !self.declared {
            self.declared = true;
            let (key, value) = Terms::declaration();
            push(&mut answer.text, key, &value);
        }
        if !transit {
            return Ok(None);
        }
        if current == SECURITY && !matches!(self.proof, Proof::Done) {
            // More of the exchange is to come: we do not go along yet.
            if matches!(self.proof, Proof::Unsaid) {
                if self.wants_proof(asking) {
                    return Err(Refused(status::AUTHENTICATION));
                }
                self.proof = Proof::Done;
            } else {
                return Ok(None);
            }
        }
        answer.flags |= 0x80 | next;
        self.stage = next;
        if next < FULL_FEATURE {
            return Ok(None);
        }
        let redirect = self
            .target
            .as_ref()
            .and_then(|target| target.spec().redirect)
            .filter(|address| *address != asking.wire.local);
        // An initiator that came by the address to which others are redirected is at the right portal.
        if let Some(address) = redirect {
            push(&mut answer.text, "TargetAddress", &address.to_string());
            return Err(Refused(status::MOVED));
        }
        self.terms.first_burst = self.terms.first_burst.min(self.terms.max_burst);
        let session = self.complete(asking)?;
        let terms = WireTerms {
            cid: self.cid,
            max_send: self.terms.max_send,
            header_digest: self.terms.header_digest,
            data_digest: self.terms.data_digest,
        };
        Ok(Some((session, terms)))
    }

    /// Takes the names of the initiator and the target.
    fn identify(&mut self, asking: &Asking<'_>, pairs: &[(String, String)]) -> Result<(), Refused> {
        let find = |wanted: &str| {
            pairs
                .iter()
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.clone())
        };
        if self.initiator.is_some() {
            return Ok(());
        }
        let initiator = find("InitiatorName").ok_or(Refused(status::MISSING_PARAMETER))?;
        if initiator.is_empty() || initiator.len() > 223 {
            return Err(Refused(status::INITIATOR_ERROR));
        }
        self.discovery = match find("SessionType").as_deref() {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(Refused(status::INITIATOR_ERROR)),
        };
        let peer = asking.wire.peer.ip();
        let registry = &asking.registry;
        if registry.must_wait(peer) {
            return Err(Refused(status::UNAVAILABLE));
        }
        if !self.discovery {
            let name = find("TargetName").ok_or(Refused(status::MISSING_PARAMETER))?;
            let target = registry.target(&name).ok_or(Refused(status::NOT_FOUND))?;
            if !target.admits(&initiator, peer) {
                return Err(Refused(status::AUTHORIZATION));
            }
            self.target_name = Some(name);
            self.target = Some(target);
        }
        self.initiator = Some(initiator);
        Ok(())
    }

    /// Says once what targets declare.
    fn announce(&mut self, asking: &Asking<'_>, answer: &mut Response) {
        if self.announced {
            return;
        }
        self.announced = true;
        if let Some(target) = &self.target {
            let alias = target.spec().alias;
            if !alias.is_empty() {
                push(&mut answer.text, "TargetAlias", &alias);
            }
            let group = target.group_of(asking.wire.local);
            push(&mut answer.text, "TargetPortalGroupTag", &group.to_string());
        }
    }

    fn required(&self, asking: &Asking<'_>) -> Option<Chap> {
        match &self.target {
            Some(target) => target.spec().chap,
            None => asking.registry.discovery(),
        }
    }

    fn wants_proof(&self, asking: &Asking<'_>) -> bool {
        self.required(asking).is_some()
    }

    fn authenticate(
        &mut self,
        asking: &Asking<'_>,
        pairs: &[(String, String)],
        answer: &mut Response,
    ) -> Result<(), Refused> {
        let find = |wanted: &str| {
            pairs
                .iter()
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.as_str())
        };
        let required = self.required(asking);
        if let Some(offered) = find("AuthMethod") {
            let offers = |method: &str| offered.split(',').any(|one| one == method);
            match (&required, offers("CHAP"), offers("None")) {
                (Some(_), true, _) => {
                    push(&mut answer.text, "AuthMethod", "CHAP");
                    self.proof = Proof::Chosen;
                }
                (None, _, true) => {
                    push(&mut answer.text, "AuthMethod", "None");
                    self.proof = Proof::Done;
                }
                _ => return Err(Refused(status::AUTHENTICATION)),
            }
        }
        if let Some(algorithms) = find("CHAP_A") {
            if !matches!(self.proof, Proof::Chosen) {
                return Err(Refused(status::INITIATOR_ERROR));
            }
            let algorithm = chap::choose(algorithms).ok_or(Refused(status::AUTHENTICATION))?;
            let mut challenge = vec![0; chap::CHALLENGE_BYTES + 1];
            asking.registry.config.environment.random(&mut challenge);
            let identifier = challenge.pop().unwrap_or(0);
            push(&mut answer.text, "CHAP_A", algorithm.number());
            push(&mut answer.text, "CHAP_I", &identifier.to_string());
            push(&mut answer.text, "CHAP_C", &chap::text(&challenge));
            self.proof = Proof::Challenged {
                algorithm,
                identifier,
                challenge,
            };
            return Ok(());
        }
        if let (Some(name), Some(response)) = (find("CHAP_N"), find("CHAP_R")) {
            let good = self.check(required.as_ref(), name, response);
            let peer = asking.wire.peer.ip();
            asking.registry.note_login(peer, good);
            if !good {
                return Err(Refused(status::AUTHENTICATION));
            }
            self.prove(find("CHAP_I"), find("CHAP_C"), answer)?;
            self.proof = Proof::Done;
        }
        Ok(())
    }

    fn check(&self, required: Option<&Chap>, name: &str, response: &str) -> bool {
        let Proof::Challenged {
            algorithm,
            identifier,
            challenge,
        } = &self.proof
        else {
            return false;
        };
        let (Some(required), Some(response)) = (required, binary_value(response, 64)) else {
            return false;
        };
        let expected = algorithm.response(*identifier, required.secret.as_bytes(), challenge);
        // Both are compared whatever the other says, so that time tells nothing.
        let right_name = chap::same(name.as_bytes(), required.user.as_bytes());
        let right_response = chap::same(&response, &expected);
        right_name && right_response
    }

    /// Answers the initiator's own challenge: mutual authentication.
    fn prove(
        &self,
        identifier: Option<&str>,
        challenge: Option<&str>,
        answer: &mut Response,
    ) -> Result<(), Refused> {
        let (Some(identifier), Some(challenge)) = (identifier, challenge) else {
            return Ok(());
        };
        let Proof::Challenged {
            algorithm,
            challenge: ours,
            ..
        } = &self.proof
        else {
            return Err(Refused(status::INITIATOR_ERROR));
        };
        let mutual = self.target.as_ref().and_then(|target| target.spec().mutual);
        let mutual = mutual.ok_or(Refused(status::AUTHENTICATION))?;
        let identifier: u8 = identifier
            .parse()
            .map_err(|_| Refused(status::INITIATOR_ERROR))?;
        let theirs = binary_value(challenge, chap::CHALLENGE_BYTES_MAX)
            .ok_or(Refused(status::INITIATOR_ERROR))?;
        // Our own challenge sent back would make us answer it for them. RFC 7143 section 9.2.1.
        if theirs == *ours {
            return Err(Refused(status::AUTHENTICATION));
        }
        let response = algorithm.response(identifier, mutual.secret.as_bytes(), &theirs);
        push(&mut answer.text, "CHAP_N", &mutual.user);
        push(&mut answer.text, "CHAP_R", &chap::text(&response));
        Ok(())
    }

    /// Makes the session, or joins the one that is there.
    fn complete(&mut self, asking: &Asking<'_>) -> Result<Arc<Session>, Refused> {
        let registry = &asking.registry;
        let group = self
            .target
            .as_ref()
            .map_or(PORTAL_GROUP, |target| target.group_of(asking.wire.local));
        let port = Port {
            initiator: self.initiator.clone().unwrap_or_default(),
            isid: self.isid,
            group,
        };
        let target_name = self.target_name.clone().unwrap_or_default();
        if self.tsih != 0 {
            let session = registry
                .session(self.tsih)
                .ok_or(Refused(status::NO_SESSION))?;
            let same_target =
                session.target.as_ref().map_or("", |t| t.name.as_str()) == target_name;
            if session.nexus.port != port || !same_target {
                return Err(Refused(status::CANNOT_INCLUDE));
            }
            let connections = session.connections().len();
            if session.connection(self.cid).is_none()
                && connections >= usize::from(session.terms.connections_max)
            {
                return Err(Refused(status::TOO_MANY_CONNECTIONS));
            }
            if let Some(replaced) = session.connect(self.cid, asking.wire) {
                replaced.close();
                session.disconnect(&replaced);
            }
            return Ok(session);
        }
        // The same port again: the old session is reinstated, which ends what it was at. RFC 7143 section 6.3.5.
        if let Some(old) = registry.session_of(&port, &target_name)
            && !self.discovery
        {
            registry.end_session(&old);
        }
        let nexus = Nexus {
            id: registry.unique(),
            port,
            peer: asking.wire.peer.ip(),
        };
        let (target, terms, cmd_sn) = (self.target.clone(), self.terms.clone(), self.cmd_sn);
        let session = registry
            .add_session(move |tsih| Session::new(nexus, tsih, target, terms, cmd_sn))
            .ok_or(Refused(status::OUT_OF_RESOURCES))?;
        let _ = session.connect(self.cid, asking.wire);
        Ok(session)
    }
}

fn is_identity(key: &str) -> bool {
    matches!(key, "InitiatorName" | "TargetName" | "SessionType")
}

fn is_security(key: &str) -> bool {
    key == "AuthMethod" || key.starts_with("CHAP_")
}

/// A login response being made.
struct Response {
    itt: u32,
    flags: u8,
    text: String,
    status: u16,
    tsih: u16,
}

impl Response {
    fn draft(self, isid: [u8; 6]) -> Draft {
        let [class, detail] = self.status.to_be_bytes();
        let mut draft = Draft::new(opcode::LOGIN_RESPONSE, self.flags, self.itt)
            .byte(36, class)
            .byte(37, detail)
            .data(self.text.into_bytes());
        crate::bytes::put(&mut draft.bhs, 8, &isid);
        crate::bytes::put(&mut draft.bhs, 14, &self.tsih.to_be_bytes());
        draft
    }
}
