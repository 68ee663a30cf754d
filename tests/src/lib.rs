//! Whole-system tests: golden pools, command transcripts, interop with OpenZFS and real clients.
