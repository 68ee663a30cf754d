//! Reading directories whole.

use engine::{Cred, DirEntry, FileId, FsError, FsHandle, ListLimit};

/// Returns all entries of a directory but `.` and `..`.
pub(crate) async fn entries(
    fs: &FsHandle,
    dir: FileId,
    cred: &Cred,
) -> Result<Vec<DirEntry>, FsError> {
    let limit = ListLimit {
        entries: 4096,
        bytes: usize::MAX,
        entry_overhead_bytes: 0,
        attrs: true,
    };
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let listing = fs.readdir(dir, cookie, limit, cred).await?;
        let Some(last) = listing.entries.last() else {
            return Ok(all);
        };
        cookie = last.cookie;
        all.extend(
            listing
                .entries
                .into_iter()
                .filter(|entry| !matches!(entry.name.as_slice(), b"." | b"..")),
        );
        if listing.eof {
            return Ok(all);
        }
    }
}
