//! What the history keeps of a span of time: counts of requests, disks and pools, how spans add up, and their bytes.
//!
//! The bytes are small, since hours of them are in memory: numbers of variable length, arrays without their zeros. What a newer
//! program wrote is skipped.

use engine::{PHASES, WAIT_BUCKETS};

/// Buckets of latencies: bucket i counts from 2^i to 2^(i+1) microseconds, the first below, the last above.
pub const LATENCY_BUCKETS: usize = WAIT_BUCKETS;
/// The form of the bytes.
const FORM: u8 = 1;
/// Rows of requests kept of a pool, those that waited longest; the others are added up as one.
const REQUEST_ROWS_MAX: usize = 32;
/// Longest text read back.
const TEXT_BYTES_MAX: u64 = 4096;
/// Most entries of a list read back.
const LIST_MAX: u64 = 65_536;

/// A scan (scrub or resilver) runs.
pub const SCANNING: u64 = 1;
/// There is a log device.
pub const HAS_LOG: u64 = 2;
/// A log device is not there, or cannot be written.
pub const LOG_GONE: u64 = 4;
/// Some data is deduplicated.
pub const DEDUP: u64 = 8;

/// Something that is kept as bytes.
trait Packed: Sized {
    fn pack(&self, out: &mut Vec<u8>);
    fn unpack(input: &mut &[u8]) -> Option<Self>;
}

impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.push((rest & 0x7f) as u8);
    }

    fn unpack(input: &mut &[u8]) -> Option<Self> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = input.split_first()?;
            *input = rest;
            value |= Self::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn unpack(input: &mut &[u8]) -> Option<Self> {
        let len = u64::unpack(input)?;
        let len = usize::try_from(len.min(TEXT_BYTES_MAX)).ok()?;
        let (text, rest) = input.split_at_checked(len)?;
        *input = rest;
        Some(Self::from_utf8_lossy(text).into_owned())
    }
}

impl<const N: usize> Packed for [u64; N] {
    fn pack(&self, out: &mut Vec<u8>) {
        let set = |mask: u64, (at, value): (usize, &u64)| mask | u64::from(*value > 0) << at;
        self.iter().enumerate().fold(0, set).pack(out);
        for value in self.iter().filter(|value| **value > 0) {
            value.pack(out);
        }
    }

    fn unpack(input: &mut &[u8]) -> Option<Self> {
        let mask = u64::unpack(input)?;
        let mut values = [0; N];
        for (at, value) in values.iter_mut().enumerate() {
            if mask >> at & 1 == 1 {
                *value = u64::unpack(input)?;
            }
        }
        Some(values)
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        for entry in self {
            entry.pack(out);
        }
    }

    fn unpack(input: &mut &[u8]) -> Option<Self> {
        let len = u64::unpack(input)?;
        if len > LIST_MAX {
            return None;
        }
        (0..len).map(|_| T::unpack(input)).collect()
    }
}

/// Declares a structure whose fields are kept in their order.
macro_rules! packed {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                $(self.$field.pack(out);)*
            }

            fn unpack(input: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: <$kind>::unpack(input)?,)* })
            }
        }
    };
}

packed!(
    /// A disk in a span of time.
    DiskSpan {
        /// Name, as `zpool status` shows it.
        name: String,
        /// The top-level vdev it belongs to.
        top: String,
        /// `data`, `log`, `special`, `dedup` or `cache`.
        role: String,
        /// Reads.
        reads: u64,
        /// Writes.
        writes: u64,
        /// Bytes read.
        read_bytes: u64,
        /// Bytes written.
        written_bytes: u64,
        /// Nanoseconds that operations were at the device, all of them together.
        device_ns: u64,
        /// Of those, such of scrubs and resilvers.
        scan_ns: u64,
        /// Nanoseconds that operations waited in its queue.
        queue_ns: u64,
        /// Flushes.
        flushes: u64,
        /// Nanoseconds of those.
        flush_ns: u64,
        /// Operations longer than 30 s.
        slow: u64,
        /// Failed reads and writes, blocks with wrong bytes.
        errors: u64,
        /// Time at the device, by latency.
        latency: [u64; LATENCY_BUCKETS],
    }
);

packed!(
    /// Requests of one client at one dataset in a span of time.
    RequestSpan {
        /// Dataset.
        dataset: String,
        /// Client: an address, `local` or `others`.
        client: String,
        /// `nfs`, or `local` for volumes, mounts and commands.
        protocol: String,
        /// Requests answered.
        requests: u64,
        /// Of those, such as waited for anything.
        waited: u64,
        /// Nanoseconds waited, by phase.
        waited_ns: [u64; PHASES.len()],
        /// Requests that waited, by the time they did.
        latency: [u64; LATENCY_BUCKETS],
    }
);

