//! Keys of delegated permissions in a directory's ZAP of grants.
//!
//! ```text
//! ul$1000  user 1000, local         gl$1000, el$   a group, everyone
//! ud$1000  user 1000, descendents   gd$1000, ed$
//! c-$      the creator of a dataset below, on that dataset
//! s-$@set  permissions of a set     S-$@set        sets that a set includes
//! ```
//! A capital first letter: the value is a ZAP of permission sets, not of permissions.
//! OpenZFS: module/zcommon/zfs_deleg.c (`zfs_deleg_whokey`), include/zfs_deleg.h (`ZFS_MAX_DELEG_NAME`).

/// Longest key, in bytes.
const KEY_MAX: usize = 128;

/// Whether a key has the form of an entry's.
#[must_use]
pub fn is_key(key: &str) -> bool {
    let mut letters = key.chars();
    let (Some(grantee), Some(scope), Some('$')) = (letters.next(), letters.next(), letters.next())
    else {
        return false;
    };
    let rest = letters.as_str();
    let number = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    key.len() < KEY_MAX
        && match (grantee, scope) {
            ('u' | 'U' | 'g' | 'G', 'l' | 'd') => number,
            ('e' | 'E', 'l' | 'd') | ('c' | 'C', '-') => rest.is_empty(),
            ('s' | 'S', '-') => rest.len() > 1 && rest.starts_with('@'),
            _ => false,
        }
}

/// The keys that apply to a user: of the user, of everyone, of each group. `sets`: of permission sets; `scope` is `l`
/// (local) or `d` (descendent).
#[must_use]
pub fn keys_of_user(uid: u32, gids: &[u32], sets: bool, scope: char) -> Vec<String> {
    let letter = |letter: char| {
        if sets {
            letter.to_ascii_uppercase()
        } else {
            letter
        }
    };
    let mut keys = vec![
        format!("{}{scope}${uid}", letter('u')),
        format!("{}{scope}$", letter('e')),
    ];
    for gid in gids {
        keys.push(format!("{}{scope}${gid}", letter('g')));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        for good in ["ul$0", "Gd$55", "el$", "C-$", "s-$@a"] {
            assert!(is_key(good), "{good}");
        }
        for bad in [
            "", "u", "ul$", "ul$x", "e-$", "c-$1", "s-$a", "s-$@", "xl$1", "ul1",
        ] {
            assert!(!is_key(bad), "{bad}");
        }
        let long = format!("s-$@{}", "x".repeat(KEY_MAX));
        assert!(!is_key(&long) && is_key(&long[..KEY_MAX - 1]));
    }

    #[test]
    fn keys_of_a_user() {
        assert_eq!(
            keys_of_user(7, &[8, 9], false, 'l'),
            ["ul$7", "el$", "gl$8", "gl$9"]
        );
        assert_eq!(keys_of_user(7, &[], true, 'd'), ["Ud$7", "Ed$"]);
        for key in keys_of_user(u32::MAX, &[0], true, 'd') {
            assert!(is_key(&key), "{key}");
        }
    }
}
