//! How two appliances come to know each other: one invites, the other redeems the code of the invitation.
//!
//! A code is four letters by which the invitation is found, and 100 random bits that never go over the wire. Both sides prove that they have
//! them by an HMAC over the SHA-256 of both certificates as each side sees them on the TLS connection between them, whose handshake proves
//! that each side has the key of its certificate:
//!
//! ```text
//! redeemer -> inviter   letters, HMAC(bits, "redeemer" inviter's certificate, redeemer's certificate)
//! inviter -> redeemer   HMAC(bits, "inviter"  inviter's certificate, redeemer's certificate)
//! ```
//! What stands between the two has another certificate towards each side, so that neither proof holds; and it learns nothing by which it could
//! make one, since 100 bits are not guessed, neither in the quarter of an hour that a code holds nor later from what was recorded. A shorter
//! code would need a password-authenticated key exchange (RFC 9382); one that holds the fingerprint would be longer, and prove one direction.
//!
//! Guarantees: a code is good once, for [`VALID_SECONDS`], and for [`ATTEMPTS_MAX`] attempts of those who know its letters; others are counted
//! by address. Invitations are in memory only and end with the process.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::hmac;

use super::definition::Peer;
use super::identity::Fingerprint;
use crate::attempts::Attempts;
use crate::secret::random;

/// Seconds for which a code is good.
pub const VALID_SECONDS: u64 = 900;
/// Wrong proofs after which an invitation is withdrawn.
pub const ATTEMPTS_MAX: u32 = 5;
/// Invitations at once; one more ends the oldest.
const INVITATIONS_MAX: usize = 16;
/// The digits of codes: without I, L, O and U, which are misread (Crockford's base 32).
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Digits by which an invitation is found.
const ID_DIGITS: usize = 4;
/// Digits of the secret: five bits each.
const SECRET_DIGITS: usize = 20;
/// Digits between two dashes.
const GROUP_DIGITS: usize = 4;
/// A proof that a side has the secret of a code.
pub type Proof = [u8; 32];

/// A side of a pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingSide {
    /// It made the code.
    Inviter,
    /// It was given the code.
    Redeemer,
}

/// The code of an invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({}...)", self.id())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, digit) in self.0.chars().enumerate() {
            if at > 0 && at.is_multiple_of(GROUP_DIGITS) {
                f.write_str("-")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

impl Code {
    /// Makes a code.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn make() -> std::io::Result<Self> {
        let bytes = random::<{ ID_DIGITS + SECRET_DIGITS }>()?;
        // 256 is a multiple of 32: all digits are equally likely.
        let digit = |byte: &u8| char::from(DIGITS[usize::from(byte % 32)]);
        Ok(Self(bytes.iter().map(digit).collect()))
    }

    /// Reads a code as a person types it: in small letters too, with or without dashes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut digits = String::new();
        for letter in text.trim().chars().filter(|letter| *letter != '-') {
            let letter = match letter.to_ascii_uppercase() {
                'O' => '0',
                'I' | 'L' => '1',
                other => other,
            };
            if digits.len() >= ID_DIGITS + SECRET_DIGITS || !letter.is_ascii() {
                return None;
            }
            digits.push(letter);
        }
        let is_digit = |byte: u8| DIGITS.contains(&byte);
        let is_code = digits.len() == ID_DIGITS + SECRET_DIGITS && digits.bytes().all(is_digit);
        is_code.then_some(Self(digits))
    }

    /// The letters by which the invitation is found. They are no secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0[..ID_DIGITS]
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0.as_bytes()[ID_DIGITS..])
    }

    /// Returns the proof of a side.
    ///
    /// # Panics
    /// HMAC-SHA256 has another length than 32 bytes.
    #[must_use]
    pub fn proof(&self, side: PairingSide, inviter: &Fingerprint, redeemer: &Fingerprint) -> Proof {
        let tag = hmac::sign(&self.key(), &proven(side, inviter, redeemer));
        tag.as_ref().try_into().expect("32 bytes of HMAC-SHA256")
    }

    /// Whether a proof is that of a side. It takes as long whatever is wrong with it.
    #[must_use]
    pub fn is_proven(
        &self,
        proof: &Proof,
        side: PairingSide,
        inviter: &Fingerprint,
        redeemer: &Fingerprint,
    ) -> bool {
        hmac::verify(&self.key(), &proven(side, inviter, redeemer), proof).is_ok()
    }
}

