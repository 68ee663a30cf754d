//! The daemon's log on standard error: an event a line, with time, level, the module it comes from and the message, as text or
//! as JSON.
//!
//! A command in a process of its own keeps no log: what would be a warning there is printed as `sanbox: MESSAGE`.

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use manage::config::LogFormat;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

/// The start, the end, pools, and what has no module of its own.
pub(crate) const SANBOX: &str = "sanbox";
/// HTTPS: the REST API and the console in the browser.
pub(crate) const CONSOLE: &str = "console";
/// Commands that come through the control socket.
pub(crate) const CONTROL: &str = "control";
/// Block devices of volumes on this machine.
pub(crate) const DEVICES: &str = "devices";
/// iSCSI.
pub(crate) const ISCSI: &str = "iscsi";
/// Mounts by FUSE.
pub(crate) const MOUNT: &str = "mount";
/// NBD.
pub(crate) const NBD: &str = "nbd";
/// NFS, its port mapper, and which datasets are shared.
pub(crate) const NFS: &str = "nfs";
/// Replication.
pub(crate) const REPLICATION: &str = "replication";
/// Snapshot policies.
pub(crate) const POLICY: &str = "policy";

/// SMB: Samba, and which datasets are shared by it.
pub(crate) const SMB: &str = "smb";

/// All modules, as levels and lines name them.
pub(crate) const MODULES: &[&str] = &[
    SANBOX,
    CONSOLE,
    CONTROL,
    DEVICES,
    ISCSI,
    MOUNT,
    NBD,
    NFS,
    POLICY,
    REPLICATION,
    SMB,
];

/// Lines of one kind that are written in [`LogLimit::PERIOD`].
const LIMITED_LINES: u32 = 10;

/// Keeps lines that strangers on the network cause from filling the log.
pub(crate) struct LogLimit(Mutex<LimitedLines>);

struct LimitedLines {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogLimit {
    const PERIOD: Duration = Duration::from_secs(60);

    /// A limit of its own, of which nothing was used.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(LimitedLines {
            since: None,
            written: 0,
            left_out: 0,
        }))
    }

    /// Returns what a line ends with that may be written now, which says how many before it were not; `None` when this one may not.
    pub(crate) fn admit(&self) -> Option<String> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<String> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since| now.saturating_duration_since(since) >= Self::PERIOD;
        if lines.since.is_none_or(is_over) {
            lines.since = Some(now);
            lines.written = 0;
        }
        if lines.written == LIMITED_LINES {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(match std::mem::take(&mut lines.left_out) {
            0 => String::new(),
            more => format!(" (and {more} more like this)"),
        })
    }
}

/// Which events are written: a level for all, and others for single modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Levels {
    default: LevelFilter,
    modules: Vec<(&'static str, LevelFilter)>,
}

impl Levels {
    /// Reads `LEVEL,MODULE=LEVEL,...`; what is not said stays as it is in `self`.
    ///
    /// # Errors
    /// Which word is neither a level nor a module, and which there are.
    pub(crate) fn with(&self, text: &str) -> Result<Self, String> {
        let mut levels = self.clone();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word.split_once('=') {
                None => levels.default = level(word)?,
                Some((name, value)) => {
                    let value = level(value)?;
                    let known = MODULES.iter().find(|known| **known == name);
                    let Some(module) = known else {
                        return Err(format!(
                            "'{name}' is not a module of the log (they are {})",
                            MODULES.join(", ")
                        ));
                    };
                    levels.modules.retain(|(known, _)| known != module);
                    levels.modules.push((module, value));
                }
            }
        }
        levels.modules.sort_unstable_by_key(|(module, _)| *module);
        Ok(levels)
    }

    fn targets(&self) -> Targets {
        Targets::new()
            .with_default(self.default)
            .with_targets(self.modules.iter().copied())
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            default: LevelFilter::INFO,
            modules: Vec::new(),
        }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.default)?;
        for (module, level) in &self.modules {
            write!(f, ",{module}={level}")?;
        }
        Ok(())
    }
}

fn level(word: &str) -> Result<LevelFilter, String> {
    match word {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!(
            "'{word}' is not a level (off, error, warn, info, debug or trace)"
        )),
    }
}

/// The log of this process, once it has one.
struct RunningLog {
    levels: Mutex<Levels>,
    filter: reload::Handle<Targets, Registry>,
}

static LOG: OnceLock<RunningLog> = OnceLock::new();

/// Begins the log of a daemon. Later calls in the same process do nothing.
pub(crate) fn start(levels: Levels, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(levels.targets());
    let registry = Registry::default().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let begun = match format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            registry.with(lines.with_ansi(colours)).try_init()
        }
    };
    if begun.is_ok() {
        let _ = LOG.set(RunningLog {
            levels: Mutex::new(levels),
            filter: handle,
        });
    }
}

/// Has the warnings of a process that runs one command printed as commands print theirs.
pub(crate) fn start_plain() {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(Plain);
    // One that was begun before goes on.
    let _ = Registry::default()
        .with(LevelFilter::WARN)
        .with(lines)
        .try_init();
}

/// Returns the levels of the log; `None` in a process without one.
pub(crate) fn levels() -> Option<Levels> {
    let log = LOG.get()?;
    let levels = log.levels.lock();
    Some(levels.unwrap_or_else(PoisonError::into_inner).clone())
}

/// Sets the levels of the log; a process without one has none to set.
///
/// # Errors
/// The log cannot be reached any more.
pub(crate) fn set_levels(levels: Levels) -> Result<(), String> {
    let Some(log) = LOG.get() else {
        return Ok(());
    };
    let mut now = log.levels.lock().unwrap_or_else(PoisonError::into_inner);
    log.filter
        .reload(levels.targets())
        .map_err(|error| error.to_string())?;
    *now = levels;
    Ok(())
}

/// Lines without time and level.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        line.write_str("sanbox: ")?;
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let shown = match Levels::default().with(text) {
            Ok(levels) => levels.to_string(),
            Err(why) => why,
        };
        assert_eq!(shown, expect, "{text}");
    }

    #[test]
    fn a_limit_counts_what_it_leaves_out() {
        let limit = LogLimit::new();
        let began = Instant::now();
        let lines = (0..25).filter_map(|_| limit.admit_at(began));
        assert_eq!(lines.collect::<Vec<_>>(), vec![""; 10]);
        let later = began + LogLimit::PERIOD;
        let more = limit.admit_at(later);
        assert_eq!(more.as_deref(), Some(" (and 15 more like this)"));
        assert_eq!(limit.admit_at(later).as_deref(), Some(""));
    }

    #[test]
    fn levels_are_read_and_shown() {
        check("", "info");
        check("warn", "warn");
        check("nfs=debug", "info,nfs=debug");
        check("error, nfs=debug,iscsi=off", "error,iscsi=off,nfs=debug");
        check("nfs=debug,nfs=warn", "info,nfs=warn");
        check(
            "loud",
            "'loud' is not a level (off, error, warn, info, debug or trace)",
        );
        check(
            "afp=info",
            "'afp' is not a module of the log (they are sanbox, console, control, devices, iscsi, mount, nbd, nfs, policy, replication, smb)",
        );
    }
}
