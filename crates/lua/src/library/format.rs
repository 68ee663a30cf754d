//! `string.format`. Lua 5.2 manual, section 6.4; there are no fractions.

use crate::vm::Args;
use crate::vm::{Run, Vm};

use super::base::push_text;

/// A directive: flags, width and precision.
#[derive(Default)]
struct Directive {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn format(vm: &mut Vm<'_>, args: Args) -> Run<usize> {
    let template = args.bytes(vm, 1)?;
    let mut result = Vec::new();
    let mut at = 0;
    let mut argument = 1;
    while let Some(&byte) = template.get(at) {
        at += 1;
        if byte != b'%' {
            result.push(byte);
            continue;
        }
        if template.get(at) == Some(&b'%') {
            at += 1;
            result.push(b'%');
            continue;
        }
        argument += 1;
        if argument > args.count {
            return Err(vm.argument_error(argument, "no value"));
        }
        let directive = directive(vm, &template, &mut at)?;
        let conversion = template.get(at).copied().unwrap_or(0);
        at += 1;
        let text = convert(vm, args, argument, &directive, conversion)?;
        vm.room(2 * (result.len() + text.len()))?;
        vm.work_bytes(text.len())?;
        result.extend_from_slice(&text);
    }
    vm.push_string(&result)?;
    Ok(1)
}

fn directive(vm: &mut Vm<'_>, template: &[u8], at: &mut usize) -> Run<Directive> {
    let mut directive = Directive::default();
    let start = *at;
    while let Some(&byte) = template.get(*at) {
        match byte {
            b'-' => directive.left = true,
            b'+' => directive.plus = true,
            b' ' => directive.space = true,
            b'#' => directive.alternate = true,
            b'0' => directive.zero = true,
            _ => break,
        }
        *at += 1;
    }
    // Each flag once. OpenZFS: module/lua/lstrlib.c, scanformat
    if *at - start > 5 {
        return Err(vm.error("invalid format (repeated flags)"));
    }
    directive.width = number(template, at);
    if template.get(*at) == Some(&b'.') {
        *at += 1;
        directive.precision = Some(number(template, at));
    }
    if template.get(*at).is_some_and(u8::is_ascii_digit) {
        return Err(vm.error("invalid format (width or precision too long)"));
    }
    Ok(directive)
}

/// A number of up to two digits.
fn number(template: &[u8], at: &mut usize) -> usize {
    let mut value = 0;
    for _ in 0..2 {
        let Some(digit) = template.get(*at).filter(|byte| byte.is_ascii_digit()) else {
            break;
        };
        value = value * 10 + usize::from(digit - b'0');
        *at += 1;
    }
    value
}

fn convert(
    vm: &mut Vm<'_>,
    args: Args,
    argument: usize,
    directive: &Directive,
    conversion: u8,
) -> Run<Vec<u8>> {
    Ok(match conversion {
        b'c' => {
            let value = args.int(vm, argument)?;
            let byte = value.to_le_bytes()[0];
            directive.pad(vec![byte])
        }
        b'd' | b'i' => {
            let value = args.int(vm, argument)?;
            let sign = match value {
                ..0 => "-",
                _ if directive.plus => "+",
                _ if directive.space => " ",
                _ => "",
            };
            directive.number(sign, value.unsigned_abs().to_string())
        }
        b'u' => directive.number("", args.int(vm, argument)?.cast_unsigned().to_string()),
        b'o' => {
            let digits = format!("{:o}", args.int(vm, argument)?);
            directive.number(
                "",
                if directive.alternate {
                    format!("0{digits}")
                } else {
                    digits
                },
            )
        }
        b'x' | b'X' => {
            let value = args.int(vm, argument)?;
            let prefix = if directive.alternate && value != 0 {
                "0x"
            } else {
                ""
            };
            let text = directive.number(prefix, format!("{value:x}"));
            if conversion == b'X' {
                text.to_ascii_uppercase()
            } else {
                text
            }
        }
        b'q' => quoted(&args.bytes(vm, argument)?),
        b's' => {
            let value = args.any(vm, argument)?;
            let place = vm.thread.top;
            push_text(vm, value)?;
            let text = vm.text_of(vm.thread.stack[place]);
            vm.thread.top = place;
            let Some(text) = text else {
                return Err(vm.error("'tostring' must return a string to 'format'"));
            };
            let length = directive.precision.unwrap_or(text.len()).min(text.len());
            directive.pad(text[..length].to_vec())
        }
        other => {
            let option = char::from(other);
            return Err(vm.error(&format!("invalid option '%{option}' to 'format'")));
        }
    })
}

impl Directive {
    fn pad(&self, text: Vec<u8>) -> Vec<u8> {
        let missing = self.width.saturating_sub(text.len());
        let padding = vec![b' '; missing];
        if self.left {
            [text, padding].concat()
        } else {
            [padding, text].concat()
        }
    }

    /// Digits with a sign or prefix before them.
    fn number(&self, prefix: &str, digits: String) -> Vec<u8> {
        let zeros = match self.precision {
            Some(precision) => precision.saturating_sub(digits.len()),
            None if self.zero && !self.left => {
                self.width.saturating_sub(prefix.len() + digits.len())
            }
            None => 0,
        };
        self.pad(format!("{prefix}{}{digits}", "0".repeat(zeros)).into_bytes())
    }
}

/// A text that reads as the string.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut result = vec![b'"'];
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'"' | b'\\' | b'\n' => result.extend_from_slice(&[b'\\', byte]),
            0..0x20 | 0x7f => {
                let next_is_digit = text.get(at + 1).is_some_and(u8::is_ascii_digit);
                let escape = if next_is_digit {
                    format!("\\{byte:03}")
                } else {
                    format!("\\{byte}")
                };
                result.extend_from_slice(escape.as_bytes());
            }
            _ => result.push(byte),
        }
    }
    result.push(b'"');
    result
}
