//! Snapshots that are not destroyed before a date.
//!
//! The date is a user property of the snapshot itself. A hold beside it, which stays until then, keeps other implementations of ZFS from
//! destroying the snapshot. Both are written in one txg. The date is prolonged, never shortened, and a stream brings it along.
//!
//! The clock is trusted only as far as it counts: the highest time that was seen is stored in the pool, and while the pool is open time goes
//! on from there no faster than the monotonic clock. A clock that is set back makes a snapshot stay longer; one that is set forward while the
//! pool is open changes nothing. What happens to the disks without this program, or while the pool is exported, is not known here.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap;
use ondisk::ObjectId;
use ondisk::dsl::DslDatasetPhys;

use crate::dataset_state::DatasetState;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{ImmutableError, Result};
use crate::hierarchy::Hierarchy;
use crate::property::{Kinds, Setting, Value};
use crate::property_zap::{self, PropertyWrite};
use crate::types::ListSpec;

/// The user property of a snapshot with the time before which it is not destroyed: `2027-01-31T00:00:00Z`.
pub const IMMUTABLE_PROPERTY: &str = "org.sanbox:immutable-until";
/// The tag of the hold of an immutable snapshot.
pub const IMMUTABLE_TAG: &str = "org.sanbox:immutable";
/// The user property of a pool's root dataset with the highest time seen, in seconds since 1970. Kept by this layer alone.
pub const TIME_SEEN_PROPERTY: &str = "org.sanbox:time-seen";

/// How old the stored time may become while more immutable snapshots are made.
const TIME_SEEN_STEP_SECONDS: u64 = 60;
const DAY_SECONDS: u64 = 86_400;

/// Reads a time of the form `2027-01-31T00:00:00Z`: seconds since 1970. `None` for anything else, and for times before 1970.
#[must_use]
pub fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days_before(year, month, day)? * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    // A day that the month does not have would be one of the next month.
    (time_text(seconds) == text).then_some(seconds)
}

