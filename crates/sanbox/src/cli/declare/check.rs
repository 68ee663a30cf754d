//! The declarations of the commands that compare, look into streams and try power cuts.

use super::super::command::Command;
use super::super::flag::{long, short, valued};

pub(super) const ESTIMATE: Command = Command {
    name: "estimate",
    summary: "tell what deduplication or compression would save, before it is turned on",
    operands: "dedup | compression  POOL|DATASET|SNAPSHOT",
    flags: &[
        long(
            "sample",
            Some("N"),
            "at most so many different blocks (dedup, 262144) or blocks (compression, 4096) in the sample",
        ),
        long(
            "time",
            Some("TIME"),
            "look for so long at most, such as 5m (compression: read and compress for so long, 30s)",
        ),
        short(
            'v',
            "tell how far it is every few seconds, also where no terminal is",
        ),
        short('p', "exact numbers"),
        long("json", None, "as JSON"),
    ],
    text: &[
        "Looks at all file systems, volumes and snapshots from there down; what snapshots share counts once. Nothing is changed, the pool \
         stays in use, and it may be broken off at any time. Ratios are told with the error within which 95 of 100 samples lie.",
        "dedup reads pointers of blocks, not blocks, for equal blocks have equal checksums; with a checksum that is not cryptographic \
         (fletcher4, the usual one) some of those that seem to be equal are read and compared. The sample keeps the contents with the lowest \
         hashes, with all their references; fewer than --sample are counted exactly. Encrypted blocks are left out: their checksums differ \
         though they hold the same.",
        "compression reads blocks chosen at random and compresses each by each algorithm, as a write would. Seconds are those of one processor \
         for a GiB before compression. RATIO is that of the property compressratio.",
        "What was written before a property is set stays as it is until it is written again ('zfs rewrite').",
    ],
    examples: &[
        (
            "sanbox estimate dedup tank",
            "what deduplication would save, and what its table would cost",
        ),
        (
            "sanbox estimate compression tank/vm --time 2m",
            "lz4, zstd and gzip beside what is there now",
        ),
        (
            "sanbox estimate dedup tank --json",
            "for programs, with the histogram of references",
        ),
    ],
    ..Command::NEW
};

pub(super) const SUMS: Command = Command {
    name: "sums",
    summary: "print a digest of each object of datasets",
    operands: "DATASET|SNAPSHOT ...",
    flags: &[short('r', "also what lies below, and all snapshots")],
    text: &[
        "One line for each object: dataset, number, type, bytes of a block, and a SHA-256 over the digests of its blocks and \
         its bonus, each with its place; a block of zeros counts as a hole. Equal lines mean equal content, whatever the \
         layout, compression or checksum of the pool: replicas can be compared without moving their data. Everything is read \
         and verified on the way.",
    ],
    examples: &[(
        "sanbox sums -r tank/fs@monday",
        "what the snapshot holds, to compare with its copy elsewhere",
    )],
    ..Command::NEW
};

pub(super) const ZSTREAM: Command = Command {
    name: "zstream",
    summary: "look into a send stream",
    operands: "dump [-vCd] [FILE] | token TOKEN | redup [-v] FILE",
    flags: &[
        short('v', "each record on a line; said twice, the same"),
        short('C', "do not verify checksums"),
        short('d', "the bytes of each payload too; implies -v"),
    ],
    text: &[
        "Prints what a stream holds in the words of OpenZFS's zstream, and fails where its checksums are wrong or it ends too \
         early. Without a file it reads standard input. A link named zstream to this program is the same command.",
        "token: what the token of an interrupted receive says. redup: a stream of 'zfs send -D' with its blocks in place of the records \
             that refer to them, to standard output, as it can be received.",
    ],
    ..Command::NEW
};

