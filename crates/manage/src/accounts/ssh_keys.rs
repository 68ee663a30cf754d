//! SSH keys of users: another host logs in by one to replicate in the name of its user. What it may do is the user's.

use data_encoding::{BASE64, BASE64_NOPAD};
use rusqlite::{Connection, params};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::{AccountError, Accounts};

/// Keys of one user.
const KEYS_OF_USER_MAX: usize = 100;
/// Characters of a key's comment.
const COMMENT_CHARACTERS_MAX: usize = 200;
/// Characters of a line: an RSA key of 16,384 bits has some 2,800.
const LINE_CHARACTERS_MAX: usize = 8192;
/// Bits of an RSA key, at least, as sshd has it (sshd_config(5), RequiredRSASize has 1024; NIST SP 800-131A has 2048).
const RSA_BITS_MIN: usize = 2048;

/// The public part of an SSH key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    /// Such as `ssh-ed25519`.
    kind: String,
    /// The key (RFC 4253, 6.6), in base64.
    blob: String,
    comment: String,
}

/// An SSH key of a user, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SshKeyView {
    /// Number.
    pub id: u64,
    /// Whose it is.
    pub user: String,
    /// Such as `ssh-ed25519`.
    pub kind: String,
    /// Its fingerprint, as `ssh-keygen -l` shows it.
    pub fingerprint: String,
    /// What stands behind the key.
    pub comment: String,
    /// When it was added, seconds since 1970.
    pub created: u64,
}

/// An SSH key that is kept.
#[derive(Clone, Debug)]
pub(super) struct KeptSshKey {
    view: SshKeyView,
    key: SshKey,
}

impl SshKey {
    /// Reads the line of a file such as `id_ed25519.pub`.
    ///
    /// # Errors
    /// It is none, or one that is not taken, in words.
    pub fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim();
        if line.len() > LINE_CHARACTERS_MAX || line.chars().any(char::is_control) {
            return Err("a public key is one line, as in id_ed25519.pub".to_owned());
        }
        if line.contains("PRIVATE KEY") {
            return Err(
                "this is a private key: keep it, and give the one of the file .pub".to_owned(),
            );
        }
        let mut words = line.split_whitespace();
        let (kind, blob) = (words.next(), words.next());
        let (Some(kind), Some(blob)) = (kind, blob) else {
            return Err("a public key is one line, as in id_ed25519.pub".to_owned());
        };
        let comment: Vec<&str> = words.collect();
        let comment: String = comment
            .join(" ")
            .chars()
            .take(COMMENT_CHARACTERS_MAX)
            .collect();
        let bytes = BASE64.decode(blob.as_bytes());
        let bytes = bytes.map_err(|_| {
            format!("'{kind}' is followed by no key: options in front of a key are not taken")
        })?;
        check(kind, &bytes)?;
        Ok(Self {
            kind: kind.to_owned(),
            blob: blob.to_owned(),
            comment,
        })
    }

    /// Returns its fingerprint as `ssh-keygen -l` shows it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let bytes = BASE64.decode(self.blob.as_bytes()).unwrap_or_default();
        format!("SHA256:{}", BASE64_NOPAD.encode(&Sha256::digest(bytes)))
    }

    /// Returns the key as it stands in `authorized_keys`, without options.
    fn line(&self) -> String {
        format!("{} {}", self.kind, self.blob)
    }
}

