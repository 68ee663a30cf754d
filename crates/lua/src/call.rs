//! Calls, returns and coroutines.

use std::rc::Rc;

use crate::code::Function;
use crate::heap::{Heap, THREAD_BYTES};
use crate::host::{CallError, Data};
use crate::objects::{Bound, Upvalue};
use crate::thread::{After, Frame, Status, Thread};
use crate::value::{BoundId, ClosureId, ThreadId, UpvalueId, Value};
use crate::vm::{Args, Event, Fault, NATIVE_CALLS_MAX, Run, Vm, YIELD};

/// How to go on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// With the frame that is the last now.
    Next,
    /// The function that the loop runs has ended.
    Left,
    /// The coroutine yields.
    Yielded,
}

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) function: usize,
    pub(crate) arguments: usize,
    /// Negative for all.
    pub(crate) results: i32,
    pub(crate) after: After,
    pub(crate) is_tail_call: bool,
    /// Its end is the end of the loop that runs the caller.
    pub(crate) is_entry: bool,
}

impl Call {
    /// An ordinary call.
    pub(crate) fn new(function: usize, arguments: usize, results: i32) -> Self {
        Self {
            function,
            arguments,
            results,
            after: After::Nothing,
            is_tail_call: false,
            is_entry: false,
        }
    }
}

