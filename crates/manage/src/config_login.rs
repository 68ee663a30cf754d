//! `[login]` of `sanbox.toml`: log-in by an LDAP directory or an OpenID Connect provider. Both are off where nothing is said.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::accounts::Role;

/// What stands for the name of the user in [`Ldap::user_filter`], and for the user's entry in [`Ldap::group_filter`].
const USER: &str = "{user}";
const ENTRY: &str = "{dn}";

/// Log-in by others than the appliance itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Login {
    /// By an LDAP directory: `[login.ldap]`.
    pub ldap: Ldap,
    /// By an OpenID Connect provider: `[login.oidc]`.
    pub oidc: Oidc,
}

/// Names of groups, as the directory or the provider has them, whose members have a role. Who is in none may not log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupRoles {
    /// Groups of owners.
    pub owner: Vec<String>,
    /// Groups of operators.
    pub operator: Vec<String>,
    /// Groups of viewers. `*` is everybody who can log in there.
    pub viewer: Vec<String>,
}

impl GroupRoles {
    /// Returns the highest role of some groups. Letters count alike in both cases, as in LDAP,
    /// and spaces behind commas not at all.
    #[must_use]
    pub fn role_of(&self, groups: &[String]) -> Option<Role> {
        let known: BTreeSet<String> = groups.iter().map(|group| folded(group)).collect();
        let has = |listed: &[String]| {
            let mut listed = listed.iter();
            listed.any(|name| name == "*" || known.contains(&folded(name)))
        };
        let roles = [
            (Role::Owner, &self.owner),
            (Role::Operator, &self.operator),
            (Role::Viewer, &self.viewer),
        ];
        roles
            .into_iter()
            .find(|(_, listed)| has(listed))
            .map(|(role, _)| role)
    }

    fn check(&self) -> Result<(), String> {
        let all = self.owner.iter().chain(&self.operator);
        if all.chain(&self.viewer).next().is_none() {
            return Err("roles: no group has a role, so that nobody could log in".to_owned());
        }
        if self
            .owner
            .iter()
            .chain(&self.operator)
            .any(|name| name == "*")
        {
            return Err("roles: '*' can be of viewers alone".to_owned());
        }
        Ok(())
    }
}

/// Returns the name of a group as names are compared: in small letters, and without the spaces that the parts of a DN may have between them.
fn folded(name: &str) -> String {
    let parts: Vec<&str> = name.split(',').map(str::trim).collect();
    parts.join(",").to_ascii_lowercase()
}

/// An LDAP directory (RFC 4511).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ldap {
    /// `ldaps://HOST[:PORT]`, or `ldap://HOST[:PORT]` with `starttls`. Empty: none.
    pub url: String,
    /// TLS begins after the connection: passwords never go without it.
    pub starttls: bool,
    /// Certificates to trust in place of the machine's.
    pub ca_file: Option<PathBuf>,
    /// The account that looks users up. Empty: none, where the directory allows anonymous searches.
    pub bind_dn: String,
    /// A file whose first line is the password of `bind_dn`.
    pub bind_password_file: Option<PathBuf>,
    /// Where users are, with all that is below.
    pub base: String,
    /// Which entry is a user's; `{user}` is the name that was typed (`(uid={user})`).
    pub user_filter: String,
    /// Where groups are. Empty: only what an entry's own `memberOf` names.
    pub group_base: String,
    /// Which groups an entry is in; `{dn}` is its name, `{user}` as above (`(member={dn})`).
    pub group_filter: String,
    /// Seconds that a log-in may take there, 1 to 30.
    pub timeout_seconds: u64,
    /// Roles by the whole names (DN) of groups. A short one (`cn`) is any group of that name, wherever in the directory it is.
    pub roles: GroupRoles,
}

impl Default for Ldap {
    fn default() -> Self {
        Self {
            url: String::new(),
            starttls: false,
            ca_file: None,
            bind_dn: String::new(),
            bind_password_file: None,
            base: String::new(),
            user_filter: format!("(uid={USER})"),
            group_base: String::new(),
            group_filter: format!("(member={ENTRY})"),
            timeout_seconds: 10,
            roles: GroupRoles::default(),
        }
    }
}

