//! Negotiations as bytes, as a client sends and sees them.

use super::*;
use crate::fuzz::{NamedExports, run};

/// A negotiation after the client's flags.
fn after_flags(flags: u32) -> Negotiation {
    let (mut negotiation, greeting) = Negotiation::begin();
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(negotiation.need(), Need::Bytes(4));
    let step = run(negotiation.receive(&flags.to_be_bytes(), &NamedExports));
    assert!(matches!(step, Ok(Step::Continue(sent)) if sent.is_empty()));
    negotiation
}

fn header(negotiation: &mut Negotiation, code: u32, len: u32) -> Result<Step<()>, ProtocolError> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    assert_eq!(negotiation.need(), Need::Bytes(bytes.len()));
    run(negotiation.receive(&bytes, &NamedExports))
}

fn option(negotiation: &mut Negotiation, code: u32, data: &[u8]) -> Step<()> {
    let len = u32::try_from(data.len()).expect("short");
    header(negotiation, code, len).expect("a header");
    assert_eq!(negotiation.need(), Need::Bytes(data.len()));
    run(negotiation.receive(data, &NamedExports)).expect("an option")
}

/// The data of GO and INFO.
fn go_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = u32::try_from(name.len())
        .expect("short")
        .to_be_bytes()
        .to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&u16::try_from(wanted.len()).expect("few").to_be_bytes());
    for kind in wanted {
        data.extend_from_slice(&kind.to_be_bytes());
    }
    data
}

/// The data of SET_META_CONTEXT and LIST_META_CONTEXT.
fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut text = |text: &str| {
        data.extend_from_slice(&u32::try_from(text.len()).expect("short").to_be_bytes());
        data.extend_from_slice(text.as_bytes());
    };
    text(name);
    let count = u32::try_from(queries.len()).expect("few");
    data.extend_from_slice(&count.to_be_bytes());
    for query in queries {
        data.extend_from_slice(&u32::try_from(query.len()).expect("short").to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// The kinds of the replies in what is sent.
fn kinds(mut sent: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !sent.is_empty() {
        let mut reader = Reader(sent);
        assert_eq!(reader.u64(), Some(wire::OPTION_REPLY_MAGIC));
        reader.u32().expect("the option");
        kinds.push(reader.u32().expect("a kind"));
        let len = reader.u32().expect("a length");
        reader
            .bytes(usize::try_from(len).expect("short"))
            .expect("whole");
        sent = reader.0;
    }
    kinds
}

#[test]
fn a_client_lists_asks_and_chooses() {
    let mut negotiation = after_flags(3);
    let Step::Continue(sent) = option(&mut negotiation, option::LIST, b"") else {
        panic!("a list ends nothing");
    };
    assert_eq!(kinds(&sent), [reply::SERVER, reply::SERVER, reply::ACK]);
    let asked = go_data("tank/a", &[info::NAME]);
    let Step::Continue(sent) = option(&mut negotiation, option::INFO, &asked) else {
        panic!("INFO chooses nothing");
    };
    assert_eq!(
        kinds(&sent),
        [reply::INFO, reply::INFO, reply::INFO, reply::ACK]
    );
    let Step::Chosen(sent, export, terms) =
        option(&mut negotiation, option::GO, &go_data("tank/b", &[]))
    else {
        panic!("GO chooses");
    };
    assert_eq!(kinds(&sent), [reply::INFO, reply::INFO, reply::ACK]);
    assert!(export.read_only);
    assert!(!terms.structured && !terms.has_allocation());
    let flags = transmission_flags(&export, &terms);
    assert_ne!(flags & transmission::READ_ONLY, 0);
    assert_eq!(flags & transmission::TRIM, 0);
}

#[test]
fn an_export_that_is_not_there_is_refused_and_the_client_may_go_on() {
    let mut negotiation = after_flags(1);
    for data in [go_data("tank/c", &[]), b"\0\0\0\x09short".to_vec()] {
        let step = option(&mut negotiation, option::GO, &data);
        let Step::Continue(sent) = step else {
            panic!("{step:?}");
        };
        let expected = if data.len() > 9 {
            reply::ERR_UNKNOWN
        } else {
            reply::ERR_INVALID
        };
        assert_eq!(kinds(&sent), [expected]);
    }
    let step = option(&mut negotiation, option::ABORT, b"");
    assert!(matches!(step, Step::End(sent) if kinds(&sent) == [reply::ACK]));
}

#[test]
fn the_old_option_succeeds_or_ends_the_connection() {
    // Without NO_ZEROES the answer is padded.
    for (flags, len) in [(1, 134), (3, 10)] {
        let mut negotiation = after_flags(flags);
        let step = option(&mut negotiation, option::EXPORT_NAME, b"tank/a");
        assert!(matches!(step, Step::Chosen(sent, ..) if sent.len() == len));
    }
    let mut negotiation = after_flags(3);
    header(&mut negotiation, option::EXPORT_NAME, 6).expect("a header");
    let refused = run(negotiation.receive(b"tank/c", &NamedExports));
    assert!(refused.is_err());
    let long = u32::try_from(OPTION_BYTES_MAX + 1).expect("fits");
    assert!(header(&mut after_flags(3), option::EXPORT_NAME, long).is_err());
}

#[test]
fn allocation_is_for_the_export_for_which_it_was_selected() {
    let selected = context_data("tank/a", &["base:allocation", "qemu:x"]);
    let check = |structured: bool, chosen: &str, expect: bool| {
        let mut negotiation = after_flags(3);
        if structured {
            option(&mut negotiation, option::STRUCTURED_REPLY, b"");
        }
        let step = option(&mut negotiation, option::SET_META_CONTEXT, &selected);
        let Step::Continue(sent) = step else {
            panic!("{step:?}");
        };
        let known = [reply::META_CONTEXT, reply::ACK];
        assert_eq!(kinds(&sent) == known, structured);
        let step = option(&mut negotiation, option::GO, &go_data(chosen, &[]));
        let Step::Chosen(_, _, terms) = step else {
            panic!("{step:?}");
        };
        assert_eq!(terms.has_allocation(), expect, "{structured} {chosen}");
    };
    check(true, "tank/a", true);
    check(true, "tank/b", false);
    check(false, "tank/a", false);
}

#[test]
fn what_is_too_long_is_skipped_and_what_is_not_nbd_ends_it() {
    let mut negotiation = after_flags(3);
    header(&mut negotiation, option::INFO, u32::MAX).expect("a header");
    assert_eq!(negotiation.need(), Need::Skip(u64::from(u32::MAX)));
    let step = run(negotiation.receive(b"", &NamedExports));
    assert!(matches!(step, Ok(Step::Continue(sent)) if kinds(&sent) == [reply::ERR_TOO_BIG]));
    assert_eq!(negotiation.need(), Need::Bytes(16));
    let wrong = run(negotiation.receive(&[0; 16], &NamedExports));
    assert!(wrong.is_err());
    let (mut negotiation, _) = Negotiation::begin();
    assert!(run(negotiation.receive(&[0xff; 4], &NamedExports)).is_err());
}

#[test]
fn options_without_end_end() {
    let mut negotiation = after_flags(3);
    for _ in 0..OPTIONS_MAX {
        let step = option(&mut negotiation, 99, b"");
        assert!(matches!(step, Step::Continue(sent) if kinds(&sent) == [reply::ERR_UNSUPPORTED]));
    }
    assert!(header(&mut negotiation, 99, 0).is_err());
}
