//! API keys: what scripts show in place of a session, as `Authorization: Bearer KEY` (RFC 6750, 2.1).
//!
//! A key acts as its user, with at most the role that it was made with and at most the user's role of now, until it expires or is
//! revoked. One that is made for datasets reaches those and what is below them, and no other call. The key itself is shown once;
//! its SHA-256 hash is what is kept.

use rusqlite::params;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    AccountError, AccountTables, Accounts, Role, SessionUser, USE_STORED_SECONDS, no_secret,
};
use crate::secret::{self, SecretHash};

/// What every key begins with, so that scanners find one that was published by mistake.
pub(super) const KEY_PREFIX: &str = "sanbox_";
/// Keys of one user.
const KEYS_OF_USER_MAX: usize = 100;
/// Characters of a key's name.
const NAME_CHARACTERS_MAX: usize = 64;
/// Datasets of one key.
const DATASETS_MAX: usize = 32;

/// What a key is to be.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// What it is for.
    pub name: String,
    /// Its role at most; none is the user's.
    pub role: Option<Role>,
    /// Datasets it is for, with those below; empty is all, and all else.
    pub datasets: Vec<String>,
    /// When it ends, in seconds since 1970.
    pub expires: Option<u64>,
}

/// A key, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyView {
    /// Number.
    pub id: u64,
    /// Whose it is.
    pub user: String,
    /// What it is for.
    pub name: String,
    /// The role it was made with; it has at most the user's.
    pub role: Role,
    /// Datasets it is for, with those below; empty is all, and all else.
    pub datasets: Vec<String>,
    /// Creation, seconds since 1970.
    pub created: u64,
    /// Its end, seconds since 1970.
    pub expires: Option<u64>,
    /// Its last use, seconds since 1970, to the minute.
    pub used: Option<u64>,
}

/// The key that a request showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// What it is for.
    pub name: String,
    /// Datasets it is for; empty is all, and all else.
    pub datasets: Vec<String>,
}

impl KeyUse {
    /// Whether the key reaches a dataset, snapshot or bookmark.
    #[must_use]
    pub fn reaches(&self, name: &str) -> bool {
        self.datasets.is_empty() || self.datasets.iter().any(|at| is_within(name, at))
    }
}

/// Whether a dataset, snapshot or bookmark is `at` or below it.
fn is_within(name: &str, at: &str) -> bool {
    match name.strip_prefix(at) {
        Some(rest) => rest.is_empty() || rest.starts_with(['/', '@', '#']),
        None => false,
    }
}

#[derive(Clone, Debug)]
pub(super) struct ApiKey {
    view: KeyView,
    /// `used` as it is in the database.
    stored: u64,
    pub(super) user: String,
}

impl ApiKey {
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.view.expires.is_some_and(|end| now >= end)
    }
}

