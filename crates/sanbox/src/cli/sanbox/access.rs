//! `sanbox access`: whether a user may read, write, run or delete a file, and what decides, in words.

use std::path::Path;
use std::process::{Command, Stdio};

use engine::property::Value;
use engine::{
    AccessReason, AccessVerdict, Attr, Cred, EngineError, FileType, FsError, FsHandle, Holder,
    PoolHandle, PropertyQuery, Right,
};
use manage::api::{AccessAnswer, AccessReport};
use manage::samba::share::{self, ShareOptions};

use super::Arguments;
use super::remote_path::{RemotePath, located, walk_all};
use crate::appliance::Appliance;
use crate::cli::format::{Column, table};
use crate::cli::{Outcome, Session, dataset_clause};
use crate::paths;

/// What is asked about a path, in the order of the answer.
const QUESTIONS: [&str; 4] = ["read", "write", "execute", "delete"];

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let [user, path] = args.operands.as_slice() else {
        return Err(session.misuse("expected a user and a path"));
    };
    let remote = located(session, path)?;
    let report = report(&session.appliance, user, &remote).await;
    let report = report.map_err(|why| session.fail(why))?;
    if args.has_long("json") {
        let text = serde_json::to_string_pretty(&report);
        session
            .out
            .line(text.map_err(|error| session.fail(error.to_string()))?);
        return Ok(());
    }
    print(session, args, &report);
    Ok(())
}

/// Returns what a user may do with a file, and why.
///
/// # Errors
/// There is no such user or file, in words.
pub(crate) async fn report(
    appliance: &Appliance,
    user: &str,
    remote: &RemotePath,
) -> Result<AccessReport, String> {
    let cred = credential(user).await;
    let cred = cred.ok_or_else(|| format!("'{user}' is no user of this machine, nor a number"))?;
    let dataset = &remote.dataset;
    let failed =
        |error: EngineError| format!("cannot open '{dataset}': {}", dataset_clause(&error));
    let pool = appliance.pool_of(dataset).await.map_err(failed)?;
    let fs = pool.open_fs(dataset).await.map_err(failed)?;
    let flags = crate::appliance::mount_flags(&pool, dataset).await;
    let no_exec = flags.map_err(failed)?.no_exec;
    let answers = answers(&fs, remote, no_exec, &cred).await;
    let answers = answers.map_err(|error| format!("{remote}: {error}"))?;
    let notes = share_notes(&pool, dataset, user).await;
    Ok(AccessReport {
        user: user.to_owned(),
        uid: cred.uid,
        gids: [cred.gid].into_iter().chain(cred.groups.clone()).collect(),
        path: remote.to_string(),
        answers,
        shares: notes.map_err(failed)?,
    })
}

fn print(session: &Session, args: &Arguments, report: &AccessReport) {
    let rows: Vec<Vec<String>> = report
        .answers
        .iter()
        .map(|answer| {
            let allowed = match (answer.allowed, answer.in_mount) {
                (true, true) => "yes",
                (true, false) => "not in a mount",
                (false, _) => "no",
            };
            vec![
                answer.right.to_owned(),
                allowed.to_owned(),
                answer.because.clone(),
            ]
        })
        .collect();
    let columns = ["RIGHT", "MAY", "BECAUSE"].map(Column::left);
    session.out.text(table(&columns, &rows, args.has('H')));
    if !args.has('H') {
        for note in &report.shares {
            session.out.line(note);
        }
    }
}

/// The numbers of a user of this machine, wherever it has its users from; of a number that no user has, that number alone.
async fn credential(user: &str) -> Option<Cred> {
    let asked = user.to_owned();
    let ask = move || {
        let ids = |option: &str| -> Option<Vec<u32>> {
            let mut id = Command::new("id");
            let output = id
                .args([option, "--", &asked])
                .stdin(Stdio::null())
                .output();
            let text = String::from_utf8(output.ok()?.stdout).ok()?;
            text.split_whitespace().map(|id| id.parse().ok()).collect()
        };
        let (uid, groups) = (ids("-u")?, ids("-G")?);
        let (first, rest) = groups.split_first()?;
        Some(Cred {
            uid: *uid.first()?,
            gid: *first,
            groups: rest.to_vec(),
            opened: false,
            holder: 0,
        })
    };
    let found = paths::call(Path::new("id"), ask).await.ok().flatten();
    found.or_else(|| {
        let uid = user.parse().ok()?;
        Some(Cred {
            uid,
            gid: uid,
            groups: Vec::new(),
            opened: false,
            holder: 0,
        })
    })
}

