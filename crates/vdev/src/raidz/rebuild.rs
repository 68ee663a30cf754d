//! The part of a draid in [`Tree::rebuild`]: whole stripes, put together from columns that lack nothing.

use std::sync::Arc;

use ondisk::Guid;
use runtime::IoBuf;

use super::map::Column;
use super::read::{Index, Reading};
use super::solve;
use crate::rebuild::Plan;
use crate::tree::{ColumnReplica, Top};
use crate::{IoClass, LEAF_DATA_START, Location, Tree, VdevError};

impl Tree {
    /// Decides what is to be written of whole stripes for devices that lack it.
    pub(crate) async fn plan_striped(
        &self,
        top: &Top,
        at: Location,
        targets: &[Guid],
    ) -> Result<Plan, VdevError> {
        let map = Arc::new(top.whole_map(at));
        let mut plan = Plan::default();
        let mut wanting: Vec<(Index, u64, ColumnReplica)> = Vec::new();
        for (index, column) in map.columns() {
            for replica in top.replicas(column.slot, column.offset) {
                if !replica.is_for(targets) {
                    continue;
                }
                if replica.leaf.is_usable() {
                    wanting.push((index, column.start(), replica));
                } else {
                    plan.is_short = true;
                }
            }
        }
        if wanting.is_empty() {
            return Ok(plan);
        }
        let mut reading = Reading::new(Arc::clone(&map), true);
        let without = map
            .columns()
            .filter(|(_, column)| sound_replicas(top, column).next().is_none())
            .map(|(index, _)| index);
        reading.failed = without.collect();
        if !reading.wanted(&[]).1 {
            return Err(VdevError::Unavailable { vdev: at.vdev });
        }
        loop {
            let (wanted, enough) = reading.wanted(&[]);
            if wanted.is_empty() {
                plan.is_short |= !enough;
                break;
            }
            let columns: Vec<Column> = wanted
                .iter()
                .map(|&(s, c)| map.stripes[s].columns[c])
                .collect();
            let reads = columns.iter().map(|column| self.read_sound(top, column));
            let found = runtime::join_all(reads).await;
            for (index, bytes) in wanted.into_iter().zip(found) {
                match bytes {
                    Some(bytes) => reading.held[index.0][index.1] = Some(bytes),
                    None => reading.failed.push(index),
                }
            }
        }
        let (held, job_map) = (reading.held, Arc::clone(&map));
        let columns = self
            .run_job(map.len, move || {
                let block = solve::assemble(&job_map, &held, &[])?;
                Some(solve::columns_of(&job_map, &block))
            })
            .await;
        let Some(columns) = columns else {
            plan.is_short = true;
            return Ok(plan);
        };
        let write = |(index, start, replica): (Index, u64, ColumnReplica)| {
            (replica.leaf, start, columns[index.0][index.1].clone())
        };
        plan.writes = wanting.into_iter().map(write).collect();
        Ok(plan)
    }

    /// Reads a column from the first device that lacks nothing and gives it.
    async fn read_sound(&self, top: &Top, column: &Column) -> Option<IoBuf> {
        let offset = LEAF_DATA_START + column.offset;
        for replica in sound_replicas(top, column) {
            let timeout = self.timeout(top);
            let read = replica
                .leaf
                .read(offset, column.len, IoClass::Rebuild, timeout);
            if let Ok(bytes) = read.await {
                return Some(bytes);
            }
        }
        None
    }
}

/// Returns the devices in service that have a column and lack nothing.
fn sound_replicas(top: &Top, column: &Column) -> impl Iterator<Item = ColumnReplica> + use<> {
    let replicas = top.replicas(column.slot, column.offset).into_iter();
    replicas.filter(|replica| replica.leaf.is_usable() && !replica.is_stale())
}
