//! Who may log in by SMB: Samba's file of users (`passdb backend = smbpasswd`), one a line, with the hash that NTLM needs of each
//! password. A user must be one of the machine, too: files belong to the machine's users.
//!
//! The hash of NTLM is as good as the password itself to who has it, so the file is its owner's alone, and no debug output shows one.

use md4::{Digest as _, Md4};

/// Bytes of a password in UTF-8 at most: what clients send.
pub const PASSWORD_BYTES_MAX: usize = 256;

/// A user with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct SmbUser {
    /// The machine's name of the user.
    pub name: String,
    /// The machine's number of the user when the password was set.
    pub uid: u32,
    /// MD4 of the password in UTF-16LE. [MS-NLMP] 3.3.1, NTOWFv1
    hash: [u8; 16],
    /// When the password was set, in seconds since 1970.
    pub changed: u32,
}

impl std::fmt::Debug for SmbUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SmbUser({})", self.name)
    }
}

impl SmbUser {
    /// Makes a user with a password, set at `now` (seconds since 1970).
    #[must_use]
    pub fn new(name: &str, uid: u32, password: &str, now: u32) -> Self {
        Self {
            name: name.to_owned(),
            uid,
            hash: nt_hash(password),
            // Zero would mean that it has to be changed first.
            changed: now.max(1),
        }
    }

    fn line(&self) -> String {
        let hash: String = self.hash.iter().map(|byte| format!("{byte:02X}")).collect();
        // The first hash is the one that Windows NT replaced in 1993; there is none.
        let (name, uid, changed) = (&self.name, self.uid, self.changed);
        let none = "X".repeat(32);
        format!("{name}:{uid}:{none}:{hash}:[U          ]:LCT-{changed:08X}:\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| is_name(name))?.to_owned();
        let uid = fields.next()?.parse().ok()?;
        let digits = fields.nth(1).filter(|digits| digits.len() == 32)?;
        let mut hash = [0; 16];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        let changed = fields.nth(1)?.strip_prefix("LCT-")?;
        Some(Self {
            name,
            uid,
            hash,
            changed: u32::from_str_radix(changed, 16).ok()?,
        })
    }
}

fn nt_hash(password: &str) -> [u8; 16] {
    let mut digest = Md4::new();
    for unit in password.encode_utf16() {
        digest.update(unit.to_le_bytes());
    }
    digest.finalize().into()
}

/// Whether this can be the name of a user or group of the machine, with or without a domain.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |character: char| character.is_ascii_alphanumeric() || "_.-$+".contains(character);
    !name.is_empty() && name.len() <= 64 && !name.starts_with('-') && name.chars().all(fits)
}

/// All users with passwords, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmbUsers {
    /// The users.
    pub users: Vec<SmbUser>,
}

impl SmbUsers {
    /// Reads the file; lines that are no user are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self {
            users: text.lines().filter_map(SmbUser::parse).collect(),
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn text(&self) -> String {
        self.users.iter().map(SmbUser::line).collect()
    }

    /// Adds a user, or gives one a new password.
    pub fn put(&mut self, user: SmbUser) {
        match self.users.iter_mut().find(|known| known.name == user.name) {
            Some(known) => *known = user,
            None => self.users.push(user),
        }
    }

    /// Takes a user away; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.users.len();
        self.users.retain(|known| known.name != name);
        self.users.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that `smbpasswd -a` of Samba 4.17 writes for this user and password.
    const LINE: &str = "anna:1001:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:878D8014606CDA29677A44EFA1353FC7:[U          ]:LCT-65000000:\n";

    #[test]
    fn lines_are_sambas() {
        let user = SmbUser::new("anna", 1001, "secret", 0x6500_0000);
        assert_eq!(user.line(), LINE);
        assert_eq!(SmbUsers::parse(LINE).users, [user]);
        // [MS-NLMP] 4.2.2.1.2
        let hash = nt_hash("Password");
        assert_eq!(hash[..4], [0xa4, 0xf4, 0x9c, 0x40]);
    }

    #[test]
    fn users_come_change_and_go() {
        let mut users = SmbUsers::parse("# a remark\n\nnobody\nx:y:z\n");
        assert!(users.users.is_empty());
        users.put(SmbUser::new("anna", 1001, "a", 0));
        users.put(SmbUser::new("ben", 1002, "b", 7));
        users.put(SmbUser::new("anna", 1001, "c", 9));
        assert_eq!(SmbUsers::parse(&users.text()), users);
        assert_eq!(users.users.len(), 2);
        assert!(users.remove("anna") && !users.remove("anna"));
        assert_eq!(format!("{users:?}"), "SmbUsers { users: [SmbUser(ben)] }");
    }

    #[test]
    fn names() {
        for good in ["anna", "a.b-c_d", "host$", "DOM+anna"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-x", "a b", "a:b", "a\nb", "a%U", "a/b"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
