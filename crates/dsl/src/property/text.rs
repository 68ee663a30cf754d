//! Property values as text: parsing what a user typed and showing what a pool holds.
//!
//! The forms and the sentences of errors are those of OpenZFS 2.3's commands, since tools match
//! them. Dates are the one exception: without `-p` they depend on the machine's time zone, which
//! the engine does not know, so [`display`] gives the seconds and [`is_date`] tells the caller to
//! format them.

use super::table::{Attribute, DatasetKind, Property, PropertyType};

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A number, or the number of an index value.
    Number(u64),
    /// Text.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Text(t) => Some(t),
        }
    }
}

/// Where an effective value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Not a stored property: computed, or fixed at creation.
    None,
    /// It is not set.
    Default,
    /// Set on this dataset.
    Local,
    /// In force only while mounted or imported so.
    Temporary,
    /// Set on the named ancestor (or, for a snapshot, on its dataset).
    Inherited(String),
    /// Came with a received stream.
    Received,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Default => f.write_str("default"),
            Self::Local => f.write_str("local"),
            Self::Temporary => f.write_str("temporary"),
            Self::Inherited(from) => write!(f, "inherited from {from}"),
            Self::Received => f.write_str("received"),
        }
    }
}

/// Why a property or its value was refused; the text is the part after the colon in the
/// messages of `zfs set` and `zfs create`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropertyError {
    /// No such native property and not the form of a user property.
    #[error("invalid property '{0}'")]
    Invalid(String),
    /// Exists, but not for this kind of dataset.
    #[error("'{0}' does not apply to datasets of this type")]
    NotForType(String),
    /// Computed, or fixed at creation.
    #[error("'{0}' is readonly")]
    ReadOnly(String),
    /// Belongs to one dataset alone (quotas, reservations, what is computed).
    #[error("'{0}' property cannot be inherited")]
    NotInherited(String),
    /// Snapshots have user properties only.
    #[error("this property can not be modified for snapshots")]
    NotForSnapshots,
    /// Not one of the value names.
    #[error("'{property}' must be one of '{values}'")]
    NotOneOf {
        /// The property.
        property: &'static str,
        /// Its grammar.
        values: &'static str,
    },
    /// Not a number.
    #[error("bad numeric value '{0}'")]
    BadNumber(String),
    /// A number with an unknown unit.
    #[error("invalid numeric suffix '{0}'")]
    BadSuffix(String),
    /// Does not fit 64 bits.
    #[error("numeric value is too large")]
    NumberTooLarge,
    /// Zero was given to a quota.
    #[error("use 'none' to disable quota/refquota")]
    QuotaZero,
    /// `auto` where it means nothing.
    #[error("'auto' is invalid value for '{0}'")]
    AutoInvalid(String),
    /// `refreservation=auto` on a file system.
    #[error("'{0}=auto' only allowed on volumes")]
    AutoOnlyVolumes(String),
    /// A block size that is not a power of two or out of range.
    #[error("'{property}' must be power of 2 from 512B to {max}")]
    BlockSize {
        /// The property.
        property: &'static str,
        /// The largest block size, displayed.
        max: String,
    },
    /// A bad threshold for small blocks.
    #[error(
        "invalid '{property}={value}' property: must be zero or a power of 2 from 512B to {max}"
    )]
    SmallBlocks {
        /// The property.
        property: &'static str,
        /// The value refused.
        value: u64,
        /// The largest block size, displayed.
        max: String,
    },
    /// A mount point that is not an absolute path.
    #[error("'{0}' must be an absolute path, 'none', or 'legacy'")]
    MountPoint(String),
    /// A mount point component above 255 bytes.
    #[error("component of '{0}' is too long")]
    MountPointTooLong(String),
    /// A string of 4096 bytes or more.
    #[error("'{0}' is too long")]
    TooLong(String),
    /// A user property name of 256 bytes or more.
    #[error("property name '{0}' is too long")]
    NameTooLong(String),
    /// Going back to an older file system version.
    #[error("Can not downgrade; already at version {0}")]
    Downgrade(u64),
    /// Something was said about the key of a dataset that is not to be encrypted.
    #[error("Encryption must be turned on to set encryption properties.")]
    EncryptionOff,
    /// Encryption is asked for in a pool without the feature.
    #[error("Encryption feature not enabled.")]
    EncryptionFeature,
    /// A dataset is to have a key of its own, and it is not said which form it has.
    #[error("Keyformat required for new encryption root.")]
    KeyFormatNeeded,
    /// A clone is encrypted like its origin.
    #[error("Encryption properties must inherit from origin dataset.")]
    EncryptionOfClone,
    /// Iterations are for passphrases alone.
    #[error("Cannot specify pbkdf2iters with a non-passphrase keyformat.")]
    IterationsWithoutPassphrase,
    /// Fewer iterations than a passphrase needs.
    #[error("minimum pbkdf2 iterations is {0}")]
    Iterations(u64),
    /// Normalization needs valid UTF-8.
    #[error("'utf8only' must be set 'on' if normalization chosen")]
    Utf8Needed,
    /// A volume size that is not a multiple of its block size.
    #[error("'{property}' must be a multiple of volume block size ({block})")]
    VolumeMultiple {
        /// The property.
        property: &'static str,
        /// The volume's block size, displayed.
        block: String,
    },
    /// A volume of no size.
    #[error("'{0}' cannot be zero")]
    Zero(String),
    /// Security labels are not supported here.
    #[error("mlslabels are unsupported")]
    MlsLabel,
    /// A key location on a dataset without encryption.
    #[error("keylocation must be 'none' for unencrypted datasets")]
    KeyLocationUnencrypted,
    /// No key location on a dataset with encryption.
    #[error("keylocation must not be 'none' for encrypted datasets")]
    KeyLocationEncrypted,
    /// A key location on a dataset that inherits its key.
    #[error("keylocation may only be set on encryption roots")]
    KeyLocationInherited,
    /// A key location that is none of the known forms.
    #[error("invalid keylocation")]
    KeyLocation,
    /// A per-user quota name that does not parse.
    #[error("'{0}' has an invalid user/group name")]
    UserName(String),
}