/// What a side proves.
fn proven(side: PairingSide, inviter: &Fingerprint, redeemer: &Fingerprint) -> Vec<u8> {
    let side: &[u8] = match side {
        PairingSide::Inviter => b"sanbox pairing 1: inviter ",
        PairingSide::Redeemer => b"sanbox pairing 1: redeemer",
    };
    [side, &inviter.0, &redeemer.0].concat()
}

/// What who redeems an invitation may do here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What the peer is to be called here; empty: as it calls itself.
    pub name: String,
    /// As of [`Peer`].
    pub datasets: Vec<String>,
    /// As of [`Peer`].
    pub push: bool,
    /// As of [`Peer`].
    pub pull: bool,
    /// As of [`Peer`].
    pub failover: bool,
}

impl Grant {
    /// The peer with this certificate that it makes; `calls_itself` is the name that it gave.
    #[must_use]
    pub fn peer(&self, certificate: Fingerprint, calls_itself: &str) -> Peer {
        let name = match self.name.is_empty() {
            true => calls_itself,
            false => &self.name,
        };
        Peer {
            name: name.to_owned(),
            certificate,
            address: String::new(),
            datasets: self.datasets.clone(),
            push: self.push,
            pull: self.pull,
            failover: self.failover,
        }
    }
}

/// Why a code is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingError {
    /// There is no such invitation, any more or at all, or the proof is wrong: which, is not told.
    #[error(
        "the code is not good (any more): it holds for 15 minutes, once, and for {ATTEMPTS_MAX} attempts; 'sanbox peer invite' there makes another"
    )]
    NotGood,
    /// Too many attempts.
    #[error("too many attempts: wait {0} s")]
    Wait(u64),
}

struct Invitation {
    code: Code,
    grant: Grant,
    ends: u64,
    wrong: u32,
}

/// The invitations of an appliance.
#[derive(Default)]
pub struct Invitations {
    pending: Vec<Invitation>,
    attempts: Attempts,
}

impl fmt::Debug for Invitations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invitations({})", self.pending.len())
    }
}

