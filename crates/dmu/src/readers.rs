//! The readers of an object: which reads come in order (one block after the other, or every so many), and what to read ahead.
//!
//! Each object knows a few readers by where they are expected next (OpenZFS: zfetch streams). A reader seen twice in order is
//! followed, with a window as long as what it has read so far. The window is filled up in small pieces. Does no I/O.

use std::ops::Range;

/// Readers followed in one object.
const READERS_MAX: usize = 6;
/// Smallest and largest window of a sequential reader, in bytes.
const WINDOW: (u64, u64) = (1 << 20, 16 << 20);
/// A window that lacks this much is filled up, in bytes: what devices take as one.
const PIECE: u64 = 1 << 20;
/// A first read of an object shorter than this says nothing, at least that it begins at its start.
const FIRST_READ_MIN: u64 = 32 << 10;
/// Largest distance of two reads of a strided reader, in bytes.
const STRIDE_MAX: u64 = 64 << 20;
/// Steps a strided reader is seen to take before it is followed.
const STEPS_MIN: u32 = 2;
/// Steps read ahead of a strided reader, at first and at most.
const STEPS_AHEAD: (u64, u64) = (4, 64);
const _: () = assert!(WINDOW.0 <= WINDOW.1 && PIECE <= WINDOW.1);
const _: () = assert!(READERS_MAX > 0);
const _: () = assert!(STEPS_AHEAD.0 <= STEPS_AHEAD.1 && STEPS_MIN > 0);
const _: () = assert!(FIRST_READ_MIN <= WINDOW.0 && WINDOW.1 <= STRIDE_MAX);

/// One reader of an object, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Reader {
    /// Where its last read began, and how long it was.
    last: u64,
    len: u64,
    /// The distance of its reads, when that is more than their length; 0 while unknown.
    stride: u64,
    /// Reads seen in order.
    steps: u32,
    /// Up to here blocks were asked for (the start of the next step, for strided readers).
    issued: u64,
    /// Bytes read one after the other, since it does.
    run: u64,
    /// Steps ahead of a strided reader.
    window: u64,
    /// When it was last seen.
    seen: u32,
}

/// The readers of an object.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    readers: Vec<Reader>,
    clock: u32,
}

/// What to read ahead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// A range of bytes.
    Range(Range<u64>),
    /// So many bytes at each of so many places, this far apart.
    Steps {
        first: u64,
        stride: u64,
        len: u64,
        count: u64,
    },
}

impl Readers {
    /// Notes a read and says what to read ahead, at most `room` bytes.
    pub(crate) fn note(&mut self, offset: u64, len: u64, room: u64) -> Ahead {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        if let Some(reader) = self.readers.iter_mut().find(|r| r.last + r.len == offset) {
            reader.seen = clock;
            return reader.goes_on(offset, len, room);
        }
        // Within what was read last: another part of the same block, or the same again.
        if let Some(reader) = self
            .readers
            .iter_mut()
            .find(|r| (r.last..r.last + r.len).contains(&offset))
        {
            reader.seen = clock;
            return Ahead::Nothing;
        }
        if let Some(reader) = self
            .readers
            .iter_mut()
            .find(|r| r.stride != 0 && r.len == len && r.last + r.stride == offset)
        {
            reader.seen = clock;
            return reader.strides(offset, room);
        }
        // A second read not far behind a first one may be a first step.
        if let Some(reader) = self.readers.iter_mut().find(|r| {
            r.steps <= 1 && r.len == len && offset > r.last && offset - r.last <= STRIDE_MAX
        }) {
            *reader = Reader {
                last: offset,
                len,
                stride: offset - reader.last,
                steps: 1,
                seen: clock,
                ..Reader::default()
            };
            return Ahead::Nothing;
        }
        let reader = Reader {
            last: offset,
            len,
            seen: clock,
            ..Reader::default()
        };
        let reader = if self.readers.len() < READERS_MAX {
            self.readers.push(reader);
            self.readers.last_mut()
        } else {
            let oldest = self.readers.iter_mut();
            let oldest = oldest.max_by_key(|r| clock.wrapping_sub(r.seen));
            oldest.map(|place| {
                *place = reader;
                place
            })
        };
        match reader {
            // A long first read at the start of an object is, as a rule, that of a sequential reader.
            Some(reader) if offset == 0 && len >= FIRST_READ_MIN => reader.ahead(len, room),
            _ => Ahead::Nothing,
        }
    }

    /// What was asked for turned out to be in memory: look again when the readers are further.
    pub(crate) fn forget_issued(&mut self) {
        for reader in &mut self.readers {
            reader.issued = 0;
            reader.run = 0;
            reader.window = 0;
        }
    }
}

impl Reader {
    fn goes_on(&mut self, offset: u64, len: u64, room: u64) -> Ahead {
        if self.stride != 0 {
            (self.stride, self.run) = (0, 0);
        }
        (self.last, self.len) = (offset, len);
        self.steps = self.steps.saturating_add(1);
        self.ahead(offset + len, room)
    }