packed!(
    /// A pool in a span of time.
    PoolSpan {
        /// Name.
        name: String,
        /// Seconds in which it did not answer.
        unanswered: u64,
        /// [`SCANNING`] and the like, of any moment.
        flags: u64,
        /// Allocated bytes, at the end.
        used: u64,
        /// Usable bytes.
        size: u64,
        /// Bytes changed and not on the devices, at most.
        dirty: u64,
        /// Such bytes at which writers wait.
        dirty_max: u64,
        /// Bytes in the cache, at most.
        cache: u64,
        /// Its limit, at the end.
        cache_limit: u64,
        /// The limit that was set: the one above is lower while memory is short.
        cache_set: u64,
        /// Reads of data answered from memory.
        hits: u64,
        /// Reads of data that went to a device.
        data_misses: u64,
        /// Reads of metadata that went to a device.
        metadata_misses: u64,
        /// Of those misses, such of blocks that had been in the cache not long before.
        ghost_hits: u64,
        /// Transactions that the throttle held up.
        throttled: u64,
        /// Groups synced.
        synced: u64,
        /// Its disks.
        disks: Vec<DiskSpan>,
        /// Its requests.
        requests: Vec<RequestSpan>,
    }
);

packed!(
    /// The appliance in a span of time.
    Span {
        /// How long it was, in seconds.
        seconds: u64,
        /// Resident memory, at most.
        memory: u64,
        /// What it stays below.
        memory_max: u64,
        /// Bytes a second over the busiest network interface in one direction, on average.
        network: u64,
        /// What that interface carries; 0 is unknown.
        network_max: u64,
        /// The pools that were open.
        pools: Vec<PoolSpan>,
    }
);

fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

impl DiskSpan {
    /// Returns the mean time at the device in nanoseconds; 0 when it did nothing.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        let operations = self.reads + self.writes;
        self.device_ns.checked_div(operations).unwrap_or(0)
    }

    fn merge(&mut self, more: &Self) {
        self.reads += more.reads;
        self.writes += more.writes;
        self.read_bytes += more.read_bytes;
        self.written_bytes += more.written_bytes;
        self.device_ns += more.device_ns;
        self.scan_ns += more.scan_ns;
        self.queue_ns += more.queue_ns;
        self.flushes += more.flushes;
        self.flush_ns += more.flush_ns;
        self.slow += more.slow;
        self.errors += more.errors;
        add(&mut self.latency, &more.latency);
    }
}

impl RequestSpan {
    /// Returns all time waited, in nanoseconds.
    #[must_use]
    pub fn wait_ns(&self) -> u64 {
        self.waited_ns.iter().sum()
    }

    /// Adds requests, of whatever client.
    pub fn merge(&mut self, more: &Self) {
        self.requests += more.requests;
        self.waited += more.waited;
        add(&mut self.waited_ns, &more.waited_ns);
        add(&mut self.latency, &more.latency);
    }
}

impl PoolSpan {
    fn merge(&mut self, more: &Self) {
        self.unanswered += more.unanswered;
        self.flags |= more.flags;
        if more.size > 0 {
            (self.used, self.size) = (more.used, more.size);
            (self.cache_limit, self.cache_set) = (more.cache_limit, more.cache_set);
            self.dirty_max = more.dirty_max;
        }
        self.dirty = self.dirty.max(more.dirty);
        self.cache = self.cache.max(more.cache);
        self.hits += more.hits;
        self.data_misses += more.data_misses;
        self.metadata_misses += more.metadata_misses;
        self.ghost_hits += more.ghost_hits;
        self.throttled += more.throttled;
        self.synced += more.synced;
        for disk in &more.disks {
            match self.disks.iter_mut().find(|known| known.name == disk.name) {
                Some(known) => known.merge(disk),
                None => self.disks.push(disk.clone()),
            }
        }
        for row in &more.requests {
            self.add_requests(row);
        }
    }

    fn add_requests(&mut self, row: &RequestSpan) {
        let same = |known: &&mut RequestSpan| {
            known.dataset == row.dataset
                && known.client == row.client
                && known.protocol == row.protocol
        };
        match self.requests.iter_mut().find(same) {
            Some(known) => known.merge(row),
            None => self.requests.push(row.clone()),
        }
    }

