//! Token copies (ODX): POPULATE TOKEN, WRITE USING TOKEN, RECEIVE ROD TOKEN INFORMATION. SPC-4 section 5.17.6, SBC-3 sections
//! 4.28, 5.20 and 5.45.
//!
//! A token stands for ranges of a unit as they were; a change of them revokes it. An initiator that knows a token may use it, so it is made
//! of random bytes.

use std::sync::Arc;

use super::cdb::service;
use super::extent::Extent;
use super::sense::{Sense, asc};
use super::tokens::{SECRET_BYTES, Token, TokenResult};
use super::{Command, Executed, LogicalUnit, Reply, copy};
use crate::bytes::{Field as _, index, len32, put};

/// Ranges of one token or one use of it.
pub(super) const RANGES_MAX: usize = 64;
/// Logical blocks of one token.
pub(super) const BLOCKS_MAX: u64 = 1 << 21;
/// How long an unused token lives, in seconds, when the initiator does not say; and at most.
pub(super) const INACTIVITY_SECONDS: u32 = 30;
pub(super) const INACTIVITY_SECONDS_MAX: u32 = 300;
/// A copy of the moment that changes revoke.
pub(super) const KIND_MOMENT: u32 = 0x0080_0000;
/// Zeros.
pub(super) const KIND_ZERO: u32 = 0xffff_0001;
/// Bytes of a token.
const TOKEN_BYTES: usize = 512;
/// Where the random bytes stand in a token.
const SECRET_AT: usize = 128;

/// The parameter list of POPULATE TOKEN: time-out in seconds, kind, ranges in logical blocks.
pub(super) struct Populate {
    timeout: u32,
    kind: Option<u32>,
    ranges: Vec<(u64, u64)>,
}

/// The parameter list of WRITE USING TOKEN.
pub(super) struct Use {
    delete: bool,
    skip: u64,
    token: Vec<u8>,
    ranges: Vec<(u64, u64)>,
}

