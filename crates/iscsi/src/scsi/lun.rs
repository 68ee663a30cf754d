//! The logical unit: a volume as SCSI sees it, with its state between commands.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::VolumeHandle;

use super::cdb::{Cdb, CommandClass, op};
use super::copy_results::CopyResults;
use super::nexus::{Nexus, Port};
use super::registrations::Reservations;
use super::sense::{Asc, Sense, asc, key};
use super::task_set::TaskSet;
use super::tokens::Tokens;
use crate::environment::Environment;
use crate::fifo_mutex::FifoMutex;
use crate::spec::{LunSpec, SectorFormat};

/// Unit attentions kept for one nexus; older ones tell enough then.
const ATTENTIONS_MAX: usize = 8;

/// A logical unit, shared by all targets and sessions that reach it.
pub(crate) struct LogicalUnit {
    pub(crate) volume: VolumeHandle,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) tokens: Tokens,
    pub(crate) task_set: Arc<TaskSet>,
    /// Bytes that may still be written before the space is looked at again.
    pub(super) unwatched: AtomicI64,
    state: Mutex<LunState>,
    /// Makes ORWRITE and its like atomic among themselves.
    pub(crate) read_modify_write: FifoMutex,
}

/// A session that can reach the unit.
#[derive(Debug)]
struct AttachedSession {
    port: Port,
    attentions: VecDeque<Asc>,
}

/// The changeable state of a logical unit.
#[derive(Debug)]
pub(crate) struct LunState {
    pub(crate) name: String,
    /// As of [`LunSpec::identity`].
    pub(crate) identity: u64,
    pub(crate) bytes: u64,
    pub(crate) volume_block: u64,
    pub(crate) sectors: SectorFormat,
    pub(crate) write_cache: bool,
    /// The write cache as the volume's properties have it.
    configured_cache: bool,
    /// Read-only as the volume has it.
    pub(crate) read_only: bool,
    pub(crate) thin: bool,
    /// Percent in use beyond which initiators are warned; 0 is never.
    pub(crate) threshold_percent: u8,
    /// The warning is still to be given.
    pub(super) threshold_armed: bool,
    /// The identifier to be told instead of our own.
    pub(crate) naa: Option<[u8; 16]>,
    /// Control mode page: SWP and D_SENSE.
    pub(crate) software_protect: bool,
    pub(crate) descriptor_sense: bool,
    pub(crate) stopped: bool,
    /// Asymmetric access state of the only target port group.
    pub(crate) access: u8,
    pub(crate) reservations: Reservations,
    /// The session that holds the unit by RESERVE(6).
    pub(crate) reserved_by: Option<u64>,
    sessions: BTreeMap<u64, AttachedSession>,
    /// Results of copies.
    pub(super) copies: CopyResults,
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit")
            .field("volume", &self.volume.guid())
            .finish_non_exhaustive()
    }
}

impl LogicalUnit {
    pub(crate) fn new(spec: &LunSpec, environment: Arc<dyn Environment>) -> Self {
        let reservations = spec.reservations.as_deref().and_then(Reservations::parse);
        Self {
            volume: spec.volume.clone(),
            environment,
            tokens: Tokens::default(),
            task_set: Arc::default(),
            unwatched: AtomicI64::new(0),
            read_modify_write: FifoMutex::default(),
            state: Mutex::new(LunState {
                name: spec.name.clone(),
                identity: spec.identity,
                bytes: spec.bytes,
                volume_block: spec.volume_block,
                sectors: spec.sectors,
                write_cache: spec.write_cache,
                configured_cache: spec.write_cache,
                read_only: spec.read_only,
                thin: spec.thin,
                threshold_percent: spec.threshold_percent,
                threshold_armed: true,
                naa: spec.naa,
                software_protect: false,
                descriptor_sense: false,
                stopped: false,
                access: 0,
                reservations: reservations.unwrap_or_default(),
                reserved_by: None,
                sessions: BTreeMap::new(),
                copies: CopyResults::default(),
            }),
        }
    }

