//! Names of values and functions in messages, and the list of calls under way.
//!
//! The forms are those of Lua 5.2: OpenZFS: module/lua/ldebug.c, varinfo and getfuncname; module/lua/lauxlib.c, luaL_traceback.

use crate::code::{CONSTANT, Comparison, Constant, Function, Op, Operand};
use crate::number::Arith;
use crate::thread::Frame;
use crate::value::Value;
use crate::vm::{CHUNK, Fault, Vm, line_of};

/// A name and what it is the name of.
type Named = (&'static str, String);

/// Calls that a list of very many begins and ends with.
const FIRST_CALLS: usize = 12;
const LAST_CALLS: usize = 10;

impl Vm<'_> {
    /// An operation was tried on a value on the stack that does not have it.
    pub(crate) fn type_error(&mut self, place: usize, value: Value, operation: &str) -> Fault {
        let frame = self.frame();
        let register = place
            .checked_sub(frame.base)
            .and_then(|register| u8::try_from(register).ok());
        let name = match (&frame.code, register) {
            (Some(code), Some(register)) if usize::from(register) < code.registers => {
                self.object_name(code, frame.at - 1, register)
            }
            _ => None,
        };
        self.operation_error(operation, name, value)
    }

    fn operation_error(&mut self, operation: &str, name: Option<Named>, value: Value) -> Fault {
        let kind = value.type_name();
        self.error(&match name {
            Some((what, name)) => {
                format!("attempt to {operation} {what} '{name}' (a {kind} value)")
            }
            None => format!("attempt to {operation} a {kind} value"),
        })
    }

    /// The instruction that runs looks something up in a value that has nothing.
    pub(crate) fn index_error(&mut self, value: Value) -> Fault {
        let frame = self.frame();
        let code = frame
            .code
            .as_ref()
            .expect("instructions are of the program");
        let at = frame.at - 1;
        let name = match code.code[at] {
            Op::Get {
                table: register, ..
            }
            | Op::Set {
                table: register, ..
            }
            | Op::Method {
                object: register, ..
            } => self.object_name(code, at, register),
            Op::GetUpvalueField { upvalue, .. } | Op::SetUpvalueField { upvalue, .. } => {
                Some(("upvalue", upvalue_name(code, upvalue)))
            }
            _ => None,
        };
        self.operation_error("index", name, value)
    }

    /// One of two operands is of the wrong type.
    pub(crate) fn operand_error(
        &mut self,
        left: Operand,
        right: Operand,
        operation: &str,
    ) -> Fault {
        let left_value = self.operand(left);
        let fits = match operation {
            "concatenate" => self.text_of(left_value).is_some(),
            _ => self.to_number(left_value).is_some(),
        };
        let (operand, value) = if fits {
            (right, self.operand(right))
        } else {
            (left, left_value)
        };
        let frame = self.frame();
        let code = frame
            .code
            .as_ref()
            .expect("instructions are of the program");
        let register = u8::try_from(operand).ok();
        let name = register.and_then(|register| self.object_name(code, frame.at - 1, register));
        self.operation_error(operation, name, value)
    }

    /// An argument of the function that runs is refused.
    pub(crate) fn argument_error(&mut self, number: usize, message: &str) -> Fault {
        let mut number = number;
        let last = self.thread.frames.len() - 1;
        let name = match self.function_name(last) {
            Some(("method", name)) => {
                number -= 1;
                if number == 0 {
                    return self.error(&format!("calling '{name}' on bad self"));
                }
                name
            }
            Some((_, name)) => name,
            None => "?".into(),
        };
        self.error(&format!("bad argument #{number} to '{name}' ({message})"))
    }

    /// What the program calls the function of a frame, by the instruction that called it.
    fn function_name(&self, index: usize) -> Option<Named> {
        let frame = &self.thread.frames[index];
        let caller = &self.thread.frames[index.checked_sub(1)?];
        if frame.is_tail_call {
            return None;
        }
        let code = caller.code.as_ref()?;
        let at = caller.at.checked_sub(1)?;
        let event = match code.code[at] {
            Op::Call { function, .. } | Op::TailCall { function, .. } => {
                return self.object_name(code, at, function);
            }
            Op::GenericCall { .. } => return Some(("for iterator", "for iterator".into())),
            Op::Get { .. } | Op::GetUpvalueField { .. } | Op::Method { .. } => "index",
            Op::Set { .. } | Op::SetUpvalueField { .. } => "newindex",
            Op::Compare { comparison, .. } => match comparison {
                Comparison::Equal => "eq",
                Comparison::Less => "lt",
                Comparison::LessEqual => "le",
            },
            Op::Arith { operation, .. } => match operation {
                Arith::Add => "add",
                Arith::Sub => "sub",
                Arith::Mul => "mul",
                Arith::Div => "div",
                Arith::Mod => "mod",
                Arith::Pow => "pow",
            },
            Op::Negate { .. } => "unm",
            Op::Length { .. } => "len",
            Op::Concat { .. } => "concat",
            _ => return None,
        };
        Some(("metamethod", event.into()))
    }

    /// The name of what is in a register when an instruction runs.
    fn object_name(&self, code: &Function, at: usize, register: u8) -> Option<Named> {
        if let Some(name) = local_name(code, at, register) {
            return Some(("local", name));
        }
        let setter = setter(code, at, register)?;
        match code.code[setter] {
            Op::Move { to, from } if from < to => self.object_name(code, setter, from),
            Op::GetUpvalueField { upvalue, key, .. } => {
                let is_global = upvalue_name(code, upvalue) == "_ENV";
                Some((
                    if is_global { "global" } else { "field" },
                    self.key_name(code, setter, key),
                ))
            }
            Op::Get { table, key, .. } => {
                let is_global = local_name(code, setter, table).as_deref() == Some("_ENV");
                Some((
                    if is_global { "global" } else { "field" },
                    self.key_name(code, setter, key),
                ))
            }
            Op::GetUpvalue { upvalue, .. } => Some(("upvalue", upvalue_name(code, upvalue))),
            Op::Constant { constant, .. } => match code.constants[constant as usize] {
                Constant::String(id) => Some(("constant", self.display(id))),
                _ => None,
            },
            Op::Method { key, .. } => Some(("method", self.key_name(code, setter, key))),
            _ => None,
        }
    }

    fn key_name(&self, code: &Function, at: usize, key: Operand) -> String {
        let name = match u8::try_from(key) {
            Err(_) => match code.constants[usize::from(key - CONSTANT)] {
                Constant::String(id) => Some(self.display(id)),
                _ => None,
            },
            Ok(register) => match self.object_name(code, at, register) {
                Some(("constant", name)) => Some(name),
                _ => None,
            },
        };
        name.unwrap_or_else(|| "?".into())
    }

    /// The calls under way, the innermost first.
    pub(crate) fn traceback(&self) -> String {
        let frames = &self.thread.frames;
        // The handler of the error counts as the innermost.
        let levels = frames.len() + 1;
        let mark = if levels > FIRST_CALLS + LAST_CALLS {
            FIRST_CALLS
        } else {
            0
        };
        let mut text = String::from("stack traceback:");
        let mut level = 1;
        while level < levels {
            let index = frames.len() - level;
            level += 1;
            if level == mark {
                text.push_str("\n\t...");
                level = levels - LAST_CALLS;
                continue;
            }
            text.push_str(&self.describe_call(index, &frames[index]));
        }
        text
    }

    fn describe_call(&self, index: usize, frame: &Frame) -> String {
        let source = if frame.code.is_some() { CHUNK } else { "[C]" };
        let line = line_of(frame)
            .map(|line| format!("{line}:"))
            .unwrap_or_default();
        let name = match (self.function_name(index), &frame.code) {
            (Some((_, name)), _) => format!("function '{name}'"),
            (None, Some(code)) if code.line == 0 => "main chunk".into(),
            (None, Some(code)) => format!("function <{CHUNK}:{}>", code.line),
            (None, None) => "?".into(),
        };
        let tail = if frame.is_tail_call {
            "\n\t(...tail calls...)"
        } else {
            ""
        };
        format!("\n\t{source}:{line} in {name}{tail}")
    }
}

