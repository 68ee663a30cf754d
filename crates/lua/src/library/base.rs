//! The basic functions. Lua 5.2 manual, section 6.1.

use crate::number::{self, is_space};
use crate::value::Value;
use crate::vm::Args;
use crate::vm::{Event, Fault, Run, Vm};

use super::{IPAIRS_STEP, NEXT};

pub(super) fn assert(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    if args.any(vm, 1)?.is_true() {
        return Ok(args.count);
    }
    let message = args.bytes_or(vm, 2, b"assertion failed!")?;
    // A message that is given is not changed.
    Err(vm.error(&String::from_utf8_lossy(&message)))
}

pub(super) fn collectgarbage(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let what = args.bytes_or(vm, 1, b"collect")?;
    let result = match &*what {
        b"collect" | b"step" => {
            let live = vm.heap.used();
            vm.collect();
            vm.work_bytes(live)?;
            if *what == *b"step" {
                Value::Bool(true)
            } else {
                Value::Int(0)
            }
        }
        b"count" => {
            let used = i64::try_from(vm.heap.used()).unwrap_or(i64::MAX);
            vm.push(Value::Int(used / 1024))?;
            vm.push(Value::Int(used % 1024))?;
            return Ok(2);
        }
        b"isrunning" => Value::Bool(true),
        b"stop" | b"restart" | b"setpause" | b"setstepmul" | b"setmajorinc" | b"generational"
        | b"incremental" => Value::Int(0),
        other => {
            let message = format!("invalid option '{}'", String::from_utf8_lossy(other));
            return Err(vm.argument_error(1, &message));
        }
    };
    vm.push(result)?;
    Ok(1)
}

pub(super) fn error(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let level = args.int_or(vm, 2, 1)?;
    let value = args.get(vm, 1);
    let (Some(text), true) = (vm.text_of(value), level > 0) else {
        return Err(Fault::Error(value));
    };
    // Level 1 is the caller of this function.
    let level = usize::try_from(level).unwrap_or(usize::MAX);
    let frames = &vm.thread.frames;
    let frame = frames
        .len()
        .checked_sub(1)
        .and_then(|last| last.checked_sub(level));
    let prefix = frame
        .map(|index| crate::vm::line_prefix(&frames[index]))
        .unwrap_or_default();
    let message = [prefix.as_bytes(), &text].concat();
    Err(vm.plain_error(&message))
}

pub(super) fn getmetatable(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let value = args.any(vm, 1)?;
    let hidden = vm.metamethod(value, Event::Metatable);
    let result = match (hidden, vm.metatable(value)) {
        (Value::Nil, Some(table)) => Value::Table(table),
        (Value::Nil, None) => Value::Nil,
        (hidden, _) => hidden,
    };
    vm.push(result)?;
    Ok(1)
}

pub(super) fn setmetatable(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let metatable = match args.get(vm, 2) {
        Value::Table(id) => Some(id),
        Value::Nil if args.count >= 2 => None,
        _ => return Err(vm.argument_error(2, "nil or table expected")),
    };
    if vm.metamethod(Value::Table(table), Event::Metatable) != Value::Nil {
        return Err(vm.error("cannot change a protected metatable"));
    }
    vm.heap.set_metatable(table, metatable);
    vm.push(Value::Table(table))?;
    Ok(1)
}

/// Calls the metamethod that replaces a function, if there is one; three values are left.
fn replaced(vm: &mut Vm<'_>, value: Value, event: Event) -> Run<bool> {
    let method = vm.metamethod(value, event);
    if method == Value::Nil {
        return Ok(false);
    }
    let place = vm.thread.top;
    vm.push(method)?;
    vm.push(value)?;
    vm.call(place, 3)?;
    Ok(true)
}

pub(super) fn ipairs(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let value = args.any(vm, 1)?;
    if replaced(vm, value, Event::Ipairs)? {
        return Ok(3);
    }
    let table = args.table(vm, 1)?;
    for value in [
        Value::Native(IPAIRS_STEP),
        Value::Table(table),
        Value::Int(0),
    ] {
        vm.push(value)?;
    }
    Ok(3)
}

pub(super) fn ipairs_step(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let next = args.int(vm, 2)?.wrapping_add(1);
    let value = vm.raw_get(table, Value::Int(next));
    if value == Value::Nil {
        vm.push(Value::Nil)?;
        return Ok(1);
    }
    vm.push(Value::Int(next))?;
    vm.push(value)?;
    Ok(2)
}

