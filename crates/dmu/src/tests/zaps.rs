//! Dictionaries against a `BTreeMap`: conversion, growth, removal, cursors, overlapping groups, reopening.
