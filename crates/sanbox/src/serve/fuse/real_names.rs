//! Names without regard to case, as Samba asks for them: by an extended attribute of the directory, whose name ends with the wanted one and
//! whose value is the name that is there. Without it Samba reads the directory for each name that it does not find.
//!
//! Attributes' names are too short for the longest names, and the kernel refuses what is longer, which Samba takes for a failure. It opens the
//! directory before it asks for the attribute, and reads it where that is not supported: so that is what it is told then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use manage::samba::configuration::REAL_NAME_ATTRIBUTE;

/// Bytes of an attribute's name. Linux: XATTR_NAME_MAX
const ATTRIBUTE_NAME_MAX: usize = 255;
/// Processes of which it is remembered what they looked for in vain.
const PROCESSES_MAX: usize = 4096;

/// What is known of the processes that ask.
#[derive(Debug)]
pub(super) struct RealNames {
    enabled: bool,
    /// The directory in which a process did not find a name too long to be asked for, until it opens it.
    missed: Mutex<BTreeMap<u32, u64>>,
}

impl RealNames {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            missed: Mutex::default(),
        }
    }

    /// Returns the name that an attribute asks for.
    pub(super) fn wanted<'a>(&self, attribute: &'a [u8]) -> Option<&'a [u8]> {
        let name = attribute.strip_prefix(REAL_NAME_ATTRIBUTE)?;
        self.enabled.then_some(name)
    }

    /// Returns whether it has to be noted if a name is not found.
    pub(super) fn is_too_long(&self, name: &[u8]) -> bool {
        self.enabled && REAL_NAME_ATTRIBUTE.len() + name.len() > ATTRIBUTE_NAME_MAX
    }

    /// Takes note that a process did not find a name that is too long to be asked for.
    pub(super) fn missed(&self, process: u32, dir: u64) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        if missed.len() >= PROCESSES_MAX {
            missed.clear();
        }
        missed.insert(process, dir);
    }

    /// Returns whether a process that opens a directory is about to ask there for a name that is too long; once.
    pub(super) fn opens_in_vain(&self, process: u32, dir: u64) -> bool {
        if !self.enabled {
            return false;
        }
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        missed.remove(&process) == Some(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_ask_and_names_too_long_for_one() {
        let names = RealNames::new(true);
        let wanted = names.wanted(b"glusterfs.get_real_filename:A name");
        assert_eq!(wanted, Some(&b"A name"[..]));
        assert_eq!(names.wanted(b"user.DOSATTRIB"), None);
        assert_eq!(
            RealNames::new(false).wanted(b"glusterfs.get_real_filename:x"),
            None
        );
        assert!(!names.is_too_long(&[b'x'; 227]) && names.is_too_long(&[b'x'; 228]));
        names.missed(5, 34);
        assert!(!names.opens_in_vain(6, 34), "another process");
        assert!(names.opens_in_vain(5, 34) && !names.opens_in_vain(5, 34));
        names.missed(5, 34);
        assert!(!names.opens_in_vain(5, 35), "another directory");
        assert!(!names.opens_in_vain(5, 34), "it went on otherwise");
    }
}
