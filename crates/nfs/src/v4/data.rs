//! READ, WRITE and COMMIT, with the state ids that come with them.

use super::compound::{Compound, Done, FileTarget};
use super::operation::{DATA_BYTES_MAX, StateId};
use super::state::ShareMode;
use super::status::Status;
use engine::{Attr, Cred, FileType, IoBuf, Stability};
use std::sync::Arc;

/// Reading and writing, as share modes have them.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

impl Compound<'_> {
    /// Checks that a state id allows an access to a file, and returns the caller's credentials for it.
    ///
    /// RFC 7530, section 9.1.4.3: all zero is "no state", all ones for READ "no state, and no denials either".
    pub(super) fn check_io(
        &self,
        id: &StateId,
        file: &FileTarget,
        access: u32,
    ) -> Result<Cred, Status> {
        self.check_state(id, file, access).map(|(cred, _)| cred)
    }

    /// As [`Self::check_io`] of writing. The state's client keeps its locks until what the handle of the file is asked for then has ended.
    pub(super) fn check_change(&self, id: &StateId, file: &mut FileTarget) -> Result<Cred, Status> {
        let (cred, change) = self.check_state(id, file, WRITE)?;
        if let Some(change) = change {
            file.caller.fs = file.caller.fs.marked(&change);
        }
        Ok(cred)
    }

    fn check_state(
        &self,
        id: &StateId,
        file: &FileTarget,
        access: u32,
    ) -> Result<(Cred, Option<Arc<()>>), Status> {
        let id = self.state_id(id)?;
        let mut cred = file.caller.cred.clone();
        let anonymous = id.other == [0; 12] && id.sequence == 0;
        let bypass = id.other == [0xff; 12] && id.sequence == u32::MAX;
        if anonymous || bypass {
            if access == WRITE || anonymous {
                let share = ShareMode { access, deny: 0 };
                let mut state = self.server.v4();
                state.check_anonymous()?;
                let shared = state.check_share(&file.handle, share);
                shared.map_err(|_| Status::Locked)?;
            }
            file.check_read(&cred)?;
            return Ok((cred, None));
        }
        let client = self.session_client();
        let mut state = self.server.v4();
        // Reading what is open for writing is allowed (RFC 7530, section 9.1.4.3): the permission is checked then.
        let uid = match state.check_access(&id, &file.handle, access, client, self.minor) {
            Err(Status::OpenMode) if access == READ => {
                state.check_access(&id, &file.handle, WRITE, client, self.minor)?;
                None
            }
            other => other?,
        };
        // Permissions were checked as the file was opened, for the same user.
        cred.opened = uid == Some(cred.uid);
        let change = match access {
            WRITE => state.change_by(&id, self.minor),
            _ => None,
        };
        Ok((cred, change))
    }

    pub(super) async fn read(&mut self, id: &StateId, offset: u64, count: u32) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let cred = self.check_io(id, &file, READ)?;
        let count = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(DATA_BYTES_MAX);
        let (fs, id) = (&file.caller.fs, file.handle.file);
        let data = match fs.read(id, offset, count, &cred).await {
            Ok(data) => data,
            Err(error) => return Err(self.not_regular(&file, error.into()).await.into()),
        };
        let length = u32::try_from(data.len()).map_err(|_| Status::ServerFault)?;
        self.w().bool(data.eof).u32(length);
        self.reply.shared(data.pieces);
        Ok(())
    }

    pub(super) async fn write(
        &mut self,
        id: &StateId,
        offset: u64,
        stable: u32,
        data: &[u8],
    ) -> Done {
        let mut file = self.file(Status::IsDirectory)?;
        let stability = match stable {
            0 => Stability::Unstable,
            1 => Stability::DataSync,
            2 => Stability::FileSync,
            _ => return Err(Status::BadXdr.into()),
        };
        file.writable()?;
        let cred = self.check_change(id, &mut file)?;
        if offset.checked_add(data.len() as u64).is_none() {
            return Err(Status::Invalid.into());
        }
        let (fs, id) = (&file.caller.fs, file.handle.file);
        let written = match fs
            .write(id, offset, IoBuf::copy_from(data), stability, &cred)
            .await
        {
            Ok(written) => written,
            Err(error) => return Err(self.not_regular(&file, error.into()).await.into()),
        };
        let verifier = self.server.boot_verifier();
        self.w()
            .u32(u32::try_from(written.count).unwrap_or(u32::MAX))
            .u32(match written.stability {
                Stability::Unstable => 0,
                Stability::DataSync => 1,
                Stability::FileSync => 2,
            })
            .u64(verifier);
        Ok(())
    }

    pub(super) async fn commit(&mut self, offset: u64, count: u32) -> Done {
        let file = self.file(Status::IsDirectory)?;
        if offset.checked_add(u64::from(count)).is_none() {
            return Err(Status::Invalid.into());
        }
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        file.caller
            .fs
            .commit(file.handle.file, offset, u64::from(count))
            .await?;
        let verifier = self.server.boot_verifier();
        self.w().u64(verifier);
        Ok(())
    }

    /// Returns the error of an operation on the data of a file that is no regular one, else `status`.
    pub(super) async fn not_regular(&self, file: &FileTarget, status: Status) -> Status {
        match file.attr().await {
            Ok(attr) => self.check_regular(&attr).err().unwrap_or(status),
            Err(_) => status,
        }
    }

    pub(super) fn check_regular(&self, attr: &Attr) -> Result<(), Status> {
        match attr.file_type {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Status::IsDirectory),
            FileType::Symlink if self.minor > 0 => Err(Status::Symlink),
            _ if self.minor > 0 => Err(Status::WrongType),
            _ => Err(Status::Invalid),
        }
    }
}
