//! OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE and CLOSE (RFC 7530, section 16.16; RFC 8881, section 18.16).

use super::attribute::{self, Given};
use super::bitmap::Bitmap;
use super::change::{write_change, write_unchanged};
use super::compound::{Compound, Done, Failure, FileTarget, Target};
use super::data::{READ, WRITE};
use super::file::check_name;
use super::operation::{Open, OpenClaim, OpenHow, StateId};
use super::state::{
    ClientId, DelegationRequest, DelegationType, GiveBack, OpenRequest, OwnerId, OwnerKind,
    OwnerSequence, ShareMode,
};
use super::status::Status;
use engine::{
    Access, Attr, Change, CreateMode, DelegatedAccess, Delegation, FileType, FsError, SetAttr,
};
use std::sync::Arc;

/// OPEN4_RESULT_CONFIRM.
const RESULT_CONFIRM: u32 = 2;
/// OPEN4_RESULT_LOCKTYPE_POSIX.
const RESULT_LOCKTYPE_POSIX: u32 = 4;
/// What a client wants of delegations (RFC 8881, section 18.16.1): a mask, and "none".
const WANT_MASK: u32 = 0xff00;
const WANT_READ_DELEGATION: u32 = 0x0100;
const WANT_NO_DELEGATION: u32 = 0x0400;
const WANT_CANCEL: u32 = 0x0500;
/// Signals that may come with it.
const WANT_SIGNALS: u32 = 0x0003_0000;
/// OPEN_DELEGATE_NONE, OPEN_DELEGATE_READ, OPEN_DELEGATE_WRITE and OPEN_DELEGATE_NONE_EXT.
const DELEGATE_NONE: u32 = 0;
const DELEGATE_READ: u32 = 1;
const DELEGATE_WRITE: u32 = 2;
const DELEGATE_NONE_EXT: u32 = 3;
/// Why there is none: WND4_NOT_WANTED, WND4_RESOURCE, WND4_CANCELLED.
const NOT_WANTED: u32 = 0;
const NO_RESOURCE: u32 = 2;
const CANCELLED: u32 = 7;
/// NFS_LIMIT_SIZE.
const LIMIT_SIZE: u32 = 1;

/// A file found or made.
struct Found {
    file: FileTarget,
    attr: Attr,
    /// What was done to the directory; `None` where it was left alone, with its attributes.
    change: Result<Change, Attr>,
    made: bool,
    /// What was set as it was made.
    set: Bitmap,
    /// To be truncated, once it is known that it may be opened.
    truncate: bool,
}

