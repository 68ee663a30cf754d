//! Programs and what comes of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::program::run_with;
use crate::{CallError, Data, Failure, Host, Program, Returned, Step};

/// A host with `echo(...)`, `refuse(...)` and `count(n)`, an iterator.
struct Echo;

impl Host for Echo {
    fn call(&mut self, function: u16, arguments: Vec<Data>) -> Result<Vec<Data>, CallError> {
        match function {
            0 => Ok(arguments),
            1 => Err(CallError::Argument(1, "no such dataset 'x'".into())),
            _ => Ok(vec![Data::Iterator(7, b"0".to_vec())]),
        }
    }

    fn next(&mut self, iterator: u16, cursor: &[u8]) -> Result<Step, CallError> {
        assert_eq!(iterator, 7);
        let at: i64 = String::from_utf8_lossy(cursor).parse().expect("a number");
        let values = if at < 3 {
            vec![Data::Int(at + 1)]
        } else {
            vec![]
        };
        Ok(Step {
            cursor: (at + 1).to_string().into_bytes(),
            values,
        })
    }
}

const MIB: usize = 1 << 20;

fn run_limited(
    text: &str,
    instructions_max: u64,
    memory_bytes_max: usize,
) -> Result<Returned, Failure> {
    let program = Program {
        text: text.as_bytes(),
        argument: Data::Table(vec![(
            Data::text("argv"),
            Data::Table(vec![(Data::Int(1), Data::text("10000"))]),
        )]),
        functions: &[("host.echo", 0), ("host.refuse", 1), ("host.count", 2)],
        globals: &[("EINVAL", 22)],
        instructions_max,
        memory_bytes_max,
        cancel: Arc::new(AtomicBool::new(false)),
    };
    run_with(&program, &mut Echo, false)
}

fn run(text: &str) -> Result<Returned, Failure> {
    run_limited(text, 10_000_000, 10 * MIB)
}

/// Runs twice, the second time with a collection at each allocation.
fn check(text: &str, expect: &Data) {
    assert_eq!(run(text), Ok(Returned::One(expect.clone())), "{text}");
    let program = Program {
        text: text.as_bytes(),
        argument: Data::Nil,
        functions: &[("host.echo", 0), ("host.refuse", 1), ("host.count", 2)],
        globals: &[("EINVAL", 22)],
        instructions_max: 10_000_000,
        memory_bytes_max: 10 * MIB,
        cancel: Arc::new(AtomicBool::new(false)),
    };
    assert_eq!(
        run_with(&program, &mut Echo, true),
        Ok(Returned::One(expect.clone())),
        "{text}"
    );
}

fn int(text: &str, expect: i64) {
    check(text, &Data::Int(expect));
}

fn text(program: &str, expect: &str) {
    check(program, &Data::text(expect));
}

fn error(program: &str, expect: &str) {
    match run(program) {
        Err(Failure::Error(message) | Failure::Syntax(message)) => {
            let message = String::from_utf8_lossy(&message).into_owned();
            assert!(message.contains(expect), "{program:.200}: {message}");
        }
        other => panic!("{program:.200}: {other:?}"),
    }
}

#[test]
fn numbers_are_integers_that_wrap_around() {
    int("return 7 / 2", 3);
    int("return -7 / 2", -4);
    int("return -7 % 3", 2);
    int("return 7 % -3", -2);
    int("return 2 ^ 10", 1024);
    int("return 2 ^ -1", 0);
    int("return 18446744073709551615 + 1", 0);
    int("return 010 + 0x10", 24);
    int("return '10' + 5", 15);
    int("return -0x8000000000000000 / -1", i64::MIN);
    int("return 2 ^ 3 ^ 2", 512);
    int("return -2 ^ 2", -4);
    for number in ["1.0", "1.5", "-1.5", "1e3", "08", "0x", "3x"] {
        error(&format!("return {number}"), "malformed number near");
    }
    error("return 1 / 0", "attempt to divide by zero");
    error("return 1 % 0", "attempt to perform 'n%%0'");
}

