//! What the whole-system tests share: golden pools, the oracles that judge us, and loud skipping.
//!
//! Nothing here knows the engine's insides. A test whose oracle is not installed says so on standard error and, when
//! `SANBOX_REQUIRE_ORACLES` is set (as in CI), fails instead of passing quietly.

#![forbid(unsafe_code)]

pub mod golden;
pub mod oracle;

use std::path::PathBuf;

/// Returns the repository's root.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// Says aloud that `what` is not tested here, and why.
///
/// # Panics
/// When `SANBOX_REQUIRE_ORACLES` is set: there, everything must be installed.
pub fn skip(what: &str, why: &str) {
    assert!(
        std::env::var_os("SANBOX_REQUIRE_ORACLES").is_none(),
        "{what}: {why}, and SANBOX_REQUIRE_ORACLES is set"
    );
    eprintln!("SKIPPED {what}: {why}");
}
