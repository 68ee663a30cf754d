//! Modelled disks, virtual time, workloads and checkers.
