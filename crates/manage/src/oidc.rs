//! OpenID Connect as a client (OpenID Connect Core 1.0, the authorization code flow with RFC 7636): what is asked of a provider, and what its
//! answers say. Bytes in, values out; connections are made elsewhere.
//!
//! The token comes from the provider itself over TLS, whose certificate was checked, and not by way of the browser: that stands in for
//! the signature (Core, 3.1.3.7, 6). All else that is to be checked of it is.

use std::time::Duration;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::accounts::Role;
use crate::api::OidcProof;
use crate::config::Oidc;

/// How far the clocks of two machines may differ.
const CLOCKS_DIFFER: Duration = Duration::from_secs(120);
/// Groups that are looked at.
const GROUPS_MAX: usize = 4096;

/// Where a provider is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Where browsers are sent.
    authorization: String,
    /// Where codes become tokens.
    token: String,
}

/// Returns where the description of the provider is (Discovery 1.0, 4).
#[must_use]
pub fn description_of(settings: &Oidc) -> String {
    let issuer = settings.issuer.trim_end_matches('/');
    format!("{issuer}/.well-known/openid-configuration")
}

/// Reads the description of the provider.
///
/// # Errors
/// It is none, or another's, or names places without TLS.
pub fn provider(settings: &Oidc, description: &[u8]) -> Result<Provider, String> {
    let said: Value = serde_json::from_slice(description)
        .map_err(|_| "the description of the provider is no JSON".to_owned())?;
    // Discovery 1.0, 4.3: both have to be exactly alike.
    if said["issuer"].as_str() != Some(settings.issuer.as_str()) {
        return Err(format!(
            "the provider calls itself {}, and not {}",
            said["issuer"], settings.issuer
        ));
    }
    let place = |name: &str| {
        let place = said[name].as_str().unwrap_or_default();
        match place.starts_with("https://") && place.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(place.to_owned()),
            false => Err(format!("the provider names no {name} with https://")),
        }
    };
    Ok(Provider {
        authorization: place("authorization_endpoint")?,
        token: place("token_endpoint")?,
    })
}

impl Provider {
    /// Returns where codes become tokens.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns where a browser is sent to log in.
    #[must_use]
    pub fn address(&self, settings: &Oidc, proof: &OidcProof) -> String {
        let challenge = BASE64URL_NOPAD.encode(&Sha256::digest(proof.verifier.as_bytes()));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &settings.client_id),
            ("redirect_uri", &settings.callback()),
            ("scope", &settings.scopes.join(" ")),
            ("state", &proof.state),
            ("nonce", &proof.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let begins = if self.authorization.contains('?') {
            '&'
        } else {
            '?'
        };
        format!("{}{begins}{}", self.authorization, *query)
    }
}

/// Returns the form that a code is shown with.
#[must_use]
pub fn code_form(settings: &Oidc, code: &str, proof: &OidcProof) -> Zeroizing<String> {
    form(&[
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", &settings.callback()),
        ("client_id", &settings.client_id),
        ("code_verifier", &proof.verifier),
    ])
}

/// Returns how the appliance shows who it is (RFC 6749, 2.3.1).
#[must_use]
pub fn authorization(settings: &Oidc, secret: &str) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!(
        "{}:{}",
        quoted(&settings.client_id),
        quoted(secret)
    ));
    Zeroizing::new(format!("Basic {}", BASE64.encode(pair.as_bytes())))
}

/// Reads what a code became: the user's name here, and the role where one of the user's groups has one. `now` is in seconds since 1970.
///
/// # Errors
/// It is no token, or not one for this log-in.
pub fn user_of(
    settings: &Oidc,
    answer: &[u8],
    proof: &OidcProof,
    now: u64,
) -> Result<(String, Option<Role>), String> {
    let said: Value = serde_json::from_slice(answer)
        .map_err(|_| "the answer of the provider is no JSON".to_owned())?;
    let token = said["id_token"].as_str().unwrap_or_default();
    // RFC 7519, 3.1: head, claims and signature.
    let parts: Vec<&str> = token.split('.').collect();
    let [_, claims, _] = parts[..] else {
        return Err("the provider gave no ID token".to_owned());
    };
    let claims = BASE64URL_NOPAD.decode(claims.as_bytes()).ok();
    let claims = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
    let claims: Value = claims.ok_or("the ID token cannot be read")?;
    check(settings, &claims, proof, now)?;
    let name = claims[settings.user_claim.as_str()].as_str();
    let name =
        name.ok_or_else(|| format!("the ID token has no claim '{}'", settings.user_claim))?;
    let groups: Vec<String> = match &claims[settings.groups_claim.as_str()] {
        Value::Array(groups) => {
            let names = groups.iter().filter_map(Value::as_str);
            names.take(GROUPS_MAX).map(str::to_owned).collect()
        }
        Value::String(group) => vec![group.clone()],
        _ => Vec::new(),
    };
    Ok((name.to_owned(), settings.roles.role_of(&groups)))
}

