//! `sanbox alert channel`: by whom people are told of alerts, put into `sanbox.toml` and in force at once.

use std::path::PathBuf;

use manage::alerts::Severity;
use manage::alerts::channel::{self, Channel};
use manage::alerts::forms::WebhookForm;
use manage::config::{Config, Mail, MailTls, Snmp, Syslog, Webhook};

use super::Arguments;
use super::user::password;
use crate::cli::format::{Column, table};
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn run(session: &Session, args: &Arguments, words: &[&str]) -> Outcome {
    match words {
        ["list"] => {
            list(session, args);
            Ok(())
        }
        ["add", kind, to] => add(session, args, kind, to).await,
        ["remove", name] => remove(session, name),
        _ => Err(session.misuse(
            "channel list, channel add mail TO,..., channel add webhook URL, channel add syslog|snmp HOST:PORT or channel remove NAME",
        )),
    }
}

fn list(session: &Session, args: &Arguments) {
    let columns = ["NAME", "SEVERITY"].map(Column::left);
    let channels = Channel::all(&session.appliance.alert_settings().borrow());
    let row = |channel: Channel| vec![channel.name(), channel.severity().as_str().to_owned()];
    let rows: Vec<_> = channels.into_iter().map(row).collect();
    session.out.text(table(&columns, &rows, args.has('H')));
}

async fn add(session: &Session, args: &Arguments, kind: &str, to: &str) -> Outcome {
    let mut channel = match kind {
        "mail" => Channel::Mail(mail(session, args, to)?),
        "webhook" => Channel::Webhook(webhook(session, args, to)?),
        "syslog" => Channel::Syslog(Syslog {
            server: to.to_owned(),
            severity: severity(session, args)?,
        }),
        "snmp" => Channel::Snmp(Snmp {
            server: to.to_owned(),
            community: args.long("community").unwrap_or_default().to_owned(),
            severity: severity(session, args)?,
        }),
        _ => {
            let text = format!("'{kind}' is none of mail, webhook, syslog and snmp");
            return Err(session.misuse(text));
        }
    };
    let failed = |why: String| session.fail(format!("cannot add the channel: {why}"));
    channel.check().map_err(failed)?;
    if args.has_long("password") {
        let secret = password(session, args).await?;
        let kept = session
            .appliance
            .state()
            .write_secret(&secret_name(&channel), &secret);
        let path = kept.map_err(|error| failed(error.to_string()))?;
        match &mut channel {
            Channel::Mail(mail) => mail.password_file = Some(path),
            Channel::Webhook(hook) => hook.token_file = Some(path),
            Channel::Syslog(_) | Channel::Snmp(_) => {
                return Err(session.misuse(format!("{kind} has no password")));
            }
        }
    }
    change(session, |text| channel::add(text, &channel)).map_err(failed)?;
    Ok(())
}

fn remove(session: &Session, name: &str) -> Outcome {
    let mut removed = None;
    let changed = change(session, |text| {
        let (text, channel) = channel::remove(text, name)?;
        removed = Some(channel);
        Ok(text)
    });
    changed.map_err(|why| session.fail(why))?;
    let secret = removed.as_ref().map(secret_name);
    if let Some(secret) = secret {
        // Present only if it was given here.
        let _ = std::fs::remove_file(session.appliance.state().path().join(secret));
    }
    Ok(())
}

/// Changes the text of the configuration, and has the daemon use it.
pub(super) fn change(
    session: &Session,
    make: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(), String> {
    let text = changed_text(session, make)?;
    let settings = Config::parse(&text)?.alerts;
    session.appliance.alert_settings().send_replace(settings);
    Ok(())
}

/// Changes the text of the configuration; returns what it is now.
pub(super) fn changed_text(
    session: &Session,
    make: impl FnOnce(&str) -> Result<String, String>,
) -> Result<String, String> {
    let state = session.appliance.state();
    let text = match std::fs::read_to_string(state.config()) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{}: {error}", state.config().display())),
    };
    let text = make(&text)?;
    Config::parse(&text)?;
    state
        .write_config(&text)
        .map_err(|error| error.to_string())?;
    Ok(text)
}

/// The file of the state directory that keeps what a channel logs in by.
fn secret_name(channel: &Channel) -> String {
    let name = channel.name();
    let plain = |letter: char| match letter {
        letter if letter.is_ascii_alphanumeric() || "-_.@".contains(letter) => letter,
        _ => '-',
    };
    let plain: String = name.chars().map(plain).take(100).collect();
    format!("alert-secret-{plain}")
}

fn severity(session: &Session, args: &Arguments) -> Result<String, Exit> {
    let Some(name) = args.long("severity") else {
        return Ok(String::new());
    };
    match Severity::from_name(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(session.misuse(format!("'{name}' is none of info, warning and critical"))),
    }
}

/// A file that a channel reads each time: it is named by its whole path.
fn file(session: &Session, args: &Arguments, option: &str) -> Option<PathBuf> {
    args.long(option).map(|path| session.path(path))
}

fn mail(session: &Session, args: &Arguments, to: &str) -> Result<Mail, Exit> {
    let needed = |option: &str| {
        let given = args.long(option);
        given.ok_or_else(|| session.misuse(format!("mail needs --{option}")))
    };
    let logs_in = args.has_long("password") || args.has_long("password-file");
    if logs_in && args.long("tls") == Some("none") {
        return Err(session.misuse("a password is sent over TLS alone"));
    }
    Ok(Mail {
        server: needed("server")?.to_owned(),
        from: needed("from")?.to_owned(),
        to: to.split(',').map(|to| to.trim().to_owned()).collect(),
        tls: match args.long("tls").unwrap_or("starttls") {
            "starttls" => MailTls::Starttls,
            "tls" => MailTls::Tls,
            "none" => MailTls::None,
            other => {
                return Err(session.misuse(format!("'{other}' is none of starttls, tls and none")));
            }
        },
        user: args.long("user").unwrap_or_default().to_owned(),
        password_file: file(session, args, "password-file"),
        severity: severity(session, args)?,
        ca_file: file(session, args, "ca-file"),
    })
}

fn webhook(session: &Session, args: &Arguments, url: &str) -> Result<Webhook, Exit> {
    Ok(Webhook {
        url: url.to_owned(),
        form: match args.long("form").unwrap_or("json") {
            "json" => WebhookForm::Json,
            "slack" => WebhookForm::Slack,
            "teams" => WebhookForm::Teams,
            "ntfy" => WebhookForm::Ntfy,
            other => {
                let text = format!("'{other}' is none of json, slack, teams and ntfy");
                return Err(session.misuse(text));
            }
        },
        token_file: file(session, args, "password-file"),
        severity: severity(session, args)?,
        ca_file: file(session, args, "ca-file"),
    })
}
