//! `zstream dump`: the records of a stream as text, every checksum verified, in the output of OpenZFS's command.
//!
//! What differs: a stream that is cut short or damaged ends with a message and exit status 1.

use std::io::{self, Read, Write};

use engine::stream::{
    Begin, ByteOrder, NvList, RECORD_SIZE, StreamError, StreamKind, StreamReader, StreamRecord,
};

use super::nvlist;
use super::records::{ReadError, next_record, pieces};

/// The magic number as printed.
const MAGIC: u64 = engine::stream::MAGIC;
/// Bytes of payload on a line of `-d`, and in a group of these.
const LINE: usize = 16;
const GROUP: usize = 4;

/// What is printed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// `-v`: every record.
    verbose: bool,
    /// `-vv`: their checksums, too.
    checksums: bool,
    /// `-d`: their data, too.
    data: bool,
    /// `-C`: checksums are not verified.
    unverified: bool,
}

impl Options {
    /// Takes a letter; false for an unknown one.
    pub(super) fn set(&mut self, letter: char) -> bool {
        match letter {
            'v' => {
                self.checksums |= self.verbose;
                self.verbose = true;
            }
            'C' => self.unverified = true,
            'd' => {
                self.data = true;
                self.verbose = true;
                self.checksums = true;
            }
            _ => return false,
        }
        true
    }
}

#[derive(Debug, Default)]
struct Totals {
    /// By the number of the record's type: records, bytes of payload.
    by_type: [(u64, u64); 11],
    payload: u64,
    length: u64,
}

/// Prints the stream `input`.
///
/// # Errors
/// [`ReadError`] after the summary of what was read.
pub(super) fn dump(
    mut input: impl Read,
    out: &mut dyn Write,
    options: Options,
) -> Result<(), ReadError> {
    let mut totals = Totals::default();
    let ended = records(&mut input, out, options, &mut totals);
    if !matches!(ended, Err(ReadError::NotAStream)) {
        summary(out, &totals)?;
    }
    ended
}

fn records(
    input: &mut impl Read,
    out: &mut dyn Write,
    options: Options,
    totals: &mut Totals,
) -> Result<(), ReadError> {
    let mut reader = if options.unverified {
        StreamReader::unverified()
    } else {
        StreamReader::default()
    };
    // A stream is whole with its END, a package with the END behind that of its last stream.
    let (mut ended, mut packed, mut after_end) = (true, false, false);
    while let Some(bytes) = next_record(input)? {
        let record = match reader.record(&bytes) {
            Ok(record) => record,
            Err(StreamError::NotAStream) => return Err(ReadError::NotAStream),
            Err(StreamError::Checksum { computed, .. }) => {
                writeln!(out, "Incorrect checksum in record header.")?;
                writeln!(out, "Expected checksum = {}", slashed(computed))?;
                return Err(ReadError::Checksum);
            }
            Err(error @ StreamError::Malformed(_)) => return Err(ReadError::Malformed(error)),
        };
        let is_end = matches!(record, StreamRecord::End { .. });
        ended = is_end && (!packed || after_end);
        after_end = is_end;
        let payload = record.payload_len();
        let sums = &mut totals.by_type[record.type_number() as usize];
        sums.0 += 1;
        totals.length += RECORD_SIZE as u64;
        if let StreamRecord::Begin(begin) = &record {
            packed |= begin.kind == StreamKind::Compound;
            print_begin(out, begin)?;
            if options.verbose {
                writeln!(out)?;
            }
            begin_payload(input, out, &mut reader)?;
        } else {
            if options.verbose || is_end {
                writeln!(out, "{}", line(&record))?;
            }
            data_payload(input, out, &mut reader, options)?;
            if options.checksums {
                let order = reader.order().unwrap_or(ByteOrder::Little);
                let stored = engine::stream::record_checksum(&bytes, order);
                writeln!(out, "    checksum = {}", slashed(stored))?;
            }
        }
        totals.by_type[record.type_number() as usize].1 += payload;
        totals.payload += payload;
        totals.length += payload;
    }
    if ended {
        Ok(())
    } else {
        Err(ReadError::CutShort)
    }
}

fn begin_payload(
    input: &mut impl Read,
    out: &mut dyn Write,
    reader: &mut StreamReader,
) -> Result<(), ReadError> {
    if reader.payload_left() == 0 {
        return Ok(());
    }
    let mut packed = Vec::new();
    pieces(input, reader, |piece| {
        packed.extend_from_slice(piece);
        Ok(())
    })?;
    match NvList::decode(&packed) {
        Ok(list) => nvlist::print(out, &list, 0)?,
        Err(error) => writeln!(out, "the list cannot be read: {error}")?,
    }
    Ok(())
}

fn data_payload(
    input: &mut impl Read,
    out: &mut dyn Write,
    reader: &mut StreamReader,
    options: Options,
) -> Result<(), ReadError> {
    if reader.payload_left() == 0 {
        return Ok(());
    }
    pieces(input, reader, |piece| {
        if options.data {
            print_data(out, piece)?;
        }
        Ok(())
    })
}

