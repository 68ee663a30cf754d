//! File types on the wire, which every version of NFS numbers alike.

use engine::FileType;

/// Returns the number of a file type (RFC 1813, section 2.3.5, `ftype3`; RFC 7530, section 2.1, `nfs_ftype4`).
pub(crate) fn file_type_number(file_type: FileType) -> u32 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::Block => 3,
        FileType::Character => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
    }
}
