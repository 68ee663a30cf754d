//! Scrubbing one block: every copy on every device, bad ones rewritten from good ones.

use std::sync::Arc;

use ondisk::{BlockPointer, label};
use runtime::IoBuf;
use vdev::{Location, QuickCheck, Scrubbed, Suspect};

use crate::checks::{self, GANG_HEADER_BYTES, padded, sha256, to_usize};
use crate::error::corrupt;
use crate::faults::{FaultOfRead, rejecting};
use crate::types::{Expect, GangPart};
use crate::{BlockStore, CorruptReason, ReadProps, ScrubOutcome, ZioError};

impl BlockStore {
    pub(crate) async fn scrub_block(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        expect: Expect,
    ) -> Result<ScrubOutcome, ZioError> {
        let mut outcome = ScrubOutcome::default();
        if bp.is_hole() || bp.is_embedded() {
            return Ok(outcome);
        }
        let fail = |what| corrupt(bp, props.bookmark, CorruptReason::Pointer(what));
        checks::check_stored(bp).map_err(fail)?;
        self.wait_pending_write(bp).await;
        let mut blocks = vec![*bp];
        if bp.is_gang() {
            let walked = self
                .gang_pieces(bp, props.bookmark, props.class, 0, &mut |part, child| {
                    debug_assert!(part == GangPart::Piece || child.is_gang());
                    blocks.push(*child);
                })
                .await;
            // What can be reached is scrubbed all the same.
            outcome.lost |= walked.is_err();
        }
        for block in &blocks {
            self.scrub_copies(block, props, expect, &mut outcome)
                .await?;
        }
        if outcome.lost {
            self.count(|stats| stats.corrupt += 1);
        }
        Ok(outcome)
    }

    /// Scrubs the places of one pointer: stored bytes, or the header of a gang.
    async fn scrub_copies(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        expect: Expect,
        outcome: &mut ScrubOutcome,
    ) -> Result<(), ZioError> {
        let fail = |what| corrupt(bp, props.bookmark, CorruptReason::Pointer(what));
        let mut good: Option<IoBuf> = None;
        let mut without: Vec<(Suspect, u64, u32)> = Vec::new();
        for (copy, dva) in bp.copies().enumerate() {
            let size = checks::check_dva(self.tree(), &dva, bp.psize()).map_err(fail)?;
            let at = Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size,
                born: bp.physical_birth(),
            };
            let check = if dva.gang {
                gang_check(bp)
            } else {
                self.stored_check(bp)
            };
            let fault = self.fault_of(bp, props.bookmark, copy, expect);
            let check = rejecting(fault.as_ref(), check);
            let scrubbed = match expect {
                _ if fault.as_ref().is_some_and(FaultOfRead::fails) => {
                    drop(self.tree().fail_read(at));
                    Ok(Scrubbed {
                        bad_copies: 1,
                        ..Scrubbed::default()
                    })
                }
                Expect::Written => self.tree().scrub(at, props.class, check).await,
                Expect::MaybeWritten => self.tree().complete(at, props.class, check).await,
            };
            let scrubbed = scrubbed.map_err(|source| ZioError::Device {
                bookmark: props.bookmark,
                source,
            })?;
            outcome.bad_copies += scrubbed.bad_copies;
            match scrubbed.good {
                Some(bytes) => {
                    let repaired = scrubbed.repaired_copies;
                    outcome.repaired_bytes += scrubbed.repaired_bytes;
                    outcome.unrepaired_copies += scrubbed.bad_copies - repaired;
                    good.get_or_insert(bytes);
                }
                None => without.push((self.tree().suspect(at), size, scrubbed.bad_copies)),
            }
        }
        for (suspect, size, bad) in without {
            let repaired = match &good {
                Some(good) => suspect.repair(&padded(good, size)).await,
                None => 0,
            };
            outcome.repaired_bytes += u64::from(repaired) * size;
            outcome.unrepaired_copies += bad.saturating_sub(repaired);
        }
        outcome.lost |= good.is_none();
        Ok(())
    }

    /// Returns the check of a block's stored bytes, without looking inside them.
    pub(crate) fn stored_check(&self, bp: &BlockPointer) -> vdev::Check<()> {
        let salt = self.salt();
        let bp = *bp;
        let check = move |bytes: &IoBuf| {
            let stored = bytes.get(..to_usize(bp.psize()))?;
            checks::sum_agrees(&bp, &salt, stored)?.then_some(())
        };
        match checks::is_sum_of_words(&bp) {
            true => Arc::new(QuickCheck(check)),
            false => Arc::new(check),
        }
    }
}

fn gang_check(bp: &BlockPointer) -> vdev::Check<()> {
    let first = bp.dvas()[0];
    let verifier = label::gang_verifier(first.vdev, first.offset, bp.physical_birth().0);
    Arc::new(move |bytes: &IoBuf| {
        let header = bytes.get(..to_usize(GANG_HEADER_BYTES))?;
        label::verify(header, verifier, sha256).then_some(())
    })
}
