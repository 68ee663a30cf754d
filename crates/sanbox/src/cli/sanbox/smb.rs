//! `sanbox smb`: who may log in by SMB, and what clients do.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use manage::samba::domain::Domain;
use manage::samba::status::SmbStatus;
use manage::samba::users::{PASSWORD_BYTES_MAX, SmbUser, SmbUsers, is_name};

use super::user::password;
use super::{Arguments, print_table};
use crate::cli::{Exit, Outcome, Session};
use crate::paths;
use crate::serve::smb::{self, Credentials, replace, users_file};

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["passwd", name] => passwd(session, args, name).await,
        ["remove", name] => remove(session, name).await,
        ["users"] => users(session, args).await,
        ["status"] => status(session, args).await,
        ["join"] => join(session, args).await,
        ["leave"] => leave(session, args).await,
        [] => Err(session.misuse("missing command")),
        _ => Err(session.misuse("wrong arguments")),
    }
}

async fn read(session: &Session) -> Result<SmbUsers, Exit> {
    let path = users_file(session.appliance.state().path());
    let at = path.clone();
    let text = paths::call(&path, move || std::fs::read_to_string(at)).await;
    match text {
        Ok(Ok(text)) => Ok(SmbUsers::parse(&text)),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(SmbUsers::default()),
        Ok(Err(error)) => Err(session.fail(format!("{}: {error}", path.display()))),
        Err(why) => Err(session.fail(why)),
    }
}

async fn write(session: &Session, users: &SmbUsers) -> Outcome {
    let path = users_file(session.appliance.state().path());
    let written = replace(&path, users.text()).await;
    written.map_err(|why| session.fail(why))
}

async fn passwd(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let refuse = |why: String| session.fail(format!("cannot give '{name}' a password: {why}"));
    let Some(uid) = machine_user(name).await else {
        return Err(refuse(format!(
            "this machine has no such user, and files belong to its users; useradd --no-create-home --shell /usr/sbin/nologin {name}"
        )));
    };
    let password = password(session, args).await?;
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(refuse(format!("it has 1 to {PASSWORD_BYTES_MAX} bytes")));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
    let mut users = read(session).await?;
    users.put(SmbUser::new(name, uid, &password, now));
    write(session, &users).await
}

