//! `zfs send`: a snapshot, or what changed between two, as a stream on standard output.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, lib/libzfs/libzfs_sendrecv.c (words, forms of the output).

use std::time::{Duration, Instant};

use engine::property::DatasetKind;
use engine::stream::{NvList, SendOptions, SendResume, package_end, unpack_token};
use engine::{
    DatasetFilter, DatasetInfo, EngineError, PoolHandle, PropertyQuery, SendPackageRequest,
    SendPlan, SendRequest,
};

use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{clock, nice_bytes, nice_number};
use crate::cli::out::Stream;
use crate::cli::zstream::nvlist;
use crate::cli::{Exit, Outcome, Session, dataset_clause};

/// Properties by which a file system is shared.
const SHARES: [&str; 2] = ["sharenfs", "sharesmb"];
/// How often the progress is told.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

options! {
    SendOption {
        From(String) = valued('i', "SNAPSHOT|BOOKMARK", "only what changed since it"),
        FromAll(String) = valued('I', "SNAPSHOT", "what changed since it, with every snapshot between"),
        Replicate = both('R', "replicate", None, "with the datasets below, their snapshots and properties"),
        SkipMissing = both('s', "skip-missing", None, "with -R: pass over datasets below that lack the snapshot"),
        Dedup = both('D', "dedup", None, "accepted; streams are not deduplicated any more"),
        Props = both('p', "props", None, "with properties"),
        Backup = both('b', "backup", None, "with the properties that were received, not those set here"),
        Holds = both('h', "holds", None, "with holds"),
        Verbose = both('v', "verbose", None, "print the sizes, and every second what is sent"),
        ProcTitle = both('V', "proctitle", None, "print the sizes, and show in the name of the process how far it is"),
        DryRun = both('n', "dryrun", None, "send nothing; with -v or -P, print the sizes"),
        Parsable = both('P', "parsable", None, "print the sizes, exactly, with tabs between the columns"),
        LargeBlocks = both('L', "large-block", None, "blocks above 128 KiB as they are"),
        Embed = both('e', "embed", None, "blocks embedded in their block pointers as they are"),
        Compressed = both('c', "compressed", None, "blocks compressed as they are on the disks"),
        Raw = both('w', "raw", None, "blocks of encrypted datasets as they are on the disks; no key is needed"),
        Resume(String) = both('t', "resume", Some("TOKEN"), "the rest of a stream whose receive was interrupted"),
        Redact(String) = both('d', "redact", Some("BOOKMARK"), "without what the redaction bookmark leaves out"),
        Saved = both('S', "saved", None, "what a receive that was interrupted has so far"),
        Exclude(String) = both('X', "exclude", Some("DATASET,..."), "with -R: without these and what is below them"),
    }
}

/// The declaration of `zfs send`.
pub(super) const SEND: Command = Command {
    name: "send",
    summary: "write snapshots as a stream",
    usage: "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n\
         \t     [-R [-X dataset[,dataset]...]]     <snapshot>\n\
         \tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\
         \tsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\n\
         \tsend [-nVvPe] -t <receive_resume_token>\n\
         \tsend [-PnVv] --saved filesystem\n",
    flags: SendOption::FLAGS,
    words: &[Word::Snapshot],
    ..Command::NEW
};

/// The command line as understood.
#[derive(Default)]
struct Options {
    from: Option<String>,
    /// Every snapshot from the one it counts from is sent (`-I`).
    all_between: bool,
    recursive: bool,
    properties: bool,
    received_only: bool,
    holds: bool,
    skip_missing: bool,
    excluded: Vec<String>,
    token: Option<String>,
    stream: SendOptions,
    verbose: bool,
    progress: bool,
    title: bool,
    parsable: bool,
    dry_run: bool,
    /// The redaction bookmark, as it was given.
    redact: Option<String>,
}

