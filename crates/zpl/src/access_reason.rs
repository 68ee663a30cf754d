//! What decides whether a user may use a file, in terms that say it.

/// A use of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// To read content, or to list a directory.
    Read,
    /// To change content, or the names in a directory.
    Write,
    /// To run a program, or to pass through a directory.
    Execute,
}

/// Whom a right of a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The owner, by number.
    Owner(u64),
    /// The owning group, by number.
    OwningGroup(u64),
    /// A user that is named.
    User(u64),
    /// A group that is named.
    Group(u64),
    /// All others; in an NFSv4 list everyone.
    Everyone,
}

/// What decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessReason {
    /// The user is root.
    Root,
    /// No execute bit is set: not even root runs it.
    NoProgram,
    /// Bits of the mode: whose, and the three of them.
    Mode {
        /// Whose bits are asked.
        holder: Holder,
        /// Read 4, write 2, execute 1.
        bits: u32,
    },
    /// An entry of the POSIX list.
    PosixEntry {
        /// Whom the entry is for.
        holder: Holder,
        /// What the entry says: read 4, write 2, execute 1.
        bits: u32,
        /// What it is limited to, where the list has a mask that is obeyed.
        mask: Option<u32>,
    },
    /// An entry of the NFSv4 list.
    ListEntry {
        /// Its number, from 1.
        number: usize,
        /// Whom it is for.
        holder: Holder,
        /// Whether it allows.
        allows: bool,
        /// The right that it speaks of is the one to delete, or to delete what the directory has.
        of_deletion: bool,
    },
    /// No entry of the NFSv4 list speaks of the right to this user.
    NoListEntry,
    /// The dataset, its pool or its mount is read-only, or it is a snapshot.
    ReadOnly,
    /// The file has the flag `immutable`.
    Immutable,
    /// The file, or the directory, has a flag against deletion: `immutable`, `appendonly` or `nounlink`.
    Undeletable,
    /// The directory is sticky (mode 1000), and neither it nor the file belongs to the user.
    Sticky,
}

/// Whether a user may do something, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessVerdict {
    /// Whether it may.
    pub allowed: bool,
    /// Whether the mode by itself allows it, which a mount asks besides an NFSv4 list.
    pub mode_allows: bool,
    /// What decided.
    pub reason: AccessReason,
}
