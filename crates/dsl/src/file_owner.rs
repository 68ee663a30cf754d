//! The owner an object is charged to, as the object layer asks for it.

use dmu::Owner;
use ondisk::ObjectType;
use ondisk::file_owner;

/// Finds the owner in a bonus buffer; `None` for objects that are not charged to an owner.
#[must_use]
pub fn owner_of(bonus_type: ObjectType, bonus: &[u8]) -> Option<Owner> {
    let owner = file_owner::decode(bonus_type, bonus)?;
    Some(Owner {
        uid: owner.uid,
        gid: owner.gid,
        project: owner.project,
    })
}