impl Options {
    /// Something goes along besides the streams.
    fn has_list(&self) -> bool {
        self.properties || self.received_only || self.holds
    }
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |session, option| {
        take(session, option, &mut options)
    })?;
    options.verbose |= options.parsable;
    if !options.excluded.is_empty() && !options.recursive {
        return Err(session.fail("Cannot specify dataset exclusion (-X) on a non-recursive send."));
    }
    if let Some(token) = options.token.take() {
        let has_other = options.from.is_some() || options.redact.is_some() || options.recursive;
        if has_other || options.has_list() || options.stream.saved {
            return Err(session.misuse("invalid flags combined with -t"));
        }
        if !operands.is_empty() {
            return Err(session.misuse("too many arguments"));
        }
        return resume(session, &token, &options).await;
    }
    let name = match operands.as_slice() {
        [] => return Err(session.misuse("missing snapshot argument")),
        [name] => name,
        _ => return Err(session.misuse("too many arguments")),
    };
    if options.stream.saved {
        return saved(session, name, &options).await;
    }
    if options.stream.raw && options.redact.is_some() {
        return Err(session.fail("Error: raw sends may not be redacted."));
    }
    if options.skip_missing && !options.recursive {
        return Err(
            session.misuse("skip-missing flag can only be used in conjunction with replicate")
        );
    }
    send_named(session, name, &options).await
}

/// Sends the snapshot that was named, and what is to go along.
async fn send_named(session: &Session, name: &str, options: &Options) -> Outcome {
    let query = PropertyQuery::Named(SHARES.map(str::to_owned).to_vec());
    let (pool, info) = open(session, name, &query).await?;
    if info.kind != DatasetKind::Snapshot {
        if options.recursive || options.all_between {
            return Err(session.fail("Error: Unsupported flag with filesystem or bookmark."));
        }
        if options.has_list() {
            return Err(session.fail("Error: Unsupported flag with filesystem or bookmark."));
        }
        if options.redact.is_some() {
            return Err(session.fail(format!(
                "warning: cannot send '{name}': cannot do a redacted send to a filesystem"
            )));
        }
        close_if_idle(session, &pool, &info).await;
    }
    if options.recursive || options.all_between {
        return send_several(session, &pool, name, options).await;
    }
    let from = options.from.clone();
    let from = from.map(|from| full_name(session, name, from));
    if let Some(from) = from.as_deref().filter(|from| from.contains('@')) {
        open(session, from, &PropertyQuery::None).await?;
    }
    let redact = match &options.redact {
        Some(bookmark) => Some(redacted_by(session, &pool, name, bookmark).await?),
        None => None,
    };
    let mut plan = SendPlan {
        streams: vec![SendRequest {
            snapshot: name.to_owned(),
            from,
            options: options.stream,
            resume: None,
            redact,
        }],
        ..SendPlan::default()
    };
    if options.has_list() {
        let request = SendPackageRequest {
            single: true,
            ..package_request(name, options)
        };
        let package = planned(session, &pool, request).await?;
        check_warnings(session, name, &package)?;
        plan.head = package.head;
    }
    send(session, &pool, &plan, options).await
}

/// Closes a file system that is neither mounted nor shared: it stays open after its last use, and what is open is not sent.
async fn close_if_idle(session: &Session, pool: &PoolHandle, info: &DatasetInfo) {
    let is_shared = |name: &&str| {
        let value = info.property(name).and_then(|share| share.value.text());
        value.is_some_and(|value| value != "off")
    };
    let is_mounted = session.appliance.mounts().mounted(info.guid).is_some();
    if !is_mounted && !SHARES.iter().any(is_shared) {
        // What keeps it from being closed keeps it from being sent, which says so.
        let _ = pool.close_idle_fs(&info.name).await;
    }
}

/// The short name of the redaction bookmark of a snapshot that was given with or without its dataset.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_send_one_cb_impl
async fn redacted_by(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
    bookmark: &str,
) -> Result<String, Exit> {
    let short = bookmark
        .split_once('#')
        .map_or(bookmark, |(_, short)| short);
    let head = name.split('@').next().unwrap_or_default();
    let full = format!("{head}#{short}");
    let key = "redact_snaps";
    let query = PropertyQuery::Named(vec![key.to_owned()]);
    match pool.dataset(&full, &query).await {
        Ok(info) if info.property(key).is_some() => Ok(short.to_owned()),
        Ok(_) => Err(session.fail(format!(
            "warning: cannot send '{name}': not a redaction bookmark"
        ))),
        Err(error) => {
            Err(session.fail(format!("cannot open '{full}': {}", dataset_clause(&error))))
        }
    }
}

