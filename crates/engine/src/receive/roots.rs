//! Encryption roots after a package of raw streams: each dataset becomes what it is at the sender, a root or one of its parent's.
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, recv_fix_encryption_hierarchy.

use std::collections::BTreeMap;

use dsl::ListSpec;
use dsl::stream::ReceivedRoot;

use super::Work;
use super::package::Package;
use crate::EngineError;
use crate::property::{Kinds, Property};

impl Work {
    /// Makes the encryption roots below `top` what they are at the sender.
    pub(super) async fn follow_roots(
        &self,
        top: &str,
        package: &Package,
    ) -> Result<(), EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        for (name, guids) in self.received_guids(top).await? {
            let sent = guids.iter().find_map(|guid| package.find(*guid));
            let Some((sent, _)) = sent else { continue };
            let Some(info) = hierarchy.key_info(&name).await? else {
                continue;
            };
            let is_root = info.root == name;
            let wanted = if sent.is_root {
                let location = sent.properties.as_ref();
                let location = location.and_then(|list| list.str(Property::KeyLocation.name()));
                let location = location.unwrap_or("prompt").to_owned();
                let is_there = is_root && self.key_location(&name).await? == Some(location.clone());
                (!is_there && !self.is_clone(&name).await?).then_some(ReceivedRoot::Own(location))
            } else {
                (is_root && name != top).then_some(ReceivedRoot::Parent)
            };
            if let Some(wanted) = wanted {
                hierarchy.place_received_root(&name, wanted).await?;
            }
        }
        Ok(())
    }

    /// The datasets from `top` down, parents first, with the guids of their snapshots.
    async fn received_guids(&self, top: &str) -> Result<BTreeMap<String, Vec<u64>>, EngineError> {
        let spec = ListSpec {
            depth: None,
            kinds: Kinds::SNAPSHOT,
        };
        let mut found = BTreeMap::<String, Vec<u64>>::new();
        for info in self.context.pool.hierarchy().list(top, spec).await? {
            if let Some((dataset, _)) = info.name.split_once('@') {
                let guids = found.entry(dataset.to_owned()).or_default();
                guids.push(info.guid.0);
            }
        }
        Ok(found)
    }

    async fn text_of(&self, name: &str, property: Property) -> Result<Option<String>, EngineError> {
        let wanted = [property.name().to_owned()];
        let hierarchy = self.context.pool.hierarchy();
        let found = hierarchy.properties_named(name, &wanted).await?;
        let value = found.properties.first();
        Ok(value.and_then(|entry| entry.value.text().map(str::to_owned)))
    }

    async fn key_location(&self, name: &str) -> Result<Option<String>, EngineError> {
        self.text_of(name, Property::KeyLocation).await
    }

    async fn is_clone(&self, name: &str) -> Result<bool, EngineError> {
        let origin = self.text_of(name, Property::Origin).await?;
        Ok(origin.is_some_and(|origin| !origin.is_empty()))
    }
}
