//! `sanbox.toml`: the settings of one appliance. Every key has a default and a flag of the same
//! name; keys that are not known are refused, so that a mistyped one does not go unnoticed. What
//! belongs to the data (shares, mount points, quotas) lives in the pools as properties, not here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::alerts::Severity;
use crate::alerts::forms::WebhookForm;
pub use crate::config_acme::{Acme, AcmeChallenge, is_address};
pub use crate::config_login::{GroupRoles, Ldap, Login, Oidc};
pub use crate::config_otel::Otel;
use crate::samba::domain::Domain;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a configuration.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// A size is not one.
    #[error("'{0}' is not a size (such as 2G)")]
    Size(String),
}

/// The settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Addresses to listen at. Empty: loopback, or everywhere as soon as a share allows others.
    pub listen: Vec<IpAddr>,
    /// Memory that the process stays below, for instance `2G`. Empty: half of the machine's, or of its container's.
    pub memory: String,
    /// NFS.
    pub nfs: Nfs,
    /// Volumes by NBD.
    pub nbd: Nbd,
    /// Volumes by iSCSI.
    pub iscsi: Iscsi,
    /// File systems by SMB.
    pub smb: Smb,
    /// Mounting on this machine.
    pub mount: Mount,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// The REST API and the console in the browser.
    pub console: Console,
    /// Limits by the names of `sanbox tune`, such as `l2arc_write_max = '64M'`.
    pub tuning: BTreeMap<String, String>,
    /// Commands.
    pub control: Control,
    /// The daemon's log.
    pub log: Log,
    /// Who is told of alerts.
    pub alerts: Alerts,
    /// Snapshot policies.
    pub policies: Policies,
    /// Replication by other appliances.
    pub replication: Replication,
    /// Log-in by a directory or a provider.
    pub login: Login,
    /// A certificate of the console from an authority.
    pub acme: Acme,
    /// Metrics and traces to an OpenTelemetry collector.
    pub otel: Otel,
}

/// Settings of the server that other appliances replicate by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Replication {
    /// TCP port, open while there is a peer that was invited, or an invitation; 0 is none.
    pub port: u16,
    /// Addresses to listen at, from the start on. Empty: those of `listen` or all, as soon as a peer is invited.
    pub listen: Vec<IpAddr>,
    /// Connections at once; more are turned away.
    pub connections_max: usize,
}

impl Default for Replication {
    fn default() -> Self {
        Self {
            port: 8444,
            listen: Vec::new(),
            connections_max: 128,
        }
    }
}

/// Settings of snapshot policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policies {
    /// Programs around a snapshot, by the name that policies call them: `[policies.hook.NAME]`.
    pub hook: BTreeMap<String, Hook>,
}

/// Programs that run before and after a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hook {
    /// Program, by its whole path, and its arguments. Empty: none.
    pub before: Vec<String>,
    /// As `before`.
    pub after: Vec<String>,
    /// Seconds that either of them may take, 1 to [`Hook::SECONDS_MAX`].
    pub timeout_seconds: u64,
}

impl Hook {
    /// The longest that a hook may take: databases and virtual machines are not held longer.
    pub const SECONDS_MAX: u64 = 20;
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            before: Vec::new(),
            after: Vec::new(),
            timeout_seconds: 10,
        }
    }
}

/// Who is told of alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alerts {
    /// By mail: `[[alerts.mail]]`.
    pub mail: Vec<Mail>,
    /// By web services: `[[alerts.webhook]]`.
    pub webhook: Vec<Webhook>,
    /// By syslog: `[[alerts.syslog]]`.
    pub syslog: Vec<Syslog>,
    /// By SNMP: `[[alerts.snmp]]`.
    pub snmp: Vec<Snmp>,
    /// The report: `[alerts.report]`.
    pub report: ReportSettings,
}

/// How often a report is sent, and of how much time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// Never.
    #[default]
    Off,
    /// Each morning.
    Daily,
    /// On Monday mornings.
    Weekly,
    /// On the first morning of a month.
    Monthly,
}

impl Every {
    /// Returns the length of time that a report is of, in seconds.
    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Self::Daily => 86_400,
            Self::Off | Self::Weekly => 7 * 86_400,
            Self::Monthly => 30 * 86_400,
        }
    }

    /// Returns the one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Off, Self::Daily, Self::Weekly, Self::Monthly];
        all.into_iter().find(|every| every.as_str() == name)
    }

    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
        }
    }
}

/// The report that is sent by mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReportSettings {
    /// `off`, `daily`, `weekly` or `monthly` (`off`).
    pub every: Every,
    /// Who gets it in place of those whom the mail channels write to; the first of these is the server.
    pub to: Vec<String>,
}

