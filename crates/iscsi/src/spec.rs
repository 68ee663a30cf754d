//! What is to be offered: targets with their portals and secrets, and the units they show.

use std::net::SocketAddr;

use engine::VolumeHandle;

/// A user and a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Chap {
    /// Name.
    pub user: String,
    /// Secret.
    pub secret: String,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chap({})", self.user)
    }
}

/// An address at which a target is reached. Connections of one session may be spread over the portals of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group: u16,
}

/// Tag of the portal group that addresses belong to which no target names.
pub const PORTAL_GROUP: u16 = 1;

/// A target as it is to be.
#[derive(Clone, Debug)]
pub struct TargetSpec {
    /// iSCSI name.
    pub name: String,
    /// What initiators may show to people.
    pub alias: String,
    /// Addresses to be told in discovery; none means the one the initiator has reached.
    pub portals: Vec<Portal>,
    /// Names and addresses of initiators that may log in; none is all.
    pub initiators: Vec<String>,
    /// What initiators must know.
    pub chap: Option<Chap>,
    /// What we prove to initiators that ask.
    pub mutual: Option<Chap>,
    /// Where initiators are sent instead.
    pub redirect: Option<SocketAddr>,
    /// The units.
    pub luns: Vec<LunSpec>,
}

/// Checks an iSCSI name: RFC 7143 section 4.2.7, RFC 3721.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    if name.len() > 223 {
        return Err("an iSCSI name has at most 223 characters");
    }
    if let Some(rest) = name.strip_prefix("iqn.") {
        let bytes = rest.as_bytes();
        let date = bytes.len() > 8
            && bytes.iter().take(7).enumerate().all(|(i, b)| match i {
                4 => *b == b'-',
                _ => b.is_ascii_digit(),
            })
            && bytes.get(7) == Some(&b'.');
        if !date {
            return Err("an iqn name is iqn.YYYY-MM.DOMAIN:ANYTHING");
        }
    } else if let Some(hex) = name.strip_prefix("eui.") {
        if hex.len() != 16 || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("an eui name has 16 hexadecimal digits");
        }
        return Ok(());
    } else if let Some(hex) = name.strip_prefix("naa.") {
        if !matches!(hex.len(), 16 | 32) || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("an naa name has 16 or 32 hexadecimal digits");
        }
        return Ok(());
    } else {
        return Err("an iSCSI name begins with iqn., eui. or naa.");
    }
    if name.chars().all(allowed) {
        Ok(())
    } else {
        Err("an iqn name has lower-case letters, digits, and - . : only")
    }
}

/// How a volume is cut into logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SectorFormat {
    /// Logical and physical blocks of 512 bytes.
    Native512,
    /// Logical blocks of 512 bytes on physical ones of 4096.
    #[default]
    Emulated512,
    /// Logical and physical blocks of 4096 bytes.
    Native4096,
}

impl SectorFormat {
    /// Bytes of a logical block.
    pub(crate) fn block(self) -> u64 {
        match self {
            Self::Native512 | Self::Emulated512 => 512,
            Self::Native4096 => 4096,
        }
    }

    /// log2 of logical blocks per physical block.
    pub(crate) fn exponent(self) -> u8 {
        match self {
            Self::Emulated512 => 3,
            Self::Native512 | Self::Native4096 => 0,
        }
    }
}

/// A volume to be offered.
#[derive(Clone, Debug)]
pub struct LunSpec {
    /// Number within the target.
    pub number: u16,
    /// The volume.
    pub volume: VolumeHandle,
    /// Its name, for people.
    pub name: String,
    /// What the unit's serial number and identifiers are made of: the volume's guid, or that of the volume that it stands in for.
    pub identity: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Its `volblocksize` in bytes.
    pub volume_block: u64,
    /// Logical and physical block sizes.
    pub sectors: SectorFormat,
    /// Writes may be answered before they are on stable storage, until SYNCHRONIZE CACHE or FUA.
    pub write_cache: bool,
    /// Changes are refused.
    pub read_only: bool,
    /// It has no reservation: no space is set aside for it.
    pub thin: bool,
    /// Percent of the space it could take that may be in use before initiators are warned; 0 is never. For thin volumes.
    pub threshold_percent: u8,
    /// Names and addresses of the initiators that see it; none is every initiator that may log in.
    pub initiators: Vec<String>,
    /// An identifier of the unit to be told instead of our own: NAA, 16 bytes.
    pub naa: Option<[u8; 16]>,
    /// Persistent reservations to be restored, as [`crate::Environment::store_reservations`] got them.
    pub reservations: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in [
            "iqn.2026-11.org.example:disk",
            "iqn.2026-11.org.example",
            "eui.0123456789abcdef",
        ] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "disk",
            "iqn.26-11.x:y",
            "iqn.2026-11.Org:x",
            "eui.12",
            "naa.xyz",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
