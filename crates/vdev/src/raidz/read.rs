//! Reads: data columns only while all is well, parity for what is missing, everything and every combination when the
//! check says no; bad columns are rewritten.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ondisk::Txg;
use runtime::{DiskError, Instant, IoBuf};

use super::map::{Column, Map};
use super::solve::{self, Held};
use crate::io::Suspect;
use crate::leaf::{Leaf, LeafError};
use crate::tree::{ColumnReplica, Top};
use crate::{Check, IoClass, Location, Scrubbed, Tree, VdevError};

/// Index of a column: (stripe, column).
pub(super) type Index = (usize, usize);

/// A column some leaf does not hold as it should.
pub(super) struct Bad {
    pub(super) index: Index,
    pub(super) leaf: Rc<Leaf>,
}

/// A block being read.
pub(super) struct Reading {
    pub(super) map: Arc<Map>,
    /// Whether the block was written for certain: wrong bytes in its place are a device's fault.
    expected: bool,
    pub(super) held: Held,
    /// Where each column held came from.
    sources: BTreeMap<Index, ColumnReplica>,
    /// What further places of the same columns hold instead; asked only when what is held does not do.
    others: Vec<(Index, ColumnReplica, IoBuf)>,
    /// Columns no leaf could give.
    pub(super) failed: Vec<Index>,
    /// Leaves that refused, with what.
    bad: Vec<Bad>,
    error: Option<DiskError>,
}

/// What reading one range of a place gave.
#[derive(Default)]
struct Fetched {
    found: Option<(IoBuf, ColumnReplica)>,
    refused: Vec<(Rc<Leaf>, Option<DiskError>)>,
}