fn parse_ranges(list: &[u8], length_at: usize, at: usize) -> Result<Vec<(u64, u64)>, Sense> {
    let len = usize::from(list.u16_at(length_at));
    if len == 0 || !len.is_multiple_of(16) || at + len > list.len() {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    if len / 16 > RANGES_MAX {
        return Err(Sense::illegal(asc::TOO_MANY_SEGMENTS));
    }
    let ranges = (0..len / 16).map(|n| {
        let place = at + 16 * n;
        (list.u64_at(place), u64::from(list.u32_at(place + 8)))
    });
    Ok(ranges.collect())
}

pub(super) fn parse_populate(list: &[u8]) -> Result<Populate, Sense> {
    if list.len() < 32 || usize::from(list.u16_at(0)) + 2 > list.len() {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    let kind = list.u32_at(8);
    Ok(Populate {
        timeout: list.u32_at(4),
        kind: (list.u8_at(2) & 2 != 0).then_some(kind),
        ranges: parse_ranges(list, 14, 16)?,
    })
}

pub(super) fn parse_write(list: &[u8]) -> Result<Use, Sense> {
    if list.len() < 552 || usize::from(list.u16_at(0)) + 2 > list.len() {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    Ok(Use {
        delete: list.u8_at(2) & 2 != 0,
        skip: list.u64_at(8),
        token: list.part(16, TOKEN_BYTES).to_vec(),
        ranges: parse_ranges(list, 534, 536)?,
    })
}

impl LogicalUnit {
    fn extents(&self, ranges: &[(u64, u64)]) -> Result<(Vec<Extent>, u64), Sense> {
        let (mut extents, mut blocks) = (Vec::with_capacity(ranges.len()), 0_u64);
        for (lba, count) in ranges.iter().filter(|(_, count)| *count > 0) {
            extents.push(self.extent(*lba, *count)?);
            blocks = blocks.saturating_add(*count);
        }
        if blocks > BLOCKS_MAX {
            return Err(Sense::parameter(0));
        }
        Ok((extents, blocks))
    }

    pub(super) async fn populate_token(&self, command: &Command) -> Executed {
        let list = parse_populate(&command.data.bytes())?;
        if list
            .kind
            .is_some_and(|kind| kind != 0 && kind != KIND_MOMENT)
        {
            return Err(Sense::parameter(8));
        }
        if list.timeout > INACTIVITY_SECONDS_MAX {
            return Err(Sense::parameter(4));
        }
        let (ranges, blocks) = self.extents(&list.ranges)?;
        let mut secret = [0; SECRET_BYTES];
        self.environment.random(&mut secret);
        let timeout = match list.timeout {
            0 => INACTIVITY_SECONDS,
            seconds => seconds,
        };
        let mut token = vec![0; TOKEN_BYTES];
        put(&mut token, 0, &KIND_MOMENT.to_be_bytes());
        put(&mut token, 6, &504_u16.to_be_bytes());
        put(&mut token, 8, secret.part(0, 8));
        put(&mut token, 56, &(blocks * self.block()).to_be_bytes());
        put(&mut token, SECRET_AT, &secret);
        let now = self.environment.now_seconds();
        self.tokens.add(
            Token {
                secret,
                ranges,
                revoked: false,
                used: now,
                timeout,
            },
            now,
        );
        self.tokens.remember(TokenResult {
            nexus: command.nexus.id,
            list: command.cdb.u32_at(6),
            action: service::POPULATE_TOKEN,
            blocks,
            token: Some(token),
        });
        Ok(Reply::good())
    }

    pub(super) async fn write_using_token(self: &Arc<Self>, command: &Command) -> Executed {
        let list = parse_write(&command.data.bytes())?;
        let (extents, _) = self.extents(&list.ranges)?;
        let block = self.block();
        let kind = list.token.u32_at(0);
        let mut copied = 0;
        if kind == KIND_ZERO {
            for extent in &extents {
                self.tokens.revoke(extent.offset, extent.len);
                let zeroed = self
                    .volume
                    .zero(extent.offset, extent.len, self.stability(false))
                    .await;
                zeroed.map_err(|error| Sense::of(error, true))?;
                copied += extent.len;
            }
        } else {
            if kind != KIND_MOMENT || list.token.u16_at(6) != 504 {
                return Err(Sense::illegal(asc::TOKEN_CORRUPT));
            }
            let secret = list.token.part(SECRET_AT, SECRET_BYTES);
            let now = self.environment.now_seconds();
            let found = command
                .target
                .units_for(&command.nexus)
                .into_iter()
                .find_map(|unit| Some((unit.tokens.find(secret, now)?, unit)));
            let Some((token, source)) = found else {
                return Err(Sense::illegal(asc::TOKEN_UNKNOWN));
            };
            if token.revoked {
                return Err(Sense::illegal(asc::TOKEN_REVOKED));
            }
            let mut from = Walk::new(&token.ranges, list.skip.saturating_mul(block))?;
            for extent in &extents {
                let mut at = 0;
                while at < extent.len {
                    let Some(piece) = from.next(extent.len - at) else {
                        return Err(Sense::illegal(asc::TOKEN_LENGTH));
                    };
                    copied += copy::copy(command, &source, piece, self, extent.offset + at).await?;
                    at += piece.len;
                }
            }
            if list.delete {
                source.tokens.forget(secret);
            }
        }
        self.tokens.remember(TokenResult {
            nexus: command.nexus.id,
            list: command.cdb.u32_at(6),
            action: service::WRITE_USING_TOKEN,
            blocks: copied / block,
            token: None,
        });
        Ok(Reply::good())
    }

    pub(super) fn token_information(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let (nexus, list) = (command.nexus.id, cdb.u32_at(2));
        let Some(found) = self.tokens.result(nexus, list) else {
            return Err(Sense::cdb(2));
        };
        let mut bytes = vec![0; 32];
        // Completed without errors; counted in blocks.
        put(&mut bytes, 4, &[found.action, 0x01]);
        put(&mut bytes, 15, &[0xf1]);
        put(&mut bytes, 16, &found.blocks.to_be_bytes());
        put(&mut bytes, 24, &1_u16.to_be_bytes());
        match &found.token {
            Some(token) => {
                bytes.extend_from_slice(&len32(token.len() + 2).to_be_bytes());
                bytes.extend_from_slice(&[0, 0]);
                bytes.extend_from_slice(token);
            }
            None => bytes.extend_from_slice(&[0; 4]),
        }
        let len = len32(bytes.len() - 4);
        put(&mut bytes, 0, &len.to_be_bytes());
        Ok(Reply::data(bytes, index(cdb.u32_at(10))))
    }
}

/// Walks over the ranges of a token in order.
struct Walk<'a> {
    ranges: &'a [Extent],
    at: u64,
}

impl<'a> Walk<'a> {
    fn new(ranges: &'a [Extent], skip: u64) -> Result<Self, Sense> {
        let mut walk = Self { ranges, at: 0 };
        let mut left = skip;
        while left > 0 {
            match walk.next(left) {
                Some(piece) => left -= piece.len,
                None => return Err(Sense::illegal(asc::TOKEN_LENGTH)),
            }
        }
        Ok(walk)
    }

    /// The next bytes, at most `most`, that follow each other on the unit.
    fn next(&mut self, most: u64) -> Option<Extent> {
        let (first, rest) = self.ranges.split_first()?;
        let len = (first.len - self.at).min(most);
        let piece = Extent {
            offset: first.offset + self.at,
            len,
        };
        self.at += len;
        if self.at == first.len {
            self.ranges = rest;
            self.at = 0;
        }
        Some(piece)
    }
}
