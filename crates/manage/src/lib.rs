//! `manage`: see ARCHITECTURE.md.
