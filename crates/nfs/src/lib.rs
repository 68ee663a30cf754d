//! `nfs`: see ARCHITECTURE.md.