/// Iterations for a passphrase at least.
// OpenZFS: include/sys/fs/zfs.h, MIN_PBKDF2_ITERATIONS
const ITERATIONS_MIN: u64 = 100_000;
/// Bytes in a property value or mount point at most.
pub const VALUE_MAX: usize = 4096;
/// Bytes in a property name at most (one less than the ZAP's 256, for its NUL).
pub const NAME_MAX: usize = 255;
/// Largest block size the format allows.
pub const BLOCK_MAX: u64 = 16 << 20;

/// Whether `name` has the form of a user property: a colon, and only lower-case letters, digits
/// and `:+._-`.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name.bytes().all(|c| {
            c.is_ascii_lowercase()
                || c.is_ascii_digit()
                || matches!(c, b'-' | b'_' | b'.' | b':' | b'+')
        })
}

/// The per-user space properties (`userused@`, `groupquota@`, ...), prefix only.
pub const USER_SPACE_PREFIXES: [&str; 12] = [
    "userused@",
    "userquota@",
    "groupused@",
    "groupquota@",
    "userobjused@",
    "userobjquota@",
    "groupobjused@",
    "groupobjquota@",
    "projectused@",
    "projectquota@",
    "projectobjused@",
    "projectobjquota@",
];

/// The prefix of [`USER_SPACE_PREFIXES`] that `name` starts with, and the rest.
#[must_use]
pub fn split_user_space(name: &str) -> Option<(&'static str, &str)> {
    USER_SPACE_PREFIXES
        .iter()
        .find_map(|p| name.strip_prefix(p).map(|rest| (*p, rest)))
}

/// Whether the number is a date in seconds since 1970, shown in local time without `-p`.
#[must_use]
pub fn is_date(property: Property) -> bool {
    matches!(property, Property::Creation | Property::SnapshotsChanged)
}

