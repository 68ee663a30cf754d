//! Alerts as SNMPv2c traps (RFC 3416): the notification that RFC 5676 has for messages of syslog, so that receivers show it with a MIB that
//! they have, SYSLOG-MSG-MIB. Values in, bytes out.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Message, forms};

/// Bytes of the text, at most: the whole fits into one packet of any network (RFC 3417, 3.2.1: 484 bytes are to be taken by all, 1472 are what
/// an Ethernet frame holds).
const TEXT_BYTES_MAX: usize = 900;
const HOST_BYTES_MAX: usize = 255;

// Tags: X.690, 8.1.2; RFC 3416, 3 (ObjectSyntax, PDUs).
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const UNSIGNED: u8 = 0x42;
const TIME_TICKS: u8 = 0x43;
const TRAP: u8 = 0xa7;

/// RFC 1901: version-2c is 1.
const VERSION_2C: u64 = 1;
/// RFC 3418: sysUpTime.0 and snmpTrapOID.0.
const SYS_UP_TIME: &[u32] = &[1, 3, 6, 1, 2, 1, 1, 3, 0];
const SNMP_TRAP_OID: &[u32] = &[1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0];
/// RFC 5676: syslogMsgNotification, and syslogMsgEntry, whose columns follow.
const NOTIFICATION: &[u32] = &[1, 3, 6, 1, 2, 1, 192, 0, 1];
const ENTRY: &[u32] = &[1, 3, 6, 1, 2, 1, 192, 1, 2, 1];

/// What a trap says beside the message.
#[derive(Clone, Copy, Debug)]
pub struct TrapContext<'a> {
    /// Name of the community, which the receiver asks for.
    pub community: &'a str,
    /// Name of this machine.
    pub host: &'a str,
    /// Hundredths of a second since the first trap of this process.
    pub up_ticks: u32,
    /// Number of the message: the request's, and the index of its row.
    pub number: u32,
    /// When it is sent.
    pub at: Timestamp,
}

/// Returns the packet that tells a message.
#[must_use]
pub fn trap(message: &Message, context: &TrapContext<'_>) -> Vec<u8> {
    let host: String = context
        .host
        .chars()
        .filter(char::is_ascii_graphic)
        .collect();
    let text = forms::text(message, &host);
    let words: Vec<&str> = text.split_whitespace().collect();
    let event = match message {
        Message::Opened(_) => "alert",
        Message::Cleared(_) => "cleared",
        Message::Test(_) => "test",
    };
    let level = u64::from(forms::syslog_level(message));
    let column = |number: u32, value: Vec<u8>| {
        let name = [ENTRY, &[number, context.number.max(1)]].concat();
        binding(&name, value)
    };
    let bindings = [
        binding(SYS_UP_TIME, number(TIME_TICKS, context.up_ticks.into())),
        binding(SNMP_TRAP_OID, identifier(NOTIFICATION)),
        column(2, number(INTEGER, forms::SYSLOG_FACILITY.into())),
        column(3, number(INTEGER, level)),
        column(4, number(UNSIGNED, 1)),
        column(5, tagged(OCTET_STRING, &date_and_time(context.at))),
        column(
            6,
            tagged(OCTET_STRING, cut(&host, HOST_BYTES_MAX).as_bytes()),
        ),
        column(7, tagged(OCTET_STRING, b"sanbox")),
        column(8, tagged(OCTET_STRING, b"-")),
        column(9, tagged(OCTET_STRING, event.as_bytes())),
        column(10, number(UNSIGNED, 0)),
        column(
            11,
            tagged(
                OCTET_STRING,
                cut(&words.join(" "), TEXT_BYTES_MAX).as_bytes(),
            ),
        ),
    ];
    let body = [
        number(INTEGER, (context.number & 0x7fff_ffff).into()),
        number(INTEGER, 0),
        number(INTEGER, 0),
        tagged(SEQUENCE, &bindings.concat()),
    ];
    let packet = [
        number(INTEGER, VERSION_2C),
        tagged(OCTET_STRING, context.community.as_bytes()),
        tagged(TRAP, &body.concat()),
    ];
    tagged(SEQUENCE, &packet.concat())
}

fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn binding(name: &[u32], value: Vec<u8>) -> Vec<u8> {
    tagged(SEQUENCE, &[identifier(name), value].concat())
}

/// X.690, 8.1.3: a length below 128 is one byte, a longer one is told by how many follow.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().position(|byte| *byte != 0).unwrap_or(7)..];
    let mut bytes = vec![tag];
    if content.len() >= 128 {
        bytes.push(0x80 | u8::try_from(significant.len()).expect("eight at most"));
    }
    bytes.extend_from_slice(significant);
    bytes.extend_from_slice(content);
    bytes
}

/// X.690, 8.3: two's complement in as few bytes as can be.
fn number(tag: u8, value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(7);
    let significant = &bytes[first..];
    match significant.first() {
        Some(byte) if byte & 0x80 != 0 => tagged(tag, &[&[0], significant].concat()),
        _ => tagged(tag, significant),
    }
}

/// X.690, 8.19: the first two numbers in one, each in groups of seven bits, all but the last with the high bit.
fn identifier(numbers: &[u32]) -> Vec<u8> {
    let mut content = Vec::new();
    let head = [numbers[0] * 40 + numbers[1]];
    for number in head.iter().chain(&numbers[2..]) {
        let groups = (1..5).rev().filter(|group| number >> (7 * group) > 0);
        let low = |shift: u32| u8::try_from((number >> shift) & 0x7f).expect("seven bits");
        content.extend(groups.map(|group| 0x80 | low(7 * group)));
        content.push(low(0));
    }
    tagged(OBJECT_IDENTIFIER, &content)
}

/// RFC 5676, SyslogTimeStamp: year in two bytes, month, day, hour, minute, second, microseconds in three; in UTC `+`, 0, 0.
fn date_and_time(at: Timestamp) -> Vec<u8> {
    let at = at.to_zoned(TimeZone::UTC);
    let mut bytes = at.year().max(0).to_be_bytes().to_vec();
    let fields = [at.month(), at.day(), at.hour(), at.minute(), at.second()];
    bytes.extend(fields.map(|field| u8::try_from(field).unwrap_or(0)));
    let microseconds = at.subsec_nanosecond() / 1000;
    bytes.extend_from_slice(&microseconds.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[b'+', 0, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X.690, 8.3 and 8.19.5, and what RFC 3416 says of unsigned values.
    #[test]
    fn values_have_the_shortest_form() {
        assert_eq!(number(INTEGER, 0), [2, 1, 0]);
        assert_eq!(number(INTEGER, 127), [2, 1, 127]);
        assert_eq!(number(INTEGER, 128), [2, 2, 0, 128]);
        assert_eq!(
            number(TIME_TICKS, 0xffff_ffff),
            [0x43, 5, 0, 255, 255, 255, 255]
        );
        assert_eq!(identifier(&[2, 999, 3]), [6, 3, 0x88, 0x37, 3]);
        assert_eq!(
            identifier(&[1, 3, 128, 16_384]),
            [6, 6, 43, 0x81, 0, 0x81, 0x80, 0]
        );
        assert_eq!(tagged(4, &[7; 127])[..3], [4, 127, 7]);
        assert_eq!(tagged(4, &[7; 128])[..4], [4, 0x81, 128, 7]);
        assert_eq!(tagged(4, &[7; 300])[..5], [4, 0x82, 1, 44, 7]);
    }

    #[test]
    fn a_trap_is_one_packet_however_long_the_names_are() {
        let context = TrapContext {
            community: "public",
            host: &"\u{e4}b".repeat(500),
            up_ticks: 7,
            number: u32::MAX,
            at: "2026-11-28T01:02:03.000004Z".parse().expect("a time"),
        };
        let packet = trap(&Message::Test(None), &context);
        assert!(packet.len() < 1472, "{}", packet.len());
        let stamp = [7, 0xea, 11, 28, 1, 2, 3, 0, 0, 4, b'+', 0, 0];
        assert!(packet.windows(stamp.len()).any(|window| window == stamp));
    }
}
