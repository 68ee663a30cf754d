//! The properties that a pool stores, in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// A stored pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Number(u64),
    Text(String),
}

/// The properties in the `pool_props` ZAP, in memory.
#[derive(Default)]
pub(crate) struct StoredProperties(pub(super) RefCell<BTreeMap<String, StoredValue>>);

impl StoredProperties {
    /// Returns a property; `None` when it is not stored.
    pub(crate) fn get(&self, name: &str) -> Option<StoredValue> {
        self.0.borrow().get(name).cloned()
    }

    /// Returns a property that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        match self.0.borrow().get(name) {
            Some(StoredValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// Whether a property with the values `off` and `on` is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.number(name) == Some(1)
    }

    /// Returns the user properties.
    pub(crate) fn user(&self) -> Vec<(String, String)> {
        let values = self.0.borrow();
        let user = values.iter().filter(|(name, _)| name.contains(':'));
        user.filter_map(|(name, value)| match value {
            StoredValue::Text(text) => Some((name.clone(), text.clone())),
            StoredValue::Number(_) => None,
        })
        .collect()
    }
}
