//! Encrypted datasets in the campaign: each encryption root has a key of its own, which the administrator loads, unloads and changes.
//!
//! Whatever is cut off, exactly one of the keys that there are opens a root, and it is the one that was acknowledged, or the one that it
//! was being changed to; everything that inherits it can be read with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::{EngineError, KeyChange, KeyFormat, NewKey, PoolHandle, WrappingKey};

use super::datasets::{DatasetAdmin, Names, ROOT, Thing, head_of, is_full, is_snapshot, text};

/// In the names of snapshots that a rotation takes for itself.
pub(super) const SHORT_LIVED: &str = "@sanbox-rotate-key-";
/// How often the administrator looks at a rotation.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a rotation whose key was unloaded is gone on with.
const RESUMED_MAX: u32 = 3;
/// Keys that there are. Fewer roots than that are encrypted at one time.
const SECRETS: u8 = 32;

/// What opens a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Tells encryption roots from one another in one boot: other roots may have the same secret.
    root: u64,
    secret: u8,
}

/// Whether both are opened by the same secret, or by none.
pub(super) fn same_secret(one: Option<Key>, other: Option<Key>) -> bool {
    one.map(|key| key.secret) == other.map(|key| key.secret)
}

fn wrapping_key(secret: u8) -> WrappingKey {
    WrappingKey::from_raw(&[secret; 32]).expect("32 bytes")
}

fn new_key(secret: u8) -> NewKey {
    NewKey {
        format: KeyFormat::Raw,
        key: Arc::new(wrapping_key(secret)),
    }
}

/// Opens encryption roots after an import, and remembers with which keys.
#[derive(Default)]
pub(super) struct Opened(BTreeMap<String, Key>);

impl Opened {
    /// Loads the key of a dataset's encryption root, if that was not done; returns it.
    ///
    /// # Errors
    /// A sentence, when no key opens it.
    pub(super) async fn key_of(
        &mut self,
        pool: &PoolHandle,
        dataset: &str,
    ) -> Result<Option<Key>, String> {
        let Some(info) = pool.key_info(dataset).await.map_err(text)? else {
            return Ok(None);
        };
        if let Some(key) = self.0.get(&info.root) {
            return Ok(Some(*key));
        }
        for secret in 0..SECRETS {
            // A key that is loaded, too, is compared with what is stored.
            match pool.load_key(&info.root, wrapping_key(secret), true).await {
                Ok(()) => {}
                Err(EngineError::WrongKey(_)) => continue,
                Err(error) => return Err(text(error)),
            }
            if !info.loaded {
                let loaded = pool.load_key(&info.root, wrapping_key(secret), false).await;
                loaded.map_err(text)?;
            }
            let root = self.0.len() as u64;
            let key = Key { root, secret };
            self.0.insert(info.root, key);
            return Ok(Some(key));
        }
        Err(format!("no key opens {}", info.root))
    }
}

/// Loads all keys.
pub(super) async fn load_all(pool: &PoolHandle, names: &Names) -> Result<(), String> {
    let mut opened = Opened::default();
    for name in names.keys().filter(|name| !is_snapshot(name)) {
        opened.key_of(pool, name).await?;
    }
    Ok(())
}

impl DatasetAdmin {
    /// A secret that no root has; `None` when all are taken.
    fn fresh_secret(&self, names: &Names) -> Option<u8> {
        let taken = |secret| {
            names
                .values()
                .any(|thing| thing.key.is_some_and(|key| key.secret == secret))
        };
        (0..SECRETS).find(|secret| !taken(*secret))
    }

    fn fresh_key(&mut self, names: &Names) -> Option<Key> {
        Some(Key {
            secret: self.fresh_secret(names)?,
            root: self.rng.next_u64(),
        })
    }

