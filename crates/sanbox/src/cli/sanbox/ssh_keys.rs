//! `sanbox ssh-keys` and `sanbox authorized-keys`: the keys by which other hosts log in by ssh to replicate, and what sshd is told of them.

use std::sync::Arc;

use manage::accounts::{SshKey, SshKeyView};
use manage::api::Api;
use manage::database::seconds_since_epoch;

use super::user::done;
use super::{Arguments, print_table};
use crate::cli::format::date;
use crate::cli::{Exit, Outcome, Session, user_name};
use crate::serve::management;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => list(session, args, None).await,
        ["list", user] => list(session, args, Some(user)).await,
        ["add", user, file] => {
            let text = std::fs::read_to_string(session.path(file));
            let text = text.map_err(|error| session.fail(format!("{file}: {error}")))?;
            add(session, user, &text).await
        }
        // The whole key, as it is copied: several words.
        ["add", user, kind, key, ref comment @ ..] => {
            let line = [&[kind, key], comment].concat().join(" ");
            add(session, user, &line).await
        }
        ["remove", id] => remove(session, id).await,
        ["setup"] => {
            setup(session);
            Ok(())
        }
        _ => Err(session.misuse(
            "list [USER], add USER FILE.pub, add USER KIND KEY [COMMENT], remove ID or setup",
        )),
    }
}

async fn opened(session: &Session) -> Result<Arc<Api>, Exit> {
    let api = management::open(&session.appliance).await;
    api.map_err(|error| session.fail(format!("{error:#}")))
}

async fn list(session: &Session, args: &Arguments, user: Option<&str>) -> Outcome {
    let titles = ["ID", "USER", "KIND", "FINGERPRINT", "ADDED", "COMMENT"];
    let row = |key: SshKeyView| {
        let added = date(key.created);
        let id = key.id.to_string();
        vec![id, key.user, key.kind, key.fingerprint, added, key.comment]
    };
    let keys = opened(session).await?.accounts.ssh_keys(user);
    let rows: Vec<Vec<String>> = keys.into_iter().map(row).collect();
    print_table(session, args, &titles, &rows);
    Ok(())
}

async fn add(session: &Session, user: &str, text: &str) -> Outcome {
    let key = SshKey::parse(text).map_err(|why| session.fail(why))?;
    let api = opened(session).await?;
    let added = api.accounts.add_ssh_key(user, key, seconds_since_epoch());
    match added.await {
        Ok(view) => {
            let event = format!(
                "added SSH key {} '{}' of '{user}'",
                view.id, view.fingerprint
            );
            done(session, &api, Ok(()), event)
        }
        Err(error) => done(session, &api, Err(error), String::new()),
    }
}

async fn remove(session: &Session, id: &str) -> Outcome {
    let number = id.parse();
    let number = number.map_err(|_| session.misuse(format!("'{id}' is no key's number")))?;
    let api = opened(session).await?;
    let removed = api.accounts.remove_ssh_key(None, number).await;
    let event = match &removed {
        Ok(view) => format!("removed SSH key {id} of '{}'", view.user),
        Err(_) => String::new(),
    };
    done(session, &api, removed.map(drop), event)
}

/// What sshd's configuration has to say.
fn setup(session: &Session) {
    let program = program();
    let state = session.appliance.state().path().display();
    session.out.text(format!(
        "# /etc/ssh/sshd_config.d/sanbox.conf; then 'sshd -t' and 'systemctl reload ssh'.\n\
         # {program} and the directories above have to be root's, and writable by nobody else.\n\
         AuthorizedKeysCommand {program} --state {state} authorized-keys %u\n\
         AuthorizedKeysCommandUser {}\n",
        own_account()
    ));
}

/// This program's path.
fn program() -> String {
    let own = std::env::current_exe().ok();
    own.map_or_else(
        || "/usr/bin/sanbox".to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

/// The account of the machine that the appliance runs as.
fn own_account() -> String {
    let uid = u64::from(rustix::process::geteuid().as_raw());
    user_name(uid).unwrap_or_else(|| uid.to_string())
}

/// Prints the lines of `authorized_keys` for an account of the machine: for the one that the appliance runs as those of all users, each of
/// whom is named; for another those of the user of this name.
pub(super) async fn authorized(session: &Session, args: &Arguments) -> Outcome {
    let [account] = &args.operands[..] else {
        return Err(session.misuse("USER"));
    };
    let api = opened(session).await?;
    let is_own = *account == own_account();
    let user = (!is_own).then_some(account.as_str());
    let (program, state) = (program(), session.appliance.state().path().to_owned());
    let state = state.to_string_lossy();
    if [&program, &*state].iter().any(|path| !is_plain(path)) {
        return Err(session.fail("the paths of the program and of the state directory have to be without spaces and quotes"));
    }
    for (user, key) in api.accounts.ssh_key_lines(user) {
        let named = if is_own {
            format!(" {user}")
        } else {
            String::new()
        };
        session.out.line(format!(
            "restrict,command=\"{program} --state {state} ssh-session{named}\" {key}"
        ));
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte);
    path.bytes().all(plain)
}
