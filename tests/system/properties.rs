//! Every native property of OpenZFS 2.3, on every kind of dataset: each value of each one that can be set is taken, shown and kept
//! over an export, or refused in words that say what is refused; what is only computed is refused as OpenZFS refuses it. That
//! `zfs get all` shows the right ones in the right order is for `golden_properties`, which has it from OpenZFS.

use std::collections::BTreeMap;

use engine::property::{Attribute, DatasetKind, PROPERTIES, Property, PropertyType};

use crate::cli::Place;

/// Values to try: all there are, or some on both sides of what is allowed.
fn values(property: Property) -> Vec<String> {
    let row = property.descriptor();
    let texts: &[&str] = match (row.value_type, property) {
        (PropertyType::Index, _) => {
            let names = row.index.iter().map(|(name, _)| (*name).to_owned());
            return names.chain(["nonsense".to_owned()]).collect();
        }
        (_, Property::MountPoint) => &["/elsewhere", "none", "legacy", "here"],
        (_, Property::ShareNfs) => &["on", "rw=@192.0.2.0/24", "off", "rw,nonsense"],
        (_, Property::ShareSmb) => &["on", "guest_ok=y", "off"],
        (_, Property::KeyLocation) => &["none", "prompt", "nowhere"],
        (_, Property::FilesystemLimit | Property::SnapshotLimit) => &["7", "none", "many"],
        (_, Property::VolSize) => &["16M", "24M", "1000", "0"],
        (_, Property::RecordSize | Property::SpecialSmallBlocks) => {
            &["512", "64K", "1M", "3000", "x"]
        }
        (_, Property::RefReservation) => &["1M", "auto", "none", "x"],
        (PropertyType::Number, _) => &["30M", "none", "0", "x"],
        (PropertyType::String, _) => &["some:text", "none"],
    };
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Sets everything; returns what is wrong and how many settings were taken.
fn walk(place: &Place, name: &str, kind: DatasetKind) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut taken = 0;
    for row in PROPERTIES {
        for value in values(row.property) {
            let said = place.run(&format!("zfs set {}='{value}' {name}", row.name));
            let what = format!("{name} {}={value}: {said}", row.name);
            let settable = matches!(row.attribute, Attribute::Default | Attribute::Inherit);
            if said.is_empty() {
                if !settable || !row.kinds.contains(kind) {
                    wrong.push(format!("{what}taken"));
                    continue;
                }
                taken += 1;
                let shown = place.run(&format!("zfs get -H -o value,source {} {name}", row.name));
                if !is_shown(row.property, &value, shown.trim_end()) {
                    wrong.push(format!("{what}shown as {shown}"));
                }
                continue;
            }
            let start = format!("! cannot set property for '{name}': ");
            let Some(reason) = said.strip_prefix(&start) else {
                wrong.push(what);
                continue;
            };
            let named = reason.contains(row.name);
            // Words of OpenZFS that name what they are about in another way.
            let known = [
                "pool must be upgraded to set this property or value",
                "mlslabels are unsupported",
                "keylocation must be 'none' for unencrypted datasets",
                "bad numeric value 'x'",
                "invalid numeric suffix 'x'",
                "bad numeric value 'many'",
                "use 'none' to disable quota/refquota",
                "invalid keylocation",
                "this property can not be modified for snapshots",
                "size is less than current used or reserved space",
            ];
            if !named && !known.iter().any(|words| reason.starts_with(words)) {
                wrong.push(what.clone());
            }
            let readonly = matches!(
                row.attribute,
                Attribute::ReadOnly | Attribute::OneTime | Attribute::OneTimeDefault
            );
            let is_head = kind != DatasetKind::Snapshot;
            if readonly && is_head && row.kinds.contains(kind) && !reason.contains("is readonly") {
                wrong.push(what);
            }
        }
    }
    (wrong, taken)
}

fn is_shown(property: Property, value: &str, shown: &str) -> bool {
    let Some((text, source)) = shown.split_once('\t') else {
        return false;
    };
    let row = property.descriptor();
    let same = match (row.value_type, property) {
        // Of several names of a value the first is shown; a version may be asked for as "current".
        (PropertyType::Index, _) => property
            .index_number(value)
            .is_some_and(|number| property.index_name(number) == Some(text)),
        (_, Property::FilesystemLimit | Property::SnapshotLimit) => text == value,
        (PropertyType::Number, _) if matches!(value, "none" | "0") => {
            matches!(text, "none" | "0")
        }
        // What "auto" comes to depends on the volume.
        (PropertyType::Number, _) => value == "auto" || text == value,
        (PropertyType::String, _) => text == value,
    };
    let unset = matches!(value, "none" | "0");
    let right_source = source == "local"
        || unset && source == "default"
        || matches!(property, Property::Version) && source == "-";
    same && right_source
}