/// Shows a value as `zfs get` does; `literal` is `-p`.
#[must_use]
pub fn display(property: Property, value: &Value, literal: bool) -> String {
    let number = match value {
        Value::Text(text) => return text.clone(),
        Value::Number(n) => *n,
    };
    match property {
        Property::Quota | Property::RefQuota | Property::Reservation | Property::RefReservation => {
            match (number, literal) {
                (0, false) => "none".into(),
                (n, true) => n.to_string(),
                (n, false) => nice_bytes(n),
            }
        }
        Property::FilesystemLimit
        | Property::SnapshotLimit
        | Property::FilesystemCount
        | Property::SnapshotCount => match (number, literal) {
            (u64::MAX, _) => "none".into(),
            (n, true) => n.to_string(),
            (n, false) => nice_number(n),
        },
        Property::CompressRatio | Property::RefCompressRatio => {
            let x = if literal { "" } else { "x" };
            format!("{}.{:02}{x}", number / 100, number % 100)
        }
        Property::Mounted => if number != 0 { "yes" } else { "no" }.into(),
        Property::Guid
        | Property::KeyGuid
        | Property::IvsetGuid
        | Property::CreateTxg
        | Property::ObjsetId
        | Property::Pbkdf2Iters
        | Property::Creation
        | Property::SnapshotsChanged => number.to_string(),
        Property::Referenced
        | Property::Available
        | Property::Used
        | Property::UsedBySnapshots
        | Property::UsedByDataset
        | Property::UsedByRefReservation
        | Property::UsedByChildren => {
            if literal {
                number.to_string()
            } else {
                nice_bytes(number)
            }
        }
        _ => match property.descriptor().value_type {
            PropertyType::Index => property
                .index_name(number)
                .map_or_else(|| "-".into(), str::to_owned),
            _ if literal => number.to_string(),
            _ => nice_number(number),
        },
    }
}

/// A number in at most five characters with a binary unit: `0`, `512`, `1.50K`, `10.0K`, `128K`.
#[must_use]
pub fn nice_number(number: u64) -> String {
    nice(number, "")
}

/// As [`nice_number`], with `B` when there is no larger unit: `0B`, `512B`, `1.50K`.
#[must_use]
pub fn nice_bytes(number: u64) -> String {
    nice(number, "B")
}

#[allow(
    clippy::cast_precision_loss,
    reason = "at most five characters are shown"
)]
fn nice(number: u64, unit_of_one: &str) -> String {
    let units = [unit_of_one, "K", "M", "G", "T", "P", "E"];
    let mut index = 0;
    let mut whole = number;
    while whole >= 1024 && index < 6 {
        whole /= 1024;
        index += 1;
    }
    let unit = units[index];
    let scale = 1u64 << (10 * index);
    if index == 0 || number.is_multiple_of(scale) {
        return format!("{whole}{unit}");
    }
    let value = number as f64 / scale as f64;
    let mut text = String::new();
    for digits in [2, 1, 0] {
        text = format!("{value:.digits$}{unit}");
        if text.len() <= 5 {
            break;
        }
    }
    text
}

/// Parses a size or count: digits, an optional fraction, an optional unit `BKMGTPEZ` in any case,
/// with `B` or `iB` after it allowed.
///
/// # Errors
/// The three number variants of [`PropertyError`].
pub fn parse_number(text: &str) -> Result<u64, PropertyError> {
    let bad = || PropertyError::BadNumber(text.into());
    let first = text.bytes().next().ok_or_else(bad)?;
    if !(first.is_ascii_digit() || first == b'.') {
        return Err(bad());
    }
    let integer_end = text
        .bytes()
        .position(|c| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (integer, rest) = text.split_at(integer_end);
    if let Some(after_point) = rest.strip_prefix('.') {
        let fraction_end = after_point
            .bytes()
            .position(|c| !c.is_ascii_digit())
            .unwrap_or(after_point.len());
        let (fraction, suffix) = after_point.split_at(fraction_end);
        let value: f64 = format!("0{integer}.{fraction}0")
            .parse()
            .map_err(|_| bad())?;
        let shift = shift_of(suffix)?;
        let scaled = value * 2f64.powi(i32::from(shift));
        // u64::MAX rounds up to 2^64 as a double, so an equal value is too large as well.
        if scaled >= 18_446_744_073_709_551_616.0 {
            return Err(PropertyError::NumberTooLarge);
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 <= scaled < 2^64 was just checked; the fraction is dropped as OpenZFS does"
        )]
        return Ok(scaled as u64);
    }
    let value: u64 = if integer.is_empty() {
        0
    } else {
        integer.parse().map_err(|_| PropertyError::NumberTooLarge)?
    };
    let shift = u32::from(shift_of(rest)?);
    if value == 0 {
        return Ok(0);
    }
    if shift >= 64 || shift > value.leading_zeros() {
        return Err(PropertyError::NumberTooLarge);
    }
    Ok(value << shift)
}

