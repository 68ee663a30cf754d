//! Circles of modules inside a crate: files that import each other, directly or through others.
//!
//! A module is a file. It imports another when its shipping code names a path into it (`use crate::a::B`, `super::a::f()`); a name that
//! `lib.rs` or a `mod.rs` re-exports counts as the file that it comes from, and a re-export alone is no import. What a module calls
//! in its own children does not count: it is the table of what stands in its folder, which the children's shared types may stand in,
//! too. Method calls are not seen: a type whose `impl` blocks stand in several files has one owner, and the others are behaviour above.
//!
//! Two files of one circle cannot be read, tested or moved without each other. A circle falls when the types that both sides name go to
//! a file below both. `CIRCLES_MAX` is a number as in `ratchet.rs`: it only gets smaller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Files that stand in circles, by crate, at most. A crate that is not named has none.
pub(crate) const CIRCLES_MAX: &[(&str, usize)] = &[];

/// The source files of each crate so far.
#[derive(Default)]
pub(crate) struct Circles {
    crates: BTreeMap<String, BTreeMap<ModulePath, Source>>,
}

/// `["scsi", "mode"]` for `src/scsi/mode.rs`; empty for `lib.rs`.
type ModulePath = Vec<String>;

/// One file: its paths, and the names that it takes over from others (a child sees those of its parent).
struct Source {
    /// Paths as they are written, from `crate`, `super`, `self` or a child on.
    paths: Vec<Vec<String>>,
    /// Name, and the path that it stands for.
    aliases: Vec<(String, Vec<String>)>,
}

impl Circles {
    /// Adds a source file; `shown` is its path from the repository's root.
    pub(crate) fn add(&mut self, shown: &str, text: &str) {
        let Some((package, file)) = shown
            .strip_prefix("crates/")
            .and_then(|rest| rest.split_once("/src/"))
        else {
            return;
        };
        let Some(path) = module_path(file) else {
            return;
        };
        let text = shipping_code(text);
        self.crates
            .entry(package.to_owned())
            .or_default()
            .insert(path, source(&text));
    }

    /// Compares the number of files in circles with what was reached before (`CIRCLES_MAX`).
    pub(crate) fn judge(&self, limits: &[(&str, usize)], findings: &mut Vec<String>) {
        for (package, files) in &self.crates {
            let circles = circles(files);
            let count: usize = circles.iter().map(Vec::len).sum();
            let most = limits
                .iter()
                .find(|(name, _)| name == package)
                .map_or(0, |&(_, most)| most);
            if count > most {
                findings.push(format!(
                    "crates/{package}: {count} files import each other in circles (at most {most}):{}",
                    shown(&circles)
                ));
            } else if count < most {
                findings.push(format!(
                    "crates/{package}: {count} files in circles: write {count} in place of {most} in xtask/src/circles.rs"
                ));
            }
        }
    }

    /// Returns every circle, for a reader.
    pub(crate) fn lists(&self) -> String {
        let mut text = String::new();
        for (package, files) in &self.crates {
            let circles = circles(files);
            if !circles.is_empty() {
                writeln!(
                    text,
                    "crates/{package}: files in circles:{}",
                    shown(&circles)
                )
                .expect("a string takes all");
            }
        }
        text
    }
}

