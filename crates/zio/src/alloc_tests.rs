//! Goal: the allocator never hands out a byte that is in use or that a recent txg still needs, and its sums and reported
//! changes are right. Method: random allocations, frees, syncs, loads and condenses against one state per unit.

use std::collections::BTreeMap;

use ondisk::{Dva, Guid, Txg};
use proptest::prelude::*;
use vdev::{TopInfo, VdevKind};

use super::*;

const UNIT: u64 = 4096;
const METASLAB_SHIFT: u8 = 17;
const METASLABS: u64 = 4;
const UNITS: usize = (METASLABS << METASLAB_SHIFT) as usize / UNIT as usize;

fn top(id: u32) -> TopInfo {
    TopInfo {
        id,
        guid: Guid(u64::from(id) + 1),
        kind: VdevKind::File,
        ashift: 12,
        asize: METASLABS << METASLAB_SHIFT,
        metaslab_shift: METASLAB_SHIFT,
        metaslab_count: METASLABS,
        metaslab_array: 0,
        is_log: false,
        bias: AllocationBias::None,
        allocating: true,
        layout: vdev::Layout::Copies,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Free,
    Used,
    /// Freed in this txg.
    Freed(u64),
}

struct World {
    allocator: Allocator,
    /// Truth by vdev.
    units: BTreeMap<u32, Vec<Unit>>,
    /// What the space maps say: true = allocated.
    maps: BTreeMap<u32, Vec<bool>>,
    live: Vec<(Vec<Dva>, u64)>,
    txg: u64,
}

impl World {
    fn new(vdevs: u32) -> Self {
        let tops: Vec<_> = (0..vdevs).map(|id| (top(id), 512)).collect();
        Self {
            allocator: Allocator::new(&tops, &[]),
            units: (0..vdevs).map(|id| (id, vec![Unit::Free; UNITS])).collect(),
            maps: (0..vdevs).map(|id| (id, vec![false; UNITS])).collect(),
            live: Vec::new(),
            txg: 10,
        }
    }

    fn free_list(&self, vdev: u32, metaslab: u32) -> Vec<Range<u64>> {
        let per = (1_u64 << METASLAB_SHIFT) / UNIT;
        let first = u64::from(metaslab) * per;
        let mut tree = range_tree::RangeTree::default();
        for unit in first..first + per {
            if !self.maps[&vdev][unit as usize] {
                tree.add(unit * UNIT..(unit + 1) * UNIT)
                    .expect("each unit once");
            }
        }
        tree.drain()
    }

    fn alloc(&mut self, units: u64, copies: u8, cursor: AllocCursor) {
        let mut request = Request {
            txg: Txg(self.txg),
            psize: units * UNIT,
            copies,
            cursor,
            class: AllocationBias::None,
            only_class: false,
            dvas: Vec::new(),
        };
        loop {
            match self.allocator.step(&mut request) {
                AllocStep::Done => break,
                AllocStep::Full => {
                    self.allocator.undo(&mut request);
                    let fits = self
                        .units
                        .values()
                        .any(|units| longest_free_in_metaslabs(units) * UNIT >= request.psize);
                    assert!(!fits, "there was room for {units} units");
                    return;
                }
                AllocStep::Load { vdev, metaslab } => {
                    let free = self.free_list(vdev, metaslab);
                    self.allocator
                        .metaslab(vdev, metaslab)
                        .expect("exists")
                        .begin_load();
                    self.allocator
                        .end_load(vdev, metaslab, Some(&free))
                        .expect("loads");
                }
            }
        }
        for dva in &request.dvas {
            assert_eq!(dva.asize, units * UNIT);
            let state = self.units.get_mut(&dva.vdev).expect("a vdev of ours");
            for unit in &mut state[span(dva)] {
                assert_eq!(*unit, Unit::Free, "{dva:?} is not free");
                *unit = Unit::Used;
            }
        }
        self.live.push((request.dvas, self.txg));
    }

    fn free(&mut self, which: usize) {
        if self.live.is_empty() {
            return;
        }
        let (dvas, _) = self.live.swap_remove(which % self.live.len());
        for dva in dvas {
            let range = dva.offset..dva.offset + dva.asize;
            self.allocator
                .free(Txg(self.txg), dva.vdev, &range)
                .expect("is allocated");
            assert!(
                self.allocator
                    .free(Txg(self.txg), dva.vdev, &range)
                    .is_err(),
                "double free"
            );
            let state = self.units.get_mut(&dva.vdev).expect("a vdev of ours");
            state[span(&dva)].fill(Unit::Freed(self.txg));
        }
    }

    fn apply_changes(&mut self) {
        for change in self.allocator.take_changes(Txg(self.txg)) {
            let map = self.maps.get_mut(&change.vdev).expect("a vdev of ours");
            for (ranges, to) in [(&change.allocs, true), (&change.frees, false)] {
                for range in ranges {
                    let units = range.start / UNIT..range.end / UNIT;
                    for unit in units {
                        assert_eq!((unit * UNIT) >> METASLAB_SHIFT, u64::from(change.metaslab));
                        assert_eq!(map[unit as usize], !to, "the map would contradict itself");
                        map[unit as usize] = to;
                    }
                }
            }
        }
        assert!(!self.allocator.has_changes(Txg(self.txg)));
    }

    /// What condensing would write is what the map says.
    fn check_condense(&mut self) {
        for vdev in self.units.keys().copied().collect::<Vec<_>>() {
            for metaslab in 0..METASLABS as u32 {
                if let Some(free) = self
                    .allocator
                    .ask_metaslab((vdev, metaslab), Metaslab::map_free)
                {
                    assert_eq!(free, self.free_list(vdev, metaslab));
                }
            }
        }
    }

    fn sync(&mut self) {
        self.apply_changes();
        self.check_condense();
        let synced = self.txg;
        self.allocator.txg_synced(Txg(synced));
        self.txg += 1;
        for units in self.units.values_mut() {
            for unit in units {
                if let Unit::Freed(txg) = *unit
                    && txg + 2 <= synced
                {
                    *unit = Unit::Free;
                }
            }
        }
    }

    fn unload(&mut self, vdev: u32, metaslab: u32) {
        self.apply_changes();
        self.allocator.return_all_runs();
        self.allocator
            .metaslab(vdev, metaslab)
            .expect("exists")
            .unload();
    }

    fn check_sums(&self) {
        let mut expect = Space::default();
        for units in self.units.values() {
            for unit in units {
                expect.size += UNIT;
                match unit {
                    Unit::Free => expect.free += UNIT,
                    Unit::Used => expect.allocated += UNIT,
                    Unit::Freed(_) => expect.deferred += UNIT,
                }
            }
        }
        let space = self.allocator.space();
        assert_eq!(
            (space.size, space.free, space.allocated, space.deferred),
            (expect.size, expect.free, expect.allocated, expect.deferred)
        );
    }
}

fn span(dva: &Dva) -> Range<usize> {
    (dva.offset / UNIT) as usize..((dva.offset + dva.asize) / UNIT) as usize
}

fn longest_free_in_metaslabs(units: &[Unit]) -> u64 {
    let per = (1_usize << METASLAB_SHIFT) / UNIT as usize;
    let longest = |metaslab: &[Unit]| {
        metaslab
            .split(|unit| *unit != Unit::Free)
            .map(<[Unit]>::len)
            .max()
            .unwrap_or(0) as u64
    };
    units.chunks(per).map(longest).max().unwrap_or(0)
}

#[derive(Debug, Clone)]
enum Op {
    Alloc {
        units: u64,
        copies: u8,
        metadata: bool,
    },
    Free(usize),
    TakeChanges,
    Sync,
    Unload(u32, u32),
    UnloadIdle,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..12_u64, 1..=3_u8, any::<bool>())
            .prop_map(|(units, copies, metadata)| Op::Alloc { units, copies, metadata }),
        5 => any::<usize>().prop_map(Op::Free),
        1 => Just(Op::TakeChanges),
        2 => Just(Op::Sync),
        1 => Just(Op::UnloadIdle),
        1 => (0..2_u32, 0..METASLABS as u32).prop_map(|(vdev, metaslab)| Op::Unload(vdev, metaslab)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_one_state_per_unit(vdevs in 1..3_u32, ops in prop::collection::vec(op(), 1..250)) {
        let mut world = World::new(vdevs);
        for op in ops {
            match op {
                Op::Alloc { units, copies, metadata } => {
                    world.alloc(units, copies, if metadata { AllocCursor::Metadata } else { AllocCursor::Data });
                }
                Op::Free(which) => world.free(which),
                Op::TakeChanges => world.apply_changes(),
                Op::Sync => world.sync(),
                Op::Unload(vdev, metaslab) if vdev < vdevs => world.unload(vdev, metaslab),
                Op::Unload(..) => {}
                // What is pending stays, also after a long time.
                Op::UnloadIdle => world.allocator.unload_idle(Txg(world.txg + 100), 0),
            }
            world.check_sums();
        }
        for _ in 0..3 {
            world.sync();
        }
        world.check_sums();
    }
}

#[test]
fn copies_go_to_different_vdevs_then_to_different_metaslabs() {
    let mut world = World::new(2);
    world.alloc(1, 3, AllocCursor::Metadata);
    let (dvas, _) = &world.live[0];
    assert_eq!(dvas.len(), 3);
    assert_ne!(dvas[0].vdev, dvas[1].vdev);
    let mut places: Vec<_> = dvas
        .iter()
        .map(|d| (d.vdev, d.offset >> METASLAB_SHIFT))
        .collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 3);
}