impl Tree {
    /// [`Tree::read_with`] for blocks with parity. `expected`: if no bytes pass the check, that is a device's checksum error.
    pub(crate) async fn read_striped<T: Send + 'static>(
        &self,
        top: &Top,
        at: Location,
        class: IoClass,
        check: Check<T>,
        expected: bool,
    ) -> Result<T, VdevError> {
        let map = Arc::new(top.map(at));
        let suspect = self.suspect(at);
        let mut reading = Reading::new(map, expected);
        let now = self.now();
        top.watch_latencies(now);
        let avoided = avoided(top, &reading, at, class, now);
        if !self
            .read_enough(top, &mut reading, &avoided, at, class)
            .await
        {
            return Err(self.unreadable(at, reading.error));
        }
        if let Some((value, block)) = self.try_columns(&reading, &[], &check).await {
            if !reading.bad.is_empty() {
                self.repair_columns(top, &suspect, &reading.map, &block, &reading.bad)
                    .await;
            }
            return Ok(value);
        }
        // Some column is wrong. With all columns at hand, find out which.
        let all: Vec<Index> = reading.unread(&[]);
        self.fetch(top, &mut reading, &all, at, class).await;
        let found = self.search_places(top, &mut reading, at, class, &check);
        let Some((value, block)) = found.await else {
            let mut counted: Vec<&Rc<Leaf>> = Vec::new();
            for ColumnReplica { leaf, .. } in reading.sources.values().filter(|_| expected) {
                if !counted.iter().any(|other| Rc::ptr_eq(other, leaf)) {
                    leaf.count_checksum_error(at);
                    counted.push(leaf);
                }
            }
            let all_answered =
                reading.failed.is_empty() && top.leaves().iter().all(|leaf| leaf.is_usable());
            if !(expected || all_answered || reading.is_evidence(&top.doubtful_slots(at.born))) {
                return Err(self.unreadable(at, reading.error));
            }
            return Err(VdevError::Rejected {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
            });
        };
        let columns = solve::columns_of(&reading.map, &block);
        let bad = reading.diagnose(&columns, at);
        self.repair_columns(top, &suspect, &reading.map, &block, &bad)
            .await;
        Ok(value)
    }

    /// [`Tree::scrub`] for blocks with parity: every column of every leaf, parity included.
    pub(crate) async fn scrub_striped(
        &self,
        top: &Top,
        at: Location,
        class: IoClass,
        check: Check<()>,
        expected: bool,
    ) -> Scrubbed {
        // With what fills the last stripe: parity counts it, and it is needed where there is no checksum to ask.
        let map = Arc::new(top.whole_map(at));
        let suspect = self.suspect(at);
        let mut reading = Reading::new(Arc::clone(&map), expected);
        let all: Vec<Index> = reading.unread(&[]);
        self.fetch(top, &mut reading, &all, at, class).await;
        let mut result = Scrubbed::default();
        let found = self.search_places(top, &mut reading, at, class, &check);
        let Some(((), block)) = found.await else {
            // What is wrong cannot be told from what is right; one copy of the block is bad.
            for leaf in top.leaves().iter().filter(|leaf| leaf.is_usable()) {
                if expected
                    && reading
                        .sources
                        .values()
                        .any(|source| Rc::ptr_eq(&source.leaf, leaf))
                {
                    leaf.count_checksum_error(at);
                }
            }
            result.bad_copies = 1;
            return result;
        };
        let columns = solve::columns_of(&map, &block);
        let mut bad = reading.diagnose(&columns, at);
        self.judge_others(top, &reading, &columns, at, class, &mut bad)
            .await;
        result.bad_copies = u32::try_from(bad.len()).unwrap_or(u32::MAX);
        // What a device lacks may also be where the block is going to be.
        let mut seconds = top.shadows(&map).into_iter();
        let lacks = |leaf: &Leaf| leaf.writes.dtl_contains(at.born);
        if !bad.is_empty() || seconds.any(|second| top.slots[second.slot].any(lacks)) {
            let unexpected = bad.iter().any(|bad| !bad.leaf.writes.dtl_contains(at.born));
            let (count, bytes) = self.repair_columns(top, &suspect, &map, &block, &bad).await;
            result.repaired_copies = count;
            result.repaired_bytes = bytes;
            if unexpected && count > 0 {
                note_absent(top, &map, at.born);
            }
        }
        result.good = Some(block);
        result
    }

    /// Reads columns until every stripe can be put together: data first, parity for data that is missing, and the
    /// avoided places last. Returns false when too few columns can be read.
    async fn read_enough(
        &self,
        top: &Top,
        reading: &mut Reading,
        avoided: &[usize],
        at: Location,
        class: IoClass,
    ) -> bool {
        loop {
            let (wanted, enough) = reading.wanted(avoided);
            if wanted.is_empty() {
                return enough;
            }
            self.fetch(top, reading, &wanted, at, class).await;
        }
    }

    /// Reads columns, those that touch on one place together. What cannot be read is noted as failed.
    async fn fetch(
        &self,
        top: &Top,
        reading: &mut Reading,
        wanted: &[Index],
        at: Location,
        class: IoClass,
    ) {
        let column = |&(s, c): &Index| reading.map.stripes[s].columns[c];
        let mut runs: Vec<(Column, Vec<Index>)> = Vec::new();
        let mut sorted: Vec<Index> = wanted.to_vec();
        sorted.sort_unstable_by_key(|index| (column(index).slot, column(index).start()));
        for index in sorted {
            let next = column(&index);
            match runs.last_mut() {
                Some((run, members))
                    if run.slot == next.slot
                        && run.start() + run.len as u64 == next.start()
                        && !top.slots[run.slot].any(|leaf| leaf.spare.is_some()) =>
                {
                    run.len += next.len;
                    members.push(index);
                }
                _ => runs.push((next, vec![index])),
            }
        }
        let reads = runs
            .iter()
            .map(|(run, _)| self.fetch_range(top, run, at.born, class));
        let results = runtime::join_all(reads).await;
        for ((_, members), fetched) in runs.into_iter().zip(results) {
            if let [index] = members.as_slice() {
                reading.note(*index, fetched);
                continue;
            }
            match fetched.found {
                Some((bytes, replica)) => {
                    let mut from = 0;
                    for index in members {
                        let to = from + reading.map.stripes[index.0].columns[index.1].len;
                        let part = Fetched {
                            found: Some((bytes.slice(from..to), replica.clone())),
                            refused: Vec::new(),
                        };
                        reading.note(index, part);
                        from = to;
                    }
                }
                // One bad sector must not cost its neighbours.
                None => {
                    for index in members {
                        let column = reading.map.stripes[index.0].columns[index.1];
                        let part = self.fetch_range(top, &column, at.born, class).await;
                        reading.note(index, part);
                    }
                }
            }
        }
    }

    /// Reads a range of one place from the first of its leaves that gives it.
    async fn fetch_range(&self, top: &Top, column: &Column, born: Txg, class: IoClass) -> Fetched {
        let len = column.len;
        let mut fetched = Fetched::default();
        let mut replicas = top.replicas(column.slot, column.offset);
        replicas.retain(|replica| replica.leaf.is_usable());
        replicas.sort_by_key(|replica| (replica.dtl_contains(born), replica.leaf.load()));
        for replica in replicas {
            let timeout = self.timeout(top);
            match replica.leaf.read(column.start(), len, class, timeout).await {
                Ok(bytes) => {
                    fetched.found = Some((bytes, replica));
                    break;
                }
                Err(LeafError::Device(error)) => fetched.refused.push((replica.leaf, Some(error))),
                Err(LeafError::Stuck) => fetched.refused.push((replica.leaf, None)),
                Err(LeafError::Closed) => {}
            }
        }
        fetched
    }

    /// Puts the block together and checks it, as one job of the compute pool if it is large.
    async fn try_columns<T: Send + 'static>(
        &self,
        reading: &Reading,
        distrusted: &[usize],
        check: &Check<T>,
    ) -> Option<(T, IoBuf)> {
        let job = {
            let (map, held) = (Arc::clone(&reading.map), reading.held.clone());
            let (distrusted, check) = (distrusted.to_vec(), Arc::clone(check));
            move || {
                let block = solve::assemble(&map, &held, &distrusted)?;
                Some((check.judge(&block)?, block))
            }
        };
        self.run_job(reading.map.len, job).await
    }

    /// Finds columns that make a block the check accepts: of those held, and where a place has several leaves that do not
    /// agree, with what the others hold.
    async fn search_places<T: Send + 'static>(
        &self,
        top: &Top,
        reading: &mut Reading,
        at: Location,
        class: IoClass,
        check: &Check<T>,
    ) -> Option<(T, IoBuf)> {
        let doubtful = top.doubtful_slots(at.born);
        let (map, held) = (Arc::clone(&reading.map), reading.held.clone());
        let (first, job_check) = (doubtful.clone(), Arc::clone(check));
        let job = move || solve::search(&map, &held, &first, &job_check);
        let found = self.run_job(reading.map.len, job).await;
        if found.is_some() {
            return found;
        }
        self.fetch_others(top, reading, at, class).await;
        if reading.others.is_empty() {
            return None;
        }
        let (map, held) = (Arc::clone(&reading.map), reading.held.clone());
        let (versions, check) = (reading.versions(), Arc::clone(check));
        let job = move || solve::search_versions(&map, held, &versions, &doubtful, &check);
        self.run_job(reading.map.len, job).await
    }

    /// Reads columns from all the leaves they were not read from yet, and keeps what differs.
    async fn fetch_others(&self, top: &Top, reading: &mut Reading, at: Location, class: IoClass) {
        let columns: Vec<(Index, Column)> = reading.map.columns().map(|(i, c)| (i, *c)).collect();
        for (index, column) in columns {
            let mut replicas = top.replicas(column.slot, column.offset);
            if replicas.len() < 2 || column.len == 0 {
                continue;
            }
            let source = reading.sources.get(&index).map(|source| &source.leaf);
            replicas.retain(|replica| {
                replica.leaf.is_usable()
                    && source.is_none_or(|leaf| !Rc::ptr_eq(leaf, &replica.leaf))
            });
            replicas.sort_by_key(|replica| replica.dtl_contains(at.born));
            for replica in replicas {
                let timeout = self.timeout(top);
                let start = column.start();
                let read = replica.leaf.read(start, column.len, class, timeout).await;
                if let Ok(bytes) = read
                    && reading.held[index.0][index.1].as_ref() != Some(&bytes)
                {
                    reading.others.push((index, replica, bytes));
                }
            }
        }
    }

    /// Runs a computation over a block of `len` bytes where it disturbs least.
    pub(crate) async fn run_job<T: Send + 'static>(
        &self,
        len: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if len as u64 <= self.0.tuning.offload_above_bytes {
            return job();
        }
        self.0.handle.compute(job).await
    }

    /// Compares the further leaves of places that have several with what they should hold.
    async fn judge_others(
        &self,
        top: &Top,
        reading: &Reading,
        columns: &[Vec<IoBuf>],
        at: Location,
        class: IoClass,
        bad: &mut Vec<Bad>,
    ) {
        for (index, column) in reading.map.columns() {
            for replica in top.replicas(column.slot, column.offset) {
                let leaf = Rc::clone(&replica.leaf);
                let seen = reading
                    .sources
                    .get(&index)
                    .is_some_and(|source| Rc::ptr_eq(&source.leaf, &leaf))
                    || bad
                        .iter()
                        .any(|other| other.index == index && Rc::ptr_eq(&other.leaf, &leaf));
                if seen || !leaf.is_usable() {
                    continue;
                }
                let timeout = self.timeout(top);
                let read = leaf.read(column.start(), column.len, class, timeout).await;
                if read.is_ok_and(|bytes| bytes == columns[index.0][index.1]) {
                    continue;
                }
                if reading.expected && !replica.dtl_contains(at.born) {
                    leaf.count_checksum_error(at);
                }
                bad.push(Bad { index, leaf });
            }
        }
    }

    fn unreadable(&self, at: Location, error: Option<DiskError>) -> VdevError {
        error.map_or(VdevError::Unavailable { vdev: at.vdev }, |source| {
            VdevError::Device {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
                source,
            }
        })
    }

    /// Writes the right bytes of a block on the leaves that hold something else. Returns how many columns and bytes.
    pub(super) async fn repair_columns(
        &self,
        top: &Top,
        suspect: &Suspect,
        map: &Map,
        block: &IoBuf,
        bad: &[Bad],
    ) -> (u32, u64) {
        let columns = solve::columns_of(map, block);
        let writes: Vec<(Rc<Leaf>, u64, IoBuf)> = bad
            .iter()
            .map(|Bad { index, leaf }| {
                let start = map.stripes[index.0].columns[index.1].start();
                (Rc::clone(leaf), start, columns[index.0][index.1].clone())
            })
            .collect();
        // What has moved is right at both places, whichever uberblock is found.
        let shadows = top.shadows(map).into_iter().flat_map(|shadow| {
            let bytes = columns[shadow.index.0][shadow.index.1].clone();
            let leaves = top.slots[shadow.slot].leaves().into_iter();
            leaves.map(move |leaf| (leaf, shadow.start, bytes.clone()))
        });
        let repaired = suspect.write_repairs(writes).await;
        let shadows: Vec<_> = shadows.collect();
        if !shadows.is_empty() {
            suspect.write_repairs(shadows).await;
        }
        repaired
    }
}

