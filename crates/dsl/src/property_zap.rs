//! Stored properties: reading, inheriting and writing them.
//!
//! The property ZAP of a directory holds values under the property's name, received values under
//! `name$recvd`, and `name$inherit` where a received value is set aside; `name$iuv` is the value that newer versions of OpenZFS use.
//! Snapshots have a ZAP of their own for user properties. OpenZFS: module/zfs/dsl_prop.c.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::{ObjectId, ObjectType};

use crate::dsl_dir::PropMap;
use crate::error::Result;
use crate::property::{Property, Source, Value};

const RECEIVED: &str = "$recvd";
const INHERIT: &str = "$inherit";
/// Values added to a property after its first release, which an older OpenZFS does not know: it finds the default under the
/// plain name. OpenZFS: module/zfs/dsl_prop.c, `dsl_prop_set_iuv`.
const LATER: &str = "$iuv";

/// Whether a value is stored under [`LATER`]; `None` when the property has no such values.
fn is_later(name: &str, value: Option<&Value>) -> Option<bool> {
    let later: &[u64] = match name {
        // `some` and `none`.
        "redundant_metadata" => &[2, 3],
        // `disabled`.
        "snapdir" => &[2],
        _ => return None,
    };
    let number = value.and_then(Value::number);
    Some(number.is_some_and(|number| later.contains(&number)))
}
/// Marks a dataset that ever received properties.
pub(crate) const HAS_RECEIVED: &str = "$hasrecvd";

/// Converts a ZAP value.
fn value_of(value: &ZapValue) -> Option<Value> {
    match value {
        ZapValue::U64(words) => words.first().map(|w| Value::Number(*w)),
        ZapValue::U8(bytes) => {
            let text = bytes.split(|b| *b == 0).next().unwrap_or(bytes);
            Some(Value::Text(String::from_utf8_lossy(text).into_owned()))
        }
        _ => None,
    }
}

fn zap_value(value: &Value) -> ZapValue {
    match value {
        Value::Number(n) => ZapValue::U64(vec![*n]),
        Value::Text(text) => {
            let mut bytes = text.as_bytes().to_vec();
            bytes.push(0);
            ZapValue::U8(bytes)
        }
    }
}

/// Reads a property ZAP.
pub(crate) async fn read_map(mos: &Objset, object: ObjectId) -> Result<PropMap> {
    let mut map = BTreeMap::new();
    if object.0 == 0 {
        return Ok(map);
    }
    for entry in zap::entries(mos, object).await? {
        if let (Some(value), Ok(name)) = (value_of(&entry.value), String::from_utf8(entry.name)) {
            map.insert(name, value);
        }
    }
    Ok(map)
}

/// The effective value of a property, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveValue {
    pub(crate) value: Value,
    pub(crate) source: Source,
}

/// Property ZAPs from a dataset up to the root: the dataset's own first.
#[derive(Clone)]
pub(crate) struct PropertyScope {
    /// Stored at a snapshot itself, if this is one.
    pub(crate) snapshot: Option<PropMap>,
    pub(crate) levels: Rc<Vec<(String, Rc<PropMap>)>>,
}

impl PropertyScope {
    /// Looks a property up as the rules of inheritance say; `None` means it is not set.
    pub(crate) fn lookup(&self, name: &str, inheritable: bool) -> Option<EffectiveValue> {
        if let Some(map) = &self.snapshot {
            if let Some((value, received)) = at_level(map, name) {
                let source = if received {
                    Source::Received
                } else {
                    Source::Local
                };
                return Some(EffectiveValue { value, source });
            }
            if !inheritable {
                return None;
            }
        }
        for (depth, (level, map)) in self.levels.iter().enumerate() {
            let inheriting = depth > 0 || self.snapshot.is_some();
            if inheriting && !inheritable {
                return None;
            }
            if let Some((value, received)) = at_level(map, name) {
                let source = match (inheriting, received) {
                    (true, _) => Source::Inherited(level.clone()),
                    (false, true) => Source::Received,
                    (false, false) => Source::Local,
                };
                return Some(EffectiveValue { value, source });
            }
        }
        None
    }

    /// The effective value of a native property and its source.
    pub(crate) fn native(&self, property: Property) -> EffectiveValue {
        self.lookup(property.name(), property.inheritable())
            .unwrap_or_else(|| {
                let descriptor = property.descriptor();
                let value = match descriptor.default_string {
                    Some(text) => Value::Text(text.into()),
                    None if descriptor.value_type == crate::property::PropertyType::String => {
                        Value::Text(String::new())
                    }
                    None => Value::Number(descriptor.default_number),
                };
                EffectiveValue {
                    value,
                    source: Source::Default,
                }
            })
    }

    pub(crate) fn number(&self, property: Property) -> u64 {
        self.native(property).value.number().unwrap_or(0)
    }

    /// The value a stream brought for a property of the dataset itself.
    pub(crate) fn received(&self, name: &str) -> Option<Value> {
        let map = match &self.snapshot {
            Some(map) => map,
            None => &self.levels.first()?.1,
        };
        map.get(&format!("{name}{RECEIVED}")).cloned()
    }

