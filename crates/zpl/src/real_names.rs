//! Names without regard to case, for clients that ask so of file systems where case counts (SMB).
//!
//! Of the directories that were asked about last, the hashes of all names in upper case are kept ([`FoldedNames`](crate::folded_names)): most
//! names that are looked for so are about to be made, and the answer that there is none takes no reading. A name whose hash is there
//! is searched for in the directory, as is any name in a directory that is too large. Additions and removals keep the hashes as the
//! directory is; both happen under the directory's lock, under which it is read.

use std::borrow::Cow;

use dmu::Tx;
use dmu::zap;
use ondisk::zap::norm;

use crate::folded_names::{FoldedDirectory, NAMES_MAX};
use crate::fs::Fs;
use crate::permission::{self, EXECUTE, READ};
use crate::znode::Znode;
use crate::{CaseSensitivity, Cred, FileId, FsError, FsResult};

/// Entries read from a directory at a time.
const BATCH: usize = 256;

impl Fs {
    fn fold<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        ondisk::zap::normalize(name, self.0.master.normalization | norm::TOUPPER)
    }

    /// Returns the name in a directory that is the given one but for case, as it is stored; any of them if there are several.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; as of [`readdir`](Fs::readdir), of a caller that may not search the directory, too.
    pub async fn real_name(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Vec<u8>> {
        let dir = self.directory(dir).await?;
        if !cred.opened {
            permission::check(&dir.attrs.borrow(), cred, READ | EXECUTE)?;
        }
        self.check_name(name)?;
        let _lock = dir.shared().await?;
        if self.0.master.case == CaseSensitivity::Insensitive {
            let found = self.find(&dir, name).await?;
            return Ok(found.ok_or(FsError::NotFound)?.stored);
        }
        let folded = self.fold(name);
        if self.0.folded.may_have(dir.id(), &folded) == Some(false) {
            return Err(FsError::NotFound);
        }
        self.search_folded(&dir, &folded).await
    }

    /// Reads a directory for a name, and keeps what it reads if that is the whole.
    async fn search_folded(&self, dir: &Znode, folded: &[u8]) -> FsResult<Vec<u8>> {
        let (mut names, mut cookie) = (FoldedDirectory::default(), 0);
        let keep = usize::try_from(dir.size()).is_ok_and(|names| names <= NAMES_MAX);
        loop {
            let batch = zap::cursor(self.os(), dir.object_id(), cookie, BATCH).await?;
            let Some(last) = batch.last() else { break };
            cookie = last.next_cookie;
            for entry in batch {
                let entry_folded = self.fold(&entry.name);
                if *entry_folded == *folded {
                    return Ok(entry.name);
                }
                if keep {
                    names.add(&entry_folded);
                }
            }
        }
        if keep {
            self.0.folded.put(dir.id(), names);
        }
        Err(FsError::NotFound)
    }

    /// Adds a name to a directory whose lock the caller holds.
    pub(crate) async fn add_name(
        &self,
        dir: &Znode,
        name: &[u8],
        value: u64,
        tx: &Tx,
    ) -> FsResult<()> {
        self.note_name(name);
        let added = zap::add_u64(self.os(), dir.object_id(), name, value, tx).await;
        let change = |names: &mut FoldedDirectory| names.add(&self.fold(name));
        self.0.folded.note(dir.id(), added.is_ok(), change);
        Ok(added?)
    }

    /// Removes a name, as it is stored, from a directory whose lock the caller holds.
    pub(crate) async fn remove_name(&self, dir: &Znode, name: &[u8], tx: &Tx) -> FsResult<()> {
        let removed = zap::remove(self.os(), dir.object_id(), name, tx).await;
        let change = |names: &mut FoldedDirectory| names.remove(&self.fold(name));
        self.0.folded.note(dir.id(), removed.is_ok(), change);
        Ok(removed?)
    }
}
