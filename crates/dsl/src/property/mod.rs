//! Native and user properties of datasets: what exists, what values mean, how they are shown.
//!
//! Pure: no I/O, no pool. How values are stored and inherited is in [`crate::property_zap`].

mod table;
mod text;

#[cfg(test)]
mod tests;

pub use table::{
    Attribute, DEDUP_VERIFY, DatasetKind, Descriptor, Kinds, PROPERTIES, Property, PropertyType,
};
pub use text::{
    BLOCK_MAX, NAME_MAX, PropertyError, SetContext, Setting, Source, USER_SPACE_PREFIXES,
    VALUE_MAX, Value, can_inherit, complete_settings, display, is_date, is_user_property,
    nice_bytes, nice_number, parse_number, parse_setting, split_user_space,
};
