//! The channels by which people are told of alerts: what each is called and takes, and how one is put into, and taken out of, the text of
//! `sanbox.toml`, whose other lines stay as they are.

use serde::Serialize;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use super::forms::{self, WebhookForm};
use super::{Message, Severity};
use crate::config::{Alerts, Config, Mail, Snmp, Syslog, Webhook};

/// A way to tell people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Channel {
    /// By mail.
    Mail(Mail),
    /// By a web service.
    Webhook(Webhook),
    /// By syslog.
    Syslog(Syslog),
    /// By traps of SNMP.
    Snmp(Snmp),
}

/// Bytes of a community's name, at most.
const COMMUNITY_BYTES_MAX: usize = 64;

impl Channel {
    /// Returns the channels of a configuration.
    #[must_use]
    pub fn all(settings: &Alerts) -> Vec<Self> {
        let mail = settings.mail.iter().cloned().map(Self::Mail);
        let hooks = settings.webhook.iter().cloned().map(Self::Webhook);
        let syslog = settings.syslog.iter().cloned().map(Self::Syslog);
        let snmp = settings.snmp.iter().cloned().map(Self::Snmp);
        mail.chain(hooks).chain(syslog).chain(snmp).collect()
    }

    /// Returns what it is called: nothing that lets in there. A path of a web service may hold a secret, so may a name before its host.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Mail(mail) => format!("mail {}", mail.to.join(",")),
            Self::Webhook(hook) => {
                let form = match hook.form {
                    WebhookForm::Json => "webhook",
                    WebhookForm::Slack => "slack",
                    WebhookForm::Teams => "teams",
                    WebhookForm::Ntfy => "ntfy",
                };
                format!("{form} {}", host(&hook.url))
            }
            Self::Syslog(syslog) => format!("syslog {}", syslog.server),
            Self::Snmp(snmp) => format!("snmp {}", snmp.server),
        }
    }

    /// Returns `mail`, `webhook`, `syslog` or `snmp`, as the configuration calls it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mail(_) => "mail",
            Self::Webhook(_) => "webhook",
            Self::Syslog(_) => "syslog",
            Self::Snmp(_) => "snmp",
        }
    }

    /// Returns the least severity that is told.
    #[must_use]
    pub fn severity(&self) -> Severity {
        let name = match self {
            Self::Mail(mail) => &mail.severity,
            Self::Webhook(hook) => &hook.severity,
            Self::Syslog(syslog) => &syslog.severity,
            Self::Snmp(snmp) => &snmp.severity,
        };
        Severity::from_name(name).unwrap_or(Severity::Info)
    }

    /// Whether a message goes this way.
    #[must_use]
    pub fn takes(&self, message: &Message) -> bool {
        match message {
            Message::Test(Some(name)) => *name == self.name(),
            _ => forms::severity(message).is_none_or(|severity| severity >= self.severity()),
        }
    }

    /// Returns what is wrong with it, if anything is.
    ///
    /// # Errors
    /// What is missing, or is none of what may stand there.
    pub fn check(&self) -> Result<(), String> {
        let is_server = |server: &str| {
            let parts = server.rsplit_once(':');
            match parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            {
                true => Ok(()),
                false => Err(format!("'{server}' is not HOST:PORT")),
            }
        };
        match self {
            Self::Mail(mail) => {
                is_server(&mail.server)?;
                for address in mail.to.iter().chain([&mail.from]) {
                    let plain = |byte: u8| byte.is_ascii_graphic() && !b"<>".contains(&byte);
                    if !address.contains('@') || !address.bytes().all(plain) {
                        return Err(format!("'{address}' is no address"));
                    }
                }
                match mail.to.is_empty() {
                    true => Err("no address to write to".to_owned()),
                    false => Ok(()),
                }
            }
            Self::Webhook(hook) => {
                let known = ["https://", "http://"].map(|scheme| hook.url.starts_with(scheme));
                match known.contains(&true) && !host(&hook.url).is_empty() {
                    true => Ok(()),
                    false => Err("the address of a web service begins with https://".to_owned()),
                }
            }
            Self::Syslog(syslog) => is_server(&syslog.server),
            Self::Snmp(snmp) => {
                is_server(&snmp.server)?;
                let community = &snmp.community;
                let is_plain = community.bytes().all(|byte| byte.is_ascii_graphic());
                match is_plain && community.len() <= COMMUNITY_BYTES_MAX {
                    true => Ok(()),
                    false => Err(format!("'{community}' is no name of a community")),
                }
            }
        }
    }
}

fn host(url: &str) -> &str {
    let behind = url.split_once("://").map_or(url, |(_, behind)| behind);
    let host = behind.split(['/', '?', '#']).next().unwrap_or_default();
    host.rsplit('@').next().unwrap_or_default()
}

