//! Datasets that were received redacted: neither mounted nor shared unless that is asked for.

use engine::DatasetInfo;

/// Whether a dataset was received redacted: such a one is mounted by `zfs mount -f` alone, and shared while it is mounted. False where the
/// property `redacted` was not asked for.
pub(crate) fn is_redacted(info: &DatasetInfo) -> bool {
    let property = info.property("redacted");
    property.and_then(|property| property.value.number()) == Some(1)
}
