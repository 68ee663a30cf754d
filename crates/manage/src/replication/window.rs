//! The hours of a day in which a job may send.

use std::str::FromStr;
use std::time::Duration;

use jiff::Zoned;
use jiff::civil::Time;

/// From a time of the day to another, which may be of the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from: Time,
    to: Time,
}

impl FromStr for Window {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (from, to) = text.split_once('-').ok_or(())?;
        let time = |text: &str| {
            let (hour, minute) = text.split_once(':')?;
            Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
        };
        let window = Self {
            from: time(from).ok_or(())?,
            to: time(to).ok_or(())?,
        };
        if window.from == window.to {
            return Err(());
        }
        Ok(window)
    }
}

impl Window {
    /// Returns how long it is still open; `None` when it is closed.
    #[must_use]
    pub fn left(self, now: &Zoned) -> Option<Duration> {
        let time = now.time();
        let is_open = if self.from < self.to {
            (self.from..self.to).contains(&time)
        } else {
            time >= self.from || time < self.to
        };
        if !is_open {
            return None;
        }
        let date = if time < self.to {
            now.date()
        } else {
            now.date().tomorrow().ok()?
        };
        let end = date
            .to_datetime(self.to)
            .to_zoned(now.time_zone().clone())
            .ok()?;
        Duration::try_from(end.timestamp().duration_since(now.timestamp())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_may_go_over_midnight() {
        let left = |window: &str, now: &str| {
            let window: Window = window.parse().expect("a window");
            let now: Zoned = format!("2026-11-25T{now}[UTC]").parse().expect("a time");
            window.left(&now).map(|left| left.as_secs() / 60)
        };
        assert_eq!(left("22:00-06:00", "23:00"), Some(7 * 60));
        assert_eq!(left("22:00-06:00", "05:59"), Some(1));
        assert_eq!(left("22:00-06:00", "06:00"), None);
        assert_eq!(left("22:00-06:00", "21:59"), None);
        assert_eq!(left("08:00-12:30", "08:00"), Some(270));
        assert_eq!(left("08:00-12:30", "12:30"), None);
        for bad in ["", "8-12", "22:00", "08:00-08:00", "25:00-26:00"] {
            assert!(bad.parse::<Window>().is_err(), "{bad}");
        }
    }
}
