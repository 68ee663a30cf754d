//! Sense data: why a command failed, in SCSI's words. SPC-4 section 4.5.

use engine::VolumeError;

/// Statuses of commands. SAM-5 section 5.3.
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const RESERVATION_CONFLICT: u8 = 0x18;
    pub(crate) const TASK_SET_FULL: u8 = 0x28;
}

/// Sense keys.
pub(crate) mod key {
    pub(crate) const NO_SENSE: u8 = 0;
    pub(crate) const NOT_READY: u8 = 2;
    pub(crate) const MEDIUM_ERROR: u8 = 3;
    pub(crate) const HARDWARE_ERROR: u8 = 4;
    pub(crate) const ILLEGAL_REQUEST: u8 = 5;
    pub(crate) const UNIT_ATTENTION: u8 = 6;
    pub(crate) const DATA_PROTECT: u8 = 7;
    pub(crate) const COPY_ABORTED: u8 = 0xa;
    pub(crate) const ABORTED_COMMAND: u8 = 0xb;
    pub(crate) const MISCOMPARE: u8 = 0xe;
}

/// An additional sense code and its qualifier.
pub(crate) type Asc = (u8, u8);

/// Additional sense codes that are used in more than one place.
pub(crate) mod asc {
    use crate::scsi::sense::Asc;

    pub(crate) const NONE: Asc = (0x00, 0x00);
    pub(crate) const STANDBY: Asc = (0x04, 0x0b);
    pub(crate) const UNAVAILABLE: Asc = (0x04, 0x0c);
    pub(crate) const STOPPED: Asc = (0x04, 0x02);
    /// Logical unit not ready, manual intervention required.
    pub(crate) const INTERVENTION_REQUIRED: Asc = (0x04, 0x03);
    pub(crate) const BECOMING_READY: Asc = (0x04, 0x01);
    pub(crate) const UNREACHABLE_TARGET: Asc = (0x08, 0x04);
    pub(crate) const WRITE_ERROR: Asc = (0x0c, 0x00);
    pub(crate) const READ_ERROR: Asc = (0x11, 0x00);
    pub(crate) const PARAMETER_LENGTH: Asc = (0x1a, 0x00);
    pub(crate) const MISCOMPARE: Asc = (0x1d, 0x00);
    pub(crate) const OPCODE: Asc = (0x20, 0x00);
    pub(crate) const LBA: Asc = (0x21, 0x00);
    pub(crate) const TOKEN_UNKNOWN: Asc = (0x23, 0x04);
    pub(crate) const TOKEN_REVOKED: Asc = (0x23, 0x06);
    pub(crate) const TOKEN_CORRUPT: Asc = (0x23, 0x05);
    pub(crate) const TOKEN_LENGTH: Asc = (0x23, 0x0a);
    pub(crate) const INVALID_CDB: Asc = (0x24, 0x00);
    pub(crate) const NO_LUN: Asc = (0x25, 0x00);
    pub(crate) const INVALID_PARAMETER: Asc = (0x26, 0x00);
    pub(crate) const INVALID_RELEASE: Asc = (0x26, 0x04);
    pub(crate) const PROTOCOL_SERVICE: Asc = (0x47, 0x05);
    pub(crate) const TOO_MANY_TARGETS: Asc = (0x26, 0x06);
    pub(crate) const UNSUPPORTED_TARGET: Asc = (0x26, 0x07);
    pub(crate) const TOO_MANY_SEGMENTS: Asc = (0x26, 0x08);
    pub(crate) const UNSUPPORTED_SEGMENT: Asc = (0x26, 0x09);
    pub(crate) const WRITE_PROTECTED: Asc = (0x27, 0x00);
    pub(crate) const SPACE_FAILED: Asc = (0x27, 0x07);
    pub(crate) const BUS_DEVICE_RESET: Asc = (0x29, 0x03);
    pub(crate) const MODE_CHANGED: Asc = (0x2a, 0x01);
    pub(crate) const RESERVATIONS_PREEMPTED: Asc = (0x2a, 0x03);
    pub(crate) const RESERVATIONS_RELEASED: Asc = (0x2a, 0x04);
    pub(crate) const REGISTRATIONS_PREEMPTED: Asc = (0x2a, 0x05);
    pub(crate) const ALUA_CHANGED: Asc = (0x2a, 0x06);
    pub(crate) const CAPACITY_CHANGED: Asc = (0x2a, 0x09);
    pub(crate) const SAVING_UNSUPPORTED: Asc = (0x39, 0x00);
    pub(crate) const INTERNAL: Asc = (0x44, 0x00);
    pub(crate) const NO_REGISTRATIONS: Asc = (0x55, 0x04);
    pub(crate) const INQUIRY_CHANGED: Asc = (0x3f, 0x03);
    pub(crate) const LUNS_CHANGED: Asc = (0x3f, 0x0e);
    pub(crate) const SPACE_LOW: Asc = (0x38, 0x07);
    pub(crate) const MESSAGE: Asc = (0x49, 0x00);
}

