//! Searches for patterns. Lua 5.2 manual, section 6.4.

use std::rc::Rc;

use crate::objects::Bound;
use crate::pattern::{Capture, Matcher, PatternError};
use crate::value::{BoundId, Value};
use crate::vm::Args;
use crate::vm::{Event, Fault, Run, Vm};

use super::string::position;

/// Steps of a search between two looks at the limit.
const STEPS: usize = 4096;

/// A text and a pattern, and what the search has used.
struct Search {
    text: Rc<[u8]>,
    pattern: Rc<[u8]>,
    /// Where the pattern's first item is: behind its `^` if there is one.
    first_item: usize,
}

/// A match: its bounds and what it captured.
struct Match {
    from: usize,
    to: usize,
    captures: Vec<Capture>,
    steps: usize,
}

impl Search {
    fn new(text: Rc<[u8]>, pattern: Rc<[u8]>) -> Self {
        let first_item = usize::from(pattern.first() == Some(&b'^'));
        Self {
            text,
            pattern,
            first_item,
        }
    }

    fn is_anchored(&self) -> bool {
        self.first_item == 1
    }

    /// The first match from a place on.
    fn find(&self, vm: &mut Vm<'_>, from: usize, whole: bool) -> Run<Option<Match>> {
        let mut from = from;
        loop {
            if let Some(found) = self.match_at(vm, from, whole)? {
                return Ok(Some(found));
            }
            if self.is_anchored() || from >= self.text.len() {
                return Ok(None);
            }
            from += 1;
        }
    }

    /// The match at a place. The limit on instructions bounds the steps.
    fn match_at(&self, vm: &mut Vm<'_>, from: usize, whole: bool) -> Run<Option<Match>> {
        let mut allowed = STEPS;
        loop {
            let mut matcher = Matcher::new(&self.text, &self.pattern[self.first_item..], allowed);
            match matcher.match_at(from) {
                Ok(None) => {
                    vm.work(matcher.steps())?;
                    return Ok(None);
                }
                Ok(Some(to)) => {
                    let captures = matcher.captured(from, to, whole);
                    let captures = captures.map_err(|error| pattern_error(vm, error))?;
                    let steps = matcher.steps();
                    vm.work(steps)?;
                    return Ok(Some(Match {
                        from,
                        to,
                        captures,
                        steps,
                    }));
                }
                // The search begins anew with twice the steps, of which the program has paid for the first half.
                Err(PatternError::Steps) => {
                    vm.work(allowed)?;
                    allowed *= 2;
                }
                Err(error) => return Err(pattern_error(vm, error)),
            }
        }
    }
}

fn pattern_error(vm: &mut Vm<'_>, error: PatternError) -> Fault {
    match error {
        PatternError::Malformed(message) => vm.error(&message),
        PatternError::Steps => Fault::TimedOut,
    }
}

fn push_captures(vm: &mut Vm<'_>, text: &[u8], captures: &[Capture]) -> Run<usize> {
    for capture in captures {
        match *capture {
            Capture::Text { from, to } => vm.push_string(&text[from..to])?,
            Capture::Position(at) => {
                vm.push(Value::Int(i64::try_from(at).expect("memory is limited")))?;
            }
        }
    }
    Ok(captures.len())
}

pub(super) fn find(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    find_or_match(vm, args, true)
}

pub(super) fn match_once(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    find_or_match(vm, args, false)
}

fn find_or_match(vm: &mut Vm<'_>, args: Args, is_find: bool) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    let pattern = args.bytes(vm, 2)?;
    let from = args.int_or(vm, 3, 1)?;
    let from = usize::try_from(position(from, text.len()).max(1)).expect("it is positive") - 1;
    if from > text.len() {
        vm.push(Value::Nil)?;
        return Ok(1);
    }
    let is_plain =
        args.get(vm, 4).is_true() || !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte));
    if is_find && is_plain {
        let found = find_plain(vm, &text[from..], &pattern)?;
        let Some(found) = found else {
            vm.push(Value::Nil)?;
            return Ok(1);
        };
        return push_bounds(vm, from + found, from + found + pattern.len());
    }
    let search = Search::new(text, pattern);
    let Some(found) = search.find(vm, from, !is_find)? else {
        vm.push(Value::Nil)?;
        return Ok(1);
    };
    let bounds = if is_find {
        push_bounds(vm, found.from, found.to)?
    } else {
        0
    };
    Ok(bounds + push_captures(vm, &search.text, &found.captures)?)
}

fn push_bounds(vm: &mut Vm<'_>, from: usize, to: usize) -> Run<usize> {
    vm.push(Value::Int(
        i64::try_from(from + 1).expect("memory is limited"),
    ))?;
    vm.push(Value::Int(i64::try_from(to).expect("memory is limited")))?;
    Ok(2)
}

/// Searches for bytes.
fn find_plain(vm: &mut Vm<'_>, text: &[u8], wanted: &[u8]) -> Run<Option<usize>> {
    let Some(&first) = wanted.first() else {
        return Ok(Some(0));
    };
    let mut from = 0;
    while let Some(candidate) = text[from..].iter().position(|&byte| byte == first) {
        vm.work(1)?;
        vm.work_bytes(candidate)?;
        from += candidate;
        if text.len() - from < wanted.len() {
            return Ok(None);
        }
        vm.work_bytes(wanted.len())?;
        if text[from..].starts_with(wanted) {
            return Ok(Some(from));
        }
        from += 1;
    }
    Ok(None)
}

pub(super) fn gmatch(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let text = args.string(vm, 1)?;
    let pattern = args.string(vm, 2)?;
    let bound = vm.new_bound(Bound::Matches {
        text,
        pattern,
        at: 0,
    })?;
    vm.push(Value::Bound(bound))?;
    Ok(1)
}