#[test]
fn statements() {
    int(
        "local s = 0 for i = 1, 10 do if i % 2 == 0 then s = s + i end end return s",
        30,
    );
    int(
        "local s = 0 for i = 10, 1, -3 do s = s * 10 + i end return s",
        10741,
    );
    int(
        "local i = 0 while true do i = i + 1 if i > 5 then break end end return i",
        6,
    );
    int(
        "local i = 0 repeat local j = i i = i + 1 until j >= 3 return i",
        4,
    );
    int(
        "local t = {10, 20, 30, x = 1, [7] = 2; 40} return #t * 1000 + t[4] + t.x + t[7]",
        4043,
    );
    int(
        "local a, b, c = (function() return 1, 2, 3 end)() return a * 100 + b * 10 + c",
        123,
    );
    int(
        "local a, b = ((function() return 1, 2 end)()) return b == nil and a or 9",
        1,
    );
    int("local i, t = 1, {} i, t[i] = i + 1, 20 return t[1] + i", 22);
    int(
        "a = {} a.b = {c = 5} function a.b.f(x) return x + 1 end function a.b:g(x) return self.c + x end return a.b.f(1) + a.b:g(2)",
        9,
    );
    int(
        "for i = 1, 3 do for j = 1, 3 do if j == 2 then goto continue end x = (x or 0) + j ::continue:: end end return x",
        12,
    );
    int(
        "local n = 0 ::top:: n = n + 1 if n < 5 then goto top end return n",
        5,
    );
    int("return select('#', table.unpack({1, nil, 3}, 1, 3))", 3);
    int(
        "local function f(...) local a, b = ... return select('#', ...) * 100 + a + b end return f(1, 2, 3)",
        303,
    );
    text("return 1 .. 2 .. 'a' .. -3", "12a-3");
    text("return not nil and (false or nil or 'x') and 'y'", "y");
    check(
        "return 1 < 2 and 'a' < 'b' and not (2 <= 1) and 1 ~= '1'",
        &Data::Bool(true),
    );
    check("return nil == false", &Data::Bool(false));
    check("local a = nil return a and a.b", &Data::Nil);
    error(
        "goto nowhere",
        "no visible label 'nowhere' for <goto> at line 1",
    );
    error("break", "<break> at line 1 not inside a loop");
    error(
        "do goto x; local a ::x:: print(a) end",
        "jumps into the scope of local 'a'",
    );
}

#[test]
fn long_lists_and_many_constants() {
    let numbers: Vec<String> = (1..=400).map(|number| number.to_string()).collect();
    int(
        &format!("local t = {{{}}} return #t + t[400]", numbers.join(",")),
        800,
    );
    let sum = numbers.join("+x+");
    int(&format!("x = 1 return {sum}"), 80_200 + 399);
    let chain = "a.".repeat(2000);
    error(&format!("a = {{}} return {chain}b"), "attempt to index");
    let joined = vec!["'x'"; 15].join("..");
    text(&format!("return {joined}"), &"x".repeat(15));
}

#[test]
fn closures_share_variables() {
    int(
        "local function counter() local n = 0 return function() n = n + 1 return n end end local a, b = counter(), counter() a() \
        a() return a() * 10 + b()",
        31,
    );
    int(
        "local fs = {} for i = 1, 3 do fs[i] = function() i = i + 1 return i end end fs[1]() return fs[1]() * 10 + fs[2]()",
        33,
    );
    int(
        "local fs = {} local j = 0 while j < 3 do j = j + 1 local k = j fs[j] = function() return k end if j == 2 then break end \
        end return fs[1]() * 10 + fs[2]()",
        12,
    );
    int(
        "local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end return fib(15)",
        610,
    );
    int(
        "local x = 1 local function f() x = x + 1 return x end local t = {f(), f(), f()} return t[1] * 100 + t[2] * 10 + t[3]",
        234,
    );
}

#[test]
fn metatables() {
    int(
        "local t = setmetatable({}, {__index = function(t, k) return k * 2 end}) return t[21]",
        42,
    );
    int(
        "local t = setmetatable({}, {__add = function(a, b) return 7 end, __call = function(self, x) return x + 1 end}) return (t \
        + 1) * 10 + t(4)",
        75,
    );
    int(
        "local mt = {__lt = function(a, b) return a.v < b.v end} local a, b = setmetatable({v = 1}, mt), setmetatable({v = 2}, \
        mt) return (a < b and 1 or 0) + (a <= b and 2 or 0) + (a > b and 4 or 0)",
        3,
    );
    text(
        "local mt = {__concat = function(a, b) return 'c' end} local a = setmetatable({}, mt) return 'x' .. 'y' .. a .. 'z'",
        "xyc",
    );
    text(
        "return tostring(setmetatable({}, {__tostring = function() return 'me' end}))",
        "me",
    );
    int(
        "local t = setmetatable({}, {__len = function() return 5 end}) return #t",
        5,
    );
    int(
        "local log = {} local t = setmetatable({}, {__newindex = function(t, k, v) rawset(t, k, v + 1) end}) t.a = 1 t.a = 5 return t.a",
        5,
    );
    error(
        "local t = setmetatable({}, {}) getmetatable(t).__index = getmetatable(t) setmetatable(getmetatable(t), getmetatable(t)) \
        return t.x",
        "loop in gettable",
    );
}

