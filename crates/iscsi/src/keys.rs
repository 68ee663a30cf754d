//! Text keys: `key=value` pairs, and how each key of an operational negotiation is settled. RFC 7143 sections 6 and 13.

use std::fmt::Write as _;

use data_encoding::BASE64_NOPAD;

use crate::pdu::DATA_BYTES_MAX;

/// Greatest length of a value, and of a key's name.
const VALUE_BYTES_MAX: usize = 8192;
const KEY_BYTES_MAX: usize = 63;
/// Pairs in one text.
const PAIRS_MAX: usize = 256;

/// Splits a text segment; `None` when it is malformed.
pub(crate) fn parse(text: &[u8]) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for part in text
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
    {
        let part = std::str::from_utf8(part).ok()?;
        let (key, value) = part.split_once('=')?;
        let fits = key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX;
        if key.is_empty() || !fits || pairs.len() >= PAIRS_MAX {
            return None;
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Some(pairs)
}

/// Puts a pair at the end of a text.
pub(crate) fn push(text: &mut String, key: &str, value: &str) {
    let _ = write!(text, "{key}={value}\0");
}

/// Parses anything as text, for fuzzing.
pub fn fuzz_text(bytes: &[u8]) {
    let mut terms = Terms::default();
    for (key, value) in parse(bytes).unwrap_or_default() {
        let _ = terms.settle(&key, &value, false);
        let _ = binary_value(&value, 1024);
    }
}

/// What is agreed on for a session and a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    /// The initiator's limit for data segments to it, in bytes.
    pub(crate) max_send: usize,
    pub(crate) max_burst: usize,
    pub(crate) first_burst: usize,
    pub(crate) connections_max: u16,
    pub(crate) time2wait: u16,
    pub(crate) time2retain: u16,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            max_send: 8192,
            max_burst: 262_144,
            first_burst: 65536,
            connections_max: 1,
            time2wait: 2,
            time2retain: 20,
        }
    }
}

/// What we are willing to do.
mod ours {
    pub(super) const MAX_BURST: u64 = 1 << 20;
    pub(super) const FIRST_BURST: u64 = 256 << 10;
    pub(super) const CONNECTIONS: u64 = 8;
    pub(super) const OUTSTANDING_R2T: u64 = 1;
    /// Lost connections are not reinstated with their tasks at recovery level 0.
    pub(super) const TIME2WAIT: u64 = 2;
    pub(super) const TIME2RETAIN: u16 = 0;
}

/// The answer to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Answer with this value.
    Value(String),
    /// The key declares something; it wants no answer.
    Silent,
    /// The key means nothing to us.
    NotUnderstood,
    /// The value is not one.
    Reject,
}

impl Terms {
    /// Settles one key that the initiator offers. In discovery sessions most keys are irrelevant.
    pub(crate) fn settle(&mut self, key: &str, value: &str, discovery: bool) -> Reply {
        let number = |low: u64, high: u64| -> Option<u64> {
            parse_number(value).filter(|number| (low..=high).contains(number))
        };
        let irrelevant = matches!(
            key,
            "MaxConnections"
                | "InitialR2T"
                | "ImmediateData"
                | "MaxBurstLength"
                | "FirstBurstLength"
                | "MaxOutstandingR2T"
                | "DataPDUInOrder"
                | "DataSequenceInOrder"
        );
        if discovery && irrelevant {
            return Reply::Value("Irrelevant".to_owned());
        }
        match key {
            "HeaderDigest" | "DataDigest" => {
                // The initiator's order of preference decides.
                let chosen = value
                    .split(',')
                    .find(|one| matches!(*one, "CRC32C" | "None"));
                let Some(chosen) = chosen else {
                    return Reply::Reject;
                };
                let on = chosen == "CRC32C";
                if key == "HeaderDigest" {
                    self.header_digest = on;
                } else {
                    self.data_digest = on;
                }
                Reply::Value(chosen.to_owned())
            }
            "MaxRecvDataSegmentLength" => match number(512, 0x00ff_ffff) {
                Some(bytes) => {
                    self.max_send = usize::try_from(bytes).unwrap_or(8192);
                    Reply::Silent
                }
                None => Reply::Reject,
            },
            "MaxBurstLength" => match number(512, 0x00ff_ffff) {
                Some(bytes) => {
                    let chosen = bytes.min(ours::MAX_BURST);
                    self.max_burst = usize::try_from(chosen).unwrap_or(512);
                    Reply::Value(chosen.to_string())
                }
                None => Reply::Reject,
            },
            "FirstBurstLength" => match number(512, 0x00ff_ffff) {
                Some(bytes) => {
                    let chosen = bytes.min(ours::FIRST_BURST);
                    self.first_burst = usize::try_from(chosen).unwrap_or(512);
                    Reply::Value(chosen.to_string())
                }
                None => Reply::Reject,
            },
            "MaxConnections" => match number(1, 65535) {
                Some(count) => {
                    let chosen = count.min(ours::CONNECTIONS);
                    self.connections_max = u16::try_from(chosen).unwrap_or(1);
                    Reply::Value(chosen.to_string())
                }
                None => Reply::Reject,
            },
            "MaxOutstandingR2T" => match number(1, 65535) {
                Some(count) => Reply::Value(count.min(ours::OUTSTANDING_R2T).to_string()),
                None => Reply::Reject,
            },
            "DefaultTime2Wait" => match number(0, 3600) {
                Some(seconds) => {
                    let chosen = seconds.max(ours::TIME2WAIT);
                    self.time2wait = u16::try_from(chosen).unwrap_or(u16::MAX);
                    Reply::Value(chosen.to_string())
                }
                None => Reply::Reject,
            },
            "DefaultTime2Retain" => match number(0, 3600) {
                // The smaller of both, and ours is 0: no session outlives its connections.
                Some(_) => {
                    self.time2retain = ours::TIME2RETAIN;
                    Reply::Value(ours::TIME2RETAIN.to_string())
                }
                None => Reply::Reject,
            },
            "ErrorRecoveryLevel" => match number(0, 2) {
                Some(_) => Reply::Value("0".to_owned()),
                None => Reply::Reject,
            },
            // Or: either side can insist.
            "InitialR2T" => match flag(value) {
                Some(wanted) => {
                    self.initial_r2t = wanted;
                    Reply::Value(yes_no(wanted))
                }
                None => Reply::Reject,
            },
            // And: both must be willing.
            "ImmediateData" => match flag(value) {
                Some(wanted) => {
                    self.immediate_data = wanted;
                    Reply::Value(yes_no(wanted))
                }
                None => Reply::Reject,
            },
            // Or, and we handle only what is in order.
            "DataPDUInOrder" | "DataSequenceInOrder" => match flag(value) {
                Some(_) => Reply::Value(yes_no(true)),
                None => Reply::Reject,
            },
            // Obsolete ones that old initiators still offer; markers are never used.
            "OFMarker" | "IFMarker" => Reply::Value("No".to_owned()),
            "OFMarkInt" | "IFMarkInt" => Reply::Value("Irrelevant".to_owned()),
            "TaskReporting" => {
                let knows = value.split(',').any(|one| one == "RFC3720");
                if knows {
                    Reply::Value("RFC3720".to_owned())
                } else {
                    Reply::Reject
                }
            }
            "iSCSIProtocolLevel" => match number(0, 31) {
                Some(level) => Reply::Value(level.min(1).to_string()),
                None => Reply::Reject,
            },
            "InitiatorAlias" => Reply::Silent,
            // Declared by targets only.
            "TargetAlias" | "TargetAddress" | "TargetPortalGroupTag" => Reply::Reject,
            _ => Reply::NotUnderstood,
        }
    }

