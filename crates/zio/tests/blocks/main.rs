//! Tests of the block store over real files and over pools made by OpenZFS.

mod classes;
mod encryption;
mod golden;
mod round_trip;
mod world;
