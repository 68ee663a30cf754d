//! Lists of names and values as text, in the form of OpenZFS's library.

use std::io::{self, Write};

use engine::stream::{NvList, NvValue};

/// Prints a list; the pairs of lists inside it stand one tab further to the right.
///
/// # Errors
/// Of `out`.
pub(crate) fn print(out: &mut dyn Write, list: &NvList, depth: usize) -> io::Result<()> {
    let tabs = "\t".repeat(depth);
    writeln!(out, "{tabs}nvlist version: 0")?;
    // The outermost list's pairs stand further right than its heading; those of inner lists too.
    let tabs = "\t".repeat(depth + 1);
    for (name, value) in list.iter() {
        let name = String::from_utf8_lossy(name);
        write!(out, "{tabs}{name}")?;
        match value {
            NvValue::Boolean => writeln!(out, " = 1")?,
            NvValue::List(inner) => {
                writeln!(out, " = (embedded nvlist)")?;
                print(out, inner, depth + 1)?;
                writeln!(out, "{tabs}(end {name})\n")?;
            }
            NvValue::Lists(lists) => {
                writeln!(out, " = (array of embedded nvlists)")?;
                for (at, inner) in lists.iter().enumerate() {
                    writeln!(out, "{tabs}(start {name}[{at}])")?;
                    print(out, inner, depth + 1)?;
                    writeln!(out, "{tabs}(end {name}[{at}])")?;
                }
            }
            scalar => writeln!(out, " ={}", text(scalar))?,
        }
    }
    Ok(())
}

/// A value behind its equals sign: each element with a space before it.
fn text(value: &NvValue) -> String {
    fn hex<T: std::fmt::LowerHex>(values: &[T]) -> String {
        values.iter().map(|v| format!(" {v:#x}")).collect()
    }
    let string = |bytes: &[u8]| format!(" {}", String::from_utf8_lossy(bytes));
    match value {
        NvValue::Boolean | NvValue::List(_) | NvValue::Lists(_) => String::new(),
        NvValue::BoolValue(v) => format!(" {}", u8::from(*v)),
        NvValue::Byte(v) | NvValue::U8(v) => hex(&[*v]),
        NvValue::I8(v) => hex(&[*v]),
        NvValue::I16(v) => hex(&[*v]),
        NvValue::U16(v) => hex(&[*v]),
        NvValue::I32(v) => hex(&[*v]),
        NvValue::U32(v) => hex(&[*v]),
        NvValue::I64(v) | NvValue::HrTime(v) => hex(&[*v]),
        NvValue::U64(v) => hex(&[*v]),
        NvValue::Str(v) => string(v),
        NvValue::Double(bits) => format!(" {}", f64::from_bits(*bits)),
        NvValue::ByteArray(v) | NvValue::U8Array(v) => hex(v),
        NvValue::I8Array(v) => hex(v),
        NvValue::I16Array(v) => hex(v),
        NvValue::U16Array(v) => hex(v),
        NvValue::I32Array(v) => hex(v),
        NvValue::U32Array(v) => hex(v),
        NvValue::I64Array(v) => hex(v),
        NvValue::U64Array(v) => hex(v),
        NvValue::BoolArray(v) => v.iter().map(|v| format!(" {}", u8::from(*v))).collect(),
        NvValue::StrArray(v) => v.iter().map(|v| string(v)).collect(),
    }
}