/// The places that are not read at first: that may lack the block, or sit out, if parity can stand in for them.
fn avoided(top: &Top, reading: &Reading, at: Location, class: IoClass, now: Instant) -> Vec<usize> {
    let doubtful = top.doubtful_slots(at.born);
    // What mends devices looks at all of them.
    if !matches!(class, IoClass::Scrub | IoClass::Rebuild) {
        let mut avoided = top.sitting_slots(now);
        if !avoided.is_empty() {
            avoided.extend(&doubtful);
            if reading.can_do_without(&avoided) {
                return avoided;
            }
        }
    }
    match reading.can_do_without(&doubtful) {
        true => doubtful,
        false => top.closed_slots(),
    }
}

/// Remembers that leaves out of service lack a block that was mended without them: parity follows the data to the end of its
/// last sector, of which the checksum sees only a part, so that what was right on them may not fit any more.
fn note_absent(top: &Top, map: &Map, born: Txg) {
    for (_, column) in map.columns().filter(|(_, column)| column.len > 0) {
        for replica in top.replicas(column.slot, column.offset) {
            if !replica.leaf.is_usable() && !replica.dtl_contains(born) {
                replica.leaf.writes.note_lack(born);
            }
        }
    }
}

impl Reading {
    pub(super) fn new(map: Arc<Map>, expected: bool) -> Self {
        let held = map
            .stripes
            .iter()
            .map(|stripe| {
                let columns = stripe.columns.iter();
                let nothing = |column: &Column| (column.len == 0).then(|| IoBuf::copy_from(&[]));
                columns.map(nothing).collect()
            })
            .collect();
        Self {
            map,
            expected,
            held,
            sources: BTreeMap::new(),
            others: Vec::new(),
            failed: Vec::new(),
            bad: Vec::new(),
            error: None,
        }
    }

