//! Log-in by others: questions to an LDAP directory and to an OpenID Connect provider.
//!
//! Guarantees: no password and no code goes without TLS to a server whose certificate was checked; each question ends in time, and there
//! is a bounded number of them at once. What the answers mean is decided by `manage`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ldap3::{
    Ldap, LdapConnAsync, LdapConnSettings, Scope, SearchEntry, SearchOptions, ldap_escape,
};
use manage::accounts::{Refusal, Role};
use manage::api::OidcProof;
use manage::config::{Ldap as LdapSettings, Oidc};
use manage::database::seconds_since_epoch;
use manage::oidc::{self, Provider};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::paths;
use crate::web_client::{FetchError, Form, Trust, fetch, post};

/// Questions at once.
static QUESTIONS: Semaphore = Semaphore::const_new(8);
/// How long the provider may take for a log-in.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(12);
/// Groups of a user that are looked at.
const GROUPS_MAX: i32 = 1000;
/// Bytes of names and values that are taken from a search.
const SEARCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of a file with a password.
const SECRET_BYTES_MAX: u64 = 4096;
/// RFC 4511, appendix A: invalidCredentials.
const WRONG_PASSWORD: u32 = 49;
/// RFC 4511, appendix A: sizeLimitExceeded.
const MORE_THAN_ASKED_FOR: u32 = 4;

fn unavailable(error: &anyhow::Error) -> Refusal {
    Refusal::Unavailable(format!("{error:#}"))
}

fn too_many() -> Refusal {
    Refusal::Unavailable("too many log-ins at once".to_owned())
}

/// Returns the first line of a file.
async fn secret(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    use std::io::Read as _;
    let at = path.to_owned();
    let read = move || -> std::io::Result<Zeroizing<String>> {
        let mut text = Zeroizing::new(String::new());
        let file = std::fs::File::open(at)?;
        file.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
        let line = text.lines().next().unwrap_or_default();
        Ok(Zeroizing::new(line.to_owned()))
    };
    let read = paths::call(path, read).await.map_err(anyhow::Error::msg)?;
    read.with_context(|| format!("reading {}", path.display()))
}

/// Asks the directory for the role of a user with this password.
pub(super) async fn ask_directory(
    settings: &LdapSettings,
    name: &str,
    password: &str,
) -> Result<Role, Refusal> {
    // RFC 4513, 5.1.2: a bind without a password succeeds, and proves nothing.
    if password.is_empty() {
        return Err(Refusal::Credentials);
    }
    let _permit = QUESTIONS.try_acquire().map_err(|_| too_many())?;
    let limit = Duration::from_secs(settings.timeout_seconds);
    match timeout(limit, role_in_directory(settings, name, password)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(unavailable(&error)),
        Err(_) => Err(Refusal::Unavailable(format!("no answer within {limit:?}"))),
    }
}

async fn role_in_directory(
    settings: &LdapSettings,
    name: &str,
    password: &str,
) -> anyhow::Result<Result<Role, Refusal>> {
    let trust = Trust::of_file(settings.ca_file.as_deref());
    let connection = LdapConnSettings::new()
        .set_config(trust.client_config().await?)
        .set_starttls(settings.starttls);
    let connected = LdapConnAsync::with_settings(connection, &settings.url).await;
    let (connection, mut ldap) = connected.with_context(|| settings.url.clone())?;
    let driver = tokio::spawn(connection.drive());
    let answer = role_of_user(&mut ldap, settings, name, password).await;
    let _ = ldap.unbind().await;
    driver.abort();
    answer
}

async fn role_of_user(
    ldap: &mut Ldap,
    settings: &LdapSettings,
    name: &str,
    password: &str,
) -> anyhow::Result<Result<Role, Refusal>> {
    if !settings.bind_dn.is_empty() {
        let file = settings.bind_password_file.as_deref();
        let own = secret(file.context("bind_password_file is missing")?).await?;
        let bound = ldap.simple_bind(&settings.bind_dn, &own).await;
        let bound = bound.and_then(ldap3::LdapResult::success);
        bound.with_context(|| format!("binding as {}", settings.bind_dn))?;
    }
    let escaped = ldap_escape(name);
    let filter = settings.user_filter_of(&escaped);
    let found = entries(ldap, &settings.base, &filter, vec!["memberOf"], 2).await?;
    let [user] = &found[..] else {
        // No user, or one of several, of which the password cannot tell the right one.
        ensure!(found.is_empty(), "{filter} finds several users");
        return Ok(Err(Refusal::Credentials));
    };
    let mut groups: Vec<String> = Vec::new();
    for group in user.attrs.get("memberOf").into_iter().flatten() {
        groups.extend(first_value(group).map(str::to_owned));
        groups.push(group.clone());
    }
    if !settings.group_base.is_empty() {
        let filter = settings.group_filter_of(&escaped, &ldap_escape(user.dn.as_str()));
        let (base, names) = (&settings.group_base, vec!["cn"]);
        for group in entries(ldap, base, &filter, names, GROUPS_MAX).await? {
            groups.extend(group.attrs.get("cn").into_iter().flatten().cloned());
            groups.push(group.dn);
        }
    }
    let bound = ldap.simple_bind(&user.dn, password).await;
    match bound.context("binding as the user")? {
        result if result.rc == 0 => {}
        result if result.rc == WRONG_PASSWORD => return Ok(Err(Refusal::Credentials)),
        result => {
            let said = result.success().map(drop);
            return Ok(said
                .context("binding as the user")
                .map_err(|error| unavailable(&error))
                .and(Err(Refusal::Credentials)));
        }
    }
    Ok(settings.roles.role_of(&groups).ok_or(Refusal::NoRole))
}

