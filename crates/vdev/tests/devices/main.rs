//! Devices in a modelled world: labels, what a device holds, mirrors and raidz whose disks fail in every way.

mod devices;
mod mirrors;
mod stripes;
