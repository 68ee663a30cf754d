//! Values, and the objects that the collector owns.

use std::rc::Rc;

use crate::code::Function;
use crate::table::Table;

/// A string: equal ones are the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StringId(pub(crate) u32);

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TableId(pub(crate) u32);

/// A function of the program, with its upvalues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClosureId(pub(crate) u32);

/// A variable that closures share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UpvalueId(pub(crate) u32);

/// A function of this crate with values of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BoundId(pub(crate) u32);

/// A coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    String(StringId),
    Table(TableId),
    Closure(ClosureId),
    /// A function of the libraries, by its number.
    Native(u16),
    /// A function of the host, by its number.
    Host(u16),
    Bound(BoundId),
    Thread(ThreadId),
}

impl Value {
    pub(crate) fn is_true(self) -> bool {
        !matches!(self, Self::Nil | Self::Bool(false))
    }

    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "boolean",
            Self::Int(_) => "number",
            Self::String(_) => "string",
            Self::Table(_) => "table",
            Self::Closure(_) | Self::Native(_) | Self::Host(_) | Self::Bound(_) => "function",
            Self::Thread(_) => "thread",
        }
    }
}

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
