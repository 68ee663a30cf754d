//! Channel programs (`zfs program`): programs that change the datasets of a pool as one unit.
//!
//! A program runs on a thread of its own, in the interpreter of the crate `lua`; what it asks of its pool crosses to the pool's thread
//! (`engine::ProgramCalls`). All that it changes is on disk with one txg, or nothing of it after a crash. It can be canceled, which keeps
//! what it did until then: that is what OpenZFS does.
//!
//! OpenZFS: module/zfs/zcp.c, zcp_get.c, zcp_iter.c, zcp_set.c, zcp_synctask.c (functions, texts); man page zfs-program(8).

mod arguments;
mod functions;
mod property;
mod value;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{EngineError, PoolHandle, ProgramRun, program_calls};
use lua::{Data, Program, Returned};
use tokio::sync::oneshot;

use functions::{ERRNOS, FUNCTIONS, ProgramHost};
pub use value::{ProgramValue, json, text};

/// Instructions that a program may run unless told otherwise. OpenZFS: include/sys/zcp.h, ZCP_DEFAULT_INSTRLIMIT
pub const INSTRUCTIONS_DEFAULT: u64 = 10_000_000;
/// Instructions that it may be allowed. OpenZFS: include/sys/zcp.h, ZCP_MAX_INSTRLIMIT
pub const INSTRUCTIONS_MAX: u64 = 10 * INSTRUCTIONS_DEFAULT;
/// Bytes of memory that a program may use unless told otherwise. OpenZFS: include/sys/zcp.h, ZCP_DEFAULT_MEMLIMIT
pub const MEMORY_BYTES_DEFAULT: u64 = 10 << 20;
/// Bytes of memory that it may be allowed. OpenZFS: include/sys/zcp.h, ZCP_MAX_MEMLIMIT
pub const MEMORY_BYTES_MAX: u64 = 10 * MEMORY_BYTES_DEFAULT;

/// Bytes that a program may be long: far more than those that people write.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A program and how it is run.
#[derive(Clone, Debug, Default)]
pub struct ChannelProgram {
    /// Its text.
    pub text: Vec<u8>,
    /// What it finds as `argv`.
    pub arguments: Vec<String>,
    /// It may change something.
    pub changes: bool,
    /// Limit on instructions.
    pub instructions_max: u64,
    /// Limit on memory, in bytes.
    pub memory_bytes_max: u64,
    /// File systems that are mounted.
    pub mounted: BTreeSet<String>,
}

/// Why a program ended early.
#[derive(Debug)]
pub enum ProgramFailure {
    /// The pool does not run programs: it is read-only or closed, or the caller is not root.
    Pool(EngineError),
    /// A limit is 0 or too high.
    Limits,
    /// An error: its text, with the calls under way.
    Error(Vec<u8>),
    /// The limit on instructions was reached: a text as of an error, and instructions run.
    TimedOut(Vec<u8>, u64),
    /// The limit on memory was reached.
    Memory,
    /// What it returned is too large; it has run to its end.
    ReturnTooLarge,
}

/// Cancels a program when its caller does not wait any more.
struct CancelWhenDropped(Arc<AtomicBool>);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a program to its end; what it changed is on stable storage when this returns. Returns what it returned; `None` for nothing.
///
/// When the future is dropped, the program ends soon, and what it did until then stays done.
///
/// # Errors
/// See [`ProgramFailure`]. What the program did before stays done.
pub async fn run(
    pool: &PoolHandle,
    program: ChannelProgram,
) -> Result<Option<ProgramValue>, ProgramFailure> {
    // OpenZFS: lib/libzfs_core/libzfs_core.c, lzc_ioctl (the result's memory is allocated before the limits are looked at)
    if i64::try_from(program.memory_bytes_max).is_err() {
        return Err(ProgramFailure::ReturnTooLarge);
    }
    let limits = (1..=INSTRUCTIONS_MAX).contains(&program.instructions_max);
    if !limits || !(1..=MEMORY_BYTES_MAX).contains(&program.memory_bytes_max) {
        return Err(ProgramFailure::Limits);
    }
    let cancel = CancelWhenDropped(Arc::default());
    let (calls, queue) = program_calls();
    let run = ProgramRun {
        changes: program.changes,
        mounted: program.mounted.clone(),
    };
    let (sender, outcome) = oneshot::channel();
    let host = ProgramHost::new(pool.name().to_owned(), program.changes, calls);
    let canceled = cancel.0.clone();
    let thread = std::thread::Builder::new().name("channel program".to_owned());
    let thread = thread.spawn(move || {
        // The outcome of a program that was canceled is not waited for.
        let _ = sender.send(interpret(&program, host, canceled));
    });
    thread.map_err(|error| ProgramFailure::Pool(EngineError::NoThread(error.to_string())))?;
    let (ended, outcome) = tokio::join!(pool.run_program(queue, run), outcome);
    ended.map_err(ProgramFailure::Pool)?;
    outcome.map_err(|_| ProgramFailure::Pool(EngineError::PoolClosed))?
}

/// Runs a program on this thread.
fn interpret(
    program: &ChannelProgram,
    mut host: ProgramHost,
    cancel: Arc<AtomicBool>,
) -> Result<Option<ProgramValue>, ProgramFailure> {
    let functions: Vec<(&str, u16)> = FUNCTIONS.iter().map(|(name, _)| *name).zip(0..).collect();
    let arguments = program.arguments.iter().map(|word| Data::text(word));
    let arguments = (1..).map(Data::Int).zip(arguments).collect();
    // As a text of C, it ends before its first zero byte.
    let text = program
        .text
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    let program = Program {
        text,
        argument: Data::Table(vec![(Data::text("argv"), Data::Table(arguments))]),
        functions: &functions,
        globals: ERRNOS,
        instructions_max: program.instructions_max,
        memory_bytes_max: usize::try_from(program.memory_bytes_max).unwrap_or(usize::MAX),
        cancel,
    };
    match lua::run(&program, &mut host) {
        Ok(Returned::Nothing) => Ok(None),
        Ok(Returned::One(data)) => match ProgramValue::of(&data) {
            Ok(value) => Ok(Some(value)),
            Err(why) => Err(ProgramFailure::Error(why)),
        },
        Ok(Returned::Many) => Err(ProgramFailure::Error(
            b"Multiple return values not supported".to_vec(),
        )),
        Err(
            lua::Failure::Syntax(text) | lua::Failure::Error(text) | lua::Failure::Canceled(text),
        ) => Err(ProgramFailure::Error(text)),
        Err(lua::Failure::TimedOut {
            message,
            instructions,
        }) => Err(ProgramFailure::TimedOut(message, instructions)),
        Err(lua::Failure::Memory) => Err(ProgramFailure::Memory),
        Err(lua::Failure::ReturnTooLarge) => Err(ProgramFailure::ReturnTooLarge),
    }
}
