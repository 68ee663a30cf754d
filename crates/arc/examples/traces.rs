//! Hit rates of the cache's policy beside ARC as published and LRU, on generated traces.
//!
//! `cargo run --release -p arc --example traces [BLOCKS [READS]]`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use arc::trace::{Lru, Ours, Paper, hit_rate, traces};

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse().ok());
    let blocks = words.next().flatten().unwrap_or(10_000);
    let reads = words.next().flatten().unwrap_or(2_000_000);
    println!("cache of {blocks} blocks, {reads} reads a trace; shares of reads answered");
    println!("{:<36} {:>8} {:>8} {:>8}", "trace", "ours", "ARC", "LRU");
    for (name, trace) in traces(blocks, reads) {
        let ours = hit_rate(&mut Ours::new(blocks), &trace);
        let paper = hit_rate(&mut Paper::new(blocks), &trace);
        let lru = hit_rate(&mut Lru::new(blocks), &trace);
        println!("{name:<36} {ours:>8.4} {paper:>8.4} {lru:>8.4}");
    }
}
