//! Names of datasets, and of users and groups of this machine, as far as every part of the program takes them apart.

/// The pool a dataset name belongs to.
pub(crate) fn pool_part(name: &str) -> &str {
    &name[..name.find(['/', '@', '#']).unwrap_or(name.len())]
}

/// Finds the numbers of a name in the text of `/etc/passwd` or `/etc/group`, as they stand there.
pub(crate) fn ids_of<'a>(list: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    list.lines().filter_map(move |line| {
        let mut parts = line.split(':');
        (parts.next()? == name).then(|| parts.nth(1))?
    })
}