    /// Names of all user properties in force.
    pub(crate) fn user_properties(&self) -> Vec<String> {
        let maps = self
            .snapshot
            .iter()
            .chain(self.levels.iter().map(|(_, m)| m.as_ref()));
        let mut names: Vec<String> = maps
            .flat_map(|m| m.keys())
            .map(|k| k.split('$').next().unwrap_or(k))
            .filter(|k| k.contains(':'))
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The value in one ZAP and whether it is a received one.
fn at_level(map: &PropMap, name: &str) -> Option<(Value, bool)> {
    if is_later(name, None).is_some()
        && let Some(value) = map.get(&format!("{name}{LATER}"))
        && is_later(name, Some(value)) == Some(true)
    {
        return Some((value.clone(), false));
    }
    if let Some(value) = map.get(name) {
        return Some((value.clone(), false));
    }
    if map.contains_key(&format!("{name}{INHERIT}")) {
        return None;
    }
    map.get(&format!("{name}{RECEIVED}"))
        .map(|value| (value.clone(), true))
}

/// Where a property is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PropertyWrite {
    /// Set by the user.
    Local,
    /// Cleared, setting a received value aside. `received`: the dataset or one above it has received properties, so that this
    /// has to be remembered.
    Inherit { received: bool },
    /// Cleared, back to the received value.
    Received,
    /// Brought by a stream: stored beside what was set here, which stays in force.
    Stream,
}

/// Writes or clears one property in a ZAP. Syncing context.
pub(crate) async fn write(
    mos: &Objset,
    map: ObjectId,
    name: &str,
    value: Option<&Value>,
    how: PropertyWrite,
    tx: &Tx,
) -> Result<()> {
    assert!(tx.is_syncing(), "write happens in syncing context");
    let remove = async |key: &str| -> Result<()> {
        if zap::lookup(mos, map, key).await?.is_some() {
            zap::remove(mos, map, key, tx).await?;
        }
        Ok(())
    };
    let inherit = format!("{name}{INHERIT}");
    let received = format!("{name}{RECEIVED}");
    if how == PropertyWrite::Stream {
        match value {
            Some(value) => zap::update(mos, map, &received, &zap_value(value), tx).await?,
            None => remove(&received).await?,
        }
        return Ok(());
    }
    let later = is_later(name, value);
    if later == Some(false) {
        remove(&format!("{name}{LATER}")).await?;
    }
    match (how, value) {
        (PropertyWrite::Local, Some(value)) => {
            remove(&inherit).await?;
            let mut plain = zap_value(value);
            if later == Some(true) {
                zap::update(mos, map, &format!("{name}{LATER}"), &plain, tx).await?;
                let default =
                    Property::from_name(name).map_or(0, |p| p.descriptor().default_number);
                plain = ZapValue::U64(vec![default]);
            }
            zap::update(mos, map, name, &plain, tx).await?;
        }
        (PropertyWrite::Local | PropertyWrite::Received | PropertyWrite::Stream, _) => {
            remove(name).await?;
            remove(&inherit).await?;
        }
        (PropertyWrite::Inherit { received }, _) => {
            remove(name).await?;
            if received {
                zap::update_u64(mos, map, &inherit, 0, tx).await?;
            }
        }
    }
    Ok(())
}

/// Makes a property ZAP. Syncing context.
pub(crate) async fn create_map(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    assert!(tx.is_syncing(), "create map happens in syncing context");
    Ok(zap::create(mos, &ZapSpec::new(ObjectType::DSL_PROPS), tx).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Rc<PropMap> {
        Rc::new(
            entries
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.clone()))
                .collect(),
        )
    }

    fn scope() -> PropertyScope {
        PropertyScope {
            snapshot: None,
            levels: Rc::new(vec![
                (
                    "p/a/b".into(),
                    map(&[
                        ("atime$recvd", Value::Number(1)),
                        ("quota", Value::Number(7)),
                        ("exec$recvd", Value::Number(0)),
                        ("exec$inherit", Value::Number(0)),
                    ]),
                ),
                (
                    "p/a".into(),
                    map(&[
                        ("compression", Value::Number(15)),
                        ("canmount", Value::Number(0)),
                        ("m:x", Value::Text("1".into())),
                        ("devices$recvd", Value::Number(0)),
                    ]),
                ),
                (
                    "p".into(),
                    map(&[
                        ("compression", Value::Number(2)),
                        ("exec", Value::Number(1)),
                        ("redundant_metadata", Value::Number(0)),
                        ("redundant_metadata$iuv", Value::Number(3)),
                        ("snapdir", Value::Number(1)),
                        ("snapdir$iuv", Value::Number(77)),
                    ]),
                ),
            ]),
        }
    }

    #[test]
    fn inheritance() {
        let s = scope();
        let check = |p: Property, value: u64, source: Source| {
            assert_eq!(
                s.native(p),
                EffectiveValue {
                    value: Value::Number(value),
                    source
                },
                "{p:?}"
            );
        };
        check(Property::Compression, 15, Source::Inherited("p/a".into()));
        check(Property::Atime, 1, Source::Received);
        check(Property::Quota, 7, Source::Local);
        check(Property::CanMount, 1, Source::Default);
        check(Property::Exec, 1, Source::Inherited("p".into()));
        check(Property::Devices, 0, Source::Inherited("p/a".into()));
        check(Property::Setuid, 1, Source::Default);
        // What is newer than its property, and what is newer than this code.
        let root = Source::Inherited("p".into());
        check(Property::RedundantMetadata, 3, root.clone());
        check(Property::SnapDir, 1, root);
        assert_eq!(s.user_properties(), ["m:x"]);
        let user = s.lookup("m:x", true).expect("set on p/a");
        assert_eq!(user.source, Source::Inherited("p/a".into()));
    }

    #[test]
    fn snapshots_inherit_from_their_dataset() {
        let mut s = scope();
        s.snapshot = Some(BTreeMap::from([(
            "m:y".to_owned(),
            Value::Text("2".into()),
        )]));
        let y = s.lookup("m:y", true).expect("set on the snapshot");
        assert_eq!(y.source, Source::Local);
        let exec = s.native(Property::Devices);
        assert_eq!(exec.source, Source::Inherited("p/a".into()));
        assert_eq!(s.user_properties(), ["m:x", "m:y"]);
    }
}
