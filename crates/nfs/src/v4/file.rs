//! Operations on the current file handle that change nothing: handles, names, attributes, permissions.

use super::acl;
use super::attribute::{self, Described, Given, Locations};
use super::bitmap::Bitmap;
use super::compound::{Compound, Done, FileTarget, Target};
use super::operation::{RawAttributes, StateId};
use super::pseudo::{NodeId, PseudoTree};
use super::status::Status;
use crate::exports::{Flavour, Flavours};
use crate::handle::{FileHandle, in_snapshot};
use crate::rpcsec_gss::wire::{KERBEROS, RPCSEC_GSS, Service};
use crate::written;
use crate::xdr::Writer;
use engine::{
    Access, Attr, Cred, DeviceNumber, FileId, FileType, FsError, FsStat, Timestamp, XattrMode,
};

/// Begins the handle of a directory of the pseudo file system; its number follows.
const PSEUDO_MAGIC: [u8; 4] = *b"sbxp";
/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What a client may call a file (RFC 7530, section 14.3).
pub(super) fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::Invalid);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    if name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Status::BadName);
    }
    if std::str::from_utf8(name).is_err() {
        return Err(Status::Invalid);
    }
    Ok(())
}

pub(super) fn pseudo_handle(node: NodeId) -> Vec<u8> {
    PSEUDO_MAGIC.into_iter().chain(node.to_be_bytes()).collect()
}

fn pseudo_node(handle: &[u8]) -> Option<NodeId> {
    let node = handle.strip_prefix(&PSEUDO_MAGIC)?;
    node.try_into().ok().map(u64::from_be_bytes)
}

impl Target {
    pub(super) fn handle(&self) -> Vec<u8> {
        match self {
            Self::Pseudo(node) => pseudo_handle(*node),
            Self::File(file) => file.handle.encode(),
        }
    }
}

impl Target {
    /// Returns the error of a file whose share does not take the flavour of the call; directories on the way to shares take any.
    pub(super) fn check_flavour(&self) -> Result<(), Status> {
        match self {
            Self::Pseudo(_) => Ok(()),
            Self::File(file) => file.check_flavour(),
        }
    }
}

/// Writes flavours as SECINFO's answer has them (RFC 7530, section 16.31.2: secinfo4).
fn write_flavours(w: &mut Writer, flavours: Flavours) {
    w.u32(u32::try_from(flavours.iter().count()).expect("there are four"));
    for flavour in flavours.iter() {
        let service = match flavour {
            Flavour::Sys => {
                w.u32(flavour.number());
                continue;
            }
            Flavour::Krb5 => Service::Authentication,
            Flavour::Krb5i => Service::Integrity,
            Flavour::Krb5p => Service::Privacy,
        };
        // The mechanism, the default quality of protection, and the service.
        w.u32(RPCSEC_GSS).opaque(KERBEROS);
        w.u32(0).u32(service as u32);
    }
}

impl FileTarget {
    fn check_flavour(&self) -> Result<(), Status> {
        match self.caller.flavour_taken {
            true => Ok(()),
            false => Err(Status::WrongSecurity),
        }
    }

    /// Returns the file's list, if files of its kind and file system have lists.
    pub(super) async fn list(&self) -> Option<Vec<u8>> {
        let (fs, id) = (&self.caller.fs, self.handle.file);
        fs.xattr(id, acl::ATTRIBUTE, &self.caller.cred).await.ok()
    }

