//! Properties of a receive: those that the stream brings, those that are set (`-o`) and those that are left out (`-x`).
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_setup_cmdline_props; module/zfs/zfs_ioctl.c, zfs_ioc_recv_impl.

use dsl::stream::{NvList, NvValue};
use dsl::{NewKey, ReceivedChange};

use crate::property::{DatasetKind, Property, Setting, Value, is_user_property};

/// What the command line says of properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyOverrides {
    /// `-o NAME=VALUE`, as typed.
    pub set: Vec<(String, String)>,
    /// `-x NAME`.
    pub excluded: Vec<String>,
}

/// How a new dataset is encrypted whose blocks come as plain text.
#[derive(Debug, Default)]
pub(super) struct NewEncryption {
    pub(super) settings: Vec<Setting>,
    pub(super) key: Option<NewKey>,
}

/// Whether a property says how a dataset is encrypted.
// OpenZFS: module/zcommon/zfs_prop.c, zfs_prop_encryption_key_param
pub(super) fn is_of_keys(name: &str) -> bool {
    matches!(
        Property::from_name(name),
        Some(
            Property::Encryption
                | Property::KeyFormat
                | Property::KeyLocation
                | Property::Pbkdf2Iters
        )
    )
}

/// What a stream brings, as settings; names that are not known here, and values of another type than the property's, are left out.
pub(super) fn settings_of(list: &NvList) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (name, value) in list.iter() {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        // Where keys are is settled with the encryption roots.
        if name == Property::KeyLocation.name() {
            continue;
        }
        let value = match value {
            NvValue::U64(number) => Value::Number(*number),
            NvValue::Str(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
            _ => continue,
        };
        match (Property::from_name(name), value) {
            (Some(property), value) => {
                let is_text =
                    property.descriptor().value_type == crate::property::PropertyType::String;
                if is_text == value.text().is_some() {
                    settings.push(Setting::Native(property, value));
                }
            }
            (None, Value::Text(text)) if is_user_property(name) => {
                settings.push(Setting::User(name.to_owned(), text));
            }
            _ => {}
        }
    }
    settings
}

/// The name under which a property is stored.
pub(super) fn stored_name(name: &str) -> String {
    Property::from_name(name).map_or_else(|| name.to_owned(), |native| native.name().to_owned())
}

/// Whether a property is set only when all has been received: until then it would stand in the way, or has nothing to act on.
// OpenZFS: module/zfs/zfs_ioctl.c, extract_delay_props
pub(super) fn is_delayed(change: &ReceivedChange) -> bool {
    matches!(
        change.name().as_str(),
        "refquota" | "keylocation" | "sharesmb"
    )
}

/// Whether a property applies to what is received.
pub(super) fn applies(name: &str, kind: DatasetKind) -> bool {
    match Property::from_name(name) {
        Some(property) => property.applies_to(kind),
        None => is_user_property(name),
    }
}