    /// Adds up all but the rows that waited longest.
    pub(super) fn bound(&mut self) {
        if self.requests.len() <= REQUEST_ROWS_MAX {
            return;
        }
        self.requests
            .sort_by_key(|row| std::cmp::Reverse((row.wait_ns(), row.requests)));
        let rest = self.requests.split_off(REQUEST_ROWS_MAX - 1);
        let mut others = RequestSpan {
            dataset: self.name.clone(),
            client: "others".to_owned(),
            protocol: "others".to_owned(),
            ..RequestSpan::default()
        };
        for row in &rest {
            others.merge(row);
        }
        self.add_requests(&others);
    }
}

impl Span {
    /// Adds the span that follows.
    pub fn merge(&mut self, more: &Self) {
        let all = (self.seconds + more.seconds).max(1);
        self.network = (self.network * self.seconds + more.network * more.seconds) / all;
        self.seconds += more.seconds;
        self.memory = self.memory.max(more.memory);
        self.memory_max = more.memory_max;
        self.network_max = self.network_max.max(more.network_max);
        for pool in &more.pools {
            match self.pools.iter_mut().find(|known| known.name == pool.name) {
                Some(known) => known.merge(pool),
                None => self.pools.push(pool.clone()),
            }
        }
        self.pools.iter_mut().for_each(PoolSpan::bound);
    }

    /// Returns its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        self.pack(&mut bytes);
        bytes
    }

    /// Reads bytes; `None` when they are none of a span that this program knows.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (form, mut rest) = bytes.split_first()?;
        if *form != FORM {
            return None;
        }
        Self::unpack(&mut rest)
    }
}

/// Returns the latency that a share of what was counted stayed below, in microseconds: the end of its bucket. 0 of nothing.
#[must_use]
pub fn percentile_us(latency: &[u64; LATENCY_BUCKETS], percent: u64) -> u64 {
    let all: u64 = latency.iter().sum();
    if all == 0 {
        return 0;
    }
    let wanted = (all * percent).div_ceil(100).max(1);
    let mut seen = 0;
    for (bucket, count) in latency.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return 2 << bucket;
        }
    }
    2 << (LATENCY_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span {
        let mut latency = [0; LATENCY_BUCKETS];
        latency[3] = 98;
        latency[14] = 2;
        Span {
            seconds: 1,
            memory: 1 << 30,
            memory_max: 2 << 30,
            network: 1000,
            network_max: 125_000_000,
            pools: vec![PoolSpan {
                name: "tank".to_owned(),
                flags: SCANNING,
                size: u64::MAX,
                disks: vec![DiskSpan {
                    name: "/dev/sda".to_owned(),
                    reads: 3,
                    device_ns: 12_000_000,
                    ..DiskSpan::default()
                }],
                requests: vec![RequestSpan {
                    dataset: "tank/a".to_owned(),
                    client: "192.0.2.1".to_owned(),
                    requests: 100,
                    waited_ns: [0, 0, 5, 0, 0, 0, 700, 0, 0, 0],
                    latency,
                    ..RequestSpan::default()
                }],
                ..PoolSpan::default()
            }],
        }
    }

    #[test]
    fn spans_keep_their_bytes_and_nonsense_is_none() {
        let span = span();
        let bytes = span.to_bytes();
        assert!(bytes.len() < 200, "{}", bytes.len());
        assert_eq!(Span::from_bytes(&bytes), Some(span));
        for end in 0..bytes.len() {
            assert_eq!(Span::from_bytes(&bytes[..end]), None, "{end}");
        }
        let mut newer = bytes;
        newer[0] = FORM + 1;
        assert_eq!(Span::from_bytes(&newer), None);
        // A list of 2^63 entries.
        assert_eq!(
            Span::from_bytes(&[
                FORM, 1, 1, 1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f
            ]),
            None
        );
    }

    #[test]
    fn spans_add_up_and_rows_are_bounded() {
        let mut sum = span();
        sum.merge(&span());
        assert_eq!((sum.seconds, sum.network), (2, 1000));
        let pool = &sum.pools[0];
        assert_eq!(
            (pool.disks[0].reads, pool.disks[0].mean_ns()),
            (6, 4_000_000)
        );
        assert_eq!(pool.requests[0].requests, 200);
        let latency = &pool.requests[0].latency;
        assert_eq!(
            (percentile_us(latency, 50), percentile_us(latency, 99)),
            (16, 32_768)
        );
        let mut many = span();
        for client in 0..100 {
            many.pools[0].requests.push(RequestSpan {
                client: client.to_string(),
                requests: 1,
                ..RequestSpan::default()
            });
        }
        sum.merge(&many);
        assert_eq!(sum.pools[0].requests.len(), REQUEST_ROWS_MAX);
        let requests = sum.pools[0].requests.iter().map(|row| row.requests);
        assert_eq!(requests.sum::<u64>(), 400);
    }
}