/// How a mail server is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MailTls {
    /// Encryption begins after the greeting (port 587).
    #[default]
    Starttls,
    /// Encryption from the first byte (port 465).
    Tls,
    /// None: for a server on this machine.
    None,
}

/// Alerts by mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mail {
    /// Server, as `HOST:PORT`.
    pub server: String,
    /// `starttls`, `tls` or `none`.
    pub tls: MailTls,
    /// Name to log in by, with a password file.
    pub user: String,
    /// A file whose first line is the password; without it there is no log-in.
    pub password_file: Option<PathBuf>,
    /// Address of the sender.
    pub from: String,
    /// Addresses that are written to.
    pub to: Vec<String>,
    /// Only alerts that are `info`, `warning` or `critical`, or worse (`info`).
    pub severity: String,
    /// Certificates to trust in place of the machine's.
    pub ca_file: Option<PathBuf>,
}

/// Alerts by web services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// Where to, `https://` or `http://`.
    pub url: String,
    /// `json`, `slack`, `teams` or `ntfy`.
    pub form: WebhookForm,
    /// A file whose first line is sent as `Authorization: Bearer`.
    pub token_file: Option<PathBuf>,
    /// As of mail.
    pub severity: String,
    /// As of mail.
    pub ca_file: Option<PathBuf>,
}

/// Alerts by syslog (RFC 5424 over UDP).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Syslog {
    /// Server, as `HOST:PORT`.
    pub server: String,
    /// As of mail.
    pub severity: String,
}

/// Alerts by traps of SNMP (version 2c over UDP).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Snmp {
    /// Receiver, as `HOST:PORT`.
    pub server: String,
    /// The community that it asks for (`public`). It is sent in the clear.
    pub community: String,
    /// As of mail.
    pub severity: String,
}

/// Settings of the daemon's log, which goes to standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Which events are written: `LEVEL,MODULE=LEVEL,...`, as `sanbox log` takes it. Empty: `info`.
    pub level: String,
    /// How they are written.
    pub format: LogFormat,
}

/// How an event of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Time, level, module and message in a line.
    #[default]
    Text,
    /// The same as an object of JSON in a line.
    Json,
}

impl LogFormat {
    /// Reads `text` or `json`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Settings of the metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// TCP port on this machine's loopback address; 0 is none.
    pub port: u16,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { port: 9134 }
    }
}

/// Settings of the REST API and of the console in the browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Console {
    /// TCP port of HTTPS, at the addresses of `listen` or at loopback; 0 is none.
    pub port: u16,
    /// Connections at once; one more takes the place of one without a request, or is turned away.
    pub connections_max: usize,
    /// Directories whose files of 64 MiB or more are offered as disks.
    pub devices: Vec<PathBuf>,
}

impl Default for Console {
    fn default() -> Self {
        Self {
            port: 8443,
            connections_max: 512,
            devices: Vec::new(),
        }
    }
}

/// Settings of the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// All users of this machine may list datasets and pools, and change what was delegated to them by `zfs allow`. Otherwise
    /// only root and the daemon's own user reach the socket.
    pub users: bool,
    /// With `users`: a user of this machine with the name of a user of the appliance may give all commands that the role of the
    /// latter allows. For machines whose users are the appliance's.
    pub roles: bool,
}

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NfsVersion {
    /// NFSv3.
    #[serde(rename = "3")]
    V3,
    /// NFSv4.0.
    #[serde(rename = "4.0")]
    V40,
    /// NFSv4.1.
    #[serde(rename = "4.1")]
    V41,
    /// NFSv4.2.
    #[serde(rename = "4.2")]
    V42,
}

impl NfsVersion {
    /// All that are served by default.
    pub const ALL: [Self; 4] = [Self::V3, Self::V40, Self::V41, Self::V42];
}

