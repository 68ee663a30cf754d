//! Waiting for clients of NFSv4 to give back a file that they have delegated.

use std::future::Future;
use std::time::Duration;

use engine::FsError;

/// How long is waited at most. Clients that do not give a file back lose it after their lease, which is shorter unless it was set to more
/// than 5 minutes.
const DELEGATED_MAX: Duration = Duration::from_secs(300);

/// Tries again what a client of NFSv4 is to give back a file for.
pub(crate) async fn retried<T, Work>(mut work: impl FnMut() -> Work) -> Result<T, FsError>
where
    Work: Future<Output = Result<T, FsError>>,
{
    let mut outcome = work().await;
    let mut waited = Duration::ZERO;
    while matches!(outcome, Err(FsError::Delegated)) && waited < DELEGATED_MAX {
        let pause = (waited / 4).clamp(Duration::from_millis(5), Duration::from_millis(500));
        tokio::time::sleep(pause).await;
        waited += pause;
        outcome = work().await;
    }
    outcome
}
