//! Membership in a domain of Active Directory: what `smbd` and `winbindd` are told of it.
//!
//! Users of the domain get numbers by their relative identifiers (`idmap_rid(8)`): every appliance with the same range gives one user the same
//! number, and nothing of it is stored.

use std::fmt::Write as _;
use std::str::FromStr;

/// Numbers of the range that are for what is of no domain, such as `BUILTIN`: given as they are met, and stored.
const UNRELATED_IDS: u32 = 10_000;
/// The first number that a range may have: below are users of the machine. systemd.io/UIDS-GIDS, 65536 and below are in use
const FIRST_MIN: u32 = 100_000;
/// How many numbers a range has at least.
const IDS_MIN: u32 = 2 * UNRELATED_IDS;

/// A domain that this machine is a member of, or is to be one of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    realm: String,
    ids: Ids,
}

/// Numbers for users and groups of a domain: `1000000-1999999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    first: u32,
    last: u32,
}

impl FromStr for Ids {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, last) = text.split_once('-').ok_or(())?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| ());
        let ids = Self {
            first: number(first)?,
            last: number(last)?,
        };
        // The highest number stands for no user at all. chown(2)
        let is_range = ids.first >= FIRST_MIN && ids.last < u32::MAX - 1 && ids.last > ids.first;
        match is_range && ids.last - ids.first >= IDS_MIN {
            true => Ok(ids),
            false => Err(()),
        }
    }
}

impl Domain {
    /// Reads the settings; `None` where no realm is named.
    ///
    /// # Errors
    /// Which has no meaning.
    pub fn new(realm: &str, ids: &str) -> Result<Option<Self>, String> {
        if realm.is_empty() {
            return Ok(None);
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
        let is_realm = realm.contains('.')
            && realm.chars().all(fits)
            && realm.split('.').all(|label| !label.is_empty());
        if !is_realm {
            return Err(format!(
                "[smb] realm: '{realm}' is no name of a domain, such as AD.EXAMPLE.ORG"
            ));
        }
        let parsed = ids.parse().map_err(|()| {
            format!(
                "[smb] domain_ids: '{ids}' is no range of at least {IDS_MIN} numbers from {FIRST_MIN} on, such as 1000000-1999999"
            )
        })?;
        Ok(Some(Self {
            realm: realm.to_ascii_uppercase(),
            ids: parsed,
        }))
    }

    /// The realm, in capital letters.
    #[must_use]
    pub fn realm(&self) -> &str {
        &self.realm
    }

    /// Writes the options of a member of the domain, whose short name is `workgroup`.
    pub(super) fn options(&self, text: &mut String, workgroup: &str) {
        let Ids { first, last } = self.ids;
        let own = first + UNRELATED_IDS;
        let lines = [
            ("server role", "member server".to_owned()),
            ("security", "ads".to_owned()),
            ("realm", self.realm.clone()),
            ("kerberos method", "secrets only".to_owned()),
            ("idmap config * : backend", "tdb".to_owned()),
            ("idmap config * : range", format!("{first}-{}", own - 1)),
            (
                &format!("idmap config {workgroup} : backend"),
                "rid".to_owned(),
            ),
            (
                &format!("idmap config {workgroup} : range"),
                format!("{own}-{last}"),
            ),
            ("winbind refresh tickets", "yes".to_owned()),
            ("template shell", "/usr/sbin/nologin".to_owned()),
        ];
        for (key, value) in lines {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\t{key} = {value}");
        }
    }
}

/// Returns the lines of `nsswitch.conf` as Samba's processes have them: users and groups of the domain are found after the machine's.
#[must_use]
pub fn name_services(machine: &str) -> String {
    let with_winbind = |line: &str| {
        let database = line.split(':').next().unwrap_or_default().trim();
        let is_asked = matches!(database, "passwd" | "group");
        match is_asked && !line.contains("winbind") {
            true => format!("{line} winbind\n"),
            false => format!("{line}\n"),
        }
    };
    machine.lines().map(with_winbind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_domain() {
        assert_eq!(Domain::new("", "nonsense"), Ok(None));
        let domain = Domain::new("ad.example.org", "1000000-1999999");
        let domain = domain.expect("settings").expect("a domain");
        assert_eq!(domain.realm(), "AD.EXAMPLE.ORG");
        for (realm, ids) in [
            ("AD", "1000000-1999999"),
            ("AD..ORG", "1000000-1999999"),
            ("AD ORG.X", "1000000-1999999"),
            ("AD.ORG", "1000-1999999"),
            ("AD.ORG", "1000000-1000999"),
            ("AD.ORG", "1999999-1000000"),
            ("AD.ORG", "1000000-4294967295"),
            ("AD.ORG", "1000000"),
        ] {
            assert!(Domain::new(realm, ids).is_err(), "{realm} {ids}");
        }
    }

    #[test]
    fn users_of_the_domain_are_found_after_those_of_the_machine() {
        assert_eq!(
            name_services("passwd: files\ngroup:\tfiles winbind\nhosts: dns\n"),
            "passwd: files winbind\ngroup:\tfiles winbind\nhosts: dns\n"
        );
    }
}