    /// Follows the volume's properties; sessions are told of what changed.
    pub(crate) fn follow(&self, spec: &LunSpec) {
        let mut state = self.state();
        let resized = state.bytes != spec.bytes || state.sectors != spec.sectors;
        state.name.clone_from(&spec.name);
        state.bytes = spec.bytes;
        state.volume_block = spec.volume_block;
        state.sectors = spec.sectors;
        state.thin = spec.thin;
        if state.threshold_percent != spec.threshold_percent {
            state.threshold_percent = spec.threshold_percent;
            state.threshold_armed = true;
            self.unwatched.store(0, Ordering::Relaxed);
        }
        let renamed = state.naa != spec.naa || state.identity != spec.identity;
        state.naa = spec.naa;
        state.identity = spec.identity;
        // MODE SELECT may have switched the cache since: only a change of the property counts.
        let recached = state.configured_cache != spec.write_cache;
        let remoded = recached || state.read_only != spec.read_only;
        if recached {
            state.configured_cache = spec.write_cache;
            state.write_cache = spec.write_cache;
        }
        state.read_only = spec.read_only;
        if resized {
            state.add_attention_to_all(asc::CAPACITY_CHANGED, None);
        }
        if renamed {
            state.add_attention_to_all(asc::INQUIRY_CHANGED, None);
        }
        if remoded {
            state.add_attention_to_all(asc::MODE_CHANGED, None);
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a logical block.
    pub(crate) fn block(&self) -> u64 {
        self.state().sectors.block()
    }

    /// Bytes of a block of the volume.
    pub(crate) fn volume_block(&self) -> u64 {
        self.state().volume_block
    }

    /// Logical blocks.
    pub(crate) fn blocks(&self) -> u64 {
        let state = self.state();
        state.bytes / state.sectors.block()
    }

    /// Whether errors are told in descriptor format.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.state().descriptor_sense
    }

    /// A session can reach the unit from now on.
    pub(crate) fn join(&self, nexus: &Nexus) {
        let session = AttachedSession {
            port: nexus.port.clone(),
            attentions: VecDeque::new(),
        };
        self.state().sessions.entry(nexus.id).or_insert(session);
    }

    /// A session is gone, and what it held by RESERVE(6) with it.
    pub(crate) fn leave(&self, nexus: u64) {
        let mut state = self.state();
        state.sessions.remove(&nexus);
        if state.reserved_by == Some(nexus) {
            state.reserved_by = None;
        }
    }

    /// Tells one session something.
    pub(crate) fn add_attention(&self, nexus: u64, attention: Asc) {
        self.state().add_attention(nexus, attention);
    }

    pub(crate) fn take_attention(&self, nexus: u64) -> Option<Asc> {
        self.state()
            .sessions
            .get_mut(&nexus)?
            .attentions
            .pop_front()
    }

    /// Makes the unit as after power-on, but for what is persistent. SAM-5 section 6.3.3.
    pub(crate) fn reset(&self, attention: Asc) {
        let mut state = self.state();
        state.reserved_by = None;
        state.software_protect = false;
        state.descriptor_sense = false;
        state.stopped = false;
        state.add_attention_to_all(attention, None);
    }

    /// Checks that a command can be carried out at all in the unit's condition.
    pub(crate) fn access_refusal(&self, cdb: &Cdb, class: CommandClass) -> Option<Sense> {
        let state = self.state();
        let op = cdb[0];
        let always = class == CommandClass::Free
            || matches!(
                op,
                op::PERSISTENT_RESERVE_IN
                    | op::PERSISTENT_RESERVE_OUT
                    | op::MAINTENANCE_IN
                    | op::MAINTENANCE_OUT
                    | op::MODE_SENSE_6
                    | op::MODE_SENSE_10
                    | op::MODE_SELECT_6
                    | op::MODE_SELECT_10
                    | op::LOG_SENSE
            );
        match state.access {
            // Standby and unavailable. SPC-4 section 5.15.2.4.
            2 if !always => return Some(Sense::new(key::NOT_READY, asc::STANDBY)),
            3 if !always => return Some(Sense::new(key::NOT_READY, asc::UNAVAILABLE)),
            _ => {}
        }
        let media = matches!(class, CommandClass::Read | CommandClass::Write)
            && !always
            && op != op::START_STOP_UNIT
            || op == op::TEST_UNIT_READY;
        if state.stopped && media {
            return Some(Sense::new(key::NOT_READY, asc::STOPPED));
        }
        let changes = class == CommandClass::Write
            && !always
            && !matches!(
                op,
                op::START_STOP_UNIT | op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16
            );
        if changes && (state.read_only || state.software_protect) {
            return Some(Sense::new(key::DATA_PROTECT, asc::WRITE_PROTECTED));
        }
        None
    }
}

impl LunState {
    pub(crate) fn add_attention(&mut self, nexus: u64, attention: Asc) {
        if let Some(queue) = self.sessions.get_mut(&nexus).map(|s| &mut s.attentions)
            && !queue.contains(&attention)
            && queue.len() < ATTENTIONS_MAX
        {
            queue.push_back(attention);
        }
    }

    pub(crate) fn add_attention_to_all(&mut self, attention: Asc, except: Option<u64>) {
        let all: Vec<u64> = self.sessions.keys().copied().collect();
        for nexus in all.into_iter().filter(|nexus| Some(*nexus) != except) {
            self.add_attention(nexus, attention);
        }
    }

    /// The sessions that can reach the unit, with their initiators' ports.
    pub(crate) fn ports(&self) -> Vec<(u64, Port)> {
        let all = self.sessions.iter();
        all.map(|(nexus, session)| (*nexus, session.port.clone()))
            .collect()
    }
}