async fn answers(
    fs: &FsHandle,
    remote: &RemotePath,
    no_exec: bool,
    cred: &Cred,
) -> Result<Vec<AccessAnswer>, FsError> {
    let way = walk_all(fs, &remote.path, &Cred::root()).await?;
    let (file, above) = way.split_last().ok_or(FsError::NotFound)?;
    let mut in_mount = true;
    for (name, dir) in above {
        let verdict = fs.explain(dir.id, Right::Execute, cred).await?;
        if !verdict.allowed {
            let because = format!("{name} may not be passed: {}", words(&verdict.reason));
            let refusal = |right| AccessAnswer {
                right,
                allowed: false,
                in_mount: false,
                because: because.clone(),
            };
            return Ok(QUESTIONS.map(refusal).into());
        }
        in_mount &= verdict.mode_allows;
    }
    let (_, attr) = file;
    let mut answers = Vec::new();
    for (name, right) in QUESTIONS
        .into_iter()
        .zip([Right::Read, Right::Write, Right::Execute])
    {
        let verdict = fs.explain(attr.id, right, cred).await?;
        answers.push(answer(name, attr, right, no_exec, &verdict));
    }
    answers.push(removal(fs, above, attr, cred).await?);
    for answer in &mut answers {
        answer.in_mount &= in_mount;
    }
    Ok(answers)
}

fn answer(
    right: &'static str,
    attr: &Attr,
    asked: Right,
    no_exec: bool,
    verdict: &AccessVerdict,
) -> AccessAnswer {
    let is_program = asked == Right::Execute && attr.file_type == FileType::Regular;
    if is_program && no_exec && verdict.allowed {
        return AccessAnswer {
            right,
            allowed: false,
            in_mount: false,
            because: "the dataset has exec=off: no mount runs its programs".to_owned(),
        };
    }
    AccessAnswer {
        right,
        allowed: verdict.allowed,
        in_mount: verdict.allowed && verdict.mode_allows,
        because: words(&verdict.reason),
    }
}

/// Whether the name of a file may be taken out of its directory.
async fn removal(
    fs: &FsHandle,
    above: &[(String, Attr)],
    file: &Attr,
    cred: &Cred,
) -> Result<AccessAnswer, FsError> {
    let Some((name, dir)) = above.last() else {
        return Ok(AccessAnswer {
            right: "delete",
            allowed: false,
            in_mount: false,
            because: "the root directory of a dataset is not deleted".to_owned(),
        });
    };
    let verdict = fs.explain_removal(dir.id, file.id, cred).await?;
    let words = words(&verdict.reason);
    let of_directory = matches!(
        verdict.reason,
        AccessReason::Mode { .. } | AccessReason::PosixEntry { .. }
    );
    let because = if of_directory {
        format!("of the directory {name}: {words}")
    } else {
        words
    };
    Ok(AccessAnswer {
        right: "delete",
        allowed: verdict.allowed,
        in_mount: verdict.allowed && verdict.mode_allows,
        because,
    })
}

fn bits_text(bits: u32) -> String {
    let letters = [(4, 'r'), (2, 'w'), (1, 'x')];
    let letter = |(bit, letter): (u32, char)| if bits & bit != 0 { letter } else { '-' };
    letters.map(letter).iter().collect()
}

fn holder_text(holder: &Holder) -> String {
    match holder {
        Holder::Owner(uid) => format!("the owner (uid {uid})"),
        Holder::OwningGroup(gid) => format!("the owning group (gid {gid})"),
        Holder::User(uid) => format!("user {uid}"),
        Holder::Group(gid) => format!("group {gid}"),
        Holder::Everyone => "everyone else".to_owned(),
    }
}

