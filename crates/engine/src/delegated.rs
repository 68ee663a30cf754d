//! Delegation at a pool's handle: handles for callers other than root, and changes of what is delegated (`zfs allow`).

use std::rc::Rc;

use dsl::{GrantChange, Grants, Subject};

use crate::delegation::{Need, on};
use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, PoolHandle};

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

    /// Begins what needs permissions and goes on by itself. Root waits for no change of others, as it changes no names; for another subject
    /// names and grants stay what was checked until it has begun.
    pub(crate) async fn begin_permitted<T, F, Answer>(
        &self,
        needs: Vec<Need>,
        work: F,
    ) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, EngineError>> + 'static,
    {
        match self.is_trusted() {
            true => self.mailbox.run(work).await,
            false => self.run_permitted(needs, work).await,
        }
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
