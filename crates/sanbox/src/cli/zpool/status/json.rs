//! `zpool status -j`: the model as JSON, in OpenZFS's keys and forms.

use engine::{RemovalStage, VdevStatus};
use serde_json::{Map, Value, json};

use super::super::list::vdev_json;
use super::Options;
use super::explain::explain;
use super::model::{PoolModel, removed_name};
use crate::cli::format::{date_with_seconds, nice_bytes, nice_number};
use crate::cli::json as forms;

/// Returns all that is known of a pool.
pub(super) fn pool_json(model: &PoolModel, options: Options) -> Value {
    let status = &model.status;
    let text = |value: u64| forms::text(&value.to_string(), options.integers);
    let mut object = json!({
        "name": status.name,
        "state": model.state,
        "pool_guid": text(status.guid),
        "txg": text(status.txg),
        "spa_version": text(5000),
        "zpl_version": text(5),
    });
    if let Some(explanation) = explain(model) {
        object["status"] = Value::from(format!("{}\n", explanation.status(model)));
        object["action"] = Value::from(format!("{}\n", explanation.action(model)));
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
            "name": removed_name(status, removal, options.style),
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
        // Of raidz and dRAID the size is that of the disks, parity included: what it deflates to is not known here.
        if !has_parity(vdev) {
            object["def_space"] = bytes(vdev.size_bytes);
        }
    }
    object["read_errors"] = number(vdev.read_errors);
    object["write_errors"] = number(vdev.write_errors);
    object["checksum_errors"] = number(vdev.checksum_errors);
    object
}

fn has_parity(vdev: &VdevStatus) -> bool {
    vdev.name.starts_with("raidz")
        || vdev.name.starts_with("draid")
        || vdev.children.iter().any(has_parity)
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
