//! The language of channel programs: Lua 5.2 whose numbers are integers of 64 bits, for programs that are not trusted.
//!
//! Guarantees: a run ends after a bounded number of steps, whatever the program does, functions of the libraries included; it takes
//! no more memory than a small multiple of its limit, and no more of the thread's stack than a fixed number of nested calls; the same
//! program with the same answers of the host runs alike each time. There is no way to load code, and none to catch that a limit
//! was reached.
//!
//! It does not know what the functions of the host are about.
//!
//! What differs from OpenZFS's interpreter: metamethods `__gc` are not called; keys of tables come in the order in which they were
//! stored; work within a function of the libraries counts as instructions once it is large; a coroutine cannot catch that memory or
//! instructions are used up.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod call;
mod code;
mod compiler;
mod execute;
mod heap;
mod host;
mod lexer;
mod library;
mod names;
mod number;
mod objects;
mod pattern;
mod program;
mod slab;
mod table;
mod thread;
mod value;
mod vm;

pub use host::{CallError, DEPTH_MAX, Data, Host, Step};
pub use program::{Failure, Program, Returned, run};

#[cfg(test)]
mod tests;
