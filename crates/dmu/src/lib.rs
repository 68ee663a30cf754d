//! `dmu`: see ARCHITECTURE.md.
