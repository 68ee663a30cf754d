//! What waits to be freed in the background: files without a name, and where in the unlinked set on disk more of them are.

use std::collections::VecDeque;

use runtime::JoinHandle;

/// The queue of the task that frees unlinked files, and whether that task runs.
#[derive(Default)]
pub(crate) struct Reaper {
    queue: VecDeque<u64>,
    task: Option<JoinHandle<()>>,
    running: bool,
    /// The set on disk has more than the queue; where to go on.
    rest: Option<u64>,
}

impl Reaper {
    /// Adds the object of a file without a name.
    pub(crate) fn push(&mut self, object: u64) {
        self.queue.push_back(object);
    }

    /// Takes the next object.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        self.queue.pop_front()
    }

    /// Notes that the set on disk is to be read from this cookie on.
    pub(crate) fn set_rest(&mut self, cookie: u64) {
        self.rest = Some(cookie);
    }

    /// Takes the cookie from which on the set on disk is to be read.
    pub(crate) fn take_rest(&mut self) -> Option<u64> {
        self.rest.take()
    }

    /// Whether the task has been started and has not stopped.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Notes the task just spawned; at most one runs at a time.
    pub(crate) fn start(&mut self, task: JoinHandle<()>) {
        assert!(!self.running, "one task frees unlinked files");
        self.running = true;
        self.task = Some(task);
    }

    /// Notes that the task ends.
    pub(crate) fn stopped(&mut self) {
        assert!(self.running, "a task that runs stops");
        self.running = false;
    }

    /// Takes the task, to wait for it.
    pub(crate) fn take_task(&mut self) -> Option<JoinHandle<()>> {
        self.task.take()
    }
}
