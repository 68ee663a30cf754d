//! Groups of users: each has a number that files and `zfs allow` know it by, and may give its members a role.
//!
//! Members are named. They may be users of the appliance, of the machine, or of both: what a group means follows the name. A group with
//! the name of one of the machine is the same group for files: it has its number.
//!
//! Beside the database the groups are written in the form of `/etc/group`, where commands look names up without asking the
//! database, and from where Samba has them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::params;
use serde::Serialize;
use utoipa::ToSchema;

use super::{AccountError, AccountTables, Accounts, Role, check_name};

/// Groups.
const GROUPS_MAX: usize = 1000;
/// Members of one group.
const MEMBERS_MAX: usize = 1000;
/// The first number that is given to a group for which none was chosen: behind those that distributions give to users and groups.
// Debian Policy 9.2.2: 60000 to 64999 and 65534 are the distribution's; numbers of 16 bits end at 65535.
const FIRST_NUMBER: u32 = 70_000;
/// Numbers that are chosen, at least: those below are the system's.
const CHOSEN_MIN: u32 = 1000;

#[derive(Clone, Debug)]
pub(super) struct Group {
    number: u32,
    role: Option<Role>,
    created: u64,
    members: BTreeSet<String>,
}

/// A group, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct GroupEntry {
    /// Name.
    pub name: String,
    /// Its number: the `gid` of files, of `zfs allow -g` and of quotas.
    pub number: u32,
    /// The role that members have at least; none gives none.
    pub role: Option<Role>,
    /// Names of users, in their order.
    pub members: Vec<String>,
    /// Creation, seconds since 1970.
    pub created: u64,
}

/// A group to be made.
#[derive(Clone, Debug)]
pub struct NewGroup {
    /// Name: as of users.
    pub name: String,
    /// Number, 1000 or more; the next free one without it.
    pub number: Option<u32>,
    /// The role that members have at least.
    pub role: Option<Role>,
}

/// Returns the numbers of the machine's own groups by their names, of the text of `/etc/group`.
#[must_use]
pub fn groups_of_machine(list: &str) -> BTreeMap<String, u32> {
    let group = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((name, fields.nth(1)?.parse().ok()?))
    };
    list.lines().filter_map(group).collect()
}

