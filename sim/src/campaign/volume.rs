//! A client of a block volume: writes, discards, compares, resizes, and knows what must be there after a cut.
//!
//! It does one operation after the other, each of which fits one transaction. So what is found after a cut must equal the state
//! after some number of its operations, at least as many as were acknowledged as stable.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use engine::{CreateDataset, IoBuf, PoolHandle, Stability, VolumeError, VolumeHandle};
use runtime::Handle;
use world::Rng;

use super::model::pattern;

/// The volume's name.
const NAME: &str = "tank/vol";
/// Its size at first, in bytes.
const SIZE: usize = 512 << 10;
/// Sizes are multiples of this, which is one of every block size.
const UNIT: u64 = 128 << 10;

/// The volume's bytes.
pub type Bytes = Rc<Vec<u8>>;

/// The states since the one a transaction group is known to have made stable, oldest first.
#[derive(Clone)]
pub struct VolumeHistory {
    states: Vec<Bytes>,
    /// The first of them that may be found; those before only when the intent log is lost.
    stable: usize,
}

impl Default for VolumeHistory {
    fn default() -> Self {
        Self {
            states: vec![Rc::new(vec![0; SIZE])],
            stable: 0,
        }
    }
}

impl VolumeHistory {
    fn newest(&self) -> Bytes {
        self.states.last().expect("never empty").clone()
    }

    /// The newest state is on stable storage.
    pub fn note_stable(&mut self) {
        self.stable = self.states.len() - 1;
    }

    /// The newest state is in a synced transaction group.
    pub fn note_synced(&mut self) {
        self.states = vec![self.newest()];
        self.stable = 0;
    }

    /// The last operation was refused and has had no effect.
    fn refused(&mut self) {
        self.states.pop();
    }

    /// Takes back what was promised by the intent log alone: its device is lost with the power.
    pub fn forget_the_log(&mut self) {
        self.stable = 0;
    }

    /// Judges what was found, and goes on from there.
    ///
    /// # Errors
    /// When it is none of the possible states.
    pub fn judge(&mut self, found: Bytes) -> Result<(), String> {
        let torn = |pair: &[Bytes]| is_torn(&pair[0], &pair[1], &found);
        let possible = &self.states[self.stable..];
        if !possible.contains(&found) && !possible.windows(2).any(torn) {
            let newest = self.newest();
            let place = found.iter().zip(newest.iter()).position(|(a, b)| a != b);
            return Err(format!(
                "the volume ({} bytes) is in none of {} possible states; against the newest ({} bytes) the first \
                 difference is at {place:?}",
                found.len(),
                possible.len(),
                newest.len()
            ));
        }
        self.states = vec![found];
        self.stable = 0;
        Ok(())
    }
}

/// Whether the front of a volume is as after an operation and the rest as before: a long one is several records of the
/// intent log, and power may go between them before anything is acknowledged.
fn is_torn(old: &[u8], new: &[u8], found: &[u8]) -> bool {
    if old.len() != new.len() || found.len() != old.len() {
        return false;
    }
    let done = found.iter().zip(new).take_while(|(a, b)| a == b).count();
    found[done..] == old[done..]
}

/// Creates the volume, with a block size by seed.
///
/// # Errors
/// A sentence.
pub async fn create(pool: &PoolHandle, seed: u64) -> Result<(), String> {
    let text = |error: engine::EngineError| format!("volume: {error}");
    let blocks = ["512", "4096", "8192", "16384", "65536", "131072"];
    let block = blocks[usize::try_from(seed % 6).expect("small")];
    let mut properties = vec![("volblocksize".to_owned(), block.to_owned())];
    let plan = pool
        .plan_volume(SIZE as u64, seed.is_multiple_of(2), &properties)
        .await
        .map_err(text)?;
    properties.push(("volsize".to_owned(), plan.size.to_string()));
    if let Some(bytes) = plan.reservation {
        properties.push(("refreservation".to_owned(), bytes.to_string()));
    }
    let request = CreateDataset {
        name: NAME.to_owned(),
        volume: true,
        properties,
        ..CreateDataset::default()
    };
    pool.create_dataset(request).await.map_err(text)
}

/// Reads the whole volume.
///
/// # Errors
/// A sentence.
pub async fn look(pool: &PoolHandle) -> Result<Bytes, String> {
    let text = |error: VolumeError| format!("volume: {error}");
    let volume = pool
        .open_volume(NAME)
        .await
        .map_err(|error| format!("volume: {error}"))?;
    let size = volume.info().await.map_err(text)?.size;
    read(&volume, 0, size).await.map(Rc::new).map_err(text)
}

