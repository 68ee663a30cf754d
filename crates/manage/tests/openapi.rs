//! The description of the API beside the one that was promised (`docs/api/openapi.json`): what clients rely on stays.
//!
//! A change that only adds is written down with `SANBOX_BLESS=1 cargo test -p manage --test openapi`, which refuses one that breaks clients.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

const METHODS: &[&str] = &["get", "post", "put", "delete", "patch"];

/// Which side makes a value: what may be left out of it, and what may be added to it, differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Maker {
    Client,
    Server,
}

/// Compares two descriptions.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    /// Schemas that were compared by name already, which may hold themselves.
    seen: BTreeSet<(&'a str, Maker)>,
    /// What breaks clients, each with where it is.
    breaks: Vec<String>,
}

/// A schema; where it is a reference, the schema that is meant.
fn resolved<'a>(description: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str();
    match reference.and_then(|path| path.strip_prefix('#')) {
        Some(path) => description
            .pointer(path)
            .expect("a reference leads somewhere"),
        None => schema,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn names(value: &Value) -> Vec<&str> {
    list(value).iter().filter_map(Value::as_str).collect()
}

impl<'a> Comparison<'a> {
    fn of(old: &'a Value, new: &'a Value) -> Vec<String> {
        let mut comparison = Self {
            old,
            new,
            seen: BTreeSet::new(),
            breaks: Vec::new(),
        };
        for (path, calls) in entries(&old["paths"]) {
            let known = METHODS.iter().filter(|method| calls[**method].is_object());
            for method in known {
                let at = format!("{} {path}", method.to_uppercase());
                match new["paths"][path.as_str()].get(*method) {
                    Some(call) => comparison.call(&at, &calls[*method], call),
                    None => comparison.breaks.push(format!("{at}: gone")),
                }
            }
        }
        comparison.breaks
    }

    fn call(&mut self, at: &str, old: &'a Value, new: &'a Value) {
        self.parameters(at, old, new);
        let body = |call: &'a Value| &call["requestBody"]["content"]["application/json"]["schema"];
        match (body(old), body(new)) {
            (Value::Null, Value::Null) => {}
            (Value::Null, _) => self.breaks.push(format!("{at}: wants a body")),
            (_, Value::Null) => self.breaks.push(format!("{at}: takes no body")),
            (old, new) => self.schema(&format!("{at}: body"), old, new, Maker::Client),
        }
        for (status, answer) in entries(&old["responses"]) {
            let Some(now) = new["responses"].get(status) else {
                self.breaks.push(format!("{at}: never answers {status}"));
                continue;
            };
            for (kind, content) in entries(&answer["content"]) {
                let at = format!("{at}: {status}");
                match now["content"].get(kind) {
                    Some(now) => {
                        self.schema(&at, &content["schema"], &now["schema"], Maker::Server);
                    }
                    None => self.breaks.push(format!("{at}: no {kind}")),
                }
            }
        }
    }

    fn parameters(&mut self, at: &str, old: &'a Value, new: &'a Value) {
        let (old, new) = (list(&old["parameters"]), list(&new["parameters"]));
        let same = |a: &Value, b: &Value| a["name"] == b["name"] && a["in"] == b["in"];
        for parameter in old {
            let at = format!("{at}: parameter {}", parameter["name"]);
            let Some(now) = new.iter().find(|now| same(parameter, now)) else {
                self.breaks.push(format!("{at}: gone"));
                continue;
            };
            if now["required"] == true && parameter["required"] != true {
                self.breaks.push(format!("{at}: is required now"));
            }
            self.schema(&at, &parameter["schema"], &now["schema"], Maker::Client);
        }
        for parameter in new.iter().filter(|parameter| parameter["required"] == true) {
            if !old.iter().any(|known| same(parameter, known)) {
                let name = &parameter["name"];
                self.breaks
                    .push(format!("{at}: parameter {name}: is new and required"));
            }
        }
    }

    fn schema(&mut self, at: &str, old: &'a Value, new: &'a Value, maker: Maker) {
        if let Some(name) = old["$ref"].as_str()
            && !self.seen.insert((name, maker))
        {
            return;
        }
        let (old, new) = (resolved(self.old, old), resolved(self.new, new));
        if old["type"] != new["type"] || old["format"] != new["format"] {
            self.breaks.push(format!("{at}: another type"));
            return;
        }
        self.values(at, old, new, maker);
        for (name, property) in entries(&old["properties"]) {
            let at = format!("{at}.{name}");
            match new["properties"].get(name) {
                Some(now) => self.schema(&at, property, now, maker),
                None => self.breaks.push(format!("{at}: gone")),
            }
        }
        for part in ["items", "additionalProperties"] {
            if old[part].is_object() {
                self.schema(&format!("{at}[]"), &old[part], &new[part], maker);
            }
        }
        for part in ["oneOf", "allOf", "anyOf"] {
            let (old, new) = (list(&old[part]), list(&new[part]));
            if old.len() > new.len() {
                self.breaks.push(format!("{at}: a form is gone"));
            }
            for (old, new) in old.iter().zip(new) {
                self.schema(at, old, new, maker);
            }
        }
    }

    /// Values and properties that one side relies on: the server takes what clients send, and sends what clients know.
    fn values(&mut self, at: &str, old: &Value, new: &Value, maker: Maker) {
        let (sent, taken) = match maker {
            Maker::Client => (names(&old["enum"]), names(&new["enum"])),
            Maker::Server => (names(&new["enum"]), names(&old["enum"])),
        };
        for value in sent.iter().filter(|value| !taken.contains(value)) {
            if !taken.is_empty() {
                self.breaks.push(format!("{at}: value {value}"));
            }
        }
        let (was, is) = (names(&old["required"]), names(&new["required"]));
        let (relied, given, what) = match maker {
            Maker::Client => (is, was, "is required now"),
            Maker::Server => (was, is, "may be missing now"),
        };
        for name in relied.iter().filter(|name| !given.contains(name)) {
            self.breaks.push(format!("{at}.{name}: {what}"));
        }
    }
}

#[test]
fn clients_of_the_promised_api_go_on() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/api/openapi.json");
    let promised = std::fs::read_to_string(&path).expect("the promise is there");
    let promised: Value = serde_json::from_str(&promised).expect("the promise is JSON");
    let description = manage::api::description();
    let current: Value = serde_json::from_str(&description).expect("the description is JSON");
    let breaks = Comparison::of(&promised, &current);
    assert!(breaks.is_empty(), "clients break:\n{}", breaks.join("\n"));
    if std::env::var_os("SANBOX_BLESS").is_some() {
        std::fs::write(&path, format!("{description}\n")).expect("it can be written");
        return;
    }
    assert!(
        promised == current,
        "the API is not what docs/api/openapi.json says: SANBOX_BLESS=1 cargo test -p manage --test openapi writes it down"
    );
}

