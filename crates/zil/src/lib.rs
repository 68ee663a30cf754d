//! `zil`: see ARCHITECTURE.md.