/// Returns what a search finds.
///
/// # Errors
/// The directory's, and more than `most` entries or [`SEARCH_BYTES_MAX`]: it is asked for no more, and not believed to hold to that.
async fn entries(
    ldap: &mut Ldap,
    base: &str,
    filter: &str,
    attributes: Vec<&'static str>,
    most: i32,
) -> anyhow::Result<Vec<SearchEntry>> {
    let searching = || format!("searching {base} for {filter}");
    let asked = ldap.with_search_options(SearchOptions::new().sizelimit(most));
    let search = asked.streaming_search(base, Scope::Subtree, filter, attributes);
    let mut search = search.await.with_context(searching)?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(entry) = search.next().await.with_context(searching)? {
        // Where else it could be looked for is not followed.
        if entry.is_ref() || entry.is_intermediate() {
            continue;
        }
        let entry = SearchEntry::construct(entry);
        let values = entry.attrs.values().flatten().map(String::len);
        bytes += entry.dn.len() + values.sum::<usize>();
        let fits = i32::try_from(found.len()).is_ok_and(|count| count < most);
        ensure!(
            fits && bytes <= SEARCH_BYTES_MAX,
            "{}: more than was asked for",
            searching()
        );
        found.push(entry);
    }
    let result = search.finish().await;
    if result.rc != MORE_THAN_ASKED_FOR {
        result.success().with_context(searching)?;
    }
    Ok(found)
}

/// The value of the first part of a name in a directory: `admins` of `cn=admins,dc=example`.
fn first_value(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('=')?;
    let end = rest.find([',', '+', '\\']).unwrap_or(rest.len());
    Some(rest[..end].trim())
}

fn said(error: FetchError) -> Refusal {
    Refusal::Unavailable(match error {
        FetchError::Status(status) => format!("it answers with status {status}"),
        FetchError::Failed(why) => why,
    })
}

async fn provider(settings: &Oidc) -> Result<Provider, Refusal> {
    let trust = Trust::of_file(settings.ca_file.as_deref());
    let description = fetch(&oidc::description_of(settings), &trust).await;
    let description = description.map_err(said)?;
    oidc::provider(settings, &description).map_err(Refusal::Unavailable)
}

async fn within<T>(asking: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let _permit = QUESTIONS.try_acquire().map_err(|_| too_many())?;
    let late = |_| Refusal::Unavailable(format!("no answer within {PROVIDER_TIMEOUT:?}"));
    timeout(PROVIDER_TIMEOUT, asking).await.map_err(late)?
}

/// Returns where a browser is sent to log in at the provider.
pub(super) async fn provider_address(settings: &Oidc, proof: OidcProof) -> Result<String, String> {
    let asked = within(async {
        let provider = provider(settings).await?;
        Ok(provider.address(settings, &proof))
    });
    asked.await.map_err(|refusal| match refusal {
        Refusal::Unavailable(why) => why,
        refusal => format!("{refusal:?}"),
    })
}

/// Asks the provider whose code this is.
pub(super) async fn ask_provider(
    settings: &Oidc,
    code: &str,
    proof: OidcProof,
) -> Result<(String, Option<Role>), Refusal> {
    within(async {
        let provider = provider(settings).await?;
        let own = match &settings.client_secret_file {
            Some(file) => Some(secret(file).await.map_err(|error| unavailable(&error))?),
            None => None,
        };
        let own = own.map(|own| oidc::authorization(settings, &own));
        let form = Form {
            fields: oidc::code_form(settings, code, &proof),
            authorization: own.as_ref().map(|own| own.as_str()),
        };
        let trust = Trust::of_file(settings.ca_file.as_deref());
        let answer = match post(provider.token(), &form, &trust).await {
            Ok(answer) => answer,
            // RFC 6749, 5.2: of a code that is wrong, used or too old; some providers answer such a one with 403.
            Err(FetchError::Status(400 | 403)) => return Err(Refusal::Credentials),
            Err(error) => return Err(said(error)),
        };
        let now = seconds_since_epoch();
        oidc::user_of(settings, &answer, &proof, now).map_err(Refusal::Unavailable)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_known_by_their_first_value() {
        for (name, value) in [
            ("cn=admins,ou=groups,dc=x", Some("admins")),
            ("CN=Storage Admins, OU=x", Some("Storage Admins")),
            ("cn=a+sn=b,dc=x", Some("a")),
            ("", None),
            ("=", Some("")),
        ] {
            assert_eq!(first_value(name), value, "{name}");
        }
    }

    #[tokio::test]
    async fn an_empty_password_is_asked_nobody() {
        let settings = LdapSettings {
            url: "ldaps://localhost:1".to_owned(),
            ..LdapSettings::default()
        };
        let answer = ask_directory(&settings, "ann", "").await;
        assert_eq!(answer, Err(Refusal::Credentials));
        let answer = ask_directory(&settings, "ann", "x").await;
        assert!(matches!(answer, Err(Refusal::Unavailable(_))), "{answer:?}");
    }
}
