//! Somebody who creates, renames, changes and destroys datasets while clients work.
//!
//! These operations are on stable storage when they return, so after a cut the list of datasets is what was
//! acknowledged, or that and the operation under way.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use engine::{
    CreateDataset, CreateMode, Cred, DatasetFilter, DatasetKind, DestroyOptions, IoBuf, PoolHandle,
    PropertyQuery, SetAttr, Stability,
};
use runtime::Handle;
use world::Rng;

use super::model::pattern;

/// Where the datasets of this task live.
const ROOT: &str = "tank/fs";

/// Full names of datasets below the root.
pub type Names = BTreeSet<String>;

/// What was acknowledged, and what may be.
#[derive(Debug)]
pub struct DatasetHistory {
    acknowledged: Names,
    under_way: Option<Names>,
}

impl Default for DatasetHistory {
    fn default() -> Self {
        Self::new()
    }
}

impl DatasetHistory {
    #[must_use]
    pub fn new() -> Self {
        Self {
            acknowledged: Names::new(),
            under_way: None,
        }
    }

    fn end(&mut self) {
        self.acknowledged = self.under_way.take().expect("one has begun");
    }

    /// Judges what was found, and goes on from there.
    ///
    /// # Errors
    /// When it is neither what was acknowledged nor that with the operation under way.
    pub fn judge(&mut self, found: Names) -> Result<(), String> {
        if found != self.acknowledged && self.under_way.as_ref() != Some(&found) {
            return Err(format!(
                "datasets {found:?}, acknowledged {:?}, under way {:?}",
                self.acknowledged, self.under_way
            ));
        }
        self.acknowledged = found;
        self.under_way = None;
        Ok(())
    }
}

/// Lists the datasets below the root.
///
/// # Errors
/// A sentence.
pub async fn list(pool: &PoolHandle) -> Result<Names, String> {
    let filter = DatasetFilter {
        root: ROOT.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let found = pool
        .datasets(&filter, &PropertyQuery::None)
        .await
        .map_err(|error| error.to_string())?;
    Ok(found
        .into_iter()
        .map(|info| info.name)
        .filter(|name| name != ROOT)
        .collect())
}

/// Works until a dozen operations are done.
///
/// # Errors
/// A sentence, when the engine refuses something valid.
pub async fn work(
    pool: PoolHandle,
    history: Rc<RefCell<DatasetHistory>>,
    handle: Handle,
    mut rng: Rng,
) -> Result<(), String> {
    for _ in 0..12 {
        let names = history.borrow().acknowledged.clone();
        let pick = |rng: &mut Rng| {
            let names: Vec<&String> = names.iter().collect();
            (!names.is_empty()).then(|| (*rng.choose(&names)).clone())
        };
        let fresh = |rng: &mut Rng, parent: &str| format!("{parent}/d{}", rng.below(1000));
        let mut next = names.clone();
        let text = |error: engine::EngineError| format!("datasets: {error}");
        match rng.below(10) {
            0..=4 => {
                let parent = pick(&mut rng)
                    .filter(|_| rng.coin())
                    .unwrap_or_else(|| ROOT.to_owned());
                let name = fresh(&mut rng, &parent);
                if !next.insert(name.clone()) {
                    continue;
                }
                history.borrow_mut().under_way = Some(next);
                let sizes = ["4K", "128K", "1M"];
                let properties = vec![("recordsize".to_owned(), (*rng.choose(&sizes)).to_owned())];
                let request = CreateDataset {
                    name: name.clone(),
                    properties,
                    ..CreateDataset::default()
                };
                match pool.create_dataset(request).await {
                    Ok(()) => {}
                    Err(error) if is_full(&error) => {
                        history.borrow_mut().under_way = None;
                        continue;
                    }
                    Err(error) => return Err(text(error)),
                }
                history.borrow_mut().end();
                fill(&pool, &name, &mut rng).await?;
            }
            5..=6 => {
                let Some(name) = pick(&mut rng) else { continue };
                let inside = format!("{name}/");
                next.retain(|other| *other != name && !other.starts_with(&inside));
                history.borrow_mut().under_way = Some(next);
                let options = DestroyOptions { recursive: true };
                // Several datasets go one after the other: only the end of it is certain.
                if names.iter().any(|other| other.starts_with(&inside)) {
                    history.borrow_mut().under_way = None;
                    continue;
                }
                pool.destroy_dataset(&name, options).await.map_err(text)?;
                history.borrow_mut().end();
            }
            7 => {
                let Some(from) = pick(&mut rng) else { continue };
                let to = fresh(&mut rng, ROOT);
                if names.contains(&to) || to.starts_with(&format!("{from}/")) || to == from {
                    continue;
                }
                let inside = format!("{from}/");
                let moved: Names = names
                    .iter()
                    .map(|name| match name.strip_prefix(&inside) {
                        Some(rest) => format!("{to}/{rest}"),
                        None if *name == from => to.clone(),
                        None => name.clone(),
                    })
                    .collect();
                history.borrow_mut().under_way = Some(moved);
                pool.rename_dataset(&from, &to, false).await.map_err(text)?;
                history.borrow_mut().end();
            }
            _ => {
                let Some(name) = pick(&mut rng) else { continue };
                let values = ["lz4", "off", "zstd", "gzip-1"];
                let settings = [("compression".to_owned(), (*rng.choose(&values)).to_owned())];
                match pool.set_dataset_properties(&name, &settings).await {
                    Ok(()) => {}
                    Err(error) if is_full(&error) => {}
                    Err(error) => return Err(text(error)),
                }
            }
        }
        handle
            .sleep(Duration::from_micros(rng.below(400_000)))
            .await;
    }
    Ok(())
}

fn is_full(error: &engine::EngineError) -> bool {
    error.to_string().contains("space")
}

/// Puts a file into a new dataset, so that destroying it frees something.
async fn fill(pool: &PoolHandle, name: &str, rng: &mut Rng) -> Result<(), String> {
    let cred = Cred::root();
    let text = |error: engine::FsError| format!("datasets: {name}: {error}");
    let fs = pool
        .open_fs(name)
        .await
        .map_err(|error| error.to_string())?;
    let root = fs.root().await.map_err(text)?.id;
    let made = fs
        .create(
            root,
            b"content",
            CreateMode::Guarded,
            &SetAttr::default(),
            &cred,
        )
        .await;
    let id = match made {
        Ok(made) => made.file.id,
        Err(engine::FsError::NoSpace) => return Ok(()),
        Err(error) => return Err(text(error)),
    };
    let data = IoBuf::from(pattern(rng.next_u64(), rng.between(1, 300_000)));
    match fs.write(id, 0, data, Stability::Unstable, &cred).await {
        Ok(_) | Err(engine::FsError::NoSpace) => Ok(()),
        Err(error) => Err(text(error)),
    }
}