    /// The key of a dataset to be created below `parent`, and its own with the properties that ask for it, if it gets one.
    pub(super) fn draw_key(
        &mut self,
        names: &Names,
        parent: &str,
    ) -> (Option<Key>, Option<NewKey>, Vec<(String, String)>) {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let inherited = names[parent].key;
        if !self.habits.encryption {
            return (inherited, None, Vec::new());
        }
        match self.rng.below(4) {
            0 | 1 => {
                let Some(key) = self.fresh_key(names) else {
                    return (inherited, None, Vec::new());
                };
                let suites = ["on", "aes-128-ccm", "aes-256-gcm"];
                let suite = *self.rng.choose(&suites);
                let properties = vec![
                    own("encryption", suite),
                    own("keyformat", "raw"),
                    own("keylocation", "prompt"),
                ];
                (Some(key), Some(new_key(key.secret)), properties)
            }
            2 if inherited.is_some() => (None, None, vec![own("encryption", "off")]),
            _ => (inherited, None, Vec::new()),
        }
    }

    /// Rotates a key, changes one, has a root inherit that of its parent, or unloads one and loads it again.
    pub(super) async fn use_keys(&mut self) -> Result<(), String> {
        let names = self.names();
        let encrypted = |name: &str| !is_snapshot(name) && names[name].key.is_some();
        let Some(name) = self.pick(&names, encrypted) else {
            return Ok(());
        };
        if self.rng.below(3) == 0 {
            return self.rotate_key(&name, &names).await;
        }
        self.change_one(&name, &names).await
    }

    /// Changes the key of a root, has it inherit that of its parent, or unloads it and loads it again.
    async fn change_one(&mut self, name: &str, names: &Names) -> Result<(), String> {
        if !self.is_root(name).await? {
            return Ok(());
        }
        let key = names[name].key.expect("it is encrypted");
        let is_clone = names[name].origin.is_some();
        let parent = name.rsplit_once('/').map_or(ROOT, |(parent, _)| parent);
        match (self.rng.below(4), names[parent].key) {
            (0, _) => self.reload(name, key).await,
            _ if is_clone => Ok(()),
            (1, Some(above)) => {
                self.change_key(name, names, key, above, KeyChange::Inherit)
                    .await
            }
            _ => {
                let Some(secret) = self.fresh_secret(names) else {
                    return Ok(());
                };
                let change = KeyChange::New {
                    key: new_key(secret),
                    location: None,
                };
                let next = Key { secret, ..key };
                self.change_key(name, names, key, next, change).await
            }
        }
    }

    /// Encrypts a dataset anew under another master key, or begins to, while other things are done with it and with others. What it holds
    /// and what opens it stays.
    async fn rotate_key(&mut self, name: &str, names: &Names) -> Result<(), String> {
        let is_shared = |thing: &Thing| {
            let origin = thing.origin.as_deref();
            origin.is_some_and(|origin| head_of(origin) == name)
        };
        let shared = names[name].origin.is_some() || names.values().any(is_shared);
        match self.pool.start_key_rotation(name).await {
            Ok(_) if shared => return Err(format!("the key of {name} is shared and rotated")),
            Ok(_) => {}
            Err(_) if shared => return Ok(()),
            // A receive that can be resumed.
            Err(EngineError::Busy(_)) => return Ok(()),
            Err(error) if is_full(&error) || error.to_string().contains("needs") => return Ok(()),
            Err(error) => return Err(text(error)),
        }
        self.history.borrow_mut().counts.rotations += 1;
        self.rotating = true;
        for _ in 0..self.rng.below(4) {
            let pause = Duration::from_micros(self.rng.below(100_000));
            self.handle.sleep(pause).await;
            self.meanwhile(name).await?;
        }
        self.rotating = false;
        if self.rng.below(4) == 0 {
            let pause = Duration::from_micros(self.rng.below(300_000));
            self.handle.sleep(pause).await;
            // It may be that it has ended.
            let _ = self.pool.cancel_key_rotation(name).await;
        }
        self.end_rotations().await
    }