#[test]
#[ignore = "long: the whole table of properties; each has its own tests where it acts"]
fn every_property_works_or_is_refused_by_name() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run(
        "truncate -s 256M d && zpool create -O mountpoint=none tank $PWD/d && zfs create tank/f && zfs create -sV 16M tank/v && \
         zfs snapshot tank/f@s",
    );
    assert_eq!(made, "");
    let mut wrong = Vec::new();
    for (name, kind, least) in [
        ("tank/f", DatasetKind::Filesystem, 190),
        ("tank/v", DatasetKind::Volume, 120),
        ("tank/f@s", DatasetKind::Snapshot, 0),
    ] {
        let (found, taken) = walk(&place, name, kind);
        wrong.extend(found);
        if taken < least {
            wrong.push(format!("{name}: only {taken} settings were taken"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Only a user's property can be set on a snapshot.
    assert_eq!(place.run("zfs set user:x=1 tank/f@s"), "");
    // All of it is kept.
    let all = |place: &Place| -> BTreeMap<String, String> {
        let text = place.run("zfs get -Hp -s local -o name,property,value -t all -r all tank");
        let lines = text.lines().filter_map(|line| line.rsplit_once('\t'));
        lines
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let before = all(&place);
    assert!(before.len() > 60, "{before:?}");
    assert_eq!(
        place.run("zpool export tank && zpool import -d $PWD tank"),
        ""
    );
    assert_eq!(all(&place), before);
    // What a dataset is created with is judged alike.
    let start = "! cannot create 'tank/k': ";
    for (setting, words) in [
        (
            "keyformat=passphrase",
            "Encryption must be turned on to set encryption properties.",
        ),
        (
            "keylocation=prompt",
            "Encryption must be turned on to set encryption properties.",
        ),
        (
            "pbkdf2iters=350000",
            "Encryption must be turned on to set encryption properties.",
        ),
        (
            "encryption=on",
            "Keyformat required for new encryption root.",
        ),
        ("used=1", "'used' is readonly"),
    ] {
        let said = place.run(&format!("zfs create -o {setting} tank/k"));
        assert_eq!(said, format!("{start}{words}\n[1]\n"), "{setting}");
    }
    assert_eq!(place.run("zpool export tank"), "");
    place.stop();
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}

/// Names in the first column of the tables of a page, with what the second says of them.
fn rows(page: &str) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for line in page.lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(names), Some(does)) = (cells.next(), cells.next()) else {
            continue;
        };
        let names = names.split(", ").filter_map(|name| name.strip_prefix('`'));
        let names = names.filter_map(|name| name.strip_suffix('`'));
        rows.extend(names.map(|name| (name.to_owned(), does.to_owned())));
    }
    rows
}

#[test]
fn what_each_property_does_is_written_down() {
    let page = std::fs::read_to_string(tests::root().join("docs/properties.md")).expect("the page");
    let (datasets, rest) = page.split_once("## Pools").expect("pools");
    let (pools, devices) = rest.split_once("## Devices").expect("devices");
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    let named = |part: &str| sorted(rows(part).into_iter().map(|(name, _)| name).collect());
    for (name, does) in rows(&page) {
        assert!(
            ["yes", "in part", "kept", "refused"].contains(&does.as_str()),
            "{name}: {does}"
        );
    }
    let of_datasets = PROPERTIES.iter();
    let of_datasets = of_datasets.filter(|row| row.visible && row.attribute != Attribute::ReadOnly);
    assert_eq!(
        named(datasets),
        sorted(of_datasets.map(|row| row.name.to_owned()).collect())
    );
    let of_pools = engine::pool_property::PROPERTIES
        .iter()
        .filter(|row| row.settable);
    assert_eq!(
        named(pools),
        sorted(of_pools.map(|row| row.name.to_owned()).collect())
    );
    let of_devices = engine::pool_property::VDEV_PROPERTIES
        .iter()
        .filter(|row| row.settable);
    assert_eq!(
        named(devices),
        sorted(of_devices.map(|row| row.name.to_owned()).collect())
    );

    // What the page says is refused is: with any value but the default.
    let place = Place::new();
    place.run("truncate -s 96M d && zpool create -O mountpoint=none tank $PWD/d");
    for (name, _) in rows(&page)
        .into_iter()
        .filter(|(_, does)| does == "refused")
    {
        let said = place.run(&format!("zfs set {name}=x tank"));
        assert!(said.ends_with("[1]\n"), "{name}: {said}");
    }
}