    /// Gives the file a list, if there is one to give.
    pub(super) async fn give_list(&self, list: Option<&[u8]>) -> Result<(), Status> {
        if let Some(list) = list {
            let (fs, id, cred) = (&self.caller.fs, self.handle.file, &self.caller.cred);
            fs.set_xattr(id, acl::ATTRIBUTE, list, XattrMode::Any, cred)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn attr(&self) -> Result<Attr, FsError> {
        self.caller.fs.getattr(self.handle.file).await
    }

    /// Checks that no other client may have written what is not here, and has one that may give the file back.
    ///
    /// # Errors
    /// [`FsError::Delegated`]: the caller asks again.
    pub(super) fn check_read(&self, cred: &Cred) -> Result<(), FsError> {
        match self.handle.snapshot {
            Some(_) => Ok(()),
            None => {
                let fs = &self.caller.fs;
                fs.check_written_elsewhere(self.handle.file, cred.holder)
            }
        }
    }

    /// Returns another client than `holder` that writes a file of the same file system in its own cache.
    pub(super) fn writer_of(&self, file: FileId, holder: u64) -> Option<u64> {
        let writer = match self.handle.snapshot {
            Some(_) => None,
            None => self.caller.fs.writer(file),
        };
        writer.filter(|writer| *writer != holder)
    }

    /// Returns another file of the same file system.
    pub(super) fn sibling(&self, file: FileId) -> Self {
        Self {
            handle: FileHandle {
                file,
                ..self.handle
            },
            caller: self.caller.clone(),
        }
    }

    /// Whether another file lies in the same file system.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.handle.dataset == other.handle.dataset && self.handle.snapshot == other.handle.snapshot
    }

    /// Returns the error of a caller that may only read.
    pub(super) fn writable(&self) -> Result<(), Status> {
        if self.caller.write {
            Ok(())
        } else {
            Err(Status::ReadOnly)
        }
    }

    /// Returns the error of an operation on a directory for a file that is none: a link is told apart.
    pub(super) async fn not_directory(&self, error: FsError) -> Status {
        if error == FsError::NotDirectory
            && self
                .attr()
                .await
                .is_ok_and(|a| a.file_type == FileType::Symlink)
        {
            return Status::Symlink;
        }
        error.into()
    }
}

impl Compound<'_> {
    pub(super) fn put_handle(&mut self, bytes: &[u8]) -> Done {
        self.state = None;
        let target = match pseudo_node(bytes) {
            Some(node) => {
                if self.server.pseudo().node(node).is_none() {
                    return Err(Status::Stale.into());
                }
                Target::Pseudo(node)
            }
            None => {
                let server = self.server;
                let admitted = server.admit_by_any_flavour(bytes, self.peer, self.credential)?;
                let (handle, mut caller) = admitted;
                caller.cred.holder = self.holder();
                Target::File(FileTarget { handle, caller })
            }
        };
        self.put_target(target)
    }

    /// Makes a file the current one, if its share takes the flavour of the call, or nothing follows that needs that.
    fn put_target(&mut self, target: Target) -> Done {
        if !self.any_flavour {
            target.check_flavour()?;
        }
        self.current = Some(target);
        Ok(())
    }

    /// The client as a holder of delegations; 0 of minor version 0, which is given none.
    pub(super) fn holder(&self) -> u64 {
        self.session_client().unwrap_or(0)
    }

    /// Restores the current file handle that an owner's request led to, as that request is answered again.
    pub(super) fn put_replayed(&mut self, handle: Option<&[u8]>) {
        if let Some(handle) = handle {
            // A share that is gone meanwhile leaves none.
            let _gone = self.put_handle(handle);
        }
    }

    pub(super) fn handle_bytes(&self) -> Option<Vec<u8>> {
        self.current.as_ref().map(Target::handle)
    }

    pub(super) async fn put_root(&mut self) -> Done {
        self.state = None;
        let root = self.node_target(PseudoTree::ROOT).await;
        self.put_target(root.unwrap_or(Target::Pseudo(PseudoTree::ROOT)))
    }

    pub(super) fn get_handle(&mut self) -> Done {
        let handle = self.target()?.handle();
        self.w().opaque(&handle);
        Ok(())
    }

    pub(super) fn save_handle(&mut self) -> Done {
        self.saved = Some(self.target()?.clone());
        self.saved_state = self.state;
        Ok(())
    }

    pub(super) fn restore_handle(&mut self) -> Done {
        let saved = self.saved.clone().ok_or(if self.minor == 0 {
            Status::RestoreHandle
        } else {
            Status::NoFileHandle
        })?;
        self.current = Some(saved);
        self.state = self.saved_state;
        Ok(())
    }

    /// Returns what a node of the pseudo file system is to the caller: a share's root, a directory on the way to shares, or
    /// nothing where no share that the caller may use is there.
    async fn node_target(&self, id: NodeId) -> Option<Target> {
        let tree = self.server.pseudo();
        let exports = self.server.exports();
        let allowed = |guid: u64| {
            exports
                .get(&guid)
                .is_some_and(|served| self.server.access_of(guid, served, self.peer).is_some())
        };
        let export = tree.node(id)?.export.filter(|guid| allowed(*guid));
        if let Some(guid) = export
            && let Some(served) = exports.get(&guid)
            && let Ok(root) = served.export.fs.root().await
        {
            let handle = FileHandle {
                dataset: guid,
                identity: served.identity,
                snapshot: None,
                file: root.id,
            };
            let (server, bytes) = (self.server, handle.encode());
            let admitted = server.admit_by_any_flavour(&bytes, self.peer, self.credential);
            let (handle, mut caller) = admitted.ok()?;
            let takes = |guid: u64| {
                let served = exports.get(&guid);
                let access = served.and_then(|of| server.access_of(guid, of, self.peer));
                access.is_some_and(|access| access.flavours.allow(self.peer.flavour))
            };
            if !caller.flavour_taken && tree.leads_to(id, &takes) {
                // To this caller it is a directory on the way to shares.
                return Some(Target::Pseudo(id));
            }
            caller.cred.holder = self.holder();
            return Some(Target::File(FileTarget { handle, caller }));
        }
        tree.leads_to(id, &allowed).then_some(Target::Pseudo(id))
    }

