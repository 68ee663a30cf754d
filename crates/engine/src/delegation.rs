//! What callers other than root may do: permissions delegated by `zfs allow`, checked before a job enters the mailbox or as its first step.

use std::rc::Rc;

use dsl::{GrantChange, Grants, Subject};

use crate::pool_mailbox::{PoolContext, Request};
use crate::property::{DatasetKind, Property};
use crate::{DatasetFilter, EngineError, PoolHandle, PropertyQuery};

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

impl PoolHandle {
    /// Returns a handle for a subject other than root: what changes datasets needs a permission that was delegated
    /// (`zfs allow`), and what reaches the content of datasets or changes the pool is refused.
    #[must_use]
    pub fn for_caller(&self, subject: Subject) -> Self {
        let mut handle = self.clone();
        handle.caller = Some(std::sync::Arc::new(subject));
        handle
    }

    /// Whether this handle may do anything.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.caller.is_none()
    }

    /// The uid of the creator of what this handle creates.
    pub(crate) fn creator(&self) -> u32 {
        self.caller.as_ref().map_or(0, |caller| caller.uid)
    }

    /// Runs a query that needs no permission: of names, properties and states.
    pub(crate) async fn query<T, F, Answer>(&self, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, EngineError>> + 'static,
    {
        self.mailbox.run(work).await
    }

    /// Runs what is never delegated: refused to handles of other subjects than root.
    pub(crate) async fn run_as_root<T, F, Answer>(&self, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, EngineError>> + 'static,
    {
        if !self.is_trusted() {
            return Err(EngineError::Permission);
        }
        self.mailbox.run(work).await
    }

    /// Runs what needs permissions. A subject other than root holds the lock on changes of datasets exclusively from the check to
    /// the end of the change, so that names and grants stay what was checked.
    pub(crate) async fn run_permitted<T, F, Answer>(
        &self,
        needs: Vec<Need>,
        work: F,
    ) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, EngineError>> + 'static,
    {
        let caller = self.caller.clone();
        self.mailbox
            .run(move |context| async move {
                match caller {
                    None => {
                        let _with_others = context.changing.read().await;
                        work(context.clone()).await
                    }
                    Some(caller) => {
                        let _alone = context.changing.write().await;
                        context.check(&needs, &caller).await?;
                        work(context.clone()).await
                    }
                }
            })
            .await
    }

    /// Returns the grants of a dataset and those above it, its own first; those without any are left out.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub fn grants<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<Vec<(String, Grants)>, EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            self.query(move |context| async move {
                Ok(context.pool.hierarchy().grants(&dataset).await?)
            })
            .await
        })
    }

    /// Returns whether a subject has a permission on a dataset or snapshot by delegation.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub fn is_delegated<'a>(
        &'a self,
        dataset: &'a str,
        permission: &'a str,
        subject: Subject,
    ) -> Request<'a, Result<bool, EngineError>> {
        Box::pin(async move {
            let (dataset, permission) = (dataset.to_owned(), permission.to_owned());
            self.query(move |context| async move {
                context.delegated(&dataset, &permission, &subject).await
            })
            .await
        })
    }

    /// Changes the grants of a dataset: adds them, or with `remove` takes them away. A subject other than root needs the permission
    /// `allow`, and those that it gives or takes, which must not be `allow` itself.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::Permission`], the pool is read-only.
    pub fn change_grants<'a>(
        &'a self,
        dataset: &'a str,
        change: GrantChange,
        remove: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let mut needs = Vec::new();
            if let Some(caller) = &self.caller {
                // OpenZFS: dsl_deleg_can_allow, dsl_deleg_can_unallow.
                needs.push(on(dataset, &["allow"]));
                for (key, permissions) in &change {
                    let own = key.get(3..) == Some(caller.uid.to_string().as_str());
                    if remove && !(key.starts_with(['u', 'U']) && own) {
                        return Err(EngineError::Permission);
                    }
                    for permission in permissions.iter().flatten().filter(|_| !remove) {
                        if permission == "allow" {
                            return Err(EngineError::Permission);
                        }
                        needs.push(on(dataset, &[permission]));
                    }
                }
            }
            let dataset = dataset.to_owned();
            self.run_permitted(needs, move |context| async move {
                context.writable()?;
                let hierarchy = context.pool.hierarchy();
                if remove {
                    Ok(hierarchy.unallow(&dataset, change).await?)
                } else {
                    Ok(hierarchy.allow(&dataset, change).await?)
                }
            })
            .await
        })
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
