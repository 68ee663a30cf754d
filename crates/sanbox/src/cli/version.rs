//! `zpool version` and `zfs version`.

use serde_json::{Value, json};

use super::command::{Command, options};
use super::{Outcome, Session, json as forms};

/// The version of OpenZFS whose commands and formats we follow.
const OPENZFS: &str = "2.3.2";

options! {
    VersionOption {
        Json = both('j', "json", None, "print JSON"),
    }
}

/// The declaration of both.
pub(crate) const VERSION: Command = Command {
    name: "version",
    aliases: &["-V", "--version"],
    summary: "print the version",
    usage: "\tversion [-j]\n",
    flags: VersionOption::FLAGS,
    says_missing: false,
    text: &[
        "The first line is the version of sanbox and of OpenZFS's commands that it follows, the second that of the on-disk formats; there is no kernel module.",
    ],
    ..Command::NEW
};

/// `zfs version` and `zpool version`: sanbox's own version, in the two lines scripts expect. There
/// is no kernel module; the second line tells the format and commands followed.
async fn version(session: &Session, command: &str, arguments: &[String]) -> Outcome {
    let mut as_json = false;
    session.read_options(arguments, |_, VersionOption::Json| {
        as_json = true;
        Ok(())
    })?;
    let userland = format!("zfs-{OPENZFS}-sanbox-{}", env!("CARGO_PKG_VERSION"));
    let kernel = format!("zfs-kmod-{OPENZFS}-sanbox-{}", env!("CARGO_PKG_VERSION"));
    if as_json {
        let Value::Object(versions) = json!({ "userland": userland, "kernel": kernel }) else {
            return Ok(());
        };
        session
            .out
            .line(forms::envelope(command, "zfs_version", versions));
    } else {
        session.out.line(userland);
        session.out.line(kernel);
    }
    Ok(())
}

pub(crate) async fn zpool(session: &Session, arguments: &[String]) -> Outcome {
    version(session, "zpool version", arguments).await
}

pub(crate) async fn zfs(session: &Session, arguments: &[String]) -> Outcome {
    version(session, "zfs version", arguments).await
}
