//! INQUIRY: the standard data, and the vital product data pages. SPC-4 sections 6.6 and 7.8, SBC-3 section 6.6.

use super::block::atomic_bytes_max;
use super::cdb::service;
use super::provision::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX};
use super::report::port_identifier;
use super::sense::Sense;
use super::{Command, Executed, LogicalUnit, Reply, TRANSFER_BYTES_MAX, copy, token};
use crate::bytes::{Field as _, len16, len32, put};

/// T10 vendor identification.
const VENDOR: &[u8; 8] = b"SANBOX  ";
/// Product identification.
const PRODUCT: &[u8; 16] = b"VOLUME          ";
/// Product revision level: fixed, so that an update does not look like another disk.
const REVISION: &[u8; 4] = b"1.0 ";
/// Logical blocks per COMPARE AND WRITE, at most 255 by its CDB.
const COMPARE_BLOCKS_MAX: u8 = 255;

/// Vital product data pages, in order.
const PAGES: &[u8] = &[0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2];

impl LogicalUnit {
    pub(super) async fn inquiry(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let allocated = usize::from(cdb.u16_at(3));
        if cdb[1] & 1 == 0 {
            if cdb[2] != 0 {
                return Err(Sense::cdb(2));
            }
            return Ok(Reply::data(standard(), allocated));
        }
        let page = cdb[2];
        let body = match page {
            0x00 => PAGES.to_vec(),
            0x80 => self.serial().into_bytes(),
            0x83 => self.identification(command),
            0x86 => extended(),
            // Mode page policy: all pages are shared.
            0x87 => vec![0x3f, 0xff, 0, 0],
            0x88 => ports(command),
            0x8f => third_party_copy(),
            0xb0 => self.limits(),
            // Not rotating, form factor not said; FUAB and VBULS are not claimed.
            0xb1 => {
                let mut body = vec![0; 60];
                put(&mut body, 0, &[0, 1]);
                // WABEREQ: after a block erase reads succeed.
                put(&mut body, 3, &[0x40]);
                body
            }
            0xb2 => self.provisioning(),
            _ => return Err(Sense::cdb(2)),
        };
        let mut bytes = vec![0, page];
        bytes.extend_from_slice(&len16(body.len()).to_be_bytes());
        bytes.extend_from_slice(&body);
        Ok(Reply::data(bytes, allocated))
    }

    /// The number that serial number and identifiers are made of: the volume's guid, which travels with it, or that of the volume that it stands
    /// in for.
    pub(super) fn identity(&self) -> u64 {
        self.state().identity
    }

    /// The unit serial number.
    pub(super) fn serial(&self) -> String {
        format!("{:016x}", self.identity())
    }

    /// The identifier that says which unit this is, whatever target shows it: the one it was given, or NAA locally assigned.
    pub(super) fn naa(&self) -> Vec<u8> {
        if let Some(given) = self.state().naa {
            return given.to_vec();
        }
        // NAA 3h, locally assigned: 60 bits of our own. SPC-4 section 7.8.6.6.4.
        let own = 3 << 60 | self.identity() & 0x0fff_ffff_ffff_ffff;
        own.to_be_bytes().to_vec()
    }

    fn identification(&self, command: &Command) -> Vec<u8> {
        let mut body = Vec::new();
        let mut add = |code_set: u8, kind: u8, id: &[u8]| {
            body.extend_from_slice(&[code_set, kind, 0, u8::try_from(id.len()).unwrap_or(0)]);
            body.extend_from_slice(id);
        };
        // Of the logical unit: NAA, EUI-64 based, T10 vendor.
        add(1, 0x03, &self.naa());
        add(1, 0x02, &self.identity().to_be_bytes());
        let mut vendor = VENDOR.to_vec();
        vendor.extend_from_slice(self.serial().as_bytes());
        add(2, 0x01, &vendor);
        // Of the target port: its name, its relative number, its group.
        let group = command.nexus.port.group;
        let port = port_identifier(&command.target.name, group);
        add(3, 0x98, &port);
        let [high, low] = group.to_be_bytes();
        add(1, 0x94, &[0, 0, high, low]);
        add(1, 0x95, &[0, 0, 0, 1]);
        // Of the target device.
        let mut name = command.target.name.clone().into_bytes();
        name.push(0);
        name.resize(name.len().next_multiple_of(4), 0);
        add(3, 0xa8, &name);
        body
    }

