//! Tables. Lua 5.2 manual, section 6.5.

use crate::value::{TableId, Value};
use crate::vm::Args;
use crate::vm::{Event, Run, Vm};

/// The length of a table, by its metatable if that says so.
fn length(vm: &mut Vm<'_>, table: TableId) -> Run<i64> {
    let method = vm.metamethod(Value::Table(table), Event::Length);
    if method == Value::Nil {
        let length = vm.heap.table(table).table.length();
        return Ok(i64::try_from(length).expect("memory is limited"));
    }
    let place = vm.thread.top;
    vm.push(method)?;
    vm.push(Value::Table(table))?;
    vm.call(place, 1)?;
    vm.thread.top -= 1;
    let value = vm.thread.stack[place];
    vm.to_number(value)
        .ok_or_else(|| vm.error("object length is not a number"))
}

pub(super) fn concat(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let separator = args.bytes_or(vm, 2, b"")?;
    let from = args.int_or(vm, 3, 1)?;
    let to = match args.get(vm, 4) {
        Value::Nil => length(vm, table)?,
        _ => args.int(vm, 4)?,
    };
    let mut text = Vec::new();
    let mut at = from;
    while at <= to {
        let value = vm.raw_get(table, Value::Int(at));
        let Some(part) = vm.text_of(value) else {
            let kind = value.type_name();
            return Err(vm.error(&format!(
                "invalid value ({kind}) at index {at} in table for 'concat'"
            )));
        };
        vm.room(2 * (text.len() + part.len() + separator.len()))?;
        vm.work(1)?;
        vm.work_bytes(part.len())?;
        text.extend_from_slice(&part);
        if at == to {
            break;
        }
        text.extend_from_slice(&separator);
        at += 1;
    }
    vm.push_string(&text)?;
    Ok(1)
}

pub(super) fn insert(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let end = length(vm, table)?.wrapping_add(1);
    let (at, value) = match args.count {
        2 => (end, args.get(vm, 2)),
        3 => {
            let at = args.int(vm, 2)?;
            let mut to = end.max(at);
            while to > at {
                vm.work(1)?;
                let value = vm.raw_get(table, Value::Int(to - 1));
                vm.raw_set(table, Value::Int(to), value)?;
                to -= 1;
            }
            (at, args.get(vm, 3))
        }
        _ => return Err(vm.error("wrong number of arguments to 'insert'")),
    };
    vm.raw_set(table, Value::Int(at), value)?;
    Ok(0)
}

pub(super) fn remove(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let end = length(vm, table)?;
    let mut at = args.int_or(vm, 2, end)?;
    // OpenZFS: module/lua/ltablib.c, tremove
    if at != end && !(1..=end.saturating_add(1)).contains(&at) {
        return Err(vm.argument_error(1, "position out of bounds"));
    }
    vm.push(vm.raw_get(table, Value::Int(at)))?;
    while at < end {
        vm.work(1)?;
        let value = vm.raw_get(table, Value::Int(at + 1));
        vm.raw_set(table, Value::Int(at), value)?;
        at += 1;
    }
    vm.raw_set(table, Value::Int(at), Value::Nil)?;
    Ok(1)
}

pub(super) fn pack(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = vm.new_table()?;
    vm.push(Value::Table(table))?;
    for (number, offset) in (1_i64..).zip(0..args.count) {
        vm.raw_set(
            table,
            Value::Int(number),
            vm.thread.stack[args.first + offset],
        )?;
    }
    let name = vm.string(b"n")?;
    vm.push(Value::String(name))?;
    let count = i64::try_from(args.count).expect("memory is limited");
    vm.raw_set(table, Value::String(name), Value::Int(count))?;
    vm.thread.top -= 1;
    Ok(1)
}

