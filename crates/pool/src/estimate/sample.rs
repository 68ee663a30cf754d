//! A sample of blocks: those with the lowest numbers, when each block draws one. Any part of it in the order of the numbers is a sample,
//! too, so that it may be used until the time is over.

use std::collections::BTreeMap;

use super::walk::DataBlock;

/// The sample.
#[derive(Clone, Debug)]
pub(super) struct BlockSample {
    blocks: BTreeMap<u64, DataBlock>,
    blocks_max: usize,
}

impl BlockSample {
    /// A sample of so many blocks, at least 1.
    pub(super) fn new(blocks_max: usize) -> Self {
        Self {
            blocks: BTreeMap::new(),
            blocks_max: blocks_max.max(1),
        }
    }

    /// Offers a block.
    pub(super) fn offer(&mut self, block: &DataBlock) {
        let number = draw(block);
        if self.blocks.len() >= self.blocks_max {
            if self
                .blocks
                .last_key_value()
                .is_none_or(|(last, _)| number >= *last)
            {
                return;
            }
            self.blocks.pop_last();
        }
        self.blocks.insert(number, *block);
        assert!(
            self.blocks.len() <= self.blocks_max,
            "a sample is as large as it may be, at most"
        );
    }

    /// Takes the next block of the sample.
    pub(super) fn take(&mut self) -> Option<DataBlock> {
        Some(self.blocks.pop_first()?.1)
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }
}

/// A number that looks random, and is the same whenever a block comes by.
// Steele, Lea and Flood 2014, the finalizer of SplitMix64.
fn draw(block: &DataBlock) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let place = [block.objset, block.object, block.block];
    place.into_iter().fold(0, |sum, part| {
        mix(sum ^ part.wrapping_add(0x9e37_79b9_7f4a_7c15))
    })
}

#[cfg(test)]
mod tests {
    use ondisk::BlockPointer;

    use super::*;

    #[test]
    fn every_block_is_as_likely_to_be_in_the_sample() {
        let mut sample = BlockSample::new(1000);
        for n in 0..100_000 {
            sample.offer(&DataBlock {
                objset: 54,
                object: 2 + n / 1000,
                block: n % 1000,
                bp: BlockPointer::HOLE,
            });
        }
        let mut by_part = [0; 10];
        for _ in 0..500 {
            let block = sample.take().expect("there are a thousand");
            by_part[usize::try_from(block.object / 10 % 10).expect("a digit")] += 1;
        }
        assert_eq!(sample.len(), 500);
        // 50 in each tenth; six standard deviations of a binomial are 40.
        assert!(
            by_part.iter().all(|count| (10..90).contains(count)),
            "{by_part:?}"
        );
    }
}
