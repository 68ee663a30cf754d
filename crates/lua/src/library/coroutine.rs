//! Coroutines. Lua 5.2 manual, section 6.2.

use crate::objects::Bound;
use crate::value::{ThreadId, Value};
use crate::vm::Args;
use crate::vm::{Run, Vm};

/// Calls of `yield` are treated where calls are made.
pub(super) fn yield_outside(_: &mut Vm<'_>, _: Args) -> Run<usize> {
    unreachable!("a yield is no ordinary call")
}

pub(super) fn create(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let function = args.function(vm, 1)?;
    let thread = vm.new_thread(function)?;
    vm.push(Value::Thread(thread))?;
    Ok(1)
}

fn thread(vm: &mut Vm<'_>, args: Args) -> Run<ThreadId> {
    match args.get(vm, 1) {
        Value::Thread(id) => Ok(id),
        _ => Err(vm.argument_error(1, "coroutine expected")),
    }
}

pub(super) fn resume(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let thread = thread(vm, args)?;
    let place = vm.thread.top;
    vm.push(Value::Bool(true))?;
    let given = Args {
        first: args.first + 1,
        count: args.count - 1,
    };
    match vm.resume(thread, given)? {
        Ok(count) => Ok(count + 1),
        Err(error) => {
            vm.thread.stack[place] = error;
            vm.push(error)?;
            vm.thread.stack[place] = Value::Bool(false);
            Ok(2)
        }
    }
}

pub(super) fn running(vm: &mut Vm<'_>, _: Args) -> Run<usize> {
    vm.push(Value::Thread(vm.current))?;
    vm.push(Value::Bool(vm.current == vm.main))?;
    Ok(2)
}

pub(super) fn status(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let thread = thread(vm, args)?;
    let name = vm.thread_status(thread).name();
    vm.push_string(name.as_bytes())?;
    Ok(1)
}

pub(super) fn wrap(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let function = args.function(vm, 1)?;
    let thread = vm.new_thread(function)?;
    vm.push(Value::Thread(thread))?;
    let bound = vm.new_bound(Bound::Wrapped(thread))?;
    vm.push(Value::Bound(bound))?;
    Ok(1)
}
