//! Bytes of one disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A disk image that can be read at any offset.
pub trait Image {
    /// Bytes of the disk.
    fn size(&self) -> u64;

    /// Fills `buf` from byte `offset`; false when that cannot be read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> bool;

    /// What to call it in findings.
    fn name(&self) -> String;
}

impl Image for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        match start
            .checked_add(buf.len())
            .and_then(|end| self.get(start..end))
        {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn name(&self) -> String {
        format!("image of {} bytes", self.len())
    }
}

/// An image in a file.
#[derive(Debug)]
pub struct FileImage {
    file: File,
    size: u64,
    name: String,
}

impl FileImage {
    /// Opens a file read-only.
    ///
    /// # Errors
    /// When the file cannot be opened or measured.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            file,
            size,
            name: path.display().to_string(),
        })
    }
}

impl Image for FileImage {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.file.read_exact_at(buf, offset).is_ok()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
