//! `zpool status`.

use engine::{
    CheckpointStatus, Health, LeafActivityState, LeafActivityStatus, PoolStatus, RebuildState,
    RebuildStatus, RemovalStage, RemovalStatus, ScanStatus, StatusReason, VdevStatus,
};
use serde_json::{Map, Value, json};

use super::list::vdev_json;
use super::{NO_SCRIPTS, NameStyle, Stamp, Subject, repeat, sections, status_width, subjects};
use crate::cli::format::{date_with_seconds, nice_bytes, nice_number};
use crate::cli::getopt::{Long, Opt};
use crate::cli::{Exit, Outcome, Session, json as forms};

#[derive(Clone, Copy, Default)]
struct Options {
    only_unhealthy_pools: bool,
    only_unhealthy_vdevs: bool,
    exact: bool,
    slow: bool,
    verbose: bool,
    dio: bool,
    trim: bool,
    initialize: bool,
    json: bool,
    integers: bool,
    flat: bool,
    by_guid: bool,
    style: NameStyle,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    const LONGS: &[Long] = &[
        Long {
            name: "power",
            value: false,
        },
        Long {
            name: "json",
            value: false,
        },
        Long {
            name: "json-int",
            value: false,
        },
        Long {
            name: "json-flat-vdevs",
            value: false,
        },
        Long {
            name: "json-pool-key-guid",
            value: false,
        },
    ];
    let mut options = Options::default();
    let mut stamp = Stamp::None;
    let mut operands =
        session.options(arguments, "c:jdDegiLpPstT:vx", LONGS, |session, option| {
            match option {
                Opt::Short('c', _) => return Err(session.fail(NO_SCRIPTS)),
                Opt::Short('j', _) | Opt::Long("json", _) => options.json = true,
                Opt::Short('d', _) => options.dio = true,
                Opt::Short('e', _) => options.only_unhealthy_vdevs = true,
                Opt::Short('g', _) => options.style.guid = true,
                Opt::Short('i', _) => options.initialize = true,
                Opt::Short('L', _) => options.style.real_path = true,
                Opt::Short('p', _) => options.exact = true,
                Opt::Short('P', _) => options.style.full_path = true,
                Opt::Short('s', _) => options.slow = true,
                Opt::Short('t', _) => options.trim = true,
                Opt::Short('T', Some(form)) => stamp = Stamp::of(session, &form)?,
                Opt::Short('v', _) => options.verbose = true,
                Opt::Short('x', _) => options.only_unhealthy_pools = true,
                Opt::Long("json-int", _) => options.integers = true,
                Opt::Long("json-flat-vdevs", _) => options.flat = true,
                Opt::Long("json-pool-key-guid", _) => options.by_guid = true,
                _ => {}
            }
            Ok(())
        })?;
    if !options.json {
        for (given, name) in [
            (options.integers, "json-int"),
            (options.flat, "json-flat-vdevs"),
            (options.by_guid, "json-pool-key-guid"),
        ] {
            if given {
                return Err(session.misuse(format!("'{name}' only works with '-j' option")));
            }
        }
    }
    let again = repeat(session, &mut operands)?;
    let mut rounds = 0;
    loop {
        stamp.print(session);
        let (pools, missing) = subjects(session, &operands).await;
        print(session, &pools, operands.is_empty(), options).await;
        rounds += 1;
        if missing {
            return Err(Exit(1));
        }
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

async fn print(session: &Session, pools: &[Subject], all: bool, options: Options) {
    let mut objects = Map::new();
    let mut first = true;
    for pool in pools {
        let status = match pool {
            Subject::Open(pool) => match pool.status().await {
                Ok(status) => status,
                // Exported meanwhile: nothing to show.
                Err(_) => continue,
            },
            Subject::Closed(cached, error) => PoolStatus {
                name: cached.name.clone(),
                guid: cached.guid,
                health: Health::Unavail,
                reason: StatusReason::CorruptPool,
                details: vec![error.to_string()],
                root: VdevStatus {
                    name: cached.name.clone(),
                    kind: "root".to_owned(),
                    health: Health::Unavail,
                    note: Some("cannot open".to_owned()),
                    children: cached
                        .devices
                        .iter()
                        .map(|path| VdevStatus {
                            name: path.to_string_lossy().into_owned(),
                            kind: "file".to_owned(),
                            path: Some(path.clone()),
                            health: Health::Unavail,
                            ..VdevStatus::default()
                        })
                        .collect(),
                    ..VdevStatus::default()
                },
                ..PoolStatus::default()
            },
        };
        let healthy = matches!(
            status.reason,
            StatusReason::Ok | StatusReason::FeaturesDisabled
        );
        if options.json {
            if !(options.only_unhealthy_pools && healthy) {
                let key = if options.by_guid {
                    status.guid.to_string()
                } else {
                    status.name.clone()
                };
                objects.insert(key, pool_json(&status, options));
            }
            continue;
        }
        if options.only_unhealthy_pools && healthy {
            if !all {
                session
                    .out
                    .line(format!("pool '{}' is healthy", status.name));
                first = false;
            }
            continue;
        }
        if !first {
            session.out.line("");
        }
        first = false;
        let mut damaged = None;
        if options.verbose
            && status.data_errors > 0
            && let Subject::Open(pool) = pool
        {
            damaged = pool.damaged_files().await.ok();
        }
        session
            .out
            .text(pool_text(&status, damaged.as_deref(), options));
    }
    if options.json {
        session
            .out
            .line(forms::envelope("zpool status", "pools", objects));
    } else if pools.is_empty() && all {
        session.out.error("no pools available");
    } else if first && options.only_unhealthy_pools && all {
        session.out.line("all pools are healthy");
    }
}

fn pool_text(status: &PoolStatus, damaged: Option<&[String]>, options: Options) -> String {
    let mut text = format!(
        "  pool: {}\n state: {}\n",
        status.name,
        status.health.as_str()
    );
    if let Some(explanation) = explain(status) {
        text.push_str(&format!(
            "status: {}\naction: {}\n",
            explanation.status, explanation.action
        ));
        if let Some(id) = explanation.message_id {
            text.push_str(&format!(
                "   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"
            ));
        }
    }
    text.push_str(&scans_text(status, crate::appliance::now_seconds()));
    if let Some(removal) = &status.removal {
        let name = removed_name(status, removal, options);
        text.push_str(&removal_text(
            removal,
            &name,
            crate::appliance::now_seconds(),
        ));
    }
    if let Some(kept) = &status.checkpoint {
        text.push_str(&checkpoint_text(kept, status.scan.as_ref()));
    }
    if let Some(reason) = &status.freeing_stopped {
        text.push_str(&format!(
            "  free: stopped, what was destroyed holds more space than it should: {reason}\n\tThe next import goes on \
             with it.\n"
        ));
    }
    let width = status_width(status, options.style).max(10);
    text.push_str("config:\n\n");
    text.push_str(&format!(
        "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
        "NAME", "STATE", "READ", "WRITE", "CKSUM"
    ));
    if options.slow {
        text.push_str("  SLOW");
    }
    if options.dio {
        text.push_str("   DIO");
    }
    text.push('\n');
    vdev_lines(&mut text, &status.root, &status.name, 0, width, options);
    let shown = |device: &&VdevStatus| !options.only_unhealthy_vdevs || !healthy(device);
    let caches: Vec<_> = status.caches.iter().filter(shown).collect();
    if !caches.is_empty() {
        text.push_str("\tcache\n");
    }
    for device in caches {
        vdev_lines(
            &mut text,
            device,
            &options.style.name(device),
            2,
            width,
            options,
        );
    }
    let spares: Vec<_> = status.spares.iter().filter(shown).collect();
    if !spares.is_empty() {
        text.push_str("\tspares\n");
    }
    for device in spares {
        let rest = width - 2;
        text.push_str(&format!(
            "\t  {:<rest$}  {:<8}",
            options.style.name(device),
            device.health.as_str()
        ));
        if let Some(note) = &device.note {
            text.push_str(&format!("  {note}"));
        }
        text.push('\n');
    }
    text.push('\n');
    match (status.data_errors, damaged) {
        (0, _) => text.push_str("errors: No known data errors\n"),
        (_, Some(files)) => {
            text.push_str(
                "errors: Permanent errors have been detected in the following files:\n\n",
            );
            for file in files {
                text.push_str(&format!("{:7} {file}\n", ""));
            }
        }
        (count, None) => {
            text.push_str(&format!(
                "errors: {count} data errors, use '-v' for a list\n"
            ));
        }
    }
    text
}

fn vdev_lines(
    text: &mut String,
    vdev: &VdevStatus,
    name: &str,
    depth: usize,
    width: usize,
    options: Options,
) {
    if options.only_unhealthy_vdevs && depth > 0 && healthy(vdev) {
        return;
    }
    let number = |value: u64| {
        if options.exact {
            value.to_string()
        } else {
            nice_number(value)
        }
    };
    text.push_str(&format!(
        "\t{:depth$}{name:<rest$}  {:<8} {:>5} {:>5} {:>5}",
        "",
        vdev.health.as_str(),
        number(vdev.read_errors),
        number(vdev.write_errors),
        number(vdev.checksum_errors),
        rest = width.saturating_sub(depth),
    ));
    let leaf = vdev.children.is_empty();
    if options.slow {
        let slow = if leaf {
            number(vdev.slow_ios)
        } else {
            "-".to_owned()
        };
        text.push_str(&format!(" {slow:>5}"));
    }
    if options.dio {
        text.push_str("     0");
    }
    if let Some(note) = &vdev.note {
        text.push_str("  ");
        text.push_str(note);
    }
    if vdev.removing {
        text.push_str("  (removing)");
    } else if vdev.non_allocating {
        text.push_str("  (non-allocating)");
    }
    if vdev.resilvering && vdev.health == Health::Online {
        text.push_str("  (resilvering)");
    }
    if leaf {
        text.push_str(&leaf_work_text(
            &vdev.initialize,
            options.initialize,
            ["initialized", "initializing"],
        ));
        text.push_str(&leaf_work_text(
            &vdev.trim,
            options.trim,
            ["trimmed", "trimming"],
        ));
    }
    text.push('\n');
    if depth == 0 {
        for (title, tops) in sections(vdev) {
            if options.only_unhealthy_vdevs && tops.iter().all(|top| healthy(top)) {
                continue;
            }
            if let Some(title) = title {
                text.push_str(&format!("\t{title}\t\n"));
            }
            for top in tops {
                vdev_lines(text, top, &options.style.name(top), 2, width, options);
            }
        }
        return;
    }
    for child in &vdev.children {
        vdev_lines(
            text,
            child,
            &options.style.name(child),
            depth + 2,
            width,
            options,
        );
    }
}

fn healthy(vdev: &VdevStatus) -> bool {
    if !vdev.children.is_empty() {
        return vdev.children.iter().all(healthy);
    }
    matches!(
        vdev.health,
        Health::Online | Health::Available | Health::InUse
    ) && vdev.read_errors + vdev.write_errors + vdev.checksum_errors == 0
}

fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 {
        format!("{days} days {clock}")
    } else {
        clock
    }
}

// OpenZFS: cmd/zpool/zpool_main.c, print_status_initialize, print_status_trim
fn leaf_work_text(work: &LeafActivityStatus, verbose: bool, [done, doing]: [&str; 2]) -> String {
    if !verbose {
        return match work.state {
            LeafActivityState::Active => format!("  ({doing})"),
            _ => String::new(),
        };
    }
    let since = match work.state {
        LeafActivityState::Suspended => "suspended, started at",
        LeafActivityState::Active => "started at",
        LeafActivityState::Complete => "completed at",
        LeafActivityState::None | LeafActivityState::Canceled if work.unsupported => {
            return "  (trim unsupported)".to_owned();
        }
        LeafActivityState::None | LeafActivityState::Canceled => return format!("  (un{done})"),
    };
    let date = date_with_seconds(work.time);
    format!("  ({}% {done}, {since} {date})", work.percent)
}

/// The name of the vdev of the newest removal; of one that has gone, that of its place.
fn removed_name(status: &PoolStatus, removal: &RemovalStatus, options: Options) -> String {
    let mut tops = status.root.children.iter();
    let found = tops.find(|top| top.id == removal.vdev);
    found.map_or_else(
        || format!("indirect-{}", removal.vdev),
        |top| options.style.name(top),
    )
}

// OpenZFS: cmd/zpool/zpool_main.c, print_removal_status
fn removal_text(removal: &RemovalStatus, name: &str, now: u64) -> String {
    /// Hours after which an estimate is no help.
    const HOURS_MAX: u64 = 30 * 24;
    let (start, end) = (
        date_with_seconds(removal.start_time),
        date_with_seconds(removal.end_time),
    );
    let mut text = match removal.stage {
        RemovalStage::Finished => {
            let minutes = removal.end_time.saturating_sub(removal.start_time) / 60;
            format!(
                "remove: Removal of vdev {} copied {} in {}h{}m, completed on {end}\n",
                removal.vdev,
                nice_number(removal.copied_bytes),
                minutes / 60,
                minutes % 60
            )
        }
        RemovalStage::Canceled => format!("remove: Removal of {name} canceled on {end}\n"),
        RemovalStage::Evacuating => {
            let (copied, total) = (removal.copied_bytes.max(1), removal.to_copy_bytes);
            let elapsed = now.saturating_sub(removal.start_time).max(1);
            let rate = (copied / elapsed).max(1);
            let minutes = total.saturating_sub(copied) / rate / 60;
            let hundredths = (u128::from(copied) * 10_000)
                .checked_div(u128::from(total))
                .unwrap_or(10_000);
            let left = if minutes / 60 < HOURS_MAX {
                format!(", {}h{}m to go", minutes / 60, minutes % 60)
            } else {
                ", (copy is slow, no estimated time)".to_owned()
            };
            format!(
                "remove: Evacuation of {name} in progress since {start}\n\t{} copied out of {} at {}/s, {}.{:02}% \
                 done{left}\n",
                nice_number(copied),
                nice_number(total),
                nice_number(rate),
                hundredths / 100,
                hundredths % 100,
            )
        }
    };
    if removal.mapping_bytes > 0 {
        let bytes = nice_number(removal.mapping_bytes);
        text.push_str(&format!(
            "\t{bytes} memory used for removed device mappings\n"
        ));
    }
    text
}

// OpenZFS: cmd/zpool/zpool_main.c, print_checkpoint_scan_warning, print_checkpoint_status
fn checkpoint_text(kept: &CheckpointStatus, scan: Option<&ScanStatus>) -> String {
    let bytes = nice_number(kept.bytes);
    let Some(time) = kept.time else {
        return format!("checkpoint: discarding, {bytes} remaining.\n");
    };
    let warning = match scan {
        Some(scan) if scan.running => "    scan warning: skipping",
        Some(scan) if scan.end_time >= time => "    scan warning: skipped",
        _ => "",
    };
    let warning = match warning {
        "" => String::new(),
        text => format!("{text} blocks that are only referenced by the checkpoint.\n"),
    };
    let date = date_with_seconds(time);
    format!("{warning}checkpoint: created {date}, consumes {bytes}\n")
}

/// The scrub, and the resilver that runs, or that was the last, of either kind.
// OpenZFS: cmd/zpool/zpool_main.c, print_scan_status
fn scans_text(status: &PoolStatus, now: u64) -> String {
    let mut text = String::new();
    let tops = status.root.children.iter();
    let rebuilds: Vec<_> = tops
        .filter_map(|top| Some((top.name.as_str(), top.rebuild?)))
        .collect();
    let is_active = rebuilds
        .iter()
        .any(|(_, rebuild)| rebuild.state == RebuildState::Active);
    let ended = rebuilds.iter().map(|(_, rebuild)| rebuild.end_time).max();
    let ended = ended.unwrap_or(0);
    let scan = status.scan.as_ref();
    if let Some(scrub) = scan.filter(|scan| !scan.resilver) {
        text.push_str(&scan_text(scrub, now));
    }
    let resilver = scan.filter(|scan| scan.resilver);
    let healed = resilver.map_or(0, |scan| scan.end_time);
    let heals = resilver.is_some_and(|scan| scan.running);
    if let Some(scan) = resilver.filter(|_| heals || (!is_active && healed > ended)) {
        text.push_str(&scan_text(scan, now));
    } else if is_active || ended > healed {
        for (name, rebuild) in &rebuilds {
            text.push_str(&rebuild_text(rebuild, name));
        }
    }
    text
}

// OpenZFS: cmd/zpool/zpool_main.c, print_rebuild_status_impl
fn rebuild_text(rebuild: &RebuildStatus, name: &str) -> String {
    let end = date_with_seconds(rebuild.end_time);
    let rebuilt = nice_bytes(rebuild.rebuilt_bytes);
    match rebuild.state {
        RebuildState::Complete => {
            return format!(
                "  scan: resilvered ({name}) {rebuilt} in {} with {} errors on {end}\n",
                duration(rebuild.scan_time_ms / 1000),
                rebuild.errors,
            );
        }
        RebuildState::Canceled => {
            return format!("  scan: resilver ({name}) canceled on {end}\n");
        }
        RebuildState::Active => {}
    }
    let rate = |bytes: u64| bytes / (rebuild.pass_time_ms + 1) * 1000;
    let scan_rate = rate(rebuild.pass_scanned_bytes);
    let at = |rate: u64| match rate {
        0 => String::new(),
        rate => format!(" at {}/s", nice_bytes(rate)),
    };
    let all = rebuild.estimated_bytes;
    let to_issue = all.saturating_sub(rebuild.pass_skipped_bytes);
    let done = u128::from(rebuild.scanned_bytes) * 10_000 / (u128::from(all) + 1);
    let done = done.min(10_000);
    let left = match all.checked_sub(rebuild.scanned_bytes) {
        Some(left) if scan_rate >= ESTIMATE_RATE_MIN => {
            format!("{} to go", duration(left / scan_rate))
        }
        _ => "no estimated completion time".to_owned(),
    };
    format!(
        "  scan: resilver ({name}) in progress since {}\n\t{} / {} scanned{}, {} / {} issued{}\n\t\
         {rebuilt} resilvered, {}.{:02}% done, {left}\n",
        date_with_seconds(rebuild.start_time),
        nice_bytes(rebuild.scanned_bytes),
        nice_bytes(all),
        at(scan_rate),
        nice_bytes(rebuild.issued_bytes),
        nice_bytes(to_issue),
        at(rate(rebuild.pass_issued_bytes)),
        done / 100,
        done % 100,
    )
}

/// Below this rate an estimate would be a guess.
const ESTIMATE_RATE_MIN: u64 = 10 << 20;

// OpenZFS: cmd/zpool/zpool_main.c, print_scan_scrub_resilver_status (forms and when an estimate is given)
fn scan_text(scan: &ScanStatus, now: u64) -> String {
    let (start, end) = (
        date_with_seconds(scan.start_time),
        date_with_seconds(scan.end_time),
    );
    let what = if scan.resilver { "resilver" } else { "scrub" };
    if !scan.running {
        if scan.cancelled {
            return format!("  scan: {what} canceled on {end}\n");
        }
        let did = if scan.resilver {
            "resilvered"
        } else {
            "scrub repaired"
        };
        return format!(
            "  scan: {did} {} in {} with {} errors on {end}\n",
            nice_bytes(scan.processed_bytes),
            duration(scan.end_time.saturating_sub(scan.start_time)),
            scan.errors,
        );
    }
    let paused = scan.paused_since != 0;
    let mut text = if paused {
        format!(
            "  scan: scrub paused since {}\n\tscrub started on {start}\n",
            date_with_seconds(scan.paused_since)
        )
    } else {
        format!("  scan: {what} in progress since {start}\n")
    };
    let elapsed = now
        .saturating_sub(scan.pass_start_time)
        .saturating_sub(scan.pass_spent_paused)
        .max(1);
    let scan_rate = scan.pass_examined_bytes / elapsed;
    let issue_rate = scan.pass_issued_bytes / elapsed;
    let to_issue = scan.to_examine_bytes.saturating_sub(scan.skipped_bytes);
    let rate = |rate: u64| {
        if paused || rate == 0 {
            String::new()
        } else {
            format!(" at {}/s", nice_bytes(rate))
        }
    };
    text.push_str(&format!(
        "\t{} / {} scanned{}, {} / {} issued{}\n",
        nice_bytes(scan.examined_bytes),
        nice_bytes(scan.to_examine_bytes),
        rate(scan_rate),
        nice_bytes(scan.issued_bytes),
        nice_bytes(to_issue),
        rate(issue_rate),
    ));
    let done = if scan.resilver {
        "resilvered"
    } else {
        "repaired"
    };
    let hundredths = (u128::from(scan.issued_bytes) * 10_000)
        .checked_div(u128::from(to_issue))
        .unwrap_or(0);
    text.push_str(&format!(
        "\t{} {done}, {}.{:02}% done",
        nice_bytes(scan.processed_bytes),
        hundredths / 100,
        hundredths % 100,
    ));
    let under_way = if scan.resilver {
        scan.processed_bytes > 0
    } else {
        scan.pass_issued_bytes > 0
    };
    if paused {
        text.push('\n');
    } else if to_issue >= scan.issued_bytes && issue_rate >= ESTIMATE_RATE_MIN && under_way {
        let left = (to_issue - scan.issued_bytes) / issue_rate;
        text.push_str(&format!(", {} to go\n", duration(left)));
    } else {
        text.push_str(", no estimated completion time\n");
    }
    text
}

/// What is the matter with a pool and what to do about it.
struct Explanation {
    status: String,
    action: String,
    message_id: Option<&'static str>,
}

fn explain(status: &PoolStatus) -> Option<Explanation> {
    let (text, action, message_id) = match status.reason {
        StatusReason::Ok => return None,
        StatusReason::MissingDeviceReplicated => (
            "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to \
             continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
            Some("ZFS-8000-2Q"),
        ),
        StatusReason::MissingDevice => (
            "One or more devices could not be opened.  There are insufficient\n\treplicas for the \
             pool to continue functioning.",
            "Attach the missing device and online it using 'zpool online'.",
            Some("ZFS-8000-3C"),
        ),
        StatusReason::CorruptLabelReplicated => (
            "One or more devices could not be used because the label is missing or\n\tinvalid.  \
             Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
            Some("ZFS-8000-4J"),
        ),
        StatusReason::CorruptLabel => (
            "One or more devices could not be used because the label is missing \n\tor invalid.  \
             There are insufficient replicas for the pool to continue\n\tfunctioning.",
            "Destroy and re-create the pool from\n\ta backup source.",
            Some("ZFS-8000-5E"),
        ),
        StatusReason::BadGuidSum => (
            "One or more devices are missing from the system.",
            "Attach the missing\n\tdevices and try again.",
            Some("ZFS-8000-6X"),
        ),
        StatusReason::CorruptPool => (
            "The pool metadata is corrupted and the pool cannot be opened.",
            "Destroy and re-create the pool from\n\ta backup source.",
            Some("ZFS-8000-72"),
        ),
        StatusReason::CorruptData => (
            "One or more devices has experienced an error resulting in data\n\tcorruption.  \
             Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from \
             backup.",
            Some("ZFS-8000-8A"),
        ),
        StatusReason::FailingDevice => (
            "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to \
             correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool \
             clear' or replace the device with 'zpool replace'.",
            Some("ZFS-8000-9P"),
        ),
        StatusReason::VersionNewer => (
            "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool cannot \
             be accessed on this system.",
            "Access the pool from a system running more recent software, or\n\trestore the pool from \
             backup.",
            Some("ZFS-8000-A5"),
        ),
        StatusReason::HostidMismatch | StatusReason::HostidActive => (
            "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was \
             previously imported into a system with a different hostid,\n\tand then was verbatim \
             imported into this system.",
            "Export this pool on all systems on which it is imported.\n\tThen import it to correct \
             the mismatch.",
            Some("ZFS-8000-EY"),
        ),
        StatusReason::IoFailureWait | StatusReason::IoFailureContinue => (
            "One or more devices are faulted in response to IO failures.",
            "Make sure the affected devices are connected, then run 'zpool clear'.",
            Some(if status.reason == StatusReason::IoFailureWait {
                "ZFS-8000-HC"
            } else {
                "ZFS-8000-JQ"
            }),
        ),
        StatusReason::IoFailureMultihost => (
            "The pool is suspended because multihost writes failed or were delayed;\n\tanother system \
             could import the pool undetected.",
            "Make sure the pool's devices are connected, then export the pool and\n\timport it again.",
            Some("ZFS-8000-MM"),
        ),
        StatusReason::OutOfSpace => (
            "There was not enough space left to write out what was accepted.  No device\n\tis at fault.  \
             The disks hold everything up to the last complete transaction group.",
            "Export the pool and import it again, then remove files or snapshots,\n\tor make room with \
             'zpool add'.",
            None,
        ),
        StatusReason::UnsupportedFeatureRead => (
            "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s) \
             not supported on this system:",
            "Access the pool from a system that supports the required feature(s),\n\tor restore the \
             pool from backup.",
            None,
        ),
        StatusReason::UnsupportedFeatureWrite => (
            "The pool can only be accessed in read-only mode on this system. It\n\tcannot be accessed \
             in read-write mode because it uses the following\n\tfeature(s) not supported on this \
             system:",
            "The pool cannot be accessed in read-write mode. Import the pool with\n\t\"-o \
             readonly=on\", access the pool from a system that supports the\n\trequired feature(s), \
             or restore the pool from backup.",
            None,
        ),
        StatusReason::FaultedDeviceReplicated => (
            "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas \
             exist for the pool to continue functioning in a\n\tdegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
            None,
        ),
        StatusReason::FaultedDevice => (
            "One or more devices are faulted in response to persistent errors.  There are \
             insufficient replicas for the pool to\n\tcontinue functioning.",
            "Destroy and re-create the pool from a backup source.  Manually marking the \
             device\n\trepaired using 'zpool clear' may allow some data to be recovered.",
            None,
        ),
        StatusReason::FeaturesDisabled => (
            "Some supported and requested features are not enabled on the pool.\n\tThe pool can still \
             be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer \
             be accessible by software that does not support\n\tthe features. See zpool-features(7) \
             for details.",
            None,
        ),
        StatusReason::Resilvering => (
            "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
             function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
            None,
        ),
        StatusReason::RebuildScrub => (
            "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is \
             recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
            None,
        ),
        StatusReason::OfflineDevice => (
            "One or more devices has been taken offline by the administrator.\n\tSufficient replicas \
             exist for the pool to continue functioning in a\n\tdegraded state.",
            "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        ),
        StatusReason::RemovedDevice => (
            "One or more devices has been removed by the administrator.\n\tSufficient replicas exist \
             for the pool to continue functioning in a\n\tdegraded state.",
            "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        ),
    };
    let mut text = text.to_owned();
    // Of devices the tree below tells; features are named only here.
    let features = matches!(
        status.reason,
        StatusReason::UnsupportedFeatureRead
            | StatusReason::UnsupportedFeatureWrite
            | StatusReason::CorruptPool
    );
    for detail in status.details.iter().filter(|_| features) {
        text.push_str("\n\t");
        text.push_str(detail);
    }
    Some(Explanation {
        status: text,
        action: action.to_owned(),
        message_id,
    })
}

fn pool_json(status: &PoolStatus, options: Options) -> Value {
    let text = |value: u64| forms::text(&value.to_string(), options.integers);
    let mut object = json!({
        "name": status.name,
        "state": status.health.as_str(),
        "pool_guid": text(status.guid),
        "txg": text(status.txg),
        "spa_version": text(5000),
        "zpl_version": text(5),
    });
    if let Some(explanation) = explain(status) {
        object["status"] = Value::from(format!("{}\n", explanation.status));
        object["action"] = Value::from(format!("{}\n", explanation.action));
        if let Some(id) = explanation.message_id {
            object["msgid"] = Value::from(id);
            object["moreinfo"] =
                Value::from(format!("https://openzfs.github.io/openzfs-docs/msg/{id}"));
        }
    }
    if let Some(scan) = &status.scan {
        object["scan_stats"] = json!({
            "function": if scan.resilver { "RESILVER" } else { "SCRUB" },
            "state": if scan.running { "SCANNING" } else if scan.cancelled { "CANCELED" } else { "FINISHED" },
            "start_time": date_with_seconds(scan.start_time),
            "end_time": date_with_seconds(scan.end_time),
            "to_examine": nice_bytes(scan.to_examine_bytes),
            "examined": nice_bytes(scan.examined_bytes),
            "processed": nice_bytes(scan.processed_bytes),
            "errors": text(scan.errors),
        });
    }
    if let Some(reason) = &status.freeing_stopped {
        object["freeing_stopped"] = Value::from(reason.as_str());
    }
    if let Some(removal) = &status.removal {
        let time = |time: u64| match options.exact {
            true => text(time),
            false => Value::from(date_with_seconds(time)),
        };
        let bytes = |bytes: u64| match options.exact {
            true => text(bytes),
            false => Value::from(nice_bytes(bytes)),
        };
        object["removal_stats"] = json!({
            "name": removed_name(status, removal, options),
            "state": match removal.stage {
                RemovalStage::Evacuating => "SCANNING",
                RemovalStage::Finished => "FINISHED",
                RemovalStage::Canceled => "CANCELED",
            },
            "removing_vdev": text(removal.vdev),
            "start_time": time(removal.start_time),
            "end_time": time(removal.end_time),
            "to_copy": bytes(removal.to_copy_bytes),
            "copied": bytes(removal.copied_bytes),
            "mapping_memory": bytes(removal.mapping_bytes),
        });
    }
    let mut vdevs = Map::new();
    if options.flat {
        flatten(&status.root, &status.name, options, &mut vdevs);
    } else {
        vdevs.insert(
            status.name.clone(),
            tree_json(&status.root, &status.name, options),
        );
    }
    object["vdevs"] = Value::Object(vdevs);
    for (key, devices) in [("l2cache", &status.caches), ("spares", &status.spares)] {
        if devices.is_empty() {
            continue;
        }
        let mut list = Map::new();
        for device in devices {
            let name = options.style.name(device);
            list.insert(name.clone(), counters_json(device, &name, options));
        }
        object[key] = Value::Object(list);
    }
    object["error_count"] = text(status.data_errors);
    object
}

fn counters_json(vdev: &VdevStatus, name: &str, options: Options) -> Value {
    let number = |value: u64| {
        let text = if options.exact {
            value.to_string()
        } else {
            nice_number(value)
        };
        forms::text(&text, options.integers)
    };
    let bytes = |value: u64| {
        let text = if options.exact || options.integers {
            value.to_string()
        } else {
            nice_bytes(value)
        };
        forms::text(&text, options.integers)
    };
    let mut object = vdev_json(vdev, options.style, options.integers);
    object["name"] = Value::from(name);
    if vdev.size_bytes > 0 {
        object["alloc_space"] = bytes(vdev.allocated_bytes);
        object["total_space"] = bytes(vdev.size_bytes);
        object["def_space"] = bytes(vdev.size_bytes);
    }
    object["read_errors"] = number(vdev.read_errors);
    object["write_errors"] = number(vdev.write_errors);
    object["checksum_errors"] = number(vdev.checksum_errors);
    object
}

fn tree_json(vdev: &VdevStatus, name: &str, options: Options) -> Value {
    let mut object = counters_json(vdev, name, options);
    if !vdev.children.is_empty() {
        let mut children = Map::new();
        for child in &vdev.children {
            let name = options.style.name(child);
            children.insert(name.clone(), tree_json(child, &name, options));
        }
        object["vdevs"] = Value::Object(children);
    }
    object
}

fn flatten(vdev: &VdevStatus, name: &str, options: Options, into: &mut Map<String, Value>) {
    into.insert(name.to_owned(), counters_json(vdev, name, options));
    for child in &vdev.children {
        flatten(child, &options.style.name(child), options, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freeing_that_rests_is_said() {
        let text = |freeing_stopped: Option<&str>| {
            let status = PoolStatus {
                freeing_stopped: freeing_stopped.map(str::to_owned),
                ..PoolStatus::default()
            };
            pool_text(&status, None, Options::default())
        };
        assert!(!text(None).contains("free:"));
        let said = text(Some("object 7 cannot be read"));
        assert!(
            said.contains("\n  free: stopped") && said.contains("object 7"),
            "{said}"
        );
    }
}