/// A redaction bookmark, or with `guid` a bookmark or snapshot of it, of a dataset that was redacted by the snapshots of these guids.
async fn named_by_redaction(
    pool: &PoolHandle,
    dataset: &str,
    guid: Option<u64>,
    by: &[u64],
) -> Option<String> {
    let kinds = match guid {
        Some(_) => vec![DatasetKind::Snapshot, DatasetKind::Bookmark],
        None => vec![DatasetKind::Bookmark],
    };
    let filter = DatasetFilter {
        root: dataset.to_owned(),
        depth: Some(1),
        kinds,
    };
    let key = "redact_snaps";
    let query = PropertyQuery::Named(vec![key.to_owned()]);
    let mut wanted: Vec<String> = by.iter().map(u64::to_string).collect();
    wanted.sort_unstable();
    let found = pool.datasets(&filter, &query).await.ok()?;
    let is_wanted = |info: &DatasetInfo| {
        let text = info
            .property(key)
            .and_then(|snapshots| snapshots.value.text());
        let mut has: Vec<&str> = text.map_or_else(Vec::new, |text| text.split(',').collect());
        has.sort_unstable();
        let of_dataset = info.name.split(['@', '#']).next() == Some(dataset);
        of_dataset && guid.is_none_or(|guid| info.guid == guid) && has == wanted
    };
    let found = found.into_iter().find(is_wanted);
    found.map(|info| info.name)
}

fn package_request(name: &str, options: &Options) -> SendPackageRequest {
    SendPackageRequest {
        snapshot: name.to_owned(),
        recursive: options.recursive,
        all_between: options.all_between,
        properties: options.properties,
        received_only: options.received_only,
        holds: options.holds,
        skip_missing: options.skip_missing,
        excluded: options.excluded.clone(),
        options: options.stream,
        ..SendPackageRequest::default()
    }
}

async fn planned(
    session: &Session,
    pool: &PoolHandle,
    request: SendPackageRequest,
) -> Result<SendPlan, Exit> {
    let name = request.snapshot.clone();
    let plan = pool.plan_send(request).await;
    plan.map_err(|error| session.fail(format!("warning: cannot send '{name}': {error}")))
}

/// `-R` and `-I`: a package of streams.
// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_send; lib/libzfs/libzfs_sendrecv.c, zfs_send_cb_impl
async fn send_several(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
    options: &Options,
) -> Outcome {
    let mut request = package_request(name, options);
    if options.redact.is_some() {
        return Err(session.fail("Error: multiple snapshots cannot be sent redacted."));
    }
    let head = name.split('@').next().unwrap_or_default();
    if let Some(from) = &options.from {
        if from.contains('#') {
            return Err(session.fail("Error: multiple snapshots cannot be sent from a bookmark."));
        }
        let origin = PropertyQuery::Named(vec!["origin".to_owned()]);
        let (_, info) = open(session, head, &origin).await?;
        let origin = info.property("origin");
        let origin = origin.and_then(|origin| origin.value.text());
        if origin == Some(from.as_str()) {
            request.from_origin = true;
        } else {
            let (dataset, short) = from.split_once('@').unwrap_or(("", from));
            if !dataset.is_empty() && dataset != head {
                return Err(session.misuse("incremental source must be in same filesystem"));
            }
            if short.contains(['@', '/']) {
                return Err(session.misuse("invalid incremental source"));
            }
            open(session, &format!("{head}@{short}"), &PropertyQuery::None).await?;
            request.from = Some(short.to_owned());
        }
    }
    // Without a place to count from, -R sends all snapshots.
    request.all_between |= options.recursive && request.from.is_none();
    let plan = planned(session, pool, request).await?;
    check_warnings(session, name, &plan)?;
    send(session, pool, &plan, options).await?;
    if plan.incomplete {
        return Err(Exit(1));
    }
    Ok(())
}

/// Tells what is not as asked for, and fails where nothing is sent then.
fn check_warnings(session: &Session, name: &str, plan: &SendPlan) -> Outcome {
    for warning in &plan.warnings {
        session.out.error(warning);
    }
    if plan.incomplete && plan.streams.is_empty() {
        return Err(Exit(1));
    }
    // A dataset below that has no such snapshot, or may not be sent so: nothing is sent.
    let refused = |text: &String| text.starts_with("cannot send");
    if plan.warnings.iter().any(refused) {
        return Err(session.fail(format!("warning: cannot send '{name}': backup failed")));
    }
    Ok(())
}

/// The snapshot of a guid; or the dataset, where it was sent without one and is still the same.
async fn what_was_sent(
    session: &Session,
    pool: &PoolHandle,
    dataset: &str,
    guid: u64,
) -> Option<String> {
    if let Some(snapshot) = by_guid(pool, dataset, guid, false).await {
        return Some(snapshot);
    }
    let query = PropertyQuery::Named(SHARES.map(str::to_owned).to_vec());
    let head = pool.dataset(dataset, &query).await.ok()?;
    if head.guid != guid {
        return None;
    }
    close_if_idle(session, pool, &head).await;
    Some(head.name)
}