/// Returns the number of a user of this machine, wherever the machine has its users from.
async fn machine_user(name: &str) -> Option<u32> {
    if !is_name(name) {
        return None;
    }
    let asked = name.to_owned();
    let ask = move || {
        let mut getent = Command::new("getent");
        getent
            .args(["passwd", &asked])
            .stdin(Stdio::null())
            .output()
    };
    let output = paths::call(Path::new("getent"), ask).await.ok()?.ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    // getent takes a number for a name.
    let mut fields = line.split(':');
    (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
}

/// The domain of the settings, and the directory of the service.
fn domain(session: &Session) -> Result<(Domain, std::path::PathBuf), Exit> {
    let domain = smb::domain_of(&session.appliance.config().smb);
    let domain = domain.ok_or_else(|| {
        session.fail("no domain is named: realm and workgroup under [smb] in sanbox.toml")
    })?;
    Ok((domain, smb::directory(session.appliance.state().path())))
}

/// Who may join machines, with the password from standard input or a file.
async fn credentials(session: &Session, args: &Arguments, user: &str) -> Result<Credentials, Exit> {
    let password = password(session, args).await?;
    if !is_name(user) || password.is_empty() {
        return Err(session.misuse("a user of the domain and its password are needed"));
    }
    Ok(Credentials {
        user: user.to_owned(),
        password,
    })
}

async fn join(session: &Session, args: &Arguments) -> Outcome {
    let (domain, directory) = domain(session)?;
    let user = args
        .long("user")
        .ok_or_else(|| session.misuse("--user is missing: who may join machines to the domain"))?;
    let who = credentials(session, args, user).await?;
    let settings = &session.appliance.config().smb;
    let joined = smb::join(&directory, settings, &domain, &who).await;
    let realm = domain.realm();
    joined.map_err(|why| session.fail(format!("cannot join {realm}: {why}")))?;
    session.appliance.smb_domain_changed().await;
    Ok(())
}

async fn leave(session: &Session, args: &Arguments) -> Outcome {
    let (domain, directory) = domain(session)?;
    let who = match args.long("user") {
        Some(user) => Some(credentials(session, args, user).await?),
        None => None,
    };
    let settings = &session.appliance.config().smb;
    let left = smb::leave(&directory, settings, &domain, who.as_ref()).await;
    let realm = domain.realm();
    left.map_err(|why| session.fail(format!("cannot leave {realm}: {why}")))?;
    session.appliance.smb_domain_changed().await;
    if who.is_none() {
        session.out.error(format!(
            "the account of this machine stays in {realm}: --user NAME removes it"
        ));
    }
    Ok(())
}

async fn remove(session: &Session, name: &str) -> Outcome {
    let mut users = read(session).await?;
    if !users.remove(name) {
        return Err(session.fail(format!("'{name}' has no password for SMB")));
    }
    write(session, &users).await
}

async fn users(session: &Session, args: &Arguments) -> Outcome {
    let users = read(session).await?.users;
    let row = |user: &SmbUser| vec![user.name.clone(), user.uid.to_string()];
    let rows: Vec<Vec<String>> = users.iter().map(row).collect();
    print_table(session, args, &["NAME", "UID"], &rows);
    Ok(())
}

/// Says how the service stands, before its tables.
fn told(session: &Session, status: &SmbStatus) {
    let SmbStatus {
        running, version, ..
    } = status;
    session.out.line(match (running, status.shares.is_empty()) {
        (true, _) => format!("Samba {version} runs"),
        (false, true) => "nothing is shared by SMB, so Samba does not run".to_owned(),
        (false, false) => "Samba does not run".to_owned(),
    });
    if !status.shares.is_empty() {
        session.out.line(&status.mdns);
    }
    if let Some(domain) = &status.domain {
        let realm = &domain.realm;
        session.out.line(match &domain.problem {
            None => format!("member of {realm}"),
            Some(problem) => format!("users of {realm} cannot log in: {problem}"),
        });
    }
}

async fn status(session: &Session, args: &Arguments) -> Outcome {
    let Some(status) = session.appliance.smb_status().await else {
        return Err(session.fail("no daemon runs that serves SMB; start 'sanbox serve'"));
    };
    if args.has('j') {
        let text =
            serde_json::to_string_pretty(&status).map_err(|e| session.fail(e.to_string()))?;
        session.out.line(text);
        return Ok(());
    }
    if !args.has('H') {
        told(session, &status);
    }
    for problem in &status.problems {
        session.out.error(problem);
    }
    let shares = status.shares.iter().map(|share| {
        let access = if share.read_only { "ro" } else { "rw" };
        let guest = if share.guest { "guests" } else { "-" };
        vec![
            share.name.clone(),
            share.dataset.clone(),
            access.to_owned(),
            guest.to_owned(),
        ]
    });
    let titles = ["SHARE", "DATASET", "ACCESS", "GUESTS"];
    print_table(session, args, &titles, &shares.collect::<Vec<_>>());
    let sessions = status.sessions.iter().map(|client| {
        let shares = if client.shares.is_empty() {
            "-".to_owned()
        } else {
            client.shares.join(",")
        };
        vec![
            client.user.clone(),
            client.client.clone(),
            client.dialect.clone(),
            client.signing.clone(),
            client.encryption.clone(),
            shares,
        ]
    });
    let titles = [
        "USER",
        "CLIENT",
        "PROTOCOL",
        "SIGNED",
        "ENCRYPTED",
        "SHARES",
    ];
    print_table(session, args, &titles, &sessions.collect::<Vec<_>>());
    let files = status.open_files.iter().map(|file| {
        vec![
            format!("{}:{}", file.dataset, file.path),
            file.uid.to_string(),
            file.access.clone(),
        ]
    });
    let titles = ["FILE", "UID", "ACCESS"];
    print_table(session, args, &titles, &files.collect::<Vec<_>>());
    Ok(())
}
