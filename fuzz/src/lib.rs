//! One plain function per decoder of untrusted bytes: it must return whatever the bytes are.
//!
//! `tests/replay.rs` runs every target over `corpus/TARGET/` and over seeded mutations of it in ordinary `cargo test`, with
//! a limit on memory. `libfuzzer/` runs the same functions under coverage guidance, with nightly Rust, a C++ compiler and
//! `cargo install cargo-fuzz`; what it finds goes into the first folder, which git ignores:
//!
//! ```text
//! mkdir -p fuzz/libfuzzer/corpus/TARGET
//! cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer TARGET fuzz/libfuzzer/corpus/TARGET fuzz/corpus/TARGET
//! ```

#![forbid(unsafe_code)]

mod canary;
mod grammar;
mod records;
mod roots;
mod stored;
mod wire;
mod zaps;

/// A target: its name (and corpus folder), what to run, and how much it may allocate.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Bytes it may hold at once, for an input of this length.
    pub memory_max: fn(usize) -> usize,
}

/// What a decoder may hold when its structures are a small multiple of their bytes.
fn proportional(len: usize) -> usize {
    len * 40 + (64 << 10)
}

/// Every target that must never panic.
pub const TARGETS: &[Target] = &[
    Target {
        name: "nvlist",
        run: roots::nvlist,
        memory_max: |len| len * 150 + (64 << 10),
    },
    Target {
        name: "label",
        run: roots::label,
        memory_max: |len| len * 150 + (64 << 10),
    },
    Target {
        name: "uberblock",
        run: roots::uberblock,
        memory_max: proportional,
    },
    Target {
        name: "block_pointer",
        run: roots::block_pointer,
        memory_max: proportional,
    },
    Target {
        name: "dnode",
        run: records::dnode,
        memory_max: proportional,
    },
    Target {
        name: "objset",
        run: records::objset,
        memory_max: proportional,
    },
    Target {
        name: "crypt",
        run: records::crypt,
        memory_max: proportional,
    },
    Target {
        name: "dsl",
        run: records::dsl,
        memory_max: proportional,
    },
    Target {
        name: "bptree",
        run: records::bptree,
        memory_max: proportional,
    },
    Target {
        name: "ddt",
        run: records::ddt,
        memory_max: proportional,
    },
    Target {
        name: "brt",
        run: records::brt,
        memory_max: proportional,
    },
    Target {
        name: "removal",
        run: records::removal,
        memory_max: proportional,
    },
    Target {
        name: "rebuild",
        run: records::rebuild,
        memory_max: proportional,
    },
    Target {
        name: "l2arc",
        run: records::l2arc,
        memory_max: |len| len * 40 + (256 << 10),
    },
    Target {
        name: "bookmark",
        run: records::bookmark,
        memory_max: proportional,
    },
    Target {
        name: "deadlist",
        run: records::deadlist,
        memory_max: proportional,
    },
    Target {
        name: "deleg",
        run: records::deleg,
        memory_max: proportional,
    },
    Target {
        name: "file_owner",
        run: records::file_owner,
        memory_max: proportional,
    },
    Target {
        name: "sa",
        run: records::sa,
        memory_max: proportional,
    },
    Target {
        name: "acl",
        run: records::acl,
        memory_max: proportional,
    },
    Target {
        name: "posix_acl",
        run: records::posix_acl,
        memory_max: proportional,
    },
    Target {
        name: "space_map",
        run: records::space_map,
        memory_max: proportional,
    },
    Target {
        name: "history",
        run: records::history,
        memory_max: |len| len * 150 + (64 << 10),
    },
    Target {
        name: "zil_block",
        run: records::zil_block,
        memory_max: proportional,
    },
    Target {
        name: "zil_record",
        run: records::zil_record,
        memory_max: proportional,
    },
    // Payloads are passed in place; the list of a BEGIN is decoded.
    Target {
        name: "send_stream",
        run: records::send_stream,
        memory_max: |len| len * 150 + (64 << 10),
    },
    Target {
        name: "zap_micro",
        run: zaps::micro,
        memory_max: proportional,
    },
    Target {
        name: "zap_fat",
        run: zaps::fat,
        memory_max: proportional,
    },
    Target {
        name: "zap_leaf",
        run: zaps::leaf,
        memory_max: proportional,
    },
    // A block of at most 1 MiB is asked for (see the target), and decoders keep contexts.
    Target {
        name: "decompress",
        run: stored::decompress,
        memory_max: |_| 8 << 20,
    },
    // Whole connections: the server's tables, and commands' buffers within its limit of 1 MiB.
    Target {
        name: "nbd_connection",
        run: nbd::fuzz::connection,
        memory_max: |len| len * 40 + (256 << 10),
    },
    Target {
        name: "iscsi_connection",
        run: iscsi::fuzz::connection,
        memory_max: |len| len * 40 + (4 << 20),
    },
    Target {
        name: "iscsi_text",
        run: iscsi::fuzz::text,
        memory_max: proportional,
    },
    Target {
        name: "scsi_parameters",
        run: iscsi::fuzz::parameters,
        memory_max: proportional,
    },
    Target {
        name: "checksum",
        run: stored::checksum,
        memory_max: proportional,
    },
    Target {
        name: "rpc_call",
        run: wire::call,
        memory_max: proportional,
    },
    Target {
        name: "rpc_stream",
        run: wire::stream,
        memory_max: proportional,
    },
    // JSON may nest, and a map's entry takes more than its text.
    Target {
        name: "control",
        run: wire::control,
        memory_max: |len| len * 150 + (64 << 10),
    },
    // A chunk may be a megabyte when it is unpacked, and so may the list of a resume token.
    Target {
        name: "peer",
        run: wire::peer,
        memory_max: |len| len * 150 + (4 << 20),
    },
    Target {
        name: "share",
        run: grammar::share,
        memory_max: |len| len * 150 + (64 << 10),
    },
    Target {
        name: "setting",
        run: grammar::setting,
        memory_max: proportional,
    },
    // Tables of the parser's own, and messages that quote the text.
    Target {
        name: "config",
        run: grammar::config,
        memory_max: |len| len * 400 + (64 << 10),
    },
    Target {
        name: "options",
        run: grammar::options,
        memory_max: proportional,
    },
];

/// Targets that must be caught: one panics, one allocates without reason.
pub const CANARIES: &[Target] = &[
    Target {
        name: "canary_panic",
        run: canary::panics,
        memory_max: proportional,
    },
    Target {
        name: "canary_memory",
        run: canary::allocates,
        memory_max: proportional,
    },
];
