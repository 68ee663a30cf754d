//! The machine: its state, memory, errors and limits.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::{Constant, Function, Operand};
use crate::heap::{Heap, OutOfMemory, VALUE_BYTES};
use crate::host::Host;
use crate::objects::Bound;
use crate::thread::{Frame, Status, Thread};
use crate::value::{BoundId, StringId, TableId, ThreadId, Value};

/// Why a program does not go on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// An error of the program; coroutines catch it.
    Error(Value),
    Memory,
    TimedOut,
    Canceled,
}

impl From<OutOfMemory> for Fault {
    fn from(_: OutOfMemory) -> Self {
        Self::Memory
    }
}

pub(crate) type Run<T> = Result<T, Fault>;

/// Where the arguments of a function are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// A function of the libraries: it pushes its results and returns their number. What it still needs when it makes an object must lie on
/// the stack.
pub(crate) type Native = fn(&mut Vm<'_>, Args) -> Run<usize>;

/// The number of the function that yields; calls treat it in a way of its own.
pub(crate) const YIELD: u16 = 0;

/// The name of the text in messages. OpenZFS: module/zfs/zcp.c, zcp_eval
pub(crate) const CHUNK: &str = "[string \"channel program\"]";

/// Nested calls of functions that are not part of the program, and of blocks in its text. OpenZFS: module/lua/llimits.h, LUAI_MAXCCALLS
pub(crate) const NATIVE_CALLS_MAX: u32 = 20;

/// After so many instructions the limit is looked at. OpenZFS: module/zfs/zcp.c, zfs_lua_check_instrlimit_interval
pub(crate) const CHECK_INTERVAL: u32 = 100;

/// Bytes of a frame and its share of the list of frames.
const FRAME_BYTES: usize = 96;
/// Frames are charged for in groups.
const FRAME_GROUP: usize = 16;
/// A collection that gives back less than this part of the memory counts as work.
const COLLECTED_PART: usize = 16;
/// Bytes that are looked at in the time of a step of work.
const COLLECTED_BYTES_PER_STEP: usize = 64;
/// Values on a stack. Memory ends earlier with the limits that commands allow.
const STACK_MAX: usize = 16 << 20;

macro_rules! events {
    ($($name:ident $text:literal),* $(,)?) => {
        /// An operation that a metatable can define.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event { $($name),* }

        const EVENTS: &[&str] = &[$($text),*];
    };
}

events!(
    Index "__index", NewIndex "__newindex", Call "__call", Add "__add", Sub "__sub", Mul "__mul", Div "__div", Mod "__mod",
    Pow "__pow", Negate "__unm", Length "__len", Equal "__eq", Less "__lt", LessEqual "__le", Concat "__concat",
    ToString "__tostring", Metatable "__metatable", Mode "__mode", Pairs "__pairs", Ipairs "__ipairs",
);

pub(crate) struct Vm<'h> {
    pub(crate) heap: Heap,
    /// The stack that runs; its place in the heap is empty meanwhile.
    pub(crate) thread: Thread,
    pub(crate) current: ThreadId,
    pub(crate) main: ThreadId,
    /// The threads that wait for the current one to yield or to end.
    pub(crate) resumers: Vec<ThreadId>,
    pub(crate) host: &'h mut dyn Host,
    /// The functions of the libraries, with their names.
    pub(crate) natives: &'static [(&'static str, Native)],
    pub(crate) globals: TableId,
    pub(crate) string_metatable: Option<TableId>,
    events: Vec<StringId>,
    pub(crate) native_calls: u32,
    /// Values that only a function of this crate holds.
    pub(crate) kept: Vec<Value>,
    program: Rc<Function>,
    pub(crate) instructions: u64,
    pub(crate) instructions_max: u64,
    pub(crate) until_check: u32,
    /// Work of functions that is not counted as instructions yet, in sixteenths of one.
    work: u64,
    cancel: Arc<AtomicBool>,
    /// For tests: collects at each allocation.
    pub(crate) collect_always: bool,
}

