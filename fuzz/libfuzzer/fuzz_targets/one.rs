//! One binary for every target: the name of the binary says which.
#![no_main]

use std::sync::OnceLock;

use fuzz::{CANARIES, TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let program = std::env::args().next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default().to_owned();
        TARGETS.iter().chain(CANARIES).find(|t| t.name == name).expect("a binary named after its target")
    })
}

fuzz_target!(|data: &[u8]| (target().run)(data));
