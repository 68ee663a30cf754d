//! The table of native dataset properties of OpenZFS 2.3, in the order `zfs get all` prints them.
//!
//! Facts (names, defaults, applicable types, value names and numbers) are those of OpenZFS 2.3:
//! `module/zcommon/zfs_prop.c` and `include/sys/fs/zfs.h` (`zfs_prop_t` gives the order). The
//! table knows nothing of where a value is stored or how it is inherited.

use std::fmt;

/// What a dataset name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DatasetKind {
    /// A POSIX file system.
    Filesystem,
    /// A block volume.
    Volume,
    /// A snapshot of a file system or volume.
    Snapshot,
    /// A bookmark: the remembered birth time of a snapshot that may be gone.
    Bookmark,
}

impl DatasetKind {
    /// The word the `type` property shows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Bookmark => "bookmark",
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of dataset kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// File systems only.
    pub const FILESYSTEM: Self = Self(1);
    /// Snapshots only.
    pub const SNAPSHOT: Self = Self(2);
    /// Volumes only.
    pub const VOLUME: Self = Self(4);
    /// Bookmarks only.
    pub const BOOKMARK: Self = Self(8);
    /// File systems, volumes and snapshots.
    pub const DATASET: Self = Self(7);
    /// Everything that has a name.
    pub const ALL: Self = Self(15);
    const FS_VOL: Self = Self(5);
    const FS_SNAP: Self = Self(3);
    const SNAP_VOL: Self = Self(6);

    /// Whether `kind` is in the set.
    #[must_use]
    pub fn contains(self, kind: DatasetKind) -> bool {
        self.0 & Self::of(kind).0 != 0
    }

    /// The set with one member.
    #[must_use]
    pub const fn of(kind: DatasetKind) -> Self {
        match kind {
            DatasetKind::Filesystem => Self::FILESYSTEM,
            DatasetKind::Volume => Self::VOLUME,
            DatasetKind::Snapshot => Self::SNAPSHOT,
            DatasetKind::Bookmark => Self::BOOKMARK,
        }
    }

    /// The union of two sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The form of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyType {
    /// A 64-bit number: bytes, a count, an identifier or seconds since 1970.
    Number,
    /// Text.
    String,
    /// A number with a name for each value.
    Index,
}

/// When a property may be set, and whether children see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Computed; never set.
    ReadOnly,
    /// Set at any time, never inherited.
    Default,
    /// Set at any time and inherited by children.
    Inherit,
    /// Set only when the dataset is created.
    OneTime,
    /// Set only when the dataset is created; shows the default when absent.
    OneTimeDefault,
}

/// All that is fixed about one native property.
#[derive(Debug)]
pub struct Descriptor {
    /// Which property this is.
    pub property: Property,
    /// The name in `zfs set` and on disk.
    pub name: &'static str,
    /// The column heading of `zfs list`.
    pub column: &'static str,
    /// Form of the value.
    pub value_type: PropertyType,
    /// Default for numbers and indexes.
    pub default_number: u64,
    /// Default for strings; `None` when absent means "no value".
    pub default_string: Option<&'static str>,
    /// When it may be set, and inheritance.
    pub attribute: Attribute,
    /// The kinds of dataset that have it.
    pub kinds: Kinds,
    /// The grammar of values as the usage text shows it.
    pub values: &'static str,
    /// Whether `zfs list` aligns the column to the right.
    pub right_align: bool,
    /// Whether `zfs get all` and usage texts show it.
    pub visible: bool,
    /// Names of the values of an index property; the first name of a number is the one displayed.
    pub index: &'static [(&'static str, u64)],
}

const CHECKSUM: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];

/// Added to a checksum number in `dedup` to ask for a byte comparison.
pub const DEDUP_VERIFY: u64 = 1 << 8;

const DEDUP: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("verify", 1 | DEDUP_VERIFY),
    ("sha256", 8),
    ("sha256,verify", 8 | DEDUP_VERIFY),
    ("sha512", 11),
    ("sha512,verify", 11 | DEDUP_VERIFY),
    ("skein", 12),
    ("skein,verify", 12 | DEDUP_VERIFY),
    ("edonr,verify", 13 | DEDUP_VERIFY),
    ("blake3", 14),
    ("blake3,verify", 14 | DEDUP_VERIFY),
];