fn print_begin(out: &mut dyn Write, begin: &Begin) -> io::Result<()> {
    let kind = match begin.kind {
        StreamKind::Substream => 1,
        StreamKind::Compound => 2,
    };
    writeln!(out, "BEGIN record")?;
    writeln!(out, "\thdrtype = {kind}")?;
    writeln!(out, "\tfeatures = {:x}", begin.features)?;
    writeln!(out, "\tmagic = {MAGIC:x}")?;
    writeln!(out, "\tcreation_time = {:x}", begin.creation_time)?;
    writeln!(out, "\ttype = {}", begin.objset_type)?;
    writeln!(out, "\tflags = {:#x}", begin.flags)?;
    writeln!(out, "\ttoguid = {:x}", begin.to_guid)?;
    writeln!(out, "\tfromguid = {:x}", begin.from_guid)?;
    writeln!(
        out,
        "\ttoname = {}",
        String::from_utf8_lossy(&begin.to_name)
    )?;
    writeln!(out, "\tpayloadlen = {}", begin.payload_len)
}

/// A record on a line.
fn line(record: &StreamRecord) -> String {
    let payload = record.payload_len();
    match record {
        StreamRecord::Begin(_) => "BEGIN record".to_owned(),
        StreamRecord::Object(o) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} flags = {} maxblkid = {} \
             indblkshift = {} nlevels = {} nblkptr = {}",
            o.object,
            o.object_type,
            o.bonus_type,
            o.block_size,
            o.bonus_len,
            o.dnode_slots,
            o.raw_bonus_len,
            o.flags,
            o.max_block_id,
            o.indirect_shift,
            o.levels,
            o.block_pointers
        ),
        StreamRecord::FreeObjects {
            first_object,
            count,
            ..
        } => format!("FREEOBJECTS firstobj = {first_object} numobjs = {count}"),
        StreamRecord::Write(w) => format!(
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} logical_size = {} compressed_size = {} \
             payload_size = {payload} props = {:x} {}",
            w.object,
            w.object_type,
            w.checksum,
            w.compression,
            w.flags,
            w.offset,
            w.logical_size,
            w.compressed_size,
            w.key_prop,
            crypt(&w.crypt)
        ),
        StreamRecord::Free(f) => format!(
            "FREE object = {} offset = {} length = {}",
            f.object,
            f.offset,
            f.length.cast_signed()
        ),
        StreamRecord::End { checksum, .. } => format!("END checksum = {}", slashed(*checksum)),
        StreamRecord::WriteByRef(w) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} refguid = {:x} refobject = {} refoffset = {}",
            w.object,
            w.checksum,
            w.key_prop,
            w.offset,
            w.length,
            w.to_guid,
            w.ref_guid,
            w.ref_object,
            w.ref_offset
        ),
        StreamRecord::Spill(s) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} payload_size = {payload} {}",
            s.object,
            s.length,
            s.flags,
            s.compression,
            s.compressed_size,
            crypt(&s.crypt)
        ),
        StreamRecord::WriteEmbedded(w) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} psize = {}",
            w.object,
            w.offset,
            w.length,
            w.to_guid,
            w.compression,
            w.embedded_kind,
            w.logical_size,
            w.physical_size
        ),
        StreamRecord::ObjectRange(r) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
            r.first_object,
            r.slots,
            r.flags,
            crypt(&r.crypt)
        ),
        StreamRecord::Redact(r) => format!(
            "REDACT object = {} offset = {} length = {}",
            r.object, r.offset, r.length
        ),
    }
}

fn crypt(crypt: &engine::stream::CryptParams) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!(
        "salt = {} iv = {} mac = {}",
        hex(&crypt.salt),
        hex(&crypt.iv),
        hex(&crypt.mac)
    )
}

fn slashed([a, b, c, d]: [u64; 4]) -> String {
    format!("{a:x}/{b:x}/{c:x}/{d:x}")
}

/// Lines of sixteen bytes in hex, in groups of four, and as characters.
fn print_data(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    // Where the characters begin: three columns a byte, one a group, two between.
    let column = LINE * 3 + LINE / GROUP + 2;
    for bytes in data.chunks(LINE) {
        let mut hex = String::with_capacity(column);
        let mut text = String::with_capacity(LINE + LINE / GROUP);
        for (at, byte) in bytes.iter().enumerate() {
            if at % GROUP == 0 {
                hex.push(' ');
                if at > 0 {
                    text.push(' ');
                }
            }
            hex.push_str(&format!("{byte:02x} "));
            let shown = byte.is_ascii_graphic() || *byte == b' ';
            text.push(if shown { char::from(*byte) } else { '.' });
        }
        writeln!(out, "{hex:column$}{text}")?;
    }
    Ok(())
}

fn summary(out: &mut dyn Write, totals: &Totals) -> io::Result<()> {
    // The types that the summary names, in its order.
    const NAMED: [(&str, usize); 9] = [
        ("BEGIN", 0),
        ("END", 5),
        ("OBJECT", 1),
        ("FREEOBJECTS", 2),
        ("WRITE", 3),
        ("WRITE_BYREF", 6),
        ("WRITE_EMBEDDED", 8),
        ("FREE", 4),
        ("SPILL", 7),
    ];
    writeln!(out, "SUMMARY:")?;
    for (name, number) in NAMED {
        let (records, bytes) = totals.by_type[number];
        writeln!(
            out,
            "\tTotal DRR_{name} records = {records} ({bytes} bytes)"
        )?;
    }
    let records: u64 = totals.by_type.iter().map(|(records, _)| records).sum();
    let overhead = records * RECORD_SIZE as u64;
    let both = |n: u64| format!("{n} ({n:#x})");
    writeln!(out, "\tTotal records = {records}")?;
    writeln!(out, "\tTotal payload size = {}", both(totals.payload))?;
    writeln!(out, "\tTotal header overhead = {}", both(overhead))?;
    writeln!(out, "\tTotal stream length = {}", both(totals.length))
}
