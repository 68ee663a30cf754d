//! `sanbox get VOLUME DEST`: the bytes of a volume, or of a snapshot of one, into a file; holes stay holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use engine::{VolumeError, VolumeHandle};

use crate::cli::{Outcome, Session, dataset_clause};

/// Bytes moved at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Stretches of data and holes asked for at once.
const STRETCHES: usize = 256;

/// Why a copy stopped.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{0}")]
    Stored(#[from] VolumeError),
    #[error("{0}")]
    Local(#[from] io::Error),
}

/// Copies a volume into a file, or into a directory under the volume's last name.
pub(super) async fn get(session: &Session, name: &str, to: &str) -> Outcome {
    let opened = async {
        let pool = session.appliance.pool_of(name).await?;
        pool.open_volume(name).await
    };
    let volume = opened.await.map_err(|error| match error {
        engine::EngineError::Volume(VolumeError::NotSupported) => session.misuse(format!(
            "'{name}' is a file system: write {name}:/PATH for what is in it"
        )),
        error => session.fail(format!("cannot open '{name}': {}", dataset_clause(&error))),
    })?;
    let mut target = session.path(to);
    if target.is_dir() {
        target.push(name.rsplit('/').next().unwrap_or(name));
    }
    let copied = copy(&volume, &target).await;
    copied.map_err(|error| session.fail(format!("{}: {error}", target.display())))
}

async fn copy(volume: &VolumeHandle, target: &Path) -> Result<(), CopyError> {
    let size = volume.info().await?.size;
    let file = File::create(target)?;
    file.set_len(size)?;
    let mut at = 0;
    while at < size {
        for part in volume.allocation(at, size - at, STRETCHES).await? {
            let end = part.offset + part.len;
            while part.data && at < end {
                let len = usize::try_from((end - at).min(CHUNK_BYTES)).map_err(io::Error::other)?;
                for piece in volume.read(at, len).await? {
                    file.write_all_at(&piece, at)?;
                    at += piece.len() as u64;
                }
            }
            at = end;
        }
    }
    file.sync_all()?;
    Ok(())
}
