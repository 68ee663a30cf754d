//! Rules of dataset names.
//!
//! OpenZFS: module/zcommon/zfs_namecheck.c (rules), lib/libzfs/libzfs_dataset.c (wording).

use crate::error::{DslError, Result};
use crate::property::DatasetKind;

/// Bytes in a full name at most.
pub const NAME_BYTES_MAX: usize = 255;
/// Levels of nesting at most.
pub const DEPTH_MAX: usize = 50;
const _: () = assert!(DEPTH_MAX < NAME_BYTES_MAX);

/// A name taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameParts<'a> {
    /// `pool/a/b`.
    pub(crate) head: &'a str,
    /// What follows `@`.
    pub(crate) snapshot: Option<&'a str>,
    /// What follows `#`.
    pub(crate) bookmark: Option<&'a str>,
}

/// Splits a full name at `@` or `#`.
pub(crate) fn split(name: &str) -> NameParts<'_> {
    if let Some((head, snapshot)) = name.split_once('@') {
        NameParts {
            head,
            snapshot: Some(snapshot),
            bookmark: None,
        }
    } else if let Some((head, bookmark)) = name.split_once('#') {
        NameParts {
            head,
            snapshot: None,
            bookmark: Some(bookmark),
        }
    } else {
        NameParts {
            head: name,
            snapshot: None,
            bookmark: None,
        }
    }
}

fn valid_character(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b':' | b' ')
}

/// Checks the form of a full name of the given kind.
///
/// # Errors
/// `BadName` with the sentence OpenZFS uses, or `NameTooLong`.
pub fn check(name: &str, kind: DatasetKind) -> Result<()> {
    let bad = |why: &str| {
        Err(DslError::BadName {
            name: name.into(),
            why: why.into(),
        })
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(DslError::NameTooLong { name: name.into() });
    }
    if name.starts_with('/') {
        return bad("leading slash in name");
    }
    if name.is_empty() {
        return bad("empty component or misplaced '@' or '#' delimiter in name");
    }
    let mut delimiters = 0;
    let mut start = 0;
    let bytes = name.as_bytes();
    loop {
        let end = bytes[start..]
            .iter()
            .position(|c| matches!(c, b'/' | b'@' | b'#'))
            .map_or(bytes.len(), |p| start + p);
        if end == bytes.len() && end > 0 && bytes[end - 1] == b'/' {
            return bad("trailing slash in name");
        }
        let component = &bytes[start..end];
        if let Some(c) = component
            .iter()
            .find(|c| !valid_character(**c) && **c != b'%')
        {
            return bad(&format!("invalid character '{}' in name", char::from(*c)));
        }
        let at_delimiter = end < bytes.len() && bytes[end] != b'/';
        if !at_delimiter && component == b"." {
            return bad("self reference, '.' is found in name");
        }
        if !at_delimiter && component == b".." {
            return bad("parent reference, '..' is found in name");
        }
        if at_delimiter {
            if delimiters != 0 {
                return bad("multiple '@' and/or '#' delimiters in name");
            }
            delimiters += 1;
        }
        if component.is_empty() {
            return bad("empty component or misplaced '@' or '#' delimiter in name");
        }
        if end == bytes.len() {
            break;
        }
        if bytes[end] == b'/' && delimiters != 0 {
            return bad("trailing slash in name");
        }
        start = end + 1;
    }
    let has = |c: char| name.contains(c);
    match kind {
        DatasetKind::Filesystem | DatasetKind::Volume if has('@') => {
            return bad("snapshot delimiter '@' is not expected here");
        }
        DatasetKind::Filesystem | DatasetKind::Volume if has('#') => {
            return bad("bookmark delimiter '#' is not expected here");
        }
        DatasetKind::Snapshot if !has('@') => return bad("missing '@' delimiter in snapshot name"),
        DatasetKind::Bookmark if !has('#') => {
            return bad("missing '#' delimiter in bookmark name, did you mean to use '@'?");
        }
        _ => {}
    }
    if has('%') {
        return bad("invalid character '%' in name");
    }
    if split(name).head.matches('/').count() >= DEPTH_MAX {
        return Err(DslError::NameTooLong { name: name.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, kind: DatasetKind, expect: Result<(), &str>) {
        let got = check(name, kind).map_err(|e| e.to_string());
        assert_eq!(got, expect.map_err(str::to_owned), "{name}");
    }

    #[test]
    fn rules() {
        let fs = DatasetKind::Filesystem;
        checked("tank", fs, Ok(()));
        checked("tank/a b/c-d_e.f:g", fs, Ok(()));
        checked("tank/", fs, Err("trailing slash in name"));
        checked("/tank", fs, Err("leading slash in name"));
        checked(
            "tank//a",
            fs,
            Err("empty component or misplaced '@' or '#' delimiter in name"),
        );
        checked("tank/a*", fs, Err("invalid character '*' in name"));
        checked(
            "tank/a@b",
            fs,
            Err("snapshot delimiter '@' is not expected here"),
        );
        checked("tank/a@b", DatasetKind::Snapshot, Ok(()));
        checked(
            "tank/a",
            DatasetKind::Snapshot,
            Err("missing '@' delimiter in snapshot name"),
        );
        checked(
            "tank/a@b@c",
            DatasetKind::Snapshot,
            Err("multiple '@' and/or '#' delimiters in name"),
        );
        checked(
            "tank/..",
            fs,
            Err("parent reference, '..' is found in name"),
        );
        checked("tank/a%b", fs, Err("invalid character '%' in name"));
        checked(&"x".repeat(256), fs, Err("name is too long"));
        checked(&"x/".repeat(50), fs, Err("trailing slash in name"));
        checked(
            &format!("t{}", "/x".repeat(50)),
            fs,
            Err("name is too long"),
        );
        checked(&format!("t{}", "/x".repeat(49)), fs, Ok(()));
    }
}
