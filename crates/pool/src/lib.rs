//! `pool`: see ARCHITECTURE.md.