/// `-t`: the rest of a stream whose receive was interrupted.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_send_resume_impl_cb_impl
async fn resume(session: &Session, token: &str, options: &Options) -> Outcome {
    let fail = |why: String| session.fail(format!("cannot resume send: {why}"));
    let list = unpack_token(token).map_err(|error| fail(error.to_string()))?;
    tell_token(session, &list, options);
    let (Some(name), Some(object), Some(offset), Some(to_guid)) = (
        list.str("toname"),
        list.u64("object"),
        list.u64("offset"),
        list.u64("toguid"),
    ) else {
        return Err(fail("resume token is corrupt".to_owned()));
    };
    let dataset = name.split('@').next().unwrap_or_default();
    let gone = || {
        fail(format!(
            "'{name}' used in the initial send no longer exists"
        ))
    };
    let pool = session.appliance.pool_of(dataset).await;
    let pool = pool.map_err(|_| gone())?;
    let Some(snapshot) = what_was_sent(session, &pool, dataset, to_guid).await else {
        if pool.dataset(name, &PropertyQuery::None).await.is_ok() {
            return Err(fail(format!(
                "'{name}' is no longer the same snapshot used in the initial send"
            )));
        }
        return Err(gone());
    };
    let from = match list.u64("fromguid").filter(|guid| *guid != 0) {
        None => None,
        Some(guid) => {
            let found = match list.u64s("book_redact_snaps") {
                Some(by) => named_by_redaction(&pool, dataset, Some(guid), by).await,
                None => by_guid(&pool, dataset, guid, true).await,
            };
            match found {
                Some(from) => Some(from),
                None => {
                    return Err(fail(format!(
                        "incremental source {guid:#x} no longer exists"
                    )));
                }
            }
        }
    };
    let redact = match list.u64s("redact_snaps") {
        Some(by) => {
            let head = snapshot.split('@').next().unwrap_or_default();
            let found = named_by_redaction(&pool, head, None, by).await;
            let short = found.and_then(|name| name.split_once('#').map(|(_, s)| s.to_owned()));
            let missing = || fail("no appropriate redaction bookmark exists".to_owned());
            Some(short.ok_or_else(missing)?)
        }
        None => None,
    };
    let request = SendRequest {
        snapshot,
        from,
        resume: Some(SendResume { object, offset }),
        redact,
        ..SendRequest::default()
    };
    send_rest(session, &pool, request, &list, options).await
}

/// Sends what a token is of: with the features that the stream began with.
async fn send_rest(
    session: &Session,
    pool: &PoolHandle,
    request: SendRequest,
    token: &NvList,
    options: &Options,
) -> Outcome {
    let mut stream = options.stream;
    may_contain(token, &mut stream);
    let plan = SendPlan {
        streams: vec![SendRequest {
            options: stream,
            ..request
        }],
        ..SendPlan::default()
    };
    send(session, pool, &plan, options).await
}

/// `-S`: what an interrupted receive into a dataset left.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_send_saved
async fn saved(session: &Session, name: &str, options: &Options) -> Outcome {
    let stream = options.stream;
    let has_form = stream.large_blocks || stream.embedded || stream.compressed || stream.raw;
    let has_other = options.from.is_some() || options.redact.is_some() || options.recursive;
    if has_other || options.has_list() || has_form {
        return Err(session.misuse("incompatible flags combined with saved send flag"));
    }
    if name.contains('@') {
        return Err(
            session.misuse("saved send must specify the dataset with partially-received state")
        );
    }
    let key = "receive_resume_token";
    let query = PropertyQuery::Named(vec![key.to_owned()]);
    let (pool, info) = open(session, name, &query).await?;
    let token = info.property(key).and_then(|token| token.value.text());
    let fail = |why: String| session.fail(format!("saved send failed: {why}"));
    let Some(token) = token else {
        return Err(fail(format!("'{name}' has no partially-received state")));
    };
    let list = unpack_token(token).map_err(|error| fail(error.to_string()))?;
    tell_token(session, &list, options);
    let from = match list.u64("fromguid").filter(|guid| *guid != 0) {
        None => None,
        Some(guid) => match by_guid(&pool, name, guid, true).await {
            Some(from) => Some(from),
            None => {
                return Err(fail(format!(
                    "incremental source {guid:#x} no longer exists"
                )));
            }
        },
    };
    let request = SendRequest {
        snapshot: name.to_owned(),
        from,
        ..SendRequest::default()
    };
    send_rest(session, &pool, request, &list, options).await
}

