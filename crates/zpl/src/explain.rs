//! Why a user may or may not use a file: the bits of the mode, the entry of a list, or the state of the file system that decides.
//!
//! Nothing here decides: [`permission`] does, and a test holds both to the same answers.

use ondisk::acl::{Ace, ace_flags, ace_mask, ace_type};

use crate::access_reason::{AccessReason, AccessVerdict, Holder, Right};
use crate::permission::{self, EXECUTE, READ, WRITE};
use crate::sa::Attrs;
use crate::znode::ACL_TRIVIAL;
use crate::{Cred, FileId, Fs, FsError, FsResult, flags};

impl Right {
    fn bit(self) -> u32 {
        match self {
            Self::Read => READ,
            Self::Write => WRITE,
            Self::Execute => EXECUTE,
        }
    }

    fn ace_bit(self) -> u32 {
        match self {
            Self::Read => ace_mask::READ_DATA,
            Self::Write => ace_mask::WRITE_DATA,
            Self::Execute => ace_mask::EXECUTE,
        }
    }
}

impl Fs {
    /// Returns whether a caller may use a file, and what decides.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn explain(&self, id: FileId, right: Right, cred: &Cred) -> FsResult<AccessVerdict> {
        let znode = self.znode(id).await?;
        let read_only = self.settings().read_only;
        let verdict = explain(&znode.attrs.borrow(), right, read_only, cred);
        Ok(verdict)
    }

    /// Returns whether a caller may take the name of a file out of a directory, and what decides: first whether it may pass through
    /// the directory.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn explain_removal(
        &self,
        dir: FileId,
        id: FileId,
        cred: &Cred,
    ) -> FsResult<AccessVerdict> {
        let (dir, file) = (self.znode(dir).await?, self.znode(id).await?);
        let read_only = self.settings().read_only;
        let verdict = explain_removal(&dir.attrs.borrow(), &file.attrs.borrow(), read_only, cred);
        Ok(verdict)
    }
}

fn denied(reason: AccessReason) -> AccessVerdict {
    AccessVerdict {
        allowed: false,
        mode_allows: true,
        reason,
    }
}

/// The bits of the mode that are for a caller, and whose they are.
fn mode_bits(attrs: &Attrs, cred: &Cred) -> (Holder, u32) {
    let (holder, shift) = if u64::from(cred.uid) == attrs.uid {
        (Holder::Owner(attrs.uid), 6)
    } else if u32::try_from(attrs.gid).is_ok_and(|gid| cred.in_group(gid)) {
        (Holder::OwningGroup(attrs.gid), 3)
    } else {
        (Holder::Everyone, 0)
    };
    (holder, u32::try_from(attrs.mode >> shift & 7).unwrap_or(0))
}

/// Whether the mode allows what a list allows.
fn mode_allows(attrs: &Attrs, bits: u32, cred: &Cred) -> bool {
    cred.uid == 0 || attrs.posix.is_some() || mode_bits(attrs, cred).1 & bits == bits
}

fn explain(attrs: &Attrs, right: Right, read_only: bool, cred: &Cred) -> AccessVerdict {
    let allowed = permission::allowed(attrs, cred, right.bit()) != 0;
    let reason = deciding(attrs, right, cred);
    if allowed && right == Right::Write {
        if read_only {
            return denied(AccessReason::ReadOnly);
        }
        if attrs.flags & flags::IMMUTABLE != 0 {
            return denied(AccessReason::Immutable);
        }
    }
    AccessVerdict {
        allowed,
        mode_allows: mode_allows(attrs, right.bit(), cred),
        reason,
    }
}

/// What decides about a right, of the file alone.
fn deciding(attrs: &Attrs, right: Right, cred: &Cred) -> AccessReason {
    if cred.uid == 0 {
        let is_dir = attrs.mode >> 12 == 4;
        let runs = right != Right::Execute || is_dir || attrs.mode & 0o111 != 0;
        return if runs {
            AccessReason::Root
        } else {
            AccessReason::NoProgram
        };
    }
    if attrs.flags & ACL_TRIVIAL == 0 && attrs.acl.is_some() {
        return entry_deciding(attrs, right.ace_bit(), cred).unwrap_or(AccessReason::NoListEntry);
    }
    if let Some(list) = &attrs.posix {
        return list.deciding(cred, attrs.uid, attrs.gid, right.bit());
    }
    let (holder, bits) = mode_bits(attrs, cred);
    AccessReason::Mode { holder, bits }
}

