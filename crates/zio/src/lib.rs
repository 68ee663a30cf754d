//! `zio`: see ARCHITECTURE.md.
