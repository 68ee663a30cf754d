//! The objects of a program, what they take, and the collection of those out of reach.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::code::{Constant, Function};
use crate::objects::{Bound, Closure, TableObject, Text, Upvalue};
use crate::slab::Slab;
use crate::thread::Thread;
use crate::value::{BoundId, ClosureId, StringId, TableId, ThreadId, UpvalueId, Value};

/// Bytes that objects take beside what they hold; the share of the tree of strings included.
const STRING_BYTES: usize = 80;
const TABLE_BYTES: usize = 120;
const CLOSURE_BYTES: usize = 56;
const UPVALUE_BYTES: usize = 40;
const BOUND_BYTES: usize = 48;
pub(crate) const THREAD_BYTES: usize = 256;
/// A value of a stack.
pub(crate) const VALUE_BYTES: usize = 16;

/// The memory limit is reached.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

#[derive(Debug, Default)]
pub(crate) struct Heap {
    strings: Slab<Text>,
    interned: BTreeMap<Rc<[u8]>, StringId>,
    tables: Slab<TableObject>,
    closures: Slab<Closure>,
    upvalues: Slab<Upvalue>,
    bound: Slab<Bound>,
    pub(crate) threads: Slab<Thread>,
    used: usize,
    limit: usize,
    /// What may be used before the next collection.
    threshold: usize,
    gray: Vec<Value>,
    /// Tables whose keys or values do not keep objects.
    weak: Vec<TableId>,
}

