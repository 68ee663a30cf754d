//! Strings. Lua 5.2 manual, section 6.4.

use crate::heap::Heap;
use crate::value::Value;
use crate::vm::Args;
use crate::vm::{Run, Vm};

/// A position counted from 1, or from the end when it is negative; 0 for one before the start.
pub(super) fn position(at: i64, length: usize) -> i64 {
    let length = i64::try_from(length).expect("memory is limited");
    if at >= 0 {
        at
    } else if at < -length {
        0
    } else {
        length + at + 1
    }
}

/// The bytes from one position to another, both included.
fn range(length: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let from = usize::try_from(position(from, length).max(1)).unwrap_or(usize::MAX);
    let to = usize::try_from(position(to, length))
        .unwrap_or(0)
        .min(length);
    if from > to {
        return 0..0;
    }
    from - 1..to
}

pub(super) fn byte(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    let from = args.int_or(vm, 2, 1)?;
    let from = position(from, text.len());
    let to = args.int_or(vm, 3, from)?;
    // The first position before the start is not moved to it, but for ranges.
    let bytes = &text[range(text.len(), from, to)];
    vm.reserve(vm.thread.top + bytes.len())?;
    for &byte in bytes {
        vm.push(Value::Int(i64::from(byte)))?;
    }
    Ok(bytes.len())
}

pub(super) fn char(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let mut text = Vec::with_capacity(args.count);
    for number in 1..=args.count {
        let value = args.int(vm, number)?;
        let byte =
            u8::try_from(value).map_err(|_| vm.argument_error(number, "value out of range"))?;
        text.push(byte);
    }
    vm.push_string(&text)?;
    Ok(1)
}

pub(super) fn len(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let length = args.bytes(vm, 1)?.len();
    vm.push(Value::Int(
        i64::try_from(length).expect("memory is limited"),
    ))?;
    Ok(1)
}

/// Pushes a copy of a string that is changed byte by byte.
fn changed(vm: &mut Vm<'_>, args: Args, change: impl Fn(&mut [u8])) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    vm.room(2 * text.len())?;
    vm.work_bytes(16 * text.len())?;
    let mut text = text.to_vec();
    change(&mut text);
    vm.push_string(&text)?;
    Ok(1)
}

pub(super) fn lower(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    changed(vm, args, <[u8]>::make_ascii_lowercase)
}

pub(super) fn upper(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    changed(vm, args, <[u8]>::make_ascii_uppercase)
}

pub(super) fn reverse(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    changed(vm, args, <[u8]>::reverse)
}

pub(super) fn rep(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    let count = args.int(vm, 2)?;
    let separator = args.bytes_or(vm, 3, b"")?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        vm.push_string(b"")?;
        return Ok(1);
    };
    let length = text
        .len()
        .saturating_add(separator.len())
        .checked_mul(count);
    let Some(length) = length.filter(|length| i32::try_from(*length).is_ok()) else {
        return Err(vm.error("resulting string too large"));
    };
    // The text is built before it becomes a string.
    vm.room(Heap::string_bytes(length).saturating_mul(2))?;
    vm.work_bytes(length)?;
    vm.work(if length == 0 { 0 } else { count })?;
    let mut result = Vec::with_capacity(length);
    for number in 0..if length == 0 { 0 } else { count } {
        if number > 0 {
            result.extend_from_slice(&separator);
        }
        result.extend_from_slice(&text);
    }
    vm.push_string(&result)?;
    Ok(1)
}

pub(super) fn sub(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    let from = args.int(vm, 2)?;
    let to = args.int_or(vm, 3, -1)?;
    let part = &text[range(text.len(), from, to)];
    vm.push_string(part)?;
    Ok(1)
}
