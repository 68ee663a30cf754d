//! Numbers, times and tables in the shapes that OpenZFS's commands print and scripts read.

pub(crate) use engine::property::{nice_bytes, nice_number};
use jiff::{Timestamp, tz::TimeZone};

/// Says an error of the system in its words alone, without the number that Rust adds.
pub(crate) fn plain_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// Renders nanoseconds as `zpool iostat -l` does: whole units, `-` for none.
pub(crate) fn nice_time(nanoseconds: u64) -> String {
    if nanoseconds == 0 {
        return "-".to_owned();
    }
    decimal(nanoseconds, &["ns", "us", "ms", "s"])
}

/// Renders a count as OpenZFS's `arcstat` does: in thousands, whole units, at most four characters.
pub(crate) fn decimal_number(count: u64) -> String {
    decimal(count, &["", "K", "M", "G", "T", "P"])
}

/// A value in the largest unit of which there is a whole one, each a thousand of the one before.
fn decimal(mut value: u64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        if value < 1000 {
            break;
        }
        value /= 1000;
        unit = larger;
    }
    format!("{value}{unit}")
}

/// Seconds since 1970 as `zfs get creation` shows them: `Sat Nov 21 13:52 2026`, in local time.
pub(crate) fn date(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M %Y")
}

/// Seconds since 1970 as `ctime` shows them: `Sat Nov 21 13:52:14 2026`.
pub(crate) fn date_with_seconds(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M:%S %Y")
}

/// The local time of day, to the second: what progress lines begin with.
pub(crate) fn clock() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
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

impl Column {
    /// A column of words, as wide as its widest cell.
    pub(crate) fn left(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            right: false,
            width_min: 0,
        }
    }

    /// A column of numbers, as wide as its widest cell.
    pub(crate) fn right(title: &str) -> Self {
        Self {
            right: true,
            ..Self::left(title)
        }
    }
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
        assert_eq!(nice_time(u64::MAX), "18446744073s");
    }

    #[test]
    fn decimal_numbers_fit_four_characters() {
        for (count, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1K"),
            (999_999, "999K"),
            (1_000_000, "1M"),
            (5_000_000_000_000, "5T"),
            (7_999_999_999_999_999, "7P"),
        ] {
            assert_eq!(decimal_number(count), expected);
        }
    }

    #[test]
    fn tables_align() {
        let columns = [
            Column {
                title: "NAME".into(),
                right: false,
                width_min: 0,
            },
            Column {
                title: "USED".into(),
                right: true,
                width_min: 5,
            },
            Column {
                title: "MOUNTPOINT".into(),
                right: false,
                width_min: 0,
            },
        ];
        let rows = [vec![
            "tank".to_owned(),
            "96K".to_owned(),
            "/tank".to_owned(),
        ]];
        assert_eq!(
            table(&columns, &rows, false),
            "NAME   USED  MOUNTPOINT\ntank    96K  /tank\n"
        );
        assert_eq!(table(&columns, &rows, true), "tank\t96K\t/tank\n");
    }
}
