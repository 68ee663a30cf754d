//! Numbers, times and tables in the shapes that OpenZFS's commands print and scripts read.

use jiff::{Timestamp, tz::TimeZone};

/// Renders a count in at most five characters with a binary unit: `1.50K`, `10.0M`, `128K`.
pub(crate) fn nice_number(number: u64) -> String {
    scaled(number, ["", "K", "M", "G", "T", "P", "E"])
}

/// Renders bytes like [`nice_number`], with `B` below 1024.
pub(crate) fn nice_bytes(bytes: u64) -> String {
    scaled(bytes, ["B", "K", "M", "G", "T", "P", "E"])
}

#[allow(clippy::cast_precision_loss, reason = "OpenZFS renders through a double as well")]
fn scaled(number: u64, units: [&str; 7]) -> String {
    let mut index = 0;
    let mut whole = number;
    while whole >= 1024 && index < 6 {
        whole /= 1024;
        index += 1;
    }
    let unit = units[index];
    let scale = 1_u64 << (10 * index);
    if index == 0 || number.is_multiple_of(scale) {
        return format!("{whole}{unit}");
    }
    let value = number as f64 / scale as f64;
    for precision in [2, 1] {
        let text = format!("{value:.precision$}{unit}");
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{value:.0}{unit}")
}

/// Renders nanoseconds as `zpool iostat -l` does: whole units, `-` for none.
pub(crate) fn nice_time(nanoseconds: u64) -> String {
    if nanoseconds == 0 {
        return "-".to_owned();
    }
    let mut value = nanoseconds;
    for unit in ["ns", "us", "ms"] {
        if value < 1000 {
            return format!("{value}{unit}");
        }
        value /= 1000;
    }
    format!("{value}s")
}

/// Reads a size as users write it: `10G`, `1.5M`, `512`, `128KiB`, `0x200` is refused.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return None;
    }
    let suffix = suffix.to_ascii_uppercase();
    let shift = match suffix.trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return None,
    };
    if !matches!(suffix.get(1..).unwrap_or(""), "" | "B" | "IB") || suffix == "BB" {
        return None;
    }
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let value: f64 = number.parse().ok()?;
    let bytes = value * f64::from(2_u32).powi(shift);
    if !(0.0..1.8e19).contains(&bytes) {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    Some(bytes as u64)
}

/// Seconds since 1970 as `zfs get creation` shows them: `Sat Nov 21 13:52 2026`, in local time.
pub(crate) fn date(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M %Y")
}

/// Seconds since 1970 as `ctime` shows them: `Sat Nov 21 13:52:14 2026`.
pub(crate) fn date_with_seconds(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M:%S %Y")
}

/// Seconds since 1970 as `zpool history` shows them: `2026-11-21.13:52:14`.
pub(crate) fn history_date(seconds: u64) -> String {
    local(seconds, "%Y-%m-%d.%H:%M:%S")
}

fn local(seconds: u64, form: &str) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .map_or_else(
            || seconds.to_string(),
            |time| time.to_zoned(TimeZone::system()).strftime(form).to_string(),
        )
}

/// A column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Heading.
    pub(crate) title: String,
    /// Numbers stand at the right.
    pub(crate) right: bool,
    /// Narrowest width.
    pub(crate) width_min: usize,
}

/// A table whose columns are as wide as their widest cell, two spaces apart; with `scripted`, tabs
/// between the cells and no headings, as `-H` wants it.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>], scripted: bool) -> String {
    let mut text = String::new();
    if scripted {
        for row in rows {
            text.push_str(&row.join("\t"));
            text.push('\n');
        }
        return text;
    }
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            rows.iter()
                .map(|row| row[index].chars().count())
                .chain([column.title.chars().count(), column.width_min])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let titles: Vec<String> = columns.iter().map(|column| column.title.clone()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        for (index, cell) in row.iter().enumerate() {
            if index > 0 {
                text.push_str("  ");
            }
            let padding = widths[index] - cell.chars().count();
            let last = index + 1 == row.len();
            if columns[index].right {
                text.extend(std::iter::repeat_n(' ', padding));
                text.push_str(cell);
            } else {
                text.push_str(cell);
                // A left-aligned last column has no padding: nothing trails.
                if !last {
                    text.extend(std::iter::repeat_n(' ', padding));
                }
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_five_characters() {
        let check = |number: u64, expect: &str| assert_eq!(nice_number(number), expect, "{number}");
        check(0, "0");
        check(1023, "1023");
        check(1024, "1K");
        check(1536, "1.50K");
        check(10239, "10.0K");
        check(131_072, "128K");
        check(78_667_776, "75.0M");
        check(36_749_312, "35.0M");
        check(5_193_728, "4.95M");
        check(u64::MAX, "16.0E");
        assert_eq!(nice_bytes(512), "512B");
        assert_eq!(nice_bytes(65_536), "64K");
        assert_eq!(nice_time(0), "-");
        assert_eq!(nice_time(999), "999ns");
        assert_eq!(nice_time(1_999_999), "1ms");
    }

    #[test]
    fn sizes_are_read_as_users_write_them() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(parse_size(text), expect, "{text}");
        check("512", Some(512));
        check("1.5K", Some(1536));
        check("10g", Some(10 << 30));
        check("10GB", Some(10 << 30));
        check("10GiB", Some(10 << 30));
        check("1.5", Some(1));
        check("", None);
        check("K", None);
        check("1X", None);
        check("99999999999T", None);
        check("-1", None);
    }

    #[test]
    fn tables_align() {
        let columns = [
            Column { title: "NAME".into(), right: false, width_min: 0 },
            Column { title: "USED".into(), right: true, width_min: 5 },
            Column { title: "MOUNTPOINT".into(), right: false, width_min: 0 },
        ];
        let rows = [vec!["tank".to_owned(), "96K".to_owned(), "/tank".to_owned()]];
        assert_eq!(table(&columns, &rows, false), "NAME   USED  MOUNTPOINT\ntank    96K  /tank\n");
        assert_eq!(table(&columns, &rows, true), "tank\t96K\t/tank\n");
    }
}
