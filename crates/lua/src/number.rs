//! Texts of numbers, and arithmetic on integers of 64 bits.
//!
//! OpenZFS: module/lua/lcompat.c, lcompat_strtoll and lcompat_pow; module/lua/lvm.c, luaV_div (rounding, errors).

/// Reads a number; a leading zero means octal, values wrap around. `None` when any byte does not belong to it.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    // 'nan' and 'inf' are no numbers.
    if text.iter().any(|byte| matches!(byte, b'n' | b'N')) {
        return None;
    }
    let end = text.iter().rposition(|&byte| !is_space(byte))?;
    let text = &text[..=end];
    let hex = text.iter().any(|byte| matches!(byte, b'x' | b'X'));
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let mut rest = &text[start..];
    let mut negative = false;
    match rest.first() {
        Some(b'-') => {
            negative = true;
            rest = &rest[1..];
        }
        Some(b'+') if hex => rest = &rest[1..],
        _ => {}
    }
    let (base, digits) = match rest {
        [b'0', b'x' | b'X', digits @ ..] => (16, digits),
        [b'0', digits @ ..] if !digits.is_empty() => (8, digits),
        digits => (10, digits),
    };
    let value = digits_value(digits, base)?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// Reads digits of a base up to 36 without a sign; values wrap around.
pub(crate) fn digits_value(digits: &[u8], base: u32) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_i64;
    for &byte in digits {
        let digit = char::from(byte).to_digit(base)?;
        value = value
            .wrapping_mul(i64::from(base))
            .wrapping_add(i64::from(digit));
    }
    Some(value)
}

/// White space of the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0d)
}

/// An operation on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
}

/// Computes; division rounds down, everything wraps around.
///
/// # Errors
/// The message for a division by zero.
pub(crate) fn compute(operation: Arith, left: i64, right: i64) -> Result<i64, &'static str> {
    Ok(match operation {
        Arith::Add => left.wrapping_add(right),
        Arith::Sub => left.wrapping_sub(right),
        Arith::Mul => left.wrapping_mul(right),
        Arith::Div if right == 0 => return Err("attempt to divide by zero"),
        Arith::Mod if right == 0 => return Err("attempt to perform 'n%%0'"),
        Arith::Div => {
            let quotient = left.wrapping_div(right);
            let uneven = left.wrapping_rem(right) != 0;
            quotient - i64::from(uneven && (left < 0) != (right < 0))
        }
        Arith::Mod => {
            let rest = left.wrapping_rem(right);
            if rest != 0 && (rest < 0) != (right < 0) {
                rest + right
            } else {
                rest
            }
        }
        Arith::Pow => power(left, right),
    })
}

fn power(mut base: i64, mut exponent: i64) -> i64 {
    if exponent < 0 {
        return 0;
    }
    let mut result = 1_i64;
    while exponent != 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        exponent >>= 1;
        base = base.wrapping_mul(base);
    }
    result
}
