//! Names of datasets, and of users and groups of this machine, as far as every part of the program takes them apart.

use std::path::Path;
use std::sync::OnceLock;

/// The appliance's own groups, in the form of `/etc/group`; where a process has a state directory.
static OWN_GROUPS: OnceLock<Box<Path>> = OnceLock::new();

/// Has names of the appliance's own groups be known, which this state directory lists.
pub(crate) fn keep_groups_of(state: &Path) {
    let list = state.join(manage::accounts::GROUPS_FILE);
    // A process has one state directory.
    let _ = OWN_GROUPS.set(list.into_boxed_path());
}

/// Returns the users of the machine, in the form of `/etc/passwd`.
pub(crate) fn users() -> String {
    std::fs::read_to_string("/etc/passwd").unwrap_or_default()
}

/// Returns the groups of the machine and then those of the appliance, in the form of `/etc/group`.
pub(crate) fn groups() -> String {
    let mut list = std::fs::read_to_string("/etc/group").unwrap_or_default();
    if let Some(own) = OWN_GROUPS.get() {
        if !list.ends_with('\n') {
            list.push('\n');
        }
        list.push_str(&std::fs::read_to_string(own).unwrap_or_default());
    }
    list
}

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
