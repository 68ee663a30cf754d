//! `arc`: see ARCHITECTURE.md.
