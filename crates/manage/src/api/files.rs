//! Calls about the files of file systems and snapshots: lists, downloads, uploads.
//!
//! Guarantees: a path leads through directories of its own file system only: no symbolic link is followed, `.`, `..` and `.zfs` are
//! names like others that are not there. What is downloaded is never shown by the browser as a page of the console.

use std::time::Duration;

use axum::Json;
use axum::body::{Body as HttpBody, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use engine::{
    Attr, CreateMode, Cred, FileId, FileType, FsError, FsHandle, IoBuf, ListLimit, SetAttr,
    Stability,
};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::datasets::pool_of;
use super::{Api, Problem, Shared};
use crate::file_acl::{self, FileAccess};

/// The path of downloads and uploads.
pub(super) const CONTENT: &str = "/api/v1/files/content";
/// Entries of a page when none are asked for, and at most.
const PAGE: usize = 500;
const PAGE_MAX: usize = 5000;
/// Bytes read or written at once.
const CHUNK_BYTES: usize = 1 << 20;
/// How long a pool may take for one step: a name found, a chunk read or written.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may send nothing of an upload.
const UPLOAD_IDLE: Duration = Duration::from_secs(30);
/// What the name of an upload ends in until it is complete.
const INCOMPLETE: &[u8] = b".sanbox-upload";

/// A place in a file system.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FilePlace {
    /// File system or snapshot.
    dataset: String,
    /// Names below its root with `/` between them, each percent-encoded by itself.
    path: Option<String>,
}

/// A user, and a place in a file system.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UserPlace {
    /// A user of the machine, or a number.
    user: String,
    /// File system or snapshot.
    dataset: String,
    /// Names below its root with `/` between them, each percent-encoded by itself.
    path: Option<String>,
}

/// What a user may do with a file, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AccessReport {
    /// The user, as asked for.
    pub user: String,
    /// Its number.
    pub uid: u32,
    /// The numbers of its groups, the primary one first.
    pub gids: Vec<u32>,
    /// `DATASET:/PATH`.
    pub path: String,
    /// What it may do.
    pub answers: Vec<AccessAnswer>,
    /// What shares of the dataset refuse besides, in sentences.
    pub shares: Vec<String>,
}

/// Whether one thing may be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AccessAnswer {
    /// `read`, `write`, `execute` or `delete`.
    pub right: &'static str,
    /// It may be done.
    pub allowed: bool,
    /// It may be done through a mount of this machine, which asks the mode besides an NFSv4 list.
    pub in_mount: bool,
    /// What decides it, in words.
    pub because: String,
}

/// Which part of a directory.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DirectoryPage {
    /// File system or snapshot.
    dataset: String,
    /// Names below its root with `/` between them, each percent-encoded by itself.
    path: Option<String>,
    /// Entries, at most 5000 (500).
    limit: Option<usize>,
    /// Where a page before ended: its `next`.
    cursor: Option<u64>,
}

/// Where an upload goes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UploadPlace {
    /// File system.
    dataset: String,
    /// Names below its root with `/` between them, each percent-encoded by itself; the last is the new file's.
    path: String,
    /// Replace a file that is there (false).
    replace: Option<bool>,
}

/// A page of a directory, in the order of the directory.
#[derive(Serialize, ToSchema)]
pub(super) struct FileList {
    files: Vec<FileView>,
    /// Where the next page begins; none at the end.
    next: Option<u64>,
}

/// A file.
#[derive(Serialize, ToSchema)]
pub(super) struct FileView {
    /// Name, as far as it can be shown.
    name: String,
    /// Name as a path takes it: percent-encoded.
    segment: String,
    /// `file`, `directory`, `symlink`, or `special`.
    kind: &'static str,
    /// Bytes.
    size_bytes: u64,
    /// Last change of the content, seconds since 1970.
    modified: i64,
    /// Permissions, as a number.
    mode: u32,
    uid: u32,
    gid: u32,
    /// What a symbolic link says.
    target: Option<String>,
}

fn place<T>(asked: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let asked = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    Ok(asked.0)
}

/// Splits a path into names.
fn names(path: &str) -> Result<Vec<Vec<u8>>, Problem> {
    let name = |segment: &str| {
        let name = decoded(segment).filter(|name| !name.contains(&b'/') && !name.contains(&0));
        let name = name.filter(|name| !matches!(name.as_slice(), b"." | b".." | b".zfs"));
        name.ok_or_else(|| Problem::bad_request("the path has a name that no file can have"))
    };
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    segments.map(name).collect()
}

