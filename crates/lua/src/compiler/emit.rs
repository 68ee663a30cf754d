//! Instructions, registers, constants and jumps.

use crate::code::{CONSTANT, Constant, Op, Operand, REGISTERS_MAX};
use crate::lexer::Lexed;

use super::Compiler;

/// No register: the value that a test finds is not wanted.
pub(super) const NO_REGISTER: u8 = u8::MAX;

/// A jump that has no target yet.
const NOWHERE: u32 = u32::MAX;

/// Where the value of an expression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Nothing,
    Nil,
    Bool(bool),
    Int(i64),
    Constant(usize),
    /// Of a local variable or of an intermediate result.
    Register(u8),
    Local(u8),
    Upvalue(u8),
    Indexed {
        table: u8,
        key: Operand,
    },
    UpvalueIndexed {
        upvalue: u8,
        key: Operand,
    },
    Call(usize),
    Varargs(usize),
    /// An instruction whose register is not chosen yet.
    Pending(usize),
    /// A jump that is made when a comparison holds.
    Jump(usize),
}

/// An expression.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    pub(super) location: Location,
    /// Jumps that are made when it is true.
    pub(super) when_true: Vec<usize>,
    /// Jumps that are made when it is false.
    pub(super) when_false: Vec<usize>,
}

impl From<Location> for Expression {
    fn from(location: Location) -> Self {
        Self {
            location,
            when_true: Vec::new(),
            when_false: Vec::new(),
        }
    }
}

impl Expression {
    pub(super) fn has_jumps(&self) -> bool {
        !self.when_true.is_empty() || !self.when_false.is_empty()
    }

    pub(super) fn has_many_values(&self) -> bool {
        matches!(self.location, Location::Call(_) | Location::Varargs(_))
    }
}

/// Results of all calls under way fit into an instruction.
pub(super) fn small(count: usize) -> i16 {
    i16::try_from(count).expect("there are fewer registers")
}