    /// What we declare on each connection, without being asked.
    pub(crate) fn declaration() -> (&'static str, String) {
        ("MaxRecvDataSegmentLength", DATA_BYTES_MAX.to_string())
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_no(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}

/// A number, decimal or with `0x`.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A binary value: `0x` with hexadecimal, or `0b` with base64; `None` when it is neither or longer than `max` bytes.
pub(crate) fn binary_value(text: &str, max: usize) -> Option<Vec<u8>> {
    let (kind, digits) = text.split_at_checked(2)?;
    let bytes = match kind {
        "0x" | "0X" => hex(digits)?,
        "0b" | "0B" => BASE64_NOPAD
            .decode(digits.trim_end_matches('=').as_bytes())
            .ok()?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= max).then_some(bytes)
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut bytes = Vec::with_capacity(digits.len() / 2 + 1);
    let mut digits = digits.as_bytes();
    // An odd number of digits lacks a leading zero.
    if !digits.len().is_multiple_of(2) {
        let (first, rest) = digits.split_first()?;
        bytes.push(digit(*first)?);
        digits = rest;
    }
    for pair in digits.chunks_exact(2) {
        if let [high, low] = pair {
            bytes.push(digit(*high)? << 4 | digit(*low)?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split() {
        let pairs = parse(b"A=1\0B=x=y\0\0").expect("well-formed");
        assert_eq!(
            pairs,
            [
                ("A".to_owned(), "1".to_owned()),
                ("B".to_owned(), "x=y".to_owned())
            ]
        );
        for bad in [&b"novalue\0"[..], b"=x\0", b"\xff=1\0"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn keys_are_settled() {
        let check = |key: &str, value: &str, expect: Reply| {
            assert_eq!(
                Terms::default().settle(key, value, false),
                expect,
                "{key}={value}"
            );
        };
        let value = |text: &str| Reply::Value(text.to_owned());
        check("HeaderDigest", "CRC32C,None", value("CRC32C"));
        check("DataDigest", "None,CRC32C", value("None"));
        check("DataDigest", "SHA", Reply::Reject);
        check("MaxBurstLength", "16776192", value("1048576"));
        check("MaxBurstLength", "511", Reply::Reject);
        check("FirstBurstLength", "0x1000", value("4096"));
        check("InitialR2T", "No", value("No"));
        check("ImmediateData", "Maybe", Reply::Reject);
        check("DataPDUInOrder", "No", value("Yes"));
        check("ErrorRecoveryLevel", "2", value("0"));
        check("MaxRecvDataSegmentLength", "65536", Reply::Silent);
        check("X-com.example", "1", Reply::NotUnderstood);
        assert_eq!(
            Terms::default().settle("MaxConnections", "4", true),
            value("Irrelevant")
        );
    }

    #[test]
    fn binary_values_are_bounded() {
        assert_eq!(binary_value("0xabc", 8), Some(vec![0x0a, 0xbc]));
        assert_eq!(binary_value("0bAQID", 8), Some(vec![1, 2, 3]));
        assert_eq!(binary_value("0bAQI=", 8), Some(vec![1, 2]));
        for bad in ["", "0x", "12", "0xzz", "0b!!", "0x010203040506070809"] {
            assert_eq!(binary_value(bad, 8), None, "{bad}");
        }
    }
}
