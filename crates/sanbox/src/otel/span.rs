//! Spans: what the appliance was asked to do, when, and how it ended.
//!
//! Guarantees: nothing is kept before [`begin`] was called, and never more than [`SPANS_MAX`] spans of bounded texts; what is too much is
//! counted. A span that is dropped before its end counts as cancelled.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use manage::secret::random;
use tokio::sync::Notify;

use crate::otel::message::{Attribute, SpanData, SpanKind, SpanStatus, StatusCode};

/// Spans that wait to be sent: a quarter of an hour of four calls a second.
const SPANS_MAX: usize = 4096;
/// Bytes of a text: command lines may name thousands of snapshots.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// Spans in one request; as many are sent at once, fewer after a while.
pub(super) const BATCH: usize = 256;

/// Spans that have ended and are to be sent.
#[derive(Default)]
pub(super) struct SpanQueue {
    ended: Mutex<EndedSpans>,
    /// There are enough for a request.
    pub(super) is_full: Notify,
}

#[derive(Default)]
struct EndedSpans {
    spans: VecDeque<SpanData>,
    /// Those for which there was no room, since that was last asked.
    dropped: u64,
}

static QUEUE: OnceLock<SpanQueue> = OnceLock::new();

/// Has spans kept from now on.
pub(super) fn begin() -> &'static SpanQueue {
    QUEUE.get_or_init(SpanQueue::default)
}

/// Whether a collector is named: else what spans say need not be put together.
pub(crate) fn are_kept() -> bool {
    QUEUE.get().is_some()
}

impl SpanQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, EndedSpans> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, span: SpanData) {
        let mut ended = self.lock();
        if ended.spans.len() >= SPANS_MAX {
            ended.dropped += 1;
            return;
        }
        ended.spans.push_back(span);
        if ended.spans.len() == BATCH {
            self.is_full.notify_one();
        }
    }

    /// Takes the oldest, at most [`BATCH`].
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut ended = self.lock();
        let count = ended.spans.len().min(BATCH);
        ended.spans.drain(..count).collect()
    }

    /// Gives back what could not be sent, as far as there is room.
    pub(super) fn give_back(&self, spans: Vec<SpanData>) {
        let mut ended = self.lock();
        for span in spans.into_iter().rev() {
            match ended.spans.len() < SPANS_MAX {
                true => ended.spans.push_front(span),
                false => ended.dropped += 1,
            }
        }
    }

    /// Counts spans that are lost, and returns how many were since this was last called.
    pub(super) fn take_dropped(&self, more: usize) -> u64 {
        let lost = u64::try_from(more).unwrap_or(u64::MAX);
        std::mem::take(&mut self.lock().dropped).saturating_add(lost)
    }
}

/// What spans that begin within another one have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    trace: [u8; 16],
    span: [u8; 8],
}

tokio::task_local! {
    /// The span that the running task works for.
    static CURRENT: SpanContext;
}

impl SpanContext {
    /// Reads `traceparent` (W3C Trace Context, 3.2): version, trace, span and flags, each in small hexadecimal digits.
    pub(super) fn from_traceparent(text: &str) -> Option<Self> {
        let hex = &data_encoding::HEXLOWER;
        let mut parts = text.trim().split('-');
        let version = hex.decode(parts.next()?.as_bytes()).ok()?;
        let trace = hex.decode(parts.next()?.as_bytes()).ok()?;
        let span = hex.decode(parts.next()?.as_bytes()).ok()?;
        let flags = hex.decode(parts.next()?.as_bytes()).ok()?;
        // Later versions may have more parts; 255 is none.
        let is_known = match version[..] {
            [0] => parts.next().is_none(),
            [version] => version != u8::MAX,
            _ => false,
        };
        let context = Self {
            trace: trace.try_into().ok()?,
            span: span.try_into().ok()?,
        };
        let is_set = context.trace != [0; 16] && context.span != [0; 8];
        (is_known && is_set && flags.len() == 1).then_some(context)
    }

