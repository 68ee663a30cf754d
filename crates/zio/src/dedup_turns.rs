//! Turns of the writes of equal blocks: the second is to find what the first has stored.

use runtime::sync::Mutex;

use crate::checks::to_usize;

/// Equal blocks take turns; so do unequal ones whose checksums agree in the bits that choose one of these.
const TURNS: usize = 256;
const _: () = assert!(TURNS.is_power_of_two());

/// The turns of equal blocks, by checksum.
pub(crate) struct Turns(Vec<Mutex<()>>);

impl Default for Turns {
    fn default() -> Self {
        let turn = || Mutex::new("the write of an equal block", ());
        Self(std::iter::repeat_with(turn).take(TURNS).collect())
    }
}

impl Turns {
    /// The turn of blocks with this checksum.
    pub(crate) fn of(&self, checksum: &[u64; 4]) -> &Mutex<()> {
        &self.0[to_usize(checksum[0]) % TURNS]
    }
}
