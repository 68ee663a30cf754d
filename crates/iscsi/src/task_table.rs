//! The tasks of a session under way, by their tags.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::Reply as Answer;

use crate::task::Task;

/// Commands of a session under way at once.
pub(crate) const COMMANDS_MAX: u32 = 128;
/// Immediate commands beyond those.
const IMMEDIATE_MAX: usize = 32;

/// Tasks by initiator task tag. A task stands here until it is answered or aborted.
#[derive(Debug, Default)]
pub(crate) struct TaskTable(Mutex<BTreeMap<u32, Arc<Task>>>);

impl TaskTable {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commands that the initiator may send beside those under way.
    pub(crate) fn room(&self) -> u32 {
        let busy = u32::try_from(self.tasks().len()).unwrap_or(COMMANDS_MAX);
        COMMANDS_MAX - busy.min(COMMANDS_MAX)
    }

    /// Adds a task. Refused when its tag is in use, or too many run.
    pub(crate) fn add(&self, task: &Arc<Task>) -> bool {
        let mut tasks = self.tasks();
        let limit = usize::try_from(COMMANDS_MAX).unwrap_or(0) + IMMEDIATE_MAX;
        if tasks.len() >= limit || tasks.contains_key(&task.itt) {
            return false;
        }
        tasks.insert(task.itt, task.clone());
        true
    }

    /// The task with a tag.
    pub(crate) fn get(&self, itt: u32) -> Option<Arc<Task>> {
        self.tasks().get(&itt).cloned()
    }

    /// Takes a task out, if it still is the one with its tag.
    pub(crate) fn remove(&self, task: &Arc<Task>) {
        let mut tasks = self.tasks();
        let found = tasks.get(&task.itt);
        if found.is_some_and(|found| Arc::ptr_eq(found, task)) {
            tasks.remove(&task.itt);
        }
    }

    /// Aborts tasks; returns the ends that are still to come.
    pub(crate) fn abort(&self, which: impl Fn(&Task) -> bool) -> Vec<Answer<()>> {
        let aborted: Vec<Arc<Task>> = {
            let mut tasks = self.tasks();
            let hit = tasks.values().filter(|task| which(task));
            let tags: Vec<u32> = hit.map(|task| task.itt).collect();
            tags.iter().filter_map(|itt| tasks.remove(itt)).collect()
        };
        aborted.iter().filter_map(|task| task.abort()).collect()
    }
}
