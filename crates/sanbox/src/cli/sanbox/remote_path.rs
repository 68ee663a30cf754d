//! Remote paths: files in datasets, written `DATASET[@SNAP]:/PATH`, and how to reach them.

use std::path::{Path, PathBuf};

use engine::{Attr, Cred, FileType, FsError, FsHandle};

use crate::cli::{Exit, Session, dataset_clause};

/// A remote path as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemotePath {
    /// Dataset or snapshot.
    pub(crate) dataset: String,
    /// Components below the root; none is the root itself.
    pub(crate) path: Vec<String>,
}

impl RemotePath {
    /// Reads a remote path; `None` when the text is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (dataset, path) = match text.split_once(":/") {
            Some((dataset, path)) => (dataset, path),
            None => (text.strip_suffix(':')?, ""),
        };
        if dataset.is_empty() || dataset.starts_with('/') {
            return None;
        }
        let path = path
            .split('/')
            .filter(|name| !matches!(*name, "" | "."))
            .map(str::to_owned);
        Some(Self {
            dataset: dataset.to_owned(),
            path: path.collect(),
        })
    }

    /// The remote path of a command's argument; says what is wrong with it.
    pub(crate) fn of(session: &Session, text: &str) -> Result<Self, Exit> {
        match Self::parse(text) {
            Some(remote) if remote.path.iter().any(|name| name == "..") => {
                Err(session.fail(format!("'{text}': '..' is not followed in places")))
            }
            Some(remote) => Ok(remote),
            None => Err(session.misuse(format!("'{text}' is not a place: write DATASET:/PATH"))),
        }
    }

    /// Opens the file system of the path.
    pub(crate) async fn open(&self, session: &Session) -> Result<FsHandle, Exit> {
        let opened = async {
            let pool = session.appliance.pool_of(&self.dataset).await?;
            pool.open_fs(&self.dataset).await
        };
        opened.await.map_err(|error| {
            session.fail(format!(
                "cannot open '{}': {}",
                self.dataset,
                dataset_clause(&error)
            ))
        })
    }
}

impl std::fmt::Display for RemotePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:/{}", self.dataset, self.path.join("/"))
    }
}

/// The file system of a path, and the path in it: `DATASET:/PATH`, or a path in a mounted file system.
pub(crate) fn located(session: &Session, text: &str) -> Result<RemotePath, Exit> {
    if RemotePath::parse(text).is_some() {
        return RemotePath::of(session, text);
    }
    let path = session.path(text);
    let Some((dataset, point)) = mount_of(session, &path) else {
        return Err(session.fail(format!(
            "failed to stat {text}: neither a path in a mounted file system nor DATASET:/PATH"
        )));
    };
    let below = path.strip_prefix(&point).unwrap_or(Path::new(""));
    let names: Option<Vec<String>> = below
        .components()
        .map(|part| part.as_os_str().to_str().map(str::to_owned))
        .collect();
    let path = names
        .ok_or_else(|| session.fail(format!("failed to stat {text}: {}", FsError::Invalid)))?;
    Ok(RemotePath { dataset, path })
}

/// The mounted file system that a path lies in, and where that is mounted.
pub(crate) fn mount_of(session: &Session, path: &Path) -> Option<(String, PathBuf)> {
    let mounted = session.appliance.mounts().list();
    let holding = mounted
        .into_iter()
        .filter(|(_, point)| path.starts_with(point));
    holding.max_by_key(|(_, point)| point.components().count())
}

/// Follows a path from the root. Symbolic links on the way are followed within the file system;
/// the last component is not.
pub(crate) async fn walk(fs: &FsHandle, path: &[String], cred: &Cred) -> Result<Attr, FsError> {
    let mut way = walk_all(fs, path, cred).await?;
    way.pop().map(|(_, attr)| attr).ok_or(FsError::NotFound)
}

/// As [`walk`], with all directories on the way, from the root, each with its path in the file system.
pub(crate) async fn walk_all(
    fs: &FsHandle,
    path: &[String],
    cred: &Cred,
) -> Result<Vec<(String, Attr)>, FsError> {
    /// As many as Linux follows.
    const LINKS_MAX: usize = 40;
    let mut links = 0;
    let mut at = vec![("/".to_owned(), fs.root().await?)];
    let mut rest: Vec<Vec<u8>> = path
        .iter()
        .rev()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    while let Some(name) = rest.pop() {
        let (above, here) = at.last().ok_or(FsError::NotFound)?;
        if name == b".." {
            if at.len() > 1 {
                at.pop();
            }
            continue;
        }
        let found = fs.lookup(here.id, &name, cred).await?;
        if found.file_type != FileType::Symlink || rest.is_empty() {
            let name = String::from_utf8_lossy(&name);
            let path = format!("{}/{name}", above.trim_end_matches('/'));
            at.push((path, found));
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(FsError::Invalid);
        }
        let target = fs.readlink(found.id).await?;
        if target.starts_with(b"/") {
            at.truncate(1);
        }
        let names = target
            .split(|byte| *byte == b'/')
            .filter(|n| !n.is_empty() && *n != b".");
        let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
        rest.extend(names.into_iter().rev());
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_parse() {
        let check = |text: &str, dataset: &str, path: &str| {
            let remote = RemotePath::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(
                (remote.dataset.as_str(), remote.path.join("/").as_str()),
                (dataset, path)
            );
        };
        check("tank:/", "tank", "");
        check("tank:", "tank", "");
        check("tank/fs@snap:/a//b/./c/", "tank/fs@snap", "a/b/c");
        check("tank/a:b:/c:/d", "tank/a:b", "c:/d");
        for text in ["tank", "/tank:/x", ":/x", ""] {
            assert_eq!(RemotePath::parse(text), None, "{text}");
        }
    }
}
