//! The user in whose name a command runs, where that is not the user that runs the appliance.

use engine::{PoolHandle, Subject};

tokio::task_local! {
    /// The user that gave the command that this task runs, if it is not the one that runs the appliance.
    static SUBJECT: Subject;
}

/// Runs a command of a user that may only do what was delegated: the pools it reaches check that.
pub(crate) async fn as_subject<T>(subject: Option<Subject>, command: impl Future<Output = T>) -> T {
    match subject {
        Some(subject) => SUBJECT.scope(subject, command).await,
        None => command.await,
    }
}

/// Whether the command that runs may do only what was delegated. Mounting and unmounting never is: this process may be root's,
/// and the mount point would be the user's choice.
pub(crate) fn is_delegated() -> bool {
    SUBJECT.try_with(|_| ()).is_ok()
}

/// A pool as the command that runs may use it.
pub(super) fn handed(pool: PoolHandle) -> PoolHandle {
    match SUBJECT.try_with(Clone::clone) {
        Ok(subject) => pool.for_caller(subject),
        Err(_) => pool,
    }
}
