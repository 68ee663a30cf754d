//! The ACLs of files in use: which POSIX ACL a file has in memory, what new files get, and ACLs as extended attributes.
//!
//! A POSIX ACL is an extended attribute and may be a file of its own, so it is looked at once when a file is used and
//! kept beside the decoded attributes ([`Attrs::posix`]); every change of it goes through here. Which kind of ACL a file
//! system has is the property `acltype`; when it changes, files are looked at anew.

use std::rc::Rc;

use ondisk::acl::ace_mask;

use super::list;
use super::posix::{self, PosixAcl};
use crate::backing::{AclType, META_BYTES, Weight};
use crate::fs::Fs;
use crate::permission;
use crate::sa::Attrs;
use crate::setattr::set_trivial_acl;
use crate::znode::{ACL_TRIVIAL, XATTR, Znode};
use crate::{Change, Cred, FileType, FsError, FsResult, flags};

impl Fs {
    /// Sees to it that the file's POSIX ACL is in memory, if ACLs of that kind are in force.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) async fn look_at_acl(&self, znode: &Znode) -> FsResult<()> {
        let settings = self.settings();
        let epoch = self.0.acl_epoch.get();
        if znode.acl_seen.get() == epoch {
            return Ok(());
        }
        loop {
            let (ctime, plain) = {
                let attrs = znode.attrs.borrow();
                let plain = attrs.dxattr.is_none() && attrs.xattr.is_none();
                (attrs.ctime, plain)
            };
            let acl = if plain || settings.acl_type != AclType::Posix {
                None
            } else {
                Box::pin(self.posix_list(znode, posix::ACCESS)).await?
            };
            let mut attrs = znode.attrs.borrow_mut();
            // A change of the ACL sets this time too, and leaves what it is now.
            if attrs.ctime == ctime {
                attrs.posix = acl.map(Rc::new);
                znode.acl_seen.set(epoch);
                return Ok(());
            }
        }
    }

    async fn posix_list(&self, znode: &Znode, name: &[u8]) -> FsResult<Option<PosixAcl>> {
        match self.xattr_value(znode, name).await? {
            None => Ok(None),
            Some(bytes) => PosixAcl::decode(&bytes)
                .map(Some)
                .map_err(|_| FsError::Corrupt("access control list")),
        }
    }

    /// Returns the ACL that new files of a directory get.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) async fn default_acl(&self, dir: &Znode) -> FsResult<Option<PosixAcl>> {
        let plain = {
            let attrs = dir.attrs.borrow();
            attrs.dxattr.is_none() && attrs.xattr.is_none()
        };
        if plain || self.settings().acl_type != AclType::Posix {
            return Ok(None);
        }
        self.posix_list(dir, posix::DEFAULT).await
    }

    /// Gives a new file, whose mode and owners are set, its first ACL: that of its mode, with what the directory's ACL
    /// has for new files.
    ///
    /// # Errors
    /// [`FsError::Corrupt`].
    pub(crate) fn give_first_list(&self, dir: &Attrs, attrs: &mut Attrs) -> FsResult<()> {
        if dir.flags & list::INHERITABLE == 0 || dir.flags & XATTR != 0 {
            set_trivial_acl(attrs);
            return Ok(());
        }
        let settings = self.settings();
        let parent = list::of_attrs(dir)?;
        list::inherit(&parent, attrs, settings.acl_inherit, settings.acl_mode);
        Ok(())
    }

    /// Gives attributes a new mode, and their ACLs what follows from it.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] when `aclmode` keeps the ACL as it is; [`FsError::Corrupt`].
    pub(crate) fn give_mode(&self, attrs: &mut Attrs, mode: u64) -> FsResult<()> {
        if attrs.flags & ACL_TRIVIAL != 0 || attrs.acl.is_none() {
            attrs.mode = mode;
            set_trivial_acl(attrs);
        } else if self.0.replaying.get().is_some() && self.settings().acl_mode.is_restricted() {
            // It was allowed when it was acknowledged.
            list::chmod(attrs, mode, crate::backing::AclMode::Passthrough)?;
        } else {
            list::chmod(attrs, mode, self.settings().acl_mode)?;
        }
        if let Some(acl) = &mut attrs.posix {
            Rc::make_mut(acl).set_mode(mode);
        }
        Ok(())
    }

    /// Checks that the kind of ACL an extended attribute stands for is in force here, and that the file may have it.
    ///
    /// # Errors
    /// [`FsError::NotSupported`]; [`FsError::Access`] for what only directories have; [`FsError::NotPermitted`].
    pub(crate) fn check_list_attribute(
        &self,
        attrs: &Attrs,
        name: &[u8],
        cred: &Cred,
        change: bool,
    ) -> FsResult<()> {
        let file_type = FileType::of_mode(attrs.mode);
        let kind = if name == list::XDR {
            AclType::Nfsv4
        } else {
            AclType::Posix
        };
        // What the log has of one was set while the kind was in force.
        let replaying = self.0.replaying.get().is_some();
        if file_type == Some(FileType::Symlink) || (self.settings().acl_type != kind && !replaying)
        {
            return Err(FsError::NotSupported);
        }
        if !change {
            return Ok(());
        }
        if name == posix::DEFAULT && file_type != Some(FileType::Directory) {
            return Err(FsError::Access);
        }
        let granted =
            kind == AclType::Nfsv4 && permission::grants(attrs, cred, ace_mask::WRITE_ACL);
        if granted || permission::owns(attrs, cred) {
            Ok(())
        } else {
            Err(FsError::NotPermitted)
        }
    }

    /// Sets the ACL a file stores, from the form of the extended attribute; nothing means the ACL of its mode.
    ///
    /// # Errors
    /// [`FsError::Invalid`], [`FsError::NotPermitted`], [`FsError::NotSupported`], those of writing.
    pub(crate) async fn set_list(
        &self,
        znode: &Znode,
        value: Option<&[u8]>,
        cred: &Cred,
    ) -> FsResult<Change> {
        let given = value.map(list::from_xdr).transpose()?;
        let _lock = znode.exclusive().await?;
        self.check_delegations(znode, cred)?;
        let before = znode.wcc();
        let mut attrs = znode.attrs.borrow().clone();
        self.check_list_attribute(&attrs, list::XDR, cred, true)?;
        if attrs.flags & (flags::IMMUTABLE | flags::APPENDONLY) != 0 {
            return Err(FsError::NotPermitted);
        }
        let (aces, wide) = match given {
            Some((aces, 0)) => (aces, attrs.flags),
            Some((aces, wide)) => (aces, wide),
            None => (ondisk::acl::trivial(attrs.mode), attrs.flags),
        };
        if aces.iter().any(|ace| {
            attrs.mode >> 12 != 4
                && ace.flags
                    & (ondisk::acl::ace_flags::FILE_INHERIT
                        | ondisk::acl::ace_flags::DIRECTORY_INHERIT)
                    != 0
        }) {
            return Err(FsError::Invalid);
        }
        list::give(&mut attrs, &aces, wide);
        attrs.ctime = self.now();
        attrs.check_lengths()?;
        let plan = self.plan_for(znode, &attrs).await?;
        let tx = self.begin(Weight::Bytes(META_BYTES)).await?;
        self.store(znode, attrs, &plan, &tx).await?;
        self.log_list(znode, &aces, &tx);
        drop(tx);
        self.settle(znode).await?;
        self.change_of(before, znode).await
    }
}