impl Accounts {
    /// Lists the groups in the order of their names.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupEntry> {
        let tables = self.tables();
        let entry = |(name, group): (&String, &Group)| GroupEntry {
            name: name.clone(),
            number: group.number,
            role: group.role,
            members: group.members.iter().cloned().collect(),
            created: group.created,
        };
        tables.groups.iter().map(entry).collect()
    }

    /// Returns the numbers of the groups that have this user.
    #[must_use]
    pub fn group_numbers(&self, user: &str) -> Vec<u32> {
        let tables = self.tables();
        let has = |group: &&Group| group.members.contains(user);
        let groups = tables.groups.values().filter(has);
        groups.map(|group| group.number).collect()
    }

    /// Makes a group without members. `machine` are the machine's own groups. Durable on return.
    ///
    /// # Errors
    /// A bad name, [`AccountError::GroupExists`], [`AccountError::Group`] for a number that is taken or too many groups,
    /// [`AccountError::Database`].
    pub async fn add_group(
        &self,
        new: NewGroup,
        machine: &BTreeMap<String, u32>,
        now: u64,
    ) -> Result<GroupEntry, AccountError> {
        let _changes = self.changes.lock().await;
        let NewGroup { name, number, role } = new;
        let number = self.tables().check_new_group(&name, number, machine)?;
        let stored = name.clone();
        self.database
            .call(move |sql| {
                let insert = "INSERT INTO user_group VALUES (?1, ?2, ?3, ?4)";
                let role = role.map(Role::as_str);
                sql.execute(insert, params![stored, number, role, now])
            })
            .await?;
        let group = Group {
            number,
            role,
            created: now,
            members: BTreeSet::new(),
        };
        self.tables().groups.insert(name.clone(), group);
        self.write_groups();
        Ok(GroupEntry {
            name,
            number,
            role,
            members: Vec::new(),
            created: now,
        })
    }

    /// Removes a group. What was allowed to its number stays until it is taken back. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::GroupMissing`], [`AccountError::Database`].
    pub async fn remove_group(&self, name: &str) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        self.tables().group(name)?;
        let stored = name.to_owned();
        self.database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                transaction.execute("DELETE FROM user_group WHERE name = ?1", [&stored])?;
                transaction.execute("DELETE FROM group_member WHERE name = ?1", [&stored])?;
                transaction.commit()
            })
            .await?;
        self.tables().groups.remove(name);
        self.write_groups();
        Ok(())
    }

    /// Changes the role that a group gives. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::GroupMissing`], [`AccountError::Database`].
    pub async fn change_group_role(
        &self,
        name: &str,
        role: Option<Role>,
    ) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        self.tables().group(name)?;
        let stored = name.to_owned();
        self.database
            .call(move |sql| {
                let change = "UPDATE user_group SET role = ?2 WHERE name = ?1";
                sql.execute(change, params![stored, role.map(Role::as_str)])
            })
            .await?;
        if let Some(group) = self.tables().groups.get_mut(name) {
            group.role = role;
        }
        Ok(())
    }

    /// Adds users to a group; those who are in it stay. Durable on return.
    ///
    /// # Errors
    /// A bad name, [`AccountError::GroupMissing`], [`AccountError::Group`] for too many, [`AccountError::Database`].
    pub async fn add_members(&self, name: &str, users: &[String]) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        for user in users {
            check_name(user)?;
        }
        {
            let tables = self.tables();
            let mut members = tables.group(name)?.members.clone();
            members.extend(users.iter().cloned());
            if members.len() > MEMBERS_MAX {
                let why = format!("a group has at most {MEMBERS_MAX} members");
                return Err(AccountError::Group(why));
            }
        }
        let (stored, added) = (name.to_owned(), users.to_vec());
        self.database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                for user in &added {
                    let insert = "INSERT OR IGNORE INTO group_member VALUES (?1, ?2)";
                    transaction.execute(insert, params![stored, user])?;
                }
                transaction.commit()
            })
            .await?;
        if let Some(group) = self.tables().groups.get_mut(name) {
            group.members.extend(users.iter().cloned());
        }
        self.write_groups();
        Ok(())
    }

    /// Takes a user out of a group. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::GroupMissing`], [`AccountError::Group`] when the user is not in it, [`AccountError::Database`].
    pub async fn remove_member(&self, name: &str, user: &str) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        if !self.tables().group(name)?.members.contains(user) {
            let why = format!("'{user}' is not in the group '{name}'");
            return Err(AccountError::Group(why));
        }
        let stored = (name.to_owned(), user.to_owned());
        self.database
            .call(move |sql| {
                let delete = "DELETE FROM group_member WHERE name = ?1 AND user = ?2";
                sql.execute(delete, params![stored.0, stored.1])
            })
            .await?;
        if let Some(group) = self.tables().groups.get_mut(name) {
            group.members.remove(user);
        }
        self.write_groups();
        Ok(())
    }

    /// Writes the groups in the form of `/etc/group`, on the thread of the database. It is written again at the next start: where it
    /// cannot be, names are not known, and numbers hold.
    pub(super) fn write_groups(&self) {
        let line = |group: GroupEntry| {
            let members = group.members.join(",");
            format!("{}:x:{}:{members}\n", group.name, group.number)
        };
        let text: String = self.groups().into_iter().map(line).collect();
        let path = self.groups_file.clone();
        self.database.record(move |_| {
            let _ = replace(&path, &text);
            Ok(())
        });
    }
}

/// Replaces the list of groups, unless it is as it is to be.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let mut file = options.open(&fresh)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)
}

