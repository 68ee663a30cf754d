//! Which datasets have changed: a list that is kept by what is told is the same as one that is read anew, after each change.

use std::collections::BTreeMap;

use dsl::property::{DatasetKind, Kinds};
use dsl::{DslError, Hierarchy, ListSpec};

use crate::rig::run;

/// Name to object, guid, and properties with their sources.
type Listed = BTreeMap<String, String>;

async fn list(hierarchy: &Hierarchy, root: &str) -> Listed {
    let spec = ListSpec {
        depth: None,
        kinds: Kinds::of(DatasetKind::Filesystem).union(Kinds::of(DatasetKind::Volume)),
    };
    let wanted = [
        "mountpoint",
        "readonly",
        "sharenfs",
        "quota",
        "volsize",
        "x:user",
    ];
    let wanted = wanted.map(str::to_owned);
    let found = match hierarchy.list_properties(root, spec, Some(&wanted)).await {
        Err(DslError::NotFound { .. }) => Vec::new(),
        found => found.expect("can be listed"),
    };
    let row = |found: dsl::DatasetProperties| {
        let entries = found.properties.iter();
        let properties: Vec<String> = entries
            .map(|entry| format!("{}={} {}", entry.name, entry.display(true), entry.source))
            .collect();
        let (object, guid) = (found.info.object, found.info.guid);
        (
            found.info.name,
            format!("{object:?} {guid:?} {properties:?}"),
        )
    };
    found.into_iter().map(row).collect()
}

#[test]
fn what_is_told_keeps_a_list_as_it_is() {
    let script = [
        ("create p/a sharenfs=on", "p/a"),
        ("create p/a/b", "p/a/b"),
        ("create p/a/b/c x:user=1", "p/a/b/c"),
        ("create p/a-b", "p/a-b"),
        ("create p/v", "p/v"),
        ("set p/a readonly=on", "p/a"),
        ("set p/a/b mountpoint=/elsewhere quota=100M", "p/a/b"),
        ("set p x:user=2", "p"),
        ("set p/missing readonly=on", ""),
        ("inherit readonly p/a", "p/a"),
        ("snapshot p/a/b@1 p/v@1", ""),
        ("set p/a/b@1 x:user=3", ""),
        ("hold tag p/a/b@1", ""),
        ("release tag p/a/b@1", ""),
        ("bookmark p/a/b@1 p/a/b#1", ""),
        ("clone p/a/b@1 p/clone", "p/clone"),
        ("clone p/v@1 p/a/v", "p/a/v"),
        ("rename p/a/b@1 p/a/b@2", ""),
        ("promote p/clone", "ALL"),
        ("write p/v 1", ""),
        ("rollback p/v", "p/v"),
        ("rename p/a p/z", "p/a p/z"),
        ("rename p/z/b p/a-b/b", "p/a-b/b p/z/b"),
        ("destroy p/a-b/b/c", "p/a-b/b/c"),
        ("destroy p/a-b/b", "p/a-b/b"),
        ("destroy-snapshots p/clone@2", ""),
        ("destroy p/clone", "p/clone"),
    ];
    run(|rig| async move {
        let hierarchy = &rig.hierarchy;
        let mut kept = list(hierarchy, "p").await;
        let mut seen = hierarchy.changes_since(0).now;
        for (line, expect) in script {
            let _ = rig.answer(line).await;
            let changes = hierarchy.changes_since(seen);
            seen = changes.now;
            let told = changes
                .subtrees
                .map_or("ALL".to_owned(), |roots| roots.join(" "));
            assert_eq!(told, expect, "{line}");
            for root in told.split(' ').filter(|root| !root.is_empty()) {
                let root = if root == "ALL" { "p" } else { root };
                let below = format!("{root}/");
                kept.retain(|name, _| name != root && !name.starts_with(&below));
                kept.extend(list(hierarchy, root).await);
            }
            assert_eq!(kept, list(hierarchy, "p").await, "{line}");
        }
        assert_eq!(kept.len(), 5, "{:?}", kept.keys());
    });
}