/// Writes seconds since 1970 in the form that [`parse_time`] reads.
#[must_use]
pub fn time_text(seconds: u64) -> String {
    let (mut days, rest) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let mut year = 1970;
    // Whole cycles of the calendar first: 400 years have 146,097 days.
    year += days / 146_097 * 400;
    days %= 146_097;
    while days >= year_days(year) {
        days -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_days(year, month) {
        days -= month_days(year, month);
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!(
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}

/// Reads three numbers of so many digits each.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut read = [0; 3];
    let mut parts = text.split(separator);
    for (number, digits) in read.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(read)
}

/// Days from 1970-01-01 to a date.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let years: u64 = (1970..year).map(year_days).sum();
    let months: u64 = (1..month).map(|month| month_days(year, month)).sum();
    Some(years + months + day - 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Hierarchy {
    /// Returns the time that immutability is measured by, and the highest time that was seen and stored before: seconds since 1970. The
    /// first below the second says that the clock was set back.
    ///
    /// # Errors
    /// Of reading.
    pub async fn counted_time(&self) -> Result<(u64, u64)> {
        let _names = self.pool().config.read().await;
        let seen = self.pool().time_seen().await?;
        Ok((self.pool().counted(seen), seen))
    }

    /// Fails with the name of a snapshot that is immutable still, if the pool has one.
    ///
    /// # Errors
    /// `Immutable`; of reading.
    pub async fn check_nothing_immutable(&self) -> Result<()> {
        let kinds = Kinds::FILESYSTEM.union(Kinds::VOLUME);
        let root = self.pool().pool_name();
        let heads = self.names(&root, ListSpec { depth: None, kinds }).await?;
        let _names = self.pool().config.read().await;
        for head in heads {
            let Ok(found) = self.pool().find(&head).await else {
                continue;
            };
            self.pool().check_line(found.dataset).await?;
        }
        Ok(())
    }
}

impl DslPool {
    /// The highest time that was stored; 0 where none was.
    async fn time_seen(self: &Rc<Self>) -> Result<u64> {
        let root = self.dir(self.root_dir()).await?;
        let map = property_zap::read_map(&self.mos, ObjectId(root.phys().props_zapobj)).await?;
        let text = map.get(TIME_SEEN_PROPERTY).and_then(Value::text);
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// The time that immutability is measured by.
    fn counted(&self, seen: u64) -> u64 {
        let open = self.services.handle.now().since(self.opened.monotonic);
        let counted = self.opened.seconds.max(self.seen_at_open(seen));
        self.seconds().min(counted.saturating_add(open.as_secs()))
    }

    /// The stored time as it was when the pool was opened: what is stored later was counted from it.
    fn seen_at_open(&self, seen: u64) -> u64 {
        *self.time_seen_at_open.get_or_init(|| seen)
    }

    /// Returns until when a snapshot is immutable; `None` when it is not, or not any more.
    pub(crate) async fn immutable_until(
        self: &Rc<Self>,
        phys: &DslDatasetPhys,
    ) -> Result<Option<u64>> {
        if phys.props_obj == 0 {
            return Ok(None);
        }
        let stored = property_zap::read_map(&self.mos, ObjectId(phys.props_obj)).await?;
        let received = format!("{IMMUTABLE_PROPERTY}$recvd");
        // The later of what was set here and what came with a stream: neither shortens the other.
        let until = [IMMUTABLE_PROPERTY, received.as_str()]
            .into_iter()
            .filter_map(|key| parse_time(stored.get(key)?.text()?))
            .max();
        let Some(until) = until else {
            return Ok(None);
        };
        let now = self.counted(self.time_seen().await?);
        Ok((until > now).then_some(until))
    }

    /// Fails when a snapshot of a head's own line is immutable.
    async fn check_line(self: &Rc<Self>, head: ObjectId) -> Result<()> {
        let head = self.dataset_phys(head).await?;
        let (mut at, mut number) = (head.prev_snap_obj, 0);
        while at != 0 {
            self.yield_every(number).await;
            number += 1;
            let phys = self.dataset_phys(ObjectId(at)).await?;
            // From here on it is the line of what this was cloned from.
            if phys.dir_obj != head.dir_obj {
                break;
            }
            if let Some(until) = self.immutable_until(&phys).await? {
                let name = self.snapshot_name(ObjectId(at)).await?;
                let until = time_text(until);
                return Err(ImmutableError::InPool { name, until }.into());
            }
            at = phys.prev_snap_obj;
        }
        Ok(())
    }

    /// Refuses to destroy a snapshot, or to release its hold, before its time.
    pub(crate) async fn check_not_immutable(self: &Rc<Self>, phys: &DslDatasetPhys) -> Result<()> {
        match self.immutable_until(phys).await? {
            Some(until) => Err(ImmutableError::Until(time_text(until)).into()),
            None => Ok(()),
        }
    }

    /// Holds on a snapshot that keep it: all but that of an immutability which is over.
    pub(crate) async fn keeping_refs(self: &Rc<Self>, phys: &DslDatasetPhys) -> Result<u64> {
        let refs = self.user_refs(phys).await?;
        if refs == 0 || self.immutable_until(phys).await?.is_some() {
            return Ok(refs);
        }
        let map = ObjectId(phys.userrefs_obj);
        let own = zap::lookup(&self.mos, map, IMMUTABLE_TAG).await?.is_some();
        Ok(refs - u64::from(own))
    }

    /// Checks that settings neither shorten an immutability nor write what only this layer does.
    pub(crate) async fn check_immutable_settings(
        self: &Rc<Self>,
        found: &Found,
        settings: &[Setting],
    ) -> Result<()> {
        for setting in settings {
            let Setting::User(name, text) = setting else {
                continue;
            };
            if name == TIME_SEEN_PROPERTY {
                return Err(ImmutableError::TimeSeen.into());
            }
            if name != IMMUTABLE_PROPERTY {
                continue;
            }
            if found.snapshot.is_none() {
                return Err(ImmutableError::NotASnapshot.into());
            }
            let new = parse_time(text).ok_or(ImmutableError::BadTime)?;
            let phys = self.dataset_phys(found.dataset).await?;
            if let Some(until) = self.immutable_until(&phys).await?.filter(|old| new < *old) {
                return Err(ImmutableError::Shortened(time_text(until)).into());
            }
        }
        Ok(())
    }

    /// Checks that a property may be cleared.
    pub(crate) async fn check_immutable_clear(
        self: &Rc<Self>,
        found: &Found,
        name: &str,
    ) -> Result<()> {
        if name == TIME_SEEN_PROPERTY && found.dir.object == self.root_dir() {
            return Err(ImmutableError::TimeSeen.into());
        }
        if name != IMMUTABLE_PROPERTY || found.snapshot.is_none() {
            return Ok(());
        }
        let phys = self.dataset_phys(found.dataset).await?;
        match self.immutable_until(&phys).await? {
            Some(until) => Err(ImmutableError::Shortened(time_text(until)).into()),
            None => Ok(()),
        }
    }

    /// Holds a snapshot whose properties were written, if they make it immutable, and stores the time. Syncing context.
    pub(crate) async fn hold_immutable(self: &Rc<Self>, found: &Found, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "hold immutable happens in syncing context");
        let state: Rc<DatasetState> = self.load_dataset(found.dataset, None).await?;
        if self.immutable_until(&state.phys()).await?.is_none() {
            return Ok(());
        }
        if !self.has_hold(&state, IMMUTABLE_TAG).await? {
            self.add_hold(&state, IMMUTABLE_TAG, tx).await?;
        }
        let seen = self.time_seen().await?;
        let now = self.counted(seen);
        if now >= seen.saturating_add(TIME_SEEN_STEP_SECONDS) {
            let root = self.dir(self.root_dir()).await?;
            let (map, value) = (
                ObjectId(root.phys().props_zapobj),
                Value::Text(now.to_string()),
            );
            let how = PropertyWrite::Local;
            property_zap::write(&self.mos, map, TIME_SEEN_PROPERTY, Some(&value), how, tx).await?;
            *root.props.borrow_mut() = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        // Known pairs, of `date -u -d ... +%s`.
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2027-01-31T00:00:00Z", 1_801_353_600),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("2400-02-29T12:00:00Z", 13_574_606_400),
        ] {
            assert_eq!(parse_time(text), Some(seconds), "{text}");
            assert_eq!(time_text(seconds), text);
        }
        for bad in [
            "",
            "2027-01-31",
            "2027-02-30T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-01-31T24:00:00Z",
            "2027-01-31T00:00:00",
            "1969-12-31T00:00:00Z",
            "+027-01-31T00:00:00Z",
            "2027-01-31T00:00:00+01:00",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
