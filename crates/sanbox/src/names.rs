//! Names of datasets, as far as every part of the program takes them apart.

/// The pool a dataset name belongs to.
pub(crate) fn pool_part(name: &str) -> &str {
    &name[..name.find(['/', '@', '#']).unwrap_or(name.len())]
}
