//! How a file system is to be mounted, by its properties.

use engine::property::{DatasetKind, Property, Value};
use engine::{EngineError, PoolHandle, PropertyQuery};

use super::{Lists, MountFlags};

/// Returns how the properties of a dataset want it mounted.
pub(crate) async fn mount_flags(
    pool: &PoolHandle,
    dataset: &str,
) -> Result<MountFlags, EngineError> {
    let names = [
        "readonly", "devices", "setuid", "exec", "overlay", "acltype",
    ];
    let query = PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let info = pool.dataset(dataset, &query).await?;
    let number = |name: &str| match info.property(name).map(|property| &property.value) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let is = |name: &str, wanted: u64| number(name) == Some(wanted);
    Ok(MountFlags {
        readonly: pool.readonly() || is("readonly", 1) || info.kind == DatasetKind::Snapshot,
        no_devices: is("devices", 0),
        no_setuid: is("setuid", 0),
        no_exec: is("exec", 0),
        needs_empty: is("overlay", 0),
        for_samba: false,
        lists: match number("acltype").and_then(|number| Property::AclType.index_name(number)) {
            Some("posix") => Lists::Posix,
            Some("nfsv4") => Lists::Nfsv4,
            _ => Lists::Off,
        },
    })
}