impl Compound<'_> {
    pub(super) async fn open(&mut self, open: &Open<'_>) -> Done {
        let client = match self.session_client() {
            Some(client) => client,
            None => {
                self.server.v4().renew(open.owner.client)?;
                open.owner.client
            }
        };
        let owner = {
            let mut state = self.server.v4();
            state.owner(&open.owner, client, OwnerKind::Open, self.minor)?
        };
        self.begin_owner_request(owner, open.sequence, true)?;
        let share = self.share_mode(open)?;
        self.check_grace(open, client, share)?;
        let found = self.found(open).await?;
        self.check_delegated(open, &found, client)?;
        let reclaim = matches!(open.claim, OpenClaim::Previous(_));
        // What a client opened by a delegation it has open, whatever the file's mode became.
        let opened_before = reclaim || matches!(open.claim, OpenClaim::DelegateCurrent(..));
        self.check_openable(&found, share, opened_before).await?;
        let request = OpenRequest {
            client,
            owner,
            file: found.file.handle,
            share,
            uid: found.file.caller.cred.uid,
            fs: found.file.caller.fs.clone(),
            minor: self.minor,
            reclaim,
        };
        let opened = self.server.v4().open(request);
        let opened = opened.map_err(|status| match status {
            Status::ShareDenied if reclaim => Status::ReclaimConflict,
            other => other,
        })?;
        let ready = Self::prepare(&found, opened.fresh).await;
        if let Err(status) = ready {
            self.server.v4().undo_open(&opened);
            return Err(status.into());
        }
        self.server.v4().note_held(&opened);
        let delegation = self.delegate(open, &found.file, share).await;
        self.current = Some(Target::File(found.file));
        self.state = Some(opened.state);
        let w = self.reply.writer();
        w.u32(opened.state.sequence)
            .opaque_fixed(&opened.state.other);
        match &found.change {
            Ok(change) => write_change(w, change),
            Err(dir) => write_unchanged(w, dir),
        }
        let confirm = if opened.confirm { RESULT_CONFIRM } else { 0 };
        w.u32(RESULT_LOCKTYPE_POSIX | confirm);
        found.set.write(w);
        match delegation {
            Some((of, delegation)) => self.write_delegation(of, &delegation),
            None => self.no_delegation(open.access),
        }
        Ok(())
    }

    /// Checks that what is opened by a delegation is what was delegated.
    fn check_delegated(
        &self,
        open: &Open<'_>,
        found: &Found,
        client: ClientId,
    ) -> Result<(), Status> {
        let OpenClaim::DelegateCurrent(id, _) = open.claim else {
            return Ok(());
        };
        let id = self.state_id(&id)?;
        match self.server.v4().delegated_file(&id, client)? == found.file.handle {
            true => Ok(()),
            false => Err(Status::BadStateId),
        }
    }

    /// Returns which delegation an open may be given: to read where it reads alone, to write where it writes, of those that are
    /// reclaimed the one that there was.
    fn delegation_type(
        &self,
        open: &Open<'_>,
        file: &FileTarget,
        share: ShareMode,
    ) -> Option<DelegationType> {
        let wants = open.access & WANT_MASK;
        let refused = matches!(wants, WANT_NO_DELEGATION | WANT_CANCEL);
        if refused || !self.server.delegates() || share.deny != 0 {
            return None;
        }
        let writes = match open.claim {
            OpenClaim::Previous(DELEGATE_WRITE) => true,
            OpenClaim::Previous(DELEGATE_NONE) => return None,
            _ if share.access == READ => false,
            OpenClaim::Name(_) | OpenClaim::Handle => wants != WANT_READ_DELEGATION,
            _ => return None,
        };
        match writes {
            true => file.caller.write.then_some(DelegationType::Write),
            false if share.access == READ => Some(DelegationType::Read),
            false => None,
        }
    }

    /// Delegates a file that was opened, where that can be.
    async fn delegate(
        &self,
        open: &Open<'_>,
        file: &FileTarget,
        share: ShareMode,
    ) -> Option<(DelegationType, StateId)> {
        let client = self.session_client()?;
        let unchanged_since = match open.claim {
            OpenClaim::Name(_) | OpenClaim::Handle => None,
            // What the client has in its cache it keeps: the file must not have been changed since the server was started.
            OpenClaim::Previous(_) => Some(self.server.started()),
            _ => return None,
        };
        let delegation_type = self.delegation_type(open, file, share)?;
        let (fs, id) = (&file.caller.fs, file.handle.file);
        let in_table = fs.clone();
        let begun = self.server.v4().begin_delegation(DelegationRequest {
            client,
            file: file.handle,
            delegation_type,
            opened: (file.caller.cred.uid, share.access),
            give_back: GiveBack(Arc::new(move || in_table.give_back(id, client))),
            minor: self.minor,
        })?;
        let own_holds = begun.own_holds;
        let delegation = Delegation {
            access: match delegation_type {
                DelegationType::Read => DelegatedAccess::Read,
                DelegationType::Write => DelegatedAccess::Write { own_holds },
            },
            holder: client,
            unchanged_since,
            recall: self.server.delegation_recall(),
        };
        let delegated = fs.delegate(id, delegation).await.ok().flatten();
        let change = delegated.map(|attr| attr.change);
        let state = self.server.v4().end_delegation(begun.key, change)?;
        Some((delegation_type, state))
    }

    fn write_delegation(&mut self, delegation_type: DelegationType, delegation: &StateId) {
        let w = self.w();
        w.u32(match delegation_type {
            DelegationType::Read => DELEGATE_READ,
            DelegationType::Write => DELEGATE_WRITE,
        });
        // Not recalled already.
        w.u32(delegation.sequence)
            .opaque_fixed(&delegation.other)
            .bool(false);
        if delegation_type == DelegationType::Write {
            // RFC 8881, section 18.16.3: the client writes what it has when it closes a file that is longer. No space is set aside, so
            // there is no file that it may keep back: it is told of a full pool and of quotas as it closes the file.
            w.u32(LIMIT_SIZE).u64(0);
        }
        // Of other users' permissions it says nothing, the client asks (ACCESS).
        w.u32(0).u32(0).u32(0).opaque(b"EVERYONE@");
    }

    /// Begins a request that an owner counts: ends it with the first answer if it is a repeat (minor version 0).
    pub(super) fn begin_owner_request(
        &mut self,
        owner: OwnerId,
        sequence: u32,
        opens: bool,
    ) -> Done {
        if self.minor > 0 {
            return Ok(());
        }
        match self.server.v4().owner_sequence(owner, sequence, opens)? {
            OwnerSequence::New => {
                self.sequenced = Some((owner, sequence));
                Ok(())
            }
            OwnerSequence::Repeat(replay) => Err(Failure::Repeated(replay)),
        }
    }

    fn share_mode(&self, open: &Open<'_>) -> Result<ShareMode, Status> {
        let wants = if self.minor > 0 {
            WANT_MASK | WANT_SIGNALS | 0x0018_0000
        } else {
            0
        };
        let share = ShareMode {
            access: open.access & !wants,
            deny: open.deny,
        };
        if !(1..=3).contains(&share.access) || share.deny > 3 {
            return Err(Status::Invalid);
        }
        Ok(share)
    }

    /// Opens that reclaim what a client had before a restart are for the time after one, and others for later.
    fn check_grace(
        &self,
        open: &Open<'_>,
        client: ClientId,
        share: ShareMode,
    ) -> Result<(), Status> {
        match open.claim {
            OpenClaim::Previous(kind) => {
                let mut state = self.server.v4();
                state.check_reclaim(client, kind != DELEGATE_NONE)
            }
            // What was reclaimed or given may be used, and no more: others may yet reclaim what excludes it.
            OpenClaim::DelegateCurrent(id, _) if self.minor > 0 => {
                let id = self.state_id(&id)?;
                let state = self.server.v4();
                match state.is_delegated(&id, client, share)? {
                    true => Ok(()),
                    false => state.check_new_state(client),
                }
            }
            OpenClaim::DelegateCurrent(..) => Err(Status::BadStateId),
            OpenClaim::DelegatePrevious => Err(Status::NotSupported),
            _ => self.server.v4().check_new_state(client),
        }
    }

    /// Finds the file that is to be opened, and makes it if that is asked for.
    async fn found(&mut self, open: &Open<'_>) -> Result<Found, Status> {
        let name = match open.claim {
            OpenClaim::Name(name) => name,
            OpenClaim::DelegateCurrent(_, Some(name)) => return self.existing(name).await,
            OpenClaim::Handle if open.how != OpenHow::NoCreate => return Err(Status::Invalid),
            _ => {
                let file = self.file(Status::IsDirectory)?;
                let attr = file.attr().await?;
                return Ok(Found::unchanged(file, attr.clone(), attr));
            }
        };
        self.target()?;
        check_name(name)?;
        if let OpenHow::NoCreate = open.how {
            return self.existing(name).await;
        }
        let dir = self.file(Status::ReadOnly)?;
        let attr = Self::check_directory(&dir).await?;
        if let OpenHow::Unchecked(raw) = &open.how {
            let given = self.given(self.target()?, raw).await?;
            // What is there is opened as it is.
            let (fs, cred) = (&dir.caller.fs, &dir.caller.cred);
            match fs.lookup(dir.handle.file, name, cred).await {
                Ok(there) if there.file_type == FileType::Regular => {
                    let mut found = Found::unchanged(dir.sibling(there.id), there, attr);
                    found.truncate = given.set.size == Some(0);
                    if found.truncate {
                        found.set = Bitmap::of(&[attribute::number::SIZE]);
                    }
                    return Ok(found);
                }
                Ok(_) => return self.existing(name).await,
                Err(FsError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.made(open, dir, name).await
    }

    /// Makes the file that is to be opened.
    async fn made(
        &mut self,
        open: &Open<'_>,
        dir: FileTarget,
        name: &[u8],
    ) -> Result<Found, Status> {
        let (mode, given, mut bits) = match &open.how {
            OpenHow::Unchecked(raw) | OpenHow::Guarded(raw) => {
                let given = self.given(self.target()?, raw).await?;
                (CreateMode::Guarded, given, raw.bits)
            }
            OpenHow::Exclusive(verifier, raw) => {
                let given = match raw {
                    Some(raw) => {
                        attribute::read_exclusive(raw, self.minor, self.server.resolver())?
                    }
                    // The client sets the mode afterwards; until then only the owner may open the file.
                    None => Given {
                        set: SetAttr {
                            mode: Some(0o600),
                            ..SetAttr::default()
                        },
                        ..Given::default()
                    },
                };
                let bits = raw.map_or(Bitmap::default(), |raw| raw.bits);
                let bits = bits.union(attribute::EXCLUSIVE_VERIFIER);
                (CreateMode::Exclusive(*verifier), given, bits)
            }
            OpenHow::NoCreate => return self.existing(name).await,
        };
        dir.writable()?;
        self.check_stored_name(&dir, name).await?;
        let (fs, cred) = (&dir.caller.fs, &dir.caller.cred);
        let made = match fs
            .create(dir.handle.file, name, mode, &given.set, cred)
            .await
        {
            Ok(made) => made,
            // It was made by another call in between: the client asks again.
            Err(FsError::Exists) if matches!(open.how, OpenHow::Unchecked(_)) => {
                return Err(Status::Delay);
            }
            Err(error) => return Err(error.into()),
        };
        if !made.created {
            bits = attribute::EXCLUSIVE_VERIFIER;
        }
        let file = dir.sibling(made.file.id);
        if made.created {
            file.give_list(given.list.as_deref()).await?;
        }
        Ok(Found {
            file,
            attr: made.file,
            change: Ok(made.dir),
            made: true,
            set: bits,
            truncate: false,
        })
    }

    async fn existing(&mut self, name: &[u8]) -> Result<Found, Status> {
        let dir = match self.target()? {
            Target::Pseudo(node) => self.pseudo_attr(*node),
            Target::File(dir) => Self::check_directory(dir).await?,
        };
        match self.find(name).await? {
            Target::Pseudo(_) => Err(Status::IsDirectory),
            Target::File(file) => {
                let attr = file.attr().await?;
                Ok(Found::unchanged(file, attr, dir))
            }
        }
    }

    /// Checks that a file is one to be opened, and that the caller may.
    async fn check_openable(
        &self,
        found: &Found,
        share: ShareMode,
        opened_before: bool,
    ) -> Result<(), Status> {
        match found.attr.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Status::IsDirectory),
            FileType::Symlink => return Err(Status::Symlink),
            _ if self.minor > 0 => return Err(Status::WrongType),
            // RFC 7530, section 16.16.6.
            _ => return Err(Status::Symlink),
        }
        if share.access & WRITE != 0 {
            found.file.writable()?;
        }
        let (fs, cred) = (&found.file.caller.fs, &found.file.caller.cred);
        if found.made || (opened_before && cred.uid == found.attr.uid) {
            // Its maker may open a file whatever its mode says, and has it open still after a restart and without a delegation.
            return Ok(());
        }
        let wanted = Access::READ | Access::MODIFY | Access::EXTEND | Access::EXECUTE;
        let granted = fs.access(found.file.handle.file, wanted, cred).await?;
        // A program is read to be run.
        let reads = granted.contains(Access::READ) || granted.contains(Access::EXECUTE);
        let writes = granted.contains(Access::MODIFY | Access::EXTEND);
        if (share.access & READ != 0 && !reads) || (share.access & WRITE != 0 && !writes) {
            return Err(Status::Access);
        }
        Ok(())
    }

    /// Holds a file that was not open before, and truncates it if that was asked for.
    async fn prepare(found: &Found, fresh: bool) -> Result<(), Status> {
        let (fs, id) = (&found.file.caller.fs, found.file.handle.file);
        if fresh {
            fs.hold(id).await?;
        }
        if found.truncate {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            fs.setattr(id, &set, None, &found.file.caller.cred).await?;
        }
        Ok(())
    }

    /// Writes that no delegation is given, and why where the client said what it wants.
    fn no_delegation(&mut self, access: u32) {
        let wants = access & WANT_MASK;
        let w = self.w();
        match wants {
            0 => w.u32(DELEGATE_NONE),
            WANT_NO_DELEGATION => w.u32(DELEGATE_NONE_EXT).u32(NOT_WANTED),
            WANT_CANCEL => w.u32(DELEGATE_NONE_EXT).u32(CANCELLED),
            // Nor will one be later.
            _ => w.u32(DELEGATE_NONE_EXT).u32(NO_RESOURCE).bool(false),
        };
    }

    pub(super) fn open_confirm(&mut self, id: &StateId, sequence: u32) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let owner = self.server.v4().owner_of(id)?;
        self.begin_owner_request(owner, sequence, false)?;
        let state = self.server.v4().confirm_open(id, &file.handle)?;
        self.write_state_id(&state);
        Ok(())
    }

    pub(super) fn open_downgrade(
        &mut self,
        id: &StateId,
        sequence: u32,
        access: u32,
        deny: u32,
    ) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let id = self.state_id(id)?;
        if self.minor == 0 {
            let owner = self.server.v4().owner_of(&id)?;
            self.begin_owner_request(owner, sequence, false)?;
        }
        let share = ShareMode {
            access: access & 0xff,
            deny,
        };
        if !(1..=3).contains(&share.access) || share.deny > 3 {
            return Err(Status::Invalid.into());
        }
        let client = self.session_client();
        let state = self
            .server
            .v4()
            .downgrade(&id, &file.handle, share, client, self.minor)?;
        self.state = Some(state);
        self.write_state_id(&state);
        Ok(())
    }

    pub(super) fn close(&mut self, sequence: u32, id: &StateId) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let id = self.state_id(id)?;
        if self.minor == 0 {
            let owner = self.server.v4().owner_of(&id)?;
            self.begin_owner_request(owner, sequence, false)?;
        }
        let client = self.session_client();
        let state = self
            .server
            .v4()
            .close(&id, &file.handle, client, self.minor)?;
        self.state = None;
        self.write_state_id(&state);
        Ok(())
    }

    pub(super) fn write_state_id(&mut self, id: &StateId) {
        self.w().u32(id.sequence).opaque_fixed(&id.other);
    }
}

impl Found {
    fn unchanged(file: FileTarget, attr: Attr, dir: Attr) -> Self {
        Self {
            file,
            attr,
            change: Err(dir),
            made: false,
            set: Bitmap::default(),
            truncate: false,
        }
    }
}
