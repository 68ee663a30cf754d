//! From the columns that were read to the block: which are believed, which are reconstructed, which were wrong.
//!
//! Guarantees: pure computation, fit for the compute pool; every choice of at most as many lying children as there is
//! parity left is tried before a block is given up, and as many as [`SPREAD_BYTES_MAX`] allows of those among which a child
//! held wrong bytes before an expansion moved them.

use std::cell::Cell;
use std::collections::BTreeSet;

use runtime::{IoBuf, IoBufMut};

use super::map::{Column, Map, Stripe};
use crate::Check;

/// Most choices among the places of columns tried for one block.
const CHOICES_MAX: usize = 64;

/// Most bytes put together for one block to find the columns that were wrong before an expansion: a second or two of one core. All pairs of
/// the children of several widths fit, of records up to 1 MiB; a raidz3 has tens of thousands of threes.
const SPREAD_BYTES_MAX: usize = 2 << 30;

/// Small blocks count as this much, for what it costs to choose the columns.
const SPREAD_BYTES_LEAST: usize = 64 << 10;
const _: () = assert!(SPREAD_BYTES_LEAST <= SPREAD_BYTES_MAX && CHOICES_MAX > 0);

/// The columns that were read, by stripe and column.
pub(crate) type Held = Vec<Vec<Option<IoBuf>>>;

/// Returns the block from the columns held, leaving out those of `distrusted` children; `None` when too few are left.
pub(crate) fn assemble(map: &Map, held: &Held, distrusted: &[usize]) -> Option<IoBuf> {
    assemble_without(map, held, |column| distrusted.contains(&column.slot))
}

