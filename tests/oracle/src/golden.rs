//! The golden pools of `tests/golden`: made by the real OpenZFS kernel module, each with a manifest of what is in it.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A golden pool unpacked into a directory of its own, which goes away with the value.
pub struct Golden {
    /// The pool's name, which is also the archive's.
    pub name: String,
    /// What is in the pool; see `tests/golden/README.md`.
    pub manifest: Value,
    directory: TempDir,
}

impl Golden {
    /// Unpacks the pool `name`. The images are sparse, and private to this value: they may be written.
    ///
    /// # Errors
    /// When the archive is not there, or `tar` and `zstd` are not installed.
    pub fn unpack(name: &str) -> Result<Self> {
        let folder = crate::root().join("tests/golden");
        let directory = TempDir::new().context("make a directory for the images")?;
        let status = Command::new("tar")
            .args(["--sparse", "--zstd", "-xf"])
            .arg(folder.join(format!("{name}.tar.zst")))
            .arg("-C")
            .arg(directory.path())
            .status()
            .context("run tar")?;
        ensure!(status.success(), "tar could not unpack {name}: {status}");
        let output = Command::new("zstd")
            .arg("-dc")
            .arg(folder.join(format!("{name}.json.zst")))
            .stderr(Stdio::inherit())
            .output()
            .context("run zstd")?;
        ensure!(
            output.status.success(),
            "zstd could not unpack the manifest of {name}"
        );
        let manifest = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("parse the manifest of {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            manifest,
            directory,
        })
    }

    /// Returns the directory that holds the images (`d0.img`, `d1.img` ...).
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the images, in order.
    #[must_use]
    pub fn images(&self) -> Vec<PathBuf> {
        let listed = self.manifest["images"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        listed
            .iter()
            .filter_map(|image| Some(self.directory().join(image["file"].as_str()?)))
            .collect()
    }
}
