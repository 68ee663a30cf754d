//! Keys of encrypted datasets, as callers load and unload them.
//!
//! A key that is loaded stays in the memory of the pool's thread until it is unloaded or the pool leaves; it is never written or
//! logged, and handed out again under another key alone.

use codec::crypt::{ENCRYPTED_WRAPPING_KEY_LEN, IV_LEN};
use dsl::property::DatasetKind;
use dsl::{KeyChange, KeyInfo, PlannedKey};

use crate::delegation::on;
use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, PoolHandle, WrappingKey};

/// A key that another one encrypts, with its authentication code.
pub type EncryptedKey = [u8; ENCRYPTED_WRAPPING_KEY_LEN];

impl PoolHandle {
    /// Returns what is known of the key of a file system or volume; `None` when it is not encrypted.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub fn key_info<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<Option<KeyInfo>, EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.query(
                move |context| async move { Ok(context.pool.hierarchy().key_info(&name).await?) },
            )
            .await
        })
    }

    /// Returns the key of its own that a file system or volume to be created with these properties, as typed, needs; `None` when it
    /// is not encrypted, or inherits the key of its parent.
    ///
    /// # Errors
    /// [`EngineError::Property`] when the properties do not go together.
    pub fn plan_key<'a>(
        &'a self,
        dataset: &'a str,
        kind: DatasetKind,
        properties: &'a [(String, String)],
    ) -> Request<'a, Result<Option<PlannedKey>, EngineError>> {
        Box::pin(async move {
            let (name, typed) = (dataset.to_owned(), properties.to_vec());
            self.query(move |context| async move { context.plan_key(&name, kind, &typed).await })
                .await
        })
    }

    /// Loads the key of an encryption root; with `check_only`, only says whether it is the right one.
    ///
    /// # Errors
    /// [`EngineError::WrongKey`]; [`EngineError::Dataset`] when the dataset is not encrypted, not an encryption root, or its
    /// key is loaded already; [`EngineError::Permission`].
    pub fn load_key<'a>(
        &'a self,
        dataset: &'a str,
        key: WrappingKey,
        check_only: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_permitted(
                vec![on(dataset, &["load-key"])],
                move |context| async move {
                    let hierarchy = context.pool.hierarchy();
                    Ok(hierarchy.load_key(&name, key, check_only).await?)
                },
            )
            .await
        })
    }

    /// Returns the loaded key of an encryption root, encrypted under another key with AES-256-GCM; `about` is authenticated with it.
    /// `iv` must not have been used with the other key.
    ///
    /// # Errors
    /// [`EngineError::Dataset`] when the dataset is not encrypted, not an encryption root, or its key is not loaded;
    /// [`EngineError::Permission`].
    pub fn encrypted_key<'a>(
        &'a self,
        dataset: &'a str,
        outer: WrappingKey,
        iv: [u8; IV_LEN],
        about: Vec<u8>,
    ) -> Request<'a, Result<EncryptedKey, EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_permitted(
                vec![on(dataset, &["load-key", "change-key"])],
                move |context| async move {
                    let hierarchy = context.pool.hierarchy();
                    Ok(hierarchy.encrypted_key(&name, &outer, iv, &about).await?)
                },
            )
            .await
        })
    }

    /// Returns the key that has to be given to change the key of a dataset with these properties, as typed: `keyformat`,
    /// `keylocation` and `pbkdf2iters`.
    ///
    /// # Errors
    /// [`EngineError::Dataset`] when the key cannot be changed, [`EngineError::Property`].
    pub fn plan_key_change<'a>(
        &'a self,
        dataset: &'a str,
        properties: &'a [(String, String)],
    ) -> Request<'a, Result<PlannedKey, EngineError>> {
        Box::pin(async move {
            let (name, typed) = (dataset.to_owned(), properties.to_vec());
            self.query(move |context| async move {
                let settings = context.settings(&typed, DatasetKind::Filesystem, true)?;
                let hierarchy = context.pool.hierarchy();
                Ok(hierarchy.plan_key_change(&name, &settings).await?)
            })
            .await
        })
    }

    /// Changes the key of a dataset, and of those that inherit it. On stable storage all of them are wrapped by the new key when
    /// this returns; the key is loaded.
    ///
    /// # Errors
    /// [`EngineError::Dataset`] when the key cannot be changed; [`EngineError::Permission`]; the pool is read-only.
    pub fn change_key<'a>(
        &'a self,
        dataset: &'a str,
        change: KeyChange,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_permitted(
                vec![on(dataset, &["change-key"])],
                move |context| async move {
                    context.writable()?;
                    Ok(context.pool.hierarchy().change_key(&name, change).await?)
                },
            )
            .await
        })
    }

    /// Unloads the key of an encryption root. Datasets that are open and not in use are closed.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a dataset that needs the key is in use; [`EngineError::Dataset`] when there is no key to
    /// unload; [`EngineError::Permission`].
    pub fn unload_key<'a>(&'a self, dataset: &'a str) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_permitted(
                vec![on(dataset, &["load-key"])],
                move |context| async move { context.unload_key(&name).await },
            )
            .await
        })
    }
}

impl PoolContext {
    async fn unload_key(&self, name: &str) -> Result<(), EngineError> {
        let hierarchy = self.pool.hierarchy();
        let users = hierarchy.key_users(name).await?;
        let users: Vec<u64> = users.into_iter().map(|object| object.0).collect();
        if users.iter().any(|dataset| self.is_held(*dataset)) {
            return Err(EngineError::Busy(name.to_owned()));
        }
        self.without_all(&users, async { Ok(hierarchy.unload_key(name).await?) })
            .await
    }
}