/// As [`assemble`], by what is distrusted of each column.
fn assemble_without(
    map: &Map,
    held: &Held,
    is_distrusted: impl Fn(&Column) -> bool,
) -> Option<IoBuf> {
    // Only blocks in one column need no copy.
    if let [stripe] = map.stripes.as_slice()
        && let [only] = &stripe.columns[map.parity..]
        && !is_distrusted(only)
        && let Some(bytes) = &held[0][map.parity]
    {
        return Some(bytes.clone());
    }
    let trusted = |stripe: &Stripe, s: usize, c: usize| {
        !is_distrusted(&stripe.columns[c]) && held[s][c].is_some()
    };
    let enough = map.stripes.iter().enumerate().all(|(s, stripe)| {
        let lost = (0..stripe.columns.len())
            .filter(|&c| stripe.columns[c].data > 0 && !trusted(stripe, s, c))
            .count();
        lost <= map.parity
    });
    if !enough {
        return None;
    }
    let mut block = IoBufMut::zeroed(map.len);
    for (s, stripe) in map.stripes.iter().enumerate() {
        // What fills a stripe up is known without being read.
        let column = |c: usize| match stripe.columns[c].data {
            0 => Some(&[][..]),
            len => held[s][c]
                .as_deref()
                .filter(|_| trusted(stripe, s, c))
                .map(|bytes| &bytes[..len]),
        };
        let data = map.parity..stripe.columns.len();
        for c in data.clone() {
            if let Some(bytes) = column(c) {
                let at = stripe.columns[c].at;
                block[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        let known: Vec<Option<&[u8]>> = data.clone().map(column).collect();
        if known.iter().all(Option::is_some) {
            continue;
        }
        let parity: Vec<Option<&[u8]>> = (0..map.parity).map(column).collect();
        let gone: Vec<usize> = data.filter(|&c| column(c).is_none()).collect();
        let mut lost: Vec<Vec<u8>> = gone
            .iter()
            .map(|&c| vec![0; stripe.columns[c].data])
            .collect();
        let mut outputs: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
        codec::parity::reconstruct(&known, &parity, &mut outputs).ok()?;
        for (c, bytes) in gone.into_iter().zip(&lost) {
            let at = stripe.columns[c].at;
            block[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
    Some(block.freeze())
}

/// Returns what `check` makes of the block, and the block, distrusting first `doubtful` children, then none, then every
/// group of children that parity can stand in for, small groups first. `None` when the check accepts nothing.
pub(crate) fn search<T>(
    map: &Map,
    held: &Held,
    doubtful: &[usize],
    check: &Check<T>,
) -> Option<(T, IoBuf)> {
    search_within(map, held, doubtful, check, &spread_tries(map))
}

/// Returns how many groups with children of former widths are tried for a block.
fn spread_tries(map: &Map) -> Cell<usize> {
    Cell::new(SPREAD_BYTES_MAX / map.len.max(SPREAD_BYTES_LEAST))
}

/// As [`search`], trying at most so many groups with children of former widths, which are counted off.
fn search_within<T>(
    map: &Map,
    held: &Held,
    doubtful: &[usize],
    check: &Check<T>,
    spread_tries: &Cell<usize>,
) -> Option<(T, IoBuf)> {
    let attempt = |distrusted: &[usize]| {
        let block = assemble(map, held, distrusted)?;
        Some((check.judge(&block)?, block))
    };
    if !doubtful.is_empty()
        && let Some(found) = attempt(doubtful)
    {
        return Some(found);
    }
    if let Some(found) = attempt(&[]) {
        return Some(found);
    }
    let mut children: Vec<usize> = map
        .columns()
        .filter(|((s, c), column)| column.data > 0 && held[*s][*c].is_some())
        .map(|(_, column)| column.slot)
        .collect();
    children.sort_unstable();
    children.dedup();
    let spread = spread_suspects(map, held, &children);
    let all: Vec<Suspected> = spread
        .iter()
        .copied()
        .chain(children.iter().map(|&slot| Suspected::Now { slot }))
        .collect();
    // Some(None) when no more may be tried.
    let attempt_spread = |suspects: &[Suspected]| {
        let Some(left) = spread_tries.get().checked_sub(1) else {
            return Some(None);
        };
        spread_tries.set(left);
        let is_suspected = |column: &Column| suspects.iter().any(|suspect| suspect.holds(column));
        let block = assemble_without(map, held, is_suspected)?;
        Some(Some((check.judge(&block)?, block)))
    };
    let with_spread = |size: usize| {
        let first = spread.iter().enumerate();
        let mut found = first.filter_map(|(index, &suspected)| {
            groups(
                &all[index + 1..],
                size - 1,
                &mut vec![suspected],
                &attempt_spread,
            )
        });
        found.next().flatten()
    };
    // One child that was wrong once is likelier than two that are wrong today.
    (1..=map.parity).find_map(|size| {
        groups(&children, size, &mut Vec::new(), &attempt).or_else(|| with_spread(size))
    })
}

/// Returns the children of former widths that may have held something wrong: those whose columns are not those of another or
/// of one of today's `children`. An expansion moves sectors without looking, and spreads over several what one child held.
// OpenZFS: module/zfs/vdev_raidz.c, raidz_simulate_failure
fn spread_suspects(map: &Map, held: &Held, children: &[usize]) -> Vec<Suspected> {
    if map.former.is_empty() {
        return Vec::new();
    }
    let columns: Vec<(u32, &Column)> = (0..)
        .zip(map.columns())
        .filter(|(_, ((s, c), column))| column.data > 0 && held[*s][*c].is_some())
        .map(|(number, (_, column))| (number, column))
        .collect();
    let share = |suspected: Suspected| -> Vec<u32> {
        let suspect_columns = columns.iter().filter(|(_, column)| suspected.holds(column));
        suspect_columns.map(|(number, _)| *number).collect()
    };
    let today = children.iter().map(|&slot| share(Suspected::Now { slot }));
    let mut known: BTreeSet<Vec<u32>> = today.collect();
    known.insert(Vec::new());
    let widths = map.former.clone();
    widths
        .flat_map(|width| (0..width).map(move |child| Suspected::Once { child, width }))
        .filter(|&suspected| known.insert(share(suspected)))
        .collect()
}

/// A child that may hold something wrong.
#[derive(Debug, Clone, Copy)]
enum Suspected {
    Now {
        slot: usize,
    },
    /// It did when there were so many children.
    Once {
        child: u32,
        width: u32,
    },
}

impl Suspected {
    fn holds(self, column: &Column) -> bool {
        match self {
            Self::Now { slot } => column.slot == slot,
            Self::Once { child, width } => column.sector % u64::from(width) == u64::from(child),
        }
    }
}

/// As [`search`], with every choice of other `versions` of some columns in place of what is held, but at most
/// [`CHOICES_MAX`].
pub(crate) fn search_versions<T>(
    map: &Map,
    mut held: Held,
    versions: &[((usize, usize), Vec<IoBuf>)],
    doubtful: &[usize],
    check: &Check<T>,
) -> Option<(T, IoBuf)> {
    let choices: Vec<Vec<Option<IoBuf>>> = versions
        .iter()
        .map(|((s, c), others)| {
            let first = std::iter::once(held[*s][*c].clone());
            first.chain(others.iter().cloned().map(Some)).collect()
        })
        .collect();
    let mut turn = vec![0; choices.len()];
    let spread_tries = spread_tries(map);
    for _ in 0..CHOICES_MAX {
        // The next choice, as an odometer counts; the first, of what is held alone, was tried.
        let mut moved = false;
        for ((((s, c), _), choices), which) in versions.iter().zip(&choices).zip(&mut turn) {
            *which = (*which + 1) % choices.len();
            held[*s][*c].clone_from(&choices[*which]);
            moved = *which != 0;
            if moved {
                break;
            }
        }
        if !moved {
            return None;
        }
        let found = search_within(map, &held, doubtful, check, &spread_tries);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Calls `attempt` with every group of `size` children until it finds something.
fn groups<C: Copy, T>(
    children: &[C],
    size: usize,
    chosen: &mut Vec<C>,
    attempt: &impl Fn(&[C]) -> Option<T>,
) -> Option<T> {
    if size == 0 {
        return attempt(chosen);
    }
    for (index, child) in children.iter().enumerate() {
        chosen.push(*child);
        let found = groups(&children[index + 1..], size - 1, chosen, attempt);
        chosen.pop();
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns the content of every column of a block, parity first; data columns are slices of the block, but for those that
/// zeros follow.
pub(crate) fn columns_of(map: &Map, block: &IoBuf) -> Vec<Vec<IoBuf>> {
    map.stripes
        .iter()
        .map(|stripe| {
            let data: Vec<IoBuf> = stripe.columns[map.parity..]
                .iter()
                .map(|column| {
                    let bytes = block.slice(column.at..column.at + column.data);
                    if column.len == column.data {
                        return bytes;
                    }
                    let mut padded = IoBufMut::zeroed(column.len);
                    padded[..column.data].copy_from_slice(&bytes);
                    padded.freeze()
                })
                .collect();
            let mut rows: Vec<IoBufMut> = stripe.columns[..map.parity]
                .iter()
                .map(|column| IoBufMut::zeroed(column.len))
                .collect();
            let sources: Vec<&[u8]> = data.iter().map(|column| &column[..]).collect();
            let mut outputs: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[..]).collect();
            codec::parity::generate(&sources, &mut outputs);
            rows.into_iter().map(IoBufMut::freeze).chain(data).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ondisk::{RaidzReflow, Txg};

    use super::*;
    use crate::{Location, Raidz};

    /// A raidz3 of 8 disks that has become one of 11, and a block of `len` bytes from before, of which some columns hold noise.
    fn held_after_three_expansions(len: u64, is_noise: impl Fn(&Column) -> bool) -> (Map, Held) {
        let raidz = Raidz {
            width: 11,
            parity: 3,
            expanded: vec![Txg(30), Txg(60), Txg(90)],
            expanding: false,
        };
        let at = Location {
            vdev: 0,
            offset: 7 << 12,
            size: len,
            born: Txg(20),
        };
        let map = Map::of_raidz(&raidz, RaidzReflow(0), 12, at);
        let block = IoBuf::copy_from(&vec![7; map.len]);
        let mut held: Held = Vec::new();
        for (stripe, columns) in map.stripes.iter().zip(columns_of(&map, &block)) {
            let bytes = stripe.columns.iter().zip(columns);
            let bytes = bytes.map(|(column, right)| {
                Some(if is_noise(column) && column.len > 0 {
                    IoBuf::copy_from(&vec![0xa5; column.len])
                } else {
                    right
                })
            });
            held.push(bytes.collect());
        }
        (map, held)
    }

    /// A check that accepts blocks of sevens, and how many blocks it has seen.
    fn counting_check() -> (Check<()>, Arc<AtomicUsize>) {
        let seen = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&seen);
        let check: Check<()> = Arc::new(move |found: &IoBuf| {
            count.fetch_add(1, Ordering::Relaxed);
            found.iter().all(|&byte| byte == 7).then_some(())
        });
        (check, seen)
    }

    #[test]
    fn one_child_that_lied_once_is_found_before_two_that_lie_today() {
        let (map, held) = held_after_three_expansions(1 << 20, |column| column.sector % 9 == 4);
        let (check, seen) = counting_check();
        assert!(search(&map, &held, &[], &check).is_some());
        let seen = seen.load(Ordering::Relaxed);
        assert!(seen <= 1 + 11 + 8 + 9 + 10, "{seen} blocks");
    }

    #[test]
    fn the_search_for_former_lies_ends() {
        let (map, held) = held_after_three_expansions(128 << 10, |_| true);
        let (check, seen) = counting_check();
        let tries = Cell::new(200);
        assert!(search_within(&map, &held, &[], &check, &tries).is_none());
        let (seen, today) = (seen.load(Ordering::Relaxed), 1 + 11 + 55 + 165);
        assert!(tries.get() == 0 && seen <= today + 200, "{seen} blocks");
    }

    #[test]
    fn larger_blocks_are_put_together_fewer_times() {
        for (len, tries) in [(4 << 10, 32768), (128 << 10, 16384), (16 << 20, 128)] {
            let (map, _) = held_after_three_expansions(len, |_| false);
            assert_eq!(spread_tries(&map).get(), tries);
        }
    }

    #[test]
    fn former_children_with_the_same_share_of_a_block_count_once() {
        // One row: whichever is wrong, it is one of its columns.
        let (map, held) = held_after_three_expansions(5 << 12, |_| true);
        let (check, seen) = counting_check();
        assert!(search(&map, &held, &[], &check).is_none());
        assert_eq!(seen.load(Ordering::Relaxed), 1 + 8 + 28 + 56);
    }

    #[test]
    fn lies_that_an_expansion_has_spread_are_found() {
        let size = 60 << 9;
        let block: Vec<u8> = (0..size)
            .map(|i| u8::try_from(i % 253).expect("small"))
            .collect();
        let block = IoBuf::copy_from(&block);
        let want = block.clone();
        let check: Check<()> = Arc::new(move |found: &IoBuf| (*found == want).then_some(()));
        // Five children have become six, the move is half done or ended.
        for (expanding, moved) in [(false, 0), (true, 40), (true, 0)] {
            let raidz = Raidz {
                width: 6,
                parity: 2,
                expanded: if expanding { Vec::new() } else { vec![Txg(90)] },
                expanding,
            };
            let at = Location {
                vdev: 0,
                offset: 7 << 9,
                size,
                born: Txg(20),
            };
            let map = Map::of_raidz(&raidz, RaidzReflow(4 << 55 | moved), 9, at);
            let columns = columns_of(&map, &block);
            // Third child of five, and today the fifth of six.
            for (once, now) in [(Some(2), None), (Some(2), Some(4)), (None, Some(4))] {
                let mut held: Held = Vec::new();
                for (s, stripe) in map.stripes.iter().enumerate() {
                    let bytes = stripe.columns.iter().enumerate().map(|(c, column)| {
                        let bad = once == Some(column.sector % 5) || now == Some(column.slot);
                        Some(if bad && column.len > 0 {
                            IoBuf::copy_from(&vec![0xa5; column.len])
                        } else {
                            columns[s][c].clone()
                        })
                    });
                    held.push(bytes.collect());
                }
                let found = search(&map, &held, &[], &check).expect("found");
                assert_eq!(found.1, block);
            }
        }
    }
}
