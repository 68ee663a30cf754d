//! `zpl`: see ARCHITECTURE.md.
