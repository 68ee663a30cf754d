//! The bytes of a modelled disk: sparse, copy-on-write, so that large disks and their snapshots are cheap.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

/// Bytes in a chunk: the unit of copying.
const CHUNK: usize = 4 * 1024;
/// Chunks that are shared or copied together, as references: a write to an image with sharers copies a short list of
/// groups, one group's references and one chunk, however large the image is.
const GROUP: usize = 64;

type Chunk = Rc<[u8; CHUNK]>;
type Group = Rc<[Option<Chunk>; GROUP]>;

/// A sparse image. Cloning shares all chunks.
#[derive(Clone, Debug, Default)]
pub struct Image {
    size: u64,
    groups: Rc<BTreeMap<u64, Group>>,
}

impl Image {
    /// Bytes of the parts [`Image::written`] tells: the unit of sparseness.
    pub const PART: u64 = 16 * 1024;

    /// Returns the offsets of the parts that were ever written, in order.
    #[must_use]
    pub fn written(&self) -> Vec<u64> {
        let mut parts: Vec<u64> = self
            .chunks()
            .map(|(number, _)| number * CHUNK as u64 / Self::PART * Self::PART)
            .collect();
        parts.dedup();
        parts
    }

    /// Makes an image of `size` zero bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            size,
            groups: Rc::default(),
        }
    }

    /// Reads a (sparse) file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut image = Self::new(size);
        let mut bytes = vec![0; CHUNK * 64];
        let zeros = [0; CHUNK];
        let mut offset = 0;
        while offset < size {
            let len = usize::try_from(size - offset)
                .unwrap_or(bytes.len())
                .min(bytes.len());
            file.read_exact_at(&mut bytes[..len], offset)?;
            for (index, part) in bytes[..len].chunks(CHUNK).enumerate() {
                // Compared at once: most of a disk is zeros, and most builds of tests are slow at single bytes.
                if part != &zeros[..part.len()] {
                    image.write(offset + (index * CHUNK) as u64, part);
                }
            }
            offset += len as u64;
        }
        Ok(image)
    }

    /// Writes the image as a sparse file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        for (number, chunk) in self.chunks() {
            let offset = number * CHUNK as u64;
            let len = usize::try_from(self.size - offset)
                .unwrap_or(CHUNK)
                .min(CHUNK);
            file.write_all_at(&chunk[..len], offset)?;
        }
        Ok(())
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Makes it larger by zero bytes at its end.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Returns the bytes held in memory (shared chunks count in each image).
    #[must_use]
    pub fn allocated(&self) -> u64 {
        (self.chunks().count() * CHUNK) as u64
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        self.check(offset, buf.len());
        for (number, within, place) in parts(offset, buf.len()) {
            let target = &mut buf[place.clone()];
            match self.chunk(number) {
                Some(chunk) => target.copy_from_slice(&chunk[within..within + place.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.check(offset, data.len());
        let groups = Rc::make_mut(&mut self.groups);
        for (number, within, place) in parts(offset, data.len()) {
            let (group, index) = in_group(number);
            let group = groups
                .entry(group)
                .or_insert_with(|| Rc::new([const { None }; GROUP]));
            let chunk = &mut Rc::make_mut(group)[index];
            match <&[u8; CHUNK]>::try_from(&data[place.clone()]) {
                // A whole chunk needs no copy of what it was.
                Ok(whole) => *chunk = Some(Rc::new(*whole)),
                Err(_) => {
                    let chunk = chunk.get_or_insert_with(|| Rc::new([0; CHUNK]));
                    Rc::make_mut(chunk)[within..within + place.len()].copy_from_slice(&data[place]);
                }
            }
        }
    }

    /// Makes the range zero, giving whole chunks back.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn clear(&mut self, offset: u64, len: u64) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.size),
            "outside the image"
        );
        let end = offset + len;
        let span = (GROUP * CHUNK) as u64;
        let groups = Rc::make_mut(&mut self.groups);
        for (&number, group) in groups.range_mut(offset / span..=end / span) {
            for (index, chunk) in Rc::make_mut(group).iter_mut().enumerate() {
                let start = number * span + (index * CHUNK) as u64;
                let part = start / Self::PART * Self::PART;
                if offset <= part && part + Self::PART <= end {
                    *chunk = None;
                } else if let Some(chunk) = chunk {
                    let within = |at: u64| {
                        let at = at.clamp(start, start + CHUNK as u64) - start;
                        usize::try_from(at).expect("in a chunk")
                    };
                    let range = within(offset)..within(end);
                    if !range.is_empty() {
                        Rc::make_mut(chunk)[range].fill(0);
                    }
                }
            }
        }
        groups.retain(|_, group| group.iter().any(Option::is_some));
    }

    /// Returns a hash of the content (equal content, equal hash, however it came about).
    #[must_use]
    pub fn content_hash(&self) -> u64 {
        let mut hash = crate::audit::EventHash::default();
        hash.add(self.size);
        for (number, chunk) in self.chunks() {
            if chunk.iter().any(|&byte| byte != 0) {
                hash.add(number);
                hash.add_bytes(&chunk[..]);
            }
        }
        hash.value()
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        let (group, index) = in_group(number);
        self.groups.get(&group)?[index].as_ref()
    }

    /// The chunks there are, with their numbers, in order.
    fn chunks(&self) -> impl Iterator<Item = (u64, &Chunk)> {
        self.groups.iter().flat_map(|(&group, chunks)| {
            let first = group * GROUP as u64;
            chunks
                .iter()
                .enumerate()
                .filter_map(move |(index, chunk)| Some((first + index as u64, chunk.as_ref()?)))
        })
    }

    fn check(&self, offset: u64, len: usize) {
        let inside = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.size);
        assert!(
            inside,
            "{len} bytes at {offset} are outside an image of {} bytes",
            self.size
        );
    }
}

