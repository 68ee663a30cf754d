//! What the head of a package of streams says: the file systems at the sender, their snapshots, properties and holds.
//!
//! Format: docs/format/11-send-stream.md. A snapshot is known by its guid, whatever it is called.

use std::collections::BTreeMap;

use dsl::stream::{NvList, NvValue};

/// The head of a package.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// File systems and volumes, in the order of the list.
    filesystems: Vec<SentFilesystem>,
    /// Of each snapshot by guid: place of its file system, and its name there.
    by_guid: BTreeMap<u64, (usize, String)>,
    /// Datasets below go along (`-R`).
    pub(super) recursive: bool,
    /// Name of the snapshot that the package counts from.
    pub(super) from_snapshot: Option<String>,
}

/// A file system or volume at the sender.
#[derive(Debug, Default)]
pub(super) struct SentFilesystem {
    pub(super) name: String,
    /// Guid of the snapshot of its parent that the package counts from; 0 for the first.
    pub(super) parent_from: u64,
    /// Guid of the snapshot that it is a clone of, or 0.
    pub(super) origin: u64,
    /// Its keys are wrapped by a key of its own.
    pub(super) is_root: bool,
    /// Its properties; `None` where the sender was not asked for them.
    pub(super) properties: Option<NvList>,
    snapshot_properties: NvList,
    snapshot_holds: NvList,
}

impl SentFilesystem {
    /// User properties of a snapshot.
    pub(super) fn properties_of(&self, snapshot: &str) -> Option<&NvList> {
        self.snapshot_properties.list(snapshot)
    }

    /// Tags that hold a snapshot.
    pub(super) fn holds_of(&self, snapshot: &str) -> Vec<String> {
        let holds = self.snapshot_holds.list(snapshot);
        holds
            .map(|tags| tags.names().map(str::to_owned).collect())
            .unwrap_or_default()
    }
}

fn list_of(list: &NvList, name: &str) -> NvList {
    list.list(name).cloned().unwrap_or_default()
}

impl Package {
    pub(super) fn of(list: &NvList) -> Self {
        let mut package = Self {
            recursive: !list.is_empty() && !list.has("not_recursive"),
            from_snapshot: list.str("fromsnap").map(str::to_owned),
            ..Self::default()
        };
        let filesystems = list.list("fss").into_iter().flat_map(NvList::iter);
        for (_, value) in filesystems {
            let NvValue::List(sent) = value else { continue };
            let place = package.filesystems.len();
            for (name, value) in sent.list("snaps").into_iter().flat_map(NvList::iter) {
                if let NvValue::U64(guid) = value {
                    let name = String::from_utf8_lossy(name).into_owned();
                    package.by_guid.insert(*guid, (place, name));
                }
            }
            package.filesystems.push(SentFilesystem {
                name: sent.str("name").unwrap_or_default().to_owned(),
                parent_from: sent.u64("parentfromsnap").unwrap_or(0),
                origin: sent.u64("origin").unwrap_or(0),
                is_root: sent.has("is_encroot"),
                properties: sent.list("props").cloned(),
                snapshot_properties: list_of(sent, "snapprops"),
                snapshot_holds: list_of(sent, "snapholds"),
            });
        }
        package
    }

    /// The file system that has the snapshot of this guid, and the snapshot's name.
    pub(super) fn find(&self, guid: u64) -> Option<(&SentFilesystem, &str)> {
        let (place, name) = self.by_guid.get(&guid)?;
        Some((self.filesystems.get(*place)?, name))
    }
}