impl<'h> Vm<'h> {
    pub(crate) fn new(host: &'h mut dyn Host, cancel: Arc<AtomicBool>) -> Self {
        let mut heap = Heap::default();
        heap.set_limit(usize::MAX);
        let globals = heap.new_table();
        let main = heap.new_thread(Thread {
            status: Status::Running,
            ..Thread::default()
        });
        let events = EVENTS
            .iter()
            .map(|name| heap.intern(name.as_bytes()))
            .collect();
        Self {
            heap,
            thread: Thread {
                status: Status::Running,
                ..Thread::default()
            },
            current: main,
            main,
            resumers: Vec::new(),
            host,
            natives: &[],
            globals,
            string_metatable: None,
            events,
            native_calls: 0,
            kept: Vec::new(),
            program: Rc::default(),
            instructions: 0,
            instructions_max: u64::MAX,
            until_check: CHECK_INTERVAL,
            work: 0,
            cancel,
            collect_always: false,
        }
    }

    pub(crate) fn set_program(&mut self, program: Rc<Function>) {
        self.program = program;
    }

    pub(crate) fn event_name(&self, event: Event) -> StringId {
        self.events[event as usize]
    }

    // Memory.

    /// Makes sure of memory; everything that is not reachable may be gone when this returns.
    pub(crate) fn room(&mut self, bytes: usize) -> Run<()> {
        if self.collect_always {
            self.collect();
        } else if self.heap.wants_collection(bytes) {
            let before = self.heap.used();
            self.collect();
            // Near the limit, each allocation may collect: that is work, and counts.
            if (before - self.heap.used()) * COLLECTED_PART < before {
                self.work(self.heap.used() / COLLECTED_BYTES_PER_STEP)?;
            }
        }
        Ok(self.heap.check(bytes)?)
    }

    pub(crate) fn collect(&mut self) {
        let (values, upvalues) = self.thread.reachable();
        for value in values.into_iter().chain(self.kept.clone()) {
            self.heap.mark(value);
        }
        for upvalue in upvalues {
            self.heap.mark_upvalue(upvalue);
        }
        for thread in self.resumers.iter().chain([&self.current, &self.main]) {
            self.heap.mark(Value::Thread(*thread));
        }
        self.heap.mark(Value::Table(self.globals));
        if let Some(metatable) = self.string_metatable {
            self.heap.mark(Value::Table(metatable));
        }
        for name in &self.events {
            self.heap.mark(Value::String(*name));
        }
        self.heap.mark_constants(&self.program);
        self.heap.mark_reachable(self.event_name(Event::Mode));
        self.heap.sweep();
    }

    pub(crate) fn string(&mut self, bytes: &[u8]) -> Run<StringId> {
        if let Some(found) = self.heap.find_string(bytes) {
            return Ok(found);
        }
        self.room(Heap::string_bytes(bytes.len()))?;
        Ok(self.heap.intern(bytes))
    }

    pub(crate) fn new_table(&mut self) -> Run<TableId> {
        self.room(Heap::NEW_TABLE_BYTES)?;
        Ok(self.heap.new_table())
    }

    pub(crate) fn new_bound(&mut self, bound: Bound) -> Run<BoundId> {
        self.room(Heap::NEW_BOUND_BYTES)?;
        Ok(self.heap.new_bound(bound))
    }

    /// Stores in a table without metamethods. Everything is reachable otherwise.
    pub(crate) fn raw_set(&mut self, table: TableId, key: Value, value: Value) -> Run<()> {
        match self.heap.table(table).table.growth(key) {
            0 => {}
            growth => self.room(growth)?,
        }
        self.heap.table_set(table, key, value);
        Ok(())
    }

    pub(crate) fn raw_get(&self, table: TableId, key: Value) -> Value {
        self.heap.table(table).table.get(key)
    }

    pub(crate) fn bytes(&self, id: StringId) -> Rc<[u8]> {
        self.heap.string(id).clone()
    }

    // The stack.

    /// Makes sure that the stack reaches to `end`.
    pub(crate) fn reserve(&mut self, end: usize) -> Run<()> {
        let length = self.thread.stack.len();
        if end <= length {
            return Ok(());
        }
        if end > STACK_MAX {
            return Err(self.error("stack overflow"));
        }
        let new = end.max(length + length / 2).max(32);
        let bytes = (new - length) * VALUE_BYTES;
        self.room(bytes)?;
        self.heap.charge(bytes);
        self.thread.charged += bytes;
        self.thread.stack.resize(new, Value::Nil);
        Ok(())
    }

    pub(crate) fn push(&mut self, value: Value) -> Run<()> {
        if self.thread.top == self.thread.stack.len() {
            self.kept.push(value);
            let reserved = self.reserve(self.thread.top + 1);
            self.kept.pop();
            reserved?;
        }
        self.thread.stack[self.thread.top] = value;
        self.thread.top += 1;
        Ok(())
    }