pub(super) fn next(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let key = args.get(vm, 2);
    let Some((found, looked_at)) = vm.heap.table(table).table.next(key) else {
        return Err(vm.error("invalid key to 'next'"));
    };
    vm.work(looked_at)?;
    let Some((key, value)) = found else {
        vm.push(Value::Nil)?;
        return Ok(1);
    };
    vm.push(key)?;
    vm.push(value)?;
    Ok(2)
}

pub(super) fn pairs(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let value = args.any(vm, 1)?;
    if replaced(vm, value, Event::Pairs)? {
        return Ok(3);
    }
    let table = args.table(vm, 1)?;
    for value in [Value::Native(NEXT), Value::Table(table), Value::Nil] {
        vm.push(value)?;
    }
    Ok(3)
}

pub(super) fn rawequal(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let equal = args.any(vm, 1)? == args.any(vm, 2)?;
    vm.push(Value::Bool(equal))?;
    Ok(1)
}

pub(super) fn rawlen(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let length = match args.get(vm, 1) {
        Value::Table(id) => vm.heap.table(id).table.length(),
        Value::String(id) => vm.heap.string(id).len(),
        _ => return Err(vm.argument_error(1, "table or string expected")),
    };
    vm.push(Value::Int(
        i64::try_from(length).expect("memory is limited"),
    ))?;
    Ok(1)
}

pub(super) fn rawget(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let key = args.any(vm, 2)?;
    vm.push(vm.raw_get(table, key))?;
    Ok(1)
}

pub(super) fn rawset(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let table = args.table(vm, 1)?;
    let (key, value) = (args.any(vm, 2)?, args.any(vm, 3)?);
    if key == Value::Nil {
        return Err(vm.error("table index is nil"));
    }
    vm.raw_set(table, key, value)?;
    vm.push(Value::Table(table))?;
    Ok(1)
}

pub(super) fn select(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let rest = args.count.saturating_sub(1);
    if let Value::String(id) = args.get(vm, 1)
        && vm.heap.string(id).first() == Some(&b'#')
    {
        vm.push(Value::Int(i64::try_from(rest).expect("memory is limited")))?;
        return Ok(1);
    }
    let number = args.int(vm, 1)?;
    let there = i64::try_from(rest).expect("memory is limited");
    let number = if number < 0 {
        there + 1 + number
    } else {
        number
    };
    if number < 1 {
        return Err(vm.argument_error(1, "index out of range"));
    }
    Ok(usize::try_from((there + 1 - number).max(0)).expect("it is not negative"))
}

pub(super) fn tonumber(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let result = if args.get(vm, 2) == Value::Nil {
        let value = args.any(vm, 1)?;
        if let Value::String(id) = value {
            vm.work_bytes(16 * vm.heap.string(id).len())?;
        }
        vm.to_number(value)
    } else {
        let text = args.bytes(vm, 1)?;
        let base = args.int(vm, 2)?;
        let Some(base) = u32::try_from(base)
            .ok()
            .filter(|base| (2..=36).contains(base))
        else {
            return Err(vm.argument_error(2, "base out of range"));
        };
        in_base(&text, base)
    };
    vm.push(result.map_or(Value::Nil, Value::Int))?;
    Ok(1)
}

fn in_base(text: &[u8], base: u32) -> Option<i64> {
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let end = text.iter().rposition(|&byte| !is_space(byte))?;
    let (digits, negative) = match &text[start..=end] {
        [b'-', digits @ ..] => (digits, true),
        [b'+', digits @ ..] => (digits, false),
        digits => (digits, false),
    };
    let value = number::digits_value(digits, base)?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

pub(super) fn tostring(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let value = args.any(vm, 1)?;
    push_text(vm, value)?;
    Ok(1)
}

/// Pushes the text of any value.
pub(super) fn push_text(vm: &mut Vm<'_>, value: Value) -> Run<()> {
    let method = vm.metamethod(value, Event::ToString);
    if method != Value::Nil {
        let place = vm.thread.top;
        vm.push(method)?;
        vm.push(value)?;
        return vm.call(place, 1);
    }
    let text = match value {
        Value::String(_) => return vm.push(value),
        Value::Nil => "nil".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        // No addresses: programs run alike each time.
        Value::Table(id) => format!("table: 0x{:08x}", id.0),
        Value::Closure(id) => format!("function: 0x{:08x}", id.0),
        Value::Native(number) => format!("function: builtin: {number}"),
        Value::Host(number) => format!("function: builtin: zfs: {number}"),
        Value::Bound(id) => format!("function: bound: 0x{:08x}", id.0),
        Value::Thread(id) => format!("thread: 0x{:08x}", id.0),
    };
    vm.push_string(text.as_bytes())
}

pub(super) fn type_of(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let name = args.any(vm, 1)?.type_name();
    vm.push_string(name.as_bytes())?;
    Ok(1)
}
