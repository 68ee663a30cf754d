//! The limits that can be changed while pools are in use: one table of names, effects and bounds.
//!
//! The names are OpenZFS's module parameters where it has them, so that what people know, and their notes, still apply.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::L2Tuning;

/// The values now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tunables {
    /// `zfs_arc_max`: bytes of all caches together; `None` is what the memory allows.
    pub(crate) cache_bytes: Option<u64>,
    /// How cache devices are fed.
    pub(crate) l2: L2Tuning,
    /// Evacuations of vdevs stand still.
    pub(crate) removal_paused: bool,
    /// Volumes that were received redacted have block devices, too.
    pub(crate) redacted_devices: bool,
}

/// One limit.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) effect: &'static str,
    least: u64,
    most: u64,
    get: fn(&Tunables) -> u64,
    set: fn(&mut Tunables, u64),
}

/// All limits.
pub(crate) const TABLE: &[Row] = &[
    Row {
        name: "zfs_arc_max",
        effect: "bytes of all caches together; 0 is what --memory or the machine allows",
        least: 0,
        most: u64::MAX,
        get: |t| t.cache_bytes.unwrap_or(0),
        set: |t, value| t.cache_bytes = (value > 0).then_some(value),
    },
    Row {
        name: "l2arc_write_max",
        effect: "bytes written to a cache device at a time",
        least: 256 << 10,
        most: 1 << 40,
        get: |t| t.l2.write_max,
        set: |t, value| t.l2.write_max = value,
    },
    Row {
        name: "l2arc_write_boost",
        effect: "more bytes at a time until the device was full once",
        least: 0,
        most: 1 << 40,
        get: |t| t.l2.write_boost,
        set: |t, value| t.l2.write_boost = value,
    },
    Row {
        name: "l2arc_headroom",
        effect: "how many times that of the blocks next to go are looked at",
        least: 1,
        most: 1 << 20,
        get: |t| t.l2.headroom,
        set: |t, value| t.l2.headroom = value,
    },
    Row {
        name: "l2arc_feed_secs",
        effect: "seconds between two times when little was written",
        least: 1,
        most: 3600,
        get: |t| t.l2.feed_interval.as_secs(),
        set: |t, value| t.l2.feed_interval = Duration::from_secs(value),
    },
    Row {
        name: "l2arc_feed_min_ms",
        effect: "milliseconds between two times when much was written",
        least: 10,
        most: 3_600_000,
        get: |t| u64::try_from(t.l2.feed_interval_min.as_millis()).unwrap_or(u64::MAX),
        set: |t, value| t.l2.feed_interval_min = Duration::from_millis(value),
    },
    Row {
        name: "l2arc_noprefetch",
        effect: "1: blocks read ahead and never asked for are not written",
        least: 0,
        most: 1,
        get: |t| u64::from(t.l2.no_prefetch),
        set: |t, value| t.l2.no_prefetch = value != 0,
    },
    Row {
        name: "l2arc_mfuonly",
        effect: "1: only blocks used often are written; 2: and recent metadata",
        least: 0,
        most: 2,
        get: |t| u64::from(t.l2.frequent_only),
        set: |t, value| t.l2.frequent_only = u8::try_from(value).unwrap_or(0),
    },
    Row {
        name: "l2arc_rebuild_enabled",
        effect: "1: at import a cache device's log says what it holds",
        least: 0,
        most: 1,
        get: |t| u64::from(t.l2.rebuild),
        set: |t, value| t.l2.rebuild = value != 0,
    },
    Row {
        name: "l2arc_meta_percent",
        effect: "percent of the cache that the index of cache devices may take",
        least: 1,
        most: 100,
        get: |t| u64::from(t.l2.memory_percent),
        set: |t, value| t.l2.memory_percent = u8::try_from(value).unwrap_or(100),
    },
    Row {
        name: "l2arc_device_writes_per_day",
        effect: "how often a full cache device may be written over in a day; 0 is no bound",
        least: 0,
        most: 1000,
        get: |t| u64::from(t.l2.writes_per_day),
        set: |t, value| t.l2.writes_per_day = u32::try_from(value).unwrap_or(0),
    },
    Row {
        name: "zfs_removal_suspend_progress",
        effect: "1: vdevs that are being removed are not evacuated further",
        least: 0,
        most: 1,
        get: |t| u64::from(t.removal_paused),
        set: |t, value| t.removal_paused = value != 0,
    },
    // File systems need none of it: `zfs mount -f` asks for one of them by name.
    Row {
        name: "zfs_allow_redacted_dataset_mount",
        effect: "1: volumes that were received redacted have block devices, too",
        least: 0,
        most: 1,
        get: |t| u64::from(t.redacted_devices),
        set: |t, value| t.redacted_devices = value != 0,
    },
];

/// All limits as the API shows them.
pub(crate) fn views(tunables: &Tunables) -> Vec<manage::api::Tunable> {
    let default = Tunables::default();
    let view = |row: &Row| manage::api::Tunable {
        name: row.name,
        effect: row.effect,
        value: show(row, tunables),
        default: show(row, &default),
        least: row.least,
        most: row.most,
    };
    TABLE.iter().map(view).collect()
}

/// The value of a limit, as it is shown.
pub(crate) fn show(row: &Row, tunables: &Tunables) -> u64 {
    (row.get)(tunables)
}

/// Sets a limit by name.
///
/// # Errors
/// No such name, or no such value, in words.
pub(crate) fn set(tunables: &mut Tunables, name: &str, value: &str) -> Result<(), String> {
    let Some(row) = TABLE.iter().find(|row| row.name == name) else {
        return Err("no such limit ('sanbox tune' lists them)".to_owned());
    };
    let number = engine::property::parse_number(value)
        .map_err(|_| format!("'{value}' is not a number (such as 64M)"))?;
    if number < row.least || number > row.most {
        return Err(format!(
            "{number} is not between {} and {}",
            row.least, row.most
        ));
    }
    (row.set)(tunables, number);
    Ok(())
}

/// The limits set in a configuration file.
///
/// # Errors
/// As of [`set`], with the name.
pub(crate) fn from_config(settings: &BTreeMap<String, String>) -> Result<Tunables, String> {
    let mut tunables = Tunables::default();
    for (name, value) in settings {
        set(&mut tunables, name, value).map_err(|why| format!("[tuning] {name}: {why}"))?;
    }
    Ok(tunables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_by_name_within_bounds() {
        let mut tunables = Tunables::default();
        set(&mut tunables, "zfs_arc_max", "2G").expect("sets");
        assert_eq!(tunables.cache_bytes, Some(2 << 30));
        set(&mut tunables, "zfs_arc_max", "0").expect("sets");
        assert_eq!(tunables, Tunables::default());
        assert!(set(&mut tunables, "l2arc_write_max", "1K").is_err());
        assert!(set(&mut tunables, "l2arc_write_max", "many").is_err());
        assert!(set(&mut tunables, "zfs_arc_maximum", "1").is_err());
        for row in TABLE {
            let value = show(row, &tunables);
            set(&mut tunables, row.name, &value.to_string()).expect("what is shown can be set");
        }
        assert_eq!(tunables, Tunables::default());
    }
}