/// Checks the claims of a token: OpenID Connect Core 1.0, 3.1.3.7.
fn check(settings: &Oidc, claims: &Value, proof: &OidcProof, now: u64) -> Result<(), String> {
    let client = settings.client_id.as_str();
    if claims["iss"].as_str() != Some(settings.issuer.as_str()) {
        return Err("the ID token is another provider's".to_owned());
    }
    let is_for = match &claims["aud"] {
        Value::String(one) => one == client,
        // One that is for others, too, has to say whose it is.
        Value::Array(all) => {
            all.iter().any(|one| one.as_str() == Some(client))
                && (all.len() == 1 || claims["azp"].as_str() == Some(client))
        }
        _ => false,
    };
    let others = claims["azp"].as_str().is_some_and(|azp| azp != client);
    if !is_for || others {
        return Err("the ID token is for another client".to_owned());
    }
    if claims["nonce"].as_str() != Some(proof.nonce.as_str()) {
        return Err("the ID token is of another log-in".to_owned());
    }
    let slack = CLOCKS_DIFFER.as_secs();
    let time = |name: &str| claims[name].as_f64().filter(|time| *time >= 0.0);
    let (Some(ends), Some(made)) = (time("exp"), time("iat")) else {
        return Err("the ID token does not say how long it is good".to_owned());
    };
    #[expect(clippy::cast_precision_loss, reason = "seconds, far below 2^53")]
    let (earliest, latest) = (now.saturating_sub(slack) as f64, (now + slack) as f64);
    if ends < earliest || made > latest {
        return Err("the ID token has expired, or the clocks differ".to_owned());
    }
    Ok(())
}

/// Returns fields as a form has them.
fn form(fields: &[(&str, &str)]) -> Zeroizing<String> {
    let field = |(name, value): &(&str, &str)| format!("{name}={}", quoted(value));
    Zeroizing::new(fields.iter().map(field).collect::<Vec<_>>().join("&"))
}

/// Returns a value as addresses and forms may hold it (RFC 3986, 2.3).
fn quoted(value: &str) -> String {
    let letter = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    value.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::GroupRoles;

    fn settings() -> Oidc {
        Oidc {
            issuer: "https://id.example.org".to_owned(),
            client_id: "box one".to_owned(),
            console_url: "https://box:8443".to_owned(),
            roles: GroupRoles {
                owner: vec!["admins".to_owned()],
                ..GroupRoles::default()
            },
            ..Oidc::default()
        }
    }

    fn proof() -> OidcProof {
        OidcProof {
            state: "the state".to_owned(),
            nonce: "n-1".to_owned(),
            // RFC 7636, appendix B.
            verifier: Zeroizing::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned()),
        }
    }

    fn description(more: &Value) -> Vec<u8> {
        let mut said = json!({
            "issuer": "https://id.example.org",
            "authorization_endpoint": "https://id.example.org/auth",
            "token_endpoint": "https://id.example.org/token",
        });
        for (name, value) in more.as_object().expect("an object") {
            said[name] = value.clone();
        }
        said.to_string().into_bytes()
    }

    #[test]
    fn browsers_are_sent_with_all_that_the_standard_wants() {
        let provider = provider(&settings(), &description(&json!({}))).expect("one");
        assert_eq!(
            provider.address(&settings(), &proof()),
            "https://id.example.org/auth?response_type=code&client_id=box%20one\
             &redirect_uri=https%3A%2F%2Fbox%3A8443%2Fapi%2Fv1%2Flogin%2Foidc%2Fcallback\
             &scope=openid%20profile%20groups&state=the%20state&nonce=n-1\
             &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256"
        );
        for bad in [
            json!({"issuer": "https://id.example.org/"}),
            json!({"token_endpoint": "http://id.example.org/token"}),
            json!({"authorization_endpoint": "javascript:alert(1)"}),
            json!({"authorization_endpoint": "https://id\r\nset-cookie: x"}),
            json!({"token_endpoint": null}),
        ] {
            assert!(
                super::provider(&settings(), &description(&bad)).is_err(),
                "{bad}"
            );
        }
        assert!(super::provider(&settings(), b"<html>").is_err());
    }

    #[test]
    fn a_token_is_for_this_log_in_or_for_none() {
        let now = 1_000_000;
        let said = |more: Value| {
            let mut claims = json!({
                "iss": "https://id.example.org", "aud": "box one", "nonce": "n-1", "exp": now + 60, "iat": now,
                "preferred_username": "ann", "groups": ["users", "Admins"],
            });
            for (name, value) in more.as_object().expect("an object") {
                claims[name] = value.clone();
            }
            let claims = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
            let answer = json!({"id_token": format!("e30.{claims}.c2ln")}).to_string();
            user_of(&settings(), answer.as_bytes(), &proof(), now)
        };
        let ann = Ok(("ann".to_owned(), Some(Role::Owner)));
        for good in [
            json!({}),
            json!({"aud": ["box one"]}),
            json!({"aud": ["box one", "other"], "azp": "box one"}),
            json!({"exp": now - 100}),
            json!({"groups": "admins"}),
        ] {
            assert_eq!(said(good.clone()), ann, "{good}");
        }
        let without = said(json!({"groups": [1, {"x": []}]}));
        assert_eq!(without, Ok(("ann".to_owned(), None)));
        for bad in [
            json!({"iss": "https://other"}),
            json!({"aud": "other"}),
            json!({"aud": ["box one", "other"]}),
            json!({"aud": []}),
            json!({"azp": "other"}),
            json!({"nonce": "n-2"}),
            json!({"nonce": null}),
            json!({"exp": now - 200}),
            json!({"exp": null}),
            json!({"exp": -1}),
            json!({"iat": now + 200}),
            json!({"preferred_username": 7}),
        ] {
            assert!(said(bad.clone()).is_err(), "{bad}");
        }
        for nonsense in [
            "",
            "{}",
            "{\"id_token\": \"a.b\"}",
            "{\"id_token\": \"a.!.c\"}",
            "[]",
        ] {
            assert!(user_of(&settings(), nonsense.as_bytes(), &proof(), now).is_err());
        }
    }
}