impl Ldap {
    /// Whether there is one.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.url.is_empty()
    }

    /// Returns the filter that finds a user. `escaped` is the name as RFC 4515 has it in filters.
    #[must_use]
    pub fn user_filter_of(&self, escaped: &str) -> String {
        self.user_filter.replace(USER, escaped)
    }

    /// Returns the filter that finds the groups of a user. Both are as RFC 4515 has them in filters.
    #[must_use]
    pub fn group_filter_of(&self, escaped: &str, entry: &str) -> String {
        let mut filter = String::new();
        let mut rest = self.group_filter.as_str();
        // What a name brings along is never looked through for the other one.
        while let Some(at) = rest.find(['{']) {
            filter.push_str(&rest[..at]);
            rest = &rest[at..];
            let known = [(USER, escaped), (ENTRY, entry)];
            let found = known.iter().find(|(mark, _)| rest.starts_with(mark));
            let (taken, value) = found.map_or((&rest[..1], &rest[..1]), |(mark, value)| {
                (&rest[..mark.len()], *value)
            });
            filter.push_str(value);
            rest = &rest[taken.len()..];
        }
        filter.push_str(rest);
        filter
    }

    fn check(&self) -> Result<(), String> {
        if !self.is_on() {
            return Ok(());
        }
        match (self.url.split_once("://"), self.starttls) {
            (Some(("ldaps", _)), false) | (Some(("ldap", _)), true) => {}
            (Some(("ldaps", _)), true) => {
                return Err("starttls: a connection of ldaps:// has TLS already".to_owned());
            }
            (Some(("ldap", _)), false) => {
                return Err(
                    "url: passwords do not go without TLS: ldaps://, or starttls = true".to_owned(),
                );
            }
            _ => return Err("url: it begins with ldaps:// or ldap://".to_owned()),
        }
        if self.base.is_empty() {
            return Err("base: where users are is missing".to_owned());
        }
        if !self.user_filter.contains(USER) {
            return Err(format!("user_filter: it holds no {USER}"));
        }
        if !self.bind_dn.is_empty() && self.bind_password_file.is_none() {
            return Err("bind_password_file: bind_dn needs one".to_owned());
        }
        if !(1..=30).contains(&self.timeout_seconds) {
            return Err("timeout_seconds: 1 to 30".to_owned());
        }
        self.roles.check()
    }
}

/// An OpenID Connect provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Oidc {
    /// The provider's own name, `https://...`: its description is below it (`/.well-known/openid-configuration`). Empty: none.
    pub issuer: String,
    /// What the log-in page calls it.
    pub name: String,
    /// The name that the provider knows this appliance by.
    pub client_id: String,
    /// A file whose first line is the secret for that name; without it the appliance is a public client.
    pub client_secret_file: Option<PathBuf>,
    /// The address of this console as browsers have it, such as `https://box.example.org:8443`. The provider has to know it with
    /// `/api/v1/login/oidc/callback` behind.
    pub console_url: String,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// The claim that is the user's name here.
    pub user_claim: String,
    /// The claim that lists the user's groups.
    pub groups_claim: String,
    /// Certificates to trust in place of the machine's.
    pub ca_file: Option<PathBuf>,
    /// Roles by the names of groups.
    pub roles: GroupRoles,
}

impl Default for Oidc {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            name: "OpenID".to_owned(),
            client_id: String::new(),
            client_secret_file: None,
            console_url: String::new(),
            scopes: ["openid", "profile", "groups"].map(str::to_owned).to_vec(),
            user_claim: "preferred_username".to_owned(),
            groups_claim: "groups".to_owned(),
            ca_file: None,
            roles: GroupRoles::default(),
        }
    }
}

impl Oidc {
    /// Whether there is one.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.issuer.is_empty()
    }

    /// Where the provider sends browsers back to.
    #[must_use]
    pub fn callback(&self) -> String {
        let console = self.console_url.trim_end_matches('/');
        format!("{console}/api/v1/login/oidc/callback")
    }

    fn check(&self) -> Result<(), String> {
        if !self.is_on() {
            return Ok(());
        }
        for (name, url) in [("issuer", &self.issuer), ("console_url", &self.console_url)] {
            if !url.starts_with("https://") || url.contains(['?', '#']) {
                return Err(format!(
                    "{name}: it begins with https://, and has no ? or #"
                ));
            }
        }
        if self.client_id.is_empty() {
            return Err("client_id: it is missing".to_owned());
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return Err("scopes: 'openid' is missing".to_owned());
        }
        self.roles.check()
    }
}