    /// One thing that is done while the key of a dataset is rotated, mostly with that dataset.
    async fn meanwhile(&mut self, name: &str) -> Result<(), String> {
        let names = self.names();
        let under_way = self.pool.key_rotations().await.map_err(text)?;
        if under_way.iter().any(|rotation| rotation.running) {
            self.history.borrow_mut().counts.meanwhile += 1;
        }
        match self.rng.below(12) {
            0..=4 => {
                // What wraps its key is that of the root that it is below.
                let is_there = names.get(name).is_some_and(|thing| thing.key.is_some());
                let info = match is_there {
                    true => self.pool.key_info(name).await.map_err(text)?,
                    false => None,
                };
                match info.filter(|info| names.contains_key(&info.root)) {
                    Some(info) => self.change_one(&info.root, &names).await,
                    None => Ok(()),
                }
            }
            5 if names.contains_key(name) => self.fill(name).await,
            5 | 6 => self.snapshot().await,
            7 => self.destroy_snapshots().await,
            8 => self.rename().await,
            9 => self.rename_snapshot().await,
            10 => self.rollback().await,
            _ => self.destroy().await,
        }
    }

    /// Goes on with rotations to their ends; those that find no room, or datasets that may not be rotated any more, are given up.
    pub(super) async fn end_rotations(&mut self) -> Result<(), String> {
        self.pool.resume_key_rotations().await.map_err(text)?;
        let mut resumed = 0;
        loop {
            let found = self.pool.key_rotations().await.map_err(text)?;
            let Some(rotation) = found.first() else {
                return Ok(());
            };
            if rotation.running {
                self.handle.sleep(LOOK_EVERY).await;
                continue;
            }
            match (&rotation.dataset, &rotation.failed) {
                // Its key was unloaded for a while.
                (Some(_), Some(why)) if why.contains("not loaded") && resumed < RESUMED_MAX => {
                    self.pool.resume_key_rotations().await.map_err(text)?;
                    resumed += 1;
                }
                (Some(name), Some(why)) if why.contains("space") || why.contains("same key") => {
                    match self.pool.cancel_key_rotation(name).await {
                        Ok(()) => {}
                        Err(error) if error.to_string().contains("new key") => {}
                        Err(error) => return Err(text(error)),
                    }
                }
                _ => return Err(format!("a rotation does not end: {rotation:?}")),
            }
        }
    }

    /// Whether a dataset is an encryption root.
    async fn is_root(&self, name: &str) -> Result<bool, String> {
        let info = self.pool.key_info(name).await.map_err(text)?;
        Ok(info.is_some_and(|info| info.root == name))
    }

    /// Whether a dataset may go elsewhere: what inherits its key stays below its root.
    pub(super) async fn may_move(&self, name: &str, thing: &Thing) -> Result<bool, String> {
        match thing.key {
            Some(_) => self.is_root(name).await,
            None => Ok(true),
        }
    }

    async fn change_key(
        &mut self,
        root: &str,
        names: &Names,
        from: Key,
        to: Key,
        change: KeyChange,
    ) -> Result<(), String> {
        let mut next = names.clone();
        for thing in next.values_mut() {
            if thing.key.is_some_and(|key| key.root == from.root) {
                thing.key = Some(to);
            }
        }
        self.begin(next);
        let changed = self.pool.change_key(root, change).await;
        self.end(changed).map(drop)
    }

    /// Unloads a key and loads it again.
    async fn reload(&mut self, root: &str, key: Key) -> Result<(), String> {
        match self.pool.unload_key(root).await {
            Ok(()) => {}
            Err(EngineError::Busy(_)) => return Ok(()),
            Err(error) => return Err(text(error)),
        }
        let wrong = (key.secret + 1) % SECRETS;
        match self.pool.load_key(root, wrapping_key(wrong), false).await {
            Err(EngineError::WrongKey(_)) => {}
            other => return Err(format!("{root}: a wrong key was loaded: {other:?}")),
        }
        let loaded = self.pool.load_key(root, wrapping_key(key.secret), false);
        loaded.await.map_err(text)
    }

    /// The key of what is received raw of a dataset with `key`: a root of its own that the same secret opens.
    pub(super) fn raw_copy(&mut self, key: Key) -> Key {
        Key {
            root: self.rng.next_u64(),
            ..key
        }
    }

    pub(super) async fn load(&self, dataset: &str, key: Key) -> Result<(), EngineError> {
        self.pool
            .load_key(dataset, wrapping_key(key.secret), false)
            .await
    }
}