    fn limits(&self) -> Vec<u8> {
        let state = self.state();
        let block = state.sectors.block();
        let count = |bytes: u64| u32::try_from(bytes / block).unwrap_or(u32::MAX);
        let granularity = state.volume_block.max(block);
        let mut body = vec![0; 60];
        // Offsets are those of the page less its header of four bytes.
        put(&mut body, 1, &[COMPARE_BLOCKS_MAX]);
        let optimal = u16::try_from(granularity / block).unwrap_or(u16::MAX);
        put(&mut body, 2, &optimal.to_be_bytes());
        put(&mut body, 4, &count(TRANSFER_BYTES_MAX).to_be_bytes());
        put(&mut body, 8, &count(1 << 20).to_be_bytes());
        put(&mut body, 16, &UNMAP_BLOCKS_MAX.to_be_bytes());
        put(&mut body, 20, &UNMAP_DESCRIPTORS_MAX.to_be_bytes());
        put(&mut body, 24, &count(granularity).to_be_bytes());
        // The unit begins on a boundary.
        put(&mut body, 28, &(0x8000_0000_u32).to_be_bytes());
        put(&mut body, 32, &WRITE_SAME_BLOCKS_MAX.to_be_bytes());
        put(&mut body, 40, &count(atomic_bytes_max()).to_be_bytes());
        body
    }

    fn provisioning(&self) -> Vec<u8> {
        // UNMAP and WRITE SAME(10 and 16) unmap, unmapped blocks read as zeros; thin, or resource provisioned.
        let kind = if self.state().thin { 2 } else { 1 };
        // With thresholds, what they count in; SBC-3 section 6.6.4.
        let exponent = if self.threshold_percent().is_some() {
            super::threshold::EXPONENT
        } else {
            0
        };
        vec![exponent, 0x80 | 0x40 | 0x20 | 0x04, kind, 0]
    }
}

fn standard() -> Vec<u8> {
    let mut bytes = vec![0; 96];
    // A block device, SPC-4, response format 2 with hierarchical addresses.
    put(&mut bytes, 0, &[0x00, 0x00, 0x06, 0x12, 91]);
    // Implicit and explicit asymmetric access, third-party copy; command queueing.
    put(&mut bytes, 5, &[0x38, 0x00, 0x02]);
    put(&mut bytes, 8, VENDOR);
    put(&mut bytes, 16, PRODUCT);
    put(&mut bytes, 32, REVISION);
    // SAM-5, iSCSI, SPC-4, SBC-3.
    for (i, version) in [0x00a0_u16, 0x0960, 0x0460, 0x04c0].into_iter().enumerate() {
        put(&mut bytes, 58 + 2 * i, &version.to_be_bytes());
    }
    bytes
}

/// Extended INQUIRY data.
fn extended() -> Vec<u8> {
    let mut body = vec![0; 60];
    // HEADSUP, ORDSUP, SIMPSUP.
    put(&mut body, 1, &[0x07]);
    // LUICLR: attentions of one logical unit are cleared by itself.
    put(&mut body, 3, &[0x01]);
    body
}

fn ports(command: &Command) -> Vec<u8> {
    let mut body = Vec::new();
    for group in command.target.groups() {
        let id = port_identifier(&command.target.name, group);
        let [high, low] = group.to_be_bytes();
        body.extend_from_slice(&[0, 0, high, low, 0, 0, 0, 0, 0, 0]);
        let mut descriptor = vec![0x53, 0x98, 0, u8::try_from(id.len()).unwrap_or(0)];
        descriptor.extend_from_slice(&id);
        body.extend_from_slice(&len16(descriptor.len()).to_be_bytes());
        body.extend_from_slice(&descriptor);
    }
    body
}

