//! Delegating a file, and looking whether one is delegated that is to be changed, see [`FileDelegations`].

use std::rc::Rc;

use crate::file_delegations::{DelegatedAccess, Delegation, FileDelegations};
use crate::fs::Fs;
use crate::znode::Znode;
use crate::{Attr, Cred, FileId, FsResult, LockedFile, Timestamp};

impl Fs {
    fn delegated_file(&self, znode: &Znode) -> Option<(&FileDelegations, LockedFile)> {
        let (delegations, fs) = self.0.options.delegations.as_ref()?;
        let file = znode.id();
        Some((delegations, LockedFile { fs: *fs, file }))
    }

    /// Checks that a file, whose lock the caller holds, may be changed although clients may have it delegated.
    ///
    /// # Errors
    /// [`FsError::Delegated`].
    pub(crate) fn check_delegations(&self, znode: &Znode, cred: &Cred) -> FsResult<()> {
        match self.delegated_file(znode) {
            // What the log replays was allowed when it was acknowledged.
            Some(_) if self.0.replaying.get().is_some() => Ok(()),
            Some((delegations, file)) => delegations.check_change(file, cred.holder),
            None => Ok(()),
        }
    }

    /// Checks that a file may be read although a client may have it delegated to write.
    ///
    /// # Errors
    /// [`FsError::Delegated`].
    pub(crate) fn check_written_elsewhere(&self, znode: &Znode, cred: &Cred) -> FsResult<()> {
        match self.delegated_file(znode) {
            Some((delegations, file)) => delegations.check_read(file, cred.holder),
            None => Ok(()),
        }
    }

    /// As [`Self::check_delegations`], of files whose locks the caller holds.
    pub(crate) fn check_all_delegations(
        &self,
        files: [Option<&Rc<Znode>>; 2],
        cred: &Cred,
    ) -> FsResult<()> {
        let mut files = files.into_iter().flatten();
        files.try_for_each(|file| self.check_delegations(file, cred))
    }

    /// Delegates a regular file to a client: until it is given back, it and its names are changed by no other client, and not read
    /// by one if it is to be written. Returns its attributes, or `None` where it is not delegated: in a snapshot, while others wait
    /// for the file or have it open, or after it was changed too late.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Invalid`] of what is no regular file.
    pub async fn delegate(&self, id: FileId, delegation: &Delegation) -> FsResult<Option<Attr>> {
        let znode = self.regular(id).await?;
        let _lock = znode.exclusive().await?;
        let attr = self.attr_of(&znode).await?;
        let changed = |since: Timestamp| znode.wcc().ctime >= since;
        let in_use = match delegation.access {
            DelegatedAccess::Read => false,
            DelegatedAccess::Write { own_holds } => {
                self.settings().read_only || znode.holds.get() != own_holds
            }
        };
        let refused = in_use || self.is_snapshot();
        if refused || attr.links == 0 || delegation.unchanged_since.is_some_and(changed) {
            return Ok(None);
        }
        let given = |(delegations, file): (&FileDelegations, _)| delegations.give(file, delegation);
        Ok(self
            .delegated_file(&znode)
            .is_some_and(given)
            .then_some(attr))
    }
}
