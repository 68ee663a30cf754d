//! Instructions.

use std::rc::Rc;

use crate::call::{Call, Flow};
use crate::code::{Comparison, Op, Operand};
use crate::number::{self, Arith};
use crate::thread::After;
use crate::value::{StringId, Value};
use crate::vm::{Event, Fault, Run, Vm};

/// Tables that are looked at one after the other, by metatables. OpenZFS: module/lua/lvm.c, MAXTAGLOOP
const INDEX_DEPTH_MAX: usize = 100;

impl Vm<'_> {
    /// Runs the last frame to its end, with what it calls.
    pub(crate) fn execute(&mut self) -> Run<Flow> {
        loop {
            self.until_check -= 1;
            if self.until_check == 0 {
                self.check_limits()?;
            }
            let frame = self.thread.frames.last_mut().expect("something runs");
            let code = frame
                .code
                .as_ref()
                .expect("instructions are of the program");
            let op = code.code[frame.at];
            frame.at += 1;
            match self.step(op)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
    }

    fn step(&mut self, op: Op) -> Run<Flow> {
        match op {
            Op::Move { to, from } => self.set_register(to, self.register(from)),
            Op::Constant { to, constant } => {
                self.set_register(to, self.constant(constant as usize));
            }
            Op::Bool { to, value, skip } => {
                self.set_register(to, Value::Bool(value));
                self.frame_mut().at += usize::from(skip);
            }
            Op::Nil { to, count } => {
                (to..to + count).for_each(|register| self.set_register(register, Value::Nil));
            }
            Op::GetUpvalue { to, upvalue } => {
                let id = self.own_upvalue(upvalue);
                self.set_register(to, self.upvalue(id));
            }
            Op::SetUpvalue { from, upvalue } => {
                let id = self.own_upvalue(upvalue);
                self.set_upvalue(id, self.register(from));
            }
            Op::GetUpvalueField { to, upvalue, key } => {
                let table = self.upvalue(self.own_upvalue(upvalue));
                return self.index(table, self.operand(key), to);
            }
            Op::SetUpvalueField {
                upvalue,
                key,
                value,
            } => {
                let table = self.upvalue(self.own_upvalue(upvalue));
                return self.set_index(table, self.operand(key), self.operand(value));
            }
            Op::Get { to, table, key } => {
                return self.index(self.register(table), self.operand(key), to);
            }
            Op::Set { table, key, value } => {
                return self.set_index(
                    self.register(table),
                    self.operand(key),
                    self.operand(value),
                );
            }
            Op::NewTable { to } => {
                let table = self.new_table()?;
                self.set_register(to, Value::Table(table));
            }
            Op::Method { to, object, key } => {
                let object = self.register(object);
                self.set_register(to + 1, object);
                return self.index(object, self.operand(key), to);
            }
            Op::Arith {
                operation,
                to,
                left,
                right,
            } => return self.arith(operation, to, left, right),
            Op::Negate { to, from } => return self.negate(to, from),
            Op::Not { to, from } => {
                let value = Value::Bool(!self.register(from).is_true());
                self.set_register(to, value);
            }
            Op::Length { to, from } => return self.length(to, from),
            Op::Concat { to, first, last } => return self.concat(to, first, last),
            other => return self.step_control(other),
        }
        Ok(Flow::Next)
    }

    fn step_control(&mut self, op: Op) -> Run<Flow> {
        match op {
            Op::Jump { close, target } => {
                if close > 0 {
                    let from = self.frame().base + usize::from(close) - 1;
                    self.close_upvalues(from);
                }
                self.frame_mut().at = target as usize;
            }
            Op::Compare {
                comparison,
                expect,
                left,
                right,
            } => return self.compare(comparison, expect, left, right),
            Op::Test { value, expect } => {
                if self.register(value).is_true() != expect {
                    self.frame_mut().at += 1;
                }
            }
            Op::TestSet { to, value, expect } => self.test_set(to, value, expect),
            Op::Call {
                function,
                arguments,
                results,
            } => {
                let function = self.frame().base + usize::from(function);
                let arguments = self.count(function + 1, arguments);
                return self.begin_call(Call::new(function, arguments, i32::from(results)));
            }
            Op::TailCall {
                function,
                arguments,
            } => return self.tail_call(function, arguments),
            Op::Return { first, count } => {
                let first = self.frame().base + usize::from(first);
                let count = self.count(first, count);
                let base = self.frame().base;
                self.close_upvalues(base);
                return self.finish(first, count);
            }
            Op::NumericPrepare { base, target } => self.prepare_loop(base, target)?,
            Op::NumericLoop { base, target } => self.numeric_loop(base, target),
            Op::GenericCall { base, results } => {
                let first = self.frame().base + usize::from(base);
                self.reserve(first + 7)?;
                self.thread.stack.copy_within(first..first + 3, first + 3);
                return self.begin_call(Call::new(first + 3, 2, i32::from(results)));
            }
            Op::GenericLoop { base, target } => self.generic_loop(base, target),
            Op::SetList {
                table,
                count,
                first,
            } => self.set_list(table, count, first)?,
            Op::Closure { to, function } => self.make_closure(to, function)?,
            Op::Varargs { to, count } => self.varargs(to, count)?,
            _ => unreachable!("the other instructions are done elsewhere"),
        }
        Ok(Flow::Next)
    }

    fn test_set(&mut self, to: u8, value: u8, expect: bool) {
        let value = self.register(value);
        if value.is_true() == expect {
            self.set_register(to, value);
        } else {
            self.frame_mut().at += 1;
        }
    }

    fn generic_loop(&mut self, base: u8, target: u32) {
        let control = self.register(base + 1);
        if control != Value::Nil {
            self.set_register(base, control);
            self.frame_mut().at = target as usize;
        }
    }

    /// How many values lie from a place on: as many as the instruction says, or all.
    fn count(&self, first: usize, count: i16) -> usize {
        usize::try_from(count).unwrap_or(self.thread.top.saturating_sub(first))
    }

    fn own_closure(&self) -> &crate::objects::Closure {
        match self.thread.stack[self.frame().function] {
            Value::Closure(id) => self.heap.closure(id),
            _ => unreachable!("a frame of the program is of a closure"),
        }
    }

    fn own_upvalue(&self, number: u8) -> crate::value::UpvalueId {
        self.own_closure().upvalues[usize::from(number)]
    }

    /// Calls a metamethod above the registers.
    fn call_event(&mut self, method: Value, arguments: &[Value], after: After) -> Run<Flow> {
        let function = self.frame().end().expect("instructions are of the program");
        self.thread.top = function;
        self.kept.push(method);
        self.kept.extend_from_slice(arguments);
        let reserved = self.reserve(function + 1 + arguments.len());
        self.kept.truncate(self.kept.len() - 1 - arguments.len());
        reserved?;
        self.thread.stack[function] = method;
        self.thread.stack[function + 1..=function + arguments.len()].copy_from_slice(arguments);
        self.begin_call(Call {
            after,
            ..Call::new(
                function,
                arguments.len(),
                i32::from(after != After::Nothing),
            )
        })
    }

    /// Looks a key up, with metamethods.
    fn index(&mut self, object: Value, key: Value, to: u8) -> Run<Flow> {
        let mut object = object;
        for _ in 0..INDEX_DEPTH_MAX {
            let method = if let Value::Table(table) = object {
                let value = self.raw_get(table, key);
                let method = match value {
                    Value::Nil => self.metamethod(object, Event::Index),
                    _ => Value::Nil,
                };
                if method == Value::Nil {
                    self.set_register(to, value);
                    return Ok(Flow::Next);
                }
                method
            } else {
                let method = self.metamethod(object, Event::Index);
                if method == Value::Nil {
                    return Err(self.index_error(object));
                }
                method
            };
            if !matches!(method, Value::Table(_) | Value::String(_)) {
                return self.call_event(method, &[object, key], After::Store(to));
            }
            object = method;
        }
        Err(self.error("loop in gettable"))
    }

    fn set_index(&mut self, object: Value, key: Value, value: Value) -> Run<Flow> {
        let mut object = object;
        for _ in 0..INDEX_DEPTH_MAX {
            let method = if let Value::Table(table) = object {
                let is_new = self.raw_get(table, key) == Value::Nil;
                let method = if is_new {
                    self.metamethod(object, Event::NewIndex)
                } else {
                    Value::Nil
                };
                if method == Value::Nil {
                    if key == Value::Nil {
                        return Err(self.error("table index is nil"));
                    }
                    // An object reached through metatables is held by no register.
                    self.kept.push(object);
                    let stored = self.raw_set(table, key, value);
                    self.kept.pop();
                    stored?;
                    return Ok(Flow::Next);
                }
                method
            } else {
                let method = self.metamethod(object, Event::NewIndex);
                if method == Value::Nil {
                    return Err(self.index_error(object));
                }
                method
            };
            if !matches!(method, Value::Table(_) | Value::String(_)) {
                return self.call_event(method, &[object, key, value], After::Nothing);
            }
            object = method;
        }
        Err(self.error("loop in settable"))
    }

    pub(crate) fn to_number(&self, value: Value) -> Option<i64> {
        match value {
            Value::Int(number) => Some(number),
            Value::String(id) => number::parse(self.heap.string(id)),
            _ => None,
        }
    }

    fn arith(&mut self, operation: Arith, to: u8, left: Operand, right: Operand) -> Run<Flow> {
        let (left_value, right_value) = (self.operand(left), self.operand(right));
        if let (Some(left), Some(right)) = (self.to_number(left_value), self.to_number(right_value))
        {
            let result =
                number::compute(operation, left, right).map_err(|message| self.error(message))?;
            self.set_register(to, Value::Int(result));
            return Ok(Flow::Next);
        }
        let event = match operation {
            Arith::Add => Event::Add,
            Arith::Sub => Event::Sub,
            Arith::Mul => Event::Mul,
            Arith::Div => Event::Div,
            Arith::Mod => Event::Mod,
            Arith::Pow => Event::Pow,
        };
        let method = self.binary_method(left_value, right_value, event);
        if method == Value::Nil {
            return Err(self.operand_error(left, right, "perform arithmetic on"));
        }
        self.call_event(method, &[left_value, right_value], After::Store(to))
    }

    fn binary_method(&self, left: Value, right: Value, event: Event) -> Value {
        match self.metamethod(left, event) {
            Value::Nil => self.metamethod(right, event),
            method => method,
        }
    }

    fn negate(&mut self, to: u8, from: u8) -> Run<Flow> {
        let value = self.register(from);
        if let Some(number) = self.to_number(value) {
            self.set_register(to, Value::Int(number.wrapping_neg()));
            return Ok(Flow::Next);
        }
        let method = self.metamethod(value, Event::Negate);
        if method == Value::Nil {
            return Err(self.operand_error(
                u16::from(from),
                u16::from(from),
                "perform arithmetic on",
            ));
        }
        self.call_event(method, &[value, value], After::Store(to))
    }

    fn length(&mut self, to: u8, from: u8) -> Run<Flow> {
        let value = self.register(from);
        let length = match value {
            Value::String(id) => self.heap.string(id).len(),
            other => {
                let method = self.metamethod(other, Event::Length);
                match (method, other) {
                    (Value::Nil, Value::Table(id)) => self.heap.table(id).table.length(),
                    (Value::Nil, _) => {
                        let place = self.frame().base + usize::from(from);
                        return Err(self.type_error(place, other, "get length of"));
                    }
                    _ => return self.call_event(method, &[value, value], After::Store(to)),
                }
            }
        };
        let length = i64::try_from(length).expect("memory is limited");
        self.set_register(to, Value::Int(length));
        Ok(Flow::Next)
    }

    /// The text of a string or number.
    pub(crate) fn text_of(&self, value: Value) -> Option<Rc<[u8]>> {
        match value {
            Value::String(id) => Some(self.bytes(id)),
            Value::Int(number) => Some(number.to_string().into_bytes().into()),
            _ => None,
        }
    }

    /// Joins the registers from `first` to `last` from the end on; strings are joined many at a time.
    pub(crate) fn concat(&mut self, to: u8, first: u8, last: u8) -> Run<Flow> {
        let mut last = last;
        while first < last {
            let (left, right) = (self.register(last - 1), self.register(last));
            if self.text_of(left).is_none() || self.text_of(right).is_none() {
                let method = self.binary_method(left, right, Event::Concat);
                if method == Value::Nil {
                    let (left, right) = (u16::from(last) - 1, u16::from(last));
                    return Err(self.operand_error(left, right, "concatenate"));
                }
                return self.call_event(method, &[left, right], After::Concat { to, first, last });
            }
            let mut parts = vec![self.text_of(right).expect("it is text")];
            let mut at = last;
            while at > first
                && let Some(text) = self.text_of(self.register(at - 1))
            {
                parts.push(text);
                at -= 1;
            }
            let length = parts.iter().map(|part| part.len()).sum();
            self.room(length)?;
            self.work_bytes(length)?;
            parts.reverse();
            let joined = self.string(&parts.concat())?;
            self.set_register(at, Value::String(joined));
            last = at;
        }
        self.set_register(to, self.register(first));
        Ok(Flow::Next)
    }

    fn compare(
        &mut self,
        comparison: Comparison,
        expect: bool,
        left: Operand,
        right: Operand,
    ) -> Run<Flow> {
        let (left, right) = (self.operand(left), self.operand(right));
        let known = match comparison {
            Comparison::Equal => match (left, right) {
                (Value::Table(_), Value::Table(_)) if left != right => None,
                _ => Some(left == right),
            },
            Comparison::Less => self.less_with_work(left, right)?,
            Comparison::LessEqual => self.less_with_work(right, left)?.map(|less| !less),
        };
        if let Some(result) = known {
            if result != expect {
                self.frame_mut().at += 1;
            }
            return Ok(Flow::Next);
        }
        self.compare_by_method(comparison, expect, left, right)
    }

    fn compare_by_method(
        &mut self,
        comparison: Comparison,
        expect: bool,
        left: Value,
        right: Value,
    ) -> Run<Flow> {
        let event = match comparison {
            Comparison::Equal => Event::Equal,
            Comparison::Less => Event::Less,
            Comparison::LessEqual => Event::LessEqual,
        };
        let method = match comparison {
            Comparison::Equal => self.equal_method(left, right),
            _ => self.binary_method(left, right, event),
        };
        if method != Value::Nil {
            return self.call_event(method, &[left, right], After::Test { expect });
        }
        match comparison {
            Comparison::Equal => {
                if expect {
                    self.frame_mut().at += 1;
                }
                return Ok(Flow::Next);
            }
            Comparison::LessEqual => {
                let method = self.binary_method(right, left, Event::Less);
                if method != Value::Nil {
                    return self.call_event(
                        method,
                        &[right, left],
                        After::Test { expect: !expect },
                    );
                }
            }
            Comparison::Less => {}
        }
        Err(self.order_error(left, right))
    }

    /// Two tables are equal by a method only if both have the same.
    pub(crate) fn equal_method(&self, left: Value, right: Value) -> Value {
        match self.metamethod(left, Event::Equal) {
            method if method == self.metamethod(right, Event::Equal) => method,
            _ => Value::Nil,
        }
    }

    /// As [`Vm::less`], with the work of comparing long strings.
    pub(crate) fn less_with_work(&mut self, left: Value, right: Value) -> Run<Option<bool>> {
        if let (Value::String(left), Value::String(right)) = (left, right) {
            let length = self
                .heap
                .string(left)
                .len()
                .min(self.heap.string(right).len());
            self.work_bytes(length)?;
        }
        Ok(self.less(left, right))
    }

    /// The order of numbers and of strings.
    pub(crate) fn less(&self, left: Value, right: Value) -> Option<bool> {
        match (left, right) {
            (Value::Int(left), Value::Int(right)) => Some(left < right),
            (Value::String(left), Value::String(right)) => {
                Some(self.heap.string(left) < self.heap.string(right))
            }
            _ => None,
        }
    }

    pub(crate) fn order_error(&mut self, left: Value, right: Value) -> Fault {
        let (left, right) = (left.type_name(), right.type_name());
        if left == right {
            return self.error(&format!("attempt to compare two {left} values"));
        }
        self.error(&format!("attempt to compare {left} with {right}"))
    }

    fn tail_call(&mut self, function: u8, arguments: i16) -> Run<Flow> {
        let place = self.frame().base + usize::from(function);
        let arguments = self.count(place + 1, arguments);
        let base = self.frame().base;
        self.close_upvalues(base);
        // A function of the program takes the place of its caller; others run above it, so that errors show both.
        if !matches!(self.thread.stack[place], Value::Closure(_)) {
            let flow = self.begin_call(Call::new(place, arguments, crate::code::ALL))?;
            return Ok(flow);
        }
        let frame = self.thread.frames.pop().expect("something runs");
        self.thread
            .stack
            .copy_within(place..=place + arguments, frame.function);
        self.begin_call(Call {
            function: frame.function,
            arguments,
            results: frame.results,
            after: frame.after,
            is_tail_call: true,
            is_entry: frame.is_entry,
        })
    }

    fn prepare_loop(&mut self, base: u8, target: u32) -> Run<()> {
        let start = self.to_number(self.register(base));
        let limit = self.to_number(self.register(base + 1));
        let step = self.to_number(self.register(base + 2));
        let Some(limit) = limit else {
            return Err(self.error("'for' limit must be a number"));
        };
        let Some(step) = step else {
            return Err(self.error("'for' step must be a number"));
        };
        let Some(start) = start else {
            return Err(self.error("'for' initial value must be a number"));
        };
        self.set_register(base, Value::Int(start.wrapping_sub(step)));
        self.set_register(base + 1, Value::Int(limit));
        self.set_register(base + 2, Value::Int(step));
        self.frame_mut().at = target as usize;
        Ok(())
    }

    fn numeric_loop(&mut self, base: u8, target: u32) {
        let [Value::Int(at), Value::Int(limit), Value::Int(step)] =
            [0, 1, 2].map(|offset| self.register(base + offset))
        else {
            unreachable!("the loop was prepared");
        };
        let next = at.wrapping_add(step);
        let goes_on = if step > 0 {
            next <= limit
        } else {
            limit <= next
        };
        if goes_on {
            self.set_register(base, Value::Int(next));
            self.set_register(base + 3, Value::Int(next));
            self.frame_mut().at = target as usize;
        }
    }

    fn set_list(&mut self, table: u8, count: i16, first: u32) -> Run<()> {
        let place = self.frame().base + usize::from(table);
        let Value::Table(id) = self.thread.stack[place] else {
            unreachable!("the table was made just now");
        };
        for offset in 0..self.count(place + 1, count) {
            let number = i64::from(first) + i64::try_from(offset).expect("memory is limited");
            self.raw_set(
                id,
                Value::Int(number),
                self.thread.stack[place + 1 + offset],
            )?;
        }
        self.thread.top = self.frame().end().expect("instructions are of the program");
        Ok(())
    }

    fn make_closure(&mut self, to: u8, function: u16) -> Run<()> {
        let code = self
            .frame()
            .code
            .as_ref()
            .expect("instructions are of the program");
        let inner = code.functions[usize::from(function)].clone();
        self.room_for_closure(inner.upvalues.len())?;
        let base = self.frame().base;
        let mut upvalues = Vec::with_capacity(inner.upvalues.len());
        for source in &inner.upvalues {
            upvalues.push(if source.is_local {
                self.share(base + usize::from(source.index))
            } else {
                self.own_upvalue(source.index)
            });
        }
        let closure = self.heap.new_closure(inner, upvalues);
        self.set_register(to, Value::Closure(closure));
        Ok(())
    }

    fn varargs(&mut self, to: u8, count: i16) -> Run<()> {
        let frame = self.frame();
        let parameters = frame
            .code
            .as_ref()
            .map_or(0, |code| usize::from(code.parameters));
        let (base, function) = (frame.base, frame.function);
        let there = (base - function - 1).saturating_sub(parameters);
        let wanted = usize::try_from(count).unwrap_or(there);
        let first = base + usize::from(to);
        self.reserve(first + wanted)?;
        let from = function + 1 + parameters;
        let copied = there.min(wanted);
        self.thread.stack.copy_within(from..from + copied, first);
        self.thread.stack[first + copied..first + wanted].fill(Value::Nil);
        if count < 0 {
            self.thread.top = first + wanted;
        }
        Ok(())
    }

    /// A string for messages.
    pub(crate) fn display(&self, id: StringId) -> String {
        String::from_utf8_lossy(self.heap.string(id)).into_owned()
    }
}
