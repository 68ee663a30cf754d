//! The driver for hosts without io_uring: blocking calls on a pool of threads.
//!
//! Operations given at the same time run in no promised order. A flush covers the writes that completed before it was
//! submitted, as everywhere.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::file::{self, OpenFile};
use super::parker::{Inbox, Parker};
use super::pool::Pool;
use super::{HostConfig, clock};
use crate::disk_types::{DiskError, DiskInfo};
use crate::driver::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Outcome, Sleeper, Token, Unpark, Waited,
};
use crate::time::{Instant, Timestamp};

/// The `pread`/`pwrite` driver.
pub struct Threads {
    files: FileTable,
    inbox: Arc<Inbox<Finished>>,
    pool: Pool,
}

/// What comes back from a pool thread.
pub(crate) enum Finished {
    Op(Completion),
    Opened(Token, Result<OpenFile, DiskError>),
}

/// Open disks by id.
#[derive(Default)]
pub(crate) struct FileTable {
    files: Vec<Option<Arc<OpenFile>>>,
}

impl FileTable {
    pub(crate) fn add(&mut self, file: OpenFile) -> (DiskId, DiskInfo) {
        let info = file.info().clone();
        let index = self
            .files
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.files.push(None);
                self.files.len() - 1
            });
        self.files[index] = Some(Arc::new(file));
        (
            DiskId(u32::try_from(index).expect("fewer disks than that")),
            info,
        )
    }

    pub(crate) fn file(&self, disk: DiskId) -> Arc<OpenFile> {
        self.files[disk.0 as usize]
            .clone()
            .expect("used only while open")
    }

    pub(crate) fn remove(&mut self, disk: DiskId) -> Option<Arc<OpenFile>> {
        self.files[disk.0 as usize].take()
    }
}

impl Threads {
    /// Makes the driver; threads start when they are needed.
    #[must_use]
    pub fn new(config: &HostConfig) -> Self {
        Self {
            files: FileTable::default(),
            inbox: Arc::new(Inbox::new()),
            pool: Pool::new("disk", config.io_threads),
        }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) {
        let files = &mut self.files;
        done.extend(
            self.inbox
                .take()
                .into_iter()
                .map(|finished| completion_of(files, finished)),
        );
    }
}

/// Turns what a pool thread left into a completion, entering new files in the table.
pub(crate) fn completion_of(files: &mut FileTable, finished: Finished) -> Completion {
    match finished {
        Finished::Op(completion) => completion,
        Finished::Opened(token, result) => Completion {
            token,
            outcome: Outcome::Opened(result.map(|file| files.add(file))),
        },
    }
}

/// Gives an operation to a pool; the result goes to the inbox.
pub(crate) fn run_blocking(
    pool: &Pool,
    files: &FileTable,
    inbox: &Arc<Inbox<Finished>>,
    op: DiskOp,
    token: Token,
) {
    let inbox = inbox.clone();
    if let DiskOp::Open { path, mode } = op {
        pool.run(Box::new(move || {
            inbox.push(Finished::Opened(token, OpenFile::open(&path, mode)));
        }));
        return;
    }
    let finish = move |outcome| inbox.push(Finished::Op(Completion { token, outcome }));
    match op {
        DiskOp::Open { .. } => unreachable!("handled above"),
        DiskOp::List { dir } => {
            pool.run(Box::new(move || finish(Outcome::Listed(file::list(&dir)))));
        }
        DiskOp::Read {
            disk,
            offset,
            mut buf,
        } => {
            let file = files.file(disk);
            pool.run(Box::new(move || {
                finish(Outcome::Read(file.read(offset, &mut buf).map(|()| buf)));
            }));
        }
        DiskOp::Write {
            disk,
            offset,
            data,
            through,
        } => {
            let file = files.file(disk);
            pool.run(Box::new(move || {
                let written = file.write(offset, &data);
                finish(if through {
                    Outcome::Through(written.and_then(|()| {
                        let arrived = clock::now();
                        file.flush().map(|()| arrived)
                    }))
                } else {
                    Outcome::Done(written)
                });
            }));
        }
        DiskOp::Flush { disk } => {
            let file = files.file(disk);
            pool.run(Box::new(move || finish(Outcome::Done(file.flush()))));
        }
        DiskOp::Discard { disk, offset, len } => {
            let file = files.file(disk);
            pool.run(Box::new(move || {
                finish(Outcome::Done(file.discard(offset, len)));
            }));
        }
    }
}

/// Gives a job to the compute pool; the completion goes to the inbox.
pub(crate) fn run_compute(inbox: &Arc<Inbox<Finished>>, job: ComputeJob, token: Token) {
    let inbox = inbox.clone();
    Pool::compute().run(Box::new(move || {
        job();
        inbox.push(Finished::Op(Completion {
            token,
            outcome: Outcome::Computed,
        }));
    }));
}

/// Sleeps until a thread of the pool, or another one, has something.
struct ThreadsSleeper {
    parker: Arc<Parker>,
    until: Option<Instant>,
}

impl Sleeper for ThreadsSleeper {
    fn sleep(&mut self) {
        if self.parker.prepare() {
            let limit = self.until.map(|until| until.since(clock::now()));
            self.parker.sleep(limit);
        }
    }
}

impl Driver for Threads {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn wall_clock(&self) -> Timestamp {
        clock::wall_clock()
    }

    fn cpu_clock(&self) -> fn() -> Duration {
        clock::cpu
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        clock::fill_random(bytes);
    }

    fn submit(&mut self, op: DiskOp, token: Token) {
        run_blocking(&self.pool, &self.files, &self.inbox, op, token);
    }

    fn offload(&mut self, job: ComputeJob, token: Token) {
        run_compute(&self.inbox, job, token);
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        if let Some(sleeper) = self.begin_wait(until) {
            sleeper.borrow_mut().sleep();
        }
        self.end_wait(done)
    }

    fn sleeps_apart(&self) -> bool {
        true
    }

    fn begin_wait(&mut self, until: Option<Instant>) -> Option<Rc<RefCell<dyn Sleeper>>> {
        if until.is_some_and(|until| until <= clock::now()) {
            return None;
        }
        Some(Rc::new(RefCell::new(ThreadsSleeper {
            parker: self.inbox.parker.clone(),
            until,
        })))
    }

    fn end_wait(&mut self, done: &mut Vec<Completion>) -> Waited {
        self.inbox.parker.finish();
        self.collect(done);
        Waited::Progress
    }

    fn close(&mut self, disk: DiskId) {
        self.files.remove(disk);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.inbox.parker.clone()
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}