#[test]
fn coroutines() {
    int(
        "local co = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return co(1) * 100 + co(21)",
        242,
    );
    text(
        "local co = coroutine.create(function() error('oops') end) local ok, e = coroutine.resume(co) return tostring(ok) .. e .. \
        coroutine.status(co)",
        "false[string \"channel program\"]:1: oopsdead",
    );
    text(
        "local co = coroutine.create(function() string.gsub('a', '.', coroutine.yield) end) return select(2, coroutine.resume(co))",
        "attempt to yield across a C-call boundary",
    );
    int(
        "local t = setmetatable({}, {__index = function(t, k) return coroutine.yield(k) end}) local co = \
        coroutine.wrap(function() return t[5] + 1 end) return co() * 100 + co(41)",
        542,
    );
    int("local co = coroutine.wrap(coroutine.yield) return co(3)", 3);
    error(
        "coroutine.yield(1)",
        "attempt to yield from outside a coroutine",
    );
    text(
        "local function f() local co = coroutine.create(f) return coroutine.resume(co) end f = f local co = coroutine.create(f) \
        local ok, e = coroutine.resume(co) return tostring(ok)",
        "true",
    );
    text(
        "local depth = 0 local function f() depth = depth + 1 return coroutine.resume(coroutine.create(f)) end f() return \
        tostring(depth < 25)",
        "true",
    );
}

#[test]
fn strings() {
    text("return ('x'):rep(3, '-')", "x-x-x");
    text(
        "return (string.gsub('hello world', '(%w+)', '<%1>'))",
        "<hello> <world>",
    );
    text("return (string.gsub('abc', '', '-'))", "-a-b-c-");
}

#[test]
fn results_that_are_several_values_cannot_leave() {
    assert_eq!(run("return 1, 2"), Ok(Returned::Many));
    assert_eq!(run("return"), Ok(Returned::Nothing));
}

#[test]
fn string_library() {
    text(
        "return table.concat({string.match('key = value', '^(%w+)%s*=%s*(%w+)$')}, '|')",
        "key|value",
    );
    text(
        "return string.format('%5d|%-5s|%05d|%x|%q', 42, 'ab', -42, 255, 'a\\n\"')",
        "   42|ab   |-0042|ff|\"a\\\n\\\"\"",
    );
    text(
        "return (string.gsub('THE (quick) fox', '%((%w+)%)', function(s) return s:upper() end))",
        "THE QUICK fox",
    );
    text(
        "return string.sub('hello', -3, -2) .. string.byte('A') .. string.char(66, 67)",
        "ll65BC",
    );
    int("return (string.find('a.b', '.', 2, true))", 2);
    int(
        "local n = 0 for w in string.gmatch('one two three', '%a+') do n = n + #w end return n",
        11,
    );
    text(
        "return string.match('THE (quick (brown)) fox', '%b()')",
        "(quick (brown))",
    );
    text(
        "return (string.gsub('THE (quick) fox', '%f[%a]%a+', 'X'))",
        "X (X) X",
    );
    error("string.rep('x', 1 << 2)", "unexpected symbol");
    error(
        "return string.rep()",
        "bad argument #1 to 'rep' (string expected, got no value)",
    );
    error(
        "return ('x'):rep({})",
        "bad argument #1 to 'rep' (number expected, got table)",
    );
    error(
        "return string.match('a', '[a')",
        "malformed pattern (missing ']')",
    );
}

#[test]
fn what_is_not_there() {
    for name in [
        "dofile",
        "loadfile",
        "load",
        "loadstring",
        "pcall",
        "xpcall",
        "print",
        "require",
        "os",
        "io",
        "math",
        "debug",
    ] {
        check(&format!("return {name}"), &Data::Nil);
    }
    check("return string.dump", &Data::Nil);
    error("\u{1b}Lua", "unexpected symbol near 'char(27)'");
}

