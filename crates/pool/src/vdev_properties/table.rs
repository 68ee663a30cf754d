//! The native properties of a vdev: names, order, defaults and values, as in OpenZFS 2.3, and two of 2.4 (`sit_out`, `autosit`).
// OpenZFS: module/zcommon/zpool_prop.c, man/man7/vdevprops.7

use crate::PoolError;
use crate::properties::PropertyKind;
use crate::properties::set::{TEXT_MAX, parse_user};
use crate::properties::stored::StoredValue;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct VdevPropertyInfo {
    /// Name; the key in the vdev's ZAP.
    pub name: &'static str,
    /// How values are written.
    pub kind: PropertyKind,
    /// May be set.
    pub settable: bool,
    /// What the usage text prints.
    pub values: &'static str,
}

const ON_OFF: PropertyKind = PropertyKind::Index(&["off", "on"]);
const FAILFAST: PropertyKind = PropertyKind::Index(&["off", "on", "inherit"]);

const fn shown(name: &'static str, kind: PropertyKind, values: &'static str) -> VdevPropertyInfo {
    VdevPropertyInfo {
        name,
        kind,
        settable: false,
        values,
    }
}

const fn set(name: &'static str, kind: PropertyKind, values: &'static str) -> VdevPropertyInfo {
    VdevPropertyInfo {
        name,
        kind,
        settable: true,
        values,
    }
}

/// All native properties, in the order `zpool get all POOL VDEV` prints them.
pub const VDEV_PROPERTIES: &[VdevPropertyInfo] = &[
    shown("capacity", PropertyKind::Percent, "<size>"),
    shown("state", PropertyKind::Number, "<state>"),
    shown("guid", PropertyKind::Number, "<guid>"),
    shown("asize", PropertyKind::Bytes, "<asize>"),
    shown("psize", PropertyKind::Bytes, "<psize>"),
    shown("ashift", PropertyKind::Number, "<ashift>"),
    shown("size", PropertyKind::Bytes, "<size>"),
    shown("free", PropertyKind::Bytes, "<size>"),
    shown("allocated", PropertyKind::Bytes, "<size>"),
    set("comment", PropertyKind::Text, "<comment-string>"),
    shown("expandsize", PropertyKind::Bytes, "<size>"),
    shown("fragmentation", PropertyKind::Percent, "<percent>"),
    shown("bootsize", PropertyKind::Bytes, "<size>"),
    shown("parity", PropertyKind::Number, "<parity>"),
    set("path", PropertyKind::Text, "<device-path>"),
    shown("devid", PropertyKind::Text, "<devid>"),
    shown("physpath", PropertyKind::Text, "<physpath>"),
    shown("encpath", PropertyKind::Text, "<encpath>"),
    shown("fru", PropertyKind::Text, "<fru>"),
    shown("parent", PropertyKind::Text, "<parent>"),
    shown("children", PropertyKind::Text, "<child[,...]>"),
    shown("numchildren", PropertyKind::Number, "<number-of-children>"),
    shown("read_errors", PropertyKind::Bytes, "<errors>"),
    shown("write_errors", PropertyKind::Bytes, "<errors>"),
    shown("checksum_errors", PropertyKind::Bytes, "<errors>"),
    shown("initialize_errors", PropertyKind::Bytes, "<errors>"),
    shown("null_ops", PropertyKind::Bytes, "<operations>"),
    shown("read_ops", PropertyKind::Bytes, "<operations>"),
    shown("write_ops", PropertyKind::Bytes, "<operations>"),
    shown("free_ops", PropertyKind::Bytes, "<operations>"),
    shown("claim_ops", PropertyKind::Bytes, "<operations>"),
    shown("trim_ops", PropertyKind::Bytes, "<operations>"),
    shown("null_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("read_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("write_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("free_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("claim_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("trim_bytes", PropertyKind::Bytes, "<bytes>"),
    shown("removing", ON_OFF, "on | off"),
    set("allocating", ON_OFF, "on | off"),
    set("failfast", FAILFAST, "on | off | inherit"),
    set("checksum_n", PropertyKind::Number, "<events>"),
    set("checksum_t", PropertyKind::Number, "<seconds>"),
    set("io_n", PropertyKind::Number, "<events>"),
    set("io_t", PropertyKind::Number, "<seconds>"),
    set("slow_io_n", PropertyKind::Number, "<events>"),
    set("slow_io_t", PropertyKind::Number, "<seconds>"),
    shown("trim_support", ON_OFF, "on | off"),
    shown("trim_errors", PropertyKind::Bytes, "<errors>"),
    shown("slow_ios", PropertyKind::Bytes, "<slowios>"),
    set("sit_out", ON_OFF, "on | off"),
    set("autosit", ON_OFF, "on | off"),
];

/// What names of the pool's own entries in a vdev's ZAP begin with: they are not to be set.
const RESERVED: &[&str] = &[
    "com.datto:",
    "com.delphix:",
    "com.klarasystems:",
    "org.illumos:",
    "org.openzfs:",
    "org.zfsonlinux:",
];

/// Returns a property's row, or `None` for one of the user.
pub(super) fn info(name: &str) -> Option<&'static VdevPropertyInfo> {
    VDEV_PROPERTIES.iter().find(|info| info.name == name)
}

/// Whether an entry is the pool's own, though its name looks like one of users.
pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|begin| name.starts_with(begin))
}

/// Reads a value that is to be set. `None` takes a property of the user away.
pub(super) fn parse(name: &str, value: &str) -> Result<Option<StoredValue>, PoolError> {
    let bad = |text: String| Err(PoolError::Invalid(text));
    let Some(info) = info(name) else {
        if is_reserved(name) {
            return bad(format!("'{name}' is readonly"));
        }
        return parse_user(name, value);
    };
    if value.len() >= TEXT_MAX {
        return bad(format!("property value '{value}' is too long"));
    }
    if !info.settable {
        return bad(format!("'{name}' is readonly"));
    }
    match info.kind {
        PropertyKind::Index(words) => {
            let at = words.iter().position(|word| *word == value);
            let Some(at) = at.and_then(|at| u64::try_from(at).ok()) else {
                return bad(format!("'{name}' must be one of '{}'", info.values));
            };
            Ok(Some(StoredValue::Number(at)))
        }
        PropertyKind::Number => match value {
            "none" | "-" => Ok(Some(StoredValue::Number(u64::MAX))),
            _ => match value.parse() {
                Ok(number) => Ok(Some(StoredValue::Number(number))),
                Err(_) => bad(format!("'{name}' must be a number")),
            },
        },
        _ => Ok(Some(StoredValue::Text(value.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let fails = |name: &str, value: &str, text: &str| {
            assert_eq!(parse(name, value).unwrap_err().to_string(), text);
        };
        fails("guid", "1", "'guid' is readonly");
        fails("nonsense", "1", "invalid property 'nonsense'");
        fails("org:Big", "1", "invalid property 'org:Big'");
        fails(
            "allocating",
            "maybe",
            "'allocating' must be one of 'on | off'",
        );
        fails("io_n", "-3", "'io_n' must be a number");
        let own = "org.zfsonlinux:allocation_bias";
        fails(own, "log", "'org.zfsonlinux:allocation_bias' is readonly");
        assert_eq!(parse("org:x", "").unwrap(), None);
        let never = Some(StoredValue::Number(u64::MAX));
        assert_eq!(parse("io_n", "none").unwrap(), never);
        let inherit = Some(StoredValue::Number(2));
        assert_eq!(parse("failfast", "inherit").unwrap(), inherit);
    }
}
