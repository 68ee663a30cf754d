//! The native properties of a pool: names, kinds, defaults and how values are written, as in
//! OpenZFS 2.3.  No pool is touched here; `feature@x` and user properties are handled by callers.
// OpenZFS: module/zcommon/zpool_prop.c (names, order, defaults), man/man7/zpoolprops.7.

pub(crate) mod get;
pub(crate) mod set;
pub(crate) mod stored;

use crate::PoolError;

/// A native pool property, in the order `zpool get all` prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the property names")]
pub enum PoolProperty {
    Size,
    Capacity,
    Altroot,
    Health,
    Guid,
    Version,
    Bootfs,
    Delegation,
    Autoreplace,
    Cachefile,
    Failmode,
    Listsnapshots,
    Autoexpand,
    Dedupratio,
    Free,
    Allocated,
    Readonly,
    Ashift,
    Comment,
    Expandsize,
    Freeing,
    Fragmentation,
    Leaked,
    Multihost,
    Checkpoint,
    LoadGuid,
    Autotrim,
    Compatibility,
    Bcloneused,
    Bclonesaved,
    Bcloneratio,
    DedupTableSize,
    DedupTableQuota,
    LastScrubbedTxg,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyKind {
    /// Bytes: `1.25G`, or exact with `-p`.
    Bytes,
    /// A plain number.
    Number,
    /// Percent: `12%`, or `12` with `-p`.
    Percent,
    /// Hundredths: `1.00x`, or `1.00` with `-p`.
    Ratio,
    /// Free text.
    Text,
    /// One of a fixed list of words.
    Index(&'static [&'static str]),
}

/// Where a value comes from, as `zpool get` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertySource {
    /// `-`: read-only or without a source.
    None,
    /// `default`.
    Default,
    /// `local`.
    Local,
}

impl PropertySource {
    /// Returns the word in the SOURCE column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Default => "default",
            Self::Local => "local",
        }
    }
}

/// A value of a pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A number in the property's unit.
    Number(u64),
    /// Text, or a word of the property's list.
    Text(String),
    /// No value (`-`).
    Absent,
}

/// One property of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyEntry {
    /// Name, for instance `size` or `feature@lz4_compress`.
    pub name: String,
    /// How the value is written.
    pub kind: PropertyKind,
    /// The value.
    pub value: PropertyValue,
    /// Where it comes from.
    pub source: PropertySource,
}

impl PropertyEntry {
    /// Returns the value as `zpool get -p` prints it.
    #[must_use]
    pub fn exact(&self) -> String {
        match (&self.value, self.kind) {
            (PropertyValue::Absent, _) => "-".into(),
            (PropertyValue::Text(text), _) => text.clone(),
            (PropertyValue::Number(n), PropertyKind::Ratio) => {
                format!("{}.{:02}", n / 100, n % 100)
            }
            (PropertyValue::Number(n), _) => n.to_string(),
        }
    }

    /// Returns the value as `zpool get` prints it for people.
    #[must_use]
    pub fn display(&self) -> String {
        match (&self.value, self.kind) {
            (PropertyValue::Number(n), PropertyKind::Bytes) => dsl::property::nice_number(*n),
            (PropertyValue::Number(n), PropertyKind::Percent) => format!("{n}%"),
            (PropertyValue::Number(_), PropertyKind::Ratio) => format!("{}x", self.exact()),
            _ => self.exact(),
        }
    }
}

const ON_OFF: PropertyKind = PropertyKind::Index(&["off", "on"]);

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct PropertyInfo {
    /// Which.
    pub property: PoolProperty,
    /// Name.
    pub name: &'static str,
    /// Column title of `zpool list -o`.
    pub column: &'static str,
    /// How values are written.
    pub kind: PropertyKind,
    /// May be set at some time.
    pub settable: bool,
    /// What the usage text of `zpool get` prints.
    pub values: &'static str,
}

const fn row(
    property: PoolProperty,
    name: &'static str,
    column: &'static str,
    kind: PropertyKind,
    settable: bool,
    values: &'static str,
) -> PropertyInfo {
    PropertyInfo {
        property,
        name,
        column,
        kind,
        settable,
        values,
    }
}