#[test]
fn error_texts_name_things() {
    error(
        "abc = nil; abc.deref = 1",
        "attempt to index global 'abc' (a nil value)",
    );
    error(
        "abc = nil; abc()",
        "attempt to call global 'abc' (a nil value)",
    );
    error(
        "local t = {} t.x.y = 1",
        "attempt to index field 'x' (a nil value)",
    );
    error(
        "local t = {} t:nothing()",
        "attempt to call method 'nothing' (a nil value)",
    );
    error(
        "local a = {} return a + 1",
        "attempt to perform arithmetic on local 'a' (a table value)",
    );
    error(
        "local a = {} return 'x' .. a",
        "attempt to concatenate local 'a' (a table value)",
    );
    error(
        "local a return function() return a.x end, a.x",
        "attempt to index local 'a' (a nil value)",
    );
    error("return {} < {}", "attempt to compare two table values");
    error("return 1 < 'x'", "attempt to compare number with string");
    error("return #5", "attempt to get length of a number value");
    error("for i = 1, 'x' do end", "'for' limit must be a number");
    error("local t = {} t[nil] = 1", "table index is nil");
    error(
        "retrn 1",
        "[string \"channel program\"]:1: syntax error near '1'",
    );
    error("{]", "unexpected symbol near '{'");
    error("x = = 1", "unexpected symbol near '='");
    error("if x then", "'end' expected near <eof>");
    error(
        "if x then\n\n",
        "'end' expected (to close 'if' at line 1) near <eof>",
    );
    error("x = 'abc", "unfinished string near <eof>");
    error("error(0)", "in function 'error'");
    error(
        "error('string')",
        "[string \"channel program\"]:1: string\nstack traceback:\n\t[C]: in function 'error'\n\t[string \"channel program\"]:1: \
        in main chunk",
    );
    error("error({})", "stack traceback:\n\t[C]: in function 'error'");
    error("assert(false)", "assertion failed!");
    error(
        "host.refuse('x')",
        "bad argument #1 to 'refuse' (no such dataset 'x')",
    );
}

/// The text that OpenZFS's suite has beside its program: tst.stack_gsub.err, but for the number of calls.
#[test]
fn recursion_through_a_library_function_ends() {
    let Err(Failure::Error(message)) =
        run("\nfunction f(s)\n\treturn string.gsub(s, \".\", f)\nend\n\nreturn f(\"foo\")\n")
    else {
        panic!("it recurses without end");
    };
    let message = String::from_utf8_lossy(&message).into_owned();
    let expect = "C stack overflow\nstack traceback:\n\t[C]: in function 'gsub'\n\t[string \"channel program\"]:3: in function \
    <[string \"channel program\"]:2>\n";
    assert!(message.ends_with("(...tail calls...)"), "{message}");
    assert!(message.contains(expect), "{message}");
}

#[test]
fn deep_recursion_needs_memory_only() {
    let program = "local n = ... function f(x) if x == 0 then return x end return f(x - 1) + 1 end return f(n.argv[1])";
    assert_eq!(run(program), Ok(Returned::One(Data::Int(10_000))));
    let program = "function f(x) return f(x + 1) + 1 end return f(1)";
    assert_eq!(run(program), Err(Failure::Memory));
    let program = "function f(x) if x == 0 then return 5 end return f(x - 1) end return f(1000000)";
    assert_eq!(run(program), Ok(Returned::One(Data::Int(5))));
}

#[test]
fn nested_text_is_limited() {
    let nested = |depth| {
        format!(
            "i = 0 {} i = i + 1 {} return i",
            "if true then ".repeat(depth),
            "end ".repeat(depth)
        )
    };
    int(&nested(17), 1);
    error(
        &nested(160),
        "too many C levels (limit is 20) in main function near",
    );
    error(
        &format!("return {}1{}", "(".repeat(100_000), ")".repeat(100_000)),
        "too many C levels",
    );
    error(
        &format!("return {}1", "- ".repeat(100_000)),
        "too many C levels",
    );
    error(&"a = {".repeat(100_000), "too many C levels");
}

