//! The intent log of one objset. For now only what an import must know: whether a log waits to be replayed.

#![forbid(unsafe_code)]

use ondisk::zil::ZilHeader;

/// Whether the objset with this intent log header has records that only the log holds.
///
/// A header is also non-empty while a file system is mounted elsewhere; either way the dataset must not be written
/// before the log was replayed or thrown away. OpenZFS: module/zfs/zil.c.
#[must_use]
pub fn has_log(header: &ZilHeader) -> bool {
    !header.is_empty()
}

/// As [`has_log`], from the header bytes of an objset block; bytes that do not decode count as a log.
#[must_use]
pub fn has_log_bytes(header: &[u8]) -> bool {
    ZilHeader::decode(header).map_or(true, |h| has_log(&h))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_not() {
        assert!(!has_log_bytes(&[0; ZilHeader::SIZE]));
        assert!(has_log_bytes(&[]));
        let mut bytes = [0; ZilHeader::SIZE];
        bytes[16] = 1;
        assert!(has_log_bytes(&bytes));
    }
}
