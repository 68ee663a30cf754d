//! `sanbox acl`: modes, owners and access control lists of files, without a mount.

use engine::{Attr, Cred, FileType, FsError, FsHandle, SetAttr, XattrMode};
use manage::file_acl::{
    self, AclKind, FileAccess, POSIX_ATTRIBUTE, POSIX_DEFAULT_ATTRIBUTE, StoredAcl,
};

use super::Arguments;
use super::remote_path::{RemotePath, located, walk};
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        ["show", path] => show(session, args, path).await,
        ["set", path, text] => {
            let acl = file_acl::parse(text).map_err(|error| session.misuse(error.to_string()))?;
            change(session, args, path, &Wanted::List(acl)).await
        }
        ["clear", path] => change(session, args, path, &Wanted::NoList).await,
        ["mode", path, mode] => {
            let wanted = mode_of(mode).map(Wanted::Mode);
            let wanted =
                wanted.ok_or_else(|| session.misuse(format!("'{mode}' is no mode such as 750")))?;
            change(session, args, path, &wanted).await
        }
        ["owner", path, owner] => {
            let wanted = owners_of(owner).map(|(uid, gid)| Wanted::Owners(uid, gid));
            let wanted = wanted.ok_or_else(|| {
                session.misuse(format!(
                    "'{owner}' is neither UID, UID:GID nor :GID, in numbers"
                ))
            })?;
            change(session, args, path, &wanted).await
        }
        _ => Err(session
            .misuse("show PATH, set PATH LIST, clear PATH, mode PATH MODE or owner PATH UID:GID")),
    }
}

/// What a file is to have.
enum Wanted {
    List(StoredAcl),
    NoList,
    Mode(u32),
    Owners(Option<u32>, Option<u32>),
}

fn mode_of(text: &str) -> Option<u32> {
    let mode = u32::from_str_radix(text, 8).ok()?;
    (mode <= 0o7777).then_some(mode)
}

fn owners_of(text: &str) -> Option<(Option<u32>, Option<u32>)> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str| match text {
        "" => Some(None),
        // The number that stands for no user.
        text => text.parse().ok().filter(|id| *id != u32::MAX).map(Some),
    };
    let owners = (number(uid)?, number(gid)?);
    (owners != (None, None)).then_some(owners)
}

async fn found(session: &Session, path: &str) -> Result<(RemotePath, FsHandle, Attr), Exit> {
    let remote = located(session, path)?;
    let fs = remote.open(session).await?;
    let attr = walk(&fs, &remote.path, &Cred::root()).await;
    let attr = attr.map_err(|error| session.fail(format!("{remote}: {error}")))?;
    Ok((remote, fs, attr))
}

fn print(session: &Session, args: &Arguments, access: &FileAccess) {
    if args.has_long("json") {
        let text = serde_json::to_string_pretty(access).unwrap_or_default();
        session.out.line(text);
        return;
    }
    let FileAccess { mode, uid, gid, .. } = access;
    session.out.line(format!("mode\t{mode:04o}"));
    session.out.line(format!("owner\t{uid}:{gid}"));
    for entry in &access.entries {
        session.out.line(entry);
    }
}

async fn show(session: &Session, args: &Arguments, path: &str) -> Outcome {
    let (remote, fs, attr) = found(session, path).await?;
    let access = file_acl::of_file(&fs, &attr).await;
    let access = access.map_err(|error| session.fail(format!("{remote}: {error}")))?;
    print(session, args, &access);
    Ok(())
}

async fn change(session: &Session, args: &Arguments, path: &str, wanted: &Wanted) -> Outcome {
    let (remote, fs, attr) = found(session, path).await?;
    let fail = |error: FsError| {
        let why = match (error, wanted) {
            (FsError::NotSupported, Wanted::List(acl)) => format!(
                "the dataset's acltype takes no {} lists",
                match acl.kind {
                    AclKind::Nfs4 => "NFSv4",
                    AclKind::Posix => "POSIX",
                }
            ),
            (FsError::Invalid | FsError::Access, Wanted::List(_)) => {
                "the list breaks a rule of its kind: of POSIX, u::, g:: and o:: are there once each; entries for new files are \
                 of directories"
                    .to_owned()
            }
            (error, _) => error.to_string(),
        };
        session.fail(format!("{remote}: {why}"))
    };
    if args.has('n') {
        let now = file_acl::of_file(&fs, &attr).await.map_err(fail)?;
        session.out.line("now:");
        print(session, args, &now);
        session.out.line("nothing was changed");
        return Ok(());
    }
    give(&fs, &attr, wanted).await.map_err(fail)
}

async fn give(fs: &FsHandle, attr: &Attr, wanted: &Wanted) -> Result<(), FsError> {
    let root = Cred::root();
    let mut set = SetAttr::default();
    match wanted {
        Wanted::List(acl) => {
            let name = match acl.kind {
                AclKind::Nfs4 => file_acl::NFS4_ATTRIBUTE,
                AclKind::Posix => POSIX_ATTRIBUTE,
            };
            let any = XattrMode::Any;
            fs.set_xattr(attr.id, name, &acl.list, any, &root).await?;
            if acl.kind == AclKind::Nfs4 {
                return Ok(());
            }
            return match acl.default.is_empty() {
                true => without(fs, attr, POSIX_DEFAULT_ATTRIBUTE).await,
                false => {
                    let name = POSIX_DEFAULT_ATTRIBUTE;
                    fs.set_xattr(attr.id, name, &acl.default, any, &root)
                        .await?;
                    Ok(())
                }
            };
        }
        Wanted::NoList => {
            return match file_acl::of_file(fs, attr).await?.acltype {
                "nfsv4" => without(fs, attr, file_acl::NFS4_ATTRIBUTE).await,
                "posix" => {
                    without(fs, attr, POSIX_DEFAULT_ATTRIBUTE).await?;
                    without(fs, attr, POSIX_ATTRIBUTE).await
                }
                _ => Ok(()),
            };
        }
        Wanted::Mode(mode) => set.mode = Some(*mode),
        Wanted::Owners(uid, gid) => (set.uid, set.gid) = (*uid, *gid),
    }
    fs.setattr(attr.id, &set, None, &root).await?;
    Ok(())
}

/// Takes a list away, where there is one.
async fn without(fs: &FsHandle, attr: &Attr, name: &[u8]) -> Result<(), FsError> {
    let has_default = attr.file_type == FileType::Directory;
    if name == POSIX_DEFAULT_ATTRIBUTE && !has_default {
        return Ok(());
    }
    match fs.remove_xattr(attr.id, name, &Cred::root()).await {
        Ok(_) | Err(FsError::NoAttribute) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_owners_are_numbers() {
        assert_eq!(
            (mode_of("0750"), mode_of("7777")),
            (Some(0o750), Some(0o7777))
        );
        assert_eq!(
            (mode_of("10000"), mode_of("9"), mode_of("")),
            (None, None, None)
        );
        assert_eq!(owners_of("5"), Some((Some(5), None)));
        assert_eq!(owners_of("5:6"), Some((Some(5), Some(6))));
        assert_eq!(owners_of(":6"), Some((None, Some(6))));
        for text in ["", ":", "ann", "4294967295", "1:2:3"] {
            assert_eq!(owners_of(text), None, "{text}");
        }
    }
}