impl Accounts {
    /// Makes a key for a user and returns it, which is shown this once. `role` is that of the user that asks for it. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Missing`], [`AccountError::Key`], [`AccountError::Database`].
    pub async fn make_key(
        &self,
        user: &str,
        new: NewKey,
        role: Role,
        now: u64,
    ) -> Result<(KeyView, String), AccountError> {
        let _changes = self.changes.lock().await;
        let secret = secret::generate().map_err(no_secret)?;
        let secret = format!("{KEY_PREFIX}{secret}");
        let hash = secret::hash(&secret);
        let view = self.tables().check_new_key(user, new, role, now)?;
        let stored = view.clone();
        let id = self
            .database
            .call(move |sql| {
                sql.execute(
                    "INSERT INTO api_key (hash, user, name, role, datasets, created, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    params![
                        hash,
                        stored.user,
                        stored.name,
                        stored.role.as_str(),
                        stored.datasets.join(" "),
                        stored.created,
                        stored.expires
                    ],
                )?;
                Ok(sql.last_insert_rowid().unsigned_abs())
            })
            .await?;
        let view = KeyView { id, ..view };
        let key = ApiKey {
            user: view.user.clone(),
            view: view.clone(),
            stored: 0,
        };
        self.tables().keys.insert(hash, key);
        Ok((view, secret))
    }

    /// Returns the user that a key stands for, and counts the use; `None` when it has ended or never was.
    #[must_use]
    pub fn key_user(&self, secret: &str, now: u64) -> Option<SessionUser> {
        let hash = secret::hash(secret);
        let mut tables = self.tables();
        let key = tables.keys.get_mut(&hash).filter(|key| !key.is_over(now))?;
        key.view.used = Some(now);
        if now.saturating_sub(key.stored) >= USE_STORED_SECONDS {
            key.stored = now;
            let id = key.view.id;
            self.database.record(move |sql| {
                let used = "UPDATE api_key SET used = ?2 WHERE id = ?1";
                sql.execute(used, params![id, now]).map(|_| ())
            });
        }
        let view = key.view.clone();
        let role = tables.role_of(&view.user)?;
        Some(SessionUser {
            name: view.user,
            role: role.min(view.role),
            csrf: String::new(),
            session: hash,
            key: Some(KeyUse {
                name: view.name,
                datasets: view.datasets,
            }),
        })
    }

    /// Lists the keys of a user, or of all, in the order they were made.
    #[must_use]
    pub fn keys(&self, user: Option<&str>) -> Vec<KeyView> {
        let tables = self.tables();
        let keys = tables.keys.values().map(|key| &key.view);
        let mut keys: Vec<KeyView> = keys
            .filter(|key| user.is_none_or(|user| user == key.user))
            .cloned()
            .collect();
        keys.sort_by_key(|key| key.id);
        keys
    }

    /// Revokes a key: of this user, or with `None` of any. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Key`] when there is no such key, [`AccountError::Database`].
    pub async fn revoke_key(&self, user: Option<&str>, id: u64) -> Result<KeyView, AccountError> {
        let _changes = self.changes.lock().await;
        let found = self.keys(user).into_iter().find(|key| key.id == id);
        let found = found.ok_or_else(|| AccountError::Key(format!("there is no key {id}")))?;
        self.database
            .call(move |sql| sql.execute("DELETE FROM api_key WHERE id = ?1", [id]))
            .await?;
        self.tables().keys.retain(|_, key| key.view.id != id);
        Ok(found)
    }
}

impl AccountTables {
    fn check_new_key(
        &self,
        user: &str,
        new: NewKey,
        asking: Role,
        now: u64,
    ) -> Result<KeyView, AccountError> {
        let own = self.role_of(user);
        let own = own.ok_or_else(|| AccountError::Missing(user.to_owned()))?;
        let refuse = |why: String| Err(AccountError::Key(why));
        let role = new.role.unwrap_or(own.min(asking));
        if role > own.min(asking) {
            return refuse(format!(
                "a key of '{user}' has at most the role {}",
                own.min(asking).as_str()
            ));
        }
        if self.directory.contains_key(user) {
            return refuse(format!(
                "'{user}' is known by a directory, whose users have no keys here: a key would outlive them there"
            ));
        }
        let characters = new.name.chars().count();
        if characters == 0
            || characters > NAME_CHARACTERS_MAX
            || new.name.chars().any(char::is_control)
        {
            return refuse(format!(
                "a key has a name of 1 to {NAME_CHARACTERS_MAX} characters"
            ));
        }
        if new.expires.is_some_and(|end| end <= now) {
            return refuse("the key would have expired already".to_owned());
        }
        let is_name = |name: &String| !name.is_empty() && !name.contains([' ', '@', '#', '%']);
        if new.datasets.len() > DATASETS_MAX || !new.datasets.iter().all(is_name) {
            return refuse(format!(
                "a key is for at most {DATASETS_MAX} datasets, named without snapshots"
            ));
        }
        let keys = self.keys.values().filter(|key| key.user == user);
        if keys.count() >= KEYS_OF_USER_MAX {
            return refuse(format!("'{user}' has {KEYS_OF_USER_MAX} keys: revoke some"));
        }
        Ok(KeyView {
            id: 0,
            user: user.to_owned(),
            name: new.name,
            role,
            datasets: new.datasets,
            created: now,
            expires: new.expires,
            used: None,
        })
    }

