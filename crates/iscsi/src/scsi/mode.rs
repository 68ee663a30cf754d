//! Mode pages, and the log page of thin provisioning. SPC-4 section 7.5, SBC-3 sections 6.4 and 6.5.

use super::sense::{Sense, asc};
use super::{Cdb, Command, Executed, LogicalUnit, Reply, op, threshold};
use crate::bytes::{Field as _, len16, put};

const RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const PAGES: [u8; 4] = [RECOVERY, CACHING, CONTROL, EXCEPTIONS];

/// Which values of a page are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    Current,
    Changeable,
    Default,
}

/// A page of MODE SELECT: its number and bytes, header included.
pub(super) struct Selected<'a> {
    page: u8,
    bytes: &'a [u8],
    at: usize,
}

/// Splits the parameter list of MODE SELECT.
pub(super) fn parse_select(list: &[u8], wide: bool) -> Result<Vec<Selected<'_>>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let header = if wide { 8 } else { 4 };
    if list.len() < header {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    let descriptors = if wide {
        usize::from(list.u16_at(6))
    } else {
        usize::from(list.u8_at(3))
    };
    let mut at = header + descriptors;
    if at > list.len() {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    let mut pages = Vec::new();
    while at < list.len() {
        let first = list.u8_at(at);
        if first & 0x40 != 0 {
            // There are no subpages.
            return Err(Sense::parameter(at));
        }
        let len = 2 + usize::from(list.u8_at(at + 1));
        let bytes = list.part(at, len);
        if bytes.len() < len || len < 3 {
            return Err(Sense::illegal(asc::PARAMETER_LENGTH));
        }
        pages.push(Selected {
            page: first & 0x3f,
            bytes,
            at,
        });
        at += len;
    }
    Ok(pages)
}

impl LogicalUnit {
    /// A page, with its header.
    fn page(&self, page: u8, values: Values) -> Option<Vec<u8>> {
        let state = self.state();
        let current = values == Values::Current;
        let changeable = values == Values::Changeable;
        let bit = |bit: u8, now: bool, default: bool| match values {
            Values::Current if now => bit,
            Values::Default if default => bit,
            Values::Changeable => bit,
            _ => 0,
        };
        Some(match page {
            RECOVERY => {
                let mut bytes = vec![0; 12];
                put(&mut bytes, 0, &[RECOVERY, 10]);
                if !changeable {
                    // AWRE and ARRE: bad blocks are repaired without being asked. LBPERE: thresholds are told of.
                    put(&mut bytes, 2, &[0xc0, 0x80]);
                }
                bytes
            }
            CACHING => {
                let mut bytes = vec![0; 20];
                put(&mut bytes, 0, &[CACHING, 18]);
                let cache = bit(0x04, state.write_cache, true);
                put(&mut bytes, 2, &[cache]);
                bytes
            }
            CONTROL => {
                let mut bytes = vec![0; 12];
                put(&mut bytes, 0, &[CONTROL, 10]);
                let sense = bit(0x04, state.descriptor_sense, false);
                put(&mut bytes, 2, &[sense]);
                if !changeable {
                    // Unrestricted reordering; commands aborted by others are not told of.
                    put(&mut bytes, 3, &[0x10]);
                }
                let protect = bit(0x08, state.software_protect, false);
                put(&mut bytes, 4, &[protect]);
                bytes
            }
            EXCEPTIONS => {
                let mut bytes = vec![0; 12];
                put(&mut bytes, 0, &[EXCEPTIONS, 10]);
                let _ = current;
                bytes
            }
            _ => return None,
        })
    }

    pub(super) async fn mode_sense(&self, cdb: &Cdb) -> Executed {
        let wide = cdb[0] == op::MODE_SENSE_10;
        let (control, page, subpage) = (cdb[2] >> 6, cdb[2] & 0x3f, cdb[3]);
        let allocated = if wide {
            usize::from(cdb.u16_at(7))
        } else {
            usize::from(cdb[4])
        };
        let values = match control {
            0 => Values::Current,
            1 => Values::Changeable,
            2 => Values::Default,
            _ => return Err(Sense::illegal(asc::SAVING_UNSUPPORTED)),
        };
        let thresholds = threshold::is_asked(page, subpage);
        if subpage != 0 && !thresholds {
            return Err(Sense::cdb(3));
        }
        let mut pages = Vec::new();
        if page == 0x3f {
            for page in PAGES {
                pages.extend(self.page(page, values).unwrap_or_default());
            }
        } else if subpage != threshold::SUBPAGE {
            pages = self.page(page, values).ok_or_else(|| Sense::cdb(2))?;
        }
        if thresholds {
            pages.extend(self.threshold_page(values == Values::Changeable).await);
        }
        let descriptor = self.block_descriptor(cdb, wide);
        // DPOFUA, and WP when nothing may be written.
        let (read_only, protected) = {
            let state = self.state();
            (state.read_only, state.software_protect)
        };
        let parameter = 0x10 | if read_only || protected { 0x80 } else { 0 };
        let mut bytes = Vec::new();
        if wide {
            let len = len16(6 + descriptor.len() + pages.len());
            bytes.extend_from_slice(&len.to_be_bytes());
            let long = u8::from(descriptor.len() == 16);
            bytes.extend_from_slice(&[0, parameter, long, 0]);
            bytes.extend_from_slice(&len16(descriptor.len()).to_be_bytes());
        } else {
            let len = u8::try_from(3 + descriptor.len() + pages.len()).unwrap_or(u8::MAX);
            let described = u8::try_from(descriptor.len()).unwrap_or(0);
            bytes.extend_from_slice(&[len, 0, parameter, described]);
        }
        bytes.extend_from_slice(&descriptor);
        bytes.extend_from_slice(&pages);
        Ok(Reply::data(bytes, allocated))
    }

    fn block_descriptor(&self, cdb: &Cdb, wide: bool) -> Vec<u8> {
        // DBD.
        if cdb[1] & 0x08 != 0 {
            return Vec::new();
        }
        let (block, blocks) = (self.block(), self.blocks());
        let block = u32::try_from(block).unwrap_or(512).to_be_bytes();
        if wide && cdb[1] & 0x10 != 0 {
            let mut bytes = blocks.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&block);
            return bytes;
        }
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        let mut bytes = count.to_be_bytes().to_vec();
        bytes.extend_from_slice(&block);
        bytes
    }

    pub(super) async fn mode_select(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let wide = cdb[0] == op::MODE_SELECT_10;
        if cdb[1] & 0x10 == 0 && !command.data.is_empty() {
            // Only pages of the standard's format are known.
            return Err(Sense::cdb(1));
        }
        if cdb[1] & 0x01 != 0 && !command.data.is_empty() {
            // Nothing is saved by MODE SELECT: the volume's properties are what lasts.
            return Err(Sense::cdb(1));
        }
        let list = command.data.bytes();
        let pages = parse_select(&list, wide)?;
        let (mut cache, mut sense, mut protect) = {
            let state = self.state();
            (
                state.write_cache,
                state.descriptor_sense,
                state.software_protect,
            )
        };
        for selected in &pages {
            let page = selected.page;
            let (Some(now), Some(mask)) = (
                self.page(page, Values::Current),
                self.page(page, Values::Changeable),
            ) else {
                return Err(Sense::parameter(selected.at));
            };
            if selected.bytes.len() != now.len() {
                return Err(Sense::parameter(selected.at + 1));
            }
            let triples = selected
                .bytes
                .iter()
                .zip(&now)
                .zip(&mask)
                .enumerate()
                .skip(2);
            for (i, ((new, now), mask)) in triples {
                if (new ^ now) & !mask != 0 {
                    return Err(Sense::parameter(selected.at + i));
                }
            }
            match page {
                CACHING => cache = selected.bytes.u8_at(2) & 0x04 != 0,
                CONTROL => {
                    sense = selected.bytes.u8_at(2) & 0x04 != 0;
                    protect = selected.bytes.u8_at(4) & 0x08 != 0;
                }
                _ => {}
            }
        }
        let was_cached = self.state().write_cache;
        if was_cached && !cache {
            // From now on a status means stable storage: what was cached goes there first.
            let flushed = self.volume.flush().await;
            flushed.map_err(|error| Sense::of(error, true))?;
        }
        let mut state = self.state();
        let changed = (
            state.write_cache,
            state.descriptor_sense,
            state.software_protect,
        ) != (cache, sense, protect);
        state.write_cache = cache;
        state.descriptor_sense = sense;
        state.software_protect = protect;
        if changed {
            state.add_attention_to_all(asc::MODE_CHANGED, Some(command.nexus.id));
        }
        Ok(Reply::good())
    }

    pub(super) async fn log_sense(&self, cdb: &Cdb) -> Executed {
        let (page, subpage) = (cdb[2] & 0x3f, cdb[3]);
        let allocated = usize::from(cdb.u16_at(7));
        if subpage != 0 {
            return Err(Sense::cdb(3));
        }
        let body = match page {
            0x00 => vec![0x00, 0x0c],
            // Logical block provisioning: used and available resources.
            0x0c => {
                let info = self.volume.info().await;
                let info = info.map_err(|error| Sense::of(error, false))?;
                let mut body = Vec::new();
                for (parameter, bytes) in [(0x0001_u16, info.available), (0x0002, info.referenced)]
                {
                    let units = bytes / self.threshold_unit();
                    let units = u32::try_from(units).unwrap_or(u32::MAX);
                    body.extend_from_slice(&parameter.to_be_bytes());
                    body.extend_from_slice(&[0x03, 8]);
                    body.extend_from_slice(&units.to_be_bytes());
                    // Shared with other units of the pool.
                    body.extend_from_slice(&[0x02, 0, 0, 0]);
                }
                body
            }
            _ => return Err(Sense::cdb(2)),
        };
        let mut bytes = vec![page, 0];
        bytes.extend_from_slice(&len16(body.len()).to_be_bytes());
        bytes.extend_from_slice(&body);
        Ok(Reply::data(bytes, allocated))
    }

    pub(super) fn request_sense(&self, command: &Command) -> Reply {
        let cdb = &command.cdb;
        let attention = self.take_attention(command.nexus.id);
        let sense = match attention {
            Some(attention) => Sense::new(super::sense::key::UNIT_ATTENTION, attention),
            None => Sense::new(super::sense::key::NO_SENSE, asc::NONE),
        };
        Reply::data(sense.encode(cdb[1] & 1 != 0), usize::from(cdb[4]))
    }
}
