//! POSIX access control lists, as Linux and OpenZFS keep them in the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default`.
//!
//! Pure functions on one list: the rules a list has to obey, what it allows, and how it and the permission bits of a mode
//! follow each other. The layout is [`ondisk::posix_acl`]'s. Facts: acl(5) and POSIX.1e draft 17 (rules).

use ondisk::posix_acl::{self, NO_ID, PosixAce, VERSION, tag};

use crate::access_reason::{AccessReason, Holder};
use crate::{Cred, FsError, FsResult};

/// The attribute with the list of users and groups that may use a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files of a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Longest stored form: what an extended attribute may hold.
const BYTES_MAX: usize = 65536;

/// A list that obeys the rules: one entry each for owner, owning group and others, and a mask where a user or group is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PosixAcl {
    owner: u16,
    users: Vec<(u32, u16)>,
    group: u16,
    groups: Vec<(u32, u16)>,
    mask: Option<u16>,
    other: u16,
}

impl PosixAcl {
    /// Reads a stored ACL.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it breaks a rule, [`FsError::NotSupported`] for another version.
    pub(crate) fn decode(bytes: &[u8]) -> FsResult<Self> {
        let damaged = |_| FsError::Invalid;
        if posix_acl::version(bytes).map_err(damaged)? != VERSION {
            return Err(FsError::NotSupported);
        }
        let mut entries = posix_acl::entries(bytes).map_err(damaged)?.peekable();
        if entries.peek().is_none() || bytes.len() > BYTES_MAX {
            return Err(FsError::Invalid);
        }
        let (mut owner, mut group, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        // Entries come in the order of their tags.
        let mut last = 0;
        for PosixAce {
            tag,
            perm: rights,
            id,
        } in entries
        {
            if tag < last || rights > 7 {
                return Err(FsError::Invalid);
            }
            last = tag;
            let single = match tag {
                tag::USER_OBJ => &mut owner,
                tag::GROUP_OBJ => &mut group,
                tag::MASK => &mut mask,
                tag::OTHER => &mut other,
                tag::USER | tag::GROUP => {
                    if id == NO_ID {
                        return Err(FsError::Invalid);
                    }
                    let named = if tag == tag::USER {
                        &mut users
                    } else {
                        &mut groups
                    };
                    named.push((id, rights));
                    continue;
                }
                _ => return Err(FsError::Invalid),
            };
            if single.replace(rights).is_some() {
                return Err(FsError::Invalid);
            }
        }
        match (owner, group, other) {
            (Some(owner), Some(group), Some(other))
                if mask.is_some() || (users.is_empty() && groups.is_empty()) =>
            {
                Ok(Self {
                    owner,
                    users,
                    group,
                    groups,
                    mask,
                    other,
                })
            }
            _ => Err(FsError::Invalid),
        }
    }

    /// Returns the stored form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let entry = |tag, perm, id| PosixAce { tag, perm, id };
        let mut entries = vec![entry(tag::USER_OBJ, self.owner, NO_ID)];
        let users = self.users.iter();
        entries.extend(users.map(|&(id, perm)| entry(tag::USER, perm, id)));
        entries.push(entry(tag::GROUP_OBJ, self.group, NO_ID));
        let groups = self.groups.iter();
        entries.extend(groups.map(|&(id, perm)| entry(tag::GROUP, perm, id)));
        if let Some(mask) = self.mask {
            entries.push(entry(tag::MASK, mask, NO_ID));
        }
        entries.push(entry(tag::OTHER, self.other, NO_ID));
        posix_acl::encode(&entries)
    }

    /// Returns the nine permission bits that show the list: those of the group are the mask's where there is one.
    pub(crate) fn mode_bits(&self) -> u64 {
        let group = self.mask.unwrap_or(self.group);
        u64::from(self.owner) << 6 | u64::from(group) << 3 | u64::from(self.other)
    }

