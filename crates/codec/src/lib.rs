//! `codec`: see ARCHITECTURE.md.
