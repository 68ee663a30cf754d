//! Has the certificate of the console issued and renewed by an authority, as `[acme]` says, for as long as the appliance is there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use manage::acme::AcmeProgress;
use manage::api::Api;
use manage::database::seconds_since_epoch;
use tokio::time::sleep;

use crate::acme::{Surroundings, When, fingerprint_in};
use crate::appliance::Appliance;
use crate::logging::CONSOLE;

/// The longest time between two looks: the clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// The shortest: the file that says when may not have been written.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Asks for certificates when they are due.
pub(super) async fn keep(appliance: Weak<Appliance>, api: Arc<Api>) {
    let Some(mut settings) = appliance
        .upgrade()
        .map(|appliance| appliance.acme().settings().subscribe())
    else {
        return;
    };
    loop {
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        settings.mark_unchanged();
        let wait = look(&appliance, &api).await;
        drop(appliance);
        tokio::select! {
            changed = settings.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep(wait) => {}
        }
    }
}

/// Asks for a certificate if one is due; returns when to look again.
async fn look(appliance: &Appliance, api: &Api) -> Duration {
    let acme = appliance.acme();
    if !acme.settings().borrow().is_on() {
        return LOOK_EVERY;
    }
    let surroundings = Surroundings {
        state: appliance.state(),
        config: appliance.config(),
    };
    match acme.attempt(&surroundings, When::Due).await {
        Ok(None) => {}
        Ok(Some(issued)) => {
            tracing::info!(
                target: CONSOLE,
                "a certificate for {} was issued by {}",
                issued.names.join(", "),
                issued.directory
            );
            let _ = api.alerts.want_check("certificate");
        }
        Err(failure) => {
            tracing::warn!(
                target: CONSOLE,
                "no certificate by ACME, the one before stays: {} {}",
                failure.fact,
                failure.next_step
            );
            let _ = api.alerts.want_check("certificate");
        }
    }
    let settings = acme.settings().borrow().clone();
    let directory = appliance.state().path().to_owned();
    let read = move || {
        let in_use = fingerprint_in(&directory);
        AcmeProgress::read(&directory).next_attempt(&settings, in_use.as_deref())
    };
    let next = tokio::task::spawn_blocking(read).await.unwrap_or(0);
    let left = next.saturating_sub(seconds_since_epoch());
    Duration::from_secs(left).clamp(LOOK_AGAIN, LOOK_EVERY)
}
