//! The stack of a coroutine, or of the program itself.

use std::rc::Rc;

use crate::code::Function;
use crate::value::{UpvalueId, Value};

/// What to do with the results of a call besides putting them where the function was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// The first goes to a register of the caller.
    Store(u8),
    /// The caller's next instruction is left out unless the first is as expected.
    Test {
        expect: bool,
    },
    /// The first takes the place of the last two values to join; the joining goes on.
    Concat {
        to: u8,
        first: u8,
        last: u8,
    },
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Where the function is on the stack; the results go there.
    pub(crate) function: usize,
    /// Where its registers begin.
    pub(crate) base: usize,
    /// `None` for functions that are not part of the program.
    pub(crate) code: Option<Rc<Function>>,
    /// The next instruction.
    pub(crate) at: usize,
    /// How many results the caller wants; negative for all.
    pub(crate) results: i32,
    pub(crate) after: After,
    pub(crate) is_tail_call: bool,
    /// Its end is the end of the loop that runs it.
    pub(crate) is_entry: bool,
}

impl Frame {
    /// The end of its registers.
    pub(crate) fn end(&self) -> Option<usize> {
        self.code.as_ref().map(|code| self.base + code.registers)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Status {
    #[default]
    Suspended,
    Running,
    /// It has resumed another, which runs.
    Normal,
    Dead,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Suspended => "suspended",
            Self::Running => "running",
            Self::Normal => "normal",
            Self::Dead => "dead",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) stack: Vec<Value>,
    /// The end of what is in use, where it is not the end of a frame's registers.
    pub(crate) top: usize,
    pub(crate) frames: Vec<Frame>,
    /// Variables on the stack that closures share, by place.
    pub(crate) open: Vec<(usize, UpvalueId)>,
    pub(crate) status: Status,
    /// Calls under way that cannot be left by a yield.
    pub(crate) unyieldable: u32,
    /// What the last yield handed over: the first value and their number.
    pub(crate) handed: (usize, usize),
    /// Bytes charged for the stack and the frames.
    pub(crate) charged: usize,
    /// Frames that were charged for.
    pub(crate) frames_charged: usize,
}

impl Thread {
    pub(crate) fn bytes(&self) -> usize {
        self.charged
    }

    /// The end of what is in use.
    pub(crate) fn live_end(&self) -> usize {
        let frame = self.frames.last().and_then(Frame::end).unwrap_or(0);
        self.top.max(frame).min(self.stack.len())
    }

    /// What the stack keeps. What lies beyond it is emptied, as its objects may be gone afterwards.
    pub(crate) fn reachable(&mut self) -> (Vec<Value>, Vec<UpvalueId>) {
        let end = self.live_end();
        self.stack[end..].fill(Value::Nil);
        let open = self.open.iter().map(|(_, upvalue)| *upvalue).collect();
        (self.stack[..end].to_vec(), open)
    }
}
