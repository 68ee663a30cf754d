//! Names of extended attributes: Linux's namespaces, and names of other systems, which have none.

use crate::acl::posix;

pub(crate) const USER: &[u8] = b"user.";
pub(crate) const TRUSTED: &[u8] = b"trusted.";
pub(crate) const SECURITY: &[u8] = b"security.";
pub(crate) const SYSTEM: &[u8] = b"system.";

/// Linux's namespaces of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    User,
    Trusted,
    Security,
    System,
}

/// Returns whether a name is that of a POSIX access control list.
pub(crate) fn is_posix_list(name: &[u8]) -> bool {
    name == posix::ACCESS || name == posix::DEFAULT
}

/// Returns the namespace of a name; a name that is only one has none.
pub(crate) fn namespace(name: &[u8]) -> Option<Namespace> {
    let spaces = [
        (USER, Namespace::User),
        (TRUSTED, Namespace::Trusted),
        (SECURITY, Namespace::Security),
        (SYSTEM, Namespace::System),
    ];
    let of = |(prefix, _): &(&[u8], _)| name.len() > prefix.len() && name.starts_with(prefix);
    spaces.into_iter().find(of).map(|(_, space)| space)
}

fn has_namespace(name: &[u8]) -> bool {
    [USER, TRUSTED, SECURITY, SYSTEM]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Returns the name of a user's attribute as systems write it that know no namespaces.
pub(crate) fn without_namespace(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(USER)
        .filter(|bare| !bare.is_empty() && !has_namespace(bare))
}

/// Returns a name as it is listed.
pub(crate) fn shown_name(name: &[u8]) -> Vec<u8> {
    if has_namespace(name) {
        name.to_vec()
    } else {
        [USER, name].concat()
    }
}
