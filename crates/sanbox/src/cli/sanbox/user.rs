//! `sanbox user`: who may use the console and the API, and the keys of scripts.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use manage::accounts::{AccountError, NewKey, Role};
use manage::api::Api;
use manage::database::seconds_since_epoch;

use super::Arguments;
use crate::cli::format::{Column, date, table};
use crate::cli::{Exit, Outcome, Session, user_name};
use crate::serve::management;

/// Longest password file or line that is read.
const INPUT_BYTES_MAX: usize = 4096;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    match words[..] {
        ["add", name] => add(session, args, &api, name).await?,
        ["list"] => list(session, args, &api),
        ["passwd", name] => {
            let password = password(session, args).await?;
            let changed = api.accounts.reset_password(name, &password).await;
            done(
                session,
                &api,
                changed,
                format!("gave '{name}' a new password"),
            )?;
        }
        ["role", name, role] => {
            let role = parse_role(session, role)?;
            let changed = api.accounts.change_role(name, role).await;
            let event = format!("changed the role of '{name}' to {}", role.as_str());
            done(session, &api, changed, event)?;
        }
        ["delete", name] => {
            let removed = api.accounts.remove_user(name).await;
            done(session, &api, removed, format!("removed user '{name}'"))?;
        }
        ["reset-totp", name] => {
            let removed = api.accounts.remove_second_factor(name).await;
            let event = format!("removed the second factor of '{name}'");
            done(session, &api, removed, event)?;
        }
        ["key", "create", name] => make_key(session, args, &api, name).await?,
        ["key", "list"] => list_keys(session, args, &api, None),
        ["key", "list", name] => list_keys(session, args, &api, Some(name)),
        ["key", "revoke", id] => {
            let id = id
                .parse()
                .map_err(|_| session.misuse(format!("'{id}' is no key's number")))?;
            let revoked = api.accounts.revoke_key(None, id).await;
            done(
                session,
                &api,
                revoked.map(|_| ()),
                format!("revoked key {id}"),
            )?;
        }
        _ => {
            return Err(session.misuse(
                "add NAME, list, passwd NAME, role NAME ROLE, delete NAME, reset-totp NAME, key create NAME, key list [NAME] or key revoke ID",
            ));
        }
    }
    // A process that ends now would leave the log of accounts unwritten.
    let _ = api.accounts.database().call(|_| Ok(())).await;
    Ok(())
}

/// Says what went wrong, or writes what was done into the log of accounts.
pub(super) fn done(
    session: &Session,
    api: &Arc<Api>,
    result: Result<(), AccountError>,
    event: String,
) -> Outcome {
    result.map_err(|error| session.fail(error.to_string()))?;
    note(session, api, event);
    Ok(())
}

fn note(session: &Session, api: &Arc<Api>, event: String) {
    let uid = session.caller.uid;
    let user = user_name(u64::from(uid)).unwrap_or_else(|| uid.to_string());
    api.audit.note(&user, "shell", event);
}

pub(super) fn parse_role(session: &Session, word: &str) -> Result<Role, Exit> {
    Role::from_name(word)
        .ok_or_else(|| session.misuse(format!("'{word}' is none of owner, operator and viewer")))
}

fn role(session: &Session, args: &Arguments) -> Result<Option<Role>, Exit> {
    args.long("role")
        .map(|word| parse_role(session, word))
        .transpose()
}

async fn add(session: &Session, args: &Arguments, api: &Arc<Api>, name: &str) -> Outcome {
    let role = role(session, args)?.unwrap_or(Role::Viewer);
    let password = match args.has_long("no-password") {
        true => None,
        false => Some(password(session, args).await?),
    };
    let now = seconds_since_epoch();
    let added = api
        .accounts
        .add_user(name, password.as_deref(), role, now)
        .await;
    let event = format!("made user '{name}' ({})", role.as_str());
    done(session, api, added, event)
}

