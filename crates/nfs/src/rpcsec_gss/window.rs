//! The sequence window of a context (RFC 2203, section 5.3.3.1): each number is taken once, and none that is too old.

/// How many numbers, down from the highest one that was seen, are told apart. Linux's server has 128; connections here have as many calls
/// under way each, and a client may have several.
pub(crate) const WINDOW: u32 = 1024;

const WORDS: usize = (WINDOW / 64) as usize;

/// Which numbers of a context were seen.
#[derive(Debug)]
pub(crate) struct SequenceWindow {
    highest: u32,
    /// A bit for each of the last numbers, by its remainder.
    seen: [u64; WORDS],
}

impl Default for SequenceWindow {
    fn default() -> Self {
        Self {
            highest: 0,
            seen: [0; WORDS],
        }
    }
}

impl SequenceWindow {
    /// Takes note of a number. False when it was seen before, or would not be known if it was.
    pub(crate) fn admit(&mut self, number: u32) -> bool {
        if number > self.highest {
            for skipped in 1..=(number - self.highest).min(WINDOW) {
                let (word, bit) = self.bit(number - (skipped - 1));
                *word &= !bit;
            }
            self.highest = number;
        } else if self.highest - number >= WINDOW {
            return false;
        }
        let (word, bit) = self.bit(number);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn bit(&mut self, number: u32) -> (&mut u64, u64) {
        let place = number % WINDOW;
        let word = usize::try_from(place / 64).unwrap_or(0);
        let word = self.seen.get_mut(word);
        (
            word.expect("a remainder is within the window"),
            1 << (place % 64),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_once_while_they_are_in_the_window() {
        let mut window = SequenceWindow::default();
        assert!(window.admit(0) && !window.admit(0));
        assert!(window.admit(5) && window.admit(3) && !window.admit(5));
        assert!(window.admit(WINDOW + 4));
        // 5 is the lowest one that is still known.
        assert!(!window.admit(4) && !window.admit(5) && window.admit(6));
        assert!(window.admit(10 * WINDOW) && !window.admit(9 * WINDOW));
        assert!(window.admit(9 * WINDOW + 1) && !window.admit(9 * WINDOW + 1));
        assert!(window.admit(u32::MAX) && !window.admit(u32::MAX));
    }

    #[test]
    fn any_order_within_the_window_is_taken() {
        let mut window = SequenceWindow::default();
        for first in (1..40_000).step_by(997) {
            let forth: Vec<u32> = (first..first + 997).rev().collect();
            assert!(forth.iter().all(|number| window.admit(*number)));
            assert!(!forth.iter().any(|number| window.admit(*number)));
        }
    }
}