pub(super) fn unpack(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    /// Results of one call. OpenZFS: module/lua/luaconf.h, LUAI_MAXSTACK
    const RESULTS_MAX: i64 = 1_000_000;
    let table = args.table(vm, 1)?;
    let from = args.int_or(vm, 2, 1)?;
    let to = match args.get(vm, 3) {
        Value::Nil => length(vm, table)?,
        _ => args.int(vm, 3)?,
    };
    if from > to {
        return Ok(0);
    }
    let count = to.checked_sub(from).filter(|count| *count < RESULTS_MAX);
    let Some(count) = count.and_then(|count| usize::try_from(count + 1).ok()) else {
        return Err(vm.error("too many results to unpack"));
    };
    vm.reserve(vm.thread.top + count)?;
    vm.work(count)?;
    for at in from..=to {
        vm.push(vm.raw_get(table, Value::Int(at)))?;
    }
    Ok(count)
}

/// Sorts with a heap: the number of comparisons is bounded, whatever the order function answers.
pub(super) fn sort(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let count = length(vm, table)?;
    let args = args.at_least(vm, 2)?;
    if args.get(vm, 2) != Value::Nil {
        args.function(vm, 2)?;
    }
    let order = args.first + 1;
    let mut unsorted = count / 2;
    while unsorted > 0 {
        sift(vm, table, order, unsorted, count)?;
        unsorted -= 1;
    }
    let mut end = count;
    while end > 1 {
        let (first, last) = (
            vm.raw_get(table, Value::Int(1)),
            vm.raw_get(table, Value::Int(end)),
        );
        vm.raw_set(table, Value::Int(end), first)?;
        vm.raw_set(table, Value::Int(1), last)?;
        end -= 1;
        sift(vm, table, order, 1, end)?;
    }
    check_sorted(vm, table, order, count)?;
    Ok(0)
}

/// Two elements that are each less than the other show that the order is none.
fn check_sorted(vm: &mut Vm<'_>, table: TableId, order: usize, count: i64) -> Run<()> {
    if vm.thread.stack[order] == Value::Nil || count < 2 {
        return Ok(());
    }
    for (left, right) in [(1, count), (count, 1)] {
        let (left, right) = (
            vm.raw_get(table, Value::Int(left)),
            vm.raw_get(table, Value::Int(right)),
        );
        if !less(vm, order, left, right)? {
            return Ok(());
        }
    }
    Err(vm.error("invalid order function for sorting"))
}

/// Moves an element down until none below it is greater.
fn sift(vm: &mut Vm<'_>, table: TableId, order: usize, from: i64, end: i64) -> Run<()> {
    let mut at = from;
    loop {
        let mut child = 2 * at;
        if child > end {
            return Ok(());
        }
        vm.work(8)?;
        let mut value = vm.raw_get(table, Value::Int(child));
        if child < end {
            let other = vm.raw_get(table, Value::Int(child + 1));
            if less(vm, order, value, other)? {
                child += 1;
                value = vm.raw_get(table, Value::Int(child));
            }
        }
        let here = vm.raw_get(table, Value::Int(at));
        if !less(vm, order, here, value)? {
            return Ok(());
        }
        let (here, value) = (
            vm.raw_get(table, Value::Int(at)),
            vm.raw_get(table, Value::Int(child)),
        );
        vm.raw_set(table, Value::Int(at), value)?;
        vm.raw_set(table, Value::Int(child), here)?;
        at = child;
    }
}

/// Whether one element is before another, by the function at a place of the stack if there is one.
fn less(vm: &mut Vm<'_>, order: usize, left: Value, right: Value) -> Run<bool> {
    let function = vm.thread.stack[order];
    let place = vm.thread.top;
    if function == Value::Nil {
        if let Some(less) = vm.less_with_work(left, right)? {
            return Ok(less);
        }
        let method = match vm.metamethod(left, Event::Less) {
            Value::Nil => vm.metamethod(right, Event::Less),
            method => method,
        };
        if method == Value::Nil {
            return Err(vm.order_error(left, right));
        }
        vm.push(method)?;
    } else {
        vm.push(function)?;
    }
    vm.push(left)?;
    vm.push(right)?;
    vm.call(place, 1)?;
    vm.thread.top = place;
    Ok(vm.thread.stack[place].is_true())
}