    /// Whether the permission bits say all that the list says.
    pub(crate) fn is_minimal(&self) -> bool {
        self.mask.is_none() && self.users.is_empty() && self.groups.is_empty()
    }

    /// Follows a new mode.
    pub(crate) fn set_mode(&mut self, mode: u64) {
        self.owner = bits(mode, 6);
        *self.mask.as_mut().unwrap_or(&mut self.group) = bits(mode, 3);
        self.other = bits(mode, 0);
    }

    /// Makes a directory's default list the list of a new file that was asked for with `mode`: neither may say more than
    /// the other. Returns the file's nine permission bits.
    pub(crate) fn meet_mode(&mut self, mode: u64) -> u64 {
        self.owner &= bits(mode, 6);
        *self.mask.as_mut().unwrap_or(&mut self.group) &= bits(mode, 3);
        self.other &= bits(mode, 0);
        self.mode_bits()
    }

    /// Returns which of the wanted permission bits a caller other than root has, each by itself.
    pub(crate) fn allowed(&self, cred: &Cred, uid: u64, gid: u64, wanted: u32) -> u32 {
        let entries = self.entries_for(cred, uid, gid);
        entries.iter().fold(0, |all, rights| all | rights) & wanted
    }

    /// Returns whether a caller other than root has all of the wanted permission bits together: of several groups, one
    /// has to grant them all.
    pub(crate) fn permits(&self, cred: &Cred, uid: u64, gid: u64, wanted: u32) -> bool {
        let entries = self.entries_for(cred, uid, gid);
        entries.iter().any(|rights| rights & wanted == wanted)
    }

    /// Returns the entry that decides about one permission bit of a caller other than root: of several groups the first that grants it.
    pub(crate) fn deciding(&self, cred: &Cred, uid: u64, gid: u64, wanted: u32) -> AccessReason {
        let entry = |holder, bits: u16, mask: Option<u16>| AccessReason::PosixEntry {
            holder,
            bits: bits.into(),
            mask: mask.map(u32::from),
        };
        if u64::from(cred.uid) == uid {
            return entry(Holder::Owner(uid), self.owner, None);
        }
        if let Some((id, rights)) = self.users.iter().find(|(id, _)| *id == cred.uid) {
            return entry(Holder::User(u64::from(*id)), *rights, self.mask);
        }
        let owning = u32::try_from(gid).is_ok_and(|gid| cred.in_group(gid));
        let owning = owning.then_some((Holder::OwningGroup(gid), self.group));
        let named = self.groups.iter().filter(|(id, _)| cred.in_group(*id));
        let named = named.map(|(id, rights)| (Holder::Group(u64::from(*id)), *rights));
        let groups: Vec<(Holder, u16)> = owning.into_iter().chain(named).collect();
        let grants = |rights: u16| u32::from(rights & self.mask.unwrap_or(7)) & wanted != 0;
        let found = groups.iter().find(|(_, rights)| grants(*rights));
        match found.or(groups.first()) {
            Some((holder, rights)) => entry(*holder, *rights, self.mask),
            None => entry(Holder::Everyone, self.other, None),
        }
    }

    /// Returns the rights of the entries that decide for a caller.
    fn entries_for(&self, cred: &Cred, uid: u64, gid: u64) -> Vec<u32> {
        let mask = u32::from(self.mask.unwrap_or(7));
        if u64::from(cred.uid) == uid {
            return vec![u32::from(self.owner)];
        }
        if let Some((_, rights)) = self.users.iter().find(|(id, _)| *id == cred.uid) {
            return vec![u32::from(*rights) & mask];
        }
        let owning = u32::try_from(gid).is_ok_and(|gid| cred.in_group(gid));
        let named = self.groups.iter().filter(|(id, _)| cred.in_group(*id));
        let entries = owning.then_some(self.group).into_iter();
        let entries: Vec<u32> = entries
            .chain(named.map(|(_, rights)| *rights))
            .map(|rights| u32::from(rights) & mask)
            .collect();
        if entries.is_empty() {
            vec![u32::from(self.other)]
        } else {
            entries
        }
    }
}