    /// Returns the node of the pseudo file system that a file is the root of.
    async fn node_of(&self, file: &FileTarget) -> Option<NodeId> {
        if file.handle.snapshot.is_some() {
            return None;
        }
        let tree = self.server.pseudo();
        let (id, _) = tree.of_export(file.handle.dataset)?;
        let root = file.caller.fs.root().await.ok()?;
        (root.id == file.handle.file).then_some(id)
    }

    /// Returns what a name in a share's root leads to that is another share, or on the way to one.
    pub(super) async fn crossing(&self, dir: &FileTarget, name: &[u8]) -> Option<Target> {
        let tree = self.server.pseudo();
        let (_, node) = tree.of_export(dir.handle.dataset)?;
        let below = *node.children.get(name)?;
        self.node_of(dir).await?;
        self.node_target(below).await
    }

    /// Returns all names in a directory that lead to shares, and what they lead to.
    pub(super) async fn crossings(&self, dir: &Target) -> Vec<(Vec<u8>, Target)> {
        let tree = self.server.pseudo();
        let node = match dir {
            Target::Pseudo(id) => tree.node(*id),
            Target::File(file) => match tree.of_export(file.handle.dataset) {
                Some((_, node)) if node.children.is_empty() => None,
                Some((_, node)) if self.node_of(file).await.is_some() => Some(node),
                _ => None,
            },
        };
        let mut found = Vec::new();
        for (name, below) in node.into_iter().flat_map(|node| &node.children) {
            if let Some(target) = self.node_target(*below).await {
                found.push((name.clone(), target));
            }
        }
        found
    }

    /// Finds a name in the current directory.
    pub(super) async fn find(&self, name: &[u8]) -> Result<Target, Status> {
        check_name(name)?;
        let dir = match self.target()? {
            Target::Pseudo(node) => {
                let below = self
                    .server
                    .pseudo()
                    .node(*node)
                    .and_then(|n| n.children.get(name).copied());
                let target = self.node_target(below.ok_or(Status::NoEntry)?).await;
                return target.ok_or(Status::NoEntry);
            }
            Target::File(dir) => dir,
        };
        if let Some(target) = self.crossing(dir, name).await {
            return Ok(target);
        }
        dir.check_flavour()?;
        let searched = dir
            .caller
            .fs
            .search(dir.handle.file, name, &dir.caller.cred)
            .await;
        match searched.found {
            Ok(found) => {
                let mut target = dir.sibling(found.attr.id);
                if let Some(there) = &found.elsewhere {
                    target.handle.snapshot = in_snapshot(there);
                    target.caller.fs = there.clone();
                }
                Ok(Target::File(target))
            }
            Err(error) => Err(dir.not_directory(error).await),
        }
    }

    pub(super) async fn lookup(&mut self, name: &[u8]) -> Done {
        let found = self.find(name).await?;
        found.check_flavour()?;
        self.current = Some(found);
        self.state = None;
        Ok(())
    }

    /// Returns the directory above the current one.
    async fn parent(&self) -> Result<Target, Status> {
        let node = match self.target()? {
            Target::Pseudo(node) => Some(*node),
            Target::File(file) => {
                let attr = file.attr().await?;
                if attr.file_type != FileType::Directory {
                    return Err(file.not_directory(FsError::NotDirectory).await);
                }
                self.node_of(file).await
            }
        };
        if let Some(node) = node {
            let parent = self.server.pseudo().node(node).map(|node| node.parent);
            if node == PseudoTree::ROOT {
                return Err(Status::NoEntry);
            }
            let target = self.node_target(parent.ok_or(Status::Stale)?).await;
            return target.ok_or(Status::NoEntry);
        }
        let file = self.file(Status::NoEntry)?;
        let found = file
            .caller
            .fs
            .find(file.handle.file, b"..", &file.caller.cred)
            .await?;
        let mut target = file.sibling(found.attr.id);
        if let Some(there) = &found.elsewhere {
            target.handle.snapshot = in_snapshot(there);
            target.caller.fs = there.clone();
        }
        Ok(Target::File(target))
    }

