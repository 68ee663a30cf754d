//! Object sets: the root block of a dataset (or of the pool's meta object set).
//!
//! OpenZFS: include/sys/dmu_objset.h, objset_phys_t. Three lengths exist: 1024 (no accounting), 2048 (no project
//! accounting), 4096 (what is written today).

use crate::bytes::{bytes_at, need, put_bytes, put_u64, slice_at, u64_at};
use crate::zil::ZilHeader;
use crate::{DNODE_MIN_SIZE, DecodeError, DnodePhys, Result};

/// Bytes of an objset block as written today.
pub const OBJSET_SIZE: usize = 4096;
/// Bytes of an objset block without accounting of owners, as pools before version 15 have them.
// OpenZFS: include/sys/dmu_objset.h, OBJSET_PHYS_SIZE_V1
pub const OBJSET_SIZE_WITHOUT_ACCOUNTING: usize = 1024;
/// First byte of the type.
const TYPE_AT: usize = 704;

/// What an objset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ObjsetType(pub u64);

impl ObjsetType {
    pub const NONE: Self = Self(0);
    /// The pool's meta object set.
    pub const META: Self = Self(1);
    pub const ZFS: Self = Self(2);
    pub const ZVOL: Self = Self(3);
    pub const OTHER: Self = Self(4);

    /// The type in an objset block, or in its first kilobyte.
    ///
    /// # Errors
    /// [`DecodeError`] when the block is too short.
    pub fn of_block(buf: &[u8]) -> Result<Self> {
        need(buf, 1024, "objset")?;
        Ok(Self(u64_at(buf, TYPE_AT)))
    }
}

/// Bits of [`ObjsetPhys::flags`].
pub mod objset_flags {
    /// User and group space accounting covers every object.
    pub const USER_ACCOUNTING_COMPLETE: u64 = 1;
    /// Per-user object counts cover every object.
    pub const USER_OBJECT_ACCOUNTING_COMPLETE: u64 = 2;
    /// Project accounting covers every object.
    pub const PROJECT_QUOTA_COMPLETE: u64 = 4;
}

/// An objset block, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjsetPhys {
    /// Object 0: its data blocks are the dnodes of all others.
    pub meta_dnode: DnodePhys,
    pub zil_header: ZilHeader,
    pub objset_type: ObjsetType,
    /// Bits of [`objset_flags`].
    pub flags: u64,
    pub portable_mac: [u8; 32],
    pub local_mac: [u8; 32],
    /// Space used by user id (a ZAP), or a free dnode.
    pub user_used: DnodePhys,
    /// Space used by group id (a ZAP), or a free dnode.
    pub group_used: DnodePhys,
    /// Space used by project id (a ZAP), or a free dnode.
    pub project_used: DnodePhys,
}

impl ObjsetPhys {
    /// Decodes an objset block of 1024, 2048 or at least 4096 bytes.
    ///
    /// # Errors
    /// [`DecodeError`] when the block is too short or one of its dnodes is impossible.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, 1024, "objset")?;
        let dnode = |offset: usize, needed: usize| {
            if buf.len() < needed {
                return Ok(DnodePhys::default());
            }
            DnodePhys::decode(slice_at(buf, offset, DNODE_MIN_SIZE))
                .map_err(|e| DecodeError::new(e.what, e.offset + offset))
        };
        let meta_dnode = dnode(0, 0)?;
        if meta_dnode.is_free() {
            return Err(DecodeError::new("objset meta dnode", 0));
        }
        Ok(Self {
            meta_dnode,
            zil_header: ZilHeader::decode(slice_at(buf, 512, ZilHeader::SIZE))?,
            objset_type: ObjsetType(u64_at(buf, TYPE_AT)),
            flags: u64_at(buf, 712),
            portable_mac: bytes_at(buf, 720),
            local_mac: bytes_at(buf, 752),
            user_used: dnode(1024, 2048)?,
            group_used: dnode(1536, 2048)?,
            project_used: dnode(2048, 4096)?,
        })
    }

    /// Encodes to 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; OBJSET_SIZE];
        let mut dnode = |offset: usize, dn: &DnodePhys| {
            let mut slot = [0; DNODE_MIN_SIZE];
            dn.encode(&mut slot);
            put_bytes(&mut out, offset, &slot);
        };
        dnode(0, &self.meta_dnode);
        dnode(1024, &self.user_used);
        dnode(1536, &self.group_used);
        dnode(2048, &self.project_used);
        put_bytes(&mut out, 512, &self.zil_header.encode());
        put_u64(&mut out, TYPE_AT, self.objset_type.0);
        put_u64(&mut out, 712, self.flags);
        put_bytes(&mut out, 720, &self.portable_mac);
        put_bytes(&mut out, 752, &self.local_mac);
        out
    }
}