impl AccountTables {
    fn group(&self, name: &str) -> Result<&Group, AccountError> {
        let group = self.groups.get(name);
        group.ok_or_else(|| AccountError::GroupMissing(name.to_owned()))
    }

    /// The role of a user: the own one, or a higher one of a group.
    pub(super) fn role_of(&self, user: &str) -> Option<Role> {
        let own = self.users.get(user)?.role;
        let has = |group: &&Group| group.members.contains(user);
        let groups = self.groups.values().filter(has);
        groups.filter_map(|group| group.role).chain([own]).max()
    }

    /// Takes a user who is removed out of all groups.
    pub(super) fn leave_groups(&mut self, user: &str) {
        for group in self.groups.values_mut() {
            group.members.remove(user);
        }
    }

    /// Returns the number that a new group has.
    fn check_new_group(
        &self,
        name: &str,
        number: Option<u32>,
        machine: &BTreeMap<String, u32>,
    ) -> Result<u32, AccountError> {
        check_name(name)?;
        if self.groups.contains_key(name) {
            return Err(AccountError::GroupExists(name.to_owned()));
        }
        let refuse = |why: String| Err(AccountError::Group(why));
        if self.groups.len() >= GROUPS_MAX {
            return refuse(format!("there are {GROUPS_MAX} groups already"));
        }
        match (machine.get(name), number) {
            (Some(known), Some(number)) if *known != number => refuse(format!(
                "the machine has a group '{name}' with the number {known}"
            )),
            (Some(known), _) => Ok(*known),
            (None, number) => self.free_number(number, machine).map_or_else(refuse, Ok),
        }
    }

    /// Returns a number that no group has: the one asked for, or the next. Behind the last, so that the number of a group that is
    /// gone is not another's soon, with what was allowed to it.
    fn free_number(
        &self,
        asked: Option<u32>,
        machine: &BTreeMap<String, u32>,
    ) -> Result<u32, String> {
        let own: BTreeSet<u32> = self.groups.values().map(|group| group.number).collect();
        let machine: BTreeSet<u32> = machine.values().copied().collect();
        let is_taken = |number: u32| own.contains(&number) || machine.contains(&number);
        match asked {
            Some(number) if !(CHOSEN_MIN..u32::MAX - 1).contains(&number) => {
                Err(format!("a group has a number of {CHOSEN_MIN} or more"))
            }
            Some(number) if is_taken(number) => {
                Err(format!("another group has the number {number}"))
            }
            Some(number) => Ok(number),
            None => {
                let last = own.last().copied().unwrap_or(0).max(FIRST_NUMBER - 1);
                let free = (last + 1..u32::MAX - 1).find(|number| !is_taken(*number));
                free.ok_or_else(|| "no number is free".to_owned())
            }
        }
    }