    /// Runs `work`, whose spans are within this one.
    pub(super) async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}

/// A span that has begun; nothing where spans are not kept.
#[derive(Default)]
pub(crate) struct BegunSpan {
    data: Option<SpanData>,
    context: Option<SpanContext>,
}

impl BegunSpan {
    /// Begins a span within `parent`, or within the one that the running task works for, or a trace of its own.
    pub(crate) fn new(kind: SpanKind, name: &str, parent: Option<SpanContext>) -> Self {
        if !are_kept() {
            return Self::default();
        }
        let parent = parent.or_else(|| CURRENT.try_with(|current| *current).ok());
        let trace = parent.map_or_else(random, |parent| Ok(parent.trace));
        // Without random bytes there are no spans, and else nothing is lost.
        let (Ok(trace), Ok(span)) = (trace, random()) else {
            return Self::default();
        };
        Self {
            data: Some(SpanData {
                trace_id: trace.to_vec(),
                span_id: span.to_vec(),
                parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span.to_vec()),
                name: cut(name),
                kind: kind.into(),
                start_time_unix_nano: now(),
                ..SpanData::default()
            }),
            context: Some(SpanContext { trace, span }),
        }
    }

    /// Returns what spans within this one need.
    pub(super) fn context(&self) -> Option<SpanContext> {
        self.context
    }

    /// Adds a text, cut where it is long.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        if let Some(data) = &mut self.data {
            data.attributes.push(Attribute::text(key, cut(value)));
        }
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, key: &str, value: i64) {
        if let Some(data) = &mut self.data {
            data.attributes.push(Attribute::number(key, value));
        }
    }

    /// Ends the span, with what failed if something did.
    pub(crate) fn end(mut self, error: Option<&str>) {
        self.finish(error);
    }

    fn finish(&mut self, error: Option<&str>) {
        let (Some(mut data), Some(queue)) = (self.data.take(), QUEUE.get()) else {
            return;
        };
        // The clock may have been set meanwhile.
        data.end_time_unix_nano = now().max(data.start_time_unix_nano);
        data.status = error.map(|message| SpanStatus {
            message: cut(message),
            code: StatusCode::Error.into(),
        });
        queue.push(data);
    }
}

impl Drop for BegunSpan {
    fn drop(&mut self) {
        self.finish(Some("cancelled"));
    }
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let ends = (0..=TEXT_BYTES_MAX).rev();
    let end = ends.into_iter().find(|at| text.is_char_boundary(*at));
    format!("{}...", &text[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_as_the_standard_has_them() {
        let whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = SpanContext::from_traceparent;
        let context = read(whole).expect("the example of the standard");
        assert_eq!(
            context.span,
            [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]
        );
        assert_eq!(context.trace[..2], [0x0a, 0xf7]);
        assert_eq!(
            read(&format!("cc{}-what-is-to-come", &whole[2..])),
            Some(context)
        );
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0101",
            "00-0af7651916cd43dd-b7ad6b7169203331-01",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_more_spans_are_kept_than_there_is_room_for() {
        let queue = SpanQueue::default();
        let named = |name: usize| SpanData {
            name: name.to_string(),
            ..SpanData::default()
        };
        (0..SPANS_MAX + 3).for_each(|name| queue.push(named(name)));
        let taken = queue.take();
        assert_eq!((taken.len(), taken[0].name.as_str()), (BATCH, "0"));
        queue.push(named(9999));
        queue.give_back(taken);
        assert_eq!(queue.lock().spans.len(), SPANS_MAX);
        // The oldest had to go.
        assert_eq!(queue.take()[0].name, "1");
        assert_eq!(queue.take_dropped(2), 6);
        assert_eq!(queue.take_dropped(0), 0);
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let long = "\u{e4}".repeat(TEXT_BYTES_MAX);
        let cut = cut(&format!("a{long}"));
        assert_eq!(cut.len(), TEXT_BYTES_MAX - 1 + 3);
        assert!(cut.ends_with("\u{e4}..."), "{cut}");
    }
}