/// Settings of the NFS server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nfs {
    /// Serve NFS at all.
    pub enabled: bool,
    /// TCP port of NFS and MOUNT.
    pub port: u16,
    /// Versions of NFS that are served, of `3`, `4.0`, `4.1` and `4.2`.
    pub versions: Vec<NfsVersion>,
    /// Seconds that an NFSv4 client which says nothing keeps what it has open and locked when others
    /// are in its way.
    pub lease_seconds: u32,
    /// Clients of NFSv4.1 and later are given delegations: they open and read files without asking, until those are changed, and write
    /// files that no other has open in their own caches, until others want them.
    pub delegations: bool,
    /// Offer TLS to clients that ask for it (RFC 9289), with the certificate of the console. Shares ask for it by `xprtsec`.
    pub tls: bool,
    /// PEM file of the authorities whose certificates clients may have, for shares with `xprtsec=mtls`.
    pub tls_clients: Option<PathBuf>,
    /// Keytab with the key of `nfs/HOST@REALM`, such as `/etc/krb5.keytab`, for shares with `sec=krb5`, `krb5i` or `krb5p`; without it clients
    /// cannot use Kerberos.
    pub kerberos_keytab: Option<PathBuf>,
    /// Answer port queries at port 111 where nothing else does, and register with a running
    /// rpcbind.
    pub portmap: bool,
    /// Connections at once. For one more, the one that has been silent longest is closed.
    pub connections_max: usize,
    /// Seconds after which an idle connection is closed. Clients reconnect by themselves.
    pub idle_seconds: u64,
}

impl Default for Nfs {
    fn default() -> Self {
        Self {
            enabled: true,
            port: 2049,
            versions: NfsVersion::ALL.to_vec(),
            lease_seconds: 90,
            delegations: true,
            tls: true,
            tls_clients: None,
            kerberos_keytab: None,
            portmap: true,
            connections_max: 4096,
            idle_seconds: 3600,
        }
    }
}

/// Settings of the NBD server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nbd {
    /// Serve NBD at all: at the socket `nbd.sock` of the state directory, for its owner.
    pub enabled: bool,
    /// TCP port for volumes whose property `org.sanbox:nbd` says so; 0 is none.
    pub port: u16,
    /// Connections at once; more are turned away.
    pub connections_max: usize,
}

impl Default for Nbd {
    fn default() -> Self {
        Self {
            enabled: true,
            port: 10809,
            connections_max: 1024,
        }
    }
}

/// Settings of the iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Iscsi {
    /// Serve iSCSI at all.
    pub enabled: bool,
    /// TCP port.
    pub port: u16,
    /// Connections at once; more are turned away.
    pub connections_max: usize,
    /// Sessions at once; more are refused at login.
    pub sessions_max: usize,
}

impl Default for Iscsi {
    fn default() -> Self {
        Self {
            enabled: true,
            port: 3260,
            connections_max: 4096,
            sessions_max: 2048,
        }
    }
}

/// Settings of SMB, which Samba serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Smb {
    /// TCP port; 0 is no SMB. Clients of Windows and macOS find no other port than 445.
    pub port: u16,
    /// The workgroup that Windows shows.
    pub workgroup: String,
    /// Clients have to sign what they send.
    pub signing_required: bool,
    /// Whether clients encrypt what they send; a share can ask for more.
    pub encryption: SmbEncryption,
    /// Clients at once; more are turned away.
    pub clients_max: usize,
    /// Where avahi looks for what it tells machines nearby of (`avahi.service(5)`): shares that other hosts reach are announced there, to
    /// Time Machine, too. Empty: they are not announced.
    pub avahi_services: PathBuf,
    /// The realm of a domain of Active Directory, whose users log in once the machine has joined it (`sanbox smb join`); `workgroup` is its
    /// short name. Empty: no domain.
    pub realm: String,
    /// Numbers that users and groups of the domain have here: the same of all appliances that are to give a user one number.
    pub domain_ids: String,
}

/// Whether clients of SMB encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmbEncryption {
    /// Those that want to.
    #[default]
    Enabled,
    /// All: SMB 3 and newer.
    Required,
    /// None.
    Off,
}

impl Default for Smb {
    fn default() -> Self {
        Self {
            port: 445,
            workgroup: "WORKGROUP".to_owned(),
            signing_required: false,
            encryption: SmbEncryption::Enabled,
            clients_max: 1000,
            avahi_services: PathBuf::from("/etc/avahi/services"),
            realm: String::new(),
            domain_ids: "1000000-1999999".to_owned(),
        }
    }
}

/// Settings of mounting by FUSE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mount {
    /// Mount file systems at their mount points on import and creation, as OpenZFS does.
    pub automatic: bool,
    /// Threads that serve each mount.
    pub threads: usize,
    /// Directories made, removed and renamed in `.zfs/snapshot`, in mounts and over NFS, are snapshots made, destroyed and
    /// renamed, for who may do that (OpenZFS calls this `zfs_admin_snapshot`).
    pub admin_snapshots: bool,
}

impl Default for Mount {
    fn default() -> Self {
        Self {
            automatic: false,
            threads: 4,
            admin_snapshots: false,
        }
    }
}

