//! What embeds the language: values that leave it, and functions that programs can call.

/// A value that leaves a program or comes into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing.
    Nil,
    /// A truth value.
    Bool(bool),
    /// A number.
    Int(i64),
    /// Bytes.
    String(Vec<u8>),
    /// Keys and values, in the order in which they were stored.
    Table(Vec<(Self, Self)>),
    /// A table below [`DEPTH_MAX`] others.
    TooDeep,
    /// A value without a form outside of programs: the name of its type.
    Other(&'static str),
    /// An iterator for the `in` of a loop, as the result of a function of the host: its number, and where it begins.
    Iterator(u16, Vec<u8>),
}

/// Tables in tables that [`Data`] can have. OpenZFS: module/zfs/zcp.c, ZCP_NVLIST_MAX_DEPTH
pub const DEPTH_MAX: usize = 20;

impl Data {
    /// Makes a string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }

    /// The name of the value's type, as `type` returns it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "boolean",
            Self::Int(_) => "number",
            Self::String(_) => "string",
            Self::Table(_) | Self::TooDeep => "table",
            Self::Other(name) => name,
            Self::Iterator(..) => "function",
        }
    }
}

/// An error that a function of the host raises in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// A message; the line of the call is put before it.
    Error(String),
    /// An argument, counted from 1, is refused.
    Argument(usize, String),
    /// The program ends at once, and no coroutine catches it.
    Canceled,
}

/// A step of an iterator: where it goes on, and what the loop gets; without values the loop ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Given to [`Host::next`] at the next step.
    pub cursor: Vec<u8>,
    /// The values; none end the loop.
    pub values: Vec<Data>,
}

/// What the embedding program offers.
pub trait Host {
    /// Calls a function by its number.
    ///
    /// # Errors
    /// Those become errors in the program.
    fn call(&mut self, function: u16, arguments: Vec<Data>) -> Result<Vec<Data>, CallError>;

    /// Makes a step of an iterator.
    ///
    /// # Errors
    /// As [`Host::call`].
    fn next(&mut self, iterator: u16, cursor: &[u8]) -> Result<Step, CallError>;
}