impl Vm<'_> {
    /// The next match of the iterator of `gmatch`.
    pub(crate) fn next_match(&mut self, id: BoundId) -> Run<usize> {
        let Bound::Matches { text, pattern, at } = *self.heap.bound(id) else {
            unreachable!("the caller looked at it");
        };
        let search = Search {
            text: self.bytes(text),
            pattern: self.bytes(pattern),
            // A pattern of `gmatch` cannot be anchored.
            first_item: 0,
        };
        let found = if at > search.text.len() {
            None
        } else {
            search.find(self, at, true)?
        };
        let Some(found) = found else {
            let at = search.text.len() + 1;
            self.heap
                .set_bound(id, Bound::Matches { text, pattern, at });
            return Ok(0);
        };
        let at = found.to + usize::from(found.to == found.from);
        self.heap
            .set_bound(id, Bound::Matches { text, pattern, at });
        push_captures(self, &search.text, &found.captures)
    }
}

pub(super) fn gsub(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let text = args.bytes(vm, 1)?;
    let pattern = args.bytes(vm, 2)?;
    let replacement = match args.get(vm, 3) {
        value @ (Value::Table(_) | Value::String(_) | Value::Int(_)) => value,
        value if value.type_name() == "function" => value,
        _ => return Err(vm.argument_error(3, "string/function/table expected")),
    };
    let limit = i64::try_from(text.len() + 1).expect("memory is limited");
    let limit = args.int_or(vm, 4, limit)?;
    let search = Search::new(text, pattern);
    let text = search.text.clone();
    let mut result = Vec::new();
    let (mut at, mut count) = (0, 0);
    while count < limit {
        let found = search.match_at(vm, at, true)?;
        if let Some(found) = &found {
            count += 1;
            vm.work(found.steps / 16 + 1)?;
            replace(vm, &text, found, replacement, &mut result)?;
        }
        match found {
            Some(found) if found.to > at => at = found.to,
            _ if at < text.len() => {
                result.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if search.is_anchored() {
            break;
        }
        vm.room(2 * result.len())?;
    }
    result.extend_from_slice(text.get(at..).unwrap_or_default());
    vm.room(2 * result.len())?;
    vm.push_string(&result)?;
    vm.push(Value::Int(count))?;
    Ok(2)
}

/// Appends what takes the place of a match.
fn replace(
    vm: &mut Vm<'_>,
    text: &[u8],
    found: &Match,
    replacement: Value,
    result: &mut Vec<u8>,
) -> Run<()> {
    let place = vm.thread.top;
    let value = match replacement {
        Value::String(_) | Value::Int(_) => return expand(vm, text, found, replacement, result),
        Value::Table(table) => {
            push_captures(vm, text, &found.captures[..1])?;
            lookup(vm, table, place)?
        }
        function => {
            vm.push(function)?;
            push_captures(vm, text, &found.captures)?;
            vm.call(place, 1)?;
            vm.thread.stack[place]
        }
    };
    vm.thread.top = place;
    if !value.is_true() {
        result.extend_from_slice(&text[found.from..found.to]);
        return Ok(());
    }
    let Some(bytes) = vm.text_of(value) else {
        return Err(vm.error(&format!(
            "invalid replacement value (a {})",
            value.type_name()
        )));
    };
    vm.room(2 * (result.len() + bytes.len()))?;
    vm.work_bytes(bytes.len())?;
    result.extend_from_slice(&bytes);
    Ok(())
}

/// Looks up the key at the top of the stack, with metamethods.
fn lookup(vm: &mut Vm<'_>, table: crate::value::TableId, place: usize) -> Run<Value> {
    let key = vm.thread.stack[place];
    let mut object = Value::Table(table);
    loop {
        vm.work(16)?;
        let found = match object {
            Value::Table(id) => vm.raw_get(id, key),
            _ => Value::Nil,
        };
        if found != Value::Nil {
            return Ok(found);
        }
        let method = vm.metamethod(object, Event::Index);
        match method {
            Value::Nil => return Ok(Value::Nil),
            Value::Table(_) | Value::String(_) => object = method,
            function => {
                vm.thread.top = place;
                vm.push(function)?;
                vm.push(object)?;
                vm.kept.push(key);
                let pushed = vm.push(key);
                vm.kept.pop();
                pushed?;
                vm.call(place, 1)?;
                return Ok(vm.thread.stack[place]);
            }
        }
    }
}

/// Appends a replacement text, in which `%1` stands for a capture.
fn expand(
    vm: &mut Vm<'_>,
    text: &[u8],
    found: &Match,
    replacement: Value,
    result: &mut Vec<u8>,
) -> Run<()> {
    let template = vm.text_of(replacement).expect("it is text");
    vm.room(2 * (result.len() + template.len()))?;
    vm.work_bytes(template.len())?;
    let mut bytes = template.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            result.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'%') => result.push(b'%'),
            Some(b'0') => {
                vm.room(2 * (result.len() + found.to - found.from))?;
                result.extend_from_slice(&text[found.from..found.to]);
            }
            Some(digit @ b'1'..=b'9') => {
                let number = usize::from(digit - b'1');
                match found.captures.get(number) {
                    Some(Capture::Text { from, to }) => {
                        vm.room(2 * (result.len() + to - from))?;
                        vm.work_bytes(to - from)?;
                        result.extend_from_slice(&text[*from..*to]);
                    }
                    Some(Capture::Position(at)) => {
                        result.extend_from_slice(at.to_string().as_bytes());
                    }
                    None => return Err(vm.error(&format!("invalid capture index %{}", number + 1))),
                }
            }
            _ => return Err(vm.error("invalid use of '%' in replacement string")),
        }
    }
    Ok(())
}
