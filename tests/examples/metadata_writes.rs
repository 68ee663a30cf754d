//! What a transaction group writes besides its data, in a pool that is nearly full and fragmented:
//!
//! ```text
//! metadata_writes make DISK_DIR VOLUME_BYTES     a pool on all files of a directory; its volume is filled, then half of its records are overwritten
//! metadata_writes over DISK_DIR GROUPS WRITES    overwrites so many random records in each of so many transaction groups
//! ```
//! `over` prints how many bytes the devices named in `METADATA_STATS` (files like `/sys/block/loop0/stat`) took meanwhile; `refpool`'s
//! operation `over` does the same with OpenZFS's code. tests/bench/metadata.sh runs both.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::path::{Path, PathBuf};

use engine::{
    CreateDataset, Ending, Engine, ImportPolicy, IoBuf, PoolHandle, PoolSpec, Stability, Threads,
    VdevSpec, VolumeHandle,
};
use tests::block_on;

const POOL: &str = "measure";
const VOLUME: &str = "measure/volume";
const RECORD: u64 = 8192;
/// Records overwritten in a transaction group while the pool is made.
const GROUP_RECORDS: u64 = 16_384;

/// The same sequence as in `refpool`.
struct Records {
    state: u64,
    count: u64,
}

impl Iterator for Records {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Some(self.state % self.count)
    }
}

fn disks(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut disks: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    disks.sort();
    disks
}

fn overwrite(volume: &VolumeHandle, records: &mut Records, writes: u64) {
    let bytes = vec![0x5a; usize::try_from(RECORD).expect("it is small")];
    for record in records.take(usize::try_from(writes).expect("not that many")) {
        let data = IoBuf::copy_from(&bytes);
        block_on(volume.write(record * RECORD, data, Stability::Unstable)).expect("write");
    }
}

/// Bytes that the devices took so far.
fn bytes_written() -> u64 {
    let names = std::env::var("METADATA_STATS").unwrap_or_default();
    let sectors = names.split_whitespace().map(|name| {
        let text = std::fs::read_to_string(name).expect("statistics of a device");
        let field = text.split_whitespace().nth(6).map(str::parse::<u64>);
        field.expect("seven fields").expect("a number")
    });
    sectors.sum::<u64>() * 512
}

fn make(directory: &Path, volume_bytes: u64) {
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: POOL.to_owned(),
        vdevs: disks(directory).into_iter().map(VdevSpec::Single).collect(),
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("a pool");
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let request = CreateDataset {
        name: VOLUME.to_owned(),
        volume: true,
        properties: vec![
            set("volsize", &volume_bytes.to_string()),
            set("volblocksize", &RECORD.to_string()),
            set("compression", "off"),
        ],
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).expect("a volume");
    let volume = block_on(pool.open_volume(VOLUME)).expect("it opens");
    for at in (0..volume_bytes).step_by(1 << 20) {
        let len = usize::try_from((volume_bytes - at).min(1 << 20)).expect("a MiB");
        let data = IoBuf::copy_from(&vec![0xa5; len]);
        block_on(volume.write(at, data, Stability::Unstable)).expect("fill");
    }
    block_on(pool.sync()).expect("sync");
    let count = volume_bytes / RECORD;
    let mut records = Records { state: 1, count };
    let mut left = count / 2;
    while left > 0 {
        let writes = left.min(GROUP_RECORDS);
        overwrite(&volume, &mut records, writes);
        block_on(pool.sync()).expect("sync");
        left -= writes;
    }
    describe(&pool);
    drop((volume, pool));
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).expect("export");
}

fn describe(pool: &PoolHandle) {
    let status = block_on(pool.status()).expect("status");
    let tops = &status.root.children;
    let (size, used) = tops.iter().fold((0, 0), |(size, used), top| {
        (size + top.size_bytes, used + top.allocated_bytes)
    });
    println!(
        "{} vdevs, {}% in use, fragmentation {}%",
        tops.len(),
        used * 100 / size.max(1),
        status.root.fragmentation_percent.unwrap_or(0)
    );
}

fn over(directory: &Path, groups: u64, writes: u64) {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![directory.to_path_buf()])).expect("look");
    let mut pools = found.pools.into_iter();
    let candidate = pools.find(|pool| pool.name == POOL).expect("the pool");
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy)).expect("import");
    let volume = block_on(pool.open_volume(VOLUME)).expect("it opens");
    let bytes = block_on(volume.info()).expect("its size").size;
    let (state, count) = (2, bytes / RECORD);
    let mut records = Records { state, count };
    block_on(pool.sync()).expect("sync");
    let before = bytes_written();
    for _ in 0..groups {
        overwrite(&volume, &mut records, writes);
        block_on(pool.sync()).expect("sync");
    }
    println!("{}", bytes_written() - before);
    drop((volume, pool));
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).expect("export");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["make", directory, bytes] => make(Path::new(directory), number(bytes)),
        ["over", directory, groups, writes] => {
            over(Path::new(directory), number(groups), number(writes));
        }
        _ => panic!("metadata_writes make DISK_DIR VOLUME_BYTES | over DISK_DIR GROUPS WRITES"),
    }
}
