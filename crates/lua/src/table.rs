//! Tables: values by keys.
//!
//! Elements from 1 on lie in an array, everything else in entries that are found through a tree. A tree and not a hash, because
//! programs could choose keys whose hashes collide. The order of iteration is that of insertion.

use std::collections::BTreeMap;

use crate::value::Value;

/// Bytes that an element of the array takes.
const ELEMENT_BYTES: usize = 16;
/// Bytes that an entry takes, with its part of the tree.
const ENTRY_BYTES: usize = 80;

#[derive(Debug, Default)]
pub(crate) struct Table {
    array: Vec<Value>,
    entries: Vec<(Value, Value)>,
    index: BTreeMap<(u8, u64), usize>,
    /// Entries whose value is nil.
    empty: usize,
}

/// The order of keys in the tree; `None` for what is no key.
fn order(key: Value) -> Option<(u8, u64)> {
    Some(match key {
        Value::Nil => return None,
        Value::Bool(value) => (0, u64::from(value)),
        Value::Int(value) => (1, value.cast_unsigned()),
        Value::String(id) => (2, u64::from(id.0)),
        Value::Table(id) => (3, u64::from(id.0)),
        Value::Closure(id) => (4, u64::from(id.0)),
        Value::Native(number) => (5, u64::from(number)),
        Value::Host(number) => (6, u64::from(number)),
        Value::Bound(id) => (7, u64::from(id.0)),
        Value::Thread(id) => (8, u64::from(id.0)),
    })
}

impl Table {
    fn array_index(&self, key: Value) -> Option<usize> {
        let Value::Int(number) = key else {
            return None;
        };
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        (index < self.array.len()).then_some(index)
    }

    pub(crate) fn get(&self, key: Value) -> Value {
        if let Some(index) = self.array_index(key) {
            return self.array[index];
        }
        order(key)
            .and_then(|order| self.index.get(&order))
            .map_or(Value::Nil, |&entry| self.entries[entry].1)
    }

    /// Bytes that storing under a key may take in addition.
    pub(crate) fn growth(&self, key: Value) -> usize {
        if self.array_index(key).is_some()
            || order(key).is_none_or(|order| self.index.contains_key(&order))
        {
            return 0;
        }
        if self.appends(key) {
            let full = self.array.len() == self.array.capacity();
            return if full {
                self.array.len().max(4) * ELEMENT_BYTES
            } else {
                0
            };
        }
        ENTRY_BYTES
    }

    fn appends(&self, key: Value) -> bool {
        matches!(key, Value::Int(number) if usize::try_from(number).is_ok_and(|number| number == self.array.len() + 1))
    }

    /// Stores a value; the key is neither nil nor missing from what [`Table::growth`] was asked for.
    pub(crate) fn set(&mut self, key: Value, value: Value) {
        if let Some(index) = self.array_index(key) {
            self.array[index] = value;
            return;
        }
        let order = order(key).expect("nil is no key");
        if let Some(&entry) = self.index.get(&order) {
            let old = std::mem::replace(&mut self.entries[entry].1, value);
            self.empty += usize::from(value == Value::Nil);
            self.empty -= usize::from(old == Value::Nil);
            return;
        }
        if value == Value::Nil {
            return;
        }
        if self.appends(key) {
            self.push(value);
            return;
        }
        self.drop_empty();
        self.index.insert(order, self.entries.len());
        self.entries.push((key, value));
    }

    fn push(&mut self, value: Value) {
        if self.array.len() == self.array.capacity() {
            self.array.reserve_exact(self.array.len().max(4));
        }
        self.array.push(value);
        // What follows may have been stored before.
        while !self.index.is_empty() {
            let next = i64::try_from(self.array.len() + 1).expect("memory is limited");
            let Some(entry) = self.index.remove(&(1, next.cast_unsigned())) else {
                break;
            };
            let moved = std::mem::replace(&mut self.entries[entry], (Value::Nil, Value::Nil)).1;
            self.empty += usize::from(moved != Value::Nil);
            self.array.push(moved);
        }
    }

    /// Forgets entries without a value once they are the half; a new key is about to be stored, after which iterations may not go on.
    fn drop_empty(&mut self) {
        if self.empty < 8 || self.empty * 2 < self.entries.len() {
            return;
        }
        self.entries.retain(|(_, value)| *value != Value::Nil);
        self.empty = 0;
        self.index = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(entry, (key, _))| Some((order(*key)?, entry)))
            .collect();
    }

    /// A border: an index with a value whose successor has none; 0 for none.
    pub(crate) fn length(&self) -> usize {
        if self.array.last().is_some_and(|last| *last != Value::Nil) {
            return self.array.len();
        }
        // Between a place with a value and one without, there is a border.
        let (mut low, mut high) = (0, self.array.len());
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.array[middle - 1] == Value::Nil {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }

    /// The key and the value behind a key, nil for the first, with the number of places that were looked at; `None` for a key that is
    /// not there.
    pub(crate) fn next(&self, key: Value) -> Option<(Option<(Value, Value)>, usize)> {
        let first = match key {
            Value::Nil => 0,
            key => match self.array_index(key) {
                Some(index) => index + 1,
                None => self.array.len() + self.index.get(&order(key)?)? + 1,
            },
        };
        let mut at = first;
        while let Some(value) = self.array.get(at) {
            at += 1;
            if *value != Value::Nil {
                let number = i64::try_from(at).expect("memory is limited");
                return Some((Some((Value::Int(number), *value)), at - first));
            }
        }
        while let Some(pair) = self.entries.get(at - self.array.len()) {
            at += 1;
            if pair.1 != Value::Nil {
                return Some((Some(*pair), at - first));
            }
        }
        Some((None, at - first))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.array.capacity() * ELEMENT_BYTES + self.entries.len() * ENTRY_BYTES
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Value, Value)> {
        let array = self
            .array
            .iter()
            .zip(1_i64..)
            .map(|(value, number)| (Value::Int(number), *value));
        array.chain(self.entries.iter().copied())
    }

    /// Forgets a key, which is or has a dead object: the number of the object will be given to another.
    pub(crate) fn remove(&mut self, key: Value) {
        if let Some(index) = self.array_index(key) {
            self.array[index] = Value::Nil;
        } else if let Some(entry) = order(key).and_then(|order| self.index.remove(&order)) {
            let old = std::mem::replace(&mut self.entries[entry], (Value::Nil, Value::Nil)).1;
            self.empty += usize::from(old != Value::Nil);
        }
    }
}
