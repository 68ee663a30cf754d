//! Devices in a modelled world: labels, what a device holds, mirrors whose halves fail in every way.

mod devices;
mod mirrors;