fn words(reason: &AccessReason) -> String {
    match reason {
        AccessReason::Root => "root may".to_owned(),
        AccessReason::NoProgram => "the mode has no execute bit, so not even root may".to_owned(),
        AccessReason::Mode { holder, bits } => {
            format!(
                "the mode gives {} {}",
                holder_text(holder),
                bits_text(*bits)
            )
        }
        AccessReason::PosixEntry { holder, bits, mask } => {
            let entry = format!(
                "the POSIX list gives {} {}",
                holder_text(holder),
                bits_text(*bits)
            );
            match mask {
                Some(mask) if mask & bits != *bits => {
                    format!(
                        "{entry}, which its mask limits to {}",
                        bits_text(mask & bits)
                    )
                }
                _ => entry,
            }
        }
        AccessReason::ListEntry {
            number,
            holder,
            allows,
            of_deletion,
        } => {
            let verb = if *allows { "allows" } else { "denies" };
            let holder = match holder {
                Holder::Everyone => "everyone".to_owned(),
                other => holder_text(other),
            };
            let right = if *of_deletion { "deletion" } else { "it" };
            format!("entry {number} of the NFSv4 list {verb} {holder} {right}")
        }
        AccessReason::NoListEntry => "no entry of the NFSv4 list allows it".to_owned(),
        AccessReason::ReadOnly => {
            "nothing may be changed: a snapshot, or readonly=on of the dataset or the pool"
                .to_owned()
        }
        AccessReason::Immutable => "the file is immutable (a flag of it)".to_owned(),
        AccessReason::Undeletable => {
            "the file or its directory has the flag immutable, appendonly or nounlink".to_owned()
        }
        AccessReason::Sticky => {
            "the directory is sticky (t), and neither it nor the file belongs to the user"
                .to_owned()
        }
    }
}

/// What the shares of a dataset refuse beyond what the file system does.
async fn share_notes(
    pool: &PoolHandle,
    dataset: &str,
    user: &str,
) -> Result<Vec<String>, EngineError> {
    let query = PropertyQuery::Named(vec!["sharesmb".to_owned(), "sharenfs".to_owned()]);
    let info = pool.dataset(dataset, &query).await?;
    let value = |name: &str| match info.property(name).map(|property| &property.value) {
        Some(Value::Text(text)) => text.clone(),
        _ => "off".to_owned(),
    };
    let mut notes = Vec::new();
    if let Ok(Some(options)) = share::parse(&value("sharesmb")) {
        notes.extend(smb_notes(&options, user));
    }
    let exports = value("sharenfs");
    let words: Vec<&str> = exports.split(',').collect();
    if words.contains(&"ro") {
        notes.push("By NFS nothing may be changed: sharenfs says ro.".to_owned());
    }
    if user == "root" && exports != "off" && !words.contains(&"no_root_squash") {
        notes.push("By NFS root is nobody: sharenfs does not say no_root_squash.".to_owned());
    }
    Ok(notes)
}

fn smb_notes(options: &ShareOptions, user: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if options.read_only {
        notes.push("By SMB nothing may be changed: sharesmb says ro.".to_owned());
    }
    let named = |word: &String| word == user || word.starts_with('@');
    if !options.users.is_empty() && !options.users.iter().any(named) {
        let users = options.users.join(", ");
        notes.push(format!("By SMB only {users} may connect."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reason: AccessReason, expected: &str) {
        assert_eq!(words(&reason), expected);
    }

    #[test]
    fn reasons_in_words() {
        let owner = Holder::Owner(5);
        check(
            AccessReason::Mode {
                holder: owner,
                bits: 6,
            },
            "the mode gives the owner (uid 5) rw-",
        );
        let entry = |bits, mask| AccessReason::PosixEntry {
            holder: Holder::Group(60),
            bits,
            mask: Some(mask),
        };
        check(
            entry(7, 4),
            "the POSIX list gives group 60 rwx, which its mask limits to r--",
        );
        check(entry(4, 6), "the POSIX list gives group 60 r--");
        check(
            AccessReason::ListEntry {
                number: 3,
                holder: Holder::Everyone,
                allows: false,
                of_deletion: false,
            },
            "entry 3 of the NFSv4 list denies everyone it",
        );
    }

    #[test]
    fn shares_refuse_besides() {
        let options = |text: &str| share::parse(text).expect("valid").expect("shared");
        assert!(smb_notes(&options("on"), "anna").is_empty());
        assert_eq!(smb_notes(&options("ro,users=ben"), "anna").len(), 2);
        assert!(smb_notes(&options("users=@staff:ben"), "anna").is_empty());
    }
}
