//! `sanbox doctor`: looks for trouble and says what to do about it.

use std::os::unix::fs::PermissionsExt as _;

use engine::property::{DatasetKind, Value};
use engine::{DatasetFilter, Health, PoolHandle, PropertyQuery, StatusReason};

use crate::appliance::KnownPool;
use crate::cli::{Exit, Outcome, Session};

/// What was found, good and bad.
struct Report<'a> {
    session: &'a Session,
    problems: usize,
}

impl Report<'_> {
    fn good(&self, text: impl AsRef<str>) {
        self.session.out.line(format!("ok       {}", text.as_ref()));
    }

    fn note(&self, text: impl AsRef<str>) {
        self.session.out.line(format!("note     {}", text.as_ref()));
    }

    fn bad(&mut self, text: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.problems += 1;
        self.session.out.line(format!("PROBLEM  {}", text.as_ref()));
        self.session
            .out
            .line(format!("         {}", remedy.as_ref()));
    }
}

pub(super) async fn run(session: &Session) -> Outcome {
    let mut report = Report {
        session,
        problems: 0,
    };
    state(&mut report);
    machine(&mut report);
    let known = session.appliance.pools().await;
    if known.is_empty() {
        report.note(
            "no pools are imported: 'zpool import -d DIR' looks for some, 'zpool create' makes one",
        );
    }
    for pool in known {
        match pool {
            KnownPool::Open(pool) => examine(&mut report, &pool).await,
            KnownPool::Closed(cached, error) => report.bad(
                format!("pool '{}' cannot be opened: {error}", cached.name),
                format!(
                    "check that its devices are there ({}); 'zpool export {}' makes the appliance forget it, without touching the data",
                    cached.devices.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", "),
                    cached.name
                ),
            ),
        }
    }
    for pool in super::sample::Sample::of(session, None).await.pools {
        let logs = &mut pool.status.root.children.iter();
        if logs.any(|top| top.bias == engine::AllocationBias::Log) {
            for sentence in super::zilstat::reasons(session, &pool).await {
                report.note(format!("pool '{}': {sentence}", pool.status.name));
            }
        }
    }
    match report.problems {
        0 => {
            session.out.line("Nothing needs attention.");
            Ok(())
        }
        1 => {
            session.out.line("1 problem found.");
            Err(Exit(1))
        }
        count => {
            session.out.line(format!("{count} problems found."));
            Err(Exit(1))
        }
    }
}

fn state(report: &mut Report<'_>) {
    let appliance = &report.session.appliance;
    let path = appliance.state().path();
    match std::fs::metadata(path) {
        Ok(data) if data.permissions().mode() & 0o077 != 0 => report.bad(
            format!(
                "the state directory {} is open to other users",
                path.display()
            ),
            format!("chmod 700 {}", path.display()),
        ),
        Ok(_) => report.good(format!("state directory {}", path.display())),
        Err(error) => report.bad(format!("{}: {error}", path.display()), "check the path"),
    }
    if appliance.is_daemon() {
        report.good("a daemon runs and answers");
    } else {
        report.note("no daemon runs: nothing is shared until 'sanbox serve' is started");
    }
}

fn machine(report: &mut Report<'_>) {
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(_) => report.good("FUSE is available: datasets can be mounted here"),
        Err(error) => report.note(format!(
            "FUSE is not available (/dev/fuse: {error}): no mounting here, everything else works"
        )),
    }
    let disabled =
        std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if matches!(disabled.trim(), "1" | "2") {
        report.note("io_uring is turned off on this machine: disks are reached through threads, a little slower");
    }
}

async fn examine(report: &mut Report<'_>, pool: &PoolHandle) {
    let name = pool.name();
    let Ok(status) = pool.status().await else {
        return;
    };
    let is_well = matches!(
        status.reason,
        StatusReason::Ok | StatusReason::FeaturesDisabled | StatusReason::VersionOlder
    );
    if is_well {
        if status.health == Health::Online {
            report.good(format!("pool '{name}' is {}", status.health.as_str()));
        }
    } else {
        report.bad(
            format!("pool '{name}' is {}", status.health.as_str()),
            format!("'zpool status {name}' says what it means for the data and what to do"),
        );
    }
    if status.data_errors > 0 {
        report.bad(
            format!(
                "pool '{name}' has {} damaged files or objects",
                status.data_errors
            ),
            format!("'zpool status -v {name}' lists them; restore them from a backup"),
        );
    }
    let (size, used) = (status.root.size_bytes, status.root.allocated_bytes);
    if size > 0 && used / 8 > size / 10 {
        report.bad(
            format!("pool '{name}' is {}% full", used / (size / 100).max(1)),
            "remove what is not needed, or add devices: above 80% writing becomes slower",
        );
    }
    let filter = DatasetFilter {
        root: name.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let query = PropertyQuery::Named(vec!["sharenfs".to_owned()]);
    let Ok(datasets) = pool.datasets(&filter, &query).await else {
        return;
    };
    for info in datasets {
        let Some(Value::Text(text)) = info.property("sharenfs").map(|property| &property.value)
        else {
            continue;
        };
        if text == "off" {
            continue;
        }
        let setting = [("sharenfs".to_owned(), text.clone())];
        match crate::appliance::check_share_settings(&setting) {
            Some(why) => report.bad(
                format!("dataset '{}' is not shared: {why}", info.name),
                format!("zfs set sharenfs=on {}", info.name),
            ),
            None if report.session.appliance.is_daemon() => {
                report.good(format!("dataset '{}' is shared by NFS", info.name));
            }
            None => report.note(format!("dataset '{}' would be shared by NFS", info.name)),
        }
    }
}