/// The password: the first line of a file, or of standard input.
pub(super) async fn password(session: &Session, args: &Arguments) -> Result<String, Exit> {
    let text = match args.long("password-file") {
        Some(path) => std::fs::read_to_string(session.path(path))
            .map_err(|error| session.fail(format!("{path}: {error}")))?,
        None => {
            let input = session.input.as_ref();
            let input = input
                .ok_or_else(|| session.misuse("a password is needed: --password-file FILE"))?;
            let mut bytes = Vec::new();
            while !bytes.contains(&b'\n') && bytes.len() < INPUT_BYTES_MAX {
                match input.next().await {
                    Some(more) => bytes.extend(more),
                    None => break,
                }
            }
            String::from_utf8(bytes).map_err(|_| session.fail("the password is not UTF-8"))?
        }
    };
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn list(session: &Session, args: &Arguments, api: &Arc<Api>) {
    let titles = ["NAME", "ROLE", "LOGIN", "CREATED"];
    let columns: Vec<Column> = titles.iter().map(|title| Column::left(title)).collect();
    let row = |user: manage::accounts::UserEntry| {
        let login = match (user.password, user.second_factor) {
            (false, _) => "keys",
            (true, false) => "password",
            (true, true) => "password+totp",
        };
        vec![
            user.name,
            user.role.as_str().to_owned(),
            login.to_owned(),
            date(user.created),
        ]
    };
    let rows: Vec<Vec<String>> = api.accounts.users().into_iter().map(row).collect();
    session.out.text(table(&columns, &rows, args.has('H')));
}

fn list_keys(session: &Session, args: &Arguments, api: &Arc<Api>, user: Option<&str>) {
    let titles = ["ID", "USER", "NAME", "ROLE", "DATASETS", "EXPIRES", "USED"];
    let columns: Vec<Column> = titles.iter().map(|title| Column::left(title)).collect();
    let time = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), date);
    let row = |key: manage::accounts::KeyView| {
        let datasets = match key.datasets.is_empty() {
            true => "-".to_owned(),
            false => key.datasets.join(","),
        };
        vec![
            key.id.to_string(),
            key.user,
            key.name,
            key.role.as_str().to_owned(),
            datasets,
            time(key.expires),
            time(key.used),
        ]
    };
    let rows: Vec<Vec<String>> = api.accounts.keys(user).into_iter().map(row).collect();
    session.out.text(table(&columns, &rows, args.has('H')));
}

/// Makes a key and prints it alone. A user who is not there is made: without a password, for scripts.
async fn make_key(session: &Session, args: &Arguments, api: &Arc<Api>, user: &str) -> Outcome {
    let now = seconds_since_epoch();
    let wanted = role(session, args)?;
    let expires = match args.long("expires") {
        None | Some("never") => None,
        Some(text) => Some(expiry(text, now).ok_or_else(|| {
            session.misuse(format!(
                "--expires {text}: a time such as 12h, 90d or 1y, a date such as 2027-06-30, or never"
            ))
        })?),
    };
    if api.accounts.role(user).is_none() {
        let role = wanted.unwrap_or(Role::Viewer);
        let added = api.accounts.add_user(user, None, role, now).await;
        let event = format!("made user '{user}' ({})", role.as_str());
        done(session, api, added, event)?;
        session.out.error(format!(
            "note: '{user}' is a new user with the role {} and without a password",
            role.as_str()
        ));
    }
    let new = NewKey {
        name: args.long("name").unwrap_or(user).to_owned(),
        role: wanted,
        datasets: args
            .longs("dataset")
            .into_iter()
            .map(str::to_owned)
            .collect(),
        expires,
    };
    let made = api.accounts.make_key(user, new, Role::Owner, now).await;
    let (key, secret) = made.map_err(|error| session.fail(error.to_string()))?;
    let event = format!(
        "made key {} '{}' of '{user}' ({})",
        key.id,
        key.name,
        key.role.as_str()
    );
    note(session, api, event);
    session.out.line(secret);
    Ok(())
}

/// When a key ends: so long from now, or at the begin of a day here.
fn expiry(text: &str, now: u64) -> Option<u64> {
    if let Ok(day) = text.parse::<Date>() {
        let begin = day.to_zoned(TimeZone::system()).ok()?;
        return u64::try_from(begin.timestamp().as_second()).ok();
    }
    now.checked_add(duration(text)?)
}

/// Reads a length of time, such as `90d`, in seconds.
pub(super) fn duration(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        'y' => 365 * 86_400,
        _ => return None,
    };
    let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
    count.checked_mul(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_after_a_time_or_on_a_day() {
        for (text, seconds) in [
            ("90d", Some(1000 + 90 * 86_400)),
            ("12h", Some(1000 + 12 * 3600)),
            ("0d", Some(1000)),
            ("d", None),
            ("5", None),
            ("99999999999999999999y", None),
            ("9999999999999999y", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(expiry(text, 1000), seconds, "{text}");
        }
        let day = expiry("2027-06-30", 1000).expect("a day");
        assert!((1_814_200_000..1_814_500_000).contains(&day), "{day}");
    }
}
