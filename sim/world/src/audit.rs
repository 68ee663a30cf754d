//! The event hash: every decision and effect of a run, folded into one number.
//!
//! Two runs of one seed must give the same number; when they do not, something in the engine depends on more than
//! the seed (an address, a default-hashed map, a clock), and no seed can be trusted to replay.

/// A running hash of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventHash {
    value: u64,
    events: u64,
}

impl Default for EventHash {
    fn default() -> Self {
        Self {
            value: 0xcbf2_9ce4_8422_2325,
            events: 0,
        }
    }
}

impl EventHash {
    /// Folds a number in.
    pub fn add(&mut self, number: u64) {
        self.events += 1;
        self.value = mix(self.value ^ number);
    }

    /// Folds bytes in.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        let mut value = self.value ^ bytes.len() as u64;
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            value = (value ^ word)
                .wrapping_mul(0x9fb2_1c65_1e98_df25)
                .rotate_left(31);
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.add(value ^ u64::from_le_bytes(last));
    }

    /// Returns the hash.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Returns how many events were folded in.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}
