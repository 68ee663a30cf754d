//! CHAP, one way and mutual. RFC 1994, RFC 7143 section 12.1, RFC 7144 for the algorithms beyond MD5.

/// Hash algorithms, strongest first.
pub(crate) const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Sha3,
    Algorithm::Sha256,
    Algorithm::Sha1,
    Algorithm::Md5,
];
/// Longest challenge we accept. RFC 7143 section 12.1.3: 1024 bytes.
pub(crate) const CHALLENGE_BYTES_MAX: usize = 1024;
/// Length of ours.
pub(crate) const CHALLENGE_BYTES: usize = 32;

/// A hash algorithm, by its number in `CHAP_A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha3,
}

impl Algorithm {
    pub(crate) fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha1 => "6",
            Self::Sha256 => "7",
            Self::Sha3 => "8",
        }
    }

    /// Returns the response to a challenge.
    pub(crate) fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        let parts = [&[identifier][..], secret, challenge];
        match self {
            Self::Md5 => hash::<md5::Md5>(&parts),
            Self::Sha1 => hash::<sha1::Sha1>(&parts),
            Self::Sha256 => hash::<sha2::Sha256>(&parts),
            Self::Sha3 => hash::<sha3::Sha3_256>(&parts),
        }
    }
}

fn hash<D: sha1::Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let mut digest = D::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().to_vec()
}

/// Picks the first algorithm of an initiator's list that we know: the list is in the order of its preference. RFC 7143 section 6.2.1.
pub(crate) fn choose(offered: &str) -> Option<Algorithm> {
    offered.split(',').find_map(|number| {
        let known = |ours: &Algorithm| number.trim() == ours.number();
        ALGORITHMS.into_iter().find(known)
    })
}

/// Compares in a time that tells nothing of where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Writes bytes the way `CHAP_C` and `CHAP_R` carry them.
pub(crate) fn text(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_known_is_chosen() {
        assert_eq!(choose("5"), Some(Algorithm::Md5));
        assert_eq!(choose("1,7,8,5"), Some(Algorithm::Sha256));
        assert_eq!(choose("5,6,7,8"), Some(Algorithm::Md5));
        assert_eq!(choose("1"), None);
    }

    #[test]
    fn md5_of_a_known_exchange() {
        // md5("\x01" "secret" "\x00\x01\x02\x03"), by another implementation.
        let response = Algorithm::Md5.response(1, b"secret", &[0, 1, 2, 3]);
        assert_eq!(text(&response), "0xe82cb2ed1efe04893c9cf73d4dd12e2d");
        assert!(same(&response, &response.clone()));
        assert!(!same(&response, b"short"));
    }
}