fn shift_of(suffix: &str) -> Result<u8, PropertyError> {
    let upper = suffix.to_ascii_uppercase();
    let Some((unit, rest)) = upper.split_at_checked(1) else {
        return Ok(0);
    };
    let position = "BKMGTPEZ".find(unit).and_then(|p| u8::try_from(p).ok());
    match (position, rest) {
        (Some(p), "") => Ok(10 * p),
        (Some(p), "B" | "IB") if p != 0 => Ok(10 * p),
        _ => Err(PropertyError::BadSuffix(suffix.into())),
    }
}

/// What is known about the dataset whose property is being set.
#[derive(Clone, Copy, Debug)]
pub struct SetContext {
    /// Kind of the dataset.
    pub kind: DatasetKind,
    /// Whether it is being created (set-once properties are allowed).
    pub creating: bool,
    /// Largest block the pool allows, bytes (`large_blocks` enabled: 16 MiB, else 128 KiB).
    pub block_max: u64,
}

/// A property ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A native property.
    Native(Property, Value),
    /// A user property (`module:name`).
    User(String, String),
    /// A per-user quota: prefix, name or number after the `@`, value in bytes or objects.
    UserQuota(&'static str, String, u64),
}

impl Setting {
    /// The property's name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Native(p, _) => p.name().into(),
            Self::User(n, _) => n.clone(),
            Self::UserQuota(prefix, who, _) => format!("{prefix}{who}"),
        }
    }
}

/// Checks and converts one `name=value` as typed.
///
/// Checks that need other datasets (quota against space used, mount point clashes) are made where
/// the property is set, not here.
///
/// # Errors
/// Why the name or the value is refused, worded for the user.
pub fn parse_setting(
    name: &str,
    text: &str,
    context: SetContext,
) -> Result<Setting, PropertyError> {
    let property = Property::from_name(name);
    if property.is_none() && is_user_property(name) {
        if name.len() > NAME_MAX {
            return Err(PropertyError::NameTooLong(name.into()));
        }
        if text.len() >= 2 * VALUE_MAX {
            return Err(PropertyError::TooLong(name.into()));
        }
        return Ok(Setting::User(name.into(), text.into()));
    }
    if context.kind == DatasetKind::Snapshot {
        return Err(PropertyError::NotForSnapshots);
    }
    if let Some((prefix, who)) = split_user_space(name) {
        if !prefix.ends_with("quota@") {
            return Err(PropertyError::ReadOnly(name.into()));
        }
        if who.is_empty() {
            return Err(PropertyError::UserName(name.into()));
        }
        let limit = if text == "none" {
            0
        } else {
            parse_number(text)?
        };
        return Ok(Setting::UserQuota(prefix, who.into(), limit));
    }
    if name.starts_with("written@") || name.starts_with("written#") {
        return Err(PropertyError::ReadOnly(name.into()));
    }
    let property = property.ok_or_else(|| PropertyError::Invalid(name.into()))?;
    // Messages show the name as it was typed, which may be a column heading.
    if !property.applies_to(context.kind) {
        return Err(PropertyError::NotForType(name.into()));
    }
    let key_parameter = matches!(
        property,
        Property::Encryption | Property::KeyFormat | Property::KeyLocation | Property::Pbkdf2Iters
    );
    if property.read_only()
        && !(property.set_once() && context.creating)
        && !(key_parameter && context.creating)
    {
        return Err(PropertyError::ReadOnly(name.into()));
    }
    let value = parse_value(property, name, text, context)?;
    check_value(property, name, &value, context)?;
    Ok(Setting::Native(property, value))
}