impl Config {
    /// Reads a file; a missing one is all defaults.
    ///
    /// # Errors
    /// It cannot be read, or has unknown keys or values.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|message| ConfigError::Invalid {
                path: path.to_owned(),
                message,
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Io {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Where and why it is not a configuration.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        config.memory_bytes().map_err(|error| error.to_string())?;
        let word = |name: &str| {
            let fits =
                |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
            !name.is_empty() && name.len() <= 15 && name.chars().all(fits)
        };
        if !word(&config.smb.workgroup) {
            return Err(format!(
                "[smb] workgroup: '{}' is no name of 1 to 15 letters and digits",
                config.smb.workgroup
            ));
        }
        Domain::new(&config.smb.realm, &config.smb.domain_ids)?;
        let Alerts {
            mail,
            webhook,
            syslog,
            snmp,
            report: _,
        } = &config.alerts;
        let severities = mail.iter().map(|mail| &mail.severity);
        let severities = severities.chain(webhook.iter().map(|hook| &hook.severity));
        let severities = severities.chain(syslog.iter().map(|syslog| &syslog.severity));
        for severity in severities.chain(snmp.iter().map(|snmp| &snmp.severity)) {
            if !severity.is_empty() && Severity::from_name(severity).is_none() {
                return Err(format!(
                    "'{severity}' is none of info, warning and critical"
                ));
            }
        }
        config.login.check()?;
        config.acme.check()?;
        config.otel.check()?;
        for (name, hook) in &config.policies.hook {
            check_hook(name, hook).map_err(|why| format!("[policies.hook.{name}] {why}"))?;
        }
        Ok(config)
    }

    /// Returns the memory that the process stays below in bytes, if it was set.
    ///
    /// # Errors
    /// The setting is not a size.
    pub fn memory_bytes(&self) -> Result<Option<u64>, ConfigError> {
        if self.memory.is_empty() {
            return Ok(None);
        }
        match engine::property::parse_number(&self.memory) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(ConfigError::Size(self.memory.clone())),
        }
    }
}

/// Returns what is wrong with a hook.
fn check_hook(name: &str, hook: &Hook) -> Result<(), String> {
    if !is_hook_name(name) {
        return Err("a name has 1 to 32 letters, digits, '-' and '_'".to_owned());
    }
    if hook.before.is_empty() && hook.after.is_empty() {
        return Err("neither before nor after is given".to_owned());
    }
    let programs = [hook.before.first(), hook.after.first()];
    for program in programs.into_iter().flatten() {
        if !program.starts_with('/') {
            return Err(format!("'{program}' is no whole path"));
        }
    }
    if !(1..=Hook::SECONDS_MAX).contains(&hook.timeout_seconds) {
        return Err(format!("timeout_seconds: 1 to {}", Hook::SECONDS_MAX));
    }
    Ok(())
}

/// Whether a hook may be called so.
pub(crate) fn is_hook_name(name: &str) -> bool {
    let fits = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    (1..=32).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_settings() {
        assert_eq!(Config::parse("").expect("parses"), Config::default());
        let text = "listen = ['0.0.0.0']\nmemory = '2G'\n[nfs]\nport = 12049\n";
        let config = Config::parse(text).expect("parses");
        assert_eq!(config.nfs.port, 12049);
        assert_eq!(config.memory_bytes().expect("a size"), Some(2 << 30));
        assert!(config.nfs.enabled);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, needle) in [
            ("lisen = []", "lisen"),
            ("[nfs]\nports = 1", "ports"),
            ("[nfs]\nport = 99999", "99999"),
            ("listen = ['nowhere']", "listen"),
            ("memory = 'lots'", "lots"),
            ("[smb]\nworkgroup = 'a b'", "workgroup"),
            ("[smb]\nencryption = 'perhaps'", "perhaps"),
            ("[smb]\nrealm = 'AD'", "no name of a domain"),
            ("[smb]\nrealm = 'AD.ORG'\ndomain_ids = '1-9'", "domain_ids"),
            ("[[alerts.mail]]\nseverity = 'loud'", "loud"),
            ("[[alerts.webhook]]\nform = 'smoke'", "smoke"),
            (
                "[policies.hook.'a b']\nbefore = ['/bin/true']",
                "a name has",
            ),
            ("[policies.hook.db]", "neither before nor after"),
            (
                "[policies.hook.db]\nafter = ['thaw']",
                "'thaw' is no whole path",
            ),
            (
                "[policies.hook.db]\nafter = ['/t']\ntimeout_seconds = 21",
                "1 to 20",
            ),
        ] {
            let message = Config::parse(text).expect_err(text);
            assert!(message.contains(needle), "{text}: {message}");
        }
    }
}
