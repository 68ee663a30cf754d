//! `zpool status` as text, in OpenZFS's words and columns.

use engine::{
    CheckpointStatus, ExpansionStatus, Health, LeafActivityState, LeafActivityStatus, PoolStatus,
    RebuildState, RebuildStatus, RemovalStage, RemovalStatus, ScanStatus, VdevStatus,
};
use manage::database::seconds_since_epoch;

use super::super::{sections, status_width};
use super::Options;
use super::explain::explain;
use super::model::{PoolModel, healthy, removed_name, top_name};
use crate::cli::format::{date_with_seconds, nice_bytes, nice_number};

/// Returns all that is said of a pool; `damaged` are the files that lost data, if they are to be named.
pub(super) fn pool_text(model: &PoolModel, damaged: Option<&[String]>, options: Options) -> String {
    let status = &model.status;
    let mut text = format!("  pool: {}\n state: {}\n", status.name, model.state);
    if let Some(explanation) = explain(model) {
        text.push_str(&format!(
            "status: {}\naction: {}\n",
            explanation.status(model),
            explanation.action(model)
        ));
        if let Some(id) = explanation.message_id {
            text.push_str(&format!(
                "   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"
            ));
        }
    }
    text.push_str(&scans_text(status, seconds_since_epoch()));
    if let Some(removal) = &status.removal {
        let name = removed_name(status, removal, options.style);
        text.push_str(&removal_text(removal, &name, seconds_since_epoch()));
    }
    if let Some(expansion) = &status.expansion {
        let name = top_name(status, expansion.vdev, options.style);
        text.push_str(&expansion_text(expansion, &name, seconds_since_epoch()));
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
        vdev.state_word(),
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
        // Direct I/O is not verified apart from other I/O, so that nothing is counted.
        text.push_str("     -");
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
    if vdev.awaiting_resilver && vdev.health == Health::Online {
        text.push_str("  (awaiting resilver)");
    } else if vdev.resilvering && vdev.health == Health::Online {
        text.push_str("  (resilvering)");
    } else if vdev.repairing {
        text.push_str("  (repairing)");
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

// OpenZFS: cmd/zpool/zpool_main.c, print_raidz_expand_status
fn expansion_text(expansion: &ExpansionStatus, name: &str, now: u64) -> String {
    /// Seconds after which an estimate is no help.
    const SECONDS_MAX: u64 = 30 * 24 * 3600;
    let (start, end) = (expansion.start_time, expansion.end_time);
    if !expansion.running {
        return format!(
            "expand: expanded {name} copied {} in {}, on {}\n",
            nice_number(expansion.copied_bytes),
            duration(end.saturating_sub(start)),
            date_with_seconds(end)
        );
    }
    let (copied, total) = (expansion.copied_bytes.max(1), expansion.to_copy_bytes);
    let rate = (copied / now.saturating_sub(start).max(1)).max(1);
    let left = total.saturating_sub(copied) / rate;
    let hundredths = (u128::from(copied) * 10_000)
        .checked_div(u128::from(total))
        .unwrap_or(10_000);
    let left = if expansion.waiting_for_resilver {
        ", paused for resilver or clear".to_owned()
    } else if left < SECONDS_MAX {
        format!(", {} to go", duration(left))
    } else {
        ", (copy is slow, no estimated time)".to_owned()
    };
    format!(
        "expand: expansion of {name} in progress since {}\n\t{} / {} copied at {}/s, {}.{:02}% done{left}\n",
        date_with_seconds(start),
        nice_number(copied),
        nice_number(total),
        nice_number(rate),
        hundredths / 100,
        hundredths % 100,
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freeing_that_rests_is_said() {
        let text = |freeing_stopped: Option<&str>| {
            let mut model = PoolModel::default();
            model.status.freeing_stopped = freeing_stopped.map(str::to_owned);
            pool_text(&model, None, Options::default())
        };
        assert!(!text(None).contains("free:"));
        let said = text(Some("object 7 cannot be read"));
        assert!(
            said.contains("\n  free: stopped") && said.contains("object 7"),
            "{said}"
        );
    }
}
