//! Which clients have mounted what.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Which client mounted what, as far as it said.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    pub(crate) entries: BTreeSet<(IpAddr, String)>,
}