/// All native properties, in the order `zpool get all` prints them.
pub const PROPERTIES: &[PropertyInfo] = &[
    row(
        PoolProperty::Size,
        "size",
        "SIZE",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Capacity,
        "capacity",
        "CAP",
        PropertyKind::Percent,
        false,
        "<percent>",
    ),
    row(
        PoolProperty::Altroot,
        "altroot",
        "ALTROOT",
        PropertyKind::Text,
        true,
        "<path>",
    ),
    row(
        PoolProperty::Health,
        "health",
        "HEALTH",
        PropertyKind::Text,
        false,
        "<state>",
    ),
    row(
        PoolProperty::Guid,
        "guid",
        "GUID",
        PropertyKind::Number,
        false,
        "<guid>",
    ),
    row(
        PoolProperty::Version,
        "version",
        "VERSION",
        PropertyKind::Number,
        true,
        "<version>",
    ),
    row(
        PoolProperty::Bootfs,
        "bootfs",
        "BOOTFS",
        PropertyKind::Text,
        true,
        "<filesystem>",
    ),
    row(
        PoolProperty::Delegation,
        "delegation",
        "DELEGATION",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Autoreplace,
        "autoreplace",
        "REPLACE",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Cachefile,
        "cachefile",
        "CACHEFILE",
        PropertyKind::Text,
        true,
        "<file> | none",
    ),
    row(
        PoolProperty::Failmode,
        "failmode",
        "FAILMODE",
        PropertyKind::Index(&["wait", "continue", "panic"]),
        true,
        "wait | continue | panic",
    ),
    row(
        PoolProperty::Listsnapshots,
        "listsnapshots",
        "LISTSNAPS",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Autoexpand,
        "autoexpand",
        "EXPAND",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Dedupratio,
        "dedupratio",
        "DEDUP",
        PropertyKind::Ratio,
        false,
        "<1.00x or higher if deduped>",
    ),
    row(
        PoolProperty::Free,
        "free",
        "FREE",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Allocated,
        "allocated",
        "ALLOC",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Readonly,
        "readonly",
        "RDONLY",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Ashift,
        "ashift",
        "ASHIFT",
        PropertyKind::Number,
        true,
        "<ashift, 9-16, or 0=default>",
    ),
    row(
        PoolProperty::Comment,
        "comment",
        "COMMENT",
        PropertyKind::Text,
        true,
        "<comment-string>",
    ),
    row(
        PoolProperty::Expandsize,
        "expandsize",
        "EXPANDSZ",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Freeing,
        "freeing",
        "FREEING",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Fragmentation,
        "fragmentation",
        "FRAG",
        PropertyKind::Percent,
        false,
        "<percent>",
    ),
    row(
        PoolProperty::Leaked,
        "leaked",
        "LEAKED",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Multihost,
        "multihost",
        "MULTIHOST",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Checkpoint,
        "checkpoint",
        "CKPOINT",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::LoadGuid,
        "load_guid",
        "LOAD_GUID",
        PropertyKind::Number,
        false,
        "<load_guid>",
    ),
    row(
        PoolProperty::Autotrim,
        "autotrim",
        "AUTOTRIM",
        ON_OFF,
        true,
        "on | off",
    ),
    row(
        PoolProperty::Compatibility,
        "compatibility",
        "COMPATIBILITY",
        PropertyKind::Text,
        true,
        "<file[,file...]> | off | legacy",
    ),
    row(
        PoolProperty::Bcloneused,
        "bcloneused",
        "BCLONE_USED",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Bclonesaved,
        "bclonesaved",
        "BCLONE_SAVED",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::Bcloneratio,
        "bcloneratio",
        "BCLONE_RATIO",
        PropertyKind::Ratio,
        false,
        "<1.00x or higher if cloned>",
    ),
    row(
        PoolProperty::DedupTableSize,
        "dedup_table_size",
        "DDTSIZE",
        PropertyKind::Bytes,
        false,
        "<size>",
    ),
    row(
        PoolProperty::DedupTableQuota,
        "dedup_table_quota",
        "DDTQUOTA",
        PropertyKind::Bytes,
        true,
        "<size>",
    ),
    row(
        PoolProperty::LastScrubbedTxg,
        "last_scrubbed_txg",
        "LAST_SCRUBBED_TXG",
        PropertyKind::Number,
        false,
        "<txg>",
    ),
];

impl PoolProperty {
    /// Returns the property of that name, or of the column title that `zpool list` accepts as an
    /// abbreviation (`cap`, `alloc`, `frag`, `expandsz`, ...).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        PROPERTIES
            .iter()
            .find(|info| info.name == name || info.column.eq_ignore_ascii_case(name))
            .map(|info| info.property)
    }

    /// Returns the property's row of the table.
    #[must_use]
    pub fn info(self) -> &'static PropertyInfo {
        PROPERTIES
            .iter()
            .find(|info| info.property == self)
            .expect("every property has a row")
    }
}

/// Returns the number that stands for `value` of an on/off or word-list property.
///
/// # Errors
/// When the word is not in the list.
pub fn parse_index(info: &PropertyInfo, value: &str) -> Result<u64, PoolError> {
    let PropertyKind::Index(words) = info.kind else {
        return Err(PoolError::Invalid(format!(
            "property '{}' takes no word list",
            info.name
        )));
    };
    words
        .iter()
        .position(|word| *word == value)
        .and_then(|at| u64::try_from(at).ok())
        .ok_or_else(|| PoolError::BadProperty {
            name: info.name.into(),
            reason: format!("must be one of '{}'", info.values),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_is_found_by_name() {
        for info in PROPERTIES {
            assert_eq!(PoolProperty::parse(info.name), Some(info.property));
            assert_eq!(info.property.info().name, info.name);
        }
    }
}
