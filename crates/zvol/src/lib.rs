//! `zvol`: see ARCHITECTURE.md.
