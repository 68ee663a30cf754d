//! A list as text, a pair a line, in the form in which OpenZFS's commands print lists.

use std::fmt::Display;

use super::{NvList, NvValue};

/// Columns by which a list inside a list stands further right.
const NESTED: usize = 4;

impl NvList {
    /// Returns the pairs as lines that begin with `indent` spaces; names and strings that are not UTF-8 are shown as far as they are.
    // OpenZFS: lib/libnvpair/libnvpair.c, dump_nvlist
    #[must_use]
    pub fn to_text(&self, indent: usize) -> String {
        let mut text = String::new();
        for (name, value) in self.iter() {
            let name = String::from_utf8_lossy(name);
            value.append_text(&name, indent, &mut text);
        }
        text
    }
}

impl NvValue {
    fn append_text(&self, name: &str, indent: usize, into: &mut String) {
        let mut line = |text: String| into.push_str(&format!("{:indent$}{name}{text}\n", ""));
        match self {
            Self::Boolean => line(String::new()),
            Self::BoolValue(value) => line(format!(": {value}")),
            Self::Byte(value) | Self::U8(value) => line(format!(": {value}")),
            Self::I8(value) => line(format!(": {value}")),
            Self::I16(value) => line(format!(": {value}")),
            Self::U16(value) => line(format!(": {value}")),
            Self::I32(value) => line(format!(": {value}")),
            Self::U32(value) => line(format!(": {value}")),
            Self::I64(value) | Self::HrTime(value) => line(format!(": {value}")),
            Self::U64(value) => line(format!(": {value}")),
            Self::Double(bits) => line(format!(": {}", f64::from_bits(*bits))),
            Self::Str(value) => line(format!(": {}", quoted(value))),
            Self::StrArray(values) => numbered(values.iter().map(|value| quoted(value)), line),
            Self::ByteArray(values) | Self::U8Array(values) => numbered(values, line),
            Self::BoolArray(values) => numbered(values, line),
            Self::I8Array(values) => numbered(values, line),
            Self::I16Array(values) => numbered(values, line),
            Self::U16Array(values) => numbered(values, line),
            Self::I32Array(values) => numbered(values, line),
            Self::U32Array(values) => numbered(values, line),
            Self::I64Array(values) => numbered(values, line),
            Self::U64Array(values) => numbered(values, line),
            Self::List(list) => {
                line(":".to_owned());
                into.push_str(&list.to_text(indent + NESTED));
            }
            Self::Lists(lists) => {
                for (number, list) in lists.iter().enumerate() {
                    into.push_str(&format!("{:indent$}{name}[{number}]:\n", ""));
                    into.push_str(&list.to_text(indent + NESTED));
                }
            }
        }
    }
}

fn quoted(bytes: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(bytes))
}

fn numbered<T: Display>(values: impl IntoIterator<Item = T>, mut line: impl FnMut(String)) {
    for (number, value) in values.into_iter().enumerate() {
        line(format!("[{number}]: {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_a_line_and_lists_stand_further_right() {
        let inner = NvList::new().with("name", "tank/fs").with("guid", 7_u64);
        let mut list = NvList::new()
            .with("type", NvValue::I32(2))
            .with("ids", vec![1_u64, 2]);
        list.insert("force", NvValue::Boolean);
        list.insert("is_new", NvValue::BoolValue(true));
        list.insert("snaps", NvValue::StrArray(vec![b"a".to_vec()]));
        list.insert("child", inner.clone());
        list.insert("children", NvValue::Lists(vec![inner]));
        assert_eq!(
            list.to_text(2),
            "  type: 2\n  ids[0]: 1\n  ids[1]: 2\n  force\n  is_new: true\n  snaps[0]: 'a'\n  child:\n      \
             name: 'tank/fs'\n      guid: 7\n  children[0]:\n      name: 'tank/fs'\n      guid: 7\n"
        );
    }
}
