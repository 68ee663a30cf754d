//! What a seed of the lab does: small pools and small files, so that a cut is cheap; every layout, with and without log
//! devices, every fault a layout must survive.

use std::time::Duration;

use world::Rng;

use crate::campaign::datasets::Habits;
use crate::campaign::model::Style;
use crate::campaign::scenario::{Layout, Logs, Plan, Trouble, draw_logbias};

/// Draws the plan of a seed.
#[must_use]
pub fn plan_of_seed(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x4c41_4243_5241_5348);
    let layout = *rng.choose(&[
        Layout::Single,
        Layout::Single,
        Layout::Single,
        Layout::Stripe,
        Layout::Mirror,
        Layout::Mirror,
        Layout::TwoMirrors,
        Layout::Raidz1,
        Layout::Raidz2,
        Layout::Raidz3,
    ]);
    let logs = *rng.choose(&[
        Logs::InPool,
        Logs::InPool,
        Logs::InPool,
        Logs::One,
        Logs::Stripe,
        Logs::Mirror,
    ]);
    let is_redundant = !matches!(layout, Layout::Single | Layout::Stripe);
    let trouble = match rng.below(12) {
        0 => Trouble::Slow,
        1 | 2 if is_redundant => Trouble::OneBadSide,
        3 if is_redundant => Trouble::OneSideVanishes,
        4 if is_redundant => Trouble::OneFailingSide,
        5 if is_redundant => Trouble::OneSideSticks,
        6 | 7 if logs != Logs::InPool => Trouble::LogsFail,
        _ => Trouble::None,
    };
    let choices: [(&str, &[&str]); 7] = [
        ("compression", &["lz4", "off", "zstd", "zle"]),
        ("recordsize", &["4K", "8K", "16K", "32K", "128K", "512"]),
        ("checksum", &["on", "sha256"]),
        ("xattr", &["sa", "on"]),
        ("copies", &["1", "1", "1", "2"]),
        ("atime", &["off", "on"]),
        ("sync", &["standard", "standard", "always"]),
    ];
    let mut settings = Vec::new();
    for (name, values) in choices {
        if rng.coin() {
            settings.push((name.to_owned(), (*rng.choose(values)).to_owned()));
        }
    }
    draw_logbias(&mut settings, seed);
    let clients = rng.index(3) + 1;
    let styles = (0..clients)
        .map(|_| *rng.choose(&[Style::Sync, Style::Sync, Style::Sync, Style::Names]))
        .collect();
    Plan {
        seed,
        layout,
        trouble,
        rounds: 1,
        clients,
        operations: rng.between(20, 60),
        disk_bytes: 64 << 20,
        sector_bytes: *rng.choose(&[512, 512, 4096]),
        settings,
        styles,
        with_datasets: rng.below(4) == 0,
        dataset_operations: 16,
        habits: Habits::default(),
        cut_at_create: false,
        with_classes: rng.below(6) == 0,
        with_volume: rng.below(3) == 0,
        logs,
        group_age: Duration::from_millis(*rng.choose(&[50, 300, 1_000, 5_000, 5_000])),
        with_cache: false,
        with_devices: false,
        with_removals: false,
        with_expansions: false,
        counts_later: false,
        fast_dedup: false,
        dedup_logs: false,
    }
}
