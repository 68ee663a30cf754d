//! Objects that the collector owns.

use std::rc::Rc;

use crate::code::Function;
use crate::table::Table;
use crate::value::{StringId, TableId, ThreadId, UpvalueId, Value};

/// A closure.
#[derive(Debug)]
pub(crate) struct Closure {
    pub(crate) function: Rc<Function>,
    pub(crate) upvalues: Vec<UpvalueId>,
}

/// Where a shared variable is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upvalue {
    /// In a stack whose function still runs.
    Open {
        thread: ThreadId,
        index: usize,
    },
    Closed(Value),
}

/// A function with values of its own.
#[derive(Debug)]
pub(crate) enum Bound {
    /// The iterator of `string.gmatch`.
    Matches {
        text: StringId,
        pattern: StringId,
        at: usize,
    },
    /// What `coroutine.wrap` returns.
    Wrapped(ThreadId),
    /// An iterator of the host.
    Iterator { iterator: u16, cursor: StringId },
}

/// A string and its bookkeeping.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) bytes: Rc<[u8]>,
}

/// A table and its metatable.
#[derive(Debug, Default)]
pub(crate) struct TableObject {
    pub(crate) table: Table,
    pub(crate) metatable: Option<TableId>,
}
