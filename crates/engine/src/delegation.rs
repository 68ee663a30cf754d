//! What callers other than root may do: the permissions that a change needs, and whether they were delegated (`zfs allow`).

use dsl::Subject;

use crate::pool_mailbox::PoolContext;
use crate::property::{DatasetKind, Property};
use crate::{DatasetFilter, EngineError, PropertyQuery};

/// What a change needs.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    scope: PermissionScope,
    permissions: Vec<String>,
}

#[derive(Clone, Debug)]
enum PermissionScope {
    /// A dataset, or a snapshot of it.
    Dataset(String),
    /// The same, and that of all datasets below.
    Descendants(String),
    /// The nearest that exists at the name or above.
    NearestExisting(String),
    /// The dataset that a clone comes from.
    Origin(String),
}

/// What is needed on a dataset or snapshot.
pub(crate) fn on(name: &str, permissions: &[&str]) -> Need {
    need(PermissionScope::Dataset(name.to_owned()), permissions)
}

/// What is needed on a dataset or snapshot, and with `recursive` on those of all datasets below.
pub(crate) fn with_below(name: &str, recursive: bool, permissions: &[&str]) -> Need {
    if recursive {
        need(PermissionScope::Descendants(name.to_owned()), permissions)
    } else {
        on(name, permissions)
    }
}

/// What is needed on a dataset, or on the nearest above that exists.
pub(crate) fn nearest(name: &str, permissions: &[&str]) -> Need {
    need(
        PermissionScope::NearestExisting(name.to_owned()),
        permissions,
    )
}

/// What is needed on the dataset that a clone comes from.
pub(crate) fn on_origin(clone: &str, permissions: &[&str]) -> Need {
    need(PermissionScope::Origin(clone.to_owned()), permissions)
}

/// What is needed to create a dataset of a name, with missing parents if `parents`. OpenZFS lets a creator set any
/// property; here a share comes into being with it, so that each needs its permission, but for those that are part of a
/// dataset's making.
pub(crate) fn creation(name: &str, parents: bool, properties: &[(String, String)]) -> Need {
    let mut permissions = vec!["create".to_owned(), "mount".to_owned()];
    for (name, _) in properties {
        let native = Property::from_name(name);
        let part_of_making = native.is_some_and(|property| {
            property.set_once() || matches!(property, Property::VolSize | Property::RefReservation)
        });
        if !part_of_making {
            permissions.push(of_property(name));
        }
    }
    let parent = above(name).to_owned();
    let scope = if parents {
        PermissionScope::NearestExisting(parent)
    } else {
        PermissionScope::Dataset(parent)
    };
    Need { scope, permissions }
}

fn need(scope: PermissionScope, permissions: &[&str]) -> Need {
    let permissions = permissions.iter().map(|&name| name.to_owned()).collect();
    Need { scope, permissions }
}

/// The name of the dataset above, or the dataset of a snapshot or bookmark.
pub(crate) fn above(name: &str) -> &str {
    let end = name.rfind(['@', '#']).or_else(|| name.rfind('/'));
    &name[..end.unwrap_or(name.len())]
}

/// The permission that setting a property needs.
pub(crate) fn of_property(name: &str) -> String {
    if let Some((class, _)) = name.split_once('@') {
        return class.to_owned();
    }
    if name.contains(':') {
        return "userprop".to_owned();
    }
    Property::from_name(name).map_or_else(|| name.to_owned(), |property| property.name().to_owned())
}

impl PoolContext {
    /// Whether a subject has a permission on a dataset by delegation.
    pub(crate) async fn delegated(
        &self,
        dataset: &str,
        permission: &str,
        subject: &Subject,
    ) -> Result<bool, EngineError> {
        let delegation = self.pool.property("delegation").await?;
        if delegation.value == pool::PropertyValue::Text("off".to_owned()) {
            return Ok(false);
        }
        let hierarchy = self.pool.hierarchy();
        Ok(hierarchy.is_delegated(dataset, permission, subject).await?)
    }
}

impl PoolContext {
    /// Checks that a subject has all permissions that are needed.
    ///
    /// # Errors
    /// [`EngineError::Permission`]; a dataset does not exist.
    pub(crate) async fn check(&self, needs: &[Need], subject: &Subject) -> Result<(), EngineError> {
        for need in needs {
            for name in self.names_in_scope(&need.scope).await? {
                for permission in &need.permissions {
                    if !self.delegated(&name, permission, subject).await? {
                        return Err(EngineError::Permission);
                    }
                }
            }
        }
        Ok(())
    }

    async fn names_in_scope(&self, scope: &PermissionScope) -> Result<Vec<String>, EngineError> {
        match scope {
            PermissionScope::Dataset(name) => Ok(vec![name.clone()]),
            PermissionScope::Descendants(name) => {
                let (dataset, rest) = name.split_at(name.find('@').unwrap_or(name.len()));
                let filter = DatasetFilter {
                    root: dataset.to_owned(),
                    depth: None,
                    kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
                };
                let all = self.datasets(&filter, &PropertyQuery::None).await?;
                let named = all.iter().map(|info| format!("{}{rest}", info.name));
                Ok(named.collect())
            }
            PermissionScope::NearestExisting(name) => {
                let mut name = name.as_str();
                while name.contains('/') && self.dataset(name, &PropertyQuery::None).await.is_err()
                {
                    name = above(name);
                }
                Ok(vec![name.to_owned()])
            }
            PermissionScope::Origin(clone) => {
                let query = PropertyQuery::Named(vec!["origin".to_owned()]);
                let info = self.dataset(clone, &query).await?;
                let origin = info.properties.first();
                let origin = origin.and_then(|origin| origin.value.text());
                Ok(origin
                    .map(|name| above(name).to_owned())
                    .into_iter()
                    .collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_above_and_permissions() {
        assert_eq!(above("tank/a@s"), "tank/a");
        assert_eq!(above("tank/a#b"), "tank/a");
        assert_eq!(above("tank/a"), "tank");
        assert_eq!(above("tank"), "tank");
        assert_eq!(of_property("avail"), "available");
        assert_eq!(of_property("userquota@1000"), "userquota");
        assert_eq!(of_property("com.x:y"), "userprop");
    }
}
