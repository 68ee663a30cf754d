//! The declarations of the commands that compare, look into streams and try power cuts.

use super::super::command::Command;
use super::super::flag::{long, short};

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
