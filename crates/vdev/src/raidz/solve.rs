//! From the columns that were read to the block: which are believed, which are reconstructed, which were wrong.
//!
//! Guarantees: pure computation, fit for the compute pool; every choice of at most as many lying children as there is
//! parity left is tried before a block is given up.

use runtime::{IoBuf, IoBufMut};

use super::map::{Map, Stripe};
use crate::Check;

/// Most choices among the places of columns tried for one block.
const CHOICES_MAX: usize = 64;

/// The columns that were read, by stripe and column.
pub(crate) type Held = Vec<Vec<Option<IoBuf>>>;

/// Returns the block from the columns held, leaving out those of `distrusted` children; `None` when too few are left.
pub(crate) fn assemble(map: &Map, held: &Held, distrusted: &[usize]) -> Option<IoBuf> {
    // Only blocks in one column need no copy.
    if let [stripe] = map.stripes.as_slice()
        && let [only] = &stripe.columns[map.parity..]
        && !distrusted.contains(&only.slot)
        && let Some(bytes) = &held[0][map.parity]
    {
        return Some(bytes.clone());
    }
    let trusted = |stripe: &Stripe, s: usize, c: usize| {
        !distrusted.contains(&stripe.columns[c].slot) && held[s][c].is_some()
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
        let mut places: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
        codec::parity::reconstruct(&known, &parity, &mut places).ok()?;
        for (c, bytes) in gone.into_iter().zip(&lost) {
            let at = stripe.columns[c].at;
            block[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
    Some(block.freeze())
}

/// Returns what `check` makes of the block, and the block, distrusting first `doubtful` children, then nobody, then every
/// group of children that parity can stand in for, small groups first. `None` when the check accepts nothing.
pub(crate) fn search<T>(
    map: &Map,
    held: &Held,
    doubtful: &[usize],
    check: &Check<T>,
) -> Option<(T, IoBuf)> {
    let attempt = |distrusted: &[usize]| {
        let block = assemble(map, held, distrusted)?;
        Some((check(&block)?, block))
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
    (1..=map.parity).find_map(|size| groups(&children, size, &mut Vec::new(), &attempt))
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
        let found = search(map, &held, doubtful, check);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Calls `attempt` with every group of `size` children until it finds something.
fn groups<T>(
    children: &[usize],
    size: usize,
    chosen: &mut Vec<usize>,
    attempt: &impl Fn(&[usize]) -> Option<T>,
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
            let mut places: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[..]).collect();
            codec::parity::generate(&sources, &mut places);
            rows.into_iter().map(IoBufMut::freeze).chain(data).collect()
        })
        .collect()
}