fn upvalue_name(code: &Function, number: u8) -> String {
    String::from_utf8_lossy(&code.upvalues[usize::from(number)].name).into_owned()
}

fn local_name(code: &Function, at: usize, register: u8) -> Option<String> {
    let found = code
        .locals
        .iter()
        .find(|local| local.register == register && (local.from..local.until).contains(&at))?;
    Some(String::from_utf8_lossy(&found.name).into_owned())
}

/// The instruction before `at` that set a register, if it is certain that it ran.
fn setter(code: &Function, at: usize, register: u8) -> Option<usize> {
    let mut found = None;
    // Instructions before this one may have been jumped over.
    let mut uncertain_until = 0;
    for (number, op) in code.code[..at].iter().enumerate() {
        let sets = match *op {
            Op::Nil { to, count } => (to..to + count).contains(&register),
            Op::GenericCall { base, .. } => register >= base + 2,
            Op::Call { function, .. } | Op::TailCall { function, .. } => register >= function,
            Op::Jump { target, .. } => {
                let target = target as usize;
                if target > number && target <= at {
                    uncertain_until = uncertain_until.max(target);
                }
                false
            }
            other => target_of(other) == Some(register),
        };
        if sets {
            found = (number >= uncertain_until).then_some(number);
        }
    }
    found
}

/// The register that an instruction sets, of those that set one.
fn target_of(op: Op) -> Option<u8> {
    match op {
        Op::Move { to, .. }
        | Op::Constant { to, .. }
        | Op::Bool { to, .. }
        | Op::GetUpvalue { to, .. }
        | Op::GetUpvalueField { to, .. }
        | Op::Get { to, .. }
        | Op::NewTable { to }
        | Op::Method { to, .. }
        | Op::Arith { to, .. }
        | Op::Negate { to, .. }
        | Op::Not { to, .. }
        | Op::Length { to, .. }
        | Op::Concat { to, .. }
        | Op::TestSet { to, .. }
        | Op::Closure { to, .. }
        | Op::Varargs { to, .. } => Some(to),
        Op::NumericPrepare { base, .. } | Op::NumericLoop { base, .. } => Some(base),
        _ => None,
    }
}
