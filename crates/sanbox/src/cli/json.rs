//! The JSON forms of OpenZFS 2.3 (`-j`, `--json-int`): an envelope naming the command and the
//! version of its form, numbers as strings unless asked for as integers.

use serde_json::{Map, Value, json};

/// Wraps the answer of a command: `zpool list` under `pools`, for instance.
pub(crate) fn envelope(command: &str, key: &str, content: Map<String, Value>) -> String {
    let whole = json!({
        "output_version": { "command": command, "vers_major": 0, "vers_minor": 1 },
        key: content,
    });
    whole.to_string()
}

/// A text that is a number becomes a number with `--json-int`.
pub(crate) fn text(value: &str, integers: bool) -> Value {
    if integers && let Ok(number) = value.parse::<u64>() {
        return Value::from(number);
    }
    Value::from(value)
}

/// A property as these forms write it.
pub(crate) fn property(value: &str, source: &str, integers: bool) -> Value {
    let (kind, data) = match source {
        "-" => ("NONE", "-"),
        "default" => ("DEFAULT", "-"),
        "local" => ("LOCAL", "-"),
        "temporary" => ("TEMPORARY", "-"),
        "received" => ("RECEIVED", "-"),
        inherited => (
            "INHERITED",
            inherited.strip_prefix("inherited from ").unwrap_or("-"),
        ),
    };
    json!({ "value": text(value, integers), "source": { "type": kind, "data": data } })
}