    pub(crate) fn push_string(&mut self, bytes: &[u8]) -> Run<()> {
        let string = self.string(bytes)?;
        self.push(Value::String(string))
    }

    pub(crate) fn push_frame(&mut self, frame: Frame) -> Run<()> {
        if self.thread.frames.len() == self.thread.frames_charged {
            let bytes = FRAME_GROUP * FRAME_BYTES;
            self.room(bytes)?;
            self.heap.charge(bytes);
            self.thread.charged += bytes;
            self.thread.frames_charged += FRAME_GROUP;
        }
        self.thread.frames.push(frame);
        Ok(())
    }

    pub(crate) fn frame(&self) -> &Frame {
        self.thread.frames.last().expect("something runs")
    }

    pub(crate) fn frame_mut(&mut self) -> &mut Frame {
        self.thread.frames.last_mut().expect("something runs")
    }

    pub(crate) fn register(&self, register: u8) -> Value {
        self.thread.stack[self.frame().base + usize::from(register)]
    }

    pub(crate) fn set_register(&mut self, register: u8, value: Value) {
        let place = self.frame().base + usize::from(register);
        self.thread.stack[place] = value;
    }

    pub(crate) fn operand(&self, operand: Operand) -> Value {
        match u8::try_from(operand) {
            Ok(register) => self.register(register),
            Err(_) => self.constant(usize::from(operand - crate::code::CONSTANT)),
        }
    }

    pub(crate) fn constant(&self, number: usize) -> Value {
        let code = self
            .frame()
            .code
            .as_ref()
            .expect("instructions are of the program");
        match code.constants[number] {
            Constant::Nil => Value::Nil,
            Constant::Bool(value) => Value::Bool(value),
            Constant::Int(value) => Value::Int(value),
            Constant::String(id) => Value::String(id),
        }
    }

    // Limits.

    /// Counts a group of instructions.
    pub(crate) fn check_limits(&mut self) -> Run<()> {
        self.until_check = CHECK_INTERVAL;
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Fault::Canceled);
        }
        self.instructions += u64::from(CHECK_INTERVAL);
        if self.instructions > self.instructions_max {
            return Err(Fault::TimedOut);
        }
        Ok(())
    }

    /// Counts work of a function that the program does not see: sixteen steps are an instruction. Without this, one call could take
    /// for ever.
    pub(crate) fn work(&mut self, steps: usize) -> Run<()> {
        self.work += steps as u64;
        while self.work >= 16 * u64::from(CHECK_INTERVAL) {
            self.work -= 16 * u64::from(CHECK_INTERVAL);
            let left = self.until_check;
            self.check_limits()?;
            self.until_check = left;
        }
        Ok(())
    }

    // Errors.

    /// An error at the instruction that runs, or at that which called the function that runs.
    pub(crate) fn error(&mut self, message: &str) -> Fault {
        let frames = &self.thread.frames;
        let running = frames.last().filter(|frame| frame.code.is_some());
        let caller = frames.len().checked_sub(2).map(|index| &frames[index]);
        let mut text = running.or(caller).map(line_prefix).unwrap_or_default();
        text.push_str(message);
        self.plain_error(text.as_bytes())
    }

    /// An error with exactly this text.
    pub(crate) fn plain_error(&mut self, message: &[u8]) -> Fault {
        match self.string(message) {
            Ok(text) => Fault::Error(Value::String(text)),
            Err(fault) => fault,
        }
    }

    pub(crate) fn metatable(&self, value: Value) -> Option<TableId> {
        match value {
            Value::Table(id) => self.heap.table(id).metatable,
            Value::String(_) => self.string_metatable,
            _ => None,
        }
    }

    /// What a value's metatable has for an event; nil for nothing.
    pub(crate) fn metamethod(&self, value: Value, event: Event) -> Value {
        self.metatable(value).map_or(Value::Nil, |table| {
            self.raw_get(table, Value::String(self.event_name(event)))
        })
    }
}

/// The line that a frame is at; `None` for functions that are not part of the program.
pub(crate) fn line_of(frame: &Frame) -> Option<u32> {
    let code = frame.code.as_ref()?;
    code.lines.get(frame.at.saturating_sub(1)).copied()
}

/// What messages of a frame begin with.
pub(crate) fn line_prefix(frame: &Frame) -> String {
    line_of(frame).map_or_else(String::new, |line| format!("{CHUNK}:{line}: "))
}