/// What breaks clients is found, and what does not is let through.
#[test]
fn a_break_is_found() {
    let described = json!({
        "paths": {"/a": {"get": {
            "parameters": [{"name": "limit", "in": "query", "required": false, "schema": {"type": "integer"}}],
            "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}}},
            "responses": {"200": {"content": {"application/json": {"schema": {"type": "array",
                "items": {"$ref": "#/components/schemas/Told"}}}}}},
        }}},
        "components": {"schemas": {
            "Asked": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "kind": {"type": "string", "enum": ["file", "disk"]}}},
            "Told": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "integer", "format": "int64"}, "state": {"type": "string", "enum": ["on", "off"]}}},
        }},
    });
    let get = |rest: &str| format!("/paths/~1a/get/{rest}");
    let asked = |rest: &str| format!("/components/schemas/Asked/{rest}");
    let told = |rest: &str| format!("/components/schemas/Told/{rest}");
    // Where, what is put there, and what that breaks.
    for (pointer, value, breaks) in [
        (get("responses/404"), json!({}), ""),
        (told("properties/name"), json!({"type": "string"}), ""),
        (asked("properties/size"), json!({"type": "integer"}), ""),
        (
            asked("properties/kind/enum"),
            json!(["file", "disk", "tape"]),
            "",
        ),
        ("/paths/~1a".to_owned(), json!({}), "GET /a: gone"),
        (
            get("parameters"),
            json!([]),
            "GET /a: parameter \"limit\": gone",
        ),
        (
            get("parameters/0/required"),
            json!(true),
            "GET /a: parameter \"limit\": is required now",
        ),
        (
            told("required"),
            json!([]),
            "GET /a: 200[].id: may be missing now",
        ),
        (
            told("properties/id/format"),
            json!("int32"),
            "GET /a: 200[].id: another type",
        ),
        (
            told("properties/state/enum"),
            json!(["on", "off", "lost"]),
            "GET /a: 200[].state: value lost",
        ),
        (
            asked("required"),
            json!(["name", "kind"]),
            "GET /a: body.kind: is required now",
        ),
        (
            asked("properties/kind/enum"),
            json!(["file"]),
            "GET /a: body.kind: value disk",
        ),
    ] {
        let mut changed = described.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        let parent = changed.pointer_mut(parent).expect("it is there");
        parent[key.replace("~1", "/")] = value;
        let found = Comparison::of(&described, &changed).join("; ");
        assert_eq!(found, breaks, "{pointer}");
    }
}

/// The console has a row for each call that changes something: the line that does the same in a shell, of a command that there is, or none.
#[test]
fn the_console_knows_a_line_for_each_change() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(root.join("../../web/src/lib/lines.ts")).expect("read");
    let mut changes = 0;
    for (method, path, _) in manage::api::CALLS
        .iter()
        .filter(|(method, ..)| !method.is_safe())
    {
        let path = path.strip_prefix("/api/v1").expect("of the API");
        let row = format!("  ['{method}', '{path}', ");
        assert_eq!(lines.matches(&row).count(), 1, "{row}");
        changes += 1;
    }
    assert_eq!(
        lines.matches("\n  ['").count(),
        changes,
        "a call that is gone"
    );
    for words in lines.split("=> [").skip(1) {
        let words: Vec<&str> = words.split('\'').skip(1).step_by(2).collect();
        // Options are made of lists, too.
        if words[0].starts_with("--") {
            continue;
        }
        let known = manage::commands::RULES
            .iter()
            .any(|rule| rule.tool == "sanbox" && rule.names.contains(&words[0]));
        assert!(known, "{words:?}");
    }
}
