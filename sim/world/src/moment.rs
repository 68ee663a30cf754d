//! A moment of a running world, kept: what each disk has and what its cache has not written yet.
//!
//! From one run power cuts can be tried at many moments, and at each moment with many fates of the unflushed writes,
//! while the run itself goes on. A moment shares its chunks with the world, so keeping one is cheap.
//! Does not know what was promised to clients at that moment; the caller that captures it has to note that too.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use runtime::Instant;

use crate::disk::{Presence, SimDisk};
use crate::driver::State;
use crate::{CutModel, World};

/// The disks of a world as they were.
#[derive(Clone)]
pub struct Moment {
    disks: BTreeMap<PathBuf, SimDisk>,
    now: Instant,
}

impl World {
    /// Keeps this moment.
    #[must_use]
    pub fn capture(&self) -> Moment {
        let state = self.state.borrow();
        Moment {
            disks: state.disks.clone(),
            now: state.now,
        }
    }
}

impl Moment {
    /// Whether anything is unflushed, so that different cuts at this moment may leave different disks.
    #[must_use]
    pub fn has_unflushed(&self) -> bool {
        self.disks.values().any(SimDisk::has_unflushed)
    }

    /// Returns a world in which the power went at this moment. What it left of unflushed writes, and everything after, is
    /// decided by `seed`; without a `model` that too.
    #[must_use]
    pub fn cut(&self, seed: u64, model: Option<CutModel>) -> World {
        let mut state = State::new(seed);
        state.disks = self.disks.clone();
        state.now = self.now;
        let world = World {
            state: Rc::new(RefCell::new(state)),
        };
        match model {
            Some(model) => world.power_cut_with(model),
            None => world.power_cut(),
        }
        world
    }

    /// Returns whether a disk answered then.
    #[must_use]
    pub fn presence(&self, path: &Path) -> Option<Presence> {
        self.disks.get(path).map(|disk| disk.presence)
    }
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moment")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