/// Sense data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sense {
    pub(crate) key: u8,
    pub(crate) asc: Asc,
    /// The information field: an address, or the place of a difference.
    pub(crate) information: Option<u64>,
    /// Which field was wrong: of the CDB, or else of the parameters, and the byte it begins at.
    pub(crate) field: Option<(bool, u16)>,
}

impl Sense {
    pub(crate) fn new(key: u8, asc: Asc) -> Self {
        Self {
            key,
            asc,
            information: None,
            field: None,
        }
    }

    pub(crate) fn illegal(asc: Asc) -> Self {
        Self::new(key::ILLEGAL_REQUEST, asc)
    }

    /// A field of the CDB that is not valid.
    pub(crate) fn cdb(byte: u16) -> Self {
        Self {
            field: Some((true, byte)),
            ..Self::illegal(asc::INVALID_CDB)
        }
    }

    /// A field of the parameter list that is not valid.
    pub(crate) fn parameter(byte: usize) -> Self {
        let byte = u16::try_from(byte).unwrap_or(u16::MAX);
        Self {
            field: Some((false, byte)),
            ..Self::illegal(asc::INVALID_PARAMETER)
        }
    }

    pub(crate) fn with_information(self, information: u64) -> Self {
        Self {
            information: Some(information),
            ..self
        }
    }

    /// What a volume's refusal means to a read or, with `write`, a change.
    pub(crate) fn of(error: VolumeError, write: bool) -> Self {
        match error {
            VolumeError::OutOfRange => Self::illegal(asc::LBA),
            VolumeError::BadSize => Self::cdb(0),
            VolumeError::Io if write => Self::new(key::MEDIUM_ERROR, asc::WRITE_ERROR),
            VolumeError::Io | VolumeError::Corrupt(_) => {
                Self::new(key::MEDIUM_ERROR, asc::READ_ERROR)
            }
            VolumeError::NoSpace => Self::new(key::DATA_PROTECT, asc::SPACE_FAILED),
            VolumeError::ReadOnly => Self::new(key::DATA_PROTECT, asc::WRITE_PROTECTED),
            VolumeError::Gone => Self::illegal(asc::NO_LUN),
            VolumeError::Busy => Self::new(key::NOT_READY, asc::BECOMING_READY),
            VolumeError::KeyNotLoaded => Self::new(key::NOT_READY, asc::INTERVENTION_REQUIRED),
            VolumeError::NotSupported => Self::new(key::HARDWARE_ERROR, asc::INTERNAL),
            VolumeError::Miscompare(at) => {
                Self::new(key::MISCOMPARE, asc::MISCOMPARE).with_information(at)
            }
        }
    }

    /// Returns the sense data as bytes, in fixed or descriptor format.
    pub(crate) fn encode(&self, descriptor: bool) -> Vec<u8> {
        let sks = self.field.map(|(in_cdb, byte)| {
            let [high, low] = byte.to_be_bytes();
            [0x80 | if in_cdb { 0x40 } else { 0 }, high, low]
        });
        if descriptor {
            let mut bytes = vec![0x72, self.key, self.asc.0, self.asc.1, 0, 0, 0, 0];
            if let Some(information) = self.information {
                bytes.extend_from_slice(&[0x00, 0x0a, 0x80, 0]);
                bytes.extend_from_slice(&information.to_be_bytes());
            }
            if let Some([a, b, c]) = sks {
                bytes.extend_from_slice(&[0x02, 0x06, 0, 0, a, b, c, 0]);
            }
            let len = u8::try_from(bytes.len() - 8).unwrap_or(0);
            crate::bytes::put(&mut bytes, 7, &[len]);
            return bytes;
        }
        let mut bytes = vec![0; 18];
        let mut put = |at: usize, what: &[u8]| crate::bytes::put(&mut bytes, at, what);
        // An address that does not fit the fixed format is left out, as the standard wants it.
        let information = self
            .information
            .and_then(|information| u32::try_from(information).ok());
        put(0, &[if information.is_some() { 0xf0 } else { 0x70 }]);
        put(2, &[self.key]);
        put(3, &information.unwrap_or(0).to_be_bytes());
        put(7, &[10]);
        put(12, &[self.asc.0, self.asc.1]);
        if let Some(sks) = sks {
            put(15, &sks);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats() {
        let sense = Sense::cdb(2);
        let fixed = sense.encode(false);
        assert_eq!(fixed.len(), 18);
        assert_eq!(
            fixed,
            [
                0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 0, 2
            ]
        );
        let sense = Sense::of(VolumeError::Miscompare(7), true);
        let wide = sense.encode(true);
        assert_eq!(
            wide,
            [
                0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7
            ]
        );
    }
}