// The level sits above the seven bits of the method. Levels 1..=19 are themselves; the fast levels
// start at 103 for -1 and count on (OpenZFS: include/sys/zio_compress.h, enum zio_zstd_levels).
const fn zstd(level: u64) -> u64 {
    16 | (level << 7)
}

const COMPRESSION: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-fast", zstd(103)),
    ("zstd-1", zstd(1)),
    ("zstd-2", zstd(2)),
    ("zstd-3", zstd(3)),
    ("zstd-4", zstd(4)),
    ("zstd-5", zstd(5)),
    ("zstd-6", zstd(6)),
    ("zstd-7", zstd(7)),
    ("zstd-8", zstd(8)),
    ("zstd-9", zstd(9)),
    ("zstd-10", zstd(10)),
    ("zstd-11", zstd(11)),
    ("zstd-12", zstd(12)),
    ("zstd-13", zstd(13)),
    ("zstd-14", zstd(14)),
    ("zstd-15", zstd(15)),
    ("zstd-16", zstd(16)),
    ("zstd-17", zstd(17)),
    ("zstd-18", zstd(18)),
    ("zstd-19", zstd(19)),
    ("zstd-fast-1", zstd(103)),
    ("zstd-fast-2", zstd(104)),
    ("zstd-fast-3", zstd(105)),
    ("zstd-fast-4", zstd(106)),
    ("zstd-fast-5", zstd(107)),
    ("zstd-fast-6", zstd(108)),
    ("zstd-fast-7", zstd(109)),
    ("zstd-fast-8", zstd(110)),
    ("zstd-fast-9", zstd(111)),
    ("zstd-fast-10", zstd(112)),
    ("zstd-fast-20", zstd(113)),
    ("zstd-fast-30", zstd(114)),
    ("zstd-fast-40", zstd(115)),
    ("zstd-fast-50", zstd(116)),
    ("zstd-fast-60", zstd(117)),
    ("zstd-fast-70", zstd(118)),
    ("zstd-fast-80", zstd(119)),
    ("zstd-fast-90", zstd(120)),
    ("zstd-fast-100", zstd(121)),
    ("zstd-fast-500", zstd(122)),
    ("zstd-fast-1000", zstd(123)),
];

const ENCRYPTION: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];
const KEYFORMAT: &[(&str, u64)] = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
const KEYSTATUS: &[(&str, u64)] = &[("none", 0), ("unavailable", 1), ("available", 2)];
const SNAPDIR: &[(&str, u64)] = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
const SNAPDEV: &[(&str, u64)] = &[("hidden", 0), ("visible", 1)];
const ACLMODE: &[(&str, u64)] = &[
    ("discard", 0),
    ("groupmask", 2),
    ("passthrough", 3),
    ("restricted", 4),
];
const ACLTYPE: &[(&str, u64)] = &[
    ("off", 0),
    ("posix", 1),
    ("nfsv4", 2),
    ("disabled", 0),
    ("noacl", 0),
    ("posixacl", 1),
];
const ACLINHERIT: &[(&str, u64)] = &[
    ("discard", 0),
    ("noallow", 1),
    ("restricted", 4),
    ("passthrough", 3),
    ("secure", 4),
    ("passthrough-x", 5),
];
const CASE: &[(&str, u64)] = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
const COPIES: &[(&str, u64)] = &[("1", 1), ("2", 2), ("3", 3)];
// Numbers: include/sys/u8_textprep.h (U8_TEXTPREP_NFD and the others are combinations of
// canonical/compatibility decomposition and canonical composition flags).
const NORMALIZE: &[(&str, u64)] = &[
    ("none", 0),
    ("formD", 0x10),
    ("formKC", 0x60),
    ("formC", 0x50),
    ("formKD", 0x20),
];
const VERSION: &[(&str, u64)] = &[
    ("1", 1),
    ("2", 2),
    ("3", 3),
    ("4", 4),
    ("5", 5),
    ("current", 5),
];
const BOOLEAN: &[(&str, u64)] = &[("off", 0), ("on", 1)];
const LOGBIAS: &[(&str, u64)] = &[("latency", 0), ("throughput", 1)];
const CANMOUNT: &[(&str, u64)] = &[("off", 0), ("on", 1), ("noauto", 2)];
const CACHE: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];
const SYNC: &[(&str, u64)] = &[("standard", 0), ("always", 1), ("disabled", 2)];
const XATTR: &[(&str, u64)] = &[("off", 0), ("on", 2), ("sa", 2), ("dir", 1)];
const DNODESIZE: &[(&str, u64)] = &[
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1024),
    ("2k", 2048),
    ("4k", 4096),
    ("8k", 8192),
    ("16k", 16384),
];
const REDUNDANT: &[(&str, u64)] = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
const VOLMODE: &[(&str, u64)] = &[
    ("default", 0),
    ("full", 1),
    ("geom", 1),
    ("dev", 2),
    ("none", 3),
];
const DIRECT: &[(&str, u64)] = &[("disabled", 0), ("standard", 1), ("always", 2)];