/// The third-party copy page: what EXTENDED COPY and token copies can do. SPC-4 section 7.8.17.
fn third_party_copy() -> Vec<u8> {
    let mut body = Vec::new();
    let mut add = |kind: u16, mut data: Vec<u8>| {
        data.resize(data.len().next_multiple_of(4), 0);
        body.extend_from_slice(&kind.to_be_bytes());
        body.extend_from_slice(&len16(data.len()).to_be_bytes());
        body.extend_from_slice(&data);
    };
    // Block device ROD token limits.
    let mut limits = vec![0; 32];
    put(&mut limits, 6, &len16(token::RANGES_MAX).to_be_bytes());
    put(&mut limits, 8, &token::INACTIVITY_SECONDS_MAX.to_be_bytes());
    put(&mut limits, 12, &token::INACTIVITY_SECONDS.to_be_bytes());
    put(&mut limits, 16, &(token::BLOCKS_MAX).to_be_bytes());
    put(&mut limits, 24, &(token::BLOCKS_MAX).to_be_bytes());
    add(0x0000, limits);
    // Supported commands.
    let mut commands = vec![0];
    for (op, actions) in [
        (
            super::op::THIRD_PARTY_COPY_OUT,
            [
                service::EXTENDED_COPY_LID1,
                service::POPULATE_TOKEN,
                service::WRITE_USING_TOKEN,
            ],
        ),
        (
            super::op::THIRD_PARTY_COPY_IN,
            [
                service::RECEIVE_COPY_STATUS_LID1,
                service::RECEIVE_COPY_OPERATING_PARAMETERS,
                service::RECEIVE_ROD_TOKEN_INFORMATION,
            ],
        ),
    ] {
        commands.extend_from_slice(&[op, u8::try_from(actions.len()).unwrap_or(0)]);
        commands.extend_from_slice(&actions);
    }
    let len = u8::try_from(commands.len() - 1).unwrap_or(0);
    put(&mut commands, 0, &[len]);
    add(0x0001, commands);
    // Parameter data.
    let mut parameters = vec![0; 28];
    put(&mut parameters, 4, &len16(copy::TARGETS_MAX).to_be_bytes());
    put(&mut parameters, 6, &len16(copy::SEGMENTS_MAX).to_be_bytes());
    put(
        &mut parameters,
        8,
        &len32(copy::LIST_BYTES_MAX).to_be_bytes(),
    );
    add(0x0004, parameters);
    // Supported descriptors.
    let mut kinds = vec![u8::try_from(copy::DESCRIPTORS.len()).unwrap_or(0)];
    kinds.extend_from_slice(copy::DESCRIPTORS);
    add(0x0008, kinds);
    // ROD token features and types: tokens of a moment, revoked by changes, and zeros.
    let mut features = vec![0; 44];
    put(&mut features, 12, &[0, 0, 0, 0x20]);
    add(0x0106, features);
    let mut types = vec![0; 8];
    for kind in [token::KIND_MOMENT, token::KIND_ZERO] {
        let mut descriptor = vec![0; 64];
        put(&mut descriptor, 0, &kind.to_be_bytes());
        // Tokens go out and come in.
        put(
            &mut descriptor,
            4,
            &[if kind == token::KIND_ZERO { 1 } else { 3 }],
        );
        put(&mut descriptor, 6, &60_u16.to_be_bytes());
        types.extend_from_slice(&descriptor);
    }
    let described = len16(types.len() - 8);
    put(&mut types, 4, &described.to_be_bytes());
    add(0x0108, types);
    // General copy operations.
    let mut general = vec![0; 32];
    put(&mut general, 0, &1_u32.to_be_bytes());
    put(&mut general, 4, &1_u32.to_be_bytes());
    put(
        &mut general,
        8,
        &len32(copy::SEGMENT_BYTES_MAX).to_be_bytes(),
    );
    put(&mut general, 12, &[9]);
    add(0x8001, general);
    body
}