/// Puts a channel into the text of a configuration.
///
/// # Errors
/// What is wrong with it, or that there is one of its name.
pub fn add(text: &str, channel: &Channel) -> Result<String, String> {
    channel.check()?;
    let name = channel.name();
    let known = Channel::all(&Config::parse(text)?.alerts);
    if known.iter().any(|known| known.name() == name) {
        return Err(format!("there is a channel '{name}'"));
    }
    let mut document: DocumentMut = text.parse().map_err(unparsed)?;
    let entry = match channel {
        Channel::Mail(mail) => table_of(mail),
        Channel::Webhook(hook) => table_of(hook),
        Channel::Syslog(syslog) => table_of(syslog),
        Channel::Snmp(snmp) => table_of(snmp),
    }?;
    let mut implicit = Table::new();
    implicit.set_implicit(true);
    let alerts = document.entry("alerts").or_insert(Item::Table(implicit));
    let alerts = alerts.as_table_mut().ok_or_else(|| inline("alerts"))?;
    let empty = Item::ArrayOfTables(ArrayOfTables::new());
    let list = alerts.entry(channel.kind()).or_insert(empty);
    let list = list.as_array_of_tables_mut();
    list.ok_or_else(|| inline(channel.kind()))?.push(entry);
    let changed = document.to_string();
    Config::parse(&changed)?;
    Ok(changed)
}

/// Takes the channel of a name out of the text of a configuration; returns it, too.
///
/// # Errors
/// There is none, or more than one of that name.
pub fn remove(text: &str, name: &str) -> Result<(String, Channel), String> {
    let known = Channel::all(&Config::parse(text)?.alerts);
    let mut named = known.iter().filter(|channel| channel.name() == name);
    let (channel, more) = (named.next(), named.next());
    let Some(channel) = channel else {
        return Err(format!("there is no channel '{name}'"));
    };
    if more.is_some() {
        return Err(format!(
            "more than one channel is called '{name}': remove it under [alerts] in sanbox.toml"
        ));
    }
    let same_kind = known.iter().filter(|other| other.kind() == channel.kind());
    let index = same_kind.take_while(|other| *other != channel).count();
    let mut document: DocumentMut = text.parse().map_err(unparsed)?;
    let list = document["alerts"][channel.kind()].as_array_of_tables_mut();
    let list = list.ok_or_else(|| inline(channel.kind()))?;
    list.remove(index);
    Ok((document.to_string(), channel.clone()))
}

fn unparsed(error: toml_edit::TomlError) -> String {
    error.to_string()
}

fn inline(what: &str) -> String {
    format!("'{what}' is written on one line in sanbox.toml: change it there")
}

/// A table without what has its default.
fn table_of(settings: &impl Serialize) -> Result<Table, String> {
    let document = toml_edit::ser::to_document(settings).map_err(|error| error.to_string())?;
    let mut table = document.as_table().clone();
    table.retain(|_, item| match item.as_value() {
        Some(Value::String(text)) => !text.value().is_empty(),
        _ => true,
    });
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# of the house\nmemory = '2G' # enough\n\n[[alerts.syslog]]\nserver = 'log:514'\n\n[nfs]\nport = 2049\n";

    fn hook(url: &str) -> Channel {
        Channel::Webhook(Webhook {
            url: url.to_owned(),
            form: WebhookForm::Slack,
            ..Webhook::default()
        })
    }

    #[test]
    fn channels_come_and_go_and_the_rest_of_the_file_stays() {
        let added = add(
            TEXT,
            &hook("https://u:p@hooks.example.org/services/TOKEN?key=K"),
        );
        let added = added.expect("added");
        assert!(added.starts_with("# of the house\nmemory = '2G' # enough\n"));
        assert!(added.contains("[nfs]\nport = 2049\n"), "{added}");
        let names: Vec<String> = Channel::all(&Config::parse(&added).expect("parses").alerts)
            .iter()
            .map(Channel::name)
            .collect();
        assert_eq!(names, ["slack hooks.example.org", "syslog log:514"]);
        let again = add(&added, &hook("https://hooks.example.org/other"));
        assert_eq!(
            again,
            Err("there is a channel 'slack hooks.example.org'".to_owned())
        );
        let (without, _) = remove(&added, "slack hooks.example.org").expect("removed");
        let settings = |text: &str| Config::parse(text).expect("parses");
        assert_eq!(settings(&without), settings(TEXT));
        assert!(without.starts_with("# of the house\nmemory = '2G' # enough\n"));
        let (without, _) = remove(&without, "syslog log:514").expect("removed");
        assert!(Channel::all(&settings(&without).alerts).is_empty());
        let none = remove(&without, "syslog log:514").map(|(text, _)| text);
        assert_eq!(none, Err("there is no channel 'syslog log:514'".to_owned()));
    }

    #[test]
    fn what_makes_no_channel_is_refused() {
        let mail = |server: &str, from: &str, to: &[&str]| {
            Channel::Mail(Mail {
                server: server.to_owned(),
                from: from.to_owned(),
                to: to.iter().map(|&to| to.to_owned()).collect(),
                ..Mail::default()
            })
        };
        assert!(add("", &mail("mail:587", "nas@example.org", &["a@example.org"])).is_ok());
        for wrong in [
            mail("mail", "nas@example.org", &["a@example.org"]),
            mail("mail:587", "nas", &["a@example.org"]),
            mail("mail:587", "nas@example.org", &[]),
            mail("mail:587", "nas@example.org", &["a@example.org>\r\nDATA"]),
            hook("ftp://x/"),
            hook("https:///path"),
            Channel::Syslog(Syslog::default()),
            Channel::Snmp(Snmp {
                server: "traps:162".to_owned(),
                community: "not public".to_owned(),
                ..Snmp::default()
            }),
        ] {
            assert!(add("", &wrong).is_err(), "{wrong:?}");
        }
        let quoted = "alerts = { webhook = [ { url = 'https://a/' } ] }\n";
        assert!(add(quoted, &hook("https://b/")).is_err());
        assert!(remove(quoted, "webhook a").is_err());
    }
}
