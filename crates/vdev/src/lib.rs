//! `vdev`: see ARCHITECTURE.md.