const FS: Kinds = Kinds::FILESYSTEM;
const SNAP: Kinds = Kinds::SNAPSHOT;
const VOL: Kinds = Kinds::VOLUME;
const FS_VOL: Kinds = Kinds::FS_VOL;
const FS_SNAP: Kinds = Kinds::FS_SNAP;
const SNAP_VOL: Kinds = Kinds::SNAP_VOL;
const DATASET: Kinds = Kinds::DATASET;
const ALL: Kinds = Kinds::ALL;

macro_rules! properties {
    ($( $id:ident $name:literal $column:literal $form:ident($($arg:expr),*) $attr:ident $kinds:ident
        $values:literal $($hidden:ident)? ;)*) => {
        /// One native property; the order of the variants is the order of `zfs get all`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each variant is the property of the same name")]
        pub enum Property { $($id),* }

        /// Every native property, in the order of [`Property`].
        pub static PROPERTIES: &[Descriptor] = &[$(
            properties!(@ $form $id $name $column $attr $kinds $values ($($arg),*) [$($hidden)?]),
        )*];
    };
    (@ number $id:ident $name:literal $column:literal $attr:ident $kinds:ident $values:literal
        ($default:expr) [$($hidden:ident)?]) => {
        Descriptor { property: Property::$id, name: $name, column: $column,
            value_type: PropertyType::Number, default_number: $default, default_string: None,
            attribute: Attribute::$attr, kinds: $kinds, values: $values,
            right_align: properties!(@align $id), visible: properties!(@visible $($hidden)?),
            index: &[] }
    };
    (@ string $id:ident $name:literal $column:literal $attr:ident $kinds:ident $values:literal
        ($default:expr) [$($hidden:ident)?]) => {
        Descriptor { property: Property::$id, name: $name, column: $column,
            value_type: PropertyType::String, default_number: 0, default_string: $default,
            attribute: Attribute::$attr, kinds: $kinds, values: $values, right_align: false,
            visible: properties!(@visible $($hidden)?), index: &[] }
    };
    (@ index $id:ident $name:literal $column:literal $attr:ident $kinds:ident $values:literal
        ($default:expr, $index:expr) [$($hidden:ident)?]) => {
        Descriptor { property: Property::$id, name: $name, column: $column,
            value_type: PropertyType::Index, default_number: $default, default_string: None,
            attribute: Attribute::$attr, kinds: $kinds, values: $values, right_align: false,
            visible: properties!(@visible $($hidden)?), index: $index }
    };
    (@visible) => { true };
    (@visible hidden) => { false };
    // The two dates are numbers that line up like text.
    (@align Creation) => { false };
    (@align SnapshotsChanged) => { false };
    (@align $id:ident) => { true };
}