/// Undoes percent-encoding (RFC 3986, 2.1).
fn decoded(segment: &str) -> Option<Vec<u8>> {
    let mut bytes = segment.bytes();
    let mut name = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        let text = std::str::from_utf8(&digits).ok()?;
        name.push(u8::from_str_radix(text, 16).ok()?);
    }
    Some(name)
}

fn encoded(name: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let each = name.iter().map(|byte| match plain(*byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

/// What a file system answers to a step.
async fn step<T>(
    timeout: Duration,
    dataset: &str,
    step: impl Future<Output = Result<T, FsError>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(timeout, step).await {
        Ok(answer) => answer.map_err(|error| problem(dataset, &error)),
        Err(_) => Err(Problem::unanswered(pool_of(dataset), timeout.as_secs())),
    }
}

fn problem(dataset: &str, error: &FsError) -> Problem {
    let status = match error {
        FsError::NotFound | FsError::Stale => StatusCode::NOT_FOUND,
        FsError::Exists => StatusCode::CONFLICT,
        FsError::ReadOnly | FsError::Access | FsError::NotPermitted => StatusCode::FORBIDDEN,
        FsError::NoSpace | FsError::Quota => StatusCode::INSUFFICIENT_STORAGE,
        FsError::NotDirectory | FsError::IsDirectory | FsError::Invalid => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        FsError::NameTooLong | FsError::IllegalName => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Problem::new(status, format!("'{dataset}': {error}"))
}

/// A file system that was opened for a call.
struct OpenFs {
    fs: FsHandle,
    dataset: String,
    cred: Cred,
}

impl OpenFs {
    async fn open(api: &Api, dataset: &str) -> Result<Self, Problem> {
        let pool = api.pool(pool_of(dataset))?;
        let name = dataset.to_owned();
        let opened = api.asking.ask(
            &pool,
            dataset,
            |pool| async move { pool.open_fs(&name).await },
        );
        Ok(Self {
            fs: opened.await?,
            dataset: dataset.to_owned(),
            cred: Cred::root(),
        })
    }

    /// Follows names from the root, through directories alone.
    async fn walk(&self, names: &[Vec<u8>]) -> Result<Attr, Problem> {
        let mut at = step(STEP_TIMEOUT, &self.dataset, self.fs.root()).await?;
        for name in names {
            if at.file_type != FileType::Directory {
                return Err(problem(&self.dataset, &FsError::NotDirectory));
            }
            at = self.find(at.id, name).await?;
        }
        Ok(at)
    }

    async fn find(&self, dir: FileId, name: &[u8]) -> Result<Attr, Problem> {
        let found = self.fs.lookup(dir, name, &self.cred);
        step(STEP_TIMEOUT, &self.dataset, found).await
    }
}

/// Lists a directory of a file system or snapshot.
#[utoipa::path(get, path = "/api/v1/files", params(DirectoryPage),
    responses((status = 200, body = FileList), (status = 400, body = Problem), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn list_files(
    State(api): Shared,
    asked: Result<Query<DirectoryPage>, QueryRejection>,
) -> Result<Json<FileList>, Problem> {
    let asked = place(asked)?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is 1 to {PAGE_MAX}")));
    }
    let names = names(asked.path.as_deref().unwrap_or_default())?;
    let open = OpenFs::open(&api, &asked.dataset).await?;
    let dir = open.walk(&names).await?;
    if dir.file_type != FileType::Directory {
        return Err(problem(&open.dataset, &FsError::NotDirectory));
    }
    let limit = ListLimit {
        entries: limit,
        bytes: usize::MAX,
        entry_overhead_bytes: 0,
        attrs: true,
    };
    let cursor = asked.cursor.unwrap_or(0);
    let listing = open.fs.readdir(dir.id, cursor, limit, &open.cred);
    let listing = step(STEP_TIMEOUT, &open.dataset, listing).await?;
    let next = listing.entries.last().map(|last| last.cookie);
    let mut files = Vec::new();
    for entry in &listing.entries {
        // `.zfs` is there where snapdir=visible; snapshots have their own list.
        if matches!(entry.name.as_slice(), b"." | b".." | b".zfs") {
            continue;
        }
        // One that was removed meanwhile is left out.
        if let Some(attr) = &entry.attr {
            files.push(view(&open, &entry.name, attr).await);
        }
    }
    Ok(Json(FileList {
        files,
        next: next.filter(|_| !listing.eof),
    }))
}

async fn view(open: &OpenFs, name: &[u8], attr: &Attr) -> FileView {
    let target = match attr.file_type {
        FileType::Symlink => {
            let text = step(STEP_TIMEOUT, &open.dataset, open.fs.readlink(attr.id));
            text.await.ok()
        }
        _ => None,
    };
    FileView {
        name: String::from_utf8_lossy(name).into_owned(),
        segment: encoded(name),
        kind: match attr.file_type {
            FileType::Regular => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            _ => "special",
        },
        size_bytes: attr.size,
        modified: attr.mtime.seconds,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        target: target.map(|text| String::from_utf8_lossy(&text).into_owned()),
    }
}

/// Who may do what with a file: mode, owner, and the entries of its access control list. `sanbox acl` sets them.
#[utoipa::path(get, path = "/api/v1/files/permissions", params(FilePlace),
    responses((status = 200, body = FileAccess), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn permissions(
    State(api): Shared,
    asked: Result<Query<FilePlace>, QueryRejection>,
) -> Result<Json<FileAccess>, Problem> {
    let asked = place(asked)?;
    let names = names(asked.path.as_deref().unwrap_or_default())?;
    let open = OpenFs::open(&api, &asked.dataset).await?;
    let attr = open.walk(&names).await?;
    let access = step(
        STEP_TIMEOUT,
        &open.dataset,
        file_acl::of_file(&open.fs, &attr),
    )
    .await?;
    Ok(Json(access))
}

/// What a user may do with a file, and what decides it, as `sanbox access` says it. Only users, numbers and paths that are text.
#[utoipa::path(get, path = "/api/v1/files/access", params(UserPlace),
    responses((status = 200, body = AccessReport), (status = 400, body = Problem), (status = 422, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn explain_access(
    State(api): Shared,
    asked: Result<Query<UserPlace>, QueryRejection>,
) -> Result<Json<AccessReport>, Problem> {
    let asked = place(asked)?;
    let names = names(asked.path.as_deref().unwrap_or_default())?;
    let names = names.into_iter().map(String::from_utf8);
    let names = names.collect::<Result<Vec<_>, _>>();
    let names = names.map_err(|_| Problem::bad_request("the path is no text"))?;
    let report = api.backend.access(asked.user, asked.dataset.clone(), names);
    match tokio::time::timeout(STEP_TIMEOUT, report).await {
        Ok(Ok(report)) => Ok(Json(report)),
        Ok(Err(why)) => Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why)),
        Err(_) => {
            let seconds = STEP_TIMEOUT.as_secs();
            Err(Problem::unanswered(pool_of(&asked.dataset), seconds))
        }
    }
}

/// Downloads a file.
#[utoipa::path(get, path = "/api/v1/files/content", params(FilePlace),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 404, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn download(
    State(api): Shared,
    asked: Result<Query<FilePlace>, QueryRejection>,
) -> Result<Response, Problem> {
    let asked = place(asked)?;
    let names = names(asked.path.as_deref().unwrap_or_default())?;
    let open = OpenFs::open(&api, &asked.dataset).await?;
    let file = open.walk(&names).await?;
    match file.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(problem(&open.dataset, &FsError::IsDirectory)),
        _ => return Err(problem(&open.dataset, &FsError::Invalid)),
    }
    let name = names.last().map_or_else(String::new, |name| encoded(name));
    // RFC 6266, 4.3, with the encoding of RFC 8187: no quote or control character of a name gets into the header.
    let disposition = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{name}"));
    let disposition = disposition.map_err(|_| Problem::bad_request("no name for a download"))?;
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (header::CONTENT_DISPOSITION, disposition),
        (header::CONTENT_LENGTH, HeaderValue::from(file.size)),
    ];
    Ok((headers, HttpBody::from_stream(content(open, file))).into_response())
}

/// The bytes of a file, as they are read. A file that became shorter ends the stream with an error, so that no client takes the part
/// for the whole.
fn content(open: OpenFs, file: Attr) -> impl stream::Stream<Item = Result<Bytes, std::io::Error>> {
    let size = file.size;
    stream::try_unfold((open, 0), move |(open, offset)| async move {
        if offset >= size {
            return Ok(None);
        }
        let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
        let read = open
            .fs
            .read(file.id, offset, left.min(CHUNK_BYTES), &open.cred);
        let read = tokio::time::timeout(CHUNK_TIMEOUT, read).await;
        let read = read
            .map_err(std::io::Error::other)?
            .map_err(std::io::Error::other)?;
        let mut bytes = Vec::with_capacity(read.len());
        read.pieces
            .iter()
            .for_each(|piece| bytes.extend_from_slice(piece));
        if bytes.is_empty() {
            return Err(std::io::Error::other("the file became shorter"));
        }
        let next = offset + bytes.len() as u64;
        Ok(Some((Bytes::from(bytes), (open, next))))
    })
}

/// Uploads a file: the body is its content. It gets its name when all of it is on stable storage.
#[utoipa::path(put, path = "/api/v1/files/content", params(UploadPlace), request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201), (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 507, body = Problem)))]
pub(super) async fn upload(
    State(api): Shared,
    asked: Result<Query<UploadPlace>, QueryRejection>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked = place(asked)?;
    let names = names(&asked.path)?;
    let Some((name, parents)) = names.split_last() else {
        return Err(Problem::bad_request("the path has no name"));
    };
    let open = OpenFs::open(&api, &asked.dataset).await?;
    let dir = open.walk(parents).await?;
    let replace = asked.replace.unwrap_or(false);
    match open.find(dir.id, name).await {
        Ok(there) if replace && there.file_type == FileType::Regular => {}
        Ok(_) => return Err(problem(&open.dataset, &FsError::Exists)),
        Err(problem) if problem.status == 404 => {}
        Err(problem) => return Err(problem),
    }
    let mut incomplete = name.clone();
    incomplete.extend_from_slice(INCOMPLETE);
    let set = SetAttr {
        mode: Some(0o644),
        ..SetAttr::default()
    };
    // Two uploads of one name do not write into the same file.
    let made = open
        .fs
        .create(dir.id, &incomplete, CreateMode::Guarded, &set, &open.cred);
    let made = step(STEP_TIMEOUT, &open.dataset, made).await?;
    let stored = store(&open, made.file.id, request).await;
    let named = match stored {
        Ok(()) => {
            let renamed = open
                .fs
                .rename(dir.id, &incomplete, dir.id, name, &open.cred);
            step(STEP_TIMEOUT, &open.dataset, renamed).await.map(|_| ())
        }
        Err(problem) => Err(problem),
    };
    if let Err(problem) = named {
        let removed = open.fs.remove(dir.id, &incomplete, &open.cred);
        let _ = step(STEP_TIMEOUT, &open.dataset, removed).await;
        return Err(problem);
    }
    step(CHUNK_TIMEOUT, &open.dataset, open.fs.sync()).await?;
    Ok(StatusCode::CREATED)
}

async fn store(open: &OpenFs, id: FileId, request: Request) -> Result<(), Problem> {
    let mut body = request.into_body().into_data_stream();
    let mut offset = 0;
    let mut chunk: Vec<u8> = Vec::new();
    loop {
        let more = tokio::time::timeout(UPLOAD_IDLE, body.next()).await;
        let more = more.map_err(|_| {
            Problem::new(StatusCode::REQUEST_TIMEOUT, "the upload went on no further")
        })?;
        let ended = more.is_none();
        if let Some(bytes) = more {
            let bytes = bytes.map_err(|error| Problem::bad_request(error.to_string()))?;
            chunk.extend_from_slice(&bytes);
        }
        if chunk.len() >= CHUNK_BYTES || (ended && !chunk.is_empty()) {
            let data = IoBuf::from(std::mem::take(&mut chunk));
            let len = data.len() as u64;
            let written = open
                .fs
                .write(id, offset, data, Stability::Unstable, &open.cred);
            step(CHUNK_TIMEOUT, &open.dataset, written).await?;
            offset += len;
        }
        if ended {
            let commit = open.fs.commit(id, 0, 0);
            step(CHUNK_TIMEOUT, &open.dataset, commit).await?;
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_else() {
        let split = |path: &str| names(path).map_err(|problem| problem.status);
        assert_eq!(split(""), Ok(vec![]));
        assert_eq!(split("/a//b/"), Ok(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(split("/%FFx%20"), Ok(vec![b"\xffx ".to_vec()]));
        for path in [
            "..",
            "a/../b",
            "a/%2E%2e/b",
            ".",
            "a%2Fb",
            "a%00",
            "%",
            "%4",
            "%zz",
            ".zfs",
            "a/.zfs",
        ] {
            assert_eq!(split(path), Err(400), "{path}");
        }
    }

    #[test]
    fn names_of_any_bytes_come_back() {
        for name in [&b"a b"[..], b"\xff%\"'<>", "gr\u{fc}n".as_bytes(), b"..."] {
            assert_eq!(decoded(&encoded(name)).as_deref(), Some(name));
        }
        assert_eq!(encoded(b"<img src=x>\r\n"), "%3Cimg%20src%3Dx%3E%0D%0A");
    }
}