impl Heap {
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Sets the limit; what is used already may be above it.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.threshold = limit / 4;
    }

    pub(crate) fn wants_collection(&self, bytes: usize) -> bool {
        self.used.saturating_add(bytes) > self.threshold.min(self.limit)
    }

    /// Whether there is room for some bytes more.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), OutOfMemory> {
        if self.used.saturating_add(bytes) > self.limit {
            return Err(OutOfMemory);
        }
        Ok(())
    }

    pub(crate) fn charge(&mut self, bytes: usize) {
        self.used += bytes;
    }

    pub(crate) fn release(&mut self, bytes: usize) {
        self.used = self
            .used
            .checked_sub(bytes)
            .expect("what is given back was taken");
    }

    pub(crate) fn string(&self, id: StringId) -> &Rc<[u8]> {
        &self.strings.get(id.0).bytes
    }

    /// The bytes that a new string of a length takes.
    pub(crate) fn string_bytes(length: usize) -> usize {
        STRING_BYTES + length
    }

    /// Makes a string, or finds it. The caller saw that there is room.
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> StringId {
        if let Some(id) = self.interned.get(bytes) {
            return *id;
        }
        let bytes: Rc<[u8]> = bytes.into();
        self.used += Self::string_bytes(bytes.len());
        let id = StringId(self.strings.insert(Text {
            bytes: bytes.clone(),
        }));
        self.interned.insert(bytes, id);
        id
    }

    /// Finds a string that exists.
    pub(crate) fn find_string(&self, bytes: &[u8]) -> Option<StringId> {
        self.interned.get(bytes).copied()
    }

    pub(crate) const NEW_TABLE_BYTES: usize = TABLE_BYTES;

    pub(crate) fn new_table(&mut self) -> TableId {
        self.used += TABLE_BYTES;
        TableId(self.tables.insert(TableObject::default()))
    }

    pub(crate) fn table(&self, id: TableId) -> &TableObject {
        self.tables.get(id.0)
    }

    pub(crate) fn set_metatable(&mut self, id: TableId, metatable: Option<TableId>) {
        self.tables.get_mut(id.0).metatable = metatable;
    }

    /// Stores in a table. The caller saw that there is room for its growth.
    pub(crate) fn table_set(&mut self, id: TableId, key: Value, value: Value) {
        let object = self.tables.get_mut(id.0);
        let before = object.table.bytes();
        object.table.set(key, value);
        self.used = self.used + object.table.bytes() - before;
    }

    pub(crate) fn closure_bytes(upvalues: usize) -> usize {
        CLOSURE_BYTES + upvalues * (UPVALUE_BYTES + 8)
    }

    pub(crate) fn new_closure(
        &mut self,
        function: Rc<Function>,
        upvalues: Vec<UpvalueId>,
    ) -> ClosureId {
        self.used += CLOSURE_BYTES + upvalues.len() * 8;
        ClosureId(self.closures.insert(Closure { function, upvalues }))
    }

    pub(crate) fn closure(&self, id: ClosureId) -> &Closure {
        self.closures.get(id.0)
    }

    pub(crate) fn new_upvalue(&mut self, upvalue: Upvalue) -> UpvalueId {
        self.used += UPVALUE_BYTES;
        UpvalueId(self.upvalues.insert(upvalue))
    }

    pub(crate) fn upvalue(&self, id: UpvalueId) -> Upvalue {
        *self.upvalues.get(id.0)
    }

    pub(crate) fn set_upvalue(&mut self, id: UpvalueId, upvalue: Upvalue) {
        *self.upvalues.get_mut(id.0) = upvalue;
    }

    pub(crate) const NEW_BOUND_BYTES: usize = BOUND_BYTES;

    pub(crate) fn new_bound(&mut self, bound: Bound) -> BoundId {
        self.used += BOUND_BYTES;
        BoundId(self.bound.insert(bound))
    }

    pub(crate) fn bound(&self, id: BoundId) -> &Bound {
        self.bound.get(id.0)
    }

    pub(crate) fn set_bound(&mut self, id: BoundId, bound: Bound) {
        *self.bound.get_mut(id.0) = bound;
    }

    pub(crate) fn new_thread(&mut self, thread: Thread) -> ThreadId {
        self.used += THREAD_BYTES + thread.bytes();
        ThreadId(self.threads.insert(thread))
    }

    /// Marks a value, and later what it leads to.
    pub(crate) fn mark(&mut self, value: Value) {
        let new = match value {
            Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Native(_) | Value::Host(_) => {
                false
            }
            // Strings lead nowhere.
            Value::String(id) => {
                self.strings.mark(id.0);
                false
            }
            Value::Table(id) => self.tables.mark(id.0),
            Value::Closure(id) => self.closures.mark(id.0),
            Value::Bound(id) => self.bound.mark(id.0),
            Value::Thread(id) => self.threads.mark(id.0),
        };
        if new {
            self.gray.push(value);
        }
    }

    pub(crate) fn mark_upvalue(&mut self, id: UpvalueId) {
        if !self.upvalues.mark(id.0) {
            return;
        }
        match *self.upvalues.get(id.0) {
            Upvalue::Closed(value) => self.mark(value),
            // The variable is still in the coroutine's stack.
            Upvalue::Open { thread, .. } => self.mark(Value::Thread(thread)),
        }
    }

    /// Marks all constants of a function and of those within it.
    pub(crate) fn mark_constants(&mut self, function: &Function) {
        for constant in &function.constants {
            if let Constant::String(id) = constant {
                self.strings.mark(id.0);
            }
        }
        for inner in &function.functions {
            self.mark_constants(inner);
        }
    }

    /// Marks everything that marked values lead to. `mode` is the name of the field with which a metatable makes tables weak.
    pub(crate) fn mark_reachable(&mut self, mode: StringId) {
        while let Some(value) = self.gray.pop() {
            match value {
                Value::Table(id) => self.mark_table(id, mode),
                Value::Closure(id) => {
                    for upvalue in self.closures.get(id.0).upvalues.clone() {
                        self.mark_upvalue(upvalue);
                    }
                }
                Value::Bound(id) => match *self.bound.get(id.0) {
                    Bound::Matches { text, pattern, .. } => {
                        self.mark(Value::String(text));
                        self.mark(Value::String(pattern));
                    }
                    Bound::Wrapped(thread) => self.mark(Value::Thread(thread)),
                    Bound::Iterator { cursor, .. } => self.mark(Value::String(cursor)),
                },
                Value::Thread(id) => {
                    let (values, upvalues) = self.threads.get_mut(id.0).reachable();
                    for value in values {
                        self.mark(value);
                    }
                    for upvalue in upvalues {
                        self.mark_upvalue(upvalue);
                    }
                }
                _ => {}
            }
        }
    }

    fn mark_table(&mut self, id: TableId, mode: StringId) {
        let metatable = self.tables.get(id.0).metatable;
        let (mut weak_keys, mut weak_values) = (false, false);
        if let Some(metatable) = metatable {
            self.mark(Value::Table(metatable));
            if let Value::String(text) = self.tables.get(metatable.0).table.get(Value::String(mode))
            {
                let text = self.string(text);
                weak_keys = text.contains(&b'k');
                weak_values = text.contains(&b'v');
            }
        }
        if weak_keys || weak_values {
            self.weak.push(id);
        }
        let mut found: Vec<Value> = Vec::new();
        for (key, value) in self.tables.get(id.0).table.pairs() {
            // Strings are values and no objects, for weak tables.
            if !weak_keys || matches!(key, Value::String(_)) {
                found.push(key);
            }
            if !weak_values || matches!(value, Value::String(_)) {
                found.push(value);
            }
        }
        for value in found {
            self.mark(value);
        }
    }

    fn is_dead(&self, value: Value) -> bool {
        match value {
            Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Native(_) | Value::Host(_) => {
                false
            }
            Value::String(id) => !self.strings.is_marked(id.0),
            Value::Table(id) => !self.tables.is_marked(id.0),
            Value::Closure(id) => !self.closures.is_marked(id.0),
            Value::Bound(id) => !self.bound.is_marked(id.0),
            Value::Thread(id) => !self.threads.is_marked(id.0),
        }
    }

    /// Empties weak tables of what is not marked, and gives up everything else that is not.
    pub(crate) fn sweep(&mut self) {
        for id in std::mem::take(&mut self.weak) {
            let pairs = self.tables.get(id.0).table.pairs();
            let dead: Vec<Value> = pairs
                .filter(|(key, value)| self.is_dead(*key) || self.is_dead(*value))
                .map(|(key, _)| key)
                .collect();
            for key in dead {
                self.tables.get_mut(id.0).table.remove(key);
            }
        }
        let mut freed = 0;
        let interned = &mut self.interned;
        self.strings.sweep(|text| {
            freed += Self::string_bytes(text.bytes.len());
            interned.remove(&text.bytes);
        });
        self.tables
            .sweep(|object| freed += TABLE_BYTES + object.table.bytes());
        self.closures
            .sweep(|closure| freed += CLOSURE_BYTES + closure.upvalues.len() * 8);
        self.upvalues.sweep(|_| freed += UPVALUE_BYTES);
        self.bound.sweep(|_| freed += BOUND_BYTES);
        self.threads
            .sweep(|thread| freed += THREAD_BYTES + thread.bytes());
        self.release(freed);
        self.threshold = self.used.saturating_mul(2).max(self.limit / 4);
    }
}