#[test]
fn limits_on_instructions_end_programs() {
    for limit in [1000, 10_000, 1_000_000] {
        match run_limited("i = 1; while true do i = i + 1 end", limit, MIB) {
            Err(Failure::TimedOut {
                instructions,
                message,
            }) => {
                assert!(instructions.abs_diff(limit) <= 100, "{instructions}");
                assert!(
                    String::from_utf8_lossy(&message)
                        .starts_with("Channel program timed out.\nstack traceback:")
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Programs to be damaged.
const CORPUS: &[&str] = &[
    "local t = {1, 2, x = 3, [4] = 'a'} for k, v in pairs(t) do t[k] = nil end return #t, t.x or nil and false",
    "local function f(a, b, ...) local c, d = ... if a < b and not (c == d) then return f(a + 1, b, ...) end return a .. b end return f(1, 9, 2)",
    "goto a do local x ::b:: x = 1 end ::a:: while true do break end repeat local y = 1 until y >= 1 for i = 10, 1, -2 do end return",
    "local co = coroutine.wrap(function(a) local b = coroutine.yield(a) error({b}) end) co(1) return co(2)",
    "local mt = {__index = function(t, k) return k end, __add = function() return 1 end, __call = table.pack} \
     local t = setmetatable({}, mt) return t.x, t + 1, t(1, 2), -t, #t, t < t",
    "return string.gsub('hello [world]', '%f[%w](%w)(%w-)', '%2%1'), ('x'):rep(3, ','), string.format('%5.2s|%-5d|%q', 'abc', -7, '\\0\\n')",
    "a.b.c = function(self, ...) local n = select('#', ...) return self:m{...} end; (a or {}).x = [[long]] .. \"\\65\\x41\\z  \" -- end",
    "local s, t = 0, {} for _, v in ipairs{3, 1, 2} do table.insert(t, 1, v) s = s * 10 + v end table.sort(t, function(a, b) return a > b end) \
     return table.concat(t, ',', 1, #t), table.remove(t), table.unpack(t), s % 7 ^ 2",
];

/// Damaged programs end, with an answer or an error. Method: bytes of the corpus are exchanged, removed, doubled and put elsewhere by a
/// seed; every other program runs with a collection at each allocation.
#[test]
fn damaged_programs_end() {
    let mut seed = 1_u64;
    let mut below = move |limit: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).expect("31 bits") % limit.max(1)
    };
    for round in 0..20_000 {
        let mut text = CORPUS[below(CORPUS.len())].as_bytes().to_vec();
        for _ in 0..=below(4) {
            let (at, end) = (below(text.len()), below(text.len()));
            let (from, to) = (at.min(end), at.max(end).min(at.min(end) + 12));
            match below(4) {
                0 => drop(text.drain(from..to)),
                1 => {
                    let part = text[from..to].to_vec();
                    let place = below(text.len());
                    text.splice(place..place, part);
                }
                2 => text[at] = b"(){}[]=~<>.:,;+-*/%^#'\"\\ \n0x9anld\0"[below(34)],
                _ => {
                    let other = CORPUS[below(CORPUS.len())].as_bytes();
                    let from = below(other.len());
                    let to = other.len().min(from + 20);
                    text.splice(at..at, other[from..to].iter().copied());
                }
            }
            text.push(b' ');
        }
        let program = Program {
            text: &text,
            argument: Data::Nil,
            functions: &[("host.echo", 0)],
            globals: &[],
            instructions_max: 20_000,
            memory_bytes_max: 200_000,
            cancel: Arc::new(AtomicBool::new(false)),
        };
        let _ended = run_with(&program, &mut Echo, round % 2 == 0);
    }
}

/// A collection for each allocation takes time.
#[test]
fn programs_that_fill_memory_end_in_time() {
    let program = "local keep = {} for i = 1, 10000 do keep[i] = {i} end \
                   local n = 0 while collectgarbage('count') < 4000 do n = n + 1 keep[10000 + n] = {n} end \
                   while true do local t = {} end";
    let ended = run_limited(program, 2_000_000, 4 << 20);
    let expected = matches!(ended, Err(Failure::TimedOut { .. } | Failure::Memory));
    assert!(expected, "{ended:?}");
}

/// Each of these would run or grow without end.
#[test]
fn hostile_programs_end() {
    let timed_out = |program: &str| {
        let ended = run_limited(program, 1_000_000, 10 * MIB);
        assert!(
            matches!(ended, Err(Failure::TimedOut { .. })),
            "{program}: {ended:?}"
        );
    };
    timed_out(
        "while true do local co = coroutine.create(function() while true do end end) coroutine.resume(co) end",
    );
    timed_out("return string.find(('a'):rep(3000), ('a*'):rep(30) .. 'b')");
    timed_out("local s = ('a'):rep(100000) while true do local t = s:upper() end");
    timed_out("local s = ('a'):rep(1000000) local t = s .. 'b' while true do local x = s < t end");
    timed_out(
        "local t = {} for i = 1, 20000 do t[i] = i end for i = 1, 20000 do t[i] = nil end while true do next(t) end",
    );
    timed_out(
        "local t = setmetatable({}, {__index = function(t, k) return t[k] end}) local function f() return f() end f()",
    );
    timed_out("local t = {} for i = 1, 3000 do t[i] = i end while true do table.sort(t, function(a, b) return true end) \
    end".replace("table.sort", "(function(t, f) coroutine.resume(coroutine.create(table.sort), t, f) end)").as_str());
    timed_out(
        "local s = ('ab'):rep(100000) while true do s:find('b', 1, true) s:find('ac', 1, true) end",
    );
    timed_out("while true do table.concat({}, 'x', 1, 0) collectgarbage() end");
    timed_out("local t = {} while true do table.insert(t, 1, 1) end");
}

#[test]
fn memory_bombs_end() {
    let exhausted = |program: &str| {
        let ended = run_limited(program, 100_000_000, 4 * MIB);
        let bounded = matches!(ended, Err(Failure::Memory | Failure::ReturnTooLarge));
        assert!(bounded, "{program}: {ended:?}");
    };
    exhausted("return ('x'):rep(100000000)");
    exhausted("local s = 'x' while true do s = s .. s end");
    exhausted("local t = {} while true do t[#t + 1] = {} end");
    exhausted("local t = {} local i = 0 while true do i = i + 1 t['k' .. i] = i end");
    exhausted("local t = {} while true do t[#t + 1] = coroutine.create(function() end) end");
    exhausted("local t = {} while true do local x = 1 t[#t + 1] = function() return x end end");
    exhausted("local function f(...) return f(1, ...) end f()");
    exhausted("return (('x'):rep(1000):gsub('.', ('y'):rep(100000)))");
    exhausted("return string.rep('', 1000000000, 'ab')");
    exhausted("local t = {} for i = 1, 18 do t = {t, t, t, t, t} end return t");
    exhausted(
        "local t = {} for i = 1, 100000 do t[i] = 'x' end return string.format(('%s'):rep(1000), table.unpack(t, 1, 1000)), \
        table.concat(t, ('y'):rep(1000))",
    );
    exhausted("local s = ('x'):rep(1000000) return s:gsub('.', function() return s end)");
}

#[test]
fn garbage_does_not_count() {
    let program = "local s = 0 for i = 1, 200000 do local t = {i, {i}} s = s + #t end return s";
    assert_eq!(run(program), Ok(Returned::One(Data::Int(400_000))));
}

#[test]
fn weak_tables_lose_what_is_not_used() {
    int(
        "local t = setmetatable({}, {__mode = 'v'}) t[1] = {} t[2] = t collectgarbage() return (t[1] == nil and 1 or 0) + (t[2] \
        == t and 2 or 0)",
        3,
    );
    int(
        "local t = setmetatable({}, {__mode = 'k'}) t[{}] = 1 t.x = 2 collectgarbage() local n = 0 for k, v in pairs(t) do n = n \
        + v end return n",
        2,
    );
}

#[test]
fn a_variable_outlives_the_coroutine_that_nobody_resumes() {
    int(
        "local f = coroutine.wrap(function() local a = 10 coroutine.yield(function() a = a + 1 return a end) end)() \
         collectgarbage() local t = {} for i = 1, 100 do t[i] = {i} end return f() + f()",
        23,
    );
}

#[test]
fn the_host() {
    int("return #{host.echo(1, 'a', {b = {true}})}", 3);
    text("return type(host.echo({1, x = 2}))", "table");
    int(
        "local s = 0 for i in host.count() do s = s * 10 + i end return s",
        123,
    );
    int("return EINVAL", 22);
    check(
        "return {1, {x = 'y', [true] = false}, nil, 4}",
        &Data::Table(vec![
            (Data::Int(1), Data::Int(1)),
            (
                Data::Int(2),
                Data::Table(vec![
                    (Data::text("x"), Data::text("y")),
                    (Data::Bool(true), Data::Bool(false)),
                ]),
            ),
            (Data::Int(4), Data::Int(4)),
        ]),
    );
    check(
        "return {[{}] = 1, f = assert}",
        &Data::Table(vec![
            (Data::Other("table"), Data::Int(1)),
            (Data::text("f"), Data::Other("function")),
        ]),
    );
}

#[test]
fn a_program_that_is_canceled_ends() {
    let program = Program {
        text: b"while true do end",
        argument: Data::Nil,
        functions: &[],
        globals: &[],
        instructions_max: u64::MAX,
        memory_bytes_max: MIB,
        cancel: Arc::new(AtomicBool::new(true)),
    };
    assert!(matches!(
        crate::run(&program, &mut Echo),
        Err(Failure::Canceled(_))
    ));
}