fn shown(circles: &[Vec<Edges>]) -> String {
    let mut text = String::new();
    for circle in circles {
        for (module, imports) in circle {
            let imports: Vec<String> = imports.iter().map(name).collect();
            write!(text, "\n  {} -> {}", name(module), imports.join(", "))
                .expect("a string takes all");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

fn name(path: &ModulePath) -> String {
    if path.is_empty() {
        "lib".to_owned()
    } else {
        path.join("::")
    }
}

/// The module of a file of `src`; none for tests and for programs beside the library.
fn module_path(file: &str) -> Option<ModulePath> {
    let is_test = file.ends_with("tests.rs") || file.contains("tests/");
    if is_test || file.starts_with("bin/") {
        return None;
    }
    let mut path: ModulePath = file
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    let last = path.last().map(String::as_str);
    let is_root = path.len() == 1 && matches!(last, Some("lib" | "main"));
    if is_root || last == Some("mod") {
        path.pop();
    }
    Some(path)
}

/// What comes before the tests, without comments and texts.
fn shipping_code(text: &str) -> String {
    let mut code = String::new();
    let mut in_text = false;
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        let mut before = ' ';
        for c in line.chars() {
            if before == '/' && c == '/' && !in_text {
                code.pop();
                break;
            }
            let literal = before == '\'' && !in_text;
            let quote = c == '"' && before != '\\' && !literal;
            in_text ^= quote;
            if !in_text || quote {
                code.push(c);
            }
            before = if before == '\\' { ' ' } else { c };
        }
        code.push('\n');
    }
    code
}

/// Reads the paths of a file, and the names that it takes over.
fn source(code: &str) -> Source {
    let tokens = tokens(code);
    let mut found = Source {
        paths: Vec::new(),
        aliases: Vec::new(),
    };
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", |index| tokens[index]);
        if !is_name(tokens[at]) || before == "::" || before == "$" {
            at += 1;
            continue;
        }
        let mut leaves = Vec::new();
        let end = path_tree(&tokens, at, &[], &mut leaves);
        // `pub(in crate::a)` says who may look, and imports nothing.
        let looks = before == "in" && at >= 2 && tokens[at - 2] == "(";
        let exports = before == "use" && at >= 2 && ["pub", ")"].contains(&tokens[at - 2]);
        for (path, given) in leaves {
            if before == "use" {
                found.aliases.push((given, path.clone()));
            }
            if path.len() > 1 && !looks && !exports {
                found.paths.push(path);
            }
        }
        at = end.max(at + 1);
    }
    found
}

/// Names, `::`, and single signs.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if !token.trim().is_empty() {
            found.push(token);
        }
        rest = after;
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Adds each path of `a::{b::C, d as e}` with the name that it is given, and returns the token behind.
fn path_tree(
    tokens: &[&str],
    mut at: usize,
    before: &[String],
    leaves: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = path_tree(tokens, at, &path, leaves);
                    if tokens.get(at) == Some(&",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(&token) if is_name(token) || token == "*" => {
                path.push(token.to_owned());
                at += 1;
            }
            _ => return at + 1,
        }
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    // `use a::b::{self}` is `use a::b`.
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let mut given = path.last().cloned().unwrap_or_default();
    if tokens.get(at) == Some(&"as") {
        given = tokens
            .get(at + 1)
            .map(|t| (*t).to_owned())
            .unwrap_or_default();
        at += 2;
    }
    leaves.push((path, given));
    at
}

/// A module and what it imports.
type Edges = (ModulePath, Vec<ModulePath>);

/// The strongly connected sets of more than one module, with their imports inside the set.
fn circles(files: &BTreeMap<ModulePath, Source>) -> Vec<Vec<Edges>> {
    let imports: BTreeMap<&ModulePath, BTreeSet<ModulePath>> = files
        .iter()
        .map(|(module, source)| (module, imports(files, module, source)))
        .collect();
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = imports
        .keys()
        .map(|module| (*module, reach(&imports, module)))
        .collect();
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for module in imports.keys() {
        if !seen.insert(*module) || !reached[module].contains(module) {
            continue;
        }
        let members: Vec<&ModulePath> = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module))
            .copied()
            .collect();
        seen.extend(members.iter().copied());
        found.push(
            members
                .iter()
                .map(|member| {
                    let inside = imports[*member].iter().filter(|to| members.contains(to));
                    ((*member).clone(), inside.cloned().collect())
                })
                .collect(),
        );
    }
    found
}

/// All modules that can be reached from one by at least one import.
fn reach<'a>(
    imports: &'a BTreeMap<&ModulePath, BTreeSet<ModulePath>>,
    from: &ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&ModulePath> = imports[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(&imports[module]);
        }
    }
    reached
}

fn imports(
    files: &BTreeMap<ModulePath, Source>,
    module: &ModulePath,
    source: &Source,
) -> BTreeSet<ModulePath> {
    let mut found: BTreeSet<ModulePath> = source
        .paths
        .iter()
        .filter_map(|path| resolve(files, module, path, 0))
        .collect();
    found.retain(|other| other != module && parent(other).as_ref() != Some(module));
    found
}

/// How many aliases a name may go through.
const ALIASES_MAX: usize = 8;

