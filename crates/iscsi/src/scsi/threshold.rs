//! Warnings of thin provisioning: initiators learn by a unit attention that the pool gets full, before a write fails for it.
//! SBC-3 sections 4.7.3.8 and 6.5.9.
//!
//! The threshold is a share of the space that the volume could take: what it has and what is still available to it. It is looked
//! at as writes go on, the more often the nearer it is.

use std::sync::atomic::Ordering;

use super::sense::asc;
use super::{Command, LogicalUnit, op};
use crate::bytes::put;

/// Logical blocks that thresholds and the log page count in, as a power of two.
pub(super) const EXPONENT: u8 = 11;
/// Bytes written between two looks, at least and at most.
const STEP_MIN: u64 = 1 << 20;
const STEP_MAX: u64 = 64 << 20;
/// Mode page and subpage.
pub(super) const PAGE: u8 = 0x1c;
pub(super) const SUBPAGE: u8 = 0x02;

/// The space of a volume against its threshold, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpaceMargin {
    available: u64,
    /// What must be available for no warning.
    wanted: u64,
}

impl SpaceMargin {
    fn new(available: u64, referenced: u64, percent: u8) -> Self {
        let whole = u128::from(available) + u128::from(referenced);
        let free_percent = u128::from(100 - percent.min(100));
        Self {
            available,
            wanted: u64::try_from(whole * free_percent / 100).unwrap_or(u64::MAX),
        }
    }

    /// Bytes that may be written before the next look.
    fn step(self) -> u64 {
        match self.available.checked_sub(self.wanted) {
            Some(above) => (above / 2).clamp(STEP_MIN, STEP_MAX),
            None => STEP_MAX,
        }
    }
}

impl LogicalUnit {
    /// The share in use beyond which initiators are warned, if they are.
    pub(super) fn threshold_percent(&self) -> Option<u8> {
        let state = self.state();
        (state.thin && state.threshold_percent > 0).then_some(state.threshold_percent)
    }

    /// After a command that may have taken space: whether it is time to look at what is left.
    pub(super) fn is_to_be_watched(&self, command: &Command) -> bool {
        let wrote = match command.cdb[0] {
            // These say in few bytes how much they write.
            op::THIRD_PARTY_COPY_OUT | op::SANITIZE => i64::MAX / 2,
            op::WRITE_SAME_10 | op::WRITE_SAME_16 => 16 << 20,
            op::UNMAP => 1 << 20,
            _ => i64::try_from(command.data.len()).unwrap_or(i64::MAX / 2),
        };
        wrote != 0 && self.unwatched.fetch_sub(wrote, Ordering::Relaxed) <= wrote
    }

    /// Looks at what is left.
    pub(super) async fn watch_space(&self) {
        let Some(percent) = self.threshold_percent() else {
            self.unwatched
                .store(i64::try_from(STEP_MAX).unwrap_or(0), Ordering::Relaxed);
            return;
        };
        let Ok(info) = self.volume.info().await else {
            return;
        };
        let margin = SpaceMargin::new(info.available, info.referenced, percent);
        let step = i64::try_from(margin.step()).unwrap_or(0);
        self.unwatched.store(step, Ordering::Relaxed);
        let mut state = self.state();
        if margin.available <= margin.wanted {
            if std::mem::take(&mut state.threshold_armed) {
                state.add_attention_to_all(asc::SPACE_LOW, None);
            }
        } else {
            state.threshold_armed = true;
        }
    }

    /// The logical block provisioning mode page: one soft threshold, of what is available.
    pub(super) async fn threshold_page(&self, changeable: bool) -> Vec<u8> {
        let mut bytes = vec![0; 24];
        put(&mut bytes, 0, &[0x40 | PAGE, SUBPAGE, 0, 20]);
        if changeable {
            return bytes;
        }
        let info = self.volume.info().await.ok();
        if let (Some(percent), Some(info)) = (self.threshold_percent(), info) {
            let margin = SpaceMargin::new(info.available, info.referenced, percent);
            let count = u32::try_from(margin.wanted / self.threshold_unit()).unwrap_or(u32::MAX);
            // Enabled, soft, armed when it decreases; available resources.
            put(&mut bytes, 16, &[0x81, 0x01]);
            put(&mut bytes, 20, &count.to_be_bytes());
        }
        bytes
    }

    /// Bytes that thresholds count in.
    pub(super) fn threshold_unit(&self) -> u64 {
        self.block() << EXPONENT
    }
}

/// Whether a mode page is asked for with its subpages.
pub(super) fn is_asked(page: u8, subpage: u8) -> bool {
    matches!((page, subpage), (PAGE, SUBPAGE) | (PAGE | 0x3f, 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_closer_as_space_runs_out() {
        let margin = SpaceMargin::new(80 << 30, 20 << 30, 90);
        assert_eq!(margin.wanted, 10 << 30);
        assert_eq!(margin.step(), STEP_MAX);
        let margin = SpaceMargin::new((10 << 30) + (8 << 20), 90 << 30, 90);
        assert!(margin.step() < 5 << 20, "{}", margin.step());
        let margin = SpaceMargin::new(5 << 30, 95 << 30, 90);
        assert!(margin.available <= margin.wanted);
        assert_eq!(SpaceMargin::new(u64::MAX, u64::MAX, 0).wanted, u64::MAX);
    }
}
