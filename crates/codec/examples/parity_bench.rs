//! Parity and reconstruction beside OpenZFS's `raidz_test -B`, in the same run: eight data columns of 128 KiB and one to three of
//! parity. `make bench-parity` runs it.
//!
//! ```text
//! parity_bench [ROUNDS]     (default: 5; without raidz_test only our own numbers)
//! ```
//!
//! One line per operation: GB/s of data (the eight columns) here, median of the rounds, and of the best of raidz_test's
//! implementations, and the ratio. raidz_test says how many MB/s of all columns it handles; parity is taken off.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

mod timing;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use codec::parity::{generate, reconstruct};

const COLUMNS: usize = 8;
const COLUMN_BYTES: usize = 128 << 10;
/// How long one number is measured.
const ROUND: Duration = Duration::from_millis(200);

/// An operation: raidz_test's name, rows of parity, the rows that are lost as well, data columns that are lost.
struct Case {
    name: &'static str,
    rows: usize,
    lost_rows: &'static [usize],
    lost: &'static [usize],
}

const fn case(
    name: &'static str,
    rows: usize,
    lost_rows: &'static [usize],
    lost: &'static [usize],
) -> Case {
    Case {
        name,
        rows,
        lost_rows,
        lost,
    }
}

const CASES: &[Case] = &[
    case("gen_p", 1, &[], &[]),
    case("gen_pq", 2, &[], &[]),
    case("gen_pqr", 3, &[], &[]),
    case("rec_p", 3, &[1, 2], &[0]),
    case("rec_q", 3, &[0, 2], &[0]),
    case("rec_r", 3, &[0, 1], &[0]),
    case("rec_pq", 3, &[2], &[0, 1]),
    case("rec_pr", 3, &[1], &[0, 1]),
    case("rec_qr", 3, &[0], &[0, 1]),
    case("rec_pqr", 3, &[], &[0, 1, 2]),
];

/// Repeats `work` for a round; GB/s of data.
fn rate(mut work: impl FnMut()) -> f64 {
    timing::rate(ROUND, COLUMNS * COLUMN_BYTES, |_| work())
}

fn measure(case: &Case, data: &[Vec<u8>]) -> f64 {
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; COLUMN_BYTES]; case.rows];
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    if case.lost.is_empty() {
        return rate(|| generate(&columns, &mut rows));
    }
    generate(&columns, &mut rows);
    let left: Vec<Option<&[u8]>> = (0..COLUMNS)
        .map(|at| (!case.lost.contains(&at)).then_some(columns[at]))
        .collect();
    let rows: Vec<Option<&[u8]>> = (0..case.rows)
        .map(|at| (!case.lost_rows.contains(&at)).then_some(parity[at].as_slice()))
        .collect();
    let mut found = vec![vec![0; COLUMN_BYTES]; case.lost.len()];
    let mut out: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
    let found_rate = rate(|| reconstruct(&left, &rows, &mut out).expect("enough is left"));
    for (column, &at) in found.iter().zip(case.lost) {
        assert_eq!(column, &data[at], "{}: wrong bytes", case.name);
    }
    found_rate
}

/// The best of raidz_test's implementations by operation, in GB/s of data, with its name.
fn theirs() -> BTreeMap<String, (f64, String)> {
    let mut best = BTreeMap::new();
    let columns = COLUMNS.to_string();
    let Ok(output) = Command::new("raidz_test")
        .args(["-B", "-d", &columns])
        .output()
    else {
        eprintln!("parity_bench: no raidz_test (Debian: zfs-test); only our own numbers");
        return best;
    };
    let size = (COLUMNS * COLUMN_BYTES).to_string();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        let [form, operation, _, bytes, per_column, ..] = words.as_slice() else {
            continue;
        };
        let Ok(per_column) = per_column.parse::<f64>() else {
            continue;
        };
        // Its megabytes are 2^20 bytes, a column's.
        let rate = per_column * COLUMNS as f64 * f64::from(1 << 20) / 1e9;
        if *bytes == size && best.get(*operation).is_none_or(|(known, _)| *known < rate) {
            best.insert((*operation).to_owned(), (rate, (*form).to_owned()));
        }
    }
    best
}

fn main() {
    let rounds: usize = std::env::args()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(5);
    let mut state = 1_u64;
    let data: Vec<Vec<u8>> = (0..COLUMNS)
        .map(|_| {
            let byte = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                state.to_le_bytes()[7]
            };
            std::iter::repeat_with(byte).take(COLUMN_BYTES).collect()
        })
        .collect();
    let mut ours: Vec<Vec<f64>> = vec![Vec::new(); CASES.len()];
    let mut measure_all = |rounds| {
        for _ in 0..rounds {
            for (case, rates) in CASES.iter().zip(&mut ours) {
                rates.push(measure(case, &data));
            }
        }
    };
    // Half before and half after theirs, which takes minutes.
    measure_all(rounds.div_ceil(2));
    let theirs = theirs();
    measure_all(rounds / 2);
    println!(
        "{:10} {:>10} {:>10} {:>7}",
        "operation", "GB/s", "raidz_test", "ratio"
    );
    for (case, rates) in CASES.iter().zip(ours) {
        let median = timing::median(rates).unwrap_or(0.0);
        match theirs.get(case.name) {
            Some((rate, form)) => println!(
                "{:10} {median:10.2} {rate:10.2} {:7.2}  {form}",
                case.name,
                median / rate
            ),
            None => println!("{:10} {median:10.2}", case.name),
        }
    }
}