properties! {
    Type "type" "TYPE" string(None) ReadOnly ALL "filesystem | volume | snapshot | bookmark";
    Creation "creation" "CREATION" number(0) ReadOnly ALL "<date>";
    Used "used" "USED" number(0) ReadOnly DATASET "<size>";
    Available "available" "AVAIL" number(0) ReadOnly FS_VOL "<size>";
    Referenced "referenced" "REFER" number(0) ReadOnly ALL "<size>";
    CompressRatio "compressratio" "RATIO" number(0) ReadOnly ALL "<1.00x or higher if compressed>";
    Mounted "mounted" "MOUNTED" index(0, BOOLEAN) ReadOnly FS "yes | no";
    Origin "origin" "ORIGIN" string(None) ReadOnly FS_VOL "<snapshot>";
    Quota "quota" "QUOTA" number(0) Default FS "<size> | none";
    Reservation "reservation" "RESERV" number(0) Default FS_VOL "<size> | none";
    VolSize "volsize" "VOLSIZE" number(0) Default SNAP_VOL "<size>";
    VolBlockSize "volblocksize" "VOLBLOCK" number(16384) OneTime VOL "512 to 128k, power of 2";
    RecordSize "recordsize" "RECSIZE" number(131_072) Inherit FS "512 to 1M, power of 2";
    MountPoint "mountpoint" "MOUNTPOINT" string(Some("/")) Inherit FS "<path> | legacy | none";
    ShareNfs "sharenfs" "SHARENFS" string(Some("off")) Inherit FS "on | off | NFS share options";
    Checksum "checksum" "CHECKSUM" index(1, CHECKSUM) Inherit FS_VOL
        "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3";
    Compression "compression" "COMPRESS" index(1, COMPRESSION) Inherit FS_VOL
        "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]";
    Atime "atime" "ATIME" index(1, BOOLEAN) Inherit FS "on | off";
    Devices "devices" "DEVICES" index(1, BOOLEAN) Inherit FS_SNAP "on | off";
    Exec "exec" "EXEC" index(1, BOOLEAN) Inherit FS_SNAP "on | off";
    Setuid "setuid" "SETUID" index(1, BOOLEAN) Inherit FS_SNAP "on | off";
    ReadOnly "readonly" "RDONLY" index(0, BOOLEAN) Inherit FS_VOL "on | off";
    Zoned "zoned" "ZONED" index(0, BOOLEAN) Inherit FS "on | off";
    SnapDir "snapdir" "SNAPDIR" index(0, SNAPDIR) Inherit FS "disabled | hidden | visible";
    AclMode "aclmode" "ACLMODE" index(0, ACLMODE) Inherit FS
        "discard | groupmask | passthrough | restricted";
    AclInherit "aclinherit" "ACLINHERIT" index(4, ACLINHERIT) Inherit FS
        "discard | noallow | restricted | passthrough | passthrough-x";
    CreateTxg "createtxg" "CREATETXG" number(0) ReadOnly ALL "<uint64>";
    Name "name" "NAME" string(None) ReadOnly ALL "" hidden;
    CanMount "canmount" "CANMOUNT" index(1, CANMOUNT) Default FS "on | off | noauto";
    IscsiOptions "iscsioptions" "ISCSIOPTIONS" string(None) Inherit VOL "" hidden;
    Xattr "xattr" "XATTR" index(2, XATTR) Inherit FS_SNAP "on | off | dir | sa";
    NumClones "numclones" "NUMCLONES" number(0) ReadOnly SNAP "" hidden;
    Copies "copies" "COPIES" index(1, COPIES) Inherit FS_VOL "1 | 2 | 3";
    Version "version" "VERSION" index(0, VERSION) Default FS_SNAP "1 | 2 | 3 | 4 | 5 | current";
    Utf8Only "utf8only" "UTF8ONLY" index(0, BOOLEAN) OneTime FS_SNAP "on | off";
    Normalization "normalization" "NORMALIZATION" index(0, NORMALIZE) OneTime FS_SNAP
        "none | formC | formD | formKC | formKD";
    CaseSensitivity "casesensitivity" "CASE" index(0, CASE) OneTime FS_SNAP
        "sensitive | insensitive | mixed";
    Vscan "vscan" "VSCAN" index(0, BOOLEAN) Inherit FS "on | off";
    Nbmand "nbmand" "NBMAND" index(0, BOOLEAN) Inherit FS_SNAP "on | off";
    ShareSmb "sharesmb" "SHARESMB" string(Some("off")) Inherit FS "on | off | SMB share options";
    RefQuota "refquota" "REFQUOTA" number(0) Default FS "<size> | none";
    RefReservation "refreservation" "REFRESERV" number(0) Default FS_VOL "<size> | none";
    Guid "guid" "GUID" number(0) ReadOnly ALL "<uint64>";
    PrimaryCache "primarycache" "PRIMARYCACHE" index(2, CACHE) Inherit DATASET
        "all | none | metadata";
    SecondaryCache "secondarycache" "SECONDARYCACHE" index(2, CACHE) Inherit DATASET
        "all | none | metadata";
    UsedBySnapshots "usedbysnapshots" "USEDSNAP" number(0) ReadOnly FS_VOL "<size>";
    UsedByDataset "usedbydataset" "USEDDS" number(0) ReadOnly FS_VOL "<size>";
    UsedByChildren "usedbychildren" "USEDCHILD" number(0) ReadOnly FS_VOL "<size>";
    UsedByRefReservation "usedbyrefreservation" "USEDREFRESERV" number(0) ReadOnly FS_VOL "<size>";
    UserAccounting "useraccounting" "USERACCOUNTING" number(0) ReadOnly DATASET "" hidden;
    StmfShareInfo "stmf_sbd_lu" "STMF_SBD_LU" string(None) Inherit VOL "" hidden;
    DeferDestroy "defer_destroy" "DEFER_DESTROY" index(0, BOOLEAN) ReadOnly SNAP "yes | no";
    UserRefs "userrefs" "USERREFS" number(0) ReadOnly SNAP "<count>";
    LogBias "logbias" "LOGBIAS" index(0, LOGBIAS) Inherit FS_VOL "latency | throughput";
    Unique "unique" "UNIQUE" number(0) ReadOnly DATASET "" hidden;
    ObjsetId "objsetid" "OBJSETID" number(0) ReadOnly DATASET "<uint64>";
    Dedup "dedup" "DEDUP" index(2, DEDUP) Inherit FS_VOL
        "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]";
    MlsLabel "mlslabel" "MLSLABEL" string(Some("none")) Inherit DATASET "<sensitivity label>";
    Sync "sync" "SYNC" index(0, SYNC) Inherit FS_VOL "standard | always | disabled";
    DnodeSize "dnodesize" "DNSIZE" index(0, DNODESIZE) Inherit FS
        "legacy | auto | 1k | 2k | 4k | 8k | 16k";
    RefCompressRatio "refcompressratio" "REFRATIO" number(0) ReadOnly DATASET
        "<1.00x or higher if compressed>";
    Written "written" "WRITTEN" number(0) ReadOnly DATASET "<size>";
    Clones "clones" "CLONES" string(None) ReadOnly SNAP "<dataset>[,...]";
    LogicalUsed "logicalused" "LUSED" number(0) ReadOnly FS_VOL "<size>";
    LogicalReferenced "logicalreferenced" "LREFER" number(0) ReadOnly ALL "<size>";
    Inconsistent "inconsistent" "INCONSISTENT" number(0) ReadOnly DATASET "" hidden;
    VolMode "volmode" "VOLMODE" index(0, VOLMODE) Inherit FS_VOL
        "default | full | geom | dev | none";
    FilesystemLimit "filesystem_limit" "FSLIMIT" number(u64::MAX) Default FS "<count> | none";
    SnapshotLimit "snapshot_limit" "SSLIMIT" number(u64::MAX) Default FS_VOL "<count> | none";
    FilesystemCount "filesystem_count" "FSCOUNT" number(u64::MAX) ReadOnly FS "<count>";
    SnapshotCount "snapshot_count" "SSCOUNT" number(u64::MAX) ReadOnly FS_VOL "<count>";
    SnapDev "snapdev" "SNAPDEV" index(0, SNAPDEV) Inherit FS_VOL "hidden | visible";
    AclType "acltype" "ACLTYPE" index(0, ACLTYPE) Inherit FS_SNAP "off | nfsv4 | posix";
    Context "context" "CONTEXT" string(Some("none")) Default DATASET "<selinux context>";
    FsContext "fscontext" "FSCONTEXT" string(Some("none")) Default DATASET "<selinux fscontext>";
    DefContext "defcontext" "DEFCONTEXT" string(Some("none")) Default DATASET
        "<selinux defcontext>";
    RootContext "rootcontext" "ROOTCONTEXT" string(Some("none")) Default DATASET
        "<selinux rootcontext>";
    Relatime "relatime" "RELATIME" index(1, BOOLEAN) Inherit FS "on | off";
    RedundantMetadata "redundant_metadata" "REDUND_MD" index(0, REDUNDANT) Inherit FS_VOL
        "all | most | some | none";
    Overlay "overlay" "OVERLAY" index(1, BOOLEAN) Inherit FS "on | off";
    PrevSnap "prevsnap" "PREVSNAP" string(None) ReadOnly FS_VOL "" hidden;
    ReceiveResumeToken "receive_resume_token" "RESUMETOK" string(None) ReadOnly FS_VOL
        "<string token>";
    Encryption "encryption" "ENCRYPTION" index(2, ENCRYPTION) OneTime DATASET
        "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm";
    KeyLocation "keylocation" "KEYLOCATION" string(Some("none")) Default FS_VOL
        "prompt | <file URI> | <https URL> | <http URL>";
    KeyFormat "keyformat" "KEYFORMAT" index(0, KEYFORMAT) OneTimeDefault FS_VOL
        "none | raw | hex | passphrase";
    Pbkdf2Salt "pbkdf2salt" "PBKDF2SALT" number(0) OneTimeDefault FS_VOL "" hidden;
    Pbkdf2Iters "pbkdf2iters" "PBKDF2ITERS" number(0) OneTimeDefault FS_VOL "<iters>";
    EncryptionRoot "encryptionroot" "ENCROOT" string(None) ReadOnly DATASET
        "<filesystem | volume>";
    KeyGuid "keyguid" "KEYGUID" number(0) ReadOnly DATASET "" hidden;
    KeyStatus "keystatus" "KEYSTATUS" index(0, KEYSTATUS) ReadOnly DATASET
        "none | unavailable | available";
    RemapTxg "remaptxg" "REMAPTXG" number(0) ReadOnly DATASET "" hidden;
    SpecialSmallBlocks "special_small_blocks" "SPECIAL_SMALL_BLOCKS" number(0) Inherit FS
        "zero or 512 to 1M, power of 2";
    IvsetGuid "ivsetguid" "IVSETGUID" number(0) ReadOnly ALL "" hidden;
    Redacted "redacted" "REDACTED" number(0) ReadOnly DATASET "" hidden;
    RedactSnaps "redact_snaps" "RSNAPS" string(None) ReadOnly ALL "<snapshot>[,...]";
    SnapshotsChanged "snapshots_changed" "SNAPSHOTS_CHANGED" number(0) ReadOnly FS_VOL "<date>";
    Prefetch "prefetch" "PREFETCH" index(2, CACHE) Inherit DATASET "none | metadata | all";
    VolThreading "volthreading" "VOLTHREADING" index(1, BOOLEAN) Default VOL "on | off";
    Direct "direct" "DIRECT" index(1, DIRECT) Inherit FS "disabled | standard | always";
    LongName "longname" "LONGNAME" index(0, BOOLEAN) Inherit FS "on | off";
}