    pub(super) async fn lookup_parent(&mut self) -> Done {
        let parent = self.parent().await?;
        parent.check_flavour()?;
        self.current = Some(parent);
        self.state = None;
        Ok(())
    }

    pub(super) async fn access(&mut self, wanted: u32) -> Done {
        if wanted & !0x3f != 0 && self.minor < 2 {
            return Err(Status::Invalid.into());
        }
        // RFC 7530, section 16.1: the bits are those of `Access`; RFC 8276, section 8.5: and three of extended attributes.
        let (files, xattrs) = (wanted & 0x3f, wanted & 0x1c0);
        let (supported, granted) = match self.target()? {
            Target::Pseudo(_) => {
                let supported = files & (Access::READ | Access::LOOKUP | Access::EXECUTE).0;
                (files, supported & !Access::EXECUTE.0)
            }
            Target::File(file) => {
                let (fs, cred) = (&file.caller.fs, &file.caller.cred);
                let asked = files | xattr_access(xattrs).0;
                let (granted, attr) = fs
                    .access_attr(file.handle.file, Access(asked), cred)
                    .await?;
                let mut granted = granted.0;
                if !file.caller.write {
                    granted &= !(Access::MODIFY | Access::EXTEND | Access::DELETE).0;
                }
                // Bits that say nothing of this type of file.
                let meaningless = if attr.file_type == FileType::Directory {
                    Access::EXECUTE.0
                } else {
                    (Access::LOOKUP | Access::DELETE).0
                };
                let mut xattr = 0;
                for bit in [0x40, 0x80, 0x100] {
                    let needed = xattr_access(bit).0;
                    if xattrs & bit != 0 && granted & needed == needed {
                        xattr |= bit;
                    }
                }
                (
                    (files & !meaningless) | xattrs,
                    (granted & files & !meaningless) | xattr,
                )
            }
        };
        self.w().u32(supported).u32(granted);
        Ok(())
    }

    pub(super) async fn get_attributes(&mut self, bits: Bitmap) -> Done {
        let target = self.target()?.clone();
        attribute::check_readable(bits)?;
        let described = self.describe(&target, bits).await?;
        let (minor, lease_seconds) = (self.minor, self.lease_seconds());
        described.view(minor, lease_seconds).write(self.w(), bits);
        Ok(())
    }

    /// Reads what a client sets on a file, or on one that is made in a directory.
    pub(super) async fn given(
        &self,
        at: &Target,
        raw: &RawAttributes<'_>,
    ) -> Result<Given, Status> {
        let lists = match at {
            Target::File(file) if attribute::needs_list(raw.bits) => file.list().await.is_some(),
            _ => false,
        };
        attribute::read(raw, self.minor, lists, self.server.resolver())
    }

    /// Asks for what the attributes of a file are made of.
    pub(super) async fn describe(
        &self,
        target: &Target,
        bits: Bitmap,
    ) -> Result<Description, Status> {
        let mounted = bits.contains(attribute::number::MOUNTED_ON_FILEID);
        match target {
            Target::Pseudo(node) => Ok(Description {
                attr: self.pseudo_attr(*node),
                handle: target.handle(),
                mounted_on: None,
                stat: None,
                list: None,
                locations: self.locations(bits, None),
            }),
            Target::File(file) => {
                let fs = &file.caller.fs;
                let attr = match file.writer_of(file.handle.file, self.holder()) {
                    Some(writer) if attribute::needs_writer(bits) => {
                        written::attributes(self.server, &file.handle, fs, writer).await?
                    }
                    _ => file.attr().await?,
                };
                // A root directory is its own parent.
                let root = mounted && attr.parent == attr.id.object;
                Ok(Description {
                    handle: target.handle(),
                    mounted_on: if root { self.node_of(file).await } else { None },
                    stat: if attribute::needs_stat(bits) {
                        Some(file.caller.fs.statfs().await?)
                    } else {
                        None
                    },
                    list: if attribute::needs_list(bits) {
                        file.list().await
                    } else {
                        None
                    },
                    locations: self.locations(bits, Some(file.handle.dataset)),
                    attr,
                })
            }
        }
    }

    /// Where the file system of a share is, or the tree above the shares, if it is asked for.
    fn locations(&self, bits: Bitmap, share: Option<u64>) -> Option<Locations> {
        // Asked for once a mount, while every look at attributes comes by here.
        if !bits.contains(attribute::number::FS_LOCATIONS) {
            return None;
        }
        let exports = self.server.exports();
        let served = share.and_then(|guid| exports.get(&guid));
        Some(Locations {
            path: served.map_or_else(String::new, |served| served.export.path.clone()),
            addresses: self.server.addresses(),
        })
    }

