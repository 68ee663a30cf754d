//! What `smbstatus --json` tells: who is connected, and which files are open.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SmbSession {
    /// Who logged in.
    pub user: String,
    /// Address of the client.
    pub client: String,
    /// Version of the protocol, such as `SMB3_11`.
    pub dialect: String,
    /// Cipher, or `-`.
    pub encryption: String,
    /// Algorithm of signatures, or `-`.
    pub signing: String,
    /// Shares in use.
    pub shares: Vec<String>,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SmbOpenFile {
    /// Dataset.
    pub dataset: String,
    /// Path in the dataset.
    pub path: String,
    /// The machine's number of the user.
    pub uid: u32,
    /// What the client may do with it: `R`, `W`, `RW`, ...
    pub access: String,
    /// What others may do meanwhile.
    pub shared: String,
    /// When it was opened, as RFC 3339 has it.
    pub opened_at: String,
}

/// What SMB clients do now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct SmbStatus {
    /// Whether Samba runs.
    pub running: bool,
    /// Samba's version, as far as it is known.
    pub version: String,
    /// Why it does not run or what is not shared.
    pub problems: Vec<String>,
    /// How machines nearby find the shares by multicast DNS, in a sentence.
    pub mdns: String,
    /// The domain of Active Directory whose users log in, where the settings name one.
    pub domain: Option<SmbDomain>,
    /// The shares there are, with their datasets.
    pub shares: Vec<SmbShareView>,
    /// Clients.
    pub sessions: Vec<SmbSession>,
    /// Open files.
    pub open_files: Vec<SmbOpenFile>,
}

/// A domain of Active Directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct SmbDomain {
    /// Its realm.
    pub realm: String,
    /// Whether this machine has joined it.
    pub joined: bool,
    /// Why its users cannot log in now.
    pub problem: Option<String>,
}

/// A share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct SmbShareView {
    /// The name clients see.
    pub name: String,
    /// The dataset.
    pub dataset: String,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether guests get in.
    pub guest: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    sessions: BTreeMap<String, ToldSession>,
    tcons: BTreeMap<String, ToldConnection>,
    open_files: BTreeMap<String, ToldFile>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldSession {
    session_id: String,
    username: String,
    remote_machine: String,
    session_dialect: String,
    encryption: ToldCipher,
    signing: ToldCipher,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldCipher {
    cipher: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldConnection {
    service: String,
    session_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldFile {
    service_path: String,
    filename: String,
    opens: BTreeMap<String, ToldOpen>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldOpen {
    uid: u32,
    sharemode: ToldMask,
    access_mask: ToldMask,
    opened_at: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldMask {
    text: String,
}

/// Reads what `smbstatus --json` printed. `dataset_at` names the dataset that is shared from a directory.
///
/// # Errors
/// It is not what Samba prints.
pub fn parse(
    json: &str,
    dataset_at: impl Fn(&str) -> Option<String>,
) -> Result<(Vec<SmbSession>, Vec<SmbOpenFile>), serde_json::Error> {
    let told: Told = serde_json::from_str(json)?;
    let sessions = told.sessions.into_values().map(|session| {
        let in_use = told.tcons.values();
        let mut shares: Vec<String> = in_use
            .filter(|connection| connection.session_id == session.session_id)
            .map(|connection| connection.service.clone())
            .collect();
        shares.sort();
        shares.dedup();
        SmbSession {
            user: session.username,
            client: session.remote_machine,
            dialect: session.session_dialect,
            encryption: session.encryption.cipher,
            signing: session.signing.cipher,
            shares,
        }
    });
    let sessions = sessions.collect();
    let mut open_files = Vec::new();
    for file in told.open_files.into_values() {
        let dataset = dataset_at(&file.service_path).unwrap_or(file.service_path);
        open_files.extend(file.opens.into_values().map(|open| SmbOpenFile {
            dataset: dataset.clone(),
            path: format!("/{}", file.filename.trim_start_matches("./")),
            uid: open.uid,
            access: open.access_mask.text,
            shared: open.sharemode.text,
            opened_at: open.opened_at,
        }));
    }
    Ok((sessions, open_files))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by smbstatus 4.17.12 while smbclient had a file open.
    const PRINTED: &str = include_str!("testdata/smbstatus.json");

    #[test]
    fn what_samba_prints() {
        let dataset = |path: &str| (path == "/run/sanbox/1").then(|| "tank/posix".to_owned());
        let (sessions, open_files) = parse(PRINTED, dataset).expect("JSON");
        let session = SmbSession {
            user: "anna".to_owned(),
            client: "127.0.0.1".to_owned(),
            dialect: "SMB3_11".to_owned(),
            encryption: "-".to_owned(),
            signing: "AES-128-GMAC".to_owned(),
            shares: vec!["p".to_owned()],
        };
        assert_eq!(sessions, [session]);
        let file = SmbOpenFile {
            dataset: "tank/posix".to_owned(),
            path: "/x".to_owned(),
            uid: 1001,
            access: "RW".to_owned(),
            shared: "RW".to_owned(),
            opened_at: "2026-11-25T02:18:14.737510+00:00".to_owned(),
        };
        assert_eq!(open_files, [file]);
        assert!(parse("{}", |_| None).is_ok());
        assert!(parse("smbstatus: no", |_| None).is_err());
    }
}
