//! Times as messages show them.

use ondisk::bytes::index;

/// Writes a time as `date` does in UTC: `Sat Nov 21 13:49:14 2026`.
pub(crate) fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day count (Gregorian, era of 400 years starting in March).
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        DAYS[index(days % 7)],
        MONTHS[index(month - 1)],
        day,
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
        year
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_date_writes_them() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(1_795_268_954), "Sat Nov 21 13:49:14 2026");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
    }
}
