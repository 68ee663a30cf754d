//! Sends the report each day, week or month. When one is due is computed from the clock and from when the last one was sent.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use manage::api::Api;
use manage::config::Alerts as Settings;
use manage::database::seconds_since_epoch;
use manage::policy::{self, Policy};
use manage::report::{Every, Report};
use tokio::sync::watch;
use tokio::time::timeout;

use super::notify;
use crate::logging::SANBOX;

/// Between two looks whether a report is due; one that reached no mail server is tried again as often.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// What the database calls the time of the last report.
const SENT: &str = "report-sent";

/// Returns when the last report was due, in seconds since 1970: at six in the morning where this machine is.
fn last_due(every: Every, now: Timestamp) -> Option<u64> {
    let class = match every {
        Every::Off => return None,
        Every::Daily => "daily=1 at=06:00",
        Every::Weekly => "weekly=1 at=06:00",
        Every::Monthly => "monthly=1 at=06:00",
    };
    let policy: Policy = class.parse().ok()?;
    let period = &policy.classes.first()?.period;
    let due = policy::latest_boundary(&policy, period, now)?;
    u64::try_from(due.as_second()).ok()
}

/// Returns the report of so much time until now.
pub(crate) fn report(api: &Api, host: &str, every: Every) -> Report {
    let now = seconds_since_epoch();
    let alerts = api.alerts.list(true);
    Report::new(
        host,
        &api.history,
        alerts,
        now.saturating_sub(every.seconds()),
        now,
    )
}

/// Sends reports until the task is ended.
pub(super) async fn send_when_due(
    mut settings: watch::Receiver<Settings>,
    api: Arc<Api>,
    host: String,
) {
    let mut told = None;
    loop {
        let wanted = settings.borrow_and_update().clone();
        if let Some(due) = last_due(wanted.report.every, Timestamp::now()) {
            let sent = send_due(&wanted, &api, &host, due).await;
            let error = sent.err().map(|error| format!("{error:#}"));
            if let Some(error) = error.as_ref().filter(|_| error != told) {
                tracing::warn!(target: SANBOX, "the report did not reach everybody: {error}");
            }
            told = error;
        }
        if let Ok(Err(_)) = timeout(LOOK_EVERY, settings.changed()).await {
            return;
        }
    }
}

/// Sends the report that is due. Where one mail server of several took it, it counts as sent: no address gets it twice.
async fn send_due(settings: &Settings, api: &Api, host: &str, due: u64) -> anyhow::Result<()> {
    let database = api.accounts.database();
    let sent = database.noted_time(SENT).await?;
    if sent.is_some_and(|sent| sent >= due) {
        return Ok(());
    }
    let mut failed = None;
    // Where none was sent yet, the next one is the first.
    if sent.is_some() {
        let report = report(api, host, settings.report.every);
        let (to, error) = notify::send_report(settings, &report).await?;
        match error {
            Some(error) if to.is_empty() => return Err(error),
            error => failed = error,
        }
    }
    database.note_time(SENT, seconds_since_epoch());
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use jiff::civil::DateTime;
    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn reports_are_due_in_the_morning() {
        let now: DateTime = "2026-11-28T11:00:00".parse().expect("a time");
        let now = now
            .to_zoned(TimeZone::system())
            .expect("there is such a time");
        let now = now.timestamp();
        let due = |every| {
            let due = last_due(every, now)?;
            let due = Timestamp::from_second(i64::try_from(due).ok()?).ok()?;
            Some(
                due.to_zoned(TimeZone::system())
                    .strftime("%a %d %H:%M")
                    .to_string(),
            )
        };
        assert_eq!(due(Every::Off), None);
        // A Saturday.
        assert_eq!(due(Every::Daily).as_deref(), Some("Sat 28 06:00"));
        assert_eq!(due(Every::Weekly).as_deref(), Some("Mon 23 06:00"));
        assert_eq!(due(Every::Monthly).as_deref(), Some("Sun 01 06:00"));
    }
}
