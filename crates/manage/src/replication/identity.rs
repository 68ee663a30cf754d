//! As which dataset a copy acts once it is in use in place of its source: NFS handles and SCSI identifiers are made of that one's guid, so that
//! clients go on with those that they have.
//!
//! A copy is marked ([`MARK_PROPERTY`]). While it is read-only it waits: its volumes are shown to no initiator. What puts it in use sets
//! [`IDENTITY_PROPERTY`] on the dataset itself; a value that is inherited, or came with a stream, is not in force.

use std::fmt;
use std::str::FromStr;

use engine::DatasetInfo;
use engine::property::{Source, Value};

use super::{FENCED_PROPERTY, MARK_PROPERTY, Mark, ReadonlySetting};

/// The user property of a copy that is in use in place of its source: an [`Identity`], the guid of the dataset that
/// it acts as.
pub const IDENTITY_PROPERTY: &str = "org.sanbox:identity";

/// The user property of a dataset whose `readonly` was on before it was fenced or adopted: it stays so when that ends.
pub const KEPT_READONLY_PROPERTY: &str = "org.sanbox:readonly";

/// The properties that [`identity_of`], [`is_waiting`] and [`fence_of`](super::fence_of) read.
pub const IDENTITY_PROPERTIES: [&str; 4] = [
    IDENTITY_PROPERTY,
    MARK_PROPERTY,
    FENCED_PROPERTY,
    "readonly",
];

/// The guid of the dataset that one acts as, and how often that changed hands. As text `GUID:GENERATION` in decimal digits, without the
/// generation where that is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The guid.
    pub guid: u64,
    /// 0 of a source that no copy stood in for, from 1 otherwise.
    pub generation: u64,
}

impl Identity {
    /// That of a source that no copy stood in for.
    pub(super) fn own(guid: u64) -> Self {
        Self {
            guid,
            generation: 0,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            1 => write!(f, "{}", self.guid),
            generation => write!(f, "{}:{generation}", self.guid),
        }
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (guid, generation) = text.split_once(':').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        Ok(Self {
            guid: number(guid)?,
            generation: number(generation)?,
        })
    }
}

/// Reads a value of [`IDENTITY_PROPERTY`].
fn identity(value: &Value) -> Option<Identity> {
    value.text()?.parse().ok()
}

/// Returns a property that was set on the dataset itself.
pub(super) fn local<'a>(info: &'a DatasetInfo, name: &str) -> Option<&'a Value> {
    let property = info.property(name)?;
    (property.source == Source::Local).then_some(&property.value)
}

/// Returns the guid of the dataset that this one acts as; `None` when it acts as itself.
#[must_use]
pub fn identity_of(info: &DatasetInfo) -> Option<u64> {
    own_identity(info).map(|identity| identity.guid)
}

/// The same with its generation.
pub(super) fn own_identity(info: &DatasetInfo) -> Option<Identity> {
    local(info, IDENTITY_PROPERTY).and_then(identity)
}

/// Returns the identity that the source had itself, as it came with a stream.
pub(super) fn identity_of_source(info: &DatasetInfo) -> Option<Identity> {
    let aside = info.set_aside.iter();
    let mut aside = aside.filter(|(name, _)| name == IDENTITY_PROPERTY);
    let value = match info.property(IDENTITY_PROPERTY) {
        Some(property) if property.source == Source::Received => Some(&property.value),
        Some(property) => property.received.as_ref(),
        None => aside.next().map(|(_, value)| value),
    };
    value.and_then(identity)
}

/// Returns what is known of `readonly` of a dataset.
pub(super) fn readonly_of(info: &DatasetInfo) -> ReadonlySetting {
    let received = |name: &str| {
        let property = info.property(name);
        let own = property.filter(|property| property.source == Source::Received);
        let hidden = property.and_then(|property| property.received.as_ref());
        let aside = info.set_aside.iter().find(|(known, _)| known == name);
        let own = own.map(|property| &property.value).or(hidden);
        own.or(aside.map(|(_, value)| value))
    };
    let is_on = |value: Option<&Value>| value.and_then(Value::text) == Some("on");
    let was_fenced = received(FENCED_PROPERTY).is_some();
    ReadonlySetting {
        is_on: local(info, "readonly") == Some(&Value::Number(1)),
        is_kept: is_on(local(info, KEPT_READONLY_PROPERTY)),
        at_source: was_fenced.then(|| is_on(received(KEPT_READONLY_PROPERTY))),
    }
}

/// Whether a dataset is a copy that is not in use.
#[must_use]
pub fn is_waiting(info: &DatasetInfo) -> bool {
    let mark = local(info, MARK_PROPERTY).and_then(Value::text);
    // The clones of a test are of no source.
    let is_copy = mark
        .and_then(|mark| mark.parse::<Mark>().ok())
        .is_some_and(|mark| mark.source_guid != 0);
    // One whose source is read-only is so in use, too.
    let is_in_use = own_identity(info).is_some();
    let readonly = info.property("readonly");
    is_copy && !is_in_use && readonly.is_some_and(|property| property.value == Value::Number(1))
}

#[cfg(test)]
mod tests {
    use engine::{DatasetKind, DatasetProperty};

    use super::*;

    fn info(properties: &[(&str, Value, Source)]) -> DatasetInfo {
        let property = |(name, value, source): &(&str, Value, Source)| DatasetProperty {
            name: (*name).to_owned(),
            native: None,
            value: value.clone(),
            source: source.clone(),
            received: None,
        };
        DatasetInfo {
            name: "back/v".to_owned(),
            kind: DatasetKind::Volume,
            object: 1,
            guid: 2,
            create_txg: 3,
            properties: properties.iter().map(property).collect(),
            set_aside: Vec::new(),
        }
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        for text in ["77", "77:0", "77:2"] {
            let read: Identity = text.parse().expect("an identity");
            assert_eq!(read.to_string(), text);
        }
        for text in ["", "x", "77:", "77:x", "77:1:1", ":1"] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_was_set_on_the_dataset_itself_makes_it_act_as_another() {
        let of =
            |value: &str, source| identity_of(&info(&[(IDENTITY_PROPERTY, text(value), source)]));
        assert_eq!(of("77", Source::Local), Some(77));
        assert_eq!(of("77", Source::Received), None);
        assert_eq!(of("77", Source::Inherited("back".to_owned())), None);
        assert_eq!(of("x", Source::Local), None);
        let received = info(&[(IDENTITY_PROPERTY, text("77"), Source::Received)]);
        let source = |info: &DatasetInfo| identity_of_source(info).map(|found| found.guid);
        assert_eq!(source(&received), Some(77));
        let mut aside = info(&[]);
        assert_eq!(source(&aside), None);
        aside.set_aside = vec![(IDENTITY_PROPERTY.to_owned(), text("78:2"))];
        assert_eq!(source(&aside), Some(78));
    }

    #[test]
    fn a_copy_waits_while_it_is_read_only() {
        let is = |mark: &str, source: Source, readonly: u64| {
            is_waiting(&info(&[
                (MARK_PROPERTY, text(mark), source),
                ("readonly", Value::Number(readonly), Source::Local),
            ]))
        };
        let mark = "vm:00000000000000ff";
        assert!(is(mark, Source::Local, 1));
        assert!(!is(mark, Source::Local, 0));
        assert!(!is(mark, Source::Inherited("back".to_owned()), 1));
        assert!(!is("vm:0000000000000000", Source::Local, 1));
        assert!(!is("", Source::Local, 1));
    }
}