    pub(super) fn pseudo_attr(&self, node: NodeId) -> Attr {
        let time = Timestamp {
            seconds: i64::try_from(self.server.boot_verifier() / 1_000_000_000).unwrap_or(0),
            nanoseconds: 0,
        };
        Attr {
            id: FileId {
                object: node,
                generation: 0,
            },
            file_type: FileType::Directory,
            mode: 0o555,
            links: 2,
            uid: 0,
            gid: 0,
            size: 2,
            used: 0,
            rdev: DeviceNumber::default(),
            block_size: 512,
            fsid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            change: self.server.exports_version(),
            flags: 0,
            project: 0,
            parent: node,
        }
    }

    pub(super) async fn verify(&mut self, wanted: &RawAttributes<'_>, same: bool) -> Done {
        let target = self.target()?.clone();
        let described = self.describe(&target, wanted.bits).await?;
        attribute::check_comparable(wanted.bits, self.minor, described.list.is_some())?;
        let values = described
            .view(self.minor, self.lease_seconds())
            .values(wanted.bits);
        match (values == wanted.values, same) {
            (true, false) => Err(Status::Same.into()),
            (false, true) => Err(Status::NotSame.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn read_link(&mut self) -> Done {
        let file = self.file(Status::Invalid)?;
        let attr = file.attr().await?;
        if attr.file_type != FileType::Symlink {
            return Err(if self.minor == 0 {
                Status::Invalid
            } else {
                Status::WrongType
            }
            .into());
        }
        let path = file.caller.fs.readlink(file.handle.file).await?;
        self.w().opaque(&path);
        Ok(())
    }

    pub(super) async fn security_info(&mut self, name: &[u8]) -> Done {
        let found = match self.find(name).await {
            Ok(found) => found,
            // Of the share that the directory is in; whether the name is there is not told.
            Err(Status::WrongSecurity) => self.target()?.clone(),
            Err(status) => return Err(status.into()),
        };
        if let Target::File(file) = &found {
            file.attr().await?;
        }
        self.security_flavours(&found);
        Ok(())
    }

    pub(super) async fn security_info_no_name(&mut self, parent: bool) -> Done {
        let of = match parent {
            true => self.parent().await?,
            false => self.target()?.clone(),
        };
        self.security_flavours(&of);
        Ok(())
    }

    /// Writes the flavours that a file's share takes; the current file handle is used up (RFC 8881, section 2.6.3.1.1.8).
    fn security_flavours(&mut self, of: &Target) {
        let flavours = match of {
            Target::File(file) => self.server.flavours(&file.handle, self.peer),
            // Every caller may see names on the way to shares.
            Target::Pseudo(_) if self.server.offers_kerberos() => Some(Flavours::ALL),
            Target::Pseudo(_) => None,
        };
        write_flavours(self.w(), flavours.unwrap_or_default());
        let is_taken = self
            .current
            .as_ref()
            .is_some_and(|t| t.check_flavour().is_ok());
        if self.minor > 0 || !is_taken {
            self.current = None;
            self.state = None;
        }
    }

    /// Returns the state id that an operation means: its own, or the current one of the request.
    pub(super) fn state_id(&self, id: &StateId) -> Result<StateId, Status> {
        // RFC 8881, section 16.2.3.1.2: the current state id is "one, and all zero".
        if self.minor > 0 && id.sequence == 1 && id.other == [0; 12] {
            return self.state.ok_or(Status::BadStateId);
        }
        Ok(*id)
    }
}

/// The access to a file that access to its extended attributes is made of.
fn xattr_access(bits: u32) -> Access {
    let mut access = Access(0);
    if bits & (0x40 | 0x100) != 0 {
        access = access | Access::READ;
    }
    if bits & 0x80 != 0 {
        access = access | Access::MODIFY;
    }
    access
}

/// What the attributes of a file are made of.
pub(super) struct Description {
    pub(super) attr: Attr,
    pub(super) handle: Vec<u8>,
    pub(super) mounted_on: Option<u64>,
    pub(super) stat: Option<FsStat>,
    pub(super) list: Option<Vec<u8>>,
    pub(super) locations: Option<Locations>,
}

impl Description {
    pub(super) fn view(&self, minor: u32, lease_seconds: u32) -> Described<'_> {
        Described {
            attr: &self.attr,
            handle: &self.handle,
            mounted_on: self.mounted_on,
            stat: self.stat.as_ref(),
            list: self.list.as_deref(),
            locations: self.locations.as_ref(),
            minor,
            lease_seconds,
        }
    }
}
