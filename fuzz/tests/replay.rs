//! Runs every fuzz target over its corpus and over mutations of it, in bounded time and memory.
//!
//! The mutations are seeded: a failure repeats. What is asserted: no panic, and no more memory at once than the target
//! allows for the length of its input. `FUZZ_ROUNDS` gives another number of mutations, `FUZZ_TARGET` one target, `FUZZ_SEED` other ones.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use fuzz::{CANARIES, TARGETS, Target};

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a count per thread of what is held.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; the counting touches only thread-local cells,
// which need no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        // Memory given back by another thread wraps below zero here; it is not a peak.
        if HELD.get() < usize::MAX / 2 {
            PEAK.set(PEAK.get().max(HELD.get()));
        }
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Mutations of each target in ordinary runs, and what they begin with.
const ROUNDS: u64 = 20_000;
const SEED: u64 = 0x5a6b_7c8d_9eaf_1234;

/// What went wrong with an input, if anything.
fn run(target: &Target, input: &[u8]) -> Result<(), String> {
    let before = HELD.get();
    PEAK.set(before);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let held = PEAK.get().saturating_sub(before);
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        return Err(format!("panic: {}", text.unwrap_or_default()));
    }
    let max = (target.memory_max)(input.len());
    if held > max {
        Err(format!(
            "{held} bytes held for an input of {}, limit {max}",
            input.len()
        ))
    } else {
        Ok(())
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|f| f.expect("corpus folder can be listed").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
        .iter()
        .map(|f| std::fs::read(f).expect("corpus file can be read"))
        .collect()
}

/// A generator with a fixed seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).expect("less than a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Changes an input a little: bytes, words of interest, pieces copied, cut or removed.
    fn mutate(&mut self, input: &mut Vec<u8>) {
        for _ in 0..1 + self.below(5) {
            if input.is_empty() {
                input.push(self.byte());
            }
            // Most of what decides is near the front.
            let reach = if self.below(2) == 0 {
                input.len()
            } else {
                input.len().min(256)
            };
            let at = self.below(reach);
            match self.below(7) {
                0 => input[at] ^= 1 << self.below(8),
                1 => input[at] = self.byte(),
                2 | 3 => {
                    let words = [
                        0u64,
                        1,
                        0x7f,
                        0xff,
                        0xffff,
                        0x7fff_ffff,
                        0xffff_ffff,
                        1 << 32,
                        1 << 63,
                        u64::MAX,
                    ];
                    let word = words[self.below(words.len())].to_le_bytes();
                    let width = [1, 2, 4, 8][self.below(4)].min(input.len() - at);
                    input[at..at + width].copy_from_slice(&word[..width]);
                    if self.below(2) == 0 {
                        input[at..at + width].reverse();
                    }
                }
                4 => {
                    let (from, len) = (self.below(input.len()), self.below(64));
                    let piece: Vec<u8> = input.iter().skip(from).take(len).copied().collect();
                    let len = piece.len().min(input.len() - at);
                    input[at..at + len].copy_from_slice(&piece[..len]);
                }
                5 => input.truncate(at),
                _ => {
                    let end = (at + self.below(16)).min(input.len());
                    input.drain(at..end);
                }
            }
        }
    }
}

/// A number that the environment may give.
fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => otherwise,
    }
}

/// Runs mutations of the corpus; returns the first failure.
fn mutations(target: &Target, rounds: u64, seed: u64) -> Option<String> {
    let corpus = corpus(target.name);
    assert!(seed != 0, "a seed of zero makes no noise");
    let mut noise = Noise(seed);
    for round in 0..rounds {
        let mut input = corpus[noise.below(corpus.len())].clone();
        noise.mutate(&mut input);
        if let Err(e) = run(target, &input) {
            return Some(format!(
                "{} round {round}, input of {} bytes: {e}",
                target.name,
                input.len()
            ));
        }
    }
    None
}

#[test]
fn the_corpus_passes() {
    for target in TARGETS {
        for (i, input) in corpus(target.name).iter().enumerate() {
            if let Err(e) = run(target, input) {
                panic!("{} corpus file {i}: {e}", target.name);
            }
        }
    }
}

/// Goal: no target is forgotten by one of its runners.
#[test]
fn every_target_has_a_fuzzer_and_every_corpus_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(folder.join("libfuzzer/Cargo.toml"));
    let manifest = manifest.expect("the fuzzers' manifest can be read");
    let all = || TARGETS.iter().chain(CANARIES);
    for target in all() {
        let bin = format!("[[bin]]\nname = \"{}\"\n", target.name);
        assert!(manifest.contains(&bin), "libfuzzer/: {}", target.name);
    }
    assert_eq!(manifest.matches("[[bin]]").count(), all().count());
    for entry in std::fs::read_dir(folder.join("corpus")).expect("the corpus can be listed") {
        let name = entry.expect("a folder").file_name();
        assert!(all().any(|t| name == t.name), "corpus/: {}", name.display());
    }
}

#[test]
fn mutations_of_the_corpus_pass() {
    let only = std::env::var("FUZZ_TARGET").ok();
    let (rounds, seed) = (setting("FUZZ_ROUNDS", ROUNDS), setting("FUZZ_SEED", SEED));
    let mut ran = 0;
    for target in TARGETS {
        if only.as_ref().is_some_and(|only| only != target.name) {
            continue;
        }
        if let Some(failure) = mutations(target, rounds, seed) {
            panic!("{failure}");
        }
        ran += 1;
    }
    assert!(ran > 0, "there is no target {only:?}");
}

#[test]
fn noise_passes() {
    let mut noise = Noise(77);
    for target in TARGETS {
        for _ in 0..500 {
            let input: Vec<u8> = (0..noise.below(2000)).map(|_| noise.byte()).collect();
            if let Err(e) = run(target, &input) {
                panic!("{}: {e}", target.name);
            }
        }
    }
}

/// Goal: the harness notices faults. Method: targets that have one.
#[test]
fn canaries_are_caught() {
    for target in CANARIES {
        let failure = mutations(target, ROUNDS, SEED);
        assert!(failure.is_some(), "{} was not caught", target.name);
    }
}
