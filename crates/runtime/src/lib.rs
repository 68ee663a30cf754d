//! `runtime`: see ARCHITECTURE.md.