impl Invitations {
    /// Makes an invitation. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn invite(&mut self, grant: Grant, now: u64) -> std::io::Result<Code> {
        self.expire(now);
        let code = loop {
            let code = Code::make()?;
            if self
                .pending
                .iter()
                .all(|known| known.code.id() != code.id())
            {
                break code;
            }
        };
        if self.pending.len() >= INVITATIONS_MAX {
            self.pending.remove(0);
        }
        self.pending.push(Invitation {
            code: code.clone(),
            grant,
            ends: now + VALID_SECONDS,
            wrong: 0,
        });
        Ok(code)
    }

    /// Whether there is one that is good still.
    pub fn is_any(&mut self, now: u64) -> bool {
        self.expire(now);
        !self.pending.is_empty()
    }

    /// Returns what an invitation grants, and the inviter's proof, when the redeemer's is right. The invitation is over then.
    ///
    /// # Errors
    /// [`PairingError`].
    pub fn redeem(
        &mut self,
        from: IpAddr,
        id: &str,
        proof: &Proof,
        (inviter, redeemer): (&Fingerprint, &Fingerprint),
        now: u64,
    ) -> Result<(Grant, Proof), PairingError> {
        self.expire(now);
        // Counted by address alone: what strangers do elsewhere is in the way of none.
        let address = from.to_string();
        if let Some(seconds) = self.attempts.wait(from, &address, now) {
            return Err(PairingError::Wait(seconds));
        }
        let at = self.pending.iter().position(|known| known.code.id() == id);
        let Some(at) = at else {
            self.attempts.failed(from, &address, now);
            return Err(PairingError::NotGood);
        };
        let known = &mut self.pending[at];
        if !known
            .code
            .is_proven(proof, PairingSide::Redeemer, inviter, redeemer)
        {
            known.wrong += 1;
            if known.wrong >= ATTEMPTS_MAX {
                self.pending.remove(at);
            }
            self.attempts.failed(from, &address, now);
            return Err(PairingError::NotGood);
        }
        let Invitation { code, grant, .. } = self.pending.remove(at);
        let proof = code.proof(PairingSide::Inviter, inviter, redeemer);
        Ok((grant, proof))
    }

    fn expire(&mut self, now: u64) {
        self.pending.retain(|known| now < known.ends);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn certificates() -> (Fingerprint, Fingerprint) {
        (Fingerprint::of(b"inviter"), Fingerprint::of(b"redeemer"))
    }

    fn redeem(
        invitations: &mut Invitations,
        code: &Code,
        now: u64,
    ) -> Result<(Grant, Proof), PairingError> {
        let (inviter, redeemer) = certificates();
        let proof = code.proof(PairingSide::Redeemer, &inviter, &redeemer);
        invitations.redeem(FROM, code.id(), &proof, (&inviter, &redeemer), now)
    }

    #[test]
    fn codes_are_read_as_people_type_them() {
        let code = Code::make().expect("random");
        let text = code.to_string();
        assert_eq!(text.len(), 29);
        assert_eq!(Code::parse(&text), Some(code.clone()));
        assert_eq!(
            Code::parse(&text.to_lowercase().replace('-', "")),
            Some(code.clone())
        );
        assert_eq!(
            Code::parse(&text.replace('1', "l").replace('0', "o")),
            Some(code.clone())
        );
        for bad in [
            "",
            "ABCD",
            &text[1..],
            &format!("{text}0"),
            &text.replace('-', "U"),
        ] {
            assert_eq!(Code::parse(bad), None, "{bad}");
        }
        assert!(!format!("{code:?}").contains(&text[5..]));
    }

    #[test]
    fn a_code_is_good_once_and_proves_both_sides() {
        let mut invitations = Invitations::default();
        let grant = Grant {
            datasets: vec!["tank/vm".to_owned()],
            push: true,
            ..Grant::default()
        };
        let code = invitations.invite(grant.clone(), 100).expect("made");
        let (granted, proof) = redeem(&mut invitations, &code, 100).expect("redeemed");
        assert_eq!(granted, grant);
        let (inviter, redeemer) = certificates();
        assert!(code.is_proven(&proof, PairingSide::Inviter, &inviter, &redeemer));
        // What the inviter sent is no proof of the redeemer, and the code is no good a second time.
        assert!(!code.is_proven(&proof, PairingSide::Redeemer, &inviter, &redeemer));
        assert_eq!(
            redeem(&mut invitations, &code, 100),
            Err(PairingError::NotGood)
        );
    }

    #[test]
    fn what_stands_between_both_sides_proves_nothing() {
        let mut invitations = Invitations::default();
        let code = invitations.invite(Grant::default(), 0).expect("made");
        let (inviter, redeemer) = certificates();
        let between = Fingerprint::of(b"between");
        // The redeemer sees the certificate of what stands between, the inviter does too: the proof is passed on as it came.
        let passed_on = code.proof(PairingSide::Redeemer, &between, &redeemer);
        let seen = (&inviter, &between);
        let answer = invitations.redeem(FROM, code.id(), &passed_on, seen, 0);
        assert_eq!(answer, Err(PairingError::NotGood));
        let proof = code.proof(PairingSide::Inviter, &inviter, &between);
        assert!(!code.is_proven(&proof, PairingSide::Inviter, &between, &redeemer));
    }

    #[test]
    fn codes_end_with_time_and_with_attempts() {
        let mut invitations = Invitations::default();
        let code = invitations.invite(Grant::default(), 100).expect("made");
        assert!(invitations.is_any(100 + VALID_SECONDS - 1));
        assert_eq!(
            redeem(&mut invitations, &code, 100 + VALID_SECONDS),
            Err(PairingError::NotGood)
        );
        assert!(!invitations.is_any(100 + VALID_SECONDS));

        let code = invitations.invite(Grant::default(), 5000).expect("made");
        let (inviter, redeemer) = certificates();
        let mut now = 5000;
        for host in 0..ATTEMPTS_MAX {
            let from = IpAddr::V4(Ipv4Addr::from_bits(host));
            let seen = (&inviter, &redeemer);
            let answer = invitations.redeem(from, code.id(), &[0; 32], seen, now);
            assert_eq!(answer, Err(PairingError::NotGood), "{host}");
            now += 1;
        }
        assert_eq!(
            redeem(&mut invitations, &code, now),
            Err(PairingError::NotGood)
        );

        // Those who know no letters end no invitation, and are slowed down.
        let code = invitations.invite(Grant::default(), 9000).expect("made");
        let stranger = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
        let mut waits = 0;
        for _ in 0..40 {
            let seen = (&inviter, &redeemer);
            let answer = invitations.redeem(stranger, "????", &[0; 32], seen, 9000);
            waits += u32::from(matches!(answer, Err(PairingError::Wait(_))));
        }
        assert!(waits >= 30, "{waits}");
        assert!(redeem(&mut invitations, &code, 9000).is_ok());
    }
}
