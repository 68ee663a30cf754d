//! Properties as programs see them.
//!
//! OpenZFS: module/zfs/zcp_get.c (which have values, their forms and sources).

use engine::property::{
    Attribute, Property, PropertyType, Source, Value, is_user_property, split_user_space,
};
use engine::{DatasetInfo, DatasetProperty};
use lua::Data;

/// What a name means.
pub(super) enum Asked {
    User,
    /// Of a user, group or project, by number.
    OfUsers,
    Written,
    Native(Property),
    /// A name of no property.
    Unknown,
}

pub(super) fn asked(name: &str) -> Asked {
    if is_user_property(name) {
        Asked::User
    } else if split_user_space(name).is_some() {
        Asked::OfUsers
    } else if name.starts_with("written@") || name.starts_with("written#") {
        Asked::Written
    } else {
        Property::from_name(name).map_or(Asked::Unknown, Asked::Native)
    }
}

/// Whether a property has a value for programs at all.
fn is_hidden(property: Property) -> bool {
    matches!(property.name(), "mounted" | "iscsioptions")
}

fn number(value: u64) -> Data {
    Data::Int(value.cast_signed())
}

/// Where a value was set: the name of a dataset, or a word.
fn source(dataset: &str, source: &Source) -> Data {
    match source {
        Source::None | Source::Default => Data::text("default"),
        Source::Local => Data::text(dataset),
        Source::Temporary => Data::text("temporary"),
        Source::Inherited(from) => Data::text(from),
        Source::Received => Data::text("$recvd"),
    }
}

/// The value and the source of a property; nothing when it has none.
pub(super) fn shown(info: &DatasetInfo, name: &str, asked: &Asked) -> Vec<Data> {
    let Some(found) = info.property(name) else {
        return match (asked, name.contains("used@")) {
            (Asked::OfUsers, true) => vec![Data::Int(0), Data::text(&info.name)],
            (Asked::Native(property), _) if property.name() == "name" => {
                vec![Data::text(&info.name), Data::Nil]
            }
            _ => Vec::new(),
        };
    };
    match asked {
        Asked::User => vec![
            value_of_user(&found.value),
            source(&info.name, &found.source),
        ],
        // No quota is no value.
        Asked::OfUsers if found.value == Value::Number(0) && name.contains("quota@") => Vec::new(),
        Asked::OfUsers | Asked::Written => {
            vec![
                number(found.value.number().unwrap_or(0)),
                Data::text(&info.name),
            ]
        }
        Asked::Native(property) => native(info, found, *property),
        Asked::Unknown => Vec::new(),
    }
}

fn value_of_user(value: &Value) -> Data {
    match value {
        Value::Text(text) => Data::text(text),
        Value::Number(value) => Data::text(&value.to_string()),
    }
}

fn native(info: &DatasetInfo, found: &DatasetProperty, property: Property) -> Vec<Data> {
    if is_hidden(property) {
        return Vec::new();
    }
    let descriptor = property.descriptor();
    let value = match (&found.value, descriptor.value_type) {
        // Counts are kept once a limit is set.
        (Value::Number(u64::MAX), _) if property.name().ends_with("_count") => return Vec::new(),
        (Value::Number(value), PropertyType::Index) => {
            let name = descriptor.index.iter().find(|(_, number)| number == value);
            name.map_or_else(|| number(*value), |(name, _)| Data::text(name))
        }
        (Value::Number(value), _) => number(*value),
        (Value::Text(text), _) if property.name() == "clones" => array(text.split(',')),
        (Value::Text(text), _) => Data::text(text),
    };
    let computed = descriptor.attribute == Attribute::ReadOnly || property.name() == "version";
    let from = if computed {
        Data::Nil
    } else {
        source(&info.name, &found.source)
    };
    vec![value, from]
}

/// An array of texts.
pub(super) fn array<'a>(texts: impl Iterator<Item = &'a str>) -> Data {
    Data::Table((1..).map(Data::Int).zip(texts.map(Data::text)).collect())
}

/// The names of the native properties that a dataset has.
pub(super) fn system_names(info: &DatasetInfo) -> Data {
    let all = engine::property::PROPERTIES
        .iter()
        .filter(|descriptor| descriptor.visible);
    let own = all.filter(|descriptor| {
        let property = descriptor.property;
        let is_origin_of_none = property == Property::Origin && info.property("origin").is_none();
        property.applies_to(info.kind) && !is_hidden(property) && !is_origin_of_none
    });
    array(own.map(|descriptor| descriptor.name))
}

/// User properties of a dataset with their values and sources, in the order of their names.
pub(super) fn of_user(info: &DatasetInfo) -> Vec<Vec<Data>> {
    let users = info
        .properties
        .iter()
        .filter(|property| is_user_property(&property.name));
    users
        .map(|property| {
            vec![
                Data::text(&property.name),
                value_of_user(&property.value),
                source(&info.name, &property.source),
            ]
        })
        .collect()
}

/// Whether a property can be cleared by a program.
pub(super) fn can_be_cleared(name: &str) -> bool {
    match Property::from_name(name) {
        Some(property) => property.descriptor().attribute == Attribute::Inherit,
        None => is_user_property(name),
    }
}