impl Login {
    /// Checks what is set.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        let ldap = self.ldap.check();
        ldap.map_err(|why| format!("[login.ldap] {why}"))?;
        let oidc = self.oidc.check();
        oidc.map_err(|why| format!("[login.oidc] {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_highest_role_of_all_groups_counts() {
        let list = |names: &str| {
            names
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let roles = GroupRoles {
            owner: list("admins"),
            operator: list("ops"),
            viewer: list("*"),
        };
        assert_eq!(roles.role_of(&list("ops ADMINS")), Some(Role::Owner));
        assert_eq!(roles.role_of(&list("ops")), Some(Role::Operator));
        assert_eq!(roles.role_of(&[]), Some(Role::Viewer));
        let roles = GroupRoles {
            viewer: Vec::new(),
            ..roles
        };
        assert_eq!(roles.role_of(&list("others")), None);
        let roles = GroupRoles {
            operator: vec!["cn=storage, OU=groups,dc=example".to_owned()],
            ..GroupRoles::default()
        };
        let known = |name: &str| roles.role_of(&[name.to_owned()]);
        let operator = Some(Role::Operator);
        assert_eq!(known("CN=storage,ou=groups,DC=example"), operator);
        assert_eq!(known("cn=storage,ou=others,dc=example"), None);
        assert_eq!(known("storage"), None);
    }

    #[test]
    fn names_do_not_become_parts_of_filters() {
        let ldap = Ldap {
            group_filter: "(|(member={dn})(memberUid={user})({))".to_owned(),
            ..Ldap::default()
        };
        assert_eq!(
            ldap.group_filter_of("{dn}", "uid={user},x"),
            "(|(member=uid={user},x)(memberUid={dn})({))"
        );
        assert_eq!(ldap.user_filter_of("ann"), "(uid=ann)");
    }

    #[test]
    fn what_is_unsafe_or_lets_nobody_in_is_refused() {
        let ldap = |more: &str| {
            let text = format!(
                "[login.ldap]\nbase = 'dc=x'\n{more}\n[login.ldap.roles]\nviewer = ['*']\n"
            );
            Config::parse(&text).map(drop)
        };
        assert_eq!(ldap("url = 'ldaps://dc'"), Ok(()));
        assert_eq!(ldap("url = 'ldap://dc'\nstarttls = true"), Ok(()));
        let refused = [
            ("url = 'ldap://dc'", "TLS"),
            ("url = 'ldaps://dc'\nstarttls = true", "already"),
            ("url = 'http://dc'", "begins"),
            ("url = 'ldaps://dc'\nuser_filter = '(uid=*)'", "{user}"),
            ("url = 'ldaps://dc'\nbind_dn = 'cn=x'", "bind_password_file"),
            ("url = 'ldaps://dc'\ntimeout_seconds = 0", "1 to 30"),
        ];
        for (text, why) in refused {
            let error = ldap(text).expect_err(text);
            assert!(
                error.contains(why) && error.contains("[login.ldap]"),
                "{text}: {error}"
            );
        }
        let oidc = |roles: &str| {
            let text = format!(
                "[login.oidc]\nissuer = 'https://id'\nclient_id = 'box'\nconsole_url = 'https://box:8443/'\n[login.oidc.roles]\n{roles}\n"
            );
            Config::parse(&text).map(|config| config.login.oidc.callback())
        };
        let callback = "https://box:8443/api/v1/login/oidc/callback";
        assert_eq!(oidc("viewer = ['*']").as_deref(), Ok(callback));
        assert!(oidc("").expect_err("nobody").contains("nobody"));
        assert!(oidc("owner = ['*']").expect_err("all").contains("viewers"));
        let plain = "[login.oidc]\nissuer = 'http://id'\n";
        assert!(
            Config::parse(plain)
                .expect_err("plain")
                .contains("https://")
        );
    }
}
