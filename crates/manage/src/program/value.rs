//! What a program returns, in the form of a list of names and values, as text and as JSON.
//!
//! OpenZFS: module/zfs/zcp.c, zcp_lua_to_nvlist_impl (rules, texts); lib/libnvpair/libnvpair.c, dump_nvlist, and libnvpair_json.c (forms).

use lua::{DEPTH_MAX, Data};

/// A value outside of programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramValue {
    /// Nothing: a name without a value.
    Nil,
    /// A truth value.
    Bool(bool),
    /// A number.
    Int(i64),
    /// Bytes, without zero bytes.
    String(Vec<u8>),
    /// Names and values.
    List(Vec<(Vec<u8>, Self)>),
}

/// A text of C ends before its first zero byte.
fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default()
        .to_vec()
}

impl ProgramValue {
    /// Converts what a program returned.
    ///
    /// # Errors
    /// The message: something has no form outside of programs, or keys of a table are alike there.
    pub(super) fn of(data: &Data) -> Result<Self, Vec<u8>> {
        Self::named(data, b"return")
    }

    fn named(data: &Data, name: &[u8]) -> Result<Self, Vec<u8>> {
        Ok(match data {
            Data::Nil => Self::Nil,
            Data::Bool(value) => Self::Bool(*value),
            Data::Int(value) => Self::Int(*value),
            Data::String(bytes) => Self::String(until_zero(bytes)),
            Data::Table(pairs) => Self::list(pairs)?,
            Data::TooDeep => {
                return Err(
                    format!("Maximum table depth ({DEPTH_MAX}) exceeded for table").into_bytes(),
                );
            }
            other => {
                let message = format!("Invalid value type '{}' for key '", other.type_name());
                return Err([message.as_bytes(), name, b"'"].concat());
            }
        })
    }

    fn list(pairs: &[(Data, Data)]) -> Result<Self, Vec<u8>> {
        let mut list: Vec<(Vec<u8>, Self)> = Vec::with_capacity(pairs.len());
        let mut seen = std::collections::BTreeSet::new();
        for (key, value) in pairs {
            let name = match key {
                Data::String(bytes) => until_zero(bytes),
                Data::Bool(value) => value.to_string().into_bytes(),
                Data::Int(value) => value.to_string().into_bytes(),
                other => {
                    return Err(
                        format!("Invalid key type '{}' in table", other.type_name()).into_bytes()
                    );
                }
            };
            if !seen.insert(name.clone()) {
                return Err([b"Collision of key '".as_slice(), &name, b"' in table"].concat());
            }
            let value = Self::named(value, &name)?;
            list.push((name, value));
        }
        Ok(Self::List(list))
    }
}

/// The lines that show a value under its name, indented by so many columns.
#[must_use]
pub fn text(name: &[u8], value: &ProgramValue, indent: usize) -> Vec<u8> {
    let mut lines = vec![b' '; indent];
    lines.extend_from_slice(name);
    match value {
        ProgramValue::Nil => {}
        ProgramValue::Bool(value) => lines.extend_from_slice(format!(": {value}").as_bytes()),
        ProgramValue::Int(value) => lines.extend_from_slice(format!(": {value}").as_bytes()),
        ProgramValue::String(text) => {
            lines.extend_from_slice(b": '");
            lines.extend_from_slice(text);
            lines.push(b'\'');
        }
        ProgramValue::List(list) => {
            lines.extend_from_slice(b":\n");
            for (name, value) in list {
                lines.extend(text(name, value, indent + 4));
            }
            return lines;
        }
    }
    lines.push(b'\n');
    lines
}

/// The JSON form of a value; names without a value are true there.
#[must_use]
pub fn json(value: &ProgramValue) -> serde_json::Value {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match value {
        ProgramValue::Nil => serde_json::Value::Bool(true),
        ProgramValue::Bool(value) => (*value).into(),
        ProgramValue::Int(value) => (*value).into(),
        ProgramValue::String(text) => lossy(text).into(),
        ProgramValue::List(list) => list
            .iter()
            .map(|(name, value)| (lossy(name), json(value)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(data: &Data, expect: &str) {
        assert_eq!(ProgramValue::of(data), Err(expect.as_bytes().to_vec()));
    }

    #[test]
    fn values_are_shown_as_lists() {
        let data = Data::Table(vec![
            (Data::text("baz"), Data::Int(2)),
            (Data::text("foo"), Data::text("bar")),
            (
                Data::Int(1),
                Data::Table(vec![(Data::Bool(true), Data::Bool(false))]),
            ),
            (Data::text("empty"), Data::Table(vec![])),
        ]);
        let value = ProgramValue::of(&data).expect("it has a form");
        let shown = "    return:\n        baz: 2\n        foo: 'bar'\n        1:\n            true: false\n        empty:\n";
        assert_eq!(String::from_utf8_lossy(&text(b"return", &value, 4)), shown);
        assert_eq!(
            json(&value).to_string(),
            r#"{"baz":2,"foo":"bar","1":{"true":false},"empty":{}}"#
        );
        assert_eq!(text(b"return", &ProgramValue::Nil, 4), b"    return\n");
    }

    #[test]
    fn what_has_no_form_is_refused() {
        error(
            &Data::Other("function"),
            "Invalid value type 'function' for key 'return'",
        );
        error(
            &Data::Table(vec![(Data::Other("table"), Data::Int(1))]),
            "Invalid key type 'table' in table",
        );
        error(
            &Data::TooDeep,
            "Maximum table depth (20) exceeded for table",
        );
        let twice = Data::Table(vec![
            (Data::Int(1), Data::Int(0)),
            (Data::text("1"), Data::Int(0)),
        ]);
        error(&twice, "Collision of key '1' in table");
    }
}