fn bits(mode: u64, shift: u32) -> u16 {
    u16::try_from(mode >> shift & 7).expect("three bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |&(tag, perm, id)| PosixAce { tag, perm, id };
        posix_acl::encode(&entries.iter().map(entry).collect::<Vec<_>>())
    }

    fn full() -> PosixAcl {
        PosixAcl::decode(&list(&[
            (tag::USER_OBJ, 6, NO_ID),
            (tag::USER, 7, 100),
            (tag::GROUP_OBJ, 4, NO_ID),
            (tag::GROUP, 2, 200),
            (tag::MASK, 6, NO_ID),
            (tag::OTHER, 0, NO_ID),
        ]))
        .expect("obeys the rules")
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred {
            uid,
            gid,
            groups: groups.to_vec(),
            opened: false,
            holder: 0,
        }
    }

    #[test]
    fn stored_lists_round_trip_and_bad_ones_are_refused() {
        let acl = full();
        assert_eq!(PosixAcl::decode(&acl.encode()), Ok(acl));
        for bad in [
            &[][..],
            &[(tag::USER_OBJ, 7, NO_ID), (tag::GROUP_OBJ, 5, NO_ID)],
            // Somebody is named and there is no mask.
            &[
                (tag::USER_OBJ, 7, NO_ID),
                (tag::USER, 7, 1),
                (tag::GROUP_OBJ, 5, NO_ID),
                (tag::OTHER, 5, NO_ID),
            ],
            &[
                (tag::GROUP_OBJ, 5, NO_ID),
                (tag::USER_OBJ, 7, NO_ID),
                (tag::OTHER, 5, NO_ID),
            ],
            &[
                (tag::USER_OBJ, 8, NO_ID),
                (tag::GROUP_OBJ, 5, NO_ID),
                (tag::OTHER, 5, NO_ID),
            ],
            &[
                (tag::USER_OBJ, 7, NO_ID),
                (tag::USER_OBJ, 7, NO_ID),
                (tag::GROUP_OBJ, 5, NO_ID),
                (tag::OTHER, 5, NO_ID),
            ],
        ] {
            assert_eq!(
                PosixAcl::decode(&list(bad)),
                Err(FsError::Invalid),
                "{bad:?}"
            );
        }
        assert_eq!(PosixAcl::decode(b"abc"), Err(FsError::Invalid));
        assert_eq!(PosixAcl::decode(&[1, 0, 0, 0]), Err(FsError::NotSupported));
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_others() {
        let acl = full();
        let got = |cred: &Cred| acl.allowed(cred, 10, 20, 7);
        assert_eq!(got(&user(10, 20, &[])), 6);
        assert_eq!(got(&user(100, 1, &[])), 6, "7 under a mask of 6");
        assert_eq!(got(&user(11, 20, &[])), 4);
        assert_eq!(got(&user(11, 1, &[200])), 2);
        assert_eq!(got(&user(11, 1, &[])), 0);
        let both = user(11, 20, &[200]);
        assert_eq!(got(&both), 6);
        assert!(!acl.permits(&both, 10, 20, 6), "no entry grants both");
        assert!(acl.permits(&both, 10, 20, 2));
    }

    #[test]
    fn a_mode_shows_the_mask_and_sets_it() {
        let mut acl = full();
        assert_eq!(acl.mode_bits(), 0o660);
        acl.set_mode(0o741);
        assert_eq!(acl.mode_bits(), 0o741);
        assert_eq!((acl.mask, acl.group), (Some(4), 4));
        let mut child = full();
        assert_eq!(child.meet_mode(0o640), 0o640);
        assert_eq!(child.mask, Some(4));
        let mut plain = PosixAcl {
            users: Vec::new(),
            groups: Vec::new(),
            mask: None,
            ..full()
        };
        assert!(plain.is_minimal() && !child.is_minimal());
        assert_eq!(plain.meet_mode(0o777), 0o640);
    }
}