/// Returns the group of a chunk, and its place there.
fn in_group(number: u64) -> (u64, usize) {
    let index = usize::try_from(number % GROUP as u64).expect("in a group");
    (number / GROUP as u64, index)
}

/// Splits a range into (chunk number, offset within the chunk, range of the caller's buffer).
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = usize::try_from(at % CHUNK as u64).expect("in a chunk");
        let count = (CHUNK - within).min(len - done);
        let place = done..done + count;
        done += count;
        Some((at / CHUNK as u64, within, place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn behaves_like_a_vector_and_snapshots_do_not_change() {
        let mut rng = Rng::new(1);
        let size = 100_000_u64;
        let mut model = vec![0_u8; 100_000];
        let mut image = Image::new(size);
        let mut snapshots = Vec::new();
        for step in 0..300 {
            let offset = rng.below(size);
            let len = rng.below(40_000).min(size - offset);
            let range = usize::try_from(offset).expect("small")
                ..usize::try_from(offset + len).expect("small");
            if rng.below(4) == 0 {
                image.clear(offset, len);
                model[range].fill(0);
            } else {
                rng.fill(&mut model[range.clone()]);
                image.write(offset, &model[range]);
            }
            if step % 50 == 0 {
                snapshots.push((image.clone(), model.clone()));
            }
        }
        snapshots.push((image, model));
        for (image, model) in snapshots {
            let mut bytes = vec![1; 100_000];
            image.read(0, &mut bytes);
            assert!(bytes == model);
        }
    }

    #[test]
    fn files_keep_the_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut image = Image::new(50_000);
        image.write(40_000, b"hello");
        image.to_file(&dir.path().join("image")).expect("writes");
        let back = Image::from_file(&dir.path().join("image")).expect("reads");
        assert_eq!(back.content_hash(), image.content_hash());
        assert_eq!(back.size(), 50_000);
        assert_eq!(back.allocated(), CHUNK as u64);
    }
}