    /// Returns true if parity can stand in for these places in every stripe.
    fn can_do_without(&self, avoided: &[usize]) -> bool {
        self.map.stripes.iter().all(|stripe| {
            let without = stripe.columns.iter();
            let missing = |c: &&Column| c.len > 0 && avoided.contains(&c.slot);
            without.filter(missing).count() <= self.map.parity
        })
    }

    /// Whether the columns that were read are enough to say that the block is not there: those of `doubtful` places do not
    /// count.
    fn is_evidence(&self, doubtful: &[usize]) -> bool {
        let stripes = self.map.stripes.iter().enumerate();
        stripes.into_iter().all(|(s, stripe)| {
            let columns = stripe.columns.iter().enumerate();
            let silent = |(c, column): &(usize, &Column)| {
                column.len > 0
                    && (doubtful.contains(&column.slot) || self.failed.contains(&(s, *c)))
            };
            columns.filter(silent).count() <= self.map.parity
        })
    }

    /// Returns the columns not on `avoided` places that were not asked for yet.
    fn unread(&self, avoided: &[usize]) -> Vec<Index> {
        self.map
            .columns()
            .filter(|(index, column)| self.is_open(*index) && !avoided.contains(&column.slot))
            .map(|(index, _)| index)
            .collect()
    }