pub(crate) const ZINJECT: Command = Command {
    name: "zinject",
    summary: "inject faults into a pool in use, to rehearse failures",
    operands: "[POOL|FILE]",
    flags: &[
        short(
            'a',
            "first forget what the caches hold, so that reads come from the devices",
        ),
        valued(
            'A',
            "degrade|fault",
            "make the device count as one that failed, at once",
        ),
        valued(
            'b',
            "OBJSET:OBJECT:LEVEL:BLOCK",
            "reads of this block, in hexadecimal, fail",
        ),
        valued('c', "ID|all", "end a fault, or all"),
        valued(
            'C',
            "DVAS",
            "only reads of these copies: 0, 1, 2 or a list of them",
        ),
        valued('d', "DEVICE", "I/O of this device, by name, path or guid"),
        valued(
            'D',
            "LATENCY:LANES",
            "I/O takes at least so many milliseconds, so many at a time",
        ),
        valued('E', "DELAY", "not here: delays before I/O is issued"),
        valued(
            'e',
            "ERROR",
            "what happens: io, nxio (also when it is opened again), corrupt (a bit flips), noop (nothing is done), dtl (it \
             cannot be spared); for data io, checksum, decompress, decrypt",
        ),
        valued('f', "PERCENT", "only so often: 0.0001 to 100"),
        short('F', "what fails is tried again, and goes well then"),
        valued('g', "TXGS", "with -I"),
        short('h', "print this help"),
        short('I', "not here: writes of all devices that are lost"),
        valued(
            'l',
            "LEVEL",
            "blocks of this level; 0, the data, unless told",
        ),
        valued(
            'L',
            "AREA",
            "I/O to this part of the labels: nvlist, pad1, pad2 or uber",
        ),
        short(
            'm',
            "unmount the file system of the file and mount it again",
        ),
        valued('p', "FUNCTION", "not here: panics"),
        valued(
            'P',
            "import|export",
            "the next import or export takes longer, by -s",
        ),
        short('q', "print only the number of the fault"),
        valued('r', "START[,END]", "only this range of bytes of the file"),
        valued('s', "SECONDS", "with -P, how much longer"),
        valued(
            'T',
            "TYPE",
            "only I/O of this type: read, write, flush, trim, all, or probe, which finds out whether a device is gone",
        ),
        valued(
            't',
            "TYPE",
            "reads of blocks fail: data (of the file), dnode (its own), mos (all of the pool's own objects), mosdir, metaslab, \
             config, bpobj, spacemap or errlog",
        ),
        short('u', "not here: unload the pool; export and import it"),
    ],
    text: &[
        "Without arguments lists the faults, how often each could have been injected (MATCH) and was (INJECT). Faults are for \
         pools that a daemon has imported. They are not stored: an export ends them, and so does the end of the daemon. What fails \
         is counted, reported and repaired as if devices had failed; 'zpool clear' forgets it. The grammar is that of OpenZFS's \
         zinject(8). A link named zinject to this program is the same command.",
        "-d: faults of a device, nxio unless -e tells. Of I/O that fails, writes were done all the same; labels are left alone, \
         but for -L. -e noop loses what is written. -D: further delays of a device add lanes.",
        "-t, -b: faults of reads of blocks, io unless -e tells; nothing on the devices is changed. Blocks in the cache are not read: \
         add -a.",
    ],
    examples: &[
        (
            "sanbox zinject -d disk1 -e io -T read -f 10 tank",
            "every tenth read of the device fails: the pool goes on, counts it, and at last degrades or faults the device",
        ),
        (
            "sanbox zinject -d disk1 -D 200:1 tank",
            "the device is slow: see it in 'zpool iostat -l' and 'sanbox why'",
        ),
        (
            "sanbox zinject -a -t data -e checksum /tank/photos/1.jpg",
            "the file is damaged until the fault is ended",
        ),
        ("sanbox zinject -c all", "all is well again"),
    ],
    ..Command::NEW
};

pub(super) const LAB: Command = Command {
    name: "lab",
    summary: "try power cuts in simulated machines",
    operands: "crash | ledger FILE",
    flags: &[
        long("seeds", Some("N"), "crash: how many seeds (100)"),
        long("start", Some("S"), "crash: the first seed (0)"),
        long("jobs", Some("J"), "crash: processes at a time (2)"),
        long(
            "minutes",
            Some("M"),
            "crash: go on with further seeds until so much time is over",
        ),
        long(
            "twice",
            None,
            "crash: run each seed again and compare, which shows that it can be repeated",
        ),
        long(
            "check-all",
            None,
            "crash: have the checker look for leaked and lost space after every cut, not after one in 24",
        ),
        long(
            "caches",
            None,
            "crash: give every pool a cache device, which may rot or fail",
        ),
        long(
            "ledger",
            Some("FILE"),
            "crash: add the run to a ledger, and begin with the first seed it does not have",
        ),
        long(
            "engine",
            Some("NAME"),
            "crash: what the ledger calls the state of the program",
        ),
        long("seed", Some("S"), "crash: one seed only, and tell more"),
        long("cut", Some("N"), "crash: with --seed, one of its cuts only"),
        long(
            "dump",
            Some("DIR"),
            "crash: with --seed, write the disks a violation left",
        ),
        long(
            "trace",
            Some("FILE"),
            "crash: with --cut, write the events of the import after it",
        ),
    ],
    text: &[
        "Each seed is a small machine of its own, with the engine of this program on modelled disks under virtual time: files, \
         datasets and volumes on every layout, with and without log devices, on good, slow and failing disks. The power is cut \
         at a hundred or more moments of its run; after each cut the pool is imported, and what is found is judged against \
         everything that had been acknowledged. No pool of this machine is touched.",
        "Exit status: 0 when nothing was lost, 1 for violations, 2 for bad usage. A ledger keeps what has been run: seeds, \
         cuts, cuts in an hour, and the seeds that showed a violation.",
    ],
    examples: &[
        (
            "sanbox lab crash --minutes 10",
            "power cuts for ten minutes, in two processes",
        ),
        (
            "sanbox lab crash --seed 112",
            "one seed with all its cuts, the first violation in full",
        ),
        (
            "sanbox lab ledger sim/ledger.toml",
            "add up what has been run so far",
        ),
    ],
    ..Command::NEW
};