fn parse_value(
    property: Property,
    name: &str,
    text: &str,
    context: SetContext,
) -> Result<Value, PropertyError> {
    let descriptor = property.descriptor();
    match descriptor.value_type {
        PropertyType::String => {
            if text.len() >= VALUE_MAX {
                return Err(PropertyError::TooLong(name.into()));
            }
            Ok(Value::Text(text.into()))
        }
        PropertyType::Number => {
            let is_limit = matches!(
                property,
                Property::FilesystemLimit | Property::SnapshotLimit
            );
            let number = match text {
                "none" if is_limit => u64::MAX,
                "none" => 0,
                "auto" if property == Property::RefReservation => {
                    if context.kind != DatasetKind::Volume {
                        return Err(PropertyError::AutoOnlyVolumes(name.into()));
                    }
                    u64::MAX
                }
                "auto" => return Err(PropertyError::AutoInvalid(name.into())),
                _ => {
                    let number = parse_number(text)?;
                    if number == 0 && matches!(property, Property::Quota | Property::RefQuota) {
                        return Err(PropertyError::QuotaZero);
                    }
                    number
                }
            };
            Ok(Value::Number(number))
        }
        PropertyType::Index => {
            property
                .index_number(text)
                .map(Value::Number)
                .ok_or(PropertyError::NotOneOf {
                    property: descriptor.name,
                    values: descriptor.values,
                })
        }
    }
}

fn check_value(
    property: Property,
    name: &str,
    value: &Value,
    context: SetContext,
) -> Result<(), PropertyError> {
    let descriptor = property.descriptor();
    let number = value.number().unwrap_or(0);
    let block = |n: u64| (512..=context.block_max).contains(&n) && n.is_power_of_two();
    match property {
        Property::RecordSize | Property::VolBlockSize if !block(number) => {
            Err(PropertyError::BlockSize {
                property: descriptor.name,
                max: nice_bytes(context.block_max),
            })
        }
        Property::SpecialSmallBlocks if number != 0 && !block(number) => {
            Err(PropertyError::SmallBlocks {
                property: descriptor.name,
                value: number,
                max: nice_bytes(context.block_max),
            })
        }
        Property::MlsLabel => Err(PropertyError::MlsLabel),
        Property::MountPoint => check_mount_point(name, value.text().unwrap_or("")),
        Property::KeyLocation => {
            let text = value.text().unwrap_or("");
            let known = matches!(text, "none" | "prompt")
                || ["file:///", "https://", "http://"]
                    .iter()
                    .any(|p| text.starts_with(p));
            known.then_some(()).ok_or(PropertyError::KeyLocation)
        }
        Property::Pbkdf2Iters if number < ITERATIONS_MIN => {
            Err(PropertyError::Iterations(ITERATIONS_MIN))
        }
        _ => Ok(()),
    }
}

fn check_mount_point(name: &str, path: &str) -> Result<(), PropertyError> {
    if path == "none" || path == "legacy" {
        return Ok(());
    }
    if !path.starts_with('/') {
        return Err(PropertyError::MountPoint(name.into()));
    }
    if path.split('/').any(|component| component.len() > 255) {
        return Err(PropertyError::MountPointTooLong(name.into()));
    }
    Ok(())
}

/// Makes the settings of one `zfs create` agree with each other: normalization implies
/// `utf8only`.
///
/// # Errors
/// [`PropertyError::Utf8Needed`] when normalization was asked for and UTF-8 refused.
pub fn complete_settings(settings: &mut Vec<Setting>) -> Result<(), PropertyError> {
    let find = |wanted: Property| {
        settings.iter().find_map(|s| match s {
            Setting::Native(p, Value::Number(n)) if *p == wanted => Some(*n),
            _ => None,
        })
    };
    match (find(Property::Normalization), find(Property::Utf8Only)) {
        (Some(n), None) if n > 0 => {
            settings.push(Setting::Native(Property::Utf8Only, Value::Number(1)));
        }
        (Some(n), Some(0)) if n > 0 => return Err(PropertyError::Utf8Needed),
        (None, Some(0)) => {
            settings.push(Setting::Native(Property::Normalization, Value::Number(0)));
        }
        _ => {}
    }
    Ok(())
}

/// Whether a property may be given to `zfs inherit`: it is stored and can be cleared.
#[must_use]
pub fn can_inherit(property: Property) -> bool {
    matches!(property.descriptor().attribute, Attribute::Inherit)
}