fn tell_token(session: &Session, list: &NvList, options: &Options) {
    if options.verbose {
        let mut text = b"resume token contents:\n".to_vec();
        if nvlist::print(&mut text, list, 0).is_ok() {
            tell(session, &String::from_utf8_lossy(&text), options);
        }
    }
}

/// What the stream was begun with, it goes on with.
fn may_contain(token: &NvList, stream: &mut SendOptions) {
    stream.large_blocks |= token.has("largeblockok");
    stream.embedded |= token.has("embedok");
    stream.compressed |= token.has("compressok");
    stream.raw |= token.has("rawok");
}

/// A snapshot or bookmark by its guid: of the dataset named in the token, else of those around it.
async fn by_guid(pool: &PoolHandle, dataset: &str, guid: u64, bookmarks: bool) -> Option<String> {
    let mut at = dataset;
    loop {
        let found = pool.snapshot_of_guid(at, guid, bookmarks).await;
        if let Ok(Some(name)) = found {
            return Some(name);
        }
        at = at.rsplit_once('/')?.0;
    }
}

fn take(session: &Session, option: SendOption, options: &mut Options) -> Outcome {
    match option {
        SendOption::From(from) => return count_from(session, options, from, false),
        SendOption::FromAll(from) => return count_from(session, options, from, true),
        SendOption::Replicate => options.recursive = true,
        SendOption::Props => options.properties = true,
        SendOption::Backup => options.received_only = true,
        SendOption::Holds => options.holds = true,
        SendOption::SkipMissing => options.skip_missing = true,
        SendOption::Resume(token) => options.token = Some(token),
        SendOption::Exclude(names) => {
            let names = names.split(',').map(str::to_owned);
            options.excluded.extend(names);
        }
        SendOption::LargeBlocks => options.stream.large_blocks = true,
        SendOption::Embed => options.stream.embedded = true,
        SendOption::Compressed => options.stream.compressed = true,
        SendOption::Raw => {
            options.stream = SendOptions {
                large_blocks: true,
                embedded: true,
                compressed: true,
                raw: true,
                ..options.stream
            };
        }
        SendOption::DryRun => options.dry_run = true,
        SendOption::Parsable => options.parsable = true,
        SendOption::Verbose => {
            options.verbose = true;
            options.progress = true;
        }
        SendOption::ProcTitle => {
            options.verbose = true;
            options.title = true;
        }
        SendOption::Dedup => session.out.error(
            "WARNING: deduplicated send is no longer supported.  A regular,\n\
             non-deduplicated stream will be generated.\n",
        ),
        SendOption::Redact(bookmark) => options.redact = Some(bookmark),
        SendOption::Saved => options.stream.saved = true,
    }
    Ok(())
}

/// `-i` and `-I`, of which one is given, once.
fn count_from(
    session: &Session,
    options: &mut Options,
    from: String,
    all_between: bool,
) -> Outcome {
    if options.from.is_some() {
        return Err(session.usage_only());
    }
    options.from = Some(from);
    options.all_between = all_between;
    Ok(())
}

/// The full name of what a stream counts from: `@name` and `#name` are of the dataset sent.
fn full_name(session: &Session, to: &str, from: String) -> String {
    let from = if from.contains(['@', '#']) {
        from
    } else {
        session.out.error(
            "Warning: incremental source didn't specify type, assuming snapshot. \
             Use '@' or '#' prefix to avoid ambiguity.",
        );
        format!("@{from}")
    };
    if from.starts_with(['@', '#']) {
        let head = to.split('@').next().unwrap_or_default();
        format!("{head}{from}")
    } else {
        from
    }
}

async fn send(session: &Session, pool: &PoolHandle, plan: &SendPlan, options: &Options) -> Outcome {
    if session.caller.terminal && !options.dry_run {
        return Err(session.fail(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        ));
    }
    let several = options.recursive || options.all_between;
    let mut total = 0;
    if options.verbose || options.dry_run {
        for request in &plan.streams {
            let size = pool.send_size(request.clone()).await;
            let size = size.map_err(|error| refused(session, request, &error))?;
            total += size;
            if options.verbose {
                tell_size(session, request, size, several, options);
            }
        }
        if options.verbose {
            tell_total(session, total, options);
        }
        session.out.flush().await?;
    }
    if options.dry_run {
        return Ok(());
    }
    session.out.push(Stream::Out, &plan.head);
    let mut progress = Progress {
        options,
        told: Instant::now(),
        total,
        sent: 0,
    };
    for request in &plan.streams {
        copy(session, pool, request, &mut progress).await?;
    }
    if !plan.head.is_empty() {
        session.out.push(Stream::Out, package_end());
    }
    Ok(())
}