#[test]
fn first_copies_fill_one_metaslab_and_an_opening_goes_on_there() {
    let mut world = World::new(1);
    let used = |world: &World| {
        let lists = (0..METASLABS as u32).map(|metaslab| world.free_list(0, metaslab));
        let whole = 1 << METASLAB_SHIFT;
        lists
            .filter(|free| free.iter().all(|run| run.end - run.start < whole))
            .count()
    };
    for _ in 0..3 {
        world.alloc(1, 1, AllocCursor::Data);
        world.alloc(1, 2, AllocCursor::Metadata);
        world.sync();
        assert_eq!(
            used(&world),
            2,
            "first copies in one, second ones in another"
        );
        // As after an opening: what is active is not known, and what holds something is not loaded.
        let summaries: Vec<_> = (0..METASLABS as u32)
            .map(|metaslab| {
                let free = world.free_list(0, metaslab);
                let free: u64 = free.iter().map(|run| run.end - run.start).sum();
                let allocated = (1 << METASLAB_SHIFT) - free;
                MetaslabSummary {
                    vdev: 0,
                    metaslab,
                    allocated,
                    untouched: allocated == 0,
                }
            })
            .collect();
        world.allocator = Allocator::new(&[(top(0), 512)], &summaries);
    }
}

#[test]
fn a_run_that_is_given_back_leaves_no_gap() {
    let mut metaslab = Metaslab::new(0, 1 << 20, 0, true);
    let run = metaslab.take_run(4096, 1 << 17).expect("room");
    metaslab.return_run(run.start + 4096..run.end);
    let next = metaslab.take_run(4096, 1 << 17).expect("room");
    assert_eq!(next.start, run.start + 4096);
}