    /// Ahead of a sequential reader that is at `end`.
    fn ahead(&mut self, end: u64, room: u64) -> Ahead {
        self.run = self.run.saturating_add(self.len);
        let window = self.run.clamp(WINDOW.0, WINDOW.1);
        let from = self.issued.max(end);
        let lacks = (end + window).saturating_sub(from);
        if lacks < PIECE.min(window / 2) {
            return Ahead::Nothing;
        }
        let to = from + lacks.min(room);
        if to == from {
            return Ahead::Nothing;
        }
        self.issued = to;
        Ahead::Range(from..to)
    }

    fn strides(&mut self, offset: u64, room: u64) -> Ahead {
        self.last = offset;
        self.steps = self.steps.saturating_add(1);
        if self.steps < STEPS_MIN {
            return Ahead::Nothing;
        }
        let ahead = self.issued.saturating_sub(offset) / self.stride;
        if self.window != 0 && ahead > self.window / 2 {
            return Ahead::Nothing;
        }
        let window = (self.window * 2).clamp(STEPS_AHEAD.0, STEPS_AHEAD.1);
        let first = self.issued.max(offset + self.stride);
        let last = offset + window * self.stride;
        let count = if last < first {
            0
        } else {
            (last - first) / self.stride + 1
        };
        let count = count.min(room / self.len.max(1));
        if count == 0 {
            return Ahead::Nothing;
        }
        self.window = window;
        self.issued = first + count * self.stride;
        Ahead::Steps {
            first,
            stride: self.stride,
            len: self.len,
            count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 64 << 20;

    #[test]
    fn a_sequential_reader_is_followed_from_its_second_read() {
        let mut readers = Readers::default();
        let k = 8192;
        assert_eq!(readers.note(5 * k, k, ROOM), Ahead::Nothing);
        let first = readers.note(6 * k, k, ROOM);
        assert_eq!(first, Ahead::Range(7 * k..7 * k + WINDOW.0));
        let mut issued = WINDOW.0;
        for step in 7..2000 {
            if let Ahead::Range(range) = readers.note(step * k, k, ROOM) {
                issued += range.end - range.start;
                assert!(range.end - (step + 1) * k <= WINDOW.1);
            }
        }
        assert!(issued > 1993 * k && issued < 1993 * k + WINDOW.1 + WINDOW.0);
    }

    #[test]
    fn a_window_is_as_long_as_what_was_read_and_is_filled_up_in_pieces() {
        let mut readers = Readers::default();
        let mib = 1 << 20;
        let mut issued = mib;
        for step in 0..100 {
            let end = (step + 1) * mib;
            let Ahead::Range(range) = readers.note(step * mib, mib, ROOM) else {
                panic!("nothing is read ahead at {step}");
            };
            assert_eq!(range.start, issued, "no gap, and nothing twice");
            assert!(range.end - range.start <= 2 * PIECE);
            issued = range.end;
            assert_eq!(issued - end, end.clamp(WINDOW.0, WINDOW.1));
        }
        let mut readers = Readers::default();
        let k = 8192;
        let mut issued = 0;
        for step in 0..1000 {
            if let Ahead::Range(range) = readers.note(step * k, k, ROOM) {
                issued = range.end;
            }
            assert!(step == 0 || issued > (step + 1) * k, "never without a lead");
        }
    }

    #[test]
    fn strided_readers_and_several_at_once_are_followed_and_random_ones_are_not() {
        let mut readers = Readers::default();
        let (len, stride) = (8192, 1 << 20);
        let mut steps = 0;
        for step in 0..40_u64 {
            if let Ahead::Steps { count, .. } = readers.note(7 + step * stride, len, ROOM) {
                steps += count;
            }
            let at = (1 << 40) + step * 4096;
            let other = readers.note(at, 4096, ROOM);
            assert!(matches!(other, Ahead::Range(_) | Ahead::Nothing));
        }
        assert!((36..=120).contains(&steps), "{steps}");
        let mut readers = Readers::default();
        let mut random = 1_u64;
        let mut bytes = 0;
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            match readers.note((random >> 30) & !8191, 8192, ROOM) {
                Ahead::Range(range) => bytes += range.end - range.start,
                Ahead::Steps { len, count, .. } => bytes += len * count,
                Ahead::Nothing => {}
            }
        }
        assert_eq!(bytes, 0);
    }

    #[test]
    fn without_room_nothing_is_read_ahead() {
        let mut readers = Readers::default();
        assert_eq!(readers.note(0, 1 << 20, 0), Ahead::Nothing);
        assert_eq!(readers.note(1 << 20, 1 << 20, 0), Ahead::Nothing);
        let ahead = readers.note(2 << 20, 1 << 20, 4096);
        assert_eq!(ahead, Ahead::Range(3 << 20..(3 << 20) + 4096));
    }
}
