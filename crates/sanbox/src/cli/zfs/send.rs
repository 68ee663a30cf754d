//! `zfs send`: a snapshot, or what changed between two, as a stream on standard output.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, lib/libzfs/libzfs_sendrecv.c (words, forms of the output).

use std::time::{Duration, Instant};

use engine::property::DatasetKind;
use engine::stream::{SendOptions, package_begin, package_end};
use engine::{DatasetFilter, EngineError, PoolHandle, PropertyQuery, SendRequest};

use super::open;
use crate::cli::format::{clock, nice_bytes, nice_number};
use crate::cli::getopt::{Long, Opt};
use crate::cli::out::Stream;
use crate::cli::{Exit, Outcome, Session};

/// How often the progress is told.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

const LONGS: &[Long] = &[
    long("replicate", false),
    long("skip-missing", false),
    long("redact", true),
    long("props", false),
    long("parsable", false),
    long("dedup", false),
    long("proctitle", false),
    long("verbose", false),
    long("dryrun", false),
    long("large-block", false),
    long("embed", false),
    long("resume", true),
    long("compressed", false),
    long("raw", false),
    long("backup", false),
    long("holds", false),
    long("saved", false),
    long("exclude", true),
];

const fn long(name: &'static str, value: bool) -> Long {
    Long { name, value }
}

/// The command line as understood.
#[derive(Default)]
struct Options {
    from: Option<String>,
    /// Every snapshot from the one it counts from is sent (`-I`).
    all_between: bool,
    stream: SendOptions,
    verbose: bool,
    progress: bool,
    parsable: bool,
    dry_run: bool,
    /// The first option that we know and cannot do.
    unsupported: Option<String>,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.options(
        arguments,
        "i:I:RsDpVvnPLeht:cwbd:SX:",
        LONGS,
        |session, option| take(session, option, &mut options),
    )?;
    options.verbose |= options.parsable;
    let name = match operands.as_slice() {
        [] => return Err(session.misuse("missing snapshot argument")),
        [name] => name,
        _ => return Err(session.misuse("too many arguments")),
    };
    if let Some(what) = &options.unsupported {
        return Err(session.fail(format!(
            "zfs send {what}: not supported by this version of sanbox yet"
        )));
    }
    let from = options
        .from
        .take()
        .map(|from| full_name(session, name, from));
    let (pool, info) = open(session, name, &PropertyQuery::None).await?;
    if info.kind != DatasetKind::Snapshot {
        return Err(session.fail(format!(
            "cannot send '{name}': sending what is no snapshot is not supported by this version of sanbox yet"
        )));
    }
    if let Some(from) = from.as_deref().filter(|from| from.contains('@')) {
        open(session, from, &PropertyQuery::None).await?;
    }
    let requests = if options.all_between {
        all_between(session, &pool, name, from.as_deref(), &options).await?
    } else {
        vec![SendRequest {
            snapshot: name.clone(),
            from,
            options: options.stream,
        }]
    };
    send(session, &pool, name, &requests, &options).await
}

fn take(session: &Session, option: Opt, options: &mut Options) -> Outcome {
    let letter = match &option {
        Opt::Short(letter, _) => *letter,
        Opt::Long(name, _) => letter_of(name),
    };
    let (Opt::Short(_, value) | Opt::Long(_, value)) = option;
    match letter {
        'i' | 'I' if options.from.is_some() => return Err(session.usage_only()),
        'i' | 'I' => {
            options.from = value;
            options.all_between = letter == 'I';
        }
        'L' => options.stream.large_blocks = true,
        'e' => options.stream.embedded = true,
        'c' => options.stream.compressed = true,
        'w' => {
            options.stream = SendOptions {
                large_blocks: true,
                embedded: true,
                compressed: true,
                dry_run: false,
            };
        }
        'n' => options.dry_run = true,
        'P' => options.parsable = true,
        'v' => {
            options.verbose = true;
            options.progress = true;
        }
        // The title of a process is not ours to set: the stream comes from the daemon.
        'V' => options.verbose = true,
        'D' => session.out.error(
            "WARNING: deduplicated send is no longer supported.  A regular,\n\
             non-deduplicated stream will be generated.\n",
        ),
        other => {
            options.unsupported.get_or_insert(format!("-{other}"));
        }
    }
    Ok(())
}