#[test]
fn freed_space_waits_for_two_more_txgs() {
    let mut world = World::new(1);
    let all = UNITS as u64 / METASLABS;
    for _ in 0..METASLABS {
        world.alloc(all, 1, AllocCursor::Data);
    }
    assert_eq!(world.live.len(), METASLABS as usize);
    world.free(0);
    world.sync();
    for _ in 0..2 {
        world.alloc(1, 1, AllocCursor::Data);
        assert_eq!(
            world.live.len(),
            METASLABS as usize - 1,
            "nothing may be handed out yet"
        );
        world.sync();
    }
    world.alloc(all, 1, AllocCursor::Data);
    assert_eq!(world.live.len(), METASLABS as usize);
}

#[test]
fn vdevs_fill_up_together() {
    let mut big = top(1);
    big.metaslab_count = 12;
    big.asize = 12 << METASLAB_SHIFT;
    let mut allocator = Allocator::new(&[(top(0), 512), (big, 512)], &[]);
    let mut placed = [0_u64; 2];
    for _ in 0..UNITS * 2 {
        let mut request = Request {
            txg: Txg(5),
            psize: UNIT,
            copies: 1,
            cursor: AllocCursor::Data,
            class: AllocationBias::None,
            only_class: false,
            dvas: Vec::new(),
        };
        assert_eq!(allocator.step(&mut request), AllocStep::Done);
        placed[request.dvas[0].vdev as usize] += UNIT;
    }
    assert_eq!(
        placed.iter().sum::<u64>(),
        (2 * METASLABS) << METASLAB_SHIFT
    );
    let shares = placed.map(|bytes| bytes * 100 / (placed[0] + placed[1]));
    assert!(
        (20..=55).contains(&shares[0]),
        "the small vdev got {} percent",
        shares[0]
    );
}

#[test]
fn hostile_frees_are_refused() {
    let mut world = World::new(1);
    world.alloc(4, 1, AllocCursor::Data);
    let mut refuse = |vdev, range: Range<u64>| {
        assert!(
            world.allocator.free(Txg(10), vdev, &range).is_err(),
            "{vdev} {range:?}"
        );
    };
    refuse(7, 0..UNIT);
    refuse(0, 1..UNIT + 1);
    refuse(0, 0..0);
    refuse(0, u64::MAX - UNIT + 1..u64::MAX);
    refuse(
        0,
        (1 << METASLAB_SHIFT) - UNIT..(1 << METASLAB_SHIFT) + UNIT,
    );
    refuse(
        0,
        METASLABS << METASLAB_SHIFT..(METASLABS << METASLAB_SHIFT) + UNIT,
    );
    refuse(0, 100 * UNIT..101 * UNIT);
}

#[test]
fn slop_follows_openzfs() {
    assert_eq!(slop(100 << 20), 50 << 20);
    assert_eq!(slop(1 << 30), 128 << 20);
    assert_eq!(slop(1 << 40), 32 << 30);
    assert_eq!(slop(1 << 50), 128 << 30);
}