/// The file that a path written in `module` leads to; none when it leaves the crate.
fn resolve(
    files: &BTreeMap<ModulePath, Source>,
    module: &ModulePath,
    path: &[String],
    depth: usize,
) -> Option<ModulePath> {
    let mut names = path.iter().peekable();
    let first = names.next()?;
    let mut at = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.clone(),
        "super" => parent(module)?,
        _ => {
            let mut child = module.clone();
            child.push(first.clone());
            files.contains_key(&child).then_some(child)?
        }
    };
    for name in names {
        if name == "super" {
            at = parent(&at)?;
            continue;
        }
        let mut child = at.clone();
        child.push(name.clone());
        if files.contains_key(&child) {
            at = child;
            continue;
        }
        let through = files
            .get(&at)?
            .aliases
            .iter()
            .find(|(given, _)| given == name);
        return match through {
            Some((_, path)) if depth < ALIASES_MAX => {
                resolve(files, &at, path, depth + 1).or(Some(at))
            }
            _ => Some(at),
        };
    }
    Some(at)
}

fn parent(module: &ModulePath) -> Option<ModulePath> {
    let (_, before) = module.split_last()?;
    Some(before.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Circles of files given as path and text, each as the sorted names of its modules.
    fn check(files: &[(&str, &str)], expect: &[&[&str]]) {
        let mut all = Circles::default();
        for (file, text) in files {
            all.add(&format!("crates/x/src/{file}"), text);
        }
        let found: Vec<Vec<String>> = circles(&all.crates["x"])
            .iter()
            .map(|circle| circle.iter().map(|(module, _)| name(module)).collect())
            .collect();
        assert_eq!(found, expect, "{files:?}");
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        check(
            &[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")],
            &[&["a", "b"]],
        );
        check(&[("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")], &[]);
        check(
            &[
                ("a.rs", "use crate::{\n    b::{self, B},\n    d::D,\n};"),
                ("b.rs", "fn f() { super::c::g() }"),
                ("c.rs", "fn g(a: &crate::a::A) {}"),
                ("d.rs", "use std::fmt;"),
            ],
            &[&["a", "b", "c"]],
        );
    }

    #[test]
    fn a_reexport_is_the_file_that_it_comes_from() {
        let root = (
            "lib.rs",
            "mod a;\nmod b;\npub use a::A;\npub(crate) use b::f as g;",
        );
        check(
            &[root, ("a.rs", "use crate::g;"), ("b.rs", "use crate::A;")],
            &[&["a", "b"]],
        );
        check(
            &[root, ("a.rs", "use crate::g;"), ("b.rs", "fn f() {}")],
            &[],
        );
        check(
            &[
                ("m/mod.rs", "mod n;\npub use n::N;"),
                ("m/n.rs", "use crate::o::O;"),
                ("o.rs", "use crate::m::N;"),
            ],
            &[&["m::n", "o"]],
        );
    }

    #[test]
    fn a_module_may_call_its_children() {
        let parent = ("m/mod.rs", "mod n;\nstruct M;\nfn f() { n::g() }");
        check(&[parent, ("m/n.rs", "use super::M;")], &[]);
        check(
            &[
                parent,
                ("m/n.rs", "use crate::o::O;"),
                ("o.rs", "use crate::m::n::N;"),
            ],
            &[&["m::n", "o"]],
        );
        check(
            &[
                ("m/mod.rs", "mod n;\npub(super) use n::N;"),
                ("m/n.rs", "use super::M;"),
            ],
            &[],
        );
    }

    #[test]
    fn comments_texts_tests_and_visibility_are_no_imports() {
        check(
            &[
                ("a.rs", "use crate::b::B;"),
                (
                    "b.rs",
                    "// crate::a::A\nconst T: &str = \"crate::a::A\";\npub(in crate::a) struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
                ),
                ("b/tests.rs", "use crate::a::A;"),
            ],
            &[],
        );
    }

    #[test]
    fn the_number_of_a_crate_is_exact() {
        let mut all = Circles::default();
        all.add("crates/x/src/a.rs", "use crate::b::B;");
        all.add("crates/x/src/b.rs", "use crate::a::A;");
        let check = |limits: &[(&str, usize)], expect: &[&str]| {
            let mut findings = Vec::new();
            all.judge(limits, &mut findings);
            let found = findings.first().map_or("", String::as_str);
            assert!(expect.iter().all(|part| found.contains(part)), "{found}");
            assert_eq!(findings.is_empty(), expect.is_empty(), "{found}");
        };
        check(&[], &["2 files", "at most 0", "a -> b"]);
        check(&[("x", 1)], &["at most 1"]);
        check(&[("x", 2)], &[]);
        check(&[("x", 3)], &["write 2"]);
        assert!(all.lists().contains("b -> a"));
    }
}
