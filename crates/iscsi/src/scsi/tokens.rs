//! The tokens made of a unit, and the results of its token commands, as long as they are kept. SPC-4 section 5.17.6.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::extent::Extent;
use crate::chap::same;

/// Tokens and results kept for one unit.
const TOKENS_MAX: usize = 64;
/// Random bytes that make a token what it is.
pub(super) const SECRET_BYTES: usize = 32;

/// The tokens made of one unit, and the results of its token commands.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// Tokens that may be used; checked before the lock is taken, by every write.
    alive: AtomicUsize,
    state: Mutex<TokenState>,
}

#[derive(Debug, Default)]
struct TokenState {
    tokens: Vec<Token>,
    results: Vec<TokenResult>,
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) ranges: Vec<Extent>,
    pub(super) revoked: bool,
    /// Seconds, when it was last used, and how long it may rest.
    pub(super) used: u64,
    pub(super) timeout: u32,
}

/// The result of a token command, for RECEIVE ROD TOKEN INFORMATION.
#[derive(Debug, Clone)]
pub(super) struct TokenResult {
    pub(super) nexus: u64,
    pub(super) list: u32,
    pub(super) action: u8,
    pub(super) blocks: u64,
    pub(super) token: Option<Vec<u8>>,
}

impl Tokens {
    /// The result of a token command of a session, by its list identifier.
    pub(super) fn result(&self, nexus: u64, list: u32) -> Option<TokenResult> {
        let state = self.state();
        let mut results = state.results.iter();
        let found = results.find(|known| known.nexus == nexus && known.list == list);
        found.cloned()
    }

    fn state(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range is about to change: tokens of it are worth nothing any more.
    pub(crate) fn revoke(&self, offset: u64, len: u64) {
        if self.alive.load(Ordering::Acquire) == 0 {
            return;
        }
        let end = offset.saturating_add(len);
        let mut state = self.state();
        for token in state.tokens.iter_mut().filter(|token| !token.revoked) {
            let hit = |range: &Extent| range.offset < end && offset < range.offset + range.len;
            if token.ranges.iter().any(hit) {
                token.revoked = true;
            }
        }
        let alive = state.tokens.iter().filter(|token| !token.revoked).count();
        self.alive.store(alive, Ordering::Release);
    }

    pub(super) fn add(&self, token: Token, now: u64) {
        let mut state = self.state();
        state
            .tokens
            .retain(|known| now < known.used + u64::from(known.timeout));
        if state.tokens.len() >= TOKENS_MAX {
            state.tokens.remove(0);
        }
        state.tokens.push(token);
        let alive = state.tokens.iter().filter(|token| !token.revoked).count();
        self.alive.store(alive, Ordering::Release);
    }

    /// Finds a token; every one is compared, in the same time.
    pub(super) fn find(&self, secret: &[u8], now: u64) -> Option<Token> {
        let mut state = self.state();
        let found = state
            .tokens
            .iter_mut()
            .find(|token| same(&token.secret, secret))?;
        if now >= found.used + u64::from(found.timeout) {
            return None;
        }
        found.used = now;
        Some(found.clone())
    }

    pub(super) fn forget(&self, secret: &[u8]) {
        self.state().tokens.retain(|token| token.secret != secret);
    }

    pub(super) fn remember(&self, result: TokenResult) {
        let mut state = self.state();
        state
            .results
            .retain(|known| known.nexus != result.nexus || known.list != result.list);
        if state.results.len() >= TOKENS_MAX {
            state.results.remove(0);
        }
        state.results.push(result);
    }
}