fn letter_of(long: &str) -> char {
    match long {
        "replicate" => 'R',
        "skip-missing" => 's',
        "redact" => 'd',
        "props" => 'p',
        "parsable" => 'P',
        "dedup" => 'D',
        "proctitle" => 'V',
        "verbose" => 'v',
        "dryrun" => 'n',
        "large-block" => 'L',
        "embed" => 'e',
        "resume" => 't',
        "compressed" => 'c',
        "raw" => 'w',
        "backup" => 'b',
        "holds" => 'h',
        "saved" => 'S',
        _ => 'X',
    }
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

/// The streams of `-I`: one for each snapshot after `from`, up to the one named.
async fn all_between(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
    from: Option<&str>,
    options: &Options,
) -> Result<Vec<SendRequest>, Exit> {
    let from = from.unwrap_or_default();
    let head = name.split('@').next().unwrap_or_default();
    if from.split('@').next() != Some(head) {
        return Err(session.fail("incremental source must be in same filesystem"));
    }
    let filter = DatasetFilter {
        root: head.to_owned(),
        depth: Some(1),
        kinds: vec![DatasetKind::Snapshot],
    };
    let listed = pool.datasets(&filter, &PropertyQuery::None).await;
    let listed = listed.map_err(|error| session.fail(format!("cannot open '{head}': {error}")))?;
    let mut snapshots: Vec<_> = listed
        .into_iter()
        .filter(|info| info.name.split('@').next() == Some(head))
        .map(|info| (info.create_txg, info.name))
        .collect();
    snapshots.sort();
    let place = |wanted: &str| snapshots.iter().position(|(_, name)| name == wanted);
    let (Some(first), Some(last)) = (place(from), place(name)) else {
        return Err(session.fail(format!("cannot open '{from}': dataset does not exist")));
    };
    if first >= last {
        return Err(session.fail(format!(
            "warning: cannot send '{name}': not an earlier snapshot from the same fs"
        )));
    }
    let pairs = snapshots[first..=last].windows(2);
    Ok(pairs
        .map(|pair| SendRequest {
            snapshot: pair[1].1.clone(),
            from: Some(pair[0].1.clone()),
            options: options.stream,
        })
        .collect())
}

async fn send(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
    requests: &[SendRequest],
    options: &Options,
) -> Outcome {
    if options.verbose || options.dry_run {
        let mut total = 0;
        for request in requests {
            let size = pool.send_size(request.clone()).await;
            let size = size.map_err(|error| refused(session, request, &error))?;
            total += size;
            if options.verbose {
                tell_size(session, request, size, options);
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
    if options.all_between {
        session.out.push(Stream::Out, &package_begin(name));
    }
    for request in requests {
        copy(session, pool, request, options).await?;
    }
    if options.all_between {
        session.out.push(Stream::Out, &package_end());
    }
    Ok(())
}

/// Hands the stream on, and says every second how far it is.
async fn copy(
    session: &Session,
    pool: &PoolHandle,
    request: &SendRequest,
    options: &Options,
) -> Outcome {
    let fail = |error: EngineError| refused(session, request, &error);
    let mut stream = pool.send(request.clone()).await.map_err(fail)?;
    if options.progress && !options.parsable {
        session
            .out
            .error(format!("TIME        SENT   SNAPSHOT {}", request.snapshot));
    }
    let (mut told, mut sent) = (Instant::now(), 0_u64);
    while let Some(chunk) = stream.next().await.map_err(fail)? {
        sent += chunk.len() as u64;
        session.out.push(Stream::Out, &chunk);
        if options.progress && told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let time = clock();
            session.out.error(if options.parsable {
                format!("{time}\t{sent}\t{}", request.snapshot)
            } else {
                format!("{time}   {:>5}   {}", nice_bytes(sent), request.snapshot)
            });
        }
        session.out.flush().await?;
    }
    Ok(())
}

fn tell_size(session: &Session, request: &SendRequest, size: u64, options: &Options) {
    let SendRequest { snapshot, from, .. } = request;
    // Of several streams, each names the snapshot before it without its dataset.
    let from = from.as_deref().map(|from| match from.split_once('@') {
        Some((_, short)) if options.all_between => short,
        _ => from,
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
        _ => error.to_string(),
    };
    session.fail(format!("warning: cannot send '{name}': {why}"))
}
