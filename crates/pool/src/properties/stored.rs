//! The properties that a pool stores of itself and of its vdevs, in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dmu::zap;
use ondisk::ObjectId;

/// A stored pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Number(u64),
    Text(String),
}

impl StoredValue {
    /// Reads a property as it is stored; `None` for what is none.
    pub(crate) fn from_zap(value: zap::ZapValue) -> Option<Self> {
        match value {
            zap::ZapValue::U64(numbers) if numbers.len() == 1 => Some(Self::Number(numbers[0])),
            zap::ZapValue::U8(bytes) => {
                let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
                Some(Self::Text(String::from_utf8_lossy(text).into_owned()))
            }
            _ => None,
        }
    }

    /// The property as it is stored: text ends with a zero byte.
    pub(crate) fn to_zap(&self) -> zap::ZapValue {
        match self {
            Self::Number(number) => zap::ZapValue::U64(vec![*number]),
            Self::Text(text) => {
                let mut bytes = text.clone().into_bytes();
                bytes.push(0);
                zap::ZapValue::U8(bytes)
            }
        }
    }
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
        of_users(&self.0.borrow())
    }
}

/// Returns those of stored properties that are of users.
pub(crate) fn of_users(stored: &BTreeMap<String, StoredValue>) -> Vec<(String, String)> {
    let user = stored.iter().filter(|(name, _)| name.contains(':'));
    user.filter_map(|(name, value)| match value {
        StoredValue::Text(text) => Some((name.clone(), text.clone())),
        StoredValue::Number(_) => None,
    })
    .collect()
}

/// The stored properties of the vdevs, in memory: by ZAP, which stays with a top-level vdev when its devices change.
#[derive(Default)]
pub(crate) struct StoredVdevProperties(RefCell<BTreeMap<ObjectId, BTreeMap<String, StoredValue>>>);

impl StoredVdevProperties {
    /// Returns all of a vdev.
    pub(crate) fn of(&self, vdev_zap: ObjectId) -> BTreeMap<String, StoredValue> {
        let all = self.0.borrow();
        all.get(&vdev_zap).cloned().unwrap_or_default()
    }

    /// Whether any vdev has one of these.
    pub(crate) fn has_any(&self, names: &[&str]) -> bool {
        let all = self.0.borrow();
        let mut stored = all.values().flat_map(BTreeMap::keys);
        stored.any(|name| names.contains(&name.as_str()))
    }

    /// A property that is a number other than the one that stands for none.
    pub(crate) fn number(&self, vdev_zap: ObjectId, name: &str) -> Option<u64> {
        match self.0.borrow().get(&vdev_zap)?.get(name)? {
            StoredValue::Number(number) => Some(*number).filter(|&number| number != u64::MAX),
            StoredValue::Text(_) => None,
        }
    }

    /// Takes note of what is stored, or is not any more.
    pub(crate) fn note(&self, vdev_zap: ObjectId, name: &str, value: Option<StoredValue>) {
        let mut all = self.0.borrow_mut();
        let of = all.entry(vdev_zap).or_default();
        match value {
            Some(value) => of.insert(name.to_owned(), value),
            None => of.remove(name),
        };
    }
}
