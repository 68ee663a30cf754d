//! Object types: what an object's blocks (or a bonus buffer) hold.

use std::fmt;

/// Number of an object type, old style (0..=53) or new style (bit 7 set).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectType(pub u8);

/// How blocks of a type are swapped when read on a host of the other byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteswapClass {
    U8,
    U16,
    U32,
    U64,
    Zap,
    Dnode,
    Objset,
    Znode,
    OldAcl,
    Acl,
}

macro_rules! old_types {
    ($($nr:literal $name:ident $text:literal $class:ident $meta:literal $enc:literal;)*) => {
        impl ObjectType {
            $(pub const $name: Self = Self($nr);)*
        }
        const OLD: &[(&str, ByteswapClass, bool, bool)] = &[
            $(($text, ByteswapClass::$class, $meta, $enc),)*
        ];
    };
}

// Number, constant, zdb's name, byteswap class, metadata, encrypted in encrypted datasets.
// OpenZFS: include/sys/dmu.h, dmu_object_type_t; module/zfs/dmu.c, dmu_ot.
old_types! {
    0 NONE "unallocated" U8 true false;
    1 OBJECT_DIRECTORY "object directory" Zap true false;
    2 OBJECT_ARRAY "object array" U64 true false;
    3 PACKED_NVLIST "packed nvlist" U8 true false;
    4 PACKED_NVLIST_SIZE "packed nvlist size" U64 true false;
    5 BPOBJ "bpobj" U64 true false;
    6 BPOBJ_HDR "bpobj header" U64 true false;
    7 SPACE_MAP_HEADER "SPA space map header" U64 true false;
    8 SPACE_MAP "SPA space map" U64 true false;
    9 INTENT_LOG "ZIL intent log" U64 true true;
    10 DNODE "DMU dnode" Dnode true true;
    11 OBJSET "DMU objset" Objset true false;
    12 DSL_DIR "DSL directory" U64 true false;
    13 DSL_DIR_CHILD_MAP "DSL directory child map" Zap true false;
    14 DSL_DS_SNAP_MAP "DSL dataset snap map" Zap true false;
    15 DSL_PROPS "DSL props" Zap true false;
    16 DSL_DATASET "DSL dataset" U64 true false;
    17 ZNODE "ZFS znode" Znode true false;
    18 OLDACL "ZFS V0 ACL" OldAcl true true;
    19 PLAIN_FILE_CONTENTS "ZFS plain file" U8 false true;
    20 DIRECTORY_CONTENTS "ZFS directory" Zap true true;
    21 MASTER_NODE "ZFS master node" Zap true false;
    22 UNLINKED_SET "ZFS delete queue" Zap true true;
    23 ZVOL "zvol object" U8 false true;
    24 ZVOL_PROP "zvol prop" Zap true false;
    25 PLAIN_OTHER "other uint8[]" U8 false true;
    26 UINT64_OTHER "other uint64[]" U64 false true;
    27 ZAP_OTHER "other ZAP" Zap true false;
    28 ERROR_LOG "persistent error log" Zap true false;
    29 SPA_HISTORY "SPA history" U8 true false;
    30 SPA_HISTORY_OFFSETS "SPA history offsets" U64 true false;
    31 POOL_PROPS "Pool properties" Zap true false;
    32 DSL_PERMS "DSL permissions" Zap true false;
    33 ACL "ZFS ACL" Acl true true;
    34 SYSACL "ZFS SYSACL" U8 true true;
    35 FUID "FUID table" U8 true true;
    36 FUID_SIZE "FUID table size" U64 true false;
    37 NEXT_CLONES "DSL dataset next clones" Zap true false;
    38 SCAN_QUEUE "scan work queue" Zap true false;
    39 USERGROUP_USED "ZFS user/group/project used" Zap true true;
    40 USERGROUP_QUOTA "ZFS user/group/project quota" Zap true true;
    41 USERREFS "snapshot refcount tags" Zap true false;
    42 DDT_ZAP "DDT ZAP algorithm" Zap true false;
    43 DDT_STATS "DDT statistics" Zap true false;
    44 SA "System attributes" U8 true true;
    45 SA_MASTER_NODE "SA master node" Zap true true;
    46 SA_ATTR_REGISTRATION "SA attr registration" Zap true true;
    47 SA_ATTR_LAYOUTS "SA attr layouts" Zap true true;
    48 SCAN_XLATE "scan translations" Zap true false;
    49 DEDUP "deduplicated block" U8 false true;
    50 DEADLIST "DSL deadlist map" Zap true false;
    51 DEADLIST_HDR "DSL deadlist map hdr" U64 true false;
    52 DSL_CLONES "DSL dir clones" Zap true false;
    53 BPOBJ_SUBOBJ "bpobj subobj" U64 true false;
}

