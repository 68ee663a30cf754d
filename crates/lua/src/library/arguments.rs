//! Arguments of library functions.

use std::rc::Rc;

use crate::value::{StringId, TableId, Value};
use crate::vm::Args;
use crate::vm::{Fault, Run, Vm};

/// Bytes that are moved in the time of a step of work.
const BYTES_PER_STEP: usize = 64;

impl Args {
    /// An argument, counted from 1; nil when it is not there.
    pub(super) fn get(self, vm: &Vm<'_>, number: usize) -> Value {
        if number > self.count {
            return Value::Nil;
        }
        vm.thread.stack[self.first + number - 1]
    }

    pub(super) fn any(self, vm: &mut Vm<'_>, number: usize) -> Run<Value> {
        if number > self.count {
            return Err(vm.argument_error(number, "value expected"));
        }
        Ok(self.get(vm, number))
    }

    fn wrong_type(self, vm: &mut Vm<'_>, number: usize, expected: &str) -> Fault {
        let found = if number > self.count {
            "no value"
        } else {
            self.get(vm, number).type_name()
        };
        vm.argument_error(number, &format!("{expected} expected, got {found}"))
    }

    pub(super) fn int(self, vm: &mut Vm<'_>, number: usize) -> Run<i64> {
        let value = self.get(vm, number);
        vm.to_number(value)
            .ok_or_else(|| self.wrong_type(vm, number, "number"))
    }

    pub(super) fn int_or(self, vm: &mut Vm<'_>, number: usize, default: i64) -> Run<i64> {
        match self.get(vm, number) {
            Value::Nil => Ok(default),
            _ => self.int(vm, number),
        }
    }

    pub(super) fn bytes(self, vm: &mut Vm<'_>, number: usize) -> Run<Rc<[u8]>> {
        let value = self.get(vm, number);
        let bytes = vm
            .text_of(value)
            .ok_or_else(|| self.wrong_type(vm, number, "string"))?;
        vm.work_bytes(bytes.len())?;
        Ok(bytes)
    }

    /// A string; a number that is given for it becomes one.
    pub(super) fn string(self, vm: &mut Vm<'_>, number: usize) -> Run<StringId> {
        if let Value::String(id) = self.get(vm, number) {
            return Ok(id);
        }
        let bytes = self.bytes(vm, number)?;
        let id = vm.string(&bytes)?;
        vm.thread.stack[self.first + number - 1] = Value::String(id);
        Ok(id)
    }

    pub(super) fn bytes_or(self, vm: &mut Vm<'_>, number: usize, default: &[u8]) -> Run<Rc<[u8]>> {
        match self.get(vm, number) {
            Value::Nil => Ok(default.into()),
            _ => self.bytes(vm, number),
        }
    }

    pub(super) fn table(self, vm: &mut Vm<'_>, number: usize) -> Run<TableId> {
        match self.get(vm, number) {
            Value::Table(id) => Ok(id),
            _ => Err(self.wrong_type(vm, number, "table")),
        }
    }

    pub(super) fn function(self, vm: &mut Vm<'_>, number: usize) -> Run<Value> {
        let value = self.get(vm, number);
        if value.type_name() == "function" {
            return Ok(value);
        }
        Err(self.wrong_type(vm, number, "function"))
    }

    /// Makes the first arguments exist, as nil where they were not given.
    pub(super) fn at_least(self, vm: &mut Vm<'_>, count: usize) -> Run<Self> {
        for _ in self.count..count {
            vm.push(Value::Nil)?;
        }
        Ok(Self {
            first: self.first,
            count: self.count.max(count),
        })
    }
}

impl Vm<'_> {
    /// Counts the work of moving or comparing bytes.
    pub(crate) fn work_bytes(&mut self, count: usize) -> Run<()> {
        self.work(count / BYTES_PER_STEP)
    }
}
