//! What a program is compiled to: functions of instructions for a machine with registers.
//!
//! The instructions count as those of Lua 5.2 do, so that limits on their number mean what they mean there.

use std::rc::Rc;

use crate::number::Arith;
use crate::value::StringId;

/// A register or, from [`CONSTANT`] on, a constant.
pub(crate) type Operand = u16;

/// The operand of the first constant.
pub(crate) const CONSTANT: Operand = 256;

/// Registers of a function.
pub(crate) const REGISTERS_MAX: usize = 250;

/// As many as there are.
pub(crate) const ALL: i32 = -1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessEqual,
}

/// An instruction. `to` is the register of the result; jumps name the instruction to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Move {
        to: u8,
        from: u8,
    },
    Constant {
        to: u8,
        constant: u32,
    },
    /// With `skip`, the next instruction is left out.
    Bool {
        to: u8,
        value: bool,
        skip: bool,
    },
    Nil {
        to: u8,
        count: u8,
    },
    GetUpvalue {
        to: u8,
        upvalue: u8,
    },
    SetUpvalue {
        from: u8,
        upvalue: u8,
    },
    GetUpvalueField {
        to: u8,
        upvalue: u8,
        key: Operand,
    },
    SetUpvalueField {
        upvalue: u8,
        key: Operand,
        value: Operand,
    },
    Get {
        to: u8,
        table: u8,
        key: Operand,
    },
    Set {
        table: u8,
        key: Operand,
        value: Operand,
    },
    NewTable {
        to: u8,
    },
    /// Puts the object behind the method, for a call.
    Method {
        to: u8,
        object: u8,
        key: Operand,
    },
    Arith {
        operation: Arith,
        to: u8,
        left: Operand,
        right: Operand,
    },
    Negate {
        to: u8,
        from: u8,
    },
    Not {
        to: u8,
        from: u8,
    },
    Length {
        to: u8,
        from: u8,
    },
    Concat {
        to: u8,
        first: u8,
        last: u8,
    },
    /// Closes the upvalues from register `close - 1` on when `close` is not 0.
    Jump {
        close: u8,
        target: u32,
    },
    /// Leaves the next instruction out unless the comparison gives `expect`.
    Compare {
        comparison: Comparison,
        expect: bool,
        left: Operand,
        right: Operand,
    },
    /// Leaves the next instruction out unless the value is as `expect` says.
    Test {
        value: u8,
        expect: bool,
    },
    /// As [`Op::Test`], and copies the value when it is.
    TestSet {
        to: u8,
        value: u8,
        expect: bool,
    },
    /// Counts are [`ALL`] where the values reach to the top of the stack.
    Call {
        function: u8,
        arguments: i16,
        results: i16,
    },
    TailCall {
        function: u8,
        arguments: i16,
    },
    Return {
        first: u8,
        count: i16,
    },
    NumericPrepare {
        base: u8,
        target: u32,
    },
    NumericLoop {
        base: u8,
        target: u32,
    },
    GenericCall {
        base: u8,
        results: u8,
    },
    GenericLoop {
        base: u8,
        target: u32,
    },
    /// Stores registers behind the table's as elements from `first` on.
    SetList {
        table: u8,
        count: i16,
        first: u32,
    },
    Closure {
        to: u8,
        function: u16,
    },
    Varargs {
        to: u8,
        count: i16,
    },
}

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Constant {
    Nil,
    Bool(bool),
    Int(i64),
    String(StringId),
}

/// Where a closure gets an upvalue from, when it is made.
#[derive(Clone, Debug)]
pub(crate) struct UpvalueSource {
    pub(crate) name: Rc<[u8]>,
    /// A register of the function around it, otherwise one of that one's upvalues.
    pub(crate) is_local: bool,
    pub(crate) index: u8,
}

/// A local variable, for messages.
#[derive(Clone, Debug)]
pub(crate) struct LocalName {
    pub(crate) name: Rc<[u8]>,
    pub(crate) register: u8,
    /// The instructions in which it is visible.
    pub(crate) from: usize,
    pub(crate) until: usize,
}

/// A compiled function.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) code: Vec<Op>,
    /// The line of each instruction.
    pub(crate) lines: Vec<u32>,
    pub(crate) constants: Vec<Constant>,
    pub(crate) functions: Vec<Rc<Self>>,
    pub(crate) upvalues: Vec<UpvalueSource>,
    pub(crate) locals: Vec<LocalName>,
    pub(crate) parameters: u8,
    pub(crate) is_vararg: bool,
    /// Registers that it uses.
    pub(crate) registers: usize,
    /// 0 for the program itself.
    pub(crate) line: u32,
}