    /// Reads the keys. Those that have expired stay in the list, so that one sees why a script fails.
    pub(super) fn load_keys(&mut self, sql: &rusqlite::Connection) -> rusqlite::Result<()> {
        let mut keys = sql.prepare(
            "SELECT hash, id, user, name, role, datasets, created, expires, used FROM api_key",
        )?;
        let mut rows = keys.query([])?;
        while let Some(row) = rows.next()? {
            let hash: SecretHash = row.get(0)?;
            let role: String = row.get(4)?;
            let datasets: String = row.get(5)?;
            // A role that is not known gives nothing.
            let Some(role) = Role::from_name(&role) else {
                continue;
            };
            let view = KeyView {
                id: row.get(1)?,
                user: row.get(2)?,
                name: row.get(3)?,
                role,
                datasets: datasets.split_whitespace().map(str::to_owned).collect(),
                created: row.get(6)?,
                expires: row.get(7)?,
                used: row.get(8)?,
            };
            let key = ApiKey {
                user: view.user.clone(),
                stored: view.used.unwrap_or(0),
                view,
            };
            if self.users.contains_key(&key.user) {
                self.keys.insert(hash, key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PASSWORD, opened, with_owner};
    use super::*;

    #[tokio::test]
    async fn keys_act_as_their_user_until_they_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        let new = |name: &str, role, expires| NewKey {
            name: name.to_owned(),
            role,
            expires,
            datasets: Vec::new(),
        };
        let key = accounts.make_key("ann", new("backup", None, Some(100)), Role::Operator, 10);
        let (view, secret) = key.await.expect("made");
        assert_eq!((view.role, view.expires), (Role::Operator, Some(100)));
        let user = accounts.key_user(&secret, 20).expect("known");
        assert_eq!((user.name.as_str(), user.role), ("ann", Role::Operator));
        assert_eq!(user.shown(), "ann (key backup)");
        assert!(accounts.is_current(user.session, 99));
        assert!(!accounts.is_current(user.session, 100));
        assert!(accounts.key_user(&secret, 100).is_none());
        assert!(accounts.session(&secret, 20).is_none());
        for (wanted, why) in [
            (new("", None, None), "a name"),
            (new("x", Some(Role::Owner), None), "at most the role"),
            (new("x", None, Some(10)), "expired"),
        ] {
            let refused = accounts.make_key("ann", wanted, Role::Operator, 10).await;
            let error = refused.expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        accounts.database().call(|_| Ok(())).await.expect("stored");
        let accounts = opened(&directory, 30).await;
        assert!(accounts.key_user(&secret, 30).is_some());
        assert_eq!(accounts.keys(None)[0].used, Some(30));
        accounts
            .revoke_key(Some("bob"), view.id)
            .await
            .expect_err("not his");
        accounts
            .revoke_key(Some("ann"), view.id)
            .await
            .expect("hers");
        assert!(accounts.key_user(&secret, 30).is_none());
        assert!(opened(&directory, 30).await.keys(None).is_empty());
    }

    #[tokio::test]
    async fn a_key_has_no_more_than_its_user_and_goes_with_the_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        let added = accounts.add_user("ci", None, Role::Operator, 1);
        added.await.expect("added");
        let address = "127.0.0.1".parse().expect("an address");
        for password in ["", PASSWORD] {
            let refused = accounts.log_in("ci", password, None, address, 1).await;
            assert!(matches!(refused, Err(AccountError::Credentials)));
        }
        let new = NewKey {
            name: "ci".to_owned(),
            datasets: vec!["tank/ci".to_owned()],
            ..NewKey::default()
        };
        let (_, secret) = accounts
            .make_key("ci", new, Role::Owner, 1)
            .await
            .expect("made");
        let role = || accounts.key_user(&secret, 2).map(|user| user.role);
        assert_eq!(role(), Some(Role::Operator));
        accounts
            .change_role("ci", Role::Viewer)
            .await
            .expect("changed");
        assert_eq!(role(), Some(Role::Viewer));
        let key = accounts.key_user(&secret, 2).and_then(|user| user.key);
        let key = key.expect("a key");
        for (name, reached) in [
            ("tank/ci", true),
            ("tank/ci/a", true),
            ("tank/ci@s", true),
            ("tank/cid", false),
            ("tank", false),
        ] {
            assert_eq!(key.reaches(name), reached, "{name}");
        }
        accounts.remove_user("ci").await.expect("removed");
        assert_eq!(role(), None);
        assert!(opened(&directory, 3).await.keys(None).is_empty());
    }
}