/// Takes a string of RFC 4251, 5 from the front.
fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (taken, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Checks the parts of a key.
fn check(kind: &str, blob: &[u8]) -> Result<(), String> {
    let broken = || format!("the key of the kind '{kind}' is damaged: was the line cut?");
    let mut rest = blob;
    if string(&mut rest).ok_or_else(broken)? != kind.as_bytes() {
        return Err(broken());
    }
    let mut next = || string(&mut rest).ok_or_else(broken);
    let fits = match kind {
        "ssh-ed25519" => next()?.len() == 32,
        // An application follows.
        "sk-ssh-ed25519@openssh.com" => next()?.len() == 32 && !next()?.is_empty(),
        "ecdsa-sha2-nistp256" => next()? == b"nistp256" && next()?.len() == 65,
        "ecdsa-sha2-nistp384" => next()? == b"nistp384" && next()?.len() == 97,
        "ecdsa-sha2-nistp521" => next()? == b"nistp521" && next()?.len() == 133,
        "sk-ecdsa-sha2-nistp256@openssh.com" => {
            next()? == b"nistp256" && next()?.len() == 65 && !next()?.is_empty()
        }
        "ssh-rsa" => {
            let exponent = next()?;
            let modulus = next()?;
            // The first byte keeps the number positive.
            let bytes = modulus.iter().skip_while(|byte| **byte == 0).count();
            if bytes * 8 < RSA_BITS_MIN {
                return Err(format!("an RSA key has {RSA_BITS_MIN} bits or more"));
            }
            !exponent.is_empty()
        }
        _ => {
            return Err(format!(
                "keys of the kind '{kind}' are not taken: ed25519, ecdsa, rsa and those of security keys (sk-) are"
            ));
        }
    };
    match fits && rest.is_empty() {
        true => Ok(()),
        false => Err(broken()),
    }
}

impl Accounts {
    /// Adds an SSH key to a user. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Missing`], [`AccountError::Key`] for one that is a user's already, [`AccountError::Database`].
    pub async fn add_ssh_key(
        &self,
        user: &str,
        key: SshKey,
        now: u64,
    ) -> Result<SshKeyView, AccountError> {
        let _changes = self.changes.lock().await;
        {
            let tables = self.tables();
            if tables.role_of(user).is_none() {
                return Err(AccountError::Missing(user.to_owned()));
            }
            let refuse = |why: String| Err(AccountError::Key(why));
            // sshd takes the first line that it finds: of one key of two users it would be the wrong one.
            if let Some(known) = tables
                .ssh_keys
                .iter()
                .find(|kept| kept.key.blob == key.blob)
            {
                return refuse(format!("this key is one of '{}' already", known.view.user));
            }
            let own = tables.ssh_keys.iter().filter(|kept| kept.view.user == user);
            if own.count() >= KEYS_OF_USER_MAX {
                return refuse(format!(
                    "'{user}' has {KEYS_OF_USER_MAX} SSH keys: remove some"
                ));
            }
        }
        let (name, stored) = (user.to_owned(), key.clone());
        let id = self
            .database
            .call(move |sql| {
                sql.execute(
                    "INSERT INTO ssh_key (user, kind, blob, comment, created) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![name, stored.kind, stored.blob, stored.comment, now],
                )?;
                Ok(sql.last_insert_rowid().unsigned_abs())
            })
            .await?;
        let kept = KeptSshKey::new(id, user.to_owned(), key, now);
        let view = kept.view.clone();
        self.tables().ssh_keys.push(kept);
        Ok(view)
    }

    /// Lists the SSH keys of a user, or of all, in the order they were added.
    #[must_use]
    pub fn ssh_keys(&self, user: Option<&str>) -> Vec<SshKeyView> {
        let tables = self.tables();
        let views = tables.ssh_keys.iter().map(|kept| &kept.view);
        views
            .filter(|view| user.is_none_or(|user| user == view.user))
            .cloned()
            .collect()
    }

    /// Returns user and key of those of a user, or of all, as `authorized_keys` has keys.
    #[must_use]
    pub fn ssh_key_lines(&self, user: Option<&str>) -> Vec<(String, String)> {
        let tables = self.tables();
        let all = tables.ssh_keys.iter();
        all.filter(|kept| user.is_none_or(|user| user == kept.view.user))
            .map(|kept| (kept.view.user.clone(), kept.key.line()))
            .collect()
    }

    /// Removes an SSH key: of this user, or with `None` of any. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Key`] when there is no such key, [`AccountError::Database`].
    pub async fn remove_ssh_key(
        &self,
        user: Option<&str>,
        id: u64,
    ) -> Result<SshKeyView, AccountError> {
        let _changes = self.changes.lock().await;
        let found = self.ssh_keys(user).into_iter().find(|view| view.id == id);
        let found = found.ok_or_else(|| AccountError::Key(format!("there is no SSH key {id}")))?;
        self.database
            .call(move |sql| sql.execute("DELETE FROM ssh_key WHERE id = ?1", [id]))
            .await?;
        self.tables().ssh_keys.retain(|kept| kept.view.id != id);
        Ok(found)
    }
}

impl KeptSshKey {
    fn new(id: u64, user: String, key: SshKey, created: u64) -> Self {
        let view = SshKeyView {
            id,
            user,
            kind: key.kind.clone(),
            fingerprint: key.fingerprint(),
            comment: key.comment.clone(),
            created,
        };
        Self { view, key }
    }

    pub(super) fn is_of(&self, user: &str) -> bool {
        self.view.user == user
    }
}

/// Reads those of the database.
pub(super) fn load(sql: &Connection) -> rusqlite::Result<Vec<KeptSshKey>> {
    let mut select =
        sql.prepare("SELECT id, user, kind, blob, comment, created FROM ssh_key ORDER BY id")?;
    let rows = select.query_map([], |row| {
        let key = SshKey {
            kind: row.get(2)?,
            blob: row.get(3)?,
            comment: row.get(4)?,
        };
        Ok(KeptSshKey::new(row.get(0)?, row.get(1)?, key, row.get(5)?))
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 'ssh-keygen -t ed25519' made, and what 'ssh-keygen -l' said of it.
    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICxGMSUCZUTpOK8TjdVzBr2akTqEg2FGiLP8zPjmvyCD backup@vault";

    #[test]
    fn keys_are_checked_part_by_part() {
        let key = SshKey::parse(ED25519).expect("a key");
        assert_eq!(key.comment, "backup@vault");
        assert_eq!(format!("{} backup@vault", key.line()), ED25519);
        let fingerprint = "SHA256:x2VBLZIGnY9cOZNMhFMcVc0niPa94SYUI40VBefjhl4";
        assert_eq!(key.fingerprint(), fingerprint);
        let blob = |parts: &[&[u8]]| {
            let part = |part: &&[u8]| {
                let length = u32::try_from(part.len()).expect("short").to_be_bytes();
                [&length[..], part].concat()
            };
            BASE64.encode(&parts.iter().flat_map(part).collect::<Vec<u8>>())
        };
        let rsa = |bytes: usize| {
            let modulus = [&[0][..], &vec![0x81; bytes]].concat();
            format!("ssh-rsa {}", blob(&[b"ssh-rsa", &[1, 0, 1], &modulus]))
        };
        let ecdsa = blob(&[b"ecdsa-sha2-nistp256", b"nistp256", &[4; 65]]);
        let short = blob(&[b"ssh-ed25519", &[7; 31]]);
        let longer = blob(&[b"ssh-ed25519", &[7; 32], b"more"]);
        let sk = blob(&[b"sk-ssh-ed25519@openssh.com", &[7; 32], b"ssh:"]);
        for (line, why) in [
            (rsa(256), None),
            (format!("ecdsa-sha2-nistp256 {ecdsa} a comment"), None),
            (format!("sk-ssh-ed25519@openssh.com {sk}"), None),
            (rsa(128), Some("2048 bits")),
            (format!("ssh-ed25519 {short}"), Some("damaged")),
            (format!("ssh-ed25519 {longer}"), Some("damaged")),
            (format!("ecdsa-sha2-nistp384 {ecdsa}"), Some("damaged")),
            (ED25519.replace("ssh-ed25519 ", "ssh-rsa "), Some("damaged")),
            (
                format!("ssh-dss {}", blob(&[b"ssh-dss", b"x"])),
                Some("not taken"),
            ),
            (format!("command=\"x\" {ED25519}"), Some("options")),
            (format!("no-pty {ED25519}"), Some("options")),
            (
                "-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(),
                Some("private key"),
            ),
            ("ssh-ed25519".to_owned(), Some("one line")),
            (format!("{ED25519}\n{ED25519}"), Some("one line")),
            (String::new(), Some("one line")),
        ] {
            match (SshKey::parse(&line), why) {
                (Ok(_), None) => {}
                (Err(error), Some(why)) => assert!(error.contains(why), "{line}: {error}"),
                (parsed, _) => panic!("{line}: {parsed:?}"),
            }
        }
        for end in 0..ED25519.len() {
            let _ = SshKey::parse(&ED25519[..end]);
        }
    }
}