impl Vm<'_> {
    /// Begins a call; functions that are not part of the program have run when this returns.
    pub(crate) fn begin_call(&mut self, call: Call) -> Run<Flow> {
        let mut call = call;
        let value = self.thread.stack[call.function];
        match value {
            Value::Closure(id) => self.enter(id, call),
            Value::Native(number) if number == YIELD => self.begin_yield(call),
            Value::Native(_) | Value::Host(_) | Value::Bound(_) => self.run_native(value, call),
            other => {
                let method = self.metamethod(other, Event::Call);
                if !matches!(
                    method,
                    Value::Closure(_) | Value::Native(_) | Value::Host(_) | Value::Bound(_)
                ) {
                    return Err(self.type_error(call.function, other, "call"));
                }
                // The object becomes the first argument.
                let end = call.function + 1 + call.arguments;
                self.thread.top = end;
                self.reserve(end + 1)?;
                self.thread
                    .stack
                    .copy_within(call.function..end, call.function + 1);
                self.thread.stack[call.function] = method;
                self.thread.top = end + 1;
                call.arguments += 1;
                self.begin_call(call)
            }
        }
    }

    /// Enters a function of the program.
    fn enter(&mut self, closure: ClosureId, call: Call) -> Run<Flow> {
        let code: Rc<Function> = self.heap.closure(closure).function.clone();
        let parameters = usize::from(code.parameters);
        let first = call.function + 1;
        let base = if code.is_vararg {
            first + call.arguments
        } else {
            first
        };
        self.thread.top = first + call.arguments;
        self.reserve(base + code.registers + 1)?;
        let stack = &mut self.thread.stack;
        let given = call.arguments.min(parameters);
        if code.is_vararg {
            stack.copy_within(first..first + given, base);
        }
        stack[base + given..base + code.registers].fill(Value::Nil);
        self.push_frame(Frame {
            function: call.function,
            base,
            code: Some(code),
            at: 0,
            results: call.results,
            after: call.after,
            is_tail_call: call.is_tail_call,
            is_entry: call.is_entry,
        })?;
        self.thread.top = self.frame().end().expect("it is of the program");
        Ok(Flow::Next)
    }

    fn push_native_frame(&mut self, call: Call) -> Run<Args> {
        let first = call.function + 1;
        self.thread.top = first + call.arguments;
        self.push_frame(Frame {
            function: call.function,
            base: first,
            code: None,
            at: 0,
            results: call.results,
            after: call.after,
            is_tail_call: call.is_tail_call,
            is_entry: call.is_entry,
        })?;
        Ok(Args {
            first,
            count: call.arguments,
        })
    }

    fn run_native(&mut self, function: Value, call: Call) -> Run<Flow> {
        let arguments = self.push_native_frame(call)?;
        let count = match function {
            Value::Native(number) => (self.natives[usize::from(number)].1)(self, arguments)?,
            Value::Host(number) => self.call_host(number, arguments)?,
            Value::Bound(id) => self.call_bound(id, arguments)?,
            _ => unreachable!("only functions are run"),
        };
        self.finish(self.thread.top - count, count)
    }

    /// Ends the last frame with results that lie from `first` on.
    pub(crate) fn finish(&mut self, first: usize, count: usize) -> Run<Flow> {
        let frame = self.thread.frames.pop().expect("something runs");
        let target = frame.function;
        let wanted = usize::try_from(frame.results).unwrap_or(count);
        self.reserve_after(&frame, target + wanted.max(count))?;
        let stack = &mut self.thread.stack;
        stack.copy_within(first..first + count.min(wanted), target);
        if count < wanted {
            stack[target + count..target + wanted].fill(Value::Nil);
        }
        let caller_end = self.thread.frames.last().and_then(Frame::end);
        self.thread.top = match caller_end {
            Some(end) if frame.results >= 0 => end,
            _ => target + wanted,
        };
        let flow = self.after(frame.after, target)?;
        Ok(if frame.is_entry { Flow::Left } else { flow })
    }

    /// Makes room for results while nothing else holds them.
    fn reserve_after(&mut self, frame: &Frame, end: usize) -> Run<()> {
        if end <= self.thread.stack.len() {
            return Ok(());
        }
        assert!(frame.function < end, "results begin where the function was");
        self.reserve(end)
    }

    fn after(&mut self, after: After, place: usize) -> Run<Flow> {
        match after {
            After::Nothing => {}
            After::Store(register) => {
                let value = self.thread.stack[place];
                self.set_register(register, value);
            }
            After::Test { expect } => {
                let value = self.thread.stack[place];
                if value.is_true() != expect {
                    self.frame_mut().at += 1;
                }
            }
            After::Concat { to, first, last } => {
                let value = self.thread.stack[place];
                self.set_register(last - 1, value);
                return self.concat(to, first, last - 1);
            }
        }
        Ok(Flow::Next)
    }

    /// Calls a function, which lies below its arguments at the top of the stack, and leaves its results there. For functions of
    /// this crate.
    pub(crate) fn call(&mut self, function: usize, results: i32) -> Run<()> {
        self.count_native_call()?;
        self.thread.unyieldable += 1;
        let before = self.thread.frames.len();
        let arguments = self.thread.top - function - 1;
        self.begin_call(Call::new(function, arguments, results))?;
        if self.thread.frames.len() > before {
            self.frame_mut().is_entry = true;
            let flow = self.execute()?;
            assert_eq!(flow, Flow::Left, "a yield does not cross this");
        }
        self.thread.unyieldable -= 1;
        self.native_calls -= 1;
        Ok(())
    }

    fn count_native_call(&mut self) -> Run<()> {
        if self.native_calls + 1 >= NATIVE_CALLS_MAX {
            return Err(self.error("C stack overflow"));
        }
        self.native_calls += 1;
        Ok(())
    }

    // The host.

    fn call_host(&mut self, number: u16, arguments: Args) -> Run<usize> {
        let mut budget = self.heap.used();
        let mut given = Vec::with_capacity(arguments.count);
        for index in 0..arguments.count {
            let value = self.thread.stack[arguments.first + index];
            given.push(self.export(value, 0, &mut budget)?);
        }
        match self.host.call(number, given) {
            Ok(results) => {
                let count = results.len();
                for result in results {
                    self.import(&result)?;
                }
                Ok(count)
            }
            Err(error) => Err(self.host_error(error)),
        }
    }

    fn host_error(&mut self, error: CallError) -> Fault {
        match error {
            CallError::Error(message) => self.error(&message),
            CallError::Argument(number, message) => self.argument_error(number, &message),
            CallError::Canceled => Fault::Canceled,
        }
    }

    /// Pushes a value of the host.
    pub(crate) fn import(&mut self, data: &Data) -> Run<()> {
        match data {
            Data::Nil | Data::TooDeep | Data::Other(_) => self.push(Value::Nil),
            Data::Bool(value) => self.push(Value::Bool(*value)),
            Data::Int(value) => self.push(Value::Int(*value)),
            Data::String(bytes) => self.push_string(bytes),
            Data::Iterator(iterator, cursor) => {
                let cursor = self.string(cursor)?;
                self.push(Value::String(cursor))?;
                let bound = self.new_bound(Bound::Iterator {
                    iterator: *iterator,
                    cursor,
                })?;
                self.thread.top -= 1;
                self.push(Value::Bound(bound))
            }
            Data::Table(pairs) => {
                let table = self.new_table()?;
                self.push(Value::Table(table))?;
                for (key, value) in pairs {
                    self.import(key)?;
                    self.import(value)?;
                    let top = self.thread.top;
                    let (key, value) = (self.thread.stack[top - 2], self.thread.stack[top - 1]);
                    if key != Value::Nil {
                        self.raw_set(table, key, value)?;
                    }
                    self.thread.top -= 2;
                }
                Ok(())
            }
        }
    }

    /// Copies a value for the host. `budget` is lowered by what the copy takes: a table that holds others many times over could grow
    /// beyond all bounds.
    pub(crate) fn export(&self, value: Value, depth: usize, budget: &mut usize) -> Run<Data> {
        /// Bytes of a copied value beside what it holds.
        const COPY_BYTES: usize = 32;
        let bytes = COPY_BYTES
            + match value {
                Value::String(id) => self.heap.string(id).len(),
                _ => 0,
            };
        *budget = budget.checked_sub(bytes).ok_or(Fault::Memory)?;
        Ok(match value {
            Value::Nil => Data::Nil,
            Value::Bool(value) => Data::Bool(value),
            Value::Int(value) => Data::Int(value),
            Value::String(id) => Data::String(self.heap.string(id).to_vec()),
            Value::Table(_) if depth > crate::host::DEPTH_MAX => Data::TooDeep,
            Value::Table(id) => {
                let mut pairs = Vec::new();
                for (key, value) in self.heap.table(id).table.pairs() {
                    if value != Value::Nil {
                        let key = match key {
                            Value::Table(_) => Data::Other("table"),
                            key => self.export(key, depth, budget)?,
                        };
                        pairs.push((key, self.export(value, depth + 1, budget)?));
                    }
                }
                Data::Table(pairs)
            }
            other => Data::Other(other.type_name()),
        })
    }

    fn call_bound(&mut self, id: BoundId, arguments: Args) -> Run<usize> {
        match *self.heap.bound(id) {
            Bound::Matches { .. } => self.next_match(id),
            Bound::Wrapped(thread) => self.resume_wrapped(thread, arguments),
            Bound::Iterator { iterator, cursor } => {
                let cursor = self.bytes(cursor);
                let step = match self.host.next(iterator, &cursor) {
                    Ok(step) => step,
                    Err(error) => return Err(self.host_error(error)),
                };
                let cursor = self.string(&step.cursor)?;
                self.heap
                    .set_bound(id, Bound::Iterator { iterator, cursor });
                for value in &step.values {
                    self.import(value)?;
                }
                Ok(step.values.len())
            }
        }
    }

    // Shared variables.

    pub(crate) fn upvalue(&self, id: UpvalueId) -> Value {
        match self.heap.upvalue(id) {
            Upvalue::Closed(value) => value,
            Upvalue::Open { thread, index } if thread == self.current => self.thread.stack[index],
            Upvalue::Open { thread, index } => self.heap.threads.get(thread.0).stack[index],
        }
    }

    pub(crate) fn set_upvalue(&mut self, id: UpvalueId, value: Value) {
        match self.heap.upvalue(id) {
            Upvalue::Closed(_) => self.heap.set_upvalue(id, Upvalue::Closed(value)),
            Upvalue::Open { thread, index } if thread == self.current => {
                self.thread.stack[index] = value;
            }
            Upvalue::Open { thread, index } => {
                self.heap.threads.get_mut(thread.0).stack[index] = value;
            }
        }
    }

    /// The shared variable at a place of the stack. The caller saw that there is room.
    pub(crate) fn share(&mut self, index: usize) -> UpvalueId {
        match self
            .thread
            .open
            .binary_search_by_key(&index, |(place, _)| *place)
        {
            Ok(found) => self.thread.open[found].1,
            Err(position) => {
                let id = self.heap.new_upvalue(Upvalue::Open {
                    thread: self.current,
                    index,
                });
                self.thread.open.insert(position, (index, id));
                id
            }
        }
    }

    /// Gives the shared variables from a place of the stack on their own places.
    pub(crate) fn close_upvalues(&mut self, from: usize) {
        while let Some((index, id)) = self.thread.open.pop_if(|(index, _)| *index >= from) {
            let value = self.thread.stack[index];
            self.heap.set_upvalue(id, Upvalue::Closed(value));
        }
    }

    // Coroutines.

    pub(crate) fn new_thread(&mut self, function: Value) -> Run<ThreadId> {
        let bytes = THREAD_BYTES + crate::heap::VALUE_BYTES;
        self.room(bytes)?;
        Ok(self.heap.new_thread(Thread {
            stack: vec![function],
            top: 1,
            charged: crate::heap::VALUE_BYTES,
            ..Thread::default()
        }))
    }

    pub(crate) fn thread_status(&self, id: ThreadId) -> Status {
        if id == self.current {
            return self.thread.status;
        }
        self.heap.threads.get(id.0).status
    }

    fn begin_yield(&mut self, call: Call) -> Run<Flow> {
        let arguments = self.push_native_frame(call)?;
        if self.current == self.main {
            return Err(self.error("attempt to yield from outside a coroutine"));
        }
        if self.thread.unyieldable > 0 {
            return Err(self.error("attempt to yield across a C-call boundary"));
        }
        self.thread.handed = (arguments.first, arguments.count);
        Ok(Flow::Yielded)
    }

    /// Resumes a coroutine with arguments that lie on the stack, and pushes what it yields or returns. The error is that of the
    /// coroutine.
    pub(crate) fn resume(&mut self, id: ThreadId, arguments: Args) -> Run<Result<usize, Value>> {
        let status = self.thread_status(id);
        if status != Status::Suspended {
            let what = if status == Status::Dead {
                "dead"
            } else {
                "non-suspended"
            };
            let message = self.string(format!("cannot resume {what} coroutine").as_bytes())?;
            return Ok(Err(Value::String(message)));
        }
        if self.native_calls + 1 >= NATIVE_CALLS_MAX {
            let message = self.string(b"C stack overflow")?;
            return Ok(Err(Value::String(message)));
        }
        let native_calls = self.native_calls;
        self.native_calls += 1;
        let given: Vec<Value> =
            self.thread.stack[arguments.first..arguments.first + arguments.count].to_vec();
        self.thread.status = Status::Normal;
        let parent = self.current;
        self.switch_to(id);
        self.resumers.push(parent);
        self.thread.status = Status::Running;
        let result = self.run_resumed(&given);
        self.native_calls = native_calls;
        let error = match result {
            Ok(Flow::Yielded) => {
                self.thread.status = Status::Suspended;
                None
            }
            Ok(_) => {
                self.end_thread();
                None
            }
            Err(Fault::Error(value)) => {
                self.close_upvalues(0);
                self.end_thread();
                self.thread.handed = (0, 0);
                Some(value)
            }
            Err(fault) => return Err(fault),
        };
        self.resumers.pop();
        self.switch_to(parent);
        self.thread.status = Status::Running;
        if let Some(value) = error {
            return Ok(Err(value));
        }
        self.take_handed(id).map(Ok)
    }

    /// Pushes what a coroutine handed over.
    fn take_handed(&mut self, id: ThreadId) -> Run<usize> {
        let (first, count) = self.heap.threads.get(id.0).handed;
        self.reserve(self.thread.top + count)?;
        for index in first..first + count {
            let value = self.heap.threads.get(id.0).stack[index];
            self.push(value)?;
        }
        let thread = self.heap.threads.get_mut(id.0);
        if thread.status == Status::Dead {
            thread.stack = Vec::new();
            thread.top = 0;
            let charged = std::mem::take(&mut thread.charged);
            self.heap.release(charged);
        }
        Ok(count)
    }

    fn end_thread(&mut self) {
        self.thread.status = Status::Dead;
        self.thread.frames = Vec::new();
    }

    fn switch_to(&mut self, id: ThreadId) {
        let next = std::mem::take(self.heap.threads.get_mut(id.0));
        let last = std::mem::replace(&mut self.thread, next);
        *self.heap.threads.get_mut(self.current.0) = last;
        self.current = id;
    }

    /// Runs the current thread, which was resumed with these values, to its next yield or its end.
    fn run_resumed(&mut self, given: &[Value]) -> Run<Flow> {
        let first = self.thread.top;
        // They are kept by the stack that they were copied from.
        self.reserve(first + given.len())?;
        self.thread.stack[first..first + given.len()].copy_from_slice(given);
        self.thread.top = first + given.len();
        let flow = if self.thread.frames.is_empty() {
            self.begin_call(Call::new(0, given.len(), crate::code::ALL))?
        } else {
            self.finish(first, given.len())?
        };
        let flow = match flow {
            Flow::Next if !self.thread.frames.is_empty() => {
                self.thread.frames[0].is_entry = true;
                self.execute()?
            }
            flow => flow,
        };
        if flow != Flow::Yielded {
            self.thread.handed = (0, self.thread.top);
        }
        Ok(flow)
    }

    fn resume_wrapped(&mut self, id: ThreadId, arguments: Args) -> Run<usize> {
        match self.resume(id, arguments)? {
            Ok(count) => Ok(count),
            Err(Value::String(text)) => {
                self.kept.push(Value::String(text));
                let bytes = self.bytes(text);
                let frames = &self.thread.frames;
                let caller = frames.len().checked_sub(2).map(|index| &frames[index]);
                let prefix = caller.map(crate::vm::line_prefix).unwrap_or_default();
                let text = [prefix.as_bytes(), &bytes].concat();
                self.kept.pop();
                Err(self.plain_error(&text))
            }
            Err(value) => Err(Fault::Error(value)),
        }
    }

    /// The bytes that a closure of some upvalues takes, those that are new included.
    pub(crate) fn room_for_closure(&mut self, upvalues: usize) -> Run<()> {
        self.room(Heap::closure_bytes(upvalues))
    }
}