/// The first entry of a file's NFSv4 list that speaks of a right to the caller.
fn entry_deciding(attrs: &Attrs, right: u32, cred: &Cred) -> Option<AccessReason> {
    let list = attrs.acl.as_deref().unwrap_or(&[]);
    let in_group = |gid: u64| u32::try_from(gid).is_ok_and(|gid| cred.in_group(gid));
    for (index, ace) in ondisk::acl::entries(list).enumerate() {
        let holder = holder_of(&ace, attrs);
        let is_for_caller = match holder {
            Holder::Owner(uid) | Holder::User(uid) => uid == u64::from(cred.uid),
            Holder::OwningGroup(gid) | Holder::Group(gid) => in_group(gid),
            Holder::Everyone => true,
        };
        let allows = matches!(ace.kind, ace_type::ALLOW | ace_type::ALLOW_OBJECT);
        let decides = allows || matches!(ace.kind, ace_type::DENY | ace_type::DENY_OBJECT);
        let is_inherited_only = ace.flags & ace_flags::INHERIT_ONLY != 0;
        if is_for_caller && decides && !is_inherited_only && ace.mask & right != 0 {
            return Some(AccessReason::ListEntry {
                number: index + 1,
                holder,
                allows,
                of_deletion: right & (ace_mask::DELETE | ace_mask::DELETE_CHILD) != 0,
            });
        }
    }
    None
}

fn holder_of(ace: &Ace, attrs: &Attrs) -> Holder {
    match ace.flags & ace_flags::WHO {
        ace_flags::OWNER => Holder::Owner(attrs.uid),
        ace_flags::OWNING_GROUP => Holder::OwningGroup(attrs.gid),
        ace_flags::EVERYONE => Holder::Everyone,
        ace_flags::IDENTIFIER_GROUP => Holder::Group(ace.fuid),
        _ => Holder::User(ace.fuid),
    }
}

fn explain_removal(dir: &Attrs, file: &Attrs, read_only: bool, cred: &Cred) -> AccessVerdict {
    if read_only {
        return denied(AccessReason::ReadOnly);
    }
    match permission::check_remove(dir, file, cred) {
        Ok(()) => removal_granted(dir, file, cred),
        Err(FsError::Access) => removal_refused(dir, cred),
        Err(_) => {
            let own = u64::from(cred.uid);
            let others = dir.uid != own && file.uid != own;
            if dir.mode & 0o1000 != 0 && cred.uid != 0 && others {
                denied(AccessReason::Sticky)
            } else {
                denied(AccessReason::Undeletable)
            }
        }
    }
}

fn removal_granted(dir: &Attrs, file: &Attrs, cred: &Cred) -> AccessVerdict {
    let by_list = if permission::grants(file, cred, ace_mask::DELETE) {
        entry_deciding(file, ace_mask::DELETE, cred)
    } else if permission::grants(dir, cred, ace_mask::DELETE_CHILD) {
        entry_deciding(dir, ace_mask::DELETE_CHILD, cred)
    } else {
        None
    };
    let of_root = (cred.uid == 0).then_some(AccessReason::Root);
    AccessVerdict {
        allowed: true,
        mode_allows: mode_allows(dir, WRITE | EXECUTE, cred),
        reason: of_root
            .or(by_list)
            .unwrap_or_else(|| deciding(dir, Right::Write, cred)),
    }
}

