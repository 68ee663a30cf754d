//! How the benchmarks here take a number: work is repeated for a while, and the median of several rounds counts.

use std::time::{Duration, Instant};

/// Repeats `work`, which is told how often it was done before, for so long; GB/s of the data that each time handles. The first
/// time is not counted.
pub(crate) fn rate(round: Duration, bytes_each: usize, mut work: impl FnMut(usize)) -> f64 {
    work(0);
    let began = Instant::now();
    let mut times = 0_usize;
    while began.elapsed() < round {
        work(times);
        times += 1;
    }
    times as f64 * bytes_each as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// Returns the median of the rounds, `None` when there was none.
pub(crate) fn median(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}