    /// Reads the groups.
    pub(super) fn load_groups(&mut self, sql: &rusqlite::Connection) -> rusqlite::Result<()> {
        let mut members: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut rows = sql.prepare("SELECT name, user FROM group_member")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            members.entry(row.get(0)?).or_default().insert(row.get(1)?);
        }
        let mut groups = sql.prepare("SELECT name, number, role, created FROM user_group")?;
        let mut rows = groups.query([])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            let role: Option<String> = row.get(2)?;
            let group = Group {
                number: row.get(1)?,
                // A role that is not known gives nothing.
                role: role.as_deref().and_then(Role::from_name),
                created: row.get(3)?,
                members: members.remove(&name).unwrap_or_default(),
            };
            self.groups.insert(name, group);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PASSWORD, opened, with_owner};
    use super::*;

    fn new(name: &str, number: Option<u32>, role: Option<Role>) -> NewGroup {
        NewGroup {
            name: name.to_owned(),
            number,
            role,
        }
    }

    #[tokio::test]
    async fn members_have_the_role_of_their_groups_over_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        let none = BTreeMap::new();
        for name in ["bob", "cy"] {
            let added = accounts.add_user(name, Some(PASSWORD), Role::Viewer, 1);
            added.await.expect("added");
        }
        let staff = new("staff", None, Some(Role::Operator));
        let staff = accounts.add_group(staff, &none, 2).await.expect("made");
        assert_eq!(staff.number, FIRST_NUMBER);
        let users = ["bob".to_owned(), "machine-user".to_owned()];
        accounts.add_members("staff", &users).await.expect("added");
        assert_eq!(accounts.role("bob"), Some(Role::Operator));
        assert_eq!(accounts.role("cy"), Some(Role::Viewer));
        assert_eq!(accounts.role("machine-user"), None, "a group makes no user");
        assert_eq!(accounts.group_numbers("bob"), [FIRST_NUMBER]);
        drop(accounts);
        let accounts = opened(&directory, 3).await;
        assert_eq!(accounts.role("bob"), Some(Role::Operator));
        assert_eq!(accounts.groups()[0].members, ["bob", "machine-user"]);
        // The role goes with the membership, and the membership with the user.
        accounts.change_group_role("staff", None).await.expect("ok");
        assert_eq!(accounts.role("bob"), Some(Role::Viewer));
        accounts
            .change_group_role("staff", Some(Role::Owner))
            .await
            .expect("ok");
        accounts.remove_user("bob").await.expect("removed");
        accounts
            .add_user("bob", None, Role::Viewer, 4)
            .await
            .expect("again");
        assert_eq!(accounts.role("bob"), Some(Role::Viewer));
        let gone = accounts.remove_member("staff", "bob").await;
        assert!(matches!(gone, Err(AccountError::Group(_))));
        drop(accounts);
        assert_eq!(
            opened(&directory, 5).await.groups()[0].members,
            ["machine-user"]
        );
    }

    #[tokio::test]
    async fn numbers_are_chosen_or_given_and_are_nobodys_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let accounts = opened(&directory, 0).await;
        let machine =
            format!("root:x:0:\nstaff:x:50:ann\nx:x:2000:\ny:x:{FIRST_NUMBER}:\nnonsense\n");
        let machine = groups_of_machine(&machine);
        for (name, number, expect) in [
            ("a", None, Some(FIRST_NUMBER + 1)),
            ("b", Some(3000), Some(3000)),
            ("c", Some(2000), None),
            ("d", Some(3000), None),
            ("e", Some(0), None),
            ("f", Some(u32::MAX), None),
            ("a", None, None),
            ("Bad Name", None, None),
            ("g", None, Some(FIRST_NUMBER + 2)),
            ("staff", None, Some(50)),
            ("root", Some(1), None),
        ] {
            let made = accounts
                .add_group(new(name, number, None), &machine, 1)
                .await;
            assert_eq!(made.ok().map(|made| made.number), expect, "{name}");
        }
        accounts.database().settle().await;
        let list = std::fs::read_to_string(directory.path().join("groups")).expect("a list");
        assert_eq!(list.lines().next(), Some("a:x:70001:"), "{list}");
        accounts.remove_group("b").await.expect("removed");
        let again = accounts.remove_group("b").await;
        assert!(matches!(again, Err(AccountError::GroupMissing(_))));
    }

    #[tokio::test]
    async fn a_group_of_owners_is_no_last_owner() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        let added = accounts.add_user("bob", Some(PASSWORD), Role::Viewer, 1);
        added.await.expect("added");
        let admins = new("admins", None, Some(Role::Owner));
        accounts
            .add_group(admins, &BTreeMap::new(), 1)
            .await
            .expect("made");
        let bob = ["bob".to_owned()];
        let added = accounts.add_members("admins", &bob);
        added.await.expect("added");
        assert_eq!(accounts.role("bob"), Some(Role::Owner));
        // What a change of a group can take away leaves an owner all the same.
        let last = accounts.remove_user("ann").await;
        assert!(matches!(last, Err(AccountError::LastOwner(_))));
    }
}
