//! Values.

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
