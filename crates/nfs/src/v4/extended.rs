//! Minor version 2 (RFC 7862): holes, and extended attributes (RFC 8276).

use super::compound::{Compound, Done, FileTarget};
use super::data::READ;
use super::operation::{DATA_BYTES_MAX, Operation, StateId};
use super::status::Status;
use crate::xdr::Writer;
use engine::{Change, FsError, SeekTarget, XattrMode};

/// Extended attributes of NFS are those of users; the prefix is not on the wire (RFC 8276, section 7.2).
const PREFIX: &[u8] = b"user.";
/// Longest value of an extended attribute, in bytes (Linux: XATTR_SIZE_MAX).
const VALUE_BYTES_MAX: usize = 65536;

impl Compound<'_> {
    pub(super) async fn extended(&mut self, operation: Operation<'_>) -> Done {
        match operation {
            Operation::Deallocate {
                state,
                offset,
                length,
            } => self.deallocate(&state, offset, length).await,
            Operation::Allocate {
                state,
                offset,
                length,
            } => self.allocate(&state, offset, length).await,
            Operation::Seek {
                state,
                offset,
                what,
            } => self.seek(&state, offset, what).await,
            Operation::ReadPlus {
                state,
                offset,
                count,
            } => self.read_plus(&state, offset, count).await,
            Operation::Copy { range, from_server } => self.copy(&range, from_server).await,
            Operation::Clone(range) => self.clone_range(&range).await,
            Operation::Advise(state) => {
                let file = self.file(Status::IsDirectory)?;
                self.check_io(&state, &file, READ)?;
                // No advice is taken.
                self.w().u32(0);
                Ok(())
            }
            Operation::GetXattr(name) => self.get_xattr(name).await,
            Operation::SetXattr {
                option,
                name,
                value,
            } => self.set_xattr(option, name, value).await,
            Operation::ListXattrs { cookie, bytes } => self.list_xattrs(cookie, bytes).await,
            Operation::RemoveXattr(name) => self.remove_xattr(name).await,
            _ => Err(Status::NotSupported.into()),
        }
    }

    /// DEALLOCATE: the range becomes a hole, the size stays.
    async fn deallocate(&mut self, id: &StateId, offset: u64, length: u64) -> Done {
        let mut file = self.file(Status::IsDirectory)?;
        file.writable()?;
        let cred = self.check_change(id, &mut file)?;
        offset.checked_add(length).ok_or(Status::Invalid)?;
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        let (fs, at) = (&file.caller.fs, file.handle.file);
        fs.punch(at, offset, length, &cred).await?;
        fs.commit(at, offset, length).await?;
        Ok(())
    }

    /// ALLOCATE: nothing is set aside ahead of writes that go to new places anyway; what is asked beyond the end makes the
    /// file longer.
    async fn allocate(&mut self, id: &StateId, offset: u64, length: u64) -> Done {
        let mut file = self.file(Status::IsDirectory)?;
        file.writable()?;
        let cred = self.check_change(id, &mut file)?;
        let end = offset.checked_add(length).ok_or(Status::Invalid)?;
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        if end > attr.size {
            let stat = file.caller.fs.statfs().await?;
            if end - attr.size > stat.available_bytes {
                return Err(Status::NoSpace.into());
            }
            let set = engine::SetAttr {
                size: Some(end),
                ..engine::SetAttr::default()
            };
            file.caller
                .fs
                .setattr(file.handle.file, &set, None, &cred)
                .await?;
        }
        Ok(())
    }

    /// SEEK: the next data (0) or hole (1).
    async fn seek(&mut self, id: &StateId, offset: u64, what: u32) -> Done {
        let file = self.file(Status::IsDirectory)?;
        self.check_io(id, &file, READ)?;
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        let target = match what {
            0 => SeekTarget::Data,
            1 => SeekTarget::Hole,
            _ => return Err(Status::UnionNotSupported.into()),
        };
        if offset >= attr.size {
            return Err(Status::NoDevice.into());
        }
        let found = file.caller.fs.seek(file.handle.file, offset, target).await;
        let (eof, at) = match found {
            // The end of the file is no hole that data follows.
            Ok(at) => (at >= attr.size, at),
            Err(FsError::NoSuchOffset) => (true, attr.size),
            Err(error) => return Err(error.into()),
        };
        self.w().bool(eof).u64(at);
        Ok(())
    }

    /// READ_PLUS, with one segment of data: what a READ answers.
    async fn read_plus(&mut self, id: &StateId, offset: u64, count: u32) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let cred = self.check_io(id, &file, READ)?;
        let count = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(DATA_BYTES_MAX);
        let read = file
            .caller
            .fs
            .read(file.handle.file, offset, count, &cred)
            .await;
        let data = match read {
            Ok(data) => data,
            Err(error) => return Err(self.not_regular(&file, error.into()).await.into()),
        };
        let length = u32::try_from(data.len()).map_err(|_| Status::ServerFault)?;
        self.w().bool(data.eof);
        if length == 0 {
            self.w().u32(0);
            return Ok(());
        }
        // NFS4_CONTENT_DATA
        self.w().u32(1).u32(0).u64(offset).u32(length);
        self.reply.shared(data.pieces);
        Ok(())
    }

    async fn get_xattr(&mut self, name: &[u8]) -> Done {
        let (file, name) = self.xattr(name)?;
        let (fs, cred) = (&file.caller.fs, &file.caller.cred);
        let value = fs.xattr(file.handle.file, &name, cred).await?;
        self.w().opaque(&value);
        Ok(())
    }

    async fn set_xattr(&mut self, option: u32, name: &[u8], value: &[u8]) -> Done {
        let (file, name) = self.xattr(name)?;
        let mode = match option {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Status::BadXdr.into()),
        };
        file.writable()?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Status::XattrTooBig.into());
        }
        let (fs, cred) = (&file.caller.fs, &file.caller.cred);
        let change = fs
            .set_xattr(file.handle.file, &name, value, mode, cred)
            .await?;
        self.write_file_change(&change);
        Ok(())
    }

    async fn remove_xattr(&mut self, name: &[u8]) -> Done {
        let (file, name) = self.xattr(name)?;
        file.writable()?;
        let (fs, cred) = (&file.caller.fs, &file.caller.cred);
        let change = fs.remove_xattr(file.handle.file, &name, cred).await?;
        self.write_file_change(&change);
        Ok(())
    }

    async fn list_xattrs(&mut self, cookie: u64, bytes: u32) -> Done {
        let file = self.file(Status::NotSupported)?;
        let (fs, cred) = (&file.caller.fs, &file.caller.cred);
        let all = fs.xattrs(file.handle.file, cred).await?;
        let names: Vec<Vec<u8>> = all
            .into_iter()
            .filter_map(|xattr| Some(xattr.name.strip_prefix(PREFIX)?.to_vec()))
            .collect();
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        if skip > names.len() {
            return Err(Status::BadCookie.into());
        }
        // Cookie, count and end have room, too.
        let room = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .saturating_sub(16);
        let mut list = Writer::default();
        let mut taken = 0;
        for name in names.iter().skip(skip) {
            let before = list.len();
            list.opaque(name);
            if list.len() > room {
                list.truncate(before);
                break;
            }
            taken += 1;
        }
        if taken == 0 && skip < names.len() {
            return Err(Status::TooSmall.into());
        }
        let next = skip + taken;
        let count = u32::try_from(taken).map_err(|_| Status::ServerFault)?;
        self.w()
            .u64(next as u64)
            .u32(count)
            .opaque_fixed(&list.into_bytes())
            .bool(next >= names.len());
        Ok(())
    }

    /// Returns the current file, and the whole name of an extended attribute.
    fn xattr(&self, name: &[u8]) -> Result<(FileTarget, Vec<u8>), Status> {
        let file = self.file(Status::NotSupported)?;
        if name.is_empty() {
            return Err(Status::Invalid);
        }
        if name.len() > 255 - PREFIX.len() {
            return Err(Status::NameTooLong);
        }
        Ok((file, [PREFIX, name].concat()))
    }

    fn write_file_change(&mut self, change: &Change) {
        super::change::write_change(self.w(), change);
    }
}