/// How far a command is with its streams.
struct Progress<'a> {
    options: &'a Options,
    told: Instant,
    /// Estimated bytes of all streams; 0 where they were not asked for.
    total: u64,
    /// Bytes of the streams so far.
    sent: u64,
}

impl Progress<'_> {
    /// Says every second how far it is; `sent` bytes are of the stream of `snapshot`.
    // OpenZFS: lib/libzfs/libzfs_sendrecv.c, send_progress_thread
    fn tell(&mut self, session: &Session, snapshot: &str, sent: u64) {
        let asked = self.options.progress || self.options.title;
        if !asked || self.told.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.told = Instant::now();
        if self.options.title {
            let percent = (100 * self.sent).checked_div(self.total);
            let percent = percent.unwrap_or(0).min(100);
            let title = format!("send {percent}% {}", nice_bytes(self.sent));
            session.out.push(Stream::Title, title.into_bytes());
        }
        if self.options.progress {
            let time = clock();
            session.out.error(if self.options.parsable {
                format!("{time}\t{sent}\t{snapshot}")
            } else {
                format!("{time}   {:>5}   {snapshot}", nice_bytes(sent))
            });
        }
    }
}

/// Hands the stream on, and says how far it is.
async fn copy(
    session: &Session,
    pool: &PoolHandle,
    request: &SendRequest,
    progress: &mut Progress<'_>,
) -> Outcome {
    let fail = |error: EngineError| refused(session, request, &error);
    let mut stream = pool.send(request.clone()).await.map_err(fail)?;
    if progress.options.progress && !progress.options.parsable {
        session
            .out
            .error(format!("TIME        SENT   SNAPSHOT {}", request.snapshot));
    }
    let mut sent = 0;
    while let Some(chunk) = stream.next_chunk().await.map_err(fail)? {
        sent += chunk.len() as u64;
        progress.sent += chunk.len() as u64;
        session.out.send_chunk(chunk).await?;
        progress.tell(session, &request.snapshot, sent);
        session.out.flush().await?;
    }
    Ok(())
}

fn tell_size(
    session: &Session,
    request: &SendRequest,
    size: u64,
    several: bool,
    options: &Options,
) {
    let SendRequest { snapshot, from, .. } = request;
    let head = snapshot.split('@').next();
    // Of several streams, each names the snapshot before it without its dataset, and a clone's origin not at all.
    let from = from.as_deref().and_then(|from| match from.split_once('@') {
        Some((dataset, short)) if several => (Some(dataset) == head).then_some(short),
        _ => Some(from),
    });
    let text = match (options.parsable, from) {
        (true, Some(from)) => format!("incremental\t{from}\t{snapshot}\t{size}\n"),
        (true, None) => format!("full\t{snapshot}\t{size}\n"),
        (false, Some(from)) => {
            let at = if from.contains(['@', '#']) { "" } else { "@" };
            let size = nice_bytes(size);
            format!("send from {at}{from} to {snapshot} estimated size is {size}\n")
        }
        (false, None) => {
            let size = nice_bytes(size);
            format!("full send of {snapshot} estimated size is {size}\n")
        }
    };
    tell(session, &text, options);
}

fn tell_total(session: &Session, total: u64, options: &Options) {
    let text = if options.parsable {
        format!("size\t{total}\n")
    } else {
        format!("total estimated size is {}\n", nice_number(total))
    };
    tell(session, &text, options);
}

/// Sizes go to standard output where nothing else does.
fn tell(session: &Session, text: &str, options: &Options) {
    let stream = if options.dry_run {
        Stream::Out
    } else {
        Stream::Err
    };
    session.out.push(stream, text.as_bytes());
}

fn refused(session: &Session, request: &SendRequest, error: &EngineError) -> Exit {
    let name = &request.snapshot;
    let why = match (error, &request.from) {
        (EngineError::DatasetNotFound(missing), Some(from)) if missing == from => {
            format!("incremental source ({from}) does not exist")
        }
        (EngineError::Busy(_), _) => {
            "target is busy; if a filesystem, it must not be mounted".to_owned()
        }
        _ => error.to_string(),
    };
    session.fail(format!("warning: cannot send '{name}': {why}"))
}
