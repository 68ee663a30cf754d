//! `ondisk`: see ARCHITECTURE.md.
