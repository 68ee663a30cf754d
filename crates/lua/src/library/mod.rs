//! The libraries that programs have: those of Lua 5.2 without what loads code, catches errors, prints or counts with fractions.
//!
//! Which there are: zfs-program(8), "Lua standard library".

mod arguments;
mod base;
mod coroutine;
mod format;
mod matching;
mod string;
mod table;

use crate::heap::Heap;
use crate::value::{TableId, Value};
use crate::vm::{Event, Native, Vm, YIELD};

/// All functions, by their numbers; the part before the dot is the library.
const NATIVES: &[(&str, Native)] = &[
    ("coroutine.yield", coroutine::yield_outside),
    ("assert", base::assert),
    ("collectgarbage", base::collectgarbage),
    ("error", base::error),
    ("getmetatable", base::getmetatable),
    ("ipairs", base::ipairs),
    ("next", base::next),
    ("pairs", base::pairs),
    ("rawequal", base::rawequal),
    ("rawlen", base::rawlen),
    ("rawget", base::rawget),
    ("rawset", base::rawset),
    ("select", base::select),
    ("setmetatable", base::setmetatable),
    ("tonumber", base::tonumber),
    ("tostring", base::tostring),
    ("type", base::type_of),
    ("coroutine.create", coroutine::create),
    ("coroutine.resume", coroutine::resume),
    ("coroutine.running", coroutine::running),
    ("coroutine.status", coroutine::status),
    ("coroutine.wrap", coroutine::wrap),
    ("string.byte", string::byte),
    ("string.char", string::char),
    ("string.find", matching::find),
    ("string.format", format::format),
    ("string.gmatch", matching::gmatch),
    ("string.gsub", matching::gsub),
    ("string.len", string::len),
    ("string.lower", string::lower),
    ("string.match", matching::match_once),
    ("string.rep", string::rep),
    ("string.reverse", string::reverse),
    ("string.sub", string::sub),
    ("string.upper", string::upper),
    ("table.concat", table::concat),
    ("table.insert", table::insert),
    ("table.pack", table::pack),
    ("table.unpack", table::unpack),
    ("table.remove", table::remove),
    ("table.sort", table::sort),
    // The iterator of `ipairs` has no name.
    ("", base::ipairs_step),
];

/// The number of the iterator of `ipairs`.
const IPAIRS_STEP: u16 = 41;
/// The number of `next`.
const NEXT: u16 = 6;

const _: () = assert!(YIELD == 0, "yield is the first");
const _: () = assert!(
    NATIVES.len() == IPAIRS_STEP as usize + 1,
    "the iterator of ipairs is the last"
);

/// Puts the libraries into the table of global variables. Memory is not limited yet.
pub(crate) fn open(vm: &mut Vm<'_>) {
    vm.natives = NATIVES;
    let globals = vm.globals;
    set(&mut vm.heap, globals, "_G", Value::Table(globals));
    let version = Value::String(vm.heap.intern(b"Lua 5.2"));
    set(&mut vm.heap, globals, "_VERSION", version);
    for (number, (name, _)) in (0_u16..).zip(NATIVES) {
        match name.split_once('.') {
            Some((library, name)) => {
                let library = subtable(&mut vm.heap, globals, library);
                set(&mut vm.heap, library, name, Value::Native(number));
            }
            None if name.is_empty() => {}
            None => set(&mut vm.heap, globals, name, Value::Native(number)),
        }
    }
    // Methods of strings are the functions of the library.
    let library = subtable(&mut vm.heap, globals, "string");
    let metatable = vm.heap.new_table();
    let index = Value::String(vm.event_name(Event::Index));
    vm.heap.table_set(metatable, index, Value::Table(library));
    vm.string_metatable = Some(metatable);
}

/// Stores under a name.
pub(crate) fn set(heap: &mut Heap, table: TableId, name: &str, value: Value) {
    let name = Value::String(heap.intern(name.as_bytes()));
    heap.table_set(table, name, value);
}

/// The table under a name, which is made when it is not there.
pub(crate) fn subtable(heap: &mut Heap, table: TableId, name: &str) -> TableId {
    let key = Value::String(heap.intern(name.as_bytes()));
    if let Value::Table(found) = heap.table(table).table.get(key) {
        return found;
    }
    let made = heap.new_table();
    heap.table_set(table, key, Value::Table(made));
    made
}