fn removal_refused(dir: &Attrs, cred: &Cred) -> AccessVerdict {
    let missing = if permission::allowed(dir, cred, WRITE) == 0 {
        Right::Write
    } else {
        Right::Execute
    };
    denied(deciding(dir, missing, cred))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::posix::PosixAcl;
    use ondisk::posix_acl::{self, NO_ID, PosixAce, tag};

    /// A small generator (xorshift64*), so that a failure repeats by its seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
        }

        fn small(&mut self, bound: u16) -> u16 {
            u16::try_from(self.below(bound.into())).expect("below a bound of 16 bits")
        }
    }

    fn posix_list(random: &mut Random) -> PosixAcl {
        let mut entry = |tag, id| PosixAce {
            tag,
            perm: random.small(8),
            id,
        };
        let entries = [
            entry(tag::USER_OBJ, NO_ID),
            entry(tag::USER, 2),
            entry(tag::GROUP_OBJ, NO_ID),
            entry(tag::GROUP, 12),
            entry(tag::MASK, NO_ID),
            entry(tag::OTHER, NO_ID),
        ];
        PosixAcl::decode(&posix_acl::encode(&entries)).expect("obeys the rules")
    }

    fn nfs4_list(random: &mut Random) -> Vec<Ace> {
        let holders = [
            ace_flags::OWNER,
            ace_flags::OWNING_GROUP,
            ace_flags::EVERYONE,
            ace_flags::IDENTIFIER_GROUP,
            0,
        ];
        let mut entry = || Ace {
            fuid: random.below(3) + 1 + 10 * random.below(2),
            ..Ace::about(
                random.small(2),
                holders[usize::from(random.small(5))] | (ace_flags::INHERIT_ONLY * random.small(2)),
                u32::from(random.small(0x80)) | (ace_mask::DELETE * u32::from(random.small(2))),
            )
        };
        (0..4).map(|_| entry()).collect()
    }

    fn attrs(random: &mut Random, kind: u64) -> Attrs {
        let mut attrs = Attrs::new();
        attrs.mode = kind << 12 | random.below(0o2000);
        (attrs.uid, attrs.gid) = (random.below(3) + 1, random.below(3) + 11);
        attrs.flags = ACL_TRIVIAL;
        match random.below(3) {
            0 => {}
            1 => attrs.posix = Some(posix_list(random).into()),
            _ => {
                let list = nfs4_list(random);
                attrs.acl_count = Some(list.len() as u64);
                attrs.acl = Some(ondisk::acl::encode(&list).into());
                attrs.flags = 0;
            }
        }
        attrs
    }

    /// Whether a reason says that a right is given; `None` where it does not say.
    fn gives(reason: &AccessReason, bit: u32) -> Option<bool> {
        match reason {
            AccessReason::Root => Some(true),
            AccessReason::Mode { bits, .. } => Some(bits & bit != 0),
            AccessReason::PosixEntry { bits, mask, .. } => {
                Some(bits & mask.unwrap_or(7) & bit != 0)
            }
            AccessReason::ListEntry { allows, .. } => Some(*allows),
            AccessReason::NoProgram | AccessReason::NoListEntry => Some(false),
            _ => None,
        }
    }

    #[test]
    fn what_is_explained_is_what_is_decided() {
        for seed in 1..=20_000 {
            let mut random = Random(seed);
            let (dir, file) = (attrs(&mut random, 4), attrs(&mut random, 8));
            let cred = Cred {
                uid: u32::from(random.small(4)),
                gid: 11 + u32::from(random.small(3)),
                groups: vec![12],
                opened: false,
                holder: 0,
            };
            for right in [Right::Read, Right::Write, Right::Execute] {
                let told = explain(&file, right, false, &cred);
                let decided = permission::allowed(&file, &cred, right.bit()) != 0;
                assert_eq!(told.allowed, decided, "seed {seed}: {told:?}");
                let given = gives(&told.reason, right.bit());
                assert_eq!(given, Some(decided), "seed {seed}: {told:?}");
            }
            let told = explain_removal(&dir, &file, false, &cred);
            let decided = permission::check_remove(&dir, &file, &cred);
            assert_eq!(told.allowed, decided.is_ok(), "seed {seed}: {told:?}");
            // Of several groups in a POSIX list none may grant both that are needed, though each is granted by one.
            let gives = |bit| gives(&told.reason, bit) == Some(true);
            let agrees = if told.allowed {
                gives(WRITE)
            } else {
                dir.posix.is_some() || !(gives(WRITE) && gives(EXECUTE))
            };
            assert!(agrees, "seed {seed}: {told:?}");
            assert!(!explain_removal(&dir, &file, true, &cred).allowed);
        }
    }
}