impl Compiler<'_> {
    pub(super) fn emit(&mut self, op: Op) -> usize {
        let line = self.last_line;
        let code = &mut self.state().code;
        code.code.push(op);
        code.lines.push(line);
        code.code.len() - 1
    }

    pub(super) fn here(&mut self) -> usize {
        self.state().code.code.len()
    }

    /// Says of which line the last instruction is.
    pub(super) fn set_line(&mut self, line: u32) {
        *self
            .state()
            .code
            .lines
            .last_mut()
            .expect("an instruction was emitted") = line;
    }

    // Constants.

    fn constant(&mut self, constant: Constant) -> usize {
        let state = self.state();
        let next = state.code.constants.len();
        let found = *state.constants.entry(constant).or_insert(next);
        if found == next {
            state.code.constants.push(constant);
        }
        found
    }

    pub(super) fn string_constant(&mut self, bytes: &[u8]) -> usize {
        let string = self.heap.intern(bytes);
        self.constant(Constant::String(string))
    }

    // Registers.

    pub(super) fn reserve(&mut self, count: usize) -> Lexed<()> {
        let end = self.state().free + count;
        if end > REGISTERS_MAX {
            return Err(self.error_near("function or expression needs too many registers"));
        }
        let state = self.state();
        state.free = end;
        state.code.registers = state.code.registers.max(end + 2);
        Ok(())
    }

    pub(super) fn register(number: usize) -> u8 {
        u8::try_from(number).expect("registers are few")
    }

    fn free_register(&mut self, register: u8) {
        let locals = self.state().active.len();
        let state = self.state();
        if usize::from(register) >= locals {
            state.free -= 1;
            assert_eq!(
                usize::from(register),
                state.free,
                "registers are freed in order"
            );
        }
    }

    fn free_operand(&mut self, operand: Operand) {
        if let Ok(register) = u8::try_from(operand) {
            self.free_register(register);
        }
    }

    pub(super) fn free_operands(&mut self, first: Operand, second: Operand) {
        let is_register = |operand: Operand| operand < CONSTANT;
        if is_register(first) && is_register(second) && first > second {
            self.free_operand(first);
            self.free_operand(second);
        } else {
            self.free_operand(second);
            self.free_operand(first);
        }
    }

    pub(super) fn free(&mut self, expression: &Expression) {
        if let Location::Register(register) = expression.location {
            self.free_register(register);
        }
    }

    // Jumps.

    pub(super) fn jump(&mut self) -> usize {
        self.emit(Op::Jump {
            close: 0,
            target: NOWHERE,
        })
    }

    pub(super) fn patch(&mut self, jump: usize, to: usize) {
        let to = u32::try_from(to).expect("programs are short");
        match &mut self.state().code.code[jump] {
            Op::Jump { target, .. } | Op::NumericPrepare { target, .. } => *target = to,
            _ => unreachable!("only jumps are patched"),
        }
    }

    pub(super) fn patch_here(&mut self, jump: usize) {
        let here = self.here();
        self.patch(jump, here);
    }

    /// Lets a jump close the upvalues from a register on.
    pub(super) fn patch_close(&mut self, jump: usize, register: usize) {
        match &mut self.state().code.code[jump] {
            Op::Jump { close, .. } => *close = Self::register(register + 1),
            _ => unreachable!("only jumps are patched"),
        }
    }

    /// The test before a jump, if there is one.
    fn control(&mut self, jump: usize) -> &mut Op {
        let code = &mut self.state().code.code;
        let is_test = jump > 0
            && matches!(
                code[jump - 1],
                Op::Compare { .. } | Op::Test { .. } | Op::TestSet { .. }
            );
        &mut code[if is_test { jump - 1 } else { jump }]
    }

    /// Says where the value that is tested before a jump is wanted; returns false when the test has none.
    fn want_tested(&mut self, jump: usize, register: u8) -> bool {
        let control = self.control(jump);
        let Op::TestSet { value, expect, .. } = *control else {
            return false;
        };
        *control = if register != NO_REGISTER && register != value {
            Op::TestSet {
                to: register,
                value,
                expect,
            }
        } else {
            Op::Test { value, expect }
        };
        true
    }

    /// Lets jumps go to a place where their values are not wanted.
    pub(super) fn patch_all(&mut self, jumps: &[usize], target: usize) {
        for &jump in jumps {
            self.want_tested(jump, NO_REGISTER);
            self.patch(jump, target);
        }
    }

    pub(super) fn patch_all_here(&mut self, jumps: &[usize]) {
        let here = self.here();
        self.patch_all(jumps, here);
    }

    fn invert(&mut self, jump: usize) {
        match self.control(jump) {
            Op::Compare { expect, .. } => *expect = !*expect,
            _ => unreachable!("a comparison is before its jump"),
        }
    }

    // Values.

    fn set_target(&mut self, at: usize, register: u8) {
        match &mut self.state().code.code[at] {
            Op::GetUpvalue { to, .. }
            | Op::GetUpvalueField { to, .. }
            | Op::Get { to, .. }
            | Op::NewTable { to }
            | Op::Arith { to, .. }
            | Op::Negate { to, .. }
            | Op::Not { to, .. }
            | Op::Length { to, .. }
            | Op::Concat { to, .. }
            | Op::Closure { to, .. }
            | Op::Varargs { to, .. } => *to = register,
            _ => unreachable!("the register of other instructions is known"),
        }
    }

    /// Says how many results of the last expression of a list are wanted.
    pub(super) fn set_results(&mut self, expression: &Expression, count: i16) -> Lexed<()> {
        match expression.location {
            Location::Call(at) => match &mut self.state().code.code[at] {
                Op::Call { results, .. } => *results = count,
                _ => unreachable!("a call is there"),
            },
            Location::Varargs(at) => {
                let first = Self::register(self.state().free);
                match &mut self.state().code.code[at] {
                    Op::Varargs { to, count: wanted } => (*to, *wanted) = (first, count),
                    _ => unreachable!("varargs are there"),
                }
                self.reserve(1)?;
            }
            _ => unreachable!("others have one value"),
        }
        Ok(())
    }

    /// Turns a variable into a value, which may be in no register yet.
    pub(super) fn discharge(&mut self, expression: &mut Expression) {
        expression.location = match expression.location {
            Location::Local(register) => Location::Register(register),
            Location::Upvalue(upvalue) => {
                Location::Pending(self.emit(Op::GetUpvalue { to: 0, upvalue }))
            }
            Location::Indexed { table, key } => {
                self.free_operands(u16::from(table), key);
                Location::Pending(self.emit(Op::Get { to: 0, table, key }))
            }
            Location::UpvalueIndexed { upvalue, key } => {
                self.free_operand(key);
                Location::Pending(self.emit(Op::GetUpvalueField {
                    to: 0,
                    upvalue,
                    key,
                }))
            }
            Location::Call(at) => match self.state().code.code[at] {
                Op::Call { function, .. } => Location::Register(function),
                _ => unreachable!("a call is there"),
            },
            Location::Varargs(at) => {
                match &mut self.state().code.code[at] {
                    Op::Varargs { count, .. } => *count = 1,
                    _ => unreachable!("varargs are there"),
                }
                Location::Pending(at)
            }
            other => other,
        };
    }

    /// Puts a value into a register; a comparison stays a jump.
    fn discharge_to(&mut self, expression: &mut Expression, to: u8) {
        self.discharge(expression);
        match expression.location {
            Location::Nil => {
                self.emit(Op::Nil { to, count: 1 });
            }
            Location::Bool(value) => {
                self.emit(Op::Bool {
                    to,
                    value,
                    skip: false,
                });
            }
            Location::Constant(constant) => {
                let constant = u32::try_from(constant).expect("programs are short");
                self.emit(Op::Constant { to, constant });
            }
            Location::Int(value) => {
                let constant = self.constant(Constant::Int(value));
                let constant = u32::try_from(constant).expect("programs are short");
                self.emit(Op::Constant { to, constant });
            }
            Location::Pending(at) => self.set_target(at, to),
            Location::Register(from) => {
                if from != to {
                    self.emit(Op::Move { to, from });
                }
            }
            Location::Jump(_) | Location::Nothing => return,
            _ => unreachable!("variables were discharged"),
        }
        expression.location = Location::Register(to);
    }

    fn discharge_anywhere(&mut self, expression: &mut Expression) -> Lexed<()> {
        if !matches!(expression.location, Location::Register(_)) {
            self.reserve(1)?;
            let register = Self::register(self.state().free - 1);
            self.discharge_to(expression, register);
        }
        Ok(())
    }

    /// Puts the value into a register, with what its jumps bring.
    pub(super) fn put_in_register(&mut self, expression: &mut Expression, register: u8) {
        self.discharge_to(expression, register);
        if let Location::Jump(jump) = expression.location {
            expression.when_true.push(jump);
        }
        if expression.has_jumps() {
            let jumps = [expression.when_true.clone(), expression.when_false.clone()].concat();
            let plain = jumps
                .iter()
                .any(|&jump| !matches!(self.control(jump), Op::TestSet { .. }));
            let mut places = (0, 0);
            if plain {
                let over = match expression.location {
                    Location::Jump(_) => None,
                    _ => Some(self.jump()),
                };
                places.0 = self.emit(Op::Bool {
                    to: register,
                    value: false,
                    skip: true,
                });
                places.1 = self.emit(Op::Bool {
                    to: register,
                    value: true,
                    skip: false,
                });
                if let Some(over) = over {
                    self.patch_here(over);
                }
            }
            let end = self.here();
            for (jumps, place) in [
                (&expression.when_false, places.0),
                (&expression.when_true, places.1),
            ] {
                for &jump in jumps {
                    let has_value = self.want_tested(jump, register);
                    self.patch(jump, if has_value { end } else { place });
                }
            }
        }
        *expression = Location::Register(register).into();
    }

    pub(super) fn put_in_next_register(&mut self, expression: &mut Expression) -> Lexed<()> {
        self.discharge(expression);
        self.free(expression);
        self.reserve(1)?;
        let register = Self::register(self.state().free - 1);
        self.put_in_register(expression, register);
        Ok(())
    }

    pub(super) fn put_in_any_register(&mut self, expression: &mut Expression) -> Lexed<u8> {
        self.discharge(expression);
        if let Location::Register(register) = expression.location {
            if !expression.has_jumps() {
                return Ok(register);
            }
            if usize::from(register) >= self.state().active.len() {
                self.put_in_register(expression, register);
                return Ok(register);
            }
        }
        self.put_in_next_register(expression)?;
        match expression.location {
            Location::Register(register) => Ok(register),
            _ => unreachable!("it was put into a register"),
        }
    }

    /// Makes a value of jumps, if there are any.
    pub(super) fn settle_value(&mut self, expression: &mut Expression) -> Lexed<()> {
        if expression.has_jumps() {
            self.put_in_any_register(expression)?;
        } else {
            self.discharge(expression);
        }
        Ok(())
    }

    /// Makes an operand: a constant or a register.
    pub(super) fn settle_operand(&mut self, expression: &mut Expression) -> Lexed<Operand> {
        self.settle_value(expression)?;
        let constant = match expression.location {
            _ if expression.has_jumps() => None,
            Location::Nil => Some(self.constant(Constant::Nil)),
            Location::Bool(value) => Some(self.constant(Constant::Bool(value))),
            Location::Int(value) => Some(self.constant(Constant::Int(value))),
            Location::Constant(constant) => Some(constant),
            _ => None,
        };
        if let Some(constant) = constant {
            if let Some(operand) = u16::try_from(constant)
                .ok()
                .and_then(|constant| constant.checked_add(CONSTANT))
            {
                expression.location = Location::Constant(constant);
                return Ok(operand);
            }
            expression.location = Location::Constant(constant);
        }
        Ok(u16::from(self.put_in_any_register(expression)?))
    }

    // Conditions.

    fn jump_if(&mut self, expression: &mut Expression, condition: bool) -> Lexed<usize> {
        if let Location::Pending(at) = expression.location
            && let Op::Not { from, .. } = self.state().code.code[at]
            && at + 1 == self.here()
        {
            let code = &mut self.state().code;
            code.code.pop();
            code.lines.pop();
            self.emit(Op::Test {
                value: from,
                expect: !condition,
            });
            return Ok(self.jump());
        }
        self.discharge_anywhere(expression)?;
        self.free(expression);
        let Location::Register(value) = expression.location else {
            unreachable!("it was put into a register");
        };
        self.emit(Op::TestSet {
            to: NO_REGISTER,
            value,
            expect: condition,
        });
        Ok(self.jump())
    }

    /// Goes on when the expression is true, and jumps otherwise.
    pub(super) fn go_if_true(&mut self, expression: &mut Expression) -> Lexed<()> {
        self.discharge(expression);
        let jump = match expression.location {
            Location::Jump(jump) => {
                self.invert(jump);
                Some(jump)
            }
            Location::Constant(_) | Location::Int(_) | Location::Bool(true) => None,
            _ => Some(self.jump_if(expression, false)?),
        };
        expression.when_false.extend(jump);
        let arrived = std::mem::take(&mut expression.when_true);
        self.patch_all_here(&arrived);
        Ok(())
    }

    /// Goes on when the expression is false, and jumps otherwise.
    pub(super) fn go_if_false(&mut self, expression: &mut Expression) -> Lexed<()> {
        self.discharge(expression);
        let jump = match expression.location {
            Location::Jump(jump) => Some(jump),
            Location::Nil | Location::Bool(false) => None,
            _ => Some(self.jump_if(expression, true)?),
        };
        expression.when_true.extend(jump);
        let arrived = std::mem::take(&mut expression.when_false);
        self.patch_all_here(&arrived);
        Ok(())
    }

    pub(super) fn negate_truth(&mut self, expression: &mut Expression) -> Lexed<()> {
        self.discharge(expression);
        match expression.location {
            Location::Nil | Location::Bool(false) => expression.location = Location::Bool(true),
            Location::Constant(_) | Location::Int(_) | Location::Bool(true) => {
                expression.location = Location::Bool(false);
            }
            Location::Jump(jump) => self.invert(jump),
            _ => {
                self.discharge_anywhere(expression)?;
                self.free(expression);
                let Location::Register(from) = expression.location else {
                    unreachable!("it was put into a register");
                };
                expression.location = Location::Pending(self.emit(Op::Not { to: 0, from }));
            }
        }
        std::mem::swap(&mut expression.when_true, &mut expression.when_false);
        for jump in [expression.when_true.clone(), expression.when_false.clone()].concat() {
            self.want_tested(jump, NO_REGISTER);
        }
        Ok(())
    }

    /// Stores a value in a variable.
    pub(super) fn store(&mut self, variable: &Location, value: &mut Expression) -> Lexed<()> {
        match *variable {
            Location::Local(register) => {
                self.free(value);
                self.put_in_register(value, register);
                return Ok(());
            }
            Location::Upvalue(upvalue) => {
                let from = self.put_in_any_register(value)?;
                self.emit(Op::SetUpvalue { from, upvalue });
            }
            Location::Indexed { table, key } => {
                let value = self.settle_operand(value)?;
                self.emit(Op::Set { table, key, value });
            }
            Location::UpvalueIndexed { upvalue, key } => {
                let value = self.settle_operand(value)?;
                self.emit(Op::SetUpvalueField {
                    upvalue,
                    key,
                    value,
                });
            }
            _ => unreachable!("only variables are assigned to"),
        }
        self.free(value);
        Ok(())
    }
}