const NEW_STYLE: u8 = 0x80;
const NEW_METADATA: u8 = 0x40;
const NEW_ENCRYPTED: u8 = 0x20;
const NEW_BYTESWAP: u8 = 0x1f;

const NEW_CLASSES: [ByteswapClass; 10] = [
    ByteswapClass::U8,
    ByteswapClass::U16,
    ByteswapClass::U32,
    ByteswapClass::U64,
    ByteswapClass::Zap,
    ByteswapClass::Dnode,
    ByteswapClass::Objset,
    ByteswapClass::Znode,
    ByteswapClass::OldAcl,
    ByteswapClass::Acl,
];

impl ObjectType {
    /// New-style ZAP metadata (196).
    pub const ZAP_METADATA: Self = Self(0xc4);
    /// New-style u64 array metadata (195).
    pub const UINT64_METADATA: Self = Self(0xc3);
    /// New-style u32 array metadata (194).
    pub const UINT32_METADATA: Self = Self(0xc2);
    /// New-style u8 array metadata (192).
    pub const UINT8_METADATA: Self = Self(0xc0);
    /// New-style encrypted ZAP metadata (228).
    pub const ZAP_ENCRYPTED_METADATA: Self = Self(0xe4);
    /// Highest old-style number plus one.
    pub const OLD_COUNT: u8 = 54;

    fn old(self) -> Option<&'static (&'static str, ByteswapClass, bool, bool)> {
        OLD.get(usize::from(self.0))
    }

    /// True when the format defines this number.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.byteswap_class().is_some()
    }

    /// The byteswap class, or `None` for an undefined number.
    #[must_use]
    pub fn byteswap_class(self) -> Option<ByteswapClass> {
        if self.0 & NEW_STYLE != 0 {
            NEW_CLASSES.get(usize::from(self.0 & NEW_BYTESWAP)).copied()
        } else {
            self.old().map(|t| t.1)
        }
    }

    /// True for metadata (stored with an extra copy, always compressed). Undefined numbers count as metadata.
    #[must_use]
    pub fn is_metadata(self) -> bool {
        if self.0 & NEW_STYLE != 0 {
            self.0 & NEW_METADATA != 0
        } else {
            self.old().is_none_or(|t| t.2)
        }
    }

    /// True for types whose blocks are encrypted in an encrypted dataset.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        if self.0 & NEW_STYLE != 0 {
            self.0 & NEW_ENCRYPTED != 0
        } else {
            self.old().is_some_and(|t| t.3)
        }
    }

    /// True for ZAP objects.
    #[must_use]
    pub fn is_zap(self) -> bool {
        self.byteswap_class() == Some(ByteswapClass::Zap)
    }

    /// zdb's name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.0 & NEW_STYLE == 0 {
            return self.old().map_or("unknown", |t| t.0);
        }
        match (self.byteswap_class(), self.is_metadata()) {
            (Some(ByteswapClass::U8), false) => "uint8",
            (Some(ByteswapClass::U8), true) => "uint8 (metadata)",
            (Some(ByteswapClass::U16), false) => "uint16",
            (Some(ByteswapClass::U16), true) => "uint16 (metadata)",
            (Some(ByteswapClass::U32), false) => "uint32",
            (Some(ByteswapClass::U32), true) => "uint32 (metadata)",
            (Some(ByteswapClass::U64), false) => "uint64",
            (Some(ByteswapClass::U64), true) => "uint64 (metadata)",
            (Some(ByteswapClass::Zap), false) => "zap",
            (Some(ByteswapClass::Zap), true) => "zap (metadata)",
            _ => "unknown",
        }
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}