async fn read(volume: &VolumeHandle, offset: u64, len: u64) -> Result<Vec<u8>, VolumeError> {
    let len = usize::try_from(len).expect("small");
    let pieces = volume.read(offset, len).await?;
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|piece| piece.iter().copied())
        .collect();
    assert_eq!(bytes.len(), len, "a read gives exactly what was asked for");
    Ok(bytes)
}

/// Does `count` operations.
///
/// # Errors
/// A sentence, when the volume answers otherwise than the model.
pub async fn work(
    pool: PoolHandle,
    history: Rc<RefCell<VolumeHistory>>,
    handle: Handle,
    mut rng: Rng,
    count: u64,
) -> Result<(), String> {
    let volume = pool
        .open_volume(NAME)
        .await
        .map_err(|error| format!("volume: {error}"))?;
    for _ in 0..count {
        let now = history.borrow().newest();
        let size = now.len() as u64;
        let offset = rng.below(size) & !511;
        let len = (rng.between(1, 64) * 512).min(size - offset);
        let range =
            usize::try_from(offset).expect("small")..usize::try_from(offset + len).expect("small");
        let fill = rng.next_u64();
        let stability = if rng.below(6) == 0 {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        let mut next = (*now).clone();
        let mut stable = stability == Stability::FileSync;
        let (what, outcome) = match rng.below(16) {
            0..=7 => {
                let data = pattern(fill, len);
                next[range].copy_from_slice(&data);
                history.borrow_mut().states.push(Rc::new(next));
                let data = IoBuf::from(data);
                ("write", volume.write(offset, data, stability).await)
            }
            8 => {
                next[range].fill(0);
                history.borrow_mut().states.push(Rc::new(next));
                ("zero", volume.zero(offset, len, stability).await)
            }
            9 => {
                // Whole blocks of every block size, so that the model need not know which.
                let from = offset.next_multiple_of(UNIT).min(size);
                next[usize::try_from(from).expect("small")..].fill(0);
                history.borrow_mut().states.push(Rc::new(next));
                let whole = size - from;
                ("discard", volume.discard(from, whole, stability).await)
            }
            10 => {
                let data = pattern(fill, len);
                next[range.clone()].copy_from_slice(&data);
                let expected = IoBuf::copy_from(&now[range.clone()]);
                history.borrow_mut().states.push(Rc::new(next));
                let data = IoBuf::from(data);
                let done = volume.compare_and_write(offset, expected, data, stability);
                ("compare and write", done.await)
            }
            11 => {
                let mut wrong = now[range].to_vec();
                wrong[0] ^= 1;
                let (wrong, data) = (IoBuf::from(wrong), IoBuf::from(pattern(fill, len)));
                match volume
                    .compare_and_write(offset, wrong, data, stability)
                    .await
                {
                    Err(VolumeError::Miscompare(0)) => continue,
                    other => return Err(format!("volume: a wrong comparison gave {other:?}")),
                }
            }
            12 => {
                stable = true;
                ("flush", volume.flush().await)
            }
            13 => {
                let units = rng.between(1, 6);
                next.resize(usize::try_from(units * UNIT).expect("small"), 0);
                history.borrow_mut().states.push(Rc::new(next));
                stable = true;
                let settings = [("volsize".to_owned(), (units * UNIT).to_string())];
                match pool.set_dataset_properties(NAME, &settings).await {
                    Ok(()) => history.borrow_mut().note_synced(),
                    Err(error) if error.to_string().contains("space") => {
                        history.borrow_mut().refused();
                        continue;
                    }
                    Err(error) => return Err(format!("volume: resize: {error}")),
                }
                ("resize", Ok(()))
            }
            _ => {
                let found = read(&volume, offset, len).await;
                match found {
                    Ok(found) if found == now[range] => continue,
                    Ok(_) => return Err(format!("volume: {len} bytes at {offset} read wrongly")),
                    Err(error) => ("read", Err(error)),
                }
            }
        };
        match outcome {
            Ok(()) => {}
            Err(VolumeError::NoSpace) => {
                // Nothing was done: each of these operations is one transaction.
                history.borrow_mut().refused();
                continue;
            }
            Err(error) => return Err(format!("volume: {what}: {error}")),
        }
        if stable {
            history.borrow_mut().note_stable();
        }
        if rng.below(4) == 0 {
            handle
                .sleep(Duration::from_micros(rng.below(300_000)))
                .await;
        }
    }
    Ok(())
}