impl Property {
    /// Everything fixed about this property.
    #[must_use]
    pub fn descriptor(self) -> &'static Descriptor {
        &PROPERTIES[self as usize]
    }

    /// The name in `zfs set` and on disk.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.descriptor().name
    }

    /// Finds a property by its name or by its column heading in lower case (`avail`, `refer`).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        PROPERTIES
            .iter()
            .find(|d| {
                d.name == name
                    || (d.column.len() == name.len()
                        && d.column
                            .bytes()
                            .zip(name.bytes())
                            .all(|(c, n)| c.to_ascii_lowercase() == n))
            })
            .map(|d| d.property)
    }

    /// Whether children without a value of their own take their parent's.
    #[must_use]
    pub fn inheritable(self) -> bool {
        self.descriptor().attribute == Attribute::Inherit
    }

    /// Whether `zfs set` refuses it on an existing dataset.
    #[must_use]
    pub fn read_only(self) -> bool {
        matches!(
            self.descriptor().attribute,
            Attribute::ReadOnly | Attribute::OneTime | Attribute::OneTimeDefault
        )
    }

    /// Whether it may be given only when the dataset is created.
    #[must_use]
    pub fn set_once(self) -> bool {
        matches!(
            self.descriptor().attribute,
            Attribute::OneTime | Attribute::OneTimeDefault
        )
    }

    /// Whether datasets of `kind` have it.
    ///
    /// OpenZFS shows a property on snapshots also when only the head it belongs to has it
    /// (the `headcheck` of `zfs_prop_valid_for_type`): ask for the head's kind then.
    #[must_use]
    pub fn applies_to(self, kind: DatasetKind) -> bool {
        self.descriptor().kinds.contains(kind)
    }

    /// The number a value name of an index property stands for.
    #[must_use]
    pub fn index_number(self, name: &str) -> Option<u64> {
        self.descriptor()
            .index
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| *v)
    }

    /// The name shown for a value of an index property.
    #[must_use]
    pub fn index_name(self, number: u64) -> Option<&'static str> {
        self.descriptor()
            .index
            .iter()
            .find(|(_, v)| *v == number)
            .map(|(n, _)| *n)
    }
}