    fn is_open(&self, index: Index) -> bool {
        self.held[index.0][index.1].is_none() && !self.failed.contains(&index)
    }

    /// Returns the columns to read next, and whether every stripe can be put together if there are none.
    pub(super) fn wanted(&self, avoided: &[usize]) -> (Vec<Index>, bool) {
        let mut wanted = Vec::new();
        let mut enough = true;
        for (s, stripe) in self.map.stripes.iter().enumerate() {
            let held = |c: &usize| self.held[s][*c].is_some();
            let (parity, data) = (0..self.map.parity, self.map.parity..stripe.columns.len());
            let far = |c: usize| avoided.contains(&stripe.columns[c].slot);
            let near: Vec<usize> = data
                .clone()
                .filter(|&c| self.is_open((s, c)) && !far(c))
                .collect();
            let missing = data.clone().filter(|c| !held(c)).count() - near.len();
            let spare = parity.clone().filter(held).count();
            let needed = missing.saturating_sub(spare);
            wanted.extend(near.iter().map(|&c| (s, c)));
            if needed == 0 {
                continue;
            }
            // Parity of places one can rely on, then anything that is left.
            let open = |c: &usize| self.is_open((s, *c));
            let more: Vec<usize> = (parity.clone().filter(|&c| !far(c)))
                .chain(data.filter(|&c| far(c)))
                .chain(parity.filter(|&c| far(c)))
                .filter(open)
                .take(needed)
                .collect();
            enough &= more.len() == needed;
            wanted.extend(more.into_iter().map(|c| (s, c)));
        }
        if enough {
            (wanted, true)
        } else {
            // Some stripe is beyond help: the others do not matter.
            (Vec::new(), false)
        }
    }

    fn note(&mut self, index: Index, fetched: Fetched) {
        for (leaf, error) in fetched.refused {
            if let Some(error) = error {
                self.error = Some(error);
            }
            self.bad.push(Bad { index, leaf });
        }
        match fetched.found {
            Some((bytes, replica)) => {
                self.held[index.0][index.1] = Some(bytes);
                self.sources.insert(index, replica);
            }
            None => self.failed.push(index),
        }
    }

    /// Returns the columns of which there is more than what is held, with that.
    fn versions(&self) -> Vec<(Index, Vec<IoBuf>)> {
        let mut versions: BTreeMap<Index, Vec<IoBuf>> = BTreeMap::new();
        for (index, _, bytes) in &self.others {
            let known = versions.entry(*index).or_default();
            if !known.contains(bytes) {
                known.push(bytes.clone());
            }
        }
        versions.into_iter().collect()
    }

    /// Returns the columns that could not be read or are not what they should be; those that were wrong without an
    /// excuse are counted as checksum errors if the block was expected, once for each leaf.
    fn diagnose(&self, columns: &[Vec<IoBuf>], at: Location) -> Vec<Bad> {
        let mut counted: Vec<&Rc<Leaf>> = Vec::new();
        let mut bad: Vec<Bad> = self
            .bad
            .iter()
            .map(|bad| Bad {
                index: bad.index,
                leaf: Rc::clone(&bad.leaf),
            })
            .collect();
        let held = self.sources.iter().map(|(&index, replica)| {
            let bytes = self.held[index.0][index.1].as_ref();
            (index, replica, bytes)
        });
        let others = self.others.iter();
        let others = others.map(|(index, replica, bytes)| (*index, replica, Some(bytes)));
        for (index, replica, bytes) in held.chain(others) {
            let leaf = &replica.leaf;
            if bytes == Some(&columns[index.0][index.1]) {
                continue;
            }
            let counts = self.expected && !replica.dtl_contains(at.born);
            if counts && !counted.iter().any(|other| Rc::ptr_eq(other, leaf)) {
                leaf.count_checksum_error(at);
                counted.push(leaf);
            }
            bad.push(Bad {
                index,
                leaf: Rc::clone(leaf),
            });
        }
        bad
    }
}
