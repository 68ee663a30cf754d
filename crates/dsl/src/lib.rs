//! `dsl`: see ARCHITECTURE.md.
