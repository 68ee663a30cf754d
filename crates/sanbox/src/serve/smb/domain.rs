//! How this machine becomes a member of a domain of Active Directory, and ceases to be one: by `net(8)`, which gets the password of a user who may
//! do that by a pipe: it is neither in the words of a command nor in a file.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use manage::config::Smb as Settings;
use manage::samba::configuration;
use manage::samba::domain::Domain;

use super::replace;
use crate::paths;

/// The realm that this machine has joined, in the service's directory.
const JOINED: &str = "joined";
/// The configuration with which it joins or leaves, in the same directory.
const CONFIGURATION: &str = "join.conf";
/// How long a domain controller may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Who may join machines to the domain.
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// Returns the domain of the settings; `None` where they name none.
pub(crate) fn domain_of(settings: &Settings) -> Option<Domain> {
    // What has no meaning was refused as the settings were read.
    Domain::new(&settings.realm, &settings.domain_ids)
        .ok()
        .flatten()
}

/// Whether this machine has joined the domain.
pub(super) async fn has_joined(directory: &Path, domain: &Domain) -> bool {
    let path = directory.join(JOINED);
    let at = path.clone();
    let read = paths::call(&path, move || std::fs::read_to_string(at)).await;
    read.is_ok_and(|read| read.is_ok_and(|text| text.trim() == domain.realm()))
}

/// Makes this machine a member of the domain.
///
/// # Errors
/// What net(8) said, in words.
pub(crate) async fn join(
    directory: &Path,
    settings: &Settings,
    domain: &Domain,
    who: &Credentials,
) -> Result<(), String> {
    net(directory, settings, domain, who, "join").await?;
    replace(&directory.join(JOINED), format!("{}\n", domain.realm())).await
}

/// Has this machine be a member no more. Without credentials its account stays in the domain.
///
/// # Errors
/// It is no member, or what net(8) said, in words.
pub(crate) async fn leave(
    directory: &Path,
    settings: &Settings,
    domain: &Domain,
    who: Option<&Credentials>,
) -> Result<(), String> {
    if !has_joined(directory, domain).await {
        return Err(format!("this machine is no member of {}", domain.realm()));
    }
    if let Some(who) = who {
        net(directory, settings, domain, who, "leave").await?;
    }
    let path = directory.join(JOINED);
    let at = path.clone();
    let removed = paths::call(&path, move || std::fs::remove_file(at)).await?;
    removed.map_err(|error| format!("{}: {error}", path.display()))
}

async fn net(
    directory: &Path,
    settings: &Settings,
    domain: &Domain,
    who: &Credentials,
    what: &'static str,
) -> Result<(), String> {
    let made = directory.to_owned();
    let make = move || -> std::io::Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        configuration::directories().try_for_each(|name| builder.create(made.join(name)))
    };
    paths::call(directory, make)
        .await?
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let text = directory.join(CONFIGURATION);
    let joining = configuration::joining(domain, &settings.workgroup, directory);
    replace(&text, joining).await?;
    let (user, password) = (who.user.clone(), who.password.clone());
    let run = move || call_net(what, &text, &user, &password);
    paths::call_within(ANSWER_TIMEOUT, directory, run).await?
}

fn call_net(what: &str, configuration: &Path, user: &str, password: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| {
        format!("net(8): {error} (Debian: apt install samba winbind libnss-winbind)")
    };
    let mut net = Command::new("net")
        .args(["ads", what, "--no-dns-updates", "-U", user, "-s"])
        .arg(configuration)
        // Where Samba's programs read the password. smbclient(1), PASSWD_FD
        .env("PASSWD_FD", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = net.stdin.take() {
        // A program that ends before it read it says why by itself.
        let _ = writeln!(input, "{password}");
    }
    let output = net.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().map(str::trim);
    // It looks for a password a second time, and has it already.
    let is_told = |line: &&str| !line.is_empty() && !line.starts_with("Error reading password");
    let told: Vec<&str> = lines.filter(is_told).collect();
    let from = told.len().saturating_sub(2);
    Err(told[from..].join("; "))
}
